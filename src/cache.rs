//! Decoded chunks of all arrays, whole or in parts, within one bound of bytes. Several readers of one missing chunk cause
//! one load; what was learnt of the store before an array's latest opening is checked again before it is used. It knows
//! arrays, not files.
//!
//! Locks: one, over the map of slots, the map of written chunks and the sums of bytes; the one over [`Seen`] is taken
//! alone; `written` has two more for each chunk. Neither is ever held
//! while a chunk is loaded, checked or copied. Whoever waits, for another's load of the same chunk or for room, holds
//! neither a lock nor a chunk. A load waits for room only before it asks the store, and only while other loads are under
//! way; they end without waiting again. What another array's store can't delay is said in `room`.

mod access;
mod buffers;
mod content;
mod load;
mod ranges;
mod readahead;
mod room;
mod spill;
mod turns;
mod window;
mod written;

pub use content::{ChunkPart, DecodedPart};
pub use ranges::Ranges;
pub use readahead::{PrefetchState, Prefetcher};
pub use spill::SpillOptions;
pub use written::Part;

use crate::array::{Array, Opening, ServedVersions, VersionTag};
use crate::error::{Error, Result};
use crate::stats::Stats;
use crate::store::SubtreeLocks;
use crate::util::memory::{self, Reclaim, lock};
use crate::zarr::grid::ChunkId;
use buffers::Buffers;
use content::{Answer, Content, Place, Slot};
use lru::LruCache;
use room::{Reservations, Stores};
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use turns::Turns;
use written::Written;

/// What a slot costs beyond its chunk's bytes, roughly: so that a million missing chunks count, too.
const SLOT_COST: usize = 256;

/// The number of the array, and what of it.
type SlotKey = (u64, Place);

/// How a slot is filled: with what is known already, if that is not enough.
type Load<'l> = &'l mut dyn FnMut(&mut BusySlot, Option<Content>) -> Result<Content>;

struct State {
    slots: LruCache<SlotKey, Slot>,
    /// Bytes promised to loads that are under way.
    reserved: Reservations,
    /// Chunks that wait to be stored. What a slot says of one of them is not asked.
    written: HashMap<SlotKey, Arc<Written>>,
    /// Bytes of their chunks.
    written_bytes: usize,
    /// Those of them that were written from end to end, in the order in which that came about.
    whole: VecDeque<SlotKey>,
    /// How many chunks came to be written so far.
    writes: u64,
    /// Write-backs in flight and failed ones, by the number of their array.
    stores: HashMap<u64, Stores>,
    /// The array whose writer found no room last, until a chunk of another array is stored for it.
    short_of_room: Option<u64>,
}

/// The cache of decoded chunks.
pub struct Cache {
    bound: usize,
    buffers: Arc<Buffers>,
    /// Protects the slots and what is reserved.
    state: Mutex<State>,
    /// A slot is no longer busy, or a reservation is returned.
    changed: Condvar,
    served: ServedVersions,
    /// Held while a chunk is replaced in the store, by its key: two objects may stand for one array, if its metadata has
    /// changed, and both may have something to lay over the same chunk. It protects nothing else.
    replacing: SubtreeLocks,
    /// Whether a chunk that holds nothing but the fill value is erased instead of stored.
    drops_empty: bool,
    /// Loads of far chunks are as many as wait for the store; so many of them decode.
    decoding: Turns,
    stats: Arc<Stats>,
}

impl Cache {
    /// A cache of at most `bound` bytes, or of one chunk that is larger than that.
    pub fn new(bound: usize, stats: Arc<Stats>) -> Self {
        let state = State {
            slots: LruCache::unbounded(),
            reserved: Reservations::default(),
            written: HashMap::new(),
            written_bytes: 0,
            whole: VecDeque::new(),
            writes: 0,
            stores: HashMap::new(),
            short_of_room: None,
        };
        Cache {
            bound,
            buffers: Arc::default(),
            state: Mutex::new(state),
            changed: Condvar::new(),
            served: ServedVersions::default(),
            replacing: SubtreeLocks::default(),
            drops_empty: false,
            decoding: Turns::new(std::thread::available_parallelism().map_or(2, |n| n.get())),
            stats,
        }
    }

    /// The same, but with `yes` a written chunk that holds nothing but the fill value is erased instead of stored.
    pub fn dropping_empty(self, yes: bool) -> Self {
        Cache { drops_empty: yes, ..self }
    }

    /// The same, but so many threads decode chunks of a far store, not one per core.
    pub fn decoding_with(self, threads: usize) -> Self {
        Cache { decoding: Turns::new(threads), ..self }
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

    /// What is wanted of a chunk; None if it is uninitialised. The caller may hold it for as long as it copies, but must
    /// not hold one while asking for another that may have to be loaded: waiting for room would never end.
    pub fn get(&self, array: &Array, chunk: ChunkId, want: ChunkPart) -> Answer {
        if let Some(answer) = self.get_written(array, chunk) {
            return answer;
        }
        self.get_place(array, Place::Chunk(chunk), want, &mut |slot, known| self.load(slot, array, chunk, known, want))
    }

    fn get_place(&self, array: &Array, place: Place, want: ChunkPart, load: Load) -> Answer {
        let key = (array.id(), place);
        let mut state = self.lock();
        let mut counted = false;
        loop {
            let known = match state.slots.get_mut(&key) {
                Some(Slot::Busy) => {
                    // whoever loads it counts the miss
                    counted = true;
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                    continue;
                }
                Some(Slot::Ready { content, epoch, ahead, .. }) => {
                    let current = array.freshness().is_current(*epoch);
                    if current && let Some(answer) = content.answer(want) {
                        self.count_hit(!counted, ahead);
                        return answer;
                    }
                    Some((content.clone(), current))
                }
                None => None,
            };
            state.slots.put(key, Slot::Busy);
            let slot = BusySlot::new(self, array, key, 0, false);
            drop(state);
            return self.fill(slot, array, known, want, load);
        }
    }

    /// As [`Cache::get`], but only if that needs neither the store nor a wait.
    pub fn peek(&self, array: &Array, chunk: ChunkId, want: ChunkPart) -> Option<Answer> {
        match self.peek_written(array, chunk) {
            Some(known) => known,
            None => self.peek_place(array, Place::Chunk(chunk), want),
        }
    }

    fn peek_place(&self, array: &Array, place: Place, want: ChunkPart) -> Option<Answer> {
        let mut state = self.lock();
        match state.slots.get_mut(&(array.id(), place)) {
            Some(Slot::Ready { content, epoch, ahead, .. }) if array.freshness().is_current(*epoch) => {
                let answer = content.answer(want)?;
                self.count_hit(true, ahead);
                Some(answer)
            }
            _ => None,
        }
    }

    /// Returns which versions of chunks were served.
    pub fn served(&self) -> &ServedVersions {
        &self.served
    }

    /// Gets ready for the next load, if the last one found no buffer: to be called when nobody waits.
    pub fn refill_buffers(&self) {
        if let Some(len) = self.buffers.wanted()
            && self.used() + len <= self.bound
        {
            // without the memory the next load says so
            let _ = self.buffers.prepare(len);
        }
    }

    /// True if [`Cache::peek`] would have an answer.
    fn holds(&self, array: &Array, place: Place, want: ChunkPart) -> bool {
        let (state, key) = (self.lock(), (array.id(), place));
        match state.slots.peek(&key) {
            _ if state.written.contains_key(&key) => true,
            Some(Slot::Ready { content, epoch, .. }) => {
                array.freshness().is_current(*epoch) && content.answer(want).is_some()
            }
            _ => false,
        }
    }

    /// Reads bytes of a chunk of an array that is [`PartialDecode::Plain`] past the cache, and tells of which version they are.
    pub fn read_plain(
        &self,
        array: &Array,
        chunk: ChunkId,
        range: Range<usize>,
        out: &mut Vec<u8>,
    ) -> Result<VersionTag> {
        if let Some(piece) = self.get_written(array, chunk).transpose()?.flatten() {
            out.clear();
            out.extend_from_slice(piece.bytes().get(range).unwrap_or_default());
            return Ok(piece.mark);
        }
        self.stats.misses.add(1);
        loop {
            let epoch = array.freshness().opening();
            let read = array.read_plain(chunk, range.clone(), out).inspect_err(|e| self.failed(e))?;
            let mark = VersionTag::of(read.as_ref());
            self.stats.uninitialized.add(u64::from(read.is_none()));
            self.note(array, chunk, mark);
            // whoever opened the array meanwhile has not seen this mark
            if array.freshness().opening() == epoch {
                return Ok(mark);
            }
        }
    }

    /// Remembers that bytes of a chunk were given.
    fn note(&self, array: &Array, chunk: ChunkId, mark: VersionTag) {
        self.served.record(array.id(), chunk, mark);
    }

    fn failed(&self, e: &Error) {
        self.stats.failures.add(1);
        self.stats.problem(e.to_string());
    }

    fn count_hit(&self, is_hit: bool, ahead: &mut bool) {
        if is_hit {
            self.stats.hits.add(1);
        }
        if std::mem::take(ahead) {
            self.stats.prefetch_used.add(1);
        }
    }

    /// Loads what somebody will want, if there is room for it without dropping what was read ahead before: false if
    /// there isn't.
    pub fn read_ahead(&self, array: &Array, chunk: ChunkId, want: ChunkPart) -> bool {
        let bytes = array.chunk_memory();
        let mut load = |slot: &mut BusySlot, known| self.load(slot, array, chunk, known, want);
        self.ahead_of_place(array, Place::Chunk(chunk), want, bytes, &mut load)
    }

    fn ahead_of_place(&self, array: &Array, place: Place, want: ChunkPart, bytes: usize, load: Load) -> bool {
        let key = (array.id(), place);
        let mut state = self.lock();
        let known = match state.slots.peek(&key) {
            _ if state.written.contains_key(&key) => return true,
            Some(Slot::Busy) => return true,
            Some(Slot::Ready { content, epoch, .. }) => {
                let current = array.freshness().is_current(*epoch);
                if current && content.answer(want).is_some() {
                    return true;
                }
                Some((content.clone(), current))
            }
            None => None,
        };
        if bytes > self.bound {
            return false; // nothing that might be dropped would be enough
        }
        while self.needed_by(&state) + bytes > self.bound {
            let oldest = state.slots.peek_lru();
            let droppable = matches!(oldest, Some((k, Slot::Ready { ahead: false, .. })) if *k != key);
            if !droppable || state.slots.pop_lru().is_none() {
                return false;
            }
        }
        state.reserved.add(array, bytes);
        state.slots.put(key, Slot::Busy);
        let slot = BusySlot::new(self, array, key, bytes, true);
        drop(state);
        // whoever asks for it is told what went wrong
        let _ = self.fill(slot, array, known, want, load);
        true
    }

    /// Drops chunks that nobody is expected to ask for again.
    pub fn drop_chunks(&self, array: &Array, chunks: Range<u64>) {
        self.drop_places(array, chunks.map(|chunk| Place::Chunk(ChunkId(chunk))));
    }

    fn drop_places(&self, array: &Array, places: impl Iterator<Item = Place>) {
        let mut state = self.lock();
        for place in places {
            let key = (array.id(), place);
            if matches!(state.slots.peek(&key), Some(Slot::Ready { .. })) {
                self.dropped(state.slots.pop(&key));
            }
        }
    }

    /// Fills a slot that this thread has made busy; `known` is what it held, and whether that is of this epoch.
    fn fill(
        &self,
        mut slot: BusySlot,
        array: &Array,
        mut known: Option<(Content, bool)>,
        want: ChunkPart,
        load: Load,
    ) -> Answer {
        let place = slot.key.1;
        loop {
            // taken before the store is asked: an opening meanwhile makes the answer old
            let epoch = array.freshness().opening();
            let current = known.take().filter(|(content, current)| *current || content.is_current(array, place));
            let (content, answer) = match current.map(|(content, _)| (content.answer(want), content)) {
                Some((Some(answer), content)) => {
                    self.stats.hits.add(u64::from(!slot.ahead));
                    (content, answer)
                }
                enough => {
                    self.stats.misses.add(u64::from(!slot.ahead));
                    let content = self.load_noting(&mut slot, enough.map(|(_, content)| content), load)?;
                    let answer = content.answer(want).unwrap_or_else(|| Err(Error::system(libc::EIO)));
                    (content, answer)
                }
            };
            match (&content, place) {
                // also of one that was built before this epoch: only what is noted in it is looked at when it ends
                (Content::Window(_, chunks), _) => {
                    chunks.iter().for_each(|(chunk, mark)| self.note(array, *chunk, *mark))
                }
                (content, Place::Chunk(chunk)) => content.mark().into_iter().for_each(|m| self.note(array, chunk, m)),
                _ => {}
            }
            // whoever opened the array meanwhile has not seen this mark
            if array.freshness().opening() == epoch {
                slot.content = Some((content, epoch));
                return answer;
            }
            known = Some((content, false));
        }
    }

    /// Drops slots, the least recently used first, until `bytes` more fit or one is left: a chunk larger than the bound
    /// must not be decoded again for every request.
    fn evict(&self, state: &mut State, bytes: usize) {
        let (mut busy, mut ahead) = (Vec::new(), VecDeque::new());
        loop {
            let taken_out = (busy.len() + ahead.len()) * SLOT_COST;
            if self.needed_by(state).saturating_add(taken_out).saturating_add(bytes) <= self.bound {
                break;
            }
            if state.slots.len() + busy.len() + ahead.len() <= 1 {
                break;
            }
            match state.slots.pop_lru() {
                Some((key, slot @ Slot::Busy)) => busy.push((key, slot)),
                // what is still to come is worth more than what has been
                Some((key, Slot::Ready { content, epoch, ahead: true, spared: false })) => {
                    ahead.push_back((key, Slot::Ready { content, epoch, ahead: true, spared: true }));
                }
                Some((_, slot)) => self.dropped(Some(slot)),
                None => match ahead.pop_front() {
                    Some((_, slot)) => self.dropped(Some(slot)),
                    None => break,
                },
            }
        }
        for (key, slot) in busy.into_iter().chain(ahead) {
            state.slots.put(key, slot);
        }
    }

    fn dropped(&self, slot: Option<Slot>) {
        if matches!(slot, Some(Slot::Ready { ahead: true, .. })) {
            self.stats.prefetch_wasted.add(1);
        }
    }

    fn trim(&self, state: &State) {
        while self.used_by(state) > self.bound && self.buffers.give_back() {}
    }

    fn used_by(&self, state: &State) -> usize {
        self.buffers.bytes() + state.reserved.bytes() + state.slots.len() * SLOT_COST + memory::above_reserve()
    }

    /// As [`Cache::used_by`], without the buffers that wait: a load may take one of them.
    fn needed_by(&self, state: &State) -> usize {
        self.used_by(state).saturating_sub(self.buffers.waiting())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Reclaim for Cache {
    /// Drops chunks, so that documents fit beside the others.
    fn shrink(&self) {
        let Ok(mut state) = self.state.try_lock() else { return };
        self.evict(&mut state, 0);
        self.trim(&state);
    }
}

/// A slot this thread has made busy. Dropping it sets the slot free, also when a load panics.
struct BusySlot<'a> {
    cache: &'a Cache,
    array: &'a Array,
    /// See [`Array::stores`]: what is loaded while a chunk is stored may be the old one.
    stores: u64,
    key: SlotKey,
    /// With the epoch it is of.
    content: Option<(Content, Opening)>,
    reserved: usize,
    ahead: bool,
}

impl<'a> BusySlot<'a> {
    /// To be made while the cache's state is locked.
    fn new(cache: &'a Cache, array: &'a Array, key: SlotKey, reserved: usize, ahead: bool) -> Self {
        BusySlot { cache, array, stores: array.freshness().stores(), key, content: None, reserved, ahead }
    }

    /// Reserves memory for a load of `bytes` in all: drops the slots that were not used for longest, and waits while other
    /// loads fill the cache, as [`Cache::may_load`] says.
    fn reserve(&mut self, bytes: usize) {
        if bytes <= self.reserved {
            return;
        }
        let cache = self.cache;
        let mut state = cache.lock();
        // who waits holds nothing: two that want more than they have would wait for each other
        state.reserved.remove(self.array, std::mem::take(&mut self.reserved));
        cache.changed.notify_all();
        loop {
            cache.evict(&mut state, bytes);
            if cache.may_load(&state, self.array, bytes) {
                state.reserved.add(self.array, bytes);
                self.reserved = bytes;
                return;
            }
            state = cache.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for BusySlot<'_> {
    fn drop(&mut self) {
        let mut state = self.cache.lock();
        match self.content.take() {
            Some((content, epoch)) if !self.array.freshness().has_stored_since(self.stores) => {
                state.slots.put(self.key, Slot::Ready { content, epoch, ahead: self.ahead, spared: false });
            }
            // what was stored meanwhile may stand there already
            _ if matches!(state.slots.peek(&self.key), Some(Slot::Busy)) => drop(state.slots.pop(&self.key)),
            _ => {}
        }
        state.reserved.remove(self.array, self.reserved);
        self.cache.evict(&mut state, 0);
        self.cache.trim(&state);
        self.cache.changed.notify_all();
    }
}

#[cfg(test)]
mod tests;
