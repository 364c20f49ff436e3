//! Reading neighboring chunks of one object by one request. A request to a remote store takes as
//! long as the transfer of megabytes, and the chunks of a shard are often much smaller.

use super::{Array, Lookup, Recency, Replacements, ShardBytes, ShardedChunks, StoredChunk};
use std::ops::Range;
use zarrfs_base::error::{Kind, Result};
use zarrfs_format::grid::ChunkId;
use zarrfs_store::{Stat, Version};

/// Maximum bytes between two chunks that are read together. The gap must also not exceed the size
/// of the second chunk. Receiving these bytes takes less time than another request.
const MAX_GAP: u64 = 64 << 10;

/// Maximum bytes of a request for several chunks.
const MAX_REQUEST: u64 = 16 << 20;

/// Chunks that are near each other in one object.
pub struct Neighbors {
    /// The chunks, in the order of their bytes.
    pub chunks: Vec<ChunkId>,
    /// The object that holds them.
    object: Stat,
    /// The range of the object that holds the chunks and the gaps between them.
    range: Range<u64>,
}

/// The bytes of neighbors, encoded.
pub struct NeighborBytes<'a> {
    /// The number of the object.
    number: u64,
    object: Stat,
    range: Range<u64>,
    bytes: &'a [u8],
}

impl Neighbors {
    /// Returns the number of bytes that one request for all of them returns.
    pub fn size(&self) -> usize {
        (self.range.end - self.range.start) as usize
    }
}

impl<'a> NeighborBytes<'a> {
    /// Returns the bytes of a chunk of an object; `None` if the neighbors do not include it.
    fn get(&self, number: u64, found: &StoredChunk) -> Option<&'a [u8]> {
        let ShardBytes::Stored(place) = &found.bytes else {
            return None;
        };
        if number != self.number || found.object.version != self.object.version {
            return None;
        }
        let start = place.start.checked_sub(self.range.start)? as usize;
        self.bytes
            .get(start..start + (place.end - place.start) as usize)
    }
}

impl Array {
    /// Returns whether neighboring chunks are worth reading together: they are in a remote object
    /// and have a known size.
    pub fn has_neighbors(&self) -> bool {
        self.in_shards().is_some() && self.is_remote() && !self.metadata.has_objects()
    }

    /// Returns groups of `chunks` that are near each other in their object, which must be the same
    /// for all. Leaves out chunks without a neighbor. May read indexes.
    pub fn neighbors(&self, chunks: &[ChunkId]) -> Vec<Neighbors> {
        let Some(in_shards) = self.in_shards() else {
            return Vec::new();
        };
        // the load of a damaged chunk reports the error
        let stored = chunks
            .iter()
            .filter_map(|&chunk| Some((chunk, in_shards.stored_range(self, chunk)?)));
        let mut stored: Vec<(ChunkId, (Stat, Range<u64>))> = stored.collect();
        stored.sort_unstable_by_key(|(_, (_, range))| range.start);
        let mut groups: Vec<Neighbors> = Vec::new();
        for (chunk, (object, range)) in stored {
            let gap = MAX_GAP.min(range.end - range.start);
            match groups.last_mut() {
                Some(group)
                    if group.object.version == object.version
                        && range.start <= group.range.end.saturating_add(gap)
                        && range.end - group.range.start <= MAX_REQUEST =>
                {
                    group.chunks.push(chunk);
                    group.range.end = group.range.end.max(range.end);
                }
                _ => groups.push(Neighbors {
                    chunks: vec![chunk],
                    object,
                    range,
                }),
            }
        }
        groups.retain(|group| group.chunks.len() > 1);
        groups
    }

    /// Returns the version and the bytes of a stored chunk of at most `limit` bytes, if they are in
    /// `neighbors` and the object has not been replaced since.
    ///
    /// # Errors
    ///
    /// Fails if the store fails while the index is confirmed.
    pub(in crate::array) fn in_neighbors<'a>(
        &self,
        chunk: ChunkId,
        limit: u64,
        neighbors: &NeighborBytes<'a>,
    ) -> Result<Option<(Version, &'a [u8])>> {
        let Some(in_shards) = self
            .in_shards()
            .filter(|in_shards| in_shards.pending_chunk(self, chunk).is_none())
        else {
            return Ok(None);
        };
        let found =
            match in_shards.locate(self, chunk, Recency::Opening, &mut Replacements::default()) {
                Ok(Some(found)) => found,
                // a load without neighbors returns the error
                Ok(None) => return Ok(None),
                Err(e) if e.kind() == Kind::Damaged => return Ok(None),
                Err(e) => return Err(e),
            };
        let number = self.object_of(chunk);
        let bytes = neighbors
            .get(number, &found)
            .filter(|bytes| bytes.len() as u64 <= limit);
        Ok(bytes.map(|bytes| (in_shards.stat_stored(self, chunk, &found).version, bytes)))
    }

    /// Reads the bytes of neighbors into `buffer`; `None` if the object was replaced.
    ///
    /// # Errors
    ///
    /// The error of the store, with the key.
    pub fn read_neighbors<'a>(
        &self,
        neighbors: &Neighbors,
        buffer: &'a mut Vec<u8>,
    ) -> Result<Option<NeighborBytes<'a>>> {
        let Some(first) = neighbors.chunks.first() else {
            return Ok(None);
        };
        let opening = self.freshness.opening();
        let read = self.timed_range(&self.stored_key(*first), neighbors.range.clone(), buffer)?;
        let is_same = read.is_some_and(|now| now.version.may_equal(&neighbors.object.version));
        if is_same && let Some(in_shards) = self.in_shards() {
            let id = in_shards.outer_shard(self, *first);
            in_shards.confirm_shard(id, &neighbors.object, opening);
        }
        Ok(
            (is_same && buffer.len() == neighbors.size()).then(|| NeighborBytes {
                number: self.object_of(*first),
                object: neighbors.object.clone(),
                range: neighbors.range.clone(),
                bytes: buffer,
            }),
        )
    }
}

impl ShardedChunks {
    /// Returns the object of a chunk, and the range of the chunk in it; `None` if the chunk is not
    /// stored there, or is larger than any chunk can be.
    fn stored_range(&self, array: &Array, chunk: ChunkId) -> Option<(Stat, Range<u64>)> {
        if self.pending_chunk(array, chunk).is_some() {
            return None;
        }
        let Lookup::Found(found) = self.try_locate(array, chunk, Recency::Any).ok()? else {
            return None;
        };
        match found.bytes {
            ShardBytes::Stored(_) if found.is_read_whole() => None,
            ShardBytes::Stored(range)
                if range.end - range.start <= array.pipeline().ok()?.max_stored() =>
            {
                Some((found.object, range))
            }
            _ => None,
        }
    }
}
