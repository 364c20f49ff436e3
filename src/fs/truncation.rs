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
//! **Zeros that are less than a row say that a file exists, not what is in it**: a program may
//! truncate a file, write a few zero bytes and close it, then open it again, take the size from the
//! header, and write the rows, as GDAL does. Zeros at the start of a truncated file, or of its
//! physical values less than one of these, are therefore no data if nothing else is written before
//! the close: an array that is resized gets the rows back that it had.

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

/// Maximum number of zeros at the start of a file that are no data.
const MAX_ZEROS: u64 = 4096;

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
    /// `None` if zeros at the start are data, or other bytes were written.
    zeros: Option<LeadingZeros>,
    record: Option<RecordId>,
}

/// Zeros at the start of a truncated file that are not in the array, since nothing else was
/// written.
struct LeadingZeros {
    /// Their number.
    len: u64,
    /// The number of bytes that are data.
    limit: u64,
    /// The size to which an array returns that was resized, if nothing else is written.
    before: u64,
}

/// The kind of the records of truncations. The numbers are the inode number, and the end and one,
/// or 0 for no end; the text is the whole size, the number of zeros at the start and one, or 0,
/// with their limit and the size before, and the owners.
const TRUNCATION_RECORD: u32 = 5;

impl Truncation {
    /// Writes the truncation to the journal.
    fn record(&mut self, journal: &Journal, inode: u64) {
        let numbers = [inode, self.end.map_or(0, |end| end + 1)];
        let zeros = match &self.zeros {
            Some(zeros) => [zeros.len + 1, zeros.limit, zeros.before],
            None => [0; 3],
        };
        let text = [&[self.whole], &zeros[..], &self.owners].concat();
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
        let mut next = || numbers.next();
        let (whole, len, limit, before) = (next()?, next()?, next()?, next()?);
        let zeros = len
            .checked_sub(1)
            .map(|len| LeadingZeros { len, limit, before });
        let truncation = Truncation {
            end: end.checked_sub(1),
            whole,
            zeros,
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

    /// Returns whether a file was truncated to nothing through an open file.
    pub fn is_emptied_by(&self, inode: u64, handle: u64) -> bool {
        self.end(inode) == Some(0) && self.is_owner(inode, handle)
    }

    /// Records that a file was truncated to `end` bytes of `whole` through an open file. With
    /// `zeros`, such bytes are no data.
    fn truncated(
        &self,
        inode: u64,
        handle: u64,
        end: Option<u64>,
        whole: u64,
        zeros: Option<LeadingZeros>,
    ) {
        let mut files = lock(&self.files);
        let new = Truncation {
            end,
            whole,
            owners: Vec::new(),
            closing: None,
            writing: Arc::default(),
            zeros: None,
            record: None,
        };
        let file = files.entry(inode).or_insert(new);
        (file.end, file.closing) = (end, None);
        file.zeros = zeros;
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

    /// Records a write to a truncated file. Returns whether it is held, since it only adds to the
    /// zeros at the start, and the number of zeros that were held before.
    fn hold(&self, inode: u64, offset: u64, data: &[u8]) -> (bool, u64) {
        let held = self.with(inode, |file| {
            let zeros = file.zeros.as_mut()?;
            let before = zeros.len;
            let end = offset + data.len() as u64;
            let is_held =
                offset == before && end < zeros.limit && data.iter().all(|&byte| byte == 0);
            if is_held {
                zeros.len = end;
                file.closing = None;
            } else {
                file.zeros = None;
            }
            self.record(inode, file);
            Some((is_held, before))
        });
        held.flatten().unwrap_or_default()
    }

    /// Returns the number of zeros that are held; `None` if no zeros are held.
    fn held(&self, inode: u64) -> Option<u64> {
        self.with(inode, |file| file.zeros.as_ref().map(|zeros| zeros.len))?
            .filter(|&len| len > 0)
    }

    /// Returns the zeros that a read of a truncated file finds, if such are held.
    pub fn read_held(&self, inode: u64, offset: u64, len: usize) -> Option<Vec<u8>> {
        let left = self.held(inode)?.saturating_sub(offset);
        Some(vec![0; len.min(usize::try_from(left).unwrap_or(len))])
    }

    /// Returns the size to which a file returns that is closed with nothing but held zeros.
    fn take_held(&self, inode: u64, handle: u64) -> Option<u64> {
        self.with(inode, |file| {
            let is_held = file.zeros.as_ref().is_some_and(|zeros| zeros.len > 0);
            let zeros = file
                .zeros
                .take_if(|_| is_held && file.owners.contains(&handle));
            self.record(inode, file);
            zeros.map(|zeros| zeros.before)
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
        let held = self.held(attributes.inode);
        let end = self.end(attributes.inode);
        match held.or(end.map(|end| end.min(attributes.size))) {
            Some(size) => Attributes {
                size,
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
        self.truncated(attributes.inode, handle, Some(0), attributes.size, None);
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
        if self.truncations.held(inode).is_some() && mode.wait == Wait::Never {
            return Ok(None);
        }
        let (is_held, zeros) = self.truncations.hold(inode, offset, data);
        if is_held {
            return Ok(Some(data.len()));
        }
        // a write behind them finds a gap
        if offset + (data.len() as u64) < zeros {
            file.write(self, 0, &vec![0; zeros as usize], mode)?;
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
        if offset >= end {
            return Ok(());
        }
        self.record_written(handle);
        let zeroed = file.write_zeros(self, offset..end);
        self.record_held(handle, &*file);
        zeroed
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
                let zeros = leading_zeros(&self.tree, node, size, whole)?;
                self.truncations
                    .truncated(inode, handle, None, u64::MAX, zeros);
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
            let zeros = match node.view() {
                Some((_, View::Unpacked)) => leading_zeros(&self.tree, node, size, whole)?,
                _ => None,
            };
            self.truncations
                .truncated(inode, handle, Some(size), whole, zeros);
        } else if size > end {
            let writing = self
                .truncations
                .with(inode, |file| file.writing.clone())
                .unwrap_or_default();
            let _writing = lock(&writing);
            self.record_written(handle);
            file.write_zeros(self, end..size)?;
            self.truncations.reached(inode, size);
        }
        Ok(())
    }

    /// Gives an array the rows back that it had, if its flat bytes are closed with nothing but held
    /// zeros.
    pub(super) fn restore_rows(&self, inode: u64, handle: u64) -> Result<()> {
        let before = self.truncations.take_held(inode, handle);
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

/// Returns which zeros are no data in a file that had `before` bytes and is truncated to `size`:
/// less than a row of an array, or less than a physical value. `None` unless it is empty.
fn leading_zeros(tree: &Tree, node: &Node, size: u64, before: u64) -> Result<Option<LeadingZeros>> {
    if size > 0 {
        return Ok(None);
    }
    let limit = match (node.view(), node.flat()) {
        (Some((key, view)), _) => tree.viewed(key, view)?.1.form.shown_item() as u64,
        (None, Some(key)) => tree.array(key)?.metadata().row_size(),
        (None, None) => return Ok(None),
    };
    Ok(Some(LeadingZeros {
        len: 0,
        limit: limit.min(MAX_ZEROS),
        before,
    }))
}

#[cfg(test)]
mod tests;
