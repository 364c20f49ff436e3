//! The codec `packbits` of Zarr v3, with the id `packbits_v3` here: numbers of any width in bits
//! without gaps, the least significant bit first. `packbits` of numcodecs packs the most
//! significant bit first. Source of the rules: the registry of Zarr extensions, "packbits codec".

use super::spec::lacking_in_numcodecs;
use super::v3::with_dtype;
use super::{Codec, CodecConfig, CodecError, CodecKind, CodecResult, CodecSpec, Size, buffer};
use crate::real::{RealKind, RealType};
use crate::word::{load, with_size};
use zarrfs_base::error::{Error, Result};

/// What is known of the codec.
pub const SPEC: CodecSpec = CodecSpec {
    id: "packbits_v3",
    parameters: &["dtype", "padding_encoding", "first_bit", "last_bit"],
    build: |config, _| Ok(Box::new(PackBitsV3::new(config)?)),
    v3_names: &["packbits"],
    kind: CodecKind::ArrayToBytes,
    parse: with_dtype,
    spell: None,
    check_input: lacking_in_numcodecs,
    ..CodecSpec::BYTES
};

/// The codec `packbits_v3`.
#[derive(Debug)]
pub struct PackBitsV3 {
    /// A number, or one half of a complex number.
    component: RealType,
    /// Number of components of an item.
    per_item: usize,
    /// Index of the first packed bit of a component.
    first: u32,
    /// Number of packed bits of a component.
    bits: u32,
    padding: Padding,
}

/// A boolean: every byte but 0 is true.
const BOOL: RealType = RealType {
    kind: RealKind::Integer {
        bits: 1,
        is_signed: false,
    },
    size: 1,
    is_big_endian: false,
};

/// The place of the byte that holds the number of padding bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Padding {
    None,
    FirstByte,
    LastByte,
}

impl PackBitsV3 {
    /// Creates the codec from `dtype`, `padding_encoding`, `first_bit` and `last_bit`.
    pub fn new(config: &CodecConfig) -> Result<Self> {
        config.required("dtype")?;
        let name = config.text("dtype", "")?;
        let parts = match name {
            "|b1" => Some((BOOL, 1)),
            _ => RealType::parse_parts(name),
        };
        let (component, per_item) = parts.ok_or_else(|| {
            Error::unsupported(format!(
                "codec \"packbits\": dtype {name:?} cannot be packed"
            ))
        })?;
        let padding = match config.text("padding_encoding", "none")? {
            "none" => Padding::None,
            "first_byte" | "start_byte" => Padding::FirstByte,
            "last_byte" | "end_byte" => Padding::LastByte,
            _ => {
                return Err(config.invalid(
                    "padding_encoding",
                    "is neither \"none\", \"first_byte\" nor \"last_byte\"",
                ));
            }
        };
        if padding != Padding::None && component.bits() == 8 * component.size as u32 {
            let why = format!(
                "codec \"packbits\": padding_encoding with dtype {name:?}, whose items have whole bytes"
            );
            return Err(Error::unsupported(why));
        }
        let highest = i64::from(component.bits()) - 1;
        let first = config.int("first_bit", 0, 0, highest)?;
        let last = config.int("last_bit", highest, 0, highest)?;
        if last < first {
            return Err(config.invalid("last_bit", "is less than first_bit"));
        }
        Ok(PackBitsV3 {
            component,
            per_item,
            first: first as u32,
            bits: (last - first) as u32 + 1,
            padding,
        })
    }

    /// Returns the number of bytes that `count` components are packed into, without the padding
    /// byte.
    fn packed_size(&self, count: usize) -> usize {
        let bits = self.bits as usize;
        (count / 8)
            .saturating_mul(bits)
            .saturating_add((count % 8 * bits).div_ceil(8))
    }

    /// Splits off the byte that counts the padding bits. Returns the packed bytes and the number of
    /// components in them. Without such a byte, the number follows from `out`, the size of the
    /// decoded bytes.
    fn unpadded<'a>(&self, encoded: &'a [u8], out: usize) -> CodecResult<(&'a [u8], usize)> {
        let split = match self.padding {
            Padding::None => {
                let count = out / self.component.size;
                return if self.packed_size(count) == encoded.len() {
                    Ok((encoded, count))
                } else {
                    Err(CodecError::new(format!(
                        "packbits: {} bytes where {count} numbers take {}",
                        encoded.len(),
                        self.packed_size(count)
                    )))
                };
            }
            Padding::FirstByte => encoded.split_first(),
            Padding::LastByte => encoded.split_last(),
        };
        let (&padding, packed) =
            split.ok_or_else(|| CodecError::new("packbits: no padding byte"))?;
        let bits = buffer::total(packed.len(), 8)?
            .checked_sub(usize::from(padding))
            .filter(|_| padding < 8);
        match bits {
            Some(bits) if bits.is_multiple_of(self.bits as usize) => {
                Ok((packed, bits / self.bits as usize))
            }
            _ => Err(CodecError::new(format!(
                "packbits: {} bytes cannot have {padding} padding bits",
                packed.len()
            ))),
        }
    }

    /// Returns the packed bits of the component `value`.
    fn extract(&self, value: u64) -> u64 {
        if self.component == BOOL {
            u64::from(value != 0)
        } else {
            value >> self.first & u64::MAX >> (64 - self.bits)
        }
    }

    /// Returns the component whose packed bits are the lowest of `bits`.
    fn extend(&self, bits: u64) -> u64 {
        let unused = 64 - self.bits;
        match self.component.kind {
            RealKind::Integer {
                is_signed: true, ..
            } => ((bits << unused) as i64 >> unused << self.first) as u64,
            _ => bits << unused >> unused << self.first,
        }
    }

    /// Packs components of `N` bytes.
    fn pack<const N: usize>(&self, decoded: &[u8], out: &mut Vec<u8>) {
        let mut pending = 0u128;
        let mut held = 0;
        for bytes in decoded.as_chunks::<N>().0 {
            pending |= u128::from(self.extract(self.component.load(bytes))) << held;
            held += self.bits;
            if held >= 64 {
                out.extend_from_slice(&(pending as u64).to_le_bytes());
                pending >>= 64;
                held -= 64;
            }
        }
        out.extend_from_slice(&pending.to_le_bytes()[..held.div_ceil(8) as usize]);
    }

    /// Unpacks as many components of `N` bytes as `out` holds.
    fn unpack<const N: usize>(&self, packed: &[u8], out: &mut [u8]) {
        let mut words = packed.chunks(8);
        let mut pending = 0u128;
        let mut held = 0;
        for bytes in out.as_chunks_mut::<N>().0 {
            if held < self.bits {
                pending |= u128::from(load(words.next().unwrap_or_default(), false)) << held;
                held += 64;
            }
            self.component.store(self.extend(pending as u64), bytes);
            pending >>= self.bits;
            held -= self.bits;
        }
    }
}

impl Codec for PackBitsV3 {
    fn encoded_size(&self, decoded: usize) -> Size {
        let packed = self.packed_size(decoded / self.component.size);
        Size::Exact(packed.saturating_add(usize::from(self.padding != Padding::None)))
    }

    fn is_lossless(&self) -> bool {
        // narrow types have spare bits, and booleans keep only whether they are zero
        self.bits == 8 * self.component.size as u32
    }

    fn decode(&self, encoded: &[u8], out: &mut [u8]) -> CodecResult<usize> {
        let (packed, count) = self.unpadded(encoded, out.len())?;
        let len = buffer::total(count, self.component.size)?;
        let out = buffer::front(out, len)?;
        with_size!(self.component.size, N => self.unpack::<N>(packed, out));
        Ok(len)
    }

    fn encode(&self, decoded: &[u8], out: &mut Vec<u8>) -> CodecResult<()> {
        buffer::count(decoded, self.component.size * self.per_item)?;
        // this does not allocate, since the pipeline has reserved the memory
        out.reserve(self.encoded_size(decoded.len()).max());
        let used = (decoded.len() / self.component.size % 8) as u32 * self.bits;
        let padding = (used.wrapping_neg() % 8) as u8;
        if self.padding == Padding::FirstByte {
            out.push(padding);
        }
        with_size!(self.component.size, N => self.pack::<N>(decoded, out));
        if self.padding == Padding::LastByte {
            out.push(padding);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::build;
    use crate::codec::testing::{broken, check, config, decoded, encoded, refused};
    use proptest::prelude::*;

    fn packbits(parameters: &str) -> String {
        format!(r#"{{"id": "packbits_v3", {parameters}}}"#)
    }

    /// Checks both directions of a codec that does not store the number of padding bits.
    fn check_exact(parameters: &str, plain: &[u8], stored: &[u8]) {
        let text = packbits(parameters);
        assert_eq!(encoded(&text, plain), stored, "{text}");
        assert_eq!(decoded(&text, stored, plain.len()), plain, "{text}");
    }

    #[test]
    fn booleans_begin_at_the_lowest_bit() {
        let ten = [1, 0, 0, 0, 0, 0, 0, 0, 1, 0];
        check_exact(r#""dtype": "|b1""#, &ten, &[1, 1]);
        check(
            &packbits(r#""dtype": "|b1", "padding_encoding": "first_byte""#),
            &ten,
            &[6, 1, 1],
        );
        check(
            &packbits(r#""dtype": "|b1", "padding_encoding": "start_byte""#),
            &[0, 1, 1],
            &[5, 6],
        );
        check(
            &packbits(r#""dtype": "|b1", "padding_encoding": "last_byte""#),
            &ten,
            &[1, 1, 6],
        );
        check(
            &packbits(r#""dtype": "|b1", "padding_encoding": "end_byte""#),
            &[1; 8],
            &[255, 0],
        );
        check(
            &packbits(r#""dtype": "|b1", "padding_encoding": "first_byte""#),
            &[],
            &[0],
        );
        check_exact(r#""dtype": "|b1""#, &[], &[]);
        assert_eq!(encoded(&packbits(r#""dtype": "|b1""#), &[200, 0, 2]), [5]);
    }

    #[test]
    fn narrow_numbers_take_their_width() {
        check_exact(
            r#""dtype": "int2""#,
            &[0, 1, 0xfe, 0xff, 1],
            &[0b11_10_01_00, 1],
        );
        check_exact(r#""dtype": "uint2""#, &[0, 1, 2, 3, 1], &[0b11_10_01_00, 1]);
        check_exact(r#""dtype": "int4""#, &[7, 0xf8, 0xff], &[0x87, 0x0f]);
        check_exact(r#""dtype": "uint4""#, &[7, 8, 15], &[0x87, 0x0f]);
        check_exact(r#""dtype": "float4_e2m1fn""#, &[1, 15], &[0xf1]);
        check_exact(
            r#""dtype": "float6_e2m3fn""#,
            &[1, 2, 3, 4],
            &[0x81, 0x30, 0x10],
        );
        check_exact(
            r#""dtype": "complex_float4_e2m1fn""#,
            &[1, 2, 3, 4],
            &[0x21, 0x43],
        );
        // the upper bits of the bytes are not stored
        assert_eq!(
            encoded(&packbits(r#""dtype": "uint4""#), &[0xf7, 0xf8]),
            [0x87]
        );
        let counted = packbits(r#""dtype": "int4", "padding_encoding": "first_byte""#);
        check(&counted, &[7, 0xf8, 0xff], &[4, 0x87, 0x0f]);
    }

    #[test]
    fn wide_numbers_keep_a_range_of_bits() {
        check_exact(r#""dtype": "<u2""#, &[1, 2, 3, 4], &[1, 2, 3, 4]);
        check_exact(r#""dtype": ">u2""#, &[1, 2, 3, 4], &[2, 1, 4, 3]);
        check_exact(
            r#""dtype": "<u2", "last_bit": 11"#,
            &[0x34, 0x02, 0xbc, 0x0a],
            &[0x34, 0xc2, 0xab],
        );
        // bits 4 to 11 of -16 are all set, those of 16 are 1; bit 11 is the sign
        check_exact(
            r#""dtype": "<i2", "first_bit": 4, "last_bit": 11"#,
            &[0xf0, 0xff, 0x10, 0],
            &[0xff, 1],
        );
        check_exact(
            r#""dtype": "<u2", "first_bit": 4, "last_bit": 11"#,
            &[0xf0, 0x0f, 0x10, 0],
            &[0xff, 1],
        );
        let low = packbits(r#""dtype": "<u2", "first_bit": null, "last_bit": 7"#);
        assert_eq!(
            encoded(&low, &[0x34, 0x12]),
            [0x34],
            "bits outside are dropped"
        );
        check_exact(
            r#""dtype": "<f4", "first_bit": 16"#,
            &1.5f32.to_le_bytes(),
            &[0xc0, 0x3f],
        );
        check_exact(
            r#""dtype": "<c8", "first_bit": 16"#,
            &[0, 0, 0xc0, 0x3f, 0, 0, 0x80, 0xbf],
            &[0xc0, 0x3f, 0x80, 0xbf],
        );
        check_exact(r#""dtype": "<bfloat16""#, &[0xc0, 0x3f], &[0xc0, 0x3f]);
        check_exact(
            r#""dtype": "float8_e4m3", "first_bit": 7"#,
            &[0x80, 0, 0x80],
            &[0b101],
        );
    }

    #[test]
    fn only_whole_numbers_are_lossless() {
        let lossless = |parameters| {
            build(&config(&packbits(parameters)), 1)
                .unwrap()
                .is_lossless()
        };
        assert!(lossless(r#""dtype": "<i8""#) && lossless(r#""dtype": "float8_e5m2""#));
        assert!(!lossless(r#""dtype": "|b1""#) && !lossless(r#""dtype": "int4""#));
        assert!(!lossless(r#""dtype": "<u4", "last_bit": 30"#));
    }

    #[test]
    fn damage_and_bad_parameters_are_errors() {
        let counted = packbits(r#""dtype": "|b1", "padding_encoding": "first_byte""#);
        for stored in [&[][..], &[8, 0], &[1], &[255, 1, 2, 3]] {
            broken(&counted, stored);
        }
        broken(
            &packbits(r#""dtype": "int4", "padding_encoding": "last_byte""#),
            &[0, 0, 3],
        );
        broken(&packbits(r#""dtype": "|b1""#), &[0; 124]);
        broken(&packbits(r#""dtype": "|b1""#), &[0; 126]);
        let codec = PackBitsV3::new(&config(&packbits(r#""dtype": "<c8""#))).unwrap();
        assert!(codec.encode(&[0; 12], &mut Vec::new()).is_err());
        for parameters in [
            r#""first_bit": 0"#,
            r#""dtype": "|b1", "last_bit": 1"#,
            r#""dtype": "<u2", "first_bit": 5, "last_bit": 4"#,
            r#""dtype": "<u2", "first_bit": -1"#,
            r#""dtype": "<u2", "last_bit": 16"#,
            r#""dtype": "|b1", "padding_encoding": "middle""#,
            r#""dtype": "|b1", "level": 1"#,
            r#""dtype": "|S4""#,
            r#""dtype": "complex_int4""#,
            r#""dtype": "<f16""#,
        ] {
            refused(&packbits(parameters));
        }
        let error = PackBitsV3::new(&config(&packbits(
            r#""dtype": "<f4", "padding_encoding": "last_byte""#,
        )))
        .unwrap_err();
        assert_eq!(error.kind(), zarrfs_base::error::Kind::Unsupported);
    }

    proptest! {
        #[test]
        fn decoding_reverses_encoding(
            numbers in prop::collection::vec(any::<i64>(), 0..50),
            first in 0u32..64, bits in 1u32..=64, is_signed: bool, is_big_endian: bool,
        ) {
            let last = (first + bits - 1).min(63);
            // clears the bits that the codec drops
            let unused = 63 - last;
            let number = |n: i64| if is_signed { n << unused >> unused >> first << first } else { ((n as u64) << unused >> unused >> first << first) as i64 };
            let bytes = |n| if is_big_endian { number(n).to_be_bytes() } else { number(n).to_le_bytes() };
            let plain: Vec<u8> = numbers.iter().flat_map(|n| bytes(*n)).collect();
            let order = if is_big_endian { '>' } else { '<' };
            let letter = if is_signed { 'i' } else { 'u' };
            let text = packbits(&format!(r#""dtype": "{order}{letter}8", "first_bit": {first}, "last_bit": {last}"#));
            let stored = encoded(&text, &plain);
            prop_assert_eq!(stored.len(), (numbers.len() * (last - first + 1) as usize).div_ceil(8));
            prop_assert_eq!(decoded(&text, &stored, plain.len()), plain);
        }
    }
}
