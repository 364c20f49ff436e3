//! Chunks that were written and are not stored yet, for statistics and messages.

use super::Cache;
use std::collections::{BTreeMap, HashMap};
use zarrfs_format::grid::ChunkId;
use zarrfs_store::Key;

/// The number of chunks of an array that were written and are not stored, and their size.
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
    /// Returns the number of chunks that are not stored, and their decoded bytes. A chunk that
    /// waits for its object and was written again counts twice.
    pub fn unstored_total(&self) -> (u64, u64) {
        let state = self.lock();
        let mut chunks = state.dirty.len();
        let mut bytes = state.dirty_bytes;
        let arrays: Vec<_> = state.pending.values().cloned().collect();
        drop(state);
        for array in arrays {
            let count = array.pending_chunks().len();
            chunks += count;
            bytes += count * array.grid().max_chunk_size();
        }
        (chunks as u64, bytes as u64)
    }

    /// Returns the chunks that are not stored, by array. Never waits for the store.
    pub fn unstored(&self) -> Vec<UnstoredChunks> {
        let mut found: BTreeMap<Key, HashMap<ChunkId, usize>> = BTreeMap::new();
        let state = self.lock();
        for dirty in state.dirty.values() {
            let chunks = found.entry(dirty.array.key().clone()).or_default();
            chunks.insert(dirty.chunk, dirty.size());
        }
        let arrays: Vec<_> = state.pending.values().cloned().collect();
        drop(state);
        for array in arrays {
            let pending = array.pending_chunks();
            if !pending.is_empty() {
                let sized = pending
                    .into_iter()
                    .map(|chunk| (chunk, array.grid().chunk_size(chunk)));
                let chunks = found.entry(array.key().clone()).or_default();
                chunks.extend(sized);
            }
        }
        found
            .into_iter()
            .map(|(array, chunks)| UnstoredChunks {
                array,
                chunks: chunks.len() as u64,
                bytes: chunks.values().map(|size| *size as u64).sum(),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests;
