use super::super::testing;
use super::*;
use proptest::prelude::*;

/// Returns the packing of an array of this dtype, with these attributes and this fill value.
fn packing(dtype: &str, attributes: &str, fill: Option<&[u8]>) -> Option<Packing> {
    let metadata = ArrayMetadata {
        fill: fill.map(<[u8]>::to_vec),
        ..testing::metadata(&format!("{dtype:?}"), &[4])
    };
    let attributes = json::parse_object(attributes.as_bytes()).unwrap();
    let fill_is_missing = attributes.contains_key("_ARRAY_DIMENSIONS");
    Packing::of(&metadata, &attributes, fill_is_missing)
}

/// Returns the values of items, as doubles.
fn values(packing: &Packing, items: &[u8]) -> Vec<f64> {
    values_of(packing, &packing.unpack(items))
}

fn values_of(packing: &Packing, bytes: &[u8]) -> Vec<f64> {
    match packing.shown_size() {
        4 => bytes
            .as_chunks()
            .0
            .iter()
            .map(|value| f32::from_le_bytes(*value).into())
            .collect(),
        _ => bytes
            .as_chunks()
            .0
            .iter()
            .map(|value| f64::from_le_bytes(*value))
            .collect(),
    }
}

fn bytes(packing: &Packing, values: &[f64]) -> Vec<u8> {
    match packing.shown_size() {
        4 => values
            .iter()
            .flat_map(|value| (*value as f32).to_le_bytes())
            .collect(),
        _ => values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect(),
    }
}

const NAN: f64 = f64::NAN;

/// A dtype, items, attributes, and the size and values that xarray makes of them.
type Case<'a> = (&'a str, &'a [u8], &'a str, usize, [f64; 4]);

/// What xarray 2024.9 and 2026.9 make of the same items: `decode_cf_variable`.
#[test]
fn values_are_those_of_xarray() {
    let i2: Vec<u8> = [1i16, 2, 3, -1]
        .iter()
        .flat_map(|n| n.to_le_bytes())
        .collect();
    let f4: Vec<u8> = [1e20f32, 1.0, 0.1, -9999.0]
        .iter()
        .flat_map(|x| x.to_le_bytes())
        .collect();
    let tenth = f64::from(0.1f32);
    let large = f64::from(1e20f32);
    let cases: [Case; 18] = [
        (
            "<i2",
            &i2,
            r#"{"scale_factor":0.1}"#,
            8,
            [0.1, 0.2, 3.0 * 0.1, -0.1],
        ),
        (
            "<i2",
            &i2,
            r#"{"scale_factor":10}"#,
            8,
            [10.0, 20.0, 30.0, -10.0],
        ),
        (
            "<i2",
            &i2,
            r#"{"add_offset":0.5,"scale_factor":[0.5]}"#,
            8,
            [1.0, 1.5, 2.0, 0.0],
        ),
        (
            "<i2",
            &i2,
            r#"{"add_offset":100}"#,
            8,
            [101.0, 102.0, 103.0, 99.0],
        ),
        (
            "<i2",
            &i2,
            r#"{"_FillValue":2.0}"#,
            4,
            [1.0, NAN, 3.0, -1.0],
        ),
        (
            "<i2",
            &i2,
            r#"{"_FillValue":1.5}"#,
            4,
            [1.0, 2.0, 3.0, -1.0],
        ),
        (
            "<i2",
            &i2,
            r#"{"_FillValue":65535}"#,
            4,
            [1.0, 2.0, 3.0, -1.0],
        ),
        (
            "<i2",
            &i2,
            r#"{"missing_value":[1,3]}"#,
            4,
            [NAN, 2.0, NAN, -1.0],
        ),
        (
            "<i2",
            &i2,
            r#"{"missing_value":1,"_FillValue":-1,"scale_factor":0.5}"#,
            8,
            [NAN, 1.0, 1.5, NAN],
        ),
        (
            "<i2",
            &i2,
            r#"{"_FillValue":NaN,"scale_factor":0.5}"#,
            8,
            [0.5, 1.0, 1.5, -0.5],
        ),
        (
            "<i2",
            &i2,
            r#"{"_Unsigned":"true","_FillValue":-1}"#,
            4,
            [1.0, 2.0, 3.0, NAN],
        ),
        (
            "<i2",
            &i2,
            r#"{"_Unsigned":"true","missing_value":-1}"#,
            4,
            [1.0, 2.0, 3.0, 65535.0],
        ),
        (
            "<u2",
            &i2,
            r#"{"_Unsigned":"false","scale_factor":0.5}"#,
            8,
            [0.5, 1.0, 1.5, -0.5],
        ),
        (
            "<u2",
            &i2,
            r#"{"_Unsigned":"false","_FillValue":-1}"#,
            4,
            [1.0, 2.0, 3.0, NAN],
        ),
        (
            "<f4",
            &f4,
            r#"{"missing_value":1e20}"#,
            4,
            [large, 1.0, tenth, -9999.0],
        ),
        (
            "<f4",
            &f4,
            r#"{"missing_value":100000002004087734272.0}"#,
            4,
            [NAN, 1.0, tenth, -9999.0],
        ),
        (
            "<f4",
            &f4,
            r#"{"_FillValue":-9999}"#,
            4,
            [large, 1.0, tenth, NAN],
        ),
        (
            "<f4",
            &f4,
            r#"{"_FillValue":NaN,"scale_factor":2}"#,
            8,
            [2.0 * large, 2.0, 2.0 * tenth, -19998.0],
        ),
    ];
    for (dtype, items, attributes, size, wanted) in cases {
        let packing = packing(dtype, attributes, None).unwrap();
        assert_eq!(packing.shown_size(), size, "{dtype} {attributes}");
        assert_eq!(
            bytes(&packing, &values(&packing, items)),
            bytes(&packing, &wanted),
            "{dtype} {attributes}"
        );
    }
}

#[test]
fn the_type_of_the_values_is_that_of_xarray() {
    for (dtype, size) in [
        ("|i1", 4),
        ("|u1", 4),
        ("<u2", 4),
        ("<f2", 4),
        (">f4", 4),
        ("<i4", 8),
        ("<u8", 8),
        ("<f8", 8),
    ] {
        assert_eq!(
            packing(dtype, r#"{"_FillValue":1}"#, None)
                .unwrap()
                .shown_size(),
            size,
            "{dtype}"
        );
        assert_eq!(
            packing(dtype, r#"{"_FillValue":1,"add_offset":0}"#, None)
                .unwrap()
                .shown_size(),
            8,
            "{dtype}"
        );
    }
}

#[test]
fn arrays_of_plain_values_are_not_packed() {
    for (dtype, attributes) in [
        ("<i2", "{}"),
        ("<i2", r#"{"_Unsigned":"true","units":"K"}"#),
        ("<i2", r#"{"_FillValue":NaN}"#),
        (
            "<i2",
            r#"{"_FillValue":"none","scale_factor":"0.1","add_offset":null}"#,
        ),
        ("<f4", r#"{"_FillValue":"none","scale_factor":NaN}"#),
        ("<M8[s]", r#"{"_FillValue":0}"#),
        ("<c8", r#"{"scale_factor":2}"#),
        ("|b1", r#"{"_FillValue":1}"#),
        ("|S2", r#"{"_FillValue":"x"}"#),
    ] {
        assert_eq!(
            packing(dtype, attributes, None),
            None,
            "{dtype} {attributes}"
        );
    }
    let many = format!(r#"{{"missing_value":{:?}}}"#, vec![1; MAX_MISSING + 1]);
    assert_eq!(packing("<i2", &many, None), None);
}

/// xarray takes the fill value of a v2 array for `_FillValue`, whatever the attribute says, and
/// that of v3 for data.
#[test]
fn fill_values_of_xarray_are_missing() {
    let names = r#"{"_ARRAY_DIMENSIONS":["x"],"_FillValue":7}"#;
    let of_fill = packing(">i2", names, Some(&[1, 2])).unwrap();
    assert_eq!(
        of_fill.unpack(&[1, 2, 0, 7]),
        [NAN as f32, 7.0].map(f32::to_le_bytes).concat()
    );
    assert_eq!(
        packing("<i2", "{}", Some(&[1])),
        None,
        "without names of dimensions"
    );
    let of_attribute = packing("<i2", names, None).unwrap();
    assert!(values(&of_attribute, &[7, 0])[0].is_nan());
    let zero = packing("<i2", r#"{"_ARRAY_DIMENSIONS":["x"]}"#, Some(&[])).unwrap();
    assert!(values(&zero, &[0, 0])[0].is_nan() && !zero.shows_zeros(&[]));
}

#[test]
fn values_without_an_item_are_refused() {
    let of = |dtype: &str, attributes: &str| packing(dtype, attributes, None).unwrap();
    let scaled = of(
        "<i2",
        r#"{"scale_factor":0.5,"add_offset":10,"_FillValue":-32768,"missing_value":5}"#,
    );
    let unscaled = of("|u1", r#"{"_FillValue":255}"#);
    let none = of("<i2", r#"{"scale_factor":2}"#);
    let float = of("<f2", r#"{"_FillValue":-1}"#);
    let zero = of("<i4", r#"{"scale_factor":0,"add_offset":1,"_FillValue":9}"#);
    let cases: [(&Packing, &[f64]); 6] = [
        (
            &scaled,
            &[16394.0, -16374.0, 12.5, 12.6, f64::INFINITY, 1e300],
        ),
        (&unscaled, &[255.0, 254.6, 255.5, -0.6, f64::NEG_INFINITY]),
        (&none, &[NAN, 65535.0, -65537.1]),
        (&float, &[-1.0, 65520.0, -1e9]),
        (&zero, &[1.0, 2.0]),
        (
            &of("<i8", r#"{"_FillValue":1}"#),
            &[9223372036854775808.0, 1.0],
        ),
    ];
    for (packing, refused) in cases {
        for value in refused {
            let e = packing.pack(&bytes(packing, &[0.25, *value])).unwrap_err();
            assert_eq!(e.errno(), libc::EINVAL, "{value} {packing:?}");
        }
    }
}

#[test]
fn values_become_the_nearest_items() {
    let scaled = packing(
        ">i2",
        r#"{"scale_factor":0.5,"add_offset":10,"_FillValue":-32768}"#,
        None,
    )
    .unwrap();
    let items = scaled
        .pack(&bytes(
            &scaled,
            &[10.0, 10.25, 10.75, 16393.5, -16373.5, NAN],
        ))
        .unwrap();
    // halves go to the even item, as with numpy.around
    assert_eq!(
        items,
        [0i16, 0, 2, 32767, -32767, -32768]
            .map(i16::to_be_bytes)
            .concat()
    );
    let unsigned = packing("|i1", r#"{"_Unsigned":"true","_FillValue":-1}"#, None).unwrap();
    assert_eq!(
        unsigned
            .pack(&bytes(&unsigned, &[0.0, 200.4, NAN]))
            .unwrap(),
        [0, 200, 255]
    );
    let first = packing("|i1", r#"{"missing_value":[300, 3, 4]}"#, None).unwrap();
    assert_eq!(
        first.pack(&bytes(&first, &[NAN])).unwrap(),
        [3],
        "the first one that an item can hold"
    );
    let float = packing("<f4", r#"{"_FillValue":0.1}"#, None).unwrap();
    assert_eq!(
        float.pack(&bytes(&float, &[NAN, 0.1])).unwrap(),
        [f32::NAN, 0.1].map(f32::to_le_bytes).concat()
    );
    let large = packing("<i8", r#"{"_FillValue":9223372036854775807}"#, None).unwrap();
    assert_eq!(
        large.pack(&NAN.to_le_bytes()).unwrap(),
        i64::MAX.to_le_bytes()
    );
}

#[test]
fn items_that_read_as_zeros() {
    let zeros =
        |attributes: &str, item: &[u8]| packing("<i2", attributes, None).unwrap().shows_zeros(item);
    assert!(zeros(r#"{"scale_factor":0.1}"#, &[]));
    assert!(zeros(r#"{"scale_factor":0.5,"add_offset":-1}"#, &[2]));
    assert!(!zeros(r#"{"scale_factor":0.5,"add_offset":-1}"#, &[]));
    assert!(!zeros(r#"{"scale_factor":-1}"#, &[]), "negative zero");
    assert!(!zeros(r#"{"scale_factor":2,"_FillValue":0}"#, &[]));
}

proptest! {
    /// Values that were read are stored as the items they were read from, and any value as the
    /// nearest item.
    #[test]
    fn values_round_trip(
        dtype in prop::sample::select(vec!["|i1", "|u1", "<i2", ">i2", "<u2", ">i4", "<u4", "<f2", ">f4", "<f8"]),
        scale in prop::option::of(prop_oneof![-10.0..10.0f64, 1e-9..1e-3f64]),
        offset in prop::option::of(-1000.0..1000.0f64),
        fill in prop::option::of(-100i32..100),
        items in prop::collection::vec(any::<u8>(), 64),
        at in 0.0..1.0f64,
    ) {
        let mut attributes = vec![];
        attributes.extend(scale.map(|scale| format!(r#""scale_factor":{scale:?}"#)));
        attributes.extend(offset.map(|offset| format!(r#""add_offset":{offset:?}"#)));
        attributes.extend(fill.map(|fill| format!(r#""_FillValue":{fill}"#)));
        let Some(packing) = packing(dtype, &format!("{{{}}}", attributes.join(",")), None) else { return Ok(()) };
        let shown = packing.unpack(&items);
        prop_assert_eq!(shown.len() / packing.shown_size(), items.len() / packing.stored_size());
        let is_float = dtype.contains('f');
        if let Ok(stored) = packing.pack(&shown) {
            // NaN and rounded floats have several spellings
            prop_assert_eq!(packing.unpack(&stored).len(), shown.len());
            prop_assert!(is_float || stored == items);
        } else {
            prop_assert!(is_float || shown.chunks(packing.shown_size()).any(|v| v[v.len() - 1] & 0x7f == 0x7f));
        }
        let low = packing.value(-100.0);
        let high = packing.value(100.0);
        let value = if low.is_finite() && high.is_finite() { low + (high - low) * at } else { at };
        let value = values_of(&packing, &bytes(&packing, &[value]))[0];
        if let Ok(stored) = packing.pack(&bytes(&packing, &[value])) {
            let back = values(&packing, &stored)[0];
            // a float is rounded before the offset is added
            let size = value.abs() + offset.unwrap_or(0.0).abs();
            let step = if is_float { size.max(1e-3) * 1e-2 } else { scale.unwrap_or(1.0).abs() };
            let slack = 1e-12 * size;
            prop_assert!((back - value).abs() <= step / 2.0 + slack, "{} became {}", value, back);
        }
    }
}
