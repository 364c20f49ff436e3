//! ImageJ's description of a stack in lines of `name=value`, and the resolution, as ImageJ's
//! `TiffEncoder` writes them. tifffile and Bio-Formats read them too.

use super::super::described::{DescribedAxis, Role};
use super::super::spelling;
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
    let mut text = format!("ImageJ=1.53t\nimages={pages}\n");
    let mut add = |name: &str, value: String| text.push_str(&format!("{name}={value}\n"));
    let stack = stack(array).unwrap_or_default();
    for (dimension, len) in stack.iter().rev() {
        match dimension {
            StackDimension::Channels => add("channels", len.to_string()),
            StackDimension::Slices => add("slices", len.to_string()),
            StackDimension::Frames => add("frames", len.to_string()),
        }
    }
    if stack
        .iter()
        .any(|(dimension, _)| *dimension != StackDimension::Slices)
    {
        add("hyperstack", "true".to_string());
        add("mode", "grayscale".to_string());
    }
    if let Some([y, x]) = pixel(array) {
        let unit = [x.1, y.1].into_iter().flatten().next().map(spelling::line);
        if let Some(unit) = unit.filter(|unit| unit.is_ascii()) {
            add("unit", unit);
        }
        let slices = array.axes.iter().position(|axis| axis.role == Role::Z);
        if let Some((_, step)) = slices.and_then(|axis| spelling::spacing(array, axis)) {
            add("spacing", spelling::float(step.abs()));
        }
    }
    text
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
    let count = array.axes.len();
    let none = array.crs.is_none();
    let step = |axis: usize| {
        let (_, step) = spelling::spacing(array, axis)?;
        Some((step.abs(), array.axes.get(axis)?.units.as_deref()))
    };
    let y = step(count.checked_sub(2).filter(|_| none)?)?;
    let x = step(count - 1)?;
    Some([y, x])
}
