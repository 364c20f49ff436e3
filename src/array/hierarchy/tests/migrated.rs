//! Stores that are migrated to v3, also in steps.

use super::interrupted::at_each_step;
use super::shapes::{document, elements, store_chunks};
use super::*;

const V2_GROUP: &str = r#"{"zarr_format":2}"#;
const DIMENSIONS: &str = r#"{"units":"K","_ARRAY_DIMENSIONS":["y","x"]}"#;

/// Returns a store with nested groups, one of which lacks a document, with attributes and with
/// consolidated metadata.
pub(super) fn store() -> Arc<MemoryStore> {
    let (store, h) = hierarchy(&[
        (".zgroup", V2_GROUP),
        (".zattrs", r#"{"title":"t"}"#),
        ("a/.zarray", &document(&[6, 5], &[2, 2], "F", ".")),
        ("a/.zattrs", DIMENSIONS),
        ("g/.zgroup", V2_GROUP),
        ("g/h/x/.zarray", &document(&[3], &[2], "C", "/")),
        ("g/notes.txt", "plain"),
        ("plain/file", "plain"),
    ]);
    for path in ["a", "g/h/x"] {
        store_chunks(&array(&h, path), 0x5555);
    }
    for path in ["", "g"] {
        h.write_consolidated(&key(path)).unwrap();
    }
    store
}

/// Returns the names of all metadata documents, old and new.
pub(super) fn documents(store: &MemoryStore) -> Vec<String> {
    everything(store)
        .into_iter()
        .filter(|name| name.contains("zarr.json") || name.contains(".z"))
        .collect()
}

#[test]
fn a_hierarchy_becomes_v3() {
    let store = store();
    let h = Hierarchy::new(store.clone(), V1Order::Zarr1, Arc::default());
    let before: Vec<_> = ["a", "g/h/x"]
        .iter()
        .map(|path| elements(&array(&h, path)))
        .collect();
    assert!(h.migrate_to_v3().unwrap());
    let made = [
        "a/zarr.json",
        "g/h/x/zarr.json",
        "g/h/zarr.json",
        "g/zarr.json",
        "zarr.json",
    ];
    assert_eq!(documents(&store), made);
    let after: Vec<_> = ["a", "g/h/x"]
        .iter()
        .map(|path| elements(&array(&h, path)))
        .collect();
    assert_eq!(after, before);
    let a = object(&store, "a/zarr.json");
    assert_eq!(json::write(&a["dimension_names"]), r#"["y","x"]"#);
    assert_eq!(
        json::write(&a["attributes"]),
        r#"{"units":"K","_FillValue":513}"#
    );
    assert_eq!(
        json::write(&object(&store, "zarr.json")["attributes"]),
        r#"{"title":"t"}"#
    );
    for group in ["", "g"] {
        assert_eq!(
            h.stale_consolidated(DocumentFormat::V3, &key(group))
                .unwrap(),
            []
        );
        let entries =
            object(&store, key(group).join("zarr.json").as_str())["consolidated_metadata"]["metadata"].clone();
        assert_eq!(
            entries.as_object().unwrap().len(),
            if group.is_empty() { 4 } else { 2 }
        );
    }
    assert!(!h.migrate_to_v3().unwrap());
    assert_eq!(text(&store, "g/notes.txt").unwrap(), "plain");
}

#[test]
fn an_interrupted_migration_is_finished_by_the_next() {
    let complete = {
        let store = store();
        Hierarchy::new(store.clone(), V1Order::Zarr1, Arc::default())
            .migrate_to_v3()
            .unwrap();
        store
    };
    let wanted: Vec<_> = documents(&complete)
        .iter()
        .map(|name| object(&complete, name))
        .collect();
    let original = documents(&store());
    let values = |h: &Hierarchy| ["a", "g/h/x"].map(|path| elements(&array(h, path)));
    let before = values(&Hierarchy::new(store(), V1Order::Zarr1, Arc::default()));
    let stops = at_each_step(
        store,
        |h| h.migrate_to_v3().map(drop),
        |store, h| {
            assert_eq!(values(h), before);
            let there = documents(store);
            // readers of v2 find everything until readers of v3 do
            match text(store, "zarr.json") {
                None => assert!(
                    original.iter().all(|name| there.contains(name)),
                    "{there:?}"
                ),
                Some(_) => assert!(
                    documents(&complete).iter().all(|name| there.contains(name)),
                    "{there:?}"
                ),
            }
            h.migrate_to_v3().unwrap();
            assert_eq!(values(h), before);
            assert_eq!(documents(store), documents(&complete));
            let found: Vec<_> = documents(store)
                .iter()
                .map(|name| object(store, name))
                .collect();
            assert_eq!(found, wanted);
        },
    );
    assert!(stops > 25, "{stops}");
}

#[track_caller]
fn refused(changes: &[(&str, &str)], why: &str) {
    let store = store();
    changes
        .iter()
        .for_each(|(name, text)| store.insert(name, *text));
    let all = |store: &MemoryStore| {
        let names = everything(store)
            .into_iter()
            .filter(|name| !name.ends_with('/'));
        let value = |name: &str| {
            let mut value = Vec::new();
            store.get(&key(name), 1 << 20, &mut value).unwrap();
            value
        };
        names.map(|name| (value(&name), name)).collect::<Vec<_>>()
    };
    let before = all(&store);
    let e = Hierarchy::new(store.clone(), V1Order::Zarr1, Arc::default())
        .migrate_to_v3()
        .unwrap_err();
    assert!(
        e.message().contains(why) && e.message().ends_with("nothing was migrated"),
        "{e}"
    );
    assert_eq!(all(&store), before);
}

#[test]
fn a_store_that_has_no_form_in_v3_stays_unchanged() {
    let pickled = ARRAY
        .replace("<i4", "|O")
        .replace("null}", "[{\"id\":\"pickle\"}]}");
    refused(
        &[("g/h/y/.zarray", &pickled)],
        "/g/h/y/.zarray: codec \"pickle\" has no form in Zarr v3",
    );
    refused(&[("a/.zarray", "{")], "/a/.zarray: not valid JSON");
    refused(&[("a/.zattrs", "[1]")], "/a/.zattrs: not a JSON object");
    refused(&[("g/.zattrs", "{'a': 1}")], "/g/.zattrs: not valid JSON");
    refused(
        &[("g/.zgroup", r#"{"zarr_format":2,"_NCZARR_GROUP":{}}"#)],
        "/g/.zgroup: field \"_NCZARR_GROUP\"",
    );
    let zarr_json = r#"{"zarr_format":3,"node_type":"group","attributes":{"b":1}}"#;
    refused(
        &[("g/zarr.json", zarr_json)],
        "/g/zarr.json: says another thing than .zmetadata, .zgroup beside it",
    );
    refused(
        &[("a/zarr.json", zarr_json)],
        "/a/zarr.json: says another thing",
    );
}

#[test]
fn documents_that_v3_has_replaced_are_deleted() {
    let store = store();
    let h = Hierarchy::new(store.clone(), V1Order::Zarr1, Arc::default());
    h.migrate_to_v3().unwrap();
    h.set_attribute(&key("a"), "units", Some(b"m")).unwrap();
    h.resize(&array(&h, "a"), &[4, 4]).unwrap();
    // as if the migration had ended before it deleted them
    store.insert("a/.zarray", document(&[6, 5], &[2, 2], "F", "."));
    store.insert("a/.zattrs", DIMENSIONS);
    store.insert("g/.zgroup", V2_GROUP);
    assert!(h.migrate_to_v3().unwrap());
    assert_eq!(object(&store, "a/zarr.json")["attributes"]["units"], "m");
    assert!(
        documents(&store)
            .iter()
            .all(|name| name.ends_with("zarr.json")),
        "{:?}",
        documents(&store)
    );
    // a document that describes other chunks was not made by the migration
    store.insert("a/.zarray", document(&[6, 5], &[2, 2], "C", "."));
    assert!(
        h.migrate_to_v3()
            .unwrap_err()
            .message()
            .contains("says another thing than .zarray beside it")
    );
}

#[test]
fn v1_becomes_v3() {
    let meta = r#"{"zarr_format":1,"shape":[4],"chunks":[4],"dtype":"<u2","compression":"zlib","compression_opts":1,
        "fill_value":7,"order":"F"}"#;
    let make = || {
        let (store, h) = hierarchy(&[("meta", meta), ("attrs", "{\"a\": 1}")]);
        store_chunks(&array(&h, ""), 1);
        store
    };
    let stops = at_each_step(
        make,
        |h| h.migrate_to_v3().map(drop),
        |store, h| {
            h.migrate_to_v3().unwrap();
            assert_eq!(elements(&array(h, "")), [1000, 1001, 1002, 1003]);
            assert_eq!(h.attributes(&key("")).unwrap()["a"], 1);
            assert_eq!(everything(store), ["0", "zarr.json"]);
            // a user's file of this name
            store.insert("meta", "notes");
            assert!(!h.migrate_to_v3().unwrap());
            assert_eq!(text(store, "meta").unwrap(), "notes");
        },
    );
    assert!(stops > 6, "{stops}");
}

#[test]
fn mixed_hierarchies_become_v3() {
    let group = r#"{"zarr_format":3,"node_type":"group"}"#;
    let (store, h) = hierarchy(&[
        ("zarr.json", group),
        ("old/.zarray", ARRAY),
        ("g/.zgroup", V2_GROUP),
    ]);
    assert!(h.migrate_to_v3().unwrap());
    assert_eq!(
        everything(&store),
        ["g/", "g/zarr.json", "old/", "old/zarr.json", "zarr.json"]
    );
    assert_eq!(text(&store, "zarr.json").unwrap(), group);
}
