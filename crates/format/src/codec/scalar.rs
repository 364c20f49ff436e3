//! The types of numbers that filters compute in: sizes, ranges, promotion by NumPy's rules, and the
//! casts between them. The module knows neither buffers in other byte orders nor filters.

use super::number::Number;
use crate::dtype::{DType, DTypeKind};
use std::ops::Range;

/// A type in which filters compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scalar {
    Bool,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
    F16,
    F32,
    F64,
    C64,
    C128,
    /// Counts of time units: `m8` and `M8`.
    Ticks,
}

/// Runs `$body` with `$T` standing for the Rust type of `$scalar`.
macro_rules! with_type {
    ($scalar:expr, $T:ident => $body:expr) => {
        with_type!(@ $scalar, $T => $body; Bool bool, I8 i8, I16 i16, I32 i32, I64 i64, U8 u8, U16 u16, U32 u32,
            U64 u64, F16 half::f16, F32 f32, F64 f64, C64 crate::codec::complex::Complex<f32>,
            C128 crate::codec::complex::Complex<f64>, Ticks crate::codec::complex::Ticks)
    };
    (@ $scalar:expr, $T:ident => $body:expr; $($name:ident $type:ty),* $(,)?) => {
        match $scalar {
            $(crate::codec::scalar::Scalar::$name => {
                type $T = $type;
                $body
            })*
        }
    };
}
pub(super) use with_type;

impl Scalar {
    /// Returns the type of a dtype's items, or `None` for text, bytes, structs, objects and 16-byte
    /// floats.
    pub fn of(dtype: &DType) -> Option<Self> {
        Some(match (dtype.kind(), dtype.size()) {
            (DTypeKind::Bool, _) => Scalar::Bool,
            (DTypeKind::Int, 1) => Scalar::I8,
            (DTypeKind::Int, 2) => Scalar::I16,
            (DTypeKind::Int, 4) => Scalar::I32,
            (DTypeKind::Int, 8) => Scalar::I64,
            (DTypeKind::UInt, 1) => Scalar::U8,
            (DTypeKind::UInt, 2) => Scalar::U16,
            (DTypeKind::UInt, 4) => Scalar::U32,
            (DTypeKind::UInt, 8) => Scalar::U64,
            (DTypeKind::Float, 2) => Scalar::F16,
            (DTypeKind::Float, 4) => Scalar::F32,
            (DTypeKind::Float, 8) => Scalar::F64,
            (DTypeKind::Complex, 8) => Scalar::C64,
            (DTypeKind::Complex, 16) => Scalar::C128,
            (DTypeKind::TimeDelta | DTypeKind::DateTime, 8) => Scalar::Ticks,
            _ => return None,
        })
    }

    /// Returns the size of an item in bytes.
    pub fn size(self) -> usize {
        with_type!(self, T => T::SIZE)
    }

    /// Returns whether this is a signed or unsigned integer.
    pub fn is_integer(self) -> bool {
        use Scalar::*;
        matches!(self, I8 | I16 | I32 | I64 | U8 | U16 | U32 | U64)
    }

    /// Returns whether this is a signed integer.
    pub fn is_signed(self) -> bool {
        matches!(self, Scalar::I8 | Scalar::I16 | Scalar::I32 | Scalar::I64)
    }

    /// Returns the numbers of this type of integers.
    pub fn range(self) -> Range<i128> {
        let bits = 8 * self.size();
        if self.is_signed() {
            -(1 << (bits - 1))..1 << (bits - 1)
        } else {
            0..1 << bits
        }
    }

    /// Returns whether this is a real float.
    pub fn is_float(self) -> bool {
        matches!(self, Scalar::F16 | Scalar::F32 | Scalar::F64)
    }

    /// Returns the smallest type that holds both types, by the rules of `numpy.promote_types`.
    pub fn promote(self, other: Self) -> Self {
        use Scalar::*;
        let complex = |s| matches!(s, C64 | C128);
        // the width of float that each type needs: 0 for f2, 1 for f4, 2 for f8
        let float = |s| match s {
            Bool | I8 | U8 | F16 => 0,
            I16 | U16 | F32 | C64 => 1,
            _ => 2,
        };
        match (self, other) {
            (a, b) if a == b => a,
            (Ticks, _) | (_, Ticks) => Ticks,
            (Bool, other) | (other, Bool) => other,
            (a, b) if complex(a) || complex(b) => [C64, C64, C128][float(a).max(float(b))],
            (a, b) if a.is_float() || b.is_float() => [F16, F32, F64][float(a).max(float(b))],
            (a, b) if a.is_signed() == b.is_signed() => {
                std::cmp::max_by_key(a, b, |scalar| scalar.size())
            }
            (signed, unsigned) | (unsigned, signed) if signed.is_signed() => {
                match signed.size().max(2 * unsigned.size()) {
                    2 => I16,
                    4 => I32,
                    8 => I64,
                    _ => F64,
                }
            }
            (a, _) => a,
        }
    }
}

type Cast = fn(&[u8], &mut [u8]);

fn cast<A: Number, B: Number>(from: &[u8], to: &mut [u8]) {
    for (a, b) in from.chunks_exact(A::SIZE).zip(to.chunks_exact_mut(B::SIZE)) {
        A::read(a).to::<B>().write(b);
    }
}

fn copy(from: &[u8], to: &mut [u8]) {
    to.copy_from_slice(from);
}

/// Returns the function that casts items in the machine's byte order.
pub fn cast_of(from: Scalar, to: Scalar) -> Cast {
    if from == to {
        return copy;
    }
    with_type!(from, A => with_type!(to, B => cast::<A, B>))
}
