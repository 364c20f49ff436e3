//! A store in a directory of the local file system: a key is a path below it. Names are resolved by the kernel with
//! `RESOLVE_BENEATH`, so that neither `..` nor a symbolic link leads out of the store, also not in a race; anything but
//! a regular file is refused before it could block.

use super::{Entry, EntryKind, Key, Listing, Stat, Store, Version};
use crate::error::{Error, Kind, Result};
use crate::memory;
use rustix::fs::{self, AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

/// Keys looked at in one directory before its path is resolved again: it may have been renamed meanwhile.
const KEYS_PER_RESOLVE: u32 = 1024;

/// A store in a directory.
pub struct DirectoryStore {
    root: Arc<OwnedFd>,
    path: PathBuf,
    /// Warn once of names that can't be keys.
    warned: Arc<AtomicBool>,
}

impl DirectoryStore {
    /// Opens the directory at `path`; it stays the store even if the path is mounted over or renamed later.
    pub fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = fs::open(path, flags, Mode::empty()).map_err(|e| Error::from(e).context(path.display()))?;
        open_beneath(&root, "", OFlags::PATH).map_err(|e| match e.errno() {
            libc::ENOSYS | libc::EPERM => Error::unsupported(
                "the system call openat2 is not available: Linux 5.6 or later is needed, and a container must allow it",
            ),
            _ => e.context(path.display()),
        })?;
        Ok(DirectoryStore { root: Arc::new(root), path: path.to_path_buf(), warned: Arc::default() })
    }

    fn open_value(&self, key: &Key) -> Result<Option<(File, Stat)>> {
        // a FIFO would block an open without NONBLOCK
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let Some(fd) = open_beneath(&self.root, key.as_str(), flags)? else { return Ok(None) };
        let stat = stat_of(&fd)?;
        match stat.kind {
            EntryKind::Value => Ok(Some((File::from(fd), stat))),
            EntryKind::Prefix => Err(Error::damaged("is a directory, not a file")),
            EntryKind::Other => Err(Error::damaged("is not a regular file")),
        }
    }
}

/// A directory of the store, held open while one key after another is looked at in it.
struct Level {
    path: String,
    /// None if there is no such directory.
    directory: Option<OwnedFd>,
    /// How many more keys may be looked at.
    left: u32,
}

impl DirectoryStore {
    /// As [`Store::stat`], by way of `level` if that is the directory of `key`, and leaving it there for the next key.
    fn stat_near(&self, key: &Key, level: &mut Option<Level>) -> Result<Option<Stat>> {
        if key.is_root() {
            return self.stat(key);
        }
        let (parent, name) = key.as_str().rsplit_once('/').unwrap_or(("", key.as_str()));
        if !level.as_ref().is_some_and(|l| l.left > 0 && l.path == parent) {
            let directory = open_beneath(&self.root, parent, OFlags::PATH | OFlags::DIRECTORY)?;
            *level = Some(Level { path: parent.to_string(), directory, left: KEYS_PER_RESOLVE });
        }
        let Some(level) = level else { return self.stat(key) };
        level.left -= 1;
        let Some(directory) = &level.directory else { return Ok(None) };
        match fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => Ok(None),
            Ok(s) if FileType::from_raw_mode(s.st_mode) != FileType::Symlink => Ok(Some(stat_from(&s))),
            // where a link leads is not for this call to find out, nor what an error means
            _ => self.stat(key),
        }
    }
}

impl Store for DirectoryStore {
    fn get(&self, key: &Key, limit: u64, value: &mut Vec<u8>) -> Result<Option<Version>> {
        let Some((file, stat)) = self.open_value(key)? else { return Ok(None) };
        if stat.size > limit {
            return Err(Error::damaged(format!("{} bytes, more than the {limit} it may have", stat.size)));
        }
        // one byte more tells a file that grows from one that ends
        memory::reserve(value, stat.size as usize + 1)?;
        file.take(limit + 1).read_to_end(value)?;
        if value.len() as u64 > limit {
            return Err(Error::damaged(format!("more than the {limit} bytes it may have")));
        }
        Ok(Some(stat.version))
    }

    fn get_range(&self, key: &Key, range: Range<u64>, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        let Some((file, stat)) = self.open_value(key)? else { return Ok(None) };
        let want = range.end.min(stat.size).saturating_sub(range.start) as usize;
        memory::resize(value, want)?;
        let mut done = 0;
        while done < want {
            match file.read_at(&mut value[done..], range.start + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
        }
        value.truncate(done);
        Ok(Some(stat))
    }

    fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        open_beneath(&self.root, key.as_str(), OFlags::PATH)?.map(|fd| stat_of(&fd)).transpose()
    }

    fn stat_many(&self, keys: &mut dyn Iterator<Item = Key>, each: &mut dyn FnMut(Result<Option<Stat>>) -> bool) {
        let mut level: Option<Level> = None;
        for key in keys {
            if !each(self.stat_near(&key, &mut level)) {
                return;
            }
        }
    }

    fn list(&self, prefix: &Key) -> Result<Listing> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let Some(fd) = open_beneath(&self.root, prefix.as_str(), flags)? else {
            return Err(Error::not_found("no such directory"));
        };
        let (root, warned, prefix) = (self.root.clone(), self.warned.clone(), prefix.clone());
        let names = Dir::new(fd)?.filter_map(move |item| {
            let item = match item {
                Ok(item) => item,
                Err(e) => return Some(Err(e.into())),
            };
            let name = match item.file_name().to_str() {
                Ok("." | "..") => return None,
                Ok(name) => name,
                Err(_) => {
                    if !warned.swap(true, Ordering::Relaxed) {
                        log::warn!("{prefix}: names that are not UTF-8 are left out, {:?} first", item.file_name());
                    }
                    return None;
                }
            };
            let kind = match item.file_type() {
                FileType::RegularFile => EntryKind::Value,
                FileType::Directory => EntryKind::Prefix,
                FileType::Symlink | FileType::Unknown => kind_behind(&root, &prefix, name)?,
                _ => EntryKind::Other,
            };
            Some(Ok(Entry { name: name.to_string(), kind }))
        });
        Ok(Box::new(names))
    }

    fn file(&self, key: &Key) -> Result<Option<(File, Stat)>> {
        self.open_value(key)
    }

    fn location(&self) -> String {
        self.path.display().to_string()
    }
}

/// What a symbolic link leads to; None for one that leads nowhere. A link that leads out of the store is refused, and
/// so is one to a directory if it stands below another such link: two links to their own directory would make listings
/// without end.
fn kind_behind(root: &OwnedFd, prefix: &Key, name: &str) -> Option<EntryKind> {
    let key = prefix.join(name);
    match open_beneath(root, key.as_str(), OFlags::PATH).and_then(|fd| fd.map(|fd| stat_of(&fd)).transpose()) {
        Ok(Some(stat)) if stat.kind == EntryKind::Prefix && goes_through_link(root, prefix) => Some(EntryKind::Other),
        Ok(stat) => stat.map(|s| s.kind),
        Err(e) => {
            log::warn!("{key}: left out: {e}");
            Some(EntryKind::Other)
        }
    }
}

fn goes_through_link(root: &OwnedFd, key: &Key) -> bool {
    if key.is_root() {
        return false;
    }
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let opened = fs::openat2(root.as_fd(), key.as_str(), flags, Mode::empty(), resolve);
    opened.is_err_and(|e| e == Errno::LOOP)
}

/// Opens `path` below `root`; None if there is definitely nothing.
fn open_beneath(root: &OwnedFd, path: &str, flags: OFlags) -> Result<Option<OwnedFd>> {
    let path = if path.is_empty() { "." } else { path };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    // a rename elsewhere in the tree can make the kernel answer EAGAIN
    for _ in 0..100 {
        match fs::openat2(root.as_fd(), path, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
            Ok(fd) => return Ok(Some(fd)),
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(Errno::XDEV) => {
                return Err(Error::new(Kind::System(libc::EACCES), "a symbolic link leads out of the store"));
            }
            Err(Errno::NXIO) => return Err(Error::damaged("is not a regular file")),
            Err(e) => return Err(e.into()),
        }
    }
    Err(Error::system(libc::EAGAIN))
}

fn stat_of(fd: &OwnedFd) -> Result<Stat> {
    Ok(stat_from(&fs::statat(fd, "", AtFlags::EMPTY_PATH)?))
}

fn stat_from(s: &fs::Stat) -> Stat {
    let kind = match FileType::from_raw_mode(s.st_mode) {
        FileType::RegularFile => EntryKind::Value,
        FileType::Directory => EntryKind::Prefix,
        _ => EntryKind::Other,
    };
    let nanos = |sec: i64, nsec: u64| i128::from(sec) * 1_000_000_000 + i128::from(nsec);
    let version = Version::File {
        device: s.st_dev,
        inode: s.st_ino,
        modified: nanos(s.st_mtime, s.st_mtime_nsec),
        changed: nanos(s.st_ctime, s.st_ctime_nsec),
        size: s.st_size as u64,
    };
    Stat { kind, size: s.st_size as u64, modified: time(s.st_mtime, s.st_mtime_nsec), version }
}

fn time(sec: i64, nsec: u64) -> SystemTime {
    let whole = Duration::from_secs(sec.unsigned_abs());
    let base =
        if sec < 0 { SystemTime::UNIX_EPOCH.checked_sub(whole) } else { SystemTime::UNIX_EPOCH.checked_add(whole) };
    base.and_then(|t| t.checked_add(Duration::from_nanos(nsec))).unwrap_or(SystemTime::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn get(store: &DirectoryStore, key: &str) -> Result<Option<Vec<u8>>> {
        let mut value = Vec::new();
        Ok(store.get(&Key::normalize(key).unwrap(), 100, &mut value)?.map(|_| value))
    }

    #[test]
    fn values_and_names() {
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
        let names: Vec<_> = store.list(&Key::root()).unwrap().map(|e| e.unwrap()).collect();
        assert_eq!(names, [Entry { name: "a".into(), kind: EntryKind::Prefix }]);
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

    /// What `stat_many` says of `keys`: errno, nothing, or kind and size. It must be what `stat` says.
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
    fn many_keys_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let inside = dir.path().join("s");
        std::fs::create_dir_all(inside.join("a/0/1")).unwrap();
        std::fs::write(dir.path().join("secret"), b"x").unwrap();
        for (name, bytes) in [("a/0.0", "1"), ("a/0/0", "22"), ("a/0/1/2", "333"), ("file", "4444")] {
            std::fs::write(inside.join(name), bytes).unwrap();
        }
        symlink("0.0", inside.join("a/link")).unwrap();
        symlink("../../secret", inside.join("a/out")).unwrap();
        symlink("nowhere", inside.join("a/dangling")).unwrap();
        symlink("a", inside.join("b")).unwrap();
        symlink("..", inside.join("up")).unwrap();
        let store = DirectoryStore::open(&inside).unwrap();
        let said = many(&store, &["a/0.0", "a/none", "a/link", "a/out", "a/dangling", "a/0/0", "a/0/1/2", "a/0.0"]);
        assert_eq!(said, ["Value 1", "-", "Value 1", "permission denied", "-", "Value 2", "Value 3", "Value 1"]);
        // no parent, a parent that is a file, one behind a link, one out of the store
        let said = many(&store, &["none/x", "none/y", "file/x", "file", "b/0.0", "b/link", "up/secret", "up/secret"]);
        let denied = "permission denied";
        assert_eq!(said, ["-", "-", "-", "Value 4", "Value 1", "Value 1", denied, denied]);
        assert!(many(&store, &["", "a"]).iter().all(|s| s.starts_with("Prefix")));
        let mut asked = 0;
        store.stat_many(&mut std::iter::repeat_n(Key::root(), 10), &mut |_| {
            asked += 1;
            asked < 3
        });
        assert_eq!(asked, 3);
    }

    #[test]
    fn a_directory_that_is_replaced_shows_before_long() {
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
        assert_eq!((sizes[0], sizes[KEYS_PER_RESOLVE as usize], sizes.last()), (1, 2, Some(&2)));
    }

    #[test]
    fn links_to_directories_are_listed_one_deep() {
        let dir = tempfile::tempdir().unwrap();
        symlink(".", dir.path().join("a")).unwrap();
        symlink(".", dir.path().join("b")).unwrap();
        std::fs::create_dir(dir.path().join("c")).unwrap();
        let store = DirectoryStore::open(dir.path()).unwrap();
        let prefixes = |key: &str| {
            let list = store.list(&Key::normalize(key).unwrap()).unwrap().map(|e| e.unwrap());
            let mut names: Vec<_> = list.filter(|e| e.kind == EntryKind::Prefix).map(|e| e.name).collect();
            names.sort();
            names
        };
        assert_eq!(prefixes(""), ["a", "b", "c"]);
        assert_eq!(prefixes("a"), ["c"]);
        assert_eq!(prefixes("a/b"), ["c"]);
    }

    #[test]
    fn the_version_tells_a_replaced_value() {
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
}
