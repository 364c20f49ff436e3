//! Reads parts of a deflated member in bounded memory: it inflates from the nearest checkpoint
//! before the part. The whole value is verified once, before its first part is returned.

use super::archive_file::{ArchiveError, ArchiveResult, damaged};
use super::index::ArchiveMember;
use super::member::{MemberReader, check_crc};
use miniz_oxide::inflate::stream::{InflateState, inflate};
use miniz_oxide::{DataFormat, MZError, MZFlush, MZStatus};
use std::ops::Range;
use zarrfs_base::deflate::{self, Container, DeflateError};
use zarrfs_base::error::Error;
use zarrfs_base::memory;

/// Number of bytes inflated at a time.
const PIECE: usize = 64 << 10;

/// Number of deflated bytes read at a time. For a remote archive, each read is a request.
const INPUT: u64 = 256 << 10;
const REMOTE_INPUT: u64 = 4 << 20;

/// Maximum number of deflated bytes that are read into memory as a whole, which is the faster way.
const MAX_WHOLE: u64 = 1 << 20;

/// Number of inflated bytes kept before the cursor, since programs do not read strictly in order.
const WINDOW: usize = 1 << 20;

/// Maximum number of checkpoints of a value, and minimum number of bytes between two of them. Each
/// checkpoint holds the last 32 KiB before it.
const MAX_CHECKPOINTS: u64 = 32;
const CHECKPOINT_DISTANCE: u64 = 4 << 20;

/// Memory of a stream in bytes.
pub(super) const MEMORY: usize =
    MAX_CHECKPOINTS as usize * size_of::<InflateState>() + 2 * WINDOW + REMOTE_INPUT as usize;

impl MemberReader<'_> {
    /// Reads the whole value of a member.
    pub fn whole(&self, member: &ArchiveMember, value: &mut Vec<u8>) -> ArchiveResult<()> {
        if Self::is_stored(member) {
            self.data(member, 0..member.stored_size, value)?;
        } else if member.stored_size > MAX_WHOLE {
            memory::resize(
                value,
                usize::try_from(member.size).map_err(|_| Error::system(libc::ENOMEM))?,
            )?;
            inflate_whole(self, member, value)?;
        } else {
            let mut deflated = Vec::new();
            self.data(member, 0..member.stored_size, &mut deflated)?;
            inflate_in_memory(&deflated, member.size, value)?;
        }
        check_crc(member, crc32fast::hash(value))
    }
}

fn longer_than(size: u64) -> ArchiveError {
    damaged(format!("deflate: holds more than {size} bytes"))
}

/// Inflates a whole member, whose value must have `size` bytes.
fn inflate_in_memory(deflated: &[u8], size: u64, value: &mut Vec<u8>) -> ArchiveResult<()> {
    let size = usize::try_from(size).map_err(|_| Error::system(libc::ENOMEM))?;
    memory::resize(value, size)?;
    let (_, made) = deflate::decompress(Container::None, deflated, value).map_err(|e| match e {
        DeflateError::TooLong => longer_than(size as u64),
        other => damaged(format!("deflate: {other}, {} bytes", deflated.len())),
    })?;
    if made == size {
        Ok(())
    } else {
        Err(damaged(format!("it inflates to {made} bytes, not {size}")))
    }
}

/// A position in a deflated member from which it can be inflated.
#[derive(Clone)]
struct Checkpoint {
    state: Box<InflateState>,
    /// Number of deflated bytes before it.
    read: u64,
    /// Number of inflated bytes before it.
    made: u64,
}

impl Checkpoint {
    fn start() -> Self {
        Checkpoint {
            state: InflateState::new_boxed(DataFormat::Raw),
            read: 0,
            made: 0,
        }
    }
}

/// A position in a deflated member, with the deflated bytes that follow it.
struct InflateCursor {
    checkpoint: Checkpoint,
    input: Vec<u8>,
    /// Number of bytes of `input` that were consumed.
    used: usize,
}

impl InflateCursor {
    fn at(checkpoint: Checkpoint) -> Self {
        InflateCursor {
            checkpoint,
            input: Vec::new(),
            used: 0,
        }
    }

    /// Inflates into `out` until it is full or the stream ends. Returns the number of bytes.
    fn fill(
        &mut self,
        reader: &MemberReader,
        member: &ArchiveMember,
        out: &mut [u8],
    ) -> ArchiveResult<usize> {
        let mut made = 0;
        while made < out.len() {
            if self.used == self.input.len() && self.checkpoint.read < member.stored_size {
                let piece = if reader.archive.is_local() {
                    INPUT
                } else {
                    REMOTE_INPUT
                };
                let end = member.stored_size.min(self.checkpoint.read + piece);
                reader.data(member, self.checkpoint.read..end, &mut self.input)?;
                self.used = 0;
            }
            let input = self.input.get(self.used..).unwrap_or_default();
            let step = inflate(
                &mut self.checkpoint.state,
                input,
                &mut out[made..],
                MZFlush::None,
            );
            self.used += step.bytes_consumed;
            self.checkpoint.read += step.bytes_consumed as u64;
            self.checkpoint.made += step.bytes_written as u64;
            made += step.bytes_written;
            match step.status {
                Ok(MZStatus::StreamEnd) => break,
                Ok(_) | Err(MZError::Buf) if step.bytes_consumed + step.bytes_written > 0 => {}
                _ => {
                    return Err(damaged(format!(
                        "deflate: damaged or truncated, {} bytes",
                        member.stored_size
                    )));
                }
            }
        }
        Ok(made)
    }
}

/// Inflates a whole member into `value`, which has its size.
pub(super) fn inflate_whole(
    reader: &MemberReader,
    member: &ArchiveMember,
    value: &mut [u8],
) -> ArchiveResult<()> {
    let mut cursor = InflateCursor::at(Checkpoint::start());
    let made = cursor.fill(reader, member, value)?;
    check_end(&mut cursor, reader, member, made as u64)
}

/// Returns an error unless the stream ends with the size of the member.
fn check_end(
    cursor: &mut InflateCursor,
    reader: &MemberReader,
    member: &ArchiveMember,
    made: u64,
) -> ArchiveResult<()> {
    if made != member.size {
        return Err(damaged(format!(
            "it inflates to {made} bytes, not {}",
            member.size
        )));
    }
    match cursor.fill(reader, member, &mut [0])? {
        0 => Ok(()),
        _ => Err(longer_than(member.size)),
    }
}

/// A deflated member of which parts are read.
pub(super) struct MemberStream {
    /// Checkpoints in order; the first one is the beginning.
    checkpoints: Vec<Checkpoint>,
    cursor: InflateCursor,
    /// The inflated bytes just before the cursor: fewer than two windows.
    window: Vec<u8>,
    piece: Vec<u8>,
}

impl MemberStream {
    /// Inflates the whole member once to verify it, and creates its checkpoints.
    pub fn open(reader: &MemberReader, member: &ArchiveMember) -> ArchiveResult<Self> {
        let between = CHECKPOINT_DISTANCE.max(member.size.div_ceil(MAX_CHECKPOINTS));
        let mut checkpoints = vec![Checkpoint::start()];
        let mut cursor = InflateCursor::at(Checkpoint::start());
        let mut piece = vec![0; PIECE];
        let mut crc = crc32fast::Hasher::new();
        loop {
            let len = PIECE.min((member.size - cursor.checkpoint.made) as usize);
            let n = cursor.fill(reader, member, &mut piece[..len])?;
            crc.update(&piece[..n]);
            if n < PIECE {
                break;
            }
            if cursor.checkpoint.made >= checkpoints.len() as u64 * between {
                checkpoints.push(cursor.checkpoint.clone());
            }
        }
        let made = cursor.checkpoint.made;
        check_end(&mut cursor, reader, member, made)?;
        check_crc(member, crc.finalize())?;
        Ok(MemberStream {
            checkpoints,
            cursor: InflateCursor::at(Checkpoint::start()),
            window: Vec::new(),
            piece,
        })
    }

    /// Appends the bytes of `range` to `out`. The range must be within the value.
    pub fn read(
        &mut self,
        reader: &MemberReader,
        member: &ArchiveMember,
        range: Range<u64>,
        out: &mut Vec<u8>,
    ) -> ArchiveResult<()> {
        self.seek(range.start);
        let window_start = self.cursor.checkpoint.made - self.window.len() as u64;
        self.add(range.clone(), window_start, None, out);
        while self.cursor.checkpoint.made < range.end {
            let start = self.cursor.checkpoint.made;
            let n = self.cursor.fill(reader, member, &mut self.piece)?;
            if n == 0 {
                return Err(damaged(format!(
                    "it inflates to {start} bytes, not {}",
                    member.size
                )));
            }
            self.add(range.clone(), start, Some(n), out);
            self.window.extend_from_slice(&self.piece[..n]);
            if self.window.len() > 2 * WINDOW - PIECE {
                self.window.drain(..self.window.len() - WINDOW);
            }
        }
        Ok(())
    }

    /// Appends the bytes of `range` that are in the window or, if `n` is given, in the first `n`
    /// bytes of the piece. The first byte of either is byte `start` of the value.
    fn add(&self, range: Range<u64>, start: u64, n: Option<usize>, out: &mut Vec<u8>) {
        let bytes = n.map_or(&self.window[..], |n| &self.piece[..n]);
        let clip = |at: u64| at.saturating_sub(start).min(bytes.len() as u64) as usize;
        out.extend_from_slice(&bytes[clip(range.start)..clip(range.end)]);
    }

    /// Moves the cursor to the nearest checkpoint before `position`, unless the window contains
    /// that byte or the cursor is nearer.
    fn seek(&mut self, position: u64) {
        let made = self.cursor.checkpoint.made;
        let nearest = self
            .checkpoints
            .partition_point(|checkpoint| checkpoint.made <= position)
            .saturating_sub(1);
        let Some(checkpoint) = self.checkpoints.get(nearest) else {
            return;
        };
        if position < made - self.window.len() as u64 || made < checkpoint.made {
            self.cursor = InflateCursor::at(checkpoint.clone());
            self.window.clear();
        }
    }
}
