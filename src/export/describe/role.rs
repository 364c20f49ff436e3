//! The role of a dimension, from the attributes and units of its coordinates: CF conventions,
//! chapter 4, "Coordinate Types"; OME-NGFF 0.4, "axes"; or else from usual names.

use super::super::described::{DescribedAxis, Role};
use super::coordinates::Coordinate;
use super::{attributes, ngff};

/// The evidence for a role, the weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Evidence {
    /// The name of the dimension.
    Name,
    /// NGFF's type of the axis.
    Type,
    /// Units that CF reserves for such coordinates, or CF's attribute `positive`.
    Units,
    /// CF's attribute `standard_name`.
    StandardName,
    /// CF's attribute `axis`.
    Axis,
}

/// A role that a dimension may have, with the evidence for it.
pub type Claim = Option<(Evidence, Role)>;

/// Returns the role with the strongest evidence.
pub fn claim(
    coordinate: Option<&Coordinate>,
    image: Option<&ngff::ImageAxis>,
    name: Option<&str>,
) -> Claim {
    let word = |name: &str| coordinate.and_then(|c| attributes::line(&c.attributes, name));
    let of_axis = || by_axis(&word("axis")?);
    let of_standard_name = || by_standard_name(&word("standard_name")?);
    let units = coordinate.and_then(|c| c.units.as_deref());
    let of_units = || {
        units
            .and_then(by_units)
            .or_else(|| word("positive").map(|_| Role::Z))
    };
    let found = [
        of_axis().map(|role| (Evidence::Axis, role)),
        of_standard_name().map(|role| (Evidence::StandardName, role)),
        of_units().map(|role| (Evidence::Units, role)),
    ];
    if let Some(found) = found.into_iter().flatten().next() {
        return Some(found);
    }
    match image.and_then(|axis| axis.kind.as_deref()) {
        Some("time") => Some((Evidence::Type, Role::Time)),
        None | Some("space") => by_name(name?).map(|role| (Evidence::Name, role)),
        Some(_) => None,
    }
}

/// Assigns each role to at most one axis: to the one with the strongest evidence, and among equals
/// to the last, since GDAL takes the last two dimensions for rows and columns.
pub fn assign(claims: &[Claim], axes: &mut [DescribedAxis]) {
    for role in [Role::X, Role::Y, Role::Z, Role::Time] {
        let claimed = |claim: &Claim| {
            claim
                .filter(|(_, claimed)| *claimed == role)
                .map(|(evidence, _)| evidence)
        };
        let best = claims
            .iter()
            .enumerate()
            .filter_map(|(i, claim)| Some((claimed(claim)?, i)))
            .max();
        if let Some(axis) = best.and_then(|(_, i)| axes.get_mut(i)) {
            axis.role = role;
        }
    }
}

/// Returns the role for CF's attribute `axis` (chapter 4).
fn by_axis(axis: &str) -> Option<Role> {
    Some(match axis {
        "X" | "x" => Role::X,
        "Y" | "y" => Role::Y,
        "Z" | "z" => Role::Z,
        "T" | "t" => Role::Time,
        _ => return None,
    })
}

/// Returns the role for a name of CF's standard name table.
fn by_standard_name(name: &str) -> Option<Role> {
    let is_level = |name: &str| {
        let is_formula = name.starts_with("atmosphere_") || name.starts_with("ocean_");
        name.starts_with("height")
            || name.starts_with("depth")
            || is_formula && name.ends_with("_coordinate")
    };
    Some(match name {
        "longitude"
        | "grid_longitude"
        | "projection_x_coordinate"
        | "projection_x_angular_coordinate" => Role::X,
        "latitude"
        | "grid_latitude"
        | "projection_y_coordinate"
        | "projection_y_angular_coordinate" => Role::Y,
        "time" => Role::Time,
        "altitude" | "air_pressure" | "model_level_number" | "geopotential_height" => Role::Z,
        "sea_water_pressure" | "air_potential_temperature" => Role::Z,
        name if is_level(name) => Role::Z,
        _ => return None,
    })
}

/// Returns the role for units of longitude, latitude, pressure or time (CF 4.1 to 4.4).
fn by_units(units: &str) -> Option<Role> {
    if is_east(units) {
        return Some(Role::X);
    }
    if is_north(units) {
        return Some(Role::Y);
    }
    match units {
        "Pa" | "pascal" | "hPa" | "kPa" | "bar" | "bars" | "mbar" | "millibar" | "millibars"
        | "mb" => Some(Role::Z),
        "decibar" | "decibars" | "dbar" | "atm" | "atmosphere" => Some(Role::Z),
        _ => units.contains(" since ").then_some(Role::Time),
    }
}

/// Returns whether units are degrees east in one of CF's spellings (4.2).
pub fn is_east(units: &str) -> bool {
    matches!(
        units,
        "degrees_east" | "degree_east" | "degree_E" | "degrees_E" | "degreeE" | "degreesE"
    )
}

/// Returns whether units are degrees north in one of CF's spellings (4.1).
pub fn is_north(units: &str) -> bool {
    matches!(
        units,
        "degrees_north" | "degree_north" | "degree_N" | "degrees_N" | "degreeN" | "degreesN"
    )
}

fn by_name(name: &str) -> Option<Role> {
    Some(match name.to_ascii_lowercase().as_str() {
        "x" | "lon" | "long" | "longitude" | "easting" | "eastings" | "rlon" => Role::X,
        "y" | "lat" | "latitude" | "northing" | "northings" | "rlat" => Role::Y,
        "z" | "lev" | "level" | "levels" | "plev" | "depth" | "height" | "altitude" => Role::Z,
        "t" | "time" | "date" => Role::Time,
        _ => return None,
    })
}
