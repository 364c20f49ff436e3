//! A deflated member as a stream: any part of it is inflated from the nearest point before it, in pieces, so that a
//! value of any size takes little memory. The whole value is checked once, before any part of it is given.

use super::archive::{Outcome, damaged};
use super::index::Member;
use super::member::{Reader, check_crc};
use crate::error::Error;
use crate::util::memory;
use crate::zarr::codec;
use miniz_oxide::inflate::stream::{InflateState, inflate};
use miniz_oxide::{DataFormat, MZError, MZFlush, MZStatus};
use std::ops::Range;

/// Bytes that are inflated at a time.
const PIECE: usize = 64 << 10;

/// Deflated bytes that are read at a time: of a remote archive each piece is a request.
const INPUT: u64 = 256 << 10;
const REMOTE_INPUT: u64 = 4 << 20;

/// Deflated bytes that are taken into memory at once, which is the quicker way.
const AT_ONCE: u64 = 1 << 20;

/// Inflated bytes that are kept behind the last part: parts of one file are not asked for strictly in order.
const WINDOW: usize = 1 << 20;

/// Points of a value from which it can be inflated, at most, and the bytes between two of them, at least. Each holds the
/// last 32 KiB before it.
const POINTS: u64 = 32;
const BETWEEN: u64 = 4 << 20;

/// Bytes of memory that a stream takes.
pub(super) const MEMORY: usize = POINTS as usize * size_of::<InflateState>() + 2 * WINDOW + REMOTE_INPUT as usize;

impl Reader<'_> {
    /// Reads the whole value.
    pub fn whole(&self, member: &Member, value: &mut Vec<u8>) -> Outcome<()> {
        if Self::is_stored(member) {
            self.data(member, 0..member.stored_size, value)?;
        } else if member.stored_size > AT_ONCE {
            memory::resize(value, usize::try_from(member.size).map_err(|_| Error::system(libc::ENOMEM))?)?;
            inflate_whole(self, member, value)?;
        } else {
            let mut deflated = Vec::new();
            self.data(member, 0..member.stored_size, &mut deflated)?;
            inflate_at_once(&deflated, member.size, value)?;
        }
        check_crc(member, crc32fast::hash(value))
    }
}

/// Inflates the one stream of a member into its value, which must have `size` bytes.
fn inflate_at_once(deflated: &[u8], size: u64, value: &mut Vec<u8>) -> Outcome<()> {
    let size = usize::try_from(size).map_err(|_| Error::system(libc::ENOMEM))?;
    memory::resize(value, size)?;
    let made = codec::inflate(deflated, value).map_err(|broken| Error::damaged(broken.0))?;
    if made == size { Ok(()) } else { Err(damaged(format!("it inflates to {made} bytes, not {size}"))) }
}

/// A place in a deflated member.
#[derive(Clone)]
struct Point {
    state: Box<InflateState>,
    /// Deflated bytes before it.
    read: u64,
    /// Inflated bytes before it.
    made: u64,
}

impl Point {
    fn start() -> Self {
        Point { state: InflateState::new_boxed(DataFormat::Raw), read: 0, made: 0 }
    }
}

/// A place in a deflated member, and the deflated bytes that follow it.
struct Cursor {
    point: Point,
    input: Vec<u8>,
    /// What of the input was used.
    used: usize,
}

impl Cursor {
    fn at(point: Point) -> Self {
        Cursor { point, input: Vec::new(), used: 0 }
    }

    /// Inflates into `out`, which is not filled only at the end. How many bytes that were.
    fn fill(&mut self, reader: &Reader, member: &Member, out: &mut [u8]) -> Outcome<usize> {
        let mut made = 0;
        while made < out.len() {
            if self.used == self.input.len() && self.point.read < member.stored_size {
                let piece = if reader.archive.is_local() { INPUT } else { REMOTE_INPUT };
                let end = member.stored_size.min(self.point.read + piece);
                reader.data(member, self.point.read..end, &mut self.input)?;
                self.used = 0;
            }
            let input = self.input.get(self.used..).unwrap_or_default();
            let step = inflate(&mut self.point.state, input, &mut out[made..], MZFlush::None);
            self.used += step.bytes_consumed;
            self.point.read += step.bytes_consumed as u64;
            self.point.made += step.bytes_written as u64;
            made += step.bytes_written;
            match step.status {
                Ok(MZStatus::StreamEnd) => break,
                Ok(_) | Err(MZError::Buf) if step.bytes_consumed + step.bytes_written > 0 => {}
                _ => return Err(damaged(format!("deflate: damaged or cut short, {} bytes", member.stored_size))),
            }
        }
        Ok(made)
    }
}

/// Inflates all of a member into `value`, which has the member's size.
pub(super) fn inflate_whole(reader: &Reader, member: &Member, value: &mut [u8]) -> Outcome<()> {
    let mut cursor = Cursor::at(Point::start());
    let made = cursor.fill(reader, member, value)?;
    check_end(&mut cursor, reader, member, made as u64)
}

/// An error unless the stream has ended with the member's size.
fn check_end(cursor: &mut Cursor, reader: &Reader, member: &Member, made: u64) -> Outcome<()> {
    if made != member.size {
        return Err(damaged(format!("it inflates to {made} bytes, not {}", member.size)));
    }
    match cursor.fill(reader, member, &mut [0])? {
        0 => Ok(()),
        _ => Err(Error::damaged(format!("deflate: holds more than {} bytes", member.size)).into()),
    }
}

/// A deflated member of which parts are read.
pub(super) struct Stream {
    /// In order, the first at the beginning.
    points: Vec<Point>,
    cursor: Cursor,
    /// The bytes before the cursor.
    window: Vec<u8>,
    piece: Vec<u8>,
}

impl Stream {
    /// Inflates all of a member once, to see that it is sound.
    pub fn open(reader: &Reader, member: &Member) -> Outcome<Self> {
        let between = BETWEEN.max(member.size.div_ceil(POINTS));
        let (mut points, mut cursor, mut piece) = (vec![Point::start()], Cursor::at(Point::start()), vec![0; PIECE]);
        let mut crc = crc32fast::Hasher::new();
        loop {
            let room = PIECE.min((member.size - cursor.point.made) as usize);
            let n = cursor.fill(reader, member, &mut piece[..room])?;
            crc.update(&piece[..n]);
            if n < PIECE {
                break;
            }
            if cursor.point.made >= points.len() as u64 * between {
                points.push(cursor.point.clone());
            }
        }
        let made = cursor.point.made;
        check_end(&mut cursor, reader, member, made)?;
        check_crc(member, crc.finalize())?;
        Ok(Stream { points, cursor: Cursor::at(Point::start()), window: Vec::new(), piece })
    }

    /// Adds the bytes of `range`, which is a part of the value, to `out`.
    pub fn read(&mut self, reader: &Reader, member: &Member, range: Range<u64>, out: &mut Vec<u8>) -> Outcome<()> {
        self.seek(range.start);
        let window_start = self.cursor.point.made - self.window.len() as u64;
        self.add(range.clone(), window_start, None, out);
        while self.cursor.point.made < range.end {
            let start = self.cursor.point.made;
            let n = self.cursor.fill(reader, member, &mut self.piece)?;
            if n == 0 {
                return Err(damaged(format!("it inflates to {start} bytes, not {}", member.size)));
            }
            self.add(range.clone(), start, Some(n), out);
            self.window.extend_from_slice(&self.piece[..n]);
            if self.window.len() > 2 * WINDOW - PIECE {
                self.window.drain(..self.window.len() - WINDOW);
            }
        }
        Ok(())
    }

    /// Adds what the window, or the first `n` bytes of the piece, which begin at `start`, have of `range`.
    fn add(&self, range: Range<u64>, start: u64, n: Option<usize>, out: &mut Vec<u8>) {
        let bytes = n.map_or(&self.window[..], |n| &self.piece[..n]);
        let clip = |at: u64| at.saturating_sub(start).min(bytes.len() as u64) as usize;
        out.extend_from_slice(&bytes[clip(range.start)..clip(range.end)]);
    }

    /// Goes to the nearest place from which the byte at `position` can be inflated, unless the window has it.
    fn seek(&mut self, position: u64) {
        let made = self.cursor.point.made;
        let nearest = self.points.partition_point(|point| point.made <= position).saturating_sub(1);
        let Some(point) = self.points.get(nearest) else { return };
        if position < made - self.window.len() as u64 || made < point.made {
            self.cursor = Cursor::at(point.clone());
            self.window.clear();
        }
    }
}
