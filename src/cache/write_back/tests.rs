use super::*;
use crate::array::Source;
use crate::cache::ChunkPart;
use std::time::Duration;
use zarrfs_format::grid::ChunkId;
use zarrfs_format::metadata::ArrayMetadata;
use zarrfs_store::testing::{FaultyStore, Operation, PlannedFault};
use zarrfs_store::{Key, MemoryStore, StoreExt};

/// An array of 8 items of a byte in chunks of 4, which another program can make smaller.
struct Setup {
    below: Arc<MemoryStore>,
    store: Arc<FaultyStore>,
    array: Arc<Array>,
    cache: Cache,
}

fn document(len: u64, shards: bool) -> Vec<u8> {
    let keys = r#""zarr_format":3,"node_type":"array","data_type":"uint8","fill_value":0"#;
    let sharding = r#"[{"name":"sharding_indexed","configuration":{"chunk_shape":[4],"codecs":["bytes"],
        "index_codecs":[{"name":"bytes","configuration":{"endian":"little"}}]}}]"#;
    let (chunk, codecs) = if shards {
        (8, sharding)
    } else {
        (4, r#"["bytes"]"#)
    };
    format!(
        r#"{{{keys},"shape":[{len}],"chunk_key_encoding":{{"name":"v2"}},"codecs":{codecs},
        "chunk_grid":{{"name":"regular","configuration":{{"chunk_shape":[{chunk}]}}}}}}"#
    )
    .into_bytes()
}

impl Setup {
    fn new(shards: bool) -> Setup {
        let below = Arc::new(MemoryStore::default());
        let store = Arc::new(FaultyStore::new(below.clone()));
        let key = Key::root().join("zarr.json");
        let text = document(8, shards);
        let version = below.put(&key, &text).unwrap();
        let metadata = ArrayMetadata::parse_v3(&text).unwrap();
        let array = Array::new(Key::root(), metadata, store.clone(), Arc::default()).unwrap();
        let array = array.with_source(Source::new(
            vec![key],
            Box::new(ArrayMetadata::parse_v3),
            version,
        ));
        Setup {
            below,
            store,
            array: Arc::new(array),
            cache: Cache::new(1 << 16, Arc::default()),
        }
    }

    /// Makes another program shrink the array.
    fn shrink(&self, len: u64) {
        self.below
            .put(
                &Key::root().join("zarr.json"),
                &document(len, self.array.shard_count().is_some()),
            )
            .unwrap();
    }

    fn write(&self, chunk: u64, offset: usize, data: &[u8]) {
        self.cache
            .write(&self.array, ChunkId(chunk), offset, data)
            .unwrap();
    }

    /// Returns the errno of the reported loss.
    fn reported(&self) -> Option<i32> {
        self.cache
            .losses()
            .take(|key| key == self.array.key())
            .err()
            .map(|e| e.errno())
    }

    fn stored(&self, key: &str) -> Option<Vec<u8>> {
        let mut value = Vec::new();
        self.below
            .get(&Key::root().join(key), 100, &mut value)
            .unwrap()
            .map(|_| value)
    }
}

#[test]
fn a_failure_of_the_same_write_back_does_not_hide_a_loss() {
    for shards in [false, true] {
        let setup = Setup::new(shards);
        setup.write(1, 0, &[7; 4]);
        if shards {
            setup.cache.hand_over(&setup.array).unwrap();
        }
        setup.shrink(6);
        setup
            .store
            .plan(PlannedFault::next(Operation::Put, libc::ENOSPC));
        assert_eq!(
            setup.cache.flush_array(&setup.array).unwrap_err().errno(),
            libc::ENOSPC,
            "{shards}"
        );
        setup.cache.flush_array(&setup.array).unwrap();
        assert_eq!(
            (setup.reported(), setup.reported()),
            (Some(libc::ESTALE), None),
            "once: {shards}"
        );
        assert_eq!(setup.array.freshness().losses(), 1, "{shards}");
        if !shards {
            assert_eq!(setup.stored("1").unwrap(), [7, 7, 0, 0], "what lies inside");
        }
    }
}

#[test]
fn bytes_written_outside_while_the_base_is_loaded_are_reported() {
    let setup = Setup::new(false);
    setup.below.insert("1", vec![1; 4]);
    setup.write(1, 0, &[7]);
    setup.shrink(6);
    // the first call at this key takes the chunk's lock; the next one, which asks for the base, is
    // stopped
    setup.store.stop(Key::root().join("1"), 1);
    std::thread::scope(|scope| {
        let flush = scope.spawn(|| setup.cache.flush_array(&setup.array));
        let begun = Instant::now();
        while setup.store.stopped() == 0 {
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "the base is not loaded"
            );
            std::thread::yield_now();
        }
        setup.write(1, 3, &[8]);
        setup.store.resume();
        flush.join().unwrap().unwrap();
    });
    assert_eq!(setup.stored("1").unwrap(), [7, 1, 1, 1]);
    assert_eq!(
        (setup.reported(), setup.array.freshness().losses()),
        (Some(libc::ESTALE), 1)
    );
}

#[test]
fn lost_bytes_over_a_loaded_base_are_not_stored() {
    let setup = Setup::new(false);
    setup.below.insert("1", vec![1; 4]);
    setup.write(1, 0, &[7]);
    setup.write(1, 3, &[8]);
    let part = setup
        .cache
        .get(&setup.array, ChunkId(1), ChunkPart::Whole)
        .unwrap()
        .unwrap();
    assert_eq!(part.bytes(), [7, 1, 1, 8]);
    drop(part);
    setup.shrink(6);
    setup.cache.flush_array(&setup.array).unwrap();
    assert_eq!(
        (setup.stored("1").unwrap(), setup.reported()),
        (vec![7, 1, 1, 1], Some(libc::ESTALE))
    );
}

#[test]
fn a_loss_does_not_fail_requests_for_other_bytes() {
    // one chunk of four bytes leaves no space for another one
    let setup = Setup {
        cache: Cache::new(4, Arc::default()),
        ..Setup::new(false)
    };
    setup.write(1, 0, &[7; 4]);
    setup.shrink(4);
    setup.write(0, 0, &[8; 4]);
    setup.cache.flush_chunk(&setup.array, ChunkId(0)).unwrap();
    assert_eq!(
        (setup.stored("0"), setup.stored("1")),
        (Some(vec![8; 4]), None)
    );
    assert_eq!(setup.array.freshness().losses(), 1);
    assert_eq!(
        setup.reported(),
        Some(libc::ESTALE),
        "the next close reports it"
    );
    // the request that wrote the bytes reports it itself
    setup.write(1, 0, &[7; 4]);
    assert_eq!(
        setup
            .cache
            .store_written(&setup.array, ChunkId(1))
            .unwrap_err()
            .errno(),
        libc::ESTALE
    );
    assert_eq!(setup.reported(), None);
}

#[test]
fn a_removal_that_fails_reports_the_bytes_that_it_discards() {
    let setup = Setup::new(false);
    setup.below.insert("1", vec![1; 4]);
    setup.write(1, 0, &[7]);
    setup
        .store
        .plan(PlannedFault::next(Operation::Delete, libc::EACCES));
    let erased = setup.cache.erase_chunk(&setup.array, ChunkId(1));
    assert_eq!(erased.unwrap_err().errno(), libc::EACCES);
    setup.cache.flush_array(&setup.array).unwrap();
    assert_eq!(setup.stored("1").unwrap(), [1; 4]);
    assert_eq!(
        (setup.reported(), setup.array.freshness().losses()),
        (Some(libc::ESTALE), 1)
    );
    // a chunk without unstored bytes loses nothing
    setup
        .store
        .plan(PlannedFault::next(Operation::Delete, libc::EACCES));
    let erased = setup.cache.erase_chunk(&setup.array, ChunkId(1));
    assert_eq!(erased.unwrap_err().errno(), libc::EACCES);
    assert_eq!(setup.reported(), None);
}

/// A change of the shape may move dirty chunks that a flush has found and not yet stored.
#[test]
fn a_flush_stores_chunks_that_have_moved_meanwhile() {
    let setup = Setup::new(false);
    setup.write(1, 0, &[7; 4]);
    let list: Vec<_> = setup.cache.lock().oldest_dirty(|_| true).cloned().collect();
    for len in [12, 16] {
        let metadata = ArrayMetadata::parse_v3(&document(len, false)).unwrap();
        let store = setup.store.clone();
        let grown = Array::new(Key::root(), metadata, store, Arc::default()).unwrap();
        let former = setup
            .cache
            .lock()
            .oldest_dirty(|_| true)
            .next()
            .unwrap()
            .array
            .clone();
        setup.cache.transfer(&former, &Arc::new(grown));
    }
    setup.cache.write_back_all(&list).unwrap();
    assert_eq!(setup.stored("1"), Some(vec![7; 4]));
}

#[test]
fn losses_of_several_arrays_are_all_reported() {
    let one = Setup::new(false);
    let other = Setup::new(false);
    for (key, cache) in [("a", &one.cache), ("b", &one.cache)] {
        let metadata = other.array.metadata().clone();
        let array = Array::new(
            Key::root().join(key),
            metadata,
            other.store.clone(),
            Arc::default(),
        )
        .unwrap();
        array.record_loss(
            ChunkId(0),
            "the array became smaller",
            cache.begin_write_back(),
        );
    }
    let e = one.cache.losses().take(|_| true).unwrap_err();
    assert!(
        e.errno() == libc::ESTALE && e.message().contains("1 more"),
        "{e}"
    );
}
