//! Type strings, lists of fields, and their canonical spelling.

use super::*;

#[test]
fn type_strings_are_parsed_as_by_numpy() {
    for (text, size, big) in [
        ("<f4", 4, false),
        (">i2", 2, true),
        ("|b1", 1, false),
        ("<u1", 1, false),
        ("<U5", 20, false),
        (">M8[25s]", 8, true),
        ("|S0", 0, false),
        ("float32", 4, false),
        ("i8", 8, false),
        ("|O", 8, false),
        ("<f16", 16, false),
    ] {
        let d = DType::parse_str(text).unwrap();
        assert_eq!((d.size(), d.is_big_endian()), (size, big), "{text}");
    }
    for text in [
        "",
        "<",
        "<f-8",
        "<z4",
        "<u16",
        "|V99999999999",
        "|S4611686018427387904",
        "<i٤",
        "<f4[ns]",
        "<M8[q]",
        "<i",
        "é",
        "<b2",
        "f 4",
    ] {
        assert!(DType::parse_str(text).is_err(), "{text}");
    }
}

#[test]
fn lists_of_fields_are_structs() {
    let d = DType::parse(
        &json::parse(br#"[["x","<u2",[2]],["y",[["z","<f4"],["w","|b1"]]],["t","<M8[s]"]]"#)
            .unwrap(),
    )
    .unwrap();
    assert_eq!(d.size(), 17);
    for bad in [
        r#"[]"#,
        r#"[["a"]]"#,
        r#"[["a","<i4"],["a","<i4"]]"#,
        r#"[["a","<i8",[4611686018427387904,4]]]"#,
        r#"[["a","<i4",-1]]"#,
        "7",
        "null",
        r#"[["a","|V2147483647"],["b","|u1"]]"#,
    ] {
        assert!(
            DType::parse(&json::parse(bad.as_bytes()).unwrap()).is_err(),
            "{bad}"
        );
    }
}

#[test]
fn dtypes_have_a_canonical_spelling() {
    for (spelled, expected) in [
        (r#""float32""#, r#""<f4""#),
        (r#""f4""#, r#""<f4""#),
        (r#""=i8""#, r#""<i8""#),
        (r#"">f8""#, r#"">f8""#),
        (r#""bool""#, r#""|b1""#),
        (r#""<u1""#, r#""|u1""#),
        (r#""a7""#, r#""|S7""#),
        (r#"">U3""#, r#"">U3""#),
        (r#""object""#, r#""|O""#),
        (r#""M8[ns]""#, r#""<M8[ns]""#),
        (r#"">m8[025μs]""#, r#"">m8[25us]""#),
        (r#""M8[1s]""#, r#""<M8[s]""#),
        (
            r#"[["a","int16",3],["","S2",[]]]"#,
            r#"[["a","<i2",[3]],["f1","|S2"]]"#,
        ),
        (
            r#"[["a",[["b","bool"]],[2,2]]]"#,
            r#"[["a",[["b","|b1"]],[2,2]]]"#,
        ),
    ] {
        let spelled = json::parse(spelled.as_bytes()).unwrap();
        let expected = json::parse(expected.as_bytes()).unwrap();
        assert_eq!(DType::canonical_json(&spelled).unwrap(), expected);
        assert_eq!(
            DType::parse(&spelled).unwrap(),
            DType::parse(&expected).unwrap(),
            "{expected}"
        );
    }
    for bad in [r#""i3""#, r#"[["f1","<i4"],["","<i4"]]"#, "7"] {
        assert!(
            DType::canonical_json(&json::parse(bad.as_bytes()).unwrap()).is_err(),
            "{bad}"
        );
    }
}
