//! Blosc frames compared with c-blosc's decoder and with numcodecs' bytes, and damaged frames.

use super::frame::BloscHeader;
use crate::codec::Codec;
use crate::codec::testing::compressors::*;
use proptest::prelude::*;

const NAMES: [&str; 5] = ["blosclz", "lz4", "lz4hc", "zlib", "zstd"];

fn blosc(parameters: &str, itemsize: usize) -> Box<dyn Codec> {
    codec(&format!(r#"{{"id": "blosc"{parameters}}}"#), itemsize)
}

/// Decodes a whole frame with c-blosc; returns `None` on an error.
fn oracle(frame: &[u8], room: usize) -> Option<Vec<u8>> {
    let mut out = vec![0; room];
    let mut nbytes = 0;
    let out_ptr = out.as_mut_ptr().cast();
    // SAFETY: c-blosc checks that the frame is as long as it says and keeps within `room`.
    let code = unsafe {
        match blosc_src::blosc_cbuffer_validate(frame.as_ptr().cast(), frame.len(), &mut nbytes) {
            0 => blosc_src::blosc_decompress_ctx(frame.as_ptr().cast(), out_ptr, room, 1),
            _ => -1,
        }
    };
    out.truncate(usize::try_from(code).ok()?);
    Some(out)
}

#[test]
fn round_trips() {
    for cname in NAMES {
        for (shuffle, itemsize) in [(0, 1), (1, 4), (2, 4), (-1, 1), (2, 3), (1, 24), (1, 400)] {
            round_trip(&*blosc(
                &format!(r#", "cname": "{cname}", "shuffle": {shuffle}, "clevel": 3"#),
                itemsize,
            ));
        }
    }
    round_trip(&*blosc(r#", "clevel": 0"#, 8));
    round_trip(&*blosc(r#", "blocksize": 1000, "typesize": 7"#, 1));
}

/// Tests frames that numcodecs made of the little-endian i4 numbers 0 to 69.
#[test]
fn frames_of_numcodecs_are_decoded() {
    let numbers: Vec<u8> = (0..70i32).flat_map(i32::to_le_bytes).collect();
    for (parameters, bytes) in [
        (
            "",
            "0201310418010000180100006e0000001400000056000000ff3c000102030405060708090a0b0c0d0e0f101112131415 \
             161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f303132333435363738393a3b3c3d3e3f404142434445 \
             00000000000500b5500000000000",
        ),
        (
            r#", "cname": "zstd""#,
            "02019104180100001801000071000000140000005900000028b52ffd6018007d02007404000102030405060708090a0b \
             0c0d0e0f101112131415161718191a1b1c1d1e1f202122232425262728292a2b2c2d2e2f303132333435363738393a3b \
             3c3d3e3f40414243444500010087930251",
        ),
        (
            r#", "cname": "zlib", "shuffle": 0"#,
            "0201700418010000180100008c0000001400000074000000785e0dc3875641010000d027644b227b44a542f6262bffff \
             4bee3de7064110847c306cc4a88fc68c9b3069cab419b33e99f3d9bc2f162cfa6ac9b215abd6acdbb069cbb66f76ecfa \
             ee879ff6fcf2db1ffb0e1cfaebc8b113a7ce9cbb70e9cab51bb7eedc7bf0cfa327cf5ebcfaefcd3b7e510970",
        ),
        (
            r#", "cname": "lz4hc", "clevel": 9, "shuffle": -1, "blocksize": 128"#,
            "02013104180100008000000090000000600000001c0000004c0000002c000000ff12202122232425262728292a2b2c2d \
             2e2f303132333435363738393a3b3c3d3e3f000100475000000000001000000078404142434445000100500000000000 \
             2c000000ff12000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f00010047500000000000",
        ),
    ] {
        let codec = blosc(parameters, 4);
        assert_eq!(
            decoded(&*codec, &hex(bytes), 280).unwrap(),
            numbers,
            "{parameters}"
        );
        assert_eq!(
            decoded(&*codec, &encoded(&*codec, &numbers), 280).unwrap(),
            numbers
        );
    }
    let codec = blosc("", 1);
    assert_eq!(
        encoded(&*codec, b""),
        hex("02013301000000000100000010000000")
    );
    assert_eq!(
        encoded(&*codec, b"abc"),
        hex("02013301030000000300000013000000616263")
    );
}

#[test]
fn snappy_only_decodes() {
    let data = b"snappy ".repeat(30);
    let stream = snap::raw::Encoder::new().compress_vec(&data).unwrap();
    let mut frame = hex("0201 5001 d2000000 d2000000 00000000 14000000");
    frame.extend((stream.len() as u32).to_le_bytes());
    frame.extend(&stream);
    let cbytes = frame.len() as u32;
    frame[12..16].copy_from_slice(&cbytes.to_le_bytes());
    let codec = blosc(r#", "cname": "snappy""#, 1);
    assert_eq!(decoded(&*codec, &frame, 210).unwrap(), data);
    hostile_bytes(&*codec, &frame, 210);
    let e = codec.encode(&data, &mut Vec::new()).unwrap_err();
    assert_eq!(e.0, r#"blosc: this build can't encode with cname "snappy""#);
}

#[test]
fn item_size_decides_the_automatic_shuffle() {
    let flags = |codec: Box<dyn Codec>| encoded(&*codec, &sample(2000))[2..4].to_vec();
    assert_eq!(flags(blosc(r#", "shuffle": -1"#, 1)), [0x20 | 4, 1]);
    assert_eq!(flags(blosc(r#", "shuffle": -1"#, 4)), [0x20 | 1, 4]);
    assert_eq!(
        flags(blosc(r#", "shuffle": -1, "typesize": 8"#, 1)),
        [0x20 | 1, 8]
    );
    assert_eq!(flags(blosc(r#", "shuffle": 1"#, 400)), [0x20 | 1, 1]);
    assert_eq!(
        flags(blosc(r#", "shuffle": 0, "cname": "zstd""#, 40)),
        [0x80 | 0x10, 40]
    );
}

#[test]
fn damaged_frames_are_errors() {
    for cname in NAMES {
        for shuffle in 0..3 {
            hostile(
                &*blosc(
                    &format!(r#", "cname": "{cname}", "shuffle": {shuffle}, "blocksize": 130"#),
                    2,
                ),
                &sample(300),
            );
        }
    }
    hostile(&*blosc("", 1), b"stored");
    let codec = blosc("", 4);
    let frame = encoded(&*codec, &sample(20_000));
    let cbytes = frame.len();
    let e = decoded(&*codec, &frame[..2000], 20_000).unwrap_err();
    assert_eq!(
        e.0,
        format!("blosc: header says {cbytes} bytes, chunk has 2000")
    );
    let e = decoded(&*codec, &frame, 19_999).unwrap_err();
    assert_eq!(
        e.0,
        "blosc: header says 20000 decoded bytes, at most 19999 are expected"
    );
    assert_eq!(
        decoded(&*codec, &frame[..7], 20_000).unwrap_err().0,
        "blosc: chunk has 7 bytes, a header 16"
    );
    assert_eq!(
        decoded(&*codec, &[&frame[..], b"tail"].concat(), 20_000).unwrap(),
        sample(20_000)
    );
    let mut bad = frame.clone();
    bad[16..20].copy_from_slice(&[0xFF; 4]);
    assert_eq!(
        decoded(&*codec, &bad, 20_000).unwrap_err().0,
        "blosc: block 0 of 1 is damaged"
    );
}

#[test]
fn false_headers_are_errors() {
    let codec = blosc("", 4);
    for (header, room) in [
        ("0201 3104 ffffff7f ffffff7f 10000000", 1 << 20),
        ("0201 3104 00001000 01000000 10000000", 1 << 20),
        ("0201 3104 00001000 01000000 ffffff7f", 1 << 20),
        ("0201 3104 00001000 00000000 10000000", 1 << 20),
        ("0201 3100 00001000 00001000 10000000", 1 << 20),
        ("0201 3104 00001000 00001001 10000000", 1 << 20),
        ("0201 3304 00001000 00001000 10000000", 1 << 20),
        ("0201 b104 00001000 00001000 14000000 10000000", 1 << 20),
        ("0301 3104 00000000 00000000 10000000", 1 << 20),
        ("0201 2105 0e010000 0e010000 14000000 10000000", 270),
        ("0201 3904 00000000 00000000 10000000", 0),
    ] {
        assert!(decoded(&*codec, &hex(header), room).is_err(), "{header}");
    }
}

/// Tests a frame whose blocks all refer to one zlib stream of 20,000 empty parts and one byte.
#[test]
fn overlapping_blocks_are_errors() {
    let blocks = 20_000usize;
    let parts = 20_000;
    let stream = [
        hex("7801"),
        hex("000000ffff").repeat(parts),
        hex("010100feff 61 00620062"),
    ]
    .concat();
    let mut frame = hex("0201 7001 204e0000 01000000 00000000");
    let start = 16 + 4 * blocks as u32;
    frame.extend(start.to_le_bytes().repeat(blocks));
    frame.extend((stream.len() as u32).to_le_bytes());
    frame.extend(stream);
    let cbytes = frame.len() as u32;
    frame[12..16].copy_from_slice(&cbytes.to_le_bytes());
    let e = decoded(&*blosc("", 1), &frame, blocks).unwrap_err();
    assert_eq!(e.0, "blosc: blocks overlap");
}

#[test]
fn invalid_parameters_are_refused_or_only_decode() {
    for bad in [
        r#""cname": "lzo""#,
        r#""shuffle": 3"#,
        r#""clevel": 10"#,
        r#""blocksize": -1"#,
    ] {
        only_decodes(&format!(r#"{{"id": "blosc", {bad}}}"#));
    }
    refused(r#"{"id": "blosc", "nthreads": 1}"#);
}

/// Returns bytes that compress well with a `noise` of 0 and not at all with 255.
fn content(len: usize, seed: u32, noise: u8) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 8) as u8
    };
    (0..len)
        .map(|i| {
            if next() < noise {
                next()
            } else {
                ((i / 8) as u32 ^ seed) as u8
            }
        })
        .collect()
}

/// Returns codec parameters and an item size.
fn any_codec() -> impl Strategy<Value = (String, usize)> {
    let typesize = prop_oneof![1..=17usize, Just(32), 1..=300usize];
    let blocksize = prop_oneof![Just(0), 1..5000usize];
    (0..5usize, 0..=9, -1..=2, blocksize, typesize).prop_map(|(cname, clevel, shuffle, blocksize, typesize)| {
        let cname = NAMES[cname];
        let parameters =
            format!(r#", "cname": "{cname}", "clevel": {clevel}, "shuffle": {shuffle}, "blocksize": {blocksize}"#);
        (parameters, typesize)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn decodes_as_c_blosc_does(
        (parameters, itemsize) in any_codec(),
        len in prop_oneof![0..3000usize, 0..200_000usize],
        seed: u32,
        noise: u8,
    ) {
        let codec = blosc(&parameters, itemsize);
        let data = content(len, seed, noise);
        let frame = encoded(&*codec, &data);
        prop_assert!(oracle(&frame, len).as_deref() == Some(&data));
        prop_assert!(decoded(&*codec, &frame, len + 5).as_deref() == Ok(&data));
    }

    #[test]
    fn a_block_decodes_from_its_own_bytes(
        (parameters, itemsize) in any_codec(),
        len in 1..50_000usize,
        block: prop::sample::Index,
        beginning: prop::sample::Index,
        behind in 0..20usize,
    ) {
        let data = content(len, 7, 20);
        let mut bytes = encoded(&*blosc(&parameters, itemsize), &data);
        bytes.resize(bytes.len() + behind, 7);
        let header = BloscHeader::parse(&bytes[..16], bytes.len(), len).unwrap();
        let n = block.index(header.blocks());
        let start = n * header.blocksize();
        let want = &data[start..(start + header.blocksize()).min(len)];
        let range = header.block_range(&bytes[..header.index_end()], n);
        let mut out = vec![0; want.len()];
        header.decode_one(n, &bytes[range.clone()], &mut out).unwrap();
        prop_assert!(out == want);
        prop_assert!(header.decode_one(n, &bytes[range.start..range.end - 1], &mut out).is_err());
        let wanted = 1 + beginning.index(want.len());
        prop_assert_eq!(header.decoded_len(n, usize::MAX), want.len());
        let decoded = header.decoded_len(n, wanted);
        prop_assert!((wanted..=want.len()).contains(&decoded));
        let mut out = vec![0; decoded];
        header.decode_one(n, &bytes[range], &mut out).unwrap();
        prop_assert!(out == want[..decoded]);
    }

    #[test]
    fn damaged_frames_never_panic(
        (parameters, itemsize) in any_codec(),
        len in 1..4000usize,
        noise in 0..60u8,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut: prop::sample::Index,
        is_cut: bool,
    ) {
        let codec = blosc(&parameters, itemsize);
        let mut bytes = encoded(&*codec, &content(len, 3, noise));
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if is_cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(d) = decoded(&*codec, &bytes, len) {
            prop_assert!(d.len() <= len);
        }
        let Ok(header) = BloscHeader::parse(&bytes, bytes.len(), len) else { return Ok(()) };
        prop_assume!(bytes.len() >= header.index_end());
        for n in 0..header.blocks().min(4) {
            let range = header.block_range(&bytes[..header.index_end()], n);
            let mut out = vec![0; header.decoded_len(n, 1)];
            let _ = header.decode_one(n, &bytes[range], &mut out);
        }
    }
}
