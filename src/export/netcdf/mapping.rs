//! GDAL's own reference system, `_CRS`, as other readers of netCDF know it: a grid mapping variable, which holds nothing but
//! attributes (CF conventions, 5.6), and the `axis` of the coordinates it is of. Where arrays name a grid mapping
//! themselves, nothing is added.

use super::GroupArray;
use super::classic::{Attribute, Type, Variable};
use super::names::UniqueNames;
use crate::util::json;
use std::collections::BTreeMap;

/// What a mapping is called, if no array has that name.
const NAME: &str = "crs";

/// The names of a file's mappings by their WKT.
pub struct Mappings<'a>(BTreeMap<&'a str, String>);

impl<'a> Mappings<'a> {
    /// Those that the arrays need, with names that nobody has.
    pub fn new(members: &'a [GroupArray], names: &mut UniqueNames) -> Self {
        let mut mappings = BTreeMap::new();
        for wkt in members.iter().filter_map(wkt) {
            mappings.entry(wkt).or_insert_with(|| names.give(NAME));
        }
        Mappings(mappings)
    }

    /// The variables: four bytes of data each, which mean nothing.
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

    /// What an array's attributes lack: the name of its mapping, or which axis its coordinates are of.
    pub fn attribute(&self, member: &GroupArray) -> Option<Attribute> {
        if let Some(name) = wkt(member).and_then(|wkt| self.0.get(wkt)) {
            return Some(text("grid_mapping", name));
        }
        let tells = ["axis", "standard_name", "units"].iter().any(|name| member.attributes.contains_key(*name));
        let axis = ["X", "Y"].into_iter().find(|axis| member.name().eq_ignore_ascii_case(axis))?;
        (!self.0.is_empty() && !tells && member.is_coordinate()).then(|| text("axis", axis))
    }
}

fn text(name: &str, value: &str) -> Attribute {
    Attribute { name: name.to_string(), kind: Type::Char, values: value.as_bytes().to_vec() }
}

/// What `_CRS` says of an array in WKT.
fn wkt(member: &GroupArray) -> Option<&str> {
    let is_mapped = member.attributes.contains_key("grid_mapping");
    let crs = member.attributes.get("_CRS").filter(|_| !is_mapped)?;
    json::text(crs.get("wkt")?).filter(|wkt| !wkt.is_empty())
}
