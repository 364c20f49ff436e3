//! Reads of `dataset.nc` in blocks. The kernel divides a read of more than [`REQUEST`] bytes into
//! requests. If a later request fails, the program gets a short read, and NetCDF-C 4.9.0 takes the
//! missing bytes for zeros (`px_pgin` in posixio.c) without an error.
//!
//! Invariant: the first request of a read fails if a later one will. NetCDF-C reads at most one
//! block at a time, so this module looks no further than the end of the block.

use super::CompositeFile;
use crate::array::Array;
use crate::cache::{FoundBytes, Wait};
use crate::fs::Fs;
use crate::fs::tree::Node;
use lru::LruCache;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use zarrfs_base::error::Result;
use zarrfs_base::memory::{self, Grant, Reclaim, lock};
use zarrfs_export::{GroupFormat, READER_BLOCK};

/// Size in bytes of the smallest request that can begin a longer read: 1 MiB, less the offset of
/// the buffer of a program in its page.
const REQUEST: usize = (1 << 20) - 4095;

/// Maximum number of blocks whose bytes are kept for the next requests.
const KEPT: NonZeroUsize = NonZeroUsize::new(4).unwrap();

/// The rests of blocks in memory, of all open files.
pub struct LoadedBlocks {
    /// Bytes by a number. The lock protects the map alone.
    bytes: Mutex<LruCache<u64, Arc<LoadedBytes>>>,
    last: AtomicU64,
}

/// Bytes, and the grant for their memory.
struct LoadedBytes {
    bytes: Vec<u8>,
    _memory: Grant,
}

/// The rest of a block after the first request of a read. The next requests get its bytes, or read
/// them anew if they are no longer in memory.
pub(super) struct LoadedRest {
    /// The offsets that no request has read yet.
    range: Range<u64>,
    /// The number of the bytes up to the end of the range.
    number: u64,
    blocks: Arc<LoadedBlocks>,
    /// The arrays with values in the range, each with the index of its part and its number of
    /// writes before the load.
    arrays: Vec<(usize, Arc<Array>, u64)>,
}

impl LoadedBlocks {
    /// Creates an empty cache.
    pub fn new() -> Arc<Self> {
        let blocks = Arc::new(LoadedBlocks {
            bytes: Mutex::new(LruCache::new(KEPT)),
            last: AtomicU64::default(),
        });
        memory::register(&blocks);
        blocks
    }

    /// Keeps bytes, and returns their number.
    fn keep(&self, bytes: Vec<u8>, memory: Grant) -> u64 {
        let number = self.last.fetch_add(1, Ordering::Relaxed);
        if !bytes.is_empty() {
            let loaded = Arc::new(LoadedBytes {
                bytes,
                _memory: memory,
            });
            let displaced = lock(&self.bytes).push(number, loaded);
            drop(displaced);
        }
        number
    }

    /// Copies `wanted` bytes from `left` bytes before the end. Returns `false` if they are not kept
    /// any more.
    fn copy(&self, number: u64, left: usize, wanted: usize, out: &mut Vec<u8>) -> bool {
        let Some(loaded) = lock(&self.bytes).get(&number).cloned() else {
            return false;
        };
        let from = loaded.bytes.len() - left;
        out.clear();
        out.extend_from_slice(&loaded.bytes[from..from + wanted]);
        true
    }
}

impl Reclaim for LoadedBlocks {
    fn reclaim(&self) {
        let kept = std::mem::replace(&mut *lock(&self.bytes), LruCache::new(KEPT));
        drop(kept);
    }
}

impl Drop for LoadedRest {
    fn drop(&mut self) {
        let bytes = lock(&self.blocks.bytes).pop(&self.number);
        drop(bytes);
    }
}

impl CompositeFile {
    /// Reads a request that continues an earlier one in its block. If it begins a longer read, the
    /// rest of the block is loaded first. Returns `None` if the request is to be read by itself.
    ///
    /// # Errors
    ///
    /// The error of the first byte of the block, after the request, that cannot be read.
    pub(super) fn read_in_block(
        &self,
        fs: &Fs,
        (offset, len): (u64, usize),
        wait: Wait,
        out: &mut Vec<u8>,
    ) -> Result<Option<FoundBytes>> {
        let end = offset.saturating_add(len as u64).min(self.size());
        let block_end = (offset / READER_BLOCK + 1).saturating_mul(READER_BLOCK);
        let block_end = block_end.min(self.size());
        let Some(mut loaded) = wait.lock(&self.loaded) else {
            return Ok(Some(FoundBytes::MustWait));
        };
        if let Some(rest) = loaded
            .as_mut()
            .filter(|rest| rest.range.contains(&offset) && end <= rest.range.end)
            .filter(|rest| self.is_current(rest))
        {
            let left = (rest.range.end - offset) as usize;
            let wanted = (end - offset) as usize;
            let found = rest.blocks.copy(rest.number, left, wanted, out);
            rest.range.start = end;
            if rest.range.is_empty() {
                *loaded = None;
            }
            return Ok(found.then_some(FoundBytes::Copied));
        }
        drop(loaded);
        if len < REQUEST || end >= block_end {
            return Ok(None);
        }
        if wait == Wait::Never {
            return Ok(Some(FoundBytes::MustWait));
        }
        let rest = self.load_rest(fs, end..block_end, len, out)?;
        if let Some(mut loaded) = wait.lock(&self.loaded) {
            *loaded = Some(rest);
        }
        Ok(None)
    }

    /// Reads a range of the file, at most `step` bytes at a time. `piece` is a buffer.
    fn load_rest(
        &self,
        fs: &Fs,
        range: Range<u64>,
        step: usize,
        piece: &mut Vec<u8>,
    ) -> Result<LoadedRest> {
        let len = (range.end - range.start) as usize;
        let mut arrays = Vec::new();
        for slice in self.slices(range.start, len) {
            if let Some(of) = self.flat_of(fs, slice.number, Wait::Allowed)? {
                let array = of.flat.array.known();
                let writes = array.freshness().writes();
                arrays.push((slice.number, array, writes));
            }
        }
        // a file open for writing may show items that were written in part
        let memory = memory::take_within(len, Duration::ZERO).ok();
        let memory = memory.filter(|_| !self.writable);
        let mut bytes = Vec::with_capacity(memory.as_ref().map_or(0, Grant::bytes));
        for at in range.clone().step_by(step) {
            let len = step.min((range.end - at) as usize);
            let slices = self.slices(at, len);
            let found = self.read_slices(fs, &slices, (at, len), Wait::Allowed, piece)?;
            if memory.is_some() {
                bytes.extend_from_slice(found.bytes(piece));
            }
        }
        let blocks = fs.loaded_blocks.clone();
        Ok(LoadedRest {
            range,
            number: blocks.keep(bytes, memory.unwrap_or_default()),
            blocks,
            arrays,
        })
    }

    /// Returns whether no array was written or replaced since its bytes were loaded.
    fn is_current(&self, rest: &LoadedRest) -> bool {
        rest.arrays.iter().all(|(number, array, writes)| {
            let flat = self.flat.get(*number).and_then(OnceLock::get);
            let is_same = flat.is_some_and(|flat| Arc::ptr_eq(&flat.array.known(), array));
            is_same && !array.is_superseded() && array.freshness().writes() == *writes
        })
    }
}

/// Returns whether programs may take short reads of a file for zeros. The kernel must not keep its
/// pages, because a read of pages is short at the first page that cannot be read.
pub(super) fn is_read_in_blocks(node: &Node) -> bool {
    matches!(node.container(), Some((_, GroupFormat::Netcdf)))
}
