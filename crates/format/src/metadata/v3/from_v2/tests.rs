use super::*;

const ARRAY: &str = r#"{"zarr_format":2,"shape":[10,6],"chunks":[4,4],"dtype":"<i4","compressor":null,"fill_value":null,
    "order":"C","filters":null}"#;

fn migrated(changes: &str, attributes: Option<&str>) -> Result<Value> {
    let mut document = json::parse(ARRAY.as_bytes()).unwrap();
    for (field, value) in json::parse(changes.as_bytes())
        .unwrap()
        .as_object()
        .unwrap()
    {
        document[field] = value.clone();
    }
    let old = ArrayMetadata::parse(json::write(&document).as_bytes())?;
    let text = array_document(&old, Separator::Slash, attributes.map(str::as_bytes))?;
    json::parse(&text)
}

/// Returns the codecs of a migrated array: names, with their configurations in JSON.
fn codecs(changes: &str) -> Vec<String> {
    let document = migrated(changes, None).unwrap_or_else(|e| panic!("{changes}: {e}"));
    let codec = |codec: &Value| match codec.get("configuration") {
        Some(configuration) => format!(
            "{} {}",
            json::text(&codec["name"]).unwrap(),
            json::write(configuration)
        ),
        None => json::text(&codec["name"]).unwrap().to_string(),
    };
    document["codecs"]
        .as_array()
        .unwrap()
        .iter()
        .map(codec)
        .collect()
}

const LITTLE: &str = r#"bytes {"endian":"little"}"#;

#[test]
fn a_whole_document_is_migrated() {
    let expected = r#"{"zarr_format":3,"node_type":"array","shape":[10,6],"data_type":"int32",
        "chunk_grid":{"name":"regular","configuration":{"chunk_shape":[4,4]}},
        "chunk_key_encoding":{"name":"v2","configuration":{"separator":"/"}},"fill_value":0,
        "codecs":[{"name":"bytes","configuration":{"endian":"little"}}],"attributes":{},"storage_transformers":[]}"#;
    assert_eq!(
        migrated("{}", None).unwrap(),
        json::parse(expected.as_bytes()).unwrap()
    );
}

#[test]
fn codecs_become_their_v3_counterparts() {
    let transpose = r#"transpose {"order":[1,0]}"#;
    let cases = [
        (r#"{"order":"F"}"#, vec![transpose, LITTLE]),
        (r#"{"order":"F","shape":[9],"chunks":[3]}"#, vec![LITTLE]),
        (r#"{"dtype":">f8"}"#, vec![r#"bytes {"endian":"big"}"#]),
        (
            r#"{"compressor":{"id":"blosc","cname":"zstd","clevel":3,"shuffle":-1,"blocksize":0}}"#,
            vec![
                LITTLE,
                r#"blosc {"typesize":4,"cname":"zstd","clevel":3,"shuffle":"shuffle","blocksize":0}"#,
            ],
        ),
        (
            r#"{"dtype":"|u1","compressor":{"id":"blosc","shuffle":-1,"typesize":null}}"#,
            vec![
                LITTLE,
                r#"blosc {"typesize":1,"cname":"lz4","clevel":5,"shuffle":"bitshuffle","blocksize":0}"#,
            ],
        ),
        (
            r#"{"dtype":"|V300","compressor":{"id":"blosc","shuffle":0}}"#,
            vec![
                LITTLE,
                r#"blosc {"typesize":1,"cname":"lz4","clevel":5,"shuffle":"noshuffle","blocksize":0}"#,
            ],
        ),
        (
            r#"{"compressor":{"id":"gzip"}}"#,
            vec![LITTLE, r#"gzip {"level":1}"#],
        ),
        (
            r#"{"compressor":{"id":"zstd","level":7}}"#,
            vec![LITTLE, r#"zstd {"level":7,"checksum":false}"#],
        ),
        (
            r#"{"compressor":{"id":"zlib","level":1}}"#,
            vec![LITTLE, r#"numcodecs.zlib {"level":1}"#],
        ),
        (
            r#"{"compressor":{"id":"pcodec","level":8}}"#,
            vec![r#"numcodecs.pcodec {"level":8}"#],
        ),
        (
            r#"{"order":"F","filters":[{"id":"delta","dtype":"i4","astype":"<i2"},{"id":"shuffle"}],
                "compressor":{"id":"blosc"}}"#,
            vec![
                transpose,
                r#"numcodecs.delta {"dtype":"<i4","astype":"<i2"}"#,
                LITTLE,
                r#"numcodecs.shuffle {"elementsize":4}"#,
                r#"blosc {"typesize":1,"cname":"lz4","clevel":5,"shuffle":"shuffle","blocksize":0}"#,
            ],
        ),
        (
            r#"{"dtype":"<f8","filters":[{"id":"fixedscaleoffset","offset":1,"scale":10,"dtype":"<f8","astype":"|u1"}],
                "compressor":{"id":"blosc","shuffle":-1}}"#,
            vec![
                r#"numcodecs.fixedscaleoffset {"offset":1,"scale":10,"dtype":"<f8","astype":"|u1"}"#,
                LITTLE,
                r#"blosc {"typesize":1,"cname":"lz4","clevel":5,"shuffle":"bitshuffle","blocksize":0}"#,
            ],
        ),
        (
            r#"{"dtype":"|b1","filters":[{"id":"packbits"}]}"#,
            vec!["numcodecs.packbits {}", LITTLE],
        ),
        (
            r#"{"dtype":">f4","filters":[{"id":"bitround","keepbits":3}]}"#,
            vec![
                r#"numcodecs.bitround {"keepbits":3}"#,
                r#"bytes {"endian":"big"}"#,
            ],
        ),
        (
            r#"{"dtype":"|O","order":"F","filters":[{"id":"vlen-utf8"},{"id":"crc32"}],"compressor":{"id":"zlib"}}"#,
            vec![
                transpose,
                "vlen-utf8",
                "numcodecs.crc32 {}",
                "numcodecs.zlib {}",
            ],
        ),
    ];
    for (changes, expected) in cases {
        assert_eq!(codecs(changes), expected, "{changes}");
    }
}

#[test]
fn fill_values_keep_their_items() {
    for (dtype, v2, v3) in [
        ("\"<i4\"", "null", "0"),
        ("\"|b1\"", "true", "true"),
        ("\">f4\"", "\"NaN\"", "\"NaN\""),
        (
            "\"<f8\"",
            "\"0x7ff8000000000001\"",
            "\"0x7ff8000000000001\"",
        ),
        ("\"<c8\"", "[1.5,\"-Infinity\"]", "[\"NaN\",\"-Infinity\"]"),
        ("\"|S3\"", "\"YWI=\"", "\"YWI=\""),
        ("\"|V2\"", "\"AQI=\"", "\"AQI=\""),
        ("\"<U3\"", "\"ab\"", "\"ab\""),
        ("\"<M8[s]\"", "-9223372036854775808", "-9223372036854775808"),
        (
            "[[\"a\",\"<i4\"],[\"b\",\"|S1\"]]",
            "\"AQAAAHg=\"",
            r#"{"a":1,"b":"eA=="}"#,
        ),
    ] {
        let document =
            migrated(&format!(r#"{{"dtype":{dtype},"fill_value":{v2}}}"#), None).unwrap();
        assert_eq!(json::write(&document["fill_value"]), v3, "{dtype} {v2}");
    }
    for (codec, v2, v3) in [
        ("vlen-utf8", "null", "\"\""),
        ("vlen-utf8", "0", "\"\""),
        ("vlen-utf8", "\"ab\"", "\"ab\""),
        ("vlen-bytes", "\"\"", "\"\""),
    ] {
        let changes =
            format!(r#"{{"dtype":"|O","filters":[{{"id":"{codec}"}}],"fill_value":{v2}}}"#);
        assert_eq!(
            json::write(&migrated(&changes, None).unwrap()["fill_value"]),
            v3,
            "{codec} {v2}"
        );
    }
}

#[test]
fn arrays_without_a_faithful_form_are_refused() {
    for (changes, why) in [
        (
            r#"{"dtype":"|O","filters":[{"id":"json2"}]}"#,
            "codec \"json2\" has no form",
        ),
        (
            r#"{"dtype":"|O","filters":[{"id":"pickle"}]}"#,
            "codec \"pickle\" has no form",
        ),
        (
            r#"{"dtype":"|O","filters":[{"id":"vlen-bytes"}],"fill_value":"YQ=="}"#,
            "fill_value \"YQ==\"",
        ),
        (
            r#"{"dtype":"|O","filters":[{"id":"vlen-utf8"}],"fill_value":7}"#,
            "fill_value 7",
        ),
        (r#"{"dtype":"<f16"}"#, "dtype \"<f16\" has no data type"),
        (r#"{"dtype":[["a","<i4"],["b",">i4"]]}"#, "has no data type"),
        (r#"{"dtype":[["a","<i4",[2]]]}"#, "has no data type"),
        (
            r#"{"compressor":{"id":"nosuchcodec"}}"#,
            "codec \"nosuchcodec\" has no form",
        ),
        (
            r#"{"compressor":{"id":"gzip","level":77}}"#,
            "\"gzip\": level is not an integer",
        ),
        (
            r#"{"compressor":{"id":"zlib","levle":1}}"#,
            "no parameter \"levle\"",
        ),
        (
            r#"{"filters":[{"id":"shuffle"},{"id":"delta","dtype":"<i4"}]}"#,
            "\"delta\" has no place in Zarr v3 behind",
        ),
        (
            r#"{"filters":[{"id":"delta","dtype":"<i2"}]}"#,
            "dtype \"<i2\" has no form in Zarr v3 where items are \"<i4\"",
        ),
        (
            r#"{"dtype":">i4","filters":[{"id":"delta","dtype":">i4"}]}"#,
            "big-endian items has no certain form",
        ),
        (
            r#"{"filters":[{"id":"delta","dtype":"<i4","astype":">i4"}]}"#,
            "astype \">i4\" has no certain form",
        ),
        (
            r#"{"dtype":"|S4","filters":[{"id":"delta","dtype":"<i4"}]}"#,
            "items that are no numbers",
        ),
        (
            r#"{"dtype":"<f4","filters":[{"id":"quantize","digits":2,"dtype":"<f4","astype":"<f2"}]}"#,
            "astype \"<f2\" has no form",
        ),
    ] {
        let e = migrated(changes, None).expect_err(changes);
        assert!(e.message().contains(why), "{changes}: {e}");
    }
    let fields =
        |more: &str| check_array_fields(format!(r#"{{"zarr_format":2{more}}}"#).as_bytes());
    assert_eq!(fields(r#","dimension_separator":"/","order":"C""#), Ok(()));
    assert!(
        fields(r#","_NCZARR_ARRAY":{}"#)
            .unwrap_err()
            .message()
            .contains("\"_NCZARR_ARRAY\" has no place")
    );
    assert!(check_group_fields(br#"{"zarr_format":2,"x":1}"#).is_err());
}

#[test]
fn names_of_dimensions_leave_the_attributes() {
    let named = |attributes: &str| {
        let document = migrated("{}", Some(attributes)).unwrap();
        (
            json::write(&document["attributes"]),
            document.get("dimension_names").map(json::write),
        )
    };
    let names = Some("[\"y\",\"x\"]".to_string());
    assert_eq!(
        named(r#"{"a":1,"_ARRAY_DIMENSIONS":["y","x"],"b":NaN}"#),
        (r#"{"a":1,"b":NaN}"#.into(), names.clone())
    );
    assert_eq!(
        named(r#"{"_ARRAY_DIMENSIONS":["y","x"]}"#),
        ("{}".into(), names)
    );
    for kept in [
        r#"{"_ARRAY_DIMENSIONS":["y"]}"#,
        r#"{"_ARRAY_DIMENSIONS":["y",1]}"#,
        r#"{"_ARRAY_DIMENSIONS":"y"}"#,
    ] {
        assert_eq!(named(kept), (kept.to_string(), None));
    }
    // without names of dimensions, the fill value does not become a missing value
    let unnamed = migrated(r#"{"fill_value":7}"#, Some("{}")).unwrap();
    assert_eq!(json::write(&unnamed["attributes"]), "{}");
    let duplicate =
        String::from_utf8(group_document(Some(br#"{"a": 1, "a": 2}"#)).unwrap()).unwrap();
    assert!(
        duplicate.contains(r#""attributes": {"a": 1, "a": 2}"#),
        "{duplicate}"
    );
    assert!(group_document(Some(b"[1]")).is_err() && group_document(Some(b"{")).is_err());
}

#[test]
fn missing_values_keep_their_meaning_for_xarray() {
    for (dtype, fill_value, attributes, expected) in [
        ("<i4", "-1", "", r#"{"_FillValue":-1}"#),
        ("|u1", "null", "", "{}"),
        ("<f4", "-9999", "", r#"{"_FillValue":"AAAAAICHw8A="}"#),
        (">f8", "\"NaN\"", "", r#"{"_FillValue":"AAAAAAAA+H8="}"#),
        (
            "<f4",
            "null",
            r#","_FillValue":-9999.0"#,
            r#"{"_FillValue":"AAAAAICHw8A="}"#,
        ),
        (
            "<f4",
            "0",
            r#","_FillValue":-9999,"a":1"#,
            r#"{"_FillValue":"AAAAAICHw8A=","a":1}"#,
        ),
        (
            "<f4",
            "null",
            r#","_FillValue":NaN"#,
            r#"{"_FillValue":"AAAAAAAA+H8="}"#,
        ),
        (
            "<i4",
            "0",
            r#","_FillValue":-9999"#,
            r#"{"_FillValue":-9999}"#,
        ),
        ("|b1", "true", "", r#"{"_FillValue":true}"#),
        (
            "<c8",
            "[-9999,0]",
            "",
            r#"{"_FillValue":["AAAAAICHw8A=","AAAAAAAAAAA="]}"#,
        ),
        ("|S4", "\"YWI=\"", "", r#"{"_FillValue":"YWI="}"#),
        (">U4", "\"ä\"", "", r#"{"_FillValue":"ä"}"#),
        ("<M8[s]", "5", "", "{}"),
    ] {
        let changes = format!(r#"{{"dtype":"{dtype}","fill_value":{fill_value}}}"#);
        let attributes = format!(r#"{{"_ARRAY_DIMENSIONS":["y","x"]{attributes}}}"#);
        let document = migrated(&changes, Some(&attributes)).unwrap();
        assert_eq!(
            json::write(&document["attributes"]),
            expected,
            "{dtype} {fill_value} {attributes}"
        );
    }
}
