//! Conversion of numbers in buffers: the type and byte order of a dtype, and one loop that converts
//! items of one type to another, block by block so that intermediate values stay in the cache. Each
//! filter of numbers calls this loop with its own step. The module must not know the filters.

use super::number::Number;
use super::scalar::{Scalar, cast_of};
use super::{CodecConfig, CodecResult, Size, buffer};
use crate::dtype::DType;
use crate::word::with_size;
use zarrfs_base::error::{Error, Result};

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
