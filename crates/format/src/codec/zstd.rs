//! The compressor `zstd`: a sequence of Zstandard frames, which may include skippable frames. The
//! decoder reads more than numcodecs 0.15: frames without a content size, several frames, and empty
//! frames. It refuses the formats before zstd 1.0, whose decoders in the library are no longer
//! tested.

mod frame;

pub use frame::ZstdFrame;

use super::spec::{is_plain, lacking_in_numcodecs};
use super::streams::StreamError;
use super::v3::{check_int, plain};
use super::{Codec, CodecConfig, CodecError, CodecResult, CodecSpec, PartialDecode, encode_only};
use zarrfs_base::error::Result;
use zarrfs_base::memory::Spares;
use zstd_safe::zstd_sys::{ZSTD_ErrorCode, ZSTD_estimateCCtxSize_usingCParams, ZSTD_getCParams};
use zstd_safe::{CCtx, CParameter, DCtx};

/// What is known of the compressor.
pub const SPEC: CodecSpec = CodecSpec {
    id: "zstd",
    parameters: &["level", "checksum"],
    build: |config, _| Ok(Box::new(Zstd::new(config)?)),
    v3_names: &["zstd", "numcodecs.zstd"],
    parse: |spec, codec, _| {
        if codec.name == "zstd" {
            check_int(codec, "level", -131_072, 22)?;
        }
        plain(spec, codec).map(Some)
    },
    spell: Some(|configuration, _| {
        configuration.entry("level").or_insert(0.into());
        configuration.entry("checksum").or_insert(false.into());
    }),
    defaults: r#"{"level": 1}"#,
    accepts: |_, name, value| Ok(is_plain(value) || name == "checksum" && value.is_boolean()),
    ..CodecSpec::BYTES
};

/// What is known of the compressor of the package imagecodecs, which has another name and default.
pub const IMAGECODECS: CodecSpec = CodecSpec {
    id: "imagecodecs_zstd",
    parameters: &["level"],
    build: |config, _| {
        let level = config.get("level").cloned().unwrap_or(5.into());
        Ok(Box::new(Zstd::new(&config.clone().with("level", level))?))
    },
    spell: None,
    check_input: lacking_in_numcodecs,
    ..CodecSpec::BYTES
};

/// The compressor `{"id": "zstd", "level": 0, "checksum": false}`.
pub struct Zstd {
    level: CodecResult<i32>,
    checksum: CodecResult<bool>,
}

impl Zstd {
    /// Creates the compressor from its parameters. A level above the highest counts as the highest,
    /// as in numcodecs.
    pub fn new(config: &CodecConfig) -> Result<Self> {
        let level = config.int("level", 0, -131_072, i64::MAX);
        let level = encode_only(level.map(|n| n.min(i64::from(zstd_safe::max_c_level())) as i32));
        let checksum = match config.get("checksum") {
            None => Ok(false),
            Some(value) => value
                .as_bool()
                .ok_or_else(|| config.invalid("checksum", "is neither true nor false")),
        };
        Ok(Zstd {
            level,
            checksum: encode_only(checksum),
        })
    }
}

static DECODERS: Spares<DCtx<'static>> = Spares::new();

/// Maximum size in bytes of an encoder that is kept. Those of high levels take much more, and much
/// longer to encode than to be made.
const MAX_KEPT: usize = 2 << 20;

/// Encoders of at most [`MAX_KEPT`] bytes.
static ENCODERS: Spares<CCtx<'static>> = Spares::new();

/// The first four bytes of a frame, as a little-endian number.
const MAGIC: u32 = 0xFD2F_B528;

/// Decodes every frame of `encoded` into the front of `out` and returns the number of bytes
/// written.
pub fn decompress(encoded: &[u8], out: &mut [u8]) -> std::result::Result<usize, StreamError> {
    if encoded.is_empty() {
        return Err(StreamError::CutShort);
    }
    let mut rest = encoded;
    let mut written = 0;
    while !rest.is_empty() {
        let magic = rest
            .first_chunk()
            .map(|b| u32::from_le_bytes(*b))
            .ok_or(StreamError::CutShort)?;
        let is_skippable = magic & 0xFFFF_FFF0 == 0x184D_2A50;
        if magic != MAGIC && !is_skippable {
            return Err(StreamError::Invalid("no zstd frame"));
        }
        let size = zstd_safe::find_frame_compressed_size(rest).map_err(stream_error)?;
        let (frame, next) = rest.split_at_checked(size).ok_or(StreamError::CutShort)?;
        rest = next;
        if !is_skippable {
            let room = &mut out[written..];
            written +=
                with_decoder(|decoder| decoder.decompress(room, frame).map_err(stream_error))?;
        }
    }
    Ok(written)
}

/// Calls `work` with a decoder in any state.
fn with_decoder<T>(
    work: impl FnOnce(&mut DCtx<'static>) -> std::result::Result<T, StreamError>,
) -> std::result::Result<T, StreamError> {
    let decoder = DECODERS.take().or_else(DCtx::try_create);
    let mut decoder = decoder.ok_or(StreamError::Invalid("out of memory"))?;
    let done = work(&mut decoder);
    DECODERS.keep(decoder);
    done
}

/// Returns the memory in bytes of an encoder for `len` bytes.
pub fn encoder_memory(level: i32, len: usize) -> usize {
    // zero would stand for an unknown length
    let len = len.max(1) as u64;
    // SAFETY: both calls take and return numbers alone.
    unsafe { ZSTD_estimateCCtxSize_usingCParams(ZSTD_getCParams(level, len, 0)) }
}

/// Returns the stream error for an error code of the library.
fn stream_error(code: zstd_safe::ErrorCode) -> StreamError {
    const TOO_SMALL: usize = ZSTD_ErrorCode::ZSTD_error_dstSize_tooSmall as usize;
    const WRONG_SIZE: usize = ZSTD_ErrorCode::ZSTD_error_srcSize_wrong as usize;
    const WRONG_CHECKSUM: usize = ZSTD_ErrorCode::ZSTD_error_checksum_wrong as usize;
    const WRONG_DICTIONARY: usize = ZSTD_ErrorCode::ZSTD_error_dictionary_wrong as usize;
    // the library returns its codes negated
    match code.wrapping_neg() {
        TOO_SMALL => StreamError::TooLong,
        WRONG_SIZE => StreamError::CutShort,
        WRONG_CHECKSUM => StreamError::Invalid("the checksum is wrong"),
        WRONG_DICTIONARY => StreamError::Invalid("needs a dictionary"),
        _ => StreamError::Invalid("damaged"),
    }
}

impl Codec for Zstd {
    fn partial_decode(&self) -> PartialDecode {
        PartialDecode::Zstd
    }

    fn decode(&self, encoded: &[u8], out: &mut [u8]) -> CodecResult<usize> {
        decompress(encoded, out).map_err(|e| e.into_codec_error("zstd", encoded.len(), out.len()))
    }

    fn encoder_memory(&self, decoded: usize) -> usize {
        let level = self.level.as_ref().map_or(0, |level| *level);
        encoder_memory(level, decoded)
    }

    fn encode(&self, decoded: &[u8], out: &mut Vec<u8>) -> CodecResult<()> {
        let level = self.level.clone()?;
        let checksum = self.checksum.clone()?;
        let mut encoder = ENCODERS
            .take()
            .or_else(CCtx::try_create)
            .ok_or_else(|| CodecError::new("zstd: out of memory"))?;
        out.reserve(zstd_safe::compress_bound(decoded.len()));
        encoder
            .set_parameter(CParameter::CompressionLevel(level))
            .and_then(|_| encoder.set_parameter(CParameter::ChecksumFlag(checksum)))
            .and_then(|_| encoder.compress2(out, decoded))
            .map_err(|code| CodecError(format!("zstd: {}", zstd_safe::get_error_name(code))))?;
        // not after an error, which may leave it in any state
        if encoder.sizeof() <= MAX_KEPT {
            ENCODERS.keep(encoder);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{ZstdFrame, decompress, encoder_memory};
    use crate::codec::testing::compressors::*;
    use proptest::prelude::*;

    /// `Zstd(1).encode(b"hello hello hello hello")`, without and with a checksum.
    const GOLDEN: [&str; 2] = [
        "28b52ffd20176500003068656c6c6f200100994b11",
        "28b52ffd24176500003068656c6c6f200100994b11175eae0d",
    ];
    const TEXT: &[u8] = b"hello hello hello hello";

    #[test]
    fn round_trips() {
        for level in [-100, 0, 1, 3, 30] {
            round_trip(&*codec(
                &format!(r#"{{"id": "zstd", "level": {level}, "checksum": false}}"#),
                1,
            ));
        }
        round_trip(&*codec(r#"{"id": "zstd", "checksum": true}"#, 1));
    }

    #[test]
    fn imagecodecs_has_frames_of_zstd() {
        let zstd = codec(r#"{"id": "imagecodecs_zstd", "level": null}"#, 1);
        // imagecodecs 2026.3.6 has encoded it
        let value = hex("28b52ffd602c0055000018616263010026aa6e08");
        let text = b"abc".repeat(100);
        assert_eq!(decoded(&*zstd, &value, 300).unwrap(), text);
        assert_eq!(encoded(&*zstd, &text), value);
        round_trip(&*zstd);
        refused(r#"{"id": "imagecodecs_zstd", "checksum": true}"#);
    }

    #[test]
    fn encoders_take_no_more_memory_than_stated() {
        let bytes: Vec<u8> = (0..1 << 21)
            .map(|i: u32| (i.wrapping_mul(i) >> 9) as u8)
            .collect();
        for level in [-5, 0, 1, 3, 7, 12, 16, 19, 22] {
            for len in [1, 1000, 100_000, 200_000, bytes.len()] {
                let mut encoder = zstd_safe::CCtx::create();
                let level_set = zstd_safe::CParameter::CompressionLevel(level);
                encoder.set_parameter(level_set).unwrap();
                let mut out = Vec::with_capacity(len + 1000);
                encoder.compress2(&mut out, &bytes[..len]).unwrap();
                let taken = encoder.sizeof();
                assert!(taken <= encoder_memory(level, len), "{level} {len} {taken}");
            }
        }
    }

    #[test]
    fn frames_of_numcodecs_are_decoded() {
        for (bytes, checksum) in GOLDEN.into_iter().zip(["false", "true"]) {
            let zstd = codec(
                &format!(r#"{{"id": "zstd", "level": 1, "checksum": {checksum}}}"#),
                1,
            );
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
        assert_eq!(
            decoded(&*zstd, &all, 68).unwrap_err().0,
            "zstd: holds more than 68 bytes"
        );
        assert_eq!(
            decoded(&*zstd, &all[..all.len() - 1], 69).unwrap_err().0,
            "zstd: cut short, 95 bytes"
        );
        assert_eq!(
            decoded(&*zstd, &[&one[..], b"junk"].concat(), 23)
                .unwrap_err()
                .0,
            "zstd: no zstd frame, 25 bytes"
        );
        assert!(decoded(&*zstd, &[], 23).is_err());
        // zstd 0.7
        assert_eq!(
            decoded(&*zstd, &hex("27b52ffd00000000"), 23).unwrap_err().0,
            "zstd: no zstd frame, 8 bytes"
        );
        let mut wrong = hex(GOLDEN[1]);
        *wrong.last_mut().unwrap() ^= 1;
        assert_eq!(
            decoded(&*zstd, &wrong, 23).unwrap_err().0,
            "zstd: the checksum is wrong, 25 bytes"
        );
    }

    #[test]
    fn damaged_frames_are_errors() {
        let zstd = codec(r#"{"id": "zstd"}"#, 1);
        hostile(&*zstd, &sample(100));
        assert!(decoded(&*zstd, &encoded(&*zstd, &vec![0; 10 << 20]), 100).is_err());
        only_decodes(r#"{"id": "zstd", "checksum": 1}"#);
        only_decodes(r#"{"id": "zstd", "level": -131073}"#);
    }

    /// Returns `len` bytes with runs that repeat.
    fn value(len: usize, seed: u64) -> Vec<u8> {
        let mut state = seed | 1;
        std::iter::repeat_with(|| {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            std::iter::repeat_n((state >> 60) as u8, 1 + (state >> 32) as usize % 40)
        })
        .flatten()
        .take(len)
        .collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// The beginning of a frame decodes to the beginning of the value, and no damage is more
        /// than an error.
        #[test]
        fn a_beginning_decodes_to_the_beginning_of_the_value(
            size in prop_oneof![0..5000usize, 0..600_000usize],
            len in any::<proptest::sample::Index>(),
            (seed, level) in (any::<u64>(), -5..10),
            (damage, cut) in (any::<proptest::sample::Index>(), any::<proptest::sample::Index>()),
        ) {
            let value = value(size, seed);
            let len = len.index(size + 1);
            let zstd = codec(&format!(r#"{{"id": "zstd", "level": {level}, "checksum": false}}"#), 1);
            let mut frame = encoded(&*zstd, &value);
            let header = ZstdFrame::parse(&frame, frame.len()).unwrap();
            prop_assert_eq!((header.nbytes(), header.cbytes()), (size, frame.len()));
            let len = header.decoded_len(len);
            let mut out = vec![7; size];
            header.decode_beginning(&frame, len, &mut out).unwrap();
            prop_assert!(out[..len] == value[..len]);
            if let Err(e) = header.decode_beginning(&frame[..cut.index(frame.len())], size, &mut out) {
                prop_assert!(e.0.starts_with("zstd: "), "{}", e.0);
            } else {
                prop_assert!(size == 0);
            }
            let at = damage.index(frame.len());
            frame[at] ^= 1 << (seed % 8);
            if let Some(header) = ZstdFrame::parse(&frame, frame.len()).filter(|header| header.nbytes() == size) {
                let _ = header.decode_beginning(&frame, len, &mut out);
            }
        }
    }

    #[test]
    fn only_frames_without_a_checksum_have_beginnings() {
        let [plain, checked] = GOLDEN.map(hex);
        assert!(ZstdFrame::parse(&plain, plain.len()).is_some_and(|frame| frame.nbytes() == 23));
        assert_eq!(ZstdFrame::parse(&checked, checked.len()), None);
        let mut unsized_frame = Vec::new();
        // a frame of an empty last block, without a content size
        unsized_frame.extend(hex("28b52ffd0058010000"));
        assert_eq!(ZstdFrame::parse(&unsized_frame, unsized_frame.len()), None);
        for len in 0..plain.len() {
            let _ = ZstdFrame::parse(&plain[..len], len);
        }
        assert_eq!(
            ZstdFrame::parse(&hex("502a4d1800000000"), 8),
            None,
            "a skippable frame"
        );
    }
}
