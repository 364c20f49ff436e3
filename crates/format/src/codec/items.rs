//! Conversion of numbers in buffers: the type and byte order of a dtype, and one loop that converts
//! items of one type to another, block by block so that intermediate values stay in the cache. Each
//! filter of numbers calls this loop with its own step. The module must not know the filters.

use super::number::Number;
use super::{CodecConfig, CodecResult, Size, buffer};
use crate::dtype::{DType, DTypeKind};
use crate::word::with_size;
use std::ops::Range;
use zarrfs_base::error::{Error, Result};

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
            $(crate::codec::items::Scalar::$name => {
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

/// The type and byte order of the items in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Items {
    /// The type of the items.
    pub scalar: Scalar,
    /// Whether the byte order differs from the machine's.
    pub swapped: bool,
}

impl Items {
    /// Returns the items of a dtype, or `None` if filters cannot compute with them.
    pub fn of(dtype: &DType) -> Option<Self> {
        let swapped = dtype.size() > 1 && dtype.is_big_endian() != cfg!(target_endian = "big");
        Some(Items {
            scalar: Scalar::of(dtype)?,
            swapped,
        })
    }

    /// Returns items in the machine's byte order.
    pub fn native(scalar: Scalar) -> Self {
        Items {
            scalar,
            swapped: false,
        }
    }

    /// Returns the items of the dtype parameter `name`, or `None` if it is absent or null.
    pub fn param(config: &CodecConfig, name: &str) -> Result<Option<Self>> {
        match config.dtype(name)? {
            Some(dtype) => Items::of(&dtype)
                .map(Some)
                .ok_or_else(|| not_numeric(config, name)),
            None => Ok(None),
        }
    }

    /// Returns the size of an item in bytes.
    pub fn size(self) -> usize {
        self.scalar.size()
    }

    /// Converts items between their byte order and the machine's.
    fn order(self, bytes: &mut [u8]) {
        let part = match self.scalar {
            Scalar::C64 | Scalar::C128 => self.size() / 2,
            _ => self.size(),
        };
        if self.swapped {
            with_size!(part, N => {
                let items = bytes.as_chunks_mut::<N>().0;
                items.iter_mut().for_each(|item| item.reverse());
            });
        }
    }
}

/// Returns the error for a dtype parameter `name` that a filter cannot compute with.
pub fn not_numeric(config: &CodecConfig, name: &str) -> Error {
    Error::unsupported(format!(
        "codec {:?}: {name} is not a type it can compute with",
        config.id
    ))
}

/// Returns whether no conversion of time units is needed: the dtype parameters `a` and `b` have the
/// same unit, or at most one of them is a time.
pub fn same_units(config: &CodecConfig, a: &str, b: &str) -> Result<bool> {
    Ok(match (time_unit(config, a)?, time_unit(config, b)?) {
        (Some(a), Some(b)) => a == b,
        _ => true,
    })
}

/// Returns the unit in the dtype parameter `name` as it is spelled, or `None` if it is no time.
fn time_unit<'a>(config: &'a CodecConfig, name: &str) -> Result<Option<&'a str>> {
    if !config.dtype(name)?.is_some_and(|dtype| dtype.has_time()) {
        return Ok(None);
    }
    let text = config.text(name, "")?;
    Ok(text.trim_start_matches(['<', '>', '=', '|']).get(2..))
}

/// Number of items in a block.
const BLOCK: usize = 512;
/// Maximum size of an item in bytes.
const WIDEST: usize = 16;

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
fn cast_of(from: Scalar, to: Scalar) -> Cast {
    if from == to {
        return copy;
    }
    with_type!(from, A => with_type!(to, B => cast::<A, B>))
}

/// Applies `step` to every number of type `T` in `block`, which has the machine's byte order.
#[inline(always)]
pub fn each<T: Number>(block: &mut [u8], mut step: impl FnMut(T) -> T) {
    for bytes in block.chunks_exact_mut(T::SIZE) {
        step(T::read(bytes)).write(bytes);
    }
}

/// Casts the items `from` in `input` to type `work`, applies `step` to each block in order, and
/// casts the result to the items `to` in `output`. Both buffers hold the same number of whole
/// items.
pub fn convert(
    from: Items,
    work: Scalar,
    to: Items,
    input: &[u8],
    output: &mut [u8],
    mut step: impl FnMut(&mut [u8]),
) {
    let into_work = cast_of(from.scalar, work);
    let out_of_work = cast_of(work, to.scalar);
    let mut loaded = [0; BLOCK * WIDEST];
    let mut worked = [0; BLOCK * WIDEST];
    for (a, b) in input
        .chunks(BLOCK * from.size())
        .zip(output.chunks_mut(BLOCK * to.size()))
    {
        let items = a.len() / from.size();
        let worked = &mut worked[..items * work.size()];
        if from.swapped {
            let loaded = &mut loaded[..a.len()];
            loaded.copy_from_slice(a);
            from.order(loaded);
            into_work(loaded, worked);
        } else {
            into_work(a, worked);
        }
        step(worked);
        out_of_work(worked, b);
        to.order(b);
    }
}

/// The items that a filter of numbers decodes and encodes.
#[derive(Clone, Copy, Debug)]
pub struct NumberTypes {
    /// The decoded items.
    pub decoded: Items,
    /// The encoded items.
    pub encoded: Items,
}

impl NumberTypes {
    /// Parses the types in the parameters of these names, which must be `accepted`. Encoded items
    /// are like decoded ones if their type is not stated.
    pub fn new(
        config: &CodecConfig,
        [decoded, encoded]: [&str; 2],
        accepted: fn(Scalar) -> bool,
    ) -> Result<Self> {
        let of_decoded = Items::param(config, decoded)?;
        let of_decoded = of_decoded.ok_or_else(|| config.invalid(decoded, "is missing"))?;
        let types = NumberTypes {
            decoded: of_decoded,
            encoded: Items::param(config, encoded)?.unwrap_or(of_decoded),
        };
        for (items, name) in [(types.decoded, decoded), (types.encoded, encoded)] {
            if !accepted(items.scalar) {
                return Err(not_numeric(config, name));
            }
        }
        Ok(types)
    }

    /// Returns the size of the encoding of `decoded` bytes.
    pub fn encoded_size(self, decoded: usize) -> Size {
        Size::Exact((decoded / self.decoded.size()).saturating_mul(self.encoded.size()))
    }

    /// Returns whether a cast to the encoded items and back preserves all bytes. This holds for
    /// integers cast to at least as many bits. Casts of floats change some NaNs, and casts of
    /// booleans change bytes other than 0 and 1.
    pub fn are_preserved(self) -> bool {
        let NumberTypes { decoded, encoded } = self;
        decoded.scalar.is_integer()
            && encoded.scalar.is_integer()
            && encoded.size() >= decoded.size()
    }

    /// Decodes items as [`convert`] does, into the front of `out`. Returns the number of bytes
    /// written.
    pub fn decode(
        self,
        work: Scalar,
        input: &[u8],
        out: &mut [u8],
        step: impl FnMut(&mut [u8]),
    ) -> CodecResult<usize> {
        let NumberTypes { decoded, encoded } = self;
        let len = buffer::total(buffer::count(input, encoded.size())?, decoded.size())?;
        convert(
            encoded,
            work,
            decoded,
            input,
            buffer::front(out, len)?,
            step,
        );
        Ok(len)
    }

    /// Encodes items as [`convert`] does, and appends them to `out`, which is empty.
    pub fn encode(
        self,
        work: Scalar,
        input: &[u8],
        out: &mut Vec<u8>,
        step: impl FnMut(&mut [u8]),
    ) -> CodecResult<()> {
        let NumberTypes { decoded, encoded } = self;
        let len = buffer::total(buffer::count(input, decoded.size())?, encoded.size())?;
        out.resize(len, 0);
        convert(decoded, work, encoded, input, out, step);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promotion_matches_numpy() {
        use Scalar::*;
        for (a, b, both) in [
            (I8, I16, I16),
            (I8, U8, I16),
            (I32, U32, I64),
            (I8, U64, F64),
            (U8, F16, F16),
            (I16, F16, F32),
            (I32, F32, F64),
            (C64, I16, C64),
            (C64, F64, C128),
            (Bool, U32, U32),
        ] {
            assert_eq!((a.promote(b), b.promote(a)), (both, both), "{a:?} {b:?}");
        }
    }

    #[test]
    fn items_of_any_number_and_byte_order_are_converted() {
        let big = Items {
            scalar: Scalar::U16,
            swapped: cfg!(target_endian = "little"),
        };
        let numbers: Vec<u16> = (0..1300).collect();
        let input: Vec<u8> = numbers.iter().flat_map(|n| n.to_be_bytes()).collect();
        let wanted: Vec<u8> = numbers
            .iter()
            .flat_map(|&n| (f64::from(n) + 1.0).to_ne_bytes())
            .collect();
        let mut out = vec![0; wanted.len()];
        let step = |block: &mut [u8]| each::<f64>(block, |x| x + 1.0);
        let widened = NumberTypes {
            decoded: Items::native(Scalar::F64),
            encoded: big,
        };
        assert_eq!(
            widened.decode(Scalar::F64, &input, &mut out, step),
            Ok(out.len())
        );
        assert_eq!(out, wanted);
        let same = NumberTypes {
            decoded: big,
            encoded: big,
        };
        let copy = |input: &[u8], len| {
            let mut out = vec![0; len];
            same.decode(Scalar::U16, input, &mut out, |_| {})
        };
        assert!(copy(&input, 2599).is_err());
        assert!(copy(&input[..3], 2600).is_err());
    }
}
