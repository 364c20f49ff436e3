//! `create --from-raw`: fills a new array with flat bytes from a file or a stream.

use super::CreateArgs;
use crate::cli::flat::Flat;
use crate::cli::progress::ProgressLine;
use crate::cli::put::{self, Copied};
use crate::cli::{CommandFailure, CommandResult, StoreLocation, WriteArgs, stdio};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use zarrfs_base::error::{Error, ErrorContext};
use zarrfs_format::grid::ChunkId;

/// The source of the flat bytes.
pub enum Raw {
    /// A regular file, which can be read in any order.
    File(File),
    /// A pipe, device or socket.
    Stream(Box<dyn Read>),
}

impl Raw {
    /// Opens the source for an array of `size` bytes.
    ///
    /// # Errors
    ///
    /// Fails if the source is known to have more or fewer bytes.
    pub fn open(path: &Path, size: u64) -> CommandResult<Self> {
        let (raw, known) = if path == Path::new("-") {
            let known = put::input_size();
            (Raw::Stream(Box::new(stdio::input()?)), known)
        } else {
            let file = File::open(path).context(path.display())?;
            let metadata = file.metadata().context(path.display())?;
            if metadata.is_file() {
                (Raw::File(file), Some(metadata.len()))
            } else {
                (Raw::Stream(Box::new(file)), None)
            }
        };
        match known.filter(|known| *known != size) {
            Some(known) => {
                let message = format!(
                    "{}: {known} bytes, but the array has {size}; nothing was created",
                    path.display()
                );
                Err(CommandFailure::failed(message))
            }
            None => Ok(raw),
        }
    }

    /// Stores the bytes in the array at `made`.
    ///
    /// # Errors
    ///
    /// Fails also if the source has more or fewer bytes than the array.
    pub fn fill(
        self,
        made: &StoreLocation,
        writing: &WriteArgs,
        args: &CreateArgs,
    ) -> CommandResult {
        let shown = &args.path;
        let flat = put::open(made, &args.memory, writing, &args.store_args())?;
        let grid = flat.array.grid();
        let size = flat.array.size();
        let band = grid.band(0);
        let row_of_chunks = (band.end - band.start).saturating_mul(grid.max_chunk_size() as u64);
        let mut progress = ProgressLine::start(Some(size));
        let mut copy = |input: &mut dyn Read| put::copy(&flat, 0, size, input, &mut progress);
        let copied = match self {
            // with a small cache, each row of items would load and store the chunks again
            Raw::File(file) if row_of_chunks > args.memory.cache_size / 2 => {
                copy_by_chunk(&flat, &file, &mut progress)
            }
            Raw::File(mut file) => copy(&mut file),
            Raw::Stream(mut input) => copy(&mut input),
        };
        let stored = flat.fs.change().fsync(flat.handle);
        progress.end();
        let copied = copied
            .and_then(|copied| stored.map(|()| copied))
            .context(shown)?;
        let why = match copied {
            Copied { more: true, .. } => format!("the input has more bytes than the array, {size}"),
            Copied { bytes, .. } if bytes < size => {
                format!("the input ends after {bytes} bytes, but the array has {size}")
            }
            _ => return Ok(()),
        };
        Err(CommandFailure::failed(format!(
            "{shown}: {why}; nothing was created"
        )))
    }
}

/// Copies a file to the flat bytes, chunk by chunk.
fn copy_by_chunk(flat: &Flat, file: &File, progress: &mut ProgressLine) -> Result<Copied, Error> {
    let mut bytes = 0;
    let mut buffer = Vec::new();
    for chunk in 0..flat.array.grid().chunk_count() {
        for (at, run) in flat
            .array
            .grid()
            .chunk_runs(ChunkId(chunk), 0..flat.array.size())
        {
            buffer.resize(run.len, 0);
            file.read_exact_at(&mut buffer, at).context("the input")?;
            flat.fs.change().write(flat.handle, at, &buffer)?;
            bytes += run.len as u64;
        }
        progress.show(bytes);
    }
    Ok(Copied { bytes, more: false })
}
