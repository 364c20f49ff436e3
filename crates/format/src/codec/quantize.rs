//! The filter `quantize`: floats rounded to a multiple of a power of two that preserves a number of
//! decimal digits. Source of the rules: `numcodecs.Quantize`.

use super::items::{self, NumberTypes};
use super::number::Number;
use super::scalar::Scalar;
use super::{Codec, CodecConfig, CodecResult, CodecSpec, Size};
use zarrfs_base::error::Result;

/// What is known of the filter.
pub const SPEC: CodecSpec = CodecSpec {
    id: "quantize",
    parameters: &["digits", "dtype", "astype"],
    build: |config, _| Ok(Box::new(Quantize::new(config)?)),
    v3_names: &["numcodecs.quantize"],
    is_elementwise: true,
    ..CodecSpec::NUMBERS
};

/// The filter `quantize`.
pub struct Quantize {
    /// The inverse of the power of two to whose multiples numbers are rounded.
    scale: f64,
    types: NumberTypes,
}

impl Quantize {
    /// Creates the filter from `digits`, `dtype` and `astype`.
    pub fn new(config: &CodecConfig) -> Result<Self> {
        config.required("digits")?;
        // beyond these limits numcodecs' computation overflows
        let digits = config.int("digits", 0, -308, 307)?;
        let bits = (digits as f64 * std::f64::consts::LOG2_10).ceil();
        let types = NumberTypes::new(config, ["dtype", "astype"], Scalar::is_float)?;
        Ok(Quantize {
            scale: bits.exp2(),
            types,
        })
    }

    fn encode_as<T: Number>(&self, input: &[u8], out: &mut Vec<u8>) -> CodecResult<()> {
        let scale = T::from_f64(self.scale);
        self.types
            .encode(self.types.decoded.scalar, input, out, |block| {
                items::each::<T>(block, |x| scale.mul(x).round().div(scale));
            })
    }
}

impl Codec for Quantize {
    fn encoded_size(&self, decoded: usize) -> Size {
        self.types.encoded_size(decoded)
    }

    fn encoded_itemsize(&self) -> usize {
        self.types.encoded.size()
    }

    fn is_lossless(&self) -> bool {
        false
    }

    fn decode(&self, encoded: &[u8], out: &mut [u8]) -> CodecResult<usize> {
        self.types
            .decode(self.types.encoded.scalar, encoded, out, |_| {})
    }

    fn encode(&self, decoded: &[u8], out: &mut Vec<u8>) -> CodecResult<()> {
        match self.types.decoded.scalar {
            Scalar::F16 => self.encode_as::<half::f16>(decoded, out),
            Scalar::F32 => self.encode_as::<f32>(decoded, out),
            _ => self.encode_as::<f64>(decoded, out),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::codec::testing::{encoded, refused};

    #[test]
    fn worked_example() {
        let f8 = |v: &[f64]| v.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let config = r#"{"id": "quantize", "digits": 1, "dtype": "<f8"}"#;
        assert_eq!(
            encoded(config, &f8(&[0.0, 1.0 / 9.0, 3.0 / 9.0])),
            f8(&[0.0, 0.125, 0.3125])
        );
    }

    #[test]
    fn bad_parameters_are_errors() {
        refused(r#"{"id": "quantize", "digits": 1, "dtype": "<i4"}"#);
        refused(r#"{"id": "quantize", "digits": 308, "dtype": "<f8"}"#);
        refused(r#"{"id": "quantize", "dtype": "<f8"}"#);
    }
}
