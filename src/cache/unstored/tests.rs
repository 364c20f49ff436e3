use super::*;
use crate::array::Array;
use std::sync::Arc;
use zarrfs_format::metadata::ArrayMetadata;
use zarrfs_store::{MemoryStore, StoreExt};

/// Eight items of one byte in chunks of two, in shards of four.
const SHARDED: &str = r#"{"zarr_format": 3, "node_type": "array", "shape": [8], "data_type": "uint8", "fill_value": 0,
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}}, "chunk_key_encoding": {"name": "default"},
    "codecs": [{"name": "sharding_indexed", "configuration": {"chunk_shape": [2], "codecs": ["bytes"],
    "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]}}]}"#;

#[test]
fn chunks_count_until_their_shard_is_stored() {
    let store = Arc::new(MemoryStore::default());
    let cache = Cache::new(1 << 20, Arc::default());
    store
        .put(&Key::root().join("zarr.json"), SHARDED.as_bytes())
        .unwrap();
    let metadata = ArrayMetadata::parse_v3(SHARDED.as_bytes()).unwrap();
    let array = Arc::new(Array::new(Key::root(), metadata, store, Arc::default()).unwrap());
    let unstored = |chunks| {
        vec![UnstoredChunks {
            array: Key::root(),
            chunks,
            bytes: 2 * chunks,
        }]
    };
    assert_eq!(
        (cache.unstored(), cache.unstored_total()),
        (Vec::new(), (0, 0))
    );
    cache.write(&array, ChunkId(0), 0, &[1, 2]).unwrap();
    cache.write(&array, ChunkId(3), 0, &[3]).unwrap();
    assert_eq!(
        (cache.unstored(), cache.unstored_total()),
        (unstored(2), (2, 4))
    );
    cache.hand_over(&array).unwrap();
    assert_eq!(
        (cache.unstored(), cache.unstored_total()),
        (unstored(2), (2, 4)),
        "each waits for its shard"
    );
    cache.write(&array, ChunkId(0), 1, &[4]).unwrap();
    assert_eq!(cache.unstored(), unstored(2), "one chunk, written again");
    cache.flush_all().unwrap();
    assert_eq!(
        (cache.unstored(), cache.unstored_total()),
        (Vec::new(), (0, 0))
    );
}
