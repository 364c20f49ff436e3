//! The compressor `lz4`: the size as a little-endian i32, then one LZ4 block (not the frame
//! format). The decoder is that of the C library: blosc links it anyway, and it is fuzzed more than
//! others.

use super::seek_points::SeekPoints;
use super::streams::StreamError;
use super::{Codec, CodecError, CodecResult, CodecSpec, PartialDecode, encode_only};
use std::ffi::{c_char, c_int};
use std::ops::Range;

/// What is known of the compressor.
pub const SPEC: CodecSpec = CodecSpec {
    id: "lz4",
    parameters: &["acceleration"],
    build: |config, _| {
        let acceleration = config.int("acceleration", 1, i64::from(i32::MIN), i64::from(i32::MAX));
        // as in numcodecs, an acceleration below 1 counts as 1
        let acceleration = encode_only(acceleration.map(|n| n.max(1) as i32));
        Ok(Box::new(Lz4 { acceleration }))
    },
    v3_names: &["numcodecs.lz4", "lz4"],
    defaults: r#"{"acceleration": 1}"#,
    max_chunk: MAX_SIZE,
    ..CodecSpec::BYTES
};

/// Maximum decoded size of an LZ4 block in bytes.
const MAX_SIZE: usize = 0x7E00_0000;

/// Number of decoded bytes to which a block may refer.
const WINDOW: usize = 64 << 10;

/// Number of literals after which a sequence may have a seek point.
const LITERALS: usize = 256 << 10;

/// Size in bytes of the decoded size before the block.
const SIZE: usize = 4;

/// The compressor `{"id": "lz4", "acceleration": 1}`.
pub struct Lz4 {
    acceleration: CodecResult<i32>,
}

/// Decodes a whole block into the front of `out` and returns the number of bytes written. Returns
/// `None` if it is damaged or decodes to more than `out` holds.
pub fn decompress_block(block: &[u8], out: &mut [u8]) -> Option<usize> {
    let len = i32::try_from(block.len()).ok()?;
    let room = i32::try_from(out.len()).unwrap_or(i32::MAX);
    // SAFETY: both pointers belong to slices at least as long as the lengths given, which the
    // library stays within.
    let made = unsafe {
        lz4_sys::LZ4_decompress_safe(block.as_ptr().cast(), out.as_mut_ptr().cast(), len, room)
    };
    usize::try_from(made).ok()
}

unsafe extern "C" {
    /// A function of the library that `lz4_sys` builds but does not declare. It also reads
    /// `window`, the decoded bytes to which the block may refer.
    fn LZ4_decompress_safe_partial_usingDict(
        src: *const c_char,
        dst: *mut c_char,
        src_len: c_int,
        wanted: c_int,
        dst_len: c_int,
        window: *const c_char,
        window_len: c_int,
    ) -> c_int;
}

/// Decodes the first bytes of the sequences in `block` into the bytes of `out` from `start` on.
/// The sequences may refer to those before. Returns the number of bytes written, as
/// [`decompress_beginning`] does.
fn decompress_after(block: &[u8], out: &mut [u8], start: usize) -> Option<usize> {
    let len = i32::try_from(block.len()).ok()?;
    let (window, out) = out.split_at_mut_checked(start)?;
    let room = i32::try_from(out.len()).ok()?;
    let window_len = i32::try_from(window.len()).ok()?;
    let from = block.as_ptr().cast();
    let to = out.as_mut_ptr().cast();
    let before = window.as_ptr().cast();
    // SAFETY: the three pointers belong to slices of the lengths given, which the library stays
    // within. The window may lie just before the output.
    let made = unsafe {
        LZ4_decompress_safe_partial_usingDict(from, to, len, room, room, before, window_len)
    };
    usize::try_from(made).ok()
}

/// Returns the length that begins with the four bits `nibble` of a token and may go on in `block`
/// at `at`, which is moved.
fn length(nibble: u8, block: &[u8], at: &mut usize) -> Option<usize> {
    let mut len = usize::from(nibble);
    if nibble == 15 {
        loop {
            let byte = *block.get(*at)?;
            *at += 1;
            len += usize::from(byte);
            if byte < 255 {
                break;
            }
        }
    }
    Some(len)
}

/// Returns the seek points of a block that decodes to `decoded`; `None` if it does not. Source of
/// the rules: the document "LZ4 Block Format Description".
///
/// The state of a point is 0 at the beginning of a sequence, and [`in_literals`] between literals:
/// bytes that can't be compressed are one sequence.
fn find_points(block: &[u8], decoded: &[u8]) -> Option<SeekPoints> {
    let mut points = SeekPoints::starting_at(SIZE as u64 * 8);
    let mut at = 0;
    let mut made = 0;
    let mut add = |at: usize, made: usize, state: u64| {
        let bit = (SIZE + at) as u64 * 8;
        points.add(decoded.get(..made)?, (bit, state), WINDOW).ok()
    };
    while let Some(token) = block.get(at) {
        add(at, made, 0)?;
        at += 1;
        let mut literals = length(token >> 4, block, &mut at)?;
        while literals > LITERALS {
            at += LITERALS;
            made += LITERALS;
            literals -= LITERALS;
            add(at, made, in_literals(literals, *token))?;
        }
        at += literals;
        made += literals;
        if at == block.len() {
            break; // the last sequence has no match
        }
        at += 2; // the offset of the match
        made += 4 + length(token & 15, block, &mut at)?;
    }
    if made != decoded.len() {
        return None;
    }
    points.end(made, (SIZE + block.len()) as u64 * 8)
}

/// Returns the state of a point before `left` literals of the sequence with this token.
fn in_literals(left: usize, token: u8) -> u64 {
    (left as u64) << 8 | u64::from(token & 15)
}

/// Decodes the bytes of `out` from `start` on, after a point with this state. Returns `None` if
/// `stored` are not the bytes after it.
fn decode_after(stored: &[u8], state: u64, out: &mut [u8], start: usize) -> Option<()> {
    let literals = usize::try_from(state >> 8).ok()?.min(out.len() - start);
    out[start..start + literals].copy_from_slice(stored.get(..literals)?);
    let start = start + literals;
    if start == out.len() {
        return Some(());
    }
    let rest = &stored[literals..];
    let made = if state == 0 {
        decompress_after(rest, out, start)
    } else {
        // a sequence without literals, with the match of the one that the point is in
        let sequence = [&[state as u8 & 15], rest].concat();
        decompress_after(&sequence, out, start)
    };
    (made? == out.len() - start).then_some(())
}

/// Decodes the first bytes of a block into `out` and returns the number of bytes written. It is
/// less than `out` holds only if the block has no more bytes. Returns `None` if the bytes read are
/// damaged.
pub fn decompress_beginning(block: &[u8], out: &mut [u8]) -> Option<usize> {
    decompress_after(block, out, 0)
}

/// Appends a block that holds `decoded`. Returns `None` if `decoded` is too long for a block.
fn compress_block(decoded: &[u8], acceleration: i32, out: &mut Vec<u8>) -> Option<()> {
    let len = i32::try_from(decoded.len())
        .ok()
        .filter(|_| decoded.len() <= MAX_SIZE)?;
    // SAFETY: the call only computes.
    let bound = unsafe { lz4_sys::LZ4_compressBound(len) };
    out.reserve(usize::try_from(bound).ok()?);
    let spare = out.spare_capacity_mut();
    let room = i32::try_from(spare.len()).unwrap_or(i32::MAX);
    let input = decoded.as_ptr().cast();
    let output = spare.as_mut_ptr().cast();
    // SAFETY: the pointers belong to slices at least as long as the lengths given.
    let made = unsafe { lz4_sys::LZ4_compress_fast(input, output, len, room, acceleration) };
    let made = usize::try_from(made).ok().filter(|n| *n > 0)?;
    // SAFETY: the library has written `made` bytes after the current length, within the capacity.
    unsafe { out.set_len(out.len() + made) };
    Some(())
}

/// Decodes the block and checks its decoded size.
fn decompress(encoded: &[u8], out: &mut [u8]) -> Result<usize, StreamError> {
    let (size, block) = encoded.split_first_chunk().ok_or(StreamError::CutShort)?;
    let size = usize::try_from(i32::from_le_bytes(*size))
        .map_err(|_| StreamError::Invalid("the size is negative"))?;
    let out = out.get_mut(..size).ok_or(StreamError::TooLong)?;
    match decompress_block(block, out) {
        Some(made) if made == size => Ok(size),
        Some(_) => Err(StreamError::Invalid("the block doesn't fill its size")),
        None => Err(StreamError::Invalid("damaged or cut short")),
    }
}

impl Codec for Lz4 {
    fn partial_decode(&self) -> PartialDecode {
        PartialDecode::Seek
    }

    fn decode_whole(&self, encoded: &[u8], out: &mut [u8]) -> Option<Option<SeekPoints>> {
        let made = self.decode(encoded, out).ok()?;
        (made == out.len()).then(|| find_points(encoded.get(SIZE..)?, out))
    }

    fn decode_part(
        &self,
        points: &SeekPoints,
        range: Range<usize>,
        stored: &[u8],
        out: &mut Vec<u8>,
    ) -> CodecResult<usize> {
        let at = points.begin(&range, WINDOW, out)?;
        decode_after(stored, at.state, out, at.start).ok_or_else(|| {
            let e = StreamError::Invalid("damaged or cut short");
            e.into_codec_error("lz4", stored.len(), out.len())
        })?;
        Ok(at.wanted)
    }

    fn decode(&self, encoded: &[u8], out: &mut [u8]) -> CodecResult<usize> {
        decompress(encoded, out).map_err(|e| e.into_codec_error("lz4", encoded.len(), out.len()))
    }

    fn encode(&self, decoded: &[u8], out: &mut Vec<u8>) -> CodecResult<()> {
        out.extend((decoded.len() as u32).to_le_bytes());
        compress_block(decoded, self.acceleration.clone()?, out).ok_or_else(|| {
            CodecError(format!(
                "lz4: can't hold {} bytes, at most {MAX_SIZE}",
                decoded.len()
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::codec::testing::compressors::*;

    /// `LZ4().encode(b"hello hello hello hello")`.
    const GOLDEN: &str = "170000006868656c6c6f2006005068656c6c6f";
    const TEXT: &[u8] = b"hello hello hello hello";

    #[test]
    fn round_trips() {
        for acceleration in [-1, 1, 17, 70_000] {
            round_trip(&*codec(
                &format!(r#"{{"id": "lz4", "acceleration": {acceleration}}}"#),
                1,
            ));
        }
    }

    #[test]
    fn blocks_of_numcodecs_are_decoded() {
        let lz4 = codec(r#"{"id": "lz4"}"#, 1);
        assert_eq!(encoded(&*lz4, TEXT), hex(GOLDEN));
        assert_eq!(decoded(&*lz4, &hex(GOLDEN), 23).unwrap(), TEXT);
        assert_eq!(
            decoded(&*lz4, &hex(GOLDEN), 22).unwrap_err().0,
            "lz4: holds more than 22 bytes"
        );
    }

    #[test]
    fn damaged_blocks_are_errors() {
        let lz4 = codec(r#"{"id": "lz4"}"#, 1);
        hostile(&*lz4, &sample(100));
        for bad in ["", "ffffffff00", "00000000 0000", "17000000", "01000000 00"] {
            assert!(decoded(&*lz4, &hex(bad), 23).is_err(), "{bad}");
        }
        refused(r#"{"id": "lz4", "level": 1}"#);
    }
}
