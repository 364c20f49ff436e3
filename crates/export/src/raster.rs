//! An array as image programs see it: columns, rows and bands. Columns run along x and rows along y
//! if the description names both; else they are the last two dimensions. Each index of the others
//! is a band. This module knows no format.

use super::calendar::TimeScale;
use super::described::{Described, DescribedAxis, Role};
use super::spelling;
use super::units;
use zarrfs_format::metadata::ArrayMetadata;

/// An array as a raster; an array of one dimension is one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raster {
    /// Number of items in a row.
    pub columns: u64,
    /// Number of rows in a band.
    pub rows: u64,
    /// Number of bands.
    pub bands: u64,
    /// Number of items from one column to the next.
    pub column_step: u64,
    /// Number of items from one row to the next.
    pub row_step: u64,
    /// How bands, rows and columns are nested.
    pub interleave: Interleave,
    /// The dimension of the columns.
    x: usize,
    /// The dimension of the rows; an array of one dimension has the same as for columns.
    y: usize,
}

/// The order in which bands, rows and columns are nested, in GDAL's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interleave {
    /// Bands follow each other.
    Band,
    /// Each row has a line of every band.
    Line,
    /// Each pixel has an item of every band.
    Pixel,
    /// Rows are not contiguous, or some bands follow each other and others do not.
    Mixed,
}

impl Raster {
    /// Returns the array as it is stored, with rows along the last dimension; `None` without
    /// dimensions or items, or if a C int cannot count one of the sizes.
    pub fn of(metadata: &ArrayMetadata) -> Option<Self> {
        let x = metadata.shape.len().checked_sub(1)?;
        Self::along(metadata, x.saturating_sub(1), x)
    }

    /// Returns the array with rows along y and columns along x if it has both and a format
    /// `can_show` that, else as [`Raster::of`] does.
    pub fn upright(array: &Described, can_show: impl FnOnce(&Self) -> bool) -> Option<Self> {
        let y = dimension(array, Role::Y);
        let x = dimension(array, Role::X);
        y.zip(x)
            .and_then(|(y, x)| Self::along(&array.metadata, y, x))
            .filter(can_show)
            .or_else(|| Self::of(&array.metadata))
    }

    /// Returns the raster of an array with other lengths of the same dimensions.
    pub fn with_lengths(&self, metadata: &ArrayMetadata) -> Option<Self> {
        Self::along(metadata, self.y, self.x)
    }

    fn along(metadata: &ArrayMetadata, y: usize, x: usize) -> Option<Self> {
        if !spelling::is_countable(metadata) {
            return None;
        }
        let shape = &metadata.shape;
        let columns = *shape.get(x)?;
        let rows = if x == y { 1 } else { *shape.get(y)? };
        let bands = band_dimensions(shape.len(), y, x)
            .try_fold(1u64, |bands, dimension| bands.checked_mul(shape[dimension]))
            .filter(|bands| *bands <= i32::MAX as u64)?;
        Some(Raster {
            columns,
            rows,
            bands,
            column_step: step(shape, x)?,
            row_step: if x == y { columns } else { step(shape, y)? },
            interleave: interleave(shape.len(), y, x),
            x,
            y,
        })
    }

    /// Returns the index of a band along each of its dimensions, the slowest first, as pairs of
    /// dimension and index.
    fn indices(&self, shape: &[u64], band: u64) -> Vec<(usize, u64)> {
        let mut rest = band;
        let mut indices: Vec<_> = band_dimensions(shape.len(), self.y, self.x)
            .rev()
            .map(|dimension| {
                let len = shape[dimension].max(1);
                let index = rest % len;
                rest /= len;
                (dimension, index)
            })
            .collect();
        indices.reverse();
        indices
    }

    /// Returns the number of items before the first one of a band of an array of this shape.
    pub fn band_start(&self, shape: &[u64], band: u64) -> u64 {
        let indices = self.indices(shape, band).into_iter();
        indices
            .map(|(dimension, index)| index * step(shape, dimension).unwrap_or(0))
            .sum()
    }

    /// Returns the dimension of the bands if there is only one.
    pub fn band_dimension(&self, array: &Described) -> Option<usize> {
        let mut dimensions = (0..array.axes.len()).filter(|d| self.is_of_bands(*d));
        dimensions.next().filter(|_| dimensions.next().is_none())
    }

    /// Returns the number of bytes from one row to the next, of an array of this metadata.
    pub fn row_bytes(&self, metadata: &ArrayMetadata) -> u64 {
        self.row_step.saturating_mul(metadata.dtype.size() as u64)
    }

    /// Returns whether a dimension counts bands, not rows or columns.
    pub fn is_of_bands(&self, dimension: usize) -> bool {
        dimension != self.x && dimension != self.y
    }

    /// Returns whether columns run along x and rows along y, so that the raster has a place in the
    /// array's reference system.
    pub fn is_map(&self, array: &Described) -> bool {
        let role = |dimension: usize| array.axes.get(dimension).map(|axis| axis.role);
        (role(self.y), role(self.x)) == (Some(Role::Y), Some(Role::X))
    }

    /// Returns GDAL's geotransform of the raster: x and y of the outer corner of its first pixel,
    /// and the steps from one column and row to the next, in units of the reference system. `None`
    /// if the position is not known or the steps are not equal.
    pub fn geotransform(&self, array: &Described) -> Option<[f64; 6]> {
        if !self.is_map(array) {
            return None;
        }
        if array.geotransform.is_some() {
            return array.geotransform;
        }
        let (x, dx) = placed(array, self.x)?;
        let (y, dy) = placed(array, self.y)?;
        Some([x, dx, 0.0, y, 0.0, dy])
    }
}

/// Returns the dimension with a role.
pub fn dimension(array: &Described, role: Role) -> Option<usize> {
    array.axes.iter().position(|axis| axis.role == role)
}

fn band_dimensions(count: usize, y: usize, x: usize) -> impl DoubleEndedIterator<Item = usize> {
    (0..count).filter(move |dimension| *dimension != x && *dimension != y)
}

/// Returns the number of items from one index of a dimension to the next.
fn step(shape: &[u64], dimension: usize) -> Option<u64> {
    let faster = shape.get(dimension + 1..)?.iter();
    faster.copied().try_fold(1u64, u64::checked_mul)
}

fn interleave(count: usize, y: usize, x: usize) -> Interleave {
    let between = x.saturating_sub(y + 1);
    let behind = count.saturating_sub(x + 1);
    match (y, between, behind) {
        _ if y > x => Interleave::Mixed,
        (_, 0, 0) => Interleave::Band,
        (0, _, 0) => Interleave::Line,
        (0, 0, _) => Interleave::Pixel,
        _ => Interleave::Mixed,
    }
}

/// Returns the coordinate of the edge of the first pixel and the step along a dimension. Both are
/// in units of the reference system.
fn placed(array: &Described, dimension: usize) -> Option<(f64, f64)> {
    let axis = &array.axes[dimension];
    let (center, step) = spelling::spacing(axis)?;
    let unit = axis.units.as_deref();
    let factor = units::in_system(array.crs.as_ref(), unit);
    let step = step * factor;
    let edge = center * factor - step / 2.0;
    let is_placed = edge.is_finite() && step.is_finite() && step != 0.0;
    is_placed.then(|| (spelling::rounded(edge), spelling::rounded(step)))
}

/// Returns the date of a coordinate along an axis of times, in ISO 8601.
fn time(axis: &DescribedAxis, x: f64) -> Option<String> {
    let calendar = axis.calendar.as_deref().unwrap_or("standard");
    let moment = TimeScale::parse(axis.units.as_deref()?, calendar)?.of_float(x)?;
    let mut text = String::new();
    moment.write(moment.has_fraction(), &mut text);
    Some(text)
}

/// Returns a name that distinguishes a band from the others, by coordinates where they are known
/// and by indices elsewhere: `time=2000-02-01T00:00:00, band=red, level[2]`. An array of one
/// band without further dimensions is named by its title.
pub fn band_label(array: &Described, raster: &Raster, band: u64) -> String {
    let indices = raster.indices(&array.metadata.shape, band);
    if indices.is_empty() {
        return spelling::title(array);
    }
    let mut parts = Vec::new();
    for (number, index) in indices {
        let axis = &array.axes[number];
        let name = spelling::axis_name(array, number);
        let label = axis.labels.get(index as usize).map(String::as_str);
        parts.push(match spelling::coordinate(axis, index) {
            Some(x) => match time(axis, x) {
                Some(time) => format!("{name}={time}"),
                None => format!("{name}={}", spelling::float(x)),
            },
            None => match label.unwrap_or_default() {
                "" => format!("{name}[{index}]"),
                label => format!("{name}={label}"),
            },
        });
    }
    spelling::line(&parts.join(", "))
}
