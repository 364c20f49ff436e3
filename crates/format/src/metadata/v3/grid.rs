//! The chunk grid and the chunk keys of a v3 document.

use crate::chunk_key::{KeyEncoding, Separator};
use crate::extension::Extension;
use crate::grid::Edges;
use crate::metadata::array::{required, spell_edges};
use zarrfs_base::error::{Error, Result};
use zarrfs_base::json::{self, Map, Value, json};
use zarrfs_base::memory::{self, Grant};

/// Maximum number of values in the configuration of a grid.
const MAX_VALUES: usize = 1 << 18;

/// Memory in bytes for each value of a configuration: the parsed value, and the edges made of it.
const VALUE_MEMORY: usize = 192;

/// Parses `chunk_grid`. Returns the lengths of the outermost chunks along each dimension of
/// `shape`, and the grant for their memory.
///
/// # Errors
///
/// [`Kind::Damaged`](zarrfs_base::error::Kind::Damaged) if it does not fit the shape,
/// [`Kind::Unsupported`](zarrfs_base::error::Kind::Unsupported) for an unknown grid or too long
/// lists.
pub fn parse_grid(document: &Map<String, Value>, shape: &[u64]) -> Result<(Vec<Edges>, Grant)> {
    let grid = required(document, "chunk_grid")?;
    let values = json::count_values(grid);
    if values > MAX_VALUES {
        return Err(Error::unsupported(format!(
            "chunk_grid has {values} values, more than {MAX_VALUES}"
        )));
    }
    let memory = memory::take(values * VALUE_MEMORY)?;
    let grid = Extension::parse(grid, "chunk_grid")?;
    let edges = match grid.name.as_str() {
        "regular" => regular(&grid, shape),
        "rectilinear" => rectilinear(&grid, shape),
        name => {
            return Err(Error::unsupported(format!(
                "chunk_grid {name:?} is unknown"
            )));
        }
    };
    Ok((edges.map_err(|e| e.context("chunk_grid"))?, memory))
}

fn regular(grid: &Extension, shape: &[u64]) -> Result<Vec<Edges>> {
    grid.allow_only(&["chunk_shape"])?;
    let chunks = grid.lengths("chunk_shape")?;
    if chunks.len() != shape.len() {
        return Err(Error::damaged(format!(
            "chunk_shape has {} dimensions, shape {}",
            chunks.len(),
            shape.len()
        )));
    }
    // TensorStore writes 0 for a dimension without items
    chunks
        .into_iter()
        .zip(shape)
        .map(|(chunk, len)| match chunk {
            0 if *len == 0 => Ok(Edges::Equal(1)),
            0 => Err(Error::damaged("a chunk of length 0 holds nothing")),
            chunk => Ok(Edges::Equal(chunk)),
        })
        .collect()
}

/// Parses a rectilinear grid. Source: the registry of Zarr extensions, "rectilinear chunk grid".
fn rectilinear(grid: &Extension, shape: &[u64]) -> Result<Vec<Edges>> {
    grid.allow_only(&["kind", "chunk_shapes"])?;
    if grid.text("kind", "inline")? != "inline" {
        return Err(Error::unsupported(
            "the kind of a rectilinear grid is not \"inline\"",
        ));
    }
    let axes = grid
        .get("chunk_shapes")
        .and_then(Value::as_array)
        .filter(|axes| axes.len() == shape.len());
    let axes = axes.ok_or_else(|| {
        grid.invalid(
            "chunk_shapes",
            "is not a list with an entry for each dimension",
        )
    })?;
    axes.iter()
        .zip(shape)
        .map(|(axis, len)| edges_along(grid, axis, *len))
        .collect()
}

/// Parses the lengths of the chunks along a dimension of `len` items: a length, or a list of
/// lengths and of pairs of a length and its repetitions.
fn edges_along(grid: &Extension, axis: &Value, len: u64) -> Result<Edges> {
    let bad = |why: &str| grid.invalid("chunk_shapes", why);
    if let Some(edge) = positive(axis) {
        return Ok(Edges::Equal(edge));
    }
    let list = axis
        .as_array()
        .ok_or_else(|| bad("holds neither a length nor a list of lengths"))?;
    if list.is_empty() && len == 0 {
        return Ok(Edges::Equal(1));
    }
    let pairs = pairs(list).ok_or_else(|| bad("holds a bad length or count"))?;
    let edges = Edges::listed(&pairs).map_err(|e| bad(&format!("lists {e}")))?;
    if edges.capacity() < len {
        Err(bad("is shorter than the dimension"))
    } else {
        Ok(edges.equal().map_or(edges, Edges::Equal))
    }
}

/// Lets the chunks of a document of v2 or v3 reach the end of its `shape`: where the listed lengths
/// of a rectilinear grid do not, the last one is repeated, and chunks of length 0 get the length
/// that they are read with.
pub fn extend_grid(document: &mut Map<String, Value>) {
    let shape: Option<Vec<u64>> = document
        .get("shape")
        .and_then(Value::as_array)
        .and_then(|list| list.iter().map(Value::as_u64).collect());
    let field = if document.contains_key("chunk_grid") {
        "chunk_grid"
    } else {
        "chunks"
    };
    let mut chunks = document.get_mut(field);
    for member in ["configuration", "chunk_shapes", "chunk_shape"] {
        chunks = chunks.map(|value| {
            if value.get(member).is_some() {
                &mut value[member]
            } else {
                value
            }
        });
    }
    let chunks = chunks.and_then(Value::as_array_mut);
    for (axis, len) in chunks
        .into_iter()
        .flatten()
        .zip(shape.into_iter().flatten())
    {
        if let Some(list) = axis.as_array_mut() {
            extend_list(list, len);
        } else if len > 0 && *axis == 0 {
            *axis = 1.into();
        }
    }
}

fn extend_list(list: &mut Vec<Value>, len: u64) {
    let Some(pairs) = pairs(list) else { return };
    let Ok(edges) = Edges::listed(&pairs) else {
        return;
    };
    let missing = len.saturating_sub(edges.capacity());
    let Some((last, count)) = pairs.last().filter(|_| missing > 0) else {
        return;
    };
    list.pop();
    list.push(json!([last, count + missing.div_ceil(*last)]));
}

/// Parses a list of lengths and of pairs of a length and its repetitions.
fn pairs(list: &[Value]) -> Option<Vec<(u64, u64)>> {
    list.iter()
        .map(|value| match value.as_array().map(Vec::as_slice) {
            Some([length, count]) => positive(length).zip(positive(count)),
            Some(_) => None,
            None => positive(value).map(|length| (length, 1)),
        })
        .collect()
}

fn positive(value: &Value) -> Option<u64> {
    value.as_u64().filter(|n| (1..=i64::MAX as u64).contains(n))
}

/// Returns the grid of chunks with these lengths along each dimension, as a document spells it.
pub fn spell_grid(edges: &[Edges]) -> Value {
    let equal: Option<Vec<u64>> = edges.iter().map(|edges| edges.equal()).collect();
    if let Some(shape) = equal {
        return json!({"name": "regular", "configuration": {"chunk_shape": shape}});
    }
    let shapes: Vec<Value> = edges.iter().map(spell_edges).collect();
    json!({"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": shapes}})
}

/// Parses `chunk_key_encoding`.
///
/// # Errors
///
/// [`Kind::Damaged`](zarrfs_base::error::Kind::Damaged) for a bad separator,
/// [`Kind::Unsupported`](zarrfs_base::error::Kind::Unsupported) for an unknown encoding.
pub fn parse_keys(document: &Map<String, Value>) -> Result<KeyEncoding> {
    let keys = required(document, "chunk_key_encoding")?;
    let keys = Extension::parse(keys, "chunk_key_encoding")?;
    let (has_prefix, default) = match keys.name.as_str() {
        "default" => (true, "/"),
        "v2" => (false, "."),
        name => {
            return Err(Error::unsupported(format!(
                "chunk_key_encoding {name:?} is unknown"
            )));
        }
    };
    let separator = separator(&keys, default).map_err(|e| e.context("chunk_key_encoding"))?;
    Ok(KeyEncoding {
        has_prefix,
        separator,
    })
}

fn separator(keys: &Extension, default: &str) -> Result<Separator> {
    keys.allow_only(&["separator"])?;
    match keys.text("separator", default)? {
        "." => Ok(Separator::Dot),
        "/" => Ok(Separator::Slash),
        _ => Err(keys.invalid("separator", "is neither \".\" nor \"/\"")),
    }
}
