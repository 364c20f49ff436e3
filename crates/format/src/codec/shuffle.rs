//! The filter `shuffle`: the first bytes of all items, then their second bytes, and so on. Source
//! of the rules: `numcodecs.Shuffle`. Blosc's shuffle is the same for each block; this one is for
//! the whole buffer.

use super::blosc::unshuffle;
use super::spec::refused;
use super::{Codec, CodecResult, CodecSpec, Size, buffer};

/// What is known of the filter.
pub const SPEC: CodecSpec = CodecSpec {
    id: "shuffle",
    parameters: &["elementsize"],
    build: |config, _| {
        // a size of 1 or less leaves the bytes unchanged
        let size = config.int("elementsize", 4, i64::MIN, i64::MAX)?;
        let size = usize::try_from(size).unwrap_or(0).max(1);
        Ok(Box::new(Shuffle { size }))
    },
    v3_names: &["numcodecs.shuffle", "shuffle"],
    spell: Some(|configuration, _| {
        // without it zarr-python uses the size of the array's items
        configuration.entry("elementsize").or_insert(4.into());
    }),
    check_input: |config, given| {
        if given.is_variable && config.int("elementsize", 4, 0, i64::MAX)? > 1 {
            let why = "can't shuffle compressed bytes, whose number may be odd";
            return Err(refused(config, why));
        }
        Ok(())
    },
    accepts: |_, _, value| Ok(value.as_i64().is_some_and(|size| size > 0)),
    ..CodecSpec::BYTES
};

/// The filter `shuffle`.
pub struct Shuffle {
    /// Size of an item in bytes, at least 1.
    size: usize,
}

/// Number of bytes processed together, so that they stay in the cache while each plane is written.
const BLOCK: usize = 16 << 10;

/// Shuffles items of `N` bytes: plane `j` receives byte `j` of every item.
fn split<const N: usize>(items: &[u8], planes: &mut [u8]) {
    let (items, _) = items.as_chunks::<N>();
    let n = items.len();
    for (b, block) in items.chunks(BLOCK / N).enumerate() {
        for j in 0..N {
            let plane = &mut planes[j * n + b * (BLOCK / N)..][..block.len()];
            for (p, item) in plane.iter_mut().zip(block) {
                *p = item[j];
            }
        }
    }
}

/// Shuffles items of any size.
fn split_any(items: &[u8], planes: &mut [u8], size: usize) {
    let n = items.len() / size;
    for (i, item) in items.chunks_exact(size).enumerate() {
        item.iter()
            .enumerate()
            .for_each(|(j, &b)| planes[j * n + i] = b);
    }
}

impl Codec for Shuffle {
    fn encoded_size(&self, decoded: usize) -> Size {
        Size::Exact(decoded)
    }

    fn shuffled_itemsize(&self) -> Option<usize> {
        Some(self.size)
    }

    fn decode(&self, encoded: &[u8], out: &mut [u8]) -> CodecResult<usize> {
        buffer::count(encoded, self.size)?;
        unshuffle(self.size, encoded, buffer::front(out, encoded.len())?);
        Ok(encoded.len())
    }

    fn encode(&self, decoded: &[u8], out: &mut Vec<u8>) -> CodecResult<()> {
        buffer::count(decoded, self.size)?;
        out.resize(decoded.len(), 0);
        match self.size {
            1 => out.copy_from_slice(decoded),
            2 => split::<2>(decoded, out),
            4 => split::<4>(decoded, out),
            8 => split::<8>(decoded, out),
            16 => split::<16>(decoded, out),
            size => split_any(decoded, out, size),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::codec::testing::{broken, check, refused};

    #[test]
    fn worked_examples() {
        check(
            r#"{"id": "shuffle"}"#,
            &[1, 2, 3, 4, 5, 6, 7, 8],
            &[1, 5, 2, 6, 3, 7, 4, 8],
        );
        check(
            r#"{"id": "shuffle", "elementsize": 3}"#,
            &[1, 2, 3, 4, 5, 6],
            &[1, 4, 2, 5, 3, 6],
        );
        check(
            r#"{"id": "shuffle", "elementsize": 0}"#,
            &[1, 2, 3],
            &[1, 2, 3],
        );
        broken(r#"{"id": "shuffle"}"#, &[1, 2, 3]);
        refused(r#"{"id": "shuffle", "elementsize": "4"}"#);
    }

    #[test]
    fn items_of_several_blocks_are_shuffled() {
        for size in [2, 3, 4, 8, 16] {
            let items: Vec<u8> = (0..size * 20_000u32)
                .map(|i| (i.wrapping_mul(2654435761) >> 13) as u8)
                .collect();
            let n = items.len() / size as usize;
            let plane = |j: usize| items.iter().skip(j).step_by(size as usize).copied();
            let shuffled: Vec<u8> = (0..size as usize).flat_map(plane).collect();
            assert_eq!(shuffled.len(), n * size as usize);
            check(
                &format!(r#"{{"id": "shuffle", "elementsize": {size}}}"#),
                &items,
                &shuffled,
            );
        }
    }
}
