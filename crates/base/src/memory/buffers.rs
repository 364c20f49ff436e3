//! Buffers whose allocation may fail: an error of one request, which does not end the program. The
//! module does not count memory.

use crate::error::{Error, Result};
use rustix::mm::Advice;
use std::alloc::{Layout, alloc_zeroed};

/// Maximum size in bytes of a scratch buffer that a thread keeps. Larger buffers would add up over
/// threads.
const MAX_SCRATCH: usize = 4 << 20;

/// Minimum size in bytes of a new buffer whose pages are provided at once.
const MIN_POPULATED: usize = 128 << 10;

/// Returns `len` zero bytes. A large block comes from the system, so parts that are never written
/// take no memory.
///
/// # Errors
///
/// ENOMEM.
pub fn zeroed(len: usize) -> Result<Vec<u8>> {
    if len == 0 {
        return Ok(Vec::new());
    }
    let layout = Layout::array::<u8>(len).map_err(|_| out_of_memory(len))?;
    // SAFETY: the layout has a size above zero.
    let start = unsafe { alloc_zeroed(layout) };
    if start.is_null() {
        return Err(out_of_memory(len));
    }
    // SAFETY: `start` has just been allocated by the global allocator for `len` bytes of alignment
    // 1, all of them initialized.
    Ok(unsafe { Vec::from_raw_parts(start, len, len) })
}

/// Gives `buffer` the length `len`, with unspecified contents.
///
/// # Errors
///
/// ENOMEM.
pub fn resize(buffer: &mut Vec<u8>, len: usize) -> Result<()> {
    if buffer.capacity() < len {
        // frees the old buffer first, since its contents are not needed
        *buffer = Vec::new();
        *buffer = zeroed(len)?;
    } else {
        buffer.resize(len, 0);
    }
    Ok(())
}

/// Gives `buffer` the length `len`, with unspecified contents, for a caller that will write every
/// byte. The kernel provides the pages of a new buffer in one call, in two thirds of the time that
/// page faults take.
///
/// # Errors
///
/// ENOMEM.
pub fn resize_populated(buffer: &mut Vec<u8>, len: usize) -> Result<()> {
    let is_new = buffer.capacity() < len;
    resize(buffer, len)?;
    // the allocator reuses small blocks, whose pages are present
    if is_new && len >= MIN_POPULATED {
        populate(buffer);
    }
    Ok(())
}

/// Makes the kernel provide the pages that lie wholly in `buffer`.
fn populate(buffer: &mut [u8]) {
    let page = rustix::param::page_size();
    let start = buffer.as_ptr().align_offset(page).min(buffer.len());
    let len = (buffer.len() - start) / page * page;
    // SAFETY: the range lies in `buffer`, which this function borrows alone, and the call changes
    // no content.
    let done = unsafe {
        rustix::mm::madvise(
            buffer[start..].as_mut_ptr().cast(),
            len,
            Advice::LinuxPopulateWrite,
        )
    };
    // Linux before 5.14 doesn't know the advice: the pages come one by one when they are written
    let _ = done;
}

/// Clears `buffer` and reserves `len` bytes in it.
///
/// # Errors
///
/// ENOMEM.
pub fn reserve(buffer: &mut Vec<u8>, len: usize) -> Result<()> {
    buffer.clear();
    // exactly, since a kept buffer would keep any excess, too
    buffer
        .try_reserve_exact(len)
        .map_err(|_| out_of_memory(len))
}

/// Clears a scratch buffer, and frees its memory if it is large.
pub fn release(buffer: &mut Vec<u8>) {
    buffer.clear();
    if buffer.capacity() > MAX_SCRATCH {
        *buffer = Vec::new();
    }
}

/// Returns the error for an allocation that failed.
fn out_of_memory(len: usize) -> Error {
    Error::system(libc::ENOMEM).context(format!("{len} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_scratch_buffers_are_freed() {
        let mut small = zeroed(1000).unwrap();
        let mut large = zeroed(MAX_SCRATCH + 1).unwrap();
        release(&mut small);
        release(&mut large);
        assert_eq!((small.capacity(), large.capacity()), (1000, 0));
        resize(&mut small, 10).unwrap();
        assert_eq!((small.len(), small.capacity()), (10, 1000));
    }

    #[test]
    fn all_pages_of_a_populated_buffer_are_present() {
        for len in [MIN_POPULATED, MIN_POPULATED + 1, 10 * MIN_POPULATED - 1] {
            let mut buffer = vec![7; 10];
            resize_populated(&mut buffer, len).unwrap();
            assert!(buffer.len() == len && buffer.iter().all(|&byte| byte == 0));
            buffer.fill(1);
            resize_populated(&mut buffer, len - 1).unwrap();
            assert!(
                buffer.len() == len - 1 && buffer.iter().all(|&byte| byte == 1),
                "the contents of a buffer in use stay"
            );
        }
        assert_eq!(
            resize_populated(&mut Vec::new(), usize::MAX / 2)
                .unwrap_err()
                .errno(),
            libc::ENOMEM
        );
    }
}
