//! A map from keys that evicts the least recently used entries.

use crate::Key;
use lru::LruCache;
use std::num::NonZeroUsize;

/// A map with a maximum number of entries and a maximum total size in bytes.
pub(super) struct BoundedMap<V> {
    /// Values with their sizes in bytes.
    entries: LruCache<Key, (V, usize)>,
    /// Total size of the entries in bytes.
    size: usize,
    max_size: usize,
}

impl<V> BoundedMap<V> {
    /// Creates an empty map.
    pub fn new(max_entries: NonZeroUsize, max_size: usize) -> Self {
        BoundedMap {
            entries: LruCache::new(max_entries),
            size: 0,
            max_size,
        }
    }

    /// Returns the total size of the entries in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns the value of `key`, and makes it the most recently used one.
    pub fn get(&mut self, key: &Key) -> Option<&V> {
        self.entries.get(key).map(|(value, _)| value)
    }

    /// Returns the value of `key` to change it. It must keep its size.
    pub fn get_mut(&mut self, key: &Key) -> Option<&mut V> {
        self.entries.get_mut(key).map(|(value, _)| value)
    }

    /// Returns the value of `key`, and does not count as a use.
    pub fn peek(&self, key: &Key) -> Option<&V> {
        self.entries.peek(key).map(|(value, _)| value)
    }

    /// Inserts or replaces a value of `size` bytes, and evicts others as necessary.
    pub fn insert(&mut self, key: Key, value: V, size: usize) {
        self.size += size;
        let mut dropped = self.entries.push(key, (value, size));
        loop {
            self.size -= dropped.map_or(0, |(_, (_, size))| size);
            if self.size <= self.max_size {
                return;
            }
            dropped = self.entries.pop_lru();
        }
    }

    /// Removes a value.
    pub fn remove(&mut self, key: &Key) {
        self.take(key);
    }

    /// Removes a value and returns it.
    pub fn take(&mut self, key: &Key) -> Option<V> {
        let (value, size) = self.entries.pop(key)?;
        self.size -= size;
        Some(value)
    }

    /// Removes all values.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.size = 0;
    }
}
