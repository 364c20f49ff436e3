//! The axes and channels of an OME-NGFF image, versions 0.1 to 0.6, from the attributes
//! `multiscales` and `omero` of the group that holds its resolutions; since version 0.5 they are in
//! the attribute `ome`.

use super::super::described::{AnatomicalDirection, ImageChannel, ImageInfo, Role};
use super::attributes;
use zarrfs_base::json::{self, Map, Object, Value};
use zarrfs_base::key::Key;

/// The axes of every image before version 0.3.
const FIRST_AXES: [&str; 5] = ["t", "c", "z", "y", "x"];

/// Maximum depth of sequences of transformations.
const MAX_DEPTH: usize = 8;

/// Maximum number of resolutions that are looked at.
const MAX_LEVELS: usize = 64;

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
    /// The arrays of the other resolutions.
    pub levels: Vec<Key>,
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
    /// The axis of a body that it is, and its direction.
    pub orientation: Option<(Role, AnatomicalDirection)>,
}

/// Returns the image that has the array at `key` as a resolution; `None` if there is no such image.
///
/// `above` are the groups above the array with their attributes, nearest first.
pub fn image(above: &[(Key, Object)], key: &Key, dimensions: usize) -> Option<Image> {
    above.iter().find_map(|(group, attributes)| {
        let path = key.relative_to(group)?;
        let [multiscales, omero] =
            ["multiscales", "omero"].map(|name| ome_attribute(attributes, name));
        let (multiscale, axes) = multiscales?
            .as_array()?
            .iter()
            .find_map(|multiscale| Some((multiscale, axes(multiscale, &path, dimensions)?)))?;
        let info = info(multiscale, omero, &axes);
        let levels = levels(multiscale, group, &path);
        Some(Image {
            group: group.clone(),
            axes,
            info,
            levels,
        })
    })
}

/// The size of a plate of OME-NGFF ("High-content screening metadata").
pub struct Plate {
    /// The number of rows.
    pub rows: usize,
    /// The number of columns.
    pub columns: usize,
    /// The number of wells that have images.
    pub wells: usize,
}

impl Plate {
    /// Returns the plate that a group with these attributes is.
    pub fn of(attributes: &Map<String, Value>) -> Option<Self> {
        let plate = ome_attribute(attributes, "plate")?.as_object()?;
        let count = |name| {
            plate
                .get(name)
                .and_then(Value::as_array)
                .map_or(0, Vec::len)
        };
        Some(Plate {
            rows: count("rows"),
            columns: count("columns"),
            wells: count("wells"),
        })
    }
}

/// Returns an attribute of OME-NGFF, which since version 0.5 is in the attribute `ome`.
fn ome_attribute<'a>(attributes: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    let of_ome = attributes.get("ome").and_then(|ome| ome.get(name));
    of_ome.or_else(|| attributes.get(name))
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

/// Returns the keys of the other resolutions than the one at `path` in the image's group.
fn levels(multiscale: &Value, group: &Key, path: &Key) -> Vec<Key> {
    let datasets = multiscale.get("datasets").and_then(Value::as_array);
    datasets
        .into_iter()
        .flatten()
        .take(MAX_LEVELS)
        .filter_map(path_of)
        .filter(|other| other != path)
        .map(|other| group.join_key(&other))
        .collect()
}

/// Returns the path of a resolution in the image's group.
fn path_of(dataset: &Value) -> Option<Key> {
    Key::normalize(dataset.get("path").and_then(json::text)?).ok()
}

/// Returns the axes that a multiscale specifies for the array at `path` in its group.
fn axes(multiscale: &Value, path: &Key, dimensions: usize) -> Option<Vec<ImageAxis>> {
    let dataset = multiscale
        .get("datasets")?
        .as_array()?
        .iter()
        .find(|dataset| path_of(dataset).as_ref() == Some(path))?;
    let system = coordinate_system(multiscale, dataset);
    let mut axes = match multiscale.get("axes").or_else(|| system?.get("axes")) {
        Some(list) => list.as_array()?.iter().map(axis).collect(),
        None => FIRST_AXES.map(|name| named(name.to_string())).to_vec(),
    };
    if axes.len() != dimensions {
        return None;
    }
    // before version 0.6 the transformations of all resolutions follow those of the dataset; since
    // then they lead to other coordinate systems
    let of_all = multiscale.get("coordinateTransformations");
    let transformations = [
        dataset.get("coordinateTransformations"),
        of_all.filter(|_| system.is_none()),
    ];
    for transformation in transformations
        .into_iter()
        .flatten()
        .filter_map(Value::as_array)
        .flatten()
    {
        if !transform(transformation, &mut axes, 0) {
            axes.iter_mut().for_each(|axis| axis.place = None);
            break;
        }
    }
    Some(axes)
}

/// Returns the coordinate system of version 0.6 to which the dataset's transformation leads.
fn coordinate_system<'a>(multiscale: &'a Value, dataset: &Value) -> Option<&'a Value> {
    let systems = multiscale.get("coordinateSystems")?.as_array()?;
    let output = dataset.pointer("/coordinateTransformations/0/output");
    // drafts had the name alone
    let name = output.map(|output| output.get("name").unwrap_or(output));
    let is_output = |system: &&Value| system.get("name").is_some() && system.get("name") == name;
    systems.iter().find(is_output).or_else(|| systems.first())
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
        orientation: value.get("orientation").and_then(orientation),
    }
}

/// Parses the orientation of an axis: "anatomical" and one of the directions of RFC 4.
fn orientation(value: &Value) -> Option<(Role, AnatomicalDirection)> {
    if value.get("type").and_then(json::text) != Some("anatomical") {
        return None;
    }
    let (role, direction) = match value.get("value").and_then(json::text)? {
        "left-to-right" => (Role::X, AnatomicalDirection::AlongRas),
        "right-to-left" => (Role::X, AnatomicalDirection::AgainstRas),
        "posterior-to-anterior" | "caudal-to-rostral" => (Role::Y, AnatomicalDirection::AlongRas),
        "anterior-to-posterior" | "rostral-to-caudal" => (Role::Y, AnatomicalDirection::AgainstRas),
        "inferior-to-superior" | "ventral-to-dorsal" => (Role::Z, AnatomicalDirection::AlongRas),
        "superior-to-inferior" | "dorsal-to-ventral" => (Role::Z, AnatomicalDirection::AgainstRas),
        _ => return None,
    };
    Some((role, direction))
}

fn named(name: String) -> ImageAxis {
    ImageAxis {
        name: Some(name),
        ..ImageAxis::default()
    }
}

/// Applies a transformation ("The pixel center is the origin") to all axes except channels. Returns
/// whether each axis still has coordinates of its own: not if the transformation mixes axes or is
/// unknown.
fn transform(transformation: &Value, axes: &mut [ImageAxis], depth: usize) -> bool {
    let Some(kind) = transformation.get("type").and_then(json::text) else {
        return true;
    };
    let list = transformation.get(kind);
    match kind {
        "identity" => true,
        "scale" | "translation" => {
            let vector = attributes::numbers(list).unwrap_or_default();
            for (axis, number) in axes.iter_mut().zip(&vector) {
                if kind == "scale" {
                    axis.place(*number, 0.0);
                } else {
                    axis.place(1.0, *number);
                }
            }
            vector.len() == axes.len()
        }
        "affine" => diagonal(list, axes.len()).is_some_and(|rows| {
            for (axis, (factor, shift)) in axes.iter_mut().zip(rows) {
                axis.place(factor, shift);
            }
            true
        }),
        "sequence" if depth < MAX_DEPTH => transformation
            .get("transformations")
            .and_then(Value::as_array)
            .is_some_and(|list| list.iter().all(|each| transform(each, axes, depth + 1))),
        _ => false,
    }
}

/// Returns factor and shift of each axis if an affine matrix mixes none.
fn diagonal(rows: Option<&Value>, dimensions: usize) -> Option<Vec<(f64, f64)>> {
    let rows = rows?.as_array()?;
    if rows.len() != dimensions {
        return None;
    }
    let mut diagonal = Vec::new();
    for (number, row) in rows.iter().enumerate() {
        let row = attributes::numbers(Some(row))?;
        let (shift, factors) = row.split_last()?;
        let is_own = |(column, factor): (usize, &f64)| column == number || *factor == 0.0;
        if factors.len() != dimensions || !factors.iter().enumerate().all(is_own) {
            return None;
        }
        diagonal.push((factors[number], *shift));
    }
    Some(diagonal)
}

impl ImageAxis {
    /// Multiplies the coordinates by a factor, then shifts them; those of channels stay.
    fn place(&mut self, factor: f64, shift: f64) {
        if self.kind.as_deref() == Some("channel") {
            return;
        }
        let (first, step) = self.place.unwrap_or((0.0, 1.0));
        let first = first * factor + shift;
        let step = step * factor;
        if first.is_finite() && step.is_finite() && step != 0.0 {
            self.place = Some((first, step));
        }
    }
}
