use super::*;
use proptest::prelude::*;
use zarrfs_base::error::Kind;
use zarrfs_store::{MemoryStore, Readable};

fn document(codecs: &str) -> String {
    format!(r#"{{"zarr_format":2,"shape":[5,7,3],"chunks":[2,3,2],"fill_value":0,{codecs}}}"#)
}

fn array_in(store: Arc<dyn Store>, document: &str) -> (Array, Arc<Stats>) {
    let stats = Arc::new(Stats::default());
    let metadata = ArrayMetadata::parse(document.as_bytes()).unwrap();
    (
        Array::new(Key::root().join("a"), metadata, store, stats.clone()).unwrap(),
        stats,
    )
}

fn array(document: &str) -> (Arc<MemoryStore>, Array, Arc<Stats>) {
    let store = Arc::new(MemoryStore::default());
    store.insert("a/.zarray", "");
    let (array, stats) = array_in(store.clone(), document);
    (store, array, stats)
}

fn load(array: &Array, chunk: ChunkId) -> Option<Loaded> {
    array
        .load(chunk, Vec::new(), &mut Scratch::default())
        .unwrap()
}

const KINDS: &[(&str, bool)] = &[
    (
        r#""dtype":"<i4","order":"C","compressor":null,"filters":null"#,
        false,
    ),
    (
        r#""dtype":"<i4","order":"F","compressor":null,"filters":null"#,
        false,
    ),
    (
        r#""dtype":"<f8","order":"F","compressor":{"id":"zlib"},"filters":[{"id":"shuffle","elementsize":8}]"#,
        false,
    ),
    (
        r#""dtype":"|V3","order":"F","compressor":{"id":"blosc"},"filters":[{"id":"base64"},{"id":"crc32"}]"#,
        false,
    ),
    (
        r#""dtype":">u2","order":"C","compressor":{"id":"zstd"},"filters":[{"id":"delta","dtype":">u2"}]"#,
        false,
    ),
    (
        r#""dtype":"|u1","order":"F","compressor":{"id":"bz2"},"filters":[{"id":"delta","dtype":"|u1","astype":"<u4"},
        {"id":"astype","encode_dtype":"<i8","decode_dtype":"<u4"}]"#,
        false,
    ),
    (
        r#""dtype":"<i4","order":"C","compressor":null,"filters":[{"id":"delta","dtype":"<i4","astype":"|i1"}]"#,
        true,
    ),
    (
        r#""dtype":"<f4","order":"C","compressor":null,"filters":[{"id":"delta","dtype":"<f4"}]"#,
        true,
    ),
    (
        r#""dtype":"<f4","order":"F","compressor":{"id":"lz4"},"filters":[{"id":"bitround","keepbits":3}]"#,
        true,
    ),
    (
        r#""dtype":"|b1","order":"C","compressor":{"id":"gzip"},"filters":[{"id":"packbits"}]"#,
        true,
    ),
];

proptest! {
    #[test]
    fn stored_bytes_are_loaded(kind in 0..KINDS.len(), seed in any::<u64>(), chunks in prop::collection::vec(0u64..18, 1..5)) {
        let (codecs, lossy) = KINDS[kind];
        let (store, array, stats) = array(&document(codecs));
        prop_assert!(array.writable().is_ok());
        prop_assert_eq!(array.is_lossy(), lossy);
        let mut scratch = Scratch::default();
        let mut state = seed;
        for &id in &chunks {
            let bytes: Vec<u8> = std::iter::repeat_with(|| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                // every lossy filter preserves zeros
                if lossy { 0 } else { (state >> 56) as u8 }
            })
            .take(array.grid().chunk_size(ChunkId(id)))
            .collect();
            let version = array.store(ChunkId(id), &bytes, &mut scratch).unwrap();
            let loaded = load(&array, ChunkId(id)).unwrap();
            prop_assert_eq!(loaded.version, version);
            prop_assert_eq!(loaded.bytes, bytes);
            prop_assert!(store.stat(&array.stored_key(ChunkId(id))).unwrap().is_some());
        }
        prop_assert_eq!((stats.encodes.get(), stats.stores.get()), (chunks.len() as u64, chunks.len() as u64));
        prop_assert_eq!(stats.bytes_written.get(), stats.bytes_stored.get());
        prop_assert!(array.erase(ChunkId(chunks[0]), WriteBack::unconfirmed()).unwrap() && !array.erase(ChunkId(chunks[0]), WriteBack::unconfirmed()).unwrap());
        prop_assert!(load(&array, ChunkId(chunks[0])).is_none());
    }
}

#[test]
fn order_f_is_stored_as_the_definition_says() {
    let (store, array, _) = array(
        r#"{"zarr_format":2,"shape":[2,3],"chunks":[2,3],"fill_value":0,"dtype":"|u1","order":"F","compressor":null,
        "filters":null}"#,
    );
    array
        .store(ChunkId(0), &[1, 2, 3, 4, 5, 6], &mut Scratch::default())
        .unwrap();
    let mut stored = Vec::new();
    store
        .get(&Key::root().join("a/0.0"), 100, &mut stored)
        .unwrap()
        .unwrap();
    assert_eq!(stored, [1, 4, 2, 5, 3, 6]);
}

#[test]
fn a_failure_to_store_says_why_and_changes_nothing() {
    let plain = r#""dtype":"<i4","order":"C","compressor":null,"filters":null"#;
    let (store, array, stats) = array(&document(plain));
    array
        .store(ChunkId(4), &[1; 48], &mut Scratch::default())
        .unwrap();
    let error = array
        .store(ChunkId(4), &[2; 47], &mut Scratch::default())
        .unwrap_err();
    assert_eq!(
        (error.to_string().as_str(), error.kind()),
        ("/a/0.2.0: 47 bytes for a chunk of 48", Kind::Invalid)
    );
    assert_eq!(load(&array, ChunkId(4)).unwrap().bytes, [1; 48]);
    assert_eq!(stats.stores.get(), 1);

    let delta = r#""dtype":"<i4","order":"C","compressor":{"id":"zlib"},
        "filters":[{"id":"delta","dtype":"<i4","astype":"|i1"}]"#;
    let (narrow, _) = array_in(store, &document(delta));
    assert!(narrow.writable().is_ok());
    let error = narrow
        .store(ChunkId(4), &[2; 48], &mut Scratch::default())
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "/a/0.2.0: delta, zlib: the first item does not fit delta's astype"
    );
    assert_eq!(load(&array, ChunkId(4)).unwrap().bytes, [1; 48]);
}

#[test]
fn an_array_that_cannot_be_encoded_is_read_only() {
    let filter = |filter: &str| {
        document(&format!(
            r#""dtype":"<f4","order":"C","compressor":null,"filters":[{filter}]"#
        ))
    };
    let writable = |document: &str| array(document).1.writable();
    // an element of the shuffle consists of four items
    assert!(writable(&filter(r#"{"id":"shuffle","elementsize":16}"#)).is_ok());
    let error = writable(&filter(r#"{"id":"bitround","keepbits":40}"#)).unwrap_err();
    assert_eq!(error.kind(), Kind::ReadOnly);
    let why = "/a: bitround: bitround can't keep 40 of 23 bits: chunks can be read, not written";
    assert_eq!(error.to_string(), why);
    assert_eq!(
        writable(&filter(r#"{"id":"none such"}"#))
            .unwrap_err()
            .kind(),
        Kind::Unsupported
    );
}

/// For objects, whose size is not known, the largest size would need an encoder that exceeds the
/// default bound.
#[test]
fn objects_are_writable_whatever_their_encoder_may_take() {
    let strings = r#""dtype":"|O","order":"C","compressor":{"id":"lzma","preset":9},"filters":[{"id":"vlen-utf8"}]"#;
    array(&document(strings)).1.writable().unwrap();
}

#[test]
fn the_first_chunk_settles_an_undeclared_separator() {
    let plain = r#""dtype":"|u1","order":"C","compressor":null,"filters":null"#;
    let (store, array, _) = array(&document(plain));
    let (other, _) = array_in(store.clone(), &document(plain));
    assert_eq!(array.separator(), Separator::Dot);
    array
        .store(ChunkId(1), &[1; 12], &mut Scratch::default())
        .unwrap();
    // chunks that were stored meanwhile count
    store.insert("a/0/0/0", [2; 12]);
    store.remove("a/0.0.1");
    array.detect_separator().unwrap();
    assert_eq!(array.separator(), Separator::Dot);
    other
        .store(ChunkId(1), &[3; 12], &mut Scratch::default())
        .unwrap();
    assert_eq!(other.separator(), Separator::Slash);
    assert_eq!(load(&other, ChunkId(0)).unwrap().bytes, [2; 12]);
    assert!(store.stat(&Key::root().join("a/0/0/1")).unwrap().is_some());
}

/// A page, a document or a compressed value in place of a chunk is named as such, whatever the
/// codecs and the sizes are.
#[test]
fn a_value_that_no_codec_has_made_is_named() {
    let page = "<!DOCTYPE html><html>not found</html>";
    let long = format!("{page}{}", " ".repeat(1 << 16));
    let gzip = b"\x1f\x8b\x08\0\0\0\0\0\0\x03".as_slice();
    let error = r#"{"message": "no such value"}"#;
    for codecs in [
        "null",
        r#"{"id":"blosc"}"#,
        r#"{"id":"bz2"}"#,
        r#"{"id":"gzip"}"#,
        r#"{"id":"lz4"}"#,
        r#"{"id":"lzma"}"#,
        r#"{"id":"zlib"}"#,
        r#"{"id":"zstd"}"#,
    ] {
        let kind = format!(r#""dtype":"<i4","order":"C","compressor":{codecs},"filters":null"#);
        for (value, what) in [
            (page.as_bytes(), "<!DOCTYPE: it is a web page"),
            (long.as_bytes(), "<!DOCTYPE: it is a web page"),
            (error.as_bytes(), "it is a JSON document"),
            (gzip, "is compressed with gzip"),
        ] {
            let (store, array, _) = array(&document(&kind));
            store.insert("a/0.0.0", value);
            let loaded = array.load(ChunkId(0), Vec::new(), &mut Scratch::default());
            let e = loaded.err().unwrap();
            assert_eq!(e.kind(), Kind::Damaged);
            let is_own = codecs.contains("gzip") && value == gzip;
            assert_eq!(e.message().contains(what), !is_own, "{codecs}: {e}");
            assert!(e.message().starts_with("/a/0.0.0: "), "{e}");
        }
    }
    let (store, plain, _) = array(&document(KINDS[0].0));
    store.insert("a/0.0.0", page);
    let read = plain.read_plain(ChunkId(0), 4..8, &mut Vec::new());
    let e = read.err().unwrap();
    assert!(e.message().contains("it is a web page"), "{e}");
    let blosc = document(r#""dtype":"<i4","order":"C","compressor":{"id":"blosc"},"filters":null"#);
    let (store, array, _) = array(&blosc);
    store.insert("a/0.0.0", page);
    let e = array.open_chunk(ChunkId(0)).err().unwrap();
    assert!(e.message().contains("it is a web page"), "{e}");
}
