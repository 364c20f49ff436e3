//! Zarr v2: `.zarray` and `.zgroup` documents, read as leniently as zarr-python 2.18 does, and the
//! `.zarray` that a mount shows. Source of the rules: Zarr v2 specification, "Arrays".

use super::array::{COPIES, KEPT_COPIES, dimensions, object, required, stated, take_for_fields};
use super::{ArrayMetadata, CodecConfig, Order, Separator};
use crate::dtype::{DType, DTypeKind};
use zarrfs_base::error::{Error, Result};
use zarrfs_base::json::{self, Map, Value, json};
use zarrfs_base::memory::SharedGrant;

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
        let filters = match stated(&doc, "filters") {
            None => Vec::new(),
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
        let compressor = stated(&doc, "compressor").map(CodecConfig::parse);
        let compressor = compressor
            .transpose()
            .map_err(|e| e.context("compressor"))?;
        let separator = match stated(&doc, "dimension_separator").map(json::text) {
            None | Some(Some("")) => None,
            Some(Some(".")) => Some(Separator::Dot),
            Some(Some("/")) => Some(Separator::Slash),
            Some(_) => {
                return Err(Error::damaged(
                    "dimension_separator is neither \".\" nor \"/\"",
                ));
            }
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
        let dtype_json = required(doc, "dtype")?.clone();
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
    /// a complex number, a void or a struct. A v2 document keeps its spelling unless readers of v2
    /// refuse that.
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

#[cfg(test)]
mod tests;
