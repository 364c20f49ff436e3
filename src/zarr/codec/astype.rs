//! The filter `astype`: numbers stored as another type. Source of the rules: `numcodecs.AsType`,
//! which uses NumPy's casts.

use super::items::{self, Items};
use super::{Codec, CodecResult, Size};
use crate::error::Result;
use crate::zarr::metadata::CodecConfig;

/// The filter `astype`.
pub struct AsType {
    decoded: Items,
    encoded: Items,
}

impl AsType {
    /// Creates the filter from `encode_dtype` and `decode_dtype`.
    pub fn new(config: &CodecConfig) -> Result<Self> {
        config.allow_only(&["encode_dtype", "decode_dtype"])?;
        let encoded = Items::param(config, "encode_dtype", None)?;
        let decoded = Items::param(config, "decode_dtype", None)?;
        if !items::same_units(config, "encode_dtype", "decode_dtype")? {
            return Err(items::not_numeric(config, "encode_dtype"));
        }
        Ok(AsType { decoded, encoded })
    }
}

impl Codec for AsType {
    fn encoded_size(&self, decoded: usize) -> Size {
        self.decoded.encoded_size(self.encoded, decoded)
    }

    fn encoded_itemsize(&self) -> usize {
        self.encoded.size()
    }

    fn is_lossless(&self) -> bool {
        self.decoded.is_preserved_by(self.encoded)
    }

    fn decode(&self, encoded: &[u8], out: &mut [u8]) -> CodecResult<usize> {
        items::decode(
            self.encoded,
            self.encoded.scalar,
            self.decoded,
            encoded,
            out,
            |_| {},
        )
    }

    fn encode(&self, decoded: &[u8], out: &mut Vec<u8>) -> CodecResult<()> {
        items::encode(
            self.decoded,
            self.decoded.scalar,
            self.encoded,
            decoded,
            out,
            |_| {},
        )
    }
}

#[cfg(test)]
mod tests {
    use crate::zarr::codec::testing::{broken, check, encoded, refused};

    #[test]
    fn worked_examples() {
        let config = r#"{"id": "astype", "encode_dtype": "|i1", "decode_dtype": ">i2"}"#;
        check(config, &[0, 100, 255, 254], &[100, 254]);
        broken(
            r#"{"id": "astype", "encode_dtype": "<i2", "decode_dtype": "<i4"}"#,
            &[1, 2, 3],
        );
        let f4 = |v: f32| v.to_le_bytes();
        let to_u1 = r#"{"id": "astype", "encode_dtype": "|u1", "decode_dtype": "<f4"}"#;
        let values = [-1.0, 256.0, 300.7, f32::NAN, 3e9].map(f4).concat();
        assert_eq!(encoded(to_u1, &values), [255, 0, 44, 0, 0]);
    }

    #[test]
    fn bad_parameters_are_errors() {
        refused(r#"{"id": "astype", "encode_dtype": "<M8[s]", "decode_dtype": "<M8[ms]"}"#);
        refused(r#"{"id": "astype", "encode_dtype": "<U4", "decode_dtype": "<f8"}"#);
        refused(r#"{"id": "astype", "encode_dtype": "<i4"}"#);
    }
}
