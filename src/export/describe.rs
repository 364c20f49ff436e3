//! What metadata tells of an array's geometry, by the conventions of xarray and CF, NCZarr, OME-NGFF and GDAL. An attribute
//! that breaks its convention is as good as none: whoever wrote it, the array is still there to be read. It knows no
//! format that the result is written in.

mod attributes;
mod coordinates;
mod crs;
mod ngff;
mod numbers;
mod projection;
mod role;

use super::described::{Coordinates, Described, DescribedAxis, Role};
use crate::array::Array;
use crate::array::hierarchy::{Hierarchy, StoredNode};
use crate::cache::Cache;
use crate::error::Result;
use crate::store::Key;
use crate::util::json::{self, Map, Value};
use crate::util::memory::Grant;
use crate::zarr::metadata::ZARRAY;
use coordinates::Coordinate;
pub use coordinates::flat;
pub use role::{is_east, is_north};
use std::sync::Arc;

/// The attribute in which xarray, GDAL and NCZarr keep the names of dimensions: xarray's "Zarr Encoding Specification".
const DIMENSIONS: &str = "_ARRAY_DIMENSIONS";

/// Groups above an array that are searched for what describes it.
const LEVELS: usize = 16;

/// What headers can say of `array`, with the values of its coordinate arrays read through `cache`. Coordinates that
/// can't be read are left out.
pub fn describe(hierarchy: &Hierarchy, cache: &Cache, array: &Arc<Array>) -> Result<Described> {
    let (key, metadata) = (array.key(), array.metadata());
    let attributes = hierarchy.attributes(key)?;
    let dimensions = metadata.shape.len();
    let image = ngff::image(hierarchy, key, dimensions);
    let (mut sources, image): (Vec<Key>, _) = match image {
        Some((group, image)) => (vec![group], Some(image)),
        None => (Vec::new(), None),
    };
    let names = names(kept_names(hierarchy, key, &attributes, dimensions), image.as_deref(), dimensions);
    // without items there is nothing to be placed, and dimensions of any length
    let has_items = !metadata.shape.contains(&0);
    let (mut axes, mut claims) = (Vec::with_capacity(dimensions), Vec::with_capacity(dimensions));
    let mut memory = Grant::default();
    for (i, (&len, name)) in metadata.shape.iter().zip(names).enumerate() {
        let of_image = image.as_ref().and_then(|axes| axes.get(i));
        let coordinate =
            name.as_ref().filter(|_| has_items).and_then(|name| Coordinate::find(hierarchy, cache, key, name, len));
        sources.extend(coordinate.as_ref().map(|coordinate| coordinate.key.clone()));
        let mut coordinate = coordinate;
        if let Some(found) = &mut coordinate {
            memory = memory.and(std::mem::take(&mut found.memory));
        }
        claims.push(role::claim(coordinate.as_ref(), of_image, name.as_deref()));
        axes.push(axis(name, len, coordinate, of_image));
    }
    role::assign(&claims, &mut axes);
    let crs = crs::find(hierarchy, key, &attributes, &mut axes, &mut sources);
    let has_scale = numbers::is_number(&metadata.dtype);
    Ok(Described {
        axes,
        crs,
        nodata: numbers::nodata(metadata, &attributes),
        scale: attributes::number(&attributes, "scale_factor").filter(|scale| *scale != 0.0 && has_scale),
        offset: attributes::number(&attributes, "add_offset").filter(|_| has_scale),
        units: attributes::line(&attributes, "units"),
        long_name: ["long_name", "standard_name"].iter().find_map(|name| attributes::line(&attributes, name)),
        attributes: Arc::new(attributes),
        sources,
        memory: memory.into(),
        ..Described::of_metadata(key, metadata)
    })
}

/// A coordinate array says more than the image that a dimension is of.
fn axis(
    name: Option<String>,
    len: u64,
    coordinate: Option<Coordinate>,
    image: Option<&ngff::ImageAxis>,
) -> DescribedAxis {
    let has_array = coordinate.is_some();
    let (units, calendar, mut coordinates) = match coordinate {
        Some(found) => (found.units, found.calendar, found.values),
        None => (None, None, Coordinates::Unknown),
    };
    if coordinates == Coordinates::Unknown
        && let Some((first, step)) = image.and_then(|axis| axis.place)
    {
        coordinates = Coordinates::Regular { first, step };
    }
    let units = units.or_else(|| image?.unit.clone());
    let is_unread = has_array && coordinates == Coordinates::Unknown;
    DescribedAxis { name, len, role: Role::Other, units, calendar, coordinates, is_unread }
}

/// The names of the dimensions of `array`, whose attributes these are; no coordinates are read for it. A group that tells
/// them is added to `sources`.
pub fn axis_names(
    hierarchy: &Hierarchy,
    array: &Array,
    attributes: &Map<String, Value>,
    sources: &mut Vec<Key>,
) -> Vec<Option<String>> {
    let dimensions = array.metadata().shape.len();
    let kept = kept_names(hierarchy, array.key(), attributes, dimensions);
    // a group may hold many arrays, and say much of its images
    let image = if kept.is_some() { None } else { ngff::image(hierarchy, array.key(), dimensions) };
    let image = image.map(|(group, axes)| {
        sources.push(group);
        axes
    });
    names(kept, image.as_deref(), dimensions)
}

/// The names that were kept, or else those of the image.
fn names(kept: Option<Vec<String>>, image: Option<&[ngff::ImageAxis]>, dimensions: usize) -> Vec<Option<String>> {
    let name = |i: usize| match (&kept, image) {
        (Some(names), _) => names.get(i).cloned(),
        (None, image) => image?.get(i)?.name.clone(),
    };
    (0..dimensions).map(|i| name(i).filter(|name| attributes::is_shown(name))).collect()
}

/// The names of all dimensions, as xarray or NCZarr keep them.
fn kept_names(
    hierarchy: &Hierarchy,
    key: &Key,
    attributes: &Map<String, Value>,
    dimensions: usize,
) -> Option<Vec<String>> {
    let whole = |names: Vec<String>| Some(names).filter(|names| names.len() == dimensions);
    if let Some(names) = attributes::texts(attributes.get(DIMENSIONS)).and_then(whole) {
        return Some(names);
    }
    let references = |array: Option<&Value>| attributes::texts(array?.get("dimrefs"));
    // netCDF-C 4.9.3 writes it as an attribute, the versions before into `.zarray`
    let references = ["_nczarr_array", "_NCZARR_ARRAY"].iter().find_map(|name| references(attributes.get(*name)));
    let references = references.or_else(|| stored_references(hierarchy, key)).and_then(whole)?;
    let last = |path: String| path.rsplit('/').next().unwrap_or_default().to_string();
    Some(references.into_iter().map(last).collect())
}

/// What NCZarr has written into the array's `.zarray`, which no other reader looks at.
fn stored_references(hierarchy: &Hierarchy, key: &Key) -> Option<Vec<String>> {
    let document = hierarchy.stored(&key.join(ZARRAY)).ok()??.text;
    let named = "_NCZARR_ARRAY";
    if !document.windows(named.len()).any(|word| word == named.as_bytes()) {
        return None;
    }
    attributes::texts(json::parse_object(&document).ok()?.get(named)?.get("dimrefs"))
}

/// The group that holds `key` and those above it, nearest first.
fn groups_above(key: &Key) -> impl Iterator<Item = Key> {
    let up = |key: &Key| (!key.is_root()).then(|| key.parent());
    std::iter::successors(up(key), move |key| up(key)).take(LEVELS)
}

/// The array that `path` names in the nearest group above `key` that has one there. No path leads out of the store.
fn nearest_array(hierarchy: &Hierarchy, key: &Key, path: &str) -> Option<Arc<Array>> {
    let path = Key::normalize(path).ok().filter(|path| !path.is_root())?;
    groups_above(key).find_map(|group| match hierarchy.find(&group.join_key(&path)) {
        Ok(Some(StoredNode::Array(array))) => Some(array),
        Ok(_) => None,
        Err(e) => {
            log::debug!("{key}: is described without {path}: {e}");
            None
        }
    })
}

#[cfg(test)]
mod tests;
