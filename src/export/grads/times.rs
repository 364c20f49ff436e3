//! The times of a descriptor: dates to the minute, at steps of minutes or months.

use super::has_no_coordinates;
use crate::export::calendar::{Cycle, Moment, TimeScale};
use crate::export::described::{Coordinates, DescribedAxis, Role};

/// Maximum distance of a date from a whole minute, in microseconds, caused by rounding.
const TOLERANCE: i128 = 600_000;

const MONTHS: [&str; 12] = [
    "JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC",
];

/// Returns the dates of the time dimension at steps of minutes or months, and their calendar.
/// Returns `None` if the format cannot express them: it has dates to the minute, in the proleptic
/// Gregorian calendar or one without leap days.
pub fn time(axis: Option<&DescribedAxis>) -> Option<(String, Option<Cycle>)> {
    let axis = match axis {
        Some(axis) if axis.len > 1 || !has_no_coordinates(axis) => axis,
        // the format requires a time even for arrays without one
        _ => return Some(("1 LINEAR 00Z01JAN0001 1dy".to_string(), None)),
    };
    let cycle = Cycle::of(axis.calendar.as_deref().unwrap_or("standard"))?;
    let units = axis.units.as_deref().filter(|_| axis.role == Role::Time)?;
    let count = TimeCount::parse(units, cycle)?;
    let (first, step) = regular(axis, count).or_else(|| monthly(axis, count))?;
    Some((
        format!("{} LINEAR {} {step}", axis.len, date(&first)),
        Some(cycle),
    ))
}

/// The meaning of the numbers of a time coordinate.
#[derive(Clone, Copy, Debug, PartialEq)]
struct TimeCount {
    cycle: Cycle,
    /// Length of the unit in minutes.
    minutes: f64,
    scale: TimeScale,
}

impl TimeCount {
    /// Parses `UNIT since DATE`.
    ///
    /// Returns `None` for other calendars, if the calendar does not have the date, if the date is
    /// in a time zone other than UTC, and for months and years: UDUNITS counts a month as 30.44
    /// days, other programs as one of the calendar.
    fn parse(units: &str, cycle: Cycle) -> Option<Self> {
        let (unit, since) = units.split_once(" since ")?;
        let minutes: f64 = match unit.trim().to_ascii_lowercase().trim_end_matches('s') {
            "" | "sec" | "second" => 1.0 / 60.0,
            "min" | "minute" => 1.0,
            "h" | "hr" | "hour" => 60.0,
            "d" | "day" => 1440.0,
            _ => return None,
        };
        let scale = TimeScale::since(since, cycle, (minutes * 6e7).round())?;
        let has_cycle = matches!(cycle, Cycle::Mixed | Cycle::Gregorian | Cycle::NoLeap);
        let (first_year, ..) = scale.of_int(0)?.date;
        (has_cycle && first_year > 0).then_some(TimeCount {
            cycle,
            minutes,
            scale,
        })
    }

    /// Returns the date of a number. Returns `None` unless it is a whole minute of the years 1 to
    /// 9999, and not of the Julian part of the standard calendar.
    fn date(&self, number: f64) -> Option<Moment> {
        let moment = self.scale.of_minute(number, TOLERANCE)?;
        let is_julian = self.cycle == Cycle::Mixed && moment.date < (1582, 10, 15);
        (moment.date.0 > 0 && !is_julian).then_some(moment)
    }
}

/// Returns the first date and the step if the step is a whole number of minutes.
fn regular(axis: &DescribedAxis, count: TimeCount) -> Option<(Moment, String)> {
    let (first, step) = match &axis.coordinates {
        Coordinates::Regular { first, step } => (*first, *step),
        Coordinates::Irregular { values } => match values.as_slice() {
            [only] => return Some((count.date(*only)?, "1dy".to_string())),
            _ => return None,
        },
        Coordinates::Unknown => return None,
    };
    let first = count.date(first)?;
    let minutes = step * count.minutes;
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
fn monthly(axis: &DescribedAxis, count: TimeCount) -> Option<(Moment, String)> {
    let Coordinates::Irregular { values } = &axis.coordinates else {
        return None;
    };
    let dates: Option<Vec<Moment>> = values.iter().map(|x| count.date(*x)).collect();
    let dates = dates?;
    let [first, second, ..] = dates.as_slice() else {
        return None;
    };
    let step = month(second) - month(first);
    let is_even = dates.iter().zip(dates.iter().skip(1)).all(|(a, b)| {
        month(b) - month(a) == step
            && b.date.2 == first.date.2
            && b.hour_and_minute() == first.hour_and_minute()
    });
    if step < 1 || !is_even {
        return None;
    }
    let step = if step % 12 == 0 {
        format!("{}yr", step / 12)
    } else {
        format!("{step}mo")
    };
    Some((*first, step))
}

/// Returns the number of a date's month.
fn month(moment: &Moment) -> i128 {
    let (year, month, _) = moment.date;
    year * 12 + month
}

/// Spells a date: `06:30Z01JAN2000`.
fn date(moment: &Moment) -> String {
    let (year, month, day) = moment.date;
    let time = match moment.hour_and_minute() {
        (hour, 0) => format!("{hour:02}"),
        (hour, minute) => format!("{hour:02}:{minute:02}"),
    };
    let name = MONTHS[(month - 1) as usize];
    format!("{time}Z{day:02}{name}{year:04}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn date(units: &str, cycle: Cycle, number: f64) -> Option<(i128, i128, i128, i128)> {
        let moment = TimeCount::parse(units, cycle)?.date(number)?;
        let (year, month, day) = moment.date;
        let (hour, minute) = moment.hour_and_minute();
        Some((year, month, day, hour * 60 + minute))
    }

    #[test]
    fn dates_agree_with_cftime() {
        use Cycle::{Gregorian, Mixed as Standard, NoLeap};
        for (units, calendar, number, expected) in [
            ("days since 1970-01-01", Standard, 0.0, (1970, 1, 1, 0)),
            ("days since 2000-01-01", Standard, 59.5, (2000, 2, 29, 720)),
            ("days since 2000-01-01", NoLeap, 59.5, (2000, 3, 1, 720)),
            ("days since 1900-01-01", Standard, 59.0, (1900, 3, 1, 0)),
            (
                "hours since 1900-01-01 00:00:0.0",
                Standard,
                1_051_896.0,
                (2020, 1, 1, 0),
            ),
            (
                "hours since 1-1-1 00:00:0.0",
                Standard,
                17_522_904.0,
                (2000, 1, 1, 0),
            ),
            (
                "days since 0001-01-01",
                Gregorian,
                730_119.0,
                (2000, 1, 1, 0),
            ),
            ("days since 0001-01-01", NoLeap, 729_635.0, (2000, 1, 1, 0)),
            ("days since 1582-10-04", Standard, 1.0, (1582, 10, 15, 0)),
            ("days since 1582-10-04", Gregorian, 1.0, (1582, 10, 5, 0)),
            (
                "seconds since 1970-01-01T00:00:00Z",
                Standard,
                -60.0,
                (1969, 12, 31, 1439),
            ),
            (
                "minutes since 2000-02-28 23:59 UTC",
                Gregorian,
                1.0,
                (2000, 2, 29, 0),
            ),
            (
                "seconds since 1970-01-01 00:00:45",
                Standard,
                15.0,
                (1970, 1, 1, 1),
            ),
            (
                "days since 1970-01-01",
                Gregorian,
                2_932_896.0,
                (9999, 12, 31, 0),
            ),
        ] {
            assert_eq!(
                date(units, calendar, number),
                Some(expected),
                "{number} {units}"
            );
        }
    }

    #[test]
    fn other_units_and_numbers_have_no_date() {
        for units in [
            "days",
            "days since",
            "days since yesterday",
            "days since 2000-13-01",
            "days since 2000-01-01 00:00 +2:00",
            "days since 2000-01-01 24:00",
            "days since -1-1-1",
            "fortnights since 2000-01-01",
            "months since 2000-01-01",
            "years since 2000-01-01",
        ] {
            assert_eq!(TimeCount::parse(units, Cycle::Mixed), None, "{units}");
        }
        assert_eq!(
            TimeCount::parse("days since 2000-01-01", Cycle::Days360),
            None
        );
        for number in [1e300, 1e15, -1e15, f64::NAN, 3e6, -800_000.0] {
            assert_eq!(
                date("days since 1970-01-01", Cycle::Gregorian, number),
                None,
                "{number}"
            );
        }
        assert_eq!(
            date("seconds since 2000-01-01", Cycle::Gregorian, 59.0),
            None
        );
    }
}
