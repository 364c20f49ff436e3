//! SEEK_DATA and SEEK_HOLE on flat bytes: a hole is where chunks are uninitialised and the fill value is zero bytes.
//! Both look at a bounded number of chunks, or at what the store lists, never at each chunk of a vast grid.

use crate::array::{Array, ArrayEntry};
use crate::error::{Error, Result};
use crate::util::memory::lock;
use crate::zarr::grid::ChunkId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Chunks asked for one by one before the store is listed instead.
const PROBES: usize = 256;

/// Chunks remembered for an open file: 8 MiB of numbers.
const MAX_LISTED: usize = 1 << 20;

/// The same of a far store, which names a thousand at a time: some seconds.
const MAX_LISTED_FAR: usize = 1 << 17;

/// Steps after which the rest of the file is called data, which lseek(2) allows.
const MAX_STEPS: usize = 100_000;

/// What to look for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// Where bytes are stored.
    Data,
    /// Where none are: they read as zeros.
    Hole,
}

/// The stored chunks of an open file, listed when they are first needed: a copy of a sparse file asks again and again.
#[derive(Default)]
pub struct StoredChunks {
    /// Protects the list, with the id of the array it is of.
    listed: Mutex<Option<(u64, Listed)>>,
}

/// Chunks in the order of their numbers; None if there are too many to remember, or if some can't be listed.
type Listed = Arc<Option<Vec<ChunkId>>>;

impl StoredChunks {
    /// The first position at or after `offset`, which is inside the array, where data or a hole begins. Data: ENXIO if
    /// there is none. Hole: the end of the file counts as one.
    pub fn seek(&self, array: &Arc<Array>, offset: u64, seek: Seek) -> Result<u64> {
        match seek {
            // some could not be stored: to call all of it data is always right
            Seek::Data if array.is_dirty() => Ok(offset),
            Seek::Hole if array.is_dirty() => Ok(array.size()),
            Seek::Data if !array.fill_is_zero() => Ok(offset),
            Seek::Hole if !array.fill_is_zero() => Ok(array.size()),
            // it would take a question for each chunk
            Seek::Data if !array.lists_all() => Ok(offset),
            Seek::Hole if !array.lists_all() => Ok(array.size()),
            Seek::Data => self.data(array, offset),
            Seek::Hole => self.hole(array, offset),
        }
    }

    fn hole(&self, array: &Arc<Array>, offset: u64) -> Result<u64> {
        let mut walk = Walk::new(array);
        if array.is_remote() {
            walk.listed = self.listed(array);
            if walk.listed.is_none() {
                return Ok(array.size());
            }
        }
        Ok(walk.find(offset, MAX_STEPS, false)?.flatten().unwrap_or(array.size()))
    }

    /// The first chunk with data may be far away: after a few probes the stored chunks are listed. What can't be listed
    /// is called data: a hole would be copied as zeros, and reading tells what is wrong.
    fn data(&self, array: &Arc<Array>, offset: u64) -> Result<u64> {
        let none = || Error::system(libc::ENXIO);
        // a far store lists a thousand in the time of a probe
        if !array.is_remote()
            && let Some(found) = Walk::new(array).find(offset, PROBES, true)?
        {
            return found.ok_or_else(none);
        }
        let listed = self.listed(array);
        let Some(chunks) = listed.as_ref() else { return Ok(offset) };
        let (grid, band) = (array.grid(), array.grid().band(offset));
        let [start, end] = [band.start, band.end].map(|id| chunks.partition_point(|c| c.0 < id));
        let inside = chunks[start..end].iter().filter_map(|&c| grid.next_in_chunk(c, offset)).min();
        let behind = || chunks.get(end).and_then(|&c| grid.next_in_chunk(c, offset));
        inside.or_else(behind).ok_or_else(none)
    }

    fn listed(&self, array: &Arc<Array>) -> Listed {
        let mut listed = lock(&self.listed);
        match &*listed {
            Some((id, list)) if *id == array.id() => list.clone(),
            _ => {
                let list = Arc::new(list(array));
                *listed = Some((array.id(), list.clone()));
                list
            }
        }
    }
}

fn list(array: &Arc<Array>) -> Option<Vec<ChunkId>> {
    let mut chunks = Vec::new();
    let most = if array.is_remote() { MAX_LISTED_FAR } else { MAX_LISTED };
    for entry in array.entries().ok()? {
        match entry.ok()? {
            ArrayEntry::Chunk(chunk) if chunks.len() < most => chunks.push(chunk),
            ArrayEntry::Chunk(_) | ArrayEntry::Unlisted => return None,
            ArrayEntry::Value(_) => {}
        }
    }
    chunks.sort_unstable();
    Some(chunks)
}

/// A walk along the flat bytes that asks for each chunk once, or for none that is listed.
struct Walk<'a> {
    array: &'a Array,
    stored: HashMap<ChunkId, bool>,
    /// All that are stored, if they are known.
    listed: Listed,
}

impl<'a> Walk<'a> {
    fn new(array: &'a Array) -> Self {
        Walk { array, stored: HashMap::new(), listed: Listed::default() }
    }

    fn is_stored(&mut self, chunk: ChunkId) -> Result<bool> {
        if let Some(chunks) = self.listed.as_ref() {
            return Ok(chunks.binary_search(&chunk).is_ok());
        }
        if let Some(stored) = self.stored.get(&chunk) {
            return Ok(*stored);
        }
        let stored = self.array.stat_chunk(chunk)?.is_some();
        self.stored.insert(chunk, stored);
        Ok(stored)
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
                if self.is_stored(run.chunk)? == wanted {
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
