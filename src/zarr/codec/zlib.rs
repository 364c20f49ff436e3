//! The compressor `zlib`: one zlib stream, whose checksum is verified. Source of the rules:
//! Python's `zlib.compress` and `zlib.decompress`; the latter ignores bytes after the stream.

use super::deflate::{self, Container};
use super::{Codec, CodecResult, encode_only};
use crate::error::Result;
use crate::zarr::metadata::CodecConfig;

/// The compressor `{"id": "zlib", "level": 1}`.
pub struct Zlib {
    level: CodecResult<i32>,
}

impl Zlib {
    /// Creates the compressor from its parameters.
    pub fn new(config: &CodecConfig) -> Result<Self> {
        config.allow_only(&["level"])?;
        Ok(Zlib {
            level: encode_only(config.int("level", 1, -1, 9).map(|n| n as i32)),
        })
    }
}

impl Codec for Zlib {
    fn decode(&self, encoded: &[u8], out: &mut [u8]) -> CodecResult<usize> {
        let done = deflate::decompress(Container::Zlib, encoded, out);
        done.map(|(_, made)| made)
            .map_err(|e| e.into_codec_error("zlib", encoded.len(), out.len()))
    }

    fn encode(&self, decoded: &[u8], out: &mut Vec<u8>) -> CodecResult<()> {
        deflate::compress(Container::Zlib, self.level.clone()?, decoded, out)
    }
}

#[cfg(test)]
mod tests {
    use crate::zarr::codec::compressor_testing::*;

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
