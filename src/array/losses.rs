//! Written bytes that cannot be stored any more, because another program has replaced, shrunk or
//! deleted their array.
//!
//! Invariant: each loss is reported by an error of the next close or fsync of a file of the array,
//! or of the next sync of everything, which unmounting needs; every open file that wrote reports
//! it, too (`fs/write_record.rs`). Therefore the step that notices a loss records it here at once,
//! instead of returning it: a later failure of the same request would hide it, and a request that
//! only needs memory would fail for bytes that it did not write.

use super::{Array, WriteBack};
use std::collections::HashMap;
use std::sync::Mutex;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory::lock;
use zarrfs_format::grid::ChunkId;
use zarrfs_store::Key;

/// The first loss of each array, by the array's key, until a request reports it.
#[derive(Default)]
pub struct Losses(Mutex<HashMap<Key, Error>>);

impl Losses {
    /// Returns the error for bytes that were lost since the last call, in arrays for which `of`
    /// returns true. The caller reports it before any other error, since others recur at the next
    /// attempt to store.
    ///
    /// # Errors
    ///
    /// ESTALE if bytes were lost.
    pub fn take(&self, of: impl Fn(&Key) -> bool) -> Result<()> {
        let taken: Vec<_> = lock(&self.0).extract_if(|key, _| of(key)).collect();
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
}

impl Array {
    /// Records that written bytes of a chunk are lost.
    pub fn record_loss(&self, chunk: ChunkId, why: &str, how: WriteBack) {
        self.freshness.record_loss();
        let what = format!(
            "{why} meanwhile: what was written is lost; open the file again and write anew"
        );
        let e = Error::stale().context(what).context(self.stored_key(chunk));
        let e = self.stats.not_stored(e);
        if let Some(losses) = how.losses {
            lock(&losses.0).entry(self.key.clone()).or_insert(e);
        }
    }
}
