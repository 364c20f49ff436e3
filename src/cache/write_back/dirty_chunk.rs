//! A dirty chunk: its bytes, the ranges of them that were written, and the known version of the
//! stored chunk below, the *base*. This module never asks the store.

use super::Part;
use crate::array::{Array, Opening, Ranges, VersionTag};
use crate::cache::Cache;
use crate::cache::buffers::{Account, Decoded};
use crate::cache::chunk_cache::{CacheKey, CachedItem, DecodedPart};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory::{self, lock};
use zarrfs_format::grid::ChunkId;
use zarrfs_store::{Replaces, Version};

/// A chunk that was written and is not yet stored.
pub(in crate::cache) struct DirtyChunk {
    pub array: Arc<Array>,
    pub chunk: ChunkId,
    /// A number that increases with each chunk that becomes dirty: the oldest chunks are stored
    /// first.
    pub number: u64,
    /// Held during a write-back. Protects no data.
    pub write_back_lock: Mutex<()>,
    /// Held while the base is loaded or revalidated. Protects no data.
    pub load_lock: Mutex<()>,
    /// Protects the bytes and their state; `None` once the chunk has left the map of dirty chunks:
    /// the caller must look up the chunk again.
    state: Mutex<Option<DirtyState>>,
    /// The chunk that has taken over the bytes, if the array has got another shape: a flush that
    /// knows only this chunk stores that one.
    pub moved: OnceLock<Arc<DirtyChunk>>,
}

pub(in crate::cache) struct DirtyState {
    /// All bytes of the chunk, C layout. Bytes that were not written are valid only if `base` is
    /// known.
    bytes: Arc<Decoded>,
    /// The bytes that were written since the last write-back began.
    pub dirty: Ranges,
    /// The bytes that the write-back in flight stores.
    pub storing: Ranges,
    pub base: Base,
    /// Number of times that the base was loaded or the chunk was stored. A load compares it to
    /// notice a store meanwhile, and a write-back to notice a load: `load_lock` and
    /// `write_back_lock` exclude another of its own kind.
    pub generation: u64,
    /// Whether the chunk is stored though the store lacks it and its bytes are fill values.
    creates: Creates,
    /// The bytes of an edge chunk that belong to the array; `None` if all do.
    inside: Option<Ranges>,
    /// Account of the memory of the ranges.
    account: Account,
}

/// Whether a write creates a chunk that the store lacks. Flat bytes show fill values there: a
/// program that writes them back does not ask for a chunk, and one that writes a chunk file does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Creates {
    /// It does.
    Always,
    /// It does unless all bytes of the chunk are fill values.
    UnlessEmpty,
}

/// The knowledge of the stored chunk below the written bytes.
#[derive(Clone)]
pub(in crate::cache) enum Base {
    Unknown,
    /// The bytes that were not written are those of this version, which the store has confirmed in
    /// this opening. `None` stands for an uninitialized chunk.
    Known(Option<Version>, Opening),
}

impl Base {
    pub fn tag(&self) -> Option<VersionTag> {
        match self {
            Base::Unknown => None,
            Base::Known(version, _) => Some(VersionTag::of(version.as_ref())),
        }
    }
}

/// The request to the store that is needed before all bytes are valid.
pub(in crate::cache) enum Missing {
    Nothing,
    /// Whether the base still has this version.
    Version(Option<Version>),
    Bytes,
}

/// The state of a dirty chunk that a write-back encodes and stores.
pub(in crate::cache) struct Snapshot {
    pub bytes: Arc<Decoded>,
    pub opening: Opening,
    pub generation: u64,
    /// The base under the written bytes; unknown if every byte was written.
    pub base: Base,
    /// The bytes that were written over the base; `None` if all were.
    pub written: Option<Ranges>,
    pub creates: Creates,
}

impl Snapshot {
    pub fn replaces(&self) -> Replaces<'_> {
        match &self.base {
            Base::Unknown => Replaces::Anything,
            Base::Known(None, _) => Replaces::Nothing,
            Base::Known(Some(version), _) => Replaces::Version(version),
        }
    }
}

impl DirtyChunk {
    pub fn new(array: Arc<Array>, chunk: ChunkId, number: u64, state: DirtyState) -> Self {
        DirtyChunk {
            array,
            chunk,
            number,
            write_back_lock: Mutex::default(),
            load_lock: Mutex::default(),
            state: Mutex::new(Some(state)),
            moved: OnceLock::new(),
        }
    }

    pub fn key(&self) -> CacheKey {
        (self.array.id(), CachedItem::Chunk(self.chunk))
    }

    /// Returns the place of the chunk among the fully written ones.
    pub fn place(&self) -> (u64, u64) {
        (self.array.id(), self.number)
    }

    /// Returns the size of the chunk in bytes.
    pub fn size(&self) -> usize {
        self.array.grid().chunk_size(self.chunk)
    }

    pub fn lock(&self) -> MutexGuard<'_, Option<DirtyState>> {
        lock(&self.state)
    }

    /// Returns the state if no other thread has locked it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, Option<DirtyState>>> {
        self.state.try_lock().ok()
    }
}

impl DirtyState {
    /// Returns the state of a chunk of which nothing is written yet.
    pub fn new(bytes: Arc<Decoded>, base: Base, inside: Option<Ranges>, account: Account) -> Self {
        let mut state = DirtyState {
            bytes,
            dirty: Ranges::default(),
            storing: Ranges::default(),
            base,
            generation: 0,
            creates: Creates::UnlessEmpty,
            inside,
            account,
        };
        state.count_ranges();
        state
    }

    /// Moves the written bytes into a state of the same chunk of `array`, which has another shape.
    /// Padding over which the array has grown is left out, whether written or stored, since the
    /// store has fill values there now.
    pub fn transfer(&mut self, array: &Array, chunk: ChunkId, account: Account) -> DirtyState {
        // no other write-back is in flight, but one that panicked may have left its snapshot
        self.undo_snapshot();
        let mut dirty = std::mem::take(&mut self.dirty);
        let mut base = self.base.clone();
        let now_inside = inside(array, chunk);
        if let Some(inside) = self.inside.as_ref().filter(|_| self.inside != now_inside) {
            dirty.remove_all(&inside.complement(self.bytes.len()));
            base = Base::Unknown;
        }
        let mut moved = DirtyState {
            dirty,
            creates: self.creates,
            ..DirtyState::new(self.bytes.clone(), base, now_inside, account)
        };
        moved.count_ranges();
        moved
    }

    /// Counts the memory of the ranges, after they have changed. The ranges of a write-back in
    /// flight exist twice.
    fn count_ranges(&mut self) {
        let inside = self.inside.as_ref().map_or(0, Ranges::memory);
        self.account
            .set(inside + self.dirty.memory() + 2 * self.storing.memory());
    }

    /// Returns whether every byte was written: the base does not matter.
    pub fn is_fully_written(&self) -> bool {
        self.dirty.len() == self.bytes.len()
    }

    /// Returns whether all bytes are valid without asking the store.
    pub fn is_complete(&self, array: &Array) -> bool {
        let is_known = matches!(self.base, Base::Known(_, confirmed) if array.freshness().is_current(confirmed));
        is_known || self.is_fully_written()
    }

    /// Returns all bytes of the chunk as a part.
    pub fn part(&self) -> DecodedPart {
        let tag = self
            .base
            .tag()
            .filter(|tag| *tag != VersionTag::UNINITIALIZED)
            .unwrap_or(VersionTag::UNSTORED);
        DecodedPart::whole(self.bytes.clone(), tag)
    }

    /// Returns the bytes to write to: a copy if a reader or a write-back holds them.
    fn bytes_mut(&mut self, cache: &Cache) -> Result<&mut [u8]> {
        if Arc::get_mut(&mut self.bytes).is_none() {
            let mut copy = cache.buffers.take(self.bytes.len());
            memory::resize(&mut copy, self.bytes.len())?;
            copy.copy_from_slice(&self.bytes);
            self.bytes = cache.buffers.hold(copy);
        }
        let bytes = Arc::get_mut(&mut self.bytes).ok_or_else(Error::stale)?;
        Ok(bytes.bytes_mut())
    }

    pub fn write(
        &mut self,
        cache: &Cache,
        array: &Array,
        parts: &[Part],
        creates: Creates,
    ) -> Result<()> {
        let bytes = self.bytes_mut(cache)?;
        let mut written = Ranges::default();
        for (offset, part) in parts {
            let range = *offset..offset + part.len();
            bytes
                .get_mut(range.clone())
                .ok_or_else(|| Error::system(libc::EFBIG))?
                .copy_from_slice(part);
            written.add(range);
        }
        self.dirty.add_all(&written);
        if creates == Creates::Always {
            self.creates = creates;
        }
        let completed = self.complete_edge(cache, array);
        self.count_ranges();
        completed
    }

    /// Fills the padding of an edge chunk once all its bytes inside the array were written. Then
    /// the base need not be read.
    fn complete_edge(&mut self, cache: &Cache, array: &Array) -> Result<()> {
        let Some(inside) = &self.inside else {
            return Ok(());
        };
        if matches!(self.base, Base::Known(..))
            || self.is_fully_written()
            || !self.dirty.contains_all(inside)
        {
            return Ok(());
        }
        for padding in self.dirty.complement(self.bytes.len()).iter() {
            array.metadata().write_fill(
                &mut self.bytes_mut(cache)?[padding.clone()],
                padding.start as u64,
            );
            self.dirty.add(padding);
        }
        Ok(())
    }

    /// Copies the written bytes over those of the base, which were loaded in the opening
    /// `confirmed`.
    pub fn overlay(
        &mut self,
        cache: &Cache,
        mut loaded: Vec<u8>,
        base: Option<Version>,
        confirmed: Opening,
    ) {
        for range in self.storing.iter().chain(self.dirty.iter()) {
            loaded[range.clone()].copy_from_slice(&self.bytes[range]);
        }
        self.bytes = cache.buffers.hold(loaded);
        self.base = Base::Known(base, confirmed);
        self.generation += 1;
    }

    /// Returns the request to the store that is needed before all bytes are valid in `opening`.
    /// With `revalidate`, a known base is revalidated in any case.
    pub fn missing(&self, opening: Opening, revalidate: bool) -> Missing {
        if self.is_fully_written() || self.storing.len() == self.bytes.len() {
            return Missing::Nothing;
        }
        match &self.base {
            Base::Unknown => Missing::Bytes,
            Base::Known(version, confirmed) if revalidate || *confirmed < opening => {
                Missing::Version(version.clone())
            }
            Base::Known(..) => Missing::Nothing,
        }
    }

    /// Begins a write-back of all dirty bytes. A known base has to be current.
    pub fn snapshot(&mut self, opening: Opening) -> Snapshot {
        let is_fully_written = self.is_fully_written();
        let base = if is_fully_written {
            Base::Unknown
        } else {
            self.base.clone()
        };
        self.storing = std::mem::take(&mut self.dirty);
        let written = (!is_fully_written).then(|| self.storing.clone());
        self.count_ranges();
        Snapshot {
            bytes: self.bytes.clone(),
            opening,
            generation: self.generation,
            base,
            written,
            creates: self.creates,
        }
    }

    /// Makes the bytes dirty again that a write-back was to store.
    pub fn undo_snapshot(&mut self) {
        let storing = std::mem::take(&mut self.storing);
        self.dirty.add_all(&storing);
    }
}

/// Returns the bytes of an edge chunk that belong to the array; `None` for any other chunk.
pub(super) fn inside(array: &Array, chunk: ChunkId) -> Option<Ranges> {
    let grid = array.grid();
    grid.is_edge(chunk).then(|| Ranges::inside(grid, chunk))
}
