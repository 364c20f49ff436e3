//! Real numbers of any element type: bits to numbers, numbers to bits by stated rules, and scalars
//! in documents. The fill values and the codecs of v3 share it. The module knows neither codecs nor
//! buffers. Source of the rules: the registry of Zarr extensions, "cast_value" and
//! "scale_offset" codecs.

use crate::dtype::{DType, DTypeKind};
use crate::float_format::{Dyadic, FloatFormat, FloatValue, RoundingMode};
use crate::word;
use zarrfs_base::json::{self, Value};

/// Largest integer below which every integer is a double, so that `1.0` stands for exactly one
/// integer.
const MAX_WHOLE: f64 = 9007199254740992.0;

/// An element type of real numbers: its layout in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RealType {
    /// The numbers of the type.
    pub kind: RealKind,
    /// Size of an item in bytes, at most 8.
    pub size: usize,
    /// Whether items are big-endian.
    pub is_big_endian: bool,
}

/// The numbers that a type has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RealKind {
    /// Integers.
    Integer {
        /// Width in bits, from 1 to 64.
        bits: u32,
        /// Whether there are negative ones.
        is_signed: bool,
    },
    /// Floats.
    Float(FloatFormat),
}

/// The rule for a number outside the range of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutOfRange {
    /// An error.
    Error,
    /// The nearest number: the lowest or highest integer, an infinity, or the lowest or highest
    /// float of a type without infinities.
    Clamp,
    /// For integers, the number modulo the number of integers of the type; for floats, an error.
    Wrap,
}

/// The reason why a number cannot be an item of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Misfit {
    /// The number is out of range.
    Range,
    /// The number is a NaN, which the type lacks.
    Nan,
}

impl RealType {
    /// Returns the element type of a codec configuration, such as `<f4` or `float8_e4m3`. Returns
    /// `None` for other spellings and for types that are no real numbers.
    pub fn parse(name: &str) -> Option<Self> {
        let bare = name.trim_start_matches(['<', '>']);
        let (kind, size) = if let Some((bits, is_signed)) = narrow_integer(bare) {
            (RealKind::Integer { bits, is_signed }, 1)
        } else if let Some(format) = FloatFormat::parse(bare) {
            (RealKind::Float(format), format.size())
        } else {
            let dtype = DType::parse_str(name).ok()?;
            let size = dtype.size();
            let bits = 8 * size as u32;
            let kind = match (dtype.kind(), size) {
                (DTypeKind::Int | DTypeKind::UInt, _) => RealKind::Integer {
                    bits,
                    is_signed: *dtype.kind() == DTypeKind::Int,
                },
                (DTypeKind::Float, 2..=8) => {
                    RealKind::Float(FloatFormat::parse(&format!("float{bits}"))?)
                }
                _ => return None,
            };
            (kind, size)
        };
        Some(RealType {
            kind,
            size,
            is_big_endian: name.starts_with('>'),
        })
    }

    /// Returns the type of the real numbers in an item of an element type, and their number: two if
    /// the items are complex.
    pub fn parse_parts(name: &str) -> Option<(Self, usize)> {
        let bare = name.trim_start_matches(['<', '>']);
        let part = match bare {
            "c8" => "float32",
            "c16" => "float64",
            _ => match bare.strip_prefix("complex_") {
                Some(part) => part,
                None => return Some((Self::parse(name)?, 1)),
            },
        };
        let order = &name[..name.len() - bare.len()];
        let part = Self::parse(&format!("{order}{part}"))?;
        matches!(part.kind, RealKind::Float(_)).then_some((part, 2))
    }

    /// Returns the bits of an item of [`RealType::size`] bytes.
    #[inline(always)]
    pub fn load(self, item: &[u8]) -> u64 {
        word::load(item, self.is_big_endian)
    }

    /// Writes an item of [`RealType::size`] bytes.
    #[inline(always)]
    pub fn store(self, bits: u64, item: &mut [u8]) {
        word::store(bits, item, self.is_big_endian);
    }

    /// Writes for each item of `input` the bits that `step` returns to an item of type `to` in
    /// `output`.
    ///
    /// # Errors
    ///
    /// The errors of `step`.
    #[inline(always)]
    pub fn convert_items<E>(
        self,
        to: RealType,
        input: &[u8],
        output: &mut [u8],
        step: impl Fn(u64) -> Result<u64, E>,
    ) -> Result<(), E> {
        let outputs = output.chunks_exact_mut(to.size);
        for (from, into) in input.chunks_exact(self.size).zip(outputs) {
            to.store(step(self.load(from))?, into);
        }
        Ok(())
    }

    /// Returns the number of bits of an item that have a meaning.
    pub fn bits(self) -> u32 {
        match self.kind {
            RealKind::Integer { bits, .. } => bits,
            RealKind::Float(format) => format.bits(),
        }
    }

    /// Returns whether two items of different bytes are always different numbers. Narrow types have
    /// spare bits, and floats have many NaNs.
    pub fn is_canonical(self) -> bool {
        matches!(self.kind, RealKind::Integer { bits, .. } if bits == 8 * self.size as u32)
    }

    /// Returns whether this is a type of integers and `other` has all of its numbers.
    pub fn is_integer_within(self, other: RealType) -> bool {
        let RealKind::Integer { bits, is_signed } = self.kind else {
            return false;
        };
        match other.kind {
            RealKind::Integer {
                bits: wider,
                is_signed: true,
            } => bits + u32::from(!is_signed) <= wider,
            RealKind::Integer {
                bits: wider,
                is_signed: false,
            } => !is_signed && bits <= wider,
            // the mantissa counts an implicit bit, and -2^(bits - 1) has only one bit set
            RealKind::Float(format) => {
                let digits = bits - u32::from(is_signed);
                format.is_signed
                    && digits <= format.mantissa_bits + 1
                    && (bits as i32) <= format.bias
            }
        }
    }

    /// Returns the value of an item's bits. Bits above the width of a narrow type are ignored.
    #[inline]
    pub fn value(self, bits: u64) -> FloatValue {
        match self.kind {
            RealKind::Integer { .. } => {
                let number = self.integer(bits);
                FloatValue::Finite(Dyadic {
                    is_negative: number < 0,
                    magnitude: number.unsigned_abs() as u64,
                    exponent: 0,
                })
            }
            RealKind::Float(format) => format.value(bits),
        }
    }

    /// Returns the integer that an item's bits encode; for floats, the bits themselves.
    #[inline]
    pub fn integer(self, bits: u64) -> i128 {
        let RealKind::Integer {
            bits: width,
            is_signed,
        } = self.kind
        else {
            return i128::from(bits);
        };
        let at_top = bits << (64 - width);
        if is_signed {
            i128::from(at_top as i64 >> (64 - width))
        } else {
            i128::from(at_top >> (64 - width))
        }
    }

    /// Returns the bits of `number` in this type of integers, or `None` if it is out of range.
    #[inline]
    pub fn integer_bits(self, number: i128) -> Option<u64> {
        // a narrow negative number is stored with its sign in all bits of the byte
        (self.integer(number as u64) == number).then_some(number as u64)
    }

    /// Converts `value` to an item and returns its bits.
    ///
    /// # Errors
    ///
    /// [`Misfit::Nan`] for a NaN that the type lacks; [`Misfit::Range`] for a number out of range
    /// without a rule for it.
    #[inline]
    pub fn convert(
        self,
        value: FloatValue,
        mode: RoundingMode,
        out_of_range: OutOfRange,
    ) -> Result<u64, Misfit> {
        match (self.kind, value) {
            (RealKind::Float(format), FloatValue::Nan { is_negative }) => {
                format.signed_nan(is_negative).ok_or(Misfit::Nan)
            }
            (RealKind::Integer { .. }, FloatValue::Nan { .. }) => Err(Misfit::Nan),
            (RealKind::Float(format), FloatValue::Infinity { is_negative }) => {
                match format.infinity() {
                    Some(_) => Ok(self.bound(is_negative)),
                    None => self.clamped(is_negative, out_of_range),
                }
            }
            (RealKind::Integer { .. }, FloatValue::Infinity { is_negative }) => {
                self.clamped(is_negative, out_of_range)
            }
            (RealKind::Float(format), FloatValue::Finite(number)) => {
                // a format without a sign lacks zero and negative numbers, which lie below its
                // range
                let is_below = number.is_negative || number.magnitude == 0;
                format
                    .round(number, mode)
                    .map_or_else(|| self.clamped(is_below, out_of_range), Ok)
            }
            (RealKind::Integer { .. }, FloatValue::Finite(number)) => {
                self.convert_integer(number, mode, out_of_range)
            }
        }
    }

    fn convert_integer(
        self,
        number: Dyadic,
        mode: RoundingMode,
        out_of_range: OutOfRange,
    ) -> Result<u64, Misfit> {
        let units = number.rounded(0, mode);
        let signed = |units: u64| {
            if number.is_negative {
                -i128::from(units)
            } else {
                i128::from(units)
            }
        };
        if let Some(bits) = units.and_then(|units| self.integer_bits(signed(units))) {
            return Ok(bits);
        }
        if out_of_range != OutOfRange::Wrap {
            return self.clamped(number.is_negative, out_of_range);
        }
        // with an exponent of 64 or more, the lowest 64 bits are 0
        let low = units.unwrap_or_else(|| {
            number
                .magnitude
                .checked_shl(number.exponent.unsigned_abs())
                .unwrap_or(0)
        });
        Ok(self.integer(signed(low) as u64) as u64)
    }

    /// Returns the bits of the lowest (`is_below`) or highest number of the type if `out_of_range`
    /// is `Clamp`; otherwise the error `Misfit::Range`.
    fn clamped(self, is_below: bool, out_of_range: OutOfRange) -> Result<u64, Misfit> {
        if out_of_range == OutOfRange::Clamp {
            Ok(self.bound(is_below))
        } else {
            Err(Misfit::Range)
        }
    }

    /// Returns the bits of the lowest or highest number, infinities included.
    fn bound(self, is_smallest: bool) -> u64 {
        match self.kind {
            RealKind::Integer { bits, is_signed } => {
                let highest = u64::MAX >> (64 - bits + u32::from(is_signed));
                match (is_smallest, is_signed) {
                    (false, _) => highest,
                    (true, true) => !highest,
                    (true, false) => 0,
                }
            }
            // the bits of the largest number and of infinity are one apart
            RealKind::Float(format) if is_smallest => {
                format.smallest() + u64::from(format.infinity().is_some())
            }
            RealKind::Float(format) => format.infinity().unwrap_or(format.largest()),
        }
    }

    /// Returns the bits of a scalar, which is written like a fill value of v3: an integer, a
    /// number, `"NaN"`, `"Infinity"`, `"-Infinity"`, or the bits of a float in hexadecimal. Returns
    /// `None` if the type has no such number.
    pub fn scalar(self, value: &Value) -> Option<u64> {
        let RealKind::Float(format) = self.kind else {
            return self.integer_bits(integer(value)?);
        };
        if let Some(digits) = json::text(value).and_then(|text| text.strip_prefix("0x")) {
            let is_whole =
                digits.len() == 2 * self.size && digits.bytes().all(|b| b.is_ascii_hexdigit());
            return is_whole.then(|| u64::from_str_radix(digits, 16).ok())?;
        }
        let number = json::float(value).or_else(|| json::float_word(json::text(value)?))?;
        if number.is_nan() {
            return format.nan();
        }
        // a JSON number beyond the range of doubles is no infinity
        let is_number = number.is_finite() || !value.is_number();
        let float64 = FloatFormat::parse("float64")?;
        let bits = self.convert(
            float64.value(number.to_bits()),
            RoundingMode::NearestEven,
            OutOfRange::Error,
        );
        bits.ok().filter(|_| is_number)
    }

    /// Returns the number of an item's bits as text for messages.
    pub fn shown(self, bits: u64) -> String {
        match self.kind {
            RealKind::Integer { .. } => self.integer(bits).to_string(),
            RealKind::Float(format) => format!("{:?}", format.to_f64(bits)),
        }
    }
}

/// Returns the width in bits of an integer type below one byte, and whether it is signed.
pub fn narrow_integer(name: &str) -> Option<(u32, bool)> {
    match name {
        "int2" => Some((2, true)),
        "int4" => Some((4, true)),
        "uint2" => Some((2, false)),
        "uint4" => Some((4, false)),
        _ => None,
    }
}

/// Parses an integer, which may be written with a fraction of zeros.
fn integer(value: &Value) -> Option<i128> {
    value.as_number()?.as_str().parse().ok().or_else(|| {
        json::float(value)
            .filter(|number| number.fract() == 0.0 && number.abs() <= MAX_WHOLE)
            .map(|number| number as i128)
    })
}

#[cfg(test)]
mod tests;
