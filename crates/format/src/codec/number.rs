//! NumPy's arithmetic and casts on one number, for every type that filters compute in. Integers
//! wrap, and a float out of an integer's range is cast as NumPy's C code casts it. The module knows
//! neither buffers, byte order nor codecs. Source of the rules: NumPy 2 on x86-64.

use half::f16;

/// A number in the machine's byte order. `add`, `sub`, `mul` and `div` are NumPy's operators, and
/// `to` is its `astype`.
pub trait Number: Copy + Default {
    /// Size in bytes.
    const SIZE: usize;
    /// Reads [`Number::SIZE`] bytes in the machine's order.
    fn read(bytes: &[u8]) -> Self;
    /// Writes [`Number::SIZE`] bytes in the machine's order.
    fn write(self, bytes: &mut [u8]);
    /// Returns `self + other`.
    fn add(self, other: Self) -> Self;
    /// Returns `self - other`.
    fn sub(self, other: Self) -> Self;
    /// Returns `self * other`.
    fn mul(self, other: Self) -> Self;
    /// Returns `self / other`. Filters never divide integers, which NumPy converts to floats first.
    fn div(self, other: Self) -> Self;
    /// Rounds half to even.
    fn round(self) -> Self;
    /// Casts to another type.
    fn to<T: Number>(self) -> T;
    /// Casts from a signed integer.
    fn from_i64(v: i64) -> Self;
    /// Casts from an unsigned integer.
    fn from_u64(v: u64) -> Self;
    /// Casts from a 64-bit float.
    fn from_f64(v: f64) -> Self;
    /// Casts from a 32-bit float. Types that preserve the payload of a signaling NaN override this.
    #[inline(always)]
    fn from_f32(v: f32) -> Self {
        Self::from_f64(f64::from(v))
    }
    /// Casts from a complex number. Only complex types and booleans use the imaginary part.
    fn from_complex<R: Number>(re: R, _im: R) -> Self {
        re.to()
    }
}

/// A float that may be a part of a complex number.
pub trait Float: Number {}
impl Float for f32 {}
impl Float for f64 {}

/// Casts as the instruction `cvttsd2si` does: numbers out of range become `i32::MIN`. Narrower
/// integers take the low bits.
fn to_i32(v: f64) -> i32 {
    if v.abs() < 2147483648.0 {
        v as i32
    } else {
        i32::MIN
    }
}

fn to_i64(v: f64) -> i64 {
    if v.abs() < 9223372036854775808.0 {
        v as i64
    } else {
        i64::MIN
    }
}

fn to_u64(v: f64) -> u64 {
    const HALF: f64 = 9223372036854775808.0;
    if v >= HALF {
        (to_i64(v - HALF) as u64) ^ (1 << 63)
    } else {
        to_i64(v) as u64
    }
}

/// Implements reading and writing of bytes.
macro_rules! bytes {
    ($T:ty) => {
        const SIZE: usize = size_of::<$T>();
        #[inline(always)]
        fn read(bytes: &[u8]) -> Self {
            bytes
                .try_into()
                .map_or(Self::default(), <$T>::from_ne_bytes)
        }
        #[inline(always)]
        fn write(self, bytes: &mut [u8]) {
            bytes.copy_from_slice(&self.to_ne_bytes());
        }
    };
}

/// Implements [`Number`] for a primitive. Each function is an expression with parameters; the rest
/// is the same for all.
macro_rules! primitive {
    ($T:ty { $($name:ident($self:ident $(, $other:ident)?) $body:expr;)* }, to: $from:ident($wide:ty), $($rest:tt)*) => {
        impl Number for $T {
            bytes!($T);
            $(
                #[inline(always)]
                fn $name($self $(, $other: Self)?) -> Self {
                    $body
                }
            )*
            #[inline(always)]
            fn to<N: Number>(self) -> N {
                N::$from(self as $wide)
            }
            #[inline(always)]
            fn from_i64(v: i64) -> Self {
                v as $T
            }
            #[inline(always)]
            fn from_u64(v: u64) -> Self {
                v as $T
            }
            $($rest)*
        }
    };
}

/// Implements [`Number`] for integers: `$from` and `$wide` are the cast to other types, `$cast` is
/// NumPy's cast from a float.
macro_rules! integers {
    ($($T:ty: $from:ident($wide:ty), $cast:ident;)*) => {
        $(primitive!($T {
            add(self, other) self.wrapping_add(other);
            sub(self, other) self.wrapping_sub(other);
            mul(self, other) self.wrapping_mul(other);
            div(self, other) self.checked_div(other).unwrap_or_default();
            round(self) self;
        }, to: $from($wide),
            #[inline(always)]
            fn from_f64(v: f64) -> Self {
                $cast(v) as $T
            }
        );)*
    };
}

integers! {
    i8: from_i64(i64), to_i32;
    i16: from_i64(i64), to_i32;
    i32: from_i64(i64), to_i32;
    i64: from_i64(i64), to_i64;
    u8: from_u64(u64), to_i32;
    u16: from_u64(u64), to_i32;
    // NumPy's result for numbers out of u32's range depends on the length of the array; this is the
    // result of its scalar loop
    u32: from_u64(u64), to_i64;
    u64: from_u64(u64), to_u64;
}

/// Implements [`Number`] for floats, which `$from` casts to other types.
macro_rules! floats {
    ($($T:ty: $from:ident;)*) => {
        $(primitive!($T {
            add(self, other) self + other;
            sub(self, other) self - other;
            mul(self, other) self * other;
            div(self, other) self / other;
            round(self) self.round_ties_even();
        }, to: $from($T),
            #[inline(always)]
            fn from_f32(v: f32) -> Self {
                v as $T
            }
            #[inline(always)]
            fn from_f64(v: f64) -> Self {
                v as $T
            }
        );)*
    };
}

floats! {
    f32: from_f32;
    f64: from_f64;
}

/// A 16-bit float, whose arithmetic is done in 32 bits and rounded after every step.
impl Number for f16 {
    bytes!(f16);
    fn add(self, other: Self) -> Self {
        half(widen(self) + widen(other))
    }
    fn sub(self, other: Self) -> Self {
        half(widen(self) - widen(other))
    }
    fn mul(self, other: Self) -> Self {
        half(widen(self) * widen(other))
    }
    fn div(self, other: Self) -> Self {
        half(widen(self) / widen(other))
    }
    fn round(self) -> Self {
        half(widen(self).round_ties_even())
    }
    #[inline(always)]
    fn to<N: Number>(self) -> N {
        N::from_f32(widen(self))
    }
    fn from_i64(v: i64) -> Self {
        half(v as f32)
    }
    fn from_u64(v: u64) -> Self {
        half(v as f32)
    }
    fn from_f32(v: f32) -> Self {
        half(v)
    }
    fn from_f64(v: f64) -> Self {
        let bits = v.to_bits();
        if v.is_nan() {
            half_nan((bits >> 63) as u32, (bits >> 42) as u32)
        } else {
            narrow(v)
        }
    }
}

/// Narrows a float. Unlike with `f16::from_f32` of the `half` crate, a NaN keeps its sign and the
/// upper bits of its payload.
fn half(v: f32) -> f16 {
    if v.is_nan() {
        half_nan(v.to_bits() >> 31, v.to_bits() >> 13)
    } else {
        narrow(f64::from(v))
    }
}

/// Returns a NaN with this sign and the lowest 10 bits of `payload`.
fn half_nan(sign: u32, payload: u32) -> f16 {
    let payload = (payload & 0x3ff) as u16;
    f16::from_bits((sign as u16) << 15 | 0x7c00 | payload.max(1))
}

/// Widens a float exactly.
#[inline(always)]
fn widen(v: f16) -> f32 {
    let bits = u32::from(v.to_bits());
    let sign = u32::from(v.to_bits() & 0x8000) << 16;
    let magnitude = bits & 0x7fff;
    if magnitude >= 0x7c00 {
        return f32::from_bits(sign | 0x7f80_0000 | (magnitude & 0x3ff) << 13);
    }
    // the biases of the exponents differ by 112; the product also normalizes a subnormal number
    let scale = f32::from_bits((127 + 112) << 23);
    f32::from_bits(sign | (f32::from_bits(magnitude << 13) * scale).to_bits())
}

/// Narrows a double, rounding half to even by all 53 bits of its mantissa. The `half` crate uses
/// only the upper bits.
fn narrow(v: f64) -> f16 {
    let sign = ((v.to_bits() >> 48) & 0x8000) as u16;
    let v = v.abs();
    let bits = if v >= 65520.0 {
        0x7c00
    } else if v < 6.103515625e-5 {
        // a subnormal number counts units of 2^-24, 1024 of which are the smallest normal number
        (v * 16777216.0).round_ties_even() as u16
    } else {
        let m = v.to_bits() - ((1023 - 15) << 52);
        ((m + ((1 << 41) - 1) + (m >> 42 & 1)) >> 42) as u16
    };
    f16::from_bits(sign | bits)
}

/// A boolean: `add` is "or" and `sub` is "differs", as in NumPy's `cumsum` and `diff`. Every byte
/// but 0 is true.
impl Number for bool {
    const SIZE: usize = 1;
    #[inline(always)]
    fn read(bytes: &[u8]) -> Self {
        bytes.first().is_some_and(|&b| b != 0)
    }
    #[inline(always)]
    fn write(self, bytes: &mut [u8]) {
        bytes.fill(self.into());
    }
    fn add(self, other: Self) -> Self {
        self | other
    }
    fn sub(self, other: Self) -> Self {
        self ^ other
    }
    fn mul(self, other: Self) -> Self {
        self & other
    }
    fn div(self, _other: Self) -> Self {
        self
    }
    fn round(self) -> Self {
        self
    }
    #[inline(always)]
    fn to<N: Number>(self) -> N {
        N::from_u64(self.into())
    }
    fn from_i64(v: i64) -> Self {
        v != 0
    }
    fn from_u64(v: u64) -> Self {
        v != 0
    }
    fn from_f64(v: f64) -> Self {
        v != 0.0
    }
    fn from_complex<R: Number>(re: R, im: R) -> Self {
        re.to::<bool>() | im.to::<bool>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_out_of_range_cast_as_in_numpy() {
        assert_eq!(
            [-1.0, 256.0, 300.0, f64::NAN].map(|v| v.to::<u8>()),
            [255, 0, 44, 0]
        );
        assert_eq!(
            [70000.0, 3e9, f64::INFINITY, -40000.9].map(|v| v.to::<i16>()),
            [4464, 0, 0, 25536]
        );
        assert_eq!(
            [3e9, -2147483648.5, 2147483647.9].map(|v| v.to::<i32>()),
            [i32::MIN, i32::MIN, i32::MAX]
        );
        assert_eq!([1e19, f64::NAN].map(|v| v.to::<i64>()), [i64::MIN; 2]);
        let u8s = [1e19, -2.0, f64::NAN, f64::INFINITY, 2f64.powi(64)].map(|v| v.to::<u64>());
        assert_eq!(
            u8s,
            [10_000_000_000_000_000_000, u64::MAX - 1, 1 << 63, 0, 0]
        );
    }

    #[test]
    fn half_floats_round_trip() {
        for bits in 0..=u16::MAX {
            let number = f16::from_bits(bits);
            if !number.is_nan() {
                assert_eq!(widen(number), number.to_f32(), "{bits:04x}");
            }
            assert_eq!(half(widen(number)).to_bits(), bits);
        }
        // just above the middle of two neighbors: only the lowest bit decides
        let above = f64::from_bits(0x3ff0_0200_0000_0001);
        assert_eq!(above.to::<f16>().to_bits(), 0x3c01);
        assert_eq!(
            [65519.9, 65520.0, 2.98e-8, 2.99e-8].map(|v| v.to::<f16>().to_bits()),
            [0x7bff, 0x7c00, 0, 1]
        );
    }
}
