//! The compressor `zlib`: one zlib stream, whose checksum is verified. Source of the rules:
//! Python's `zlib.compress` and `zlib.decompress`; the latter ignores bytes after the stream.

use super::CodecSpec;
use super::deflate::Deflate;
use zarrfs_base::deflate::{self, Container};

/// What is known of the compressor.
pub const SPEC: CodecSpec = CodecSpec {
    id: "zlib",
    parameters: &["level"],
    build: |config, _| {
        Ok(Box::new(Deflate::new(
            config,
            Container::Zlib,
            |encoded, out| {
                let (_, made) = deflate::decompress(Container::Zlib, encoded, out)?;
                Ok(made)
            },
        )))
    },
    v3_names: &["numcodecs.zlib", "zlib"],
    defaults: r#"{"level": 1}"#,
    ..CodecSpec::BYTES
};

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
