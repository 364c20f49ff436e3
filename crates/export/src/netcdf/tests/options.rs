//! The version of the format, record dimensions, and strings, in the headers of groups in memory.

use super::{dims, shown, variables};
use crate::netcdf::*;
use crate::testing::{MapHierarchy, hierarchy};
use crate::{ItemForm, PartContent};

fn made(hierarchy: &dyn HierarchyReader, record: Option<&str>) -> (ClassicHeader, Composite) {
    let options = NetcdfOptions {
        record: record.map(str::to_string),
        ..NetcdfOptions::default()
    };
    let members = GroupArrays::of_group(hierarchy, &Key::root(), &options).unwrap();
    let header = header_of(&members, &hierarchy.attributes(&Key::root()).unwrap());
    let file = dataset(hierarchy, &Key::root(), &options).unwrap();
    // the offsets in the header are those of the parts
    let PartContent::Bytes(bytes) = &file.parts()[0].content else {
        panic!()
    };
    let parsed = parse::parse(bytes).unwrap();
    for variable in &parsed.variables {
        assert!(
            file.parts()
                .iter()
                .any(|part| part.at == variable.begin && part.len == variable.size),
            "{parsed:?}"
        );
    }
    if let Some(records) = file.records() {
        assert_eq!(
            (records.step, file.record_count()),
            (parsed.record_step(), parsed.record_count().unwrap())
        );
    }
    (header, file)
}

#[test]
fn integers_of_one_dimension_are_doubles_if_the_file_can_then_be_cdf_2() {
    let with_fill = r#"{"_ARRAY_DIMENSIONS":["x"],"_FillValue":7,"valid_range":[0,9]}"#;
    let h = hierarchy(&[
        ("a", "\"|u1\"", &[2, 3], "{}"),
        ("b", "\"<u2\"", &[2], with_fill),
        ("c", "\">u4\"", &[2], "{}"),
        ("d", "\"<i8\"", &[2], with_fill),
        ("e", "\"<M8[D]\"", &[2], "{}"),
        ("f", "\"<u8\"", &[], "{}"),
        ("spatial_ref", "\"<i8\"", &[], r#"{"crs_wkt":"..."}"#),
    ]);
    h.insert("d/1", (-(1i64 << 53)).to_le_bytes());
    let (header, file) = made(&h, None);
    assert_eq!(header.version, ClassicVersion::Offset64);
    let expected = [
        "Byte a(dim_2=2, dim_3=3)",
        "Double b(x=2)",
        "Double c(dim_2=2)",
        "Double d(x=2)",
        "Double e(dim_2=2)",
        "Double f()",
        "Double spatial_ref()",
    ];
    assert_eq!(variables(&header), expected);
    let attributes = |name: &str| {
        let variable = header
            .variables
            .iter()
            .find(|variable| variable.name == name)
            .unwrap();
        shown(&variable.attributes).join("; ")
    };
    let doubles = "_FillValue = 7.0; valid_range = 0.0, 9.0";
    assert_eq!(attributes("b"), doubles);
    assert_eq!(attributes("d"), doubles);
    assert!(attributes("e").contains("days since 1970-01-01"));
    let sizes = file.parts().iter().filter_map(|part| match part.content {
        PartContent::Flat {
            form: ItemForm::Double(_),
            ..
        } => Some(part.len),
        _ => None,
    });
    assert_eq!(sizes.collect::<Vec<_>>(), [16, 16, 16, 16, 8, 8]);
    // none is a double if one cannot be
    h.insert("d/1", ((1i64 << 53) + 1).to_le_bytes());
    let (header, _) = made(&h, None);
    assert_eq!(header.version, ClassicVersion::Data64);
    let expected = [
        "UByte a", "UShort b", "UInt c", "Int64 d", "Int64 e", "UInt64 f",
    ];
    for (found, expected) in variables(&header).iter().zip(expected) {
        assert!(found.starts_with(expected), "{found}");
    }
}

#[test]
fn cdf_2_has_room_for_one_large_variable() {
    let large: &[u64] = &[1 << 20, 1 << 13];
    let named = dims(&["t", "x"]);
    let version = |second: &str, record: Option<&str>| {
        let arrays = [
            ("a", "\"|i1\"", large, &*named),
            ("b", "\"<i2\"", &[2, 2][..], second),
        ];
        let h = hierarchy(&arrays);
        made(&h, record).0.version
    };
    assert_eq!(version("{}", None), ClassicVersion::Offset64);
    assert_eq!(version("{}", Some("t")), ClassicVersion::Offset64);
    let arrays = [
        ("a", "\"|i1\"", large, &*named),
        ("b", "\"<i4\"", large, "{}"),
    ];
    let h = hierarchy(&arrays);
    assert_eq!(made(&h, None).0.version, ClassicVersion::Data64);
    // records have no room behind a large variable
    assert_eq!(made(&h, Some("t")).0.version, ClassicVersion::Data64);
}

#[test]
fn the_record_dimension() {
    let h = hierarchy(&[
        ("fixed", "\"<f4\"", &[4], &dims(&["x"])),
        ("late", "\"<f4\"", &[4, 3], &dims(&["x", "time"])),
        ("other", "\"<f4\"", &[5], &dims(&["time"])),
        ("s", "\"<i2\"", &[3, 3], &dims(&["time", "time"])),
        ("t", "\"<f4\"", &[3, 4], &dims(&["time", "x"])),
        ("time", "\"<f8\"", &[3], &dims(&["time"])),
    ]);
    let (header, file) = made(&h, Some("time"));
    let expected = [
        "Float other(time_5=5)",
        "Float late(x=4, time_3=3)",
        "Float fixed(x=4)",
        "Double time(time=3)",
        "Float t(time=3, x=4)",
        "Short s(time=3, time_3=3)",
    ];
    let mut found = variables(&header);
    found.sort();
    let mut sorted = expected.map(String::from).to_vec();
    sorted.sort();
    assert_eq!(found, sorted);
    assert!(
        header
            .variables
            .iter()
            .rev()
            .take(3)
            .all(|variable| header.is_record(variable)),
        "they come last"
    );
    assert_eq!(
        file.growing.keys.iter().map(Key::name).collect::<Vec<_>>(),
        ["t", "time"]
    );
    assert_eq!(
        file.growing.fixed.as_deref(),
        Some("their dimension is not the first of \"s\""),
        "the last one that cannot become longer"
    );
    let records = file.records().unwrap();
    assert_eq!(
        (records.at % 4096, records.step, file.record_count()),
        (0, 8 + 16 + 8, 3)
    );
    assert_eq!(file.size(), records.at + 3 * 32);
    // a single record variable has no padding, and none at all is a file without records
    let h = hierarchy(&[("s", "\"|i1\"", &[5, 3], &dims(&["time", "x"]))]);
    let (header, file) = made(&h, Some("time"));
    assert_eq!(
        (header.record_step(), file.size()),
        (3, file.records().unwrap().at + 15)
    );
    let (header, file) = made(&h, Some("depth"));
    assert_eq!((header.record_count(), file.records()), (None, None));
}

#[test]
fn records_may_be_none() {
    let h = hierarchy(&[
        ("t", "\"<f4\"", &[0, 4], &dims(&["time", "x"])),
        ("u", "\"<f4\"", &[0, 0], &dims(&["time", "y"])),
        ("time", "\"<f8\"", &[0], &dims(&["time"])),
    ]);
    let (header, file) = made(&h, Some("time"));
    assert_eq!(variables(&header).len(), 2);
    assert_eq!(file.left_out, ["u: a dimension has length 0"]);
    assert_eq!(
        (file.record_count(), file.size()),
        (0, file.records().unwrap().at)
    );
    assert_eq!(made(&h, None).1.left_out.len(), 3);
}

/// A v2 array of strings in chunks of two, in the given order.
fn strings(order: &str, chunks: &[(&str, &[&str])]) -> MapHierarchy {
    let h = hierarchy(&[]);
    let document = format!(
        r#"{{"zarr_format":2,"shape":[3,2],"chunks":[2,2],"dtype":"|O","compressor":null,"fill_value":"?",
        "order":"{order}","filters":[{{"id":"vlen-utf8"}}]}}"#
    );
    h.insert("s/.zarray", document);
    h.insert("s/.zattrs", dims(&["time", "x"]));
    for (key, texts) in chunks {
        let mut bytes = (texts.len() as u32).to_le_bytes().to_vec();
        for text in *texts {
            bytes.extend((text.len() as u32).to_le_bytes());
            bytes.extend(text.bytes());
        }
        h.insert(&format!("s/{key}"), bytes);
    }
    h
}

fn values(file: &Composite) -> String {
    let values = file.parts().iter().find_map(|part| match &part.content {
        PartContent::Values { bytes, .. } => {
            Some(String::from_utf8_lossy(bytes).replace('\0', "_"))
        }
        _ => None,
    });
    values.unwrap_or_default()
}

#[test]
fn strings_are_letters() {
    let h = hierarchy(&[("u", "\"<U3\"", &[2], r#"{"_FillValue":"n/a"}"#)]);
    let (header, file) = made(&h, None);
    assert_eq!(variables(&header), ["Char u(dim_2=2, string12=12)"]);
    assert_eq!(
        shown(&header.variables[0].attributes),
        ["_Encoding = \"utf-8\""]
    );
    assert!(
        file.parts()
            .iter()
            .any(|part| part.is_flat() && part.len == 24)
    );

    let chunk: (&str, &[&str]) = ("0.0", &["a", "bcd", "ä", ""]);
    let h = strings("C", &[chunk]);
    let (header, file) = made(&h, None);
    assert_eq!(variables(&header), ["Char s(time=3, x=2, string3=3)"]);
    assert_eq!(values(&file), "a__bcdä____?__?__");
    let (header, file) = made(&h, Some("time"));
    assert_eq!(
        (header.record_count(), header.record_step(), values(&file)),
        (Some(3), 6, "a__bcdä____?__?__".into())
    );
    assert_eq!(
        values(&made(&strings("F", &[chunk]), None).1),
        "a__ä_bcd___?__?__"
    );
}

#[test]
fn strings_that_cannot_be_shown_are_named() {
    let long = "x".repeat(1 << 20);
    for (texts, expected) in [
        (
            ["a", "b", "c", long.as_str()].as_slice(),
            "take more than 4194304 bytes",
        ),
        (&["a", "b"], "a chunk has too few strings"),
    ] {
        let (header, file) = made(&strings("C", &[("0.0", texts)]), None);
        assert!(
            header.variables.is_empty() && file.left_out[0].contains(expected),
            "{:?}",
            file.left_out
        );
    }
    let h = hierarchy(&[]);
    let document = r#"{"zarr_format":2,"shape":[2],"chunks":[2],"dtype":"|O","compressor":null,"fill_value":null,
        "order":"C","filters":[{"id":"msgpack2"}]}"#;
    h.insert("s/.zarray", document);
    assert_eq!(
        made(&h, None).1.left_out,
        ["s: netCDF has no type for \"|O\""]
    );
}
