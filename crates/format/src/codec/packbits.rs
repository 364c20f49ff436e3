//! The filter `packbits`: one byte with the number of padding bits, then eight booleans in each
//! byte, the first one in the highest bit. Source of the rules: `numcodecs.PackBits`.

use super::spec::refused;
use super::v3::plain;
use super::{
    ArrayInput, Codec, CodecConfig, CodecError, CodecKind, CodecResult, CodecSpec, Size, buffer,
};
use crate::dtype::DTypeKind;
use crate::extension::Extension;
use crate::layout::byte_size;
use zarrfs_base::error::{Error, Result};

/// What is known of the filter.
pub const SPEC: CodecSpec = CodecSpec {
    id: "packbits",
    build: |_, _| Ok(Box::new(PackBits)),
    v3_names: &["numcodecs.packbits"],
    parse: parse_v3,
    kind: CodecKind::Array,
    check_input: |config, given| match given.items.kind() {
        DTypeKind::Bool => Ok(()),
        _ => Err(refused(
            config,
            "keeps booleans alone, other values would be lost",
        )),
    },
    ..CodecSpec::BYTES
};

/// The filter `packbits`, which has no parameters.
pub struct PackBits;

/// Translates the codec of v3, which encodes an array of booleans into an array of bytes.
fn parse_v3(
    spec: &CodecSpec,
    codec: &Extension,
    input: &mut ArrayInput,
) -> Result<Option<CodecConfig>> {
    let config = plain(spec, codec)?;
    if input.element(codec)? != "|b1" {
        return Err(Error::damaged(
            "codecs: \"numcodecs.packbits\" encodes booleans alone",
        ));
    }
    let items = byte_size(&input.shape, 1).map_or(u64::MAX, |items| items as u64);
    (input.element, input.itemsize) = (Some("|u1".into()), 1);
    // numcodecs puts the number of unused bits first
    (input.shape, input.axes) = (vec![1 + items.div_ceil(8)], None);
    Ok(Some(config))
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
        out.extend(decoded.chunks(8).map(|bools| {
            bools
                .iter()
                .enumerate()
                .fold(0, |bits, (i, &b)| bits | u8::from(b != 0) << (7 - i))
        }));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::codec::testing::{broken, check, decoded, encoded, refused};

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
