//! Names that outlive their unlinking: `data.raw`, headers and containers exist as long as their
//! array. Programs that replace a file unlink it and then create it exclusively (`tar x`, `mv` from
//! another file system, `install`, `cp --remove-destination`), and the kernel looks a name up
//! before it creates it. An unlinked name is therefore absent, for every program, until it is
//! created, until a listing shows it, or for five seconds. Its creation opens the file for writing.

use lru::LruCache;
use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use zarrfs_base::memory::lock;
use zarrfs_store::Key;

/// Maximum time from the unlinking of a name to its creation.
const MOMENT: Duration = Duration::from_secs(5);

/// Maximum number of names recorded: a program unlinks one and creates it, then the next.
const NAMES: NonZeroUsize = NonZeroUsize::new(1024).unwrap();

/// Recently unlinked names.
pub struct UnlinkedNames {
    /// Protects the map, by path: when each name was unlinked.
    names: Mutex<LruCache<Key, Instant>>,
}

impl UnlinkedNames {
    /// Creates an empty record.
    pub fn new() -> Self {
        UnlinkedNames {
            names: Mutex::new(LruCache::new(NAMES)),
        }
    }

    /// Records that the name at `path` was unlinked.
    pub fn add(&self, path: Key) {
        lock(&self.names).put(path, Instant::now());
    }

    /// Returns whether the name at `path` is absent.
    pub fn contains(&self, path: &Key) -> bool {
        let names = lock(&self.names);
        names.peek(path).is_some_and(|at| at.elapsed() < MOMENT)
    }

    /// Records that the name at `path` was created. Returns whether it was absent.
    pub fn remove(&self, path: &Key) -> bool {
        let unlinked = lock(&self.names).pop(path);
        unlinked.is_some_and(|at| at.elapsed() < MOMENT)
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
            names.pop(path);
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
        lock(&names.names).put(path.clone(), Instant::now() - MOMENT);
        assert!(!names.contains(&path) && !names.remove(&path));
    }
}
