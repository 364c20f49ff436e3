//! A small image of an array, for file managers and people: PNG
//! (<https://www.w3.org/TR/png-3/>) of at most 512 pixels a side. Rows and columns run along the
//! dimensions that `data.vrt` chooses, at the first index of the others. The pixels are not
//! compressed, so that the size of the file follows from metadata. `sampling` reads the values and
//! `colors` paints them; this module knows neither caches nor files.

mod colors;
mod sampling;

use super::described::{Coordinates, Described, ImageInfo, Role};
use super::raster;
use super::reader::{ArrayNode, HierarchyReader};
use super::spelling;
use super::{Composite, FormatContent, FormatSpec, PartContent};
use colors::ColorRule;
use sampling::{SampleType, SampledPlane};
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory;
use zarrfs_format::metadata::ArrayMetadata;

/// The format.
pub(super) const FORMAT: FormatSpec = FormatSpec {
    name: "preview.png",
    id: "png",
    content: FormatContent::Image,
    is_container: true,
    fits,
    header: |array| Ok(without_pixels(array)),
    ..FormatSpec::DEFAULT
};

/// Maximum number of pixels of a side.
const MAX_SIDE: u64 = 512;

/// Number of pixels that the shorter side of an oblong array keeps, if it has as many items: at the
/// scale of the longer side, a series of a million items at twenty stations has no rows to see.
const MIN_SIDE: u64 = 64;

/// Maximum number of channels that are shown together: the first ones whose colors differ.
const MAX_CHANNELS: usize = 4;

/// The color of a channel for which metadata has none.
const WHITE: u32 = 0xff_ffff;

/// Number of bytes of a pixel: red, green, blue and opacity.
const PIXEL: usize = 4;

/// Names of a dimension whose three or four bytes are the colors of a pixel.
const COLOR_NAMES: [&str; 9] = [
    "c", "channel", "channels", "color", "colors", "rgb", "rgba", "band", "bands",
];

/// What the image shows of an array.
pub(super) struct PreviewFrame {
    /// The dimension of the rows.
    y: usize,
    /// The dimension of the columns.
    x: usize,
    /// The dimension of the colors or channels, and the number of those that are shown; `None` if
    /// the image shows single values.
    channels: Option<(usize, usize)>,
    /// How values become colors.
    rule: ColorRule,
    /// Number of pixels in a row.
    width: u32,
    /// Number of rows of pixels.
    height: u32,
    /// Whether the first row of items is the last one of the image, because y increases.
    is_bottom_up: bool,
    /// Whether the first column of items is the last one of the image, because x decreases.
    is_right_to_left: bool,
}

/// Returns whether the array has two dimensions, items, and real numbers or times.
fn fits(metadata: &ArrayMetadata) -> bool {
    metadata.shape.len() >= 2
        && !metadata.shape.contains(&0)
        && spelling::is_countable(metadata)
        && SampleType::of(&metadata.dtype).is_some()
}

/// Makes a file of the size of the image.
fn without_pixels(array: &Described) -> Composite {
    let mut file = Composite::default();
    if let Some(frame) = PreviewFrame::of(array) {
        file.push(png_size(frame.width, frame.height), PartContent::Padding);
    }
    file
}

/// Draws the image.
///
/// # Errors
///
/// The array or one of its chunks cannot be read, the array has changed since it was described, or
/// there is no memory.
pub(super) fn draw(hierarchy: &dyn HierarchyReader, array: &Described) -> Result<Vec<u8>> {
    let frame = PreviewFrame::of(array).ok_or_else(Error::stale)?;
    let level = frame.level(hierarchy, array)?;
    let bands = frame.channels.map_or(1, |(_, count)| count);
    let pixels = frame.width as usize * frame.height as usize;
    // the samples, a copy of those of one band to sort, the pixels, and the file, which the encoder
    // holds twice
    let bytes = pixels * (size_of::<f64>() * (bands + 1) + 3 * PIXEL);
    let _memory = memory::take(bytes).map_err(|e| e.context(FORMAT.name))?;
    let samples = SampledPlane {
        frame: &frame,
        array,
        level: &level,
    }
    .read()?;
    let pixels = colors::paint(&frame.rule, &samples, pixels);
    encode(&pixels, frame.width, frame.height)
        .map_err(|e| Error::damaged(format!("{}: {e}", FORMAT.name)).context(&array.key))
}

/// Returns the size in bytes of an image without compression: the signature, the chunks IHDR, IDAT
/// and IEND, and in IDAT a zlib stream of stored blocks, whose rows begin with the number of their
/// filter.
fn png_size(width: u32, height: u32) -> u64 {
    const SIGNATURE: u64 = 8;
    const CHUNK: u64 = 12;
    const IHDR: u64 = 13;
    const ZLIB: u64 = 2 + 4;
    const MAX_BLOCK: u64 = 65535;
    const BLOCK: u64 = 5;
    let rows = u64::from(height) * (1 + PIXEL as u64 * u64::from(width));
    SIGNATURE + 3 * CHUNK + IHDR + ZLIB + BLOCK * rows.div_ceil(MAX_BLOCK) + rows
}

/// Encodes pixels, row by row.
fn encode(
    pixels: &[u8],
    width: u32,
    height: u32,
) -> std::result::Result<Vec<u8>, png::EncodingError> {
    let mut file = Vec::with_capacity(png_size(width, height) as usize);
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_color(png::ColorType::Rgba);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_deflate_compression(png::DeflateCompression::NoCompression);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(pixels)?;
    writer.finish()?;
    Ok(file)
}

impl PreviewFrame {
    /// Returns what the image shows of an array; `None` if it has fewer than two dimensions.
    fn of(array: &Described) -> Option<Self> {
        let shape = &array.metadata.shape;
        let place = raster::dimension(array, Role::Y).zip(raster::dimension(array, Role::X));
        let colored = color_dimension(array);
        let others = (0..shape.len()).filter(|dimension| Some(*dimension) != colored);
        let others: Vec<usize> = others.collect();
        let (colored, (y, x)) = match (place, others.as_slice()) {
            (Some(place), _) => (colored, place),
            (None, [.., y, x]) => (colored, (*y, *x)),
            (None, _) => (None, (0, 1)),
        };
        let [rows, columns] = [*shape.get(y)?, *shape.get(x)?];
        let longest = rows.max(columns);
        let [height, width] = [rows, columns].map(|len| side(len, longest));
        let rule = colored.map_or(ColorRule::Map, |dimension| color_rule(array, dimension));
        // the y of an image points down, the one of a map or a graph up
        let is_map = place.is_some() && array.image.is_none();
        Some(PreviewFrame {
            y,
            x,
            channels: colored.map(|dimension| (dimension, rule.bands())),
            rule,
            width,
            height,
            is_bottom_up: is_map && increases(array, y) == Some(true),
            is_right_to_left: is_map && increases(array, x) == Some(false),
        })
    }

    /// Returns the array to sample: the level of a pyramid with the fewest items that has one for
    /// each pixel, or else the array itself.
    fn level(&self, hierarchy: &dyn HierarchyReader, array: &Described) -> Result<ArrayNode> {
        let overviews = array.overviews.iter().rev();
        let level = overviews
            .filter(|level| self.suffices(&level.metadata))
            .map(|level| (&level.key, &level.metadata))
            .next();
        let (key, metadata) = level.unwrap_or((&array.key, &array.stored));
        let found = hierarchy.find_array(key)?;
        let found = found.filter(|found| {
            found.metadata.shape == metadata.shape && found.metadata.dtype == metadata.dtype
        });
        let found = found.ok_or_else(|| Error::stale().context(key))?;
        found.readable.clone()?;
        found.chunks.open()?;
        Ok(found)
    }

    /// Returns whether an array has an item for each pixel.
    fn suffices(&self, metadata: &ArrayMetadata) -> bool {
        let [rows, columns] = [self.y, self.x].map(|dimension| metadata.shape.get(dimension));
        rows.is_some_and(|rows| *rows >= self.height.into())
            && columns.is_some_and(|columns| *columns >= self.width.into())
    }
}

/// Returns the number of pixels along a dimension of `len` items, if the longest one has `longest`.
fn side(len: u64, longest: u64) -> u32 {
    let scaled = if longest > MAX_SIDE {
        let rounded = (2 * u128::from(len) * u128::from(MAX_SIDE) + u128::from(longest))
            / (2 * u128::from(longest));
        u64::try_from(rounded).unwrap_or(MAX_SIDE)
    } else {
        len
    };
    scaled.max(len.min(MIN_SIDE)) as u32
}

/// Returns whether the coordinates of a dimension increase, if they are known.
fn increases(array: &Described, dimension: usize) -> Option<bool> {
    match &array.axes.get(dimension)?.coordinates {
        Coordinates::Regular { step, .. } => Some(*step > 0.0),
        Coordinates::Irregular { values } => Some(values.last()? > values.first()?),
        Coordinates::Unknown => None,
    }
}

/// Returns the dimension whose items are colors or channels that are shown together.
fn color_dimension(array: &Described) -> Option<usize> {
    let mut others = (0..array.axes.len()).filter(|dimension| is_other(array, *dimension));
    if let Some(named) = others.find(|dimension| is_rgb(array, *dimension)) {
        return Some(named);
    }
    let image = array.image.as_ref()?;
    let channels = image.channel_axis?;
    (!image.channels.is_empty() && is_other(array, channels)).then_some(channels)
}

/// Returns whether a dimension is neither x nor y.
fn is_other(array: &Described, dimension: usize) -> bool {
    let role = array.axes.get(dimension).map(|axis| axis.role);
    !matches!(role, None | Some(Role::X | Role::Y))
}

/// Returns whether the items of a dimension are the red, green and blue of a pixel, perhaps with
/// its opacity: its name says so, or it is the last one of an array whose dimensions have no names,
/// as libraries of images have it.
fn is_rgb(array: &Described, dimension: usize) -> bool {
    let axis = &array.axes[dimension];
    let is_named = axis.name.as_deref().is_some_and(|name| {
        let name = name.to_ascii_lowercase();
        COLOR_NAMES.contains(&name.as_str())
    });
    let is_last = matches!(array.axes.as_slice(), [.., y, x, _] if y.len > 4 && x.len > 4)
        && dimension + 1 == array.axes.len()
        && array.axes.iter().all(|axis| axis.name.is_none());
    let is_channel = array.image.as_ref().and_then(|image| image.channel_axis) == Some(dimension);
    SampleType::is_byte(&array.metadata.dtype)
        && matches!(axis.len, 3 | 4)
        && (is_named || is_channel || is_last)
        && array.image.as_ref().is_none_or(has_primary_colors)
}

/// Returns whether the channels of an image have no colors, or the colors of an RGB image in order.
fn has_primary_colors(image: &ImageInfo) -> bool {
    let colors = image.channels.iter().take(3).map(|channel| channel.color);
    let mut primaries = [0xff_0000, 0x00_ff00, 0x00_00ff].into_iter();
    colors
        .zip(&mut primaries)
        .all(|(color, primary)| color.is_none_or(|color| color == primary))
}

/// Returns how the items of a dimension become the colors of a pixel.
fn color_rule(array: &Described, dimension: usize) -> ColorRule {
    let axis = &array.axes[dimension];
    if is_rgb(array, dimension) {
        let name = axis.name.as_deref().unwrap_or_default();
        // the fourth band of a satellite is infrared
        let is_band = name.to_ascii_lowercase().starts_with("band");
        return ColorRule::Rgb {
            has_opacity: axis.len == 4 && !is_band,
        };
    }
    let channels = array.image.iter().flat_map(|image| &image.channels);
    let stated = channels.map(|channel| channel.color.unwrap_or(WHITE));
    let most = usize::try_from(axis.len).unwrap_or(usize::MAX);
    let mut colors: Vec<u32> = Vec::new();
    for color in stated
        .chain(std::iter::repeat(WHITE))
        .take(most.min(MAX_CHANNELS))
    {
        // the light of several white channels would be white everywhere
        if colors.contains(&color) {
            break;
        }
        colors.push(color);
    }
    ColorRule::Blend(colors)
}

#[cfg(test)]
mod tests;
