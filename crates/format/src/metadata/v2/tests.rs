use super::*;

fn doc(change: &str, value: &str) -> Vec<u8> {
    let mut v = json::parse(
        br#"{"zarr_format":2,"shape":[10,6],"chunks":[4,4],"dtype":"<i4","compressor":{"id":"zlib","level":1},
        "fill_value":0,"order":"F","filters":null}"#,
    )
    .unwrap();
    v[change] = json::parse(value.as_bytes()).unwrap();
    json::write(&v).into_bytes()
}

#[test]
fn a_document_and_its_shown_document() {
    let m = ArrayMetadata::parse(&doc("extra", "1")).unwrap();
    assert_eq!(
        (m.shape.as_slice(), m.order, m.separator),
        (&[10, 6][..], Order::F, None)
    );
    assert_eq!(m.compressor.as_ref().unwrap().id, "zlib");
    assert_eq!(
        m.shown_document().replace(['\n', ' '], ""),
        r#"{"chunks":[4,4],"compressor":null,"dimension_separator":".","dtype":"<i4","fill_value":0,"filters":null,"order":"F","shape":[10,6],"zarr_format":2}"#
    );
}

#[test]
fn invalid_documents_are_errors() {
    for (field, value) in [
        ("shape", "[4611686018427387904,4611686018427387904]"),
        ("shape", "[-1,6]"),
        ("shape", "[10.5,6]"),
        ("shape", "[1e30,6]"),
        ("shape", "\"10,6\""),
        ("shape", "[10]"),
        ("chunks", "[0,4]"),
        ("chunks", "[1099511627776,1099511627776]"),
        ("chunks", "[65536,8192]"),
        ("chunks", "null"),
        ("dtype", "null"),
        ("dtype", "\"|O\""),
        ("dtype", "[[\"a\",\"|O\"]]"),
        ("order", "\"N\""),
        ("zarr_format", "9"),
        ("fill_value", "\"x\""),
        ("compressor", "\"zlib\""),
        ("filters", "[{}]"),
        ("dimension_separator", "\":\""),
    ] {
        assert!(
            ArrayMetadata::parse(&doc(field, value)).is_err(),
            "{field} {value}"
        );
    }
}

#[test]
fn flat_sizes_are_products_of_lengths() {
    for (shape, dtype, expected) in [
        ("[10,6]", "<i4", 240),
        ("[]", "<i4", 4),
        ("[4611686018427387904,0]", "<i4", 0),
        ("[1152921504606846976,1]", "<i4", 1 << 62),
        ("[4611686018427387904,4611686018427387904]", "|S0", 0),
    ] {
        let chunks = json::write(
            &vec![
                1;
                json::parse(shape.as_bytes())
                    .unwrap()
                    .as_array()
                    .unwrap()
                    .len()
            ]
            .into(),
        );
        let text = format!(
            r#"{{"zarr_format":2,"shape":{shape},"chunks":{chunks},"dtype":"{dtype}","compressor":null,"fill_value":null,
            "order":"C","filters":null}}"#
        );
        assert_eq!(
            ArrayMetadata::parse(text.as_bytes()).unwrap().flat_size(),
            expected,
            "{shape} {dtype}"
        );
    }
}

#[test]
fn lenient_documents_are_accepted() {
    for (field, value) in [
        ("shape", "[0,4611686018427387904]"),
        ("shape", "[1152921504606846976,1]"),
        ("fill_value", "null"),
        ("filters", "{}"),
        ("filters", "[]"),
        ("dimension_separator", "\"/\""),
        ("dimension_separator", "null"),
    ] {
        assert!(
            ArrayMetadata::parse(&doc(field, value)).is_ok(),
            "{field} {value}"
        );
    }
}
