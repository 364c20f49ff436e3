//! How dirty chunks, write-backs and loads share memory, and which requests wait when it is short.
//!
//! **Invariant: a request waits for the store of its own array alone.** The calls to the store for
//! one array may hang or fail, because another process holds its lock or its disk is full. They
//! hold memory meanwhile, and must neither delay nor fail the requests of other arrays:
//!
//! * Three quarters of the bound may hold dirty chunks. A writer that finds no space stores chunks
//!   of its own array.
//! * An array without a dirty chunk gets space for one in the last quarter. One such chunk may
//!   exceed the bound and use the part of [`memory::RESERVE`] that grants leave. So each array
//!   progresses alone.
//! * Background threads store chunks of other arrays that no writer stores. An array takes a
//!   limited number of these threads, and none for a moment after a failure.
//! * A load or write-back that finds no other one of its array in flight may use that part of
//!   [`memory::RESERVE`], too.
//!
//! Encoders take a quarter of the bound, or less than [`LARGE_ENCODER`] each, or there is only one.
//! One that takes more may exceed the bound while dirty chunks fill the rest.
//!
//! Memory comes first. If the stores of many arrays fail together and their chunks exceed the
//! bound, a writer without a dirty chunk stores chunks of another array, if possible of one that is
//! not known to be slow. A load or write-back for which the memory does not suffice waits for
//! others.
//!
//! **No deadlock: memory is reserved before any lock of a chunk is taken**, and by a thread that
//! has none reserved. So a thread that has reserved memory waits for no other thread's reservation,
//! and the one that finds no memory reserved always proceeds, however many bytes are dirty.

use super::DirtyChunk;
use crate::array::Array;
use crate::cache::{Cache, State};
use std::collections::HashMap;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};
use zarrfs_base::error::Result;
use zarrfs_base::memory;
use zarrfs_base::pool::processors;

/// Approximate memory in bytes of a dirty chunk beside its decoded bytes and long lists of ranges.
pub(in crate::cache) const DIRTY_COST: usize = 1024;

/// Bytes of dirty chunks above which fully written ones are stored in the background.
const BACKGROUND_BYTES: usize = 32 << 20;

/// Share of the cache's bound that encoders take at the same time, as a divisor. It is the quarter
/// in which no chunk is dirty.
const ENCODER_SHARE: usize = 4;

/// Minimum size in bytes of an encoder that works without others of its kind. The usual codecs take
/// less, and one encoder at a time would leave many processors idle.
const LARGE_ENCODER: usize = 8 << 20;

/// Number of chunks that are encoded at the same time on few processors, and of those of an array
/// that are stored at the same time, however large they are.
pub(in crate::cache) const ENCODERS: usize = 4;

/// Minimum number of background threads. They store at most as many chunks of an array at a time.
pub const WRITE_BACK_THREADS: usize = 16;

/// Time for which background threads skip an array after a chunk of it could not be stored.
const PAUSE: Duration = Duration::from_secs(1);

/// Memory reserved for the loads and write-backs in flight.
#[derive(Default)]
pub(in crate::cache) struct Reservations {
    bytes: usize,
    /// Bytes by the number of the array. An array without a reservation is not in it.
    by_array: HashMap<u64, usize>,
}

impl Reservations {
    /// Returns the bytes of all arrays.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn add(&mut self, array: &Array, bytes: usize) {
        if bytes > 0 {
            self.bytes += bytes;
            *self.by_array.entry(array.id()).or_default() += bytes;
        }
    }

    pub fn remove(&mut self, array: &Array, bytes: usize) {
        self.bytes -= bytes;
        if let Some(left) = self.by_array.get_mut(&array.id()) {
            *left -= bytes;
            if *left == 0 {
                self.by_array.remove(&array.id());
            }
        }
    }

    fn has(&self, array: &Array) -> bool {
        self.by_array.contains_key(&array.id())
    }
}

/// Reserved memory, which is returned on drop.
pub(super) struct ReservedMemory<'a> {
    cache: &'a Cache,
    array: &'a Array,
    bytes: usize,
}

impl Drop for ReservedMemory<'_> {
    fn drop(&mut self) {
        let mut state = self.cache.lock();
        state.reserved.remove(self.array, self.bytes);
        self.cache.evict(&mut state, 0);
        self.cache.trim(&state);
        self.cache.wake(&state);
    }
}

/// The write-backs of an array, which requests for other arrays take into account.
#[derive(Default)]
pub(in crate::cache) struct WriteBacks {
    /// Number of write-backs in flight; they may wait for a lock or for the store.
    in_flight: usize,
    /// Time at which a write-back failed, if none has succeeded since.
    failed: Option<Instant>,
}

impl WriteBacks {
    fn failed_lately(&self) -> bool {
        self.failed.is_some_and(|at| at.elapsed() < PAUSE)
    }
}

/// A write-back in flight. It counts until it is dropped, also when it panics.
struct WriteBackInFlight<'a> {
    cache: &'a Cache,
    array: u64,
    has_failed: bool,
}

impl Drop for WriteBackInFlight<'_> {
    fn drop(&mut self) {
        let mut state = self.cache.lock();
        if let Some(write_backs) = state.write_backs.get_mut(&self.array) {
            write_backs.in_flight -= 1;
            write_backs.failed = self.has_failed.then(Instant::now);
        }
        state
            .write_backs
            .retain(|_, write_backs| write_backs.in_flight > 0 || write_backs.failed_lately());
    }
}

impl Cache {
    /// Returns the bytes that dirty chunks may take, three quarters of the bound, without the
    /// exceptions that [`Cache::has_space`] makes.
    fn dirty_bound(&self) -> usize {
        self.bound / 4 * 3
    }

    /// Returns whether one more chunk of `array` may become dirty.
    pub(super) fn has_space(&self, state: &State, array: &Array) -> bool {
        let taken = state.dirty_memory().saturating_add(DIRTY_COST);
        if state.dirty.is_empty()
            || taken.saturating_add(array.grid().max_chunk_size()) <= self.dirty_bound()
        {
            return true;
        }
        if array.freshness().is_dirty() || state.dirty_memory() > self.bound {
            return false;
        }
        // storing the chunk takes memory for its encoded form
        let limit = self.bound.saturating_add(memory::unused_reserve());
        taken.saturating_add(array.chunk_memory()) <= limit
    }

    /// Returns whether a load or write-back of `array` that needs `bytes` may begin. If no other
    /// one is in flight it always may, so that a chunk larger than the bound can be loaded, and
    /// each dirty chunk stored.
    pub(in crate::cache) fn may_load(&self, state: &State, array: &Array, bytes: usize) -> bool {
        let more = if state.reserved.has(array) {
            0
        } else {
            memory::unused_reserve()
        };
        let needed = self.needed_by(state).saturating_add(bytes);
        state.reserved.bytes() == 0 || needed <= self.bound.saturating_add(more)
    }

    /// Reserves memory for a load or write-back: evicts slots, and waits while others fill the
    /// cache, as [`Cache::may_load`] says. The calling thread must hold neither a chunk's lock nor
    /// reserved memory.
    pub(super) fn reserve<'a>(&'a self, array: &'a Array, bytes: usize) -> ReservedMemory<'a> {
        self.reserve_in(self.lock(), array, bytes);
        ReservedMemory {
            cache: self,
            array,
            bytes,
        }
    }

    /// Reserves more memory for a write-back without a wait, since the caller has locked its chunk:
    /// evicts slots.
    pub(super) fn reserve_more<'a>(&'a self, array: &'a Array, bytes: usize) -> ReservedMemory<'a> {
        let mut state = self.lock();
        state.reserved.add(array, bytes);
        self.evict(&mut state, 0);
        drop(state);
        ReservedMemory {
            cache: self,
            array,
            bytes,
        }
    }

    /// Reserves memory like [`Cache::reserve`], for a caller that has locked the state and returns
    /// the memory itself.
    pub(in crate::cache) fn reserve_in<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        array: &Array,
        bytes: usize,
    ) {
        loop {
            self.evict(&mut state, bytes);
            if self.may_load(&state, array, bytes) {
                state.reserved.add(array, bytes);
                return;
            }
            state = self.wait(state);
        }
    }

    /// Returns the memory in bytes that each of the encoders at work may take.
    pub(super) fn encoder_share(&self) -> usize {
        let share = self.bound / ENCODER_SHARE / ENCODERS.max(processors());
        share.max(LARGE_ENCODER)
    }

    /// Stores dirty chunks of `array`, so that another one of it may become dirty.
    ///
    /// # Errors
    ///
    /// The error of a chunk that could not be stored. A lost chunk makes space, too, and the next
    /// close of a file of its array reports the loss.
    pub fn make_space(&self, array: &Array) -> Result<()> {
        let mut state = self.lock();
        state.short_of_space = Some(array.id());
        let own = state.take_oldest(array.id(), self.flush_threads(array));
        if !own.is_empty() {
            drop(state);
            return self.write_back_all(&own);
        }
        if self.has_space(&state, array) {
            return Ok(());
        }
        let others = state.newest_of_others(self.flush_threads(array));
        let before = state.dirty_bytes;
        drop(state);
        let stored = self.write_back_all(&others);
        // if there is space now, this array does not depend on a chunk of another one that failed
        if self.lock().dirty_bytes < before {
            Ok(())
        } else {
            stored
        }
    }

    /// Stores a chunk in the background: a fully written one if many bytes are dirty or, after the
    /// writer of an array found no space, the oldest one of another array. Returns false if there
    /// was nothing to do.
    pub fn flush_in_background(&self) -> Result<bool> {
        let max = |array: &Array| self.flush_threads(array).min(WRITE_BACK_THREADS);
        let next = self.lock().next_in_background(self.background_bound(), max);
        let Some((dirty, keep)) = next else {
            return Ok(false);
        };
        self.write_back(&dirty, self.begin_write_back())?;
        if !keep {
            self.drop_items(&dirty.array, std::iter::once(dirty.key().1));
        }
        Ok(true)
    }

    /// Returns whether [`Cache::flush_in_background`] may have something to do.
    pub fn wants_background_flush(&self) -> bool {
        let state = self.lock();
        state.short_of_space.is_some()
            || state.dirty_memory() > self.background_bound() && !state.fully_written.is_empty()
    }

    fn background_bound(&self) -> usize {
        BACKGROUND_BYTES.min(self.dirty_bound() / 4)
    }

    /// Calls `store`, a write-back of `array`, and records meanwhile that it is in flight, then
    /// whether it has failed.
    pub(super) fn in_flight(
        &self,
        array: &Array,
        store: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        self.lock()
            .write_backs
            .entry(array.id())
            .or_default()
            .in_flight += 1;
        let mut in_flight = WriteBackInFlight {
            cache: self,
            array: array.id(),
            has_failed: true,
        };
        let done = store();
        in_flight.has_failed = done.is_err();
        done.map_err(|e| self.stats.not_stored(e))
    }
}

impl State {
    /// Returns the approximate memory of all dirty chunks: their decoded bytes, and [`DIRTY_COST`]
    /// for each.
    pub(in crate::cache) fn dirty_memory(&self) -> usize {
        self.dirty_bytes + self.dirty.len() * DIRTY_COST
    }

    /// Returns whether fewer than `max` write-backs of the array are in flight and none has failed
    /// lately.
    pub(super) fn may_write_back(&self, array: u64, max: usize) -> bool {
        self.write_backs
            .get(&array)
            .is_none_or(|known| known.in_flight < max && !known.failed_lately())
    }

    /// Returns up to `max` chunks of the array: fully written ones, which leave their queue, or
    /// else the oldest.
    fn take_oldest(&mut self, array: u64, max: usize) -> Vec<Arc<DirtyChunk>> {
        let fully_written = self.fully_written.range((array, 0)..=(array, u64::MAX));
        let list: Vec<_> = fully_written
            .filter_map(|(_, number)| self.dirty_by_age.get(number))
            .take(max)
            .cloned()
            .collect();
        if list.is_empty() {
            return self.oldest_of(array, max);
        }
        for dirty in &list {
            self.fully_written.remove(&dirty.place());
        }
        list
    }

    /// Returns up to `max` chunks of one array: the one that became dirty last among those whose
    /// write-backs neither wait nor fail. Returns the oldest of all chunks if there is no such
    /// array.
    fn newest_of_others(&self, max: usize) -> Vec<Arc<DirtyChunk>> {
        let mut newest = self.dirty_by_age.values().rev();
        match newest.find(|dirty| self.may_write_back(dirty.array.id(), 1)) {
            Some(newest) => self.oldest_of(newest.array.id(), max),
            None => self.dirty_by_age.values().take(max).cloned().collect(),
        }
    }

    /// Returns the oldest chunks of an array, at most `max`.
    fn oldest_of(&self, array: u64, max: usize) -> Vec<Arc<DirtyChunk>> {
        let all = self.oldest_dirty(|of| of.id() == array);
        all.take(max).cloned().collect()
    }

    /// Returns the oldest fully written chunk of each array.
    fn oldest_fully_written(&self) -> impl Iterator<Item = &Arc<DirtyChunk>> {
        let first = self.fully_written.first();
        let places = std::iter::successors(first, |(array, _)| {
            self.fully_written.range((array + 1, 0)..).next()
        });
        places.filter_map(|(_, number)| self.dirty_by_age.get(number))
    }

    /// Takes the chunk that a background thread stores next. Returns it, and whether it stays in
    /// the cache. `bound` is the number of bytes that may be dirty before fully written chunks are
    /// stored, `max` the number of chunks of an array that are stored at a time.
    fn next_in_background(
        &mut self,
        bound: usize,
        max: impl Fn(&Array) -> usize,
    ) -> Option<(Arc<DirtyChunk>, bool)> {
        if self.dirty_memory() > bound {
            let next = self
                .oldest_fully_written()
                .filter(|dirty| self.may_write_back(dirty.array.id(), max(&dirty.array)))
                .min_by_key(|dirty| dirty.number)
                .cloned();
            if let Some(next) = next {
                self.fully_written.remove(&next.place());
                // the kernel's pages serve its writer, and the next chunk needs the memory
                return Some((next, false));
            }
        }
        let short = self.short_of_space.take()?;
        let oldest = self
            .oldest_dirty(|array| array.id() != short && self.may_write_back(array.id(), 1))
            .next()?;
        Some((oldest.clone(), true))
    }
}

#[cfg(test)]
mod tests;
