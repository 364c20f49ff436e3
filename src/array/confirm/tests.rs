use super::*;
use std::sync::Arc;
use zarrfs_format::metadata::ZARRAY;
use zarrfs_store::MemoryStore;

fn document(shape: &str, dtype: &str) -> String {
    format!(
        r#"{{"zarr_format":2,"shape":{shape},"chunks":[2,3],"dtype":"{dtype}","compressor":null,"fill_value":0,
        "order":"C","filters":null}}"#
    )
}

fn array(store: &Arc<MemoryStore>) -> Array {
    let text = document("[5,7]", "|u1");
    let key = Key::root().join(ZARRAY);
    let version = store.put(&key, text.as_bytes()).unwrap();
    let metadata = ArrayMetadata::parse(text.as_bytes()).unwrap();
    let array = Array::new(Key::root(), metadata, store.clone(), Arc::default()).unwrap();
    array.with_source(Source::new(
        vec![key],
        Box::new(ArrayMetadata::parse),
        version,
    ))
}

#[test]
fn a_document_that_says_the_same_confirms_the_array() {
    let store = Arc::new(MemoryStore::default());
    let array = array(&store);
    for text in [document("[5,7]", "|u1"), document("[5, 7]", "|u1")] {
        store
            .put(&Key::root().join(ZARRAY), text.as_bytes())
            .unwrap();
        array.confirm(false).unwrap();
        assert!(!array.freshness().is_replaced() && array.outside(ChunkId(8)).is_empty());
    }
}

#[test]
fn a_document_of_another_array_or_none_ends_the_array() {
    let other = [
        Some(document("[5,7]", "<u2")),
        Some(document("[5,7]", "|u1").replace("[2,3]", "[3,2]")),
        None,
    ];
    for text in other {
        let store = Arc::new(MemoryStore::default());
        let array = array(&store);
        match &text {
            Some(text) => drop(
                store
                    .put(&Key::root().join(ZARRAY), text.as_bytes())
                    .unwrap(),
            ),
            None => drop(store.delete(&Key::root().join(ZARRAY)).unwrap()),
        }
        array.confirm(false).unwrap();
        assert!(array.freshness().is_replaced(), "{text:?}");
    }
}

#[test]
fn a_document_that_is_being_written_does_not_end_the_array() {
    let store = Arc::new(MemoryStore::default());
    let array = array(&store);
    let whole = document("[5,7]", "|u1").replace(r#""fill_value":0"#, r#""fill_value":0.0"#);
    for len in [0, whole.len() / 2] {
        store
            .put(&Key::root().join(ZARRAY), &whole.as_bytes()[..len])
            .unwrap();
        assert!(array.confirm(false).is_err() && !array.freshness().is_replaced());
    }
    store
        .put(&Key::root().join(ZARRAY), whole.as_bytes())
        .unwrap();
    array.confirm(false).unwrap();
    assert!(!array.freshness().is_replaced(), "another spelling");
}

#[test]
fn chunks_that_another_program_appends_to_a_list_do_not_end_the_array() {
    let sharding = r#"{"name":"sharding_indexed","configuration":{"chunk_shape":[1],"codecs":["bytes"],
        "index_codecs":["bytes"]}}"#;
    let transpose = r#"{"name":"transpose","configuration":{"order":[0]}},"bytes","zstd""#;
    let document = |len: u64, lengths: &str, codecs: &str| {
        format!(
            r#"{{"zarr_format":3,"node_type":"array","shape":[{len}],"data_type":"uint8","fill_value":0,
            "chunk_grid":{{"name":"rectilinear","configuration":{{"kind":"inline","chunk_shapes":[{lengths}]}}}},
            "chunk_key_encoding":{{"name":"default"}},"codecs":[{codecs}]}}"#
        )
    };
    // the length and the lists of both, and whether the chunks of the smaller one are the same
    let cases = [
        (7, "[2,2,3]", 11, "[2,2,3,4]", true),
        (11, "[2,2,3,4]", 7, "[2,2,3]", true),
        (6, "[[2,3]]", 11, "[2,2,2,5]", true),
        (6, "2", 11, "[2,2,2,5]", true),
        (11, "[2,2,2,5]", 6, "2", true),
        (7, "[2,2,3]", 11, "[2,2,7]", false),
        (7, "[2,2,4]", 11, "[2,2,3,4]", false),
        (6, "2", 11, "3", false),
        (6, "2", 12, "[2,2,1,7]", false),
    ];
    for codecs in ["\"bytes\"", sharding, transpose] {
        for (len, lengths, other_len, other, is_same) in cases {
            let store = Arc::new(MemoryStore::default());
            let text = document(len, lengths, codecs);
            let key = Key::root().join("zarr.json");
            let version = store.put(&key, text.as_bytes()).unwrap();
            let metadata = ArrayMetadata::parse_v3(text.as_bytes()).unwrap();
            let array = Array::new(Key::root(), metadata, store.clone(), Arc::default()).unwrap();
            let array = array.with_source(Source::new(
                vec![key.clone()],
                Box::new(ArrayMetadata::parse_v3),
                version,
            ));
            store
                .put(&key, document(other_len, other, codecs).as_bytes())
                .unwrap();
            array.confirm(false).unwrap();
            assert_eq!(
                array.freshness().is_replaced(),
                !is_same,
                "{codecs} {lengths} {other}"
            );
            let other_codecs = document(other_len, other, r#""bytes","gzip""#);
            let other_codecs = ArrayMetadata::parse_v3(other_codecs.as_bytes()).unwrap();
            assert!(
                !array.metadata().is_resize_of(&other_codecs),
                "{codecs} {lengths}"
            );
        }
    }
}

#[test]
fn bytes_outside_a_smaller_shape_are_named() {
    let store = Arc::new(MemoryStore::default());
    let array = array(&store);
    // chunks of 2 x 3 items; the grid has 3 x 3 chunks
    store
        .put(
            &Key::root().join(ZARRAY),
            document("[3,9]", "|u1").as_bytes(),
        )
        .unwrap();
    array.confirm(false).unwrap();
    assert!(!array.freshness().is_replaced());
    assert!(array.outside(ChunkId(0)).is_empty());
    assert_eq!(
        array.outside(ChunkId(3)),
        Ranges::from(3..6),
        "row 3 of rows 2 and 3"
    );
    assert_eq!(
        array.outside(ChunkId(6)),
        Ranges::from(0..6),
        "rows 4 and 5 of a chunk that is no more"
    );
    store
        .put(
            &Key::root().join(ZARRAY),
            document("[9,9]", "|u1").as_bytes(),
        )
        .unwrap();
    array.confirm(false).unwrap();
    assert!(array.outside(ChunkId(6)).is_empty());
}
