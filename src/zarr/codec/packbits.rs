//! The filter `packbits`: one byte with the number of padding bits, then eight booleans in each
//! byte, the first one in the highest bit. Source of the rules: `numcodecs.PackBits`.

use super::{Codec, CodecError, CodecResult, Size, buffer};
use crate::error::Result;
use crate::zarr::metadata::CodecConfig;

/// The filter `packbits`, which has no parameters.
pub struct PackBits;

impl PackBits {
    /// Creates the filter.
    pub fn new(config: &CodecConfig) -> Result<Self> {
        config.allow_only(&[])?;
        Ok(PackBits)
    }
}

impl Codec for PackBits {
    fn encoded_size(&self, decoded: usize) -> Size {
        Size::Exact(decoded.div_ceil(8) + 1)
    }

    fn is_lossless(&self) -> bool {
        false
    }

    fn decode(&self, encoded: &[u8], out: &mut [u8]) -> CodecResult<usize> {
        let (&padding, packed) = encoded
            .split_first()
            .ok_or_else(|| CodecError::new("packbits data are empty"))?;
        let len = buffer::total(packed.len(), 8)?.saturating_sub(padding.into());
        for (bits, bools) in packed.iter().zip(buffer::front(out, len)?.chunks_mut(8)) {
            for (i, b) in bools.iter_mut().enumerate() {
                *b = bits << i >> 7;
            }
        }
        Ok(len)
    }

    fn encode(&self, decoded: &[u8], out: &mut Vec<u8>) -> CodecResult<()> {
        out.push((decoded.len().wrapping_neg() % 8) as u8);
        let pack = |bools: &[u8]| {
            bools
                .iter()
                .enumerate()
                .fold(0, |bits, (i, &b)| bits | u8::from(b != 0) << (7 - i))
        };
        out.extend(decoded.chunks(8).map(pack));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::zarr::codec::testing::{broken, check, decoded, encoded, refused};

    #[test]
    fn worked_examples() {
        let config = r#"{"id": "packbits"}"#;
        check(config, &[1, 0, 0, 1], &[4, 144]);
        check(config, &[0, 0, 0, 0, 0, 0, 0, 1], &[0, 1]);
        check(config, &[], &[0]);
        assert_eq!(encoded(config, &[200, 0, 2]), [5, 160]);
        assert!(decoded(config, &[200, 255], 8).is_empty());
        broken(config, &[]);
        refused(r#"{"id": "packbits", "order": "big"}"#);
    }
}
