//! "`-o ro` or `--read-only` refuses all changes with `EROFS`", and reading a whole mount changes
//! neither a byte nor a time of its store. Snapshots of the store before and after are compared.

use crate::support::tree::{differences, snapshot};
use crate::support::{Mount, announce, copy_tree, env_path, errno, test_data};
use rustix::fs::{
    AtFlags, CWD, Timespec, Timestamps, XattrFlags, removexattr, setxattr, utimensat,
};
use std::ffi::CString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Error, Result};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

/// Creates a copy of the sample store with a plain file beside the data.
fn sample() -> tempfile::TempDir {
    let store = tempfile::tempdir().unwrap();
    copy_tree(&test_data("sample.zarr"), store.path());
    fs::write(store.path().join("notes.txt"), "plain").unwrap();
    store
}

/// Reads all files of a mount and their extended attributes. Returns the number of files and bytes.
fn read_all(mount: &Mount) -> (usize, u64) {
    let mut files = 0;
    let mut bytes = 0;
    let mut paths = vec![mount.path().to_path_buf()];
    while let Some(path) = paths.pop() {
        let mut names = vec![0; 4096];
        let len = rustix::fs::listxattr(&path, &mut names).unwrap();
        for name in names[..len].split(|b| *b == 0).filter(|n| !n.is_empty()) {
            rustix::fs::getxattr(&path, name, &mut vec![0; 65536]).unwrap();
        }
        if path.is_dir() {
            paths.extend(
                fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        } else {
            bytes += fs::read(&path).unwrap().len() as u64;
            files += 1;
        }
    }
    (files, bytes)
}

#[test]
fn reading_a_whole_mount_changes_nothing() {
    const OPTIONS: [&[&str]; 3] = [&[], &["--read-only"], &["-o", "ro", "--cache-size", "100K"]];
    let store = sample();
    let mut stores = vec![(store.path().to_path_buf(), &OPTIONS[..])];
    stores
        .extend(env_path("ZARRFS_MATRIX").map(|matrix| (matrix.join("slash.zarr"), &OPTIONS[..1])));
    for (store, all_options) in stores {
        for options in all_options {
            let before = snapshot(&store).unwrap();
            let mount = Mount::new(&store, options);
            let (files, bytes) = read_all(&mount);
            assert!(!mount.stats().is_empty());
            drop(mount);
            let changed = differences(&before, &snapshot(&store).unwrap());
            assert!(changed.is_empty(), "{options:?}: {changed:?}");
            assert!(files > 30, "{options:?}: {files} files");
            let name = store.file_name().unwrap().display();
            announce(&format!(
                "{name}, {options:?}: {files} files, {bytes} bytes read, {} of the store unchanged",
                before.len()
            ));
        }
    }
}

/// Tries every way to change a mount of the sample store. Returns those that do not fail with
/// EROFS.
fn not_refused(mount: &Mount) -> Vec<String> {
    let array = mount.join("air_temperature");
    let file = |name: &str| array.join(name);
    let mut said = Vec::new();
    let mut note = |what: &str, errno: String| said.push((what.to_string(), errno));
    for name in ["data.raw", "0.0.0", ".zarray", ".zattrs", "../notes.txt"] {
        let open = |options: &mut OpenOptions| errno(options.open(file(name)));
        note(
            &format!("write {name}"),
            open(OpenOptions::new().write(true)),
        );
        note(
            &format!("read and write {name}"),
            open(OpenOptions::new().read(true).write(true)),
        );
        note(
            &format!("append to {name}"),
            open(OpenOptions::new().append(true)),
        );
        note(
            &format!("truncate {name} as it is opened"),
            open(OpenOptions::new().write(true).truncate(true)),
        );
        note(&format!("truncate {name}"), errno(truncate(&file(name))));
        note(
            &format!("remove {name}"),
            errno(fs::remove_file(file(name))),
        );
        note(
            &format!("rename {name}"),
            errno(fs::rename(file(name), file("renamed"))),
        );
        note(
            &format!("link {name}"),
            errno(fs::hard_link(file(name), file("linked"))),
        );
        note(&format!("touch {name}"), errno(touch(&file(name))));
        note(
            &format!("chmod {name}"),
            errno(fs::set_permissions(
                file(name),
                Permissions::from_mode(0o600),
            )),
        );
        note(
            &format!("chown {name}"),
            errno(std::os::unix::fs::chown(file(name), Some(1), None)),
        );
    }
    for name in ["new", "data.npy.tmp", "9.9.9"] {
        note(&format!("create {name}"), errno(File::create(file(name))));
    }
    note("mkdir", errno(fs::create_dir(mount.join("group"))));
    note("rmdir", errno(fs::remove_dir(&array)));
    note(
        "rename a directory",
        errno(fs::rename(&array, mount.join("renamed"))),
    );
    note("symlink", errno(symlink("notes.txt", mount.join("link"))));
    let none = XattrFlags::empty();
    let units = "user.zarr.attrs.units";
    note(
        "set an attribute",
        errno(setxattr(&array, units, b"m", none).map_err(Error::from)),
    );
    note(
        "remove an attribute",
        errno(removexattr(&array, units).map_err(Error::from)),
    );
    said.into_iter()
        .filter(|(_, errno)| errno != "EROFS")
        .map(|(what, errno)| format!("{what}: {errno}"))
        .collect()
}

/// Tries every way to change a mount that the kernel considers writable. Returns those that do not
/// fail with EROFS. Leaves out links, owners and modes, which fail with EPERM in every mount, and
/// times and modes of plain files, which are ignored.
fn changeable(mount: &Mount) -> Vec<String> {
    let mut all = not_refused(mount);
    let expected =
        |said: &str, what: &str, errno: &str| said.starts_with(what) && said.ends_with(errno);
    let never = [
        ("link", "EPERM"),
        ("symlink", "EPERM"),
        ("chown", "EPERM"),
        ("chmod", "EPERM"),
    ];
    let ignored = [("touch", "ok"), ("chmod ../notes.txt", "ok")];
    all.retain(|said| {
        !never
            .iter()
            .chain(&ignored)
            .any(|(what, errno)| expected(said, what, errno))
    });
    all
}

fn truncate(path: &Path) -> Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path ends with a zero byte.
    match unsafe { libc::truncate(path.as_ptr(), 0) } {
        0 => Ok(()),
        _ => Err(Error::last_os_error()),
    }
}

fn touch(path: &Path) -> Result<()> {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: libc::UTIME_NOW,
    };
    let times = Timestamps {
        last_access: now,
        last_modification: now,
    };
    Ok(utimensat(CWD, path, &times, AtFlags::empty())?)
}

#[test]
fn a_read_only_mount_refuses_every_change() {
    let store = sample();
    let before = snapshot(store.path()).unwrap();
    for options in [&["--read-only"][..], &["-o", "ro"]] {
        let mount = Mount::new(store.path(), options);
        assert_eq!(not_refused(&mount), [] as [String; 0], "{options:?}");
    }
    assert_eq!(
        differences(&before, &snapshot(store.path()).unwrap()),
        [] as [String; 0]
    );
}

/// The daemon refuses changes even if the mount is remounted as writable.
#[test]
fn a_read_only_mount_stays_so_after_a_remount() {
    let store = sample();
    let before = snapshot(store.path()).unwrap();
    let mount = Mount::new(store.path(), &["--read-only"]);
    let remounted = Command::new("mount")
        .args(["-i", "-o", "remount,rw"])
        .arg(mount.path())
        .output()
        .unwrap();
    if !remounted.status.success() {
        announce("skipped: a remount takes root");
        return;
    }
    assert_eq!(changeable(&mount), [] as [String; 0]);
    assert_eq!(
        differences(&before, &snapshot(store.path()).unwrap()),
        [] as [String; 0]
    );
}

#[test]
fn a_store_on_a_read_only_file_system_is_mounted_read_only() {
    let store = sample();
    let bound = Bound::new(store.path());
    let Some(bound) = bound else { return };
    let before = snapshot(store.path()).unwrap();
    let mount = Mount::new(bound.path.path(), &[]);
    assert_eq!(changeable(&mount), [] as [String; 0]);
    drop(mount);
    assert_eq!(
        differences(&before, &snapshot(store.path()).unwrap()),
        [] as [String; 0]
    );
}

/// A read-only bind mount of a directory.
struct Bound {
    path: tempfile::TempDir,
}

impl Bound {
    /// Mounts `directory`. Returns `None`, and announces that the test is skipped, if this user
    /// cannot.
    fn new(directory: &Path) -> Option<Bound> {
        let bound = Bound {
            path: tempfile::tempdir().unwrap(),
        };
        let mount = |options: &str| {
            let done = Command::new("mount")
                .args(["-o", options])
                .arg(directory)
                .arg(bound.path.path())
                .output();
            done.is_ok_and(|output| output.status.success())
        };
        if mount("bind") && mount("remount,bind,ro") {
            return Some(bound);
        }
        announce("skipped: binding a directory takes root");
        None
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let _ = Command::new("umount")
            .arg("-l")
            .arg(self.path.path())
            .output();
    }
}
