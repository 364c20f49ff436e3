//! The filter `base64`. Source of the rules: `numcodecs.Base64`, which uses Python's `base64` and
//! so ignores characters outside the alphabet.

use super::{Codec, CodecError, CodecResult, CodecSpec, Size, buffer};
use ::base64::Engine;
use ::base64::engine::general_purpose::STANDARD;
use zarrfs_base::json;

/// What is known of the filter.
pub const SPEC: CodecSpec = CodecSpec {
    id: "base64",
    build: |_, _| Ok(Box::new(Base64)),
    ..CodecSpec::BYTES
};

/// The filter `base64`, which has no parameters.
pub struct Base64;

impl Codec for Base64 {
    fn encoded_size(&self, decoded: usize) -> Size {
        Size::Exact(decoded.div_ceil(3).saturating_mul(4))
    }

    fn decode(&self, encoded: &[u8], out: &mut [u8]) -> CodecResult<usize> {
        // text without line breaks needs no copy
        if let Ok(len) = STANDARD.decode_slice(encoded, out) {
            return Ok(len);
        }
        let bytes =
            json::base64_decode(encoded).ok_or_else(|| CodecError::new("not valid base64"))?;
        buffer::copy(&bytes, out)
    }

    fn encode(&self, decoded: &[u8], out: &mut Vec<u8>) -> CodecResult<()> {
        out.resize(self.encoded_size(decoded.len()).max(), 0);
        let len = STANDARD
            .encode_slice(decoded, out)
            .map_err(|e| CodecError::new(e.to_string()))?;
        out.truncate(len);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::codec::testing::{broken, check, decoded, refused};

    #[test]
    fn worked_examples() {
        let config = r#"{"id": "base64"}"#;
        check(config, b"hello", b"aGVsbG8=");
        check(config, b"", b"");
        assert_eq!(decoded(config, b" aGV\nsbG8=", 5), b"hello");
        broken(config, b"aGVsbG8");
        refused(r#"{"id": "base64", "alphabet": "x"}"#);
    }
}
