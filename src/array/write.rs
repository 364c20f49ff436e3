//! Storing a chunk: encoding it whole, and replacing the stored value. When a chunk is stored is decided in `cache`.

use super::{Array, Scratch};
use crate::error::{Error, Kind, Result};
use crate::store::{Replaces, Version};
use crate::util::memory;
use crate::zarr::codec::Pipeline;
use crate::zarr::grid::ChunkId;
use crate::zarr::layout;
use std::time::Instant;

impl Array {
    /// Checks that chunks can be stored.
    ///
    /// # Errors
    ///
    /// Fails if the store is read-only, if a codec cannot encode, or without memory for a chunk.
    pub fn writable(&self) -> Result<()> {
        self.store.check_writable(&self.key).map_err(|e| e.context(&self.key))?;
        let pipeline = self.pipeline()?;
        if self.shards.is_some() {
            return Err(self.in_shards());
        }
        // a write that is accepted must not fail to be encoded later
        memory::check_chunk(self.chunk_memory()).map_err(|e| e.context(&self.key))?;
        self.encodable.get_or_init(|| self.try_encode(pipeline)).clone()
    }

    /// Encodes zeros to find out whether the codecs can encode.
    fn try_encode(&self, pipeline: &Pipeline) -> Result<()> {
        if self.metadata.has_objects() {
            return Ok(());
        }
        pipeline.check_encodes(self.metadata.dtype.size(), self.grid.chunk_size()).map_err(|e| {
            let codecs = self.codec_names();
            Error::new(Kind::ReadOnly, format!("{codecs}: {e}: chunks can be read, not written")).context(&self.key)
        })
    }

    /// Returns whether a chunk that was stored may read back with other bytes.
    pub fn is_lossy(&self) -> bool {
        self.pipeline.as_ref().is_ok_and(|pipeline| !pipeline.is_lossless())
    }

    /// Encodes the bytes of a chunk, C layout, and stores them in place of whatever is stored.
    ///
    /// # Errors
    ///
    /// Fails if a codec or the store fails. The error names the key.
    pub fn store(&self, chunk: ChunkId, bytes: &[u8], scratch: &mut Scratch) -> Result<Version> {
        let put = self.store_if(chunk, bytes, Replaces::Anything, scratch)?;
        put.ok_or_else(|| Error::system(libc::EIO).context(self.extent(chunk)))
    }

    /// Stores a chunk like [`Array::store`] if the store holds what `replaces` says; else it returns `None`.
    pub fn store_if(
        &self,
        chunk: ChunkId,
        bytes: &[u8],
        replaces: Replaces,
        scratch: &mut Scratch,
    ) -> Result<Option<Version>> {
        let pipeline = self.pipeline()?;
        if self.shards.is_some() {
            return Err(self.in_shards());
        }
        self.settle_separator()?;
        let key = self.extent(chunk).key;
        if !self.metadata.has_objects() && bytes.len() != self.grid.chunk_size() {
            let size = self.grid.chunk_size();
            return Err(Error::invalid(format!("{} bytes for a chunk of {size}", bytes.len())).context(key));
        }
        let start = Instant::now();
        let encoded = self.encode(pipeline, bytes, scratch);
        self.stats.codec_time.add_since(start);
        let encoded = encoded.map_err(|e| self.in_chunk(chunk, e))?;
        self.stats.encodes.add(1);
        let start = Instant::now();
        let put = self.store.put_if(&key, encoded, replaces);
        self.stats.store_time.add_since(start);
        let Some(version) = put.map_err(|e| e.context(&key))? else { return Ok(None) };
        self.stats.stores.add(1);
        self.stats.bytes_written.add(encoded.len() as u64);
        Ok(Some(version))
    }

    /// Returns the encoded form of `bytes`: `bytes` themselves, or a buffer of `scratch`.
    fn encode<'a>(&self, pipeline: &Pipeline, bytes: &'a [u8], scratch: &'a mut Scratch) -> Result<&'a [u8]> {
        let mut plain = bytes;
        if self.is_transposed() {
            memory::resize(&mut scratch.other, bytes.len())?;
            layout::c_to_f(&self.metadata.chunks, self.metadata.dtype.size(), bytes, &mut scratch.other);
            plain = &scratch.other;
        }
        if pipeline.is_identity() {
            return Ok(plain);
        }
        pipeline.encode(plain, &mut scratch.stored)?;
        Ok(&scratch.stored)
    }

    /// Returns when every chunk that was stored or erased before survives a power loss.
    pub fn sync(&self) -> Result<()> {
        self.store.sync().map_err(|e| e.context(&self.key))
    }
}
