//! MetaImage (<https://itk.org/Wiki/MetaIO/Documentation>), which ITK and VTK read. The fastest
//! axis comes first. Spacing is positive; a negative step reverses the axis in the matrix.

use super::spelling::{self, FieldLines, floats};
use super::{Described, FormatSpec, HeaderSyntax};
use zarrfs_format::metadata::ArrayMetadata;

/// The format.
pub(super) const FORMAT: FormatSpec = FormatSpec {
    name: "data.mhd",
    id: "mhd",
    readers: Some("ITK, VTK, ParaView"),
    fits,
    syntax: HeaderSyntax::Fields('='),
    header: |array| Ok(text(array).into()),
    ..FormatSpec::DEFAULT
};

/// Returns whether the array holds integers of 1 to 4 bytes or floats of 4 or 8, in two or three
/// dimensions. VTK's reader corrupts memory on more dimensions and on 64-bit integers.
fn fits(metadata: &ArrayMetadata) -> bool {
    element_type(metadata).is_some()
        && (2..=3).contains(&metadata.shape.len())
        && spelling::is_countable(metadata)
}

/// Writes the header.
fn text(array: &Described) -> String {
    let metadata = &array.metadata;
    let Some(element_type) = element_type(metadata) else {
        return String::new();
    };
    let mut lines = FieldLines::new("ObjectType = Image\n", " = ");
    lines.add("NDims", metadata.shape.len());
    lines.add("BinaryData", "True");
    let is_big_endian = metadata.dtype.is_big_endian();
    lines.add(
        "BinaryDataByteOrderMSB",
        if is_big_endian { "True" } else { "False" },
    );
    lines.add("CompressedData", "False");
    if let Some(mut steps) = spelling::steps(array) {
        steps.reverse();
        lines.add("TransformMatrix", matrix(&steps));
        lines.add("Offset", floats(steps.iter().map(|(first, _)| *first), " "));
        lines.add(
            "ElementSpacing",
            floats(steps.iter().map(|(_, step)| step.abs()), " "),
        );
    }
    lines.add("DimSize", spelling::sizes(metadata, " "));
    lines.add("ElementType", element_type);
    lines.add("ElementDataFile", "data.raw");
    lines.into_text()
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
fn matrix(axes: &[(f64, f64)]) -> String {
    let rows = axes.iter().enumerate().flat_map(|(row, (_, step))| {
        (0..axes.len()).map(move |column| if row == column { step.signum() } else { 0.0 })
    });
    floats(rows, " ")
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
