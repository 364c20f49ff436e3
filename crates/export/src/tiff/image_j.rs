//! ImageJ's description of a stack in lines of `name=value`, and the resolution, as ImageJ's
//! `TiffEncoder` writes them. tifffile and Bio-Formats read them too.

use super::super::described::{DescribedAxis, Role};
use super::super::spelling::{self, FieldLines};
use super::{Described, TagValue, Tags, resolution};

/// A dimension of a stack, in ImageJ's order: the last is the fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum StackDimension {
    Frames,
    Slices,
    Channels,
}

/// Returns the description of the first page. It has frames, slices and channels if the dimensions
/// are in ImageJ's order; else all pages are images of one stack.
pub fn description(array: &Described, pages: u64) -> String {
    let mut lines = FieldLines::new(&format!("ImageJ=1.53t\nimages={pages}\n"), "=");
    let stack = stack(array).unwrap_or_default();
    for (dimension, len) in stack.iter().rev() {
        let name = match dimension {
            StackDimension::Channels => "channels",
            StackDimension::Slices => "slices",
            StackDimension::Frames => "frames",
        };
        lines.add(name, len);
    }
    if stack
        .iter()
        .any(|(dimension, _)| *dimension != StackDimension::Slices)
    {
        lines.add("hyperstack", true);
        lines.add("mode", "grayscale");
    }
    if let Some([y, x]) = pixel(array) {
        let unit = x.1.or(y.1).map(spelling::line);
        lines.add_known("unit", unit.filter(|unit| unit.is_ascii()));
        let slices = array.axes.iter().find(|axis| axis.role == Role::Z);
        let steps = slices.and_then(spelling::spacing);
        lines.add_known(
            "spacing",
            steps.map(|(_, step)| spelling::float(step.abs())),
        );
    }
    lines.into_text()
}

/// Adds the number of pixels per unit of length.
pub fn pixels_per_unit(array: &Described, tags: &mut Tags) {
    let Some([y, x]) = pixel(array) else { return };
    if let (Some(x), Some(y)) = (
        resolution::for_each_unit(x.0),
        resolution::for_each_unit(y.0),
    ) {
        // only the description names the unit
        let unit = TagValue::Short(vec![resolution::NO_UNIT]);
        tags.extend([
            (resolution::X, x),
            (resolution::Y, y),
            (resolution::UNIT, unit),
        ]);
    }
}

/// Returns the dimensions before the last two if they are in ImageJ's order; those of one item are
/// left out.
fn stack(array: &Described) -> Option<Vec<(StackDimension, u64)>> {
    let leading = array.axes.len().saturating_sub(2);
    let many = array.axes.iter().take(leading).filter(|axis| axis.len > 1);
    let stack: Vec<_> = many
        .map(|axis| Some((dimension(axis)?, axis.len)))
        .collect::<Option<_>>()?;
    stack.is_sorted_by(|(a, _), (b, _)| a < b).then_some(stack)
}

fn dimension(axis: &DescribedAxis) -> Option<StackDimension> {
    match (axis.role, axis.name.as_deref()) {
        (Role::Time, _) => Some(StackDimension::Frames),
        (Role::Z, _) => Some(StackDimension::Slices),
        (Role::Other, Some("c" | "C" | "channel" | "channels")) => Some(StackDimension::Channels),
        _ => None,
    }
}

/// Returns the steps of the last two dimensions and their units, for images without a reference
/// system.
fn pixel(array: &Described) -> Option<[(f64, Option<&str>); 2]> {
    let [.., y, x] = array.axes.as_slice() else {
        return None;
    };
    if array.crs.is_some() {
        return None;
    }
    Some([pixel_size(y)?, pixel_size(x)?])
}

fn pixel_size(axis: &DescribedAxis) -> Option<(f64, Option<&str>)> {
    let (_, step) = spelling::spacing(axis)?;
    Some((step.abs(), axis.units.as_deref()))
}
