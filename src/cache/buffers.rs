//! Memory of decoded bytes. Every buffer counts until it is freed; one that is no longer used stays idle for the next chunk
//! of its size. Fresh memory costs a page fault for every 4 KiB, as much time as decoding a fast codec.

use crate::array::Scratch;
use crate::error::Result;
use crate::util::memory::{self, lock};
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Minimum size in bytes of buffers that are kept idle. The allocator reuses smaller ones.
const MIN_KEPT: usize = 64 << 10;

/// Maximum number of idle buffers: each load searches them.
const MAX_IDLE: usize = 256;

/// Idle buffers kept per size class. Faulting one in takes as long as using one.
const SPARE: usize = 2;

const PAGE: usize = 4096;

/// Counts the memory of all buffers, and keeps the idle ones.
#[derive(Default)]
pub struct Buffers {
    /// Bytes of all decoded chunks, idle buffers and idle scratch memory.
    bytes: AtomicUsize,
    /// The length that was requested last when too few buffers were idle; 0 once that was refilled.
    wanted: AtomicUsize,
    /// Protects the idle scratch memory.
    scratch: Mutex<Vec<Scratch>>,
    /// Protects the idle buffers, the last one returned last, and their bytes. Each keeps its former length.
    idle: Mutex<(Vec<Vec<u8>>, usize)>,
}

/// Decoded bytes of a chunk or a part of one, C layout.
pub struct Decoded {
    bytes: Vec<u8>,
    buffers: Arc<Buffers>,
}

impl Buffers {
    /// Returns the bytes in use or idle.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the bytes of the idle buffers.
    pub fn idle(&self) -> usize {
        lock(&self.idle).1
    }

    /// Returns an idle buffer with a capacity of about `len` bytes and arbitrary content, or an empty one if there is none.
    pub fn take(&self, len: usize) -> Vec<u8> {
        let mut idle = lock(&self.idle);
        let fits = |b: &Vec<u8>| b.capacity() >= len && b.capacity() <= len + len / 8 + 64;
        let found = idle.0.iter().rposition(fits).map(|i| idle.0.swap_remove(i)).unwrap_or_default();
        idle.1 -= found.capacity();
        if len >= MIN_KEPT && idle.0.iter().rev().filter(|b| fits(b)).take(SPARE).count() < SPARE {
            self.wanted.store(len, Ordering::Relaxed);
        }
        self.bytes.fetch_sub(found.capacity(), Ordering::Relaxed);
        found
    }

    /// Takes the length of a buffer that will be requested; `None` if enough of them are idle.
    pub fn wanted(&self) -> Option<usize> {
        Some(self.wanted.swap(0, Ordering::Relaxed)).filter(|&len| len > 0)
    }

    /// Adds an idle buffer of `len` bytes whose pages are present: faulting them in takes as long as decoding.
    ///
    /// # Errors
    ///
    /// ENOMEM without the memory.
    pub fn refill(&self, len: usize) -> Result<()> {
        let mut buffer = memory::zeroed(len + 1)?;
        for page in buffer.chunks_mut(PAGE) {
            // a page of zeros would be shared until it is written
            page[0] = 1;
        }
        buffer.truncate(len);
        self.bytes.fetch_add(buffer.capacity(), Ordering::Relaxed);
        self.keep_idle(buffer);
        Ok(())
    }

    /// Counts `bytes` until they are dropped.
    pub fn hold(self: &Arc<Self>, bytes: Vec<u8>) -> Arc<Decoded> {
        self.bytes.fetch_add(bytes.capacity(), Ordering::Relaxed);
        Arc::new(Decoded { bytes, buffers: self.clone() })
    }

    /// Returns scratch memory for a load that has reserved as much: it does not count twice.
    pub fn take_scratch(&self) -> Scratch {
        let scratch = lock(&self.scratch).pop().unwrap_or_default();
        self.bytes.fetch_sub(scratch.capacity(), Ordering::Relaxed);
        scratch
    }

    /// Keeps scratch memory for the next load.
    pub fn keep_scratch(&self, scratch: Scratch) {
        self.bytes.fetch_add(scratch.capacity(), Ordering::Relaxed);
        lock(&self.scratch).push(scratch);
    }

    /// Frees an idle buffer or idle scratch memory. Returns false if there is none.
    pub fn free_idle(&self) -> bool {
        let mut idle = lock(&self.idle);
        let Some(buffer) = idle.0.pop() else {
            let scratch = lock(&self.scratch).pop();
            self.bytes.fetch_sub(scratch.as_ref().map_or(0, Scratch::capacity), Ordering::Relaxed);
            return scratch.is_some();
        };
        idle.1 -= buffer.capacity();
        self.bytes.fetch_sub(buffer.capacity(), Ordering::Relaxed);
        true
    }

    /// Keeps a buffer that is counted already, or frees it if it is small or there are many.
    fn keep_idle(&self, buffer: Vec<u8>) {
        let mut idle = lock(&self.idle);
        if buffer.capacity() < MIN_KEPT || idle.0.len() >= MAX_IDLE {
            self.bytes.fetch_sub(buffer.capacity(), Ordering::Relaxed);
        } else {
            idle.1 += buffer.capacity();
            idle.0.push(buffer);
        }
    }
}

impl Decoded {
    /// Returns the bytes of a chunk that no other thread holds.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Deref for Decoded {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Decoded {
    fn drop(&mut self) {
        self.buffers.keep_idle(std::mem::take(&mut self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_counts_until_it_is_freed() {
        let buffers = Arc::new(Buffers::default());
        let chunk = buffers.hold(vec![1; 100_000]);
        let small = buffers.hold(vec![1; 10]);
        assert_eq!(buffers.bytes(), 100_010);
        drop((chunk, small));
        assert_eq!(buffers.bytes(), 100_000);
        assert_eq!(buffers.take(70_000).capacity(), 0, "much too large");
        assert_eq!(buffers.take(99_000).len(), 100_000);
        assert_eq!(buffers.bytes(), 0);
        assert_eq!((buffers.wanted(), buffers.wanted()), (Some(99_000), None));
        buffers.refill(70_000).unwrap();
        assert_eq!((buffers.bytes(), buffers.take(70_000).len()), (70_001, 70_000));
        drop(buffers.hold(vec![1; 100_000]));
        assert!(buffers.free_idle() && !buffers.free_idle());
        assert_eq!(buffers.bytes(), 0);
    }
}
