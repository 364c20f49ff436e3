use super::*;
use crate::chunk_key::Separator;
use crate::metadata::v3::merge::{differs_v3, merged_v3};
use crate::metadata::v3::shown::shown_array;
use proptest::prelude::*;
use zarrfs_base::error::Kind;
use zarrfs_base::json::json;

/// Returns the text of the shown document.
fn shown_text(stored: &Map<String, Value>, metadata: &ArrayMetadata) -> String {
    json::write_pretty(&Value::Object(shown_array(stored, metadata)))
}

/// Returns an array's document with `changes`, an object whose members replace others. The value
/// "absent" removes one.
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
    doc.as_object_mut()
        .unwrap()
        .retain(|_, value| *value != json!("absent"));
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
        .map(|codec| {
            json::write(&codec.to_json())
                .replace(", ", ",")
                .replace(": ", ":")
        })
        .collect()
}

#[test]
fn a_document_becomes_the_model_of_all_formats() {
    let m = parse(json!({})).unwrap();
    assert_eq!(
        (m.shape.as_slice(), m.chunks.as_slice(), m.zarr_format),
        (&[10, 6][..], &[4, 4][..], 3)
    );
    assert_eq!(
        (m.separator, m.has_key_prefix(), m.dtype_json),
        (Some(Separator::Slash), true, json!("<i4"))
    );
    assert_eq!((m.fill, m.fill_value), (Some(vec![7]), json!(7)));
    assert_eq!((m.compressor, m.shards.len()), (None, 0));
}

#[test]
fn codecs_get_the_types_that_v3_leaves_to_the_reader() {
    let big = json!({"name": "bytes", "configuration": {"endian": "big"}});
    for (codecs, expected) in [
        (json!([]), vec![]),
        (json!(["bytes"]), vec![]),
        (
            json!([{"name": "transpose", "configuration": {"order": [0, 1]}}, "bytes"]),
            vec![],
        ),
        (
            json!([{"name": "transpose", "configuration": {"order": [1, 0]}}, "bytes", "crc32c"]),
            vec![
                r#"{"id":"transpose","shape":[4,4],"order":[1,0]}"#,
                r#"{"id":"crc32c"}"#,
            ],
        ),
        (
            json!(["bytes", {"name": "blosc", "configuration":
                {"cname": "zstd", "clevel": 5, "shuffle": "bitshuffle", "typesize": 4, "blocksize": 0}}]),
            vec![
                r#"{"id":"blosc","cname":"zstd","clevel":5,"shuffle":2,"typesize":4,"blocksize":0}"#,
            ],
        ),
        (
            json!([{"name": "numcodecs.delta", "configuration": {"dtype": "<i4"}}, big]),
            vec![r#"{"id":"delta","dtype":">i4","astype":">i4"}"#],
        ),
        (
            json!([{"name": "cast_value", "configuration": {"data_type": "int16"}},
                {"name": "scale_offset", "configuration": {"offset": 3}}, big]),
            vec![
                r#"{"id":"cast_value","rounding":"nearest-even","from":">i4","to":">i2"}"#,
                r#"{"id":"scale_offset","offset":3,"dtype":">i2"}"#,
            ],
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
    let ids = [
        "{\"id\":\"vlen-utf8\"}",
        "{\"id\":\"vlen_transpose\",\"shape\":[4,4],\"order\":[1,0]}",
        "{\"id\":\"zstd\"}",
    ];
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
        rectilinear(json!([4, [[3, 2]]])),
        rectilinear(json!([4, [1, 2, 3]])),
        // a chunk outside the shape is not allocated
        rectilinear(json!([[10, 1u64 << 40], [6, 1u64 << 40]])),
    ] {
        assert!(
            parse(changes.clone()).is_ok(),
            "{changes}: {:?}",
            parse(changes.clone())
        );
    }
}

/// Returns a change of the document to chunks of these lengths.
fn rectilinear(chunk_shapes: Value) -> Value {
    json!({"chunk_grid": {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": chunk_shapes}}})
}

#[test]
fn hostile_documents_are_refused() {
    let codecs = |list: Value| json!({ "codecs": list });
    let bytes = || json!({"name": "bytes", "configuration": {"endian": "little"}});
    let grid = |shape: Value| json!({"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shape}}});
    let typed = |name: &str, configuration: Value| json!({"data_type": {"name": name, "configuration": configuration}, "fill_value": null});
    let rows = [
        (json!({"zarr_format": "3"}), Kind::Damaged),
        (json!({"zarr_format": 4}), Kind::Unsupported),
        (
            json!({"zarr_format": "https://purl.org/zarr/spec/protocol/core/3.0"}),
            Kind::Unsupported,
        ),
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
        (
            json!({"chunk_grid": {"name": "x", "must_understand": false}}),
            Kind::Unsupported,
        ),
        (rectilinear(json!([4, [3]])), Kind::Damaged),
        (rectilinear(json!([4, []])), Kind::Damaged),
        (rectilinear(json!([0, 3])), Kind::Damaged),
        (rectilinear(json!([4, [3, 0, 3]])), Kind::Damaged),
        (rectilinear(json!([4, [[1, 1u64 << 63]]])), Kind::Damaged),
        (rectilinear(json!([4, [1, [1u64 << 62, 2]]])), Kind::Damaged),
        (rectilinear(json!([4, [[3, 2, 1]]])), Kind::Damaged),
        (rectilinear(json!([4, vec![1; 1 << 18]])), Kind::Unsupported),
        (
            json!({"chunk_key_encoding": {"name": "x"}}),
            Kind::Unsupported,
        ),
        (
            json!({"chunk_key_encoding": {"name": "default", "configuration": {"separator": "-"}}}),
            Kind::Damaged,
        ),
        (codecs(json!([bytes(), bytes()])), Kind::Damaged),
        (codecs(json!(["gzip", bytes()])), Kind::Damaged),
        (
            codecs(json!([bytes(), {"name": "transpose", "configuration": {"order": [1, 0]}}])),
            Kind::Damaged,
        ),
        (codecs(json!(vec!["crc32c"; 65])), Kind::Unsupported),
        (codecs(json!([{"configuration": {}}])), Kind::Damaged),
        (codecs(json!([3])), Kind::Damaged),
        (
            codecs(json!([bytes(), {"name": "x", "must_understand": false}])),
            Kind::Unsupported,
        ),
        (
            codecs(json!([bytes(), {"name": "gzip", "configuration": {"level": 1, "x": 1}}])),
            Kind::Unsupported,
        ),
        (
            codecs(json!([{"name": "transpose", "configuration": {"order": [0, 0]}}, bytes()])),
            Kind::Damaged,
        ),
        (
            codecs(json!([{"name": "transpose", "configuration": {"order": [0]}}, bytes()])),
            Kind::Damaged,
        ),
        (
            codecs(json!([{"name": "transpose", "configuration": {"order": [1, 2]}}, bytes()])),
            Kind::Damaged,
        ),
        (
            codecs(json!([{"name": "transpose", "configuration": {"order": [-1, 0]}}, bytes()])),
            Kind::Damaged,
        ),
        (
            codecs(json!([{"name": "bytes", "configuration": {"endian": "middle"}}])),
            Kind::Damaged,
        ),
        (
            codecs(json!([bytes(), {"name": "blosc", "configuration": {"shuffle": 7}}])),
            Kind::Damaged,
        ),
        (
            codecs(json!([bytes(), {"name": "blosc", "configuration": {"clevel": 99}}])),
            Kind::Damaged,
        ),
        (
            codecs(json!([bytes(), {"name": "blosc", "configuration": {"typesize": 0}}])),
            Kind::Damaged,
        ),
        (codecs(json!(["vlen-utf8"])), Kind::Damaged),
        (json!({"data_type": "int12"}), Kind::Unsupported),
        (json!({"data_type": "r12"}), Kind::Damaged),
        (
            json!({"data_type": "string", "fill_value": ""}),
            Kind::Damaged,
        ),
        (json!({"fill_value": "absent"}), Kind::Damaged),
        (json!({"fill_value": 1u64 << 31}), Kind::Damaged),
        (json!({"dimension_names": ["y"]}), Kind::Damaged),
        (json!({"dimension_names": ["y", 1]}), Kind::Damaged),
        (json!({"x": 1}), Kind::Unsupported),
        (json!({"x": {"must_understand": true}}), Kind::Unsupported),
        (
            json!({"storage_transformers": [{"name": "x"}]}),
            Kind::Unsupported,
        ),
        (json!({"storage_transformers": {}}), Kind::Damaged),
        (json!({"attributes": []}), Kind::Damaged),
        (
            json!({"chunk_grid": {"name": "regular", "must_understand": 1}}),
            Kind::Damaged,
        ),
        (
            json!({"chunk_grid": {"name": "regular", "x": 1}}),
            Kind::Unsupported,
        ),
        (json!({"data_type": "r0"}), Kind::Damaged),
        (json!({"data_type": "r99999999999"}), Kind::Damaged),
        (
            typed("fixed_length_utf32", json!({"length_bytes": 7})),
            Kind::Damaged,
        ),
        (
            typed("raw_bytes", json!({"length_bytes": 1u64 << 40})),
            Kind::Damaged,
        ),
        (typed("struct", json!({"fields": []})), Kind::Damaged),
        (
            typed(
                "structured",
                json!({"fields": [["a", "int8"], ["a", "int8"]]}),
            ),
            Kind::Damaged,
        ),
        (
            typed("structured", json!({"fields": [["a", "string"]]})),
            Kind::Damaged,
        ),
        (
            typed(
                "numpy.datetime64",
                json!({"unit": "fortnight", "scale_factor": 1}),
            ),
            Kind::Damaged,
        ),
        (
            typed("numpy.datetime64", json!({"unit": "s", "scale_factor": 0})),
            Kind::Damaged,
        ),
        (
            typed(
                "numpy.timedelta64",
                json!({"unit": "s", "scale_factor": 1u64 << 31}),
            ),
            Kind::Damaged,
        ),
        (
            json!({"data_type": "float32", "fill_value": "0x7fc0"}),
            Kind::Damaged,
        ),
        (
            json!({"data_type": "r16", "fill_value": [256, 0]}),
            Kind::Damaged,
        ),
    ];
    for (changes, kind) in rows {
        let e = parse(changes.clone()).expect_err(&changes.to_string());
        assert_eq!(e.kind(), kind, "{changes}: {e}");
    }
    let deep = "[".repeat(200_000);
    for document in ["", "[]", "{", "nul", &deep] {
        assert_eq!(
            ArrayMetadata::parse_v3(document.as_bytes())
                .unwrap_err()
                .kind(),
            Kind::Damaged,
            "{document}"
        );
    }
}

#[test]
fn a_view_describes_the_same_array_and_is_its_own_view() {
    for changes in [
        json!({}),
        json!({"codecs": [{"name": "bytes", "configuration": {"endian": "big"}}, "crc32c"], "dimension_names": ["a", null]}),
        json!({"data_type": "string", "fill_value": "x", "codecs": ["vlen-utf8", "zstd"]}),
        json!({"data_type": "bfloat16", "fill_value": "0x3f80", "x": {"must_understand": false}}),
    ] {
        let stored = document(changes.clone());
        let object = json::parse_object(&stored).unwrap();
        let old = ArrayMetadata::parse_v3(&stored).unwrap();
        let shown = shown_text(&object, &old);
        let new = ArrayMetadata::parse_v3(shown.as_bytes()).unwrap();
        assert_eq!(
            (&new.shape, &new.chunks, &new.dtype, &new.fill),
            (&old.shape, &old.chunks, &old.dtype, &old.fill)
        );
        assert!(new.filters.iter().eq(old.object_codec()) && !new.has_key_prefix());
        let object = json::parse_object(shown.as_bytes()).unwrap();
        assert_eq!(shown_text(&object, &new), shown, "{changes}");
    }
}

#[test]
fn a_written_document_keeps_codecs_and_keys() {
    let text = document(json!({}));
    let stored = json::parse_object(&text).unwrap();
    let old = ArrayMetadata::parse_v3(&text).unwrap();
    let view = json::parse_object(shown_text(&stored, &old).as_bytes()).unwrap();
    let check = |written: &Map<String, Value>| {
        let new = ArrayMetadata::parse_v3(json::write(&Value::Object(written.clone())).as_bytes())
            .unwrap();
        (
            differs_v3(&stored, &old, written, &new),
            merged_v3(&stored, written, &old, &new),
        )
    };
    for written in [&*view, &*stored] {
        assert_eq!(check(written), (None, (*stored).clone()));
    }
    let mut grown = (*view).clone();
    grown.insert("shape".into(), json!([20, 6]));
    grown.insert("attributes".into(), json!({"b": 2}));
    let (differs, merged) = check(&grown);
    assert_eq!(
        (differs, &merged["shape"], &merged["attributes"]),
        (None, &json!([20, 6]), &json!({"b": 2}))
    );
    assert_eq!(
        (&merged["codecs"], &merged["chunk_key_encoding"]),
        (&stored["codecs"], &stored["chunk_key_encoding"])
    );
    for (field, value) in [
        ("data_type", json!("uint32")),
        (
            "chunk_grid",
            json!({"name": "regular", "configuration": {"chunk_shape": [5, 4]}}),
        ),
        ("codecs", json!(["bytes", "gzip"])),
        (
            "codecs",
            json!([{"name": "bytes", "configuration": {"endian": "big"}}]),
        ),
        (
            "chunk_key_encoding",
            json!({"name": "default", "configuration": {"separator": "."}}),
        ),
    ] {
        let mut written = (*view).clone();
        written.insert(field.into(), value);
        let differs = check(&written).0;
        assert_eq!(differs, Some(field));
    }
}

#[test]
fn documents_do_not_state_the_codec_of_small_integers() {
    let text = document(json!({"data_type": "int4", "fill_value": 0, "codecs": ["bytes", "gzip"]}));
    let stored = json::parse_object(&text).unwrap();
    let old = ArrayMetadata::parse_v3(&text).unwrap();
    assert_eq!(
        old.stated_filters()
            .map(|codec| codec.id.as_str())
            .collect::<Vec<_>>(),
        ["gzip"]
    );
    // the codecs of the view in another spelling
    let mut written = (*stored).clone();
    written.insert("codecs".into(), json!(["bytes"]));
    let new =
        ArrayMetadata::parse_v3(json::write(&Value::Object(written.clone())).as_bytes()).unwrap();
    assert_eq!(
        (differs_v3(&stored, &old, &written, &new), new.filters.len()),
        (None, 1)
    );
}

#[test]
fn data_types_of_one_numpy_dtype_are_distinguished() {
    let with = |data_type: Value, fill_value: Value, codecs: Value| {
        let text =
            document(json!({"data_type": data_type, "fill_value": fill_value, "codecs": codecs}));
        (
            json::parse_object(&text).unwrap(),
            ArrayMetadata::parse_v3(&text).unwrap(),
        )
    };
    let raw = |length: u64| json!({"name": "raw_bytes", "configuration": {"length_bytes": length}});
    for (a, b, expected) in [
        (json!("int4"), json!("uint4"), Some("data_type")),
        (
            json!("float8_e4m3"),
            json!("float8_e5m2"),
            Some("data_type"),
        ),
        (json!("bfloat16"), json!("r16"), Some("data_type")),
        (json!("float32"), json!({"name": "float32"}), None),
        (json!("r16"), raw(2), None),
        (json!("complex64"), json!("complex_float32"), None),
    ] {
        let a = with(a, json!(null), json!(["bytes"]));
        let b = with(b, json!(null), json!(["bytes"]));
        assert_eq!(differs_v3(&a.0, &a.1, &b.0, &b.1), expected, "{:?}", b.0);
    }
    let a = with(json!("string"), json!(""), json!(["vlen-utf8"]));
    let b = with(json!("bytes"), json!(""), json!(["vlen-utf8"]));
    assert_eq!(differs_v3(&a.0, &a.1, &b.0, &b.1), Some("data_type"));
}

fn sharded() -> Value {
    json!({
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [8, 4]}}, "dimension_names": ["y", null],
        "codecs": [{"name": "sharding_indexed", "configuration": {"chunk_shape": [2, 4], "index_codecs": ["bytes"],
            "codecs": [{"name": "bytes", "configuration": {"endian": "big"}}, "zstd"]}}]})
}

#[test]
fn a_sharded_array_is_described_and_rewritten_by_its_creator() {
    let text = document(sharded());
    let stored = json::parse_object(&text).unwrap();
    let old = ArrayMetadata::parse_v3(&text).unwrap();
    let description = Map::from_iter(
        old.description()
            .into_iter()
            .map(|(name, value)| (name.to_string(), value)),
    );
    let expected = json!({"shape": [10, 6], "chunks": [2, 4], "shards": [8, 4], "dtype": ">i4", "data_type": "int32",
        "fill_value": 7, "codecs": stored["codecs"], "dimension_names": ["y", null]});
    assert_eq!(Value::Object(description), expected);
    let plain = parse(json!({"data_type": "bfloat16", "fill_value": 0}))
        .unwrap()
        .description();
    assert_eq!(
        plain.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
        [
            "shape",
            "chunks",
            "dtype",
            "data_type",
            "fill_value",
            "codecs"
        ]
    );
    assert_eq!(plain[2].1, Value::Null);

    let view = json::parse_object(shown_text(&stored, &old).as_bytes()).unwrap();
    for written in [&stored, &view] {
        let mut written = (**written).clone();
        written.insert("shape".into(), json!([20, 6]));
        let new = ArrayMetadata::parse_v3(json::write(&Value::Object(written.clone())).as_bytes())
            .unwrap();
        assert_eq!(differs_v3(&stored, &old, &written, &new), None);
        let merged = merged_v3(&stored, &written, &old, &new);
        assert_eq!(
            (&merged["shape"], &merged["codecs"]),
            (&json!([20, 6]), &stored["codecs"])
        );
        assert_eq!(merged["chunk_grid"], stored["chunk_grid"]);
    }
}

#[test]
fn chunks_of_different_lengths_are_shown_as_they_are_stored() {
    let mut changes = rectilinear(json!([[[4, 2], 2], [1, 2, 3, 5]]));
    let m = parse(changes.clone()).unwrap();
    assert_eq!(
        (m.chunks.as_slice(), m.chunk_shape(&[2, 1]).as_ref()),
        (&[4, 3][..], &[2, 2][..])
    );
    let grid = m.grid(&m.shape).unwrap();
    assert_eq!(
        (grid.counts(), grid.chunk_size(grid.chunk(&[2, 1]))),
        (&[3, 3][..], 2 * 2 * 4)
    );
    assert!(
        crate::metadata::v3::as_v2::array_document(&m)
            .unwrap_err()
            .kind()
            == Kind::Unsupported
    );

    changes["codecs"] = json!([{"name": "transpose", "configuration": {"order": [1, 0]}}, "bytes"]);
    let text = document(changes.clone());
    let stored = json::parse_object(&text).unwrap();
    let old = ArrayMetadata::parse_v3(&text).unwrap();
    assert_eq!(
        json::write(&old.filters[0].to_json())
            .replace(": ", ":")
            .replace(", ", ","),
        r#"{"id":"transpose","shape":[4,3],"order":[1,0]}"#
    );
    let small = &old.codecs_of_shape(&[2, 1]).unwrap().0[0];
    assert_eq!(
        json::write(&small.to_json())
            .replace(": ", ":")
            .replace(", ", ","),
        r#"{"id":"transpose","shape":[2,1],"order":[1,0]}"#
    );
    let view = json::parse_object(shown_text(&stored, &old).as_bytes()).unwrap();
    assert_eq!(view["chunk_grid"], stored["chunk_grid"]);
    let shown =
        ArrayMetadata::parse_v3(json::write(&Value::Object((*view).clone())).as_bytes()).unwrap();
    assert_eq!(differs_v3(&stored, &old, &view, &shown), None);
    for other in [json!([[[4, 2], 2], [1, 2, 4, 5]]), json!([[[4, 2], 2], 5])] {
        let other = document(rectilinear(other));
        let new = ArrayMetadata::parse_v3(&other).unwrap();
        let written = json::parse_object(&other).unwrap();
        assert_eq!(
            differs_v3(&stored, &old, &written, &new),
            Some("chunk_grid")
        );
        assert!(!new.encodes_like(&old));
    }

    changes["shape"] = json!([10, 12]);
    assert_eq!(
        parse(changes.clone()).unwrap_err().kind(),
        Kind::Damaged,
        "no chunk holds the last column"
    );
    changes["shape"] = json!([10, 11]);
    changes["codecs"] = json!([{"name": "zarrs.squeeze"}, "bytes"]);
    assert_eq!(parse(changes).unwrap_err().kind(), Kind::Unsupported);
}

proptest! {
    #[test]
    fn views_parse_to_the_same_array(
        inner in prop::collection::vec(1u64..5, 2),
        counts in prop::collection::vec(1u64..4, 2),
        order in Just(vec![0usize, 1]).prop_shuffle(),
        is_big in any::<bool>(),
        is_sharded in any::<bool>(),
        data_type in prop::sample::select(vec!["int32", "bfloat16", "complex64", "bool", "r24", "int4"]),
        keys in prop::sample::select(vec!["default", "v2"]),
    ) {
        let bytes = json!({"name": "bytes", "configuration": {"endian": if is_big { "big" } else { "little" }}});
        let outer: Vec<u64> = inner.iter().zip(&counts).map(|(inner, count)| inner * count).collect();
        let turned: Vec<u64> = order.iter().map(|&axis| inner[axis]).collect();
        let last = if is_sharded { json!({"name": "sharding_indexed", "configuration": {
                "chunk_shape": turned, "index_codecs": ["bytes"], "codecs": [bytes, "zstd"]}}) } else { bytes };
        let stored = document(json!({
            "data_type": data_type, "fill_value": null, "chunk_key_encoding": keys,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": outer}},
            "codecs": [{"name": "transpose", "configuration": {"order": order}}, last]}));
        let object = json::parse_object(&stored).unwrap();
        let old = ArrayMetadata::parse_v3(&stored).unwrap();
        prop_assert_eq!(&old.chunks, if is_sharded { &inner } else { &outer });
        let shown = shown_text(&object, &old);
        let new = ArrayMetadata::parse_v3(shown.as_bytes()).unwrap();
        prop_assert_eq!((&new.shape, &new.chunks, &new.dtype, &new.fill), (&old.shape, &old.chunks, &old.dtype, &old.fill));
        prop_assert!(new.stated_filters().next().is_none() && new.shards.is_empty() && !new.has_key_prefix());
        let object = json::parse_object(shown.as_bytes()).unwrap();
        prop_assert_eq!(shown_text(&object, &new), shown);
    }
}
