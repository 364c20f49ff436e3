//! Random sequences of writes, reads, closes and changes of the shape against a plain array of
//! bytes, with another writer on the same store, and with a store that fails.

use crate::array::Array;
use crate::array::hierarchy::Hierarchy;
use crate::fs::tests::geometry;
use crate::fs::tree::FLAT;
use crate::fs::*;
use proptest::prelude::*;
use zarrfs_format::grid::{ChunkId, Grid};
use zarrfs_format::layout;
use zarrfs_format::metadata::Order;
use zarrfs_format::metadata::Separator;
use zarrfs_format::metadata::{ArrayMetadata, V1Order};
use zarrfs_store::testing::{FaultyStore, Operation, PlannedFault};
use zarrfs_store::{MemoryStore, MetadataCache, Store};

/// An operation. Numbers between 0 and 1 are positions and lengths, as fractions of a size.
#[derive(Clone, Debug)]
enum Op {
    WriteFlat(f64, f64),
    WriteChunk(f64, f64, f64),
    ReadFlat(f64, f64),
    ReadChunk(f64),
    Flush,
    Reopen,
    /// Another writer changes bytes of the flat array that this mount has not written since the
    /// last flush.
    Foreign(f64, f64),
    Erase(f64),
    /// Changes the length of a dimension; with true, another writer does.
    Resize(f64, f64, bool),
    /// Stores the pending objects, as the mount does once they have not changed for a while.
    Quiet,
    /// Makes this number of puts fail; with `true`, each takes effect nevertheless.
    Fail(u64, bool),
    /// Makes puts succeed again.
    Heal,
}

fn op() -> impl Strategy<Value = Op> {
    let at = || 0.0..1.0f64;
    prop_oneof![
        6 => (at(), at()).prop_map(|(a, b)| Op::WriteFlat(a, b * b)),
        3 => (at(), at(), at()).prop_map(|(c, a, b)| Op::WriteChunk(c, a, b * b)),
        4 => (at(), at()).prop_map(|(a, b)| Op::ReadFlat(a, b)),
        2 => at().prop_map(Op::ReadChunk),
        2 => Just(Op::Flush),
        1 => Just(Op::Reopen),
        2 => (at(), at()).prop_map(|(a, b)| Op::Foreign(a, b * b)),
        1 => at().prop_map(Op::Erase),
        1 => (at(), at(), any::<bool>()).prop_map(|(d, len, foreign)| Op::Resize(d, len, foreign)),
        1 => Just(Op::Quiet),
        1 => (1u64..4, any::<bool>()).prop_map(|(times, applied)| Op::Fail(times, applied)),
        1 => Just(Op::Heal),
    ]
}

/// The array `a` of a store, opened for writing, and its expected content.
struct Model {
    memory: Arc<MemoryStore>,
    store: Arc<FaultyStore>,
    /// Whether the store may fail.
    fails: bool,
    bound: usize,
    /// Whether the mount caches metadata without a time limit, until a file is opened.
    remembers: bool,
    fs: Fs,
    handle: u64,
    grid: Grid,
    meta: ArrayMetadata,
    /// The expected bytes of each chunk, in C layout, with padding.
    chunks: Vec<Vec<u8>>,
    /// For each flat byte, whether it was written since the last flush.
    dirty: Vec<bool>,
    /// For each chunk, whether it may be stored.
    there: Vec<bool>,
    next: u8,
}

pub fn mount(store: &Arc<FaultyStore>, bound: usize) -> Fs {
    mount_over(store.clone(), bound)
}

fn mount_over(store: Arc<dyn Store>, bound: usize) -> Fs {
    crate::fs::tests::mount_store(store, bound, false)
}

fn open(fs: &Fs, name: &str, write: bool) -> Result<u64> {
    let array = fs.lookup(1, "a")?.inode;
    Ok(fs.open(fs.lookup(array, name)?.inode, write, false)?.handle)
}

impl Model {
    fn remount(store: &Arc<FaultyStore>, bound: usize, remembers: bool) -> Fs {
        if remembers {
            mount_over(Arc::new(MetadataCache::new(store.clone(), None)), bound)
        } else {
            mount(store, bound)
        }
    }

    fn of(document: &str, meta: ArrayMetadata, bound: usize) -> Self {
        let shape = meta.shape.clone();
        let item = meta.dtype.size() as u64;
        let memory = Arc::new(MemoryStore::default());
        // remote stores take other code paths: put half of the arrays into one
        let wrap = if meta.chunks.iter().sum::<u64>().is_multiple_of(2) {
            FaultyStore::remote
        } else {
            FaultyStore::new
        };
        let store = Arc::new(wrap(memory.clone()));
        let name = if meta.zarr_format == 3 {
            "a/zarr.json"
        } else {
            "a/.zarray"
        };
        store
            .put(&Key::normalize(name).unwrap(), document.as_bytes())
            .unwrap();
        let grid = meta.grid(&shape).unwrap();
        let mut empty: Vec<u8> = meta.fill.clone().unwrap_or_default();
        empty.resize(item as usize, 0);
        // vary this independently of the other choices
        let remembers = meta.shape.iter().sum::<u64>().is_multiple_of(2);
        let fs = Model::remount(&store, bound, remembers);
        let handle = open(&fs, FLAT, true).unwrap();
        let count = grid.chunk_count() as usize;
        let chunk = |id: usize| empty.repeat(grid.chunk_size(ChunkId(id as u64)) / item as usize);
        let dirty = vec![false; grid.size() as usize];
        let there = vec![false; count];
        Model {
            memory,
            store,
            fails: false,
            bound,
            remembers,
            fs,
            handle,
            chunks: (0..count).map(chunk).collect(),
            meta,
            grid,
            dirty,
            there,
            next: 1,
        }
    }

    fn flat(&self) -> Vec<u8> {
        let runs = self.grid.runs(0..u64::MAX);
        runs.flat_map(|r| self.chunks[r.chunk.0 as usize][r.offset..r.offset + r.len].to_vec())
            .collect()
    }

    fn some_bytes(&mut self, len: usize) -> Vec<u8> {
        self.next = self.next.wrapping_mul(5).wrapping_add(7);
        (0..len)
            .map(|i| (i as u8).wrapping_mul(31) ^ self.next)
            .collect()
    }

    fn flat_range(&self, at: f64, len: f64) -> (usize, usize) {
        let size = self.grid.size() as usize;
        let start = (at * size as f64) as usize;
        (start, ((len * size as f64) as usize + 1).min(size - start))
    }

    /// Returns a chunk's bytes in the array's own order.
    fn shown(&self, chunk: usize) -> Vec<u8> {
        let mut out = vec![0; self.chunks[chunk].len()];
        match self.meta.order {
            Order::C => out.copy_from_slice(&self.chunks[chunk]),
            Order::F => {
                let item = self.meta.dtype.size();
                let bytes = &self.chunks[chunk];
                layout::read_f_order(&self.meta.chunks, item, bytes, 0..bytes.len(), &mut out);
            }
        }
        out
    }

    fn apply(&mut self, op: &Op) -> Result<()> {
        match *op {
            Op::WriteFlat(at, len) => {
                let (start, len) = self.flat_range(at, len);
                let data = self.some_bytes(len);
                let written = self.fs.change().write(self.handle, start as u64, &data);
                match written {
                    // the cache is full; the bytes accepted before it was are visible
                    Err(e) if self.fails && e.errno() == libc::ENOSPC => {
                        return self.check_failed_write(start, &data);
                    }
                    written => assert_eq!(written?, len),
                }
                let mut at = 0;
                for run in self.grid.runs(start as u64..(start + len) as u64) {
                    let chunk = &mut self.chunks[run.chunk.0 as usize];
                    chunk[run.offset..run.offset + run.len]
                        .copy_from_slice(&data[at..at + run.len]);
                    self.there[run.chunk.0 as usize] = true;
                    at += run.len;
                }
                self.dirty[start..start + len].fill(true);
            }
            Op::WriteChunk(chunk, at, len) => self.write_chunk(chunk, at, len)?,
            Op::ReadFlat(at, len) => {
                let (start, len) = self.flat_range(at, len);
                let mut out = Vec::new();
                if !self
                    .fs
                    .read_cached(self.handle, start as u64, len, &mut out)?
                {
                    self.fs.read(self.handle, start as u64, len, &mut out)?;
                }
                assert_eq!(out, self.flat()[start..start + len]);
            }
            Op::ReadChunk(chunk) => self.check_chunk(chunk)?,
            Op::Flush => {
                if self.succeeds(|fs, handle| fs.change().fsync(handle))? {
                    self.dirty.fill(false);
                }
            }
            Op::Reopen => {
                self.heal();
                self.fs.change().flush(self.handle)?;
                self.fs.change().release(self.handle);
                self.fs = Model::remount(&self.store, self.bound, self.remembers);
                self.handle = open(&self.fs, FLAT, true)?;
                self.dirty.fill(false);
            }
            Op::Foreign(at, len) => self.write_elsewhere(at, len),
            Op::Resize(dimension, factor, is_foreign) => {
                self.resize(dimension, factor, is_foreign)?
            }
            Op::Quiet => {
                let array = self.fs.tree.array(&Key::normalize("a")?)?;
                self.succeeds(|_, _| array.store_objects())?;
            }
            Op::Erase(chunk) => {
                let id = (chunk * self.grid.chunk_count() as f64) as usize;
                self.heal();
                self.fs.change().flush(self.handle)?;
                let array = self.fs.tree.array(&Key::normalize("a")?)?;
                self.fs
                    .change()
                    .writer
                    .erase_chunk(&array, ChunkId(id as u64))?;
                let mut whole = vec![0; self.chunks[id].len()];
                array.metadata().write_fill(&mut whole, 0);
                (self.chunks[id], self.there[id]) = (whole, false);
                self.dirty.fill(false);
                if array.shard_count().is_some() {
                    // the erased chunk is handed over, and replaces one that another writer stores
                    // before the next flush
                    self.mark_dirty(id);
                }
            }
            Op::Fail(times, applied) => {
                let errno = libc::ENOSPC;
                self.store.plan(PlannedFault {
                    operation: Operation::Put,
                    after: 0,
                    times,
                    errno,
                    applied,
                });
                self.fails = true;
            }
            Op::Heal => self.heal(),
        }
        Ok(())
    }

    /// Applies the operations, and compares everything with a new mount.
    fn run(&mut self, ops: &[Op]) {
        for op in ops {
            self.apply(op).unwrap();
        }
        self.apply(&Op::Reopen).unwrap();
        self.apply(&Op::ReadFlat(0.0, 1.0)).unwrap();
        for chunk in 0..self.grid.chunk_count() {
            self.apply(&Op::ReadChunk(
                chunk as f64 / self.grid.chunk_count() as f64,
            ))
            .unwrap();
        }
    }

    fn heal(&mut self) {
        self.store.heal();
        self.fails = false;
    }

    /// Makes a call that may fail if the store fails. Returns whether it succeeded.
    fn succeeds(&self, call: impl FnOnce(&Fs, u64) -> Result<()>) -> Result<bool> {
        match call(&self.fs, self.handle) {
            Err(e) if self.fails && e.errno() == libc::ENOSPC => Ok(false),
            done => done.map(|()| true),
        }
    }

    /// Checks after a failed write that each byte has its old or its new value.
    fn check_failed_write(&mut self, start: usize, data: &[u8]) -> Result<()> {
        let mut now = Vec::new();
        self.fs
            .read(self.handle, start as u64, data.len(), &mut now)?;
        let mut at = 0;
        for run in self.grid.runs(start as u64..(start + data.len()) as u64) {
            let chunk = &mut self.chunks[run.chunk.0 as usize][run.offset..run.offset + run.len];
            let now = &now[at..at + run.len];
            let new = &data[at..at + run.len];
            assert!(now == chunk || now == new, "a part of a chunk was written");
            self.there[run.chunk.0 as usize] |= now != chunk;
            chunk.copy_from_slice(now);
            at += run.len;
        }
        self.dirty[start..start + data.len()].fill(true);
        Ok(())
    }

    fn write_chunk(&mut self, chunk: f64, at: f64, len: f64) -> Result<()> {
        let id = (chunk * self.grid.chunk_count() as f64) as usize;
        if !self.there[id] {
            return Ok(());
        }
        let size = self.chunks[id].len();
        let start = (at * size as f64) as usize;
        let len = ((len * size as f64) as usize + 1).min(size - start);
        let data = self.some_bytes(len);
        let name = self.grid.chunk_key(ChunkId(id as u64), Separator::Dot);
        let handle = match open(&self.fs, &name, true) {
            // the chunk was never stored
            Err(e) if e.errno() == libc::ENOENT && self.may_lack(id) => return Ok(()),
            handle => handle?,
        };
        match self.fs.change().write(handle, start as u64, &data) {
            Err(e) if self.fails && e.errno() == libc::ENOSPC => {
                self.fs.change().release(handle);
                return Ok(());
            }
            written => assert_eq!(written?, len),
        }
        let mut shown = self.shown(id);
        shown[start..start + len].copy_from_slice(&data);
        match self.meta.order {
            Order::C => self.chunks[id] = shown,
            Order::F => layout::f_to_c(
                &self.meta.chunks,
                self.meta.dtype.size(),
                &shown,
                &mut self.chunks[id],
            ),
        }
        // mark the whole chunk, whichever bytes were written: another writer must not change any of
        // it
        self.mark_dirty(id);
        self.fs.change().release(handle);
        Ok(())
    }

    fn mark_dirty(&mut self, chunk: usize) {
        let mut at = 0;
        for run in self.grid.runs(0..u64::MAX) {
            if run.chunk.0 == chunk as u64 {
                self.dirty[at..at + run.len].fill(true);
            }
            at += run.len;
        }
    }

    fn check_chunk(&mut self, chunk: f64) -> Result<()> {
        let id = (chunk * self.grid.chunk_count() as f64) as usize;
        let name = self.grid.chunk_key(ChunkId(id as u64), Separator::Dot);
        let inside = self.inside(id);
        let shown = self.shown(id);
        let fill = self.fill();
        let handle = match open(&self.fs, &name, false) {
            Err(e) if e.errno() == libc::ENOENT && self.may_lack(id) => return Ok(()),
            handle => handle?,
        };
        assert!(self.there[id]);
        let mut out = Vec::new();
        self.fs.read(handle, 0, usize::MAX / 2, &mut out)?;
        assert_eq!(out.len(), shown.len());
        // the padding of an edge chunk becomes the fill value if the chunk was overwritten without
        // being loaded; otherwise it stays
        let is_right =
            |i: usize| out[i] == shown[i] || !inside[i] && out[i] == fill[i % fill.len()];
        assert!((0..out.len()).all(is_right), "chunk {name}");
        self.fs.change().release(handle);
        Ok(())
    }

    /// Returns whether the store may lack a chunk: also one that holds fill values alone, which a
    /// write of flat bytes does not create.
    fn may_lack(&self, id: usize) -> bool {
        let inside = self.inside(id);
        let shown = self.shown(id);
        let fill = self.fill();
        let is_empty = (0..shown.len()).all(|i| !inside[i] || shown[i] == fill[i % fill.len()]);
        !self.there[id] || self.fails || is_empty
    }

    /// Returns the bytes of an item that holds the fill value.
    fn fill(&self) -> Vec<u8> {
        let mut item: Vec<u8> = self.meta.fill.clone().unwrap_or_default();
        item.resize(self.meta.dtype.size(), 0);
        item
    }

    /// Returns for each byte of a shown chunk whether it belongs to the array.
    fn inside(&self, id: usize) -> Vec<bool> {
        let mut inside = vec![0u8; self.chunks[id].len()];
        for (_, run) in self.grid.chunk_runs(ChunkId(id as u64), 0..u64::MAX) {
            inside[run.offset..run.offset + run.len].fill(1);
        }
        if self.meta.order == Order::F {
            let mut out = vec![0; inside.len()];
            layout::read_f_order(
                &self.meta.chunks,
                self.meta.dtype.size(),
                &inside,
                0..inside.len(),
                &mut out,
            );
            inside = out;
        }
        inside.into_iter().map(|b| b == 1).collect()
    }

    /// Lets another writer load chunks, change bytes that this mount has not written, and store
    /// them.
    fn write_elsewhere(&mut self, at: f64, len: f64) {
        // with a small cache chunks are stored at any time: the other writer could overwrite bytes
        // that it has not seen
        if self.bound < 1 << 20 {
            return;
        }
        let (start, len) = self.flat_range(at, len);
        let data = self.some_bytes(len);
        let other = Array::new(
            Key::normalize("a").unwrap(),
            self.meta.clone(),
            self.memory.clone(),
            Arc::new(Stats::default()),
        )
        .unwrap();
        let mut at = 0;
        for run in self.grid.runs(start as u64..(start + len) as u64) {
            let mut scratch = Default::default();
            let loaded = other
                .load(run.chunk, Vec::new(), &mut scratch)
                .unwrap()
                .map(|l| l.bytes);
            let mut bytes = loaded.unwrap_or_else(|| {
                let mut bytes = vec![0; self.chunks[run.chunk.0 as usize].len()];
                other.metadata().write_fill(&mut bytes, 0);
                bytes
            });
            let clean: Vec<usize> = (0..run.len)
                .filter(|i| !self.dirty[start + at + i])
                .collect();
            for &i in &clean {
                bytes[run.offset + i] = data[at + i];
                self.chunks[run.chunk.0 as usize][run.offset + i] = data[at + i];
            }
            if !clean.is_empty() {
                other.store(run.chunk, &bytes, &mut scratch).unwrap();
                self.there[run.chunk.0 as usize] = true;
            }
            at += run.len;
        }
        other.store_objects().unwrap();
        self.heal();
        if start % 2 == 0 {
            self.fs.change().flush(self.handle).unwrap();
        }
        // "seen at the next open"
        let again = open(&self.fs, FLAT, true).unwrap();
        self.fs
            .change()
            .release(std::mem::replace(&mut self.handle, again));
        self.dirty.fill(false); // releasing the old handle has stored everything
    }
}

mod properties;
mod resizing;
