//! Categories of CF and of AnnData. `tests/python/strings.py` compares those that AnnData's format
//! names in each file.

use super::*;

fn named(described: &Described) -> Vec<(i128, &str)> {
    described
        .categories
        .iter()
        .map(|category| (category.value, category.name.as_str()))
        .collect()
}

/// Adds the categories of an array `codes` with this dtype, as text of a fixed length.
fn ann_data(dtype: &str, kind: &str, names: &[[u8; 4]]) -> Case {
    case()
        .value("c/.zgroup", r#"{"zarr_format":2}"#)
        .value("c/.zattrs", &format!(r#"{{"encoding-type":"{kind}"}}"#))
        .line("c/categories", "|S4", names, "{}")
        .array("c/codes", dtype, &[9], "{}")
        .array("c/other", dtype, &[9], "{}")
}

#[test]
fn flags_of_cf_are_categories() {
    let with = |dtype: &str, attributes: &str| case().array("a", dtype, &[2], attributes);
    let flags = r#"{"flag_values":[1,2,-1],"flag_meanings":" clear  cloudy unknown"}"#;
    assert_eq!(
        named(&with("|i1", flags).describe("a")),
        [(1, "clear"), (2, "cloudy"), (-1, "unknown")]
    );
    for (dtype, attributes) in [
        ("<f4", flags),
        ("|i1", r#"{"flag_values":[1,2],"flag_meanings":"clear"}"#),
        ("|i1", r#"{"flag_values":[1.5],"flag_meanings":"clear"}"#),
        ("|i1", r#"{"flag_masks":[1],"flag_meanings":"clear"}"#),
        ("|i1", r#"{"flag_values":[1],"flag_meanings":["clear"]}"#),
    ] {
        assert_eq!(named(&with(dtype, attributes).describe("a")), []);
    }
}

#[test]
fn codes_of_ann_data_are_categories() {
    let case = ann_data("|i1", "categorical", &[*b"B c\0", *b"NK\0\0"]);
    let codes = case.describe("c/codes");
    assert_eq!(named(&codes), [(0, "B c"), (1, "NK")]);
    assert_eq!(codes.nodata, Some(MetadataNumber::Int(-1)));
    let sources: Vec<&str> = codes.sources.iter().map(Key::as_str).collect();
    assert_eq!(sources, ["c", "c/categories"]);
    assert_eq!(named(&case.describe("c/other")), []);
    let unsigned = ann_data("|u1", "categorical", &[*b"NK\0\0"]).describe("c/codes");
    assert_eq!((named(&unsigned).len(), unsigned.nodata), (1, None));
    let many = vec![*b"NK\0\0"; 1025];
    for case in [
        ann_data("|i1", "array", &[*b"NK\0\0"]),
        ann_data("<i2", "categorical", &many),
        ann_data("|i1", "categorical", &[*b"NK\0\0"]).array("c/categories", "<i8", &[2], "{}"),
    ] {
        let codes = case.describe("c/codes");
        assert_eq!((named(&codes).len(), codes.nodata), (0, None));
    }
}

#[test]
fn names_that_are_no_words_make_no_flags() {
    for (names, expected) in [
        (&[*b"B c\0", *b"NK\0\0"][..], Some("B_c NK")),
        (&[*b"B c\0", *b"B_c\0"], None),
        (&[*b"B c\0", *b"\0\0\0\0"], None),
        (&[*b"B\x01c\0"], None),
    ] {
        let case = ann_data("|i1", "categorical", names);
        let array = case.map.array("c/codes");
        let mut attributes = json::Object::default();
        let mut sources = Vec::new();
        add_flags(&case.map, &array, &mut attributes, &mut sources);
        let meanings = attributes.get("flag_meanings").and_then(json::text);
        assert_eq!(meanings, expected);
        assert_eq!(sources.len(), if expected.is_some() { 2 } else { 0 });
    }
}
