//! MetaImage (<https://itk.org/Wiki/MetaIO/Documentation>), which ITK and VTK read. The fastest
//! axis comes first. Spacing is positive; a negative step reverses the axis in the matrix.

use super::spelling::{self, float};
use super::{Described, FormatSpec};
use crate::zarr::metadata::ArrayMetadata;

/// The format.
pub(super) const FORMAT: FormatSpec = FormatSpec {
    name: "data.mhd",
    id: "mhd",
    readers: Some("ITK, VTK, ParaView"),
    fits,
    header: |array| Ok(text(array).into()),
    ..FormatSpec::DEFAULT
};

/// Returns whether the array holds integers of 1 to 4 bytes or floats of 4 or 8, in two or three
/// dimensions. VTK's reader corrupts memory on more dimensions and on 64-bit integers.
pub fn fits(metadata: &ArrayMetadata) -> bool {
    element_type(metadata).is_some()
        && (2..=3).contains(&metadata.shape.len())
        && spelling::is_countable(metadata)
}

/// Writes the header.
pub fn text(array: &Described) -> String {
    let metadata = &array.metadata;
    let Some(element_type) = element_type(metadata) else {
        return String::new();
    };
    let count = metadata.shape.len();
    let mut text = "ObjectType = Image\n".to_string();
    let mut add = |field: &str, value: String| text.push_str(&format!("{field} = {value}\n"));
    add("NDims", count.to_string());
    add("BinaryData", "True".to_string());
    add(
        "BinaryDataByteOrderMSB",
        if metadata.dtype.is_big_endian() {
            "True"
        } else {
            "False"
        }
        .to_string(),
    );
    add("CompressedData", "False".to_string());
    if let Some(steps) = spelling::steps(array) {
        let axes = || steps.iter().rev().copied();
        add("TransformMatrix", matrix(axes()));
        add(
            "Offset",
            spelling::list(axes().map(|(first, _)| float(first)), " "),
        );
        add(
            "ElementSpacing",
            spelling::list(axes().map(|(_, step)| float(step.abs())), " "),
        );
    }
    add("DimSize", spelling::sizes(metadata, " "));
    add("ElementType", element_type.to_string());
    add("ElementDataFile", "data.raw".to_string());
    text
}

fn element_type(metadata: &ArrayMetadata) -> Option<&'static str> {
    const NAMES: [&str; 12] = [
        "MET_CHAR",
        "MET_UCHAR",
        "MET_SHORT",
        "MET_USHORT",
        "MET_INT",
        "MET_UINT",
        "",
        "",
        "MET_FLOAT",
        "MET_DOUBLE",
        "",
        "",
    ];
    spelling::type_name(&metadata.dtype, NAMES)
}

/// Returns the direction matrix: on the diagonal 1, or -1 if coordinates decrease.
fn matrix(axes: impl Iterator<Item = (f64, f64)> + Clone) -> String {
    let cell =
        |row: usize, column: usize, step: f64| if row == column { step.signum() } else { 0.0 };
    let row = |(i, (_, step))| {
        axes.clone()
            .enumerate()
            .map(move |(column, _)| cell(i, column, step))
    };
    spelling::list(axes.clone().enumerate().flat_map(row), " ")
}

#[cfg(test)]
mod tests {
    use super::super::described::Coordinates;
    use super::super::testing;
    use super::*;

    #[test]
    fn an_array_without_attributes_has_a_short_header() {
        let expected = "ObjectType = Image\nNDims = 2\nBinaryData = True\nBinaryDataByteOrderMSB = True\n\
            CompressedData = False\nDimSize = 6 4\nElementType = MET_DOUBLE\nElementDataFile = data.raw\n";
        assert_eq!(text(&testing::plain(">f8", &[4, 6])), expected);
    }

    #[test]
    fn decreasing_coordinates_reverse_an_axis() {
        let expected = "ObjectType = Image
NDims = 3
BinaryData = True
BinaryDataByteOrderMSB = False
CompressedData = False
TransformMatrix = 1 0 0 0 -1 0 0 0 1
Offset = 10 50 0
ElementSpacing = 0.25 0.5 6
DimSize = 10 6 4
ElementType = MET_FLOAT
ElementDataFile = data.raw
";
        assert_eq!(text(&testing::geographic()), expected);
    }

    #[test]
    fn irregular_axes_count_items() {
        let mut array = testing::geographic();
        array.axes[1].coordinates = Coordinates::Unknown;
        let text = text(&array);
        assert!(
            text.contains("Offset = 10 0 0\nElementSpacing = 0.25 1 6\n"),
            "{text}"
        );
    }

    #[test]
    fn unsupported_types_and_shapes_are_refused() {
        for dtype in ["<i8", "<u8", "<f2", "<c8", "|S3", "<M8[s]"] {
            assert!(
                !fits(&testing::metadata(&format!("{dtype:?}"), &[4, 6])),
                "{dtype}"
            );
        }
        for shape in [&[] as &[u64], &[4], &[4, 0], &[1; 4], &[1, 1 << 31]] {
            assert!(!fits(&testing::metadata("\"|i1\"", shape)), "{shape:?}");
        }
    }
}
