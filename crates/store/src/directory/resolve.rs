//! Resolution of keys to files below the root of a directory store. Names are opened with
//! `RESOLVE_BENEATH`, so none leads out of the store. This module does not read values.

use super::DirectoryStore;
use crate::outside;
use crate::{EntryKind, Key, Permissions, Readable, Stat, Version};
use rustix::fs::{self, Access, AtFlags, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};
use zarrfs_base::error::{Error, Kind, REFUSED, Result, is_sandboxed};

/// Number of keys looked up in an open directory before its path is resolved again, since it may
/// have been renamed.
pub(super) const KEYS_PER_RESOLVE: u32 = 1024;

/// A directory of the store that stays open while several of its keys are looked up.
pub(super) struct OpenDirectory {
    path: String,
    /// `None` if the directory does not exist.
    directory: Option<OwnedFd>,
    /// Permissions of the directories that a symbolic link skipped; see [`open_seen`].
    skipped: Option<Permissions>,
    /// Number of keys that may still be looked up before the path is resolved again.
    left: u32,
}

impl DirectoryStore {
    /// Returns the metadata of `key`. Uses `level` if it is the directory of `key`, and replaces it
    /// otherwise.
    pub(super) fn stat_in(
        &self,
        key: &Key,
        level: &mut Option<OpenDirectory>,
    ) -> Result<Option<Stat>> {
        if key.is_root() {
            return self.stat(key);
        }
        let (parent, name) = key.as_str().rsplit_once('/').unwrap_or(("", key.as_str()));
        if !level
            .as_ref()
            .is_some_and(|l| l.left > 0 && l.path == parent)
        {
            let opened = self.root.find(parent, |root| {
                open_seen(root, parent, OFlags::PATH | OFlags::DIRECTORY)
            })?;
            let (directory, skipped) = opened.map_or((None, None), |(directory, skipped)| {
                (Some(directory), skipped)
            });
            *level = Some(OpenDirectory {
                path: parent.to_string(),
                directory,
                skipped,
                left: KEYS_PER_RESOLVE,
            });
        }
        let Some(level) = level else {
            return self.stat(key);
        };
        level.left -= 1;
        let Some(directory) = &level.directory else {
            return Ok(None);
        };
        match stat_child(directory, name) {
            Some(stat) => Ok(stat.map(|stat| stat.restricted(level.skipped))),
            None => self.stat(key),
        }
    }
}

/// Returns the kind of entry that a symbolic link leads to, or `None` if its target does not exist.
/// A link that leads out of the store is not followed and counts as [`EntryKind::Other`]. So does a
/// link to a directory below another such link: two links to their own directory would make
/// listings endless.
pub(super) fn kind_behind(root: &OwnedFd, prefix: &Key, name: &str) -> Option<EntryKind> {
    let key = prefix.join(name);
    match open_beneath(root, key.as_str(), OFlags::PATH)
        .and_then(|fd| fd.map(|fd| stat_of(&fd)).transpose())
    {
        Ok(Some(stat)) if stat.kind == EntryKind::Prefix && goes_through_link(root, prefix) => {
            Some(EntryKind::Other)
        }
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

/// `PATH_MAX`: maximum length of a path that the kernel accepts, in bytes.
const MAX_PATH: usize = 4096;

/// Opens `path` below `root`. Returns `None` if it definitely does not exist.
pub(super) fn open_beneath(root: &OwnedFd, path: &str, flags: OFlags) -> Result<Option<OwnedFd>> {
    create_beneath(root, path, flags, Mode::empty())
}

/// Opens `path` below `root`; `mode` is that of a new file, if `flags` permit to create one.
pub(super) fn create_beneath(
    root: &OwnedFd,
    path: &str,
    flags: OFlags,
    mode: Mode,
) -> Result<Option<OwnedFd>> {
    let path = if path.is_empty() { "." } else { path };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    // the kernel may return EAGAIN while any directory of the file system is renamed
    for _ in 0..100 {
        match outside::open(root, path, flags | OFlags::CLOEXEC, mode, resolve) {
            Ok(fd) => return Ok(Some(fd)),
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            // a component is longer than any file system allows; a path that is only too long as a
            // whole may exist
            Err(Errno::NAMETOOLONG) if !flags.contains(OFlags::CREATE) && path.len() < MAX_PATH => {
                return Ok(None);
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(Errno::XDEV) => return Err(leads_out()),
            Err(Errno::ACCESS) if is_sandboxed() && may_open(root, path, flags) => {
                return Err(Error::denied(REFUSED));
            }
            Err(Errno::NXIO) => return Err(Error::damaged("is not a regular file")),
            Err(e) => return Err(e.into()),
        }
    }
    Err(Error::system(libc::EAGAIN))
}

/// Returns whether modes and access control lists permit to open an existing file.
pub(super) fn may_open(root: &OwnedFd, path: &str, flags: OFlags) -> bool {
    let access = if flags.contains(OFlags::RDWR) {
        Access::READ_OK | Access::WRITE_OK
    } else if flags.contains(OFlags::WRONLY) {
        Access::WRITE_OK
    } else {
        Access::READ_OK
    };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let opened = fs::openat2(root.as_fd(), path, flags, Mode::empty(), resolve);
    opened.is_ok_and(|file| {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        fs::accessat(fs::CWD, path, access, AtFlags::EACCESS).is_ok()
    })
}

pub(super) fn leads_out() -> Error {
    Error::new(
        Kind::System(libc::EACCES),
        "a symbolic link leads out of the store",
    )
}

/// Opens `path` below `root`; `flags` create no file. If a symbolic link led to the file, also
/// returns the permissions of the directories that the link skipped, since a link must not reveal
/// files that they hide.
pub(super) fn open_seen(
    root: &OwnedFd,
    path: &str,
    flags: OFlags,
) -> Result<Option<(OwnedFd, Option<Permissions>)>> {
    let plain = if path.is_empty() { "." } else { path };
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    match fs::openat2(
        root.as_fd(),
        plain,
        flags | OFlags::CLOEXEC,
        Mode::empty(),
        resolve,
    ) {
        Ok(fd) => Ok(Some((fd, None))),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        // `open_beneath` follows the link and classifies other errors
        Err(_) => Ok(open_beneath(root, path, flags)?.map(|fd| {
            let skipped = permissions_between(root, &fd).unwrap_or(Permissions::OWNER_ONLY);
            (fd, Some(skipped))
        })),
    }
}

/// Returns the metadata of `path` below `root`, and hides what [`open_seen`] hides from a program.
pub(super) fn stat_seen(root: &OwnedFd, path: &str) -> Result<Option<Stat>> {
    if path.is_empty() {
        return stat_of(root).map(Some);
    }
    if !path.contains('/')
        && let Some(stat) = stat_child(root, path)
    {
        return Ok(stat);
    }
    let Some((fd, skipped)) = open_seen(root, path, OFlags::PATH)? else {
        return Ok(None);
    };
    Ok(Some(stat_of(&fd)?.restricted(skipped)))
}

/// Returns the metadata of the file `name` in a directory, or `Some(None)` if there is none.
/// Returns `None` for a symbolic link, and after errors that [`open_seen`] classifies.
fn stat_child(directory: &OwnedFd, name: &str) -> Option<Option<Stat>> {
    match fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => Some(None),
        Ok(s) if FileType::from_raw_mode(s.st_mode) != FileType::Symlink => {
            Some(Some(stat_from(&s)))
        }
        _ => None,
    }
}

/// Returns the path of an open file.
pub(super) fn path_of(fd: &OwnedFd) -> std::io::Result<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

/// Returns the permissions to search all directories between the root of the store and an open
/// file, or `None` if the kernel does not report the file's path.
fn permissions_between(root: &OwnedFd, file: &OwnedFd) -> Option<Permissions> {
    let path = path_of(file).ok()?;
    let below = path.strip_prefix(path_of(root).ok()?).ok()?;
    let mut granted = stat_of(root).ok()?.permissions?.search();
    for directory in below
        .ancestors()
        .skip(1)
        .filter(|path| !path.as_os_str().is_empty())
    {
        let stat = fs::statat(root, directory, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        granted = granted.and(stat_from(&stat).permissions?.search());
    }
    Some(granted)
}

/// Returns the metadata of an open file.
pub fn stat_of(fd: impl AsFd) -> Result<Stat> {
    Ok(stat_from(&fs::statat(fd, "", AtFlags::EMPTY_PATH)?))
}

pub(super) fn stat_from(s: &fs::Stat) -> Stat {
    let kind = match FileType::from_raw_mode(s.st_mode) {
        FileType::RegularFile => EntryKind::Value,
        FileType::Directory => EntryKind::Prefix,
        _ => EntryKind::Other,
    };
    let version = Version::File {
        device: s.st_dev,
        inode: s.st_ino,
        modified: nanos(s.st_mtime, s.st_mtime_nsec),
        changed: nanos(s.st_ctime, s.st_ctime_nsec),
        size: s.st_size as u64,
    };
    let permissions = Some(Permissions::new(s.st_mode, s.st_uid, s.st_gid));
    Stat {
        kind,
        size: s.st_size as u64,
        modified: time(s.st_mtime, s.st_mtime_nsec),
        version,
        permissions,
    }
}

fn nanos(sec: i64, nsec: u64) -> i128 {
    i128::from(sec) * 1_000_000_000 + i128::from(nsec)
}

fn time(sec: i64, nsec: u64) -> SystemTime {
    let whole = Duration::from_secs(sec.unsigned_abs());
    let base = if sec < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(whole)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(whole)
    };
    base.and_then(|t| t.checked_add(Duration::from_nanos(nsec)))
        .unwrap_or(SystemTime::UNIX_EPOCH)
}
