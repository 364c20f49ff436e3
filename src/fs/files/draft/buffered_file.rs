//! An unnamed file whose last written bytes wait in memory. A write to a file may block, and needs
//! a thread that may: netCDF-C writes 8 KiB at a time, and reads as much before each write. This
//! module must not know what the bytes are.
//!
//! **The bytes of the buffer take precedence over the bytes of the file.** A caller that needs the
//! file itself calls [`BufferedFile::complete`], which empties the buffer first.

use rustix::io::{ReadWriteFlags, preadv2};
use std::fs::File;
use std::io::IoSliceMut;
use std::os::unix::fs::FileExt;
use zarrfs_base::error::Result;
use zarrfs_base::memory::{self, Grant};

/// Size of the buffer in bytes.
const CAPACITY: usize = 256 << 10;

/// Maximum size in bytes of a write that the buffer takes.
const SMALL: usize = 64 << 10;

/// A file and a buffer of its last small writes, each of which continues or overwrites the ones
/// before.
pub struct BufferedFile {
    file: File,
    /// Offset of the buffer in the file in bytes.
    begin: u64,
    /// Bytes that the file lacks.
    buffer: Vec<u8>,
    /// Grant for the memory of the buffer.
    memory: Grant,
}

impl BufferedFile {
    /// Buffers writes to a file.
    pub fn new(file: File) -> Self {
        BufferedFile {
            file,
            begin: 0,
            buffer: Vec::new(),
            memory: Grant::default(),
        }
    }

    /// Writes to the buffer alone. Returns `false` if there is none, the bytes are too many, or
    /// have no place beside the bytes in the buffer.
    pub fn try_write(&mut self, offset: u64, data: &[u8]) -> bool {
        if data.len() > SMALL || self.memory.bytes() == 0 {
            return false;
        }
        if self.buffer.is_empty() {
            self.begin = offset;
        }
        let Some(at) = offset.checked_sub(self.begin) else {
            return false;
        };
        let at = at as usize;
        let filled = self.buffer.len();
        if at > filled || at + data.len() > CAPACITY {
            return false;
        }
        let over = data.len().min(filled - at);
        self.buffer[at..at + over].copy_from_slice(&data[..over]);
        self.buffer.extend_from_slice(&data[over..]);
        true
    }

    /// Writes bytes, and zeros over a gap before them. The call may block, also if the buffer takes
    /// the bytes.
    ///
    /// # Errors
    ///
    /// The file system refuses the bytes, or the bytes of the buffer, which stay there.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        if data.len() <= SMALL {
            self.reserve();
        }
        if self.try_write(offset, data) {
            return Ok(());
        }
        self.empty_buffer()?;
        if self.try_write(offset, data) {
            return Ok(());
        }
        Ok(self.file.write_all_at(data, offset)?)
    }

    /// Makes a buffer if there is memory to spare.
    fn reserve(&mut self) {
        if self.memory.bytes() == 0
            && memory::check_available().is_ok()
            && self.memory.grow(CAPACITY).is_ok()
            && memory::reserve(&mut self.buffer, CAPACITY).is_err()
        {
            self.memory = Grant::default();
        }
    }

    fn empty_buffer(&mut self) -> Result<()> {
        self.file.write_all_at(&self.buffer, self.begin)?;
        self.buffer.clear();
        Ok(())
    }

    /// Reads bytes that are all in the buffer, or in the kernel's pages of the file. Returns
    /// `false` if a read may have to wait.
    pub fn try_read(&self, offset: u64, out: &mut [u8]) -> bool {
        let filled = self.begin..self.begin + self.buffer.len() as u64;
        if filled.end <= offset || offset + out.len() as u64 <= filled.start {
            let len = out.len();
            let mut parts = [IoSliceMut::new(out)];
            return preadv2(&self.file, &mut parts, offset, ReadWriteFlags::NOWAIT) == Ok(len);
        }
        let at = offset.checked_sub(filled.start).map(|at| at as usize);
        let bytes = at.and_then(|at| self.buffer.get(at..at.checked_add(out.len())?));
        bytes.is_some_and(|bytes| {
            out.copy_from_slice(bytes);
            true
        })
    }

    /// Reads bytes that were written.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let filled = self.begin..self.begin + self.buffer.len() as u64;
        let end = offset + out.len() as u64;
        let from = filled.start.max(offset);
        let to = filled.end.min(end);
        if from >= to {
            return Ok(self.file.read_exact_at(out, offset)?);
        }
        let (before, rest) = out.split_at_mut((from - offset) as usize);
        let (within, after) = rest.split_at_mut((to - from) as usize);
        self.file.read_exact_at(before, offset)?;
        within.copy_from_slice(&self.buffer[(from - self.begin) as usize..][..within.len()]);
        Ok(self.file.read_exact_at(after, to)?)
    }

    /// Cuts the file off at `len` bytes, or appends zeros.
    ///
    /// # Errors
    ///
    /// Those of [`BufferedFile::complete`].
    pub fn set_len(&mut self, len: u64) -> Result<()> {
        Ok(self.complete()?.set_len(len)?)
    }

    /// Returns the file, which has all bytes.
    ///
    /// # Errors
    ///
    /// The file system refuses the bytes of the buffer, which stay there.
    pub fn complete(&mut self) -> Result<&File> {
        self.empty_buffer()?;
        Ok(&self.file)
    }

    /// Returns the file, which has all bytes, and gives up the buffer.
    ///
    /// # Errors
    ///
    /// Those of [`BufferedFile::complete`].
    pub fn flushed(&mut self) -> Result<&File> {
        self.empty_buffer()?;
        self.buffer = Vec::new();
        self.memory = Grant::default();
        Ok(&self.file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever is written, read and flushed, the content is that of plain bytes.
        #[test]
        fn a_buffered_file_holds_what_was_written(
            steps in proptest::collection::vec((0u8..8, 0u64..400_000, 1usize..100_000), 1..60),
        ) {
            let mut buffered = BufferedFile::new(tempfile::tempfile().unwrap());
            let mut plain: Vec<u8> = Vec::new();
            let mut next = 0;
            for (n, (kind, offset, len)) in steps.into_iter().enumerate() {
                let len = if kind < 6 { len % 9000 + 1 } else { len };
                let offset = match kind {
                    // the write continues the one before
                    0..=2 => next,
                    4 => offset as usize % (plain.len() + 1),
                    _ => offset as usize,
                };
                match kind {
                    0..=3 | 6 => {
                        let data = vec![n as u8 + 1; len];
                        let end = offset + len;
                        if kind > 3 || !buffered.try_write(offset as u64, &data) {
                            buffered.write(offset as u64, &data).unwrap();
                        }
                        plain.resize(plain.len().max(end), 0);
                        plain[offset..end].copy_from_slice(&data);
                        next = end;
                    }
                    4 => {
                        let mut out = vec![0; len];
                        let is_read = buffered.try_read(offset as u64, &mut out)
                            || buffered.read(offset as u64, &mut out).is_ok();
                        if is_read {
                            prop_assert_eq!(&out[..], &plain[offset..offset + len]);
                        }
                    }
                    5 => drop(buffered.flushed().unwrap()),
                    _ => {
                        buffered.set_len(offset as u64).unwrap();
                        plain.resize(offset, 0);
                    }
                }
            }
            let file = buffered.flushed().unwrap();
            let mut found = vec![0; plain.len()];
            file.read_exact_at(&mut found, 0).unwrap();
            prop_assert!(found == plain && file.metadata().unwrap().len() == plain.len() as u64);
        }
    }

    #[test]
    fn bytes_that_cannot_be_written_stay_in_the_buffer() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, "").unwrap();
        let mut buffered = BufferedFile::new(File::open(&path).unwrap());
        buffered.write(0, b"first").unwrap();
        assert!(buffered.flushed().is_err() && buffered.set_len(0).is_err());
        assert!(buffered.write(100, b"apart").is_err());
        let mut out = [0; 5];
        assert!(buffered.try_read(0, &mut out) && out == *b"first");
    }
}
