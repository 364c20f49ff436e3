//! Reading a part of a chunk where that costs less than the whole chunk: any bytes of an
//! uncompressed chunk, one block of a blosc frame, the beginning of a zstd frame, or the bytes
//! after a seek point. All parts of one opened chunk have the same version.

use super::{Array, MAX_IN_FLIGHT, Scratch};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use zarrfs_base::error::{Error, ErrorContext, Result};
use zarrfs_base::memory::{self, lock};
use zarrfs_base::pool::on_threads;
use zarrfs_format::codec::{
    BloscHeader, CodecError, CodecResult, PartialDecode, SeekPoints, ZstdFrame,
};
use zarrfs_format::grid::ChunkId;
use zarrfs_store::{Stat, Version};

/// Minimum size in bytes of a block that is worth a request.
const MIN_BLOCK: usize = 4096;

/// Bytes read from the beginning of a frame. They hold the offsets of 250 blocks; most frames have
/// fewer.
const FRAME_BEGINNING: u64 = 1024;

/// Bytes read from the beginning of a remote frame: a second request takes longer than some more
/// bytes.
const REMOTE_FRAME_BEGINNING: u64 = 16 << 10;

/// Maximum stored size in bytes of a remote chunk that is fetched whole: it takes no longer than
/// another round trip.
const REMOTE_WHOLE: usize = 4 << 20;

/// Size in bytes of the blocks into which a chunk with seek points is divided.
const SEEK_BLOCK: usize = 256 << 10;

/// Maximum number of ranges of a part that are requested from a server at the same time: one for
/// each byte of a shuffled item.
const MAX_TOGETHER: usize = 8;

/// Maximum number of requests of all parts beside the first one of each. Further ranges are
/// requested one after another.
const MAX_MORE: usize = 64;

/// Number of such requests.
static MORE: AtomicUsize = AtomicUsize::new(0);

/// Requests that are counted in [`MORE`].
struct MoreRequests(usize);

impl MoreRequests {
    /// Takes up to `wanted` requests.
    fn take(wanted: usize) -> Self {
        let sum = |now: usize| (now + wanted).min(MAX_MORE);
        let before = MORE.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| Some(sum(now)));
        MoreRequests(before.map_or(0, |now| sum(now) - now))
    }
}

impl Drop for MoreRequests {
    fn drop(&mut self) {
        MORE.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// Alignment in bytes of a decoded part, since the kernel reads whole pages.
const PAGE: usize = 4096;

/// Maximum decoded size in bytes of a remote chunk that is fetched whole: decoding takes time and
/// cache space.
const REMOTE_WHOLE_DECODED: usize = 16 << 20;

/// The blocks of a stored chunk.
pub struct BlockIndex {
    frame: Frame,
    /// The version of the stored chunk.
    pub version: Version,
}

/// A stored chunk that is decoded in parts.
enum Frame {
    /// A blosc frame: its header, and its bytes up to the first block.
    Blosc(BloscHeader, Vec<u8>),
    /// A zstd frame, which is one block.
    Zstd(ZstdFrame),
    /// A compressed value of a decoded size, which has seek points.
    Seek(usize),
}

/// Result of [`Array::open_chunk`].
pub enum OpenedChunk {
    /// The store has no such chunk.
    Uninitialized,
    /// No part costs less than the whole chunk.
    Whole,
    /// Blocks can be decoded one by one.
    Blocks(BlockIndex),
}

impl BlockIndex {
    /// Returns the blocks of a chunk of `size` bytes, whose version has seek points.
    pub fn with_points(size: usize, version: Version) -> Self {
        BlockIndex {
            frame: Frame::Seek(size),
            version,
        }
    }

    /// Returns the number of blocks.
    pub fn blocks(&self) -> usize {
        match &self.frame {
            Frame::Blosc(header, _) => header.blocks(),
            Frame::Zstd(_) => 1,
            Frame::Seek(size) => size.div_ceil(SEEK_BLOCK),
        }
    }

    /// Returns the decoded size of each block in bytes. The last block may be smaller.
    pub fn block_size(&self) -> usize {
        match &self.frame {
            Frame::Blosc(header, _) => header.blocksize(),
            Frame::Zstd(frame) => frame.nbytes(),
            Frame::Seek(_) => SEEK_BLOCK,
        }
    }

    /// Returns whether blocks are loaded by [`Array::load_after_point`].
    pub fn has_points(&self) -> bool {
        matches!(self.frame, Frame::Seek(_))
    }

    /// Returns whether damage of a block is damage of the chunk, which needs no other proof.
    pub fn proves_damage(&self) -> bool {
        matches!(self.frame, Frame::Blosc(..))
    }

    /// Returns the part of block `n` that is kept for a reader of the bytes `wanted` of it: whole
    /// pages, or all of a frame's block if all of it is decoded.
    pub fn part(&self, n: usize, wanted: Range<usize>) -> Range<usize> {
        let start = wanted.start / PAGE * PAGE;
        let decoded_len = |len| match &self.frame {
            Frame::Blosc(header, _) => header.decoded_len(n, len),
            Frame::Zstd(frame) => frame.decoded_len(len),
            Frame::Seek(size) => {
                let block = SEEK_BLOCK.min(size - n * SEEK_BLOCK);
                len.min(block).next_multiple_of(PAGE).min(block)
            }
        };
        let end = decoded_len(wanted.end);
        if end == decoded_len(usize::MAX) && !self.has_points() {
            return 0..end;
        }
        start..end
    }

    /// Returns the range of the stored chunk that holds a block of a frame.
    fn stored_range(&self, n: usize) -> Range<usize> {
        match &self.frame {
            Frame::Blosc(header, index) => header.block_range(index, n),
            Frame::Zstd(frame) => 0..frame.cbytes(),
            Frame::Seek(_) => 0..0,
        }
    }

    /// Decodes the first `len` bytes of a block of a frame to the front of `buffer`.
    fn decode(
        &self,
        n: usize,
        stored: &[u8],
        len: usize,
        buffer: &mut Vec<u8>,
    ) -> Result<CodecResult<()>> {
        match &self.frame {
            Frame::Blosc(header, _) => {
                memory::resize(buffer, len)?;
                Ok(header.decode_one(n, stored, buffer))
            }
            Frame::Zstd(frame) => {
                memory::resize(buffer, frame.nbytes())?;
                Ok(frame.decode_beginning(stored, len, buffer))
            }
            Frame::Seek(_) => Ok(Err(CodecError::new("is no frame"))),
        }
    }
}

impl Array {
    /// Returns the way in which a part of a chunk is read.
    pub fn partial_decode(&self) -> PartialDecode {
        match self.pipeline() {
            Ok(_) if self.metadata.has_objects() => PartialDecode::No,
            Ok(pipeline) => match pipeline.partial_decode() {
                // a part needs no request for a header, but one for each byte of shuffled items
                PartialDecode::Seek if !self.must_be_whole() && !pipeline.is_shuffled() => {
                    PartialDecode::Seek
                }
                _ if self.is_fetched_whole() => PartialDecode::No,
                // a remote read would fetch the whole frame for its beginning, after a request for
                // its header
                PartialDecode::Zstd if self.is_remote() => PartialDecode::No,
                // a small frame has one block, which the decoder decodes whole
                PartialDecode::Zstd if self.grid.max_chunk_size() <= ZstdFrame::BLOCK => {
                    PartialDecode::No
                }
                partial => partial,
            },
            Err(_) => PartialDecode::No,
        }
    }

    /// Returns whether a remote chunk is read by one request: it arrives about as early as a part
    /// of it would, judging by the size of the last one, or nothing would show that two parts are
    /// of one version.
    fn is_fetched_whole(&self) -> bool {
        let size = self.grid.max_chunk_size();
        let stored = match self.stored_size.load(Ordering::Relaxed) {
            0 => size,
            last => usize::try_from(last).unwrap_or(usize::MAX),
        };
        let is_small = stored <= REMOTE_WHOLE && size <= REMOTE_WHOLE_DECODED;
        self.is_remote() && is_small || self.must_be_whole()
    }

    /// Returns whether the store states no versions, so that two parts could be of several ones.
    fn must_be_whole(&self) -> bool {
        self.is_remote()
            && self.lacks_versions.load(Ordering::Relaxed)
            && self.check_memory().is_ok()
    }

    /// Records the stored size of a chunk, and whether the store states its version.
    pub(super) fn record_stored(&self, size: u64, version: &Version) {
        self.stored_size.store(size, Ordering::Relaxed);
        if version.is_unstated() {
            self.lacks_versions.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether chunks are remote, uncompressed and so large that a sequential reader should
    /// get them in ranges.
    pub fn is_read_in_ranges(&self) -> bool {
        self.is_remote()
            && self.partial_decode() == PartialDecode::Plain
            && self.grid.max_chunk_size() > MAX_IN_FLIGHT
    }

    /// Reads bytes of a chunk of an array with [`PartialDecode::Plain`]. Returns `None` if the
    /// chunk is uninitialized.
    ///
    /// # Errors
    ///
    /// Fails if the store fails or the stored chunk has another size than a chunk.
    pub fn read_plain(
        &self,
        chunk: ChunkId,
        range: Range<usize>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Version>> {
        let Some(stat) = self.get_range(chunk, range.start as u64..range.end as u64, out)? else {
            return Ok(None);
        };
        let size = usize::try_from(stat.size).unwrap_or(usize::MAX);
        self.pipeline_of(chunk)?
            .check_size(size)
            .map_err(|e| self.in_chunk(chunk, self.explained_by_store(chunk, e)))?;
        if out.len() != range.len() {
            return Err(
                Error::damaged("cut short while it was read").context(self.stored_key(chunk))
            );
        }
        Ok(Some(stat.version))
    }

    /// Reads the header of a chunk and the positions of its blocks. The array must have
    /// [`PartialDecode::Blosc`] or [`PartialDecode::Zstd`].
    pub fn open_chunk(&self, chunk: ChunkId) -> Result<OpenedChunk> {
        let mut index = Vec::new();
        let beginning = if self.is_remote() {
            REMOTE_FRAME_BEGINNING
        } else {
            FRAME_BEGINNING
        };
        let Some(stat) = self.get_range(chunk, 0..beginning, &mut index)? else {
            return Ok(OpenedChunk::Uninitialized);
        };
        if stat.size > self.pipeline_of(chunk)?.max_stored() || self.is_fetched_whole() {
            return Ok(OpenedChunk::Whole); // loading a chunk that is too large reports why
        }
        let size = self.grid.chunk_size(chunk);
        let len = stat.size as usize;
        let frame = match self.partial_decode() {
            PartialDecode::Zstd => ZstdFrame::parse(&index, len)
                .filter(|f| f.nbytes() == size)
                .map(Frame::Zstd),
            _ => self.open_blosc(chunk, index, &stat)?,
        };
        Ok(match frame {
            Some(frame) => OpenedChunk::Blocks(BlockIndex {
                frame,
                version: stat.version,
            }),
            None => OpenedChunk::Whole,
        })
    }

    /// Reads the header of a blosc frame, of which `index` are the first bytes, and the positions
    /// of its blocks. Returns `None` if no part costs less than the whole chunk.
    fn open_blosc(&self, chunk: ChunkId, mut index: Vec<u8>, stat: &Stat) -> Result<Option<Frame>> {
        let size = self.grid.chunk_size(chunk);
        let header = BloscHeader::parse(&index, stat.size as usize, size)
            .map_err(|e| self.undecodable(chunk, &index, Error::damaged(e.0)))?;
        if header.nbytes() != size
            || header.blocksize() < MIN_BLOCK
            || header.blocks() <= 1 && header.decoded_len(0, 1) >= size
        {
            return Ok(None);
        }
        let end = header.index_end();
        if end > index.len() {
            match self.get_range(chunk, 0..end as u64, &mut index)? {
                Some(now) if now.version.may_equal(&stat.version) => {}
                _ => return Ok(None),
            }
        }
        index.truncate(end);
        index.shrink_to_fit();
        Ok(Some(Frame::Blosc(header, index)))
    }

    /// Decodes at least the first `len` bytes of a block of a frame, given by number, into `buffer`
    /// if that has the capacity; bytes after them have any content. Returns `None` if the chunk was
    /// replaced since it was opened. `stored` receives the encoded bytes.
    pub fn load_block(
        &self,
        chunk: ChunkId,
        (index, n): (&BlockIndex, usize),
        len: usize,
        mut buffer: Vec<u8>,
        stored: &mut Vec<u8>,
    ) -> Result<Option<Vec<u8>>> {
        memory::check_chunk(index.block_size().saturating_mul(2)).context(&self.key)?;
        if !self.get_same(chunk, &index.version, index.stored_range(n), stored)? {
            return Ok(None);
        }
        let start = Instant::now();
        let len = index.part(n, 0..len).end;
        let done = index.decode(n, stored, len, &mut buffer)?;
        self.stats.codec_time.add_since(start);
        done.map_err(|e| self.in_chunk(chunk, Error::damaged(e.0)))?;
        self.count_block(len);
        Ok(Some(buffer))
    }

    /// Decodes a part of a block of a frame, a result of [`BlockIndex::part`]. Returns the bytes in
    /// new memory; `None` if the chunk was replaced since it was opened.
    pub fn load_part(
        &self,
        chunk: ChunkId,
        (index, n): (&BlockIndex, usize),
        part: Range<usize>,
        scratch: &mut Scratch,
    ) -> Result<Option<Vec<u8>>> {
        // new memory takes longer than decoding into memory that is used again and copying a part
        let buffer = std::mem::take(&mut scratch.other);
        let block = self.load_block(chunk, (index, n), part.end, buffer, &mut scratch.stored)?;
        let Some(block) = block else { return Ok(None) };
        let mut bytes = memory::zeroed(part.len())?;
        bytes.copy_from_slice(&block[part]);
        scratch.other = block;
        Ok(Some(bytes))
    }

    /// Returns the bytes of memory that [`Array::load_after_point`] takes.
    pub fn part_memory(&self, chunk: ChunkId, points: &SeekPoints, part: Range<usize>) -> usize {
        let Ok(pipeline) = self.pipeline_of(chunk) else {
            return self.chunk_memory();
        };
        let (items, ranges) = pipeline.part(part, points.nbytes());
        let largest = ranges.iter().map(|range| points.memory_for(range)).max();
        let fetched = if self.fetches_together(&ranges) {
            ranges
                .iter()
                .map(|range| points.stored_range(range).len())
                .sum()
        } else {
            0
        };
        largest
            .unwrap_or(0)
            .saturating_add(fetched)
            .saturating_add(2 * items.len())
    }

    /// Decodes the bytes `part` of a chunk from the nearest seek points, which are those of
    /// `version`. Returns `None` if the store has another version.
    pub fn load_after_point(
        &self,
        chunk: ChunkId,
        (points, version): (&SeekPoints, &Version),
        part: Range<usize>,
        scratch: &mut Scratch,
    ) -> Result<Option<Vec<u8>>> {
        memory::check_chunk(self.part_memory(chunk, points, part.clone())).context(&self.key)?;
        let pipeline = self.pipeline_of(chunk)?;
        let (items, ranges) = pipeline.part(part.clone(), points.nbytes());
        let mut joined = Vec::new();
        memory::reserve(&mut joined, items.len())?;
        let mut fetched = Vec::new().into_iter();
        if self.fetches_together(&ranges) {
            match self.get_all_same(chunk, (points, version), &ranges)? {
                Some(all) => fetched = all.into_iter(),
                None => return Ok(None),
            }
        }
        for range in ranges {
            if let Some(stored) = fetched.next() {
                scratch.stored = stored;
            } else {
                let from = points.stored_range(&range);
                if !self.get_same(chunk, version, from, &mut scratch.stored)? {
                    return Ok(None);
                }
            }
            let start = Instant::now();
            let memory = (&mut scratch.other, &mut joined);
            let done = pipeline.decode_range(points, range, &scratch.stored, memory);
            self.stats.codec_time.add_since(start);
            done.map_err(|e| self.in_chunk(chunk, Error::damaged(e.0)))?;
        }
        let mut bytes = pipeline
            .join(joined)
            .map_err(|e| self.in_chunk(chunk, Error::damaged(e.0)))?;
        bytes.truncate(part.end - items.start);
        bytes.drain(..part.start - items.start);
        self.count_block(bytes.len());
        Ok(Some(bytes))
    }

    /// Returns the seek points that [`Array::keep_points`] kept, and their version, perhaps not the
    /// stored one.
    pub fn kept_points(&self, chunk: ChunkId) -> Option<(SeekPoints, Version)> {
        let mut bytes = Vec::new();
        let key = self.stored_key(chunk);
        let version =
            self.store
                .capabilities()
                .side?
                .derived(&key, &self.points_name(chunk), &mut bytes)?;
        let points = SeekPoints::parse(&bytes)?;
        (points.nbytes() == self.grid.chunk_size(chunk)).then_some((points, Version::Tag(version)))
    }

    /// Keeps the seek points of a version of a chunk for later mounts, if the store has a place for
    /// them.
    pub fn keep_points(&self, chunk: ChunkId, points: &SeekPoints, version: &Version) {
        if self.is_remote() {
            let key = self.stored_key(chunk);
            let name = self.points_name(chunk);
            if let Some(side) = self.store.capabilities().side {
                side.keep_derived(&key, &name, version, &points.to_bytes());
            }
        }
    }

    /// Returns the name under which the seek points of a chunk are kept. It tells the chunk from
    /// others of its object, also if the grid or the codecs are others in a later mount.
    fn points_name(&self, chunk: ChunkId) -> String {
        let place = self.grid.indices(chunk);
        let shape = self.chunk_shape(chunk);
        format!("points of {place:?}, {shape:?}, {}", self.codec_names())
    }

    /// Returns whether the ranges of a part are requested from a server at the same time.
    fn fetches_together(&self, ranges: &[Range<usize>]) -> bool {
        self.is_remote() && ranges.len() > 1
    }

    /// Reads the stored bytes of several ranges of a chunk at the same time. Returns `None` if one
    /// has another version.
    fn get_all_same(
        &self,
        chunk: ChunkId,
        (points, version): (&SeekPoints, &Version),
        ranges: &[Range<usize>],
    ) -> Result<Option<Vec<Vec<u8>>>> {
        let next = AtomicUsize::new(0);
        let all = Mutex::new(vec![None; ranges.len()]);
        let more = MoreRequests::take(ranges.len().min(MAX_TOGETHER) - 1);
        on_threads(1 + more.0, &|| {
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                let Some(range) = ranges.get(n) else {
                    return Ok(());
                };
                let mut stored = Vec::new();
                let from = points.stored_range(range);
                if !self.get_same(chunk, version, from, &mut stored)? {
                    return Ok(());
                }
                lock(&all)[n] = Some(stored);
            }
        })?;
        let all = all.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(all.into_iter().collect())
    }

    /// Reads stored bytes of a chunk. Returns false if it has another version.
    fn get_same(
        &self,
        chunk: ChunkId,
        version: &Version,
        range: Range<usize>,
        stored: &mut Vec<u8>,
    ) -> Result<bool> {
        let got = self.get_range(chunk, range.start as u64..range.end as u64, stored)?;
        Ok(got.is_some_and(|stat| stat.version == *version))
    }

    fn count_block(&self, decoded: usize) {
        self.stats.block_decodes.add(1);
        self.stats.add_decoded(decoded);
    }

    /// Reads stored bytes of a chunk, counted from its beginning.
    fn get_range(
        &self,
        chunk: ChunkId,
        range: Range<u64>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Stat>> {
        let got = self.chunks.get_range(self, chunk, range, out)?;
        if let Some(stat) = &got {
            self.record_stored(stat.size, &stat.version);
        }
        Ok(got)
    }
}
