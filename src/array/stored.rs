//! What can be told of a stored chunk from its size alone, and of a decoded one of objects from theirs. It reads nothing.

use super::Array;
use crate::error::{Error, Result};
use crate::zarr::codec::check_objects;
use crate::zarr::grid::ChunkId;

impl Array {
    /// An error if no chunk of the array can have so many stored bytes. Fewer than a compressor makes are not found out,
    /// and nothing is where the codecs are unknown.
    pub fn check_stored_size(&self, chunk: ChunkId, stored: u64) -> Result<()> {
        let Ok(pipeline) = &self.pipeline else { return Ok(()) };
        pipeline.check_stored_size(stored).map_err(|e| self.in_chunk(&self.chunk_key(chunk), e))
    }

    /// An error if a decoded chunk of objects can't be what their codec made. Nothing is found out in chunks of others.
    pub fn check_objects(&self, chunk: ChunkId, decoded: &[u8]) -> Result<()> {
        let Some(config) = self.metadata.object_codec() else { return Ok(()) };
        let checked = check_objects(config, decoded, self.metadata.chunks.iter().product());
        checked.map_err(|e| self.in_chunk(&self.chunk_key(chunk), Error::damaged(e.0)))
    }
}
