//! `bitround`: floats with the low bits of their mantissa rounded away. Source of the rules: `numcodecs.BitRound`. The
//! width of the floats is that of the items given to it; that they are little-endian floats at all, it can't see.

use super::{Codec, CodecError, Size, buffer};
use crate::error::Result;
use crate::zarr::metadata::CodecConfig;

/// The filter, with the bits to keep and the width of an item.
pub struct BitRound {
    keep: u32,
    itemsize: usize,
}

impl BitRound {
    /// From `keepbits`, for items of `itemsize` bytes.
    pub fn new(config: &CodecConfig, itemsize: usize) -> Result<Self> {
        config.only(&["keepbits"])?;
        config.get("keepbits").ok_or_else(|| config.bad("keepbits", "is missing"))?;
        Ok(BitRound { keep: config.int("keepbits", 0, 0, i64::from(u32::MAX))? as u32, itemsize })
    }
}

/// Rounds half to even to a multiple of `1 << drop`, by the integers of the floats' bits.
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

    fn decode(&self, encoded: &[u8], out: &mut [u8]) -> std::result::Result<usize, CodecError> {
        buffer::copy(encoded, out)
    }

    fn encode(&self, decoded: &[u8], out: &mut Vec<u8>) -> std::result::Result<(), CodecError> {
        let mantissa: u32 = match self.itemsize {
            2 => 10,
            4 => 23,
            8 => 52,
            _ => return Err(CodecError::new("bitround rounds floats of 2, 4 or 8 bytes only")),
        };
        buffer::count(decoded, self.itemsize)?;
        let why = || CodecError::new(format!("bitround can't keep {} of {mantissa} bits", self.keep));
        let drop = mantissa.checked_sub(self.keep).ok_or_else(why)?;
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
        // 1.0625 is half way between 1 and 1.125
        assert_eq!(encoded_as(three, 4, &[1.3, 1.0625, 1.1875].map(f4).concat()), [1.25, 1.0, 1.25].map(f4).concat());
        assert_eq!(encoded_as(r#"{"id": "bitround", "keepbits": 10}"#, 2, &[1, 2]), [1, 2]);
    }

    #[test]
    fn what_is_refused() {
        refused(r#"{"id": "bitround", "keepbits": -1}"#);
        refused(r#"{"id": "bitround"}"#);
        let codec = BitRound::new(&config(r#"{"id": "bitround", "keepbits": 11}"#), 2).unwrap();
        assert!(codec.encode(&[1, 2], &mut Vec::new()).is_err());
        let mut out = [0; 2];
        assert_eq!(codec.decode(&[1, 2], &mut out), Ok(2));
    }
}
