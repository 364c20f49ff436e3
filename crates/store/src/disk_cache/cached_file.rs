//! A cached value in a file: its name, its version, checksums and the bytes. A file that was torn
//! by a crash, truncated or changed is detected and never used.

use std::fs::File;
use std::io::{Result as IoResult, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use zarrfs_base::error::Result;
use zarrfs_base::memory;

/// First bytes of a file; the last one is the version of the format.
const MAGIC: [u8; 8] = *b"zarrfs\0\x01";

/// Size of the fixed part of the header in bytes: magic, checksum of the header, its length, and
/// the lengths of value, name and version.
const FIXED: usize = 32;

/// Number of bytes per checksum. A small block keeps the cost of reading a part low.
const BLOCK: u64 = 64 << 10;

/// Number of bytes read from a file first, which contain the header of nearly every value.
const BEGINNING: usize = 4096;

/// An open file with a cached value.
pub(super) struct CachedFile {
    file: File,
    /// Version of the value, as text.
    pub version: String,
    /// Size of the value in bytes.
    pub size: u64,
    /// Offset of the value in the file.
    start: u64,
    /// CRC-32C of each block.
    checksums: Vec<u32>,
}

impl CachedFile {
    /// Opens the value in `file`, if the file is complete and has this name.
    pub fn open(file: File, name: &str) -> Option<Self> {
        let file_size = file.metadata().ok().filter(|m| m.is_file())?.len();
        let mut header = read(&file, 0, BEGINNING.min(usize::try_from(file_size).ok()?))?;
        let len = u32_at(&header, 12)? as usize;
        if header.get(..8)? != MAGIC || len as u64 > file_size {
            return None;
        }
        if len > header.len() {
            header = read(&file, 0, len)?;
        }
        let header = header.get(..len)?;
        if crc32c::crc32c(header.get(12..)?) != u32_at(header, 8)? {
            return None;
        }
        let size = u64::from_le_bytes(*header.get(16..24)?.first_chunk()?);
        let name_len = u32_at(header, 24)? as usize;
        let version_len = u32_at(header, 28)? as usize;
        let (stored_name, rest) = header.get(FIXED..)?.split_at_checked(name_len)?;
        let (version, checksums) = rest.split_at_checked(version_len)?;
        let is_whole = file_size.checked_sub(len as u64) == Some(size);
        let is_checked = checksums.len() as u64 == 4 * size.div_ceil(BLOCK);
        if stored_name != name.as_bytes() || !is_whole || !is_checked {
            return None;
        }
        let checksums = (0..checksums.len() / 4)
            .filter_map(|i| u32_at(checksums, 4 * i))
            .collect();
        let version = std::str::from_utf8(version).ok()?.to_string();
        Some(CachedFile {
            file,
            version,
            size,
            start: len as u64,
            checksums,
        })
    }

    /// Reads the bytes of `range` into `out`, fewer if the value ends earlier. Returns `false` if
    /// the bytes are damaged.
    pub fn read(&self, range: Range<u64>, out: &mut Vec<u8>) -> Result<bool> {
        let end = range.end.min(self.size);
        let start = range.start.min(end);
        let first = start / BLOCK;
        let whole = first * BLOCK..end.next_multiple_of(BLOCK).min(self.size);
        memory::resize(out, (whole.end - whole.start) as usize)?;
        if self
            .file
            .read_exact_at(out, self.start + whole.start)
            .is_err()
        {
            return Ok(false);
        }
        let checksums = self.checksums.get(first as usize..).unwrap_or_default();
        let blocks = out.chunks(BLOCK as usize).zip(checksums);
        if out.len().div_ceil(BLOCK as usize) > checksums.len()
            || blocks
                .into_iter()
                .any(|(block, sum)| crc32c::crc32c(block) != *sum)
        {
            return Ok(false);
        }
        out.truncate((end - whole.start) as usize);
        out.drain(..(start - whole.start) as usize);
        Ok(true)
    }

    /// Returns the file.
    pub fn file(&self) -> &File {
        &self.file
    }
}

/// Returns the header of a value.
pub(super) fn header(name: &str, version: &str, value: &[u8]) -> Vec<u8> {
    let len = FIXED + name.len() + version.len() + 4 * value.len().div_ceil(BLOCK as usize);
    let mut header = Vec::with_capacity(len);
    header.extend(MAGIC);
    header.extend([0; 4]);
    header.extend((len as u32).to_le_bytes());
    header.extend((value.len() as u64).to_le_bytes());
    header.extend((name.len() as u32).to_le_bytes());
    header.extend((version.len() as u32).to_le_bytes());
    header.extend(name.as_bytes());
    header.extend(version.as_bytes());
    value
        .chunks(BLOCK as usize)
        .for_each(|block| header.extend(crc32c::crc32c(block).to_le_bytes()));
    let checksum = crc32c::crc32c(&header[12..]);
    header[8..12].copy_from_slice(&checksum.to_le_bytes());
    header
}

/// Writes header and value into an empty file.
pub(super) fn write(mut file: &File, header: &[u8], value: &[u8]) -> IoResult<()> {
    file.write_all(header)?;
    file.write_all(value)
}

fn read(file: &File, offset: u64, len: usize) -> Option<Vec<u8>> {
    let mut bytes = memory::zeroed(len).ok()?;
    file.read_exact_at(&mut bytes, offset).ok()?;
    Some(bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}
