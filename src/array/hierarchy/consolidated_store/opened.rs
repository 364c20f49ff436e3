//! The groups and arrays whose files were opened: their documents are read from the store, no
//! longer from `.zmetadata`.

use std::collections::HashSet;
use std::sync::Mutex;
use zarrfs_base::memory::lock;
use zarrfs_store::Key;

/// Maximum number of recorded keys. Beyond it, all keys count as opened.
const MAX_KEYS: usize = 1 << 12;

/// The keys of groups and arrays whose files were opened.
pub struct OpenedKeys {
    /// Protects the set alone. `None` stands for all keys.
    keys: Mutex<Option<HashSet<Key>>>,
}

impl OpenedKeys {
    /// Returns an empty set.
    pub fn new() -> Self {
        OpenedKeys {
            keys: Mutex::new(Some(HashSet::new())),
        }
    }

    /// Adds `key` and all keys below it.
    pub fn add(&self, key: &Key) {
        let mut keys = lock(&self.keys);
        let Some(known) = keys.as_mut() else { return };
        known.insert(key.clone());
        if known.len() > MAX_KEYS {
            *keys = None;
        }
    }

    /// Returns whether `key` or a prefix above it was added.
    pub fn contains(&self, key: &Key) -> bool {
        let keys = lock(&self.keys);
        let Some(known) = keys.as_ref() else {
            return true;
        };
        let above = std::iter::successors(Some(key.clone()), |key| {
            (!key.is_root()).then(|| key.parent())
        });
        !known.is_empty() && above.into_iter().any(|key| known.contains(&key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_below_an_opened_prefix_count_as_opened() {
        let opened = OpenedKeys::new();
        let key = |path: &str| Key::normalize(path).unwrap();
        assert!(!opened.contains(&key("a")));
        opened.add(&key("a/b"));
        let found = ["a/b", "a/b/.zarray", "a", "a/bc", ""].map(|path| opened.contains(&key(path)));
        assert_eq!(found, [true, true, false, false, false]);
        (0..=MAX_KEYS).for_each(|i| opened.add(&key(&format!("x/{i}"))));
        assert!(opened.contains(&key("a")));
    }
}
