//! An allocator that counts what each thread allocates.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

pub struct CountingAllocator;

thread_local! {
    /// The bytes that the thread has allocated and not freed, and their maximum.
    static COUNTS: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

fn count(bytes: isize) {
    let _ = COUNTS.try_with(|counts| {
        let (now, peak) = counts.get();
        counts.set((now + bytes, peak.max(now + bytes)));
    });
}

// SAFETY: every call goes to the system's allocator, unchanged; the counts allocate nothing.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise is the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise is the system's.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promise is the system's.
        unsafe { System.dealloc(block, layout) }
    }
}

/// Returns the maximum of the bytes that `work` has allocated at a time on this thread, and its
/// result.
pub fn peak_of<T>(work: impl FnOnce() -> T) -> (usize, T) {
    let (before, _) = COUNTS.get();
    COUNTS.set((before, before));
    let done = work();
    (usize::try_from(COUNTS.get().1 - before).unwrap_or(0), done)
}
