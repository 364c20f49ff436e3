//! Drafts of chunk files: the content of a created or truncated file before it becomes the chunk.

use crate::array::Array;
use crate::cache::Ranges;
use crate::fs::files::draft::DraftBytes;
use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;
use zarrfs_base::error::Result;
use zarrfs_store::Version;

/// The future content of a chunk file that was created or truncated.
#[derive(Default)]
pub struct ChunkDraft {
    /// Whether the file was created. If it is closed without a write, the chunk gets fill values.
    pub is_created: bool,
    /// Version of the fill-value chunk that `store_created` has stored; `None` if there is none.
    pub filled: Option<Version>,
    /// The bytes; `None` until something is written.
    pub bytes: Option<DraftBytes>,
    /// The array that the program wrote the bytes for.
    pub array: Option<Arc<Array>>,
    /// The written ranges.
    pub written: Ranges,
    /// Whether a write went beyond the end.
    pub is_too_long: bool,
}

impl ChunkDraft {
    /// Returns whether reading or writing the bytes may wait for a disk.
    pub fn is_on_disk(&self) -> bool {
        !matches!(self.bytes, Some(DraftBytes::Memory { .. }))
    }

    /// Returns the bytes of a draft that was written without a gap from its beginning, and not
    /// beyond its end.
    pub fn content(&self) -> Option<Result<Cow<'_, [u8]>>> {
        let len = self.written.len();
        let is_whole = !self.is_too_long && self.written.iter().all(|range| range.end <= len);
        let bytes = self.bytes.as_ref().filter(|_| is_whole)?;
        Some(bytes.whole(len))
    }

    /// Writes `data` at `offset`, within the `size` bytes of the chunk. The first write reserves
    /// memory for all of them, or makes a file in `directory`.
    pub fn write(
        &mut self,
        array: &Arc<Array>,
        size: usize,
        directory: &Path,
        offset: usize,
        data: &[u8],
    ) -> Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        let bytes = match &mut self.bytes {
            Some(bytes) => bytes,
            None => {
                self.array = Some(array.clone());
                self.bytes.insert(DraftBytes::new(size, directory)?)
            }
        };
        bytes.write(offset, data)?;
        self.written.add(offset..offset + data.len());
        Ok(())
    }

    /// Copies the written ranges of the draft into `out`, which holds the chunk's bytes from
    /// `offset` on.
    pub fn overlay(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        let Some(bytes) = &self.bytes else {
            return Ok(());
        };
        let end = offset + out.len();
        for range in self.written.iter() {
            let from = range.start.max(offset);
            let to = range.end.min(end);
            if from < to {
                bytes.read(from, &mut out[from - offset..to - offset])?;
            }
        }
        Ok(())
    }
}
