//! Names and spellings are those that zarr-python 3.1.6 has for NumPy's dtypes; those it lacks
//! (`r16`, `complex_float32`, `struct`, and types without a NumPy name) are those of the
//! specification and the registry.

use super::*;
use zarrfs_base::error::Kind;

fn value(text: &str) -> Value {
    json::parse(text.as_bytes()).unwrap()
}

fn parsed(text: &str, big_endian: bool) -> DataType {
    DataType::parse(&value(text), big_endian).unwrap_or_else(|e| panic!("{text}: {e}"))
}

/// Returns an extension object.
fn extension(name: &str, configuration: &str) -> String {
    format!(r#"{{"name":"{name}","configuration":{configuration}}}"#)
}

/// Data types, and the NumPy spelling with little-endian and big-endian `bytes`.
const SPELLINGS: [(&str, &str, &str, &str); 30] = [
    ("bool", "", "|b1", "|b1"),
    ("int8", "", "|i1", "|i1"),
    ("int16", "", "<i2", ">i2"),
    ("int32", "", "<i4", ">i4"),
    ("int64", "", "<i8", ">i8"),
    ("uint8", "", "|u1", "|u1"),
    ("uint16", "", "<u2", ">u2"),
    ("uint32", "", "<u4", ">u4"),
    ("uint64", "", "<u8", ">u8"),
    ("float16", "", "<f2", ">f2"),
    ("float32", "", "<f4", ">f4"),
    ("float64", "{}", "<f8", ">f8"),
    ("complex64", "", "<c8", ">c8"),
    ("complex128", "", "<c16", ">c16"),
    ("complex_float32", "", "<c8", ">c8"),
    ("complex_float64", "", "<c16", ">c16"),
    ("r8", "", "|V1", "|V1"),
    ("r16", "", "|V2", "|V2"),
    ("raw_bytes", r#"{"length_bytes":3}"#, "|V3", "|V3"),
    (
        "null_terminated_bytes",
        r#"{"length_bytes":4}"#,
        "|S4",
        "|S4",
    ),
    ("fixed_length_utf32", r#"{"length_bytes":8}"#, "<U2", ">U2"),
    (
        "numpy.datetime64",
        r#"{"unit":"s","scale_factor":1}"#,
        "<M8[s]",
        ">M8[s]",
    ),
    (
        "numpy.datetime64",
        r#"{"unit":"us","scale_factor":10}"#,
        "<M8[10us]",
        ">M8[10us]",
    ),
    (
        "numpy.datetime64",
        r#"{"unit":"generic","scale_factor":1}"#,
        "<M8",
        ">M8",
    ),
    (
        "numpy.timedelta64",
        r#"{"unit":"ns","scale_factor":25}"#,
        "<m8[25ns]",
        ">m8[25ns]",
    ),
    (
        "numpy.timedelta64",
        r#"{"unit":"μs","scale_factor":2147483647}"#,
        "<m8[2147483647us]",
        ">m8[2147483647us]",
    ),
    ("string", "", "|O", "|O"),
    ("bytes", "", "|O", "|O"),
    ("variable_length_bytes", "", "|O", "|O"),
    ("binary", "", "|O", "|O"),
];

#[test]
fn numpy_types_are_spelled_in_the_byte_order_of_the_chain() {
    for (name, configuration, little, big) in SPELLINGS {
        let texts = match configuration {
            "" => vec![
                format!("{name:?}"),
                format!(r#"{{"name":"{name}","must_understand":false}}"#),
            ],
            configuration => vec![extension(name, configuration)],
        };
        for text in texts {
            for (spelling, is_big) in [(little, false), (big, true)] {
                let found = parsed(&text, is_big);
                assert_eq!(found.numpy, Some(spelling.into()), "{text}");
                assert_eq!(found.dtype, DType::parse_str(spelling).unwrap(), "{text}");
                let is_number = "biufc".contains(&spelling[1..2]);
                assert_eq!(
                    found.element,
                    is_number.then(|| spelling.to_string()),
                    "{text}"
                );
            }
        }
    }
}

#[test]
fn types_without_a_numpy_name_are_opaque_bytes() {
    for (name, size, little, big) in [
        ("bfloat16", 2, "<bfloat16", ">bfloat16"),
        (
            "complex_bfloat16",
            4,
            "<complex_bfloat16",
            ">complex_bfloat16",
        ),
        ("complex_float16", 4, "<complex_float16", ">complex_float16"),
        (
            "complex_float8_e4m3",
            2,
            "complex_float8_e4m3",
            "complex_float8_e4m3",
        ),
        (
            "complex_float6_e3m2fn",
            2,
            "complex_float6_e3m2fn",
            "complex_float6_e3m2fn",
        ),
        (
            "complex_float4_e2m1fn",
            2,
            "complex_float4_e2m1fn",
            "complex_float4_e2m1fn",
        ),
        ("float8_e4m3", 1, "float8_e4m3", "float8_e4m3"),
        ("float8_e5m2fnuz", 1, "float8_e5m2fnuz", "float8_e5m2fnuz"),
        ("float6_e2m3fn", 1, "float6_e2m3fn", "float6_e2m3fn"),
        ("float4_e2m1fn", 1, "float4_e2m1fn", "float4_e2m1fn"),
        ("int2", 1, "int2", "int2"),
        ("int4", 1, "int4", "int4"),
        ("uint2", 1, "uint2", "uint2"),
        ("uint4", 1, "uint4", "uint4"),
    ] {
        for (element, is_big) in [(little, false), (big, true)] {
            let found = parsed(&format!("{name:?}"), is_big);
            assert_eq!(
                (found.dtype.kind(), found.dtype.size()),
                (&DTypeKind::Void, size),
                "{name}"
            );
            assert_eq!(
                found.dtype.is_big_endian(),
                is_big && little != big,
                "{name}"
            );
            assert_eq!(
                (found.numpy, found.element.as_deref()),
                (None, Some(element)),
                "{name}"
            );
        }
    }
}

#[test]
fn fields_of_structs_have_the_byte_order_of_the_chain() {
    let pairs = r#"{"fields":[["a","int32"],["b",{"name":"structured","configuration":{"fields":[["c","bool"]]}}]]}"#;
    let objects = r#"{"fields":[{"name":"a","data_type":"int32"},
        {"name":"b","data_type":{"name":"struct","configuration":{"fields":[{"name":"c","data_type":"bool"}]}}}]}"#;
    for text in [extension("structured", pairs), extension("struct", objects)] {
        let little = parsed(&text, false);
        assert_eq!(
            little.numpy,
            Some(json!([["a", "<i4"], ["b", [["c", "|b1"]]]]))
        );
        assert_eq!((little.dtype.size(), little.element), (5, None));
        let big = json!([["a", ">i4"], ["b", [["c", "|b1"]]]]);
        assert_eq!(parsed(&text, true).dtype, DType::parse(&big).unwrap());
        assert_eq!(parsed(&text, true).numpy, Some(big));
    }
    let opaque = parsed(
        &extension("struct", r#"{"fields":[["a","bfloat16"],["b","float64"]]}"#),
        false,
    );
    assert_eq!((opaque.dtype.size(), opaque.numpy), (10, None));
}

#[test]
fn bad_data_types_are_refused() {
    let damaged = [
        "3".to_string(),
        "null".to_string(),
        "NaN".to_string(),
        "{}".to_string(),
        r#"[["a","<i4"]]"#.to_string(),
        r#"{"name":"int8","configuration":[]}"#.to_string(),
        r#"{"name":"int8","must_understand":1}"#.to_string(),
        r#""r12""#.to_string(),
        r#""r0""#.to_string(),
        r#""r99999999999""#.to_string(),
        r#""r17179869184""#.to_string(),
        r#""r99999999999999999999999""#.to_string(),
        r#""raw_bytes""#.to_string(),
        extension("raw_bytes", "{}"),
        extension("raw_bytes", r#"{"length_bytes":0}"#),
        extension("raw_bytes", r#"{"length_bytes":1.5}"#),
        extension("raw_bytes", r#"{"length_bytes":1099511627776}"#),
        extension("null_terminated_bytes", r#"{"length_bytes":-1}"#),
        extension("fixed_length_utf32", r#"{"length_bytes":7}"#),
        extension("fixed_length_utf32", r#"{"length_bytes":1099511627776}"#),
        extension("numpy.datetime64", r#"{"unit":"s"}"#),
        extension(
            "numpy.datetime64",
            r#"{"unit":"fortnight","scale_factor":1}"#,
        ),
        extension("numpy.datetime64", r#"{"unit":"s","scale_factor":0}"#),
        extension(
            "numpy.timedelta64",
            r#"{"unit":"s","scale_factor":2147483648}"#,
        ),
        extension("struct", "{}"),
        extension("struct", r#"{"fields":{}}"#),
        extension("struct", r#"{"fields":[]}"#),
        extension("struct", r#"{"fields":[["a","int8"],["a","int8"]]}"#),
        extension("struct", r#"{"fields":[["","int8"]]}"#),
        extension("struct", r#"{"fields":[["a","int8",[2]]]}"#),
        extension("struct", r#"{"fields":[["a","string"]]}"#),
        extension("struct", r#"{"fields":[{"name":"a"}]}"#),
        extension(
            "struct",
            r#"{"fields":[["a","r17179869176"],["b","r17179869176"]]}"#,
        ),
    ];
    let unsupported = [
        r#""int12""#.to_string(),
        r#""float128""#.to_string(),
        r#""r""#.to_string(),
        r#""""#.to_string(),
        r#""<f4""#.to_string(),
        r#"{"name":"int12","must_understand":false}"#.to_string(),
        r#"{"name":"int8","fallback":"r8"}"#.to_string(),
        extension("int8", r#"{"endian":"big"}"#),
        extension("r16", r#"{"endian":"big"}"#),
        extension("raw_bytes", r#"{"length_bytes":1,"x":1}"#),
        extension("numpy.datetime64", r#"{"unit":"s","scale_factor":1,"x":1}"#),
        extension("struct", r#"{"fields":[["a","int12"]]}"#),
    ];
    let both = damaged.map(|text| (text, Kind::Damaged)).into_iter();
    for (text, kind) in both.chain(unsupported.map(|text| (text, Kind::Unsupported))) {
        let error = DataType::parse(&value(&text), false).expect_err(&text);
        assert_eq!(error.kind(), kind, "{text}: {error}");
        assert!(error.message().starts_with("data_type: "), "{error}");
    }
}

#[test]
fn dtypes_of_v2_have_a_v3_name() {
    for (name, configuration, little, big) in SPELLINGS {
        let is_alias = name.starts_with("complex_") || name.starts_with('r') && name != "raw_bytes";
        if is_alias || little == "|O" {
            continue;
        }
        let expected = match configuration {
            "" | "{}" => name.into(),
            _ => value(&extension(name, configuration).replace('μ', "u")),
        };
        for (spelling, is_big) in [(little, false), (big, big.starts_with('>'))] {
            let found = name_of(&DType::parse_str(spelling).unwrap(), &spelling.into());
            assert_eq!(found, Some((expected.clone(), is_big)), "{spelling}");
        }
    }
}

#[test]
fn structs_of_one_byte_order_have_a_v3_name() {
    let name_of = |spelled: Value| name_of(&DType::parse(&spelled).unwrap(), &spelled);
    let expected = json!({"name": "struct", "configuration": {"fields": [
        {"name": "a", "data_type": "int32"},
        {"name": "b", "data_type": {"name": "struct", "configuration": {"fields": [
            {"name": "f0", "data_type": {"name": "fixed_length_utf32", "configuration": {"length_bytes": 8}}},
            {"name": "c", "data_type": "bool"},
        ]}}},
    ]}});
    let spelled = |order: &str| {
        json!([
            ["a", format!("{order}i4")],
            ["b", [["", format!("{order}U2")], ["c", "|b1"]]]
        ])
    };
    assert_eq!(name_of(spelled("<")), Some((expected.clone(), false)));
    assert_eq!(name_of(spelled(">")), Some((expected, true)));
    for without in [
        json!([["a", "<i4"], ["b", ">i4"]]),
        json!([["a", "<i4", [2]]]),
        json!([["a", "|O"]]),
        json!([["a", "|V0"]]),
        json!([["", "|i1"], ["f0", "|i1"]]),
        json!("<f16"),
        json!("<c32"),
        json!("|O"),
        json!("|V0"),
        json!("|S0"),
        json!("<U0"),
        json!("<M8[0s]"),
    ] {
        assert_eq!(name_of(without.clone()), None, "{without}");
    }
    // a one-byte item has no byte order, whatever its type string says
    assert_eq!(name_of(json!(">i1")), Some(("int8".into(), false)));
    assert_eq!(name_of(json!("float32")), Some(("float32".into(), false)));
}
