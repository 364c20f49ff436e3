//! Tracks the chunk files that were created and are still open. Such a file exists before its chunk
//! is stored.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;
use zarrfs_base::memory::lock;
use zarrfs_store::{Key, Permissions};

/// The chunk files of a mount that were created and are still open.
#[derive(Default)]
pub struct CreatedChunks {
    /// Creations by path. The lock protects the map.
    created: Mutex<HashMap<Key, Creation>>,
    last: AtomicU64,
}

/// The creation of a chunk file.
struct Creation {
    /// A number that differs for each creation of the same name.
    number: u64,
    /// Number of open files of this creation.
    files: usize,
    attributes: CreatedAttributes,
}

/// The attributes of a chunk that may not be stored yet.
#[derive(Clone, Copy, Debug)]
pub struct CreatedAttributes {
    /// The permissions that the chunk gets when it is stored.
    pub permissions: Option<Permissions>,
    /// The time of the last write, or the time that a program has set after that.
    pub modified: SystemTime,
    /// The time of the last write or change of these attributes.
    pub changed: SystemTime,
}

impl CreatedChunks {
    /// Counts one more open file of the current creation of `path`, and returns the creation's
    /// number. Without a current creation, a new one with these permissions begins.
    pub fn opened(&self, path: Key, permissions: Option<Permissions>) -> u64 {
        let mut created = lock(&self.created);
        let now = SystemTime::now();
        let new = || Creation {
            number: self.last.fetch_add(1, Ordering::Relaxed) + 1,
            files: 0,
            attributes: CreatedAttributes {
                permissions,
                modified: now,
                changed: now,
            },
        };
        let creation = created.entry(path).or_insert_with(new);
        creation.files += 1;
        creation.number
    }

    /// Counts one more open file of the current creation of `path`, and returns the creation's
    /// number, or `None` without a current creation.
    pub fn opened_again(&self, path: &Key) -> Option<u64> {
        let mut created = lock(&self.created);
        let creation = created.get_mut(path)?;
        creation.files += 1;
        Some(creation.number)
    }

    /// Returns whether the chunk file at `path` was created and is still open.
    pub fn contains(&self, path: &Key) -> bool {
        self.attributes(path).is_some()
    }

    /// Returns the attributes of the chunk file at `path`, if it was created and is still open.
    pub fn attributes(&self, path: &Key) -> Option<CreatedAttributes> {
        Some(lock(&self.created).get(path)?.attributes)
    }

    /// Changes the attributes of the chunk file at `path`, if it was created and is still open.
    pub fn change(&self, path: &Key, change: impl FnOnce(&mut CreatedAttributes)) {
        if let Some(creation) = lock(&self.created).get_mut(path) {
            change(&mut creation.attributes);
            creation.attributes.changed = SystemTime::now();
        }
    }

    /// Returns whether `number` is the current creation of `path`.
    pub fn is_current(&self, path: &Key, number: u64) -> bool {
        lock(&self.created)
            .get(path)
            .is_some_and(|creation| creation.number == number)
    }

    /// Records that an open file of a creation was closed.
    pub fn closed(&self, path: &Key, number: u64) {
        let mut created = lock(&self.created);
        if let Some(creation) = created
            .get_mut(path)
            .filter(|creation| creation.number == number)
        {
            creation.files -= 1;
            if creation.files == 0 {
                created.remove(path);
            }
        }
    }

    /// Forgets the creation of `path`, because the file was removed or replaced. Returns whether
    /// there was one.
    pub fn forget(&self, path: &Key) -> bool {
        lock(&self.created).remove(path).is_some()
    }
}
