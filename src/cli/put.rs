//! `zarrfs put`: writes standard input to the flat bytes of an array, without FUSE. All of it is
//! stored when the verb succeeds. `put_file` stores a file of another program instead.

use super::cache_options::spill_directory;
use super::compressor::{self, CompressorArg};
use super::flat::{self, Flat};
use super::migrate::shard_shape;
use super::progress::ProgressLine;
use super::{
    CommandFailure, CommandResult, MemoryArgs, StoreArgs, StoreLocation, StoreRequest, WriteArgs,
    size, stdio, words,
};
use crate::array::hierarchy::{DocumentFormat, ShardShape};
use crate::cache::SpillOptions;
use crate::fs::Options;
use clap::Args;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek};
use std::path::PathBuf;
use std::sync::Arc;
use zarrfs_base::error::{Error, ErrorContext};
use zarrfs_base::spill_file::SpillFile;

/// Number of bytes read and written at a time.
const STEP: usize = 4 << 20;

/// Maximum size in bytes of chunks that wait in a file for the rest of their shard.
const MAX_PENDING: u64 = 8 << 30;

/// Arguments of `put`.
#[derive(Args)]
pub struct PutArgs {
    /// Path of the array, in or after the path of the store
    #[arg(value_name = "STORE/ARRAY")]
    pub path: StoreLocation,
    /// netCDF, HDF5, NPY or TIFF file to store as a new group or array
    ///
    /// A netCDF or HDF5 file becomes a group, a .npy or TIFF file an array, with everything that
    /// they say. Where no directory of the path is a store, one is created, as create does.
    #[arg(value_name = "FILE", conflicts_with = "offset")]
    pub file: Option<PathBuf>,
    /// Begin at byte N
    ///
    /// The bytes before it, and those after the end of the input, stay.
    #[arg(long, value_name = "N", default_value = "0", value_parser = size::parse)]
    offset: u64,
    #[command(flatten)]
    pub ingest: IngestArgs,
    #[command(flatten)]
    pub memory: MemoryArgs,
    #[command(flatten)]
    pub writing: WriteArgs,
    #[command(flatten)]
    pub store_args: StoreArgs,
}

/// How a file is stored.
#[derive(Args, Clone)]
pub struct IngestArgs {
    /// Set the shape of chunks, or auto [default: auto]
    ///
    /// For a FILE, and for arrays of as many dimensions. auto halves the longest dimension until a
    /// chunk has at most 4 MiB. By default, chunks of HDF5 that suit a store keep their shape.
    #[arg(long, value_name = "N,N...", value_parser = shard_shape, requires = "file")]
    pub chunks: Option<ShardShape>,
    /// Put chunks of v3 arrays into shards, or auto
    ///
    /// The shape is in items, and for arrays of as many dimensions. auto chooses one for each
    /// array: whole chunks of up to 64 MiB.
    #[arg(long, value_name = "N,N...", value_parser = shard_shape, requires = "file")]
    pub shards: Option<ShardShape>,
    /// Compress chunks with this codec [default: blosc]
    #[arg(long, value_name = "CODEC", value_parser = compressor::parse, requires = "file")]
    pub compressor: Option<CompressorArg>,
    /// Make arrays of Zarr v2 or v3
    ///
    /// The default is the format of the store, and for a new store 2, or 3 with --shards.
    #[arg(long, value_name = "FORMAT", hide_possible_values = true, requires = "file",
        value_parser = words(&[("2", DocumentFormat::V2), ("3", DocumentFormat::V3)]))]
    pub zarr_format: Option<DocumentFormat>,
    /// Replace the group or array if it exists
    #[arg(long, requires = "file")]
    pub force: bool,
}

/// Runs the verb with standard input.
pub fn run(args: &PutArgs) -> CommandResult {
    let shown = &args.path;
    let flat = open(&args.path, &args.memory, &args.writing, &args.store_args)?;
    let from = args.offset;
    let room = flat.array.size().saturating_sub(args.offset);
    let mut input = stdio::input()?;
    let known = input_size();
    if let Some(len) = known.filter(|len| *len > room) {
        let message = format!(
            "{shown}: {len} bytes don't fit, it has {room} from byte {from} on; nothing was written"
        );
        return Err(CommandFailure::failed(message));
    }
    let mut progress = ProgressLine::start(known);
    let copied = copy(&flat, from, room, &mut input, &mut progress);
    // a failed copy may have written chunks: fsync stores those, too
    let stored = flat.fs.change().fsync(flat.handle);
    progress.end();
    let more = copied.and_then(|copied| stored.map(|()| copied.more));
    let has_more = more.context(shown)?;
    if has_more {
        return Err(CommandFailure::failed(format!(
            "{shown}: the input goes on beyond the array's end; its first {room} bytes were written"
        )));
    }
    Ok(())
}

/// Opens the flat bytes of the array at `path` for writing.
pub fn open(
    path: &StoreLocation,
    memory: &MemoryArgs,
    writing: &WriteArgs,
    store_args: &StoreArgs,
) -> CommandResult<Flat> {
    let stats = Arc::default();
    let request = StoreRequest::reading(path, store_args, &stats).for_writing(writing);
    let hierarchy = request.hierarchy()?;
    let pending = SpillOptions {
        directory: spill_directory(),
        limit: MAX_PENDING,
    };
    let cache = memory
        .cache(stats.clone())
        .dropping_empty(writing.drop_empty_chunks)
        .spilling(SpillFile::new(pending, None));
    // nothing is prefetched, so that no spill file is needed
    let spill = SpillOptions {
        directory: std::env::temp_dir(),
        limit: 0,
    };
    let options = Options {
        read_only: false,
        resize: false,
        threads: memory.threads(),
        direct_io: false,
        spill,
    };
    flat::open(path, hierarchy, cache, stats, options)
}

/// Returns the number of bytes that are left in standard input, if it is a file.
pub fn input_size() -> Option<u64> {
    let mut file = File::from(rustix::stdio::stdin().try_clone_to_owned().ok()?);
    let metadata = file.metadata().ok().filter(|metadata| metadata.is_file())?;
    Some(metadata.len().saturating_sub(file.stream_position().ok()?))
}

/// The outcome of [`copy`].
pub struct Copied {
    /// Number of bytes written.
    pub bytes: u64,
    /// Whether the input has more bytes than fit.
    pub more: bool,
}

/// Writes at most `room` bytes of `input` to the flat bytes, beginning at `from`.
pub fn copy(
    flat: &Flat,
    from: u64,
    room: u64,
    input: &mut dyn Read,
    progress: &mut ProgressLine,
) -> Result<Copied, Error> {
    let mut done = 0;
    let mut buffer = vec![0; STEP];
    loop {
        let want = usize::try_from(room - done).unwrap_or(STEP).min(STEP);
        let len = read_full(input, &mut buffer[..want])?;
        let mut bytes = &buffer[..len];
        while !bytes.is_empty() {
            let written = flat.fs.change().write(flat.handle, from + done, bytes)?;
            bytes = &bytes[written..];
            done += written as u64;
        }
        progress.show(done);
        if done == room {
            return Ok(Copied {
                bytes: done,
                more: read_full(input, &mut [0])? > 0,
            });
        }
        if len < want {
            return Ok(Copied {
                bytes: done,
                more: false,
            });
        }
    }
}

/// Reads until `buffer` is full or the input ends. Returns the number of bytes read.
fn read_full(input: &mut dyn Read, buffer: &mut [u8]) -> Result<usize, Error> {
    let mut len = 0;
    while len < buffer.len() {
        match input.read(&mut buffer[len..]) {
            Ok(0) => break,
            Ok(n) => len += n,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(Error::from(e).context("the input")),
        }
    }
    Ok(len)
}
