//! Writes zeros over flat bytes, as a program expects that has skipped them in a truncated file.

use super::files::flat::holes::stored_chunks;
use super::write::{ArrayWriter, WriteMode, ZEROS};
use crate::array::Array;
use std::ops::Range;
use std::sync::Arc;
use zarrfs_base::error::{Error, Result};
use zarrfs_format::grid::ChunkId;

/// Maximum number of chunks that are looked up one by one before a gap is filled; the chunks of a
/// longer gap are listed.
const PROBES: u64 = 256;

/// Maximum number of parts of a chunk written at a time.
const MAX_PARTS: usize = 4096;

impl ArrayWriter<'_> {
    /// Writes zeros over flat bytes of an array. Chunks that read as zeros without being stored are
    /// removed or stay missing, so that the copy of a sparse file is sparse.
    pub(super) fn zero_flat(
        &self,
        array: &Arc<Array>,
        range: Range<u64>,
        mode: WriteMode,
    ) -> Result<()> {
        let range = range.start..range.end.min(array.size());
        if range.is_empty() {
            return Ok(());
        }
        let around = array.grid().chunks_around(range.clone());
        if !array.fill_is_zero() {
            return around
                .into_iter()
                .flatten()
                .try_for_each(|id| self.zero_chunk(array, ChunkId(id), &range, mode));
        }
        // chunks are about to be removed: they must belong to this array
        array.confirm(false)?;
        if array.freshness().is_replaced() {
            return Err(Error::stale().context(array.key()));
        }
        let count: u64 = around.iter().map(|chunks| chunks.end - chunks.start).sum();
        if count > PROBES && array.lists_all() {
            self.hand_over(array)?;
            if let Some(stored) = stored_chunks(array) {
                let mut stored = stored
                    .into_iter()
                    .filter(|chunk| around.iter().any(|ids| ids.contains(&chunk.0)));
                return stored.try_for_each(|chunk| self.zero_chunk(array, chunk, &range, mode));
            }
        }
        for chunk in around.into_iter().flatten().map(ChunkId) {
            if self.cache.is_dirty(array, chunk) || array.stat_chunk(chunk)?.is_some() {
                self.zero_chunk(array, chunk, &range, mode)?;
            }
        }
        Ok(())
    }

    /// Writes zeros over the rows that a write behind the end of a truncated file has added to an
    /// array before it.
    pub(super) fn fill_added(
        &self,
        array: &Arc<Array>,
        gap: Range<u64>,
        mode: WriteMode,
    ) -> Result<()> {
        if array.fill_is_zero() {
            Ok(())
        } else {
            self.zero_flat(array, gap, mode)
        }
    }

    /// Writes zeros over the bytes of a chunk that lie in `range` of the flat array.
    fn zero_chunk(
        &self,
        array: &Arc<Array>,
        chunk: ChunkId,
        range: &Range<u64>,
        mode: WriteMode,
    ) -> Result<()> {
        let grid = array.grid();
        let is_whole = grid
            .next_in_chunk(chunk, 0)
            .is_some_and(|first| first >= range.start)
            && grid.next_in_chunk(chunk, range.end).is_none();
        if is_whole && array.fill_is_zero() {
            return self.erase_chunk(array, chunk).map(drop);
        }
        let mut parts = Vec::new();
        let mut at = range.start;
        while let Some(flat) = grid
            .next_in_chunk(chunk, at)
            .filter(|&flat| flat < range.end)
        {
            let end = range.end.min(flat + ZEROS.len() as u64);
            let Some(run) = grid.runs(flat..end).next() else {
                break;
            };
            parts.push((run.offset, &ZEROS[..run.len]));
            at = flat + run.len as u64;
            if parts.len() == MAX_PARTS {
                self.write_parts(array, chunk, &parts, mode)?;
                parts.clear();
            }
        }
        if parts.is_empty() {
            Ok(())
        } else {
            self.write_parts(array, chunk, &parts, mode).map(drop)
        }
    }
}
