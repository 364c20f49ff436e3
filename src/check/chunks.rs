//! Stored chunks looked at: their sizes, or each decoded, several at a time. Memory is bounded whatever the chunks are. It
//! knows nothing of names and metadata.

use super::CheckOptions;
use crate::array::{Array, ArrayEntry, Scratch};
use crate::error::{Error, Result};
use crate::store::EntryKind;
use crate::zarr::grid::ChunkId;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Chunks that are looked at together at most.
const BATCH: usize = 1024;

/// Decoded bytes of chunks that are looked at together: somebody waits for how far it has come.
const BATCH_BYTES: usize = 256 << 20;

/// Decoded bytes that threads may have in memory together, unless it is a single chunk.
const IN_MEMORY: usize = 1 << 30;

/// A stored chunk, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Examined {
    /// Its number in the grid.
    pub chunk: ChunkId,
    /// Stored bytes; 0 where that could not be told.
    pub stored: u64,
    /// Why it can't be read, naming key, codecs and cause.
    pub fault: Option<Error>,
}

/// How many chunks of an array are best looked at together.
pub(super) fn per_batch(array: &Array) -> usize {
    (BATCH_BYTES / array.grid().chunk_size().max(1)).clamp(16, BATCH)
}

/// Looks at `chunks`, in order. Those that are not stored are left out, and so are those that were not begun when
/// somebody stopped it.
pub(super) fn examine(array: &Array, chunks: &[ChunkId], how: CheckOptions) -> Vec<Examined> {
    match how.deep && array.readable().is_ok() {
        true => decode(array, chunks, how),
        false => sizes(array, chunks, how),
    }
}

/// Looks at all stored chunks of an array: those that are listed, or, where the store can't list, those of the grid that are
/// there. An error is of the listing.
pub fn examine_all(array: &Arc<Array>, how: CheckOptions, each: &mut dyn FnMut(Examined)) -> Result<()> {
    let mut batch = Vec::with_capacity(per_batch(array));
    let mut look_at = |batch: &mut Vec<ChunkId>| {
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
            look_at(&mut batch);
        }
    }
    look_at(&mut batch);
    Ok(())
}

fn sizes(array: &Array, chunks: &[ChunkId], how: CheckOptions) -> Vec<Examined> {
    let (mut examined, mut next) = (Vec::with_capacity(chunks.len()), chunks.iter());
    array.stat_chunks(chunks, &mut |stat| {
        let Some(&chunk) = next.next() else { return false };
        let (stored, checked) = match stat {
            Ok(None) => return !how.is_stopped(),
            Ok(Some(stat)) if stat.kind != EntryKind::Value => {
                (0, Err(Error::damaged("is not a regular file").context(array.chunk_key(chunk))))
            }
            Ok(Some(stat)) => (stat.size, array.check_stored_size(chunk, stat.size)),
            Err(e) => (0, Err(e)),
        };
        examined.push(Examined { chunk, stored, fault: checked.err() });
        !how.is_stopped()
    });
    examined
}

fn decode(array: &Array, chunks: &[ChunkId], how: CheckOptions) -> Vec<Examined> {
    let room = (IN_MEMORY / array.grid().chunk_size().max(1)).max(1);
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
