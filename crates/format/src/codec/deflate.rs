//! The compressor that `zlib` and `gzip` are. The module does not know what may follow a stream.

use super::seek_points::SeekPoints;
use super::streams::StreamError;
use super::{Codec, CodecConfig, CodecError, CodecResult, PartialDecode, encode_only};
use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::{
    TINFL_FLAG_STOP_ON_BLOCK_BOUNDARY, TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF,
};
use miniz_oxide::inflate::core::{self, BlockBoundaryState, DecompressorOxide};
use std::ops::Range;
use zarrfs_base::deflate::{Container, DeflateError, compress};

/// Number of decoded bytes to which deflate data may refer.
const WINDOW: usize = 32 << 10;

impl From<DeflateError> for StreamError {
    fn from(e: DeflateError) -> Self {
        match e {
            DeflateError::TooLong => StreamError::TooLong,
            DeflateError::Damaged => StreamError::Invalid("damaged or cut short"),
            DeflateError::OutOfMemory => StreamError::Invalid("out of memory"),
        }
    }
}

/// A compressor of deflate data: `{"id": "zlib", "level": 1}` or `gzip`.
pub struct Deflate {
    container: Container,
    level: CodecResult<i32>,
    decompress: fn(&[u8], &mut [u8]) -> Result<usize, StreamError>,
}

impl Deflate {
    /// Creates the compressor from its parameters. `decompress` decodes a whole value and returns
    /// the number of bytes written.
    pub fn new(
        config: &CodecConfig,
        container: Container,
        decompress: fn(&[u8], &mut [u8]) -> Result<usize, StreamError>,
    ) -> Self {
        Deflate {
            container,
            level: encode_only(config.int("level", 1, -1, 9).map(|n| n as i32)),
            decompress,
        }
    }
}

/// Returns whether `bytes` start with a zlib header: deflate with a window of up to 32 KiB, and a
/// check value that makes the two bytes a multiple of 31.
pub fn is_zlib(bytes: &[u8]) -> bool {
    matches!(*bytes, [a, b, ..] if a & 0x0f == 8 && a >> 4 <= 7 && (u32::from(a) * 256 + u32::from(b)) % 31 == 0)
}

/// Returns the length of the header before the deflate data; `None` if it is of another kind.
fn header_len(container: Container, encoded: &[u8]) -> Option<usize> {
    match container {
        Container::Zlib => {
            let has_dictionary = encoded.get(1)? & 0x20 != 0;
            (is_zlib(encoded) && !has_dictionary).then_some(2)
        }
        Container::Gzip => {
            let [0x1f, 0x8b, 8, flags @ 0..0x20, ..] = *encoded else {
                return None;
            };
            let [has_crc, has_extra, has_name, has_comment] =
                [0x02, 0x04, 0x08, 0x10].map(|flag| flags & flag != 0);
            let mut len = 10;
            if has_extra {
                len += 2 + usize::from(u16::from_le_bytes(*encoded.get(len..)?.first_chunk()?));
            }
            for _ in 0..usize::from(has_name) + usize::from(has_comment) {
                len += 1 + encoded.get(len..)?.iter().position(|b| *b == 0)?;
            }
            Some(len + 2 * usize::from(has_crc))
        }
        Container::None => None,
    }
}

/// Returns whether `trailer`, the bytes after the deflate data, begins with the right checksum of
/// `decoded`, and nothing follows that may be decoded.
fn is_verified(container: Container, decoded: &[u8], trailer: &[u8]) -> bool {
    match container {
        // what follows is ignored
        Container::Zlib => trailer.starts_with(&simd_adler32::adler32(&decoded).to_be_bytes()),
        Container::Gzip => {
            let len = (decoded.len() as u32).to_le_bytes();
            let expected = [crc32fast::hash(decoded).to_le_bytes(), len].concat();
            trailer
                .strip_prefix(&expected[..])
                .is_some_and(|rest| rest.iter().all(|b| *b == 0))
        }
        Container::None => false,
    }
}

impl Codec for Deflate {
    fn partial_decode(&self) -> PartialDecode {
        PartialDecode::Seek
    }

    fn decode_whole(&self, encoded: &[u8], out: &mut [u8]) -> Option<Option<SeekPoints>> {
        let mut used = header_len(self.container, encoded)?;
        let mut made = 0;
        let mut points = SeekPoints::starting_at(used as u64 * 8);
        let mut decoder = Box::new(DecompressorOxide::new());
        let flags = TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF | TINFL_FLAG_STOP_ON_BLOCK_BOUNDARY;
        loop {
            let input = encoded.get(used..)?;
            let (status, took, gave) = core::decompress(&mut decoder, input, out, made, flags);
            used += took;
            made += gave;
            match status {
                TINFLStatus::BlockBoundary => {
                    let unused = decoder.block_boundary_state()?.num_bits;
                    let bit = used as u64 * 8 - u64::from(unused);
                    points.add(&out[..made], (bit, 0), WINDOW).ok()?;
                }
                TINFLStatus::Done if made == out.len() => break,
                _ => return None,
            }
        }
        is_verified(self.container, out, &encoded[used..])
            .then(|| points.end(made, used as u64 * 8))
    }

    fn decode_part(
        &self,
        points: &SeekPoints,
        range: Range<usize>,
        stored: &[u8],
        out: &mut Vec<u8>,
    ) -> CodecResult<usize> {
        let at = points.begin(&range, WINDOW, out)?;
        let mut state = BlockBoundaryState::default();
        let used = usize::from(at.bit > 0);
        if used > 0 {
            state.num_bits = 8 - at.bit as u8;
            state.bit_buf = stored.first().map_or(0, |byte| byte >> at.bit);
        }
        let mut decoder = Box::new(DecompressorOxide::from_block_boundary_state(&state));
        let input = stored.get(used..).unwrap_or_default();
        let flags = TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
        let (_, _, made) = core::decompress(&mut decoder, input, out, at.start, flags);
        if at.start + made == out.len() {
            Ok(at.wanted)
        } else {
            let e = StreamError::Invalid("damaged or cut short");
            Err(e.into_codec_error(self.container.name(), stored.len(), out.len()))
        }
    }

    fn decode(&self, encoded: &[u8], out: &mut [u8]) -> CodecResult<usize> {
        (self.decompress)(encoded, out)
            .map_err(|e| e.into_codec_error(self.container.name(), encoded.len(), out.len()))
    }

    fn encode(&self, decoded: &[u8], out: &mut Vec<u8>) -> CodecResult<()> {
        compress(self.container, self.level.clone()?, decoded, out)
            .map_err(|e| CodecError::new(format!("{}: {e}", self.container.name())))
    }
}
