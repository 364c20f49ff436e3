//! Open chunk files. A chunk file has a fixed size, and a program may change it in place. One that was created or truncated
//! is a *draft* as soon as it is written from its beginning: the program is about to replace it, and may have bytes that
//! are no decoded chunk, such as the encoded chunk of another store.
//!
//! Invariant: a draft is stored as a whole when it is closed or synced, or not at all. Nothing of a draft that ends too
//! early, or goes on too long, reaches the array; what other files have written to the chunk stays. The bytes
//! themselves are never judged: raw data may look like an encoded chunk.

use super::write::{WriteMode, clipped};
use super::{Backing, CurrentArray, Dropping, Fs, Handle, KernelPages, WriteRecord};
use crate::array::Array;
use crate::cache::{ChunkPart, Ranges, VersionTag};
use crate::error::{Error, Kind, Result};
use crate::fs::tree::{Attributes, Node};
use crate::store::{Key, Version};
use crate::util::memory::{self, Grant, lock};
use crate::zarr::grid::ChunkId;
use crate::zarr::metadata::Separator;
use rustix::fs::{Mode, OFlags};
use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

/// Bytes of a draft that is kept in memory, if there is memory to spare. Others are in files without a name.
const IN_MEMORY: usize = 32 << 20;

/// An open chunk file of an array without objects.
pub struct ChunkFile {
    pub inode: u64,
    pub array: CurrentArray,
    /// The name in the mount.
    pub name: String,
    pub dropping: Dropping,
    pub record: WriteRecord,
    pub writable: bool,
    /// The number of its creation, if [`ChunkDrafts`] counts it.
    creation: Option<u64>,
    /// The thread that opened it, as the kernel numbers threads; 0 if it is unknown.
    opener: AtomicU32,
    is_written: AtomicBool,
    /// Protects the draft.
    draft: Mutex<Option<Draft>>,
}

/// What a chunk file is to become that was created or truncated.
#[derive(Default)]
struct Draft {
    /// Whether the file was created: without a write the chunk holds the fill value.
    is_created: bool,
    /// The version of the chunk that holds the fill value since the created file was closed for the first time.
    filled: Option<Version>,
    /// None until something is written.
    bytes: Option<Bytes>,
    /// The array that the bytes were written for.
    array: Option<Arc<Array>>,
    written: Ranges,
    /// Whether a write went beyond the end.
    is_too_long: bool,
}

/// The bytes of a draft.
enum Bytes {
    Memory { bytes: Vec<u8>, _memory: Grant },
    File(File),
}

/// The chunk files of a mount that were created and are still open.
#[derive(Default)]
pub struct ChunkDrafts {
    /// Protects the map, by path.
    created: Mutex<HashMap<Key, Created>>,
    last: AtomicU64,
}

/// A chunk file that was created.
struct Created {
    /// Differs for each creation of the same name.
    number: u64,
    /// How many open files there are of this creation.
    files: usize,
}

impl ChunkDrafts {
    /// Counts an open file of the creation of `path`, made if there is none, and returns its number.
    fn opened(&self, path: Key) -> u64 {
        let mut created = lock(&self.created);
        let new = || Created { number: self.last.fetch_add(1, Ordering::Relaxed) + 1, files: 0 };
        let file = created.entry(path).or_insert_with(new);
        file.files += 1;
        file.number
    }

    /// Returns whether the chunk file at `path` was created and is still open.
    pub fn is_created(&self, path: &Key) -> bool {
        lock(&self.created).contains_key(path)
    }

    fn is(&self, path: &Key, number: u64) -> bool {
        lock(&self.created).get(path).is_some_and(|file| file.number == number)
    }

    fn closed(&self, path: &Key, number: u64) {
        let mut created = lock(&self.created);
        if let Some(file) = created.get_mut(path).filter(|file| file.number == number) {
            file.files -= 1;
            if file.files == 0 {
                created.remove(path);
            }
        }
    }

    /// Forgets that the chunk file at `path` was created: it was removed or replaced.
    pub fn forget(&self, path: &Key) -> bool {
        lock(&self.created).remove(path).is_some()
    }
}

impl Bytes {
    /// Room for `size` bytes, in memory or in a file in `directory`.
    fn new(size: usize, directory: &Path) -> Result<Self> {
        let mut memory = Grant::default();
        if size <= IN_MEMORY && memory::check_available().is_ok() && memory.grow(size).is_ok() {
            let mut bytes = Vec::new();
            memory::reserve(&mut bytes, size)?;
            return Ok(Bytes::Memory { bytes, _memory: memory });
        }
        let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
        let file = rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR);
        Ok(Bytes::File(file.map_err(|e| Error::from(e).context(directory.display()))?.into()))
    }

    fn write(&mut self, offset: usize, data: &[u8]) -> Result<()> {
        match self {
            Bytes::Memory { bytes, .. } => {
                let end = offset + data.len();
                if bytes.len() < end {
                    bytes.resize(end, 0);
                }
                bytes[offset..end].copy_from_slice(data);
                Ok(())
            }
            Bytes::File(file) => Ok(file.write_all_at(data, offset as u64)?),
        }
    }

    /// All `size` bytes, which were written.
    fn whole(&self, size: usize) -> Result<Cow<'_, [u8]>> {
        match self {
            Bytes::Memory { bytes, .. } => Ok(Cow::Borrowed(bytes)),
            Bytes::File(_) => {
                memory::check_chunk(size)?;
                let mut bytes = memory::zeroed(size)?;
                self.read(0, &mut bytes)?;
                Ok(Cow::Owned(bytes))
            }
        }
    }

    fn read(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        match self {
            Bytes::Memory { bytes, .. } => out.copy_from_slice(&bytes[offset..offset + out.len()]),
            Bytes::File(file) => file.read_exact_at(out, offset as u64)?,
        }
        Ok(())
    }
}

impl Draft {
    fn is_complete(&self, size: usize) -> bool {
        self.written.len() == size && !self.is_too_long
    }
}

impl ChunkFile {
    pub fn new(inode: u64, array: Arc<Array>, name: String, pages: KernelPages, writable: bool) -> Self {
        ChunkFile {
            inode,
            array: CurrentArray(Mutex::new(array)),
            name,
            dropping: Dropping::new(inode, pages),
            record: WriteRecord::default(),
            writable,
            creation: None,
            opener: AtomicU32::new(0),
            is_written: AtomicBool::new(false),
            draft: Mutex::default(),
        }
    }

    /// Records the thread that opened the file, to find the file when that thread truncates it.
    pub fn opened_by(&self, thread: u32) {
        self.opener.store(thread, Ordering::Relaxed);
    }

    /// Returns whether the thread has this file open for writing and has not written yet.
    pub fn is_new_of(&self, inode: u64, thread: u32) -> bool {
        let opener = self.opener.load(Ordering::Relaxed);
        self.inode == inode && self.writable && opener == thread && !self.is_written.load(Ordering::Relaxed)
    }

    /// Records that the file was truncated to no bytes.
    pub fn truncate(&self) {
        if !self.is_written.load(Ordering::Relaxed) {
            lock(&self.draft).get_or_insert_default();
        }
    }

    fn chunk(&self, array: &Array) -> Result<ChunkId> {
        array.grid().parse_chunk_key(&self.name, Separator::Dot).ok_or_else(|| Error::system(libc::ESTALE))
    }

    /// The path in the mount.
    pub fn path(&self) -> Key {
        lock(&self.array.0).key().join(&self.name)
    }
}

impl Fs {
    /// Opens a chunk file of an array.
    pub(super) fn open_chunk(
        &self,
        inode: u64,
        key: &Key,
        name: &str,
        for_writing: bool,
    ) -> Result<(ChunkFile, KernelPages, Option<Backing>)> {
        self.settle(key, Some(name));
        let array = self.open_array(key)?;
        if for_writing {
            array.writable()?;
        }
        let gone = || Error::system(libc::ESTALE);
        let chunk = array.grid().parse_chunk_key(name, Separator::Dot).ok_or_else(gone)?;
        let (mut pages, mut backing) = (KernelPages::None, None);
        let is_created = self.chunk_drafts.is_created(&key.join(name));
        // before the epoch: pages newer than their mark are dropped, older ones would be kept
        let stat = match array.is_remote() && !for_writing {
            // reading it tells as well
            true => None,
            false => match array.stat_chunk(chunk)? {
                None if !is_created => return Err(gone()),
                stat => stat,
            },
        };
        array.begin_epoch();
        if is_created {
            // it may not be stored yet
        } else if array.metadata().has_objects() || stat.is_none() {
            // the size of objects is known only now, or never: then it must not look like an empty file
            self.cache.get(&array, chunk, ChunkPart::Whole)?.ok_or_else(gone)?;
        } else if let Some(stat) = stat.filter(|_| self.read_only) {
            // else they would have to be dropped with each write of flat bytes
            pages = self.pages_of(inode, VersionTag::of_array(&array, Some(&stat.version)), true);
            backing = self.backing(&array, chunk)?;
        }
        let mut file = ChunkFile::new(inode, array, name.to_string(), pages, for_writing);
        if is_created {
            file.creation = Some(self.chunk_drafts.opened(key.join(name)));
        }
        Ok((file, pages, backing))
    }

    /// An open file of a chunk that is not stored yet.
    pub(super) fn create_chunk(&self, array: Arc<Array>, name: &str) -> (ChunkFile, Attributes) {
        let node = Node::Chunk(array.key().clone(), name.to_string());
        let size = array.grid().chunk_size() as u64;
        let attributes = self.tree.of_file(size, SystemTime::now(), None);
        let creation = self.chunk_drafts.opened(node.path());
        let inode = self.tree.remember(node);
        let mut file = ChunkFile::new(inode, array, name.to_string(), KernelPages::None, true);
        file.creation = Some(creation);
        *lock(&file.draft) = Some(Draft { is_created: true, ..Draft::default() });
        (file, Attributes { inode, ..attributes })
    }

    /// Records that the thread has truncated a chunk file while it opened it, or, with `handle`, afterwards.
    pub fn truncate_chunk_file(&self, inode: u64, thread: u32, handle: Option<u64>) {
        let opening = || {
            let is_opening = |open: &Handle| matches!(open, Handle::Chunk(file) if file.is_new_of(inode, thread));
            let handles = lock(&self.handles);
            let last = handles.iter().filter(|(_, open)| is_opening(open)).max_by_key(|(number, _)| **number);
            last.map(|(_, open)| open.clone())
        };
        let open = handle.map_or_else(opening, |handle| self.handle(handle).ok());
        if let Some(Handle::Chunk(file)) = open.as_deref() {
            file.truncate();
        }
    }

    /// Records the thread that opened a file.
    pub fn opened_by(&self, handle: u64, thread: u32) {
        if let Ok(handle) = self.handle(handle)
            && let Handle::Chunk(file) = &*handle
        {
            file.opened_by(thread);
        }
    }

    /// What `stat` tells of a chunk file that was created and may not be stored yet.
    pub(super) fn of_created(&self, node: &Node) -> Option<Attributes> {
        let Node::Chunk(key, _) = node else { return None };
        if !self.chunk_drafts.is_created(&node.path()) {
            return None;
        }
        let size = self.tree.hierarchy().cached_array(key)?.grid().chunk_size() as u64;
        Some(Attributes { inode: self.tree.inode(node), ..self.tree.of_file(size, SystemTime::now(), None) })
    }

    pub(super) fn write_chunk_file(
        &self,
        file: &ChunkFile,
        offset: u64,
        data: &[u8],
        mode: WriteMode,
    ) -> Result<Option<usize>> {
        // before the array's lock, as a flush takes them; it holds the draft while it waits for the store
        let draft = if mode.may_wait { Some(lock(&file.draft)) } else { file.draft.try_lock().ok() };
        let Some(mut draft) = draft else { return Ok(None) };
        loop {
            let Some(array) = self.current_for(&file.array, !mode.may_wait)? else { return Ok(None) };
            let Some(_writing) = self.resizing.writing_if(array.key(), mode.may_wait) else { return Ok(None) };
            if !array.is_superseded() {
                return self.write_current_chunk(file, &mut draft, &array, offset, data, mode.of(file.inode));
            }
            if !mode.may_wait {
                return Ok(None);
            }
        }
    }

    fn write_current_chunk(
        &self,
        file: &ChunkFile,
        slot: &mut Option<Draft>,
        array: &Arc<Array>,
        offset: u64,
        data: &[u8],
        mode: WriteMode,
    ) -> Result<Option<usize>> {
        let (chunk, size) = (file.chunk(array)?, array.grid().chunk_size());
        let data_in_file = clipped(offset, data, size as u64);
        // a map shows the chunk, not the draft
        if let Some(draft) = slot.as_mut().filter(|draft| !mode.mapped && (offset == 0 || draft.bytes.is_some())) {
            // session threads wait for no disk
            if !mode.may_wait && !matches!(draft.bytes, Some(Bytes::Memory { .. })) {
                return Ok(None);
            }
            draft.is_too_long |= data_in_file.as_ref().map_or(true, |fits| fits.len() < data.len());
            let data = data_in_file?;
            if draft.bytes.is_none() && !data.is_empty() {
                draft.bytes = Some(Bytes::new(size, &self.spill_directory)?);
                draft.array = Some(array.clone());
            }
            if let Some(bytes) = &mut draft.bytes {
                bytes.write(offset as usize, data)?;
                draft.written.add(offset as usize..offset as usize + data.len());
                file.is_written.store(true, Ordering::Relaxed);
            }
            return Ok(Some(data.len()));
        }
        let data = data_in_file?;
        if !data.is_empty() {
            let is_new = slot.as_ref().is_some_and(|draft| draft.is_created);
            if is_new && !self.fill_chunk(file, array, chunk, mode)? {
                return Ok(None);
            }
            if !mode.mapped {
                *slot = None;
            }
        }
        let losses = array.losses();
        let written = self.write_chunk_bytes(array, chunk, offset as usize, data, mode);
        self.record_write(&file.record, array, losses, mode);
        let written = written?;
        if written {
            file.is_written.store(true, Ordering::Relaxed);
        }
        Ok(written.then_some(data.len()))
    }

    /// Makes a new chunk of full size, which holds the fill value, unless another file has made it. False if that takes a
    /// wait.
    fn fill_chunk(&self, file: &ChunkFile, array: &Arc<Array>, chunk: ChunkId, mode: WriteMode) -> Result<bool> {
        if self.cache.is_written(array, chunk) {
            return Ok(true);
        }
        if !mode.may_wait {
            return Ok(false);
        }
        if array.stat_chunk(chunk)?.is_some() {
            return Ok(true);
        }
        let mut bytes = memory::zeroed(array.grid().chunk_size())?;
        array.fill(&mut bytes, 0);
        let losses = array.losses();
        let filled = self.write_chunk_bytes(array, chunk, 0, &bytes, mode);
        file.record.add(array, losses);
        filled
    }

    /// Stores what was written to a chunk file.
    pub(super) fn flush_chunk_file(&self, file: &ChunkFile) -> Result<()> {
        let mut slot = lock(&file.draft);
        let Some(draft) = slot.as_mut() else {
            drop(slot);
            return self.flush_array(&*self.current(&file.array)?);
        };
        if let Some(of) = draft.array.clone() {
            of.confirm(false)?;
            if of.is_replaced() {
                *slot = None;
                return Err(self.lost_draft(file, &of));
            }
        }
        if file.creation.is_some_and(|number| !self.chunk_drafts.is(&file.path(), number)) {
            // it was removed while it is open
            *slot = None;
            return Ok(());
        }
        if draft.bytes.is_none() && draft.is_created {
            let array = self.with_current(file, |array, chunk, mode| self.fill_chunk(file, array, chunk, mode))?;
            self.flush_array(&array)?;
            // a shell closes the file before the program that it starts writes it
            let stat = array.stat_chunk(file.chunk(&array)?)?;
            (draft.is_created, draft.filled) = (false, stat.map(|stat| stat.version));
            return Ok(());
        }
        let array = self.current(&file.array)?;
        let (chunk, size) = (file.chunk(&array)?, array.grid().chunk_size());
        match &draft.bytes {
            None => {}
            Some(_) if !draft.is_complete(size) => {
                let e = self.refused_draft(file, draft, size);
                self.take_filled(&array, chunk, draft)?;
                return self.flush_array(&array).and(Err(e));
            }
            Some(bytes) => {
                let whole = bytes.whole(size)?;
                self.with_current(file, |array, chunk, mode| {
                    let losses = array.losses();
                    // at once, so that no write-back stores a part of it
                    let written = self.write_chunk_bytes(array, chunk, 0, &whole, mode);
                    file.record.add(array, losses);
                    written
                })?;
                *slot = None;
            }
        }
        drop(slot);
        self.flush_array(&*self.current(&file.array)?)
    }

    /// Writes to the chunk of a file in the array as it is now, and returns that array.
    fn with_current(
        &self,
        file: &ChunkFile,
        write: impl Fn(&Arc<Array>, ChunkId, WriteMode) -> Result<bool>,
    ) -> Result<Arc<Array>> {
        loop {
            let array = self.current(&file.array)?;
            let _writing = self.resizing.writing(array.key());
            if !array.is_superseded() {
                // the file's own pages may have become dirty since the kernel sent the draft
                write(&array, file.chunk(&array)?, WriteMode::internal())?;
                return Ok(array);
            }
        }
    }

    /// Records that the draft of a file was for an array that was replaced.
    fn lost_draft(&self, file: &ChunkFile, array: &Arc<Array>) -> Error {
        file.record.add(array, array.losses());
        array.count_loss();
        let why =
            "the array was replaced or deleted meanwhile: what was written is lost; open the file again and write anew";
        let e = Error::system(libc::ESTALE).context(why).context(file.path());
        self.stats.problem(format!("not stored: {e}"));
        e
    }

    /// Erases the fill value that stands for a created file, unless something else was written there since.
    fn take_filled(&self, array: &Arc<Array>, chunk: ChunkId, draft: &mut Draft) -> Result<()> {
        let Some(filled) = draft.filled.take().filter(|_| !self.cache.is_written(array, chunk)) else { return Ok(()) };
        if array.stat_chunk(chunk)?.is_some_and(|stat| stat.version == filled) {
            self.erase_chunk(array, chunk)?;
        }
        Ok(())
    }

    fn refused_draft(&self, file: &ChunkFile, draft: &Draft, size: usize) -> Error {
        let written = match draft.is_too_long {
            true => format!("more than {size} bytes were written"),
            false => format!("closed after {} of {size} bytes", draft.written.len()),
        };
        let why = format!(
            "{written}, where a chunk file takes the {size} bytes of a decoded chunk, and nothing was changed; to copy an \
             array from another store, mount that store and copy from there"
        );
        let e = Error::new(Kind::Invalid, why).context(file.path());
        self.stats.problem(format!("not stored: {e}"));
        e
    }

    /// Closes a chunk file for good. What is wrong with its draft is on record.
    pub(super) fn release_chunk_file(&self, file: &ChunkFile) {
        let array = lock(&file.array.0).clone();
        let is_draft = lock(&file.draft).is_some();
        if is_draft || array.is_dirty() {
            let _ = self.flush_chunk_file(file);
        }
        if let Some(creation) = file.creation {
            self.chunk_drafts.closed(&file.path(), creation);
        }
    }

    /// Reads as [`Fs::read_cached`] does with `cached`, else as [`Fs::read`].
    pub(super) fn read_chunk_file(
        &self,
        file: &ChunkFile,
        offset: u64,
        len: usize,
        cached: bool,
        out: &mut Vec<u8>,
    ) -> Result<bool> {
        let Some(array) = self.current_for(&file.array, cached)? else { return Ok(false) };
        match self.read_chunk(&array, &file.name, offset, len, cached, out) {
            Err(e) if e.errno() == libc::ESTALE && self.chunk_drafts.is_created(&file.path()) => {
                let size = array.grid().chunk_size() as u64;
                let end = offset.saturating_add(len as u64).min(size);
                out.clear();
                out.resize(end.saturating_sub(offset) as usize, 0);
                array.fill(out, offset);
            }
            Ok(false) => return Ok(false),
            read => drop(read?),
        }
        self.lay_draft_over(file, offset, out, !cached)
    }

    /// Lays the draft of a file over bytes of its chunk, in the array's own order, that were read at `offset`. False if that
    /// takes a wait and `may_wait` is not set.
    fn lay_draft_over(&self, file: &ChunkFile, offset: u64, out: &mut [u8], may_wait: bool) -> Result<bool> {
        let draft = if may_wait { Some(lock(&file.draft)) } else { file.draft.try_lock().ok() };
        let Some(draft) = draft else { return Ok(false) };
        let Some(Draft { bytes: Some(bytes), written, .. }) = draft.as_ref() else { return Ok(true) };
        if !may_wait && matches!(bytes, Bytes::File(_)) {
            return Ok(false);
        }
        let (start, end) = (offset as usize, offset as usize + out.len());
        for range in written.iter() {
            let (from, to) = (range.start.max(start), range.end.min(end));
            if from < to {
                bytes.read(from, &mut out[from - start..to - start])?;
            }
        }
        Ok(true)
    }
}
