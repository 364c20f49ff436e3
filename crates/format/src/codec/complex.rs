//! NumPy's numbers that are no Rust primitive: complex numbers and counts of time units. Like
//! `number`, the module knows neither buffers nor codecs. Source of the rules: NumPy 2 on x86-64.

use super::number::{Float, Number};

/// A complex number, stored with the real part first.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Complex<R> {
    re: R,
    im: R,
}

impl<R: Float> Number for Complex<R> {
    const SIZE: usize = 2 * R::SIZE;

    #[inline(always)]
    fn read(bytes: &[u8]) -> Self {
        let (re, im) = bytes.split_at(R::SIZE);
        Complex {
            re: R::read(re),
            im: R::read(im),
        }
    }

    #[inline(always)]
    fn write(self, bytes: &mut [u8]) {
        let (re, im) = bytes.split_at_mut(R::SIZE);
        self.re.write(re);
        self.im.write(im);
    }

    fn add(self, other: Self) -> Self {
        Complex {
            re: self.re.add(other.re),
            im: self.im.add(other.im),
        }
    }

    fn sub(self, other: Self) -> Self {
        Complex {
            re: self.re.sub(other.re),
            im: self.im.sub(other.im),
        }
    }

    fn mul(self, other: Self) -> Self {
        Complex {
            re: self.re.mul(other.re).sub(self.im.mul(other.im)),
            im: self.re.mul(other.im).add(self.im.mul(other.re)),
        }
    }

    /// Divides by Smith's method with a reciprocal, as NumPy does. Filters only divide by real
    /// numbers.
    fn div(self, other: Self) -> Self {
        if !other.re.to::<bool>() {
            return Complex {
                re: self.re.div(other.re),
                im: self.im.div(other.re),
            };
        }
        let ratio = other.im.div(other.re);
        let scale = R::from_f64(1.0).div(other.re.add(other.im.mul(ratio)));
        Complex {
            re: self.re.add(self.im.mul(ratio)).mul(scale),
            im: self.im.sub(self.re.mul(ratio)).mul(scale),
        }
    }

    fn round(self) -> Self {
        Complex {
            re: self.re.round(),
            im: self.im.round(),
        }
    }

    #[inline(always)]
    fn to<T: Number>(self) -> T {
        T::from_complex(self.re, self.im)
    }

    fn from_i64(v: i64) -> Self {
        real(R::from_i64(v))
    }

    fn from_u64(v: u64) -> Self {
        real(R::from_u64(v))
    }

    fn from_f32(v: f32) -> Self {
        real(R::from_f32(v))
    }

    fn from_f64(v: f64) -> Self {
        real(R::from_f64(v))
    }

    fn from_complex<S: Number>(re: S, im: S) -> Self {
        Complex {
            re: re.to(),
            im: im.to(),
        }
    }
}

#[inline(always)]
fn real<R: Float>(re: R) -> Complex<R> {
    let im = R::default();
    Complex { re, im }
}

/// A count of time units. The least value is "not a time", and so is every sum and difference with
/// it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Ticks(i64);

const NOT_A_TIME: i64 = i64::MIN;

impl Ticks {
    /// Applies `f` unless one of the two is "not a time".
    #[inline(always)]
    fn combine(self, other: Self, f: impl Fn(i64, i64) -> i64) -> Self {
        if self.0 == NOT_A_TIME || other.0 == NOT_A_TIME {
            Ticks(NOT_A_TIME)
        } else {
            Ticks(f(self.0, other.0))
        }
    }
}

impl Number for Ticks {
    const SIZE: usize = 8;

    #[inline(always)]
    fn read(bytes: &[u8]) -> Self {
        Ticks(i64::read(bytes))
    }

    #[inline(always)]
    fn write(self, bytes: &mut [u8]) {
        self.0.write(bytes);
    }

    fn add(self, other: Self) -> Self {
        self.combine(other, i64::wrapping_add)
    }

    fn sub(self, other: Self) -> Self {
        self.combine(other, i64::wrapping_sub)
    }

    fn mul(self, other: Self) -> Self {
        self.combine(other, i64::wrapping_mul)
    }

    fn div(self, other: Self) -> Self {
        Ticks(self.0.div(other.0))
    }

    fn round(self) -> Self {
        self
    }

    #[inline(always)]
    fn to<T: Number>(self) -> T {
        self.0.to()
    }

    fn from_i64(v: i64) -> Self {
        Ticks(v)
    }

    fn from_u64(v: u64) -> Self {
        Ticks(v as i64)
    }

    fn from_f64(v: f64) -> Self {
        Ticks(i64::from_f64(v))
    }
}
