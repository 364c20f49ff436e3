//! NumPy's arithmetic and casts on one number, for every type that array filters work in. Integers wrap; a float that
//! does not fit an integer gives what numpy's C code gives on x86-64. It knows nothing of buffers, byte order or
//! codecs. Source of the rules: numpy 2 run on x86-64.

use half::f16;

/// A number in the machine's byte order. `add` to `div` are numpy's operators of the type, `to` its `astype`.
pub trait Number: Copy + Default {
    /// Bytes of one item.
    const SIZE: usize;
    /// From [`Number::SIZE`] bytes in the machine's order.
    fn read(bytes: &[u8]) -> Self;
    /// To [`Number::SIZE`] bytes in the machine's order.
    fn write(self, bytes: &mut [u8]);
    /// `self + other`
    fn add(self, other: Self) -> Self;
    /// `self - other`
    fn sub(self, other: Self) -> Self;
    /// `self * other`
    fn mul(self, other: Self) -> Self;
    /// `self / other`; integers are never divided, numpy makes them floats first.
    fn div(self, other: Self) -> Self;
    /// Rounds half to even.
    fn round(self) -> Self;
    /// The same value as another type.
    fn to<T: Number>(self) -> T;
    /// From a signed integer.
    fn from_i64(v: i64) -> Self;
    /// From an unsigned integer.
    fn from_u64(v: u64) -> Self;
    /// From a float.
    fn from_f32(v: f32) -> Self;
    /// From a float.
    fn from_f64(v: f64) -> Self;
    /// From a complex number: all but complex types drop the imaginary part.
    fn from_complex<R: Number>(re: R, _im: R) -> Self {
        re.to()
    }
}

/// A float: what a complex number is made of.
pub trait Float: Number {}
impl Float for f32 {}
impl Float for f64 {}

/// `cvttsd2si` to 32 bits: what does not fit becomes `i32::MIN`. Narrower integers take its low bits.
fn to_i32(v: f64) -> i32 {
    if v.abs() < 2147483648.0 { v as i32 } else { i32::MIN }
}

fn to_i64(v: f64) -> i64 {
    if v.abs() < 9223372036854775808.0 { v as i64 } else { i64::MIN }
}

fn to_u64(v: f64) -> u64 {
    const HALF: f64 = 9223372036854775808.0;
    if v >= HALF { (to_i64(v - HALF) as u64) ^ (1 << 63) } else { to_i64(v) as u64 }
}

/// Reading and writing bytes are the same for every primitive.
macro_rules! bytes {
    ($T:ty) => {
        const SIZE: usize = size_of::<$T>();
        #[inline(always)]
        fn read(bytes: &[u8]) -> Self {
            bytes.try_into().map_or(Self::default(), <$T>::from_ne_bytes)
        }
        #[inline(always)]
        fn write(self, bytes: &mut [u8]) {
            bytes.copy_from_slice(&self.to_ne_bytes());
        }
    };
}

/// An integer: `$wide` is the integer it goes through to other types, `$cast` numpy's way from a float.
macro_rules! integer {
    ($T:ty, $from_wide:ident, $wide:ty, $cast:ident) => {
        impl Number for $T {
            bytes!($T);
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn sub(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }
            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn div(self, other: Self) -> Self {
                self.checked_div(other).unwrap_or_default()
            }
            #[inline(always)]
            fn round(self) -> Self {
                self
            }
            #[inline(always)]
            fn to<N: Number>(self) -> N {
                N::$from_wide(self as $wide)
            }
            #[inline(always)]
            fn from_i64(v: i64) -> Self {
                v as $T
            }
            #[inline(always)]
            fn from_u64(v: u64) -> Self {
                v as $T
            }
            #[inline(always)]
            fn from_f32(v: f32) -> Self {
                $cast(f64::from(v)) as $T
            }
            #[inline(always)]
            fn from_f64(v: f64) -> Self {
                $cast(v) as $T
            }
        }
    };
}

integer!(i8, from_i64, i64, to_i32);
integer!(i16, from_i64, i64, to_i32);
integer!(i32, from_i64, i64, to_i32);
integer!(i64, from_i64, i64, to_i64);
integer!(u8, from_u64, u64, to_i32);
integer!(u16, from_u64, u64, to_i32);
// numpy's own answer for values out of u4's range depends on the length of the array; this is its scalar loop's
integer!(u32, from_u64, u64, to_i64);
integer!(u64, from_u64, u64, to_u64);

macro_rules! float {
    ($T:ty, $from_self:ident) => {
        impl Number for $T {
            bytes!($T);
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn sub(self, other: Self) -> Self {
                self - other
            }
            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                self * other
            }
            #[inline(always)]
            fn div(self, other: Self) -> Self {
                self / other
            }
            #[inline(always)]
            fn round(self) -> Self {
                self.round_ties_even()
            }
            #[inline(always)]
            fn to<N: Number>(self) -> N {
                N::$from_self(self)
            }
            #[inline(always)]
            fn from_i64(v: i64) -> Self {
                v as $T
            }
            #[inline(always)]
            fn from_u64(v: u64) -> Self {
                v as $T
            }
            #[inline(always)]
            fn from_f32(v: f32) -> Self {
                v as $T
            }
            #[inline(always)]
            fn from_f64(v: f64) -> Self {
                v as $T
            }
        }
    };
}

float!(f32, from_f32);
float!(f64, from_f64);

/// Arithmetic of the 16-bit float is done in 32 bits and rounded after every step.
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
        if v.is_nan() { half_nan((bits >> 63) as u32, (bits >> 42) as u32) } else { narrow(v) }
    }
}

/// Not `f16::from_f32`, which is the `half` crate's own: a NaN keeps its sign and the upper bits of its payload.
fn half(v: f32) -> f16 {
    if v.is_nan() { half_nan(v.to_bits() >> 31, v.to_bits() >> 13) } else { narrow(f64::from(v)) }
}

fn half_nan(sign: u32, payload: u32) -> f16 {
    let payload = (payload & 0x3ff) as u16;
    f16::from_bits((sign as u16) << 15 | 0x7c00 | payload.max(1))
}

#[inline(always)]
fn widen(v: f16) -> f32 {
    let (bits, sign) = (u32::from(v.to_bits()), u32::from(v.to_bits() & 0x8000) << 16);
    let magnitude = bits & 0x7fff;
    if magnitude >= 0x7c00 {
        return f32::from_bits(sign | 0x7f80_0000 | (magnitude & 0x3ff) << 13);
    }
    // the exponents differ by 112, and the product also puts a subnormal in order
    let scale = f32::from_bits((127 + 112) << 23);
    f32::from_bits(sign | (f32::from_bits(magnitude << 13) * scale).to_bits())
}

/// Rounds half to even from all 53 bits, where the `half` crate looks at the upper ones only.
fn narrow(v: f64) -> f16 {
    let sign = ((v.to_bits() >> 48) & 0x8000) as u16;
    let v = v.abs();
    let bits = if v >= 65520.0 {
        0x7c00
    } else if v < 6.103515625e-5 {
        // subnormal: a count of 2^-24, and 1024 of them are the smallest normal number
        (v * 16777216.0).round_ties_even() as u16
    } else {
        let m = v.to_bits() - ((1023 - 15) << 52);
        ((m + ((1 << 41) - 1) + (m >> 42 & 1)) >> 42) as u16
    };
    f16::from_bits(sign | bits)
}

/// `add` is "or" and `sub` is "differs", as numpy has it for `cumsum` and `diff`; any byte but zero is true.
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
    fn from_f32(v: f32) -> Self {
        v != 0.0
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
    fn floats_that_fit_no_integer() {
        assert_eq!([-1.0, 256.0, 300.0, f64::NAN].map(|v| v.to::<u8>()), [255, 0, 44, 0]);
        assert_eq!([70000.0, 3e9, f64::INFINITY, -40000.9].map(|v| v.to::<i16>()), [4464, 0, 0, 25536]);
        assert_eq!([3e9, -2147483648.5, 2147483647.9].map(|v| v.to::<i32>()), [i32::MIN, i32::MIN, i32::MAX]);
        assert_eq!([1e19, f64::NAN].map(|v| v.to::<i64>()), [i64::MIN; 2]);
        let u8s = [1e19, -2.0, f64::NAN, f64::INFINITY, 2f64.powi(64)].map(|v| v.to::<u64>());
        assert_eq!(u8s, [10_000_000_000_000_000_000, u64::MAX - 1, 1 << 63, 0, 0]);
    }

    #[test]
    fn halves() {
        for bits in 0..=u16::MAX {
            let number = f16::from_bits(bits);
            if !number.is_nan() {
                assert_eq!(widen(number), number.to_f32(), "{bits:04x}");
            }
            assert_eq!(half(widen(number)).to_bits(), bits);
        }
        // just above half way between two neighbours, where only the lowest bits tell
        let above = f64::from_bits(0x3ff0_0200_0000_0001);
        assert_eq!(above.to::<f16>().to_bits(), 0x3c01);
        assert_eq!([65519.9, 65520.0, 2.98e-8, 2.99e-8].map(|v| v.to::<f16>().to_bits()), [0x7bff, 0x7c00, 0, 1]);
    }
}
