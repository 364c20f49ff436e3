//! The allocator of the program. Large blocks begin at pages, since copies between blocks that begin at different
//! places of a page take up to twice as long. Blocks of 2 MiB and more lie where huge pages can hold them: the kernel
//! provides one in a fraction of the time that its 512 small ones take. All other blocks come from the system's
//! allocator. The module does not know what the memory holds.

use rustix::mm::{self, Advice, MapFlags, MremapFlags, ProtFlags};
use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::{null_mut, with_exposed_provenance_mut};

/// The size of a huge page in bytes. On machines with other sizes, blocks are only aligned more than they need.
const HUGE: usize = 2 << 20;

/// Minimum size in bytes of blocks that are mapped, as in the system's allocator.
const MIN_MAPPED: usize = 256 << 10;

/// An allocator that maps large blocks at pages, and blocks of at least 2 MiB at multiples of 2 MiB.
///
/// A huge page never reaches beyond its block, so a block takes no more memory than its size, rounded up to a page.
pub struct HugePages;

/// Returns whether blocks of this layout are mapped. They are unmapped by the same rule.
fn is_mapped(layout: Layout) -> bool {
    layout.size() >= MIN_MAPPED && layout.align() <= rustix::param::page_size()
}

/// Maps a block of `len` zero bytes. Returns null without memory.
fn map(len: usize) -> *mut u8 {
    // a longer mapping has a multiple of a huge page at which the block can begin
    let more = if len >= HUGE { HUGE } else { 0 };
    let len = len.checked_next_multiple_of(rustix::param::page_size());
    let Some((len, mapped)) = len.and_then(|len| Some((len, len.checked_add(more)?))) else { return null_mut() };
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses touches no other memory.
    let Ok(start) = (unsafe { mm::mmap_anonymous(null_mut(), mapped, access, MapFlags::PRIVATE) }) else {
        return null_mut();
    };
    let (start, end) = (start.addr(), start.addr() + mapped);
    let block = if more > 0 { start.next_multiple_of(HUGE) } else { start };
    for (from, to) in [(start, block), (block + len, end)] {
        if from < to {
            // SAFETY: the range lies in the new mapping, outside the block, so nothing refers to it. If the kernel
            // refuses, the range stays mapped and takes no memory, since nothing touches it.
            let _ = unsafe { mm::munmap(with_exposed_provenance_mut(from), to - from) };
        }
    }
    let block = with_exposed_provenance_mut(block);
    if more > 0 {
        // SAFETY: the range lies in the new mapping. The advice changes no content; a kernel without huge pages
        // refuses it.
        let _ = unsafe { mm::madvise(block, len / HUGE * HUGE, Advice::LinuxHugepage) };
    }
    block.cast()
}

// SAFETY: `map` returns null or a new block of at least the requested size, aligned to a page, which stays mapped until
// `dealloc`. The rule `is_mapped` depends on the layout alone, which is the same when the block is freed.
unsafe impl GlobalAlloc for HugePages {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match is_mapped(layout) {
            true => map(layout.size()),
            // SAFETY: the caller keeps the contract of `alloc`.
            false => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match is_mapped(layout) {
            true => map(layout.size()),
            // SAFETY: the caller keeps the contract of `alloc_zeroed`.
            false => unsafe { System.alloc_zeroed(layout) },
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if is_mapped(layout) {
            let len = layout.size().next_multiple_of(rustix::param::page_size());
            // SAFETY: `map` made this block with this length, and the caller no longer uses it.
            let unmapped = unsafe { mm::munmap(block.cast(), len) };
            // the kernel refuses only if the process has too many mappings; then the block stays mapped
            debug_assert!(unmapped.is_ok(), "{unmapped:?}");
        } else {
            // SAFETY: the block came from `System`, with this layout.
            unsafe { System.dealloc(block, layout) }
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller guarantees that the size, rounded up to the alignment, does not overflow.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        if !is_mapped(layout) && !is_mapped(new) {
            // SAFETY: the block came from `System`, with this layout.
            return unsafe { System.realloc(block, layout, size) };
        }
        if is_mapped(layout) && is_mapped(new) && layout.size().max(size) < HUGE {
            let [from, to] = [layout.size(), size].map(|len| len.next_multiple_of(rustix::param::page_size()));
            // SAFETY: `map` made this block with the length `from`, and the caller uses only the returned block.
            let moved = unsafe { mm::mremap(block.cast(), from, to, MremapFlags::MAYMOVE) };
            return moved.map_or(null_mut(), |moved| moved.cast());
        }
        // SAFETY: the new layout is valid, and its size is not zero.
        let moved = unsafe { self.alloc(new) };
        if !moved.is_null() {
            // SAFETY: both blocks have at least that many bytes, and a new block overlaps no other.
            unsafe { block.copy_to_nonoverlapping(moved, layout.size().min(size)) };
            // SAFETY: the caller passes a block of this layout, and no longer uses it.
            unsafe { self.dealloc(block, layout) };
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn layout(size: usize) -> Layout {
        Layout::from_size_align(size, 1).unwrap()
    }

    #[test]
    fn blocks_larger_than_the_address_space_are_refused() {
        for size in [isize::MAX as usize, isize::MAX as usize - HUGE, 1 << 62] {
            // SAFETY: the size is not zero, and the result is not used.
            assert!(unsafe { HugePages.alloc(layout(size)) }.is_null());
        }
    }

    fn any_size() -> impl Strategy<Value = usize> {
        let around = |size: usize| size - 5000..size + 5000;
        prop_oneof![1..10_000usize, around(MIN_MAPPED), around(2 * MIN_MAPPED), around(HUGE), around(2 * HUGE)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Blocks keep their bytes while they grow and shrink over the boundary between the two allocators, and a
        /// block of `alloc_zeroed` is zero.
        #[test]
        fn blocks_keep_their_bytes(
            sizes in proptest::collection::vec(any_size(), 1..8)
        ) {
            let (mut at, pattern) = (layout(sizes[0]), |i: usize| (i % 251) as u8);
            // SAFETY: each block is used within its size and freed once, with its layout.
            unsafe {
                let mut block = HugePages.alloc_zeroed(at);
                prop_assert!(std::slice::from_raw_parts(block, at.size()).iter().all(|&byte| byte == 0));
                for size in sizes {
                    let kept = at.size().min(size);
                    (0..at.size()).for_each(|i| block.add(i).write(pattern(i)));
                    block = HugePages.realloc(block, at, size);
                    at = layout(size);
                    let bytes = std::slice::from_raw_parts(block, kept);
                    prop_assert!(bytes.iter().enumerate().all(|(i, &byte)| byte == pattern(i)));
                    prop_assert!(size < HUGE || block.addr() % HUGE == 0);
                }
                HugePages.dealloc(block, at);
            }
        }
    }
}
