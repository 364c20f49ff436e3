//! ENVI's header of a raw file ("ENVI Header Files", NV5), which GDAL and Spectral Python also
//! read. ENVI has no signed bytes.

use super::described::Crs;
use super::raster::{self, Interleave, Raster};
use super::spelling::{self, FieldLines, float, floats};
use super::{Described, FormatSpec, HeaderSyntax};
use zarrfs_format::metadata::ArrayMetadata;

/// The format.
pub(super) const FORMAT: FormatSpec = FormatSpec {
    name: "data.raw.hdr",
    id: "envi",
    readers: Some("ENVI, GDAL, Spectral Python: gdalinfo data.raw"),
    fits,
    syntax: HeaderSyntax::Fields('='),
    header: |array| Ok(text(array).into()),
    ..FormatSpec::DEFAULT
};

/// Maximum deviation of a rotated grid from squares, in pixels.
const SKEW: f64 = 1e-9;

/// Maximum number of bands that the header describes one by one.
const MAX_NAMED_BANDS: u64 = 512;

/// Returns whether the array holds numbers other than signed bytes, and is a raster.
fn fits(metadata: &ArrayMetadata) -> bool {
    data_type(metadata).is_some() && Raster::of(metadata).is_some()
}

/// Writes the header.
fn text(array: &Described) -> String {
    let metadata = &array.metadata;
    let raster = Raster::upright(array, |raster| can_show(raster, metadata));
    let (Some(raster), Some(data_type)) = (raster, data_type(metadata)) else {
        return String::new();
    };
    let text = format!(
        "ENVI
description = {{{}}}
samples = {}
lines = {}
bands = {}
header offset = 0
file type = ENVI Standard
data type = {data_type}
interleave = {}
byte order = {}
",
        plain(&description(array)),
        raster.columns,
        raster.rows,
        raster.bands,
        interleave(&raster).unwrap_or("bsq"),
        u8::from(metadata.dtype.is_big_endian()),
    );
    let mut lines = FieldLines::new(&text, " = ");
    lines.add_known("data ignore value", spelling::nodata(array));
    lines.add_known("map info", map_info(array, &raster));
    if raster.is_map(array) {
        lines.add_known("coordinate system string", coordinate_system(array));
    }
    let is_named = raster.bands <= MAX_NAMED_BANDS;
    for (field, number) in [
        ("data gain values", array.scale),
        ("data offset values", array.offset),
    ] {
        if let Some(x) = number.filter(|x| is_named && x.is_finite()) {
            lines.add(field, braces((0..raster.bands).map(|_| float(x))));
        }
    }
    if let Some((wavelengths, units)) = wavelengths(array, raster) {
        lines.add_known(
            "wavelength units",
            units.map(|units| spelling::line(&plain(units))),
        );
        lines.add("wavelength", wavelengths);
    }
    if is_named {
        let names = (0..raster.bands).map(|band| plain(&raster::band_label(array, &raster, band)));
        lines.add("band names", braces(names));
    }
    lines.into_text()
}

/// Returns ENVI's code of the type.
fn data_type(metadata: &ArrayMetadata) -> Option<u8> {
    spelling::type_name(&metadata.dtype, [0, 1, 2, 12, 3, 13, 14, 15, 4, 5, 6, 9])
}

/// Returns a list between braces.
fn braces(items: impl Iterator<Item = String>) -> String {
    format!("{{{}}}", spelling::list(items, ", "))
}

/// Replaces braces and commas in a text between braces, where braces are not allowed and a comma
/// ends an item.
fn plain(text: &str) -> String {
    spelling::line(text)
        .replace('{', "(")
        .replace('}', ")")
        .replace(',', ";")
}

/// Returns title and units.
fn description(array: &Described) -> String {
    let title = spelling::title(array);
    match array.units.as_deref().filter(|units| !units.is_empty()) {
        Some(units) => format!("{title} ({units})"),
        None => title,
    }
}

/// Returns whether ENVI's header can say how bands, rows and columns are nested, and GDAL counts
/// the bytes of a row.
fn can_show(raster: &Raster, metadata: &ArrayMetadata) -> bool {
    interleave(raster).is_some() && raster.row_bytes(metadata) <= i32::MAX as u64
}

/// Returns ENVI's word for the order of bands, rows and columns.
fn interleave(raster: &Raster) -> Option<&'static str> {
    match raster.interleave {
        Interleave::Band => Some("bsq"),
        Interleave::Line => Some("bil"),
        Interleave::Pixel => Some("bip"),
        Interleave::Mixed => None,
    }
}

/// Returns the outer corner of the first pixel, the pixel sizes and their unit. ENVI assumes that
/// the first row is the northernmost, and turns grids by an angle.
fn map_info(array: &Described, raster: &Raster) -> Option<String> {
    let [x, dx, row_dx, y, column_dy, dy] = raster.geotransform(array)?;
    let width = dx.hypot(column_dy);
    let height = dy.hypot(row_dx);
    let is_rotated = row_dx != 0.0 || column_dy != 0.0;
    let is_upright = dx > 0.0 && dy < 0.0 && !is_rotated;
    // GDAL takes pixels of rotated grids for squares
    let is_turned_square =
        is_rotated && (row_dx - column_dy).abs() <= width * SKEW && (dx + dy).abs() <= width * SKEW;
    if !is_upright && !is_turned_square {
        return None;
    }
    let crs = array.crs.clone().unwrap_or_default();
    let numbers = floats([x, y, width, height], ", ");
    let mut info = if crs.is_geographic() {
        let datum = if is_wgs84(&crs) { ", WGS-84" } else { "" };
        format!("Geographic Lat/Lon, 1, 1, {numbers}{datum}, units=Degrees")
    } else if let Some((zone, half)) = utm_zone(&crs) {
        format!("UTM, 1, 1, {numbers}, {zone}, {half}, WGS-84, units=Meters")
    } else {
        format!("Arbitrary, 1, 1, {numbers}")
    };
    if is_rotated {
        let degrees = spelling::rounded(column_dy.atan2(dx).to_degrees());
        info.push_str(&format!(", rotation={}", float(degrees)));
    }
    Some(format!("{{{info}}}"))
}

fn is_wgs84(crs: &Crs) -> bool {
    match (&crs.authority, &crs.wkt) {
        (Some(authority), _) => authority == "EPSG:4326",
        (None, Some(wkt)) => wkt.contains("\"WGS 84\"") || wkt.contains("WGS_1984"),
        (None, None) => false,
    }
}

/// Returns the zone and the hemisphere of EPSG's codes for UTM on WGS 84.
fn utm_zone(crs: &Crs) -> Option<(u16, &'static str)> {
    let code: u16 = crs
        .authority
        .as_ref()?
        .strip_prefix("EPSG:")?
        .parse()
        .ok()?;
    match code {
        32601..=32660 => Some((code - 32600, "North")),
        32701..=32760 => Some((code - 32700, "South")),
        _ => None,
    }
}

/// Returns the reference system if it is WKT of version 1, the only one that ENVI reads.
fn coordinate_system(array: &Described) -> Option<String> {
    let wkt = array
        .crs
        .as_ref()?
        .wkt
        .as_ref()?
        .replace(char::is_control, " ");
    let is_first_version = wkt.starts_with("GEOGCS[") || wkt.starts_with("PROJCS[");
    (is_first_version && !wkt.contains(['{', '}'])).then(|| format!("{{{wkt}}}"))
}

/// Returns the coordinates of the bands and their units if they are wavelengths.
fn wavelengths(array: &Described, raster: Raster) -> Option<(String, Option<&str>)> {
    let axis = array.axes.get(raster.band_dimension(array)?)?;
    let name = axis.name.as_deref()?.to_ascii_lowercase();
    if raster.bands > spelling::MAX_LISTED || !name.starts_with("wavelength") {
        return None;
    }
    let values = (0..raster.bands).map(|band| spelling::coordinate(axis, band).map(float));
    let values: Vec<String> = values.collect::<Option<_>>()?;
    Some((braces(values.into_iter()), axis.units.as_deref()))
}

#[cfg(test)]
mod tests {
    use super::super::described::{Coordinates, DescribedAxis, MetadataNumber};
    use super::super::testing;
    use super::*;

    #[test]
    fn an_array_without_attributes_has_a_short_header() {
        let expected = "ENVI
description = {data}
samples = 6
lines = 4
bands = 2
header offset = 0
file type = ENVI Standard
data type = 5
interleave = bsq
byte order = 1
band names = {dim0[0], dim0[1]}
";
        assert_eq!(text(&testing::plain(">f8", &[2, 4, 6])), expected);
        let row = text(&testing::plain("<f8", &[7]));
        assert!(row.contains("samples = 7\nlines = 1\nbands = 1\n"), "{row}");
    }

    #[test]
    fn pixels_lie_around_their_coordinates() {
        let expected = "ENVI
description = {Air <2 m> (K)}
samples = 10
lines = 6
bands = 4
header offset = 0
file type = ENVI Standard
data type = 4
interleave = bsq
byte order = 0
data ignore value = -9999
map info = {Geographic Lat/Lon, 1, 1, 9.875, 50.25, 0.25, 0.5, WGS-84, units=Degrees}
band names = {time=2000-01-01T00:00:00, time=2000-01-01T06:00:00, time=2000-01-01T12:00:00, time=2000-01-01T18:00:00}
";
        assert_eq!(text(&testing::geographic()), expected);
    }

    fn field(array: &Described, name: &str) -> Option<String> {
        let start = format!("{name} = ");
        text(array)
            .lines()
            .find_map(|line| line.strip_prefix(&start).map(str::to_string))
    }

    #[test]
    fn reference_systems_become_map_info_or_wkt() {
        let with = |authority: Option<&str>, wkt: Option<&str>| {
            let authority = authority.map(str::to_string);
            let wkt = wkt.map(str::to_string);
            let crs = Some(Crs {
                authority,
                wkt,
                ..Crs::default()
            });
            let array = Described {
                crs,
                ..testing::geographic()
            };
            (
                field(&array, "map info").unwrap(),
                field(&array, "coordinate system string"),
            )
        };
        let corner = "1, 1, 9.875, 50.25, 0.25, 0.5";
        assert_eq!(
            with(Some("EPSG:32733"), None).0,
            format!("{{UTM, {corner}, 33, South, WGS-84, units=Meters}}")
        );
        let wkt = "PROJCS[\"x\", \n UNIT[\"m\",1]]";
        let (map_info, system) = with(None, Some(wkt));
        assert_eq!(map_info, format!("{{Arbitrary, {corner}}}"));
        assert_eq!(system.as_deref(), Some("{PROJCS[\"x\",   UNIT[\"m\",1]]}"));
        assert_eq!(with(None, Some("PROJCRS[\"x\"]")).1, None);
    }

    #[test]
    fn a_raster_from_south_to_north_has_no_map_info() {
        let mut array = testing::geographic();
        array.axes[1].coordinates = Coordinates::Regular {
            first: 47.5,
            step: 0.5,
        };
        assert_eq!(field(&array, "map info"), None);
    }

    #[test]
    fn scales_and_missing_values_have_fields() {
        let gains = format!("{{{}}}", ["0.05"; 12].join(", "));
        assert_eq!(field(&testing::model(), "data gain values"), Some(gains));
        assert_eq!(
            field(&testing::model(), "data ignore value").as_deref(),
            Some("-32768")
        );
        let beyond = Described {
            nodata: Some(MetadataNumber::Int(32768)),
            ..testing::model()
        };
        assert_eq!(field(&beyond, "data ignore value"), None);
    }

    #[test]
    fn bands_may_have_wavelengths() {
        let mut array = testing::geographic();
        array.axes[0].name = Some("wavelength".into());
        array.axes[0].units = Some("nm".into());
        array.axes[0].coordinates = Coordinates::Irregular {
            values: vec![450.0, 550.5, 650.0, 800.0],
        };
        assert_eq!(
            field(&array, "wavelength").as_deref(),
            Some("{450, 550.5, 650, 800}")
        );
        assert_eq!(field(&array, "wavelength units").as_deref(), Some("nm"));
        let many = i32::MAX as u64;
        array.axes[0] = DescribedAxis {
            len: many,
            coordinates: Coordinates::Regular {
                first: 450.0,
                step: 1.0,
            },
            ..array.axes[0].clone()
        };
        array.metadata = testing::metadata("\"<f4\"", &[many, 1, 1]);
        assert_eq!(field(&array, "wavelength"), None);
    }

    #[test]
    fn names_have_no_braces_or_commas() {
        let named = Described {
            long_name: Some("a, {b}\nc".into()),
            units: None,
            ..testing::plain("|u1", &[4])
        };
        assert_eq!(field(&named, "band names").as_deref(), Some("{a; (b) c}"));
        assert_eq!(
            field(&testing::model(), "band names")
                .unwrap()
                .matches(", ")
                .count(),
            11
        );
        assert_eq!(
            field(&testing::plain("|u1", &[513, 1, 1]), "band names"),
            None
        );
    }

    #[test]
    fn unsupported_types_and_shapes_are_refused() {
        for dtype in ["|i1", "<f2", "|S3", "<m8[s]"] {
            assert!(
                !fits(&testing::metadata(&format!("{dtype:?}"), &[4, 6])),
                "{dtype}"
            );
        }
        for shape in [&[] as &[u64], &[4, 0], &[1 << 31], &[65536, 65536, 1, 1]] {
            assert!(!fits(&testing::metadata("\"|u1\"", shape)), "{shape:?}");
        }
    }
}
