//! The descriptor file of GrADS (<http://cola.gmu.edu/grads/gadoc/descriptorfile.html>), which CDO
//! also imports. Its dimensions are ensemble, time, level, latitude and longitude, in this order.
//! The roles of an array's dimensions, or else their positions, decide which of these it has. An
//! array that a descriptor would misrepresent has no descriptor.

use super::FormatSpec;
use super::calendar::{Calendar, TimeCount};
use super::describe::{is_east, is_north};
use super::described::{Coordinates, Described, DescribedAxis, MetadataNumber, Role};
use super::spelling::{self, float};
use crate::util::json;
use crate::zarr::dtype::DTypeKind;
use crate::zarr::metadata::ArrayMetadata;
use chrono::{Datelike, NaiveDateTime, Timelike};

/// The format.
pub(super) const FORMAT: FormatSpec = FormatSpec {
    name: "data.ctl",
    id: "ctl",
    readers: Some("GrADS; CDO: cdo -f nc import_binary data.ctl out.nc"),
    fits,
    can_describe: Some(can_describe),
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
    let byte_order = if metadata.dtype.is_big_endian() {
        "big_endian"
    } else {
        "little_endian"
    };
    let mut text = format!(
        "DSET ^data.raw\nTITLE {}\nUNDEF {}\nOPTIONS {byte_order}{}{}\n",
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
    let is_on_globe = array.crs.as_ref().is_none_or(|crs| crs.is_geographic);
    let (x, _) = horizontal(slots.x, Role::X, is_on_globe)?;
    let (y, is_reversed) = horizontal(slots.y, Role::Y, is_on_globe)?;
    let (time, calendar) = time(slots.time)?;
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
        has_no_leap_days: calendar == Some(Calendar::NoLeap),
        levels: slots.z.map_or(0, |z| z.len),
        members: slots.ensemble.map(|axis| axis.len),
    })
}

/// Returns whether the stored numbers differ from the values: scaled, shifted, or of another
/// signedness than the dtype.
fn is_packed(array: &Described) -> bool {
    let attributes = &array.attributes;
    let is_scaled = |name, factor: Option<f64>, neutral| {
        factor.is_some_and(|x| x != neutral) || factor.is_none() && attributes.contains_key(name)
    };
    let unsigned = attributes
        .get("_Unsigned")
        .map(|value| json::text(value).unwrap_or_default() == "true");
    let is_unsigned = matches!(
        array.metadata.dtype.kind(),
        DTypeKind::UInt | DTypeKind::Bool
    );
    is_scaled("scale_factor", array.scale, 1.0)
        || is_scaled("add_offset", array.offset, 0.0)
        || unsigned.is_some_and(|unsigned| unsigned != is_unsigned)
}

/// Returns whether attributes name a missing value other than the descriptor's. NaN is always
/// missing.
fn has_other_missing_values(array: &Described) -> bool {
    let named = spelling::nodata(array);
    let attributes = ["_FillValue", "missing_value"]
        .into_iter()
        .filter_map(|name| array.attributes.get(name));
    let numbers = attributes.flat_map(|value| {
        value
            .as_array()
            .map_or(std::slice::from_ref(value), Vec::as_slice)
    });
    numbers
        .filter_map(|number| {
            spelling::item(
                &array.metadata.dtype,
                MetadataNumber::Float(json::float(number)?),
            )
        })
        .any(|item| {
            !item.as_f64().is_nan() && named.is_none_or(|named| named.as_f64() != item.as_f64())
        })
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
        const ORDER: [Role; 4] = [Role::Time, Role::Z, Role::Y, Role::X];
        let places = axes
            .iter()
            .map(|axis| ORDER.iter().position(|role| *role == axis.role));
        let places: Vec<usize> = places.collect::<Option<_>>()?;
        let of = |role| axes.iter().find(|axis| axis.role == role);
        places.is_sorted_by(|a, b| a < b).then(|| Slots {
            ensemble: None,
            time: of(Role::Time),
            z: of(Role::Z),
            y: of(Role::Y),
            x: of(Role::X),
        })
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
    match &axis.coordinates {
        Coordinates::Regular { first, step } if first.is_finite() && step.is_finite() => match step
        {
            step if *step > 0.0 => Some((linear(axis.len, *first, *step), false)),
            step if may_reverse => Some((
                linear(axis.len, spelling::at(*first, *step, axis.len - 1), -step),
                true,
            )),
            _ => None,
        },
        Coordinates::Irregular { values } if values.len() as u64 == axis.len => {
            match (
                is_increasing(values.iter()),
                may_reverse && is_increasing(values.iter().rev()),
            ) {
                (true, _) => Some((levels(values.iter()), false)),
                (_, true) => Some((levels(values.iter().rev()), true)),
                _ => None,
            }
        }
        _ => None,
    }
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
    let is_named = || {
        axis.name
            .as_deref()
            .is_some_and(|name| name.to_ascii_lowercase().starts_with(start))
    };
    is_of_role || ["degrees", "degree", "deg"].contains(&units) && is_named()
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
    match &axis.coordinates {
        Coordinates::Regular { first, step } if !first.is_finite() || !step.is_finite() => None,
        Coordinates::Regular { first, step } if *step > 0.0 => {
            Some(linear(axis.len, *first, *step))
        }
        Coordinates::Regular { first, step } if axis.len <= spelling::MAX_LISTED => {
            let values: Vec<f64> = (0..axis.len)
                .map(|i| spelling::at(*first, *step, i))
                .collect();
            Some(levels(values.iter()))
        }
        Coordinates::Irregular { values } if values.len() as u64 == axis.len => {
            let is_sorted = is_increasing(values.iter()) || is_increasing(values.iter().rev());
            is_sorted.then(|| levels(values.iter()))
        }
        _ => None,
    }
}

fn linear(len: u64, first: f64, step: f64) -> String {
    format!("{len} LINEAR {} {}", float(first), float(step))
}

fn levels<'a>(values: impl ExactSizeIterator<Item = &'a f64>) -> String {
    let len = values.len();
    let words: Vec<String> = values.map(|x| float(*x)).collect();
    let lines = words.chunks(LEVELS_IN_LINE).map(|line| line.join(" "));
    format!("{len} LEVELS {}", spelling::list(lines, "\n"))
}

fn is_increasing<'a>(values: impl Iterator<Item = &'a f64> + Clone) -> bool {
    values.clone().all(|x| x.is_finite()) && values.is_sorted_by(|a, b| a < b)
}

/// Returns the dates of the time dimension at steps of minutes or months, and their calendar.
/// Returns `None` if the format cannot express them: it has dates to the minute, in the proleptic
/// Gregorian calendar or one without leap days.
fn time(axis: Option<&DescribedAxis>) -> Option<(String, Option<Calendar>)> {
    let axis = match axis {
        Some(axis) if axis.len > 1 || !has_no_coordinates(axis) => axis,
        // the format requires a time even for arrays without one
        _ => return Some(("1 LINEAR 00Z01JAN0001 1dy".to_string(), None)),
    };
    let calendar = Calendar::of(axis.calendar.as_deref())?;
    let count = TimeCount::parse(
        axis.units.as_deref().filter(|_| axis.role == Role::Time)?,
        calendar,
    )?;
    let (first, step) = regular(axis, count).or_else(|| monthly(axis, count))?;
    Some((
        format!("{} LINEAR {} {step}", axis.len, date(first)),
        Some(calendar),
    ))
}

/// Returns the first date and the step if the step is a whole number of minutes.
fn regular(axis: &DescribedAxis, count: TimeCount) -> Option<(NaiveDateTime, String)> {
    let (first, step) = match &axis.coordinates {
        Coordinates::Regular { first, step } => (*first, *step),
        Coordinates::Irregular { values } => match values.as_slice() {
            [only] => return Some((count.date(*only)?, "1dy".to_string())),
            _ => return None,
        },
        Coordinates::Unknown => return None,
    };
    let first = count.date(first)?;
    let minutes = step * count.minutes();
    let whole = minutes.round();
    // the rounded step must still hold at the last item
    if !(1.0..1e9).contains(&whole) || (minutes - whole).abs() * axis.len as f64 > 0.5 {
        return None;
    }
    let whole = whole as i64;
    let (size, unit) = [(1440, "dy"), (60, "hr"), (1, "mn")]
        .into_iter()
        .find(|(size, _)| whole % size == 0)?;
    Some((first, format!("{}{unit}", whole / size)))
}

/// Returns the first date and the step if all dates have the same day and minute of every nth
/// month.
fn monthly(axis: &DescribedAxis, count: TimeCount) -> Option<(NaiveDateTime, String)> {
    let Coordinates::Irregular { values } = &axis.coordinates else {
        return None;
    };
    let dates: Vec<NaiveDateTime> = values
        .iter()
        .map(|x| count.date(*x))
        .collect::<Option<_>>()?;
    let [first, second, ..] = dates.as_slice() else {
        return None;
    };
    let month = |date: &NaiveDateTime| date.year() * 12 + date.month() as i32;
    let step = month(second) - month(first);
    let follows = |a: &NaiveDateTime, b: &NaiveDateTime| {
        month(b) - month(a) == step && (b.day(), b.time()) == (first.day(), first.time())
    };
    if step < 1
        || !dates
            .windows(2)
            .all(|pair| matches!(pair, [a, b] if follows(a, b)))
    {
        return None;
    }
    Some((
        *first,
        if step % 12 == 0 {
            format!("{}yr", step / 12)
        } else {
            format!("{step}mo")
        },
    ))
}

/// Spells a date: `06:30Z01JAN2000`.
fn date(date: NaiveDateTime) -> String {
    let time = if date.minute() == 0 { "%HZ" } else { "%H:%MZ" };
    date.format(&format!("{time}%d%b%Y"))
        .to_string()
        .to_uppercase()
}

/// Returns the missing value, or [`UNDEFINED`] if there is none. NaN is always missing.
fn undefined(array: &Described) -> String {
    match spelling::nodata(array) {
        Some(MetadataNumber::Float(x)) if x.is_nan() => UNDEFINED.to_string(),
        // the shortest spelling of an item of 4 bytes
        Some(MetadataNumber::Float(x)) => (x as f32)
            .to_string()
            .parse()
            .map_or(UNDEFINED.to_string(), float),
        Some(nodata) => nodata.to_string(),
        None => UNDEFINED.to_string(),
    }
}

/// Returns title and units.
fn meaning(array: &Described) -> String {
    let units = array
        .units
        .as_deref()
        .map(|units| format!(" [{units}]"))
        .unwrap_or_default();
    format!("{}{units}", spelling::title(array))
}

/// Returns a name of letters, digits and underscores that begins with a letter.
fn name(name: &str) -> String {
    let plain = name.chars().map(|c| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_lowercase()
        } else {
            '_'
        }
    });
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphabetic());
    let start = if starts_well { None } else { Some('v') };
    start.into_iter().chain(plain).take(MAX_NAME).collect()
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
