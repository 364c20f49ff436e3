//! The types of variables: what netCDF has for the dtype of an array, and wider types for what
//! CDF-2 lacks. This module knows neither names nor dimensions.

use super::classic::Type;
use crate::array::Array;
use crate::cache::{Cache, ChunkPart};
use crate::export::{ItemForm, ShownNumber, StoredInteger};
use crate::util::json;
use crate::zarr::dtype::{DType, DTypeKind};
use crate::zarr::grid::ChunkId;
use crate::zarr::metadata::ArrayMetadata;
use std::borrow::Cow;

/// Maximum number of items of an array that is read to find out whether they are exact as doubles.
const MAX_CHECKED: u64 = 1 << 22;

/// Maximum number of chunks that are read for that, of an array in a local and in a remote store.
const MAX_CHUNKS: [u64; 2] = [1 << 14, 1 << 8];

/// Returns the type of an array's values in CDF-5, or the reason why there is none.
pub fn native_type(array: &Array) -> Result<Type, String> {
    array.readable().map_err(|e| e.message().to_string())?;
    let metadata = array.metadata();
    match (metadata.dtype.kind(), metadata.dtype.size()) {
        (DTypeKind::Bool, _) | (DTypeKind::Int, 1) => Ok(Type::Byte),
        (DTypeKind::Int, 2) => Ok(Type::Short),
        (DTypeKind::Int, 4) => Ok(Type::Int),
        (DTypeKind::Int, 8) => Ok(Type::Int64),
        (DTypeKind::UInt, 1) => Ok(Type::UByte),
        (DTypeKind::UInt, 2) => Ok(Type::UShort),
        (DTypeKind::UInt, 4) => Ok(Type::UInt),
        (DTypeKind::UInt, 8) => Ok(Type::UInt64),
        (DTypeKind::Float, 4) => Ok(Type::Float),
        (DTypeKind::Float, 8) => Ok(Type::Double),
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
    let (_, unit) = json::text(&metadata.dtype_json)?.split_once('[')?;
    Some(match unit.trim_end_matches(']') {
        "D" => "days",
        "h" => "hours",
        "m" => "minutes",
        "s" => "seconds",
        "ms" => "milliseconds",
        "us" | "μs" => "microseconds",
        "ns" => "nanoseconds",
        _ => return None,
    })
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
    let widened = |shown| {
        let is_signed = *dtype.kind() != DTypeKind::UInt;
        let fill = metadata.fill.as_deref().unwrap_or_default();
        ItemForm::Widened {
            stored: StoredInteger::new(dtype.size(), is_signed, dtype.is_big_endian(), fill),
            shown,
        }
    };
    match (dtype.kind(), dtype.size(), kind) {
        (DTypeKind::Int | DTypeKind::UInt | DTypeKind::DateTime, _, Type::Double) => {
            widened(ShownNumber::Double)
        }
        (DTypeKind::UInt, 2, Type::Int) => widened(ShownNumber::Int),
        (DTypeKind::UInt, 1, Type::Short) => widened(ShownNumber::Short),
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
        ItemForm::Widened {
            shown: ShownNumber::Short,
            ..
        } => ">i2",
        ItemForm::Widened {
            shown: ShownNumber::Int,
            ..
        } => ">i4",
        ItemForm::Widened {
            shown: ShownNumber::Double,
            ..
        } => ">f8",
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
    if !matches!(
        form,
        ItemForm::Widened {
            stored: StoredInteger { size: 8, .. },
            ..
        }
    ) {
        return Ok(());
    }
    let grid = array.grid();
    let items = array.size() / 8;
    if items > MAX_CHECKED || grid.chunk_count() > MAX_CHUNKS[usize::from(array.is_remote())] {
        return Err(format!(
            "{items} integers of 64 bits are too many to find out whether doubles hold all of them"
        ));
    }
    // revalidate: another process may have changed the store
    array.freshness().begin_opening();
    let inexact = || "a double does not hold all of its integers of 64 bits".to_string();
    for chunk in (0..grid.chunk_count()).map(ChunkId) {
        let part = cache
            .get(array, chunk, ChunkPart::Whole)
            .map_err(|e| e.to_string())?;
        let Some(part) = part else {
            let mut fill = [0; 8];
            array.fill(&mut fill, 0);
            if form.can_show(&fill) {
                continue;
            } else {
                return Err(inexact());
            };
        };
        // the padding of an edge chunk is no part of the array
        let runs = grid.chunk_runs(chunk, 0..array.size());
        let shown = |offset: usize, len: usize| {
            part.at(offset)
                .and_then(|from| from.get(..len))
                .is_some_and(|b| form.can_show(b))
        };
        if !runs.iter().all(|(_, run)| shown(run.offset, run.len)) {
            return Err(inexact());
        }
    }
    Ok(())
}
