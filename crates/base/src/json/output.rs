//! Texts of values as Python writes them, with bare tokens, or as strict JSON.

use super::{Value, string_end};
use std::fmt::{self, Write as _};
use std::io::{self, Write};

/// Maximum size in bytes of an indented text; longer documents are written in one line. At 128
/// levels of nesting, each number is indented by 256 bytes.
pub(super) const MAX_PRETTY: usize = 4 << 20;

/// Returns the text of `value` in one line, with bare tokens as in the parsed text.
pub fn write(value: &Value) -> String {
    with_tokens(value.to_string(), false)
}

/// Returns the text of `value` in one line as strict JSON: bare tokens become strings, as in Zarr's
/// fill values.
pub fn write_strict(value: &Value) -> String {
    with_tokens(value.to_string(), true)
}

/// Returns the text of `value`, indented, with a newline at the end. A text that would exceed 4 MiB
/// is written in one line instead.
pub fn write_pretty(value: &Value) -> String {
    let mut pretty = TextLength(0);
    // writing to memory does not fail
    let _ = write!(pretty, "{value:#}");
    // a growing text would take up to three times its size; unused capacity takes no memory
    let mut text = String::with_capacity(pretty.0 + 1);
    let _ = if pretty.0 <= MAX_PRETTY {
        writeln!(text, "{value:#}")
    } else {
        writeln!(text, "{value}")
    };
    with_tokens(text, false)
}

/// The length in bytes of a text that is not kept.
struct TextLength(usize);

impl fmt::Write for TextLength {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 += text.len();
        Ok(())
    }
}

/// Returns the text of `value` in one line, or `None` if it has more than `limit` bytes.
pub fn write_within(value: &Value, limit: usize) -> Option<String> {
    // serde_json writes a bare token as a string that is up to six times as long
    let mut line = LimitedText {
        text: Vec::new(),
        limit: limit.saturating_mul(6).saturating_add(64),
    };
    serde_json::to_writer(&mut line, value).ok()?;
    Some(with_tokens(String::from_utf8(line.text).ok()?, false)).filter(|text| text.len() <= limit)
}

/// A writer that fails beyond a number of bytes.
struct LimitedText {
    text: Vec<u8>,
    limit: usize,
}

impl Write for LimitedText {
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

/// Replaces the tokens in text written by serde_json by bare tokens or, if `quoted`, by strings.
pub(super) fn with_tokens(text: String, quoted: bool) -> String {
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
