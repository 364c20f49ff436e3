//! Protection of written bytes against older ones in the kernel's pages. The kernel has a page cache for each file, and the
//! flat bytes of an array are in several files: `data.raw`, `data.npy`, containers, chunk files. A shared map makes a
//! page of one of them dirty, and the kernel writes it back whole, at any time.
//!
//! Invariant: a page never brings back bytes that are older than a write through another file. Each such write puts a
//! guard on its bytes before they are applied. A page that is written back does not touch what is guarded against its
//! file. The guard goes when the kernel has written back and dropped the pages of that file: pages that it reads
//! afterwards hold the new bytes.

use crate::array::Array;
use crate::cache::{Part, Ranges};
use crate::store::Key;
use crate::util::memory::lock;
use crate::zarr::grid::ChunkId;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

/// The guards of a mount, and who may have dirty pages.
#[derive(Default)]
pub struct PageGuards {
    /// Protects everything. A thread that applies a write holds it, so that a page that is written back finds either
    /// no guard and older bytes, or both.
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The files open for writing of each array, by inode number, and how often.
    writers: HashMap<Key, Vec<(u64, usize)>>,
    /// By the key of the chunk.
    guards: HashMap<Key, Vec<Guard>>,
    last: u64,
}

/// Bytes of a chunk, C layout, that pages of a file must not change.
struct Guard {
    id: u64,
    inode: u64,
    ranges: Ranges,
}

/// Names a guard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardId {
    chunk: Key,
    id: u64,
}

/// The guards while a write is applied.
pub struct HeldGuards<'a>(MutexGuard<'a, State>);

impl PageGuards {
    /// To be held while a write is applied.
    pub fn lock(&self) -> HeldGuards<'_> {
        HeldGuards(lock(&self.state))
    }

    /// Records that a file of an array was opened for writing.
    pub fn opened(&self, array: &Key, inode: u64) {
        let mut state = lock(&self.state);
        let writers = state.writers.entry(array.clone()).or_default();
        match writers.iter_mut().find(|(i, _)| *i == inode) {
            Some((_, count)) => *count += 1,
            None => writers.push((inode, 1)),
        }
    }

    /// Records that such a file was closed: the kernel has written back its dirty pages.
    pub fn closed(&self, array: &Key, inode: u64) {
        let mut state = lock(&self.state);
        let Some(writers) = state.writers.get_mut(array) else { return };
        if let Some(at) = writers.iter().position(|(i, _)| *i == inode) {
            writers[at].1 -= 1;
            if writers[at].1 == 0 {
                writers.swap_remove(at);
            }
        }
        if writers.is_empty() {
            state.writers.remove(array);
        }
    }

    /// Returns how many open files with this inode number may write to the array.
    pub fn writers(&self, array: &Key, inode: u64) -> usize {
        let state = lock(&self.state);
        let writers = state.writers.get(array).into_iter().flatten();
        writers.filter(|(i, _)| *i == inode).map(|(_, count)| count).sum()
    }

    /// Removes guards: the kernel has dropped the pages that they were against.
    pub fn remove(&self, guards: &[GuardId]) {
        self.lock().remove(guards);
    }
}

impl HeldGuards<'_> {
    /// The inode numbers of other files than `inode` through which the array may be written.
    pub fn other_writers(&self, array: &Key, inode: u64) -> Vec<u64> {
        let writers = self.0.writers.get(array).into_iter().flatten();
        writers.map(|(other, _)| *other).filter(|other| *other != inode).collect()
    }

    /// Guards bytes of a chunk, C layout, against the pages of the file `inode`.
    pub fn add(&mut self, array: &Array, chunk: ChunkId, inode: u64, ranges: &Ranges) -> GuardId {
        let key = array.chunk_key(chunk);
        self.0.last += 1;
        let id = self.0.last;
        let guard = Guard { id, inode, ranges: ranges.clone() };
        self.0.guards.entry(key.clone()).or_default().push(guard);
        GuardId { chunk: key, id }
    }

    /// See [`PageGuards::remove`].
    pub fn remove(&mut self, guards: &[GuardId]) {
        for GuardId { chunk, id } in guards {
            if let Some(list) = self.0.guards.get_mut(chunk) {
                list.retain(|guard| guard.id != *id);
                if list.is_empty() {
                    self.0.guards.remove(chunk);
                }
            }
        }
    }

    /// The parts of a page of the file `inode` that may be applied to a chunk, in order of their places.
    pub fn unguarded<'a>(&self, array: &Array, chunk: ChunkId, inode: u64, parts: &[Part<'a>]) -> Vec<Part<'a>> {
        if self.0.guards.is_empty() {
            return parts.to_vec();
        }
        let guards = self.0.guards.get(&array.chunk_key(chunk)).into_iter().flatten();
        let mut guarded = Ranges::default();
        guards.filter(|guard| guard.inode == inode).for_each(|guard| guarded.add_all(&guard.ranges));
        let mut free = Vec::new();
        for (offset, bytes) in parts {
            let mut rest = Ranges::from(*offset..offset + bytes.len());
            rest.remove_all(&guarded);
            free.extend(rest.iter().map(|range| (range.start, &bytes[range.start - offset..range.end - offset])));
        }
        free
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;
    use crate::zarr::metadata::ArrayMetadata;
    use std::sync::Arc;

    fn array() -> Array {
        let text = r#"{"zarr_format":2,"shape":[32],"chunks":[8],"dtype":"|u1","compressor":null,"fill_value":0,
            "order":"C","filters":null}"#;
        let metadata = ArrayMetadata::parse(text.as_bytes()).unwrap();
        Array::new(Key::root().join("a"), metadata, Arc::new(MemoryStore::default()), Arc::default()).unwrap()
    }

    #[test]
    fn a_page_changes_no_guarded_bytes_of_its_chunk() {
        let (guards, array) = (PageGuards::default(), array());
        let page: &[Part] = &[(0, b"01234567")];
        let first = guards.lock().add(&array, ChunkId(1), 7, &Ranges::from(2..4));
        let second = guards.lock().add(&array, ChunkId(1), 7, &Ranges::from(3..5));
        let free = |chunk, inode| {
            let parts = guards.lock().unguarded(&array, ChunkId(chunk), inode, page);
            parts.iter().map(|(at, bytes)| (*at, String::from_utf8_lossy(bytes).into_owned())).collect::<Vec<_>>()
        };
        assert_eq!(free(1, 7), [(0, "01".into()), (5, "567".into())]);
        assert_eq!(free(1, 8), [(0, "01234567".into())], "another file");
        assert_eq!(free(2, 7), [(0, "01234567".into())], "another chunk");
        guards.remove(&[first]);
        assert_eq!(free(1, 7), [(0, "012".into()), (5, "567".into())]);
        guards.remove(&[second.clone(), second]);
        assert_eq!(free(1, 7), [(0, "01234567".into())]);
        assert!(lock(&guards.state).guards.is_empty());
    }

    #[test]
    fn writers_are_counted() {
        let (guards, array) = (PageGuards::default(), Key::root().join("a"));
        guards.opened(&array, 7);
        guards.opened(&array, 7);
        guards.opened(&array, 8);
        assert_eq!((guards.writers(&array, 7), guards.lock().other_writers(&array, 7)), (2, vec![8]));
        guards.closed(&array, 7);
        assert_eq!(guards.lock().other_writers(&array, 8), [7]);
        guards.closed(&array, 7);
        guards.closed(&array, 8);
        assert!(guards.lock().other_writers(&array, 0).is_empty() && lock(&guards.state).writers.is_empty());
    }
}
