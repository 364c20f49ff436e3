//! The writing half of a directory store. A value is replaced by renaming a file that is already
//! durable: at every moment, also after a power loss, the key has the whole old or the whole new
//! value. The store keeps track of changed directories until they are synced.

use super::DirectoryStore;
use super::direct_write::write_value;
use super::resolve::{create_beneath, leads_out, stat_from, stat_of};
use crate::outside;
use crate::pieces::{need_old, write_pieces};
use crate::temporary_file::{TemporaryFile, TemporaryName};
use crate::{
    EntryKind, FileAttribute, Key, KeyLock, LocalFiles, NameChange, Permissions, Replaces, Space,
    Stat, Store, ValuePiece, Version,
};
use rustix::fs::{self, Access, AtFlags, FileType, Gid, Mode, OFlags, RenameFlags, Uid};
use rustix::io::{Errno, retry_on_intr};
use std::collections::HashSet;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{LazyLock, Mutex};
use std::time::{Instant, SystemTime};
use zarrfs_base::error::{Error, Kind, Result};
use zarrfs_base::memory::lock;
use zarrfs_base::pool::start_thread;

/// Prefix of the names of temporary files. Because of the dot,
/// zarr-python 2 does not take them for chunks.
const TEMPORARY: &str = ".zarrfs-";

/// Minimum size in bytes of replaced values that are freed in the background: the kernel takes a
/// third of the time of a copy for that, at the last close of the file.
const LARGE_VALUE: u64 = 16 << 20;

/// Maximum number of symbolic links followed for one key, the same as in the kernel.
const MAX_LINKS: u32 = 40;

/// Number of changed directories that triggers a sync, so that memory does not grow with the number
/// of chunks.
pub(super) const MAX_CHANGED: usize = 1024;

/// Directories whose entries have changed since the last sync.
#[derive(Default)]
pub(super) struct ChangedDirectories {
    /// Protects the set.
    directories: Mutex<HashSet<ChangedDirectory>>,
    /// Held during a sync: a second sync must not return before the changes that the first one took
    /// are durable.
    syncing: Mutex<()>,
}

impl ChangedDirectories {
    /// Adds a directory that is not found, so that the next sync syncs the whole file system.
    pub(super) fn add_unknown(&self) {
        lock(&self.directories).insert(ChangedDirectory {
            path: String::new(),
            device: 0,
            inode: 0,
        });
    }
}

/// A directory by path, and by inode number in case the path now leads elsewhere.
#[derive(Clone, PartialEq, Eq, Hash)]
struct ChangedDirectory {
    path: String,
    device: u64,
    inode: u64,
}

impl ChangedDirectory {
    fn of(path: &str, fd: &OwnedFd) -> Result<Self> {
        let stat = fs::fstat(fd)?;
        Ok(ChangedDirectory {
            path: path.to_string(),
            device: stat.st_dev,
            inode: stat.st_ino,
        })
    }

    /// Returns whether this is the open directory.
    fn is_at(&self, fd: &OwnedFd) -> bool {
        Self::of(&self.path, fd).is_ok_and(|found| found == *self)
    }
}

/// A name in an open directory. The directory stays the same one if its path is renamed.
pub(super) struct OpenDirectoryName {
    pub directory: OwnedFd,
    /// Path of the directory when it was opened.
    path: String,
    pub name: String,
}

/// Returns the name of a temporary file, or `None` for other names.
pub(super) fn temporary_name(name: &str) -> Option<TemporaryName> {
    TemporaryName::parse(name, TEMPORARY)
}

/// Removes a temporary file if the process that wrote it is gone.
pub(super) fn remove_abandoned(directory: BorrowedFd, name: &str) {
    let Ok(stat) = fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) else {
        return;
    };
    let is_abandoned = temporary_name(name)
        .is_some_and(|temporary| temporary.is_abandoned(stat_from(&stat).modified));
    if is_abandoned && outside::unlink(directory, name, AtFlags::empty()).is_ok() {
        log::info!("{name}: removed; a process that was killed had left it");
    }
}

impl OpenDirectoryName {
    fn full_path(&self) -> String {
        if self.path.is_empty() {
            self.name.clone()
        } else {
            format!("{}/{}", self.path, self.name)
        }
    }
}

impl Store for DirectoryStore {
    fn check_writable(&self, prefix: &Key) -> Result<()> {
        let Some(directory) = self.open_key(prefix.as_str(), OFlags::PATH | OFlags::DIRECTORY)?
        else {
            return Err(Error::not_found("no such directory"));
        };
        Ok(fs::accessat(
            directory,
            ".",
            Access::WRITE_OK | Access::EXEC_OK,
            AtFlags::EACCESS,
        )?)
    }

    fn put_pieces(
        &self,
        key: &Key,
        pieces: &[ValuePiece],
        replaces: Replaces,
    ) -> Result<Option<Version>> {
        let old = match replaces {
            Replaces::Version(version) if need_old(pieces) => match self.open_value(key)? {
                Some((file, stat)) if stat.version == *version => Some((file, stat.size)),
                _ => return Ok(None),
            },
            _ => None,
        };
        let put = || self.put_content(key, pieces, old.as_ref().map(|(file, _)| file), replaces);
        let mut done = put();
        if matches!(&done, Err(e) if [libc::ENOSPC, libc::EDQUOT].contains(&e.errno())) {
            // the space of values that were replaced before may not be free yet
            let closing = std::mem::take(&mut *lock(&self.closing));
            if !closing.is_empty() {
                closing.into_iter().for_each(|thread| drop(thread.join()));
                done = put();
            }
        }
        if let Some((old, size)) = old
            && size >= LARGE_VALUE
        {
            // if no thread can start, the file is closed here
            let started = start_thread("old-value", move || drop(old));
            let mut closing = lock(&self.closing);
            closing.retain(|thread| !thread.is_finished());
            closing.extend(started);
        }
        done
    }

    fn sync(&self) -> Result<()> {
        if !self.fsync {
            // no directories were recorded, and the values are not synced either
            return self.sync_everything();
        }
        let _guard = lock(&self.changes.syncing);
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

    fn change(&self, change: NameChange) -> Result<bool> {
        match change {
            NameChange::Delete(key) => self.delete_value(key),
            NameChange::MakePrefix(key) => self.make_directory(key.as_str()).map(|()| true),
            NameChange::RemovePrefix(key) => self.remove_directory(key).map(|()| true),
            NameChange::Rename(from, to) => self.rename_entry(from, to).map(|()| true),
        }
    }
}

impl LocalFiles for DirectoryStore {
    fn open_file(&self, key: &Key) -> Result<Option<(File, Stat)>> {
        self.open_value(key)
    }

    fn open_writable(&self, key: &Key, create: bool, exclusive: bool) -> Result<File> {
        let mut flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY;
        flags.set(OFlags::CREATE, create);
        flags.set(OFlags::EXCL, create && exclusive);
        let mode = if create {
            self.next_mode(key.as_str()).unwrap_or_else(file_mode)
        } else {
            Mode::empty()
        };
        let fd = self.root.find(key.as_str(), |root| {
            create_beneath(root, key.as_str(), flags, mode)
        })?;
        let file = regular_file(fd.ok_or_else(|| Error::not_found("no such file or directory"))?)?;
        if create && let Some(entry) = self.entry(key.as_str())? {
            lock(&self.next_modes).pop(key.as_str());
            self.record_change(&entry)?;
        }
        Ok(file)
    }

    fn set_attribute(&self, key: &Key, attribute: FileAttribute) -> Result<Option<Permissions>> {
        let path = key.as_str();
        let mut found = self.open_key(path, OFlags::PATH)?;
        let mut next = None;
        if found.is_none() {
            next = match attribute {
                FileAttribute::Mode(mode) => Some(Mode::from_raw_mode(mode & 0o777)),
                FileAttribute::NextMode(mode) => Some(Mode::from_raw_mode(mode & 0o777) - *UMASK),
                FileAttribute::Modified(_) => None,
            };
            let Some(mode) = next else {
                return Ok(None);
            };
            lock(&self.next_modes).put(path.to_string(), mode);
            // another thread may have created the file without this mode
            found = self.open_key(path, OFlags::PATH)?;
        }
        let Some(file) = found else {
            return Ok(next.map(|mode| Permissions::of_new_file(mode.as_raw_mode())));
        };
        if next.is_some() {
            lock(&self.next_modes).pop(path);
        }
        // a file that is only a path has no mode to set, but its link in /proc leads to it
        let link = format!("/proc/self/fd/{}", file.as_raw_fd());
        match attribute {
            FileAttribute::Mode(mode) => {
                let mode = Mode::from_raw_mode(mode & 0o777);
                fs::chmodat(fs::CWD, link, mode, AtFlags::empty())?;
            }
            FileAttribute::NextMode(_) => {}
            FileAttribute::Modified(time) => {
                fs::utimensat(fs::CWD, link, &modified_at(time)?, AtFlags::empty())?;
            }
        }
        Ok(stat_of(&file)?.permissions)
    }

    fn lock_key(&self, key: &Key, since: Instant) -> Result<KeyLock> {
        let shared = match &self.locks {
            Some(locks) => locks.lock(key, since)?,
            None => KeyLock::default(),
        };
        Ok(shared.and(self.lock_value(key, since)))
    }

    fn statvfs(&self) -> Result<Option<Space>> {
        let s = fs::fstatvfs(self.root.held().as_fd())?;
        Ok(Some(Space {
            block_size: s.f_frsize,
            blocks: s.f_blocks,
            free: s.f_bfree,
            available: s.f_bavail,
            files: s.f_files,
            free_files: s.f_ffree,
        }))
    }

    fn exchange(&self, one: &Key, other: &Key) -> Result<()> {
        // directories below are recorded by their paths
        self.sync()?;
        let first = self.existing_entry(one.as_str())?;
        let second = self.existing_entry(other.as_str())?;
        let exchanged = outside::rename(
            &first.directory,
            &first.name,
            &second.directory,
            &second.name,
            RenameFlags::EXCHANGE,
        );
        exchanged.map_err(|errno| match errno {
            Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP => {
                let why = "its file system can't exchange two names; remove the old one first";
                Error::new(Kind::System(libc::EOPNOTSUPP), why)
            }
            errno => errno.into(),
        })?;
        self.record_change(&first)?;
        self.record_change(&second)
    }
}

impl DirectoryStore {
    fn delete_value(&self, key: &Key) -> Result<bool> {
        let Some(entry) = self.entry(key.as_str())? else {
            return Ok(false);
        };
        match outside::unlink(&entry.directory, &entry.name, AtFlags::empty()) {
            Ok(()) => self.record_change(&entry).map(|()| true),
            Err(Errno::NOENT) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    fn remove_directory(&self, key: &Key) -> Result<()> {
        let entry = self.existing_entry(key.as_str())?;
        outside::unlink(&entry.directory, &entry.name, AtFlags::REMOVEDIR)?;
        lock(&self.changes.directories).retain(|d| d.path != key.as_str());
        self.record_change(&entry)
    }

    fn rename_entry(&self, from: &Key, to: &Key) -> Result<()> {
        let from_entry = self.existing_entry(from.as_str())?;
        let to_entry = self.existing_entry(to.as_str())?;
        outside::rename(
            &from_entry.directory,
            &from_entry.name,
            &to_entry.directory,
            &to_entry.name,
            RenameFlags::empty(),
        )?;
        let mut directories = lock(&self.changes.directories);
        directories.retain(|d| d.path != to.as_str());
        for mut directory in directories
            .extract_if(|d| is_at_or_below(&d.path, from.as_str()))
            .collect::<Vec<_>>()
        {
            directory
                .path
                .replace_range(..from.as_str().len(), to.as_str());
            directories.insert(directory);
        }
        drop(directories);
        self.record_change(&from_entry)?;
        self.record_change(&to_entry)
    }

    /// Replaces a value by a new file that holds `pieces`. `old` is the file of the former value if
    /// pieces lie in it. Returns `None` if the value does not satisfy `replaces`.
    fn put_content(
        &self,
        key: &Key,
        pieces: &[ValuePiece],
        old: Option<&File>,
        replaces: Replaces,
    ) -> Result<Option<Version>> {
        let mut entry = match self.entry(key.as_str())? {
            Some(entry) => entry,
            None => {
                self.make_parents(key.as_str())?;
                self.entry(key.as_str())?
                    .ok_or_else(|| Error::system(libc::ENOTDIR))?
            }
        };
        for _ in 0..MAX_LINKS {
            let found = match fs::statat(&entry.directory, &entry.name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => Some(stat),
                Err(Errno::NOENT) => None,
                Err(e) => return Err(e.into()),
            };
            match found
                .as_ref()
                .map(|stat| FileType::from_raw_mode(stat.st_mode))
            {
                None | Some(FileType::RegularFile) => {
                    let write = &|file: &File| self.write(file, pieces, old);
                    return self.replace(&entry, found, write, replaces);
                }
                Some(FileType::Symlink) => entry = self.follow(&entry)?,
                Some(FileType::Directory) => return Err(Error::system(libc::EISDIR)),
                Some(_) => return Err(Error::damaged("is not a regular file")),
            }
        }
        Err(Error::system(libc::ELOOP))
    }

    fn write(&self, file: &File, pieces: &[ValuePiece], old: Option<&File>) -> Result<()> {
        if self.fsync {
            write_value(file, pieces, old, &self.refuses_direct)
        } else {
            // without a sync, the page cache is faster
            write_pieces(file, pieces, old)
        }
    }

    /// Replaces a regular file or creates a missing one.
    fn replace(
        &self,
        entry: &OpenDirectoryName,
        old: Option<fs::Stat>,
        write: &dyn Fn(&File) -> Result<()>,
        replaces: Replaces,
    ) -> Result<Option<Version>> {
        let path = entry.full_path();
        let is_new = old.is_none();
        let create = |mode| TemporaryFile::create(&entry.directory, TEMPORARY, mode);
        let mut temporary = match (old, self.next_mode(&path)) {
            (Some(old), _) => {
                let new = create(file_mode())?;
                keep_owner_and_mode(&new.file, &old);
                new
            }
            (None, Some(mode)) => {
                let new = create(mode)?;
                // the umask is already considered
                fs::fchmod(&new.file, mode)?;
                new
            }
            (None, None) => create(file_mode())?,
        };
        write(&temporary.file).map_err(with_remedy)?;
        set_unique_time(&temporary.file);
        if self.fsync {
            // without this, the name may become durable before the bytes
            retry_on_intr(|| fs::fdatasync(&temporary.file))?;
        }
        if !self.replace_if(entry, &mut temporary, replaces)? {
            return Ok(None);
        }
        if let Some(mode) = lock(&self.next_modes).pop(&path)
            && is_new
        {
            // a program may have set the mode since the file was created
            fs::fchmod(&temporary.file, mode)?;
        }
        self.record_change(entry)?;
        // the version is read last, since renaming changes it
        Ok(Some(stat_from(&fs::fstat(&temporary.file)?).version))
    }

    pub(super) fn make_directory(&self, path: &str) -> Result<()> {
        let entry = self.existing_entry(path)?;
        let directory = ChangedDirectory::of(&entry.path, &entry.directory)?;
        // the lock keeps another thread from syncing a file in the new directory before the
        // directory itself is recorded
        let mut directories = lock(&self.changes.directories);
        let mode = self
            .next_mode(path)
            .unwrap_or(Mode::RWXU | Mode::RWXG | Mode::RWXO);
        outside::make_directory(&entry.directory, &entry.name, mode)?;
        lock(&self.next_modes).pop(path);
        if self.fsync {
            directories.insert(directory);
        }
        Ok(())
    }

    /// Creates the missing directories above `path`.
    pub(crate) fn make_parents(&self, path: &str) -> Result<()> {
        for (end, _) in path.match_indices('/') {
            match self.make_directory(&path[..end]) {
                Err(e) if e.errno() == libc::EEXIST => {}
                made => made?,
            }
        }
        Ok(())
    }

    fn next_mode(&self, path: &str) -> Option<Mode> {
        lock(&self.next_modes).peek(path).copied()
    }

    /// Opens the lock file of a key, which is created with `mode` if it is missing. Returns `None`
    /// if its directory is missing.
    pub(crate) fn open_lock_file(&self, key: &Key, mode: Mode) -> Result<Option<File>> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NONBLOCK | OFlags::NOCTTY;
        create_beneath(&self.root.held(), key.as_str(), flags, mode)?
            .map(regular_file)
            .transpose()
    }

    fn sync_directory(&self, directory: &ChangedDirectory) -> Result<()> {
        let found = self.open_key(&directory.path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let Some(fd) = found.filter(|fd| directory.is_at(fd)) else {
            // another process has renamed or removed it
            return self.sync_everything();
        };
        match retry_on_intr(|| fs::fsync(&fd)) {
            // EINVAL: the file system cannot sync a directory
            Ok(()) | Err(Errno::INVAL) => {}
            Err(e) => return Err(e.into()),
        }
        // after XFS has shut down, `fsync` may report success, but this call fails
        stat_of(&fd).map(|_| ())
    }

    /// Syncs the file system of the store.
    fn sync_everything(&self) -> Result<()> {
        let root = self.open_key("", OFlags::RDONLY | OFlags::DIRECTORY)?;
        let root = root.ok_or_else(|| Error::not_found("no such directory"))?;
        retry_on_intr(|| fs::syncfs(&root))?;
        stat_of(&root).map(|_| ())
    }

    fn record_change(&self, entry: &OpenDirectoryName) -> Result<()> {
        if !self.fsync {
            return Ok(());
        }
        let directory = ChangedDirectory::of(&entry.path, &entry.directory)?;
        let mut directories = lock(&self.changes.directories);
        let is_full =
            directories.insert(directory) && directories.len().is_multiple_of(MAX_CHANGED);
        drop(directories);
        if is_full && let Err(e) = self.sync() {
            // the directories stay recorded, so an explicit sync reports the error
            log::debug!("{e}");
        }
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn changed(&self) -> Vec<String> {
        let mut paths: Vec<_> = lock(&self.changes.directories)
            .iter()
            .map(|d| d.path.clone())
            .collect();
        paths.sort();
        paths
    }

    /// Returns the entry of `path`, or `None` if its directory does not exist.
    fn entry(&self, path: &str) -> Result<Option<OpenDirectoryName>> {
        let path = path.trim_end_matches('/');
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        if ["", ".", ".."].contains(&name) {
            return Err(Error::system(libc::EISDIR));
        }
        let directory = self.open_key(parent, OFlags::PATH | OFlags::DIRECTORY)?;
        Ok(directory.map(|directory| OpenDirectoryName {
            directory,
            path: parent.to_string(),
            name: name.to_string(),
        }))
    }

    fn existing_entry(&self, path: &str) -> Result<OpenDirectoryName> {
        self.entry(path)?
            .ok_or_else(|| Error::not_found("no such directory"))
    }

    /// Returns the entry to which the symbolic link at `entry` leads.
    fn follow(&self, entry: &OpenDirectoryName) -> Result<OpenDirectoryName> {
        let link = fs::readlinkat(&entry.directory, &entry.name, Vec::new())?;
        let link = link
            .into_string()
            .map_err(|_| Error::damaged("a symbolic link leads to a name that is not UTF-8"))?;
        if link.starts_with('/') {
            return Err(leads_out());
        }
        let path = if entry.path.is_empty() {
            link
        } else {
            format!("{}/{link}", entry.path)
        };
        self.entry(&path)?
            .ok_or_else(|| Error::not_found("the target of a symbolic link does not exist"))
    }
}

/// Says what a user can do about a value that is larger than the process may write.
fn with_remedy(e: Error) -> Error {
    if e.errno() != libc::EFBIG {
        return e;
    }
    let why = "beyond the size of files that the process or the file system permits; raise ulimit -f, or of a running daemon prlimit --fsize";
    Error::new(e.kind(), why)
}

fn regular_file(fd: OwnedFd) -> Result<File> {
    match stat_of(&fd)?.kind {
        EntryKind::Value => Ok(File::from(fd)),
        _ => Err(Error::damaged("is not a regular file")),
    }
}

/// The umask of the process.
static UMASK: LazyLock<Mode> = LazyLock::new(|| {
    // umask(2) would have to set another umask for a moment, in which another thread may create a
    // file
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let umask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    let umask = umask.and_then(|umask| u32::from_str_radix(umask.trim(), 8).ok());
    Mode::from_raw_mode(umask.unwrap_or(0o077))
});

/// Reads the umask before a sandbox may forbid that.
pub(super) fn prepare() {
    LazyLock::force(&UMASK);
}

/// Returns the mode of new files, before the umask.
fn file_mode() -> Mode {
    Mode::from_raw_mode(0o666)
}

/// Gives a new file the mode and, if permitted, the owner of the file that it will replace.
fn keep_owner_and_mode(file: &File, old: &fs::Stat) {
    let uid = Uid::from_raw(old.st_uid);
    let gid = Gid::from_raw(old.st_gid);
    let is_ours =
        fs::fstat(file).is_ok_and(|new| (new.st_uid, new.st_gid) == (old.st_uid, old.st_gid));
    if !is_ours && fs::fchown(file, Some(uid), Some(gid)).is_err() {
        // changing only the group is often permitted
        let _ = fs::fchown(file, None, Some(gid));
    }
    // file systems without modes refuse
    let _ = fs::fchmod(file, Mode::from_raw_mode(old.st_mode & 0o777));
}

/// Sets the modification time of a new file to the nanosecond. The kernel sets that of its last
/// tick, up to 10 ms ago. Within a tick, an inode number that is used again would give two values
/// the same version.
fn set_unique_time(file: &File) {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    // file systems without times refuse
    let _ = fs::futimens(file, &modification(now));
}

/// Returns timestamps that change only the modification time; `None` sets it to the present.
///
/// # Errors
///
/// EINVAL for a time that a file cannot have.
fn modified_at(time: Option<SystemTime>) -> Result<fs::Timestamps> {
    let Some(time) = time else {
        return Ok(modification(special(fs::UTIME_NOW)));
    };
    let nanoseconds = match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => since.as_nanos().cast_signed(),
        Err(before) => -before.duration().as_nanos().cast_signed(),
    };
    let seconds = i64::try_from(nanoseconds.div_euclid(1_000_000_000));
    let time = fs::Timespec {
        tv_sec: seconds.map_err(|_| Error::system(libc::EINVAL))?,
        tv_nsec: nanoseconds.rem_euclid(1_000_000_000) as fs::Nsecs,
    };
    Ok(modification(time))
}

fn modification(time: fs::Timespec) -> fs::Timestamps {
    fs::Timestamps {
        last_access: special(fs::UTIME_OMIT),
        last_modification: time,
    }
}

fn special(tv_nsec: fs::Nsecs) -> fs::Timespec {
    fs::Timespec { tv_sec: 0, tv_nsec }
}

fn is_at_or_below(path: &str, ancestor: &str) -> bool {
    path.strip_prefix(ancestor)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}
