//! Writes a zip archive, as specified by PKWARE's APPNOTE.TXT 6.3.10: members are stored as they
//! are, one after the other, and then the central directory. All sizes and offsets are in zip64
//! fields, so that no member differs in form from another one. Equal values give equal archives:
//! the time of all members is the first that the format can state.

use std::fs::File;
use std::os::unix::fs::FileExt;
use zarrfs_base::error::{Error, Result};
use zarrfs_store::{Key, Store, ValueStart, copy_range};

/// The version of the format that has zip64 fields, 4.5, and the system that made the archive,
/// Unix, whose modes the central directory states.
const VERSION: u16 = 45;
const MADE_BY_UNIX: u16 = 3 << 8 | VERSION;

/// The flag of names in UTF-8.
const UTF_8: u16 = 1 << 11;

/// The first date that the format can state: 1980-01-01.
const FIRST_DATE: u16 = 1 << 5 | 1;

/// The mode of a regular file that all users may read.
const MODE: u32 = 0o100_644 << 16;

/// What fields of 16 and 32 bits hold if the value is in a zip64 field.
const IN_ZIP64_16: u16 = u16::MAX;
const IN_ZIP64: u32 = u32::MAX;

/// Identifier of the extra field with 64-bit sizes.
const EXTRA_ZIP64: u16 = 1;

/// Maximum length of the comment of an archive, in bytes.
const MAX_COMMENT: usize = u16::MAX as usize;

/// A zip archive that is being written.
pub struct ZipWriter {
    archive: File,
    /// Number of bytes of the complete members.
    position: u64,
    /// The records of the central directory, which may not fit into memory.
    records: File,
    /// Number of bytes in `records`.
    records_size: u64,
    /// Number of members.
    count: u64,
}

impl ZipWriter {
    /// Begins an archive in an empty file. `records` is an empty file that can be written and read,
    /// for the time until the archive is finished.
    pub fn new(archive: File, records: File) -> Self {
        ZipWriter {
            archive,
            position: 0,
            records,
            records_size: 0,
            count: 0,
        }
    }

    /// Returns the number of members.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the number of bytes so far.
    pub fn size(&self) -> u64 {
        self.position
    }

    /// Copies the value of `key` in `store`, which begins with `start`, to a member of the same
    /// name.
    ///
    /// # Errors
    ///
    /// The errors of [`ValueStart::copy`].
    pub fn add(&mut self, store: &dyn Store, key: &Key, start: ValueStart) -> Result<()> {
        let data = self.position + local_header(key.as_str(), 0, 0).len() as u64;
        let copied = start.copy(store, key, &self.archive, data)?;
        self.write_headers(key.as_str(), copied.size, copied.crc)
    }

    /// Completes the member `name`, whose value is written.
    pub(super) fn write_headers(&mut self, name: &str, size: u64, crc: u32) -> Result<()> {
        let header = local_header(name, size, crc);
        self.archive.write_all_at(&header, self.position)?;
        let record = central_record(name, size, crc, self.position);
        self.records.write_all_at(&record, self.records_size)?;
        self.position += header.len() as u64 + size;
        self.records_size += record.len() as u64;
        self.count += 1;
        Ok(())
    }

    /// Writes the central directory and makes the archive durable.
    ///
    /// # Errors
    ///
    /// The file fails, or the comment is too long.
    pub fn finish(self, comment: &[u8]) -> Result<()> {
        if comment.len() > MAX_COMMENT {
            let why = format!("a comment of an archive has at most {MAX_COMMENT} bytes");
            return Err(Error::invalid(why));
        }
        copy_range(
            &self.records,
            0..self.records_size,
            &self.archive,
            self.position,
        )?;
        let end = self.position + self.records_size;
        let records = end_records(self.count, self.records_size, self.position, comment);
        self.archive.write_all_at(&records, end)?;
        // a value that was replaced by a shorter one may have left more bytes
        self.archive.set_len(end + records.len() as u64)?;
        Ok(self.archive.sync_all()?)
    }
}

/// Returns the header of a member (section 4.3.7).
fn local_header(name: &str, size: u64, crc: u32) -> Vec<u8> {
    let mut out = b"PK\x03\x04".to_vec();
    push_common(&mut out, name, crc);
    push16(&mut out, 20);
    out.extend(name.as_bytes());
    push16(&mut out, EXTRA_ZIP64);
    push16(&mut out, 16);
    push64(&mut out, size);
    push64(&mut out, size);
    out
}

/// Returns the record of a member in the central directory (section 4.3.12).
fn central_record(name: &str, size: u64, crc: u32, offset: u64) -> Vec<u8> {
    let mut out = b"PK\x01\x02".to_vec();
    push16(&mut out, MADE_BY_UNIX);
    push_common(&mut out, name, crc);
    push16(&mut out, 28);
    // no comment, first disk, no text
    push16(&mut out, 0);
    push16(&mut out, 0);
    push16(&mut out, 0);
    push32(&mut out, MODE);
    push32(&mut out, IN_ZIP64);
    out.extend(name.as_bytes());
    push16(&mut out, EXTRA_ZIP64);
    push16(&mut out, 24);
    push64(&mut out, size);
    push64(&mut out, size);
    push64(&mut out, offset);
    out
}

/// Adds the fields that both headers of a member have. A key is shorter than the longest name.
fn push_common(out: &mut Vec<u8>, name: &str, crc: u32) {
    push16(out, VERSION);
    push16(out, if name.is_ascii() { 0 } else { UTF_8 });
    // the method of values that are stored as they are, and the time 0:00
    push16(out, 0);
    push16(out, 0);
    push16(out, FIRST_DATE);
    push32(out, crc);
    push32(out, IN_ZIP64);
    push32(out, IN_ZIP64);
    push16(out, name.len() as u16);
}

/// Returns the records behind the central directory (sections 4.3.14 to 4.3.16).
fn end_records(count: u64, size: u64, offset: u64, comment: &[u8]) -> Vec<u8> {
    let mut out = b"PK\x06\x06".to_vec();
    push64(&mut out, 44);
    push16(&mut out, MADE_BY_UNIX);
    push16(&mut out, VERSION);
    push32(&mut out, 0);
    push32(&mut out, 0);
    for field in [count, count, size, offset] {
        push64(&mut out, field);
    }
    out.extend(b"PK\x06\x07");
    push32(&mut out, 0);
    push64(&mut out, offset + size);
    push32(&mut out, 1);
    out.extend(b"PK\x05\x06");
    push32(&mut out, 0);
    push16(&mut out, IN_ZIP64_16);
    push16(&mut out, IN_ZIP64_16);
    push32(&mut out, IN_ZIP64);
    push32(&mut out, IN_ZIP64);
    push16(&mut out, comment.len() as u16);
    out.extend(comment);
    out
}

fn push16(out: &mut Vec<u8>, field: u16) {
    out.extend(field.to_le_bytes());
}

fn push32(out: &mut Vec<u8>, field: u32) {
    out.extend(field.to_le_bytes());
}

fn push64(out: &mut Vec<u8>, field: u64) {
    out.extend(field.to_le_bytes());
}
