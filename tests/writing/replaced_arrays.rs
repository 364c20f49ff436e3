//! "Data written to an array that was replaced, deleted or made smaller meanwhile is not stored":
//! each `fsync` and `close` of the file returns ESTALE until its release, `.zarrfs/stats` keeps the
//! message, and the store holds the other program's bytes. The test itself is the other program. It
//! writes the store's files and then compares them.

use crate::support;
use crate::support::array::{TestArray, zlib};
use crate::support::shared_map::SharedMap;
use crate::support::{Mount, close, open_for_writing};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// The shape, chunks and other fields of an array.
type Form = (Vec<usize>, Vec<usize>, Value);

/// Returns replacements for an array of 100 bytes in chunks of 10 bytes. `None` means that the
/// array is deleted.
fn replacements() -> [(&'static str, Option<Form>); 6] {
    [
        (
            "another dtype",
            Some((
                vec![50],
                vec![5],
                json!({"dtype": "<u2", "compressor": {"id": "zlib", "level": 1}}),
            )),
        ),
        (
            "another codec",
            Some((
                vec![100],
                vec![10],
                json!({"compressor": {"id": "bz2", "level": 1}}),
            )),
        ),
        ("no codec", Some((vec![100], vec![10], json!({})))),
        ("other chunks", Some((vec![100], vec![20], zlib()))),
        ("more dimensions", Some((vec![10, 10], vec![1, 10], zlib()))),
        ("no array", None),
    ]
}

/// Replaces the array at `path`, and returns its new files.
fn replace(path: &Path, by: &Option<Form>) -> Vec<(String, Vec<u8>)> {
    fs::remove_dir_all(path).unwrap();
    if let Some((shape, chunks, more)) = by {
        TestArray::with_chunks(path.to_path_buf(), shape, chunks, more.clone());
    }
    files(path)
}

fn files(path: &Path) -> Vec<(String, Vec<u8>)> {
    let Ok(entries) = fs::read_dir(path) else {
        return Vec::new();
    };
    let mut files: Vec<_> = entries
        .map(|entry| entry.unwrap())
        .map(|entry| {
            (
                entry.file_name().into_string().unwrap(),
                fs::read(entry.path()).unwrap(),
            )
        })
        .collect();
    files.sort();
    files
}

fn is_stale(result: std::io::Result<()>) -> bool {
    result.is_err_and(|e| e.raw_os_error() == Some(libc::ESTALE))
}

#[test]
fn writes_to_a_replaced_array_are_dropped_and_every_flush_reports_it() {
    for (what, by) in replacements() {
        // neither looking at the array nor opening it before the close hides the loss
        for looks in ["no look", "stat", "open", "list"] {
            for name in ["data.raw", "data.npy", "3"] {
                let what = format!("{what}, {looks}, {name}");
                let store = tempfile::tempdir().unwrap();
                let path = store.path().join("a");
                TestArray::with_chunks(path.clone(), &[100], &[10], zlib());
                let mount = Mount::new(store.path(), &[]);
                let file = open_for_writing(&mount.join("a").join(name));
                let at = file.metadata().unwrap().len() - 8;
                file.write_all_at(b"mine", at).unwrap();
                let theirs = replace(&path, &by);
                match looks {
                    "stat" => drop(fs::metadata(mount.join("a/data.raw"))),
                    "open" => drop(fs::read(mount.join("a/data.raw"))),
                    "list" => drop(fs::read_dir(mount.join("a")).map(Iterator::count)),
                    _ => {}
                }
                // the end of a child process closes a duplicate descriptor, which does not hide the
                // loss either
                let child = Command::new("true")
                    .stdin(Stdio::from(file.try_clone().unwrap()))
                    .status()
                    .unwrap();
                assert!(child.success());
                assert!(is_stale(file.sync_all()), "{what}: fsync");
                assert!(
                    is_stale(close(file.try_clone().unwrap())),
                    "{what}: close of a duplicate"
                );
                assert!(is_stale(file.sync_all()), "{what}: fsync again");
                assert!(is_stale(close(file)), "{what}: close");
                assert!(
                    mount.stats().contains("what was written is lost"),
                    "{what}: {}",
                    mount.stats()
                );
                drop(mount);
                assert_eq!(files(&path), theirs, "{what}: the store");
            }
        }
    }
}

/// The other array has chunks of the same size.
#[test]
fn a_chunk_file_is_not_stored_into_another_array() {
    for looks in [false, true] {
        let store = tempfile::tempdir().unwrap();
        let path = store.path().join("a");
        TestArray::with_chunks(path.clone(), &[100], &[10], zlib());
        let mount = Mount::new(store.path(), &[]);
        let file = File::create(mount.join("a/3")).unwrap();
        file.write_all_at(&[1; 10], 0).unwrap();
        let theirs = replace(
            &path,
            &Some((
                vec![100],
                vec![10],
                json!({"dtype": "|i1", "compressor": {"id": "zlib"}}),
            )),
        );
        if looks {
            fs::read(mount.join("a/data.raw")).unwrap();
        }
        assert!(
            is_stale(close(file.try_clone().unwrap()))
                && is_stale(file.sync_all())
                && is_stale(close(file))
        );
        drop(mount);
        assert!(files(&path) == theirs, "looked at: {looks}");
    }
}

#[test]
fn a_file_whose_writes_are_all_stored_reports_no_loss() {
    let store = tempfile::tempdir().unwrap();
    let path = store.path().join("a");
    TestArray::with_chunks(path.clone(), &[100], &[10], zlib());
    let mount = Mount::new(store.path(), &[]);
    let [early, late] =
        ["a/data.raw", "a/data.raw"].map(|name| open_for_writing(&mount.join(name)));
    early.write_all_at(b"stored", 0).unwrap();
    early.sync_all().unwrap();
    late.write_all_at(b"lost", 50).unwrap();
    let theirs = replace(&path, &replacements()[1].1);
    assert!(is_stale(late.sync_all()));
    early.sync_all().unwrap();
    // later writes go to the new array
    let new = open_for_writing(&mount.join("a/data.raw"));
    new.write_all_at(b"new", 20).unwrap();
    close(new).unwrap();
    close(early).unwrap();
    assert!(is_stale(close(late)));
    let now = files(&path);
    assert_eq!(
        now.iter().zip(&theirs).filter(|(a, b)| a != b).count(),
        1,
        "one chunk was changed"
    );
}

/// The kernel does not tell the daemon which file a map belongs to, so every file that is open for
/// writing reports the lost writes of the map.
#[test]
fn lost_writes_of_a_map_are_reported_by_every_writable_file() {
    const LEN: usize = 8192;
    let store = tempfile::tempdir().unwrap();
    let path = store.path().join("a");
    TestArray::with_chunks(path.clone(), &[LEN], &[LEN / 4], zlib());
    let mount = Mount::new(store.path(), &[]);
    let [mapped, other] =
        ["a/data.raw", "a/data.raw"].map(|name| open_for_writing(&mount.join(name)));
    let reader = File::open(mount.join("a/data.raw")).unwrap();
    let map = SharedMap::new(&mapped);
    map.set(5000, 7);
    replace(&path, &Some((vec![LEN], vec![LEN / 8], zlib())));
    for file in [&mapped, &other] {
        assert!(is_stale(file.sync_all()));
        assert!(is_stale(file.sync_all()));
    }
    reader.sync_all().unwrap();
    drop(map);
    assert!(is_stale(close(mapped)) && is_stale(close(other)));
}

#[test]
fn writes_outside_a_smaller_array_never_reappear() {
    let store = tempfile::tempdir().unwrap();
    let path = store.path().join("a");
    let array = TestArray::with_chunks(path.clone(), &[100], &[10], zlib());
    let reshape = |rows: usize| {
        let mut document: Value = serde_json::from_str(&array.text()).unwrap();
        document["shape"] = json!([rows]);
        fs::write(path.join("new"), document.to_string()).unwrap();
        fs::rename(path.join("new"), path.join(".zarray")).unwrap();
    };
    let mount = Mount::new(store.path(), &[]);
    let file = open_for_writing(&mount.join("a/data.raw"));
    // inside the smaller array, across its end, and past it
    for at in [5, 33, 70] {
        file.write_all_at(b"mine", at).unwrap();
    }
    reshape(35);
    (4..10).for_each(|chunk| fs::remove_file(path.join(chunk.to_string())).unwrap());
    assert!(is_stale(file.sync_all()));
    assert!(is_stale(close(file)));
    assert!(
        !path.join("7").exists(),
        "a chunk outside the grid was stored"
    );
    reshape(100);
    let mut expected = array.flat.clone();
    expected[5..9].copy_from_slice(b"mine");
    expected[33..35].copy_from_slice(b"mi");
    expected[40..].fill(0);
    assert_eq!(fs::read(mount.join("a/data.raw")).unwrap(), expected);
}

/// `mode="w"` of zarr-python and xarray removes the directory of the store and makes another one.
#[test]
fn a_store_that_is_removed_and_made_anew_is_found_again() {
    let directory = tempfile::tempdir().unwrap();
    let store = directory.path().join("s.zarr");
    let make = |path: &Path, shape: usize| {
        fs::create_dir_all(path).unwrap();
        fs::write(path.join(".zgroup"), r#"{"zarr_format": 2}"#).unwrap();
        TestArray::with_chunks(path.join("a"), &[shape], &[10], zlib())
    };
    let first = make(&store, 20);
    let mount = Mount::new(&store, &[]);
    let flat = || fs::read(mount.join("a/data.raw"));
    // directories that are renamed stay the store
    let renamed = directory.path().join("renamed");
    fs::rename(&store, &renamed).unwrap();
    assert_eq!(flat().unwrap(), first.flat);
    let elsewhere = make(&directory.path().join("elsewhere"), 30);
    for made in 0..3 {
        for path in [&store, &renamed].into_iter().filter(|path| path.exists()) {
            fs::remove_dir_all(path).unwrap();
        }
        if made == 1 {
            // a link is not followed
            std::os::unix::fs::symlink("elsewhere", &store).unwrap();
        }
        for name in ["a", ""] {
            assert_eq!(
                support::errno(fs::read_dir(mount.join(name))),
                "EIO",
                "{name}"
            );
        }
        for name in ["a/data.raw", ".zgroup", "none"] {
            assert_eq!(support::errno(fs::read(mount.join(name))), "EIO", "{name}");
        }
        assert_eq!(support::errno(File::create(mount.join("new"))), "EIO");
        assert!(
            mount
                .stats()
                .contains("s.zarr: the directory of the store was removed"),
            "{}",
            mount.stats()
        );
        if made == 1 {
            fs::remove_file(&store).unwrap();
        }
        let second = make(&store, 40 + made);
        assert_eq!(
            support::names(mount.path()),
            [".zgroup", "a"].map(String::from).into()
        );
        assert_eq!(flat().unwrap(), second.flat);
        let written = vec![made as u8; 40 + made];
        fs::write(mount.join("a/data.raw"), &written).unwrap();
        assert!(second.stored_flat().unwrap() == written);
    }
    assert!(elsewhere.stored_flat().unwrap() == elsewhere.flat);
}
