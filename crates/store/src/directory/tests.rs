use super::resolve::{KEYS_PER_RESOLVE, may_open};
use super::*;
use crate::{Store, StoreExt};
use rustix::fs::{self, Mode};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};

fn get(store: &DirectoryStore, key: &str) -> Result<Option<Vec<u8>>> {
    let mut value = Vec::new();
    Ok(store
        .get(&Key::normalize(key).unwrap(), 100, &mut value)?
        .map(|_| value))
}

#[test]
fn values_and_names_are_those_of_files() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("a")).unwrap();
    std::fs::write(dir.path().join("a/k"), b"0123456789").unwrap();
    let store = DirectoryStore::open(dir.path()).unwrap();
    assert_eq!(get(&store, "a/k").unwrap().unwrap(), b"0123456789");
    assert_eq!(get(&store, "a/none").unwrap(), None);
    assert_eq!(get(&store, "a/k/below").unwrap(), None);
    assert!(get(&store, "a").is_err());
    let key = Key::normalize("a/k").unwrap();
    let mut part = Vec::new();
    store.get_range(&key, 8..20, &mut part).unwrap().unwrap();
    assert_eq!(part, b"89");
    store.get_range(&key, 30..40, &mut part).unwrap().unwrap();
    assert_eq!(part, b"");
    assert!(store.get(&key, 9, &mut part).is_err());
    let names: Vec<_> = store
        .list(&Key::root())
        .unwrap()
        .map(|e| e.unwrap())
        .collect();
    assert_eq!(names, [Entry::new("a", EntryKind::Prefix)]);
}

#[test]
fn nothing_leads_out_of_the_store_or_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let inside = dir.path().join("s");
    std::fs::create_dir(&inside).unwrap();
    std::fs::write(dir.path().join("secret"), b"x").unwrap();
    std::fs::write(inside.join("good"), b"y").unwrap();
    symlink("../secret", inside.join("out")).unwrap();
    symlink(dir.path().join("secret"), inside.join("absolute")).unwrap();
    symlink("good", inside.join("in")).unwrap();
    symlink("loop", inside.join("loop")).unwrap();
    fs::mknodat(fs::CWD, inside.join("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    let store = DirectoryStore::open(&inside).unwrap();
    assert_eq!(get(&store, "in").unwrap().unwrap(), b"y");
    assert_eq!(get(&store, "out").unwrap_err().errno(), libc::EACCES);
    assert_eq!(get(&store, "absolute").unwrap_err().errno(), libc::EACCES);
    assert_eq!(get(&store, "loop").unwrap_err().errno(), libc::ELOOP);
    assert_eq!(get(&store, "fifo").unwrap_err().errno(), libc::EIO);
    let names = store.list(&Key::root()).unwrap().map(|e| e.unwrap());
    let (mut refused, mut good): (Vec<_>, Vec<_>) = names.partition(|e| e.kind == EntryKind::Other);
    refused.sort_by(|a, b| a.name.cmp(&b.name));
    good.sort_by(|a, b| a.name.cmp(&b.name));
    let names = |list: Vec<Entry>| list.into_iter().map(|e| e.name).collect::<Vec<_>>();
    assert_eq!(names(refused), ["absolute", "fifo", "loop", "out"]);
    assert_eq!(names(good), ["good", "in"]);
}

/// A name that no file system supports does not exist, and cannot be created.
#[test]
fn a_name_that_is_too_long_does_not_exist() {
    let dir = tempfile::tempdir().unwrap();
    let store = DirectoryStore::open(dir.path()).unwrap();
    let long = "x".repeat(256);
    for path in [long.clone(), format!("{long}/.zarray"), format!("a/{long}")] {
        let key = Key::normalize(&path).unwrap();
        assert!(
            store.stat(&key).unwrap().is_none() && get(&store, &path).unwrap().is_none(),
            "{path}"
        );
        assert_eq!(
            store.put(&key, b"x").unwrap_err().errno(),
            libc::ENAMETOOLONG,
            "{path}"
        );
    }
    // a path that is too long as a whole may still exist
    let deep = "d/".repeat(3000) + "x";
    assert_eq!(
        store
            .stat(&Key::normalize(&deep).unwrap())
            .unwrap_err()
            .errno(),
        libc::ENAMETOOLONG
    );
}

/// Returns the results of `stat_many` as texts: the error, `-` for a missing key, or kind and size.
/// Checks that `stat` agrees.
fn many(store: &DirectoryStore, keys: &[&str]) -> Vec<String> {
    let keys: Vec<Key> = keys.iter().map(|k| Key::normalize(k).unwrap()).collect();
    let mut said = Vec::new();
    store.stat_many(&mut keys.iter().cloned(), &mut |stat| {
        let one = store.stat(&keys[said.len()]);
        assert_eq!(stat.as_ref().ok(), one.as_ref().ok());
        said.push(match stat {
            Err(e) => format!("{}", std::io::Error::from_raw_os_error(e.errno()).kind()),
            Ok(stat) => stat.map_or("-".into(), |s| format!("{:?} {}", s.kind, s.size)),
        });
        true
    });
    said
}

#[test]
fn stat_many_agrees_with_stat() {
    let dir = tempfile::tempdir().unwrap();
    let inside = dir.path().join("s");
    std::fs::create_dir_all(inside.join("a/0/1")).unwrap();
    std::fs::write(dir.path().join("secret"), b"x").unwrap();
    for (name, bytes) in [
        ("a/0.0", "1"),
        ("a/0/0", "22"),
        ("a/0/1/2", "333"),
        ("file", "4444"),
    ] {
        std::fs::write(inside.join(name), bytes).unwrap();
    }
    symlink("0.0", inside.join("a/link")).unwrap();
    symlink("../../secret", inside.join("a/out")).unwrap();
    symlink("nowhere", inside.join("a/dangling")).unwrap();
    symlink("a", inside.join("b")).unwrap();
    symlink("..", inside.join("up")).unwrap();
    let store = DirectoryStore::open(&inside).unwrap();
    let said = many(
        &store,
        &[
            "a/0.0",
            "a/none",
            "a/link",
            "a/out",
            "a/dangling",
            "a/0/0",
            "a/0/1/2",
            "a/0.0",
        ],
    );
    assert_eq!(
        said,
        [
            "Value 1",
            "-",
            "Value 1",
            "permission denied",
            "-",
            "Value 2",
            "Value 3",
            "Value 1"
        ]
    );
    // no parent, a parent that is a file, one behind a link, one out of the store
    let said = many(
        &store,
        &[
            "none/x",
            "none/y",
            "file/x",
            "file",
            "b/0.0",
            "b/link",
            "up/secret",
            "up/secret",
        ],
    );
    let denied = "permission denied";
    assert_eq!(
        said,
        [
            "-", "-", "-", "Value 4", "Value 1", "Value 1", denied, denied
        ]
    );
    assert!(
        many(&store, &["", "a"])
            .iter()
            .all(|s| s.starts_with("Prefix"))
    );
    let mut asked = 0;
    store.stat_many(&mut std::iter::repeat_n(Key::root(), 10), &mut |_| {
        asked += 1;
        asked < 3
    });
    assert_eq!(asked, 3);
}

/// A link grants no more than the directories that it skips, also to a caller that reads.
#[test]
fn a_read_returns_the_stat_of_its_value() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("a")).unwrap();
    std::fs::write(dir.path().join("a/k"), "1").unwrap();
    symlink("k", dir.path().join("a/link")).unwrap();
    symlink("a", dir.path().join("b")).unwrap();
    symlink("a/k", dir.path().join("c")).unwrap();
    let hidden = std::fs::Permissions::from_mode(0o700);
    std::fs::set_permissions(dir.path().join("a"), hidden).unwrap();
    let store = DirectoryStore::open(dir.path()).unwrap();
    for name in ["a/k", "a/link", "b/k", "b/link", "c"] {
        let key = Key::root().join(name);
        let read = store.read(&key, &ByteRange::Whole(10), &mut Vec::new());
        assert_eq!(read.unwrap(), store.stat(&key).unwrap(), "{name}");
    }
}

#[test]
fn a_replaced_directory_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    std::fs::create_dir(path("a")).unwrap();
    std::fs::write(path("a/k"), b"1").unwrap();
    let store = DirectoryStore::open(dir.path()).unwrap();
    let keys = std::iter::repeat_n(Key::normalize("a/k").unwrap(), 10_000);
    let mut sizes = Vec::new();
    store.stat_many(&mut keys.into_iter(), &mut |stat| {
        if sizes.is_empty() {
            std::fs::rename(path("a"), path("old")).unwrap();
            std::fs::create_dir(path("a")).unwrap();
            std::fs::write(path("a/k"), b"22").unwrap();
        }
        sizes.push(stat.unwrap().unwrap().size);
        true
    });
    assert_eq!(
        (sizes[0], sizes[KEYS_PER_RESOLVE as usize], sizes.last()),
        (1, 2, Some(&2))
    );
}

#[test]
fn links_to_directories_are_listed_one_level_deep() {
    let dir = tempfile::tempdir().unwrap();
    symlink(".", dir.path().join("a")).unwrap();
    symlink(".", dir.path().join("b")).unwrap();
    std::fs::create_dir(dir.path().join("c")).unwrap();
    let store = DirectoryStore::open(dir.path()).unwrap();
    let prefixes = |key: &str| {
        let list = store
            .list(&Key::normalize(key).unwrap())
            .unwrap()
            .map(|e| e.unwrap());
        let mut names: Vec<_> = list
            .filter(|e| e.kind == EntryKind::Prefix)
            .map(|e| e.name)
            .collect();
        names.sort();
        names
    };
    assert_eq!(prefixes(""), ["a", "b", "c"]);
    assert_eq!(prefixes("a"), ["c"]);
    assert_eq!(prefixes("a/b"), ["c"]);
}

#[test]
fn the_version_reveals_a_replaced_value() {
    let dir = tempfile::tempdir().unwrap();
    let store = DirectoryStore::open(dir.path()).unwrap();
    let key = Key::normalize("k").unwrap();
    std::fs::write(dir.path().join("k"), b"1").unwrap();
    let before = store.stat(&key).unwrap().unwrap().version;
    assert_eq!(store.stat(&key).unwrap().unwrap().version, before);
    std::fs::write(dir.path().join("k.tmp"), b"2").unwrap();
    std::fs::rename(dir.path().join("k.tmp"), dir.path().join("k")).unwrap();
    assert_ne!(store.stat(&key).unwrap().unwrap().version, before);
}

fn key(name: &str) -> Key {
    Key::normalize(name).unwrap()
}

/// Returns the names in the root directory, including temporary files.
fn names(path: &Path) -> Vec<String> {
    let mut names: Vec<_> = std::fs::read_dir(path)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_new_value_keeps_mode_and_owner() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let dir = tempfile::tempdir().unwrap();
    let store = DirectoryStore::open(dir.path()).unwrap();
    let path = dir.path().join("a/b/k");
    let first = store.put(&key("a/b/k"), b"first").unwrap();
    let reader = std::fs::File::open(&path).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        std::os::unix::fs::chown(&path, Some(12), Some(34)).unwrap();
    }
    let second = store.put(&key("a/b/k"), b"second").unwrap();
    assert_ne!(first, second);
    assert_eq!(store.stat(&key("a/b/k")).unwrap().unwrap().version, second);
    assert_eq!(std::io::read_to_string(reader).unwrap(), "first");
    let metadata = std::fs::metadata(&path).unwrap();
    assert_eq!(metadata.mode() & 0o7777, 0o640);
    assert!(!is_root || (metadata.uid(), metadata.gid()) == (12, 34));
    assert_eq!(names(&dir.path().join("a/b")), ["k"]);
    store.sync().unwrap();
}

#[test]
fn modes_permit_to_open_a_file_for_what_they_say() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let mode = |path: &std::path::Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let path = dir.path().join("k");
    std::fs::write(&path, b"x").unwrap();
    mode(&path, 0o444);
    mode(dir.path(), 0o755);
    let root = std::fs::File::open(dir.path()).unwrap().into();
    let checks = std::thread::spawn(move || {
        // SAFETY: the call takes a number alone. It takes the rights of root from this thread.
        unsafe { libc::syscall(libc::SYS_setfsuid, 65534) };
        let flags = [OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR];
        flags.map(|flags| may_open(&root, "k", flags))
    });
    assert_eq!(checks.join().unwrap(), [true, false, false]);
}

#[test]
fn links_inside_the_store_are_kept_and_none_leads_out() {
    let dir = tempfile::tempdir().unwrap();
    let inside = dir.path().join("s");
    std::fs::create_dir_all(inside.join("a/b")).unwrap();
    for name in ["secret", "s/a/target"] {
        std::fs::write(dir.path().join(name), b"x").unwrap();
    }
    for (to, name) in [
        ("../target", "a/b/in"),
        ("b/in", "a/twice"),
        ("new", "a/dangling"),
        ("../../secret", "a/out"),
        ("../..", "a/up"),
        ("loop", "a/loop"),
        ("b/", "a/directory"),
    ] {
        symlink(to, inside.join(name)).unwrap();
    }
    symlink(dir.path().join("secret"), inside.join("a/absolute")).unwrap();
    fs::mknodat(
        fs::CWD,
        inside.join("a/fifo"),
        FileType::Fifo,
        Mode::RUSR,
        0,
    )
    .unwrap();
    let store = DirectoryStore::open(&inside).unwrap();
    store.put(&key("a/twice"), b"y").unwrap();
    store.put(&key("a/dangling"), b"z").unwrap();
    assert_eq!(std::fs::read(inside.join("a/target")).unwrap(), b"y");
    assert_eq!(std::fs::read(inside.join("a/new")).unwrap(), b"z");
    assert!(inside.join("a/b/in").is_symlink() && inside.join("a/twice").is_symlink());
    let refused = |name: &str| store.put(&key(name), b"!").unwrap_err().errno();
    assert_eq!(
        ["a/out", "a/up/secret", "a/absolute"].map(refused),
        [libc::EACCES; 3]
    );
    assert_eq!(
        ["a/loop", "a/directory", "a/fifo", "a"].map(refused),
        [libc::ELOOP, libc::EISDIR, libc::EIO, libc::EISDIR]
    );
    let file = |name: &str| {
        store
            .writable_file(&key(name), true, false)
            .map(|_| ())
            .unwrap_err()
            .errno()
    };
    assert_eq!(
        ["a/out", "a/absolute", "a/fifo", "a"].map(file),
        [libc::EACCES, libc::EACCES, libc::EIO, libc::EISDIR]
    );
    assert!(
        store.delete(&key("a/up/secret")).is_err() && store.make_prefix(&key("a/up/x")).is_err()
    );
    assert!(store.rename(&key("a/new"), &key("a/up/new")).is_err());
    // a link is removed, not its target
    assert!(store.delete(&key("a/out")).unwrap() && !store.delete(&key("a/out")).unwrap());
    assert_eq!(std::fs::read(dir.path().join("secret")).unwrap(), b"x");
    assert_eq!(names(dir.path()), ["s", "secret"]);
    store.sync().unwrap();
}

#[test]
fn temporary_names_of_others_are_neither_used_nor_listed() {
    let dir = tempfile::tempdir().unwrap();
    let store = DirectoryStore::open(dir.path()).unwrap();
    let process = std::process::id();
    for n in 0..900 {
        std::fs::write(dir.path().join(format!(".zarrfs-{process}-{n}")), b"other").unwrap();
    }
    for name in [".zarrfs-1", ".zarrfs-x-1"] {
        std::fs::write(dir.path().join(name), b"").unwrap();
    }
    store.put(&key("k"), b"1").unwrap();
    let mut listed: Vec<_> = store
        .list(&Key::root())
        .unwrap()
        .map(|e| e.unwrap().name)
        .collect();
    listed.sort();
    assert_eq!(listed, [".zarrfs-1", ".zarrfs-x-1", "k"]);
    assert_eq!(
        std::fs::read(dir.path().join(format!(".zarrfs-{process}-899"))).unwrap(),
        b"other"
    );
    assert_eq!(names(dir.path()).len(), 903);
}

#[test]
fn a_file_can_be_written_in_place() {
    let dir = tempfile::tempdir().unwrap();
    let store = DirectoryStore::open(dir.path()).unwrap();
    let open = |create, exclusive| store.writable_file(&key("k"), create, exclusive);
    assert_eq!(open(false, false).unwrap_err().errno(), libc::ENOENT);
    open(true, true).unwrap().write_at(b"abc", 0).unwrap();
    assert_eq!(open(true, true).unwrap_err().errno(), libc::EEXIST);
    open(true, false).unwrap().write_at(b"x", 1).unwrap();
    open(false, false).unwrap().write_at(b"y", 2).unwrap();
    assert_eq!(get(&store, "k").unwrap().unwrap(), b"axy");
    assert_eq!(
        store
            .writable_file(&key("none/k"), true, false)
            .unwrap_err()
            .errno(),
        libc::ENOENT
    );
    store.sync().unwrap();
}

#[test]
fn changed_directories_are_synced_after_renames() {
    let dir = tempfile::tempdir().unwrap();
    let store = DirectoryStore::open(dir.path()).unwrap();
    for name in ["a/b/k", "c/k", "d/k", "e/k"] {
        store.put(&key(name), b"1").unwrap();
    }
    store.rename(&key("a"), &key("z")).unwrap();
    assert_eq!(store.changed(), ["", "c", "d", "e", "z", "z/b"]);
    store.delete(&key("c/k")).unwrap();
    store.remove_prefix(&key("c")).unwrap();
    assert_eq!(store.changed(), ["", "d", "e", "z", "z/b"]);
    // another process replaces the directory
    std::fs::rename(dir.path().join("d"), dir.path().join("moved")).unwrap();
    std::fs::create_dir(dir.path().join("d")).unwrap();
    // a failed sync is tried again
    std::fs::rename(dir.path().join("e"), dir.path().join("kept")).unwrap();
    symlink("/", dir.path().join("e")).unwrap();
    assert_eq!(
        store.sync().unwrap_err().to_string(),
        "/e: a symbolic link leads out of the store"
    );
    assert_eq!(store.changed(), ["e"]);
    std::fs::remove_file(dir.path().join("e")).unwrap();
    store.sync().unwrap();
    assert!(store.changed().is_empty());
}

#[test]
fn the_changes_of_an_earlier_process_are_synced_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = DirectoryStore::open(dir.path()).unwrap();
    let store = store.with_earlier_changes();
    store.put(&key("k"), b"1").unwrap();
    assert_eq!(store.changed(), ["", ""]);
    store.sync().unwrap();
    assert!(store.changed().is_empty());
}

#[test]
fn the_number_of_recorded_directories_is_bounded() {
    let dir = tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap();
    let store = DirectoryStore::open(dir.path()).unwrap();
    for i in 0..write::MAX_CHANGED + 10 {
        std::fs::create_dir(dir.path().join(i.to_string())).unwrap();
        store
            .writable_file(&key(&format!("{i}/k")), true, true)
            .unwrap();
    }
    assert_eq!(store.changed().len(), 10);
}

/// A file system that is unmounted when dropped.
struct Tmpfs(tempfile::TempDir);

impl Tmpfs {
    /// Returns `None` if mounting is not permitted.
    fn mount(options: &std::ffi::CStr) -> Option<Self> {
        use rustix::mount::{MountFlags, mount};
        let dir = tempfile::tempdir().unwrap();
        match mount("tmpfs", dir.path(), "tmpfs", MountFlags::empty(), options) {
            Ok(()) => Some(Tmpfs(dir)),
            Err(e) => {
                eprintln!("skipped: a tmpfs can't be mounted: {e}");
                None
            }
        }
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0.path(), rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
fn a_full_disk_leaves_only_the_old_value() {
    let Some(tmpfs) = Tmpfs::mount(c"size=256k") else {
        return;
    };
    let store = DirectoryStore::open(tmpfs.0.path()).unwrap();
    store.put(&key("a/k"), &[1; 100_000]).unwrap();
    let error = store.put(&key("a/k"), &[2; 200_000]).unwrap_err();
    assert_eq!(error.errno(), libc::ENOSPC);
    assert_eq!(
        std::fs::read(tmpfs.0.path().join("a/k")).unwrap(),
        [1; 100_000]
    );
    assert_eq!(names(&tmpfs.0.path().join("a")), ["k"]);
    store.put(&key("a/k"), &[3; 100_000]).unwrap();
    store.sync().unwrap();
}

#[test]
fn a_read_only_file_system_is_not_writable() {
    let Some(tmpfs) = Tmpfs::mount(c"size=256k") else {
        return;
    };
    let store = DirectoryStore::open(tmpfs.0.path()).unwrap();
    store.put(&key("a/k"), b"1").unwrap();
    assert!(store.is_writable() && store.check_writable(&key("a")).is_ok());
    rustix::mount::mount_remount(tmpfs.0.path(), rustix::mount::MountFlags::RDONLY, c"").unwrap();
    assert!(!store.is_writable());
    assert_eq!(
        store.check_writable(&key("a")).unwrap_err().errno(),
        libc::EROFS
    );
    assert_eq!(
        store.put(&key("a/k"), b"2").unwrap_err().errno(),
        libc::EROFS
    );
    assert_eq!(
        store.check_writable(&key("none")).unwrap_err().errno(),
        libc::ENOENT
    );
}

#[test]
fn prefixes_are_exchanged_with_everything_below_them() {
    let folder = tempfile::tempdir().unwrap();
    let store = DirectoryStore::open(folder.path()).unwrap();
    let [one, other] = ["one", "a/other"].map(|path| Key::root().join(path));
    store.put(&one.join("x"), b"1").unwrap();
    store.put(&other.join("y/z"), b"2").unwrap();
    store.exchange(&one, &other).unwrap();
    let read = |path: &str| std::fs::read(folder.path().join(path)).unwrap();
    assert_eq!(
        (read("a/other/x"), read("one/y/z")),
        (b"1".into(), b"2".into())
    );
    store.sync().unwrap();
    let missing = store.exchange(&one, &Key::root().join("b"));
    assert_eq!(missing.unwrap_err().errno(), libc::ENOENT);
}
