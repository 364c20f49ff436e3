//! The number of bytes that a cache takes on disk, stored in a locked file, since several programs
//! share the cache. After a crash the number may be too high, never too low; the next eviction
//! corrects it. A program may be stopped while it holds the lock, so waits for it are short.

use rustix::fs::{self, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::time::Duration;
use zarrfs_base::error::Result;
use zarrfs_base::memory::lock;

/// Maximum number of attempts to take the lock, and the pause between them.
const ATTEMPTS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(1);

/// The content of the file, in little-endian order.
#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    /// Number of bytes in use.
    pub used: u64,
    /// Number of bytes that were ever added. Its increase during the scan of an eviction shows the
    /// bytes that were added meanwhile.
    pub added: u64,
}

/// The file with the counts.
pub(super) struct Usage {
    file: File,
    /// Held together with the lock of the file, which does not exclude other threads of this
    /// process.
    guard: Mutex<()>,
}

impl Usage {
    /// Opens the file in the directory of a cache.
    pub fn open(directory: &OwnedFd) -> Result<Self> {
        Ok(Usage {
            file: open(directory, "used")?,
            guard: Mutex::default(),
        })
    }

    /// Returns the counts, or `None` if they are unknown.
    pub fn get(&self) -> Option<Counts> {
        let mut bytes = [0; 16];
        self.file.read_exact_at(&mut bytes, 0).ok()?;
        let used = bytes.first_chunk()?;
        let added = bytes.last_chunk()?;
        Some(Counts {
            used: u64::from_le_bytes(*used),
            added: u64::from_le_bytes(*added),
        })
    }

    /// Replaces the number of bytes in use by the result of `change`. Does nothing if the lock is
    /// not free in time.
    pub fn change(&self, change: impl FnOnce(Counts) -> u64) {
        self.locked(|counts| {
            Some(Counts {
                used: change(counts),
                ..counts
            })
        });
    }

    /// Adds `more` bytes, which `take` takes on disk while the lock is held. Returns `false` if the
    /// sum would exceed `limit`, if the lock is not free in time, or if `take` fails.
    pub fn add_within(&self, more: u64, limit: u64, take: impl FnOnce() -> bool) -> bool {
        self.locked(|counts| {
            let used = counts.used.checked_add(more).filter(|sum| *sum <= limit)?;
            take().then_some(Counts {
                used,
                added: counts.added.wrapping_add(more),
            })
        })
    }

    fn locked(&self, change: impl FnOnce(Counts) -> Option<Counts>) -> bool {
        let _guard = lock(&self.guard);
        let Some(_lock) = UsageLock::take(&self.file) else {
            return false;
        };
        let Some(counts) = change(self.get().unwrap_or_default()) else {
            return false;
        };
        let bytes = [counts.used.to_le_bytes(), counts.added.to_le_bytes()].concat();
        self.file.write_all_at(&bytes, 0).is_ok()
    }
}

/// The right to evict files, which one program has at a time.
pub(super) struct EvictionLock {
    /// Closing the file releases the lock.
    _file: File,
}

impl EvictionLock {
    /// Takes the right to evict files. Returns `None` if another thread or program has it.
    pub fn begin(directory: &OwnedFd) -> Option<Self> {
        // each call opens the file, since locks of one open file do not exclude threads
        let file = open(directory, "evicting").ok()?;
        let is_taken = fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
        is_taken.then_some(EvictionLock { _file: file })
    }
}

struct UsageLock<'a>(&'a File);

impl<'a> UsageLock<'a> {
    fn take(file: &'a File) -> Option<Self> {
        for _ in 0..ATTEMPTS {
            match fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Some(UsageLock(file)),
                Err(Errno::WOULDBLOCK | Errno::INTR) => std::thread::sleep(PAUSE),
                Err(_) => return None,
            }
        }
        None
    }
}

impl Drop for UsageLock<'_> {
    fn drop(&mut self) {
        let _ = fs::flock(self.0, FlockOperation::Unlock);
    }
}

fn open(directory: &OwnedFd, name: &str) -> Result<File> {
    let flags =
        OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(File::from(fs::openat(
        directory,
        name,
        flags,
        Mode::RUSR | Mode::WUSR,
    )?))
}
