//! XDMF, version 2 (<https://www.xdmf.org>), which VTK, ParaView and VisIt read. The last two or
//! three dimensions form a mesh. A time or fourth dimension before them makes a collection of such
//! meshes, one for each step. Axes keep the array's order, the slowest first.

use super::described::{Coordinates, Described, DescribedAxis, Role};
use super::spelling::{self, float, floats, list, xml};
use super::{FormatSpec, HeaderSyntax};
use zarrfs_format::metadata::ArrayMetadata;

/// The format.
pub(super) const FORMAT: FormatSpec = FormatSpec {
    name: "data.xmf",
    id: "xdmf",
    readers: Some("VTK, ParaView, VisIt"),
    fits,
    syntax: HeaderSyntax::Xml,
    header: |array| Ok(text(array).into()),
    ..FormatSpec::DEFAULT
};

/// Maximum number of steps in a collection: each takes half a kilobyte.
const MAX_STEPS: u64 = 10_000;

/// Returns whether the array holds integers or floats of 4 or 8 bytes, in two or three dimensions,
/// or in four with a bounded number of steps. VTK reads only half of each unsigned 64-bit integer.
fn fits(metadata: &ArrayMetadata) -> bool {
    let is_mesh = match metadata.shape.as_slice() {
        [_, _] | [_, _, _] => true,
        [steps, _, _, _] => *steps <= MAX_STEPS,
        _ => false,
    };
    is_mesh && number_type(metadata).is_some() && spelling::is_countable(metadata)
}

/// Writes the file.
fn text(array: &Described) -> String {
    let metadata = &array.metadata;
    let grids = match array.axes.split_first() {
        Some((steps, mesh)) if mesh.len() == 3 || mesh.len() == 2 && is_time(steps) => {
            collection(array, steps, mesh)
        }
        _ => grid(
            "data",
            &mesh(&array.axes),
            &values(array, &metadata.shape, 0),
        ),
    };
    format!(
        r#"<?xml version="1.0" ?>
<!DOCTYPE Xdmf SYSTEM "Xdmf.dtd" []>
<Xdmf Version="2.0">
<Domain>
{grids}</Domain>
</Xdmf>
"#
    )
}

fn is_time(axis: &DescribedAxis) -> bool {
    axis.role == Role::Time && axis.len <= MAX_STEPS
}

/// Returns XDMF's name of the type and its size in bytes.
fn number_type(metadata: &ArrayMetadata) -> Option<(&'static str, usize)> {
    const NAMES: [&str; 12] = [
        "Char", "UChar", "Short", "UShort", "Int", "UInt", "Int", "", "Float", "Float", "", "",
    ];
    Some((
        spelling::type_name(&metadata.dtype, NAMES)?,
        metadata.dtype.size(),
    ))
}

/// Writes one grid for each item of the first dimension; all of them share the mesh.
fn collection(array: &Described, steps: &DescribedAxis, axes: &[DescribedAxis]) -> String {
    let shape = array.metadata.shape.get(1..).unwrap_or_default();
    let stride = shape.iter().product::<u64>() * array.metadata.dtype.size() as u64;
    let shared = "<Topology Reference=\"/Xdmf/Domain/Topology[1]\"/>\n<Geometry Reference=\"/Xdmf/Domain/Geometry[1]\"/>\n";
    let grids = (0..).zip(times(steps)).map(|(i, time)| {
        let before = format!("<Time Value=\"{}\"/>\n{shared}", float(time));
        grid(
            &format!("step {i}"),
            &before,
            &values(array, shape, i * stride),
        )
    });
    let grids: String = grids.collect();
    format!(
        "{}<Grid Name=\"data\" GridType=\"Collection\" CollectionType=\"Temporal\">\n{grids}</Grid>\n",
        mesh(axes)
    )
}

/// Returns the coordinates of the first dimension, or its indices if the coordinates do not
/// increase.
fn times(steps: &DescribedAxis) -> Vec<f64> {
    let times: Option<Vec<f64>> = (0..steps.len)
        .map(|i| spelling::coordinate(steps, i))
        .collect();
    times
        .filter(|times| times.is_sorted_by(|a, b| a < b))
        .unwrap_or_else(|| (0..steps.len).map(|i| i as f64).collect())
}

fn grid(name: &str, mesh: &str, values: &str) -> String {
    format!("<Grid Name=\"{name}\" GridType=\"Uniform\">\n{mesh}{values}</Grid>\n")
}

/// Writes the positions of the items: equal steps if all dimensions have them, else lists of
/// coordinates.
fn mesh(axes: &[DescribedAxis]) -> String {
    // VTK places a mesh of two dimensions across y and z
    let is_flat = axes.len() == 2;
    let may_list = axes.iter().all(|axis| axis.len <= spelling::MAX_LISTED);
    let steps: Option<Vec<(f64, f64)>> = axes.iter().map(|axis| steps(axis, may_list)).collect();
    let (mesh, geometry, items) = match steps {
        Some(steps) => {
            let (first, step) = is_flat
                .then_some((0.0, 1.0))
                .into_iter()
                .chain(steps)
                .unzip();
            ("CoRectMesh", "ORIGIN_DXDYDZ", item(first) + &item(step))
        }
        None => {
            let listed = axes
                .iter()
                .rev()
                .map(listed)
                .chain(is_flat.then(|| vec![0.0]));
            ("RectMesh", "VXVYVZ", listed.map(item).collect())
        }
    };
    let lengths = is_flat
        .then_some(1)
        .into_iter()
        .chain(axes.iter().map(|axis| axis.len));
    format!(
        "<Topology TopologyType=\"3D{mesh}\" Dimensions=\"{}\"/>\n\
         <Geometry GeometryType=\"{geometry}\">\n{items}</Geometry>\n",
        list(lengths, " ")
    )
}

/// Returns the first coordinate and the step, with unit steps if nothing usable is known; `None` if
/// coordinates are irregular and may be listed.
fn steps(axis: &DescribedAxis, may_list: bool) -> Option<(f64, f64)> {
    match &axis.coordinates {
        Coordinates::Regular { first, step } if first.is_finite() && step.is_finite() => {
            Some((*first, *step))
        }
        Coordinates::Irregular { values } if may_list && is_mesh_line(axis, values) => None,
        _ => Some((0.0, 1.0)),
    }
}

/// Writes coordinates, or one number for each dimension.
fn item(numbers: Vec<f64>) -> String {
    let count = numbers.len();
    let numbers = floats(numbers, " ");
    format!(
        "<DataItem Dimensions=\"{count}\" NumberType=\"Float\" Precision=\"8\" Format=\"XML\">{numbers}</DataItem>\n"
    )
}

fn is_mesh_line(axis: &DescribedAxis, values: &[f64]) -> bool {
    values.len() as u64 == axis.len && values.iter().all(|x| x.is_finite())
}

/// Returns all coordinates of a dimension. The header holds them itself because the array that has
/// them may be packed.
fn listed(axis: &DescribedAxis) -> Vec<f64> {
    match (&axis.coordinates, steps(axis, true)) {
        (_, Some((first, step))) => (0..axis.len)
            .map(|i| spelling::at(first, step, i))
            .collect(),
        (Coordinates::Irregular { values }, None) => values.clone(),
        (_, None) => Vec::new(),
    }
}

/// Writes the values of one mesh, which begin at byte `seek` of the flat array.
fn values(array: &Described, shape: &[u64], seek: u64) -> String {
    let Some((number_type, precision)) = number_type(&array.metadata) else {
        return String::new();
    };
    let is_flat = shape.len() == 2;
    let endian = if array.metadata.dtype.is_big_endian() {
        "Big"
    } else {
        "Little"
    };
    format!(
        "<Attribute Name=\"{}\" AttributeType=\"Scalar\" Center=\"Node\">\n<DataItem Dimensions=\"{}\" \
         NumberType=\"{number_type}\" Precision=\"{precision}\" Format=\"Binary\" Endian=\"{endian}\" \
         Seek=\"{seek}\">data.raw</DataItem>\n</Attribute>\n",
        xml(&spelling::name(array)),
        list(is_flat.then_some(&1).into_iter().chain(shape), " ")
    )
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;

    #[test]
    fn an_array_without_attributes_has_a_short_file() {
        let expected = r#"<?xml version="1.0" ?>
<!DOCTYPE Xdmf SYSTEM "Xdmf.dtd" []>
<Xdmf Version="2.0">
<Domain>
<Grid Name="data" GridType="Uniform">
<Topology TopologyType="3DCoRectMesh" Dimensions="1 4 6"/>
<Geometry GeometryType="ORIGIN_DXDYDZ">
<DataItem Dimensions="3" NumberType="Float" Precision="8" Format="XML">0 0 0</DataItem>
<DataItem Dimensions="3" NumberType="Float" Precision="8" Format="XML">1 1 1</DataItem>
</Geometry>
<Attribute Name="data" AttributeType="Scalar" Center="Node">
<DataItem Dimensions="1 4 6" NumberType="Float" Precision="8" Format="Binary" Endian="Big" Seek="0">data.raw</DataItem>
</Attribute>
</Grid>
</Domain>
</Xdmf>
"#;
        assert_eq!(text(&testing::plain(">f8", &[4, 6])), expected);
    }

    #[test]
    fn steps_of_time_share_a_mesh() {
        let text = text(&testing::geographic());
        let mesh = r#"<Domain>
<Topology TopologyType="3DCoRectMesh" Dimensions="1 6 10"/>
<Geometry GeometryType="ORIGIN_DXDYDZ">
<DataItem Dimensions="3" NumberType="Float" Precision="8" Format="XML">0 50 10</DataItem>
<DataItem Dimensions="3" NumberType="Float" Precision="8" Format="XML">1 -0.5 0.25</DataItem>
</Geometry>
<Grid Name="data" GridType="Collection" CollectionType="Temporal">
<Grid Name="step 0" GridType="Uniform">
<Time Value="0"/>
<Topology Reference="/Xdmf/Domain/Topology[1]"/>
<Geometry Reference="/Xdmf/Domain/Geometry[1]"/>
"#;
        assert!(text.contains(mesh), "{text}");
        for (time, seek) in [(0, 0), (6, 240), (12, 480), (18, 720)] {
            assert!(
                text.contains(&format!("<Time Value=\"{time}\"/>")),
                "{text}"
            );
            assert!(
                text.contains(&format!("Seek=\"{seek}\">data.raw")),
                "{text}"
            );
        }
    }

    #[test]
    fn a_dimension_of_space_or_of_too_many_steps_is_one_of_the_mesh() {
        let mut array = testing::geographic();
        array.axes[0].role = Role::Z;
        assert!(text(&array).contains("Dimensions=\"4 6 10\""));
        let mut long = Described {
            axes: array.axes,
            ..testing::plain("|u1", &[10_001, 6, 10])
        };
        (long.axes[0].role, long.axes[0].len) = (Role::Time, 10_001);
        assert!(text(&long).contains("Dimensions=\"10001 6 10\""));
    }

    #[test]
    fn irregular_coordinates_are_listed_with_the_fastest_first() {
        let text = text(&testing::model());
        let lines: Vec<&str> = text
            .lines()
            .filter(|line| line.contains("Format=\"XML\""))
            .collect();
        let numbers = |line: &str| line.split(['>', '<']).nth(2).unwrap().to_string();
        let listed: Vec<String> = lines.into_iter().map(numbers).collect();
        assert_eq!(
            listed,
            [
                "0.1 0.2 0.3 0.4 0.5 0.6",
                "-60.5 -10 0 10 60.5",
                "1000 850 500 200"
            ]
        );
        assert!(
            text.contains("TopologyType=\"3DRectMesh\" Dimensions=\"4 5 6\""),
            "{text}"
        );
        assert!(text.contains("<Time Value=\"59\"/>"), "{text}");
    }

    #[test]
    fn steps_without_increasing_coordinates_are_counted() {
        let mut array = testing::model();
        array.axes[0].coordinates = Coordinates::Irregular {
            values: vec![3.0, f64::NAN, 4.0],
        };
        array.axes[1].coordinates = Coordinates::Irregular {
            values: vec![1.0, f64::NAN, 4.0, 5.0],
        };
        let text = text(&array);
        assert!(text.contains("<Time Value=\"2\"/>"), "{text}");
        assert!(text.contains(">0 1 2 3</DataItem>"), "{text}");
    }

    #[test]
    fn unsupported_types_and_shapes_are_refused() {
        for dtype in ["<u8", "<f2", "<c8", "|S3", "<M8[s]"] {
            assert!(
                !fits(&testing::metadata(&format!("{dtype:?}"), &[4, 6])),
                "{dtype}"
            );
        }
        for shape in [&[] as &[u64], &[4], &[4, 0], &[1; 5], &[10_001, 1, 1, 1]] {
            assert!(!fits(&testing::metadata("\"|i1\"", shape)), "{shape:?}");
        }
        assert!(fits(&testing::metadata("\"<i8\"", &[10_000, 1, 1, 1])));
    }
}
