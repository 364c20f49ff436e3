//! Helpers for the unit tests of filters: a codec from its JSON, and checks of both directions.
//! Those for compressors are in `compressors`; `limits` tests all codecs.

pub mod compressors;
mod limits;

use super::{Codec, CodecConfig, build};
use zarrfs_base::json;

/// Parses a configuration.
pub fn config(text: &str) -> CodecConfig {
    CodecConfig::parse(&json::parse(text.as_bytes()).unwrap()).unwrap()
}

fn codec(text: &str, itemsize: usize) -> Box<dyn Codec> {
    build(&config(text), itemsize).unwrap()
}

/// Returns the encoding of `decoded` and checks its size.
pub fn encoded(text: &str, decoded: &[u8]) -> Vec<u8> {
    encoded_as(text, 1, decoded)
}

/// Does what [`encoded`] does for items of `itemsize` bytes.
pub fn encoded_as(text: &str, itemsize: usize, decoded: &[u8]) -> Vec<u8> {
    let codec = codec(text, itemsize);
    let mut out = Vec::new();
    codec.encode(decoded, &mut out).unwrap();
    assert!(out.len() <= codec.encoded_size(decoded.len()).max());
    out
}

/// Decodes `encoded` with an output of `room` bytes.
pub fn decoded(text: &str, encoded: &[u8], room: usize) -> Vec<u8> {
    let mut out = vec![0xaa; room];
    let len = codec(text, 1).decode(encoded, &mut out).unwrap();
    out.truncate(len);
    out
}

/// Checks both directions, and that an output one byte too short is an error.
pub fn check(text: &str, plain: &[u8], stored: &[u8]) {
    assert_eq!(encoded(text, plain), stored, "{text}");
    assert_eq!(decoded(text, stored, plain.len() + 3), plain, "{text}");
    if let Some(less) = plain.len().checked_sub(1) {
        assert!(
            codec(text, 1).decode(stored, &mut vec![0; less]).is_err(),
            "{text}"
        );
    }
}

/// Checks that `encoded` bytes cannot be decoded.
pub fn broken(text: &str, encoded: &[u8]) {
    assert!(
        codec(text, 1).decode(encoded, &mut [0; 1000]).is_err(),
        "{text}"
    );
}

/// Checks that a configuration is refused.
pub fn refused(text: &str) {
    assert!(build(&config(text), 1).is_err(), "{text}");
}
