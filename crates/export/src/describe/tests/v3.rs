//! Descriptions of v3 arrays.

use super::*;
use crate::Format;
use crate::{ImageChannel, ImageInfo};
use zarrfs_base::json::json;

/// Adds an array of v3 with these other fields, in a store of v3.
fn with_array(case: Case, path: &str, data_type: &str, shape: &[u64], more: Value) -> Case {
    let chunks: Vec<u64> = shape.iter().map(|len| *len.max(&1)).collect();
    let mut document = json!({"zarr_format": 3, "node_type": "array", "shape": shape, "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}}, "fill_value": 7,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}]});
    document
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    case.value(&format!("{path}/zarr.json"), &json::write(&document))
}

/// "dimension_names" (Zarr v3.1); `_ARRAY_DIMENSIONS`, which older programs read, comes first.
#[test]
fn documents_name_dimensions() {
    let case = case();
    let case = with_array(
        case,
        "a",
        "int16",
        &[2, 3],
        json!({"dimension_names": ["lat", null]}),
    );
    let both =
        json!({"dimension_names": ["p", "q"], "attributes": {"_ARRAY_DIMENSIONS": ["y", "x"]}});
    let case = with_array(case, "both", "int16", &[2, 3], both);
    let case = with_array(
        case,
        "none",
        "int16",
        &[2, 3],
        json!({"dimension_names": null}),
    );
    let case = with_array(
        case,
        "lat",
        "float64",
        &[2],
        json!({"attributes": {"units": "degrees_north"}}),
    );
    let a = case.describe("a");
    assert_eq!(
        (names(&a), roles(&a)[0]),
        (vec![Some("lat"), None], Role::Y)
    );
    // every v3 array has a fill value: xarray does not treat it as missing
    assert_eq!(a.nodata, None);
    assert_eq!(names(&case.describe("both")), [Some("y"), Some("x")]);
    assert_eq!(names(&case.describe("none")), [None; 2]);
    assert_eq!(case.describe("both").nodata, None);
}

/// xarray's `FillValueCoder`: `base64.standard_b64encode(struct.pack("<d", -9999.0))` is
/// `AAAAAICHw8A=`.
#[test]
fn missing_values_may_be_in_base64() {
    let nodata = |data_type: &str, fill: &str| {
        let case = with_array(
            case(),
            "a",
            data_type,
            &[1],
            json!({"attributes": {"_FillValue": fill}}),
        );
        case.describe("a").nodata
    };
    assert_eq!(
        nodata("float64", "AAAAAICHw8A="),
        Some(MetadataNumber::Float(-9999.0))
    );
    assert_eq!(
        nodata("float32", "AAAAAICHw8A="),
        Some(MetadataNumber::Float(-9999.0))
    );
    assert!(nodata("float32", "AAAAAAAA+H8=").is_some_and(|number| number.as_f64().is_nan()));
    assert_eq!(nodata("int16", "AAAAAICHw8A="), None);
    assert_eq!(nodata("float64", "x"), None);
}

/// "The OME-Zarr Metadata is stored in the attributes under the `ome` key" (OME-Zarr 0.5).
#[test]
fn an_image_of_ome_zarr_0_5_is_described() {
    let group = json!({"zarr_format": 3, "node_type": "group", "attributes": {"ome": {"version": "0.5",
        "multiscales": [{"axes": [{"name": "c", "type": "channel"},
            {"name": "y", "type": "space", "unit": "micrometer"}, {"name": "x", "type": "space"}],
            "datasets": [{"path": "0", "coordinateTransformations": [{"type": "scale", "scale": [1, 0.5, 0.25]}]}]}],
        "omero": {"channels": [{"label": "DAPI", "color": "0000FF"}]}}}});
    let case = case().value("image/zarr.json", &json::write(&group));
    let image = with_array(case, "image/0", "uint16", &[2, 3, 4], json!({})).describe("image/0");
    assert_eq!(names(&image), [Some("c"), Some("y"), Some("x")]);
    assert_eq!(
        places(&image),
        [Coordinates::Unknown, regular(0.0, 0.5), regular(0.0, 0.25)]
    );
    assert_eq!(image.axes[1].units.as_deref(), Some("micrometer"));
    let channels = vec![ImageChannel {
        name: Some("DAPI".into()),
        color: Some(0xff),
    }];
    assert_eq!(
        image.image,
        Some(ImageInfo {
            name: None,
            channel_axis: Some(0),
            channels
        })
    );
}

#[test]
fn types_that_numpy_lacks_have_no_header() {
    let case = with_array(case(), "a", "bfloat16", &[4, 6], json!({"fill_value": 0}));
    let big =
        json!({"codecs": [{"name": "bytes", "configuration": {"endian": "big"}}], "fill_value": 0});
    let case = with_array(case, "big", "bfloat16", &[4], big);
    let case = with_array(case, "int4", "int4", &[4], json!({}));
    for (path, item) in [
        (
            "a",
            "bfloat16, which most programs see as bytes, 2 bytes, little-endian\n",
        ),
        (
            "big",
            "bfloat16, which most programs see as bytes, 2 bytes, big-endian\n",
        ),
        ("int4", "int4, which most programs see as bytes, 1 bytes\n"),
    ] {
        let described = case.describe(path);
        let fitting: Vec<Format> = Format::ALL
            .into_iter()
            .filter(|f| f.fits(&described.metadata))
            .collect();
        assert_eq!(fitting, [Format::Readme], "{path}");
        let file = Format::Readme.file(&described).unwrap();
        let text = file.parts().iter().find_map(|part| match &part.content {
            crate::PartContent::Bytes(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
            _ => None,
        });
        assert!(text.as_ref().unwrap().contains(item), "{text:?}");
    }
}
