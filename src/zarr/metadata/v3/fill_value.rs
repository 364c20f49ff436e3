//! The fill values of v3: from JSON to the bytes of one item, and back. The module knows neither
//! arrays nor codecs. Source of the rules: the Zarr v3.1 specification, "Fill value", and the
//! registry of data types.
//!
//! As in [`fill_value`](crate::zarr::fill_value), an item is passed without the zero bytes at its
//! end.

use super::data_type::{self, DataType};
use crate::error::{Error, Result};
use crate::util::json::{self, Map, Value};
use crate::zarr::dtype::{DType, DTypeKind, Field};
use crate::zarr::fill_value::{MAX_SPELLED, float_json, without_zeros};
use crate::zarr::float_format::{FloatFormat, RoundingMode};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Largest integer below which every integer is a double, so that `1.0` stands for exactly one
/// integer.
const MAX_WHOLE: f64 = 9007199254740992.0;

/// Returns the item that `value` stands for, without the zero bytes at its end. `parsed` is the
/// parsed `data_type`. Null stands for zeros, as zarrita writes it. Returns `None` for items of
/// variable length, whose fill value is only checked.
///
/// # Errors
///
/// [`Kind::Damaged`](crate::error::Kind::Damaged) if the value does not fit the data type.
pub fn parse(value: &Value, data_type: &Value, parsed: &DataType) -> Result<Option<Vec<u8>>> {
    let shown = || json::write(value).chars().take(40).collect::<String>();
    let bad = || Error::damaged(format!("fill_value {} does not fit the data type", shown()));
    let name = data_type::name(data_type).ok_or_else(bad)?;
    match parsed.dtype.kind() {
        DTypeKind::Object if value.is_null() || is_variable_length(value, name) => Ok(None),
        DTypeKind::Object => Err(bad()),
        _ if value.is_null() => Ok(Some(Vec::new())),
        _ => item_of(value, data_type, &parsed.dtype)
            .map(Some)
            .ok_or_else(bad),
    }
}

/// Returns the fill value for `item`, which may lack the zero bytes at its end: the inverse of
/// [`parse`]. Floats that no number or word stands for, such as a NaN with a payload, become
/// hexadecimal. Returns `None` if no fill value stands for the item: a boolean other than 0 and 1,
/// text that is not Unicode, or a large item that is not all zeros.
pub fn spell(item: &[u8], data_type: &Value, parsed: &DataType) -> Option<Value> {
    if *parsed.dtype.kind() == DTypeKind::Object {
        return item.is_empty().then(|| "".into());
    }
    let value = if parsed.dtype.size() > MAX_SPELLED {
        item.iter().all(|byte| *byte == 0).then_some(Value::Null)?
    } else {
        json_of(&padded(item, parsed.dtype.size()), data_type, &parsed.dtype)?
    };
    let read = parse(&value, data_type, parsed).ok().flatten()?;
    (read == without_zeros(item.to_vec())).then_some(value)
}

/// Checks the fill value of a type of variable length: text, or bytes as base64 or as a list.
fn is_variable_length(value: &Value, name: &str) -> bool {
    match name {
        "string" => json::text(value).is_some(),
        _ => bytes_of(value).is_some(),
    }
}

/// Parses an item of fixed size, without the zero bytes at its end.
fn item_of(value: &Value, data_type: &Value, dtype: &DType) -> Option<Vec<u8>> {
    let name = data_type::name(data_type)?;
    let size = dtype.size();
    let item = match dtype.kind() {
        DTypeKind::Struct(fields) => match value {
            Value::Object(members) => packed(members, data_type, fields)?,
            _ => base64_of(value).filter(|bytes| bytes.len() == size)?,
        },
        DTypeKind::Bytes => base64_of(value).filter(|bytes| bytes.len() <= size)?,
        DTypeKind::Text => {
            let text = json::text(value).filter(|text| text.chars().count() <= size / 4)?;
            text.chars()
                .flat_map(|c| dtype.ordered(&u32::from(c).to_le_bytes()))
                .collect()
        }
        DTypeKind::Void if is_raw(name) => bytes_of(value).filter(|bytes| bytes.len() == size)?,
        DTypeKind::Object => return None,
        _ => number_item(value, name, dtype)?,
    };
    Some(without_zeros(item))
}

/// Parses the fill value of a struct: an object with a member for each field, and no others.
fn packed(members: &Map<String, Value>, data_type: &Value, fields: &[Field]) -> Option<Vec<u8>> {
    let types = data_type::fields(data_type)?;
    if members.len() != fields.len() || types.len() != fields.len() {
        return None;
    }
    let mut whole = Vec::new();
    let mut at = 0usize;
    let mut padding = 0usize;
    for (field, (name, data_type)) in fields.iter().zip(types) {
        let item = item_of(members.get(name)?, data_type, &field.dtype)?;
        if !item.is_empty() {
            // a short document could ask for gigabytes of zeros
            padding += at - whole.len();
            if padding > MAX_SPELLED {
                return None;
            }
            whole.resize(at, 0);
            whole.extend_from_slice(&item);
        }
        at += field.dtype.size();
    }
    Some(whole)
}

fn number_item(value: &Value, name: &str, dtype: &DType) -> Option<Vec<u8>> {
    let size = dtype.size();
    if let Some((low, high)) = integer_range(name) {
        let number = match value {
            Value::Bool(bit) if name == "bool" => i128::from(*bit),
            _ if json::text(value) == Some("NaT") && name.starts_with("numpy.") => {
                i128::from(i64::MIN)
            }
            _ => integer(value)?,
        };
        return (low..=high)
            .contains(&number)
            .then(|| dtype.ordered(&number.to_le_bytes()[..size]));
    }
    match component(name) {
        Some(part) => {
            let [re, im] = value.as_array()?.as_slice() else {
                return None;
            };
            let [re, im] = [
                float_item(re, part, size / 2, dtype)?,
                float_item(im, part, size / 2, dtype)?,
            ];
            Some([re, im].concat())
        }
        None => float_item(value, name, size, dtype),
    }
}

/// Parses a float of `size` bytes: a number, a word, or its bits in hexadecimal.
fn float_item(value: &Value, name: &str, size: usize, dtype: &DType) -> Option<Vec<u8>> {
    let bits = match json::text(value) {
        Some(text) => match text.strip_prefix("0x") {
            Some(digits)
                if digits.len() == 2 * size && digits.bytes().all(|b| b.is_ascii_hexdigit()) =>
            {
                u64::from_str_radix(digits, 16).ok()?
            }
            Some(_) => return None,
            None => float_bits(json::float_word(text)?, name)?,
        },
        None => {
            let number = json::float(value)?;
            // a JSON number beyond the range of doubles is no infinity
            let is_word = !value.is_number();
            float_bits(number, name).filter(|_| is_word || number.is_finite())?
        }
    };
    Some(dtype.ordered(bits.to_le_bytes().get(..size)?))
}

/// Returns the item as JSON. [`spell`] checks that [`parse`] returns the same item for it.
fn json_of(item: &[u8], data_type: &Value, dtype: &DType) -> Option<Value> {
    let name = data_type::name(data_type)?;
    match dtype.kind() {
        DTypeKind::Struct(_) if name == "structured" => Some(STANDARD.encode(item).into()),
        DTypeKind::Struct(fields) => {
            let mut members = Map::new();
            let mut rest = item;
            for (field, (name, data_type)) in fields.iter().zip(data_type::fields(data_type)?) {
                let (part, behind) = rest.split_at_checked(field.dtype.size())?;
                members.insert(name.to_string(), json_of(part, data_type, &field.dtype)?);
                rest = behind;
            }
            Some(Value::Object(members))
        }
        DTypeKind::Bytes => Some(STANDARD.encode(without_zeros(item.to_vec())).into()),
        DTypeKind::Text => Some(dtype.text_of(item)?.into()),
        DTypeKind::Void if name == "raw_bytes" => Some(STANDARD.encode(item).into()),
        DTypeKind::Void if is_raw(name) => Some(item.into()),
        DTypeKind::Bool => Some(item.iter().any(|byte| *byte != 0).into()),
        DTypeKind::Object => None,
        _ => number_json(item, name, dtype),
    }
}

fn number_json(item: &[u8], name: &str, dtype: &DType) -> Option<Value> {
    if let Some((low, _)) = integer_range(name) {
        let number = dtype.unsigned_of(item);
        // shifting left and back extends the sign
        let unused = 64 - 8 * dtype.size() as u32;
        return Some(if low < 0 {
            ((number << unused) as i64 >> unused).into()
        } else {
            number.into()
        });
    }
    match component(name) {
        Some(part) => {
            let (re, im) = item.split_at(item.len() / 2);
            Some(Value::Array(vec![
                float_value(re, part, dtype),
                float_value(im, part, dtype),
            ]))
        }
        None => Some(float_value(item, name, dtype)),
    }
}

/// Returns a float as a number or a word if these stand for exactly its bits, otherwise its bits in
/// hexadecimal.
fn float_value(item: &[u8], name: &str, dtype: &DType) -> Value {
    let bits = dtype.unsigned_of(item);
    match float_of(bits, name).filter(|number| float_bits(*number, name) == Some(bits)) {
        Some(number) => float_json(number),
        None => format!("0x{bits:0width$x}", width = 2 * item.len()).into(),
    }
}

/// Returns the bits of a number in a float type, rounded to the nearest, or `None` if the type has
/// no such number, infinity or NaN.
fn float_bits(number: f64, name: &str) -> Option<u64> {
    let format = FloatFormat::parse(name)?;
    // TensorStore writes 0.0 for the smallest number of a type without zero
    if number == 0.0 && !format.is_signed {
        return Some(0);
    }
    if number.is_nan() {
        return format.nan();
    }
    let is_in_type = if number.is_infinite() {
        format.infinity().is_some()
    } else {
        format.has_within_range(number)
    };
    is_in_type
        .then(|| format.from_f64(number, RoundingMode::NearestEven))
        .flatten()
}

/// Returns the number that the bits of a float type encode.
fn float_of(bits: u64, name: &str) -> Option<f64> {
    FloatFormat::parse(name).map(|format| format.to_f64(bits))
}

/// Returns the type of the two floats in a complex type.
fn component(name: &str) -> Option<&str> {
    match name {
        "complex64" => Some("float32"),
        "complex128" => Some("float64"),
        _ => name.strip_prefix("complex_"),
    }
}

/// Returns the range of a type of integers, booleans or times.
fn integer_range(name: &str) -> Option<(i128, i128)> {
    let signed = |bits: u32| (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1);
    if name == "bool" {
        return Some((0, 1));
    }
    if name.starts_with("numpy.") {
        return Some(signed(64));
    }
    let bits = name
        .trim_start_matches(|c: char| !c.is_ascii_digit())
        .parse::<u32>()
        .ok();
    match (name.trim_end_matches(|c: char| c.is_ascii_digit()), bits) {
        ("int", Some(bits @ 2..=64)) => Some(signed(bits)),
        ("uint", Some(bits @ 2..=64)) => Some((0, (1i128 << bits) - 1)),
        _ => None,
    }
}

/// Returns whether a type is opaque bytes: `r16` or `raw_bytes`.
fn is_raw(name: &str) -> bool {
    name.starts_with('r')
}

/// Parses an integer, which may be written with a fraction of zeros.
fn integer(value: &Value) -> Option<i128> {
    let Value::Number(number) = value else {
        return None;
    };
    let whole = || {
        json::float(value)
            .filter(|f| f.fract() == 0.0 && f.abs() <= MAX_WHOLE)
            .map(|f| f as i128)
    };
    number.as_str().parse().ok().or_else(whole)
}

/// Parses bytes from base64 text or a list of integers.
fn bytes_of(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::Array(list) => list
            .iter()
            .map(|byte| integer(byte)?.try_into().ok())
            .collect(),
        _ => base64_of(value),
    }
}

fn base64_of(value: &Value) -> Option<Vec<u8>> {
    json::base64_decode(json::text(value)?.as_bytes())
}

/// Returns an item of at most [`MAX_SPELLED`] bytes with the zero bytes at its end.
fn padded(item: &[u8], size: usize) -> Vec<u8> {
    let mut whole = item.to_vec();
    whole.resize(size, 0);
    whole
}

#[cfg(test)]
mod tests;
