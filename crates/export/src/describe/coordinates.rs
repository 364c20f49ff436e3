//! The coordinate array of a dimension: a 1-D array with the dimension's name and length in the
//! same group or the nearest ancestor that has one (CF conventions, 1.3, "coordinate variable", and
//! 2.7.1, "Scope").

use super::super::calendar::numpy_unit;
use super::super::described::Coordinates;
use super::{attributes, nearest_array, numbers, strings};
use crate::reader::{ArrayNode, HierarchyReader};
use std::collections::HashSet;
use std::ops::Range;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::json::{self, Map, Object, Value};
use zarrfs_base::key::Key;
use zarrfs_base::memory::{self, Grant};
use zarrfs_format::dtype::{DType, DTypeKind};
use zarrfs_format::metadata::ArrayMetadata;

/// Maximum number of items of a coordinate array that is read.
const MAX_ITEMS: u64 = 1 << 20;

/// Maximum number of strings of a coordinate array that are read: each may name a band.
const MAX_LABELS: u64 = 1 << 16;

/// Maximum size of a chunk of a coordinate array, in bytes.
const MAX_CHUNK: usize = 64 << 20;

/// Maximum number of chunks of an array whose values are read to describe it, in a local and in a
/// remote store: each takes a stat or a request whenever the array is described.
const MAX_CHUNKS: [u64; 2] = [1 << 14, 1 << 8];

/// Size of the widest number, in bytes.
const WIDEST: usize = 16;

/// Maximum deviation of regular coordinates from equal steps, in steps.
const TOLERANCE: f64 = 1e-6;

/// Maximum deviation, in steps, if rounding in the coordinates' dtype explains it.
const ROUNDED: f64 = 1e-2;

/// A coordinate array and its values.
pub struct Coordinate {
    /// The key of the coordinate array.
    pub key: Key,
    /// The attributes of the coordinate array.
    pub attributes: Object,
    /// The unit of the coordinates.
    pub units: Option<String>,
    /// CF's calendar if they are times.
    pub calendar: Option<String>,
    /// The coordinates; unknown if they cannot be read.
    pub values: Coordinates,
    /// The coordinates that are strings; none if they are numbers or cannot be read.
    pub labels: Vec<String>,
    /// Grant for the memory of the coordinates.
    pub memory: Grant,
}

impl Coordinate {
    /// Finds the coordinates of the dimension `name`, `len` items long, of the array at `key`.
    pub fn find(hierarchy: &dyn HierarchyReader, key: &Key, name: &str, len: u64) -> Option<Self> {
        let array =
            nearest_array(hierarchy, key, name).filter(|array| array.metadata.shape == [len])?;
        let attributes = hierarchy.attributes(&array.key).ok()?;
        let read = if strings::are_strings(&array.metadata) {
            strings::texts(&array, MAX_LABELS)
                .map(|(labels, memory)| (Coordinates::Unknown, labels, memory))
        } else {
            counted_values(&array, &attributes).map(|(values, memory)| (values, Vec::new(), memory))
        };
        let (values, labels, memory) = read.unwrap_or_else(|e| {
            log::debug!("{key}: described without the coordinates of {name:?}: {e}");
            (Coordinates::Unknown, Vec::new(), Grant::default())
        });
        let metadata = &array.metadata;
        let (units, calendar) = match (metadata.dtype.kind(), time_unit(metadata)) {
            (DTypeKind::DateTime, Some((unit, _))) => (
                Some(format!("{unit} since 1970-01-01")),
                Some("proleptic_gregorian".to_string()),
            ),
            (DTypeKind::TimeDelta, Some((unit, _))) => (Some(unit.to_string()), None),
            _ => (
                attributes::line(&attributes, "units"),
                attributes::line(&attributes, "calendar"),
            ),
        };
        Some(Coordinate {
            key: array.key.clone(),
            attributes,
            units,
            calendar,
            values,
            labels,
            memory,
        })
    }
}

/// Reads the coordinates, and returns the grant for their memory. Reading takes their bytes, and a
/// double for each.
fn counted_values(
    array: &ArrayNode,
    attributes: &Map<String, Value>,
) -> Result<(Coordinates, Grant)> {
    let item = array.metadata.dtype.size().min(WIDEST) + size_of::<f64>();
    let mut memory = memory::take(item_count(array) * item)?;
    let values = values(array, attributes)?;
    match &values {
        Coordinates::Irregular { values } => memory.shrink_to(size_of_val(values.as_slice())),
        _ => memory.shrink_to(0),
    }
    Ok((values, memory))
}

/// Returns the number of items of a coordinate array that is read.
fn item_count(array: &ArrayNode) -> usize {
    array.metadata.shape.iter().product::<u64>().min(MAX_ITEMS) as usize
}

fn values(array: &ArrayNode, attributes: &Map<String, Value>) -> Result<Coordinates> {
    let metadata = &*numbers::with_stated_sign(&array.metadata, attributes);
    let dtype = &metadata.dtype;
    let (unit, is_time) = match dtype.kind() {
        DTypeKind::DateTime | DTypeKind::TimeDelta => match time_unit(metadata) {
            Some((_, unit)) => (unit, true),
            None => return Err(Error::unsupported("they count years or months")),
        },
        _ if numbers::is_number(dtype) => (1.0, false),
        _ => return Err(Error::unsupported("they are not numbers")),
    };
    let [scale, offset] = ["scale_factor", "add_offset"]
        .map(|name| attributes::number(attributes, name).filter(|_| !is_time));
    let scale = scale.map_or(unit, |scale| scale * unit);
    let offset = offset.unwrap_or(0.0);
    // the array's fill value is an ordinary coordinate: CF allows no missing coordinates
    let missing = numbers::attribute_nodata(metadata, attributes).map(|number| number.as_f64());
    let mut values = Vec::with_capacity(item_count(array));
    for bytes in flat(array)?.chunks_exact(dtype.size().max(1)) {
        let Some(item) = numbers::item(dtype, bytes).map(|number| number.as_f64()) else {
            break;
        };
        let is_missing = Some(item) == missing || is_time && item == i64::MIN as f64;
        let value = item * scale + offset;
        if is_missing || !value.is_finite() {
            return Err(Error::unsupported("some are missing"));
        }
        values.push(value);
    }
    if values.is_empty() {
        return Ok(Coordinates::Unknown);
    }
    if let Some((first, step)) = regular(&values, precision(dtype)) {
        return Ok(Coordinates::Regular { first, step });
    }
    Ok(Coordinates::Irregular { values })
}

/// Returns the maximum number of chunks that are read to describe an array. Each request for one
/// takes a round trip if `is_remote` is set.
pub fn max_chunks(is_remote: bool) -> u64 {
    MAX_CHUNKS[usize::from(is_remote)]
}

/// Checks that `flat_range` reads so many flat bytes of an array with this metadata. Each request
/// for a chunk takes a round trip if `is_remote` is set.
///
/// # Errors
///
/// The range has too many items or chunks, or too large chunks.
pub fn check_values(metadata: &ArrayMetadata, is_remote: bool, range: Range<u64>) -> Result<()> {
    let grid = metadata.grid(&metadata.shape)?;
    let max_chunks = max_chunks(is_remote);
    let items = range.end.saturating_sub(range.start) / (metadata.dtype.size() as u64).max(1);
    if items > MAX_ITEMS || grid.max_chunk_size() > MAX_CHUNK {
        return Err(Error::unsupported("the array or its chunks are too large"));
    }
    let is_whole = range == (0..grid.size());
    let mut chunks = HashSet::new();
    if grid.chunk_count() > max_chunks
        && (is_whole
            || grid
                .runs(range)
                .any(|run| chunks.insert(run.chunk) && chunks.len() as u64 > max_chunks))
    {
        return Err(Error::unsupported(format!(
            "they lie in more than {max_chunks} chunks"
        )));
    }
    Ok(())
}

/// Returns all flat bytes of an array.
///
/// # Errors
///
/// The array is too large to be read as a whole, or one of its chunks cannot be read.
pub fn flat(array: &ArrayNode) -> Result<Vec<u8>> {
    flat_range(array, 0..array.size())
}

/// Returns the flat bytes of an array in `range`, as [`flat`] returns all of them.
pub fn flat_range(array: &ArrayNode, range: Range<u64>) -> Result<Vec<u8>> {
    check_values(&array.metadata, array.is_remote, range.clone())?;
    let grid = array.grid()?;
    array.chunks.open()?;
    let mut bytes = memory::zeroed(range.end.saturating_sub(range.start) as usize)?;
    let mut rest = bytes.as_mut_slice();
    for run in grid.runs(range) {
        let (to, behind) = rest
            .split_at_mut_checked(run.len)
            .ok_or_else(|| Error::damaged("a run is too long"))?;
        match array.chunks.read(run.chunk)? {
            None => array.metadata.write_fill(to, 0),
            Some(bytes) => {
                let from = bytes.as_ref().as_ref().get(run.offset..);
                let from = from.and_then(|from| from.get(..run.len));
                to.copy_from_slice(from.ok_or_else(|| Error::damaged("a chunk is too short"))?);
            }
        }
        rest = behind;
    }
    Ok(bytes)
}

/// Returns the first coordinate and the step if all steps are equal within [`TOLERANCE`], or within
/// the deviation that `precision`, the relative error of a coordinate, explains.
fn regular(values: &[f64], precision: f64) -> Option<(f64, f64)> {
    let first = *values.first()?;
    let last = *values.last()?;
    let step = (last - first) / (values.len() - 1) as f64;
    if !step.is_finite() || step == 0.0 {
        return None;
    }
    let largest = values
        .iter()
        .fold(0.0, |largest: f64, value| largest.max(value.abs()));
    let tolerance = (precision * largest)
        .min(ROUNDED * step.abs())
        .max(TOLERANCE * step.abs());
    let is_regular = values
        .iter()
        .enumerate()
        .all(|(i, value)| (value - (first + i as f64 * step)).abs() <= tolerance);
    let error = precision * largest / values.len() as f64;
    is_regular.then(|| (first, shorter(step, error)))
}

/// Rounds the step to the fewest digits within `error` of it: 0.1, not 0.0999999999999994.
fn shorter(step: f64, error: f64) -> f64 {
    let mut rounded = (0..12).filter_map(|digits| format!("{step:.digits$e}").parse::<f64>().ok());
    rounded
        .find(|short| (short - step).abs() <= error)
        .unwrap_or(step)
}

/// Returns the relative error of a coordinate of this dtype: the coordinate and the step it was
/// computed from are rounded.
fn precision(dtype: &DType) -> f64 {
    match (dtype.kind(), dtype.size()) {
        (DTypeKind::Float, 2) => 2f64.powi(-10),
        (DTypeKind::Float, 4) => f32::EPSILON.into(),
        _ => f64::EPSILON,
    }
}

/// Returns one unit of a time dtype as a unit of CF and a factor. Years and months, whose lengths
/// differ, have none.
pub fn time_unit(metadata: &ArrayMetadata) -> Option<(&'static str, f64)> {
    let (count, unit) = numpy_unit(json::text(&metadata.dtype_json)?)?;
    let (unit, factor) = match unit {
        "W" => ("days", 7.0),
        "D" => ("days", 1.0),
        "h" => ("hours", 1.0),
        "m" => ("minutes", 1.0),
        "s" => ("seconds", 1.0),
        "ms" => ("milliseconds", 1.0),
        "us" | "μs" => ("microseconds", 1.0),
        "ns" => ("nanoseconds", 1.0),
        _ => return None,
    };
    Some((unit, count as f64 * factor))
}
