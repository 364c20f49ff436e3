//! Arrays with *pending* chunks: they were put and wait below for others, which are stored together
//! with them. `array` says when such chunks are due to be stored; this module asks it after each
//! change, at a flush and on a thread of its own, and stores what is due.
//!
//! Invariant: an array with pending chunks is in `State::pending`, or one of its chunks is still
//! dirty. So a flush finds it.

use crate::array::{Array, Due, RecordedChunk, WriteBack};
use crate::cache::{Cache, State};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};
use zarrfs_base::error::{Error, Result};
use zarrfs_format::grid::ChunkId;

/// Interval at which the arrays with pending chunks are examined.
const LOOK: Duration = Duration::from_millis(500);

impl State {
    /// Forgets the arrays whose pending chunks are stored.
    fn retain_pending(&mut self) {
        self.pending.retain(|_, array| {
            let is_pending = array.has_pending();
            if !is_pending {
                array.freshness().remove_unstored();
            }
            is_pending
        });
    }
}

impl Cache {
    /// Stores pending chunks that are quiet, on a thread that ends with the cache.
    pub fn store_quiet(self: &Arc<Self>) -> Result<()> {
        let cache = Arc::downgrade(self);
        let spawned = thread::Builder::new()
            .name("quiet-objects".into())
            .spawn(move || run(&cache))?;
        // another look finds the arrays that were added before the thread was known
        self.quiet_thread
            .get_or_init(|| spawned.thread().clone())
            .unpark();
        Ok(())
    }

    /// Records that an array has pending chunks.
    pub fn add_pending(&self, array: &Arc<Array>) {
        if !array.has_pending() {
            return;
        }
        self.begin_counting(array);
        let former = self.lock().pending.insert(array.id(), array.clone());
        if former.is_none() {
            array.freshness().add_unstored();
        }
        if former.is_none()
            && let Some(thread) = self.quiet_thread.get()
        {
            thread.unpark();
        }
    }

    /// Makes `new` share the pending chunks of `old`, the same array with another first dimension.
    pub(super) fn transfer_pending(&self, old: &Arc<Array>, new: &Arc<Array>) {
        new.share_pending(old);
        // the former array, with its own grid, would mistake a new chunk for another one
        let former = self.lock().pending.remove(&old.id());
        self.add_pending(new);
        if former.is_some() {
            old.freshness().remove_unstored();
        }
    }

    /// Hands a chunk of an array over again that a killed daemon has left.
    ///
    /// # Errors
    ///
    /// Those of [`Array::hand_over_again`].
    pub fn hand_over_again(&self, array: &Arc<Array>, recorded: RecordedChunk) -> Result<()> {
        self.begin_counting(array);
        let done = array.hand_over_again(recorded);
        self.add_pending(array);
        done
    }

    /// Erases a chunk from the store and from the cache. Returns whether there was one.
    ///
    /// # Errors
    ///
    /// The store fails. The array then records the loss of the bytes that wait to be stored.
    pub fn erase_chunk(&self, array: &Arc<Array>, chunk: ChunkId) -> Result<bool> {
        self.begin_counting(array);
        let mut was_written = self.is_dirty(array, chunk);
        // do this without the chunk's lock: it waits for a write-back, which takes that lock
        self.discard_chunk(array, chunk);
        let erased = array
            .lock_chunk(chunk)
            .and_then(|_lock| array.erase(chunk, self.begin_write_back()));
        self.add_pending(array);
        // the next close of a file of the array reports a failure
        let _ = self.store_after(array, chunk, self.begin_write_back());
        was_written |= erased.is_err() && self.is_dirty(array, chunk);
        // another reader may have loaded the chunk meanwhile
        self.discard_chunk(array, chunk);
        if erased.is_err() && was_written {
            array.record_loss(
                chunk,
                "the chunk could not be removed",
                self.begin_write_back(),
            );
        }
        Ok(erased? || was_written)
    }

    /// Returns whether an array for which `of` returns true has pending chunks.
    pub fn has_pending(&self, of: impl Fn(&Array) -> bool) -> bool {
        self.lock()
            .pending
            .values()
            .any(|array| of(array) && array.has_pending())
    }

    /// Returns the arrays with pending chunks for which `of` returns true, and forgets those
    /// without any. First come those that another array with the same key has superseded: their
    /// chunks are older.
    fn with_pending(&self, of: impl Fn(&Array) -> bool) -> [Vec<Arc<Array>>; 2] {
        let mut state = self.lock();
        state.retain_pending();
        let (older, newest) = state
            .pending
            .values()
            .filter(|array| of(array))
            .cloned()
            .partition(|array| {
                let mut others = state.pending.values();
                others.any(|other| other.key() == array.key() && other.id() > array.id())
            });
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

    /// Writes back the dirty chunks of an array. Those of objects that hold several then wait there
    /// for others, unless an object could not be stored in the background, or a successor of this
    /// daemon would not have a chunk.
    pub fn hand_over(&self, array: &Array) -> Result<()> {
        let done = self.write_back_where(|of| of.key() == array.key());
        if self.has_pending(|of| of.key() == array.key() && !of.due(Due::Close).is_empty()) {
            return done.and(self.flush_array(array));
        }
        done
    }

    /// Stores all pending chunks of the arrays for which `of` returns true.
    pub(super) fn store_pending(&self, of: impl Fn(&Array) -> bool) -> Result<()> {
        let how = self.begin_write_back();
        let mut done = Ok(());
        for arrays in self.with_pending(of) {
            let mut list = Vec::new();
            for array in &arrays {
                let objects = array.due(Due::All);
                list.extend(objects.into_iter().map(|object| (array, object)));
            }
            done = done.and(self.store_each(
                &list,
                |(array, _)| array,
                |(array, object)| self.store_object(array, *object, how),
            ));
        }
        self.lock().retain_pending();
        done
    }

    /// Stores the pending chunks that are due after a chunk was put or erased.
    pub(super) fn store_after(&self, array: &Array, chunk: ChunkId, how: WriteBack) -> Result<()> {
        let mut due = array.due(Due::After(chunk)).into_iter();
        due.try_for_each(|object| self.store_object(array, object, how))
    }

    fn store_object(&self, array: &Array, object: u64, how: WriteBack) -> Result<()> {
        self.in_flight(array, || array.store_object(object, how))
    }

    /// Begins to store the pending chunks that are quiet at `now`. Returns the time until the next
    /// call; `None` if no array has pending chunks.
    fn begin_storing_quiet(self: &Arc<Self>, now: Instant) -> Option<Duration> {
        let [older, newest] = self.with_pending(|_| true);
        let pause = (!older.is_empty() || !newest.is_empty()).then_some(LOOK);
        let older = older.into_iter().map(|array| (array, Due::All));
        let newest = newest.into_iter().map(|array| (array, Due::Quiet(now)));
        for (array, due) in older.chain(newest) {
            let objects = array.due(due);
            if objects.is_empty() || !self.lock().may_write_back(array.id(), 1) {
                continue;
            }
            let cache = self.clone();
            let spawned = thread::Builder::new().name("store".into()).spawn(move || {
                for object in objects {
                    // the next close of a file of the array reports a failure
                    let _ = cache.store_object(&array, object, cache.begin_write_back());
                }
                cache.lock().retain_pending();
            });
            if let Err(e) = spawned {
                self.stats
                    .problem(format!("no thread to store chunks: {}", Error::from(e)));
            }
        }
        pause
    }
}

/// Stores quiet chunks until the cache is dropped.
fn run(cache: &Weak<Cache>) {
    while let Some(cache) = cache.upgrade() {
        let pause = cache.begin_storing_quiet(Instant::now());
        drop(cache);
        match pause {
            Some(pause) => thread::sleep(pause),
            // returns at once if an array was added since it returned last
            None => thread::park(),
        }
    }
}
