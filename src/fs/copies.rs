//! Threads that copy files into the mount: what they may do where another program could not.
//!
//! `cp` creates each file of a directory that it has made with O_EXCL, without looking for it. The
//! files that an array shows when its document is stored are therefore missing to such a thread
//! until it has created them: see `fs::unlinked`. A thread that makes arrays otherwise, as Zarr
//! libraries do, finds them at once. What tells a copy is the name of a generated file, or the time
//! of a document that is set before it is closed.
//!
//! The mode of a file that is made of others cannot be set, but a thread that has just written the
//! file is told that it was: copies set the modes of files that they write.

use lru::LruCache;
use std::collections::HashSet;
use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use zarrfs_base::memory::lock;
use zarrfs_store::Key;

/// Maximum time from what a thread did in a directory to what it does there next.
const MOMENT: Duration = Duration::from_secs(5);

/// Maximum number of directories and of files that are recorded: a program copies one, then the
/// next.
const RECORDED: NonZeroUsize = NonZeroUsize::new(1024).unwrap();

/// The directories that threads make, and the files that they write.
pub struct Copies {
    /// Protects the map, by path.
    directories: Mutex<LruCache<Key, MadeDirectory>>,
    /// Protects the map: the last thread that has opened a file for writing, by inode number.
    writers: Mutex<LruCache<u64, u32>>,
}

/// A directory that a thread has made.
struct MadeDirectory {
    thread: u32,
    /// Whether the thread copies files into it, and has not completed it.
    is_copy: bool,
    at: Instant,
    /// The generated names that the thread has created or missed.
    names: HashSet<String>,
}

impl Copies {
    /// Creates an empty record.
    pub fn new() -> Self {
        Copies {
            directories: Mutex::new(LruCache::new(RECORDED)),
            writers: Mutex::new(LruCache::new(RECORDED)),
        }
    }

    /// Records that a thread has made a directory.
    pub fn made(&self, directory: Key, thread: u32) {
        let made = MadeDirectory {
            thread,
            is_copy: false,
            at: Instant::now(),
            names: HashSet::new(),
        };
        lock(&self.directories).put(directory, made);
    }

    /// Records that a thread copies files into a directory, if it has made that: it has set the
    /// time of a document, or has created the generated name `name`.
    pub fn copies_into(&self, directory: &Key, thread: u32, name: Option<&str>) {
        self.with(directory, thread, |made| {
            made.is_copy = true;
            made.names.extend(name.map(str::to_string));
        });
    }

    /// Records that a thread has closed a file in a directory.
    pub fn closed_in(&self, directory: &Key, thread: u32) {
        self.with(directory, thread, |_| ());
    }

    /// Returns whether a thread that copies a directory is about to create the generated name
    /// `name`, for the first time.
    pub fn takes_for_missing(&self, directory: &Key, thread: u32, name: &str) -> bool {
        let mut directories = lock(&self.directories);
        let Some(made) = directories.peek_mut(directory) else {
            return false;
        };
        made.thread == thread
            && made.is_copy
            && made.at.elapsed() < MOMENT
            && made.names.insert(name.to_string())
    }

    /// Records that a directory is complete: programs set its time last.
    pub fn completed(&self, directory: &Key) {
        if let Some(made) = lock(&self.directories).peek_mut(directory) {
            made.is_copy = false;
        }
    }

    /// Returns whether a directory was made through this mount, as far back as directories are
    /// recorded.
    pub fn has_made(&self, directory: &Key) -> bool {
        lock(&self.directories).contains(directory)
    }

    /// Forgets the directories at and below `key`, because they were removed or renamed.
    pub fn forget_below(&self, key: &Key) {
        let mut directories = lock(&self.directories);
        let paths = directories.iter().map(|(path, _)| path);
        let below: Vec<Key> = paths
            .filter(|path| path.relative_to(key).is_some())
            .cloned()
            .collect();
        for path in &below {
            directories.pop(path);
        }
    }

    /// Records that a thread has opened a file for writing.
    pub fn writes(&self, inode: u64, thread: u32) {
        lock(&self.writers).put(inode, thread);
    }

    /// Returns whether a thread was the last one that has opened a file for writing.
    pub fn is_written_by(&self, inode: u64, thread: u32) -> bool {
        lock(&self.writers).peek(&inode) == Some(&thread)
    }

    fn with(&self, directory: &Key, thread: u32, change: impl FnOnce(&mut MadeDirectory)) {
        let mut directories = lock(&self.directories);
        let made = directories.peek_mut(directory);
        if let Some(made) = made.filter(|made| made.thread == thread) {
            made.at = Instant::now();
            change(made);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_names_are_missing_once_to_a_thread_that_copies() {
        let copies = Copies::new();
        let directory = Key::root().join("a");
        copies.made(directory.clone(), 7);
        assert!(!copies.takes_for_missing(&directory, 7, "data.raw"));
        copies.copies_into(&directory, 8, None);
        assert!(!copies.takes_for_missing(&directory, 7, "data.raw"));
        copies.copies_into(&directory, 7, Some("data.npy"));
        assert!(!copies.takes_for_missing(&directory, 8, "data.raw"));
        assert!(!copies.takes_for_missing(&directory, 7, "data.npy"));
        assert!(copies.takes_for_missing(&directory, 7, "data.raw"));
        assert!(!copies.takes_for_missing(&directory, 7, "data.raw"));
        copies.completed(&directory);
        assert!(!copies.takes_for_missing(&directory, 7, "data.vrt"));
    }

    #[test]
    fn the_last_writer_of_a_file_is_known() {
        let copies = Copies::new();
        copies.writes(5, 7);
        assert!(copies.is_written_by(5, 7) && !copies.is_written_by(5, 8));
        copies.writes(5, 8);
        assert!(!copies.is_written_by(5, 7) && !copies.is_written_by(6, 7));
    }
}
