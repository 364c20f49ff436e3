//! The content of a metadata cache, within bounded memory, and the rules for its validity. This
//! module sends no requests.

use super::MAX_VALUE;
use super::bounded_map::BoundedMap;
use super::pending::PendingStat;
use crate::level::KnownNames;
use crate::{Entry, EntryKind, Key, Reach, Stat, Version};
use lru::LruCache;
use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};
use zarrfs_base::memory::{Grant, Reclaim, lock};

/// Maximum number of keys whose metadata is cached, and its maximum size in bytes.
const MAX_STATS: NonZeroUsize = NonZeroUsize::new(1 << 17).unwrap();
const MAX_STAT_BYTES: usize = 64 << 20;

/// Maximum number of cached values, and their maximum size in bytes.
const MAX_VALUES: NonZeroUsize = NonZeroUsize::new(1 << 14).unwrap();
const MAX_VALUE_BYTES: usize = 16 << 20;

/// Maximum number of levels whose names are cached, and their maximum size in bytes.
const MAX_LISTINGS: NonZeroUsize = NonZeroUsize::new(1 << 14).unwrap();
const MAX_LISTING_BYTES: usize = 16 << 20;

/// Maximum number of names in a cached listing.
pub(super) const MAX_NAMES: usize = 1 << 13;

/// Maximum number of prefixes whose invalidation is recorded. When a record is dropped, all entries
/// from before its invalidation become invalid.
const MAX_FORGOTTEN: NonZeroUsize = NonZeroUsize::new(1 << 12).unwrap();

/// Maximum age of metadata from a listing, unless the time to live is longer. Until then it stays
/// valid while a program goes through the names of the listing, since `ls -l` and `find` call
/// `stat` for each name some time after they listed it.
const LISTING_KEPT: Duration = Duration::from_secs(60);

/// Maximum pause between two of these calls, unless the time to live is longer.
const LISTING_PAUSE: Duration = Duration::from_secs(1);

/// Memory of an entry without the text of its key, name or version, in bytes.
const ENTRY_SIZE: usize = 256;

/// Step by which the grant for memory grows, in bytes.
const GRANT_STEP: usize = 256 << 10;

/// Cached metadata, values and listings.
pub(super) struct CacheContents {
    /// Time to live; `None` is forever.
    ttl: Option<Duration>,
    /// Number of calls of [`Self::forget`]. Answers to requests of an earlier generation may be
    /// invalid.
    generation: u64,
    /// Generation in which each prefix was invalidated.
    forgotten: LruCache<Key, u64>,
    /// Everything up to this generation is invalid.
    all_forgotten: u64,
    stats: BoundedMap<CachedStat>,
    pending: HashMap<Key, Arc<PendingStat>>,
    values: BoundedMap<(Version, Vec<u8>)>,
    listings: BoundedMap<CachedLevel>,
    /// Names of documents. The names of a level tell which of them exist there.
    documents: &'static [&'static str],
    running: Vec<Weak<ListingRun>>,
    /// The prefix whose children, listed together, last took more requests than they save.
    pub dense: Option<Key>,
    /// Memory of stats, values and listings.
    memory: Grant,
}

/// The content, protected. The lock is not held during a request.
pub(super) struct SharedContents(Mutex<CacheContents>);

impl SharedContents {
    pub(super) fn new(ttl: Option<Duration>) -> Self {
        SharedContents(Mutex::new(CacheContents::new(ttl)))
    }
}

impl Deref for SharedContents {
    type Target = Mutex<CacheContents>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Reclaim for SharedContents {
    fn reclaim(&self) {
        if let Ok(mut contents) = self.0.try_lock() {
            contents.clear();
        }
    }
}

/// Metadata of a key; `None` if the key does not exist.
struct CachedStat {
    stat: Option<Stat>,
    generation: u64,
    source: StatSource,
}

/// The source of cached metadata, which determines how long it is valid.
enum StatSource {
    /// A request for this key, which ended at this time.
    Request(Instant),
    /// A listing of the level above.
    Listing(Arc<ListingRun>),
}

/// The names of a level, from a listing.
struct CachedLevel {
    run: Arc<ListingRun>,
    /// Arrival of the last answer.
    ended: Instant,
    names: Arc<KnownNames>,
    /// Whether the names are part of a snapshot. Then names that are not among them do not exist.
    is_snapshot: bool,
}

/// What is known after a change of a key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyChange {
    /// Something of this kind exists.
    Present(EntryKind),
    /// Nothing exists.
    Absent,
    /// The change failed and may have taken effect, or another program made it.
    Unknown,
}

/// A listing that is running or has ended.
pub(super) struct ListingRun {
    /// The prefix that is listed.
    pub prefix: Key,
    generation: u64,
    began: Instant,
    /// Protects the time of the latest use.
    used: Mutex<Instant>,
    /// Whether the listing has ended, or the level has changed since the listing began. Names that
    /// arrive later may be stale and are not cached.
    is_closed: AtomicBool,
}

impl CacheContents {
    /// Creates an empty cache whose entries live for `ttl`, or forever.
    pub fn new(ttl: Option<Duration>) -> Self {
        CacheContents {
            ttl,
            generation: 1,
            forgotten: LruCache::new(MAX_FORGOTTEN),
            all_forgotten: 0,
            stats: BoundedMap::new(MAX_STATS, MAX_STAT_BYTES),
            pending: HashMap::new(),
            values: BoundedMap::new(MAX_VALUES, MAX_VALUE_BYTES),
            listings: BoundedMap::new(MAX_LISTINGS, MAX_LISTING_BYTES),
            documents: &[],
            running: Vec::new(),
            dense: None,
            memory: Grant::default(),
        }
    }

    /// Sets the names of documents.
    pub fn set_documents(&mut self, documents: &'static [&'static str]) {
        self.documents = documents;
    }

    /// Returns whether entries expire.
    pub fn expires(&self) -> bool {
        self.ttl.is_some()
    }

    /// Returns the names of documents.
    pub fn documents(&self) -> &'static [&'static str] {
        self.documents
    }

    /// Returns whether the last name of `key` is that of a document.
    pub fn is_document(&self, key: &Key) -> bool {
        self.documents.contains(&key.name())
    }

    fn clear(&mut self) {
        self.stats.clear();
        self.values.clear();
        self.listings.clear();
        self.memory.shrink_to(0);
    }

    /// Adjusts the grant after a change. If the memory is not granted, empties the cache.
    fn update_grant(&mut self) {
        let size = self.stats.size() + self.values.size() + self.listings.size();
        let granted = self.memory.bytes();
        if size + 2 * GRANT_STEP < granted {
            self.memory.shrink_to(size);
        } else if size > granted && self.memory.grow(GRANT_STEP.max(size - granted)).is_err() {
            self.clear();
        }
    }

    fn insert_stat(&mut self, key: Key, cached: CachedStat) {
        let tag = match &cached.stat {
            Some(Stat {
                version: Version::Tag(tag),
                ..
            }) => tag.len(),
            _ => 0,
        };
        let size = ENTRY_SIZE + key.as_str().len() + tag;
        self.stats.insert(key, cached, size);
        self.update_grant();
    }

    /// Returns whether neither `key` nor a prefix above it was invalidated since `generation`.
    fn is_current(&self, key: &Key, generation: u64) -> bool {
        generation > self.all_forgotten
            && upwards(key).all(|above| {
                self.forgotten
                    .peek(&above)
                    .is_none_or(|&at| at < generation)
            })
    }

    fn is_young(&self, since: Instant) -> bool {
        self.ttl.is_none_or(|ttl| since.elapsed() < ttl)
    }

    /// Returns the metadata of `key`, if it is cached and valid.
    pub fn stat(&mut self, key: &Key) -> Option<Option<Stat>> {
        self.requested_stat(key)
            .or_else(|| self.stat_in_level(key))
            .or_else(|| self.stat_of_level(key))
    }

    /// Returns the metadata of `key` like [`Self::stat`]. Unless `key` is a document, a listing
    /// counts only while a program goes through its names.
    pub fn stat_to_read(&mut self, key: &Key) -> Option<Option<Stat>> {
        if self.is_document(key) {
            self.stat(key)
        } else {
            self.requested_stat(key)
        }
    }

    /// Returns the metadata of `key` from the listing of its level.
    fn stat_in_level(&mut self, key: &Key) -> Option<Option<Stat>> {
        if self.documents.is_empty() || key.is_root() {
            return None;
        }
        if self.is_document(key) && self.is_level_missing(key) {
            return Some(None);
        }
        let names = self.level(&key.parent(), key)?;
        let is_snapshot = self
            .listings
            .peek(&key.parent())
            .is_some_and(|level| level.is_snapshot);
        let tells_absence = is_snapshot || self.is_document(key);
        names
            .stat(key.name())
            .filter(|stat| stat.is_some() || tells_absence)
    }

    /// Returns whether a listing of the level above shows that the level of `key` does not exist.
    fn is_level_missing(&mut self, key: &Key) -> bool {
        let level = key.parent();
        !level.is_root()
            && self
                .level(&level.parent(), key)
                .is_some_and(|names| names.stat(level.name()) == Some(None))
    }

    /// Returns the metadata of `key` as a prefix, if a listing of it shows documents.
    fn stat_of_level(&mut self, key: &Key) -> Option<Option<Stat>> {
        let documents = self.documents;
        let names = self.level(key, key)?;
        documents
            .iter()
            .any(|name| names.entry(name).is_some())
            .then(|| Some(Stat::prefix()))
    }

    /// Returns the cached names of a level, if they are valid for `key`.
    fn level(&mut self, level: &Key, key: &Key) -> Option<Arc<KnownNames>> {
        let cached = self.listings.get(level)?;
        let ended = cached.ended;
        let generation = cached.run.generation;
        let names = cached.names.clone();
        (self.is_young(ended) && self.is_current(key, generation)).then_some(names)
    }

    /// Returns the level of `key`, if `key` is a document and no valid names of the level are
    /// cached. A document of a known level that alone was invalidated is requested alone.
    pub fn unknown_level(&mut self, key: &Key) -> Option<Key> {
        let level = key.parent();
        if !self.is_document(key) || self.level(&level, key).is_some() {
            return None;
        }
        let documents = self.documents;
        let is_known = self.level(&level, &level).is_some();
        let invalid = documents
            .iter()
            .filter(|name| self.level(&level, &level.join(name)).is_none());
        if is_known && invalid.count() == 1 {
            None
        } else {
            Some(level)
        }
    }

    /// Returns whether the names on all levels below `prefix` are known.
    pub fn knows_levels(&mut self, prefix: &Key) -> bool {
        let mut levels = vec![prefix.clone()];
        while let Some(level) = levels.pop() {
            let Some(names) = self
                .level(&level, &level)
                .filter(|names| names.is_complete())
            else {
                return false;
            };
            let prefixes = names.entries.iter().filter(|entry| entry.is_prefix());
            levels.extend(prefixes.map(|entry| level.join(&entry.name)));
        }
        true
    }

    /// Returns whether the names in `prefix` should be requested by
    /// [`PagedListing::first_names`](crate::PagedListing::first_names).
    pub fn is_unknown_level(&mut self, prefix: &Key) -> bool {
        !self.documents.is_empty() && self.level(prefix, prefix).is_none()
    }

    /// Returns whether the names in `prefix` should be requested with those of other prefixes: they
    /// are not known, or expire soon.
    pub fn is_expiring_level(&mut self, prefix: &Key) -> bool {
        let ended = self
            .level(prefix, prefix)
            .and_then(|_| self.listings.peek(prefix))
            .map(|level| level.ended);
        ended.is_none_or(|ended| self.ttl.is_some_and(|ttl| ended.elapsed() >= ttl / 2))
    }

    /// Returns the keys of those `documents` of a level that exist, are small enough to be cached,
    /// and are not cached.
    pub fn uncached(&mut self, level: &Key, documents: &[&str]) -> Vec<Key> {
        let keys = documents.iter().map(|name| level.join(name));
        keys.filter(|key| self.is_uncached(key)).collect()
    }

    fn is_uncached(&mut self, key: &Key) -> bool {
        let Some(Some(stat)) = self.stat(key) else {
            return false;
        };
        let is_small = stat.kind == EntryKind::Value && stat.size <= MAX_VALUE as u64;
        is_small && self.value(key, &stat.version).is_none()
    }

    /// Returns the metadata of `key` from a request for it, or from a listing in use, if it is
    /// valid.
    fn requested_stat(&mut self, key: &Key) -> Option<Option<Stat>> {
        let cached = self.stats.get(key)?;
        let stat = cached.stat.clone();
        let generation = cached.generation;
        let is_young = match &cached.source {
            StatSource::Request(at) => self.ttl.is_none_or(|ttl| at.elapsed() < ttl),
            StatSource::Listing(run) => run.is_used(self.ttl),
        };
        (is_young && self.is_current(key, generation)).then_some(stat)
    }

    /// Returns the request for the metadata of `key`, and whether the caller must send it.
    pub fn request(&mut self, key: &Key) -> (Arc<PendingStat>, bool) {
        match self.pending.get(key) {
            Some(pending) if !pending.is_finished() && self.is_current(key, pending.generation) => {
                (pending.clone(), false)
            }
            _ => {
                let pending = Arc::new(PendingStat::new(self.generation));
                self.pending.insert(key.clone(), pending.clone());
                (pending, true)
            }
        }
    }

    /// Returns requests for those documents of the level of `key` that were requested before and
    /// are no longer valid. The caller must send them. There are none unless `key` and another
    /// document are among them.
    pub fn request_documents(&mut self, key: &Key) -> Vec<(Key, Arc<PendingStat>)> {
        if !self.is_document(key) {
            return Vec::new();
        }
        let documents = self.documents;
        let level = key.parent();
        let keys = documents.iter().map(|name| level.join(name));
        let stale: Vec<Key> = keys
            .filter(|key| self.stats.peek(key).is_some() && self.stat(key).is_none())
            .collect();
        if stale.len() < 2 || !stale.contains(key) {
            return Vec::new();
        }
        let requests = stale.into_iter().map(|key| (self.request(&key), key));
        requests
            .filter_map(|((pending, is_sender), key)| is_sender.then_some((key, pending)))
            .collect()
    }

    /// Ends a request and inserts its result, unless the key was invalidated meanwhile. `stat` is
    /// `None` after an error.
    pub fn finish(&mut self, key: &Key, pending: &Arc<PendingStat>, stat: Option<&Option<Stat>>) {
        if self
            .pending
            .get(key)
            .is_some_and(|current| Arc::ptr_eq(current, pending))
        {
            self.pending.remove(key);
            if let Some(stat) = stat
                && self.is_current(key, pending.generation)
            {
                let generation = pending.generation;
                let source = StatSource::Request(Instant::now());
                self.insert_stat(
                    key.clone(),
                    CachedStat {
                        stat: stat.clone(),
                        generation,
                        source,
                    },
                );
            }
        }
    }

    /// Inserts metadata from a listing, unless a valid request for the key is cached.
    pub fn record(&mut self, key: Key, stat: Stat, run: &Arc<ListingRun>) {
        *lock(&run.used) = Instant::now();
        let is_requested = self
            .stats
            .peek(&key)
            .is_some_and(|cached| match &cached.source {
                StatSource::Request(at) => {
                    self.is_young(*at) && self.is_current(&key, cached.generation)
                }
                StatSource::Listing(_) => false,
            });
        if !is_requested && !run.is_closed() && self.is_current(&key, run.generation) {
            let generation = run.generation;
            let source = StatSource::Listing(run.clone());
            self.insert_stat(
                key,
                CachedStat {
                    stat: Some(stat),
                    generation,
                    source,
                },
            );
        }
    }

    /// Returns the value of `key`, if it is cached in this version.
    pub fn value(&mut self, key: &Key, version: &Version) -> Option<&[u8]> {
        self.values
            .get(key)
            .filter(|(cached, _)| cached == version)
            .map(|(_, value)| value.as_slice())
    }

    /// Inserts a value, if it is small. It is returned only for a key whose metadata has the same
    /// version.
    pub fn insert_value(&mut self, key: &Key, version: Version, value: &[u8]) {
        if value.len() > MAX_VALUE {
            self.values.remove(key)
        } else {
            let size = ENTRY_SIZE + key.as_str().len() + value.len();
            self.values
                .insert(key.clone(), (version, value.to_vec()), size);
        }
        self.update_grant();
    }

    /// Returns the names below `prefix`, if they are cached and valid.
    pub fn listing(&mut self, prefix: &Key) -> Option<(Arc<KnownNames>, Arc<ListingRun>)> {
        let names = self.level(prefix, prefix)?;
        // an empty level may be a missing prefix, whose listing must fail
        let run = self.listings.peek(prefix)?.run.clone();
        (names.is_complete() && !names.entries.is_empty()).then_some((names, run))
    }

    /// Starts a listing of `prefix`.
    pub fn begin_listing(&mut self, prefix: &Key) -> Arc<ListingRun> {
        let now = Instant::now();
        let run = Arc::new(ListingRun {
            prefix: prefix.clone(),
            generation: self.generation,
            began: now,
            used: Mutex::new(now),
            is_closed: AtomicBool::new(false),
        });
        self.running
            .retain(|run| run.upgrade().is_some_and(|run| !run.is_closed()));
        self.running.push(Arc::downgrade(&run));
        run
    }

    /// Inserts the names that a listing has returned, unless the level has changed since the
    /// listing began.
    pub fn insert_listing(&mut self, run: &Arc<ListingRun>, names: Arc<KnownNames>) {
        self.insert_level(run.prefix.clone(), run, names, false);
    }

    /// Inserts the names that a listing has returned for one of its levels. In a snapshot, other
    /// names do not exist.
    fn insert_level(
        &mut self,
        level: Key,
        run: &Arc<ListingRun>,
        names: Arc<KnownNames>,
        is_snapshot: bool,
    ) {
        if !run.is_closed() {
            self.keep_level(
                level,
                CachedLevel {
                    run: run.clone(),
                    ended: Instant::now(),
                    names,
                    is_snapshot,
                },
            );
            self.update_grant();
        }
    }

    fn keep_level(&mut self, level: Key, cached: CachedLevel) {
        let entries = cached.names.entries.iter();
        let size: usize = entries.map(|entry| ENTRY_SIZE + entry.name.len()).sum();
        self.listings.insert(level, cached, size + ENTRY_SIZE);
    }

    /// Inserts the names of several levels.
    pub fn insert_levels(
        &mut self,
        levels: impl Iterator<Item = (Key, Vec<Entry>)>,
        run: &Arc<ListingRun>,
        is_snapshot: bool,
    ) {
        for (level, names) in levels {
            let names = KnownNames::new(names, Reach::All);
            self.insert_level(level, run, Arc::new(names), is_snapshot);
        }
    }

    /// Replaces a cached value by one that was put. Other values that are put are not cached.
    pub fn update_value(&mut self, key: &Key, version: &Version, value: &[u8]) {
        if self.values.peek(key).is_some() {
            self.insert_value(key, version.clone(), value);
        }
    }

    /// Gives the cached metadata of `key` the version of its value, if the server states none. Two
    /// answers of such a server never have equal versions.
    pub fn restate(&mut self, key: &Key, version: &Version) {
        if version.is_unstated()
            && let Some(Some(stat)) = self.stats.get_mut(key).map(|cached| &mut cached.stat)
        {
            stat.version = version.clone();
        }
    }

    /// Invalidates all entries for `prefix` and for keys below it.
    pub fn forget(&mut self, prefix: &Key) {
        let pushed = self.forgotten.push(prefix.clone(), self.generation);
        if let Some((_, at)) = pushed.filter(|(key, _)| key != prefix) {
            self.all_forgotten = self.all_forgotten.max(at);
        }
        self.generation += 1;
    }

    /// Returns whether the names of the level above show that nothing can be below `key`.
    pub fn is_missing_prefix(&mut self, key: &Key) -> bool {
        if self.documents.is_empty() || key.is_root() {
            return false;
        }
        let names = self
            .level(&key.parent(), key)
            .filter(|names| names.is_complete());
        names.is_some_and(|names| {
            // an empty value may mark a directory
            names.entry(key.name()).is_none_or(|entry| {
                let is_empty = entry.stat.as_ref().is_some_and(|stat| stat.size == 0);
                !entry.is_prefix() && !is_empty
            })
        })
    }

    /// Returns the kind of `key`, if the names of its level show it.
    pub fn listed_kind(&mut self, key: &Key) -> Option<EntryKind> {
        Some(self.level(&key.parent(), key)?.entry(key.name())?.kind)
    }

    /// Applies a change of `key` to the names of a level above it. Its metadata is requested when
    /// it is needed.
    fn change_level(&mut self, level: &Key, key: &Key, change: KeyChange) {
        let Some(mut cached) = self.listings.take(level) else {
            return;
        };
        let path = key.relative_to(level).unwrap_or_default();
        let (name, is_here) = match path.as_str().split_once('/') {
            Some((name, _)) => (name, false),
            None => (path.as_str(), true),
        };
        let names = Arc::make_mut(&mut cached.names);
        match change {
            KeyChange::Unknown => return,
            KeyChange::Present(_) if names.entries.len() >= MAX_NAMES => return,
            KeyChange::Present(kind) => {
                names.add(name, if is_here { kind } else { EntryKind::Prefix })
            }
            KeyChange::Absent if is_here => names.remove(name),
            KeyChange::Absent => {}
        }
        self.keep_level(level.clone(), cached);
    }

    /// Records a change of `key`. Prefixes above may have been created or removed with it.
    pub fn changed(&mut self, key: &Key, change: KeyChange) {
        let creates = matches!(change, KeyChange::Present(_));
        for (level, above) in upwards(key).enumerate() {
            let cached = self
                .stats
                .peek(&above)
                .and_then(|cached| cached.stat.as_ref());
            let is_prefix = cached.is_some_and(|stat| stat.kind == EntryKind::Prefix);
            if level == 0 || !creates || !is_prefix {
                self.stats.remove(&above);
            }
            self.pending.remove(&above);
            if level > 0 {
                self.change_level(&above, key, change);
            }
        }
        self.update_grant();
        for run in self.running.iter().filter_map(Weak::upgrade) {
            if key.relative_to(&run.prefix).is_some() {
                run.close();
            }
        }
    }
}

impl ListingRun {
    /// Ends the listing: no further metadata is taken from it.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    /// Returns whether a program still goes through the names of the listing. A call that returns
    /// true counts as a use.
    fn is_used(&self, ttl: Option<Duration>) -> bool {
        let Some(ttl) = ttl else { return true };
        let mut used = lock(&self.used);
        let is_used =
            used.elapsed() < ttl.max(LISTING_PAUSE) && self.began.elapsed() < LISTING_KEPT.max(ttl);
        if is_used {
            *used = Instant::now();
        }
        is_used
    }
}

/// Returns `key` and all keys above it, up to the root.
fn upwards(key: &Key) -> impl Iterator<Item = Key> + use<> {
    std::iter::successors(Some(key.clone()), |key| {
        (!key.is_root()).then(|| key.parent())
    })
}
