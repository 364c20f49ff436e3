//! The index of a shard: the offset and length of each of its chunks.

use crate::metadata::ShardLevel;
use crate::pipeline::Pipeline;
use crate::word;
use std::ops::Range;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory;

/// Size of an entry in bytes: offset and length, 8 bytes each.
const ENTRY: usize = 16;

/// Offset and length of a chunk that is not stored.
pub(super) const EMPTY: u64 = u64::MAX;

/// The encoding of the indexes of a level.
pub struct IndexCodec {
    entries: usize,
    pipeline: Pipeline,
    is_big_endian: bool,
    is_at_start: bool,
}

/// A decoded index.
#[derive(Debug, PartialEq)]
pub struct Index {
    /// Offset and length of each chunk in bytes.
    entries: Vec<(u64, u64)>,
    /// The range of the shard in which chunks may lie, in bytes: all but the index.
    room: Range<u64>,
}

impl IndexCodec {
    /// Returns the codec of indexes with `entries` entries.
    ///
    /// # Errors
    ///
    /// A codec is unknown, or has no fixed size.
    pub fn new(level: &ShardLevel, entries: usize) -> Result<Self> {
        let size = entries
            .checked_mul(ENTRY)
            .ok_or_else(|| Error::damaged("an index is too large"))?;
        let pipeline = Pipeline::of_exact_bytes(&level.index_codecs, size, ENTRY / 2)?;
        let is_big_endian = level.is_index_big_endian;
        let is_at_start = level.is_index_at_start;
        Ok(IndexCodec {
            entries,
            pipeline,
            is_big_endian,
            is_at_start,
        })
    }

    /// Returns the encoded size in bytes.
    pub fn stored_size(&self) -> u64 {
        self.pipeline.max_stored()
    }

    /// Returns the number of entries.
    pub fn entries(&self) -> usize {
        self.entries
    }

    /// Returns whether the index is before the chunks.
    pub fn is_at_start(&self) -> bool {
        self.is_at_start
    }

    /// Returns the memory that a decoded index takes, in bytes.
    pub fn memory(&self) -> usize {
        self.entries * ENTRY
    }

    /// Returns the range of the index in a shard of `size` bytes.
    ///
    /// # Errors
    ///
    /// [`Kind::Damaged`](zarrfs_base::error::Kind::Damaged) if the shard is shorter.
    pub fn place(&self, size: u64) -> Result<Range<u64>> {
        let stored = self.stored_size();
        match size.checked_sub(stored) {
            None => Err(Error::damaged(format!(
                "a shard of {size} bytes, shorter than its index of {stored}"
            ))),
            Some(_) if self.is_at_start => Ok(0..stored),
            Some(start) => Ok(start..size),
        }
    }

    /// Decodes the index of a shard of `size` bytes.
    ///
    /// # Errors
    ///
    /// [`Kind::Damaged`](zarrfs_base::error::Kind::Damaged) if a checksum or the size is wrong,
    /// ENOMEM without memory.
    pub fn decode(&self, encoded: &[u8], size: u64) -> Result<Index> {
        let place = self.place(size)?;
        // besides both forms, which the caller has
        let _decoded = memory::take(self.memory())?;
        let mut bytes = Vec::new();
        self.pipeline
            .decode(encoded, &mut bytes)
            .map_err(|e| e.context("the shard's index"))?;
        let number = |bytes: &[u8; 8]| word::load(bytes, self.is_big_endian);
        let (numbers, _) = bytes.as_chunks::<8>();
        let entries = numbers
            .chunks_exact(2)
            .map(|entry| (number(&entry[0]), number(&entry[1])))
            .collect();
        let room = if self.is_at_start {
            place.end..size
        } else {
            0..place.start
        };
        Ok(Index { entries, room })
    }

    /// Encodes an index with these offsets and lengths.
    pub(super) fn encode(&self, entries: &[(u64, u64)]) -> Result<Vec<u8>> {
        let number = |n: u64| {
            if self.is_big_endian {
                n.to_be_bytes()
            } else {
                n.to_le_bytes()
            }
        };
        let mut bytes = Vec::new();
        memory::reserve(&mut bytes, entries.len() * ENTRY)?;
        bytes.extend(
            entries
                .iter()
                .flat_map(|(offset, len)| [number(*offset), number(*len)])
                .flatten(),
        );
        let mut encoded = Vec::new();
        self.pipeline.encode(&bytes, &mut encoded)?;
        Ok(encoded)
    }
}

impl Index {
    /// Returns the range of the shard that holds the chunk of entry `slot`; `None` if the chunk is
    /// not stored.
    ///
    /// # Errors
    ///
    /// [`Kind::Damaged`](zarrfs_base::error::Kind::Damaged) if the entry leads out of the shard or
    /// into the index.
    pub fn get(&self, slot: usize) -> Result<Option<Range<u64>>> {
        let entry = self.entries.get(slot).copied();
        let (offset, len) =
            entry.ok_or_else(|| Error::damaged(format!("the index has no entry {slot}")))?;
        if (offset, len) == (EMPTY, EMPTY) {
            return Ok(None);
        }
        let bad = |why: &str| {
            Err(Error::damaged(format!(
                "entry {slot} of the shard's index, {offset} + {len}, {why}"
            )))
        };
        match offset.checked_add(len) {
            _ if offset == EMPTY || len == EMPTY => bad("is half empty"),
            _ if len == 0 => bad("has no bytes"),
            Some(end) if offset >= self.room.start && end <= self.room.end => Ok(Some(offset..end)),
            Some(_) => bad(&format!("is outside the chunks' bytes {:?}", self.room)),
            None => bad("exceeds 64 bits"),
        }
    }

    /// Returns the range of the shard in which chunks may lie, in bytes.
    pub(super) fn room(&self) -> Range<u64> {
        self.room.clone()
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether the index has no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}
