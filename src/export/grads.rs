//! A descriptor of GrADS (<http://cola.gmu.edu/grads/gadoc/descriptorfile.html>), which CDO imports, too. Dimensions are
//! ensemble, time, level, latitude and longitude, in this order; which of them an array has is told by what its
//! dimensions run along, and else by their place. An array of which the descriptor would say what is not true has none.

use super::calendar::{Calendar, Count, Date};
use super::describe::{is_east, is_north};
use super::described::{Coordinates, Described, DescribedAxis, MetadataNumber, Role};
use super::spelling::{self, float};
use crate::util::json;
use crate::zarr::dtype::DTypeKind;
use crate::zarr::metadata::ArrayMetadata;

/// What no item of data that have no missing values is: the value that the format's own examples take.
const UNDEFINED: &str = "-9.99e33";

/// The longest name of a variable.
const MAX_NAME: usize = 15;

/// The longest text: GrADS cuts or refuses longer ones.
const MAX_TEXT: usize = 80;

/// The longest first dimension of four: it may be one of members, which are named.
const MAX_MEMBERS: u64 = 1 << 20;

/// Coordinates in a line.
const LEVELS_IN_LINE: usize = 10;

/// True for the types that the format has: floats of 4 bytes, integers of 1, 2 and 4, of those signed only the last two,
/// unsigned only the first two; in one to four dimensions.
pub fn fits(metadata: &ArrayMetadata) -> bool {
    let has_slots = match metadata.shape.as_slice() {
        [_] | [_, _] | [_, _, _] => true,
        [first, _, _, _] => *first <= MAX_MEMBERS,
        _ => false,
    };
    units(metadata).is_some() && has_slots && spelling::is_countable(metadata)
}

/// Whether every statement of the descriptor is true of the array: **what metadata tells is told as it is, or there is no
/// descriptor**. The format has no place for packed values, for a second missing value, for coordinates that are no
/// longitudes and latitudes or are in another order, for calendars but two, and for times at uneven steps. Only a
/// dimension whose coordinates nothing tells is counted.
pub fn tells(array: &Described) -> bool {
    statements(array).is_some()
}

/// The descriptor; empty unless [`tells`].
pub fn text(array: &Described) -> String {
    let metadata = &array.metadata;
    let (Some(units), Some(statements)) = (units(metadata), statements(array)) else { return String::new() };
    let byte_order = if metadata.dtype.is_big_endian() { "big_endian" } else { "little_endian" };
    let mut text = format!(
        "DSET ^data.raw\nTITLE {}\nUNDEF {}\nOPTIONS {byte_order}{}{}\n",
        plain(&spelling::title(array), MAX_TEXT),
        undefined(array),
        if statements.is_reversed { " yrev" } else { "" },
        if statements.has_no_leap_days { " 365_day_calendar" } else { "" },
    );
    let Statements { x, y, z, time, .. } = &statements;
    text.push_str(&format!("XDEF {x}\nYDEF {y}\nZDEF {z}\nTDEF {time}\n"));
    if let Some(len) = statements.members {
        let names = (1..=len).map(|n| format!("m{n}"));
        text.push_str(&format!("EDEF {len} NAMES {}\n", spelling::list(names, " ")));
    }
    let (levels, name) = (statements.levels, name(&array.name));
    text + &format!("VARS 1\n{name} {levels} {units} {}\nENDVARS\n", plain(&meaning(array), MAX_TEXT))
}

/// What the descriptor says of the dimensions.
struct Statements {
    x: String,
    y: String,
    z: String,
    time: String,
    /// Whether latitudes stand in decreasing order.
    is_reversed: bool,
    has_no_leap_days: bool,
    /// Items of the dimension of levels; 0 without one.
    levels: u64,
    /// Members of an ensemble.
    members: Option<u64>,
}

/// Returns `None` if the format can't say what the array is.
fn statements(array: &Described) -> Option<Statements> {
    if is_packed(array) || has_other_missing_values(array) {
        return None;
    }
    let slots = Slots::of(array);
    let is_on_globe = array.crs.as_ref().is_none_or(|crs| crs.is_geographic);
    let (x, _) = horizontal(slots.x, Role::X, is_on_globe)?;
    let (y, is_reversed) = horizontal(slots.y, Role::Y, is_on_globe)?;
    let (time, calendar) = time(slots.time)?;
    // members have names, not coordinates
    if slots.ensemble.is_some_and(|axis| !is_untold(axis)) {
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

/// Whether the stored numbers are not the values: scaled, shifted, or with a sign that the dtype doesn't tell.
fn is_packed(array: &Described) -> bool {
    let attributes = &array.attributes;
    let is_scaled = |name, told: Option<f64>, neutral| {
        told.is_some_and(|x| x != neutral) || told.is_none() && attributes.contains_key(name)
    };
    let unsigned = attributes.get("_Unsigned").map(|value| json::text(value).unwrap_or_default() == "true");
    let is_unsigned = matches!(array.metadata.dtype.kind(), DTypeKind::UInt | DTypeKind::Bool);
    is_scaled("scale_factor", array.scale, 1.0)
        || is_scaled("add_offset", array.offset, 0.0)
        || unsigned.is_some_and(|unsigned| unsigned != is_unsigned)
}

/// Whether attributes tell a missing value besides the one that the descriptor names. NaN is always missing.
fn has_other_missing_values(array: &Described) -> bool {
    let named = spelling::nodata(array);
    let told = ["_FillValue", "missing_value"].into_iter().filter_map(|name| array.attributes.get(name));
    let numbers = told.flat_map(|value| value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice));
    numbers
        .filter_map(|number| spelling::item(&array.metadata.dtype, MetadataNumber::Float(json::float(number)?)))
        .any(|item| !item.as_f64().is_nan() && named.is_none_or(|named| named.as_f64() != item.as_f64()))
}

/// Whether nothing tells where the items of a dimension lie.
fn is_untold(axis: &DescribedAxis) -> bool {
    axis.coordinates == Coordinates::Unknown && !axis.is_unread
}

/// The format's word for the type.
fn units(metadata: &ArrayMetadata) -> Option<&'static str> {
    Some(match spelling::number(&metadata.dtype)? {
        "f4" => "99",
        "u1" => "-1,40,1",
        "u2" => "-1,40,2",
        "i2" => "-1,40,2,-1",
        "i4" => "-1,40,4",
        _ => return None,
    })
}

/// Which dimension stands for which of the format's.
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
        Self::by_role(&array.axes).unwrap_or_else(|| Self::by_place(&array.axes))
    }

    /// None unless all dimensions have a place in space and time, in the format's order.
    fn by_role(axes: &'a [DescribedAxis]) -> Option<Self> {
        const ORDER: [Role; 4] = [Role::Time, Role::Z, Role::Y, Role::X];
        let places = axes.iter().map(|axis| ORDER.iter().position(|role| *role == axis.role));
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

    fn by_place(axes: &'a [DescribedAxis]) -> Self {
        let mut slots = Slots::default();
        let mut left = axes.iter().rev();
        slots.x = left.next();
        slots.y = left.next();
        match left.next() {
            Some(axis) if axis.role == Role::Time => slots.time = Some(axis),
            axis => slots.z = axis,
        }
        match left.next() {
            Some(axis) if slots.time.is_none() && axis.role == Role::Time => slots.time = Some(axis),
            axis => slots.ensemble = axis,
        }
        slots
    }
}

/// The longitudes or latitudes, which the format wants increasing, and whether they stand in decreasing order. `None` if
/// the coordinates are something else, or in no order.
fn horizontal(axis: Option<&DescribedAxis>, role: Role, is_on_globe: bool) -> Option<(String, bool)> {
    let Some(axis) = axis else { return Some(("1 LINEAR 0 1".to_string(), false)) };
    if is_untold(axis) {
        return Some((linear(axis.len, 1.0, 1.0), false));
    }
    if axis.role != role || !is_on_globe || !is_in_degrees(axis, role) {
        return None;
    }
    let may_reverse = role == Role::Y;
    match &axis.coordinates {
        Coordinates::Regular { first, step } if first.is_finite() && step.is_finite() => match step {
            step if *step > 0.0 => Some((linear(axis.len, *first, *step), false)),
            step if may_reverse => Some((linear(axis.len, spelling::at(*first, *step, axis.len - 1), -step), true)),
            _ => None,
        },
        Coordinates::Irregular { values, .. } if values.len() as u64 == axis.len => {
            match (is_increasing(values.iter()), may_reverse && is_increasing(values.iter().rev())) {
                (true, _) => Some((levels(values.iter()), false)),
                (_, true) => Some((levels(values.iter().rev()), true)),
                _ => None,
            }
        }
        _ => None,
    }
}

/// Whether coordinates are longitudes or latitudes, as far as units tell. Plain degrees may also be those of a rotated
/// pole, unless the name says otherwise.
fn is_in_degrees(axis: &DescribedAxis, role: Role) -> bool {
    let Some(units) = axis.units.as_deref() else { return true };
    let (is_of_role, start) = match role {
        Role::X => (is_east(units), "lon"),
        _ => (is_north(units), "lat"),
    };
    let is_named = || axis.name.as_deref().is_some_and(|name| name.to_ascii_lowercase().starts_with(start));
    is_of_role || ["degrees", "degree", "deg"].contains(&units) && is_named()
}

/// The levels, in whichever direction they go; `None` if they go in none.
fn level(axis: Option<&DescribedAxis>) -> Option<String> {
    let Some(axis) = axis else { return Some("1 LEVELS 0".to_string()) };
    if is_untold(axis) {
        return Some(linear(axis.len, 1.0, 1.0));
    }
    // a time in the place of levels would be counted in numbers
    if axis.role == Role::Time {
        return None;
    }
    match &axis.coordinates {
        Coordinates::Regular { first, step } if !first.is_finite() || !step.is_finite() => None,
        Coordinates::Regular { first, step } if *step > 0.0 => Some(linear(axis.len, *first, *step)),
        Coordinates::Regular { first, step } if axis.len <= spelling::MAX_LISTED => {
            let values: Vec<f64> = (0..axis.len).map(|i| spelling::at(*first, *step, i)).collect();
            Some(levels(values.iter()))
        }
        Coordinates::Irregular { values, .. } if values.len() as u64 == axis.len => {
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

/// The dates of the dimension of time, at steps of minutes or months, and their calendar. `None` if the format can't say
/// them: it knows dates to the minute, and the Gregorian calendar of all times.
fn time(axis: Option<&DescribedAxis>) -> Option<(String, Option<Calendar>)> {
    let axis = match axis {
        Some(axis) if axis.len > 1 || !is_untold(axis) => axis,
        // no time at all, which the format has a line for nevertheless
        _ => return Some(("1 LINEAR 00Z01JAN0001 1dy".to_string(), None)),
    };
    let calendar = Calendar::of(axis.calendar.as_deref())?;
    let count = Count::parse(axis.units.as_deref().filter(|_| axis.role == Role::Time)?, calendar)?;
    let (first, step) = regular(axis, count).or_else(|| monthly(axis, count))?;
    let is_julian = calendar == Calendar::Standard && (first.year, first.month, first.day) < (1582, 10, 15);
    (!is_julian).then(|| (format!("{} LINEAR {} {step}", axis.len, date(first)), Some(calendar)))
}

/// The first date and the step, if it is a whole number of minutes.
fn regular(axis: &DescribedAxis, count: Count) -> Option<(Date, String)> {
    let (first, step) = match &axis.coordinates {
        Coordinates::Regular { first, step } => (*first, *step),
        Coordinates::Irregular { values, .. } => match values.as_slice() {
            [only] => return Some((count.date(*only)?, "1dy".to_string())),
            _ => return None,
        },
        Coordinates::Unknown => return None,
    };
    let first = count.date(first)?;
    let minutes = step * count.minutes();
    let whole = minutes.round();
    // also at the last of them
    if !(1.0..1e9).contains(&whole) || (minutes - whole).abs() * axis.len as f64 > 0.5 {
        return None;
    }
    let whole = whole as i64;
    let (size, unit) = [(1440, "dy"), (60, "hr"), (1, "mn")].into_iter().find(|(size, _)| whole % size == 0)?;
    Some((first, format!("{}{unit}", whole / size)))
}

/// As [`regular`], of the same minute of each month, or of each second, third ... one.
fn monthly(axis: &DescribedAxis, count: Count) -> Option<(Date, String)> {
    let Coordinates::Irregular { values, .. } = &axis.coordinates else { return None };
    let dates: Vec<Date> = values.iter().map(|x| count.date(*x)).collect::<Option<_>>()?;
    let [first, second, ..] = dates.as_slice() else { return None };
    let month = |date: &Date| date.year * 12 + date.month;
    let step = month(second) - month(first);
    let follows = |a: &Date, b: &Date| month(b) - month(a) == step && (b.day, b.minute) == (first.day, first.minute);
    if step < 1 || !dates.windows(2).all(|pair| matches!(pair, [a, b] if follows(a, b))) {
        return None;
    }
    Some((*first, if step % 12 == 0 { format!("{}yr", step / 12) } else { format!("{step}mo") }))
}

/// `06:30Z01JAN2000`
fn date(date: Date) -> String {
    const MONTHS: [&str; 12] = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
    let month = usize::try_from(date.month - 1).ok().and_then(|month| MONTHS.get(month)).unwrap_or(&"JAN");
    let minute = if date.minute % 60 == 0 { String::new() } else { format!(":{:02}", date.minute % 60) };
    format!("{:02}{minute}Z{:02}{month}{:04}", date.minute / 60, date.day, date.year)
}

/// The missing value; one that no item has where there is none. NaN is always missing.
fn undefined(array: &Described) -> String {
    match spelling::nodata(array) {
        Some(MetadataNumber::Float(x)) if x.is_nan() => UNDEFINED.to_string(),
        // as short as it tells an item of 4 bytes
        Some(MetadataNumber::Float(x)) => (x as f32).to_string().parse().map_or(UNDEFINED.to_string(), float),
        Some(nodata) => nodata.to_string(),
        None => UNDEFINED.to_string(),
    }
}

/// Title and units.
fn meaning(array: &Described) -> String {
    let units = array.units.as_deref().map(|units| format!(" [{units}]")).unwrap_or_default();
    format!("{}{units}", spelling::title(array))
}

/// A name of letters, digits and underscores that begins with a letter.
fn name(name: &str) -> String {
    let plain = name.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' });
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphabetic());
    let start = if starts_well { None } else { Some('v') };
    start.into_iter().chain(plain).take(MAX_NAME).collect()
}

/// ASCII in one line, so many letters at most.
fn plain(text: &str, most: usize) -> String {
    spelling::line(text).chars().map(|c| if c.is_ascii() { c } else { '?' }).take(most).collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;

    #[test]
    fn an_array_of_which_nothing_is_known() {
        let expected = "DSET ^data.raw
TITLE data
UNDEF -9.99e33
OPTIONS big_endian
XDEF 6 LINEAR 1 1
YDEF 4 LINEAR 1 1
ZDEF 1 LEVELS 0
TDEF 1 LINEAR 00Z01JAN0001 1dy
VARS 1
data 0 -1,40,2 data
ENDVARS
";
        assert_eq!(text(&testing::plain(">u2", &[4, 6])), expected);
    }

    #[test]
    fn latitudes_increase_and_times_are_dates() {
        let expected = "DSET ^data.raw
TITLE Air <2 m>
UNDEF -9999
OPTIONS little_endian yrev
XDEF 10 LINEAR 10 0.25
YDEF 6 LINEAR 47.5 0.5
ZDEF 1 LEVELS 0
TDEF 4 LINEAR 00Z01JAN2000 6hr
VARS 1
data 0 99 Air <2 m> [K]
ENDVARS
";
        assert_eq!(text(&testing::geographic()), expected);
    }

    fn line(array: &Described, word: &str) -> String {
        text(array).lines().find(|line| line.starts_with(word)).unwrap_or_default().to_string()
    }

    #[test]
    fn levels_and_months() {
        let expected = "DSET ^data.raw
TITLE sea-surface temperature
UNDEF -32768
OPTIONS big_endian
XDEF 6 LINEAR 0.1 0.1
YDEF 5 LEVELS -60.5 -10 0 10 60.5
ZDEF 4 LEVELS 1000 850 500 200
TDEF 3 LINEAR 00Z01JAN2001 1mo
VARS 1
sea_surface_tem 4 -1,40,2,-1 sea-surface temperature [K]
ENDVARS
";
        assert_eq!(text(&Described { scale: None, offset: None, ..testing::model() }), expected);
    }

    #[test]
    fn values_that_are_not_the_stored_numbers_have_no_descriptor() {
        let with = |dtype, attributes: &str| {
            let attributes = json::parse_object(attributes.as_bytes()).unwrap();
            let number = |name| attributes.get(name).and_then(json::float);
            let (scale, offset) = (number("scale_factor").filter(|x| *x != 0.0), number("add_offset"));
            let nodata = number("_FillValue").map(MetadataNumber::Float);
            tells(&Described { scale, offset, nodata, attributes: attributes.into(), ..testing::plain(dtype, &[4, 6]) })
        };
        for attributes in [
            "{}",
            r#"{"scale_factor":1,"add_offset":0}"#,
            r#"{"_FillValue":7,"missing_value":7}"#,
            r#"{"_FillValue":7,"missing_value":[7,1e9]}"#,
            r#"{"_Unsigned":"false","units":"K"}"#,
        ] {
            assert!(with("<i2", attributes), "{attributes}");
        }
        for attributes in [
            r#"{"scale_factor":0.5}"#,
            r#"{"scale_factor":0}"#,
            r#"{"scale_factor":"half"}"#,
            r#"{"add_offset":273.15}"#,
            r#"{"add_offset":null}"#,
            r#"{"_Unsigned":"true"}"#,
            r#"{"_FillValue":7,"missing_value":8}"#,
            r#"{"_FillValue":7,"missing_value":[7,8]}"#,
        ] {
            assert!(!with("<i2", attributes), "{attributes}");
        }
        assert!(!tells(&testing::model()), "packed");
        assert!(!with("|u1", r#"{"_Unsigned":"false"}"#) && with("|u1", r#"{"_Unsigned":"true"}"#));
    }

    #[test]
    fn times() {
        let tdef = |units: &str, calendar: Option<&str>, coordinates: Coordinates| {
            let mut array = testing::geographic();
            array.axes[0].units = Some(units.into());
            array.axes[0].calendar = calendar.map(str::to_string);
            array.axes[0].coordinates = coordinates;
            assert_eq!(tells(&array), !text(&array).is_empty());
            line(&array, "TDEF")
        };
        let regular = |first, step| Coordinates::Regular { first, step };
        let listed = |values: &[f64]| Coordinates::Irregular { values: values.to_vec(), source: None };
        let days = "days since 1999-12-31 12:30";
        let seconds = "seconds since 2000-01-01";
        for (units, calendar, coordinates, expected) in [
            (days, None, regular(1.0, 1.0 / 24.0), "12:30Z01JAN2000 1hr"),
            (days, None, regular(1.0, 5.0), "12:30Z01JAN2000 5dy"),
            (days, Some("noleap"), regular(1.0, 5.0), "12:30Z01JAN2000 5dy"),
            (seconds, None, regular(0.0, 5400.0), "00Z01JAN2000 90mn"),
            ("seconds since 2000-01-01 00:00:30", None, regular(30.0, 60.0), "00:01Z01JAN2000 1mn"),
            ("hours since 1-1-1", None, regular(17_522_904.0, 6.0), "00Z01JAN2000 6hr"),
            ("days since 1500-01-01", Some("proleptic_gregorian"), regular(0.0, 1.0), "00Z01JAN1500 1dy"),
            ("days since 2001-01-01", None, listed(&[0.0, 31.0, 59.0, 90.0]), "00Z01JAN2001 1mo"),
            ("days since 2000-02-03", None, listed(&[0.0, 366.0, 731.0, 1096.0]), "00Z03FEB2000 1yr"),
        ] {
            assert_eq!(tdef(units, calendar, coordinates), format!("TDEF 4 LINEAR {expected}"), "{units}");
        }
        for (units, calendar, coordinates) in [
            (days, Some("360_day"), regular(1.0, 5.0)),
            (days, Some("julian"), regular(1.0, 5.0)),
            (days, Some("all_leap"), regular(1.0, 5.0)),
            // Julian, which the format doesn't know
            ("days since 1500-01-01", None, regular(0.0, 1.0)),
            (seconds, None, regular(0.0, 1.0)),
            ("seconds since 2000-01-01 00:00:30", None, regular(0.0, 60.0)),
            // a tenth of a minute more at each step
            ("minutes since 2000-01-01", None, regular(0.0, 1.2)),
            ("K", None, regular(1.0, 5.0)),
            // UDUNITS counts 30.44 days
            ("months since 2000-01-01", None, regular(3.0, 12.0)),
            (days, None, regular(1.0, -5.0)),
            (days, None, Coordinates::Unknown),
            (days, None, listed(&[0.0, 1.0, 40.0, 80.0])),
            (days, None, listed(&[0.0, 1.0, 1.0, 2.0])),
            // the middles of months
            ("days since 2001-01-01", None, listed(&[15.5, 45.0, 74.5, 105.0])),
        ] {
            assert_eq!(tdef(units, calendar, coordinates), "", "{units} {calendar:?}");
        }
    }

    #[test]
    fn one_time_has_a_date_too() {
        let mut array = testing::geographic();
        array.axes[0] = DescribedAxis {
            len: 1,
            coordinates: Coordinates::Irregular { values: vec![30.0], source: None },
            ..array.axes[0].clone()
        };
        assert_eq!(line(&array, "TDEF"), "TDEF 1 LINEAR 06Z02JAN2000 1dy");
        array.axes[0].calendar = Some("360_day".into());
        assert!(!tells(&array));
    }

    #[test]
    fn a_calendar_without_leap_days() {
        let mut array = testing::geographic();
        array.axes[0].calendar = Some("noleap".into());
        assert_eq!(line(&array, "OPTIONS"), "OPTIONS little_endian yrev 365_day_calendar");
    }

    #[test]
    fn dimensions_of_which_nothing_is_told_are_counted() {
        assert_eq!(line(&testing::plain("<f4", &[2, 3, 4, 5]), "EDEF"), "EDEF 2 NAMES m1 m2");
        assert_eq!(line(&testing::plain("<f4", &[3, 4, 5]), "ZDEF"), "ZDEF 3 LINEAR 1 1");
        assert_eq!(line(&testing::plain("<f4", &[3, 4, 5]), "TDEF"), "TDEF 1 LINEAR 00Z01JAN0001 1dy");
        let mut series = testing::plain("<f4", &[3]);
        series.axes[0].role = Role::Time;
        assert!(!tells(&series), "there are no dates to begin with");
        // there are coordinates, which can't be read
        let mut array = testing::plain("<f4", &[3, 4]);
        array.axes[1].is_unread = true;
        assert!(!tells(&array));
    }

    /// Coordinates are told as they are, or there is no descriptor.
    #[test]
    fn coordinates_that_the_format_has_no_place_for() {
        let listed = |values: &[f64]| Coordinates::Irregular { values: values.to_vec(), source: None };
        let changed = |change: &dyn Fn(&mut Described)| {
            let mut array = testing::geographic();
            change(&mut array);
            tells(&array)
        };
        assert!(changed(&|_| {}));
        assert!(changed(&|array| array.axes[2].units = None));
        assert!(changed(&|array| array.axes[2].units = Some("degrees".into())));
        assert!(!changed(&|array| array.axes.swap(1, 2)), "longitudes before latitudes");
        assert!(!changed(&|array| array.axes[1].coordinates = listed(&[60.0, 50.0, 10.0, 20.0, -1.0, -60.0])));
        assert!(!changed(&|array| array.axes[1].coordinates = listed(&[60.0, 50.0, f64::NAN, 0.0, -1.0, -60.0])));
        let west = Coordinates::Regular { first: 10.0, step: -0.25 };
        assert!(!changed(&|array| array.axes[2].coordinates = west.clone()));
        assert!(!changed(&|array| array.axes[2].units = Some("m".into())), "projected");
        let rotated = |array: &mut Described| {
            array.axes[2].units = Some("degrees".into());
            array.axes[2].name = Some("rlon".into());
        };
        assert!(!changed(&rotated));
        assert!(!changed(&|array| array.crs = Some(Default::default())), "projected");
        assert!(!changed(&|array| array.axes[2].role = Role::Other));
        assert!(!tells(&testing::microscopy()), "micrometers");
        let mut array = testing::geographic();
        array.axes[1].coordinates = listed(&[60.0, 50.0, 10.0, 0.0, -1.0, -60.0]);
        assert_eq!(line(&array, "YDEF"), "YDEF 6 LEVELS -60 -1 0 10 50 60");
        assert!(line(&array, "OPTIONS").ends_with("yrev"));
    }

    #[test]
    fn missing_values() {
        let undef = |dtype, nodata| line(&Described { nodata, ..testing::plain(dtype, &[1]) }, "UNDEF");
        assert_eq!(undef("<f4", Some(MetadataNumber::Float(1e20))), "UNDEF 1e20");
        assert_eq!(undef("<f4", Some(MetadataNumber::Float(f64::NAN))), "UNDEF -9.99e33");
        assert_eq!(undef("|u1", Some(MetadataNumber::Int(255))), "UNDEF 255");
        assert_eq!(undef("|u1", Some(MetadataNumber::Int(-1))), "UNDEF -9.99e33");
    }

    #[test]
    fn names() {
        for (given, expected) in
            [("2m Temp.", "v2m_temp_"), ("Größe", "gr__e"), ("a_name_that_is_long", "a_name_that_is_")]
        {
            assert_eq!(name(given), expected);
        }
    }

    #[test]
    fn what_is_refused() {
        for dtype in ["|i1", "<u4", "<i8", "<f8", "<f2", "<c8", "|S3", "<M8[s]"] {
            assert!(!fits(&testing::metadata(&format!("{dtype:?}"), &[4, 6])), "{dtype}");
        }
        for shape in [&[] as &[u64], &[4, 0], &[1; 5], &[(1 << 20) + 1, 1, 1, 1]] {
            assert!(!fits(&testing::metadata("\"<f4\"", shape)), "{shape:?}");
        }
    }
}
