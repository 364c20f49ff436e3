//! Protection of written bytes against older ones in the kernel's pages. The kernel has a page
//! cache for each file, and the flat bytes of an array are in several files: `data.raw`,
//! `data.npy`, containers, chunk files. A shared map makes a page of one of them dirty, and the
//! kernel writes it back whole, at any time.
//!
//! Invariant: a page never brings back bytes that are older than a write through another file. Each
//! such write puts a guard on its bytes before they are applied, and a page that is written back
//! does not change bytes that are guarded against its file. The guard ends when the kernel has
//! written back and dropped the pages of that file: pages that it reads afterwards hold the new
//! bytes.

use crate::array::Array;
use crate::cache::{Part, Ranges};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, MutexGuard};
use zarrfs_base::memory::lock;
use zarrfs_format::grid::ChunkId;
use zarrfs_store::Key;

/// Number of tables among which the arrays are distributed, so that writes to different arrays
/// seldom wait for each other.
const TABLES: usize = 64;

/// The guards of a mount, and the files that may have dirty pages.
pub struct PageGuards {
    /// Each protects the guards and writers of its arrays. A thread that applies a write holds one,
    /// so that a page that is written back finds both the guard and the new bytes, or neither.
    tables: [Mutex<GuardTable>; TABLES],
}

#[derive(Default)]
struct GuardTable {
    /// The files open for writing of each array, by inode number, and how often each is open.
    writers: HashMap<Key, Vec<(u64, usize)>>,
    /// Guards by the key of their chunk.
    guards: HashMap<Key, Vec<Guard>>,
    last: u64,
}

/// Bytes of a chunk, in C layout, that pages of a file must not change.
struct Guard {
    id: u64,
    inode: u64,
    ranges: Ranges,
}

/// The identity of a guard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuardId {
    table: usize,
    chunk: Key,
    id: u64,
}

/// The guards of an array while a write to it is applied.
pub struct HeldGuards<'a> {
    number: usize,
    table: MutexGuard<'a, GuardTable>,
}

impl Default for PageGuards {
    fn default() -> Self {
        PageGuards {
            tables: std::array::from_fn(|_| Mutex::default()),
        }
    }
}

impl PageGuards {
    /// Locks the guards of an array, to be held while a write is applied.
    pub fn lock(&self, array: &Key) -> HeldGuards<'_> {
        let mut hasher = DefaultHasher::new();
        array.hash(&mut hasher);
        let number = hasher.finish() as usize % TABLES;
        HeldGuards {
            number,
            table: lock(&self.tables[number]),
        }
    }

    /// Records that a file of an array was opened for writing.
    pub fn opened(&self, array: &Key, inode: u64) {
        let mut held = self.lock(array);
        let writers = held.table.writers.entry(array.clone()).or_default();
        match writers.iter_mut().find(|(i, _)| *i == inode) {
            Some((_, count)) => *count += 1,
            None => writers.push((inode, 1)),
        }
    }

    /// Records that a file opened for writing was closed: the kernel has written back its dirty
    /// pages.
    pub fn closed(&self, array: &Key, inode: u64) {
        let mut held = self.lock(array);
        let Some(writers) = held.table.writers.get_mut(array) else {
            return;
        };
        if let Some(at) = writers.iter().position(|(i, _)| *i == inode) {
            writers[at].1 -= 1;
            if writers[at].1 == 0 {
                writers.swap_remove(at);
            }
        }
        if writers.is_empty() {
            held.table.writers.remove(array);
        }
    }

    /// Returns how many open files with this inode number may write to the array.
    pub fn writers(&self, array: &Key, inode: u64) -> usize {
        let held = self.lock(array);
        let writers = held.table.writers.get(array).into_iter().flatten();
        writers
            .filter(|(i, _)| *i == inode)
            .map(|(_, count)| count)
            .sum()
    }

    /// Returns whether any file that may write to the array is open: the kernel may hold bytes that
    /// were not received.
    pub fn has_writers(&self, array: &Key) -> bool {
        self.lock(array).table.writers.contains_key(array)
    }

    /// Removes guards, because the kernel has dropped the pages that they guard against.
    pub fn remove(&self, guards: &[GuardId]) {
        for guard in guards {
            lock(&self.tables[guard.table]).remove(guard);
        }
    }
}

impl GuardTable {
    fn remove(&mut self, guard: &GuardId) {
        if let Some(list) = self.guards.get_mut(&guard.chunk) {
            list.retain(|other| other.id != guard.id);
            if list.is_empty() {
                self.guards.remove(&guard.chunk);
            }
        }
    }
}

impl HeldGuards<'_> {
    /// Returns the inode numbers of other files than `inode` through which the array may be
    /// written.
    pub fn other_writers(&self, array: &Key, inode: u64) -> Vec<u64> {
        let writers = self.table.writers.get(array).into_iter().flatten();
        writers
            .map(|(other, _)| *other)
            .filter(|other| *other != inode)
            .collect()
    }

    /// Guards bytes of a chunk, in C layout, against the pages of the file `inode`.
    pub fn add(&mut self, array: &Array, chunk: ChunkId, inode: u64, ranges: &Ranges) -> GuardId {
        let key = array.chunk_path(chunk);
        self.table.last += 1;
        let id = self.table.last;
        let guard = Guard {
            id,
            inode,
            ranges: ranges.clone(),
        };
        self.table
            .guards
            .entry(key.clone())
            .or_default()
            .push(guard);
        GuardId {
            table: self.number,
            chunk: key,
            id,
        }
    }

    /// Removes guards that were added under this lock.
    pub fn remove(&mut self, guards: &[GuardId]) {
        guards.iter().for_each(|guard| self.table.remove(guard));
    }

    /// Returns the parts of a page of the file `inode` that may be applied to a chunk, in ascending
    /// order.
    pub fn unguarded<'a>(
        &self,
        array: &Array,
        chunk: ChunkId,
        inode: u64,
        parts: &[Part<'a>],
    ) -> Vec<Part<'a>> {
        if self.table.guards.is_empty() {
            return parts.to_vec();
        }
        let guards = self
            .table
            .guards
            .get(&array.chunk_path(chunk))
            .into_iter()
            .flatten();
        let mut guarded = Ranges::default();
        guards
            .filter(|guard| guard.inode == inode)
            .for_each(|guard| guarded.add_all(&guard.ranges));
        let mut free = Vec::new();
        for (offset, bytes) in parts {
            let mut rest = Ranges::from(*offset..offset + bytes.len());
            rest.remove_all(&guarded);
            free.extend(rest.iter().map(|range| {
                (
                    range.start,
                    &bytes[range.start - offset..range.end - offset],
                )
            }));
        }
        free
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use zarrfs_format::metadata::ArrayMetadata;
    use zarrfs_store::MemoryStore;

    fn array() -> Array {
        let text = r#"{"zarr_format":2,"shape":[32],"chunks":[8],"dtype":"|u1","compressor":null,"fill_value":0,
            "order":"C","filters":null}"#;
        let metadata = ArrayMetadata::parse(text.as_bytes()).unwrap();
        Array::new(
            Key::root().join("a"),
            metadata,
            Arc::new(MemoryStore::default()),
            Arc::default(),
        )
        .unwrap()
    }

    #[test]
    fn a_page_changes_no_guarded_bytes_of_its_chunk() {
        let guards = PageGuards::default();
        let array = array();
        let page: &[Part] = &[(0, b"01234567")];
        let first = guards
            .lock(array.key())
            .add(&array, ChunkId(1), 7, &Ranges::from(2..4));
        let second = guards
            .lock(array.key())
            .add(&array, ChunkId(1), 7, &Ranges::from(3..5));
        let free = |chunk, inode| {
            let parts = guards
                .lock(array.key())
                .unguarded(&array, ChunkId(chunk), inode, page);
            parts
                .iter()
                .map(|(at, bytes)| (*at, String::from_utf8_lossy(bytes).into_owned()))
                .collect::<Vec<_>>()
        };
        assert_eq!(free(1, 7), [(0, "01".into()), (5, "567".into())]);
        assert_eq!(free(1, 8), [(0, "01234567".into())], "another file");
        assert_eq!(free(2, 7), [(0, "01234567".into())], "another chunk");
        guards.remove(&[first]);
        assert_eq!(free(1, 7), [(0, "012".into()), (5, "567".into())]);
        guards.remove(&[second.clone(), second]);
        assert_eq!(free(1, 7), [(0, "01234567".into())]);
        assert!(guards.lock(array.key()).table.guards.is_empty());
    }

    #[test]
    fn writers_are_counted() {
        let guards = PageGuards::default();
        let array = Key::root().join("a");
        guards.opened(&array, 7);
        guards.opened(&array, 7);
        guards.opened(&array, 8);
        assert_eq!(
            (
                guards.writers(&array, 7),
                guards.lock(&array).other_writers(&array, 7)
            ),
            (2, vec![8])
        );
        guards.closed(&array, 7);
        assert_eq!(guards.lock(&array).other_writers(&array, 8), [7]);
        guards.closed(&array, 7);
        guards.closed(&array, 8);
        assert!(
            guards.lock(&array).other_writers(&array, 0).is_empty()
                && guards.lock(&array).table.writers.is_empty()
        );
    }
}
