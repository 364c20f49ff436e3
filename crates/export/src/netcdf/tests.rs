//! Groups of a store in memory, and the headers that are made of them.

mod options;

use super::*;
use crate::group::attributes::Attribute;
use crate::testing::hierarchy;
use crate::{ItemForm, PartContent};
use std::collections::HashSet;

/// Returns the header of a group, with offsets of data still 0.
fn header(hierarchy: &dyn HierarchyReader, path: &str) -> ClassicHeader {
    let key = Key::normalize(path).unwrap();
    let members = GroupArrays::of_group(hierarchy, &key, &NetcdfOptions::default()).unwrap();
    header_of(&members, &hierarchy.attributes(&key).unwrap())
}

fn file(hierarchy: &dyn HierarchyReader) -> Composite {
    dataset(hierarchy, &Key::root(), &NetcdfOptions::default()).unwrap()
}

/// Variables with their dimensions, as ncdump shows them.
pub fn variables(header: &ClassicHeader) -> Vec<String> {
    let dimension =
        |&n: &usize| format!("{}={}", header.dimensions[n].name, header.dimensions[n].len);
    let variable = |v: &Variable| {
        let dimensions: Vec<String> = v.dimensions.iter().map(dimension).collect();
        format!("{:?} {}({})", v.kind, v.name, dimensions.join(", "))
    };
    header.variables.iter().map(variable).collect()
}

/// Attributes as ncdump shows them.
pub fn shown(list: &[Attribute]) -> Vec<String> {
    let value = |kind: Type, bytes: &[u8]| {
        let mut wide = [0; 8];
        wide[8 - bytes.len()..].copy_from_slice(bytes);
        match kind {
            Type::Float => format!("{}f", f32::from_be_bytes(bytes.try_into().unwrap())),
            Type::Double => format!("{:?}", f64::from_be_bytes(wide)),
            Type::Byte => format!("{}b", bytes[0] as i8),
            Type::Short => format!("{}s", i16::from_be_bytes(bytes.try_into().unwrap())),
            Type::Int => i32::from_be_bytes(bytes.try_into().unwrap()).to_string(),
            Type::Int64 => format!("{}LL", i64::from_be_bytes(wide)),
            _ => format!("{}u{}", u64::from_be_bytes(wide), 8 * bytes.len()),
        }
    };
    let attribute = |a: &Attribute| match a.kind {
        Type::Char => format!(
            "{} = {:?}",
            a.name,
            String::from_utf8(a.values.clone()).unwrap()
        ),
        kind => {
            let values: Vec<String> = a
                .values
                .chunks(kind.size())
                .map(|bytes| value(kind, bytes))
                .collect();
            format!("{} = {}", a.name, values.join(", "))
        }
    };
    list.iter().map(attribute).collect()
}

pub fn dims(names: &[&str]) -> String {
    format!(r#"{{"_ARRAY_DIMENSIONS":{names:?}}}"#)
}

#[test]
fn few_variables_have_blocks_of_their_own() {
    let h = hierarchy(&[
        ("t", "\"<f4\"", &[2, 3], &dims(&["lat", "lon"])),
        ("lat", "\">f8\"", &[2], &dims(&["lat"])),
        ("lon", "\"<i2\"", &[3], &dims(&["lon"])),
        ("crs", "\"|i1\"", &[], "{}"),
        ("below/x", "\"<f4\"", &[5], "{}"),
    ]);
    h.insert(".zattrs", r#"{"title":"weather"}"#);
    let header = header(&h, "");
    assert_eq!(header.version, ClassicVersion::Offset64);
    assert_eq!(
        variables(&header),
        [
            "Byte crs()",
            "Double lat(lat=2)",
            "Short lon(lon=3)",
            "Float t(lat=2, lon=3)"
        ]
    );
    assert_eq!(shown(&header.attributes), ["title = \"weather\""]);
    let file = file(&h);
    let flat = |part: &crate::FilePart| match &part.content {
        PartContent::Flat { key, form, .. } => Some((
            key.as_str().to_string(),
            form.shown_item(),
            part.at,
            part.len,
        )),
        _ => None,
    };
    let flat: Vec<_> = file.parts().iter().filter_map(flat).collect();
    // the header has a block, and each of the few variables
    let expected = [
        ("crs", 1, 1, 1),
        ("lat", 1, 2, 16),
        ("lon", 2, 3, 6),
        ("t", 4, 4, 24),
    ];
    assert_eq!(
        flat,
        expected.map(|(name, swap, block, len)| (
            name.to_string(),
            swap,
            block * READER_BLOCK,
            len
        ))
    );
    assert_eq!(file.size(), 4 * READER_BLOCK + 24);
    // the padding between them is holes
    assert_eq!(
        [0, READER_BLOCK, READER_BLOCK + 1, READER_BLOCK + 4].map(|at| file.next_data(at)),
        [0, READER_BLOCK, READER_BLOCK + 1, 2 * READER_BLOCK]
    );
    assert_eq!(
        [
            2 * READER_BLOCK + 15,
            3 * READER_BLOCK - 1,
            4 * READER_BLOCK
        ]
        .map(|at| file.next_hole(at)),
        [
            Some(2 * READER_BLOCK + 16),
            Some(3 * READER_BLOCK - 1),
            None
        ]
    );
    // the header states the same offset
    let PartContent::Bytes(bytes) = &file.parts()[0].content else {
        panic!("no header")
    };
    let len = header.bytes().len();
    assert_eq!(bytes[len - 8..len], (4 * READER_BLOCK).to_be_bytes());
    assert_eq!(
        (bytes.len(), bytes[len..].iter().max()),
        (len + 65536, Some(&0))
    );
}

#[test]
fn types_decide_the_version() {
    let one = |dtype: &str| {
        let h = hierarchy(&[("x", &format!("\"{dtype}\""), &[2, 3], "{}")]);
        let header = header(&h, "");
        (
            header.version == ClassicVersion::Data64,
            header.variables.first().map(|v| v.kind),
        )
    };
    for (dtype, kind) in [
        ("|i1", Type::Byte),
        ("|u1", Type::Byte),
        ("|b1", Type::Byte),
        ("<i2", Type::Short),
        (">i4", Type::Int),
        ("<f2", Type::Float),
        ("<f4", Type::Float),
        (">f8", Type::Double),
        ("|S1", Type::Char),
        ("|S7", Type::Char),
        ("<U3", Type::Char),
    ] {
        assert_eq!(one(dtype), (false, Some(kind)), "{dtype}");
    }
    for (dtype, kind) in [
        ("<u2", Type::UShort),
        (">u4", Type::UInt),
        ("<i8", Type::Int64),
        ("<u8", Type::UInt64),
        ("<M8[ns]", Type::Int64),
    ] {
        assert_eq!(one(dtype), (true, Some(kind)), "{dtype}");
    }
    for dtype in ["<f16", "<c8", "|V4", "<m8[s]", "<M8[25s]", "<M8[M]", "|S0"] {
        assert_eq!(one(dtype), (false, None), "{dtype}");
    }
    // unsigned bytes have a type of their own in CDF-5
    let h = hierarchy(&[
        ("x", "\"<u8\"", &[2, 3], "{}"),
        ("y", "\"|u1\"", &[2], "{}"),
    ]);
    assert_eq!(
        variables(&header(&h, "")),
        ["UInt64 x(dim_2=2, dim_3=3)", "UByte y(dim_2=2)"]
    );
}

#[test]
fn letters_are_a_dimension() {
    let h = hierarchy(&[
        ("names", "\"|S7\"", &[2], &dims(&["station"])),
        ("one", "\"|S1\"", &[], "{}"),
    ]);
    assert_eq!(
        variables(&header(&h, "")),
        ["Char names(station=2, string7=7)", "Char one(string1=1)"]
    );
}

#[test]
fn unsupported_arrays_are_listed_in_an_attribute() {
    let h = hierarchy(&[
        ("good", "\"<i4\"", &[2], "{}"),
        ("empty", "\"<i4\"", &[2, 0], "{}"),
        ("complex", "\"<c8\"", &[2], "{}"),
        ("struct", r#"[["a","<i4"]]"#, &[2], "{}"),
    ]);
    h.insert("bad/.zarray", "{");
    h.insert("bad/.zattrs", "{");
    let unknown = r#"{"zarr_format":2,"shape":[1],"chunks":[1],"dtype":"<i4","compressor":{"id":"xyz"},"fill_value":0,
        "order":"C","filters":null}"#;
    h.insert("unknown/.zarray", unknown);
    h.insert(".zattrs", r#"{"zarrfs_left_out":"of another file"}"#);
    let header = header(&h, "");
    assert_eq!(variables(&header), ["Int good(dim_2=2)"]);
    let [left_out] = &header.attributes[..] else {
        panic!("{:?}", shown(&header.attributes))
    };
    let text = String::from_utf8(left_out.values.clone()).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(left_out.name, "zarrfs_left_out");
    assert!(
        lines[0].starts_with("bad: /bad/.zarray: not valid JSON"),
        "{text}"
    );
    assert_eq!(lines[1], "complex: netCDF has no type for \"<c8\"");
    assert_eq!(lines[2], "empty: a dimension has length 0");
    assert_eq!(lines[3], "struct: netCDF has no type for [[\"a\",\"<i4\"]]");
    assert!(
        lines[4].starts_with("unknown: ") && lines[4].contains("xyz"),
        "{text}"
    );
}

#[test]
fn missing_coordinates_are_inherited() {
    let h = hierarchy(&[
        ("x", "\"<f8\"", &[3], &dims(&["x"])),
        ("y", "\"<f8\"", &[4], &dims(&["y"])),
        ("z", "\"<f8\"", &[5], &dims(&["z"])),
        ("a/x", "\"<f4\"", &[3], &dims(&["x"])),
        ("a/z", "\"<f4\"", &[5, 5], &dims(&["z", "z"])),
        ("a/b/t", "\"<i2\"", &[5, 4, 3], &dims(&["z", "y", "x"])),
        ("a/b/u", "\"<i2\"", &[4], &dims(&["../x"])),
    ]);
    // the nearest array of the name counts, even if it is no coordinate
    let expected = [
        "Short t(z=5, y=4, x=3)",
        "Short u(.._x=4)",
        "Float x(x=3)",
        "Double y(y=4)",
    ];
    assert_eq!(
        variables(&header(&h, "a/b")),
        expected.map(|v| v.replace("(..", "(_.."))
    );
    // grid mappings are inherited, too
    let h = hierarchy(&[
        ("crs", "\"<i4\"", &[], "{}"),
        ("wgs", "\"<i4\"", &[], "{}"),
        ("lon", "\"<i4\"", &[3], "{}"),
        (
            "a/t",
            "\"<i2\"",
            &[3],
            r#"{"grid_mapping":"crs: x y wgs: lat lon"}"#,
        ),
        ("b/t", "\"<i2\"", &[3], r#"{"grid_mapping":"../crs"}"#),
    ]);
    assert_eq!(
        variables(&header(&h, "a")),
        ["Short t(dim_3=3)", "Int crs()", "Int wgs()"]
    );
    assert_eq!(variables(&header(&h, "b")), ["Short t(dim_3=3)"]);
    // the dimension with the length of the coordinates gets the plain name
    let ab = [
        ("x", "\"<f8\"", &[3][..], &*dims(&["x"])),
        ("a/t", "\"<i2\"", &[3, 4], &dims(&["x", "x"])),
    ];
    assert_eq!(
        variables(&header(&hierarchy(&ab), "a")),
        ["Short t(x=3, x_4=4)", "Double x(x=3)"]
    );
    // another length is another dimension
    let h = hierarchy(&[
        ("x", "\"<f8\"", &[3], &dims(&["x"])),
        ("a/t", "\"<i2\"", &[4], &dims(&["x"])),
    ]);
    assert_eq!(variables(&header(&h, "a")), ["Short t(x=4)"]);
}

/// The properties of a product are those of STAC's projection extension; a group above that states
/// nothing may begin to.
#[test]
fn the_reference_system_of_a_product_is_that_of_its_grids() {
    let named = dims(&["y", "x"]);
    let axis = |units: &str| format!(r#"{{"_ARRAY_DIMENSIONS":["x"],"units":"{units}"}}"#);
    let h = hierarchy(&[
        ("p/g/v", "\"<i2\"", &[2, 3], &named),
        ("p/g/x", "\"<f8\"", &[3], &axis("m")),
        ("p/d/v", "\"<i2\"", &[2, 3], &named),
        ("p/d/x", "\"<f8\"", &[3], &axis("degrees_east")),
    ]);
    h.insert("p/.zgroup", r#"{"zarr_format":2}"#);
    let key = Key::normalize("p/g").unwrap();
    let file = dataset(&h, &key, &NetcdfOptions::default()).unwrap();
    assert!(file.sources.contains(&Key::normalize("p").unwrap()));
    assert!(!variables(&header(&h, "p/g")).contains(&"Int crs()".to_string()));
    let product = r#"{"stac_discovery":{"properties":{"proj:epsg":32633}}}"#;
    h.insert("p/.zattrs", product);
    assert!(variables(&header(&h, "p/g")).contains(&"Int crs()".to_string()));
    // longitudes are those of WGS 84
    assert!(!variables(&header(&h, "p/d")).contains(&"Int crs()".to_string()));
}

// GDAL's Zarr driver, "SRS encoding"; CF conventions, 5.6: "a grid mapping variable ... is of
// arbitrary type since it contains no data"
#[test]
fn the_reference_system_of_gdal_becomes_a_grid_mapping() {
    let crs = |wkt: &str| {
        format!(r#"{{"_ARRAY_DIMENSIONS":["Y","X"],"_CRS":{{"url":"u","wkt":"{wkt}"}}}}"#)
    };
    let utm = crs("PROJCS[...");
    let own = r#"{"grid_mapping":"crs","_CRS":{"wkt":"x"}}"#;
    let h = hierarchy(&[
        ("X", "\"<f8\"", &[3], &dims(&["X"])),
        (
            "Y",
            "\"<f8\"",
            &[2],
            r#"{"_ARRAY_DIMENSIONS":["Y"],"units":"km"}"#,
        ),
        ("a", "\"<i2\"", &[2, 3], &utm),
        ("b", "\"<i2\"", &[2, 3], &utm),
        ("c", "\"<i2\"", &[2, 3], &crs("GEOGCS[...")),
        ("d", "\"<i2\"", &[2, 3], own),
        ("crs", "\"<i4\"", &[], "{}"),
    ]);
    let header = header(&h, "");
    let all: Vec<_> = header
        .variables
        .iter()
        .map(|v| (v.name.as_str(), shown(&v.attributes).join("; ")))
        .collect();
    let expected = [
        (
            "crs_3",
            "crs_wkt = \"GEOGCS[...\"; spatial_ref = \"GEOGCS[...\"",
        ),
        (
            "crs_2",
            "crs_wkt = \"PROJCS[...\"; spatial_ref = \"PROJCS[...\"",
        ),
        ("X", "axis = \"X\""),
        ("Y", "units = \"km\""),
        ("a", "grid_mapping = \"crs_2\""),
        ("b", "grid_mapping = \"crs_2\""),
        ("c", "grid_mapping = \"crs_3\""),
        ("crs", ""),
        ("d", "grid_mapping = \"crs\""),
    ];
    assert_eq!(
        all,
        expected.map(|(name, attributes)| (name, attributes.to_string()))
    );
    // each variable has a page of its own
    let file = file(&h);
    let begins = file
        .parts()
        .iter()
        .filter(|part| part.at % 4096 == 0 && part.content != PartContent::Padding);
    let begins: Vec<u64> = begins.skip(1).map(|part| part.at / 4096).collect();
    assert_eq!(
        begins,
        (READER_BLOCK / 4096..).take(9).collect::<Vec<u64>>()
    );
}

#[test]
fn images_name_their_axes() {
    let h = hierarchy(&[
        ("0", "\"<i2\"", &[3, 4], "{}"),
        ("1", "\"<i2\"", &[2, 2], "{}"),
    ]);
    let axes = r#"[{"name":"y","type":"space"},{"name":"x","type":"space"}]"#;
    let document = format!(
        r#"{{"multiscales":[{{"axes":{axes},"datasets":[{{"path":"0"}},{{"path":"1"}}]}}]}}"#
    );
    h.insert(".zattrs", document);
    assert_eq!(
        variables(&header(&h, "")),
        ["Short 0(y=3, x=4)", "Short 1(y_2=2, x_2=2)"]
    );
}

#[test]
fn invalid_netcdf_names_are_replaced() {
    let h = hierarchy(&[
        ("a?b", "\"<i2\"", &[2], &dims(&["a/b"])),
        (".c", "\"<i2\"", &[2], "{}"),
        ("_.c", "\"<i2\"", &[3], &dims(&["_.c"])),
        ("x ", "\"<i2\"", &[2], &dims(&["x "])),
    ]);
    assert_eq!(
        variables(&header(&h, "")),
        [
            "Short _.c(dim_2=2)",
            "Short _.c_2(_.c=3)",
            "Short a?b(a_b=2)",
            "Short x_(x_=2)"
        ]
    );
}

#[test]
fn attributes_have_types() {
    let document = r#"{"text":"größe","none":"","int":7,"big":3000000000,"float":1.0,"nan":NaN,"flag":true,
        "ints":[1,-2],"mixed":[1,2.5],"flags":[true,false],"words":["a","b"],"sentences":["a b","c"],"one":["a b"],
        "null":null,"empty":[],"object":{"a":[1]},"nested":[[1,2]],"both":[1,"a"],"a/b":1,"a_b":2,
        "_ARRAY_DIMENSIONS":["x"],"_CRS":{"url":"x"},"_NCProperties":"version=2","_nczarr_attr":{}}"#;
    let h = hierarchy(&[("x", "\"<i4\"", &[2], "{}")]);
    h.insert(".zattrs", document);
    let expected = [
        "text = \"größe\"",
        "none = \"\"",
        "int = 7",
        "big = 3000000000.0",
        "float = 1.0",
        "nan = NaN",
        "flag = 1b",
        "ints = 1, -2",
        "mixed = 1.0, 2.5",
        "flags = 1b, 0b",
        "words = \"a b\"",
        "sentences = \"[\\\"a b\\\",\\\"c\\\"]\"",
        "one = \"a b\"",
        "null = \"null\"",
        "empty = \"[]\"",
        "object = \"{\\\"a\\\":[1]}\"",
        "nested = \"[[1,2]]\"",
        "both = \"[1,\\\"a\\\"]\"",
        "a_b = 1",
        "a_b_2 = 2",
    ];
    assert_eq!(shown(&header(&h, "").attributes), expected);
    let h = hierarchy(&[("x", "\"<i8\"", &[2, 3], "{}")]);
    h.insert(
        ".zattrs",
        r#"{"big":[3000000000,-1],"most":18446744073709551615,"more":18446744073709551616}"#,
    );
    let expected = [
        "big = 3000000000LL, -1LL",
        "most = 18446744073709551615u64",
        "more = 1.8446744073709552e19",
    ];
    assert_eq!(shown(&header(&h, "").attributes), expected);
}

/// Returns the attributes of the only variable.
fn attributes_of(dtype: &str, fill: &str, attributes: &str) -> String {
    let h = hierarchy(&[("x", dtype, &[2], attributes)]);
    let document = h.get(&Key::root().join("x/.zarray"));
    let document = String::from_utf8(document.unwrap())
        .unwrap()
        .replace("\"fill_value\":null", &format!("\"fill_value\":{fill}"));
    h.insert("x/.zarray", document);
    shown(&header(&h, "").variables[0].attributes).join("; ")
}

// CF, appendix A: "_FillValue ... must have the same type as its associated variable", and so must
// attributes of packed values
#[test]
fn attributes_of_values_have_the_type_of_the_variable() {
    for (dtype, attributes, expected) in [
        (
            "<i2",
            r#"{"_FillValue":-999,"missing_value":[-999,7]}"#,
            "_FillValue = -999s; missing_value = -999s, 7s",
        ),
        (
            "<i2",
            r#"{"_FillValue":-999.0,"missing_value":1e20}"#,
            "_FillValue = -999s; missing_value = 1e20",
        ),
        ("<i2", r#"{"_FillValue":-999.5}"#, ""),
        (
            "<i2",
            r#"{"_FillValue":40000,"missing_value":40000}"#,
            "missing_value = 40000",
        ),
        ("<i2", r#"{"_FillValue":[1,2]}"#, ""),
        (
            "|u1",
            r#"{"_FillValue":255}"#,
            "_FillValue = -1b; _Unsigned = \"true\"",
        ),
        ("|u1", r#"{"_Unsigned":"false"}"#, "_Unsigned = \"false\""),
        (
            ">f4",
            r#"{"_FillValue":1e20}"#,
            "_FillValue = 100000000000000000000f",
        ),
        (
            "<f4",
            r#"{"_FillValue":"NaN","missing_value":NaN}"#,
            "_FillValue = NaNf; missing_value = NaNf",
        ),
        ("<f8", r#"{"_FillValue":"AAAAAAAA+H8="}"#, ""),
        ("<f4", r#"{"_FillValue":"none"}"#, ""),
        (
            "<i2",
            r#"{"valid_range":[0,100],"valid_min":0.0}"#,
            "valid_range = 0s, 100s; valid_min = 0.0",
        ),
        (
            "<f4",
            r#"{"valid_range":[0,100],"flag_values":[]}"#,
            "valid_range = 0f, 100f; flag_values = \"[]\"",
        ),
        (
            "|i1",
            r#"{"flag_values":[1,2],"flag_meanings":"a b"}"#,
            "flag_values = 1b, 2b; flag_meanings = \"a b\"",
        ),
        (
            "<i2",
            r#"{"scale_factor":1,"add_offset":0.5}"#,
            "scale_factor = 1.0; add_offset = 0.5",
        ),
        ("|b1", "{}", "dtype = \"bool\""),
        (
            "|S3",
            r#"{"_FillValue":"x","missing_value":"abc"}"#,
            "_FillValue = \"x\"; missing_value = \"abc\"",
        ),
        ("|S3", r#"{"_FillValue":"abc"}"#, ""),
    ] {
        assert_eq!(
            attributes_of(&format!("\"{dtype}\""), "null", attributes),
            expected,
            "{dtype} {attributes}"
        );
    }
}

// xarray's FillValueCoder: `base64.standard_b64encode(struct.pack("<d", x))` in the attributes of
// v3; there, the fill value of the array is an ordinary value
#[test]
fn missing_values_of_v3_are_in_base64() {
    for (data_type, attributes, expected) in [
        (
            "float64",
            r#"{"_FillValue":"AAAAAAAA+H8="}"#,
            "_FillValue = NaN",
        ),
        (
            "float32",
            r#"{"_FillValue":"AAAAAAAA8L8="}"#,
            "_FillValue = -1f",
        ),
        (
            "float64",
            r#"{"_FillValue":"AAAAAICHw8A="}"#,
            "_FillValue = -9999.0",
        ),
        ("float32", r#"{"_FillValue":"none"}"#, ""),
        (
            "int16",
            r#"{"_FillValue":-5,"_ARRAY_DIMENSIONS":["x"]}"#,
            "_FillValue = -5s",
        ),
        ("int16", r#"{"_ARRAY_DIMENSIONS":["x"]}"#, ""),
    ] {
        let h = hierarchy(&[]);
        let document = format!(
            r#"{{"zarr_format":3,"node_type":"array","shape":[2],"data_type":"{data_type}","fill_value":0,"codecs":
            [{{"name":"bytes"}}],"chunk_grid":{{"name":"regular","configuration":{{"chunk_shape":[2]}}}},
            "chunk_key_encoding":{{"name":"default"}},"attributes":{attributes}}}"#
        );
        h.insert("x/zarr.json", document);
        assert_eq!(
            shown(&header(&h, "").variables[0].attributes).join("; "),
            expected,
            "{data_type} {attributes}"
        );
    }
}

// xarray reads the fill value of Zarr v2 as _FillValue
#[test]
fn the_fill_value_stands_for_missing_values() {
    let named = r#"{"_ARRAY_DIMENSIONS":["x"]}"#;
    for (dtype, fill, attributes, expected) in [
        ("<i2", "-1", named, "_FillValue = -1s"),
        (">i2", "258", named, "_FillValue = 258s"),
        ("<f8", "\"NaN\"", named, "_FillValue = NaN"),
        ("<f4", "0.0", named, "_FillValue = 0f"),
        ("<i2", "null", named, ""),
        ("<i2", "-1", "{}", ""),
        (
            "<i2",
            "-1",
            r#"{"_ARRAY_DIMENSIONS":["x"],"_FillValue":7}"#,
            "_FillValue = 7s",
        ),
        ("|b1", "false", named, "dtype = \"bool\""),
        ("|S3", "\"\"", named, ""),
    ] {
        assert_eq!(
            attributes_of(&format!("\"{dtype}\""), fill, attributes),
            expected,
            "{dtype} {fill}"
        );
    }
}

#[test]
fn datetimes_have_units_and_a_calendar() {
    let calendar = "calendar = \"proleptic_gregorian\"";
    for (dtype, fill, attributes, expected) in [
        (
            "<M8[ns]",
            "0",
            "{}",
            format!("units = \"nanoseconds since 1970-01-01 00:00:00\"; {calendar}"),
        ),
        (
            "<M8[D]",
            "0",
            r#"{"units":"s"}"#,
            format!("units = \"days since 1970-01-01 00:00:00\"; {calendar}"),
        ),
        (
            ">M8[s]",
            "\"NaT\"",
            r#"{"_ARRAY_DIMENSIONS":["x"]}"#,
            format!(
                "units = \"seconds since 1970-01-01 00:00:00\"; {calendar}; _FillValue = -9.223372036854776e18"
            ),
        ),
    ] {
        assert_eq!(
            attributes_of(&format!("\"{dtype}\""), fill, attributes),
            expected,
            "{dtype}"
        );
    }
}

#[test]
fn times_are_doubles_if_the_file_can_then_be_cdf_2() {
    let time = |units: &str| {
        format!(r#"{{"_ARRAY_DIMENSIONS":["time"],"units":"{units}","_FillValue":-1}}"#)
    };
    let days = time("days since 2000-01-01");
    let h = hierarchy(&[
        ("time", "\">i8\"", &[2], &days),
        ("t", "\"<f4\"", &[2], &dims(&["time"])),
    ]);
    let found = header(&h, "");
    assert_eq!(
        (found.version, variables(&found)),
        (
            ClassicVersion::Offset64,
            ["Float t(time=2)", "Double time(time=2)"]
                .map(String::from)
                .to_vec()
        )
    );
    assert_eq!(
        shown(&found.variables[1].attributes).join("; "),
        "units = \"days since 2000-01-01\"; _FillValue = -1.0"
    );
    let is_double = |part: &crate::FilePart| {
        matches!(
            part.content,
            PartContent::Flat {
                form: ItemForm::Double(_),
                ..
            }
        )
    };
    assert_eq!(
        file(&h)
            .parts()
            .iter()
            .filter(|part| is_double(part))
            .count(),
        1
    );
    // times stay int64 if another variable needs CDF-5, or if one of them is not exact as a double
    // or cannot be read
    let h = hierarchy(&[
        ("time", "\"<i8\"", &[2], &days),
        ("t", "\"<f4\"", &[2], &dims(&["time"])),
    ]);
    h.insert("time/0", ((1i64 << 53) + 1).to_le_bytes());
    assert_eq!(
        variables(&header(&h, "")),
        ["Float t(time=2)", "Int64 time(time=2)"]
    );
    h.insert("time/0", (1i64 << 53).to_le_bytes());
    assert_eq!(
        variables(&header(&h, "")),
        ["Float t(time=2)", "Double time(time=2)"]
    );
    h.insert("time/0", b"short".to_vec());
    assert_eq!(
        variables(&header(&h, "")),
        ["Float t(time=2)", "Int64 time(time=2)"]
    );
    let h = hierarchy(&[
        ("time", "\"<i8\"", &[2], &days),
        ("t", "\"<u4\"", &[2, 3], &dims(&["time", "x"])),
    ]);
    assert_eq!(
        variables(&header(&h, "")),
        ["UInt t(time=2, x=3)", "Int64 time(time=2)"]
    );
}

#[test]
fn large_variables_come_last_or_need_cdf_5() {
    let large = [1 << 20, 1 << 13];
    let h = hierarchy(&[("a", "\"<i2\"", &large, "{}"), ("b", "\"<i2\"", &[5], "{}")]);
    // the last variable may have any size
    assert_eq!(
        variables(&header(&h, "")),
        [
            "Short b(dim_5=5)",
            "Short a(dim_1048576=1048576, dim_8192=8192)"
        ]
    );
    assert_eq!(header(&h, "").version, ClassicVersion::Offset64);
    let h = hierarchy(&[
        ("a", "\"<i2\"", &large, "{}"),
        ("b", "\"<i4\"", &large, "{}"),
    ]);
    assert_eq!(header(&h, "").version, ClassicVersion::Data64);
    let h = hierarchy(&[("a", "\"|i1\"", &[1 << 31], "{}")]);
    assert_eq!(header(&h, "").version, ClassicVersion::Data64);
    // three of them would exceed the largest file
    let vast: &[u64] = &[1 << 62];
    let arrays = [
        ("a", "\"|i1\"", vast, "{}"),
        ("b", "\"|i1\"", vast, "{}"),
        ("c", "\"|i1\"", vast, "{}"),
    ];
    let h = hierarchy(&arrays);
    let left = shown(&header(&h, "").attributes);
    assert_eq!(
        left,
        [
            "zarrfs_left_out = \"b: makes the file larger than 2^63 bytes\\nc: makes the file larger than 2^63 bytes\""
        ]
    );
    assert!(file(&h).size() > 1 << 62);
}

#[test]
fn ten_thousand_arrays_share_dimensions() {
    let names: Vec<String> = (0..10_000).map(|n| format!("v{n}")).collect();
    let lengths: Vec<[u64; 2]> = (0..10_000).map(|n| [n % 100 + 1, 7]).collect();
    let attributes = dims(&["x", "y"]);
    let arrays = names
        .iter()
        .zip(&lengths)
        .map(|(name, shape)| (name.as_str(), "\"<f4\"", &shape[..], attributes.as_str()));
    let h = hierarchy(&arrays.collect::<Vec<_>>());
    let header = header(&h, "");
    assert_eq!(
        (header.variables.len(), header.dimensions.len()),
        (10_000, 101)
    );
    assert!(file(&h).size() > 10_000 * 4096);
}

#[test]
fn many_equal_names_are_numbered_quickly() {
    let mut names = UniqueNames::default();
    let given: HashSet<String> = (0..100_000).map(|_| names.give("\u{1}/\u{2}")).collect();
    assert_eq!(given.len(), 100_000);
}

#[test]
fn without_a_group_there_is_no_file() {
    let h = hierarchy(&[("x", "\"<i2\"", &[2], "{}")]);
    for path in ["x", "nothing"] {
        let e = dataset(
            &h,
            &Key::normalize(path).unwrap(),
            &NetcdfOptions::default(),
        )
        .unwrap_err();
        assert_eq!(e.kind(), zarrfs_base::error::Kind::NotFound);
    }
}
