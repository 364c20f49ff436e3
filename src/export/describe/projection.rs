//! Converts CF's grid mapping attributes (CF conventions, appendix F, "Grid Mappings") to WKT 1,
//! for the projections that WKT 1 has.

use super::attributes;
use zarrfs_base::json::{Map, Value};

/// WKT 1 of EPSG:4326.
pub const WGS_84: &str = r#"GEOGCS["WGS 84",DATUM["WGS_1984",SPHEROID["WGS 84",6378137,298.257223563,AUTHORITY["EPSG","7030"]],AUTHORITY["EPSG","6326"]],PRIMEM["Greenwich",0,AUTHORITY["EPSG","8901"]],UNIT["degree",0.0174532925199433,AUTHORITY["EPSG","9122"]],AUTHORITY["EPSG","4326"]]"#;

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
        Some(_) => return None,
    };
    let (projection, parameters) = projection(&name, mapping)?;
    let parameters = parameters.into_iter();
    let parameters = parameters.map(|(name, value)| format!(r#"PARAMETER["{name}",{value}],"#));
    let parameters: String = parameters.collect();
    let geographic = geographic(mapping);
    Some(format!(
        r#"PROJCS["unknown",{geographic},PROJECTION["{projection}"],{parameters}{unit}]"#
    ))
}

/// Returns the geographic system on the mapping's ellipsoid, by default WGS 84.
fn geographic(mapping: &Map<String, Value>) -> String {
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
        (None, None) => return WGS_84.to_string(),
    };
    // WKT's inverse flattening of a sphere is 0
    let flattening = flattening.filter(|x| x.is_finite()).unwrap_or(0.0);
    if is_wgs_84(axis, flattening) {
        return WGS_84.to_string();
    }
    format!(
        r#"GEOGCS["unknown",DATUM["unknown",SPHEROID["unknown",{axis},{flattening}]],PRIMEM["Greenwich",0],UNIT["degree",0.0174532925199433]]"#
    )
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
