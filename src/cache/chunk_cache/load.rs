//! Loading a chunk, or a block of it, into memory that was reserved before.

use super::entry::{CachedChunk, ChunkPart, DecodedBlocks};
use super::{LoadingSlot, Wanted};
use crate::array::{Array, BlockIndex, NeighborBytes, OpenedChunk, Scratch, VersionTag};
use crate::cache::Cache;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use zarrfs_base::error::{Kind, Result};
use zarrfs_base::memory::{self, lock};
use zarrfs_format::codec::PartialDecode;
use zarrfs_format::grid::ChunkId;

/// Minimum size in bytes of blocks that are kept one by one: each takes an entry of a list.
const MIN_BLOCK: usize = 16 << 10;

/// Alignment in bytes of the start of a kept part of a block, since the kernel reads whole pages.
const PAGE: usize = 4096;

/// Maximum size of a chunk of objects in bytes, encoded and decoded, in the first attempt to load
/// it.
const SMALL_OBJECTS: usize = 8 << 20;

impl Cache {
    /// Loads the content that a slot lacks, and turns damage into content that is remembered. A
    /// failure of the system may be over the next time: it stays an error.
    pub(super) fn load_or_remember(
        &self,
        slot: &mut LoadingSlot,
        previous: Option<CachedChunk>,
        wanted: Wanted,
    ) -> Result<CachedChunk> {
        let array = slot.array;
        let loaded = match wanted {
            Wanted::Chunk(chunk, ChunkPart::Bytes { start, end })
                if matches!(
                    array.partial_decode(),
                    PartialDecode::Blosc | PartialDecode::Zstd
                ) =>
            {
                self.load_block(slot, array, chunk, previous, start..end)
            }
            Wanted::Chunk(chunk, _) => self.load_whole(slot, array, chunk, None),
            Wanted::Neighbor(chunk, bytes) => self.load_whole(slot, array, chunk, Some(bytes)),
            Wanted::Window(window) => self.load_window(slot, array, window),
        };
        if matches!(loaded, Ok(CachedChunk::Uninitialized)) {
            self.stats.uninitialized.add(1);
        }
        loaded.or_else(|e| {
            self.record_failure(&e);
            if matches!(e.kind(), Kind::System(_)) {
                Err(e)
            } else {
                Ok(CachedChunk::Failed(e))
            }
        })
    }

    /// Loads a whole chunk, from `neighbors` if its bytes are there.
    fn load_whole(
        &self,
        slot: &mut LoadingSlot,
        array: &Array,
        chunk: ChunkId,
        neighbors: Option<&NeighborBytes>,
    ) -> Result<CachedChunk> {
        if array.metadata().has_objects() {
            // their size is not known; most are small
            slot.reserve(2 * SMALL_OBJECTS);
            match self.load_at_most(slot, array, chunk, Some(SMALL_OBJECTS), None) {
                Err(e) if e.kind() == Kind::Damaged => slot.reserve(self.bound),
                loaded => return loaded,
            }
        }
        // encoded bytes and intermediate results take memory beside the decoded ones
        slot.reserve(array.chunk_memory());
        self.load_at_most(slot, array, chunk, None, neighbors)
    }

    /// Loads a chunk into reserved memory. A chunk of objects may have at most `max_objects` bytes.
    fn load_at_most(
        &self,
        slot: &LoadingSlot,
        array: &Array,
        chunk: ChunkId,
        max_objects: Option<usize>,
        neighbors: Option<&NeighborBytes>,
    ) -> Result<CachedChunk> {
        let ticket = self.decoding.ticket(slot.is_prefetched);
        let loaded = self.with_scratch(|scratch| {
            scratch.max_objects = max_objects;
            let buffer = self.buffer(array.grid().chunk_size(chunk));
            let Some(fetched) = array.fetch(chunk, buffer, neighbors, scratch)? else {
                return Ok(None);
            };
            // local chunks are loaded by no more threads than there are permits
            let _permit = array.is_remote().then(|| self.decoding.acquire(ticket));
            array.decode_fetched(fetched, scratch).map(Some)
        })?;
        Ok(match loaded {
            Some(loaded) => {
                let tag = VersionTag::of(Some(&loaded.version));
                CachedChunk::Whole(self.buffers.hold(loaded.bytes), loaded.version, tag)
            }
            None => CachedChunk::Uninitialized,
        })
    }

    /// Decodes the block that holds the first byte of `wanted`, beside the blocks that are decoded
    /// already. The first time, it may decode only the beginning of the block and keep only the
    /// wanted bytes, since a random reader touches most blocks once.
    fn load_block(
        &self,
        slot: &mut LoadingSlot,
        array: &Array,
        chunk: ChunkId,
        previous: Option<CachedChunk>,
        wanted: Range<usize>,
    ) -> Result<CachedChunk> {
        let decoded = match previous {
            Some(CachedChunk::Blocks(decoded)) => decoded,
            _ => match array.open_chunk(chunk)? {
                OpenedChunk::Uninitialized => return Ok(CachedChunk::Uninitialized),
                OpenedChunk::Blocks(index) if index.block_size() >= MIN_BLOCK => {
                    let tag = VersionTag::of(Some(&index.version));
                    let blocks = Mutex::new(vec![None; index.blocks()]);
                    Arc::new(DecodedBlocks { index, tag, blocks })
                }
                _ => return self.load_whole(slot, array, chunk, None),
            },
        };
        let index = &decoded.index;
        let size = decoded.index.block_size();
        let n = wanted.start / size;
        let wanted = wanted.start - n * size..wanted.end.max(wanted.start + 1) - n * size;
        let len = match lock(&decoded.blocks)[n] {
            None => index.decoded_len(n, wanted.end),
            Some(_) => index.decoded_len(n, usize::MAX),
        };
        if len == array.grid().chunk_size(chunk) {
            return self.load_whole(slot, array, chunk, None);
        }
        slot.reserve(2 * size);
        let block = if len == index.decoded_len(n, usize::MAX) {
            self.with_scratch(|scratch| {
                let block = array.load_block(
                    chunk,
                    (index, n),
                    size,
                    self.buffer(size),
                    &mut scratch.stored,
                )?;
                Ok(block.map(|bytes| (bytes, 0)))
            })
        } else {
            self.load_beginning(array, chunk, (index, n), wanted.start / PAGE * PAGE..len)
        };
        let block = match block {
            Ok(Some((bytes, start))) => Ok((self.buffers.hold(bytes), start)),
            // the chunk was replaced just now
            Ok(None) => return self.load_whole(slot, array, chunk, None),
            Err(e) if matches!(e.kind(), Kind::System(_)) => return Err(e),
            // loading the whole chunk reports the damage
            Err(_) if index.blocks() == 1 => return self.load_whole(slot, array, chunk, None),
            Err(e) => {
                self.record_failure(&e);
                Err(Arc::new(e))
            }
        };
        lock(&decoded.blocks)[n] = Some(block);
        Ok(CachedChunk::Blocks(decoded))
    }

    /// Decodes the beginning of block `n` of a chunk, up to the end of `kept`. Returns the bytes
    /// `kept` and their offset in the block; `None` if the chunk was replaced.
    fn load_beginning(
        &self,
        array: &Array,
        chunk: ChunkId,
        (index, n): (&BlockIndex, usize),
        kept: Range<usize>,
    ) -> Result<Option<(Vec<u8>, usize)>> {
        self.with_scratch(|scratch| {
            // new memory takes longer than decoding into memory that is used again and copying a
            // part
            let buffer = std::mem::take(&mut scratch.other);
            let block =
                array.load_block(chunk, (index, n), kept.end, buffer, &mut scratch.stored)?;
            let Some(block) = block else { return Ok(None) };
            let mut part = memory::zeroed(kept.len())?;
            part.copy_from_slice(&block[kept.clone()]);
            scratch.other = block;
            Ok(Some((part, kept.start)))
        })
    }

    /// Returns a buffer for a load that has reserved memory for it, and drops idle buffers if the
    /// cache exceeds its bound.
    pub(in crate::cache) fn buffer(&self, len: usize) -> Vec<u8> {
        let buffer = self.buffers.take(len);
        self.trim(&self.lock());
        buffer
    }

    pub(in crate::cache) fn with_scratch<T>(&self, load: impl FnOnce(&mut Scratch) -> T) -> T {
        let mut scratch = self.buffers.take_scratch();
        let loaded = load(&mut scratch);
        self.buffers.keep_scratch(scratch);
        loaded
    }
}
