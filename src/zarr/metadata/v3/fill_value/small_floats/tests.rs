use super::*;

/// Data types with a hash of all numbers and the bits of 1, 1/3 and 1.55, as ml_dtypes 0.6 has them.
const FORMATS: [(&str, u64, [u64; 3]); 11] = [
    ("float4_e2m1fn", 0x0bdefd91874bcc70, [0x02, 0x01, 0x03]),
    ("float6_e2m3fn", 0x188ed05416780a50, [0x08, 0x03, 0x0c]),
    ("float6_e3m2fn", 0x31e631ce41c23260, [0x0c, 0x05, 0x0e]),
    ("float8_e3m4", 0x06ef94db4488f100, [0x30, 0x15, 0x39]),
    ("float8_e4m3", 0x5261cc52b3cdfb10, [0x38, 0x2b, 0x3c]),
    ("float8_e4m3b11fnuz", 0x62cafb3e1338b6f8, [0x58, 0x4b, 0x5c]),
    ("float8_e4m3fn", 0xdb72850030f24844, [0x38, 0x2b, 0x3c]),
    ("float8_e4m3fnuz", 0xf6e6e87919bda8d8, [0x40, 0x33, 0x44]),
    ("float8_e5m2", 0x7494343e5af481a0, [0x3c, 0x35, 0x3e]),
    ("float8_e5m2fnuz", 0x60e635ac1ba10be8, [0x40, 0x39, 0x42]),
    ("float8_e8m0fnu", 0x6a5176af34aa0008, [0x7f, 0x7d, 0x80]),
];

#[test]
fn numbers_are_those_of_ml_dtypes() {
    for (name, expected, rounded) in FORMATS {
        let codes = 1u64 << name[5..6].parse::<u32>().unwrap();
        let hash = (0..codes).fold(0u64, |hash, bits| {
            let number = number(bits, name).unwrap();
            // numbers of these types have no more bits; the sign of a NaN does not count
            let upper = if number.is_nan() { 0x7ff8 } else { number.to_bits() >> 48 };
            hash.wrapping_mul(0x100_0000_01b3).wrapping_add(upper)
        });
        assert_eq!(hash, expected, "{name}");
        assert_eq!([1.0, 1.0 / 3.0, 1.55].map(|number| bits(number, name).unwrap()), rounded, "{name}");
        assert_eq!(number(codes, name), None, "{name}");
        for code in 0..codes {
            let number = number(code, name).unwrap();
            assert!(number.is_nan() || bits(number, name) == Some(code), "{name} {code}");
        }
    }
}

#[test]
fn numbers_between_two_become_the_even_one() {
    let of = |number| bits(number, "float8_e4m3");
    // numbers of ml_dtypes
    assert_eq!([of(0.0029296875), of(1.5625), of(232.0), of(-1.0 / 3.0)], [2, 60, 118, 171].map(Some));
    assert_eq!([of(0.0), of(-0.0), of(1e-300), of(-1e-300)], [0, 0x80, 0, 0x80].map(Some));
}

#[test]
fn words_and_numbers_that_a_type_lacks_have_no_bits() {
    let words = |name| [f64::NAN, f64::INFINITY, f64::NEG_INFINITY].map(|number| bits(number, name));
    assert_eq!(words("float8_e3m4"), [Some(0x78), Some(0x70), Some(0xf0)]);
    assert_eq!(words("float8_e4m3"), [Some(0x7c), Some(0x78), Some(0xf8)]);
    assert_eq!(words("float8_e4m3fn"), [Some(0x7f), None, None]);
    assert_eq!(words("float8_e5m2"), [Some(0x7e), Some(0x7c), Some(0xfc)]);
    assert_eq!(words("float8_e5m2fnuz"), [Some(0x80), None, None]);
    assert_eq!(words("float8_e8m0fnu"), [Some(0xff), None, None]);
    assert_eq!(words("float4_e2m1fn"), [None; 3]);
    assert_eq!((bits(-0.0, "float8_e4m3fnuz"), bits(0.0, "float8_e4m3fnuz")), (Some(0), Some(0)));
    for (name, number) in [
        ("float4_e2m1fn", 7.5),
        ("float8_e4m3", 248.0),
        ("float8_e4m3fn", -500.0),
        ("float8_e8m0fnu", 0.0),
        ("float8_e8m0fnu", -1.0),
        ("float32", 1.0),
    ] {
        assert_eq!(bits(number, name), None, "{name} {number}");
    }
}
