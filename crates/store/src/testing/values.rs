//! Short calls for tests that read values.

use crate::{Key, Store, StoreExt};
use std::ops::Range;
use zarrfs_base::error::Result;

/// Returns the key of a path.
pub fn key(path: &str) -> Key {
    Key::normalize(path).unwrap()
}

/// Returns the value at a path.
pub fn get(store: &dyn Store, path: &str) -> Result<Option<Vec<u8>>> {
    let mut value = b"former content".to_vec();
    Ok(store.get(&key(path), 1 << 20, &mut value)?.map(|_| value))
}

/// Returns the bytes of `range` of the value at a path.
pub fn part(store: &dyn Store, path: &str, range: Range<u64>) -> Result<Option<Vec<u8>>> {
    let mut value = b"former content".to_vec();
    Ok(store
        .get_range(&key(path), range, &mut value)?
        .map(|_| value))
}
