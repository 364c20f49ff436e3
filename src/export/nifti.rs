//! NIfTI (<https://nifti.nimh.nih.gov>, `nifti1.h` and `nifti2.h`): a header of fixed fields, then the flat bytes. Both
//! have the same byte order. The fastest dimension comes first.

use super::binary::HeaderFields;
use super::described::{Described, DescribedAxis, Role};
use super::spelling;
use crate::zarr::metadata::ArrayMetadata;

/// Maximum number of dimensions.
const MAX_DIMENSIONS: usize = 7;

/// Maximum length of a dimension in version 1.
const MAX_LENGTH: u64 = i16::MAX as u64;

/// Offset of the flat bytes in bytes, in version 1 and in version 2.
const FLAT: [u16; 2] = [352, 544];

/// "Scanner-based anatomical coordinates": the code for a transformation that is not aligned to any brain.
const SCANNER: u8 = 1;

/// The axes of space in the order of the affine's rows.
const WORLD: [Role; 3] = [Role::X, Role::Y, Role::Z];

/// Returns whether the array holds real or complex numbers in one to seven dimensions. Bools are bytes.
pub fn fits(metadata: &ArrayMetadata) -> bool {
    item_type(metadata).is_some()
        && (1..=MAX_DIMENSIONS).contains(&metadata.shape.len())
        && spelling::is_countable(metadata)
}

/// Writes the header, of version 1 if that can hold the lengths of the dimensions.
pub fn header(array: &Described) -> Vec<u8> {
    let Some(item_type) = item_type(&array.metadata) else { return Vec::new() };
    let is_first = array.metadata.shape.iter().all(|len| *len <= MAX_LENGTH);
    if is_first { first(array, item_type) } else { second(array, item_type) }
}

/// Returns NIfTI's code of the type.
fn item_type(metadata: &ArrayMetadata) -> Option<u16> {
    spelling::type_name(&metadata.dtype, [256, 2, 4, 512, 8, 768, 1024, 1280, 16, 64, 32, 1792])
}

fn first(array: &Described, item_type: u16) -> Vec<u8> {
    let (place, [flat, _]) = (Placement::of(array), FLAT);
    let mut fields = HeaderFields::new(array.metadata.dtype.is_big_endian());
    fields.put(348i32.to_le_bytes());
    fields.zeros(34);
    // `regular` of ANALYZE 7.5: all volumes have one size
    fields.bytes(b"r\0");
    for len in lengths(&array.metadata) {
        fields.put((len as i16).to_le_bytes());
    }
    fields.zeros(14);
    fields.put(item_type.to_le_bytes());
    fields.put(bits(&array.metadata).to_le_bytes());
    fields.zeros(2);
    for step in place.steps {
        fields.put((step as f32).to_le_bytes());
    }
    for number in [f64::from(flat), array.scale.unwrap_or(1.0), array.offset.unwrap_or(0.0)] {
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
    let (place, [_, flat]) = (Placement::of(array), FLAT);
    let mut fields = HeaderFields::new(array.metadata.dtype.is_big_endian());
    fields.put(540i32.to_le_bytes());
    fields.bytes(b"n+2\0\r\n\x1a\n");
    fields.put(item_type.to_le_bytes());
    fields.put(bits(&array.metadata).to_le_bytes());
    for len in lengths(&array.metadata) {
        fields.put(len.to_le_bytes());
    }
    fields.zeros(24);
    for step in place.steps {
        fields.put(step.to_le_bytes());
    }
    fields.put(u64::from(flat).to_le_bytes());
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
    // intent and unused fields up to byte 540, then four bytes that state that there is no extension
    fields.zeros(40);
    fields.into_bytes()
}

/// Returns `dim`: the number of dimensions and their lengths, with 1 for unused ones.
fn lengths(metadata: &ArrayMetadata) -> [u64; 8] {
    let mut lengths = [1; 8];
    let values = std::iter::once(metadata.shape.len() as u64).chain(metadata.shape.iter().rev().copied());
    for (to, value) in lengths.iter_mut().zip(values) {
        *to = value;
    }
    lengths
}

fn bits(metadata: &ArrayMetadata) -> u16 {
    8 * metadata.dtype.size() as u16
}

/// The position of the items: the first three dimensions in space, the fourth in time.
struct Placement {
    /// `pixdim`: the step along each dimension, from the second entry on; 1 if it is unknown.
    steps: [f64; 8],
    /// The affine from indices to space: the step of each dimension in x, y and z, then the position of the first item.
    rows: [[f64; 4]; 3],
    /// The time of the first item.
    time: f64,
    /// `xyzt_units`: a code for space plus one for time; 0 if both are unknown.
    units: u8,
}

impl Placement {
    fn of(array: &Described) -> Self {
        let (unit, space) = space(array);
        let (time_unit, time, time_step) = time(array).unwrap_or((0, 0.0, 1.0));
        let rows = WORLD.map(|role| {
            let mut row = [0.0; 4];
            for (to, (_, _, step)) in row.iter_mut().zip(&space).filter(|(_, (along, ..))| *along == role) {
                *to = *step;
            }
            row[3] = space.iter().find(|(along, ..)| *along == role).map_or(0.0, |(_, first, _)| *first);
            row
        });
        let [x, y, z] = space.map(|(_, _, step)| step.abs());
        Placement { steps: [1.0, x, y, z, time_step.abs(), 1.0, 1.0, 1.0], rows, time, units: unit + time_unit }
    }
}

/// Returns the axis of dimension `n`, the fastest being 0, and its index in the array's order.
fn dimension(array: &Described, n: usize) -> Option<(usize, &DescribedAxis)> {
    let axis = array.axes.len().checked_sub(n + 1)?;
    Some((axis, array.axes.get(axis)?))
}

/// Returns the code of the unit of space, and for each of the first three dimensions its axis of space, the coordinate
/// of its first item, and the step. Dimensions without a known role take the remaining axes in the order x, y, z.
fn space(array: &Described) -> (u8, [(Role, f64, f64); 3]) {
    let axes = [0, 1, 2].map(|n| dimension(array, n));
    let known = axes.map(|axis| axis.map(|(_, axis)| axis.role).filter(|role| WORLD.contains(role)));
    let mut free = WORLD.into_iter().filter(|role| !known.contains(&Some(*role)));
    let roles = known.map(|role| role.or_else(|| free.next()).unwrap_or(Role::X));
    let steps = axes.map(|axis| {
        let (index, axis) = axis.filter(|(_, axis)| axis.role != Role::Time)?;
        let (first, step) = spelling::spacing(array, index)?;
        Some((first, step, axis.units.as_deref().and_then(metres)))
    });
    // convert to one unit only if every positioned dimension has a known one
    let powers: Option<Vec<i32>> = steps.iter().flatten().map(|(_, _, power)| *power).collect();
    let (code, base) = match powers.as_deref().and_then(<[i32]>::first) {
        None => (0, 0),
        Some(0..) => (1, 0),
        Some(-3..0) => (2, -3),
        Some(_) => (3, -6),
    };
    let scaled = |step: Option<(f64, f64, Option<i32>)>| match step {
        None => (0.0, 1.0),
        Some((first, step, Some(power))) if code != 0 => {
            let factor = 10f64.powi(power - base);
            (first * factor, step * factor)
        }
        Some((first, step, _)) => (first, step),
    };
    let [x, y, z] = steps.map(scaled);
    let [along_x, along_y, along_z] = roles;
    (code, [(along_x, x.0, x.1), (along_y, y.0, y.1), (along_z, z.0, z.1)])
}

/// Returns the code of the unit of time, and the first coordinate and the step of the fourth dimension if it is time.
fn time(array: &Described) -> Option<(u8, f64, f64)> {
    let (index, axis) = dimension(array, 3).filter(|(_, axis)| axis.role == Role::Time)?;
    let (first, step) = spelling::spacing(array, index)?;
    let units = axis.units.as_deref().unwrap_or_default();
    let (code, factor) = match units.split(' ').next().unwrap_or_default() {
        "d" | "day" | "days" => (8, 86_400.0),
        "h" | "hr" | "hour" | "hours" => (8, 3600.0),
        "min" | "minute" | "minutes" => (8, 60.0),
        "s" | "sec" | "second" | "seconds" => (8, 1.0),
        "ms" | "msec" | "millisecond" | "milliseconds" => (16, 1.0),
        "us" | "usec" | "microsecond" | "microseconds" => (24, 1.0),
        _ => (0, 1.0),
    };
    // a coordinate since some epoch is a date, which a float of four bytes cannot hold
    let first = if units.contains(" since ") { 0.0 } else { first };
    Some((code, first * factor, step * factor))
}

/// Returns a unit of length as a power of ten of a meter.
fn metres(unit: &str) -> Option<i32> {
    Some(match unit {
        "km" | "kilometer" | "kilometre" | "kilometers" | "kilometres" => 3,
        "m" | "meter" | "metre" | "meters" | "metres" => 0,
        "cm" | "centimeter" | "centimetre" | "centimeters" | "centimetres" => -2,
        "mm" | "millimeter" | "millimetre" | "millimeters" | "millimetres" => -3,
        "um" | "\u{b5}m" | "\u{3bc}m" | "micron" | "microns" => -6,
        "micrometer" | "micrometre" | "micrometers" | "micrometres" => -6,
        "nm" | "nanometer" | "nanometre" | "nanometers" | "nanometres" => -9,
        "angstrom" | "\u{c5}" => -10,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::described::{Coordinates, Crs};
    use super::super::testing;
    use super::*;

    fn at<const N: usize>(header: &[u8], offset: usize) -> [u8; N] {
        header[offset..offset + N].try_into().unwrap()
    }

    fn f4(header: &[u8], offset: usize, count: usize) -> Vec<f32> {
        (0..count).map(|i| f32::from_le_bytes(at(header, offset + 4 * i))).collect()
    }

    #[test]
    fn an_array_without_attributes_has_default_fields() {
        let header = header(&testing::plain("<u2", &[4, 6]));
        assert_eq!((header.len(), &header[..4], &header[344..]), (352, &b"\x5c\x01\0\0"[..], &b"n+1\0\0\0\0\0"[..]));
        let dim: Vec<i16> = (0..8).map(|i| i16::from_le_bytes(at(&header, 40 + 2 * i))).collect();
        assert_eq!(dim, [2, 6, 4, 1, 1, 1, 1, 1]);
        assert_eq!([u16::from_le_bytes(at(&header, 70)), u16::from_le_bytes(at(&header, 72))], [512, 16]);
        assert_eq!(f4(&header, 76, 8), [1.0; 8]);
        // vox_offset, scl_slope, scl_inter
        assert_eq!(f4(&header, 108, 3), [352.0, 1.0, 0.0]);
        assert_eq!((header[123], &header[148..153], at(&header, 252)), (0, &b"data\0"[..], [0, 0, 1, 0]));
        let identity = [1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0];
        assert_eq!(f4(&header, 280, 12), identity);
    }

    #[test]
    fn axes_lie_in_space_and_time() {
        let mut array = testing::microscopy();
        array.axes[0] = DescribedAxis {
            role: Role::Time,
            units: Some("milliseconds".into()),
            coordinates: Coordinates::Regular { first: 5.0, step: 20.0 },
            ..array.axes[0].clone()
        };
        array.axes[2].coordinates = Coordinates::Regular { first: 7.0, step: -0.5 };
        array.axes[1].units = Some("nm".into());
        (array.scale, array.offset) = (Some(0.5), Some(-1.0));
        let header = header(&array);
        assert_eq!(f4(&header, 76, 6), [1.0, 0.5, 0.5, 0.002, 20.0, 1.0]);
        assert_eq!((f4(&header, 112, 2), f4(&header, 136, 1), header[123]), (vec![0.5, -1.0], vec![5.0], 3 + 16));
        let affine = [0.5, 0.0, 0.0, 0.0, 0.0, -0.5, 0.0, 7.0, 0.0, 0.0, 0.002, 0.0];
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
        let affine = [0.25, 0.0, 0.0, 10.0, 0.0, -0.5, 0.0, 50.0, 0.0, 0.0, 1.0, 0.0];
        assert_eq!((f4(&geographic, 280, 12), geographic[123]), (affine.to_vec(), 0));
    }

    #[test]
    fn the_second_version_has_longer_dimensions() {
        let mut array = testing::model();
        array.metadata = testing::metadata("\">i2\"", &[3, 4, 5, 32_768]);
        array.crs = Some(Crs::default());
        let header = header(&array);
        assert_eq!((header.len(), &header[..12]), (544, &b"\0\0\x02\x1cn+2\0\r\n\x1a\n"[..]));
        assert_eq!([u16::from_be_bytes(at(&header, 12)), u16::from_be_bytes(at(&header, 14))], [4, 16]);
        let dim: Vec<u64> = (0..8).map(|i| u64::from_be_bytes(at(&header, 16 + 8 * i))).collect();
        assert_eq!(dim, [4, 32_768, 5, 4, 3, 1, 1, 1]);
        assert_eq!(u64::from_be_bytes(at(&header, 168)), 544);
        let f8 = |offset| f64::from_be_bytes(at(&header, offset));
        assert_eq!([f8(112), f8(176), f8(184), f8(400), f8(424)], [0.1, 0.05, 260.0, 0.1, 0.1]);
        assert_eq!((&header[240..263], at(&header, 348)), (&b"sea-surface temperature"[..], [0, 0, 0, 1]));
        assert_eq!(super::header(&testing::plain("<u2", &[32_767])).len(), 352);
    }

    #[test]
    fn unsupported_types_and_shapes_are_refused() {
        for dtype in ["<f2", "|S3", "<M8[s]"] {
            assert!(!fits(&testing::metadata(&format!("{dtype:?}"), &[4, 6])), "{dtype}");
        }
        for shape in [&[] as &[u64], &[4, 0], &[1; 8], &[1 << 31]] {
            assert!(!fits(&testing::metadata("\"|i1\"", shape)), "{shape:?}");
        }
        assert!(fits(&testing::metadata("\"|b1\"", &[1; 7])));
    }
}
