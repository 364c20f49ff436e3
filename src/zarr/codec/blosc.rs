//! The compressor `blosc`. The decoder is part of this crate and needs only the frame; c-blosc
//! encodes. Source of the rules: numcodecs' blosc, except that a truncated frame is an error and an
//! empty buffer round-trips.

mod blosclz;
mod frame;
mod shuffle;

use super::{Codec, CodecError, CodecResult, PartialDecode, Size, encode_only};
use crate::error::Result;
use crate::zarr::metadata::CodecConfig;
pub use frame::BloscHeader;
pub use shuffle::unshuffle;
use std::ffi::CStr;

/// Maximum number of bytes by which a frame is longer than its data.
const OVERHEAD: usize = blosc_src::BLOSC_MAX_OVERHEAD as usize;

/// Maximum item size that c-blosc knows; it shuffles larger items as single bytes.
const MAX_TYPESIZE: usize = blosc_src::BLOSC_MAX_TYPESIZE as usize;

/// The compressor `{"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}`.
/// Decoding needs no parameter.
pub struct Blosc {
    arguments: CodecResult<EncoderArguments>,
}

/// Arguments of c-blosc's encoder, each within the range that it supports.
///
/// Invariant: every number from a store or a command line is checked here before it reaches
/// c-blosc, which keeps sizes in signed 32-bit integers and divides by the item size. A size of 0
/// would end the process with SIGFPE, and an overflow would write past its buffers.
struct EncoderArguments {
    compressor: &'static CStr,
    clevel: i32,
    shuffle: i32,
    blocksize: usize,
    /// Item size in bytes, from 1 to [`MAX_TYPESIZE`].
    typesize: usize,
}

impl Blosc {
    /// Creates the compressor from its parameters, for items of `itemsize` bytes.
    pub fn new(config: &CodecConfig, itemsize: usize) -> Result<Self> {
        config.allow_only(&["cname", "clevel", "shuffle", "blocksize", "typesize"])?;
        Ok(Blosc {
            arguments: encode_only(EncoderArguments::new(config, itemsize)),
        })
    }
}

impl EncoderArguments {
    fn new(config: &CodecConfig, itemsize: usize) -> Result<Self> {
        let compressor = match config.text("cname", "lz4")? {
            "blosclz" => c"blosclz",
            "lz4" => c"lz4",
            "lz4hc" => c"lz4hc",
            "snappy" => c"snappy",
            "zlib" => c"zlib",
            "zstd" => c"zstd",
            other => {
                return Err(
                    config.invalid("cname", &format!("is {other:?}, which blosc doesn't know"))
                );
            }
        };
        let typesize = config.int("typesize", itemsize as i64, 1, i64::MAX)? as usize;
        let shuffle = match config.int("shuffle", 1, -1, 2)? {
            -1 if typesize == 1 => 2,
            -1 => 1,
            n => n as i32,
        };
        Ok(EncoderArguments {
            compressor,
            clevel: config.int("clevel", 5, 0, 9)? as i32,
            shuffle,
            blocksize: config.int("blocksize", 0, 0, i64::from(i32::MAX))? as usize,
            // 1 for larger items, which c-blosc shuffles as single bytes, and for items of 0 bytes,
            // which have no data
            typesize: if (1..=MAX_TYPESIZE).contains(&typesize) {
                typesize
            } else {
                1
            },
        })
    }

    /// Appends c-blosc's frame of `decoded` to `out` and returns c-blosc's result: the size of the
    /// frame, or 0 or less for an error.
    fn compress(&self, decoded: &[u8], out: &mut Vec<u8>) -> i32 {
        out.reserve(decoded.len() + OVERHEAD);
        let spare = out.spare_capacity_mut();
        let room = spare.len().min(decoded.len() + OVERHEAD);
        // SAFETY: both pointers belong to slices at least as long as the lengths given, which do
        // not overlap; the name is NUL-terminated. Told to use one thread, the call starts none and
        // keeps no state.
        let code = unsafe {
            blosc_src::blosc_compress_ctx(
                self.clevel,
                self.shuffle,
                self.typesize,
                decoded.len(),
                decoded.as_ptr().cast(),
                spare.as_mut_ptr().cast(),
                room,
                self.compressor.as_ptr(),
                self.blocksize,
                1,
            )
        };
        let made = usize::try_from(code).unwrap_or(0);
        // SAFETY: c-blosc has written `made` bytes after the current length, at most `room`.
        unsafe { out.set_len(out.len() + made) };
        code
    }
}

/// Returns whether this build's c-blosc has the compressor.
fn can_encode(compressor: &CStr) -> bool {
    // SAFETY: the name is NUL-terminated; the call only compares it.
    unsafe { blosc_src::blosc_compname_to_compcode(compressor.as_ptr()) >= 0 }
}

impl Codec for Blosc {
    fn encoded_size(&self, decoded: usize) -> Size {
        Size::AtMost(decoded.saturating_add(OVERHEAD))
    }

    fn partial_decode(&self) -> PartialDecode {
        PartialDecode::Blosc
    }

    fn decode(&self, encoded: &[u8], out: &mut [u8]) -> CodecResult<usize> {
        let header = BloscHeader::parse(encoded, encoded.len(), out.len())?;
        header.decode_all(encoded, &mut out[..header.nbytes()])?;
        Ok(header.nbytes())
    }

    fn encode(&self, decoded: &[u8], out: &mut Vec<u8>) -> CodecResult<()> {
        let arguments = self.arguments.as_ref().map_err(CodecError::clone)?;
        if !can_encode(arguments.compressor) {
            let name = arguments.compressor.to_string_lossy();
            return Err(CodecError(format!(
                "blosc: this build can't encode with cname {name:?}"
            )));
        }
        let max = blosc_src::BLOSC_MAX_BUFFERSIZE as usize;
        if decoded.len() > max {
            return Err(CodecError(format!(
                "blosc: can't hold {} bytes, at most {max}",
                decoded.len()
            )));
        }
        match arguments.compress(decoded, out) {
            1.. => Ok(()),
            code => Err(CodecError(format!(
                "blosc: c-blosc failed with code {code}"
            ))),
        }
    }
}

#[cfg(test)]
mod tests;
