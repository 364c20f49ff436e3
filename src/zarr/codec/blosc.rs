//! The codec `blosc`. Decoding is our own and takes everything from the frame, whatever the parameters say; encoding is
//! c-blosc's. Rule: numcodecs' blosc, but a truncated frame is an error and an empty buffer round-trips. It knows
//! nothing of chunks.

mod blosclz;
mod frame;
mod shuffle;

use super::{Codec, CodecError, EncodeOnly, Size, encode_only};
use crate::error::Result;
use crate::zarr::metadata::CodecConfig;
use frame::Frame;
pub use frame::Header;
use std::ffi::CStr;

/// What a frame is longer than its data at most.
const OVERHEAD: usize = blosc_src::BLOSC_MAX_OVERHEAD as usize;

/// The largest item that c-blosc knows: it shuffles larger ones as single bytes.
const MAX_TYPESIZE: usize = blosc_src::BLOSC_MAX_TYPESIZE as usize;

/// `{"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}`. Decoding needs none of it.
pub struct Blosc {
    parameters: EncodeOnly<Parameters>,
}

/// Arguments of c-blosc's encoder, each within the range it computes with. Invariant: a number that comes from a store or
/// a command line is checked here, before C sees it. c-blosc keeps sizes in 32-bit signed integers and divides by the
/// size of an item: 0 ends the process with SIGFPE, and what overflows writes past its buffers.
struct Parameters {
    compressor: &'static CStr,
    clevel: i32,
    shuffle: i32,
    blocksize: usize,
    /// Bytes of one item, from 1 to [`MAX_TYPESIZE`].
    typesize: usize,
}

impl Blosc {
    /// From its parameters, for items of `itemsize` bytes.
    pub fn new(config: &CodecConfig, itemsize: usize) -> Result<Self> {
        config.only(&["cname", "clevel", "shuffle", "blocksize", "typesize"])?;
        Ok(Blosc { parameters: encode_only(Parameters::new(config, itemsize)) })
    }
}

impl Parameters {
    fn new(config: &CodecConfig, itemsize: usize) -> Result<Self> {
        let compressor = match config.text("cname", "lz4")? {
            "blosclz" => c"blosclz",
            "lz4" => c"lz4",
            "lz4hc" => c"lz4hc",
            "snappy" => c"snappy",
            "zlib" => c"zlib",
            "zstd" => c"zstd",
            other => return Err(config.bad("cname", &format!("is {other:?}, which blosc doesn't know"))),
        };
        let typesize = config.int("typesize", itemsize as i64, 1, i64::MAX)? as usize;
        let shuffle = match config.int("shuffle", 1, -1, 2)? {
            -1 if typesize == 1 => 2,
            -1 => 1,
            n => n as i32,
        };
        Ok(Parameters {
            compressor,
            clevel: config.int("clevel", 5, 0, 9)? as i32,
            shuffle,
            blocksize: config.int("blocksize", 0, 0, i64::from(i32::MAX))? as usize,
            // of items of no size there are no bytes, which any size divides
            typesize: if (1..=MAX_TYPESIZE).contains(&typesize) { typesize } else { 1 },
        })
    }

    /// c-blosc's frame of `decoded` at the end of `out`: what c-blosc returns.
    fn compress(&self, decoded: &[u8], out: &mut Vec<u8>) -> i32 {
        out.reserve(decoded.len() + OVERHEAD);
        let spare = out.spare_capacity_mut();
        let room = spare.len().min(decoded.len() + OVERHEAD);
        // SAFETY: both pointers are of slices at least as long as the lengths given, which don't overlap; the name is
        // NUL-terminated. With one thread the call starts none and keeps no state.
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
        // SAFETY: c-blosc has written `made` bytes after the present length, at most `room`.
        unsafe { out.set_len(out.len() + made) };
        code
    }
}

/// Whether this build's c-blosc has the compressor.
fn can_encode(compressor: &CStr) -> bool {
    // SAFETY: the name is NUL-terminated; the call only compares it.
    unsafe { blosc_src::blosc_compname_to_compcode(compressor.as_ptr()) >= 0 }
}

impl Codec for Blosc {
    fn encoded_size(&self, decoded: usize) -> Size {
        Size::AtMost(decoded.saturating_add(OVERHEAD))
    }

    fn is_blosc(&self) -> bool {
        true
    }

    fn decode(&self, encoded: &[u8], out: &mut [u8]) -> std::result::Result<usize, CodecError> {
        let frame = Frame::parse(encoded, out.len())?;
        frame.decode(&mut out[..frame.nbytes()])?;
        Ok(frame.nbytes())
    }

    fn encode(&self, decoded: &[u8], out: &mut Vec<u8>) -> std::result::Result<(), CodecError> {
        let parameters = self.parameters.as_ref().map_err(CodecError::clone)?;
        if !can_encode(parameters.compressor) {
            let name = parameters.compressor.to_string_lossy();
            return Err(CodecError(format!("blosc: this build can't encode with cname {name:?}")));
        }
        let most = blosc_src::BLOSC_MAX_BUFFERSIZE as usize;
        if decoded.len() > most {
            return Err(CodecError(format!("blosc: can't hold {} bytes, at most {most}", decoded.len())));
        }
        match parameters.compress(decoded, out) {
            1.. => Ok(()),
            code => Err(CodecError(format!("blosc: c-blosc failed with code {code}"))),
        }
    }
}

#[cfg(test)]
mod tests;
