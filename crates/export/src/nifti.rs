//! NIfTI (<https://nifti.nimh.nih.gov>, `nifti1.h` and `nifti2.h`): a header of fixed fields, then
//! the flat bytes. Both have the same byte order. The fastest dimension comes first.

use super::binary::HeaderFields;
use super::described::{AnatomicalDirection, Described, DescribedAxis, Role};
use super::{FormatContent, FormatSpec, spelling, units};
use zarrfs_format::metadata::ArrayMetadata;

/// The format.
pub(super) const FORMAT: FormatSpec = FormatSpec {
    name: "data.nii",
    id: "nii",
    content: FormatContent::FlatBytes,
    is_container: true,
    fits,
    header: |array| Ok(header(array).into()),
    ..FormatSpec::DEFAULT
};

/// Maximum number of dimensions.
const MAX_DIMENSIONS: usize = 7;

/// Maximum length of a dimension in version 1.
const MAX_LENGTH: u64 = i16::MAX as u64;

/// Offset of the flat bytes in version 1, in bytes.
const FLAT_1: u16 = 352;

/// Offset of the flat bytes in version 2, in bytes.
const FLAT_2: u64 = 544;

/// "Scanner-based anatomical coordinates": the code for a transformation that is not aligned to any
/// brain.
const SCANNER: u8 = 1;

/// The number of dimensions of space, which precede time.
const SPACE: usize = 3;

/// The axes of space in the order of the affine's rows.
const WORLD: [Role; SPACE] = [Role::X, Role::Y, Role::Z];

/// Returns whether the array holds real or complex numbers in one to seven dimensions. Bools are
/// bytes.
fn fits(metadata: &ArrayMetadata) -> bool {
    item_type(metadata).is_some()
        && (1..=MAX_DIMENSIONS).contains(&metadata.shape.len())
        && spelling::is_countable(metadata)
}

/// Writes the header, of version 1 if that can hold the lengths of the dimensions.
fn header(array: &Described) -> Vec<u8> {
    let Some(item_type) = item_type(&array.metadata) else {
        return Vec::new();
    };
    let is_first = array.metadata.shape.iter().all(|len| *len <= MAX_LENGTH);
    if is_first {
        first(array, item_type)
    } else {
        second(array, item_type)
    }
}

/// Returns NIfTI's code of the type.
fn item_type(metadata: &ArrayMetadata) -> Option<u16> {
    spelling::type_name(
        &metadata.dtype,
        [256, 2, 4, 512, 8, 768, 1024, 1280, 16, 64, 32, 1792],
    )
}

fn first(array: &Described, item_type: u16) -> Vec<u8> {
    let place = Placement::of(array);
    let mut fields = HeaderFields::new(array.metadata.dtype.is_big_endian());
    fields.put(348i32.to_le_bytes());
    fields.zeros(34);
    // `regular` of ANALYZE 7.5: all volumes have one size
    fields.bytes(b"r\0");
    for len in place.lengths {
        fields.put((len as i16).to_le_bytes());
    }
    fields.zeros(14);
    fields.put(item_type.to_le_bytes());
    fields.put(bits(&array.metadata).to_le_bytes());
    fields.zeros(2);
    for step in place.steps {
        fields.put((step as f32).to_le_bytes());
    }
    for number in [
        f64::from(FLAT_1),
        array.scale.unwrap_or(1.0),
        array.offset.unwrap_or(0.0),
    ] {
        fields.put((number as f32).to_le_bytes());
    }
    fields.zeros(3);
    fields.bytes(&[place.units]);
    fields.zeros(12);
    fields.put((place.time as f32).to_le_bytes());
    fields.zeros(8);
    fields.text(&spelling::title(array), 80);
    fields.zeros(26);
    fields.put(i16::from(SCANNER).to_le_bytes());
    fields.zeros(24);
    for number in place.rows.as_flattened() {
        fields.put((*number as f32).to_le_bytes());
    }
    fields.zeros(16);
    // the flat bytes are in the same file, and no extension precedes them
    fields.bytes(b"n+1\0\0\0\0\0");
    fields.into_bytes()
}

fn second(array: &Described, item_type: u16) -> Vec<u8> {
    let place = Placement::of(array);
    let mut fields = HeaderFields::new(array.metadata.dtype.is_big_endian());
    fields.put(540i32.to_le_bytes());
    fields.bytes(b"n+2\0\r\n\x1a\n");
    fields.put(item_type.to_le_bytes());
    fields.put(bits(&array.metadata).to_le_bytes());
    for len in place.lengths {
        fields.put(len.to_le_bytes());
    }
    fields.zeros(24);
    for step in place.steps {
        fields.put(step.to_le_bytes());
    }
    fields.put(FLAT_2.to_le_bytes());
    for number in [array.scale.unwrap_or(1.0), array.offset.unwrap_or(0.0)] {
        fields.put(number.to_le_bytes());
    }
    fields.zeros(24);
    fields.put(place.time.to_le_bytes());
    fields.zeros(16);
    fields.text(&spelling::title(array), 80);
    fields.zeros(28);
    fields.put(i32::from(SCANNER).to_le_bytes());
    fields.zeros(48);
    for number in place.rows.as_flattened() {
        fields.put(number.to_le_bytes());
    }
    fields.zeros(4);
    fields.put(i32::from(place.units).to_le_bytes());
    // intent and unused fields up to byte 540, then four bytes that state that there is no
    // extension
    fields.zeros(40);
    fields.into_bytes()
}

fn bits(metadata: &ArrayMetadata) -> u16 {
    8 * metadata.dtype.size() as u16
}

/// The dimensions of the file, and the position of the items: the first three dimensions in space,
/// the fourth in time.
struct Placement {
    /// `dim`: the number of dimensions and their lengths, with 1 for unused ones.
    lengths: [u64; 8],
    /// `pixdim`: the step along each dimension, from the second entry on; 1 if it is unknown.
    steps: [f64; 8],
    /// The affine from indices to space: the step of each dimension in x, y and z, then the
    /// position of the first item.
    rows: [[f64; 4]; SPACE],
    /// The time of the first item.
    time: f64,
    /// `xyzt_units`: a code for space plus one for time; 0 if both are unknown.
    units: u8,
}

impl Placement {
    fn of(array: &Described) -> Self {
        let order = order(&array.axes);
        let mut place = Placement {
            lengths: [1; 8],
            steps: [1.0; 8],
            rows: [[0.0; 4]; SPACE],
            time: 0.0,
            units: 0,
        };
        place.lengths[0] = order.len() as u64;
        for (len, axis) in place.lengths[1..].iter_mut().zip(&order) {
            *len = axis.map_or(1, |axis| axis.len);
        }
        place.set_space(&order);
        place.set_time(&order);
        place
    }

    /// Places the first three dimensions in space. Those without a known role take the remaining
    /// axes in the order x, y, z.
    fn set_space(&mut self, order: &[FileAxis]) {
        let axes = [0, 1, 2].map(|n| order.get(n).copied().flatten());
        let known = axes.map(|axis| {
            let role = axis?.role;
            WORLD.iter().position(|world| *world == role)
        });
        let mut free = (0..SPACE).filter(|row| !known.contains(&Some(*row)));
        let steps = axes.map(|axis| {
            let axis = axis.filter(|axis| axis.role != Role::Time)?;
            let (first, step) = spelling::spacing(axis)?;
            let sign = match axis.direction {
                Some(AnatomicalDirection::AgainstRas) => -1.0,
                _ => 1.0,
            };
            let unit = axis.units.as_deref().and_then(units::length);
            Some((sign * first, sign * step, unit.map(|unit| unit.size)))
        });
        // convert to one unit only if every positioned dimension has a known one
        let sizes: Option<Vec<f64>> = steps.iter().flatten().map(|(_, _, size)| *size).collect();
        let (code, base) = match sizes.as_deref().and_then(<[f64]>::first) {
            None => (0, 1.0),
            Some(1.0..) => (1, 1.0),
            Some(1e-3..1.0) => (2, 1e-3),
            Some(_) => (3, 1e-6),
        };
        self.units += code;
        for (dimension, (steps, row)) in steps.into_iter().zip(known).enumerate() {
            let (first, step) = match steps {
                None => (0.0, 1.0),
                Some((first, step, Some(size))) if code != 0 => {
                    let factor = spelling::rounded(size / base);
                    (first * factor, step * factor)
                }
                Some((first, step, _)) => (first, step),
            };
            let row = row.or_else(|| free.next()).unwrap_or(0);
            self.rows[row][dimension] = step;
            self.rows[row][SPACE] = first;
            self.steps[1 + dimension] = step.abs();
        }
    }

    /// Sets the times of the items if a dimension behind those of space has regular ones.
    fn set_time(&mut self, order: &[FileAxis]) {
        let behind = order.iter().enumerate().skip(SPACE);
        let mut known = behind.filter_map(|(dimension, axis)| Some((dimension, (*axis)?)));
        let Some((dimension, axis)) = known.find(|(_, axis)| axis.role == Role::Time) else {
            return;
        };
        let Some((first, step)) = spelling::spacing(axis) else {
            return;
        };
        let units = axis.units.as_deref().unwrap_or_default();
        let (code, factor) = match units::time(units).map(|unit| unit.size) {
            None => (0, 1.0),
            Some(size @ 1.0..) => (8, size),
            Some(size @ 1e-3..1.0) => (16, spelling::rounded(size / 1e-3)),
            Some(size) => (24, spelling::rounded(size / 1e-6)),
        };
        self.units += code;
        self.steps[1 + dimension] = (step * factor).abs();
        // a coordinate since some epoch is a date, which a float of four bytes cannot hold
        if !units.contains(" since ") {
            self.time = first * factor;
        }
    }
}

/// The array's dimension behind one of the file; `None` for one of length 1 that the array lacks.
type FileAxis<'a> = Option<&'a DescribedAxis>;

/// Returns the dimensions of the file, the fastest first. Programs look for time in the fourth
/// dimension alone. So dimensions are added before time, or those of one item left out, neither of
/// which moves an item.
fn order(axes: &[DescribedAxis]) -> Vec<FileAxis<'_>> {
    let mut order: Vec<_> = axes.iter().rev().map(Some).collect();
    let time = axes
        .iter()
        .rev()
        .position(|axis| axis.role == Role::Time && axis.len > 1);
    let Some(time) = time else {
        return order;
    };
    let missing = SPACE.saturating_sub(time);
    if order.len() + missing <= MAX_DIMENSIONS {
        order.splice(time..time, vec![None; missing]);
    }
    let mut surplus = time.saturating_sub(SPACE);
    for dimension in (0..time).rev() {
        if surplus > 0 && order[dimension].is_none_or(|axis| axis.len == 1) {
            order.remove(dimension);
            surplus -= 1;
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::super::described::{Coordinates, Crs, DescribedAxis};
    use super::super::testing;
    use super::*;

    fn at<const N: usize>(header: &[u8], offset: usize) -> [u8; N] {
        header[offset..offset + N].try_into().unwrap()
    }

    fn f4(header: &[u8], offset: usize, count: usize) -> Vec<f32> {
        (0..count)
            .map(|i| f32::from_le_bytes(at(header, offset + 4 * i)))
            .collect()
    }

    #[test]
    fn an_array_without_attributes_has_default_fields() {
        let header = header(&testing::plain("<u2", &[4, 6]));
        assert_eq!(
            (header.len(), &header[..4], &header[344..]),
            (352, &b"\x5c\x01\0\0"[..], &b"n+1\0\0\0\0\0"[..])
        );
        let dim: Vec<i16> = (0..8)
            .map(|i| i16::from_le_bytes(at(&header, 40 + 2 * i)))
            .collect();
        assert_eq!(dim, [2, 6, 4, 1, 1, 1, 1, 1]);
        assert_eq!(
            [
                u16::from_le_bytes(at(&header, 70)),
                u16::from_le_bytes(at(&header, 72))
            ],
            [512, 16]
        );
        assert_eq!(f4(&header, 76, 8), [1.0; 8]);
        // vox_offset, scl_slope, scl_inter
        assert_eq!(f4(&header, 108, 3), [352.0, 1.0, 0.0]);
        assert_eq!(
            (header[123], &header[148..153], at(&header, 252)),
            (0, &b"data\0"[..], [0, 0, 1, 0])
        );
        let identity = [1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0];
        assert_eq!(f4(&header, 280, 12), identity);
    }

    #[test]
    fn axes_lie_in_space_and_time() {
        let mut array = testing::microscopy();
        array.axes[0] = DescribedAxis {
            role: Role::Time,
            units: Some("milliseconds".into()),
            coordinates: Coordinates::Regular {
                first: 5.0,
                step: 20.0,
            },
            ..array.axes[0].clone()
        };
        array.axes[2].coordinates = Coordinates::Regular {
            first: 7.0,
            step: -0.5,
        };
        array.axes[1].units = Some("nm".into());
        (array.scale, array.offset) = (Some(0.5), Some(-1.0));
        let header = header(&array);
        assert_eq!(f4(&header, 76, 6), [1.0, 0.5, 0.5, 0.002, 20.0, 1.0]);
        assert_eq!(
            (f4(&header, 112, 2), f4(&header, 136, 1), header[123]),
            (vec![0.5, -1.0], vec![5.0], 3 + 16)
        );
        let affine = [
            0.5, 0.0, 0.0, 0.0, 0.0, -0.5, 0.0, 7.0, 0.0, 0.0, 0.002, 0.0,
        ];
        assert_eq!(f4(&header, 280, 12), affine);
    }

    /// NIfTI programs themselves write such arrays by way of NumPy: the first dimension is x.
    #[test]
    fn the_slowest_dimension_may_be_x() {
        let mut array = testing::microscopy();
        array.axes.rotate_left(1);
        array.axes.reverse();
        // c, x, y, z
        let lengths: Vec<u64> = array.axes.iter().map(|axis| axis.len).collect();
        array.metadata = testing::metadata("\"|u1\"", &lengths);
        let affine = [0.0, 0.0, 0.5, 0.0, 0.0, 0.5, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0];
        assert_eq!(f4(&header(&array), 280, 12), affine);
        // coordinates that are no lengths have no unit; time is no dimension of space
        let geographic = header(&testing::geographic());
        let affine = [
            0.25, 0.0, 0.0, 10.0, 0.0, -0.5, 0.0, 50.0, 0.0, 0.0, 1.0, 0.0,
        ];
        assert_eq!(
            (f4(&geographic, 280, 12), geographic[123]),
            (affine.to_vec(), 8)
        );
    }

    #[test]
    fn time_is_the_fourth_dimension() {
        let dim = |header: &[u8]| {
            (0..8)
                .map(|i| i16::from_le_bytes(at(header, 40 + 2 * i)))
                .collect::<Vec<_>>()
        };
        // t, y, x
        let header_of = |array: &Described| header(array);
        let geographic = header_of(&testing::geographic());
        assert_eq!(dim(&geographic), [4, 10, 6, 1, 4, 1, 1, 1]);
        assert_eq!(
            f4(&geographic, 76, 8),
            [1.0, 0.25, 0.5, 1.0, 21_600.0, 1.0, 1.0, 1.0]
        );
        // t, c, z, y, x
        let mut array = testing::microscopy();
        let coordinates = Coordinates::Regular {
            first: 0.0,
            step: 20.0,
        };
        let units = Some("millisecond".to_string());
        let [c, ..] = array.axes.as_slice() else {
            panic!()
        };
        let t = DescribedAxis {
            role: Role::Time,
            units,
            coordinates,
            len: 7,
            ..c.clone()
        };
        array.axes.insert(0, t);
        array.metadata = testing::metadata("\"|u1\"", &[7, 2, 3, 4, 5]);
        let many = header_of(&array);
        assert_eq!(
            (dim(&many), many[123]),
            (vec![5, 5, 4, 3, 2, 7, 1, 1], 3 + 16)
        );
        assert_eq!(f4(&many, 76, 8)[4..], [1.0, 20.0, 1.0, 1.0]);
        array.axes[1].len = 1;
        array.metadata = testing::metadata("\"|u1\"", &[7, 1, 3, 4, 5]);
        let single = header_of(&array);
        assert_eq!(
            (dim(&single), f4(&single, 76, 8)[4]),
            (vec![4, 5, 4, 3, 7, 1, 1, 1], 20.0)
        );
        // one image of a series
        array.axes[0].len = 1;
        array.metadata = testing::metadata("\"|u1\"", &[1, 1, 3, 4, 5]);
        assert_eq!(dim(&header_of(&array)), [5, 5, 4, 3, 1, 1, 1, 1]);
    }

    #[test]
    fn the_second_version_has_longer_dimensions() {
        let mut array = testing::model();
        array.metadata = testing::metadata("\">i2\"", &[3, 4, 5, 32_768]);
        for (axis, len) in array.axes.iter_mut().zip(&array.metadata.shape) {
            axis.len = *len;
        }
        array.crs = Some(Crs::default());
        let header = header(&array);
        assert_eq!(
            (header.len(), &header[..12]),
            (544, &b"\0\0\x02\x1cn+2\0\r\n\x1a\n"[..])
        );
        assert_eq!(
            [
                u16::from_be_bytes(at(&header, 12)),
                u16::from_be_bytes(at(&header, 14))
            ],
            [4, 16]
        );
        let dim: Vec<u64> = (0..8)
            .map(|i| u64::from_be_bytes(at(&header, 16 + 8 * i)))
            .collect();
        assert_eq!(dim, [4, 32_768, 5, 4, 3, 1, 1, 1]);
        assert_eq!(u64::from_be_bytes(at(&header, 168)), 544);
        let f8 = |offset| f64::from_be_bytes(at(&header, offset));
        assert_eq!(
            [f8(112), f8(176), f8(184), f8(400), f8(424)],
            [0.1, 0.05, 260.0, 0.1, 0.1]
        );
        assert_eq!(
            (&header[240..263], at(&header, 348)),
            (&b"sea-surface temperature"[..], [0, 0, 0, 1])
        );
        assert_eq!(super::header(&testing::plain("<u2", &[32_767])).len(), 352);
    }

    #[test]
    fn unsupported_types_and_shapes_are_refused() {
        for dtype in ["<f2", "|S3", "<M8[s]"] {
            assert!(
                !fits(&testing::metadata(&format!("{dtype:?}"), &[4, 6])),
                "{dtype}"
            );
        }
        for shape in [&[] as &[u64], &[4, 0], &[1; 8], &[1 << 31]] {
            assert!(!fits(&testing::metadata("\"|i1\"", shape)), "{shape:?}");
        }
        assert!(fits(&testing::metadata("\"|b1\"", &[1; 7])));
    }
}
