//! The bytes of one archive: the value of a key in the store below, by ranges, all of one version. It knows nothing of
//! what is in them.

use crate::error::{Error, Result};
use crate::store::directory::stat_of;
use crate::store::{EntryKind, Key, Stat, Store, read_at};
use crate::util::memory;
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

/// Why something of an archive can't be had.
#[derive(Debug)]
pub(super) enum Failure {
    /// The archive is not the one any more that was opened.
    Changed,
    /// Anything else.
    Error(Error),
}

/// What reading an archive gives.
pub(super) type Outcome<T> = std::result::Result<T, Failure>;

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        Failure::Error(e)
    }
}

/// The archive is not what its own directory says.
pub(super) fn damaged(why: impl Into<String>) -> Failure {
    Failure::Error(Error::damaged(why))
}

/// An archive as it was when it was opened.
pub(super) struct Archive {
    below: Arc<dyn Store>,
    key: Key,
    /// Open, where it is a file of the local system: to look its name up for each read would cost as much as the read.
    file: Option<File>,
    /// Of the whole archive.
    pub stat: Stat,
}

impl Archive {
    /// Opens the value of `key`.
    pub fn open(below: Arc<dyn Store>, key: Key) -> Result<Self> {
        let (file, stat) = match below.file(&key)? {
            Some((file, stat)) => (Some(file), Some(stat)),
            None => (None, below.stat(&key)?),
        };
        let Some(stat) = stat else { return Err(Error::not_found("no such archive")) };
        match stat.kind {
            EntryKind::Value => Ok(Archive { below, key, file, stat }),
            _ => Err(Error::damaged("is not a file")),
        }
    }

    /// True if a read costs next to nothing, however little it brings.
    pub fn is_local(&self) -> bool {
        self.file.is_some()
    }

    /// Reads the bytes of `range` into `out`, fewer where the archive ends before.
    pub fn read(&self, range: Range<u64>, out: &mut Vec<u8>) -> Outcome<()> {
        let now = match &self.file {
            Some(file) => {
                let end = range.end.min(self.stat.size);
                memory::resize(out, end.saturating_sub(range.start) as usize)?;
                read_at(file, range.start, out)?;
                // what was read may be of an archive that is written in place just now
                Some(stat_of(file)?)
            }
            None => self.below.get_range(&self.key, range, out)?,
        };
        match now {
            Some(now) if now.version == self.stat.version => Ok(()),
            _ => Err(Failure::Changed),
        }
    }

    /// As [`Archive::read`], but of an archive that ends before the range does.
    pub fn read_all(&self, range: Range<u64>, out: &mut Vec<u8>) -> Outcome<()> {
        let want = range.end - range.start;
        self.read(range, out)?;
        if out.len() as u64 == want { Ok(()) } else { Err(damaged("cut short")) }
    }
}
