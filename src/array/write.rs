//! Storing chunks: encoded whole, and put whole. What is stored is what a reader of the store finds at once; what makes
//! a chunk dirty, and when it is stored, is not known here.

use super::{Array, Scratch};
use crate::error::{Error, Kind, Result};
use crate::store::{KeyLock, Replaces, Version};
use crate::util::memory;
use crate::zarr::codec::Pipeline;
use crate::zarr::grid::ChunkId;
use crate::zarr::layout;
use crate::zarr::metadata::Separator;
use std::time::Instant;

/// A chunk's lock, held until it is dropped.
pub type ChunkLock = KeyLock;

impl Array {
    /// An error unless chunks can be stored: the store may not be written, or a codec can decode but not encode.
    pub fn writable(&self) -> Result<()> {
        self.store.check_writable(&self.key).map_err(|e| e.context(&self.key))?;
        let pipeline = self.pipeline()?;
        // what could not be encoded must not be taken
        memory::check_chunk(self.chunk_memory()).map_err(|e| e.context(&self.key))?;
        self.encodable.get_or_init(|| self.try_encode(pipeline)).clone()
    }

    /// Tries to encode zeros.
    fn try_encode(&self, pipeline: &Pipeline) -> Result<()> {
        if self.metadata.has_objects() {
            return Ok(());
        }
        pipeline.check_encodes(self.metadata.dtype.size(), self.grid.chunk_size()).map_err(|e| {
            let codecs = self.codec_names();
            Error::new(Kind::ReadOnly, format!("{codecs}: {e}: chunks can be read, not written")).context(&self.key)
        })
    }

    /// True if what is read back after a store may differ from what was written.
    pub fn is_lossy(&self) -> bool {
        self.pipeline.as_ref().is_ok_and(|pipeline| !pipeline.is_lossless())
    }

    /// Encodes the bytes of a chunk, C layout, and puts them into the store in place of what is there. The answer is of
    /// what was put. Errors name the key and the cause.
    pub fn store(&self, chunk: ChunkId, bytes: &[u8], scratch: &mut Scratch) -> Result<Version> {
        let put = self.store_if(chunk, bytes, Replaces::Anything, scratch)?;
        put.ok_or_else(|| Error::system(libc::EIO).context(self.chunk_key(chunk)))
    }

    /// As [`Array::store`], but only while what is there is what `replaces` says: None if it isn't.
    pub fn store_if(
        &self,
        chunk: ChunkId,
        bytes: &[u8],
        replaces: Replaces,
        scratch: &mut Scratch,
    ) -> Result<Option<Version>> {
        let pipeline = self.pipeline()?;
        self.settle_separator()?;
        let key = self.chunk_key(chunk);
        if !self.metadata.has_objects() && bytes.len() != self.grid.chunk_size() {
            let size = self.grid.chunk_size();
            return Err(Error::invalid(format!("{} bytes for a chunk of {size}", bytes.len())).context(key));
        }
        let start = Instant::now();
        let encoded = self.encode(pipeline, bytes, scratch);
        self.stats.codec_time.add_since(start);
        let encoded = encoded.map_err(|e| self.in_chunk(&key, e))?;
        self.stats.encodes.add(1);
        let start = Instant::now();
        let put = self.store.put_if(&key, encoded, replaces);
        self.stats.store_time.add_since(start);
        let Some(version) = put.map_err(|e| e.context(&key))? else { return Ok(None) };
        self.stats.stores.add(1);
        self.stats.bytes_written.add(encoded.len() as u64);
        Ok(Some(version))
    }

    /// What is to be stored for `bytes`: they themselves, or what `scratch` holds then.
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

    /// Waits for the lock that other writers take before they read, change and store a chunk; to be held while that is
    /// done here. Nothing where the store has no such locks.
    pub fn lock_chunk(&self, chunk: ChunkId) -> Result<ChunkLock> {
        self.lock_chunk_since(chunk, Instant::now())
    }

    /// Waits like [`Array::lock_chunk`], but counts the wait from `since`: a caller that has waited for other callers
    /// doesn't wait as long again.
    pub fn lock_chunk_since(&self, chunk: ChunkId, since: Instant) -> Result<ChunkLock> {
        self.settle_separator()?;
        self.store.lock(&self.chunk_key(chunk), since)
    }

    /// Makes a chunk uninitialised; false if it was.
    pub fn erase(&self, chunk: ChunkId) -> Result<bool> {
        let key = self.chunk_key(chunk);
        self.store.delete(&key).map_err(|e| e.context(&key))
    }

    /// Returns when every chunk stored or erased before survives a power loss.
    pub fn sync(&self) -> Result<()> {
        self.store.sync().map_err(|e| e.context(&self.key))
    }

    /// What we store tells the separator from now on, unless another writer's chunks already do.
    fn settle_separator(&self) -> Result<()> {
        self.detect_separator().map_err(|e| e.context(&self.key))?;
        self.separator.get_or_init(|| Separator::Dot);
        Ok(())
    }
}
