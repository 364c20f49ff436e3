//! "Nothing is stored into an array that another program has replaced, deleted or made smaller, and its writer is told":
//! each fsync and close of a file returns ESTALE until its release, `.zarrfs/stats` keeps the line, and the store holds
//! what the other program has put there. The other program is the test itself, which writes the store's files.

mod support;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use serde_json::{Value, json};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use support::made::Made;
use support::{Mount, alone, close};

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

fn zlib() -> Value {
    json!({"compressor": {"id": "zlib", "level": 1}})
}

/// The shape, chunks and other fields of an array.
type Form = (Vec<usize>, Vec<usize>, Value);

/// What the other program puts in place of an array of 100 bytes in chunks of 10.
fn replacements() -> [(&'static str, Option<Form>); 6] {
    [
        ("another dtype", Some((vec![50], vec![5], json!({"dtype": "<u2", "compressor": {"id": "zlib", "level": 1}})))),
        ("another codec", Some((vec![100], vec![10], json!({"compressor": {"id": "bz2", "level": 1}})))),
        ("no codec", Some((vec![100], vec![10], json!({})))),
        ("other chunks", Some((vec![100], vec![20], zlib()))),
        ("more dimensions", Some((vec![10, 10], vec![1, 10], zlib()))),
        ("no array", None),
    ]
}

/// Replaces the array at `path`; all files of the array that is there then.
fn replace(path: &Path, by: &Option<Form>) -> Vec<(String, Vec<u8>)> {
    fs::remove_dir_all(path).unwrap();
    if let Some((shape, chunks, more)) = by {
        Made::full(path.to_path_buf(), shape, chunks, more.clone());
    }
    files(path)
}

fn files(path: &Path) -> Vec<(String, Vec<u8>)> {
    let Ok(entries) = fs::read_dir(path) else { return Vec::new() };
    let mut files: Vec<_> = entries
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .collect();
    files.sort();
    files
}

fn is_stale(result: std::io::Result<()>) -> bool {
    result.is_err_and(|e| e.raw_os_error() == Some(libc::ESTALE))
}

#[test]
fn nothing_is_stored_into_an_array_that_was_replaced_and_each_flush_says_so() {
    let _alone = alone();
    for (what, by) in replacements() {
        // looking at the array, or opening it, before the close must not swallow the loss
        for looks in ["no look", "stat", "open", "list"] {
            for name in ["data.raw", "data.npy", "3"] {
                let what = format!("{what}, {looks}, {name}");
                let store = tempfile::tempdir().unwrap();
                let path = store.path().join("a");
                Made::full(path.clone(), &[100], &[10], zlib());
                let mount = Mount::new(store.path(), &[]);
                let file = open(&mount.join("a").join(name));
                let at = file.metadata().unwrap().len() - 8;
                file.write_all_at(b"mine", at).unwrap();
                let theirs = replace(&path, &by);
                match looks {
                    "stat" => drop(fs::metadata(mount.join("a/data.raw"))),
                    "open" => drop(fs::read(mount.join("a/data.raw"))),
                    "list" => drop(fs::read_dir(mount.join("a")).map(Iterator::count)),
                    _ => {}
                }
                // the close of a duplicate by a child must not swallow it either
                let child = Command::new("true").stdin(Stdio::from(file.try_clone().unwrap())).status().unwrap();
                assert!(child.success());
                assert!(is_stale(file.sync_all()), "{what}: fsync");
                assert!(is_stale(close(file.try_clone().unwrap())), "{what}: close of a duplicate");
                assert!(is_stale(file.sync_all()), "{what}: fsync again");
                assert!(is_stale(close(file)), "{what}: close");
                assert!(mount.stats().contains("what was written is lost"), "{what}: {}", mount.stats());
                drop(mount);
                assert_eq!(files(&path), theirs, "{what}: the store");
            }
        }
    }
}

/// The other array has chunks of as many bytes.
#[test]
fn a_chunk_file_that_was_written_for_an_array_is_not_stored_into_another() {
    let _alone = alone();
    for looks in [false, true] {
        let store = tempfile::tempdir().unwrap();
        let path = store.path().join("a");
        Made::full(path.clone(), &[100], &[10], zlib());
        let mount = Mount::new(store.path(), &[]);
        let file = File::create(mount.join("a/3")).unwrap();
        file.write_all_at(&[1; 10], 0).unwrap();
        let theirs =
            replace(&path, &Some((vec![100], vec![10], json!({"dtype": "|i1", "compressor": {"id": "zlib"}}))));
        if looks {
            fs::read(mount.join("a/data.raw")).unwrap();
        }
        assert!(is_stale(close(file.try_clone().unwrap())) && is_stale(file.sync_all()) && is_stale(close(file)));
        drop(mount);
        assert!(files(&path) == theirs, "looked at: {looks}");
    }
}

#[test]
fn a_file_that_has_stored_everything_before_is_told_nothing() {
    let _alone = alone();
    let store = tempfile::tempdir().unwrap();
    let path = store.path().join("a");
    Made::full(path.clone(), &[100], &[10], zlib());
    let mount = Mount::new(store.path(), &[]);
    let [early, late] = ["a/data.raw", "a/data.raw"].map(|name| open(&mount.join(name)));
    early.write_all_at(b"stored", 0).unwrap();
    early.sync_all().unwrap();
    late.write_all_at(b"lost", 50).unwrap();
    let theirs = replace(&path, &replacements()[1].1);
    assert!(is_stale(late.sync_all()));
    early.sync_all().unwrap();
    // what is written to the array that is there now is stored
    let new = open(&mount.join("a/data.raw"));
    new.write_all_at(b"new", 20).unwrap();
    close(new).unwrap();
    close(early).unwrap();
    assert!(is_stale(close(late)));
    let now = files(&path);
    assert_eq!(now.iter().zip(&theirs).filter(|(a, b)| a != b).count(), 1, "one chunk was changed");
}

/// "for writes through maps, every description open for writing"
#[test]
fn what_a_map_has_written_is_reported_to_all_that_may_have_written_it() {
    let _alone = alone();
    const LEN: usize = 8192;
    let store = tempfile::tempdir().unwrap();
    let path = store.path().join("a");
    Made::full(path.clone(), &[LEN], &[LEN / 4], zlib());
    let mount = Mount::new(store.path(), &[]);
    let [mapped, other] = ["a/data.raw", "a/data.raw"].map(|name| open(&mount.join(name)));
    let reader = File::open(mount.join("a/data.raw")).unwrap();
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new map at a place that the kernel chooses; the file has the length.
    let map = unsafe { mmap(std::ptr::null_mut(), LEN, access, MapFlags::SHARED, &mapped, 0).unwrap() };
    // SAFETY: the byte lies in the map.
    unsafe { map.cast::<u8>().add(5000).write_volatile(7) };
    replace(&path, &Some((vec![LEN], vec![LEN / 8], zlib())));
    for file in [&mapped, &other] {
        assert!(is_stale(file.sync_all()));
        assert!(is_stale(file.sync_all()));
    }
    reader.sync_all().unwrap();
    // SAFETY: the bounds of the map, which nothing uses any more.
    unsafe { munmap(map, LEN).unwrap() };
    assert!(is_stale(close(mapped)) && is_stale(close(other)));
}

#[test]
fn what_lies_outside_a_smaller_array_never_comes_back() {
    let _alone = alone();
    let store = tempfile::tempdir().unwrap();
    let path = store.path().join("a");
    let made = Made::full(path.clone(), &[100], &[10], zlib());
    let reshape = |rows: usize| {
        let mut document: Value = serde_json::from_str(&made.text()).unwrap();
        document["shape"] = json!([rows]);
        fs::write(path.join("new"), document.to_string()).unwrap();
        fs::rename(path.join("new"), path.join(".zarray")).unwrap();
    };
    let mount = Mount::new(store.path(), &[]);
    let file = open(&mount.join("a/data.raw"));
    // in the array that is left, across its new end, beyond it
    for at in [5, 33, 70] {
        file.write_all_at(b"mine", at).unwrap();
    }
    reshape(35);
    (4..10).for_each(|chunk| fs::remove_file(path.join(chunk.to_string())).unwrap());
    assert!(is_stale(file.sync_all()));
    assert!(is_stale(close(file)));
    assert!(!path.join("7").exists(), "a chunk outside the grid was stored");
    reshape(100);
    let mut expected = made.flat.clone();
    expected[5..9].copy_from_slice(b"mine");
    expected[33..35].copy_from_slice(b"mi");
    expected[40..].fill(0);
    assert_eq!(fs::read(mount.join("a/data.raw")).unwrap(), expected);
}
