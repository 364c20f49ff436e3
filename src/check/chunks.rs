//! Examines stored chunks: their sizes, or their decoded contents, several at a time in bounded memory. This module
//! knows nothing of names and metadata.

use super::CheckOptions;
use crate::array::{Array, ArrayEntry, Scratch};
use crate::error::{Error, Result};
use crate::store::{EntryKind, Stat};
use crate::zarr::grid::ChunkId;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum number of chunks in a batch.
const BATCH: usize = 1024;

/// Maximum decoded size of a batch in bytes; bounds the time between progress reports.
const BATCH_BYTES: usize = 256 << 20;

/// Maximum decoded size of all chunks in memory, in bytes, unless one chunk is larger.
const IN_MEMORY: usize = 1 << 30;

/// The result of examining a stored chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Examined {
    /// The chunk's number in the grid.
    pub chunk: ChunkId,
    /// The stored size in bytes; 0 if it is unknown.
    pub stored: u64,
    /// The reason why the chunk cannot be read, with key, codecs and cause.
    pub fault: Option<Error>,
}

/// Returns the number of chunks of an array that form a batch.
pub(super) fn per_batch(array: &Array) -> usize {
    (BATCH_BYTES / array.grid().max_chunk_size().max(1)).clamp(16, BATCH)
}

/// Examines `chunks` and returns the results in their order, without chunks that are not stored or that were not
/// started before the check was stopped.
pub(super) fn examine(array: &Array, chunks: &[ChunkId], how: CheckOptions) -> Vec<Examined> {
    match how.deep && array.readable().is_ok() {
        true => decode(array, chunks, how),
        false => sizes(array, chunks, how),
    }
}

/// Examines all stored chunks of an array. A store that cannot list is asked for each chunk of the grid.
///
/// # Errors
///
/// The listing fails.
pub fn examine_all(array: &Arc<Array>, how: CheckOptions, each: &mut dyn FnMut(Examined)) -> Result<()> {
    let mut batch = Vec::with_capacity(per_batch(array));
    let mut examine_batch = |batch: &mut Vec<ChunkId>| {
        examine(array, batch, how).into_iter().for_each(&mut *each);
        batch.clear();
    };
    let mut chunks: Box<dyn Iterator<Item = Result<ArrayEntry>>> = match array.lists_all() {
        true => Box::new(array.entries()?),
        false => Box::new((0..array.grid().chunk_count()).map(|id| Ok(ArrayEntry::Chunk(ChunkId(id))))),
    };
    while !how.is_stopped()
        && let Some(entry) = chunks.next()
    {
        match entry {
            Ok(ArrayEntry::Chunk(chunk)) => batch.push(chunk),
            Ok(ArrayEntry::Value(_)) => {}
            Ok(ArrayEntry::Unlisted) => return Err(Error::damaged("some chunks can't be listed").context(array.key())),
            Err(e) => return Err(e.context(array.key())),
        }
        if batch.len() == batch.capacity() {
            examine_batch(&mut batch);
        }
    }
    examine_batch(&mut batch);
    Ok(())
}

fn sizes(array: &Array, chunks: &[ChunkId], how: CheckOptions) -> Vec<Examined> {
    let (mut examined, mut next) = (Vec::with_capacity(chunks.len()), chunks.iter());
    let mut examine = |stat: Result<Option<Stat>>| {
        let Some(&chunk) = next.next() else { return false };
        let (stored, checked) = match stat {
            Ok(None) => return !how.is_stopped(),
            Ok(Some(stat)) if stat.kind != EntryKind::Value => {
                (0, Err(Error::damaged("is not a regular file").context(array.extent(chunk))))
            }
            Ok(Some(stat)) => (stat.size, array.check_stored_size(chunk, stat.size)),
            Err(e) => (0, Err(e)),
        };
        examined.push(Examined { chunk, stored, fault: checked.err() });
        !how.is_stopped()
    };
    match array.shard_count() {
        None => array.stat_chunks(&mut chunks.iter().copied(), &mut examine),
        // `stat_chunks` does not report a damaged index or entry, but `stat_entry` does
        Some(_) => drop(chunks.iter().all(|chunk| examine(array.stat_entry(*chunk)))),
    }
    examined
}

fn decode(array: &Array, chunks: &[ChunkId], how: CheckOptions) -> Vec<Examined> {
    let room = (IN_MEMORY / array.grid().max_chunk_size().max(1)).max(1);
    let threads = array.concurrency(how.threads).min(room).min(chunks.len());
    let next = AtomicUsize::new(0);
    let work = || {
        let (mut examined, mut buffer, mut scratch) = (Vec::new(), Vec::new(), Scratch::default());
        while !how.is_stopped()
            && let Some(&chunk) = chunks.get(next.fetch_add(1, Ordering::Relaxed))
        {
            match array.load(chunk, std::mem::take(&mut buffer), &mut scratch) {
                Ok(None) => {}
                Ok(Some(loaded)) => {
                    let fault = array.check_objects(chunk, &loaded.bytes).err();
                    examined.push(Examined { chunk, stored: loaded.stored, fault });
                    buffer = loaded.bytes;
                }
                Err(e) => {
                    let stored = array.stat_chunk(chunk).ok().flatten().map_or(0, |stat| stat.size);
                    examined.push(Examined { chunk, stored, fault: Some(e) });
                }
            }
        }
        examined
    };
    let mut examined = match threads {
        0 | 1 => work(),
        _ => std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            let joined = workers.into_iter().map(|worker| worker.join());
            joined.flat_map(|done| done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        }),
    };
    examined.sort_unstable_by_key(|e| e.chunk);
    examined
}
