//! The compressions of strips and tiles. This module must not know tags, items or blocks.

use weezl::decode::Decoder;
use weezl::{BitOrder, LzwStatus};
use zarrfs_base::json::Map;
use zarrfs_format::codec::{CodecConfig, build};

/// The compressions that are read.
pub const NONE: u64 = 1;
const LZW: u64 = 5;
pub const PACK_BITS: u64 = 32773;

/// The compressions of Zarr's codecs, by the names of these.
const CODECS: [(u64, &str); 3] = [(8, "zlib"), (32946, "zlib"), (50000, "zstd")];

/// Returns what a compression is that is not read; `None` for the others.
pub fn refused_compression(compression: u64) -> Option<String> {
    let is_read = [NONE, LZW, PACK_BITS].contains(&compression)
        || CODECS.iter().any(|(number, _)| *number == compression);
    let name = match compression {
        _ if is_read => return None,
        2..=4 => "fax",
        6 | 7 => "JPEG",
        34712 => "JPEG 2000",
        34887 => "LERC",
        34925 => "LZMA",
        50001 => "WebP",
        50002 => "JPEG XL",
        other => return Some(format!("compression {other}")),
    };
    Some(format!("compression by {name}"))
}

/// Decompresses a block, and returns the number of bytes.
pub fn decompress(
    compression: u64,
    encoded: &[u8],
    out: &mut [u8],
) -> std::result::Result<usize, String> {
    match compression {
        NONE => {
            let len = encoded.len().min(out.len());
            out[..len].copy_from_slice(&encoded[..len]);
            Ok(len)
        }
        PACK_BITS => Ok(unpack_bits(encoded, out)),
        LZW => {
            let mut decoder = Decoder::with_tiff_size_switch(BitOrder::Msb, 8);
            let mut read = 0;
            let mut len = 0;
            loop {
                let done = decoder.decode_bytes(&encoded[read..], &mut out[len..]);
                read += done.consumed_in;
                len += done.consumed_out;
                match done.status {
                    Ok(LzwStatus::Ok) if len < out.len() => {}
                    Ok(_) => return Ok(len),
                    Err(e) => return Err(e.to_string()),
                }
            }
        }
        other => {
            let mut codecs = CODECS.iter();
            let (_, id) = codecs
                .find(|(number, _)| *number == other)
                .ok_or("an unknown compression")?;
            let codec = build(&CodecConfig::new(id, Map::new()), 1).map_err(|e| e.to_string())?;
            codec.decode(encoded, out).map_err(|e| e.0)
        }
    }
}

/// Decodes PackBits: runs of bytes, and repeated bytes. Source: TIFF 6.0, section 9.
fn unpack_bits(encoded: &[u8], out: &mut [u8]) -> usize {
    let mut input = encoded.iter();
    let mut len = 0;
    while let Some(control) = input.next().filter(|_| len < out.len()) {
        let left = out.len() - len;
        match *control as i8 {
            control @ 0.. => {
                let run = (control as usize + 1).min(left).min(input.len());
                out[len..len + run].copy_from_slice(&input.as_slice()[..run]);
                input = input.as_slice()[run..].iter();
                len += run;
            }
            -128 => {}
            control => {
                let run = (1 - isize::from(control)) as usize;
                let Some(byte) = input.next() else { break };
                out[len..len + run.min(left)].fill(*byte);
                len += run.min(left);
            }
        }
    }
    len
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_bits_are_unpacked() {
        // the example of TIFF 6.0
        let encoded = [
            0xfe, 0xaa, 0x02, 0x80, 0x00, 0x2a, 0xfd, 0xaa, 0x03, 0x80, 0x00, 0x2a, 0x22, 0xf7,
            0xaa,
        ];
        let mut out = [1; 24];
        assert_eq!(unpack_bits(&encoded, &mut out), 24);
        let expected = b"\xaa\xaa\xaa\x80\x00\x2a\xaa\xaa\xaa\xaa\x80\x00\x2a\x22\xaa\xaa\xaa\xaa\xaa\xaa\xaa\xaa\xaa\xaa";
        assert_eq!(&out, expected);
        for n in 0..encoded.len() {
            assert!(unpack_bits(&encoded[..n], &mut [0; 24]) < 24);
            assert!(unpack_bits(&encoded, &mut vec![0; n]) == n);
        }
    }
}
