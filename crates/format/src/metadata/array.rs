//! The checked metadata of one array, and what the documents of all versions share. The module does
//! not know how a document spells an array.

use super::{CodecConfig, Separator};
use crate::dtype::{DType, DTypeKind};
use crate::grid::{Edges, Grid};
use crate::layout::byte_size;
use std::borrow::Cow;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::json::{self, Map, Object, Value, json};
use zarrfs_base::memory::{self, Grant, SharedGrant};

/// Maximum number of dimensions: NumPy's limit when the format was made.
pub(super) const MAX_DIMENSIONS: usize = 32;

/// Maximum size of a decoded chunk in bytes: the largest length that codecs with signed 32-bit
/// lengths can state.
pub const MAX_CHUNK: u64 = (1 << 31) - 1;

/// Number of times that a field of a document is in memory, beside the parsed document, while an
/// array is made of it: its copy, its spelling in v2, what it was parsed to, and temporary lists.
/// Fill values take four bytes a character.
pub(super) const COPIES: usize = 4;

/// Number of these copies that an array keeps.
pub(super) const KEPT_COPIES: usize = 2;

/// The id of the codec of integers of 2 and 4 bits, which `bytes` of v3 implies.
pub(super) const LOW_BITS: &str = "low_bits";

/// The layout of the items inside a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The last dimension varies fastest.
    C,
    /// The first dimension varies fastest.
    F,
}

impl Order {
    /// Returns `"C"` or `"F"`.
    pub fn as_str(self) -> &'static str {
        match self {
            Order::C => "C",
            Order::F => "F",
        }
    }
}

/// Checked metadata of an array: every size fits its integer, every chunk dimension is at least 1,
/// and the fill value fits the dtype.
///
/// ```
/// use zarrfs_format::metadata::ArrayMetadata;
///
/// let document = br#"{"zarr_format": 2, "shape": [10, 6], "chunks": [4, 4], "dtype": "<i4", "order": "C",
///     "fill_value": 7, "compressor": {"id": "zlib", "level": 1}, "filters": null}"#;
/// let metadata = ArrayMetadata::parse(document)?;
/// assert_eq!((metadata.shape.as_slice(), metadata.flat_size()), (&[10, 6][..], 240));
/// assert!(metadata.shown_document().contains(r#""compressor": null"#));
/// # Ok::<(), zarrfs_base::error::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ArrayMetadata {
    /// The length of each dimension in items; empty for a 0-d array.
    pub shape: Vec<u64>,
    /// The length of a chunk along each dimension in items; where they differ, the largest length
    /// inside the shape.
    pub chunks: Vec<u64>,
    /// The lengths of the chunks along each dimension; `None` if all chunks have the shape
    /// `chunks`.
    pub edges: Option<Vec<Edges>>,
    /// The dtype of the items.
    pub dtype: DType,
    /// The dtype as the document spells it. For a v3 document its spelling in v2, which is opaque
    /// bytes if NumPy lacks the type.
    pub dtype_json: Value,
    /// The fill value as the document spells it. For a v3 document its spelling in v2, or null if
    /// v2 has none.
    pub fill_value: Value,
    /// The bytes of one item with the fill value, without the zero bytes at its end; `None` if the
    /// fill value is null.
    pub fill: Option<Vec<u8>>,
    /// The layout of a decoded chunk. For a v1 array, [`V1Order`](super::V1Order) decides what the
    /// document's order means.
    pub order: Order,
    /// The compressor; `None` if chunks are not compressed.
    pub compressor: Option<CodecConfig>,
    /// The filters, in the order of encoding.
    pub filters: Vec<CodecConfig>,
    /// The separator of chunk keys; `None` if the document does not state it.
    pub separator: Option<Separator>,
    /// The levels of shards that hold the chunks, outermost first; empty if each chunk is a value
    /// of its own.
    pub shards: Vec<ShardLevel>,
    /// The fields that only a v3 document has; `None` for v1 and v2.
    pub v3: Option<Box<V3Fields>>,
    /// The Zarr format of the document: 1, 2 or 3.
    pub zarr_format: u8,
    /// The grant for the memory of these fields.
    pub memory: SharedGrant,
}

/// The fields of a v3 array that v2 does not have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct V3Fields {
    /// Whether chunk keys begin with `c`: the key encoding `default`.
    pub has_key_prefix: bool,
    /// The data type as the document spells it.
    pub data_type: Value,
    /// The fill value as the document spells it.
    pub fill_value: Value,
    /// The codecs as the document spells them, those of shards included.
    pub codecs: Value,
    /// The names of the dimensions.
    pub dimension_names: Option<Vec<Option<String>>>,
}

impl ShardLevel {
    /// Returns the lengths of the shards along each dimension.
    pub fn shard_edges(&self) -> Cow<'_, [Edges]> {
        edges_or_equal(self.edges.as_deref(), &self.shape)
    }
}

/// Returns `edges`, or if there are none, equal edges of the lengths in `shape`.
fn edges_or_equal<'a>(edges: Option<&'a [Edges]>, shape: &[u64]) -> Cow<'a, [Edges]> {
    match edges {
        Some(edges) => Cow::Borrowed(edges),
        None => shape.iter().map(|len| Edges::Equal(*len)).collect(),
    }
}

/// One level of shards. Source of the rules: `sharding_indexed` of the Zarr v3 specification.
#[derive(Clone, Debug, PartialEq)]
pub struct ShardLevel {
    /// The length of a shard along each dimension of the array in items: a multiple of the next
    /// level's, or of a chunk's. Where they differ, the largest length inside the array's shape.
    pub shape: Vec<u64>,
    /// The lengths of the shards along each dimension; `None` if all have the shape `shape`, as on
    /// all levels but the outermost.
    pub edges: Option<Vec<Edges>>,
    /// The order of the dimensions in the index: its dimension `i` is dimension `axes[i]` of the
    /// array.
    pub axes: Vec<usize>,
    /// The codecs of the index, in the order of encoding, for the bytes of its numbers: items of 8
    /// bytes.
    pub index_codecs: Vec<CodecConfig>,
    /// Whether the numbers of the index are big-endian.
    pub is_index_big_endian: bool,
    /// Whether the index is at the start of the shard instead of its end.
    pub is_index_at_start: bool,
    /// The codecs that encode the shard as a whole, in the order of encoding.
    pub around: Vec<CodecConfig>,
}

impl ArrayMetadata {
    /// Checks that the sizes in bytes of the array and of a chunk fit their limits.
    pub(super) fn check_sizes(&self) -> Result<()> {
        let item = self.dtype.size();
        if !self.shape.contains(&0) && file_size(&self.shape, item).is_none() {
            return Err(Error::damaged(format!(
                "shape {:?} of {item}-byte items is larger than 2^63 bytes",
                self.shape
            )));
        }
        match file_size(&self.chunks, item) {
            Some(n) if n <= MAX_CHUNK => Ok(()),
            _ => Err(Error::damaged(format!(
                "chunks {:?} of {item}-byte items are larger than 2 GiB, the most a chunk may have",
                self.chunks
            ))),
        }
    }

    /// Returns the chunk grid of an array of shape `shape`.
    ///
    /// # Errors
    ///
    /// The errors of [`Grid::new`].
    pub fn grid(&self, shape: &[u64]) -> Result<Grid> {
        match &self.edges {
            Some(edges) => Grid::with_edges(shape, edges, self.dtype.size()),
            None => Grid::new(shape, &self.chunks, self.dtype.size()),
        }
    }

    /// Returns the lengths of the chunks along each dimension.
    pub fn chunk_edges(&self) -> Cow<'_, [Edges]> {
        edges_or_equal(self.edges.as_deref(), &self.chunks)
    }

    /// Returns whether both arrays have chunks of the same lengths. The number of chunks may
    /// differ.
    pub fn has_chunks_of(&self, other: &ArrayMetadata) -> bool {
        self.chunk_edges() == other.chunk_edges()
    }

    /// Returns the shape of the decoded chunk with these grid indices, padding included.
    pub fn chunk_shape(&self, indices: &[u64]) -> Cow<'_, [u64]> {
        match &self.edges {
            Some(edges) => edges
                .iter()
                .zip(indices)
                .map(|(edges, index)| edges.len_of(*index))
                .collect(),
            None => Cow::Borrowed(&self.chunks),
        }
    }

    /// Returns the chunk lengths, one entry per dimension: an integer if all chunks have that
    /// length, otherwise a list of lengths and of `[length, count]` pairs, as in the v3 grid
    /// `rectilinear`.
    pub fn chunks_json(&self) -> Value {
        self.chunk_edges().iter().map(spell_edges).collect()
    }

    /// Returns the lengths of the outermost shards in the form of [`ArrayMetadata::chunks_json`];
    /// `None` without shards.
    pub(super) fn shards_json(&self) -> Option<Value> {
        self.shards
            .first()
            .map(|level| level.shard_edges().iter().map(spell_edges).collect())
    }

    /// Returns the size of the flat array in bytes.
    pub fn flat_size(&self) -> u64 {
        if self.shape.contains(&0) {
            0
        } else {
            // `check_sizes` has shown that the product does not overflow
            self.shape
                .iter()
                .fold(self.dtype.size() as u64, |bytes, len| bytes * len)
        }
    }

    /// Returns the size in bytes of one item of the first dimension, as if that had a length; the
    /// largest number if 64 bits do not hold it.
    pub fn row_size(&self) -> u64 {
        let inner = self.shape.get(1..).unwrap_or_default().iter();
        inner.fold(self.dtype.size() as u64, |bytes, len| {
            bytes.saturating_mul(*len)
        })
    }

    /// Writes the fill value over `to`, which starts at the byte `position` of the flat array.
    /// Without a fill value it writes zeros.
    pub fn write_fill(&self, to: &mut [u8], position: u64) {
        // the buffer is reused: it may hold the bytes of another read
        to.fill(0);
        let (Some(item), size) = (&self.fill, self.dtype.size()) else {
            return;
        };
        if item.is_empty() {
            return;
        }
        let mut at = 0;
        let mut inside = (position % size as u64) as usize;
        while at < to.len() {
            // the metadata omits the zero bytes at the end of the fill value
            let rest = item.get(inside..).unwrap_or_default();
            let n = rest.len().min(to.len() - at);
            to[at..at + n].copy_from_slice(&rest[..n]);
            at += size - inside;
            inside = 0;
        }
    }

    /// Returns the codec that encodes Python objects: the first filter of an array of objects. The
    /// mount does not decode it.
    pub fn object_codec(&self) -> Option<&CodecConfig> {
        self.filters.first().filter(|_| self.dtype.has_objects())
    }

    /// Returns the filters that the document states, in the order of encoding. The codec of
    /// integers of 2 and 4 bits, which no document states, is left out.
    pub fn stated_filters(&self) -> impl Iterator<Item = &CodecConfig> {
        self.filters.iter().filter(|filter| filter.id != LOW_BITS)
    }

    /// Returns whether the document says that chunks are stored as the mount shows them, each as a
    /// value of its own.
    pub fn is_decoded(&self) -> bool {
        self.shards.is_empty() && self.stated_filters().eq(self.object_codec())
    }

    /// Returns whether chunks have one shape, and shards as well.
    pub fn is_regular(&self) -> bool {
        self.edges.is_none() && self.shards.iter().all(|level| level.edges.is_none())
    }

    /// Returns the metadata of an array of another shape whose chunks are stored as the mount shows
    /// them.
    pub fn without_codecs(&self, shape: Vec<u64>, chunks: Vec<u64>) -> Self {
        ArrayMetadata {
            shape,
            chunks,
            edges: None,
            compressor: None,
            filters: Vec::new(),
            shards: Vec::new(),
            ..self.clone()
        }
    }

    /// Returns whether both arrays encode chunks in the same way. Only the shape, the separator,
    /// the names of dimensions, and the spelling of dtype, fill value and codecs may differ.
    /// Callers compare the separators.
    pub fn encodes_like(&self, other: &ArrayMetadata) -> bool {
        let same_otherwise = ArrayMetadata {
            shape: self.shape.clone(),
            separator: self.separator,
            dtype_json: self.dtype_json.clone(),
            fill_value: self.fill_value.clone(),
            v3: self.v3.clone(),
            ..other.clone()
        };
        *self == same_otherwise
            && self.shape.len() == other.shape.len()
            && self.v3.is_some() == other.v3.is_some()
            && self.has_key_prefix() == other.has_key_prefix()
    }

    /// Returns whether decoded items are big-endian; for a struct, whether any field is.
    pub fn is_big_endian(&self) -> bool {
        match self.dtype.kind() {
            DTypeKind::Struct(fields) => fields.iter().any(|field| field.dtype.is_big_endian()),
            _ => self.dtype.is_big_endian(),
        }
    }

    /// Returns whether the keys of chunks begin with `c`.
    pub fn has_key_prefix(&self) -> bool {
        self.v3.as_ref().is_some_and(|v3| v3.has_key_prefix)
    }

    /// Returns whether the items are, or contain, Python objects. These have no fixed size, so
    /// there is no flat array.
    pub fn has_objects(&self) -> bool {
        self.dtype.has_objects()
    }

    /// Returns the fields that describe the stored array, by name, for display.
    pub fn description(&self) -> Vec<(&'static str, Value)> {
        if let Some(v3) = &self.v3 {
            return self.description_v3(v3);
        }
        vec![
            ("shape", self.shape.clone().into()),
            ("chunks", self.chunks_json()),
            ("dtype", self.dtype_json.clone()),
            ("order", self.order.as_str().into()),
            ("fill_value", self.fill_value.clone()),
            (
                "compressor",
                self.compressor
                    .as_ref()
                    .map_or(Value::Null, CodecConfig::to_json),
            ),
            ("filters", CodecConfig::list_to_json(&self.filters)),
        ]
    }
}

/// Grants the memory of an array for what it makes of these fields of its document.
///
/// # Errors
///
/// The errors of [`memory::take`].
pub(super) fn take_for_fields(doc: &Map<String, Value>, fields: &[&str]) -> Result<Grant> {
    memory::take(
        fields
            .iter()
            .filter_map(|field| doc.get(*field))
            .map(json::memory_of)
            .sum::<usize>()
            * COPIES,
    )
}

/// Parses a document of format `zarr_format`.
pub(super) fn object(document: &[u8], zarr_format: u64) -> Result<Object> {
    let doc = json::parse_object(document)?;
    match doc.get("zarr_format") {
        Some(v) if v.as_u64() == Some(zarr_format) => Ok(doc),
        Some(v) => Err(Error::damaged(format!(
            "zarr_format is {:.20}, not {zarr_format}",
            json::write(v)
        ))),
        None => Err(Error::damaged("zarr_format is missing")),
    }
}

/// Returns the size in bytes of an array of shape `shape`, or `None` if a file cannot have it.
pub(super) fn file_size(shape: &[u64], itemsize: usize) -> Option<u64> {
    let size = byte_size(shape, itemsize)? as u64;
    (size <= i64::MAX as u64).then_some(size)
}

/// Returns the lengths of the chunks along a dimension, as a document spells them.
pub(super) fn spell_edges(edges: &Edges) -> Value {
    match edges {
        Edges::Equal(len) => json!(len),
        Edges::Listed(_) => edges
            .list()
            .into_iter()
            .map(|(len, count)| match count {
                1 => json!(len),
                _ => json!([len, count]),
            })
            .collect(),
    }
}

/// Returns a field that every document has.
pub(super) fn required<'a>(doc: &'a Map<String, Value>, field: &str) -> Result<&'a Value> {
    doc.get(field)
        .ok_or_else(|| Error::damaged(format!("{field} is missing")))
}

/// Returns a field, or `None` if it is absent or null.
pub(super) fn stated<'a>(doc: &'a Map<String, Value>, field: &str) -> Option<&'a Value> {
    doc.get(field).filter(|value| !value.is_null())
}

/// Parses the list of lengths in `field`, each of which must be at least `least`.
pub(super) fn dimensions(doc: &Map<String, Value>, field: &str, least: u64) -> Result<Vec<u64>> {
    let list = doc.get(field).and_then(Value::as_array);
    let list = list.ok_or_else(|| Error::damaged(format!("{field} is not a list of integers")))?;
    if list.len() > MAX_DIMENSIONS {
        return Err(Error::damaged(format!(
            "{field} has {} dimensions, more than {MAX_DIMENSIONS}",
            list.len()
        )));
    }
    list.iter()
        .enumerate()
        .map(|(i, value)| {
            let length = value
                .as_u64()
                .filter(|n| *n >= least && *n <= i64::MAX as u64);
            length.ok_or_else(|| {
                let shown = json::write(value);
                Error::damaged(format!("{field}[{i}] is {shown:.20}, not a length"))
            })
        })
        .collect()
}
