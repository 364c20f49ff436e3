//! A box of an array: the items between two indices along each dimension, described to other
//! programs as if they were an array. Coordinates are those of the items, so that the origin of the
//! box is where it lies in the array.

use super::describe::describe_values;
use super::{Coordinates, Described, DescribedAxis, ImageInfo, Role};
use crate::reader::{ArrayNode, HierarchyReader};
use std::ops::Range;
use zarrfs_base::error::{Error, Result};
use zarrfs_format::metadata::ArrayMetadata;

/// Deviation of a coordinate, in steps, up to which steps count as equal.
const TOLERANCE: f64 = 1e-6;

/// The indices of a box along one dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
struct BoxRange {
    range: Range<u64>,
    /// Number of items of the dimension.
    len: u64,
    /// Whether the box has the dimension: a single index leaves it out.
    is_kept: bool,
}

impl BoxRange {
    fn count(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// A box of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayBox {
    ranges: Vec<BoxRange>,
}

impl ArrayBox {
    /// Parses a box of an array of the shape `shape` as NumPy spells it: `start:stop`, `:` or one
    /// index for each dimension, separated by commas. Negative indices count from the end, an index
    /// alone leaves the dimension out, and dimensions that are not named are whole. An index
    /// outside of the array, which NumPy clips, is an error, because the result would have another
    /// size than the words say.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`](zarrfs_base::error::Kind::Invalid) with the reason.
    pub fn parse(text: &str, shape: &[u64]) -> Result<Self> {
        let words: Vec<&str> = text
            .split(',')
            .filter(|_| !text.trim().is_empty())
            .collect();
        if words.len() > shape.len() {
            let why = format!("{} ranges, but {} dimensions", words.len(), shape.len());
            return Err(Error::invalid(why));
        }
        let all = words.iter().copied().chain(std::iter::repeat(":"));
        let ranges = all.zip(shape).map(|(word, len)| parse_range(word, *len));
        Ok(ArrayBox {
            ranges: ranges.collect::<Result<_>>()?,
        })
    }

    /// Returns the metadata of the box of an array with this metadata, in one chunk without codecs.
    pub fn metadata(&self, array: &ArrayMetadata) -> ArrayMetadata {
        let shape: Vec<u64> = self.kept().map(BoxRange::count).collect();
        let chunks = shape.iter().map(|len| (*len).max(1)).collect();
        array.without_codecs(shape, chunks)
    }

    /// Returns the dimensions that the box has.
    fn kept(&self) -> impl Iterator<Item = &BoxRange> {
        self.ranges.iter().filter(|range| range.is_kept)
    }

    /// Returns the ranges of the array's flat bytes that the box consists of, in order. `item` is
    /// the size of an item in bytes.
    pub fn runs(&self, item: u64) -> impl Iterator<Item = Range<u64>> {
        let is_empty = self.ranges.iter().any(|range| range.count() == 0);
        // the dimensions behind `split` are whole, so that its indices lie side by side
        let split = self
            .ranges
            .iter()
            .rposition(|range| range.count() < range.len)
            .unwrap_or(0);
        let (outer, inner) = self.ranges.split_at(split.min(self.ranges.len()));
        let row: u64 = inner.iter().skip(1).fold(item, |n, range| n * range.len);
        let (first, last) = inner
            .first()
            .map_or((0, 1), |range| (range.range.start, range.range.end));
        let len = inner.first().map_or(1, |range| range.len);
        let start: Vec<u64> = outer.iter().map(|range| range.range.start).collect();
        let next = move |at: &Vec<u64>| {
            let mut at = at.clone();
            let d = (0..at.len())
                .rev()
                .find(|d| at[*d] + 1 < outer[*d].range.end)?;
            at[d] += 1;
            for later in d + 1..at.len() {
                at[later] = outer[later].range.start;
            }
            Some(at)
        };
        std::iter::successors((!is_empty).then_some(start), next).map(move |at| {
            let indices = at.iter().zip(outer);
            let number = indices.fold(0, |n, (index, range)| n * range.len + index);
            (number * len + first) * row..(number * len + last) * row
        })
    }

    /// Returns the description of the box of `array`.
    pub fn describe(&self, array: &Described) -> Described {
        let pairs = array.axes.iter().zip(&self.ranges);
        let axes = pairs
            .filter(|(_, range)| range.is_kept)
            .map(|(axis, range)| cut_axis(axis, range));
        Described {
            axes: axes.collect(),
            image: array.image.clone().map(|image| self.image(image)),
            metadata: self.metadata(&array.metadata),
            geotransform: array.geotransform.map(|t| self.moved(array, t)),
            ..array.of_view()
        }
    }

    /// Returns GDAL's geotransform of the box of `array`, whose geotransform this is.
    fn moved(&self, array: &Described, transform: [f64; 6]) -> [f64; 6] {
        let [x, dx, row_dx, y, column_dy, dy] = transform;
        let columns = self.start_along(array, Role::X);
        let rows = self.start_along(array, Role::Y);
        [
            x + columns * dx + rows * row_dx,
            dx,
            row_dx,
            y + columns * column_dy + rows * dy,
            column_dy,
            dy,
        ]
    }

    /// Returns the index of the first item along the axis with a role.
    fn start_along(&self, array: &Described, role: Role) -> f64 {
        let mut pairs = array.axes.iter().zip(&self.ranges);
        let found = pairs.find(|(axis, _)| axis.role == role);
        found.map_or(0.0, |(_, range)| range.range.start as f64)
    }

    /// Describes the box of an array by its values, as [`describe_values`] describes an array.
    ///
    /// # Errors
    ///
    /// Those of [`describe_values`].
    pub fn describe_values(
        &self,
        hierarchy: &dyn HierarchyReader,
        array: &ArrayNode,
    ) -> Result<Described> {
        let whole = describe_values(hierarchy, array, 0..0)?;
        let mut values = Vec::new();
        for run in self.runs(array.metadata.dtype.size() as u64) {
            let part = describe_values(hierarchy, array, run)?;
            values.extend_from_slice(part.values.as_deref().unwrap_or_default());
        }
        Ok(Described {
            values: Some(values.into()),
            ..self.describe(&whole)
        })
    }

    /// Returns what is true of the box of an image.
    fn image(&self, image: ImageInfo) -> ImageInfo {
        let ranges = &self.ranges;
        let Some((axis, range)) = image
            .channel_axis
            .and_then(|axis| Some((axis, ranges.get(axis)?)))
        else {
            return image;
        };
        let channels = image.channels.into_iter();
        let shown = channels.skip(range.range.start as usize);
        let before = &ranges[..axis];
        ImageInfo {
            channel_axis: range
                .is_kept
                .then(|| before.iter().filter(|range| range.is_kept).count()),
            channels: if range.is_kept {
                shown.take(range.count() as usize).collect()
            } else {
                Vec::new()
            },
            ..image
        }
    }
}

/// Parses the range along a dimension of `len` items.
fn parse_range(word: &str, len: u64) -> Result<BoxRange> {
    let word = word.trim();
    let mut bounds = word.split(':');
    let start = bounds.next().unwrap_or_default().trim();
    let Some(stop) = bounds.next().map(str::trim) else {
        let index = parse_bound(start, len)?;
        if index == len {
            return Err(outside(start, len));
        }
        return Ok(BoxRange {
            range: index..index + 1,
            len,
            is_kept: false,
        });
    };
    if bounds.next().is_some() {
        let why = format!("{word:?} has a step; a box has all items between start:stop");
        return Err(Error::invalid(why));
    }
    let bound = |text: &str, default| match text {
        "" => Ok(default),
        text => parse_bound(text, len),
    };
    let start = bound(start, 0)?;
    let stop = bound(stop, len)?;
    Ok(BoxRange {
        range: start..stop.max(start),
        len,
        is_kept: true,
    })
}

/// Parses an index from 0 to `len`; negative ones count from the end.
fn parse_bound(text: &str, len: u64) -> Result<u64> {
    let index: i128 = text.parse().map_err(|_| {
        Error::invalid(format!(
            "{text:?} is not an index; give start:stop, : or one index"
        ))
    })?;
    let from_start = if index < 0 {
        index + i128::from(len)
    } else {
        index
    };
    u64::try_from(from_start)
        .ok()
        .filter(|index| *index <= len)
        .ok_or_else(|| outside(text, len))
}

fn outside(index: &str, len: u64) -> Error {
    Error::invalid(format!("{index} is outside of a dimension of {len} items"))
}

/// Returns an axis of the items in a range.
fn cut_axis(axis: &DescribedAxis, cut: &BoxRange) -> DescribedAxis {
    let range = cut.range.start as usize..cut.range.end as usize;
    let labels = axis.labels.get(range.clone()).unwrap_or_default();
    let coordinates = match &axis.coordinates {
        Coordinates::Unknown => Coordinates::Unknown,
        Coordinates::Regular { first, step } => Coordinates::Regular {
            first: first + cut.range.start as f64 * step,
            step: *step,
        },
        Coordinates::Irregular { values } => coordinates_of(values.get(range).unwrap_or_default()),
    };
    DescribedAxis {
        len: cut.count(),
        coordinates,
        labels: labels.into(),
        ..axis.clone()
    }
}

/// Returns the coordinates of a part of an axis whose steps differ, which may be equal there.
fn coordinates_of(values: &[f64]) -> Coordinates {
    if let [first, second, ..] = values {
        let step = second - first;
        let is_regular = values
            .iter()
            .enumerate()
            .all(|(i, value)| (value - (first + i as f64 * step)).abs() <= TOLERANCE * step.abs());
        if is_regular && step != 0.0 && step.is_finite() {
            return Coordinates::Regular {
                first: *first,
                step,
            };
        }
    }
    Coordinates::Irregular {
        values: values.to_vec(),
    }
}

#[cfg(test)]
mod tests;
