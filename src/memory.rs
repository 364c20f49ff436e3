//! Buffers whose size comes from a store: an allocation that fails is an error of one request, not the end of the
//! program, and scratch memory that grew large is given back. It knows nothing of what is in them.

use crate::error::{Error, Result};
use std::alloc::{Layout, alloc_zeroed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Scratch buffers up to this size are kept for the next use, in bytes. Larger ones would sum up over threads.
const KEPT: usize = 4 << 20;

/// Blocks from this size on are given back when they are freed, in bytes.
#[cfg(target_env = "gnu")]
const LARGE: libc::c_int = 256 << 10;

/// `len` zero bytes. The memory is fresh from the system where it is large, so that what is never written costs
/// nothing.
pub fn zeroed(len: usize) -> Result<Vec<u8>> {
    if len == 0 {
        return Ok(Vec::new());
    }
    let layout = Layout::array::<u8>(len).map_err(|_| no_room(len))?;
    // SAFETY: the layout has a size above zero.
    let start = unsafe { alloc_zeroed(layout) };
    if start.is_null() {
        return Err(no_room(len));
    }
    // SAFETY: `start` was allocated just now by the global allocator with room for `len` bytes of alignment 1, all of
    // them initialised.
    Ok(unsafe { Vec::from_raw_parts(start, len, len) })
}

/// Makes `buffer` `len` bytes long; what is in it doesn't matter before or after.
pub fn resize(buffer: &mut Vec<u8>, len: usize) -> Result<()> {
    if buffer.capacity() < len {
        // nothing of the old buffer is needed: two at a time would be wasted
        *buffer = Vec::new();
        *buffer = zeroed(len)?;
    } else {
        buffer.resize(len, 0);
    }
    Ok(())
}

/// Makes room for `len` bytes in an empty `buffer`.
pub fn reserve(buffer: &mut Vec<u8>, len: usize) -> Result<()> {
    buffer.clear();
    // not more than that: what is kept should be what is needed
    buffer.try_reserve_exact(len).map_err(|_| no_room(len))
}

/// Has the allocator give large blocks back to the system when they are freed: else each thread keeps what it has
/// freed, and the memory in use is much more than what is counted. To be called when the program starts.
pub fn give_back_large_blocks() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the call takes numbers alone.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
        libc::mallopt(libc::M_ARENA_MAX, 2);
    }
}

/// Empties a buffer that is kept between uses, and gives its memory back if there is much of it.
pub fn release(buffer: &mut Vec<u8>) {
    buffer.clear();
    if buffer.capacity() > KEPT {
        *buffer = Vec::new();
    }
}

fn no_room(len: usize) -> Error {
    Error::system(libc::ENOMEM).context(format!("{len} bytes"))
}

/// Locks a mutex. After a panic of another holder its data is still what that panic left: every holder keeps it valid
/// at all times.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_allocated_is_an_error() {
        assert_eq!(zeroed(usize::MAX / 2).unwrap_err().errno(), libc::ENOMEM);
        assert_eq!(reserve(&mut Vec::new(), usize::MAX / 2).unwrap_err().errno(), libc::ENOMEM);
        assert_eq!(zeroed(3).unwrap(), [0; 3]);
        assert!(zeroed(0).unwrap().is_empty());
    }

    #[test]
    fn large_scratch_is_given_back() {
        let (mut small, mut large) = (zeroed(1000).unwrap(), zeroed(KEPT + 1).unwrap());
        release(&mut small);
        release(&mut large);
        assert_eq!((small.capacity(), large.capacity()), (1000, 0));
        resize(&mut small, 10).unwrap();
        assert_eq!((small.len(), small.capacity()), (10, 1000));
    }
}
