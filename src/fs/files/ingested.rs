//! Open files that are groups or arrays, or become such: see `fs::ingest`.

use super::composite::CompositeFile;
use super::draft::{Draft, DraftBytes};
use super::{OpenFile, UnstoredBytes};
use crate::cache::{FoundBytes, Wait};
use crate::fs::tree::Attributes;
use crate::fs::write::WriteMode;
use crate::fs::write_record::WriteRecord;
use crate::fs::{Change, Fs, Seek};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory::lock;
use zarrfs_ingest::Incoming;
use zarrfs_store::Key;

/// Number of bytes of a container that are copied at a time.
const PIECE: u64 = 8 << 20;

/// Maximum number of closed files that are only begun.
const MAX_BEGUN: usize = 64;

/// Drafts of closed files without items. They keep their names until a program opens and completes
/// them, or the mount ends.
#[derive(Default)]
pub(in crate::fs) struct BegunDrafts {
    /// Protects the list.
    drafts: Mutex<VecDeque<Arc<Draft>>>,
}

impl BegunDrafts {
    /// Keeps a draft. Returns the oldest one if there are too many.
    fn keep(&self, draft: Arc<Draft>) -> Option<Arc<Draft>> {
        let mut drafts = lock(&self.drafts);
        drafts.push_back(draft);
        if drafts.len() > MAX_BEGUN {
            drafts.pop_front()
        } else {
            None
        }
    }

    fn remove(&self, draft: &Arc<Draft>) {
        lock(&self.drafts).retain(|kept| !Arc::ptr_eq(kept, draft));
    }
}

impl Draft {
    /// Returns whether the file is empty, or a header without items, and was not removed.
    fn is_begun(&self) -> bool {
        let mut content = self.lock();
        content.changed
            && match &mut content.text {
                DraftBytes::File(file) => file.flushed().is_ok_and(Incoming::is_begun),
                DraftBytes::Memory { .. } => false,
            }
    }
}

impl Change<'_> {
    /// Makes a draft a node, or keeps its bytes.
    fn end_draft(&self, draft: &Draft) {
        if draft.lock().len > 0 && self.flush_draft(draft).is_err() {
            self.keep_refused(draft);
        }
    }

    /// Ends the files that are only begun, since the mount ends.
    pub(in crate::fs) fn end_begun(&self) {
        let begun = std::mem::take(&mut *lock(&self.begun.drafts));
        begun.iter().for_each(|draft| self.end_draft(draft));
    }
}

/// An open file that is or becomes a node.
pub struct IngestedFile {
    inode: u64,
    for_writing: bool,
    /// The container of the node, if there was one when the file was opened.
    shown: Option<CompositeFile>,
    /// The draft, if the file is written as a whole. The lock protects the reference alone.
    draft: Mutex<Option<Arc<Draft>>>,
    /// Held while the container is written, or a draft begins in its place. It protects nothing.
    changing: Mutex<()>,
}

impl IngestedFile {
    /// Opens the draft of a file, or the container of its node, for its first user.
    pub(in crate::fs) fn new(
        inode: u64,
        for_writing: bool,
        draft: Option<Arc<Draft>>,
        shown: Option<CompositeFile>,
    ) -> Self {
        IngestedFile {
            inode,
            for_writing,
            shown,
            draft: Mutex::new(draft),
            changing: Mutex::default(),
        }
    }

    /// Sets the length. A container does not change its own, so that a draft begins.
    pub(in crate::fs) fn resize(&self, fs: &Change, len: u64) -> Result<()> {
        let _alone = lock(&self.changing);
        match (self.draft(), &self.shown) {
            (Some(draft), _) => draft.set_len(len),
            (None, Some(shown)) if len == shown.size() || len > 0 && shown.may_grow(fs) => Ok(()),
            (None, _) => self.begin(fs, len)?.set_len(len),
        }
    }

    /// Writes to a draft from now on, which begins with at most `len` bytes of the container.
    fn begin(&self, fs: &Change, len: u64) -> Result<Arc<Draft>> {
        let shown = self.shown()?;
        let path = fs.tree.node(self.inode)?.path();
        let (draft, is_new) = match fs.drafts.get(&path) {
            Some(draft) => (draft, false),
            None => (fs.begin_draft(&path, self.inode, None)?, true),
        };
        let end = if is_new { len.min(shown.size()) } else { 0 };
        let mut piece = Vec::new();
        let mut at = 0;
        while at < end {
            let wanted = (end - at).min(PIECE) as usize;
            let found = shown.read(fs, at, wanted, Wait::Allowed, &mut piece)?;
            if !found.copy_to(&mut piece) || piece.is_empty() {
                return Err(Error::stale());
            }
            draft.write(fs, at, &piece, WriteMode::internal())?;
            at += piece.len() as u64;
        }
        *lock(&self.draft) = Some(draft.clone());
        Ok(draft)
    }

    /// Writes to the container in place. A write that the container refuses, since it describes
    /// other arrays, begins a draft.
    fn write_shown(
        &self,
        fs: &Change,
        offset: u64,
        data: &[u8],
        mode: WriteMode,
    ) -> Result<Option<usize>> {
        let shown = self.shown()?;
        if mode.wait == Wait::Never {
            return Ok(None);
        }
        let _alone = lock(&self.changing);
        if let Some(draft) = self.draft() {
            return draft.write(fs, offset, data, mode);
        }
        if shown.may_grow(fs) {
            return shown.write(fs, offset, data, mode);
        }
        if offset.saturating_add(data.len() as u64) <= shown.size() {
            match shown.write(fs, offset, data, mode) {
                Err(e) if [libc::EPERM, libc::EFBIG].contains(&e.errno()) => {}
                written => return written,
            }
        }
        let draft = self.begin(fs, u64::MAX)?;
        draft.write(fs, offset, data, mode)
    }

    fn draft(&self) -> Option<Arc<Draft>> {
        lock(&self.draft).clone()
    }

    fn shown(&self) -> Result<&CompositeFile> {
        self.shown.as_ref().ok_or_else(Error::stale)
    }
}

impl OpenFile for IngestedFile {
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
        match self.draft() {
            Some(draft) => draft.read(fs, offset, len, wait, out),
            None => self.shown()?.read(fs, offset, len, wait, out),
        }
    }

    fn write(
        &self,
        fs: &Change,
        offset: u64,
        data: &[u8],
        mode: WriteMode,
    ) -> Result<Option<usize>> {
        match self.draft() {
            _ if !self.for_writing => Err(Error::system(libc::EBADF)),
            Some(draft) => draft.write(fs, offset, data, mode),
            None => self.write_shown(fs, offset, data, mode),
        }
    }

    /// Makes the draft a node, unless the file is only begun: a shell closes its copy of a
    /// descriptor before the program that it starts writes.
    fn flush(&self, fs: &Change) -> Result<()> {
        match (self.draft(), &self.shown) {
            _ if !self.for_writing => Ok(()),
            (Some(draft), _) if draft.is_begun() => Ok(()),
            (Some(draft), _) => fs.flush_draft(&draft),
            (None, Some(shown)) => shown.flush(fs),
            (None, None) => Ok(()),
        }
    }

    /// Makes the draft a node. One that is incomplete would not survive a crash: then this fails.
    fn fsync(&self, fs: &Change) -> Result<()> {
        match self.draft() {
            Some(draft) if draft.lock().len > 0 => fs.flush_draft(&draft),
            _ => self.flush(fs),
        }
    }

    fn sync_in_place(&self, fs: &Change) -> Result<()> {
        match (self.draft(), &self.shown) {
            (None, Some(shown)) => shown.sync_in_place(fs),
            _ => Ok(()),
        }
    }

    fn set_len(&self, len: u64) -> Result<()> {
        match self.draft() {
            Some(draft) => draft.set_len(len),
            None => self.shown()?.set_len(len),
        }
    }

    fn allocate(&self, range: Range<u64>, keeps_size: bool) -> Result<bool> {
        match (self.draft(), &self.shown) {
            (None, Some(shown)) => shown.allocate(range, keeps_size),
            _ => Ok(false),
        }
    }

    fn seek(&self, fs: &Fs, offset: u64, target: Seek) -> Result<u64> {
        match (self.draft(), &self.shown) {
            (None, Some(shown)) => shown.seek(fs, offset, target),
            (Some(draft), _) => draft.seek(fs, offset, target),
            (None, None) => Err(Error::stale()),
        }
    }

    /// Makes the draft a node, or keeps its bytes, unless another file still has it.
    fn release(&self, fs: &Change) {
        if let (None, Some(shown)) = (self.draft(), &self.shown) {
            shown.release(fs);
        }
        let inode = self.inode;
        let is_open = fs.files.any(|file| {
            let other = file.as_ingested().filter(|other| other.inode == inode);
            other.is_some_and(|other| other.draft().is_some())
        });
        let Some(draft) = self.draft().filter(|_| !is_open) else {
            return;
        };
        fs.begun.remove(&draft);
        let is_shown = self.shown.is_some() && draft.lock().len == 0;
        if !draft.is_begun() {
            fs.end_draft(&draft);
        } else if !is_shown && let Some(oldest) = fs.begun.keep(draft) {
            fs.end_draft(&oldest);
        }
    }

    fn release_may_block(&self) -> bool {
        true
    }

    fn written_arrays(&self) -> Vec<Key> {
        match (self.draft(), &self.shown) {
            (None, Some(shown)) => shown.written_arrays(),
            _ => Vec::new(),
        }
    }

    /// A successor of the daemon does not know whether there was a draft, and opens the container.
    fn unstored_bytes(&self) -> UnstoredBytes {
        UnstoredBytes::InFile
    }

    fn write_record(&self) -> Option<&WriteRecord> {
        self.shown.as_ref()?.write_record()
    }

    fn unlinked_attributes(&self, fs: &Fs) -> Option<Attributes> {
        match (self.draft(), &self.shown) {
            (Some(draft), _) => draft.unlinked_attributes(fs),
            (None, shown) => shown.as_ref()?.unlinked_attributes(fs),
        }
    }

    fn as_composite(&self) -> Option<&CompositeFile> {
        self.shown.as_ref().filter(|_| self.draft().is_none())
    }

    fn as_ingested(&self) -> Option<&IngestedFile> {
        Some(self)
    }
}
