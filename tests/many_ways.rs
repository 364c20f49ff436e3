//! "Read your writes at once, through every file of the mount": programs that write one array in different ways at the
//! same time, each its own pages of every chunk: requests to `data.raw`, a shared map of it, and chunk files. None waits
//! for another for ever, and what all have written is in the store in the end. Past the page cache each also reads what it
//! has just written; in it, pages of `data.raw` that are dropped while a write of them is under way, because a chunk file
//! is written, may be as they were before for a moment, until they are dropped again.

mod support;

use serde_json::json;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};
use support::daemon::Daemon;
use support::made::Made;
use support::{alone, quick_directory, random, say, setting};

const PAGE: usize = 4096;
/// Pages of a chunk.
const PAGES: usize = 4;
const CHUNKS: usize = 8;
const WAYS: usize = 3;

/// A map of a whole file that others share.
struct Map {
    start: *mut u8,
    len: usize,
}

// SAFETY: the map may be used from any thread; whoever has it uses it from one at a time.
unsafe impl Send for Map {}

impl Map {
    fn new(file: &File, len: usize) -> Map {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new map at a place that the kernel chooses; the file has `len` bytes.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        assert_ne!(start, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        Map { start: start.cast(), len }
    }

    /// Fills a page and reads it.
    fn write(&mut self, page: usize, value: u8) -> Vec<u8> {
        assert!((page + 1) * PAGE <= self.len);
        // SAFETY: the page lies in the map, and nobody else writes to it.
        unsafe {
            let place = self.start.add(page * PAGE);
            place.write_bytes(value, PAGE);
            std::slice::from_raw_parts(place, PAGE).to_vec()
        }
    }

    fn sync(&self) {
        // SAFETY: these are the bounds of the map.
        let done = unsafe { libc::msync(self.start.cast(), self.len, libc::MS_SYNC) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: these are the bounds of the map, which nobody uses any more.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

/// Writes pages of one way again and again, and reads each, which tells if `reads`; the bytes that each page has in the end.
fn write_pages(mount: &Path, way: usize, seed: u64, operations: u64, reads: bool) -> Vec<(usize, u8)> {
    let file = open(&mount.join("data.raw"));
    let mut map = (way == 1).then(|| Map::new(&file, CHUNKS * PAGES * PAGE));
    let mut random = random(seed * 10 + way as u64);
    let own: Vec<usize> = (0..CHUNKS * PAGES).filter(|page| page % PAGES % WAYS == way).collect();
    let mut last = Vec::new();
    for _ in 0..operations {
        let (page, value) = (own[random(own.len())], random(256) as u8);
        let mut read = vec![0; PAGE];
        match &mut map {
            Some(map) => read = map.write(page, value),
            None if way == 0 => {
                file.write_all_at(&[value; PAGE], (page * PAGE) as u64).unwrap();
                file.read_exact_at(&mut read, (page * PAGE) as u64).unwrap();
            }
            None => {
                let chunk = open(&mount.join((page / PAGES).to_string()));
                let at = (page % PAGES * PAGE) as u64;
                chunk.write_all_at(&[value; PAGE], at).unwrap();
                chunk.read_exact_at(&mut read, at).unwrap();
            }
        }
        assert!(!reads || read == [value; PAGE], "way {way}: page {page} is not what was just written");
        match random(40) {
            0 => file.sync_all().unwrap(),
            1 => map.iter().for_each(Map::sync),
            _ => {}
        }
        last.push((page, value));
    }
    last
}

fn at_the_same_time(options: &[&str]) {
    let _alone = alone();
    let (operations, seed) = (setting("ZARRFS_WAYS_OPERATIONS", 1500), setting("ZARRFS_SEED", 1));
    let store = quick_directory();
    let zlib = json!({"compressor": {"id": "zlib", "level": 1}});
    let mut made = Made::full(store.path().join("a"), &[CHUNKS * PAGES * PAGE], &[PAGES * PAGE], zlib);
    let daemon = Daemon::start(&made.path, options);
    let mount = daemon.path();
    let reads = options.contains(&"--direct-io");
    let written: Vec<(usize, u8)> = std::thread::scope(|scope| {
        let mount = &mount;
        let ways: Vec<_> =
            (0..WAYS).map(|way| scope.spawn(move || write_pages(mount, way, seed, operations, reads))).collect();
        ways.into_iter().flat_map(|way| way.join().unwrap()).collect()
    });
    for (page, value) in written {
        made.flat[page * PAGE..][..PAGE].fill(value);
    }
    let deadline = Instant::now() + Duration::from_secs(if reads { 0 } else { 10 });
    while std::fs::read(mount.join("data.raw")).unwrap() != made.flat {
        assert!(Instant::now() < deadline, "{options:?}: data.raw");
    }
    for index in made.grid() {
        assert!(std::fs::read(mount.join(Made::name(&index))).unwrap() == made.chunk(&index), "{options:?}: {index:?}");
    }
    assert!(daemon.unmount().success());
    assert!(made.stored_flat().unwrap() == made.flat, "{options:?}: the store");
    say(&format!("{WAYS} ways, {operations} writes each, seed {seed}, {options:?}: all read and stored"));
}

#[test]
fn with_room_for_all() {
    at_the_same_time(&[]);
}

#[test]
fn with_little_memory() {
    at_the_same_time(&["--cache-size", "48K"]);
}

#[test]
fn past_the_page_cache() {
    at_the_same_time(&["--direct-io", "--cache-size", "100K"]);
}
