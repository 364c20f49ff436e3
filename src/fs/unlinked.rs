//! Names that outlive their unlinking: `data.raw`, headers and containers exist as long as their
//! array. Programs that replace a file unlink it and then create it exclusively (`tar x`, `mv` from
//! another file system, `install`, `cp --remove-destination`), and the kernel looks a name up
//! before it creates it. An unlinked name is therefore absent, for every program, until it is
//! created, until a listing shows it, or for five seconds. Its creation opens the file for writing.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;
use zarrfs_outlive::{Journal, Record, RecordedNames};
use zarrfs_store::Key;

/// Maximum time from the unlinking of a name to its creation.
const MOMENT: Duration = Duration::from_secs(5);

/// Maximum number of names recorded: a program unlinks one and creates it, then the next.
const NAMES: NonZeroUsize = NonZeroUsize::new(1024).unwrap();

/// Recently unlinked names, by path.
pub struct UnlinkedNames(RecordedNames);

/// The kind of the records of unlinked names.
const UNLINKED_RECORD: u32 = 8;

impl UnlinkedNames {
    /// Creates an empty record.
    pub fn new() -> Self {
        UnlinkedNames(RecordedNames::new(NAMES))
    }

    /// Records names in `journal` from now on, and takes over those that a daemon has left there.
    pub fn outlive(&self, journal: &Arc<Journal>, left: &[Record]) {
        self.0.outlive(journal, UNLINKED_RECORD, left);
    }

    /// Records that the name at `path` was unlinked.
    pub fn add(&self, path: &Key) {
        self.0.put(path.as_str(), 0);
    }

    /// Returns whether the name at `path` is absent.
    pub fn contains(&self, path: &Key) -> bool {
        let found = self.0.get(path.as_str());
        found.is_some_and(|(_, age)| age < MOMENT)
    }

    /// Records that the name at `path` was created. Returns whether it was absent.
    pub fn remove(&self, path: &Key) -> bool {
        let removed = self.0.remove(path.as_str());
        removed.is_some_and(|(_, age)| age < MOMENT)
    }

    /// Records that a listing of `directory` shows its names.
    pub fn listed(&self, directory: &Key) {
        for (path, _) in self.0.at_and_below(directory.as_str()) {
            if Key::root().join(&path).parent() == *directory {
                self.0.remove(&path);
            }
        }
    }

    /// Forgets the names at and below `key`, because the files there were removed or renamed.
    pub fn forget_below(&self, key: &Key) {
        self.0.remove_below(key.as_str());
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
        names.add(&path);
        assert!(names.contains(&path) && names.contains(&path));
        assert!(!names.contains(&Key::root().join("b/data.raw")));
        assert!(names.remove(&path) && !names.remove(&path) && !names.contains(&path));
        names.add(&path);
        names.forget_below(&array);
        assert!(!names.contains(&path) && !names.remove(&path));
        names.add(&path);
        names.listed(&Key::root());
        assert!(names.contains(&path));
        names.listed(&array);
        assert!(!names.contains(&path));
    }
}
