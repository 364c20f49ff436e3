use super::*;
use RoundingMode::*;
use proptest::prelude::*;

fn format(name: &str) -> FloatFormat {
    FloatFormat::parse(name).unwrap()
}

/// Small formats, the number of their bit patterns, and CRC-32s of three results of NumPy 2.4 with
/// ml_dtypes 0.6: all patterns converted to float64; all float16 numbers, in the order of their
/// bits, converted to the format; and all bfloat16 numbers. NaNs are left out, and so are numbers
/// between 2^-127 and 2^-126, which ml_dtypes rounds up in float8_e8m0fnu even if the lower
/// neighbor is nearer.
const SMALL: [(&str, u64, u32, u32, u32); 11] = [
    ("float8_e3m4", 256, 0xfe02_1dd0, 0x49c9_e9c3, 0xc260_572f),
    ("float8_e4m3", 256, 0xbe38_7453, 0x7c23_3851, 0x78ab_903f),
    (
        "float8_e4m3b11fnuz",
        256,
        0xb7c9_4d8c,
        0x59f8_220c,
        0x5e34_a265,
    ),
    ("float8_e4m3fn", 256, 0x811a_2a37, 0xf740_2c93, 0xd9cb_adad),
    (
        "float8_e4m3fnuz",
        256,
        0xabad_c1db,
        0x1888_72e6,
        0xdac0_1552,
    ),
    ("float8_e5m2", 256, 0x83e5_d332, 0x3457_c5f2, 0x7695_61d5),
    (
        "float8_e5m2fnuz",
        256,
        0x9130_5643,
        0xac99_a5b1,
        0x8df2_dfbc,
    ),
    ("float8_e8m0fnu", 256, 0x4bbe_a981, 0x593b_c42d, 0xb6d4_93d6),
    ("float6_e2m3fn", 64, 0xf6a0_5dcb, 0x1dc7_74f6, 0xf17e_9e27),
    ("float6_e3m2fn", 64, 0x05e0_ba67, 0x33fd_d1cc, 0x801f_11ba),
    ("float4_e2m1fn", 16, 0xa4f2_f7e0, 0xf195_977f, 0xec58_bbe5),
];

#[test]
fn small_formats_match_ml_dtypes() {
    for (name, patterns, decoded, from_float16, from_bfloat16) in SMALL {
        let format = format(name);
        let numbers = (0..patterns).flat_map(|bits| {
            let number = format.to_f64(bits);
            if number.is_nan() {
                [0; 8]
            } else {
                number.to_le_bytes()
            }
        });
        assert_eq!(
            crc32fast::hash(&numbers.collect::<Vec<_>>()),
            decoded,
            "{name}"
        );
        for (wide, expected) in [("float16", from_float16), ("bfloat16", from_bfloat16)] {
            let is_left_out =
                |x: f64| x.is_nan() || 2f64.powi(-127) < x.abs() && x.abs() < 2f64.powi(-126);
            let numbers = (0..65536)
                .map(|bits| self::format(wide).to_f64(bits))
                .filter(|x| !is_left_out(*x));
            let bits = numbers.map(|x| format.from_f64(x, NearestEven).unwrap() as u8);
            assert_eq!(
                crc32fast::hash(&bits.collect::<Vec<_>>()),
                expected,
                "{name} of {wide}"
            );
        }
    }
}

#[test]
fn all_patterns_round_trip_through_f64() {
    for (name, patterns, ..) in SMALL {
        for bits in 0..patterns {
            let number = format(name).to_f64(bits);
            let back = format(name).from_f64(number, TowardsZero);
            let is_same = back == Some(bits)
                || back.is_some_and(|back| number.is_nan() && format(name).to_f64(back).is_nan());
            assert!(is_same, "{name} {bits:#x} {number}");
        }
    }
}

#[test]
fn formats_have_these_limits_and_nans() {
    for (name, size, largest, nan, infinity) in [
        (
            "bfloat16",
            2,
            3.3895313892515355e38,
            Some(0x7fc0),
            Some(0x7f80),
        ),
        ("float16", 2, 65504.0, Some(0x7e00), Some(0x7c00)),
        (
            "float32",
            4,
            f64::from(f32::MAX),
            Some(0x7fc0_0000),
            Some(0x7f80_0000),
        ),
        (
            "float64",
            8,
            f64::MAX,
            Some(0x7ff8 << 48),
            Some(0x7ff0 << 48),
        ),
        ("float8_e3m4", 1, 15.5, Some(0x78), Some(0x70)),
        ("float8_e4m3", 1, 240.0, Some(0x7c), Some(0x78)),
        ("float8_e4m3b11fnuz", 1, 30.0, Some(0x80), None),
        ("float8_e4m3fn", 1, 448.0, Some(0x7f), None),
        ("float8_e4m3fnuz", 1, 240.0, Some(0x80), None),
        ("float8_e5m2", 1, 57344.0, Some(0x7e), Some(0x7c)),
        ("float8_e5m2fnuz", 1, 57344.0, Some(0x80), None),
        ("float8_e8m0fnu", 1, 2f64.powi(127), Some(0xff), None),
        ("float6_e2m3fn", 1, 7.5, None, None),
        ("float6_e3m2fn", 1, 28.0, None, None),
        ("float4_e2m1fn", 1, 6.0, None, None),
    ] {
        let format = format(name);
        assert_eq!(
            (format.size(), format.nan(), format.infinity()),
            (size, nan, infinity),
            "{name}"
        );
        assert_eq!(format.to_f64(format.largest()), largest, "{name}");
        let smallest = if format.is_signed {
            -largest
        } else {
            2f64.powi(-127)
        };
        assert_eq!(format.to_f64(format.smallest()), smallest, "{name}");
        assert_eq!(format.from_f64(f64::NAN, NearestEven), nan, "{name}");
    }
    assert_eq!(FloatFormat::parse("float128"), None);
    // bits above the width are ignored
    assert_eq!(format("float4_e2m1fn").to_f64(0xf1), 0.5);
}

#[test]
fn numbers_are_rounded_by_mode() {
    let f32_of = |x: f64, mode| f32::from_bits(format("float32").from_f64(x, mode).unwrap() as u32);
    let next = 1.0 + f32::EPSILON;
    let half = 1.0 + f64::from(f32::EPSILON) / 2.0;
    for (mode, positive, negative) in [
        (NearestEven, 1.0, -1.0),
        (NearestAway, next, -next),
        (TowardsZero, 1.0, -1.0),
        (TowardsPositive, next, -1.0),
        (TowardsNegative, 1.0, -next),
    ] {
        assert_eq!(
            (f32_of(half, mode), f32_of(-half, mode)),
            (positive, negative),
            "{mode:?}"
        );
    }
    assert_eq!(f32_of(1e-300, TowardsPositive).to_bits(), 1);
    assert_eq!(f32_of(-1e-300, NearestEven).to_bits(), 1 << 31);
    assert_eq!(
        f32_of(f64::from(f32::MAX) * 1.00000002, TowardsZero),
        f32::MAX
    );
    assert_eq!(f32_of(1e39, NearestEven), f32::INFINITY);
}

proptest! {
    #[test]
    fn conversions_match_the_processor(bits: u64, narrow: u32, integer: i64) {
        let wide = f64::from_bits(bits);
        let single = f32::from_bits(narrow);
        prop_assume!(!wide.is_nan() && !single.is_nan());
        prop_assert_eq!(FLOAT64.to_f64(bits).to_bits(), bits);
        prop_assert_eq!(FLOAT64.from_f64(wide, TowardsNegative), Some(bits));
        prop_assert_eq!(format("float32").from_f64(wide, NearestEven), Some((wide as f32).to_bits().into()));
        prop_assert_eq!(format("float32").to_f64(narrow.into()).to_bits(), f64::from(single).to_bits());
        let number = Dyadic { is_negative: integer < 0, magnitude: integer.unsigned_abs(), exponent: 0 };
        prop_assert_eq!(format("float32").round(number, NearestEven), Some((integer as f32).to_bits().into()));
        prop_assert_eq!(format("float64").round(number, NearestEven), Some((integer as f64).to_bits()));
    }

    #[test]
    fn rounding_brackets_the_number(x in -65504.0..65504.0) {
        for name in ["float16", "bfloat16"] {
            let to = |mode| format(name).to_f64(format(name).from_f64(x, mode).unwrap());
            prop_assert!(to(TowardsNegative) <= x && x <= to(TowardsPositive));
            prop_assert!(to(TowardsZero).abs() <= x.abs());
            let nearest = to(NearestEven);
            prop_assert!(nearest == to(TowardsNegative) || nearest == to(TowardsPositive));
        }
    }
}
