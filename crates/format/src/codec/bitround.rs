//! The filter `bitround`: floats whose mantissas, or integers whose digits, are rounded to fewer
//! bits. Source of the rules: `numcodecs.BitRound` for floats, and the registry of Zarr extensions,
//! "bitround codec", for the other types. Decoding changes nothing.

use super::spec::refused;
use super::v3::with_dtype;
use super::{
    Codec, CodecConfig, CodecError, CodecKind, CodecResult, CodecSpec, Intermediate, ItemTypes,
    Size, buffer,
};
use crate::dtype::{DType, DTypeKind};
use crate::float_format::FloatFormat;
use crate::real::{RealKind, RealType};
use crate::word;
use zarrfs_base::error::{Error, Result};

/// What is known of the filter.
pub const SPEC: CodecSpec = CodecSpec {
    id: "bitround",
    // without `dtype` items are little-endian floats
    parameters: &["keepbits", "dtype"],
    build: |config, itemsize| Ok(Box::new(BitRound::new(config, itemsize)?)),
    items: ItemTypes::Kept,
    v3_names: &["numcodecs.bitround", "bitround"],
    parse: with_dtype,
    kind: CodecKind::Array,
    is_elementwise: true,
    check_input: |config, Intermediate { items, .. }| {
        if *items.kind() == DTypeKind::Float && !items.is_big_endian() && items.size() <= 8 {
            return Ok(());
        }
        let why = "rounds little-endian floats of 2, 4 or 8 bytes, which the items here are not";
        Err(refused(config, why))
    },
    ..CodecSpec::BYTES
};

/// The filter `bitround`.
pub struct BitRound {
    /// Number of bits to keep: of a float's mantissa, or of an integer, counted from its highest
    /// set bit.
    keep: u32,
    /// Size of an item in bytes.
    itemsize: usize,
    /// The numbers of the items; `None` if numcodecs does not round items of this size.
    numbers: Option<RealType>,
    /// Whether the configuration states the dtype, as v3 does. If not, the rules of numcodecs hold,
    /// which refuses to keep more bits than the mantissa has.
    is_typed: bool,
}

impl BitRound {
    /// Creates the filter from `keepbits`, for items of `itemsize` bytes: little-endian floats,
    /// unless there is a `dtype`.
    pub fn new(config: &CodecConfig, itemsize: usize) -> Result<Self> {
        config.required("keepbits")?;
        let keep = config.int("keepbits", 0, 0, i64::from(u32::MAX))? as u32;
        let is_typed = config.get("dtype").is_some();
        let numbers = if is_typed {
            let name = config.text("dtype", "")?;
            let numbers = rounded_type(name).ok_or_else(|| {
                Error::unsupported(format!(
                    "codec \"bitround\": dtype {name:?} cannot be rounded"
                ))
            })?;
            if keep == 0 && !matches!(numbers.kind, RealKind::Float(_)) {
                return Err(config.invalid("keepbits", "is 0, but integers keep at least 1 bit"));
            }
            Some(numbers)
        } else {
            RealType::parse(&format!("<f{itemsize}"))
        };
        Ok(BitRound {
            keep,
            itemsize,
            numbers,
            is_typed,
        })
    }
}

/// Returns the type of the numbers of the element type `name`, or `None` if the registry does not
/// define how to round it.
fn rounded_type(name: &str) -> Option<RealType> {
    let order = &name[..name.len() - name.trim_start_matches(['<', '>']).len()];
    if DType::parse_str(name).is_ok_and(|dtype| dtype.has_time()) {
        return RealType::parse(&format!("{order}i8"));
    }
    let (real, _) = RealType::parse_parts(name)?;
    // the numbers of other types have spare bits, or no definition
    let has_rule = match real.kind {
        RealKind::Integer { .. } => real.is_canonical(),
        RealKind::Float(_) => real.bits() >= 16,
    };
    has_rule.then_some(real)
}

/// Applies `step` to every number in `bytes`.
fn each(numbers: RealType, bytes: &mut [u8], step: impl Fn(u64) -> u64) {
    word::with_size!(numbers.size, N => word::each::<N>(bytes, numbers.is_big_endian, step));
}

/// Rounds every number in `bytes` to `keep` bits.
fn round(numbers: RealType, bytes: &mut [u8], keep: u32) {
    match numbers.kind {
        RealKind::Float(FloatFormat { mantissa_bits, .. }) => {
            if keep < mantissa_bits {
                each(numbers, bytes, |x| round_float(x, mantissa_bits - keep));
            }
        }
        RealKind::Integer {
            bits,
            is_signed: false,
        } => each(numbers, bytes, |x| {
            round_integer(x, keep, u64::MAX >> (64 - bits))
        }),
        RealKind::Integer { bits, .. } => each(numbers, bytes, |x| {
            let unused = 64 - bits;
            let x = (x << unused) as i64 >> unused;
            let limit = (u64::MAX >> unused >> 1) + u64::from(x < 0);
            let rounded = round_integer(x.unsigned_abs(), keep, limit);
            if x < 0 {
                rounded.wrapping_neg()
            } else {
                rounded
            }
        }),
    }
}

/// Rounds the bits `x` of a float half to even to a multiple of `1 << drop`, where `drop` is from 1
/// to 52.
fn round_float(x: u64, drop: u32) -> u64 {
    let quantum = 1 << drop;
    x.wrapping_add(((x >> drop) & 1) + (quantum >> 1) - 1) & !(quantum - 1)
}

/// Rounds `x` half to even to `keep` bits from the highest set one, or down if the result would
/// exceed `limit`.
fn round_integer(x: u64, keep: u32, limit: u64) -> u64 {
    let drop = (u64::BITS - x.leading_zeros()).saturating_sub(keep);
    if drop == 0 {
        return x;
    }
    let down = x >> drop << drop;
    let half = 1 << (drop - 1);
    let is_up = x - down > half || x - down == half && x >> drop & 1 == 1;
    down.checked_add(2 * half)
        .filter(|up| is_up && *up <= limit)
        .unwrap_or(down)
}

impl Codec for BitRound {
    fn encoded_size(&self, decoded: usize) -> Size {
        Size::Exact(decoded)
    }

    fn encoded_itemsize(&self) -> usize {
        self.itemsize
    }

    fn is_lossless(&self) -> bool {
        false
    }

    fn decode(&self, encoded: &[u8], out: &mut [u8]) -> CodecResult<usize> {
        buffer::copy(encoded, out)
    }

    fn encode(&self, decoded: &[u8], out: &mut Vec<u8>) -> CodecResult<()> {
        let numbers = self
            .numbers
            .ok_or_else(|| CodecError::new("bitround rounds floats of 2, 4 or 8 bytes only"))?;
        buffer::count(decoded, numbers.size)?;
        if let RealKind::Float(FloatFormat { mantissa_bits, .. }) = numbers.kind
            && !self.is_typed
            && self.keep > mantissa_bits
        {
            return Err(CodecError::new(format!(
                "bitround can't keep {} of {mantissa_bits} bits",
                self.keep
            )));
        }
        out.extend_from_slice(decoded);
        round(numbers, out, self.keep);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::testing::{config, encoded, encoded_as, refused};
    use proptest::prelude::*;

    /// Returns the encoding by a codec whose configuration states the dtype.
    fn rounded(dtype: &str, keep: u32, plain: &[u8]) -> Vec<u8> {
        encoded(
            &format!(r#"{{"id": "bitround", "keepbits": {keep}, "dtype": "{dtype}"}}"#),
            plain,
        )
    }

    #[test]
    fn worked_examples() {
        let three = r#"{"id": "bitround", "keepbits": 3}"#;
        let f4 = |v: f32| v.to_le_bytes();
        // 1.0625 lies in the middle of 1 and 1.125
        assert_eq!(
            encoded_as(three, 4, &[1.3, 1.0625, 1.1875].map(f4).concat()),
            [1.25, 1.0, 1.25].map(f4).concat()
        );
        assert_eq!(
            encoded_as(r#"{"id": "bitround", "keepbits": 10}"#, 2, &[1, 2]),
            [1, 2]
        );
    }

    #[test]
    fn typed_floats() {
        let values = [1.3, 1.0625, 1.1875, -1.3];
        let expected = [1.25, 1.0, 1.25, -1.25];
        assert_eq!(
            rounded("<f4", 3, &values.map(f32::to_le_bytes).concat()),
            expected.map(f32::to_le_bytes).concat()
        );
        assert_eq!(
            rounded(
                ">f8",
                3,
                &values.map(|v| f64::from(v).to_be_bytes()).concat()
            ),
            expected.map(|v| f64::from(v).to_be_bytes()).concat()
        );
        assert_eq!(
            rounded("<c8", 3, &values.map(f32::to_le_bytes).concat()),
            expected.map(f32::to_le_bytes).concat()
        );
        // 1.0078125 keeps 1 of 7 bits, 1.875 becomes 2
        assert_eq!(
            rounded("<bfloat16", 1, &[0x81, 0x3f, 0xf0, 0x3f]),
            [0x80, 0x3f, 0, 0x40]
        );
        assert_eq!(rounded("<f4", 23, &[1, 2, 3, 4]), [1, 2, 3, 4]);
        assert_eq!(rounded("<f4", 99, &[1, 2, 3, 4]), [1, 2, 3, 4]);
    }

    #[test]
    fn integers_keep_bits_from_the_highest() {
        assert_eq!(
            rounded("|u1", 3, &[0, 1, 7, 8, 9, 10, 11, 13, 15, 100]),
            [0, 1, 7, 8, 8, 10, 12, 12, 16, 96]
        );
        assert_eq!(rounded("|u1", 1, &[1, 2, 3, 5, 6, 7]), [1, 2, 4, 4, 8, 8]);
        let i2 = |values: [i16; 4]| values.map(i16::to_le_bytes).concat();
        assert_eq!(
            rounded("<i2", 3, &i2([1000, -1000, 11, -11])),
            i2([1024, -1024, 12, -12])
        );
        assert_eq!(
            rounded(">u4", 4, &1000u32.to_be_bytes()),
            1024u32.to_be_bytes()
        );
        assert_eq!(
            rounded("<i8", 64, &i64::MIN.to_le_bytes()),
            i64::MIN.to_le_bytes()
        );
    }

    #[test]
    fn integers_stay_in_range() {
        assert_eq!(rounded("|u1", 3, &[255, 239]), [224, 224]);
        assert_eq!(rounded("|i1", 3, &[127, 0x80, 0x81]), [112, 0x80, 0x80]);
        assert_eq!(
            rounded("<u8", 1, &u64::MAX.to_le_bytes()),
            (1u64 << 63).to_le_bytes()
        );
        // NaT, the smallest integer, is kept
        assert_eq!(
            rounded("<M8[s]", 1, &i64::MIN.to_le_bytes()),
            i64::MIN.to_le_bytes()
        );
    }

    #[test]
    fn bad_parameters_are_errors() {
        refused(r#"{"id": "bitround", "keepbits": -1}"#);
        refused(r#"{"id": "bitround"}"#);
        refused(r#"{"id": "bitround", "keepbits": 3, "dtype": "|b1"}"#);
        refused(r#"{"id": "bitround", "keepbits": 3, "dtype": "int4"}"#);
        refused(r#"{"id": "bitround", "keepbits": 0, "dtype": "<i4"}"#);
        let codec = BitRound::new(&config(r#"{"id": "bitround", "keepbits": 11}"#), 2).unwrap();
        assert!(codec.encode(&[1, 2], &mut Vec::new()).is_err());
        let mut out = [0; 2];
        assert_eq!(codec.decode(&[1, 2], &mut out), Ok(2));
        let codec = BitRound::new(&config(r#"{"id": "bitround", "keepbits": 1}"#), 1).unwrap();
        assert!(codec.encode(&[1, 2], &mut Vec::new()).is_err());
    }

    proptest! {
        #[test]
        fn rounded_integers_are_the_nearest(x: u64, shift in 0u32..64, keep in 1u32..=64) {
            let x = x >> shift;
            let rounded = round_integer(x, keep, u64::MAX);
            let drop = (64 - x.leading_zeros()).saturating_sub(keep);
            let quantum = 1u128 << drop;
            prop_assert_eq!(u128::from(rounded) % quantum, 0);
            let error = u128::from(rounded.abs_diff(x));
            // where the nearest is 2^64, the one below is taken
            prop_assert!(2 * error <= quantum || u128::from(x) + quantum > u128::from(u64::MAX));
            prop_assert_eq!(round_integer(rounded, keep, u64::MAX), rounded);
        }
    }
}
