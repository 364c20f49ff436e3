//! Physical values of packed items: `item * scale_factor + add_offset`, and NaN for missing ones.
//! The rules are those of xarray (`CFMaskCoder`, `CFScaleOffsetCoder` and `_choose_float_dtype` in
//! `xarray/coding/variables.py`), and so is the type of the values. This module knows items and
//! attributes, not files.

use super::describe::{
    attribute_integer, attribute_items, attribute_number, is_number, parse_float, with_stated_sign,
};
use super::number::{NumberKind, NumberType};
use half::f16;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::json::{self, Map, Value};
use zarrfs_format::metadata::ArrayMetadata;

/// Maximum number of missing values: each item is compared with all of them.
const MAX_MISSING: usize = 64;

/// The attributes that say how items are packed.
pub const PACKING_ATTRIBUTES: [&str; 5] = [
    "scale_factor",
    "add_offset",
    "_FillValue",
    "missing_value",
    "_Unsigned",
];

/// How the items of an array stand for physical values. Values are little-endian floats of 4 or 8
/// bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Packing {
    /// The type of the stored items, after `_Unsigned`.
    item: NumberType,
    /// Size of a value in bytes, 4 or 8.
    shown: usize,
    scale: Option<f64>,
    offset: Option<f64>,
    /// The items that are missing.
    missing: Vec<f64>,
    /// Whether the array names a missing value.
    has_missing: bool,
    /// The bits of the item that is stored for NaN.
    nan: Option<u64>,
}

/// A missing value, and its bits if an item can hold it.
struct MissingNumber {
    number: f64,
    bits: Option<u64>,
}

impl MissingNumber {
    /// Returns the number of a fill value, whose trailing zero bytes are not stored.
    fn of_fill(mut fill: Vec<u8>, item: NumberType) -> Self {
        fill.resize(item.size, 0);
        let bits = item.load(&fill);
        MissingNumber {
            number: item.float(bits),
            bits: Some(bits),
        }
    }
}

impl Packing {
    /// Returns how the items of an array with these attributes are packed. Returns `None` if they
    /// are no numbers, or are the values themselves and none is missing.
    pub fn of(
        metadata: &ArrayMetadata,
        attributes: &Map<String, Value>,
        fill_is_missing: bool,
    ) -> Option<Self> {
        let dtype = &metadata.dtype;
        if !is_number(dtype) || !metadata.has_numpy_dtype() {
            return None;
        }
        let stored = NumberType::of(dtype)?;
        let item = NumberType::of(&with_stated_sign(metadata, attributes).dtype)?;
        let kind = item.kind;
        let scale = attribute_number(attributes, "scale_factor");
        let offset = attribute_number(attributes, "add_offset");
        let fill = metadata.fill.clone().filter(|_| fill_is_missing);
        let mut named = match fill {
            Some(fill) => vec![MissingNumber::of_fill(fill, item)],
            None => fill_values(metadata, attributes, stored, item)?,
        };
        named.extend(listed(attributes.get("missing_value"), item, false)?);
        // NaN is missing without a name, and no integer
        named.retain(|missing| kind == NumberKind::Float || !missing.number.is_nan());
        if scale.is_none() && offset.is_none() && named.is_empty() {
            return None;
        }
        let is_small = item.size <= 2 || item.size == 4 && kind == NumberKind::Float;
        let shown = if scale.is_none() && offset.is_none() && is_small {
            4
        } else {
            8
        };
        let nan = match named.iter().find_map(|missing| missing.bits) {
            None if kind == NumberKind::Float => item.nearest(f64::NAN),
            bits => bits,
        };
        let has_missing = !named.is_empty();
        let missing = named
            .into_iter()
            .map(|missing| missing.number)
            .filter(|number| !number.is_nan())
            .collect();
        Some(Packing {
            item,
            shown,
            scale,
            offset,
            missing,
            has_missing,
            nan,
        })
    }

    /// Returns the size of a stored item in bytes.
    pub fn stored_size(&self) -> usize {
        self.item.size
    }

    /// Returns the size of a value in bytes, 4 or 8.
    pub fn shown_size(&self) -> usize {
        self.shown
    }

    /// Returns whether the array names a missing value.
    pub fn has_missing(&self) -> bool {
        self.has_missing
    }

    /// Returns the values of whole stored items.
    pub fn unpack(&self, items: &[u8]) -> Vec<u8> {
        match (self.item.kind, self.item.size) {
            (NumberKind::Signed, 1) => {
                self.unpack_with(items, |item| i8::from_le_bytes(item).into())
            }
            (NumberKind::Signed, 2) => {
                self.unpack_with(items, |item| i16::from_le_bytes(item).into())
            }
            (NumberKind::Signed, 4) => {
                self.unpack_with(items, |item| i32::from_le_bytes(item).into())
            }
            (NumberKind::Signed, _) => {
                self.unpack_with(items, |item| i64::from_le_bytes(item) as f64)
            }
            (NumberKind::Unsigned, 1) => {
                self.unpack_with(items, |item| u8::from_le_bytes(item).into())
            }
            (NumberKind::Unsigned, 2) => {
                self.unpack_with(items, |item| u16::from_le_bytes(item).into())
            }
            (NumberKind::Unsigned, 4) => {
                self.unpack_with(items, |item| u32::from_le_bytes(item).into())
            }
            (NumberKind::Unsigned, _) => {
                self.unpack_with(items, |item| u64::from_le_bytes(item) as f64)
            }
            (NumberKind::Float, 2) => {
                self.unpack_with(items, |item| f16::from_le_bytes(item).to_f64())
            }
            (NumberKind::Float, 4) => {
                self.unpack_with(items, |item| f32::from_le_bytes(item).into())
            }
            (NumberKind::Float, _) => self.unpack_with(items, f64::from_le_bytes),
        }
    }

    /// Returns the values of items of `SIZE` bytes, whose numbers `number` reads in little-endian
    /// order.
    fn unpack_with<const SIZE: usize>(
        &self,
        items: &[u8],
        number: impl Fn([u8; SIZE]) -> f64,
    ) -> Vec<u8> {
        let items = items.as_chunks::<SIZE>().0;
        let mut values = Vec::with_capacity(items.len() * self.shown);
        for item in items {
            let mut item = *item;
            if self.item.is_big_endian {
                item.reverse();
            }
            let value = self.value(number(item));
            match self.shown {
                4 => values.extend_from_slice(&(value as f32).to_le_bytes()),
                _ => values.extend_from_slice(&value.to_le_bytes()),
            }
        }
        values
    }

    #[inline(always)]
    fn value(&self, number: f64) -> f64 {
        if self.missing.contains(&number) {
            return f64::NAN;
        }
        let scaled = self.scale.map_or(number, |scale| number * scale);
        self.offset.map_or(scaled, |offset| scaled + offset)
    }

    /// Returns the stored items of whole values.
    ///
    /// # Errors
    ///
    /// EINVAL for a value that no item holds to half a step, and for NaN without a missing value.
    pub fn pack(&self, values: &[u8]) -> Result<Vec<u8>> {
        let mut items = Vec::with_capacity(values.len() / self.shown * self.item.size);
        match self.shown {
            4 => {
                for value in values.as_chunks().0 {
                    self.item
                        .store(self.bits(f32::from_le_bytes(*value).into())?, &mut items);
                }
            }
            _ => {
                for value in values.as_chunks().0 {
                    self.item
                        .store(self.bits(f64::from_le_bytes(*value))?, &mut items);
                }
            }
        }
        Ok(items)
    }

    /// Returns the bits of the item for a value.
    fn bits(&self, value: f64) -> Result<u64> {
        if value.is_nan() {
            let why =
                "NaN can't be stored: the array has no missing value; set its attribute _FillValue";
            return self.nan.ok_or_else(|| Error::invalid(why));
        }
        let shifted = self.offset.map_or(value, |offset| value - offset);
        let number = self.scale.map_or(shifted, |scale| shifted / scale);
        // a scale of 0 makes NaN, and an item that is missing would read as NaN
        let bits = if number.is_nan() {
            None
        } else {
            self.item.nearest(number)
        };
        bits.filter(|bits| !self.missing.contains(&self.item.float(*bits))).ok_or_else(|| {
            let why = "can't be stored: no item of the array stands for it; write a value in the range of the packing";
            Error::invalid(format!("{value:?} {why}"))
        })
    }

    /// Returns whether the value of an item whose first bytes are `item`, and whose others are
    /// zero, is all zero bytes.
    pub fn shows_zeros(&self, item: &[u8]) -> bool {
        let mut whole = item.to_vec();
        whole.resize(self.item.size, 0);
        self.unpack(&whole).iter().all(|byte| *byte == 0)
    }
}

/// Returns what the attribute `_FillValue` names, which has the type of the stored items before
/// `_Unsigned`. Returns `None` if there are too many.
fn fill_values(
    metadata: &ArrayMetadata,
    attributes: &Map<String, Value>,
    stored: NumberType,
    item: NumberType,
) -> Option<Vec<MissingNumber>> {
    let mut list = listed(attributes.get("_FillValue"), stored, metadata.v3.is_some())?;
    for missing in &mut list {
        match missing.bits {
            Some(bits) => missing.number = item.float(bits),
            None => missing.bits = exact(missing.number, item),
        }
    }
    Some(list)
}

/// Returns the numbers of an attribute: a number, or a list of them. With `is_v3`, floats may be in
/// base64. Returns `None` if there are too many.
fn listed(value: Option<&Value>, item: NumberType, is_v3: bool) -> Option<Vec<MissingNumber>> {
    let list = value.map_or(&[][..], attribute_items);
    let numbers = list
        .iter()
        .filter_map(|value| missing_number(value, item, is_v3));
    (list.len() <= MAX_MISSING).then(|| numbers.collect())
}

fn missing_number(value: &Value, item: NumberType, is_v3: bool) -> Option<MissingNumber> {
    let number = match json::float(value) {
        None if item.kind == NumberKind::Float => parse_float(json::text(value)?, is_v3)?,
        number => number?,
    };
    // integers of 64 bits stay exact
    let integer = attribute_integer(value).filter(|_| item.kind != NumberKind::Float);
    Some(MissingNumber {
        number,
        bits: integer
            .and_then(|n| item.integer_bits(n))
            .or_else(|| exact(number, item)),
    })
}

/// Returns the bits of the item that is this number.
fn exact(number: f64, item: NumberType) -> Option<u64> {
    item.nearest(number)
        .filter(|bits| item.float(*bits) == number || number.is_nan())
}

#[cfg(test)]
mod tests;
