//! Loading a whole chunk: reading the stored bytes, which waits for the store, and decoding them,
//! which takes a processor.

use super::{Array, NeighborBytes};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Instant;
use zarrfs_base::error::{Error, ErrorContext, Result};
use zarrfs_base::memory;
use zarrfs_format::codec::{SeekPoints, check_objects};
use zarrfs_format::grid::ChunkId;
use zarrfs_format::pipeline::Pipeline;
use zarrfs_store::{Key, Stat, StoreExt, Version};

/// Memory that a load needs beside the decoded bytes, reused by the next load.
#[derive(Default)]
pub struct Scratch {
    /// The encoded chunk or block.
    pub stored: Vec<u8>,
    /// A chunk between two codecs.
    pub other: Vec<u8>,
    /// Maximum size of a chunk of objects in bytes, encoded and decoded, if the load has reserved
    /// memory for no more.
    pub max_objects: Option<usize>,
    /// Whether [`Loaded::points`] are wanted.
    pub wants_points: bool,
}

impl Scratch {
    /// Returns the bytes of memory it takes.
    pub fn capacity(&self) -> usize {
        self.stored.capacity() + self.other.capacity()
    }
}

/// A decoded chunk and the version it came from.
pub struct Loaded {
    /// The chunk in C layout, [`Grid::chunk_size`](zarrfs_format::grid::Grid::chunk_size) bytes.
    /// Chunks of objects have any size.
    pub bytes: Vec<u8>,
    /// The version of the stored bytes.
    pub version: Version,
    /// The number of stored bytes.
    pub stored: u64,
    /// The seek points of the stored bytes, if they are wanted and there are any.
    pub points: Option<SeekPoints>,
}

/// A chunk that was read and is not yet decoded.
pub struct Fetched<'a> {
    chunk: ChunkId,
    /// The encoded bytes; `None` if they are in the scratch memory.
    encoded: Option<&'a [u8]>,
    /// A buffer for the decoded bytes, or the decoded bytes themselves if no codec changes them.
    bytes: Vec<u8>,
    version: Version,
    stored: u64,
}

impl Array {
    /// Reads and decodes a chunk, into `buffer` if that has the capacity. Returns `None` if the
    /// chunk is uninitialized.
    ///
    /// # Errors
    ///
    /// Fails if the store fails, if the stored bytes are damaged, or without memory. The error
    /// names the key.
    pub fn load(
        &self,
        chunk: ChunkId,
        buffer: Vec<u8>,
        scratch: &mut Scratch,
    ) -> Result<Option<Loaded>> {
        self.fetch(chunk, buffer, None, scratch)?
            .map(|fetched| self.decode_fetched(fetched, scratch))
            .transpose()
    }

    /// Reads a chunk: the half of [`Array::load`] that waits for the store, unless the bytes are in
    /// `neighbors`.
    pub fn fetch<'a>(
        &self,
        chunk: ChunkId,
        buffer: Vec<u8>,
        neighbors: Option<&NeighborBytes<'a>>,
        scratch: &mut Scratch,
    ) -> Result<Option<Fetched<'a>>> {
        let pipeline = self.pipeline_of(chunk)?;
        let mut bytes = buffer;
        self.check_memory()?;
        // an encoded chunk may be larger than the decoded one, but not larger than the memory for
        // it
        let limit = pipeline
            .max_stored()
            .min(self.memory_limit(scratch.max_objects) as u64);
        let is_plain = pipeline.is_identity();
        if let Some(neighbors) = neighbors
            && let Some((version, encoded)) = self.in_neighbors(chunk, limit, neighbors)?
        {
            let stored = encoded.len() as u64;
            self.stored_size.store(stored, Ordering::Relaxed);
            if is_plain {
                memory::reserve(&mut bytes, encoded.len())?;
                bytes.extend_from_slice(encoded);
            }
            return Ok(Some(Fetched {
                chunk,
                encoded: Some(encoded),
                bytes,
                version,
                stored,
            }));
        }
        let stored = if is_plain {
            &mut bytes
        } else {
            &mut scratch.stored
        };
        let got = self.chunks.get(self, chunk, limit, stored)?;
        let Some(version) = got else { return Ok(None) };
        let stored = stored.len() as u64;
        self.record_stored(stored, &version);
        Ok(Some(Fetched {
            chunk,
            encoded: None,
            bytes,
            version,
            stored,
        }))
    }

    /// Calls the store for the value at `key`, counts the time, and adds the key to an error.
    pub(super) fn timed<T>(&self, key: &Key, call: impl FnOnce() -> Result<T>) -> Result<T> {
        let start = Instant::now();
        let done = call();
        self.stats.store_time.add_since(start);
        done.context(key)
    }

    /// Reads a range of the value at `key` as [`StoreExt::get_range`] does.
    pub(super) fn timed_range(
        &self,
        key: &Key,
        range: Range<u64>,
        out: &mut Vec<u8>,
    ) -> Result<Option<Stat>> {
        let got = self.timed(key, || self.store.get_range(key, range, out))?;
        self.stats.bytes_stored.add(out.len() as u64);
        Ok(got)
    }

    /// Decodes a chunk: the half of [`Array::load`] that takes a processor. `scratch` is that of
    /// [`Array::fetch`].
    pub fn decode_fetched(&self, fetched: Fetched, scratch: &mut Scratch) -> Result<Loaded> {
        let Fetched {
            chunk,
            encoded,
            mut bytes,
            version,
            stored,
        } = fetched;
        let pipeline = self.pipeline_of(chunk)?;
        let start = Instant::now();
        let done = if pipeline.is_identity() {
            pipeline.check_size(bytes.len()).map(|()| None)
        } else {
            self.decode(&pipeline, encoded, &mut bytes, scratch)
        };
        self.stats.codec_time.add_since(start);
        let points = done.map_err(|e| {
            let stored = if pipeline.is_identity() {
                &bytes
            } else {
                encoded.unwrap_or(&scratch.stored)
            };
            self.undecodable(chunk, stored, e)
        })?;
        self.stats.decodes.add(1);
        self.stats.add_decoded(bytes.len());
        Ok(Loaded {
            bytes,
            version,
            stored,
            points,
        })
    }

    /// Decodes `encoded`, or else the stored bytes in `scratch`, into `bytes`, C layout. Returns
    /// their seek points if `scratch` says that they are wanted.
    pub(super) fn decode(
        &self,
        pipeline: &Pipeline,
        encoded: Option<&[u8]>,
        bytes: &mut Vec<u8>,
        scratch: &mut Scratch,
    ) -> Result<Option<SeekPoints>> {
        let Scratch {
            stored,
            other,
            max_objects,
            wants_points,
        } = scratch;
        let encoded = encoded.unwrap_or(stored);
        let limit = self
            .memory_limit(*max_objects)
            .saturating_sub(encoded.len());
        #[cfg(debug_assertions)]
        zarrfs_sandbox::probe::attempt();
        pipeline.decode_within(encoded, bytes, other, limit, *wants_points)
    }

    /// Returns the bytes of memory available for a chunk; for one of objects at most `max_objects`.
    fn memory_limit(&self, max_objects: Option<usize>) -> usize {
        let max = max_objects
            .filter(|_| self.metadata.has_objects())
            .unwrap_or(usize::MAX);
        memory::available_for_chunk().min(max)
    }

    /// Checks that a chunk can have `stored` bytes in the store. A compressed chunk that is too
    /// short goes unnoticed, and so does any size if the codecs are unknown.
    ///
    /// # Errors
    ///
    /// Fails if no chunk of the array encodes to that size.
    pub fn check_stored_size(&self, chunk: ChunkId, stored: u64) -> Result<()> {
        let Ok(pipeline) = self.pipeline_of(chunk) else {
            return Ok(());
        };
        pipeline
            .check_stored_size(stored)
            .map_err(|e| self.in_chunk(chunk, e))
    }

    /// Checks a decoded chunk of objects. Chunks of other types always pass.
    ///
    /// # Errors
    ///
    /// Fails if the object codec cannot have made the bytes.
    pub fn check_objects(&self, chunk: ChunkId, decoded: &[u8]) -> Result<()> {
        let Some(config) = self.metadata.object_codec() else {
            return Ok(());
        };
        let checked = check_objects(config, decoded, self.chunk_shape(chunk).iter().product());
        checked.map_err(|e| self.in_chunk(chunk, Error::damaged(e.0)))
    }
}
