//! The codec `lz4`: the size as a little-endian i32, then one LZ4 block (not the frame format), through the C library,
//! which blosc brings along and whose checked decoder is the one the world fuzzes. It knows nothing of chunks.

use super::streams::Fault;
use super::{Codec, CodecError, EncodeOnly, Size, encode_only};
use crate::error::Result;
use crate::zarr::metadata::CodecConfig;

/// The most bytes one LZ4 block can hold.
const MAX_SIZE: usize = 0x7E00_0000;

/// `{"id": "lz4", "acceleration": 1}`.
pub struct Lz4 {
    acceleration: EncodeOnly<i32>,
}

impl Lz4 {
    /// From its parameters. An acceleration below 1 is 1, as in numcodecs.
    pub fn new(config: &CodecConfig) -> Result<Self> {
        config.only(&["acceleration"])?;
        let acceleration = config.int("acceleration", 1, i64::from(i32::MIN), i64::from(i32::MAX));
        Ok(Lz4 { acceleration: encode_only(acceleration.map(|n| n.max(1) as i32)) })
    }
}

/// Decodes a block, all of it, into the front of `out` and returns the bytes made. None: damaged, or too much for
/// `out`.
pub fn decompress_block(block: &[u8], out: &mut [u8]) -> Option<usize> {
    let (len, room) = (i32::try_from(block.len()).ok()?, i32::try_from(out.len()).unwrap_or(i32::MAX));
    // SAFETY: both pointers are of slices at least as long as the lengths given, which the library stays within.
    let made = unsafe { lz4_sys::LZ4_decompress_safe(block.as_ptr().cast(), out.as_mut_ptr().cast(), len, room) };
    usize::try_from(made).ok()
}

/// Appends a block that holds `decoded`. None: there is too much of it.
fn compress_block(decoded: &[u8], acceleration: i32, out: &mut Vec<u8>) -> Option<()> {
    let len = i32::try_from(decoded.len()).ok().filter(|_| decoded.len() <= MAX_SIZE)?;
    // SAFETY: the call only computes.
    let bound = unsafe { lz4_sys::LZ4_compressBound(len) };
    out.reserve(usize::try_from(bound).ok()?);
    let spare = out.spare_capacity_mut();
    let room = i32::try_from(spare.len()).unwrap_or(i32::MAX);
    let (input, output) = (decoded.as_ptr().cast(), spare.as_mut_ptr().cast());
    // SAFETY: the pointers are of slices at least as long as the lengths given.
    let made = unsafe { lz4_sys::LZ4_compress_fast(input, output, len, room, acceleration) };
    let made = usize::try_from(made).ok().filter(|n| *n > 0)?;
    // SAFETY: the library has written `made` bytes after the present length, within the capacity.
    unsafe { out.set_len(out.len() + made) };
    Some(())
}

/// Checks the size before the block and decodes it.
fn decompress(encoded: &[u8], out: &mut [u8]) -> std::result::Result<usize, Fault> {
    let (size, block) = encoded.split_first_chunk().ok_or(Fault::CutShort)?;
    let size = usize::try_from(i32::from_le_bytes(*size)).map_err(|_| Fault::Invalid("the size is negative"))?;
    let out = out.get_mut(..size).ok_or(Fault::TooLong)?;
    match decompress_block(block, out) {
        Some(made) if made == size => Ok(size),
        Some(_) => Err(Fault::Invalid("the block doesn't fill its size")),
        None => Err(Fault::Invalid("damaged or cut short")),
    }
}

impl Codec for Lz4 {
    fn encoded_size(&self, decoded: usize) -> Size {
        Size::AtMost(decoded.saturating_add(decoded / 8).saturating_add(1024))
    }

    fn decode(&self, encoded: &[u8], out: &mut [u8]) -> std::result::Result<usize, CodecError> {
        decompress(encoded, out).map_err(|fault| fault.broken("lz4", encoded.len(), out.len()))
    }

    fn encode(&self, decoded: &[u8], out: &mut Vec<u8>) -> std::result::Result<(), CodecError> {
        out.extend((decoded.len() as u32).to_le_bytes());
        compress_block(decoded, self.acceleration.clone()?, out)
            .ok_or_else(|| CodecError(format!("lz4: can't hold {} bytes, at most {MAX_SIZE}", decoded.len())))
    }
}

#[cfg(test)]
mod tests {
    use crate::zarr::codec::compressor_testing::*;

    /// `LZ4().encode(b"hello hello hello hello")`.
    const GOLDEN: &str = "170000006868656c6c6f2006005068656c6c6f";
    const TEXT: &[u8] = b"hello hello hello hello";

    #[test]
    fn round_trips() {
        for acceleration in [-1, 1, 17, 70_000] {
            round_trip(&*codec(&format!(r#"{{"id": "lz4", "acceleration": {acceleration}}}"#), 1));
        }
    }

    #[test]
    fn golden() {
        let lz4 = codec(r#"{"id": "lz4"}"#, 1);
        assert_eq!(encoded(&*lz4, TEXT), hex(GOLDEN));
        assert_eq!(decoded(&*lz4, &hex(GOLDEN), 23).unwrap(), TEXT);
        assert_eq!(decoded(&*lz4, &hex(GOLDEN), 22).unwrap_err().0, "lz4: holds more than 22 bytes");
    }

    #[test]
    fn damage() {
        let lz4 = codec(r#"{"id": "lz4"}"#, 1);
        hostile(&*lz4, &sample(100));
        for bad in ["", "ffffffff00", "00000000 0000", "17000000", "01000000 00"] {
            assert!(decoded(&*lz4, &hex(bad), 23).is_err(), "{bad}");
        }
        refused(r#"{"id": "lz4", "level": 1}"#);
    }
}
