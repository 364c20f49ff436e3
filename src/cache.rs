//! Decoded chunks of all arrays within one bound of bytes: `chunk_cache` loads and keeps them,
//! `write_back` keeps written bytes until they are stored, `prefetch` loads the chunks that readers
//! will need next, `buffers` reuses their memory. This module knows arrays and chunks, not files or
//! requests.
//!
//! Locks: one over `State`; `write_back` has more for each dirty chunk. The state is never locked
//! while a chunk is loaded, revalidated or copied. A thread that waits, for another thread's load
//! or for memory, holds neither a lock nor a chunk. A load or write-back waits for memory only
//! before it asks the store, and only while others are in flight; these end without waiting for
//! memory again. `write_back::space` states how arrays share memory.

mod buffers;
mod chunk_cache;
mod prefetch;
mod seek_points;
mod semaphore;
mod unstored;
mod write_back;

pub use crate::array::Ranges;
pub use chunk_cache::{CachedRun, ChunkPart, DecodedPart, FoundBytes};
pub use prefetch::{PrefetchState, Prefetcher};
pub use unstored::UnstoredChunks;
pub use write_back::{Creates, Part, WRITE_BACK_THREADS};
pub use zarrfs_base::spill_file::SpillOptions;

use crate::array::{Array, Losses, ServedVersions};
use buffers::Buffers;
use chunk_cache::{CacheKey, Slot};
use lru::LruCache;
use seek_points::SeekCache;
use semaphore::Semaphore;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;
use write_back::{DIRTY_COST, DirtyChunk, ENCODERS, Reservations, WriteBacks};
use zarrfs_base::error::Error;
use zarrfs_base::memory::{self, Reclaim, lock};
use zarrfs_base::pool::processors;
use zarrfs_base::spill_file::SpillFile;
use zarrfs_base::stats::Stats;
use zarrfs_outlive::KeyedCounts;

/// Whether a call may wait for the store, for a lock that is held during a call to the store, or
/// for another request. If a call would have to wait and must not, it returns without a result, and
/// the caller repeats it on a thread that may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The call answers from memory or not at all.
    Never,
    /// The call may wait.
    Allowed,
}

impl Wait {
    /// Locks `mutex`. Returns `None` if it is locked and the call must not wait.
    pub fn lock<T>(self, mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
        match self {
            Wait::Allowed => Some(lock(mutex)),
            Wait::Never => mutex.try_lock().ok(),
        }
    }
}

/// Approximate memory of a slot beside its chunk, in bytes. An uninitialized chunk takes nothing
/// else.
const SLOT_COST: usize = 256;

struct State {
    slots: LruCache<CacheKey, Slot>,
    /// Memory reserved for loads and write-backs in flight.
    reserved: Reservations,
    /// The dirty chunks. They take precedence over their slots.
    dirty: HashMap<CacheKey, Arc<DirtyChunk>>,
    /// Decoded bytes of all dirty chunks.
    dirty_bytes: usize,
    /// The dirty chunks by their numbers, oldest first.
    dirty_by_age: BTreeMap<u64, Arc<DirtyChunk>>,
    /// The fully written dirty chunks by the number of their array, then by their own.
    fully_written: BTreeSet<(u64, u64)>,
    /// Number of chunks that became dirty so far.
    dirtied: u64,
    /// The arrays with pending chunks, by their numbers.
    pending: HashMap<u64, Arc<Array>>,
    /// Write-backs in flight and failed ones, by the number of their array.
    write_backs: HashMap<u64, WriteBacks>,
    /// Number of threads that wait for a change.
    waiting: usize,
    /// Number of the array whose writer last found no space. It is cleared when a background thread
    /// stores a chunk of another array for it.
    short_of_space: Option<u64>,
}

/// The cache of decoded chunks.
///
/// ```
/// use std::sync::Arc;
/// use zarrfs::array::Array;
/// use zarrfs::cache::{Cache, ChunkPart, Creates};
/// use zarrfs_base::stats::Stats;
/// use zarrfs_store::{Key, MemoryStore};
/// use zarrfs_format::grid::ChunkId;
/// use zarrfs_format::metadata::ArrayMetadata;
///
/// let (store, stats) = (MemoryStore::default(), Arc::<Stats>::default());
/// store.insert("a/1.0", [5, 6]);
/// let metadata = ArrayMetadata::parse(br#"{"zarr_format": 2, "shape": [2, 2], "chunks": [1, 2], "dtype": "|u1",
///     "compressor": null, "filters": null, "fill_value": 9, "order": "C"}"#)?;
/// let array = Array::new(Key::normalize("a")?, metadata, Arc::new(store), stats.clone())?;
/// let (array, cache) = (Arc::new(array), Cache::new(1 << 20, stats.clone()));
///
/// let chunk = cache.get(&array, ChunkId(1), ChunkPart::Whole)?.unwrap();
/// assert_eq!(chunk.bytes(), [5, 6]);
/// drop(chunk);
/// // a written chunk is dirty, and every reader gets it, until it is stored
/// cache.try_write_parts(&array, ChunkId(1), &[(0, &[7])], Creates::UnlessEmpty)?;
/// assert_eq!(cache.get(&array, ChunkId(1), ChunkPart::Whole)?.unwrap().bytes(), [7, 6]);
/// assert_eq!(stats.stores.get(), 0);
/// cache.flush_array(&array)?;
/// assert_eq!(stats.stores.get(), 1);
/// # Ok::<(), zarrfs_base::error::Error>(())
/// ```
pub struct Cache {
    bound: usize,
    buffers: Arc<Buffers>,
    /// Protects the slots, the dirty chunks and the reservations.
    state: Mutex<State>,
    /// Notified when a load has ended or a reservation is returned.
    changed: Condvar,
    served: ServedVersions,
    /// Whether a chunk that holds nothing but the fill value is erased instead of stored.
    drops_empty: bool,
    /// Spill file for chunks that were handed over and do not fit into memory.
    spill: Option<Arc<SpillFile>>,
    /// The thread that stores quiet objects. It is parked while no array has pending chunks.
    quiet_thread: OnceLock<Thread>,
    /// The numbers of unstored chunks of each array, if they outlive the daemon.
    unstored_counts: OnceLock<KeyedCounts>,
    /// The losses that no request has reported yet.
    losses: Losses,
    /// Limit of the number of chunks of remote arrays that are decoded at the same time.
    decoding: Semaphore,
    /// Limit of the number of chunks that write-backs encode at the same time.
    encoding: Semaphore,
    /// The permit of an encoder that takes more than its share of the memory.
    large_encoding: Semaphore,
    seek_points: Arc<SeekCache>,
    stats: Arc<Stats>,
}

impl Cache {
    /// Counts the unstored chunks of each array in `counts` from now on.
    pub fn count_unstored(&self, counts: KeyedCounts) {
        let _ = self.unstored_counts.set(counts);
    }

    /// Begins to count the unstored chunks of an array that is about to have some.
    pub fn begin_counting(&self, array: &Array) {
        if let Some(counts) = self.unstored_counts.get() {
            let count = || counts.of(array.key().as_str());
            array.freshness().count_unstored(count);
        }
    }

    /// Returns a cache of at most `bound` bytes, or of one chunk that is larger than that.
    pub fn new(bound: usize, stats: Arc<Stats>) -> Self {
        let state = State {
            slots: LruCache::unbounded(),
            reserved: Reservations::default(),
            dirty: HashMap::new(),
            dirty_bytes: 0,
            dirty_by_age: BTreeMap::new(),
            fully_written: BTreeSet::new(),
            dirtied: 0,
            pending: HashMap::new(),
            write_backs: HashMap::new(),
            waiting: 0,
            short_of_space: None,
        };
        Cache {
            bound,
            buffers: Arc::default(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            served: ServedVersions::default(),
            drops_empty: false,
            spill: None,
            quiet_thread: OnceLock::new(),
            unstored_counts: OnceLock::new(),
            losses: Losses::default(),
            decoding: Semaphore::new(processors()),
            encoding: Semaphore::new(ENCODERS.max(processors())),
            large_encoding: Semaphore::new(1),
            seek_points: SeekCache::new(),
            stats,
        }
    }

    /// Sets whether a written chunk that holds nothing but the fill value is erased instead of
    /// stored.
    pub fn dropping_empty(mut self, yes: bool) -> Self {
        self.drops_empty = yes;
        self
    }

    /// Sets the spill file for chunks that were handed over and do not fit into memory.
    pub fn spilling(mut self, file: Arc<SpillFile>) -> Self {
        self.spill = Some(file);
        self
    }

    /// Returns that spill file.
    pub fn spill(&self) -> Option<&Arc<SpillFile>> {
        self.spill.as_ref()
    }

    /// Sets how many threads decode chunks of remote arrays; one per core by default.
    pub fn decoding_with(mut self, threads: usize) -> Self {
        self.decoding = Semaphore::new(threads);
        self
    }

    /// Returns the bound in bytes.
    pub fn bound(&self) -> usize {
        self.bound
    }

    /// Returns the bytes of chunks, in use and idle.
    pub fn used(&self) -> usize {
        self.held_by(&self.lock())
    }

    /// Waits until another thread calls [`Cache::wake`].
    fn wait<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.waiting += 1;
        let mut state = self
            .changed
            .wait(state)
            .unwrap_or_else(PoisonError::into_inner);
        state.waiting -= 1;
        state
    }

    /// Wakes the threads that wait for a change. If none waits, no system call is made.
    fn wake(&self, state: &State) {
        if state.waiting > 0 {
            self.changed.notify_all();
        }
    }

    /// Returns the losses that no request has reported yet.
    pub fn losses(&self) -> &Losses {
        &self.losses
    }

    /// Returns the versions of chunks that were served.
    pub fn served(&self) -> &ServedVersions {
        &self.served
    }

    /// Counts and reports a chunk that could not be loaded. Returns the error as one that is on
    /// record.
    fn record_failure(&self, e: Error) -> Error {
        self.stats.failures.add(1);
        self.stats.met(e)
    }

    /// Drops idle buffers while the cache exceeds its bound.
    fn trim(&self, state: &State) {
        while self.used_by(state) > self.bound && self.buffers.free_idle() {}
    }

    fn held_by(&self, state: &State) -> usize {
        let slots = state.slots.len() * SLOT_COST + state.dirty.len() * DIRTY_COST;
        self.buffers.bytes() + state.reserved.bytes() + slots
    }

    /// Returns the bytes that count against the bound: also the part of the process's grants that
    /// exceeds their reserve.
    fn used_by(&self, state: &State) -> usize {
        self.held_by(state) + memory::above_reserve()
    }

    /// Returns the bytes in use without idle buffers, which a load may take over.
    fn needed_by(&self, state: &State) -> usize {
        self.used_by(state).saturating_sub(self.buffers.idle())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        if let Some(thread) = self.quiet_thread.get() {
            thread.unpark();
        }
    }
}

impl Reclaim for Cache {
    /// Drops chunks, so that documents fit into memory beside the rest.
    fn shrink(&self) {
        let Ok(mut state) = self.state.try_lock() else {
            return;
        };
        self.evict(&mut state, 0);
        self.trim(&state);
    }
}

#[cfg(test)]
mod tests;
