//! Changes that are interrupted at any step: the store stays readable, and repeating the change
//! finishes it.

use super::shapes::{document, elements, resized, store_chunks};
use super::*;
use zarrfs_store::testing::{FaultyStore, Operation, PlannedFault};

/// Calls `change` on stores made by `make`, with the store failing at each call in turn, before or
/// after that call takes effect; then calls `check` on the store.
pub(super) fn at_each_step(
    make: impl Fn() -> Arc<MemoryStore>,
    change: impl Fn(&Hierarchy) -> Result<()>,
    check: impl Fn(&MemoryStore, &Hierarchy),
) -> usize {
    let mut stops = 0;
    for operation in [
        Operation::Put,
        Operation::Delete,
        Operation::Sync,
        Operation::Rename,
        Operation::Prefix,
    ] {
        for applied in [false, true] {
            for after in 0.. {
                let store = make();
                let faulty = Arc::new(FaultyStore::new(store.clone()));
                faulty.plan(PlannedFault {
                    operation,
                    after,
                    times: u64::MAX,
                    errno: libc::EIO,
                    applied,
                });
                let h = Hierarchy::new(faulty, V1Order::Zarr1, Arc::default());
                if change(&h).is_ok() {
                    break;
                }
                stops += 1;
                check(
                    &store,
                    &Hierarchy::new(store.clone(), V1Order::Zarr1, Arc::default()),
                );
            }
        }
    }
    stops
}

#[test]
fn a_shape_is_the_old_or_the_new_one_and_no_element_returns() {
    let old = [6, 5];
    let new = [3, 9];
    let make = || {
        let (store, h) = hierarchy(&[("x/.zarray", &document(&[6, 9], &[2, 2], "C", "."))]);
        store_chunks(&array(&h, "x"), u64::MAX);
        // another writer has shrunk it, and left all chunks in place
        store.insert("x/.zarray", document(&old, &[2, 2], "C", "."));
        store
    };
    let before = elements(&array(
        &Hierarchy::new(make(), V1Order::Zarr1, Arc::default()),
        "x",
    ));
    let change = |h: &Hierarchy| h.resize(&array(h, "x"), &new);
    let stops = at_each_step(make, change, |_, h| {
        let now = array(h, "x");
        let is_old = now.metadata().shape == old;
        assert!(is_old || now.metadata().shape == new);
        let expected = if is_old {
            before.clone()
        } else {
            resized(&before, &old, &new)
        };
        assert_eq!(elements(&now), expected);
        h.resize(&now, &[6, 9]).unwrap();
        let expected = resized(&expected, if is_old { &old } else { &new }, &[6, 9]);
        assert_eq!(elements(&array(h, "x")), expected);
    });
    assert!(stops > 20, "{stops}");
}

const META: &str = r#"{"zarr_format":1,"shape":[4],"chunks":[4],"dtype":"<f4","compression":"zlib","compression_opts":1,
    "fill_value":NaN,"order":"F"}"#;

#[test]
fn a_migration_leaves_a_store_that_can_be_read_and_finished() {
    let make = || {
        let (store, h) = hierarchy(&[
            ("meta", &META.replace("NaN", "7").replace("<f4", "<u2")),
            ("attrs", "{\"a\": 1}"),
        ]);
        store_chunks(&array(&h, ""), 1);
        store
    };
    let stops = at_each_step(
        make,
        |h| h.migrate().map(|_| ()),
        |store, h| {
            let check = |h: &Hierarchy| {
                assert_eq!(elements(&array(h, "")), [1000, 1001, 1002, 1003]);
                assert_eq!(h.attributes(&Key::root()).unwrap()["a"], 1);
            };
            check(h);
            // the interrupted migration may have been complete except for its answer
            h.migrate().unwrap();
            check(h);
            assert_eq!(everything(store), [".zarray", ".zattrs", "0"]);
        },
    );
    assert!(stops > 10, "{stops}");
}

#[test]
fn a_migrated_store_reads_the_same() {
    let (store, h) = hierarchy(&[("meta", META), ("attrs", "{ \"a\": NaN}")]);
    assert!(h.migrate().unwrap());
    // zarr 1.x wrote order C with every compressor but blosc
    let expected = r#"{"chunks":[4],"compressor":{"id":"zlib","level":1},"dimension_separator":".","dtype":"<f4",
        "fill_value":"NaN","filters":null,"order":"C","shape":[4],"zarr_format":2}"#;
    assert_eq!(
        object(&store, ".zarray"),
        json::parse(expected.as_bytes()).unwrap()
    );
    assert_eq!(text(&store, ".zattrs").unwrap(), "{ \"a\": NaN}");
    assert!(!h.migrate().unwrap());
    store.insert("meta", "somebody's");
    store.insert("attrs", "somebody's");
    assert!(!h.migrate().unwrap());
    assert_eq!(everything(&store), [".zarray", ".zattrs", "attrs", "meta"]);
    let (_, h) = hierarchy(&[("meta", META), ("attrs", "{}")]);
    let spec = Hierarchy::new(h.store.clone(), V1Order::Spec, Arc::default());
    assert!(spec.migrate().unwrap());
    assert_eq!(
        array(&spec, "").metadata().order,
        zarrfs_format::metadata::Order::F
    );
    assert!(
        !hierarchy(&[(".zgroup", "{\"zarr_format\": 2}")])
            .1
            .migrate()
            .unwrap()
    );
    assert!(
        hierarchy(&[("meta", "{"), ("attrs", "{}")])
            .1
            .migrate()
            .is_err()
    );
}

#[test]
fn removal_and_renaming_are_atomic_for_the_view() {
    let make = || {
        hierarchy(&[
            ("x/.zarray", ARRAY),
            ("x/.zattrs", "{}"),
            ("x/0.partial", ""),
        ])
        .0
    };
    let stops = at_each_step(
        make,
        |h| h.remove_node(&key("x")),
        |store, h| {
            if h.find(&key("x")).unwrap().is_some() {
                h.remove_node(&key("x")).unwrap();
            }
            assert!(everything(store).is_empty(), "{:?}", everything(store));
        },
    );
    assert!(stops > 8, "{stops}");
    let make = || hierarchy(&[("x/.zarray", ARRAY), ("y/.zgroup", "{\"zarr_format\": 2}")]).0;
    let stops = at_each_step(
        make,
        |h| h.rename(&key("x"), &key("y")),
        |_, h| {
            let is_array = |path| matches!(h.find(&key(path)).unwrap(), Some(StoredNode::Array(_)));
            assert!(is_array("x") != is_array("y"));
        },
    );
    assert!(stops > 4, "{stops}");
}

/// A daemon is killed at any step of a change: its successor completes the consolidated metadata.
#[test]
fn consolidated_metadata_follow_a_change_that_a_killed_daemon_has_begun() {
    const ZARRAY: &str = r#"{"zarr_format":2,"shape":[2],"chunks":[2],"dtype":"|u1","compressor":null,"fill_value":0,
        "order":"C","filters":null}"#;
    const V3_ARRAY: &str = r#"{"zarr_format":3,"node_type":"array","shape":[2],"data_type":"uint8","fill_value":0,
        "chunk_grid":{"name":"regular","configuration":{"chunk_shape":[2]}},"chunk_key_encoding":{"name":"default"},
        "codecs":[{"name":"bytes"}]}"#;
    const V3_GROUP: &str = r#"{"zarr_format":3,"node_type":"group"}"#;
    const V2: &[(&str, &str)] = &[
        (".zgroup", r#"{"zarr_format":2}"#),
        ("g/.zgroup", r#"{"zarr_format":2}"#),
        ("g/a/.zarray", ZARRAY),
        ("g/a/.zattrs", r#"{"b":1}"#),
    ];
    const V3: &[(&str, &str)] = &[
        ("zarr.json", V3_GROUP),
        ("g/zarr.json", V3_GROUP),
        ("g/a/zarr.json", V3_ARRAY),
    ];
    type Change = fn(&Hierarchy, MetadataFile) -> Result<()>;
    let changes: [(&[&str], Change); 5] = [
        (&["g/a"], |h, file| h.remove_document(&key("g/a"), file)),
        (&["g/a"], |h, _| {
            h.set_attribute(&key("g/a"), "b", Some(b"2"))
        }),
        (&["g/a"], |h, file| {
            let text = if file == MetadataFile::Zarr {
                V3_ARRAY
            } else {
                ZARRAY
            };
            let text = text.replace(r#""fill_value":0"#, r#""fill_value":1"#);
            h.put_document(&key("g/a"), file, text.as_bytes())
        }),
        (&["g/a", "g/c"], |h, _| h.rename(&key("g/a"), &key("g/c"))),
        (&["g", "k"], |h, _| h.rename(&key("g"), &key("k"))),
    ];
    for (documents, file, consolidated) in [
        (V2, MetadataFile::Array, ".zmetadata"),
        (V3, MetadataFile::Zarr, "zarr.json"),
    ] {
        for (keys, change) in &changes {
            let make = || {
                let (store, h) = hierarchy(documents);
                h.write_consolidated(&Key::root()).unwrap();
                store
            };
            let store = make();
            let h = Hierarchy::new(store, V1Order::Zarr1, Arc::default());
            change(&h, file).unwrap();
            let memory = zarrfs_outlive::create_memory().unwrap();
            let open = || {
                let (journal, left) = zarrfs_outlive::Journal::open(&memory).unwrap();
                (Arc::new(journal), left)
            };
            let killed = |h: &Hierarchy| {
                let (journal, left) = open();
                h.changing_keys.outlive(&journal, CHANGING_RECORD, &left);
                change(h, file).inspect_err(|_| {
                    // a daemon that is killed removes no record
                    keys.iter().for_each(|key| h.changing_keys.put(key, 0));
                })
            };
            let stops = at_each_step(make, killed, |store, h| {
                let (journal, left) = open();
                h.outlive(&journal, &left);
                let found = object(store, consolidated);
                h.write_consolidated(&Key::root()).unwrap();
                assert_eq!(found, object(store, consolidated), "{keys:?}");
                assert_eq!(open().1, [], "no record is left");
            });
            assert!(stops >= 3, "{keys:?}: {stops}");
        }
    }
}

/// A bucket keeps no empty directories, so that a successor makes them again.
#[test]
fn directories_in_a_bucket_outlive_the_daemon_that_made_them() {
    let memory = zarrfs_outlive::create_memory().unwrap();
    let remote = |make: &dyn Fn(Arc<MemoryStore>) -> Arc<dyn Store>| {
        let (store, _) = hierarchy(&[(".zgroup", r#"{"zarr_format":2}"#)]);
        let h = Hierarchy::new(make(store.clone()), V1Order::Zarr1, Arc::default());
        let (journal, left) = zarrfs_outlive::Journal::open(&memory).unwrap();
        h.outlive(&Arc::new(journal), &left);
        (store, h)
    };
    let bucket =
        |store: Arc<MemoryStore>| -> Arc<dyn Store> { Arc::new(FaultyStore::remote(store)) };
    let (_, h) = remote(&bucket);
    h.make_directory(&key("g")).unwrap();
    h.make_directory(&key("g/h")).unwrap();
    h.make_directory(&key("k")).unwrap();
    h.remove_node(&key("k")).unwrap();
    assert_eq!(everything(&remote(&bucket).0), [".zgroup", "g/", "g/h/"]);
    // a directory on a disk that is gone was removed by another program
    assert_eq!(everything(&remote(&|store| store).0), [".zgroup"]);
}
