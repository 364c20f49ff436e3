//! The codec `zstd`: Zstandard frames one after another, skippable ones between them. It reads more than numcodecs
//! 0.15: frames without a content size, several frames, no bytes at all in a frame. It refuses the formats before zstd
//! 1.0, whose decoders the library keeps but nobody tests any more. It knows nothing of chunks.

use super::streams::Fault;
use super::{Codec, CodecError, EncodeOnly, Size, encode_only};
use crate::error::Result;
use crate::zarr::metadata::CodecConfig;
use std::cell::RefCell;
use zstd_safe::{CCtx, CParameter, DCtx};

/// `{"id": "zstd", "level": 0, "checksum": false}`.
pub struct Zstd {
    level: EncodeOnly<i32>,
    checksum: EncodeOnly<bool>,
}

impl Zstd {
    /// From its parameters. A level above the highest is the highest, as in numcodecs.
    pub fn new(config: &CodecConfig) -> Result<Self> {
        config.only(&["level", "checksum"])?;
        let level = config.int("level", 0, -131_072, i64::MAX);
        let level = encode_only(level.map(|n| n.min(i64::from(zstd_safe::max_c_level())) as i32));
        let checksum = match config.get("checksum") {
            None => Ok(false),
            Some(v) => v.as_bool().ok_or_else(|| config.bad("checksum", "is neither true nor false")),
        };
        Ok(Zstd { level, checksum: encode_only(checksum) })
    }
}

thread_local! {
    static DECODER: RefCell<Option<DCtx<'static>>> = const { RefCell::new(None) };
    static ENCODER: RefCell<Option<CCtx<'static>>> = const { RefCell::new(None) };
}

const MAGIC: u32 = 0xFD2F_B528;

/// Decodes every frame of `encoded` into the front of `out` and returns the bytes made.
pub fn decompress(encoded: &[u8], out: &mut [u8]) -> std::result::Result<usize, Fault> {
    if encoded.is_empty() {
        return Err(Fault::CutShort);
    }
    let (mut rest, mut written) = (encoded, 0);
    while !rest.is_empty() {
        let magic = rest.first_chunk().map(|b| u32::from_le_bytes(*b)).ok_or(Fault::CutShort)?;
        let skippable = magic & 0xFFFF_FFF0 == 0x184D_2A50;
        if magic != MAGIC && !skippable {
            return Err(Fault::Invalid("no zstd frame"));
        }
        let size = zstd_safe::find_frame_compressed_size(rest).map_err(fault)?;
        let (frame, next) = rest.split_at_checked(size).ok_or(Fault::CutShort)?;
        rest = next;
        if !skippable {
            written += decompress_frame(frame, &mut out[written..])?;
        }
    }
    Ok(written)
}

fn decompress_frame(frame: &[u8], out: &mut [u8]) -> std::result::Result<usize, Fault> {
    DECODER.with_borrow_mut(|kept| {
        if kept.is_none() {
            *kept = DCtx::try_create();
        }
        let decoder = kept.as_mut().ok_or(Fault::Invalid("out of memory"))?;
        decoder.decompress(out, frame).map_err(fault)
    })
}

/// The library's error codes, in our words where they matter.
fn fault(code: zstd_safe::ErrorCode) -> Fault {
    match zstd_safe::get_error_name(code) {
        "Destination buffer is too small" => Fault::TooLong,
        "Src size is incorrect" => Fault::CutShort,
        "Restored data doesn't match checksum" => Fault::Invalid("the checksum is wrong"),
        "Dictionary mismatch" => Fault::Invalid("needs a dictionary"),
        _ => Fault::Invalid("damaged"),
    }
}

impl Codec for Zstd {
    fn encoded_size(&self, decoded: usize) -> Size {
        Size::AtMost(decoded.saturating_add(decoded / 8).saturating_add(1024))
    }

    fn decode(&self, encoded: &[u8], out: &mut [u8]) -> std::result::Result<usize, CodecError> {
        decompress(encoded, out).map_err(|fault| fault.broken("zstd", encoded.len(), out.len()))
    }

    fn encode(&self, decoded: &[u8], out: &mut Vec<u8>) -> std::result::Result<(), CodecError> {
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
                *kept = None; // an error may leave it in any state
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
    fn golden() {
        for (bytes, checksum) in GOLDEN.into_iter().zip(["false", "true"]) {
            let zstd = codec(&format!(r#"{{"id": "zstd", "level": 1, "checksum": {checksum}}}"#), 1);
            assert_eq!(encoded(&*zstd, TEXT), hex(bytes));
            assert_eq!(decoded(&*zstd, &hex(bytes), 23).unwrap(), TEXT);
        }
    }

    #[test]
    fn frames() {
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
    fn damage() {
        let zstd = codec(r#"{"id": "zstd"}"#, 1);
        hostile(&*zstd, &sample(100));
        assert!(decoded(&*zstd, &encoded(&*zstd, &vec![0; 10 << 20]), 100).is_err());
        only_decodes(r#"{"id": "zstd", "checksum": 1}"#);
        only_decodes(r#"{"id": "zstd", "level": -131073}"#);
    }
}
