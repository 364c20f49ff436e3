//! Migrates a Zarr v1 store to v2 in place: writes new metadata documents and leaves the chunks
//! unchanged. The new document states the order in which chunks are read, which settles the
//! ambiguity of order F in v1.

mod to_shards;
mod to_v3;

pub use to_shards::{ShardShape, ShardedCopy};

use super::{ArrayDocument, DocumentKind, Hierarchy};
use crate::array::Array;
use zarrfs_base::error::{Error, ErrorContext, Result};
use zarrfs_base::json;
use zarrfs_format::metadata::{V1_ATTRS, V1_META, ZARRAY, ZATTRS};
use zarrfs_store::Key;

impl Hierarchy {
    /// Migrates a v1 store to v2, or finishes an interrupted migration. Returns false if there is
    /// nothing to do.
    ///
    /// The store is v1 until `.zarray` is put, and v2 from then on. By then `.zattrs` exists, and
    /// the old documents are plain files. `meta` is deleted last: it marks an unfinished migration.
    ///
    /// Invariant: zarr-python can read the new documents. Fill values and the dtype are spelled in
    /// v2's form. An unknown codec, or attributes that Python's `json` does not read as an object,
    /// are refused before anything is put. Attributes are copied byte for byte, as zarr's own
    /// `migrate_1to2` does, so that a bare NaN and duplicate names keep their meaning.
    ///
    /// # Errors
    ///
    /// The v1 documents are refused, or the store fails.
    pub fn migrate(&self) -> Result<bool> {
        let root = Key::root();
        let _lock = self.lock_for_change(&[&root])?;
        let meta = root.join(V1_META);
        let attrs = root.join(V1_ATTRS);
        match self.array_document(&root)? {
            Some(ArrayDocument {
                form: DocumentKind::V1,
                ..
            }) => {
                let document = self
                    .stored(&meta)?
                    .ok_or_else(|| Error::not_found("went away").context(&meta))?;
                let metadata = self
                    .metadata(&document.text, DocumentKind::V1)
                    .context(&meta)?;
                Array::new(
                    root.clone(),
                    metadata.clone(),
                    self.store.clone(),
                    self.stats.clone(),
                )
                .and_then(|array| array.readable())
                .map_err(|e| {
                    Error::new(e.kind(), format!("{}; nothing was migrated", e.message()))
                        .context(&meta)
                })?;
                if let Some(attributes) = self.stored(&attrs)? {
                    check_attributes(&attributes.text).context(&attrs)?;
                    self.put(&root.join(ZATTRS), &attributes.text)?;
                }
                self.store.sync()?;
                self.put(&root.join(ZARRAY), metadata.to_v2_document().as_bytes())?;
                self.store.sync()?;
                self.reload(&root)?;
            }
            Some(found)
                if found.form == DocumentKind::V2
                    && self.is_half_migrated(&found.key, &meta)? => {}
            _ => return Ok(false),
        }
        self.delete(&attrs)?;
        self.delete(&meta)?;
        self.store.sync()?;
        Ok(true)
    }

    /// Returns whether the v2 document `zarray` was made from `meta`; shape, fill value and order
    /// may have changed since.
    fn is_half_migrated(&self, zarray: &Key, meta: &Key) -> Result<bool> {
        let (Some(new), Some(old)) = (self.stored(zarray)?, self.stored(meta)?) else {
            return Ok(false);
        };
        let parsed = (
            self.metadata(&new.text, DocumentKind::V2),
            self.metadata(&old.text, DocumentKind::V1),
        );
        // one of them is a plain file with that name
        let (Ok(new), Ok(old)) = parsed else {
            return Ok(false);
        };
        Ok(new.chunks == old.chunks
            && new.dtype_json == old.dtype_json
            && new.compressor == old.compressor
            && new.filters == old.filters)
    }
}

/// Returns an error unless Python reads `text` as a JSON object.
fn check_attributes(text: &[u8]) -> Result<()> {
    let why = match json::parse(text) {
        Ok(json::Value::Object(_)) => return Ok(()),
        Ok(_) => "not a JSON object".to_string(),
        Err(e) => e.message().to_string(),
    };
    Err(Error::damaged(format!(
        "{why}; repair the attributes first, nothing was migrated"
    )))
}
