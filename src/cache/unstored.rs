//! What was written and is not stored yet, for statistics and messages.

use super::Cache;
use crate::array::Array;
use crate::store::Key;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// Chunks of an array that were written and are not stored, with the bytes that they have decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnstoredChunks {
    /// The array's key.
    pub array: Key,
    /// Number of chunks.
    pub chunks: u64,
    /// Decoded bytes of the chunks.
    pub bytes: u64,
}

impl Cache {
    /// Returns the number of chunks that are not stored, and their decoded bytes. A chunk that waits for its shard and was
    /// written again counts twice.
    pub fn unstored_total(&self) -> (u64, u64) {
        let (dirty, bytes, pending) = {
            let state = self.lock();
            (state.dirty.len() as u64, state.dirty_bytes as u64, state.pending.values().cloned().collect::<Vec<_>>())
        };
        pending.iter().fold((dirty, bytes), |(chunks, bytes), array| {
            let count = pending_count(array);
            (chunks + count, bytes + count * array.grid().chunk_size() as u64)
        })
    }

    /// Returns what is not stored, by array. Never waits for the store.
    pub fn unstored(&self) -> Vec<UnstoredChunks> {
        let mut found: BTreeMap<Key, (usize, HashSet<u64>)> = BTreeMap::new();
        let pending: Vec<Arc<Array>> = {
            let state = self.lock();
            for dirty in state.dirty.values() {
                let (size, chunks) = found.entry(dirty.array.key().clone()).or_default();
                *size = dirty.size();
                chunks.insert(dirty.chunk.0);
            }
            state.pending.values().cloned().collect()
        };
        for array in pending {
            for object in array.pending().objects() {
                let (size, chunks) = found.entry(array.key().clone()).or_default();
                *size = array.grid().chunk_size();
                chunks.extend(array.pending().chunks(object).keys().map(|chunk| chunk.0));
            }
        }
        let counted = found.into_iter().map(|(array, (size, chunks))| {
            let chunks = chunks.len() as u64;
            UnstoredChunks { array, chunks, bytes: chunks * size as u64 }
        });
        counted.collect()
    }
}

fn pending_count(array: &Array) -> u64 {
    let pending = array.pending();
    pending.objects().into_iter().map(|object| pending.chunks(object).len() as u64).sum()
}
