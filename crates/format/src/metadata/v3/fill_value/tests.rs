//! Items are those that zarr-python 3.1.6 makes of the same fill values, except for types and
//! values that it does not read (`r16`, `struct`, null, and types without a NumPy name), and for
//! payloads of NaN, which it loses in part.

use super::*;
use proptest::prelude::*;

fn value(text: &str) -> Value {
    json::parse(text.as_bytes()).unwrap()
}

/// Parses a fill value for a data type; texts of both are JSON.
fn read(data_type: &str, big_endian: bool, fill: &str) -> Option<Vec<u8>> {
    let data_type = value(data_type);
    let parsed = DataType::parse(&data_type, big_endian).unwrap();
    let item = parse(&value(fill), &data_type, &parsed).ok()?.unwrap();
    assert_eq!(item, without_zeros(item.clone()));
    Some(padded(&item, parsed.dtype.size()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

const SECONDS: &str =
    r#"{"name":"numpy.datetime64","configuration":{"unit":"s","scale_factor":1}}"#;
const TENS: &str =
    r#"{"name":"numpy.timedelta64","configuration":{"unit":"us","scale_factor":10}}"#;
const UTF32: &str = r#"{"name":"fixed_length_utf32","configuration":{"length_bytes":8}}"#;
const BYTES4: &str = r#"{"name":"null_terminated_bytes","configuration":{"length_bytes":4}}"#;
const RAW3: &str = r#"{"name":"raw_bytes","configuration":{"length_bytes":3}}"#;
const SMALL_STRUCT: &str = r#"{"name":"struct","configuration":{"fields":[["a","float8_e5m2"]]}}"#;
const STRUCTURED: &str =
    r#"{"name":"structured","configuration":{"fields":[["a","int32"],["b","float64"]]}}"#;
const STRUCT: &str = r#"{"name":"struct","configuration":{"fields":[{"name":"a","data_type":"int16"},
    {"name":"b","data_type":"bfloat16"},{"name":"c","data_type":
    {"name":"struct","configuration":{"fields":[{"name":"d","data_type":"complex64"}]}}}]}}"#;

/// A data type, fill values, and the little-endian item. [`spell`] writes the first fill value.
const ITEMS: [(&str, &[&str], &str); 61] = [
    (r#""bool""#, &["true", "1", "1.0"], "01"),
    (r#""bool""#, &["false", "0", "null"], "00"),
    (r#""int8""#, &["-128"], "80"),
    (r#""int16""#, &["-2", "-2.0"], "feff"),
    (r#""int32""#, &["2147483647"], "ffffff7f"),
    (r#""int32""#, &["1", "1.0", "1e0"], "01000000"),
    (r#""int64""#, &["-9223372036854775808"], "0000000000000080"),
    (r#""int64""#, &["9007199254740993"], "0100000000002000"),
    (r#""uint64""#, &["18446744073709551615"], "ffffffffffffffff"),
    (r#""float16""#, &[r#""NaN""#, "NaN", r#""0x7e00""#], "007e"),
    (r#""float16""#, &[r#""0x7e01""#, r#""0x7E01""#], "017e"),
    (r#""float16""#, &["65504.0", "65519"], "ff7b"),
    (r#""float32""#, &["0.10000000149011612", "0.1"], "cdcccc3d"),
    (r#""float32""#, &[r#""NaN""#, r#""0x7fc00000""#], "0000c07f"),
    (r#""float32""#, &[r#""0x7fc00001""#], "0100c07f"),
    (r#""float32""#, &[r#""0xffc00000""#], "0000c0ff"),
    (r#""float32""#, &[r#""0x7f800001""#], "0100807f"),
    (r#""float32""#, &[r#""-Infinity""#, "-Infinity"], "000080ff"),
    (
        r#""float32""#,
        &["9.999999747378752e-6", "1e-5"],
        "acc52737",
    ),
    (r#""float32""#, &["0.0", "0", "null", "1e-60"], "00000000"),
    (r#""float64""#, &["-0.0"], "0000000000000080"),
    (r#""float64""#, &["1e22"], "92d54d06cff08044"),
    (r#""float64""#, &["5e-324"], "0100000000000000"),
    (
        r#""float64""#,
        &["1.0", "1", r#""0x3ff0000000000000""#],
        "000000000000f03f",
    ),
    (
        r#""float64""#,
        &["1e16", "10000000000000000"],
        "0080e03779c34143",
    ),
    (r#""float64""#, &[r#""NaN""#], "000000000000f87f"),
    (
        r#""complex64""#,
        &[r#"["NaN",1.5]"#, r#"["0x7fc00000","0x3fc00000"]"#],
        "0000c07f0000c03f",
    ),
    (
        r#""complex_float32""#,
        &[r#"[1.0,"Infinity"]"#, "[1,Infinity]"],
        "0000803f0000807f",
    ),
    (
        r#""complex128""#,
        &["[0.0,-0.0]"],
        "00000000000000000000000000000080",
    ),
    (r#""r16""#, &["[1,255]", r#""Af8=""#], "01ff"),
    (RAW3, &[r#""YWJj""#, "[97,98,99]"], "616263"),
    (RAW3, &[r#""AAAA""#, "null"], "000000"),
    (BYTES4, &[r#""YWI=""#, r#""YWIA""#], "61620000"),
    (BYTES4, &[r#""""#, "null"], "00000000"),
    (UTF32, &[r#""a""#], "6100000000000000"),
    (UTF32, &[r#""ö🦀""#], "f600000080f90100"),
    (UTF32, &[r#""""#], "0000000000000000"),
    (
        SECONDS,
        &["-9223372036854775808", r#""NaT""#],
        "0000000000000080",
    ),
    (TENS, &["-1"], "ffffffffffffffff"),
    (
        STRUCTURED,
        &[r#""AQAAAAAAAAAAAARA""#, r#"{"a":1,"b":2.5}"#],
        "010000000000000000000440",
    ),
    (
        STRUCT,
        &[
            r#"{"a":0,"b":0.0,"c":{"d":[0.0,0.0]}}"#,
            "null",
            r#""AAAAAAAAAAAAAAAA""#,
        ],
        "000000000000000000000000",
    ),
    (
        STRUCT,
        &[r#"{"a":1,"b":1.0,"c":{"d":[0.0,1.0]}}"#],
        "0100803f000000000000803f",
    ),
    (r#""bfloat16""#, &["1.0", r#""0x3f80""#], "803f"),
    (r#""bfloat16""#, &[r#""NaN""#], "c07f"),
    (r#""bfloat16""#, &[r#""0xffc1""#], "c1ff"),
    (r#""complex_bfloat16""#, &["[1.0,-2.0]"], "803f00c0"),
    (r#""complex_float16""#, &["[1.0,-2.0]"], "003c00c0"),
    (
        r#""complex_float8_e5m2""#,
        &[r#"[1.0,"-Infinity"]"#, r#"["0x3c","0xfc"]"#],
        "3cfc",
    ),
    (r#""complex_float4_e2m1fn""#, &["[0.5,6.0]"], "0107"),
    (r#""float8_e4m3""#, &["1.0", "1", r#""0x38""#], "38"),
    (r#""float8_e4m3""#, &[r#""NaN""#], "7c"),
    (r#""float8_e5m2""#, &[r#""-Infinity""#], "fc"),
    (r#""float8_e8m0fnu""#, &["1.0"], "7f"),
    (
        r#""float8_e8m0fnu""#,
        &["5.877471754111438e-39", "0.0", "0"],
        "00",
    ),
    (r#""float6_e3m2fn""#, &["-0.0625"], "21"),
    (r#""float4_e2m1fn""#, &["6.0"], "07"),
    (SMALL_STRUCT, &[r#"{"a":1.0}"#, r#"{"a":"0x3c"}"#], "3c"),
    (r#""int4""#, &["-8"], "f8"),
    (r#""int4""#, &["7"], "07"),
    (r#""int2""#, &["-1"], "ff"),
    (r#""uint4""#, &["15"], "0f"),
];

#[test]
fn fill_values_stand_for_items() {
    for (data_type, fills, expected) in ITEMS {
        for fill in fills {
            assert_eq!(
                read(data_type, false, fill)
                    .map(|item| hex(&item))
                    .as_deref(),
                Some(expected),
                "{data_type} {fill}"
            );
        }
        let data_type = value(data_type);
        let parsed = DataType::parse(&data_type, false).unwrap();
        let item = without_zeros(read(&data_type.to_string(), false, fills[0]).unwrap());
        assert_eq!(
            spell(&item, &data_type, &parsed),
            Some(value(fills[0])),
            "{data_type}"
        );
    }
}

#[test]
fn big_endian_items_are_reversed_by_number() {
    for (data_type, fill, expected) in [
        (r#""int32""#, "1", "00000001"),
        (r#""float32""#, r#""0x7fc00001""#, "7fc00001"),
        (r#""bfloat16""#, "1.0", "3f80"),
        (r#""complex64""#, r#"["NaN",1.5]"#, "7fc000003fc00000"),
        (r#""complex_bfloat16""#, "[1.0,-2.0]", "3f80c000"),
        (r#""r16""#, "[1,255]", "01ff"),
        (UTF32, r#""ö🦀""#, "000000f60001f980"),
        (SECONDS, r#""NaT""#, "8000000000000000"),
        (
            STRUCT,
            r#"{"a":1,"b":1.0,"c":{"d":[0.0,1.0]}}"#,
            "00013f80000000003f800000",
        ),
    ] {
        assert_eq!(
            read(data_type, true, fill)
                .map(|item| hex(&item))
                .as_deref(),
            Some(expected),
            "{data_type}"
        );
    }
}

#[test]
fn values_that_do_not_fit_are_errors() {
    for (data_type, fills) in [
        (r#""bool""#, vec!["2", r#""true""#, "[]"]),
        (
            r#""int8""#,
            vec![
                "128", "-129", "true", r#""1""#, "1.5", "NaN", "{}", r#""NaT""#,
            ],
        ),
        (r#""int32""#, vec!["2147483648", "1e30", r#""0x00000001""#]),
        (
            r#""int64""#,
            vec!["9223372036854775808", "9007199254740993.0e1", "1e400"],
        ),
        (r#""uint64""#, vec!["-1", "18446744073709551616"]),
        (
            r#""float16""#,
            vec!["65520", "1e6", r#""0x7e0""#, r#""0x007e00""#],
        ),
        (
            r#""float32""#,
            vec![
                "1e39",
                "-1e39",
                "1e400",
                r#""0x7fc0""#,
                r#""0x+fc00000""#,
                r#""1.5""#,
                "true",
                "[1.0]",
            ],
        ),
        (
            r#""float32""#,
            vec![r#""nan""#, r#""inf""#, r#""7fc00000""#, r#""AAAAAA==""#],
        ),
        (r#""float64""#, vec!["1e400", "-1e400", r#""0x7fc00000""#]),
        (
            r#""complex64""#,
            vec![
                "1.0",
                "[1.0]",
                "[1.0,2.0,3.0]",
                "[1e39,0.0]",
                r#"["0x7fc0",0]"#,
            ],
        ),
        (
            r#""r16""#,
            vec![
                "[1]",
                "[1,256]",
                "[1,-1]",
                "[1,2,3]",
                r#""AA==""#,
                "1",
                "[1,1.5]",
            ],
        ),
        (RAW3, vec![r#""YWI=""#, r#""YWJjZA==""#, "0", r#""a""#]),
        (BYTES4, vec![r#""YWJjZGU=""#, "0"]),
        (UTF32, vec![r#""abc""#, "0", "[97]"]),
        (
            SECONDS,
            vec!["9223372036854775808", "1.5", r#""2020-01-01""#, r#""nat""#],
        ),
        (
            STRUCTURED,
            vec![
                r#""AQAA""#,
                r#"{"a":1}"#,
                r#"{"a":1,"b":2.5,"c":0}"#,
                r#"{"a":1,"c":0}"#,
                "0",
                "[1,2.5]",
            ],
        ),
        (
            STRUCT,
            vec![
                r#"{"a":null,"b":0,"c":{"d":[0,0]}}"#,
                r#"{"a":32768,"b":0,"c":{"d":[0,0]}}"#,
            ],
        ),
        (
            r#""bfloat16""#,
            vec!["3.4e39", r#""0x3f800000""#, r#""Inf""#],
        ),
        (r#""float8_e4m3""#, vec!["1e3", r#""0x038""#, r#""1.0""#]),
        (r#""float8_e4m3""#, vec!["248.0", "-248.0"]),
        (r#""float8_e4m3fn""#, vec!["-500.0", r#""Infinity""#]),
        (r#""float8_e5m2fnuz""#, vec![r#""-Infinity""#]),
        (r#""float8_e8m0fnu""#, vec!["-1.0", r#""Infinity""#]),
        (
            r#""float4_e2m1fn""#,
            vec!["7.5", r#""NaN""#, r#""Infinity""#],
        ),
        (r#""int4""#, vec!["8", "-9"]),
        (r#""int2""#, vec!["2", "-3"]),
        (r#""uint2""#, vec!["4", "-1"]),
    ] {
        for fill in fills {
            assert_eq!(read(data_type, false, fill), None, "{data_type} {fill}");
        }
    }
}

#[test]
fn fill_values_of_variable_length_are_checked() {
    for (data_type, fits, others) in [
        (
            r#""string""#,
            vec![r#""""#, r#""x""#, "null"],
            vec!["0", "[]", "NaN"],
        ),
        (
            r#""bytes""#,
            vec![r#""""#, r#""YWI=""#, "[]", "[0,255]", "null"],
            vec!["0", "[256]", "[-1]", r#""a""#],
        ),
        (r#""variable_length_bytes""#, vec![r#""YWI=""#], vec!["{}"]),
    ] {
        let data_type = value(data_type);
        let parsed = DataType::parse(&data_type, false).unwrap();
        for fill in fits {
            assert_eq!(parse(&value(fill), &data_type, &parsed), Ok(None), "{fill}");
        }
        for fill in others {
            assert!(parse(&value(fill), &data_type, &parsed).is_err(), "{fill}");
        }
        assert_eq!(spell(b"", &data_type, &parsed), Some("".into()));
    }
}

#[test]
fn large_items_take_no_memory() {
    let huge = r#"{"name":"null_terminated_bytes","configuration":{"length_bytes":1000000000}}"#;
    let data_type = value(huge);
    let parsed = DataType::parse(&data_type, false).unwrap();
    assert_eq!(
        parse(&value(r#""YWI=""#), &data_type, &parsed),
        Ok(Some(b"ab".to_vec()))
    );
    assert_eq!(spell(b"", &data_type, &parsed), Some(Value::Null));
    assert_eq!(spell(b"ab", &data_type, &parsed), None);
    let data_type = value(&format!(
        r#"{{"name":"struct","configuration":{{"fields":[["a",{huge}],["b","int8"]]}}}}"#
    ));
    let parsed = DataType::parse(&data_type, false).unwrap();
    assert_eq!(
        parse(&value(r#"{"a":"","b":0}"#), &data_type, &parsed),
        Ok(Some(Vec::new()))
    );
    assert!(parse(&value(r#"{"a":"","b":1}"#), &data_type, &parsed).is_err());
}

#[test]
fn items_without_a_fill_value_are_not_spelled() {
    for (data_type, item) in [
        (r#""bool""#, &[2u8][..]),
        (r#""int4""#, &[8]),
        (UTF32, &[0, 0xd8, 0, 0]),
        (UTF32, &[0, 0, 0, 1]),
    ] {
        let data_type = value(data_type);
        let parsed = DataType::parse(&data_type, false).unwrap();
        assert_eq!(spell(item, &data_type, &parsed), None, "{data_type}");
    }
}

/// Data types of which every item has a fill value.
const ROUND_TRIPS: [&str; 24] = [
    r#""int8""#,
    r#""int16""#,
    r#""int32""#,
    r#""int64""#,
    r#""uint8""#,
    r#""uint16""#,
    r#""uint32""#,
    r#""uint64""#,
    r#""float16""#,
    r#""float32""#,
    r#""float64""#,
    r#""complex64""#,
    r#""complex128""#,
    r#""bfloat16""#,
    r#""complex_bfloat16""#,
    r#""complex_float16""#,
    r#""complex_float8_e4m3""#,
    r#""complex_float8_e8m0fnu""#,
    r#""r24""#,
    RAW3,
    BYTES4,
    SECONDS,
    STRUCTURED,
    STRUCT,
];

proptest! {
    #[test]
    fn every_item_is_read_as_it_was_spelled(
        which in 0..ROUND_TRIPS.len(),
        is_big in any::<bool>(),
        bytes in prop::collection::vec(prop_oneof![Just(0u8), Just(0x7f), Just(0xff), any::<u8>()], 16),
    ) {
        let data_type = value(ROUND_TRIPS[which]);
        let parsed = DataType::parse(&data_type, is_big).unwrap();
        let item = without_zeros(bytes[..parsed.dtype.size()].to_vec());
        let spelled = spell(&item, &data_type, &parsed).expect("a fill value");
        // as the text of a document
        let spelled = value(&json::write_strict(&spelled));
        prop_assert_eq!(parse(&spelled, &data_type, &parsed).unwrap(), Some(item));
    }

    #[test]
    fn integers_of_few_bits_and_texts_are_read_as_spelled(is_big in any::<bool>(), text in ".{0,2}", byte in any::<u8>()) {
        for (name, bits) in [("int2", 2), ("int4", 4)] {
            let data_type = Value::from(name);
            let parsed = DataType::parse(&data_type, is_big).unwrap();
            let item = without_zeros(vec![((byte << (8 - bits)) as i8 >> (8 - bits)) as u8]);
            let spelled = spell(&item, &data_type, &parsed).expect("a fill value");
            prop_assert_eq!(parse(&spelled, &data_type, &parsed).unwrap(), Some(item));
        }
        let data_type = value(UTF32);
        let parsed = DataType::parse(&data_type, is_big).unwrap();
        let item = parse(&text.trim_end_matches('\0').into(), &data_type, &parsed).unwrap().unwrap();
        let spelled = spell(&item, &data_type, &parsed).expect("a fill value");
        prop_assert_eq!(spelled, Value::from(text.trim_end_matches('\0')));
    }
}
