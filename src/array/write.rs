//! Storing a chunk: encoding it whole, and putting it. `cache` decides when.

use super::{Array, EncodedChunk, Scratch, WriteBack};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{Duration, Instant};
use zarrfs_base::error::{Error, ErrorContext, Kind, Result};
use zarrfs_base::memory;
use zarrfs_format::grid::ChunkId;
use zarrfs_format::pipeline::Pipeline;
use zarrfs_store::{Replaces, Version};

/// Maximum number of attempts to replace a chunk or an object while other writers replace it.
pub const MAX_ATTEMPTS: u32 = 64;

impl Array {
    /// Checks that chunks can be stored.
    ///
    /// # Errors
    ///
    /// The errors of [`Array::encodable`], and ENOMEM without memory for the encoder.
    pub fn writable(&self) -> Result<()> {
        let needed = self.chunk_memory().saturating_add(self.encoder_memory());
        memory::make_room(needed);
        self.encodable()?;
        memory::check_chunk(needed).context(&self.key)
    }

    /// Checks that chunks can be stored, perhaps by a program with more memory for its encoder.
    ///
    /// # Errors
    ///
    /// Fails if the store is read-only, if a codec cannot encode, or without memory for a chunk.
    pub fn encodable(&self) -> Result<()> {
        self.store.check_writable(&self.key).context(&self.key)?;
        let pipeline = self.pipeline()?;
        // a write that is accepted must not fail to be encoded later
        memory::check_chunk(self.chunk_memory()).context(&self.key)?;
        self.chunks.check_storable(self).context(&self.key)?;
        self.encodable
            .get_or_init(|| self.try_encode(pipeline))
            .clone()
    }

    /// Checks that a document may define the array: its chunks can be read and stored. Objects of
    /// several chunks may need a program with more memory to be stored.
    ///
    /// # Errors
    ///
    /// Those of [`Array::readable`] and [`Array::encodable`].
    pub fn creatable(&self) -> Result<()> {
        self.readable()?;
        if self.chunks.share_objects() {
            Ok(())
        } else {
            self.encodable()
        }
    }

    /// Encodes zeros to find out whether the codecs can encode.
    fn try_encode(&self, pipeline: &Pipeline) -> Result<()> {
        if self.metadata.has_objects() {
            return Ok(());
        }
        pipeline
            .check_encodes(self.metadata.dtype.size(), self.grid.max_chunk_size())
            .map_err(|e| {
                let codecs = self.codec_names();
                Error::new(
                    Kind::ReadOnly,
                    format!("{codecs}: {e}: chunks can be read, not written"),
                )
                .context(&self.key)
            })
    }

    /// Returns whether a chunk that was stored may read back with other bytes.
    pub fn is_lossy(&self) -> bool {
        self.pipeline()
            .is_ok_and(|pipeline| !pipeline.is_lossless())
    }

    /// Encodes the bytes of a chunk, C layout, and stores them unconditionally. A chunk that waits
    /// for its object is stored by [`Array::store_objects`].
    ///
    /// # Errors
    ///
    /// Fails if a codec or the store fails. The error names the key.
    pub fn store(&self, chunk: ChunkId, bytes: &[u8], scratch: &mut Scratch) -> Result<Version> {
        let encoded = self.encode_chunk(chunk, bytes, scratch)?;
        let new = EncodedChunk {
            bytes: encoded,
            written: None,
            replaces: Replaces::Anything,
        };
        self.store_if(chunk, new, WriteBack::unconfirmed())?
            .ok_or_else(|| Error::system(libc::EIO).context(self.stored_key(chunk)))
    }

    /// Stores an encoded chunk like [`Array::store`]. Returns `None`, with nothing stored, if the
    /// stored value is one that may not be replaced.
    pub fn store_if(
        &self,
        chunk: ChunkId,
        new: EncodedChunk,
        how: WriteBack,
    ) -> Result<Option<Version>> {
        self.settle_separator()?;
        let put = self.chunks.put_if(self, chunk, new, how)?;
        self.stats.stores.add(u64::from(put.is_some()));
        Ok(put)
    }

    /// Confirms the array's document and calls `attempt`, which replaces the object of a chunk,
    /// until it returns true. It returns false if another writer has replaced the object meanwhile.
    /// Waits between two attempts for a random time, longer with each, so that two writers don't
    /// keep overtaking each other.
    ///
    /// # Errors
    ///
    /// EAGAIN after [`MAX_ATTEMPTS`]; `unless` says when there is no other writer.
    pub fn replace_repeatedly(
        &self,
        chunk: ChunkId,
        unless: &str,
        how: WriteBack,
        mut attempt: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        for n in 0..MAX_ATTEMPTS {
            if how.losses.is_some() {
                self.confirm(true)?;
            }
            if attempt()? {
                return Ok(());
            }
            let random = RandomState::new().build_hasher().finish();
            std::thread::sleep(Duration::from_micros(random % (1000 << n.min(8))));
        }
        let why = format!("another writer replaces it again and again{unless}");
        Err(Error::system(libc::EAGAIN)
            .context(why)
            .context(self.stored_key(chunk)))
    }

    /// Returns the encoded form of a chunk, C layout.
    ///
    /// # Errors
    ///
    /// Fails if a codec fails. The error names the key.
    pub fn encode_chunk<'a>(
        &self,
        chunk: ChunkId,
        bytes: &'a [u8],
        scratch: &'a mut Scratch,
    ) -> Result<&'a [u8]> {
        let pipeline = self.pipeline_of(chunk)?;
        let size = self.grid.chunk_size(chunk);
        if !self.metadata.has_objects() && bytes.len() != size {
            return Err(
                Error::invalid(format!("{} bytes for a chunk of {size}", bytes.len()))
                    .context(self.stored_key(chunk)),
            );
        }
        let start = Instant::now();
        let encoded = self.encode(&pipeline, bytes, scratch);
        self.stats.codec_time.add_since(start);
        let encoded = encoded.map_err(|e| self.in_chunk(chunk, e))?;
        self.stats.encodes.add(1);
        Ok(encoded)
    }

    /// Returns the encoded form of `bytes`: `bytes` themselves, or a buffer of `scratch`.
    fn encode<'a>(
        &self,
        pipeline: &Pipeline,
        bytes: &'a [u8],
        scratch: &'a mut Scratch,
    ) -> Result<&'a [u8]> {
        if pipeline.is_identity() {
            return Ok(bytes);
        }
        pipeline.encode_with(bytes, &mut scratch.stored, &mut scratch.other)?;
        Ok(&scratch.stored)
    }
}
