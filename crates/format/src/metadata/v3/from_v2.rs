//! Documents of v1 and v2 in the terms of v3. The stored chunks stay as they are, so arrays whose
//! chunks a `zarr.json` cannot describe are refused.

pub(super) mod attributes;
mod codecs;

use super::{fill_value, node};
use crate::chunk_key::Separator;
use crate::data_type::{DataType, name_of};
use crate::metadata::{ArrayMetadata, Order};
pub use codecs::compressor_codec;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::json::{self, MemberTexts, Value, json};

/// Fields of `.zarray` and `meta`. Readers ignore all others.
const ARRAY_FIELDS: [&str; 11] = [
    "zarr_format",
    "shape",
    "chunks",
    "dtype",
    "fill_value",
    "order",
    "filters",
    "compressor",
    "dimension_separator",
    "compression",
    "compression_opts",
];

/// Checks that the document of an array of v1 or v2 has no fields but those that v3 can state.
///
/// # Errors
///
/// [`Kind::Unsupported`](zarrfs_base::error::Kind::Unsupported) for any other field: it would be
/// lost.
pub fn check_array_fields(document: &[u8]) -> Result<()> {
    check_fields(document, &ARRAY_FIELDS)
}

/// Checks that a `.zgroup` has no field but its format.
///
/// # Errors
///
/// The errors of [`check_array_fields`].
pub fn check_group_fields(document: &[u8]) -> Result<()> {
    check_fields(document, &["zarr_format"])
}

fn check_fields(document: &[u8], known: &[&str]) -> Result<()> {
    for member in MemberTexts::of(document)? {
        let (name, _) = member?;
        if !known.contains(&name.as_ref()) {
            let why = format!(
                "field {name:?} has no place in Zarr v3: move it to the attributes, or remove it"
            );
            return Err(Error::unsupported(why));
        }
    }
    Ok(())
}

/// Returns the `zarr.json` of a group. `attributes` is its `.zattrs`, if it has one.
///
/// # Errors
///
/// [`Kind::Damaged`](zarrfs_base::error::Kind::Damaged) if the attributes are not a JSON object.
pub fn group_document(attributes: Option<&[u8]>) -> Result<Vec<u8>> {
    with_attributes(node::GROUP_DOCUMENT_V3.as_bytes(), attributes)
}

/// Returns the `zarr.json` of an array of v1 or v2 whose chunk keys have this separator.
/// `attributes` is its `.zattrs`, if it has one; the conventions of xarray in it become those that
/// xarray uses for v3.
///
/// # Errors
///
/// [`Kind::Unsupported`](zarrfs_base::error::Kind::Unsupported) if v3 cannot describe the stored
/// chunks, [`Kind::Damaged`](zarrfs_base::error::Kind::Damaged) if the attributes are not a JSON
/// object.
pub fn array_document(
    old: &ArrayMetadata,
    separator: Separator,
    attributes: Option<&[u8]>,
) -> Result<Vec<u8>> {
    let (data_type, is_big_endian) = data_type(old)?;
    let parsed = DataType::parse(&data_type, is_big_endian)?;
    let (attributes, names) = match attributes {
        Some(text) => attributes::of_array(text, old).map(|(text, names)| (Some(text), names))?,
        None => (None, None),
    };
    let mut document = json!({
        "zarr_format": 3,
        "node_type": "array",
        "shape": old.shape,
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": old.chunks}},
        "chunk_key_encoding": {
            "name": "v2",
            "configuration": {"separator": separator.as_char()},
        },
        "fill_value": fill_value(old, &data_type, &parsed)?,
        "codecs": codecs::chain(old, is_big_endian)?,
        "attributes": {},
    });
    if let Some(names) = names {
        document["dimension_names"] = names;
    }
    document["storage_transformers"] = json!([]);
    let text = with_attributes(
        json::write_pretty(&document).as_bytes(),
        attributes.as_deref(),
    )?;
    check_same(old, separator, &ArrayMetadata::parse_v3(&text)?)?;
    Ok(text)
}

/// Returns the data type, and whether its numbers are big-endian.
fn data_type(old: &ArrayMetadata) -> Result<(Value, bool)> {
    let data_type = match old.object_codec() {
        None => name_of(&old.dtype, &old.dtype_json),
        Some(_) if json::text(&old.dtype_json).is_none() => None,
        Some(codec) => match codec.id.as_str() {
            "vlen-utf8" => Some(("string".into(), false)),
            "vlen-bytes" => Some(("variable_length_bytes".into(), false)),
            _ => return Err(codecs::without_form(codec)),
        },
    };
    data_type.ok_or_else(|| {
        let dtype = json::write(&old.dtype_json);
        Error::unsupported(format!("dtype {dtype} has no data type in Zarr v3"))
    })
}

/// Returns the fill value of `old` for items of a v3 data type.
///
/// # Errors
///
/// [`Kind::Unsupported`](zarrfs_base::error::Kind::Unsupported) if it has no spelling there.
pub fn fill_value_of(old: &ArrayMetadata, data_type: &Value, is_big_endian: bool) -> Result<Value> {
    fill_value(old, data_type, &DataType::parse(data_type, is_big_endian)?)
}

/// Converts attributes that a user wrote to the `.zattrs` shown for a node of v3. Returns the
/// attributes in the form of v3, and the names of the dimensions, if they were in the attributes.
/// `array` is `None` for a group.
///
/// # Errors
///
/// [`Kind::Damaged`](zarrfs_base::error::Kind::Damaged) if the attributes are not a JSON object.
pub fn attributes_of_view(
    text: &[u8],
    array: Option<&ArrayMetadata>,
) -> Result<(Vec<u8>, Option<Value>)> {
    match array {
        Some(array) => attributes::of_view(text, array),
        None => Ok((text.to_vec(), None)),
    }
}

/// Returns the fill value as v3 spells it: zeros for null.
fn fill_value(old: &ArrayMetadata, data_type: &Value, parsed: &DataType) -> Result<Value> {
    let value = match &old.fill {
        _ if old.has_objects() => match &old.fill_value {
            // zarr 2 writes 0 if no fill value is given
            empty
                if empty.is_null()
                    || empty.as_u64() == Some(0)
                    || json::text(empty) == Some("") =>
            {
                Some("".into())
            }
            // zarr-python 2 treats the fill value of `vlen-bytes` as text, zarr-python 3 as base64
            text if data_type == "string" => json::text(text).map(Value::from),
            _ => None,
        },
        item => fill_value::spell(item.as_deref().unwrap_or_default(), data_type, parsed),
    };
    value.ok_or_else(|| {
        let shown = json::write(&old.fill_value);
        Error::unsupported(format!("fill_value {shown:.40} has no spelling in Zarr v3"))
    })
}

/// Returns the document with these attributes, byte for byte, so that a bare NaN and duplicate
/// names keep their meaning.
fn with_attributes(document: &[u8], attributes: Option<&[u8]>) -> Result<Vec<u8>> {
    let Some(attributes) = attributes else {
        return Ok(document.to_vec());
    };
    json::check_object(attributes)?;
    json::with_member(document, "attributes", Some(attributes))
}

/// Checks that both documents describe the same items in the same chunks.
fn check_same(old: &ArrayMetadata, separator: Separator, new: &ArrayMetadata) -> Result<()> {
    let has_same_order = old.order == Order::C
        || old.shape.len() < 2
        || new
            .filters
            .iter()
            .any(|codec| ["transpose", "vlen_transpose"].contains(&codec.id.as_str()));
    let is_same = [
        ("shape", new.shape == old.shape),
        ("chunks", new.chunks == old.chunks && new.shards.is_empty()),
        ("dtype", new.dtype == old.dtype),
        (
            "fill_value",
            old.has_objects()
                || new.fill.as_deref() == Some(old.fill.as_deref().unwrap_or_default()),
        ),
        ("order", has_same_order),
        (
            "dimension_separator",
            new.separator == Some(separator) && !new.has_key_prefix(),
        ),
    ];
    match is_same.iter().find(|(_, same)| !same) {
        Some((field, _)) => Err(Error::unsupported(format!(
            "{field} has no faithful form in Zarr v3"
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
