//! The new bytes of a shard some of whose entries have changed, as a list of pieces. The module
//! copies no bytes.

use super::index::{EMPTY, Index, IndexCodec};
use std::collections::BTreeMap;
use std::ops::Range;
use zarrfs_base::error::{Error, Result};

/// An entry that points outside of any shard. It replaces damaged entries, which could point to
/// other chunks after a move.
const DAMAGED: (u64, u64) = (u64::MAX - 1, 1);

/// A change of an entry of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryChange {
    /// The entry gets a new chunk of this number of bytes.
    Put(u64),
    /// The chunk of the entry is no longer stored.
    Erase,
}

/// A piece of the new bytes of a shard.
#[derive(Debug, PartialEq, Eq)]
pub enum ShardPiece {
    /// A range of the former shard.
    Old(Range<u64>),
    /// The new bytes of an entry.
    New(usize),
    /// The encoded index.
    Index(Vec<u8>),
}

/// Maximum number of ranges of the former shard that stay, so that the memory for them is bounded.
pub const MAX_RANGES: usize = 1 << 16;

impl IndexCodec {
    /// Returns the pieces of a shard after `changes`, in order; `None` if no chunk is left in it.
    /// `old` is its former index.
    ///
    /// The former bytes stay at their offsets and new ones follow, so that a file system that
    /// shares blocks copies nothing. If more than a quarter of the former bytes would be waste, the
    /// kept ranges move together.
    ///
    /// # Errors
    ///
    /// EFBIG if the shard would have 2^63 bytes or more, or the error of a codec of the index.
    pub fn rebuild(
        &self,
        old: Option<&Index>,
        changes: &BTreeMap<usize, EntryChange>,
    ) -> Result<Option<Vec<ShardPiece>>> {
        let mut entries = vec![(EMPTY, EMPTY); self.entries()];
        let start = if self.is_at_start() {
            self.stored_size()
        } else {
            0
        };
        let mut pieces = Vec::new();
        let mut position = start;
        if let Some(old) = old {
            let kept = KeptEntries::new(old, self.entries(), changes, &mut entries);
            for range in kept.place(position, &mut entries) {
                position += range.end - range.start;
                pieces.push(ShardPiece::Old(range));
            }
        }
        for (&slot, change) in changes {
            if let EntryChange::Put(size) = *change {
                entries[slot] = (position, size);
                position = position
                    .checked_add(size)
                    .ok_or_else(|| Error::system(libc::EFBIG))?;
                pieces.push(ShardPiece::New(slot));
            }
        }
        if entries.iter().all(|entry| *entry == (EMPTY, EMPTY)) {
            return Ok(None);
        }
        let index_behind = if self.is_at_start() {
            0
        } else {
            self.stored_size()
        };
        let size = position
            .checked_add(index_behind)
            .filter(|size| *size <= i64::MAX as u64);
        size.ok_or_else(|| Error::system(libc::EFBIG))?;
        let place = if self.is_at_start() { 0 } else { pieces.len() };
        pieces.insert(place, ShardPiece::Index(self.encode(&entries)?));
        Ok(Some(pieces))
    }
}

/// The entries of a former index whose chunks stay.
struct KeptEntries<'a> {
    index: &'a Index,
    /// Their positions in the index, in the order of the chunks' bytes, which may overlap. An index
    /// has less than 2^32 entries.
    slots: Vec<u32>,
}

impl<'a> KeptEntries<'a> {
    /// Returns the entries of `index` without changes, and sets those of damaged ones in `entries`.
    fn new(
        index: &'a Index,
        count: usize,
        changes: &BTreeMap<usize, EntryChange>,
        entries: &mut [(u64, u64)],
    ) -> Self {
        let mut slots = Vec::with_capacity(count);
        for slot in (0..count).filter(|slot| !changes.contains_key(slot)) {
            match index.get(slot) {
                Ok(None) => {}
                Ok(Some(_)) => slots.push(slot as u32),
                Err(_) => entries[slot] = DAMAGED,
            }
        }
        slots.sort_unstable_by_key(|slot| {
            let range = range_of(index, *slot);
            (range.start, range.end)
        });
        KeptEntries { index, slots }
    }

    /// Returns ranges that include all chunks, in order, with no gap of at most `gap` bytes between
    /// them.
    fn joined(&self, gap: u64) -> impl Iterator<Item = Range<u64>> {
        let mut ranges = self
            .slots
            .iter()
            .map(|slot| range_of(self.index, *slot))
            .peekable();
        std::iter::from_fn(move || {
            let mut joined = ranges.next()?;
            while let Some(next) =
                ranges.next_if(|next| next.start <= joined.end.saturating_add(gap))
            {
                joined.end = joined.end.max(next.end);
            }
            Some(joined)
        })
    }

    /// Returns the ranges of the former shard that stay, and sets the entries of their chunks, for
    /// a new shard that has these ranges from `start` on.
    fn place(&self, start: u64, entries: &mut [(u64, u64)]) -> Vec<Range<u64>> {
        if self.slots.is_empty() {
            return Vec::new();
        }
        let room = self.index.room();
        let live = self
            .joined(0)
            .map(|range| range.end - range.start)
            .sum::<u64>();
        let size = room.end - room.start;
        let ranges: Vec<Range<u64>> = if size - live <= size / 4 {
            vec![room]
        } else {
            // bytes between chunks stay, too, where there would be too many ranges
            let mut gaps = (0..64).map(|n| (1u64 << n) >> 1);
            let gap = gaps.find(|gap| self.joined(*gap).take(MAX_RANGES + 1).count() <= MAX_RANGES);
            self.joined(gap.unwrap_or(u64::MAX)).collect()
        };
        let mut to = start;
        let mut rest = ranges.iter().peekable();
        for slot in &self.slots {
            let range = range_of(self.index, *slot);
            while let Some(passed) = rest.next_if(|from| from.end <= range.start) {
                to += passed.end - passed.start;
            }
            let from = rest.peek().map_or(range.start, |from| from.start);
            entries[*slot as usize] = (to + (range.start - from), range.end - range.start);
        }
        ranges
    }
}

/// Returns the bytes of a chunk that stays.
fn range_of(index: &Index, slot: u32) -> Range<u64> {
    index.get(slot as usize).ok().flatten().unwrap_or_default()
}
