//! The cache and a change of the shape replace chunks and objects one after the other.

use super::*;
use crate::array::Scratch;
use std::time::{Duration, Instant};
use zarrfs_format::grid::ChunkId;
use zarrfs_store::testing::{FaultyStore, Operation};

/// Returns the document of six items in chunks of two in a shard of eight, or in chunks of four.
fn document(shards: bool) -> String {
    let sharding = r#"[{"name":"sharding_indexed","configuration":{"chunk_shape":[2],"codecs":["bytes"],
        "index_codecs":[{"name":"bytes","configuration":{"endian":"little"}}]}}]"#;
    let (chunk, codecs) = if shards {
        (8, sharding)
    } else {
        (4, r#"["bytes"]"#)
    };
    format!(
        r#"{{"zarr_format":3,"node_type":"array","data_type":"uint8","fill_value":0,"shape":[6],
        "chunk_key_encoding":{{"name":"v2"}},"codecs":{codecs},
        "chunk_grid":{{"name":"regular","configuration":{{"chunk_shape":[{chunk}]}}}}}}"#
    )
}

#[test]
fn growth_does_not_replace_an_object_that_is_being_put() {
    for shards in [false, true] {
        let memory = Arc::new(MemoryStore::default());
        memory.insert("a/zarr.json", document(shards));
        let store = Arc::new(FaultyStore::new(memory.clone()));
        let h = Hierarchy::new(store.clone(), V1Order::Zarr1, Arc::default());
        let array = h.find_array(&key("a")).unwrap().unwrap();
        let last = ChunkId(array.grid().chunk_count() - 1);
        let size = array.grid().max_chunk_size();
        if shards {
            // another program has left a chunk outside the array
            let wider = ArrayMetadata {
                shape: vec![8],
                ..array.metadata().clone()
            };
            let wider = Array::new(key("a"), wider, memory.clone(), Arc::default()).unwrap();
            wider
                .store(ChunkId(3), &[9; 2], &mut Scratch::default())
                .unwrap();
            wider.store_objects().unwrap();
        } else {
            memory.insert("a/1", vec![9; 4]);
        }
        let replaced = if shards {
            array.object_key(0)
        } else {
            array.write_back_key(last)
        };
        let locked = array.lock_replacing(&replaced);
        let puts = store.calls(Operation::Put);
        std::thread::scope(|scope| {
            let growth = scope.spawn(|| h.resize(&array, &[8]));
            let begun = Instant::now();
            // the growth may have to examine all chunks first
            while begun.elapsed() < Duration::from_millis(100) && !growth.is_finished() {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(
                store.calls(Operation::Put),
                puts,
                "the growth waits: {shards}"
            );
            drop(locked);
            growth.join().unwrap().unwrap();
        });
        let grown = h.find_array(&key("a")).unwrap().unwrap();
        let bytes = grown
            .load(
                ChunkId(grown.grid().chunk_count() - 1),
                Vec::new(),
                &mut Scratch::default(),
            )
            .unwrap();
        let cleared = bytes.is_none_or(|loaded| loaded.bytes[size - 2..] == [0; 2]);
        assert!(cleared, "what lay outside is gone: {shards}");
    }
}
