//! Names that outlive their unlinking: `data.raw`, headers and containers exist as long as their
//! array. Programs that replace a file unlink it and then create it exclusively (`tar x`, `mv` from
//! another file system, `install`, `cp --remove-destination`). After a thread has unlinked such a
//! name, its first lookup of the name fails, since the kernel looks a name up before it creates it.
//! The exclusive creation of the name then opens the file for writing.

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
    /// Protects the map, by path.
    names: Mutex<LruCache<Key, Unlinked>>,
}

/// The state of an unlinked name.
struct Unlinked {
    thread: u32,
    at: Instant,
    /// Whether a lookup of the name by the thread has failed.
    is_missed: bool,
    /// Whether the thread has created the name anew.
    is_created: bool,
}

impl UnlinkedNames {
    /// Creates an empty record.
    pub fn new() -> Self {
        UnlinkedNames {
            names: Mutex::new(LruCache::new(NAMES)),
        }
    }

    /// Records that the thread has unlinked the name at `path`.
    pub fn add(&self, path: Key, thread: u32) {
        lock(&self.names).put(
            path,
            Unlinked {
                thread,
                at: Instant::now(),
                is_missed: false,
                is_created: false,
            },
        );
    }

    /// Returns whether a lookup of the name at `path` by the thread must fail. Only its first
    /// lookup fails.
    pub fn hides(&self, path: &Key, thread: u32) -> bool {
        let mut names = lock(&self.names);
        let missing = names
            .peek_mut(path)
            .filter(|name| name.thread == thread && name.is_missing());
        missing.is_some_and(|name| !std::mem::replace(&mut name.is_missed, true))
    }

    /// Forgets the names at and below `key`, because the files there were removed or renamed.
    pub fn forget_below(&self, key: &Key) {
        let mut names = lock(&self.names);
        let below: Vec<Key> = names
            .iter()
            .map(|(path, _)| path)
            .filter(|p| p.relative_to(key).is_some())
            .cloned()
            .collect();
        for path in &below {
            names.pop(path);
        }
    }

    /// Returns whether the name at `path` may be created, and records that it was.
    pub fn create(&self, path: &Key) -> bool {
        let mut names = lock(&self.names);
        names.peek_mut(path).is_some_and(|name| {
            let is_missing = name.is_missing();
            name.is_created |= is_missing;
            is_missing
        })
    }

    /// Returns whether the thread has created the name at `path` anew.
    pub fn is_created_by(&self, path: &Key, thread: u32) -> bool {
        lock(&self.names)
            .peek(path)
            .is_some_and(|name| name.is_created && name.thread == thread)
    }
}

impl Unlinked {
    fn is_missing(&self) -> bool {
        !self.is_created && self.at.elapsed() < MOMENT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_missing_to_its_unlinker_until_it_is_created() {
        let names = UnlinkedNames::new();
        let path = Key::root().join("a/data.raw");
        assert!(!names.create(&path));
        names.add(path.clone(), 7);
        assert!(!names.hides(&path, 8));
        assert!(names.hides(&path, 7) && !names.hides(&path, 7));
        assert!(!names.hides(&Key::root().join("b/data.raw"), 7));
        assert!(names.create(&path) && !names.create(&path) && !names.hides(&path, 7));
        assert!(names.is_created_by(&path, 7) && !names.is_created_by(&path, 8));
        names.add(path.clone(), 7);
        names.forget_below(&Key::root().join("a"));
        assert!(!names.hides(&path, 7) && !names.create(&path));
    }
}
