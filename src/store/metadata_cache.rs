//! A store that remembers for a while what a far store below it has answered: what stands at a key, that nothing does,
//! the names of a level, and small values. It knows nothing of what the keys mean, and never remembers what was read
//! without being looked at before: those may be millions of values that are read once.

use super::{Entry, EntryKind, Key, Listing, Replaces, Stat, Store, Version, delegate_store, stat_many_with};
use crate::error::Result;
use crate::util::memory::{self, lock};
use flight::Flight;
use known::{Known, Listed, MAX_LISTING};
use std::fs::File;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

mod flight;
mod known;

/// Values of at most so many bytes are remembered.
const SMALL: usize = 64 << 10;

/// A store and what it has answered lately.
pub struct MetadataCache {
    below: Arc<dyn Store>,
    /// Protects everything. It is never held while the store below is asked.
    known: Arc<Mutex<Known>>,
}

impl MetadataCache {
    /// `below`, whose answers are taken as they were for `ttl`, or for ever. [`Store::forget`] ends that.
    pub fn new(below: Arc<dyn Store>, ttl: Option<Duration>) -> Self {
        let known = Arc::new(Mutex::new(Known::new(ttl)));
        memory::register(&known);
        MetadataCache { below, known }
    }

    /// What stands at `key` may be another now, whether the call that was to change it has succeeded or not.
    fn changed(&self, key: &Key, removed: bool) {
        lock(&self.known).changed(key, removed);
    }

    /// The same of everything below.
    fn changed_below(&self, key: &Key) {
        let mut known = lock(&self.known);
        known.forget(key);
        known.changed(key, true);
    }

    /// Keeps a small value that was put, if its key is one whose value is kept.
    fn keep_put(&self, key: &Key, version: &Version, value: &[u8]) {
        let mut known = lock(&self.known);
        if known.has_value(key) {
            known.keep_value(key, version.clone(), value);
        }
    }
}

impl Store for MetadataCache {
    fn get(&self, key: &Key, limit: u64, value: &mut Vec<u8>) -> Result<Option<Version>> {
        let looked_at = {
            let mut known = lock(&self.known);
            match known.stat(key) {
                Some(None) => return Ok(None),
                Some(Some(stat)) => {
                    if let Some(bytes) = known.value(key, &stat.version).filter(|bytes| bytes.len() as u64 <= limit) {
                        value.clear();
                        value.extend_from_slice(bytes);
                        return Ok(Some(stat.version));
                    }
                    Some(stat.version)
                }
                None => None,
            }
        };
        let version = self.below.get(key, limit, value)?;
        if let Some(before) = looked_at {
            let mut known = lock(&self.known);
            if version.as_ref() != Some(&before) {
                known.changed(key, version.is_none());
            }
            if let Some(version) = &version {
                known.keep_value(key, version.clone(), value);
            }
        }
        Ok(version)
    }

    fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        loop {
            let (flight, mine) = {
                let mut known = lock(&self.known);
                if let Some(stat) = known.stat(key) {
                    return Ok(stat);
                }
                known.flight(key)
            };
            if !mine {
                match flight.wait() {
                    Some(answer) => return answer,
                    None => continue,
                }
            }
            let landing = flight.landing();
            let answer = self.below.stat(key);
            lock(&self.known).land(key, &flight, answer.as_ref().ok());
            landing.tell(answer.clone());
            return answer;
        }
    }

    fn stat_many(&self, keys: &mut dyn Iterator<Item = Key>, each: &mut dyn FnMut(Result<Option<Stat>>) -> bool) {
        let mut known = |key: &Key| lock(&self.known).stat(key);
        stat_many_with(self.below.as_ref(), keys, &mut known, each);
    }

    fn list(&self, prefix: &Key) -> Result<Listing> {
        let listed = {
            let mut known = lock(&self.known);
            if let Some(entries) = known.listing(prefix) {
                return Ok(Box::new((0..entries.len()).map(move |i| Ok(entries[i].clone()))));
            }
            known.begin_listing(prefix)
        };
        let names = self.below.list(prefix)?;
        Ok(Box::new(Noting { names, listed, known: self.known.clone(), entries: Some(Vec::new()) }))
    }

    fn forget(&self, prefix: &Key) {
        lock(&self.known).forget(prefix);
        self.below.forget(prefix);
    }

    delegate_store!(below: get_range lists_all concurrency file location space is_writable check_writable lock sync);

    fn put(&self, key: &Key, value: &[u8]) -> Result<Version> {
        let put = self.below.put(key, value);
        self.changed(key, false);
        put.inspect(|version| self.keep_put(key, version, value))
    }

    fn put_if(&self, key: &Key, value: &[u8], replaces: Replaces) -> Result<Option<Version>> {
        let put = self.below.put_if(key, value, replaces);
        self.changed(key, false);
        put.inspect(|version| version.iter().for_each(|version| self.keep_put(key, version, value)))
    }

    fn delete(&self, key: &Key) -> Result<bool> {
        let deleted = self.below.delete(key);
        self.changed(key, true);
        deleted
    }

    fn make_prefix(&self, key: &Key) -> Result<()> {
        let made = self.below.make_prefix(key);
        self.changed(key, false);
        made
    }

    fn remove_prefix(&self, key: &Key) -> Result<()> {
        let removed = self.below.remove_prefix(key);
        self.changed_below(key);
        removed
    }

    fn rename(&self, from: &Key, to: &Key) -> Result<()> {
        let renamed = self.below.rename(from, to);
        self.changed_below(from);
        self.changed_below(to);
        renamed
    }

    fn writable_file(&self, key: &Key, create: bool, exclusive: bool) -> Result<File> {
        let file = self.below.writable_file(key, create, exclusive);
        self.changed(key, false);
        file
    }
}

/// A listing on its way, whose names are noted as they come.
struct Noting {
    names: Listing,
    listed: Arc<Listed>,
    known: Arc<Mutex<Known>>,
    /// All of them so far; None if they are too many to be kept, or not all came.
    entries: Option<Vec<Entry>>,
}

impl Iterator for Noting {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.names.next();
        match &next {
            Some(Ok(entry)) => {
                let stat = entry.stat.clone().or_else(|| (entry.kind == EntryKind::Prefix).then(prefix_stat));
                if let Some(stat) = stat {
                    let key = self.listed.prefix.join(&entry.name);
                    lock(&self.known).note(key, stat, &self.listed);
                }
                match &mut self.entries {
                    Some(entries) if entries.len() < MAX_LISTING => entries.push(entry.clone()),
                    entries => *entries = None,
                }
            }
            Some(Err(_)) => self.entries = None,
            None => {
                if let Some(entries) = self.entries.take() {
                    lock(&self.known).keep_listing(&self.listed, entries);
                }
            }
        }
        next
    }
}

impl Drop for Noting {
    fn drop(&mut self) {
        self.listed.close();
    }
}

/// Of a prefix that only a listing has told of: a server knows no more of it.
fn prefix_stat() -> Stat {
    let version = Version::Tag(String::new());
    Stat { kind: EntryKind::Prefix, size: 0, modified: SystemTime::UNIX_EPOCH, version, permissions: None }
}

#[cfg(test)]
mod tests;
