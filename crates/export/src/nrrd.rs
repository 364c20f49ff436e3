//! The detached header of NRRD (<https://teem.sourceforge.net/nrrd/format.html>), which ITK, VTK,
//! Slicer and teem read. The fastest axis comes first.

use super::described::{AnatomicalDirection, Described, Role};
use super::spelling::{self, FieldLines, float, list};
use super::{FormatSpec, HeaderSyntax};
use zarrfs_format::metadata::ArrayMetadata;

/// The format.
pub(super) const FORMAT: FormatSpec = FormatSpec {
    name: "data.nhdr",
    id: "nrrd",
    readers: Some("ITK, VTK, ParaView, 3D Slicer, teem: unu minmax data.nhdr"),
    fits,
    syntax: HeaderSyntax::Fields(':'),
    header: |array| Ok(text(array).into()),
    ..FormatSpec::DEFAULT
};

/// Returns whether the array holds integers, or floats of 4 or 8 bytes, in two to four dimensions.
/// VTK 9.7 crashes on others.
fn fits(metadata: &ArrayMetadata) -> bool {
    item_type(metadata).is_some()
        && (2..=4).contains(&metadata.shape.len())
        && spelling::is_countable(metadata)
}

/// Writes the header.
fn text(array: &Described) -> String {
    let metadata = &array.metadata;
    let Some(item_type) = item_type(metadata) else {
        return String::new();
    };
    let count = metadata.shape.len();
    let steps = spelling::steps(array);
    let mut lines = FieldLines::new("NRRD0005\n", ": ");
    lines.add("content", spelling::title(array));
    lines.add("type", item_type);
    lines.add("dimension", count);
    match anatomical_space(array) {
        Some(space) if steps.is_some() => lines.add("space", space),
        _ if steps.is_some() => lines.add("space dimension", count),
        _ => {}
    }
    lines.add("sizes", spelling::sizes(metadata, " "));
    if metadata.dtype.size() > 1 {
        lines.add("endian", spelling::byte_order(&metadata.dtype));
    }
    lines.add("encoding", "raw");
    if let Some(steps) = &steps {
        let directions = (0..count).rev().map(|axis| direction(steps, axis));
        lines.add("space directions", list(directions, " "));
        let origin = steps.iter().rev().map(|(first, _)| *first);
        lines.add("space origin", vector(origin));
    }
    let axes = || array.axes.iter().rev();
    let kinds = axes().map(|axis| {
        if axis.role == Role::Time {
            "time"
        } else {
            "domain"
        }
    });
    lines.add("kinds", list(kinds, " "));
    if axes().any(|axis| axis.name.is_some()) {
        let names = (0..count)
            .rev()
            .map(|axis| quoted(&spelling::axis_name(array, axis)));
        lines.add("labels", list(names, " "));
    }
    if steps.is_some() {
        // an axis without known steps counts items and has no unit
        let units = axes().map(|axis| spelling::spacing(axis).and(axis.units.as_deref()));
        let units = units.map(|units| quoted(units.unwrap_or_default()));
        lines.add("space units", list(units, " "));
    }
    if let Some(units) = &array.units {
        lines.add("sample units", quoted(units));
    }
    lines.add("data file", "data.raw");
    lines.into_text() + &values(array)
}

fn item_type(metadata: &ArrayMetadata) -> Option<&'static str> {
    const NAMES: [&str; 12] = [
        "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float",
        "double", "", "",
    ];
    spelling::type_name(&metadata.dtype, NAMES)
}

/// Returns the name of the space of an array of three dimensions if they run along x, y and z of a
/// body, the fastest along x.
fn anatomical_space(array: &Described) -> Option<&'static str> {
    let [z, y, x] = array.axes.as_slice() else {
        return None;
    };
    if [z.role, y.role, x.role] != [Role::Z, Role::Y, Role::X] {
        return None;
    }
    match [x, y, z].map(|axis| axis.direction == Some(AnatomicalDirection::AgainstRas)) {
        _ if [x, y, z].iter().any(|axis| axis.direction.is_none()) => None,
        [false, false, false] => Some("right-anterior-superior"),
        [true, false, false] => Some("left-anterior-superior"),
        [true, true, false] => Some("left-posterior-superior"),
        _ => None,
    }
}

/// Returns the step along an axis as a vector in the space of the array's axes.
fn direction(steps: &[(f64, f64)], axis: usize) -> String {
    let along = |(i, (_, step)): (usize, &(f64, f64))| if i == axis { *step } else { 0.0 };
    vector(steps.iter().enumerate().map(along).rev())
}

fn vector(numbers: impl Iterator<Item = f64>) -> String {
    format!("({})", spelling::floats(numbers, ","))
}

/// Writes the missing value and the scaling as key/value pairs, since NRRD has no fields for them.
fn values(array: &Described) -> String {
    let mut pairs = FieldLines::new("", ":=");
    pairs.add_known("_FillValue", spelling::nodata(array));
    pairs.add_known(
        "scale_factor",
        array.scale.filter(|x| x.is_finite()).map(float),
    );
    pairs.add_known(
        "add_offset",
        array.offset.filter(|x| x.is_finite()).map(float),
    );
    pairs.into_text()
}

/// Puts text between double quotes, in one line.
fn quoted(text: &str) -> String {
    format!("\"{}\"", spelling::line(text).replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;

    #[test]
    fn an_array_without_attributes_has_a_short_header() {
        let expected = "NRRD0005\ncontent: data\ntype: double\ndimension: 2\nsizes: 6 4\nendian: big\nencoding: raw\n\
            kinds: domain domain\ndata file: data.raw\n";
        assert_eq!(text(&testing::plain(">f8", &[4, 6])), expected);
        assert!(!text(&testing::plain("|b1", &[4, 6])).contains("endian"));
    }

    #[test]
    fn axes_lie_in_space_with_the_fastest_first() {
        let expected = r#"NRRD0005
content: Air <2 m>
type: float
dimension: 3
space dimension: 3
sizes: 10 6 4
endian: little
encoding: raw
space directions: (0.25,0,0) (0,-0.5,0) (0,0,6)
space origin: (10,50,0)
kinds: domain domain time
labels: "lon" "lat" "time"
space units: "degrees_east" "degrees_north" "hours since 2000-01-01 00:00:00"
sample units: "K"
data file: data.raw
_FillValue:=-9999
"#;
        assert_eq!(text(&testing::geographic()), expected);
    }

    #[test]
    fn irregular_axes_count_items() {
        let text = text(&testing::model());
        for line in [
            "type: int16",
            "kinds: domain domain domain time",
            "endian: big",
            "space directions: (0.1,0,0,0) (0,1,0,0) (0,0,1,0) (0,0,0,1)",
            "space origin: (0.1,0,0,0)",
            r#"space units: "degrees_east" "" "" """#,
            "scale_factor:=0.05",
            "add_offset:=260",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    #[test]
    fn names_are_quoted() {
        let mut array = testing::geographic();
        array.axes[2].name = Some("a \"b\"\nc".into());
        assert!(text(&array).contains(r#"labels: "a \"b\" c" "lat" "time""#));
        let nameless = Described {
            name: "\u{1}".into(),
            long_name: Some(" ".into()),
            ..array
        };
        assert!(text(&nameless).contains("content: data\n"));
    }

    #[test]
    fn unsupported_types_and_shapes_are_refused() {
        for dtype in ["<f2", "<c8", "|S3", "<M8[s]", "[[\"a\", \"<i4\"]]"] {
            let dtype = if dtype.starts_with('[') {
                dtype.to_string()
            } else {
                format!("{dtype:?}")
            };
            assert!(!fits(&testing::metadata(&dtype, &[4, 6])), "{dtype}");
        }
        for shape in [
            &[] as &[u64],
            &[4],
            &[4, 0],
            &[1, 1, 1, 1, 1],
            &[1, 1 << 31],
        ] {
            assert!(!fits(&testing::metadata("\"|i1\"", shape)), "{shape:?}");
        }
        assert!(fits(&testing::metadata("\"|i1\"", &[1, (1 << 31) - 1])));
    }
}
