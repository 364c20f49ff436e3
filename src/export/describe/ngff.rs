//! The axes and channels of an OME-NGFF image, versions 0.1 to 0.5, from the attributes
//! `multiscales` and `omero` of the group that holds its resolutions; version 0.5 has them in the
//! attribute `ome`.

use super::super::described::{ImageChannel, ImageInfo};
use super::{attributes, groups_above};
use crate::array::hierarchy::Hierarchy;
use zarrfs_base::json::{self, Value};
use zarrfs_store::Key;

/// The axes of every image before version 0.3.
const FIRST_AXES: [&str; 5] = ["t", "c", "z", "y", "x"];

/// Maximum number of channels whose description is read, and of characters of a name. Both are far
/// above real ones.
const MAX_CHANNELS: usize = 1024;
const MAX_NAME: usize = 200;

/// An image of which an array is a resolution.
pub struct Image {
    /// The group with the metadata.
    pub group: Key,
    /// The axes, in the array's order.
    pub axes: Vec<ImageAxis>,
    /// The name and the channels.
    pub info: ImageInfo,
}

/// An axis of an image.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ImageAxis {
    /// The name.
    pub name: Option<String>,
    /// The type: `space`, `time`, `channel`, or anything else.
    pub kind: Option<String>,
    /// The unit, such as `micrometer`.
    pub unit: Option<String>,
    /// The center of the first item and the step to the next.
    pub place: Option<(f64, f64)>,
}

/// Returns the image that has the array at `key` as a resolution; `None` if there is no such image.
pub fn image(hierarchy: &Hierarchy, key: &Key, dimensions: usize) -> Option<Image> {
    groups_above(hierarchy, key).find_map(|group| {
        let path = key.relative_to(&group)?;
        let attributes = hierarchy.attributes(&group).ok()?;
        let ome = attributes.get("ome");
        let [multiscales, omero] = ["multiscales", "omero"].map(|name| {
            ome.and_then(|ome| ome.get(name))
                .or_else(|| attributes.get(name))
        });
        let (multiscale, axes) = multiscales?
            .as_array()?
            .iter()
            .find_map(|multiscale| Some((multiscale, axes(multiscale, &path, dimensions)?)))?;
        let info = info(multiscale, omero, &axes);
        Some(Image { group, axes, info })
    })
}

/// Returns the name of an image, and its channels as `omero`, the settings of a viewer, describes
/// them.
fn info(multiscale: &Value, omero: Option<&Value>, axes: &[ImageAxis]) -> ImageInfo {
    let channels = omero.and_then(|omero| omero.get("channels")?.as_array());
    let channels = channels.into_iter().flatten().take(MAX_CHANNELS);
    ImageInfo {
        name: short_line(multiscale, "name"),
        channel_axis: axes.iter().position(|axis| match axis.kind.as_deref() {
            Some(kind) => kind == "channel",
            // before version 0.4 only the name tells
            None => axis.name.as_deref() == Some("c"),
        }),
        channels: channels.map(channel).collect(),
    }
}

fn channel(value: &Value) -> ImageChannel {
    ImageChannel {
        name: short_line(value, "label"),
        color: value.get("color").and_then(json::text).and_then(color),
    }
}

fn color(text: &str) -> Option<u32> {
    let digits = text.trim_start_matches('#');
    let is_color = digits.len() == 6 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    u32::from_str_radix(digits, 16).ok().filter(|_| is_color)
}

/// Returns the size of the channels in memory, in bytes.
pub fn memory_of(info: &ImageInfo) -> usize {
    let names = info.channels.iter().flat_map(|channel| &channel.name);
    size_of_val(info.channels.as_slice()) + names.map(String::len).sum::<usize>()
}

/// Returns a nonempty text of at most [`MAX_NAME`] characters in one line.
fn short_line(value: &Value, name: &str) -> Option<String> {
    attributes::line(value.as_object()?, name).map(|line| line.chars().take(MAX_NAME).collect())
}

/// Returns the axes that a multiscale specifies for the array at `path` in its group.
fn axes(multiscale: &Value, path: &Key, dimensions: usize) -> Option<Vec<ImageAxis>> {
    let dataset = multiscale
        .get("datasets")?
        .as_array()?
        .iter()
        .find(|dataset| {
            let text = dataset.get("path").and_then(json::text);
            text.and_then(|text| Key::normalize(text).ok()).as_ref() == Some(path)
        })?;
    let mut axes = match multiscale.get("axes") {
        Some(list) => list.as_array()?.iter().map(axis).collect(),
        None => FIRST_AXES.map(|name| named(name.to_string())).to_vec(),
    };
    if axes.len() != dimensions {
        return None;
    }
    // NGFF applies the dataset's transformations before those of all resolutions
    let transformations = [dataset, multiscale].map(|of| of.get("coordinateTransformations"));
    for transformation in transformations
        .into_iter()
        .flatten()
        .filter_map(Value::as_array)
        .flatten()
    {
        transform(transformation, &mut axes);
    }
    Some(axes)
}

/// Parses an axis of version 0.4 or later, or of 0.3, which has only names.
fn axis(value: &Value) -> ImageAxis {
    if let Some(name) = json::text(value) {
        return named(name.to_string());
    }
    let [name, kind, unit] =
        ["name", "type", "unit"].map(|name| attributes::line(value.as_object()?, name));
    ImageAxis {
        name,
        kind,
        unit,
        place: None,
    }
}

fn named(name: String) -> ImageAxis {
    ImageAxis {
        name: Some(name),
        ..ImageAxis::default()
    }
}

/// Applies a `scale` or a `translation` ("The pixel center is the origin") to all axes except
/// channels.
fn transform(transformation: &Value, axes: &mut [ImageAxis]) {
    let Some(kind @ ("scale" | "translation")) = transformation.get("type").and_then(json::text)
    else {
        return;
    };
    let vector = attributes::numbers(transformation.get(kind)).unwrap_or_default();
    if vector.len() != axes.len() {
        return;
    }
    for (axis, number) in axes.iter_mut().zip(vector) {
        if axis.kind.as_deref() == Some("channel") {
            continue;
        }
        let (first, step) = axis.place.unwrap_or((0.0, 1.0));
        let (first, step) = match kind {
            "scale" => (first * number, step * number),
            _ => (first + number, step),
        };
        if first.is_finite() && step.is_finite() && step != 0.0 {
            axis.place = Some((first, step));
        }
    }
}
