//! SEEK_DATA and SEEK_HOLE on flat bytes: if the fill value is zero bytes, uninitialized chunks are
//! holes. A search looks up a bounded number of chunks or lists the stored ones, but never looks up
//! each chunk of a vast grid.

use crate::array::{Array, ArrayEntry, Opening};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory::lock;
use zarrfs_format::grid::ChunkId;

/// Maximum number of chunks looked up one by one before the store is listed instead.
const PROBES: usize = 256;

/// Maximum number of listed chunks kept per open file: 8 MiB of numbers.
const MAX_LISTED: usize = 1 << 20;

/// Maximum number of listed chunks kept for a remote store: listing them takes some seconds, at a
/// thousand keys per request.
const MAX_LISTED_REMOTE: usize = 1 << 17;

/// Maximum number of runs examined before the rest of the file is reported as data, which lseek(2)
/// allows.
const MAX_STEPS: usize = 100_000;

/// The target of a seek.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seek {
    /// Stored bytes.
    Data,
    /// Bytes that are not stored and read as zeros.
    Hole,
}

/// The stored chunks of an open file, listed when they are first needed: a copy of a sparse file
/// seeks again and again.
#[derive(Default)]
pub struct StoredChunks {
    /// The list, and the state of the array that it shows. The lock protects both.
    listed: Mutex<Option<(ListedState, ListedChunks)>>,
}

/// The array by its number, its opening, and how many chunks this mount has stored or erased: a
/// list must be no older.
type ListedState = (u64, Opening, u64);

/// Chunks in the order of their numbers; `None` if there are too many to keep, or if some cannot be
/// listed.
type ListedChunks = Arc<Option<Vec<ChunkId>>>;

impl StoredChunks {
    /// Returns the first position at or after `offset` where data or a hole begins. `offset` must
    /// be inside the array. The end of the file counts as a hole. `has_holes` says whether bytes
    /// that are not stored read as zeros.
    ///
    /// # Errors
    ///
    /// ENXIO if there is no data up to the end.
    pub fn seek(
        &self,
        array: &Arc<Array>,
        offset: u64,
        target: Seek,
        has_holes: bool,
    ) -> Result<u64> {
        // all is data if chunks are dirty because they could not be stored just now, or if the
        // store would have to be asked for each chunk because it cannot list
        let is_all_data = array.is_dirty() || !has_holes || !array.lists_all();
        match target {
            Seek::Data if is_all_data => Ok(offset),
            Seek::Hole if is_all_data => Ok(array.size()),
            Seek::Data => self.data(array, offset),
            Seek::Hole => self.hole(array, offset),
        }
    }

    fn hole(&self, array: &Arc<Array>, offset: u64) -> Result<u64> {
        let mut search = Search::new(array);
        if array.is_remote() {
            search.listed = self.listed(array);
            if search.listed.is_none() {
                return Ok(array.size());
            }
        }
        Ok(search
            .find(offset, MAX_STEPS, false)?
            .flatten()
            .unwrap_or(array.size()))
    }

    /// Probes a few chunks, then lists the stored ones. Reports data if they cannot be listed: a
    /// hole would be copied as zeros, while reading reports the error.
    fn data(&self, array: &Arc<Array>, offset: u64) -> Result<u64> {
        // a remote store lists a thousand chunks in the time of a probe
        if !array.is_remote()
            && let Some(found) = Search::new(array).find(offset, PROBES, true)?
        {
            return found.ok_or_else(|| Error::system(libc::ENXIO));
        }
        let listed = self.listed(array);
        let Some(chunks) = listed.as_ref() else {
            return Ok(offset);
        };
        let grid = array.grid();
        let band = array.grid().band(offset);
        let [start, end] = [band.start, band.end].map(|id| chunks.partition_point(|c| c.0 < id));
        let inside = chunks[start..end]
            .iter()
            .filter_map(|&c| grid.next_in_chunk(c, offset))
            .min();
        inside
            .or_else(|| grid.next_in_chunk(*chunks.get(end)?, offset))
            .ok_or_else(|| Error::system(libc::ENXIO))
    }

    fn listed(&self, array: &Arc<Array>) -> ListedChunks {
        let mut listed = lock(&self.listed);
        let now = (
            array.id(),
            array.freshness().opening(),
            array.freshness().stores(),
        );
        match &*listed {
            Some((state, list)) if *state == now => list.clone(),
            _ => {
                let list = Arc::new(stored_chunks(array));
                *listed = Some((now, list.clone()));
                list
            }
        }
    }
}

/// Returns the stored chunks in the order of their numbers; `None` if there are too many, or if
/// some cannot be listed.
pub fn stored_chunks(array: &Arc<Array>) -> Option<Vec<ChunkId>> {
    let mut chunks = Vec::new();
    let most = if array.is_remote() {
        MAX_LISTED_REMOTE
    } else {
        MAX_LISTED
    };
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

/// A search along the flat bytes that looks up each chunk at most once, and none if they are
/// listed.
struct Search<'a> {
    array: &'a Array,
    stored: HashMap<ChunkId, bool>,
    listed: ListedChunks,
}

impl<'a> Search<'a> {
    fn new(array: &'a Array) -> Self {
        Search {
            array,
            stored: HashMap::new(),
            listed: ListedChunks::default(),
        }
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

    /// Returns the first position at or after `from` in a chunk that is stored, if `wanted`, or
    /// else is not stored; `Some(None)` if there is none up to the end, `None` if none was found
    /// within `steps` runs.
    fn find(&mut self, from: u64, steps: usize, wanted: bool) -> Result<Option<Option<u64>>> {
        let array = self.array;
        let grid = self.array.grid();
        let mut row = from;
        let mut steps = steps;
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
