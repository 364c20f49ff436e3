//! Files that cannot be stored piece by piece while they are written: metadata documents, chunks of
//! objects, values that programs encode, and plain keys of a store whose values are not files. A
//! draft is shared by all processes that have the file open for writing, and becomes the file as a
//! whole when it is closed.

mod buffered_file;
mod bytes;

pub use bytes::DraftBytes;

use super::{NewFile, OpenFile, copy_range};
use crate::cache::{FoundBytes, Wait};
use crate::fs::tree::Tree;
use crate::fs::tree::{Attributes, Node};
use crate::fs::write::WriteMode;
use crate::fs::{Change, Fs, KernelPages};
use buffered_file::BufferedFile;
use std::collections::HashMap;
use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::SystemTime;
use zarrfs_base::error::{Error, ErrorContext, Kind, Result};
use zarrfs_base::memory::{self, lock};
use zarrfs_store::{Key, Permissions, StoreExt, read_at};

/// A file that is being written.
pub struct Draft {
    /// The inode number under which the kernel knows the file, also after a rename.
    pub inode: u64,
    /// Maximum length in bytes.
    limit: u64,
    /// The node, for its name. The lock protects it alone.
    node: Mutex<Node>,
    /// The content. Its lock is held while the content is stored, so that it does not change
    /// meanwhile.
    content: Mutex<DraftContent>,
}

/// The content of a draft.
pub struct DraftContent {
    /// The future content of the draft. An encoded value, which has any size, lies in a file.
    pub text: DraftBytes,
    /// Length of the text in bytes.
    pub len: u64,
    /// Whether the text differs from the stored one.
    pub changed: bool,
    /// Time of the last change of the text.
    pub modified: SystemTime,
    /// The permissions of the stored file that the draft is to replace or to become.
    pub permissions: Option<Permissions>,
    /// Error of the last attempt to store the text, if it failed.
    pub refused: Option<Error>,
    /// Whether the text is the content of the file. An encoded value that is stored is not loaded:
    /// it can only be written after it was truncated, as a whole.
    is_complete: bool,
    fate: Fate,
}

/// The state of a draft's file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// The file still has its name.
    Named,
    /// The file was removed or replaced; only its open descriptors still have the text.
    Removed,
    /// The content became a chunk, a document or flat bytes: later writes through this file fail.
    Taken,
}

/// The drafts of a mount. A draft lives as long as the file is open.
#[derive(Default)]
pub struct Drafts {
    /// Drafts by path. The lock protects the map.
    open: Mutex<HashMap<Key, Weak<Draft>>>,
}

impl Drafts {
    /// Returns the draft of the file at `path`.
    pub fn get(&self, path: &Key) -> Option<Arc<Draft>> {
        lock(&self.open).get(path).and_then(Weak::upgrade)
    }

    /// Returns all drafts.
    pub fn all(&self) -> Vec<Arc<Draft>> {
        lock(&self.open)
            .values()
            .filter_map(Weak::upgrade)
            .collect()
    }

    /// Returns whether there is no draft.
    pub fn is_empty(&self) -> bool {
        lock(&self.open)
            .values()
            .all(|draft| draft.strong_count() == 0)
    }

    /// Returns the draft of `node`, which the kernel knows by `inode`. If there is none, a new one
    /// starts with the stored text, or as a new file, and may grow to `limit` bytes. The file has
    /// these permissions, or will have them.
    pub fn open(
        &self,
        node: &Node,
        inode: u64,
        stored: Option<Vec<u8>>,
        permissions: Option<Permissions>,
        limit: u64,
    ) -> Result<Arc<Draft>> {
        let memory = memory::take(stored.as_ref().map_or(0, Vec::capacity))?;
        memory::check_available()?;
        let changed = stored.is_none();
        let bytes = stored.unwrap_or_default();
        let content = DraftContent {
            len: bytes.len() as u64,
            permissions,
            ..DraftContent::new(DraftBytes::Memory { bytes, memory }, changed)
        };
        Ok(self.insert(node, inode, limit, content))
    }

    /// Returns the draft of an encoded value as [`Drafts::open`] does. If there is none, a new one
    /// is written to the empty file `file`. A value that exists has to be truncated first.
    pub fn open_encoded(
        &self,
        node: &Node,
        inode: u64,
        file: File,
        exists: bool,
        permissions: Option<Permissions>,
    ) -> Arc<Draft> {
        let content = DraftContent {
            is_complete: !exists,
            permissions,
            ..DraftContent::new(DraftBytes::File(BufferedFile::new(file)), !exists)
        };
        self.insert(node, inode, i64::MAX as u64, content)
    }

    fn insert(&self, node: &Node, inode: u64, limit: u64, content: DraftContent) -> Arc<Draft> {
        let mut open = lock(&self.open);
        let path = node.path();
        if let Some(draft) = open.get(&path).and_then(Weak::upgrade) {
            return draft;
        }
        let node = Mutex::new(node.clone());
        let content = Mutex::new(content);
        let draft = Arc::new(Draft {
            inode,
            limit,
            node,
            content,
        });
        open.retain(|_, draft| draft.strong_count() > 0);
        open.insert(path, Arc::downgrade(&draft));
        draft
    }

    /// Separates the draft at `path` from its name, because the file was removed or replaced.
    /// Returns whether there was one.
    pub fn forget(&self, path: &Key) -> bool {
        self.end(path, Fate::Removed)
    }

    /// Separates the draft at `path` from its name, because its content has become something else:
    /// later writes fail. Returns whether there was one.
    pub fn take(&self, path: &Key) -> bool {
        self.end(path, Fate::Taken)
    }

    fn end(&self, path: &Key, fate: Fate) -> bool {
        let draft = lock(&self.open)
            .remove(path)
            .and_then(|draft| draft.upgrade());
        draft.is_some_and(|draft| {
            let mut content = draft.lock();
            (content.changed, content.fate) = (false, fate);
            true
        })
    }

    /// Renames the draft at `path` to `to`, in place of a draft that is there.
    pub fn renamed(&self, path: &Key, to: &Node) {
        self.forget(&to.path());
        let mut open = lock(&self.open);
        if let Some(draft) = open.remove(path) {
            if let Some(draft) = draft.upgrade() {
                *lock(&draft.node) = to.clone();
            }
            open.insert(to.path(), draft);
        }
    }

    /// Returns why the drafts that are open were refused when a descriptor of theirs was closed
    /// last: the release, which records it as well, may come much later.
    pub fn refusals(&self) -> Vec<Error> {
        let drafts = self.all();
        let refused = drafts.iter().filter_map(|draft| {
            let content = draft.try_lock()?;
            content.refused.clone().filter(|_| content.len > 0)
        });
        refused.collect()
    }

    /// Forgets the drafts at and below `path`.
    pub fn forget_below(&self, path: &Key) {
        let below: Vec<Key> = lock(&self.open)
            .keys()
            .filter(|k| k.relative_to(path).is_some())
            .cloned()
            .collect();
        for path in below {
            self.forget(&path);
        }
    }
}

impl Draft {
    /// Returns the content of the file `node`, of `len` of at most `limit` bytes, which is removed
    /// and stays open.
    pub fn removed(
        (node, inode): (&Node, u64),
        text: DraftBytes,
        len: u64,
        limit: u64,
    ) -> Arc<Draft> {
        let content = DraftContent {
            len,
            fate: Fate::Removed,
            ..DraftContent::new(text, false)
        };
        Arc::new(Draft {
            inode,
            limit,
            node: Mutex::new(node.clone()),
            content: Mutex::new(content),
        })
    }

    /// Returns the node whose content the draft is to become.
    pub fn node(&self) -> Node {
        lock(&self.node).clone()
    }

    /// Locks the content, to be stored or examined.
    pub fn lock(&self) -> MutexGuard<'_, DraftContent> {
        lock(&self.content)
    }

    /// Locks the content, unless it is just being stored.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, DraftContent>> {
        self.content.try_lock().ok()
    }

    /// Returns, without a wait, whether the content is not stored yet or is just being stored.
    pub fn is_unstored(&self) -> bool {
        self.content
            .try_lock()
            .map_or(true, |content| content.changed)
    }

    /// Returns the attributes of a draft that is not stored yet.
    pub fn attributes(&self, tree: &Tree) -> Option<Attributes> {
        let content = self.lock();
        let attributes = content
            .changed
            .then(|| tree.file_attributes(content.len, content.modified, content.permissions))?;
        Some(Attributes {
            inode: self.inode,
            ..attributes
        })
    }

    /// Wraps the draft of a file that was just created, and returns the attributes of the file
    /// without its inode number.
    pub fn created(self: Arc<Self>, tree: &Tree) -> (Attributes, NewFile) {
        let content = self.lock();
        let attributes = tree.file_attributes(content.len, SystemTime::now(), content.permissions);
        drop(content);
        (attributes, self.opened())
    }

    /// Wraps the draft as a file that was just opened.
    pub fn opened(self: Arc<Self>) -> NewFile {
        NewFile::new(self, KernelPages::None)
    }

    /// Writes all of `data` at `offset` and fills a gap before it with zeros.
    ///
    /// # Errors
    ///
    /// EFBIG beyond the limit or the available memory; ESTALE if the content was taken; EPERM in an
    /// encoded value that was not truncated.
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        let end = offset.saturating_add(data.len() as u64);
        let mut content = self.lock();
        content.check_not_taken()?;
        if !content.is_complete {
            let why = "holds encoded chunks, which can't be changed in part: truncate it and write it anew, as a whole";
            return Err(Error::new(Kind::System(libc::EPERM), why).context(self.node().path()));
        }
        if data.is_empty() {
            return Ok(());
        }
        self.check_limit(end)?;
        if end > content.len && matches!(content.text, DraftBytes::Memory { .. }) {
            self.resize(&mut content, end)?;
        }
        content.text.write(offset as usize, data)?;
        content.len = content.len.max(end);
        content.touch();
        Ok(())
    }

    /// Writes bytes that wait in memory. Returns `None` if the write may have to wait.
    fn write_to_buffer(&self, offset: u64, data: &[u8]) -> Option<usize> {
        let mut content = self.try_lock()?;
        let end = offset.checked_add(data.len() as u64)?;
        let may_write = content.is_complete && content.fate != Fate::Taken && !data.is_empty();
        if !may_write || end > self.limit {
            return None;
        }
        let DraftBytes::File(file) = &mut content.text else {
            return None;
        };
        if !file.try_write(offset, data) {
            return None;
        }
        content.len = content.len.max(end);
        content.touch();
        Some(data.len())
    }

    /// Reads bytes that are in memory, or beyond the end. Returns `None` if the content is just
    /// being stored, or a read may have to wait.
    fn read_buffered(&self, offset: u64, len: usize, out: &mut Vec<u8>) -> Option<FoundBytes> {
        let content = self.try_lock()?;
        let DraftBytes::File(file) = &content.text else {
            return None;
        };
        let len = content.len.saturating_sub(offset).min(len as u64);
        out.clear();
        out.resize(len as usize, 0);
        let is_read = content.is_complete && (len == 0 || file.try_read(offset, out));
        is_read.then_some(FoundBytes::Copied)
    }

    fn check_limit(&self, len: u64) -> Result<()> {
        if len > self.limit {
            return Err(Error::system(libc::EFBIG).context(self.node().path()));
        }
        Ok(())
    }

    fn resize(&self, content: &mut DraftContent, len: u64) -> Result<()> {
        self.check_limit(len)?;
        let resized = content.text.resize(len as usize);
        resized.map_err(|e| e.context(self.node().path()))?;
        content.len = len;
        Ok(())
    }
}

impl DraftContent {
    fn new(text: DraftBytes, changed: bool) -> Self {
        let modified = SystemTime::now();
        DraftContent {
            text,
            len: 0,
            changed,
            modified,
            permissions: None,
            refused: None,
            is_complete: true,
            fate: Fate::Named,
        }
    }

    /// Records a change of the text. The text of a removed file is not marked for storing.
    fn touch(&mut self) {
        (self.changed, self.modified) = (self.fate == Fate::Named, SystemTime::now());
    }

    fn check_not_taken(&self) -> Result<()> {
        if self.fate == Fate::Taken {
            Err(Error::stale())
        } else {
            Ok(())
        }
    }
}

impl OpenFile for Draft {
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
        if wait == Wait::Never {
            let read = self.read_buffered(offset, len, out);
            return Ok(read.unwrap_or(FoundBytes::MustWait));
        }
        let mut content = self.lock();
        let is_complete = content.is_complete;
        match &mut content.text {
            DraftBytes::Memory { bytes, .. } => return Ok(copy_range(bytes, offset, len, out)),
            DraftBytes::File(file) if is_complete => {
                out.resize(len, 0);
                read_at(file.complete()?, offset, out)?;
            }
            DraftBytes::File(_) => {
                let key = self.node().path();
                let end = offset.saturating_add(len as u64);
                let got = fs.store().get_range(&key, offset..end, out);
                got.context(&key)?.ok_or_else(Error::stale)?;
            }
        }
        Ok(FoundBytes::Copied)
    }

    fn write(
        &self,
        fs: &Change,
        offset: u64,
        data: &[u8],
        mode: WriteMode,
    ) -> Result<Option<usize>> {
        if mode.wait == Wait::Never {
            return Ok(self.write_to_buffer(offset, data));
        }
        let written = self.write_at(offset, data);
        if let Err(e) = &written
            && e.errno() == libc::EPERM
        {
            fs.stats.problem(format!("not written: {e}"));
        }
        written.map(|()| Some(data.len()))
    }

    fn flush(&self, fs: &Change) -> Result<()> {
        fs.flush_draft(self)
    }

    /// Truncates the text or appends zeros. Errors are those of a write.
    fn set_len(&self, len: u64) -> Result<()> {
        let mut content = self.lock();
        content.check_not_taken()?;
        if !content.is_complete && len > 0 {
            return Err(Error::system(libc::EPERM).context(self.node().path()));
        }
        if len != content.len || !content.is_complete {
            content.is_complete = true;
            self.resize(&mut content, len)?;
            content.touch();
        }
        Ok(())
    }

    /// Stores the draft, and records the error if that fails. An earlier close does not record it,
    /// since another process may still be writing the file.
    fn release(&self, fs: &Change) {
        if fs.flush_draft(self).is_err()
            && let Some(e) = self.lock().refused.take()
        {
            fs.stats.problem(format!("not stored: {e}"));
        }
    }

    fn release_may_block(&self) -> bool {
        true
    }

    fn unlinked_attributes(&self, fs: &Fs) -> Option<Attributes> {
        let content = self.lock();
        Some(
            fs.tree
                .file_attributes(content.len, content.modified, content.permissions),
        )
    }
}

#[cfg(test)]
mod tests;
