//! Puts a node in the place of another one. This module must not know who uses either of them.
//!
//! Invariant: in a store of files, whenever the process ends, the name has the old node or the new
//! one. A store without renames has neither until the document of the new group is put, last.

use super::{Ingest, remove_keys};
use crate::array::hierarchy::OWN;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use zarrfs_base::error::{ErrorContext, Kind, Result};
use zarrfs_store::{Key, Store, StoreExt};

/// The numbers of hidden prefixes.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// A node that is about to get its name.
pub struct StagedNode<'a> {
    store: &'a Arc<dyn Store>,
    key: &'a Key,
    /// The file that becomes the node; `None` for an empty prefix.
    by: Option<&'a Ingest<'a>>,
    /// Where the node is made. `None` in a store without renames, which makes it in its place.
    hidden: Option<HiddenPrefix<'a>>,
}

/// A prefix that no program sees. Dropping it removes everything in it.
struct HiddenPrefix<'a> {
    store: &'a Arc<dyn Store>,
    prefix: Key,
    new: Key,
}

impl<'a> StagedNode<'a> {
    /// Makes a node, or without a file an empty prefix, which shall be at `key`. The node there
    /// stays.
    ///
    /// # Errors
    ///
    /// The file cannot be stored: then nothing has changed.
    pub fn make(
        store: &'a Arc<dyn Store>,
        key: &'a Key,
        by: Option<&'a Ingest<'a>>,
    ) -> Result<Self> {
        let hidden = match store.capabilities().local {
            Some(_) => Some(HiddenPrefix::new(store, &key.parent())?),
            None => None,
        };
        match (&hidden, by) {
            (Some(hidden), Some(ingest)) => ingest.store(store, &hidden.new)?,
            (Some(hidden), None) => store.make_prefix(&hidden.new)?,
            (None, Some(ingest)) => ingest.check(store, key)?,
            (None, None) => {}
        }
        Ok(StagedNode {
            store,
            key,
            by,
            hidden,
        })
    }

    /// Puts the node in its place, and removes the one before.
    ///
    /// # Errors
    ///
    /// The store fails; EOPNOTSUPP if its file system cannot exchange two names.
    pub fn take_place(self) -> Result<()> {
        let StagedNode { store, key, by, .. } = self;
        let Some(hidden) = self.hidden else {
            return put_in_place(store, key, by);
        };
        if store.stat(key)?.is_none() {
            return store.rename(&hidden.new, key).context(key);
        }
        match store.exchange(&hidden.new, key) {
            Err(e) if e.kind() == Kind::Unsupported => {
                remove_keys(store, key)?;
                store.rename(&hidden.new, key).context(key)
            }
            exchanged => exchanged.context(key),
        }
    }
}

/// Puts a node where the store has no renames: the old one goes first.
fn put_in_place(store: &Arc<dyn Store>, key: &Key, by: Option<&Ingest>) -> Result<()> {
    remove_keys(store, key)?;
    let Some(ingest) = by else {
        return store.make_prefix(key);
    };
    ingest.store(store, key).inspect_err(|_| {
        if let Err(e) = remove_keys(store, key) {
            log::warn!("{key}: keys of an unfinished group stay: {e}");
        }
    })
}

impl<'a> HiddenPrefix<'a> {
    fn new(store: &'a Arc<dyn Store>, beside: &Key) -> Result<Self> {
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let prefix = beside.join(&format!("{OWN}create-{}-{number}", std::process::id()));
            match store.make_prefix(&prefix) {
                // a process of this number was killed
                Err(e) if e.errno() == libc::EEXIST => {}
                made => {
                    made.context(&prefix)?;
                    let new = prefix.join("new");
                    return Ok(HiddenPrefix { store, prefix, new });
                }
            }
        }
    }
}

impl Drop for HiddenPrefix<'_> {
    fn drop(&mut self) {
        if let Err(e) = remove_keys(self.store, &self.prefix) {
            log::warn!("{}: may be deleted: {e}", self.prefix);
        }
    }
}
