//! The fill values of v3: from JSON to the bytes of one item, and back. The module knows neither
//! arrays nor codecs. Source of the rules: the Zarr v3.1 specification, "Fill value", and the
//! registry of data types.
//!
//! As in [`fill_value`](crate::fill_value), an item is passed without the zero bytes at its
//! end.

use crate::data_type::{self, DataType};
use crate::dtype::{DType, DTypeKind, Field};
use crate::fill_value::{MAX_SPELLED, float_json, without_zeros};
use crate::real::{RealKind, RealType};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::json::{self, Map, Value};

/// Returns the item that `value` stands for, without the zero bytes at its end. `parsed` is the
/// parsed `data_type`. Null stands for zeros, as zarrita writes it. Returns `None` for items of
/// variable length, whose fill value is only checked.
///
/// # Errors
///
/// [`Kind::Damaged`](zarrfs_base::error::Kind::Damaged) if the value does not fit the data type.
pub fn parse(value: &Value, data_type: &Value, parsed: &DataType) -> Result<Option<Vec<u8>>> {
    let item = match data_type::name(data_type) {
        Some(name) if *parsed.dtype.kind() == DTypeKind::Object => {
            (value.is_null() || is_variable_length(value, name)).then_some(None)
        }
        Some(_) if value.is_null() => Some(Some(Vec::new())),
        Some(_) => item_of(value, data_type, &parsed.dtype).map(Some),
        None => None,
    };
    item.ok_or_else(|| {
        let shown = json::write(value);
        Error::damaged(format!("fill_value {shown:.40} does not fit the data type"))
    })
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
            dtype.units_of(text)
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

/// Parses a number, a boolean, a time or a complex number.
fn number_item(value: &Value, name: &str, dtype: &DType) -> Option<Vec<u8>> {
    let Some(part) = component(name) else {
        let bits = number_bits(value, name)?;
        return Some(dtype.ordered(&bits.to_le_bytes()[..dtype.size()]));
    };
    let [re, im] = value.as_array()?.as_slice() else {
        return None;
    };
    let mut item = Vec::new();
    for number in [re, im] {
        let bits = number_bits(number, part)?.to_le_bytes();
        item.extend(dtype.ordered(&bits[..dtype.size() / 2]));
    }
    Some(item)
}

/// Returns the bits of a number that is not complex.
fn number_bits(value: &Value, name: &str) -> Option<u64> {
    match (name, value) {
        ("bool", Value::Bool(bit)) => Some(u64::from(*bit)),
        (time, _) if time.starts_with("numpy.") && json::text(value) == Some("NaT") => {
            Some(i64::MIN as u64)
        }
        // TensorStore writes 0.0 for the smallest number of a type without zero
        ("float8_e8m0fnu", Value::Number(_)) if json::float(value) == Some(0.0) => Some(0),
        _ => real_type(name)?
            .scalar(value)
            .filter(|bits| name != "bool" || *bits <= 1),
    }
}

/// Returns the type of numbers as which those of a data type are read.
fn real_type(name: &str) -> Option<RealType> {
    match name {
        "bool" => RealType::parse("uint8"),
        time if time.starts_with("numpy.") => RealType::parse("int64"),
        _ => RealType::parse(name),
    }
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
    let Some(part) = component(name) else {
        return number_value(item, name, dtype);
    };
    let (re, im) = item.split_at(item.len() / 2);
    Some(Value::Array(vec![
        number_value(re, part, dtype)?,
        number_value(im, part, dtype)?,
    ]))
}

/// Returns an integer as a number, and a float as a number or a word if these stand for exactly its
/// bits, otherwise its bits in hexadecimal.
fn number_value(item: &[u8], name: &str, dtype: &DType) -> Option<Value> {
    let real = real_type(name)?;
    let bits = dtype.unsigned_of(item);
    let RealKind::Float(format) = real.kind else {
        let number = real.integer(bits);
        return Some(i64::try_from(number).map_or_else(|_| bits.into(), Value::from));
    };
    let shown = float_json(format.to_f64(bits));
    if number_bits(&shown, name) == Some(bits) {
        return Some(shown);
    }
    Some(format!("0x{bits:0width$x}", width = 2 * item.len()).into())
}

/// Returns the type of the two floats in a complex type.
fn component(name: &str) -> Option<&str> {
    match name {
        "complex64" => Some("float32"),
        "complex128" => Some("float64"),
        _ => name.strip_prefix("complex_"),
    }
}

/// Returns whether a type is opaque bytes: `r16` or `raw_bytes`.
fn is_raw(name: &str) -> bool {
    name.starts_with('r')
}

/// Parses bytes from base64 text or a list of integers.
fn bytes_of(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::Array(list) => list
            .iter()
            .map(|byte| Some(number_bits(byte, "uint8")? as u8))
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
