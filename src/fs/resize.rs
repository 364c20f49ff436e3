//! `--resize`: truncating flat bytes, and writing past their end, change the array's first dimension. A last row that
//! was given only in part counts so many bytes until its file is closed; what is missing of it is the fill value.

use super::Fs;
use super::write::WriteMode;
use crate::array::Array;
use crate::error::{Error, Result};
use crate::fs::tree::{Attributes, Node};
use crate::store::{ExclusiveLock, Key, SharedLock, SubtreeLocks};
use crate::util::memory::lock;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Bytes of fill value written at a time.
const STEP: u64 = 1 << 20;

/// Arrays that change their shape.
#[derive(Default)]
pub struct Resizing {
    /// Held by those who write to an array, and alone by who changes its metadata or moves it: what is written must not
    /// come to be stored for an array of another shape, or at a place that is no array's any more. It protects nothing
    /// else.
    turn: SubtreeLocks,
    /// Protects the map: the sizes of flat bytes whose last row is not whole.
    unfinished: Mutex<HashMap<Key, Unfinished>>,
    /// Protects the map: the arrays that a write is making longer.
    growing: Mutex<HashMap<Key, Growing>>,
}

/// Flat bytes that a write is making longer. The array has its new shape before it has the bytes, since they lie outside
/// the old one. Until the write is done `stat` shows the old size: **no size is shown before its bytes are there**.
#[derive(Clone, Copy)]
struct Growing {
    /// Bytes before the write.
    size: u64,
    /// Writes in flight.
    writes: usize,
}

/// Hides the new size of an array from `stat` until it is dropped.
pub struct Growth<'a> {
    resizing: &'a Resizing,
    key: Key,
    /// Bytes before the write, and those that it makes.
    size: (u64, u64),
}

impl Drop for Growth<'_> {
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

/// Flat bytes whose last row is not whole.
#[derive(Clone, Copy)]
struct Unfinished {
    /// How many there are.
    size: u64,
    /// A file was closed since they were written: the one that is still open may only have been that of a child process.
    closed: bool,
}

impl Resizing {
    /// To be held while the array at `key` is written.
    pub fn writing(&self, key: &Key) -> SharedLock<'_> {
        self.turn.shared(key)
    }

    /// As [`Resizing::writing`]; None if that takes a wait and `may_wait` is not set.
    pub fn writing_if(&self, key: &Key, may_wait: bool) -> Option<SharedLock<'_>> {
        if may_wait { Some(self.writing(key)) } else { self.turn.try_shared(key) }
    }

    /// The same for an array that was looked up before; ESTALE, which makes the kernel look again, if it has changed since.
    pub fn writing_to(&self, array: &Array) -> Result<SharedLock<'_>> {
        let writing = self.writing(array.key());
        if array.is_superseded() { Err(Error::system(libc::ESTALE)) } else { Ok(writing) }
    }

    /// To be held while the arrays at and below `keys` change or move.
    pub fn alone(&self, keys: &[&Key]) -> ExclusiveLock<'_> {
        self.turn.exclusive(keys)
    }

    /// What `stat` tells of flat bytes: less than the array has if their last row is not whole, or while a write makes
    /// them longer.
    pub fn attributes(&self, node: &Node, attributes: Attributes) -> Attributes {
        let Node::Flat(key) = node else { return attributes };
        let size = lock(&self.unfinished).get(key).map_or(attributes.size, |row| row.size.min(attributes.size));
        let size = lock(&self.growing).get(key).map_or(size, |growth| growth.size.min(size));
        Attributes { size, ..attributes }
    }

    /// Begins to hide what a write adds to the `before` bytes of an array, to `end`. To be called before its shape changes.
    fn begin_growth(&self, key: &Key, before: u64, end: u64) -> Growth<'_> {
        let mut growing = lock(&self.growing);
        growing.entry(key.clone()).or_insert(Growing { size: before, writes: 0 }).writes += 1;
        Growth { resizing: self, key: key.clone(), size: (before, end) }
    }

    /// Where flat bytes end for who appends.
    pub fn end(&self, array: &Array) -> u64 {
        lock(&self.unfinished).get(array.key()).map_or(array.size(), |row| row.size.min(array.size()))
    }

    /// There are no arrays at and below `key` any more.
    pub fn forget_below(&self, key: &Key) {
        lock(&self.unfinished).retain(|array, _| array.relative_to(key).is_none());
    }

    /// Flat bytes were written up to `end` through a file that can't make them more.
    pub fn written_to(&self, key: &Key, end: u64) {
        if let Some(row) = lock(&self.unfinished).get_mut(key) {
            row.size = row.size.max(end);
        }
    }

    /// A file was closed, perhaps not for the last time.
    pub fn close(&self, key: &Key) {
        if let Some(row) = lock(&self.unfinished).get_mut(key) {
            row.closed = true;
        }
    }

    /// A file was closed for good, or another is opened: a last row that nobody goes on with is whole from now on.
    pub fn finish_closed(&self, key: &Key) {
        let mut unfinished = lock(&self.unfinished);
        if unfinished.get(key).is_some_and(|row| row.closed) {
            unfinished.remove(key);
        }
    }

    /// The last row is whole.
    fn finish(&self, key: &Key) {
        lock(&self.unfinished).remove(key);
    }
}

impl Fs {
    /// Has flat bytes reach at least to `end`. Returns the array that has them then, and, if it had to become longer, what
    /// hides its new size until the caller has written its bytes.
    pub(super) fn reach(&self, key: &Key, end: u64) -> Result<(Arc<Array>, Option<Growth<'_>>)> {
        let array = self.tree.array(key)?;
        if end <= self.resizing.end(&array) {
            return Ok((array, None));
        }
        let _turn = self.resizing.alone(&[key]);
        let array = self.tree.array(key)?;
        let before = self.resizing.end(&array);
        if end <= before {
            return Ok((array, None));
        }
        let growth = self.resizing.begin_growth(key, before, end);
        Ok((self.reshape(&array, end)?, Some(growth)))
    }

    /// Takes back what a failed write has added to an array, as far as that can be done. The write's own error is what the
    /// caller needs to hear.
    pub(super) fn undo_growth(&self, growth: Growth) {
        let (before, end) = growth.size;
        let is_latest = |array: Arc<Array>| self.resizing.end(&array) == end;
        if self.tree.array(&growth.key).is_ok_and(is_latest)
            && let Err(e) = self.truncate(&growth.key, before)
        {
            log::warn!("{}: a write that failed has made the array longer: {e}", growth.key);
        }
    }

    /// Gives flat bytes another size.
    pub(super) fn truncate(&self, key: &Key, size: u64) -> Result<()> {
        let _turn = self.resizing.alone(&[key]);
        let array = self.tree.array(key)?;
        array.writable()?;
        // what leaves the array must be in the store to be cleared there
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
        self.cache.flush_array(&array)
    }

    /// Gives an array as many rows as `size` bytes take. What was written of it and is not stored yet goes along.
    fn reshape(&self, array: &Arc<Array>, size: u64) -> Result<Arc<Array>> {
        let (key, shape) = (array.key(), &array.metadata().shape);
        let fixed = || Error::system(libc::EFBIG).context(format!("{key}: rows of no size"));
        let inner = shape.get(1..).ok_or_else(fixed)?;
        let item = array.metadata().dtype.size() as u64;
        let row = inner.iter().try_fold(item, |n, &len| n.checked_mul(len)).filter(|n| *n > 0).ok_or_else(fixed)?;
        let rows = size.div_ceil(row);
        let mut now = array.clone();
        if rows != shape[0] {
            let shape: Vec<u64> = std::iter::once(rows).chain(inner.iter().copied()).collect();
            self.tree.hierarchy().resize(array, &shape)?;
            now = self.tree.array(key)?;
            self.cache.hand_over(array, &now);
        }
        match size % row {
            0 => self.resizing.finish(key),
            _ => drop(lock(&self.resizing.unfinished).insert(key.clone(), Unfinished { size, closed: false })),
        }
        Ok(now)
    }
}
