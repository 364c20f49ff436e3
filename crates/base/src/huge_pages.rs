//! The allocator of the program. Large blocks begin at pages, since copies between blocks that
//! begin at different places of a page take up to twice as long. Blocks of 2 MiB and more lie where
//! huge pages can hold them: the kernel provides one in a fraction of the time that its 512 small
//! ones take. A few freed blocks of usual lengths are used again. All other blocks come from the
//! system's allocator. The module does not know what the memory holds.

use rustix::mm::{self, Advice, MapFlags, MremapFlags, ProtFlags};
use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The size of a huge page in bytes. On machines with other sizes, blocks are only aligned more
/// than they need.
const HUGE: usize = 2 << 20;

/// Minimum size in bytes of blocks that are mapped.
const MIN_MAPPED: usize = 256 << 10;

/// Maximum size in bytes of freed blocks that are kept. HTTP clients receive bodies into blocks of
/// up to this size, one after another. On a virtual machine, 512 KiB are copied into a new block in
/// 250 µs, and into a kept one in 5 µs. The cache recycles its own, larger buffers.
const MAX_KEPT: usize = 512 << 10;

/// Number of freed blocks that the list keeps.
const KEPT_BLOCKS: usize = 8;

/// The size in bytes of the blocks of zeros that are partly put into memory at once; 0 stands for
/// no such blocks.
static POPULATED_BLOCK: AtomicUsize = AtomicUsize::new(0);

/// The number of bytes of such a block that are put into memory.
static POPULATED_PART: AtomicUsize = AtomicUsize::new(0);

/// Puts the first `part` bytes of each block of `size` zero bytes into memory when it is allocated.
/// The kernel fails a request whose buffer is not in memory if the process is killed while it takes
/// the request.
pub fn populate(size: usize, part: usize) {
    POPULATED_PART.store(part, Ordering::Relaxed);
    POPULATED_BLOCK.store(size, Ordering::Release);
}

/// The addresses and lengths of freed blocks, the latest first. A length of zero means no block.
type KeptBlocks = [(usize, usize); KEPT_BLOCKS];

/// Protects the kept blocks. No thread waits for it.
static KEPT: Mutex<KeptBlocks> = Mutex::new([(0, 0); KEPT_BLOCKS]);

/// An allocator that maps large blocks at pages, and blocks of at least 2 MiB at multiples of 2
/// MiB.
///
/// A huge page never reaches beyond its block, so a block takes no more memory than its size,
/// rounded up to a page.
pub struct HugePages;

/// Returns whether blocks of this layout are mapped. They are unmapped by the same rule.
fn is_mapped(layout: Layout) -> bool {
    layout.size() >= MIN_MAPPED && layout.align() <= rustix::param::page_size()
}

/// Returns the length of the mapping of a block of `size` bytes.
fn mapped_len(size: usize) -> usize {
    size.next_multiple_of(rustix::param::page_size())
}

/// Returns a block of `len` bytes with any content, one that was kept or a new one. Returns null
/// without memory.
fn take(len: usize) -> *mut u8 {
    if len <= MAX_KEPT
        && let Ok(mut kept) = KEPT.try_lock()
        && let Some(block) = kept.iter_mut().find(|block| block.1 == mapped_len(len))
    {
        return with_exposed_provenance_mut(std::mem::take(block).0);
    }
    map(len)
}

/// Keeps a freed block. Returns the block to unmap instead: the one that was kept for the longest
/// time, or this one.
fn keep(block: (usize, usize)) -> (usize, usize) {
    let (true, Ok(mut kept)) = (block.1 <= MAX_KEPT, KEPT.try_lock()) else {
        return block;
    };
    kept.rotate_right(1);
    std::mem::replace(&mut kept[0], block)
}

/// Maps a block of `len` zero bytes. Returns null without memory.
fn map(len: usize) -> *mut u8 {
    // a longer mapping has a multiple of a huge page at which the block can begin
    let more = if len >= HUGE { HUGE } else { 0 };
    let len = len.checked_next_multiple_of(rustix::param::page_size());
    let Some((len, mapped)) = len.and_then(|len| Some((len, len.checked_add(more)?))) else {
        return null_mut();
    };
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses touches no other memory.
    let Ok(start) = (unsafe { mm::mmap_anonymous(null_mut(), mapped, access, MapFlags::PRIVATE) })
    else {
        return null_mut();
    };
    let (start, end) = (start.addr(), start.addr() + mapped);
    let block = if more > 0 {
        start.next_multiple_of(HUGE)
    } else {
        start
    };
    for (from, to) in [(start, block), (block + len, end)] {
        if from < to {
            // SAFETY: the range lies in the new mapping, outside the block, so nothing refers to
            // it. If the kernel refuses, the range stays mapped and takes no memory, since nothing
            // touches it.
            let _ = unsafe { mm::munmap(with_exposed_provenance_mut(from), to - from) };
        }
    }
    let block = with_exposed_provenance_mut(block);
    if more > 0 {
        // SAFETY: the range lies in the new mapping. The advice changes no content; a kernel
        // without huge pages refuses it.
        let _ = unsafe { mm::madvise(block, len / HUGE * HUGE, Advice::LinuxHugepage) };
    }
    block.cast()
}

// SAFETY: `take` and `map` return null or a block of at least the requested size, aligned to a
// page, which stays mapped until it is freed. A freed block that is kept has the requested length,
// and only one caller takes it. The rule `is_mapped` depends on the layout alone, which is the same
// when the block is freed.
unsafe impl GlobalAlloc for HugePages {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_mapped(layout) {
            take(layout.size())
        } else {
            // SAFETY: the caller keeps the contract of `alloc`.
            unsafe { System.alloc(layout) }
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_mapped(layout) {
            let block = map(layout.size());
            if layout.size() == POPULATED_BLOCK.load(Ordering::Acquire) && !block.is_null() {
                let part = POPULATED_PART.load(Ordering::Relaxed).min(layout.size());
                // SAFETY: the range lies in the new mapping, and its content stays. An old kernel
                // refuses.
                let _ = unsafe { mm::madvise(block.cast(), part, Advice::LinuxPopulateWrite) };
            }
            block
        } else {
            // SAFETY: the caller keeps the contract of `alloc_zeroed`.
            unsafe { System.alloc_zeroed(layout) }
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if is_mapped(layout) {
            let (block, len) = keep((block.expose_provenance(), mapped_len(layout.size())));
            if len == 0 {
                return;
            }
            // SAFETY: `map` made this block with this length, and neither a caller nor the list
            // uses it any more.
            let unmapped = unsafe { mm::munmap(with_exposed_provenance_mut(block), len) };
            // the kernel refuses only if the process has too many mappings; then the block stays
            // mapped
            debug_assert!(unmapped.is_ok(), "{unmapped:?}");
        } else {
            // SAFETY: the block came from `System`, with this layout.
            unsafe { System.dealloc(block, layout) }
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller guarantees that the size, rounded up to the alignment, does not
        // overflow.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        if !is_mapped(layout) && !is_mapped(new) {
            // SAFETY: the block came from `System`, with this layout.
            return unsafe { System.realloc(block, layout, size) };
        }
        if is_mapped(layout) && is_mapped(new) && layout.size().max(size) < HUGE {
            let [from, to] = [layout.size(), size].map(mapped_len);
            // SAFETY: `map` made this block with the length `from`, and the caller uses only the
            // returned block.
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
        prop_oneof![
            1..10_000usize,
            around(MIN_MAPPED),
            around(2 * MIN_MAPPED),
            around(HUGE),
            around(2 * HUGE)
        ]
    }

    #[test]
    fn freed_blocks_are_used_again_by_one_caller_each() {
        // no other test allocates this length
        let at = layout(MIN_MAPPED + 3 * 4096 + 1);
        // SAFETY: each block is freed once, with its layout, and not used.
        unsafe {
            let blocks = [0; 2].map(|_| HugePages.alloc(at));
            blocks
                .iter()
                .for_each(|&block| HugePages.dealloc(block, at));
            let again = [0; 3].map(|_| HugePages.alloc(at));
            assert!(again[0] != again[1] && again[1] != again[2] && again[0] != again[2]);
            let zeroed = HugePages.alloc_zeroed(at);
            assert!(
                std::slice::from_raw_parts(zeroed, at.size())
                    .iter()
                    .all(|&byte| byte == 0)
            );
            again
                .into_iter()
                .chain([zeroed])
                .for_each(|block| HugePages.dealloc(block, at));
            // more blocks than the list keeps
            let many = [0; 2 * KEPT_BLOCKS].map(|_| HugePages.alloc(at));
            many.iter().for_each(|&block| HugePages.dealloc(block, at));
            let kept = KEPT.lock().unwrap();
            let kept: Vec<_> = kept
                .iter()
                .filter(|block| block.1 > 0)
                .map(|block| block.0)
                .collect();
            let distinct: std::collections::HashSet<_> = kept.iter().collect();
            assert_eq!(distinct.len(), kept.len(), "the list has a block twice");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Blocks keep their bytes while they grow and shrink over the boundary between the two
        /// allocators, and a block of `alloc_zeroed` is zero.
        #[test]
        fn blocks_keep_their_bytes(
            sizes in proptest::collection::vec(any_size(), 1..8)
        ) {
            let mut at = layout(sizes[0]);
            let pattern = |i: usize| (i % 251) as u8;
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
                    prop_assert!(size < HUGE || block.addr().is_multiple_of(HUGE));
                }
                HugePages.dealloc(block, at);
            }
        }
    }
}
