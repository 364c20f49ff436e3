//! The filter `astype`: numbers stored as another type. Source of the rules: `numcodecs.AsType`,
//! which uses NumPy's casts.

use super::items::{self, NumberTypes};
use super::v3::stated_types;
use super::{Codec, CodecConfig, CodecResult, CodecSpec, ItemTypes, Size};
use zarrfs_base::error::Result;

/// What is known of the filter. Its types must be stated.
pub const SPEC: CodecSpec = CodecSpec {
    id: "astype",
    parameters: &["encode_dtype", "decode_dtype"],
    build: |config, _| Ok(Box::new(AsType::new(config)?)),
    items: ItemTypes::Stated {
        decoded: "decode_dtype",
        encoded: "encode_dtype",
    },
    v3_names: &["numcodecs.astype"],
    parse: |spec, codec, input| match codec.get("encode_dtype") {
        Some(_) => stated_types(spec, codec, input),
        None => Err(codec.invalid("encode_dtype", "is missing")),
    },
    is_elementwise: true,
    ..CodecSpec::NUMBERS
};

/// The filter `astype`.
pub struct AsType(NumberTypes);

impl AsType {
    /// Creates the filter from `encode_dtype` and `decode_dtype`.
    pub fn new(config: &CodecConfig) -> Result<Self> {
        config.required("encode_dtype")?;
        let types = NumberTypes::new(config, ["decode_dtype", "encode_dtype"], |_| true)?;
        if !items::same_units(config, "encode_dtype", "decode_dtype")? {
            return Err(items::not_numeric(config, "encode_dtype"));
        }
        Ok(AsType(types))
    }
}

impl Codec for AsType {
    fn encoded_size(&self, decoded: usize) -> Size {
        self.0.encoded_size(decoded)
    }

    fn encoded_itemsize(&self) -> usize {
        self.0.encoded.size()
    }

    fn is_lossless(&self) -> bool {
        self.0.are_preserved()
    }

    fn decode(&self, encoded: &[u8], out: &mut [u8]) -> CodecResult<usize> {
        self.0.decode(self.0.encoded.scalar, encoded, out, |_| {})
    }

    fn encode(&self, decoded: &[u8], out: &mut Vec<u8>) -> CodecResult<()> {
        self.0.encode(self.0.decoded.scalar, decoded, out, |_| {})
    }
}

#[cfg(test)]
mod tests {
    use crate::codec::testing::{broken, check, encoded, refused};

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
