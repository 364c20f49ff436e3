//! The `zarr.json` that a mount shows for an array: chunks are innermost chunks, stored decoded
//! under keys such as `0.0`. All other fields are those of the stored document.

use super::grid::spell_grid;
use crate::data_type::DataType;
use crate::metadata::{ArrayMetadata, Separator, V3Fields};
use zarrfs_base::json::{Map, Value, json};

/// Returns the `zarr.json` shown for the array whose stored document is `stored`. It says what the
/// stored one says, in the same words, where chunks are stored as the mount shows them.
pub fn shown_array(stored: &Map<String, Value>, metadata: &ArrayMetadata) -> Map<String, Value> {
    let mut shown = stored.clone();
    shown.insert("chunk_grid".into(), shown_grid(metadata));
    if metadata.has_key_prefix() || metadata.separator != Some(Separator::Dot) {
        shown.insert(
            "chunk_key_encoding".into(),
            json!({"name": "v2", "configuration": {"separator": "."}}),
        );
    }
    if !metadata.is_decoded() {
        let codecs = unordered_bytes(stored, metadata).map(|codec| json!([codec]));
        let codecs = codecs.unwrap_or_else(|| shown_codecs(metadata));
        shown.insert("codecs".into(), codecs);
    }
    shown
}

/// Returns the codec `bytes` of items of one byte as the stored document states it: without a byte
/// order.
fn unordered_bytes<'a>(
    stored: &'a Map<String, Value>,
    metadata: &ArrayMetadata,
) -> Option<&'a Value> {
    if metadata.dtype.size() != 1 || metadata.has_objects() {
        return None;
    }
    let mut codecs = stored.get("codecs")?.as_array()?.iter();
    codecs.find(|codec| codec.get("name").is_some_and(|name| name == "bytes"))
}

/// Returns the chunk grid of innermost chunks.
pub(super) fn shown_grid(metadata: &ArrayMetadata) -> Value {
    spell_grid(&metadata.chunk_edges())
}

/// Returns the codecs of decoded chunks: `bytes`, or the codec that encodes items of variable
/// length.
pub(super) fn shown_codecs(metadata: &ArrayMetadata) -> Value {
    if let Some(codec) = metadata.object_codec() {
        return json!([{"name": codec.id}]);
    }
    let endian = if metadata.is_big_endian() {
        "big"
    } else {
        "little"
    };
    json!([{"name": "bytes", "configuration": {"endian": endian}}])
}

impl ArrayMetadata {
    /// Returns whether NumPy has the type of the items. Types such as `bfloat16` are shown as
    /// bytes.
    pub fn has_numpy_dtype(&self) -> bool {
        self.v3
            .as_ref()
            .is_none_or(|v3| self.numpy_dtype(v3).is_some())
    }

    /// Returns the NumPy spelling of the data type; `None` if NumPy lacks it.
    fn numpy_dtype(&self, v3: &V3Fields) -> Option<Value> {
        DataType::parse(&v3.data_type, self.is_big_endian())
            .ok()
            .and_then(|parsed| parsed.numpy)
    }

    /// Returns the fields that describe the stored array of v3, for [`ArrayMetadata::description`].
    /// `dtype` is null for types that NumPy lacks.
    pub(in crate::metadata) fn description_v3(&self, v3: &V3Fields) -> Vec<(&'static str, Value)> {
        let mut list = vec![
            ("shape", self.shape.clone().into()),
            ("chunks", self.chunks_json()),
        ];
        list.extend(self.shards_json().map(|shards| ("shards", shards)));
        list.extend([
            ("dtype", self.numpy_dtype(v3).unwrap_or(Value::Null)),
            ("data_type", v3.data_type.clone()),
            ("fill_value", v3.fill_value.clone()),
            ("codecs", v3.codecs.clone()),
        ]);
        list.extend(
            v3.dimension_names
                .as_ref()
                .map(|names| ("dimension_names", json!(names))),
        );
        list
    }
}
