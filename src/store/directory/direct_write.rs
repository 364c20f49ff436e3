//! Writing a large value past the page cache of the kernel. The value is synced right after it is written, so the cache
//! would only take new memory for a second copy of it.

use crate::error::Result;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, retry_on_intr, write};
use std::cell::RefCell;
use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

/// Minimum size in bytes of values that are written past the cache. For smaller ones, the disk takes longer to answer
/// each write than the cache takes to copy them.
const MIN_VALUE: usize = 1 << 20;

/// Alignment in bytes of the position, length and memory of a direct write: a multiple of the block size of every usual
/// disk.
const ALIGNMENT: usize = 4096;

/// Maximum number of bytes of one write.
const PIECE: usize = 1 << 20;

thread_local! {
    /// The buffer for bytes that do not lie at a multiple of [`ALIGNMENT`].
    static ALIGNED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Writes `value` to the new file `file`, past the cache if it is large and the file system can. `is_refused` is set if
/// it can't.
///
/// # Errors
///
/// The error of the write.
pub(super) fn write_value(file: &File, value: &[u8], is_refused: &AtomicBool) -> Result<()> {
    let mut written = 0;
    if value.len() >= MIN_VALUE && !is_refused.load(Ordering::Relaxed) {
        let flags = fcntl_getfl(file)?;
        match fcntl_setfl(file, flags | OFlags::DIRECT) {
            Ok(()) => {
                written = write_aligned(file, &value[..value.len() / ALIGNMENT * ALIGNMENT])?;
                fcntl_setfl(file, flags)?;
            }
            Err(Errno::INVAL) => {}
            Err(e) => return Err(e.into()),
        }
        is_refused.store(written == 0, Ordering::Relaxed);
    }
    let mut file = file;
    Ok(file.write_all(&value[written..])?)
}

/// Writes the beginning of `value` and returns its length: less than all of it if the file system refuses a write of
/// this kind.
fn write_aligned(file: &File, value: &[u8]) -> Result<usize> {
    let mut written = 0;
    while written < value.len() {
        let piece = &value[written..value.len().min(written + PIECE)];
        let done = match piece.as_ptr().addr().is_multiple_of(ALIGNMENT) {
            true => retry_on_intr(|| write(file, piece)),
            false => ALIGNED.with_borrow_mut(|buffer| {
                buffer.resize(PIECE + ALIGNMENT, 0);
                let start = buffer.as_ptr().addr().next_multiple_of(ALIGNMENT) - buffer.as_ptr().addr();
                let copy = &mut buffer[start..start + piece.len()];
                copy.copy_from_slice(piece);
                retry_on_intr(|| write(file, &*copy))
            }),
        };
        match done {
            Ok(n) if n.is_multiple_of(ALIGNMENT) && n > 0 => written += n,
            // the kernel refuses a direct write that begins between two blocks
            Ok(n) => return Ok(written + n),
            Err(Errno::INVAL) => return Ok(written),
            Err(e) => return Err(e.into()),
        }
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_whole_at_every_length_and_place_in_memory() {
        let directory = tempfile::tempdir().unwrap();
        let source: Vec<u8> = (0..3 * PIECE as u32 + 10_000).map(|i| (i * 7 / 3) as u8).collect();
        for (len, start) in [(0, 0), (MIN_VALUE - 1, 1), (MIN_VALUE, 0), (MIN_VALUE + 1, 16), (3 * PIECE + 4095, 4096)]
        {
            for refused in [false, true] {
                let path = directory.path().join("value");
                let is_refused = AtomicBool::new(refused);
                let value = &source[start..start + len];
                write_value(&File::create(&path).unwrap(), value, &is_refused).unwrap();
                assert!(std::fs::read(&path).unwrap() == value, "{len} {start} {refused}");
                assert!(!refused || is_refused.load(Ordering::Relaxed), "a refusal is remembered");
            }
        }
    }
}
