//! Writing a large value past the page cache of the kernel. The value is synced right after it is
//! written, so the cache would only take new memory for a second copy of it. A value that has bytes
//! of the one that it replaces is different: the next change copies them again, from the cache.

use crate::ValuePiece;
use crate::pieces::{copied_too_little, write_pieces};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, retry_on_intr, write};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use zarrfs_base::error::Result;
use zarrfs_base::memory;

/// Minimum size in bytes of values that are written past the cache. For smaller ones, the disk
/// takes longer to answer each write than the cache takes to copy them.
const MIN_VALUE: u64 = 1 << 20;

/// Alignment in bytes of the position, length and memory of a direct write: a multiple of the block
/// size of every usual disk.
const ALIGNMENT: usize = 4096;

/// Maximum number of bytes of one write. The kernel sends its parts to the disk at the same time.
const MAX_WRITE: usize = 4 << 20;

/// Writes the pieces of a value to the new file `file`, past the cache if the value is large and
/// the file system can. `old` is the file of the value that is replaced. `is_refused` is set if the
/// file system refuses direct writes.
///
/// # Errors
///
/// The error of a write, or of a read of another file.
pub(super) fn write_value(
    file: &File,
    pieces: &[ValuePiece],
    old: Option<&File>,
    is_refused: &AtomicBool,
) -> Result<()> {
    let size = pieces
        .iter()
        .fold(0u64, |size, piece| size.saturating_add(piece.size()));
    let is_large = size >= MIN_VALUE && !is_refused.load(Ordering::Relaxed);
    if !is_large || old.is_some() {
        return write_pieces(file, pieces, old);
    }
    if !set_direct(file, true)? {
        is_refused.store(true, Ordering::Relaxed);
        return write_pieces(file, pieces, old);
    }
    let target = DirectFile {
        file,
        is_direct: true,
        written: 0,
        is_refused,
    };
    let mut writer = DirectWriter {
        target,
        buffer: Vec::new(),
        start: 0,
        len: 0,
        size,
    };
    for piece in pieces {
        match piece {
            ValuePiece::Bytes(bytes) => writer.put(bytes)?,
            ValuePiece::File(from, range) => writer.copy(from, range.clone())?,
            ValuePiece::Old(_) => return Err(copied_too_little()),
        }
    }
    writer.finish()
}

/// Turns direct writes of a file on or off. Returns false if its file system refuses them.
fn set_direct(file: &File, is_direct: bool) -> Result<bool> {
    let mut flags = fcntl_getfl(file)?;
    flags.set(OFlags::DIRECT, is_direct);
    match fcntl_setfl(file, flags) {
        Ok(()) => Ok(true),
        Err(Errno::INVAL) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

/// A new file that is written in order, past the cache as long as its file system and the lengths
/// of the writes allow.
struct DirectFile<'a> {
    file: &'a File,
    is_direct: bool,
    written: u64,
    is_refused: &'a AtomicBool,
}

impl DirectFile<'_> {
    /// Appends `bytes`. While the file is direct, they must be aligned.
    fn append(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            match retry_on_intr(|| write(self.file, bytes)) {
                Ok(0) => return Err(copied_too_little()),
                Ok(n) => {
                    (bytes, self.written) = (&bytes[n..], self.written + n as u64);
                    // the kernel refuses a direct write that begins between two blocks
                    if !n.is_multiple_of(ALIGNMENT) {
                        self.end_direct()?;
                    }
                }
                Err(Errno::INVAL) if self.is_direct => {
                    self.is_refused
                        .fetch_or(self.written == 0, Ordering::Relaxed);
                    self.end_direct()?;
                }
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Sends the following writes through the cache.
    fn end_direct(&mut self) -> Result<()> {
        if std::mem::take(&mut self.is_direct) {
            set_direct(self.file, false)?;
        }
        Ok(())
    }
}

/// Appends bytes to a file in large writes. Bytes that do not lie at a multiple of [`ALIGNMENT`]
/// are collected in a buffer.
struct DirectWriter<'a> {
    target: DirectFile<'a>,
    /// The buffer, which begins at `start`; empty until it is needed.
    buffer: Vec<u8>,
    start: usize,
    /// Number of bytes in the buffer.
    len: usize,
    /// Size of the value in bytes.
    size: u64,
}

impl DirectWriter<'_> {
    /// Appends bytes in memory. Aligned ones are not copied.
    fn put(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let is_aligned = self.len == 0 && bytes.as_ptr().addr().is_multiple_of(ALIGNMENT);
            if is_aligned && bytes.len() >= ALIGNMENT {
                let (now, rest) =
                    bytes.split_at(bytes.len().min(MAX_WRITE) / ALIGNMENT * ALIGNMENT);
                self.target.append(now)?;
                bytes = rest;
                continue;
            }
            let room = self.room()?;
            let (now, rest) = bytes.split_at(bytes.len().min(room.len()));
            room[..now.len()].copy_from_slice(now);
            self.advance(now.len())?;
            bytes = rest;
        }
        Ok(())
    }

    /// Appends a range of another file.
    fn copy(&mut self, from: &File, mut range: Range<u64>) -> Result<()> {
        while range.start < range.end {
            let room = self.room()?;
            let len = usize::try_from(range.end - range.start)
                .map_or(room.len(), |left| left.min(room.len()));
            from.read_exact_at(&mut room[..len], range.start)
                .map_err(|_| copied_too_little())?;
            self.advance(len)?;
            range.start += len as u64;
        }
        Ok(())
    }

    /// Returns the rest of the buffer, which is never empty: a full one is emptied at once.
    fn room(&mut self) -> Result<&mut [u8]> {
        if self.buffer.is_empty() {
            let left = self.size.saturating_sub(self.target.written);
            let len = usize::try_from(left)
                .map_or(MAX_WRITE, |n| n.next_multiple_of(ALIGNMENT).min(MAX_WRITE));
            memory::resize(&mut self.buffer, len + ALIGNMENT)?;
            self.start = self.buffer.as_ptr().addr().next_multiple_of(ALIGNMENT)
                - self.buffer.as_ptr().addr();
            self.buffer.truncate(self.start + len);
        }
        Ok(&mut self.buffer[self.start + self.len..])
    }

    /// Counts bytes that were put into the buffer, and empties a full one.
    fn advance(&mut self, len: usize) -> Result<()> {
        self.len += len;
        if self.start + self.len == self.buffer.len() {
            self.target.append(&self.buffer[self.start..])?;
            self.len = 0;
        }
        Ok(())
    }

    /// Appends the rest of the bytes. The last ones may not fill a block.
    fn finish(mut self) -> Result<()> {
        let (whole, rest) =
            self.buffer[self.start..][..self.len].split_at(self.len / ALIGNMENT * ALIGNMENT);
        self.target.append(whole)?;
        self.target.end_direct()?;
        self.target.append(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pieces::need_old;
    use proptest::prelude::*;
    use std::sync::LazyLock;

    /// A piece of a value: its kind, and its beginning and length in the source.
    type Piece = (u8, usize, usize);

    /// Bytes that repeat after 65,521, a prime number, so that a misplaced write shows.
    static SOURCE: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let block: Vec<u8> = (0..65_521u32).map(|i| (i * 7 / 3) as u8).collect();
        block.repeat((2 * MAX_WRITE + 10_000) / block.len() + 1)
    });

    /// Writes pieces of [`SOURCE`] and returns the file's content.
    fn written(directory: &std::path::Path, pieces: &[Piece], is_refused: &AtomicBool) -> Vec<u8> {
        let [old, path] = ["old", "new"].map(|name| directory.join(name));
        std::fs::write(&old, &*SOURCE).unwrap();
        let old = File::open(old).unwrap();
        let pieces: Vec<_> = pieces
            .iter()
            .map(|&(kind, start, len)| match kind {
                0 => ValuePiece::Bytes(&SOURCE[start..start + len]),
                1 => ValuePiece::File(&old, start as u64..(start + len) as u64),
                _ => ValuePiece::Old(start as u64..(start + len) as u64),
            })
            .collect();
        write_value(
            &File::create(&path).unwrap(),
            &pieces,
            need_old(&pieces).then_some(&old),
            is_refused,
        )
        .unwrap();
        std::fs::read(path).unwrap()
    }

    fn any_piece() -> impl Strategy<Value = Piece> {
        let len = prop_oneof![
            Just(0),
            Just(ALIGNMENT),
            Just(MAX_WRITE),
            0..MAX_WRITE + 5000
        ];
        (
            prop_oneof![4 => 0u8..2, 1 => Just(2)],
            prop_oneof![Just(0usize), Just(16), 0..MAX_WRITE],
            len,
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// A value has the bytes of its pieces, wherever they lie and whether or not direct writes
        /// are refused.
        #[test]
        fn values_have_the_bytes_of_their_pieces(
            pieces in proptest::collection::vec(any_piece(), 1..6),
            refused in any::<bool>(),
        ) {
            let directory = tempfile::tempdir().unwrap();
            let is_refused = AtomicBool::new(refused);
            let got = written(directory.path(), &pieces, &is_refused);
            let all = pieces.iter().map(|&(_, start, len)| &SOURCE[start..start + len]);
            let expected: Vec<u8> = all.flatten().copied().collect();
            prop_assert!(got == expected, "{pieces:?}");
            prop_assert!(!refused || is_refused.load(Ordering::Relaxed), "a refusal is remembered");
        }
    }

    #[test]
    fn a_source_that_is_cut_short_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let is_refused = AtomicBool::new(false);
        let [old, path] = ["old", "new"].map(|name| directory.path().join(name));
        std::fs::write(&old, [1; 1000]).unwrap();
        let old = File::open(old).unwrap();
        let pieces = [ValuePiece::File(&old, 0..2 * MIN_VALUE)];
        let written = write_value(&File::create(path).unwrap(), &pieces, None, &is_refused);
        assert_eq!(written.unwrap_err().errno(), libc::EIO);
    }
}
