//! Names that outlive their unlinking: `data.raw`, headers and containers exist as long as their
//! array. Programs that replace a file unlink it and then create it exclusively (`tar x`, `mv` from
//! another file system, `install`, `cp --remove-destination`), and the kernel looks a name up
//! before it creates it. An unlinked name is therefore absent, for every program, until it is
//! created, until a listing shows it, or for five seconds. Its creation opens the file for writing.

use lru::LruCache;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use zarrfs_base::memory::lock;
use zarrfs_outlive::{Journal, Moments, Record, RecordId};
use zarrfs_store::Key;

/// Maximum time from the unlinking of a name to its creation.
const MOMENT: Duration = Duration::from_secs(5);

/// Maximum number of names recorded: a program unlinks one and creates it, then the next.
const NAMES: NonZeroUsize = NonZeroUsize::new(1024).unwrap();

/// Recently unlinked names.
pub struct UnlinkedNames {
    /// Protects the map, by path: when each name was unlinked, and the record of that.
    names: Mutex<LruCache<Key, (Instant, Option<RecordId>)>>,
    moments: Moments,
}

/// The kind of the records of unlinked names.
const UNLINKED_RECORD: u32 = 8;

impl UnlinkedNames {
    /// Creates an empty record.
    pub fn new() -> Self {
        UnlinkedNames {
            names: Mutex::new(LruCache::new(NAMES)),
            moments: Moments::default(),
        }
    }

    /// Records names in `journal` from now on, and takes over those that a daemon has left there.
    pub fn outlive(&self, journal: &Arc<Journal>, left: &[Record]) {
        for (path, _, at, record) in self.moments.outlive(journal, UNLINKED_RECORD, left) {
            self.put(Key::root().join(&path), at, Some(record));
        }
    }

    fn put(&self, path: Key, at: Instant, record: Option<RecordId>) {
        let displaced = lock(&self.names).push(path, (at, record));
        if let Some((_, (_, record))) = displaced {
            self.moments.remove(record);
        }
    }

    /// Records that the name at `path` was unlinked.
    pub fn add(&self, path: Key) {
        let record = self.moments.add(path.as_str(), 0);
        self.put(path, Instant::now(), record);
    }

    /// Returns whether the name at `path` is absent.
    pub fn contains(&self, path: &Key) -> bool {
        let names = lock(&self.names);
        names
            .peek(path)
            .is_some_and(|(at, _)| at.elapsed() < MOMENT)
    }

    /// Records that the name at `path` was created. Returns whether it was absent.
    pub fn remove(&self, path: &Key) -> bool {
        let Some((at, record)) = lock(&self.names).pop(path) else {
            return false;
        };
        self.moments.remove(record);
        at.elapsed() < MOMENT
    }

    /// Records that a listing of `directory` shows its names.
    pub fn listed(&self, directory: &Key) {
        self.forget(|path| path.parent() == *directory);
    }

    /// Forgets the names at and below `key`, because the files there were removed or renamed.
    pub fn forget_below(&self, key: &Key) {
        self.forget(|path| path.relative_to(key).is_some());
    }

    fn forget(&self, is_forgotten: impl Fn(&Key) -> bool) {
        let mut names = lock(&self.names);
        let paths = names.iter().map(|(path, _)| path);
        let forgotten: Vec<Key> = paths.filter(|path| is_forgotten(path)).cloned().collect();
        for path in &forgotten {
            if let Some((_, record)) = names.pop(path) {
                self.moments.remove(record);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_absent_until_it_is_created_or_listed() {
        let names = UnlinkedNames::new();
        let array = Key::root().join("a");
        let path = array.join("data.raw");
        assert!(!names.remove(&path));
        names.add(path.clone());
        assert!(names.contains(&path) && names.contains(&path));
        assert!(!names.contains(&Key::root().join("b/data.raw")));
        assert!(names.remove(&path) && !names.remove(&path) && !names.contains(&path));
        names.add(path.clone());
        names.forget_below(&array);
        assert!(!names.contains(&path) && !names.remove(&path));
        names.add(path.clone());
        names.listed(&Key::root());
        assert!(names.contains(&path));
        names.listed(&array);
        assert!(!names.contains(&path));
    }

    #[test]
    fn a_name_is_absent_for_a_moment() {
        let names = UnlinkedNames::new();
        let path = Key::root().join("a/data.raw");
        lock(&names.names).put(path.clone(), (Instant::now() - MOMENT, None));
        assert!(!names.contains(&path) && !names.remove(&path));
    }
}
