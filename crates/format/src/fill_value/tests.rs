//! Fill values as zarr-python reads and writes them.

use super::*;
use proptest::prelude::*;

fn dtype(text: &str) -> DType {
    DType::parse(&json::parse(text.as_bytes()).unwrap()).unwrap()
}

/// Returns the whole item, with the zero bytes at its end.
fn item_of(of: &str, value: &str) -> Option<Vec<u8>> {
    let dtype = dtype(of);
    let mut item = dtype
        .parse_fill_value(&json::parse(value.as_bytes()).unwrap())
        .ok()
        .flatten()?;
    assert!(item.last() != Some(&0));
    item.resize(dtype.size(), 0);
    Some(item)
}

#[test]
fn huge_items_take_no_memory() {
    for (dtype, value, len) in [
        ("|S2147483647", "\"\"", 0),
        ("<U500000000", "\"x\"", 1),
        ("|V2147483647", "0", 0),
    ] {
        let value = json::parse(value.as_bytes()).unwrap();
        let item = DType::parse_str(dtype)
            .unwrap()
            .parse_fill_value(&value)
            .unwrap()
            .unwrap();
        assert_eq!((item.len(), item.capacity() < 100), (len, true), "{dtype}");
    }
}

// expected bytes: numpy.array(decode_fill_value(...), dtype).tobytes() of zarr-python 2.18
#[test]
fn fill_values_read_as_numpy_reads_them() {
    for (dtype, value, hex) in [
        ("\"<i4\"", "\"7\"", "07000000"),
        ("\"<i4\"", "0.0", "00000000"),
        ("\">i4\"", "-2", "fffffffe"),
        ("\"<u8\"", "18446744073709551615", "ffffffffffffffff"),
        ("\"<f4\"", "\"NaN\"", "0000c07f"),
        ("\"<f4\"", "NaN", "0000c07f"),
        ("\"<f4\"", "\"0x7fc00001\"", "0100c07f"),
        ("\">f2\"", "\"-Infinity\"", "fc00"),
        ("\"<f4\"", "1e400", "0000807f"),
        ("\"|b1\"", "true", "01"),
        (
            "\">c16\"",
            "[1.5, -2.5]",
            "3ff8000000000000c004000000000000",
        ),
        (
            "\">c16\"",
            "[\"NaN\", \"Infinity\"]",
            "7ff80000000000007ff0000000000000",
        ),
        ("\"|S1\"", "0", "30"),
        ("\"|S3\"", "1e10", "313030"),
        ("\"|S5\"", "3.5e2", "3335302e30"),
        ("\"|S7\"", "1e-7", "31652d30370000"),
        ("\"|S5\"", "1.5e300", "312e35652b"),
        ("\"|S3\"", "1e400", "696e66"),
        ("\"<U2\"", "0", "3000000000000000"),
        ("\">U2\"", "\"中中中\"", "00004e2d00004e2d"),
        ("\"|S7\"", "\"fn5+fn5+fg==\"", "7e7e7e7e7e7e7e"),
        ("\"|S3\"", "\"abc\"", "616263"),
        ("\"<M8[ns]\"", "1000", "e803000000000000"),
        ("\"<m8[s]\"", "\"NaT\"", "0000000000000080"),
        ("\"|V3\"", "\"AQL/\"", "0102ff"),
        ("\"|V3\"", "\"AQ==\"", "010000"),
        ("\"|V1\"", "\"AQL/\"", "01"),
        ("\"<f16\"", "1.0", "0000000000000080ff3f000000000000"),
    ] {
        let got =
            item_of(dtype, value).map(|b| b.iter().map(|b| format!("{b:02x}")).collect::<String>());
        assert_eq!(got.as_deref(), Some(hex), "{dtype} {value}");
    }
    assert_eq!(item_of("\"<i4\"", "null"), None);
    for (dtype, value) in [
        ("\"<i4\"", "\"x\""),
        ("\"|u1\"", "256"),
        ("\"<i8\"", "1e30"),
        ("\"<i4\"", "[1]"),
        ("\"<f4\"", "{}"),
        ("\"<c8\"", "[1]"),
        ("\"<M8[s]\"", "1.5"),
    ] {
        assert!(
            self::dtype(dtype)
                .parse_fill_value(&json::parse(value.as_bytes()).unwrap())
                .is_err(),
            "{value}"
        );
    }
}

// expected: the output of zarr.create(fill_value=..., dtype=...) of zarr-python 2.18
#[test]
fn fill_values_are_written_as_zarr_python_writes_them() {
    for (of, given, expected) in [
        (r#""<c16""#, "0", "[0.0,0.0]"),
        (r#"">c8""#, "[1.5,\"NaN\"]", "[\"NaN\",\"NaN\"]"),
        (r#""|V3""#, "0", "\"AAAA\""),
        (r#"[["a","<i2"],["b","|S1"]]"#, "0", "\"AAAA\""),
        (r#""|S4""#, "\"eHk=\"", "\"eHk=\""),
        (r#""|S4""#, "0", "\"MA==\""),
        (r#""<f4""#, "0.1", "0.10000000149011612"),
        (r#"">f2""#, "-Infinity", "\"-Infinity\""),
        (r#""<f16""#, "-2.5", "-2.5"),
        (r#"">i2""#, "\"-7\"", "-7"),
        (r#""<u8""#, "18446744073709551615", "18446744073709551615"),
        (r#""|b1""#, "1", "true"),
        (r#""<M8[s]""#, "\"NaT\"", "-9223372036854775808"),
        (r#"">U3""#, "5", "\"5\""),
    ] {
        let dtype = dtype(of);
        let item = dtype
            .parse_fill_value(&json::parse(given.as_bytes()).unwrap())
            .unwrap()
            .unwrap();
        let value = dtype
            .fill_value_json(&item)
            .unwrap_or_else(|| panic!("{of} {given}"));
        assert_eq!(json::write(&value), expected, "{of} {given}");
    }
    let payload = dtype(r#""<f4""#)
        .parse_fill_value(&"0x7fc00001".into())
        .unwrap()
        .unwrap();
    assert_eq!(dtype(r#""<f4""#).fill_value_json(&payload), None);
    assert_eq!(
        dtype(r#""|V2000000""#).fill_value_json(&[]),
        Some(Value::Null)
    );
    assert_eq!(
        dtype(r#""<U1""#).fill_value_json(&[0, 0xd8]),
        None,
        "a lone surrogate"
    );
}

proptest! {
    #[test]
    fn written_fill_values_read_back_as_the_same_item(
        of in prop::sample::select(vec!["|b1", "|i1", ">i2", "<i8", "|u1", "<u4", ">u8", "<f2", ">f4", "<f8", ">f8",
            "<f16", ">f16", "<c8", ">c16", "<c32", "<m8[s]", ">M8[ns]", "|S5", "<U2", ">U2", "|V7"]),
        bytes in prop::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 32),
    ) {
        let dtype = DType::parse_str(of).unwrap();
        let item = &bytes[..dtype.size()];
        if let Some(value) = dtype.fill_value_json(item) {
            let text = json::write(&value);
            let read = dtype.parse_fill_value(&json::parse(text.as_bytes()).unwrap()).unwrap().unwrap();
            prop_assert!(read == without_zeros(item.to_vec()), "{of} {text}");
        } else {
            let is_exact = matches!(dtype.kind(), DTypeKind::Int | DTypeKind::UInt | DTypeKind::Bytes | DTypeKind::Void | DTypeKind::DateTime);
            prop_assert!(!is_exact, "{of} {item:?}");
        }
    }
}
