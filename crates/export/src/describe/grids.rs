//! Arrays on the grid of another one: its pyramid, and the longitudes and latitudes of curvilinear
//! grids (CF conventions, 5.2, "Two-Dimensional Latitude, Longitude, Coordinate Variables").

use super::super::described::{Coordinates, DescribedAxis, Geolocation, Overview, Role};
use super::super::spelling;
use super::{attributes, nearest_array, role, stored_names, with_stated_sign};
use crate::reader::HierarchyReader;
use std::cmp::Reverse;
use zarrfs_base::json::{Map, Value};
use zarrfs_base::key::Key;
use zarrfs_format::metadata::ArrayMetadata;

/// Maximum number of names of coordinates that are looked up.
const MAX_COORDINATES: usize = 16;

/// Returns those of the arrays that have the image of an array with this metadata and axes in a
/// lower resolution: fewer rows and columns, and the same bands and type. The finest is the first.
/// Only an array whose last dimensions are y and x has overviews: whatever is known of a level, the
/// last two dimensions are its rows and columns then.
pub fn overviews(
    hierarchy: &dyn HierarchyReader,
    metadata: &ArrayMetadata,
    axes: &[DescribedAxis],
    levels: Vec<Key>,
) -> Vec<Overview> {
    let mut found: Vec<Overview> = Vec::new();
    let [.., y, x] = axes else { return found };
    if (y.role, x.role) != (Role::Y, Role::X) {
        return found;
    }
    for key in levels {
        let Ok(Some(level)) = hierarchy.find_array(&key) else {
            continue;
        };
        let Ok(attributes) = hierarchy.attributes(&key) else {
            continue;
        };
        let shown = with_stated_sign(&level.metadata, &attributes);
        let names = stored_names(hierarchy, &level, &attributes);
        let has_names =
            names.is_none_or(|names| names.iter().eq(axes.iter().map(|axis| &axis.name)));
        if shown.dtype == metadata.dtype
            && has_names
            && is_overview(&shown.shape, &metadata.shape)
            && found.iter().all(|other| other.key != key)
        {
            let metadata = level.metadata;
            found.push(Overview { key, metadata });
        }
    }
    found.sort_by_key(|overview| Reverse(overview.metadata.flat_size()));
    found
}

fn is_placed(axis: &DescribedAxis) -> bool {
    matches!(axis.coordinates, Coordinates::Regular { .. })
}

/// Returns whether a level has the same bands and fewer rows and columns.
fn is_overview(level: &[u64], shape: &[u64]) -> bool {
    match (level, shape) {
        ([level @ .., rows, columns], [bands @ .., all_rows, all_columns]) => {
            level == bands && (1..*all_rows).contains(rows) && (1..*all_columns).contains(columns)
        }
        _ => false,
    }
}

/// Returns the arrays with the longitude and latitude of each pixel of an array with these
/// attributes and axes. Its `coordinates` name them, and they have its last two dimensions, which
/// have no coordinates of their own.
pub fn geolocation(
    hierarchy: &dyn HierarchyReader,
    key: &Key,
    attributes: &Map<String, Value>,
    axes: &[DescribedAxis],
) -> Option<Geolocation> {
    let [.., y, x] = axes else { return None };
    if is_placed(y) && is_placed(x) && (y.role, x.role) == (Role::Y, Role::X) {
        return None;
    }
    let names = attributes::line(attributes, "coordinates")?;
    let mut longitudes = None;
    let mut latitudes = None;
    for name in names.split_whitespace().take(MAX_COORDINATES) {
        let Some(array) = nearest_array(hierarchy, key, name) else {
            continue;
        };
        let Ok(of_array) = hierarchy.attributes(&array.key) else {
            continue;
        };
        let names = stored_names(hierarchy, &array, &of_array).unwrap_or_default();
        // GDAL takes the stored values for degrees
        let is_packed =
            of_array.contains_key("scale_factor") || of_array.contains_key("add_offset");
        let is_float = spelling::number(&array.metadata.dtype)
            .is_some_and(|number| ["f4", "f8"].contains(&number));
        if array.metadata.shape != [y.len, x.len]
            || names != [y.name.clone(), x.name.clone()]
            || is_packed
            || !is_float
        {
            continue;
        }
        let units = attributes::line(&of_array, "units").unwrap_or_default();
        let name = attributes::line(&of_array, "standard_name").unwrap_or_default();
        if role::is_east(&units) || name == "longitude" {
            longitudes = Some(array.key.clone());
        } else if role::is_north(&units) || name == "latitude" {
            latitudes = Some(array.key.clone());
        }
    }
    Some(Geolocation {
        longitudes: longitudes?,
        latitudes: latitudes?,
    })
}
