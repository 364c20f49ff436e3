//! The HDF5 types of arrays. This module knows neither headers nor files.

use super::messages::{self, TextEncoding, ValueType};
use crate::ItemForm;
use crate::number::{NumberKind, NumberType};
use zarrfs_base::json;
use zarrfs_format::dtype::{DType, DTypeKind};
use zarrfs_format::metadata::ArrayMetadata;

/// The halves of complex numbers, as h5py names them.
pub const COMPLEX: [&str; 2] = ["r", "i"];

/// The type of an array's values in the file, and their form there.
///
/// # Errors
///
/// The reason why HDF5 has no such type.
pub fn of_array(metadata: &ArrayMetadata) -> Result<(ValueType, ItemForm), String> {
    let dtype = &metadata.dtype;
    let is_big_endian = dtype.is_big_endian();
    let unknown = || format!("HDF5 has no type for {}", json::write(&metadata.dtype_json));
    match (dtype.kind(), dtype.size()) {
        // netCDF-C 4.10.1 ends with `free(): invalid pointer` on floats of two bytes
        (DTypeKind::Float, 2) => {
            let single = NumberType::of_floats(4, is_big_endian);
            Ok((
                ValueType::Number(single),
                ItemForm::Single {
                    stored_is_big_endian: is_big_endian,
                    shown_is_big_endian: is_big_endian,
                },
            ))
        }
        (DTypeKind::Text, size @ 1..) => Ok((
            ValueType::Text(size, TextEncoding::Utf8),
            ItemForm::Utf8 {
                size,
                is_big_endian,
            },
        )),
        _ => {
            let kind = of_item(dtype).ok_or_else(unknown)?;
            if messages::fits(&kind) {
                Ok((kind, ItemForm::AsStored))
            } else {
                Err("the names of its fields take more than 64 KiB".into())
            }
        }
    }
}

/// Returns the type of an item as it is stored.
fn of_item(dtype: &DType) -> Option<ValueType> {
    let size = dtype.size();
    if let Some(number) = NumberType::of(dtype)
        && (number.kind, size) != (NumberKind::Float, 2)
    {
        return Some(ValueType::Number(number));
    }
    match dtype.kind() {
        DTypeKind::Bool => Some(ValueType::Bool),
        DTypeKind::Complex if size <= 16 => {
            let half = NumberType::of_floats(size / 2, dtype.is_big_endian());
            let members = COMPLEX.into_iter().zip([0, size / 2]);
            let members =
                members.map(|(name, offset)| (name.to_string(), offset, ValueType::Number(half)));
            Some(ValueType::Compound(members.collect(), size))
        }
        DTypeKind::Bytes if size > 0 => Some(ValueType::Text(size, TextEncoding::Ascii)),
        DTypeKind::Struct(fields) => {
            let mut offset = 0;
            let mut members = Vec::with_capacity(fields.len());
            for field in fields {
                let item = of_field(&field.dtype)?;
                let kind = if field.shape.is_empty() {
                    item
                } else {
                    let shape = field.shape.iter().map(|len| u32::try_from(*len).ok());
                    ValueType::Array(shape.collect::<Option<_>>()?, Box::new(item))
                };
                let len = kind.size();
                if len == 0 || field.name.is_empty() || field.name.contains('\0') {
                    return None;
                }
                members.push((field.name.clone(), offset, kind));
                offset += len;
            }
            (offset == size && size > 0).then_some(ValueType::Compound(members, size))
        }
        DTypeKind::Void if size > 0 => Some(ValueType::Opaque(size)),
        _ => None,
    }
}

/// Returns the type of a field of a struct. Halves of floats and UCS-4 text, which could not be
/// converted there, are bytes.
fn of_field(dtype: &DType) -> Option<ValueType> {
    match (dtype.kind(), dtype.size()) {
        (DTypeKind::Float, 2) | (DTypeKind::Text, 1..) => Some(ValueType::Opaque(dtype.size())),
        (DTypeKind::Text | DTypeKind::Object, _) => None,
        _ => of_item(dtype),
    }
}

/// Returns the fill value as the file holds it; nothing if it is zero or not a number. NetCDF-C
/// 4.10.1 takes the bytes of one that is a text for an address, and ends with a segmentation fault.
pub fn fill(metadata: &ArrayMetadata, form: &ItemForm) -> Vec<u8> {
    let number = NumberType::of(&metadata.dtype);
    let (Some(number), Some(mut item)) = (number, metadata.fill.clone()) else {
        return Vec::new();
    };
    item.resize(number.size, 0);
    let is_set = form.show(&mut item).is_ok() && item.iter().any(|byte| *byte != 0);
    if is_set { item } else { Vec::new() }
}
