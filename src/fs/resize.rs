//! The state of arrays that change their shape: what must not be written meanwhile, and which size
//! `stat` shows. This module must not know how an array is changed.

use crate::array::Array;
use crate::cache::Wait;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory::lock;
use zarrfs_outlive::{Journal, Record, RecordedNames};
use zarrfs_store::{ExclusiveLock, Key, SharedLock, SubtreeLocks};

/// The bytes that are added to flat bytes which become longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    /// The fill value.
    FillValue,
    /// Zeros, as in any file that a program has truncated.
    Zeros,
}

/// The state of arrays that change their shape.
pub struct Resizing {
    /// Held shared while an array is written, and exclusively while its metadata change or it is
    /// renamed: bytes must not be stored for an array of another shape, or under a key that is no
    /// array any more. It protects nothing else.
    locks: SubtreeLocks,
    /// The flat bytes whose last row is partial, by the path of the array: the size in bytes, and
    /// [`CLOSED`].
    unfinished: RecordedNames,
    /// Protects the map: the arrays that a write is making longer.
    growing: Mutex<HashMap<Key, Growing>>,
}

/// Flat bytes that a write is making longer. The array gets its new shape before the bytes, because
/// they lie outside the old one. Until the write is done `stat` shows the old size: **no size is
/// shown before its bytes exist**.
#[derive(Clone, Copy)]
struct Growing {
    /// Size in bytes before the write.
    size: u64,
    /// Number of writes in flight.
    writes: usize,
}

/// A guard that hides the new size of an array from `stat` until it is dropped.
pub struct HiddenGrowth<'a> {
    resizing: &'a Resizing,
    pub(super) key: Key,
    /// Sizes in bytes before and after the write.
    pub(super) size: (u64, u64),
}

impl HiddenGrowth<'_> {
    /// Returns the size in bytes before the write.
    pub fn before(&self) -> u64 {
        self.size.0
    }
}

impl Drop for HiddenGrowth<'_> {
    fn drop(&mut self) {
        let mut growing = lock(&self.resizing.growing);
        if let Some(growth) = growing.get_mut(&self.key) {
            growth.writes -= 1;
            if growth.writes == 0 {
                growing.remove(&self.key);
            }
        }
    }
}

/// The bit of flat bytes of which a descriptor was closed since they were written. Another process
/// may still have the file open, so that the row is completed later.
const CLOSED: u64 = 1 << 63;

/// The kind of the records of flat bytes whose last row is partial.
const UNFINISHED_RECORD: u32 = 11;

impl Resizing {
    /// Creates the state before any array changes.
    pub fn new() -> Self {
        Resizing {
            locks: SubtreeLocks::default(),
            unfinished: RecordedNames::unbounded(),
            growing: Mutex::default(),
        }
    }

    /// Records partial rows in `journal` from now on, and takes over those that a daemon has left
    /// there: what a program appends begins where its earlier bytes end.
    pub fn outlive(&self, journal: &Arc<Journal>, left: &[Record]) {
        self.unfinished.outlive(journal, UNFINISHED_RECORD, left);
    }

    /// Returns the size of flat bytes whose last row is partial.
    fn partial_size(&self, key: &Key) -> Option<u64> {
        let (number, _) = self.unfinished.get(key.as_str())?;
        Some(number & !CLOSED)
    }

    /// Records that flat bytes of `size` have a last row that is partial.
    pub fn begin_row(&self, key: &Key, size: u64) {
        self.unfinished.put(key.as_str(), size);
    }

    /// Locks the array at `key` for writing.
    pub fn writing(&self, key: &Key) -> SharedLock<'_> {
        self.locks.shared(key)
    }

    /// Locks the array at `key` for writing. Returns `None` if that takes a wait and `wait` does
    /// not allow it.
    pub fn writing_if(&self, key: &Key, wait: Wait) -> Option<SharedLock<'_>> {
        if wait == Wait::Allowed {
            Some(self.writing(key))
        } else {
            self.locks.try_shared(key)
        }
    }

    /// Locks an array that was looked up before for writing.
    ///
    /// # Errors
    ///
    /// ESTALE, which makes the kernel look the path up again, if the array has changed since.
    pub fn writing_to(&self, array: &Array) -> Result<SharedLock<'_>> {
        let writing = self.writing(array.key());
        if array.is_superseded() {
            Err(Error::stale())
        } else {
            Ok(writing)
        }
    }

    /// Locks the arrays at and below `keys` exclusively, while they change or are renamed.
    pub fn alone(&self, keys: &[&Key]) -> ExclusiveLock<'_> {
        self.locks.exclusive(keys)
    }

    /// Returns the size of flat bytes if it may be less than that of the array: if the last row is
    /// partial, or while a write makes them longer.
    pub fn size(&self, key: &Key) -> Option<u64> {
        let partial = self.partial_size(key);
        let growing = lock(&self.growing).get(key).map(|growth| growth.size);
        partial.into_iter().chain(growing).min()
    }

    /// Hides that a write makes flat bytes longer, from `before` to `end` bytes. The caller must
    /// call this before the shape changes.
    pub fn begin_growth(&self, key: &Key, before: u64, end: u64) -> HiddenGrowth<'_> {
        let mut growing = lock(&self.growing);
        growing
            .entry(key.clone())
            .or_insert(Growing {
                size: before,
                writes: 0,
            })
            .writes += 1;
        HiddenGrowth {
            resizing: self,
            key: key.clone(),
            size: (before, end),
        }
    }

    /// Returns the flat position, in bytes, where appended bytes begin.
    pub fn end(&self, array: &Array) -> u64 {
        let partial = self.partial_size(array.key());
        partial.map_or(array.size(), |size| size.min(array.size()))
    }

    /// Forgets the arrays at and below `key`.
    pub fn forget_below(&self, key: &Key) {
        self.unfinished.remove_below(key.as_str());
    }

    /// Records a write up to `end` through a file of fixed size.
    pub fn written_to(&self, key: &Key, end: u64) {
        let written = |row: u64| (row & !CLOSED).max(end) | row & CLOSED;
        self.unfinished.update(key.as_str(), written);
    }

    /// Records that a descriptor of the flat bytes was closed, perhaps not the last one.
    pub fn close(&self, key: &Key) {
        self.unfinished.update(key.as_str(), |row| row | CLOSED);
    }

    /// Completes the last row if a descriptor was closed since. To be called when a file is
    /// released or opened.
    pub fn finish_closed(&self, key: &Key) {
        let row = self.unfinished.get(key.as_str());
        if row.is_some_and(|(row, _)| row & CLOSED != 0) {
            self.finish(key);
        }
    }

    /// Completes the last row.
    pub fn finish(&self, key: &Key) {
        self.unfinished.remove(key.as_str());
    }
}
