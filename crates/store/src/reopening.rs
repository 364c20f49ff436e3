//! A value of another store that is opened as a store itself, and opened again after another writer
//! has replaced it. This module does not know how the value is opened.

use super::{Key, Permissions, Stat, Store, StoreExt, Version};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use zarrfs_base::error::{Error, Kind, Result};
use zarrfs_base::memory::lock;

/// What a value holds that was opened.
pub trait OpenedValue {
    /// Returns the metadata of the value.
    fn stat(&self) -> &Stat;
}

/// A value that may be replaced, and its current state.
pub struct Reopening<T> {
    /// The store that holds the value.
    pub below: Arc<dyn Store>,
    /// The key of the value.
    pub key: Key,
    /// Protects the current state; it is not held while the value is read.
    current: RwLock<Arc<T>>,
    /// Held while the value is opened again, so that only one thread does so.
    opening: Mutex<()>,
    /// Number of calls of [`Reopening::forget`].
    forgotten: AtomicU64,
    /// Number of those calls when the version of the value was last checked.
    asked: AtomicU64,
}

impl<T: OpenedValue> Reopening<T> {
    /// Returns the value of `key` in its first state.
    pub fn new(below: Arc<dyn Store>, key: Key, first: T) -> Self {
        Reopening {
            below,
            key,
            current: RwLock::new(Arc::new(first)),
            opening: Mutex::default(),
            forgotten: AtomicU64::new(0),
            asked: AtomicU64::new(0),
        }
    }

    /// Returns the last known state.
    pub fn current(&self) -> Arc<T> {
        self.current
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Returns the current state: opens the value again unless the last known one has the version
    /// that the store reports.
    pub fn fresh(&self, open: impl FnOnce() -> Result<T>) -> Result<Arc<T>> {
        let forgotten = self.forgotten.load(Ordering::Acquire);
        let last = self.current();
        let now = self.below.stat(&self.key).map_err(|e| self.named(e))?;
        let fresh = if now.is_some_and(|now| now.version == last.stat().version) {
            last
        } else {
            self.reopen(&last, open)?
        };
        self.asked.fetch_max(forgotten, Ordering::AcqRel);
        Ok(fresh)
    }

    /// Returns the last known state if its version was checked since the last call of
    /// [`Reopening::forget`], and the current one otherwise.
    pub fn known(&self, open: impl FnOnce() -> Result<T>) -> Result<Arc<T>> {
        if self.asked.load(Ordering::Acquire) == self.forgotten.load(Ordering::Acquire) {
            Ok(self.current())
        } else {
            self.fresh(open)
        }
    }

    /// Opens the value again, unless another thread has replaced `old` already.
    pub fn reopen(&self, old: &Arc<T>, open: impl FnOnce() -> Result<T>) -> Result<Arc<T>> {
        let _guard = lock(&self.opening);
        let current = self.current();
        if !Arc::ptr_eq(&current, old) {
            return Ok(current);
        }
        let opened = Arc::new(open().map_err(|e| self.named(e))?);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = opened.clone();
        Ok(opened)
    }

    /// Demands that the version is checked before the next read.
    pub fn forget(&self) {
        self.below.forget(&self.key);
        self.forgotten.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the location of the value.
    pub fn location(&self) -> String {
        format!(
            "{}{}",
            self.below.location().trim_end_matches('/'),
            self.key
        )
    }

    /// Adds the location to an error. A missing value must not look like a missing key in it.
    pub fn named(&self, e: Error) -> Error {
        present(e).context(self.location())
    }
}

/// Returns the metadata of a prefix in a value of which `value` is the metadata, and whose version
/// is `version` as text. Users who may read the value may search its prefixes.
pub fn prefix_in(value: &Stat, version: &str) -> Stat {
    Stat {
        modified: value.modified,
        version: Version::Tag(version.to_string()),
        permissions: value.permissions.map(Permissions::of_level),
        ..Stat::prefix()
    }
}

/// Returns an error that does not say that a key is missing.
pub fn present(e: Error) -> Error {
    match e.kind() {
        Kind::NotFound | Kind::System(libc::ENOENT | libc::ENOTDIR) => {
            Error::new(Kind::System(libc::EIO), e.message())
        }
        _ => e,
    }
}
