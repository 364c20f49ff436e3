//! Writes to the bytes of an array. Splits requests into parts of chunks, and lists the pages of
//! other files that a write makes stale. Flat bytes and chunk files have a fixed size, as a block
//! device has.

use super::arrays::WrittenArrays;
use super::page_guards::{GuardId, HeldGuards};
use crate::array::Array;
use crate::cache::{Creates, Part, Ranges, Wait};
use std::cell::RefCell;
use std::ops::Deref;
use std::sync::Arc;
use zarrfs_base::error::{Error, ErrorContext, Result};
use zarrfs_base::memory::{self};
use zarrfs_format::grid::{Block, ChunkId};
use zarrfs_format::layout;
use zarrfs_format::metadata::Order;
use zarrfs_store::Key;

/// Zeros that are written at a time.
pub static ZEROS: [u8; 1 << 20] = [0; 1 << 20];

/// A file whose pages the kernel has to drop, because its bytes were written through another file.
#[derive(Debug)]
pub struct StalePages {
    /// The file's inode number.
    pub inode: u64,
    /// Whether the current request is answered only after the pages are dropped.
    pub is_awaited: bool,
    /// Guards to be removed once the pages are dropped: see [`WrittenArrays::pages_dropped`].
    pub guards: Vec<GuardId>,
}

/// The origin of written bytes, and whether the write may wait.
#[derive(Clone, Copy, Debug)]
pub struct WriteMode {
    /// The inode number of the file through which the bytes are written; 0 if there is none.
    pub inode: u64,
    /// Whether that file is `data.raw`.
    pub is_flat: bool,
    /// Whether the bytes are a page that a shared map has made dirty. Most bytes of such a page are
    /// unchanged.
    pub mapped: bool,
    /// Whether the write may wait for the store.
    pub wait: Wait,
    /// Whether the bytes are zeros that fill a gap: see [`super::truncation`].
    pub is_gap: bool,
    /// Whether the write creates a chunk that the store lacks.
    pub creates: Creates,
}

impl WriteMode {
    /// Returns the mode of bytes that come from no open file.
    pub fn internal() -> Self {
        WriteMode {
            inode: 0,
            is_flat: false,
            mapped: false,
            wait: Wait::Allowed,
            is_gap: false,
            creates: Creates::UnlessEmpty,
        }
    }
}

/// Writes to arrays for one request, and collects the files whose pages the kernel has to drop.
pub struct ArrayWriter<'a> {
    arrays: &'a WrittenArrays,
    /// Each request has a list of its own, so that none waits for the pages of another. A failed
    /// request has one, too.
    pub(super) stale: RefCell<Vec<StalePages>>,
}

impl Deref for ArrayWriter<'_> {
    type Target = WrittenArrays;

    fn deref(&self) -> &WrittenArrays {
        self.arrays
    }
}

impl<'a> ArrayWriter<'a> {
    /// Begins the writes of a request.
    pub fn new(arrays: &'a WrittenArrays) -> Self {
        ArrayWriter {
            arrays,
            stale: RefCell::default(),
        }
    }

    /// Guards parts of a chunk that are about to be written through a file against the pages of the
    /// other files that show them. The kernel may have pages of `data.raw` at any time, of the
    /// other files only while they are mapped.
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
        let flat = if mode.is_flat {
            mode.inode
        } else {
            self.tree.flat_inode(array.key())
        };
        if mode.inode != flat && !others.contains(&flat) {
            others.push(flat);
        }
        let ranges: Ranges = parts
            .iter()
            .map(|(offset, bytes)| *offset..offset + bytes.len())
            .collect();
        others
            .into_iter()
            .map(|other| StalePages {
                inode: other,
                // a write to `data.raw` waits for no pages, since the kernel holds those of
                // `data.raw` while the write is in flight
                is_awaited: other == flat,
                guards: vec![guards.add(array, chunk, other, &ranges)],
            })
            .collect()
    }

    /// Removes a chunk from the store and from the cache. Returns whether there was one.
    pub(super) fn erase_chunk(&self, array: &Arc<Array>, chunk: ChunkId) -> Result<bool> {
        self.guard_chunk(array, chunk);
        self.cache.erase_chunk(array, chunk)
    }

    /// Stores the dirty chunks of an array. If its filters are lossy, the kernel drops the pages of
    /// `data.raw`: later reads return the values that the filters have kept.
    pub(super) fn flush_array(&self, array: &Array) -> Result<()> {
        let done = self.cache.flush_array(array);
        self.add_rounded(array);
        done
    }

    /// Stores the dirty chunks of an array as [`Self::flush_array`] does, except that chunks of an
    /// object may wait there for others. Programs close chunk files one by one, and each close
    /// would store the whole object.
    pub(super) fn hand_over(&self, array: &Array) -> Result<()> {
        let done = self.cache.hand_over(array);
        self.add_rounded(array);
        done
    }

    fn add_rounded(&self, array: &Array) {
        if array.is_lossy() && array.freshness().writes() > 0 {
            self.add_stale(array.key(), true);
        }
    }

    /// Writes a file over the flat bytes of an array, and stores them.
    ///
    /// # Errors
    ///
    /// EINVAL, with nothing written, if the file has another size.
    pub(super) fn copy_into(&self, from: &Key, array: &Arc<Array>) -> Result<()> {
        let size = self.tree.stat(from)?.size;
        if size != array.size() {
            let why = format!(
                "{size} bytes can't become the {} of an array's flat bytes",
                array.size()
            );
            return Err(Error::invalid(why).context(array.key()));
        }
        array.writable()?;
        let _writing = self.resizing.writing_to(array)?;
        self.in_pieces(from, 0..size, |at, piece| {
            Ok(self
                .write_flat(array, at, piece, WriteMode::internal())?
                .unwrap_or_default())
        })?;
        let stored = self.cache.flush_array(array);
        self.with_losses(array.key(), stored)
    }

    /// Writes flat bytes and returns their number. Returns `None` if that takes the store or a wait
    /// that the mode forbids; the caller must then repeat the whole write.
    pub(super) fn write_flat(
        &self,
        array: &Arc<Array>,
        offset: u64,
        data: &[u8],
        mode: WriteMode,
    ) -> Result<Option<usize>> {
        let data = clipped(offset, data, array.size())?;
        let mut blocks: Vec<Block> = array
            .grid()
            .blocks(offset..offset + data.len() as u64)
            .collect();
        blocks.sort_by_key(|block| (block.chunk(), block.span().start));
        for same in blocks.chunk_by(|a, b| a.chunk() == b.chunk()) {
            let runs = same.iter().flat_map(Block::runs);
            let parts: Vec<(usize, &[u8])> = runs
                .map(|(run, at)| (run.offset, &data[at..at + run.len]))
                .collect();
            if !self.write_parts(array, same[0].chunk(), &parts, mode)? {
                return Ok(None);
            }
        }
        Ok(Some(data.len()))
    }

    /// Writes bytes of a chunk in the array's own order. Returns `false` where
    /// [`ArrayWriter::write_flat`] returns `None`.
    pub(super) fn write_chunk_bytes(
        &self,
        array: &Arc<Array>,
        chunk: ChunkId,
        offset: usize,
        data: &[u8],
        mode: WriteMode,
    ) -> Result<bool> {
        let mode = WriteMode {
            creates: Creates::Always,
            ..mode
        };
        let meta = array.metadata();
        if meta.order == Order::C || array.grid().dimensions() < 2 {
            return self.write_parts(array, chunk, &[(offset, data)], mode);
        }
        if data.len() == array.grid().chunk_size(chunk) {
            // a list of parts of one item each would take many times the memory of the chunk
            memory::check_chunk(data.len().saturating_mul(2)).context(array.key())?;
            let mut chunk_bytes = Vec::new();
            memory::resize(&mut chunk_bytes, data.len())?;
            layout::f_to_c(&meta.chunks, meta.dtype.size(), data, &mut chunk_bytes);
            return self.write_parts(array, chunk, &[(0, &chunk_bytes)], mode);
        }
        let mut parts = Vec::new();
        let mut rest = data;
        layout::for_each_in_f_order(
            &meta.chunks,
            meta.dtype.size(),
            offset..offset + data.len(),
            |at, len| {
                let (part, after) = rest.split_at(len);
                parts.push((at, part));
                rest = after;
            },
        );
        parts.sort_unstable_by_key(|(at, _)| *at);
        self.write_parts(array, chunk, &parts, mode)
    }

    /// Writes parts of a chunk, in ascending order, and guards them against older bytes in the
    /// pages of other files. Of a page of a map, writes only the bytes that are not guarded against
    /// it. Returns `false` if that takes a wait that the mode forbids.
    pub(super) fn write_parts(
        &self,
        array: &Arc<Array>,
        chunk: ChunkId,
        parts: &[Part],
        mode: WriteMode,
    ) -> Result<bool> {
        loop {
            let mut guards = self.guards.lock(array.key());
            let written = if mode.mapped {
                let free = guards.unguarded(array, chunk, mode.inode, parts);
                if !mode.is_flat {
                    self.add_stale(array.key(), false);
                }
                if free.is_empty() {
                    Ok(true)
                } else {
                    self.cache
                        .try_write_parts(array, chunk, &free, mode.creates)
                }
            } else {
                let stale = self.guard(&mut guards, array, chunk, parts, mode);
                let written = self
                    .cache
                    .try_write_parts(array, chunk, parts, mode.creates);
                match written {
                    Ok(true) => self.stale.borrow_mut().extend(stale),
                    _ => stale.iter().for_each(|stale| guards.remove(&stale.guards)),
                }
                written
            };
            drop(guards);
            if written? {
                return Ok(true);
            }
            if mode.wait == Wait::Never {
                return Ok(false);
            }
            self.cache.make_space(array)?;
        }
    }

    /// Guards a whole chunk that is about to be replaced against the pages of all files.
    pub(super) fn guard_chunk(&self, array: &Arc<Array>, chunk: ChunkId) {
        let whole = Ranges::from(0..array.grid().chunk_size(chunk));
        let mut guards = self.guards.lock(array.key());
        let flat = self.tree.flat_inode(array.key());
        let mut others = guards.other_writers(array.key(), 0);
        others.retain(|other| *other != flat);
        others.push(flat);
        for inode in others {
            let guards = vec![guards.add(array, chunk, inode, &whole)];
            self.stale.borrow_mut().push(StalePages {
                inode,
                is_awaited: inode == flat,
                guards,
            });
        }
    }

    /// Makes the kernel drop its pages of an array's `data.raw`: before the request is answered if
    /// `is_awaited`, else later.
    pub(super) fn add_stale(&self, array: &Key, is_awaited: bool) {
        self.add_stale_file(self.tree.flat_inode(array), is_awaited);
    }

    /// Makes the kernel drop its pages of a file, as [`ArrayWriter::add_stale`] does.
    pub(super) fn add_stale_file(&self, inode: u64, is_awaited: bool) {
        self.stale.borrow_mut().push(StalePages {
            inode,
            is_awaited,
            guards: Vec::new(),
        });
    }
}

/// Returns the part of `data` that fits before the end of a file of `size` bytes.
///
/// # Errors
///
/// EFBIG if nothing fits.
pub(super) fn clipped(offset: u64, data: &[u8], size: u64) -> Result<&[u8]> {
    let room = size.saturating_sub(offset).min(data.len() as u64) as usize;
    if data.is_empty() || room > 0 {
        Ok(&data[..room])
    } else {
        Err(Error::system(libc::EFBIG))
    }
}
