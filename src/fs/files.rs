//! Open files. Each kind is a type with a module of its own and answers the requests that name it
//! by a handle. These modules must not know of names in directories or of FUSE.

pub mod chunk;
pub mod composite;
pub mod control;
pub mod document;
pub mod draft;
pub mod flat;
pub mod ingested;
mod items;
mod opened_text;
pub mod plain;
pub mod view;

use super::write::{WriteMode, ZEROS};
use super::write_record::WriteRecord;
use super::{Change, Fs, KernelPages};
use crate::array::Array;
use crate::cache::{FoundBytes, Wait};
use crate::fs::tree::Attributes;
use chunk::ChunkFile;
use composite::CompositeFile;
pub use composite::blocks::LoadedBlocks;
use flat::FlatFile;
pub use flat::holes::Seek;
use ingested::IngestedFile;
pub(in crate::fs) use opened_text::OpenedTexts;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory::lock;
use zarrfs_store::Key;

/// What becomes of bytes that were written to an open file when the daemon is killed before the
/// file is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnstoredBytes {
    /// They are in the store already.
    None,
    /// They are lost if an array that the file shows has chunks that are not stored.
    InArrays,
    /// They are lost.
    InFile,
}

/// An open file. The provided methods are those of a file that can only be read.
pub trait OpenFile: Send + Sync {
    /// Returns the inode number under which the kernel knows the file, also after a rename.
    fn inode(&self) -> u64;

    /// Returns whether the mount is in use while the file is open.
    fn is_use(&self) -> bool {
        true
    }

    /// Reads up to `len` bytes at `offset`, fewer only at the end of the file: from the cache, or
    /// into `out`, replacing its content. The first attempt at each request, with [`Wait::Never`],
    /// records the request, so that the cache can load what comes next.
    fn read(
        &self,
        fs: &Fs,
        offset: u64,
        len: usize,
        wait: Wait,
        out: &mut Vec<u8>,
    ) -> Result<FoundBytes>;

    /// Writes `data` at `offset` and returns the number of bytes written: fewer only at the end of
    /// a file of fixed size. Returns `None` if that would need the store or a wait and the mode
    /// forbids it; the caller must then repeat the write.
    ///
    /// # Errors
    ///
    /// EFBIG past the end of a file of fixed size; EBADF if the file cannot be written.
    fn write(
        &self,
        _fs: &Change,
        _offset: u64,
        _data: &[u8],
        _mode: WriteMode,
    ) -> Result<Option<usize>> {
        Err(Error::system(libc::EBADF))
    }

    /// Writes zeros over a part of the file.
    fn write_zeros(&self, fs: &Change, range: Range<u64>) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let len = (range.end - at).min(ZEROS.len() as u64) as usize;
            let mode = WriteMode {
                is_gap: true,
                ..WriteMode::internal()
            };
            let written = self
                .write(fs, at, &ZEROS[..len], mode)?
                .filter(|written| *written > 0);
            at += written.ok_or_else(|| Error::system(libc::EFBIG))? as u64;
        }
        Ok(())
    }

    /// Stores everything written through the file, and returns the first error. Data that cannot be
    /// stored stay dirty.
    fn flush(&self, _fs: &Change) -> Result<()> {
        Ok(())
    }

    /// Flushes, and makes the file itself durable if the store does not sync it.
    fn fsync(&self, fs: &Change) -> Result<()> {
        self.flush(fs)
    }

    /// Makes durable what was written in place, for a write with O_SYNC or O_DSYNC. What takes
    /// effect as a whole, such as a document, waits until it is complete.
    fn sync_in_place(&self, _fs: &Change) -> Result<()> {
        Ok(())
    }

    /// Sets the length in bytes.
    fn set_len(&self, _len: u64) -> Result<()> {
        Err(Error::system(libc::EPERM))
    }

    /// Reserves space for a part of the file, as fallocate(2) does, if it has space of its own.
    /// Returns whether it has.
    fn allocate(&self, _range: Range<u64>, _keeps_size: bool) -> Result<bool> {
        Ok(false)
    }

    /// Returns the offset, at or after `offset`, where the next data or hole begins, as lseek(2)
    /// defines it. By default, the whole file is data.
    ///
    /// # Errors
    ///
    /// ENXIO at and past the end.
    fn seek(&self, fs: &Fs, offset: u64, target: Seek) -> Result<u64> {
        let size = fs.attributes(self.inode())?.size;
        match target {
            _ if offset >= size => Err(Error::system(libc::ENXIO)),
            Seek::Data => Ok(offset),
            Seek::Hole => Ok(size),
        }
    }

    /// Ends the file, because its last descriptor was closed. The preceding flush has reported
    /// errors; new ones are logged.
    fn release(&self, _fs: &Change) {}

    /// Returns whether `release` may block on the store.
    fn release_may_block(&self) -> bool {
        false
    }

    /// Returns the keys of the arrays whose flat bytes may be written through the file.
    fn written_arrays(&self) -> Vec<Key> {
        Vec::new()
    }

    /// Returns what becomes of written bytes that are not stored when the daemon is killed.
    fn unstored_bytes(&self) -> UnstoredBytes {
        UnstoredBytes::InFile
    }

    /// Returns the record of the writes through the file.
    fn write_record(&self) -> Option<&WriteRecord> {
        None
    }

    /// Returns the attributes of a file without a name, if its content outlives the name. A header
    /// has none while it cannot be made.
    fn unlinked_attributes(&self, _fs: &Fs) -> Option<Attributes> {
        None
    }

    /// Records that the content has become a chunk, a document or flat bytes: nothing is written
    /// through this file any more.
    fn end_writing(&self) {}

    /// Returns the file if it is `data.raw`.
    fn as_flat(&self) -> Option<&FlatFile> {
        None
    }

    /// Returns the file if it is a header or container.
    fn as_composite(&self) -> Option<&CompositeFile> {
        None
    }

    /// Returns the file if it is or becomes a group or array.
    fn as_ingested(&self) -> Option<&IngestedFile> {
        None
    }

    /// Returns the file if it is a chunk file.
    fn as_chunk(&self) -> Option<&ChunkFile> {
        None
    }
}

/// A file that was just opened and has no handle yet.
pub struct NewFile {
    /// The file.
    pub file: Arc<dyn OpenFile>,
    /// The pages that the kernel may keep.
    pub pages: KernelPages,
}

impl NewFile {
    /// Returns a file that the kernel reads by requests alone.
    pub fn new(file: Arc<dyn OpenFile>, pages: KernelPages) -> Self {
        NewFile { file, pages }
    }
}

/// Open files or directories by handle, the number that stands for them in requests.
pub struct Handles<T: ?Sized> {
    /// Open files by handle. The lock protects the map alone and is never held during a request.
    open: Mutex<HashMap<u64, Arc<T>>>,
    last: AtomicU64,
}

impl<T: ?Sized> Handles<T> {
    /// Creates an empty table.
    pub fn new() -> Self {
        Handles {
            open: Mutex::default(),
            last: AtomicU64::new(0),
        }
    }

    /// Adds an open file and returns its handle.
    pub fn insert(&self, file: Arc<T>) -> u64 {
        let handle = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        lock(&self.open).insert(handle, file);
        handle
    }

    /// Makes all later handles higher than `last`.
    pub fn begin_after(&self, last: u64) {
        self.last.fetch_max(last, Ordering::Relaxed);
    }

    /// Adds a file under a handle that an earlier daemon has returned.
    pub fn insert_at(&self, handle: u64, file: Arc<T>) {
        lock(&self.open).insert(handle, file);
    }

    /// Returns the file of a handle.
    ///
    /// # Errors
    ///
    /// EBADF if there is none.
    pub fn get(&self, handle: u64) -> Result<Arc<T>> {
        let file = lock(&self.open).get(&handle).cloned();
        file.ok_or_else(|| Error::system(libc::EBADF))
    }

    /// Removes and returns the file of a handle.
    pub fn remove(&self, handle: u64) -> Option<Arc<T>> {
        lock(&self.open).remove(&handle)
    }

    /// Returns whether an open file matches. `matches` runs under the table's lock and must not
    /// block.
    pub fn any(&self, matches: impl Fn(&T) -> bool) -> bool {
        lock(&self.open).values().any(|file| matches(file))
    }

    /// Returns the number of open files.
    pub fn len(&self) -> usize {
        lock(&self.open).len()
    }

    /// Returns the open files that match, oldest first. `matches` runs under the table's lock and
    /// must not block.
    pub fn matching(&self, matches: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let open = lock(&self.open);
        let mut found: Vec<_> = open.iter().filter(|(_, file)| matches(file)).collect();
        found.sort_unstable_by_key(|(handle, _)| **handle);
        found.into_iter().map(|(_, file)| file.clone()).collect()
    }
}

impl Handles<dyn OpenFile> {
    /// Calls `write`, which writes to the array through a file, and adds it to the record of the
    /// file, whether it fails or not. A page of a map may come from any open file of the array, so
    /// each of them gets the record.
    pub fn write_recorded<T>(
        &self,
        record: &WriteRecord,
        array: &Arc<Array>,
        mode: WriteMode,
        write: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let losses = array.freshness().losses();
        let written = write();
        record.add(array, losses);
        if mode.mapped {
            let others = self.matching(|file| file.written_arrays().contains(array.key()));
            let records = others.iter().filter_map(|file| file.write_record());
            records.for_each(|record| record.add(array, losses));
        }
        written
    }
}

/// The array behind an open file. All open files of an array must read through one object, because
/// they share the pages in the kernel.
///
/// The lock protects the reference alone.
pub struct CurrentArray(Mutex<Arc<Array>>);

impl CurrentArray {
    /// Creates a reference to the array as it was opened.
    pub fn new(array: Arc<Array>) -> Self {
        CurrentArray(Mutex::new(array))
    }

    /// Returns the array as the file used it last.
    pub fn known(&self) -> Arc<Array> {
        lock(&self.0).clone()
    }

    /// Returns the array's key.
    pub fn key(&self) -> Key {
        lock(&self.0).key().clone()
    }

    /// Returns the array as it was opened last through any file. It may block on the store.
    pub fn latest(&self, fs: &Fs) -> Result<Arc<Array>> {
        let old = self.known();
        if !old.is_superseded() {
            return Ok(old);
        }
        // the lock is not held here, because requests that need no store take it too; chunks that
        // cannot be stored stay dirty, and the close of the file reports the error
        let _ = fs.cache.flush_array(&old);
        let new = fs.arrays.open(old.key())?;
        *lock(&self.0) = new.clone();
        Ok(new)
    }

    /// Returns the array of [`CurrentArray::latest`], or `None` if that would need the store and
    /// `wait` does not allow it.
    pub fn latest_if(&self, fs: &Fs, wait: Wait) -> Result<Option<Arc<Array>>> {
        if wait == Wait::Allowed {
            self.latest(fs).map(Some)
        } else {
            Ok(Some(self.known()).filter(|array| !array.is_superseded()))
        }
    }

    /// Calls `write` with the latest array, whose shape and key do not change meanwhile. Returns
    /// `None` if that would need a wait and `wait` does not allow it.
    pub fn write_latest<T>(
        &self,
        fs: &Fs,
        wait: Wait,
        write: impl FnOnce(&Arc<Array>) -> Result<T>,
    ) -> Result<Option<T>> {
        loop {
            let Some(array) = self.latest_if(fs, wait)? else {
                return Ok(None);
            };
            let Some(_writing) = fs.arrays.resizing.writing_if(array.key(), wait) else {
                return Ok(None);
            };
            if !array.is_superseded() {
                return write(&array).map(Some);
            }
            if wait == Wait::Never {
                return Ok(None);
            }
        }
    }
}

/// The inode number of a file whose pages the kernel drops at this opening; 0 once the kernel has
/// done so.
pub struct PendingDrop(AtomicU64);

impl PendingDrop {
    /// Begins to wait if `pages` makes the kernel drop pages.
    pub fn new(inode: u64, pages: KernelPages) -> Self {
        PendingDrop(AtomicU64::new(if pages == KernelPages::Fresh {
            inode
        } else {
            0
        }))
    }

    /// Ends the wait. The first request that names the file proves that the kernel has the answer
    /// to its opening.
    pub fn finish(&self, fs: &Fs) {
        if self.0.load(Ordering::Relaxed) != 0 {
            fs.pages.dropped(self.0.swap(0, Ordering::Relaxed));
        }
    }
}

/// Copies up to `len` bytes at `offset` of `text` into `out`, replacing its content.
pub fn copy_range(text: &[u8], offset: u64, len: usize, out: &mut Vec<u8>) -> FoundBytes {
    let start = offset.min(text.len() as u64) as usize;
    out.clear();
    out.extend_from_slice(&text[start..text.len().min(start.saturating_add(len))]);
    FoundBytes::Copied
}
