//! The `zarr.json` of an array: every field checked, and translated to the model that v1, v2 and v3
//! share. Source of the rules: the Zarr v3.1 specification, "Array metadata".

use super::chain::{Chain, is_reshape, parse_chain};
use super::fill_value;
use super::grid::{parse_grid, parse_keys};
use super::node::{NodeType, check_format, node_type};
use crate::grid::Edges;
use crate::metadata::array::{
    COPIES, KEPT_COPIES, dimensions, file_size, required, stated, take_for_fields,
};
use crate::metadata::{ArrayMetadata, CodecConfig, Order, ShardLevel, V3Fields};
use std::borrow::Cow;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::json::{self, Map, Value};
use zarrfs_base::memory::SharedGrant;

/// Fields of an array's document that the specification names.
const FIELDS: [&str; 11] = [
    "zarr_format",
    "node_type",
    "shape",
    "data_type",
    "chunk_grid",
    "chunk_key_encoding",
    "fill_value",
    "codecs",
    "attributes",
    "storage_transformers",
    "dimension_names",
];

impl ArrayMetadata {
    /// Parses the `zarr.json` of an array.
    ///
    /// # Errors
    ///
    /// [`Kind::Damaged`](zarrfs_base::error::Kind::Damaged) if the document breaks the format or a
    /// size limit, [`Kind::Unsupported`](zarrfs_base::error::Kind::Unsupported) for an extension
    /// that this version does not know.
    pub fn parse_v3(document: &[u8]) -> Result<Self> {
        let doc = json::parse_object(document)?;
        check_format(document)?;
        if node_type(document)? != NodeType::Array {
            return Err(Error::damaged("node_type is not \"array\""));
        }
        let mut memory = take_for_fields(
            &doc,
            &["data_type", "codecs", "fill_value", "dimension_names"],
        )?;
        check_fields(&doc)?;
        let shape = dimensions(&doc, "shape", 0)?;
        let (edges, of_edges) = parse_grid(&doc, &shape)?;
        let outer: Vec<u64> = shape
            .iter()
            .zip(&edges)
            .map(|(&len, edges)| edges.max(len))
            .collect();
        let keys = parse_keys(&doc)?;
        let data_type = required(&doc, "data_type")?;
        let codecs = required(&doc, "codecs")?;
        let fill_value = required(&doc, "fill_value")?;
        let Chain {
            data_type: parsed,
            filters,
            mut shards,
            chunks,
        } = parse_chain(codecs, &outer, data_type)?;
        let fill = fill_value::parse(fill_value, data_type, &parsed)
            .map_err(|e| e.context("fill_value"))?;
        let dtype = parsed.dtype;
        let mut edges = is_irregular(&edges).then_some(edges);
        if edges.is_some() {
            check_irregular(codecs)?;
        }
        // chunks in shards have one shape, even if the shards differ in shape
        if let Some(outermost) = shards.first_mut() {
            outermost.edges = edges.take();
        }
        memory.shrink_to(
            memory.bytes() / COPIES * KEPT_COPIES + fill.as_ref().map_or(0, Vec::capacity),
        );
        let v3 = V3Fields {
            has_key_prefix: keys.has_prefix,
            data_type: data_type.clone(),
            fill_value: fill_value.clone(),
            codecs: codecs.clone(),
            dimension_names: dimension_names(&doc, shape.len())?,
        };
        let fill_value_v2 = match &fill {
            Some(item) => dtype.fill_value_json(item).unwrap_or(Value::Null),
            // the fill value of objects is a text, or absent
            None => fill_value.clone(),
        };
        let metadata = ArrayMetadata {
            shape,
            chunks,
            edges,
            dtype_json: parsed
                .numpy
                .unwrap_or_else(|| format!("|V{}", dtype.size()).into()),
            fill_value: fill_value_v2,
            fill,
            order: Order::C,
            compressor: None,
            filters,
            separator: Some(keys.separator),
            shards,
            v3: Some(Box::new(v3)),
            zarr_format: 3,
            memory: SharedGrant::default(),
            dtype,
        };
        metadata.check_sizes()?;
        check_shards(&metadata)?;
        check_shard_edges(&metadata)?;
        Ok(ArrayMetadata {
            memory: memory.and(of_edges).into(),
            ..metadata
        })
    }

    /// Returns the filters and the levels of shards of an object of shape `shape`, where objects
    /// differ in shape.
    ///
    /// # Errors
    ///
    /// The errors of [`ArrayMetadata::parse_v3`] for a chain that cannot encode such an object.
    pub fn codecs_of_shape(&self, shape: &[u64]) -> Result<(Vec<CodecConfig>, Vec<ShardLevel>)> {
        let Some(v3) = &self.v3 else {
            return Ok((self.filters.clone(), self.shards.clone()));
        };
        let chain = parse_chain(&v3.codecs, shape, &v3.data_type)?;
        Ok((chain.filters, chain.shards))
    }

    /// Returns the lengths of the outermost shards along each dimension, or of the chunks if there
    /// are no shards.
    pub fn object_edges(&self) -> Cow<'_, [Edges]> {
        self.shards
            .first()
            .map_or_else(|| self.chunk_edges(), ShardLevel::shard_edges)
    }

    /// Returns whether `other` may be this array after its shape has changed: the chunks that both
    /// have are encoded in the same way and stored under the same keys. Unlike
    /// [`ArrayMetadata::encodes_like`], lists of the lengths of chunks may differ beyond the
    /// smaller shape.
    pub fn is_resize_of(&self, other: &ArrayMetadata) -> bool {
        if self.encodes_like(other) {
            return true;
        }
        let ours = self.object_edges();
        let theirs = other.object_edges();
        if self.shape.len() != other.shape.len()
            || [&ours, &theirs].iter().all(|edges| !is_irregular(edges))
        {
            return false;
        }
        if !self.has_same_edges(&ours, other, &theirs) {
            return false;
        }
        other
            .with_grid_of(self)
            .is_ok_and(|other| self.encodes_like(&other))
    }

    /// Returns this array with the grid of another one.
    fn with_grid_of(&self, other: &ArrayMetadata) -> Result<ArrayMetadata> {
        let Some(v3) = &self.v3 else {
            return Err(Error::unsupported(
                "chunks of different lengths are of v3 alone",
            ));
        };
        let outer = other
            .shards
            .first()
            .map_or(&other.chunks, |level| &level.shape);
        let Chain {
            filters,
            mut shards,
            chunks,
            ..
        } = parse_chain(&v3.codecs, outer, &v3.data_type)?;
        if let (Some(level), Some(of_other)) = (shards.first_mut(), other.shards.first()) {
            level.edges = of_other.edges.clone();
        }
        Ok(ArrayMetadata {
            chunks,
            edges: other.edges.clone(),
            filters,
            shards,
            ..self.clone()
        })
    }

    /// Returns whether the chunks that both arrays have are of the same lengths, however they are
    /// encoded.
    pub fn begins_like(&self, other: &ArrayMetadata) -> bool {
        self.has_same_edges(&self.chunk_edges(), other, &other.chunk_edges())
    }

    /// Returns whether these edges of both arrays are the same as far as both shapes reach.
    fn has_same_edges(&self, ours: &[Edges], other: &ArrayMetadata, theirs: &[Edges]) -> bool {
        let lengths = self.shape.iter().zip(&other.shape).map(|(a, b)| *a.min(b));
        ours.len() == theirs.len()
            && ours
                .iter()
                .zip(theirs)
                .zip(lengths)
                .all(|((a, b), len)| a.begins_like(b, len))
    }
}

fn is_irregular(edges: &[Edges]) -> bool {
    edges.iter().any(|edges| edges.equal().is_none())
}

/// Checks that this chain can encode chunks of different shapes.
fn check_irregular(codecs: &Value) -> Result<()> {
    if codecs
        .as_array()
        .is_some_and(|list| list.iter().any(is_reshape))
    {
        Err(Error::unsupported(
            "chunk_grid: \"reshape\" of chunks of different lengths is not supported",
        ))
    } else {
        Ok(())
    }
}

/// Checks that the length of each shard is a multiple of the lengths inside it.
fn check_shard_edges(metadata: &ArrayMetadata) -> Result<()> {
    let Some(outermost) = metadata.shards.first() else {
        return Ok(());
    };
    let inner = metadata
        .shards
        .get(1)
        .map_or(&metadata.chunks, |level| &level.shape);
    for (edges, inner) in outermost.edges.iter().flatten().zip(inner) {
        if let Some((len, _)) = edges.list().iter().find(|(len, _)| len % inner != 0) {
            let why = format!(
                "codecs: \"sharding_indexed\": chunk_shape {inner} does not divide the shard's length {len}"
            );
            return Err(Error::damaged(why));
        }
    }
    Ok(())
}

/// Checks the fields that [`ArrayMetadata`] does not keep.
fn check_fields(doc: &Map<String, Value>) -> Result<()> {
    for (field, value) in doc {
        let is_ignorable = value.get("must_understand") == Some(&Value::Bool(false));
        if !FIELDS.contains(&field.as_str()) && !is_ignorable {
            return Err(Error::unsupported(format!(
                "field {field:?} is unknown, and must be understood"
            )));
        }
    }
    match stated(doc, "storage_transformers") {
        None => {}
        Some(Value::Array(list)) if list.is_empty() => {}
        Some(Value::Array(_)) => {
            return Err(Error::unsupported("storage_transformers are not supported"));
        }
        Some(_) => return Err(Error::damaged("storage_transformers is not a list")),
    }
    match stated(doc, "attributes") {
        None | Some(Value::Object(_)) => Ok(()),
        Some(_) => Err(Error::damaged("attributes is not an object")),
    }
}

fn dimension_names(
    doc: &Map<String, Value>,
    dimensions: usize,
) -> Result<Option<Vec<Option<String>>>> {
    let Some(list) = stated(doc, "dimension_names") else {
        return Ok(None);
    };
    let names = list
        .as_array()
        .filter(|list| list.len() == dimensions)
        .and_then(|list| {
            list.iter()
                .map(|name| match name {
                    Value::Null => Some(None),
                    name => Some(Some(json::text(name)?.to_string())),
                })
                .collect()
        });
    names.map(Some).ok_or_else(|| {
        let why = "dimension_names is not a list with a string or null for each dimension";
        Error::damaged(why)
    })
}

/// Checks that the size of a shard in bytes fits a signed 64-bit integer.
fn check_shards(metadata: &ArrayMetadata) -> Result<()> {
    let item = metadata.dtype.size().max(1);
    for level in &metadata.shards {
        if file_size(&level.shape, item).is_none() {
            return Err(Error::damaged(format!(
                "shards {:?} are larger than 2^63 bytes",
                level.shape
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
