//! A store in memory, for tests.

use super::{Entry, EntryKind, Key, Listing, Stat, Store, Version};
use crate::error::{Error, Result};
use crate::memory::lock;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard};
use std::time::SystemTime;

/// Values with their versions, and the latest version given.
type Values = (BTreeMap<String, (Vec<u8>, u64)>, u64);

/// A store in memory. Every put gives its key a new version.
#[derive(Default)]
pub struct MemoryStore {
    /// Protects the whole map.
    values: Mutex<Values>,
}

impl MemoryStore {
    fn lock(&self) -> MutexGuard<'_, Values> {
        lock(&self.values)
    }

    /// Sets the value of `key`, a normalised path.
    pub fn put(&self, key: &str, value: impl Into<Vec<u8>>) {
        let mut values = self.lock();
        values.1 += 1;
        let version = values.1;
        values.0.insert(key.to_string(), (value.into(), version));
    }

    /// Removes `key`.
    pub fn delete(&self, key: &str) {
        self.lock().0.remove(key);
    }
}

impl Store for MemoryStore {
    fn get(&self, key: &Key, limit: u64, value: &mut Vec<u8>) -> Result<Option<Version>> {
        let values = self.lock();
        let Some((bytes, version)) = values.0.get(key.as_str()) else { return Ok(None) };
        if bytes.len() as u64 > limit {
            return Err(Error::damaged(format!("{} bytes, more than {limit}", bytes.len())));
        }
        value.clear();
        value.extend_from_slice(bytes);
        Ok(Some(Version::Count(*version)))
    }

    fn get_range(&self, key: &Key, range: Range<u64>, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        let Some(version) = self.get(key, u64::MAX, value)? else { return Ok(None) };
        let size = value.len() as u64;
        let end = range.end.min(size) as usize;
        value.truncate(end);
        value.drain(..(range.start as usize).min(end));
        Ok(Some(Stat { kind: EntryKind::Value, size, modified: SystemTime::UNIX_EPOCH, version }))
    }

    fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        let values = self.lock();
        let stat =
            |kind, size, count| Stat { kind, size, modified: SystemTime::UNIX_EPOCH, version: Version::Count(count) };
        if let Some((bytes, count)) = values.0.get(key.as_str()) {
            return Ok(Some(stat(EntryKind::Value, bytes.len() as u64, *count)));
        }
        let prefix = format!("{}/", key.as_str());
        let below =
            key.is_root() || values.0.range(prefix.clone()..).next().is_some_and(|(k, _)| k.starts_with(&prefix));
        Ok(below.then(|| stat(EntryKind::Prefix, 0, 0)))
    }

    fn list(&self, prefix: &Key) -> Result<Listing> {
        let prefix = if prefix.is_root() { String::new() } else { format!("{}/", prefix.as_str()) };
        let values = self.lock();
        let below = values.0.keys().filter_map(|k| k.strip_prefix(&prefix));
        let entries: BTreeSet<(String, bool)> = below
            .map(|k| k.split_once('/').map_or((k.to_string(), false), |(name, _)| (name.to_string(), true)))
            .collect();
        Ok(Box::new(entries.into_iter().map(|(name, is_prefix)| {
            Ok(Entry { name, kind: if is_prefix { EntryKind::Prefix } else { EntryKind::Value } })
        })))
    }

    fn location(&self) -> String {
        "memory:".to_string()
    }
}
