//! Floats of one byte: from numbers to bits, and back. The module knows no JSON. Source of the formats: the register of Zarr
//! extensions, data types `float4_e2m1fn` to `float8_e8m0fnu`, which refer to the OCP formats and to `ml_dtypes`.

/// A format of floats in one byte. From the highest bit: a sign (absent if `exponent` is 8), an exponent, a mantissa.
struct Format {
    /// Number of bits of the exponent.
    exponent: u32,
    /// Number of bits of the mantissa.
    mantissa: u32,
    bias: i32,
    specials: Specials,
}

/// The bits that stand for no finite number.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Specials {
    /// As in IEEE 754: the highest exponent stands for infinities and NaN.
    Ieee,
    /// No infinity. NaN is a magnitude of ones.
    Ones,
    /// No infinity and no negative zero, whose bits are the only NaN.
    NegativeZero,
    /// Neither infinity nor NaN.
    Finite,
}

/// Returns the format of a data type.
fn format(name: &str) -> Option<Format> {
    use Specials::{Finite, Ieee, NegativeZero, Ones};
    let (exponent, mantissa, bias, specials) = match name {
        "float4_e2m1fn" => (2, 1, 1, Finite),
        "float6_e2m3fn" => (2, 3, 1, Finite),
        "float6_e3m2fn" => (3, 2, 3, Finite),
        "float8_e3m4" => (3, 4, 3, Ieee),
        "float8_e4m3" => (4, 3, 7, Ieee),
        "float8_e4m3b11fnuz" => (4, 3, 11, NegativeZero),
        "float8_e4m3fn" => (4, 3, 7, Ones),
        "float8_e4m3fnuz" => (4, 3, 8, NegativeZero),
        "float8_e5m2" => (5, 2, 15, Ieee),
        "float8_e5m2fnuz" => (5, 2, 16, NegativeZero),
        "float8_e8m0fnu" => (8, 0, 127, Ones),
        _ => return None,
    };
    Some(Format { exponent, mantissa, bias, specials })
}

impl Format {
    /// Returns the bits of the sign, or 0 if the format has none.
    fn sign(&self) -> u32 {
        (1 << (self.exponent + self.mantissa)) & 0xff
    }

    /// Returns the number of magnitudes: bits without a sign.
    fn magnitudes(&self) -> u32 {
        1 << (self.exponent + self.mantissa)
    }

    /// Returns the bits of the NaN that has no sign and no payload, or that of infinity.
    fn special(&self, is_nan: bool) -> Option<u32> {
        let infinity = ((1 << self.exponent) - 1) << self.mantissa;
        match (self.specials, is_nan) {
            (Specials::Ieee, true) => Some(infinity | 1 << (self.mantissa - 1)),
            (Specials::Ieee, false) => Some(infinity),
            (Specials::Ones, true) => Some(self.magnitudes() - 1),
            (Specials::NegativeZero, true) => Some(self.sign()),
            _ => None,
        }
    }

    /// Returns the number of magnitudes that are finite. The highest of them are infinity and NaN.
    fn finite(&self) -> u32 {
        match self.specials {
            Specials::Ieee => ((1 << self.exponent) - 1) << self.mantissa,
            Specials::Ones => self.magnitudes() - 1,
            Specials::NegativeZero | Specials::Finite => self.magnitudes(),
        }
    }

    /// Returns the number that a magnitude stands for if all magnitudes are finite.
    fn number(&self, magnitude: u32) -> f64 {
        let (exponent, mantissa) = (magnitude >> self.mantissa, magnitude & ((1 << self.mantissa) - 1));
        // without a mantissa there are no subnormal numbers, and no zero
        let is_subnormal = exponent == 0 && self.mantissa > 0;
        let significand = if is_subnormal { mantissa } else { mantissa | 1 << self.mantissa };
        let power = exponent.max(u32::from(is_subnormal)) as i32 - self.bias - self.mantissa as i32;
        f64::from(significand) * 2f64.powi(power)
    }

    /// Returns the magnitude nearest to a finite number of at least 0, of two the even one. Returns `None` if that is
    /// not finite, or if the format has no zero and the number is less than half of the smallest.
    fn nearest(&self, number: f64) -> Option<u32> {
        let beyond = (0..self.finite()).find(|magnitude| self.number(*magnitude) >= number).unwrap_or(self.finite());
        let Some(below) = beyond.checked_sub(1) else {
            let lowest = self.number(0);
            return (number >= lowest / 2.0).then_some(0);
        };
        let (low, high) = (number - self.number(below), self.number(beyond) - number);
        let nearest = if low < high || low == high && below.is_multiple_of(2) { below } else { beyond };
        (nearest < self.finite()).then_some(nearest)
    }
}

/// Returns the bits of a number in a data type, rounded to the nearest. Returns `None` if the type has no such number,
/// infinity or NaN, or if it is no float of one byte.
pub(super) fn bits(number: f64, name: &str) -> Option<u64> {
    let format = format(name)?;
    let magnitude = match number.is_finite() {
        true => format.nearest(number.abs())?,
        false => format.special(number.is_nan())?,
    };
    let is_negative = number.is_sign_negative() && !number.is_nan();
    let has_no_negative = format.specials == Specials::NegativeZero && magnitude == 0;
    let sign = if is_negative && !has_no_negative { format.sign() } else { 0 };
    (!is_negative || format.sign() > 0).then_some(u64::from(magnitude | sign))
}

/// Returns the number that bits stand for; `None` for bits above the highest of the format, and for other data types.
pub(super) fn number(bits: u64, name: &str) -> Option<f64> {
    let format = format(name)?;
    let bits = u32::try_from(bits).ok().filter(|bits| *bits < format.magnitudes() + format.sign())?;
    let (is_negative, magnitude) = (bits & format.sign() != 0, bits & (format.magnitudes() - 1));
    let number = match format.special(false) {
        _ if format.specials == Specials::NegativeZero && bits == format.sign() => f64::NAN,
        Some(infinity) if infinity == magnitude => f64::INFINITY,
        _ if magnitude >= format.finite() => f64::NAN,
        _ => format.number(magnitude),
    };
    Some(if is_negative { -number } else { number })
}

#[cfg(test)]
mod tests;
