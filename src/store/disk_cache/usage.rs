//! How many bytes a cache's files take, in a file of its own that is locked for each change: the programs that use one
//! cache count together, and a count outlives them. It may be too high after a crash, never too low; who makes room
//! sets it right. Nobody waits long for a lock: a program may be stopped while it holds one.

use crate::error::Result;
use crate::util::memory::lock;
use rustix::fs::{self, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::time::Duration;

/// How often a lock is tried for, and the pause before the next time.
const ATTEMPTS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(1);

/// The count.
pub(super) struct Usage {
    file: File,
    /// Held with the lock of the file, which doesn't hold back other threads of ours.
    turn: Mutex<()>,
}

impl Usage {
    /// The count in a cache's directory.
    pub fn open(directory: &OwnedFd) -> Result<Self> {
        Ok(Usage { file: open(directory, "used")?, turn: Mutex::default() })
    }

    /// The bytes counted; None if there is no count yet, or no telling.
    pub fn get(&self) -> Option<u64> {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, 0).ok()?;
        Some(u64::from_le_bytes(bytes))
    }

    /// Sets the count to what `change` makes of it; nothing is done without the lock.
    pub fn change(&self, change: impl FnOnce(u64) -> u64) {
        self.locked(|used| Some(change(used)));
    }

    /// Adds `more` bytes unless there would be more than `limit`; false if so, or if that can't be told.
    pub fn add_within(&self, more: u64, limit: u64) -> bool {
        self.locked(|used| used.checked_add(more).filter(|sum| *sum <= limit))
    }

    fn locked(&self, change: impl FnOnce(u64) -> Option<u64>) -> bool {
        let _turn = lock(&self.turn);
        let Some(_lock) = Lock::take(&self.file) else { return false };
        let Some(used) = change(self.get().unwrap_or(0)) else { return false };
        self.file.write_all_at(&used.to_le_bytes(), 0).is_ok()
    }
}

/// Held by the one who makes room.
pub(super) struct Evicting {
    /// Closing it gives the lock back.
    _file: File,
}

impl Evicting {
    /// None if somebody else makes room just now.
    pub fn begin(directory: &OwnedFd) -> Option<Self> {
        // opened for each: another thread's lock is another one's
        let file = open(directory, "evicting").ok()?;
        let is_taken = fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
        is_taken.then_some(Evicting { _file: file })
    }
}

struct Lock<'a>(&'a File);

impl<'a> Lock<'a> {
    fn take(file: &'a File) -> Option<Self> {
        for _ in 0..ATTEMPTS {
            match fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Some(Lock(file)),
                Err(Errno::WOULDBLOCK | Errno::INTR) => std::thread::sleep(PAUSE),
                Err(_) => return None,
            }
        }
        None
    }
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        let _ = fs::flock(self.0, FlockOperation::Unlock);
    }
}

fn open(directory: &OwnedFd, name: &str) -> Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(File::from(fs::openat(directory, name, flags, Mode::RUSR | Mode::WUSR)?))
}
