//! The documents of a new array and of the groups above it, in the hierarchy of their store. This
//! module must not know where the store is.

use super::document::NewDocument;
use crate::array::hierarchy::{DocumentFormat, Hierarchy, MetadataFile, StoredNode};
use zarrfs_base::error::{Error, Result};
use zarrfs_store::{Key, StoreExt};

/// An array that is created at a key.
#[derive(Clone, Copy)]
pub struct NewArray<'a> {
    pub hierarchy: &'a Hierarchy,
    pub key: &'a Key,
    pub document: &'a NewDocument,
}

impl NewArray<'_> {
    /// Returns the topmost missing key above or at the array; the root for an array that is a whole
    /// store.
    ///
    /// # Errors
    ///
    /// EEXIST if a group or array exists at the key; other errors if none can be created there.
    pub fn first_missing(self) -> Result<Key> {
        let NewArray { hierarchy, key, .. } = self;
        if key.is_root() {
            return match hierarchy.store().list(key)?.next() {
                Some(_) => Err(Error::system(libc::EEXIST)),
                None => Ok(Key::root()),
            };
        }
        hierarchy.store().check_writable(&Key::root())?;
        let mut missing = key.clone();
        if hierarchy.find(&missing)?.is_some() {
            return Err(Error::system(libc::EEXIST).context(key));
        }
        while !missing.is_root() && hierarchy.find(&missing.parent())?.is_none() {
            missing = missing.parent();
        }
        hierarchy.check_new_name(&missing)?;
        Ok(missing)
    }

    /// Creates the array, after the groups above it.
    pub fn make(self) -> Result<()> {
        self.make_above()?;
        if !self.key.is_root() && self.hierarchy.find(self.key)?.is_none() {
            self.hierarchy.create_group(self.key)?;
        }
        self.put()?;
        self.put_attributes()
    }

    /// Creates the missing groups above the array.
    pub fn make_above(self) -> Result<()> {
        if self.key.is_root() {
            return Ok(());
        }
        let root = self.hierarchy.find(&Key::root())?;
        let is_array = matches!(root, Some(StoredNode::Array(_) | StoredNode::Damaged(_)));
        if !is_array && !self.has_root_group()? {
            self.put_root_group()?;
        }
        make_groups(self.hierarchy, &self.key.parent())
    }

    /// Puts the document of the array.
    pub fn put(self) -> Result<()> {
        let NewDocument { text, format, .. } = self.document;
        self.hierarchy
            .put_document(self.key, format.array_file(), text.as_bytes())
    }

    /// Puts the attributes, unless the document of the array holds them.
    pub fn put_attributes(self) -> Result<()> {
        match &self.document.attributes {
            Some(text) => {
                self.hierarchy
                    .put_document(self.key, MetadataFile::Attributes, text.as_bytes())
            }
            None => Ok(()),
        }
    }

    /// Returns whether the root has the document of a group in the format of the array.
    pub fn has_root_group(self) -> Result<bool> {
        let key = Key::root().join(self.document.format.group_file().name());
        Ok(self.hierarchy.store().stat(&key)?.is_some())
    }

    pub fn put_root_group(self) -> Result<()> {
        let format = self.document.format;
        let text = format.group_document();
        self.hierarchy
            .put_document(&Key::root(), format.group_file(), text.as_bytes())
    }

    /// Puts the document of `first`, the topmost new group or the array itself: all keys below it
    /// belong to this command from then on. It is put only if no other program has put one.
    pub fn reserve(self, first: &Key, had_group: bool) -> Result<()> {
        let NewArray { hierarchy, key, .. } = self;
        let format = self.document.format;
        // new groups get the format of the root, so that its document comes first
        let is_new_v3 = format == DocumentFormat::V3 && !had_group && !first.is_root();
        if is_new_v3 {
            self.put_root_group()?;
        }
        let reserved = if first != key {
            hierarchy.create_group(first)
        } else if key.is_root() {
            self.put()
        } else {
            hierarchy.store().make_prefix(key).and_then(|()| self.put())
        };
        if reserved.is_err() && is_new_v3 {
            let _ = hierarchy.remove_document(&Key::root(), format.group_file());
        }
        reserved
    }
}

fn make_groups(hierarchy: &Hierarchy, key: &Key) -> Result<()> {
    if key.is_root() || hierarchy.find(key)?.is_some() {
        return Ok(());
    }
    make_groups(hierarchy, &key.parent())?;
    hierarchy.create_group(key)
}
