//! Memory that dirty chunks and loads share, and who waits when it is short.
//!
//! **Invariant: a request waits for the store of its own array alone.** The calls to the store for one array may hang or
//! fail, because another process holds its lock or its disk is full. They hold memory meanwhile, and must neither
//! delay nor fail the requests of other arrays:
//!
//! * Three quarters of the bound may hold dirty chunks. A writer that finds no room stores chunks of its own array.
//! * An array without a dirty chunk gets room for one in the last quarter, and one such chunk of all may reach beyond
//!   the bound, into what grants leave of [`memory::RESERVE`]. So each array progresses alone.
//! * Background threads store the chunks that other arrays leave lying. An array takes a limited number of these
//!   threads, and none for a moment after a failure.
//! * A load that finds no other load of its array in flight may use what grants leave of [`memory::RESERVE`], too.
//!
//! Memory comes first. If the stores of many arrays fail together and their chunks reach beyond the bound, a writer
//! without a dirty chunk stores those of another array, of one that is not known to be slow if there is one; and a load
//! for which the memory does not suffice waits for other loads.

use super::written::{Written, flush_threads};
use super::{Cache, State};
use crate::array::Array;
use crate::error::Result;
use crate::util::memory;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Share of the cache's bound that dirty chunks may take.
const SHARE: (usize, usize) = (3, 4);

/// Bytes of dirty chunks from which on those that were written from end to end are stored in the background.
const BEHIND: usize = 32 << 20;

/// Maximum number of chunks of one array that background threads store at the same time: as many as there are such
/// threads for a remote store, and a quarter of those that there can be.
const BEHIND_AT_ONCE: usize = 16;

/// How long background threads leave an array alone after a chunk of it could not be stored.
const PAUSE: Duration = Duration::from_secs(1);

/// Memory reserved for the loads in flight.
#[derive(Default)]
pub(super) struct Reservations {
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

/// Counts the write-backs of an array that other arrays have to take into account.
#[derive(Default)]
pub(super) struct Stores {
    /// Number of write-backs in flight; they may wait for a lock or for the store.
    in_flight: usize,
    /// When a write-back failed, if none succeeded since.
    failed: Option<Instant>,
}

impl Stores {
    fn failed_lately(&self) -> bool {
        self.failed.is_some_and(|at| at.elapsed() < PAUSE)
    }
}

/// A write-back in flight. It counts until it is dropped, also when it panics.
pub(super) struct StoreInFlight<'a> {
    cache: &'a Cache,
    array: u64,
    pub has_failed: bool,
}

impl Drop for StoreInFlight<'_> {
    fn drop(&mut self) {
        let mut state = self.cache.lock();
        if let Some(stores) = state.stores.get_mut(&self.array) {
            stores.in_flight -= 1;
            stores.failed = self.has_failed.then(Instant::now);
        }
        state.stores.retain(|_, stores| stores.in_flight > 0 || stores.failed_lately());
    }
}

impl Cache {
    /// Returns the bytes that dirty chunks may take in general.
    fn written_bound(&self) -> usize {
        self.bound() / SHARE.1 * SHARE.0
    }

    /// Whether one more chunk of `array` may become dirty.
    pub(super) fn has_room(&self, state: &State, array: &Array) -> bool {
        let with = |more: usize| state.written_bytes.saturating_add(more);
        // storing the chunk needs room for its encoded form
        let is_first_with_room = || {
            let most = self.bound.saturating_add(memory::unused_reserve());
            !array.is_dirty() && state.written_bytes <= self.bound && with(array.chunk_memory()) <= most
        };
        state.written.is_empty() || with(array.grid().chunk_size()) <= self.written_bound() || is_first_with_room()
    }

    /// Whether a load of `array` that needs `bytes` may begin. If no other load is in flight it always may, so that a chunk
    /// larger than the bound can be loaded.
    pub(super) fn may_load(&self, state: &State, array: &Array, bytes: usize) -> bool {
        let more = if state.reserved.has(array) { 0 } else { memory::unused_reserve() };
        let needed = self.needed_by(state).saturating_add(bytes);
        state.reserved.bytes() == 0 || needed <= self.bound.saturating_add(more)
    }

    /// Stores dirty chunks of `array`, so that another one of it may become dirty.
    ///
    /// # Errors
    ///
    /// The error of a chunk that could not be stored.
    pub fn make_room(&self, array: &Array) -> Result<()> {
        let mut state = self.lock();
        state.short_of_room = Some(array.id());
        let own = state.take_oldest(array.id(), flush_threads(array));
        if !own.is_empty() {
            drop(state);
            return self.write_back_all(&own);
        }
        if self.has_room(&state, array) {
            return Ok(());
        }
        let (others, before) = (state.newest_of_others(flush_threads(array)), state.written_bytes);
        drop(state);
        let stored = self.write_back_all(&others);
        // the failure of one chunk of another array is none of this one as long as there is room
        if self.lock().written_bytes < before { Ok(()) } else { stored }
    }

    /// Stores a chunk in the background: one that was written from end to end, if so much is dirty that it is time, or one
    /// of another array than the one whose writer found no room. Returns false if there was nothing to do.
    pub fn flush_behind(&self) -> Result<bool> {
        let next = self.lock().next_behind(self.behind_bound());
        let Some((written, keep)) = next else { return Ok(false) };
        self.write_back_since(&written, Instant::now(), keep)?;
        Ok(true)
    }

    /// Whether [`Cache::flush_behind`] may have something to do.
    pub fn wants_flush(&self) -> bool {
        let state = self.lock();
        state.short_of_room.is_some() || state.written_bytes > self.behind_bound() && !state.whole.is_empty()
    }

    fn behind_bound(&self) -> usize {
        BEHIND.min(self.written_bound() / 4)
    }

    /// Records that a write-back of `array` begins.
    pub(super) fn begin_store(&self, array: &Array) -> StoreInFlight<'_> {
        self.lock().stores.entry(array.id()).or_default().in_flight += 1;
        StoreInFlight { cache: self, array: array.id(), has_failed: true }
    }
}

impl State {
    /// Whether fewer than `many` write-backs of the array are in flight and none has failed lately.
    fn may_store(&self, array: u64, many: usize) -> bool {
        self.stores.get(&array).is_none_or(|stores| stores.in_flight < many && !stores.failed_lately())
    }

    /// Returns up to `many` chunks of the array: those that were written from end to end, or else the oldest.
    fn take_oldest(&mut self, array: u64, many: usize) -> Vec<Arc<Written>> {
        let mut list: Vec<Arc<Written>> = Vec::new();
        self.whole.retain(|key| {
            let takes = key.0 == array && list.len() < many;
            if takes {
                list.extend(self.written.get(key).cloned());
            }
            !takes
        });
        if list.is_empty() {
            list = self.sorted(|written| written.array.id() == array);
            list.truncate(many);
        }
        list
    }

    /// Returns up to `many` chunks of the array that began to write last, of those whose stores neither wait nor fail; the
    /// oldest of all chunks if there is no such array.
    fn newest_of_others(&self, many: usize) -> Vec<Arc<Written>> {
        let mut list = self.sorted(|written| self.may_store(written.array.id(), 1));
        match list.last().map(|written| written.array.id()) {
            Some(last) => list.retain(|written| written.array.id() == last),
            None => list = self.sorted(|_| true),
        }
        list.truncate(many);
        list
    }

    /// Takes the chunk that a background thread stores next, and whether the cache shall keep it; `bound` is how much may
    /// be dirty before that begins.
    fn next_behind(&mut self, bound: usize) -> Option<(Arc<Written>, bool)> {
        if self.written_bytes > bound
            && let Some(at) = self.whole.iter().position(|key| self.may_store(key.0, BEHIND_AT_ONCE))
            && let Some(key) = self.whole.remove(at)
        {
            // the kernel has what its writer may want again, and the next chunk wants the memory
            return Some((self.written.get(&key)?.clone(), false));
        }
        let short = self.short_of_room.take()?;
        let others = self.written.values().filter(|w| w.array.id() != short && self.may_store(w.array.id(), 1));
        others.min_by_key(|w| w.number).map(|w| (w.clone(), true))
    }
}

#[cfg(test)]
mod tests;
