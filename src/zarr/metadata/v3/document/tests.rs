use super::*;
use crate::error::Kind;
use crate::util::json::json;
use crate::zarr::chunk_key::Separator;
use crate::zarr::metadata::v3::merge::{differs_v3, merged_v3};
use crate::zarr::metadata::v3::view::array_view;

/// Returns an array's document with `changes`, an object whose members replace others; null removes one.
fn document(changes: Value) -> Vec<u8> {
    let mut doc = json!({
        "zarr_format": 3, "node_type": "array", "shape": [10, 6], "data_type": "int32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 4]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 7, "attributes": {"a": 1},
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "zstd", "configuration": {"level": 0}}]
    });
    for (field, value) in changes.as_object().unwrap() {
        doc[field] = value.clone();
    }
    doc.as_object_mut().unwrap().retain(|_, value| *value != json!("absent"));
    json::write(&doc).into_bytes()
}

fn parse(changes: Value) -> Result<ArrayMetadata> {
    ArrayMetadata::parse_v3(&document(changes))
}

fn filters(changes: Value) -> Vec<String> {
    parse(changes)
        .unwrap()
        .filters
        .iter()
        .map(|codec| json::write(&codec.to_json()).replace(", ", ",").replace(": ", ":"))
        .collect()
}

#[test]
fn a_document_becomes_the_model_of_all_formats() {
    let m = parse(json!({})).unwrap();
    assert_eq!((m.shape.as_slice(), m.chunks.as_slice(), m.zarr_format), (&[10, 6][..], &[4, 4][..], 3));
    assert_eq!((m.separator, m.has_key_prefix(), m.dtype_json), (Some(Separator::Slash), true, json!("<i4")));
    assert_eq!((m.fill, m.fill_value), (Some(vec![7]), json!(7)));
    assert_eq!((m.compressor, m.shards.len()), (None, 0));
}

#[test]
fn codecs_get_the_types_that_v3_leaves_to_the_reader() {
    let big = json!({"name": "bytes", "configuration": {"endian": "big"}});
    for (codecs, expected) in [
        (json!([]), vec![]),
        (json!(["bytes"]), vec![]),
        (json!([{"name": "transpose", "configuration": {"order": [0, 1]}}, "bytes"]), vec![]),
        (
            json!([{"name": "transpose", "configuration": {"order": [1, 0]}}, "bytes", "crc32c"]),
            vec![r#"{"id":"transpose","shape":[4,4],"order":[1,0]}"#, r#"{"id":"crc32c"}"#],
        ),
        (
            json!(["bytes", {"name": "blosc", "configuration":
                {"cname": "zstd", "clevel": 5, "shuffle": "bitshuffle", "typesize": 4, "blocksize": 0}}]),
            vec![r#"{"id":"blosc","cname":"zstd","clevel":5,"shuffle":2,"typesize":4,"blocksize":0}"#],
        ),
        (
            json!([{"name": "numcodecs.delta", "configuration": {"dtype": "<i4"}}, big]),
            vec![r#"{"id":"delta","dtype":">i4","astype":">i4"}"#],
        ),
        (
            json!([{"name": "cast_value", "configuration": {"data_type": "int16"}},
                {"name": "scale_offset", "configuration": {"offset": 3}}, big]),
            vec![r#"{"id":"cast_value","from":">i4","to":">i2"}"#, r#"{"id":"scale_offset","offset":3,"dtype":">i2"}"#],
        ),
        (
            json!([{"name": "reshape", "configuration": {"shape": [[0, 1]]}},
                {"name": "transpose", "configuration": {"order": [0]}}, "bytes",
                {"name": "numcodecs.zlib", "configuration": {"level": 3}}]),
            vec![r#"{"id":"zlib","level":3}"#],
        ),
    ] {
        assert_eq!(filters(json!({"codecs": codecs})), expected, "{codecs}");
    }
    let strings = json!({"data_type": "string", "fill_value": "", "codecs": [
        {"name": "transpose", "configuration": {"order": [1, 0]}}, "vlen-utf8", "zstd"]});
    let ids =
        ["{\"id\":\"vlen-utf8\"}", "{\"id\":\"vlen_transpose\",\"shape\":[4,4],\"order\":[1,0]}", "{\"id\":\"zstd\"}"];
    assert_eq!(filters(strings), ids);
}

#[test]
fn documents_of_other_writers_are_read() {
    for changes in [
        json!({"chunk_key_encoding": {"name": "default"}}),
        json!({"chunk_key_encoding": {"name": "v2", "configuration": {"separator": "/"}}}),
        json!({"storage_transformers": [], "dimension_names": null, "attributes": null}),
        json!({"dimension_names": ["y", null]}),
        json!({"shape": [0, 6], "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [0, 4]}}}),
        json!({"fill_value": null}),
        json!({"data_type": {"name": "float32"}, "fill_value": "NaN"}),
        json!({"x": {"must_understand": false}}),
        json!({"chunk_grid": {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [4, [[3, 2]]]}}}),
    ] {
        assert!(parse(changes.clone()).is_ok(), "{changes}: {:?}", parse(changes.clone()));
    }
}

/// The rows of the table of hostile documents in the order of their fields.
#[test]
fn hostile_documents_are_refused() {
    let codecs = |list: Value| json!({ "codecs": list });
    let bytes = || json!({"name": "bytes", "configuration": {"endian": "little"}});
    let grid = |shape: Value| json!({"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shape}}});
    let rows = [
        (json!({"zarr_format": "3"}), Kind::Damaged),
        (json!({"zarr_format": 4}), Kind::Unsupported),
        (json!({"zarr_format": "https://purl.org/zarr/spec/protocol/core/3.0"}), Kind::Unsupported),
        (json!({"node_type": "absent"}), Kind::Damaged),
        (json!({"node_type": "dataset"}), Kind::Damaged),
        (json!({"shape": [-4, 6]}), Kind::Damaged),
        (json!({"shape": [1.5, 6]}), Kind::Damaged),
        (json!({"shape": [1e30, 6]}), Kind::Damaged),
        (json!({"shape": vec![1; 33]}), Kind::Damaged),
        (json!({"shape": [1u64 << 40, 1u64 << 40]}), Kind::Damaged),
        (grid(json!([4])), Kind::Damaged),
        (grid(json!([0, 4])), Kind::Damaged),
        (grid(json!([-1, 4])), Kind::Damaged),
        (grid(json!([1 << 20, 1 << 20])), Kind::Damaged),
        (json!({"chunk_grid": {"name": "x", "must_understand": false}}), Kind::Unsupported),
        (
            json!({"chunk_grid": {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [4, [3]]}}}),
            Kind::Damaged,
        ),
        (
            json!({"chunk_grid": {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [0, 3]}}}),
            Kind::Damaged,
        ),
        (
            json!({"chunk_grid": {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [4, [[1, 1u64 << 63]]]}}}),
            Kind::Damaged,
        ),
        (
            json!({"chunk_grid": {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [4, [1, 2, 3]]}}}),
            Kind::Unsupported,
        ),
        (json!({"chunk_key_encoding": {"name": "x"}}), Kind::Unsupported),
        (json!({"chunk_key_encoding": {"name": "default", "configuration": {"separator": "-"}}}), Kind::Damaged),
        (codecs(json!([bytes(), bytes()])), Kind::Damaged),
        (codecs(json!(["gzip", bytes()])), Kind::Damaged),
        (codecs(json!([bytes(), {"name": "transpose", "configuration": {"order": [1, 0]}}])), Kind::Damaged),
        (codecs(json!(vec!["crc32c"; 65])), Kind::Unsupported),
        (codecs(json!([{"configuration": {}}])), Kind::Damaged),
        (codecs(json!([3])), Kind::Damaged),
        (codecs(json!([bytes(), {"name": "x", "must_understand": false}])), Kind::Unsupported),
        (codecs(json!([bytes(), {"name": "gzip", "configuration": {"level": 1, "x": 1}}])), Kind::Unsupported),
        (codecs(json!([{"name": "transpose", "configuration": {"order": [0, 0]}}, bytes()])), Kind::Damaged),
        (codecs(json!([{"name": "transpose", "configuration": {"order": [0]}}, bytes()])), Kind::Damaged),
        (codecs(json!([{"name": "transpose", "configuration": {"order": [1, 2]}}, bytes()])), Kind::Damaged),
        (codecs(json!([{"name": "transpose", "configuration": {"order": [-1, 0]}}, bytes()])), Kind::Damaged),
        (codecs(json!([{"name": "bytes", "configuration": {"endian": "middle"}}])), Kind::Damaged),
        (codecs(json!([bytes(), {"name": "blosc", "configuration": {"shuffle": 7}}])), Kind::Damaged),
        (codecs(json!([bytes(), {"name": "blosc", "configuration": {"clevel": 99}}])), Kind::Damaged),
        (codecs(json!([bytes(), {"name": "blosc", "configuration": {"typesize": 0}}])), Kind::Damaged),
        (codecs(json!(["vlen-utf8"])), Kind::Damaged),
        (json!({"data_type": "int12"}), Kind::Unsupported),
        (json!({"data_type": "r12"}), Kind::Damaged),
        (json!({"data_type": "string", "fill_value": ""}), Kind::Damaged),
        (json!({"fill_value": "absent"}), Kind::Damaged),
        (json!({"fill_value": 1u64 << 31}), Kind::Damaged),
        (json!({"dimension_names": ["y"]}), Kind::Damaged),
        (json!({"dimension_names": ["y", 1]}), Kind::Damaged),
        (json!({"x": 1}), Kind::Unsupported),
        (json!({"storage_transformers": [{"name": "x"}]}), Kind::Unsupported),
    ];
    for (changes, kind) in rows {
        let e = parse(changes.clone()).expect_err(&changes.to_string());
        assert_eq!(e.kind(), kind, "{changes}: {e}");
    }
    for document in ["", "[]", "{", "nul"] {
        assert_eq!(ArrayMetadata::parse_v3(document.as_bytes()).unwrap_err().kind(), Kind::Damaged, "{document}");
    }
}

#[test]
fn the_view_is_the_same_array_and_its_own_view() {
    for changes in [
        json!({}),
        json!({"codecs": [{"name": "bytes", "configuration": {"endian": "big"}}, "crc32c"], "dimension_names": ["a", null]}),
        json!({"data_type": "string", "fill_value": "x", "codecs": ["vlen-utf8", "zstd"]}),
        json!({"data_type": "bfloat16", "fill_value": "0x3f80", "x": {"must_understand": false}}),
    ] {
        let stored = document(changes.clone());
        let (object, old) = (json::parse_object(&stored).unwrap(), ArrayMetadata::parse_v3(&stored).unwrap());
        let shown = array_view(&object, &old);
        let new = ArrayMetadata::parse_v3(shown.as_bytes()).unwrap();
        assert_eq!((&new.shape, &new.chunks, &new.dtype, &new.fill), (&old.shape, &old.chunks, &old.dtype, &old.fill));
        assert!(new.filters.iter().eq(old.object_codec()) && !new.has_key_prefix());
        let object = json::parse_object(shown.as_bytes()).unwrap();
        assert_eq!(array_view(&object, &new), shown, "{changes}");
    }
}

#[test]
fn a_written_document_keeps_codecs_and_keys() {
    let text = document(json!({}));
    let (stored, old) = (json::parse_object(&text).unwrap(), ArrayMetadata::parse_v3(&text).unwrap());
    let view = json::parse_object(array_view(&stored, &old).as_bytes()).unwrap();
    let check = |written: &Map<String, Value>| {
        let new = ArrayMetadata::parse_v3(json::write(&Value::Object(written.clone())).as_bytes()).unwrap();
        (differs_v3(&stored, &old, written, &new), merged_v3(&stored, written, &old, &new))
    };
    for written in [&*view, &*stored] {
        assert_eq!(check(written), (None, (*stored).clone()));
    }
    let mut grown = (*view).clone();
    grown.insert("shape".into(), json!([20, 6]));
    grown.insert("attributes".into(), json!({"b": 2}));
    let (differs, merged) = check(&grown);
    assert_eq!((differs, &merged["shape"], &merged["attributes"]), (None, &json!([20, 6]), &json!({"b": 2})));
    assert_eq!((&merged["codecs"], &merged["chunk_key_encoding"]), (&stored["codecs"], &stored["chunk_key_encoding"]));
    for (field, value) in [
        ("data_type", json!("uint32")),
        ("chunk_grid", json!({"name": "regular", "configuration": {"chunk_shape": [5, 4]}})),
        ("codecs", json!(["bytes", "gzip"])),
        ("codecs", json!([{"name": "bytes", "configuration": {"endian": "big"}}])),
        ("chunk_key_encoding", json!({"name": "default", "configuration": {"separator": "."}})),
    ] {
        let mut written = (*view).clone();
        written.insert(field.into(), value);
        let differs = check(&written).0;
        assert!(differs == Some(field) || differs == Some("data_type"), "{field}: {differs:?}");
    }
}
