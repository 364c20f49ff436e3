//! The bytes of a draft, in memory or in an unnamed file.

use super::buffered_file::BufferedFile;
use std::borrow::Cow;
use std::path::Path;
use zarrfs_base::error::{Error, Kind, Result};
use zarrfs_base::memory::{self, Grant};
use zarrfs_base::spill_file::unnamed_file;

/// Maximum size in bytes of a draft of a chunk in memory, if there is memory to spare. Larger ones
/// are in unnamed files.
const IN_MEMORY: usize = 32 << 20;

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
    File(BufferedFile),
}

impl DraftBytes {
    /// Returns an empty draft for `size` bytes, in memory if there is some to spare.
    pub fn new(size: usize, directory: &Path) -> Result<Self> {
        let mut memory = Grant::default();
        if size <= IN_MEMORY && memory::check_available().is_ok() && memory.grow(size).is_ok() {
            let mut bytes = Vec::new();
            memory::reserve(&mut bytes, size)?;
            return Ok(DraftBytes::Memory { bytes, memory });
        }
        let file = unnamed_file(directory)?;
        Ok(DraftBytes::File(BufferedFile::new(file)))
    }

    /// Returns the bytes in memory; an empty slice for a file.
    pub fn bytes(&self) -> &[u8] {
        match self {
            DraftBytes::Memory { bytes, .. } => bytes,
            DraftBytes::File(_) => &[],
        }
    }

    /// Cuts the bytes off at `len`, or appends zeros.
    ///
    /// # Errors
    ///
    /// EFBIG beyond the available memory.
    pub fn resize(&mut self, len: usize) -> Result<()> {
        let (bytes, memory) = match self {
            DraftBytes::Memory { bytes, memory } => (bytes, memory),
            DraftBytes::File(file) => return file.set_len(len as u64),
        };
        let before = memory.bytes();
        let counted = memory
            .grow(len.saturating_sub(before))
            .and_then(|()| memory::check_available());
        counted.map_err(|e| {
            memory.shrink_to(before);
            let errno = if e.kind() == Kind::Damaged {
                libc::EFBIG
            } else {
                e.errno()
            };
            Error::new(Kind::System(errno), e.message())
        })?;
        bytes
            .try_reserve(len.saturating_sub(bytes.len()))
            .map_err(|_| Error::system(libc::ENOMEM))?;
        bytes.resize(len, 0);
        Ok(())
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
            DraftBytes::File(file) => file.write(offset as u64, data),
        }
    }

    /// Reads bytes that were written.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        match self {
            DraftBytes::Memory { bytes, .. } => {
                out.copy_from_slice(&bytes[offset..offset + out.len()])
            }
            DraftBytes::File(file) => file.read(offset as u64, out)?,
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
