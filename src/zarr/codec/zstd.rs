//! The compressor `zstd`: a sequence of Zstandard frames, which may include skippable frames. The decoder reads more
//! than numcodecs 0.15: frames without a content size, several frames, and empty frames. It refuses the formats before
//! zstd 1.0, whose decoders in the library are no longer tested.

use super::streams::StreamError;
use super::{Codec, CodecError, CodecResult, encode_only};
use crate::error::Result;
use crate::zarr::metadata::CodecConfig;
use std::cell::RefCell;
use zstd_safe::zstd_sys::ZSTD_ErrorCode;
use zstd_safe::{CCtx, CParameter, DCtx};

/// The compressor `{"id": "zstd", "level": 0, "checksum": false}`.
pub struct Zstd {
    level: CodecResult<i32>,
    checksum: CodecResult<bool>,
}

impl Zstd {
    /// Creates the compressor from its parameters. A level above the highest counts as the highest, as in numcodecs.
    pub fn new(config: &CodecConfig) -> Result<Self> {
        config.allow_only(&["level", "checksum"])?;
        let level = config.int("level", 0, -131_072, i64::MAX);
        let level = encode_only(level.map(|n| n.min(i64::from(zstd_safe::max_c_level())) as i32));
        let checksum = match config.get("checksum") {
            None => Ok(false),
            Some(value) => value.as_bool().ok_or_else(|| config.invalid("checksum", "is neither true nor false")),
        };
        Ok(Zstd { level, checksum: encode_only(checksum) })
    }
}

thread_local! {
    static DECODER: RefCell<Option<DCtx<'static>>> = const { RefCell::new(None) };
    static ENCODER: RefCell<Option<CCtx<'static>>> = const { RefCell::new(None) };
}

/// The first four bytes of a frame, as a little-endian number.
const MAGIC: u32 = 0xFD2F_B528;

/// Decodes every frame of `encoded` into the front of `out` and returns the number of bytes written.
pub fn decompress(encoded: &[u8], out: &mut [u8]) -> std::result::Result<usize, StreamError> {
    if encoded.is_empty() {
        return Err(StreamError::CutShort);
    }
    let (mut rest, mut written) = (encoded, 0);
    while !rest.is_empty() {
        let magic = rest.first_chunk().map(|b| u32::from_le_bytes(*b)).ok_or(StreamError::CutShort)?;
        let is_skippable = magic & 0xFFFF_FFF0 == 0x184D_2A50;
        if magic != MAGIC && !is_skippable {
            return Err(StreamError::Invalid("no zstd frame"));
        }
        let size = zstd_safe::find_frame_compressed_size(rest).map_err(stream_error)?;
        let (frame, next) = rest.split_at_checked(size).ok_or(StreamError::CutShort)?;
        rest = next;
        if !is_skippable {
            written += decompress_frame(frame, &mut out[written..])?;
        }
    }
    Ok(written)
}

fn decompress_frame(frame: &[u8], out: &mut [u8]) -> std::result::Result<usize, StreamError> {
    DECODER.with_borrow_mut(|kept| {
        if kept.is_none() {
            *kept = DCtx::try_create();
        }
        let decoder = kept.as_mut().ok_or(StreamError::Invalid("out of memory"))?;
        decoder.decompress(out, frame).map_err(stream_error)
    })
}

/// Returns the stream error for an error code of the library.
fn stream_error(code: zstd_safe::ErrorCode) -> StreamError {
    // the library returns its codes negated
    let is = |error: ZSTD_ErrorCode| code == (error as usize).wrapping_neg();
    match () {
        () if is(ZSTD_ErrorCode::ZSTD_error_dstSize_tooSmall) => StreamError::TooLong,
        () if is(ZSTD_ErrorCode::ZSTD_error_srcSize_wrong) => StreamError::CutShort,
        () if is(ZSTD_ErrorCode::ZSTD_error_checksum_wrong) => StreamError::Invalid("the checksum is wrong"),
        () if is(ZSTD_ErrorCode::ZSTD_error_dictionary_wrong) => StreamError::Invalid("needs a dictionary"),
        () => StreamError::Invalid("damaged"),
    }
}

impl Codec for Zstd {
    fn decode(&self, encoded: &[u8], out: &mut [u8]) -> CodecResult<usize> {
        decompress(encoded, out).map_err(|e| e.into_codec_error("zstd", encoded.len(), out.len()))
    }

    fn encode(&self, decoded: &[u8], out: &mut Vec<u8>) -> CodecResult<()> {
        let (level, checksum) = (self.level.clone()?, self.checksum.clone()?);
        ENCODER.with_borrow_mut(|kept| {
            if kept.is_none() {
                *kept = CCtx::try_create();
            }
            let encoder = kept.as_mut().ok_or_else(|| CodecError::new("zstd: out of memory"))?;
            out.reserve(zstd_safe::compress_bound(decoded.len()));
            let done = encoder
                .set_parameter(CParameter::CompressionLevel(level))
                .and_then(|_| encoder.set_parameter(CParameter::ChecksumFlag(checksum)))
                .and_then(|_| encoder.compress2(out, decoded));
            done.map(|_| ()).map_err(|code| {
                *kept = None; // an error may leave the context in any state
                CodecError(format!("zstd: {}", zstd_safe::get_error_name(code)))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::decompress;
    use crate::zarr::codec::compressor_testing::*;

    /// `Zstd(1).encode(b"hello hello hello hello")`, without and with a checksum.
    const GOLDEN: [&str; 2] =
        ["28b52ffd20176500003068656c6c6f200100994b11", "28b52ffd24176500003068656c6c6f200100994b11175eae0d"];
    const TEXT: &[u8] = b"hello hello hello hello";

    #[test]
    fn round_trips() {
        for level in [-100, 0, 1, 3, 30] {
            round_trip(&*codec(&format!(r#"{{"id": "zstd", "level": {level}, "checksum": false}}"#), 1));
        }
        round_trip(&*codec(r#"{"id": "zstd", "checksum": true}"#, 1));
    }

    #[test]
    fn frames_of_numcodecs_are_decoded() {
        for (bytes, checksum) in GOLDEN.into_iter().zip(["false", "true"]) {
            let zstd = codec(&format!(r#"{{"id": "zstd", "level": 1, "checksum": {checksum}}}"#), 1);
            assert_eq!(encoded(&*zstd, TEXT), hex(bytes));
            assert_eq!(decoded(&*zstd, &hex(bytes), 23).unwrap(), TEXT);
        }
    }

    #[test]
    fn all_kinds_of_frames_are_decoded() {
        let one = hex(GOLDEN[0]);
        let skippable = hex("5a2a4d18 03000000 aabbcc");
        // a frame without a content size, as a stream makes it
        let unsized_one = hex("28b52ffd 0058 b9000068656c6c6f2068656c6c6f2068656c6c6f2068656c6c6f");
        let mut out = [0; 69];
        let all = [&skippable[..], &one, &skippable, &unsized_one, &one].concat();
        assert_eq!(decompress(&all, &mut out).unwrap(), 69);
        assert_eq!(out.to_vec(), TEXT.repeat(3));
        let zstd = codec(r#"{"id": "zstd"}"#, 1);
        assert_eq!(decoded(&*zstd, &all, 68).unwrap_err().0, "zstd: holds more than 68 bytes");
        assert_eq!(decoded(&*zstd, &all[..all.len() - 1], 69).unwrap_err().0, "zstd: cut short, 95 bytes");
        assert_eq!(decoded(&*zstd, &[&one[..], b"junk"].concat(), 23).unwrap_err().0, "zstd: no zstd frame, 25 bytes");
        assert!(decoded(&*zstd, &[], 23).is_err());
        // zstd 0.7
        assert_eq!(decoded(&*zstd, &hex("27b52ffd00000000"), 23).unwrap_err().0, "zstd: no zstd frame, 8 bytes");
        let mut wrong = hex(GOLDEN[1]);
        *wrong.last_mut().unwrap() ^= 1;
        assert_eq!(decoded(&*zstd, &wrong, 23).unwrap_err().0, "zstd: the checksum is wrong, 25 bytes");
    }

    #[test]
    fn damaged_frames_are_errors() {
        let zstd = codec(r#"{"id": "zstd"}"#, 1);
        hostile(&*zstd, &sample(100));
        assert!(decoded(&*zstd, &encoded(&*zstd, &vec![0; 10 << 20]), 100).is_err());
        only_decodes(r#"{"id": "zstd", "checksum": 1}"#);
        only_decodes(r#"{"id": "zstd", "level": -131073}"#);
    }
}
