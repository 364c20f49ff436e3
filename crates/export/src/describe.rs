//! Collects the geometry of an array from metadata, by the conventions of xarray and CF, NCZarr,
//! OME-NGFF, GeoZarr, STAC and GDAL. An attribute that breaks its convention counts as missing, so
//! that bad metadata never hides an array. This module knows no output format.

mod attributes;
mod categories;
mod coordinates;
mod crs;
mod georeference;
mod grids;
mod ngff;
mod numbers;
mod projection;
mod role;
mod strings;

use super::described::{Coordinates, Described, DescribedAxis};
use super::spelling;
use crate::reader::{ArrayNode, HierarchyReader};
pub use attributes::{
    integer as attribute_integer, items as attribute_items, number as attribute_number,
};
use categories::Categories;
pub use categories::add_flags;
use coordinates::Coordinate;
pub use coordinates::{check_values, flat, flat_range, max_chunks, time_unit};
pub use crs::{for_gdal as system_for_gdal, is_same as is_same_system, of_code as system_of_code};
use georeference::Georeference;
pub use ngff::Plate;
pub use numbers::{attribute_nodata, item as number_item};
pub use numbers::{fill_is_missing, is_number, parse_float, with_other_sign, with_stated_sign};
pub use projection::WGS_84;
pub use role::is_in_degrees;
use std::ops::Range;
use std::sync::Arc;
pub use strings::{StringEncoding, are_strings, read_strings, texts, visit_strings};
use zarrfs_base::error::Result;
use zarrfs_base::json::{self, Map, Object, Value};
use zarrfs_base::key::Key;
use zarrfs_base::memory;
use zarrfs_format::metadata::ZARRAY;

/// The attribute in which xarray, GDAL and NCZarr keep the names of dimensions: xarray's "Zarr
/// Encoding Specification".
pub const DIMENSIONS: &str = "_ARRAY_DIMENSIONS";

/// The attribute in which GDAL keeps the reference system.
pub const CRS: &str = "_CRS";

/// Maximum number of groups above an array that are searched for metadata about it.
const LEVELS: usize = 16;

/// Describes `array` from its metadata and from coordinate arrays, which are read through `cache`.
/// Coordinates that cannot be read are left out.
///
/// # Errors
///
/// The store fails to return the array's attributes.
pub fn describe(hierarchy: &dyn HierarchyReader, array: &ArrayNode) -> Result<Described> {
    let key = &array.key;
    let attributes = hierarchy.attributes(key)?;
    let metadata = &*with_stated_sign(&array.metadata, &attributes);
    let dimensions = metadata.shape.len();
    let above = attributes_above(hierarchy, key);
    let image = ngff::image(&above, key, dimensions);
    let mut sources: Vec<Key> = image.iter().map(|image| image.group.clone()).collect();
    let mut levels = image
        .as_ref()
        .map_or(Vec::new(), |image| image.levels.clone());
    let (image, info) = image.map(|image| (image.axes, image.info)).unzip();
    let names = names(
        stored_names(hierarchy, array, &attributes),
        image.as_deref(),
        dimensions,
    );
    // an array without items needs no coordinates, and its other dimensions may be of any length
    let has_items = !metadata.shape.contains(&0);
    let mut axes = Vec::with_capacity(dimensions);
    let mut claims = Vec::with_capacity(dimensions);
    let mut memory = memory::take(info.as_ref().map_or(0, ngff::memory_of))?;
    for (i, (&len, name)) in metadata.shape.iter().zip(names).enumerate() {
        let of_image = image.as_ref().and_then(|axes| axes.get(i));
        let mut coordinate = name
            .as_ref()
            .filter(|_| has_items)
            .and_then(|name| Coordinate::find(hierarchy, key, name, len));
        if let Some(found) = &mut coordinate {
            sources.push(found.key.clone());
            memory = memory.and(std::mem::take(&mut found.memory));
        }
        claims.push(role::claim(coordinate.as_ref(), of_image, name.as_deref()));
        axes.push(axis(name, len, coordinate, of_image));
    }
    let stated = Georeference::find(&above, key, &attributes);
    stated.claim(&axes, &mut claims);
    role::assign(&claims, &mut axes);
    let (crs, geotransform) = crs::find(
        hierarchy,
        key,
        &attributes,
        stated.place(&axes),
        &mut axes,
        &mut sources,
    );
    sources.extend(stated.groups);
    levels.extend(stated.levels);
    let overviews = grids::overviews(hierarchy, metadata, &axes, levels);
    sources.extend(overviews.iter().map(|overview| overview.key.clone()));
    let geolocation = grids::geolocation(hierarchy, key, &attributes, &axes);
    if let Some(found) = &geolocation {
        sources.extend([found.longitudes.clone(), found.latitudes.clone()]);
    }
    let has_scale = numbers::is_number(&metadata.dtype);
    let meaning = hierarchy.fill_meaning(array);
    let fill_is_missing = fill_is_missing(meaning, &array.metadata, &attributes);
    let categories = Categories::find(hierarchy, array, &attributes);
    sources.extend(categories.sources);
    Ok(Described {
        axes,
        crs,
        geotransform,
        geolocation,
        overviews,
        nodata: numbers::nodata(metadata, &attributes, fill_is_missing).or(categories.missing),
        categories: categories.list.into(),
        scale: attributes::number(&attributes, "scale_factor")
            .filter(|scale| *scale != 0.0 && has_scale),
        offset: attributes::number(&attributes, "add_offset").filter(|_| has_scale),
        units: attributes::line(&attributes, "units"),
        long_name: ["long_name", "standard_name"]
            .iter()
            .find_map(|name| attributes::line(&attributes, name)),
        image: info,
        attributes: Arc::new(attributes),
        stored: array.metadata.clone(),
        is_view: false,
        sources,
        memory: memory.and(categories.memory).into(),
        ..Described::of_metadata(key, metadata)
    })
}

/// Describes `array` by its own attributes and by the values in a range of its flat bytes, or by
/// all its strings if they are of any length. They are read through `cache`. Dimensions have no
/// names and coordinates.
///
/// # Errors
///
/// The store fails to return the attributes, a chunk cannot be read, or the array is too large for
/// a description.
pub fn describe_values(
    hierarchy: &dyn HierarchyReader,
    array: &ArrayNode,
    range: Range<u64>,
) -> Result<Described> {
    let key = &array.key;
    let attributes = hierarchy.attributes(key)?;
    let metadata = &*with_stated_sign(&array.metadata, &attributes);
    check_values(&array.metadata, array.is_remote, range.clone())
        .map_err(|e| e.context("values"))?;
    let (values, memory) = if metadata.has_objects() {
        let (strings, memory) =
            strings::read_counted_strings(array).map_err(|e| e.context("values"))?;
        (strings.values, memory)
    } else {
        let memory = memory::take(range.end.saturating_sub(range.start) as usize)?;
        (flat_range(array, range)?.into(), memory)
    };
    Ok(Described {
        nodata: numbers::attribute_nodata(metadata, &attributes),
        scale: attributes::number(&attributes, "scale_factor"),
        offset: attributes::number(&attributes, "add_offset"),
        units: attributes::line(&attributes, "units"),
        attributes: Arc::new(attributes),
        values: Some(values),
        memory: memory.into(),
        ..Described::of_metadata(key, metadata)
    })
}

/// Builds an axis; a coordinate array takes precedence over the axis of an image.
fn axis(
    name: Option<String>,
    len: u64,
    coordinate: Option<Coordinate>,
    image: Option<&ngff::ImageAxis>,
) -> DescribedAxis {
    let mut axis = DescribedAxis {
        name,
        ..DescribedAxis::of_length(len)
    };
    let has_array = coordinate.is_some();
    if let Some(found) = coordinate {
        axis.units = found.units;
        axis.calendar = found.calendar;
        axis.coordinates = found.values;
        axis.labels = found.labels.into();
    }
    if let Some(image) = image {
        axis.units = axis.units.or_else(|| image.unit.clone());
        axis.direction = image.orientation.map(|(_, direction)| direction);
        if axis.coordinates == Coordinates::Unknown
            && let Some((first, step)) = image.place
        {
            axis.coordinates = Coordinates::Regular { first, step };
        }
    }
    axis.is_unread = has_array && axis.coordinates == Coordinates::Unknown;
    axis
}

/// Returns the names of the dimensions of `array`, which has these `attributes`, without reading
/// coordinates. If a group provides them, it is added to `sources`.
pub fn axis_names(
    hierarchy: &dyn HierarchyReader,
    array: &ArrayNode,
    attributes: &Map<String, Value>,
    sources: &mut Vec<Key>,
) -> Vec<Option<String>> {
    let dimensions = array.metadata.shape.len();
    let stored = stored_names(hierarchy, array, attributes);
    // parsing the metadata of images for each array of a large group would be slow
    let image = match stored {
        Some(_) => None,
        None => ngff::image(
            &attributes_above(hierarchy, &array.key),
            &array.key,
            dimensions,
        ),
    };
    let image = image.map(|image| {
        sources.push(image.group);
        image.axes
    });
    names(stored, image.as_deref(), dimensions)
}

/// Returns the stored names, or else those of the image.
fn names(
    stored: Option<Vec<Option<String>>>,
    image: Option<&[ngff::ImageAxis]>,
    dimensions: usize,
) -> Vec<Option<String>> {
    let of_image = image.into_iter().flatten().map(|axis| axis.name.clone());
    let mut names = stored.unwrap_or_else(|| of_image.collect());
    names.resize(dimensions, None);
    names
        .into_iter()
        .map(|name| name.filter(|name| attributes::is_shown(name)))
        .collect()
}

/// Returns the names of all dimensions as xarray, a v3 document or NCZarr store them.
fn stored_names(
    hierarchy: &dyn HierarchyReader,
    array: &ArrayNode,
    attributes: &Map<String, Value>,
) -> Option<Vec<Option<String>>> {
    let metadata = &array.metadata;
    let dimensions = metadata.shape.len();
    if let Some(names) = attributes::texts(attributes.get(DIMENSIONS))
        && names.len() == dimensions
    {
        return Some(names.into_iter().map(Some).collect());
    }
    if let Some(v3) = &metadata.v3 {
        // a list of nulls names no dimension; an image may name them
        return v3
            .dimension_names
            .clone()
            .filter(|names| names.iter().any(Option::is_some));
    }
    // netCDF-C 4.9.3 writes an attribute, earlier versions a field of `.zarray`
    let references = ["_nczarr_array", "_NCZARR_ARRAY"]
        .iter()
        .find_map(|name| attributes::texts(attributes.get(*name)?.get("dimrefs")))
        .or_else(|| stored_references(hierarchy, &array.key))
        .filter(|references| references.len() == dimensions)?;
    let names = references
        .iter()
        .map(|path| path.rsplit('/').next().map(str::to_string));
    Some(names.collect())
}

/// Returns the dimension references that NCZarr wrote into the array's `.zarray`.
fn stored_references(hierarchy: &dyn HierarchyReader, key: &Key) -> Option<Vec<String>> {
    let document = hierarchy.document(&key.join(ZARRAY)).ok()??;
    let document = document.as_ref().as_ref();
    let named = "_NCZARR_ARRAY";
    let mut words = document.windows(named.len());
    if !words.any(|word| word == named.as_bytes()) {
        return None;
    }
    let document = json::parse_object(document).ok()?;
    attributes::texts(document.get(named)?.get("dimrefs"))
}

/// Returns the group that holds `key` and its ancestors in the store, nearest first.
fn groups_above(hierarchy: &dyn HierarchyReader, key: &Key) -> impl Iterator<Item = Key> {
    hierarchy.ancestors(key).into_iter().take(LEVELS)
}

/// Returns the groups above `key` that have readable attributes, with these, nearest first.
pub fn attributes_above(hierarchy: &dyn HierarchyReader, key: &Key) -> Vec<(Key, Object)> {
    groups_above(hierarchy, key)
        .filter_map(|group| {
            let attributes = hierarchy.attributes(&group).ok()?;
            Some((group, attributes))
        })
        .collect()
}

/// A grid mapping of CF that stands for what another convention states.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GridMapping {
    /// The reference system in WKT.
    pub wkt: String,
    /// GDAL's geotransform as its attribute `GeoTransform` spells it, if attributes state it.
    pub geotransform: Option<String>,
}

/// Returns the grid mapping of an array with this key and shape, these attributes and names of
/// dimensions, if GDAL's `_CRS` or GeoZarr states it and the array does not; `above` are the groups
/// above it. Coordinates `in_degrees` are not in the system of the product that contains the array.
pub fn grid_mapping(
    above: &[(Key, Object)],
    (key, shape): (&Key, &[u64]),
    attributes: &Map<String, Value>,
    names: &[Option<String>],
    in_degrees: bool,
) -> Option<GridMapping> {
    if attributes.contains_key("grid_mapping") {
        return None;
    }
    let stated = Georeference::find(above, key, attributes);
    let mut axes = Vec::new();
    let mut claims = Vec::new();
    for (&len, name) in shape.iter().zip(names) {
        claims.push(role::claim(None, None, name.as_deref()));
        axes.push(axis(name.clone(), len, None, None));
    }
    stated.claim(&axes, &mut claims);
    role::assign(&claims, &mut axes);
    let place = stated.place(&axes);
    let of_gdal = attributes.get("_CRS").and_then(Value::as_object);
    let crs = match of_gdal.and_then(crs::of_gdal) {
        None if !crs::is_map(&axes) => return None,
        None if in_degrees => place.crs,
        None => place.crs.or(place.crs_of_product),
        of_gdal => of_gdal,
    };
    let geotransform = place.transform;
    Some(GridMapping {
        wkt: crs?.wkt?,
        geotransform: geotransform.map(|numbers| spelling::floats(numbers, " ")),
    })
}

/// Returns the array at the relative `path` in the nearest group above `key` that has one there.
fn nearest_array(hierarchy: &dyn HierarchyReader, key: &Key, path: &str) -> Option<ArrayNode> {
    let path = Key::normalize(path).ok().filter(|path| !path.is_root())?;
    groups_above(hierarchy, key).find_map(|group| {
        match hierarchy.find_array(&group.join_key(&path)) {
            Ok(array) => array,
            Err(e) => {
                log::debug!("{key}: described without {path}: {e}");
                None
            }
        }
    })
}

#[cfg(test)]
mod tests;
