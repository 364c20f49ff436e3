//! Windows: flat bytes put together ahead of a forward reader whose rows go through more chunks than the cache can hold.
//! Each chunk is visited once for a window instead of once for a row; what a visit costs is kept low by decoding only
//! the blocks it needs, or by a spill file that keeps the chunk decoded until the reader is done with it.

use super::Cache;
use super::content::{DecodedPart, Place};
use super::spill::Spill;
use crate::array::{Array, OpenedChunk, Opening, Scratch, VersionTag};
use crate::error::{Error, Result};
use crate::util::memory::{self, lock};
use crate::zarr::codec::PartialDecode;
use crate::zarr::grid::ChunkId;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// What is put together, and how.
#[derive(Clone)]
pub struct Window {
    /// The flat positions, all of one working set.
    pub range: Range<u64>,
    /// The first of a reader, who waits for it.
    pub first: bool,
    /// The last of its working set: of its chunks nothing more is needed.
    pub last: bool,
    /// It can't be built: some chunk in it can't be read.
    pub broken: bool,
    /// Keeps chunks that can't be decoded in parts.
    pub spill: Option<Arc<Spill>>,
    /// Threads that decode.
    pub threads: u64,
    /// See [`Array::writes`]: what is written makes it another one.
    pub writes: u64,
}

impl Window {
    /// Where the cache has it.
    pub fn place(&self) -> Place {
        Place::window(&self.range, self.writes)
    }

    /// Bytes of memory that building it takes: the window, and a chunk, encoded and decoded, for each thread.
    pub fn room(&self, array: &Array) -> usize {
        let chunks = array.chunk_memory().saturating_mul(self.threads as usize);
        chunks.saturating_add((self.range.end - self.range.start) as usize)
    }
}

/// The bytes of a window, and the versions of the chunks they are from, in the order of their numbers.
type Built = (Vec<u8>, Vec<(ChunkId, VersionTag)>);

/// A window that is built by several threads.
struct Building<'a> {
    cache: &'a Cache,
    array: &'a Array,
    window: &'a Window,
    /// Numbers of chunks to be visited, and how many of them were taken.
    chunks: Vec<Range<u64>>,
    next: AtomicU64,
    /// Protects the window's bytes, and the versions of the chunks in it.
    bytes: Mutex<Built>,
}

/// The bytes of a chunk that is visited, and what loading it needs beside them.
type Memory = (Vec<u8>, Scratch);

/// Bytes of a chunk, where in it they begin, and its version; empty for an uninitialised chunk.
struct Visited<'a> {
    bytes: &'a [u8],
    start: usize,
    mark: VersionTag,
}

/// Puts a window together, in `buffer` if that has the room: its bytes, and the versions of the chunks they are from.
pub fn build(cache: &Cache, array: &Array, window: &Window, mut buffer: Vec<u8>) -> Result<Built> {
    // two at a time would decode the same chunks
    let _turn = window.spill.as_ref().map(|spill| spill.turn());
    memory::resize(&mut buffer, (window.range.end - window.range.start) as usize)?;
    let chunks = array.grid().chunks_around(window.range.clone());
    let building =
        Building { cache, array, window, chunks, next: AtomicU64::new(0), bytes: Mutex::new((buffer, vec![])) };
    std::thread::scope(|scope| {
        let work = || building.visit_all();
        let others: Vec<_> = (1..window.threads).map(|_| scope.spawn(work)).collect();
        let mine = work();
        let join = |done: std::thread::ScopedJoinHandle<Result<()>>| {
            done.join().unwrap_or_else(|_| Err(Error::system(libc::EIO)))
        };
        others.into_iter().map(join).fold(mine, Result::and)
    })?;
    let (bytes, mut chunks) = building.bytes.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    chunks.sort_unstable_by_key(|(chunk, _)| *chunk);
    Ok((bytes, chunks))
}

impl Building<'_> {
    /// Visits chunks until none is left, or one can't be had.
    fn visit_all(&self) -> Result<()> {
        let mut memory = Memory::default();
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

    /// Copies what the window has of a chunk.
    fn visit(&self, chunk: ChunkId, memory: &mut Memory) -> Result<()> {
        let runs = self.array.grid().chunk_runs(chunk, self.window.range.clone());
        let (Some(first), Some(last)) = (runs.first(), runs.last()) else { return Ok(()) };
        let needed = first.1.offset..last.1.offset + last.1.len;
        let visited = self.bytes_of(chunk, needed, memory)?;
        let mut window = lock(&self.bytes);
        for (flat, run) in &runs {
            let at = (flat - self.window.range.start) as usize;
            let to = &mut window.0[at..at + run.len];
            match visited.mark == VersionTag::UNINITIALIZED {
                true => self.array.fill(to, *flat),
                false => to.copy_from_slice(&visited.bytes[run.offset - visited.start..][..run.len]),
            }
        }
        window.1.push((chunk, visited.mark));
        Ok(())
    }

    fn bytes_of<'s>(&self, chunk: ChunkId, needed: Range<usize>, memory: &'s mut Memory) -> Result<Visited<'s>> {
        let epoch = self.array.freshness().opening();
        if let Some(piece) = self.cache.get_written(self.array, chunk).transpose()?.flatten() {
            memory.0.clear();
            memory.0.extend_from_slice(piece.bytes());
            return Ok(Visited { bytes: &memory.0, start: 0, mark: DecodedPart::tag_of(Some(&piece)) });
        }
        if let Some(mark) = self.spilled(chunk, epoch, needed.clone(), &mut memory.0)? {
            return Ok(Visited { bytes: &memory.0, start: needed.start, mark });
        }
        match self.array.partial_decode() {
            PartialDecode::Plain => {
                let version = self.array.read_plain(chunk, needed.clone(), &mut memory.0)?;
                return Ok(Visited { bytes: &memory.0, start: needed.start, mark: VersionTag::of(version.as_ref()) });
            }
            // a far one is asked for once
            PartialDecode::Blosc if self.array.is_remote() && self.window.spill.is_some() => {}
            PartialDecode::Blosc => match self.array.open_chunk(chunk)? {
                OpenedChunk::Uninitialized => {
                    return Ok(Visited { bytes: &[], start: 0, mark: VersionTag::UNINITIALIZED });
                }
                OpenedChunk::Blocks(parts) if self.is_better_in_parts(&needed, parts.block_size()) => {
                    let size = parts.block_size();
                    let blocks = needed.start / size..needed.end.div_ceil(size);
                    let start = blocks.start * size;
                    memory.0.clear();
                    let mut block = Vec::new();
                    for n in blocks {
                        let Some(bytes) = self.array.load_block(
                            chunk,
                            &parts,
                            n,
                            std::mem::take(&mut block),
                            &mut memory.1.stored,
                        )?
                        else {
                            // it was replaced just now
                            return self.whole(chunk, epoch, memory);
                        };
                        memory.0.extend_from_slice(&bytes);
                        block = bytes;
                    }
                    return Ok(Visited { bytes: &memory.0, start, mark: VersionTag::of(Some(&parts.version)) });
                }
                _ => {}
            },
            PartialDecode::No => {}
        }
        self.whole(chunk, epoch, memory)
    }

    /// True unless so little of each block is needed that it would be decoded again and again, and the spill file saves
    /// that.
    fn is_better_in_parts(&self, needed: &Range<usize>, block_size: usize) -> bool {
        let once = self.window.first || self.window.last || self.window.spill.is_none();
        needed.len() < self.array.grid().chunk_size() && (once || needed.len() >= block_size)
    }

    fn whole<'s>(&self, chunk: ChunkId, epoch: Opening, memory: &'s mut Memory) -> Result<Visited<'s>> {
        let (bytes, scratch) = memory;
        let Some(loaded) = self.array.load(chunk, std::mem::take(bytes), scratch)? else {
            return Ok(Visited { bytes: &[], start: 0, mark: VersionTag::UNINITIALIZED });
        };
        let mark = VersionTag::of(Some(&loaded.version));
        *bytes = loaded.bytes;
        if !self.window.last && self.window.spill.as_ref().is_some_and(|spill| spill.put(chunk, mark, epoch, bytes)) {
            self.cache.stats.bytes_spilled.add(bytes.len() as u64);
        }
        Ok(Visited { bytes, start: 0, mark })
    }

    /// Reads bytes of a chunk from the spill file, if they are there and still what the store holds.
    fn spilled(
        &self,
        chunk: ChunkId,
        now: Opening,
        needed: Range<usize>,
        out: &mut Vec<u8>,
    ) -> Result<Option<VersionTag>> {
        let Some((spill, (mark, epoch))) = self.window.spill.as_ref().and_then(|s| Some((s, s.mark(chunk)?))) else {
            return Ok(None);
        };
        if epoch < now {
            let stat = self.array.stat_chunk(chunk)?;
            if VersionTag::of(stat.as_ref().map(|s| &s.version)) != mark {
                return Ok(None);
            }
            spill.confirm(chunk, now);
        }
        memory::resize(out, needed.len())?;
        // a disk that fails is no reason to fail: the chunk can be decoded again
        Ok(spill.read(chunk, needed, out).is_ok().then_some(mark))
    }
}
