//! Integers and floats of up to eight bytes, as arrays store them. This module knows neither
//! attributes nor files.

use super::described::MetadataNumber;
use half::f16;
use zarrfs_format::dtype::{DType, DTypeKind};

/// A type of numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NumberType {
    /// What the bits of an item are.
    pub kind: NumberKind,
    /// The number of bytes.
    pub size: usize,
    /// The byte order.
    pub is_big_endian: bool,
}

/// What the bits of an item are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberKind {
    /// An integer in two's complement.
    Signed,
    /// An integer that is not negative.
    Unsigned,
    /// A float of 2, 4 or 8 bytes.
    Float,
}

impl NumberType {
    /// Returns the type of a dtype's items; times are the integers that they count.
    pub fn of(dtype: &DType) -> Option<Self> {
        let size = dtype.size();
        let kind = match dtype.kind() {
            DTypeKind::Int | DTypeKind::DateTime | DTypeKind::TimeDelta => NumberKind::Signed,
            DTypeKind::UInt => NumberKind::Unsigned,
            DTypeKind::Float if size <= 8 => NumberKind::Float,
            _ => return None,
        };
        Some(NumberType {
            kind,
            size,
            is_big_endian: dtype.is_big_endian(),
        })
    }

    /// Returns the type of floats of `size` bytes.
    pub fn of_floats(size: usize, is_big_endian: bool) -> Self {
        NumberType {
            kind: NumberKind::Float,
            size,
            is_big_endian,
        }
    }

    /// Returns the type of integers of the other sign; `None` for floats.
    pub fn with_other_sign(self) -> Option<Self> {
        let kind = match self.kind {
            NumberKind::Signed => NumberKind::Unsigned,
            NumberKind::Unsigned => NumberKind::Signed,
            NumberKind::Float => return None,
        };
        Some(NumberType { kind, ..self })
    }

    /// Returns the bits of an item, which has the type's size.
    pub fn load(self, item: &[u8]) -> u64 {
        let mut bytes = [0; 8];
        bytes[..self.size].copy_from_slice(&item[..self.size]);
        if self.is_big_endian {
            bytes[..self.size].reverse();
        }
        u64::from_le_bytes(bytes)
    }

    /// Appends the item with these bits.
    pub fn store(self, bits: u64, to: &mut Vec<u8>) {
        let at = to.len();
        to.extend_from_slice(&bits.to_le_bytes()[..self.size]);
        if self.is_big_endian {
            to[at..].reverse();
        }
    }

    /// Returns the integer that the bits of an item are.
    pub fn integer(self, bits: u64) -> i128 {
        let unused = 64 - 8 * self.size as u32;
        match self.kind {
            NumberKind::Signed => ((bits << unused) as i64 >> unused).into(),
            _ => bits.into(),
        }
    }

    /// Returns the bits of an integer; `None` if no item holds it.
    pub fn integer_bits(self, number: i128) -> Option<u64> {
        let bits = number as u64 & u64::MAX >> (64 - 8 * self.size);
        (self.integer(bits) == number).then_some(bits)
    }

    /// Returns the number that the bits of an item are, as the nearest f64.
    pub fn float(self, bits: u64) -> f64 {
        match (self.kind, self.size) {
            (NumberKind::Float, 2) => f16::from_bits(bits as u16).to_f64(),
            (NumberKind::Float, 4) => f32::from_bits(bits as u32).into(),
            (NumberKind::Float, _) => f64::from_bits(bits),
            _ => self.integer(bits) as f64,
        }
    }

    /// Returns the bits of the nearest item to a number, or `None` if the number is out of range.
    /// Halves are rounded to the even item.
    pub fn nearest(self, number: f64) -> Option<u64> {
        if self.kind != NumberKind::Float {
            // a float beyond an i128 becomes the largest one
            let whole = number.round_ties_even();
            return whole
                .is_finite()
                .then(|| self.integer_bits(whole as i128))
                .flatten();
        }
        let nearest = match self.size {
            2 => f16::from_f64(number).to_bits().into(),
            4 => (number as f32).to_bits().into(),
            _ => number.to_bits(),
        };
        (self.float(nearest).is_finite() || !number.is_finite()).then_some(nearest)
    }
}

/// Returns the number that an item is; `None` unless the dtype holds numbers or times.
pub fn read_number(dtype: &DType, item: &[u8]) -> Option<MetadataNumber> {
    let number = NumberType::of(dtype)?;
    let bits = number.load(item);
    Some(match number.kind {
        NumberKind::Float => MetadataNumber::Float(number.float(bits)),
        _ => MetadataNumber::Int(number.integer(bits)),
    })
}
