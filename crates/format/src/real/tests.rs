use super::*;
use zarrfs_base::json;

fn real(name: &str) -> RealType {
    RealType::parse(name).unwrap()
}

fn scalar(name: &str, text: &str) -> Option<u64> {
    real(name).scalar(&json::parse(text.as_bytes()).unwrap())
}

#[test]
fn types_are_parsed_from_their_names() {
    for (name, size) in [
        ("|i1", 1),
        ("<u8", 8),
        (">f2", 2),
        ("<bfloat16", 2),
        ("float8_e4m3", 1),
        ("int4", 1),
    ] {
        assert_eq!(real(name).size, size, "{name}");
    }
    for name in [
        "|b1",
        "<c8",
        "<M8[s]",
        "<U1",
        "<f16",
        "|V1",
        "float7",
        "complex_bfloat16",
        "",
    ] {
        assert_eq!(RealType::parse(name), None, "{name}");
    }
    assert_eq!(real(">bfloat16").load(&[0x3f, 0x80]), 0x3f80);
    let mut item = [0; 4];
    real(">f4").store(0x0102_0304, &mut item);
    assert_eq!(item, [1, 2, 3, 4]);
}

#[test]
fn scalars_are_fill_values() {
    assert_eq!(scalar("|i1", "-128"), Some(i64::from(i8::MIN) as u64));
    assert_eq!(scalar("|i1", "128"), None);
    assert_eq!(scalar("<u8", "18446744073709551615"), Some(u64::MAX));
    assert_eq!(scalar("<i8", "9007199254740993"), Some(9007199254740993));
    assert_eq!(scalar("|u1", "1.0"), Some(1));
    assert_eq!(
        (
            scalar("|u1", "1.5"),
            scalar("|u1", r#""NaN""#),
            scalar("uint4", "16")
        ),
        (None, None, None)
    );
    assert_eq!(scalar("<f4", "0.1"), Some(0x3dcc_cccd));
    assert_eq!(scalar("<f4", r#""NaN""#), Some(0x7fc0_0000));
    assert_eq!(scalar(">f4", r#""0x7fc00001""#), Some(0x7fc0_0001));
    assert_eq!(scalar("<f2", r#""-Infinity""#), Some(0xfc00));
    assert_eq!(scalar("<f2", r#""+Infinity""#), Some(0x7c00));
    assert_eq!(scalar("float8_e4m3fn", "448"), Some(0x7e));
    for text in [
        r#""0x7fc0""#,
        r#""0x+fc00001""#,
        "1e39",
        "1e999",
        r#""1""#,
        "true",
        "null",
        "[]",
    ] {
        assert_eq!(scalar("<f4", text), None, "{text}");
    }
    assert_eq!(
        (
            scalar("float8_e4m3fn", r#""Infinity""#),
            scalar("float4_e2m1fn", r#""NaN""#)
        ),
        (None, None)
    );
}

#[test]
fn types_that_hold_all_integers_of_another_are_recognized() {
    for (narrow, wide, expected) in [
        ("|u1", "<i2", true),
        ("|u1", "|i1", false),
        ("|i1", "<u8", false),
        ("<i4", "<i4", true),
        ("|u1", "<bfloat16", true),
        ("<i2", "<bfloat16", false),
        ("<u2", "<f4", true),
        ("<i4", "<f4", false),
        ("<u4", "<f8", true),
        ("<i8", "<f8", false),
        ("|i1", "<f2", true),
        ("int4", "float8_e4m3", true),
        ("uint4", "float4_e2m1fn", false),
        ("uint2", "float8_e8m0fnu", false),
        ("<f4", "<f8", false),
    ] {
        assert_eq!(
            real(narrow).is_integer_within(real(wide)),
            expected,
            "{narrow} {wide}"
        );
    }
}
