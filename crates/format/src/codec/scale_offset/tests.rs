use super::*;
use crate::codec::build;
use crate::codec::testing::{broken, check, config, decoded, encoded, refused};
use proptest::prelude::*;

fn scale_offset(parameters: &str) -> String {
    format!(r#"{{"id": "scale_offset", {parameters}}}"#)
}

/// Checks that items cannot be encoded.
fn unencodable(parameters: &str, plain: &[u8]) {
    let codec = build(&config(&scale_offset(parameters)), 1).unwrap();
    assert!(
        codec.encode(plain, &mut Vec::new()).is_err(),
        "{parameters}"
    );
}

#[test]
fn floats_match_numpy() {
    // NumPy 2.4 and ml_dtypes 0.6: `(x - offset) * scale`, and back
    let text = scale_offset(r#""dtype": "<f4", "offset": 5, "scale": 0.1"#);
    let plain = [5.5f32, 15.0, -3.0].map(f32::to_le_bytes).concat();
    let stored = [0x3d4c_cccdu32, 0x3f80_0000, 0xbf4c_cccd]
        .map(u32::to_le_bytes)
        .concat();
    check(&text, &plain, &stored);
    let halves = |bits: [u16; 3]| bits.map(u16::to_be_bytes).concat();
    let text = scale_offset(r#""dtype": ">f2", "offset": 0.3, "scale": 7"#);
    check(
        &text,
        &halves([0x63d0, 0x2e66, 0xc200]),
        &halves([0x6ed5, 0xbd9a, 0xcdc7]),
    );
    let text = scale_offset(r#""dtype": ">bfloat16", "offset": 0.3, "scale": 7"#);
    assert_eq!(
        encoded(&text, &halves([0x447a, 0x3dcd, 0xc040])),
        halves([0x45db, 0xbfb4, 0xc1b9])
    );
    assert_eq!(
        decoded(&text, &halves([0x45db, 0xbfb4, 0xc1b9]), 6),
        halves([0x447a, 0x3dcc, 0xc040])
    );
    let text = scale_offset(r#""dtype": "float8_e4m3", "offset": 0.3, "scale": 1.5"#);
    assert_eq!(encoded(&text, &[0x6c, 0x1d, 0xc4]), [0x71, 0xaa, 0xca]);
    assert_eq!(decoded(&text, &[0x71, 0xaa, 0xca], 3), [0x6c, 0x1e, 0xc4]);
}

#[test]
fn floats_out_of_range_become_infinite_or_are_errors() {
    let text = scale_offset(r#""dtype": "<f4", "scale": "0x7f7fffff""#);
    assert_eq!(
        encoded(&text, &2f32.to_le_bytes()),
        f32::INFINITY.to_le_bytes()
    );
    let nan = encoded(
        &scale_offset(r#""dtype": "<f4", "offset": "NaN""#),
        &1f32.to_le_bytes(),
    );
    assert_eq!(nan, 0x7fc0_0000u32.to_le_bytes());
    // 448 is the largest number, and there is no infinity
    unencodable(r#""dtype": "float8_e4m3fn", "scale": 2"#, &[0x7e]);
    broken(
        &scale_offset(r#""dtype": "float4_e2m1fn", "scale": 0.5"#),
        &[7],
    );
    broken(
        &scale_offset(r#""dtype": "float4_e2m1fn", "scale": 0"#),
        &[0],
    );
    unencodable(r#""dtype": "float8_e8m0fnu", "offset": 1"#, &[0x7f]);
}

#[test]
fn integers_are_exact() {
    check(
        &scale_offset(r#""dtype": ">i2", "offset": 1, "scale": 3"#),
        &[0, 5, 255, 255],
        &[0, 12, 255, 250],
    );
    check(&scale_offset(r#""dtype": "|u1""#), &[0, 255], &[0, 255]);
    check(
        &scale_offset(r#""dtype": "int4", "offset": -2, "scale": -1"#),
        &[0xfb, 2],
        &[3, 0xfc],
    );
    let large = u64::MAX.to_le_bytes();
    check(
        &scale_offset(r#""dtype": "<u8", "offset": 18446744073709551614"#),
        &large,
        &1u64.to_le_bytes(),
    );
    // below 0, above 255, no whole quotient, and a sum above 255
    unencodable(r#""dtype": "|u1", "offset": 10"#, &[9]);
    unencodable(r#""dtype": "|u1", "scale": 2"#, &[128]);
    unencodable(r#""dtype": "<u8", "scale": 18446744073709551615"#, &large);
    broken(&scale_offset(r#""dtype": "|u1", "scale": 2"#), &[3]);
    broken(&scale_offset(r#""dtype": "|u1", "offset": 1"#), &[255]);
    broken(&scale_offset(r#""dtype": "|i1", "scale": -1"#), &[0x80]);
    unencodable(
        r#""dtype": "<i8", "scale": 9223372036854775807"#,
        &i64::MIN.to_le_bytes(),
    );
    broken(&scale_offset(r#""dtype": "<i2""#), &[1, 2, 3]);
}

#[test]
fn invalid_parameters_are_refused() {
    refused(&scale_offset(r#""offset": 1"#));
    refused(&scale_offset(r#""dtype": "|u1", "scale": 0"#));
    refused(&scale_offset(r#""dtype": "|u1", "offset": -1"#));
    refused(&scale_offset(r#""dtype": "|u1", "offset": 0.5"#));
    refused(&scale_offset(r#""dtype": "<f4", "scale": "1""#));
    refused(&scale_offset(r#""dtype": "<f4", "astype": "<f4""#));
    for name in ["<c8", "|b1", "<M8[s]"] {
        let error = build(&config(&scale_offset(&format!(r#""dtype": "{name}""#))), 1)
            .err()
            .unwrap();
        assert_eq!(
            error.kind(),
            zarrfs_base::error::Kind::Unsupported,
            "{name}"
        );
    }
    let of =
        |name: &str| build(&config(&scale_offset(&format!(r#""dtype": "{name}""#))), 1).unwrap();
    assert!(of("<i4").is_lossless() && !of("<f4").is_lossless() && !of("int4").is_lossless());
    assert_eq!(
        (of("<f8").encoded_itemsize(), of("<f8").encoded_size(16)),
        (8, Size::Exact(16))
    );
}

proptest! {
    #[test]
    fn integers_that_encode_decode_to_themselves(x: i16, offset: i16, scale in -9i16..9) {
        prop_assume!(scale != 0);
        let text = scale_offset(&format!(r#""dtype": "<i2", "offset": {offset}, "scale": {scale}"#));
        let codec = build(&config(&text), 2).unwrap();
        let mut stored = Vec::new();
        let moved = i16::try_from(i32::from(x) - i32::from(offset)).ok();
        let expected = moved.and_then(|moved| moved.checked_mul(scale));
        prop_assert_eq!(codec.encode(&x.to_le_bytes(), &mut stored).is_ok(), expected.is_some());
        if let Some(expected) = expected {
            prop_assert_eq!(&stored, &expected.to_le_bytes());
            prop_assert_eq!(decoded(&text, &stored, 2), x.to_le_bytes());
        }
    }

    #[test]
    fn floats_match_the_processor(x: f32, offset in -1e6f32..1e6, scale in 1e-6f32..1e6) {
        let text = scale_offset(&format!(r#""dtype": "<f4", "offset": {offset:?}, "scale": {scale:?}"#));
        prop_assert_eq!(encoded(&text, &x.to_le_bytes()), ((x - offset) * scale).to_le_bytes());
        prop_assert_eq!(decoded(&text, &x.to_le_bytes(), 4), (x / scale + offset).to_le_bytes());
    }
}
