//! Stores the dirty chunks that a request selects: one, those of an array, or all of them, several
//! at a time.

use super::DirtyChunk;
use super::space::{ENCODERS, WRITE_BACK_THREADS};
use crate::array::{Array, Losses, WriteBack};
use crate::cache::Cache;
use crate::cache::chunk_cache::CachedItem;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use zarrfs_base::error::Result;
use zarrfs_base::memory::lock;
use zarrfs_base::pool::{on_threads, processors};
use zarrfs_format::grid::ChunkId;

/// Share of the cache's bound that the chunks take which are stored at the same time beyond
/// [`ENCODERS`], as a divisor.
const WRITE_BACK_SHARE: usize = 16;

impl Cache {
    /// Returns the number of threads that store chunks of an array. They mostly wait, for the disk
    /// or for a server. Files that are synced at the same time share commits of a journal.
    pub(super) fn flush_threads(&self, array: &Array) -> usize {
        // each reserves its chunk twice, and readers need memory, too
        let in_memory = self.bound / WRITE_BACK_SHARE / array.grid().max_chunk_size().max(1);
        let waiting = array.concurrent_puts(in_memory.min(WRITE_BACK_THREADS));
        waiting.max(array.concurrency(ENCODERS.max(processors())))
    }

    /// Stores a chunk if it is dirty, or hands it over to its object. Waits for a write-back of it
    /// in flight. A loss is recorded for the next close of a file of the array.
    pub fn flush_chunk(&self, array: &Array, chunk: ChunkId) -> Result<()> {
        match self.dirty_chunk(array, chunk) {
            Some(dirty) => self.write_back(&dirty, self.begin_write_back()),
            None => Ok(()),
        }
    }

    /// Stores a chunk that the caller has just written, as [`Cache::flush_chunk`] does.
    ///
    /// # Errors
    ///
    /// Also ESTALE if bytes of the chunk are lost: the caller reports that itself.
    pub fn store_written(&self, array: &Array, chunk: ChunkId) -> Result<()> {
        let Some(dirty) = self.dirty_chunk(array, chunk) else {
            return Ok(());
        };
        let losses = Losses::default();
        let how = WriteBack {
            losses: Some(&losses),
            ..self.begin_write_back()
        };
        let stored = self.write_back(&dirty, how);
        losses.take(|_| true).and(stored)
    }

    /// Stores all dirty chunks of an array, including those of the `Array`s that stood for it
    /// before its metadata changed. Losses are recorded, and [`Cache::losses`] returns them.
    ///
    /// # Errors
    ///
    /// The first error, after every chunk was tried, or as soon as the store answers nothing at
    /// all. Chunks that were not stored stay dirty.
    pub fn flush_array(&self, array: &Array) -> Result<()> {
        self.flush_where(|of| of.key() == array.key())
    }

    /// Stores all dirty chunks of the arrays for which `of` returns true, as [`Cache::flush_array`]
    /// does.
    pub fn flush_where(&self, of: impl Fn(&Array) -> bool) -> Result<()> {
        let done = self.write_back_where(&of);
        if self.is_in_vain(&done) {
            done
        } else {
            done.and(self.store_pending(of))
        }
    }

    /// Returns whether the rest of a flush is in vain: a part of it failed, and the store answers
    /// nothing at all. Each further request could take its whole time limit.
    pub fn is_in_vain(&self, done: &Result<()>) -> bool {
        done.is_err() && self.stats.is_failing()
    }

    /// Writes back all dirty chunks of the arrays for which `of` returns true.
    pub(super) fn write_back_where(&self, of: impl Fn(&Array) -> bool) -> Result<()> {
        let list: Vec<_> = self.lock().oldest_dirty(of).cloned().collect();
        let mut arrays = HashSet::new();
        for dirty in &list {
            if !arrays.insert(dirty.array.id()) {
                continue;
            }
            // a failure is reported when each chunk is stored
            let confirmed = dirty.array.confirm(false);
            if self.is_in_vain(&confirmed) {
                return confirmed.map_err(|e| self.stats.not_stored(e));
            }
        }
        self.write_back_all(&list)
    }

    /// Stores all dirty chunks, as [`Cache::flush_array`] does.
    pub fn flush_all(&self) -> Result<()> {
        self.flush_where(|_| true)
    }

    /// Moves the dirty chunks of `old` to `new`, the same array with another first dimension, so
    /// that its readers find them. The caller ensures that neither is written meanwhile.
    pub fn transfer(&self, old: &Arc<Array>, new: &Arc<Array>) {
        new.freshness().share_losses(old.freshness());
        if old.id() == new.id() {
            return;
        }
        self.begin_counting(new);
        self.transfer_pending(old, new);
        // bound before the loop, whose body takes the cache's lock again
        let list: Vec<_> = self
            .lock()
            .oldest_dirty(|array| array.id() == old.id())
            .cloned()
            .collect();
        for dirty in list {
            let _write_back = lock(&dirty.write_back_lock);
            let mut locked = dirty.lock();
            let Some(state) = locked.as_mut() else {
                continue;
            };
            let moved = state.transfer(new, dirty.chunk, self.buffers.account());
            let moved = self.lock().insert_dirty(new, dirty.chunk, moved);
            let _ = dirty.moved.set(moved);
            // last: a reader must find the chunk in one of the arrays
            self.remove_dirty(&dirty, &mut locked, None);
        }
    }

    /// Discards a chunk with all bytes that were written to it: the caller is about to erase or
    /// replace it. Waits for a write-back in flight, so the caller must not hold the chunk's lock.
    pub fn discard_chunk(&self, array: &Array, chunk: ChunkId) {
        if let Some(dirty) = self.dirty_chunk(array, chunk) {
            let _write_back = lock(&dirty.write_back_lock);
            self.remove_dirty(&dirty, &mut dirty.lock(), None);
        }
        let mut state = self.lock();
        array.freshness().record_store();
        self.drop_slot(&mut state, &(array.id(), CachedItem::Chunk(chunk)));
        array.freshness().record_write();
    }

    /// Stores chunks, several at a time.
    pub(super) fn write_back_all(&self, list: &[Arc<DirtyChunk>]) -> Result<()> {
        let how = self.begin_write_back();
        self.store_each(
            list,
            |dirty| &dirty.array,
            |dirty| self.write_back(dirty, how),
        )
    }

    /// Calls `store` for each item of a list, on as many threads as the arrays of the items take.
    /// Returns the first error, after every item was tried or the rest is in vain.
    pub(super) fn store_each<T: Sync>(
        &self,
        list: &[T],
        array_of: fn(&T) -> &Array,
        store: impl Fn(&T) -> Result<()> + Sync,
    ) -> Result<()> {
        let next = AtomicUsize::new(0);
        let threads = list
            .iter()
            .map(|item| self.flush_threads(array_of(item)))
            .max()
            .unwrap_or(1);
        on_threads(threads.min(list.len()), &|| {
            let mut done = Ok(());
            while !self.is_in_vain(&done)
                && let Some(item) = list.get(next.fetch_add(1, Ordering::Relaxed))
            {
                done = done.and(store(item));
            }
            done
        })
    }
}
