//! `--passthrough` on a real mount: the kernel reads chunks that are stored as they are shown, and arrays of one such
//! chunk, directly from the store's files. The bytes are compared with those that the test stored, and the counter
//! `bytes_served` counts the bytes that the daemon served.

mod support;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use support::{Mount, errno};

const SIZE: usize = 300_000;

/// Creates a store of two arrays of bytes: `one` with one chunk, `two` with two.
fn store() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join(".zgroup"), "{\"zarr_format\": 2}").unwrap();
    for (name, chunks) in [("one", 1), ("two", 2)] {
        let path = directory.path().join(name);
        fs::create_dir(&path).unwrap();
        let doc = serde_json::json!({"zarr_format": 2, "shape": [SIZE * chunks], "chunks": [SIZE], "dtype": "|u1",
            "compressor": null, "fill_value": 0, "order": "C", "filters": null});
        fs::write(path.join(".zarray"), doc.to_string()).unwrap();
        for chunk in 0..chunks {
            fs::write(path.join(chunk.to_string()), bytes(chunk as u8)).unwrap();
        }
    }
    directory
}

fn bytes(seed: u8) -> Vec<u8> {
    (0..SIZE).map(|i| (i as u8).wrapping_mul(7) ^ seed).collect()
}

/// Reads and checks all files except the flat bytes of `two`. Returns the number of bytes that the daemon served.
fn read_all(mount: &Mount) -> u64 {
    assert!(fs::read(mount.join("one/data.raw")).unwrap() == bytes(0));
    assert!(fs::read(mount.join("one/0")).unwrap() == bytes(0));
    assert!(fs::read(mount.join("two/1")).unwrap() == bytes(1));
    mount.counter("bytes_served")
}

/// Returns whether the kernel allows this user to pass files through.
fn is_available(store: &Path) -> bool {
    let mount = Mount::new(store, &["--passthrough"]);
    fs::read(mount.join("one/0")).unwrap();
    let offered = mount.counter("bytes_served") == 0;
    if !offered {
        eprintln!("skipped: the kernel refuses to pass through here");
    }
    offered
}

#[test]
fn the_kernel_reads_chunks_that_are_stored_as_shown() {
    let store = store();
    if !is_available(store.path()) {
        return;
    }
    let mount = Mount::new(store.path(), &["-o", "passthrough"]);
    assert_eq!(read_all(&mount), 0);
    // an array of two chunks is not one file
    assert!(fs::read(mount.join("two/data.raw")).unwrap() == [bytes(0), bytes(1)].concat());
    assert!(mount.counter("bytes_served") >= 2 * SIZE as u64);
    // a chunk of a wrong size is damaged
    fs::write(store.path().join("two/1"), [0; 5]).unwrap();
    let file = File::open(mount.join("two/1")).unwrap();
    assert_eq!(errno(file.read_at(&mut [0; 10], 0)), "EIO");
}

/// If an open file's chunk is replaced, the file cannot be opened again (`EBUSY`) until it is closed, since "`open` of
/// a file shows the current content of the store".
#[test]
fn an_open_never_shows_a_replaced_chunk() {
    let store = store();
    if !is_available(store.path()) {
        return;
    }
    let mount = Mount::new(store.path(), &["--passthrough"]);
    let path = mount.join("one/data.raw");
    for seed in 1..20 {
        fs::write(store.path().join("new"), bytes(seed)).unwrap();
        fs::rename(store.path().join("new"), store.path().join("one/0")).unwrap();
        assert!(fs::read(&path).unwrap() == bytes(seed), "the release of the last opening comes later");
    }
    let open = File::open(&path).unwrap();
    fs::write(store.path().join("new"), bytes(99)).unwrap();
    fs::rename(store.path().join("new"), store.path().join("one/0")).unwrap();
    assert_eq!(errno(File::open(&path)), "EBUSY");
    let mut first = [0; 10];
    open.read_exact_at(&mut first, 0).unwrap();
    assert_eq!(first, bytes(19)[..10]);
    drop(open);
    assert!(fs::read(&path).unwrap() == bytes(99));
}

/// The kernel refuses to pass through files of a mount that passes its own files through. Then the daemon serves them.
#[test]
fn files_are_served_by_the_daemon_if_the_kernel_refuses() {
    let store = store();
    let below = Mount::new(store.path(), &["--passthrough"]);
    let above = Mount::new(below.path(), &["--passthrough"]);
    assert_eq!(read_all(&above), 3 * SIZE as u64);
}
