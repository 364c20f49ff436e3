//! JSON as Python writes and reads it, with bare `NaN`, `Infinity` and `-Infinity`, numbers of any
//! size, and lone surrogates; and base64 as Python decodes it. The module does not know Zarr.
//!
//! A parsed document takes up to 100 times the memory of its text, so its memory is granted before
//! it is parsed. [`parse_object`] is for documents of stores: its result holds the grant. [`parse`]
//! is for short texts of the program.

mod output;
mod respell;

pub use output::{write, write_pretty, write_strict, write_within};
pub use respell::{respell, with_member};

use crate::error::{Error, Result};
use crate::memory::{self, Grant};
use base64::Engine;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::de::IgnoredAny;
pub use serde_json::{Map, Value, json};
use std::borrow::Cow;
use std::ops::Deref;

/// The start of a string that stands for a bare token, which serde_json cannot represent.
const TOKEN: &str = "\u{0}bare ";

/// Memory of a value in bytes, besides its text: the value, the allocator's overhead, and unused
/// capacity of a list.
const VALUE: usize = size_of::<Value>() * 3 / 2 + 48;

/// Memory of a name in an object in bytes, besides its text and its value.
const MEMBER: usize = 128;

/// Bytes by which a bare token grows when it is [rewritten](from_python).
const REWRITTEN: usize = 16;

/// Maximum number of objects and lists around a value: the limit of serde_json.
const MAX_DEPTH: usize = 128;

/// A JSON object and the grant for its memory.
#[derive(Debug, Default)]
pub struct Object {
    map: Map<String, Value>,
    /// The grant for the map. Fields are dropped in order, so the map is dropped first.
    grant: Grant,
}

impl Object {
    /// Returns the map and its grant. The grant must live as long as anything taken out of the map.
    pub fn into_parts(self) -> (Map<String, Value>, Grant) {
        (self.map, self.grant)
    }

    /// Returns the map for changes. The memory of new values must be counted elsewhere.
    pub fn map_mut(&mut self) -> &mut Map<String, Value> {
        &mut self.map
    }

    /// Returns the granted memory in bytes.
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

/// Parses a document. Of duplicate keys, the last one counts.
///
/// # Errors
///
/// [`Kind::Damaged`](crate::error::Kind::Damaged) for text that is not UTF-8, nesting deeper than
/// 128 levels, and bytes after the value; and the errors of [`memory::take`].
pub fn parse(bytes: &[u8]) -> Result<Value> {
    Ok(parse_counted(bytes)?.0)
}

/// Parses a document that must be an object, and holds the grant for its memory.
///
/// # Errors
///
/// The errors of [`parse`].
pub fn parse_object(bytes: &[u8]) -> Result<Object> {
    match parse_counted(bytes)? {
        (Value::Object(map), grant) => Ok(Object { map, grant }),
        _ => Err(Error::damaged("not a JSON object")),
    }
}

/// Checks that a document is a JSON object, without parsing it into memory.
///
/// # Errors
///
/// The errors of [`parse`].
pub fn check_object(bytes: &[u8]) -> Result<()> {
    check(bytes)?;
    MemberTexts::of(bytes).map(drop)
}

/// Checks that a document is JSON, without parsing it into memory.
///
/// # Errors
///
/// The errors of [`parse`].
pub fn check(bytes: &[u8]) -> Result<()> {
    let text = utf8(bytes)?;
    let counts = TextCounts::of(text)?;
    let _rewritten = memory::take(counts.rewritten(text))?;
    serde_json::from_str::<IgnoredAny>(&from_python(text, &counts))
        .map(drop)
        .map_err(not_json)
}

/// Parses a document as [`parse`] does, and returns the grant for its memory.
///
/// # Errors
///
/// The errors of [`parse`].
pub fn parse_counted(bytes: &[u8]) -> Result<(Value, Grant)> {
    let text = utf8(bytes)?;
    let counts = TextCounts::of(text)?;
    let parsed = counts.parsed(text);
    let rewritten = counts.rewritten(text);
    let mut grant =
        memory::take(parsed.saturating_add(rewritten)).map_err(|e| e.context("parsing it"))?;
    let value = serde_json::from_str(&from_python(text, &counts)).map_err(not_json)?;
    grant.shrink_to(parsed);
    Ok((value, grant))
}

/// Returns a document without the byte order mark of UTF-8, which some editors write and Python's
/// JSON accepts.
pub fn without_mark(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes)
}

/// Returns the number of values in `value`, itself included. The parser has bounded the depth.
pub fn count_values(value: &Value) -> usize {
    1 + match value {
        Value::Array(list) => list.iter().map(count_values).sum(),
        Value::Object(members) => members.values().map(count_values).sum(),
        _ => 0,
    }
}

/// Returns a bound for the memory of a copy of `value` in bytes. The parser has bounded the depth.
pub fn memory_of(value: &Value) -> usize {
    VALUE
        + match value {
            Value::Array(list) => list.iter().map(memory_of).sum(),
            Value::Object(members) => members
                .iter()
                .map(|(name, value)| MEMBER + name.len() + memory_of(value))
                .sum(),
            Value::String(text) => text.len(),
            Value::Number(number) => number.as_str().len(),
            Value::Bool(_) | Value::Null => 0,
        }
}

fn utf8(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(without_mark(bytes)).map_err(|e| Error::damaged(format!("not UTF-8: {e}")))
}

fn not_json(e: serde_json::Error) -> Error {
    Error::damaged(format!("not valid JSON: {e}"))
}

/// Counts of the contents of a document's text, which bound the memory of the parsed document.
#[derive(Default)]
struct TextCounts {
    /// Maximum number of values.
    values: usize,
    /// Maximum number of members of objects.
    members: usize,
    /// Maximum number of bare tokens.
    tokens: usize,
    /// Maximum number of objects and lists around a value.
    depth: usize,
    /// Whether a string has a numeric escape, which may be a lone surrogate.
    has_escapes: bool,
}

impl TextCounts {
    /// Counts the contents of `text`.
    ///
    /// # Errors
    ///
    /// The text is nested more deeply than the parser allows. This is checked before memory for it
    /// is granted.
    fn of(text: &str) -> Result<TextCounts> {
        let mut counts = TextCounts {
            values: 1,
            ..TextCounts::default()
        };
        let mut in_string = false;
        let mut escaped = false;
        let mut depth = 0usize;
        for byte in text.bytes() {
            match byte {
                b'[' | b'{' if !in_string => depth += 1,
                b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
                _ => {}
            }
            counts.depth = counts.depth.max(depth);
            match byte {
                _ if escaped => {
                    counts.has_escapes |= byte == b'u';
                    escaped = false;
                }
                b'\\' if in_string => escaped = true,
                b'"' => in_string = !in_string,
                _ if in_string => {}
                // a list or an object may have one value more than commas
                b',' | b'[' | b'{' => counts.values += 1,
                b':' => counts.members += 1,
                b'N' | b'I' => counts.tokens += 1,
                _ => {}
            }
        }
        if counts.depth > MAX_DEPTH {
            Err(Error::damaged(format!(
                "not valid JSON: nested more than {MAX_DEPTH} levels deep"
            )))
        } else {
            Ok(counts)
        }
    }

    /// Returns a bound for the memory of the parsed document in bytes.
    fn parsed(&self, text: &str) -> usize {
        text.len()
            + text.len() / 4
            + self.values * VALUE
            + self.members * MEMBER
            + self.tokens * REWRITTEN
    }

    /// Returns a bound for the size of the rewritten text in bytes; 0 if the text is not rewritten.
    fn rewritten(&self, text: &str) -> usize {
        if self.is_strict() {
            0
        } else {
            text.len() + self.tokens * REWRITTEN
        }
    }

    /// Returns whether the text has nothing that only Python accepts.
    fn is_strict(&self) -> bool {
        self.tokens == 0 && !self.has_escapes
    }
}

/// An iterator over the members of a JSON object: names, and the unparsed texts of values. It does
/// not parse the values, so splitting a large document that holds many others takes little memory.
pub struct MemberTexts<'a> {
    /// The text from the next member on; `None` after the end or an error.
    rest: Option<&'a str>,
    is_first: bool,
}

impl<'a> MemberTexts<'a> {
    /// Starts to iterate over the members of the object `text`.
    pub fn of(text: &'a [u8]) -> Result<Self> {
        let rest = utf8(text)?.trim_start().strip_prefix('{');
        let rest = rest.ok_or_else(|| Error::damaged("not a JSON object"))?;
        Ok(MemberTexts {
            rest: Some(rest),
            is_first: true,
        })
    }

    /// Splits off the member at the start of `rest`.
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

impl<'a> Iterator for MemberTexts<'a> {
    type Item = Result<(Cow<'a, str>, &'a str)>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut rest = self.rest.take()?.trim_start();
        match rest.strip_prefix('}') {
            Some(behind) if behind.trim().is_empty() => return None,
            Some(_) => return Some(Err(Error::damaged("not valid JSON: more than one value"))),
            None if self.is_first => {}
            None => rest = rest.strip_prefix(',').unwrap_or("").trim_start(),
        }
        Some(
            self.member(rest)
                .ok_or_else(|| Error::damaged("not valid JSON: a member is cut short or damaged")),
        )
    }
}

/// Returns the length in bytes of the value at the start of `text`, or `None` if its end is
/// missing. The inside of the value is not checked.
fn value_end(text: &str) -> Option<usize> {
    let mut depth = 0usize;
    let mut at = 0;
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

/// Returns the memory in bytes of a member of an object whose name and value are `text` bytes.
pub fn member_memory(text: usize) -> usize {
    VALUE + MEMBER + text
}

/// Returns the nearest double, which may be infinite, to a JSON number or a bare token. Returns
/// `None` for other values, including strings.
pub fn float(value: &Value) -> Option<f64> {
    match value {
        Value::Number(n) => n.as_str().parse().ok(),
        Value::String(s) => float_word(s.strip_prefix(TOKEN)?),
        _ => None,
    }
}

/// Returns the number for `NaN`, `Infinity`, `+Infinity` or `-Infinity`, as strings in Zarr's fill
/// values spell them.
pub fn float_word(word: &str) -> Option<f64> {
    match word {
        "NaN" => Some(f64::NAN),
        "Infinity" | "+Infinity" => Some(f64::INFINITY),
        "-Infinity" => Some(f64::NEG_INFINITY),
        _ => None,
    }
}

/// Returns the text of a string, or `None` for other values and bare tokens.
pub fn text(value: &Value) -> Option<&str> {
    value.as_str().filter(|s| !s.starts_with(TOKEN))
}

/// Returns the text of a string, and other values as JSON in one line.
pub fn plain(value: &Value) -> String {
    text(value).map_or_else(|| write(value), str::to_string)
}

/// Rewrites tokens and escapes that only Python accepts into strict JSON.
fn from_python<'a>(text: &'a str, counts: &TextCounts) -> Cow<'a, str> {
    if counts.is_strict() {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(counts.rewritten(text));
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
        } else if let Some(word) = ["NaN", "Infinity"]
            .into_iter()
            .find(|w| rest.starts_with(w))
        {
            let minus = if word == "Infinity" && out.ends_with('-') {
                out.pop().map_or("", |_| "-")
            } else {
                ""
            };
            out.push_str(&format!("\"\\u0000bare {minus}{word}\""));
            rest = &rest[word.len()..];
        } else {
            out.push_str(&rest[..1]);
            rest = &rest[1..];
        }
    }
}

/// Returns whether a string literal would pass for a bare token, and so could insert any text into
/// the output of [`write()`].
fn is_token(literal: &str) -> bool {
    literal.starts_with("\"\\u0000")
        && serde_json::from_str::<String>(literal).is_ok_and(|s| s.starts_with(TOKEN))
}

/// Returns the length in bytes of the string literal at the start of `text`, with its quotes; the
/// whole length if its end is missing.
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

/// Copies a string literal. Lone surrogates, which Rust's strings cannot hold, become U+FFFD.
fn push_string(literal: &str, out: &mut String) {
    let mut rest = literal;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let len = match escaped_unit(rest) {
            Some(0xD800..=0xDBFF)
                if matches!(rest.get(6..).and_then(escaped_unit), Some(0xDC00..=0xDFFF)) =>
            {
                12
            }
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

/// Returns the UTF-16 unit of the numeric escape at the start of `text`.
fn escaped_unit(text: &str) -> Option<u32> {
    let digits = text.get(..6)?.strip_prefix("\\u")?;
    u32::from_str_radix(digits, 16).ok()
}

/// Decodes base64 as Python's `base64.standard_b64decode` does: it skips characters outside the
/// alphabet and ends at the first complete padding. Returns `None` if padding is missing.
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
    GeneralPurpose::new(&base64::alphabet::STANDARD, config)
        .decode(&kept)
        .ok()
}

#[cfg(test)]
mod tests;
