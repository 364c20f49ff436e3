//! Threads that copy files into the mount: what they may do where another program could not.
//!
//! `cp` creates each file of a directory that it has made with O_EXCL, without looking for it. The
//! files that an array shows when its document is stored are therefore missing to such a thread
//! until it has created them: see `fs::unlinked`. A thread that makes arrays otherwise finds them
//! at once: no Zarr library creates a document under its own name with O_EXCL, or a generated file.
//!
//! The mode of a file that is made of others cannot be set, but `chmod` of a file that is written,
//! or was written a moment ago, succeeds: copies set the modes of files that they write.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;
use zarrfs_outlive::{Journal, Record, RecordedNames};
use zarrfs_store::Key;

/// Maximum time from what a thread did in a directory to what it does there next.
const MOMENT: Duration = Duration::from_secs(5);

/// Maximum number of directories, of files and of names in directories that are recorded: a program
/// copies one, then the next.
const RECORDED: NonZeroUsize = NonZeroUsize::new(1024).unwrap();

/// The directories that threads make, and the files that are written.
pub struct Copies {
    /// The directories, by path, with the thread and two flags.
    directories: RecordedNames,
    /// The names in these directories, by path, that the threads have created or missed.
    names: RecordedNames,
    /// The files that were opened for writing or closed last, by inode number.
    written: RecordedNames,
}

/// The kinds of the records.
const DIRECTORY_RECORD: u32 = 9;
const WRITTEN_RECORD: u32 = 10;
const NAME_RECORD: u32 = 15;

/// The flags of a directory: its thread copies files into it, and creates files with O_EXCL.
const IS_COPY: u64 = 1 << 32;
const IS_EXCLUSIVE: u64 = 1 << 33;

impl Copies {
    /// Creates an empty record.
    pub fn new() -> Self {
        Copies {
            directories: RecordedNames::new(RECORDED),
            names: RecordedNames::new(RECORDED),
            written: RecordedNames::new(RECORDED),
        }
    }

    /// Records in `journal` from now on, and takes over what a daemon has left there.
    pub fn outlive(&self, journal: &Arc<Journal>, left: &[Record]) {
        self.directories.outlive(journal, DIRECTORY_RECORD, left);
        self.names.outlive(journal, NAME_RECORD, left);
        self.written.outlive(journal, WRITTEN_RECORD, left);
    }

    /// Records that a thread has made a directory.
    pub fn made(&self, directory: &Key, thread: u32) {
        self.names.remove_below(directory.as_str());
        self.directories.put(directory.as_str(), thread.into());
    }

    /// Records that a thread copies files into a directory, if it has made that: it has created a
    /// document with O_EXCL, or a generated name.
    pub fn copies_into(&self, directory: &Key, thread: u32, name: &str, exclusive: bool) {
        let flags = IS_COPY | if exclusive { IS_EXCLUSIVE } else { 0 };
        if self.record_use(directory, thread, flags) {
            self.names.put(directory.join(name).as_str(), 0);
        }
    }

    /// Records that a thread has closed a file in a directory. It copies the directories above,
    /// too: it returns to them after all that lies below, however long that takes.
    pub fn closed_in(&self, directory: &Key, thread: u32) {
        let mut directory = directory.clone();
        while !directory.is_root() {
            self.record_use(&directory, thread, 0);
            directory = directory.parent();
        }
    }

    /// Records that a thread looks for the generated name `name`. Returns whether it copies the
    /// directory and is about to create the name, for the first time.
    pub fn miss(&self, directory: &Key, thread: u32, name: &str) -> bool {
        let Some((made, age)) = self.directories.get(directory.as_str()) else {
            return false;
        };
        let is_copied = made as u32 == thread && made & IS_EXCLUSIVE != 0 && age < MOMENT;
        let path = directory.join(name);
        let is_first = is_copied && self.names.get(path.as_str()).is_none();
        if is_first {
            self.names.put(path.as_str(), 0);
        }
        is_first
    }

    /// Returns whether a directory was made through this mount, as far back as directories are
    /// recorded.
    pub fn has_made(&self, directory: &Key) -> bool {
        self.directories.get(directory.as_str()).is_some()
    }

    /// Returns whether a program has copied files into a directory at or below `key` that it has
    /// made, as far back as directories are recorded.
    pub fn has_copied_below(&self, key: &Key) -> bool {
        let directories = self.directories.at_and_below(key.as_str());
        directories.iter().any(|(_, made)| made & IS_COPY != 0)
    }

    /// Forgets the directories at and below `key`, because they were removed or renamed.
    pub fn forget_below(&self, key: &Key) {
        self.directories.remove_below(key.as_str());
        self.names.remove_below(key.as_str());
    }

    /// Records that a file was opened for writing.
    pub fn writes(&self, inode: u64) {
        self.written.put(&inode.to_string(), 0);
    }

    /// Records that a file was closed.
    pub fn closed(&self, inode: u64) {
        self.written.update(&inode.to_string(), |number| number);
    }

    /// Returns whether a file was written through the mount, as far back as files are recorded, and
    /// either `is_open` or was closed a moment ago.
    pub fn is_written(&self, inode: u64, is_open: bool) -> bool {
        let closed = self.written.get(&inode.to_string());
        closed.is_some_and(|(_, age)| is_open || age < MOMENT)
    }

    /// Records that a thread uses a directory, if it has made that, with additional flags. Returns
    /// whether it has.
    fn record_use(&self, directory: &Key, thread: u32, flags: u64) -> bool {
        let made = self.directories.get(directory.as_str());
        made.is_some_and(|(made, _)| made as u32 == thread)
            && self
                .directories
                .update(directory.as_str(), |made| made | flags)
                .is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn generated_names_are_missing_once_to_a_thread_that_copies() {
        let copies = Copies::new();
        let directory = Key::root().join("a");
        copies.made(&directory, 7);
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
            copies.made(directory, 7);
            copies.copies_into(directory, 7, "zarr.json", true);
        }
        let (made, _) = copies.directories.get("g").unwrap();
        let before = Instant::now() - 2 * MOMENT;
        copies.directories.put_at("g", made, before);
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
        copies.written.put_at("5", 0, Instant::now() - 2 * MOMENT);
        assert!(copies.is_written(5, true) && !copies.is_written(5, false));
        copies.closed(6);
        copies.closed(5);
        assert!(copies.is_written(5, false) && !copies.is_written(6, false));
    }
}
