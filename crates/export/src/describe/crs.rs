//! The reference system of x and y: GDAL's `_CRS`; CF's grid mapping (CF conventions, 5.6); what
//! GeoZarr says; or else WGS 84 if units say that they are longitude and latitude, as GDAL's netCDF
//! driver assumes.

use super::super::described::{Coordinates, Crs, CrsKind, DescribedAxis, Role};
use super::super::units;
use super::{CRS, attributes, nearest_array, projection, role};
use crate::reader::HierarchyReader;
use zarrfs_base::json::{self, Map, Value};
use zarrfs_base::key::Key;

/// Maximum depth of objects in WKT.
const MAX_DEPTH: usize = 32;

/// What conventions other than CF and GDAL's state of the place of an array.
#[derive(Default)]
pub struct StatedPlace {
    /// The reference system.
    pub crs: Option<Crs>,
    /// The reference system of the product that contains the array.
    pub crs_of_product: Option<Crs>,
    /// GDAL's geotransform.
    pub transform: Option<[f64; 6]>,
}

/// Returns the reference system of the array at `key`, which has these `attributes` and what else
/// is `stated` of its place. If a transform is known, axes without coordinates get theirs from it,
/// unless it is rotated: then it is returned in GDAL's order. The array with the grid mapping is
/// added to `sources`.
pub fn find(
    hierarchy: &dyn HierarchyReader,
    key: &Key,
    attributes: &Map<String, Value>,
    stated: StatedPlace,
    axes: &mut [DescribedAxis],
    sources: &mut Vec<Key>,
) -> (Option<Crs>, Option<[f64; 6]>) {
    let mapping = attributes.get("grid_mapping").and_then(json::text);
    let mapping = mapping.and_then(|mapping| nearest_array(hierarchy, key, variable(mapping)?));
    sources.extend(mapping.as_ref().map(|array| array.key.clone()));
    let mapping = mapping.and_then(|array| hierarchy.attributes(&array.key).ok());
    let transform = mapping.as_deref().and_then(geotransform);
    let transform = transform.or(stated.transform);
    let of_gdal = attributes
        .get(CRS)
        .and_then(Value::as_object)
        .and_then(of_gdal);
    let is_map = is_map(axes);
    let crs = of_gdal
        .or_else(|| of_mapping(mapping.as_deref()?, axes))
        .or(stated.crs.filter(|_| is_map))
        .or_else(|| of_units(axes))
        .or(stated.crs_of_product.filter(|_| is_map));
    let is_unplaced = axes.iter().all(|axis| {
        !matches!(axis.role, Role::X | Role::Y) || axis.coordinates == Coordinates::Unknown
    });
    let rotated = transform.filter(|transform| is_rotated(*transform) && is_unplaced);
    if let Some(transform) = transform {
        set_coordinates(axes, crs.as_ref(), transform);
    }
    (crs, rotated)
}

/// Returns whether two of the axes are x and y.
pub fn is_map(axes: &[DescribedAxis]) -> bool {
    [Role::X, Role::Y]
        .iter()
        .all(|role| axes.iter().any(|axis| axis.role == *role))
}

/// Returns the name of the grid mapping variable: `crs`, or the first of `crs: x y other: lat lon`.
fn variable(mapping: &str) -> Option<&str> {
    Some(mapping.split_whitespace().next()?.trim_end_matches(':'))
}

/// Parses `_CRS` of GDAL's Zarr driver ("SRS encoding"), which has any of `url`, `wkt` and
/// `projjson`.
pub fn of_gdal(crs: &Map<String, Value>) -> Option<Crs> {
    let named = attributes::line(crs, "url").and_then(|url| of_url(&url));
    merged([
        wkt(crs, "wkt").map(of_wkt),
        named,
        crs.get("projjson").and_then(of_projjson),
    ])
}

/// Returns the system in all forms in which it is stated.
pub fn merged<const N: usize>(forms: [Option<Crs>; N]) -> Option<Crs> {
    forms.into_iter().flatten().reduce(|known, more| Crs {
        wkt: known.wkt.or(more.wkt),
        authority: known.authority.or(more.authority),
        projjson: known.projjson.or(more.projjson),
        kind: if known.kind == CrsKind::Other {
            more.kind
        } else {
            known.kind
        },
        unit: known.unit.or(more.unit),
        perspective_height: known.perspective_height.or(more.perspective_height),
    })
}

/// Returns a reference system as GDAL states it in `_CRS`; `None` if the text names none in a form
/// that [`of_gdal`] reads.
pub fn for_gdal(text: &str) -> Option<Value> {
    let system = of_text(text)?;
    let named = system
        .authority
        .as_deref()
        .and_then(|name| name.split_once(':'));
    let (form, value) = match (system.projjson, system.wkt, named) {
        (Some(_), ..) => ("projjson", json::parse(text.as_bytes()).ok()?),
        (_, Some(_), _) if text.contains(['[', '(']) => ("wkt", text.into()),
        (.., Some((authority, code))) => {
            let url = format!("http://www.opengis.net/def/crs/{authority}/0/{code}");
            ("url", url.into())
        }
        _ => return None,
    };
    let stated = [(form.to_string(), value)].into_iter().collect();
    of_gdal(&stated)?;
    Some(Value::Object(stated))
}

/// Parses WKT, PROJJSON, or an authority and a code.
fn of_text(text: &str) -> Option<Crs> {
    let stated: Map<String, Value> = [("wkt".to_string(), text.into())].into_iter().collect();
    if let Some(wkt) = wkt(&stated, "wkt") {
        return Some(of_wkt(wkt));
    }
    match text.split_once(':') {
        Some((authority, code)) if !text.trim_start().starts_with('{') => of_code(authority, code),
        _ => of_projjson(&json::parse(text.as_bytes()).ok()?),
    }
}

/// Returns whether two texts state the same reference system. It compares them without a
/// database: by their codes, or else by their names and numbers. GDAL states a system in another
/// version of WKT than that which it has read.
pub fn is_same(a: &str, b: &str) -> bool {
    if a == b {
        return true;
    }
    let (Some(known), Some(other)) = (of_text(a), of_text(b)) else {
        return false;
    };
    if let (Some(known), Some(other)) = (&known.authority, &other.authority) {
        return known == other;
    }
    if let (Some(known), Some(other)) = (&known.wkt, &other.wkt)
        && parameters(known) != parameters(other)
    {
        return false;
    }
    match (name(&known), name(&other)) {
        (Some(known), Some(other)) => known == other,
        _ => false,
    }
}

/// Returns the letters and digits of the name of a system: the first quoted text of WKT.
fn name(system: &Crs) -> Option<String> {
    let name = match (&system.wkt, &system.projjson) {
        (Some(wkt), _) => wkt.split('"').nth(1)?.to_string(),
        (None, Some(text)) => {
            let system = json::parse(text.as_bytes()).ok()?;
            json::text(system.get("name")?)?.to_string()
        }
        (None, None) => return None,
    };
    let letters = name.chars().filter(|c| c.is_alphanumeric());
    Some(letters.flat_map(char::to_lowercase).collect())
}

/// Returns the numbers of the ellipsoid and of the projection in WKT, sorted. Versions of WKT leave
/// out different zeros.
fn parameters(wkt: &str) -> Vec<String> {
    let wkt = wkt.to_ascii_uppercase();
    let mut numbers = Vec::new();
    for word in ["PARAMETER[", "SPHEROID[", "ELLIPSOID["] {
        for object in wkt.split(word).skip(1) {
            let own = object.split(['[', ']']).next().unwrap_or_default();
            let found = own
                .split(',')
                .filter_map(|part| part.trim().parse::<f64>().ok());
            numbers.extend(found.filter(|n| *n != 0.0).map(|n| format!("{n:.9e}")));
        }
    }
    numbers.sort();
    numbers
}

/// Parses PROJJSON (<https://proj.org/en/stable/specifications/projjson.html>).
pub fn of_projjson(value: &Value) -> Option<Crs> {
    value.as_object()?;
    attributes::room_after(value, attributes::MAX_TEXT)?;
    let text = json::write(value);
    let kind = match value.get("type").and_then(json::text) {
        Some("GeographicCRS") => CrsKind::Geographic,
        Some("ProjectedCRS") => CrsKind::Projected,
        _ => CrsKind::Other,
    };
    let id = value.get("id");
    let code = id.and_then(|id| id.get("code"));
    let code = code.map(|code| json::text(code).map_or_else(|| json::write(code), str::to_string));
    let authority = id.and_then(|id| id.get("authority").and_then(json::text));
    let axis = value.pointer("/coordinate_system/axis/0/unit");
    let unit = match axis {
        Some(Value::String(name)) if name == "metre" => Some(1.0),
        Some(unit) => unit.get("conversion_factor").and_then(json::float),
        None => None,
    };
    Some(Crs {
        projjson: Some(text),
        authority: authority
            .zip(code)
            .and_then(|(authority, code)| identifier(authority, &code)),
        kind,
        unit: unit.filter(|_| kind == CrsKind::Projected),
        ..Crs::default()
    })
}

/// Parses `http://www.opengis.net/def/crs/EPSG/0/4326`: authority, version, code.
fn of_url(url: &str) -> Option<Crs> {
    let (_, name) = url.split_once("/def/crs/")?;
    let [authority, _, code] = name.split('/').collect::<Vec<_>>().try_into().ok()?;
    of_code(authority, code)
}

/// Ranges of codes that EPSG (version 12) gives to projected systems alone. Short ones are missing.
const PROJECTED: [(u32, u32); 49] = [
    (2000, 3816),
    (3825, 3854),
    (3857, 3885),
    (3890, 3893),
    (3907, 3997),
    (4056, 4071),
    (4390, 4439),
    (4491, 4554),
    (4559, 4589),
    (4647, 4656),
    (4766, 4800),
    (4826, 4880),
    (5014, 5130),
    (5167, 5188),
    (5266, 5316),
    (5469, 5482),
    (5562, 5589),
    (5629, 5680),
    (5887, 5940),
    (6050, 6129),
    (6210, 6307),
    (6328, 6348),
    (6366, 6637),
    (6669, 6692),
    (6707, 6738),
    (6784, 6870),
    (6956, 6966),
    (6991, 7007),
    (7057, 7070),
    (7109, 7132),
    (7142, 7370),
    (7528, 7645),
    (7755, 7787),
    (7845, 7878),
    (7991, 8036),
    (8058, 8083),
    (8090, 8226),
    (8311, 8348),
    (8379, 8395),
    (8455, 8540),
    (8826, 8840),
    (9191, 9222),
    (9476, 9498),
    (9793, 9865),
    (10448, 10465),
    (10592, 10603),
    (10731, 11118),
    (20004, 20032),
    (20047, 32766),
];

/// Ranges of codes that it gives to geographic systems of two dimensions alone.
const GEOGRAPHIC: [(u32, u32); 33] = [
    (4001, 4016),
    (4018, 4025),
    (4027, 4036),
    (4041, 4047),
    (4052, 4055),
    (4120, 4216),
    (4218, 4326),
    (4463, 4463),
    (4470, 4470),
    (4483, 4483),
    (4490, 4490),
    (4600, 4646),
    (4657, 4765),
    (4801, 4811),
    (4813, 4821),
    (5228, 5233),
    (5489, 5489),
    (5524, 5527),
    (6318, 6318),
    (6322, 6322),
    (6325, 6325),
    (6668, 6668),
    (6706, 6706),
    (6783, 6783),
    (7683, 7683),
    (7844, 7844),
    (7881, 7881),
    (8042, 8043),
    (8086, 8086),
    (8232, 8232),
    (8972, 9000),
    (9053, 9069),
    (9380, 9384),
];

/// Returns the kind of the system with a code of EPSG, if a range of codes tells it.
fn kind_of(code: u32) -> CrsKind {
    if is_within(code, &PROJECTED) {
        CrsKind::Projected
    } else if is_within(code, &GEOGRAPHIC) {
        CrsKind::Geographic
    } else {
        CrsKind::Other
    }
}

fn is_within(code: u32, ranges: &[(u32, u32)]) -> bool {
    ranges
        .iter()
        .any(|(first, last)| (*first..=*last).contains(&code))
}

/// Returns the system with a code of an authority, with WKT if that is WGS 84 or UTM on it.
pub fn of_code(authority: &str, code: &str) -> Option<Crs> {
    let authority = identifier(authority, code)?;
    let is_wgs_84 = ["EPSG:4326", "OGC:CRS84"].contains(&authority.as_str());
    let number = authority
        .strip_prefix("EPSG:")
        .and_then(|code| code.parse::<u32>().ok())
        .unwrap_or_default();
    let known = if is_wgs_84 {
        wgs_84()
    } else if let Some(wkt) = projection::utm(number) {
        of_wkt(wkt)
    } else {
        Crs {
            kind: kind_of(number),
            ..Crs::default()
        }
    };
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
    let crs = own
        .or_else(|| projection::wkt(mapping, units))
        .map(of_wkt)?;
    Some(Crs {
        perspective_height: attributes::number(mapping, "perspective_point_height"),
        ..crs
    })
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
pub fn wkt(attributes: &Map<String, Value>, name: &str) -> Option<String> {
    let text = attributes::line(attributes, name)?;
    let (word, _) = text.split_once(['[', '('])?;
    let is_wkt = !word.is_empty()
        && word
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == ' ');
    is_wkt.then_some(text)
}

/// Parses WKT of version 1 or 2.
pub fn of_wkt(wkt: String) -> Crs {
    let root = wkt
        .split(['[', '('])
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_uppercase();
    let kind = match root.as_str() {
        "GEOGCS" | "GEOGCRS" | "GEOGRAPHICCRS" => CrsKind::Geographic,
        // WKT 2 also uses these for geocentric systems, whose axes are Cartesian
        "GEODCRS" | "GEODETICCRS" if wkt.to_ascii_lowercase().contains("cs[ellipsoidal") => {
            CrsKind::Geographic
        }
        "PROJCS" | "PROJCRS" | "PROJECTEDCRS" => CrsKind::Projected,
        _ => CrsKind::Other,
    };
    let authority = object(&wkt, |parents, word| {
        parents.len() == 1 && ["AUTHORITY", "ID"].contains(&word)
    });
    let unit = object(&wkt, |parents, word| {
        ["UNIT", "LENGTHUNIT"].contains(&word)
            && parents.last().is_some_and(|parent| {
                ["PROJCS", "PROJCRS", "PROJECTEDCRS", "AXIS"].contains(parent)
            })
    });
    Crs {
        authority: authority.and_then(|[authority, code]| identifier(authority, code)),
        unit: unit
            .filter(|_| kind == CrsKind::Projected)
            .and_then(|[_, size]| size.trim().parse().ok())
            .filter(|size: &f64| *size > 0.0 && size.is_finite()),
        wkt: Some(wkt),
        projjson: None,
        kind,
        perspective_height: None,
    }
}

/// Returns the first two items of the first object of a WKT that `is_wanted`, which gets the
/// keywords of the objects around it and its own: `AUTHORITY["EPSG","4326"]`.
fn object(wkt: &str, is_wanted: fn(&[&str], &str) -> bool) -> Option<[&str; 2]> {
    let mut parents: Vec<&str> = Vec::new();
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
                if is_wanted(&parents, word) {
                    let mut parts = after.get(1..)?.split([']', ')']).next()?.split(',');
                    return Some([parts.next()?, parts.next()?]);
                }
                // no real text nests as deep
                if parents.len() > MAX_DEPTH {
                    return None;
                }
                parents.push(word);
            }
            ']' | ')' => {
                parents.pop();
            }
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

/// Parses GDAL's attribute `x0 dx rx y0 ry dy`, where x0 and y0 are the corner of the first pixel.
fn geotransform(mapping: &Map<String, Value>) -> Option<[f64; 6]> {
    let text = attributes::line(mapping, "GeoTransform")?;
    let words = text.split([' ', ',']).filter(|word| !word.is_empty());
    let numbers: Vec<f64> = words.map(|word| word.parse().ok()).collect::<Option<_>>()?;
    let numbers: [f64; 6] = numbers.try_into().ok()?;
    is_transform(numbers).then_some(numbers)
}

/// Returns whether a transform in GDAL's order gives each pixel a place of its own.
pub fn is_transform(transform: [f64; 6]) -> bool {
    let [_, dx, rx, _, ry, dy] = transform;
    transform.iter().all(|n| n.is_finite()) && dx * dy != rx * ry
}

fn is_rotated([_, _, rx, _, ry, _]: [f64; 6]) -> bool {
    rx != 0.0 || ry != 0.0
}

/// Sets the coordinates of x and y that are still unknown, and the step of those of one item, in
/// the unit of their axis. A rotated grid has no coordinates.
fn set_coordinates(axes: &mut [DescribedAxis], crs: Option<&Crs>, transform: [f64; 6]) {
    if is_rotated(transform) {
        return;
    }
    let [x0, dx, _, y0, _, dy] = transform;
    for axis in axes {
        let (corner, step) = match axis.role {
            Role::X => (x0, dx),
            Role::Y => (y0, dy),
            _ => continue,
        };
        let factor = units::in_system(crs, axis.units.as_deref());
        let corner = corner / factor;
        let step = step / factor;
        let first = match &axis.coordinates {
            Coordinates::Unknown => corner + step / 2.0,
            Coordinates::Irregular { values } if values.len() == 1 => values[0],
            _ => continue,
        };
        axis.coordinates = Coordinates::Regular { first, step };
    }
}
