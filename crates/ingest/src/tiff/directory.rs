//! The directories of a TIFF or BigTIFF file, and the values of their tags. This module must not
//! know what a tag means.

use crate::classic::utf8;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory::{Grant, zeroed};

/// Maximum number of tags in a directory.
const MAX_TAGS: u64 = 4096;

/// Memory in bytes of a value of a tag: as the file has it, as a number, and in an attribute.
const VALUE: u64 = 32;

/// The type of floats of 64 bits.
const DOUBLE: u16 = 12;

/// A file whose directories are read.
pub struct TiffReader<'a> {
    file: &'a File,
    len: u64,
    is_big: bool,
    /// Whether numbers in the file have their most significant byte first.
    pub is_big_endian: bool,
    /// The offset of the first directory.
    pub first: u64,
    /// The memory of the values that were read.
    pub held: Grant,
}

/// The tags of a page.
#[derive(Default)]
pub struct TiffDirectory {
    tags: BTreeMap<u16, TagField>,
    /// The offset of the next directory; 0 after the last one.
    pub next: u64,
}

/// Where the values of a tag lie.
struct TagField {
    kind: u16,
    count: u64,
    at: u64,
}

impl<'a> TiffReader<'a> {
    /// Reads the header of a file of `len` bytes.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`](zarrfs_base::error::Kind::Invalid) if it is no TIFF file, or truncated.
    pub fn open(file: &'a File, len: u64) -> Result<Self> {
        let mut reader = TiffReader {
            file,
            len,
            is_big: false,
            is_big_endian: false,
            first: 0,
            held: Grant::default(),
        };
        let start = reader.bytes(0, 8)?;
        reader.is_big_endian = start[0] == b'M';
        reader.is_big = reader.number(&start[2..4]) == 43;
        reader.first = if reader.is_big {
            reader.offset(8)?
        } else {
            reader.number(&start[4..])
        };
        Ok(reader)
    }

    /// Reads the directory at an offset.
    ///
    /// # Errors
    ///
    /// The file ends before its end, or it has too many tags.
    pub fn directory(&mut self, at: u64) -> Result<TiffDirectory> {
        let (width, head) = if self.is_big { (8, 8) } else { (4, 2) };
        let count = self.bytes(at, head)?;
        let count = self.number(&count);
        if count > MAX_TAGS {
            return Err(Error::invalid(format!("a directory of {count} tags")));
        }
        let size = 4 + 2 * width;
        let entries = self.bytes(at + head, count * size + width)?;
        let mut tags = BTreeMap::new();
        let (entries, next) = entries.split_at((count * size) as usize);
        for (n, entry) in entries.chunks_exact(size as usize).enumerate() {
            let kind = self.number(&entry[2..4]) as u16;
            let (count, field) = entry[4..].split_at(width as usize);
            let count = self.number(count);
            let at = match count.checked_mul(value_size(kind)) {
                Some(bytes) if bytes <= width => at + head + n as u64 * size + 4 + width,
                _ => self.number(field),
            };
            let tag = self.number(&entry[..2]) as u16;
            tags.insert(tag, TagField { kind, count, at });
        }
        let next = self.number(next);
        Ok(TiffDirectory { tags, next })
    }

    /// Returns the numbers of a tag, none without the tag. A ratio is two numbers, and a float its
    /// bits.
    ///
    /// # Errors
    ///
    /// The file ends before them, or there is no memory.
    pub fn numbers(&mut self, directory: &TiffDirectory, tag: u16) -> Result<Vec<u64>> {
        let Some(field) = directory.tags.get(&tag) else {
            return Ok(Vec::new());
        };
        let size = if matches!(field.kind, 5 | 10) {
            4
        } else {
            value_size(field.kind)
        };
        let bytes = self.field_bytes(field)?;
        let numbers = bytes.chunks_exact(size as usize);
        Ok(numbers.map(|bytes| self.number(bytes)).collect())
    }

    /// Returns the first number of a tag.
    ///
    /// # Errors
    ///
    /// Those of [`TiffReader::numbers`].
    pub fn one(&mut self, directory: &TiffDirectory, tag: u16) -> Result<Option<u64>> {
        Ok(self.numbers(directory, tag)?.first().copied())
    }

    /// Returns the floats of a tag, none unless it has floats of 64 bits that are finite.
    ///
    /// # Errors
    ///
    /// Those of [`TiffReader::numbers`].
    pub fn doubles(&mut self, directory: &TiffDirectory, tag: u16) -> Result<Vec<f64>> {
        let field = directory.tags.get(&tag);
        if field.is_none_or(|field| field.kind != DOUBLE) {
            return Ok(Vec::new());
        }
        let bits = self.numbers(directory, tag)?.into_iter();
        let floats: Vec<f64> = bits.map(f64::from_bits).collect();
        let are_finite = floats.iter().all(|float| float.is_finite());
        Ok(if are_finite { floats } else { Vec::new() })
    }

    /// Returns the text of a tag up to its end.
    ///
    /// # Errors
    ///
    /// Those of [`TiffReader::numbers`].
    pub fn text(&mut self, directory: &TiffDirectory, tag: u16) -> Result<Option<String>> {
        let Some(field) = directory.tags.get(&tag) else {
            return Ok(None);
        };
        let bytes = self.field_bytes(field)?;
        let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        Ok(Some(utf8(text)))
    }

    fn field_bytes(&mut self, field: &TagField) -> Result<Vec<u8>> {
        let bytes = field.count.saturating_mul(value_size(field.kind));
        if bytes > self.len {
            return Err(self.ends());
        }
        let memory = field.count.saturating_mul(VALUE);
        self.held
            .grow(usize::try_from(memory).unwrap_or(usize::MAX))?;
        self.bytes(field.at, bytes)
    }

    fn bytes(&self, at: u64, len: u64) -> Result<Vec<u8>> {
        if at.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(self.ends());
        }
        let mut bytes = zeroed(len as usize)?;
        self.file.read_exact_at(&mut bytes, at)?;
        Ok(bytes)
    }

    /// Returns the error for a file that is shorter than it states.
    pub fn ends(&self) -> Error {
        let len = self.len;
        let why = format!(
            "the file ends at byte {len}: it is truncated, still being written, or damaged"
        );
        Error::invalid(why)
    }

    fn offset(&self, at: u64) -> Result<u64> {
        Ok(self.number(&self.bytes(at, 8)?))
    }

    /// Returns a number of at most eight bytes.
    fn number(&self, bytes: &[u8]) -> u64 {
        let append = |number, byte: &u8| number << 8 | u64::from(*byte);
        if self.is_big_endian {
            bytes.iter().fold(0, append)
        } else {
            bytes.iter().rev().fold(0, append)
        }
    }
}

/// Returns the number of bytes of a value of a type. One of an unknown type is taken for a byte.
fn value_size(kind: u16) -> u64 {
    match kind {
        3 | 8 => 2,
        4 | 9 | 11 | 13 => 4,
        5 | 10 | 12 | 16..=18 => 8,
        _ => 1,
    }
}
