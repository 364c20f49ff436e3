//! The grid mapping variables, which have only attributes (CF conventions, 5.6), of arrays whose
//! reference system GDAL's `_CRS` or GeoZarr states, and the attribute `axis` of their coordinates.
//! Arrays that name a grid mapping themselves stay unchanged.

use super::classic::Variable;
use crate::describe::GridMapping;
use crate::group::GroupArray;
use crate::group::attributes::Attribute;
use crate::group::names::UniqueNames;
use crate::group::types::Type;
use std::collections::BTreeMap;

/// The name of a mapping unless an array has this name.
const NAME: &str = "crs";

/// The mappings of a file and their names.
pub struct Mappings<'a>(BTreeMap<&'a GridMapping, String>);

impl<'a> Mappings<'a> {
    /// Collects the mappings of the arrays and gives them unique names.
    pub fn new(members: &'a [GroupArray], names: &mut UniqueNames) -> Self {
        let mut mappings = BTreeMap::new();
        for mapping in members
            .iter()
            .filter_map(|member| member.mapping.as_deref())
        {
            mappings.entry(mapping).or_insert_with(|| names.give(NAME));
        }
        Mappings(mappings)
    }

    /// Returns the variables, each with four bytes of meaningless data.
    pub fn variables(&self) -> impl Iterator<Item = Variable> {
        self.0.iter().map(|(mapping, name)| Variable {
            name: name.clone(),
            dimensions: Vec::new(),
            attributes: attributes(mapping),
            kind: Type::Int,
            size: 4,
            begin: 0,
        })
    }

    /// Returns the attribute that an array needs: the name of its mapping, or the axis of a
    /// coordinate.
    pub fn attribute(&self, member: &GroupArray) -> Option<Attribute> {
        if let Some(name) = member.mapping.as_deref().and_then(|own| self.0.get(own)) {
            return Some(text("grid_mapping", name));
        }
        let has_role = ["axis", "standard_name", "units"]
            .iter()
            .any(|name| member.attributes.contains_key(*name));
        let axis = ["X", "Y"]
            .into_iter()
            .find(|axis| member.name().eq_ignore_ascii_case(axis))?;
        (!self.0.is_empty() && !has_role && member.is_coordinate()).then(|| text("axis", axis))
    }
}

fn text(name: &str, value: &str) -> Attribute {
    Attribute {
        name: name.to_string(),
        kind: Type::Char,
        values: value.as_bytes().to_vec(),
    }
}

/// Returns the attributes of a mapping: those of CF, and those that GDAL and rioxarray read.
fn attributes(mapping: &GridMapping) -> Vec<Attribute> {
    let wkt = &mapping.wkt;
    let transform = mapping.geotransform.as_deref();
    let transform = transform.map(|numbers| text("GeoTransform", numbers));
    [text("crs_wkt", wkt), text("spatial_ref", wkt)]
        .into_iter()
        .chain(transform)
        .collect()
}
