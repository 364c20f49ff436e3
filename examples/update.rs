//! Measures changes of four bytes at random places of an array. It makes each change twice: through
//! the flat file in a mount, followed by fsync(2), and with the minimum of work. The minimum is to
//! load the chunk, change and encode it, and replace a file such that it survives a power loss. It
//! prints the seconds of each as JSON, for `scripts/bench`.
//!
//! `update STORE FILE DIRECTORY COUNT SEED` where STORE is the directory of an array of the same
//! shape as the mounted array, FILE is `data.raw` of the mounted array, and DIRECTORY is an empty
//! directory on the file system of the mounted store.

mod shared;

use serde_json::json;
use shared::{Codecs, replace, sync_names};
use std::error::Error;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

/// Size of a change in bytes.
const CHANGE: u64 = 4;

/// Alignment of changes in bytes: a change lies inside one item of 4, 8 or 16 bytes, and so inside
/// one chunk.
const ALIGNMENT: u64 = 8;

fn update(
    store: &Path,
    file: &Path,
    directory: &Path,
    count: u64,
    seed: u64,
) -> Result<serde_json::Value, Box<dyn Error>> {
    let mut codecs = Codecs::open(store)?;
    let file = File::options().read(true).write(true).open(file)?;
    let places = (codecs.array.size() / ALIGNMENT).max(1);
    let mut mount = Vec::new();
    let mut load = Vec::new();
    let mut encode = Vec::new();
    let mut replaced = Vec::new();
    let mut state = seed;
    for _ in 0..count {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        // the low bits of this generator are not random
        let offset = (state >> 20) % places * ALIGNMENT;
        let change = &state.to_be_bytes()[..CHANGE as usize];

        let start = Instant::now();
        file.write_all_at(change, offset)?;
        file.sync_all()?;
        mount.push(start.elapsed().as_secs_f64());

        let run = codecs
            .array
            .grid()
            .runs(offset..offset + CHANGE)
            .next()
            .ok_or("an array without items")?;
        let name = codecs.array.stored_key(run.chunk).as_str().to_string();
        let start = Instant::now();
        codecs.load(run.chunk)?;
        load.push(start.elapsed().as_secs_f64());
        codecs.bytes[run.offset..run.offset + CHANGE as usize].copy_from_slice(change);
        let (stored, seconds) = codecs.encode(run.chunk)?;
        encode.push(seconds);
        if !directory.join(&name).exists() {
            // replace an existing file, as the mount does
            replace(directory, &name, &stored)?;
            sync_names(directory)?;
        }
        let start = Instant::now();
        replace(directory, &name, &stored)?;
        sync_names(directory)?;
        replaced.push(start.elapsed().as_secs_f64());
    }
    Ok(json!({"mount": mount, "load": load, "encode": encode, "replace": replaced}))
}

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [store, file, directory, count, seed] = arguments.as_slice() else {
        eprintln!("usage: update STORE FILE DIRECTORY COUNT SEED");
        return ExitCode::from(2);
    };
    let (Ok(count), Ok(seed)) = (count.parse(), seed.parse()) else {
        eprintln!("update: {count}, {seed}: not two numbers");
        return ExitCode::from(2);
    };
    match update(
        Path::new(store),
        Path::new(file),
        Path::new(directory),
        count,
        seed,
    ) {
        Ok(result) => {
            println!("{result}");
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("update: {store}: {e}");
            ExitCode::FAILURE
        }
    }
}
