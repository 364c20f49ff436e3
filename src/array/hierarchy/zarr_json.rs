//! Stores the `zarr.json` that a user of the mount wrote. A new one creates a group or an array;
//! the one of an existing array keeps the stored codecs, keys and shards, which the mount does not
//! show. A change that would alter the meaning of stored chunks is refused while there are any.

use super::document::{ATTEMPTS, contended, refused};
use super::resize::OutsideElements;
use super::{ArrayDocument, DocumentKind, Hierarchy, REMOVED, StoredNode, ViewFormat};
use crate::array::{Array, ArrayEntry};
use crate::error::{Error, Result};
use crate::store::Key;
use crate::util::json::{self, Map, Object, Value};
use crate::util::memory::lock;
use crate::zarr::chunk_key::Separator;
use crate::zarr::metadata::v3::from_v2::compressor_codec;
use crate::zarr::metadata::v3::merge::{differs_v3, merged_v3};
use crate::zarr::metadata::v3::node::{self, CONSOLIDATED, GROUP_DOCUMENT_V3, NodeType};
use crate::zarr::metadata::{ArrayMetadata, MAX_CONSOLIDATED, ZARR_JSON, ZGROUP};
use std::sync::Arc;

/// A `zarr.json` of an array that a user wrote.
struct WrittenArray<'a> {
    text: &'a [u8],
    fields: Object,
    metadata: ArrayMetadata,
}

impl Hierarchy {
    /// Stores the `zarr.json` that a user wrote: see [`Hierarchy::put_document`].
    pub(super) fn put_zarr_json(&self, key: &Key, text: &[u8]) -> Result<()> {
        let document = key.join(ZARR_JSON);
        if self.view == ViewFormat::V2 {
            let why = "this mount shows documents of Zarr v2: mount the store without --view v2 to write zarr.json";
            return Err(Error::invalid(why).context(document));
        }
        match node::node_type(text).map_err(|e| refused(&document, e))? {
            NodeType::Group => self.put_v3_group(key, text),
            NodeType::Array => self.put_v3_array(key, text),
        }
    }

    fn put_v3_group(&self, key: &Key, text: &[u8]) -> Result<()> {
        let document = key.join(ZARR_JSON);
        node::check_group_v3(text).map_err(|e| refused(&document, e))?;
        self.check_no_array(key, &document)?;
        let stored = self.stored_within(&document, MAX_CONSOLIDATED)?;
        let consolidated = stored
            .as_ref()
            .and_then(|stored| node::member(&stored.text, CONSOLIDATED).ok().flatten());
        let written = node::member(text, CONSOLIDATED)?.filter(|value| *value != "null");
        // a program that does not know consolidated metadata does not mean to remove them
        let text = node::rewrite(text, CONSOLIDATED, consolidated.map(str::as_bytes))?;
        self.put(&document, &text)?;
        self.delete(&key.join(REMOVED))?;
        self.forget_below(key);
        self.consolidate(key, &[ZARR_JSON, ZGROUP])?;
        match written {
            // its entries are decoded views, so the stored metadata is made from the stored
            // documents
            Some(_) => self.make_inline(key).map(drop),
            None => Ok(()),
        }
    }

    fn put_v3_array(&self, key: &Key, text: &[u8]) -> Result<()> {
        let document = key.join(ZARR_JSON);
        let parse = || {
            let metadata = ArrayMetadata::parse_v3(text)?;
            Ok(WrittenArray {
                text,
                fields: json::parse_object(text)?,
                metadata,
            })
        };
        let written: WrittenArray = parse().map_err(|e| refused(&document, e))?;
        self.put_written_array(key, &written)?;
        // a document with other keys is not by a program that writes below `c`
        if written.metadata.has_key_prefix() {
            lock(&self.decoded_below_c).remove(key);
            if is_decoded(&written.metadata) && self.shows_stored_keys(key) {
                lock(&self.decoded_below_c).insert(key.clone());
            }
        }
        Ok(())
    }

    fn put_written_array(&self, key: &Key, written: &WrittenArray) -> Result<()> {
        let document = key.join(ZARR_JSON);
        for _ in 0..ATTEMPTS {
            let Some(found) = self.array_document(key)? else {
                return self.put_new_v3_array(key, written);
            };
            let array = match self.array(key, &found)? {
                Ok(array) if array.metadata().zarr_format == 3 => array,
                Ok(array) if found.form == DocumentKind::Removed && !self.has_chunks(&array)? => {
                    return self.put_v3_text(key, &written.metadata, written.text);
                }
                // the layout of its chunks is unknown: the user repairs the document
                Err(_) if found.form == DocumentKind::V3 => {
                    return self.put_v3_text(key, &written.metadata, written.text);
                }
                _ => {
                    let why = "an array of Zarr v1 or v2 stands here: remove it first";
                    return Err(Error::invalid(why).context(document));
                }
            };
            if self.change_v3_array(&array, &found, written)? {
                return Ok(());
            }
        }
        Err(contended(&document))
    }

    fn put_new_v3_array(&self, key: &Key, written: &WrittenArray) -> Result<()> {
        self.check_vacant(key, &written.metadata)?;
        let has_bytes_alone = is_decoded(&written.metadata) && !written.metadata.has_objects();
        let compressor = self.compressor.as_ref().filter(|_| has_bytes_alone);
        let Some(compressor) =
            compressor.filter(|_| !self.has_foreign_chunks(key, &written.metadata))
        else {
            return self.put_v3_text(key, &written.metadata, written.text);
        };
        let mut fields = (*written.fields).clone();
        let codec = compressor_codec(compressor, written.metadata.dtype.size())
            .map_err(|e| e.context(format!("{}: --compressor", key.join(ZARR_JSON))))?;
        let codecs = fields.get_mut("codecs").and_then(Value::as_array_mut);
        codecs
            .ok_or_else(|| Error::invalid("codecs is not a list"))?
            .push(codec);
        let text = json::write_pretty(&Value::Object(fields));
        let metadata = ArrayMetadata::parse_v3(text.as_bytes())
            .map_err(|e| refused(&key.join(ZARR_JSON), e))?;
        self.put_v3_text(key, &metadata, text.as_bytes())
    }

    /// Stores the `zarr.json` of a new array, or of an array without chunks.
    pub(super) fn put_v3_text(
        &self,
        key: &Key,
        metadata: &ArrayMetadata,
        text: &[u8],
    ) -> Result<()> {
        let document = key.join(ZARR_JSON);
        self.check_usable(key, metadata.clone())
            .map_err(|e| refused(&document, e))?;
        self.put(&document, text)?;
        // the directory was a group; from here on it is an array
        self.delete(&key.join(ZGROUP))?;
        self.delete(&key.join(REMOVED))?;
        self.reload(key)?;
        self.consolidate(key, &[ZARR_JSON, ZGROUP])
    }

    /// Changes an existing array; returns false without a change if another process changed the
    /// document meanwhile.
    fn change_v3_array(
        &self,
        array: &Arc<Array>,
        found: &ArrayDocument,
        written: &WrittenArray,
    ) -> Result<bool> {
        let key = array.key();
        let old = array.metadata();
        let document = key.join(ZARR_JSON);
        let gone = || Error::not_found("went away while it was changed").context(&found.key);
        let (stored, version) = self.stored_object(&found.key)?.ok_or_else(gone)?;
        let Some(field) = differs_v3(&stored, old, &written.fields, &written.metadata) else {
            let fields = merged_v3(&stored, &written.fields, old, &written.metadata);
            if fields == *stored && found.form == DocumentKind::V3 {
                return Ok(true);
            }
            return self.put_shape(array, found, fields, &version, OutsideElements::Kept);
        };
        if self.has_chunks(array)? {
            let message =
                format!("{field} can't change while chunks are stored: delete its chunks first");
            return Err(Error::invalid(message).context(document));
        }
        let (metadata, text) = with_hidden(&stored, old, written);
        let new = self
            .check_usable(key, metadata.clone())
            .map_err(|e| refused(&document, e))?;
        erase_chunks(&new)?;
        self.put_v3_text(key, &metadata, &text).map(|()| true)
    }

    /// Changes the attributes in the `zarr.json` of the group or array at `key` by one put.
    pub(super) fn edit_v3_attributes(
        &self,
        key: &Key,
        change: &dyn Fn(&mut Map<String, Value>) -> Result<()>,
    ) -> Result<()> {
        let document = key.join(ZARR_JSON);
        self.edit(&document, MAX_CONSOLIDATED, &|text| {
            let text = text.unwrap_or(GROUP_DOCUMENT_V3.as_bytes());
            let attributes = node::member(text, "attributes").map_err(|e| e.context(&document))?;
            let mut attributes = match attributes.filter(|text| *text != "null") {
                None => Object::default(),
                Some(text) => {
                    json::parse_object(text.as_bytes()).map_err(|e| e.context(&document))?
                }
            };
            change(attributes.map_mut())?;
            let (map, _memory) = attributes.into_parts();
            let attributes = json::write(&Value::Object(map));
            node::rewrite(text, "attributes", Some(attributes.as_bytes())).map(Some)
        })?;
        self.consolidate(key, &[ZARR_JSON])
    }

    /// Checks that no array stands at `key`, except one that was removed and has no chunks.
    pub(super) fn check_no_array(&self, key: &Key, document: &Key) -> Result<()> {
        let stands = |how| {
            Err(
                Error::invalid(format!("an array stands here{how}: remove it first"))
                    .context(document),
            )
        };
        match self.find(key)? {
            Some(StoredNode::Array(array)) => {
                let removed = self
                    .array_document(key)?
                    .is_some_and(|found| found.form == DocumentKind::Removed);
                if removed && !self.has_chunks(&array)? {
                    Ok(())
                } else {
                    stands("")
                }
            }
            Some(StoredNode::Damaged(_)) => stands(", a damaged one"),
            _ => self.check_directory(key),
        }
    }
}

/// Returns whether the document says that chunks are stored as the mount shows them, each as a
/// value of its own.
fn is_decoded(metadata: &ArrayMetadata) -> bool {
    metadata.shards.is_empty() && metadata.stated_filters().eq(metadata.object_codec())
}

/// Number of chunks of shards that are erased before their objects are stored.
pub(super) const MAX_ERASED: usize = 1 << 14;

/// Erases the chunks of an array that takes the place of one without chunks: keys outside the
/// former grid were never visible.
pub(super) fn erase_chunks(new: &Arc<Array>) -> Result<()> {
    for (n, entry) in new.entries()?.enumerate() {
        if let ArrayEntry::Chunk(chunk) = entry.map_err(|e| e.context(new.key()))? {
            new.erase(chunk)?;
        }
        if n % MAX_ERASED == MAX_ERASED - 1 {
            new.store_objects()?;
        }
    }
    new.store_objects()
}

/// Returns the written document of an array without chunks. Where it states the codecs, keys or
/// grid that the mount shows, it gets the stored ones, which the mount hides, if the chunk files of
/// both documents are the same.
fn with_hidden(
    stored: &Map<String, Value>,
    old: &ArrayMetadata,
    written: &WrittenArray,
) -> (ArrayMetadata, Vec<u8>) {
    let new = &written.metadata;
    let grid = new.has_chunks_of(old).then_some("chunk_grid");
    let keys = (!new.has_key_prefix() && new.separator == Some(Separator::Dot))
        .then_some("chunk_key_encoding");
    if is_decoded(new) {
        let mut fields = (*written.fields).clone();
        for field in ["codecs"].into_iter().chain(grid).chain(keys) {
            stored
                .get(field)
                .map(|value| fields.insert(field.to_string(), value.clone()));
        }
        let text = json::write_pretty(&Value::Object(fields)).into_bytes();
        // the stored codecs may have another byte order, or may not be able to encode such items or
        // chunks
        if let Ok(metadata) = ArrayMetadata::parse_v3(&text)
            && metadata.has_chunks_of(new)
            && (&metadata.dtype, &metadata.fill, metadata.object_codec())
                == (&new.dtype, &new.fill, new.object_codec())
        {
            return (metadata, text);
        }
    }
    (new.clone(), written.text.to_vec())
}
