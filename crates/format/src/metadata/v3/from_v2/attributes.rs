//! The attributes with which xarray describes arrays, in the form that it uses for v3: dimension
//! names are a field of the document, a fill value is no missing value, and the missing value of
//! floats is in base64. Source of the rules: `xarray.backends.zarr`.

use crate::dtype::{DType, DTypeKind};
use crate::metadata::ArrayMetadata;
use crate::metadata::v3::node;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use zarrfs_base::error::Result;
use zarrfs_base::json::{self, Value};

/// The attribute that holds the names of the dimensions in v2.
pub const DIMENSIONS: &str = "_ARRAY_DIMENSIONS";

/// The attribute that holds the missing value. In v2, xarray uses the fill value if there is no
/// such attribute.
pub const MISSING: &str = "_FillValue";

/// Returns the attributes of an array of v1 or v2 as v3 has them, and the names of its dimensions.
/// Without a name for each dimension xarray cannot open the array, and the attributes stay as they
/// are.
///
/// # Errors
///
/// [`Kind::Damaged`](zarrfs_base::error::Kind::Damaged) if the attributes are not a JSON object.
pub(super) fn of_array(attributes: &[u8], old: &ArrayMetadata) -> Result<(Vec<u8>, Option<Value>)> {
    convert(attributes, old, of_fill_value(old))
}

/// Does what [`of_array`] does, for attributes that were written through a view. The fill value is
/// that of v3, which is no missing value.
pub(super) fn of_view(
    attributes: &[u8],
    array: &ArrayMetadata,
) -> Result<(Vec<u8>, Option<Value>)> {
    convert(attributes, array, None)
}

/// Converts attributes. `default` is the missing value if they have none.
fn convert(
    attributes: &[u8],
    old: &ArrayMetadata,
    default: Option<Value>,
) -> Result<(Vec<u8>, Option<Value>)> {
    let names = attribute(attributes, DIMENSIONS)?.filter(|names| {
        names.as_array().is_some_and(|names| {
            names.len() == old.shape.len() && names.iter().all(|name| json::text(name).is_some())
        })
    });
    let Some(names) = names else {
        return Ok((attributes.to_vec(), None));
    };
    let mut text = json::with_member(attributes, DIMENSIONS, None)?;
    let missing = match attribute(attributes, MISSING)? {
        Some(stated) => of_attribute(&stated, &old.dtype),
        None => default,
    };
    if let Some(missing) = missing {
        text = json::with_member(&text, MISSING, Some(json::write(&missing).as_bytes()))?;
    }
    Ok((text, Some(names)))
}

/// Returns an attribute, or `None` if there is none of this name.
fn attribute(attributes: &[u8], name: &str) -> Result<Option<Value>> {
    node::member(attributes, name)?
        .map(|text| json::parse(text.as_bytes()))
        .transpose()
}

/// Returns the missing value `stated` of v2 in the form of v3, or `None` if the form does not
/// change.
fn of_attribute(stated: &Value, dtype: &DType) -> Option<Value> {
    let number = json::float(stated).or_else(|| json::float_word(json::text(stated)?));
    number
        .filter(|_| *dtype.kind() == DTypeKind::Float)
        .map(float)
}

/// Returns the missing value that xarray derives from the fill value of an array of v2. Returns
/// `None` if the array has no fill value or xarray has no form for it.
fn of_fill_value(old: &ArrayMetadata) -> Option<Value> {
    let dtype = &old.dtype;
    if dtype.has_objects() {
        return Some(old.fill_value.clone()).filter(|value| json::text(value).is_some());
    }
    let mut item = old.fill.clone()?;
    match dtype.kind() {
        DTypeKind::Bool | DTypeKind::Int | DTypeKind::UInt => dtype.fill_value_json(&item),
        DTypeKind::Bytes => Some(STANDARD.encode(item).into()),
        DTypeKind::Text => {
            item.resize(item.len().next_multiple_of(4), 0);
            dtype.text_of(&item).map(Value::from)
        }
        DTypeKind::Float => {
            item.resize(dtype.size(), 0);
            Some(float(dtype.float_of(&item)))
        }
        DTypeKind::Complex => {
            item.resize(dtype.size(), 0);
            let (re, im) = item.split_at(dtype.size() / 2);
            Some(Value::Array(
                [re, im].map(|part| float(dtype.float_of(part))).into(),
            ))
        }
        _ => None,
    }
}

/// Returns a float as xarray writes it into attributes of v3.
fn float(number: f64) -> Value {
    STANDARD.encode(number.to_le_bytes()).into()
}
