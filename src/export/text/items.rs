//! The text of one item of a dtype. Numbers have the fewest digits that read back equal, as C's
//! `strtod` reads them.

use super::super::MetadataNumber;
use super::numpy_times::TimeUnit;
use crate::error::one_line;
use crate::util::json::{self, Value};
use crate::zarr::dtype::{DType, DTypeKind, Field};
use crate::zarr::metadata::ArrayMetadata;
use half::f16;
use std::fmt::Write;

/// How items of a dtype are written.
pub struct ItemText {
    kind: ItemKind,
    size: usize,
    is_big_endian: bool,
}

enum ItemKind {
    Bool,
    Int,
    UInt,
    Float,
    Complex,
    /// A date, with the unit in which the integer counts.
    DateTime(TimeUnit),
    /// A count of units.
    TimeDelta,
    Bytes,
    Text,
    Void,
    /// The fields, each with the number of its elements.
    Struct(Vec<(ItemText, usize)>),
}

impl ItemText {
    /// Returns the text of an array's items; `None` if they have none.
    pub fn of(metadata: &ArrayMetadata) -> Option<Self> {
        Self::of_dtype(&metadata.dtype, &metadata.dtype_json)
    }

    /// Like [`ItemText::of`]; `spelled` is the JSON form of the dtype, which alone has the units of
    /// times.
    fn of_dtype(dtype: &DType, spelled: &Value) -> Option<Self> {
        let kind = match (dtype.kind(), dtype.size()) {
            (DTypeKind::Bool, _) => ItemKind::Bool,
            (DTypeKind::Int, _) => ItemKind::Int,
            (DTypeKind::UInt, _) => ItemKind::UInt,
            (DTypeKind::Float, 2 | 4 | 8) => ItemKind::Float,
            (DTypeKind::Complex, 8 | 16) => ItemKind::Complex,
            (DTypeKind::DateTime, _) => match TimeUnit::of(json::text(spelled)?) {
                Some(unit) => ItemKind::DateTime(unit),
                None => ItemKind::TimeDelta,
            },
            (DTypeKind::TimeDelta, _) => ItemKind::TimeDelta,
            (DTypeKind::Bytes, _) => ItemKind::Bytes,
            (DTypeKind::Text, _) => ItemKind::Text,
            (DTypeKind::Void, _) => ItemKind::Void,
            (DTypeKind::Struct(fields), _) => {
                let element = |(i, field): (usize, &Field)| {
                    let count = usize::try_from(field.shape.iter().product::<u64>()).ok()?;
                    Some((
                        Self::of_dtype(&field.dtype, spelled.get(i)?.get(1)?)?,
                        count,
                    ))
                };
                ItemKind::Struct(
                    fields
                        .iter()
                        .enumerate()
                        .map(element)
                        .collect::<Option<_>>()?,
                )
            }
            _ => return None,
        };
        Some(ItemText {
            kind,
            size: dtype.size(),
            is_big_endian: dtype.is_big_endian(),
        })
    }

    /// Writes the item in `bytes`, its columns separated by spaces.
    pub fn write(&self, bytes: &[u8], out: &mut String) {
        match &self.kind {
            ItemKind::Bool => out.push(if bytes.iter().all(|byte| *byte == 0) {
                '0'
            } else {
                '1'
            }),
            ItemKind::Int => push(self.int(bytes), out),
            ItemKind::UInt => push(self.unsigned(bytes), out),
            ItemKind::Float => write_float(self.unsigned(bytes), self.size, out),
            ItemKind::Complex => {
                let (real, imaginary) = bytes.split_at(bytes.len().min(self.size / 2));
                write_float(self.unsigned(real), self.size / 2, out);
                out.push(' ');
                write_float(self.unsigned(imaginary), self.size / 2, out);
            }
            ItemKind::DateTime(_) | ItemKind::TimeDelta if self.int(bytes) == i64::MIN => {
                out.push_str("NaT")
            }
            ItemKind::DateTime(unit) => unit.write(self.int(bytes), out),
            ItemKind::TimeDelta => push(self.int(bytes), out),
            ItemKind::Bytes => write_word(without_padding(bytes), out),
            ItemKind::Text => self.write_text(bytes, out),
            ItemKind::Void => bytes
                .iter()
                .for_each(|byte| push(format_args!("{byte:02x}"), out)),
            ItemKind::Struct(fields) => write_fields(fields, bytes, out),
        }
    }

    /// Returns the item's bits as a number; at most its first eight bytes.
    fn unsigned(&self, bytes: &[u8]) -> u64 {
        let shifted = |number: u64, byte: &u8| number << 8 | u64::from(*byte);
        if self.is_big_endian {
            bytes.iter().take(8).fold(0, shifted)
        } else {
            bytes.iter().take(8).rev().fold(0, shifted)
        }
    }

    fn int(&self, bytes: &[u8]) -> i64 {
        let unused = 64 - 8 * self.size.clamp(1, 8) as u32;
        (self.unsigned(bytes) << unused) as i64 >> unused
    }

    /// Writes the characters before the padding. What is no character is written as its number.
    fn write_text(&self, bytes: &[u8], out: &mut String) {
        let mut codes: Vec<u32> = bytes
            .chunks_exact(4)
            .map(|code| self.unsigned(code) as u32)
            .collect();
        let end = codes
            .iter()
            .rposition(|code| *code != 0)
            .map_or(0, |last| last + 1);
        codes.truncate(end);
        match codes
            .iter()
            .map(|code| char::from_u32(*code))
            .collect::<Option<String>>()
        {
            Some(text) => write_word(text.as_bytes(), out),
            None => {
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
    }
}

fn push(value: impl std::fmt::Display, out: &mut String) {
    // writing to a String cannot fail
    let _ = write!(out, "{value}");
}

fn write_fields(fields: &[(ItemText, usize)], bytes: &[u8], out: &mut String) {
    let mut at = 0usize;
    let mut is_first = true;
    for (field, count) in fields {
        for _ in 0..*count {
            if !std::mem::take(&mut is_first) {
                out.push(' ');
            }
            field.write(bytes.get(at..at + field.size).unwrap_or_default(), out);
            at += field.size;
        }
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
    match (value.is_nan(), is_plain(value)) {
        (true, _) => out.push_str("nan"),
        // of its own digits, not those of the wider number
        (_, true) if size == 4 => push(single, out),
        (_, false) if size == 4 => push(format_args!("{single:e}"), out),
        (_, true) => push(value, out),
        (_, false) => push(format_args!("{value:e}"), out),
    }
}

/// Returns whether a float is written without an exponent.
fn is_plain(x: f64) -> bool {
    x == 0.0 || x.is_infinite() || (1e-5..1e16).contains(&x.abs())
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
    let is_word = |text: &&str| {
        let breaks = |c: char| c.is_whitespace() || c == '"';
        !text.is_empty() && !text.contains(breaks) && one_line(*text) == **text
    };
    if let Some(word) = std::str::from_utf8(bytes).ok().filter(is_word) {
        return out.push_str(word);
    }
    out.push('"');
    for chunk in bytes.utf8_chunks() {
        out.push_str(&escaped(chunk.valid()));
        chunk
            .invalid()
            .iter()
            .for_each(|byte| push(format_args!("\\x{byte:02x}"), out));
    }
    out.push('"');
}

fn escaped(text: &str) -> String {
    one_line(text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Returns a number of a dtype of integers or floats of up to 8 bytes.
pub fn number(dtype: &DType, bytes: &[u8]) -> Option<MetadataNumber> {
    use MetadataNumber::{Float, Int};
    let item = ItemText {
        kind: ItemKind::Int,
        size: dtype.size(),
        is_big_endian: dtype.is_big_endian(),
    };
    Some(match (dtype.kind(), dtype.size()) {
        (DTypeKind::Int, _) => Int(item.int(bytes).into()),
        (DTypeKind::UInt, _) => Int(item.unsigned(bytes).into()),
        (DTypeKind::Float, 2) => Float(f16::from_bits(item.unsigned(bytes) as u16).to_f64()),
        (DTypeKind::Float, 4) => Float(f32::from_bits(item.unsigned(bytes) as u32).into()),
        (DTypeKind::Float, 8) => Float(f64::from_bits(item.unsigned(bytes))),
        _ => return None,
    })
}
