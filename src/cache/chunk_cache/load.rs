//! Loading a chunk, or a block of it, into memory that was reserved before.

use super::entry::{CachedChunk, ChunkPart, DecodedBlocks};
use super::{LoadingSlot, Wanted};
use crate::array::{Array, BlockIndex, NeighborBytes, OpenedChunk, Scratch, VersionTag};
use crate::cache::Cache;
use crate::cache::seek_points::SeekCache;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use zarrfs_base::error::{Kind, Result};
use zarrfs_base::memory::lock;
use zarrfs_format::codec::PartialDecode;
use zarrfs_format::grid::ChunkId;
use zarrfs_store::Version;

/// Minimum size in bytes of blocks that are kept one by one: each takes an entry of a list.
const MIN_BLOCK: usize = 16 << 10;

/// Maximum size of a chunk of objects in bytes, encoded and decoded, in the first attempt to load
/// it.
const SMALL_OBJECTS: usize = 8 << 20;

/// How a whole chunk is loaded.
#[derive(Clone, Copy)]
struct WholeLoad<'a> {
    /// Maximum size of a chunk of objects in bytes.
    max_objects: Option<usize>,
    /// Where its bytes may be.
    neighbors: Option<&'a NeighborBytes<'a>>,
    /// Whether to keep its seek points.
    wants_points: bool,
}

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
            Wanted::Chunk(chunk, part) => self.load_part(slot, chunk, part, previous),
            Wanted::Neighbor(chunk, bytes) => self.load_whole(slot, chunk, Some(bytes), false),
            Wanted::Window(window) => self.load_window(slot, array, window),
        };
        if matches!(loaded, Ok(CachedChunk::Uninitialized)) {
            self.stats.uninitialized.add(1);
        }
        loaded.or_else(|e| {
            let e = self.record_failure(e);
            if matches!(e.kind(), Kind::System(_)) {
                Err(e)
            } else {
                Ok(CachedChunk::Failed(e))
            }
        })
    }

    /// Loads the block that holds the first byte of a part, if that costs less than the whole
    /// chunk; otherwise the chunk.
    fn load_part(
        &self,
        slot: &mut LoadingSlot,
        chunk: ChunkId,
        part: ChunkPart,
        previous: Option<CachedChunk>,
    ) -> Result<CachedChunk> {
        let array = slot.array;
        let has_blocks = matches!(
            array.partial_decode(),
            PartialDecode::Blosc | PartialDecode::Zstd | PartialDecode::Seek
        );
        let (start, end) = match part {
            ChunkPart::Bytes { start, end } if has_blocks => (start, end),
            _ => return self.load_whole(slot, chunk, None, false),
        };
        let decoded = match previous {
            Some(CachedChunk::Blocks(decoded)) => Some(decoded),
            _ => match self.open_chunk(array, chunk)? {
                OpenedChunk::Uninitialized => return Ok(CachedChunk::Uninitialized),
                OpenedChunk::Blocks(index) if index.block_size() >= MIN_BLOCK => {
                    let tag = VersionTag::of(Some(&index.version));
                    let blocks = Mutex::new(vec![None; index.blocks()]);
                    Some(Arc::new(DecodedBlocks { index, tag, blocks }))
                }
                OpenedChunk::Blocks(_) | OpenedChunk::Whole => None,
            },
        };
        if let Some(decoded) = decoded
            && self.load_block(slot, chunk, &decoded, start..end)?
        {
            return Ok(CachedChunk::Blocks(decoded));
        }
        self.load_whole(slot, chunk, None, true)
    }

    /// Loads a whole chunk, from `neighbors` if its bytes are there. Keeps its seek points if that
    /// is useful to a reader of a part.
    fn load_whole(
        &self,
        slot: &mut LoadingSlot,
        chunk: ChunkId,
        neighbors: Option<&NeighborBytes>,
        for_part: bool,
    ) -> Result<CachedChunk> {
        let array = slot.array;
        let load = WholeLoad {
            max_objects: None,
            neighbors,
            wants_points: for_part && self.wants_points(array, chunk),
        };
        if array.metadata().has_objects() {
            // their size is not known; most are small
            slot.reserve(2 * SMALL_OBJECTS);
            let small = WholeLoad {
                max_objects: Some(SMALL_OBJECTS),
                ..load
            };
            match self.load_as(slot, chunk, small) {
                Err(e) if e.kind() == Kind::Damaged => slot.reserve(self.bound),
                loaded => return loaded,
            }
        }
        // encoded bytes and intermediate results take memory beside the decoded ones, and so do the
        // points and their copy for the disk cache
        let points = if load.wants_points {
            array.grid().chunk_size(chunk) / 8
        } else {
            0
        };
        slot.reserve(array.chunk_memory().saturating_add(points));
        self.load_as(slot, chunk, load)
    }

    /// Returns whether a load of a whole chunk keeps its seek points, unless it is known to have
    /// none.
    fn wants_points(&self, array: &Array, chunk: ChunkId) -> bool {
        array.partial_decode() == PartialDecode::Seek
            && SeekCache::wants(array, chunk, self.bound)
            && self
                .seek_points
                .get(array, chunk)
                .is_none_or(|kept| kept.points.is_some())
    }

    /// Loads a chunk into reserved memory.
    fn load_as(&self, slot: &LoadingSlot, chunk: ChunkId, load: WholeLoad) -> Result<CachedChunk> {
        let array = slot.array;
        let ticket = self.decoding.ticket(slot.is_prefetched);
        let WholeLoad {
            max_objects,
            neighbors,
            wants_points,
        } = load;
        let loaded = self.with_scratch(|scratch| {
            scratch.max_objects = max_objects;
            scratch.wants_points = wants_points;
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
                if wants_points {
                    let version = loaded.version.clone();
                    if let Some(points) = &loaded.points {
                        array.keep_points(chunk, points, &version);
                    }
                    self.seek_points
                        .insert(array, chunk, loaded.points, version);
                }
                CachedChunk::Whole(self.buffers.hold(loaded.bytes), loaded.version, tag)
            }
            None => CachedChunk::Uninitialized,
        })
    }

    /// Decodes the block that holds the first byte of `wanted`, beside the blocks that are decoded
    /// already. The first time, it may decode only the beginning of the block and keep only the
    /// wanted bytes, since a random reader touches most blocks once. Returns false if the whole
    /// chunk has to be loaded.
    fn load_block(
        &self,
        slot: &mut LoadingSlot,
        chunk: ChunkId,
        decoded: &DecodedBlocks,
        wanted: Range<usize>,
    ) -> Result<bool> {
        let array = slot.array;
        let index = &decoded.index;
        let size = index.block_size();
        let n = wanted.start / size;
        let wanted = wanted.start - n * size..wanted.end.max(wanted.start + 1) - n * size;
        let whole = index.part(n, 0..usize::MAX);
        let part = match lock(&decoded.blocks)[n] {
            None => index.part(n, wanted),
            Some(_) => whole.clone(),
        };
        if part.len() == array.grid().chunk_size(chunk) {
            return Ok(false);
        }
        let block = if index.has_points() {
            let part = n * size + part.start..n * size + part.end;
            self.load_after_point(slot, chunk, &index.version, part)
        } else {
            slot.reserve(2 * size);
            self.with_scratch(|scratch| {
                if part == whole {
                    let buffer = self.buffer(size);
                    array.load_block(chunk, (index, n), size, buffer, &mut scratch.stored)
                } else {
                    array.load_part(chunk, (index, n), part.clone(), scratch)
                }
            })
        };
        let block = match block {
            Ok(Some(bytes)) => Ok((self.buffers.hold(bytes), part.start)),
            // the chunk was replaced just now
            Ok(None) => return Ok(false),
            Err(e) if matches!(e.kind(), Kind::System(_)) => return Err(e),
            // loading the whole chunk reports the damage
            Err(_) if !index.proves_damage() => return Ok(false),
            Err(e) => Err(Arc::new(self.record_failure(e))),
        };
        lock(&decoded.blocks)[n] = Some(block);
        Ok(true)
    }

    /// Decodes the bytes `part` of a chunk after its seek points. Returns `None` if those of the
    /// version are not kept any more, or the store has another version.
    fn load_after_point(
        &self,
        slot: &mut LoadingSlot,
        chunk: ChunkId,
        version: &Version,
        part: Range<usize>,
    ) -> Result<Option<Vec<u8>>> {
        let array = slot.array;
        let kept = self.seek_points.get(array, chunk);
        let kept = kept.filter(|kept| kept.version == *version);
        let Some(points) = kept.as_ref().and_then(|kept| kept.points.as_ref()) else {
            return Ok(None);
        };
        slot.reserve(array.part_memory(chunk, points, part.clone()));
        self.with_scratch(|scratch| array.load_after_point(chunk, (points, version), part, scratch))
    }

    /// Returns the bytes of memory that loading a part of a chunk after its seek points takes;
    /// `None` if the whole chunk, or a block of it, is loaded.
    pub(in crate::cache) fn part_memory(
        &self,
        array: &Array,
        chunk: ChunkId,
        part: ChunkPart,
    ) -> Option<usize> {
        let ChunkPart::Bytes { start, end } = part else {
            return None;
        };
        let kept = self.seek_points.get(array, chunk)?;
        let points = kept.points.as_ref()?;
        let index = BlockIndex::with_points(points.nbytes(), kept.version.clone());
        let n = start / index.block_size();
        let first = n * index.block_size();
        let part = index.part(n, start - first..end.max(start + 1) - first);
        Some(array.part_memory(chunk, points, first + part.start..first + part.end))
    }

    /// Opens a chunk to load blocks of it. The store is not asked for one with seek points: the
    /// load of a block finds out whether they are of the stored version.
    fn open_chunk(&self, array: &Array, chunk: ChunkId) -> Result<OpenedChunk> {
        if array.partial_decode() != PartialDecode::Seek {
            return array.open_chunk(chunk);
        }
        if SeekCache::wants(array, chunk, self.bound)
            && self.seek_points.get(array, chunk).is_none()
            && let Some((points, version)) = array.kept_points(chunk)
        {
            self.seek_points.insert(array, chunk, Some(points), version);
        }
        let kept = self.seek_points.get(array, chunk);
        let index = kept.and_then(|kept| {
            let size = kept.points.as_ref()?.nbytes();
            Some(BlockIndex::with_points(size, kept.version.clone()))
        });
        Ok(index.map_or(OpenedChunk::Whole, OpenedChunk::Blocks))
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
