//! Items of arrays and missing values as numbers.

use super::super::described::MetadataNumber;
use super::{DIMENSIONS, attributes};
use crate::util::json::{self, Map, Value};
use crate::zarr::dtype::{DType, DTypeKind};
use crate::zarr::metadata::ArrayMetadata;

/// Returns whether CF's numeric attributes apply to the dtype.
pub fn is_number(dtype: &DType) -> bool {
    matches!(dtype.kind(), DTypeKind::Int | DTypeKind::UInt)
        || *dtype.kind() == DTypeKind::Float && dtype.size() <= 8
}

/// Returns the number in the bytes of one item; `None` unless the dtype is numeric or a time. A
/// four-byte float becomes the shortest decimal that it represents: 0.1, not 0.10000000149.
pub fn item(dtype: &DType, bytes: &[u8]) -> Option<MetadataNumber> {
    let size = dtype.size();
    let mut little = [0; 8];
    little.get_mut(..size)?.copy_from_slice(bytes.get(..size)?);
    if dtype.is_big_endian() {
        little.get_mut(..size)?.reverse();
    }
    let unsigned = u64::from_le_bytes(little);
    let unused = 64 - 8 * size as u32;
    Some(match (dtype.kind(), size) {
        (DTypeKind::UInt, _) => MetadataNumber::Int(unsigned.into()),
        (DTypeKind::Int | DTypeKind::DateTime | DTypeKind::TimeDelta, _) => {
            MetadataNumber::Int(((unsigned << unused) as i64 >> unused).into())
        }
        (DTypeKind::Float, 2) => {
            MetadataNumber::Float(half::f16::from_bits(unsigned as u16).to_f64())
        }
        (DTypeKind::Float, 4) => {
            MetadataNumber::Float(f32::from_bits(unsigned as u32).to_string().parse().ok()?)
        }
        (DTypeKind::Float, 8) => MetadataNumber::Float(f64::from_bits(unsigned)),
        _ => return None,
    })
}

/// Returns the missing value: [`attribute_nodata`], or else the fill value of a v1 or v2 array with
/// xarray's names of dimensions, as in xarray and GDAL. Every v3 array has a fill value, so that
/// xarray treats it as ordinary data.
pub fn nodata(metadata: &ArrayMetadata, attributes: &Map<String, Value>) -> Option<MetadataNumber> {
    let dtype = &metadata.dtype;
    attribute_nodata(metadata, attributes).or_else(|| {
        let is_missing = is_number(dtype) && has_xarray_names(metadata, attributes);
        let mut fill = metadata.fill.clone().filter(|_| is_missing)?;
        // trailing zero bytes are not stored
        fill.resize(dtype.size(), 0);
        item(dtype, &fill)
    })
}

/// Returns whether xarray takes the fill value of the array for missing data.
pub fn has_xarray_names(metadata: &ArrayMetadata, attributes: &Map<String, Value>) -> bool {
    metadata.v3.is_none() && attributes.contains_key(DIMENSIONS)
}

/// Returns CF's `_FillValue` or `missing_value` if it is a number that an item can hold.
pub fn attribute_nodata(
    metadata: &ArrayMetadata,
    attributes: &Map<String, Value>,
) -> Option<MetadataNumber> {
    let dtype = &metadata.dtype;
    let is_v3 = metadata.v3.is_some();
    let number = |name: &&str| number(dtype, attributes::first(attributes.get(*name)?)?, is_v3);
    ["_FillValue", "missing_value"]
        .iter()
        .filter(|_| is_number(dtype))
        .find_map(number)
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
        return (!float.is_finite() || float.abs() <= largest)
            .then_some(MetadataNumber::Float(float));
    }
    let Value::Number(number) = value else {
        return None;
    };
    let whole = || {
        json::float(value)
            .filter(|float| float.fract() == 0.0 && float.abs() < 1e30)
            .map(|float| float as i128)
    };
    let number = number.as_str().parse::<i128>().ok().or_else(whole)?;
    let bits = 8 * dtype.size();
    let range = match dtype.kind() {
        DTypeKind::UInt => 0..1i128 << bits,
        _ => -(1i128 << (bits - 1))..1i128 << (bits - 1),
    };
    range
        .contains(&number)
        .then_some(MetadataNumber::Int(number))
}

/// Parses a float from a text: a word, or with `is_v3` eight bytes in base64, as xarray's
/// `FillValueCoder` writes them into v3 attributes.
pub fn parse_float(text: &str, is_v3: bool) -> Option<f64> {
    json::float_word(text).or_else(|| {
        let bytes: [u8; 8] = json::base64_decode(text.as_bytes())
            .filter(|_| is_v3)?
            .try_into()
            .ok()?;
        Some(f64::from_le_bytes(bytes))
    })
}
