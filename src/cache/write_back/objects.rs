//! Decides when the objects of shards are stored. A write-back of a chunk of a shard hands it over
//! to its object; the object is stored
//!
//! * when all of its chunks were handed over as a whole, by the write-back of the last one,
//! * when the array is flushed: at close of its flat bytes, fsync, sync and unmount,
//! * when it was not changed for a while,
//! * when neither memory nor the spill file has space for another chunk: then the one that waits
//!   longest comes first.
//!
//! Invariant: an array with pending chunks is in `State::pending`, or one of its chunks is still
//! dirty. So a flush finds it.

use super::flush::flush_threads;
use crate::array::{Array, are_too_many};
use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::util::memory::lock;
use crate::util::pool::on_threads;
use crate::zarr::grid::ChunkId;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Interval at which the arrays with pending chunks are examined.
const LOOK: Duration = Duration::from_millis(500);

/// The timer that wakes the thread that stores quiet objects.
#[derive(Default)]
pub(in crate::cache) struct QuietTimer {
    /// Protects the state.
    state: Mutex<TimerState>,
    changed: Condvar,
}

#[derive(Default)]
struct TimerState {
    /// Whether an array has pending chunks.
    is_needed: bool,
    has_ended: bool,
}

impl QuietTimer {
    fn set(&self, change: impl FnOnce(&mut TimerState)) {
        change(&mut lock(&self.state));
        self.changed.notify_all();
    }

    /// Ends the thread.
    pub fn end(&self) {
        self.set(|state| state.has_ended = true);
    }

    /// Waits until an array has pending chunks, at most for `pause` if that is given. Returns false
    /// at the end.
    fn wait(&self, pause: Option<Duration>) -> bool {
        let state = lock(&self.state);
        let state = match pause {
            Some(pause) => {
                let waited = self
                    .changed
                    .wait_timeout_while(state, pause, |state| !state.has_ended);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            None => {
                let is_idle = |state: &mut TimerState| !state.has_ended && !state.is_needed;
                self.changed
                    .wait_while(state, is_idle)
                    .unwrap_or_else(PoisonError::into_inner)
            }
        };
        !state.has_ended
    }
}

impl Cache {
    /// Stores objects that are quiet, on a thread that ends with the cache.
    pub fn store_quiet_objects(self: &Arc<Self>) -> Result<()> {
        let cache = Arc::downgrade(self);
        let timer = self.timer.clone();
        std::thread::Builder::new()
            .name("quiet-objects".into())
            .spawn(move || run(&cache, &timer))?;
        Ok(())
    }

    /// Records that an array has pending chunks.
    pub fn add_pending(&self, array: &Arc<Array>) {
        if array.has_shards()
            && self
                .lock()
                .pending
                .insert(array.id(), array.clone())
                .is_none()
        {
            self.timer.set(|state| state.is_needed = true);
        }
    }

    /// Makes `new` share the pending chunks of `old`, the same array with another first dimension.
    pub(super) fn transfer_pending(&self, old: &Arc<Array>, new: &Arc<Array>) {
        new.share_pending(old);
        // the former array, with its own grid, would mistake a new chunk for another one
        self.lock().pending.remove(&old.id());
        self.add_pending(new);
    }

    /// Records that a chunk of an array was erased. Stores its object if all its chunks were erased
    /// or written.
    pub fn record_erased(&self, array: &Arc<Array>, chunk: ChunkId) {
        self.add_pending(array);
        if let Some(object) = array.complete_object(chunk) {
            // the next close of a file of the array reports a failure
            let _ = self.store_object(array, object, Instant::now());
        } else if are_too_many() {
            self.free_pending_space(array);
        }
    }

    /// Returns whether an array for which `of` returns true has pending chunks.
    pub fn has_pending(&self, of: impl Fn(&Array) -> bool) -> bool {
        self.lock()
            .pending
            .values()
            .any(|array| of(array) && !array.pending().is_empty())
    }

    /// Returns the arrays with pending chunks for which `of` returns true, and forgets those
    /// without any. First come those that another array with the same key has superseded: their
    /// chunks are older.
    fn with_pending(&self, of: impl Fn(&Array) -> bool) -> [Vec<Arc<Array>>; 2] {
        let mut state = self.lock();
        state.pending.retain(|_, array| !array.pending().is_empty());
        let is_older = |array: &Arc<Array>| {
            state
                .pending
                .values()
                .any(|other| other.key() == array.key() && other.id() > array.id())
        };
        let (older, newest) = state
            .pending
            .values()
            .filter(|array| of(array))
            .cloned()
            .partition(is_older);
        [older, newest]
    }

    /// Stores the pending chunks of other `Array`s with the key of `array`, which stood for it
    /// before its metadata changed.
    pub fn store_superseded(&self, array: &Array) {
        let is_superseded = |other: &Array| other.key() == array.key() && other.id() != array.id();
        if self.has_pending(is_superseded)
            && let Err(e) = self.flush_where(is_superseded)
        {
            log::debug!("{e}");
        }
    }

    /// Hands over the dirty chunks of an array. Without shards, or if an object could not be stored
    /// in the background, stores all of them as [`Cache::flush_array`] does.
    pub fn hand_over(&self, array: &Array) -> Result<()> {
        if !array.has_shards() || self.take_unstored_object(array) {
            return self.flush_array(array);
        }
        self.write_back_where(|of| of.id() == array.id() || of.key() == array.key())
    }

    /// Stores the objects with pending chunks of the arrays for which `of` returns true, several at
    /// a time.
    pub(super) fn store_pending(&self, of: impl Fn(&Array) -> bool) -> Result<()> {
        let since = Instant::now();
        let mut done = Ok(());
        for arrays in self.with_pending(of) {
            let objects_of = |array: &Arc<Array>| {
                array
                    .pending()
                    .objects()
                    .into_iter()
                    .map(|object| (array.clone(), object))
                    .collect::<Vec<_>>()
            };
            let list: Vec<_> = arrays.iter().flat_map(objects_of).collect();
            let next = AtomicUsize::new(0);
            let work = || {
                let mut done = Ok(());
                while !self.is_in_vain(&done)
                    && let Some((array, object)) = list.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    done = done.and(self.store_object(array, *object, since));
                }
                done
            };
            let threads = arrays
                .iter()
                .map(|array| flush_threads(array))
                .max()
                .unwrap_or(1);
            done = done.and(on_threads(threads.min(list.len()), &work));
        }
        done
    }

    /// Stores the pending chunks of an object.
    pub(super) fn store_object(
        &self,
        array: &Arc<Array>,
        object: u64,
        since: Instant,
    ) -> Result<()> {
        let mut in_flight = self.begin_write_back(array);
        let done = array.store_object(object, self.spill.as_ref(), since, &mut |e| {
            self.record_loss(array, e)
        });
        in_flight.has_failed = done.is_err();
        done.inspect_err(|e| {
            self.record_unstored_object(array);
            self.stats.problem(format!("not stored: {e}"));
        })
    }

    /// Stores an object of `array`, so that there is space for another pending chunk. Returns
    /// whether there was one that could be stored.
    pub(super) fn free_pending_space(&self, array: &Arc<Array>) -> bool {
        let objects = array.pending().objects();
        objects
            .into_iter()
            .any(|object| self.store_object(array, object, Instant::now()).is_ok())
    }

    /// Begins to store the objects that are quiet at `now`. Returns the time until the next call;
    /// `None` if no array has pending chunks.
    fn begin_storing_quiet(self: &Arc<Self>, now: Instant) -> Option<Duration> {
        // first of all: an array that is added meanwhile needs another call
        self.timer.set(|state| state.is_needed = false);
        let [older, newest] = self.with_pending(|_| true);
        let pause = (!older.is_empty() || !newest.is_empty()).then_some(LOOK);
        for (array, is_older) in older
            .into_iter()
            .map(|array| (array, true))
            .chain(newest.into_iter().map(|a| (a, false)))
        {
            let objects = if is_older {
                array.pending().objects()
            } else {
                array.pending().quiet(now)
            };
            if objects.is_empty() || !self.lock().may_write_back(array.id(), 1) {
                continue;
            }
            let cache = self.clone();
            let store = move || {
                objects
                    .iter()
                    .for_each(|object| drop(cache.store_object(&array, *object, Instant::now())))
            };
            if let Err(e) = std::thread::Builder::new()
                .name("store".into())
                .spawn(store)
            {
                self.stats
                    .problem(format!("no thread to store chunks: {}", Error::from(e)));
            }
        }
        pause
    }
}

/// Stores quiet objects until the timer ends.
fn run(cache: &Weak<Cache>, timer: &QuietTimer) {
    let mut pause = None;
    while timer.wait(pause) {
        let Some(cache) = cache.upgrade() else { return };
        pause = cache.begin_storing_quiet(Instant::now());
    }
}
