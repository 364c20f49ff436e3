//! GDAL's virtual raster over `data.raw`: a `VRTRawRasterBand` for each band
//! (<https://gdal.org/en/stable/drivers/raster/vrt.html>). GDAL reads 8-bit signed integers since
//! version 3.7 and 64-bit integers since 3.5.

use super::describe::WGS_84;
use super::described::{Coordinates, Crs, Described};
use super::raster::{self, Interleave, Raster};
use super::spelling::{self, float, floats, xml};
use super::{Composite, ElementUse, FormatSpec, HeaderSyntax};
use std::sync::Arc;
use zarrfs_base::json;
use zarrfs_base::key::Key;
use zarrfs_format::metadata::ArrayMetadata;

/// The format.
pub(super) const FORMAT: FormatSpec = FormatSpec {
    name: "data.vrt",
    id: "vrt",
    readers: Some("GDAL, QGIS, rasterio: gdalinfo data.vrt"),
    fits,
    syntax: HeaderSyntax::Xml,
    elements: &[
        ("rasterXSize", ElementUse::Layout),
        ("rasterYSize", ElementUse::Layout),
        ("VRTRasterBand/dataType", ElementUse::Layout),
        ("Metadata/*", ElementUse::Attribute),
        ("SRS", ElementUse::ReferenceSystem),
        ("SRS/dataAxisToSRSAxisMapping", ElementUse::Spelling),
        ("Metadata IMAGE_STRUCTURE/*", ElementUse::Spelling),
        ("VRTRasterBand/blockXSize", ElementUse::Spelling),
        ("VRTRasterBand/blockYSize", ElementUse::Spelling),
        ("XML declaration", ElementUse::Spelling),
    ],
    header: |array| Ok(file(array)),
    ..FormatSpec::DEFAULT
};

/// Maximum number of bands, GDAL's own default limit.
const MAX_BANDS: u64 = 65536;

/// Maximum length of an attribute in bytes; longer ones are left out.
const MAX_ATTRIBUTE: usize = 1000;

/// Maximum number of bytes from the first to the last item of a row, if other rows have items in
/// between: GDAL reads all these bytes for each row.
const MAX_SPAN: u64 = 8 << 20;

/// Returns whether the array holds numbers, a row has fewer than 2^31 bytes, and there are at most
/// 65536 bands.
fn fits(metadata: &ArrayMetadata) -> bool {
    data_type(metadata).is_some()
        && Raster::of(metadata).is_some_and(|raster| can_show(&raster, metadata))
}

/// Returns whether the file states the reference system of the array, if that is known.
pub fn has_place(array: &Described) -> bool {
    let raster = Raster::upright(array, |raster| can_show(raster, &array.metadata));
    raster.is_some_and(|raster| raster.is_map(array))
}

/// Returns whether GDAL reads such a raster in reasonable time.
fn can_show(raster: &Raster, metadata: &ArrayMetadata) -> bool {
    let item = metadata.dtype.size() as u64;
    let row = raster
        .columns
        .saturating_mul(raster.column_step)
        .saturating_mul(item);
    let most = if raster.interleave == Interleave::Mixed {
        MAX_SPAN
    } else {
        i32::MAX as u64
    };
    let has_offsets = raster.row_bytes(metadata) <= i32::MAX as u64;
    raster.bands <= MAX_BANDS && row <= most && has_offsets
}

/// Number of bands whose text is generated together when a part of it is read.
const BLOCK: u64 = 64;

/// Number of bands above which the text of each band is kept short.
const MANY_BANDS: u64 = 1024;

/// Maximum number of characters of a label or a unit if there are many bands.
const SHORT: usize = 48;

/// Makes the file. The text of its bands is generated when it is read, in blocks, so that many
/// bands take no memory.
fn file(array: &Described) -> Composite {
    let metadata = &array.metadata;
    let raster = Raster::upright(array, |raster| can_show(raster, metadata));
    let (Some(raster), Some(data_type)) = (raster, data_type(metadata)) else {
        return Composite::default();
    };
    let mut head = format!(
        "<VRTDataset rasterXSize=\"{}\" rasterYSize=\"{}\">\n",
        raster.columns, raster.rows
    );
    head.push_str(&place(array, &raster));
    head.push_str(&attributes(array));
    head.push_str(&geolocation(array));
    let letters = if raster.bands > MANY_BANDS {
        SHORT
    } else {
        usize::MAX
    };
    let mut labels = Described {
        attributes: Arc::default(),
        crs: None,
        ..array.clone()
    };
    // labels show only the coordinates of bands
    for (dimension, axis) in labels.axes.iter_mut().enumerate() {
        if !raster.is_of_bands(dimension) {
            axis.coordinates = Coordinates::Unknown;
            axis.labels = Arc::default();
        }
    }
    let same = Arc::new(EachBand {
        raster,
        data_type,
        letters,
        meaning: meaning(array, letters),
        labels,
    });
    let mut file = Composite::default();
    file.push_bytes(head.into());
    for first in (0..raster.bands).step_by(BLOCK as usize) {
        file.push_bands(Bands {
            same: same.clone(),
            first,
        });
    }
    file.push_bytes(b"</VRTDataset>\n".to_vec());
    file
}

/// A block of bands.
#[derive(Clone, Debug, PartialEq)]
pub struct Bands {
    same: Arc<EachBand>,
    /// The index of the first band.
    first: u64,
}

/// The values that all bands share.
#[derive(Debug, PartialEq)]
struct EachBand {
    raster: Raster,
    data_type: &'static str,
    /// Maximum number of characters of a label.
    letters: usize,
    meaning: String,
    /// The array, reduced to what labels need.
    labels: Described,
}

impl Bands {
    /// Returns the text of all bands of the block.
    pub fn text(&self) -> String {
        let EachBand {
            raster,
            data_type,
            letters,
            meaning,
            labels,
        } = &*self.same;
        let metadata = &labels.metadata;
        let item = metadata.dtype.size() as u64;
        let pixel = raster.column_step * item;
        let line = raster.row_step * item;
        let byte_order = if metadata.dtype.is_big_endian() {
            "MSB"
        } else {
            "LSB"
        };
        let mut text = String::new();
        for band in self.first..raster.bands.min(self.first + BLOCK) {
            text.push_str(&format!(
                r#"  <VRTRasterBand dataType="{data_type}" band="{}" subClass="VRTRawRasterBand">
    <Description>{}</Description>
{meaning}    <SourceFilename relativeToVRT="1">data.raw</SourceFilename>
    <ImageOffset>{}</ImageOffset>
    <PixelOffset>{pixel}</PixelOffset>
    <LineOffset>{line}</LineOffset>
    <ByteOrder>{byte_order}</ByteOrder>
{}  </VRTRasterBand>
"#,
                band + 1,
                xml(&short(&raster::band_label(labels, raster, band), *letters)),
                raster.band_start(&metadata.shape, band) * item,
                overviews(labels, band, raster.bands),
            ));
        }
        text
    }
}

fn short(text: &str, letters: usize) -> String {
    text.chars().take(letters).collect()
}

fn data_type(metadata: &ArrayMetadata) -> Option<&'static str> {
    const NAMES: [&str; 12] = [
        "Int8", "Byte", "Int16", "UInt16", "Int32", "UInt32", "Int64", "UInt64", "Float32",
        "Float64", "CFloat32", "CFloat64",
    ];
    spelling::type_name(&metadata.dtype, NAMES)
}

/// Writes the reference system and the transform, which apply to the whole raster.
fn place(array: &Described, raster: &Raster) -> String {
    let mut text = String::new();
    if let Some(Crs {
        wkt,
        authority,
        projjson,
        ..
    }) = &array.crs
        && raster.is_map(array)
        && let Some(crs) = wkt.as_ref().or(authority.as_ref()).or(projjson.as_ref())
    {
        text.push_str(&format!("  <SRS>{}</SRS>\n", xml(crs)));
    }
    if let Some(transform) = raster.geotransform(array) {
        let numbers = floats(transform, ", ");
        text.push_str(&format!("  <GeoTransform>{numbers}</GeoTransform>\n"));
    }
    text
}

/// Writes where the longitudes and latitudes of a curvilinear grid are. GDAL takes paths relative
/// to the file since version 3.5.
fn geolocation(array: &Described) -> String {
    let Some(geolocation) = &array.geolocation else {
        return String::new();
    };
    let [x, y] =
        [&geolocation.longitudes, &geolocation.latitudes].map(|key| xml(&path_to(&array.key, key)));
    let crs = xml(WGS_84);
    format!(
        r#"  <Metadata domain="GEOLOCATION">
    <MDI key="X_DATASET">{x}</MDI>
    <MDI key="X_DATASET_RELATIVE_TO_SOURCE">YES</MDI>
    <MDI key="X_BAND">1</MDI>
    <MDI key="Y_DATASET">{y}</MDI>
    <MDI key="Y_DATASET_RELATIVE_TO_SOURCE">YES</MDI>
    <MDI key="Y_BAND">1</MDI>
    <MDI key="PIXEL_OFFSET">0</MDI>
    <MDI key="PIXEL_STEP">1</MDI>
    <MDI key="LINE_OFFSET">0</MDI>
    <MDI key="LINE_STEP">1</MDI>
    <MDI key="GEOREFERENCING_CONVENTION">PIXEL_CENTER</MDI>
    <MDI key="SRS">{crs}</MDI>
  </Metadata>
"#
    )
}

/// Writes the bands of lower resolution, which have the same number, unless they are very many.
fn overviews(array: &Described, band: u64, bands: u64) -> String {
    let mut text = String::new();
    let levels = array.overviews.len() as u64;
    if levels.saturating_mul(bands) > MAX_BANDS {
        return text;
    }
    for overview in &array.overviews {
        let path = xml(&path_to(&array.key, &overview.key));
        text.push_str(&format!(
            "    <Overview>\n      <SourceFilename relativeToVRT=\"1\">{path}</SourceFilename>\n      \
             <SourceBand>{}</SourceBand>\n    </Overview>\n",
            band + 1
        ));
    }
    text
}

/// Returns the path from the directory of an array to the file of another one.
fn path_to(from: &Key, to: &Key) -> String {
    let [from, to] = [from, to].map(|key| {
        let names = key.as_str().split('/');
        names.filter(|name| !name.is_empty()).collect::<Vec<_>>()
    });
    let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
    let up = vec![".."; from.len() - shared];
    let down = to[shared..].iter().copied();
    let names: Vec<&str> = up.into_iter().chain(down).chain([FORMAT.name]).collect();
    names.join("/")
}

/// Writes the attributes that are plain texts and numbers as GDAL's metadata.
fn attributes(array: &Described) -> String {
    let mut items = String::new();
    for (name, value) in array
        .attributes
        .iter()
        .filter(|(name, _)| !name.starts_with('_'))
    {
        let shown = match json::text(value) {
            Some(text) => text.to_string(),
            None if json::float(value).is_some() => json::write(value),
            None => continue,
        };
        if shown.len() <= MAX_ATTRIBUTE {
            let name = xml(&spelling::line(name));
            let shown = xml(&shown);
            items.push_str(&format!("    <MDI key=\"{name}\">{shown}</MDI>\n"));
        }
    }
    if items.is_empty() {
        items
    } else {
        format!("  <Metadata>\n{items}  </Metadata>\n")
    }
}

/// Writes the missing value, the unit and the scaling of each band.
fn meaning(array: &Described, letters: usize) -> String {
    let unit = array.units.as_deref().map(spelling::line);
    let elements = [
        (
            "NoDataValue",
            spelling::nodata(array).map(|nodata| nodata.to_string()),
        ),
        ("UnitType", unit.map(|unit| xml(&short(&unit, letters)))),
        ("Offset", array.offset.filter(|x| x.is_finite()).map(float)),
        ("Scale", array.scale.filter(|x| x.is_finite()).map(float)),
    ];
    let known = elements
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)));
    known
        .map(|(name, value)| format!("    <{name}>{value}</{name}>\n"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::PartContent;
    use super::super::described::{Crs, MetadataNumber};
    use super::super::testing;
    use super::*;

    fn text(array: &Described) -> String {
        let text = |content: &PartContent| match content {
            PartContent::Bytes(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
            PartContent::Bands(bands) => bands.text(),
            other => panic!("{other:?}"),
        };
        file(array)
            .parts()
            .iter()
            .map(|part| text(&part.content))
            .collect()
    }

    #[test]
    fn a_file_of_many_bands_is_not_held_as_text() {
        let long = "&\u{1F600}".repeat(100);
        let mut array = Described {
            units: Some(long.clone()),
            ..testing::plain("<f4", &[65536, 1, 1])
        };
        array.axes[0].name = Some(long);
        let file = file(&array);
        let held = |content: &PartContent| {
            if let PartContent::Bytes(bytes) = content {
                bytes.len()
            } else {
                0
            }
        };
        let held: usize = file.parts().iter().map(|part| held(&part.content)).sum();
        assert!(held < 10_000 && file.parts().len() < 2000, "{held}");
        assert!(file.size() < 64 << 20, "{}", file.size());
        let text = text(&array);
        assert_eq!(
            (text.len() as u64, text.matches("<VRTRasterBand ").count()),
            (file.size(), 65536)
        );
        assert!(
            text.contains("band=\"65536\"") && text.contains("<ImageOffset>262140</ImageOffset>")
        );
    }

    #[test]
    fn an_array_without_attributes_has_a_short_file() {
        let band = |number: u64, offset: u64| {
            format!(
                r#"  <VRTRasterBand dataType="Float64" band="{number}" subClass="VRTRawRasterBand">
    <Description>dim0[{}]</Description>
    <SourceFilename relativeToVRT="1">data.raw</SourceFilename>
    <ImageOffset>{offset}</ImageOffset>
    <PixelOffset>8</PixelOffset>
    <LineOffset>48</LineOffset>
    <ByteOrder>MSB</ByteOrder>
  </VRTRasterBand>
"#,
                number - 1
            )
        };
        let expected = format!(
            "<VRTDataset rasterXSize=\"6\" rasterYSize=\"4\">\n{}{}</VRTDataset>\n",
            band(1, 0),
            band(2, 192)
        );
        assert_eq!(text(&testing::plain(">f8", &[2, 4, 6])), expected);
    }

    #[test]
    fn position_and_attributes_are_stated() {
        let expected = r#"<VRTDataset rasterXSize="10" rasterYSize="6">
  <SRS>EPSG:4326</SRS>
  <GeoTransform>9.875, 0.25, 0, 50.25, 0, -0.5</GeoTransform>
  <Metadata>
    <MDI key="units">K</MDI>
    <MDI key="long_name">Air &lt;2 m&gt;</MDI>
    <MDI key="valid_min">150</MDI>
  </Metadata>
  <VRTRasterBand dataType="Float32" band="1" subClass="VRTRawRasterBand">
    <Description>time=2000-01-01T00:00:00</Description>
    <NoDataValue>-9999</NoDataValue>
    <UnitType>K</UnitType>
    <SourceFilename relativeToVRT="1">data.raw</SourceFilename>
    <ImageOffset>0</ImageOffset>
"#;
        let text = text(&testing::geographic());
        assert!(text.starts_with(expected), "{text}");
        assert_eq!(text.matches("<VRTRasterBand ").count(), 4);
        assert!(text.contains("<Description>time=2000-01-01T18:00:00</Description>"));
    }

    #[test]
    fn packing_and_two_leading_dimensions_are_stated() {
        let text = text(&testing::model());
        assert!(text.contains("    <Offset>260</Offset>\n    <Scale>0.05</Scale>\n"));
        assert!(text.contains("<Description>time=2001-02-01T00:00:00, level=850</Description>"));
        assert!(!text.contains("GeoTransform"), "latitudes are not regular");
    }

    #[test]
    fn rows_run_along_y_in_any_order_of_dimensions() {
        let crs = Crs {
            wkt: Some("PROJCRS[\"a & b\"]".into()),
            ..Crs::default()
        };
        let mut array = Described {
            crs: Some(crs),
            ..testing::geographic()
        };
        assert!(text(&array).contains("<SRS>PROJCRS[&quot;a &amp; b&quot;]</SRS>"));
        array.axes[1].coordinates = Coordinates::Regular {
            first: 47.5,
            step: 0.5,
        };
        assert!(
            text(&array).contains("<GeoTransform>9.875, 0.25, 0, 47.25, 0, 0.5</GeoTransform>")
        );
        let upright = text(&array);
        array.axes.swap(1, 2);
        array.metadata.shape.swap(1, 2);
        let transposed = text(&array);
        let rows = "<PixelOffset>4</PixelOffset>\n    <LineOffset>40</LineOffset>";
        let columns = "<PixelOffset>24</PixelOffset>\n    <LineOffset>4</LineOffset>";
        assert_eq!(transposed, upright.replace(rows, columns));
        // the items of a row are too far from each other for GDAL
        array.axes[1].len = 10_000;
        array.metadata = testing::metadata("\"<f4\"", &[4, 10_000, 600]);
        assert!(text(&array).contains("rasterXSize=\"600\" rasterYSize=\"10000\""));
        assert!(!text(&array).contains("GeoTransform") && !text(&array).contains("<SRS>"));
    }

    #[test]
    fn the_missing_value_fits_an_item() {
        let with = |dtype, nodata| {
            let text = text(&Described {
                nodata: Some(nodata),
                ..testing::plain(dtype, &[1, 1])
            });
            text.split_once("<NoDataValue>")
                .map(|(_, rest)| rest.split('<').next().unwrap().to_string())
        };
        assert_eq!(
            with("<f4", MetadataNumber::Float(1e20)).as_deref(),
            Some("1.0000000200408773e20")
        );
        assert_eq!(
            with("<f4", MetadataNumber::Float(f64::NAN)).as_deref(),
            Some("nan")
        );
        assert_eq!(with("<f4", MetadataNumber::Float(1e300)), None);
        assert_eq!(
            with("<i8", MetadataNumber::Int(i64::MIN.into())).as_deref(),
            Some("-9223372036854775808")
        );
        assert_eq!(
            with("<u8", MetadataNumber::Int(u64::MAX.into())).as_deref(),
            Some("18446744073709551615")
        );
        assert_eq!(with("|u1", MetadataNumber::Int(-1)), None);
        assert_eq!(
            with("<i2", MetadataNumber::Float(-9999.0)).as_deref(),
            Some("-9999")
        );
        assert_eq!(with("<i2", MetadataNumber::Float(0.5)), None);
    }

    #[test]
    fn unsupported_types_and_shapes_are_refused() {
        for dtype in ["<f2", "|S3", "<m8[s]", "|V4"] {
            assert!(
                !fits(&testing::metadata(&format!("{dtype:?}"), &[4, 6])),
                "{dtype}"
            );
        }
        for shape in [&[] as &[u64], &[4, 0], &[65537, 1, 1], &[1, 1 << 30]] {
            assert!(!fits(&testing::metadata("\"<i2\"", shape)), "{shape:?}");
        }
        assert!(fits(&testing::metadata("\"<i2\"", &[65536, 1, 1])));
    }
}
