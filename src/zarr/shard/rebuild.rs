//! The new bytes of a shard some of whose entries have changed, as a list of pieces. The module copies no bytes.

use super::index::{EMPTY, Index, IndexCodec};
use crate::error::{Error, Result};
use std::collections::BTreeMap;
use std::ops::Range;

/// An entry that points outside of any shard. It replaces damaged entries, which could point to other chunks after a
/// move.
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

impl IndexCodec {
    /// Returns the pieces of a shard after `changes`, in order; `None` if no chunk is left in it. `old` is its former
    /// index.
    ///
    /// The former bytes stay at their offsets and new ones follow, so that a file system that shares blocks copies
    /// nothing. If more than a quarter of the former bytes would be waste, the kept ranges move together.
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
        let mut kept = Vec::new();
        for slot in (0..self.entries()).filter(|slot| !changes.contains_key(slot)) {
            match old.map_or(Ok(None), |old| old.get(slot)) {
                Ok(None) => {}
                Ok(Some(range)) => kept.push((range, slot)),
                Err(_) => entries[slot] = DAMAGED,
            }
        }
        kept.sort_by_key(|(range, _)| (range.start, range.end));
        let start = if self.is_at_start() { self.stored_size() } else { 0 };
        let (mut pieces, mut position) = (Vec::new(), start);
        if let Some(old) = old.filter(|_| !kept.is_empty()) {
            let places = places(&kept, old.room(), start);
            for (range, slot) in &kept {
                let (from, to) = &places[places.partition_point(|(from, _)| from.start <= range.start) - 1];
                entries[*slot] = (to + (range.start - from.start), range.end - range.start);
            }
            position = places.last().map_or(start, |(from, to)| to + (from.end - from.start));
            pieces.extend(places.into_iter().map(|(from, _)| ShardPiece::Old(from)));
        }
        for (&slot, change) in changes {
            if let EntryChange::Put(size) = *change {
                entries[slot] = (position, size);
                position = position.checked_add(size).ok_or_else(|| Error::system(libc::EFBIG))?;
                pieces.push(ShardPiece::New(slot));
            }
        }
        if entries.iter().all(|entry| *entry == (EMPTY, EMPTY)) {
            return Ok(None);
        }
        let index_behind = if self.is_at_start() { 0 } else { self.stored_size() };
        let size = position.checked_add(index_behind).filter(|size| *size <= i64::MAX as u64);
        size.ok_or_else(|| Error::system(libc::EFBIG))?;
        let place = if self.is_at_start() { 0 } else { pieces.len() };
        pieces.insert(place, ShardPiece::Index(self.encode(&entries)?));
        Ok(Some(pieces))
    }
}

/// Returns the ranges of the former shard that stay, each with its new offset. `kept` are the ranges of entries,
/// sorted; they may overlap, and all lie in `room`. If ranges move, the first one moves to `start`.
fn places(kept: &[(Range<u64>, usize)], room: Range<u64>, start: u64) -> Vec<(Range<u64>, u64)> {
    let mut joined: Vec<Range<u64>> = Vec::new();
    for (range, _) in kept {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range.clone()),
        }
    }
    let live: u64 = joined.iter().map(|range| range.end - range.start).sum();
    let size = room.end - room.start;
    if size - live <= size / 4 {
        let from = room.start;
        return vec![(room, from)];
    }
    let mut position = start;
    let place = |range: Range<u64>| {
        let to = position;
        position += range.end - range.start;
        (range, to)
    };
    joined.into_iter().map(place).collect()
}
