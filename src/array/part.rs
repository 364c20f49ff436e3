//! Reading a part of a chunk where that costs less than the whole: any bytes of an uncompressed one, a block of a blosc
//! frame. The parts of one chunk are of one version, or they are not given.

use super::{Array, UNDER_WAY};
use crate::error::{Error, Result};
use crate::store::{Key, Stat, Version};
use crate::util::memory;
use crate::zarr::codec::{BloscHeader, PartialDecode};
use crate::zarr::grid::ChunkId;
use std::fs::File;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Blocks below this many bytes are not worth a request each.
const MIN_BLOCK: usize = 4096;

/// The beginning of a frame: holds the offsets of 250 blocks. Most frames have fewer.
const FRAME_BEGINNING: u64 = 1024;

/// A stored chunk whose blocks can be decoded one by one.
pub struct Parts {
    header: BloscHeader,
    /// The frame up to its first block.
    index: Vec<u8>,
    /// Of the stored bytes.
    pub version: Version,
}

/// The same of a far one: to ask again for a longer beginning takes more time than some bytes too many.
const FAR_FRAME_BEGINNING: u64 = 16 << 10;

/// Stored bytes of a far chunk that take no more time on their way than another request does: one of no more is fetched
/// whole, by one.
const FAR_WHOLE: usize = 4 << 20;

/// As long as they decode to no more than this many bytes: that takes time, and room in the cache, too.
const FAR_WHOLE_DECODED: usize = 16 << 20;

/// What [`Array::open_parts`] finds.
pub enum Opened {
    /// The chunk is not in the store.
    Uninitialised,
    /// No part of it costs less than the whole.
    Whole,
    /// It can be had in parts.
    Parts(Parts),
}

impl Parts {
    /// How many blocks there are.
    pub fn blocks(&self) -> usize {
        self.header.blocks()
    }

    /// The decoded bytes of a block but the last, which may have fewer.
    pub fn block_size(&self) -> usize {
        self.header.blocksize()
    }
}

impl Array {
    /// What a part of a chunk takes.
    pub fn partial_decode(&self) -> PartialDecode {
        match &self.pipeline {
            Ok(_) if self.is_transposed() || self.metadata.has_objects() || self.is_soon_whole() => PartialDecode::No,
            Ok(pipeline) => pipeline.partial_decode(),
            Err(_) => PartialDecode::No,
        }
    }

    /// True if a far chunk is here as soon as a part of it, as far as can be told from the size of another.
    fn is_soon_whole(&self) -> bool {
        let size = self.grid.chunk_size();
        let stored = match self.stored_size.load(Ordering::Relaxed) {
            0 => size,
            known => usize::try_from(known).unwrap_or(usize::MAX),
        };
        self.is_remote() && stored <= FAR_WHOLE && size <= FAR_WHOLE_DECODED
    }

    /// True if the chunks, of a far array that is [`PartialDecode::Plain`], are so large that also a forward reader had better
    /// have them in pieces.
    pub fn is_in_pieces(&self) -> bool {
        self.is_remote() && self.partial_decode() == PartialDecode::Plain && self.grid.chunk_size() > UNDER_WAY
    }

    /// Reads bytes of a chunk of an array that is [`PartialDecode::Plain`]; None if it is uninitialised.
    pub fn read_plain(&self, chunk: ChunkId, range: Range<usize>, out: &mut Vec<u8>) -> Result<Option<Version>> {
        let Some((key, stat)) = self.get_range(chunk, range.start as u64..range.end as u64, out)? else {
            return Ok(None);
        };
        let size = usize::try_from(stat.size).unwrap_or(usize::MAX);
        self.pipeline()?.check_size(size).map_err(|e| self.in_chunk(&key, e))?;
        if out.len() != range.len() {
            return Err(Error::damaged("cut short while it was read").context(key));
        }
        Ok(Some(stat.version))
    }

    /// The store's file of a chunk, if it holds just the decoded bytes, in the array's own order.
    pub fn plain_file(&self, chunk: ChunkId) -> Result<Option<(File, Version)>> {
        if !self.pipeline()?.is_identity() || self.metadata.has_objects() {
            return Ok(None);
        }
        let key = self.chunk_key(chunk);
        let found = self.store.file(&key).map_err(|e| e.context(&key))?;
        let whole = found.filter(|(_, stat)| stat.size == self.grid.chunk_size() as u64);
        Ok(whole.map(|(file, stat)| (file, stat.version)))
    }

    /// Reads how a chunk of an array that is [`PartialDecode::Blosc`] is divided.
    pub fn open_parts(&self, chunk: ChunkId) -> Result<Opened> {
        let mut index = Vec::new();
        let beginning = if self.is_remote() { FAR_FRAME_BEGINNING } else { FRAME_BEGINNING };
        let Some((key, stat)) = self.get_range(chunk, 0..beginning, &mut index)? else {
            return Ok(Opened::Uninitialised);
        };
        if stat.size > self.pipeline()?.max_stored() || self.is_soon_whole() {
            return Ok(Opened::Whole); // too large a one is to fail as the whole does
        }
        let size = self.grid.chunk_size();
        let broken = |e: crate::zarr::codec::CodecError| self.in_chunk(&key, Error::damaged(e.0));
        let header = BloscHeader::parse(&index, stat.size as usize, size).map_err(broken)?;
        if header.nbytes() != size || header.blocks() < 2 || header.blocksize() < MIN_BLOCK {
            return Ok(Opened::Whole);
        }
        let end = header.index_end();
        if end > index.len() {
            match self.get_range(chunk, 0..end as u64, &mut index)? {
                Some((_, now)) if now.version == stat.version => {}
                _ => return Ok(Opened::Whole),
            }
        }
        index.truncate(end);
        index.shrink_to_fit();
        Ok(Opened::Parts(Parts { header, index, version: stat.version }))
    }

    /// Decodes block `n` of a chunk, into `buffer` if that has the room; None if the chunk is not the one that was
    /// opened any more. `stored` is for the encoded bytes.
    pub fn load_block(
        &self,
        chunk: ChunkId,
        parts: &Parts,
        n: usize,
        mut buffer: Vec<u8>,
        stored: &mut Vec<u8>,
    ) -> Result<Option<Vec<u8>>> {
        let range = parts.header.block_range(&parts.index, n);
        memory::check_chunk(parts.block_size().saturating_mul(2)).map_err(|e| e.context(&self.key))?;
        let got = self.get_range(chunk, range.start as u64..range.end as u64, stored)?;
        let Some((key, _)) = got.filter(|(_, stat)| stat.version == parts.version) else { return Ok(None) };
        let start = Instant::now();
        let len = parts.block_size().min(self.grid.chunk_size() - n * parts.block_size());
        memory::resize(&mut buffer, len)?;
        let done = parts.header.decode_one(n, stored, &mut buffer);
        self.stats.codec_time.add_since(start);
        done.map_err(|e| self.in_chunk(&key, Error::damaged(e.0)))?;
        self.stats.block_decodes.add(1);
        self.stats.bytes_decoded.add(len as u64);
        Ok(Some(buffer))
    }

    fn get_range(&self, chunk: ChunkId, range: Range<u64>, out: &mut Vec<u8>) -> Result<Option<(Key, Stat)>> {
        let key = self.chunk_key(chunk);
        let start = Instant::now();
        let got = self.store.get_range(&key, range, out);
        self.stats.store_time.add_since(start);
        let got = got.map_err(|e| e.context(&key))?;
        let Some(stat) = got else { return Ok(None) };
        self.stats.bytes_stored.add(out.len() as u64);
        self.stored_size.store(stat.size, Ordering::Relaxed);
        Ok(Some((key, stat)))
    }
}
