//! An open plain key: a file of the store, read and written in place. This module knows nothing of
//! arrays.

use super::{NewFile, OpenFile, UnstoredBytes};
use crate::cache::{FoundBytes, Wait};
use crate::fs::tree::Attributes;
use crate::fs::write::WriteMode;
use crate::fs::{Change, Fs, KernelPages};
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};
use zarrfs_base::error::{Error, ErrorContext, Result};
use zarrfs_store::{Permissions, StoreExt, read_at};

/// An open plain key.
pub struct PlainFile {
    inode: u64,
    /// The file, if the store keeps values in files. Without it nothing can be written.
    file: Option<File>,
    /// Whether the content became a chunk, a document or flat bytes: later writes through this file
    /// fail.
    is_taken: AtomicBool,
}

impl PlainFile {
    /// Opens a plain key that the kernel knows by `inode`.
    pub fn open(inode: u64, file: Option<File>) -> NewFile {
        NewFile::new(
            Arc::new(PlainFile {
                inode,
                file,
                is_taken: AtomicBool::new(false),
            }),
            KernelPages::Fresh,
        )
    }
}

impl OpenFile for PlainFile {
    fn inode(&self) -> u64 {
        self.inode
    }

    /// Reads the value that is stored under the file's name, if it has one: the kernel keeps one
    /// set of pages for all descriptors of the file. Without a name it reads the file itself.
    fn read(
        &self,
        fs: &Fs,
        offset: u64,
        len: usize,
        wait: Wait,
        out: &mut Vec<u8>,
    ) -> Result<FoundBytes> {
        if wait == Wait::Never {
            return Ok(FoundBytes::MustWait);
        }
        if let Ok(node) = fs.tree.node(self.inode) {
            let key = node.value().ok_or_else(Error::stale)?;
            if let Some(draft) = fs.drafts.get(key) {
                return draft.read(fs, offset, len, wait, out);
            }
            let end = offset.saturating_add(len as u64);
            let got = fs.store().get_range(key, offset..end, out).context(key)?;
            // a file whose value is gone is being removed
            if got.is_some() {
                return Ok(FoundBytes::Copied);
            }
        }
        let file = self.file.as_ref().ok_or_else(Error::stale)?;
        out.resize(len, 0);
        read_at(file, offset, out).map(|()| FoundBytes::Copied)
    }

    fn unstored_bytes(&self) -> UnstoredBytes {
        UnstoredBytes::None
    }

    fn write(
        &self,
        _: &Change,
        offset: u64,
        data: &[u8],
        mode: WriteMode,
    ) -> Result<Option<usize>> {
        if mode.wait == Wait::Never {
            return Ok(None);
        }
        let file = self
            .file
            .as_ref()
            .ok_or_else(|| Error::system(libc::EBADF))?;
        if self.is_taken.load(Ordering::Acquire) {
            return Err(Error::stale());
        }
        file.write_all_at(data, offset)?;
        Ok(Some(data.len()))
    }

    fn fsync(&self, _: &Change) -> Result<()> {
        Ok(self.file.as_ref().map_or(Ok(()), File::sync_all)?)
    }

    fn sync_in_place(&self, fs: &Change) -> Result<()> {
        self.fsync(fs)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        let file = self
            .file
            .as_ref()
            .ok_or_else(|| Error::system(libc::EPERM))?;
        Ok(file.set_len(len)?)
    }

    fn allocate(&self, range: Range<u64>, keeps_size: bool) -> Result<bool> {
        let Some(file) = &self.file else {
            return Ok(false);
        };
        if self.is_taken.load(Ordering::Acquire) {
            return Err(Error::stale());
        }
        let flags = if keeps_size {
            FallocateFlags::KEEP_SIZE
        } else {
            FallocateFlags::empty()
        };
        let done = fallocate(file, flags, range.start, range.end - range.start);
        done.map_err(std::io::Error::from)?;
        Ok(true)
    }

    fn unlinked_attributes(&self, fs: &Fs) -> Option<Attributes> {
        let metadata = self.file.as_ref()?.metadata().ok()?;
        let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        let permissions = Permissions::new(metadata.mode(), metadata.uid(), metadata.gid());
        let attributes = fs
            .tree
            .file_attributes(metadata.len(), modified, Some(permissions));
        let since = Duration::new(
            metadata.ctime().try_into().unwrap_or_default(),
            metadata.ctime_nsec().try_into().unwrap_or_default(),
        );
        Some(Attributes {
            changed: SystemTime::UNIX_EPOCH + since,
            ..attributes
        })
    }

    fn end_writing(&self) {
        self.is_taken.store(true, Ordering::Release);
    }
}
