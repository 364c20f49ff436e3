//! Decodes every stored chunk of one array with the crate's own pipeline, one after the other in
//! one thread, and prints the times as JSON. `scripts/bench` derives the bound of a cold read from
//! them.
//!
//! `decode STORE` where STORE is the directory of an array.

use serde_json::json;
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;
use zarrfs::array::hierarchy::{Hierarchy, StoredNode};
use zarrfs::array::{ArrayEntry, Scratch};
use zarrfs_base::stats::Stats;
use zarrfs_format::metadata::V1Order;
use zarrfs_store::{DirectoryStore, Key};

/// Returns the seconds that this thread has run on a processor.
fn cpu_seconds() -> Result<f64, Box<dyn Error>> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanoseconds: u64 = text
        .split_whitespace()
        .next()
        .ok_or("schedstat is empty")?
        .parse()?;
    Ok(nanoseconds as f64 / 1e9)
}

fn decode(path: &Path) -> Result<serde_json::Value, Box<dyn Error>> {
    let stats = Arc::new(Stats::default());
    let store = Arc::new(DirectoryStore::open(path)?);
    let hierarchy = Hierarchy::new(store, V1Order::Zarr1, stats.clone());
    let Some(StoredNode::Array(array)) = hierarchy.find(&Key::root())? else {
        return Err("not an array".into());
    };
    let mut chunks = Vec::new();
    for entry in array.entries()? {
        if let ArrayEntry::Chunk(chunk) = entry? {
            chunks.push(chunk);
        }
    }
    let start = Instant::now();
    let cpu = cpu_seconds()?;
    // one buffer for all chunks, as in a mount
    let mut buffer = Vec::new();
    let mut scratch = Scratch::default();
    for chunk in &chunks {
        buffer = array
            .load(*chunk, buffer, &mut scratch)?
            .map(|loaded| loaded.bytes)
            .unwrap_or_default();
    }
    Ok(json!({
        "chunks": chunks.len(),
        "bytes": stats.bytes_decoded.get(),
        "seconds": start.elapsed().as_secs_f64(),
        "cpu_seconds": cpu_seconds()? - cpu,
        "store_seconds": stats.store_time.get() as f64 / 1e9,
        "codec_seconds": stats.codec_time.get() as f64 / 1e9,
    }))
}

fn main() -> ExitCode {
    let Some(path) = std::env::args_os().nth(1) else {
        eprintln!("usage: decode STORE");
        return ExitCode::from(2);
    };
    match decode(Path::new(&path)) {
        Ok(result) => {
            println!("{result}");
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("decode: {}: {e}", Path::new(&path).display());
            ExitCode::FAILURE
        }
    }
}
