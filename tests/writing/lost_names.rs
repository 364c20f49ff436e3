//! "No race within a mount makes open(2) or stat(2) fail with ESTALE": threads create, remove and
//! replace one path, while others open it. Each result is one that a local disk can give.

use super::permissions::V2;
use crate::support::Mount;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::scope;

/// Calls `work` again and again, until all of `writers` threads have called `write` for each round.
fn against(
    writers: usize,
    rounds: usize,
    write: impl Fn(usize) + Sync,
    work: impl Fn() + Sync,
) -> io::Result<()> {
    let has_ended = AtomicBool::new(false);
    scope(|threads| {
        for _ in 0..2 {
            threads.spawn(|| {
                while !has_ended.load(Ordering::Relaxed) {
                    work();
                }
            });
        }
        let write = &write;
        let writing: Vec<_> = (0..writers)
            .map(|writer| threads.spawn(move || (0..rounds).for_each(|_| write(writer))))
            .collect();
        let outcomes: Vec<_> = writing.into_iter().map(|thread| thread.join()).collect();
        has_ended.store(true, Ordering::Relaxed);
        outcomes
            .into_iter()
            .collect::<Result<Vec<_>, _>>()
            .map(drop)
            .map_err(|_| io::Error::other("a writer has failed"))
    })
}

/// Asserts that an operation succeeds or fails with one of these errors.
#[track_caller]
fn assert_outcome<T>(outcome: io::Result<T>, expected: &[i32], what: &str) -> Option<T> {
    match outcome {
        Ok(value) => Some(value),
        Err(e) if e.raw_os_error().is_some_and(|e| expected.contains(&e)) => None,
        Err(e) => panic!("{what}: {e}"),
    }
}

fn store() -> tempfile::TempDir {
    let store = tempfile::tempdir().unwrap();
    fs::write(store.path().join(".zgroup"), r#"{"zarr_format": 2}"#).unwrap();
    fs::create_dir(store.path().join("a")).unwrap();
    fs::write(store.path().join("a/.zarray"), V2).unwrap();
    store
}

#[test]
fn programs_that_create_and_remove_one_path_succeed() {
    let store = store();
    let mount = Mount::new(store.path(), &[]);
    for (name, text, flags) in [
        ("x", "text", 0),
        ("x", "text", libc::O_TRUNC),
        ("a/1.0", "xy", 0),
        ("a/1.0", "xy", libc::O_TRUNC),
        ("a/.zattrs", r#"{"a": 1}"#, 0),
    ] {
        let path = mount.join(name);
        let write = |_| {
            let mut options = OpenOptions::new();
            let options = options.read(true).write(true).create(true);
            let mut file = options
                .truncate(false)
                .custom_flags(flags)
                .open(&path)
                .unwrap();
            file.write_all(text.as_bytes()).unwrap();
            file.metadata().unwrap();
            let mut shown = String::new();
            // another thread may truncate the file
            if flags == 0 {
                io::Seek::rewind(&mut file).unwrap();
                file.read_to_string(&mut shown).unwrap();
                assert_eq!(shown, text, "{name}");
            }
            drop(file);
            assert_outcome(fs::remove_file(&path), &[libc::ENOENT], name);
        };
        let read = || {
            assert_outcome(File::open(&path), &[libc::ENOENT], name);
            assert_outcome(fs::metadata(&path), &[libc::ENOENT], name);
            let listed = rustix::fs::llistxattr(&path, &mut [0; 4096][..]);
            assert_outcome(listed.map_err(io::Error::from), &[libc::ENOENT], name);
        };
        against(4, 60, write, read).unwrap();
    }
}

#[test]
fn a_file_that_is_replaced_again_and_again_is_always_there() {
    let store = store();
    let mount = Mount::new(store.path(), &[]);
    for (name, text) in [("x", "text"), ("a/1.0", "xy"), ("a/.zattrs", r#"{"a": 1}"#)] {
        let path = mount.join(name);
        let replace = |writer| {
            let new = mount.join(format!("new{writer}").as_str());
            fs::write(&new, text).unwrap();
            fs::rename(&new, &path).unwrap();
        };
        replace(9);
        let read = || {
            let shown = fs::read_to_string(&path).unwrap();
            // the mount may write a document in its own form
            assert!(
                shown == text || name.ends_with(".zattrs") && !shown.is_empty(),
                "{name}"
            );
            fs::metadata(&path).unwrap();
        };
        against(2, 100, replace, read).unwrap();
    }
}

#[test]
fn a_directory_that_is_removed_while_it_is_opened_is_empty() {
    let store = store();
    let mount = Mount::new(store.path(), &[]);
    let path = mount.join("d");
    let change = |_| {
        assert_outcome(fs::create_dir(&path), &[libc::EEXIST], "mkdir");
        assert_outcome(fs::remove_dir(&path), &[libc::ENOENT], "rmdir");
    };
    let read = || {
        if let Some(names) = assert_outcome(fs::read_dir(&path), &[libc::ENOENT], "opendir") {
            assert_eq!(names.map(Result::unwrap).count(), 0);
        }
        assert_outcome(fs::metadata(&path), &[libc::ENOENT], "stat");
    };
    against(2, 200, change, read).unwrap();
    // a program may be in a directory that another one removes
    fs::create_dir(&path).unwrap();
    let directory = File::open(&path).unwrap();
    fs::remove_dir(&path).unwrap();
    assert!(directory.metadata().unwrap().is_dir());
}

/// What is kept for such programs is not kept for ever.
#[test]
fn files_that_are_removed_while_they_are_opened_take_no_space() {
    let store = store();
    let mount = Mount::new(store.path(), &[]);
    let path = mount.join("x");
    let write = |_| {
        drop(File::create(&path).unwrap());
        assert_outcome(fs::remove_file(&path), &[libc::ENOENT], "unlink");
    };
    against(4, 60, write, || drop(File::open(&path))).unwrap();
    drop(File::create(&path));
    drop(fs::remove_file(&path));
    let daemon = mount.counter("pid");
    let deleted = || {
        let open = fs::read_dir(format!("/proc/{daemon}/fd")).unwrap();
        let targets = open.filter_map(|fd| fs::read_link(fd.unwrap().path()).ok());
        let mut names = targets.map(|target| target.display().to_string());
        names.any(|name| Path::new(&name).starts_with(store.path()) && name.ends_with("(deleted)"))
    };
    crate::support::wait_for("the daemon to close removed files", || !deleted());
}
