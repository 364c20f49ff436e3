//! The compressor `gzip`: a sequence of gzip members. Source of the rules: Python's `gzip` module,
//! which skips NUL bytes after a member and refuses any other trailing byte. An early C++ writer
//! stored zlib streams under this name, which are recognized by their first two bytes.

use super::CodecSpec;
use super::deflate::{Deflate, is_zlib};
use super::streams::StreamError;
use super::v3::{check_int, plain};
use zarrfs_base::deflate::{self, Container};

/// What is known of the compressor.
pub const SPEC: CodecSpec = CodecSpec {
    id: "gzip",
    parameters: &["level"],
    build: |config, _| Ok(Box::new(Deflate::new(config, Container::Gzip, decompress))),
    v3_names: &["gzip", "numcodecs.gzip"],
    parse: |spec, codec, _| {
        if codec.name == "gzip" {
            check_int(codec, "level", 0, 9)?;
        }
        plain(spec, codec).map(Some)
    },
    spell: Some(|configuration, _| {
        configuration.entry("level").or_insert(1.into());
    }),
    defaults: r#"{"level": 1}"#,
    ..CodecSpec::BYTES
};

/// Decodes the members of `encoded`, or the zlib stream that it is, and returns the number of bytes
/// written.
fn decompress(encoded: &[u8], out: &mut [u8]) -> Result<usize, StreamError> {
    if is_zlib(encoded) {
        let (_, made) = deflate::decompress(Container::Zlib, encoded, out)?;
        return Ok(made);
    }
    let mut rest = encoded;
    let mut written = 0;
    while !rest.is_empty() {
        if !rest.starts_with(&[0x1f, 0x8b]) {
            let first = rest.len() == encoded.len();
            return Err(StreamError::Invalid(if first {
                "no gzip header"
            } else {
                "other bytes after the data"
            }));
        }
        let (used, made) = deflate::decompress(Container::Gzip, rest, &mut out[written..])?;
        written += made;
        rest = &rest[used..];
        rest = &rest[rest.iter().take_while(|b| **b == 0).count()..];
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use crate::codec::testing::compressors::*;

    /// `gzip.compress(b"hello hello hello hello", 1, mtime=0)`.
    const GOLDEN: &str = "1f8b0800000000000403cb48cdc9c957c8402701e3513d8d17000000";

    #[test]
    fn round_trips() {
        for level in [-1, 0, 1, 9] {
            round_trip(&*codec(
                &format!(r#"{{"id": "gzip", "level": {level}}}"#),
                1,
            ));
        }
        assert_eq!(
            encoded(&*codec(r#"{"id": "gzip"}"#, 1), b"x")[..10],
            hex("1f8b08000000000004ff")
        );
    }

    #[test]
    fn members_are_joined() {
        let gzip = codec(r#"{"id": "gzip"}"#, 1);
        let text = b"hello hello hello hello".to_vec();
        let one = hex(GOLDEN);
        assert_eq!(decoded(&*gzip, &one, 23).unwrap(), text);
        assert_eq!(
            decoded(&*gzip, &[&one[..], &[0; 9], &one, &[0]].concat(), 46).unwrap(),
            [&text[..], &text].concat()
        );
        assert_eq!(
            decoded(&*gzip, &[&one[..], &one].concat(), 45)
                .unwrap_err()
                .0,
            "gzip: holds more than 45 bytes"
        );
        let e = decoded(&*gzip, &[&one[..], &[0, 7]].concat(), 23).unwrap_err();
        assert_eq!(e.0, "gzip: other bytes after the data, 30 bytes");
        assert_eq!(decoded(&*gzip, &[], 23).unwrap(), b"");
        assert!(decoded(&*gzip, &[0, 0], 23).is_err());
    }

    #[test]
    fn optional_header_fields_are_skipped() {
        let gzip = codec(r#"{"id": "gzip"}"#, 1);
        let mut named = hex("1f8b 08 1e 01020304 00 03 0300 616263 6e616d6500 6e6f746500 0000");
        named.extend(&hex(GOLDEN)[10..]);
        // the last two bytes before the data are the header's CRC-16, which Python doesn't verify
        assert_eq!(
            decoded(&*gzip, &named, 23).unwrap(),
            b"hello hello hello hello"
        );
    }

    #[test]
    fn a_zlib_stream_under_this_name_is_decoded() {
        let bytes = encoded(&*codec(r#"{"id": "zlib"}"#, 1), b"abcabc");
        assert_eq!(
            decoded(&*codec(r#"{"id": "gzip"}"#, 1), &bytes, 6).unwrap(),
            b"abcabc"
        );
    }

    #[test]
    fn damaged_members_are_errors() {
        hostile(&*codec(r#"{"id": "gzip"}"#, 1), &sample(100));
        refused(r#"{"id": "gzip", "mtime": 0}"#);
    }
}
