//! The compressor `bz2`: a sequence of bzip2 streams. Source of the rules: Python's `bz2.compress`
//! and `bz2.decompress`.

use super::seek_points::{SeekPoints, Segment};
use super::streams::{self, StreamError};
use super::{Codec, CodecError, CodecResult, CodecSpec, PartialDecode, encode_only};
use bzip2::{Action, Compress, Compression, Decompress, Status};
use std::ops::Range;

/// What is known of the compressor.
pub const SPEC: CodecSpec = CodecSpec {
    id: "bz2",
    parameters: &["level"],
    build: |config, _| {
        let level = config.int("level", 1, 1, 9).map(|n| n as u32);
        Ok(Box::new(Bz2 {
            level: encode_only(level),
        }))
    },
    v3_names: &["numcodecs.bz2"],
    defaults: r#"{"level": 1}"#,
    ..CodecSpec::BYTES
};

/// The compressor `{"id": "bz2", "level": 1}`.
pub struct Bz2 {
    level: CodecResult<u32>,
}

/// Decodes one stream and returns the numbers of bytes read and written.
fn decode_one(encoded: &[u8], out: &mut [u8]) -> Result<(usize, usize), StreamError> {
    let mut stream = Decompress::new(false);
    streams::run(encoded, out, |input, room| {
        match stream.decompress(input, room) {
            Err(_) => Err(StreamError::Invalid("damaged")),
            Ok(Status::MemNeeded) => Err(StreamError::Invalid("out of memory")),
            Ok(status) => Ok((
                stream.total_in(),
                stream.total_out(),
                status == Status::StreamEnd,
            )),
        }
    })
}

/// The mark before a block.
const BLOCK: u64 = 0x3141_5926_5359;

/// The mark before the checksum at the end of a stream.
const END: u64 = 0x1772_4538_5090;

/// Size of a mark in bits.
const MARK_BITS: u64 = 48;

/// Maximum size of an encoded block in bytes: more than 900,000 bytes can take.
const MAX_BLOCK: usize = 2 << 20;

/// Size in bits of the header of a stream, and of a checksum.
const HEADER_BITS: u64 = 32;
const CHECKSUM_BITS: u64 = 32;

/// Bits, the most significant one of each byte first.
#[derive(Default)]
struct BitWriter {
    bytes: Vec<u8>,
    /// Bits that do not fill a byte yet.
    pending: u64,
    pending_bits: u32,
}

impl BitWriter {
    /// Appends the lowest `bits` bits of `value`, at most 48.
    fn push(&mut self, value: u64, bits: u32) {
        self.pending = self.pending << bits | value & ((1 << bits) - 1);
        self.pending_bits += bits;
        while self.pending_bits >= 8 {
            self.pending_bits -= 8;
            self.bytes.push((self.pending >> self.pending_bits) as u8);
        }
    }

    fn finish(mut self) -> Vec<u8> {
        self.push(0, (8 - self.pending_bits) % 8);
        self.bytes
    }
}

/// Returns `bits` bits of `bytes` from bit `at` on, at most 48. Bits after the end are zeros.
fn bits_at(bytes: &[u8], at: u64, bits: u32) -> u64 {
    let mut word = [0; 8];
    let rest = bytes.get((at / 8) as usize..).unwrap_or_default();
    let len = rest.len().min(8);
    word[..len].copy_from_slice(&rest[..len]);
    u64::from_be_bytes(word) << (at % 8) >> (64 - bits)
}

/// Returns the position in bits of the next mark from bit `at` on, and whether it is one of a
/// block; `None` if no block is so long.
fn next_mark(encoded: &[u8], at: u64) -> Option<(u64, bool)> {
    let first = (at / 8) as usize;
    let mut word = 0;
    let bytes = encoded.iter().enumerate().skip(first);
    bytes.take(MAX_BLOCK).find_map(|(i, byte)| {
        word = word << 8 | u64::from(*byte);
        let end = (i as u64 + 1) * 8;
        (0..8).rev().find_map(|unused| {
            let mark = word >> unused & ((1 << MARK_BITS) - 1);
            let start = end.checked_sub(MARK_BITS + unused)?;
            (matches!(mark, BLOCK | END) && start >= at).then_some((start, mark == BLOCK))
        })
    })
}

/// Decodes one block, `bits` bits of `encoded` from bit `at` on, as a stream of its own. Returns
/// the number of bytes written to the front of `out`.
fn decode_block(encoded: &[u8], at: u64, bits: u64, out: &mut [u8]) -> Result<usize, StreamError> {
    let mut stream = BitWriter::default();
    // the largest block size
    b"BZh9"
        .iter()
        .for_each(|byte| stream.push(u64::from(*byte), 8));
    let mut copied = 0;
    while copied < bits {
        let step = (bits - copied).min(48) as u32;
        stream.push(bits_at(encoded, at + copied, step), step);
        copied += u64::from(step);
    }
    stream.push(END, MARK_BITS as u32);
    // a stream of one block has the checksum of the block
    let checksum = bits_at(encoded, at + MARK_BITS, CHECKSUM_BITS as u32);
    stream.push(checksum, CHECKSUM_BITS as u32);
    Ok(decode_one(&stream.finish(), out)?.1)
}

impl Codec for Bz2 {
    fn partial_decode(&self) -> PartialDecode {
        PartialDecode::Seek
    }

    fn decode_whole(&self, encoded: &[u8], out: &mut [u8]) -> Option<Option<SeekPoints>> {
        if !matches!(encoded, [b'B', b'Z', b'h', b'1'..=b'9', ..]) {
            return None;
        }
        let mut points = SeekPoints::starting_at(HEADER_BITS);
        let mut combined = 0u32;
        let mut start = HEADER_BITS;
        let mut made = 0;
        let mut is_block = bits_at(encoded, start, MARK_BITS as u32) == BLOCK;
        while is_block {
            if !points.add_independent(made, start) {
                return None;
            }
            let (end, next_is_block) = next_mark(encoded, start + MARK_BITS)?;
            made += decode_block(encoded, start, end - start, &mut out[made..]).ok()?;
            let checksum = bits_at(encoded, start + MARK_BITS, CHECKSUM_BITS as u32);
            combined = combined.rotate_left(1) ^ checksum as u32;
            (start, is_block) = (end, next_is_block);
        }
        let stated = bits_at(encoded, start + MARK_BITS, CHECKSUM_BITS as u32);
        let end = (start + MARK_BITS + CHECKSUM_BITS).div_ceil(8);
        let is_whole = made == out.len() && stated == u64::from(combined);
        (is_whole && end == encoded.len() as u64).then(|| points.end(made, start))
    }

    fn decode_part(
        &self,
        points: &SeekPoints,
        range: Range<usize>,
        stored: &[u8],
        out: &mut Vec<u8>,
    ) -> CodecResult<usize> {
        let mut first = None;
        let mut made = 0;
        for Segment {
            decoded,
            skip,
            bits,
            len,
        } in points.segments(&range)
        {
            first.get_or_insert(decoded);
            out.resize(made + len, 0);
            made += decode_block(stored, skip, bits, &mut out[made..])
                .map_err(|e| e.into_codec_error("bz2", stored.len(), len))?;
        }
        let first = first.unwrap_or_default();
        if first + made < range.end {
            let e = StreamError::CutShort;
            return Err(e.into_codec_error("bz2", stored.len(), out.len()));
        }
        out.truncate(range.end - first);
        Ok(range.start - first)
    }

    fn decode(&self, encoded: &[u8], out: &mut [u8]) -> CodecResult<usize> {
        let room = out.len();
        streams::decode_all(encoded, out, decode_one)
            .map_err(|e| e.into_codec_error("bz2", encoded.len(), room))
    }

    fn encoder_memory(&self, _decoded: usize) -> usize {
        // the manual of libbzip2: 400 kB, and eight times a block of 100 kB for each level
        (4 + 8 * 9) * 100_000
    }

    fn encode(&self, decoded: &[u8], out: &mut Vec<u8>) -> CodecResult<()> {
        let mut stream = Compress::new(Compression::new(self.level.clone()?), 0);
        out.reserve(decoded.len() / 2 + 64);
        loop {
            let rest = &decoded[stream.total_in() as usize..];
            match stream.compress_vec(rest, out, Action::Finish) {
                Ok(Status::StreamEnd) => return Ok(()),
                Ok(_) => out.reserve(decoded.len() / 4 + 1024),
                Err(e) => return Err(CodecError(format!("bz2: {e}"))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::codec::testing::compressors::*;

    /// `bz2.compress(b"hello hello hello hello", 1)`.
    const GOLDEN: &str = "425a683131415926535902f8b0bd000003910040000244a00030cd00548696719b38a3c5dc914e142400be2c2f40";

    #[test]
    fn round_trips() {
        for level in [1, 9] {
            round_trip(&*codec(&format!(r#"{{"id": "bz2", "level": {level}}}"#), 1));
        }
    }

    #[test]
    fn streams_of_python_are_decoded() {
        let bz2 = codec(r#"{"id": "bz2"}"#, 1);
        let text = b"hello hello hello hello".to_vec();
        let one = hex(GOLDEN);
        assert_eq!(encoded(&*bz2, &text), one);
        assert_eq!(decoded(&*bz2, &one, 23).unwrap(), text);
        assert_eq!(
            decoded(&*bz2, &[&one[..], &one].concat(), 46).unwrap(),
            [&text[..], &text].concat()
        );
        assert_eq!(
            decoded(&*bz2, &[&one[..], &one].concat(), 30)
                .unwrap_err()
                .0,
            "bz2: holds more than 30 bytes"
        );
        assert_eq!(
            decoded(&*bz2, &[&one[..], b"BZjunk"].concat(), 23).unwrap(),
            text
        );
        assert_eq!(
            decoded(&*bz2, &[&one[..], b"BZh"].concat(), 23)
                .unwrap_err()
                .0,
            "bz2: cut short, 49 bytes"
        );
        assert_eq!(decoded(&*bz2, &[], 23).unwrap(), b"");
    }

    #[test]
    fn damaged_streams_are_errors() {
        let bz2 = codec(r#"{"id": "bz2"}"#, 1);
        hostile(&*bz2, &sample(60));
        let bomb = encoded(&*bz2, &vec![0; 10 << 20]);
        assert!(bomb.len() < 10_000);
        assert!(decoded(&*bz2, &bomb, 100).is_err());
        only_decodes(r#"{"id": "bz2", "level": 0}"#);
    }
}
