//! Truncated files of fixed size. A program that truncates or creates a file concludes that bytes
//! which it does not write read as zeros, and skips zeros: `cp`, `tar`, `rsync` and `dd` leave
//! holes, NumPy writes the last byte alone.
//!
//! Invariant: **from a truncation or creation through an open file to the close of that file, the
//! file is as long as the program has made it, and bytes that it has skipped are zeros.** The file
//! grows as it is written or extended, and each gap is filled with zeros first. Bytes behind the
//! end are not touched: if the file is closed before it has its whole size again, they show their
//! old values, so that `: > data.raw` erases no array.
//!
//! In a mount with `--resize` the array itself gets the size of `data.raw`; the record only says
//! that gaps are zeros, where the rows that are added to an array otherwise hold the fill value.
//!
//! **GDAL creates a file in two steps**: it truncates the file, writes two zero bytes and closes
//! it, then opens it again, takes the size from the header, and writes the rows. Two zero bytes
//! that are less than a row, or less than a physical value, are therefore no data if nothing else
//! is written before the close: an array that is resized gets the rows back that it had.

use super::Change;
use super::files::{OpenFile, Seek};
use super::resize::Added;
use super::tree::Tree;
use super::write::WriteMode;
use crate::cache::Wait;
use crate::fs::tree::{Attributes, Node, View};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory::lock;
use zarrfs_outlive::{Journal, Record, RecordId};

/// Maximum time from the close of a file to the request that releases it. The kernel queues that
/// request before the close returns, but another thread may take it. If only a duplicate was
/// closed, the size is known after this time.
const RELEASE_DELAY: Duration = Duration::from_millis(100);

/// What GDAL writes to a file that it creates and will open again.
const MARK: [u8; 2] = [0, 0];

/// The truncated files of a mount.
#[derive(Default)]
pub struct Truncations {
    /// The number of truncated files. Usually it is 0, and then no request takes the lock.
    count: AtomicUsize,
    /// Protects the table: truncated files by inode number.
    files: Mutex<HashMap<u64, Truncation>>,
    released: Condvar,
    /// Where truncations are recorded, so that they outlive the daemon.
    journal: OnceLock<Arc<Journal>>,
}

/// A file that was truncated or created, and was not closed since.
struct Truncation {
    /// The size that programs see; `None` for flat bytes that are resized.
    end: Option<u64>,
    /// The whole size.
    whole: u64,
    /// The open files through which it was truncated.
    owners: Vec<u64>,
    /// An owner of which a descriptor was closed, if the file was not used since: perhaps it is
    /// about to be released.
    closing: Option<u64>,
    /// Protects nothing: held while the file is written, since another write must not come into a
    /// gap that is filled.
    writing: Arc<Mutex<()>>,
    mark: Mark,
    /// The size to which an array returns that was resized, if nothing but the mark was written.
    before: u64,
    record: Option<RecordId>,
}

/// The kind of the records of truncations. The numbers are the inode number, and the end and one, or
/// 0 for no end; the text is the whole size, the size before, the mark and the owners.
const TRUNCATION_RECORD: u32 = 5;

/// Whether a truncated file holds the bytes that GDAL writes first, and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    /// They would be data, or other bytes were written.
    Data = 0,
    /// Nothing was written.
    Expected = 1,
    /// They were written, and are not in the array.
    Held = 2,
}

impl Truncation {
    /// Writes the truncation to the journal.
    fn record(&mut self, journal: &Journal, inode: u64) {
        let numbers = [inode, self.end.map_or(0, |end| end + 1)];
        let mut text = vec![self.whole, self.before, self.mark as u64];
        text.extend(&self.owners);
        let text: Vec<u8> = text.into_iter().flat_map(u64::to_le_bytes).collect();
        self.record = match self.record {
            Some(record) => journal.replace(record, numbers, &text).or(self.record),
            None => journal.add(TRUNCATION_RECORD, numbers, &text),
        };
    }

    /// Returns the truncation of a record, and its inode number.
    fn of_record(record: &Record) -> Option<(u64, Truncation)> {
        let [inode, end] = record.numbers;
        let text = record.text.as_chunks().0;
        let mut numbers = text.iter().map(|bytes| u64::from_le_bytes(*bytes));
        let truncation = Truncation {
            end: end.checked_sub(1),
            whole: numbers.next()?,
            before: numbers.next()?,
            mark: match numbers.next()? {
                1 => Mark::Expected,
                2 => Mark::Held,
                _ => Mark::Data,
            },
            owners: numbers.collect(),
            closing: None,
            writing: Arc::default(),
            record: Some(record.id),
        };
        Some((inode, truncation))
    }
}

impl Truncations {
    /// Records truncations in `journal` from now on, and takes over those that a daemon has left
    /// there.
    pub fn outlive(&self, journal: &Arc<Journal>, left: &[Record]) {
        let left = left
            .iter()
            .filter(|record| record.kind == TRUNCATION_RECORD);
        let mut files = lock(&self.files);
        files.extend(left.filter_map(Truncation::of_record));
        self.count.store(files.len(), Ordering::Release);
        let _ = self.journal.set(journal.clone());
    }

    /// Writes the truncation of a file, which has changed, to the journal.
    fn record(&self, inode: u64, file: &mut Truncation) {
        if let Some(journal) = self.journal.get() {
            file.record(journal, inode);
        }
    }

    fn remove(&self, files: &mut HashMap<u64, Truncation>, inode: u64) {
        let removed = files.remove(&inode);
        self.count.store(files.len(), Ordering::Release);
        if let (Some(journal), Some(record)) =
            (self.journal.get(), removed.and_then(|file| file.record))
        {
            journal.remove(record);
        }
    }

    fn with<T>(&self, inode: u64, get: impl FnOnce(&mut Truncation) -> T) -> Option<T> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        lock(&self.files).get_mut(&inode).map(get)
    }

    /// Returns the size of a truncated file.
    pub fn end(&self, inode: u64) -> Option<u64> {
        self.with(inode, |file| file.end).flatten()
    }

    /// Returns the bytes between the end of a truncated file and a write at `offset`. A write past
    /// the whole size has none, because it fails, unless it `grows` the file by records.
    fn gap_before(&self, inode: u64, offset: u64, grows: bool) -> Option<Range<u64>> {
        let (end, whole) = self.with(inode, |file| (file.end, file.whole))?;
        let gap = end?..offset.min(whole);
        if gap.is_empty() || offset >= whole && !grows {
            None
        } else {
            Some(gap)
        }
    }

    /// Returns whether a file was truncated and not closed since.
    pub fn contains(&self, inode: u64) -> bool {
        self.with(inode, |_| ()).is_some()
    }

    /// Returns an open file through which the file was truncated.
    fn owner(&self, inode: u64) -> Option<u64> {
        self.with(inode, |file| file.owners.first().copied())
            .flatten()
    }

    fn is_owner(&self, inode: u64, handle: u64) -> bool {
        self.with(inode, |file| file.owners.contains(&handle))
            .unwrap_or(false)
    }

    /// Records that a file was truncated to `end` bytes of `whole` through an open file.
    fn truncated(&self, inode: u64, handle: u64, end: Option<u64>, whole: u64) {
        self.truncated_from(inode, handle, end, (whole, 0), Mark::Data);
    }

    /// Records a truncation as [`Truncations::truncated`] does, of a file that had `before` bytes
    /// and in which GDAL's mark may be expected.
    fn truncated_from(
        &self,
        inode: u64,
        handle: u64,
        end: Option<u64>,
        (whole, before): (u64, u64),
        mark: Mark,
    ) {
        let mut files = lock(&self.files);
        let new = Truncation {
            end,
            whole,
            owners: Vec::new(),
            closing: None,
            writing: Arc::default(),
            mark,
            before,
            record: None,
        };
        let file = files.entry(inode).or_insert(new);
        (file.end, file.closing) = (end, None);
        file.mark = mark;
        if !file.owners.contains(&handle) {
            file.owners.push(handle);
        }
        self.record(inode, file);
        self.count.store(files.len(), Ordering::Release);
    }

    /// Records that the bytes of a file up to `end` were written or filled.
    fn reached(&self, inode: u64, end: u64) {
        let mut files = lock(&self.files);
        let Some(file) = files.get_mut(&inode) else {
            return;
        };
        file.closing = None;
        file.end = file.end.map(|before| before.max(end));
        if file.end.is_some_and(|end| end >= file.whole) {
            self.remove(&mut files, inode);
        } else if let (Some(journal), Some(record)) = (self.journal.get(), file.record) {
            let end = file.end.map_or(0, |end| end + 1);
            journal.number(record, 1).store(end, Ordering::Release);
        }
    }

    /// Records a write to a truncated file, and returns the mark that was there before it, and that
    /// there is now.
    fn write_mark(&self, inode: u64, offset: u64, data: &[u8]) -> (Mark, Mark) {
        let marks = self.with(inode, |file| {
            let before = file.mark;
            file.mark = if before == Mark::Expected && offset == 0 && data == MARK {
                Mark::Held
            } else {
                Mark::Data
            };
            if file.mark != before {
                self.record(inode, file);
            }
            (before, file.mark)
        });
        marks.unwrap_or((Mark::Data, Mark::Data))
    }

    /// Returns the size to which a file returns that is closed with nothing but the mark.
    fn take_mark(&self, inode: u64, handle: u64) -> Option<u64> {
        self.with(inode, |file| {
            let is_marked = file.mark == Mark::Held && file.owners.contains(&handle);
            is_marked.then(|| {
                file.mark = Mark::Data;
                self.record(inode, file);
                file.before
            })
        })?
    }

    /// Records that a descriptor of an open file was closed, perhaps not the last one.
    pub fn closed(&self, inode: u64, handle: u64) {
        self.with(inode, |file| {
            if file.owners.contains(&handle) {
                file.closing = Some(handle);
            }
        });
    }

    /// Records the release of an open file. Returns whether a truncation ends with it.
    fn released(&self, inode: u64, handle: u64) -> bool {
        if self.count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let mut files = lock(&self.files);
        let Some(file) = files.get_mut(&inode) else {
            return false;
        };
        file.owners.retain(|owner| *owner != handle);
        file.closing = file.closing.filter(|closing| *closing != handle);
        let is_last = file.owners.is_empty();
        if is_last {
            self.remove(&mut files, inode);
        } else {
            self.record(inode, file);
        }
        self.released.notify_all();
        is_last
    }

    /// Forgets the truncation of a file that was removed.
    pub fn forget(&self, inode: u64) {
        self.remove(&mut lock(&self.files), inode);
        self.released.notify_all();
    }

    /// Returns whether [`Truncations::settle`] may have to wait.
    pub fn is_unsettled(&self) -> bool {
        self.count.load(Ordering::Acquire) > 0
            && lock(&self.files)
                .values()
                .any(|file| file.closing.is_some())
    }

    /// Waits until it is known whether a file of which a descriptor was closed is released.
    pub fn settle(&self, inode: u64) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let start = Instant::now();
        let mut files = lock(&self.files);
        while let Some(file) = files.get_mut(&inode).filter(|file| file.closing.is_some()) {
            let Some(left) = RELEASE_DELAY.checked_sub(start.elapsed()) else {
                file.closing = None;
                return;
            };
            files = self
                .released
                .wait_timeout(files, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Returns attributes with the size that a truncated file has at present.
    pub fn shown(&self, attributes: Attributes) -> Attributes {
        self.settle(attributes.inode);
        match self.end(attributes.inode) {
            Some(end) => Attributes {
                size: end.min(attributes.size),
                lasting: false,
                ..attributes
            },
            None => attributes,
        }
    }

    /// Returns how many of the bytes from `offset` on a truncated file has. A chunk file whose new
    /// content is a draft keeps its size for other readers.
    pub fn readable(&self, handle: u64, file: &dyn OpenFile, offset: u64, len: usize) -> usize {
        let inode = file.inode();
        match self.end(inode) {
            Some(end) if file.as_chunk().is_none() || self.is_owner(inode, handle) => {
                usize::try_from(end.saturating_sub(offset))
                    .unwrap_or(usize::MAX)
                    .min(len)
            }
            _ => len,
        }
    }

    /// Records that a chunk file was created through the open file `handle`, and returns its
    /// attributes.
    pub fn created(&self, handle: u64, attributes: Attributes) -> Attributes {
        self.truncated(attributes.inode, handle, Some(0), attributes.size);
        self.shown(attributes)
    }

    /// Returns where data or a hole begins at or after `offset` in a file that may be truncated;
    /// `seek` finds it in the whole file.
    ///
    /// # Errors
    ///
    /// ENXIO at and past the end.
    pub fn seek(
        &self,
        inode: u64,
        offset: u64,
        target: Seek,
        seek: impl FnOnce() -> Result<u64>,
    ) -> Result<u64> {
        let Some(end) = self.end(inode) else {
            return seek();
        };
        let found = if offset < end { seek()? } else { end };
        match target {
            Seek::Hole if offset < end => Ok(found.min(end)),
            Seek::Data if found < end => Ok(found),
            _ => Err(Error::system(libc::ENXIO)),
        }
    }
}

impl Change<'_> {
    /// Writes as `OpenFile::write` does, and fills the gap before the bytes if the file is
    /// truncated.
    pub(super) fn write_in(
        &self,
        file: &dyn OpenFile,
        offset: u64,
        data: &[u8],
        mode: WriteMode,
    ) -> Result<Option<usize>> {
        let inode = file.inode();
        // the kernel has no pages behind the end
        let truncated = self
            .truncations
            .with(inode, |file| file.writing.clone())
            .filter(|_| !mode.mapped);
        let Some(writing) = truncated else {
            return file.write(self, offset, data, mode);
        };
        let writing = mode.wait.lock(&writing);
        let Some(_writing) = writing else {
            return Ok(None);
        };
        let is_held = self.truncations.with(inode, |file| file.mark == Mark::Held);
        if is_held == Some(true) && mode.wait == Wait::Never {
            return Ok(None);
        }
        match self.truncations.write_mark(inode, offset, data) {
            (_, Mark::Held) => {
                self.truncations.reached(inode, data.len() as u64);
                return Ok(Some(data.len()));
            }
            // it was data
            (Mark::Held, _) if offset > 0 => drop(file.write(self, 0, &MARK, mode)?),
            _ => {}
        }
        if let Some(gap) = self
            .truncations
            .gap_before(inode, offset, self.options.resize)
        {
            if mode.wait == Wait::Never {
                return Ok(None);
            }
            file.write_zeros(self, gap)?;
        }
        let written = file.write(self, offset, data, mode)?;
        if let Some(len) = written {
            self.truncations.reached(inode, offset + len as u64);
        }
        Ok(written)
    }

    /// Makes zeros of a part of a file without changing its size, as fallocate(2) does.
    ///
    /// # Errors
    ///
    /// EOPNOTSUPP for files that hold no flat bytes.
    pub fn punch(&self, handle: u64, offset: u64, len: u64) -> Result<()> {
        let file = self.files.get(handle)?;
        if file.written_arrays().is_empty() {
            return Err(Error::system(libc::EOPNOTSUPP));
        }
        let end = offset
            .saturating_add(len)
            .min(self.attributes(file.inode())?.size);
        if offset < end {
            file.write_zeros(self, offset..end)
        } else {
            Ok(())
        }
    }

    /// Reserves space for a part of a file, as fallocate(2) does, and makes the file longer if it
    /// ends before and `keeps_size` is false. Only plain keys of a directory have space of their
    /// own: the size of an encoded chunk is not known before it is stored.
    ///
    /// # Errors
    ///
    /// EFBIG if a write there would fail.
    pub fn allocate(&self, handle: u64, offset: u64, len: u64, keeps_size: bool) -> Result<()> {
        let file = self.files.get(handle)?;
        let end = offset
            .checked_add(len)
            .filter(|end| i64::try_from(*end).is_ok())
            .ok_or_else(|| Error::system(libc::EFBIG))?;
        if file.allocate(offset..end, keeps_size)? {
            return Ok(());
        }
        let inode = file.inode();
        if end <= self.attributes(inode)?.size {
            return Ok(());
        }
        if !keeps_size {
            return self.set_size(inode, end, Some(handle)).map(drop);
        }
        let is_fixed = match self.tree.node(inode) {
            Ok(node) => self.tree.has_fixed_size(&node)? && !self.options.is_resized(&node),
            Err(_) => false,
        };
        if is_fixed && end > self.whole_attributes(inode)?.size {
            return Err(Error::system(libc::EFBIG));
        }
        Ok(())
    }

    /// Sets the size of a file of fixed size, or of flat bytes that are resized, through the open
    /// file `handle`. Without one, it is as if the file were opened and closed again: only the size
    /// of an array changes.
    ///
    /// # Errors
    ///
    /// EFBIG if a fixed size would have to grow.
    pub(super) fn truncate_file(
        &self,
        inode: u64,
        node: &Node,
        size: u64,
        handle: Option<u64>,
    ) -> Result<()> {
        if let Some(handle) = handle
            && let Some(file) = self.files.get(handle)?.as_composite()
            && file.set_whole_len(size)?
        {
            return Ok(());
        }
        let handle = handle.or_else(|| self.truncations.owner(inode));
        let file = handle.map(|handle| self.files.get(handle)).transpose()?;
        let through = handle.zip(file.filter(|file| !file.written_arrays().is_empty()));
        let whole = self.whole_attributes(inode)?.size;
        if self.options.is_resized(node) {
            let after = if self.truncations.contains(inode) {
                Added::Zeros
            } else {
                Added::FillValue
            };
            self.writer.truncate_shown(node, size, after)?;
            if let Some((handle, _)) = through.filter(|_| size < whole || size == 0) {
                let mark = if size == 0 && takes_mark(&self.tree, node)? {
                    Mark::Expected
                } else {
                    Mark::Data
                };
                let sizes = (u64::MAX, whole);
                self.truncations
                    .truncated_from(inode, handle, None, sizes, mark);
            }
            return Ok(());
        }
        if size > whole {
            return Err(Error::system(libc::EFBIG));
        }
        let Some((handle, file)) = through else {
            return Ok(());
        };
        if let Some(chunk) = file.as_chunk().filter(|_| size == 0) {
            chunk.truncate();
        }
        let end = self.truncations.end(inode).unwrap_or(whole);
        if size < end {
            let is_marked = size == 0 && matches!(node.view(), Some((_, View::Unpacked)));
            let mark = if is_marked {
                Mark::Expected
            } else {
                Mark::Data
            };
            self.truncations
                .truncated_from(inode, handle, Some(size), (whole, 0), mark);
        } else if size > end {
            let writing = self
                .truncations
                .with(inode, |file| file.writing.clone())
                .unwrap_or_default();
            let _writing = lock(&writing);
            file.write_zeros(self, end..size)?;
            self.truncations.reached(inode, size);
        }
        Ok(())
    }

    /// Gives an array the rows back that it had before GDAL has created its flat bytes, which are
    /// being closed.
    pub(super) fn restore_rows(&self, inode: u64, handle: u64) -> Result<()> {
        let before = self.truncations.take_mark(inode, handle);
        let Some(size) = before.filter(|_| self.options.resize) else {
            return Ok(());
        };
        self.writer
            .truncate_shown(&*self.tree.node(inode)?, size, Added::FillValue)
    }

    /// Ends the truncation of a file that is about to be released: it has its whole size again. The
    /// caller must call this before it takes another request.
    pub fn end_truncation(&self, handle: u64) {
        if let Ok(file) = self.files.get(handle)
            && self.truncations.released(file.inode(), handle)
        {
            // the kernel's last page has zeros behind the end
            self.pages.forget(file.inode());
            self.writer.add_stale_file(file.inode(), false);
        }
    }
}

/// Returns whether GDAL's mark is less than a row, or a physical value, of an array.
fn takes_mark(tree: &Tree, node: &Node) -> Result<bool> {
    let Some(key) = node.flat() else {
        return Ok(node.view().is_some());
    };
    let array = tree.array(key)?;
    let metadata = array.metadata();
    let rows = metadata.shape.iter().skip(1);
    let row = rows.fold(metadata.dtype.size() as u64, |n, &len| {
        n.saturating_mul(len)
    });
    Ok(row > MARK.len() as u64)
}

#[cfg(test)]
mod tests;
