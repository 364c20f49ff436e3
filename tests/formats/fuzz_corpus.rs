//! Replays the corpora of the fuzz targets through the checks of `fuzz/checks.rs`. No input may
//! violate a check or exceed a bound of memory.

#[path = "../../fuzz/checks.rs"]
pub mod checks;

use std::path::Path;

/// Peak memory of the process in bytes that no input may exceed.
pub const MEMORY: u64 = 512 << 20;

fn replay(corpus: &str, check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fuzz/corpus")
        .join(corpus);
    let mut count = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        if std::panic::catch_unwind(|| check(&bytes)).is_err() {
            panic!("{}: {}", path.display(), bytes.escape_ascii());
        }
        count += 1;
    }
    println!("{corpus}: {count} inputs");
    assert!(count > 20, "the corpus is too small to mean something");
    assert!(peak_memory() < MEMORY, "{} MiB", peak_memory() >> 20);
}

pub fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|l| l.strip_prefix("VmHWM:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn metadata_inputs_pass_the_checks() {
    replay("metadata", checks::metadata);
}

#[test]
fn files_that_become_arrays_pass_the_checks() {
    replay("ingest", checks::ingest);
}

#[test]
fn references_pass_the_checks() {
    replay("references", checks::references);
}

#[test]
fn files_of_icechunk_pass_the_checks() {
    replay("icechunk", checks::icechunk);
}

#[test]
fn codec_inputs_pass_the_checks() {
    replay("codecs", checks::codecs);
}

#[test]
fn documents_of_v3_pass_the_checks() {
    replay("metadata3", checks::metadata3);
}

#[test]
fn indexes_of_shards_pass_the_checks() {
    replay("shard_index", checks::shard_index);
}

#[test]
fn rebuilt_shards_pass_the_checks() {
    replay("rebuild", checks::rebuild);
}
