//! The metadata documents of groups and arrays: as stored, and as the mounted tree shows them.

use super::{DocumentFormat, DocumentKind, Hierarchy, MetadataDocument, MetadataFile, ShownFormat};
use zarrfs_base::error::{Error, ErrorContext, Kind, Result};
use zarrfs_base::json::{self, Map, Object, Value};
use zarrfs_format::metadata::{
    ArrayMetadata, GROUP_DOCUMENT, MAX_DOCUMENT, V1_ATTRS, ZARR_JSON, ZARRAY, ZATTRS, ZGROUP,
};
use zarrfs_store::{Counted, EntryKind, Key, Stat, StoreExt, get_known};

impl Hierarchy {
    /// Returns the `.zarray` of the mounted tree; for a damaged array, the stored document. An
    /// array of v3 has one only in a tree shown as v2.
    pub fn shown_array(&self, key: &Key) -> Result<Option<MetadataDocument>> {
        if self.shows_as_v2(key)? {
            return self.array_as_v2(key);
        }
        let Some(found) = self.array_document(key)? else {
            return Ok(None);
        };
        if !matches!(found.form, DocumentKind::V1 | DocumentKind::V2) {
            return Ok(None);
        }
        let Ok(array) = self.array(key, &found)? else {
            return self.stored(&found.key);
        };
        if found.form == DocumentKind::V1 {
            let text = array.metadata().shown_document().into_bytes();
            return MetadataDocument::made(text, found.stat).map(Some);
        }
        let Some(document) = self.stored(&found.key)? else {
            return Ok(None);
        };
        // the document may have changed since the array was looked up
        let Ok(metadata) = ArrayMetadata::parse(&document.text) else {
            return Ok(Some(document));
        };
        let text = respelled(&found.key, &document.text, |stored| {
            metadata.shown_fields(stored, array.separator())
        })?;
        MetadataDocument::made(text, document.stat).map(Some)
    }

    /// Returns whether the mounted tree shows the document `file` of a usable array at `key` in the
    /// format in which it is stored. The document is not read again.
    pub fn shows_as_stored(&self, key: &Key, file: MetadataFile) -> bool {
        let form = match file {
            MetadataFile::Array => DocumentKind::V2,
            MetadataFile::Zarr => DocumentKind::V3,
            _ => return false,
        };
        if self.view != ShownFormat::Stored {
            return false;
        }
        let found = self.array_document(key).ok().flatten();
        found
            .is_some_and(|found| found.form == form && matches!(self.array(key, &found), Ok(Ok(_))))
    }

    /// Returns the `.zattrs` of a group or array as stored. A node of v3 has one only in a tree
    /// shown as v2.
    pub fn shown_attributes(&self, key: &Key) -> Result<Option<MetadataDocument>> {
        if self.shows_as_v2(key)? {
            return self.attributes_as_v2(key);
        }
        let document = self.attributes_key(key);
        if document.name() == ZARR_JSON {
            Ok(None)
        } else {
            self.stored(&document)
        }
    }

    /// Returns the stat of the `.zattrs` of a group or array, if there is one.
    ///
    /// # Errors
    ///
    /// The document cannot be read, is not a regular file, or is too large.
    pub fn attributes_stat(&self, key: &Key) -> Result<Option<Stat>> {
        if self.shows_as_v2(key)? {
            let document = self.attributes_as_v2(key)?;
            return Ok(document.map(|document| Stat {
                size: document.text.len() as u64,
                ..document.stat
            }));
        }
        let document = self.attributes_key(key);
        if document.name() == ZARR_JSON {
            return Ok(None);
        }
        let stat = self.stat_or_read(&document, false)?;
        match stat {
            Some(stat) if stat.kind != EntryKind::Value => {
                Err(Error::damaged("is not a regular file").context(document))
            }
            Some(stat) if stat.size > MAX_DOCUMENT => {
                let why = format!(
                    "{} bytes, more than the {MAX_DOCUMENT} it may have",
                    stat.size
                );
                Err(Error::damaged(why).context(document))
            }
            stat => Ok(stat),
        }
    }

    /// Returns the stats of the documents of the group or array at `key`.
    ///
    /// # Errors
    ///
    /// The store fails.
    pub fn document_stats(&self, key: &Key) -> Result<Vec<Stat>> {
        let document = key.join(ZARR_JSON);
        if self.store.concurrency() == 1
            && self.known_stat(&document).is_none()
            && let Some(stats) = self.documents_together(key)?
        {
            return Ok(stats);
        }
        if let Some(stat) = self.stat(&document)? {
            return Ok(vec![stat]);
        }
        let found = self.array_document(key)?;
        let attributes = match found.as_ref().map(|found| found.form) {
            Some(DocumentKind::V1) => V1_ATTRS,
            _ => ZATTRS,
        };
        let of_node = match found {
            Some(found) => Some(found.stat),
            None => self.stat(&key.join(ZGROUP))?,
        };
        let of_attributes = self.stat(&key.join(attributes))?;
        Ok(of_node.into_iter().chain(of_attributes).collect())
    }

    /// Returns the stats of the documents of a node of v3 or an array of v2, which one call of the
    /// store finds; `None` if neither is at `key`.
    fn documents_together(&self, key: &Key) -> Result<Option<Vec<Stat>>> {
        let keys = [ZARR_JSON, ZARRAY, ZATTRS].map(|name| key.join(name));
        let mut asked = keys.iter();
        let mut stats = Vec::new();
        self.store
            .stat_many(&mut keys.iter().cloned(), &mut |stat| {
                let name = asked.next().unwrap_or(key);
                stats.push(stat.context(name));
                true
            });
        let mut stats = stats.into_iter();
        let mut next = || stats.next().transpose().map(Option::flatten);
        if let Some(of_node) = next()? {
            return Ok(Some(vec![of_node]));
        }
        let Some(of_array) = next()? else {
            return Ok(None);
        };
        Ok(Some([of_array].into_iter().chain(next()?).collect()))
    }

    /// Returns the key of the document that defines the array at `key`: `.zarray` unless another
    /// one is found.
    pub fn array_document_key(&self, key: &Key) -> Key {
        let found = self.array_document(key).ok().flatten();
        found.map_or_else(|| key.join(ZARRAY), |found| found.key)
    }

    /// Returns the key of the document with the attributes of the group or array at `key`.
    pub fn attributes_key(&self, key: &Key) -> Key {
        if matches!(self.v3_document(key), Ok(Some(_))) {
            return key.join(ZARR_JSON);
        }
        let v1 =
            matches!(self.array_document(key), Ok(Some(found)) if found.form == DocumentKind::V1);
        key.join(if v1 { V1_ATTRS } else { ZATTRS })
    }

    /// Returns the `.zgroup` of a group, as stored or generated. Groups of v3 have none, nor do
    /// directories of other programs, at or below a name that begins with a dot, and those that
    /// this mount has made.
    pub fn shown_group(&self, key: &Key) -> Result<Option<MetadataDocument>> {
        if self.shows_as_v2(key)? {
            return self.group_as_v2(key);
        }
        if self.is_v3(key)? {
            return Ok(None);
        }
        if let Some(document) = self.stored(&key.join(ZGROUP))? {
            return Ok(Some(document));
        }
        let stat = self.implicit_group(key, DocumentFormat::V2)?;
        stat.map(|stat| MetadataDocument::made(GROUP_DOCUMENT.into(), stat))
            .transpose()
    }

    /// Returns whether a document of a group, or the `zarr.json` of an array, is stored at `key`.
    ///
    /// # Errors
    ///
    /// The store fails.
    pub fn has_stored_group(&self, key: &Key) -> Result<bool> {
        Ok(self.v3_document(key)?.is_some() || self.stat(&key.join(ZGROUP))?.is_some())
    }

    /// Returns the attributes of a group or array. They are empty if there is no document, and if
    /// it is inaccessible or not a JSON object, which is recorded as a problem.
    ///
    /// # Errors
    ///
    /// The store fails to return the document.
    pub fn attributes(&self, key: &Key) -> Result<Object> {
        let document = self.attributes_key(key);
        let stored = if document.name() == ZARR_JSON {
            self.v3_attributes(&document)
        } else {
            self.stored(&document)
        };
        let attributes = match stored {
            Ok(Some(stored)) => json::parse_object(&stored.text).context(&document),
            Ok(None) => Ok(Object::default()),
            Err(e) => Err(e),
        };
        match attributes {
            Ok(attributes) => Ok(attributes),
            // transient: the caller must not continue as if there were no attributes
            Err(e)
                if [libc::EIO, libc::ENOMEM]
                    .map(Kind::System)
                    .contains(&e.kind()) =>
            {
                Err(e)
            }
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
        let stat = self.stat(key)?;
        if let Some(stat) = &stat
            && stat.size <= limit
            && let Some(text) = self.text_read(key, stat)
        {
            return MetadataDocument::made(text, stat.clone()).map(Some);
        }
        let Some(Counted {
            bytes: text,
            stat,
            memory,
        }) = get_known(self.store(), key, stat, limit).context(key)?
        else {
            return Ok(None);
        };
        self.keep_text(key, &stat, &text);
        Ok(Some(MetadataDocument { text, stat, memory }))
    }
}

/// Returns the document `text`, stored at `key`, with the fields that `change` makes of its fields.
pub(super) fn respelled(
    key: &Key,
    text: &[u8],
    change: impl FnOnce(&Map<String, Value>) -> Map<String, Value>,
) -> Result<Vec<u8>> {
    let stored = json::parse_object(text).context(key)?;
    let fields = Value::Object(change(&stored));
    let text = json::respell(text, &fields);
    Ok(text.unwrap_or_else(|| json::write_pretty(&fields).into_bytes()))
}
