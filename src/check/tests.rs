use super::*;
use crate::array::hierarchy::{ConsolidatedStore, UseConsolidated};
use std::time::Duration;
use zarrfs_base::error::Error;
use zarrfs_format::metadata::V1Order;
use zarrfs_store::testing::{FaultyStore, Operation, PlannedFault, SimulatedRemote, UnlistedStore};
use zarrfs_store::{MemoryStore, Store};

const ARRAY: &str = r#"{"zarr_format":2,"shape":[4],"chunks":[2],"dtype":"|u1","compressor":null,"fill_value":0,"order":"C",
    "filters":null}"#;

/// Returns a group with two arrays of two chunks each.
fn memory() -> Arc<MemoryStore> {
    let store = MemoryStore::default();
    store.insert(".zgroup", r#"{"zarr_format":2}"#);
    for array in ["a", "b"] {
        store.insert(&format!("{array}/.zarray"), ARRAY);
        store.insert(&format!("{array}/0"), "01");
        store.insert(&format!("{array}/1"), "23");
    }
    Arc::new(store)
}

/// Runs a check. Returns kind, key and message of each finding, and the summary.
fn found(store: Arc<dyn Store>, deep: bool) -> (Vec<(FindingKind, String, String)>, Summary) {
    let hierarchy = Hierarchy::new(store, V1Order::Zarr1, Arc::default());
    let mut found = Vec::new();
    let stop = AtomicBool::new(false);
    let summary = check(
        &hierarchy,
        CheckOptions {
            deep,
            threads: 1,
            stop: &stop,
        },
        &mut |event| {
            if let Event::Found(finding) = event {
                found.push((finding.fault, finding.key.to_string(), finding.message));
            }
        },
    );
    (found, summary)
}

#[test]
fn a_sound_store_has_no_findings() {
    for deep in [false, true] {
        let expected = Summary {
            groups: 1,
            arrays: 2,
            chunks: 4,
            bytes: 8,
            complete: true,
        };
        assert_eq!(found(memory(), deep), (Vec::new(), expected));
    }
}

#[test]
fn store_failures_are_findings_and_the_rest_is_checked() {
    // the operation that fails, the number of its calls that succeed before, the key of the
    // finding, and the number of examined chunks
    let cases = [
        (Operation::List, 1, "/a", 2),
        (Operation::List, 2, "/b", 2),
        (Operation::Get, 2, "/a/0", 4),
        (Operation::Get, 0, "/.zgroup", 4),
    ];
    for (operation, after, key, chunks) in cases {
        let store = FaultyStore::new(memory());
        store.plan(PlannedFault {
            after,
            ..PlannedFault::next(operation, libc::EIO)
        });
        let (found, summary) = found(Arc::new(store), true);
        let message = format!(
            "{}; {}",
            Error::system(libc::EIO),
            FindingKind::Unreadable.advice()
        );
        assert_eq!(
            found,
            [(FindingKind::Unreadable, key.to_string(), message)],
            "{operation:?} {after}"
        );
        assert_eq!(
            (summary.arrays, summary.chunks, summary.complete),
            (2, chunks, true),
            "{operation:?} {after}"
        );
    }
}

#[test]
fn a_store_that_cannot_list_is_asked_for_each_chunk() {
    let store = memory();
    let documents =
        format!(r#"{{".zgroup":{{"zarr_format":2}},"a/.zarray":{ARRAY},"b/.zarray":{ARRAY}}}"#);
    store.insert(
        ".zmetadata",
        format!(r#"{{"zarr_consolidated_format":1,"metadata":{documents}}}"#),
    );
    store.insert("b/1", "2");
    store.delete(&Key::root().join("a/0")).unwrap();
    let unlisted = Arc::new(UnlistedStore::new(store));
    let served = ConsolidatedStore::over(unlisted, UseConsolidated::Auto, Arc::default()).unwrap();
    for deep in [false, true] {
        let (all, summary) = found(served.clone(), deep);
        let all: Vec<(FindingKind, &str)> = all
            .iter()
            .map(|(fault, key, _)| (*fault, key.as_str()))
            .collect();
        assert_eq!(
            all,
            [(FindingKind::Unlisted, "/"), (FindingKind::Chunk, "/b/1")],
            "deep: {deep}"
        );
        assert_eq!(
            (summary.arrays, summary.chunks, summary.bytes),
            (2, 3, 5),
            "deep: {deep}"
        );
    }
}

/// An array of 3 x 4 bytes in chunks of 1 x 2, in shards of 2 x 4; the second shard is half
/// outside.
const SHARDED: &str = r#"{"zarr_format":3,"node_type":"array","shape":[3,4],"data_type":"uint8","fill_value":9,
    "chunk_grid":{"name":"regular","configuration":{"chunk_shape":[2,4]}},"chunk_key_encoding":{"name":"default"},
    "codecs":[{"name":"sharding_indexed","configuration":{"chunk_shape":[1,2],"codecs":["bytes"],
    "index_codecs":["bytes","crc32c"]}}]}"#;

/// Returns a shard: `waste` unused bytes, 8 bytes of chunks, and an index. The offsets in `entries`
/// are offsets into the 8 bytes.
fn shard(waste: usize, entries: [Option<(u64, u64)>; 4]) -> Vec<u8> {
    let entry = |entry: Option<(u64, u64)>| match entry {
        Some((offset, size)) => {
            [(offset + waste as u64).to_le_bytes(), size.to_le_bytes()].concat()
        }
        None => vec![0xff; 16],
    };
    let index: Vec<u8> = entries.into_iter().flat_map(entry).collect();
    [
        vec![0; waste + 8],
        index.clone(),
        crc32c::crc32c(&index).to_le_bytes().to_vec(),
    ]
    .concat()
}

const SOUND: [Option<(u64, u64)>; 4] = [Some((0, 2)), Some((2, 2)), Some((4, 2)), Some((6, 2))];

#[test]
fn all_chunks_of_a_shard_are_checked() {
    let store = Arc::new(MemoryStore::default());
    store.insert("zarr.json", SHARDED);
    let put = |key: &str, value: Vec<u8>| {
        store
            .put(&Key::normalize(key).unwrap(), &value)
            .map(drop)
            .unwrap()
    };
    put("c/0/0", shard(0, SOUND));
    put("c/1/0", shard(0, [Some((0, 2)), None, None, None]));
    for deep in [false, true] {
        let expected = Summary {
            groups: 0,
            arrays: 1,
            chunks: 5,
            bytes: 10,
            complete: true,
        };
        assert_eq!(found(store.clone(), deep), (Vec::new(), expected));
    }
    // the last two entries: one reaches beyond the chunks' bytes, one has a wrong size
    put(
        "c/0/0",
        shard(0, [SOUND[0], SOUND[1], Some((7, 2)), Some((6, 1))]),
    );
    // 500 unused bytes, and an entry for a chunk outside the array
    put(
        "c/1/0",
        shard(500, [Some((0, 2)), None, Some((2, 2)), None]),
    );
    for deep in [false, true] {
        let (all, summary) = found(store.clone(), deep);
        let all: Vec<String> = all
            .iter()
            .map(|(kind, key, what)| format!("{} {key} {what}", kind.name()))
            .collect();
        let advice = FindingKind::Chunk.advice();
        let size = if deep {
            "decoded to 1 bytes, the chunk has 2"
        } else {
            "1 bytes, it must have 2"
        };
        let expected = [
            format!(
                "chunk /c/0/0 chunk 1.0: entry 2 of the shard's index, 7 + 2, is outside the chunks' bytes 0..8; {advice}"
            ),
            format!("chunk /c/0/0 chunk 1.1: no codec: {size}; {advice}"),
            "shard-waste /c/1/0 506 of 576 bytes belong to no chunk of the array; a copy of the array takes less space"
                .into(),
            "shard-outside /c/1/0 the index has entries for chunks outside the array: 1".into(),
        ];
        assert_eq!(
            (all, summary.chunks),
            (expected.to_vec(), 5),
            "deep: {deep}"
        );
    }
    // a damaged index
    let mut value = shard(0, SOUND);
    value[20] ^= 1;
    put("c/0/0", value);
    for deep in [false, true] {
        let (all, summary) = found(store.clone(), deep);
        let (kind, key, what) = &all[0];
        assert_eq!(
            (*kind, key.as_str(), summary.chunks, all.len()),
            (FindingKind::Chunk, "/c/0/0", 1, 3),
            "{what}"
        );
        assert!(
            what.starts_with("the shard's index: the crc32c checksum"),
            "{what}"
        );
    }
}

#[test]
fn keys_of_v3_are_classified_by_their_encoding() {
    let v2 = |separator: &str| {
        format!(r#"{{"name":"v2","configuration":{{"separator":"{separator}"}}}}"#)
    };
    let plain = |keys: &str| {
        let document = SHARDED.replace(r#"{"name":"default"}"#, keys);
        document.split("\"codecs\"").next().unwrap().to_string() + r#""codecs":["bytes"]}"#
    };
    let sharded = |keys: &str| SHARDED.replace(r#"{"name":"default"}"#, keys);
    let slash = r#"{"name":"default"}"#;
    let dot = r#"{"name":"default","configuration":{"separator":"."}}"#;
    // the array has 2 x 1 objects, and where these are shards 3 x 2 chunks
    for (document, outside, separator, extra) in [
        (
            plain(slash),
            ["c/9/9", "c/2/0"],
            ["c.0.0", "1.0"],
            ["d.0", "c.x"],
        ),
        (
            plain(dot),
            ["c.9.9", "c.0.1"],
            ["c/0/0", "1.0"],
            ["d.0", "c.x"],
        ),
        (
            plain(&v2(".")),
            ["9.9", "00.0"],
            ["0/0", "c.1.0"],
            ["d.0", "c.x"],
        ),
        (
            plain(&v2("/")),
            ["9/9", "0/1"],
            ["0.0", "c.1.0"],
            ["d.0", "c.x"],
        ),
        (
            sharded(slash),
            ["c/9/9", "c/2/0"],
            ["c.1.0", "1.0"],
            ["d.0", "c"],
        ),
        (
            sharded(&v2(".")),
            ["2.1", "0.1"],
            ["1/0", "c.1.0"],
            ["d.0", "c"],
        ),
        (
            sharded(&v2("/")),
            ["2/1", "0/1"],
            ["1.0", "c.1.0"],
            ["d.0", "c"],
        ),
    ] {
        let store = Arc::new(MemoryStore::default());
        store.insert("zarr.json", document.as_str());
        let kinds = [
            FindingKind::OutsideGrid,
            FindingKind::Separator,
            FindingKind::Extra,
        ];
        let mut expected = Vec::new();
        for (kind, keys) in kinds.into_iter().zip([outside, separator, extra]) {
            for key in keys
                .into_iter()
                .filter(|key| !document.contains("default") || *key != "c")
            {
                store.insert(key, "8 bytes.");
                expected.push((format!("/{key}"), kind));
            }
        }
        let (all, _) = found(store, false);
        let mut all: Vec<(String, FindingKind)> =
            all.into_iter().map(|(kind, key, _)| (key, kind)).collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        expected.sort_by(|a, b| a.0.cmp(&b.0));
        assert_eq!(all, expected, "{document}");
    }
}

#[test]
fn an_empty_list_of_codecs_is_a_finding() {
    let store = Arc::new(MemoryStore::default());
    let document = r#"{"zarr_format":3,"node_type":"array","shape":[2],"data_type":"uint8","fill_value":9,"codecs":[],
        "chunk_grid":{"name":"regular","configuration":{"chunk_shape":[2]}},"chunk_key_encoding":{"name":"v2"}}"#;
    store.insert("zarr.json", document);
    store.insert("0", "01");
    let (all, summary) = found(store, true);
    let message = format!("codecs is empty; {}", FindingKind::NoCodecs.advice());
    assert_eq!(
        (all, summary.chunks),
        (
            vec![(FindingKind::NoCodecs, "/zarr.json".to_string(), message)],
            1
        )
    );
}

#[test]
fn a_check_can_be_stopped() {
    let hierarchy = Hierarchy::new(memory(), V1Order::Zarr1, Arc::default());
    let stop = AtomicBool::new(false);
    let summary = check(
        &hierarchy,
        CheckOptions {
            deep: true,
            threads: 1,
            stop: &stop,
        },
        &mut |event| {
            if let Event::Progress(..) = event {
                stop.store(true, Ordering::Relaxed);
            }
        },
    );
    assert_eq!(
        (summary.arrays, summary.chunks, summary.complete),
        (1, 2, false)
    );
}

/// "As many requests as `info` has in flight", and the findings in the order of the arrays.
#[test]
fn arrays_of_a_remote_store_are_checked_together() {
    let remote = Arc::new(SimulatedRemote::new(Duration::from_millis(20), true));
    let local = Arc::new(MemoryStore::default());
    for i in 0..40 {
        for store in [&remote.below, local.as_ref()] {
            store.insert(".zgroup", r#"{"zarr_format":2}"#);
            store.insert(&format!("c{i:02}/.zarray"), ARRAY);
            store.insert(&format!("c{i:02}/0"), "01");
            store.insert(&format!("c{i:02}/1"), if i % 3 == 0 { "2" } else { "23" });
        }
    }
    // the walk asks for one document after the other
    remote.gather_where(8, |key| {
        key.name().starts_with(|c: char| c.is_ascii_digit())
    });
    let found_remotely = found(remote.clone(), false);
    let found_locally = found(local, false);
    assert_eq!(found_remotely, found_locally);
    assert_eq!((found_remotely.0.len(), found_remotely.1.chunks), (14, 80));
    let most = remote.in_flight.most();
    assert!(most >= 8, "{most} requests in flight");
}

/// "What others write is no finding."
#[test]
fn consolidated_metadata_of_zarr_python_3_are_no_finding() {
    let store = memory();
    let array = ARRAY.replace("\"order\"", "\"dimension_separator\":\".\",\"order\"");
    store.insert("g/.zgroup", r#"{"zarr_format":2}"#);
    let of_group = r#"{"zarr_format":2,"consolidated_metadata":{"metadata":{},"must_understand":false,"kind":"inline"}}"#;
    let consolidated = |more: &str, group: &str, array: &str| {
        format!(
            r#"{{"zarr_consolidated_format":1,"metadata":{{".zgroup":{{"zarr_format":2}},"a/.zattrs":{{}},
            "g/.zgroup":{group},"g/.zattrs":{{}},"a/.zarray":{array},"b/.zarray":{ARRAY}{more}}}}}"#
        )
    };
    store.insert(".zmetadata", consolidated("", of_group, &array));
    assert_eq!(found(store.clone(), false).0, []);
    let other = array.replace("[4]", "[5]");
    for document in [
        consolidated(r#","b/.zattrs":{"units":"m"}"#, of_group, &array),
        consolidated("", r#"{"zarr_format":3}"#, &array),
        consolidated("", of_group, &other),
        consolidated("", of_group, &array.replace("\":\".\"", "\":\"/\"")),
    ] {
        store.insert(".zmetadata", document);
        let found = found(store.clone(), false).0;
        assert_eq!(
            found.iter().map(|found| found.0).collect::<Vec<_>>(),
            [FindingKind::Consolidated],
            "{found:?}"
        );
    }
}

#[test]
fn finding_kinds_have_unique_names() {
    let names: std::collections::BTreeSet<&str> =
        FindingKind::all().map(FindingKind::name).collect();
    assert_eq!(names.len(), FindingKind::all().count());
    for fault in FindingKind::all() {
        assert!(
            fault.meaning().ends_with('.') && !fault.advice().ends_with('.'),
            "{fault:?}"
        );
        // warnings and errors come with advice
        assert!(
            fault.level() == Severity::Note || !fault.advice().is_empty(),
            "{fault:?}"
        );
    }
}
