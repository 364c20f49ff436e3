//! JSON as Python writes and reads it: bare `NaN`, `Infinity` and `-Infinity`, numbers of any size, lone surrogates;
//! and base64 as Python decodes it. It knows nothing of Zarr.
//!
//! A parsed document takes up to a hundred times the memory of its text, so each is counted before it is parsed:
//! [`parse_object`] for documents of stores, whose parsed form is counted for as long as it lives, [`parse`] for short
//! texts of the program itself.

use crate::error::{Error, Result};
use crate::util::memory::{self, Grant};
use base64::Engine;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::de::IgnoredAny;
pub use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::io::{self, Write};
use std::ops::Deref;

/// A string value that starts with this stands for the bare token that follows it: serde_json has no place for NaN.
const TOKEN: &str = "\u{0}bare ";

/// Bytes of memory that a value takes, beside its text: the allocator's part, and room that a list grew into.
const VALUE: usize = size_of::<Value>() * 3 / 2 + 48;

/// Bytes of memory that a name in an object takes, beside its text and its value.
const MEMBER: usize = 128;

/// Bytes that a bare token grows by when it is [rewritten](from_python).
const REWRITTEN: usize = 16;

/// The most bytes of a text with line breaks that is longer than the same text without them: 128 levels of nesting
/// indent each number by 256 bytes.
const MAX_PRETTY: usize = 4 << 20;

/// A JSON object and the permission for the memory it takes.
#[derive(Debug, Default)]
pub struct Object {
    map: Map<String, Value>,
    /// Dropped after the map.
    grant: Grant,
}

impl Object {
    /// The permission for the memory, for the owner of what was taken out of the object.
    pub fn into_parts(self) -> (Map<String, Value>, Grant) {
        (self.map, self.grant)
    }

    /// The object, to be changed by a value whose memory is counted elsewhere.
    pub fn map_mut(&mut self) -> &mut Map<String, Value> {
        &mut self.map
    }

    /// Bytes of memory that count for it.
    pub fn memory(&self) -> usize {
        self.grant.bytes()
    }
}

impl PartialEq for Object {
    fn eq(&self, other: &Object) -> bool {
        self.map == other.map
    }
}

impl Deref for Object {
    type Target = Map<String, Value>;

    fn deref(&self) -> &Map<String, Value> {
        &self.map
    }
}

impl<'a> IntoIterator for &'a Object {
    type Item = (&'a String, &'a Value);
    type IntoIter = serde_json::map::Iter<'a>;

    fn into_iter(self) -> Self::IntoIter {
        self.map.iter()
    }
}

/// Parses a document. Duplicate keys: the last wins. Nesting deeper than 128 levels, a byte order mark and bytes after
/// the value are errors, as is anything that isn't UTF-8.
pub fn parse(bytes: &[u8]) -> Result<Value> {
    Ok(parse_counted(bytes)?.0)
}

/// Parses a document that must be an object, as [`parse`] does, and counts the memory that it takes.
pub fn parse_object(bytes: &[u8]) -> Result<Object> {
    match parse_counted(bytes)? {
        (Value::Object(map), grant) => Ok(Object { map, grant }),
        _ => Err(Error::damaged("not a JSON object")),
    }
}

/// Checks that a document is a JSON object. It makes no values, so a document of any size takes little memory.
pub fn check_object(bytes: &[u8]) -> Result<()> {
    check(bytes)?;
    match bytes.trim_ascii_start().first() {
        Some(b'{') => Ok(()),
        _ => Err(Error::damaged("not a JSON object")),
    }
}

/// As [`check_object`], for any value.
pub fn check(bytes: &[u8]) -> Result<()> {
    let text = utf8(bytes)?;
    let shape = Shape::of(text);
    let _rewritten = memory::take(shape.rewritten(text))?;
    serde_json::from_str::<IgnoredAny>(&from_python(text, &shape)).map(drop).map_err(not_json)
}

fn parse_counted(bytes: &[u8]) -> Result<(Value, Grant)> {
    let text = utf8(bytes)?;
    let shape = Shape::of(text);
    let (parsed, rewritten) = (shape.parsed(text), shape.rewritten(text));
    let mut grant = memory::take(parsed.saturating_add(rewritten)).map_err(|e| e.context("parsing it"))?;
    let value = serde_json::from_str(&from_python(text, &shape)).map_err(not_json)?;
    grant.shrink_to(parsed);
    Ok((value, grant))
}

fn utf8(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|e| Error::damaged(format!("not UTF-8: {e}")))
}

fn not_json(e: serde_json::Error) -> Error {
    Error::damaged(format!("not valid JSON: {e}"))
}

/// What the text of a document consists of, as far as that bounds the memory it takes.
#[derive(Default)]
struct Shape {
    values: usize,
    members: usize,
    /// Words that only Python's reader accepts.
    tokens: usize,
    /// Whether a string has an escape by number, which may be no character.
    has_escapes: bool,
}

impl Shape {
    fn of(text: &str) -> Shape {
        let mut shape = Shape { values: 1, ..Shape::default() };
        let (mut in_string, mut escaped) = (false, false);
        for byte in text.bytes() {
            match byte {
                _ if escaped => {
                    shape.has_escapes |= byte == b'u';
                    escaped = false;
                }
                b'\\' if in_string => escaped = true,
                b'"' => in_string = !in_string,
                _ if in_string => {}
                // each list and object may have one value more than commas
                b',' | b'[' | b'{' => shape.values += 1,
                b':' => shape.members += 1,
                b'N' | b'I' => shape.tokens += 1,
                _ => {}
            }
        }
        shape
    }

    /// Bytes of memory of the parsed document, at most.
    fn parsed(&self, text: &str) -> usize {
        text.len() + text.len() / 4 + self.values * VALUE + self.members * MEMBER + self.tokens * REWRITTEN
    }

    /// Bytes of the rewritten text, if there is one.
    fn rewritten(&self, text: &str) -> usize {
        if self.is_strict() { 0 } else { text.len() + self.tokens * REWRITTEN }
    }

    /// True if there is nothing that only Python's reader accepts.
    fn is_strict(&self) -> bool {
        self.tokens == 0 && !self.has_escapes
    }
}

/// The members of the object that a document is, each with the text of its value, which is not parsed. This takes no
/// memory, so that a document of many documents can be divided.
pub struct Members<'a> {
    /// From the next name on; None after the end or an error.
    rest: Option<&'a str>,
    is_first: bool,
}

impl<'a> Members<'a> {
    /// The members of `text`.
    pub fn of(text: &'a [u8]) -> Result<Self> {
        let rest = utf8(text)?.trim_start().strip_prefix('{');
        let rest = rest.ok_or_else(|| Error::damaged("not a JSON object"))?;
        Ok(Members { rest: Some(rest), is_first: true })
    }

    fn member(&mut self, rest: &'a str) -> Option<(Cow<'a, str>, &'a str)> {
        let (literal, rest) = rest.split_at_checked(string_end(rest))?;
        let value = rest.trim_start().strip_prefix(':')?.trim_start();
        let (value, rest) = value.split_at_checked(value_end(value)?)?;
        self.rest = Some(rest);
        self.is_first = false;
        let name = literal.strip_prefix('"')?.strip_suffix('"')?;
        if !name.contains('\\') {
            return Some((Cow::Borrowed(name), value));
        }
        let mut strict = String::new();
        push_string(literal, &mut strict);
        Some((Cow::Owned(serde_json::from_str(&strict).ok()?), value))
    }
}

impl<'a> Iterator for Members<'a> {
    type Item = Result<(Cow<'a, str>, &'a str)>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut rest = self.rest.take()?.trim_start();
        match rest.strip_prefix('}') {
            Some(behind) if behind.trim().is_empty() => return None,
            Some(_) => return Some(Err(Error::damaged("not valid JSON: more than one value"))),
            None if self.is_first => {}
            None => rest = rest.strip_prefix(',').unwrap_or("").trim_start(),
        }
        Some(self.member(rest).ok_or_else(|| Error::damaged("not valid JSON: a member is cut short or damaged")))
    }
}

/// Length of the value at the start of `text`; None if its end is missing. Its inside is not checked.
fn value_end(text: &str) -> Option<usize> {
    let (mut depth, mut at) = (0usize, 0);
    let bytes = text.as_bytes();
    loop {
        match bytes.get(at)? {
            b'"' => at += string_end(&text[at..]) - 1,
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth > 0 => depth -= 1,
            b',' | b'}' | b']' if depth == 0 => return (at > 0).then_some(at),
            _ => {}
        }
        at += 1;
        if depth == 0 && matches!(bytes[at - 1], b'"' | b'}' | b']') {
            return Some(at);
        }
    }
}

/// The text of `value`, in one line, with the bare tokens that [`parse`] took.
pub fn write(value: &Value) -> String {
    with_tokens(value.to_string(), false)
}

/// As [`write()`], but with bare tokens as strings, as Zarr's fill values spell them: what every reader of JSON takes.
pub fn write_strict(value: &Value) -> String {
    with_tokens(value.to_string(), true)
}

/// As [`write()`], over several lines and with a newline at the end, unless that would make a long text many times as
/// long.
pub fn write_pretty(value: &Value) -> String {
    let line = value.to_string();
    let mut pretty = Limited { text: Vec::new(), limit: MAX_PRETTY.max(line.len()) };
    let done = serde_json::to_writer_pretty(&mut pretty, value);
    let text = done.ok().and_then(|()| String::from_utf8(pretty.text).ok()).unwrap_or(line);
    with_tokens(text + "\n", false)
}

/// As [`write()`]; None if the text would have more than `limit` bytes.
pub fn write_within(value: &Value, limit: usize) -> Option<String> {
    // a bare token takes more room before it is written bare
    let mut line = Limited { text: Vec::new(), limit: limit.saturating_mul(6).saturating_add(64) };
    serde_json::to_writer(&mut line, value).ok()?;
    Some(with_tokens(String::from_utf8(line.text).ok()?, false)).filter(|text| text.len() <= limit)
}

/// A text that is not written beyond a number of bytes.
struct Limited {
    text: Vec<u8>,
    limit: usize,
}

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.text.len() + bytes.len() > self.limit {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
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
fn from_python<'a>(text: &'a str, shape: &Shape) -> Cow<'a, str> {
    if shape.is_strict() {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(shape.rewritten(text));
    let mut rest = text;
    loop {
        let Some(at) = rest.find(['"', 'N', 'I']) else {
            return Cow::Owned(out + rest);
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
    fn members_are_divided_without_being_parsed() {
        let of = |text: &str| {
            Members::of(text.as_bytes())?.map(|m| m.map(|(n, v)| (n.into_owned(), v.to_string()))).collect()
        };
        let of = |text: &str| -> Result<Vec<(String, String)>> { of(text) };
        let text = r#" {"a" : [1,{"}":"]\\"}] , "b\u0041\"":NaN,"c":"x,}","":{} } "#;
        let expected = [("a", r#"[1,{"}":"]\\"}]"#), ("bA\"", "NaN"), ("c", r#""x,}""#), ("", "{}")];
        assert_eq!(of(text).unwrap(), expected.map(|(n, v)| (n.to_string(), v.to_string())));
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
    fn what_a_document_takes_is_counted_and_returned() {
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
    fn line_breaks_make_no_text_many_times_as_long() {
        let deep = format!("{}{}{}", "[".repeat(120), "1,".repeat(100_000) + "1", "]".repeat(120));
        let value = parse(deep.as_bytes()).unwrap();
        assert!(write_pretty(&value).len() < MAX_PRETTY + 2);
        assert_eq!(parse(write_pretty(&value).as_bytes()).unwrap(), value);
        assert_eq!(write_within(&value, deep.len()).unwrap(), deep);
        assert!(write_within(&value, deep.len() - 1).is_none());
        assert_eq!(write_within(&parse(b"[NaN,NaN]").unwrap(), 9).unwrap(), "[NaN,NaN]");
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
