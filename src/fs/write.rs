//! Writing the flat bytes of an array and its chunk files: requests to parts of chunks, and when they are stored. Their
//! sizes are fixed, as a block device's.

use super::{FlatFile, Fs, Handle};
use crate::array::Array;
use crate::error::{Error, Kind, Result};
use crate::grid::{ChunkId, Run};
use crate::layout;
use crate::memory::lock;
use crate::metadata::{Order, Separator};
use crate::store::Key;
use crate::tree::{Attributes, FLAT, Node};
use std::cell::RefCell;
use std::sync::Arc;

thread_local! {
    /// See [`Fs::take_stale_pages`]. Each request has a list of its own, so that none waits for the pages of another's.
    static STALE: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
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

    /// True if a write of `len` bytes may have to wait until others are stored.
    pub fn is_slow_write(&self, handle: u64, len: usize) -> bool {
        let Ok(handle) = self.handle(handle) else { return false };
        match &*handle {
            Handle::Flat(file) => self.is_slow_to_write(&lock(&file.array.0), len),
            Handle::Chunk(array, ..) => self.is_slow_to_write(&lock(&array.0), len),
            _ => true,
        }
    }

    fn is_slow_to_write(&self, array: &Array, len: usize) -> bool {
        array.is_superseded() || self.cache.is_slow_to_write(array, len)
    }

    /// Writes `data` at `offset` and returns how much of it: less only at the end of the file, where its size is fixed.
    /// EFBIG past that.
    pub fn write(&self, handle: u64, offset: u64, data: &[u8]) -> Result<usize> {
        let handle = self.handle(handle)?;
        let written = match &*handle {
            Handle::Flat(file) => self.write_open_flat(file, offset, data)?,
            Handle::Chunk(array, name, _) => {
                let key = lock(&array.0).key().clone();
                let _writing = self.resizing.writing(&key);
                self.write_chunk(&self.current(array)?, name, offset, data)?
            }
            Handle::Draft(draft) => draft.write(offset, data).map(|()| data.len())?,
            Handle::Plain(open) => self.write_plain(open, offset, data).map(|()| data.len())?,
            Handle::Composite(open) => self.write_composite(open, offset, data)?,
            _ => return Err(Error::system(libc::EBADF)),
        };
        self.stats.bytes_accepted.add(written as u64);
        if self.cache.wants_flush() {
            let cache = self.cache.clone();
            // who closes the file is told what goes wrong
            self.behind.run(move || drop(cache.flush_behind()));
        }
        Ok(written)
    }

    pub(super) fn write_open_flat(&self, file: &FlatFile, offset: u64, data: &[u8]) -> Result<usize> {
        let end = offset.saturating_add(data.len() as u64);
        let mut growth = None;
        let written = loop {
            let mut array = self.current(&file.array)?;
            if self.resizes && !data.is_empty() {
                let grown;
                (array, grown) = self.reach(array.key(), end)?;
                growth = growth.or(grown);
            }
            let _writing = self.resizing.writing(array.key());
            // from here on it stays as it is
            if !array.is_superseded() {
                break self.write_flat(&array, offset, data);
            }
        };
        if let (Err(_), Some(growth)) = (&written, growth) {
            self.undo_growth(growth);
        }
        written
    }

    pub(super) fn write_flat(&self, array: &Arc<Array>, offset: u64, data: &[u8]) -> Result<usize> {
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
            self.cache.write_parts(array, same[0].0.chunk, &parts)?;
        }
        Ok(data.len())
    }

    fn write_chunk(&self, array: &Arc<Array>, name: &str, offset: u64, data: &[u8]) -> Result<usize> {
        let stale = || Error::system(libc::ESTALE);
        let chunk = array.grid().parse_chunk_key(name, Separator::Dot).ok_or_else(stale)?;
        let data = clipped(offset, data, array.grid().chunk_size() as u64)?;
        self.write_chunk_bytes(array, chunk, offset as usize, data)?;
        self.drop_pages(&Node::Flat(array.key().clone()));
        Ok(data.len())
    }

    /// Writes bytes of a chunk in the array's own order.
    pub(super) fn write_chunk_bytes(
        &self,
        array: &Arc<Array>,
        chunk: ChunkId,
        offset: usize,
        data: &[u8],
    ) -> Result<()> {
        let meta = array.metadata();
        if meta.order == Order::C || array.grid().dimensions() < 2 {
            return self.cache.write(array, chunk, offset, data);
        }
        let mut parts = Vec::new();
        let mut rest = data;
        layout::each_of_f(&meta.chunks, meta.dtype.size(), offset..offset + data.len(), |at, len| {
            let (part, after) = rest.split_at(len);
            parts.push((at, part));
            rest = after;
        });
        parts.sort_unstable_by_key(|(at, _)| *at);
        self.cache.write_parts(array, chunk, &parts)
    }

    /// Has the kernel drop its pages of a file before the present request is answered.
    pub(super) fn drop_pages(&self, node: &Node) {
        STALE.with_borrow_mut(|stale| stale.push(self.tree.inode(node)));
    }

    /// Takes the inode numbers of the files whose pages the kernel must drop before the request that this thread serves
    /// is answered.
    pub fn take_stale_pages(&self) -> Vec<u64> {
        STALE.take()
    }

    /// Stores what was written to the array of an open file: to be called at each close. The first error is told; what
    /// could not be stored waits for the next time.
    pub fn flush(&self, handle: u64) -> Result<()> {
        let handle = self.handle(handle)?;
        match &*handle {
            Handle::Flat(file) => {
                let array = self.current(&file.array)?;
                self.resizing.close(array.key());
                self.flush_array(&array)
            }
            Handle::Chunk(array, ..) => self.flush_array(&*self.current(array)?),
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
        let Some(array) = self.tree.hierarchy().remembered(key).filter(|array| array.is_dirty()) else { return };
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
        name != Some(FLAT) && self.tree.hierarchy().remembered(key).is_some_and(|array| array.is_dirty())
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
