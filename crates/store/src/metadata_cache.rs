//! Caches the answers of a remote store for a limited time: metadata of keys, including missing
//! ones, listings of levels, and small values. A value is cached only if its metadata was requested
//! before it, since a program that reads millions of chunks once would evict everything else.

use super::level::KnownNames;
use super::{
    ByteRange, Capabilities, Entry, EntryKind, Hint, Key, Listing, NameChange, PagedListing, Reach,
    Readable, Replaces, Stat, Store, StoreExt, ValuePiece, Version, stat_many_with,
};
use contents::{KeyChange, ListingRun, MAX_NAMES, SharedContents};
use std::sync::Arc;
use std::time::Duration;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory::{self, lock};

mod bounded_map;
mod contents;
mod pending;
mod prefetch;
mod snapshot;

/// The change of a key whose value was put.
const PUT: KeyChange = KeyChange::Present(EntryKind::Value);

/// Maximum size of a cached value in bytes.
const MAX_VALUE: usize = 64 << 10;

/// A store with a cache of metadata and small values in memory.
pub struct MetadataCache {
    below: Arc<dyn PagedListing>,
    contents: Arc<SharedContents>,
}

impl MetadataCache {
    /// Creates a cache over `below` whose entries live for `ttl`, or forever. [`Hint::Forget`]
    /// invalidates them earlier.
    pub fn new(below: Arc<dyn PagedListing>, ttl: Option<Duration>) -> Self {
        let contents = Arc::new(SharedContents::new(ttl));
        memory::register(&contents);
        MetadataCache { below, contents }
    }

    /// Sets the names of documents. A node has several or none of them: one listing of its level
    /// shows which exist.
    pub fn with_documents(self, documents: &'static [&'static str]) -> Self {
        lock(&self.contents).set_documents(documents);
        self
    }

    /// Streams the names of a cached level. Their metadata stays valid as long as a program
    /// iterates over them.
    fn listed(&self, prefix: Key, names: Arc<KnownNames>, run: Arc<ListingRun>) -> Listing {
        let contents = self.contents.clone();
        let mut next = 0;
        Box::new(std::iter::from_fn(move || {
            let entry = names.entries.get(next)?.clone();
            next += 1;
            if let Some(Some(stat)) = names.stat(&entry.name) {
                lock(&contents).record(prefix.join(&entry.name), stat, &run);
            }
            Some(Ok(entry))
        }))
    }

    /// Requests the first names of a level and caches them. Returns `None` if a request for a
    /// single key costs less.
    fn first_names_of(&self, level: &Key) -> Result<Option<Arc<KnownNames>>> {
        let run = lock(&self.contents).begin_listing(level);
        let Some(first) = self.below.first_names(level)? else {
            return Ok(None);
        };
        let names = Arc::new(KnownNames::new(first.entries, first.reach));
        lock(&self.contents).insert_listing(&run, names.clone());
        Ok(Some(names))
    }

    /// Requests the first names of a level, unless they are known.
    fn cache_level(&self, level: &Key) -> Result<()> {
        let is_unknown = lock(&self.contents).is_unknown_level(level);
        if is_unknown {
            self.first_names_of(level)?;
        }
        Ok(())
    }

    /// Records a change of `key` that this mount has tried to make. If it failed it may have taken
    /// effect.
    fn changed<T>(&self, key: &Key, tried: &Result<T>, change: KeyChange) {
        lock(&self.contents).changed(
            key,
            if tried.is_ok() {
                change
            } else {
                KeyChange::Unknown
            },
        );
    }

    /// Records a change of `key` like [`Self::changed`], and that all keys below it may have
    /// changed.
    fn changed_below<T>(&self, key: &Key, tried: &Result<T>, change: KeyChange) {
        lock(&self.contents).forget(key);
        self.changed(key, tried, change);
    }

    /// Records the result of a put of `key` that has conditions.
    fn put_if_matched(&self, key: &Key, put: &Result<Option<Version>>) {
        let is_put = matches!(put, Ok(Some(_)));
        self.changed(key, put, if is_put { PUT } else { KeyChange::Unknown });
    }

    /// Reads a whole value, from the cache if its metadata there is valid.
    fn read_whole(&self, key: &Key, limit: u64, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        let known = {
            let mut contents = lock(&self.contents);
            match contents.stat_to_read(key) {
                Some(None) => return Ok(None),
                Some(Some(stat)) => {
                    if let Some(bytes) = contents
                        .value(key, &stat.version)
                        .filter(|bytes| bytes.len() as u64 <= limit)
                    {
                        value.clear();
                        value.extend_from_slice(bytes);
                        return Ok(Some(stat));
                    }
                    Some(stat.version)
                }
                None => None,
            }
        };
        let read = self.below.read(key, &ByteRange::Whole(limit), value)?;
        if let Some(known) = known {
            let mut contents = lock(&self.contents);
            match &read {
                Some(stat) if stat.version.may_equal(&known) => {
                    contents.restate(key, &stat.version);
                }
                _ => contents.changed(key, KeyChange::Unknown),
            }
            if let Some(stat) = &read {
                contents.insert_value(key, stat.version.clone(), value);
            }
        }
        Ok(read)
    }
}

impl Readable for MetadataCache {
    fn below(&self) -> Option<&dyn Store> {
        Some(&*self.below)
    }

    fn read(&self, key: &Key, range: &ByteRange, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        match range {
            ByteRange::Whole(limit) => self.read_whole(key, *limit, value),
            ByteRange::Bounded(_) => self.below.read(key, range, value),
            ByteRange::Suffix(_) => {
                let is_absent = matches!(lock(&self.contents).stat_to_read(key), Some(None));
                if is_absent {
                    Ok(None)
                } else {
                    self.below.read(key, range, value)
                }
            }
        }
    }

    fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        let unknown = {
            let mut contents = lock(&self.contents);
            if let Some(stat) = contents.stat(key) {
                return Ok(stat);
            }
            contents.unknown_level(key)
        };
        if let Some(level) = unknown
            && let Some(names) = self.first_names_of(&level)?
            && let Some(stat) = names.stat(key.name())
        {
            return Ok(stat);
        }
        if let Some(result) = prefetch::revalidate_documents(self, key) {
            return result;
        }
        loop {
            let (pending, is_sender, is_no_prefix) = {
                let mut contents = lock(&self.contents);
                if let Some(stat) = contents.stat(key) {
                    return Ok(stat);
                }
                let (pending, is_sender) = contents.request(key);
                (
                    pending,
                    is_sender,
                    contents.expires() && contents.is_missing_prefix(key),
                )
            };
            if !is_sender {
                match pending.wait() {
                    Some(result) => return result,
                    None => continue,
                }
            }
            let sender = pending.sender();
            let result = if is_no_prefix {
                // a server has to look for a prefix by a request of its own
                self.below.get_range(key, 0..0, &mut Vec::new())
            } else {
                self.below.stat(key)
            };
            lock(&self.contents).finish(key, &pending, result.as_ref().ok());
            sender.finish(result.clone());
            return result;
        }
    }

    fn stat_many(
        &self,
        keys: &mut dyn Iterator<Item = Key>,
        each: &mut dyn FnMut(Result<Option<Stat>>) -> bool,
    ) {
        let mut cached = |key: &Key| lock(&self.contents).stat(key).map(Ok);
        stat_many_with(self.below.as_ref(), keys, &mut cached, each);
    }

    fn list(&self, prefix: &Key) -> Result<Listing> {
        // names that an incomplete listing lacks may exist
        if !self.below.lists_all() {
            return self.below.list(prefix);
        }
        if lock(&self.contents).is_missing_prefix(prefix) {
            return Err(Error::not_found("no such prefix"));
        }
        self.cache_level(prefix)?;
        let run = {
            let mut contents = lock(&self.contents);
            if let Some((names, run)) = contents.listing(prefix) {
                return Ok(self.listed(prefix.clone(), names, run));
            }
            contents.begin_listing(prefix)
        };
        let names = self.below.list(prefix)?;
        Ok(Box::new(RecordedListing {
            names,
            run,
            contents: self.contents.clone(),
            entries: Some(Vec::new()),
        }))
    }

    fn hint(&self, hint: Hint) {
        match hint {
            Hint::WholeStore => {
                snapshot::take(self.below.as_ref(), &Key::root(), true, &self.contents)
            }
            Hint::Below(prefix) => {
                let is_known = lock(&self.contents).knows_levels(prefix);
                if !is_known {
                    snapshot::take(self.below.as_ref(), prefix, false, &self.contents);
                }
            }
            Hint::Level(level) => drop(self.cache_level(level)),
            Hint::Nodes(prefixes) => prefetch::prefetch(self, prefixes),
            Hint::Forget(prefix) | Hint::ForgetDocuments(prefix) => {
                lock(&self.contents).forget(prefix);
                self.below.hint(hint);
            }
        }
    }

    /// Passes on no local files, since changes through them would bypass the cache.
    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities {
            local: None,
            ..self.below.capabilities()
        }
    }

    fn location(&self) -> String {
        self.below.location()
    }
}

impl Store for MetadataCache {
    fn put_pieces(
        &self,
        key: &Key,
        pieces: &[ValuePiece],
        replaces: Replaces,
    ) -> Result<Option<Version>> {
        let put = self.below.put_pieces(key, pieces, replaces);
        self.put_if_matched(key, &put);
        if let [ValuePiece::Bytes(value)] = pieces
            && let Ok(Some(version)) = &put
        {
            lock(&self.contents).update_value(key, version, value);
        }
        put
    }

    fn change(&self, change: NameChange) -> Result<bool> {
        let moved = match change {
            NameChange::Rename(from, _) => lock(&self.contents).listed_kind(from),
            _ => None,
        };
        let changed = self.below.change(change);
        match change {
            NameChange::Delete(key) => self.changed(key, &changed, KeyChange::Absent),
            NameChange::MakePrefix(key) => {
                self.changed(key, &changed, KeyChange::Present(EntryKind::Prefix));
                if changed.is_ok() {
                    let mut contents = lock(&self.contents);
                    let run = contents.begin_listing(key);
                    let names = Arc::new(KnownNames::new(Vec::new(), Reach::All));
                    contents.insert_listing(&run, names);
                }
            }
            NameChange::RemovePrefix(key) => self.changed_below(key, &changed, KeyChange::Absent),
            NameChange::Rename(from, to) if moved == Some(EntryKind::Value) => {
                self.changed(from, &changed, KeyChange::Absent);
                self.changed(to, &changed, PUT);
            }
            NameChange::Rename(from, to) => {
                self.changed_below(from, &changed, KeyChange::Absent);
                let kind = moved.map_or(KeyChange::Unknown, KeyChange::Present);
                self.changed_below(to, &changed, kind);
            }
        }
        changed
    }
}

/// A listing whose names are cached as they arrive.
struct RecordedListing {
    names: Listing,
    run: Arc<ListingRun>,
    contents: Arc<SharedContents>,
    /// All names so far; `None` if there are too many to cache, or after an error.
    entries: Option<Vec<Entry>>,
}

impl Iterator for RecordedListing {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.names.next();
        match &next {
            Some(Ok(entry)) => {
                let stat = entry
                    .stat
                    .clone()
                    .or_else(|| (entry.kind == EntryKind::Prefix).then(Stat::prefix));
                if let Some(stat) = stat {
                    let key = self.run.prefix.join(&entry.name);
                    lock(&self.contents).record(key, stat, &self.run);
                }
                match &mut self.entries {
                    Some(entries) if entries.len() < MAX_NAMES => entries.push(entry.clone()),
                    entries => *entries = None,
                }
            }
            Some(Err(_)) => self.entries = None,
            None => {
                if let Some(entries) = self.entries.take() {
                    let names = Arc::new(KnownNames::new(entries, Reach::All));
                    lock(&self.contents).insert_listing(&self.run, names);
                }
            }
        }
        next
    }
}

impl Drop for RecordedListing {
    fn drop(&mut self) {
        self.run.close();
    }
}

#[cfg(test)]
mod tests;
