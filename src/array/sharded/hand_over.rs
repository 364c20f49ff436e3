//! Hands encoded chunks over to the objects that will hold them, and describes these objects to the
//! cache. This module stores nothing.

use super::pending::{PendingBytes, PendingChunk, PendingChunks};
use super::{ShardedChunks, recorded};
use crate::array::{Array, Due, Ranges};
use std::sync::Arc;
use zarrfs_base::error::Result;
use zarrfs_base::memory::lock;
use zarrfs_format::grid::ChunkId;
use zarrfs_store::Version;

impl ShardedChunks {
    pub(super) fn pending(&self) -> Arc<PendingChunks> {
        lock(&self.pending).clone()
    }

    pub(super) fn pending_chunk(&self, array: &Array, chunk: ChunkId) -> Option<Arc<PendingChunk>> {
        self.pending()
            .get(self.outer_shard(array, chunk).number, chunk)
    }

    /// Hands over an encoded chunk, or erases it: see [`PendingChunks::put`].
    pub(super) fn hand_over(
        &self,
        array: &Array,
        chunk: ChunkId,
        bytes: Option<PendingBytes>,
        written: Option<&Ranges>,
        base: Option<Version>,
    ) -> Result<Option<Version>> {
        let object = self.outer_shard(array, chunk).number;
        self.pending()
            .put((object, chunk), bytes, written, base, |new| {
                recorded::record(array, chunk, new)
            })
            .map_err(|e| e.context(array.stored_key(chunk)))
    }
}

impl Array {
    /// Makes this array share the pending chunks of `old`, the same array with another first
    /// dimension.
    pub fn share_pending(&self, old: &Array) {
        if let (Some(new), Some(old)) = (self.in_shards(), old.in_shards()) {
            *lock(&new.pending) = old.pending();
        }
    }

    /// Returns whether chunks are *pending*: they were put, and wait for their objects, which
    /// [`Array::store_object`] stores.
    pub fn has_pending(&self) -> bool {
        self.in_shards()
            .is_some_and(|chunks| !chunks.pending().is_empty())
    }

    /// Returns the objects that are due to be stored.
    pub fn due(&self, due: Due) -> Vec<u64> {
        self.chunks.due(self, due)
    }

    /// Returns the pending chunks.
    pub fn pending_chunks(&self) -> Vec<ChunkId> {
        self.in_shards()
            .map_or_else(Vec::new, |chunks| chunks.pending().all())
    }

    /// Returns the number of encoded bytes of the pending chunks.
    pub fn pending_size(&self) -> u64 {
        self.in_shards().map_or(0, |chunks| chunks.pending().size())
    }

    /// Returns whether a pending chunk reaches beyond the end of the first dimension: growth would
    /// show its padding.
    pub fn has_pending_padding(&self) -> bool {
        let (Some(len), Some(chunk)) = (self.metadata.shape.first(), self.metadata.chunks.first())
        else {
            return false;
        };
        let counts = self.grid.counts();
        let last_row = counts[0].saturating_sub(1) * counts[1..].iter().product::<u64>();
        let last = self.in_shards().and_then(|chunks| chunks.pending().last());
        !len.is_multiple_of(*chunk) && last.is_some_and(|last| last.0 >= last_row)
    }
}
