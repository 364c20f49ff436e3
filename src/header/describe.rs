//! What metadata tells of an array's geometry, by the conventions of xarray/CF, OME-NGFF and GDAL.

use super::described::Described;
use crate::array::Array;
use crate::cache::Cache;
use crate::error::Result;
use crate::hierarchy::Hierarchy;
use std::sync::Arc;

/// What headers can say of `array`, with the values of its coordinate arrays read through `cache`. Coordinates that
/// can't be read are left out.
pub fn describe(hierarchy: &Hierarchy, _cache: &Cache, array: &Arc<Array>) -> Result<Described> {
    let described = Described::of_metadata(array.key(), array.metadata());
    Ok(Described { attributes: hierarchy.attributes(array.key())?, ..described })
}
