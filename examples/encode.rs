//! Encodes every stored chunk of one array with the crate's own pipeline, one after the other in
//! one thread. Then it writes the encoded chunks to files, THREADS at a time; each file is on
//! stable storage before it gets its name. It prints the times of both steps as JSON.
//! `scripts/bench` derives the bound of writing the array from them.
//!
//! `encode STORE DIRECTORY THREADS` where STORE is the directory of an array, and DIRECTORY an
//! empty directory for the files.

mod shared;

use serde_json::json;
use shared::{Codecs, replace, sync_names};
use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use zarrfs::array::ArrayEntry;

fn encode(
    path: &Path,
    directory: &Path,
    threads: usize,
) -> Result<serde_json::Value, Box<dyn Error>> {
    let mut codecs = Codecs::open(path)?;
    let mut files = Vec::new();
    let mut codec_seconds = 0.0;
    for entry in codecs.array.clone().entries()? {
        let ArrayEntry::Chunk(chunk) = entry? else {
            continue;
        };
        codecs.load(chunk)?;
        let (stored, seconds) = codecs.encode(chunk)?;
        codec_seconds += seconds;
        files.push((codecs.array.stored_key(chunk).as_str().to_string(), stored));
    }
    let start = Instant::now();
    write(directory, &files, threads)?;
    Ok(json!({
        "chunks": files.len(),
        "bytes": files.iter().map(|(_, stored)| stored.len()).sum::<usize>(),
        "codec_seconds": codec_seconds,
        "write_seconds": start.elapsed().as_secs_f64(),
    }))
}

fn write(directory: &Path, files: &[(String, Vec<u8>)], threads: usize) -> std::io::Result<()> {
    let next = AtomicUsize::new(0);
    let work = || -> std::io::Result<()> {
        while let Some((name, stored)) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            replace(directory, name, stored)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        running.into_iter().try_for_each(|t| {
            t.join()
                .unwrap_or_else(|_| Err(std::io::Error::other("a panic")))
        })
    })?;
    sync_names(directory)
}

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [store, directory, threads] = arguments.as_slice() else {
        eprintln!("usage: encode STORE DIRECTORY THREADS");
        return ExitCode::from(2);
    };
    let Ok(threads @ 1..) = threads.parse() else {
        eprintln!("encode: {threads}: not a number of threads");
        return ExitCode::from(2);
    };
    match encode(Path::new(store), Path::new(directory), threads) {
        Ok(result) => {
            println!("{result}");
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("encode: {store}: {e}");
            ExitCode::FAILURE
        }
    }
}
