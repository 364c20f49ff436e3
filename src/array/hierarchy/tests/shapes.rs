//! Arrays that get another shape, compared with the definition: an element that was always inside
//! keeps its value, any other is the fill value.

use super::*;
use crate::array::{Scratch, WriteBack};
use proptest::prelude::*;
use zarrfs_base::json::json;
use zarrfs_format::grid::ChunkId;
use zarrfs_format::metadata::Separator;
use zarrfs_store::ByteRange;

pub(super) fn document(shape: &[u64], chunks: &[u64], order: &str, separator: &str) -> String {
    format!(
        r#"{{"zarr_format":2,"shape":{shape:?},"chunks":{chunks:?},"dtype":"<u2","compressor":{{"id":"zlib"}},
        "fill_value":513,"order":"{order}","filters":null,"dimension_separator":"{separator}"}}"#
    )
}

/// Returns the elements of an array as they are stored, in C order.
pub(super) fn elements(array: &Array) -> Vec<u16> {
    let grid = array.grid();
    let mut bytes = vec![0; array.size() as usize];
    array.metadata().write_fill(&mut bytes, 0);
    let mut at = 0;
    for run in grid.runs(0..array.size()) {
        if let Some(chunk) = array
            .load(run.chunk, Vec::new(), &mut Scratch::default())
            .unwrap()
        {
            bytes[at..at + run.len].copy_from_slice(&chunk.bytes[run.offset..run.offset + run.len]);
        }
        at += run.len;
    }
    bytes
        .chunks(2)
        .map(|b| u16::from_le_bytes([b[0], b[1]]))
        .collect()
}

/// Stores some chunks, full of numbers that are no fill value, padding included.
pub(super) fn store_chunks(array: &Array, which: u64) {
    for id in (0..array.grid().chunk_count()).filter(|id| which >> (id % 64) & 1 == 1) {
        let numbers = (0..array.grid().chunk_size(ChunkId(id)) / 2)
            .flat_map(|i| (1000 + i as u16).to_le_bytes());
        array
            .store(
                ChunkId(id),
                &numbers.collect::<Vec<u8>>(),
                &mut Scratch::default(),
            )
            .unwrap();
    }
}

/// Returns `elements` of an array of shape `old` as the array has them in shape `new`.
pub(super) fn resized(elements: &[u16], old: &[u64], new: &[u64]) -> Vec<u16> {
    (0..new.iter().product::<u64>())
        .map(|flat| {
            let mut rest = flat;
            let mut place = 0;
            let mut stride = 1;
            let mut inside = true;
            for (old, new) in old.iter().zip(new).rev() {
                inside &= rest % new < *old;
                place += rest % new * stride;
                (stride, rest) = (stride * old, rest / new);
            }
            if inside {
                elements[place as usize]
            } else {
                513
            }
        })
        .collect()
}

/// Resizes the array `x`, which has the first of these shapes, to each of the others and back.
fn resizes_are_right(
    h: &Hierarchy,
    [first, second, third]: [&Vec<u64>; 3],
) -> std::result::Result<(), TestCaseError> {
    let mut expected = elements(&array(h, "x"));
    for (old, new) in [(first, second), (second, third), (third, first)] {
        expected = resized(&expected, old, new);
        h.resize(&array(h, "x"), new).unwrap();
        let now = array(h, "x");
        prop_assert_eq!(&now.metadata().shape, new);
        prop_assert_eq!(elements(&now), expected.clone(), "{:?} to {:?}", old, new);
    }
    Ok(())
}

fn dimensions() -> impl Strategy<Value = Vec<(u64, u64, u64, u64)>> {
    prop::collection::vec((0u64..8, 1u64..5, 0u64..8, 0u64..8), 1..4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn elements_that_leave_an_array_never_return(
        dims in dimensions(), which in any::<u64>(), f in any::<bool>(), slash in any::<bool>(), list in any::<bool>()
    ) {
        let part = |n: usize| dims.iter().map(|d| [d.0, d.1, d.2, d.3][n]).collect::<Vec<u64>>();
        let first = part(0);
        let chunks = part(1);
        let second = part(2);
        let third = part(3);
        let text = document(&first, &chunks, if f { "F" } else { "C" }, if slash { "/" } else { "." });
        let (_, h) = hierarchy(&[("x/.zarray", &text)]);
        store_chunks(&array(&h, "x"), which);
        if list {
            // a dimension of many chunks, of which none is stored
            let vast: Vec<u64> = first.iter().enumerate().map(|(d, &n)| if d == 0 { n + (1 << 40) } else { n }).collect();
            h.resize(&array(&h, "x"), &vast).unwrap();
            h.resize(&array(&h, "x"), &first).unwrap();
        }
        resizes_are_right(&h, [&first, &second, &third])?;
    }
}

/// A v3 array in listed chunks, or in shards of listed lengths with chunks of length `inner`, in
/// `levels` levels.
pub(super) fn document_v3(shape: &[u64], lists: &[Vec<u64>], levels: &[u64]) -> String {
    let mut codecs = json!(["bytes", "zstd"]);
    for inner in levels.iter().rev() {
        let shape = vec![*inner; shape.len()];
        codecs = json!([{"name": "sharding_indexed", "configuration": {"chunk_shape": shape, "codecs": codecs,
            "index_codecs": ["bytes", "crc32c"]}}]);
    }
    let document = json!({"zarr_format": 3, "node_type": "array", "shape": shape, "data_type": "uint16",
        "chunk_grid": {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": lists}},
        "chunk_key_encoding": {"name": "default"}, "fill_value": 513, "codecs": codecs});
    json::write(&document)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn what_leaves_an_array_of_irregular_shards_never_comes_back(
        dims in prop::collection::vec((0u64..12, prop::collection::vec(1u64..4, 1..4), 0u64..12, 0u64..12), 1..3),
        which in any::<u64>(), depth in 0usize..4,
    ) {
        let levels = &[4, 2, 1][3 - depth..];
        let unit = levels.first().copied().unwrap_or(1);
        let part = |n: usize| dims.iter().map(|d| [d.0, d.2, d.3][n]).collect::<Vec<u64>>();
        let first = part(0);
        let second = part(1);
        let third = part(2);
        let lists: Vec<Vec<u64>> = dims.iter().map(|d| d.1.iter().map(|n| n * unit).collect()).collect();
        let first: Vec<u64> = first.iter().zip(&lists).map(|(len, list)| *len.min(&list.iter().sum())).collect();
        let text = document_v3(&first, &lists, levels);
        let (_, h) = hierarchy(&[("x/zarr.json", &text)]);
        store_chunks(&array(&h, "x"), which);
        array(&h, "x").store_objects().unwrap();
        resizes_are_right(&h, [&first, &second, &third])?;
    }
}

#[test]
fn listed_chunks_are_continued_by_the_last_length() {
    let view =
        |h: &Hierarchy| json::parse(&h.shown_zarr_json(&key("x")).unwrap().unwrap().text).unwrap();
    let (store, h) = hierarchy(&[(
        "x/zarr.json",
        &document_v3(&[7, 4], &[vec![2, 2, 3], vec![2, 2]], &[]),
    )]);
    h.resize(&array(&h, "x"), &[8, 5]).unwrap();
    let stored = |path: &str| {
        json::write(&object(&store, path)["chunk_grid"]["configuration"]["chunk_shapes"])
    };
    assert_eq!(stored("x/zarr.json"), "[[2,2,[3,2]],[2,[2,2]]]");
    assert_eq!(
        json::write(&view(&h)["chunk_grid"]["configuration"]),
        r#"{"kind":"inline","chunk_shapes":[[[2,2],[3,2]],2]}"#
    );
    // the mount shows a list of one length as a regular grid
    store.insert("x/zarr.json", document_v3(&[6], &[vec![2, 2, 2]], &[]));
    let mut longer = view(&h);
    longer["shape"] = vec![7].into();
    store_chunks(&array(&h, "x"), 7);
    h.put_document(
        &key("x"),
        MetadataFile::Zarr,
        json::write(&longer).as_bytes(),
    )
    .unwrap();
    assert_eq!(
        (
            stored("x/zarr.json"),
            elements(&array(&h, "x"))[4..].to_vec()
        ),
        ("[[2,2,[2,2]]]".into(), vec![1000, 1001, 513])
    );
    // chunks of a document that a program wrote
    for (document, lists, shape, is_taken) in [
        (
            document_v3(&[6], &[vec![2, 2, 2]], &[]),
            json!([[2, 2, 2, 5]]),
            11,
            true,
        ),
        (
            document_v3(&[7], &[vec![2, 2, 3]], &[]),
            json!([[2, 2, 3, 4]]),
            11,
            true,
        ),
        (
            document_v3(&[7], &[vec![2, 2, 3]], &[]),
            json!([[2, 2]]),
            4,
            true,
        ),
        (
            document_v3(&[7], &[vec![2, 2, 3]], &[]),
            json!([[2, 2, 4]]),
            8,
            false,
        ),
        (
            document_v3(&[7], &[vec![2, 2, 4]], &[]),
            json!([[2, 2, 3, 4]]),
            11,
            false,
        ),
        (
            document_v3(&[6], &[vec![2, 4]], &[1]),
            json!([[2, 4, 6]]),
            12,
            true,
        ),
        (
            document_v3(&[6], &[vec![2, 4]], &[1]),
            json!([[4, 4, 6]]),
            12,
            false,
        ),
    ] {
        let (store, h) = hierarchy(&[("x/zarr.json", &document)]);
        store_chunks(&array(&h, "x"), u64::MAX);
        array(&h, "x").store_objects().unwrap();
        let before = elements(&array(&h, "x"));
        let own = object(&store, "x/zarr.json");
        let mut documents = vec![own.clone()];
        // a viewer sees the chunks of the shards
        if !document.contains("sharding") {
            documents.push(view(&h));
        }
        for mut written in documents {
            written["shape"] = vec![shape].into();
            written["chunk_grid"] = json!({"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": lists}});
            let done = h.put_document(
                &key("x"),
                MetadataFile::Zarr,
                json::write(&written).as_bytes(),
            );
            assert_eq!(done.is_ok(), is_taken, "{document} {lists}: {done:?}");
            if is_taken {
                let now = object(&store, "x/zarr.json");
                assert_eq!(
                    (&now["chunk_grid"], &now["codecs"]),
                    (&written["chunk_grid"], &own["codecs"])
                );
                let old = before.len() as u64;
                assert_eq!(
                    elements(&array(&h, "x")),
                    resized(&before, &[old], &[shape]),
                    "{document} {lists}"
                );
                h.resize(&array(&h, "x"), &[old])
                    .unwrap_or_else(|e| panic!("{e}"));
                store.insert("x/zarr.json", document.as_str());
                store_chunks(&array(&h, "x"), u64::MAX);
                array(&h, "x").store_objects().unwrap();
            }
        }
    }
}

#[test]
fn chunks_outside_are_deleted_and_those_at_the_border_stay() {
    for count in [10u64, 1 << 40] {
        let (store, h) = hierarchy(&[("x/.zarray", &document(&[count, 4], &[4, 4], "C", "."))]);
        for key in ["0.0", "1.0", "2.0"] {
            let id = array(&h, "x")
                .grid()
                .parse_chunk_key(key, Separator::Dot)
                .unwrap();
            array(&h, "x")
                .store(id, &[9; 32], &mut Scratch::default())
                .unwrap();
        }
        let held = array(&h, "x");
        h.resize(&held, &[6, 4]).unwrap();
        assert!(held.is_superseded());
        assert_eq!(everything(&store), ["x/", "x/.zarray", "x/0.0", "x/1.0"]);
        let mut expected = [9; 32];
        expected[16..].copy_from_slice(&513u16.to_le_bytes().repeat(8));
        let load = |id| {
            array(&h, "x")
                .load(ChunkId(id), Vec::new(), &mut Scratch::default())
                .unwrap()
                .unwrap()
                .bytes
        };
        assert_eq!((load(0), load(1)), (vec![9; 32], expected.to_vec()));
    }
}

#[test]
fn growing_clears_elements_left_outside_by_another_process() {
    let (store, h) = hierarchy(&[("x/.zarray", &document(&[6], &[4], "C", "."))]);
    store_chunks(&array(&h, "x"), u64::MAX);
    // the state after an interrupted shrink by zarr-python
    store.insert("x/.zarray", document(&[3], &[4], "C", "."));
    h.resize(&array(&h, "x"), &[8]).unwrap();
    assert_eq!(
        elements(&array(&h, "x")),
        [1000, 1001, 1002, 513, 513, 513, 513, 513]
    );
}

#[test]
fn a_refused_change_changes_nothing() {
    let (store, h) = hierarchy(&[("x/.zarray", &document(&[6], &[4], "C", "."))]);
    let before = text(&store, "x/.zarray");
    for shape in [&[1, 2][..], &[], &[u64::MAX]] {
        assert_eq!(
            h.resize(&array(&h, "x"), shape).unwrap_err().kind(),
            Kind::Invalid,
            "{shape:?}"
        );
    }
    h.resize(&array(&h, "x"), &[6]).unwrap();
    assert_eq!(text(&store, "x/.zarray"), before);
    let held = array(&h, "x");
    store.remove("x/.zarray");
    assert_eq!(h.resize(&held, &[7]).unwrap_err().kind(), Kind::NotFound);
}

#[test]
fn a_damaged_chunk_stays_as_it_is() {
    let (store, h) = hierarchy(&[
        ("x/.zarray", &document(&[8], &[4], "C", ".")),
        ("x/0", "broken"),
        ("x/1", "broken"),
    ]);
    h.resize(&array(&h, "x"), &[3]).unwrap();
    assert_eq!(everything(&store), ["x/", "x/.zarray", "x/0"]);
}

/// A store in which another process replaces the chunk `x/0` after its first read.
struct Contended {
    store: MemoryStore,
    newer: std::sync::Mutex<Option<Vec<u8>>>,
}

impl Readable for Contended {
    fn read(&self, key: &Key, range: &ByteRange, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        let got = self.store.read(key, range, value);
        if matches!(range, ByteRange::Whole(_))
            && key.as_str() == "x/0"
            && let Some(newer) = self.newer.lock().unwrap().take()
        {
            self.store.insert("x/0", newer);
        }
        got
    }

    fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        self.store.stat(key)
    }

    fn list(&self, prefix: &Key) -> Result<Listing> {
        self.store.list(prefix)
    }

    fn location(&self) -> String {
        self.store.location()
    }
}

impl Store for Contended {
    zarrfs_store::delegate_store!(store: check_writable put_pieces change sync);
}

#[test]
fn a_chunk_stored_by_another_process_meanwhile_stays() {
    let plain = document(&[4], &[4], "C", ".").replace("{\"id\":\"zlib\"}", "null");
    let store = MemoryStore::default();
    store.insert("x/.zarray", plain);
    store.insert("x/0", [1, 0].repeat(4));
    let newer = std::sync::Mutex::new(Some([7, 0].repeat(4)));
    let h = Hierarchy::new(
        Arc::new(Contended { store, newer }),
        V1Order::Zarr1,
        Arc::default(),
    );
    h.resize(&array(&h, "x"), &[2]).unwrap();
    h.resize(&array(&h, "x"), &[4]).unwrap();
    assert_eq!(elements(&array(&h, "x")), [7, 7, 513, 513]);
}

/// A shape that a program writes does to the chunks what the same write does in a directory:
/// nothing.
#[test]
fn a_written_shape_changes_no_chunk_and_those_outside_can_be_deleted() {
    let sharded = document_v3(&[6, 4], &[], &[2]).replace("rectilinear", "regular");
    let sharded = sharded.replace(
        r#"{"kind":"inline","chunk_shapes":[]}"#,
        r#"{"chunk_shape":[4,4]}"#,
    );
    for (file, text) in [
        (MetadataFile::Array, document(&[6, 4], &[2, 2], "F", "/")),
        (MetadataFile::Zarr, sharded),
    ] {
        let (store, h) = hierarchy(&[(&format!("x/{}", file.name()), &text)]);
        store_chunks(&array(&h, "x"), u64::MAX);
        array(&h, "x").store_objects().unwrap();
        let before = elements(&array(&h, "x"));
        let keys = everything(&store);
        let write = |shape: [u64; 2]| {
            let mut document = object(&store, &format!("x/{}", file.name()));
            document["shape"] = shape.to_vec().into();
            h.put_document(&key("x"), file, json::write(&document).as_bytes())
                .unwrap();
        };
        write([3, 1]);
        assert_eq!(everything(&store), keys, "{text}");
        write([6, 4]);
        assert_eq!(elements(&array(&h, "x")), before, "{text}");
        write([3, 1]);
        let outside = |name: &str| h.chunk_outside(&array(&h, "x"), name).unwrap();
        for name in ["2.1", "0.1"] {
            let (larger, chunk) = outside(name).unwrap();
            assert!(
                larger.erase(chunk, WriteBack::unconfirmed()).unwrap(),
                "{text} {name}"
            );
            larger.store_objects().unwrap();
            assert!(outside(name).is_none(), "{text} {name}");
        }
        for name in ["9.9", "2", "2.1.0", "x", "18446744073709551615.0", "02.0"] {
            assert!(outside(name).is_none(), "{text} {name}");
        }
        write([6, 4]);
        // the items of the chunks 2.1 and 0.1 are fill values
        let is_erased = |at: usize| [0, 1, 4, 5].contains(&(at / 4)) && at % 4 >= 2;
        let expected: Vec<u16> = before
            .iter()
            .enumerate()
            .map(|(at, item)| if is_erased(at) { 513 } else { *item })
            .collect();
        assert_eq!(elements(&array(&h, "x")), expected, "{text}");
    }
}

/// zarr-python 3 writes chunks of length 0 along a dimension without items, and reads them.
#[test]
fn chunks_without_items_get_a_length_when_the_array_grows() {
    let v3 = r#"{"zarr_format":3,"node_type":"array","shape":[0],"data_type":"uint16","fill_value":513,"codecs":["bytes"],
        "chunk_grid":{"name":"regular","configuration":{"chunk_shape":[0]}},"chunk_key_encoding":"default"}"#;
    for (name, document) in [
        (".zarray", document(&[0], &[0], "C", ".")),
        ("zarr.json", v3.to_string()),
    ] {
        let (store, h) = hierarchy(&[(&format!("a/{name}"), document.as_str())]);
        let found = array(&h, "a");
        assert_eq!(
            (
                found.metadata().shape.as_slice(),
                found.metadata().chunks.as_slice()
            ),
            (&[0][..], &[1][..])
        );
        h.resize(&found, &[3]).unwrap();
        assert_eq!(elements(&array(&h, "a")), [513; 3]);
        assert!(!text(&store, &format!("a/{name}")).unwrap().contains("[0]"));
    }
    assert!(ArrayMetadata::parse(document(&[2], &[0], "C", ".").as_bytes()).is_err());
}
