//! Drafts of chunk files: the content of a created or truncated file before it becomes the chunk.

use crate::array::Array;
use crate::cache::Ranges;
use crate::fs::files::draft::DraftText;
use std::borrow::Cow;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use zarrfs_base::error::Result;
use zarrfs_base::memory::{self, Grant};
use zarrfs_base::spill_file::unnamed_file;
use zarrfs_store::Version;

/// Maximum size in bytes of a draft in memory, if there is memory to spare. Other drafts are in
/// unnamed files.
const IN_MEMORY: usize = 32 << 20;

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

/// The bytes of a draft.
pub enum DraftBytes {
    /// Bytes in memory.
    Memory {
        /// The bytes, up to the end of the last write.
        bytes: Vec<u8>,
        /// Grant for the memory of the bytes.
        memory: Grant,
    },
    /// An unnamed file.
    File(File),
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

impl DraftBytes {
    /// Returns the bytes as those of a file that is no draft any more, and the grant for them.
    pub fn into_text(self) -> (DraftText, Grant) {
        match self {
            DraftBytes::Memory { bytes, memory } => (DraftText::Memory(bytes), memory),
            DraftBytes::File(file) => (DraftText::File(file), Grant::default()),
        }
    }

    /// Returns an empty draft for `size` bytes, in memory if there is some to spare.
    pub fn new(size: usize, directory: &Path) -> Result<Self> {
        let mut memory = Grant::default();
        if size <= IN_MEMORY && memory::check_available().is_ok() && memory.grow(size).is_ok() {
            let mut bytes = Vec::new();
            memory::reserve(&mut bytes, size)?;
            return Ok(DraftBytes::Memory { bytes, memory });
        }
        Ok(DraftBytes::File(unnamed_file(directory)?))
    }

    /// Writes bytes, and zeros over a gap before them.
    pub fn write(&mut self, offset: usize, data: &[u8]) -> Result<()> {
        match self {
            DraftBytes::Memory { bytes, .. } => {
                let end = offset + data.len();
                if bytes.len() < end {
                    bytes.resize(end, 0);
                }
                bytes[offset..end].copy_from_slice(data);
                Ok(())
            }
            DraftBytes::File(file) => Ok(file.write_all_at(data, offset as u64)?),
        }
    }

    fn read(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        match self {
            DraftBytes::Memory { bytes, .. } => {
                out.copy_from_slice(&bytes[offset..offset + out.len()])
            }
            DraftBytes::File(file) => file.read_exact_at(out, offset as u64)?,
        }
        Ok(())
    }

    /// Returns all `size` bytes of a complete draft.
    pub fn whole(&self, size: usize) -> Result<Cow<'_, [u8]>> {
        match self {
            DraftBytes::Memory { bytes, .. } => Ok(Cow::Borrowed(bytes)),
            DraftBytes::File(_) => {
                memory::check_chunk(size)?;
                let mut bytes = memory::zeroed(size)?;
                self.read(0, &mut bytes)?;
                Ok(Cow::Owned(bytes))
            }
        }
    }
}
