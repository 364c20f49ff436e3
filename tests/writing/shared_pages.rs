//! "Data written through one file of the mount is immediately visible through every other file of
//! the mount", despite the kernel's page cache. Pages that a shared map has made dirty never undo a
//! write through another file, and pages that are read during a write never keep old bytes. At the
//! end the stored chunks, decoded without a mount, are compared with the written bytes.

use crate::support::array::{TestArray, replace};
use crate::support::shared_map::SharedMap;
use crate::support::{Mount, close, open_for_writing, wait_for};
use rustix::fs::{FlockOperation, fcntl_lock};
use serde_json::json;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::Duration;

const PAGE: usize = 4096;

fn write(path: &Path, bytes: &[u8], at: usize) {
    let file = open_for_writing(path);
    file.write_all_at(bytes, at as u64).unwrap();
    file.sync_all().unwrap();
    close(file).unwrap();
}

/// Creates an array of four chunks of a quarter of a page each, so that all of them share a page of
/// `data.raw`.
fn create_array(store: &Path) -> TestArray {
    TestArray::with_chunks(
        store.join("a"),
        &[PAGE],
        &[PAGE / 4],
        json!({"compressor": {"id": "zlib", "level": 1}}),
    )
}

/// Ways to write to an array while one of its files is mapped.
const WAYS: [&str; 7] = [
    "data.raw",
    "O_DIRECT",
    "chunk",
    "data.npy",
    "dataset.nc",
    "rename",
    "unlink",
];

/// Changes bytes of the second chunk in one of these ways, and updates the expected bytes.
fn change(mount: &Path, made: &mut TestArray, way: &str) {
    let chunk = PAGE / 4;
    let at = PAGE / 4 + 100;
    let array = mount.join("a");
    // the offset of the bytes in a file that ends with the flat bytes
    let place = |name: &str| array.join(name).metadata().unwrap().len() as usize - PAGE + at;
    match way {
        "data.raw" => write(&array.join(way), b"theirs", at),
        "O_DIRECT" => {
            let path = format!("{}", array.join("data.raw").display());
            let script = format!(
                "printf theirs | dd of={path} bs=1 seek={at} oflag=direct conv=notrunc,fsync status=none"
            );
            assert!(
                std::process::Command::new("sh")
                    .args(["-c", &script])
                    .status()
                    .unwrap()
                    .success()
            );
        }
        "chunk" => write(&array.join("1"), b"theirs", 100),
        "data.npy" => write(&array.join(way), b"theirs", place(way)),
        "dataset.nc" => {
            let path = mount.join(way);
            let bytes = fs::read(&path).unwrap();
            // the map may have changed the second chunk already, if the kernel has stored its page
            let start = bytes
                .windows(PAGE / 4)
                .position(|window| window == &made.flat[..PAGE / 4])
                .unwrap();
            write(&path, b"theirs", start + at);
        }
        "rename" => {
            let mut bytes = made.flat[chunk..2 * chunk].to_vec();
            bytes[100..106].copy_from_slice(b"theirs");
            fs::write(array.join("1.partial"), bytes).unwrap();
            fs::rename(array.join("1.partial"), array.join("1")).unwrap();
        }
        _ => {
            fs::remove_file(array.join("1")).unwrap();
            made.flat[chunk..2 * chunk].fill(0);
            return;
        }
    }
    made.flat[at..at + 6].copy_from_slice(b"theirs");
}

#[test]
fn a_dirty_page_of_a_map_never_undoes_a_write_through_another_file() {
    for mapped in ["data.raw", "data.npy", "dataset.nc", "1"] {
        for way in WAYS {
            // the kernel itself keeps a file and its own maps consistent
            let is_same = mapped == way
                || mapped == "data.raw" && way == "O_DIRECT"
                || mapped == "1" && way == "chunk";
            if is_same {
                continue;
            }
            let what = format!("{way} beside a map of {mapped}");
            let store = tempfile::tempdir().unwrap();
            fs::write(store.path().join(".zgroup"), r#"{"zarr_format":2}"#).unwrap();
            let mut made = create_array(store.path());
            let mount = Mount::new(store.path(), &["--containers", "nc"]);
            let path = if mapped == "dataset.nc" {
                mount.join(mapped)
            } else {
                mount.join("a").join(mapped)
            };
            let file = open_for_writing(&path);
            let bytes = fs::read(&path).unwrap();
            // the map changes another byte of the second chunk, in the same page as the write
            let own = PAGE / 4 + 50;
            let at = match mapped {
                "1" => 50,
                _ => {
                    bytes
                        .windows(PAGE)
                        .position(|window| window == made.flat)
                        .unwrap()
                        + own
                }
            };
            let map = SharedMap::new(&file);
            map.set(at, 0xab);
            change(mount.path(), &mut made, way);
            if !["unlink", "rename"].contains(&way) {
                made.flat[own] = 0xab;
            }
            map.sync();
            drop(map);
            close(file).unwrap();
            let now = fs::read(mount.join("a/data.raw")).unwrap();
            assert_eq!(
                &now[PAGE / 4 + 100..][..6],
                &made.flat[PAGE / 4 + 100..][..6],
                "{what}: what was acknowledged"
            );
            if !["unlink", "rename"].contains(&way) {
                assert_eq!(now[own], 0xab, "{what}: what the map has changed");
            }
            drop(mount);
            assert!(made.stored_flat().unwrap() == now, "{what}: the store");
        }
    }
}

/// While a write waits for cache space, the kernel may drop the page and read it again. Every later
/// read still returns the new bytes.
#[test]
fn a_page_that_is_read_while_its_write_waits_keeps_no_old_bytes() {
    let store = tempfile::tempdir().unwrap();
    let locks = tempfile::tempdir().unwrap();
    let zlib = json!({"compressor": {"id": "zlib", "level": 1}});
    let mut made = TestArray::with_chunks(store.path().join("a"), &[16 * PAGE], &[2 * PAGE], zlib);
    let options = [
        "--cache-size",
        "20K",
        "--synchronizer",
        locks.path().to_str().unwrap(),
    ];
    let mount = Mount::new(store.path(), &options);
    let raw = mount.join("a/data.raw");
    let file = open_for_writing(&raw);
    let reader = File::open(&raw).unwrap();
    let read = |file: &File, page: usize| {
        let mut bytes = vec![0; PAGE];
        file.read_exact_at(&mut bytes, (page * PAGE) as u64)
            .unwrap();
        bytes
    };
    assert!(fs::read(&raw).unwrap() == made.flat);
    // a dirty chunk fills the cache, and the test holds its lock, so no other chunk can be written
    // until the lock is released
    let key = locks.path().join("a/0");
    fs::create_dir_all(key.parent().unwrap()).unwrap();
    let lock = File::options()
        .append(true)
        .create(true)
        .open(&key)
        .unwrap();
    fcntl_lock(&lock, FlockOperation::LockExclusive).unwrap();
    file.write_all_at(&[1; PAGE], 0).unwrap();
    made.flat[..PAGE].fill(1);
    std::thread::scope(|scope| {
        let (done, ends) = channel();
        let file = &file;
        let raw = &raw;
        let made = &mut made;
        let writer = scope.spawn(move || {
            file.write_all_at(&[2; PAGE], (5 * PAGE) as u64).unwrap();
            done.send(()).unwrap();
        });
        assert!(
            ends.recv_timeout(Duration::from_millis(300)).is_err(),
            "the write has to wait"
        );
        // opening the file after a change of another chunk makes the kernel drop its pages
        made.change(&[7], 9);
        replace(&made.file(&[7]), &made.encoded(&[7]));
        File::open(raw).unwrap();
        let (read_again, reads) = channel();
        let again = reader.try_clone().unwrap();
        scope.spawn(move || {
            let mut bytes = vec![0; PAGE];
            again.read_exact_at(&mut bytes, (5 * PAGE) as u64).unwrap();
            read_again.send(bytes).unwrap();
        });
        std::thread::sleep(Duration::from_millis(300));
        fcntl_lock(&lock, FlockOperation::Unlock).unwrap();
        writer.join().unwrap();
        assert!(
            reads.recv_timeout(Duration::from_secs(30)).unwrap() == [2; PAGE],
            "read while it waited"
        );
        made.flat[5 * PAGE..6 * PAGE].fill(2);
    });
    for file in [&file, &reader] {
        assert!(read(file, 5) == [2; PAGE], "after the write");
    }
    file.sync_all().unwrap();
    assert!(read(&reader, 5) == [2; PAGE], "after fsync");
    wait_for("the chunk of the other program", || {
        fs::read(&raw).unwrap() == made.flat
    });
    close(file).unwrap();
    drop(mount);
    assert!(made.stored_flat().unwrap() == made.flat);
}
