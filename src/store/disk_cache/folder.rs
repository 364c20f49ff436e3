//! The directory of a cache: files by the hash of their names in 256 levels, put there by a rename, within one bound of
//! bytes for all programs that use it. Nothing is forced to stable storage, and no symbolic link is followed. It knows
//! nothing of what is in the files.

use super::usage::{Evicting, Usage};
use crate::error::{Error, Result};
use rustix::fs::{self, AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Timespec, Timestamps};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// Our own level of the directory that was named: nothing beside it is touched. It ends with the version of the format.
const OWN: &str = "zarrfs-cache-1";

/// Names of files that are still written begin with this.
const TEMPORARY: &str = "new-";

/// After so long a file that is still written belongs to nobody any more.
const ABANDONED: Duration = Duration::from_secs(3600);

/// A file's time of last use is noted again after so long.
const NOTED: Duration = Duration::from_secs(60);

/// Bytes that the file systems give out at a time.
const UNIT: u64 = 4096;

/// Numbers temporary files.
static COUNTER: AtomicU64 = AtomicU64::new(0);

/// The directory of a cache.
pub(super) struct Folder {
    directory: OwnedFd,
    usage: Usage,
    /// Bytes of all files together.
    limit: u64,
}

/// A file found by a scan.
struct Found {
    used: SystemTime,
    room: u64,
    path: String,
}

impl Folder {
    /// The cache in `path`, which is made if it isn't there.
    pub fn open(path: &Path, limit: u64) -> Result<Self> {
        std::fs::create_dir_all(path)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = fs::open(path, flags, Mode::empty())?;
        match fs::mkdirat(&parent, OWN, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(e.into()),
        }
        let directory = fs::openat(&parent, OWN, flags | OFlags::NOFOLLOW, Mode::empty())?;
        let stat = fs::fstat(&directory)?;
        if stat.st_uid != rustix::process::geteuid().as_raw() || stat.st_mode & 0o077 != 0 {
            return Err(Error::system(libc::EACCES).context(format!("{OWN} in it must be yours alone (chmod 700)")));
        }
        let usage = Usage::open(&directory)?;
        let folder = Folder { directory, usage, limit };
        if folder.usage.get().is_none_or(|used| used > limit) {
            folder.make_room(0, "");
        }
        Ok(folder)
    }

    /// The largest file that is taken.
    pub fn largest(&self) -> u64 {
        self.limit / 4
    }

    /// The file of `hash`, if there is one.
    pub fn get(&self, hash: u64) -> Option<File> {
        self.open_file(&path_of(hash), OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).ok().map(File::from)
    }

    /// Notes that a file was used just now.
    pub fn note_use(&self, file: &File) {
        let is_noted = |modified: SystemTime| modified.elapsed().is_ok_and(|age| age < NOTED);
        if !file.metadata().and_then(|m| m.modified()).is_ok_and(is_noted) {
            let now = Timespec { tv_sec: 0, tv_nsec: fs::UTIME_NOW };
            // an old time only makes it go sooner
            let _ = fs::futimens(file, &Timestamps { last_access: now, last_modification: now });
        }
    }

    /// Makes what `write` writes, `size` bytes, the file of `hash`. False if there is no room for it now.
    pub fn put(&self, hash: u64, size: u64, write: impl FnOnce(&File) -> std::io::Result<()>) -> Result<bool> {
        let temporary = Temporary::make(self)?;
        // a scan counts it from the beginning
        fs::ftruncate(&temporary.file, size)?;
        if !self.reserve(room(size), &temporary.name) {
            return Ok(false);
        }
        let done = write(&temporary.file).map_err(Error::from).and_then(|()| self.rename(&temporary, hash));
        if done.is_err() {
            self.usage.change(|used| used.saturating_sub(room(size)));
        }
        done.map(|()| true)
    }

    /// Removes the file of `hash`.
    pub fn remove(&self, hash: u64) {
        let path = path_of(hash);
        self.usage.change(|used| match (self.room_of(&path), fs::unlinkat(&self.directory, &path, AtFlags::empty())) {
            (freed, Ok(())) => used.saturating_sub(freed),
            _ => used,
        });
    }

    fn rename(&self, temporary: &Temporary, hash: u64) -> Result<()> {
        let path = path_of(hash);
        match fs::mkdirat(&self.directory, &path[..2], Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(e.into()),
        }
        // under the lock: of two that replace the same file only one has it to count off
        let mut renamed = Err(Errno::AGAIN);
        self.usage.change(|used| {
            let freed = self.room_of(&path);
            renamed = fs::renameat(&self.directory, &temporary.name, &self.directory, &path);
            if renamed.is_ok() { used.saturating_sub(freed) } else { used }
        });
        Ok(renamed?)
    }

    /// Bytes of disk that a file takes; 0 if there is none.
    fn room_of(&self, path: &str) -> u64 {
        fs::statat(&self.directory, path, AtFlags::SYMLINK_NOFOLLOW).map_or(0, |stat| room(stat.st_size as u64))
    }

    /// Counts `room` bytes more, those of the file `own`, after removing others where there would be too many.
    fn reserve(&self, room: u64, own: &str) -> bool {
        let add = || self.usage.add_within(room, self.limit);
        add() || self.make_room(room, own) && add()
    }

    /// Removes the files used least recently until there is room for `more` bytes, and some. That of `own` is not yet
    /// counted. False if somebody else makes room just now.
    fn make_room(&self, more: u64, own: &str) -> bool {
        let Some(_evicting) = Evicting::begin(&self.directory) else { return false };
        let before = self.usage.get().unwrap_or(0);
        let mut found = self.scan();
        found.retain(|f| f.path != own);
        let there: u64 = found.iter().map(|f| f.room).sum();
        let (mut left, goal) = (there, (self.limit / 8 * 7).saturating_sub(more));
        found.sort_unstable_by_key(|f| f.used);
        for f in found {
            if left <= goal {
                break;
            }
            if fs::unlinkat(&self.directory, &f.path, AtFlags::empty()).is_ok() {
                left -= f.room;
            }
        }
        // what others have added and removed meanwhile stays counted
        self.usage.change(|now| now.saturating_add(left).saturating_sub(before));
        true
    }

    /// All files. Those that were abandoned while they were written are the first to go.
    fn scan(&self) -> Vec<Found> {
        let mut found = Vec::new();
        let levels = (0..=255).map(|level| format!("{level:02x}/")).chain([String::new()]);
        for level in levels {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let path = if level.is_empty() { "." } else { &level };
            let Ok(names) = self.open_file(path, flags, Mode::empty()).and_then(Dir::new) else { continue };
            for name in names.flatten().filter_map(|entry| entry.file_name().to_str().ok().map(str::to_string)) {
                if !level.is_empty() || name.starts_with(TEMPORARY) {
                    found.extend(self.found(format!("{level}{name}"), level.is_empty()));
                }
            }
        }
        found
    }

    fn found(&self, path: String, is_temporary: bool) -> Option<Found> {
        let stat = fs::statat(&self.directory, &path, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            return None;
        }
        let since = Duration::from_secs(stat.st_mtime.max(0) as u64) + Duration::from_nanos(stat.st_mtime_nsec);
        let modified = SystemTime::UNIX_EPOCH.checked_add(since)?;
        let is_abandoned = is_temporary && modified.elapsed().is_ok_and(|age| age > ABANDONED);
        if is_temporary && !is_abandoned {
            // somebody writes it: counted, but not to be removed before all others
            return Some(Found { used: SystemTime::now() + ABANDONED, room: room(stat.st_size as u64), path });
        }
        let used = if is_abandoned { SystemTime::UNIX_EPOCH } else { modified };
        Some(Found { used, room: room(stat.st_size as u64), path })
    }

    fn open_file(&self, path: &str, flags: OFlags, mode: Mode) -> rustix::io::Result<OwnedFd> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        fs::openat2(self.directory.as_fd(), path, flags | OFlags::CLOEXEC, mode, resolve)
    }
}

/// A file that is not yet found by its hash; it is removed unless it was renamed.
struct Temporary<'a> {
    folder: &'a Folder,
    file: File,
    name: String,
}

impl<'a> Temporary<'a> {
    fn make(folder: &'a Folder) -> Result<Self> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        loop {
            // the same number may have been another program's, which runs in a container of its own
            let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().subsec_nanos();
            let n = COUNTER.fetch_add(1, Ordering::Relaxed);
            let name = format!("{TEMPORARY}{}-{n}-{time}", std::process::id());
            match folder.open_file(&name, flags, Mode::RUSR | Mode::WUSR) {
                Ok(fd) => return Ok(Temporary { folder, file: File::from(fd), name }),
                Err(Errno::EXIST | Errno::INTR | Errno::AGAIN) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        // there is none once it was renamed
        let _ = fs::unlinkat(&self.folder.directory, &self.name, AtFlags::empty());
    }
}

fn path_of(hash: u64) -> String {
    let name = format!("{hash:016x}");
    format!("{}/{}", &name[..2], &name[2..])
}

/// Bytes of disk that `size` bytes take.
fn room(size: u64) -> u64 {
    size.saturating_add(UNIT - 1) / UNIT * UNIT
}
