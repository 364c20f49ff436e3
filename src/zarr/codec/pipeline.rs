//! The codecs of one array in a row: filters, then compressor, as zarr-python's `_encode_chunk` applies them, and
//! backwards. It knows the size of every intermediate result, so that no codec is asked for more than that, and no more
//! memory is taken than there is for one chunk: whatever filters a document names, they expand nothing beyond that.

use super::{Codec, Size, build};
use crate::error::{Error, Result};
use crate::util::memory;
use crate::zarr::metadata::ArrayMetadata;
use std::cell::RefCell;

/// Decoded bytes an object-codec chunk may have: nothing in the metadata bounds it.
const MAX_OBJECT_CHUNK: usize = 256 << 20;

/// Bytes that an intermediate result may have: as many as a decoded chunk.
const MAX_INTERMEDIATE: usize = (1 << 31) - 1;

/// What other writers' encoders may need beyond the bound of ours.
const SLACK: usize = 1 << 16;

thread_local! {
    /// Intermediate results, kept for the next chunk unless they are large.
    static SCRATCH: RefCell<(Vec<u8>, Vec<u8>)> = const { RefCell::new((Vec::new(), Vec::new())) };
}

/// Whether a part of a decoded chunk costs less than the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartialDecode {
    /// It doesn't.
    No,
    /// Stored chunks are decoded chunks: any range of bytes can be read.
    Plain,
    /// Stored chunks are blosc frames: see [`BloscHeader`](super::BloscHeader).
    Blosc,
}

/// The codecs of an array, ready to use.
pub struct Pipeline {
    /// In the order of writing.
    steps: Vec<Box<dyn Codec>>,
    /// `sizes[i]` is what goes into `steps[i]` when writing; the last one is the stored size.
    sizes: Vec<Size>,
}

impl Pipeline {
    /// The pipeline of `meta` for decoded chunks of `chunk_size` bytes. An object codec stays out of it: decoded chunks
    /// of an array of objects are what that codec made.
    pub fn new(meta: &ArrayMetadata, chunk_size: usize) -> Result<Self> {
        let kept = usize::from(meta.object_codec().is_some());
        let (mut size, mut itemsize) = match meta.has_objects() {
            true => (Size::AtMost(MAX_OBJECT_CHUNK), 1),
            false => (Size::Exact(chunk_size), meta.dtype.size()),
        };
        let (mut steps, mut sizes) = (Vec::new(), vec![size]);
        for config in meta.filters.iter().skip(kept).chain(&meta.compressor) {
            let codec = build(config, itemsize)?;
            itemsize = codec.encoded_itemsize();
            size = match (size, codec.encoded_size(size.max())) {
                (Size::Exact(_), size) => size,
                (Size::AtMost(_), size) => Size::AtMost(size.max()),
            };
            if size.max() > MAX_INTERMEDIATE && size.max() > room(chunk_size) {
                let why = format!("codec {:?} makes {} bytes of a chunk of {chunk_size}", config.id, size.max());
                return Err(Error::unsupported(format!("{why}, more than {MAX_INTERMEDIATE}")));
            }
            sizes.push(size);
            steps.push(codec);
        }
        Ok(Pipeline { steps, sizes })
    }

    /// True if stored chunks are decoded chunks.
    pub fn is_identity(&self) -> bool {
        self.steps.is_empty()
    }

    /// True if every chunk that can be encoded is decoded to just the same bytes.
    pub fn is_lossless(&self) -> bool {
        self.steps.iter().all(|step| step.is_lossless())
    }

    /// What a part of a decoded chunk takes.
    pub fn partial_decode(&self) -> PartialDecode {
        match self.steps.as_slice() {
            [] => PartialDecode::Plain,
            [step] if step.is_blosc() => PartialDecode::Blosc,
            _ => PartialDecode::No,
        }
    }

    /// Bytes that intermediate results take while a chunk is decoded or encoded: two at a time.
    pub fn scratch(&self) -> usize {
        let between = self.sizes.get(1..self.steps.len()).unwrap_or_default();
        let largest = |first| between.iter().skip(first).step_by(2).map(|size| size.max()).max().unwrap_or(0);
        largest(0).saturating_add(largest(1))
    }

    /// Bytes a stored chunk may have; more can't be right.
    pub fn max_stored(&self) -> u64 {
        match self.sizes.last() {
            Some(Size::Exact(n)) => *n as u64,
            Some(Size::AtMost(n)) => room(*n) as u64,
            None => 0,
        }
    }

    /// An error if no chunk can be stored in `len` bytes.
    pub fn check_stored_size(&self, len: u64) -> Result<()> {
        let decoded = self.sizes[0].max();
        match self.sizes.last() {
            Some(Size::Exact(n)) if len != *n as u64 => Err(Error::damaged(format!("{len} bytes, it must have {n}"))),
            _ if len == 0 && decoded > 0 => Err(Error::damaged("empty")),
            _ if len > self.max_stored() => {
                Err(Error::damaged(format!("{len} bytes, more than the {} it may have", self.max_stored())))
            }
            _ => Ok(()),
        }
    }

    /// Decodes a stored chunk into `decoded`, replacing what is there. Damaged, or out of memory.
    pub fn decode(&self, stored: &[u8], decoded: &mut Vec<u8>) -> Result<()> {
        self.decode_within(stored, decoded, memory::available_for_chunk())
    }

    /// As [`Pipeline::decode`], with at most `room` bytes for the decoded chunk and all intermediate results.
    pub fn decode_within(&self, stored: &[u8], decoded: &mut Vec<u8>, room: usize) -> Result<()> {
        with_scratch(|a, b| self.decode_steps(stored, decoded, a, b, room))?;
        if self.is_identity() {
            memory::reserve(decoded, stored.len())?;
            decoded.extend_from_slice(stored);
        }
        self.check_size(decoded.len())
    }

    /// The steps backwards, the last into `decoded`, the others into `input` and `other` in turn.
    fn decode_steps<'a>(
        &self,
        stored: &[u8],
        decoded: &mut Vec<u8>,
        mut input: &'a mut Vec<u8>,
        mut other: &'a mut Vec<u8>,
        room: usize,
    ) -> Result<()> {
        for (i, step) in self.steps.iter().enumerate().rev() {
            let left = room.saturating_sub(input.capacity());
            let from = if i + 1 == self.steps.len() { stored } else { input.as_slice() };
            let to = if i == 0 { &mut *decoded } else { &mut *other };
            decode_step(step.as_ref(), from, self.sizes[i], to, left)?;
            std::mem::swap(&mut input, &mut other);
        }
        Ok(())
    }

    /// An error unless a decoded chunk may have `len` bytes.
    pub fn check_size(&self, len: usize) -> Result<()> {
        match self.sizes[0] {
            Size::Exact(n) if n != len => Err(Error::damaged(format!("decoded to {len} bytes, the chunk has {n}"))),
            _ => Ok(()),
        }
    }

    /// Encodes a decoded chunk into `stored`, replacing what is there. [`Kind::Invalid`](crate::error::Kind) if a codec
    /// can't: because of the bytes, or of its parameters.
    pub fn encode(&self, decoded: &[u8], stored: &mut Vec<u8>) -> Result<()> {
        if self.is_identity() {
            memory::reserve(stored, decoded.len())?;
            stored.extend_from_slice(decoded);
            return Ok(());
        }
        memory::check_chunk(decoded.len().saturating_add(self.scratch()))?;
        with_scratch(|a, b| self.encode_steps(decoded, stored, a, b))
    }

    /// Returns an error if no chunk of `chunk_size` bytes can be encoded: tries one item of zeros, and the whole chunk
    /// where a codec wants more.
    pub fn check_encodes(&self, itemsize: usize, chunk_size: usize) -> Result<()> {
        let mut stored = Vec::new();
        let mut zeros = |len| self.encode(&memory::zeroed(len)?, &mut stored);
        zeros(itemsize).or_else(|_| zeros(chunk_size))
    }

    /// The steps forwards, the last into `stored`, the others into `input` and `other` in turn.
    fn encode_steps<'a>(
        &self,
        decoded: &[u8],
        stored: &mut Vec<u8>,
        mut input: &'a mut Vec<u8>,
        mut other: &'a mut Vec<u8>,
    ) -> Result<()> {
        for (i, step) in self.steps.iter().enumerate() {
            let from = if i == 0 { decoded } else { input.as_slice() };
            let to = if i + 1 == self.steps.len() { &mut *stored } else { &mut *other };
            // codecs only append: there is room for the most they can make, and what they do not need is not touched
            memory::reserve(to, step.encoded_size(from.len()).max().min(room(from.len())))?;
            step.encode(from, to).map_err(|e| Error::invalid(e.0))?;
            std::mem::swap(&mut input, &mut other);
        }
        Ok(())
    }
}

/// Calls `work` with this thread's two buffers for intermediate results.
fn with_scratch<T>(work: impl FnOnce(&mut Vec<u8>, &mut Vec<u8>) -> T) -> T {
    SCRATCH.with_borrow_mut(|(a, b)| {
        let done = work(a, b);
        memory::release(a);
        memory::release(b);
        done
    })
}

/// Room for `n` bytes as another writer may have encoded them.
fn room(n: usize) -> usize {
    n.saturating_add(n).saturating_add(SLACK)
}

fn decode_step(codec: &dyn Codec, from: &[u8], size: Size, to: &mut Vec<u8>, left: usize) -> Result<()> {
    let wanted = match size {
        Size::Exact(n) => n,
        Size::AtMost(n) => room(n),
    };
    let len = match size {
        Size::Exact(_) if wanted > left => return memory::check_chunk(wanted.max(left + 1)),
        _ => wanted.min(left),
    };
    memory::resize(to, len)?;
    let n = codec.decode(from, to).map_err(|e| match len < wanted {
        true => Error::damaged(format!("{}; there is memory for {len}: mount with a larger --cache-size", e.0)),
        false => Error::damaged(e.0),
    })?;
    match size {
        Size::Exact(_) if n == len => Ok(()),
        Size::Exact(_) => Err(Error::damaged(format!("decoded to {n} bytes where {len} are expected"))),
        Size::AtMost(_) => {
            to.truncate(n);
            // an object chunk stays in memory: it must not hold the room it might have needed
            if to.capacity() > 2 * n + SLACK {
                to.shrink_to_fit();
            }
            Ok(())
        }
    }
}
