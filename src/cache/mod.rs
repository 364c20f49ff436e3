//! Decoded chunks of all arrays within one bound of bytes. Several readers of one missing chunk cause one load; what
//! was learnt of the store before an array's latest opening is checked again before it is used. It knows arrays, not
//! files.
//!
//! Locks: one, over the map of slots and the sum of bytes. It is never held while a chunk is loaded, checked or copied.
//! Whoever waits, for another's load of the same chunk or for room, holds neither the lock nor a chunk. A load waits
//! for room only before it asks the store, and only while other loads are under way; they end without waiting again.

use crate::array::Array;
use crate::error::{Error, Kind, Result};
use crate::grid::ChunkId;
use crate::memory::lock;
use crate::stats::Stats;
use crate::store::Version;
use lru::LruCache;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// What a slot costs beyond its chunk's bytes, roughly: so that a million missing chunks count, too.
const SLOT_COST: usize = 256;

/// A decoded chunk, C layout. It counts in the cache's bound as long as anybody holds it.
pub struct Chunk {
    bytes: Vec<u8>,
    live: Arc<AtomicUsize>,
}

impl Deref for Chunk {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.live.fetch_sub(self.bytes.capacity(), Ordering::Relaxed);
    }
}

/// What is known of a chunk.
#[derive(Clone)]
enum Content {
    Decoded(Arc<Chunk>, Version),
    Uninitialised,
    /// It can't be decoded; kept, so that a retry by the kernel does not decode again.
    Failed(Error),
}

enum Slot {
    /// Somebody is loading or checking it.
    Busy,
    Ready {
        content: Content,
        /// The array's epoch in which the store was last asked.
        epoch: u64,
    },
}

type SlotKey = (u64, ChunkId);

struct State {
    slots: LruCache<SlotKey, Slot>,
    /// Bytes promised to loads that are under way.
    reserved: usize,
}

/// The cache of decoded chunks.
pub struct Cache {
    bound: usize,
    /// Bytes of all chunks alive.
    live: Arc<AtomicUsize>,
    /// Protects the slots and what is reserved.
    state: Mutex<State>,
    /// A slot is no longer busy, or a reservation is returned.
    changed: Condvar,
    stats: Arc<Stats>,
}

impl Cache {
    /// A cache of at most `bound` bytes, or of one chunk that is larger than that.
    pub fn new(bound: usize, stats: Arc<Stats>) -> Self {
        let state = State { slots: LruCache::unbounded(), reserved: 0 };
        Cache { bound, live: Arc::default(), state: Mutex::new(state), changed: Condvar::new(), stats }
    }

    /// The bound in bytes.
    pub fn bound(&self) -> usize {
        self.bound
    }

    /// Bytes in use now.
    pub fn used(&self) -> usize {
        let state = self.lock();
        self.used_by(&state)
    }

    /// The decoded chunk; None if it is uninitialised. The caller may hold it for as long as it copies, but must not
    /// hold one while asking for another that may have to be loaded: waiting for room would never end.
    pub fn get(&self, array: &Array, chunk: ChunkId) -> Result<Option<Arc<Chunk>>> {
        let key = (array.id(), chunk);
        let mut state = self.lock();
        let mut counted = false;
        loop {
            let known = match state.slots.get(&key) {
                Some(Slot::Ready { content, epoch }) if *epoch >= array.epoch() => {
                    if !counted {
                        self.stats.hits.add(1);
                    }
                    return answer(content.clone());
                }
                Some(Slot::Busy) => {
                    // whoever loads it counts the miss
                    counted = true;
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                    continue;
                }
                Some(Slot::Ready { content, .. }) => Some(content.clone()),
                None => None,
            };
            state.slots.put(key, Slot::Busy);
            drop(state);
            return self.fill(array, key, known);
        }
    }

    /// As [`Cache::get`], but only if that needs neither the store nor a wait.
    pub fn peek(&self, array: &Array, chunk: ChunkId) -> Option<Result<Option<Arc<Chunk>>>> {
        let mut state = self.lock();
        match state.slots.get(&(array.id(), chunk)) {
            Some(Slot::Ready { content, epoch }) if *epoch >= array.epoch() => {
                self.stats.hits.add(1);
                Some(answer(content.clone()))
            }
            _ => None,
        }
    }

    /// Fills a slot that this thread has made busy; `known` is what it held in an earlier epoch.
    fn fill(&self, array: &Array, key: SlotKey, known: Option<Content>) -> Result<Option<Arc<Chunk>>> {
        // taken before the store is asked: an opening meanwhile makes the answer old
        let epoch = array.epoch();
        let mut slot = BusySlot { cache: self, key, content: None, epoch, reserved: 0 };
        let content = match known.filter(|content| unchanged(array, key.1, content)) {
            Some(content) => {
                self.stats.hits.add(1);
                content
            }
            None => {
                self.stats.misses.add(1);
                // encoded bytes and intermediate results need room beside the decoded ones
                slot.reserved = self.reserve(2 * array.grid().chunk_size());
                self.load(array, key.1)?
            }
        };
        slot.content = Some(content.clone());
        drop(slot);
        answer(content)
    }

    /// A failure of the system, unlike damage, may be over the next time: it is an error here, and not remembered.
    fn load(&self, array: &Array, chunk: ChunkId) -> Result<Content> {
        match array.load(chunk) {
            Ok(Some(loaded)) => {
                self.live.fetch_add(loaded.bytes.capacity(), Ordering::Relaxed);
                let chunk = Chunk { bytes: loaded.bytes, live: self.live.clone() };
                Ok(Content::Decoded(Arc::new(chunk), loaded.version))
            }
            Ok(None) => {
                self.stats.uninitialised.add(1);
                Ok(Content::Uninitialised)
            }
            Err(e) => {
                self.stats.failures.add(1);
                self.stats.problem(e.to_string());
                if matches!(e.kind(), Kind::System(_)) { Err(e) } else { Ok(Content::Failed(e)) }
            }
        }
    }

    /// Makes room for `bytes` by dropping what was not used for longest, and waits while other loads fill the cache. A
    /// load that finds no other under way never waits: whatever is too large for the bound still gets on, alone.
    fn reserve(&self, bytes: usize) -> usize {
        let mut state = self.lock();
        loop {
            self.evict(&mut state, bytes);
            if state.reserved == 0 || self.used_by(&state) + bytes <= self.bound {
                state.reserved += bytes;
                return bytes;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Drops slots, the least recently used first, until `bytes` more fit or one is left: a chunk larger than the bound
    /// must not be decoded again for every request.
    fn evict(&self, state: &mut State, bytes: usize) {
        let mut busy = Vec::new();
        while self.used_by(state) + bytes > self.bound && state.slots.len() + busy.len() > 1 {
            match state.slots.pop_lru() {
                Some((key, Slot::Busy)) => busy.push(key),
                Some(_) => {}
                None => break,
            }
        }
        for key in busy {
            state.slots.put(key, Slot::Busy);
        }
    }

    fn used_by(&self, state: &State) -> usize {
        self.live.load(Ordering::Relaxed) + state.reserved + state.slots.len() * SLOT_COST
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// A slot this thread has made busy. Dropping it sets the slot free, also when a load panics.
struct BusySlot<'a> {
    cache: &'a Cache,
    key: SlotKey,
    content: Option<Content>,
    epoch: u64,
    reserved: usize,
}

impl Drop for BusySlot<'_> {
    fn drop(&mut self) {
        let mut state = self.cache.lock();
        match self.content.take() {
            Some(content) => state.slots.put(self.key, Slot::Ready { content, epoch: self.epoch }),
            None => state.slots.pop(&self.key),
        };
        state.reserved -= self.reserved;
        self.cache.evict(&mut state, 0);
        self.cache.changed.notify_all();
    }
}

fn answer(content: Content) -> Result<Option<Arc<Chunk>>> {
    match content {
        Content::Decoded(chunk, _) => Ok(Some(chunk)),
        Content::Uninitialised => Ok(None),
        Content::Failed(e) => Err(e),
    }
}

/// True if the store still holds what `content` was made of. A failure is always tried again.
fn unchanged(array: &Array, chunk: ChunkId, content: &Content) -> bool {
    let now = match content {
        Content::Failed(_) => return false,
        _ => array.stat_chunk(chunk),
    };
    match (content, now) {
        (Content::Decoded(_, version), Ok(Some(stat))) => stat.version == *version,
        (Content::Uninitialised, Ok(None)) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::ArrayMetadata;
    use crate::store::{Key, Listing, MemoryStore, Stat, Store};
    use std::ops::Range;
    use std::time::Duration;

    /// A store that is slow enough for readers to meet, and panics on demand.
    #[derive(Default)]
    struct SlowStore {
        inner: MemoryStore,
        gets: AtomicUsize,
        panic: std::sync::atomic::AtomicBool,
        no_files_left: std::sync::atomic::AtomicBool,
    }

    impl Store for SlowStore {
        fn get(&self, key: &Key, limit: u64, value: &mut Vec<u8>) -> Result<Option<Version>> {
            self.gets.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(20));
            assert!(!self.panic.load(Ordering::SeqCst), "as told");
            if self.no_files_left.load(Ordering::SeqCst) {
                return Err(Error::system(libc::EMFILE));
            }
            self.inner.get(key, limit, value)
        }
        fn get_range(&self, key: &Key, range: Range<u64>, value: &mut Vec<u8>) -> Result<Option<Version>> {
            self.inner.get_range(key, range, value)
        }
        fn stat(&self, key: &Key) -> Result<Option<Stat>> {
            self.inner.stat(key)
        }
        fn list(&self, prefix: &Key) -> Result<Listing> {
            self.inner.list(prefix)
        }
        fn location(&self) -> String {
            self.inner.location()
        }
    }

    const CHUNK: usize = 10_000;

    /// 16 chunks of [`CHUNK`] bytes, all but the last stored, and a cache of `bound` bytes.
    fn setup(bound: usize) -> (Arc<SlowStore>, Arc<Array>, Cache) {
        let store = Arc::new(SlowStore::default());
        let doc =
            br#"{"zarr_format":2,"shape":[160000],"chunks":[10000],"dtype":"|u1","compressor":null,"fill_value":0,
            "order":"C","filters":null}"#;
        for i in 0..15 {
            store.inner.put(&format!("{i}"), vec![i; CHUNK]);
        }
        let stats = Arc::new(Stats::default());
        let metadata = ArrayMetadata::parse(doc).unwrap();
        let array = Array::new(Key::root(), metadata, store.clone(), stats.clone()).unwrap();
        (store, Arc::new(array), Cache::new(bound, stats))
    }

    #[test]
    fn sixteen_readers_of_a_chunk_cause_one_load() {
        let (store, array, cache) = setup(1 << 20);
        std::thread::scope(|s| {
            for _ in 0..16 {
                s.spawn(|| assert_eq!(cache.get(&array, ChunkId(3)).unwrap().unwrap()[99], 3));
            }
        });
        assert_eq!(store.gets.load(Ordering::SeqCst), 1);
        assert_eq!(cache.stats.misses.get(), 1);
        assert!(cache.get(&array, ChunkId(15)).unwrap().is_none());
    }

    #[test]
    fn the_bound_holds_under_eight_readers() {
        let bound = 4 * CHUNK;
        let (_, array, cache) = setup(bound);
        std::thread::scope(|s| {
            for t in 0..8 {
                let (cache, array) = (&cache, &array);
                s.spawn(move || {
                    for i in 0..30 {
                        let id = (t * 7 + i * 3) % 16;
                        let chunk = cache.get(array, ChunkId(id)).unwrap();
                        assert_eq!(chunk.is_some(), id < 15);
                        drop(chunk);
                        // what readers hold was in the bound when they got it
                        assert!(cache.used() <= bound + 8 * CHUNK, "{}", cache.used());
                    }
                });
            }
        });
        assert!(cache.used() <= bound);
    }

    #[test]
    fn a_replaced_chunk_is_seen_after_the_next_opening() {
        let (store, array, cache) = setup(1 << 20);
        let read = || cache.get(&array, ChunkId(0)).unwrap().map(|c| c[0]);
        array.begin_epoch();
        assert_eq!(read(), Some(0));
        store.inner.put("0", vec![77; CHUNK]);
        assert_eq!(read(), Some(0));
        array.begin_epoch();
        assert_eq!(read(), Some(77));
        store.inner.delete("0");
        array.begin_epoch();
        assert_eq!(read(), None);
        array.begin_epoch();
        let gets = store.gets.load(Ordering::SeqCst);
        assert_eq!(read(), None);
        assert_eq!(store.gets.load(Ordering::SeqCst), gets, "a version check is enough");
    }

    #[test]
    fn a_bad_chunk_fails_and_recovers() {
        let (store, array, cache) = setup(1 << 20);
        store.inner.put("1", vec![0; 99]);
        for _ in 0..2 {
            assert_eq!(cache.get(&array, ChunkId(1)).err().unwrap().errno(), libc::EIO);
        }
        assert_eq!(store.gets.load(Ordering::SeqCst), 1, "the failure is remembered");
        store.inner.put("1", vec![5; CHUNK]);
        array.begin_epoch();
        assert_eq!(cache.get(&array, ChunkId(1)).unwrap().unwrap()[0], 5);
    }

    #[test]
    fn a_failure_of_the_system_is_not_remembered() {
        let (store, array, cache) = setup(1 << 20);
        store.no_files_left.store(true, Ordering::SeqCst);
        assert_eq!(cache.get(&array, ChunkId(1)).err().unwrap().errno(), libc::EMFILE);
        store.no_files_left.store(false, Ordering::SeqCst);
        assert_eq!(cache.get(&array, ChunkId(1)).unwrap().unwrap()[0], 1);
    }

    #[test]
    fn a_chunk_larger_than_the_bound_is_kept_until_the_next() {
        let (store, array, cache) = setup(CHUNK / 2);
        for chunk in [3, 3, 3, 4, 4] {
            assert_eq!(cache.get(&array, ChunkId(chunk)).unwrap().unwrap()[0] as u64, chunk);
        }
        assert_eq!(store.gets.load(Ordering::SeqCst), 2);
        assert!(cache.used() < 2 * CHUNK);
    }

    #[test]
    fn a_panic_in_a_load_leaves_the_slot_free() {
        let (store, array, cache) = setup(1 << 20);
        store.panic.store(true, Ordering::SeqCst);
        let read = || cache.get(&array, ChunkId(2)).map(|c| c.unwrap()[0]);
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(read)).is_err());
        store.panic.store(false, Ordering::SeqCst);
        assert_eq!(read().unwrap(), 2);
    }
}
