//! Threads that copy files into the mount: what they may do where another program could not.
//!
//! `cp` creates each file of a directory that it has made with O_EXCL, without looking for it. The
//! files that an array shows when its document is stored are therefore missing to such a thread
//! until it has created them: see `fs::unlinked`. A thread that makes arrays otherwise finds them
//! at once: no Zarr library creates a document under its own name with O_EXCL, or a generated file.
//!
//! The mode of a file that is made of others cannot be set, but `chmod` of a file that is written,
//! or was written a moment ago, succeeds: copies set the modes of files that they write.

use lru::LruCache;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use zarrfs_base::memory::lock;
use zarrfs_outlive::{Journal, Moments, Record, RecordId};
use zarrfs_store::Key;

/// Maximum time from what a thread did in a directory to what it does there next.
const MOMENT: Duration = Duration::from_secs(5);

/// Maximum number of directories and of files that are recorded: a program copies one, then the
/// next.
const RECORDED: NonZeroUsize = NonZeroUsize::new(1024).unwrap();

/// Maximum number of names of a directory that are recorded: `cp` creates one, then the next.
const NAMES: NonZeroUsize = NonZeroUsize::new(64).unwrap();

/// The directories that threads make, and the files that are written.
pub struct Copies {
    /// Protects the map, by path.
    directories: Mutex<LruCache<Key, CopiedDirectory>>,
    moments: Moments,
    /// Protects the map: when a file was opened for writing or closed last, by inode number, and
    /// the record of that.
    written: Mutex<LruCache<u64, (Instant, Option<RecordId>)>>,
    written_moments: Moments,
}

/// A directory that a thread has made, perhaps to copy files into it.
struct CopiedDirectory {
    thread: u32,
    /// Whether the thread copies files into it.
    is_copy: bool,
    /// Whether the thread creates files with O_EXCL.
    is_exclusive: bool,
    at: Instant,
    /// The names that the thread has created or missed last.
    names: LruCache<String, ()>,
    record: Option<RecordId>,
}

/// The kind of the records of directories. The number holds the thread and the two flags.
const DIRECTORY_RECORD: u32 = 9;

/// The kind of the records of files that are written. The number is the inode number.
const WRITTEN_RECORD: u32 = 10;

/// The flags in the number of a record.
const IS_COPY: u64 = 1 << 32;
const IS_EXCLUSIVE: u64 = 1 << 33;

impl CopiedDirectory {
    fn new(thread: u32, at: Instant) -> Self {
        CopiedDirectory {
            thread,
            is_copy: false,
            is_exclusive: false,
            at,
            names: LruCache::new(NAMES),
            record: None,
        }
    }

    fn number(&self) -> u64 {
        let mut number = u64::from(self.thread);
        for (is_set, flag) in [(self.is_copy, IS_COPY), (self.is_exclusive, IS_EXCLUSIVE)] {
            number |= if is_set { flag } else { 0 };
        }
        number
    }
}

impl Copies {
    /// Creates an empty record.
    pub fn new() -> Self {
        Copies {
            directories: Mutex::new(LruCache::new(RECORDED)),
            moments: Moments::default(),
            written: Mutex::new(LruCache::new(RECORDED)),
            written_moments: Moments::default(),
        }
    }

    /// Records directories in `journal` from now on, and takes over those that a daemon has left
    /// there.
    pub fn outlive(&self, journal: &Arc<Journal>, left: &[Record]) {
        for (path, number, at, record) in self.moments.outlive(journal, DIRECTORY_RECORD, left) {
            let made = CopiedDirectory {
                is_copy: number & IS_COPY != 0,
                is_exclusive: number & IS_EXCLUSIVE != 0,
                record: Some(record),
                ..CopiedDirectory::new(number as u32, at)
            };
            self.put(Key::root().join(&path), made);
        }
        let moments = self.written_moments.outlive(journal, WRITTEN_RECORD, left);
        for (_, inode, at, record) in moments {
            lock(&self.written).put(inode, (at, Some(record)));
        }
    }

    fn put(&self, directory: Key, made: CopiedDirectory) {
        let displaced = lock(&self.directories).push(directory, made);
        if let Some((_, displaced)) = displaced {
            self.moments.remove(displaced.record);
        }
    }

    /// Records that a thread has made a directory.
    pub fn made(&self, directory: Key, thread: u32) {
        let made = CopiedDirectory {
            record: self.moments.add(directory.as_str(), thread.into()),
            ..CopiedDirectory::new(thread, Instant::now())
        };
        self.put(directory, made);
    }

    /// Records that a thread copies files into a directory, if it has made that: it has created a
    /// document with O_EXCL, or a generated name.
    pub fn copies_into(&self, directory: &Key, thread: u32, name: &str, exclusive: bool) {
        self.with(directory, thread, |made| {
            made.is_exclusive |= exclusive;
            made.is_copy = true;
            made.names.put(name.to_string(), ());
        });
    }

    /// Records that a thread has closed a file in a directory. It copies the directories above,
    /// too: it returns to them after all that lies below, however long that takes.
    pub fn closed_in(&self, directory: &Key, thread: u32) {
        let mut directory = directory.clone();
        while !directory.is_root() {
            self.with(&directory, thread, |_| ());
            directory = directory.parent();
        }
    }

    /// Records that a thread looks for the generated name `name`. Returns whether it copies the
    /// directory and is about to create the name, for the first time.
    pub fn miss(&self, directory: &Key, thread: u32, name: &str) -> bool {
        let mut directories = lock(&self.directories);
        let Some(made) = directories.peek_mut(directory) else {
            return false;
        };
        made.thread == thread
            && made.is_exclusive
            && made.at.elapsed() < MOMENT
            && made.names.put(name.to_string(), ()).is_none()
    }

    /// Returns whether a directory was made through this mount, as far back as directories are
    /// recorded.
    pub fn has_made(&self, directory: &Key) -> bool {
        lock(&self.directories).contains(directory)
    }

    /// Returns whether a program has copied files into a directory at or below `key` that it has
    /// made, as far back as directories are recorded.
    pub fn has_copied_below(&self, key: &Key) -> bool {
        let directories = lock(&self.directories);
        let mut copied = directories.iter().filter(|(_, made)| made.is_copy);
        copied.any(|(path, _)| path.relative_to(key).is_some())
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
            if let Some(made) = directories.pop(path) {
                self.moments.remove(made.record);
            }
        }
    }

    /// Records that a file was opened for writing.
    pub fn writes(&self, inode: u64) {
        let mut written = lock(&self.written);
        if let Some((at, record)) = written.get_mut(&inode) {
            *at = Instant::now();
            self.written_moments.update(*record, inode);
            return;
        }
        let new = (Instant::now(), self.written_moments.add("", inode));
        if let Some((_, (_, record))) = written.push(inode, new) {
            self.written_moments.remove(record);
        }
    }

    /// Records that a file was closed.
    pub fn closed(&self, inode: u64) {
        if let Some((at, record)) = lock(&self.written).get_mut(&inode) {
            *at = Instant::now();
            self.written_moments.update(*record, inode);
        }
    }

    /// Returns whether a file was written through the mount, as far back as files are recorded, and
    /// either `is_open` or was closed a moment ago.
    pub fn is_written(&self, inode: u64, is_open: bool) -> bool {
        let written = lock(&self.written);
        let closed = written.peek(&inode);
        closed.is_some_and(|(at, _)| is_open || at.elapsed() < MOMENT)
    }

    fn with(&self, directory: &Key, thread: u32, change: impl FnOnce(&mut CopiedDirectory)) {
        let mut directories = lock(&self.directories);
        let made = directories.peek_mut(directory);
        if let Some(made) = made.filter(|made| made.thread == thread) {
            made.at = Instant::now();
            change(made);
            self.moments.update(made.record, made.number());
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
        assert!(!copies.miss(&directory, 7, "data.raw"));
        copies.copies_into(&directory, 8, "zarr.json", true);
        assert!(!copies.miss(&directory, 7, "data.raw"));
        assert!(!copies.has_copied_below(&Key::root()));
        copies.copies_into(&directory, 7, "data.npy", false);
        assert!(!copies.miss(&directory, 7, "data.raw"));
        assert!(copies.has_copied_below(&Key::root()));
        copies.copies_into(&directory, 7, "zarr.json", true);
        assert!(!copies.miss(&directory, 8, "data.raw"));
        assert!(!copies.miss(&directory, 7, "data.npy"));
        assert!(copies.miss(&directory, 7, "data.raw"));
        assert!(!copies.miss(&directory, 7, "data.raw"));
        copies.forget_below(&Key::root());
        assert!(!copies.miss(&directory, 7, "data.vrt"));
    }

    #[test]
    fn a_directory_is_copied_while_files_below_it_are() {
        let copies = Copies::new();
        let group = Key::root().join("g");
        let array = group.join("sub/a");
        for directory in [&group, &array] {
            copies.made(directory.clone(), 7);
            copies.copies_into(directory, 7, "zarr.json", true);
        }
        let age = || {
            let mut directories = lock(&copies.directories);
            directories.peek_mut(&group).unwrap().at -= 2 * MOMENT;
        };
        age();
        assert!(!copies.miss(&group, 7, "dataset.nc"));
        copies.closed_in(&array, 8);
        assert!(!copies.miss(&group, 7, "dataset.nc"));
        copies.closed_in(&array, 7);
        assert!(copies.miss(&group, 7, "dataset.nc"));
    }

    #[test]
    fn a_file_counts_as_written_until_a_moment_after_its_close() {
        let copies = Copies::new();
        copies.writes(5);
        assert!(copies.is_written(5, false) && !copies.is_written(6, true));
        lock(&copies.written).get_mut(&5).unwrap().0 -= 2 * MOMENT;
        assert!(copies.is_written(5, true) && !copies.is_written(5, false));
        copies.closed(6);
        copies.closed(5);
        assert!(copies.is_written(5, false) && !copies.is_written(6, false));
    }
}
