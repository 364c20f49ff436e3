//! Filters that HDF5 itself lacks, and netCDF-C and h5py bring along: bzip2, Blosc and Zstandard by
//! the codecs of Zarr, and LZF. This module must not know files or arrays.

use hdf5_reader::FilterRegistry;
use hdf5_reader::error::{Error, Result};
use zarrfs_base::json::Map;
use zarrfs_base::memory;
use zarrfs_format::codec::{CodecConfig, build};

/// The registered numbers of filters, and the codecs that read the same bytes.
const CODECS: [(u16, &str); 3] = [(307, "bz2"), (32001, "blosc"), (32015, "zstd")];

/// The registered number of LZF.
const LZF: u16 = 32000;

/// Number of bytes by which another filter may have made a chunk longer: a checksum.
const MORE: usize = 16;

/// The factor by which bytes are first taken to become longer, and then tried again.
const FIRST: usize = 8;

/// Returns all filters. None of those here decodes to more than a chunk of `chunk` bytes.
pub fn registry(chunk: usize) -> FilterRegistry {
    let mut registry = FilterRegistry::new();
    let largest = chunk.saturating_add(MORE);
    for (number, codec) in CODECS {
        registry.register(
            number,
            Box::new(move |_, encoded, _| decoded(codec, encoded, largest)),
        );
    }
    registry.register(LZF, Box::new(move |_, encoded, _| lzf(encoded, largest)));
    registry
}

/// Decodes bytes of which the length is not known, at most `largest`.
fn decoded(codec: &str, encoded: &[u8], largest: usize) -> Result<Vec<u8>> {
    let codec = build(&CodecConfig::new(codec, Map::new()), 1);
    let codec = codec.map_err(|e| Error::FilterError(e.to_string()))?;
    let mut size = encoded.len().saturating_mul(FIRST).max(FIRST);
    loop {
        size = size.min(largest);
        let out = memory::zeroed(size);
        let mut out = out.map_err(|e| Error::ResourceLimit(e.to_string()))?;
        match codec.decode(encoded, &mut out) {
            Ok(len) => {
                out.truncate(len);
                return Ok(out);
            }
            Err(e) if size == largest => return Err(Error::DecompressionError(e.0)),
            Err(_) => size = size.saturating_mul(FIRST),
        }
    }
}

/// Decodes LZF: runs of bytes, and copies of bytes before. Source of the format: liblzf, `lzf_d.c`.
fn lzf(encoded: &[u8], largest: usize) -> Result<Vec<u8>> {
    let damaged = || Error::DecompressionError("LZF: damaged bytes".into());
    let mut out = Vec::new();
    let mut input = encoded.iter();
    while let Some(control) = input.next() {
        let control = usize::from(*control);
        if control < 32 {
            let (run, rest) = input
                .as_slice()
                .split_at_checked(control + 1)
                .ok_or_else(damaged)?;
            out.extend_from_slice(run);
            input = rest.iter();
        } else {
            let mut len = control >> 5;
            if len == 7 {
                len += usize::from(*input.next().ok_or_else(damaged)?);
            }
            let low = usize::from(*input.next().ok_or_else(damaged)?);
            let back = ((control & 31) << 8 | low) + 1;
            let from = out.len().checked_sub(back).ok_or_else(damaged)?;
            // the copy may overlap what it makes
            (from..from + len + 2).for_each(|n| out.push(out[n]));
        }
        if out.len() > largest {
            return Err(damaged());
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lzf_repeats_what_was_decoded() {
        // "ab", and eight bytes from two before
        assert_eq!(lzf(&[1, b'a', b'b', 6 << 5, 1], 10).unwrap(), b"ababababab");
        for damaged in [&[5, 1][..], &[1 << 5], &[1 << 5, 0], &[7 << 5, 0]] {
            assert!(lzf(damaged, 10).is_err());
        }
        assert!(lzf(&[1, b'a', b'b', 6 << 5, 1], 9).is_err());
    }
}
