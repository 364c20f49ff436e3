//! Prefetching neighboring chunks of one object by one request.

use super::{CachedItem, ChunkPart, Prefetched, Wanted};
use crate::array::{Array, Neighbors};
use crate::cache::Cache;
use std::collections::HashSet;
use zarrfs_format::grid::ChunkId;

/// A buffer for the encoded bytes of neighbors, whose memory is reserved until this is dropped.
struct NeighborBuffer<'a> {
    cache: &'a Cache,
    array: &'a Array,
    bytes: Vec<u8>,
    reserved: usize,
}

impl Drop for NeighborBuffer<'_> {
    fn drop(&mut self) {
        self.cache
            .buffers
            .keep_encoded(std::mem::take(&mut self.bytes));
        let mut state = self.cache.lock();
        state.reserved.remove(self.array, self.reserved);
        self.cache.trim(&state);
        self.cache.wake(&state);
    }
}

impl Cache {
    /// Returns the `chunks` that the cache lacks, as groups of neighbors and as single chunks. All
    /// must be in one object, whose index this function may read.
    pub(in crate::cache) fn lacking(
        &self,
        array: &Array,
        chunks: &[ChunkId],
    ) -> (Vec<Neighbors>, Vec<ChunkId>) {
        let mut single = Vec::new();
        let mut new = Vec::new();
        for &chunk in chunks {
            let item = CachedItem::Chunk(chunk);
            if self.holds(array, item, ChunkPart::Whole) {
                continue;
            }
            // a chunk that is held since an older opening is confirmed by a smaller request
            if self.lock().slots.contains(&(array.id(), item)) {
                single.push(chunk);
            } else {
                new.push(chunk);
            }
        }
        let groups = array.neighbors(&new);
        let grouped: HashSet<ChunkId> = groups
            .iter()
            .flat_map(|group| group.chunks.iter().copied())
            .collect();
        single.extend(new.into_iter().filter(|chunk| !grouped.contains(chunk)));
        (groups, single)
    }

    /// Prefetches neighbors by one request. Loads them one by one if there is no memory for all of
    /// them, or if their object was replaced.
    pub(in crate::cache) fn prefetch_neighbors(&self, array: &Array, neighbors: &Neighbors) {
        if !self.load_neighbors(array, neighbors) {
            let mut chunks = neighbors.chunks.iter();
            let _ = chunks.all(|chunk| self.prefetch(array, *chunk, ChunkPart::Whole));
        }
    }

    fn load_neighbors(&self, array: &Array, neighbors: &Neighbors) -> bool {
        let Some(mut buffer) = self.neighbor_buffer(array, neighbors.size()) else {
            return false;
        };
        let mut slots = Vec::new();
        for chunk in &neighbors.chunks {
            let item = CachedItem::Chunk(*chunk);
            match self.begin_prefetch(array, item, ChunkPart::Whole, array.chunk_memory()) {
                Prefetched::Present => {}
                Prefetched::NoMemory => return false,
                Prefetched::Begun(begun) => slots.push((*chunk, begun)),
            }
        }
        let bytes = match array.read_neighbors(neighbors, &mut buffer.bytes) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return false,
            // a reader of a chunk gets its own error, and must not wait until this thread has tried
            // each of them
            Err(_) => return true,
        };
        for (chunk, begun) in slots {
            let (slot, previous) = *begun;
            // a reader of the chunk gets the error
            let _ = self.insert(slot, previous, Wanted::Neighbor(chunk, &bytes));
        }
        true
    }

    /// Returns a buffer that may grow to `len` bytes, or `None` if there is no memory for it.
    fn neighbor_buffer<'a>(&'a self, array: &'a Array, len: usize) -> Option<NeighborBuffer<'a>> {
        let mut bytes = self.buffers.take_encoded();
        let mut state = self.lock();
        if bytes.capacity() > len && !self.evict_unprefetched(&mut state, bytes.capacity(), None) {
            bytes = Vec::new();
        }
        let reserved = bytes.capacity().max(len);
        if !self.evict_unprefetched(&mut state, reserved, None) {
            return None;
        }
        state.reserved.add(array, reserved);
        self.trim(&state);
        Some(NeighborBuffer {
            cache: self,
            array,
            bytes,
            reserved,
        })
    }
}

#[cfg(test)]
mod tests;
