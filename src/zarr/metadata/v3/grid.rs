//! The chunk grid and the chunk keys of a v3 document.

use super::extension::Extension;
use crate::error::{Error, Result};
use crate::util::json::{Map, Value};
use crate::zarr::chunk_key::{KeyEncoding, Separator};

/// Parses `chunk_grid`: the length of the outermost chunks along each dimension of `shape`.
///
/// # Errors
///
/// [`Kind::Damaged`](crate::error::Kind::Damaged) if it does not fit the shape,
/// [`Kind::Unsupported`](crate::error::Kind::Unsupported) for chunks of different lengths and unknown grids.
pub fn parse_grid(document: &Map<String, Value>, shape: &[u64]) -> Result<Vec<u64>> {
    let grid = document.get("chunk_grid").ok_or_else(|| Error::damaged("chunk_grid is missing"))?;
    let grid = Extension::parse(grid, "chunk_grid")?;
    let in_field = |e: Error| e.context("chunk_grid");
    match grid.name.as_str() {
        "regular" => {
            grid.allow_only(&["chunk_shape"]).map_err(in_field)?;
            let chunks = grid.lengths("chunk_shape").map_err(in_field)?;
            if chunks.len() != shape.len() {
                let why = format!("chunk_grid has {} dimensions, shape {}", chunks.len(), shape.len());
                return Err(Error::damaged(why));
            }
            // TensorStore writes 0 for a dimension without items
            let length = |(chunk, len): (u64, u64)| match chunk {
                0 if len == 0 => Ok(1),
                0 => Err(Error::damaged("chunk_grid: a chunk of length 0 holds nothing")),
                chunk => Ok(chunk),
            };
            chunks.into_iter().zip(shape.iter().copied()).map(length).collect()
        }
        "rectilinear" => rectilinear(&grid, shape).map_err(in_field),
        name => Err(Error::unsupported(format!("chunk_grid {name:?} is unknown"))),
    }
}

/// Parses a rectilinear grid that is a regular one: all chunks of a dimension but the last have one length. Source: the
/// register of extensions, "rectilinear chunk grid".
fn rectilinear(grid: &Extension, shape: &[u64]) -> Result<Vec<u64>> {
    grid.allow_only(&["kind", "chunk_shapes"])?;
    if grid.text("kind", "inline")? != "inline" {
        return Err(Error::unsupported("the kind of a rectilinear grid is not \"inline\""));
    }
    let axes = grid.get("chunk_shapes").and_then(Value::as_array).filter(|axes| axes.len() == shape.len());
    let axes = axes.ok_or_else(|| grid.invalid("chunk_shapes", "is not a list with an entry for each dimension"))?;
    axes.iter().zip(shape).map(|(axis, len)| edge_length(grid, axis, *len)).collect()
}

/// Returns the length of the chunks along a dimension of `len` items.
fn edge_length(grid: &Extension, axis: &Value, len: u64) -> Result<u64> {
    let bad = |why| grid.invalid("chunk_shapes", why);
    let positive = |value: &Value| value.as_u64().filter(|n| (1..=i64::MAX as u64).contains(n));
    if let Some(edge) = positive(axis) {
        return Ok(edge);
    }
    let list = axis.as_array().ok_or_else(|| bad("holds neither a length nor a list of lengths"))?;
    let (mut edge, mut sum, mut is_last) = (None, 0u64, false);
    for run in list {
        let (length, count) = match run.as_array().map(Vec::as_slice) {
            Some([length, count]) => (positive(length), positive(count)),
            Some(_) => (None, None),
            None => (positive(run), Some(1)),
        };
        let (Some(length), Some(count)) = (length, count) else { return Err(bad("holds a bad length or count")) };
        let more = length.checked_mul(count).and_then(|more| sum.checked_add(more));
        sum = more.filter(|sum| *sum <= i64::MAX as u64).ok_or_else(|| bad("is longer than 2^63"))?;
        match edge {
            // nothing may follow a chunk of another length
            _ if is_last => return Err(Error::unsupported("chunks of different lengths are not supported")),
            None => edge = Some(length),
            Some(edge) if edge == length => {}
            Some(edge) if length < edge && count == 1 && sum >= len => is_last = true,
            Some(_) => return Err(Error::unsupported("chunks of different lengths are not supported")),
        }
    }
    match edge {
        // a shorter last chunk would be stored with its own length, not with that of the others
        Some(_) if is_last => Err(Error::unsupported("chunks of different lengths are not supported")),
        Some(edge) if sum >= len => Ok(edge),
        None if len == 0 => Ok(1),
        _ => Err(bad("is shorter than the dimension")),
    }
}

/// Parses `chunk_key_encoding`.
///
/// # Errors
///
/// [`Kind::Damaged`](crate::error::Kind::Damaged) for a bad separator,
/// [`Kind::Unsupported`](crate::error::Kind::Unsupported) for an unknown encoding.
pub fn parse_keys(document: &Map<String, Value>) -> Result<KeyEncoding> {
    let keys = document.get("chunk_key_encoding").ok_or_else(|| Error::damaged("chunk_key_encoding is missing"))?;
    let keys = Extension::parse(keys, "chunk_key_encoding")?;
    let (has_prefix, default) = match keys.name.as_str() {
        "default" => (true, "/"),
        "v2" => (false, "."),
        name => return Err(Error::unsupported(format!("chunk_key_encoding {name:?} is unknown"))),
    };
    let in_field = |e: Error| e.context("chunk_key_encoding");
    keys.allow_only(&["separator"]).map_err(in_field)?;
    let separator = match keys.text("separator", default).map_err(in_field)? {
        "." => Separator::Dot,
        "/" => Separator::Slash,
        _ => return Err(in_field(keys.invalid("separator", "is neither \".\" nor \"/\""))),
    };
    Ok(KeyEncoding { has_prefix, separator })
}
