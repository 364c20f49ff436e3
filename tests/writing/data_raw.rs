//! Writing flat bytes and chunk files on a real mount. The test decodes the stored chunks with the
//! crate's codecs, without a mount, and compares them with the written bytes. Costs are counters of
//! `.zarrfs/stats.json`.

use crate::support::array::{TestArray, pattern, replace};
use crate::support::shared_map::SharedMap;
use crate::support::{
    Mount, answered, assert_whole_again, close, errno, open_for_writing, wait_for, zarrfs,
};
use serde_json::{Value, json};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

const M: usize = 1 << 20;

fn codecs() -> [(&'static str, Value); 6] {
    [
        ("none", json!({})),
        ("zlib", json!({"compressor": {"id": "zlib", "level": 1}})),
        (
            "blosc",
            json!({"compressor": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}}),
        ),
        (
            "delta and zstd",
            json!({"dtype": "<i4", "filters": [{"id": "delta", "dtype": "<i4"}],
            "compressor": {"id": "zstd", "level": 1}}),
        ),
        (
            "order F",
            json!({"dtype": "<f8", "order": "F", "compressor": {"id": "gzip", "level": 1}}),
        ),
        (
            "nested",
            json!({"dtype": "<u2", "dimension_separator": "/", "compressor": {"id": "bz2", "level": 1}}),
        ),
    ]
}

fn write_at(path: &Path, offset: usize, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(bytes, offset as u64).unwrap();
    close(file).unwrap();
}

/// Checks that every chunk is stored and decodes to the array's bytes.
#[track_caller]
fn assert_stored(array: &TestArray, what: &str) {
    for index in array.grid() {
        let decoded = array
            .decoded(&index)
            .unwrap_or_else(|| panic!("{what}: {index:?} is not stored"));
        for (flat, len, at) in array.rows(&index) {
            assert!(
                decoded[at..at + len] == array.flat[flat..flat + len],
                "{what}: {index:?} at {at}"
            );
        }
    }
}

/// "`data.raw` and chunk files are written at any offset", and stored "at `close`". Each changed
/// chunk is read, changed and stored whole.
#[test]
fn any_range_of_data_raw_can_be_written() {
    for (what, more) in codecs() {
        let store = tempfile::tempdir().unwrap();
        let mut array =
            TestArray::with_chunks(store.path().join("a"), &[61, 47, 23], &[16, 16, 8], more);
        let mount = Mount::new(store.path(), &[]);
        let flat = mount.join("a/data.raw");
        let mut at = 1;
        for (i, len) in [1usize, 7, 300, 4096, 5000, 1, 40_000]
            .into_iter()
            .enumerate()
        {
            let bytes = pattern(i as u64 + 5, len.min(array.flat.len() - at));
            write_at(&flat, at, &bytes);
            array.flat[at..at + bytes.len()].copy_from_slice(&bytes);
            assert_stored(&array, what);
            at = (at * 7 + 1234) % (array.flat.len() - 1);
        }
        assert!(fs::read(&flat).unwrap() == array.flat, "{what}");
        let index = [3, 2, 2];
        assert!(
            fs::read(mount.join("a/3.2.2")).unwrap() == array.decoded_in_own_order(&index).unwrap(),
            "{what}"
        );
    }
}

/// "Chunks that are overwritten completely are not read first." Each is stored once, also if `cp`
/// or `dd` writes the whole array.
#[test]
fn overwriting_an_array_reads_no_chunk_and_stores_each_once() {
    for (what, more) in codecs() {
        let store = tempfile::tempdir().unwrap();
        let mut array =
            TestArray::with_chunks(store.path().join("a"), &[100, 90, 50], &[32, 32, 32], more);
        let chunks = array.grid().len() as u64;
        let raw = store.path().join("new.raw");
        for (seed, command) in [(3, "cp"), (4, "dd"), (5, "dd odd")] {
            array.flat = pattern(seed, array.flat.len());
            fs::write(&raw, &array.flat).unwrap();
            let mount = Mount::new(store.path(), &[]);
            let from = raw.to_str().unwrap().to_string();
            let to = mount.join("a/data.raw").display().to_string();
            let growth = mount.growth(|| {
                let done = match command {
                    "cp" => Command::new("cp").args([&from, &to]).output(),
                    "dd" => Command::new("dd")
                        .arg(format!("if={from}"))
                        .arg(format!("of={to}"))
                        .arg("bs=1M")
                        .output(),
                    _ => Command::new("dd")
                        .arg(format!("if={from}"))
                        .arg(format!("of={to}"))
                        .arg("bs=7777")
                        .output(),
                };
                let done = done.unwrap();
                assert!(
                    done.status.success(),
                    "{what}: {command}: {}",
                    String::from_utf8_lossy(&done.stderr)
                );
            });
            assert_stored(&array, what);
            assert_eq!(growth.of("chunk_decodes"), 0, "{what}: {command}");
            assert_eq!(growth.of("chunks_stored"), chunks, "{what}: {command}");
            assert_eq!(growth.of("bytes_accepted"), array.flat.len() as u64);
        }
    }
}

/// "Sizes are fixed, as those of a block device."
#[test]
fn sizes_are_fixed() {
    let store = tempfile::tempdir().unwrap();
    let array = TestArray::with_chunks(
        store.path().join("a"),
        &[100],
        &[30],
        json!({"compressor": {"id": "zlib", "level": 1}}),
    );
    let mount = Mount::new(store.path(), &[]);
    for (name, size) in [("a/data.raw", 100), ("a/0", 30)] {
        let path = mount.join(name);
        let before = fs::read(&path).unwrap();
        // "A file that was truncated ... has its whole size again when it is closed", with O_TRUNC
        // or to a smaller size
        let file = File::create(&path).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 0);
        drop(file);
        assert_whole_again(&path, size);
        assert_eq!(fs::read(&path).unwrap(), before);
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        for smaller in [size / 2, 0, size / 3] {
            file.set_len(smaller).unwrap();
            assert_eq!(file.metadata().unwrap().len(), smaller);
            file.write_all_at(&before[..smaller as usize], 0).unwrap();
        }
        drop(file);
        assert_whole_again(&path, size);
        assert_eq!(fs::read(&path).unwrap(), before);
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        // "A write past the end is `EFBIG`", and so is a larger truncate; a write across the end is
        // short
        assert_eq!(
            file.set_len(size + 1).unwrap_err().raw_os_error(),
            Some(libc::EFBIG)
        );
        for past in [size, size + 1000] {
            assert_eq!(
                file.write_at(b"x", past).unwrap_err().raw_os_error(),
                Some(libc::EFBIG),
                "{name}"
            );
        }
        assert_eq!(
            file.write_at(&before[size as usize - 3..], size - 3)
                .unwrap(),
            3
        );
        assert_eq!(file.write_at(b"xyz", size - 1).unwrap(), 1);
        assert_eq!(
            file.write_at(&before[size as usize - 1..], size - 1)
                .unwrap(),
            1
        );
        assert_eq!(file.metadata().unwrap().len(), size);
        drop(file);
        assert_eq!(fs::read(&path).unwrap(), before);
        let appending = OpenOptions::new().append(true).open(&path).unwrap();
        assert_eq!(
            appending.write_at(b"x", 0).unwrap_err().raw_os_error(),
            Some(libc::EFBIG),
            "appending is past it"
        );
    }
    assert_stored(&array, "unchanged");
}

/// "Data written through one file of the mount is immediately visible through every other file of
/// the mount", and through a map.
#[test]
fn a_write_is_readable_at_once_through_every_file() {
    for (what, more) in codecs() {
        let store = tempfile::tempdir().unwrap();
        let array = TestArray::with_chunks(store.path().join("a"), &[40, 40], &[16, 16], more);
        let mount = Mount::new(store.path(), &[]);
        let item = array.chunk_size() / 256;
        let edge = 16 * 16;
        let open = |name: &str| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .open(mount.join(name))
                .unwrap()
        };
        let flat = open("a/data.raw");
        let chunk = open("a/0.0");
        let read = |file: &File, len: usize, at: usize| {
            let mut bytes = vec![0; len];
            file.read_exact_at(&mut bytes, at as u64).unwrap();
            bytes
        };
        // make the kernel cache pages of both files
        read(&flat, array.flat.len(), 0);
        read(&chunk, array.chunk_size(), 0);
        let map = SharedMap::new(&flat);
        for round in 0..3u8 {
            let value = vec![0x40 + round; item];
            flat.write_all_at(&value, 0).unwrap();
            assert_eq!(
                read(&chunk, item, 0),
                value,
                "{what}: the chunk file, round {round}"
            );
            assert_eq!(map.bytes()[..item], value, "{what}: the map, round {round}");
            let value = vec![0x50 + round; item];
            chunk
                .write_all_at(&value, (array.chunk_size() - item) as u64)
                .unwrap();
            let at = (15 * 40 + 15) * item;
            assert_eq!(
                read(&flat, item, at),
                value,
                "{what}: the flat bytes, round {round}"
            );
            assert_eq!(
                map.bytes()[at..at + item],
                value,
                "{what}: the map, round {round}"
            );
        }
        assert!(edge > 0);
    }
}

/// Writing or replacing a chunk file makes the kernel drop pages of `data.raw`. Meanwhile other
/// threads write those pages and make them dirty through a map. No thread waits forever for
/// another.
#[test]
fn maps_writes_and_chunk_files_do_not_wait_for_each_other() {
    const LEN: usize = 4096;
    let store = tempfile::tempdir().unwrap();
    TestArray::with_chunks(store.path().join("a"), &[10 * LEN], &[LEN], json!({}));
    let mount = Mount::new(store.path(), &[]);
    let open = |name: &str| {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(mount.join(name))
            .unwrap()
    };
    let mapped = open("a/data.raw");
    let flat = open("a/data.raw");
    let chunk = open("a/0");
    let other = mount.join("a/0.new");
    let path = mount.join("a/0");
    let (done, ended) = std::sync::mpsc::channel();
    let writer = done.clone();
    // threads without a scope, so that a thread that hangs does not stop the test
    std::thread::spawn(move || {
        for round in 0..2000 {
            flat.write_all_at(&[round as u8; 100], (3 * LEN + round) as u64)
                .unwrap();
        }
        writer.send(()).unwrap();
    });
    std::thread::spawn(move || {
        let map = SharedMap::new(&mapped);
        for round in 0..100 {
            map.set(2 * LEN + round, round as u8);
            if round % 2 == 0 {
                chunk.write_all_at(&[round as u8; 10], 0).unwrap();
            } else {
                fs::write(&other, [round as u8; LEN]).unwrap();
                fs::rename(&other, &path).unwrap();
            }
            assert_eq!(
                (map.get(5), map.get(2 * LEN + round)),
                (round as u8, round as u8)
            );
        }
        done.send(()).unwrap();
    });
    for _ in 0..2 {
        ended
            .recv_timeout(std::time::Duration::from_secs(300))
            .expect("both end");
    }
}

/// Files can be written "also through shared maps". Both msync and close store bytes that were
/// written through a map.
#[test]
fn writes_through_maps_are_stored() {
    for args in [&[][..], &["--direct-io"][..]] {
        let store = tempfile::tempdir().unwrap();
        let mut array = TestArray::with_chunks(
            store.path().join("a"),
            &[64, 64, 10],
            &[16, 16, 10],
            codecs()[1].1.clone(),
        );
        let mount = Mount::new(store.path(), args);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(mount.join("a/data.raw"))
            .unwrap();
        let map = SharedMap::new(&file);
        let bytes = pattern(9, 10_000);
        map.write(3000, &bytes);
        array.flat[3000..13_000].copy_from_slice(&bytes);
        map.sync();
        assert_stored(&array, "after msync");
        map.write(20_000, &bytes);
        array.flat[20_000..30_000].copy_from_slice(&bytes);
        drop((map, file));
        wait_for("the release", || {
            array.decoded(&[1, 0, 0]).unwrap()[..] == chunk_of(&array, &[1, 0, 0])[..]
        });
        drop(mount);
        assert_stored(&array, "after unmounting");
    }
}

/// Returns the bytes of a chunk without padding, in C order.
fn chunk_of(array: &TestArray, index: &[usize]) -> Vec<u8> {
    let mut chunk = vec![0; array.chunk_size()];
    for (flat, len, at) in array.rows(index) {
        chunk[at..at + len].copy_from_slice(&array.flat[flat..flat + len]);
    }
    chunk
}

/// Data is stored "at unmount", also if the file is still open, and at SIGTERM.
#[test]
fn unmounting_and_signals_store_all_writes() {
    for how in ["umount", "umount -l", "SIGTERM"] {
        let store = tempfile::tempdir().unwrap();
        let mut array = TestArray::with_chunks(
            store.path().join("a"),
            &[1000],
            &[100],
            codecs()[1].1.clone(),
        );
        let mount = Mount::new(store.path(), &[]);
        let file = OpenOptions::new()
            .write(true)
            .open(mount.join("a/data.raw"))
            .unwrap();
        file.write_all_at(&[7; 333], 50).unwrap();
        array.flat[50..383].fill(7);
        let path = mount.path().to_str().unwrap().to_string();
        let pid = mount.counter("pid");
        match how {
            // the unmount fails because the mount is busy, but it stores the writes first
            "umount" => {
                let output = answered(|| zarrfs(&["umount", &path]));
                assert!(!output.status.success());
            }
            "umount -l" => {
                assert!(
                    Command::new("umount")
                        .args(["-l", &path])
                        .status()
                        .unwrap()
                        .success()
                );
                drop(file);
            }
            _ => {
                // SAFETY: kill(2) only sends a signal, to the daemon of this test.
                unsafe { libc::kill(pid as i32, libc::SIGTERM) };
                // the signal stores the writes even while the file is open
                wait_for("the writes to be stored", || {
                    array.decoded(&[3]).unwrap()[..83] == [7; 83]
                });
                drop(file);
            }
        }
        wait_for("the end of the daemon", || {
            how == "umount" || !Path::new(&format!("/proc/{pid}")).exists()
        });
        assert_stored(&array, how);
        if how != "umount" {
            mount.assume_unmounted();
        }
    }
}

/// The other bytes of the chunk are the fill value, and its chunk file exists before the close.
#[test]
fn a_partly_written_uninitialized_chunk_gets_the_fill_value() {
    let store = tempfile::tempdir().unwrap();
    let more = json!({"dtype": "<i2", "fill_value": 258, "compressor": {"id": "zlib", "level": 1}});
    let array = TestArray::new(store.path().join("a"), &[10, 10], &[4, 4], more);
    let mount = Mount::new(store.path(), &[]);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(mount.join("a/data.raw"))
        .unwrap();
    assert_eq!(errno(fs::metadata(mount.join("a/0.0"))), "ENOENT");
    file.write_all_at(&[9, 9], 2).unwrap();
    assert_eq!(fs::metadata(mount.join("a/0.0")).unwrap().len(), 32);
    let names: Vec<_> = fs::read_dir(mount.join("a"))
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert!(
        names.iter().any(|n| n == "0.0") && !names.iter().any(|n| n == "0.1"),
        "{names:?}"
    );
    drop(file);
    let mut expected = [2u8, 1].repeat(16);
    expected[2..4].fill(9);
    assert_eq!(array.decoded(&[0, 0]).unwrap(), expected);
    assert_eq!(array.decoded(&[0, 1]), None);
}

/// "If two programs change one chunk, both changes survive if their byte ranges differ."
#[test]
fn a_chunk_that_another_writer_has_changed_keeps_both_changes() {
    let store = tempfile::tempdir().unwrap();
    let mut array = TestArray::with_chunks(
        store.path().join("a"),
        &[1000],
        &[100],
        codecs()[2].1.clone(),
    );
    let mount = Mount::new(store.path(), &[]);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(mount.join("a/data.raw"))
        .unwrap();
    let mut first = [0; 1];
    file.read_exact_at(&mut first, 110).unwrap();
    file.write_all_at(&[1, 1], 110).unwrap();
    array.flat[150..152].fill(2);
    array.put(&[1]);
    file.sync_all().unwrap();
    array.flat[110..112].fill(1);
    assert_stored(&array, "both");
    // "`open` shows the current content of the store"
    drop(file);
    assert!(fs::read(mount.join("a/data.raw")).unwrap() == array.flat);
}

/// Writing all of a damaged chunk repairs it without reading it. Writing a part of it makes the
/// close fail with EIO. Other chunks are stored in both cases.
#[test]
fn overwriting_a_damaged_chunk_repairs_it() {
    let store = tempfile::tempdir().unwrap();
    let mut array = TestArray::with_chunks(
        store.path().join("a"),
        &[1000],
        &[100],
        codecs()[1].1.clone(),
    );
    replace(&array.file(&[3]), b"no zlib");
    let mount = Mount::new(store.path(), &[]);
    let path = mount.join("a/data.raw");
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[5; 100], 250).unwrap();
    array.flat[250..350].fill(5);
    assert_eq!(close(file).unwrap_err().raw_os_error(), Some(libc::EIO));
    assert_eq!(array.decoded(&[2]).unwrap(), chunk_of(&array, &[2]));
    assert!(
        mount.stats().contains("not stored: /a/3: zlib"),
        "{}",
        mount.stats()
    );
    write_at(&path, 300, &array.flat[300..400]);
    assert_stored(&array, "repaired");
}

/// After the chunk is stored, reads return the result of the lossy filter.
#[test]
fn a_stored_chunk_shows_the_result_of_a_lossy_filter() {
    let store = tempfile::tempdir().unwrap();
    let more = json!({"dtype": "<f8", "filters": [{"id": "quantize", "digits": 1, "dtype": "<f8", "astype": "<f8"}],
        "compressor": {"id": "zlib", "level": 1}});
    let array = TestArray::new(store.path().join("a"), &[100], &[10], more);
    let mount = Mount::new(store.path(), &[]);
    let path = mount.join("a/data.raw");
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    let value = 1.23456789f64.to_le_bytes();
    file.write_all_at(&value.repeat(100), 0).unwrap();
    file.sync_all().unwrap();
    let kept = array.decoded(&[0]).unwrap()[..8].to_vec();
    assert_ne!(kept, value);
    let mut read = vec![0; 8];
    file.read_exact_at(&mut read, 0).unwrap();
    assert_eq!(read, kept);
    assert!(fs::read(&path).unwrap() == kept.repeat(100));
}

/// Memory stays below the cache bound plus 64 MiB while much more is written, also in an order that
/// completes no chunk.
#[test]
fn memory_is_bounded_while_writing() {
    let store = tempfile::tempdir().unwrap();
    let mut array = TestArray::new(
        store.path().join("a"),
        &[64, 1024, 1024],
        &[64, 64, 512],
        codecs()[2].1.clone(),
    );
    let mount = Mount::new(store.path(), &["--cache-size", "24M"]);
    array.flat = pattern(2, array.flat.len());
    let file = OpenOptions::new()
        .write(true)
        .open(mount.join("a/data.raw"))
        .unwrap();
    for (i, part) in array.flat.chunks(M).enumerate() {
        file.write_all_at(part, (i * M) as u64).unwrap();
    }
    close(file).unwrap();
    assert_stored(&array, "a row of chunks larger than the cache");
    let peak = mount.peak_memory();
    assert!(peak < (24 + 64) << 20, "{} MiB", peak >> 20);
}

/// So the close and fsync of a file find few chunks left, however many a request writes.
#[test]
fn small_chunks_are_stored_while_a_file_is_written() {
    let store = tempfile::tempdir().unwrap();
    let mut array = TestArray::new(
        store.path().join("a"),
        &[512, 16 << 10],
        &[1, 16 << 10],
        json!({}),
    );
    let mount = Mount::new(store.path(), &["--cache-size", "16M"]);
    array.flat = pattern(5, array.flat.len());
    let file = open_for_writing(&mount.join("a/data.raw"));
    for (i, part) in array.flat.chunks(M).enumerate() {
        file.write_all_at(part, (i * M) as u64).unwrap();
    }
    // three sixteenths of the cache
    wait_for("chunks to be stored", || {
        mount.counter("dirty_bytes") <= 3 << 20
    });
    close(file).unwrap();
    assert_stored(&array, "chunks smaller than requests");
}

/// Each of eight writers changes its own bytes of the chunks, and reads them back.
#[test]
fn concurrent_writers_of_the_same_chunks_lose_nothing() {
    let store = tempfile::tempdir().unwrap();
    let mut array = TestArray::with_chunks(
        store.path().join("a"),
        &[256, 1024],
        &[64, 128],
        codecs()[2].1.clone(),
    );
    let mount = Mount::new(store.path(), &["--cache-size", "100K"]);
    let fresh = pattern(77, array.flat.len());
    let path = mount.join("a/data.raw");
    let bytes = &fresh;
    std::thread::scope(|scope| {
        for writer in 0..8usize {
            let path = &path;
            scope.spawn(move || {
                let file = OpenOptions::new()
                    .read(true)
                    .write(true)
                    .open(path)
                    .unwrap();
                for (i, part) in bytes
                    .chunks(1000)
                    .enumerate()
                    .filter(|(i, _)| i % 8 == writer)
                {
                    file.write_all_at(part, i as u64 * 1000).unwrap();
                    let mut back = vec![0; part.len()];
                    file.read_exact_at(&mut back, i as u64 * 1000).unwrap();
                    assert!(back == part, "writer {writer}, part {i}");
                    if i % 50 == 0 {
                        file.sync_data().unwrap();
                    }
                }
                close(file).unwrap();
            });
        }
    });
    array.flat = fresh;
    assert_stored(&array, "eight writers");
}

/// Deleting and storing a chunk both take its lock, and neither waits forever for the other.
#[test]
fn a_chunk_can_be_deleted_while_it_is_stored_under_its_lock() {
    let store = tempfile::tempdir().unwrap();
    let locks = tempfile::tempdir().unwrap();
    let array = TestArray::with_chunks(
        store.path().join("a"),
        &[40_000],
        &[20_000],
        codecs()[1].1.clone(),
    );
    let mount = Mount::new(
        store.path(),
        &[
            "--no-fsync",
            "--synchronizer",
            locks.path().to_str().unwrap(),
        ],
    );
    let pid = mount.counter("pid");
    let (done, wait) = std::sync::mpsc::channel();
    let flat = mount.join("a/data.raw");
    let chunk = mount.join("a/0");
    for delete in [false, true] {
        let done = done.clone();
        let flat = flat.clone();
        let chunk = chunk.clone();
        std::thread::spawn(move || {
            for round in 0..400 {
                if delete {
                    // the file may be missing since the last removal
                    drop(fs::remove_file(&chunk))
                } else {
                    write_at(&flat, round * 7, &pattern(round as u64, 5000))
                }
            }
            done.send(()).unwrap();
        });
    }
    for _ in 0..2 {
        if wait
            .recv_timeout(std::time::Duration::from_secs(300))
            .is_err()
        {
            // a mount that hangs cannot be unmounted, but ends with its daemon
            // SAFETY: kill(2) only sends a signal, to the daemon of this test.
            unsafe { libc::kill(pid as i32, libc::SIGKILL) };
            panic!("they wait for each other");
        }
    }
    write_at(&flat, 0, &array.flat[..20_000]);
    assert_stored(&array, "afterwards");
}

/// `--drop-empty-chunks`: "remove a chunk that contains only the fill value instead of storing it."
#[test]
fn chunks_of_fill_values_are_dropped_only_on_request() {
    for (args, dropped) in [(&[][..], false), (&["--drop-empty-chunks"][..], true)] {
        for (fill, item) in [
            (json!(0), [0u8, 0]),
            (json!(258), [2, 1]),
            (Value::Null, [0, 0]),
        ] {
            let store = tempfile::tempdir().unwrap();
            let more = json!({"dtype": "<i2", "fill_value": fill, "compressor": {"id": "zlib", "level": 1}});
            let array = TestArray::with_chunks(store.path().join("a"), &[100], &[20], more);
            let mount = Mount::new(store.path(), args);
            write_at(&mount.join("a/data.raw"), 40, &item.repeat(20));
            write_at(&mount.join("a/data.raw"), 82, &item.repeat(19));
            assert_eq!(
                array.decoded(&[1]).is_none(),
                dropped && !fill.is_null(),
                "{args:?} {fill}"
            );
            assert!(array.decoded(&[2]).is_some(), "one item is another");
            let flat = fs::read(mount.join("a/data.raw")).unwrap();
            assert!(flat[40..80] == item.repeat(20) && flat[82..120] == item.repeat(19));
        }
    }
}

/// With `--synchronizer`, a write waits while another process holds the lock of the chunk; also
/// with `--no-fsync`.
#[test]
fn a_write_waits_for_the_lock_of_its_chunk() {
    let store = tempfile::tempdir().unwrap();
    let locks = tempfile::tempdir().unwrap();
    let mut array =
        TestArray::with_chunks(store.path().join("a"), &[100], &[20], codecs()[1].1.clone());
    let mount = Mount::new(
        store.path(),
        &[
            "--no-fsync",
            "--synchronizer",
            locks.path().to_str().unwrap(),
        ],
    );
    fs::create_dir(locks.path().join("a")).unwrap();
    let lock = File::create(locks.path().join("a/1")).unwrap();
    rustix::fs::fcntl_lock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let path = mount.join("a/data.raw");
    let writer = std::thread::spawn(move || write_at(&path, 25, &[1; 5]));
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_stored(&array, "locked");
    assert!(!writer.is_finished());
    rustix::fs::fcntl_lock(&lock, rustix::fs::FlockOperation::Unlock).unwrap();
    writer.join().unwrap();
    array.flat[25..30].fill(1);
    assert_stored(&array, "unlocked");
}
