//! The types of values: what netCDF has for the dtype of an array, and doubles for integers that
//! CDF-2 lacks. This module knows neither names nor dimensions.

use crate::describe;
use crate::number::{NumberKind, NumberType};
use crate::reader::ArrayNode;
use crate::{ItemForm, StoredInteger};
use std::borrow::Cow;
use zarrfs_base::json;
use zarrfs_format::dtype::{DType, DTypeKind};
use zarrfs_format::metadata::ArrayMetadata;

/// A data type of netCDF, numbered as in its classic format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Type {
    /// Signed 8-bit integers.
    Byte = 1,
    /// Bytes of text.
    Char,
    /// Signed 16-bit integers.
    Short,
    /// Signed 32-bit integers.
    Int,
    /// 32-bit floats.
    Float,
    /// 64-bit floats.
    Double,
    /// Unsigned 8-bit integers; this and the following types exist only in CDF-5.
    UByte,
    /// Unsigned 16-bit integers.
    UShort,
    /// Unsigned 32-bit integers.
    UInt,
    /// Signed 64-bit integers.
    Int64,
    /// Unsigned 64-bit integers.
    UInt64,
}

impl Type {
    /// All types.
    pub const ALL: [Type; 11] = [
        Type::Byte,
        Type::Char,
        Type::Short,
        Type::Int,
        Type::Float,
        Type::Double,
        Type::UByte,
        Type::UShort,
        Type::UInt,
        Type::Int64,
        Type::UInt64,
    ];

    /// The types of integers of any size in an attribute, the smallest first.
    pub const INTEGERS: [Type; 3] = [Type::Int, Type::Int64, Type::UInt64];

    /// Returns the size of a value in bytes.
    pub fn size(self) -> usize {
        self.number().map_or(1, |number| number.size)
    }

    /// Returns the type of the values if they are numbers.
    pub fn number(self) -> Option<NumberType> {
        use NumberKind::{Float, Signed, Unsigned};
        let (kind, size) = match self {
            Type::Char => return None,
            Type::Byte => (Signed, 1),
            Type::Short => (Signed, 2),
            Type::Int => (Signed, 4),
            Type::Int64 => (Signed, 8),
            Type::UByte => (Unsigned, 1),
            Type::UShort => (Unsigned, 2),
            Type::UInt => (Unsigned, 4),
            Type::UInt64 => (Unsigned, 8),
            Type::Float => (Float, 4),
            Type::Double => (Float, 8),
        };
        Some(NumberType {
            kind,
            size,
            is_big_endian: true,
        })
    }
}

/// Returns the type of an array's values in CDF-5, or the reason why there is none.
pub fn native_type(array: &ArrayNode) -> Result<Type, String> {
    if let Err(e) = &array.readable {
        return Err(e.message().to_string());
    }
    type_of(&array.metadata)
}

/// Returns the type of an array's values in CDF-5 by its metadata, or the reason why there is none.
pub fn type_of(metadata: &ArrayMetadata) -> Result<Type, String> {
    let number = NumberType::of(&metadata.dtype).filter(|_| !metadata.dtype.has_time());
    let of_number = number.and_then(|number| {
        Type::ALL.into_iter().find(|kind| {
            kind.number()
                .is_some_and(|own| (own.kind, own.size) == (number.kind, number.size))
        })
    });
    if let Some(kind) = of_number {
        return Ok(kind);
    }
    match (metadata.dtype.kind(), metadata.dtype.size()) {
        (DTypeKind::Bool, _) => Ok(Type::Byte),
        (DTypeKind::Float, 2) => Ok(Type::Float),
        (DTypeKind::Bytes | DTypeKind::Text, 1..) => Ok(Type::Char),
        (DTypeKind::Object, _) if describe::StringEncoding::of(metadata).is_some() => {
            Ok(Type::Char)
        }
        (DTypeKind::DateTime, _) if time_unit(metadata).is_some() => Ok(Type::Int64),
        _ => Err(format!(
            "netCDF has no type for {}",
            json::write(&metadata.dtype_json)
        )),
    }
}

/// Returns UDUNITS' word for the unit of a `datetime64`; `None` if it has no such word, and for
/// other dtypes.
pub fn time_unit(metadata: &ArrayMetadata) -> Option<&'static str> {
    if *metadata.dtype.kind() != DTypeKind::DateTime {
        return None;
    }
    // the file holds counts of one unit
    describe::time_unit(metadata)
        .filter(|(_, factor)| *factor == 1.0)
        .map(|(unit, _)| unit)
}

/// Returns how a file, in which all numbers are big-endian, holds the items of an array as values
/// of `kind`.
pub fn form(metadata: &ArrayMetadata, kind: Type) -> ItemForm {
    let dtype = &metadata.dtype;
    let integer = StoredInteger::of(metadata).filter(|_| *dtype.kind() != DTypeKind::Float);
    match (dtype.kind(), dtype.size(), integer) {
        (_, _, Some(stored)) if kind == Type::Double => ItemForm::Double(stored),
        (DTypeKind::Float, 2, _) => ItemForm::Single {
            stored_is_big_endian: dtype.is_big_endian(),
            shown_is_big_endian: true,
        },
        (DTypeKind::Text, size, _) => ItemForm::Utf8 {
            size,
            is_big_endian: dtype.is_big_endian(),
        },
        (DTypeKind::Bytes | DTypeKind::Object, ..) | (_, 1, _) => ItemForm::AsStored,
        _ if dtype.is_big_endian() => ItemForm::AsStored,
        (_, size, _) => ItemForm::Reversed(size),
    }
}

/// Returns the metadata with the dtype and the fill value that the array has in the file. Texts are
/// letters there.
pub fn metadata_in_file(metadata: &ArrayMetadata, form: ItemForm) -> Cow<'_, ArrayMetadata> {
    let name = match form {
        ItemForm::Double(_) => ">f8",
        ItemForm::Single { .. } => ">f4",
        ItemForm::Utf8 { .. } => "|S1",
        _ if metadata.has_objects() => "|S1",
        _ => return Cow::Borrowed(metadata),
    };
    let Ok(dtype) = DType::parse_str(name) else {
        return Cow::Borrowed(metadata);
    };
    let fill = metadata
        .fill
        .clone()
        .filter(|_| matches!(form, ItemForm::Double(_) | ItemForm::Single { .. }))
        .and_then(|mut item| {
            item.resize(metadata.dtype.size(), 0);
            form.show(&mut item).is_ok().then_some(item)
        });
    Cow::Owned(ArrayMetadata {
        dtype,
        fill,
        ..metadata.clone()
    })
}
