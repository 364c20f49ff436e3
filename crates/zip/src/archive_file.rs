//! Reads one version of an archive by ranges. This module does not know the format.

use std::collections::VecDeque;
use std::fs::File;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory::{self, Grant, lock};
use zarrfs_store::{EntryKind, Key, Stat, Store, StoreExt, read_at, stat_of};

/// Number of bytes that are read for a small member of a remote archive: documents lie side by
/// side.
const WINDOW: u64 = 64 << 10;

/// Number of windows that are kept.
const WINDOWS: usize = 8;

/// The error of a read from an archive.
#[derive(Debug)]
pub(super) enum ArchiveError {
    /// The archive has changed since it was opened.
    Changed,
    /// Any other error.
    Other(Error),
}

/// The result of a read from an archive.
pub(super) type ArchiveResult<T> = std::result::Result<T, ArchiveError>;

impl From<Error> for ArchiveError {
    fn from(e: Error) -> Self {
        ArchiveError::Other(e)
    }
}

/// Returns the error for an archive that is damaged or contradicts itself.
pub(super) fn damaged(why: impl Into<String>) -> ArchiveError {
    ArchiveError::Other(Error::damaged(why))
}

/// An archive in the version that was opened.
pub(super) struct ArchiveFile {
    below: Arc<dyn Store>,
    key: Key,
    /// The open file if the archive is local, since resolving its name for each read would double
    /// the cost.
    file: Option<File>,
    /// Metadata of the archive.
    pub stat: Stat,
    /// Whether a command reads the archive once, so that bytes that were read need no revalidation.
    keeps_windows: AtomicBool,
    /// The windows that were read last. The lock protects the list alone.
    windows: Mutex<VecDeque<ReadWindow>>,
}

/// Bytes of a remote archive.
struct ReadWindow {
    start: u64,
    bytes: Vec<u8>,
    /// Grant for the memory of the bytes.
    _memory: Grant,
}

impl ReadWindow {
    /// Replaces the content of `out` by the bytes of `range`, if the window has them.
    fn copy(&self, range: Range<u64>, out: &mut Vec<u8>) -> bool {
        let Some(from) = range.start.checked_sub(self.start) else {
            return false;
        };
        let from = from as usize;
        let len = (range.end - range.start) as usize;
        let Some(found) = self.bytes.get(from..from + len) else {
            return false;
        };
        out.clear();
        out.extend_from_slice(found);
        true
    }
}

impl ArchiveFile {
    /// Opens the value of `key`.
    pub fn open(below: Arc<dyn Store>, key: Key) -> Result<Self> {
        let (file, stat) = match below.file(&key)? {
            Some((file, stat)) => (Some(file), Some(stat)),
            None => (None, below.stat(&key)?),
        };
        let Some(stat) = stat else {
            return Err(Error::not_found("no such archive"));
        };
        match stat.kind {
            EntryKind::Value => Ok(ArchiveFile {
                below,
                key,
                file,
                stat,
                keeps_windows: AtomicBool::new(false),
                windows: Mutex::default(),
            }),
            _ => Err(Error::damaged("is not a file")),
        }
    }

    /// Returns whether small reads are cheap.
    pub fn is_local(&self) -> bool {
        self.file.is_some()
    }

    /// Reads the bytes of `range` into `out`, fewer if the archive ends earlier.
    pub fn read(&self, range: Range<u64>, out: &mut Vec<u8>) -> ArchiveResult<()> {
        let now = match &self.file {
            Some(file) => {
                let end = range.end.min(self.stat.size);
                memory::resize(out, end.saturating_sub(range.start) as usize)?;
                read_at(file, range.start, out)?;
                // another process may be writing the archive in place
                Some(stat_of(file)?)
            }
            None => self.below.get_range(&self.key, range, out)?,
        };
        match now {
            Some(now) if now.version.may_equal(&self.stat.version) => Ok(()),
            _ => Err(ArchiveError::Changed),
        }
    }

    /// Keeps the bytes after a small member for the members that follow, because the archive is
    /// read once.
    pub fn keep_windows(&self) {
        self.keeps_windows.store(true, Ordering::Relaxed);
    }

    /// Reads like [`ArchiveFile::read`]. If the archive is remote and read once, also reads the
    /// bytes after a small range, for the small members that follow.
    pub fn read_with_neighbors(&self, range: Range<u64>, out: &mut Vec<u8>) -> ArchiveResult<()> {
        let end = range.end.min(self.stat.size);
        if self.is_local()
            || !self.keeps_windows.load(Ordering::Relaxed)
            || end <= range.start
            || end - range.start > WINDOW / 4
        {
            return self.read(range, out);
        }
        let start = range.start;
        if lock(&self.windows)
            .iter()
            .any(|window| window.copy(start..end, out))
        {
            return Ok(());
        }
        let len = WINDOW.min(self.stat.size - range.start);
        let Ok(memory) = memory::take(len as usize) else {
            return self.read(range, out);
        };
        let mut bytes = Vec::new();
        self.read_all(start..start + len, &mut bytes)?;
        let window = ReadWindow {
            start,
            bytes,
            _memory: memory,
        };
        if !window.copy(start..end, out) {
            return Err(damaged("truncated"));
        }
        let mut windows = lock(&self.windows);
        windows.truncate(WINDOWS - 1);
        windows.push_front(window);
        Ok(())
    }

    /// Reads the bytes of `range` into `out`.
    ///
    /// # Errors
    ///
    /// [`Kind::Damaged`](zarrfs_base::error::Kind::Damaged) if the archive ends earlier.
    pub fn read_all(&self, range: Range<u64>, out: &mut Vec<u8>) -> ArchiveResult<()> {
        let want = range.end - range.start;
        self.read(range, out)?;
        if out.len() as u64 == want {
            Ok(())
        } else {
            Err(damaged("truncated"))
        }
    }
}
