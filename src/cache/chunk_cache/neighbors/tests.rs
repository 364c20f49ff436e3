use super::*;
use crate::cache::chunk_cache::DecodedPart;
use std::sync::Arc;
use std::time::Duration;
use zarrfs_base::stats::Stats;
use zarrfs_format::metadata::ArrayMetadata;
use zarrfs_store::testing::{FaultyStore, Operation, PlannedFault, SimulatedRemote};
use zarrfs_store::{Key, MemoryStore, StoreExt};

/// Bytes of a chunk, and chunks of a shard.
const CHUNK: usize = 32 << 10;
const CHUNKS: u64 = 16;

/// Returns an object in which every byte of chunk `n` is `first + n`. The chunks in `absent`
/// are not stored.
fn object(first: u8, absent: &[u64]) -> Vec<u8> {
    let mut value = Vec::new();
    let mut index = Vec::new();
    for chunk in 0..CHUNKS {
        let is_stored = !absent.contains(&chunk);
        let place = if is_stored {
            (value.len() as u64, CHUNK as u64)
        } else {
            (u64::MAX, u64::MAX)
        };
        value.extend(std::iter::repeat_n(
            first + chunk as u8,
            if is_stored { CHUNK } else { 0 },
        ));
        index.extend([place.0.to_le_bytes(), place.1.to_le_bytes()].concat());
    }
    index.extend(crc32c::crc32c(&index).to_le_bytes());
    [value, index].concat()
}

/// Returns an array of three shards of 16 chunks of 32 KiB. The second shard lacks some of
/// them.
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
    for (number, (first, absent)) in [(0, vec![]), (50, vec![3, 4, 5, 9]), (100, vec![])]
        .iter()
        .enumerate()
    {
        store
            .below
            .insert(&format!("c/{number}"), object(*first, absent));
    }
    let metadata = ArrayMetadata::parse_v3(document.as_bytes()).unwrap();
    let stats = Arc::new(Stats::default());
    let array = Array::new(Key::root(), metadata, store.clone(), stats.clone()).unwrap();
    (store, array, Cache::new(bound, stats))
}

fn chunks(object: u64) -> Vec<ChunkId> {
    (object * CHUNKS..(object + 1) * CHUNKS)
        .map(ChunkId)
        .collect()
}

/// Prefetches chunks of one object. Returns the numbers of groups and of single chunks.
fn prefetch(cache: &Cache, array: &Array, chunks: &[ChunkId]) -> (usize, usize) {
    let (groups, single) = cache.lacking(array, chunks);
    groups
        .iter()
        .for_each(|group| cache.prefetch_neighbors(array, group));
    single
        .iter()
        .for_each(|chunk| _ = cache.prefetch(array, *chunk, ChunkPart::Whole));
    (groups.len(), single.len())
}

fn byte_of(cache: &Cache, array: &Array, chunk: ChunkId) -> u8 {
    let part = cache.get(array, chunk, ChunkPart::Whole).unwrap();
    part.as_ref().map_or(9, |part: &DecodedPart| {
        assert!(
            part.bytes().len() == CHUNK && part.bytes().iter().all(|byte| *byte == part.bytes()[0])
        );
        part.bytes()[0]
    })
}

#[test]
fn one_request_reads_the_index_of_an_object_and_one_its_chunks() {
    let (store, array, cache) = opened(64 << 20);
    for object in 0..3 {
        let before = store.counts();
        // chunks that are not stored are no neighbors
        assert_eq!(
            prefetch(&cache, &array, &chunks(object)),
            (1, if object == 1 { 4 } else { 0 })
        );
        let [gets, ranges, stats] = store.counts();
        // the absent chunks leave no gap in the object
        assert_eq!(
            [gets - before[0], ranges - before[1], stats - before[2]],
            [0, 2, 0]
        );
        for (i, chunk) in chunks(object).into_iter().enumerate() {
            let is_stored = object != 1 || ![3, 4, 5, 9].contains(&i);
            let expected = if is_stored {
                50 * object as u8 + i as u8
            } else {
                9
            };
            assert_eq!(byte_of(&cache, &array, chunk), expected);
        }
        assert_eq!(store.counts()[1] - before[1], 2, "all came from the cache");
    }
}

#[test]
fn distant_chunks_are_read_alone() {
    let (store, array, cache) = opened(64 << 20);
    let some = [0, 1, 8, 15].map(ChunkId);
    assert_eq!(prefetch(&cache, &array, &some), (1, 2));
    // the index, the first two, and each of the others
    assert_eq!(store.counts(), [0, 4, 0]);
    assert_eq!(
        some.map(|chunk| byte_of(&cache, &array, chunk)),
        [0, 1, 8, 15]
    );
}

#[test]
fn neighbors_of_a_replaced_object_are_read_anew() {
    let (store, array, cache) = opened(64 << 20);
    let groups = array.neighbors(&chunks(0));
    assert_eq!(
        groups
            .iter()
            .map(|group| group.chunks.len())
            .collect::<Vec<_>>(),
        [16]
    );
    let mut buffer = Vec::new();
    let old = array.read_neighbors(&groups[0], &mut buffer).unwrap();
    store.below.insert("c/0", object(150, &[0, 1]));
    assert!(
        array
            .read_neighbors(&groups[0], &mut Vec::new())
            .unwrap()
            .is_none()
    );
    // bytes that were read before the object was replaced are not used, either
    array.freshness().begin_opening();
    for (chunk, expected) in [(0, 9), (1, 9), (2, 152), (15, 165)] {
        let mut scratch = crate::array::Scratch::default();
        let fetched = array
            .fetch(ChunkId(chunk), Vec::new(), old.as_ref(), &mut scratch)
            .unwrap();
        let loaded = fetched.map(|fetched| array.decode_fetched(fetched, &mut scratch).unwrap());
        assert_eq!(loaded.map_or(9, |loaded| loaded.bytes[7]), expected);
    }
    // the cache notices that the group is of the old object, and loads the chunks one by one
    cache.prefetch_neighbors(&array, &groups[0]);
    assert_eq!(byte_of(&cache, &array, ChunkId(2)), 152);
}

#[test]
fn neighbors_that_do_not_fit_into_the_cache_together_are_loaded_one_by_one() {
    // space for the encoded bytes and half of the decoded ones
    let (store, array, cache) = opened(24 * CHUNK);
    prefetch(&cache, &array, &chunks(0));
    assert!(
        (4..=1 + 16).contains(&store.counts()[1]),
        "{:?}",
        store.counts()
    );
    assert_eq!(cache.lock().reserved.bytes(), 0);
    assert_eq!(byte_of(&cache, &array, ChunkId(5)), 5);
}

#[test]
fn an_object_that_is_not_stored_is_requested_once_in_an_opening() {
    let (store, array, cache) = opened(64 << 20);
    store.below.delete(&Key::root().join("c/1")).unwrap();
    // in the second opening each chunk is confirmed; a cache of metadata would answer for all
    // but the first
    for stats in [0, 16] {
        assert_eq!(prefetch(&cache, &array, &chunks(1)).0, 0);
        assert!(
            chunks(1)
                .into_iter()
                .all(|chunk| byte_of(&cache, &array, chunk) == 9)
        );
        assert_eq!(store.counts(), [0, 1, stats]);
        array.freshness().begin_opening();
    }
    store.below.insert("c/1", object(50, &[]));
    array.freshness().begin_opening();
    assert_eq!(byte_of(&cache, &array, chunks(1)[3]), 53);
}

#[test]
fn chunks_that_are_held_are_confirmed_and_not_read_again() {
    let (store, array, cache) = opened(64 << 20);
    prefetch(&cache, &array, &chunks(0));
    array.freshness().begin_opening();
    let before = store.counts();
    assert_eq!(prefetch(&cache, &array, &chunks(0)), (0, 16));
    let [_, ranges, stats] = store.counts();
    // without a cache of metadata each chunk is confirmed by a request
    assert!(
        ranges == before[1] && stats - before[2] <= 16,
        "{before:?}, then {:?}",
        store.counts()
    );
}

#[test]
fn a_request_for_neighbors_that_fails_leaves_them_to_their_readers() {
    let memory = Arc::new(MemoryStore::default());
    let faulty = Arc::new(FaultyStore::remote(memory.clone()));
    let (_, known, _) = opened(1);
    memory.insert("c/0", object(0, &[]));
    let stats = Arc::new(Stats::default());
    let array = Array::new(
        Key::root(),
        known.metadata().clone(),
        faulty.clone(),
        stats.clone(),
    )
    .unwrap();
    let cache = Cache::new(64 << 20, stats);
    let (groups, _) = cache.lacking(&array, &chunks(0));
    faulty.plan(PlannedFault::next(Operation::Get, libc::EIO));
    let before = faulty.calls(Operation::Get);
    cache.prefetch_neighbors(&array, &groups[0]);
    assert_eq!(
        faulty.calls(Operation::Get) - before,
        1,
        "no chunk is tried alone"
    );
    assert_eq!(cache.lock().reserved.bytes(), 0);
    assert_eq!(byte_of(&cache, &array, ChunkId(5)), 5);
}
