//! `zarrfs cat`: the flat bytes of an array, without FUSE.

use super::flat::{self, Flat};
use super::{CommandFailure, ReadArgs, StoreArgs, StoreLocation, open_store, size, stdio};
use crate::fs::Fs;
use clap::Args;
use std::io::{ErrorKind, Write};
use std::sync::Arc;
use zarrfs_base::error::Error;
use zarrfs_base::stats::Stats;

/// Number of bytes read and written at a time.
const STEP: u64 = 4 << 20;

/// Arguments of `cat`.
#[derive(Args)]
pub struct CatArgs {
    /// Path of the array, in or after the path of the store
    #[arg(value_name = "STORE/ARRAY")]
    path: StoreLocation,
    /// Begin at byte N
    #[arg(long, value_name = "N", default_value = "0", value_parser = size::parse)]
    offset: u64,
    /// Print N bytes [default: all that follow]
    #[arg(long, value_name = "N", value_parser = size::parse)]
    length: Option<u64>,
    #[command(flatten)]
    reading: ReadArgs,
    #[command(flatten)]
    store_args: StoreArgs,
}

/// Runs the verb.
pub fn run(args: &CatArgs) -> Result<(), CommandFailure> {
    let stats = Arc::new(Stats::default());
    // an array's directory is a store of one array
    let hierarchy = open_store(&args.path, &args.store_args, &stats)?;
    let cache = args.reading.memory.cache(stats.clone());
    let options = args.reading.options(true);
    let Flat { fs, handle, array } = flat::open(&args.path, hierarchy, cache, stats, options)?;
    let end = args.length.map_or(array.size(), |n| {
        args.offset.saturating_add(n).min(array.size())
    });
    copy(&fs, handle, args.offset, end).map_err(|e| e.context(&args.path).into())
}

fn copy(fs: &Fs, handle: u64, from: u64, end: u64) -> Result<(), Error> {
    let mut out = stdio::output();
    let mut at = from;
    let mut bytes = Vec::new();
    while at < end {
        let len = STEP.min(end - at) as usize;
        if !fs.read_cached(handle, at, len, &mut bytes)? {
            fs.read(handle, at, len, &mut bytes)?;
        }
        match out.write_all(&bytes) {
            Ok(()) => at += bytes.len() as u64,
            // the reader has ended, such as `head`
            Err(e) if e.kind() == ErrorKind::BrokenPipe => return Ok(()),
            Err(e) => return Err(e.into()),
        }
    }
    out.flush().or_else(|e| {
        if e.kind() == ErrorKind::BrokenPipe {
            Ok(())
        } else {
            Err(e.into())
        }
    })
}
