//! Open chunk files. A chunk file has a fixed size, and a program may change it in place. A file
//! that was created or truncated becomes a *draft* with the first write at its beginning: the
//! program is about to replace it, and may write bytes that are no decoded chunk, such as a chunk
//! that it has encoded, or one of another store.
//!
//! Invariant: a draft is stored as a whole when it is closed or synced, or not at all. What has the
//! size of the chunk is the decoded chunk. What is shorter must decode by the codecs of the array,
//! or nothing of it reaches the array, and the writes of other files to the chunk stay. What may be
//! either is refused.
//!
//! A chunk file that is removed while it is open keeps its bytes (`removed`).

pub mod created;
mod draft;
mod removed;

use super::draft::Draft;
use super::{CurrentArray, NewFile, OpenFile, PendingDrop};
use crate::array::{Array, VersionTag};
use crate::cache::{ChunkPart, FoundBytes, Wait};
use crate::fs::WrittenArrays;
use crate::fs::tree::Tree;
use crate::fs::tree::{Attributes, Node, chunk_named};
use crate::fs::write::{WriteMode, clipped};
use crate::fs::write_record::WriteRecord;
use crate::fs::{Change, Fs, KernelPages};
use created::CreatedChunks;
use draft::ChunkDraft;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::SystemTime;
use zarrfs_base::error::{Error, Kind, Result};
use zarrfs_base::memory::{self, lock};
use zarrfs_format::grid::ChunkId;
use zarrfs_format::layout;
use zarrfs_format::metadata::Order;
use zarrfs_store::{Key, Permissions};

/// An open chunk file. Chunk files of arrays of objects are only read this way; a
/// [`super::draft::Draft`] takes their writes.
pub struct ChunkFile {
    inode: u64,
    array: CurrentArray,
    /// The name in the mount.
    name: String,
    pending_drop: PendingDrop,
    record: WriteRecord,
    writable: bool,
    /// The number of its creation, if [`created::CreatedChunks`] counts it.
    creation: Option<u64>,
    is_written: AtomicBool,
    /// Protects the draft; held while it is stored, and while the file is removed.
    draft: Mutex<Option<ChunkDraft>>,
    /// The content of the file since it was removed.
    removed: OnceLock<Arc<Draft>>,
}

impl ChunkFile {
    fn new(inode: u64, array: Arc<Array>, name: &str, pages: KernelPages, writable: bool) -> Self {
        ChunkFile {
            inode,
            array: CurrentArray::new(array),
            name: name.to_string(),
            pending_drop: PendingDrop::new(inode, pages),
            record: WriteRecord::default(),
            writable,
            creation: None,
            is_written: AtomicBool::new(false),
            draft: Mutex::default(),
            removed: OnceLock::new(),
        }
    }

    /// Records that the file was truncated to no bytes.
    pub fn truncate(&self) {
        if !self.is_written.load(Ordering::Relaxed) {
            lock(&self.draft).get_or_insert_default();
        }
    }

    fn chunk(&self, array: &Array) -> Result<ChunkId> {
        chunk_named(array, &self.name).ok_or_else(Error::stale)
    }

    /// Returns the path in the mount.
    fn path(&self) -> Key {
        self.array.key().join(&self.name)
    }

    /// Locks the draft. Returns `None` if that would need a wait and `wait` does not allow it.
    fn lock_draft(&self, wait: Wait) -> Option<MutexGuard<'_, Option<ChunkDraft>>> {
        wait.lock(&self.draft)
    }

    /// Reads the file under its name, as [`OpenFile::read`] does.
    ///
    /// # Errors
    ///
    /// ESTALE if it was removed.
    fn read_named(
        &self,
        fs: &Fs,
        offset: u64,
        len: usize,
        wait: Wait,
        out: &mut Vec<u8>,
    ) -> Result<FoundBytes> {
        let Some(array) = self.array.latest_if(fs, wait)? else {
            return Ok(FoundBytes::MustWait);
        };
        match fs
            .arrays
            .read_chunk(&array, &self.name, offset, len, wait, out)
        {
            Err(e) if e.errno() == libc::ESTALE && fs.created_chunks.contains(&self.path()) => {
                let size = array.grid().chunk_size(self.chunk(&array)?) as u64;
                let end = offset.saturating_add(len as u64).min(size);
                out.clear();
                out.resize(end.saturating_sub(offset) as usize, 0);
                array.metadata().write_fill(out, offset);
            }
            Ok(FoundBytes::MustWait) => return Ok(FoundBytes::MustWait),
            read => drop(read?),
        }
        self.overlay_draft(offset, out, wait)
    }

    fn write_current(
        &self,
        fs: &Change,
        slot: &mut Option<ChunkDraft>,
        array: &Arc<Array>,
        offset: u64,
        data: &[u8],
        mode: WriteMode,
    ) -> Result<Option<usize>> {
        let chunk = self.chunk(array)?;
        let size = array.grid().chunk_size(chunk);
        let data_in_file = clipped(offset, data, size as u64);
        // a map shows the chunk, not the draft
        let begins = offset == 0 && !mode.is_gap;
        if let Some(draft) = slot
            .as_mut()
            .filter(|draft| !mode.mapped && (begins || draft.bytes.is_some()))
        {
            // session threads must not wait for a disk
            if mode.wait == Wait::Never && draft.is_on_disk() {
                return Ok(None);
            }
            draft.is_too_long |= data_in_file
                .as_ref()
                .map_or(true, |fits| fits.len() < data.len());
            let data = data_in_file?;
            draft.write(
                array,
                size,
                &fs.options.spill.directory,
                offset as usize,
                data,
            )?;
            self.is_written
                .fetch_or(!data.is_empty(), Ordering::Relaxed);
            return Ok(Some(data.len()));
        }
        let data = data_in_file?;
        if !data.is_empty() {
            let is_created = slot.as_ref().is_some_and(|draft| draft.is_created);
            if is_created && !self.fill(fs, array, chunk, mode)? {
                return Ok(None);
            }
            if !mode.mapped {
                *slot = None;
            }
            if is_created && mode.is_gap && array.fill_is_zero() {
                return Ok(Some(data.len()));
            }
        }
        let written = fs.files.write_recorded(&self.record, array, mode, || {
            fs.writer
                .write_chunk_bytes(array, chunk, offset as usize, data, mode)
        })?;
        if written {
            self.is_written.store(true, Ordering::Relaxed);
        }
        Ok(written.then_some(data.len()))
    }

    /// Creates a chunk of fill values, unless another file has created it. Returns `false` if that
    /// would need a wait that the mode forbids.
    fn fill(
        &self,
        fs: &Change,
        array: &Arc<Array>,
        chunk: ChunkId,
        mode: WriteMode,
    ) -> Result<bool> {
        if fs.cache.is_dirty(array, chunk) {
            return Ok(true);
        }
        if mode.wait == Wait::Never {
            return Ok(false);
        }
        if array.stat_chunk(chunk)?.is_some() {
            return Ok(true);
        }
        let mut bytes = memory::zeroed(array.grid().chunk_size(chunk))?;
        array.metadata().write_fill(&mut bytes, 0);
        fs.files.write_recorded(&self.record, array, mode, || {
            fs.writer.write_chunk_bytes(array, chunk, 0, &bytes, mode)
        })
    }

    /// Stores the draft if it is complete; without a draft, the dirty chunks of the array.
    fn store(&self, fs: &Change) -> Result<()> {
        let mut slot = lock(&self.draft);
        if self.removed.get().is_some() {
            return Ok(());
        }
        if let Some(draft) = slot.as_mut() {
            if let Some(of) = draft.array.clone() {
                of.confirm(false)?;
                if of.freshness().is_replaced() {
                    *slot = None;
                    return Err(self.lost_draft(fs, &of));
                }
            }
            if self
                .creation
                .is_some_and(|number| !fs.created_chunks.is_current(&self.path(), number))
            {
                // the file was removed while it was open
                *slot = None;
                return Ok(());
            }
            if draft.bytes.is_some() {
                self.store_draft(fs, draft)?;
                *slot = None;
            } else if draft.is_created {
                return self.store_created(fs, draft);
            }
        }
        drop(slot);
        fs.writer.hand_over(&*self.array.latest(fs)?)
    }

    /// Stores a chunk of fill values for a created file. It stays a draft: a shell closes the file
    /// before the program that it starts writes to it.
    fn store_created(&self, fs: &Change, draft: &mut ChunkDraft) -> Result<()> {
        let array = self.write_latest(fs, |array, chunk| {
            self.fill(fs, array, chunk, WriteMode::internal())
        })?;
        fs.writer.hand_over(&array)?;
        let stat = array.stat_chunk(self.chunk(&array)?)?;
        (draft.is_created, draft.filled) = (false, stat.map(|stat| stat.version));
        Ok(())
    }

    /// Writes a complete draft to its chunk, or makes an encoded one the stored value.
    ///
    /// # Errors
    ///
    /// EINVAL if the draft is incomplete; it stays, and may still be completed.
    fn store_draft(&self, fs: &Change, draft: &mut ChunkDraft) -> Result<()> {
        let array = self.array.latest(fs)?;
        let chunk = self.chunk(&array)?;
        let Some(content) = draft.content().transpose()? else {
            return self.refuse_draft(fs, &array, draft);
        };
        match fs.arrays.is_encoded(&array, chunk, &content) {
            Ok(true) => {
                fs.files
                    .write_recorded(&self.record, &array, WriteMode::internal(), || {
                        fs.writer.put_encoded(&array, chunk, &content)
                    })
            }
            Ok(false) => self.write_content(fs, &content),
            Err(e)
                if e.kind() == Kind::Invalid && content.len() < array.grid().chunk_size(chunk) =>
            {
                drop(content);
                self.refuse_draft(fs, &array, draft)
            }
            Err(e) => Err(fs.stats.not_stored(e)),
        }
    }

    /// Writes a whole decoded chunk.
    fn write_content(&self, fs: &Change, content: &[u8]) -> Result<()> {
        self.write_latest(fs, |array, chunk| {
            // one write, so that no write-back stores a part of the draft; the guard also holds
            // against the file's own pages, which may have become dirty since the kernel sent the
            // draft
            let mode = WriteMode::internal();
            fs.files.write_recorded(&self.record, array, mode, || {
                fs.writer.write_chunk_bytes(array, chunk, 0, content, mode)
            })
        })?;
        Ok(())
    }

    /// Returns the error of a draft that cannot be stored.
    fn refuse_draft(&self, fs: &Change, array: &Arc<Array>, draft: &mut ChunkDraft) -> Result<()> {
        let e = self.refused_draft(fs, draft, array.grid().chunk_size(self.chunk(array)?));
        self.erase_filled(fs, array, draft)?;
        fs.writer.hand_over(array).and(Err(e))
    }

    /// Calls `write` with the latest array and the file's chunk in it, and returns that array.
    fn write_latest(
        &self,
        fs: &Fs,
        write: impl FnOnce(&Arc<Array>, ChunkId) -> Result<bool>,
    ) -> Result<Arc<Array>> {
        let written = self.array.write_latest(fs, Wait::Allowed, |array| {
            write(array, self.chunk(array)?)?;
            Ok(array.clone())
        });
        written?.ok_or_else(Error::stale)
    }

    /// Records the loss of a draft whose array was replaced, and returns the error.
    fn lost_draft(&self, fs: &Fs, array: &Arc<Array>) -> Error {
        self.record.add(array, array.freshness().losses());
        array.freshness().record_loss();
        let why = "another program replaced or deleted the array: what was written is lost; open the file again and write anew";
        let e = Error::stale().context(why).context(self.path());
        fs.stats.problem(format!("not stored: {e}"));
        e
    }

    /// Erases the fill values stored for a created file, unless the chunk was written since.
    fn erase_filled(&self, fs: &Change, array: &Arc<Array>, draft: &mut ChunkDraft) -> Result<()> {
        let chunk = self.chunk(array)?;
        let Some(filled) = draft
            .filled
            .take()
            .filter(|_| !fs.cache.is_dirty(array, chunk))
        else {
            return Ok(());
        };
        if array
            .stat_chunk(chunk)?
            .is_some_and(|stat| stat.version == filled)
        {
            fs.writer.erase_chunk(array, chunk)?;
        }
        Ok(())
    }

    fn refused_draft(&self, fs: &Fs, draft: &ChunkDraft, size: usize) -> Error {
        let written = if draft.is_too_long {
            format!("more than {size} bytes were written")
        } else {
            format!("closed after {} of {size} bytes", draft.written.len())
        };
        let why = format!(
            "{written}, where a chunk file takes the {size} bytes of a decoded chunk, or one that is encoded by the codecs \
             of the array and has another size, and nothing was changed; to copy an array from another store, mount that \
             store and copy from there"
        );
        let e = Error::new(Kind::Invalid, why).context(self.path());
        fs.stats.problem(format!("not stored: {e}"));
        e
    }

    /// Copies the draft over `out`, which holds the chunk's bytes from `offset` on.
    fn overlay_draft(&self, offset: u64, out: &mut [u8], wait: Wait) -> Result<FoundBytes> {
        let Some(draft) = self.lock_draft(wait) else {
            return Ok(FoundBytes::MustWait);
        };
        let Some(draft) = draft.as_ref().filter(|draft| draft.bytes.is_some()) else {
            return Ok(FoundBytes::Copied);
        };
        if wait == Wait::Never && draft.is_on_disk() {
            return Ok(FoundBytes::MustWait);
        }
        draft
            .overlay(offset as usize, out)
            .map(|()| FoundBytes::Copied)
    }
}

impl OpenFile for ChunkFile {
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
        self.pending_drop.finish(fs);
        if let Some(removed) = self.removed.get() {
            return removed.read(fs, offset, len, wait, out);
        }
        let read = self.read_named(fs, offset, len, wait, out);
        if read.as_ref().is_err_and(|e| e.errno() == libc::ESTALE)
            && self.is_removed(wait).is_none()
        {
            return Ok(FoundBytes::MustWait);
        }
        // it may have been removed meanwhile
        match self.removed.get() {
            Some(removed) => removed.read(fs, offset, len, wait, out),
            None => read,
        }
    }

    fn write(
        &self,
        fs: &Change,
        offset: u64,
        data: &[u8],
        mode: WriteMode,
    ) -> Result<Option<usize>> {
        // lock the draft before the array, as a flush does, because a flush holds the draft while
        // it waits for the store
        let Some(mut draft) = self.lock_draft(mode.wait) else {
            return Ok(None);
        };
        if let Some(removed) = self.removed.get() {
            return removed.write(fs, offset, data, mode);
        }
        let mode = WriteMode {
            inode: self.inode,
            ..mode
        };
        let written = self.array.write_latest(fs, mode.wait, |array| {
            self.write_current(fs, &mut draft, array, offset, data, mode)
        });
        let written = written?.flatten();
        if written.is_some() && self.creation.is_some() {
            fs.created_chunks.change(&self.path(), |attributes| {
                attributes.modified = SystemTime::now();
            });
        }
        Ok(written)
    }

    fn flush(&self, fs: &Change) -> Result<()> {
        self.record
            .answer(fs.arrays.with_losses(&self.array.key(), self.store(fs)))
    }

    fn fsync(&self, fs: &Change) -> Result<()> {
        let stored = self.store(fs).and_then(|()| match self.removed.get() {
            Some(_) => Ok(()),
            None => fs.writer.flush_array(&*self.array.latest(fs)?),
        });
        self.record
            .answer(fs.arrays.with_losses(&self.array.key(), stored))
    }

    fn sync_in_place(&self, fs: &Change) -> Result<()> {
        let is_draft = lock(&self.draft).is_some();
        if is_draft { Ok(()) } else { self.fsync(fs) }
    }

    fn release(&self, fs: &Change) {
        self.pending_drop.finish(fs);
        let is_draft = lock(&self.draft).is_some();
        if is_draft || self.array.known().is_dirty() {
            // a refused draft has recorded its error
            let _ = self.store(fs);
        }
        if let Some(creation) = self.creation {
            fs.created_chunks.closed(&self.path(), creation);
        }
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.is_removed(Wait::Allowed);
        let removed = self.removed.get();
        let removed = removed.ok_or_else(|| Error::system(libc::EPERM))?;
        removed.set_len(len)
    }

    fn release_may_block(&self) -> bool {
        self.writable
    }

    fn written_arrays(&self) -> Vec<Key> {
        if self.writable {
            vec![self.array.key()]
        } else {
            Vec::new()
        }
    }

    fn write_record(&self) -> Option<&WriteRecord> {
        Some(&self.record)
    }

    fn unlinked_attributes(&self, fs: &Fs) -> Option<Attributes> {
        // the chunk is gone before its bytes are kept
        self.is_removed(Wait::Allowed);
        self.removed.get()?.unlinked_attributes(fs)
    }

    fn as_chunk(&self) -> Option<&ChunkFile> {
        Some(self)
    }
}

impl ChunkFile {
    /// Opens the chunk file `name` of the array at `key`.
    pub(in crate::fs) fn open(
        fs: &Fs,
        inode: u64,
        key: &Key,
        name: &str,
        for_writing: bool,
    ) -> Result<NewFile> {
        fs.arrays.settle(key, Some(name));
        let array = fs.arrays.open(key)?;
        if for_writing {
            array.writable()?;
        }
        // one outside the shape can only be removed
        let chunk = chunk_named(&array, name)
            .ok_or_else(|| Error::not_found("outside the array's shape"))?;
        let mut pages = KernelPages::None;
        let is_created = fs.created_chunks.contains(&key.join(name));
        // take the version before the opening begins: pages that are newer than their recorded
        // version are dropped, while older ones would be kept
        let stat = if array.is_remote() && !for_writing {
            // the load below finds out whether the chunk is stored
            None
        } else {
            match array.stat_chunk(chunk)? {
                None if !is_created => return Err(Error::stale()),
                stat => stat,
            }
        };
        array.freshness().begin_opening();
        if is_created {
            // the chunk may not be stored yet
        } else if array.metadata().has_objects() || stat.is_none() {
            // a file of size 0 would look empty; loading yields the size of a chunk of objects, and
            // finds out whether a remote chunk exists
            fs.cache
                .get(&array, chunk, ChunkPart::Whole)?
                .ok_or_else(Error::stale)?;
        } else if let Some(stat) = stat.filter(|_| fs.options.read_only) {
            // in a writable mount each write of flat bytes would have to drop the pages
            let tag = VersionTag::of_array(&array, Some(&stat.version));
            pages = KernelPages::kept_if(fs.pages.open(inode, tag, true));
        }
        let mut file = ChunkFile::new(inode, array, name, pages, for_writing);
        if is_created {
            // it may have been removed since
            let creation = fs.created_chunks.opened_again(&key.join(name));
            file.creation = Some(creation.ok_or_else(Error::stale)?);
        }
        Ok(NewFile {
            file: Arc::new(file),
            pages,
        })
    }

    /// Opens the file of a chunk that is not stored yet.
    pub(in crate::fs) fn create(
        fs: &Fs,
        inode: u64,
        array: Arc<Array>,
        name: &str,
        permissions: Option<Permissions>,
    ) -> (Attributes, NewFile) {
        let size = created_size(&array, name);
        let attributes = fs
            .tree
            .file_attributes(size, SystemTime::now(), permissions);
        let path = array.key().join(name);
        let file = ChunkFile {
            creation: Some(fs.created_chunks.opened(path, permissions)),
            draft: Mutex::new(Some(ChunkDraft {
                is_created: true,
                ..ChunkDraft::default()
            })),
            ..ChunkFile::new(inode, array, name, KernelPages::None, true)
        };
        (attributes, NewFile::new(Arc::new(file), KernelPages::None))
    }
}

impl WrittenArrays {
    /// Reads a stored chunk by its name in the mount, in the array's own order, as
    /// [`OpenFile::read`] does.
    ///
    /// # Errors
    ///
    /// ESTALE if the chunk is not stored.
    pub(in crate::fs) fn read_chunk(
        &self,
        array: &Array,
        name: &str,
        offset: u64,
        len: usize,
        wait: Wait,
        out: &mut Vec<u8>,
    ) -> Result<FoundBytes> {
        let chunk = chunk_named(array, name).ok_or_else(Error::stale)?;
        let piece = match self.cache.peek(array, chunk, ChunkPart::Whole) {
            Some(piece) => piece?,
            None if wait == Wait::Never => return Ok(FoundBytes::MustWait),
            None => self.cache.get(array, chunk, ChunkPart::Whole)?,
        };
        let piece = piece.ok_or_else(Error::stale)?;
        let bytes = piece.bytes();
        let start = offset.min(bytes.len() as u64) as usize;
        let end = bytes.len().min(start.saturating_add(len));
        out.resize(end - start, 0);
        let meta = array.metadata();
        if meta.order == Order::F && !meta.has_objects() {
            layout::read_f_order(&meta.chunks, meta.dtype.size(), bytes, start..end, out);
        } else {
            out.copy_from_slice(&bytes[start..end]);
        }
        Ok(FoundBytes::Copied)
    }
}

impl CreatedChunks {
    /// Returns the attributes of a chunk file that was created and may not be stored yet; `None`
    /// for any other file.
    pub(in crate::fs) fn attributes_of(&self, tree: &Tree, node: &Node) -> Option<Attributes> {
        let (key, name) = node.chunk()?;
        let created = self.attributes(&node.path())?;
        let size = created_size(&*tree.hierarchy().cached_array(key)?, name);
        let attributes = tree.file_attributes(size, created.modified, created.permissions);
        Some(Attributes {
            inode: tree.inode(node),
            changed: created.changed,
            ..attributes
        })
    }
}

/// Returns the size in bytes of a chunk file that was created; 0 if the array has lost the chunk
/// meanwhile.
fn created_size(array: &Array, name: &str) -> u64 {
    let chunk = chunk_named(array, name);
    chunk.map_or(0, |chunk| array.grid().chunk_size(chunk) as u64)
}
