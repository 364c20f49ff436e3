//! The descriptor file of GrADS (<http://cola.gmu.edu/grads/gadoc/descriptorfile.html>), which CDO
//! also imports. Its dimensions are ensemble, time, level, latitude and longitude, in this order.
//! The roles of an array's dimensions, or else their positions, decide which of these it has. An
//! array that a descriptor would misrepresent has no descriptor.

mod times;

use super::calendar::Cycle;
use super::describe::{attribute_items, is_east, is_north};
use super::described::{Coordinates, Described, DescribedAxis, MetadataNumber, Role};
use super::spelling::{self, float};
use super::{FormatSpec, HeaderSyntax};
use zarrfs_base::json;
use zarrfs_format::metadata::ArrayMetadata;

/// The format.
pub(super) const FORMAT: FormatSpec = FormatSpec {
    name: "data.ctl",
    id: "ctl",
    readers: Some("GrADS; CDO: cdo -f nc import_binary data.ctl out.nc"),
    fits,
    can_describe: Some(can_describe),
    syntax: HeaderSyntax::Statements,
    header: |array| Ok(text(array).into()),
    ..FormatSpec::DEFAULT
};

/// The missing value of arrays that have none: a value from the format's own examples that no data
/// contain.
const UNDEFINED: &str = "-9.99e33";

/// Maximum number of characters of a variable's name.
const MAX_NAME: usize = 15;

/// Maximum number of characters of a text: GrADS cuts or refuses longer ones.
const MAX_TEXT: usize = 80;

/// Maximum length of the first of four dimensions: it may be an ensemble, whose members are all
/// named.
const MAX_MEMBERS: u64 = 1 << 20;

/// Number of coordinates listed in a line.
const LEVELS_IN_LINE: usize = 10;

/// Returns whether the array has a type of the format, in one to four dimensions: floats of 4
/// bytes, unsigned integers of 1 and 2 bytes, and signed integers of 2 and 4 bytes.
fn fits(metadata: &ArrayMetadata) -> bool {
    let has_slots = match metadata.shape.as_slice() {
        [_] | [_, _] | [_, _, _] => true,
        [first, _, _, _] => *first <= MAX_MEMBERS,
        _ => false,
    };
    units(metadata).is_some() && has_slots && spelling::is_countable(metadata)
}

/// Returns whether every statement of the descriptor is true of the array. **Either the descriptor
/// agrees with the metadata, or there is no descriptor.** The format cannot express packed values,
/// a second missing value, coordinates other than longitudes and latitudes in order, most
/// calendars, and times at uneven steps. A dimension without any coordinates counts its items.
fn can_describe(array: &Described) -> bool {
    statements(array).is_some()
}

/// Writes the descriptor; empty unless [`can_describe`].
fn text(array: &Described) -> String {
    let metadata = &array.metadata;
    let (Some(units), Some(statements)) = (units(metadata), statements(array)) else {
        return String::new();
    };
    let byte_order = spelling::byte_order(&metadata.dtype);
    let mut text = format!(
        "DSET ^data.raw\nTITLE {}\nUNDEF {}\nOPTIONS {byte_order}_endian{}{}\n",
        plain(&spelling::title(array), MAX_TEXT),
        undefined(array),
        if statements.is_reversed { " yrev" } else { "" },
        if statements.has_no_leap_days {
            " 365_day_calendar"
        } else {
            ""
        },
    );
    let Statements { x, y, z, time, .. } = &statements;
    text.push_str(&format!("XDEF {x}\nYDEF {y}\nZDEF {z}\nTDEF {time}\n"));
    if let Some(len) = statements.members {
        let names = (1..=len).map(|n| format!("m{n}"));
        text.push_str(&format!(
            "EDEF {len} NAMES {}\n",
            spelling::list(names, " ")
        ));
    }
    let levels = statements.levels;
    let name = name(&array.name);
    text + &format!(
        "VARS 1\n{name} {levels} {units} {}\nENDVARS\n",
        plain(&meaning(array), MAX_TEXT)
    )
}

/// The descriptor's statements about dimensions.
struct Statements {
    x: String,
    y: String,
    z: String,
    time: String,
    /// Whether latitudes decrease.
    is_reversed: bool,
    has_no_leap_days: bool,
    /// Number of levels; 0 without that dimension.
    levels: u64,
    /// Number of members of an ensemble.
    members: Option<u64>,
}

/// Returns the statements about the array; `None` if the format cannot describe it truthfully.
fn statements(array: &Described) -> Option<Statements> {
    if is_packed(array) || has_other_missing_values(array) {
        return None;
    }
    let slots = Slots::of(array);
    let is_on_globe = array.crs.as_ref().is_none_or(|crs| crs.is_geographic());
    let (x, _) = horizontal(slots.x, Role::X, is_on_globe)?;
    let (y, is_reversed) = horizontal(slots.y, Role::Y, is_on_globe)?;
    let (time, cycle) = times::time(slots.time)?;
    // members of an ensemble have names, not coordinates
    if slots.ensemble.is_some_and(|axis| !has_no_coordinates(axis)) {
        return None;
    }
    Some(Statements {
        x,
        y,
        z: level(slots.z)?,
        time,
        is_reversed,
        has_no_leap_days: cycle == Some(Cycle::NoLeap),
        levels: slots.z.map_or(0, |z| z.len),
        members: slots.ensemble.map(|axis| axis.len),
    })
}

/// Returns whether the stored numbers differ from the values: scaled or shifted.
fn is_packed(array: &Described) -> bool {
    let attributes = &array.attributes;
    [
        ("scale_factor", array.scale, 1.0),
        ("add_offset", array.offset, 0.0),
    ]
    .into_iter()
    .any(|(name, factor, neutral)| match factor {
        Some(factor) => factor != neutral,
        None => attributes.contains_key(name),
    })
}

/// Returns whether attributes name a missing value other than the descriptor's. NaN is always
/// missing.
fn has_other_missing_values(array: &Described) -> bool {
    let named = spelling::nodata(array).map(|number| number.as_f64());
    let values = ["_FillValue", "missing_value"]
        .into_iter()
        .filter_map(|name| array.attributes.get(name))
        .flat_map(attribute_items);
    values
        .filter_map(json::float)
        .filter_map(|x| spelling::item(&array.metadata.dtype, MetadataNumber::Float(x)))
        .any(|item| !item.as_f64().is_nan() && named != Some(item.as_f64()))
}

/// Returns whether the dimension has no coordinate array and no known positions.
fn has_no_coordinates(axis: &DescribedAxis) -> bool {
    axis.coordinates == Coordinates::Unknown && !axis.is_unread
}

/// Returns the format's code of the type.
fn units(metadata: &ArrayMetadata) -> Option<&'static str> {
    const UNITS: [&str; 12] = [
        "",
        "-1,40,1",
        "-1,40,2,-1",
        "-1,40,2",
        "-1,40,4",
        "",
        "",
        "",
        "99",
        "",
        "",
        "",
    ];
    spelling::type_name(&metadata.dtype, UNITS)
}

/// The array's dimension for each dimension of the format.
#[derive(Default)]
struct Slots<'a> {
    ensemble: Option<&'a DescribedAxis>,
    time: Option<&'a DescribedAxis>,
    z: Option<&'a DescribedAxis>,
    y: Option<&'a DescribedAxis>,
    x: Option<&'a DescribedAxis>,
}

impl<'a> Slots<'a> {
    fn of(array: &'a Described) -> Self {
        Self::by_role(&array.axes).unwrap_or_else(|| Self::by_position(&array.axes))
    }

    /// Assigns dimensions by role. Returns `None` unless all have a role in space or time, in the
    /// format's order.
    fn by_role(axes: &'a [DescribedAxis]) -> Option<Self> {
        let mut slots = Slots::default();
        // the roles that may still follow
        let mut left = [Role::Time, Role::Z, Role::Y, Role::X].into_iter();
        for axis in axes {
            left.find(|role| *role == axis.role)?;
            let slot = match axis.role {
                Role::Time => &mut slots.time,
                Role::Z => &mut slots.z,
                Role::Y => &mut slots.y,
                _ => &mut slots.x,
            };
            *slot = Some(axis);
        }
        Some(slots)
    }

    fn by_position(axes: &'a [DescribedAxis]) -> Self {
        let mut slots = Slots::default();
        let mut left = axes.iter().rev();
        slots.x = left.next();
        slots.y = left.next();
        match left.next() {
            Some(axis) if axis.role == Role::Time => slots.time = Some(axis),
            axis => slots.z = axis,
        }
        match left.next() {
            Some(axis) if slots.time.is_none() && axis.role == Role::Time => {
                slots.time = Some(axis)
            }
            axis => slots.ensemble = axis,
        }
        slots
    }
}

/// Returns the longitudes or latitudes in increasing order, and whether they decrease in the array.
/// Returns `None` if the coordinates are something else or not in order.
fn horizontal(
    axis: Option<&DescribedAxis>,
    role: Role,
    is_on_globe: bool,
) -> Option<(String, bool)> {
    let Some(axis) = axis else {
        return Some(("1 LINEAR 0 1".to_string(), false));
    };
    if has_no_coordinates(axis) {
        return Some((linear(axis.len, 1.0, 1.0), false));
    }
    if axis.role != role || !is_on_globe || !is_in_degrees(axis, role) {
        return None;
    }
    let may_reverse = role == Role::Y;
    if let Some((first, step)) = spelling::spacing(axis) {
        if step > 0.0 {
            return Some((linear(axis.len, first, step), false));
        }
        let last = spelling::at(first, step, axis.len - 1);
        return may_reverse.then(|| (linear(axis.len, last, -step), true));
    }
    let values = listed(axis)?;
    if is_increasing(values.iter()) {
        return Some((levels(values.iter().copied()), false));
    }
    let is_reversed = may_reverse && is_increasing(values.iter().rev());
    is_reversed.then(|| (levels(values.iter().rev().copied()), true))
}

/// Returns whether units allow the coordinates to be longitudes or latitudes. Plain degrees may
/// belong to a rotated pole, so they count only with a matching name.
fn is_in_degrees(axis: &DescribedAxis, role: Role) -> bool {
    let Some(units) = axis.units.as_deref() else {
        return true;
    };
    let (is_of_role, start) = match role {
        Role::X => (is_east(units), "lon"),
        _ => (is_north(units), "lat"),
    };
    if is_of_role {
        return true;
    }
    let name = axis
        .name
        .as_deref()
        .unwrap_or_default()
        .to_ascii_lowercase();
    ["degrees", "degree", "deg"].contains(&units) && name.starts_with(start)
}

/// Returns the levels in their own order; `None` if they neither increase nor decrease.
fn level(axis: Option<&DescribedAxis>) -> Option<String> {
    let Some(axis) = axis else {
        return Some("1 LEVELS 0".to_string());
    };
    if has_no_coordinates(axis) {
        return Some(linear(axis.len, 1.0, 1.0));
    }
    // the format cannot express dates as levels
    if axis.role == Role::Time {
        return None;
    }
    if let Some((first, step)) = spelling::spacing(axis) {
        if step > 0.0 {
            return Some(linear(axis.len, first, step));
        }
        let values = (0..axis.len).map(|i| spelling::at(first, step, i));
        return (axis.len <= spelling::MAX_LISTED).then(|| levels(values));
    }
    let values = listed(axis)?;
    let is_sorted = is_increasing(values.iter()) || is_increasing(values.iter().rev());
    is_sorted.then(|| levels(values.iter().copied()))
}

/// Returns irregular coordinates, one for each item.
fn listed(axis: &DescribedAxis) -> Option<&[f64]> {
    match &axis.coordinates {
        Coordinates::Irregular { values } if values.len() as u64 == axis.len => Some(values),
        _ => None,
    }
}

fn linear(len: u64, first: f64, step: f64) -> String {
    format!("{len} LINEAR {} {}", float(first), float(step))
}

fn levels(values: impl Iterator<Item = f64>) -> String {
    let words: Vec<String> = values.map(float).collect();
    let lines = words.chunks(LEVELS_IN_LINE).map(|line| line.join(" "));
    format!("{} LEVELS {}", words.len(), spelling::list(lines, "\n"))
}

fn is_increasing<'a>(values: impl Iterator<Item = &'a f64> + Clone) -> bool {
    values.clone().all(|x| x.is_finite()) && values.is_sorted_by(|a, b| a < b)
}

/// Returns the missing value, or [`UNDEFINED`] if there is none. NaN is always missing.
fn undefined(array: &Described) -> String {
    match spelling::nodata(array) {
        // the shortest spelling of an item of 4 bytes
        Some(MetadataNumber::Float(x)) if !x.is_nan() => {
            let shortest = (x as f32).to_string().parse();
            shortest.map_or(UNDEFINED.to_string(), float)
        }
        Some(nodata @ MetadataNumber::Int(_)) => nodata.to_string(),
        _ => UNDEFINED.to_string(),
    }
}

/// Returns title and units.
fn meaning(array: &Described) -> String {
    let title = spelling::title(array);
    match &array.units {
        Some(units) => format!("{title} [{units}]"),
        None => title,
    }
}

/// Returns a name of letters, digits and underscores that begins with a letter.
fn name(name: &str) -> String {
    let begins_well = name.starts_with(|c: char| c.is_ascii_alphabetic());
    let name = format!("{}{name}", if begins_well { "" } else { "v" }).to_ascii_lowercase();
    let plain = name.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
    plain.chars().take(MAX_NAME).collect()
}

/// Returns text in one line of at most `most` ASCII characters.
fn plain(text: &str, most: usize) -> String {
    spelling::line(text)
        .chars()
        .map(|c| if c.is_ascii() { c } else { '?' })
        .take(most)
        .collect()
}

#[cfg(test)]
mod tests;
