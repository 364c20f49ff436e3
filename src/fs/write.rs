//! Writing the flat bytes of an array and its chunk files: requests to parts of chunks, and when they are stored. Their
//! sizes are fixed, as a block device's.

use super::page_guards::{GuardId, HeldGuards};
use super::waiting::WaitingWrite;
use super::{FlatFile, Fs, Handle, WriteRecord};
use crate::array::Array;
use crate::cache::{Part, Ranges};
use crate::error::{Error, Kind, Result};
use crate::fs::tree::{Attributes, FLAT, Node};
use crate::store::Key;
use crate::util::memory::lock;
use crate::zarr::grid::{ChunkId, Run};
use crate::zarr::layout;
use crate::zarr::metadata::{Order, Separator};
use std::cell::RefCell;
use std::sync::Arc;

thread_local! {
    /// See [`Fs::take_stale_pages`]. Each request has a list of its own, so that none waits for the pages of another's.
    static STALE: RefCell<Vec<StalePages>> = const { RefCell::new(Vec::new()) };
}

/// A file whose pages the kernel has to drop, because its bytes were written through another file.
#[derive(Debug)]
pub struct StalePages {
    /// The file.
    pub inode: u64,
    /// Whether the present request is answered only when the pages are dropped.
    pub is_awaited: bool,
    /// To be removed when the pages are dropped: see [`Fs::pages_dropped`].
    pub guards: Vec<GuardId>,
}

/// How bytes come to be written.
#[derive(Clone, Copy, Debug)]
pub(super) struct WriteMode {
    /// The file they are written through; 0 if that is none of those with flat bytes.
    pub inode: u64,
    /// Whether that is `data.raw`.
    pub is_flat: bool,
    /// Whether they are a page that a shared map has made dirty: most of its bytes were not changed.
    pub mapped: bool,
    /// Whether the write may wait for the store.
    pub may_wait: bool,
}

impl WriteMode {
    /// Bytes that come from no open file.
    pub fn internal() -> Self {
        WriteMode { inode: 0, is_flat: false, mapped: false, may_wait: true }
    }

    /// The same through the file `inode`.
    pub fn of(self, inode: u64) -> Self {
        WriteMode { inode, ..self }
    }
}

impl Fs {
    /// An error if nothing can be written.
    pub(super) fn writable(&self) -> Result<()> {
        match self.read_only {
            true => Err(Error::new(Kind::ReadOnly, "the mount is read-only")),
            false => Ok(()),
        }
    }

    /// True for open flat bytes.
    pub fn is_flat(&self, handle: u64) -> bool {
        self.handle(handle).is_ok_and(|handle| matches!(*handle, Handle::Flat(_)))
    }

    /// Writes `data` at `offset` and returns how much of it: less only at the end of the file, where its size is fixed.
    /// EFBIG past that.
    pub fn write(&self, handle: u64, offset: u64, data: &[u8]) -> Result<usize> {
        self.write_waiting(handle, offset, data, false)
    }

    /// As [`Fs::write`]; `mapped` is set for pages that a shared map has made dirty.
    pub fn write_waiting(&self, handle: u64, offset: u64, data: &[u8], mapped: bool) -> Result<usize> {
        let written = self.write_as(handle, offset, data, WriteMode { mapped, ..WriteMode::internal() })?;
        Ok(written.unwrap_or_default())
    }

    /// As [`Fs::write`], but only if that takes neither the store nor a wait: else None, and [`Fs::write_waiting`] must
    /// follow. The bytes are visible to all readers when this returns.
    pub fn try_write(&self, handle: u64, offset: u64, data: &[u8], mapped: bool) -> Result<Option<usize>> {
        self.write_as(handle, offset, data, WriteMode { mapped, may_wait: false, ..WriteMode::internal() })
    }

    /// The files with pages of the arrays that are written through an open file: who flushes it must know them dropped.
    pub fn files_with_pages(&self, handle: u64) -> Vec<u64> {
        let Ok(handle) = self.handle(handle) else { return Vec::new() };
        handle.writes_to().iter().map(|(array, _)| self.tree.inode(&Node::Flat(array.clone()))).collect()
    }

    /// Records a write that has to wait: until the answer is dropped, reads of its bytes wait for it. None for files whose
    /// pages the kernel does not keep while they are written.
    pub fn waiting_write(&self, handle: u64, offset: u64, len: usize) -> Option<WaitingWrite> {
        match &*self.handle(handle).ok()? {
            Handle::Flat(file) => {
                let key = lock(&file.array.0).key().clone();
                Some(self.waiting.begin(key, offset..offset.saturating_add(len as u64)))
            }
            _ => None,
        }
    }

    fn write_as(&self, handle: u64, offset: u64, data: &[u8], mode: WriteMode) -> Result<Option<usize>> {
        let handle = self.handle(handle)?;
        let written = match &*handle {
            Handle::Flat(file) => self.write_open_flat(file, offset, data, mode)?,
            Handle::Chunk(file) => self.write_chunk_file(file, offset, data, mode)?,
            _ if !mode.may_wait => None,
            Handle::Draft(draft) => Some(draft.write(offset, data).map(|()| data.len())?),
            Handle::Plain(open) => Some(self.write_plain(open, offset, data).map(|()| data.len())?),
            Handle::Composite(open) => Some(self.write_composite(open, offset, data, mode.of(open.inode))?),
            _ => return Err(Error::system(libc::EBADF)),
        };
        let Some(written) = written else { return Ok(None) };
        self.stats.bytes_accepted.add(written as u64);
        if self.cache.wants_flush() {
            let cache = self.cache.clone();
            // who closes the file is told what goes wrong
            self.behind.run(move || drop(cache.flush_behind()));
        }
        Ok(Some(written))
    }

    fn write_open_flat(&self, file: &FlatFile, offset: u64, data: &[u8], mode: WriteMode) -> Result<Option<usize>> {
        let end = offset.saturating_add(data.len() as u64);
        let mut growth = None;
        let written = loop {
            let Some(mut array) = self.current_for(&file.array, !mode.may_wait)? else { return Ok(None) };
            if self.resizes && !data.is_empty() && end > self.resizing.end(&array) {
                if !mode.may_wait {
                    return Ok(None);
                }
                let grown;
                (array, grown) = self.reach(array.key(), end)?;
                growth = growth.or(grown);
            }
            let Some(_writing) = self.resizing.writing_if(array.key(), mode.may_wait) else { return Ok(None) };
            // from here on it stays as it is
            if !array.is_superseded() {
                let losses = array.losses();
                let written = self.write_flat(&array, offset, data, WriteMode { is_flat: true, ..mode.of(file.inode) });
                self.record_write(&file.record, &array, losses, mode);
                break written;
            }
            if !mode.may_wait {
                return Ok(None);
            }
        };
        if let (Err(_), Some(growth)) = (&written, growth) {
            self.undo_growth(growth);
        }
        written
    }

    /// Records that the array is written through a file. Which of the open files a map belongs to is not known: then it is
    /// each of them. To be called after the write, with the count of losses before it.
    pub(super) fn record_write(&self, record: &WriteRecord, array: &Arc<Array>, losses: u64, mode: WriteMode) {
        record.add(array, losses);
        if mode.mapped {
            let handles: Vec<Arc<Handle>> = lock(&self.handles).values().cloned().collect();
            handles
                .iter()
                .filter_map(|handle| handle.record_of(array.key()))
                .for_each(|record| record.add(array, losses));
        }
    }

    /// Writes flat bytes. None if that takes the store or a wait, and the mode does not allow it; the write must then be
    /// repeated as a whole.
    pub(super) fn write_flat(
        &self,
        array: &Arc<Array>,
        offset: u64,
        data: &[u8],
        mode: WriteMode,
    ) -> Result<Option<usize>> {
        let data = clipped(offset, data, array.size())?;
        let mut runs: Vec<(Run, usize)> = Vec::new();
        let mut at = 0;
        for run in array.grid().runs(offset..offset + data.len() as u64) {
            runs.push((run, at));
            at += run.len;
        }
        runs.sort_by_key(|(run, _)| (run.chunk, run.offset));
        for same in runs.chunk_by(|(a, _), (b, _)| a.chunk == b.chunk) {
            let parts: Vec<(usize, &[u8])> =
                same.iter().map(|(run, at)| (run.offset, &data[*at..*at + run.len])).collect();
            if !self.write_parts(array, same[0].0.chunk, &parts, mode)? {
                return Ok(None);
            }
        }
        Ok(Some(data.len()))
    }

    /// Writes bytes of a chunk in the array's own order. False as [`Fs::write_flat`] returns None.
    pub(super) fn write_chunk_bytes(
        &self,
        array: &Arc<Array>,
        chunk: ChunkId,
        offset: usize,
        data: &[u8],
        mode: WriteMode,
    ) -> Result<bool> {
        let meta = array.metadata();
        if meta.order == Order::C || array.grid().dimensions() < 2 {
            return self.write_parts(array, chunk, &[(offset, data)], mode);
        }
        let mut parts = Vec::new();
        let mut rest = data;
        layout::for_each_in_f_order(&meta.chunks, meta.dtype.size(), offset..offset + data.len(), |at, len| {
            let (part, after) = rest.split_at(len);
            parts.push((at, part));
            rest = after;
        });
        parts.sort_unstable_by_key(|(at, _)| *at);
        self.write_parts(array, chunk, &parts, mode)
    }

    /// Writes parts of a chunk, in order of their places: guarded against older bytes in the pages of other files, and,
    /// if they are a page themselves, without the bytes that are guarded.
    fn write_parts(&self, array: &Arc<Array>, chunk: ChunkId, parts: &[Part], mode: WriteMode) -> Result<bool> {
        loop {
            let mut guards = self.guards.lock();
            let written = match mode.mapped {
                true => {
                    let free = guards.unguarded(array, chunk, mode.inode, parts);
                    if !mode.is_flat {
                        let flat = self.tree.inode(&Node::Flat(array.key().clone()));
                        let stale = StalePages { inode: flat, is_awaited: false, guards: Vec::new() };
                        STALE.with_borrow_mut(|list| list.push(stale));
                    }
                    if free.is_empty() { Ok(true) } else { self.cache.try_write_parts(array, chunk, &free) }
                }
                false => {
                    let stale = self.guard(&mut guards, array, chunk, parts, mode);
                    let written = self.cache.try_write_parts(array, chunk, parts);
                    match written {
                        Ok(true) => STALE.with_borrow_mut(|list| list.extend(stale)),
                        _ => stale.iter().for_each(|stale| guards.remove(&stale.guards)),
                    }
                    written
                }
            };
            drop(guards);
            if written? {
                return Ok(true);
            }
            if !mode.may_wait {
                return Ok(false);
            }
            self.cache.make_room(array)?;
        }
    }

    /// Guards parts of a chunk that are about to be written through a file against the pages of the other files
    /// that show them. `data.raw` may have pages whoever has it open, the other files only while they are mapped.
    fn guard(
        &self,
        guards: &mut HeldGuards,
        array: &Arc<Array>,
        chunk: ChunkId,
        parts: &[Part],
        mode: WriteMode,
    ) -> Vec<StalePages> {
        let mut others = guards.other_writers(array.key(), mode.inode);
        if mode.is_flat && others.is_empty() {
            return Vec::new();
        }
        let flat = if mode.is_flat { mode.inode } else { self.tree.inode(&Node::Flat(array.key().clone())) };
        if mode.inode != flat && !others.contains(&flat) {
            others.push(flat);
        }
        let ranges: Ranges = parts.iter().map(|(offset, bytes)| *offset..offset + bytes.len()).collect();
        let guarded = |other: u64| StalePages {
            inode: other,
            // the kernel holds pages of `data.raw` while one of its writes is in flight: such a write must wait for none
            is_awaited: other == flat,
            guards: vec![guards.add(array, chunk, other, &ranges)],
        };
        others.into_iter().map(guarded).collect()
    }

    /// Has the kernel drop its pages of a file before the present request is answered.
    pub(super) fn drop_pages(&self, node: &Node) {
        let (inode, guards) = (self.tree.inode(node), Vec::new());
        STALE.with_borrow_mut(|stale| stale.push(StalePages { inode, is_awaited: true, guards }));
    }

    /// Guards what is going to become of a whole chunk against pages of other files.
    pub(super) fn guard_chunk(&self, array: &Arc<Array>, chunk: ChunkId) {
        let whole = array.grid().chunk_size();
        let mut guards = self.guards.lock();
        let flat = self.tree.inode(&Node::Flat(array.key().clone()));
        let mut others = guards.other_writers(array.key(), 0);
        others.retain(|other| *other != flat);
        others.push(flat);
        let ranges = Ranges::from(0..whole);
        for inode in others {
            let guards = vec![guards.add(array, chunk, inode, &ranges)];
            STALE.with_borrow_mut(|stale| stale.push(StalePages { inode, is_awaited: inode == flat, guards }));
        }
    }

    /// To be called when the kernel has written back and dropped the pages that `guards` were against.
    pub fn pages_dropped(&self, guards: &[GuardId]) {
        self.guards.remove(guards);
    }

    /// Takes the files whose pages the kernel must drop because of the request that this thread serves.
    pub fn take_stale_pages(&self) -> Vec<StalePages> {
        STALE.take()
    }

    /// Stores what was written to the array of an open file: to be called at each close. The first error is told; what
    /// could not be stored waits for the next time.
    pub fn flush(&self, handle: u64) -> Result<()> {
        let handle = self.handle(handle)?;
        match &*handle {
            Handle::Flat(file) => {
                let stored = self.current(&file.array).and_then(|array| {
                    self.resizing.close(array.key());
                    self.flush_array(&array)
                });
                file.record.answer(stored)
            }
            Handle::Chunk(file) => file.record.answer(self.flush_chunk_file(file)),
            Handle::Draft(draft) => self.flush_draft(draft),
            Handle::Composite(open) => self.flush_composite(open),
            _ => Ok(()),
        }
    }

    pub(super) fn flush_array(&self, array: &Array) -> Result<()> {
        let done = self.cache.flush_array(array);
        if array.is_lossy() && array.writes() > 0 {
            // what is read from now on is what the filters have kept
            self.drop_pages(&Node::Flat(array.key().clone()));
        }
        done
    }

    /// As [`Fs::flush`], and has the store keep it also if the power fails.
    pub fn fsync(&self, handle: u64) -> Result<()> {
        self.flush(handle)?;
        if let Handle::Plain(open) = &*self.handle(handle)? {
            self.sync_plain(open)?;
        }
        self.tree.hierarchy().store().sync()
    }

    /// Stores everything, also drafts that are still open where they can be honoured as they are, and has the store keep it also if the power fails.
    pub fn flush_all(&self) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        // half a chunk of objects can't be told from a whole one
        let all = self.drafts.all().into_iter();
        let drafts = all.filter(|draft| matches!(draft.node(), Node::Metadata(..) | Node::Value(_))).map(|draft| {
            match self.flush_draft(&draft) {
                // somebody is still writing it
                Err(e) if e.kind() == Kind::Invalid => Ok(()),
                stored => stored,
            }
        });
        let done = drafts.fold(Ok(()), Result::and);
        let done = done.and(self.cache.flush_all());
        done.and(self.tree.hierarchy().store().sync())
    }

    /// Sets the size of a file: of chunks and, without --resize, of flat bytes it is fixed, and asking for less changes
    /// nothing.
    pub fn set_size(&self, inode: u64, size: u64) -> Result<Attributes> {
        self.writable()?;
        match self.tree.node(inode) {
            Ok(node) if self.has_fixed_size(&node)? => {
                if let (Node::Flat(key), true) = (&*node, self.resizes) {
                    self.truncate(key, size)?;
                    return self.attributes(inode);
                }
            }
            _ => return self.set_size_of_file(inode, size),
        }
        let attributes = self.attributes(inode)?;
        if size <= attributes.size { Ok(attributes) } else { Err(Error::system(libc::EFBIG)) }
    }

    /// Stores what was written of the chunk `name` of the array at `key`, or of all its chunks: before the store is asked
    /// which chunks there are. One that can't be stored now is not there yet.
    pub(super) fn settle(&self, key: &Key, name: Option<&str>) {
        let Some(array) = self.tree.hierarchy().cached_array(key).filter(|array| array.is_dirty()) else { return };
        let settled = match name {
            None => self.cache.flush_array(&array),
            Some(name) => match array.grid().parse_chunk_key(name, Separator::Dot) {
                Some(chunk) => self.cache.flush_chunk(&array, chunk),
                None => Ok(()),
            },
        };
        if let Err(e) = settled {
            log::debug!("{e}");
        }
    }

    /// True if [`Fs::settle`] has something to do for `name` in the directory `parent`.
    pub(super) fn is_unsettled(&self, node: &Node, name: Option<&str>) -> bool {
        let (key, name) = match (node, name) {
            (Node::Directory(key), name) => (key, name),
            (Node::Chunk(key, name), _) => (key, Some(name.as_str())),
            _ => return false,
        };
        name != Some(FLAT) && self.tree.hierarchy().cached_array(key).is_some_and(|array| array.is_dirty())
    }
}

/// The part of `data` that fits before the end of a file of `size` bytes. EFBIG if that is nothing.
pub(super) fn clipped(offset: u64, data: &[u8], size: u64) -> Result<&[u8]> {
    let room = size.saturating_sub(offset).min(data.len() as u64) as usize;
    match data.is_empty() || room > 0 {
        true => Ok(&data[..room]),
        false => Err(Error::system(libc::EFBIG)),
    }
}
