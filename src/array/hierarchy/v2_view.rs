//! The view of nodes of v3 as v2, for programs that know no other format: `.zgroup`, `.zarray`,
//! `.zattrs` and `.zmetadata` in place of `zarr.json`. Changes of them are stored in the
//! `zarr.json`. Chunk files are the same in both views.

use super::array_document::{WrittenDocument, differs};
use super::document::{ATTEMPTS, contended, refused};
use super::resize::OutsideElements;
use super::zarr_json::erase_chunks;
use super::{
    ArrayDocument, DocumentKind, Hierarchy, MetadataDocument, MetadataFile, REMOVED, Unmarked,
};
use crate::array::Array;
use crate::error::{Error, Result};
use crate::store::Key;
use crate::util::json::{self, Map, Value};
use crate::zarr::metadata::v3::node::{self, CONSOLIDATED, GROUP_DOCUMENT_V3, NodeType, node_type};
use crate::zarr::metadata::v3::{as_v2, from_v2};
use crate::zarr::metadata::{
    ArrayMetadata, GROUP_DOCUMENT, MAX_CONSOLIDATED, Order, Separator, ZARR_JSON, ZARRAY, ZATTRS,
};
use std::sync::Arc;

/// The format of the documents that nodes of v3 show. Nodes of v1 and v2 always show those of v2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ViewFormat {
    /// The format that is stored.
    #[default]
    Stored,
    /// Zarr v2.
    V2,
}

impl Hierarchy {
    /// Returns whether the v3 node at `key` is shown with v2 documents. Documents written to it are
    /// stored as v3.
    ///
    /// # Errors
    ///
    /// The store fails.
    pub fn shows_as_v2(&self, key: &Key) -> Result<bool> {
        if self.view != ViewFormat::V2 {
            return Ok(false);
        }
        match self.removed_document(key)? {
            Some(found) => Ok(self
                .array(key, &found)?
                .is_ok_and(|array| array.metadata().zarr_format == 3)),
            None => self.is_v3(key),
        }
    }

    /// Returns the document of the array at `key` if it was removed.
    fn removed_document(&self, key: &Key) -> Result<Option<ArrayDocument>> {
        Ok(self
            .array_document(key)?
            .filter(|found| found.form == DocumentKind::Removed))
    }

    /// Returns whether the document of the array at `key` was removed, and the array not yet.
    ///
    /// # Errors
    ///
    /// The store fails.
    pub fn lost_document(&self, key: &Key) -> Result<bool> {
        Ok(self.removed_document(key)?.is_some())
    }

    /// Returns the key of the document that holds the attributes of a node of v3: its `zarr.json`,
    /// or that of an array whose `.zarray` was removed.
    fn v3_key(&self, key: &Key) -> Result<Key> {
        Ok(self
            .removed_document(key)?
            .map_or_else(|| key.join(ZARR_JSON), |found| found.key))
    }

    /// Returns the `.zarray` of an array of v3; `None` if v2 cannot describe the array, which is
    /// recorded as a problem.
    pub(super) fn array_as_v2(&self, key: &Key) -> Result<Option<MetadataDocument>> {
        let Some(found) = self
            .array_document(key)?
            .filter(|found| found.form == DocumentKind::V3)
        else {
            return Ok(None);
        };
        // the reason is recorded with the array
        let Ok(array) = self.array(key, &found)? else {
            return Ok(None);
        };
        match as_v2::array_document(array.metadata()) {
            Ok(text) => MetadataDocument::made(text.into_bytes(), found.stat).map(Some),
            Err(e) => {
                self.stats
                    .problem(format!("{}: is not shown: {e}", key.join(ZARRAY)));
                Ok(None)
            }
        }
    }

    /// Returns the `.zattrs` of a node of v3; `None` if it has no attributes.
    pub(super) fn attributes_as_v2(&self, key: &Key) -> Result<Option<MetadataDocument>> {
        let document = self.v3_key(key)?;
        let stored = self.v3_attributes(&document)?;
        let parsed = match self.array_document(key)? {
            Some(found) => self.array(key, &found)?.ok(),
            None => None,
        };
        let text = stored.as_ref().map_or(&b"{}"[..], |stored| &stored.text);
        let text = as_v2::attributes(text, parsed.as_ref().map(|array| array.metadata()))?;
        let Some(text) = text else { return Ok(None) };
        let stat = match stored {
            Some(stored) => stored.stat,
            None => self
                .store
                .stat(&document)?
                .ok_or_else(|| Error::not_found("went away").context(&document))?,
        };
        MetadataDocument::made(text, stat).map(Some)
    }

    /// Returns the `.zgroup` of a group of v3.
    pub(super) fn group_as_v2(&self, key: &Key) -> Result<Option<MetadataDocument>> {
        let stat = match self.v3_document(key)? {
            // the attributes of a group whose `.zgroup` was removed are in its `zarr.json`
            Some(_) if self.unmarked(key) == Some(Unmarked::Removed) => None,
            Some(found) => (found.outline.node_type == NodeType::Group).then_some(found.stat),
            None => self.implicit_group(key)?,
        };
        stat.map(|stat| MetadataDocument::made(GROUP_DOCUMENT.into(), stat))
            .transpose()
    }

    /// Stores a `.zgroup` as a new group of v3. An existing group of v3 stays unchanged.
    pub(super) fn put_group_as_v2(&self, key: &Key) -> Result<()> {
        if self.v3_document(key)?.is_some() {
            return Ok(());
        }
        self.put(&key.join(ZARR_JSON), GROUP_DOCUMENT_V3.as_bytes())?;
        self.delete(&key.join(REMOVED))?;
        self.forget_below(key);
        self.consolidate(key, &[ZARR_JSON])
    }

    /// Stores a `.zarray`. The one of an existing array changes its shape and its fill value.
    pub(super) fn put_array_as_v2(&self, key: &Key, written: &WrittenDocument) -> Result<()> {
        for _ in 0..ATTEMPTS {
            let Some(found) = self.array_document(key)? else {
                return self.put_new_array_as_v2(key, written);
            };
            let array = self
                .array(key, &found)?
                .map_err(|e| refused(&key.join(ZARRAY), e))?;
            if self.change_array_as_v2(&array, &found, written)? {
                return Ok(());
            }
        }
        Err(contended(&key.join(ZARR_JSON)))
    }

    /// Stores a new array as [`Hierarchy::migrate_to_v3`] would, with the attributes that were
    /// written before.
    fn put_new_array_as_v2(&self, key: &Key, written: &WrittenDocument) -> Result<()> {
        self.check_vacant(key, &written.metadata)?;
        let attributes = self.v3_attributes(&key.join(ZARR_JSON))?;
        let mut metadata = written.metadata.clone();
        if metadata.compressor.is_none() && !self.has_foreign_chunks(key, &metadata) {
            metadata.compressor = self.compressor.clone();
        }
        let attributes = attributes.as_ref().map(|stored| stored.text.as_slice());
        let (metadata, text) = new_document(&metadata, written.text, attributes)
            .map_err(|e| refused(&key.join(ZARRAY), e))?;
        self.put_v3_text(key, &metadata, &text)
    }

    /// Changes an existing array; returns false without a change if another process changed the
    /// document meanwhile.
    fn change_array_as_v2(
        &self,
        array: &Arc<Array>,
        found: &ArrayDocument,
        written: &WrittenDocument,
    ) -> Result<bool> {
        let key = array.key();
        let document = array.key().join(ZARRAY);
        let gone = || Error::not_found("went away while it was changed").context(&found.key);
        let (stored, version) = self.stored_object(&found.key)?.ok_or_else(gone)?;
        let Some(field) = differs(array, &written.metadata) else {
            let fields = changed(&stored, array.metadata(), &written.metadata)
                .map_err(|e| refused(&document, e))?;
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
        let attributes = self.v3_attributes(&found.key)?;
        let attributes = attributes.as_ref().map(|stored| stored.text.as_slice());
        let made = new_document(&written.metadata, written.text, attributes);
        let (metadata, text) = made.map_err(|e| refused(&document, e))?;
        erase_chunks(
            &self
                .check_usable(key, metadata.clone())
                .map_err(|e| refused(&document, e))?,
        )?;
        self.put_v3_text(key, &metadata, &text).map(|()| true)
    }

    /// Stores a `.zattrs`: all attributes, and the names of the dimensions.
    pub(super) fn put_attributes_as_v2(&self, key: &Key, text: &[u8]) -> Result<()> {
        let document = key.join(ZATTRS);
        json::check_object(text).map_err(|e| refused(&document, e))?;
        self.check_directory(key)?;
        self.edit_as_v2(key, &|stored| {
            let array = array_of(stored);
            let (attributes, names) = from_v2::attributes_of_view(text, array.as_ref())?;
            let stored = node::rewrite(stored, "attributes", Some(&attributes))?;
            match (names, array) {
                (Some(names), _) => node::rewrite(
                    &stored,
                    "dimension_names",
                    Some(json::write(&names).as_bytes()),
                ),
                // the view shows no names if one is missing
                (None, Some(array)) if as_v2::names(&array).is_some() => {
                    node::rewrite(&stored, "dimension_names", None)
                }
                _ => Ok(stored),
            }
        })
    }

    /// Removes the `.zattrs` or `.zmetadata` of a node of v3.
    pub(super) fn remove_as_v2(&self, key: &Key, file: MetadataFile) -> Result<()> {
        let is_there = match file {
            MetadataFile::Attributes => self.attributes_as_v2(key)?.is_some(),
            _ => self.consolidated_stat(key)?.is_some(),
        };
        if !is_there {
            return Err(Error::not_found("no such document").context(key.join(file.name())));
        }
        match file {
            MetadataFile::Attributes => self.put_attributes_as_v2(key, b"{}"),
            _ => self.edit_as_v2(key, &|stored| node::rewrite(stored, CONSOLIDATED, None)),
        }
    }

    /// Changes the `zarr.json` of the node at `key` by one put.
    fn edit_as_v2(&self, key: &Key, change: &dyn Fn(&[u8]) -> Result<Vec<u8>>) -> Result<()> {
        let document = self.v3_key(key)?;
        self.edit(&document, MAX_CONSOLIDATED, &|stored| {
            let stored = stored.unwrap_or(GROUP_DOCUMENT_V3.as_bytes());
            change(stored).map(Some).map_err(|e| e.context(&document))
        })?;
        self.reload(key)?;
        self.consolidate(key, &[ZARR_JSON])
    }
}

/// Returns the array that a `zarr.json` defines; `None` for a group and a damaged array.
fn array_of(document: &[u8]) -> Option<ArrayMetadata> {
    match node_type(document) {
        Ok(NodeType::Array) => ArrayMetadata::parse_v3(document).ok(),
        _ => None,
    }
}

/// Returns the `zarr.json` of a new array, and its metadata.
fn new_document(
    metadata: &ArrayMetadata,
    text: &[u8],
    attributes: Option<&[u8]>,
) -> Result<(ArrayMetadata, Vec<u8>)> {
    from_v2::check_array_fields(text)?;
    if metadata.order == Order::F && metadata.shape.len() > 1 {
        // the program that wrote the document writes chunks in this order
        return Err(Error::unsupported(
            "order \"F\" can't be shown as Zarr v2 of a store of v3: create it with order \"C\"",
        ));
    }
    let text = from_v2::array_document(
        metadata,
        metadata.separator.unwrap_or(Separator::Dot),
        attributes,
    )?;
    Ok((ArrayMetadata::parse_v3(&text)?, text))
}

/// Returns the stored document with the shape and the fill value of a written one.
fn changed(
    stored: &Map<String, Value>,
    old: &ArrayMetadata,
    new: &ArrayMetadata,
) -> Result<Map<String, Value>> {
    let mut fields = stored.clone();
    fields.insert("shape".into(), new.shape.clone().into());
    // the stored one may have no spelling in v2
    let shown = ArrayMetadata::parse(old.decoded_view().as_bytes())?;
    let is_kept = if old.has_objects() {
        new.fill_value == shown.fill_value
    } else {
        new.fill.as_deref().unwrap_or_default() == shown.fill.as_deref().unwrap_or_default()
    };
    if !is_kept {
        let v3 = old
            .v3
            .as_ref()
            .ok_or_else(|| Error::invalid("not an array of Zarr v3"))?;
        fields.insert(
            "fill_value".into(),
            from_v2::fill_value_of(new, &v3.data_type, old.is_big_endian())?,
        );
    }
    Ok(fields)
}
