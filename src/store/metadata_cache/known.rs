//! What is remembered, in bounded memory, and until when. It asks nobody.

use super::{Flight, SMALL};
use crate::store::{Entry, EntryKind, Key, Stat, Version};
use crate::util::memory::{Grant, Reclaim, lock};
use lru::LruCache;
use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

/// Keys remembered: some 30 MB.
const STATS: NonZeroUsize = NonZeroUsize::new(1 << 17).unwrap();

/// Values and listings remembered, each with its bound in bytes and names.
const VALUES: NonZeroUsize = NonZeroUsize::new(1 << 14).unwrap();
const MAX_VALUE_BYTES: usize = 16 << 20;
const LISTINGS: NonZeroUsize = NonZeroUsize::new(1 << 10).unwrap();
const MAX_NAMES: usize = 1 << 16;

/// Names of a listing that is kept as such.
pub const MAX_LISTING: usize = 1 << 13;

/// Prefixes of which it is known when they were forgotten; of those beyond everything is.
const FORGOTTEN: NonZeroUsize = NonZeroUsize::new(1 << 12).unwrap();

/// What a listing has told is good for as long as somebody goes through its names, but no longer than this: `ls -l` and
/// `find` ask for each name some time after it was listed.
const LISTING_KEPT: Duration = Duration::from_secs(60);

/// How long may lie between two of his questions, at least.
const LISTING_PAUSE: Duration = Duration::from_secs(1);

/// What was answered, and what must not be used any more.
pub struct Known {
    ttl: Option<Duration>,
    /// Counts how often something was forgotten. What was asked for before that is worth nothing after it.
    stamp: u64,
    forgotten: LruCache<Key, u64>,
    /// Older than this everything is forgotten.
    floor: u64,
    stats: LruCache<Key, Noted>,
    flights: HashMap<Key, Arc<Flight>>,
    values: LruCache<Key, (Version, Vec<u8>)>,
    value_bytes: usize,
    listings: LruCache<Key, Kept>,
    names: usize,
    running: Vec<Weak<Listed>>,
    /// Bytes of all answers, values and listings.
    weight: usize,
    /// Counts them.
    memory: Grant,
}

/// Bytes of memory that an answer takes beside its key and its version, and a name of a listing beside its own.
const NOTED: usize = 256;

/// Bytes that are counted together.
const COUNTED_AT_ONCE: usize = 256 << 10;

impl Reclaim for Mutex<Known> {
    fn reclaim(&self) {
        if let Ok(mut known) = self.try_lock() {
            known.clear();
        }
    }
}

struct Noted {
    stat: Option<Stat>,
    stamp: u64,
    source: Source,
}

/// Where an answer comes from.
enum Source {
    /// The key was asked for by itself, and the answer came then.
    Asked(Instant),
    /// A listing has told it.
    Listed(Arc<Listed>),
}

/// A listing that has come to its end, when it did, and its names.
type Kept = (Arc<Listed>, Instant, Arc<Vec<Entry>>);

/// A listing that somebody reads or has read.
pub struct Listed {
    /// What was listed.
    pub prefix: Key,
    stamp: u64,
    began: Instant,
    /// Protects the time of the latest use.
    used: Mutex<Instant>,
    /// It has ended, or something has changed there since it began: what is still to come may be older.
    closed: AtomicBool,
}

impl Known {
    /// Nothing yet; answers are good for `ttl`.
    pub fn new(ttl: Option<Duration>) -> Self {
        Known {
            ttl,
            stamp: 1,
            forgotten: LruCache::new(FORGOTTEN),
            floor: 0,
            stats: LruCache::new(STATS),
            flights: HashMap::new(),
            values: LruCache::new(VALUES),
            value_bytes: 0,
            listings: LruCache::new(LISTINGS),
            names: 0,
            running: Vec::new(),
            weight: 0,
            memory: Grant::default(),
        }
    }

    /// Drops all that is remembered.
    fn clear(&mut self) {
        self.stats.clear();
        self.values.clear();
        self.listings.clear();
        (self.value_bytes, self.names, self.weight) = (0, 0, 0);
        self.memory.shrink_to(0);
    }

    /// Counts what came and what went. Where there is no memory for it, nothing is remembered.
    fn weigh(&mut self, came: usize, went: usize) {
        self.weight = (self.weight + came).saturating_sub(went);
        if self.weight + 2 * COUNTED_AT_ONCE < self.memory.bytes() {
            self.memory.shrink_to(self.weight);
        }
        if self.weight > self.memory.bytes() && self.memory.grow(COUNTED_AT_ONCE.max(came)).is_err() {
            self.clear();
        }
    }

    fn put_stat(&mut self, key: Key, noted: Noted) {
        let came = weight(&key, &noted);
        let went = self.stats.push(key, noted).map_or(0, |(key, noted)| weight(&key, &noted));
        self.weigh(came, went);
    }

    /// True if nothing at or above `key` was forgotten since `stamp`.
    fn is_current(&self, key: &Key, stamp: u64) -> bool {
        stamp > self.floor && upwards(key).all(|above| self.forgotten.peek(&above).is_none_or(|&at| at < stamp))
    }

    fn is_fresh(&self, since: Instant) -> bool {
        self.ttl.is_none_or(|ttl| since.elapsed() < ttl)
    }

    /// What stands at `key`, as far as it is known.
    pub fn stat(&mut self, key: &Key) -> Option<Option<Stat>> {
        let noted = self.stats.get(key)?;
        let (stat, stamp) = (noted.stat.clone(), noted.stamp);
        let fresh = match &noted.source {
            Source::Asked(at) => self.ttl.is_none_or(|ttl| at.elapsed() < ttl),
            Source::Listed(listed) => listed.is_used(self.ttl),
        };
        (fresh && self.is_current(key, stamp)).then_some(stat)
    }

    /// The question of what stands at `key`, and whether the caller is the one to ask it.
    pub fn flight(&mut self, key: &Key) -> (Arc<Flight>, bool) {
        match self.flights.get(key) {
            Some(flight) if !flight.is_over() && self.is_current(key, flight.stamp) => (flight.clone(), false),
            _ => {
                let flight = Arc::new(Flight::new(self.stamp));
                self.flights.insert(key.clone(), flight.clone());
                (flight, true)
            }
        }
    }

    /// The answer has come; None if it was an error. It is noted unless what stands there has changed since it was asked.
    pub fn land(&mut self, key: &Key, flight: &Arc<Flight>, answer: Option<&Option<Stat>>) {
        if self.flights.get(key).is_some_and(|current| Arc::ptr_eq(current, flight)) {
            self.flights.remove(key);
            if let Some(stat) = answer
                && self.is_current(key, flight.stamp)
            {
                let source = Source::Asked(Instant::now());
                self.put_stat(key.clone(), Noted { stat: stat.clone(), stamp: flight.stamp, source });
            }
        }
    }

    /// Notes what a listing tells, unless the key was asked for by itself.
    pub fn note(&mut self, key: Key, stat: Stat, listed: &Arc<Listed>) {
        *lock(&listed.used) = Instant::now();
        let asked = self.stats.peek(&key).is_some_and(|noted| match &noted.source {
            Source::Asked(at) => self.is_fresh(*at) && self.is_current(&key, noted.stamp),
            Source::Listed(_) => false,
        });
        if !asked && !listed.is_closed() && self.is_current(&key, listed.stamp) {
            let source = Source::Listed(listed.clone());
            self.put_stat(key, Noted { stat: Some(stat), stamp: listed.stamp, source });
        }
    }

    /// The value of `version` at `key`, if it is kept.
    pub fn value(&mut self, key: &Key, version: &Version) -> Option<&[u8]> {
        self.values.get(key).filter(|(of, _)| of == version).map(|(_, value)| value.as_slice())
    }

    /// True if a value of `key` is kept.
    pub fn has_value(&self, key: &Key) -> bool {
        self.values.contains(key)
    }

    /// Keeps a value if it is a small one. It is used only where its version is known to stand there.
    pub fn keep_value(&mut self, key: &Key, version: Version, value: &[u8]) {
        let before = self.value_bytes;
        if let Some((_, old)) = self.values.pop(key) {
            self.value_bytes -= old.len();
        }
        if value.len() > SMALL {
            return self.weigh(0, before - self.value_bytes);
        }
        self.value_bytes += value.len();
        let pushed = self.values.push(key.clone(), (version, value.to_vec()));
        self.value_bytes -= pushed.map_or(0, |(_, (_, old))| old.len());
        while self.value_bytes > MAX_VALUE_BYTES
            && let Some((_, (_, old))) = self.values.pop_lru()
        {
            self.value_bytes -= old.len();
        }
        self.weigh(self.value_bytes, before);
    }

    /// All names below `prefix`, if they are kept.
    pub fn listing(&mut self, prefix: &Key) -> Option<Arc<Vec<Entry>>> {
        let (listed, at, entries) = self.listings.get(prefix)?;
        let (stamp, at, entries) = (listed.stamp, *at, entries.clone());
        (self.is_fresh(at) && self.is_current(prefix, stamp)).then_some(entries)
    }

    /// Somebody begins to list `prefix`.
    pub fn begin_listing(&mut self, prefix: &Key) -> Arc<Listed> {
        let now = Instant::now();
        let listed = Arc::new(Listed {
            prefix: prefix.clone(),
            stamp: self.stamp,
            began: now,
            used: Mutex::new(now),
            closed: AtomicBool::new(false),
        });
        self.running.retain(|listed| listed.upgrade().is_some_and(|listed| !listed.is_closed()));
        self.running.push(Arc::downgrade(&listed));
        listed
    }

    /// Keeps a listing that has come to its end.
    pub fn keep_listing(&mut self, listed: &Arc<Listed>, entries: Vec<Entry>) {
        if listed.is_closed() {
            return;
        }
        self.drop_listing(&listed.prefix);
        self.names += entries.len();
        let came = weight_of(&entries);
        let kept = (listed.clone(), Instant::now(), Arc::new(entries));
        let pushed = self.listings.push(listed.prefix.clone(), kept);
        let (mut went, mut dropped) = (0, pushed);
        loop {
            if let Some((_, (_, _, old))) = dropped.take() {
                self.names -= old.len();
                went += weight_of(&old);
            }
            if self.names <= MAX_NAMES {
                break;
            }
            dropped = self.listings.pop_lru();
            if dropped.is_none() {
                break;
            }
        }
        self.weigh(came, went);
    }

    fn drop_listing(&mut self, prefix: &Key) {
        if let Some((_, _, old)) = self.listings.pop(prefix) {
            self.names -= old.len();
            self.weigh(0, weight_of(&old));
        }
    }

    /// Nothing that was asked for before is known any more of `prefix` and all below.
    pub fn forget(&mut self, prefix: &Key) {
        let pushed = self.forgotten.push(prefix.clone(), self.stamp);
        if let Some((_, at)) = pushed.filter(|(key, _)| key != prefix) {
            self.floor = self.floor.max(at);
        }
        self.stamp += 1;
    }

    /// A value or prefix came to `key` or, with `removed`, went from there. Prefixes above may have come and gone with it.
    pub fn changed(&mut self, key: &Key, removed: bool) {
        for (level, above) in upwards(key).enumerate() {
            let is_prefix = |noted: &Noted| noted.stat.as_ref().is_some_and(|stat| stat.kind == EntryKind::Prefix);
            if level == 0 || removed || !self.stats.peek(&above).is_some_and(is_prefix) {
                let went = self.stats.pop(&above).map_or(0, |noted| weight(&above, &noted));
                self.weigh(0, went);
            }
            self.flights.remove(&above);
            if level > 0 {
                self.drop_listing(&above);
            }
        }
        for listed in self.running.iter().filter_map(Weak::upgrade) {
            if key.relative_to(&listed.prefix).is_some() {
                listed.close();
            }
        }
    }
}

impl Listed {
    /// It tells nothing more that is to be noted.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// True while somebody goes through it; asking counts.
    fn is_used(&self, ttl: Option<Duration>) -> bool {
        let Some(ttl) = ttl else { return true };
        let mut used = lock(&self.used);
        let good = used.elapsed() < ttl.max(LISTING_PAUSE) && self.began.elapsed() < LISTING_KEPT.max(ttl);
        if good {
            *used = Instant::now();
        }
        good
    }
}

fn weight(key: &Key, noted: &Noted) -> usize {
    let tag = match &noted.stat {
        Some(Stat { version: Version::Tag(tag), .. }) => tag.len(),
        _ => 0,
    };
    NOTED + key.as_str().len() + tag
}

fn weight_of(entries: &[Entry]) -> usize {
    entries.iter().map(|entry| NOTED + entry.name.len()).sum()
}

/// `key` and all keys above it, up to the root.
fn upwards(key: &Key) -> impl Iterator<Item = Key> + use<> {
    std::iter::successors(Some(key.clone()), |key| (!key.is_root()).then(|| key.parent()))
}
