//! Locks by which the zarrfs programs of one machine take turns at changing a value: flock(2) on
//! the stored file itself, so that a store needs no further files, and the locks hold across
//! containers and users. Such a lock saves work and waits; what keeps the values of others is the
//! condition under which a value is replaced (`replace`).
//!
//! A program that may read a file can lock it, so that a wait never ends in an error: after
//! [`WAIT_LIMIT`] the caller goes on without the lock.

use super::DirectoryStore;
use super::resolve::stat_of;
use crate::{EntryKind, Key};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstatfs, openat};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};
use zarrfs_base::error::Result;

/// Maximum time in which a program that takes turns stores an object.
const WAIT_LIMIT: Duration = Duration::from_secs(10);

/// First and longest pause between two attempts to take a lock. A program that writes and syncs a
/// chunk again and again leaves its lock for about 0.1 ms, which others have to meet.
const FIRST_PAUSE: Duration = Duration::from_micros(50);
const LAST_PAUSE: Duration = Duration::from_millis(1);

/// The magic numbers of file systems, as statfs(2) has them.
const NFS: i64 = 0x6969;
const LUSTRE: i64 = 0x0bd0_0bd0;
const SMB: [i64; 3] = [0x517b, 0xff53_4d42, 0xfe53_4d42];
const FUSE: i64 = 0x6573_5546;
const PLAN_9: i64 = 0x0102_1997;
const AFS: i64 = 0x5346_414f;

/// The programs that a lock of a file excludes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockReach {
    /// All that can reach the file: the file system is local, or passes locks on to its server.
    All,
    /// Those on this machine: a network file system keeps locks to itself, or may do so.
    ThisMachine,
    /// None, since a lock would keep others from reading the file.
    Nobody,
}

/// Returns the magic number of the file system of an open file, or 0 if it is not known.
#[allow(
    clippy::unnecessary_cast,
    reason = "the type depends on the architecture"
)]
pub(super) fn file_system_of(file: impl AsFd) -> i64 {
    fstatfs(file).map_or(0, |found| found.f_type as i64 & 0xffff_ffff)
}

fn reach_on(file_system: i64) -> LockReach {
    match file_system {
        FUSE | PLAN_9 | AFS | LUSTRE => LockReach::ThisMachine,
        magic if SMB.contains(&magic) => LockReach::Nobody,
        _ => LockReach::All,
    }
}

impl DirectoryStore {
    /// Returns which other programs take turns with this one at changing a value.
    pub fn lock_reach(&self) -> LockReach {
        reach_on(self.file_system)
    }

    /// Waits for the lock of a stored value, and takes it. Returns `None` if there is no value,
    /// if the file system has no such locks, and after [`WAIT_LIMIT`], measured from `since`.
    pub(super) fn lock_value(&self, key: &Key, since: Instant) -> Option<File> {
        if self.lock_reach() == LockReach::Nobody {
            return None;
        }
        loop {
            let file = self.lockable_file(key)?;
            if !wait_for_lock(&file, since) {
                return None;
            }
            // the value may have been replaced meanwhile, and the new one is another file
            let now = self.open_key(key.as_str(), OFlags::PATH).ok().flatten()?;
            if inode(&now).ok()? == inode(&file).ok()? {
                return Some(file);
            }
        }
    }

    /// Opens a value for a lock.
    fn lockable_file(&self, key: &Key) -> Option<File> {
        // NFS locks only files that are open for writing
        let access = if self.file_system == NFS {
            OFlags::RDWR
        } else {
            OFlags::RDONLY
        };
        let flags = access | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = File::from(self.open_key(key.as_str(), flags).ok().flatten()?);
        let is_value = stat_of(&file).ok()?.kind == EntryKind::Value;
        is_value.then_some(file)
    }

    /// Returns the directory with a lock of it, for comparing and replacing a value where the
    /// kernel can't do both at once. Without a lock after [`WAIT_LIMIT`], it returns `None`.
    pub(super) fn lock_directory(&self, directory: &OwnedFd) -> Option<File> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = openat(directory, ".", flags, Mode::empty()).ok()?;
        let file = File::from(opened);
        wait_for_lock(&file, Instant::now()).then_some(file)
    }
}

fn inode(file: impl AsFd) -> Result<(u64, u64)> {
    let stat = rustix::fs::fstat(file)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Waits for the lock of an open file. Returns whether it was taken.
fn wait_for_lock(file: &File, since: Instant) -> bool {
    let mut pause = FIRST_PAUSE;
    loop {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return true,
            Err(Errno::WOULDBLOCK) if since.elapsed() < WAIT_LIMIT => {
                std::thread::sleep(pause);
                pause = LAST_PAUSE.min(pause * 2);
            }
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_of_network_file_systems_may_not_reach_other_machines() {
        const EXT4: i64 = 0xef53;
        let folder = tempfile::tempdir().unwrap();
        let local = file_system_of(File::open(folder.path()).unwrap());
        assert_ne!(local, 0);
        for file_system in [local, EXT4, NFS] {
            assert_eq!(reach_on(file_system), LockReach::All);
        }
        assert_eq!(reach_on(FUSE), LockReach::ThisMachine);
        assert_eq!(reach_on(SMB[1]), LockReach::Nobody);
        let proc = file_system_of(File::open("/proc/self/stat").unwrap());
        assert_eq!(proc, 0x9fa0, "the numbers are those of statfs(2)");
    }
}
