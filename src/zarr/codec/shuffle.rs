//! `shuffle`: the first bytes of all items, then the second bytes of all, and so on, over the whole buffer. Source of
//! the rules: `numcodecs.Shuffle`. Blosc's own shuffle, block by block, is not this one.

use super::{Codec, CodecError, Size, buffer};
use crate::error::Result;
use crate::zarr::metadata::CodecConfig;

/// The filter, with the bytes of one item.
pub struct Shuffle {
    size: usize,
}

impl Shuffle {
    /// From `elementsize`; one byte or less leaves the bytes as they are.
    pub fn new(config: &CodecConfig) -> Result<Self> {
        config.only(&["elementsize"])?;
        let size = config.int("elementsize", 4, i64::MIN, i64::MAX)?;
        Ok(Shuffle { size: usize::try_from(size).unwrap_or(0).max(1) })
    }
}

/// Bytes of items that are handled together, so that their lines stay in cache while all planes pass.
const BLOCK: usize = 16 << 10;

/// Items of `N` bytes from `N` planes: with a known `N` the compiler interleaves whole vectors.
fn join<const N: usize>(planes: &[u8], out: &mut [u8]) {
    let n = out.len() / N;
    let (items, _) = out.as_chunks_mut::<N>();
    let mut at = 0;
    for block in items.chunks_mut(BLOCK / N) {
        let planes: [&[u8]; N] = std::array::from_fn(|j| &planes[j * n + at..][..block.len()]);
        for (i, item) in block.iter_mut().enumerate() {
            *item = std::array::from_fn(|j| planes[j][i]);
        }
        at += block.len();
    }
}

/// `N` planes from items of `N` bytes.
fn part<const N: usize>(items: &[u8], planes: &mut [u8]) {
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

fn join_any(planes: &[u8], out: &mut [u8], size: usize) {
    let n = out.len() / size;
    for (i, item) in out.chunks_exact_mut(size).enumerate() {
        item.iter_mut().enumerate().for_each(|(j, b)| *b = planes[j * n + i]);
    }
}

fn part_any(items: &[u8], planes: &mut [u8], size: usize) {
    let n = items.len() / size;
    for (i, item) in items.chunks_exact(size).enumerate() {
        item.iter().enumerate().for_each(|(j, &b)| planes[j * n + i] = b);
    }
}

impl Codec for Shuffle {
    fn encoded_size(&self, decoded: usize) -> Size {
        Size::Exact(decoded)
    }

    fn decode(&self, encoded: &[u8], out: &mut [u8]) -> std::result::Result<usize, CodecError> {
        buffer::count(encoded, self.size)?;
        let out = buffer::front(out, encoded.len())?;
        match self.size {
            1 => out.copy_from_slice(encoded),
            2 => join::<2>(encoded, out),
            4 => join::<4>(encoded, out),
            8 => join::<8>(encoded, out),
            16 => join::<16>(encoded, out),
            size => join_any(encoded, out, size),
        }
        Ok(encoded.len())
    }

    fn encode(&self, decoded: &[u8], out: &mut Vec<u8>) -> std::result::Result<(), CodecError> {
        buffer::count(decoded, self.size)?;
        let start = out.len();
        out.resize(start + decoded.len(), 0);
        let out = &mut out[start..];
        match self.size {
            1 => out.copy_from_slice(decoded),
            2 => part::<2>(decoded, out),
            4 => part::<4>(decoded, out),
            8 => part::<8>(decoded, out),
            16 => part::<16>(decoded, out),
            size => part_any(decoded, out, size),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::zarr::codec::testing::{broken, check, refused};

    #[test]
    fn worked_examples() {
        check(r#"{"id": "shuffle"}"#, &[1, 2, 3, 4, 5, 6, 7, 8], &[1, 5, 2, 6, 3, 7, 4, 8]);
        check(r#"{"id": "shuffle", "elementsize": 3}"#, &[1, 2, 3, 4, 5, 6], &[1, 4, 2, 5, 3, 6]);
        check(r#"{"id": "shuffle", "elementsize": 0}"#, &[1, 2, 3], &[1, 2, 3]);
        broken(r#"{"id": "shuffle"}"#, &[1, 2, 3]);
        refused(r#"{"id": "shuffle", "elementsize": "4"}"#);
    }

    #[test]
    fn every_size_over_several_blocks() {
        for size in [2, 3, 4, 8, 16] {
            let items: Vec<u8> = (0..size * 20_000u32).map(|i| (i.wrapping_mul(2654435761) >> 13) as u8).collect();
            let n = items.len() / size as usize;
            let plane = |j: usize| items.iter().skip(j).step_by(size as usize).copied();
            let shuffled: Vec<u8> = (0..size as usize).flat_map(plane).collect();
            assert_eq!(shuffled.len(), n * size as usize);
            check(&format!(r#"{{"id": "shuffle", "elementsize": {size}}}"#), &items, &shuffled);
        }
    }
}
