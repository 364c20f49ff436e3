//! Open flat bytes: `data.raw` of an array, and the parts of containers that hold flat bytes.

mod gather;
pub mod holes;

use super::Handles;
use super::{CurrentArray, NewFile, OpenFile, PendingDrop, UnstoredBytes};
use crate::array::{Array, VersionTag};
use crate::cache::{FoundBytes, PrefetchState, Wait};
use crate::fs::resize::HiddenGrowth;
use crate::fs::write::WriteMode;
use crate::fs::write_record::WriteRecord;
use crate::fs::{Change, Fs, KernelPages};
use gather::FlatRead;
use holes::{Seek, StoredChunks};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use zarrfs_base::error::{Error, Result};
use zarrfs_store::Key;

/// Open flat bytes of an array.
pub struct FlatFile {
    /// The file's inode number; 0 for a part of a container.
    inode: u64,
    /// The array.
    pub array: CurrentArray,
    record: WriteRecord,
    writable: bool,
    stored: StoredChunks,
    readers: PrefetchState,
    pending_drop: PendingDrop,
    /// Whether the kernel or the reader keeps the bytes read, so that the cache need not.
    is_kept_elsewhere: bool,
    /// Whether writes bypass the kernel's page cache.
    is_past_pages: AtomicBool,
    /// Whether the file was open a second time while this was open: that reader may have filled the
    /// page cache.
    is_shared: AtomicBool,
}

impl FlatFile {
    /// Creates the flat bytes that are a part of a container.
    pub fn part(array: Arc<Array>, is_kept_elsewhere: bool) -> Self {
        FlatFile {
            inode: 0,
            array: CurrentArray::new(array),
            record: WriteRecord::default(),
            writable: false,
            stored: StoredChunks::default(),
            readers: PrefetchState::default(),
            pending_drop: PendingDrop::new(0, KernelPages::None),
            is_kept_elsewhere,
            is_past_pages: AtomicBool::new(false),
            is_shared: AtomicBool::new(false),
        }
    }

    /// Records a read before it is answered, so that the cache can load what comes next. Returns
    /// the array, and whether its reader is sequential; `None` if the array has to be looked up
    /// first.
    pub fn record_access(&self, fs: &Fs, offset: u64, len: usize) -> Option<(Arc<Array>, bool)> {
        self.pending_drop.finish(fs);
        let array = self.array.known();
        if array.is_superseded() {
            return None;
        }
        let end = offset.saturating_add(len as u64).min(array.size());
        let is_sequential = offset < end
            && fs.prefetcher.record_access(
                &self.readers,
                &array,
                offset,
                end - offset,
                self.is_kept_elsewhere,
            );
        Some((array, is_sequential))
    }

    /// Reads as [`OpenFile::read`] does, without a record of the request: the caller has just
    /// called [`FlatFile::record_access`], which has returned `recorded`.
    pub fn read_recorded(
        &self,
        fs: &Fs,
        recorded: Option<(Arc<Array>, bool)>,
        (offset, len): (u64, usize),
        wait: Wait,
        out: &mut Vec<u8>,
    ) -> Result<FoundBytes> {
        let (array, is_sequential) = match recorded {
            Some(recorded) => recorded,
            None => {
                let Some(array) = self.array.latest_if(fs, wait)? else {
                    return Ok(FoundBytes::MustWait);
                };
                (array, self.readers.is_sequential(offset))
            }
        };
        let end = offset.saturating_add(len as u64);
        if !fs.waiting.wait_for(array.key(), &(offset..end), wait) {
            return Ok(FoundBytes::MustWait);
        }
        let range = offset..end.min(array.size());
        if range.is_empty() {
            out.clear();
            return Ok(FoundBytes::Copied);
        }
        if is_sequential
            && let Some(found) =
                fs.prefetcher
                    .read_windows(&self.readers, &array, &range, wait, out)
        {
            return Ok(found);
        }
        let request = FlatRead {
            fs,
            array: &array,
            range,
            whole: is_sequential,
        };
        request.read(wait, out)
    }

    /// Writes flat bytes through the file that `mode` names: see [`OpenFile::write`]. `check` is
    /// called with the array before anything changes, and may refuse the write.
    pub fn write_through(
        &self,
        fs: &Change,
        offset: u64,
        data: &[u8],
        mode: WriteMode,
        check: impl Fn(&Array) -> Result<()>,
    ) -> Result<Option<usize>> {
        let end = offset.saturating_add(data.len() as u64);
        let mut growth = None;
        let written = loop {
            let Some(mut array) = self.array.latest_if(fs, mode.wait)? else {
                return Ok(None);
            };
            check(&array)?;
            if fs.options.resize && !data.is_empty() && end > fs.arrays.resizing.end(&array) {
                if mode.wait == Wait::Never {
                    return Ok(None);
                }
                let grown;
                (array, grown) = fs.arrays.reach(array.key(), end)?;
                growth = growth.or(grown);
            }
            let Some(_writing) = fs.arrays.resizing.writing_if(array.key(), mode.wait) else {
                return Ok(None);
            };
            // from here on the array cannot change
            if !array.is_superseded() {
                let before = growth.as_ref().map_or(offset, HiddenGrowth::before);
                break fs.files.write_recorded(&self.record, &array, mode, || {
                    check(&array)?;
                    if fs.truncations.contains(mode.inode) {
                        fs.writer.fill_added(&array, before..offset, mode)?;
                    }
                    fs.writer.write_flat(&array, offset, data, mode)
                });
            }
            if mode.wait == Wait::Never {
                return Ok(None);
            }
        };
        if let (Err(_), Some(growth)) = (&written, growth) {
            fs.writer.undo_growth(growth);
        }
        written
    }

    /// Returns where the next data or hole begins at or after `offset`, where bytes that are not
    /// stored read as zeros if `is_zero`.
    ///
    /// # Errors
    ///
    /// ENXIO at and past the end.
    pub fn seek_through(
        &self,
        fs: &Fs,
        offset: u64,
        target: Seek,
        is_zero: impl Fn(&Array) -> bool,
    ) -> Result<u64> {
        let array = self.array.latest(fs)?;
        if offset >= array.size() {
            return Err(Error::system(libc::ENXIO));
        }
        // a shared map may have changed pages of chunks that are not stored
        let has_holes = is_zero(&array) && !fs.arrays.guards.has_writers(array.key());
        if has_holes {
            fs.arrays.settle(array.key(), None);
        }
        self.stored.seek(&array, offset, target, has_holes)
    }
}

impl Handles<dyn OpenFile> {
    /// Returns whether the handle belongs to `data.raw`.
    pub fn is_flat(&self, handle: u64) -> bool {
        self.get(handle).is_ok_and(|file| file.as_flat().is_some())
    }

    /// Lets writes through an open file bypass the kernel's page cache, if it is `data.raw`.
    /// Returns whether they do.
    pub fn write_past_pages(&self, handle: u64) -> bool {
        let Ok(file) = self.get(handle) else {
            return false;
        };
        let Some(flat) = file.as_flat() else {
            return false;
        };
        flat.write_past_pages();
        self.note_sharing(flat.inode);
        true
    }

    /// Returns whether the `data.raw` with this inode number is open more than once, and records
    /// this in its open files.
    pub fn note_sharing(&self, inode: u64) -> bool {
        let open = self.matching(|file| file.as_flat().is_some_and(|flat| flat.inode == inode));
        let is_shared = open.len() > 1;
        if is_shared {
            let flat = open.iter().filter_map(|file| file.as_flat());
            flat.for_each(|flat| flat.is_shared.store(true, Ordering::Relaxed));
        }
        is_shared
    }

    /// Returns whether pages of a write through this file must be dropped before its reply. The
    /// kernel drops them before it sends a write past the page cache, and a reader that overtakes
    /// the write fills them again.
    pub fn leaves_stale_pages(&self, handle: u64) -> bool {
        self.get(handle).is_ok_and(|file| {
            file.as_flat().is_some_and(|flat| {
                flat.is_past_pages.load(Ordering::Relaxed) && flat.is_shared.load(Ordering::Relaxed)
            })
        })
    }
}

impl FlatFile {
    /// Records that writes through this file bypass the kernel's page cache.
    pub fn write_past_pages(&self) {
        self.is_past_pages.store(true, Ordering::Relaxed);
    }

    /// Opens the flat bytes of the array at `key`. With `direct`, the reader bypasses the kernel's
    /// page cache.
    pub(in crate::fs) fn open(
        fs: &Fs,
        inode: u64,
        key: &Key,
        for_writing: bool,
        direct: bool,
    ) -> Result<NewFile> {
        let array = fs.arrays.open(key)?;
        // held until the pages are recorded: another opening must not keep pages that this one
        // drops
        let opening_lock = array.freshness().lock_opening();
        let same = fs.cache.served().begin_opening(&array, &opening_lock);
        let pages = if fs.options.direct_io {
            KernelPages::None
        } else {
            KernelPages::kept_if(
                fs.pages
                    .open(inode, VersionTag::of_array(&array, None), same),
            )
        };
        drop(opening_lock);
        let file = FlatFile {
            inode,
            writable: for_writing,
            pending_drop: PendingDrop::new(inode, pages),
            ..FlatFile::part(array, !direct && !fs.options.direct_io)
        };
        let array = file.array.latest(fs)?;
        if for_writing {
            array.writable()?;
            fs.arrays.resizing.finish_closed(key);
        }
        Ok(NewFile {
            file: Arc::new(file),
            pages,
        })
    }
}

impl OpenFile for FlatFile {
    fn inode(&self) -> u64 {
        self.inode
    }

    fn read(
        &self,
        fs: &Fs,
        offset: u64,
        len: usize,
        wait: Wait,
        out: &mut Vec<u8>,
    ) -> Result<FoundBytes> {
        let recorded = match wait {
            Wait::Never => self.record_access(fs, offset, len),
            Wait::Allowed => None,
        };
        self.read_recorded(fs, recorded, (offset, len), wait, out)
    }

    fn write(
        &self,
        fs: &Change,
        offset: u64,
        data: &[u8],
        mode: WriteMode,
    ) -> Result<Option<usize>> {
        self.write_through(
            fs,
            offset,
            data,
            WriteMode {
                is_flat: true,
                inode: self.inode,
                ..mode
            },
            |_| Ok(()),
        )
    }

    fn write_zeros(&self, fs: &Change, range: Range<u64>) -> Result<()> {
        let mode = WriteMode {
            is_flat: true,
            inode: self.inode,
            ..WriteMode::internal()
        };
        let zeroed = self.array.write_latest(fs, Wait::Allowed, |array| {
            fs.files.write_recorded(&self.record, array, mode, || {
                fs.writer.zero_flat(array, range, mode)
            })
        });
        zeroed.map(drop)
    }

    fn flush(&self, fs: &Change) -> Result<()> {
        let stored = self.array.latest(fs).and_then(|array| {
            fs.arrays.resizing.close(array.key());
            fs.writer.flush_array(&array)
        });
        self.record
            .answer(fs.arrays.with_losses(&self.array.key(), stored))
    }

    fn seek(&self, fs: &Fs, offset: u64, target: Seek) -> Result<u64> {
        self.seek_through(fs, offset, target, Array::fill_is_zero)
    }

    fn release(&self, fs: &Change) {
        self.pending_drop.finish(fs);
        let array = self.array.known();
        fs.arrays.resizing.finish_closed(array.key());
        if array.is_dirty() {
            // chunks that cannot be stored are logged and stay dirty
            let _ = fs.writer.flush_array(&array);
        }
    }

    fn sync_in_place(&self, fs: &Change) -> Result<()> {
        self.fsync(fs)
    }

    fn release_may_block(&self) -> bool {
        self.array.known().is_dirty()
    }

    fn written_arrays(&self) -> Vec<Key> {
        if self.writable {
            vec![self.array.key()]
        } else {
            Vec::new()
        }
    }

    fn unstored_bytes(&self) -> UnstoredBytes {
        UnstoredBytes::InArrays
    }

    fn write_record(&self) -> Option<&WriteRecord> {
        Some(&self.record)
    }

    fn as_flat(&self) -> Option<&FlatFile> {
        Some(self)
    }
}
