//! The reference system of x and y: GDAL's `_CRS`; CF's grid mapping (CF conventions, 5.6); or else
//! WGS 84 if units say that they are longitude and latitude, as GDAL's netCDF driver assumes.

use super::super::described::{Coordinates, Crs, DescribedAxis, Role};
use super::{attributes, nearest_array, projection, role};
use crate::array::hierarchy::Hierarchy;
use zarrfs_base::json::{self, Map, Value};
use zarrfs_store::Key;

/// Returns the reference system of the array at `key`. If a grid mapping has a transform, axes
/// without coordinates get theirs from it. The array with the grid mapping is added to `sources`.
pub fn find(
    hierarchy: &Hierarchy,
    key: &Key,
    attributes: &Map<String, Value>,
    axes: &mut [DescribedAxis],
    sources: &mut Vec<Key>,
) -> Option<Crs> {
    let mapping = attributes.get("grid_mapping").and_then(json::text);
    let mapping = mapping.and_then(|mapping| nearest_array(hierarchy, key, variable(mapping)?));
    sources.extend(mapping.as_ref().map(|array| array.key().clone()));
    let mapping = mapping.and_then(|array| hierarchy.attributes(array.key()).ok());
    if let Some(transform) = mapping.as_deref().and_then(geotransform) {
        set_coordinates(axes, transform);
    }
    let of_gdal = attributes
        .get("_CRS")
        .and_then(Value::as_object)
        .and_then(of_gdal);
    of_gdal
        .or_else(|| of_mapping(mapping.as_deref()?, axes))
        .or_else(|| of_units(axes))
}

/// Returns the name of the grid mapping variable: `crs`, or the first of `crs: x y other: lat lon`.
fn variable(mapping: &str) -> Option<&str> {
    Some(mapping.split_whitespace().next()?.trim_end_matches(':'))
}

/// Parses `_CRS` of GDAL's Zarr driver ("SRS encoding"), which has any of `url`, `wkt` and
/// `projjson`.
fn of_gdal(crs: &Map<String, Value>) -> Option<Crs> {
    let projjson = crs.get("projjson").filter(|value| value.is_object());
    let described = projjson.map(|value| Crs {
        projjson: Some(json::write(value)),
        is_geographic: value.get("type").and_then(json::text) == Some("GeographicCRS"),
        ..Crs::default()
    });
    let named = attributes::line(crs, "url").and_then(|url| of_url(&url));
    let all = [wkt(crs, "wkt").map(of_wkt), named, described];
    all.into_iter().flatten().reduce(|known, more| Crs {
        wkt: known.wkt.or(more.wkt),
        authority: known.authority.or(more.authority),
        projjson: known.projjson.or(more.projjson),
        is_geographic: known.is_geographic || more.is_geographic,
    })
}

/// Parses `http://www.opengis.net/def/crs/EPSG/0/4326`: authority, version, code.
fn of_url(url: &str) -> Option<Crs> {
    let (_, name) = url.split_once("/def/crs/")?;
    let [authority, _, code] = name.split('/').collect::<Vec<_>>().try_into().ok()?;
    let authority = identifier(authority, code)?;
    let is_wgs_84 = ["EPSG:4326", "OGC:CRS84"].contains(&authority.as_str());
    let known = if is_wgs_84 { wgs_84() } else { Crs::default() };
    Some(Crs {
        authority: Some(authority),
        ..known
    })
}

/// Returns the system of a grid mapping variable, from its WKT or from its other attributes.
fn of_mapping(mapping: &Map<String, Value>, axes: &[DescribedAxis]) -> Option<Crs> {
    let own = ["crs_wkt", "spatial_ref"]
        .iter()
        .find_map(|name| wkt(mapping, name));
    let units = axes
        .iter()
        .find(|axis| axis.role == Role::X)
        .and_then(|axis| axis.units.as_deref());
    own.or_else(|| projection::wkt(mapping, units)).map(of_wkt)
}

/// Returns WGS 84 if x and y are longitude and latitude.
fn of_units(axes: &[DescribedAxis]) -> Option<Crs> {
    let is_geographic =
        any_unit(axes, Role::X, role::is_east) && any_unit(axes, Role::Y, role::is_north);
    is_geographic.then(wgs_84)
}

fn any_unit(axes: &[DescribedAxis], role: Role, is_unit: fn(&str) -> bool) -> bool {
    axes.iter()
        .filter(|axis| axis.role == role)
        .any(|axis| axis.units.as_deref().is_some_and(is_unit))
}

fn wgs_84() -> Crs {
    of_wkt(projection::WGS_84.to_string())
}

/// Returns an attribute that looks like WKT: a keyword, then brackets.
fn wkt(attributes: &Map<String, Value>, name: &str) -> Option<String> {
    let text = attributes::line(attributes, name)?;
    let (word, _) = text.split_once(['[', '('])?;
    let is_wkt = !word.is_empty()
        && word
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == ' ');
    is_wkt.then_some(text)
}

fn of_wkt(wkt: String) -> Crs {
    let root = wkt
        .split(['[', '('])
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_uppercase();
    let is_geographic = match root.as_str() {
        "GEOGCS" | "GEOGCRS" | "GEOGRAPHICCRS" => true,
        // WKT 2 also uses these for geocentric systems, whose axes are Cartesian
        "GEODCRS" | "GEODETICCRS" => wkt.to_ascii_lowercase().contains("cs[ellipsoidal"),
        _ => false,
    };
    Crs {
        authority: authority(&wkt),
        wkt: Some(wkt),
        projjson: None,
        is_geographic,
    }
}

/// Returns the identifier of the outermost object: `AUTHORITY["EPSG","4326"]` in WKT 1,
/// `ID["EPSG",4326]` in WKT 2.
fn authority(wkt: &str) -> Option<String> {
    let mut depth = 0usize;
    let mut quoted = false;
    for (at, c) in wkt.char_indices() {
        match c {
            '"' => quoted = !quoted,
            _ if quoted => {}
            '[' | '(' => {
                let (before, after) = wkt.split_at(at);
                let word = before
                    .rsplit(|c: char| !c.is_ascii_alphanumeric())
                    .next()
                    .unwrap_or_default();
                if depth == 1 && ["AUTHORITY", "ID"].contains(&word) {
                    let mut parts = after.get(1..)?.split([']', ')']).next()?.split(',');
                    return identifier(parts.next()?, parts.next()?);
                }
                depth += 1;
            }
            ']' | ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    None
}

/// Joins authority and code: `EPSG:4326`.
fn identifier(authority: &str, code: &str) -> Option<String> {
    let parts = [authority, code].map(|part| part.trim().trim_matches('"'));
    let is_plain = parts
        .iter()
        .all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric()));
    is_plain.then(|| parts.join(":"))
}

/// Parses GDAL's attribute `x0 dx 0 y0 0 dy`, where x0 and y0 are the corner of the first pixel.
/// Returns `None` for rotated grids, whose axes have no coordinates.
fn geotransform(mapping: &Map<String, Value>) -> Option<[f64; 6]> {
    let text = attributes::line(mapping, "GeoTransform")?;
    let words = text.split([' ', ',']).filter(|word| !word.is_empty());
    let numbers: Vec<f64> = words.map(|word| word.parse().ok()).collect::<Option<_>>()?;
    let numbers: [f64; 6] = numbers.try_into().ok()?;
    let [_, dx, rx, _, ry, dy] = numbers;
    let is_good =
        numbers.iter().all(|n| n.is_finite()) && dx != 0.0 && dy != 0.0 && rx == 0.0 && ry == 0.0;
    is_good.then_some(numbers)
}

/// Sets the coordinates of x and y that are still unknown.
fn set_coordinates(axes: &mut [DescribedAxis], [x0, dx, _, y0, _, dy]: [f64; 6]) {
    for axis in axes
        .iter_mut()
        .filter(|axis| axis.coordinates == Coordinates::Unknown)
    {
        let (corner, step) = match axis.role {
            Role::X => (x0, dx),
            Role::Y => (y0, dy),
            _ => continue,
        };
        axis.coordinates = Coordinates::Regular {
            first: corner + step / 2.0,
            step,
        };
    }
}
