//! One zlib stream, gzip member or bare deflate stream, whole in memory, through libdeflate. The C functions are called directly because
//! the safe crate hides how much input a stream used, which trailing bytes and gzip members need. It knows neither the
//! rules for what follows a stream nor where the bytes come from.

use super::CodecError;
use super::streams::Fault;
use libdeflate_sys as sys;
use std::cell::RefCell;
use std::ptr::NonNull;

/// The header and checksum around the deflate data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    Zlib,
    Gzip,
    None,
}

impl Container {
    fn name(self) -> &'static str {
        match self {
            Container::Zlib => "zlib",
            Container::Gzip => "gzip",
            Container::None => "deflate",
        }
    }
}

thread_local! {
    static DECOMPRESSOR: Option<Decompressor> = Decompressor::new();
    static COMPRESSOR: RefCell<Option<Compressor>> = const { RefCell::new(None) };
}

/// Decodes the stream at the start of `encoded` into the front of `out`; returns the bytes used and the bytes made.
/// What follows the stream is not looked at; output beyond `out` is an error.
pub fn decompress(container: Container, encoded: &[u8], out: &mut [u8]) -> Result<(usize, usize), Fault> {
    DECOMPRESSOR.with(|kept| match kept {
        Some(decompressor) => decompressor.run(container, encoded, out),
        None => Err(Fault::Invalid("out of memory")),
    })
}

/// Decodes a bare deflate stream, as a zip archive has them, into the front of `out`; returns the bytes made.
pub fn inflate(deflated: &[u8], out: &mut [u8]) -> Result<usize, CodecError> {
    let done = decompress(Container::None, deflated, out).map(|(_, made)| made);
    done.map_err(|fault| fault.broken(Container::None.name(), deflated.len(), out.len()))
}

/// What [`inflate`] takes.
#[cfg(test)]
pub fn deflate_for_tests(value: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    compress(Container::None, 6, value, &mut out).unwrap();
    out
}

/// Appends one stream that holds `decoded`. `level` is zlib's: -1 (its default, 6) or 0 to 9.
pub fn compress(container: Container, level: i32, decoded: &[u8], out: &mut Vec<u8>) -> Result<(), CodecError> {
    let level = if level < 0 { 6 } else { level };
    COMPRESSOR.with_borrow_mut(|kept| {
        if kept.as_ref().is_none_or(|c| c.level != level) {
            *kept = Compressor::new(level);
        }
        let done = kept.as_mut().is_some_and(|compressor| compressor.run(container, decoded, out));
        if done { Ok(()) } else { Err(CodecError::new(format!("{}: out of memory", container.name()))) }
    })
}

/// More bytes than any encoder makes of `decoded` ones, even one that never stores.
pub fn bound(decoded: usize) -> usize {
    decoded.saturating_add(decoded / 8).saturating_add(1024)
}

struct Decompressor(NonNull<sys::libdeflate_decompressor>);

impl Decompressor {
    fn new() -> Option<Self> {
        // SAFETY: no arguments; null, for want of memory, becomes None.
        NonNull::new(unsafe { sys::libdeflate_alloc_decompressor() }).map(Decompressor)
    }

    fn run(&self, container: Container, encoded: &[u8], out: &mut [u8]) -> Result<(usize, usize), Fault> {
        let call = match container {
            Container::Zlib => sys::libdeflate_zlib_decompress_ex,
            Container::Gzip => sys::libdeflate_gzip_decompress_ex,
            Container::None => sys::libdeflate_deflate_decompress_ex,
        };
        let (mut used, mut made) = (0, 0);
        let (input, output) = (encoded.as_ptr().cast(), out.as_mut_ptr().cast());
        // SAFETY: the decompressor is live and, being of this thread alone, not in use elsewhere; the pointers and
        // lengths are of valid slices that don't overlap, and the library stays within both.
        let code =
            unsafe { call(self.0.as_ptr(), input, encoded.len(), output, out.len(), &raw mut used, &raw mut made) };
        match code {
            sys::libdeflate_result_LIBDEFLATE_SUCCESS => Ok((used, made)),
            sys::libdeflate_result_LIBDEFLATE_INSUFFICIENT_SPACE => Err(Fault::TooLong),
            _ => Err(Fault::Invalid("damaged or cut short")),
        }
    }
}

impl Drop for Decompressor {
    fn drop(&mut self) {
        // SAFETY: allocated by libdeflate_alloc_decompressor and freed only here.
        unsafe { sys::libdeflate_free_decompressor(self.0.as_ptr()) }
    }
}

struct Compressor {
    level: i32,
    raw: NonNull<sys::libdeflate_compressor>,
}

impl Compressor {
    fn new(level: i32) -> Option<Self> {
        // SAFETY: any level may be asked for; null, for a bad one or want of memory, becomes None.
        let raw = NonNull::new(unsafe { sys::libdeflate_alloc_compressor(level) })?;
        Some(Compressor { level, raw })
    }

    fn run(&mut self, container: Container, decoded: &[u8], out: &mut Vec<u8>) -> bool {
        let (bound, call) = match container {
            Container::Zlib => {
                (sys::libdeflate_zlib_compress_bound as BoundFn, sys::libdeflate_zlib_compress as CompressFn)
            }
            Container::Gzip => {
                (sys::libdeflate_gzip_compress_bound as BoundFn, sys::libdeflate_gzip_compress as CompressFn)
            }
            Container::None => {
                (sys::libdeflate_deflate_compress_bound as BoundFn, sys::libdeflate_deflate_compress as CompressFn)
            }
        };
        // SAFETY: the compressor is live; the call only computes.
        let room = unsafe { bound(self.raw.as_ptr(), decoded.len()) };
        out.reserve(room);
        let spare = out.spare_capacity_mut();
        let (input, output) = (decoded.as_ptr().cast(), spare.as_mut_ptr().cast());
        // SAFETY: as in Decompressor::run; the library writes at most spare.len() bytes to the spare capacity.
        let made = unsafe { call(self.raw.as_ptr(), input, decoded.len(), output, spare.len()) };
        // SAFETY: the library has written `made` bytes after the present length, within the capacity; 0 is failure.
        unsafe { out.set_len(out.len() + made) };
        made > 0
    }
}

type BoundFn = unsafe extern "C" fn(*mut sys::libdeflate_compressor, usize) -> usize;
type CompressFn = unsafe extern "C" fn(
    *mut sys::libdeflate_compressor,
    *const std::ffi::c_void,
    usize,
    *mut std::ffi::c_void,
    usize,
) -> usize;

impl Drop for Compressor {
    fn drop(&mut self) {
        // SAFETY: allocated by libdeflate_alloc_compressor and freed only here.
        unsafe { sys::libdeflate_free_compressor(self.raw.as_ptr()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_follows_another() {
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
