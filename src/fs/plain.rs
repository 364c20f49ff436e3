//! Plain keys that are open: the store's own files, read and written in place. It knows nothing of arrays.

use super::draft::Draft;
use super::{Fs, Handle};
use crate::error::{Error, Result};
use crate::fs::tree::Node;
use crate::store::read_at;
use crate::util::memory::lock;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// An open plain key.
pub struct PlainFile {
    /// The number under which the kernel knows it, also when it gets another name.
    pub inode: u64,
    /// The file, where the store has one. Without it nothing can be written.
    pub file: Option<File>,
    /// Its content has become something else, which is not written through it.
    taken: AtomicBool,
}

impl PlainFile {
    /// An open plain key that the kernel knows by the number `inode`.
    pub fn new(inode: u64, file: Option<File>) -> Self {
        PlainFile { inode, file, taken: AtomicBool::new(false) }
    }
}

impl Fs {
    /// Reads up to `len` bytes at `offset`. As long as the file has a name they are those of what is there by that name,
    /// since the kernel keeps the pages of all who have it open together.
    pub(super) fn read_plain(&self, open: &PlainFile, offset: u64, len: usize, out: &mut Vec<u8>) -> Result<()> {
        let stale = || Error::system(libc::ESTALE);
        if let Ok(node) = self.tree.node(open.inode) {
            let Node::Value(key) = &*node else { return Err(stale()) };
            if let Some(draft) = self.drafts.get(key) {
                draft.read(offset, len, out);
                return Ok(());
            }
            let end = offset.saturating_add(len as u64);
            let got = self.tree.hierarchy().store().get_range(key, offset..end, out).map_err(|e| e.context(key))?;
            return got.map(|_| ()).ok_or_else(stale);
        }
        let file = open.file.as_ref().ok_or_else(stale)?;
        out.resize(len, 0);
        read_at(file, offset, out)
    }

    /// Writes all of `data`.
    pub(super) fn write_plain(&self, open: &PlainFile, offset: u64, data: &[u8]) -> Result<()> {
        let file = open.file.as_ref().ok_or_else(|| Error::system(libc::EBADF))?;
        if open.taken.load(Ordering::Acquire) {
            return Err(Error::system(libc::ESTALE));
        }
        Ok(file.write_all_at(data, offset)?)
    }

    /// Has the bytes survive a power loss.
    pub(super) fn sync_plain(&self, open: &PlainFile) -> Result<()> {
        Ok(open.file.as_ref().map_or(Ok(()), File::sync_all)?)
    }

    /// The content of a plain key has become a chunk, a document or flat bytes: who has it open to write it must not
    /// take for written what nobody will see.
    pub(super) fn take_plain(&self, inode: u64) {
        for handle in lock(&self.handles).values() {
            if let Handle::Plain(open) = &**handle
                && open.inode == inode
            {
                open.taken.store(true, Ordering::Release);
            }
        }
    }

    /// The same where values are no files.
    pub(super) fn removed_draft(&self, inode: u64) -> Option<Arc<Draft>> {
        let of_handle = |handle: &Arc<Handle>| match &**handle {
            Handle::Draft(draft) if draft.inode == inode => Some(draft.clone()),
            _ => None,
        };
        lock(&self.handles).values().find_map(of_handle)
    }

    /// A file that was removed or replaced while it is open, by its number.
    pub(super) fn removed_file(&self, inode: u64) -> Option<File> {
        let of_handle = |handle: &Arc<Handle>| match &**handle {
            Handle::Plain(open) if open.inode == inode => open.file.as_ref()?.try_clone().ok(),
            _ => None,
        };
        lock(&self.handles).values().find_map(of_handle)
    }
}
