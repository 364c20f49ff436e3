//! Values assembled from pieces, some of which are already in files.

use super::{ByteRange, Key, Replaces, Store};
use rustix::io::Errno;
use std::borrow::Cow;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory::{self, Grant};

/// Maximum size in bytes of a value that is assembled in memory.
const IN_MEMORY: u64 = 64 << 20;

/// Maximum duration of one wait for memory. While other puts hold memory, the wait is repeated.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// Maximum number of waits per put: 15 minutes, in which a slow server takes several large values.
/// After an error the caller keeps the value and tries again later.
const MAX_WAITS: usize = 90;

/// Number of puts that hold memory.
static PUTS: AtomicUsize = AtomicUsize::new(0);

/// Number of bytes per copy between files that the kernel cannot copy itself.
const BUFFER: u64 = 1 << 20;

/// A piece of a value for [`Store::put_pieces`].
#[derive(Debug)]
pub enum ValuePiece<'a> {
    /// These bytes.
    Bytes(&'a [u8]),
    /// Bytes of a file.
    File(&'a File, Range<u64>),
    /// Bytes of the value that is replaced.
    Old(Range<u64>),
}

impl ValuePiece<'_> {
    /// Returns the size in bytes.
    pub fn size(&self) -> u64 {
        match self {
            ValuePiece::Bytes(bytes) => bytes.len() as u64,
            ValuePiece::File(_, range) | ValuePiece::Old(range) => range.end - range.start,
        }
    }
}

/// Returns whether a value is in memory, or small enough to be assembled there.
pub fn is_put_in_memory(pieces: &[ValuePiece]) -> bool {
    matches!(pieces, [ValuePiece::Bytes(_)])
        || size(pieces) <= IN_MEMORY.min(memory::limit() as u64 / 2)
}

/// Returns whether a piece is one of the value that is replaced.
pub fn need_old(pieces: &[ValuePiece]) -> bool {
    pieces
        .iter()
        .any(|piece| matches!(piece, ValuePiece::Old(_)))
}

fn size(pieces: &[ValuePiece]) -> u64 {
    pieces
        .iter()
        .fold(0, |n, piece| n.saturating_add(piece.size()))
}

/// The memory of a put, which `puts` counts.
struct PutMemory<'a> {
    puts: &'a AtomicUsize,
    /// Grant for the memory, returned before `puts` is decremented.
    grant: Option<Grant>,
}

impl Drop for PutMemory<'_> {
    fn drop(&mut self) {
        drop(self.grant.take());
        self.puts.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Takes memory for a put by a call of `take`, which waits for some time. Repeats the call while
/// other puts hold memory, since a slow store is no lack of memory. Makes at most [`MAX_WAITS`]
/// calls, since a store may hang.
fn take_for_put<'a>(
    puts: &'a AtomicUsize,
    mut take: impl FnMut() -> Result<Grant>,
) -> Result<PutMemory<'a>> {
    let mut waits = 1;
    loop {
        // read before the attempt, which may miss the memory of a put that ends meanwhile
        let others = puts.load(Ordering::SeqCst);
        match take() {
            Err(e) if e.errno() == libc::ENOMEM && others > 0 && waits < MAX_WAITS => waits += 1,
            taken => {
                let grant = Some(taken?);
                puts.fetch_add(1, Ordering::SeqCst);
                return Ok(PutMemory { puts, grant });
            }
        }
    }
}

/// A value that was assembled from pieces.
pub struct AssembledValue<'a> {
    /// The bytes of the value.
    pub bytes: Cow<'a, [u8]>,
    _memory: Option<PutMemory<'a>>,
}

/// Assembles a value in memory, for a store that puts whole values. Returns `None` if `store` no
/// longer has the version in `replaces` that old pieces are taken from.
///
/// # Errors
///
/// EFBIG if the value is too large for this.
pub fn assemble<'a>(
    store: &(impl Store + ?Sized),
    key: &Key,
    pieces: &'a [ValuePiece],
    replaces: Replaces,
) -> Result<Option<AssembledValue<'a>>> {
    if let [ValuePiece::Bytes(bytes)] = pieces {
        return Ok(Some(AssembledValue {
            bytes: Cow::Borrowed(bytes),
            _memory: None,
        }));
    }
    let size = size(pieces);
    if size > IN_MEMORY {
        let why = format!(
            "a value of {size} bytes: this kind of store puts at most {IN_MEMORY} together"
        );
        return Err(Error::system(libc::EFBIG).context(why));
    }
    let memory = take_for_put(&PUTS, || memory::take_within(size as usize, MAX_WAIT))?;
    let mut value = Vec::new();
    let mut part = Vec::new();
    memory::reserve(&mut value, size as usize)?;
    for piece in pieces {
        match piece {
            ValuePiece::Bytes(bytes) => value.extend_from_slice(bytes),
            ValuePiece::File(file, range) => {
                let start = value.len();
                value.resize(start + piece.size() as usize, 0);
                file.read_exact_at(&mut value[start..], range.start)?;
            }
            ValuePiece::Old(range) => {
                let old = ByteRange::Bounded(range.clone());
                let stat = store.read(key, &old, &mut part)?;
                let is_same = stat.is_some_and(|stat| replaces == Replaces::Version(&stat.version));
                if !is_same || part.len() as u64 != piece.size() {
                    return Ok(None);
                }
                value.extend_from_slice(&part);
            }
        }
    }
    Ok(Some(AssembledValue {
        bytes: Cow::Owned(value),
        _memory: Some(memory),
    }))
}

/// Writes pieces into an empty file. `old` is the file with the value that is replaced.
pub(super) fn write_pieces(file: &File, pieces: &[ValuePiece], old: Option<&File>) -> Result<()> {
    let mut position = 0;
    for piece in pieces {
        match piece {
            ValuePiece::Bytes(bytes) => file.write_all_at(bytes, position)?,
            ValuePiece::File(from, range) => copy_range(from, range.clone(), file, position)?,
            ValuePiece::Old(range) => {
                let old = old.ok_or_else(copied_too_little)?;
                copy_range(old, range.clone(), file, position)?;
            }
        }
        position += piece.size();
    }
    Ok(())
}

/// Copies a range of a file to `position` of another one, by the kernel if it can.
pub fn copy_range(from: &File, range: Range<u64>, to: &File, position: u64) -> Result<()> {
    let mut input = range.start;
    let mut output = position;
    while input < range.end {
        let len = usize::try_from(range.end - input).unwrap_or(usize::MAX);
        match rustix::fs::copy_file_range(from, Some(&mut input), to, Some(&mut output), len) {
            Ok(0) => return Err(copied_too_little()),
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::XDEV | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::PERM) => {
                break;
            }
            Err(e) => return Err(e.into()),
        }
    }
    let mut buffer = Vec::new();
    while input < range.end {
        memory::resize(&mut buffer, BUFFER.min(range.end - input) as usize)?;
        from.read_exact_at(&mut buffer, input)
            .map_err(|_| copied_too_little())?;
        to.write_all_at(&buffer, output)?;
        (input, output) = (input + buffer.len() as u64, output + buffer.len() as u64);
    }
    Ok(())
}

/// Returns the error of a copy that has fewer bytes than it must have.
pub(super) fn copied_too_little() -> Error {
    Error::system(libc::EIO).context("cut short while it was copied")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_put_waits_while_other_puts_hold_memory() {
        // leaves memory for the grants of other tests in this process
        let size = memory::limit() / 2 - (24 << 20);
        let all = AtomicUsize::new(0);
        let other = take_for_put(&all, || memory::take(1)).unwrap();
        let large = take_for_put(&all, || memory::take(size)).unwrap();
        std::thread::scope(|scope| {
            let put = || {
                take_for_put(&all, || memory::take_within(size, Duration::from_secs(1))).map(drop)
            };
            let puts: Vec<_> = (0..3).map(|_| scope.spawn(put)).collect();
            std::thread::sleep(Duration::from_millis(50));
            drop(large);
            puts.into_iter()
                .for_each(|put| put.join().unwrap().unwrap());
        });
        drop(other);
        assert_eq!(all.load(Ordering::SeqCst), 0);
        let too_much = || memory::take(memory::limit() + 1);
        assert!(
            take_for_put(&all, too_much).is_err(),
            "there can never be so much"
        );
    }

    #[test]
    fn a_put_that_ends_during_an_attempt_causes_another_one() {
        let all = AtomicUsize::new(0);
        let mut other = Some(take_for_put(&all, || memory::take(1)).unwrap());
        let take = || match other.take() {
            Some(_ends) => Err(Error::system(libc::ENOMEM)),
            None => memory::take(1),
        };
        take_for_put(&all, take).unwrap();
    }

    #[test]
    fn the_wait_for_puts_that_hang_ends() {
        let all = AtomicUsize::new(0);
        let _hangs = take_for_put(&all, || memory::take(1)).unwrap();
        let mut attempts = 0;
        let none = || {
            attempts += 1;
            Err(Error::system(libc::ENOMEM))
        };
        assert_eq!(
            take_for_put(&all, none).err().unwrap().errno(),
            libc::ENOMEM
        );
        assert_eq!(attempts, MAX_WAITS);
        // without another put there is nothing to wait for
        let none = AtomicUsize::new(0);
        let mut attempts = 0;
        let take = || {
            attempts += 1;
            Err(Error::system(libc::ENOMEM))
        };
        assert!(take_for_put(&none, take).is_err() && attempts == 1);
    }
}
