//! Arrays on the grid of another one: its pyramid, and the longitudes and latitudes of curvilinear
//! grids (CF conventions, 5.2, "Two-Dimensional Latitude, Longitude, Coordinate Variables").

use super::super::described::{Coordinates, DescribedAxis, Geolocation, Overview, Role};
use super::{attributes, nearest_array, role};
use crate::array::hierarchy::Hierarchy;
use std::cmp::Reverse;
use std::sync::Arc;
use zarrfs_base::json::{Map, Value};
use zarrfs_format::metadata::ArrayMetadata;
use zarrfs_store::Key;

/// Returns those of the arrays that have the image of an array with this metadata and axes in a
/// lower resolution: fewer rows and columns, and the same bands and type. The finest is the first.
pub fn overviews(
    hierarchy: &Hierarchy,
    metadata: &ArrayMetadata,
    axes: &[DescribedAxis],
    levels: Vec<Key>,
) -> Vec<Overview> {
    let mut found = Vec::new();
    for key in levels {
        let Ok(Some(level)) = hierarchy.find_array(&key) else {
            continue;
        };
        let level = level.metadata();
        if level.dtype == metadata.dtype && is_overview(&level.shape, &metadata.shape, axes) {
            found.push(Overview {
                key,
                metadata: Arc::new(level.clone()),
            });
        }
    }
    found.sort_by_key(|overview| Reverse(overview.metadata.flat_size()));
    found
}

fn is_overview(level: &[u64], shape: &[u64], axes: &[DescribedAxis]) -> bool {
    level.len() == shape.len()
        && axes
            .iter()
            .zip(level.iter().zip(shape))
            .all(|(axis, (level, len))| match axis.role {
                Role::X | Role::Y => level < len,
                _ => level == len,
            })
        && axes.iter().any(|axis| axis.role == Role::X)
}

/// Returns the arrays with the longitude and latitude of each pixel of an array with these
/// attributes and axes. Its `coordinates` name them, and they have its last two dimensions, which
/// have no coordinates of their own.
pub fn geolocation(
    hierarchy: &Hierarchy,
    key: &Key,
    attributes: &Map<String, Value>,
    axes: &[DescribedAxis],
) -> Option<Geolocation> {
    let [.., y, x] = axes else { return None };
    let is_placed = |axis: &DescribedAxis| matches!(axis.coordinates, Coordinates::Regular { .. });
    if is_placed(y) && is_placed(x) && (y.role, x.role) == (Role::Y, Role::X) {
        return None;
    }
    let names = attributes::line(attributes, "coordinates")?;
    let mut longitudes = None;
    let mut latitudes = None;
    for name in names.split_whitespace() {
        let Some(array) = nearest_array(hierarchy, key, name) else {
            continue;
        };
        if array.metadata().shape != [y.len, x.len] {
            continue;
        }
        let of_array = hierarchy.attributes(array.key()).ok()?;
        // GDAL takes the stored values for degrees
        if of_array.contains_key("scale_factor") || of_array.contains_key("add_offset") {
            continue;
        }
        let units = attributes::line(&of_array, "units").unwrap_or_default();
        let name = attributes::line(&of_array, "standard_name").unwrap_or_default();
        if role::is_east(&units) || name == "longitude" {
            longitudes = Some(array.key().clone());
        } else if role::is_north(&units) || name == "latitude" {
            latitudes = Some(array.key().clone());
        }
    }
    Some(Geolocation {
        longitudes: longitudes?,
        latitudes: latitudes?,
    })
}
