//! The text of one item of a dtype. Numbers have the fewest digits that read back equal, as C's
//! `strtod` reads them.

use super::numpy_times::TimeUnit;
use half::f16;
use std::fmt::Write;
use zarrfs_base::error::one_line;
use zarrfs_base::json::{self, Value};
use zarrfs_format::dtype::{DType, DTypeKind};
use zarrfs_format::metadata::ArrayMetadata;

/// How items of a dtype are written.
pub struct ItemText<'a> {
    dtype: &'a DType,
    /// The unit in which the integers of a date count, if it is known.
    unit: Option<TimeUnit>,
    /// Whether the smallest integer of eight bytes is written as `NaT`.
    pub(super) has_nat: bool,
    /// The fields of a struct, each with the number of its elements.
    fields: Vec<(ItemText<'a>, usize)>,
}

impl<'a> ItemText<'a> {
    /// Returns the text of an array's items; `None` if they have none.
    pub fn of(metadata: &'a ArrayMetadata) -> Option<Self> {
        Self::of_dtype(&metadata.dtype, &metadata.dtype_json)
    }

    /// Like [`ItemText::of`]; `spelled` is the JSON form of the dtype, which alone has the units of
    /// times.
    fn of_dtype(dtype: &'a DType, spelled: &Value) -> Option<Self> {
        let mut text = ItemText {
            dtype,
            unit: None,
            has_nat: matches!(dtype.kind(), DTypeKind::DateTime | DTypeKind::TimeDelta),
            fields: Vec::new(),
        };
        match (dtype.kind(), dtype.size()) {
            (DTypeKind::Float, 2 | 4 | 8) | (DTypeKind::Complex, 8 | 16) => {}
            (DTypeKind::Float | DTypeKind::Complex, _) => return None,
            (DTypeKind::DateTime, _) => text.unit = TimeUnit::of(json::text(spelled)?),
            (DTypeKind::Struct(fields), _) => {
                for (i, field) in fields.iter().enumerate() {
                    let count = usize::try_from(field.shape.iter().product::<u64>()).ok()?;
                    let element = Self::of_dtype(&field.dtype, spelled.get(i)?.get(1)?)?;
                    text.fields.push((element, count));
                }
            }
            _ => {}
        }
        Some(text)
    }

    /// Writes the item in `bytes`, its columns separated by spaces.
    pub fn write(&self, bytes: &[u8], out: &mut String) {
        match (self.dtype.kind(), self.unit) {
            (DTypeKind::Bool, _) => out.push(if bytes.iter().all(|byte| *byte == 0) {
                '0'
            } else {
                '1'
            }),
            (DTypeKind::UInt, _) => push(self.unsigned(bytes), out),
            (DTypeKind::Float, _) => write_float(self.unsigned(bytes), self.dtype.size(), out),
            (DTypeKind::Complex, _) => {
                let size = self.dtype.size() / 2;
                let (real, imaginary) = bytes.split_at(bytes.len().min(size));
                write_float(self.unsigned(real), size, out);
                out.push(' ');
                write_float(self.unsigned(imaginary), size, out);
            }
            (DTypeKind::Int | DTypeKind::DateTime | DTypeKind::TimeDelta, _)
                if self.has_nat && self.int(bytes) == i64::MIN =>
            {
                out.push_str("NaT")
            }
            (DTypeKind::DateTime, Some(unit)) => unit.write(self.int(bytes), out),
            (DTypeKind::Int | DTypeKind::DateTime | DTypeKind::TimeDelta, _) => {
                push(self.int(bytes), out)
            }
            (DTypeKind::Bytes | DTypeKind::Object, _) => write_word(without_padding(bytes), out),
            (DTypeKind::Text, _) => self.write_text(bytes, out),
            (DTypeKind::Void, _) => write_hex(bytes, "", out),
            (DTypeKind::Struct(_), _) => self.write_fields(bytes, out),
        }
    }

    fn write_fields(&self, bytes: &[u8], out: &mut String) {
        let mut rest = bytes;
        let elements = self
            .fields
            .iter()
            .flat_map(|(field, count)| std::iter::repeat_n(field, *count));
        for (i, field) in elements.enumerate() {
            if i > 0 {
                out.push(' ');
            }
            let (item, behind) = rest.split_at(field.dtype.size().min(rest.len()));
            field.write(item, out);
            rest = behind;
        }
    }

    /// Returns the item's bits as a number; at most its first eight bytes.
    fn unsigned(&self, bytes: &[u8]) -> u64 {
        let mut number = [0; 8];
        let len = bytes.len().min(8);
        number[..len].copy_from_slice(&bytes[..len]);
        if self.dtype.is_big_endian() {
            number[..len].reverse();
        }
        u64::from_le_bytes(number)
    }

    fn int(&self, bytes: &[u8]) -> i64 {
        let unused = 64 - 8 * self.dtype.size().clamp(1, 8) as u32;
        (self.unsigned(bytes) << unused) as i64 >> unused
    }

    /// Writes the characters before the padding. What is no character is written as its number.
    fn write_text(&self, bytes: &[u8], out: &mut String) {
        let codes = bytes.chunks_exact(4).map(|code| self.unsigned(code) as u32);
        let mut codes: Vec<u32> = codes.collect();
        while codes.last() == Some(&0) {
            codes.pop();
        }
        let text: Option<String> = codes.iter().map(|code| char::from_u32(*code)).collect();
        if let Some(text) = text {
            return write_word(text.as_bytes(), out);
        }
        out.push('"');
        for code in codes {
            match char::from_u32(code) {
                Some(c) => out.push_str(&escaped(c.encode_utf8(&mut [0; 4]))),
                None => push(format_args!("\\U{code:08x}"), out),
            }
        }
        out.push('"');
    }
}

fn push(value: impl std::fmt::Display, out: &mut String) {
    // writing to a String cannot fail
    let _ = write!(out, "{value}");
}

/// Writes each byte as two digits after `prefix`.
fn write_hex(bytes: &[u8], prefix: &str, out: &mut String) {
    for byte in bytes {
        push(format_args!("{prefix}{byte:02x}"), out);
    }
}

/// Writes the float with these bits, `size` bytes long.
fn write_float(bits: u64, size: usize, out: &mut String) {
    let single = f32::from_bits(bits as u32);
    let value = match size {
        2 => shortest_half(f16::from_bits(bits as u16)),
        4 => single.into(),
        _ => f64::from_bits(bits),
    };
    let is_plain = value == 0.0 || value.is_infinite() || (1e-5..1e16).contains(&value.abs());
    match (size, is_plain) {
        _ if value.is_nan() => out.push_str("nan"),
        // of its own digits, not those of the wider number
        (4, true) => push(single, out),
        (4, false) => push(format_args!("{single:e}"), out),
        (_, true) => push(value, out),
        (_, false) => push(format_args!("{value:e}"), out),
    }
}

/// Returns the decimal of the fewest digits that is nearest to this half float, of all halves.
fn shortest_half(half: f16) -> f64 {
    let exact = half.to_f64();
    let rounded = |digits: usize| format!("{exact:.digits$e}").parse::<f64>().ok();
    // five digits tell all halves apart
    (0..5)
        .filter_map(rounded)
        .find(|short| f16::from_f64(*short) == half)
        .unwrap_or(exact)
}

fn without_padding(bytes: &[u8]) -> &[u8] {
    let end = bytes
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |last| last + 1);
    bytes.get(..end).unwrap_or_default()
}

/// Writes a string as one word. If it is empty or has spaces, double quotes, control characters or
/// bytes that are not UTF-8, it stands in double quotes, with escapes as in JSON and `\x` before
/// other bytes.
fn write_word(bytes: &[u8], out: &mut String) {
    if let Ok(word) = std::str::from_utf8(bytes)
        && !word.is_empty()
        && !word.contains(|c: char| c.is_whitespace() || c == '"')
        && one_line(word) == word
    {
        return out.push_str(word);
    }
    out.push('"');
    for chunk in bytes.utf8_chunks() {
        out.push_str(&escaped(chunk.valid()));
        write_hex(chunk.invalid(), "\\x", out);
    }
    out.push('"');
}

fn escaped(text: &str) -> String {
    one_line(text.replace('\\', "\\\\").replace('"', "\\\""))
}
