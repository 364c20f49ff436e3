//! A store in memory.

use super::{Entry, EntryKind, Key, Listing, Replaces, Stat, Store, Version, check_size};
use crate::error::{Error, Result};
use crate::util::memory::lock;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard};
use std::time::SystemTime;

/// A store in memory. Every put creates a new version.
#[derive(Default)]
pub struct MemoryStore {
    /// Protects the whole content.
    levels: Mutex<Levels>,
}

#[derive(Default)]
struct Levels {
    /// Values with their versions.
    values: BTreeMap<String, (Vec<u8>, u64)>,
    /// Prefixes, including empty ones, without the root.
    prefixes: BTreeSet<String>,
    /// Counter that the latest version came from.
    latest: u64,
}

impl Levels {
    fn kind(&self, key: &Key) -> Option<EntryKind> {
        if key.is_root() || self.prefixes.contains(key.as_str()) {
            return Some(EntryKind::Prefix);
        }
        self.values.contains_key(key.as_str()).then_some(EntryKind::Value)
    }

    fn put(&mut self, key: &Key, value: Vec<u8>) -> Result<Version> {
        if self.kind(key) == Some(EntryKind::Prefix) {
            return Err(Error::system(libc::EISDIR));
        }
        let above: Vec<&str> = key.as_str().match_indices('/').map(|(end, _)| &key.as_str()[..end]).collect();
        if above.iter().any(|prefix| self.values.contains_key(*prefix)) {
            return Err(Error::system(libc::ENOTDIR));
        }
        self.prefixes.extend(above.into_iter().map(str::to_string));
        self.latest += 1;
        self.values.insert(key.as_str().to_string(), (value, self.latest));
        Ok(Version::Count(self.latest))
    }

    fn is_empty(&self, prefix: &Key) -> bool {
        let below = format!("{}/", prefix.as_str());
        let first_value = self.values.range(below.clone()..).next().map(|(key, _)| key);
        let first_prefix = self.prefixes.range(below.clone()..).next();
        !first_value.into_iter().chain(first_prefix).any(|key| key.starts_with(&below))
    }

    /// Returns an error unless the prefix above `key` exists.
    fn check_parent(&self, key: &Key) -> Result<()> {
        match self.kind(&key.parent()) {
            Some(EntryKind::Prefix) => Ok(()),
            Some(_) => Err(Error::system(libc::ENOTDIR)),
            None => Err(Error::not_found("no such prefix")),
        }
    }

    /// Returns an error unless `from` can replace `to`.
    fn check_rename(&self, from: &Key, to: &Key) -> Result<()> {
        self.check_parent(to)?;
        let is_prefix = match self.kind(from) {
            None => return Err(Error::not_found("no such key")),
            Some(kind) => kind == EntryKind::Prefix,
        };
        if is_prefix && from != to && to.relative_to(from).is_some() {
            return Err(Error::system(libc::EINVAL));
        }
        match self.kind(to) {
            Some(EntryKind::Prefix) if !is_prefix => Err(Error::system(libc::EISDIR)),
            Some(EntryKind::Prefix) if from != to && !self.is_empty(to) => Err(Error::system(libc::ENOTEMPTY)),
            Some(EntryKind::Value) if is_prefix => Err(Error::system(libc::ENOTDIR)),
            _ => Ok(()),
        }
    }
}

impl MemoryStore {
    fn lock(&self) -> MutexGuard<'_, Levels> {
        lock(&self.levels)
    }

    /// Sets the value of `key`, a normalized path, as another writer would.
    pub fn insert(&self, key: &str, value: impl Into<Vec<u8>>) {
        // nothing can be set at a prefix or below a value
        let _ = self.lock().put(&Key::root().join(key), value.into());
    }

    /// Removes the value of `key`, a normalized path, as another writer would.
    pub fn remove(&self, key: &str) {
        self.lock().values.remove(key);
    }
}

fn stat_of(bytes: &[u8], count: u64) -> Stat {
    Stat::value(bytes.len() as u64, SystemTime::UNIX_EPOCH, Version::Count(count))
}

impl Store for MemoryStore {
    fn get(&self, key: &Key, limit: u64, value: &mut Vec<u8>) -> Result<Option<Version>> {
        let levels = self.lock();
        let Some((bytes, version)) = levels.values.get(key.as_str()) else { return Ok(None) };
        check_size(bytes.len() as u64, limit)?;
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
        Ok(Some(Stat { size, version, ..stat_of(&[], 0) }))
    }

    fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        let levels = self.lock();
        if let Some((bytes, count)) = levels.values.get(key.as_str()) {
            return Ok(Some(stat_of(bytes, *count)));
        }
        Ok(levels.kind(key).map(|kind| Stat { kind, ..stat_of(&[], 0) }))
    }

    fn list(&self, prefix: &Key) -> Result<Listing> {
        let levels = self.lock();
        if levels.kind(prefix) != Some(EntryKind::Prefix) {
            return Err(Error::not_found("no such prefix"));
        }
        let above = if prefix.is_root() { String::new() } else { format!("{}/", prefix.as_str()) };
        let values = levels.values.iter().map(|(key, (bytes, count))| (key, Some(stat_of(bytes, *count))));
        let all = values.chain(levels.prefixes.iter().map(|key| (key, None)));
        let below = all.filter_map(|(key, stat)| Some((key.strip_prefix(&above)?, stat)));
        let entries = below.filter(|(name, _)| !name.contains('/')).map(|(name, stat)| {
            let kind = if stat.is_some() { EntryKind::Value } else { EntryKind::Prefix };
            Entry { name: name.to_string(), kind, stat }
        });
        let entries: Vec<Entry> = entries.collect();
        Ok(Box::new(entries.into_iter().map(Ok)))
    }

    fn location(&self) -> String {
        "memory:".to_string()
    }

    fn is_writable(&self) -> bool {
        true
    }

    fn put(&self, key: &Key, value: &[u8]) -> Result<Version> {
        self.lock().put(key, value.to_vec())
    }

    fn put_if(&self, key: &Key, value: &[u8], replaces: Replaces) -> Result<Option<Version>> {
        let mut levels = self.lock();
        let there = levels.values.get(key.as_str()).map(|(_, count)| Version::Count(*count));
        let is_satisfied = match replaces {
            Replaces::Anything => true,
            Replaces::Nothing => there.is_none(),
            Replaces::Version(version) => there.as_ref() == Some(version),
        };
        if is_satisfied { levels.put(key, value.to_vec()).map(Some) } else { Ok(None) }
    }

    fn delete(&self, key: &Key) -> Result<bool> {
        let mut levels = self.lock();
        match levels.kind(key) {
            Some(EntryKind::Prefix) => Err(Error::system(libc::EISDIR)),
            _ => Ok(levels.values.remove(key.as_str()).is_some()),
        }
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn make_prefix(&self, key: &Key) -> Result<()> {
        let mut levels = self.lock();
        levels.check_parent(key)?;
        match levels.kind(key) {
            Some(_) => Err(Error::system(libc::EEXIST)),
            None => {
                levels.prefixes.insert(key.as_str().to_string());
                Ok(())
            }
        }
    }

    fn remove_prefix(&self, key: &Key) -> Result<()> {
        let mut levels = self.lock();
        match levels.kind(key) {
            None => Err(Error::not_found("no such prefix")),
            Some(EntryKind::Prefix) if !levels.is_empty(key) => Err(Error::system(libc::ENOTEMPTY)),
            Some(EntryKind::Prefix) => {
                levels.prefixes.remove(key.as_str());
                Ok(())
            }
            Some(_) => Err(Error::system(libc::ENOTDIR)),
        }
    }

    fn rename(&self, from: &Key, to: &Key) -> Result<()> {
        let mut levels = self.lock();
        levels.check_rename(from, to)?;
        let moved = |key: &str| Some(Key::root().join(key).moved(from, to)?.as_str().to_string());
        let values = std::mem::take(&mut levels.values);
        // the value at `to` is replaced: the moved values are inserted last
        let (below, rest): (BTreeMap<_, _>, _) = values.into_iter().partition(|(key, _)| moved(key).is_some());
        levels.values = rest;
        levels.values.extend(below.into_iter().filter_map(|(key, value)| Some((moved(&key)?, value))));
        let prefixes = std::mem::take(&mut levels.prefixes);
        levels.prefixes = prefixes.into_iter().map(|key| moved(&key).unwrap_or(key)).collect();
        Ok(())
    }
}
