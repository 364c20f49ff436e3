use super::super::super::described::{Coordinates, DescribedAxis, ImageChannel, ImageInfo};
use super::super::super::testing;
use super::*;
use zarrfs_format::metadata::ArrayMetadata;

/// Returns bytes over time, channel, z, y and x.
fn image() -> Described {
    let mut array = testing::microscopy();
    let coordinates = Coordinates::Regular {
        first: 3.0,
        step: 1.5,
    };
    let [c, ..] = array.axes.as_slice() else {
        panic!()
    };
    let t = DescribedAxis {
        role: Role::Time,
        units: Some("minute".into()),
        coordinates,
        len: 7,
        ..c.clone()
    };
    array.axes.insert(0, t);
    array.metadata = metadata(&array, "|u1");
    let channel = |name: Option<&str>, color| ImageChannel {
        name: name.map(str::to_string),
        color,
    };
    let channels = vec![
        channel(Some("DAPI <1> \"\u{b5}\"\u{1}\n&\u{1f52c}"), Some(0x0000ff)),
        channel(None, Some(0xff0080)),
    ];
    array.image = Some(ImageInfo {
        name: Some("cells & more".into()),
        channel_axis: Some(1),
        channels,
    });
    array
}

fn metadata(array: &Described, dtype: &str) -> ArrayMetadata {
    let lengths: Vec<u64> = array.axes.iter().map(|axis| axis.len).collect();
    testing::metadata(&format!("{dtype:?}"), &lengths)
}

fn text(array: &Described) -> Option<String> {
    description(array, &Raster::of(&array.metadata).unwrap())
}

#[test]
fn a_whole_description() {
    let expected = format!(
        r#"<?xml version="1.0" encoding="UTF-8"?>
<OME xmlns="{SCHEMA}" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:schemaLocation="{SCHEMA} {SCHEMA}/ome.xsd" Creator="zarrfs {}">
<Image ID="Image:0" Name="cells &amp; more">
<Pixels ID="Pixels:0" DimensionOrder="XYZCT" Type="uint8" BigEndian="false" Interleaved="false" SizeX="5" SizeY="4" SizeZ="3" SizeC="2" SizeT="7" PhysicalSizeX="0.5" PhysicalSizeXUnit="µm" PhysicalSizeY="0.5" PhysicalSizeYUnit="µm" PhysicalSizeZ="2" PhysicalSizeZUnit="µm" TimeIncrement="1.5" TimeIncrementUnit="min">
<Channel ID="Channel:0:0" Name="DAPI &lt;1&gt; &quot;µ&quot;  &amp;�" Color="65535" SamplesPerPixel="1"/>
<Channel ID="Channel:0:1" Color="-16744193" SamplesPerPixel="1"/>
<TiffData IFD="0" PlaneCount="42"/>
</Pixels>
</Image>
</OME>"#,
        env!("CARGO_PKG_VERSION")
    );
    assert_eq!(text(&image()).unwrap(), expected);
}

#[test]
fn the_order_of_dimensions_is_that_of_the_pages() {
    let order = |array: &Described| {
        let text = text(array).unwrap();
        text.split_once("DimensionOrder=\"")
            .unwrap()
            .1
            .split_once('"')
            .unwrap()
            .0
            .to_string()
    };
    let mut array = image();
    assert_eq!(order(&array), "XYZCT");
    // t, z, c
    array.axes.swap(1, 2);
    array.image.as_mut().unwrap().channel_axis = Some(2);
    array.metadata = metadata(&array, ">i2");
    assert_eq!(order(&array), "XYCZT");
    assert!(
        text(&array)
            .unwrap()
            .contains("Type=\"int16\" BigEndian=\"true\"")
    );
    // z and c alone
    array.axes.remove(0);
    array.image.as_mut().unwrap().channel_axis = Some(1);
    array.metadata = metadata(&array, "<f4");
    assert_eq!(order(&array), "XYCZT");
    array.axes.drain(..2);
    array.image.as_mut().unwrap().channel_axis = None;
    array.metadata = metadata(&array, "<f4");
    assert_eq!(order(&array), "XYZCT");
    assert_eq!(text(&array).unwrap().matches("<Channel").count(), 1);
}

#[test]
fn sizes_in_unknown_units() {
    let mut array = image();
    for axis in &mut array.axes {
        axis.units = None;
    }
    array.axes[2].coordinates = Coordinates::Regular {
        first: 0.0,
        step: 1.0,
    };
    array.axes[3].coordinates = Coordinates::Regular {
        first: 0.0,
        step: 1e-300,
    };
    let text = text(&array).unwrap();
    assert!(
        text.contains("PhysicalSizeX=\"0.5\" PhysicalSizeXUnit=\"reference frame\">"),
        "{text}"
    );
    let mut tags = Tags::new();
    pixels_per_centimeter(&array, &mut tags);
    assert!(tags.is_empty());
    pixels_per_centimeter(&image(), &mut tags);
    assert_eq!(
        tags[&resolution::X],
        TagValue::Rational(1_000_000_000, 50_000)
    );
}

#[test]
fn what_the_schema_lacks() {
    let mut wide = image();
    wide.metadata = metadata(&wide, "<u8");
    assert_eq!(text(&wide), None);
    let mut other = image();
    other.image.as_mut().unwrap().channel_axis = None;
    assert_eq!(text(&other), None);
    other.axes[1].len = 1;
    other.metadata = metadata(&other, "|u1");
    assert!(
        text(&other)
            .unwrap()
            .contains("SizeZ=\"3\" SizeT=\"7\" SizeC=\"1\"")
    );
    let mut turned = image();
    turned.axes.swap(3, 4);
    turned.metadata = metadata(&turned, "|u1");
    assert_eq!(text(&turned), None);
    let plain = Described {
        image: None,
        ..image()
    };
    assert_eq!(text(&plain), None);
}

#[test]
fn hostile_descriptions_stay_small() {
    let mut array = image();
    array.axes[1].len = 65_536 / 21;
    array.metadata = metadata(&array, "|u1");
    let long = Some("\u{1}<&\"\u{10ffff}".repeat(10_000));
    let channel = ImageChannel {
        name: long.clone(),
        color: Some(0),
    };
    array.image = Some(ImageInfo {
        name: long.clone(),
        channel_axis: Some(1),
        channels: vec![channel; 1024],
    });
    array.axes[4].units = long;
    let text = text(&array).unwrap();
    assert!(text.len() < 4 << 20, "{}", text.len());
    assert_eq!(text.matches("<Channel").count(), 65_536 / 21);
}
