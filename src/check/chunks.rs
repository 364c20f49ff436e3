//! Examines stored chunks: their sizes, or their decoded contents, several at a time in bounded
//! memory. This module knows nothing of names and metadata.

use super::CheckOptions;
use crate::array::{Array, ArrayEntry, Scratch};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory;
use zarrfs_format::grid::ChunkId;
use zarrfs_format::metadata::MAX_CHUNK;
use zarrfs_store::{EntryKind, Stat};

/// Maximum number of chunks in a batch.
const BATCH: usize = 1024;

/// Maximum decoded size of a batch in bytes; bounds the time between progress reports.
const BATCH_BYTES: usize = 256 << 20;

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

/// Examines `chunks` and returns the results in their order, without chunks that are not stored or
/// that were not started before the check was stopped.
pub(super) fn examine(array: &Array, chunks: &[ChunkId], how: CheckOptions) -> Vec<Examined> {
    if how.deep && array.readable().is_ok() {
        decode(array, chunks, how)
    } else {
        sizes(array, chunks, how)
    }
}

/// Examines all stored chunks of an array. A store that cannot list is asked for each chunk of the
/// grid.
///
/// # Errors
///
/// The listing fails.
pub fn examine_all(
    array: &Arc<Array>,
    how: CheckOptions,
    each: &mut dyn FnMut(Examined),
) -> Result<()> {
    let mut batch = Vec::with_capacity(per_batch(array));
    let mut examine_batch = |batch: &mut Vec<ChunkId>| {
        examine(array, batch, how).into_iter().for_each(&mut *each);
        batch.clear();
    };
    let mut chunks: Box<dyn Iterator<Item = Result<ArrayEntry>>> = if array.lists_all() {
        Box::new(array.entries()?)
    } else {
        Box::new((0..array.grid().chunk_count()).map(|id| Ok(ArrayEntry::Chunk(ChunkId(id)))))
    };
    while !how.is_stopped()
        && let Some(entry) = chunks.next()
    {
        match entry {
            Ok(ArrayEntry::Chunk(chunk)) => batch.push(chunk),
            Ok(ArrayEntry::Value(_)) => {}
            Ok(ArrayEntry::Unlisted) => {
                return Err(Error::damaged("some chunks can't be listed").context(array.key()));
            }
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
    let mut examined = Vec::with_capacity(chunks.len());
    let mut next = chunks.iter();
    let mut examine = |stat: Result<Option<Stat>>| {
        let Some(&chunk) = next.next() else {
            return false;
        };
        let (stored, checked) = match stat {
            Ok(None) => return !how.is_stopped(),
            Ok(Some(stat)) if stat.kind != EntryKind::Value => (
                0,
                Err(Error::damaged("is not a regular file").context(array.stored_key(chunk))),
            ),
            Ok(Some(stat)) => (stat.size, array.check_stored_size(chunk, stat.size)),
            Err(e) => (0, Err(e)),
        };
        examined.push(Examined {
            chunk,
            stored,
            fault: checked.err(),
        });
        !how.is_stopped()
    };
    match array.shard_count() {
        None => array.stat_chunks(&mut chunks.iter().copied(), &mut examine),
        // `stat_chunks` does not report a damaged index or entry, but `stat_entry` does
        Some(_) => drop(chunks.iter().all(|chunk| examine(array.stat_entry(*chunk)))),
    }
    examined
}

/// Decodes chunks, several at a time if they fit into the bound of the cache together. The size of
/// a chunk of objects is known once it is decoded; those that are too large beside others are
/// decoded alone.
fn decode(array: &Array, chunks: &[ChunkId], how: CheckOptions) -> Vec<Examined> {
    let bound = memory::available_for_chunk().saturating_sub(memory::RESERVE);
    let room = (bound / array.chunk_memory().max(1)).max(1);
    let threads = array.concurrency(how.threads).min(room).min(chunks.len());
    let next = AtomicUsize::new(0);
    let work = || {
        let mut examined = Vec::new();
        let mut memory = DecodeMemory::new(bound / threads.max(1));
        while !how.is_stopped()
            && let Some(&chunk) = chunks.get(next.fetch_add(1, Ordering::Relaxed))
        {
            examined.extend(decode_one(array, chunk, &mut memory));
        }
        examined
    };
    let mut examined = match threads {
        0 | 1 => work(),
        _ => std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            let joined = workers.into_iter().map(|worker| worker.join());
            joined
                .flat_map(|done| done.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        }),
    };
    if array.metadata().has_objects() {
        let mut memory = DecodeMemory::new(MAX_CHUNK as usize);
        for failed in examined
            .iter_mut()
            .filter(|examined| examined.fault.is_some())
        {
            *failed =
                decode_one(array, failed.chunk, &mut memory).unwrap_or_else(|| failed.clone());
        }
    }
    examined.sort_unstable_by_key(|e| e.chunk);
    examined
}

/// The memory of a thread that decodes.
struct DecodeMemory {
    buffer: Vec<u8>,
    scratch: Scratch,
}

impl DecodeMemory {
    /// Returns memory for chunks of objects of at most `max_objects` bytes, encoded and decoded.
    fn new(max_objects: usize) -> Self {
        let scratch = Scratch {
            max_objects: Some(max_objects),
            ..Scratch::default()
        };
        DecodeMemory {
            buffer: Vec::new(),
            scratch,
        }
    }
}

/// Decodes a chunk; `None` if it is not stored.
fn decode_one(array: &Array, chunk: ChunkId, memory: &mut DecodeMemory) -> Option<Examined> {
    match array.load(
        chunk,
        std::mem::take(&mut memory.buffer),
        &mut memory.scratch,
    ) {
        Ok(None) => None,
        Ok(Some(loaded)) => {
            let fault = array.check_objects(chunk, &loaded.bytes).err();
            memory.buffer = loaded.bytes;
            Some(Examined {
                chunk,
                stored: loaded.stored,
                fault,
            })
        }
        Err(e) => {
            let stored = array
                .stat_chunk(chunk)
                .ok()
                .flatten()
                .map_or(0, |stat| stat.size);
            Some(Examined {
                chunk,
                stored,
                fault: Some(e),
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zarrfs_format::metadata::ArrayMetadata;
    use zarrfs_store::{Key, MemoryStore};

    #[test]
    fn a_chunk_of_objects_is_decoded_within_its_memory() {
        let document =
            br#"{"zarr_format":2,"shape":[1],"chunks":[1],"dtype":"|O","compressor":{"id":"zlib"},
            "fill_value":null,"order":"C","filters":[{"id":"vlen-bytes"}]}"#;
        let decoded = [
            &1u32.to_le_bytes()[..],
            &(8u32 << 20).to_le_bytes(),
            &vec![0; 8 << 20],
        ]
        .concat();
        let metadata = ArrayMetadata::parse(document).unwrap();
        let store = Arc::new(MemoryStore::default());
        let array = Array::new(
            Key::normalize("a").unwrap(),
            metadata,
            store,
            Arc::default(),
        )
        .unwrap();
        array
            .store(ChunkId(0), &decoded, &mut Scratch::default())
            .unwrap();
        let fault = |memory| {
            decode_one(&array, ChunkId(0), &mut DecodeMemory::new(memory))
                .unwrap()
                .fault
        };
        assert_eq!(fault(16 << 20), None);
        assert!(fault(4 << 20).is_some());
    }
}
