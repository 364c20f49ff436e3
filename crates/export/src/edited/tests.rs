use super::super::testing;
use super::super::{Described, PartContent};
use super::*;

/// Returns the text of an array's file.
fn shown(format: Format, array: &Described) -> String {
    let file = format.file(array).unwrap();
    let text = file.parts().iter().map(|part| match &part.content {
        PartContent::Bytes(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
        PartContent::Bands(bands) => bands.text(),
        _ => String::new(),
    });
    text.collect()
}

/// Returns what a written `data.vrt` changes of an array.
fn edits(array: &Described, written: &str) -> TextEdits {
    let edited = EditedArray {
        attributes: &array.attributes,
        has_place: true,
    };
    let shown = shown(Format::Vrt, array);
    text_edits(Some(Format::Vrt), &shown, written, Some(&edited))
}

/// The file of one band as GDAL 3.6 rewrites it.
fn by_gdal() -> (Described, String) {
    let mut array = testing::geographic();
    array.axes.remove(0);
    array.metadata = testing::metadata("\"<f4\"", &[6, 10]);
    let text = r#"<VRTDataset rasterXSize="10" rasterYSize="6">
  <SRS dataAxisToSRSAxisMapping="2,1">GEOGCS["WGS 84",DATUM["WGS_1984",SPHEROID["WGS 84",6378137,298.257223563,AUTHORITY["EPSG","7030"]],AUTHORITY["EPSG","6326"]],PRIMEM["Greenwich",0,AUTHORITY["EPSG","8901"]],UNIT["degree",0.0174532925199433,AUTHORITY["EPSG","9122"]],AUTHORITY["EPSG","4326"]]</SRS>
  <GeoTransform>  9.8750000000000000e+00,  2.5000000000000000e-01,  0.0000000000000000e+00,  5.0250000000000000e+01,  0.0000000000000000e+00, -5.0000000000000000e-01</GeoTransform>
  <Metadata>
    <MDI key="units">degrees &#67;</MDI>
    <MDI key="A/1">B &amp; C</MDI>
    <MDI key="valid_min">151</MDI>
  </Metadata>
  <Metadata domain="IMAGE_STRUCTURE">
    <MDI key="INTERLEAVE">BAND</MDI>
  </Metadata>
  <VRTRasterBand dataType="Float32" band="1" blockYSize="1" subClass="VRTRawRasterBand">
    <Description>data</Description>
    <NoDataValue>-9999</NoDataValue>
    <UnitType>K</UnitType>
    <SourceFilename relativeToVRT="1">data.raw</SourceFilename>
    <ImageOffset>0</ImageOffset>
    <PixelOffset>4</PixelOffset>
    <LineOffset>40</LineOffset>
    <ByteOrder>LSB</ByteOrder>
  </VRTRasterBand>
</VRTDataset>
"#;
    let shown = shown(Format::Vrt, &array);
    let (_, rest) = shown.split_once("<Description>").unwrap();
    let (label, _) = rest.split_once('<').unwrap();
    let text = text.replace("<Description>data", &format!("<Description>{label}"));
    (array, text)
}

#[test]
fn changes_by_gdal_are_found() {
    let (array, text) = by_gdal();
    assert_eq!(
        edits(&array, &shown(Format::Vrt, &array)),
        TextEdits::default()
    );
    let found = edits(&array, &text);
    let attributes: Vec<_> = found
        .attributes
        .iter()
        .map(|(name, v)| (name.as_str(), v.as_ref().map(json::write)))
        .collect();
    let text_of = |text: &str| Some(text.to_string());
    assert_eq!(
        attributes,
        [
            ("long_name", None),
            ("units", text_of("\"degrees C\"")),
            ("valid_min", text_of("151")),
            ("A/1", text_of("\"B & C\"")),
        ]
    );
    assert!(found.lost.is_empty(), "{:?}", found.lost);
    let other = text.replace("-9999", "0").replace("9.875", "9.5");
    let lost = ["GeoTransform", "NoDataValue of VRTRasterBand"];
    assert_eq!(edits(&array, &other).lost, lost);
}

#[test]
fn other_rasters_and_invalid_files_change_nothing() {
    let (array, text) = by_gdal();
    for (old, new, lost) in [
        ("XSize=\"10\"", "XSize=\"11\"", "rasterXSize"),
        ("Float32", "Float64", "dataType of VRTRasterBand"),
    ] {
        let found = edits(&array, &text.replace(old, new));
        assert!(found.attributes.is_empty(), "{new}");
        assert!(found.lost.contains(&lost.to_string()), "{:?}", found.lost);
        assert!(found.lost.contains(&"units of Metadata".to_string()));
    }
    let deep = "<a>".repeat(100) + &"</a>".repeat(100);
    let texts = [
        "something else",
        "<VRTDataset>",
        "<a><b></a>",
        "<a/><a/>",
        &deep,
    ];
    let cut = (1..text.trim_end().len()).filter_map(|len| text.get(..len));
    for text in texts.into_iter().chain(cut) {
        let found = edits(&array, text);
        assert_eq!(found.lost, ["a text that is no data.vrt"], "{text}");
        assert!(found.attributes.is_empty());
    }
}

#[test]
fn long_texts_are_compared_as_far_as_they_go() {
    let array = testing::plain("<f4", &[20_000, 2, 2]);
    let whole = shown(Format::Vrt, &array);
    let text = &whole[..MAX_TEXT];
    // other programs need more or fewer bytes for a band
    let respelled = whole.replace("subClass=", "blockYSize=\"1\" subClass=");
    let found = |written: &str| text_edits(Some(Format::Vrt), text, &written[..MAX_TEXT], None);
    assert_eq!(found(&respelled), TextEdits::default());
    let renamed = respelled.replacen("dim0[3]", "three", 1);
    assert_eq!(found(&renamed).lost, ["Description of VRTRasterBand"]);
    let removed = whole.replacen("    <PixelOffset>4</PixelOffset>\n", "", 1);
    assert_eq!(found(&removed).lost, ["PixelOffset of VRTRasterBand"]);
    let many = "<a/>".repeat(MAX_TEXT / 8);
    let many = format!("<VRTDataset>{many}</VRTDataset>");
    let parsed = HeaderElements::parse(HeaderSyntax::Xml, &many).unwrap();
    assert!(parsed.values.len() <= MAX_ELEMENTS);
    let lines = "1 2\n".repeat(MAX_TEXT / 4);
    let other = lines.replacen('1', "3", 1);
    let found = text_edits(None, &lines, &other, None);
    assert_eq!(
        (found.lost_names().as_str(), found.lost.len()),
        ("line 1", 1)
    );
}

#[test]
fn respelled_numbers_and_systems_are_the_same() {
    let is_respelled = |shown, written| {
        ElementChange {
            path: "x",
            shown: Some(shown),
            written: Some(written),
        }
        .is_respelled()
    };
    assert!(is_respelled("1.25, 0", "  1.2500000000000000e+00,\n 0.0"));
    assert!(is_respelled("{a, b}", "{ a,b }") && is_respelled("nan", "NaN"));
    assert!(
        !is_respelled("1.25", "1.250001") && !is_respelled("1 2", "1") && !is_respelled("a", "b")
    );
    let utm = describe::system_for_gdal("EPSG:32632").unwrap();
    assert_eq!(
        json::write(&utm),
        r#"{"url":"http://www.opengis.net/def/crs/EPSG/0/32632"}"#
    );
    let version_2 = r#"PROJCRS["mine",BASEGEOGCRS["x",DATUM["x",ELLIPSOID["WGS 84",6378137,298.257223563]]],CONVERSION["x",METHOD["Transverse Mercator"],PARAMETER["Latitude of natural origin",0],PARAMETER["Longitude of natural origin",9.0]],CS[Cartesian,2]]"#;
    let version_1 = r#"PROJCS["mine",GEOGCS["x",DATUM["x",SPHEROID["WGS 84",6378137,298.257223563]]],PROJECTION["Transverse_Mercator"],PARAMETER["central_meridian",9]]"#;
    assert!(describe::is_same_system(version_2, version_1));
    for (from, to) in [
        ("mine", "other"),
        ("\",9]", "\",15]"),
        ("6378137", "6378388"),
    ] {
        let other = version_1.replace(from, to);
        assert!(!describe::is_same_system(version_2, &other), "{to}");
    }
    assert!(!describe::is_same_system("EPSG:4326", "EPSG:32632"));
    assert!(describe::is_same_system("EPSG:4326", describe::WGS_84));
    for text in ["", "x", "+proj=utm +zone=32", "{}", "a:b:c", "{\"type\":1}"] {
        assert!(!describe::is_same_system(text, "EPSG:4326"), "{text}");
    }
    assert_eq!(describe::system_for_gdal("+proj=utm +zone=32"), None);
}
