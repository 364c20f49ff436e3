//! Documents of v3 in the terms of v2, for a view of decoded chunks: codecs, keys and shards do not
//! matter. The module is the inverse of [`from_v2`](super::from_v2).

use super::from_v2::attributes::{DIMENSIONS, MISSING};
use super::node;
use crate::dtype::DTypeKind;
use crate::fill_value::float_json;
use crate::metadata::ArrayMetadata;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::json::{self, MemberTexts, Value};

/// Returns the `.zarray` of an array of v3 whose chunks are shown decoded.
///
/// # Errors
///
/// [`Kind::Unsupported`](zarrfs_base::error::Kind::Unsupported) if NumPy lacks the data type, or if
/// chunks differ in shape.
pub fn array_document(metadata: &ArrayMetadata) -> Result<String> {
    if !metadata.has_numpy_dtype() {
        let data_type = metadata
            .v3
            .as_ref()
            .map_or(Value::Null, |v3| v3.data_type.clone());
        let why = format!(
            "NumPy has no dtype for the data type {}",
            json::write(&data_type)
        );
        return Err(Error::unsupported(why));
    }
    if metadata.edges.is_some() {
        return Err(Error::unsupported(
            "chunks of different lengths have no form in v2",
        ));
    }
    Ok(metadata.shown_document())
}

/// Returns the names of the dimensions if every dimension has one.
pub fn names(metadata: &ArrayMetadata) -> Option<Vec<&str>> {
    let names = metadata.v3.as_ref()?.dimension_names.as_ref()?;
    names.iter().map(Option::as_deref).collect()
}

/// Returns the `.zattrs` of a node with these attributes, for an array in the form that xarray uses
/// in v2. Returns `None` if it would be empty.
///
/// # Errors
///
/// [`Kind::Damaged`](zarrfs_base::error::Kind::Damaged) if the attributes are not a JSON object.
pub fn attributes(attributes: &[u8], array: Option<&ArrayMetadata>) -> Result<Option<Vec<u8>>> {
    let Some((array, names)) = array.and_then(|array| names(array).map(|names| (array, names)))
    else {
        return Ok(MemberTexts::of(attributes)?
            .next()
            .is_some()
            .then(|| attributes.to_vec()));
    };
    let names = json::write(&names.into());
    let mut text = json::with_member(attributes, DIMENSIONS, Some(names.as_bytes()))?;
    if let Some(missing) = missing_value(attributes, array)? {
        text = json::with_member(&text, MISSING, Some(missing.as_bytes()))?;
    }
    Ok(Some(text))
}

/// Returns the missing value of floats, which xarray writes in base64 into attributes of v3.
fn missing_value(attributes: &[u8], array: &ArrayMetadata) -> Result<Option<String>> {
    let Some(stated) = node::member(attributes, MISSING)? else {
        return Ok(None);
    };
    let stated = json::parse(stated.as_bytes())?;
    let bytes = json::text(&stated).filter(|_| *array.dtype.kind() == DTypeKind::Float);
    let bytes: Option<[u8; 8]> = bytes
        .and_then(|text| json::base64_decode(text.as_bytes()))
        .and_then(|bytes| bytes.try_into().ok());
    Ok(bytes.map(|bytes| json::plain(&float_json(f64::from_le_bytes(bytes)))))
}
