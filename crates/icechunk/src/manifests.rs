//! The manifests of a repository in memory: those that were used last, within a quarter of the
//! memory for documents. They never change, so that all snapshots share them.

use super::ice_file::IceFileKind;
use super::manifest::IceManifest;
use super::repository::IceRepository;
use lru::LruCache;
use std::sync::{Arc, Mutex};
use zarrfs_base::error::{Error, ErrorContext, Result};
use zarrfs_base::memory::{self, Reclaim, lock};
use zarrfs_store::{Key, ObjectId, present};

/// A repository and its manifests.
pub(super) struct IceManifests {
    pub repository: IceRepository,
    /// The lock protects the map and its memory alone.
    kept: Mutex<KeptManifests>,
}

/// The manifests that were used last, and their memory together in bytes.
struct KeptManifests {
    slots: LruCache<ObjectId, KeptManifest>,
    memory: usize,
}

/// A manifest, and its memory in bytes: 0 before it was read.
#[derive(Default)]
struct KeptManifest {
    slot: Arc<ManifestSlot>,
    memory: usize,
}

/// A manifest; `None` before it was read. The lock is held while it is read, so that only one
/// thread does so.
#[derive(Default)]
struct ManifestSlot(Mutex<Option<Arc<IceManifest>>>);

impl KeptManifests {
    /// Counts a manifest that was read, and drops those that were used least recently beyond
    /// `bound` bytes.
    fn add(&mut self, id: ObjectId, slot: &Arc<ManifestSlot>, memory: usize, bound: usize) {
        // it may have been dropped meanwhile, even to make space for itself
        let kept = self.slots.get_or_insert_mut(id, || KeptManifest {
            slot: slot.clone(),
            memory: 0,
        });
        if Arc::ptr_eq(&kept.slot, slot) {
            self.memory = self.memory - kept.memory + memory;
            kept.memory = memory;
        }
        while self.memory > bound && self.slots.len() > 1 {
            let Some((_, dropped)) = self.slots.pop_lru() else {
                return;
            };
            self.memory -= dropped.memory;
        }
    }
}

impl IceManifests {
    pub fn new(repository: IceRepository) -> Arc<Self> {
        let manifests = Arc::new(IceManifests {
            repository,
            kept: Mutex::new(KeptManifests {
                slots: LruCache::unbounded(),
                memory: 0,
            }),
        });
        memory::register(&manifests);
        manifests
    }

    /// Returns a manifest.
    ///
    /// # Errors
    ///
    /// EIO if it is missing.
    pub fn get(&self, id: ObjectId) -> Result<Arc<IceManifest>> {
        let slot = {
            let mut kept = lock(&self.kept);
            let kept = kept.slots.get_or_insert(id, KeptManifest::default);
            kept.slot.clone()
        };
        let mut manifest = lock(&slot.0);
        if let Some(manifest) = &*manifest {
            return Ok(manifest.clone());
        }
        let key = manifest_key(id);
        let read = self.repository.read_named(&key, IceFileKind::Manifest);
        let read = read.and_then(|(bytes, _)| IceManifest::new(bytes, Some(id)).context(&key));
        let read = Arc::new(read.map_err(|e| e.context(self.repository.below.location()))?);
        *manifest = Some(read.clone());
        drop(manifest);
        lock(&self.kept).add(id, &slot, read.memory(), memory::limit() / 4);
        Ok(read)
    }

    /// Adds the name of a manifest to an error.
    pub fn named(&self, id: ObjectId, e: Error) -> Error {
        self.named_key(&manifest_key(id), e)
    }

    /// Adds the name of a file of the repository to an error. A missing one must not look like a
    /// missing key.
    pub fn named_key(&self, key: &Key, e: Error) -> Error {
        let location = self.repository.below.location();
        present(e).context(format!("{}{key}", location.trim_end_matches('/')))
    }
}

impl Reclaim for IceManifests {
    fn reclaim(&self) {
        self.repository.forget_file();
        // a request that holds a manifest keeps it
        if let Ok(mut kept) = self.kept.try_lock() {
            kept.slots.clear();
            kept.memory = 0;
        }
    }
}

pub(super) fn manifest_key(id: ObjectId) -> Key {
    Key::root().join(&format!("manifests/{id}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifests_that_were_used_last_are_kept_within_the_bound() {
        let mut kept = KeptManifests {
            slots: LruCache::unbounded(),
            memory: 0,
        };
        let mut read = |number: u8, memory| {
            let id = ObjectId([number; 12]);
            let slots = &mut kept.slots;
            let slot = slots.get_or_insert(id, KeptManifest::default).slot.clone();
            kept.add(id, &slot, memory, 100);
            let mut numbers: Vec<u8> = kept.slots.iter().map(|(id, _)| id.0[0]).collect();
            numbers.sort_unstable();
            (numbers, kept.memory)
        };
        assert_eq!(read(1, 40), (vec![1], 40));
        assert_eq!(read(2, 60), (vec![1, 2], 100));
        assert_eq!(read(1, 40), (vec![1, 2], 100));
        assert_eq!(read(3, 30), (vec![1, 3], 70));
        assert_eq!(read(4, 500), (vec![4], 500));
        assert_eq!(read(5, 1), (vec![5], 1));
        // one that was dropped while it was read, and one that another thread reads again
        kept.add(ObjectId([9; 12]), &Arc::default(), 50, 100);
        assert_eq!((kept.slots.len(), kept.memory), (2, 51));
        kept.add(ObjectId([9; 12]), &Arc::default(), 40, 100);
        assert_eq!((kept.slots.len(), kept.memory), (2, 51));
    }
}
