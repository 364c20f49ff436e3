//! The directory of a cache. Files are named by hashes in 256 subdirectories, and published by a
//! rename. All programs that use the directory share one limit. Nothing is synced, and symbolic
//! links are not followed.
//!
//! A temporary file is empty until its space is counted, and then has its final size. So a scan
//! counts the files for which there is space, and each of them once.

use super::usage::{EvictionLock, Usage};
use crate::temporary_file::{self, TemporaryFile};
use rustix::fs::{self, AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Timespec, Timestamps};
use rustix::io::Errno;
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, SystemTime};
use zarrfs_base::error::{Error, Result};

/// Name of the subdirectory that the cache creates and never leaves. It ends with the version of
/// the format.
const SUBDIRECTORY: &str = "zarrfs-cache-1";

/// Prefix of the names of temporary files.
const TEMPORARY: &str = "new-";

/// Age from which a temporary file counts as abandoned.
const ABANDONED: Duration = Duration::from_secs(3600);

/// Interval at which the time of last use is updated.
const USE_INTERVAL: Duration = Duration::from_secs(60);

/// Allocation unit of file systems, in bytes.
const UNIT: u64 = 4096;

/// The directory of a cache.
pub(super) struct CacheDirectory {
    directory: OwnedFd,
    usage: Usage,
    /// Limit of all files together, in bytes.
    limit: u64,
}

/// A file found by a scan.
struct ScannedFile {
    /// When it was used last; `None` for a file that is being written.
    used: Option<SystemTime>,
    space: u64,
    path: String,
}

impl CacheDirectory {
    /// Opens the cache in `path`, which is created if it is missing.
    ///
    /// # Errors
    ///
    /// EACCES if other users can access the cache.
    pub fn open(path: &Path, limit: u64) -> Result<Self> {
        std::fs::create_dir_all(path)?;
        temporary_file::prepare();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = fs::open(path, flags, Mode::empty())?;
        match fs::mkdirat(&parent, SUBDIRECTORY, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(e.into()),
        }
        let directory = fs::openat(
            &parent,
            SUBDIRECTORY,
            flags | OFlags::NOFOLLOW,
            Mode::empty(),
        )?;
        let stat = fs::fstat(&directory)?;
        if stat.st_uid != rustix::process::geteuid().as_raw() || stat.st_mode & 0o077 != 0 {
            return Err(Error::system(libc::EACCES).context(format!(
                "{SUBDIRECTORY} in it must be yours alone (chmod 700)"
            )));
        }
        let usage = Usage::open(&directory)?;
        let directory = CacheDirectory {
            directory,
            usage,
            limit,
        };
        if directory
            .usage
            .get()
            .is_none_or(|counts| counts.used > limit)
        {
            directory.evict(0);
        }
        Ok(directory)
    }

    /// Returns the maximum size of a file in bytes.
    pub fn max_file_size(&self) -> u64 {
        self.limit / 4
    }

    /// Opens the file of `hash`.
    pub fn get(&self, hash: u64) -> Option<File> {
        self.open_file(&path_of(hash), OFlags::RDONLY | OFlags::NONBLOCK)
            .ok()
            .map(File::from)
    }

    /// Records that a file was used now.
    pub fn record_use(&self, file: &File) {
        let modified = file.metadata().and_then(|m| m.modified());
        let age = modified.ok().and_then(|modified| modified.elapsed().ok());
        if age.is_none_or(|age| age >= USE_INTERVAL) {
            let now = Timespec {
                tv_sec: 0,
                tv_nsec: fs::UTIME_NOW,
            };
            // an old time only makes eviction happen earlier
            let _ = fs::futimens(
                file,
                &Timestamps {
                    last_access: now,
                    last_modification: now,
                },
            );
        }
    }

    /// Publishes a file of `size` bytes for `hash`; `write` writes its content. Returns `false` if
    /// there is no space for it now.
    pub fn put(
        &self,
        hash: u64,
        size: u64,
        write: impl FnOnce(&File) -> std::io::Result<()>,
    ) -> Result<bool> {
        let mut temporary =
            TemporaryFile::create(&self.directory, TEMPORARY, Mode::RUSR | Mode::WUSR)?;
        if !self.reserve(&temporary.file, size) {
            return Ok(false);
        }
        let done = write(&temporary.file)
            .map_err(Error::from)
            .and_then(|()| self.rename(&mut temporary, hash));
        if done.is_err() {
            self.usage
                .change(|counts| counts.used.saturating_sub(space(size)));
        }
        done.map(|()| true)
    }

    /// Removes the file of `hash`.
    pub fn remove(&self, hash: u64) {
        let path = path_of(hash);
        self.usage.change(|counts| {
            let freed = self.space_of(&path);
            let is_removed = fs::unlinkat(&self.directory, &path, AtFlags::empty()).is_ok();
            counts
                .used
                .saturating_sub(if is_removed { freed } else { 0 })
        });
    }

    fn rename(&self, temporary: &mut TemporaryFile, hash: u64) -> Result<()> {
        let path = path_of(hash);
        match fs::mkdirat(&self.directory, &path[..2], Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(e) => return Err(e.into()),
        }
        // `change` holds the lock, so that only one of two replacements subtracts the old file
        let mut renamed = Err(Error::system(libc::EAGAIN));
        self.usage.change(|counts| {
            let freed = self.space_of(&path);
            renamed = temporary.rename_to(&path);
            counts
                .used
                .saturating_sub(if renamed.is_ok() { freed } else { 0 })
        });
        renamed
    }

    /// Returns the space that a file takes on disk in bytes, or 0 if it does not exist.
    fn space_of(&self, path: &str) -> u64 {
        fs::statat(&self.directory, path, AtFlags::SYMLINK_NOFOLLOW)
            .map_or(0, |stat| space(stat.st_size as u64))
    }

    /// Reserves the space of an empty file, which gets `size` bytes, and evicts other files if
    /// necessary.
    fn reserve(&self, file: &File, size: u64) -> bool {
        let space = space(size);
        let grow = || fs::ftruncate(file, size).is_ok();
        self.usage.add_within(space, self.limit, grow)
            || self.evict(space) && self.usage.add_within(space, self.limit, grow)
    }

    /// Evicts the least recently used files until `more` bytes and an eighth of the limit are free.
    /// Returns `false` if another thread or program is evicting.
    fn evict(&self, more: u64) -> bool {
        let Some(_lock) = EvictionLock::begin(&self.directory) else {
            return false;
        };
        let before = self.usage.get().unwrap_or_default();
        let mut found = self.scan();
        let mut left: u64 = found.iter().map(|f| f.space).sum();
        let goal = (self.limit / 8 * 7).saturating_sub(more);
        // a file that is being written counts, but its writer needs it: while many are written at
        // once, removing them would leave nothing in the cache
        found.retain(|f| f.used.is_some());
        found.sort_unstable_by_key(|f| f.used);
        for f in found {
            if left <= goal {
                break;
            }
            if fs::unlinkat(&self.directory, &f.path, AtFlags::empty()).is_ok() {
                left -= f.space;
            }
        }
        // the scan may lack files that were added since, so their bytes are counted here; files
        // that were removed since stay counted until the next scan
        self.usage
            .change(|now| left.saturating_add(now.added.wrapping_sub(before.added)));
        true
    }

    /// Returns all files. Temporary files are scanned first, so that one that is renamed during the
    /// scan is not missed; it counts once, by its inode.
    fn scan(&self) -> Vec<ScannedFile> {
        let mut found = HashMap::new();
        let levels = (0..=255).map(|level| format!("{level:02x}/"));
        for level in [String::new()].into_iter().chain(levels) {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let path = if level.is_empty() { "." } else { &level };
            let Ok(names) = self.open_file(path, flags).and_then(Dir::new) else {
                continue;
            };
            for name in names
                .flatten()
                .filter_map(|entry| entry.file_name().to_str().ok().map(str::to_string))
            {
                if !level.is_empty() || name.starts_with(TEMPORARY) {
                    found.extend(self.scan_file(format!("{level}{name}"), level.is_empty()));
                }
            }
        }
        found.into_values().collect()
    }

    /// Returns a file and its inode, or `None` for a directory.
    fn scan_file(&self, path: String, is_temporary: bool) -> Option<(u64, ScannedFile)> {
        let stat = fs::statat(&self.directory, &path, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            return None;
        }
        let since = Duration::from_secs(stat.st_mtime.max(0) as u64)
            + Duration::from_nanos(stat.st_mtime_nsec);
        let modified = SystemTime::UNIX_EPOCH.checked_add(since)?;
        let is_abandoned = modified.elapsed().is_ok_and(|age| age > ABANDONED);
        let used = match (is_temporary, is_abandoned) {
            (false, _) => Some(modified),
            (true, false) => None,
            (true, true) => Some(SystemTime::UNIX_EPOCH),
        };
        let file = ScannedFile {
            used,
            space: space(stat.st_size as u64),
            path,
        };
        Some((stat.st_ino, file))
    }

    fn open_file(&self, path: &str, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        fs::openat2(
            self.directory.as_fd(),
            path,
            flags | OFlags::CLOEXEC,
            Mode::empty(),
            resolve,
        )
    }
}

fn path_of(hash: u64) -> String {
    let name = format!("{hash:016x}");
    format!("{}/{}", &name[..2], &name[2..])
}

/// Returns the space that `size` bytes take on disk, in bytes.
fn space(size: u64) -> u64 {
    size.saturating_add(UNIT - 1) / UNIT * UNIT
}
