//! Shared memory maps of files in a mount, as mmap(2) gives them to programs.

use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use std::fs::File;

/// A shared map of a whole file. Dropping it unmaps the file, but does not wait until its pages are
/// written.
pub struct SharedMap {
    start: *mut u8,
    len: usize,
}

// SAFETY: a map is valid in every thread, and a test does not share one between threads.
unsafe impl Send for SharedMap {}

impl SharedMap {
    /// Maps a file that is open for reading and writing.
    pub fn new(file: &File) -> SharedMap {
        SharedMap::with_access(file, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Maps a file that is open for reading. [`SharedMap::set`] and [`SharedMap::write`] must not
    /// be called.
    pub fn read_only(file: &File) -> SharedMap {
        SharedMap::with_access(file, ProtFlags::READ)
    }

    fn with_access(file: &File, access: ProtFlags) -> SharedMap {
        let len = file.metadata().unwrap().len() as usize;
        // SAFETY: the kernel chooses an address where nothing else is mapped.
        let start =
            unsafe { mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, file, 0) }.unwrap();
        SharedMap {
            start: start.cast(),
            len,
        }
    }

    /// Reads one byte.
    pub fn get(&self, at: usize) -> u8 {
        assert!(at < self.len);
        // SAFETY: the byte lies in the map.
        unsafe { self.start.add(at).read_volatile() }
    }

    /// Returns a copy of all bytes.
    pub fn bytes(&self) -> Vec<u8> {
        // SAFETY: `len` bytes are mapped there, and no reference to them outlives this line.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }.to_vec()
    }

    /// Writes one byte.
    pub fn set(&self, at: usize, value: u8) {
        assert!(at < self.len);
        // SAFETY: the byte lies in the map, which is writable.
        unsafe { self.start.add(at).write_volatile(value) }
    }

    /// Writes bytes at an offset.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        // SAFETY: the bytes lie in the map, which is writable, and `bytes` is other memory.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(at), bytes.len()) }
    }

    /// Waits until the kernel has written the changed pages.
    pub fn sync(&self) {
        // SAFETY: start and length are those of the map.
        unsafe { msync(self.start.cast(), self.len, MsyncFlags::SYNC) }.unwrap();
    }
}

impl Drop for SharedMap {
    fn drop(&mut self) {
        // SAFETY: start and length are those of the map, and no reference to its bytes is left.
        unsafe { munmap(self.start.cast(), self.len) }.unwrap();
    }
}
