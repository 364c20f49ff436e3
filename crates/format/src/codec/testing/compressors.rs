//! Helpers for the unit tests of compressors: sample bytes, round trips, and damage to small
//! encodings.

use crate::codec::{Codec, CodecConfig, CodecError, Size, build};
use zarrfs_base::json;

/// Returns the codec of a JSON object.
pub fn codec(config: &str, itemsize: usize) -> Box<dyn Codec> {
    build(&parse(config), itemsize).unwrap()
}

/// Checks that the parameters are refused.
pub fn refused(config: &str) {
    assert!(build(&parse(config), 1).is_err(), "{config}");
}

/// Checks that the parameters allow decoding but not encoding.
pub fn only_decodes(config: &str) {
    assert!(
        codec(config, 1).encode(b"abcd", &mut Vec::new()).is_err(),
        "{config}"
    );
}

fn parse(config: &str) -> CodecConfig {
    CodecConfig::parse(&json::parse(config.as_bytes()).unwrap()).unwrap()
}

/// Returns the bytes of hex digits, ignoring spaces.
pub fn hex(digits: &str) -> Vec<u8> {
    let digits: Vec<u32> = digits.chars().filter_map(|c| c.to_digit(16)).collect();
    digits
        .chunks(2)
        .map(|pair| (pair[0] * 16 + pair[1]) as u8)
        .collect()
}

/// Returns `len` bytes: slowly rising 4-byte numbers, then noise.
pub fn sample(len: usize) -> Vec<u8> {
    let mut state = 1u32;
    let mut noise = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    let smooth = (0..).flat_map(|i: u32| (1_000_000 + i.wrapping_mul(i) / 50).to_le_bytes());
    smooth
        .enumerate()
        .take(len)
        .map(|(i, b)| if i % 1000 < 800 { b } else { noise() })
        .collect()
}

/// Returns the encoding of `data` and checks its size.
pub fn encoded(codec: &dyn Codec, data: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    codec.encode(data, &mut out).unwrap();
    match codec.encoded_size(data.len()) {
        Size::Exact(n) => assert_eq!(out.len(), n),
        Size::AtMost(n) => assert!(out.len() <= n, "{} > {n} for {}", out.len(), data.len()),
    }
    out
}

/// Decodes `bytes` with an output of `room` bytes.
pub fn decoded(codec: &dyn Codec, bytes: &[u8], room: usize) -> Result<Vec<u8>, CodecError> {
    let mut out = vec![0xAA; room];
    let n = codec.decode(bytes, &mut out)?;
    out.truncate(n);
    Ok(out)
}

/// Checks that data of many sizes decode again, and that an output one byte too short is an error.
pub fn round_trip(codec: &dyn Codec) {
    for len in [
        0, 1, 2, 3, 7, 15, 16, 17, 127, 128, 129, 255, 1000, 4096, 65535, 65536, 65537, 300_001,
    ] {
        let data = sample(len);
        let bytes = encoded(codec, &data);
        assert!(decoded(codec, &bytes, len).unwrap() == data, "{len}");
        if len > 0 {
            assert!(decoded(codec, &bytes, len - 1).is_err(), "{len}");
        }
    }
}

/// Cuts the encoding of `data` at every byte, flips each of its bits, and appends bytes of every
/// value, and checks that decoding never panics.
pub fn hostile(codec: &dyn Codec, data: &[u8]) {
    let good = encoded(codec, data);
    hostile_bytes(codec, &good, data.len());
}

/// Does what [`hostile`] does for a given encoding.
pub fn hostile_bytes(codec: &dyn Codec, good: &[u8], len: usize) {
    for cut in 0..good.len() {
        let outcome = decoded(codec, &good[..cut], len);
        assert!(
            outcome.is_err() || outcome.is_ok_and(|d| d.len() < len),
            "cut at {cut} of {}",
            good.len()
        );
    }
    for bit in 0..good.len() * 8 {
        let mut bad = good.to_vec();
        bad[bit / 8] ^= 1 << (bit % 8);
        let _ = decoded(codec, &bad, len);
        let _ = decoded(codec, &bad, len * 3);
    }
    for tail in 0..=255 {
        let mut bad = good.to_vec();
        bad.extend([tail; 20]);
        if let Ok(d) = decoded(codec, &bad, len) {
            assert_eq!(d.len(), len, "tail of {tail}");
        }
    }
}
