//! Three programs write one array concurrently: by requests to `data.raw`, by a shared map, and by
//! chunk files. Each writes pages of its own in every chunk. None waits forever for another, and in
//! the end the mount and the store hold the last bytes of each page. With `--direct-io` each
//! program also reads back its latest write. Without it, a write to a chunk file drops pages of
//! `data.raw`. If a write of these pages is in flight, old bytes show until the pages are dropped
//! again.

use crate::support::array::TestArray;
use crate::support::daemon::Daemon;
use crate::support::shared_map::SharedMap;
use crate::support::{announce, env_number, memory_directory, open_for_writing, random};
use serde_json::json;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
/// Pages in a chunk.
const PAGES: usize = 4;
const CHUNKS: usize = 8;
const WAYS: usize = 3;

/// Writes random pages and reads each back: with `way` 0 by requests to `data.raw`, with 1 by a
/// shared map, with 2 by chunk files. If `reads` is set, the bytes must be those just written.
/// Returns the page and the byte of each write.
fn write_pages(
    mount: &Path,
    way: usize,
    seed: u64,
    operations: u64,
    reads: bool,
) -> Vec<(usize, u8)> {
    let file = open_for_writing(&mount.join("data.raw"));
    let map = (way == 1).then(|| SharedMap::new(&file));
    let mut random = random(seed * 10 + way as u64);
    let own: Vec<usize> = (0..CHUNKS * PAGES)
        .filter(|page| page % PAGES % WAYS == way)
        .collect();
    let mut last = Vec::new();
    for _ in 0..operations {
        let page = own[random(own.len())];
        let value = random(256) as u8;
        let mut read = vec![0; PAGE];
        match &map {
            Some(map) => {
                map.write(page * PAGE, &[value; PAGE]);
                read = map.bytes()[page * PAGE..][..PAGE].to_vec();
            }
            None if way == 0 => {
                file.write_all_at(&[value; PAGE], (page * PAGE) as u64)
                    .unwrap();
                file.read_exact_at(&mut read, (page * PAGE) as u64).unwrap();
            }
            None => {
                let chunk = open_for_writing(&mount.join((page / PAGES).to_string()));
                let at = (page % PAGES * PAGE) as u64;
                chunk.write_all_at(&[value; PAGE], at).unwrap();
                chunk.read_exact_at(&mut read, at).unwrap();
            }
        }
        assert!(
            !reads || read == [value; PAGE],
            "way {way}: page {page} is not what was just written"
        );
        match random(40) {
            0 => file.sync_all().unwrap(),
            1 => map.iter().for_each(SharedMap::sync),
            _ => {}
        }
        last.push((page, value));
    }
    last
}

/// Writes through `mounts` mounts of the array. Each way has one of them.
fn write_concurrently(options: &[&str], mounts: usize) {
    let operations = env_number("ZARRFS_WAYS_OPERATIONS", 1500);
    let seed = env_number("ZARRFS_SEED", 1);
    let store = memory_directory();
    let zlib = json!({"compressor": {"id": "zlib", "level": 1}});
    let mut array = TestArray::with_chunks(
        store.path().join("a"),
        &[CHUNKS * PAGES * PAGE],
        &[PAGES * PAGE],
        zlib,
    );
    let daemons: Vec<Daemon> = (0..mounts)
        .map(|_| Daemon::start(&array.path, options))
        .collect();
    let reads = options.contains(&"--direct-io");
    let written: Vec<(usize, u8)> = std::thread::scope(|scope| {
        let ways: Vec<_> = (0..WAYS)
            .map(|way| {
                let mount = daemons[way % mounts].path();
                scope.spawn(move || write_pages(&mount, way, seed, operations, reads))
            })
            .collect();
        ways.into_iter()
            .flat_map(|way| way.join().unwrap())
            .collect()
    });
    for (page, value) in written {
        array.flat[page * PAGE..][..PAGE].fill(value);
    }
    for daemon in &daemons {
        // stores what the map has written
        assert!(fs::read(daemon.path().join(".zarrfs/sync")).is_ok());
    }
    let deadline = Instant::now() + Duration::from_secs(if reads { 0 } else { 60 });
    for daemon in daemons {
        let mount = daemon.path();
        while fs::read(mount.join("data.raw")).unwrap() != array.flat {
            assert!(Instant::now() < deadline, "{options:?}: data.raw");
        }
        for index in array.grid() {
            assert!(
                fs::read(mount.join(TestArray::chunk_name(&index))).unwrap() == array.chunk(&index),
                "{options:?}: {index:?}"
            );
        }
        assert!(daemon.unmount().success());
    }
    assert!(
        array.stored_flat().unwrap() == array.flat,
        "{options:?}: the store"
    );
    announce(&format!(
        "{WAYS} ways, {mounts} mounts, {operations} writes each, seed {seed}, {options:?}: all read and stored"
    ));
}

#[test]
fn concurrent_writes_with_a_large_cache_are_all_stored() {
    write_concurrently(&[], 1);
}

#[test]
fn concurrent_writes_with_a_small_cache_are_all_stored() {
    write_concurrently(&["--cache-size", "48K"], 1);
}

#[test]
fn concurrent_writes_with_direct_io_are_read_back_and_all_stored() {
    write_concurrently(&["--direct-io", "--cache-size", "100K"], 1);
}

#[test]
fn concurrent_writes_by_several_mounts_are_read_back_and_all_stored() {
    for mounts in [2, 3] {
        write_concurrently(&["--direct-io"], mounts);
    }
}
