//! The codec `vlen_transpose`: `transpose` for items of variable length, as `vlen-utf8` and
//! `vlen-bytes` encode them. The decoded bytes are these encodings in C order, the encoded bytes in
//! C order of the permuted axes. The codec does not know what the items mean. Source of the format:
//! `numcodecs.vlen`.

use super::object::each_item;
use super::spec::lacking_in_numcodecs;
use super::transpose::{AxisOrder, OF_BYTES};
use super::{Codec, CodecConfig, CodecError, CodecResult, CodecSpec, Size, buffer};
use crate::layout::{byte_size, permute};
use zarrfs_base::error::Result;

/// What is known of the codec.
pub const SPEC: CodecSpec = CodecSpec {
    id: OF_BYTES,
    parameters: &["shape", "order"],
    build: |config, _| Ok(Box::new(VlenTranspose::new(config)?)),
    check_input: lacking_in_numcodecs,
    ..CodecSpec::BYTES
};

/// Size in bytes of a count or length.
const LENGTH: usize = size_of::<u32>();

/// The codec `vlen_transpose`.
pub struct VlenTranspose {
    axes: AxisOrder,
    /// Number of items in a chunk.
    items: usize,
}

impl VlenTranspose {
    /// Creates the codec from the parameters of `transpose`.
    pub fn new(config: &CodecConfig) -> Result<Self> {
        let axes = AxisOrder::parse(config)?;
        let items =
            byte_size(&axes.shape, 1).ok_or_else(|| config.invalid("shape", "is too large"))?;
        Ok(VlenTranspose { axes, items })
    }

    /// Returns the position in `bytes` of each item's length, which precedes the item, and the end
    /// of the last item.
    fn positions(&self, bytes: &[u8]) -> CodecResult<(Vec<u64>, usize)> {
        // every item takes at least its length, which bounds the memory by that of the bytes
        let mut positions = Vec::with_capacity(self.items.min(bytes.len() / LENGTH));
        let mut at = LENGTH;
        each_item(bytes, self.items as u64, |item| {
            positions.push(at as u64);
            at += LENGTH + item.len();
            Ok(())
        })
        .map_err(|e| CodecError(format!("vlen_transpose: {}", e.0)))?;
        Ok((positions, at))
    }

    /// Writes the items of `bytes`, an array of shape `shape`, to `out` in C order of the axes
    /// `order`. Both slices have the same length.
    fn reorder(
        &self,
        shape: &[u64],
        order: &[usize],
        bytes: &[u8],
        out: &mut [u8],
    ) -> CodecResult<()> {
        let (positions, end) = self.positions(bytes)?;
        let from: Vec<u8> = positions.iter().flat_map(|at| at.to_ne_bytes()).collect();
        drop(positions);
        let mut to = vec![0; from.len()];
        permute(shape, order, size_of::<u64>(), &from, &mut to);
        out[..LENGTH].copy_from_slice(&bytes[..LENGTH]);
        let mut written = LENGTH;
        for at in to.as_chunks().0 {
            let at = u64::from_ne_bytes(*at) as usize;
            let len = LENGTH + read_length(bytes, at).unwrap_or(0);
            out[written..written + len].copy_from_slice(&bytes[at..at + len]);
            written += len;
        }
        // keeps bytes after the last item, which numcodecs ignores
        out[end..].copy_from_slice(&bytes[end..]);
        Ok(())
    }
}

/// Returns the little-endian length at `at`.
fn read_length(bytes: &[u8], at: usize) -> Option<usize> {
    bytes
        .get(at..)?
        .first_chunk()
        .map(|len| u32::from_le_bytes(*len) as usize)
}

impl Codec for VlenTranspose {
    fn encoded_size(&self, decoded: usize) -> Size {
        Size::Exact(decoded)
    }

    fn decode(&self, encoded: &[u8], out: &mut [u8]) -> CodecResult<usize> {
        let out = buffer::front(out, encoded.len())?;
        self.reorder(&self.axes.encoded_shape, &self.axes.inverse, encoded, out)?;
        Ok(encoded.len())
    }

    fn encode(&self, decoded: &[u8], out: &mut Vec<u8>) -> CodecResult<()> {
        out.resize(decoded.len(), 0);
        self.reorder(&self.axes.shape, &self.axes.order, decoded, out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::testing::{broken, check, config, refused};
    use proptest::prelude::*;

    const MATRIX: &str = r#"{"id": "vlen_transpose", "shape": [2, 3], "order": [1, 0]}"#;

    /// Returns the encoding of `items` by `numcodecs.VLenBytes`.
    fn vlen(items: &[&[u8]]) -> Vec<u8> {
        let mut out = (items.len() as u32).to_le_bytes().to_vec();
        for item in items {
            out.extend_from_slice(&(item.len() as u32).to_le_bytes());
            out.extend_from_slice(item);
        }
        out
    }

    #[test]
    fn worked_examples() {
        let plain = b"\x06\0\0\0\x01\0\0\0a\x02\0\0\0bb\0\0\0\0\x03\0\0\0ccc\x01\0\0\0d\x01\0\0\0e";
        let stored =
            b"\x06\0\0\0\x01\0\0\0a\x03\0\0\0ccc\x02\0\0\0bb\x01\0\0\0d\0\0\0\0\x01\0\0\0e";
        check(MATRIX, plain, stored);
        check(
            r#"{"id": "vlen_transpose", "shape": [0], "order": [0]}"#,
            &[0; 4],
            &[0; 4],
        );
    }

    #[test]
    fn bytes_after_the_items_are_kept() {
        let plain = [vlen(&[b"a", b"", b"c", b"d", b"e", b"f"]), b"rest".to_vec()].concat();
        let stored = [vlen(&[b"a", b"d", b"", b"e", b"c", b"f"]), b"rest".to_vec()].concat();
        check(MATRIX, &plain, &stored);
    }

    #[test]
    fn damage_and_bad_parameters_are_errors() {
        let whole = vlen(&[b"a", b"bb", b"", b"ccc", b"d", b"e"]);
        for len in 0..whole.len() {
            broken(MATRIX, &whole[..len]);
        }
        broken(MATRIX, &vlen(&[b"a".as_slice(); 5]));
        broken(
            MATRIX,
            &[&vlen(&[b"a".as_slice(); 6])[..9], &[0xff; 60]].concat(),
        );
        broken(
            r#"{"id": "vlen_transpose", "shape": [65535, 65537], "order": [1, 0]}"#,
            &[0xff; 20],
        );
        refused(r#"{"id": "vlen_transpose", "shape": [2, 3], "order": [1, 1]}"#);
        refused(r#"{"id": "vlen_transpose", "shape": [2, 3]}"#);
    }

    proptest! {
        #[test]
        fn decoding_reverses_encoding(
            items in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 24),
            order in Just(vec![0usize, 1, 2]).prop_shuffle(),
        ) {
            let text = format!(r#"{{"id": "vlen_transpose", "shape": [4, 2, 3], "order": {order:?}}}"#);
            let codec = VlenTranspose::new(&config(&text)).unwrap();
            let plain = vlen(&items.iter().map(Vec::as_slice).collect::<Vec<_>>());
            let mut stored = Vec::new();
            let mut decoded = vec![0; plain.len()];
            codec.encode(&plain, &mut stored).unwrap();
            prop_assert_eq!(codec.decode(&stored, &mut decoded), Ok(plain.len()));
            prop_assert_eq!(decoded, plain);
        }
    }
}
