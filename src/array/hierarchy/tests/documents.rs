//! Documents that are written and removed.

use super::*;
use crate::array::{Scratch, WriteBack};
use zarrfs_format::grid::ChunkId;
use zarrfs_format::metadata::Separator;
use zarrfs_store::ByteRange;

const GROUP: &str = "{\"zarr_format\": 2}";

/// Returns `ARRAY` with a changed field.
fn with(field: &str, value: &str) -> String {
    let mut document = json::parse(ARRAY.as_bytes()).unwrap();
    document[field] = json::parse(value.as_bytes()).unwrap();
    json::write(&document)
}

fn refuse(h: &Hierarchy, path: &str, file: MetadataFile, text: &str, why: &str) {
    let e = h
        .put_document(&key(path), file, text.as_bytes())
        .unwrap_err();
    assert_eq!(e.kind(), Kind::Invalid, "{e}");
    assert!(e.message().contains(why), "{e}");
    assert!(
        e.message()
            .starts_with(&key(path).join(file.name()).to_string()),
        "{e}"
    );
}

#[test]
fn attributes_are_stored_as_they_were_written() {
    let (store, h) = hierarchy(&[(".zgroup", GROUP), ("x/.zarray", ARRAY)]);
    let written = "{ \"a\": NaN,\n\t\"b\":1e400}  ";
    for path in ["", "x"] {
        h.put_document(&key(path), MetadataFile::Attributes, written.as_bytes())
            .unwrap();
        assert_eq!(
            text(&store, key(path).join(".zattrs").as_str()).unwrap(),
            written
        );
        refuse(
            &h,
            path,
            MetadataFile::Attributes,
            "[1]",
            "not a JSON object",
        );
        refuse(
            &h,
            path,
            MetadataFile::Attributes,
            "{\"a\":",
            "not valid JSON",
        );
        assert_eq!(
            text(&store, key(path).join(".zattrs").as_str()).unwrap(),
            written
        );
    }
    assert_eq!(
        h.put_document(&key("none"), MetadataFile::Attributes, b"{}")
            .unwrap_err()
            .kind(),
        Kind::NotFound
    );
    let large = format!("{{\"a\":\"{}\"}}", "x".repeat(MAX_DOCUMENT as usize));
    let e = h
        .put_document(&key("x"), MetadataFile::Attributes, large.as_bytes())
        .unwrap_err();
    assert_eq!(e.errno(), libc::EFBIG);
}

#[test]
fn attributes_are_changed_one_at_a_time() {
    let (store, h) = hierarchy(&[
        ("x/.zarray", ARRAY),
        ("x/.zattrs", "{\"b\": NaN, \"a\": 1}"),
    ]);
    let set = |name: &str, value: Option<&[u8]>| h.set_attribute(&key("x"), name, value);
    set("b", Some(b"[1, 2]")).unwrap();
    set("units", Some(b"degrees C")).unwrap();
    set("quoted", Some(b"\"7\"")).unwrap();
    set("a", None).unwrap();
    assert_eq!(
        json::write(&object(&store, "x/.zattrs")),
        r#"{"b":[1,2],"units":"degrees C","quoted":"7"}"#
    );
    assert_eq!(set("a", None).unwrap_err().errno(), libc::ENODATA);
    assert_eq!(set("", Some(b"1")).unwrap_err().kind(), Kind::Invalid);
    assert_eq!(
        set(&"n".repeat(256), Some(b"1")).unwrap_err().kind(),
        Kind::Invalid
    );
    assert_eq!(set("raw", Some(b"\xff")).unwrap_err().kind(), Kind::Invalid);
    store.insert("x/.zattrs", "[]");
    assert_eq!(set("a", Some(b"1")).unwrap_err().kind(), Kind::Damaged);
    assert_eq!(text(&store, "x/.zattrs").unwrap(), "[]");
}

#[test]
fn a_group_document_marks_a_group_and_no_array() {
    let (store, h) = hierarchy(&[
        ("x/.zarray", ARRAY),
        ("g/.zattrs", "{}"),
        ("bad/.zarray", "{"),
    ]);
    h.put_document(&key("g"), MetadataFile::Group, GROUP.as_bytes())
        .unwrap();
    assert_eq!(text(&store, "g/.zgroup").unwrap(), GROUP);
    refuse(
        &h,
        "g",
        MetadataFile::Group,
        "{\"zarr_format\": 3}",
        "zarr_format is 3",
    );
    refuse(&h, "x", MetadataFile::Group, GROUP, "an array stands here");
    refuse(
        &h,
        "bad",
        MetadataFile::Group,
        GROUP,
        "an array stands here",
    );
}

#[test]
fn a_new_array_is_stored_as_it_was_written() {
    let (store, h) = hierarchy(&[(".zgroup", GROUP)]);
    h.create_group(&key("x")).unwrap();
    h.put_document(&key("x"), MetadataFile::Array, ARRAY.as_bytes())
        .unwrap();
    assert_eq!(everything(&store), [".zgroup", "x/", "x/.zarray"]);
    assert_eq!(text(&store, "x/.zarray").unwrap(), ARRAY);
    assert_eq!(array(&h, "x").size(), 16);
}

#[test]
fn an_unusable_array_is_refused() {
    let (store, h) = hierarchy(&[
        ("g/.zgroup", GROUP),
        ("g/sub/.zgroup", GROUP),
        ("f", "file"),
        ("x/.zarray", ARRAY),
    ]);
    h.create_group(&key("new")).unwrap();
    let before = everything(&store);
    for (field, value, why) in [
        ("dtype", "\"<i3\"", "dtype"),
        ("chunks", "[0]", "chunks[0]"),
        ("compressor", "{\"id\":\"nobody\"}", "nobody"),
        ("compressor", "{\"id\":\"zlib\",\"level\":77}", "level"),
        ("zarr_format", "3", "zarr_format"),
    ] {
        refuse(&h, "new", MetadataFile::Array, &with(field, value), why);
    }
    refuse(&h, "new", MetadataFile::Array, "{", "not valid JSON");
    refuse(&h, "g", MetadataFile::Array, ARRAY, "\"sub\" stands below");
    let put = |path: &str| {
        h.put_document(&key(path), MetadataFile::Array, ARRAY.as_bytes())
            .unwrap_err()
            .errno()
    };
    assert_eq!(put("none"), libc::ENOENT);
    assert_eq!(put("f"), libc::ENOTDIR);
    assert_eq!(everything(&store), before);
}

#[test]
fn the_default_compressor_is_for_new_arrays_without_one() {
    let (store, h) = hierarchy(&[
        ("old/.zarray", &with("compressor", "null")),
        ("copied/0", "12345678"),
        ("other/0", "1234"),
    ]);
    let zstd = CodecConfig::parse(&json::parse(b"{\"id\":\"zstd\",\"level\":5}").unwrap()).unwrap();
    let h = h.with_compressor(Some(zstd));
    for path in ["new", "own"] {
        h.create_group(&key(path)).unwrap();
    }
    let put = |path: &str, text: &str| {
        h.put_document(&key(path), MetadataFile::Array, text.as_bytes())
            .unwrap()
    };
    put("new", &with("compressor", "null"));
    put("own", ARRAY);
    put("old", &with("compressor", "null"));
    put("copied", &with("compressor", "null"));
    put("other", &with("compressor", "null"));
    let compressor = |path: &str| {
        object(&store, path)["compressor"]["id"]
            .as_str()
            .map(str::to_string)
    };
    assert_eq!(compressor("new/.zarray").as_deref(), Some("zstd"));
    assert_eq!(compressor("own/.zarray").as_deref(), Some("zlib"));
    assert_eq!(compressor("old/.zarray"), None);
    // its chunk was copied before it
    assert_eq!(compressor("copied/.zarray").as_deref(), Some("zstd"));
    let Some(StoredNode::Array(array)) = h.find(&key("copied")).unwrap() else {
        panic!("no array");
    };
    let chunk = array.load(ChunkId(0), Vec::new(), &mut Scratch::default());
    assert_eq!(chunk.unwrap().unwrap().bytes, b"12345678");
    // what no program has decoded stays as it is
    assert_eq!(compressor("other/.zarray"), None);
    assert_eq!(text(&store, "other/0").unwrap(), "1234");
    let view = h.shown_array(&key("new")).unwrap().unwrap().text;
    assert!(json::parse(&view).unwrap()["compressor"].is_null());
}

/// Changes the mounted tree of `x`, and writes it back.
fn write_back(h: &Hierarchy, change: impl FnOnce(&mut Value)) -> Result<()> {
    let mut view = json::parse(&h.shown_array(&key("x")).unwrap().unwrap().text).unwrap();
    change(&mut view);
    h.put_document(
        &key("x"),
        MetadataFile::Array,
        json::write_pretty(&view).as_bytes(),
    )
}

const STORED: &str = r#"{"order":"F","zarr_format":2,"shape":[4,4],"chunks":[2,2],"dtype":"<i4","note":"kept",
    "compressor":{"id":"zlib","level":3},"fill_value":0,"filters":[{"id":"delta","dtype":"<i4"}],"dimension_separator":"/"}"#;

#[test]
fn writing_the_view_back_keeps_codecs() {
    let (store, h) = hierarchy(&[("x/.zarray", STORED), ("x/0/0", "chunk")]);
    write_back(&h, |_| {}).unwrap();
    assert_eq!(text(&store, "x/.zarray").unwrap(), STORED);
    write_back(&h, |view| {
        view["shape"] = vec![6, 4].into();
        view["fill_value"] = 7.into();
        view["extra"] = true.into();
    })
    .unwrap();
    let mut expected = json::parse(STORED.as_bytes()).unwrap();
    expected["shape"] = vec![6, 4].into();
    expected["fill_value"] = 7.into();
    expected["extra"] = true.into();
    assert_eq!(
        json::write(&object(&store, "x/.zarray")),
        json::write(&expected)
    );
    assert_eq!(array(&h, "x").metadata().shape, [6, 4]);
}

#[test]
fn layout_changes_are_refused_while_chunks_exist() {
    let changes: [(&str, &str); 6] = [
        ("dtype", "\"<f4\""),
        ("chunks", "[4,2]"),
        ("order", "\"C\""),
        ("compressor", "{\"id\":\"zstd\"}"),
        ("filters", "[{\"id\":\"delta\",\"dtype\":\"<i2\"}]"),
        ("shape", "[4]"),
    ];
    for (field, value) in changes {
        let (store, h) = hierarchy(&[("x/.zarray", STORED), ("x/0/0", "chunk")]);
        let change = |view: &mut Value| view[field] = json::parse(value.as_bytes()).unwrap();
        let e = write_back(&h, change).unwrap_err();
        assert_eq!(e.kind(), Kind::Invalid);
        assert!(e.message().contains(field), "{e}");
        assert_eq!(text(&store, "x/.zarray").unwrap(), STORED);
        store.remove("x/0/0");
        if field != "shape" {
            write_back(&h, change).unwrap();
            assert_eq!(
                object(&store, "x/.zarray")[field],
                json::parse(value.as_bytes()).unwrap()
            );
        }
    }
    let stored = STORED
        .replace("\"<i4\",\"note", "\"<M8[s]\",\"note")
        .replace("\"delta\",\"dtype\":\"<i4\"", "\"zlib\"");
    let (_, h) = hierarchy(&[("x/.zarray", &stored), ("x/0/0", "chunk")]);
    assert!(
        write_back(&h, |view| view["dtype"] = "<M8[ms]".into())
            .unwrap_err()
            .message()
            .contains("dtype")
    );
    write_back(&h, |view| {
        view["filters"] = json::parse(b"[{\"id\":\"zlib\"}]").unwrap()
    })
    .ok();
}

#[test]
fn an_empty_array_keeps_hidden_fields() {
    let (store, h) = hierarchy(&[("x/.zarray", STORED), ("x/5/5", "of a former shape")]);
    write_back(&h, |view| {
        view["chunks"] = vec![1, 1].into();
        view["shape"] = vec![9, 9].into();
    })
    .unwrap();
    let stored = object(&store, "x/.zarray");
    assert_eq!(stored["compressor"]["level"], 3);
    assert_eq!(
        (
            stored["filters"][0]["id"].as_str(),
            stored["dimension_separator"].as_str()
        ),
        (Some("delta"), Some("/"))
    );
    assert!(text(&store, "x/5/5").is_none(), "it would be a chunk now");
    write_back(&h, |view| view["dtype"] = "<f8".into()).unwrap();
    assert!(object(&store, "x/.zarray")["filters"].is_null());
    assert_eq!(array(&h, "x").separator(), Separator::Slash);
}

#[test]
fn an_array_outlives_its_document_until_its_directory_goes() {
    let (store, h) = hierarchy(&[
        ("x/.zarray", STORED),
        ("x/0/0", "chunk"),
        ("x/.zattrs", "{}"),
    ]);
    let remove = |file| h.remove_document(&key("x"), file);
    remove(MetadataFile::Array).unwrap();
    assert!(text(&store, "x/.zarray").is_none());
    assert!(h.shown_array(&key("x")).unwrap().is_none());
    assert_eq!(
        remove(MetadataFile::Array).unwrap_err().kind(),
        Kind::NotFound
    );
    assert_eq!(
        array(&h, "x").metadata().compressor.as_ref().unwrap().id,
        "zlib"
    );
    refuse(&h, "x", MetadataFile::Group, GROUP, "an array stands here");
    assert_eq!(
        h.remove_node(&key("x")).unwrap_err().errno(),
        libc::ENOTEMPTY
    );
    // an editor moves the document away, then writes the view that it has read
    let view = array(&h, "x").metadata().shown_document();
    h.put_document(&key("x"), MetadataFile::Array, view.as_bytes())
        .unwrap();
    assert_eq!(
        object(&store, "x/.zarray"),
        json::parse(STORED.as_bytes()).unwrap()
    );
    assert_eq!(
        everything(&store),
        ["x/", "x/.zarray", "x/.zattrs", "x/0/", "x/0/0"]
    );
    remove(MetadataFile::Array).unwrap();
    remove(MetadataFile::Attributes).unwrap();
    assert_eq!(
        remove(MetadataFile::Attributes).unwrap_err().kind(),
        Kind::NotFound
    );
    array(&h, "x")
        .erase(zarrfs_format::grid::ChunkId(0), WriteBack::unconfirmed())
        .unwrap();
    h.remove_node(&key("x")).unwrap();
    assert!(everything(&store).is_empty(), "{:?}", everything(&store));
}

#[test]
fn an_empty_array_without_document_may_become_a_group() {
    let (store, h) = hierarchy(&[("x/.zarray", ARRAY)]);
    h.remove_document(&key("x"), MetadataFile::Array).unwrap();
    h.put_document(&key("x"), MetadataFile::Group, GROUP.as_bytes())
        .unwrap();
    assert_eq!(everything(&store), ["x/", "x/.zgroup"]);
    h.create_group(&key("x/sub")).unwrap();
}

#[test]
fn a_damaged_document_can_be_repaired_or_removed() {
    let (store, h) = hierarchy(&[("x/.zarray", "{"), ("y/.zarray", "{")]);
    h.put_document(&key("x"), MetadataFile::Array, ARRAY.as_bytes())
        .unwrap();
    assert_eq!(text(&store, "x/.zarray").unwrap(), ARRAY);
    h.remove_document(&key("y"), MetadataFile::Array).unwrap();
    h.remove_node(&key("y")).unwrap();
    assert_eq!(everything(&store), ["x/", "x/.zarray"]);
}

#[test]
fn zmetadata_is_updated_with_each_change() {
    let (store, h) = hierarchy(&[
        (".zgroup", GROUP),
        ("g/.zgroup", GROUP),
        ("g/x/.zarray", ARRAY),
        (
            ".zmetadata",
            r#"{"zarr_consolidated_format":1,"metadata":{"z":1,"g/x/.zarray":{},"a":NaN}}"#,
        ),
        ("g/.zmetadata", r#"{"metadata":{"x/.zarray":{}}}"#),
        ("broken/.zmetadata", "{"),
    ]);
    let entries = |path: &str| json::write(&object(&store, path)["metadata"]);
    let names = |path: &str| {
        object(&store, path)["metadata"]
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect::<Vec<_>>()
    };
    h.put_document(&key("g/x"), MetadataFile::Attributes, b"{\"u\": NaN}")
        .unwrap();
    assert_eq!(
        entries(".zmetadata"),
        r#"{"z":1,"g/x/.zarray":{},"a":NaN,"g/x/.zattrs":{"u":NaN}}"#
    );
    assert_eq!(
        entries("g/.zmetadata"),
        r#"{"x/.zarray":{},"x/.zattrs":{"u":NaN}}"#
    );
    h.resize(&array(&h, "g/x"), &[9]).unwrap();
    assert_eq!(
        object(&store, ".zmetadata")["metadata"]["g/x/.zarray"],
        object(&store, "g/x/.zarray")
    );
    assert_eq!(
        object(&store, "g/.zmetadata")["metadata"]["x/.zarray"]["compressor"]["id"],
        "zlib"
    );
    h.create_group(&key("g/new")).unwrap();
    h.put_document(&key("g/new"), MetadataFile::Array, ARRAY.as_bytes())
        .unwrap();
    assert_eq!(
        names("g/.zmetadata"),
        ["x/.zarray", "x/.zattrs", "new/.zarray"]
    );
    h.rename(&key("g/x"), &key("moved")).unwrap();
    assert_eq!(names("g/.zmetadata"), ["new/.zarray"]);
    assert_eq!(
        names(".zmetadata"),
        ["z", "moved/.zarray", "a", "moved/.zattrs", "g/new/.zarray"]
    );
    h.rename(&key("moved"), &key("g/back")).unwrap();
    assert_eq!(
        names("g/.zmetadata"),
        ["new/.zarray", "back/.zarray", "back/.zattrs"]
    );
    h.remove_document(&key("g/back"), MetadataFile::Attributes)
        .unwrap();
    h.remove_node(&key("g/back")).unwrap();
    assert_eq!(names("g/.zmetadata"), ["new/.zarray"]);
    assert_eq!(names(".zmetadata"), ["z", "a", "g/new/.zarray"]);
    h.create_group(&key("broken/sub")).unwrap();
    assert_eq!(text(&store, "broken/.zmetadata").unwrap(), "{");
}

#[test]
fn a_written_zmetadata_is_made_from_stored_documents() {
    let (store, h) = hierarchy(&[
        (".zgroup", GROUP),
        ("g/.zgroup", GROUP),
        ("g/x/.zarray", ARRAY),
        ("g/x/.zattrs", "{}"),
    ]);
    let view = r#"{"zarr_consolidated_format":1,"metadata":{"g/x/.zarray":{"compressor":null}}}"#;
    refuse(&h, "", MetadataFile::Consolidated, "{", "not valid JSON");
    refuse(&h, "g/x", MetadataFile::Consolidated, view, "only a group");
    h.put_document(&key(""), MetadataFile::Consolidated, view.as_bytes())
        .unwrap();
    let stored = object(&store, ".zmetadata");
    let names: Vec<&String> = stored["metadata"].as_object().unwrap().keys().collect();
    assert_eq!(
        names,
        [".zgroup", "g/.zgroup", "g/x/.zarray", "g/x/.zattrs"]
    );
    assert_eq!(
        stored["metadata"]["g/x/.zarray"],
        json::parse(ARRAY.as_bytes()).unwrap()
    );
    assert_eq!(stored["zarr_consolidated_format"], 1);
    h.remove_document(&key(""), MetadataFile::Consolidated)
        .unwrap();
    assert_eq!(
        h.remove_document(&key(""), MetadataFile::Consolidated)
            .unwrap_err()
            .kind(),
        Kind::NotFound
    );
}

const V1: [(&str, &str); 2] = [
    (
        "meta",
        r#"{"zarr_format":1,"shape":[4],"chunks":[2],"dtype":"<i4","compression":"zlib","compression_opts":1,
        "fill_value":0,"order":"C"}"#,
    ),
    ("attrs", "{}"),
];

#[test]
fn v1_keeps_its_own_documents() {
    let (store, h) = hierarchy(&V1);
    h.put_document(&key(""), MetadataFile::Attributes, b"{\"a\":1}")
        .unwrap();
    h.set_attribute(&key(""), "b", Some(b"2")).unwrap();
    assert_eq!(json::write(&object(&store, "attrs")), r#"{"a":1,"b":2}"#);
    let e = h
        .put_document(&key(""), MetadataFile::Array, ARRAY.as_bytes())
        .unwrap_err();
    assert!(
        e.errno() == libc::EROFS && e.message().contains("zarrfs migrate"),
        "{e}"
    );
    for file in [MetadataFile::Array, MetadataFile::Attributes] {
        assert_eq!(
            h.remove_document(&key(""), file).unwrap_err().errno(),
            libc::EROFS
        );
    }
    h.resize(&array(&h, ""), &[7]).unwrap();
    assert_eq!(object(&store, "meta")["shape"], Value::from(vec![7]));
    assert_eq!(everything(&store), ["attrs", "meta"]);
}

#[test]
fn a_read_only_store_is_not_changed() {
    struct Fixed(MemoryStore);
    impl Readable for Fixed {
        fn read(&self, key: &Key, range: &ByteRange, value: &mut Vec<u8>) -> Result<Option<Stat>> {
            self.0.read(key, range, value)
        }

        fn stat(&self, key: &Key) -> Result<Option<Stat>> {
            self.0.stat(key)
        }

        fn list(&self, prefix: &Key) -> Result<Listing> {
            self.0.list(prefix)
        }

        fn location(&self) -> String {
            "fixed:".to_string()
        }
    }

    impl Store for Fixed {}
    let store = MemoryStore::default();
    store.insert("x/.zarray", ARRAY);
    let h = Hierarchy::new(Arc::new(Fixed(store)), V1Order::Zarr1, Arc::default());
    let said = [
        h.put_document(&key("x"), MetadataFile::Attributes, b"{}"),
        h.set_attribute(&key("x"), "a", Some(b"1")),
        h.create_group(&key("g")),
        h.remove_node(&key("x")),
        h.rename(&key("x"), &key("y")),
        h.resize(&array(&h, "x"), &[5]),
    ];
    assert!(
        said.iter()
            .all(|said| said.as_ref().is_err_and(|e| e.errno() == libc::EROFS)),
        "{said:?}"
    );
}
