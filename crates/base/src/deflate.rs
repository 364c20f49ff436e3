//! Decoding and encoding of one zlib stream, gzip member or bare deflate stream in memory, by
//! libdeflate. The C functions are called directly because the safe crate does not return the
//! length of a stream, which is needed to find the next gzip member. The module does not know what
//! may follow a stream.

use crate::memory::Spares;
use libdeflate_sys as sys;
use std::fmt;
use std::ptr::NonNull;

/// The header and checksum that surround the deflate data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    /// Those of zlib, RFC 1950.
    Zlib,
    /// Those of gzip, RFC 1952.
    Gzip,
    /// None: a bare stream, as zip archives hold them.
    None,
}

impl Container {
    /// Returns the name of the format.
    pub fn name(self) -> &'static str {
        match self {
            Container::Zlib => "zlib",
            Container::Gzip => "gzip",
            Container::None => "deflate",
        }
    }
}

/// Why a stream is not decoded or encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeflateError {
    /// The stream decodes to more bytes than the output holds.
    TooLong,
    /// The stream is invalid, or its end is missing.
    Damaged,
    /// The library has no memory.
    OutOfMemory,
}

impl fmt::Display for DeflateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DeflateError::TooLong => "longer than it should be",
            DeflateError::Damaged => "damaged or cut short",
            DeflateError::OutOfMemory => "out of memory",
        })
    }
}

thread_local! {
    static DECOMPRESSOR: Option<Decompressor> = Decompressor::new();
}

static COMPRESSORS: Spares<LevelCompressor> = Spares::new();

/// Decodes the stream at the start of `encoded` into the front of `out` and returns the numbers of
/// bytes read and written. Bytes after the stream are ignored. Output beyond the end of `out` is an
/// error.
pub fn decompress(
    container: Container,
    encoded: &[u8],
    out: &mut [u8],
) -> Result<(usize, usize), DeflateError> {
    DECOMPRESSOR.with(|kept| match kept {
        Some(decompressor) => decompressor.run(container, encoded, out),
        None => Err(DeflateError::OutOfMemory),
    })
}

/// Appends one stream that holds `decoded` to `out`. `level` is one of zlib's: 0 to 9, or -1 for
/// the default of 6.
pub fn compress(
    container: Container,
    level: i32,
    decoded: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), DeflateError> {
    let level = if level < 0 { 6 } else { level };
    let kept = COMPRESSORS.take().filter(|kept| kept.level == level);
    let compressor = kept.or_else(|| LevelCompressor::new(level));
    let mut compressor = compressor.ok_or(DeflateError::OutOfMemory)?;
    if !compressor.run(container, decoded, out) {
        return Err(DeflateError::OutOfMemory);
    }
    COMPRESSORS.keep(compressor);
    Ok(())
}

/// A decoder of libdeflate, freed on drop.
struct Decompressor(NonNull<sys::libdeflate_decompressor>);

impl Decompressor {
    fn new() -> Option<Self> {
        // SAFETY: the call has no arguments; null, if memory is short, becomes None.
        NonNull::new(unsafe { sys::libdeflate_alloc_decompressor() }).map(Decompressor)
    }

    fn run(
        &self,
        container: Container,
        encoded: &[u8],
        out: &mut [u8],
    ) -> Result<(usize, usize), DeflateError> {
        let call = match container {
            Container::Zlib => sys::libdeflate_zlib_decompress_ex,
            Container::Gzip => sys::libdeflate_gzip_decompress_ex,
            Container::None => sys::libdeflate_deflate_decompress_ex,
        };
        let mut used = 0;
        let mut made = 0;
        let input = encoded.as_ptr().cast();
        let output = out.as_mut_ptr().cast();
        // SAFETY: the decompressor is live and belongs to this thread alone; the pointers and
        // lengths belong to valid slices that do not overlap, and the library stays within both.
        let code = unsafe {
            call(
                self.0.as_ptr(),
                input,
                encoded.len(),
                output,
                out.len(),
                &raw mut used,
                &raw mut made,
            )
        };
        match code {
            sys::libdeflate_result_LIBDEFLATE_SUCCESS => Ok((used, made)),
            sys::libdeflate_result_LIBDEFLATE_INSUFFICIENT_SPACE => Err(DeflateError::TooLong),
            _ => Err(DeflateError::Damaged),
        }
    }
}

impl Drop for Decompressor {
    fn drop(&mut self) {
        // SAFETY: allocated by libdeflate_alloc_decompressor and freed only here.
        unsafe { sys::libdeflate_free_decompressor(self.0.as_ptr()) }
    }
}

/// An encoder of libdeflate for one level, freed on drop.
struct LevelCompressor {
    level: i32,
    raw: NonNull<sys::libdeflate_compressor>,
}

// SAFETY: the library's compressors belong to no thread.
unsafe impl Send for LevelCompressor {}

impl LevelCompressor {
    fn new(level: i32) -> Option<Self> {
        // SAFETY: any level may be passed; null, for a bad level or if memory is short, becomes
        // None.
        let raw = NonNull::new(unsafe { sys::libdeflate_alloc_compressor(level) })?;
        Some(LevelCompressor { level, raw })
    }

    fn run(&mut self, container: Container, decoded: &[u8], out: &mut Vec<u8>) -> bool {
        let call = match container {
            Container::Zlib => sys::libdeflate_zlib_compress,
            Container::Gzip => sys::libdeflate_gzip_compress,
            Container::None => sys::libdeflate_deflate_compress,
        };
        // the bound for gzip, whose header and checksum are the longest, holds for all three
        // SAFETY: the compressor is live; the call only computes.
        let room = unsafe { sys::libdeflate_gzip_compress_bound(self.raw.as_ptr(), decoded.len()) };
        out.reserve(room);
        let spare = out.spare_capacity_mut();
        let input = decoded.as_ptr().cast();
        let output = spare.as_mut_ptr().cast();
        // SAFETY: the same as in Decompressor::run; the library writes at most spare.len() bytes to
        // the spare capacity.
        let made = unsafe { call(self.raw.as_ptr(), input, decoded.len(), output, spare.len()) };
        // SAFETY: the library has written `made` bytes after the current length, within the
        // capacity; 0 means failure.
        unsafe { out.set_len(out.len() + made) };
        made > 0
    }
}

impl Drop for LevelCompressor {
    fn drop(&mut self) {
        // SAFETY: allocated by libdeflate_alloc_compressor and freed only here.
        unsafe { sys::libdeflate_free_compressor(self.raw.as_ptr()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_can_change_between_calls() {
        let data: Vec<u8> = (0..10_000u32).flat_map(|i| (i / 7).to_le_bytes()).collect();
        let sizes: Vec<usize> = [-1, 0, 1, 9, 6]
            .into_iter()
            .map(|level| {
                let mut out = vec![1, 2, 3];
                compress(Container::Zlib, level, &data, &mut out).unwrap();
                let mut back = vec![0; data.len()];
                let used = decompress(Container::Zlib, &out[3..], &mut back).unwrap();
                assert_eq!(used, (out.len() - 3, data.len()));
                assert_eq!(back, data);
                out.len()
            })
            .collect();
        assert!(sizes[1] > data.len() && sizes[2] > sizes[3] && sizes[0] == sizes[4]);
    }
}
