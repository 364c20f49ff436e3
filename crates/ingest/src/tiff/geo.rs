//! What the tags of a TIFF file say beside its form, as the attributes from which `data.tif` is
//! made: the place on Earth by GeoTIFF 1.1 and GDAL, scaling, names, resolution and texts. This
//! module must not know pixels.

use super::directory::{TiffDirectory, TiffReader};
use std::collections::BTreeMap;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::json::{Map, Value, json};
use zarrfs_export::tiff_format::{
    DESCRIPTION, GDAL_METADATA, GEO_KEYS, GEODETIC_SYSTEM, GEOGRAPHIC, GdalItem, ITEMS, MODEL_TYPE,
    PIXEL_SCALE, PROJECTED, PROJECTED_SYSTEM, RASTER_TYPE, RESOLUTION_NAMES, RESOLUTION_UNIT,
    TIEPOINT, TRANSFORMATION, gdal_items, is_geographic,
};

const GEO_TEXTS: u16 = 34737;
const RATIONAL_POLYNOMIALS: u16 = 50844;

/// The key of a reference system of heights, and the keys of names of reference systems.
const VERTICAL_SYSTEM: u64 = 4096;
const CITATIONS: [u64; 3] = [3073, 2049, 1026];

/// The code of what has no EPSG code.
const USER_DEFINED: u64 = 32767;

/// The attributes of CF that are no plain texts.
const OF_CF: [&str; 5] = [
    "add_offset",
    "coordinates",
    "grid_mapping",
    "missing_value",
    "scale_factor",
];

/// The texts that are kept, by the names of GDAL.
const TEXTS: [(u16, &str); 7] = [
    (269, "TIFFTAG_DOCUMENTNAME"),
    (DESCRIPTION, "TIFFTAG_IMAGEDESCRIPTION"),
    (305, "TIFFTAG_SOFTWARE"),
    (306, "TIFFTAG_DATETIME"),
    (315, "TIFFTAG_ARTIST"),
    (316, "TIFFTAG_HOSTCOMPUTER"),
    (33432, "TIFFTAG_COPYRIGHT"),
];

/// Returns the attributes of an array whose pixels have so many samples.
///
/// # Errors
///
/// The place or the scaling has no attributes from which `data.tif` states it again.
pub fn attributes(
    reader: &mut TiffReader,
    directory: &TiffDirectory,
    samples: u64,
) -> Result<Map<String, Value>> {
    let mut found = Map::new();
    for (tag, name) in TEXTS {
        let text = reader.text(directory, tag)?;
        // tifffile's own description has the shape alone
        if let Some(text) = text.filter(|text| !text.is_empty() && !text.starts_with("{\"shape\""))
        {
            found.insert(name.to_string(), text.into());
        }
    }
    for (tag, name) in RESOLUTION_NAMES {
        let value = match reader.numbers(directory, tag)?[..] {
            [unit] if tag == RESOLUTION_UNIT => json!(unit),
            [over, under] if under > 0 => json!(over as f64 / under as f64),
            _ => continue,
        };
        found.insert(name.to_string(), value);
    }
    let keys = geo_keys(&reader.numbers(directory, GEO_KEYS)?);
    let is_of_points = keys.get(&u64::from(RASTER_TYPE)) == Some(&[0, 1, 2]);
    if let Some([x, dx, row_dx, y, column_dy, dy]) = transform(reader, directory, is_of_points)? {
        found.insert("spatial:dimensions".to_string(), json!(["y", "x"]));
        let matrix = json!([dx, row_dx, x, column_dy, dy, y]);
        found.insert("spatial:transform".to_string(), matrix);
    }
    if let Some(code) = epsg_code(reader, directory, &keys)? {
        found.insert("proj:code".to_string(), format!("EPSG:{code}").into());
    }
    if let Some(xml) = reader.text(directory, GDAL_METADATA)? {
        add_gdal_items(gdal_items(&xml), samples, &mut found)?;
    }
    Ok(found)
}

/// Returns GDAL's geotransform. `is_of_points` says that a pixel lies around its place.
fn transform(
    reader: &mut TiffReader,
    directory: &TiffDirectory,
    is_of_points: bool,
) -> Result<Option<[f64; 6]>> {
    let scale = reader.doubles(directory, PIXEL_SCALE)?;
    let points = reader.doubles(directory, TIEPOINT)?;
    let matrix = reader.doubles(directory, TRANSFORMATION)?;
    let polynomials = reader.doubles(directory, RATIONAL_POLYNOMIALS)?;
    let by_points = "its place is given by control points or polynomials; `gdalwarp` makes a file \
        with a geotransform";
    if !polynomials.is_empty() {
        return Err(Error::invalid(by_points));
    }
    let [x, dx, row_dx, y, column_dy, dy] = match (&scale[..], &points[..], &matrix[..]) {
        ([dx, dy, ..], [column, row, _, x, y, _], _) if *dx != 0.0 && *dy != 0.0 => {
            let dy = -dy.abs();
            [x - column * dx, *dx, 0.0, y - row * dy, 0.0, dy]
        }
        (_, _, [dx, row_dx, _, x, column_dy, dy, _, y, ..]) if matrix.len() == 16 => {
            [*x, *dx, *row_dx, *y, *column_dy, *dy]
        }
        (_, [], _) => return Ok(None),
        _ => return Err(Error::invalid(by_points)),
    };
    let half = if is_of_points { 0.5 } else { 0.0 };
    let x = x - half * (dx + row_dx);
    let y = y - half * (dy + column_dy);
    Ok(Some([x, dx, row_dx, y, column_dy, dy]))
}

/// Returns GeoTIFF's keys: the tag with the value or 0, the number of values, and the value.
fn geo_keys(directory: &[u64]) -> BTreeMap<u64, [u64; 3]> {
    let entries = directory.chunks_exact(4).skip(1);
    entries
        .map(|entry| (entry[0], [entry[1], entry[2], entry[3]]))
        .collect()
}

/// Returns the EPSG code of the reference system.
fn epsg_code(
    reader: &mut TiffReader,
    directory: &TiffDirectory,
    keys: &BTreeMap<u64, [u64; 3]>,
) -> Result<Option<u16>> {
    let short = |key: u16| {
        let value = keys.get(&key.into()).filter(|value| value[0] == 0);
        value.map(|value| value[2]).filter(|value| *value != 0)
    };
    let model = short(MODEL_TYPE);
    let is_projected = model == Some(PROJECTED.into());
    let key = if is_projected {
        PROJECTED_SYSTEM
    } else {
        GEODETIC_SYSTEM
    };
    let code = short(key).and_then(|code| u16::try_from(code).ok());
    if model.is_none() && keys.range(u64::from(GEODETIC_SYSTEM)..).next().is_none() {
        return Ok(None);
    }
    let has_heights = keys.contains_key(&VERTICAL_SYSTEM);
    let is_stated = is_projected || model == Some(GEOGRAPHIC.into());
    let why = match code.filter(|code| u64::from(*code) != USER_DEFINED && is_stated) {
        Some(code) if has_heights => format!("EPSG:{code} with heights in a system of their own"),
        Some(code) if is_geographic(code) == Some(!is_projected) => return Ok(Some(code)),
        Some(code) => format!("EPSG:{code}, of which it is not known whether it is projected"),
        None => {
            let texts = reader.text(directory, GEO_TEXTS)?.unwrap_or_default();
            let names = CITATIONS.iter().filter_map(|key| keys.get(key));
            let name = names
                .filter(|[tag, ..]| *tag == u64::from(GEO_TEXTS))
                .find_map(|[_, count, at]| {
                    texts.get(*at as usize..at.checked_add(*count)? as usize)
                });
            let name = name
                .unwrap_or("a system without name")
                .trim_end_matches('|');
            format!("{name:?}, which has no EPSG code")
        }
    };
    let why = format!("reference system {why}; `gdal_translate -a_srs EPSG:N` states another one");
    Err(Error::invalid(why))
}

/// Adds the attributes that GDAL's XML states of the whole image, and of each sample if all samples
/// have the same one. Names may differ.
fn add_gdal_items(
    items: Vec<GdalItem>,
    samples: u64,
    found: &mut Map<String, Value>,
) -> Result<()> {
    let mut of_samples: BTreeMap<&str, BTreeMap<u64, String>> = BTreeMap::new();
    for item in items {
        let known = ITEMS
            .iter()
            .find(|(_, role, _)| item.role.as_deref() == Some(role));
        match (known, item.sample) {
            (Some((.., attribute)), Some(sample)) if sample < samples => {
                let values = of_samples.entry(attribute).or_default();
                values.insert(sample, item.text);
            }
            (None, None) if !item.name.starts_with('_') && !OF_CF.contains(&item.name.as_str()) => {
                found.entry(item.name).or_insert(item.text.into());
            }
            // statistics of a sample, say
            _ => {}
        }
    }
    for (attribute, values) in of_samples {
        let texts: Vec<&String> = values.values().collect();
        let is_one =
            texts.len() as u64 == samples && texts.windows(2).all(|pair| pair[0] == pair[1]);
        let number = texts[0].parse::<f64>().ok().filter(|n| n.is_finite());
        let value = match (attribute, number) {
            ("long_name", _) if !is_one => {
                let name = |sample| values.get(&sample).map_or("", String::as_str);
                json!((0..samples).map(name).collect::<Vec<_>>())
            }
            _ if !is_one => {
                let why = format!("its bands have different values of {attribute}");
                return Err(Error::invalid(why));
            }
            ("scale_factor" | "add_offset", number) => json!(number),
            _ => json!(texts[0]),
        };
        found.insert(attribute.to_string(), value);
    }
    Ok(())
}
