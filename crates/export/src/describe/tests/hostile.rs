//! Documents that break the conventions count as missing.

use super::*;

#[test]
fn attributes_may_have_any_type() {
    let values = [
        "null",
        "true",
        "7",
        "-1e400",
        "\"\"",
        "\"x\"",
        "[]",
        "[[]]",
        "[1,2]",
        "[\"a\",\"b\"]",
        "{}",
        "{\"a\":[{}]}",
        "NaN",
    ];
    let names = [
        "_ARRAY_DIMENSIONS",
        "_nczarr_array",
        "multiscales",
        "_CRS",
        "grid_mapping",
        "_FillValue",
        "missing_value",
        "scale_factor",
        "add_offset",
        "units",
        "long_name",
        "axis",
        "standard_name",
        "crs_wkt",
        "GeoTransform",
        "coordinates",
        "proj:code",
        "proj:epsg",
        "proj:wkt2",
        "proj:transform",
        "spatial:bbox",
        "spatial:dimensions",
        "spatial:shape",
        "spatial:transform",
        "spatial:transform_type",
        "stac_discovery",
    ];
    for value in values {
        let all: Vec<String> = names
            .iter()
            .map(|name| format!("\"{name}\":{value}"))
            .collect();
        let all = format!("{{{}}}", all.join(","));
        let case = case()
            .value(".zattrs", &all)
            .array("v", "<f4", &[2, 3], &all)
            .array("e", "<f4", &[2], &all)
            .array("x", "<f4", &[], &all);
        let v = case.describe("v");
        assert_eq!(
            (v.axes.len(), &v.crs, places(&v)),
            (2, &None, vec![Coordinates::Unknown; 2]),
            "{value}"
        );
    }
}

#[test]
fn malformed_places_are_ignored() {
    let named = r#""spatial:dimensions":["y","x"]"#;
    for place in [
        r#""spatial:transform":[1,0,0,0,0,0]"#,
        r#""spatial:transform":[1,0,0,0,-1]"#,
        r#""spatial:transform":[1,0,0,0,-1,1e400]"#,
        r#""spatial:transform":[1,0,0,0,-1,0],"spatial:transform_type":"rpc""#,
        r#""spatial:transform":[1,0,0,0,-1,0],"spatial:shape":[3,2]"#,
        r#""spatial:bbox":[0,0,0,1]"#,
        r#""spatial:bbox":[0,0,1]"#,
        r#""proj:transform":[1,0,0,0,-1,0,0,0,1],"spatial:dimensions":["y"]"#,
        r#""multiscales":{"layout":[{"asset":"../g/v"},{"asset":7},7]}"#,
    ] {
        let of_array = r#"{"_ARRAY_DIMENSIONS":["y","x"]}"#;
        let case = case()
            .value("g/.zattrs", &format!("{{{named},{place}}}"))
            .array("g/v", "<f4", &[2, 3], of_array);
        let v = case.describe("g/v");
        let has_place = place.contains("proj:transform");
        assert_eq!(
            v.axes
                .iter()
                .all(|axis| axis.coordinates == Coordinates::Unknown),
            !has_place,
            "{place}"
        );
        assert_eq!((v.crs, v.geotransform, v.overviews.len()), (None, None, 0));
    }
    let deep = "A[".repeat(10_000);
    let case = case().array(
        "v",
        "<f4",
        &[2, 3],
        &format!(
            r#"{{"_ARRAY_DIMENSIONS":["y","x"],"proj:wkt2":"PROJCRS[{deep}","proj:code":"EPSG:0"}}"#
        ),
    );
    let crs = case.describe("v").crs.unwrap();
    assert_eq!((crs.authority.as_deref(), crs.unit), (Some("EPSG:0"), None));
}

#[test]
fn malformed_images_are_ignored() {
    for multiscale in [
        r#"{"datasets":[{"path":"../v"}]}"#,
        r#"{"datasets":[{"path":"v"}],"axes":["x"]}"#,
        r#"{"datasets":[{"path":"v"}],"axes":{"x":1}}"#,
        r#"{"datasets":{"path":"v"},"axes":["y","x"]}"#,
        r#"{"datasets":["v"],"axes":["y","x"]}"#,
    ] {
        let case = case()
            .value(".zattrs", &format!(r#"{{"multiscales":[{multiscale}]}}"#))
            .array("v", "<f4", &[2, 3], "{}");
        assert_eq!(
            super::names(&case.describe("v")),
            [None, None],
            "{multiscale}"
        );
    }
    for transformation in [
        r#"{"type":"scale","scale":[0,0]}"#,
        r#"{"type":"scale","scale":[1e308,1e400]}"#,
        r#"{"type":"scale","scale":[2]}"#,
        r#"{"type":"translation","scale":[2,2]}"#,
        r#"{"type":"scale","path":"scale.bin"}"#,
        r#"["scale"]"#,
    ] {
        let attributes = format!(
            r#"{{"multiscales":[{{"axes":["y","x"],"datasets":[{{"path":"v","coordinateTransformations":[{transformation}]}}]}}]}}"#
        );
        let case = case()
            .value(".zattrs", &attributes)
            .array("v", "<f4", &[2, 3], "{}");
        let v = case.describe("v");
        assert_eq!(super::names(&v), [Some("y"), Some("x")]);
        let far = |c: &Coordinates| matches!(c, Coordinates::Regular { step, .. } if ![1.0, 1e308].contains(step));
        assert!(!places(&v).iter().any(far), "{transformation}");
    }
}

/// No name leads out of the store, or to anything but an array.
#[test]
fn names_lead_only_to_arrays_in_the_store() {
    let dimensions = ["../x", "/", ".", "..", "", "a/../../x", "g", "x\\u0000"];
    for name in dimensions {
        let case = case()
            .value("g/.zgroup", "{\"zarr_format\":2}")
            .line("x", "<f8", &f8(&[1.0, 2.0]), r#"{"crs_wkt":"GEOGCS[]"}"#)
            .array(
                "g/v",
                "<f4",
                &[2],
                &format!(r#"{{"_ARRAY_DIMENSIONS":["{name}"],"grid_mapping":"{name}"}}"#),
            );
        let v = case.describe("g/v");
        assert_eq!(
            (places(&v), &v.crs),
            (vec![Coordinates::Unknown], &None),
            "{name:?}"
        );
    }
}

#[test]
fn unreadable_coordinate_arrays_are_ignored() {
    let named = r#"{"_ARRAY_DIMENSIONS":["x"]}"#;
    let array = |more: &str| {
        format!(
            r#"{{"zarr_format":2,"shape":[4],"chunks":[4],"dtype":"<f8","fill_value":0,"order":"C",{more}}}"#
        )
    };
    let zlib = array(r#""compressor":{"id":"zlib"},"filters":null"#);
    let unknown = array(r#""compressor":{"id":"nobody's"},"filters":null"#);
    for (document, chunk) in [
        (zlib.as_str(), "no zlib"),
        (&unknown, ""),
        ("{", ""),
        (&zlib.replace("[4]", "[4,4]"), ""),
    ] {
        let case = case()
            .array("v", "<f4", &[4], named)
            .value("x/.zarray", document)
            .value("x/0", chunk);
        assert_eq!(
            places(&case.describe("v")),
            [Coordinates::Unknown],
            "{document}"
        );
    }
    // arrays of too many chunks, of too many items, and of too large chunks
    let many = 3 * 16_384 + 1;
    let case = super::case()
        .array("v", "|u1", &[many], named)
        .array("x", "<f8", &[many], "{}");
    assert_eq!(places(&case.describe("v")), [Coordinates::Unknown]);
    let vast = array(r#""compressor":null,"filters":null"#).replace("[4]", "[1152921504606846975]");
    let case = super::case().array("v", "|u1", &[1_152_921_504_606_846_975], named);
    case.map.insert(
        "x/.zarray",
        vast.replace(r#""chunks":[1152921504606846975]"#, r#""chunks":[1000]"#),
    );
    assert_eq!(places(&case.describe("v")), [Coordinates::Unknown]);
    let case = super::case().array("v", "|u1", &[4], named);
    case.map.insert(
        "x/.zarray",
        array(r#""compressor":null,"filters":null"#)
            .replace(r#""chunks":[4]"#, r#""chunks":[9000000]"#),
    );
    assert_eq!(places(&case.describe("v")), [Coordinates::Unknown]);
}

#[test]
fn arrays_may_have_no_items_or_no_dimensions() {
    let case = case()
        .array("v", "<f4", &[0, 2], r#"{"_ARRAY_DIMENSIONS":["x","y"]}"#)
        .array("x", "<f4", &[0], "{}")
        .array("scalar", "<f4", &[], r#"{"_ARRAY_DIMENSIONS":[]}"#);
    assert_eq!(
        places(&case.describe("v")),
        [Coordinates::Unknown, Coordinates::Unknown]
    );
    assert!(case.describe("scalar").axes.is_empty());
}

/// Numbers that stand for missing items of a dtype that has none.
#[test]
fn other_types_have_no_missing_value() {
    for dtype in [
        "|S0", "|S16", "|S100", "<U5", "<c16", "<c32", "<f16", "|V16", "<M8[s]", "|b1",
    ] {
        for number in [
            "0",
            "-1",
            "1e300",
            "170141183460469231731687303715884105727",
        ] {
            let attributes = format!(r#"{{"_FillValue":{number},"missing_value":{number}}}"#);
            assert_eq!(
                case()
                    .array("a", dtype, &[2], &attributes)
                    .describe("a")
                    .nodata,
                None,
                "{dtype} {number}"
            );
        }
    }
}
