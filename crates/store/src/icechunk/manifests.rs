//! The manifests of a repository in memory: those that were used last, within a quarter of the
//! memory for documents. They never change, so that all snapshots share them.

use super::ice_file::IceFileKind;
use super::manifest::IceManifest;
use super::object_id::ObjectId;
use super::repository::IceRepository;
use crate::Key;
use crate::reopening::present;
use lru::LruCache;
use std::sync::{Arc, Mutex};
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory::{self, Reclaim, lock};

/// A repository and its manifests.
pub(super) struct IceManifests {
    pub repository: IceRepository,
    /// The lock protects the map alone.
    kept: Mutex<LruCache<ObjectId, Arc<ManifestSlot>>>,
}

/// A manifest; `None` before it was read. The lock is held while it is read, so that only one
/// thread does so.
#[derive(Default)]
struct ManifestSlot(Mutex<Option<Arc<IceManifest>>>);

impl ManifestSlot {
    /// Returns the memory of the manifest in bytes, unless it is being read.
    fn memory(&self) -> usize {
        let kept = self.0.try_lock().ok();
        kept.and_then(|kept| Some(kept.as_ref()?.memory()))
            .unwrap_or(0)
    }
}

impl IceManifests {
    pub fn new(repository: IceRepository) -> Arc<Self> {
        let manifests = Arc::new(IceManifests {
            repository,
            kept: Mutex::new(LruCache::unbounded()),
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
        let slot = lock(&self.kept).get_or_insert(id, Arc::default).clone();
        let mut manifest = lock(&slot.0);
        if let Some(manifest) = &*manifest {
            return Ok(manifest.clone());
        }
        let key = manifest_key(id);
        let read = self.repository.read_named(&key, IceFileKind::Manifest);
        let read = read
            .and_then(|(bytes, _)| IceManifest::new(bytes, Some(id)).map_err(|e| e.context(&key)));
        let read = Arc::new(read.map_err(|e| e.context(self.repository.below.location()))?);
        *manifest = Some(read.clone());
        drop(manifest);
        self.evict();
        Ok(read)
    }

    /// Drops the manifests that were used least recently, beyond the bound.
    fn evict(&self) {
        let mut kept = lock(&self.kept);
        let mut total: usize = kept.iter().map(|(_, slot)| slot.memory()).sum();
        while total > memory::limit() / 4 && kept.len() > 1 {
            let Some((_, slot)) = kept.pop_lru() else {
                return;
            };
            total -= slot.memory().min(total);
        }
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
        // a request that holds a manifest keeps it
        if let Ok(mut kept) = self.kept.try_lock() {
            kept.clear();
        }
    }
}

pub(super) fn manifest_key(id: ObjectId) -> Key {
    Key::root().join(&format!("manifests/{id}"))
}
