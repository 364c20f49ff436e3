//! OME-XML 2016-06
//! (<https://docs.openmicroscopy.org/ome-model/latest/ome-tiff/specification.html>), the
//! description of an image of microscopy. Bio-Formats, tifffile and all that build on them read the
//! dimensions, channels and sizes of pixels from it. The text is UTF-8, as OME asks for, though
//! TIFF has ASCII alone: Bio-Formats reads no references of XML such as `&#181;`.

use super::super::described::Role;
use super::super::raster::Raster;
use super::super::{spelling, units};
use super::{Described, TagValue, Tags, resolution};
use zarrfs_format::dtype::DType;

const SCHEMA: &str = "http://www.openmicroscopy.org/Schemas/OME/2016-06";

/// A dimension of OME's model besides the rows and columns, in the letters of `DimensionOrder`.
const STACK: [char; 3] = ['Z', 'C', 'T'];

/// Returns the description of the first page; `None` if the array is no image of OME-NGFF, or if
/// the schema does not have its type or its dimensions.
pub fn description(array: &Described, raster: &Raster) -> Option<String> {
    let image = array.image.as_ref()?;
    let pixel_type = pixel_type(&array.metadata.dtype)?;
    let stack = stack(array)?;
    let order: String = stack.iter().map(|(letter, _)| letter).collect();
    let name = image.name.clone().unwrap_or_else(|| spelling::title(array));
    let mut pixels = format!(
        "ID=\"Pixels:0\" DimensionOrder=\"XY{order}\" Type=\"{pixel_type}\" BigEndian=\"{}\" Interleaved=\"false\" \
         SizeX=\"{}\" SizeY=\"{}\"",
        array.metadata.dtype.is_big_endian(),
        raster.columns,
        raster.rows
    );
    let mut channels = 1;
    for (letter, len) in stack {
        pixels.push_str(&format!(" Size{letter}=\"{len}\""));
        channels = if letter == 'C' { len } else { channels };
    }
    for (letter, role) in [('X', Role::X), ('Y', Role::Y), ('Z', Role::Z)] {
        pixels.extend(physical_size(array, letter, role));
    }
    pixels.extend(time_increment(array));
    let head = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <OME xmlns=\"{SCHEMA}\" xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\" \
         xsi:schemaLocation=\"{SCHEMA} {SCHEMA}/ome.xsd\" Creator=\"zarrfs {}\">\n\
         <Image ID=\"Image:0\" Name=\"{}\">\n<Pixels {pixels}>\n",
        env!("CARGO_PKG_VERSION"),
        attribute(&name)
    );
    // all pages in their order, the dimensions nested as DimensionOrder says
    let planes = format!("<TiffData IFD=\"0\" PlaneCount=\"{}\"/>\n", raster.bands);
    Some(head + &channel_elements(array, channels) + &planes + "</Pixels>\n</Image>\n</OME>")
}

/// Adds the resolution in pixels per centimeter, if the sizes of pixels are lengths.
pub fn pixels_per_centimeter(array: &Described, tags: &mut Tags) {
    let centimeters = |role| {
        let (step, unit) = step(array, role)?;
        resolution::for_each_unit(step * units::length(unit?)?.size * 100.0)
    };
    if let (Some(x), Some(y)) = (centimeters(Role::X), centimeters(Role::Y)) {
        let unit = TagValue::Short(vec![resolution::CENTIMETER]);
        tags.extend([
            (resolution::X, x),
            (resolution::Y, y),
            (resolution::UNIT, unit),
        ]);
    }
}

/// Returns the schema's name of the type, which has no integers of 64 bits.
fn pixel_type(dtype: &DType) -> Option<&'static str> {
    const NAMES: [&str; 12] = [
        "int8",
        "uint8",
        "int16",
        "uint16",
        "int32",
        "uint32",
        "",
        "",
        "float",
        "double",
        "complex",
        "double-complex",
    ];
    spelling::type_name(dtype, NAMES)
}

/// Returns the dimensions of a page's number, the fastest first: those of the array, then those
/// that it lacks. Returns `None` if the array has others, or if a page does not consist of rows and
/// columns.
fn stack(array: &Described) -> Option<Vec<(char, u64)>> {
    let [leading @ .., y, x] = array.axes.as_slice() else {
        return None;
    };
    let channel_axis = array.image.as_ref()?.channel_axis;
    if (y.role, x.role) != (Role::Y, Role::X) {
        return None;
    }
    let mut stack = Vec::new();
    for (i, axis) in leading.iter().enumerate().rev() {
        let letter = match axis.role {
            _ if Some(i) == channel_axis => 'C',
            Role::Z => 'Z',
            Role::Time => 'T',
            _ if axis.len == 1 => continue,
            _ => return None,
        };
        stack.push((letter, axis.len));
    }
    for letter in STACK {
        if stack.iter().all(|(known, _)| *known != letter) {
            stack.push((letter, 1));
        }
    }
    Some(stack)
}

/// Returns the step without its sign and the unit of the axis with a role. A step of 1 without a
/// unit tells nothing.
fn step(array: &Described, role: Role) -> Option<(f64, Option<&str>)> {
    let axis = array.axes.iter().find(|axis| axis.role == role)?;
    let (_, step) = spelling::spacing(axis)?;
    let unit = axis.units.as_deref();
    // the schema takes floats of 32 bits
    let is_told = (step as f32).is_normal() && (unit.is_some() || step != 1.0);
    is_told.then_some((spelling::rounded(step.abs()), unit))
}

/// Returns the attributes for the size of a pixel. A unit that the schema lacks becomes its
/// arbitrary one.
fn physical_size(array: &Described, letter: char, role: Role) -> Option<String> {
    let (step, unit) = step(array, role)?;
    let symbol = unit
        .and_then(units::length)
        .map_or("reference frame".to_string(), |unit| unit.symbol);
    Some(format!(
        " PhysicalSize{letter}=\"{}\" PhysicalSize{letter}Unit=\"{}\"",
        spelling::float(step),
        attribute(&symbol)
    ))
}

/// Returns the attributes for the time from one image to the next, if its unit is one of the
/// schema's.
fn time_increment(array: &Described) -> Option<String> {
    let (step, unit) = step(array, Role::Time)?;
    let unit = units::time(unit?)?;
    Some(format!(
        " TimeIncrement=\"{}\" TimeIncrementUnit=\"{}\"",
        spelling::float(step),
        attribute(&unit.symbol)
    ))
}

/// Returns an element for each of `count` channels, with name and color where they are known.
fn channel_elements(array: &Described, count: u64) -> String {
    let known = array
        .image
        .as_ref()
        .map_or(&[][..], |image| image.channels.as_slice());
    let mut text = String::new();
    for i in 0..count {
        let channel = usize::try_from(i).ok().and_then(|i| known.get(i));
        text.push_str(&format!("<Channel ID=\"Channel:0:{i}\""));
        if let Some(name) = channel.and_then(|channel| channel.name.as_deref()) {
            text.push_str(&format!(" Name=\"{}\"", attribute(name)));
        }
        if let Some(color) = channel.and_then(|channel| channel.color) {
            // red, green, blue and an opacity of 255 as one signed number
            text.push_str(&format!(" Color=\"{}\"", (color << 8 | 0xff) as i32));
        }
        text.push_str(" SamplesPerPixel=\"1\"/>\n");
    }
    text
}

/// Escapes text for an attribute. Bio-Formats fails to write characters of more than 16 bits.
fn attribute(text: &str) -> String {
    spelling::xml(&spelling::line(text)).replace(|c| c > '\u{ffff}', "\u{fffd}")
}

#[cfg(test)]
mod tests;
