//! Filling the cache's slots: what is loaded of a chunk or a window, and into which memory. Each load first makes room.

use super::content::{Answer, ChunkPart, Content, Divided};
use super::window::{self, Window};
use super::{BusySlot, Cache, Load};
use crate::array::{Array, OpenedChunk, Scratch, VersionTag};
use crate::error::{Kind, Result};
use crate::util::memory::lock;
use crate::zarr::codec::PartialDecode;
use crate::zarr::grid::ChunkId;
use std::sync::{Arc, Mutex};

/// Blocks below this many bytes are not kept one by one: each takes a place in a list, too.
const MIN_BLOCK: usize = 16 << 10;

/// Bytes that a chunk of objects has at most, encoded and decoded, in the first try to load it.
const SMALL_OBJECTS: usize = 8 << 20;

impl Cache {
    /// A failure of the system, unlike damage, may be over the next time: it is an error here, and not remembered.
    pub(super) fn load_noting(&self, slot: &mut BusySlot, known: Option<Content>, load: Load) -> Result<Content> {
        let loaded = load(slot, known);
        if matches!(loaded, Ok(Content::Uninitialised)) {
            self.stats.uninitialized.add(1);
        }
        loaded.or_else(|e| {
            self.failed(&e);
            if matches!(e.kind(), Kind::System(_)) { Err(e) } else { Ok(Content::Failed(e)) }
        })
    }

    pub(super) fn load(
        &self,
        slot: &mut BusySlot,
        array: &Array,
        chunk: ChunkId,
        known: Option<Content>,
        want: ChunkPart,
    ) -> Result<Content> {
        match want {
            ChunkPart::At(offset) if array.partial_decode() == PartialDecode::Blosc => {
                self.load_part(slot, array, chunk, known, offset)
            }
            _ => self.load_whole(slot, array, chunk),
        }
    }

    fn load_whole(&self, slot: &mut BusySlot, array: &Array, chunk: ChunkId) -> Result<Content> {
        if array.metadata().has_objects() {
            // nothing tells how large it is; most are small
            slot.reserve(2 * SMALL_OBJECTS);
            match self.load_at_most(slot, array, chunk, Some(SMALL_OBJECTS)) {
                Err(e) if e.kind() == Kind::Damaged => slot.reserve(self.bound),
                loaded => return loaded,
            }
        }
        // encoded bytes and intermediate results need room beside the decoded ones
        slot.reserve(array.chunk_memory());
        self.load_at_most(slot, array, chunk, None)
    }

    /// Loads a chunk for which there is room; with `most`, one of objects that has no more bytes.
    fn load_at_most(&self, slot: &BusySlot, array: &Array, chunk: ChunkId, most: Option<usize>) -> Result<Content> {
        let size = array.grid().chunk_size();
        let ticket = self.decoding.ticket(slot.ahead);
        let loaded = self.with_scratch(|scratch| {
            scratch.max_objects = most;
            let Some(fetched) = array.fetch(chunk, self.buffer(size), scratch)? else { return Ok(None) };
            // near ones are loaded by no more threads than that
            let _turn = array.is_remote().then(|| self.decoding.take(ticket));
            array.decode_fetched(fetched, scratch).map(Some)
        })?;
        Ok(match loaded {
            Some(loaded) => {
                let mark = VersionTag::of(Some(&loaded.version));
                Content::Whole(self.buffers.hold(loaded.bytes), loaded.version, mark)
            }
            None => Content::Uninitialised,
        })
    }

    /// Decodes the block that holds `offset`, beside those that are decoded already.
    fn load_part(
        &self,
        slot: &mut BusySlot,
        array: &Array,
        chunk: ChunkId,
        known: Option<Content>,
        offset: usize,
    ) -> Result<Content> {
        let divided = match known {
            Some(Content::Divided(d)) => d,
            _ => match array.open_chunk(chunk)? {
                OpenedChunk::Uninitialized => return Ok(Content::Uninitialised),
                OpenedChunk::Whole => return self.load_whole(slot, array, chunk),
                OpenedChunk::Blocks(parts) if parts.block_size() < MIN_BLOCK => {
                    return self.load_whole(slot, array, chunk);
                }
                OpenedChunk::Blocks(parts) => {
                    let (mark, blocks) = (VersionTag::of(Some(&parts.version)), Mutex::new(vec![None; parts.blocks()]));
                    Arc::new(Divided { parts, mark, blocks })
                }
            },
        };
        let size = divided.parts.block_size();
        slot.reserve(2 * size);
        let n = offset / size;
        let block = self.with_scratch(|s| array.load_block(chunk, &divided.parts, n, self.buffer(size), &mut s.stored));
        let block = match block {
            Ok(Some(bytes)) => Ok(self.buffers.hold(bytes)),
            // it was replaced just now
            Ok(None) => return self.load_whole(slot, array, chunk),
            Err(e) if matches!(e.kind(), Kind::System(_)) => return Err(e),
            Err(e) => {
                self.failed(&e);
                Err(Arc::new(e))
            }
        };
        lock(&divided.blocks)[n] = Some(block);
        Ok(Content::Divided(divided))
    }

    /// Fills the slot of a window with the flat bytes of `range`.
    fn load_window(&self, slot: &mut BusySlot, array: &Array, w: &Window) -> Result<Content> {
        let len = (w.range.end - w.range.start) as usize;
        slot.reserve(w.room(array));
        let (bytes, chunks) = window::build(self, array, w, self.buffer(len))?;
        Ok(Content::Window(self.buffers.hold(bytes), Arc::new(chunks)))
    }

    /// The flat bytes of a window.
    pub(super) fn window(&self, array: &Array, w: &Window) -> Answer {
        let mut load = |slot: &mut BusySlot, _| self.load_window(slot, array, w);
        self.get_place(array, w.place(), ChunkPart::Whole, &mut load)
    }

    /// As [`Cache::window`], but only if that needs neither the store nor a wait.
    pub(super) fn peek_window(&self, array: &Array, w: &Window) -> Option<Answer> {
        self.peek_place(array, w.place(), ChunkPart::Whole)
    }

    /// As [`Cache::read_ahead`], for a window.
    pub(super) fn window_ahead(&self, array: &Array, w: &Window) -> bool {
        let mut load = |slot: &mut BusySlot, _| self.load_window(slot, array, w);
        self.ahead_of_place(array, w.place(), ChunkPart::Whole, w.room(array), &mut load)
    }

    /// A buffer for a load that has made room for it. Those that still wait give way then, if they must.
    pub(super) fn buffer(&self, len: usize) -> Vec<u8> {
        let buffer = self.buffers.take(len);
        self.trim(&self.lock());
        buffer
    }

    pub(super) fn with_scratch<T>(&self, load: impl FnOnce(&mut Scratch) -> T) -> T {
        let mut scratch = self.buffers.take_scratch();
        let loaded = load(&mut scratch);
        self.buffers.keep_scratch(scratch);
        loaded
    }
}
