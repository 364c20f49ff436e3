//! Hands encoded chunks over to the objects that will hold them, and describes these objects to the
//! cache. This module stores nothing.

use crate::array::pending::{PendingBytes, PendingChunk, PendingChunks};
use crate::array::{Array, Ranges};
use std::sync::Arc;
use zarrfs_base::error::Result;
use zarrfs_base::memory::lock;
use zarrfs_format::grid::ChunkId;
use zarrfs_store::{Key, Version};

impl Array {
    /// Returns the pending chunks. An array without shards has none.
    pub fn pending(&self) -> Arc<PendingChunks> {
        lock(&self.pending).clone()
    }

    /// Makes this array share the pending chunks of `old`, the same array with another first
    /// dimension.
    pub fn share_pending(&self, old: &Array) {
        *lock(&self.pending) = old.pending();
    }

    /// Returns whether chunks are in shards. Such a chunk is *handed over* first;
    /// [`Array::store_object`] stores it later.
    pub fn has_shards(&self) -> bool {
        self.shards.is_some()
    }

    /// Returns the key of an object that holds shards.
    pub fn object_key(&self, object: u64) -> Key {
        match &self.shards {
            Some(shards) => self.key.join(
                &shards
                    .objects()
                    .stored_key(ChunkId(object), self.key_encoding()),
            ),
            None => self.key.clone(),
        }
    }

    /// Returns a key to lock while a chunk is written back: the key of its value or, for a chunk in
    /// a shard, a key under which nothing is stored.
    pub fn write_back_key(&self, chunk: ChunkId) -> Key {
        if self.has_shards() {
            self.key.join(&format!(".chunk-{}", chunk.0))
        } else {
            self.stored_key(chunk)
        }
    }

    pub(super) fn pending_chunk(&self, chunk: ChunkId) -> Option<Arc<PendingChunk>> {
        self.pending().get(self.shard_of(chunk)?, chunk)
    }

    /// Hands over an encoded chunk of a shard, or erases it: see [`PendingChunks::put`].
    pub(in crate::array) fn hand_over(
        &self,
        chunk: ChunkId,
        bytes: Option<PendingBytes>,
        written: Option<&Ranges>,
        base: Option<Version>,
    ) -> Result<Option<Version>> {
        let Some(object) = self.shard_of(chunk) else {
            return Ok(None);
        };
        self.pending()
            .put((object, chunk), bytes, written, base)
            .map_err(|e| e.context(self.stored_key(chunk)))
    }

    /// Returns the object that holds a chunk, if every chunk of that object was handed over as a
    /// whole, so that the new object keeps nothing of the stored one.
    pub fn complete_object(&self, chunk: ChunkId) -> Option<u64> {
        let shards = self.shards.as_ref()?;
        let id = self.outer_shard(shards, chunk);
        self.pending()
            .is_complete(id.number, shards.count(id, &self.grid))
            .then_some(id.number)
    }

    /// Returns whether a pending chunk reaches beyond the end of the first dimension: growth would
    /// show its padding.
    pub fn has_pending_padding(&self) -> bool {
        let (Some(shards), Some(len), Some(chunk)) = (
            &self.shards,
            self.metadata.shape.first(),
            self.metadata.chunks.first(),
        ) else {
            return false;
        };
        let pending = self.pending();
        let last = self.grid.counts()[0].saturating_sub(1);
        let first_object = shards.objects().counts()[0].saturating_sub(1)
            * shards.objects().counts()[1..].iter().product::<u64>();
        !len.is_multiple_of(*chunk)
            && pending
                .objects()
                .into_iter()
                .filter(|object| *object >= first_object)
                .flat_map(|object| pending.chunks(object).into_keys())
                .any(|chunk| self.grid.indices(chunk)[0] == last)
    }
}
