//! Strings of any length as [`read_strings`] pads them. `tests/formats/values_text.rs` compares
//! them with those that zarr-python reads.

use super::*;

/// Adds an array of two rows of two strings, with this codec and this chunk.
fn strings(codec: &str, order: &str, chunk: &[u8]) -> Case {
    let case = case();
    let document = format!(
        r#"{{"zarr_format":2,"shape":[2,2],"chunks":[2,2],"dtype":"|O","compressor":null,"fill_value":"é",
        "order":"{order}","filters":[{{"id":"{codec}"}}]}}"#
    );
    case.map.insert("s/.zarray", document);
    if !chunk.is_empty() {
        case.map.insert("s/0.0", chunk);
    }
    case
}

/// Returns the length of the longest string and all of them.
fn read(case: &Case) -> Result<(usize, Arc<[u8]>)> {
    let strings = read_strings(&case.map.array("s"), usize::MAX)?;
    Ok((strings.longest, strings.values))
}

/// Encodes strings as numcodecs' vlen codecs do.
fn vlen(items: &[&[u8]]) -> Vec<u8> {
    let mut bytes = (items.len() as u32).to_le_bytes().to_vec();
    for item in items {
        bytes.extend((item.len() as u32).to_le_bytes());
        bytes.extend(*item);
    }
    bytes
}

#[test]
fn strings_are_padded_in_c_order() {
    let chunk = vlen(&[b"a", b"bcd", b"", b"ef"]);
    for (codec, order, expected) in [
        ("vlen-utf8", "C", b"a\0\0bcd\0\0\0ef\0"),
        ("vlen-bytes", "C", b"a\0\0bcd\0\0\0ef\0"),
        ("vlen-utf8", "F", b"a\0\0\0\0\0bcdef\0"),
    ] {
        let (longest, values) = read(&strings(codec, order, &chunk)).unwrap();
        assert_eq!((longest, &*values), (3, &expected[..]), "{codec} {order}");
    }
    let nested = br#"[["a","bc\u00e9"],[null,"d\n"],"|O",[2,2]]"#;
    let (longest, values) = read(&strings("json2", "C", nested)).unwrap();
    assert_eq!(
        (longest, &*values),
        (4, "a\0\0\0bcé\0\0\0\0d\n\0\0".as_bytes())
    );
    let (longest, values) = read(&strings("vlen-utf8", "C", b"")).unwrap();
    assert_eq!((longest, &*values), (2, "éééé".as_bytes()));
    let (longest, values) =
        read(&strings("vlen-bytes", "C", &vlen(&[b"", b"", b"", b""]))).unwrap();
    assert_eq!((longest, &*values), (1, &[0; 4][..]));
}

#[test]
fn damaged_strings_are_errors() {
    let nested = br#"[["a","b"],["c","d"],"|O",[2,2]]"#;
    let error = read(&strings("json2", "F", nested)).err().unwrap();
    assert_eq!(error.message(), "json2 has no order F");
    let whole = vlen(&[b"a", b"bcd", b"", b"ef"]);
    let many = [&[0xff; 4], &whole[4..]].concat();
    for (codec, chunk, reason) in [
        ("vlen-utf8", &whole[..whole.len() - 1], "cut short"),
        ("vlen-utf8", &whole[..3], "cut short"),
        ("vlen-utf8", &many, "cut short"),
        ("vlen-utf8", &vlen(&[b"a"]), "too few"),
        ("vlen-utf8", &vlen(&[b"\xe4", b"", b"", b""]), "not UTF-8"),
        (
            "vlen-bytes",
            &vlen(&[b"a", b"b\0", b"", b""]),
            "end with zeros",
        ),
        ("json2", br#"[["a","b"],["c",1],"|O",[2,2]]"#, "no strings"),
        (
            "json2",
            br#"[["a","b"],["c",NaN],"|O",[2,2]]"#,
            "no strings",
        ),
        ("json2", br#"["a","b",["c","d"],"|O",[4]]"#, "no strings"),
        ("json2", br#"[["a","b"],["c"],"|O",[2,2]]"#, "too few"),
        ("json2", br#"["|O",[2,2]]"#, "too few"),
        ("json2", b"[\"|O\"]", "not what json2 writes"),
        ("json2", b"{}", "not what json2 writes"),
        ("json2", b"[", "not valid JSON"),
        ("vlen-array", &whole, "no strings"),
        ("pickle", b"\x80\x04]q\0.", "no strings"),
    ] {
        let error = read(&strings(codec, "C", chunk)).err().unwrap().to_string();
        assert!(error.contains(reason), "{codec} {chunk:x?}: {error}");
    }
}

#[test]
fn strings_are_labels_of_their_dimension() {
    let named = r#"{"_ARRAY_DIMENSIONS":["band","x"]}"#;
    let labels = |case: Case| {
        let described = case.array("a", "|u1", &[2, 4], named).describe("a");
        assert!(described.axes[0].is_unread);
        described.axes[0].labels.to_vec()
    };
    let ucs4 = |text: [char; 2]| {
        let [first, second] = text.map(|c| u32::from(c).to_be_bytes());
        let mut item = [0; 8];
        item[..4].copy_from_slice(&first);
        item[4..].copy_from_slice(&second);
        item
    };
    let text = [ucs4(['é', '\0']), ucs4(['n', 'r'])];
    assert_eq!(labels(case().line("band", ">U2", &text, "{}")), ["é", "nr"]);
    let bytes = [*b"red\0", *b"\xff\0\0\0"];
    let case_of_bytes = case().line("band", "|S4", &bytes, "{}");
    assert_eq!(labels(case_of_bytes), ["red", "\u{fffd}"]);
    // too many bytes
    assert_eq!(
        labels(case().array("band", "|S3000000", &[2], "{}")),
        [""; 0]
    );
    let numbers = case()
        .line("band", "<f8", &f8(&[1.0, 2.0]), "{}")
        .array("a", "|u1", &[2, 4], named)
        .describe("a");
    assert!(numbers.axes[0].labels.is_empty() && !numbers.axes[0].is_unread);
}
