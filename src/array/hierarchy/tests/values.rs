//! The order in which the values of a store are visited.

use super::*;
use zarrfs_store::testing::UnlistedStore;

const GROUP: &str = r#"{"zarr_format":3,"node_type":"group"}"#;
const SHARDED: &str = r#"{"zarr_format":3,"node_type":"array","shape":[4,4],"data_type":"uint8","fill_value":0,
    "chunk_grid":{"name":"regular","configuration":{"chunk_shape":[4,2]}},
    "chunk_key_encoding":{"name":"default"},"codecs":[{"name":"sharding_indexed","configuration":{
    "chunk_shape":[2,2],"codecs":[{"name":"bytes"}],"index_codecs":[{"name":"bytes","configuration":
    {"endian":"little"}},{"name":"crc32c"}]}}]}"#;

fn visited(h: &Hierarchy) -> Vec<String> {
    let mut keys = Vec::new();
    h.visit_values(&mut |key| {
        keys.push(key.as_str().to_string());
        Ok(())
    })
    .unwrap();
    keys
}

/// Returns a store of both formats.
fn mixed() -> (Arc<MemoryStore>, Hierarchy) {
    hierarchy(&[
        ("zarr.json", GROUP),
        ("b/zarr.json", GROUP),
        ("b/x/zarr.json", SHARDED),
        ("b/x/c/0/1", "a shard"),
        ("a/.zarray", ARRAY),
        ("a/.zattrs", "{}"),
        ("a/1", "a chunk"),
        ("a/zarr.json.txt", "text"),
        ("a/meta", "no document here"),
        ("b/notes/c.txt", "plain"),
        (".zarrfs-1-1", "unfinished"),
        ("README", "plain"),
    ])
}

#[test]
fn documents_come_first_and_breadth_first() {
    let documents = [
        "zarr.json",
        "b/zarr.json",
        "b/x/zarr.json",
        "a/.zarray",
        "a/.zattrs",
    ];
    let (store, h) = mixed();
    let others = [
        "README",
        "a/1",
        "a/meta",
        "a/zarr.json.txt",
        "b/notes/c.txt",
        "b/x/c/0/1",
    ];
    assert_eq!(visited(&h), [&documents[..], &others].concat());
    // a store that cannot list has no plain values, and all chunks
    h.write_consolidated(&Key::root()).unwrap();
    let unlisted = Arc::new(UnlistedStore::new(store));
    let unlisted =
        ConsolidatedStore::over(unlisted, UseConsolidated::Auto, Arc::default()).unwrap();
    let h = Hierarchy::new(unlisted, V1Order::Zarr1, Arc::default());
    let chunks = ["b/x/c/0/0", "b/x/c/0/1"];
    assert_eq!(visited(&h), [&documents[..3], &chunks].concat());
}

#[test]
fn an_error_ends_the_visit() {
    let (store, h) = hierarchy(&[(".zarray", ARRAY), ("0", "a chunk"), ("1", "a chunk")]);
    assert_eq!(visited(&h), [".zarray", "0", "1"]);
    let failed = h.visit_values(&mut |key| Err(Error::io("full").context(key)));
    assert_eq!(failed.unwrap_err().message(), "/.zarray: full");
    // the chunks of a damaged array are found by listing alone
    store.insert(".zarray", "{");
    assert_eq!(visited(&h), [".zarray", "0", "1"]);
    let unlisted = Arc::new(UnlistedStore::new(store));
    let h = Hierarchy::new(unlisted, V1Order::Zarr1, Arc::default());
    let failed = h.visit_values(&mut |_| Ok(())).unwrap_err();
    assert!(failed.message().starts_with("/.zarray: not valid JSON"));
}
