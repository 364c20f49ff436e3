//! The checked metadata of one array. Source of the rules: Zarr v2 specification, "Arrays", read as
//! leniently as zarr-python 2.18 does.

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
#[derive(Clone, Debug, PartialEq)]
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
    /// Parses a `.zarray` document.
    ///
    /// # Errors
    ///
    /// [`Kind::Damaged`](zarrfs_base::error::Kind::Damaged) if the document breaks the format or a
    /// size limit.
    pub fn parse(document: &[u8]) -> Result<Self> {
        let doc = object(document, 2)?;
        let mut memory = take_for_fields(&doc, &["dtype", "fill_value", "compressor", "filters"])?;
        let filters = match doc.get("filters") {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(list)) if list.len() > 64 => {
                return Err(Error::unsupported(format!(
                    "{} filters are too many",
                    list.len()
                )));
            }
            Some(Value::Array(list)) => list
                .iter()
                .map(CodecConfig::parse)
                .collect::<Result<_>>()
                .map_err(|e| e.context("filters"))?,
            Some(Value::Object(o)) if o.is_empty() => Vec::new(),
            Some(_) => return Err(Error::damaged("filters is not a list")),
        };
        let compressor = match doc.get("compressor") {
            None | Some(Value::Null) => None,
            Some(value) => Some(CodecConfig::parse(value).map_err(|e| e.context("compressor"))?),
        };
        let separator = match doc.get("dimension_separator") {
            None | Some(Value::Null) => None,
            Some(text) => match json::text(text) {
                Some("") => None,
                Some(".") => Some(Separator::Dot),
                Some("/") => Some(Separator::Slash),
                _ => {
                    return Err(Error::damaged(
                        "dimension_separator is neither \".\" nor \"/\"",
                    ));
                }
            },
        };
        let meta = Self::common(&doc, 2)?;
        if meta.has_objects() && filters.is_empty() {
            return Err(Error::damaged(
                "dtype holds objects, but filters has no object codec",
            ));
        }
        memory.shrink_to(
            memory.bytes() / COPIES * KEPT_COPIES + meta.fill.as_ref().map_or(0, Vec::capacity),
        );
        Ok(ArrayMetadata {
            compressor,
            filters,
            separator,
            memory: memory.into(),
            ..meta
        })
    }

    /// Parses the fields that v1 and v2 share.
    pub(super) fn common(doc: &Map<String, Value>, zarr_format: u8) -> Result<Self> {
        let shape = dimensions(doc, "shape", 0)?;
        let mut chunks = dimensions(doc, "chunks", 0)?;
        if shape.len() != chunks.len() {
            return Err(Error::damaged(format!(
                "shape has {} dimensions, chunks {}",
                shape.len(),
                chunks.len()
            )));
        }
        for (i, (chunk, len)) in chunks
            .iter_mut()
            .zip(&shape)
            .enumerate()
            .filter(|(_, (chunk, _))| **chunk == 0)
        {
            if *len > 0 {
                return Err(Error::damaged(format!("chunks[{i}] is 0, not a length")));
            }
            // zarr-python 3 writes and reads chunks of length 0 along a dimension without items
            *chunk = 1;
        }
        let dtype_json = doc
            .get("dtype")
            .cloned()
            .ok_or_else(|| Error::damaged("dtype is missing"))?;
        let dtype = DType::parse(&dtype_json)?;
        let fill_value = doc.get("fill_value").cloned().unwrap_or(Value::Null);
        let fill = if zarr_format == 1 {
            dtype.parse_fill_value_v1(&fill_value)?
        } else {
            dtype.parse_fill_value(&fill_value)?
        };
        let order = match doc.get("order").and_then(json::text) {
            Some("C") => Order::C,
            Some("F") => Order::F,
            _ => return Err(Error::damaged("order is neither \"C\" nor \"F\"")),
        };
        let meta = ArrayMetadata {
            shape,
            chunks,
            edges: None,
            dtype,
            dtype_json,
            fill_value,
            fill,
            order,
            compressor: None,
            filters: Vec::new(),
            separator: None,
            shards: Vec::new(),
            v3: None,
            zarr_format,
            memory: SharedGrant::default(),
        };
        meta.check_sizes()?;
        Ok(meta)
    }

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

    /// Returns the `.zarray` document of the mounted tree: a v2 array without compressor and
    /// filters, except the object codec, with chunk keys separated by `.`.
    pub fn shown_document(&self) -> String {
        let kept = self
            .object_codec()
            .map(std::slice::from_ref)
            .unwrap_or_default();
        self.document(None, kept)
    }

    /// Returns the fields of the `.zarray` of the mounted tree, for an array of v2 with the fields
    /// `stored` and chunk keys with `separator`. It says what the stored one says, in the same
    /// words, where chunks are stored as the mount shows them.
    pub fn shown_fields(
        &self,
        stored: &Map<String, Value>,
        separator: Separator,
    ) -> Map<String, Value> {
        let mut shown = stored.clone();
        shown.insert("compressor".into(), Value::Null);
        shown.insert("fill_value".into(), self.fill_value_v2());
        if !self.filters.iter().eq(self.object_codec()) {
            let kept = self.object_codec().map(std::slice::from_ref);
            let kept = CodecConfig::list_to_json(kept.unwrap_or_default());
            shown.insert("filters".into(), kept);
        }
        // readers that find chunks under `0/0` take a missing separator for `/`
        if separator == Separator::Slash || stored.contains_key("dimension_separator") {
            shown.insert("dimension_separator".into(), ".".into());
        }
        shown
    }

    /// Returns the `.zarray` document of a v1 array, with the codecs of its chunks.
    pub fn to_v2_document(&self) -> String {
        self.document(self.compressor.as_ref(), &self.filters)
    }

    /// Returns a `.zarray` document with these codecs and chunk keys separated by `.`.
    fn document(&self, compressor: Option<&CodecConfig>, filters: &[CodecConfig]) -> String {
        json::write_pretty(&json!({
            "chunks": self.chunks,
            "compressor": compressor.map(CodecConfig::to_json),
            "dimension_separator": ".",
            "dtype": self.dtype_v2(),
            "fill_value": self.fill_value_v2(),
            "filters": CodecConfig::list_to_json(filters),
            "order": self.order.as_str(),
            "shape": self.shape,
            "zarr_format": 2,
        }))
    }

    /// Returns the dtype as v2 spells it. zarr 1.x wrote spellings that today's NumPy does not
    /// accept.
    fn dtype_v2(&self) -> Value {
        let canonical =
            (self.zarr_format == 1).then(|| DType::canonical_json(&self.dtype_json).ok());
        canonical
            .flatten()
            .unwrap_or_else(|| self.dtype_json.clone())
    }

    /// Returns the fill value as v2 spells it. v1 has no base64, writes NaN bare, and writes 0 for
    /// a complex number, a void or a struct. The spelling of a v2 document is kept unless readers
    /// of v2 refuse it.
    fn fill_value_v2(&self) -> Value {
        let given = &self.fill_value;
        let is_bare_word = given.is_string() && json::text(given).is_none();
        // v2 has no spelling for a NaN of v3 with a payload
        if self.zarr_format == 3 && given.is_null() && *self.dtype.kind() == DTypeKind::Float {
            return "NaN".into();
        }
        let is_kept = match self.dtype.kind() {
            _ if self.zarr_format == 1 || is_bare_word => false,
            DTypeKind::Complex => given.is_array(),
            DTypeKind::Void | DTypeKind::Struct(_) => given.is_string(),
            _ => true,
        };
        let spelled = self
            .fill
            .as_ref()
            .filter(|_| !is_kept)
            .and_then(|item| self.dtype.fill_value_json(item));
        spelled.unwrap_or_else(|| {
            if is_bare_word {
                json::parse(json::write_strict(given).as_bytes()).unwrap_or(Value::Null)
            } else {
                given.clone()
            }
        })
    }
}

/// Checks that `document` is a `.zgroup` of Zarr v2.
///
/// # Errors
///
/// [`Kind::Damaged`](zarrfs_base::error::Kind::Damaged) if it is not.
pub fn check_group(document: &[u8]) -> Result<()> {
    object(document, 2).map(|_| ())
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

#[cfg(test)]
mod tests;
