//! Documents of v3 that are written, changed and removed, and the consolidated metadata in them.

use super::*;
use crate::array::Scratch;
use crate::array::hierarchy::Stale;
use zarrfs_format::grid::ChunkId;

const GROUP: &str = r#"{"zarr_format":3,"node_type":"group","attributes":{"a":1}}"#;

/// An array of 4 items in chunks of 2, compressed.
const PACKED: &str = r#"{"zarr_format":3,"node_type":"array","shape":[4],"data_type":"int32","fill_value":0,
    "chunk_grid":{"name":"regular","configuration":{"chunk_shape":[2]}},
    "chunk_key_encoding":{"name":"default","configuration":{"separator":"/"}},
    "codecs":[{"name":"bytes","configuration":{"endian":"little"}},{"name":"gzip","configuration":{"level":1}}]}"#;

/// Returns `PACKED` with a changed field.
fn with(field: &str, value: &str) -> String {
    let mut document = json::parse(PACKED.as_bytes()).unwrap();
    document[field] = json::parse(value.as_bytes()).unwrap();
    json::write(&document)
}

fn put(h: &Hierarchy, path: &str, text: &str) -> Result<()> {
    h.put_document(&key(path), MetadataFile::Zarr, text.as_bytes())
}

#[track_caller]
fn refuse(h: &Hierarchy, path: &str, text: &str, why: &str) {
    let e = put(h, path, text).unwrap_err();
    assert_eq!(e.kind(), Kind::Invalid, "{e}");
    assert!(e.message().contains(why), "{e}");
    assert!(
        e.message()
            .starts_with(&key(path).join("zarr.json").to_string()),
        "{e}"
    );
}

/// Returns the paths in the consolidated metadata of the root.
fn consolidated(store: &MemoryStore) -> Vec<String> {
    let document = object(store, "zarr.json");
    document["consolidated_metadata"]["metadata"]
        .as_object()
        .unwrap()
        .keys()
        .cloned()
        .collect()
}

/// Returns a hierarchy whose root has consolidated metadata.
fn consolidated_hierarchy(values: &[(&str, &str)]) -> (Arc<MemoryStore>, Hierarchy) {
    let (store, h) = hierarchy(&[&[("zarr.json", GROUP)], values].concat());
    h.write_consolidated(&key("")).unwrap();
    (store, h)
}

#[test]
fn groups_are_stored_as_they_were_written() {
    let (store, h) = hierarchy(&[("zarr.json", GROUP), ("x/zarr.json", PACKED)]);
    h.create_group(&key("g")).unwrap();
    assert_eq!(
        everything(&store),
        ["g/", "g/zarr.json", "x/", "x/zarr.json", "zarr.json"]
    );
    put(&h, "g", GROUP).unwrap();
    assert_eq!(json::write(&object(&store, "g/zarr.json")), GROUP);
    refuse(
        &h,
        "g",
        r#"{"zarr_format":2,"node_type":"group"}"#,
        "zarr_format is 2",
    );
    refuse(&h, "g", r#"{"zarr_format":3}"#, "node_type is missing");
    refuse(
        &h,
        "g",
        r#"{"zarr_format":3,"node_type":"group","x":1}"#,
        "\"x\" is unknown",
    );
    refuse(&h, "x", GROUP, "an array stands here");
    assert_eq!(put(&h, "none", GROUP).unwrap_err().kind(), Kind::NotFound);
    assert!(matches!(
        h.find(&key("g")).unwrap(),
        Some(StoredNode::Group)
    ));
}

#[test]
fn arrays_are_stored_as_they_were_written() {
    let (store, h) = hierarchy(&[("zarr.json", GROUP), ("f", "file")]);
    for path in ["x", "g", "g/sub"] {
        h.create_group(&key(path)).unwrap();
    }
    put(&h, "x", PACKED).unwrap();
    assert_eq!(text(&store, "x/zarr.json").unwrap(), PACKED);
    assert_eq!(array(&h, "x").size(), 16);
    refuse(&h, "g", PACKED, "\"sub\" stands below");
    refuse(&h, "g/sub", &with("data_type", "\"int3\""), "int3");
    refuse(
        &h,
        "g/sub",
        &with("codecs", r#"[{"name":"bytes"},{"name":"nobody"}]"#),
        "nobody",
    );
    refuse(&h, "g/sub", &with("shape", "[4,4]"), "dimensions");
    assert_eq!(put(&h, "f", PACKED).unwrap_err().errno(), libc::ENOTDIR);
}

#[test]
fn writing_the_view_back_keeps_codecs_and_keys() {
    let (store, h) = hierarchy(&[
        ("zarr.json", GROUP),
        ("x/zarr.json", PACKED),
        ("x/c/0", "chunk"),
    ]);
    let view = || json::parse(&h.shown_zarr_json(&key("x")).unwrap().unwrap().text).unwrap();
    assert_eq!(
        json::write(&view()["codecs"]),
        r#"[{"name":"bytes","configuration":{"endian":"little"}}]"#
    );
    put(&h, "x", &json::write_pretty(&view())).unwrap();
    assert_eq!(text(&store, "x/zarr.json").unwrap(), PACKED);
    let mut changed = view();
    changed["shape"] = vec![6].into();
    changed["attributes"] = json::parse(b"{\"units\":\"m\"}").unwrap();
    put(&h, "x", &json::write(&changed)).unwrap();
    let mut expected = json::parse(PACKED.as_bytes()).unwrap();
    expected["shape"] = vec![6].into();
    expected["attributes"] = changed["attributes"].clone();
    assert_eq!(object(&store, "x/zarr.json"), expected);
    // as TensorStore spells the keys of the view
    changed["chunk_key_encoding"] = json::parse(b"{\"name\":\"v2\"}").unwrap();
    put(&h, "x", &json::write(&changed)).unwrap();
    // the program that created the array writes its own document
    put(&h, "x", PACKED).unwrap();
    assert_eq!(
        object(&store, "x/zarr.json"),
        json::parse(PACKED.as_bytes()).unwrap()
    );
}

#[test]
fn a_change_that_would_alter_chunks_is_refused_while_there_are_any() {
    let (store, h) = hierarchy(&[
        ("zarr.json", GROUP),
        ("x/zarr.json", PACKED),
        ("x/c/0", "chunk"),
    ]);
    let zstd = r#"[{"name":"bytes","configuration":{"endian":"little"}},{"name":"zstd"}]"#;
    let big = r#"[{"name":"bytes","configuration":{"endian":"big"}}]"#;
    let chunks = r#"{"name":"regular","configuration":{"chunk_shape":[3]}}"#;
    let keys = r#"{"name":"v2","configuration":{"separator":"/"}}"#;
    let changes = [
        ("codecs", zstd),
        ("codecs", big),
        ("data_type", "\"int16\""),
        ("chunk_grid", chunks),
        ("chunk_key_encoding", keys),
    ];
    for (field, value) in changes {
        refuse(
            &h,
            "x",
            &with(field, value),
            &format!("{field} can't change while chunks are stored"),
        );
    }
    assert_eq!(text(&store, "x/zarr.json").unwrap(), PACKED);
    store.remove("x/c/0");
    put(&h, "x", &with("codecs", zstd)).unwrap();
    assert_eq!(object(&store, "x/zarr.json")["codecs"][1]["name"], "zstd");
}

#[test]
fn the_compressor_is_for_new_arrays_with_bytes_alone() {
    let plain = with(
        "codecs",
        r#"[{"name":"bytes","configuration":{"endian":"little"}}]"#,
    );
    let (store, h) = hierarchy(&[
        ("zarr.json", GROUP),
        ("copied/c/0", "12345678"),
        ("old/zarr.json", &plain),
    ]);
    let zstd = CodecConfig::parse(&json::parse(b"{\"id\":\"zstd\",\"level\":5}").unwrap()).unwrap();
    let h = h.with_compressor(Some(zstd));
    for path in ["new", "own"] {
        h.create_group(&key(path)).unwrap();
    }
    for (path, text) in [
        ("new", plain.as_str()),
        ("own", PACKED),
        ("copied", &plain),
        ("old", &plain),
    ] {
        put(&h, path, text).unwrap();
    }
    let last = |path: &str| {
        object(&store, path)["codecs"]
            .as_array()
            .unwrap()
            .last()
            .unwrap()["name"]
            .to_string()
    };
    assert_eq!(last("new/zarr.json"), "\"zstd\"");
    assert_eq!(last("own/zarr.json"), "\"gzip\"");
    // its chunk was copied before it
    assert_eq!(last("copied/zarr.json"), "\"zstd\"");
    let Some(StoredNode::Array(array)) = h.find(&key("copied")).unwrap() else {
        panic!("no array");
    };
    let chunk = array.load(ChunkId(0), Vec::new(), &mut Scratch::default());
    assert_eq!(chunk.unwrap().unwrap().bytes, b"12345678");
    assert_eq!(last("old/zarr.json"), "\"bytes\"");
    // below `c`, a program finds chunks as it wrote them: decoded in one array, encoded in the
    // other
    assert!(!h.shows_stored_keys(&key("new")) && h.shows_stored_keys(&key("own")));
}

/// Documents of an array without chunks, and of every change to them: the chunk files that the
/// writer stores afterwards mean what its document says.
#[test]
fn an_array_without_chunks_becomes_what_was_written() {
    let shard = r#"[{"name":"sharding_indexed","configuration":{"chunk_shape":[2],"codecs":["bytes","zstd"],
        "index_codecs":["bytes","crc32c"]}}]"#;
    let big = r#"{"name":"bytes","configuration":{"endian":"big"}}"#;
    let little = r#"{"name":"bytes"}"#;
    let zstd = |bytes: &str| format!(r#"[{bytes},{{"name":"zstd"}}]"#);
    let regular =
        |len: u64| format!(r#"{{"name":"regular","configuration":{{"chunk_shape":[{len}]}}}}"#);
    let listed =
        r#"{"name":"rectilinear","configuration":{"kind":"inline","chunk_shapes":[[1,3]]}}"#;
    let transposed = r#"[{"name":"transpose","configuration":{"order":[0]}},"bytes","zstd"]"#;
    let stored = [
        PACKED.to_string(),
        with("codecs", &zstd(big)),
        with("codecs", transposed),
        with("codecs", shard).replacen("[2]", "[4]", 1),
        with("chunk_grid", listed),
        with(
            "chunk_key_encoding",
            r#"{"name":"v2","configuration":{"separator":"/"}}"#,
        ),
    ];
    let changes = [
        ("data_type", "\"int16\"".to_string()),
        ("data_type", "\"uint8\"".to_string()),
        (
            "data_type",
            r#"{"name":"fixed_length_utf32","configuration":{"length_bytes":8}}"#.to_string(),
        ),
        ("codecs", format!("[{big}]")),
        ("codecs", format!("[{little}]")),
        ("codecs", zstd(little)),
        ("chunk_grid", regular(1)),
        ("chunk_grid", regular(4)),
        ("chunk_grid", listed.to_string()),
        ("chunk_key_encoding", r#"{"name":"default"}"#.to_string()),
        (
            "chunk_key_encoding",
            r#"{"name":"default","configuration":{"separator":"."}}"#.to_string(),
        ),
        ("dimension_names", "[\"x\"]".to_string()),
        ("fill_value", "7".to_string()),
        ("shape", "[6]".to_string()),
    ];
    let pairs: Vec<_> = changes
        .iter()
        .flat_map(|one| changes.iter().map(move |other| (one, other)))
        .collect();
    for (document, ((one, value), (two, other))) in stored
        .iter()
        .flat_map(|d| pairs.iter().map(move |p| (d, *p)))
    {
        let (_, h) = hierarchy(&[("zarr.json", GROUP), ("x/zarr.json", document)]);
        let mut changed =
            json::parse(&h.shown_zarr_json(&key("x")).unwrap().unwrap().text).unwrap();
        changed[*one] = json::parse(value.as_bytes()).unwrap();
        changed[*two] = json::parse(other.as_bytes()).unwrap();
        let text = json::write(&changed);
        let Ok(written) = ArrayMetadata::parse_v3(text.as_bytes()) else {
            continue;
        };
        put(&h, "x", &text).unwrap_or_else(|e| panic!("{document} to {text}: {e}"));
        let array = array(&h, "x");
        let now = array.metadata();
        let of = |m: &ArrayMetadata| {
            (
                m.shape.clone(),
                m.dtype.clone(),
                m.fill.clone(),
                m.chunk_edges().into_owned(),
            )
        };
        assert_eq!(of(now), of(&written), "{document} to {text}");
        assert_eq!(
            now.v3.as_ref().unwrap().dimension_names,
            written.v3.as_ref().unwrap().dimension_names
        );
        // what the writer stores below c is decoded, or encoded by the codecs that it stated
        if written.has_key_prefix() {
            let has_codecs = written.stated_filters().next().is_some();
            assert_eq!(
                (now.has_key_prefix(), now.separator),
                (true, written.separator),
                "{document} to {text}"
            );
            assert!(
                has_codecs || !h.shows_stored_keys(&key("x")),
                "{document} to {text}"
            );
            assert!(
                !has_codecs || now.stated_filters().eq(written.stated_filters()),
                "{document} to {text}"
            );
        }
    }
}

#[test]
fn what_the_mount_hides_stays_where_only_the_type_changes() {
    let shard = r#"[{"name":"sharding_indexed","configuration":{"chunk_shape":[2],"codecs":["bytes","zstd"],
        "index_codecs":["bytes","crc32c"]}}]"#;
    let sharded = with("codecs", shard).replacen("[2]", "[4]", 1);
    let strings = with("data_type", "\"string\"").replace(":0,", ":\"\",");
    let strings = strings.replace(
        r#"{"name":"bytes","configuration":{"endian":"little"}}"#,
        "\"vlen-utf8\"",
    );
    for (document, new_type) in [
        (PACKED, "\"int16\""),
        (&sharded, "\"int16\""),
        (PACKED, "\"int8\""),
        (&strings, ""),
    ] {
        let (store, h) = hierarchy(&[("zarr.json", GROUP), ("x/zarr.json", document)]);
        let mut changed =
            json::parse(&h.shown_zarr_json(&key("x")).unwrap().unwrap().text).unwrap();
        match new_type {
            "" => changed["chunk_grid"]["configuration"]["chunk_shape"] = vec![3].into(),
            _ => changed["data_type"] = json::parse(new_type.as_bytes()).unwrap(),
        }
        put(&h, "x", &json::write(&changed)).unwrap();
        let now = object(&store, "x/zarr.json");
        let before = json::parse(document.as_bytes()).unwrap();
        assert_eq!(
            (&now["codecs"], &now["chunk_key_encoding"]),
            (&before["codecs"], &before["chunk_key_encoding"])
        );
        assert!(
            new_type.is_empty() || now["chunk_grid"] == before["chunk_grid"],
            "{document}"
        );
    }
}

#[test]
fn where_both_formats_have_documents_zarr_json_counts() {
    let (store, h) = hierarchy(&[
        (".zgroup", "{\"zarr_format\":2}"),
        ("both/zarr.json", PACKED),
        ("both/.zarray", &ARRAY.replace("[4]", "[9]")),
        ("two/.zarray", ARRAY),
        ("three/zarr.json", GROUP),
    ]);
    assert_eq!(array(&h, "both").metadata().zarr_format, 3);
    assert_eq!(array(&h, "both").size(), 16);
    assert!(h.shown_array(&key("both")).unwrap().is_none());
    assert!(h.shown_zarr_json(&key("two")).unwrap().is_none());
    refuse(&h, "two", PACKED, "an array of Zarr v1 or v2 stands here");
    let e = h
        .put_document(&key("both"), MetadataFile::Array, ARRAY.as_bytes())
        .unwrap_err();
    assert!(e.message().contains("a node of Zarr v3"), "{e}");
    // new groups have the format of the group they are in
    for (path, document) in [("new", "new/.zgroup"), ("three/new", "three/new/zarr.json")] {
        h.create_group(&key(path)).unwrap();
        assert!(text(&store, document).is_some(), "{document}");
    }
    // an array of v3 takes the place of the group that mkdir made
    put(&h, "new", PACKED).unwrap();
    assert_eq!(text(&store, "new/.zgroup"), None);
}

#[test]
fn levels_that_were_copied_before_the_document_are_no_groups() {
    let (store, h) = consolidated_hierarchy(&[]);
    for path in ["x", "x/c", "x/c/0"] {
        h.make_directory(&key(path)).unwrap();
    }
    let square = with("shape", "[4,4]").replace("[2]", "[2,2]");
    put(&h, "x", &square).unwrap();
    let left = ["x/", "x/c/", "x/c/0/", "x/zarr.json", "zarr.json"];
    assert_eq!(everything(&store), left);
    assert_eq!(consolidated(&store), ["x"]);
}

#[test]
fn an_interrupted_change_leaves_the_old_document() {
    let (memory, _) = hierarchy(&[
        ("zarr.json", GROUP),
        ("x/zarr.json", PACKED),
        ("x/c/0", "chunk"),
        ("x/c/1", "more"),
    ]);
    let store = Arc::new(FaultyStore::new(memory.clone()));
    let h = Hierarchy::new(store.clone(), V1Order::Zarr1, Arc::default());
    let is_old = || {
        text(&memory, "x/zarr.json").unwrap() == PACKED
            && text(&memory, "zarr.json").unwrap() == GROUP
    };
    for text in [with("fill_value", "7"), with("attributes", "{\"a\":2}")] {
        store.plan(PlannedFault::next(Operation::Put, libc::EIO));
        assert_eq!(put(&h, "x", &text).unwrap_err().errno(), libc::EIO);
        assert!(is_old());
    }
    store.plan(PlannedFault::next(Operation::Put, libc::ENOSPC));
    assert_eq!(
        h.set_attribute(&key("x"), "b", Some(b"1"))
            .unwrap_err()
            .errno(),
        libc::ENOSPC
    );
    store.plan(PlannedFault::next(Operation::Put, libc::ENOSPC));
    assert_eq!(
        put(&h, "", &GROUP.replace('1', "2")).unwrap_err().errno(),
        libc::ENOSPC
    );
    assert!(is_old());
    put(&h, "x", &with("fill_value", "7")).unwrap();
    assert_eq!(object(&memory, "x/zarr.json")["fill_value"], 7);
}

#[test]
fn attributes_are_changed_within_the_document() {
    let (store, h) = hierarchy(&[("zarr.json", GROUP), ("x/zarr.json", PACKED)]);
    h.set_attribute(&key("x"), "units", Some(b"m")).unwrap();
    h.set_attribute(&key("x"), "list", Some(b"[1, NaN]"))
        .unwrap();
    h.set_attribute(&key(""), "a", None).unwrap();
    assert_eq!(
        json::write(&object(&store, "x/zarr.json")["attributes"]),
        r#"{"units":"m","list":[1,NaN]}"#
    );
    assert_eq!(
        json::write(&object(&store, "zarr.json")["attributes"]),
        "{}"
    );
    assert_eq!(
        h.set_attribute(&key(""), "a", None).unwrap_err().errno(),
        libc::ENODATA
    );
    let mut rest = object(&store, "x/zarr.json");
    rest.as_object_mut().unwrap().shift_remove("attributes");
    assert_eq!(rest, json::parse(PACKED.as_bytes()).unwrap());
}

#[test]
fn consolidated_metadata_follow_every_change() {
    let (store, h) = consolidated_hierarchy(&[("g/zarr.json", GROUP), ("g/x/zarr.json", PACKED)]);
    assert_eq!(consolidated(&store), ["g", "g/x"]);
    let entry =
        |path: &str| object(&store, "zarr.json")["consolidated_metadata"]["metadata"][path].clone();
    let is_fresh = || {
        h.stale_consolidated(DocumentFormat::V3, &key(""))
            .unwrap()
            .is_empty()
    };
    h.create_group(&key("new")).unwrap();
    assert_eq!(
        json::write(&entry("new")),
        r#"{"zarr_format":3,"node_type":"group","attributes":{}}"#
    );
    put(&h, "new", PACKED).unwrap();
    assert_eq!(entry("new"), object(&store, "new/zarr.json"));
    put(&h, "new", &with("shape", "[8]")).unwrap();
    assert_eq!(entry("new")["shape"][0], 8);
    h.set_attribute(&key("g/x"), "units", Some(b"m")).unwrap();
    assert_eq!(entry("g/x")["attributes"]["units"], "m");
    assert!(
        is_fresh(),
        "{:?}",
        h.stale_consolidated(DocumentFormat::V3, &key(""))
    );
    h.rename(&key("g"), &key("h")).unwrap();
    assert!(
        is_fresh(),
        "{:?} {:?}",
        consolidated(&store),
        h.stale_consolidated(DocumentFormat::V3, &key(""))
    );
    h.remove_node(&key("new")).unwrap();
    assert!(
        is_fresh() && consolidated(&store) == ["h", "h/x"],
        "{:?}",
        consolidated(&store)
    );
    // a user's document without them, as the mount shows it, keeps them
    put(&h, "", &GROUP.replace('1', "5")).unwrap();
    assert_eq!(object(&store, "zarr.json")["attributes"]["a"], 5);
    assert_eq!(consolidated(&store), ["h", "h/x"]);
}

#[test]
fn consolidated_metadata_that_a_user_writes_are_made_of_stored_documents() {
    let (store, h) = hierarchy(&[
        ("zarr.json", GROUP),
        ("x/zarr.json", PACKED),
        ("y/zarr.json", GROUP),
    ]);
    let more = r#","consolidated_metadata":{"kind":"inline","must_understand":false,"metadata":{"x":{},"gone":{}}}}"#;
    put(&h, "", &GROUP.replacen("}}", &format!("}}{more}"), 1)).unwrap();
    assert_eq!(consolidated(&store), ["x", "y"]);
    let document = object(&store, "zarr.json");
    let entry = &document["consolidated_metadata"]["metadata"]["x"];
    assert_eq!(*entry, json::parse(PACKED.as_bytes()).unwrap());
    let kind = &document["consolidated_metadata"];
    assert!(kind["kind"] == "inline" && kind["must_understand"] == false);
    let view = json::parse(&h.shown_zarr_json(&key("")).unwrap().unwrap().text).unwrap();
    assert_eq!(json::write(&view), GROUP);
}

#[test]
fn the_view_of_a_group_has_consolidated_metadata_where_the_stored_one_has() {
    let (store, h) = consolidated_hierarchy(&[("g/zarr.json", GROUP), ("g/x/zarr.json", PACKED)]);
    // not in the stored metadata, unreadable, and of another format
    for (path, document) in [
        ("y/zarr.json", PACKED),
        ("bad/zarr.json", "{"),
        ("v2/.zarray", ARRAY),
        ("p/q/note", ""),
    ] {
        store.insert(path, document);
    }
    let view =
        |path: &str| json::parse(&h.shown_inline(&key(path)).unwrap().unwrap().text).unwrap();
    let shown =
        |path: &str| json::parse(&h.shown_zarr_json(&key(path)).unwrap().unwrap().text).unwrap();
    let root = view("");
    assert_eq!(
        (&root["attributes"]["a"], &root["node_type"]),
        (&1.into(), &"group".into())
    );
    assert_eq!(root["consolidated_metadata"]["kind"], "inline");
    assert_eq!(root["consolidated_metadata"]["must_understand"], false);
    let entries = root["consolidated_metadata"]["metadata"]
        .as_object()
        .unwrap();
    assert_eq!(
        entries.keys().collect::<Vec<_>>(),
        ["g", "g/x", "p", "p/q", "y"]
    );
    assert!(
        entries.iter().all(|(path, entry)| *entry == shown(path)),
        "{entries:?}"
    );
    assert!(h.shows_inline(&key("")).unwrap() && !h.shows_inline(&key("g")).unwrap());
    // written back, it is stored with the stored documents
    put(&h, "", &json::write(&root)).unwrap();
    let stored = object(&store, "zarr.json");
    assert_eq!(
        stored["consolidated_metadata"]["metadata"]["g/x"],
        json::parse(PACKED.as_bytes()).unwrap()
    );
    assert!(
        h.stale_consolidated(DocumentFormat::V3, &key(""))
            .unwrap()
            .is_empty()
    );
    // documents that could not be read there, and none of a tree shown as v2
    let large = PACKED.replacen(
        "{",
        &format!(
            "{{\"x\":{{\"must_understand\":false,\"y\":\"{}\"}},",
            "y".repeat(5 << 20)
        ),
        1,
    );
    store.insert("y/zarr.json", large);
    assert!(
        view("")["consolidated_metadata"]["metadata"]
            .get("y")
            .is_none()
    );
    assert!(!h.with_view(ShownFormat::V2).shows_inline(&key("")).unwrap());
}

#[test]
fn stale_entries_are_found() {
    let (store, h) = consolidated_hierarchy(&[
        ("x/zarr.json", PACKED),
        ("y/zarr.json", GROUP),
        ("z/zarr.json", GROUP),
    ]);
    store.insert("x/zarr.json", with("shape", "[9]"));
    store.remove("y/zarr.json");
    store.insert("n/zarr.json", GROUP);
    let mut stale = h.stale_consolidated(DocumentFormat::V3, &key("")).unwrap();
    stale.sort_by(|a, b| a.0.cmp(&b.0));
    let stale: Vec<_> = stale
        .iter()
        .map(|(name, how)| (name.as_str(), *how))
        .collect();
    assert_eq!(
        stale,
        [
            ("n", Stale::Missing),
            ("x", Stale::Different),
            ("y", Stale::Extra)
        ]
    );
    // only the entries of changed nodes are replaced
    h.set_attribute(&key("x"), "units", Some(b"m")).unwrap();
    let left = h
        .stale_consolidated(DocumentFormat::V3, &key(""))
        .unwrap()
        .len();
    assert_eq!(left, 2);
}

#[test]
fn unusable_consolidated_metadata_stay_and_are_recorded() {
    let broken = GROUP.replacen(
        "}}",
        r#"},"consolidated_metadata":{"kind":"inline","metadata":{"x":nonsense}}}"#,
        1,
    );
    let stats = Arc::new(Stats::default());
    let (store, _) = hierarchy(&[("zarr.json", &broken), ("x/zarr.json", PACKED)]);
    let h = Hierarchy::new(store.clone(), V1Order::Zarr1, stats.clone());
    h.set_attribute(&key("x"), "units", Some(b"m")).unwrap();
    assert_eq!(text(&store, "zarr.json").unwrap(), broken);
    assert!(
        stats.problems()[0].contains("its consolidated metadata can't be updated"),
        "{:?}",
        stats.problems()
    );
    // consolidated metadata of another kind stays unchanged
    let other = GROUP.replacen(
        "}}",
        r#"},"consolidated_metadata":{"kind":"other","metadata":{}}}"#,
        1,
    );
    store.insert("zarr.json", other.as_str());
    h.set_attribute(&key("x"), "units", None).unwrap();
    assert_eq!(text(&store, "zarr.json").unwrap(), other);
}
