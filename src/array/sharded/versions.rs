//! The versions of chunks whose object this mount has replaced. This module reads nothing.
//!
//! Invariant: two different contents of a chunk have two different versions. When this mount puts
//! an object with some changed chunks, it copies all other chunks from one version of the former
//! object. These keep their versions, whatever version the new object gets. So the bytes that the
//! cache and the kernel hold of them stay current.

use lru::LruCache;
use std::collections::HashMap;
use zarrfs_format::grid::ChunkId;
use zarrfs_store::Version;

/// Maximum number of chunks per array whose versions are kept. Any other chunk has the version of
/// its object.
const MAX: usize = 1 << 16;

/// The versions of the chunks in one version of an object.
pub struct ChunkVersions {
    /// The version of the object that these versions apply to.
    object: Version,
    /// The version of all chunks that are not in `changed`.
    rest: Version,
    changed: HashMap<ChunkId, Version>,
}

/// The versions of chunks in the most recently put objects of an array.
pub struct KnownVersions {
    objects: LruCache<u64, ChunkVersions>,
    /// Number of chunks in all of `objects`.
    total: usize,
}

impl Default for KnownVersions {
    fn default() -> Self {
        KnownVersions {
            objects: LruCache::unbounded(),
            total: 0,
        }
    }
}

impl KnownVersions {
    /// Returns the version that a chunk has in the version `found` of its object.
    pub fn version(&self, object: u64, chunk: ChunkId, found: &Version) -> Version {
        let known = self
            .objects
            .peek(&object)
            .filter(|known| known.object == *found);
        known
            .map_or(found, |known| {
                known.changed.get(&chunk).unwrap_or(&known.rest)
            })
            .clone()
    }

    /// Records that an object was put as `new`, with `changed` chunks. All other chunks are copies
    /// from the version `old`; without `old` there are no others.
    pub fn record_put(
        &mut self,
        object: u64,
        old: Option<&Version>,
        new: &Version,
        changed: impl Iterator<Item = (ChunkId, Version)>,
    ) {
        let known = self
            .remove(object)
            .filter(|known| Some(&known.object) == old);
        let (rest, mut versions) = match (known, old) {
            (Some(known), _) => (known.rest, known.changed),
            (None, old) => (old.unwrap_or(new).clone(), HashMap::new()),
        };
        versions.extend(changed);
        self.total += versions.len();
        self.objects.put(
            object,
            ChunkVersions {
                object: new.clone(),
                rest,
                changed: versions,
            },
        );
        while self.total > MAX
            && let Some((_, dropped)) = self.objects.pop_lru()
        {
            self.total -= dropped.changed.len();
        }
    }

    fn remove(&mut self, object: u64) -> Option<ChunkVersions> {
        let known = self.objects.pop(&object);
        self.total -= known.as_ref().map_or(0, |known| known.changed.len());
        known
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_keep_their_versions_over_puts_of_others() {
        let mut known = KnownVersions::default();
        let v = Version::Count;
        let version =
            |known: &KnownVersions, chunk, found| known.version(0, ChunkId(chunk), &v(found));
        assert_eq!(version(&known, 1, 10), v(10));
        known.record_put(
            0,
            Some(&v(10)),
            &v(11),
            [(ChunkId(1), Version::Pending(1))].into_iter(),
        );
        assert_eq!(
            (version(&known, 1, 11), version(&known, 2, 11)),
            (Version::Pending(1), v(10))
        );
        known.record_put(
            0,
            Some(&v(11)),
            &v(12),
            [(ChunkId(2), Version::Pending(2))].into_iter(),
        );
        let versions = [1, 2, 3].map(|chunk| version(&known, chunk, 12));
        assert_eq!(versions, [Version::Pending(1), Version::Pending(2), v(10)]);
        // another writer has replaced the object
        assert_eq!(version(&known, 1, 13), v(13));
        known.record_put(
            0,
            Some(&v(13)),
            &v(14),
            [(ChunkId(2), Version::Pending(3))].into_iter(),
        );
        assert_eq!(
            (version(&known, 1, 14), version(&known, 2, 14)),
            (v(13), Version::Pending(3))
        );
    }

    #[test]
    fn memory_is_bounded() {
        let mut known = KnownVersions::default();
        let all = || (0..40_000).map(|chunk| (ChunkId(chunk), Version::Pending(chunk)));
        known.record_put(0, None, &Version::Count(1), all());
        known.record_put(1, None, &Version::Count(2), all());
        assert!(known.total <= MAX && known.objects.len() == 1);
        known.record_put(
            2,
            None,
            &Version::Count(2),
            (0..70_000).map(|chunk| (ChunkId(chunk), Version::Pending(chunk))),
        );
        assert_eq!((known.total, known.objects.len()), (0, 0));
    }
}
