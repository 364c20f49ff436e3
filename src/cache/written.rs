//! Chunks that were written and are not yet stored: their bytes, which of them were written, and what is known of the
//! chunk below. A chunk is in the cache's map of these from its first write until a write-back that leaves nothing to
//! store; as long as it is there, every reader gets it from there.
//!
//! Locks, in this order: the cache's `replacing` (one write-back of a key at a time), a chunk's `turn` (one at a time), its
//! `loading` (one load of the old chunk at a time), its `state`, the cache's state. The last two are never held while the
//! store is asked: a writer who finds room never waits for the store.

use super::buffers::Decoded;
use super::content::{Answer, Content, DecodedPart, Place, Slot};
use super::ranges::Ranges;
use super::{Cache, SlotKey, State};
use crate::array::{Array, Opening, VersionTag};
use crate::error::{Error, Result};
use crate::store::{Replaces, Version};
use crate::util::memory::{self, lock};
use crate::zarr::grid::ChunkId;
use std::collections::HashSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How often a chunk is laid anew over what somebody else has stored meanwhile, before it is told that it can't be stored.
pub(super) const OVERTAKEN: u32 = 64;

/// Bytes for a chunk, and where in it they go, in order.
pub type Part<'a> = (usize, &'a [u8]);

/// A chunk that was written.
pub(super) struct Written {
    pub array: Arc<Array>,
    pub chunk: ChunkId,
    /// Counts up with the chunks that come to be written: the oldest are stored first.
    pub number: u64,
    /// Held during a write-back. It protects nothing else.
    turn: Mutex<()>,
    /// Held while the old chunk is loaded or its version is asked for. It protects nothing else.
    loading: Mutex<()>,
    /// Protects the bytes and what is known of them.
    state: Mutex<WrittenState>,
}

struct WrittenState {
    /// All bytes of the chunk, C layout. Where they were not written they are worth something only if `below` is known.
    /// None when the chunk has left the map: whoever finds that looks there again.
    bytes: Option<Arc<Decoded>>,
    /// What was written since the last write-back began.
    dirty: Ranges,
    /// What the write-back under way stores.
    storing: Ranges,
    below: Below,
    /// The array's epoch in which the store was last asked.
    epoch: Opening,
    /// Counts how often the chunk below was loaded, and how often it was stored.
    loads: u64,
    stores: u64,
    /// Positions of the array in an edge chunk; None if that is all of them.
    inside: Option<Ranges>,
}

/// What is known of the stored chunk that is written over.
#[derive(Clone, PartialEq)]
enum Below {
    /// Nothing: nobody has needed it yet.
    Unknown,
    /// Its bytes are there, of this version; None was an uninitialised one.
    Known(Option<Version>),
}

impl Below {
    fn mark(&self) -> Option<VersionTag> {
        match self {
            Below::Unknown => None,
            Below::Known(version) => Some(VersionTag::of(version.as_ref())),
        }
    }
}

/// What a write-back takes out of the state while it encodes and stores.
struct Storing {
    bytes: Arc<Decoded>,
    epoch: Opening,
    loads: u64,
    /// What the bytes were laid over; it doesn't matter where they were written from end to end.
    below: Option<Below>,
}

impl Storing {
    /// Of what was below; None if it was overwritten unseen.
    fn before(&self) -> Option<VersionTag> {
        self.below.as_ref().and_then(Below::mark)
    }

    fn replaces(&self) -> Replaces<'_> {
        match &self.below {
            None | Some(Below::Unknown) => Replaces::Anything,
            Some(Below::Known(None)) => Replaces::Nothing,
            Some(Below::Known(Some(version))) => Replaces::Version(version),
        }
    }
}

/// How storing a chunk went.
enum Stored {
    /// It is in the store; None where it was erased instead.
    Now(Option<Version>),
    /// Somebody else has replaced the chunk below meanwhile: nothing was stored.
    Overtaken,
}

/// Waits for a moment of chance, longer each time, so that two who store the same chunk don't keep overtaking each other.
fn pause(attempt: u32) {
    let chance = RandomState::new().build_hasher().finish();
    std::thread::sleep(Duration::from_micros(chance % (1000 << attempt.min(8))));
}

impl Written {
    fn new(array: Arc<Array>, chunk: ChunkId, number: u64, state: WrittenState) -> Self {
        let (turn, loading) = Default::default();
        Written { array, chunk, number, turn, loading, state: Mutex::new(state) }
    }

    fn key(&self) -> SlotKey {
        (self.array.id(), Place::Chunk(self.chunk))
    }

    fn size(&self) -> usize {
        self.array.grid().chunk_size()
    }

    fn lock(&self) -> MutexGuard<'_, WrittenState> {
        lock(&self.state)
    }
}

impl WrittenState {
    /// A chunk that is about to be written, over what a slot of the cache knows of it.
    fn over(slot: Option<&Slot>, inside: Option<Ranges>) -> Self {
        let (bytes, below, epoch) = match slot {
            Some(Slot::Ready { content: Content::Whole(bytes, version, _), epoch, .. }) => {
                (Some(bytes.clone()), Below::Known(Some(version.clone())), *epoch)
            }
            _ => (None, Below::Unknown, Opening::default()),
        };
        let (dirty, storing) = Default::default();
        WrittenState { bytes, dirty, storing, below, epoch, loads: 0, stores: 0, inside }
    }

    /// True if it was written from end to end: nothing below shows through.
    fn is_whole(&self, size: usize) -> bool {
        self.dirty.len() == size
    }

    /// Room to write in: in place, unless a reader or a write-back holds the bytes.
    fn bytes_mut(&mut self, cache: &Cache) -> Result<&mut [u8]> {
        let held = self.bytes.as_mut().ok_or_else(gone)?;
        if Arc::get_mut(held).is_none() {
            let mut copy = cache.buffers.take(held.len());
            memory::resize(&mut copy, held.len())?;
            copy.copy_from_slice(held);
            *held = cache.buffers.hold(copy);
        }
        Ok(Arc::get_mut(held).ok_or_else(gone)?.bytes_mut())
    }

    fn write(&mut self, cache: &Cache, array: &Array, parts: &[Part]) -> Result<()> {
        let bytes = self.bytes_mut(cache)?;
        let mut written = Ranges::default();
        for (offset, part) in parts {
            let range = *offset..offset + part.len();
            bytes.get_mut(range.clone()).ok_or_else(|| Error::system(libc::EFBIG))?.copy_from_slice(part);
            written.add(range);
        }
        self.dirty.add_all(&written);
        self.complete_edge(cache, array)
    }

    /// Once all of an edge chunk's part of the array was written, its padding becomes the fill value: the old chunk need
    /// not be read for it.
    fn complete_edge(&mut self, cache: &Cache, array: &Array) -> Result<()> {
        let size = array.grid().chunk_size();
        let is_complete = |inside: &Ranges| self.dirty.len() < size && self.dirty.contains_all(inside);
        if self.below != Below::Unknown || !self.inside.as_ref().is_some_and(is_complete) {
            return Ok(());
        }
        for padding in self.dirty.complement(size).iter() {
            array.fill(&mut self.bytes_mut(cache)?[padding.clone()], padding.start as u64);
            self.dirty.add(padding);
        }
        Ok(())
    }

    /// Lays what was written over the bytes of the chunk below, which were loaded in `epoch`.
    fn lay_over(&mut self, cache: &Cache, mut loaded: Vec<u8>, below: Option<Version>, epoch: Opening) -> Result<()> {
        let written = self.bytes.as_ref().ok_or_else(gone)?;
        for range in self.storing.iter().chain(self.dirty.iter()) {
            loaded[range.clone()].copy_from_slice(&written[range]);
        }
        self.bytes = Some(cache.buffers.hold(loaded));
        (self.below, self.epoch, self.loads) = (Below::Known(below), epoch, self.loads + 1);
        Ok(())
    }

    /// What has to be found out of the chunk below before all bytes are worth something.
    fn missing(&self, size: usize, epoch: Opening, fresh: bool) -> Missing {
        match &self.below {
            _ if self.bytes.is_none() || self.is_whole(size) || self.storing.len() == size => Missing::Nothing,
            Below::Unknown => Missing::Bytes,
            Below::Known(version) if fresh || self.epoch < epoch => Missing::Version(version.clone()),
            Below::Known(_) => Missing::Nothing,
        }
    }
}

/// What is not known of the chunk below.
enum Missing {
    Nothing,
    /// Whether it still is of this version.
    Version(Option<Version>),
    Bytes,
}

/// Never answered to a user: whoever meets it looks into the map again.
fn gone() -> Error {
    Error::system(libc::ESTALE)
}

/// Records that bytes of a chunk are lost, and says so.
fn lost(written: &Written, why: &str) -> Error {
    written.array.freshness().record_loss();
    let what = format!("{why} meanwhile: what was written is lost; open the file again and write anew");
    Error::system(libc::ESTALE).context(what).context(written.array.extent(written.chunk))
}

/// Threads that store: they mostly wait, for the disk or a far store.
pub(super) fn flush_threads(array: &Array) -> usize {
    array.concurrency(std::thread::available_parallelism().map_or(4, |n| n.get()).max(4))
}

/// Positions of an edge chunk that belong to the array; None of any other chunk.
fn inside(array: &Array, chunk: ChunkId) -> Option<Ranges> {
    array.grid().is_edge(chunk).then(|| {
        let mut inside = Ranges::default();
        let runs = array.grid().chunk_runs(chunk, 0..array.size());
        runs.iter().for_each(|(_, run)| inside.add(run.offset..run.offset + run.len));
        inside
    })
}

impl Cache {
    /// Writes `data` at `offset` of a chunk, in bytes of its C layout. It is kept in memory until a write-back; where too
    /// much waits there, others are stored first, and if they can't be, that is the error and nothing was written.
    pub fn write(&self, array: &Arc<Array>, chunk: ChunkId, offset: usize, data: &[u8]) -> Result<()> {
        self.write_parts(array, chunk, &[(offset, data)])
    }

    /// As [`Cache::write`], of several parts in order of their places, all at once for any reader.
    pub fn write_parts(&self, array: &Arc<Array>, chunk: ChunkId, parts: &[Part]) -> Result<()> {
        while !self.try_write_parts(array, chunk, parts)? {
            self.make_room(array)?;
        }
        Ok(())
    }

    /// As [`Cache::write_parts`], without waiting for the store: false, and nothing was written, where others have to be
    /// stored first.
    pub fn try_write_parts(&self, array: &Arc<Array>, chunk: ChunkId, parts: &[Part]) -> Result<bool> {
        loop {
            let Some(written) = self.written_or_new(array, chunk)? else { return Ok(false) };
            let mut state = written.lock();
            if state.bytes.is_none() {
                continue; // it was stored just now
            }
            let was_whole = state.is_whole(written.size());
            state.write(self, array, parts)?;
            let is_whole = state.is_whole(written.size());
            drop(state);
            if is_whole && !was_whole {
                self.lock().whole.push_back(written.key());
            }
            array.freshness().record_write();
            return Ok(true);
        }
    }

    /// The entry of a chunk that is going to be written, made if there is none; None if there is no room for it.
    fn written_or_new(&self, array: &Arc<Array>, chunk: ChunkId) -> Result<Option<Arc<Written>>> {
        let (key, size) = ((array.id(), Place::Chunk(chunk)), array.grid().chunk_size());
        if let Some(written) = self.written(array, chunk) {
            return Ok(Some(written));
        }
        let inside = inside(array, chunk);
        let mut state = self.lock();
        if let Some(written) = state.written.get(&key) {
            return Ok(Some(written.clone()));
        }
        if !self.has_room(&state, array) {
            return Ok(None);
        }
        let mut new = WrittenState::over(state.slots.peek(&key), inside);
        if new.bytes.is_none() {
            let mut bytes = self.buffers.take(size);
            memory::resize(&mut bytes, size)?;
            new.bytes = Some(self.buffers.hold(bytes));
        }
        if !matches!(state.slots.peek(&key), Some(Slot::Busy)) {
            self.dropped(state.slots.pop(&key));
        }
        state.writes += 1;
        let written = Arc::new(Written::new(array.clone(), chunk, state.writes, new));
        state.written.insert(key, written.clone());
        state.written_bytes += size;
        array.freshness().add_dirty();
        self.evict(&mut state, 0);
        self.trim(&state);
        Ok(Some(written))
    }

    fn written(&self, array: &Array, chunk: ChunkId) -> Option<Arc<Written>> {
        if !array.is_dirty() {
            return None;
        }
        self.lock().written.get(&(array.id(), Place::Chunk(chunk))).cloned()
    }

    /// True if the chunk was written and is not yet stored.
    pub fn is_written(&self, array: &Array, chunk: ChunkId) -> bool {
        self.written(array, chunk).is_some()
    }

    /// The chunk as it was written; None if it wasn't.
    pub(super) fn get_written(&self, array: &Array, chunk: ChunkId) -> Option<Answer> {
        while let Some(written) = self.written(array, chunk) {
            match self.complete(&written, false) {
                // it was stored just now
                Ok(state) if state.bytes.is_none() => {}
                state => {
                    self.stats.hits.add(1);
                    return Some(state.and_then(|state| state.piece()));
                }
            }
        }
        None
    }

    /// Loads the bytes of a chunk that were not written. With `fresh`, and after a later opening of the array, it first asks
    /// whether the store has a newer chunk. The state is not held meanwhile, and writers go on.
    fn complete<'w>(&self, written: &'w Written, fresh: bool) -> Result<MutexGuard<'w, WrittenState>> {
        let (array, chunk, mut fresh) = (&written.array, written.chunk, fresh);
        let _loading = lock(&written.loading);
        loop {
            let state = written.lock();
            let (epoch, stores) = (array.freshness().opening(), state.stores);
            let missing = state.missing(written.size(), epoch, fresh);
            if matches!(missing, Missing::Nothing) {
                return Ok(state);
            }
            drop(state);
            if let Missing::Version(known) = missing
                && array.stat_chunk(chunk)?.map(|stat| stat.version) == known
            {
                let mut state = written.lock();
                if state.below == Below::Known(known) {
                    (state.epoch, fresh) = (state.epoch.max(epoch), false);
                }
                continue;
            }
            let (bytes, below) = self.load_below(array, chunk)?;
            let mut state = written.lock();
            // what a write-back has stored meanwhile may not be in what was loaded
            if state.bytes.is_some() && state.stores == stores {
                state.lay_over(self, bytes, below, epoch)?;
                self.note(array, chunk, state.below.mark().unwrap_or(VersionTag::UNINITIALIZED));
                fresh = false;
            }
        }
    }

    /// The bytes of a chunk as the store has it, and their version; fill values where there is none.
    fn load_below(&self, array: &Array, chunk: ChunkId) -> Result<(Vec<u8>, Option<Version>)> {
        let size = array.grid().chunk_size();
        let loaded = self.with_scratch(|scratch| array.load(chunk, self.buffer(size), scratch));
        Ok(match loaded.inspect_err(|e| self.failed(e))? {
            Some(loaded) => (loaded.bytes, Some(loaded.version)),
            None => {
                let mut bytes = self.buffer(size);
                memory::resize(&mut bytes, size)?;
                array.fill(&mut bytes, 0);
                (bytes, None)
            }
        })
    }

    /// As [`Cache::get_written`], but only if that needs neither the store nor a wait: then Some(None).
    pub(super) fn peek_written(&self, array: &Array, chunk: ChunkId) -> Option<Option<Answer>> {
        let written = self.written(array, chunk)?;
        let Ok(state) = written.state.try_lock() else { return Some(None) };
        let known = state.is_whole(written.size())
            || state.below != Below::Unknown && state.epoch >= array.freshness().opening();
        if state.bytes.is_none() || !known {
            return Some(None);
        }
        self.stats.hits.add(1);
        Some(Some(state.piece()))
    }

    /// Stores a chunk, if it was written, and waits for whoever is storing it.
    pub fn flush_chunk(&self, array: &Array, chunk: ChunkId) -> Result<()> {
        self.written(array, chunk).map_or(Ok(()), |written| self.write_back(&written))
    }

    /// Stores all chunks written of an array, also of the objects that stood for it before its metadata changed. All are
    /// tried; the first error is told, and what was not stored waits for the next time.
    pub fn flush_array(&self, array: &Array) -> Result<()> {
        let list = self.lock().sorted(|w| w.array.id() == array.id() || w.array.key() == array.key());
        self.write_back_all(&list)
    }

    /// As [`Cache::flush_array`], of all arrays for which `of` is true.
    pub fn flush_where(&self, of: impl Fn(&Array) -> bool) -> Result<()> {
        let list = self.lock().sorted(|w| of(&w.array));
        self.write_back_all(&list)
    }

    /// As [`Cache::flush_array`], of all arrays.
    pub fn flush_all(&self) -> Result<()> {
        self.flush_where(|_| true)
    }

    /// Gives what was written of `old` and is not stored yet to `new`, the same array with another first dimension, so that
    /// its readers find it. Nobody writes either meanwhile.
    pub fn hand_over(&self, old: &Arc<Array>, new: &Arc<Array>) {
        new.freshness().share_losses(old.freshness());
        let list = self.lock().sorted(|w| w.array.id() == old.id());
        for written in list.into_iter().filter(|_| old.id() != new.id()) {
            let _turn = lock(&written.turn);
            let mut state = written.lock();
            let (Some(bytes), chunk) = (state.bytes.clone(), written.chunk) else { continue };
            let taken = WrittenState {
                bytes: Some(bytes),
                dirty: std::mem::take(&mut state.dirty),
                storing: Ranges::default(),
                below: state.below.clone(),
                epoch: state.epoch,
                loads: state.loads,
                stores: 0,
                inside: inside(new, chunk),
            };
            let is_whole = taken.is_whole(written.size());
            let moved = Written::new(new.clone(), chunk, written.number, taken);
            let mut all = self.lock();
            all.whole.extend(is_whole.then(|| moved.key()));
            all.written_bytes += moved.size();
            new.freshness().add_dirty();
            all.written.insert(moved.key(), Arc::new(moved));
            drop(all);
            // not before: a reader of the new one must never find neither
            self.take_out(&written, &mut state, None);
        }
    }

    /// Forgets a chunk, also what was written: it is about to be erased or replaced. Waits for a write-back under way, so
    /// that the caller must not hold the chunk's lock.
    pub fn forget_chunk(&self, array: &Array, chunk: ChunkId) {
        if let Some(written) = self.written(array, chunk) {
            let _turn = lock(&written.turn);
            let mut state = written.lock();
            self.take_out(&written, &mut state, None);
        }
        let mut state = self.lock();
        array.freshness().record_store();
        let key = (array.id(), Place::Chunk(chunk));
        if !matches!(state.slots.peek(&key), Some(Slot::Busy)) {
            self.dropped(state.slots.pop(&key));
        }
        array.freshness().record_write();
    }

    pub(super) fn write_back_all(&self, list: &[Arc<Written>]) -> Result<()> {
        let mut confirmed = HashSet::new();
        for written in list.iter().filter(|written| confirmed.insert(written.array.id())) {
            // storing each chunk reports a failure again
            let _ = written.array.confirm(false);
        }
        let next = std::sync::atomic::AtomicUsize::new(0);
        let since = Instant::now();
        let work = || {
            let mut done = Ok(());
            while let Some(written) = list.get(next.fetch_add(1, std::sync::atomic::Ordering::Relaxed)) {
                done = done.and(self.write_back_since(written, since, true));
            }
            done
        };
        let threads = list.iter().map(|written| flush_threads(&written.array)).max().unwrap_or(1);
        std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads.min(list.len())).map(|_| scope.spawn(work)).collect();
            let mine = work();
            others
                .into_iter()
                .fold(mine, |done, other| done.and(other.join().unwrap_or_else(|_| Err(Error::system(libc::EIO)))))
        })
    }

    /// Stores what was written of a chunk:
    /// 1. If bytes below show through, the store is asked for their version; if somebody has replaced the chunk, it is
    ///    loaded again and only what was written is laid over it.
    /// 2. The whole chunk is encoded and put, which replaces it at once or not at all. Meanwhile others write on, into a
    ///    copy. A server puts it only while it still holds the version of step 1; if it doesn't, all begins anew.
    /// 3. If nothing was written meanwhile, the chunk leaves the map; else the rest waits for the next time. What could
    ///    not be stored is dirty again.
    fn write_back(&self, written: &Written) -> Result<()> {
        self.write_back_since(written, Instant::now(), true)
    }

    /// Stores a chunk like [`Cache::write_back`]; with `keep` the cache goes on holding the chunk. The wait for the chunk's
    /// lock counts from `since`, when the request began: it does not begin anew for each chunk, nor after another request
    /// has waited in vain.
    pub(super) fn write_back_since(&self, written: &Written, since: Instant, keep: bool) -> Result<()> {
        let mut in_flight = self.begin_store(&written.array);
        let done = self.write_back_in_turn(written, since, keep);
        in_flight.has_failed = done.is_err();
        done
    }

    fn write_back_in_turn(&self, written: &Written, since: Instant, keep: bool) -> Result<()> {
        let (array, chunk) = (&written.array, written.chunk);
        let failed = |e: Error| {
            self.stats.problem(format!("not stored: {e}"));
            e
        };
        // in this order: it is taken in turn, so that those whose wait is over don't wait for those who come later
        let _replacing = self.replacing.exclusive(&[&array.extent(chunk).key]);
        let _turn = lock(&written.turn);
        let _lock = array.lock_chunk_since(chunk, since).map_err(failed)?;
        for attempt in 0..OVERTAKEN {
            array.confirm(true).map_err(failed)?;
            let Some(storing) = self.begin(written).map_err(failed)? else { return Ok(()) };
            let stored = self.store(array, chunk, &storing);
            let mut state = written.lock();
            let done = std::mem::take(&mut state.storing);
            match stored {
                Ok(Stored::Now(version)) => {
                    self.stored(written, &mut state, storing, version, keep);
                    return Ok(());
                }
                Ok(Stored::Overtaken) => {
                    state.dirty.add_all(&done);
                    state.below = Below::Unknown;
                    drop(state);
                    pause(attempt);
                }
                Err(e) => {
                    state.dirty.add_all(&done);
                    return Err(failed(e));
                }
            }
        }
        let e = Error::system(libc::EAGAIN).context("somebody else replaces it again and again");
        Err(failed(e.context(array.extent(chunk))))
    }

    /// Stores a chunk, or erases it if that is what is wanted of an empty one: then there is no version.
    fn store(&self, array: &Array, chunk: ChunkId, storing: &Storing) -> Result<Stored> {
        if self.drops_empty && array.is_empty(&storing.bytes) {
            return array.erase(chunk).map(|_| Stored::Now(None));
        }
        let put = self.with_scratch(|scratch| array.store_if(chunk, &storing.bytes, storing.replaces(), scratch))?;
        Ok(put.map_or(Stored::Overtaken, |version| Stored::Now(Some(version))))
    }

    /// Step 1; None if there is nothing to store.
    fn begin(&self, written: &Written) -> Result<Option<Storing>> {
        let mut state = written.lock();
        if state.bytes.is_none() {
            return Ok(None);
        }
        // of a write-back that panicked: whoever has the turn finds no other under way
        let left = std::mem::take(&mut state.storing);
        state.dirty.add_all(&left);
        if state.dirty.is_empty() {
            self.take_out(written, &mut state, None);
            return Ok(None);
        }
        if written.array.freshness().is_replaced() {
            self.take_out(written, &mut state, None);
            return Err(lost(written, "the array was replaced or deleted"));
        }
        let outside: Ranges = written.array.outside(written.chunk).into_iter().collect();
        let before = state.dirty.len();
        state.dirty.remove_all(&outside);
        if state.dirty.len() < before {
            let e = lost(written, "the array became smaller");
            if state.dirty.is_empty() {
                self.take_out(written, &mut state, None);
                return Err(e);
            }
            self.stats.problem(format!("not stored: {e}"));
        }
        drop(state);
        let mut state = self.complete(written, true)?;
        if state.bytes.is_none() {
            return Ok(None);
        }
        // a writer may have added some while the chunk below was loaded
        state.dirty.remove_all(&outside);
        let below = (!state.is_whole(written.size())).then(|| state.below.clone());
        state.storing = std::mem::take(&mut state.dirty);
        let bytes = state.bytes.clone().ok_or_else(gone)?;
        Ok(Some(Storing { bytes, epoch: written.array.freshness().opening(), loads: state.loads, below }))
    }

    /// Step 3.
    fn stored(
        &self,
        written: &Written,
        state: &mut WrittenState,
        storing: Storing,
        version: Option<Version>,
        keep: bool,
    ) {
        let (array, chunk) = (&written.array, written.chunk);
        let mark = VersionTag::of(version.as_ref());
        state.stores += 1;
        self.served.record_store(
            array.id(),
            chunk,
            storing.before(),
            if array.is_lossy() { VersionTag::MIXED } else { mark },
        );
        // what was loaded meanwhile is not what was stored; neither is what a lossy filter made of it
        let is_same = state.loads == storing.loads && !array.is_lossy();
        if is_same {
            (state.below, state.epoch) = (Below::Known(version.clone()), storing.epoch);
        } else {
            state.below = Below::Unknown;
        }
        if !state.dirty.is_empty() {
            return;
        }
        let content = (is_same && keep).then(|| match version {
            Some(version) => Content::Whole(storing.bytes, version, mark),
            None => Content::Uninitialised,
        });
        self.take_out(written, state, content.map(|content| (content, storing.epoch)));
    }

    /// Takes a chunk out of the map, into a slot if its content is known.
    fn take_out(&self, written: &Written, state: &mut WrittenState, content: Option<(Content, Opening)>) {
        if state.bytes.take().is_none() {
            return;
        }
        let mut all = self.lock();
        // whoever loads the chunk now may have seen the old one
        written.array.freshness().record_store();
        if all.written.remove(&written.key()).is_some() {
            all.written_bytes -= written.size();
            written.array.freshness().remove_dirty();
        }
        all.whole.retain(|key| *key != written.key());
        match content {
            Some((content, epoch)) => {
                all.slots.put(written.key(), Slot::Ready { content, epoch, ahead: false, spared: false });
            }
            // a load that began before the write may have left the old chunk there; one that is still under way finds
            // that a chunk was stored
            None if matches!(all.slots.peek(&written.key()), Some(Slot::Ready { .. })) => {
                self.dropped(all.slots.pop(&written.key()));
            }
            None => {}
        }
        self.evict(&mut all, 0);
        self.trim(&all);
        self.changed.notify_all();
    }
}

impl WrittenState {
    fn piece(&self) -> Answer {
        let mark = self.below.mark().filter(|mark| *mark != VersionTag::UNINITIALIZED).unwrap_or(VersionTag::UNSTORED);
        let bytes = self.bytes.clone().ok_or_else(gone)?;
        Ok(Some(DecodedPart::whole(bytes, mark)))
    }
}

impl State {
    /// Chunks that wait to be stored, oldest first.
    pub(super) fn sorted(&self, which: impl Fn(&Written) -> bool) -> Vec<Arc<Written>> {
        let mut list: Vec<_> = self.written.values().filter(|w| which(w)).cloned().collect();
        list.sort_unstable_by_key(|w| w.number);
        list
    }
}
