//! The integers of 2 and 4 bits of Zarr v3, which `bytes` stores in one byte each. Readers ignore
//! the upper bits; writers fill them with the sign. Source of the rule: the registry of Zarr
//! extensions, data types `int2` to `uint4`.

use super::spec::lacking_in_numcodecs;
use super::{Codec, CodecConfig, CodecResult, CodecSpec, Size, buffer};
use crate::real::narrow_integer;
use zarrfs_base::error::Result;

/// What is known of the codec, which no document states.
pub const SPEC: CodecSpec = CodecSpec {
    id: "low_bits",
    parameters: &["dtype"],
    build: |config, _| Ok(Box::new(LowBits::new(config)?)),
    check_input: lacking_in_numcodecs,
    ..CodecSpec::BYTES
};

/// The codec `{"id": "low_bits", "dtype": "int4"}`, which only the parser of v3 documents adds.
pub struct LowBits {
    /// The number of bits of an item.
    bits: u32,
    is_signed: bool,
}

impl LowBits {
    /// Creates the codec for the type `dtype`.
    pub fn new(config: &CodecConfig) -> Result<Self> {
        let name = config.text("dtype", "")?;
        let (bits, is_signed) = narrow_integer(name).ok_or_else(|| {
            config.invalid("dtype", &format!("is {name:?}, no integer of 2 or 4 bits"))
        })?;
        Ok(LowBits { bits, is_signed })
    }

    fn normal(&self, byte: u8) -> u8 {
        let upper = 8 - self.bits;
        if self.is_signed {
            ((byte << upper) as i8 >> upper) as u8
        } else {
            byte << upper >> upper
        }
    }
}

impl Codec for LowBits {
    fn encoded_size(&self, decoded: usize) -> Size {
        Size::Exact(decoded)
    }

    fn is_lossless(&self) -> bool {
        false
    }

    fn decode(&self, encoded: &[u8], out: &mut [u8]) -> CodecResult<usize> {
        let out = buffer::front(out, encoded.len())?;
        out.iter_mut()
            .zip(encoded)
            .for_each(|(out, byte)| *out = self.normal(*byte));
        Ok(encoded.len())
    }

    fn encode(&self, decoded: &[u8], out: &mut Vec<u8>) -> CodecResult<()> {
        out.extend(decoded.iter().map(|byte| self.normal(*byte)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zarrfs_base::json::json;

    #[test]
    fn upper_bits_become_the_sign() {
        for (dtype, expected) in [
            ("int4", [0x07, 0xf8, 0xff, 0x00]),
            ("uint4", [0x07, 0x08, 0x0f, 0x00]),
            ("int2", [0xff, 0x00, 0xff, 0x00]),
            ("uint2", [0x03, 0x00, 0x03, 0x00]),
        ] {
            let codec = LowBits::new(
                &CodecConfig::parse(&json!({"id": "low_bits", "dtype": dtype})).unwrap(),
            )
            .unwrap();
            let mut decoded = [0; 4];
            let mut encoded = Vec::new();
            codec
                .decode(&[0x07, 0x08, 0xff, 0xf0], &mut decoded)
                .unwrap();
            codec
                .encode(&[0x07, 0x08, 0xff, 0xf0], &mut encoded)
                .unwrap();
            assert_eq!(
                (decoded, encoded.as_slice()),
                (expected, &expected[..]),
                "{dtype}"
            );
        }
    }
}
