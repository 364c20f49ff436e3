use super::super::describe::attribute_nodata;
use super::super::{PartContent, testing};
use super::*;
use std::sync::Arc;
use zarrfs_base::json;
use zarrfs_base::key::Key;

fn described(dtype: &str, shape: &[u64], values: &[u8], attributes: &str) -> Described {
    let attributes = json::parse_object(attributes.as_bytes()).unwrap();
    let metadata = testing::metadata(dtype, shape);
    let number = |name: &str| json::float(attributes.get(name)?);
    Described {
        nodata: attribute_nodata(&metadata, &attributes),
        units: attributes
            .get("units")
            .and_then(json::text)
            .map(str::to_string),
        scale: number("scale_factor"),
        offset: number("add_offset"),
        attributes: Arc::new(attributes),
        values: Some(values.into()),
        ..Described::of_metadata(&Key::root(), &metadata)
    }
}

fn whole(array: &Described) -> String {
    assert!(fits(&array.metadata));
    let mut bytes = Vec::new();
    for part in file(array).unwrap().parts() {
        let PartContent::Bytes(part) = &part.content else {
            panic!()
        };
        bytes.extend_from_slice(part);
    }
    String::from_utf8(bytes).unwrap()
}

fn text(dtype: &str, shape: &[u64], values: &[u8]) -> String {
    whole(&described(dtype, shape, values, "{}"))
}

fn line<const N: usize>(dtype: &str, values: &[[u8; N]]) -> String {
    text(
        &format!("{dtype:?}"),
        &[values.len() as u64],
        values.as_flattened(),
    )
}

#[test]
fn items_rows_and_planes() {
    assert_eq!(text("\"|i1\"", &[], &[0xff]), "-1\n");
    assert_eq!(text("\"|u1\"", &[3], &[0, 7, 255]), "0\n7\n255\n");
    assert_eq!(
        text("\"|u1\"", &[2, 3], &[1, 2, 3, 4, 5, 6]),
        "1 2 3\n4 5 6\n"
    );
    assert_eq!(
        text("\"|u1\"", &[2, 2, 2], &[1, 2, 3, 4, 5, 6, 7, 8]),
        "1 2\n3 4\n\n5 6\n7 8\n"
    );
    assert_eq!(
        text("\"|u1\"", &[2, 1, 2, 1], &[1, 2, 3, 4]),
        "1\n2\n\n\n3\n4\n"
    );
    assert_eq!(
        text("\"|u1\"", &[2, 2, 1, 1], &[1, 2, 3, 4]),
        "1\n\n2\n\n\n3\n\n4\n"
    );
    assert_eq!(text("\"|u1\"", &[3, 0], &[]), "");
}

#[test]
fn numbers_have_the_fewest_digits() {
    let f8 = [
        0.1,
        -0.0,
        1e16,
        123_456_789.25,
        1e-5,
        9.9e-6,
        5e-324,
        f64::MAX,
        f64::NAN,
        f64::NEG_INFINITY,
    ];
    let expected =
        "0.1\n-0\n1e16\n123456789.25\n0.00001\n9.9e-6\n5e-324\n1.7976931348623157e308\nnan\n-inf\n";
    assert_eq!(line(">f8", &f8.map(f64::to_be_bytes)), expected);
    let f4 = [
        0.1f32,
        16_777_216.0,
        1e-45,
        f32::MAX,
        f32::NAN,
        f32::INFINITY,
    ];
    assert_eq!(
        line("<f4", &f4.map(f32::to_le_bytes)),
        "0.1\n16777216\n1e-45\n3.4028235e38\nnan\ninf\n"
    );
    let f2 = [0x2e66u16, 0x3555, 0x7bff, 0x0001, 0x7e00, 0xfc00, 0x8000];
    assert_eq!(
        line("<f2", &f2.map(u16::to_le_bytes)),
        "0.1\n0.3333\n65500\n6e-8\nnan\n-inf\n-0\n"
    );
    assert_eq!(
        line(">i8", &[i64::MIN, i64::MAX].map(i64::to_be_bytes)),
        "-9223372036854775808\n9223372036854775807\n"
    );
    assert_eq!(
        line("<u8", &[u64::MAX.to_le_bytes()]),
        "18446744073709551615\n"
    );
    assert_eq!(line("|b1", &[[0], [1], [7]]), "0\n1\n1\n");
    let complex = [1.5f32, -0.25].map(f32::to_le_bytes);
    assert_eq!(text("\"<c8\"", &[1], complex.as_flattened()), "1.5 -0.25\n");
}

#[test]
fn every_half_float_reads_back_equal() {
    let all: Vec<[u8; 2]> = (0..=u16::MAX).map(u16::to_le_bytes).collect();
    for (bits, text) in (0..=u16::MAX).zip(line("<f2", &all).lines()) {
        let read = half::f16::from_f64(text.parse::<f64>().unwrap());
        let stored = half::f16::from_bits(bits);
        assert!(
            read.to_bits() == bits || stored.is_nan() && read.is_nan(),
            "{bits:#x}: {text}"
        );
    }
}

#[test]
fn strings_are_words() {
    let padded = |text: &[u8]| {
        let mut bytes = [0; 8];
        bytes[..text.len()].copy_from_slice(text);
        bytes
    };
    let words: [&[u8]; 7] = [
        b"abc",
        b"",
        b"a b",
        b"a\"b\\",
        b"\x1b[2J\n",
        b"\xc3\xa9\\",
        b"a\xffb",
    ];
    let expected = "abc\n\"\"\n\"a b\"\n\"a\\\"b\\\\\"\n\"\\u001b[2J\\n\"\né\\\n\"a\\xffb\"\n";
    assert_eq!(line("|S8", &words.map(padded)), expected);
    let codes = [u32::from('é'), 0x1f52c, 0].map(u32::to_be_bytes);
    assert_eq!(text("\">U3\"", &[1], codes.as_flattened()), "é\u{1f52c}\n");
    let codes = [u32::from('a'), 0xd800, u32::from('"')].map(u32::to_le_bytes);
    assert_eq!(
        text("\"<U3\"", &[1], codes.as_flattened()),
        "\"a\\U0000d800\\\"\"\n"
    );
    assert_eq!(line("|V3", &[[0, 0xab, 1]]), "00ab01\n");
}

#[test]
fn a_column_for_each_element_of_a_struct() {
    let dtype = r#"[["a","<i2"],["b",[["c","|S1"],["d",">f4"]],[2]],["t","<M8[D]"]]"#;
    let mut item = vec![1, 0];
    for (letter, float) in [(b'x', 0.5f32), (b' ', -2.0)] {
        item.push(letter);
        item.extend(float.to_be_bytes());
    }
    item.extend(365i64.to_le_bytes());
    let columns = "1 x 0.5 \" \" -2 1971-01-01";
    assert_eq!(
        text(dtype, &[2], &item.repeat(2)),
        format!("{columns}\n{columns}\n")
    );
    assert_eq!(
        text(dtype, &[1, 2], &item.repeat(2)),
        format!("{columns} {columns}\n")
    );
}

/// What `numpy.datetime_as_string` prints.
#[test]
fn dates_of_numpy() {
    for (unit, number, expected) in [
        ("Y", 30, "2000"),
        ("Y", -1972, "-002"),
        ("M", -1, "1969-12"),
        ("W", 1, "1970-01-08"),
        ("D", 11_016, "2000-02-29"),
        ("D", -719_529, "-001-12-31"),
        ("h", -1, "1969-12-31T23"),
        ("m", 61, "1970-01-01T01:01"),
        ("s", -1, "1969-12-31T23:59:59"),
        ("25s", 4, "1970-01-01T00:01:40"),
        ("ms", 1500, "1970-01-01T00:00:01.500"),
        ("us", 1, "1970-01-01T00:00:00.000001"),
        ("ns", -1, "1969-12-31T23:59:59.999999999"),
        ("as", 1, "1970-01-01T00:00:00.000000000000000001"),
        ("s", i64::MAX, "292277026596-12-04T15:30:07"),
        ("s", i64::MIN, "NaT"),
    ] {
        let number: i64 = number;
        assert_eq!(
            line(&format!(">M8[{unit}]"), &[number.to_be_bytes()]),
            format!("{expected}\n"),
            "{unit}"
        );
    }
    for unit in [
        "", "[Y]", "[M]", "[W]", "[D]", "[h]", "[m]", "[s]", "[25s]", "[ms]", "[us]", "[ns]",
        "[ps]", "[fs]", "[as]",
    ] {
        let values = [-5, i64::MIN].map(i64::to_be_bytes);
        assert_eq!(line(&format!(">m8{unit}"), &values), "-5\nNaT\n", "{unit}");
        let dates = line(&format!(">M8{unit}"), &values);
        assert!(dates.ends_with("\nNaT\n"), "{unit}: {dates}");
    }
}

#[test]
fn times_of_cf() {
    let times = |dtype: &str, values: &[u8], attributes: &str| {
        let count = testing::metadata(&format!("{dtype:?}"), &[1]).dtype.size();
        let array = described(
            &format!("{dtype:?}"),
            &[(values.len() / count) as u64],
            values,
            attributes,
        );
        whole(&array).trim_end().replace('\n', " ")
    };
    let days = r#"{"units":"days since 2000-01-01","_FillValue":-1}"#;
    assert_eq!(
        times("|i1", &[0, 31, 255], days),
        "2000-01-01T00:00:00 2000-02-01T00:00:00 NaT"
    );
    let halves = [0.5f64, f64::NAN].map(f64::to_le_bytes);
    let seconds = r#"{"units":"seconds since 2000-01-01 06:00","calendar":"360_day"}"#;
    assert_eq!(
        times("<f8", halves.as_flattened(), seconds),
        "2000-01-01T06:00:00.500000 NaT"
    );
    let with_nat = [1, i64::MIN].map(i64::to_le_bytes);
    assert_eq!(
        times("<i8", with_nat.as_flattened(), days),
        "2000-01-02T00:00:00 NaT"
    );
    let packed = r#"{"units":"days since 2000-01-01","scale_factor":0.5,"add_offset":1}"#;
    assert_eq!(times("|u1", &[3], packed), "2000-01-03T12:00:00");
    // one date that cannot be written leaves all of them numbers
    let far = [0i64, i64::MAX].map(i64::to_le_bytes);
    assert_eq!(
        times("<i8", far.as_flattened(), days),
        "0 9223372036854775807"
    );
    // xarray stores the NaT of a duration as that of a date
    for units in ["days", "nanoseconds", "days since 2000-01-01"] {
        let attributes = format!(r#"{{"units":"{units}","calendar":"unknown"}}"#);
        let nat = i64::MIN.to_le_bytes();
        assert_eq!(times("<i8", &nat, &attributes), "NaT", "{units}");
        assert_eq!(times("<i4", &nat[4..], &attributes), "-2147483648");
    }
    let nat = i64::MIN.to_le_bytes();
    assert_eq!(times("<i8", &nat, r#"{"units":"m"}"#), i64::MIN.to_string());
    for attributes in [
        r#"{"units":"days"}"#,
        r#"{"units":"months since 2000-01-01"}"#,
        r#"{"units":"days since 2000-01-01","calendar":7}"#,
        r#"{"units":"days since 2000-01-01","calendar":"unknown"}"#,
    ] {
        assert_eq!(times("|u1", &[3], attributes), "3", "{attributes}");
    }
    // strings are no times
    assert_eq!(times("|S1", b"1", days), "1");
}

#[test]
fn large_and_unknown_items_have_no_text() {
    for (dtype, shape) in [
        ("\"<f8\"", &[(1u64 << 17) + 1][..]),
        ("\"<f16\"", &[1][..]),
        ("\"<c32\"", &[1][..]),
        ("\"|S0\"", &[1 << 40][..]),
        (r#"[["a","<f16"]]"#, &[1][..]),
    ] {
        assert!(!fits(&testing::metadata(dtype, shape)), "{dtype}");
    }
    let most = described("\"<f8\"", &[1 << 17], &[0x11; 1 << 20], "{}");
    let parts = file(&most).unwrap();
    assert!(parts.parts().len() > 4 && parts.size() < 4 << 20);
    assert!(file(&testing::plain("<f8", &[1])).is_err());
}
