//! The types of HDF5 as dtypes, and its attributes as JSON: the reverse of `export/hdf5/types.rs`.
//! This module must not know names of arrays, dimensions or files.

use crate::classic::{number_dtype, number_value, text};
use hdf5_reader::messages::attribute::AttributeMessage;
use hdf5_reader::messages::dataspace::DataspaceType;
use hdf5_reader::{
    ByteOrder, CompoundField, Datatype, EnumMember, StringPadding, StringSize, VarLenKind,
};
use zarrfs_base::error::{Error, Result};
use zarrfs_base::json::{Map, Value, json};
use zarrfs_export::classic_format::{NumberKind, NumberType};
use zarrfs_export::hdf5_format::COMPLEX;

/// Maximum size of a string of a fixed length in bytes.
const MAX_TEXT: u32 = 1 << 20;

/// The classes of floats and of opaque items, as a file spells them.
const FLOAT: u8 = 1;
const OPAQUE: u8 = 5;

/// How h5py names the values of booleans.
const BOOLEANS: [(&str, u8); 2] = [("FALSE", 0), ("TRUE", 1)];

/// What the items of a data set become.
#[derive(Clone, Debug, PartialEq)]
pub struct SetItem {
    /// The dtype as in a `.zarray`; `|O` for strings of any length.
    pub dtype: Value,
    /// The size of an item in the file in bytes.
    pub size: usize,
    /// What changes in an item.
    pub change: ItemChange,
    /// The attributes that keep what the dtype does not say.
    pub attributes: Map<String, Value>,
}

/// What changes in an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemChange {
    /// Nothing.
    Nothing,
    /// The bytes of each part of so many bytes are reversed.
    Reversed(usize),
    /// What follows the end of a padded string becomes zeros.
    Padding(StringPadding),
    /// The item refers to a string of any length.
    String(StringPadding),
}

/// Returns the type of numbers, as the file stores them.
pub fn number_of(dtype: &Datatype) -> Option<NumberType> {
    let (kind, size, order) = match dtype {
        Datatype::FixedPoint {
            size,
            signed,
            byte_order,
        } => {
            let kind = if *signed {
                NumberKind::Signed
            } else {
                NumberKind::Unsigned
            };
            (kind, *size, byte_order)
        }
        Datatype::FloatingPoint { size, byte_order } => (NumberKind::Float, *size, byte_order),
        _ => return None,
    };
    let is_known = match kind {
        NumberKind::Float => [2, 4, 8].contains(&size),
        _ => [1, 2, 4, 8].contains(&size),
    };
    is_known.then_some(NumberType {
        kind,
        size: size.into(),
        is_big_endian: *order == ByteOrder::BigEndian,
    })
}

/// Returns what the items of a data set become. `encoded` is the type as the file spells it.
///
/// # Errors
///
/// The name of a type without an equal in Zarr.
pub fn item_type(dtype: &Datatype, encoded: &[u8]) -> std::result::Result<SetItem, String> {
    let item = |dtype: String, size: usize, change: ItemChange| SetItem {
        dtype: dtype.into(),
        size,
        change,
        attributes: Map::new(),
    };
    let unknown = || Err(name_of(dtype));
    if let Some(number) = number_of(dtype) {
        if !is_usual(number, encoded, 1) {
            return unknown();
        }
        return Ok(item(
            number_dtype(number),
            number.size,
            reversed(number, number.size),
        ));
    }
    match dtype {
        Datatype::String {
            size: StringSize::Fixed(size @ 1..=MAX_TEXT),
            padding,
            ..
        } => Ok(item(
            format!("|S{size}"),
            *size as usize,
            ItemChange::Padding(*padding),
        )),
        Datatype::String {
            size: StringSize::Variable,
            padding,
            ..
        }
        | Datatype::VarLen {
            kind: VarLenKind::String,
            padding,
            ..
        } => Ok(item("|O".into(), 0, ItemChange::String(*padding))),
        Datatype::Enum { base, members } => {
            let Some(number) = number_of(base).filter(|number| number.kind != NumberKind::Float)
            else {
                return unknown();
            };
            if is_boolean(number, members) {
                return Ok(item("|b1".into(), 1, ItemChange::Nothing));
            }
            let mut found = item(
                number_dtype(number),
                number.size,
                reversed(number, number.size),
            );
            found.attributes = flags(number, members).ok_or_else(|| name_of(dtype))?;
            Ok(found)
        }
        Datatype::Compound { size, fields } => match complex(*size, fields) {
            Some(half) if is_usual(half, encoded, 2) => Ok(item(
                format!("<c{size}"),
                2 * half.size,
                reversed(half, half.size),
            )),
            _ => unknown(),
        },
        // a time of HDF5 is read as opaque bytes, too
        Datatype::Opaque { size, .. } if *size > 0 && class(encoded) == OPAQUE => Ok(item(
            format!("|V{size}"),
            *size as usize,
            ItemChange::Nothing,
        )),
        _ => unknown(),
    }
}

fn reversed(number: NumberType, part: usize) -> ItemChange {
    if number.is_big_endian && part > 1 {
        ItemChange::Reversed(part)
    } else {
        ItemChange::Nothing
    }
}

/// Returns the class of a type as the file spells it.
fn class(encoded: &[u8]) -> u8 {
    encoded.first().map_or(0, |byte| byte & 0x0f)
}

/// Returns whether a type as the file spells it has as many parts that are the usual numbers:
/// floats of IEEE 754, and integers that fill their bytes.
fn is_usual(number: NumberType, encoded: &[u8], parts: usize) -> bool {
    let bits = (8 * number.size) as u16;
    let mut properties = vec![0, 0];
    properties.extend(bits.to_le_bytes());
    if number.kind == NumberKind::Float {
        // place and size of exponent and mantissa in bits, and the bias
        let (exponent, mantissa): (u8, u8) = match number.size {
            2 => (5, 10),
            4 => (8, 23),
            _ => (11, 52),
        };
        properties.extend([mantissa, exponent, 0, mantissa]);
        properties.extend(((1u32 << (exponent - 1)) - 1).to_le_bytes());
    }
    let found = encoded.windows(properties.len());
    let found = found.filter(|window| **window == properties).count();
    // the order of VAX has both bits for the order
    let is_vax =
        class(encoded) == FLOAT && encoded.get(1).is_some_and(|flags| flags & 0x41 == 0x41);
    found >= parts && !is_vax
}

fn is_boolean(number: NumberType, members: &[EnumMember]) -> bool {
    let has = |(name, value): &(&str, u8)| {
        let mut members = members.iter();
        members.any(|member| member.name == *name && member.value == [*value])
    };
    number.size == 1 && members.len() == BOOLEANS.len() && BOOLEANS.iter().all(has)
}

/// Returns the type of the halves of complex numbers, as h5py stores them.
fn complex(size: u32, fields: &[CompoundField]) -> Option<NumberType> {
    let [real, imaginary] = fields else {
        return None;
    };
    let half = number_of(&real.datatype)?;
    let is_complex = half.kind == NumberKind::Float
        && half.size >= 4
        && [&real.name, &imaginary.name] == COMPLEX
        && real.datatype == imaginary.datatype
        && real.byte_offset == 0
        && imaginary.byte_offset as usize == half.size
        && size as usize == 2 * half.size;
    is_complex.then_some(half)
}

/// Returns CF's attributes for the names of an enumeration; `None` if a name is no word.
fn flags(number: NumberType, members: &[EnumMember]) -> Option<Map<String, Value>> {
    let is_word = |name: &str| !name.is_empty() && !name.contains(char::is_whitespace);
    let are_words = members.iter().all(|member| is_word(&member.name));
    let values = members
        .iter()
        .filter(|member| member.value.len() == number.size)
        .map(|member| number_value(number, &member.value));
    let values: Vec<Value> = values.collect();
    let names: Vec<&str> = members.iter().map(|member| member.name.as_str()).collect();
    let mut attributes = Map::new();
    attributes.insert("flag_values".into(), values.into());
    attributes.insert("flag_meanings".into(), names.join(" ").into());
    are_words.then_some(attributes)
}

/// Returns the name of a type for a message.
fn name_of(dtype: &Datatype) -> String {
    match dtype {
        Datatype::FixedPoint { size, .. } => {
            format!("an integer of {size} bytes, some bits unused")
        }
        Datatype::FloatingPoint { size, .. } => {
            format!("a float of {size} bytes that is not of IEEE 754")
        }
        Datatype::String { .. } => "a string of no length, or of more than 1 MiB".into(),
        Datatype::Compound { fields, .. } => {
            let names: Vec<&str> = fields.iter().map(|field| field.name.as_str()).collect();
            format!("a compound of {}", names.join(", "))
        }
        Datatype::Array { .. } => "an array".into(),
        Datatype::Enum { .. } => "an enumeration of names that are no words".into(),
        Datatype::VarLen { .. } => "sequences of variable length".into(),
        Datatype::Reference { .. } => "references".into(),
        Datatype::Bitfield { .. } => "a bitfield".into(),
        Datatype::Opaque { .. } => "opaque items of no bytes, or times of HDF5".into(),
    }
}

/// Returns the bytes of a padded string.
pub fn without_padding(item: &[u8], padding: StringPadding) -> &[u8] {
    let end = match padding {
        StringPadding::SpacePad => item
            .iter()
            .rposition(|byte| *byte != b' ')
            .map_or(0, |n| n + 1),
        StringPadding::NullPad => item
            .iter()
            .rposition(|byte| *byte != 0)
            .map_or(0, |n| n + 1),
        StringPadding::NullTerminate => item
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(item.len()),
    };
    &item[..end]
}

/// Returns an attribute as xarray would write it: a text, a number, or a list of them, nested if it
/// has several dimensions. `string` returns the string to which a reference of `reference` bytes
/// refers.
///
/// # Errors
///
/// The name of a type without an equal in JSON; the error of `string`.
pub fn attribute(
    message: &AttributeMessage,
    reference: usize,
    string: &mut dyn FnMut(&[u8]) -> Result<Vec<u8>>,
) -> Result<Value> {
    let refused = || {
        let what = name_of(&message.datatype);
        Error::invalid(format!("{what}, which no attribute of Zarr is"))
    };
    let raw = &message.raw_data;
    let items: Vec<Value> = match &message.datatype {
        Datatype::String {
            size: StringSize::Fixed(size @ 1..),
            padding,
            ..
        } => {
            let items = raw.chunks_exact(*size as usize);
            let items = items.map(|item| text(without_padding(item, *padding)).into());
            items.collect()
        }
        Datatype::String {
            size: StringSize::Fixed(0),
            ..
        } => vec!["".into()],
        Datatype::String { .. }
        | Datatype::VarLen {
            kind: VarLenKind::String,
            ..
        } => {
            let items = raw.chunks_exact(reference);
            let items = items.map(|item| Ok(text(&string(item)?).into()));
            items.collect::<Result<_>>()?
        }
        Datatype::Enum { base, members } => {
            let number = number_of(base).ok_or_else(refused)?;
            let is_boolean = is_boolean(number, members);
            let items = raw.chunks_exact(number.size);
            let items = items.map(|item| {
                if is_boolean {
                    (item[0] != 0).into()
                } else {
                    number_value(number, item)
                }
            });
            items.collect()
        }
        dtype => {
            let number = number_of(dtype).ok_or_else(refused)?;
            let items = raw.chunks_exact(number.size);
            items.map(|item| number_value(number, item)).collect()
        }
    };
    let is_text = matches!(
        message.datatype,
        Datatype::String { .. } | Datatype::VarLen { .. }
    );
    let dims = &message.dataspace.dims;
    let count = dims.iter().try_fold(1, |n: u64, len| n.checked_mul(*len));
    let is_null = message.dataspace.dataspace_type == DataspaceType::Null;
    if !is_null && count != Some(items.len() as u64) {
        let why = "its values are not as many as its header says";
        return Err(Error::invalid(why));
    }
    Ok(match message.dataspace.dataspace_type {
        DataspaceType::Null if is_text => "".into(),
        DataspaceType::Null => json!([]),
        _ if items.len() == 1 => items.into_iter().next().unwrap_or_default(),
        _ if dims.len() > 1 && !dims.contains(&0) => nested(&items, &dims[1..]),
        _ => items.into(),
    })
}

/// Returns the items as lists of the lengths `inner`.
fn nested(items: &[Value], inner: &[u64]) -> Value {
    let Some((_, deeper)) = inner.split_first() else {
        return items.to_vec().into();
    };
    let len = inner.iter().product::<u64>().max(1) as usize;
    let lists = items.chunks(len).map(|part| nested(part, deeper));
    lists.collect::<Vec<_>>().into()
}
