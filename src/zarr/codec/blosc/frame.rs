//! Blosc frames: the header, the table of block offsets, and the decoding of any range of blocks. The format is that of
//! c-blosc 1.x (its README_CHUNK_FORMAT): 16 bytes of header, an offset for each block, and in a block one compressed
//! stream or one for each byte of an item. It knows nothing of codec parameters: all it needs is in the frame.

use super::{blosclz, shuffle};
use crate::zarr::codec::deflate::{self, Container};
use crate::zarr::codec::{CodecError, lz4, zstd};
use std::cell::Cell;
use std::ops::Range;

const HEADER: usize = 16;

/// Blocks with fewer items than this, or items longer than [`MAX_SPLITS`], are one stream.
const MIN_SPLIT: usize = 128;
const MAX_SPLITS: usize = 16;

/// Scratch memory beyond this is given back after use.
const KEEP: usize = 8 << 20;

thread_local! {
    /// A block before it is unshuffled.
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// What compressed the streams. LZ4HC writes LZ4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Inner {
    BloscLz,
    Lz4,
    Snappy,
    Zlib,
    Zstd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shuffle {
    None,
    Byte,
    Bit,
}

/// What the 16 bytes at a frame's start say, if they make sense.
#[derive(Clone, Debug)]
pub struct Header {
    inner: Inner,
    shuffle: Shuffle,
    split: bool,
    /// The data stand after the header as they are.
    stored: bool,
    typesize: usize,
    nbytes: usize,
    blocksize: usize,
    cbytes: usize,
}

/// A whole frame.
#[derive(Debug)]
pub struct Frame<'a> {
    header: Header,
    /// All of the frame, and nothing after it.
    bytes: &'a [u8],
}

impl Header {
    /// Reads and checks the header of a frame of `len` bytes, perhaps with more behind it. `encoded` is its beginning.
    /// The decoded bytes must not be more than `room`.
    pub fn parse(encoded: &[u8], len: usize, room: usize) -> Result<Self, CodecError> {
        let says = |why: String| Err(CodecError(format!("blosc: {why}")));
        let Some(header) = encoded.first_chunk::<HEADER>() else {
            return says(format!("chunk has {} bytes, a header {HEADER}", encoded.len()));
        };
        let [version, inner_version, flags, typesize, ..] = *header;
        let (nbytes, blocksize, cbytes) = (word(header, 4), word(header, 8), word(header, 12));
        if version != 2 || flags & 0x08 != 0 {
            return says(format!("header has format version {version} and flags {flags:#04x}, not those of blosc 1"));
        }
        if nbytes > room {
            return says(format!("header says {nbytes} decoded bytes, at most {room} are expected"));
        }
        if cbytes > len || cbytes < HEADER {
            return says(format!("header says {cbytes} bytes, chunk has {len}"));
        }
        if nbytes > 0 && (typesize == 0 || blocksize == 0 || blocksize > nbytes) {
            return says(format!("header has items of {typesize} and blocks of {blocksize} bytes, of {nbytes}"));
        }
        let stored = flags & 0x02 != 0;
        let Some(inner) = Inner::of(flags >> 5, inner_version).or(stored.then_some(Inner::BloscLz)) else {
            return says(format!("header has the unknown compressor {}, version {inner_version}", flags >> 5));
        };
        let shuffle = match flags {
            _ if flags & 0x01 != 0 && typesize > 1 => Shuffle::Byte,
            _ if flags & 0x04 != 0 => Shuffle::Bit,
            _ => Shuffle::None,
        };
        let split = flags & 0x10 == 0;
        let header = Header { inner, shuffle, split, stored, typesize: typesize.into(), nbytes, blocksize, cbytes };
        let (need, fits) = match stored {
            true => (HEADER + nbytes, cbytes == HEADER + nbytes),
            false => (header.index_end(), cbytes >= header.index_end()),
        };
        if nbytes > 0 && !fits {
            return says(format!("header says {cbytes} bytes, its blocks need {need}"));
        }
        Ok(header)
    }

    /// How many bytes the frame decodes to.
    pub fn nbytes(&self) -> usize {
        self.nbytes
    }

    /// How many blocks there are.
    pub fn blocks(&self) -> usize {
        self.nbytes.div_ceil(self.blocksize.max(1))
    }

    /// The decoded bytes of a block but the last, which may have fewer.
    pub fn blocksize(&self) -> usize {
        self.blocksize
    }

    /// Where the table of block offsets ends.
    pub fn index_end(&self) -> usize {
        HEADER + if self.stored { 0 } else { 4 * self.blocks() }
    }

    /// The bytes of the frame that hold block `n`, and perhaps more behind it; `index` is the frame up to
    /// [`Header::index_end`]. Writers with several threads put the blocks in any order.
    pub fn block_range(&self, index: &[u8], n: usize) -> Range<usize> {
        if self.stored {
            let start = HEADER + n * self.blocksize;
            return start..(start + self.blocksize).min(self.cbytes);
        }
        let start = word(index, HEADER + 4 * n).min(self.cbytes);
        let next = (0..self.blocks()).map(|i| word(index, HEADER + 4 * i)).filter(|&at| at > start).min();
        start..next.unwrap_or(self.cbytes).min(self.cbytes)
    }

    /// Decodes block `n`, whose bytes begin `src`, into `out`, which is exactly as long as it is.
    pub fn decode_one(&self, n: usize, src: &[u8], out: &mut [u8]) -> Result<(), CodecError> {
        if self.stored {
            let src = src.get(..out.len()).ok_or_else(|| self.damaged(n))?;
            out.copy_from_slice(src);
            return Ok(());
        }
        self.with_scratch(|scratch| self.decode_block(src, out, scratch)).map(|_| ()).ok_or_else(|| self.damaged(n))
    }

    fn damaged(&self, n: usize) -> CodecError {
        CodecError(format!("blosc: block {n} of {} is damaged", self.blocks()))
    }

    fn with_scratch<T>(&self, work: impl FnOnce(&mut [u8]) -> T) -> T {
        let mut scratch = SCRATCH.take();
        if self.shuffle != Shuffle::None && scratch.len() < self.blocksize {
            scratch.resize(self.blocksize, 0);
        }
        let done = work(&mut scratch);
        if scratch.len() <= KEEP {
            SCRATCH.set(scratch);
        }
        done
    }

    /// Decodes the block that begins `src`: how many bytes it took.
    fn decode_block(&self, src: &[u8], out: &mut [u8], scratch: &mut [u8]) -> Option<usize> {
        let short = out.len() < self.blocksize;
        let shuffle = match self.shuffle {
            Shuffle::Bit if out.len() < self.typesize => Shuffle::None,
            shuffle => shuffle,
        };
        if shuffle == Shuffle::None {
            return self.decode_streams(src, short, out);
        }
        let scratch = &mut scratch[..out.len()];
        let used = self.decode_streams(src, short, scratch)?;
        match shuffle {
            Shuffle::Byte => shuffle::unshuffle(self.typesize, scratch, out),
            _ => shuffle::bitunshuffle(self.typesize, scratch, out),
        }
        Some(used)
    }

    /// Decodes the streams of one block, which start `src`: how many bytes they are. A last, `short` block is never
    /// split.
    fn decode_streams(&self, src: &[u8], short: bool, out: &mut [u8]) -> Option<usize> {
        let split = self.split && !short && self.typesize <= MAX_SPLITS && out.len() / self.typesize >= MIN_SPLIT;
        let streams = if split { self.typesize } else { 1 };
        if !out.len().is_multiple_of(streams) {
            return None;
        }
        let mut rest = src;
        for part in out.chunks_exact_mut(out.len() / streams) {
            let (size, after) = rest.split_first_chunk()?;
            let (stream, after) = after.split_at_checked(u32::from_le_bytes(*size) as usize)?;
            rest = after;
            if stream.len() == part.len() {
                part.copy_from_slice(stream);
            } else if self.inner.decompress(stream, part)? != part.len() {
                return None;
            }
        }
        Some(src.len() - rest.len())
    }
}

impl<'a> Frame<'a> {
    /// Reads and checks the header. The decoded bytes must not be more than `room`.
    pub fn parse(encoded: &'a [u8], room: usize) -> Result<Self, CodecError> {
        let header = Header::parse(encoded, encoded.len(), room)?;
        Ok(Frame { bytes: &encoded[..header.cbytes], header })
    }

    /// How many bytes the frame decodes to.
    pub fn nbytes(&self) -> usize {
        self.header.nbytes
    }

    /// Decodes all of it into `out`, which is exactly as long as it must be.
    pub fn decode(&self, out: &mut [u8]) -> Result<(), CodecError> {
        let h = &self.header;
        if out.is_empty() {
            return Ok(());
        }
        if h.stored {
            out.copy_from_slice(&self.bytes[HEADER..]);
            return Ok(());
        }
        let mut used = 0;
        h.with_scratch(|scratch| {
            out.chunks_mut(h.blocksize).enumerate().try_for_each(|(n, out)| {
                let src = self.bytes.get(word(self.bytes, HEADER + 4 * n)..);
                used += src.and_then(|src| h.decode_block(src, out, scratch)).ok_or_else(|| h.damaged(n))?;
                // many blocks that all name one long stream would take the square of its time
                if used > self.bytes.len() { Err(CodecError::new("blosc: blocks overlap")) } else { Ok(()) }
            })
        })
    }
}

impl Inner {
    fn of(code: u8, version: u8) -> Option<Inner> {
        let all = [Inner::BloscLz, Inner::Lz4, Inner::Snappy, Inner::Zlib, Inner::Zstd];
        all.get(usize::from(code)).copied().filter(|_| version == 1)
    }

    fn decompress(self, src: &[u8], out: &mut [u8]) -> Option<usize> {
        match self {
            Inner::BloscLz => blosclz::decompress(src, out),
            Inner::Lz4 => lz4::decompress_block(src, out),
            Inner::Snappy => snap::raw::Decoder::new().decompress(src, out).ok(),
            Inner::Zlib => deflate::decompress(Container::Zlib, src, out).ok().map(|(_, made)| made),
            Inner::Zstd => zstd::decompress(src, out).ok(),
        }
    }
}

/// The little-endian number at `at`, which is there.
fn word(bytes: &[u8], at: usize) -> usize {
    let word = bytes.get(at..).and_then(|b| b.first_chunk()).copied().unwrap_or([0xFF; 4]);
    u32::from_le_bytes(word) as usize
}
