//! The filter `bitround`: floats whose mantissas are rounded to fewer bits. Source of the rules: `numcodecs.BitRound`. The
//! filter knows only the size of the items and takes them for little-endian floats.

use super::{Codec, CodecError, CodecResult, Size, buffer};
use crate::error::Result;
use crate::zarr::metadata::CodecConfig;

/// The filter `bitround`.
pub struct BitRound {
    /// Number of mantissa bits to keep.
    keep: u32,
    /// Size of an item in bytes.
    itemsize: usize,
}

impl BitRound {
    /// Creates the filter from `keepbits`, for items of `itemsize` bytes.
    pub fn new(config: &CodecConfig, itemsize: usize) -> Result<Self> {
        config.allow_only(&["keepbits"])?;
        config.required("keepbits")?;
        Ok(BitRound { keep: config.int("keepbits", 0, 0, i64::from(u32::MAX))? as u32, itemsize })
    }
}

/// Rounds the floats in `$bytes`, taken as integers of type `$T`, half to even to multiples of `1 << $drop`.
macro_rules! round {
    ($T:ty, $bytes:expr, $drop:expr) => {{
        let (drop, quantum): (u32, $T) = ($drop, 1 << $drop);
        for b in $bytes.chunks_exact_mut(size_of::<$T>()) {
            let x = b.as_ref().try_into().map_or(0, <$T>::from_le_bytes);
            let x = x.wrapping_add(((x >> drop) & 1) + (quantum >> 1) - 1) & !(quantum - 1);
            b.copy_from_slice(&x.to_le_bytes());
        }
    }};
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
        let mantissa: u32 = match self.itemsize {
            2 => 10,
            4 => 23,
            8 => 52,
            _ => return Err(CodecError::new("bitround rounds floats of 2, 4 or 8 bytes only")),
        };
        buffer::count(decoded, self.itemsize)?;
        let too_many = || CodecError::new(format!("bitround can't keep {} of {mantissa} bits", self.keep));
        let drop = mantissa.checked_sub(self.keep).ok_or_else(too_many)?;
        let start = out.len();
        out.extend_from_slice(decoded);
        match self.itemsize {
            _ if drop == 0 => {}
            2 => round!(u16, out[start..], drop),
            4 => round!(u32, out[start..], drop),
            _ => round!(u64, out[start..], drop),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zarr::codec::testing::{config, encoded_as, refused};

    #[test]
    fn worked_examples() {
        let three = r#"{"id": "bitround", "keepbits": 3}"#;
        let f4 = |v: f32| v.to_le_bytes();
        // 1.0625 lies in the middle of 1 and 1.125
        assert_eq!(encoded_as(three, 4, &[1.3, 1.0625, 1.1875].map(f4).concat()), [1.25, 1.0, 1.25].map(f4).concat());
        assert_eq!(encoded_as(r#"{"id": "bitround", "keepbits": 10}"#, 2, &[1, 2]), [1, 2]);
    }

    #[test]
    fn bad_parameters_are_errors() {
        refused(r#"{"id": "bitround", "keepbits": -1}"#);
        refused(r#"{"id": "bitround"}"#);
        let codec = BitRound::new(&config(r#"{"id": "bitround", "keepbits": 11}"#), 2).unwrap();
        assert!(codec.encode(&[1, 2], &mut Vec::new()).is_err());
        let mut out = [0; 2];
        assert_eq!(codec.decode(&[1, 2], &mut out), Ok(2));
    }
}
