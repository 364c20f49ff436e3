//! Replacing a value under a condition. Other programs may replace the same value at the same
//! moment, with or without locks.
//!
//! Invariant: a value that another program has stored is never dropped unless it satisfies the
//! condition. The kernel compares and creates in one step (`RENAME_NOREPLACE`). It can't compare
//! versions, so the new file and the old one exchange their names (`RENAME_EXCHANGE`), and the old
//! one is looked at once more before it is removed.

use super::DirectoryStore;
use super::resolve::stat_from;
use super::write::OpenDirectoryName;
use crate::temporary_file::TemporaryFile;
use crate::{Replaces, Version};
use rustix::fs::{self, AtFlags, RenameFlags};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use zarrfs_base::error::{Error, Result};

/// Maximum number of exchanges until a value of another writer is in its place again. Each further
/// one needs another value that is stored within microseconds.
const MAX_EXCHANGES: u32 = 100;

impl DirectoryStore {
    /// Gives a complete temporary file the name of `entry` if the value there satisfies `replaces`.
    /// Otherwise returns `false`, and the value stays.
    ///
    /// # Errors
    ///
    /// The errors of renameat2(2).
    pub(super) fn replace_if(
        &self,
        entry: &OpenDirectoryName,
        temporary: &mut TemporaryFile,
        replaces: Replaces,
    ) -> Result<bool> {
        if replaces == Replaces::Anything {
            temporary.rename_to(&entry.name)?;
            return Ok(true);
        }
        if !self.refuses_conditions.load(Ordering::Relaxed) {
            let replaced = match replaces {
                Replaces::Version(version) => replace_version(entry, temporary, version),
                _ => create(entry, temporary),
            };
            match replaced {
                Err(e) if e.errno() == libc::EINVAL => {
                    self.refuses_conditions.store(true, Ordering::Relaxed);
                }
                replaced => return replaced,
            }
        }
        // NFS, and others that can't rename under a condition
        let _lock = self.lock_directory(&entry.directory);
        if !satisfies(entry, replaces)? {
            return Ok(false);
        }
        temporary.rename_to(&entry.name)?;
        Ok(true)
    }

    /// Replaces values as on a file system that can't rename under a condition.
    #[cfg(test)]
    pub(super) fn refusing_conditions(self) -> Self {
        self.refuses_conditions.store(true, Ordering::Relaxed);
        self
    }
}

/// Gives the file the name of `entry` if that is free.
fn create(entry: &OpenDirectoryName, temporary: &mut TemporaryFile) -> Result<bool> {
    match temporary.rename_with(&entry.name, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// Gives the file the name of `entry` if the file there has this version.
fn replace_version(
    entry: &OpenDirectoryName,
    temporary: &mut TemporaryFile,
    version: &Version,
) -> Result<bool> {
    if !satisfies(entry, Replaces::Version(version))? {
        return Ok(false);
    }
    match temporary.rename_with(&entry.name, RenameFlags::EXCHANGE) {
        Ok(()) => {}
        Err(Errno::NOENT) => return Ok(false),
        Err(e) => return Err(e.into()),
    }
    let replaced = named(&entry.directory, temporary.name())?;
    if has_version(&replaced, version) {
        return Ok(true);
    }
    put_back(entry, temporary, replaced).map_err(|e| {
        e.context("another program's change is lost, which came at the same moment")
    })?;
    Ok(false)
}

/// Exchanges the names again, after an exchange took `replaced` from its place. A file that a third
/// program has stored there since is newer, and stays.
fn put_back(
    entry: &OpenDirectoryName,
    temporary: &mut TemporaryFile,
    replaced: fs::Stat,
) -> Result<()> {
    let mut placed = fs::fstat(&temporary.file)?;
    let mut held = replaced;
    for _ in 0..MAX_EXCHANGES {
        match temporary.rename_with(&entry.name, RenameFlags::EXCHANGE) {
            Ok(()) => {}
            // another program has removed the value
            Err(Errno::NOENT) => return Ok(()),
            Err(e) => return Err(e.into()),
        }
        let taken = named(&entry.directory, temporary.name())?;
        if is_same_file(&taken, &placed) {
            return Ok(());
        }
        placed = held;
        held = taken;
    }
    Err(Error::system(libc::EAGAIN))
}

fn named(directory: &OwnedFd, name: &str) -> Result<fs::Stat> {
    Ok(fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?)
}

fn is_same_file(one: &fs::Stat, other: &fs::Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

/// Returns whether a file that was renamed, which sets its change time, had this version before.
fn has_version(stat: &fs::Stat, version: &Version) -> bool {
    let now = stat_from(stat).version;
    match (now, version) {
        (
            Version::File {
                device,
                inode,
                modified,
                size,
                ..
            },
            Version::File {
                device: device_before,
                inode: inode_before,
                modified: modified_before,
                size: size_before,
                ..
            },
        ) => {
            (device, inode, modified, size)
                == (
                    *device_before,
                    *inode_before,
                    *modified_before,
                    *size_before,
                )
        }
        (now, before) => now == *before,
    }
}

/// Returns whether the file at an entry satisfies a condition now.
fn satisfies(entry: &OpenDirectoryName, replaces: Replaces) -> Result<bool> {
    let found = match fs::statat(&entry.directory, &entry.name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Some(stat_from(&stat).version),
        Err(Errno::NOENT) => None,
        Err(e) => return Err(e.into()),
    };
    Ok(match replaces {
        Replaces::Anything => true,
        Replaces::Nothing => found.is_none(),
        Replaces::Version(version) => found.as_ref() == Some(version),
    })
}

#[cfg(test)]
mod tests;
