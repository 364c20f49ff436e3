//! The view of nodes of v3 as v2, for programs that know no other format: `.zgroup`, `.zarray`,
//! `.zattrs` and `.zmetadata` in place of `zarr.json`. Changes of them are stored in the
//! `zarr.json`. Chunk files are the same in both views.

use super::document::refused;
use super::{
    ArrayDocument, DocumentFormat, DocumentKind, Hierarchy, MetadataDocument, MetadataFile,
    Unmarked,
};
use zarrfs_base::error::{Error, ErrorContext, Result};
use zarrfs_base::json;
use zarrfs_format::metadata::v3::node::{CONSOLIDATED, GROUP_DOCUMENT_V3, NodeType, node_type};
use zarrfs_format::metadata::v3::{as_v2, from_v2};
use zarrfs_format::metadata::{
    ArrayMetadata, GROUP_DOCUMENT, MAX_CONSOLIDATED, ZARR_JSON, ZARRAY, ZATTRS,
};
use zarrfs_store::Key;

/// The format of the documents that nodes of v3 show. Nodes of v1 and v2 always show those of v2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShownFormat {
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
        if self.view != ShownFormat::V2 {
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
            None => self.implicit_group(key, DocumentFormat::V3)?,
        };
        stat.map(|stat| MetadataDocument::made(GROUP_DOCUMENT.into(), stat))
            .transpose()
    }

    /// Stores a `.zattrs`: all attributes, and the names of the dimensions.
    pub(super) fn put_attributes_as_v2(&self, key: &Key, text: &[u8]) -> Result<()> {
        let document = key.join(ZATTRS);
        json::check_object(text).map_err(|e| refused(&document, e))?;
        self.check_directory(key)?;
        self.edit_as_v2(key, &|stored| {
            let array = array_of(stored);
            let (attributes, names) = from_v2::attributes_of_view(text, array.as_ref())?;
            let stored = json::with_member(stored, "attributes", Some(&attributes))?;
            match (names, array) {
                (Some(names), _) => json::with_member(
                    &stored,
                    "dimension_names",
                    Some(json::write(&names).as_bytes()),
                ),
                // the view shows no names if one is missing
                (None, Some(array)) if as_v2::names(&array).is_some() => {
                    json::with_member(&stored, "dimension_names", None)
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
            _ => self.edit_as_v2(key, &|stored| json::with_member(stored, CONSOLIDATED, None)),
        }
    }

    /// Changes the `zarr.json` of the node at `key` by one put.
    fn edit_as_v2(&self, key: &Key, change: &dyn Fn(&[u8]) -> Result<Vec<u8>>) -> Result<()> {
        let document = self.v3_key(key)?;
        self.edit(&document, MAX_CONSOLIDATED, &|stored| {
            let stored = stored.unwrap_or(GROUP_DOCUMENT_V3.as_bytes());
            change(stored).map(Some).context(&document)
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
