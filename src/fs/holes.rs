//! SEEK_DATA and SEEK_HOLE on flat bytes: a hole is where chunks are uninitialised and the fill value is zero bytes.
//! Both look at a bounded number of chunks, or at what the store lists, never at each chunk of a vast grid.

use crate::array::{Array, ArrayEntry};
use crate::error::Result;
use crate::grid::ChunkId;
use std::collections::HashMap;
use std::sync::Arc;

/// Chunks asked for one by one before the store is listed instead.
const PROBES: usize = 256;

/// Steps after which the rest of the file is called data, which lseek(2) allows.
const MAX_STEPS: usize = 100_000;

/// What to look for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    Data,
    Hole,
}

/// The first position at or after `offset`, which is inside the array, where data or a hole begins. Data: ENXIO if
/// there is none. Hole: the end of the file counts as one.
pub fn seek(array: &Arc<Array>, offset: u64, seek: Seek) -> Result<u64> {
    match seek {
        Seek::Data if !array.fill_is_zero() => Ok(offset),
        Seek::Hole if !array.fill_is_zero() => Ok(array.size()),
        Seek::Data => data(array, offset),
        Seek::Hole => hole(array, offset),
    }
}

/// The first chunk with data may be far away: after a few probes the stored chunks are listed, and the first byte of
/// any of them at or after `offset` is the answer.
fn data(array: &Arc<Array>, offset: u64) -> Result<u64> {
    let mut walk = Walk::new(array);
    if let Some(found) = walk.find(offset, PROBES, true)? {
        return found.ok_or_else(|| crate::error::Error::system(libc::ENXIO));
    }
    let mut first: Option<u64> = None;
    for entry in array.entries()? {
        let at = match entry? {
            ArrayEntry::Chunk(chunk) => array.grid().next_in_chunk(chunk, offset),
            // a hole would be copied as zeros; reading tells what is wrong
            ArrayEntry::Unlisted => return Ok(offset),
            ArrayEntry::Value(_) => None,
        };
        first = first.into_iter().chain(at).min();
    }
    first.ok_or_else(|| crate::error::Error::system(libc::ENXIO))
}

fn hole(array: &Arc<Array>, offset: u64) -> Result<u64> {
    let found = Walk::new(array).find(offset, MAX_STEPS, false)?;
    Ok(found.flatten().unwrap_or(array.size()))
}

/// A walk along the flat bytes that asks for each chunk once.
struct Walk<'a> {
    array: &'a Array,
    stored: HashMap<ChunkId, bool>,
}

impl<'a> Walk<'a> {
    fn new(array: &'a Array) -> Self {
        Walk { array, stored: HashMap::new() }
    }

    /// The first position at or after `from` in a chunk that is stored, or is not, as `wanted` says. Some(None): there
    /// is none up to the end. None: not found within `steps` runs.
    fn find(&mut self, from: u64, steps: usize, wanted: bool) -> Result<Option<Option<u64>>> {
        let (array, grid) = (self.array, self.array.grid());
        let (mut row, mut steps) = (from, steps);
        while row < array.size() {
            let next = grid.next_row_of_chunks(row);
            let mut at = row;
            for run in grid.runs(row..next.min(grid.row_end(row))) {
                let stored = match self.stored.get(&run.chunk) {
                    Some(stored) => *stored,
                    None => {
                        let stored = array.stat_chunk(run.chunk)?.is_some();
                        self.stored.insert(run.chunk, stored);
                        stored
                    }
                };
                if stored == wanted {
                    return Ok(Some(Some(at)));
                }
                at += run.len as u64;
                steps -= 1;
                if steps == 0 {
                    return Ok(None);
                }
            }
            row = next;
        }
        Ok(Some(None))
    }
}
