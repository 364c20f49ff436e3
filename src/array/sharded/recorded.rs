//! Records of pending chunks in the journal of the mount. A program that closes a chunk file, or
//! removes it, goes on before the shard is stored, and no open file is left that could report the
//! loss of the chunk. So a successor of a killed daemon hands the chunk over again. This module
//! must not know when shards are stored, nor what else a successor does.
//!
//! Invariant: a pending chunk has a record from before its request is answered until its object is
//! stored or another chunk takes its place. A chunk without a record is stored before the close of
//! its file is answered. Of two records of a chunk, the later one stands for it.
//! Bytes in a spill file, which outlives the daemon, are there at least as long as the record.

use super::pending::{self, PendingBytes, PendingChunk};
use crate::array::{Array, Ranges};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::spill_file::{SpillFile, SpilledBytes};
use zarrfs_format::grid::ChunkId;
use zarrfs_outlive::{HeldRecord, Record};
use zarrfs_store::{Key, Version};

/// The kinds of records: a chunk was erased, or a chunk was put, whose bytes are in the record or
/// in the spill file. A record has the number of the chunk and the description of its array as
/// numbers. Its text is four numbers (the number of the pending version, the length of the key, the
/// count of written ranges, and 1 if stored bytes show through), the ranges, the key, and the
/// encoded bytes or the start and end of their range in the spill file.
const ERASED_RECORD: u32 = 16;
const PUT_RECORD: u32 = 17;
const SPILLED_RECORD: u32 = 19;

/// Maximum number of ranges in a record, which takes 16 bytes for each. A chunk with more has none.
const MAX_RANGES: usize = 256;

/// A pending chunk that a killed daemon has left.
pub struct RecordedChunk {
    order: u64,
    key: Key,
    chunk: ChunkId,
    description: u64,
    /// `None` if stored bytes don't show through.
    written: Option<Ranges>,
    /// The encoded chunk, `None` if it was erased.
    bytes: Result<Option<PendingBytes>>,
}

/// Records a chunk that is about to be pending, if the mount outlives its daemon.
pub(super) fn record(array: &Array, chunk: ChunkId, new: &PendingChunk) -> Option<HeldRecord> {
    let journal = array.freshness.unstored_count()?;
    let Version::Pending(order) = new.version else {
        return None;
    };
    let place;
    let (kind, bytes) = match &new.bytes {
        None => (ERASED_RECORD, &[][..]),
        Some(PendingBytes::Memory(held)) => (PUT_RECORD, held.bytes.as_slice()),
        Some(PendingBytes::Spilled(spilled)) => {
            let (_, range) = spilled.place();
            place = [range.start, range.end].map(u64::to_le_bytes);
            (SPILLED_RECORD, place.as_flattened())
        }
    };
    let key = array.key.as_str();
    let ranges: Vec<_> = new.written.iter().flat_map(Ranges::iter).collect();
    if ranges.len() > MAX_RANGES {
        return None;
    }
    let shows_through = u64::from(new.written.is_some());
    let head = [order, key.len() as u64, ranges.len() as u64, shows_through];
    let numbers = head.into_iter().chain(
        ranges
            .iter()
            .flat_map(|range| [range.start as u64, range.end as u64]),
    );
    let mut text: Vec<u8> = numbers.flat_map(u64::to_le_bytes).collect();
    text.extend(key.as_bytes());
    text.extend(bytes);
    journal.hold(kind, [chunk.0, description(array)], &text)
}

/// Returns a number that differs, in all likelihood, between arrays whose chunks are encoded or
/// numbered in other ways. The length of the first dimension may change.
fn description(array: &Array) -> u64 {
    let meta = &array.metadata;
    let described = (
        meta.shape.get(1..),
        &meta.chunks,
        &meta.dtype_json,
        &meta.fill_value,
        (&meta.compressor, &meta.filters, &meta.shards),
    );
    let mut hasher = DefaultHasher::new();
    format!("{described:?}").hash(&mut hasher);
    hasher.finish()
}

impl RecordedChunk {
    /// Returns the pending chunks of records, in the order in which they were handed over. `spill`
    /// continues the spill file of the daemon before.
    pub fn of_records<'a>(
        records: &'a [Record],
        spill: Option<&Arc<SpillFile>>,
    ) -> Vec<(Self, &'a Record)> {
        // a daemon that was killed while it recorded a chunk anew has left two records of its bytes
        let mut spilled = HashMap::new();
        let mut found: Vec<_> = records
            .iter()
            .filter_map(|record| Some((Self::of_record(record, spill, &mut spilled)?, record)))
            .collect();
        found.sort_by_key(|(chunk, _)| chunk.order);
        // a successor must take the records of this process for the later ones, if it finds both
        if let Some((last, _)) = found.last() {
            pending::continue_after(last.order);
        }
        found
    }

    fn of_record(
        record: &Record,
        spill: Option<&Arc<SpillFile>>,
        spilled: &mut HashMap<Range<u64>, Arc<SpilledBytes>>,
    ) -> Option<Self> {
        if ![ERASED_RECORD, PUT_RECORD, SPILLED_RECORD].contains(&record.kind) {
            return None;
        }
        let (head, rest) = record.text.split_at_checked(4 * 8)?;
        let [order, key_length, ranges, shows_through] = numbers(head)[..] else {
            return None;
        };
        let ranges = usize::try_from(ranges).ok()?.min(MAX_RANGES);
        let (ranges, rest) = rest.split_at_checked(ranges * 16)?;
        let (key, bytes) = rest.split_at_checked(usize::try_from(key_length).ok()?)?;
        let [chunk, description] = record.numbers;
        let written: Ranges = numbers(ranges)
            .chunks_exact(2)
            .map(|range| range[0] as usize..range[1] as usize)
            .collect();
        let bytes = match (record.kind, &numbers(bytes)[..]) {
            (ERASED_RECORD, _) => Ok(None),
            (SPILLED_RECORD, [start, end]) => taken_over(spill, *start..*end, spilled).map(Some),
            _ => PendingBytes::in_memory(bytes).map(Some),
        };
        Some(RecordedChunk {
            order,
            key: Key::normalize(str::from_utf8(key).ok()?).ok()?,
            chunk: ChunkId(chunk),
            description,
            written: (shows_through != 0).then_some(written),
            bytes,
        })
    }

    /// Returns the key of the array.
    pub fn key(&self) -> &Key {
        &self.key
    }
}

/// Returns a range of bytes of the spill file, which is taken over once.
fn taken_over(
    spill: Option<&Arc<SpillFile>>,
    range: Range<u64>,
    spilled: &mut HashMap<Range<u64>, Arc<SpilledBytes>>,
) -> Result<PendingBytes> {
    if let Some(known) = spilled.get(&range) {
        return Ok(PendingBytes::Spilled(known.clone()));
    }
    let bytes = spill.and_then(|spill| spill.take_over(range.clone()));
    let bytes = Arc::new(bytes.ok_or_else(|| Error::io("the spill file lacks it"))?);
    spilled.insert(range, bytes.clone());
    Ok(PendingBytes::Spilled(bytes))
}

fn numbers(bytes: &[u8]) -> Vec<u64> {
    let (numbers, _) = bytes.as_chunks();
    numbers.iter().copied().map(u64::from_le_bytes).collect()
}

impl Array {
    /// Hands a chunk over again that was pending in a daemon that was killed.
    ///
    /// # Errors
    ///
    /// The array is another one by now, or has no such chunk; its bytes are missing; ENOMEM.
    pub fn hand_over_again(&self, recorded: RecordedChunk) -> Result<()> {
        let chunk = recorded.chunk;
        let chunks = self.in_shards().filter(|_| {
            recorded.description == description(self) && chunk.0 < self.grid.chunk_count()
        });
        let Some(chunks) = chunks else {
            return Err(Error::stale().context("the array was replaced"));
        };
        // a version that no chunk has, so that written bytes are laid over the stored chunk
        let base = recorded.written.as_ref().map(|_| Version::Pending(0));
        let written = recorded.written.as_ref();
        let bytes = recorded.bytes?;
        // a daemon that was killed before it removed the record of an earlier version left both
        let object = chunks.outer_shard(self, chunk).number;
        if let Some(earlier) = chunks.pending().get(object, chunk) {
            chunks
                .pending()
                .replace(object, chunk, &earlier, None, |_| None);
        }
        chunks.hand_over(self, chunk, bytes, written, base)?;
        Ok(())
    }
}
