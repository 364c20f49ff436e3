//! Dirty chunks and their write-back. A chunk is in the cache's map of dirty chunks from its first
//! write until a write-back that leaves nothing to store; meanwhile every reader gets it from
//! there.
//!
//! Locks, in this order, after memory was reserved: [`Array::lock_replacing`] (one write-back of a
//! value at a time), a chunk's `write_back_lock`, its `load_lock`, its state, the cache's state.
//! The last two are never held while the store is asked: a write that finds space never waits for
//! the store.

mod dirty_chunk;
mod flush;
mod pending;
mod space;

pub use dirty_chunk::Creates;
pub(super) use dirty_chunk::DirtyChunk;
pub use space::WRITE_BACK_THREADS;
pub(super) use space::{DIRTY_COST, ENCODERS, Reservations, WriteBacks};

use super::chunk_cache::{CachedChunk, CachedItem, PartResult, Slot};
use super::{Cache, State};
use crate::array::{Array, EncodedChunk, Opening, Ranges, VersionTag, WriteBack};
use dirty_chunk::{Base, DirtyState, Missing, Snapshot, inside};
use std::sync::{Arc, MutexGuard};
use std::time::Instant;
use zarrfs_base::error::Result;
use zarrfs_base::memory::{self, lock};
use zarrfs_format::grid::ChunkId;
use zarrfs_store::{Replaces, Version};

/// An offset in a chunk, and the bytes to write there.
pub type Part<'a> = (usize, &'a [u8]);

/// The result of storing a chunk.
enum Outcome {
    /// The chunk is in the store; `None` if it was erased instead.
    Stored(Option<Version>),
    /// Another writer has replaced the base meanwhile: nothing was stored.
    Conflict,
}

impl Cache {
    /// Writes parts of a chunk, C layout, sorted by offset, so that a reader sees all or none of
    /// them. They stay in memory until a write-back. Never waits for the store: returns false, and
    /// writes nothing, if [`Cache::make_space`] has to store other chunks first.
    ///
    /// # Errors
    ///
    /// Fails without memory, or with EFBIG beyond the chunk's end.
    pub fn try_write_parts(
        &self,
        array: &Arc<Array>,
        chunk: ChunkId,
        parts: &[Part],
        creates: Creates,
    ) -> Result<bool> {
        loop {
            let Some(dirty) = self.dirty_chunk_or_new(array, chunk)? else {
                return Ok(false);
            };
            let mut locked = dirty.lock();
            let Some(state) = locked.as_mut() else {
                continue; // it was stored just now
            };
            let was_fully_written = state.is_fully_written();
            state.write(self, array, parts, creates)?;
            if state.is_fully_written() && !was_fully_written {
                self.lock().fully_written.insert(dirty.place());
            }
            drop(locked);
            array.freshness().record_write();
            return Ok(true);
        }
    }

    /// Returns the dirty chunk that is about to be written, a new one if the chunk is not dirty.
    /// Returns `None` if there is no space for a new one.
    fn dirty_chunk_or_new(
        &self,
        array: &Arc<Array>,
        chunk: ChunkId,
    ) -> Result<Option<Arc<DirtyChunk>>> {
        let key = (array.id(), CachedItem::Chunk(chunk));
        let size = array.grid().chunk_size(chunk);
        if let Some(dirty) = self.dirty_chunk(array, chunk) {
            return Ok(Some(dirty));
        }
        let inside = inside(array, chunk);
        let mut state = self.lock();
        if let Some(dirty) = state.dirty.get(&key) {
            return Ok(Some(dirty.clone()));
        }
        if !self.has_space(&state, array) {
            return Ok(None);
        }
        let (bytes, base) = match state.slots.peek(&key) {
            Some(Slot::Ready {
                content: CachedChunk::Whole(bytes, version, _),
                confirmed,
                ..
            }) => (
                bytes.clone(),
                Base::Known(Some(version.clone()), *confirmed),
            ),
            _ => {
                let mut bytes = self.buffers.take(size);
                memory::resize(&mut bytes, size)?;
                (self.buffers.hold(bytes), Base::Unknown)
            }
        };
        let new = DirtyState::new(bytes, base, inside, self.buffers.account());
        self.drop_slot(&mut state, &key);
        self.begin_counting(array);
        let dirty = state.insert_dirty(array, chunk, new);
        self.evict(&mut state, 0);
        self.trim(&state);
        Ok(Some(dirty))
    }

    /// Returns a dirty chunk, or `None` if the chunk is not dirty.
    pub(super) fn dirty_chunk(&self, array: &Array, chunk: ChunkId) -> Option<Arc<DirtyChunk>> {
        if !array.is_dirty() {
            return None;
        }
        self.lock()
            .dirty
            .get(&(array.id(), CachedItem::Chunk(chunk)))
            .cloned()
    }

    /// Returns whether the chunk was written and is not yet stored.
    pub fn is_dirty(&self, array: &Array, chunk: ChunkId) -> bool {
        self.dirty_chunk(array, chunk).is_some()
    }

    /// Returns a dirty chunk, or `None` if the chunk is not dirty. It may load the bytes that were
    /// not written; with `reserves` it reserves memory for that, which the caller must not have
    /// done already.
    pub(super) fn get_dirty(
        &self,
        array: &Array,
        chunk: ChunkId,
        reserves: bool,
    ) -> Option<PartResult> {
        while let Some(dirty) = self.dirty_chunk(array, chunk) {
            let locked = dirty.lock();
            let is_complete = locked
                .as_ref()
                .is_some_and(|state| state.is_complete(array));
            drop(locked);
            let _memory =
                (reserves && !is_complete).then(|| self.reserve(array, array.chunk_memory()));
            let completed = self.complete(&dirty, false);
            let part = completed.map(|state| state.as_ref().map(DirtyState::part));
            // without a part it was stored just now
            if !matches!(part, Ok(None)) {
                self.stats.hits.add(1);
                return Some(part);
            }
        }
        None
    }

    /// Returns all bytes of a dirty chunk, or `None` if that needs the store or a wait.
    pub(super) fn peek_dirty(&self, dirty: &DirtyChunk) -> Option<PartResult> {
        let locked = dirty.try_lock()?;
        let state = locked.as_ref()?;
        if !state.is_complete(&dirty.array) {
            return None;
        }
        self.stats.hits.add(1);
        Some(Ok(Some(state.part())))
    }

    /// Loads the bytes of a chunk that were not written, into memory that the caller has reserved.
    /// With `revalidate`, and after a later opening of the array, it first asks whether the store
    /// holds another base. The state is not locked meanwhile, and writers continue.
    fn complete<'d>(
        &self,
        dirty: &'d DirtyChunk,
        mut revalidate: bool,
    ) -> Result<MutexGuard<'d, Option<DirtyState>>> {
        let array = &dirty.array;
        let chunk = dirty.chunk;
        let _loading = lock(&dirty.load_lock);
        loop {
            let locked = dirty.lock();
            let opening = array.freshness().opening();
            let Some(state) = locked.as_ref() else {
                return Ok(locked);
            };
            let generation = state.generation;
            let missing = state.missing(opening, revalidate);
            if matches!(missing, Missing::Nothing) {
                return Ok(locked);
            }
            drop(locked);
            if let Missing::Version(known) = missing
                && array.stat_chunk(chunk)?.map(|stat| stat.version) == known
            {
                if let Some(state) = dirty.lock().as_mut()
                    && let Base::Known(version, confirmed) = &mut state.base
                    && *version == known
                {
                    *confirmed = opening.max(*confirmed);
                    revalidate = false;
                }
                continue;
            }
            let (bytes, base) = self.load_base(array, chunk)?;
            // the loaded bytes may lack bytes that a write-back has stored meanwhile
            if let Some(state) = dirty.lock().as_mut()
                && state.generation == generation
            {
                self.served
                    .record(array.id(), chunk, VersionTag::of(base.as_ref()));
                state.overlay(self, bytes, base, opening);
                revalidate = false;
            }
        }
    }

    /// Returns the stored bytes of a chunk and their version; fill values and `None` if it is
    /// uninitialized.
    fn load_base(&self, array: &Array, chunk: ChunkId) -> Result<(Vec<u8>, Option<Version>)> {
        let size = array.grid().chunk_size(chunk);
        let loaded = self.with_scratch(|scratch| array.load(chunk, self.buffer(size), scratch));
        Ok(match loaded.map_err(|e| self.record_failure(e))? {
            Some(loaded) => (loaded.bytes, Some(loaded.version)),
            None => {
                let mut bytes = self.buffer(size);
                memory::resize(&mut bytes, size)?;
                array.metadata().write_fill(&mut bytes, 0);
                (bytes, None)
            }
        })
    }

    /// Stores the written bytes of a chunk:
    ///
    /// 1. The locks of the chunk are taken, and the array's document is confirmed.
    /// 2. If the base shows through, the store is asked for its version. If another writer has
    ///    replaced it, it is loaded again and only the written bytes are copied over it.
    /// 3. The whole chunk is encoded and put, which replaces it entirely or not at all, unless it
    ///    is uninitialized and stays so: see [`Creates`]. Writers continue in a copy. A server puts
    ///    it only while it holds the version of step 2; otherwise the write-back starts over. A
    ///    chunk that shares its object is handed over instead.
    /// 4. If nothing was written meanwhile, the chunk leaves the map; otherwise the rest waits for
    ///    the next write-back. Bytes that could not be stored are dirty again.
    ///
    /// A loss is recorded at once, and the rest of the chunk is stored nevertheless.
    fn write_back(&self, dirty: &DirtyChunk, how: WriteBack) -> Result<()> {
        self.in_flight(&dirty.array, || {
            // memory for the base, the encoded form, and the copy that a writer makes meanwhile
            let _memory = self.reserve(&dirty.array, dirty.array.chunk_memory());
            self.write_back_locked(dirty, how)
        })?;
        self.store_after(&dirty.array, dirty.chunk, how)?;
        let moved = dirty.moved.get();
        moved.map_or(Ok(()), |moved| self.write_back(moved, how))
    }

    /// Begins a request that stores chunks.
    pub(super) fn begin_write_back(&self) -> WriteBack<'_> {
        WriteBack {
            since: Instant::now(),
            losses: Some(&self.losses),
            spill: self.spill.as_ref(),
        }
    }

    fn write_back_locked(&self, dirty: &DirtyChunk, how: WriteBack) -> Result<()> {
        let array = &dirty.array;
        let chunk = dirty.chunk;
        // this lock is fair: a request whose wait is over does not wait for later ones
        let _alone = array.lock_replacing(&array.write_back_key(chunk));
        let _write_back = lock(&dirty.write_back_lock);
        let _lock = array.lock_chunk_since(chunk, how.since)?;
        array.replace_repeatedly(chunk, "", how, || {
            let Some(snapshot) = self.take_snapshot(dirty, how)? else {
                return Ok(true);
            };
            let stored = self.store(dirty, &snapshot, how);
            let mut locked = dirty.lock();
            if let Ok(Outcome::Stored(version)) = stored {
                self.finish(dirty, &mut locked, snapshot, version);
                return Ok(true);
            }
            if let Some(state) = locked.as_mut() {
                state.undo_snapshot();
                if stored.is_ok() {
                    state.base = Base::Unknown;
                }
            }
            stored.map(|_| false)
        })
    }

    /// Takes step 2 of a write-back. Returns `None` if there is nothing to store.
    fn take_snapshot(&self, dirty: &DirtyChunk, how: WriteBack) -> Result<Option<Snapshot>> {
        let array = &dirty.array;
        let mut locked = dirty.lock();
        let Some(state) = locked.as_mut() else {
            return Ok(None);
        };
        // no other write-back is in flight, but one that panicked may have left its snapshot
        state.undo_snapshot();
        let is_lost = !state.dirty.is_empty() && array.freshness().is_replaced();
        if is_lost {
            array.record_loss(dirty.chunk, "the array was replaced or deleted", how);
        }
        if is_lost || state.dirty.is_empty() {
            self.remove_dirty(dirty, &mut locked, None);
            return Ok(None);
        }
        let outside = array.outside(dirty.chunk);
        self.drop_outside(dirty, &mut locked, &outside, how);
        loop {
            drop(locked);
            locked = self.complete(dirty, true)?;
            // a writer may have added such bytes while the base was loaded
            if !self.drop_outside(dirty, &mut locked, &outside, how) {
                break;
            }
        }
        let opening = array.freshness().opening();
        Ok(locked.as_mut().map(|state| state.snapshot(opening)))
    }

    /// Drops written bytes `outside` the array in the store, which another program has made
    /// smaller, and the whole chunk if nothing else was written. Returns whether there were such
    /// bytes.
    fn drop_outside(
        &self,
        dirty: &DirtyChunk,
        locked: &mut Option<DirtyState>,
        outside: &Ranges,
        how: WriteBack,
    ) -> bool {
        let Some(state) = locked else {
            return false;
        };
        let before = state.dirty.len();
        state.dirty.remove_all(outside);
        if state.dirty.len() == before {
            return false;
        }
        dirty
            .array
            .record_loss(dirty.chunk, "the array became smaller", how);
        // the dropped bytes have overwritten those of the base, which must be loaded again
        state.base = Base::Unknown;
        if state.dirty.is_empty() {
            self.remove_dirty(dirty, locked, None);
        }
        true
    }

    /// Takes step 3 of a write-back. It may erase an empty chunk instead, or leave it
    /// uninitialized.
    fn store(&self, dirty: &DirtyChunk, snapshot: &Snapshot, how: WriteBack) -> Result<Outcome> {
        let array = &dirty.array;
        let is_empty = array.is_empty(&snapshot.bytes);
        let stored = if is_empty && self.drops_empty {
            // an erasure has no condition: another writer may have created the chunk meanwhile
            if snapshot.replaces() != Replaces::Nothing {
                array.erase(dirty.chunk, how)?;
            }
            Ok(Outcome::Stored(None))
        } else if is_empty
            && snapshot.creates == Creates::UnlessEmpty
            && array.stat_chunk(dirty.chunk)?.is_none()
        {
            Ok(Outcome::Stored(None))
        } else {
            self.put(dirty, snapshot, how)
        };
        // before the chunk leaves the map of dirty chunks
        self.add_pending(array);
        stored
    }

    /// Encodes a chunk and puts it.
    fn put(&self, dirty: &DirtyChunk, snapshot: &Snapshot, how: WriteBack) -> Result<Outcome> {
        let array = &dirty.array;
        let put = self.with_scratch(|scratch| {
            let memory = array.encoder_memory();
            let large = &self.large_encoding;
            let alone = (memory > self.encoder_share()).then(|| large.acquire(large.ticket(false)));
            let permit = self.encoding.acquire(self.encoding.ticket(false));
            let memory = self.reserve_more(array, memory);
            let encoded = array.encode_chunk(dirty.chunk, &snapshot.bytes, scratch)?;
            drop((memory, permit, alone));
            let new = EncodedChunk {
                bytes: encoded,
                written: snapshot.written.as_ref(),
                replaces: snapshot.replaces(),
            };
            array.store_if(dirty.chunk, new, how)
        })?;
        Ok(put.map_or(Outcome::Conflict, |version| Outcome::Stored(Some(version))))
    }

    /// Takes step 4 of a write-back that has stored `version`.
    fn finish(
        &self,
        dirty: &DirtyChunk,
        locked: &mut Option<DirtyState>,
        snapshot: Snapshot,
        version: Option<Version>,
    ) {
        let Some(state) = locked else {
            return;
        };
        let array = &dirty.array;
        let chunk = dirty.chunk;
        let tag = VersionTag::of(version.as_ref());
        state.storing = Ranges::default();
        let served = if array.is_lossy() {
            VersionTag::MIXED
        } else {
            tag
        };
        self.served
            .record_store(array.id(), chunk, snapshot.base.tag(), served);
        // a base that was loaded meanwhile is not the stored chunk, and a lossy filter has stored
        // other bytes
        let is_same = state.generation == snapshot.generation && !array.is_lossy();
        state.generation += 1;
        state.base = if is_same {
            Base::Known(version.clone(), snapshot.opening)
        } else {
            Base::Unknown
        };
        if !state.dirty.is_empty() {
            return;
        }
        let content = is_same.then(|| {
            let content = match version {
                Some(version) => CachedChunk::Whole(snapshot.bytes, version, tag),
                None => CachedChunk::Uninitialized,
            };
            (content, snapshot.opening)
        });
        self.remove_dirty(dirty, locked, content);
    }

    /// Removes a chunk from the map of dirty chunks. If its content is known, that becomes an
    /// ordinary slot.
    fn remove_dirty(
        &self,
        dirty: &DirtyChunk,
        locked: &mut Option<DirtyState>,
        content: Option<(CachedChunk, Opening)>,
    ) {
        if locked.take().is_none() {
            return;
        }
        let mut all = self.lock();
        // a load in flight may have read the chunk from before
        dirty.array.freshness().record_store();
        if all.dirty.remove(&dirty.key()).is_some() {
            all.dirty_bytes -= dirty.size();
            dirty.array.freshness().remove_dirty();
        }
        all.dirty_by_age.remove(&dirty.number);
        all.fully_written.remove(&dirty.place());
        match content {
            Some((content, confirmed)) => {
                let slot = Slot::Ready {
                    content,
                    confirmed,
                    is_prefetched: false,
                    was_spared: false,
                };
                all.slots.put(dirty.key(), slot);
            }
            // a load that began before the write may have left the chunk from before in the slot
            None => self.drop_slot(&mut all, &dirty.key()),
        }
        self.evict(&mut all, 0);
        self.trim(&all);
        self.wake(&all);
    }
}

impl State {
    fn insert_dirty(
        &mut self,
        array: &Arc<Array>,
        chunk: ChunkId,
        state: DirtyState,
    ) -> Arc<DirtyChunk> {
        self.dirtied += 1;
        let is_fully_written = state.is_fully_written();
        let dirty = Arc::new(DirtyChunk::new(array.clone(), chunk, self.dirtied, state));
        self.dirty_bytes += dirty.size();
        array.freshness().add_dirty();
        self.dirty.insert(dirty.key(), dirty.clone());
        self.dirty_by_age.insert(dirty.number, dirty.clone());
        if is_fully_written {
            self.fully_written.insert(dirty.place());
        }
        dirty
    }

    /// Returns the dirty chunks of the arrays for which `of` returns true, oldest first.
    fn oldest_dirty(&self, of: impl Fn(&Array) -> bool) -> impl Iterator<Item = &Arc<DirtyChunk>> {
        self.dirty_by_age
            .values()
            .filter(move |dirty| of(&dirty.array))
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
impl Cache {
    /// Writes bytes at `offset` of a chunk, C layout, and stores other chunks if that takes space.
    pub fn write(
        &self,
        array: &Arc<Array>,
        chunk: ChunkId,
        offset: usize,
        data: &[u8],
    ) -> Result<()> {
        while !self.try_write_parts(array, chunk, &[(offset, data)], Creates::UnlessEmpty)? {
            self.make_space(array)?;
        }
        Ok(())
    }
}
