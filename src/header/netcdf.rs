//! netCDF.

use super::Composite;
use crate::cache::Cache;
use crate::error::Result;
use crate::hierarchy::Hierarchy;
use crate::store::Key;

/// The group at `key` as a file of netCDF's classic format: its arrays as variables, with dimensions and attributes.
pub fn dataset(_: &Hierarchy, _: &Cache, _: &Key) -> Result<Composite> {
    Ok(Composite::default())
}
