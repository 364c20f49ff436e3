//! Stores documents of arrays that users of the mounted tree write: a `.zarray`, or a `zarr.json`.
//! The mounted tree hides codecs and keys, so an existing array keeps its own. A change
//! that would alter the meaning of stored chunks is refused while there are any.

use super::document::{ATTEMPTS, contended, needs_migration, refused};
use super::resize::OutsideElements;
use super::written_array::WrittenArray;
use super::{ArrayDocument, DocumentFormat, DocumentKind, Hierarchy, MetadataDocument, REMOVED};
use crate::array::{Array, ArrayEntry, Scratch, WriteBack};
use std::sync::Arc;
use zarrfs_base::error::{Error, ErrorContext, Result};
use zarrfs_base::memory::Grant;
use zarrfs_format::chunk_key::parse_index;
use zarrfs_format::grid::ChunkId;
use zarrfs_format::metadata::{ArrayMetadata, Separator, ZARR_JSON, ZGROUP};
use zarrfs_store::{EntryKind, Key, StoreExt};

/// Number of chunks that are erased before the objects are stored that they wait for.
const MAX_ERASED: usize = 1 << 14;

impl Hierarchy {
    /// Stores the `.zarray`, or the `zarr.json` of an array, that a user wrote: see
    /// [`Hierarchy::put_document`].
    pub(super) fn put_array(&self, key: &Key, format: DocumentFormat, text: &[u8]) -> Result<()> {
        let document = key.join(format.array_file().name());
        let mut written = WrittenArray::parse(text, format).map_err(|e| refused(&document, e))?;
        if format == DocumentFormat::V2 {
            if self.shows_as_v2(key)? {
                written.stored = DocumentFormat::V3;
            } else {
                self.check_not_v3(key, &document)?;
            }
        }
        self.put_written_array(key, &document, &written)?;
        // a document with other keys is not by a program that writes below `c`
        if written.metadata.has_key_prefix() {
            self.decoded_below_c.remove(key.as_str());
            if written.metadata.is_decoded() && self.shows_stored_keys(key) {
                self.decoded_below_c.put(key.as_str(), 0);
            }
        }
        Ok(())
    }

    fn put_written_array(&self, key: &Key, document: &Key, written: &WrittenArray) -> Result<()> {
        for _ in 0..ATTEMPTS {
            let Some(found) = self.array_document(key)? else {
                return self.put_new_array(key, document, written);
            };
            let parsed = self.array(key, &found)?;
            let array = match (written.format, written.stored) {
                (DocumentFormat::V2, DocumentFormat::V2) if found.form == DocumentKind::V1 => {
                    return Err(needs_migration(key));
                }
                // the layout of the chunks of a damaged array is unknown: the user repairs it
                (DocumentFormat::V2, DocumentFormat::V2) => parsed.ok(),
                (DocumentFormat::V2, DocumentFormat::V3) => {
                    Some(parsed.map_err(|e| refused(document, e))?)
                }
                (DocumentFormat::V3, _) => match parsed {
                    Ok(array) if array.metadata().zarr_format == 3 => Some(array),
                    Ok(array)
                        if found.form == DocumentKind::Removed && !self.has_chunks(&array)? =>
                    {
                        None
                    }
                    Err(_) if found.form == DocumentKind::V3 => None,
                    _ => {
                        let why = "an array of Zarr v1 or v2 stands here: remove it first";
                        return Err(Error::invalid(why).context(document));
                    }
                },
            };
            let Some(array) = array else {
                let metadata = &written.metadata;
                return self.put_array_text(key, written.stored, metadata, written.text);
            };
            if self.change_array(&array, &found, document, written)? {
                return Ok(());
            }
        }
        Err(contended(document))
    }

    fn put_new_array(&self, key: &Key, document: &Key, written: &WrittenArray) -> Result<()> {
        self.check_vacant(key, document, &written.metadata)?;
        let compressor = self.compressor.as_ref();
        let compressor = compressor.filter(|_| written.lacks_compressor());
        let attributes = self.attributes_to_keep(&key.join(ZARR_JSON), written)?;
        let attributes = attributes.as_ref().map(|stored| stored.text.as_slice());
        let (mut metadata, mut text) = written.new_document(document, compressor, attributes)?;
        if compressor.is_some() && !self.encode_early_chunks(key, &written.metadata, &metadata)? {
            (metadata, text) = written.new_document(document, None, attributes)?;
        }
        self.put_array_text(key, written.stored, &metadata, &text)
    }

    /// Returns the attributes in the stored `zarr.json` if the written document is a `.zarray`,
    /// which says nothing about them.
    fn attributes_to_keep(
        &self,
        document: &Key,
        written: &WrittenArray,
    ) -> Result<Option<MetadataDocument>> {
        if written.format == written.stored {
            Ok(None)
        } else {
            self.v3_attributes(document)
        }
    }

    /// Stores the document of a new array, or of an array without chunks.
    fn put_array_text(
        &self,
        key: &Key,
        format: DocumentFormat,
        metadata: &ArrayMetadata,
        text: &[u8],
    ) -> Result<()> {
        let name = format.array_file().name();
        let document = key.join(name);
        self.check_usable(key, metadata.clone())
            .map_err(|e| refused(&document, e))?;
        self.put(&document, text)?;
        // the directory was a group that `mkdir` created; from here on it is an array
        self.delete(&key.join(ZGROUP))?;
        self.delete(&key.join(REMOVED))?;
        self.reload(key)?;
        self.consolidate(key, &[name, ZGROUP])
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
        array.creatable()?;
        Ok(Arc::new(array))
    }

    /// Checks that an array can be created at `key`, which must have no groups and arrays below it.
    fn check_vacant(&self, key: &Key, document: &Key, metadata: &ArrayMetadata) -> Result<()> {
        match self.find(key)? {
            None => return Err(Error::not_found("no such group").context(key)),
            Some(node) if node.is_group() && key.is_root() => {}
            Some(node) if node.is_group() => self.check_new_name(key)?,
            Some(_) => return Err(Error::system(libc::ENOTDIR).context(key)),
        }
        for entry in self.list(key)? {
            let entry = entry.context(key)?;
            let below = key.join(&entry.name);
            // these may be levels of chunk keys that were copied before the document
            let is_level_name = if metadata.has_key_prefix() {
                entry.name == "c"
            } else {
                parse_index(&entry.name).is_some()
            };
            let is_level = metadata.separator == Some(Separator::Slash)
                && is_level_name
                && self.is_group(&below)?;
            if entry.kind == EntryKind::Prefix && !is_level {
                let message = format!(
                    "{:?} stands below: an array can't hold groups or arrays",
                    entry.name
                );
                return Err(Error::invalid(message).context(document));
            }
        }
        Ok(())
    }

    /// Encodes the chunks that a program has copied before the document of their array, as the
    /// document `shown` describes them, for the document that is about to be stored. If the daemon
    /// is killed meanwhile, no document says what the values are, and the copy begins anew. Returns
    /// false, with nothing changed, if some values are no such chunks.
    fn encode_early_chunks(
        &self,
        key: &Key,
        shown: &ArrayMetadata,
        stored: &ArrayMetadata,
    ) -> Result<bool> {
        let shown = self.check_usable(key, shown.clone());
        let stored = self.check_usable(key, stored.clone());
        let (Ok(shown), Ok(stored)) = (shown, stored) else {
            return Ok(true);
        };
        if !self.has_chunks(&shown)? {
            return Ok(true);
        }
        if !self.store.lists_all() {
            return Ok(false);
        }
        let mut chunks = Vec::new();
        let mut memory = Grant::default();
        for entry in shown.entries()? {
            let chunk = match entry.context(key)? {
                ArrayEntry::Chunk(chunk) => chunk,
                ArrayEntry::Value(_) => continue,
                ArrayEntry::Unlisted => return Ok(false),
            };
            let size = shown.stat_chunk(chunk)?.map(|stat| stat.size);
            let is_decoded = shown.metadata().has_objects()
                || size == Some(shown.grid().chunk_size(chunk) as u64);
            if !is_decoded || shown.stored_key(chunk) != stored.stored_key(chunk) {
                return Ok(false);
            }
            memory.grow(size_of::<ChunkId>())?;
            chunks.push(chunk);
        }
        let mut scratch = Scratch::default();
        for chunk in chunks {
            if let Some(loaded) = shown.load(chunk, Vec::new(), &mut scratch)? {
                stored.store(chunk, &loaded.bytes, &mut scratch)?;
            }
        }
        Ok(true)
    }

    /// Changes an existing array; returns false without a change if another process changed the
    /// document meanwhile.
    fn change_array(
        &self,
        array: &Arc<Array>,
        found: &ArrayDocument,
        document: &Key,
        written: &WrittenArray,
    ) -> Result<bool> {
        let key = array.key();
        let (stored, version) = self.stored_object(&found.key)?.ok_or_else(|| {
            Error::not_found("went away while it was changed").context(&found.key)
        })?;
        let Some(field) = written.differs(&stored, array) else {
            let fields = written
                .merged(&stored, array.metadata())
                .map_err(|e| refused(document, e))?;
            if fields == *stored && found.form == written.kind() {
                return Ok(true);
            }
            return self.put_shape(array, found, fields, &version, OutsideElements::Kept);
        };
        if self.has_chunks(array)? {
            let message =
                format!("{field} can't change while chunks are stored: delete its chunks first");
            return Err(Error::invalid(message).context(document));
        }
        let attributes = self.attributes_to_keep(&found.key, written)?;
        let attributes = attributes.as_ref().map(|stored| stored.text.as_slice());
        let (metadata, text) = written
            .replacement(&stored, array.metadata(), attributes)
            .map_err(|e| refused(document, e))?;
        let new = self
            .check_usable(key, metadata.clone())
            .map_err(|e| refused(document, e))?;
        erase_chunks(&new, &mut |_| Ok(()))?;
        self.put_array_text(key, written.stored, &metadata, &text)
            .map(|()| true)
    }

    /// Checks that no array stands at `key`, except one that was removed and has no chunks.
    pub(super) fn check_no_array(&self, key: &Key, document: &Key) -> Result<()> {
        let which = match self.find(key)? {
            Some(node) if node.is_array() => match node.array() {
                Some(array) if self.lost_document(key)? && !self.has_chunks(&array)? => {
                    return Ok(());
                }
                Some(_) => "",
                None => ", a damaged one",
            },
            _ => return self.check_directory(key),
        };
        let message = format!("an array stands here{which}: remove it first");
        Err(Error::invalid(message).context(document))
    }
}

/// Erases all chunks below the key of an array, also those outside the grid of the array whose
/// place it takes, and calls `each_value` with the name of each other value.
pub(super) fn erase_chunks(
    array: &Arc<Array>,
    each_value: &mut dyn FnMut(&str) -> Result<()>,
) -> Result<()> {
    for (n, entry) in array.entries()?.enumerate() {
        match entry.context(array.key())? {
            ArrayEntry::Chunk(chunk) => drop(array.erase(chunk, WriteBack::unconfirmed())?),
            ArrayEntry::Value(name) => each_value(&name)?,
            ArrayEntry::Unlisted => {}
        }
        if n % MAX_ERASED == MAX_ERASED - 1 {
            array.store_objects()?;
        }
    }
    array.store_objects()
}
