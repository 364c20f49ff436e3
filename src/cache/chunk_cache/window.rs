//! A window: flat bytes of a row of chunks that does not fit into the cache. Building it visits
//! each chunk once. A visit decodes only the blocks that it needs, or it takes the chunk from a
//! spill file that keeps it decoded until the reader has passed it.

use super::entry::Sources;
use super::{CachedChunk, CachedItem, LoadingSlot, Spill};
use crate::array::{Array, BlockIndex, OpenedChunk, Opening, Scratch, VersionTag};
use crate::cache::Cache;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use zarrfs_base::error::Result;
use zarrfs_base::memory::{self, lock};
use zarrfs_base::pool::on_threads;
use zarrfs_format::codec::PartialDecode;
use zarrfs_format::grid::ChunkId;

/// A window, and how to build it.
#[derive(Clone)]
pub struct Window {
    /// The flat bytes, all of one working set.
    pub range: Range<u64>,
    /// Whether it is the first of a reader, which waits for it.
    pub is_first: bool,
    /// Whether it is the last of its working set, whose chunks no later window needs.
    pub is_last: bool,
    /// Whether a chunk in it cannot be read.
    pub is_broken: bool,
    /// The file that keeps decoded chunks for later windows.
    pub spill: Option<Arc<Spill>>,
    /// Number of threads that build it.
    pub threads: u64,
    /// The write generation for which it is valid.
    pub writes: u64,
}

impl Window {
    pub fn item(&self) -> CachedItem {
        CachedItem::window(&self.range, self.writes)
    }

    /// Returns the size of the window in bytes.
    fn len(&self) -> usize {
        (self.range.end - self.range.start) as usize
    }

    /// Returns the bytes of memory that building it takes: the window, and a chunk, encoded and
    /// decoded, for each thread.
    pub fn memory(&self, array: &Array) -> usize {
        array
            .chunk_memory()
            .saturating_mul(self.threads as usize)
            .saturating_add(self.len())
    }
}

impl Cache {
    /// Builds a window.
    pub(super) fn load_window(
        &self,
        slot: &mut LoadingSlot,
        array: &Array,
        window: &Window,
    ) -> Result<CachedChunk> {
        slot.reserve(window.memory(array));
        let (bytes, sources) = build(self, array, window, self.buffer(window.len()))?;
        Ok(CachedChunk::Window(
            self.buffers.hold(bytes),
            Arc::new(sources),
        ))
    }
}

/// The bytes of a window, and the versions of the chunks that they came from.
type Built = (Vec<u8>, Sources);

/// A window that several threads build.
struct Building<'a> {
    cache: &'a Cache,
    array: &'a Array,
    window: &'a Window,
    /// Numbers of the chunks to visit.
    chunks: Vec<Range<u64>>,
    /// Number of chunks that threads have taken.
    next: AtomicU64,
    /// Protects the bytes and the versions so far.
    built: Mutex<Built>,
}

/// Memory of one thread: the bytes of a chunk, and scratch memory to load it.
type ThreadMemory = (Vec<u8>, Scratch);

/// Bytes of a visited chunk from the offset `start` on; empty for an uninitialized chunk.
struct Visited<'a> {
    bytes: &'a [u8],
    start: usize,
    tag: VersionTag,
}

impl Visited<'_> {
    const UNINITIALIZED: Visited<'static> = Visited {
        bytes: &[],
        start: 0,
        tag: VersionTag::UNINITIALIZED,
    };
}

/// Builds a window, in `buffer` if its capacity suffices.
fn build(cache: &Cache, array: &Array, window: &Window, mut buffer: Vec<u8>) -> Result<Built> {
    // two windows at a time would decode the same chunks
    let _lock = window.spill.as_ref().map(|spill| spill.lock());
    memory::resize(&mut buffer, window.len())?;
    let chunks = array.grid().chunks_around(window.range.clone());
    let built = Mutex::new((buffer, Vec::new()));
    let building = Building {
        cache,
        array,
        window,
        chunks,
        next: AtomicU64::new(0),
        built,
    };
    on_threads(window.threads as usize, &|| building.visit_all())?;
    let (bytes, mut sources) = building
        .built
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    sources.sort_unstable_by_key(|(chunk, _)| *chunk);
    Ok((bytes, sources))
}

impl Building<'_> {
    /// Visits chunks until none is left, or until one fails in any thread.
    fn visit_all(&self) -> Result<()> {
        let mut memory = ThreadMemory::default();
        while let Some(chunk) = self.next_chunk() {
            let done = self.visit(chunk, &mut memory);
            if done.is_err() {
                self.next.store(u64::MAX / 2, Ordering::Relaxed);
                return done;
            }
        }
        Ok(())
    }

    fn next_chunk(&self) -> Option<ChunkId> {
        let mut left = self.next.fetch_add(1, Ordering::Relaxed);
        for range in &self.chunks {
            let len = range.end - range.start;
            if left < len {
                return Some(ChunkId(range.start + left));
            }
            left -= len;
        }
        None
    }

    /// Copies the window's bytes of a chunk.
    fn visit(&self, chunk: ChunkId, memory: &mut ThreadMemory) -> Result<()> {
        let runs = self
            .array
            .grid()
            .chunk_runs(chunk, self.window.range.clone());
        let (Some(first), Some(last)) = (runs.first(), runs.last()) else {
            return Ok(());
        };
        let needed = first.1.offset..last.1.offset + last.1.len;
        let visited = self.bytes_of(chunk, needed, memory)?;
        let mut built = lock(&self.built);
        for (flat, run) in &runs {
            let at = (flat - self.window.range.start) as usize;
            let to = &mut built.0[at..at + run.len];
            if visited.tag == VersionTag::UNINITIALIZED {
                self.array.metadata().write_fill(to, *flat)
            } else {
                to.copy_from_slice(&visited.bytes[run.offset - visited.start..][..run.len])
            }
        }
        built.1.push((chunk, visited.tag));
        Ok(())
    }

    /// Returns at least the bytes `needed` of a chunk: from the dirty chunks, the spill file or the
    /// store.
    fn bytes_of<'m>(
        &self,
        chunk: ChunkId,
        needed: Range<usize>,
        memory: &'m mut ThreadMemory,
    ) -> Result<Visited<'m>> {
        let opening = self.array.freshness().opening();
        // the window has reserved memory for a chunk of each thread
        if let Some(part) = self
            .cache
            .get_dirty(self.array, chunk, false)
            .transpose()?
            .flatten()
        {
            memory.0.clear();
            memory.0.extend_from_slice(part.bytes());
            return Ok(Visited {
                bytes: &memory.0,
                start: 0,
                tag: part.tag(),
            });
        }
        if let Some(tag) = self.read_spilled(chunk, opening, needed.clone(), &mut memory.0)? {
            return Ok(Visited {
                bytes: &memory.0,
                start: needed.start,
                tag,
            });
        }
        match self.array.partial_decode() {
            PartialDecode::Plain => {
                let version = self
                    .array
                    .read_plain(chunk, needed.clone(), &mut memory.0)?;
                Ok(Visited {
                    bytes: &memory.0,
                    start: needed.start,
                    tag: VersionTag::of(version.as_ref()),
                })
            }
            // a remote chunk that is spilled is requested once, whole
            PartialDecode::Blosc if !(self.array.is_remote() && self.window.spill.is_some()) => {
                match self.array.open_chunk(chunk)? {
                    OpenedChunk::Uninitialized => Ok(Visited::UNINITIALIZED),
                    OpenedChunk::Blocks(index)
                        if self.takes_blocks(chunk, &needed, index.block_size()) =>
                    {
                        match self.load_blocks(chunk, &index, needed, memory)? {
                            Some(start) => {
                                let tag = VersionTag::of(Some(&index.version));
                                Ok(Visited {
                                    bytes: &memory.0,
                                    start,
                                    tag,
                                })
                            }
                            // the chunk was replaced just now
                            None => self.load_whole(chunk, opening, memory),
                        }
                    }
                    _ => self.load_whole(chunk, opening, memory),
                }
            }
            _ => self.load_whole(chunk, opening, memory),
        }
    }

    /// Returns whether to decode blocks instead of the whole chunk. If less than a block is needed,
    /// later windows would decode that block again, so the whole chunk is decoded once and spilled.
    fn takes_blocks(&self, chunk: ChunkId, needed: &Range<usize>, block_size: usize) -> bool {
        let once = self.window.is_first || self.window.is_last || self.window.spill.is_none();
        needed.len() < self.array.grid().chunk_size(chunk) && (once || needed.len() >= block_size)
    }

    /// Decodes the blocks that hold `needed`. Returns the offset of the first; `None` if the chunk
    /// was replaced meanwhile.
    fn load_blocks(
        &self,
        chunk: ChunkId,
        index: &BlockIndex,
        needed: Range<usize>,
        (bytes, scratch): &mut ThreadMemory,
    ) -> Result<Option<usize>> {
        let size = index.block_size();
        let blocks = needed.start / size..needed.end.div_ceil(size);
        let start = blocks.start * size;
        bytes.clear();
        let mut buffer = Vec::new();
        for n in blocks {
            let loaded = self.array.load_block(
                chunk,
                (index, n),
                needed.end - n * size,
                buffer,
                &mut scratch.stored,
            )?;
            let Some(block) = loaded else { return Ok(None) };
            bytes.extend_from_slice(&block);
            buffer = block;
        }
        Ok(Some(start))
    }

    /// Decodes a chunk, and keeps it in the spill file if a later window needs it.
    fn load_whole<'m>(
        &self,
        chunk: ChunkId,
        opening: Opening,
        memory: &'m mut ThreadMemory,
    ) -> Result<Visited<'m>> {
        let (bytes, scratch) = memory;
        let Some(loaded) = self.array.load(chunk, std::mem::take(bytes), scratch)? else {
            return Ok(Visited::UNINITIALIZED);
        };
        let tag = VersionTag::of(Some(&loaded.version));
        *bytes = loaded.bytes;
        let spill = self.window.spill.as_ref().filter(|_| !self.window.is_last);
        if spill.is_some_and(|spill| spill.put(chunk, tag, opening, bytes)) {
            self.cache.stats.bytes_spilled.add(bytes.len() as u64);
        }
        Ok(Visited {
            bytes,
            start: 0,
            tag,
        })
    }

    /// Reads bytes of a chunk from the spill file, if it holds the version in the store.
    fn read_spilled(
        &self,
        chunk: ChunkId,
        now: Opening,
        needed: Range<usize>,
        out: &mut Vec<u8>,
    ) -> Result<Option<VersionTag>> {
        let Some(spill) = &self.window.spill else {
            return Ok(None);
        };
        let Some((tag, confirmed)) = spill.version(chunk) else {
            return Ok(None);
        };
        if confirmed < now {
            let stat = self.array.stat_chunk(chunk)?;
            if VersionTag::of(stat.as_ref().map(|stat| &stat.version)) != tag {
                return Ok(None);
            }
            spill.confirm(chunk, now);
        }
        memory::resize(out, needed.len())?;
        // the chunk can be decoded again if the disk fails
        Ok(spill.read(chunk, needed, out).is_ok().then_some(tag))
    }
}
