//! GeoTIFF 1.1 (OGC 19-008r4), the position of the raster and its reference system; and GDAL's own
//! tags.

use super::super::described::CrsKind;
use super::super::raster::{Interleave, Raster};
use super::super::spelling;
use super::{Described, TagValue, Tags};

const PIXEL_SCALE: u16 = 33550;
const TIEPOINT: u16 = 33922;
const TRANSFORMATION: u16 = 34264;
pub const GEO_KEYS: u16 = 34735;
const GDAL_METADATA: u16 = 42112;
const GDAL_NODATA: u16 = 42113;

/// Maximum number of samples that are described one by one.
const MAX_SAMPLES: u64 = 512;

/// Adds the tags that the array has values for.
pub fn tags(array: &Described, raster: &Raster, tags: &mut Tags) {
    let transform = raster.geotransform(array);
    match transform {
        Some([x, dx, 0.0, y, 0.0, dy]) if dx > 0.0 && dy < 0.0 => {
            tags.insert(PIXEL_SCALE, TagValue::Double(vec![dx, -dy, 0.0]));
            tags.insert(TIEPOINT, TagValue::Double(vec![0.0, 0.0, 0.0, x, y, 0.0]));
        }
        Some([x, dx, row_dx, y, column_dy, dy]) => {
            let rows = [
                [dx, row_dx, 0.0, x],
                [column_dy, dy, 0.0, y],
                [0.0; 4],
                [0.0, 0.0, 0.0, 1.0],
            ];
            tags.insert(
                TRANSFORMATION,
                TagValue::Double(rows.as_flattened().to_vec()),
            );
        }
        None => {}
    }
    let system = system(array).filter(|_| raster.is_map(array));
    if transform.is_some() || system.is_some() {
        tags.insert(GEO_KEYS, TagValue::Short(geo_keys(system)));
    }
    if let Some(nodata) = spelling::nodata(array) {
        tags.insert(GDAL_NODATA, TagValue::Ascii(nodata.to_string()));
    }
    if let Some(metadata) = metadata(array, raster) {
        tags.insert(GDAL_METADATA, TagValue::Ascii(metadata));
    }
}

/// Returns the directory of keys, each with its value in place.
fn geo_keys(system: Option<(bool, u16)>) -> Vec<u16> {
    // GTRasterType: the tie point is the corner of a pixel
    let mut keys = vec![(1025, 1)];
    if let Some((is_geographic, code)) = system {
        // GTModelType; GeodeticCRS or ProjectedCRS
        keys.insert(0, (1024, if is_geographic { 2 } else { 1 }));
        keys.push((if is_geographic { 2048 } else { 3072 }, code));
    }
    let directory = [1, 1, 0, keys.len() as u16];
    directory
        .into_iter()
        .chain(keys.into_iter().flat_map(|(key, value)| [key, 0, 1, value]))
        .collect()
}

/// Returns whether the reference system is geographic, and its EPSG code.
fn system(array: &Described) -> Option<(bool, u16)> {
    let crs = array.crs.as_ref()?;
    let code = match crs.authority.as_deref()? {
        // WGS 84, too: TIFF has longitudes first
        "OGC:CRS84" => 4326,
        authority => authority.strip_prefix("EPSG:")?.parse().ok()?,
    };
    (crs.kind != CrsKind::Other).then_some((crs.is_geographic(), code))
}

/// Writes GDAL's XML about each sample of a pixel: scaling, units, title.
fn metadata(array: &Described, raster: &Raster) -> Option<String> {
    let samples = match raster.interleave {
        Interleave::Pixel => raster.bands.min(MAX_SAMPLES),
        _ => 1,
    };
    let items = [
        (
            "DESCRIPTION",
            "description",
            array.long_name.as_deref().map(spelling::line),
        ),
        ("OFFSET", "offset", array.offset.map(spelling::float)),
        ("SCALE", "scale", array.scale.map(spelling::float)),
        (
            "UNITTYPE",
            "unittype",
            array.units.as_deref().map(spelling::line),
        ),
    ];
    let mut text = String::new();
    for (name, role, value) in items {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            let value = spelling::xml(&value);
            for sample in 0..samples {
                text.push_str(&format!(
                    "  <Item name=\"{name}\" sample=\"{sample}\" role=\"{role}\">{value}</Item>\n"
                ));
            }
        }
    }
    (!text.is_empty()).then(|| format!("<GDALMetadata>\n{text}</GDALMetadata>\n"))
}
