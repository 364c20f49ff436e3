//! A store that can't list, for tests: another one, of which only the values can be asked for, as a server of plain HTTP
//! gives them.

use super::{EntryKind, Key, Listing, Stat, Store, delegate_store};
use crate::error::Result;
use std::sync::Arc;

/// A store without listings.
pub struct UnlistedStore {
    inner: Arc<dyn Store>,
}

impl UnlistedStore {
    /// The values of `inner`.
    pub fn new(inner: Arc<dyn Store>) -> Self {
        UnlistedStore { inner }
    }
}

impl Store for UnlistedStore {
    delegate_store!(inner: get get_range location forget);

    fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        let stat = self.inner.stat(key)?;
        Ok(stat.filter(|stat| key.is_root() || stat.kind == EntryKind::Value))
    }

    fn list(&self, _prefix: &Key) -> Result<Listing> {
        Ok(Box::new(std::iter::empty()))
    }

    fn lists_all(&self) -> bool {
        false
    }
}
