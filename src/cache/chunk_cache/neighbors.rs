//! Prefetching neighboring chunks of one object by one request.

use super::{CachedItem, ChunkPart, Prefetched};
use crate::array::{Array, NeighborBytes, Neighbors};
use crate::cache::Cache;
use crate::zarr::grid::ChunkId;

/// Memory that is reserved for the encoded bytes of neighbors until this is dropped.
struct ReservedBytes<'a> {
    cache: &'a Cache,
    array: &'a Array,
    bytes: usize,
}

impl Drop for ReservedBytes<'_> {
    fn drop(&mut self) {
        let mut state = self.cache.lock();
        state.reserved.remove(self.array, self.bytes);
        self.cache.changed.notify_all();
    }
}

impl Cache {
    /// Loads chunks of one object that a reader will want. Returns false if there is no memory for all of them without
    /// evicting other prefetched chunks.
    pub(in crate::cache) fn prefetch_neighbors(&self, array: &Array, chunks: &[ChunkId]) -> bool {
        let missing = |chunk: &ChunkId| !self.holds(array, CachedItem::Chunk(*chunk), ChunkPart::Whole);
        let missing: Vec<ChunkId> = chunks.iter().copied().filter(missing).collect();
        let groups = array.neighbors(&missing);
        // then those without a neighbor, and what could not be read together
        groups.iter().all(|group| self.load_neighbors(array, group))
            && missing.iter().all(|chunk| self.prefetch(array, *chunk, ChunkPart::Whole))
    }

    fn load_neighbors(&self, array: &Array, neighbors: &Neighbors) -> bool {
        let Some(_reserved) = self.reserve_bytes(array, neighbors.size()) else { return false };
        let mut slots = Vec::new();
        for chunk in &neighbors.chunks {
            let item = CachedItem::Chunk(*chunk);
            match self.begin_prefetch(array, item, ChunkPart::Whole, array.chunk_memory()) {
                Prefetched::Present => {}
                Prefetched::NoRoom => return false,
                Prefetched::Begun(begun) => slots.push((*chunk, begun)),
            }
        }
        // a reader of a chunk gets the error
        let bytes = match slots.len() {
            0 => return true,
            1 => None,
            _ => array.read_neighbors(neighbors, self.buffer(neighbors.size())).unwrap_or_default(),
        };
        for (chunk, begun) in slots {
            let (slot, previous) = *begun;
            let _ = self.insert(slot, previous, ChunkPart::Whole, &mut |slot, _| {
                self.load_whole(slot, array, chunk, bytes.as_ref())
            });
        }
        // the next request finds the buffer
        drop(self.buffers.hold(bytes.map(NeighborBytes::into_bytes).unwrap_or_default()));
        true
    }

    fn reserve_bytes<'a>(&'a self, array: &'a Array, bytes: usize) -> Option<ReservedBytes<'a>> {
        let mut state = self.lock();
        if !self.make_room(&mut state, bytes, None) {
            return None;
        }
        state.reserved.add(array, bytes);
        Some(ReservedBytes { cache: self, array, bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::chunk_cache::DecodedPart;
    use crate::stats::Stats;
    use crate::store::{Key, SimulatedRemote};
    use crate::zarr::metadata::ArrayMetadata;
    use std::sync::Arc;
    use std::time::Duration;

    /// Bytes of a chunk, and chunks of a shard.
    const CHUNK: usize = 32 << 10;
    const CHUNKS: u64 = 16;

    /// Returns an object whose chunks have bytes of `first` and on; those in `absent` are not stored.
    fn object(first: u8, absent: &[u64]) -> Vec<u8> {
        let (mut value, mut index) = (Vec::new(), Vec::new());
        for chunk in 0..CHUNKS {
            let is_stored = !absent.contains(&chunk);
            let place = if is_stored { (value.len() as u64, CHUNK as u64) } else { (u64::MAX, u64::MAX) };
            value.extend(std::iter::repeat_n(first + chunk as u8, if is_stored { CHUNK } else { 0 }));
            index.extend([place.0.to_le_bytes(), place.1.to_le_bytes()].concat());
        }
        index.extend(crc32c::crc32c(&index).to_le_bytes());
        [value, index].concat()
    }

    /// Three shards of 16 chunks of 32 KiB, the second one without some of them.
    fn opened(bound: usize) -> (Arc<SimulatedRemote>, Array, Cache) {
        let document = format!(
            r#"{{"zarr_format":3,"node_type":"array","shape":[{}],"data_type":"uint8","fill_value":9,
            "chunk_grid":{{"name":"regular","configuration":{{"chunk_shape":[{}]}}}},
            "chunk_key_encoding":{{"name":"default"}},"codecs":[{{"name":"sharding_indexed","configuration":{{
            "chunk_shape":[{CHUNK}],"codecs":["bytes"],"index_codecs":[{{"name":"bytes","configuration":
            {{"endian":"little"}}}},"crc32c"]}}}}]}}"#,
            3 * CHUNKS * CHUNK as u64,
            CHUNKS * CHUNK as u64
        );
        let store = Arc::new(SimulatedRemote::new(Duration::ZERO, false));
        for (number, (first, absent)) in [(0, vec![]), (50, vec![3, 4, 5, 9]), (100, vec![])].iter().enumerate() {
            store.below.insert(&format!("c/{number}"), object(*first, absent));
        }
        let metadata = ArrayMetadata::parse_v3(document.as_bytes()).unwrap();
        let stats = Arc::new(Stats::default());
        let array = Array::new(Key::root(), metadata, store.clone(), stats.clone()).unwrap();
        (store, array, Cache::new(bound, stats))
    }

    fn chunks(object: u64) -> Vec<ChunkId> {
        (object * CHUNKS..(object + 1) * CHUNKS).map(ChunkId).collect()
    }

    fn byte_of(cache: &Cache, array: &Array, chunk: ChunkId) -> u8 {
        let part = cache.get(array, chunk, ChunkPart::Whole).unwrap();
        part.as_ref().map_or(9, |part: &DecodedPart| {
            assert!(part.bytes().len() == CHUNK && part.bytes().iter().all(|byte| *byte == part.bytes()[0]));
            part.bytes()[0]
        })
    }

    #[test]
    fn one_request_reads_the_index_of_an_object_and_one_its_chunks() {
        let (store, array, cache) = opened(64 << 20);
        for object in 0..3 {
            let before = store.counts();
            assert!(cache.prefetch_neighbors(&array, &chunks(object)));
            let [gets, ranges, stats] = store.counts();
            // the absent chunks leave no gap in the object
            assert_eq!([gets - before[0], ranges - before[1], stats - before[2]], [0, 2, 0]);
            for (i, chunk) in chunks(object).into_iter().enumerate() {
                let is_stored = object != 1 || ![3, 4, 5, 9].contains(&i);
                let expected = if is_stored { 50 * object as u8 + i as u8 } else { 9 };
                assert_eq!(byte_of(&cache, &array, chunk), expected);
            }
            assert_eq!(store.counts()[1] - before[1], 2, "all came from the cache");
        }
    }

    #[test]
    fn chunks_far_from_each_other_are_read_alone() {
        let (store, array, cache) = opened(64 << 20);
        let some = [0, 1, 8, 15].map(ChunkId);
        assert!(cache.prefetch_neighbors(&array, &some));
        // the index, the first two, and each of the others
        assert_eq!(store.counts(), [0, 4, 0]);
        assert_eq!(some.map(|chunk| byte_of(&cache, &array, chunk)), [0, 1, 8, 15]);
    }

    #[test]
    fn neighbors_of_a_replaced_object_are_read_anew() {
        let (store, array, cache) = opened(64 << 20);
        let groups = array.neighbors(&chunks(0));
        assert_eq!(groups.iter().map(|group| group.chunks.len()).collect::<Vec<_>>(), [16]);
        let old = array.read_neighbors(&groups[0], Vec::new()).unwrap();
        store.below.insert("c/0", object(150, &[0, 1]));
        assert!(array.read_neighbors(&groups[0], Vec::new()).unwrap().is_none());
        // also where the bytes were read before the object was replaced
        array.freshness().begin_opening();
        for (chunk, expected) in [(0, 9), (1, 9), (2, 152), (15, 165)] {
            let mut scratch = crate::array::Scratch::default();
            let fetched = array.fetch(ChunkId(chunk), Vec::new(), old.as_ref(), &mut scratch).unwrap();
            let loaded = fetched.map(|fetched| array.decode_fetched(fetched, &mut scratch).unwrap());
            assert_eq!(loaded.map_or(9, |loaded| loaded.bytes[7]), expected);
        }
        assert!(cache.prefetch_neighbors(&array, &chunks(0)));
        assert_eq!(byte_of(&cache, &array, ChunkId(2)), 152);
    }

    #[test]
    fn a_full_cache_begins_no_request_for_neighbors() {
        // room for the encoded bytes and half of the decoded ones
        let (store, array, cache) = opened(24 * CHUNK);
        assert!(!cache.prefetch_neighbors(&array, &chunks(0)));
        assert_eq!(store.counts()[1], 1, "the index alone");
        assert_eq!(cache.lock().reserved.bytes(), 0);
        assert_eq!(byte_of(&cache, &array, ChunkId(5)), 5);
    }
}
