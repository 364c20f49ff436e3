//! Memory of decoded bytes: every buffer counts until it is given back to the system, and one that is no longer used
//! waits for the next chunk of its size. Fresh memory costs a page fault for every 4 KiB, as much as decoding a fast
//! codec.

use crate::array::Scratch;
use crate::error::Result;
use crate::util::memory::{self, lock};
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Buffers below this are left to the allocator, which has them at hand, in bytes.
const SMALL: usize = 64 << 10;

/// Buffers that wait at most: each load looks through them.
const MANY: usize = 256;

/// Buffers of a length that was asked for which should wait: it takes as long to get one ready as to use one.
const SPARE: usize = 2;

const PAGE: usize = 4096;

/// What all buffers share.
#[derive(Default)]
pub struct Buffers {
    /// Bytes of all chunks alive and of all buffers that wait.
    bytes: AtomicUsize,
    /// The length that was asked for last when hardly any waited; 0 if that was seen to.
    wanted: AtomicUsize,
    /// Protects the scratch memory that waits for the next load.
    scratch: Mutex<Vec<Scratch>>,
    /// Protects the buffers that wait, the last one given back first, and their bytes. Each is as long as what was in it.
    waiting: Mutex<(Vec<Vec<u8>>, usize)>,
}

/// Decoded bytes: a chunk, or a part of one, C layout.
pub struct Decoded {
    bytes: Vec<u8>,
    buffers: Arc<Buffers>,
}

impl Buffers {
    /// Bytes in use or waiting.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Bytes of the buffers that wait.
    pub fn waiting(&self) -> usize {
        lock(&self.waiting).1
    }

    /// A buffer with room for `len` bytes, with anything in it; an empty one if none of the right size waits.
    pub fn take(&self, len: usize) -> Vec<u8> {
        let mut waiting = lock(&self.waiting);
        let fits = |b: &Vec<u8>| b.capacity() >= len && b.capacity() <= len + len / 8 + 64;
        let found = waiting.0.iter().rposition(fits).map(|i| waiting.0.swap_remove(i)).unwrap_or_default();
        waiting.1 -= found.capacity();
        if len >= SMALL && waiting.0.iter().rev().filter(|b| fits(b)).take(SPARE).count() < SPARE {
            self.wanted.store(len, Ordering::Relaxed);
        }
        self.bytes.fetch_sub(found.capacity(), Ordering::Relaxed);
        found
    }

    /// The length of a buffer that will be asked for; None if enough of them wait.
    pub fn wanted(&self) -> Option<usize> {
        Some(self.wanted.swap(0, Ordering::Relaxed)).filter(|&len| len > 0)
    }

    /// Has a buffer of `len` bytes wait whose pages are there already: to fault them in takes as long as decoding.
    pub fn prepare(&self, len: usize) -> Result<()> {
        let mut buffer = memory::zeroed(len + 1)?;
        for page in buffer.chunks_mut(PAGE) {
            // a page of zeros would be shared until it is written
            page[0] = 1;
        }
        buffer.truncate(len);
        self.bytes.fetch_add(buffer.capacity(), Ordering::Relaxed);
        self.wait(buffer);
        Ok(())
    }

    /// Makes `bytes` count.
    pub fn hold(self: &Arc<Self>, bytes: Vec<u8>) -> Arc<Decoded> {
        self.bytes.fetch_add(bytes.capacity(), Ordering::Relaxed);
        Arc::new(Decoded { bytes, buffers: self.clone() })
    }

    /// Scratch memory for a load that has reserved as much; it doesn't count as long as that lasts.
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

    /// Gives waiting memory back to the system; false if there is none.
    pub fn give_back(&self) -> bool {
        let mut waiting = lock(&self.waiting);
        let Some(buffer) = waiting.0.pop() else {
            let scratch = lock(&self.scratch).pop();
            self.bytes.fetch_sub(scratch.as_ref().map_or(0, Scratch::capacity), Ordering::Relaxed);
            return scratch.is_some();
        };
        waiting.1 -= buffer.capacity();
        self.bytes.fetch_sub(buffer.capacity(), Ordering::Relaxed);
        true
    }

    /// Has a buffer that counts already wait, unless it is small or there are many.
    fn wait(&self, buffer: Vec<u8>) {
        let mut waiting = lock(&self.waiting);
        if buffer.capacity() < SMALL || waiting.0.len() >= MANY {
            self.bytes.fetch_sub(buffer.capacity(), Ordering::Relaxed);
        } else {
            waiting.1 += buffer.capacity();
            waiting.0.push(buffer);
        }
    }
}

impl Decoded {
    /// The bytes, to be written by who holds them alone.
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
        self.buffers.wait(std::mem::take(&mut self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_counts_until_it_is_given_back() {
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
        buffers.prepare(70_000).unwrap();
        assert_eq!((buffers.bytes(), buffers.take(70_000).len()), (70_001, 70_000));
        drop(buffers.hold(vec![1; 100_000]));
        assert!(buffers.give_back() && !buffers.give_back());
        assert_eq!(buffers.bytes(), 0);
    }
}
