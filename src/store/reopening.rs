//! A value of another store that is opened as a store itself, and opened again after another writer
//! has replaced it. This module does not know how the value is opened.

use crate::error::Result;
use crate::util::memory::lock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// The current state of a value that may be replaced.
pub(super) struct Reopening<T> {
    /// Protects the current state; it is not held while the value is read.
    current: RwLock<Arc<T>>,
    /// Held while the value is opened again, so that only one thread does so.
    opening: Mutex<()>,
    /// Number of calls of [`Reopening::forget`].
    forgotten: AtomicU64,
    /// Number of those calls when the version of the value was last checked.
    asked: AtomicU64,
}

impl<T> Reopening<T> {
    /// Returns a value in its first state.
    pub fn new(first: T) -> Self {
        Reopening {
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

    /// Returns the current state: opens the value again unless `is_current` confirms the last known
    /// one.
    ///
    /// # Errors
    ///
    /// The errors of the two functions.
    pub fn fresh(
        &self,
        is_current: impl FnOnce(&T) -> Result<bool>,
        open: impl FnOnce() -> Result<T>,
    ) -> Result<Arc<T>> {
        let forgotten = self.forgotten.load(Ordering::Acquire);
        let last = self.current();
        let fresh = if is_current(&last)? {
            last
        } else {
            self.reopen(&last, open)?
        };
        self.asked.fetch_max(forgotten, Ordering::AcqRel);
        Ok(fresh)
    }

    /// Returns whether the version was checked since the last call of [`Reopening::forget`].
    pub fn is_checked(&self) -> bool {
        self.asked.load(Ordering::Acquire) == self.forgotten.load(Ordering::Acquire)
    }

    /// Opens the value again, unless another thread has replaced `old` already.
    pub fn reopen(&self, old: &Arc<T>, open: impl FnOnce() -> Result<T>) -> Result<Arc<T>> {
        let _guard = lock(&self.opening);
        let current = self.current();
        if !Arc::ptr_eq(&current, old) {
            return Ok(current);
        }
        let opened = Arc::new(open()?);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = opened.clone();
        Ok(opened)
    }

    /// Demands that the version is checked before the next read.
    pub fn forget(&self) {
        self.forgotten.fetch_add(1, Ordering::AcqRel);
    }
}
