//! Converts CF's grid mapping attributes (CF conventions, appendix F, "Grid Mappings") to WKT 1,
//! for the projections that WKT 1 has.

use super::super::units;
use super::attributes;
use zarrfs_base::json::{Map, Value};

/// WKT 1 of EPSG:4326.
pub const WGS_84: &str = r#"GEOGCS["WGS 84",DATUM["WGS_1984",SPHEROID["WGS 84",6378137,298.257223563,AUTHORITY["EPSG","7030"]],AUTHORITY["EPSG","6326"]],PRIMEM["Greenwich",0,AUTHORITY["EPSG","8901"]],UNIT["degree",0.0174532925199433,AUTHORITY["EPSG","9122"]],AUTHORITY["EPSG","4326"]]"#;

/// Returns WKT 1 of EPSG's codes for UTM on WGS 84; `None` for other codes.
pub fn utm(code: u32) -> Option<String> {
    let (zone, half, northing) = match code {
        32601..=32660 => (code - 32600, 'N', 0),
        32701..=32760 => (code - 32700, 'S', 10_000_000),
        _ => return None,
    };
    let meridian = 6 * i64::from(zone) - 183;
    Some(format!(
        r#"PROJCS["WGS 84 / UTM zone {zone}{half}",{WGS_84},PROJECTION["Transverse_Mercator"],PARAMETER["latitude_of_origin",0],PARAMETER["central_meridian",{meridian}],PARAMETER["scale_factor",0.9996],PARAMETER["false_easting",500000],PARAMETER["false_northing",{northing}],UNIT["metre",1,AUTHORITY["EPSG","9001"]],AXIS["Easting",EAST],AXIS["Northing",NORTH],AUTHORITY["EPSG","{code}"]]"#
    ))
}

/// The semi-major axis of WGS 84 in meters, and its inverse flattening.
const WGS_84_ELLIPSOID: (f64, f64) = (6_378_137.0, 298.257_223_563);

/// Returns the reference system of a grid mapping whose x and y have these `units`.
pub fn wkt(mapping: &Map<String, Value>, units: Option<&str>) -> Option<String> {
    let name = attributes::line(mapping, "grid_mapping_name")?;
    if name == "latitude_longitude" {
        return Some(geographic(mapping));
    }
    let unit = match units {
        None | Some("m" | "metre" | "meter" | "metres" | "meters") => r#"UNIT["metre",1]"#,
        Some("km" | "kilometre" | "kilometer" | "kilometres" | "kilometers") => {
            r#"UNIT["kilometre",1000]"#
        }
        // the scanning angles of a satellite are multiplied by its height
        Some(unit) if name == "geostationary" && units::is_radian(unit) => r#"UNIT["metre",1]"#,
        Some(_) => return None,
    };
    let (projection, parameters) = projection(&name, mapping)?;
    let parameters = parameters.into_iter();
    let parameters = parameters.map(|(name, value)| format!(r#"PARAMETER["{name}",{value}],"#));
    let parameters: String = parameters.collect();
    let geographic = geographic(mapping);
    let extension = if name == "geostationary" {
        sweep_about_x(mapping)?
    } else {
        String::new()
    };
    Some(format!(
        r#"PROJCS["unknown",{geographic},PROJECTION["{projection}"],{parameters}{unit}{extension}]"#
    ))
}

/// Returns what WKT 1 of a geostationary system lacks, as GDAL writes it for satellites that sweep
/// about x, such as GOES-R. Others, such as Meteosat, need nothing.
fn sweep_about_x(mapping: &Map<String, Value>) -> Option<String> {
    let sweep = attributes::line(mapping, "sweep_angle_axis");
    let fixed = attributes::line(mapping, "fixed_angle_axis");
    if sweep.as_deref() != Some("x") && fixed.as_deref() != Some("y") {
        return Some(String::new());
    }
    let number = |name: &str| attributes::number(mapping, name);
    let meridian = number("longitude_of_projection_origin")?;
    let height = number("perspective_point_height")?;
    let (axis, flattening) = ellipsoid(mapping).unwrap_or(WGS_84_ELLIPSOID);
    let shape = if flattening == 0.0 {
        format!("+R={axis}")
    } else {
        format!("+a={axis} +rf={flattening}")
    };
    Some(format!(
        r#",EXTENSION["PROJ4","+proj=geos +lon_0={meridian} +h={height} +x_0=0 +y_0=0 {shape} +units=m +no_defs +sweep=x"]"#
    ))
}

/// Returns the geographic system on the mapping's ellipsoid, by default WGS 84.
fn geographic(mapping: &Map<String, Value>) -> String {
    let Some((axis, flattening)) = ellipsoid(mapping) else {
        return WGS_84.to_string();
    };
    if is_wgs_84(axis, flattening) {
        return WGS_84.to_string();
    }
    format!(
        r#"GEOGCS["unknown",DATUM["unknown",SPHEROID["unknown",{axis},{flattening}]],PRIMEM["Greenwich",0],UNIT["degree",0.0174532925199433]]"#
    )
}

/// Returns the semi-major axis of the mapping's ellipsoid in meters and its inverse flattening,
/// which WKT takes for 0 if it is a sphere.
fn ellipsoid(mapping: &Map<String, Value>) -> Option<(f64, f64)> {
    let [axis, minor, flattening, radius] = [
        "semi_major_axis",
        "semi_minor_axis",
        "inverse_flattening",
        "earth_radius",
    ]
    .map(|name| attributes::number(mapping, name));
    let (axis, flattening) = match (axis, radius) {
        (Some(axis), _) => (
            axis,
            flattening.or(minor.map(|minor| axis / (axis - minor))),
        ),
        (None, Some(radius)) => (radius, None),
        (None, None) => return None,
    };
    let flattening = flattening.filter(|x| x.is_finite()).unwrap_or(0.0);
    Some((axis, flattening))
}

fn is_wgs_84(axis: f64, flattening: f64) -> bool {
    (axis - WGS_84_ELLIPSOID.0).abs() < 1e-3 && (flattening - WGS_84_ELLIPSOID.1).abs() < 1e-6
}

/// Returns WKT's name of a projection and its parameters.
fn projection(
    name: &str,
    mapping: &Map<String, Value>,
) -> Option<(&'static str, Vec<(&'static str, f64)>)> {
    let number = |name: &str| attributes::number(mapping, name);
    let parallels = attributes::numbers(mapping.get("standard_parallel"));
    let parallel = match &parallels {
        Some(list) => list.first().copied(),
        None => number("standard_parallel"),
    };
    let second = parallels.and_then(|list| list.get(1).copied()).or(parallel);
    let latitude = number("latitude_of_projection_origin");
    let meridian =
        number("longitude_of_central_meridian").or(number("longitude_of_projection_origin"));
    let scale = number("scale_factor_at_projection_origin");
    let (projection, parameters) = match name {
        "transverse_mercator" => (
            "Transverse_Mercator",
            vec![
                ("latitude_of_origin", latitude),
                ("central_meridian", meridian),
                ("scale_factor", number("scale_factor_at_central_meridian")),
            ],
        ),
        "lambert_conformal_conic" => (
            "Lambert_Conformal_Conic_2SP",
            vec![
                ("standard_parallel_1", parallel),
                ("standard_parallel_2", second),
                ("latitude_of_origin", latitude),
                ("central_meridian", meridian),
            ],
        ),
        "albers_conical_equal_area" => (
            "Albers_Conic_Equal_Area",
            vec![
                ("standard_parallel_1", parallel),
                ("standard_parallel_2", second),
                ("latitude_of_center", latitude),
                ("longitude_of_center", meridian),
            ],
        ),
        "polar_stereographic" => (
            "Polar_Stereographic",
            vec![
                ("latitude_of_origin", parallel.or(latitude)),
                (
                    "central_meridian",
                    number("straight_vertical_longitude_from_pole").or(meridian),
                ),
                ("scale_factor", parallel.map_or(scale, |_| Some(1.0))),
            ],
        ),
        "mercator" if parallel.is_some() => (
            "Mercator_2SP",
            vec![
                ("standard_parallel_1", parallel),
                ("central_meridian", meridian),
            ],
        ),
        "mercator" => (
            "Mercator_1SP",
            vec![("central_meridian", meridian), ("scale_factor", scale)],
        ),
        "lambert_cylindrical_equal_area" => (
            "Cylindrical_Equal_Area",
            vec![
                ("standard_parallel_1", parallel),
                ("central_meridian", meridian),
            ],
        ),
        "lambert_azimuthal_equal_area" => (
            "Lambert_Azimuthal_Equal_Area",
            vec![
                ("latitude_of_center", latitude),
                ("longitude_of_center", meridian),
            ],
        ),
        "azimuthal_equidistant" => (
            "Azimuthal_Equidistant",
            vec![
                ("latitude_of_center", latitude),
                ("longitude_of_center", meridian),
            ],
        ),
        "geostationary" => (
            "Geostationary_Satellite",
            vec![
                ("central_meridian", meridian),
                ("satellite_height", number("perspective_point_height")),
            ],
        ),
        "sinusoidal" => ("Sinusoidal", vec![("longitude_of_center", meridian)]),
        _ => return None,
    };
    let parameters = parameters
        .into_iter()
        .map(|(name, value)| Some((name, value?)));
    let mut parameters: Vec<_> = parameters.collect::<Option<_>>()?;
    parameters.push(("false_easting", number("false_easting").unwrap_or(0.0)));
    parameters.push(("false_northing", number("false_northing").unwrap_or(0.0)));
    Some((projection, parameters))
}
