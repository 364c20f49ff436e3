//! Memory of decoded bytes. Every buffer counts until it is freed; one that is no longer used stays
//! idle for the next chunk of its size. Fresh memory costs a page fault for every 4 KiB, as much
//! time as decoding a fast codec.

use crate::array::Scratch;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use zarrfs_base::memory::lock;

/// Minimum size in bytes of buffers that are kept idle. The allocator reuses smaller ones.
const MIN_KEPT: usize = 64 << 10;

/// Maximum number of idle buffers: each load searches them.
const MAX_IDLE: usize = 256;

/// The memory of all buffers, and the idle ones among them.
#[derive(Default)]
pub struct Buffers {
    /// Bytes of all decoded chunks, idle buffers and idle scratch memory, and of accounts.
    bytes: AtomicUsize,
    /// Protects the idle scratch memory.
    scratch: Mutex<Vec<Scratch>>,
    /// Protects the idle buffers for the encoded bytes of several chunks.
    encoded: Mutex<Vec<Vec<u8>>>,
    /// Protects the idle buffers, the most recently used one last. Each keeps its former length.
    idle: Mutex<Vec<Vec<u8>>>,
    /// Bytes of all that is idle: buffers, scratch memory and buffers for encoded bytes.
    idle_bytes: AtomicUsize,
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

    /// Returns the bytes of the idle buffers and of idle scratch memory.
    pub fn idle(&self) -> usize {
        self.idle_bytes.load(Ordering::Relaxed)
    }

    /// Returns an idle buffer with a capacity of about `len` bytes and arbitrary content, or an
    /// empty one if there is none.
    pub fn take(&self, len: usize) -> Vec<u8> {
        let mut idle = lock(&self.idle);
        let found = idle
            .iter()
            .rposition(|buffer| fits(buffer, len))
            .map(|i| idle.swap_remove(i))
            .unwrap_or_default();
        self.count_taken(found.capacity());
        found
    }

    /// Counts `bytes` until they are dropped.
    pub fn hold(self: &Arc<Self>, bytes: Vec<u8>) -> Arc<Decoded> {
        self.bytes.fetch_add(bytes.capacity(), Ordering::Relaxed);
        Arc::new(Decoded {
            bytes,
            buffers: self.clone(),
        })
    }

    /// Returns an account of memory beside the buffers.
    pub fn account(self: &Arc<Self>) -> Account {
        Account {
            bytes: 0,
            buffers: self.clone(),
        }
    }

    /// Returns scratch memory, which is no longer counted here: the load has reserved as much.
    pub fn take_scratch(&self) -> Scratch {
        let scratch = lock(&self.scratch).pop().unwrap_or_default();
        self.count_taken(scratch.capacity());
        scratch
    }

    /// Keeps scratch memory for the next load.
    pub fn keep_scratch(&self, scratch: Scratch) {
        self.count_kept(scratch.capacity());
        lock(&self.scratch).push(scratch);
    }

    /// Returns a buffer for the encoded bytes of several chunks, which is no longer counted here.
    /// It may have any capacity.
    pub fn take_encoded(&self) -> Vec<u8> {
        let buffer = lock(&self.encoded).pop().unwrap_or_default();
        self.count_taken(buffer.capacity());
        buffer
    }

    /// Keeps a buffer for the encoded bytes of other chunks.
    pub fn keep_encoded(&self, buffer: Vec<u8>) {
        if buffer.capacity() > 0 {
            self.count_kept(buffer.capacity());
            lock(&self.encoded).push(buffer);
        }
    }

    /// Counts idle memory that a load begins to use, or that is freed.
    fn count_taken(&self, bytes: usize) {
        self.idle_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Counts scratch memory that becomes idle.
    fn count_kept(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.idle_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Frees an idle buffer or idle scratch memory. Returns false if there is none.
    pub fn free_idle(&self) -> bool {
        let buffer = lock(&self.idle).pop().map(|buffer| buffer.capacity());
        let freed = buffer
            .or_else(|| lock(&self.scratch).pop().map(|scratch| scratch.capacity()))
            .or_else(|| lock(&self.encoded).pop().map(|buffer| buffer.capacity()));
        self.count_taken(freed.unwrap_or_default());
        freed.is_some()
    }

    /// Keeps a buffer that is counted already, or frees it if it is small or there are many.
    fn keep_idle(&self, buffer: Vec<u8>) {
        let mut idle = lock(&self.idle);
        if buffer.capacity() < MIN_KEPT || idle.len() >= MAX_IDLE {
            self.bytes.fetch_sub(buffer.capacity(), Ordering::Relaxed);
        } else {
            self.idle_bytes
                .fetch_add(buffer.capacity(), Ordering::Relaxed);
            idle.push(buffer);
        }
    }
}

/// The account of memory that a chunk takes besides its bytes. The memory counts until the account
/// is dropped.
pub struct Account {
    bytes: usize,
    buffers: Arc<Buffers>,
}

impl Account {
    /// Sets the number of bytes that count.
    pub fn set(&mut self, bytes: usize) {
        let counted = &self.buffers.bytes;
        if bytes > self.bytes {
            counted.fetch_add(bytes - self.bytes, Ordering::Relaxed);
        } else {
            counted.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
        }
        self.bytes = bytes;
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// Returns whether an idle buffer can serve a request for `len` bytes.
fn fits(buffer: &Vec<u8>, len: usize) -> bool {
    (len..=len + len / 8 + 64).contains(&buffer.capacity())
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
        drop(buffers.hold(vec![1; 100_000]));
        assert!(buffers.free_idle() && !buffers.free_idle());
        assert_eq!(buffers.bytes(), 0);
    }

    #[test]
    fn scratch_memory_counts_while_it_is_idle() {
        let buffers = Arc::new(Buffers::default());
        buffers.keep_scratch(Scratch {
            stored: Vec::with_capacity(1000),
            ..Scratch::default()
        });
        buffers.keep_encoded(Vec::with_capacity(5000));
        buffers.keep_encoded(Vec::new());
        assert_eq!((buffers.bytes(), buffers.idle()), (6000, 6000));
        // the load that uses it has reserved as much
        let scratch = buffers.take_scratch();
        let encoded = buffers.take_encoded();
        assert_eq!(
            (
                scratch.capacity(),
                encoded.capacity(),
                buffers.bytes(),
                buffers.idle()
            ),
            (1000, 5000, 0, 0)
        );
        buffers.keep_scratch(scratch);
        buffers.keep_encoded(encoded);
        assert!(buffers.free_idle() && buffers.free_idle() && !buffers.free_idle());
        assert_eq!((buffers.bytes(), buffers.idle()), (0, 0));
    }
}
