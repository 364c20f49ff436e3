//! The role of a dimension, from the attributes and units of its coordinates: CF conventions,
//! chapter 4, "Coordinate Types"; OME-NGFF 0.4, "axes"; or else from usual names.

use super::super::described::{DescribedAxis, Role};
use super::coordinates::Coordinate;
use super::{attributes, ngff};
use zarrfs_base::json::{Map, Value};

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
    if let Some(found) = coordinate.and_then(of_coordinate) {
        return Some(found);
    }
    if let Some((role, _)) = image.and_then(|axis| axis.orientation) {
        return Some((Evidence::Type, role));
    }
    match image.and_then(|axis| axis.kind.as_deref()) {
        Some("time") => Some((Evidence::Type, Role::Time)),
        None | Some("space") => by_name(name?).map(|role| (Evidence::Name, role)),
        Some(_) => None,
    }
}

fn of_coordinate(coordinate: &Coordinate) -> Claim {
    let word = |name: &str| attributes::line(&coordinate.attributes, name);
    if let Some(role) = word("axis").as_deref().and_then(by_axis) {
        return Some((Evidence::Axis, role));
    }
    if let Some(role) = word("standard_name").as_deref().and_then(by_standard_name) {
        return Some((Evidence::StandardName, role));
    }
    let of_units = coordinate.units.as_deref().and_then(by_units);
    let role = of_units.or_else(|| word("positive").map(|_| Role::Z))?;
    Some((Evidence::Units, role))
}

/// Assigns each role to at most one axis: to the one with the strongest evidence, and among equals
/// to the last, since GDAL takes the last two dimensions for rows and columns.
pub fn assign(claims: &[Claim], axes: &mut [DescribedAxis]) {
    for role in [Role::X, Role::Y, Role::Z, Role::Time] {
        let claims = claims.iter().enumerate();
        let best = claims.filter_map(|(i, claim)| match claim {
            Some((evidence, claimed)) if *claimed == role => Some((*evidence, i)),
            _ => None,
        });
        if let Some((_, i)) = best.max()
            && let Some(axis) = axes.get_mut(i)
        {
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
    let is_formula = name.starts_with("atmosphere_") || name.starts_with("ocean_");
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
        _ if name.starts_with("height") || name.starts_with("depth") => Role::Z,
        _ if is_formula && name.ends_with("_coordinate") => Role::Z,
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

/// Returns whether attributes state degrees east or north as the units of coordinates.
pub fn is_in_degrees(attributes: &Map<String, Value>) -> bool {
    let units = attributes::line(attributes, "units").unwrap_or_default();
    is_east(&units) || is_north(&units)
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
