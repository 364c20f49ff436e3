//! New shards of chunks that are encoded already, in a store that no mount writes.

use super::super::Array;
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use zarrfs_base::error::{Error, ErrorContext, Result};
use zarrfs_format::grid::ChunkId;
use zarrfs_format::shard::{EntryChange, ShardPiece};
use zarrfs_store::{Replaces, ValuePiece};

impl Array {
    /// Puts the object `number`, whose chunks are these ranges of `file`. It replaces any other
    /// one.
    ///
    /// # Errors
    ///
    /// A chunk has no bytes, the array has several levels of shards, or the store fails.
    pub fn put_new_shard(
        &self,
        number: u64,
        chunks: &[(ChunkId, Range<u64>)],
        file: &File,
    ) -> Result<()> {
        let key = self.object_key(number);
        let shards = self.in_shards().map(|chunks| &chunks.shards);
        let Some(shards) = shards.filter(|shards| shards.levels() == 1) else {
            return Err(Error::invalid("not in shards of one level").context(key));
        };
        let mut changes = BTreeMap::new();
        let mut ranges = BTreeMap::new();
        for (chunk, range) in chunks {
            let slot = shards.slot(0, &self.grid.indices(*chunk));
            changes.insert(slot, EntryChange::Put(range.end - range.start));
            ranges.insert(slot, range.clone());
        }
        let codec = shards.largest_index_codec(0);
        let Some(pieces) = codec.rebuild(None, &changes)? else {
            return Ok(());
        };
        let mut values: Vec<ValuePiece> = Vec::new();
        for piece in &pieces {
            match piece {
                ShardPiece::Index(index) => values.push(ValuePiece::Bytes(index)),
                ShardPiece::New(slot) => add_range(&mut values, file, &ranges[slot]),
                ShardPiece::Old(_) => return Err(Error::io("a new shard has no old bytes")),
            }
        }
        self.store
            .put_pieces(&key, &values, Replaces::Anything)
            .context(key)?;
        Ok(())
    }
}

/// Adds a range of a file, which is joined with the last piece if it follows.
fn add_range<'a>(pieces: &mut Vec<ValuePiece<'a>>, file: &'a File, range: &Range<u64>) {
    match pieces.last_mut() {
        Some(ValuePiece::File(_, last)) if last.end == range.start => last.end = range.end,
        _ => pieces.push(ValuePiece::File(file, range.clone())),
    }
}
