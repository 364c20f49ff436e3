//! The filter `fixedscaleoffset`: numbers stored as `(x - offset) * scale`, rounded. Source of the
//! rules: `numcodecs.FixedScaleOffset` with NumPy 2, where a JSON integer takes the integer type of
//! the array.

use super::items::{self, Items, NumberTypes};
use super::number::Number;
use super::scalar::{Scalar, with_type};
use super::{Codec, CodecConfig, CodecError, CodecResult, CodecSpec, Size};
use zarrfs_base::error::Result;
use zarrfs_base::json;

/// What is known of the filter.
pub const SPEC: CodecSpec = CodecSpec {
    id: "fixedscaleoffset",
    parameters: &["offset", "scale", "dtype", "astype"],
    build: |config, _| Ok(Box::new(FixedScaleOffset::new(config)?)),
    v3_names: &["numcodecs.fixedscaleoffset"],
    is_elementwise: true,
    accepts: |config, name, value| match name {
        "offset" | "scale" if value.is_number() => Ok(true),
        _ => (CodecSpec::NUMBERS.accepts)(config, name, value),
    },
    ..CodecSpec::NUMBERS
};

/// The filter `fixedscaleoffset`.
pub struct FixedScaleOffset {
    offset: Operand,
    scale: Operand,
    types: NumberTypes,
}

/// A JSON number as Python reads it.
#[derive(Clone, Copy)]
struct Operand {
    /// The number as a float.
    float: f64,
    /// Whether Python reads an integer.
    is_integer: bool,
    /// The integer; `None` for a float, and for an integer beyond 128 bits.
    integer: Option<i128>,
}

impl Operand {
    fn new(config: &CodecConfig, name: &str) -> Result<Self> {
        let value = config.required(name)?;
        let float = json::float(value).ok_or_else(|| config.invalid(name, "is not a number"))?;
        let text = value.as_number().map(|number| number.as_str());
        let is_integer = text.is_some_and(|text| !text.contains(['.', 'e', 'E']));
        if is_integer && float.is_infinite() {
            return Err(config.invalid(name, "is too large"));
        }
        Ok(Operand {
            float,
            is_integer,
            integer: text.and_then(|text| text.parse().ok()),
        })
    }

    /// Returns the number as an integer of type `T`, or an error if it is none or out of range, as
    /// NumPy does.
    fn integer_of<T: Number>(self, scalar: Scalar) -> CodecResult<T> {
        match self.integer.filter(|n| scalar.range().contains(n)) {
            Some(n) if scalar.is_signed() => Ok(T::from_i64(n as i64)),
            Some(n) => Ok(T::from_u64(n as u64)),
            None => Err(CodecError::new(
                "offset or scale does not fit the type of the items",
            )),
        }
    }

    /// Returns the number as a `T`, whose scalar type is `scalar`.
    fn value<T: Number>(self, scalar: Scalar) -> CodecResult<T> {
        if scalar.is_integer() {
            self.integer_of(scalar)
        } else {
            Ok(T::from_f64(self.float))
        }
    }
}

impl FixedScaleOffset {
    /// Creates the filter from `offset`, `scale`, `dtype` and `astype`.
    pub fn new(config: &CodecConfig) -> Result<Self> {
        let offset = Operand::new(config, "offset")?;
        let scale = Operand::new(config, "scale")?;
        Ok(FixedScaleOffset {
            offset,
            scale,
            types: NumberTypes::new(config, ["dtype", "astype"], |scalar| {
                scalar != Scalar::Ticks
            })?,
        })
    }

    fn decode_as<T: Number>(
        &self,
        work: Scalar,
        input: &[u8],
        out: &mut [u8],
    ) -> CodecResult<usize> {
        let offset = T::from_f64(self.offset.float);
        let scale = T::from_f64(self.scale.float);
        self.types.decode(work, input, out, |block| {
            items::each::<T>(block, |x| x.div(scale).add(offset));
        })
    }

    /// Encodes with all arithmetic in type `T`.
    fn encode_as<T: Number>(
        &self,
        work: Scalar,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> CodecResult<()> {
        let offset = self.offset.value::<T>(work)?;
        let scale = self.scale.value::<T>(work)?;
        self.types.encode(work, input, out, |block| {
            items::each::<T>(block, |x| x.sub(offset).mul(scale).round());
        })
    }

    /// Encodes with an integer offset, whose subtraction wraps in type `T`, and a float scale.
    fn encode_mixed<T: Number>(
        &self,
        work: Scalar,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> CodecResult<()> {
        let offset = self.offset.integer_of::<T>(work)?;
        let mut moved = Vec::new();
        let native = Items::native(work);
        let to_moved = NumberTypes {
            encoded: native,
            ..self.types
        };
        to_moved.encode(work, input, &mut moved, |block| {
            items::each::<T>(block, |x| x.sub(offset));
        })?;
        let from_moved = NumberTypes {
            decoded: native,
            ..self.types
        };
        let scale = self.scale.float;
        from_moved.encode(Scalar::F64, &moved, out, |block| {
            items::each::<f64>(block, |x| (x * scale).round_ties_even());
        })
    }
}

impl Codec for FixedScaleOffset {
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
        let stored = self.types.encoded.scalar;
        let work = if stored.is_integer() || stored == Scalar::Bool {
            Scalar::F64
        } else {
            stored
        };
        with_type!(work, T => self.decode_as::<T>(work, encoded, out))
    }

    fn encode(&self, decoded: &[u8], out: &mut Vec<u8>) -> CodecResult<()> {
        let given = self.types.decoded.scalar;
        if !(given.is_integer() || given == Scalar::Bool) {
            return with_type!(given, T => self.encode_as::<T>(given, decoded, out));
        }
        // NumPy converts booleans to int64 if a Python integer is subtracted
        let whole = if given == Scalar::Bool {
            Scalar::I64
        } else {
            given
        };
        match (self.offset.is_integer, self.scale.is_integer) {
            (true, true) => with_type!(whole, T => self.encode_as::<T>(whole, decoded, out)),
            (true, false) => with_type!(whole, T => self.encode_mixed::<T>(whole, decoded, out)),
            _ => self.encode_as::<f64>(Scalar::F64, decoded, out),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::codec::testing::{check, decoded, encoded, refused};

    #[test]
    fn worked_examples() {
        let f4 = |v: &[f32]| v.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let config = r#"{"id": "fixedscaleoffset", "offset": 1000, "scale": 10, "dtype": "<f4", "astype": "|u1"}"#;
        assert_eq!(encoded(config, &f4(&[1000.0, 1000.25, 1000.35])), [0, 2, 3]);
        assert_eq!(
            decoded(config, &[0, 2, 255], 12),
            f4(&[1000.0, 1000.2, 1025.5])
        );
        check(
            r#"{"id": "fixedscaleoffset", "offset": 1, "scale": 3, "dtype": ">i2"}"#,
            &[0, 5, 255, 255],
            &[0, 12, 255, 250],
        );
    }

    #[test]
    fn bad_parameters_are_errors() {
        refused(r#"{"id": "fixedscaleoffset", "offset": 1, "dtype": "<f4"}"#);
        refused(r#"{"id": "fixedscaleoffset", "offset": "1", "scale": 1, "dtype": "<f4"}"#);
        refused(r#"{"id": "fixedscaleoffset", "offset": 1, "scale": 1, "dtype": "<m8[s]"}"#);
    }
}
