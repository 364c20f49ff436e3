//! The types of variables: what netCDF has for the dtype of an array, and wider types for what
//! CDF-2 lacks. This module knows neither names nor dimensions.

use super::classic::Type;
use crate::array::Array;
use crate::cache::{Cache, ChunkPart};
use crate::export::describe;
use crate::export::number::NumberType;
use crate::export::{ItemForm, ShownNumber, StoredInteger};
use std::borrow::Cow;
use zarrfs_base::json;
use zarrfs_format::dtype::{DType, DTypeKind};
use zarrfs_format::grid::ChunkId;
use zarrfs_format::metadata::ArrayMetadata;

/// Maximum number of items of an array that is read to find out whether they are exact as doubles.
const MAX_CHECKED: u64 = 1 << 22;

/// Returns the type of an array's values in CDF-5, or the reason why there is none.
pub fn native_type(array: &Array) -> Result<Type, String> {
    array.readable().map_err(|e| e.message().to_string())?;
    let metadata = array.metadata();
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
        (DTypeKind::Bytes | DTypeKind::Text, 1..) => Ok(Type::Char),
        (DTypeKind::Object, _) if super::strings::are_strings(metadata) => Ok(Type::Char),
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

/// Returns the type of CDF-2 that holds the values of `kind`; a double holds not all integers of 64
/// bits.
pub fn widened(kind: Type) -> Type {
    match kind {
        Type::UByte => Type::Short,
        Type::UShort => Type::Int,
        Type::UInt | Type::Int64 | Type::UInt64 => Type::Double,
        kind => kind,
    }
}

/// Returns how a file, in which all numbers are big-endian, holds the items of an array as values
/// of `kind`.
pub fn form(metadata: &ArrayMetadata, kind: Type) -> ItemForm {
    let dtype = &metadata.dtype;
    let shown = match (dtype.kind(), dtype.size(), kind) {
        (DTypeKind::Int | DTypeKind::UInt | DTypeKind::DateTime, _, Type::Double) => {
            ShownNumber::Double
        }
        (DTypeKind::UInt, 2, Type::Int) => ShownNumber::Int,
        (DTypeKind::UInt, 1, Type::Short) => ShownNumber::Short,
        (DTypeKind::Text, size, _) => {
            let is_big_endian = dtype.is_big_endian();
            return ItemForm::Utf8 {
                size,
                is_big_endian,
            };
        }
        (DTypeKind::Bytes | DTypeKind::Object, ..) | (_, 1, _) => return ItemForm::AsStored,
        _ if dtype.is_big_endian() => return ItemForm::AsStored,
        (_, size, _) => return ItemForm::Reversed(size),
    };
    match StoredInteger::of(metadata) {
        Some(stored) => ItemForm::Widened { stored, shown },
        None => ItemForm::AsStored,
    }
}

/// Returns the metadata with the dtype and the fill value that the array has in the file. Texts are
/// letters there.
pub fn metadata_in_file(metadata: &ArrayMetadata, form: ItemForm) -> Cow<'_, ArrayMetadata> {
    let name = match form {
        ItemForm::Widened { shown, .. } => match shown {
            ShownNumber::Short => ">i2",
            ShownNumber::Int => ">i4",
            ShownNumber::Double => ">f8",
        },
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
        .filter(|_| matches!(form, ItemForm::Widened { .. }))
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

/// Checks that a file can show all items of an array in this form. Integers of 64 bits are read for
/// that.
///
/// # Errors
///
/// The reason why it cannot, or why that is not known.
pub fn are_exact(cache: &Cache, array: &Array, form: ItemForm) -> Result<(), String> {
    if !matches!(&form, ItemForm::Widened { stored, .. } if stored.number.size == 8) {
        return Ok(());
    }
    let grid = array.grid();
    let items = array.size() / 8;
    if items > MAX_CHECKED || grid.chunk_count() > describe::max_chunks(array) {
        return Err(format!(
            "{items} integers of 64 bits are too many to find out whether doubles hold all of them"
        ));
    }
    // revalidate: another process may have changed the store
    array.freshness().begin_opening();
    for chunk in (0..grid.chunk_count()).map(ChunkId) {
        let part = cache
            .get(array, chunk, ChunkPart::Whole)
            .map_err(|e| e.to_string())?;
        let is_exact = match part {
            None => {
                let mut fill = [0; 8];
                array.fill(&mut fill, 0);
                form.can_show(&fill)
            }
            // the padding of an edge chunk is no part of the array
            Some(part) => grid
                .chunk_runs(chunk, 0..array.size())
                .iter()
                .all(|(_, run)| {
                    let bytes = part.at(run.offset).and_then(|from| from.get(..run.len));
                    bytes.is_some_and(|bytes| form.can_show(bytes))
                }),
        };
        if !is_exact {
            return Err("a double does not hold all of its integers of 64 bits".into());
        }
    }
    Ok(())
}
