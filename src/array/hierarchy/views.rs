//! The metadata documents of groups and arrays: as stored, and as the decoded view shows them.

use super::{DocumentKind, Hierarchy, MetadataDocument, V3_DOCUMENT, V3_PROBLEM, is_foreign};
use crate::error::{Error, Kind, Result};
use crate::store::{Counted, EntryKind, Key, Stat, get_counted};
use crate::util::json::{self, Object};
use crate::zarr::metadata::{GROUP_DOCUMENT, MAX_DOCUMENT, V1_ATTRS, ZARRAY, ZATTRS, ZGROUP};

impl Hierarchy {
    /// Returns the `.zarray` of the decoded view; for a damaged array, the stored document.
    pub fn array_view(&self, key: &Key) -> Result<Option<MetadataDocument>> {
        let found = self.array_document(key)?.filter(|found| found.form != DocumentKind::Removed);
        let Some(found) = found else { return Ok(None) };
        let text = match self.array(key, &found)? {
            Ok(array) => array.metadata().decoded_view().into_bytes(),
            Err(_) => return self.stored(&found.key),
        };
        MetadataDocument::made(text, found.stat).map(Some)
    }

    /// Returns the `.zattrs` of a group or array as stored.
    pub fn attributes_view(&self, key: &Key) -> Result<Option<MetadataDocument>> {
        self.stored(&self.attributes_key(key))
    }

    /// Returns the stat of the `.zattrs` of a group or array, if there is one.
    ///
    /// # Errors
    ///
    /// The document cannot be read, is not a regular file, or is too large.
    pub fn attributes_stat(&self, key: &Key) -> Result<Option<Stat>> {
        let document = self.attributes_key(key);
        let stat = self.store.stat(&document).map_err(|e| e.context(&document))?;
        match stat {
            Some(stat) if stat.kind != EntryKind::Value => {
                Err(Error::damaged("is not a regular file").context(document))
            }
            Some(stat) if stat.size > MAX_DOCUMENT => {
                let why = format!("{} bytes, more than the {MAX_DOCUMENT} it may have", stat.size);
                Err(Error::damaged(why).context(document))
            }
            stat => Ok(stat),
        }
    }

    /// Returns the key of the document that defines the array at `key`: `.zarray` unless another one is found.
    pub fn array_document_key(&self, key: &Key) -> Key {
        let found = self.array_document(key).ok().flatten();
        found.map_or_else(|| key.join(ZARRAY), |found| found.key)
    }

    /// Returns the key of the document with the attributes of the group or array at `key`.
    pub fn attributes_key(&self, key: &Key) -> Key {
        let v1 = matches!(self.array_document(key), Ok(Some(found)) if found.form == DocumentKind::V1);
        key.join(if v1 { V1_ATTRS } else { ZATTRS })
    }

    /// Whether `key` is certainly a group or array of Zarr v3 and not of v2.
    pub fn is_v3(&self, key: &Key) -> bool {
        let is_value =
            |name: &str| matches!(self.store.stat(&key.join(name)), Ok(Some(stat)) if stat.kind == EntryKind::Value);
        !is_value(ZGROUP) && !is_value(ZARRAY) && is_value(V3_DOCUMENT)
    }

    /// Returns the `.zgroup` of a group, as stored or generated. Directories of other programs, at or below a name that begins
    /// with a dot, get none; nor do those of Zarr v3, which are recorded as a problem.
    pub fn group_view(&self, key: &Key) -> Result<Option<MetadataDocument>> {
        if let Some(document) = self.stored(&key.join(ZGROUP))? {
            return Ok(Some(document));
        }
        let stat = self.store.stat(key).map_err(|e| e.context(key))?;
        let stat = stat.filter(|_| !is_foreign(key));
        if stat.is_some() && self.is_v3(key) {
            self.stats.problem(format!("{}: {V3_PROBLEM}", key.join(V3_DOCUMENT)));
            return Ok(None);
        }
        stat.map(|stat| MetadataDocument::made(GROUP_DOCUMENT.into(), stat)).transpose()
    }

    /// Returns the attributes of a group or array. They are empty if there is no document, and if it is inaccessible or not a
    /// JSON object, which is recorded as a problem.
    ///
    /// # Errors
    ///
    /// The store fails to return the document.
    pub fn attributes(&self, key: &Key) -> Result<Object> {
        let parse = |d: MetadataDocument| json::parse_object(&d.text).map_err(|e| e.context(key.join(ZATTRS)));
        match self.attributes_view(key).and_then(|d| d.map(parse).transpose()) {
            Ok(attributes) => Ok(attributes.unwrap_or_default()),
            // transient: the caller must not go on as if there were no attributes
            Err(e) if [libc::EIO, libc::ENOMEM].map(Kind::System).contains(&e.kind()) => Err(e),
            Err(e) => {
                self.stats.problem(e.to_string());
                Ok(Object::default())
            }
        }
    }

    /// Returns the document at `key` as stored, if there is one.
    pub fn stored(&self, key: &Key) -> Result<Option<MetadataDocument>> {
        self.stored_within(key, MAX_DOCUMENT)
    }

    pub(super) fn stored_within(&self, key: &Key, limit: u64) -> Result<Option<MetadataDocument>> {
        let read = get_counted(self.store(), key, limit).map_err(|e| e.context(key))?;
        Ok(read.map(|Counted { bytes, stat, memory }| MetadataDocument { text: bytes, stat, memory }))
    }
}
