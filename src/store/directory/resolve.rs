//! From keys to what the kernel finds below the root: opened with `RESOLVE_BENEATH`, so that no name leads out of the
//! store, and described. It knows nothing of values.

use super::DirectoryStore;
use crate::error::{Error, Kind, Result};
use crate::store::{EntryKind, Key, Stat, Store, Version};
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, SystemTime};

/// Keys looked at in one directory before its path is resolved again: it may have been renamed meanwhile.
pub(super) const KEYS_PER_RESOLVE: u32 = 1024;

/// A directory of the store, held open while one key after another is looked at in it.
pub(super) struct Level {
    path: String,
    /// None if there is no such directory.
    directory: Option<OwnedFd>,
    /// How many more keys may be looked at.
    left: u32,
}

impl DirectoryStore {
    /// As [`Store::stat`], by way of `level` if that is the directory of `key`, and leaving it there for the next key.
    pub(super) fn stat_near(&self, key: &Key, level: &mut Option<Level>) -> Result<Option<Stat>> {
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

/// What a symbolic link leads to; None for one that leads nowhere. A link that leads out of the store is refused, and
/// so is one to a directory if it stands below another such link: two links to their own directory would make listings
/// without end.
pub(super) fn kind_behind(root: &OwnedFd, prefix: &Key, name: &str) -> Option<EntryKind> {
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
pub(super) fn open_beneath(root: &OwnedFd, path: &str, flags: OFlags) -> Result<Option<OwnedFd>> {
    create_beneath(root, path, flags, Mode::empty())
}

/// As [`open_beneath`], with the mode of a file that `flags` have made.
pub(super) fn create_beneath(root: &OwnedFd, path: &str, flags: OFlags, mode: Mode) -> Result<Option<OwnedFd>> {
    let path = if path.is_empty() { "." } else { path };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    // a rename elsewhere in the tree can make the kernel answer EAGAIN
    for _ in 0..100 {
        match fs::openat2(root.as_fd(), path, flags | OFlags::CLOEXEC, mode, resolve) {
            Ok(fd) => return Ok(Some(fd)),
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(Errno::XDEV) => return Err(leads_out()),
            Err(Errno::NXIO) => return Err(Error::damaged("is not a regular file")),
            Err(e) => return Err(e.into()),
        }
    }
    Err(Error::system(libc::EAGAIN))
}

pub(super) fn leads_out() -> Error {
    Error::new(Kind::System(libc::EACCES), "a symbolic link leads out of the store")
}

/// What an open file is.
pub(in crate::store) fn stat_of(fd: impl AsFd) -> Result<Stat> {
    Ok(stat_from(&fs::statat(fd, "", AtFlags::EMPTY_PATH)?))
}

pub(super) fn stat_from(s: &fs::Stat) -> Stat {
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
