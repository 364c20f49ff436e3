//! Stores metadata documents that users of the mounted tree write: each is checked, converted to
//! its stored form, and stored by one put. A refused document changes nothing.

use super::{
    DocumentFormat, DocumentKind, Hierarchy, MetadataFile, REMOVED, ShownFormat, Unmarked,
};
use zarrfs_base::error::{Error, ErrorContext, Kind, Result};
use zarrfs_base::json::{self, Map, Object, Value};
use zarrfs_base::memory;
use zarrfs_format::metadata::v3::node::{self, CONSOLIDATED, NodeType, node_type};
use zarrfs_format::metadata::{MAX_CONSOLIDATED, MAX_DOCUMENT, ZARR_JSON, ZARRAY, ZATTRS};
use zarrfs_outlive::RecordedNames;
use zarrfs_store::{ExclusiveLock, Key, Replaces, StoreExt, Version};

/// Maximum number of attempts to change a document that other processes change too.
pub(super) const ATTEMPTS: usize = 100;

/// Maximum length in bytes of the name of an attribute that is set on its own: the kernel's limit
/// for extended attributes.
const MAX_NAME: usize = 255;

/// A function that computes the new text of a document from the old one, which is `None` if there
/// is none. It returns `None` to leave the document unchanged.
pub(super) type DocumentChange<'a> = &'a dyn Fn(Option<&[u8]>) -> Result<Option<Vec<u8>>>;

/// The lock of a change of documents or nodes, whose keys are recorded until it is dropped.
pub(super) struct ChangeLock<'a> {
    recorded: &'a RecordedNames,
    keys: Vec<Key>,
    _lock: ExclusiveLock<'a>,
}

impl Drop for ChangeLock<'_> {
    fn drop(&mut self) {
        for key in &self.keys {
            self.recorded.remove(key.as_str());
        }
    }
}

impl Hierarchy {
    /// Stores a document of the group or array at `key` as a user of the mounted tree wrote it. A
    /// new `.zarray` creates an array; an existing array keeps its codecs.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`] if the document is invalid or unusable; the old one then stays.
    pub fn put_document(&self, key: &Key, file: MetadataFile, text: &[u8]) -> Result<()> {
        let _lock = self.lock_for_change(&[key])?;
        let document = key.join(file.name());
        check_size(&document, text, size_limit(&document))?;
        match file {
            MetadataFile::Zarr => self.put_zarr_json(key, text),
            MetadataFile::Array => self.put_array(key, DocumentFormat::V2, text),
            MetadataFile::Group => self.put_group(key, DocumentFormat::V2, text),
            MetadataFile::Attributes => self.put_attributes(key, text),
            MetadataFile::Consolidated => self.put_consolidated(key, text),
        }?;
        if file.defines_groups() {
            self.unmarked.remove(key.as_str());
        }
        Ok(())
    }

    /// Removes a document. An array without `.zarray` keeps its chunks until they are deleted; a
    /// group without `.zgroup` remains a group.
    ///
    /// # Errors
    ///
    /// [`Kind::NotFound`] if there is no such document.
    pub fn remove_document(&self, key: &Key, file: MetadataFile) -> Result<()> {
        let _lock = self.lock_for_change(&[key])?;
        let document = key.join(file.name());
        let there = match file {
            MetadataFile::Attributes | MetadataFile::Consolidated if self.shows_as_v2(key)? => {
                return self.remove_as_v2(key, file);
            }
            MetadataFile::Array => self.remove_array_document(key)?,
            MetadataFile::Zarr
                if self
                    .array_document(key)?
                    .is_some_and(|found| found.form == DocumentKind::V3) =>
            {
                self.remove_array_document(key)?
            }
            // without attrs, the directory would not be a v1 store
            MetadataFile::Attributes if self.attributes_key(key) != document => {
                return Err(needs_migration(key));
            }
            MetadataFile::Attributes | MetadataFile::Consolidated => self.delete(&document)?,
            // the document may be a generated one, which is not stored
            MetadataFile::Zarr | MetadataFile::Group => self.delete(&document).map(|_| true)?,
        };
        if file.defines_groups() && there {
            self.unmark(key, Unmarked::Removed);
        }
        match file {
            _ if !there => Err(Error::not_found("no such document").context(document)),
            MetadataFile::Consolidated => Ok(()),
            // in a tree shown as v2 it is the zarr.json that was removed
            MetadataFile::Array => self.consolidate(key, &[ZARRAY, ZARR_JSON]),
            _ => self.consolidate(key, &[file.name()]),
        }
    }

    /// Removes the `.zarray` or `zarr.json` of the array at `key`; returns false if there was none.
    fn remove_array_document(&self, key: &Key) -> Result<bool> {
        let Some(found) = self.array_document(key)? else {
            return Ok(false);
        };
        let document = &found.key;
        match (found.form, self.array(key, &found)?) {
            (DocumentKind::Removed, _) => return Ok(false),
            (DocumentKind::V1, _) => return Err(needs_migration(key)),
            (DocumentKind::V2 | DocumentKind::V3, Ok(_)) => {
                self.store
                    .rename(document, &key.join(REMOVED))
                    .context(document)?;
            }
            // an unusable document needs no copy
            (DocumentKind::V2 | DocumentKind::V3, Err(_)) => drop(self.delete(document)?),
        }
        self.reload(key).map(|()| true)
    }

    /// Sets one attribute of the group or array at `key` to a JSON value, or to the text itself if
    /// it is not JSON; `None` removes it.
    ///
    /// # Errors
    ///
    /// ENODATA if the attribute to remove does not exist.
    pub fn set_attribute(&self, key: &Key, name: &str, value: Option<&[u8]>) -> Result<()> {
        let _lock = self.lock_for_change(&[key])?;
        let document = self.attributes_key(key);
        if name.is_empty() || name.len() > MAX_NAME {
            let message = format!(
                "an attribute's name has 1 to {MAX_NAME} bytes, not {}",
                name.len()
            );
            return Err(Error::invalid(message).context(document));
        }
        let value = value
            .map(attribute)
            .transpose()
            .map_err(|e| e.context(format!("{document}: {name:?}")))?;
        self.edit_attributes(key, &|attributes| match &value {
            Some(value) => {
                attributes.insert(name.to_string(), value.clone());
                Ok(())
            }
            None => match attributes.shift_remove(name) {
                Some(_) => Ok(()),
                None => Err(Error::system(libc::ENODATA).context(format!("{document}: {name:?}"))),
            },
        })
    }

    /// Sets several attributes of the group or array at `key` by one put; `None` removes one, if it
    /// exists.
    pub fn change_attributes(&self, key: &Key, changes: &[(String, Option<Value>)]) -> Result<()> {
        let _lock = self.lock_for_change(&[key])?;
        self.edit_attributes(key, &|attributes| {
            for (name, value) in changes {
                match value {
                    Some(value) => drop(attributes.insert(name.clone(), value.clone())),
                    None => drop(attributes.shift_remove(name)),
                }
            }
            Ok(())
        })
    }

    /// Changes the attributes of the group or array at `key` by one put.
    fn edit_attributes(
        &self,
        key: &Key,
        change: &dyn Fn(&mut Map<String, Value>) -> Result<()>,
    ) -> Result<()> {
        self.check_directory(key)?;
        let (format, document) = if self.is_v3(key)? {
            (DocumentFormat::V3, key.join(ZARR_JSON))
        } else {
            (DocumentFormat::V2, self.attributes_key(key))
        };
        let empty = match format {
            DocumentFormat::V2 => "{}",
            DocumentFormat::V3 => format.group_document(),
        };
        let limit = size_limit(&document);
        self.edit(&document, limit, &|text| {
            let text = text.unwrap_or(empty.as_bytes());
            let mut attributes = format.attributes(text).context(&document)?;
            // for a copy of the attributes, and then for the new text
            let _memory = memory::take(attributes.memory())?;
            let before = (*attributes).clone();
            change(attributes.map_mut())?;
            // a copy sets the attributes that it has copied with the document
            if *attributes == before {
                return Ok(None);
            }
            drop(before);
            let text = format.with_attributes(text, attributes)?;
            check_size(&document, &text, limit)?;
            Ok(Some(text))
        })?;
        self.consolidate(key, &[format.attributes_file().name()])
    }

    fn put_attributes(&self, key: &Key, text: &[u8]) -> Result<()> {
        if self.shows_as_v2(key)? {
            return self.put_attributes_as_v2(key, text);
        }
        self.check_not_v3(key, &key.join(ZATTRS))?;
        let document = self.attributes_key(key);
        json::check_object(text).map_err(|e| refused(&document, e))?;
        self.check_directory(key)?;
        self.put(&document, text)?;
        self.consolidate(key, &[ZATTRS])
    }

    fn put_zarr_json(&self, key: &Key, text: &[u8]) -> Result<()> {
        let document = key.join(ZARR_JSON);
        if self.view == ShownFormat::V2 {
            let why = "this mount shows documents of Zarr v2: mount the store without --view v2 to write zarr.json";
            return Err(Error::invalid(why).context(document));
        }
        match node_type(text).map_err(|e| refused(&document, e))? {
            NodeType::Group => self.put_group(key, DocumentFormat::V3, text),
            NodeType::Array => self.put_array(key, DocumentFormat::V3, text),
        }
    }

    /// Stores the document of a group. In a tree shown as v2 a `.zgroup` makes a new group of v3,
    /// and leaves an existing one unchanged.
    fn put_group(&self, key: &Key, format: DocumentFormat, text: &[u8]) -> Result<()> {
        let document = key.join(format.group_file().name());
        format
            .check_group(text)
            .map_err(|e| refused(&document, e))?;
        self.check_no_array(key, &document)?;
        if format == DocumentFormat::V3 {
            return self.put_v3_group(key, &document, text);
        }
        if !self.shows_as_v2(key)? {
            self.check_not_v3(key, &document)?;
            return self.put_group_text(key, format, text);
        }
        if self.v3_document(key)?.is_some() {
            return Ok(());
        }
        let stored = DocumentFormat::V3;
        self.put_group_text(key, stored, stored.group_document().as_bytes())
    }

    fn put_v3_group(&self, key: &Key, document: &Key, text: &[u8]) -> Result<()> {
        let stored = self.stored_within(document, MAX_CONSOLIDATED)?;
        let consolidated = stored
            .as_ref()
            .and_then(|stored| node::member(&stored.text, CONSOLIDATED).ok().flatten());
        let written = node::member(text, CONSOLIDATED)?.filter(|value| *value != "null");
        // a program that does not know consolidated metadata does not mean to remove them
        let new = json::with_member(text, CONSOLIDATED, consolidated.map(str::as_bytes))?;
        self.put_group_text(key, DocumentFormat::V3, &new)?;
        self.written_consolidated.forget(document);
        if written.is_some() {
            self.written_consolidated.remember(document, text);
            // its entries are shown documents, so the stored metadata is made from the stored
            // documents
            self.make_consolidated(DocumentFormat::V3, key)?;
        }
        Ok(())
    }

    fn put_group_text(&self, key: &Key, format: DocumentFormat, text: &[u8]) -> Result<()> {
        let name = format.group_file().name();
        self.put(&key.join(name), text)?;
        self.delete(&key.join(REMOVED))?;
        self.forget_below(key);
        self.consolidate(key, &[name])
    }

    /// Locks the documents and nodes at and below `keys` for a change, and drops cached answers
    /// about them, so that the change begins with the current content of the store. Fails if the
    /// store is read-only.
    pub(super) fn lock_for_change<'a>(&'a self, keys: &[&Key]) -> Result<ChangeLock<'a>> {
        if !self.store.is_writable() {
            return Err(Error::new(
                Kind::ReadOnly,
                format!("{}: the store can't be written", self.store.location()),
            ));
        }
        let lock = self.changing.exclusive(keys);
        keys.iter().for_each(|key| self.store.forget(key));
        for key in keys {
            self.changing_keys.put(key.as_str(), 0);
        }
        Ok(ChangeLock {
            recorded: &self.changing_keys,
            keys: keys.iter().copied().cloned().collect(),
            _lock: lock,
        })
    }

    /// Checks that there is a group or array at `key`.
    pub(super) fn check_directory(&self, key: &Key) -> Result<()> {
        match self.find(key)? {
            Some(node) if node.is_directory() => Ok(()),
            Some(_) => Err(Error::system(libc::ENOTDIR).context(key)),
            None => Err(Error::not_found("no such group or array").context(key)),
        }
    }

    /// Looks up the node at `key`, which supersedes a cached array whose document has changed.
    pub(super) fn reload(&self, key: &Key) -> Result<()> {
        self.find(key).map(|_| ())
    }

    /// Stores a document.
    pub(super) fn put(&self, key: &Key, text: &[u8]) -> Result<()> {
        self.store.put(key, text).map(|_| ()).context(key)
    }

    /// Replaces the document at `key` by the result of `change`. If another process stores it
    /// meanwhile, `change` is applied again to the new text, so that neither change is lost.
    pub(super) fn edit(&self, key: &Key, limit: u64, change: DocumentChange) -> Result<()> {
        let _editing = self.editing.exclusive(&[key]);
        for _ in 0..ATTEMPTS {
            let old = self.stored_within(key, limit)?;
            let Some(new) = change(old.as_ref().map(|old| old.text.as_slice()))? else {
                return Ok(());
            };
            let replaces = old.as_ref().map_or(Replaces::Nothing, |old| {
                Replaces::Version(&old.stat.version)
            });
            let put = self.store.put_if(key, &new, replaces);
            if put.context(key)?.is_some() {
                return Ok(());
            }
        }
        Err(contended(key))
    }

    /// Deletes a value; returns false if there was none.
    pub(super) fn delete(&self, key: &Key) -> Result<bool> {
        self.store.delete(key).context(key)
    }

    /// Returns the JSON object of the document stored at `key`, and its version.
    pub(super) fn stored_object(&self, key: &Key) -> Result<Option<(Object, Version)>> {
        let Some(document) = self.stored(key)? else {
            return Ok(None);
        };
        let object = json::parse_object(&document.text).context(key)?;
        Ok(Some((object, document.stat.version)))
    }
}

/// Returns the most bytes that the document at `key` may have. A `zarr.json` may hold consolidated
/// metadata.
pub(super) fn size_limit(key: &Key) -> u64 {
    if key.name() == ZARR_JSON {
        MAX_CONSOLIDATED
    } else {
        MAX_DOCUMENT
    }
}

pub(super) fn check_size(key: &Key, text: &[u8], limit: u64) -> Result<()> {
    if text.len() as u64 > limit {
        let message = format!(
            "{} bytes, more than the {limit} the document may have",
            text.len()
        );
        return Err(Error::new(Kind::TooLarge, message).context(key));
    }
    Ok(())
}

/// Returns the error for a document that other processes change at each attempt.
pub(super) fn contended(key: &Key) -> Error {
    let why =
        format!("was changed by others each time it was to be changed here, {ATTEMPTS} times");
    Error::new(Kind::System(libc::EAGAIN), why).context(key)
}

/// Converts an error about a document that a user writes: it is invalid input, not damage of the
/// store.
pub(super) fn refused(document: &Key, e: Error) -> Error {
    match e.kind() {
        Kind::System(_) => e.context(document),
        _ => Error::invalid(e.message()).context(document),
    }
}

/// Returns the error for changes of a Zarr v1 array, whose documents differ from those of v2.
pub(super) fn needs_migration(key: &Key) -> Error {
    let message = "a Zarr v1 array: this can only be done after `zarrfs migrate`";
    Error::new(Kind::ReadOnly, message).context(key)
}

fn attribute(text: &[u8]) -> Result<Value> {
    let text = std::str::from_utf8(text)
        .map_err(|_| Error::invalid("the value is neither JSON nor UTF-8 text"))?;
    Ok(json::parse(text.as_bytes()).unwrap_or_else(|_| text.into()))
}
