//! A descriptor of GrADS (<http://cola.gmu.edu/grads/gadoc/descriptorfile.html>), which CDO imports, too. Dimensions are
//! ensemble, time, level, latitude and longitude, in this order; which of them an array has is told by what its
//! dimensions run along, and else by their place.

use super::calendar::{Calendar, Count, Date, Unit};
use super::described::{Axis, Coordinates, Described, Number, Role};
use super::spelling::{self, float};
use crate::metadata::ArrayMetadata;

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

/// The descriptor.
pub fn text(array: &Described) -> String {
    let metadata = &array.metadata;
    let Some(units) = units(metadata) else { return String::new() };
    let slots = Slots::of(array);
    let byte_order = if metadata.dtype.is_big_endian() { "big_endian" } else { "little_endian" };
    let (y, is_reversed) = horizontal(slots.y, Role::Y);
    let (time, options) = time(slots.time);
    let mut text = format!(
        "DSET ^data.raw\nTITLE {}\nUNDEF {}\nOPTIONS {byte_order}{}{options}\n",
        plain(&spelling::title(array), MAX_TEXT),
        undefined(array),
        if is_reversed { " yrev" } else { "" },
    );
    text.push_str(&format!(
        "XDEF {}\nYDEF {y}\nZDEF {}\nTDEF {time}\n",
        horizontal(slots.x, Role::X).0,
        level(slots.z)
    ));
    if let Some(ensemble) = slots.ensemble {
        let names = (1..=ensemble.len).map(|n| format!("m{n}"));
        text.push_str(&format!("EDEF {} NAMES {}\n", ensemble.len, spelling::list(names, " ")));
    }
    let levels = slots.z.map_or(0, |z| z.len);
    text + &format!("VARS 1\n{} {levels} {units} {}\nENDVARS\n", name(&array.name), plain(&meaning(array), MAX_TEXT))
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
    ensemble: Option<&'a Axis>,
    time: Option<&'a Axis>,
    z: Option<&'a Axis>,
    y: Option<&'a Axis>,
    x: Option<&'a Axis>,
}

impl<'a> Slots<'a> {
    fn of(array: &'a Described) -> Self {
        Self::by_role(&array.axes).unwrap_or_else(|| Self::by_place(&array.axes))
    }

    /// None unless all dimensions have a place in space and time, in the format's order.
    fn by_role(axes: &'a [Axis]) -> Option<Self> {
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

    fn by_place(axes: &'a [Axis]) -> Self {
        let mut slots = Slots::default();
        let mut left = axes.iter().rev();
        slots.x = left.next();
        slots.y = left.next();
        match left.next() {
            Some(axis) if axis.role == Role::Time => slots.time = Some(axis),
            axis => slots.z = axis,
        }
        match left.next() {
            // what has a name, but no place in time, is no time
            Some(axis) if slots.time.is_some() || axis.role != Role::Time && axis.name.is_some() => {
                slots.ensemble = Some(axis);
            }
            Some(axis) => slots.time = Some(axis),
            None => {}
        }
        slots
    }
}

/// The coordinates along x or y, which the format wants increasing, and whether they stand in decreasing order; counted
/// from 1 where they are neither.
fn horizontal(axis: Option<&Axis>, role: Role) -> (String, bool) {
    let Some(axis) = axis else { return ("1 LINEAR 0 1".to_string(), false) };
    let may_reverse = role == Role::Y;
    let known = (axis.role == role).then_some(&axis.coordinates);
    let last = |first: f64, step: f64| spelling::at(first, step, axis.len - 1);
    match known {
        Some(Coordinates::Regular { first, step }) if first.is_finite() && step.is_finite() => {
            if *step > 0.0 {
                return (linear(axis.len, *first, *step), false);
            }
            if may_reverse && *step < 0.0 {
                return (linear(axis.len, last(*first, *step), -step), true);
            }
        }
        Some(Coordinates::Irregular { values, .. }) if values.len() as u64 == axis.len => {
            if is_increasing(values.iter()) {
                return (levels(values.iter()), false);
            }
            if may_reverse && is_increasing(values.iter().rev()) {
                return (levels(values.iter().rev()), true);
            }
        }
        _ => {}
    }
    (linear(axis.len, 1.0, 1.0), false)
}

/// The levels, in whichever direction they go; counted from 1 where they don't.
fn level(axis: Option<&Axis>) -> String {
    let Some(axis) = axis else { return "1 LEVELS 0".to_string() };
    match &axis.coordinates {
        Coordinates::Regular { first, step } if first.is_finite() && step.is_finite() && *step > 0.0 => {
            linear(axis.len, *first, *step)
        }
        Coordinates::Regular { first, step }
            if first.is_finite() && step.is_finite() && axis.len <= spelling::MAX_LISTED =>
        {
            let values: Vec<f64> = (0..axis.len).map(|i| spelling::at(*first, *step, i)).collect();
            levels(values.iter())
        }
        Coordinates::Irregular { values, .. }
            if values.len() as u64 == axis.len
                && (is_increasing(values.iter()) || is_increasing(values.iter().rev())) =>
        {
            levels(values.iter())
        }
        _ => linear(axis.len, 1.0, 1.0),
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

/// The dates of the dimension of time, at steps of minutes, months or years, and the option that tells their calendar.
/// Days from the year 1 on where there are none.
fn time(axis: Option<&Axis>) -> (String, &'static str) {
    let len = axis.map_or(1, |axis| axis.len);
    let calendar = axis.and_then(|axis| Calendar::of(axis.calendar.as_deref()));
    let dated = axis.filter(|axis| axis.role == Role::Time).and_then(|axis| {
        let count = Count::parse(axis.units.as_deref()?, calendar?)?;
        regular(axis, count).or_else(|| monthly(axis, count))
    });
    match dated {
        Some((first, step)) => {
            let option = if calendar == Some(Calendar::NoLeap) { " 365_day_calendar" } else { "" };
            (format!("{len} LINEAR {} {step}", date(first)), option)
        }
        None => (format!("{len} LINEAR 00Z01JAN0001 1dy"), ""),
    }
}

/// The first date and the step, if it is a whole number of minutes, months or years.
fn regular(axis: &Axis, count: Count) -> Option<(Date, String)> {
    let Coordinates::Regular { first, step } = axis.coordinates else { return None };
    let first = count.date(first)?;
    let (steps, units): (f64, &[(i64, &str)]) = match count.unit() {
        Unit::Minutes(minutes) => (step * minutes, &[(1440, "dy"), (60, "hr"), (1, "mn")]),
        Unit::Months(months) => (step * months as f64, &[(12, "yr"), (1, "mo")]),
    };
    let whole = steps.round();
    if !(1.0..1e9).contains(&whole) || (steps - whole).abs() > 1e-4 {
        return None;
    }
    let whole = whole as i64;
    let (size, unit) = units.iter().find(|(size, _)| whole % size == 0)?;
    Some((first, format!("{}{unit}", whole / size)))
}

/// As [`regular`], of one date in each month, or in each second, third ... one. Where the days differ a little, as in the
/// middles and at the ends of months, they are the first.
fn monthly(axis: &Axis, count: Count) -> Option<(Date, String)> {
    let Coordinates::Irregular { values, .. } = &axis.coordinates else { return None };
    let dates: Vec<Date> = values.iter().map(|x| count.date(*x)).collect::<Option<_>>()?;
    let [first, second, ..] = dates.as_slice() else { return None };
    let month = |date: &Date| date.year * 12 + date.month;
    let step = month(second) - month(first);
    let follows = |a: &Date, b: &Date| month(b) - month(a) == step && (b.day - first.day).abs() <= 3;
    if step < 1 || !dates.windows(2).all(|pair| matches!(pair, [a, b] if follows(a, b))) {
        return None;
    }
    let is_same_day = dates.iter().all(|date| (date.day, date.minute) == (first.day, first.minute));
    let first = if is_same_day { *first } else { Date { day: 1, minute: 0, ..*first } };
    Some((first, if step % 12 == 0 { format!("{}yr", step / 12) } else { format!("{step}mo") }))
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
        Some(Number::Float(x)) if x.is_nan() => UNDEFINED.to_string(),
        // as short as it tells an item of 4 bytes
        Some(Number::Float(x)) => (x as f32).to_string().parse().map_or(UNDEFINED.to_string(), float),
        Some(nodata) => nodata.to_string(),
        None => UNDEFINED.to_string(),
    }
}

/// Title, scaling, which the format has no place for, and units.
fn meaning(array: &Described) -> String {
    let scaling = match (array.scale, array.offset) {
        (None, None) => String::new(),
        (scale, offset) => {
            format!(" (stored: * {} + {})", float(scale.unwrap_or(1.0)), float(offset.unwrap_or(0.0)))
        }
    };
    let units = array.units.as_deref().map(|units| format!(" [{units}]")).unwrap_or_default();
    format!("{}{scaling}{units}", spelling::title(array))
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
sea_surface_tem 4 -1,40,2,-1 sea-surface temperature (stored: * 0.05 + 260) [K]
ENDVARS
";
        assert_eq!(text(&testing::model()), expected);
    }

    fn line(array: &Described, word: &str) -> String {
        text(array).lines().find(|line| line.starts_with(word)).unwrap_or_default().to_string()
    }

    #[test]
    fn times() {
        let tdef = |units: &str, calendar: Option<&str>, coordinates: Coordinates| {
            let mut array = testing::geographic();
            array.axes[0].units = Some(units.into());
            array.axes[0].calendar = calendar.map(str::to_string);
            array.axes[0].coordinates = coordinates;
            line(&array, "TDEF")
        };
        let regular = |first, step| Coordinates::Regular { first, step };
        let listed = |values: &[f64]| Coordinates::Irregular { values: values.to_vec(), source: None };
        let unknown = "TDEF 4 LINEAR 00Z01JAN0001 1dy";
        let days = "days since 1999-12-31 12:30";
        assert_eq!(tdef(days, None, regular(1.0, 1.0 / 24.0)), "TDEF 4 LINEAR 12:30Z01JAN2000 1hr");
        assert_eq!(tdef(days, None, regular(1.0, 5.0)), "TDEF 4 LINEAR 12:30Z01JAN2000 5dy");
        assert_eq!(tdef("seconds since 2000-01-01", None, regular(0.0, 5400.0)), "TDEF 4 LINEAR 00Z01JAN2000 90mn");
        assert_eq!(tdef("seconds since 2000-01-01", None, regular(0.0, 1.0)), unknown);
        assert_eq!(tdef("months since 2000-01-01", None, regular(3.0, 12.0)), "TDEF 4 LINEAR 00Z01APR2000 1yr");
        assert_eq!(tdef(days, Some("360_day"), regular(1.0, 5.0)), unknown);
        assert_eq!(tdef("K", None, regular(1.0, 5.0)), unknown);
        assert_eq!(tdef(days, None, regular(1.0, -5.0)), unknown);
        let middles = listed(&[15.5, 45.0, 74.5, 105.0]);
        assert_eq!(tdef("days since 2001-01-01", None, middles), "TDEF 4 LINEAR 00Z01JAN2001 1mo");
        let years = listed(&[0.0, 366.0, 731.0, 1096.0]);
        assert_eq!(tdef("days since 2000-02-03", None, years), "TDEF 4 LINEAR 00Z03FEB2000 1yr");
        assert_eq!(tdef(days, None, listed(&[0.0, 1.0, 40.0, 80.0])), unknown);
    }

    #[test]
    fn a_calendar_without_leap_days() {
        let mut array = testing::geographic();
        array.axes[0].calendar = Some("noleap".into());
        assert_eq!(line(&array, "OPTIONS"), "OPTIONS little_endian yrev 365_day_calendar");
    }

    #[test]
    fn dimensions_in_another_order_are_counted() {
        let mut array = testing::geographic();
        array.axes.swap(1, 2);
        assert_eq!(line(&array, "XDEF"), "XDEF 6 LINEAR 1 1");
        assert_eq!(line(&array, "YDEF"), "YDEF 10 LINEAR 1 1");
        assert_eq!(line(&array, "TDEF"), "TDEF 4 LINEAR 00Z01JAN2000 6hr");
    }

    #[test]
    fn dimensions_that_are_neither_space_nor_time() {
        let microscopy = testing::microscopy();
        assert_eq!(line(&microscopy, "EDEF"), "EDEF 2 NAMES m1 m2");
        assert_eq!(line(&microscopy, "ZDEF"), "ZDEF 3 LINEAR 0 2");
        assert_eq!(line(&testing::plain("<f4", &[2, 3, 4, 5]), "TDEF"), "TDEF 2 LINEAR 00Z01JAN0001 1dy");
        assert_eq!(line(&testing::plain("<f4", &[3, 4, 5]), "ZDEF"), "ZDEF 3 LINEAR 1 1");
        let mut series = testing::plain("<f4", &[3]);
        series.axes[0].role = Role::Time;
        assert_eq!(
            (line(&series, "XDEF"), line(&series, "TDEF")),
            ("XDEF 1 LINEAR 0 1".into(), "TDEF 3 LINEAR 00Z01JAN0001 1dy".into())
        );
    }

    #[test]
    fn coordinates_that_neither_increase_nor_decrease_are_counted() {
        let mut array = testing::geographic();
        let listed = |values: &[f64]| Coordinates::Irregular { values: values.to_vec(), source: None };
        array.axes[1].coordinates = listed(&[60.0, 50.0, 10.0, 0.0, -1.0, -60.0]);
        assert_eq!(line(&array, "YDEF"), "YDEF 6 LEVELS -60 -1 0 10 50 60");
        assert!(line(&array, "OPTIONS").ends_with("yrev"));
        array.axes[1].coordinates = listed(&[60.0, 50.0, f64::NAN, 0.0, -1.0, -60.0]);
        assert_eq!(line(&array, "YDEF"), "YDEF 6 LINEAR 1 1");
        array.axes[2].coordinates = Coordinates::Regular { first: 10.0, step: -0.25 };
        assert_eq!(line(&array, "XDEF"), "XDEF 10 LINEAR 1 1");
    }

    #[test]
    fn missing_values() {
        let undef = |dtype, nodata| line(&Described { nodata, ..testing::plain(dtype, &[1]) }, "UNDEF");
        assert_eq!(undef("<f4", Some(Number::Float(1e20))), "UNDEF 1e20");
        assert_eq!(undef("<f4", Some(Number::Float(f64::NAN))), "UNDEF -9.99e33");
        assert_eq!(undef("|u1", Some(Number::Int(255))), "UNDEF 255");
        assert_eq!(undef("|u1", Some(Number::Int(-1))), "UNDEF -9.99e33");
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
