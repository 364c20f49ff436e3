//! Converts GDAL's `_CRS` to CF's form: a grid mapping variable, which has only attributes (CF
//! conventions, 5.6), and the attribute `axis` of its coordinates. Arrays that name a grid mapping
//! themselves stay unchanged.

use super::GroupArray;
use super::classic::{Attribute, Type, Variable};
use super::names::UniqueNames;
use std::collections::BTreeMap;
use zarrfs_base::json;

/// The name of a mapping unless an array has this name.
const NAME: &str = "crs";

/// The names of a file's mappings by WKT.
pub struct Mappings<'a>(BTreeMap<&'a str, String>);

impl<'a> Mappings<'a> {
    /// Collects the mappings of the arrays and gives them unique names.
    pub fn new(members: &'a [GroupArray], names: &mut UniqueNames) -> Self {
        let mut mappings = BTreeMap::new();
        for wkt in members.iter().filter_map(wkt) {
            mappings.entry(wkt).or_insert_with(|| names.give(NAME));
        }
        Mappings(mappings)
    }

    /// Returns the variables, each with four bytes of meaningless data.
    pub fn variables(&self) -> impl Iterator<Item = Variable> {
        self.0.iter().map(|(wkt, name)| Variable {
            name: name.clone(),
            dimensions: Vec::new(),
            attributes: vec![text("crs_wkt", wkt), text("spatial_ref", wkt)],
            kind: Type::Int,
            size: 4,
            begin: 0,
        })
    }

    /// Returns the attribute that an array needs: the name of its mapping, or the axis of a
    /// coordinate.
    pub fn attribute(&self, member: &GroupArray) -> Option<Attribute> {
        if let Some(name) = wkt(member).and_then(|wkt| self.0.get(wkt)) {
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

/// Returns the WKT of an array's `_CRS`.
fn wkt(member: &GroupArray) -> Option<&str> {
    let is_mapped = member.attributes.contains_key("grid_mapping");
    let crs = member.attributes.get("_CRS").filter(|_| !is_mapped)?;
    json::text(crs.get("wkt")?).filter(|wkt| !wkt.is_empty())
}
