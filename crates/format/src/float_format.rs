//! The binary floats of Zarr v3, down to 4 bits: their layout, exact conversion to numbers, and
//! correct rounding of numbers to them. The module knows neither bytes, byte order nor codecs.
//! Source of the formats: the registry of Zarr extensions, whose small floats are those of
//! `ml_dtypes`.

/// The layout of a float: a sign, an exponent and a mantissa, from the highest bit to the lowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FloatFormat {
    /// Number of exponent bits.
    pub exponent_bits: u32,
    /// Number of mantissa bits, without the implicit one.
    pub mantissa_bits: u32,
    /// The exponent field of numbers from 1 to 2.
    pub bias: i32,
    /// The bits of infinities and NaNs.
    pub specials: Specials,
    /// Whether there is a sign. A format without one has neither zero nor subnormal numbers.
    pub is_signed: bool,
}

/// The way a format encodes infinities and NaNs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Specials {
    /// The largest exponent stands for infinity and NaNs, as in IEEE 754.
    Ieee,
    /// All exponent and mantissa bits set are a NaN; there is no infinity.
    AllOnesNan,
    /// The bits of the negative zero are the only NaN; there is no infinity.
    NegativeZeroNan,
    /// Neither infinity nor NaN.
    None,
}

/// The way to round a number that a type does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RoundingMode {
    /// To the nearest number; halfway cases to the one with an even mantissa.
    #[default]
    NearestEven,
    /// To the nearest number; halfway cases away from zero.
    NearestAway,
    /// To the next number with a smaller magnitude.
    TowardsZero,
    /// To the next larger number.
    TowardsPositive,
    /// To the next smaller number.
    TowardsNegative,
}

/// A finite number, `magnitude * 2^exponent`. Every number of a [`FloatFormat`] and every 64-bit
/// integer is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dyadic {
    /// Whether the number, which may be zero, has a minus sign.
    pub is_negative: bool,
    /// The magnitude in units of `2^exponent`.
    pub magnitude: u64,
    /// The power of two that the magnitude counts.
    pub exponent: i32,
}

/// The value of a float's bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloatValue {
    /// A finite number.
    Finite(Dyadic),
    /// An infinity.
    Infinity {
        /// Whether it is the negative one.
        is_negative: bool,
    },
    /// A NaN of any payload.
    Nan {
        /// Whether its sign bit is set.
        is_negative: bool,
    },
}

impl Dyadic {
    /// Returns the magnitude in units of `2^unit`, rounded, or `None` if it exceeds 64 bits.
    pub fn rounded(self, unit: i32, mode: RoundingMode) -> Option<u64> {
        if self.magnitude == 0 {
            return Some(0);
        }
        let Ok(shift) = u32::try_from(unit - self.exponent) else {
            let up = self.exponent.abs_diff(unit);
            return (up <= self.magnitude.leading_zeros()).then(|| self.magnitude << up);
        };
        let (units, rest, half) = match shift {
            0 => return Some(self.magnitude),
            1..=63 => (
                self.magnitude >> shift,
                self.magnitude << (64 - shift),
                1 << 63,
            ),
            // with a longer shift the rest is less than half a unit, like 1 here, so it rounds in
            // the same way
            64 => (0, self.magnitude, 1 << 63),
            _ => (0, 1, 1 << 63),
        };
        let is_up = rest != 0
            && match mode {
                RoundingMode::NearestEven => rest > half || rest == half && units & 1 == 1,
                RoundingMode::NearestAway => rest >= half,
                RoundingMode::TowardsZero => false,
                RoundingMode::TowardsPositive => !self.is_negative,
                RoundingMode::TowardsNegative => self.is_negative,
            };
        Some(units + u64::from(is_up))
    }

    /// Returns the exponent of the highest set bit of a number other than zero.
    fn leading_exponent(self) -> i32 {
        self.exponent + 63 - self.magnitude.leading_zeros() as i32
    }
}

impl FloatFormat {
    const fn ieee(exponent_bits: u32, mantissa_bits: u32) -> Self {
        let bias = (1 << (exponent_bits - 1)) - 1;
        Self::with(exponent_bits, mantissa_bits, bias, Specials::Ieee)
    }

    const fn with(exponent_bits: u32, mantissa_bits: u32, bias: i32, specials: Specials) -> Self {
        FloatFormat {
            exponent_bits,
            mantissa_bits,
            bias,
            specials,
            is_signed: true,
        }
    }

    /// Returns the format of a v3 data type, or `None` for other types.
    ///
    /// ```
    /// use zarrfs_format::float_format::{FloatFormat, RoundingMode};
    ///
    /// let format = FloatFormat::parse("float8_e5m2").unwrap();
    /// assert_eq!(format.to_f64(0x3d), 1.25);
    /// assert_eq!(format.from_f64(1.3, RoundingMode::NearestEven), Some(0x3d));
    /// ```
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "bfloat16" => Self::ieee(8, 7),
            "float16" => Self::ieee(5, 10),
            "float32" => Self::ieee(8, 23),
            "float64" => Self::ieee(11, 52),
            "float8_e3m4" => Self::ieee(3, 4),
            "float8_e4m3" => Self::ieee(4, 3),
            "float8_e5m2" => Self::ieee(5, 2),
            "float8_e4m3fn" => Self::with(4, 3, 7, Specials::AllOnesNan),
            "float8_e4m3b11fnuz" => Self::with(4, 3, 11, Specials::NegativeZeroNan),
            "float8_e4m3fnuz" => Self::with(4, 3, 8, Specials::NegativeZeroNan),
            "float8_e5m2fnuz" => Self::with(5, 2, 16, Specials::NegativeZeroNan),
            "float8_e8m0fnu" => FloatFormat {
                is_signed: false,
                ..Self::with(8, 0, 127, Specials::AllOnesNan)
            },
            "float6_e2m3fn" => Self::with(2, 3, 1, Specials::None),
            "float6_e3m2fn" => Self::with(3, 2, 3, Specials::None),
            "float4_e2m1fn" => Self::with(2, 1, 1, Specials::None),
            _ => return None,
        })
    }

    /// Returns the width in bits.
    pub fn bits(self) -> u32 {
        u32::from(self.is_signed) + self.exponent_bits + self.mantissa_bits
    }

    /// Returns the size of an item in bytes. Formats below 8 bits take the lowest bits of a byte.
    pub fn size(self) -> usize {
        self.bits().div_ceil(8) as usize
    }

    /// Returns the bits of the exponent and the mantissa.
    fn magnitude_mask(self) -> u64 {
        u64::MAX >> (64 - self.exponent_bits - self.mantissa_bits)
    }

    fn sign_bit(self) -> u64 {
        if self.is_signed {
            1 << (self.exponent_bits + self.mantissa_bits)
        } else {
            0
        }
    }

    /// Returns the bits of the sign of a number.
    fn sign(self, is_negative: bool) -> u64 {
        if is_negative { self.sign_bit() } else { 0 }
    }

    /// Returns the bits of the positive infinity, or `None` if the format has none.
    pub fn infinity(self) -> Option<u64> {
        let exponents = self.magnitude_mask() >> self.mantissa_bits << self.mantissa_bits;
        (self.specials == Specials::Ieee).then_some(exponents)
    }

    /// Returns the bits of the positive quiet NaN without a payload, or of the only NaN. Returns
    /// `None` if the format has none.
    pub fn nan(self) -> Option<u64> {
        match self.specials {
            Specials::Ieee => Some(self.infinity()? | 1 << (self.mantissa_bits - 1)),
            Specials::AllOnesNan => Some(self.magnitude_mask()),
            Specials::NegativeZeroNan => Some(self.sign_bit()),
            Specials::None => None,
        }
    }

    /// Returns the bits of the largest finite number.
    pub fn largest(self) -> u64 {
        match self.specials {
            Specials::Ieee => self.infinity().unwrap_or_default() - 1,
            Specials::AllOnesNan => self.magnitude_mask() - 1,
            Specials::NegativeZeroNan | Specials::None => self.magnitude_mask(),
        }
    }

    /// Returns the bits of the lowest finite number: the most negative one, or 0 for a format
    /// without a sign.
    pub fn smallest(self) -> u64 {
        if self.is_signed {
            self.sign_bit() | self.largest()
        } else {
            0
        }
    }

    /// Returns the value of `bits`. Bits above the width are ignored.
    pub fn value(self, bits: u64) -> FloatValue {
        let is_negative = bits & self.sign_bit() != 0;
        let field = bits & self.magnitude_mask();
        match self.specials {
            Specials::NegativeZeroNan if is_negative && field == 0 => {
                return FloatValue::Nan { is_negative: false };
            }
            Specials::Ieee if field == self.largest() + 1 => {
                return FloatValue::Infinity { is_negative };
            }
            _ if field > self.largest() => return FloatValue::Nan { is_negative },
            _ => {}
        }
        let exponent = (field >> self.mantissa_bits) as i32;
        let implicit = 1 << self.mantissa_bits;
        let mantissa = field & (implicit - 1);
        let unit = -self.bias - self.mantissa_bits as i32;
        let (magnitude, exponent) = match exponent {
            0 if self.is_signed => (mantissa, unit + 1),
            _ => (mantissa | implicit, unit + exponent),
        };
        FloatValue::Finite(Dyadic {
            is_negative,
            magnitude,
            exponent,
        })
    }

    /// Returns the bits of `number`, rounded. Returns `None` if the rounded number is out of range:
    /// above the largest, or not above zero in a format without a sign. In such a format, smaller
    /// positive numbers become the smallest one.
    pub fn round(self, number: Dyadic, mode: RoundingMode) -> Option<u64> {
        let sign = self.sign(number.is_negative);
        if !self.is_signed && (number.is_negative || number.magnitude == 0) {
            return None;
        }
        if number.magnitude == 0 {
            return Some(self.signed(0, sign));
        }
        let lowest = if self.is_signed {
            1 - self.bias
        } else {
            -self.bias
        };
        let exponent = number.leading_exponent().max(lowest);
        let units = number.rounded(exponent - self.mantissa_bits as i32, mode)?;
        let mut field = units + ((u64::from(exponent.abs_diff(lowest))) << self.mantissa_bits);
        if !self.is_signed {
            // the field 0 has an implicit one, too
            field = field.saturating_sub(1);
        }
        (field <= self.largest()).then(|| self.signed(field, sign))
    }

    /// Adds a sign, except to a zero whose negative is a NaN.
    fn signed(self, field: u64, sign: u64) -> u64 {
        if field == 0 && self.specials == Specials::NegativeZeroNan {
            0
        } else {
            field | sign
        }
    }

    /// Returns the bits of an infinity or a number beyond the largest: infinity, or else NaN, or
    /// else the largest number, as in `ml_dtypes`.
    fn overflow(self, is_negative: bool) -> u64 {
        let bits = self.infinity().or(self.nan()).unwrap_or(self.largest());
        bits | self.sign(is_negative)
    }

    /// Returns the bits of the NaN with this sign, or of the only NaN. Returns `None` if the format
    /// has none.
    pub fn signed_nan(self, is_negative: bool) -> Option<u64> {
        self.nan().map(|nan| nan | self.sign(is_negative))
    }

    /// Returns whether a number, rounded to the nearest, is in the range of the format. Infinities
    /// and NaNs are not.
    pub fn has_within_range(self, number: f64) -> bool {
        match FLOAT64.value(number.to_bits()) {
            FloatValue::Finite(number) => self.round(number, RoundingMode::NearestEven).is_some(),
            _ => false,
        }
    }

    /// Returns the number that `bits` encode. Every number of every format is a double; NaNs lose
    /// their payload.
    pub fn to_f64(self, bits: u64) -> f64 {
        let (magnitude, is_negative) = match self.value(bits) {
            FloatValue::Finite(number) => {
                // both factors and the product are exact
                (
                    number.magnitude as f64 * power_of_two(number.exponent),
                    number.is_negative,
                )
            }
            FloatValue::Infinity { is_negative } => (f64::INFINITY, is_negative),
            FloatValue::Nan { is_negative } => (f64::NAN, is_negative),
        };
        if is_negative { -magnitude } else { magnitude }
    }

    /// Returns the bits of `value`, rounded. Numbers out of range become infinity, or else NaN, or
    /// else the largest number, as in `ml_dtypes`. Returns `None` for a NaN in a format that has
    /// none.
    pub fn from_f64(self, value: f64, mode: RoundingMode) -> Option<u64> {
        match FLOAT64.value(value.to_bits()) {
            FloatValue::Nan { is_negative } => self.signed_nan(is_negative),
            FloatValue::Infinity { is_negative } => Some(self.overflow(is_negative)),
            FloatValue::Finite(number) => Some(
                self.round(number, mode)
                    .unwrap_or_else(|| self.overflow(number.is_negative)),
            ),
        }
    }
}

/// The 64-bit float of IEEE 754.
const FLOAT64: FloatFormat = FloatFormat::ieee(11, 52);

/// Returns `2^exponent` for exponents from -1074 to 1023.
fn power_of_two(exponent: i32) -> f64 {
    match exponent {
        -1022..=1023 => f64::from_bits(((exponent + 1023) as u64) << 52),
        -1074..=-1023 => f64::from_bits(1 << (exponent + 1074)),
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests;
