//! The writing half of a directory store. A value is replaced by renaming a file that is on stable storage already: at
//! every moment, also after a power loss, the key has all of its old value or all of its new one. Which directories
//! have changed is remembered until they are synced. It knows nothing of what the values are.

use super::DirectoryStore;
use super::resolve::{create_beneath, leads_out, open_beneath, stat_from, stat_of};
use crate::error::{Error, Result};
use crate::store::{EntryKind, Key, Version};
use crate::util::memory::lock;
use rustix::fs::{self, Access, AtFlags, FileType, Gid, Mode, OFlags, Uid};
use rustix::io::{Errno, retry_on_intr};
use std::collections::HashSet;
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Names of files that are still written begin with this; the number of the process and one more follow. The dot keeps
/// them out of what zarr-python 2 takes for chunks.
const TEMPORARY: &str = ".zarrfs-";

/// Temporary names tried before giving up: those of a dead process that had our number may be in the way.
const MAX_NAMES: u32 = 1000;

/// Symbolic links followed from one key, as many as the kernel follows.
const MAX_LINKS: u32 = 40;

/// Changed directories remembered before they are synced unasked: nothing grows with the number of chunks.
pub(super) const MAX_CHANGED: usize = 1024;

/// Numbers temporary files.
static COUNTER: AtomicU64 = AtomicU64::new(0);

/// The directories whose names have changed since they were last synced.
#[derive(Default)]
pub(super) struct Changes {
    /// Protects the set alone.
    directories: Mutex<HashSet<Directory>>,
    /// Held during a sync: who comes later must not return before what the first one has taken is safe.
    syncing: Mutex<()>,
}

/// A directory, by its path, and by its number in case that path leads elsewhere by now.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Directory {
    path: String,
    device: u64,
    inode: u64,
}

impl Directory {
    fn of(path: &str, fd: &OwnedFd) -> Result<Self> {
        let stat = fs::fstat(fd)?;
        Ok(Directory { path: path.to_string(), device: stat.st_dev, inode: stat.st_ino })
    }
}

/// A name in an open directory, which stays the same whatever is renamed meanwhile.
struct Place {
    directory: OwnedFd,
    /// Of the directory, as it was opened.
    path: String,
    name: String,
}

/// True for the name of a file that is still being written, or was when its process died.
pub(super) fn is_temporary(name: &str) -> bool {
    let is_number = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    let numbers = name.strip_prefix(TEMPORARY).and_then(|rest| rest.split_once('-'));
    numbers.is_some_and(|(process, n)| is_number(process) && is_number(n))
}

impl DirectoryStore {
    pub(super) fn permits_writing(&self, prefix: &Key) -> Result<()> {
        let Some(directory) = open_beneath(&self.root, prefix.as_str(), OFlags::PATH | OFlags::DIRECTORY)? else {
            return Err(Error::not_found("no such directory"));
        };
        Ok(fs::accessat(directory, ".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)?)
    }

    pub(super) fn put_value(&self, key: &Key, value: &[u8]) -> Result<Version> {
        let mut place = match self.place(key.as_str())? {
            Some(place) => place,
            None => {
                self.make_parents(key.as_str())?;
                self.place(key.as_str())?.ok_or_else(|| Error::system(libc::ENOTDIR))?
            }
        };
        for _ in 0..MAX_LINKS {
            let old = match fs::statat(&place.directory, &place.name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => Some(stat),
                Err(Errno::NOENT) => None,
                Err(e) => return Err(e.into()),
            };
            match old.as_ref().map(|stat| FileType::from_raw_mode(stat.st_mode)) {
                None | Some(FileType::RegularFile) => return self.replace(&place, old, value),
                Some(FileType::Symlink) => place = self.follow(&place)?,
                Some(FileType::Directory) => return Err(Error::system(libc::EISDIR)),
                Some(_) => return Err(Error::damaged("is not a regular file")),
            }
        }
        Err(Error::system(libc::ELOOP))
    }

    /// Puts a value where there is none, or a regular file.
    fn replace(&self, place: &Place, old: Option<fs::Stat>, value: &[u8]) -> Result<Version> {
        let mut temporary = Temporary::make(&place.directory)?;
        if let Some(old) = old {
            keep_owner_and_mode(&temporary.file, &old);
        }
        temporary.file.write_all(value)?;
        if self.fsync {
            // else the name may be on stable storage before the bytes are: neither the old value nor the new one
            retry_on_intr(|| fs::fdatasync(&temporary.file))?;
        }
        temporary.rename_to(&place.name)?;
        self.remember(place)?;
        // not before: renaming changes it
        Ok(stat_from(&fs::fstat(&temporary.file)?).version)
    }

    pub(super) fn delete_value(&self, key: &Key) -> Result<bool> {
        let Some(place) = self.place(key.as_str())? else { return Ok(false) };
        match fs::unlinkat(&place.directory, &place.name, AtFlags::empty()) {
            Ok(()) => self.remember(&place).map(|()| true),
            Err(Errno::NOENT) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    pub(super) fn make_directory(&self, path: &str) -> Result<()> {
        let place = self.place(path)?.ok_or_else(|| Error::not_found("no such directory"))?;
        let directory = Directory::of(&place.path, &place.directory)?;
        // nobody can put something into the new directory, and sync it, before it is remembered
        let mut directories = lock(&self.changes.directories);
        fs::mkdirat(&place.directory, &place.name, Mode::RWXU | Mode::RWXG | Mode::RWXO)?;
        if self.fsync {
            directories.insert(directory);
        }
        Ok(())
    }

    fn make_parents(&self, path: &str) -> Result<()> {
        for (end, _) in path.match_indices('/') {
            match self.make_directory(&path[..end]) {
                Err(e) if e.errno() == libc::EEXIST => {}
                made => made?,
            }
        }
        Ok(())
    }

    pub(super) fn remove_directory(&self, key: &Key) -> Result<()> {
        let place = self.place(key.as_str())?.ok_or_else(|| Error::not_found("no such directory"))?;
        fs::unlinkat(&place.directory, &place.name, AtFlags::REMOVEDIR)?;
        lock(&self.changes.directories).retain(|d| d.path != key.as_str());
        self.remember(&place)
    }

    pub(super) fn rename_key(&self, from: &Key, to: &Key) -> Result<()> {
        let place = |key: &Key| self.place(key.as_str())?.ok_or_else(|| Error::not_found("no such directory"));
        let (from_place, to_place) = (place(from)?, place(to)?);
        fs::renameat(&from_place.directory, &from_place.name, &to_place.directory, &to_place.name)?;
        let mut directories = lock(&self.changes.directories);
        directories.retain(|d| d.path != to.as_str());
        for mut directory in directories.extract_if(|d| is_at_or_below(&d.path, from.as_str())).collect::<Vec<_>>() {
            directory.path.replace_range(..from.as_str().len(), to.as_str());
            directories.insert(directory);
        }
        drop(directories);
        self.remember(&from_place)?;
        self.remember(&to_place)
    }

    pub(super) fn open_writable(&self, key: &Key, create: bool, exclusive: bool) -> Result<File> {
        let mut flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY;
        flags.set(OFlags::CREATE, create);
        flags.set(OFlags::EXCL, create && exclusive);
        let mode = if create { file_mode() } else { Mode::empty() };
        let fd = create_beneath(&self.root, key.as_str(), flags, mode)?;
        let fd = fd.ok_or_else(|| Error::not_found("no such file or directory"))?;
        if stat_of(&fd)?.kind != EntryKind::Value {
            return Err(Error::damaged("is not a regular file"));
        }
        if create && let Some(place) = self.place(key.as_str())? {
            self.remember(&place)?;
        }
        Ok(File::from(fd))
    }

    /// Opens the lock file of a key, made with `mode` if there is none; `None` without a directory for it.
    pub(in crate::store) fn open_lock_file(&self, key: &Key, mode: Mode) -> Result<Option<File>> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NONBLOCK | OFlags::NOCTTY;
        let Some(fd) = create_beneath(&self.root, key.as_str(), flags, mode)? else { return Ok(None) };
        match stat_of(&fd)?.kind {
            EntryKind::Value => Ok(Some(File::from(fd))),
            _ => Err(Error::damaged("is not a regular file")),
        }
    }

    pub(super) fn sync_changes(&self) -> Result<()> {
        if !self.fsync {
            // nothing was remembered, and not even the values are synced
            return self.sync_everything();
        }
        let _turn = lock(&self.changes.syncing);
        let directories = std::mem::take(&mut *lock(&self.changes.directories));
        let mut outcome = Ok(());
        for directory in directories {
            if let Err(e) = self.sync_directory(&directory) {
                outcome = outcome.and(Err(e.context(format!("/{}", directory.path))));
                lock(&self.changes.directories).insert(directory);
            }
        }
        outcome
    }

    fn sync_directory(&self, directory: &Directory) -> Result<()> {
        let found = open_beneath(&self.root, &directory.path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let is_same = |fd: &OwnedFd| Directory::of(&directory.path, fd).is_ok_and(|found| found == *directory);
        let Some(fd) = found.filter(is_same) else {
            // somebody else has renamed or removed it
            return self.sync_everything();
        };
        match retry_on_intr(|| fs::fsync(&fd)) {
            // the second is a file system that has no such thing
            Ok(()) | Err(Errno::INVAL) => {}
            Err(e) => return Err(e.into()),
        }
        // XFS that was shut down says that it has synced; it doesn't say so here
        stat_of(&fd).map(|_| ())
    }

    /// Syncs the file system that the store lies on.
    fn sync_everything(&self) -> Result<()> {
        let root = open_beneath(&self.root, "", OFlags::RDONLY | OFlags::DIRECTORY)?;
        let root = root.ok_or_else(|| Error::not_found("no such directory"))?;
        retry_on_intr(|| fs::syncfs(&root))?;
        stat_of(&root).map(|_| ())
    }

    fn remember(&self, place: &Place) -> Result<()> {
        if !self.fsync {
            return Ok(());
        }
        let directory = Directory::of(&place.path, &place.directory)?;
        let mut directories = lock(&self.changes.directories);
        let is_full = directories.insert(directory) && directories.len().is_multiple_of(MAX_CHANGED);
        drop(directories);
        if is_full && let Err(e) = self.sync_changes() {
            // remembered still: whoever asks for a sync is told
            log::debug!("{e}");
        }
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn changed(&self) -> Vec<String> {
        let mut paths: Vec<_> = lock(&self.changes.directories).iter().map(|d| d.path.clone()).collect();
        paths.sort();
        paths
    }

    /// The directory and the name that `path` leads to; None if there is no such directory.
    fn place(&self, path: &str) -> Result<Option<Place>> {
        let path = path.trim_end_matches('/');
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        if ["", ".", ".."].contains(&name) {
            return Err(Error::system(libc::EISDIR));
        }
        let directory = open_beneath(&self.root, parent, OFlags::PATH | OFlags::DIRECTORY)?;
        Ok(directory.map(|directory| Place { directory, path: parent.to_string(), name: name.to_string() }))
    }

    /// Where the symbolic link at `place` leads.
    fn follow(&self, place: &Place) -> Result<Place> {
        let link = fs::readlinkat(&place.directory, &place.name, Vec::new())?;
        let link = link.into_string().map_err(|_| Error::damaged("a symbolic link to a name that is not UTF-8"))?;
        if link.starts_with('/') {
            return Err(leads_out());
        }
        let path = if place.path.is_empty() { link } else { format!("{}/{link}", place.path) };
        self.place(&path)?.ok_or_else(|| Error::not_found("a symbolic link leads nowhere"))
    }
}

/// A file that is not yet what a key names; it is removed unless it was renamed.
struct Temporary<'a> {
    file: File,
    directory: &'a OwnedFd,
    /// None once it was renamed.
    name: Option<String>,
}

impl<'a> Temporary<'a> {
    fn make(directory: &'a OwnedFd) -> Result<Self> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for _ in 0..MAX_NAMES {
            let n = COUNTER.fetch_add(1, Ordering::Relaxed);
            let name = format!("{TEMPORARY}{}-{n}", std::process::id());
            match fs::openat(directory, &name, flags, file_mode()) {
                Ok(fd) => return Ok(Temporary { file: File::from(fd), directory, name: Some(name) }),
                Err(Errno::EXIST | Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Err(Error::system(libc::EEXIST))
    }

    fn rename_to(&mut self, name: &str) -> Result<()> {
        if let Some(own) = &self.name {
            fs::renameat(self.directory, own, self.directory, name)?;
        }
        self.name = None;
        Ok(())
    }
}

impl Drop for Temporary<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.name
            && let Err(e) = fs::unlinkat(self.directory, name, AtFlags::empty())
        {
            log::warn!("{name}: can't be removed: {e}");
        }
    }
}

/// What the umask leaves of it is a new file's mode.
fn file_mode() -> Mode {
    Mode::from_raw_mode(0o666)
}

/// Gives a file that will replace another the other's mode and, where that is allowed, its owner.
fn keep_owner_and_mode(file: &File, old: &fs::Stat) {
    let (uid, gid) = (Uid::from_raw(old.st_uid), Gid::from_raw(old.st_gid));
    let is_ours = fs::fstat(file).is_ok_and(|new| (new.st_uid, new.st_gid) == (old.st_uid, old.st_gid));
    if !is_ours && fs::fchown(file, Some(uid), Some(gid)).is_err() {
        // the group alone is often allowed
        let _ = fs::fchown(file, None, Some(gid));
    }
    // file systems without modes refuse
    let _ = fs::fchmod(file, Mode::from_raw_mode(old.st_mode & 0o777));
}

fn is_at_or_below(path: &str, ancestor: &str) -> bool {
    path.strip_prefix(ancestor).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
