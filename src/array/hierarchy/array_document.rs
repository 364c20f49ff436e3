//! Stores `.zarray` documents that users of the decoded view write. The decoded view hides codecs,
//! so an existing array keeps its own. A change that would alter the meaning of stored chunks is
//! refused while there are any.

use super::document::{ATTEMPTS, contended, needs_migration, refused};
use super::resize::OutsideElements;
use super::zarr_json::erase_chunks;
use super::{ArrayDocument, DocumentKind, Hierarchy, REMOVED, StoredNode};
use crate::array::Array;
use crate::error::{Error, Result};
use crate::store::{EntryKind, Key};
use crate::util::json::{self, Map, Object, Value};
use crate::zarr::chunk_key::parse_index;
use crate::zarr::metadata::{ArrayMetadata, Separator, ZARR_JSON, ZARRAY, ZGROUP};
use std::sync::Arc;

/// A document that a user wrote.
pub(super) struct WrittenDocument<'a> {
    pub text: &'a [u8],
    fields: Object,
    pub metadata: ArrayMetadata,
}

impl<'a> WrittenDocument<'a> {
    fn parse(text: &'a [u8]) -> Result<Self> {
        let metadata = ArrayMetadata::parse(text)?;
        Ok(WrittenDocument {
            text,
            fields: json::parse_object(text)?,
            metadata,
        })
    }
}

impl Hierarchy {
    /// Stores the `.zarray` that a user wrote: see [`Hierarchy::put_document`].
    pub(super) fn put_array(&self, key: &Key, text: &[u8]) -> Result<()> {
        let written = WrittenDocument::parse(text).map_err(|e| refused(&key.join(ZARRAY), e))?;
        if self.shows_as_v2(key)? {
            return self.put_array_as_v2(key, &written);
        }
        self.check_not_v3(key, &key.join(ZARRAY))?;
        for _ in 0..ATTEMPTS {
            let Some(found) = self.array_document(key)? else {
                return self.put_new_array(key, &written);
            };
            let array = match self.array(key, &found)? {
                _ if found.form == DocumentKind::V1 => return Err(needs_migration(key)),
                Ok(array) => array,
                // the document is damaged, so the layout of its chunks is unknown: the user repairs
                // it
                Err(_) => return self.put_array_text(key, &written.metadata, text),
            };
            if self.change_array(&array, &found, &written)? {
                return Ok(());
            }
        }
        Err(contended(&key.join(ZARRAY)))
    }

    fn put_new_array(&self, key: &Key, written: &WrittenDocument) -> Result<()> {
        self.check_vacant(key, &written.metadata)?;
        let compressor = self
            .compressor
            .as_ref()
            .filter(|_| written.metadata.compressor.is_none());
        let Some(compressor) =
            compressor.filter(|_| !self.has_foreign_chunks(key, &written.metadata))
        else {
            return self.put_array_text(key, &written.metadata, written.text);
        };
        let mut fields = (*written.fields).clone();
        fields.insert("compressor".into(), compressor.to_json());
        let metadata = ArrayMetadata {
            compressor: Some(compressor.clone()),
            ..written.metadata.clone()
        };
        self.put_array_text(
            key,
            &metadata,
            json::write_pretty(&Value::Object(fields)).as_bytes(),
        )
    }

    /// Stores the document of a new array, or of an array without chunks.
    fn put_array_text(&self, key: &Key, metadata: &ArrayMetadata, text: &[u8]) -> Result<()> {
        let document = key.join(ZARRAY);
        self.check_usable(key, metadata.clone())
            .map_err(|e| refused(&document, e))?;
        self.put(&document, text)?;
        // the directory was a group that `mkdir` created; from here on it is an array
        self.delete(&key.join(ZGROUP))?;
        self.delete(&key.join(REMOVED))?;
        self.reload(key)?;
        self.consolidate(key, &[ZARRAY, ZGROUP])
    }

    /// Returns the array that `metadata` defines at `key`.
    ///
    /// # Errors
    ///
    /// Fails if its chunks cannot be read or written.
    pub(super) fn check_usable(
        &self,
        key: &Key,
        mut metadata: ArrayMetadata,
    ) -> Result<Arc<Array>> {
        // the separator does not matter here, and detecting it takes a listing
        metadata.separator.get_or_insert(Separator::Dot);
        let array = Array::new(
            key.clone(),
            metadata,
            self.store.clone(),
            self.stats.clone(),
        )?;
        let array = array.with_locks(self.replacing.clone());
        array.readable()?;
        if array.metadata().shards.is_empty() {
            array.writable()?;
        }
        Ok(Arc::new(array))
    }

    /// Checks that an array can be created at `key`, which must have no groups and arrays below it.
    pub(super) fn check_vacant(&self, key: &Key, metadata: &ArrayMetadata) -> Result<()> {
        match self.find(key)? {
            None => return Err(Error::not_found("no such group").context(key)),
            Some(StoredNode::Group) if key.is_root() => {}
            Some(StoredNode::Group) => self.check_new_name(key)?,
            Some(_) => return Err(Error::system(libc::ENOTDIR).context(key)),
        }
        for entry in self.list(key)? {
            let entry = entry.map_err(|e| e.context(key))?;
            let below = key.join(&entry.name);
            // these may be levels of chunk keys that were copied before the document
            let is_level_name = if metadata.has_key_prefix() {
                entry.name == "c"
            } else {
                parse_index(&entry.name).is_some()
            };
            let is_level = metadata.separator == Some(Separator::Slash)
                && is_level_name
                && matches!(self.find(&below)?, Some(StoredNode::Group));
            if entry.kind == EntryKind::Prefix && !is_level {
                let message = format!(
                    "{:?} stands below: an array can't hold groups or arrays",
                    entry.name
                );
                let document = if metadata.zarr_format == 3 {
                    ZARR_JSON
                } else {
                    ZARRAY
                };
                return Err(Error::invalid(message).context(key.join(document)));
            }
        }
        Ok(())
    }

    /// Returns whether keys exist that will be chunks of the array; they are not encoded by the
    /// default compressor.
    pub(super) fn has_foreign_chunks(&self, key: &Key, metadata: &ArrayMetadata) -> bool {
        let array = Array::new(
            key.clone(),
            metadata.clone(),
            self.store.clone(),
            self.stats.clone(),
        );
        array
            .and_then(|array| self.has_chunks(&Arc::new(array)))
            .unwrap_or(false)
    }

    /// Changes an existing array; returns false without a change if another process changed the
    /// document meanwhile.
    fn change_array(
        &self,
        array: &Arc<Array>,
        found: &ArrayDocument,
        written: &WrittenDocument,
    ) -> Result<bool> {
        let key = array.key();
        let gone = || Error::not_found("went away while it was changed").context(&found.key);
        let (stored, version) = self.stored_object(&found.key)?.ok_or_else(gone)?;
        let Some(field) = differs(array, &written.metadata) else {
            let fields = merged(&stored, written, array.metadata());
            if fields == *stored && found.form == DocumentKind::V2 {
                return Ok(true);
            }
            return self.put_shape(array, found, fields, &version, OutsideElements::Kept);
        };
        if self.has_chunks(array)? {
            let message =
                format!("{field} can't change while chunks are stored: delete its chunks first");
            return Err(Error::invalid(message).context(key.join(ZARRAY)));
        }
        let text = json::write_pretty(&Value::Object(with_hidden_fields(&stored, written, array)));
        let metadata =
            ArrayMetadata::parse(text.as_bytes()).map_err(|e| refused(&key.join(ZARRAY), e))?;
        let new = self
            .check_usable(key, metadata.clone())
            .map_err(|e| refused(&key.join(ZARRAY), e))?;
        erase_chunks(&new)?;
        self.put_array_text(key, &metadata, text.as_bytes())
            .map(|()| true)
    }
}

/// Returns a field that the written document changes and that must not change while chunks are
/// stored. A null codec and the separator of the decoded view are not changes.
pub(super) fn differs(array: &Array, written: &ArrayMetadata) -> Option<&'static str> {
    let stored = array.metadata();
    let same_dtype = written.dtype == stored.dtype
        && (written.dtype_json == stored.dtype_json || !stored.dtype.has_time());
    let same_compressor = written.compressor.is_none() || written.compressor == stored.compressor;
    let same_filters = shows_no_filters(stored, written) || written.filters == stored.filters;
    let same_separator =
        written.separator != Some(Separator::Slash) || array.separator() == Separator::Slash;
    let fields = [
        ("dtype", same_dtype),
        ("chunks", written.chunks == stored.chunks),
        ("order", written.order == stored.order),
        ("compressor", same_compressor),
        ("filters", same_filters),
        ("dimension_separator", same_separator),
    ];
    fields
        .into_iter()
        .find(|(_, same)| !same)
        .map(|(field, _)| field)
}

/// Returns whether `written` has only the filters that the decoded view shows.
fn shows_no_filters(stored: &ArrayMetadata, written: &ArrayMetadata) -> bool {
    written.filters.is_empty() || written.filters.iter().eq(stored.object_codec())
}

/// Merges a written document into the stored one: shape, fill value, and unknown fields.
fn merged(
    stored: &Map<String, Value>,
    written: &WrittenDocument,
    old: &ArrayMetadata,
) -> Map<String, Value> {
    let mut fields = stored.clone();
    let new = &written.metadata;
    let same_fill = if old.has_objects() {
        new.fill_value == old.fill_value
    } else {
        new.fill == old.fill
    };
    for (field, value) in &written.fields {
        match field.as_str() {
            "chunks"
            | "compressor"
            | "dimension_separator"
            | "dtype"
            | "filters"
            | "order"
            | "zarr_format" => {}
            "fill_value" if same_fill => {}
            _ => drop(fields.insert(field.clone(), value.clone())),
        }
    }
    fields
}

/// Returns the written document of an array without chunks, with the stored values of fields that
/// the decoded view hid.
fn with_hidden_fields(
    stored: &Map<String, Value>,
    written: &WrittenDocument,
    array: &Array,
) -> Map<String, Value> {
    let mut fields = (*written.fields).clone();
    let old = array.metadata();
    let mut keep = |field: &str| {
        drop(
            stored
                .get(field)
                .map(|value| fields.insert(field.to_string(), value.clone())),
        )
    };
    if written.metadata.compressor.is_none() {
        keep("compressor");
    }
    if shows_no_filters(old, &written.metadata) && written.metadata.dtype == old.dtype {
        keep("filters");
    }
    if written.metadata.separator != Some(Separator::Slash) {
        keep("dimension_separator");
    }
    fields
}
