//! The slots of the cache: one load per chunk however many readers want it, least recently used
//! slots evicted first. A slot that was confirmed before the latest opening of its array is
//! revalidated before it is used.

mod entry;
mod found;
mod load;
mod neighbors;
mod spill;
mod window;

use entry::Previous;
pub(super) use entry::{CacheKey, CachedChunk, CachedItem, PartResult, Slot};
pub use entry::{ChunkPart, DecodedPart};
pub use found::{CachedRun, FoundBytes};
pub(super) use spill::{Spill, Spills};
pub(super) use window::Window;

use super::{Cache, SLOT_COST, State};
use crate::array::{Array, NeighborBytes, Opening, VersionTag};
use std::collections::VecDeque;
use std::ops::Range;
use zarrfs_base::error::{Error, Result};
use zarrfs_format::grid::ChunkId;

/// An item of the cache, the part of it that is wanted, and where to load it from.
#[derive(Clone, Copy)]
pub(super) enum Wanted<'a> {
    /// A part of a chunk, from the store.
    Chunk(ChunkId, ChunkPart),
    /// A whole chunk, from bytes that were read together with those of its neighbors.
    Neighbor(ChunkId, &'a NeighborBytes<'a>),
    /// A whole window, from its chunks.
    Window(&'a Window),
}

impl Wanted<'_> {
    fn item(self) -> CachedItem {
        match self {
            Wanted::Chunk(chunk, _) | Wanted::Neighbor(chunk, _) => CachedItem::Chunk(chunk),
            Wanted::Window(window) => window.item(),
        }
    }

    fn part(self) -> ChunkPart {
        match self {
            Wanted::Chunk(_, part) => part,
            Wanted::Neighbor(..) | Wanted::Window(_) => ChunkPart::Whole,
        }
    }
}

/// The result of beginning to prefetch a part.
enum Prefetched<'a> {
    /// The part is in the cache, or another thread loads it.
    Present,
    /// There is no memory for the part.
    NoMemory,
    /// This thread has to load the part into the slot.
    Begun(Box<(LoadingSlot<'a>, Previous)>),
}

impl Cache {
    /// Returns a part of a chunk, or `None` if the chunk is uninitialized. It may block on the
    /// store and on memory. The caller must not hold a part while it asks for another: a load that
    /// waits for that memory would never end.
    ///
    /// # Errors
    ///
    /// Fails if the chunk cannot be loaded. Damage is remembered until the next opening, a failure
    /// of the system is not.
    pub fn get(&self, array: &Array, chunk: ChunkId, part: ChunkPart) -> PartResult {
        if let Some(found) = self.get_dirty(array, chunk, true) {
            return found;
        }
        self.get_item(array, Wanted::Chunk(chunk, part))
    }

    /// Returns an item that is not dirty, as [`Cache::get`] does.
    pub(super) fn get_item(&self, array: &Array, wanted: Wanted) -> PartResult {
        let key = (array.id(), wanted.item());
        let mut state = self.lock();
        let mut has_waited = false;
        loop {
            let previous = match state.slots.get_mut(&key) {
                Some(Slot::Loading) => {
                    // the thread that loads counts the miss
                    has_waited = true;
                    state = self.wait(state);
                    continue;
                }
                Some(slot) => {
                    if let Some(found) = slot.part(array, wanted.part()) {
                        self.count_hit(!has_waited, slot);
                        return found;
                    }
                    slot.content(array)
                }
                None => None,
            };
            state.slots.put(key, Slot::Loading);
            let slot = LoadingSlot::new(self, array, key, 0, false);
            drop(state);
            return self.insert(slot, previous, wanted);
        }
    }

    /// Returns the result of [`Cache::get`], or `None` if that needs the store or a wait.
    pub fn peek(&self, array: &Array, chunk: ChunkId, part: ChunkPart) -> Option<PartResult> {
        match self.dirty_chunk(array, chunk) {
            Some(dirty) => self.peek_dirty(&dirty),
            None => self.peek_item(array, Wanted::Chunk(chunk, part)),
        }
    }

    /// Returns the result of [`Cache::get_item`], or `None` if that needs the store or a wait.
    pub(super) fn peek_item(&self, array: &Array, wanted: Wanted) -> Option<PartResult> {
        let mut state = self.lock();
        let slot = state.slots.get_mut(&(array.id(), wanted.item()))?;
        let found = slot.part(array, wanted.part())?;
        self.count_hit(true, slot);
        Some(found)
    }

    /// Returns whether [`Cache::peek`] would find a part. It counts no hit.
    pub(super) fn holds(&self, array: &Array, item: CachedItem, part: ChunkPart) -> bool {
        let state = self.lock();
        let key = (array.id(), item);
        let slot = state.slots.peek(&key);
        state.dirty.contains_key(&key) || slot.is_some_and(|slot| slot.part(array, part).is_some())
    }

    /// Reads bytes of a chunk into `out`, past the cache. The chunks of the array must be stored
    /// uncompressed. Returns the tag of the version that was read.
    pub fn read_plain(
        &self,
        array: &Array,
        chunk: ChunkId,
        range: Range<usize>,
        out: &mut Vec<u8>,
    ) -> Result<VersionTag> {
        if let Some(part) = self.get_dirty(array, chunk, true).transpose()?.flatten() {
            out.clear();
            out.extend_from_slice(part.bytes().get(range).unwrap_or_default());
            return Ok(part.tag());
        }
        self.stats.misses.add(1);
        loop {
            let opening = array.freshness().opening();
            let read = array
                .read_plain(chunk, range.clone(), out)
                .map_err(|e| self.record_failure(e))?;
            let tag = VersionTag::of(read.as_ref());
            self.stats.uninitialized.add(u64::from(read.is_none()));
            self.served.record(array.id(), chunk, tag);
            // an opening meanwhile has not checked this version
            if array.freshness().is_current(opening) {
                return Ok(tag);
            }
        }
    }

    fn count_hit(&self, is_hit: bool, slot: &mut Slot) {
        self.stats.hits.add(u64::from(is_hit));
        if let Slot::Ready { is_prefetched, .. } = slot
            && std::mem::take(is_prefetched)
        {
            self.stats.prefetch_used.add(1);
        }
    }

    /// Loads a part of a chunk before a reader needs it. Returns false if there is no memory for it
    /// without evicting other prefetched chunks.
    pub(super) fn prefetch(&self, array: &Array, chunk: ChunkId, part: ChunkPart) -> bool {
        self.prefetch_item(array, Wanted::Chunk(chunk, part))
    }

    /// Loads an item before a reader needs it, as [`Cache::prefetch`] does.
    pub(super) fn prefetch_item(&self, array: &Array, wanted: Wanted) -> bool {
        let memory = match wanted {
            Wanted::Chunk(chunk, part) => self
                .part_memory(array, chunk, part)
                .unwrap_or_else(|| array.chunk_memory()),
            Wanted::Neighbor(..) => array.chunk_memory(),
            Wanted::Window(window) => window.memory(array),
        };
        match self.begin_prefetch(array, wanted.item(), wanted.part(), memory) {
            Prefetched::Present => true,
            Prefetched::NoMemory => false,
            Prefetched::Begun(begun) => {
                let (slot, previous) = *begun;
                // a reader of the chunk gets the error
                let _ = self.insert(slot, previous, wanted);
                true
            }
        }
    }

    /// Begins to prefetch a part: reserves `bytes` for it without evicting other prefetched ones.
    fn begin_prefetch<'a>(
        &'a self,
        array: &'a Array,
        item: CachedItem,
        part: ChunkPart,
        bytes: usize,
    ) -> Prefetched<'a> {
        let key = (array.id(), item);
        let mut state = self.lock();
        let previous = match state.slots.peek(&key) {
            _ if state.dirty.contains_key(&key) => return Prefetched::Present,
            Some(Slot::Loading) => return Prefetched::Present,
            Some(slot) if slot.part(array, part).is_some() => return Prefetched::Present,
            slot => slot.and_then(|slot| slot.content(array)),
        };
        if !self.evict_unprefetched(&mut state, bytes, Some(key)) {
            return Prefetched::NoMemory;
        }
        state.reserved.add(array, bytes);
        state.slots.put(key, Slot::Loading);
        Prefetched::Begun(Box::new((
            LoadingSlot::new(self, array, key, bytes, true),
            previous,
        )))
    }

    /// Evicts slots, but neither prefetched ones nor that of `key`, until `bytes` more fit. Returns
    /// false if they do not.
    fn evict_unprefetched(&self, state: &mut State, bytes: usize, key: Option<CacheKey>) -> bool {
        if bytes > self.bound {
            return false; // evicting everything would not suffice
        }
        while self.needed_by(state) + bytes > self.bound {
            let oldest = state.slots.peek_lru();
            let can_evict = matches!(oldest, Some((k, Slot::Ready { is_prefetched: false, .. })) if Some(*k) != key);
            if !can_evict || state.slots.pop_lru().is_none() {
                return false;
            }
        }
        true
    }

    /// Drops the slots of items that no reader is expected to want again.
    pub(super) fn drop_items(&self, array: &Array, items: impl Iterator<Item = CachedItem>) {
        let mut state = self.lock();
        for item in items {
            self.drop_slot(&mut state, &(array.id(), item));
        }
    }

    /// Drops a slot unless a thread is loading it.
    pub(super) fn drop_slot(&self, state: &mut State, key: &CacheKey) {
        if matches!(state.slots.peek(key), Some(Slot::Ready { .. })) {
            self.count_dropped(state.slots.pop(key));
        }
    }

    /// Revalidates the previous content of a slot or loads new content, and puts it into the slot.
    /// Starts again if the array is opened meanwhile.
    fn insert(&self, mut slot: LoadingSlot, mut previous: Previous, wanted: Wanted) -> PartResult {
        let array = slot.array;
        let item = wanted.item();
        let part = wanted.part();
        loop {
            // taken before the store is asked: an opening meanwhile makes the answer stale
            let opening = array.freshness().opening();
            let current = previous
                .take()
                .filter(|(content, current)| *current || content.is_stored(array, item));
            let (content, found) = match current.map(|(content, _)| (content.part(part), content)) {
                Some((Some(found), content)) => {
                    self.stats.hits.add(u64::from(!slot.is_prefetched));
                    (content, found)
                }
                insufficient => {
                    self.stats.misses.add(u64::from(!slot.is_prefetched));
                    let content = self.load_or_remember(
                        &mut slot,
                        insufficient.map(|(_, content)| content),
                        wanted,
                    )?;
                    let found = content
                        .part(part)
                        .unwrap_or_else(|| Err(Error::system(libc::EIO)));
                    (content, found)
                }
            };
            self.record_served(array, item, &content);
            // an opening meanwhile has not checked this version
            if array.freshness().is_current(opening) {
                slot.content = Some((content, opening));
                return found;
            }
            previous = Some((content, false));
        }
    }

    /// Records the versions of chunks that a slot's content serves.
    fn record_served(&self, array: &Array, item: CachedItem, content: &CachedChunk) {
        match (content, item) {
            // record a window from before this opening, too: the next opening checks only versions
            // that were recorded since this one
            (CachedChunk::Window(_, sources), _) => {
                sources
                    .iter()
                    .for_each(|(chunk, tag)| self.served.record(array.id(), *chunk, *tag));
            }
            (content, CachedItem::Chunk(chunk)) => {
                content
                    .tag()
                    .into_iter()
                    .for_each(|tag| self.served.record(array.id(), chunk, tag));
            }
            _ => {}
        }
    }

    /// Drops slots, the least recently used first, until `bytes` more fit or one is left: a chunk
    /// larger than the bound must not be decoded again for every request.
    pub(super) fn evict(&self, state: &mut State, bytes: usize) {
        let mut loading = Vec::new();
        let mut prefetched = VecDeque::new();
        loop {
            let taken_out = loading.len() + prefetched.len();
            let needed = self
                .needed_by(state)
                .saturating_add(taken_out * SLOT_COST)
                .saturating_add(bytes);
            if needed <= self.bound || state.slots.len() + taken_out <= 1 {
                break;
            }
            match state.slots.pop_lru() {
                Some((key, slot @ Slot::Loading)) => loading.push((key, slot)),
                Some((key, mut slot)) => match &mut slot {
                    // spare a prefetched chunk once: it is still to be read, unless its reader is
                    // gone
                    Slot::Ready {
                        is_prefetched: true,
                        was_spared: was_spared @ false,
                        ..
                    } => {
                        *was_spared = true;
                        prefetched.push_back((key, slot));
                    }
                    _ => self.count_dropped(Some(slot)),
                },
                None => match prefetched.pop_front() {
                    Some((_, slot)) => self.count_dropped(Some(slot)),
                    None => break,
                },
            }
        }
        for (key, slot) in loading.into_iter().chain(prefetched) {
            state.slots.put(key, slot);
        }
    }

    fn count_dropped(&self, slot: Option<Slot>) {
        if matches!(
            slot,
            Some(Slot::Ready {
                is_prefetched: true,
                ..
            })
        ) {
            self.stats.prefetch_wasted.add(1);
        }
    }
}

/// A slot that this thread loads. Dropping it makes the slot ready or removes it, also when a load
/// panics.
pub(super) struct LoadingSlot<'a> {
    cache: &'a Cache,
    array: &'a Array,
    /// The array's generation of stores before the load.
    stores: u64,
    key: CacheKey,
    /// The loaded content, and the opening in which it was current.
    content: Option<(CachedChunk, Opening)>,
    reserved: usize,
    is_prefetched: bool,
}

impl<'a> LoadingSlot<'a> {
    /// Creates the slot of a load. The caller has locked the cache's state.
    fn new(
        cache: &'a Cache,
        array: &'a Array,
        key: CacheKey,
        reserved: usize,
        is_prefetched: bool,
    ) -> Self {
        LoadingSlot {
            cache,
            array,
            stores: array.freshness().stores(),
            key,
            content: None,
            reserved,
            is_prefetched,
        }
    }

    /// Reserves memory for a load of `bytes` in total: evicts slots, and waits while other loads
    /// fill the cache, as [`Cache::may_load`] says.
    pub fn reserve(&mut self, bytes: usize) {
        if bytes <= self.reserved {
            return;
        }
        let cache = self.cache;
        let mut state = cache.lock();
        // a waiting load holds nothing: two that want more than they have would wait for each other
        state
            .reserved
            .remove(self.array, std::mem::take(&mut self.reserved));
        cache.wake(&state);
        cache.reserve_in(state, self.array, bytes);
        self.reserved = bytes;
    }
}

impl Drop for LoadingSlot<'_> {
    fn drop(&mut self) {
        let mut state = self.cache.lock();
        match self.content.take() {
            Some((content, confirmed)) if !self.array.freshness().has_stored_since(self.stores) => {
                let slot = Slot::Ready {
                    content,
                    confirmed,
                    is_prefetched: self.is_prefetched,
                    was_spared: false,
                };
                state.slots.put(self.key, slot);
            }
            // a write-back may have filled the slot meanwhile
            _ if matches!(state.slots.peek(&self.key), Some(Slot::Loading)) => {
                drop(state.slots.pop(&self.key))
            }
            _ => {}
        }
        state.reserved.remove(self.array, self.reserved);
        self.cache.evict(&mut state, 0);
        self.cache.trim(&state);
        self.cache.wake(&state);
    }
}
