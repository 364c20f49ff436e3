use crate::codec::build;
use crate::codec::testing::compressors::{codec, decoded, encoded, hex, hostile_bytes, refused};
use crate::codec::testing::config;
use crate::metadata::ArrayMetadata;
use crate::pipeline::Pipeline;
use proptest::prelude::*;

/// Returns quarters from 0 to 2.75 as 32-bit floats.
fn quarters() -> Vec<u8> {
    (0..12)
        .flat_map(|n| (n as f32 / 4.0).to_le_bytes())
        .collect()
}

/// Returns integers of `N` bytes.
fn integers<const N: usize>(numbers: &[i64]) -> Vec<u8> {
    let bytes = numbers.iter().map(|n| n.to_le_bytes());
    bytes.flat_map(|bytes| bytes[..N].to_vec()).collect()
}

/// Values that zfpy 1.0.1 wrote for a chunk of 3 by 4 floats: parameters of `zfpy` and `zfp`, and
/// the value with a header and without.
const WRITTEN: [(&str, &str, &str, &str); 4] = [
    (
        r#""mode": 4, "tolerance": 0.001"#,
        r#""mode": "fixed_accuracy", "tolerance": 0.001"#,
        "7a66700536000020000090ca0371488c465420020000000000000000000000000000000000000000",
        "0371488c4654200200000000000000000000000000000000",
    ),
    (
        r#""mode": 2, "rate": 8"#,
        // zarrs gives 64 items, four blocks, that many bits
        r#""mode": "fixed_rate", "rate": 2"#,
        "7a667005360000200000f0070371488c46542002000000000000000000000000",
        "0371488c465420020000000000000000",
    ),
    (
        r#""mode": 3, "precision": 12"#,
        r#""mode": "fixed_precision", "precision": 12"#,
        "7a667005360000200000b0800371488c46542002000000000000000000000000",
        "0371488c465420020000000000000000",
    ),
    (
        r#""mode": 4, "tolerance": -1, "rate": -1, "precision": -1, "compression_kwargs": {}"#,
        r#""mode": "reversible""#,
        "7a6670053600002000000088059600021000080400010000",
        "05960002100008040001000000000000",
    ),
];

const QUARTERS: &str = r#""dtype": "<f4", "shape": [3, 4]"#;

#[test]
fn values_of_zfpy_are_decoded_and_encoded() {
    for (zfpy, zfp, headed, bare) in WRITTEN {
        for (id, parameters, value) in [("zfpy", zfpy, headed), ("zfp", zfp, bare)] {
            let text = format!(r#"{{"id": "{id}", {parameters}, {QUARTERS}}}"#);
            let codec = codec(&text, 4);
            assert_eq!(encoded(&*codec, &quarters()), hex(value), "{text}");
            assert_eq!(
                decoded(&*codec, &hex(value), 48).unwrap(),
                quarters(),
                "{text}"
            );
            assert!(decoded(&*codec, &hex(value), 47).is_err(), "{text}");
            let is_reversible = parameters.contains("-1") || parameters.contains("reversible");
            assert_eq!(codec.is_lossless(), is_reversible, "{text}");
            hostile_bytes(&*codec, &hex(value), 48);
            let more = [hex(value), vec![0; 8]].concat();
            assert_eq!(decoded(&*codec, &more, 48).is_ok(), id == "zfpy", "{text}");
        }
    }
}

#[test]
fn a_header_states_type_and_shape() {
    let other = r#"{"id": "zfpy", "dtype": "<i4", "shape": [2]}"#;
    let value = hex(WRITTEN[3].2);
    assert_eq!(
        decoded(&*codec(other, 4), &value, 48).unwrap(),
        quarters(),
        "as numcodecs does, whatever the document says"
    );
    let mut large = value.clone();
    large[7] = 0xff;
    assert!(decoded(&*codec(other, 4), &large, 1000).is_err());
    // a chunk of 2 by 2 by 2 floats
    let cube = integers::<8>(
        &(0..8)
            .map(|n| (n as f64).to_bits() as i64)
            .collect::<Vec<_>>(),
    );
    let cube_codec = codec(
        r#"{"id": "zfpy", "mode": 5, "dtype": "<f8", "shape": [2, 2, 2]}"#,
        8,
    );
    let value = hex("7a6670051b00100010000088099010613883080200000000");
    assert_eq!(encoded(&*cube_codec, &cube), value);
    assert_eq!(decoded(&*cube_codec, &value, 64).unwrap(), cube);
}

/// Values that zfpy wrote for numbers that were promoted as the registry describes.
#[test]
fn small_integers_are_promoted() {
    for (dtype, plain, value) in [
        (
            "|i1",
            integers::<1>(&[-128, -1, 0, 127, 5]),
            "e83e000024416015",
        ),
        (
            "|u1",
            integers::<1>(&[0, 128, 255, 7, 1]),
            "680f001090d002a00000000000000000",
        ),
        (
            "<i2",
            integers::<2>(&[-32768, -1, 0, 32767, 5]),
            "f03e0000000000002481006015000000",
        ),
        (
            "<u2",
            integers::<2>(&[0, 32768, 65535, 7, 1]),
            "700f00000000001090e0020000a00000",
        ),
        (
            "<i4",
            integers::<4>(&[-3000, -2000, -1000, 0, 1000]),
            "1c0080c50188360e0000065001000000",
        ),
    ] {
        let text = format!(r#"{{"id": "zfp", "mode": "reversible", "dtype": "{dtype}"}}"#);
        let codec = codec(&text, 1);
        assert_eq!(encoded(&*codec, &plain), hex(value), "{dtype}");
        assert_eq!(
            decoded(&*codec, &hex(value), plain.len()).unwrap(),
            plain,
            "{dtype}"
        );
    }
}

#[test]
fn numbers_that_would_be_cut_are_refused() {
    for (dtype, size) in [("<u4", 4), ("<u8", 8)] {
        let codec = codec(
            &format!(r#"{{"id": "zfp", "mode": "reversible", "dtype": "{dtype}"}}"#),
            size,
        );
        let mut plain = vec![0xff; size];
        let e = codec.encode(&plain, &mut Vec::new()).unwrap_err();
        assert!(e.0.ends_with("is more than it can encode"), "{}", e.0);
        plain[size - 1] = 0x7f;
        let value = encoded(&*codec, &plain);
        assert_eq!(decoded(&*codec, &value, size).unwrap(), plain);
    }
    // a lossy mode can decode to less than the smallest number
    let codec = codec(
        r#"{"id": "zfp", "mode": "fixed_precision", "precision": 3, "dtype": "|u1"}"#,
        1,
    );
    let plain = [0, 255, 0, 255, 255, 0, 1, 254];
    let value = encoded(&*codec, &plain);
    assert_eq!(decoded(&*codec, &value, 8).unwrap().len(), 8);
}

#[test]
fn invalid_parameters_are_refused_or_only_decode() {
    let float = r#""dtype": "<f4""#;
    for wrong in [
        r#""id": "zfpy""#,
        r#""id": "zfpy", "dtype": ">f4""#,
        r#""id": "zfpy", "dtype": "<u4""#,
        r#""id": "zfpy", "dtype": "<c8""#,
        r#""id": "zfp", "dtype": "<f2", "mode": "reversible""#,
        r#""id": "zfp", "dtype": "<f4""#,
        r#""id": "zfp", "dtype": "<f4", "mode": "exact""#,
        r#""id": "zfp", "dtype": "<f4", "mode": "fixed_rate""#,
        r#""id": "zfp", "dtype": "<f4", "mode": "fixed_rate", "rate": 1e9"#,
        r#""id": "zfp", "dtype": "<f4", "mode": "fixed_rate", "rate": -1"#,
        r#""id": "zfp", "dtype": "<f4", "mode": "expert", "minbits": 1"#,
        r#""id": "zfp", "dtype": "<f4", "mode": "expert", "minbits": 9, "maxbits": 8, "maxprec": 9, "minexp": 0"#,
        r#""id": "zfp", "dtype": "<f4", "mode": "reversible", "shape": [1, 1, 1, 1, 1]"#,
    ] {
        refused(&format!("{{{wrong}}}"));
    }
    for parameters in [
        r#""mode": 1"#,
        r#""mode": 2, "rate": 1e9"#,
        r#""tolerance": "1""#,
        r#""shape": [1, 1, 1, 1, 12]"#,
    ] {
        let text = format!(r#"{{"id": "zfpy", {float}, {parameters}}}"#);
        let codec = codec(&text, 4);
        assert!(codec.encode(&quarters(), &mut Vec::new()).is_err());
        let value = hex(WRITTEN[3].2);
        assert_eq!(decoded(&*codec, &value, 48).unwrap(), quarters(), "{text}");
    }
    let short = codec(&format!(r#"{{"id": "zfpy", {QUARTERS}}}"#), 4);
    assert!(short.encode(&[0; 44], &mut Vec::new()).is_err());
    assert!(short.encode(&[0; 47], &mut Vec::new()).is_err());
}

#[test]
fn a_document_of_v2_leaves_type_and_shape_to_the_array() {
    let delta = r#"[{"id": "delta", "dtype": "<f4"}]"#;
    for (order, filters, shape) in [
        ("C", "null", [3, 0x20]),
        ("F", "null", [2, 0x30]),
        ("C", delta, [0xb, 0]),
    ] {
        let text = format!(
            r#"{{"zarr_format": 2, "shape": [3, 4], "chunks": [3, 4], "dtype": "<f4", "order": "{order}",
            "fill_value": 0, "compressor": {{"id": "zfpy", "mode": 4}}, "filters": {filters}}}"#
        );
        let meta = ArrayMetadata::parse(text.as_bytes()).unwrap();
        let pipeline = Pipeline::new(&meta, 48).unwrap();
        let (mut stored, mut plain) = (Vec::new(), Vec::new());
        pipeline.encode(&quarters(), &mut stored).unwrap();
        // the type, the number of dimensions, and the last length less one, in 2, 2 and 24 bits
        let [last, first] = [stored[4] >> 4, stored[7]];
        assert_eq!([i32::from(last), i32::from(first)], shape, "{order}");
        pipeline.decode(&stored, &mut plain).unwrap();
        assert_eq!(plain, quarters(), "{order}");
    }
}

#[test]
fn buffers_need_not_be_aligned() {
    let codec = codec(&format!(r#"{{"id": "zfpy", {QUARTERS}}}"#), 4);
    for shift in 0..8 {
        let plain = [&vec![7; shift], &quarters()[..]].concat();
        let mut value = vec![7; shift];
        let mut out = Vec::new();
        codec.encode(&plain[shift..], &mut out).unwrap();
        value.extend_from_slice(&out);
        let mut room = vec![7; shift + 48];
        assert_eq!(codec.decode(&value[shift..], &mut room[shift..]), Ok(48));
        assert_eq!(room, plain);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// The reversible mode preserves any bits, and no damage is more than an error.
    #[test]
    fn reversible_values_decode_to_the_same_bytes(
        dtype in prop::sample::select(vec!["<i4", "<i8", "<f4", "<f8", "|i1", "|u1", "<i2", "<u2"]),
        shape in prop::collection::vec(1..7usize, 0..5),
        seed in any::<u64>(),
        damage in any::<prop::sample::Index>(),
    ) {
        let is_native = dtype.ends_with(['4', '8']);
        let items: usize = shape.iter().product();
        let size = dtype[2..].parse::<usize>().unwrap();
        let mut state = seed;
        let plain: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        }).take(items * size).collect();
        for id in ["zfp", "zfpy"].iter().take(1 + usize::from(is_native)) {
            let mode = if *id == "zfp" { r#""reversible""# } else { "4" };
            let text = format!(
                r#"{{"id": "{id}", "mode": {mode}, "dtype": "{dtype}", "shape": {shape:?}}}"#
            );
            let codec = build(&config(&text), size).unwrap();
            let mut value = encoded(&*codec, &plain);
            prop_assert_eq!(decoded(&*codec, &value, plain.len()).unwrap(), plain.clone());
            prop_assert!(decoded(&*codec, &value[..value.len() - 1], plain.len()).is_err());
            let at = damage.index(value.len());
            value[at] ^= 1 << (seed % 8);
            let _ = decoded(&*codec, &value, plain.len());
        }
    }
}
