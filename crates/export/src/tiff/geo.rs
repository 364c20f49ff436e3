//! GeoTIFF 1.1 (OGC 19-008r4), the position of the raster and its reference system; and GDAL's own
//! tags.

use super::super::described::CrsKind;
use super::super::raster::{Interleave, Raster};
use super::super::spelling;
use super::{Described, TagValue, Tags};

/// ModelPixelScaleTag.
pub const PIXEL_SCALE: u16 = 33550;
/// ModelTiepointTag.
pub const TIEPOINT: u16 = 33922;
/// ModelTransformationTag.
pub const TRANSFORMATION: u16 = 34264;
/// GeoKeyDirectoryTag.
pub const GEO_KEYS: u16 = 34735;
/// GDAL_METADATA, a text in XML.
pub const GDAL_METADATA: u16 = 42112;
/// GDAL_NODATA, a number as a text.
pub const GDAL_NODATA: u16 = 42113;

/// The key for the kind of the reference system.
pub const MODEL_TYPE: u16 = 1024;
/// The key for what a tie point is: the corner of a pixel, or its center.
pub const RASTER_TYPE: u16 = 1025;
/// The key for the EPSG code of a geographic system.
pub const GEODETIC_SYSTEM: u16 = 2048;
/// The key for the EPSG code of a projected system.
pub const PROJECTED_SYSTEM: u16 = 3072;

/// The value of [`MODEL_TYPE`] for a projected system.
pub const PROJECTED: u16 = 1;
/// The value of [`MODEL_TYPE`] for a geographic system.
pub const GEOGRAPHIC: u16 = 2;

/// The elements of GDAL's XML about a sample: the name, the role, and the attribute of CF with the
/// same meaning.
pub const ITEMS: [(&str, &str, &str); 4] = [
    ("DESCRIPTION", "description", "long_name"),
    ("OFFSET", "offset", "add_offset"),
    ("SCALE", "scale", "scale_factor"),
    ("UNITTYPE", "unittype", "units"),
];

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
    // GDAL takes keys without a system for an unnamed system
    if let Some(system) = system(array).filter(|_| raster.is_map(array)) {
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
fn geo_keys((is_geographic, code): (bool, u16)) -> Vec<u16> {
    let (model, key) = if is_geographic {
        (GEOGRAPHIC, GEODETIC_SYSTEM)
    } else {
        (PROJECTED, PROJECTED_SYSTEM)
    };
    // a tie point is a corner
    let keys = [(MODEL_TYPE, model), (RASTER_TYPE, 1), (key, code)];
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
    let values = [
        array.long_name.as_deref().map(spelling::line),
        array.offset.map(spelling::float),
        array.scale.map(spelling::float),
        array.units.as_deref().map(spelling::line),
    ];
    let mut text = String::new();
    for ((name, role, _), value) in ITEMS.into_iter().zip(values) {
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
