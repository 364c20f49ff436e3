use super::super::{ImageChannel, PartContent, testing};
use super::*;

fn unpacked(metadata: &ArrayMetadata, attributes: &Map<String, Value>) -> Option<ArrayView> {
    ArrayView::unpacked(metadata, attributes, false)
}

fn attributes(text: &str) -> Object {
    zarrfs_base::json::parse_object(text.as_bytes()).unwrap()
}

#[test]
fn a_view_of_physical_values_is_an_array_of_floats() {
    let packed = testing::metadata("\">i2\"", &[4, 6]);
    assert_eq!(unpacked(&packed, &attributes("{}")), None);
    let view = unpacked(&packed, &attributes(r#"{"scale_factor":0.5}"#)).unwrap();
    assert_eq!(
        (view.range.clone(), view.metadata.flat_size(), view.end()),
        (0..48, 192, None)
    );
    assert_eq!(
        (
            view.form.stored_item(),
            view.form.shown_item(),
            view.form.shown_size(8)
        ),
        (2, 8, Some(32))
    );
    let array = Described {
        scale: Some(0.5),
        offset: Some(1.0),
        ..testing::model()
    };
    let described = view.describe(&array);
    assert_eq!(
        (described.scale, described.offset, described.nodata),
        (None, None, None)
    );
    assert_eq!(
        (described.units.as_ref(), &described.metadata),
        (array.units.as_ref(), &view.metadata)
    );
    for name in ["scale_factor", "add_offset", "_FillValue", "valid_min"] {
        assert!(!described.attributes.contains_key(name), "{name}");
    }
    let file = view.file(Format::Npy, &described, &packed).unwrap();
    let PartContent::Bytes(header) = &file.parts()[0].content else {
        panic!("{:?}", file.parts()[0])
    };
    assert!(
        String::from_utf8_lossy(header).contains("'<f8', 'fortran_order': False, 'shape': (4, 6)")
    );
    assert!(file.parts()[1].len == 192 && file.parts()[1].is_of(&packed));
    let missing = unpacked(&packed, &attributes(r#"{"_FillValue":1}"#))
        .unwrap()
        .describe(&array);
    assert!(
        missing
            .nodata
            .is_some_and(|nodata| nodata.as_f64().is_nan())
            && missing.metadata.dtype.size() == 4
    );
}

#[test]
fn views_stay_below_the_largest_file_size() {
    let packing = attributes(r#"{"scale_factor":0.5}"#);
    assert_eq!(
        unpacked(&testing::metadata("\"|u1\"", &[1 << 61]), &packing),
        None
    );
    assert!(unpacked(&testing::metadata("\"|u1\"", &[1 << 59]), &packing).is_some());
    assert!(
        unpacked(
            &testing::metadata("\"|u1\"", &[1 << 62, 0, 1 << 62]),
            &packing
        )
        .is_some()
    );
}

#[test]
fn slices_are_ranges_of_the_flat_bytes() {
    let array = testing::metadata("\"<i2\"", &[3, 4, 5, 6]);
    let slice = |indices: &[u64]| ArrayView::slice(&array, indices);
    assert_eq!(slice(&[]).unwrap().range, 0..720);
    let volume = slice(&[2]).unwrap();
    assert_eq!(
        (volume.range.clone(), volume.metadata.shape.as_slice()),
        (480..720, &[4, 5, 6][..])
    );
    let plane = slice(&[1, 3]).unwrap();
    assert_eq!(
        (
            plane.range.clone(),
            plane.metadata.shape.as_slice(),
            plane.end()
        ),
        (420..480, &[5, 6][..], Some(480))
    );
    assert_eq!(
        (slice(&[3]), slice(&[0, 4]), slice(&[0, 0, 0, 0, 0])),
        (None, None, None)
    );
    let described = Described::of_metadata(&zarrfs_base::key::Key::root(), &array);
    let described = plane.describe(&described);
    assert_eq!(
        described
            .axes
            .iter()
            .map(|axis| axis.len)
            .collect::<Vec<_>>(),
        [5, 6]
    );
    let channels = vec![ImageChannel {
        name: Some("DAPI".into()),
        color: None,
    }];
    let image = |axis| {
        Some(ImageInfo {
            name: None,
            channel_axis: Some(axis),
            channels: channels.clone(),
        })
    };
    let described = Described {
        image: image(1),
        ..Described::of_metadata(&zarrfs_base::key::Key::root(), &array)
    };
    assert_eq!(volume.describe(&described).image, image(0));
    assert_eq!(
        plane.describe(&described).image,
        Some(ImageInfo::default()),
        "a plane is of one channel"
    );
    let empty = testing::metadata("\"<i2\"", &[1 << 62, 1 << 62, 0]);
    assert_eq!(ArrayView::slice(&empty, &[1 << 61]).unwrap().range, 0..0);
}

#[test]
fn views_know_the_array_that_they_are_of() {
    let array = |dtype: &str, shape: &[u64]| testing::metadata(&format!("{dtype:?}"), shape);
    let opened = array("<i2", &[3, 4, 5]);
    let values = unpacked(&opened, &attributes(r#"{"scale_factor":0.5}"#)).unwrap();
    let slice = ArrayView::slice(&opened, &[1]).unwrap();
    for (now, of_values, of_slice) in [
        (array("<i2", &[3, 4, 5]), true, true),
        (array("<i2", &[9, 4, 5]), true, true),
        (array("<i2", &[1, 4, 5]), true, false),
        (array("<i2", &[3, 5, 4]), false, false),
        (array("<u2", &[3, 4, 5]), false, false),
        (array("<i2", &[12, 5]), false, false),
    ] {
        assert_eq!(
            (values.is_of(&opened, &now), slice.is_of(&opened, &now)),
            (of_values, of_slice),
            "{now:?}"
        );
    }
}

#[test]
fn hostile_metadata_makes_no_large_view() {
    let packing = attributes(
        r#"{"scale_factor":1e-300,"add_offset":1e300,"missing_value":[1e400,-1,"x",null,[]]}"#,
    );
    for array in testing::hostile() {
        let stored = &array.metadata;
        let values = unpacked(stored, &packing).into_iter();
        let slices = (0..stored.shape.len()).filter_map(|n| ArrayView::slice(stored, &vec![0; n]));
        for view in values.chain(slices) {
            let described = view.describe(&array);
            let describes =
                |format: &Format| !format.reads_values() && format.fits(&described.metadata);
            for format in Format::ALL.into_iter().filter(describes) {
                let file = view.file(format, &described, stored).unwrap();
                let own: u64 = file
                    .parts()
                    .iter()
                    .filter(|part| part.content.is_own())
                    .map(|part| part.len)
                    .sum();
                assert!(own < 1 << 20, "{format:?}: {own} bytes");
            }
        }
    }
}
