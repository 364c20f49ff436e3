//! A Zarr v1 store turned into v2, in place: new metadata documents, the chunks stay as they are. What v1 made of order F
//! is settled by it: the new document has the order in which the chunks are read.

use super::{ArrayDocument, DocumentKind, Hierarchy};
use crate::array::Array;
use crate::error::{Error, Result};
use crate::store::Key;
use crate::util::json;
use crate::zarr::metadata::{ArrayMetadata, V1_ATTRS, V1_META, ZARRAY, ZATTRS};

impl Hierarchy {
    /// Turns a v1 store into v2, or finishes that where it was interrupted; false if there is nothing to do.
    ///
    /// The store is v1 until `.zarray` is put, and v2 from then on: its `.zattrs` is there already, and of the old
    /// documents, which are plain files by then, `meta` goes last and tells that the rest is still to be done.
    ///
    /// Invariant: what the new documents say, zarr-python reads. Fill values and the dtype are spelled anew, and a codec
    /// that is unknown or attributes that Python's `json` does not read as an object are refused before anything is put.
    /// Attributes are copied byte for byte, as zarr's own `migrate_1to2` does: a bare NaN and a name that comes twice
    /// mean to zarr-python in `.zattrs` what they meant in `attrs`.
    pub fn migrate(&self) -> Result<bool> {
        let root = Key::root();
        let _lock = self.lock_for_change(&[&root])?;
        let (meta, attrs) = (root.join(V1_META), root.join(V1_ATTRS));
        match self.array_document(&root)? {
            Some(ArrayDocument { form: DocumentKind::V1, .. }) => {
                let document = self.stored(&meta)?.ok_or_else(|| Error::not_found("went away").context(&meta))?;
                let metadata = self.metadata(&document.text, DocumentKind::V1).map_err(|e| e.context(&meta))?;
                Array::new(root.clone(), metadata.clone(), self.store.clone(), self.stats.clone())
                    .and_then(|array| array.readable())
                    .map_err(|e| {
                        Error::new(e.kind(), format!("{}; nothing was migrated", e.message())).context(&meta)
                    })?;
                if let Some(attributes) = self.stored(&attrs)? {
                    check_attributes(&attributes.text).map_err(|e| e.context(&attrs))?;
                    self.put(&root.join(ZATTRS), &attributes.text)?;
                }
                self.store.sync()?;
                self.put(&root.join(ZARRAY), metadata.to_v2_document().as_bytes())?;
                self.store.sync()?;
                self.reload(&root)?;
            }
            Some(found) if found.form == DocumentKind::V2 && self.is_half_migrated(&found.key, &meta)? => {}
            _ => return Ok(false),
        }
        self.delete(&attrs)?;
        self.delete(&meta)?;
        self.store.sync()?;
        Ok(true)
    }

    /// True if `meta` is what the v2 document `zarray` was made of; its shape, fill value and order may differ since.
    fn is_half_migrated(&self, zarray: &Key, meta: &Key) -> Result<bool> {
        let (Some(new), Some(old)) = (self.stored(zarray)?, self.stored(meta)?) else { return Ok(false) };
        let parsed = (self.metadata(&new.text, DocumentKind::V2), self.metadata(&old.text, DocumentKind::V1));
        // a file that somebody has called so is none of ours
        let (Ok(new), Ok(old)) = parsed else { return Ok(false) };
        let what =
            |m: &ArrayMetadata| (m.chunks.clone(), m.dtype_json.clone(), m.compressor.clone(), m.filters.clone());
        Ok(what(&new) == what(&old))
    }
}

/// Returns an error unless Python reads `text` as a JSON object.
fn check_attributes(text: &[u8]) -> Result<()> {
    let why = match json::parse(text) {
        Ok(json::Value::Object(_)) => return Ok(()),
        Ok(_) => "not a JSON object".to_string(),
        Err(e) => e.message().to_string(),
    };
    Err(Error::damaged(format!("{why}; mend the attributes first, nothing was migrated")))
}
