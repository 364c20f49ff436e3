//! Blosc frames: the header, the table of block offsets, and the decoding of blocks. A frame has a
//! header of 16 bytes, an offset for each block, and the blocks; a block has one compressed stream,
//! or one for each byte of an item. Decoding needs no codec parameters. Source of the format:
//! README_CHUNK_FORMAT of c-blosc 1.x.

use super::{blosclz, shuffle};
use crate::codec::{CodecError, CodecResult, lz4, zstd};
use std::cell::Cell;
use std::ops::Range;
use zarrfs_base::deflate::{self, Container};

/// Size of the header in bytes.
const HEADER: usize = 16;

/// Minimum number of items in a block that is split into one stream for each byte of an item.
const MIN_SPLIT: usize = 128;

/// Maximum item size in bytes of a block that is split.
const MAX_SPLITS: usize = 16;

/// Granularity, in items, of the beginning of a block that is decoded without the rest.
const PREFIX_ITEMS: usize = 256;

/// Maximum size in bytes of the scratch buffer that a thread keeps.
const MAX_SCRATCH: usize = 8 << 20;

thread_local! {
    /// A decompressed block that is still shuffled.
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// The compressor of the streams. LZ4HC writes LZ4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FrameCompressor {
    BloscLz,
    Lz4,
    Snappy,
    Zlib,
    Zstd,
}

/// The shuffle of the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FrameShuffle {
    None,
    Byte,
    Bit,
}

/// The checked header of a frame.
#[derive(Clone, Debug)]
pub struct BloscHeader {
    compressor: FrameCompressor,
    shuffle: FrameShuffle,
    /// Whether blocks are split into one stream for each byte of an item.
    is_split: bool,
    /// Whether the data follow the header uncompressed.
    is_stored: bool,
    /// Item size in bytes.
    typesize: usize,
    /// Size of the decoded data in bytes.
    nbytes: usize,
    /// Size of a decoded block in bytes; the last block may be shorter.
    blocksize: usize,
    /// Size of the frame in bytes.
    cbytes: usize,
}

impl BloscHeader {
    /// Parses the header of a frame. `encoded` are the first bytes of a value of `len` bytes, which
    /// may have bytes after the frame.
    ///
    /// # Errors
    ///
    /// If the header contradicts itself, or announces more than `room` decoded bytes or `len`
    /// encoded ones.
    pub fn parse(encoded: &[u8], len: usize, room: usize) -> CodecResult<Self> {
        let fail = |why: String| Err(CodecError(format!("blosc: {why}")));
        let Some(header) = encoded.first_chunk::<HEADER>() else {
            return fail(format!(
                "chunk has {} bytes, a header {HEADER}",
                encoded.len()
            ));
        };
        let [version, compressor_version, flags, typesize, ..] = *header;
        let nbytes = word(header, 4);
        let blocksize = word(header, 8);
        let cbytes = word(header, 12);
        if version != 2 || flags & 0x08 != 0 {
            return fail(format!(
                "header has format version {version} and flags {flags:#04x}, not those of blosc 1"
            ));
        }
        if nbytes > room {
            return fail(format!(
                "header says {nbytes} decoded bytes, at most {room} are expected"
            ));
        }
        if cbytes > len || cbytes < HEADER {
            return fail(format!("header says {cbytes} bytes, chunk has {len}"));
        }
        if nbytes > 0 && (typesize == 0 || blocksize == 0 || blocksize > nbytes) {
            return fail(format!(
                "header has items of {typesize} and blocks of {blocksize} bytes, of {nbytes}"
            ));
        }
        let is_stored = flags & 0x02 != 0;
        let Some(compressor) = FrameCompressor::of(flags >> 5, compressor_version)
            .or(is_stored.then_some(FrameCompressor::BloscLz))
        else {
            return fail(format!(
                "header has the unknown compressor {}, version {compressor_version}",
                flags >> 5
            ));
        };
        let shuffle = match flags {
            _ if flags & 0x01 != 0 && typesize > 1 => FrameShuffle::Byte,
            _ if flags & 0x04 != 0 => FrameShuffle::Bit,
            _ => FrameShuffle::None,
        };
        let is_split = flags & 0x10 == 0;
        let header = BloscHeader {
            compressor,
            shuffle,
            is_split,
            is_stored,
            typesize: typesize.into(),
            nbytes,
            blocksize,
            cbytes,
        };
        let (need, fits) = if is_stored {
            (HEADER + nbytes, cbytes == HEADER + nbytes)
        } else {
            (header.index_end(), cbytes >= header.index_end())
        };
        if nbytes > 0 && !fits {
            return fail(format!(
                "header says {cbytes} bytes, its blocks need {need}"
            ));
        }
        Ok(header)
    }

    /// Returns the size of the decoded data in bytes.
    pub fn nbytes(&self) -> usize {
        self.nbytes
    }

    /// Returns the number of blocks.
    pub fn blocks(&self) -> usize {
        self.nbytes.div_ceil(self.blocksize.max(1))
    }

    /// Returns the size of a decoded block in bytes; the last block may be shorter.
    pub fn blocksize(&self) -> usize {
        self.blocksize
    }

    /// Returns the offset in the frame at which the table of block offsets ends.
    pub fn index_end(&self) -> usize {
        HEADER + if self.is_stored { 0 } else { 4 * self.blocks() }
    }

    /// Returns a range of the frame that starts with block `n` and may include bytes after it.
    /// `index` is the frame up to [`BloscHeader::index_end`]. Encoders with several threads write
    /// the blocks in any order, so the range ends at the next larger offset.
    pub fn block_range(&self, index: &[u8], n: usize) -> Range<usize> {
        if self.is_stored {
            let start = HEADER + n * self.blocksize;
            return start..(start + self.blocksize).min(self.cbytes);
        }
        let start = word(index, HEADER + 4 * n).min(self.cbytes);
        let next = (0..self.blocks())
            .map(|i| word(index, HEADER + 4 * i))
            .filter(|&at| at > start)
            .min();
        start..next.unwrap_or(self.cbytes).min(self.cbytes)
    }

    /// Returns the number of bytes of block `n` that [`BloscHeader::decode_one`] should decode for
    /// a reader of its first `len` bytes: fewer than the whole block only if that saves time.
    pub fn decoded_len(&self, n: usize, len: usize) -> usize {
        let size = self.block_len(n);
        let has_prefixes = match self.shuffle {
            FrameShuffle::None => true,
            // each stream has one byte of every item
            FrameShuffle::Byte => self.streams(size) == self.typesize,
            FrameShuffle::Bit => false,
        };
        if self.is_stored || has_prefixes && self.compressor == FrameCompressor::Lz4 {
            len.min(size)
                .next_multiple_of(PREFIX_ITEMS * self.typesize)
                .min(size)
        } else {
            size
        }
    }

    /// Decodes block `n`, which is at the start of `src`, into `out`. The length of `out` is that
    /// of the block, or a result of [`BloscHeader::decoded_len`].
    pub fn decode_one(&self, n: usize, src: &[u8], out: &mut [u8]) -> CodecResult<()> {
        if self.is_stored {
            let src = src.get(..out.len()).ok_or_else(|| self.damaged(n))?;
            out.copy_from_slice(src);
            return Ok(());
        }
        let done =
            self.with_scratch(|scratch| self.decode_block(src, self.block_len(n), out, scratch));
        done.map(|_| ()).ok_or_else(|| self.damaged(n))
    }

    /// Returns the decoded size of block `n` in bytes.
    fn block_len(&self, n: usize) -> usize {
        self.blocksize.min(self.nbytes - n * self.blocksize)
    }

    /// Returns the number of streams of a block of `size` decoded bytes. A short last block is
    /// never split.
    fn streams(&self, size: usize) -> usize {
        let is_long = size == self.blocksize && size / self.typesize >= MIN_SPLIT;
        if self.is_split && self.typesize <= MAX_SPLITS && is_long {
            self.typesize
        } else {
            1
        }
    }

    fn damaged(&self, n: usize) -> CodecError {
        CodecError(format!("blosc: block {n} of {} is damaged", self.blocks()))
    }

    /// Calls `work` with the scratch buffer of this thread, which holds at least one block if
    /// blocks are shuffled.
    fn with_scratch<T>(&self, work: impl FnOnce(&mut [u8]) -> T) -> T {
        let mut scratch = SCRATCH.take();
        if self.shuffle != FrameShuffle::None && scratch.len() < self.blocksize {
            scratch.resize(self.blocksize, 0);
        }
        let done = work(&mut scratch);
        if scratch.len() <= MAX_SCRATCH {
            SCRATCH.set(scratch);
        }
        done
    }

    /// Decodes the block of `size` decoded bytes at the start of `src` into `out`, which may be
    /// shorter, and returns the number of bytes read.
    fn decode_block(
        &self,
        src: &[u8],
        size: usize,
        out: &mut [u8],
        scratch: &mut [u8],
    ) -> Option<usize> {
        let streams = self.streams(size);
        if !size.is_multiple_of(streams) {
            return None;
        }
        let shuffle = match self.shuffle {
            FrameShuffle::Bit if size < self.typesize => FrameShuffle::None,
            shuffle => shuffle,
        };
        if shuffle == FrameShuffle::None {
            // without a shuffle the streams follow each other in `out`, so a short `out` does not
            // need the last ones
            return self.decode_streams(src, size / streams, out.chunks_mut(size / streams));
        }
        let scratch = &mut scratch[..out.len()];
        let used = self.decode_streams(
            src,
            size / streams,
            scratch.chunks_exact_mut(out.len() / streams),
        )?;
        match shuffle {
            FrameShuffle::Byte => shuffle::unshuffle(self.typesize, scratch, out),
            _ => shuffle::bitunshuffle(self.typesize, scratch, out),
        }
        Some(used)
    }

    /// Decodes the streams at the start of `src`, of `size` decoded bytes each, one into each of
    /// `parts`. A part may be shorter than its stream. Returns the number of bytes read.
    fn decode_streams<'a>(
        &self,
        src: &[u8],
        size: usize,
        parts: impl Iterator<Item = &'a mut [u8]>,
    ) -> Option<usize> {
        let mut rest = src;
        for part in parts {
            let (encoded, after) = rest.split_first_chunk()?;
            let (stream, after) = after.split_at_checked(u32::from_le_bytes(*encoded) as usize)?;
            rest = after;
            if stream.len() == size {
                part.copy_from_slice(&stream[..part.len()]);
            } else if self.compressor.decompress(stream, size, part)? != part.len() {
                return None;
            }
        }
        Some(src.len() - rest.len())
    }

    /// Decodes the whole frame at the start of `frame` into `out`, which has the length of the
    /// decoded data.
    pub fn decode_all(&self, frame: &[u8], out: &mut [u8]) -> CodecResult<()> {
        let frame = &frame[..self.cbytes];
        if out.is_empty() {
            return Ok(());
        }
        if self.is_stored {
            out.copy_from_slice(&frame[HEADER..]);
            return Ok(());
        }
        let mut used = 0;
        self.with_scratch(|scratch| {
            out.chunks_mut(self.blocksize)
                .enumerate()
                .try_for_each(|(n, out)| {
                    let src = frame.get(word(frame, HEADER + 4 * n)..);
                    let done = src.and_then(|src| self.decode_block(src, out.len(), out, scratch));
                    used += done.ok_or_else(|| self.damaged(n))?;
                    // without this, n blocks that refer to one stream would take n times as long
                    if used > frame.len() {
                        Err(CodecError::new("blosc: blocks overlap"))
                    } else {
                        Ok(())
                    }
                })
        })
    }
}

impl FrameCompressor {
    /// Returns the compressor with this code and format version.
    fn of(code: u8, version: u8) -> Option<FrameCompressor> {
        let all = [
            FrameCompressor::BloscLz,
            FrameCompressor::Lz4,
            FrameCompressor::Snappy,
            FrameCompressor::Zlib,
            FrameCompressor::Zstd,
        ];
        all.get(usize::from(code)).copied().filter(|_| version == 1)
    }

    /// Decompresses a stream of `size` decoded bytes into the front of `out`, which only LZ4 allows
    /// to be shorter. Returns the number of bytes written.
    fn decompress(self, src: &[u8], size: usize, out: &mut [u8]) -> Option<usize> {
        match self {
            FrameCompressor::Lz4 if out.len() < size => lz4::decompress_beginning(src, out),
            FrameCompressor::BloscLz => blosclz::decompress(src, out),
            FrameCompressor::Lz4 => lz4::decompress_block(src, out),
            FrameCompressor::Snappy => snap::raw::Decoder::new().decompress(src, out).ok(),
            FrameCompressor::Zlib => deflate::decompress(Container::Zlib, src, out)
                .ok()
                .map(|(_, made)| made),
            FrameCompressor::Zstd => zstd::decompress(src, out).ok(),
        }
    }
}

/// Returns the little-endian 32-bit number at offset `at`, or the largest such number if `at` is
/// out of bounds.
fn word(bytes: &[u8], at: usize) -> usize {
    let word = bytes
        .get(at..)
        .and_then(|b| b.first_chunk())
        .copied()
        .unwrap_or([0xFF; 4]);
    u32::from_le_bytes(word) as usize
}
