//! An array as image programs see it: columns, rows and bands. Each index of the dimensions before
//! the last two is a band. This module knows no format.

use super::calendar::TimeScale;
use super::described::{Described, DescribedAxis, Role};
use super::spelling;
use zarrfs_format::metadata::ArrayMetadata;

/// The size of an array as a raster; an array of one dimension is one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raster {
    /// Number of items in a row.
    pub columns: u64,
    /// Number of rows in a band.
    pub rows: u64,
    /// Number of bands, which follow each other.
    pub bands: u64,
}

impl Raster {
    /// Returns the array as a raster; `None` without dimensions or items, or if a C int cannot
    /// count one of the sizes.
    pub fn of(metadata: &ArrayMetadata) -> Option<Self> {
        let mut lengths = metadata.shape.iter().rev().copied();
        let columns = lengths
            .next()
            .filter(|_| spelling::is_countable(metadata))?;
        let rows = lengths.next().unwrap_or(1);
        let bands = lengths.try_fold(1u64, |bands, len| bands.checked_mul(len))?;
        (bands <= i32::MAX as u64).then_some(Raster {
            columns,
            rows,
            bands,
        })
    }
}

/// The position of a raster: the outer corner of its first pixel, and the size of a pixel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Placed {
    /// X coordinate of the corner.
    pub x: f64,
    /// Y coordinate of the corner.
    pub y: f64,
    /// Step from one column to the next.
    pub dx: f64,
    /// Step from one row to the next; negative if the first row is the northernmost.
    pub dy: f64,
}

/// Returns the position of the raster if its rows and columns run along y and x at equal steps.
pub fn placed(array: &Described) -> Option<Placed> {
    let [.., y, x] = array.axes.as_slice() else {
        return None;
    };
    if (y.role, x.role) != (Role::Y, Role::X) {
        return None;
    }
    let (y, dy) = spelling::spacing(y)?;
    let (x, dx) = spelling::spacing(x)?;
    Some(Placed {
        x: spelling::rounded(x - dx / 2.0),
        y: spelling::rounded(y - dy / 2.0),
        dx,
        dy,
    })
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
/// and by indices elsewhere: `time=2000-02-01T00:00:00, height=36.5, level[2]`. An array of one
/// band is named by its title.
pub fn band_label(array: &Described, band: u64) -> String {
    let leading = array.axes.len().saturating_sub(2);
    if leading == 0 {
        return spelling::title(array);
    }
    let mut rest = band;
    let mut parts = Vec::new();
    for (number, axis) in array.axes.iter().enumerate().take(leading).rev() {
        let index = rest % axis.len.max(1);
        rest /= axis.len.max(1);
        let name = spelling::axis_name(array, number);
        parts.push(match spelling::coordinate(axis, index) {
            Some(x) => match time(axis, x) {
                Some(time) => format!("{name}={time}"),
                None => format!("{name}={}", spelling::float(x)),
            },
            None => format!("{name}[{index}]"),
        });
    }
    parts.reverse();
    spelling::line(&parts.join(", "))
}
