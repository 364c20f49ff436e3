//! Written bytes that cannot be stored any more, because another program has replaced, shrunk or
//! deleted their array.
//!
//! Invariant: each loss is reported by an error of the next close or fsync of a file of the array,
//! or of the next sync of everything, which unmounting needs; every open file that wrote reports
//! it, too (`fs/write_record.rs`). Therefore the step that notices a loss records it here at once,
//! instead of returning it: a later failure of the same request would hide it, and a request that
//! only needs memory would fail for bytes that it did not write.

use crate::array::Array;
use crate::cache::Cache;
use std::collections::{HashMap, HashSet};
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory::lock;
use zarrfs_store::Key;

/// Losses and failures that no request has reported yet, by the keys of arrays.
#[derive(Default)]
pub(in crate::cache) struct Failures {
    /// The first loss of each array, until it is reported.
    lost: HashMap<Key, Error>,
    /// Arrays with an object that could not be stored. It is tried again.
    unstored: HashSet<Key>,
}

impl Cache {
    /// Records that written bytes of `array` are lost.
    pub(super) fn record_loss(&self, array: &Array, e: Error) {
        let e = self.stats.not_stored(e);
        lock(&self.failures)
            .lost
            .entry(array.key().clone())
            .or_insert(e);
    }

    /// Returns the error for bytes that were lost since the last call, in arrays for which `of`
    /// returns true. The caller reports it before any other error, since others recur at the next
    /// attempt to store.
    ///
    /// # Errors
    ///
    /// ESTALE if bytes were lost.
    pub fn take_losses(&self, of: impl Fn(&Key) -> bool) -> Result<()> {
        let taken: Vec<_> = lock(&self.failures)
            .lost
            .extract_if(|key, _| of(key))
            .collect();
        let count = taken.len();
        let Some((_, e)) = taken.into_iter().min_by(|a, b| a.0.cmp(&b.0)) else {
            return Ok(());
        };
        if count == 1 {
            return Err(e);
        }
        let others = count - 1;
        Err(e.context(format!("and {others} more arrays, see .zarrfs/stats")))
    }

    /// Records that an object of `array` could not be stored.
    pub(super) fn record_unstored_object(&self, array: &Array) {
        lock(&self.failures).unstored.insert(array.key().clone());
    }

    /// Returns whether an object of `array` could not be stored, and forgets it, because the caller
    /// tries again.
    pub(super) fn take_unstored_object(&self, array: &Array) -> bool {
        lock(&self.failures).unstored.remove(array.key())
    }
}

#[cfg(test)]
mod tests;
