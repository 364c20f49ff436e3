//! Reads one version of an archive by ranges. This module does not know the format.

use crate::error::{Error, Result};
use crate::store::directory::stat_of;
use crate::store::{EntryKind, Key, Stat, Store, read_at};
use crate::util::memory;
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

/// Why a read from an archive failed.
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

/// Returns the error that the archive contradicts itself.
pub(super) fn damaged(why: impl Into<String>) -> ArchiveError {
    ArchiveError::Other(Error::damaged(why))
}

/// An archive in the version that was opened.
pub(super) struct ArchiveFile {
    below: Arc<dyn Store>,
    key: Key,
    /// The open file if the archive is local, since resolving its name for each read would double the cost.
    file: Option<File>,
    /// Metadata of the archive.
    pub stat: Stat,
}

impl ArchiveFile {
    /// Opens the value of `key`.
    pub fn open(below: Arc<dyn Store>, key: Key) -> Result<Self> {
        let (file, stat) = match below.file(&key)? {
            Some((file, stat)) => (Some(file), Some(stat)),
            None => (None, below.stat(&key)?),
        };
        let Some(stat) = stat else { return Err(Error::not_found("no such archive")) };
        match stat.kind {
            EntryKind::Value => Ok(ArchiveFile { below, key, file, stat }),
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
            Some(now) if now.version == self.stat.version => Ok(()),
            _ => Err(ArchiveError::Changed),
        }
    }

    /// Reads the bytes of `range` into `out`.
    ///
    /// # Errors
    ///
    /// [`Kind::Damaged`](crate::error::Kind::Damaged) if the archive ends earlier.
    pub fn read_all(&self, range: Range<u64>, out: &mut Vec<u8>) -> ArchiveResult<()> {
        let want = range.end - range.start;
        self.read(range, out)?;
        if out.len() as u64 == want { Ok(()) } else { Err(damaged("truncated")) }
    }
}
