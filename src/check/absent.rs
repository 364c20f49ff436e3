//! Finds the chunks of an array that are not stored, as ranges of its grid. Memory is bounded
//! however many chunks the grid has and the store holds: a set of stored chunks that grows too
//! large loses its last ones, and the array is listed once more for them. The module must not know
//! how ranges are printed.

mod boxes;
mod stored_set;

pub use boxes::ChunkBox;

use crate::array::{Array, ArrayEntry};
use boxes::Boxes;
use std::ops::Range;
use std::sync::Arc;
use stored_set::{MAX_BLOCKS, StoredSet};
use zarrfs_base::error::{Error, Result};
use zarrfs_format::grid::ChunkId;

/// Number of chunks that a store which can't list is asked for before their ranges are returned.
const ASKED: u64 = 1 << 16;

/// An iterator over the ranges of chunks that are not stored. Each such chunk is in one range. A
/// chunk in a shard that is damaged counts as stored.
pub struct AbsentChunks {
    array: Arc<Array>,
    /// The stored chunks in `known`.
    stored: StoredSet,
    /// Maximum number of blocks of `stored`.
    max_blocks: usize,
    /// The chunks of which it is known whether they are stored.
    known: Range<u64>,
    /// A run that ends where `known` does, and may go on.
    run: Range<u64>,
    boxes: Boxes,
    is_done: bool,
}

impl AbsentChunks {
    /// Begins to look for the chunks of `array` that are not stored.
    pub fn new(array: &Arc<Array>) -> Self {
        Self::bounded(array, MAX_BLOCKS)
    }

    fn bounded(array: &Arc<Array>, max_blocks: usize) -> Self {
        AbsentChunks {
            array: array.clone(),
            stored: StoredSet::new(max_blocks),
            max_blocks,
            known: 0..0,
            run: 0..0,
            boxes: Boxes::new(array.grid().counts()),
            is_done: false,
        }
    }

    /// Looks at the next chunks, and passes on the runs that end among those that are known.
    fn advance(&mut self) -> Result<()> {
        let count = self.array.grid().chunk_count();
        if self.known.is_empty() {
            if self.known.end == count {
                self.boxes.add_run(std::mem::take(&mut self.run));
                self.boxes.end();
                self.is_done = true;
                return Ok(());
            }
            self.examine(self.known.end)?;
        }
        let absent = self.stored.next_absent(&self.known);
        if absent.start != self.run.end {
            self.boxes
                .add_run(std::mem::replace(&mut self.run, absent.clone()));
        } else {
            self.run.end = absent.end;
        }
        self.known.start = absent.end;
        Ok(())
    }

    /// Finds out which chunks from number `from` on are stored, of as many as memory permits.
    fn examine(&mut self, from: u64) -> Result<()> {
        let count = self.array.grid().chunk_count();
        self.stored = StoredSet::new(self.max_blocks);
        let end = if self.array.lists_all() {
            self.list(from..count)?
        } else {
            self.ask(from..count.min(from.saturating_add(ASKED)))?
        };
        self.known = from..end;
        Ok(())
    }

    /// Lists the stored chunks with numbers in `wanted`. Returns the number at which the set ends.
    fn list(&mut self, wanted: Range<u64>) -> Result<u64> {
        self.array.prefetch_levels();
        let mut end = wanted.end;
        for entry in self.array.entries()? {
            match entry.map_err(|e| e.context(self.array.key()))? {
                ArrayEntry::Chunk(chunk) if (wanted.start..end).contains(&chunk.0) => {
                    end = end.min(self.stored.insert(chunk.0));
                }
                ArrayEntry::Chunk(_) | ArrayEntry::Value(_) => {}
                ArrayEntry::Unlisted => {
                    let why = Error::damaged("some chunks can't be listed");
                    return Err(why.context(self.array.key()));
                }
            }
        }
        Ok(end)
    }

    /// Asks the store for each chunk of a range. Returns the end of the range.
    fn ask(&mut self, wanted: Range<u64>) -> Result<u64> {
        let mut failed = None;
        let mut next = wanted.clone();
        let stored = &mut self.stored;
        self.array
            .stat_chunks(&mut wanted.clone().map(ChunkId), &mut |stat| {
                let chunk = next.next();
                match (stat, chunk) {
                    (Ok(Some(_)), Some(chunk)) => drop(stored.insert(chunk)),
                    (Ok(_), _) => {}
                    (Err(e), _) => failed = Some(e),
                }
                failed.is_none()
            });
        failed.map_or(Ok(wanted.end), Err)
    }
}

impl Iterator for AbsentChunks {
    type Item = Result<ChunkBox>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(found) = self.boxes.pop() {
                return Some(Ok(found));
            }
            if self.is_done {
                return None;
            }
            if let Err(e) = self.advance() {
                self.is_done = true;
                return Some(Err(e));
            }
        }
    }
}

/// Returns the ranges of items along each dimension that the chunks of a box hold in the array.
pub fn items_of(array: &Array, chunks: &ChunkBox) -> ChunkBox {
    let metadata = array.metadata();
    let edges = metadata.chunk_edges();
    let along = chunks.iter().zip(edges.iter()).zip(&metadata.shape);
    along
        .map(|((&[start, end], edges), &len)| {
            let last = edges.span(end.saturating_sub(1));
            [edges.span(start).start, last.end.min(len)]
        })
        .collect()
}

#[cfg(test)]
mod tests;
