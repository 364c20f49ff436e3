//! What can be told of a stored chunk from its size alone. It reads nothing.

use super::Array;
use crate::error::Result;
use crate::grid::ChunkId;

impl Array {
    /// An error if no chunk of the array can have so many stored bytes. Fewer than a compressor makes are not found out,
    /// and nothing is where the codecs are unknown.
    pub fn check_stored_size(&self, chunk: ChunkId, stored: u64) -> Result<()> {
        let Ok(pipeline) = &self.pipeline else { return Ok(()) };
        pipeline.check_stored_size(stored).map_err(|e| self.in_chunk(&self.chunk_key(chunk), e))
    }
}
