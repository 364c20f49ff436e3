//! Python's JSON and base64, and the account of their memory.

use super::output::MAX_PRETTY;
use super::*;

#[test]
fn bare_tokens_are_read_and_written() {
    let v = parse(br#"{"a": [NaN, -Infinity,Infinity], "NaN": "NaN", "x": "-Infinity\" NaN"}"#)
        .unwrap();
    assert!(float(&v["a"][0]).unwrap().is_nan());
    assert_eq!(float(&v["a"][1]), Some(f64::NEG_INFINITY));
    assert_eq!(float(&v["a"][2]), Some(f64::INFINITY));
    assert_eq!((text(&v["NaN"]), text(&v["a"][0])), (Some("NaN"), None));
    assert_eq!(
        write(&v),
        r#"{"a":[NaN,-Infinity,Infinity],"NaN":"NaN","x":"-Infinity\" NaN"}"#
    );
    let strict = r#"{"a":["NaN","-Infinity","Infinity"],"NaN":"NaN","x":"-Infinity\" NaN"}"#;
    assert_eq!(write_strict(&v), strict);
}

#[test]
fn strings_cannot_pass_for_tokens() {
    for document in [
        r#"["\u0000bare ,"]"#,
        r#"{"\u0000bare NaN":1}"#,
        r#"["\u0000b\u0061re \ud800"]"#,
        r#"["\"\u0000bare "]"#,
    ] {
        let v = parse(document.as_bytes()).unwrap();
        assert_eq!(parse(write(&v).as_bytes()).unwrap(), v, "{document}");
        assert_eq!(write_strict(&v), write(&v));
        assert!(
            v[0].is_null() || text(&v[0]).is_some_and(|t| t.contains("bare ")),
            "{v}"
        );
    }
    assert_eq!(text(&parse(br#""\u0000x""#).unwrap()), Some("\0x"));
}

#[test]
fn members_are_split_without_being_parsed() {
    let of = |text: &str| {
        MemberTexts::of(text.as_bytes())?
            .map(|m| m.map(|(n, v)| (n.into_owned(), v.to_string())))
            .collect()
    };
    let of = |text: &str| -> Result<Vec<(String, String)>> { of(text) };
    let text = r#" {"a" : [1,{"}":"]\\"}] , "b\u0041\"":NaN,"c":"x,}","":{} } "#;
    let expected = [
        ("a", r#"[1,{"}":"]\\"}]"#),
        ("bA\"", "NaN"),
        ("c", r#""x,}""#),
        ("", "{}"),
    ];
    assert_eq!(
        of(text).unwrap(),
        expected.map(|(n, v)| (n.to_string(), v.to_string()))
    );
    assert_eq!(of("{}").unwrap(), []);
    for bad in [
        "",
        "[]",
        "{",
        "{\"",
        "{\"a\"",
        "{\"a\":",
        "{\"a\":}",
        "{\"a\":1",
        "{\"a\":1,",
        "{\"a\":[1}",
        "{} x",
        "{\"a\" 1}",
        "{a:1}",
        "{\"a\":1 \"b\":2}",
        "{\"a\":\"\\",
        "{,}",
    ] {
        assert!(of(bad).is_err(), "{bad}");
    }
}

#[test]
fn memory_of_a_document_is_counted_and_returned() {
    let text = format!("[{}0]", "1,".repeat(1000));
    let object = parse_object(format!("{{\"a\":{text}}}").as_bytes()).unwrap();
    assert!(object.memory() > 1000 * size_of::<Value>());
    let millions = format!("{{\"a\":[{}0]}}", "1,".repeat(4 << 20));
    let refused = parse_object(millions.as_bytes()).unwrap_err();
    assert!(refused.message().contains("--cache-size"), "{refused}");
    check_object(millions.as_bytes()).unwrap();
    assert!(check_object(b"[1]").is_err() && check_object(b"{\"a\":[NaN,\"\\ud800\"]}").is_ok());
}

#[test]
fn indentation_does_not_multiply_the_length() {
    let deep = format!(
        "{}{}{}",
        "[".repeat(120),
        "1,".repeat(100_000) + "1",
        "]".repeat(120)
    );
    let value = parse(deep.as_bytes()).unwrap();
    assert!(write_pretty(&value).len() < MAX_PRETTY + 2);
    assert_eq!(parse(write_pretty(&value).as_bytes()).unwrap(), value);
    assert_eq!(write_within(&value, deep.len()).unwrap(), deep);
    assert!(write_within(&value, deep.len() - 1).is_none());
    assert_eq!(
        write_within(&parse(b"[NaN,NaN]").unwrap(), 9).unwrap(),
        "[NaN,NaN]"
    );
}

#[test]
fn numbers_of_any_size_are_preserved() {
    let v =
        parse(b"[1e400, 18446744073709551615, 1000000000000000000000000000000, -0, 10.0]").unwrap();
    assert_eq!(float(&v[0]), Some(f64::INFINITY));
    assert_eq!(v[1].as_u64(), Some(u64::MAX));
    assert_eq!(v[2].as_u64(), None);
    assert_eq!(v[4].as_u64(), None);
    assert_eq!(
        write(&v),
        "[1e+400,18446744073709551615,1000000000000000000000000000000,-0,10.0]"
    );
}

#[test]
fn invalid_documents_are_errors() {
    let deep = "[".repeat(200_000);
    for bad in [
        "",
        "{",
        "[1,]",
        "nan",
        "{} x",
        "[Infinit]",
        "\"",
        "\"\\",
        "\"\\u12",
        "'a'",
        &deep,
    ] {
        assert!(parse(bad.as_bytes()).is_err(), "{bad:.20}");
    }
    assert!(parse(b"\"\xff\"").is_err());
    // refused before memory is granted
    let deep = "{\"a\":".repeat(10_000_000);
    let e = parse(deep.as_bytes()).unwrap_err();
    assert_eq!(
        e.message(),
        "not valid JSON: nested more than 128 levels deep"
    );
    let nested = |levels: usize| ["[".repeat(levels), "\"[[\"".into(), "]".repeat(levels)].concat();
    assert!(parse(nested(127).as_bytes()).is_ok() && parse(nested(128).as_bytes()).is_err());
}

#[test]
fn lone_surrogates_are_replaced() {
    assert_eq!(parse(br#""\ud83d\ude00""#).unwrap(), "😀");
    assert_eq!(parse(br#""a\ud800b\\udfff""#).unwrap(), "a\u{fffd}b\\udfff");
    assert_eq!(parse("\"\\ud800\\é\"".as_bytes()).ok(), None);
}

#[test]
fn base64_decodes_as_in_python() {
    assert_eq!(base64_decode(b"eA=="), Some(b"x".to_vec()));
    assert_eq!(base64_decode(b" e\nA=\n= trailing"), Some(b"x".to_vec()));
    assert_eq!(base64_decode(b""), Some(vec![]));
    assert_eq!(base64_decode(b"eA"), None);
    assert_eq!(base64_decode(b"eAAAA"), None);
}

#[test]
fn a_byte_order_mark_is_skipped() {
    let text = "\u{feff}{\"a\": [1]}";
    assert_eq!(parse(text.as_bytes()).unwrap(), json!({"a": [1]}));
    assert_eq!(parse_object(text.as_bytes()).unwrap().len(), 1);
    assert_eq!(
        (check(text.as_bytes()), check_object(text.as_bytes())),
        (Ok(()), Ok(()))
    );
    assert_eq!(
        MemberTexts::of(text.as_bytes())
            .unwrap()
            .map(Result::unwrap)
            .count(),
        1
    );
    assert!(
        parse("\u{feff}\u{feff}{}".as_bytes()).is_err() && parse("{}\u{feff}".as_bytes()).is_err()
    );
}
