//! Values that are made once for each shape of chunks or shards, when first needed. The module does
//! not know the values.

use lru::LruCache;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use zarrfs_base::error::Result;
use zarrfs_base::memory::lock;

/// Maximum number of values kept, those used last: bounds memory.
const MAX_KEPT: NonZeroUsize = NonZeroUsize::new(256).unwrap();

/// A map from shapes, in items, to values.
pub struct ByShape<T> {
    /// Protects the map.
    kept: Mutex<LruCache<Vec<u64>, Arc<T>>>,
}

impl<T> Default for ByShape<T> {
    fn default() -> Self {
        // most arrays need no entry: the map allocates nothing while it is empty
        let mut kept = LruCache::unbounded();
        kept.resize(MAX_KEPT);
        ByShape {
            kept: Mutex::new(kept),
        }
    }
}

impl<T> ByShape<T> {
    /// Returns the value kept for `shape`, or makes it with `make` and keeps it.
    ///
    /// # Errors
    ///
    /// The errors of `make`.
    pub fn get_or_make(&self, shape: &[u64], make: impl FnOnce() -> Result<T>) -> Result<Arc<T>> {
        if let Some(kept) = lock(&self.kept).get(shape) {
            return Ok(kept.clone());
        }
        let made = Arc::new(make()?);
        lock(&self.kept).put(shape.to_vec(), made.clone());
        Ok(made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zarrfs_base::error::Error;

    #[test]
    fn values_are_made_once_and_errors_are_not_kept() {
        let values = ByShape::default();
        assert!(
            values
                .get_or_make(&[1], || Err(Error::system(libc::EIO)))
                .is_err()
        );
        assert_eq!(*values.get_or_make(&[1], || Ok(1)).unwrap(), 1);
        assert_eq!(*values.get_or_make(&[1], || Ok(2)).unwrap(), 1);
        for len in 0..2 * MAX_KEPT.get() as u64 {
            values.get_or_make(&[2, len], || Ok(3)).unwrap();
            assert!(lock(&values.kept).len() <= MAX_KEPT.get());
            assert_eq!(
                *values.get_or_make(&[1], || Ok(2)).unwrap(),
                1,
                "one that is in use stays"
            );
        }
    }
}
