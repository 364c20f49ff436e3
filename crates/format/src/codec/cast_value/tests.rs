use super::*;
use crate::codec::build;
use crate::codec::testing::{check, config, decoded, encoded, refused};
use crate::float_format::FloatFormat;
use proptest::prelude::*;

fn cast(parameters: &str) -> String {
    format!(r#"{{"id": "cast_value", {parameters}}}"#)
}

/// Encodes items, or returns `None` for an error.
fn try_encoded(text: &str, plain: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    build(&config(text), 1)
        .unwrap()
        .encode(plain, &mut out)
        .ok()
        .map(|()| out)
}

fn bytes(digits: &str) -> Vec<u8> {
    let byte = |i| u8::from_str_radix(&digits[i..i + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(byte).collect()
}

/// Results of cast-value-rs 0.5.1: both types, `rounding`, `out_of_range`, items in hexadecimal,
/// and the converted items in hexadecimal, or an empty string for an error.
const CASTS: [(&str, &str, &str, &str, &str, &str); 55] = [
    (
        "<f8",
        "|i1",
        "nearest-even",
        "error",
        "000000000000044000000000000004c0666666666666f63f9a9999999999f9bf0000000000000c40",
        "02fe01fe04",
    ),
    (
        "<f8",
        "|i1",
        "towards-zero",
        "error",
        "000000000000044000000000000004c0666666666666f63f9a9999999999f9bf0000000000000c40",
        "02fe01ff03",
    ),
    (
        "<f8",
        "|i1",
        "towards-positive",
        "error",
        "000000000000044000000000000004c0666666666666f63f9a9999999999f9bf0000000000000c40",
        "03fe02ff04",
    ),
    (
        "<f8",
        "|i1",
        "towards-negative",
        "error",
        "000000000000044000000000000004c0666666666666f63f9a9999999999f9bf0000000000000c40",
        "02fd01fe03",
    ),
    (
        "<f8",
        "|i1",
        "nearest-away",
        "error",
        "000000000000044000000000000004c0666666666666f63f9a9999999999f9bf0000000000000c40",
        "03fd01fe04",
    ),
    (
        "<f8",
        "<f4",
        "nearest-even",
        "error",
        "9a9999999999b93f9a9999999999b9bf000000100000f03f",
        "cdcccc3dcdccccbd0000803f",
    ),
    (
        "<f8",
        "<f4",
        "towards-zero",
        "error",
        "9a9999999999b93f9a9999999999b9bf000000100000f03f",
        "cccccc3dccccccbd0000803f",
    ),
    (
        "<f8",
        "<f4",
        "towards-positive",
        "error",
        "9a9999999999b93f9a9999999999b9bf000000100000f03f",
        "cdcccc3dccccccbd0100803f",
    ),
    (
        "<f8",
        "<f4",
        "towards-negative",
        "error",
        "9a9999999999b93f9a9999999999b9bf000000100000f03f",
        "cccccc3dcdccccbd0000803f",
    ),
    (
        "<f8",
        "<f4",
        "nearest-away",
        "error",
        "9a9999999999b93f9a9999999999b9bf000000100000f03f",
        "cdcccc3dcdccccbd0100803f",
    ),
    (
        "<i8",
        "<f8",
        "nearest-even",
        "error",
        "0100000000002000ffffffffffffdfff",
        "000000000000404300000000000040c3",
    ),
    (
        "<i8",
        "<f8",
        "towards-zero",
        "error",
        "0100000000002000ffffffffffffdfff",
        "000000000000404300000000000040c3",
    ),
    (
        "<i8",
        "<f8",
        "towards-positive",
        "error",
        "0100000000002000ffffffffffffdfff",
        "010000000000404300000000000040c3",
    ),
    (
        "<i8",
        "<f8",
        "towards-negative",
        "error",
        "0100000000002000ffffffffffffdfff",
        "000000000000404301000000000040c3",
    ),
    (
        "<i8",
        "<f8",
        "nearest-away",
        "error",
        "0100000000002000ffffffffffffdfff",
        "010000000000404301000000000040c3",
    ),
    (
        "<u8",
        "<f4",
        "nearest-even",
        "error",
        "ffffffffffffffff0100000000002000",
        "0000805f0000005a",
    ),
    (
        "<u8",
        "<f4",
        "towards-zero",
        "error",
        "ffffffffffffffff0100000000002000",
        "ffff7f5f0000005a",
    ),
    (
        "<u8",
        "<f4",
        "towards-positive",
        "error",
        "ffffffffffffffff0100000000002000",
        "0000805f0100005a",
    ),
    (
        "<u8",
        "<f4",
        "towards-negative",
        "error",
        "ffffffffffffffff0100000000002000",
        "ffff7f5f0000005a",
    ),
    (
        "<u8",
        "<f4",
        "nearest-away",
        "error",
        "ffffffffffffffff0100000000002000",
        "0000805f0000005a",
    ),
    (
        "<f8",
        "<f2",
        "nearest-even",
        "error",
        "00000000e0fdef403a8c30e28e7945bef90fe9b7af03f03f",
        "ff7b0080013c",
    ),
    (
        "<f8",
        "<f2",
        "towards-zero",
        "error",
        "00000000e0fdef403a8c30e28e7945bef90fe9b7af03f03f",
        "ff7b0080003c",
    ),
    (
        "<f8",
        "<f2",
        "towards-positive",
        "error",
        "00000000e0fdef403a8c30e28e7945bef90fe9b7af03f03f",
        "",
    ),
    (
        "<f8",
        "<f2",
        "towards-negative",
        "error",
        "00000000e0fdef403a8c30e28e7945bef90fe9b7af03f03f",
        "ff7b0180003c",
    ),
    (
        "<f8",
        "<f2",
        "nearest-away",
        "error",
        "00000000e0fdef403a8c30e28e7945bef90fe9b7af03f03f",
        "ff7b0080013c",
    ),
    (
        "<f8",
        "|u1",
        "nearest-even",
        "error",
        "0000000000f06f40",
        "",
    ),
    (
        "<f8",
        "|u1",
        "nearest-even",
        "clamp",
        "0000000000f06f40",
        "ff",
    ),
    (
        "<f8",
        "|u1",
        "nearest-even",
        "wrap",
        "0000000000f06f40",
        "00",
    ),
    (
        "<f8",
        "|u1",
        "nearest-even",
        "error",
        "0000000000d06f40000000000000e0bf",
        "fe00",
    ),
    (
        "<f8",
        "|u1",
        "nearest-even",
        "clamp",
        "0000000000d06f40000000000000e0bf",
        "fe00",
    ),
    (
        "<f8",
        "|u1",
        "nearest-even",
        "wrap",
        "0000000000d06f40000000000000e0bf",
        "fe00",
    ),
    (
        "<f8",
        "|u1",
        "nearest-even",
        "error",
        "0000000000c07240000000000000f0bf9c7500883ce4377e",
        "",
    ),
    (
        "<f8",
        "|u1",
        "nearest-even",
        "clamp",
        "0000000000c07240000000000000f0bf9c7500883ce4377e",
        "ff00ff",
    ),
    (
        "<f8",
        "|u1",
        "nearest-even",
        "wrap",
        "0000000000c07240000000000000f0bf9c7500883ce4377e",
        "2cff00",
    ),
    (
        "<u8",
        "<i8",
        "nearest-even",
        "error",
        "0000000000000080ffffffffffffffff",
        "",
    ),
    (
        "<u8",
        "<i8",
        "nearest-even",
        "clamp",
        "0000000000000080ffffffffffffffff",
        "ffffffffffffff7fffffffffffffff7f",
    ),
    (
        "<u8",
        "<i8",
        "nearest-even",
        "wrap",
        "0000000000000080ffffffffffffffff",
        "0000000000000080ffffffffffffffff",
    ),
    ("<i2", "|u1", "nearest-even", "error", "ffff2c01", ""),
    ("<i2", "|u1", "nearest-even", "clamp", "ffff2c01", "00ff"),
    ("<i2", "|u1", "nearest-even", "wrap", "ffff2c01", "ff2c"),
    ("<i4", "<i2", "nearest-even", "error", "00000080", ""),
    ("<i4", "<i2", "nearest-even", "clamp", "00000080", "0080"),
    ("<i4", "<i2", "nearest-even", "wrap", "00000080", "0000"),
    (
        "<f8",
        "<f4",
        "nearest-even",
        "error",
        "1d4a9cf487820748",
        "",
    ),
    (
        "<f8",
        "<f4",
        "nearest-even",
        "clamp",
        "1d4a9cf487820748",
        "0000807f",
    ),
    ("<f8", "<f4", "nearest-even", "wrap", "1d4a9cf487820748", ""),
    (
        "<i8",
        "<f2",
        "nearest-even",
        "error",
        "7011010000000000",
        "",
    ),
    (
        "<i8",
        "<f2",
        "nearest-even",
        "clamp",
        "7011010000000000",
        "007c",
    ),
    ("<i8", "<f2", "nearest-even", "wrap", "7011010000000000", ""),
    (
        "<f8",
        "<f4",
        "nearest-even",
        "error",
        "000000000000f07f000000000000f0ff",
        "0000807f000080ff",
    ),
    (
        "<f8",
        "<f4",
        "nearest-even",
        "clamp",
        "000000000000f07f000000000000f0ff",
        "0000807f000080ff",
    ),
    (
        "<f8",
        "<f4",
        "nearest-even",
        "wrap",
        "000000000000f07f000000000000f0ff",
        "0000807f000080ff",
    ),
    (
        "<f8",
        "|i1",
        "nearest-even",
        "error",
        "000000000000f87f",
        "",
    ),
    (
        "<f8",
        "|i1",
        "nearest-even",
        "clamp",
        "000000000000f87f",
        "",
    ),
    ("<f8", "|i1", "nearest-even", "wrap", "000000000000f87f", ""),
];

#[test]
fn casts_match_cast_value_rs() {
    for (from, to, rounding, out_of_range, plain, stored) in CASTS {
        let text = cast(&format!(
            r#""from": "{from}", "to": "{to}", "rounding": "{rounding}", "out_of_range": "{out_of_range}""#
        ));
        let expected = (!stored.is_empty()).then(|| bytes(stored));
        assert_eq!(
            try_encoded(&text, &bytes(plain)),
            expected,
            "{text} {plain}"
        );
    }
}

#[test]
fn both_directions_and_byte_orders() {
    let f4 = |values: [f32; 3]| values.map(f32::to_le_bytes).concat();
    check(
        &cast(r#""from": "<f4", "to": ">i2""#),
        &f4([1.0, -2.0, 32767.0]),
        &[0, 1, 255, 254, 127, 255],
    );
    check(
        &cast(r#""from": ">i2", "to": "<f4""#),
        &[0, 1, 255, 254, 127, 255],
        &f4([1.0, -2.0, 32767.0]),
    );
    check(
        &cast(r#""from": "<f4", "to": ">bfloat16""#),
        &f4([1.0, -2.0, f32::NAN]),
        &[0x3f, 0x80, 0xc0, 0, 0x7f, 0xc0],
    );
    check(
        &cast(r#""from": "<i8", "to": "<u8""#),
        &i64::MAX.to_le_bytes(),
        &i64::MAX.to_le_bytes(),
    );
    // decoding follows the same rules
    let rounding =
        r#""from": "|i1", "to": "<f4", "rounding": "towards-negative", "out_of_range": "clamp""#;
    assert_eq!(
        decoded(&cast(rounding), &f4([-1.5, 1.5, 200.0]), 3),
        [254, 1, 127]
    );
    check(&cast(r#""from": "|u1", "to": "<u4""#), &[], &[]);
}

#[test]
fn narrow_types() {
    let clamp = r#""out_of_range": "clamp""#;
    check(
        &cast(r#""from": "<i2", "to": "int4""#),
        &[7, 0, 0xf8, 0xff],
        &[7, 0xf8],
    );
    assert_eq!(
        encoded(
            &cast(&format!(r#""from": "|i1", "to": "int2", {clamp}"#)),
            &[100, 0x80]
        ),
        [1, 0xfe]
    );
    assert_eq!(
        encoded(
            &cast(r#""from": "|i1", "to": "int4", "out_of_range": "wrap""#),
            &[8, 24, 0xf7]
        ),
        [0xf8, 0xf8, 7]
    );
    assert_eq!(
        encoded(
            &cast(r#""from": "|i1", "to": "uint4", "out_of_range": "wrap""#),
            &[16, 0xff]
        ),
        [0, 15]
    );
    assert_eq!(
        encoded(&cast(r#""from": "uint2", "to": "|u1""#), &[0xff, 4]),
        [3, 0]
    );
    let f4 = |values: &[f32]| {
        values
            .iter()
            .flat_map(|x| x.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    // 448 is the largest of float8_e4m3fn, which has no infinity, and 6 that of float4_e2m1fn
    let to_e4m3fn = cast(&format!(r#""from": "<f4", "to": "float8_e4m3fn", {clamp}"#));
    assert_eq!(
        encoded(&to_e4m3fn, &f4(&[500.0, f32::NEG_INFINITY, f32::NAN])),
        [0x7e, 0xfe, 0x7f]
    );
    assert_eq!(
        try_encoded(
            &cast(r#""from": "<f4", "to": "float8_e4m3fn""#),
            &f4(&[f32::INFINITY])
        ),
        None
    );
    let to_e2m1fn = cast(&format!(r#""from": "<f4", "to": "float4_e2m1fn", {clamp}"#));
    assert_eq!(encoded(&to_e2m1fn, &f4(&[-7.0, 0.25, 0.75])), [15, 0, 2]);
    assert_eq!(try_encoded(&to_e2m1fn, &f4(&[f32::NAN])), None);
    let to_e8m0fnu = cast(&format!(
        r#""from": "<f4", "to": "float8_e8m0fnu", {clamp}"#
    ));
    assert_eq!(
        encoded(&to_e8m0fnu, &f4(&[0.0, -5.0, f32::INFINITY, 4.0])),
        [0, 0, 0xfe, 0x81]
    );
    assert_eq!(
        try_encoded(
            &cast(r#""from": "<f4", "to": "float8_e8m0fnu""#),
            &f4(&[0.0])
        ),
        None
    );
}

#[test]
fn infinities_are_out_of_range_of_integers() {
    // the registry says so; cast-value-rs refuses them
    let text = |rule| {
        cast(&format!(
            r#""from": "<f4", "to": "|u1", "out_of_range": "{rule}""#
        ))
    };
    let plain = [f32::INFINITY, f32::NEG_INFINITY]
        .map(f32::to_le_bytes)
        .concat();
    assert_eq!(try_encoded(&text("clamp"), &plain), Some(vec![255, 0]));
    assert_eq!(
        (
            try_encoded(&text("wrap"), &plain),
            try_encoded(&text("error"), &plain)
        ),
        (None, None)
    );
}

#[test]
fn scalar_maps_come_first() {
    let map = r#""scalar_map": {"encode": [["NaN", 0], [1, 7], [1, 8], [0.0, 9]], "decode": [[0, "NaN"], [7, 1]]}"#;
    let text = cast(&format!(r#""from": ">f4", "to": "|u1", {map}"#));
    let plain = [0xffc0_0001u32, 0x3f80_0000, 0x8000_0000, 0x4000_0000]
        .map(u32::to_be_bytes)
        .concat();
    assert_eq!(encoded(&text, &plain), [0, 7, 9, 2]);
    let back = [f32::NAN, 1.0, 9.0, 2.0].map(f32::to_be_bytes).concat();
    assert_eq!(decoded(&text, &[0, 7, 9, 2], 16), back);
    let same =
        cast(r#""from": "|u1", "to": "|u1", "scalar_map": {"encode": [[1, 2]], "decode": null}"#);
    assert_eq!(
        (encoded(&same, &[1, 2, 3]), decoded(&same, &[1, 2, 3], 3)),
        (vec![2, 2, 3], vec![1, 2, 3])
    );
}

#[test]
fn invalid_parameters_are_refused() {
    refused(&cast(r#""from": "<f4""#));
    for parameter in [
        r#""rounding": "up""#,
        r#""out_of_range": "saturate""#,
        r#""scalar_map": []"#,
        r#""scalar_map": {"encode": [[1]]}"#,
        r#""scalar_map": {"encode": [[1, 256]]}"#,
        r#""scalar_map": {"decode": [[1, "x"]]}"#,
        r#""scalar_map": {"both": []}"#,
        r#""other": 1"#,
    ] {
        refused(&cast(&format!(
            r#""from": "<f4", "to": "|u1", {parameter}"#
        )));
    }
    for name in ["|b1", "<c8", "complex_bfloat16", "<M8[s]", "|V1"] {
        let error = build(
            &config(&cast(&format!(r#""from": "{name}", "to": "|u1""#))),
            1,
        )
        .err()
        .unwrap();
        assert_eq!(
            error.kind(),
            zarrfs_base::error::Kind::Unsupported,
            "{name}"
        );
    }
    let codec = build(&config(&cast(r#""from": "<f4", "to": "|u1""#)), 4).unwrap();
    assert_eq!(
        (codec.encoded_size(40), codec.encoded_itemsize()),
        (Size::Exact(10), 1)
    );
    assert!(codec.encode(&[0; 7], &mut Vec::new()).is_err());
    assert!(codec.decode(&[0; 3], &mut [0; 11]).is_err());
}

#[test]
fn lossless_casts() {
    let is_lossless =
        |parameters: &str| build(&config(&cast(parameters)), 1).unwrap().is_lossless();
    for (from, to, expected) in [
        ("|u1", "<i2", true),
        ("<i2", "<f4", true),
        ("<f4", ">f4", true),
        ("<f4", "<f8", false),
        ("<i4", "<f4", false),
        ("<i8", "<u8", false),
        ("int4", "|i1", false),
        ("int4", "int4", true),
    ] {
        assert_eq!(
            is_lossless(&format!(r#""from": "{from}", "to": "{to}""#)),
            expected,
            "{from} {to}"
        );
    }
    assert!(!is_lossless(
        r#""from": "|u1", "to": "<u2", "scalar_map": {"encode": [[1, 300]]}"#
    ));
    assert!(is_lossless(
        r#""from": "|u1", "to": "<u2", "scalar_map": {}"#
    ));
}

proptest! {
    #[test]
    fn lossless_casts_reverse(
        numbers in prop::collection::vec(any::<u64>(), 0..20),
        from in prop::sample::select(vec!["|u1", "|i1", ">i2", "<u2", "<i4", ">u8", "<f4"]),
        to in prop::sample::select(vec!["|u1", "|i1", "<i2", ">i4", "<i8", "<u8", "<bfloat16", "<f2", ">f4", "<f8"]),
        out_of_range in prop::sample::select(vec!["error", "clamp", "wrap"]),
    ) {
        let text = cast(&format!(r#""from": "{from}", "to": "{to}", "out_of_range": "{out_of_range}""#));
        prop_assume!(build(&config(&text), 1).unwrap().is_lossless());
        let plain: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        let stored = encoded(&text, &plain);
        prop_assert_eq!(decoded(&text, &stored, plain.len()), plain);
    }

    #[test]
    fn clamped_and_wrapped_integers_match_the_processor(x: f64, n: i64) {
        let text = |from, to, rule| cast(&format!(
            r#""from": "{from}", "to": "{to}", "rounding": "towards-zero", "out_of_range": "{rule}""#
        ));
        // casts of Rust saturate floats and wrap integers
        prop_assert_eq!(encoded(&text("<f8", "<i4", "clamp"), &x.to_le_bytes()), (x as i32).to_le_bytes());
        prop_assert_eq!(encoded(&text("<f8", "<u8", "clamp"), &x.to_le_bytes()), (x as u64).to_le_bytes());
        prop_assert_eq!(encoded(&text("<i8", "<u2", "wrap"), &n.to_le_bytes()), (n as u16).to_le_bytes());
        prop_assert_eq!(encoded(&text("<i8", "<u8", "wrap"), &n.to_le_bytes()), (n as u64).to_le_bytes());
        prop_assert_eq!(encoded(&text("<i8", "<f4", "error"), &n.to_le_bytes()).len(), 4);
    }

    #[test]
    fn small_floats_survive_wider_ones(bits: u8) {
        for (name, wide) in [("float8_e4m3", "<f2"), ("float8_e5m2", "<f4"), ("float8_e8m0fnu", ">f8")] {
            let format = FloatFormat::parse(name).unwrap();
            prop_assume!(!format.to_f64(bits.into()).is_nan());
            let text = cast(&format!(r#""from": "{name}", "to": "{wide}""#));
            let stored = encoded(&text, &[bits]);
            prop_assert_eq!(decoded(&text, &stored, 1), [bits]);
        }
    }
}
