//! The compressor `zlib`: one zlib stream, whose checksum is verified. Source of the rules:
//! Python's `zlib.compress` and `zlib.decompress`; the latter ignores bytes after the stream.

use super::deflate::Deflate;
use super::spec::lacking_in_numcodecs;
use super::streams::StreamError;
use super::{Codec, CodecConfig, CodecSpec};
use zarrfs_base::deflate::{self, Container};
use zarrfs_base::error::Result;
use zarrfs_base::json::Value;

/// What is known of the compressor.
pub const SPEC: CodecSpec = CodecSpec {
    id: "zlib",
    parameters: &["level"],
    build: |config, _| {
        Ok(Box::new(Deflate::new(
            config,
            Container::Zlib,
            inflate_zlib,
        )))
    },
    v3_names: &["numcodecs.zlib", "zlib"],
    defaults: r#"{"level": 1}"#,
    ..CodecSpec::BYTES
};

/// What is known of the compressor of the package imagecodecs, which may lack header and checksum.
pub const IMAGECODECS: CodecSpec = CodecSpec {
    id: "imagecodecs_deflate",
    parameters: &["level", "raw"],
    build: |config, _| imagecodecs_deflate(config),
    spell: None,
    check_input: lacking_in_numcodecs,
    ..CodecSpec::BYTES
};

fn inflate_zlib(encoded: &[u8], out: &mut [u8]) -> std::result::Result<usize, StreamError> {
    Ok(deflate::decompress(Container::Zlib, encoded, out)?.1)
}

fn inflate_raw(encoded: &[u8], out: &mut [u8]) -> std::result::Result<usize, StreamError> {
    Ok(deflate::decompress(Container::None, encoded, out)?.1)
}

/// Creates the compressor `{"id": "imagecodecs_deflate", "level": 6, "raw": false}`. Its library
/// has levels up to 12.
fn imagecodecs_deflate(config: &CodecConfig) -> Result<Box<dyn Codec>> {
    let level = config.int("level", 6, i64::MIN, i64::MAX)?.clamp(0, 9);
    let config = config.clone().with("level", level.into());
    let is_raw = config.get("raw").and_then(Value::as_bool);
    Ok(Box::new(if is_raw.unwrap_or(false) {
        Deflate::new(&config, Container::None, inflate_raw)
    } else {
        Deflate::new(&config, Container::Zlib, inflate_zlib)
    }))
}

#[cfg(test)]
mod tests {
    use crate::codec::testing::compressors::*;

    #[test]
    fn round_trips() {
        for level in [-1, 0, 1, 6, 9] {
            round_trip(&*codec(
                &format!(r#"{{"id": "zlib", "level": {level}}}"#),
                1,
            ));
        }
    }

    /// `zlib.compress(b"hello hello hello hello", 1)`.
    const GOLDEN: &str = "7801cb48cdc9c957c8402701680308b1";

    #[test]
    fn streams_of_python_are_decoded() {
        let zlib = codec(r#"{"id": "zlib"}"#, 1);
        assert_eq!(
            decoded(&*zlib, &hex(GOLDEN), 23).unwrap(),
            b"hello hello hello hello"
        );
        let mut tail = hex(GOLDEN);
        tail.extend(hex(GOLDEN));
        assert_eq!(
            decoded(&*zlib, &tail, 23).unwrap(),
            b"hello hello hello hello",
            "what follows is ignored"
        );
        assert_eq!(
            decoded(&*zlib, &tail, 22).unwrap_err().0,
            "zlib: holds more than 22 bytes"
        );
    }

    /// `imagecodecs.deflate_encode(b"abc" * 100, raw=True)`, of imagecodecs 2026.3.6.
    const RAW: &str = "4b4c4a4e1c45c42100";

    #[test]
    fn streams_of_imagecodecs_are_decoded() {
        let text = b"abc".repeat(100);
        let wrapped = format!("789c{RAW}884d72d9");
        for (raw, value) in [("false", &wrapped[..]), ("null", &wrapped), ("true", RAW)] {
            for level in ["null", "-1", "1", "12"] {
                let config =
                    format!(r#"{{"id": "imagecodecs_deflate", "level": {level}, "raw": {raw}}}"#);
                let deflate = codec(&config, 1);
                assert_eq!(decoded(&*deflate, &hex(value), 300).unwrap(), text);
                assert!(decoded(&*deflate, &hex(value), 299).is_err());
                round_trip(&*deflate);
            }
            hostile(
                &*codec(
                    &format!(r#"{{"id": "imagecodecs_deflate", "raw": {raw}}}"#),
                    1,
                ),
                &sample(100),
            );
        }
    }

    #[test]
    fn damaged_streams_are_errors() {
        let zlib = codec(r#"{"id": "zlib"}"#, 1);
        hostile(&*zlib, &sample(100));
        assert!(decoded(&*zlib, &[], 10).is_err());
        let gzip = encoded(&*codec(r#"{"id": "gzip"}"#, 1), b"abc");
        assert!(decoded(&*zlib, &gzip, 3).is_err());
    }

    #[test]
    fn invalid_parameters_are_refused_or_only_decode() {
        refused(r#"{"id": "zlib", "wbits": 15}"#);
        only_decodes(r#"{"id": "zlib", "level": 10}"#);
        only_decodes(r#"{"id": "zlib", "level": "1"}"#);
    }
}
