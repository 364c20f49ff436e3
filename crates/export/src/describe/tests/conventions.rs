//! Tests of each convention, with quotations of its text.

use super::*;
use crate::{ImageChannel, ImageInfo};

/// "xarray ... uses the `_ARRAY_DIMENSIONS` attribute to store dimension names" (xarray, Zarr
/// Encoding Specification); "coordinate variable: a one-dimensional variable with the same name as
/// its dimension" (CF 1.3).
#[test]
fn a_data_set_of_xarray_is_described() {
    let case = case()
        .array_with(
            "t",
            "<i2",
            &[2, 3, 4],
            "-32768",
            r#"{"_ARRAY_DIMENSIONS":["time","lat","lon"],"scale_factor":0.01,"add_offset":[273.15],"units":"K",
            "long_name":"air\ntemperature"}"#,
        )
        .line(
            "time",
            "<i8",
            &[0i64, 6].map(i64::to_le_bytes),
            r#"{"units":"hours since 1800-01-01","calendar":"noleap"}"#,
        )
        .line("lat", ">f4", &f4(&[50.2, 50.1, 50.0]), r#"{"units":"degrees_north","axis":"Y"}"#)
        .line(
            "lon",
            "<f8",
            &f8(&[10.0, 10.5, 11.0, 12.0]),
            r#"{"_ARRAY_DIMENSIONS":["lon"],"standard_name":"longitude","units":"degrees_east"}"#,
        );
    let t = case.describe("t");
    assert_eq!(names(&t), [Some("time"), Some("lat"), Some("lon")]);
    assert_eq!(roles(&t), [Role::Time, Role::Y, Role::X]);
    assert_eq!(t.axes[0].units.as_deref(), Some("hours since 1800-01-01"));
    assert_eq!(
        (t.axes[0].calendar.as_deref(), &t.axes[0].coordinates),
        (Some("noleap"), &regular(0.0, 6.0))
    );
    assert_eq!(t.axes[1].coordinates, regular(50.2, -0.1));
    let lon = Coordinates::Irregular {
        values: vec![10.0, 10.5, 11.0, 12.0],
    };
    assert_eq!(t.axes[2].coordinates, lon);
    assert_eq!(
        (t.scale, t.offset, t.nodata),
        (Some(0.01), Some(273.15), Some(MetadataNumber::Int(-32768)))
    );
    assert_eq!(
        (t.units.as_deref(), t.long_name.as_deref()),
        (Some("K"), Some("air temperature"))
    );
    // no reference system is named, but longitude and latitude are
    assert_eq!(t.crs.unwrap().authority.as_deref(), Some("EPSG:4326"));
    assert_eq!(case.describe("lon").axes[0].role, Role::X);
}

/// "A coordinate variable ... in the same group or, if there is none, in its nearest ancestor" (CF
/// 2.7.1).
#[test]
fn coordinates_come_from_the_nearest_group() {
    let case = case()
        .array(
            "a/b/v",
            "<f4",
            &[2, 3],
            r#"{"_ARRAY_DIMENSIONS":["y","x"]}"#,
        )
        .line("y", "<f8", &f8(&[1.0, 2.0]), "{}")
        .line("x", "<f8", &f8(&[5.0, 6.0, 7.0]), "{}")
        // a nearer array of another length hides `y`, so that the dimension has no coordinates
        .line("a/y", "<f8", &f8(&[1.0, 2.0, 3.0]), "{}")
        .value("a/b/x/y/.zarray", "{}");
    let v = case.describe("a/b/v");
    assert_eq!(places(&v), [Coordinates::Unknown, regular(5.0, 1.0)]);
    assert_eq!(roles(&v), [Role::Y, Role::X]);
    assert_eq!(v.crs, None);
}

/// Attributes of packed coordinates: "scale_factor", "add_offset" (CF 8.1); uninitialised chunks
/// hold the fill value.
#[test]
fn coordinates_may_be_packed_but_not_missing() {
    let named = r#"{"_ARRAY_DIMENSIONS":["x"]}"#;
    let case = case()
        .array("packed/v", "|u1", &[4], named)
        .line(
            "packed/x",
            "|i1",
            &[[0], [1], [2], [4]],
            r#"{"scale_factor":0.5,"add_offset":10}"#,
        )
        .array("filled/v", "|u1", &[5], named)
        .array_with("filled/x", "<f8", &[5], "7.5", "{}")
        .array("missing/v", "|u1", &[2], named)
        .line(
            "missing/x",
            "<f8",
            &f8(&[1.0, -1.0]),
            r#"{"_FillValue":-1}"#,
        )
        .array("nan/v", "|u1", &[2], named)
        .line("nan/x", "<f8", &f8(&[1.0, f64::NAN]), "{}")
        .array("text/v", "|u1", &[2], named)
        .line("text/x", "|S8", &f8(&[1.0, 2.0]), r#"{"axis":"X"}"#)
        .array("one/v", "|u1", &[1], named)
        .line("one/x", "<f8", &f8(&[3.0]), "{}");
    let coordinates = |path: &str| case.describe(path).axes[0].coordinates.clone();
    let packed = Coordinates::Irregular {
        values: vec![10.0, 10.5, 11.0, 12.0],
    };
    assert_eq!(coordinates("packed/v"), packed);
    assert!(
        matches!(coordinates("filled/v"), Coordinates::Irregular { values } if values == [7.5; 5])
    );
    assert_eq!(
        [coordinates("missing/v"), coordinates("nan/v")],
        [Coordinates::Unknown, Coordinates::Unknown]
    );
    assert_eq!(
        (coordinates("text/v"), case.describe("text/v").axes[0].role),
        (Coordinates::Unknown, Role::X)
    );
    assert!(matches!(coordinates("one/v"), Coordinates::Irregular { values } if values == [3.0]));
}

/// A time dtype of NumPy counts since 1970 in its own unit.
#[test]
fn times_of_numpy_count_from_1970() {
    let named = r#"{"_ARRAY_DIMENSIONS":["time"]}"#;
    let days = [10_957i64, 10_958, 10_959];
    let case = case()
        .array("ns/v", "|u1", &[3], named)
        .line(
            "ns/time",
            "<M8[ns]",
            &days.map(|day| (day * 86_400_000_000_000).to_le_bytes()),
            "{}",
        )
        .array("weeks/v", "|u1", &[3], named)
        .line(
            "weeks/time",
            ">M8[2W]",
            &[0i64, 1, 2].map(i64::to_be_bytes),
            "{}",
        )
        .array("none/v", "|u1", &[2], named)
        .line(
            "none/time",
            "<M8[s]",
            &[i64::MIN, 1].map(i64::to_le_bytes),
            "{}",
        )
        .array("months/v", "|u1", &[2], named)
        .line(
            "months/time",
            "<M8[M]",
            &[1i64, 2].map(i64::to_le_bytes),
            "{}",
        );
    let axis = |path: &str| case.describe(path).axes[0].clone();
    let ns = axis("ns/v");
    assert_eq!(
        (ns.units.as_deref(), ns.role),
        (Some("nanoseconds since 1970-01-01"), Role::Time)
    );
    assert_eq!(ns.coordinates, regular(946_684_800e9, 86_400e9));
    let weeks = axis("weeks/v");
    assert_eq!(
        (weeks.units.as_deref(), weeks.coordinates),
        (Some("days since 1970-01-01"), regular(0.0, 14.0))
    );
    assert_eq!(
        [axis("none/v").coordinates, axis("months/v").coordinates],
        [Coordinates::Unknown, Coordinates::Unknown]
    );
}

/// "regular": equal to a millionth of a step, or as nearly as the dtype allows.
#[test]
fn equal_steps_are_regular() {
    let case = |dtype: &str, items: &[[u8; 8]]| {
        let case = case().line("x", dtype, items, r#"{"_ARRAY_DIMENSIONS":["x"]}"#);
        case.describe("x").axes[0].coordinates.clone()
    };
    let is_regular = |coordinates: &Coordinates| matches!(coordinates, Coordinates::Regular { .. });
    assert!(is_regular(&case("<f8", &f8(&[0.0, 1.000_000_9, 2.0]))));
    assert!(!is_regular(&case("<f8", &f8(&[0.0, 1.000_002, 2.0]))));
    assert!(!is_regular(&case("<f8", &f8(&[1.0, 1.0, 1.0]))));
    assert!(!is_regular(&case("<f8", &f8(&[0.0, 2.0, 2.0, 6.0]))));
    // a tenth of a degree in four bytes is off by 3e-5 steps
    let line: Vec<f32> = (0..1800).map(|i| -89.95 + 0.1 * i as f32).collect();
    let case = super::case().line("lat", ">f4", &f4(&line), r#"{"_ARRAY_DIMENSIONS":["lat"]}"#);
    assert_eq!(
        case.describe("lat").axes[0].coordinates,
        regular(-89.95, 0.1)
    );
}

/// "dimrefs: a list of fully qualified names of dimensions" (netCDF-C, NCZarr): in `.zarray`, and
/// as an attribute since 4.9.3.
#[test]
fn references_of_nczarr_name_dimensions() {
    let array = r#"{"zarr_format":2,"shape":[2,3],"dtype":"<i2","chunks":[2,3],"fill_value":null,"order":"C",
        "compressor":null,"filters":null"#;
    let case = case()
        .value(
            "g/old/.zarray",
            &format!(
                r#"{array},"_NCZARR_ARRAY":{{"dimrefs":["/g/y","/x"],"storage":"chunked"}}}}"#
            ),
        )
        .value("g/new/.zarray", &format!("{array}}}"))
        .value(
            "g/new/.zattrs",
            r#"{"_nczarr_array":{"dimrefs":["/g/y","/x"]}}"#,
        )
        .value(
            "g/wrong/.zarray",
            &format!(r#"{array},"_NCZARR_ARRAY":{{"dimrefs":["/g/y"]}}}}"#),
        );
    for (path, expected) in [
        ("g/old", [Some("y"), Some("x")]),
        ("g/new", [Some("y"), Some("x")]),
        ("g/wrong", [None; 2]),
    ] {
        assert_eq!(names(&case.describe(path)), expected, "{path}");
    }
}

/// "coordinateTransformations ... MUST be applied in the order in which they are listed, those of
/// datasets first"; "They MUST only be of type translation or scale" (OME-NGFF 0.4).
#[test]
fn an_image_of_ngff_is_described() {
    let case = case()
        .value(
            "image/.zattrs",
            r##"{"multiscales":[{"version":"0.4","axes":[{"name":"t","type":"time","unit":"second"},
            {"name":"c","type":"channel"},{"name":"y","type":"space","unit":"micrometer"},{"name":"x","type":"space"}],
            "datasets":[{"path":"0"},{"path":"s/1","coordinateTransformations":[{"type":"scale","scale":[1,1,0.5,0.25]},
            {"type":"translation","translation":[0,0,10,20]}]}],
            "name":"cells","coordinateTransformations":[{"type":"scale","scale":[0.1,1,2,2]}]}],
            "omero":{"channels":[{"label":" a\nb","color":"#00Ff7f"},{"label":7,"color":"red"},null]}}"##,
        )
        .array("image/s/1", "<u2", &[2, 3, 4, 5], "{}")
        .array("image/0", "<u2", &[2, 3, 4, 5], "{}")
        .array("image/labels", "<u2", &[2, 3, 4, 5], "{}");
    let one = case.describe("image/s/1");
    assert_eq!(names(&one), [Some("t"), Some("c"), Some("y"), Some("x")]);
    assert_eq!(roles(&one), [Role::Time, Role::Other, Role::Y, Role::X]);
    assert_eq!(
        places(&one),
        [
            regular(0.0, 0.1),
            Coordinates::Unknown,
            regular(20.0, 1.0),
            regular(40.0, 0.5)
        ]
    );
    let units: Vec<_> = one.axes.iter().map(|axis| axis.units.as_deref()).collect();
    assert_eq!(units, [Some("second"), None, Some("micrometer"), None]);
    assert_eq!(
        case.describe("image/0").axes[3].coordinates,
        Coordinates::Regular {
            first: 0.0,
            step: 2.0
        }
    );
    let channel = |name: Option<&str>, color| ImageChannel {
        name: name.map(str::to_string),
        color,
    };
    let channels = vec![
        channel(Some("a b"), Some(0x00ff7f)),
        channel(None, None),
        channel(None, None),
    ];
    assert_eq!(
        one.image,
        Some(ImageInfo {
            name: Some("cells".into()),
            channel_axis: Some(1),
            channels
        })
    );
    assert_eq!(case.describe("image/labels").image, None);
    assert_eq!(names(&case.describe("image/labels")), [None; 4]);
}

/// "affine", "sequence", "mapAxis" (OME-NGFF 0.6, "Coordinate transformations").
#[test]
fn transformations_that_mix_axes_give_no_coordinates() {
    let places_with = |transformation: &str| {
        let case = case()
            .value(
                "i/.zattrs",
                &format!(
                    r#"{{"multiscales":[{{"coordinateSystems":[{{"name":"a","axes":[{{"name":"y"}},{{"name":"x"}}]}}],
                    "datasets":[{{"path":"0","coordinateTransformations":[{transformation}]}}]}}]}}"#
                ),
            )
            .array("i/0", "<u2", &[4, 5], "{}");
        let image = case.describe("i/0");
        assert_eq!(names(&image), [Some("y"), Some("x")]);
        places(&image)
    };
    let along = r#"{"type":"affine","affine":[[2,0,10],[0,-3,20]]}"#;
    assert_eq!(
        places_with(along),
        [regular(10.0, 2.0), regular(20.0, -3.0)]
    );
    for mixed in [
        r#"{"type":"affine","affine":[[2,1,10],[0,3,20]]}"#,
        r#"{"type":"affine","affine":[[2,0],[0,3]]}"#,
        r#"{"type":"mapAxis","mapAxis":[1,0]}"#,
        r#"{"type":"sequence","transformations":[{"type":"scale","scale":[2,3]},{"type":"rotation","rotation":[[0,1],[1,0]]}]}"#,
    ] {
        assert_eq!(
            places_with(mixed),
            [Coordinates::Unknown, Coordinates::Unknown],
            "{mixed}"
        );
    }
}

/// "axes" is a list of names in OME-NGFF 0.3; before, "data is 5-dimensional ... t, c, z, y, x".
#[test]
fn older_images_are_described() {
    let case = case()
        .value(
            "a/.zattrs",
            r#"{"multiscales":[{"axes":["y","x"],"datasets":[{"path":"0"}]}]}"#,
        )
        .array("a/0", "<u2", &[4, 5], "{}")
        .value(
            "b/.zattrs",
            r#"{"multiscales":[{"datasets":[{"path":"0"}]}]}"#,
        )
        .array("b/0", "<u2", &[1, 1, 1, 4, 5], "{}");
    assert_eq!(roles(&case.describe("a/0")), [Role::Y, Role::X]);
    assert_eq!(
        roles(&case.describe("b/0")),
        [Role::Time, Role::Other, Role::Z, Role::Y, Role::X]
    );
}

/// "_CRS ... url, wkt, projjson" (GDAL, Zarr driver).
#[test]
fn a_reference_system_of_gdal_is_parsed() {
    let utm = r#"PROJCS[\"WGS 84 / UTM zone 31N\",GEOGCS[\"WGS 84\",AUTHORITY[\"EPSG\",\"4326\"]],AUTHORITY[\"EPSG\",\"32631\"]]"#;
    let case = case()
        .array(
            "wkt",
            "|u1",
            &[1],
            &format!(r#"{{"_CRS":{{"wkt":"{utm}"}}}}"#),
        )
        .array(
            "url",
            "|u1",
            &[1],
            r#"{"_CRS":{"url":"http://www.opengis.net/def/crs/EPSG/0/4326"}}"#,
        )
        .array(
            "json",
            "|u1",
            &[1],
            r#"{"_CRS":{"projjson":{"type":"GeographicCRS","name":"x"}}}"#,
        );
    let crs = |path: &str| case.describe(path).crs.unwrap();
    assert_eq!(
        (crs("wkt").authority.as_deref(), crs("wkt").is_geographic()),
        (Some("EPSG:32631"), false)
    );
    assert_eq!(
        (crs("url").authority.as_deref(), crs("url").is_geographic()),
        (Some("EPSG:4326"), true)
    );
    assert!(crs("url").wkt.unwrap().starts_with("GEOGCS[\"WGS 84\""));
    let json = r#"{"type":"GeographicCRS","name":"x"}"#.to_string();
    assert_eq!(
        crs("json"),
        Crs {
            projjson: Some(json),
            kind: CrsKind::Geographic,
            ..Crs::default()
        }
    );
}

/// "grid_mapping ... the name of a grid mapping variable, or `name: coordinate ...`"; "crs_wkt" (CF
/// 5.6); `GeoTransform` is GDAL's and rioxarray's.
#[test]
fn a_grid_mapping_is_parsed() {
    let wkt = r#"PROJCRS[\"a, [b]\",BASEGEOGCRS[\"x\",ID[\"EPSG\",4258]],ID[\"EPSG\",3035]]"#;
    let named = r#""_ARRAY_DIMENSIONS":["y","x"]"#;
    let case = case()
        .array(
            "spatial_ref",
            "<i8",
            &[],
            &format!(r#"{{"crs_wkt":"{wkt}","GeoTransform":"10.0 2.0 0.0 50.0 0.0 -1.0"}}"#),
        )
        .array(
            "g/a",
            "|u1",
            &[2, 3],
            &format!(r#"{{{named},"grid_mapping":"spatial_ref"}}"#),
        )
        .array(
            "g/sphere",
            "|S1",
            &[],
            r#"{"grid_mapping_name":"latitude_longitude","earth_radius":6371229}"#,
        )
        .array(
            "g/b",
            "|u1",
            &[2, 3],
            &format!(r#"{{{named},"grid_mapping":"sphere: x y spatial_ref: a b"}}"#),
        )
        .line("g/x", "<f8", &f8(&[0.0, 5.0, 10.0]), "{}");
    let a = case.describe("g/a");
    assert_eq!(
        a.crs.as_ref().unwrap().authority.as_deref(),
        Some("EPSG:3035")
    );
    assert!(!a.crs.as_ref().unwrap().is_geographic());
    // coordinate arrays take precedence
    assert_eq!(places(&a), [regular(49.5, -1.0), regular(0.0, 5.0)]);
    let sphere = case.describe("g/b").crs.unwrap();
    assert!(sphere.is_geographic() && sphere.authority.is_none());
    assert!(
        sphere
            .wkt
            .unwrap()
            .contains(r#"SPHEROID["unknown",6371229,0]"#)
    );
}

/// CF, appendix F: "Grid Mappings".
#[test]
fn projections_in_attributes_become_wkt() {
    let wkt = |attributes: &str, units: &str| {
        let case = case()
            .array(
                "v",
                "|u1",
                &[1, 1],
                r#"{"_ARRAY_DIMENSIONS":["y","x"],"grid_mapping":"m"}"#,
            )
            .array("x", "|u1", &[1], &format!(r#"{{"units":{units}}}"#))
            .array("m", "|u1", &[], attributes);
        case.describe("v")
            .crs
            .filter(|crs| !crs.is_geographic())
            .and_then(|crs| crs.wkt)
    };
    let lambert = r#"{"grid_mapping_name":"lambert_conformal_conic","standard_parallel":[30,60],
        "longitude_of_central_meridian":[10.5],"latitude_of_projection_origin":45,"false_easting":1000,
        "semi_major_axis":6378388,"semi_minor_axis":6356911.946}"#;
    let found = wkt(lambert, "\"km\"").unwrap();
    assert!(found.starts_with(
        r#"PROJCS["unknown",GEOGCS["unknown",DATUM["unknown",SPHEROID["unknown",6378388,296.99"#
    ));
    let rest = r#",PROJECTION["Lambert_Conformal_Conic_2SP"],PARAMETER["standard_parallel_1",30],PARAMETER["standard_parallel_2",60],PARAMETER["latitude_of_origin",45],PARAMETER["central_meridian",10.5],PARAMETER["false_easting",1000],PARAMETER["false_northing",0],UNIT["kilometre",1000]]"#;
    assert!(found.ends_with(rest), "{found}");
    assert!(
        wkt(lambert, "null")
            .unwrap()
            .ends_with(r#"UNIT["metre",1]]"#)
    );
    let polar = r#"{"grid_mapping_name":"polar_stereographic","straight_vertical_longitude_from_pole":-45,
        "latitude_of_projection_origin":90,"standard_parallel":70}"#;
    assert!(wkt(polar, "\"m\"").unwrap().contains(
        r#"PARAMETER["latitude_of_origin",70],PARAMETER["central_meridian",-45],PARAMETER["scale_factor",1]"#
    ));
    for broken in [lambert.replace("45", "\"45\""), polar.replace("\"st", "\"")] {
        assert_eq!(wkt(&broken, "\"m\""), None, "{broken}");
    }
    assert_eq!(wkt(lambert, "\"degrees\""), None);
    let geostationary = r#"{"grid_mapping_name":"geostationary","perspective_point_height":35785831,
        "longitude_of_projection_origin":9.5,"sweep_angle_axis":"y"}"#;
    assert!(
        wkt(geostationary, "\"radian\"").unwrap().ends_with(
            r#"PARAMETER["central_meridian",9.5],PARAMETER["satellite_height",35785831],PARAMETER["false_easting",0],PARAMETER["false_northing",0],UNIT["metre",1]]"#
        )
    );
    let about_x = wkt(&geostationary.replace("\"y\"", "\"x\""), "\"rad\"").unwrap();
    assert!(about_x.contains("+h=35785831 +x_0=0 +y_0=0 +a=6378137 +rf=298.257223563"));
    assert_eq!(
        wkt(r#"{"grid_mapping_name":"geostationary"}"#, "\"m\""),
        None
    );
}

/// "_FillValue", "missing_value" (CF 2.5.1); xarray uses the array's fill value if dimensions have
/// names.
#[test]
fn each_type_has_its_missing_value() {
    let nodata = |dtype: &str, fill: &str, attributes: &str| {
        let case = case().array_with("a", dtype, &[1], fill, attributes);
        case.describe("a").nodata
    };
    let named = r#"{"_ARRAY_DIMENSIONS":["x"]}"#;
    assert_eq!(
        nodata("<i8", "0", r#"{"_FillValue":9223372036854775807}"#),
        Some(MetadataNumber::Int(i64::MAX.into()))
    );
    assert_eq!(
        nodata(
            "<i2",
            "0",
            r#"{"_FillValue":32768,"missing_value":[-9999.0]}"#
        ),
        Some(MetadataNumber::Int(-9999))
    );
    assert_eq!(nodata("|u1", "255", "{}"), None);
    assert_eq!(nodata("|u1", "255", named), Some(MetadataNumber::Int(255)));
    assert_eq!(nodata("|u1", "null", named), None);
    assert_eq!(
        nodata(">u8", "18446744073709551615", named),
        Some(MetadataNumber::Int(u64::MAX.into()))
    );
    assert_eq!(
        nodata(">f4", "1e20", named),
        Some(MetadataNumber::Float(1e20))
    );
    assert!(nodata("<f4", "\"NaN\"", named).is_some_and(|number| number.as_f64().is_nan()));
    assert_eq!(nodata("<f4", "0", r#"{"_FillValue":1e40}"#), None);
    // base64 is for v3
    assert_eq!(nodata("<f8", "0", r#"{"_FillValue":"AAAAAACIw8A="}"#), None);
    assert_eq!(nodata("|b1", "true", named), None);
}

/// "axis", "standard_name", "units", "positive" (CF 4), the strongest first; GDAL takes the last
/// two dimensions.
#[test]
fn each_role_has_at_most_one_axis() {
    let case = case()
        .array(
            "a",
            "|u1",
            &[1, 1, 1],
            r#"{"_ARRAY_DIMENSIONS":["x","lon","y"]}"#,
        )
        .array(
            "b",
            "|u1",
            &[1, 1, 1],
            r#"{"_ARRAY_DIMENSIONS":["p","lon","east"]}"#,
        )
        .array("p", "|u1", &[1], r#"{"positive":"down"}"#)
        .array("lon", "|u1", &[1], "{}")
        .array("east", "|u1", &[1], r#"{"units":"degreesE"}"#)
        .array("c", "|u1", &[1, 1], r#"{"_ARRAY_DIMENSIONS":["d","e"]}"#)
        .array("d", "|u1", &[1], r#"{"axis":"X"}"#)
        .array("e", "|u1", &[1], r#"{"standard_name":"longitude"}"#)
        .array("d2", "|u1", &[1, 1], "{}");
    assert_eq!(roles(&case.describe("a")), [Role::Other, Role::X, Role::Y]);
    assert_eq!(roles(&case.describe("b")), [Role::Z, Role::Other, Role::X]);
    assert_eq!(roles(&case.describe("c")), [Role::X, Role::Other]);
    assert_eq!(roles(&case.describe("d2")), [Role::Other, Role::Other]);
}
