//! A store without listings, as a plain web server is.

use crate::{
    Capabilities, EntryKind, Key, Listing, PagedListing, Readable, Stat, Store, delegate_store,
};
use std::sync::Arc;
use zarrfs_base::error::Result;

/// A read-only view of another store that cannot list keys and does not know prefixes.
pub struct UnlistedStore {
    inner: Arc<dyn Store>,
}

impl UnlistedStore {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn Store>) -> Self {
        UnlistedStore { inner }
    }
}

impl PagedListing for UnlistedStore {}

impl Readable for UnlistedStore {
    delegate_store!(inner: read location hint);

    fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        let stat = self.inner.stat(key)?;
        Ok(stat.filter(|stat| key.is_root() || stat.kind == EntryKind::Value))
    }

    fn list(&self, _prefix: &Key) -> Result<Listing> {
        Ok(Box::new(std::iter::empty()))
    }

    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities {
            lists_all: false,
            ..Capabilities::default()
        }
    }
}

impl Store for UnlistedStore {}
