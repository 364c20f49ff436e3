//! Fill values: from the `fill_value` of a document to the bytes of one item, and back. The module
//! knows neither arrays nor codecs. Source of the rules: `encode_fill_value` and
//! `decode_fill_value` of zarr-python 2.18.
//!
//! An item is passed without the zero bytes at its end, since a fill value of a few letters may
//! stand for an item of gigabytes.

use crate::dtype::{DType, DTypeKind};
use crate::word;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::json::{self, Value};

/// Maximum size in bytes of an item whose zeros are written as base64. For larger items null has
/// the same effect.
pub const MAX_SPELLED: usize = 1 << 20;

/// What the fill value of an array stands for in files of other programs, where no attribute names
/// a missing value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FillMeaning {
    /// Missing values in arrays of v1 and v2 with xarray's names of dimensions, as xarray reads
    /// them. Zeros of files to which a store refers are ordinary values: zero is the default of
    /// HDF5, and Kerchunk keeps no other trace of `_FillValue`.
    #[default]
    Auto,
    /// Missing values.
    Missing,
    /// An ordinary value.
    Value,
}

impl DType {
    /// Returns the item that `fill_value` stands for in Zarr v1, without the zero bytes at its end.
    /// Unlike v2, v1 has no base64: a text of a bytes dtype stands for its own bytes.
    ///
    /// # Errors
    ///
    /// The errors of [`DType::parse_fill_value`].
    pub fn parse_fill_value_v1(&self, fill_value: &Value) -> Result<Option<Vec<u8>>> {
        match (self.kind(), json::text(fill_value)) {
            (DTypeKind::Bytes, Some(text)) => Ok(Some(without_zeros(self.fit(text.bytes())))),
            _ => self.parse_fill_value(fill_value),
        }
    }

    /// Returns the item that `fill_value` stands for as zarr-python 2.18 reads it, without the zero
    /// bytes at its end. Returns `None` for null and for objects.
    ///
    /// # Errors
    ///
    /// [`Kind::Damaged`](zarrfs_base::error::Kind::Damaged) if the value does not fit the dtype.
    pub fn parse_fill_value(&self, fill_value: &Value) -> Result<Option<Vec<u8>>> {
        if fill_value.is_null() || self.has_objects() {
            return Ok(None);
        }
        let item = match self.kind() {
            DTypeKind::Struct(_) | DTypeKind::Void => self.parse_opaque(fill_value),
            DTypeKind::Bytes => self.parse_bytes(fill_value),
            DTypeKind::Text => python_str(fill_value).map(|s| self.fit(self.units_of(&s))),
            DTypeKind::Complex => self.parse_complex(fill_value),
            _ => self.parse_number(fill_value),
        };
        item.map(without_zeros).map(Some).ok_or_else(|| {
            let shown = json::write(fill_value);
            Error::damaged(format!("fill_value {shown:.40} does not fit the dtype"))
        })
    }

    /// Returns the fill value for `item` as zarr-python 2.18 writes it: the inverse of
    /// [`DType::parse_fill_value`]. Returns `None` if no fill value makes every reader see exactly
    /// this item, such as a NaN with a payload, and for objects, whose fill values are no bytes.
    pub fn fill_value_json(&self, item: &[u8]) -> Option<Value> {
        let value = match self.kind() {
            _ if self.has_objects() => return None,
            DTypeKind::Struct(_) | DTypeKind::Void
                if self.size() > MAX_SPELLED && item.is_empty() =>
            {
                return Some(Value::Null);
            }
            DTypeKind::Struct(_) | DTypeKind::Void => STANDARD.encode(self.whole(item)).into(),
            DTypeKind::Bytes => STANDARD.encode(item).into(),
            DTypeKind::Text => self.text_of(&self.whole(item))?.into(),
            DTypeKind::Bool => item.iter().any(|byte| *byte != 0).into(),
            DTypeKind::Float => float_json(self.float_of(&self.whole(item))),
            DTypeKind::Complex => {
                let whole = self.whole(item);
                let (re, im) = whole.split_at(self.size() / 2);
                Value::Array(vec![
                    float_json(self.float_of(re)),
                    float_json(self.float_of(im)),
                ])
            }
            DTypeKind::UInt => self.unsigned_of(&self.whole(item)).into(),
            DTypeKind::Int | DTypeKind::TimeDelta | DTypeKind::DateTime => {
                // shifting left and back extends the sign
                let unused = 64 - 8 * self.size() as u32;
                ((self.unsigned_of(&self.whole(item)) << unused) as i64 >> unused).into()
            }
            DTypeKind::Object => return None,
        };
        let read = self.parse_fill_value(&value).ok().flatten()?;
        (read == without_zeros(item.to_vec())).then_some(value)
    }

    /// Returns `item` with the zero bytes at its end. Readers add those of a large item, of which
    /// this returns whole characters of text, of four bytes each.
    fn whole(&self, item: &[u8]) -> Vec<u8> {
        let len = if self.size() > MAX_SPELLED {
            item.len().next_multiple_of(4)
        } else {
            self.size()
        };
        let mut whole = item.to_vec();
        whole.resize(len, 0);
        whole
    }

    /// Parses the item of a void or a struct: base64, padded or cut to the item size as NumPy does,
    /// or the number 0.
    fn parse_opaque(&self, value: &Value) -> Option<Vec<u8>> {
        if value.as_i64() == Some(0) {
            return Some(Vec::new());
        }
        Some(self.fit(json::base64_decode(json::text(value)?.as_bytes())?))
    }

    /// Parses base64, or plain text or a number from before Zarr used base64.
    fn parse_bytes(&self, value: &Value) -> Option<Vec<u8>> {
        let decoded = json::text(value).and_then(|s| json::base64_decode(s.as_bytes()));
        let bytes = match decoded {
            Some(bytes) => bytes,
            None => python_str(value).filter(|s| s.is_ascii())?.into_bytes(),
        };
        Some(self.fit(bytes))
    }

    /// Parses a pair of floats, or one, as `real + 1j * imag`: an imaginary part that is not finite
    /// makes the real part NaN.
    fn parse_complex(&self, value: &Value) -> Option<Vec<u8>> {
        let half = self.size() / 2;
        let (re, im) = match value.as_array().map(Vec::as_slice) {
            Some([re, im]) => (float_like(re)?, float_like(im)?),
            _ => (float_like(value)?, 0.0),
        };
        let re = if im.is_finite() { re } else { f64::NAN };
        Some([self.float_bytes(re, half), self.float_bytes(im + 0.0, half)].concat())
    }

    fn parse_number(&self, value: &Value) -> Option<Vec<u8>> {
        let size = self.size();
        match self.kind() {
            DTypeKind::Bool => Some(vec![(float_like(value)? != 0.0).into()]),
            DTypeKind::Float => match json::text(value).and_then(|s| s.strip_prefix("0x")) {
                Some(hex) if hex.len() == 2 * size => {
                    let bytes: Option<Vec<u8>> = (0..size)
                        .rev()
                        .map(|i| u8::from_str_radix(hex.get(2 * i..2 * i + 2)?, 16).ok())
                        .collect();
                    Some(self.ordered(&bytes?))
                }
                _ => Some(self.float_bytes(float_like(value)?, size)),
            },
            DTypeKind::TimeDelta | DTypeKind::DateTime if json::text(value) == Some("NaT") => {
                Some(self.ordered(&i64::MIN.to_le_bytes()))
            }
            DTypeKind::TimeDelta | DTypeKind::DateTime if !value.is_i64() => None,
            kind => {
                let n = integer_like(value)?;
                let bits = 8 * size as u32;
                let (low, high) = match kind {
                    DTypeKind::UInt => (0, (1i128 << bits) - 1),
                    _ => (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1),
                };
                (low..=high)
                    .contains(&n)
                    .then(|| self.ordered(&n.to_le_bytes()[..size]))
            }
        }
    }

    /// Returns the bytes of a float of `size` bytes in this dtype's byte order. 16 bytes are x86's
    /// extended float.
    fn float_bytes(&self, v: f64, size: usize) -> Vec<u8> {
        match size {
            2 => self.ordered(&half::f16::from_f64(v).to_le_bytes()),
            4 => self.ordered(&(v as f32).to_le_bytes()),
            8 => self.ordered(&v.to_le_bytes()),
            _ => self.ordered(&to_extended(v)),
        }
    }

    /// Returns the double nearest to a float of 2, 4, 8 or 16 bytes in this dtype's byte order.
    pub fn float_of(&self, bytes: &[u8]) -> f64 {
        match bytes.len() {
            2 => half::f16::from_bits(self.unsigned_of(bytes) as u16).to_f64(),
            4 => f64::from(f32::from_bits(self.unsigned_of(bytes) as u32)),
            8 => f64::from_bits(self.unsigned_of(bytes)),
            _ => from_extended(&self.ordered(bytes)),
        }
    }

    /// Returns the unsigned integer that at most 8 bytes hold in this dtype's byte order.
    pub fn unsigned_of(&self, bytes: &[u8]) -> u64 {
        word::load(bytes, self.is_big_endian())
    }

    /// Returns the text of a UCS-4 item, or `None` if it is not Unicode.
    pub fn text_of(&self, item: &[u8]) -> Option<String> {
        let units = item
            .chunks_exact(4)
            .map(|unit| char::from_u32(self.unsigned_of(unit) as u32));
        units
            .collect::<Option<String>>()
            .map(|text| text.trim_end_matches('\0').to_string())
    }

    /// Returns the bytes of a text in UCS-4.
    pub fn units_of(&self, text: &str) -> Vec<u8> {
        let units = text.chars().map(|c| u32::from(c).to_le_bytes());
        units.flat_map(|unit| self.ordered(&unit)).collect()
    }

    /// Converts between little-endian bytes and this dtype's byte order.
    pub fn ordered(&self, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        if self.is_big_endian() {
            bytes.reverse();
        }
        bytes
    }

    /// Cuts `bytes` to the item size.
    fn fit(&self, bytes: impl IntoIterator<Item = u8>) -> Vec<u8> {
        bytes.into_iter().take(self.size()).collect()
    }
}

/// Removes the zero bytes at the end of an item.
pub fn without_zeros(mut item: Vec<u8>) -> Vec<u8> {
    item.truncate(
        item.iter()
            .rposition(|&b| b != 0)
            .map_or(0, |last| last + 1),
    );
    item
}

/// Returns the number that NumPy makes of a JSON number, a boolean, or a string that spells a
/// number.
fn float_like(value: &Value) -> Option<f64> {
    match value {
        Value::Bool(b) => Some(f64::from(u8::from(*b))),
        _ => json::float(value).or_else(|| {
            let s = json::text(value)?.trim();
            json::float_word(s).or_else(|| s.parse().ok())
        }),
    }
}

/// Returns the integer that NumPy makes of a JSON value; fractions are cut off.
fn integer_like(value: &Value) -> Option<i128> {
    match value {
        Value::Number(n) => n.as_str().parse().ok().or_else(|| {
            json::float(value)
                .filter(|f| f.abs() < 1e30)
                .map(|f| f as i128)
        }),
        Value::Bool(b) => Some(i128::from(*b)),
        _ => json::text(value)?.trim().parse().ok(),
    }
}

/// Returns the text that NumPy makes of a JSON string or number.
fn python_str(value: &Value) -> Option<String> {
    match value {
        Value::Number(n) if n.as_str().contains(['.', 'e', 'E']) => {
            json::float(value).map(python_float)
        }
        Value::Number(n) => Some(n.to_string()),
        _ => json::text(value).map(str::to_string),
    }
}

/// Formats a float as Python's `repr` does: the shortest digits, with an exponent below 1e-4 and
/// from 1e16 on.
fn python_float(f: f64) -> String {
    let scientific = format!("{f:e}");
    match scientific
        .split_once('e')
        .and_then(|(digits, e)| Some((digits, e.parse::<i32>().ok()?)))
    {
        _ if f.is_infinite() => if f > 0.0 { "inf" } else { "-inf" }.to_string(),
        Some((digits, e)) if f != 0.0 && !(-4..16).contains(&e) => {
            format!("{digits}e{}{:02}", if e < 0 { '-' } else { '+' }, e.abs())
        }
        _ if f.fract() == 0.0 => format!("{f:.1}"),
        _ => f.to_string(),
    }
}

/// Returns a float as zarr-python writes it: a word in a string where JSON has no number for it.
pub fn float_json(number: f64) -> Value {
    match number {
        _ if number.is_nan() => "NaN".into(),
        f64::INFINITY => "Infinity".into(),
        f64::NEG_INFINITY => "-Infinity".into(),
        _ => number.into(),
    }
}

/// Converts to x86's 80-bit extended float, little-endian and padded to 16 bytes. 1.0 has mantissa
/// 2^63 and exponent 16383.
fn to_extended(v: f64) -> [u8; 16] {
    let bits = v.to_bits();
    let sign = ((bits >> 63) as u16) << 15;
    let fraction = bits << 12 >> 1;
    let (exponent, mantissa) = match (bits >> 52) as u16 & 0x7ff {
        0 if fraction == 0 => (0, 0),
        0 => {
            let shift = fraction.leading_zeros();
            (16383 - 1022 - shift as u16, fraction << shift)
        }
        0x7ff => (0x7fff, 1 << 63 | fraction),
        e => (e + 16383 - 1023, 1 << 63 | fraction),
    };
    let mut out = [0; 16];
    out[..8].copy_from_slice(&mantissa.to_le_bytes());
    out[8..10].copy_from_slice(&(sign | exponent).to_le_bytes());
    out
}

/// Returns the double nearest to a little-endian x86 extended float: the inverse of
/// [`to_extended`].
fn from_extended(bytes: &[u8]) -> f64 {
    let mantissa = word::load(&bytes[..8], false);
    let high = word::load(&bytes[8..10], false);
    let sign = if high >> 15 == 0 { 1.0 } else { -1.0 };
    sign * match high as i32 & 0x7fff {
        0x7fff if mantissa << 1 == 0 => f64::INFINITY,
        0x7fff => f64::NAN,
        // in two steps, since 2 to the whole exponent may exceed the doubles although the product
        // does not
        exponent => {
            let exponent = (exponent - 16383 - 63).clamp(-2000, 2000);
            mantissa as f64 * 2f64.powi(exponent / 2) * 2f64.powi(exponent - exponent / 2)
        }
    }
}

#[cfg(test)]
mod tests;
