//! `--resize`: truncating flat bytes, and writing past their end, change the array's first
//! dimension. Until its file is closed, a partial last row counts only its written bytes; the rest
//! of the row holds the fill value.

use super::arrays::WrittenArrays;
use super::write::{ArrayWriter, WriteMode};
use crate::array::Array;
use crate::cache::Wait;
use crate::fs::tree::{Attributes, Node, View};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory::lock;
use zarrfs_store::{ExclusiveLock, Key, SharedLock, SubtreeLocks};

/// Number of bytes of fill values written at a time.
const STEP: u64 = 1 << 20;

/// The bytes that are added to flat bytes which become longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    /// The fill value.
    FillValue,
    /// Zeros, as in any file that a program has truncated.
    Zeros,
}

/// The state of arrays that change their shape.
#[derive(Default)]
pub struct Resizing {
    /// Held shared while an array is written, and exclusively while its metadata change or it is
    /// renamed: bytes must not be stored for an array of another shape, or under a key that is no
    /// array any more. It protects nothing else.
    locks: SubtreeLocks,
    /// Protects the map: the sizes of flat bytes whose last row is partial.
    unfinished: Mutex<HashMap<Key, PartialRow>>,
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
    key: Key,
    /// Sizes in bytes before and after the write.
    size: (u64, u64),
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

/// Flat bytes whose last row is partial.
#[derive(Clone, Copy)]
struct PartialRow {
    /// Size in bytes.
    size: u64,
    /// Whether a descriptor was closed since they were written. Another process may still have the
    /// file open, so that the row is completed later.
    closed: bool,
}

impl Resizing {
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
    fn size(&self, key: &Key) -> Option<u64> {
        let partial = lock(&self.unfinished).get(key).map(|row| row.size);
        let growing = lock(&self.growing).get(key).map(|growth| growth.size);
        partial.into_iter().chain(growing).min()
    }

    /// Hides that a write makes flat bytes longer, from `before` to `end` bytes. The caller must
    /// call this before the shape changes.
    fn begin_growth(&self, key: &Key, before: u64, end: u64) -> HiddenGrowth<'_> {
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
        lock(&self.unfinished)
            .get(array.key())
            .map_or(array.size(), |row| row.size.min(array.size()))
    }

    /// Forgets the arrays at and below `key`.
    pub fn forget_below(&self, key: &Key) {
        lock(&self.unfinished).retain(|array, _| array.relative_to(key).is_none());
    }

    /// Records a write up to `end` through a file of fixed size.
    pub fn written_to(&self, key: &Key, end: u64) {
        if let Some(row) = lock(&self.unfinished).get_mut(key) {
            row.size = row.size.max(end);
        }
    }

    /// Records that a descriptor of the flat bytes was closed, perhaps not the last one.
    pub fn close(&self, key: &Key) {
        if let Some(row) = lock(&self.unfinished).get_mut(key) {
            row.closed = true;
        }
    }

    /// Completes the last row if a descriptor was closed since. To be called when a file is
    /// released or opened.
    pub fn finish_closed(&self, key: &Key) {
        let mut unfinished = lock(&self.unfinished);
        if unfinished.get(key).is_some_and(|row| row.closed) {
            unfinished.remove(key);
        }
    }

    /// Completes the last row.
    fn finish(&self, key: &Key) {
        lock(&self.unfinished).remove(key);
    }
}

impl WrittenArrays {
    /// Corrects the size of flat bytes and of their physical values.
    pub(super) fn sized(&self, node: &Node, attributes: Attributes) -> Result<Attributes> {
        let Some((key, view)) = node.resized() else {
            return Ok(attributes);
        };
        let Some(size) = self.resizing.size(key) else {
            return Ok(attributes);
        };
        let size = match view {
            Some(view) => self
                .tree
                .viewed(key, view)?
                .1
                .form
                .shown_size(size)
                .unwrap_or(u64::MAX),
            None => size,
        };
        Ok(Attributes {
            size: size.min(attributes.size),
            ..attributes
        })
    }

    /// Makes flat bytes reach at least to `end`. Returns the array, and, if it had to become
    /// longer, a value that hides the new size until the caller has written the bytes.
    pub(super) fn reach(
        &self,
        key: &Key,
        end: u64,
    ) -> Result<(Arc<Array>, Option<HiddenGrowth<'_>>)> {
        let array = self.tree.array(key)?;
        if end <= self.resizing.end(&array) {
            return Ok((array, None));
        }
        let _alone = self.resizing.alone(&[key]);
        let array = self.tree.array(key)?;
        let before = self.resizing.end(&array);
        if end <= before {
            return Ok((array, None));
        }
        if array.has_pending_padding() {
            // a resize clears padding in the store, so it must be stored first
            self.cache.flush_array(&array)?;
        }
        let growth = self.resizing.begin_growth(key, before, end);
        Ok((self.reshape(&array, end)?, Some(growth)))
    }

    /// Gives an array as many rows as `size` bytes take. Dirty chunks move to the new array.
    fn reshape(&self, array: &Arc<Array>, size: u64) -> Result<Arc<Array>> {
        let key = array.key();
        let shape = &array.metadata().shape;
        let item = array.metadata().dtype.size() as u64;
        let inner = shape.get(1..).unwrap_or_default();
        let row = inner.iter().try_fold(item, |n, &len| n.checked_mul(len));
        let Some(row) = row.filter(|row| *row > 0 && !shape.is_empty()) else {
            return Err(Error::system(libc::EFBIG).context(format!("{key}: rows of no size")));
        };
        let rows = size.div_ceil(row);
        let mut now = array.clone();
        if rows != shape[0] {
            let shape: Vec<u64> = std::iter::once(rows).chain(inner.iter().copied()).collect();
            self.tree.hierarchy().resize(array, &shape)?;
            now = self.tree.array(key)?;
            self.cache.transfer(array, &now);
        }
        match size % row {
            0 => self.resizing.finish(key),
            _ => drop(lock(&self.resizing.unfinished).insert(
                key.clone(),
                PartialRow {
                    size,
                    closed: false,
                },
            )),
        }
        Ok(now)
    }
}

impl ArrayWriter<'_> {
    /// Changes the size of flat bytes, or of the physical values of an array; other files keep
    /// theirs.
    ///
    /// # Errors
    ///
    /// EINVAL unless physical values are whole.
    pub(super) fn truncate_shown(&self, node: &Node, size: u64, added: Added) -> Result<()> {
        match node.resized() {
            Some((key, None)) => self.truncate(key, size, added),
            Some((key, Some(_))) => self.truncate_view(key, size, added),
            None => Ok(()),
        }
    }

    fn truncate_view(&self, key: &Key, size: u64, added: Added) -> Result<()> {
        let form = self.tree.viewed(key, &View::Unpacked)?.1.form;
        let shown = form.shown_item() as u64;
        let stored = form.stored_item() as u64;
        match size % shown {
            0 => self.truncate(key, size / shown * stored, added),
            _ => {
                Err(Error::invalid(format!("physical values take {shown} bytes each")).context(key))
            }
        }
    }

    /// Shortens an array that a failed write has made longer. An error is only logged, because the
    /// caller reports that of the write.
    pub(super) fn undo_growth(&self, growth: HiddenGrowth) {
        let (before, end) = growth.size;
        let array = self.tree.array(&growth.key);
        if array.is_ok_and(|array| self.resizing.end(&array) == end)
            && let Err(e) = self.truncate(&growth.key, before, Added::FillValue)
        {
            log::warn!(
                "{}: a write that failed has made the array longer: {e}",
                growth.key
            );
        }
    }

    /// Changes the size of flat bytes to `size` bytes.
    pub(super) fn truncate(&self, key: &Key, size: u64, added: Added) -> Result<()> {
        let _alone = self.resizing.alone(&[key]);
        let array = self.tree.array(key)?;
        array.writable()?;
        // a resize clears bytes outside the new shape in the store, so they must be stored first
        self.cache.flush_array(&array)?;
        let before = self.resizing.end(&array);
        let array = self.reshape(&array, size)?;
        let mut at = size;
        while at < before.min(array.size()) {
            let len = STEP.min(array.size() - at);
            let mut blank = vec![0; len as usize];
            array.fill(&mut blank, at);
            self.write_flat(&array, at, &blank, WriteMode::internal())?;
            at += len;
        }
        if added == Added::Zeros && !array.fill_is_zero() {
            self.zero_flat(&array, before..size, WriteMode::internal())?;
        }
        self.cache.flush_array(&array)
    }
}
