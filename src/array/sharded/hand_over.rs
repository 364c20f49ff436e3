//! Hands encoded chunks over to the objects that will hold them, and describes these objects to the
//! cache. This module stores nothing.

use super::ShardedChunks;
use super::pending::{PendingBytes, PendingChunk, PendingChunks};
use crate::array::{Array, Ranges};
use std::sync::Arc;
use std::time::Instant;
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
            .put((object, chunk), bytes, written, base)
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

    /// Returns the objects with pending chunks, the one that waits longest first.
    pub fn pending_objects(&self) -> Vec<u64> {
        self.in_shards()
            .map_or_else(Vec::new, |chunks| chunks.pending().objects())
    }

    /// Returns whether an object with pending chunks could not be stored.
    pub fn has_failed_objects(&self) -> bool {
        self.in_shards()
            .is_some_and(|chunks| chunks.pending().has_failed())
    }

    /// Returns the objects with pending chunks that have not changed for a while.
    pub fn quiet_objects(&self, now: Instant) -> Vec<u64> {
        self.in_shards()
            .map_or_else(Vec::new, |chunks| chunks.pending().quiet(now))
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

    /// Returns the object that holds a chunk, if every chunk of that object is pending as a whole,
    /// so that the new object keeps nothing of the stored one.
    pub fn complete_object(&self, chunk: ChunkId) -> Option<u64> {
        let chunks = self.in_shards()?;
        let id = chunks.outer_shard(self, chunk);
        chunks
            .pending()
            .is_complete(id.number, chunks.shards.count(id, &self.grid))
            .then_some(id.number)
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
