//! JSON as Python writes and reads it: bare `NaN`, `Infinity` and `-Infinity`, numbers of any size, lone surrogates;
//! and base64 as Python decodes it. It knows nothing of Zarr.

use crate::error::{Error, Result};
use base64::Engine;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
pub use serde_json::{Map, Value};

/// A string value that starts with this stands for the bare token that follows it: serde_json has no place for NaN.
const TOKEN: &str = "\u{0}bare ";

/// Parses a document. Duplicate keys: the last wins. Nesting deeper than 128 levels, a byte order mark and bytes after
/// the value are errors, as is anything that isn't UTF-8.
pub fn parse(bytes: &[u8]) -> Result<Value> {
    let text = std::str::from_utf8(bytes).map_err(|e| Error::damaged(format!("not UTF-8: {e}")))?;
    let text = from_python(text);
    serde_json::from_str(&text).map_err(|e| Error::damaged(format!("not valid JSON: {e}")))
}

/// The text of `value`, in one line, with the bare tokens that [`parse`] took.
pub fn write(value: &Value) -> String {
    with_tokens(value.to_string(), false)
}

/// As [`write()`], but with bare tokens as strings, as Zarr's fill values spell them: what every reader of JSON takes.
pub fn write_strict(value: &Value) -> String {
    with_tokens(value.to_string(), true)
}

/// As [`write()`], over several lines and with a newline at the end.
pub fn write_pretty(value: &Value) -> String {
    with_tokens(format!("{value:#}\n"), false)
}

/// What serde_json has written, with each token bare or, if they are `quoted`, as a string.
fn with_tokens(text: String, quoted: bool) -> String {
    let token = "\"\\u0000bare ";
    if !text.contains(token) {
        return text;
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(at) = rest.find('"') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let (literal, after) = rest.split_at(string_end(rest));
        match literal.strip_prefix(token) {
            Some(word) if quoted => out.extend(["\"", word]),
            Some(word) => out.push_str(word.trim_end_matches('"')),
            None => out.push_str(literal),
        }
        rest = after;
    }
    out + rest
}

/// The number that `value` holds: a JSON number (to the nearest f64, infinite where it is too large) or a bare `NaN`,
/// `Infinity`, `-Infinity`. None for anything else, strings included.
pub fn float(value: &Value) -> Option<f64> {
    match value {
        Value::Number(n) => n.as_str().parse().ok(),
        Value::String(s) => float_word(s.strip_prefix(TOKEN)?),
        _ => None,
    }
}

/// `NaN`, `Infinity` or `-Infinity` as Zarr's fill values spell them in a string.
pub fn float_word(word: &str) -> Option<f64> {
    match word {
        "NaN" => Some(f64::NAN),
        "Infinity" => Some(f64::INFINITY),
        "-Infinity" => Some(f64::NEG_INFINITY),
        _ => None,
    }
}

/// The string that `value` holds; None for a bare token.
pub fn text(value: &Value) -> Option<&str> {
    value.as_str().filter(|s| !s.starts_with(TOKEN))
}

/// Turns what only Python's reader accepts into strict JSON.
fn from_python(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    let mut rest = text;
    loop {
        let Some(at) = rest.find(['"', 'N', 'I']) else {
            return out + rest;
        };
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        if rest.starts_with('"') {
            let end = string_end(rest);
            let start = out.len();
            push_string(&rest[..end], &mut out);
            if is_token(&out[start..]) {
                out.replace_range(start + 1..start + 7, "\\ufffd");
            }
            rest = &rest[end..];
        } else if let Some(word) = ["NaN", "Infinity"].into_iter().find(|w| rest.starts_with(w)) {
            let minus = if word == "Infinity" && out.ends_with('-') { out.pop().map_or("", |_| "-") } else { "" };
            out.push_str(&format!("\"\\u0000bare {minus}{word}\""));
            rest = &rest[word.len()..];
        } else {
            out.push_str(&rest[..1]);
            rest = &rest[1..];
        }
    }
}

/// True for a string literal that would be taken for a bare token: nobody writes one but to smuggle text into what
/// [`write`] makes.
fn is_token(literal: &str) -> bool {
    literal.starts_with("\"\\u0000") && serde_json::from_str::<String>(literal).is_ok_and(|s| s.starts_with(TOKEN))
}

/// Length of the string literal at the start of `text`, quotes included; all of it when the end is missing.
fn string_end(text: &str) -> usize {
    let mut escaped = false;
    for (i, b) in text.bytes().enumerate().skip(1) {
        match b {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return i + 1,
            _ => {}
        }
    }
    text.len()
}

/// Copies a string literal; a surrogate escape without its partner, which Rust's strings can't hold, becomes U+FFFD.
fn push_string(literal: &str, out: &mut String) {
    let unit =
        |s: &str| s.get(..6).filter(|s| s.starts_with("\\u")).and_then(|s| u32::from_str_radix(&s[2..], 16).ok());
    let mut rest = literal;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let low = |s: &str| matches!(s.get(6..).and_then(unit), Some(0xDC00..=0xDFFF));
        let len = match unit(rest) {
            Some(0xD800..=0xDBFF) if low(rest) => 12,
            Some(0xD800..=0xDFFF) => {
                out.push_str("\\ufffd");
                rest = &rest[6..];
                continue;
            }
            _ => rest.char_indices().nth(2).map_or(rest.len(), |(i, _)| i),
        };
        out.push_str(&rest[..len]);
        rest = &rest[len..];
    }
    out.push_str(rest);
}

/// Decodes base64 as Python's `base64.standard_b64decode` does: characters outside the alphabet are skipped, the first
/// complete padding ends the data, missing padding is an error (None).
pub fn base64_decode(text: &[u8]) -> Option<Vec<u8>> {
    let mut kept = Vec::with_capacity(text.len());
    let mut pads = 0;
    for &b in text {
        if b == b'=' {
            pads += 1;
            if kept.len() % 4 >= 2 && kept.len() % 4 + pads >= 4 {
                break;
            }
        } else if b.is_ascii_alphanumeric() || b == b'+' || b == b'/' {
            pads = 0;
            kept.push(b);
        }
    }
    if kept.len() % 4 != 0 && kept.len() % 4 + pads < 4 {
        return None;
    }
    let config = GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::RequireNone)
        .with_decode_allow_trailing_bits(true);
    GeneralPurpose::new(&base64::alphabet::STANDARD, config).decode(&kept).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_words() {
        let v = parse(br#"{"a": [NaN, -Infinity,Infinity], "NaN": "NaN", "x": "-Infinity\" NaN"}"#).unwrap();
        assert!(float(&v["a"][0]).unwrap().is_nan());
        assert_eq!(float(&v["a"][1]), Some(f64::NEG_INFINITY));
        assert_eq!(float(&v["a"][2]), Some(f64::INFINITY));
        assert_eq!((text(&v["NaN"]), text(&v["a"][0])), (Some("NaN"), None));
        assert_eq!(write(&v), r#"{"a":[NaN,-Infinity,Infinity],"NaN":"NaN","x":"-Infinity\" NaN"}"#);
        let strict = r#"{"a":["NaN","-Infinity","Infinity"],"NaN":"NaN","x":"-Infinity\" NaN"}"#;
        assert_eq!(write_strict(&v), strict);
    }

    #[test]
    fn nobody_smuggles_tokens() {
        for document in
            [r#"["\u0000bare ,"]"#, r#"{"\u0000bare NaN":1}"#, r#"["\u0000b\u0061re \ud800"]"#, r#"["\"\u0000bare "]"#]
        {
            let v = parse(document.as_bytes()).unwrap();
            assert_eq!(parse(write(&v).as_bytes()).unwrap(), v, "{document}");
            assert_eq!(write_strict(&v), write(&v));
            assert!(v[0].is_null() || text(&v[0]).is_some_and(|t| t.contains("bare ")), "{v}");
        }
        assert_eq!(text(&parse(br#""\u0000x""#).unwrap()), Some("\0x"));
    }

    #[test]
    fn numbers_of_any_size() {
        let v = parse(b"[1e400, 18446744073709551615, 1000000000000000000000000000000, -0, 10.0]").unwrap();
        assert_eq!(float(&v[0]), Some(f64::INFINITY));
        assert_eq!(v[1].as_u64(), Some(u64::MAX));
        assert_eq!(v[2].as_u64(), None);
        assert_eq!(v[4].as_u64(), None);
        assert_eq!(write(&v), "[1e+400,18446744073709551615,1000000000000000000000000000000,-0,10.0]");
    }

    #[test]
    fn what_is_refused() {
        let deep = "[".repeat(200_000);
        for bad in ["", "{", "[1,]", "nan", "\u{feff}{}", "{} x", "[Infinit]", "\"", "\"\\", "\"\\u12", "'a'", &deep] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad:.20}");
        }
        assert!(parse(b"\"\xff\"").is_err());
    }

    #[test]
    fn surrogates() {
        assert_eq!(parse(br#""\ud83d\ude00""#).unwrap(), "😀");
        assert_eq!(parse(br#""a\ud800b\\udfff""#).unwrap(), "a\u{fffd}b\\udfff");
        assert_eq!(parse("\"\\ud800\\é\"".as_bytes()).ok(), None);
    }

    #[test]
    fn base64_like_python() {
        assert_eq!(base64_decode(b"eA=="), Some(b"x".to_vec()));
        assert_eq!(base64_decode(b" e\nA=\n= trailing"), Some(b"x".to_vec()));
        assert_eq!(base64_decode(b""), Some(vec![]));
        assert_eq!(base64_decode(b"eA"), None);
        assert_eq!(base64_decode(b"eAAAA"), None);
    }
}
