//! The codec `scale_offset` of Zarr v3: numbers stored as `(x - offset) * scale`, in the arithmetic
//! of their type. Source of the rules: the registry of Zarr extensions, "scale_offset codec".

use super::spec::lacking_in_numcodecs;
use super::v3::with_dtype;
use super::{Codec, CodecConfig, CodecError, CodecKind, CodecResult, CodecSpec, Size, buffer};
use crate::float_format::{FloatFormat, RoundingMode};
use crate::real::{RealKind, RealType};
use zarrfs_base::error::{Error, Result};

/// What is known of the codec.
pub const SPEC: CodecSpec = CodecSpec {
    id: "scale_offset",
    parameters: &["dtype", "offset", "scale"],
    build: |config, _| Ok(Box::new(ScaleOffset::new(config)?)),
    v3_names: &["scale_offset"],
    kind: CodecKind::Array,
    parse: with_dtype,
    spell: None,
    check_input: lacking_in_numcodecs,
    is_elementwise: true,
    ..CodecSpec::BYTES
};

/// The codec `scale_offset`.
#[derive(Debug)]
pub struct ScaleOffset {
    items: RealType,
    arithmetic: Arithmetic,
}

/// The operands in the type of the items.
#[derive(Clone, Copy, Debug)]
enum Arithmetic {
    /// Exact integers; `scale` is not 0.
    Integer { offset: i128, scale: i128 },
    /// Floats. Every operation is computed with doubles and rounded to the format. The format is
    /// the double or has less than half its digits, so the second rounding does not change the
    /// result.
    Float {
        format: FloatFormat,
        offset: f64,
        scale: f64,
    },
}

impl ScaleOffset {
    /// Creates the codec from `dtype`, `offset` (0 if absent) and `scale` (1 if absent).
    pub fn new(config: &CodecConfig) -> Result<Self> {
        config.required("dtype")?;
        let name = config.text("dtype", "")?;
        let items = RealType::parse(name).ok_or_else(|| {
            Error::unsupported(format!(
                "codec \"scale_offset\": cannot compute with dtype {name:?}"
            ))
        })?;
        let offset = operand(config, "offset", items)?;
        let scale = operand(config, "scale", items)?;
        let arithmetic = match items.kind {
            RealKind::Integer { .. } => Arithmetic::Integer {
                offset: offset.map_or(0, |bits| items.integer(bits)),
                scale: scale.map_or(1, |bits| items.integer(bits)),
            },
            RealKind::Float(format) => Arithmetic::Float {
                format,
                offset: offset.map_or(0.0, |bits| format.to_f64(bits)),
                scale: scale.map_or(1.0, |bits| format.to_f64(bits)),
            },
        };
        match arithmetic {
            Arithmetic::Integer { scale: 0, .. } => {
                Err(config.invalid("scale", "is 0, by which nothing can be divided"))
            }
            _ => Ok(ScaleOffset { items, arithmetic }),
        }
    }

    /// Returns the encoded item, or `None` if the type does not have the number.
    fn scaled(&self, bits: u64) -> Option<u64> {
        match self.arithmetic {
            Arithmetic::Integer { offset, scale } => {
                let moved = self
                    .items
                    .integer(self.items.integer_bits(self.items.integer(bits) - offset)?);
                self.items.integer_bits(moved.checked_mul(scale)?)
            }
            Arithmetic::Float {
                format,
                offset,
                scale,
            } => {
                let moved = rounded(format, format.to_f64(bits) - offset)?;
                rounded(format, format.to_f64(moved) * scale)
            }
        }
    }

    /// Returns the decoded item, or `None` if the type does not have the number.
    fn unscaled(&self, bits: u64) -> Option<u64> {
        match self.arithmetic {
            Arithmetic::Integer { offset, scale } => {
                let number = self.items.integer(bits);
                let quotient = self
                    .items
                    .integer_bits(number / scale)
                    .filter(|_| number % scale == 0)?;
                self.items
                    .integer_bits(self.items.integer(quotient) + offset)
            }
            Arithmetic::Float {
                format,
                offset,
                scale,
            } => {
                let quotient = rounded(format, format.to_f64(bits) / scale)?;
                rounded(format, format.to_f64(quotient) + offset)
            }
        }
    }

    /// Applies `step` to each item of `input` and writes the results to `output`.
    fn convert(
        &self,
        input: &[u8],
        output: &mut [u8],
        step: impl Fn(u64) -> Option<u64>,
    ) -> CodecResult<()> {
        self.items.convert_items(self.items, input, output, |bits| {
            step(bits).ok_or_else(|| {
                let number = self.items.shown(bits);
                CodecError::new(format!(
                    "scale_offset: the type of the items does not have the result for {number}"
                ))
            })
        })
    }
}

/// Returns the bits of a parameter in the type of the items, or `None` if it is absent.
fn operand(config: &CodecConfig, name: &str, items: RealType) -> Result<Option<u64>> {
    let Some(value) = config.get(name) else {
        return Ok(None);
    };
    match items.scalar(value) {
        Some(bits) => Ok(Some(bits)),
        None => Err(config.invalid(name, "does not fit the items")),
    }
}

/// Rounds the result of an operation. Returns `None` if the format has no such NaN, infinity or
/// number. In a format with infinities a number out of range becomes infinite, as in IEEE 754.
fn rounded(format: FloatFormat, result: f64) -> Option<u64> {
    if result.is_nan() {
        // the sign of a computed NaN depends on the processor
        return format.nan();
    }
    let is_held = format.infinity().is_some() || format.has_within_range(result);
    if is_held {
        format.from_f64(result, RoundingMode::NearestEven)
    } else {
        None
    }
}

impl Codec for ScaleOffset {
    fn encoded_size(&self, decoded: usize) -> Size {
        Size::Exact(decoded)
    }

    fn encoded_itemsize(&self) -> usize {
        self.items.size
    }

    fn is_lossless(&self) -> bool {
        // integers whose result does not fit are refused; floats are rounded
        self.items.is_canonical()
    }

    fn decode(&self, encoded: &[u8], out: &mut [u8]) -> CodecResult<usize> {
        buffer::count(encoded, self.items.size)?;
        self.convert(encoded, buffer::front(out, encoded.len())?, |bits| {
            self.unscaled(bits)
        })?;
        Ok(encoded.len())
    }

    fn encode(&self, decoded: &[u8], out: &mut Vec<u8>) -> CodecResult<()> {
        buffer::count(decoded, self.items.size)?;
        // this does not allocate, since the pipeline has reserved the memory
        out.resize(decoded.len(), 0);
        self.convert(decoded, out, |bits| self.scaled(bits))
    }
}

#[cfg(test)]
mod tests;
