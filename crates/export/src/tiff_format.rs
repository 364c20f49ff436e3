//! The tags, keys and codes of TIFF and GeoTIFF that `data.tif` has, for crates that read such
//! files. This module must not know how a file is made.

use super::described::{CrsKind, MetadataNumber};
use super::number::NumberType;
use super::{describe, spelling};
use zarrfs_format::dtype::DType;

pub use crate::tiff::{
    BITS_PER_SAMPLE, COLOR_MAP, COLOR_MAP_NAME, COMPRESSION, DESCRIPTION, GDAL_METADATA,
    GDAL_NODATA, GEO_KEYS, GEODETIC_SYSTEM, GEOGRAPHIC, IMAGE_LENGTH, IMAGE_WIDTH, ITEMS,
    MODEL_TYPE, NEW_SUBFILE_TYPE, PALETTE, PHOTOMETRIC, PHOTOMETRIC_NAME, PIXEL_SCALE, PROJECTED,
    PROJECTED_SYSTEM, RASTER_TYPE, RESOLUTION_NAMES, RESOLUTION_UNIT, ROWS_PER_STRIP,
    SAMPLE_FORMAT, SAMPLE_FORMATS, SAMPLES_PER_PIXEL, STRIP_BYTE_COUNTS, STRIP_OFFSETS, TIEPOINT,
    TRANSFORMATION,
};

/// Returns the item for missing values that GDAL spells as `text`; `None` if no item has the value.
pub fn nodata_item(dtype: &DType, text: &str) -> Option<Vec<u8>> {
    let number = match text.parse() {
        Ok(whole) => MetadataNumber::Int(whole),
        Err(_) => MetadataNumber::Float(text.parse().ok()?),
    };
    let number_type = NumberType::of(dtype)?;
    let bits = match spelling::item(dtype, number)? {
        MetadataNumber::Int(whole) => number_type.integer_bits(whole)?,
        MetadataNumber::Float(float) => number_type.nearest(float)?,
    };
    let mut item = Vec::new();
    number_type.store(bits, &mut item);
    Some(item)
}

/// Returns whether the reference system with an EPSG code is geographic; `None` unless `data.tif`
/// can state the system.
pub fn is_geographic(code: u16) -> Option<bool> {
    let system = describe::system_of_code("EPSG", &code.to_string())?;
    (system.kind != CrsKind::Other).then_some(system.is_geographic())
}

/// Returns the elements of GDAL's XML: the names, the texts, and for elements about one sample the
/// number and the role. Elements of other domains than GDAL's default one are left out.
pub fn gdal_items(xml: &str) -> Vec<GdalItem> {
    let mut items = Vec::new();
    for element in xml.split("<Item").skip(1) {
        let Some((head, rest)) = element.split_once('>') else {
            continue;
        };
        let attribute = |name: &str| {
            let (_, value) = head.split_once(&format!(" {name}=\""))?;
            Some(unescaped(value.split('"').next()?))
        };
        let text = rest.split("</Item>").next().unwrap_or_default();
        if let (Some(name), None) = (attribute("name"), attribute("domain")) {
            items.push(GdalItem {
                name,
                // GDAL escapes texts twice
                text: unescaped(&unescaped(text)),
                sample: attribute("sample").and_then(|sample| sample.parse().ok()),
                role: attribute("role"),
            });
        }
    }
    items
}

fn unescaped(text: &str) -> String {
    let unescaped = quick_xml::escape::unescape(text);
    unescaped.map_or_else(|_| text.to_string(), |text| text.into_owned())
}

/// An element of GDAL's XML.
pub struct GdalItem {
    /// The name.
    pub name: String,
    /// The text.
    pub text: String,
    /// The number of the sample that it is about, counted from 0.
    pub sample: Option<u64>,
    /// What GDAL takes it for.
    pub role: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_values_are_items_or_nothing() {
        let item = |dtype: &str, text| nodata_item(&DType::parse_str(dtype).unwrap(), text);
        assert_eq!(item("|u1", "255"), Some(vec![255]));
        assert_eq!(
            item("<i2", "-9999.0"),
            Some((-9999i16).to_le_bytes().to_vec())
        );
        assert_eq!(
            item("<f4", "-3.4028234663852886e+38"),
            Some(f32::MIN.to_le_bytes().to_vec())
        );
        assert!(item("<f8", "nan").is_some());
        for (dtype, text) in [
            ("|u1", "-9999"),
            ("|u1", "nan"),
            ("<f4", "1e300"),
            ("<c8", "0"),
            ("<i4", ""),
        ] {
            assert_eq!(item(dtype, text), None, "{dtype} {text}");
        }
    }

    #[test]
    fn systems_have_a_kind_by_their_codes() {
        let codes = [4326, 6668, 7844, 32633, 3857, 7845];
        let expected = [true, true, true, false, false, false].map(Some);
        assert_eq!(codes.map(is_geographic), expected);
        // geocentric, heights, and no code
        assert_eq!([4978, 5773, 1].map(is_geographic), [None; 3]);
    }

    #[test]
    fn items_of_damaged_xml_are_left_out() {
        let xml = "<GDALMetadata><Item name=\"a\" sample=\"1\" role=\"scale\">0.5</Item>\
            <Item name=\"b\" domain=\"D\">x</Item><Item>y</Item><Item name=\"c\">&amp;amp; &lt;</Item><Item name=\"d";
        let items = gdal_items(xml);
        let found: Vec<_> = items
            .iter()
            .map(|item| (item.name.as_str(), item.text.as_str()))
            .collect();
        assert_eq!(found, [("a", "0.5"), ("c", "& <")]);
        assert_eq!(
            (items[0].sample, items[0].role.as_deref()),
            (Some(1), Some("scale"))
        );
    }
}
