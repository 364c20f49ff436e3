//! Which version of each chunk was given to readers since an array was last opened: the kernel may hold pages of it, and
//! may go on using them as long as the store still holds these versions. It knows nothing of pages or decoded bytes.

use super::DecodedPart;
use crate::array::Array;
use crate::store::Version;
use crate::util::memory::lock;
use crate::zarr::grid::ChunkId;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Mutex;

/// Chunks remembered of one array: to check them all takes some 50 ms. Beyond, an opening begins anew.
const MAX_OF_ARRAY: usize = 1 << 16;

/// Arrays remembered, also those that are gone.
const MAX_ARRAYS: usize = 1 << 14;

/// Chunks remembered in all: some 10 MB.
const MAX_IN_ALL: usize = 1 << 18;

/// Stands for the version of a chunk, or for its absence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionTag(u64);

impl VersionTag {
    /// Given as two versions: pages of both may be about.
    pub(super) const MIXED: VersionTag = VersionTag(u64::MAX);
    /// Of a chunk that is not in the store.
    pub const UNINITIALISED: VersionTag = VersionTag(u64::MAX - 1);
    /// Of a chunk that was written where none was stored.
    pub(super) const WRITTEN: VersionTag = VersionTag(u64::MAX - 2);

    /// Of a version; None is an uninitialised chunk.
    pub fn of(version: Option<&Version>) -> Self {
        version.map_or(VersionTag::UNINITIALISED, VersionTag::hash)
    }

    /// Of a piece of a chunk.
    pub fn of_piece(piece: Option<&DecodedPart>) -> Self {
        piece.map_or(VersionTag::UNINITIALISED, |piece| piece.mark)
    }

    /// Of the array itself, as its metadata are, and a chunk of it.
    pub fn of_array(array: &Array, version: Option<&Version>) -> Self {
        VersionTag::hash(&(array.id(), version))
    }

    fn hash(what: &impl Hash) -> Self {
        let mut hasher = DefaultHasher::new();
        what.hash(&mut hasher);
        // not those above
        VersionTag(hasher.finish() & !(1 << 63))
    }
}

/// The chunks given of one array.
#[derive(Default)]
pub struct Marks(HashMap<ChunkId, VersionTag>);

/// The chunks given of all arrays.
#[derive(Default)]
pub struct Seen {
    /// Protects the map, and the number of marks in it.
    arrays: Mutex<(HashMap<u64, Marks>, usize)>,
}

impl Seen {
    /// Begins to remember the chunks of an array, and returns those remembered so far; None if that is not all.
    pub fn begin(&self, array: u64) -> Option<Marks> {
        let mut arrays = lock(&self.arrays);
        if arrays.0.len() > MAX_ARRAYS {
            *arrays = (HashMap::new(), 0);
        }
        let before = arrays.0.insert(array, Marks::default());
        arrays.1 -= before.as_ref().map_or(0, |marks| marks.0.len());
        before
    }

    /// How many chunks of an array are remembered.
    pub fn count(&self, array: u64) -> usize {
        lock(&self.arrays).0.get(&array).map_or(0, |marks| marks.0.len())
    }

    /// Adds what was remembered before to what came meanwhile.
    pub fn put_back(&self, array: u64, marks: Marks) {
        for (chunk, mark) in marks.0 {
            self.note(array, chunk, mark);
        }
    }

    /// Remembers that a chunk which was given as `before` was stored as `after`, so that whoever has the one and what was
    /// written has the other. Without `before` all of it was written.
    pub fn replace(&self, array: u64, chunk: ChunkId, before: Option<VersionTag>, after: VersionTag) {
        let mut arrays = lock(&self.arrays);
        if let Some(known) = arrays.0.get_mut(&array).and_then(|marks| marks.0.get_mut(&chunk)) {
            *known = if before.is_none_or(|before| before == *known) { after } else { VersionTag::MIXED };
            return;
        }
        drop(arrays);
        self.note(array, chunk, after);
    }

    /// Remembers that a chunk was given.
    pub fn note(&self, array: u64, chunk: ChunkId, mark: VersionTag) {
        let mut arrays = lock(&self.arrays);
        let (map, count) = &mut *arrays;
        let Some(marks) = map.get_mut(&array) else { return };
        match marks.0.insert(chunk, mark) {
            None => *count += 1,
            Some(before) if before != mark => {
                marks.0.insert(chunk, VersionTag::MIXED);
            }
            Some(_) => {}
        }
        if marks.0.len() > MAX_OF_ARRAY {
            *count -= marks.0.len();
            map.remove(&array);
        } else if *count > MAX_IN_ALL {
            (*map, *count) = (HashMap::new(), 0);
        }
    }
}

/// True if the store still holds these versions of these chunks.
pub fn are_current(marks: &[(ChunkId, VersionTag)], array: &Array) -> bool {
    let (mut at, mut same) = (0, true);
    let chunks: Vec<ChunkId> = marks.iter().map(|(chunk, _)| *chunk).collect();
    array.stat_chunks(&chunks, &mut |stat| {
        same = stat.is_ok_and(|s| VersionTag::of(s.as_ref().map(|s| &s.version)) == marks[at].1);
        at += 1;
        same
    });
    same && at == marks.len()
}

impl Marks {
    /// How many chunks.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// True if the store still holds every chunk as it was given.
    pub fn is_current(&self, array: &Array) -> bool {
        let mut marks: Vec<(ChunkId, VersionTag)> = self.0.iter().map(|(chunk, mark)| (*chunk, *mark)).collect();
        marks.sort_unstable_by_key(|(chunk, _)| *chunk);
        are_current(&marks, array)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(n: u64) -> VersionTag {
        VersionTag::of(Some(&Version::Count(n)))
    }

    #[test]
    fn a_chunk_given_as_two_versions_is_never_current() {
        let seen = Seen::default();
        assert!(seen.begin(1).is_none());
        seen.note(1, ChunkId(3), mark(1));
        seen.note(1, ChunkId(3), mark(1));
        seen.note(2, ChunkId(3), mark(1));
        let marks = seen.begin(1).unwrap();
        assert_eq!(marks.0, HashMap::from([(ChunkId(3), mark(1))]));
        seen.note(1, ChunkId(3), mark(2));
        seen.put_back(1, marks);
        assert_eq!(seen.begin(1).unwrap().0[&ChunkId(3)], VersionTag::MIXED);
        assert!(seen.begin(2).is_none(), "it was not followed");
    }

    #[test]
    fn too_many_chunks_are_forgotten() {
        let seen = Seen::default();
        seen.begin(1);
        for i in 0..=MAX_OF_ARRAY as u64 {
            seen.note(1, ChunkId(i), mark(i));
        }
        assert!(seen.begin(1).is_none());
        assert_eq!(lock(&seen.arrays).1, 0);
    }
}
