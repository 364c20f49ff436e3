//! Items of arrays and missing values as numbers.

use super::super::described::MetadataNumber;
use super::super::number::{NumberType, read_number};
use super::{DIMENSIONS, attributes};
use std::borrow::Cow;
use zarrfs_base::json::{self, Map, Value};
use zarrfs_format::dtype::{DType, DTypeKind};
use zarrfs_format::fill_value::FillMeaning;
use zarrfs_format::metadata::ArrayMetadata;

/// The attribute that states the sign of integers.
const UNSIGNED: &str = "_Unsigned";

/// Returns whether CF's numeric attributes apply to the dtype.
pub fn is_number(dtype: &DType) -> bool {
    matches!(dtype.kind(), DTypeKind::Int | DTypeKind::UInt)
        || *dtype.kind() == DTypeKind::Float && dtype.size() <= 8
}

/// Returns the number in the bytes of one item; `None` unless the dtype is numeric or a time. A
/// four-byte float becomes the shortest decimal that it represents: 0.1, not 0.10000000149.
pub fn item(dtype: &DType, bytes: &[u8]) -> Option<MetadataNumber> {
    match read_number(dtype, bytes)? {
        MetadataNumber::Float(x) if dtype.size() == 4 => {
            Some(MetadataNumber::Float((x as f32).to_string().parse().ok()?))
        }
        number => Some(number),
    }
}

/// Returns the metadata with the sign of integers that `_Unsigned` states: classic netCDF has no
/// other way to say it ("Best Practices" of the NetCDF Users Guide, "Unsigned Data").
pub fn with_stated_sign<'a>(
    metadata: &'a ArrayMetadata,
    attributes: &Map<String, Value>,
) -> Cow<'a, ArrayMetadata> {
    let stated = attributes.get(UNSIGNED).and_then(json::text);
    let shown = match (metadata.dtype.kind(), stated) {
        (DTypeKind::Int, Some("true")) | (DTypeKind::UInt, Some("false")) => {
            with_other_sign(metadata)
        }
        _ => None,
    };
    shown.map_or(Cow::Borrowed(metadata), Cow::Owned)
}

/// Returns the metadata with integers of the other sign; `None` if the items are no integers.
pub fn with_other_sign(metadata: &ArrayMetadata) -> Option<ArrayMetadata> {
    let (from, to) = match metadata.dtype.kind() {
        DTypeKind::Int => ('i', "u"),
        DTypeKind::UInt => ('u', "i"),
        _ => return None,
    };
    let spelled = DType::canonical(json::text(&metadata.dtype_json)?).ok()?;
    let spelled = spelled.replace(from, to);
    Some(ArrayMetadata {
        dtype: DType::parse_str(&spelled).ok()?,
        dtype_json: spelled.into(),
        ..metadata.clone()
    })
}

/// Returns the missing value: [`attribute_nodata`], or else the fill value, if it
/// [stands](fill_is_missing) for missing values.
pub fn nodata(
    metadata: &ArrayMetadata,
    attributes: &Map<String, Value>,
    fill_is_missing: bool,
) -> Option<MetadataNumber> {
    let dtype = &metadata.dtype;
    if let Some(named) = attribute_nodata(metadata, attributes) {
        return Some(named);
    }
    if !is_number(dtype) || !fill_is_missing {
        return None;
    }
    let mut fill = metadata.fill.clone()?;
    // trailing zero bytes are not stored
    fill.resize(dtype.size(), 0);
    item(dtype, &fill)
}

/// Returns whether the fill value of an array stands for missing values. Every v3 array has one, so
/// that xarray treats it as ordinary data.
pub fn fill_is_missing(
    meaning: FillMeaning,
    metadata: &ArrayMetadata,
    attributes: &Map<String, Value>,
) -> bool {
    match meaning {
        FillMeaning::Missing => true,
        FillMeaning::Value => false,
        FillMeaning::Auto => metadata.v3.is_none() && attributes.contains_key(DIMENSIONS),
    }
}

/// Returns CF's `_FillValue` or `missing_value` if it is a number that an item can hold.
pub fn attribute_nodata(
    metadata: &ArrayMetadata,
    attributes: &Map<String, Value>,
) -> Option<MetadataNumber> {
    let dtype = &metadata.dtype;
    if !is_number(dtype) {
        return None;
    }
    ["_FillValue", "missing_value"].iter().find_map(|name| {
        let value = attributes::items(attributes.get(*name)?).first()?;
        number(dtype, value, metadata.v3.is_some()).or_else(|| {
            // the writer means the stored type, so that the number counts modulo 2^n
            let number =
                attributes::integer(value).filter(|_| attributes.contains_key(UNSIGNED))?;
            let shown = NumberType::of(dtype)?;
            let bits = shown.with_other_sign()?.integer_bits(number)?;
            Some(MetadataNumber::Int(shown.integer(bits)))
        })
    })
}

/// Returns the number in an attribute if an item of the numeric dtype can hold it. With `is_v3`, a
/// float may be in base64.
fn number(dtype: &DType, value: &Value, is_v3: bool) -> Option<MetadataNumber> {
    if *dtype.kind() == DTypeKind::Float {
        let float = json::float(value).or_else(|| parse_float(json::text(value)?, is_v3))?;
        let largest = match dtype.size() {
            2 => half::f16::MAX.to_f64(),
            4 => f32::MAX.into(),
            _ => f64::MAX,
        };
        let is_held = !float.is_finite() || float.abs() <= largest;
        return is_held.then_some(MetadataNumber::Float(float));
    }
    let number = match (attributes::integer(value), value) {
        (Some(number), _) => number,
        (None, Value::Number(_)) => {
            let float = json::float(value)?;
            (float.fract() == 0.0 && float.abs() < 1e30).then_some(float as i128)?
        }
        _ => return None,
    };
    let is_held = NumberType::of(dtype)?.integer_bits(number).is_some();
    is_held.then_some(MetadataNumber::Int(number))
}

/// Parses a float from a text: a word, or with `is_v3` eight bytes in base64, as xarray's
/// `FillValueCoder` writes them into v3 attributes.
pub fn parse_float(text: &str, is_v3: bool) -> Option<f64> {
    json::float_word(text).or_else(|| {
        let bytes = json::base64_decode(text.as_bytes()).filter(|_| is_v3)?;
        Some(f64::from_le_bytes(bytes.try_into().ok()?))
    })
}
