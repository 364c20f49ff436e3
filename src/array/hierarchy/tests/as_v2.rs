//! Stores of v3 that show documents of v2.

use super::*;
use crate::array::hierarchy::ShownFormat;

const GROUP: &str = r#"{"zarr_format":3,"node_type":"group","attributes":{"a":1}}"#;

/// An array of 4 x 6 floats in chunks of 2 x 3, compressed and transposed.
const PACKED: &str = r#"{"zarr_format":3,"node_type":"array","shape":[4,6],"data_type":"float32","fill_value":"NaN",
    "chunk_grid":{"name":"regular","configuration":{"chunk_shape":[2,3]}},
    "chunk_key_encoding":{"name":"default","configuration":{"separator":"/"}},"dimension_names":["y","x"],
    "attributes":{"_FillValue":"AAAAAICHw8A="},
    "codecs":[{"name":"transpose","configuration":{"order":[1,0]}},{"name":"bytes","configuration":{"endian":"big"}},
    {"name":"gzip","configuration":{"level":1}}]}"#;

const SHOWN: &str = r#"{"chunks":[2,3],"compressor":null,"dimension_separator":".","dtype":">f4","fill_value":"NaN",
    "filters":null,"order":"C","shape":[4,6],"zarr_format":2}"#;

fn with(field: &str, value: &str) -> String {
    let mut document = json::parse(PACKED.as_bytes()).unwrap();
    document[field] = json::parse(value.as_bytes()).unwrap();
    json::write(&document)
}

fn view(values: &[(&str, &str)]) -> (Arc<MemoryStore>, Hierarchy) {
    let (store, h) = hierarchy(&[&[("zarr.json", GROUP)], values].concat());
    (store, h.with_view(ShownFormat::V2))
}

fn shown(document: Result<Option<MetadataDocument>>) -> Option<Value> {
    document
        .unwrap()
        .map(|document| json::parse(&document.text).unwrap())
}

fn put(h: &Hierarchy, path: &str, file: MetadataFile, text: &str) -> Result<()> {
    h.put_document(&key(path), file, text.as_bytes())
}

#[track_caller]
fn assert_json(value: Option<Value>, expected: &str) {
    assert_eq!(value, Some(json::parse(expected.as_bytes()).unwrap()));
}

#[test]
fn documents_of_v3_are_shown_as_v2() {
    let (_, h) = view(&[
        ("g/x/zarr.json", PACKED),
        ("plain/f", ""),
        ("y/.zarray", ARRAY),
    ]);
    for path in ["", "g", "plain"] {
        assert_json(shown(h.shown_group(&key(path))), r#"{"zarr_format":2}"#);
        assert!(shown(h.shown_zarr_json(&key(path))).is_none());
    }
    assert_json(shown(h.shown_attributes(&key(""))), r#"{"a":1}"#);
    assert!(shown(h.shown_attributes(&key("g"))).is_none());
    let x = key("g/x");
    assert_json(shown(h.shown_array(&x)), SHOWN);
    assert!(shown(h.shown_zarr_json(&x)).is_none() && shown(h.shown_group(&x)).is_none());
    assert_json(
        shown(h.shown_attributes(&x)),
        r#"{"_FillValue":-9999.0,"_ARRAY_DIMENSIONS":["y","x"]}"#,
    );
    let stat = h.attributes_stat(&x).unwrap().unwrap();
    assert_eq!(
        stat.size,
        h.shown_attributes(&x).unwrap().unwrap().text.len() as u64
    );
    // nodes of v2 are shown as without the view
    assert!(shown(h.shown_array(&key("y"))).is_some());
    assert!(
        shown(h.shown_consolidated(&key(""))).is_none()
            && h.consolidated_stat(&key("")).unwrap().is_none()
    );
}

#[test]
fn consolidated_metadata_are_those_of_the_view() {
    let (store, h) = view(&[("g/zarr.json", GROUP), ("g/x/zarr.json", PACKED)]);
    h.write_consolidated(&key("")).unwrap();
    let entries = shown(h.shown_consolidated(&key(""))).unwrap()["metadata"].clone();
    let names: Vec<_> = entries
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(
        names,
        [
            ".zgroup",
            ".zattrs",
            "g/.zgroup",
            "g/.zattrs",
            "g/x/.zarray",
            "g/x/.zattrs"
        ]
    );
    assert_eq!(
        entries["g/x/.zarray"],
        json::parse(SHOWN.as_bytes()).unwrap()
    );
    // the consolidated metadata follows changes, and is stored in the form of v3
    put(&h, "g/x", MetadataFile::Attributes, r#"{"b":2}"#).unwrap();
    assert_eq!(
        h.stale_consolidated(DocumentFormat::V3, &key("")).unwrap(),
        []
    );
    h.remove_document(&key(""), MetadataFile::Consolidated)
        .unwrap();
    assert!(h.consolidated_stat(&key("")).unwrap().is_none());
    assert_eq!(
        object(&store, "zarr.json"),
        json::parse(GROUP.as_bytes()).unwrap()
    );
    put(&h, "", MetadataFile::Consolidated, r#"{"metadata":{}}"#).unwrap();
    assert_eq!(
        h.stale_consolidated(DocumentFormat::V3, &key("")).unwrap(),
        []
    );
    assert!(h.consolidated_stat(&key("")).unwrap().is_some());
    assert!(
        !everything(&store)
            .iter()
            .any(|name| name.contains("/.z") || name.starts_with(".z"))
    );
}

#[test]
fn documents_that_v2_cannot_describe_are_not_shown() {
    let stats = Arc::new(Stats::default());
    let (store, _) = view(&[
        ("x/zarr.json", &with("data_type", "\"bfloat16\"")),
        ("y/zarr.json", "{"),
    ]);
    let h = Hierarchy::new(store, V1Order::Zarr1, stats.clone()).with_view(ShownFormat::V2);
    assert!(shown(h.shown_array(&key("x"))).is_none() && shown(h.shown_array(&key("y"))).is_none());
    assert!(shown(h.shown_attributes(&key("x"))).is_some());
    let problems = stats.problems().join("\n");
    assert!(
        problems.contains(
            "/x/.zarray: is not shown: NumPy has no dtype for the data type \"bfloat16\""
        ),
        "{problems}"
    );
    // a NaN with a payload is shown as another NaN in v2, and stays stored unchanged
    let (store, h) = view(&[("x/zarr.json", &with("fill_value", "\"0x7fc00001\""))]);
    let mut document = shown(h.shown_array(&key("x"))).unwrap();
    assert_eq!(document["fill_value"], "NaN");
    document["shape"] = vec![8, 6].into();
    put(&h, "x", MetadataFile::Array, &json::write(&document)).unwrap();
    let stored = object(&store, "x/zarr.json");
    assert!(
        stored["shape"][0] == 8 && stored["fill_value"] == "0x7fc00001",
        "{stored}"
    );
}

#[test]
fn changes_are_stored_in_the_document_of_v3() {
    let (store, h) = view(&[("x/zarr.json", PACKED), ("x/c/0/0", "chunk")]);
    let x = || object(&store, "x/zarr.json");
    put(&h, "x", MetadataFile::Array, SHOWN).unwrap();
    assert_eq!(text(&store, "x/zarr.json").unwrap(), PACKED);
    let changed = SHOWN.replace("[4,6]", "[8,6]").replace("\"NaN\"", "7");
    put(&h, "x", MetadataFile::Array, &changed).unwrap();
    let mut expected = json::parse(PACKED.as_bytes()).unwrap();
    expected["shape"] = vec![8, 6].into();
    expected["fill_value"] = json::parse(b"7.0").unwrap();
    assert_eq!(x(), expected);
    for (from, to, why) in [
        (">f4", "<f4", "dtype can't change"),
        ("[2,3]", "[2,2]", "chunks can't change"),
        ("\"order\":\"C\"", "\"order\":\"F\"", "order can't change"),
    ] {
        let e = put(&h, "x", MetadataFile::Array, &SHOWN.replace(from, to)).unwrap_err();
        assert!(
            e.kind() == Kind::Invalid && e.message().contains(why),
            "{e}"
        );
    }
    put(
        &h,
        "x",
        MetadataFile::Attributes,
        r#"{"_ARRAY_DIMENSIONS":["b","a"],"_FillValue":-9999,"u":NaN}"#,
    )
    .unwrap();
    assert_eq!(json::write(&x()["dimension_names"]), r#"["b","a"]"#);
    assert_eq!(
        json::write(&x()["attributes"]),
        r#"{"_FillValue":"AAAAAICHw8A=","u":NaN}"#
    );
    put(&h, "x", MetadataFile::Attributes, r#"{"u":1}"#).unwrap();
    assert!(x().get("dimension_names").is_none());
    h.remove_document(&key("x"), MetadataFile::Attributes)
        .unwrap();
    assert!(shown(h.shown_attributes(&key("x"))).is_none());
    assert_eq!(
        h.remove_document(&key("x"), MetadataFile::Attributes)
            .unwrap_err()
            .kind(),
        Kind::NotFound
    );
    put(&h, "", MetadataFile::Attributes, r#"{"b":2}"#).unwrap();
    put(&h, "", MetadataFile::Group, r#"{"zarr_format":2}"#).unwrap();
    assert_eq!(
        json::write(&object(&store, "zarr.json")["attributes"]),
        r#"{"b":2}"#
    );
    let e = put(&h, "", MetadataFile::Zarr, GROUP).unwrap_err();
    assert!(e.message().contains("without --view v2"), "{e}");
    assert_eq!(
        everything(&store),
        [
            "x/",
            "x/c/",
            "x/c/0/",
            "x/c/0/0",
            "x/zarr.json",
            "zarr.json"
        ]
    );
    // names of which one is missing are not shown, and stay
    store.insert("x/zarr.json", with("dimension_names", "[\"y\",null]"));
    put(&h, "x", MetadataFile::Attributes, r#"{"u":1}"#).unwrap();
    assert_eq!(json::write(&x()["dimension_names"]), r#"["y",null]"#);
}

#[test]
fn new_arrays_and_groups_are_of_v3() {
    let (store, h) = view(&[]);
    let zstd = CodecConfig::parse(&json::parse(b"{\"id\":\"zstd\",\"level\":5}").unwrap()).unwrap();
    let h = h.with_compressor(Some(zstd));
    for path in ["g", "g/x", "y"] {
        h.create_group(&key(path)).unwrap();
    }
    // in the order in which `cp -r` may copy them
    put(
        &h,
        "g/x",
        MetadataFile::Attributes,
        r#"{"_ARRAY_DIMENSIONS":["t"],"u":"K"}"#,
    )
    .unwrap();
    let new = r#"{"zarr_format":2,"shape":[4],"chunks":[2],"dtype":"<i4","compressor":null,"fill_value":null,"order":"C",
        "filters":[{"id":"delta","dtype":"<i4"}],"dimension_separator":"/"}"#;
    put(&h, "g/x", MetadataFile::Array, new).unwrap();
    let x = object(&store, "g/x/zarr.json");
    let names: Vec<_> = x["codecs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|codec| json::text(&codec["name"]).unwrap())
        .collect();
    assert_eq!(names, ["numcodecs.delta", "bytes", "zstd"]);
    assert_eq!(json::write(&x["attributes"]), r#"{"u":"K"}"#);
    assert_eq!(json::write(&x["dimension_names"]), r#"["t"]"#);
    assert_eq!(
        json::write(&x["chunk_key_encoding"]),
        r#"{"name":"v2","configuration":{"separator":"/"}}"#
    );
    for (changes, why) in [
        (
            ("\"<i4\",\"compressor\"", "\"<f16\",\"compressor\""),
            "has no data type in Zarr v3",
        ),
        (("\"C\"", "\"C\",\"more\":1"), "field \"more\" has no place"),
    ] {
        let e = put(
            &h,
            "y",
            MetadataFile::Array,
            &new.replace(changes.0, changes.1),
        )
        .unwrap_err();
        assert!(
            e.kind() == Kind::Invalid
                && e.message().starts_with("/y/.zarray: ")
                && e.message().contains(why),
            "{e}"
        );
    }
    let f = SHOWN.replace("\"order\":\"C\"", "\"order\":\"F\"");
    let e = put(&h, "y", MetadataFile::Array, &f).unwrap_err();
    assert!(e.message().contains("order \"F\" can't be shown"), "{e}");
    assert_eq!(
        everything(&store),
        [
            "g/",
            "g/x/",
            "g/x/zarr.json",
            "g/zarr.json",
            "y/",
            "y/zarr.json",
            "zarr.json"
        ]
    );
}

#[test]
fn removed_documents_can_be_written_again() {
    let (store, h) = view(&[("x/zarr.json", PACKED), ("x/c/0/0", "chunk")]);
    h.write_consolidated(&key("")).unwrap();
    h.remove_document(&key("x"), MetadataFile::Array).unwrap();
    assert!(
        shown(h.shown_array(&key("x"))).is_none() && text(&store, "x/.zarrfs-zarray").is_some()
    );
    assert_eq!(
        h.stale_consolidated(DocumentFormat::V3, &key("")).unwrap(),
        []
    );
    // `rm -r` removes the files in any order
    put(&h, "x", MetadataFile::Attributes, r#"{"u":1}"#).unwrap();
    assert_json(shown(h.shown_attributes(&key("x"))), r#"{"u":1}"#);
    h.remove_document(&key("x"), MetadataFile::Attributes)
        .unwrap();
    assert!(
        shown(h.shown_attributes(&key("x"))).is_none() && text(&store, "x/zarr.json").is_none()
    );
    // an editor that removes the file before it writes it keeps the codecs
    put(
        &h,
        "x",
        MetadataFile::Array,
        &SHOWN.replace("[4,6]", "[6,6]"),
    )
    .unwrap();
    assert_eq!(
        json::write(&object(&store, "x/zarr.json")["shape"]),
        "[6,6]"
    );
    assert_eq!(
        object(&store, "x/zarr.json")["codecs"],
        json::parse(PACKED.as_bytes()).unwrap()["codecs"]
    );
    // without chunks the array may become another one
    store.remove("x/c/0/0");
    put(
        &h,
        "x",
        MetadataFile::Array,
        &SHOWN.replace(">f4", "|u1").replace("\"NaN\"", "3"),
    )
    .unwrap();
    assert_eq!(object(&store, "x/zarr.json")["data_type"], "uint8");
    h.remove_document(&key("x"), MetadataFile::Array).unwrap();
    h.remove_node(&key("x")).unwrap();
    assert_eq!(everything(&store), ["zarr.json"]);
}
