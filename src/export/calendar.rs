//! Dates of CF's time coordinates: `hours since 1900-01-01 00:00` in a calendar (CF conventions,
//! "Time Coordinate"). This module knows no format.

pub mod moments;

use chrono::{Datelike, Days, Duration, NaiveDate, NaiveDateTime, NaiveTime, Timelike};

/// The first day of the Gregorian part of the standard calendar.
const FIRST_GREGORIAN: NaiveDate = NaiveDate::from_ymd_opt(1582, 10, 15).unwrap();

/// A year without a leap day, which stands for every year of [`Calendar::NoLeap`].
const COMMON_YEAR: i32 = 2001;

/// Maximum distance of a date from a whole minute, in minutes, caused by rounding.
const TOLERANCE: f64 = 0.01;

/// The calendars whose dates this module computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calendar {
    /// `standard`, `gregorian`, and the default: Julian before 1582-10-15.
    Standard,
    /// `proleptic_gregorian`
    Gregorian,
    /// Without leap days: `noleap`, `365_day`.
    NoLeap,
}

/// The meaning of the numbers of a time coordinate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimeCount {
    calendar: Calendar,
    /// Length of the unit in minutes.
    minutes: f64,
    /// The day of the epoch, counted as by [`Calendar::date`].
    day: i64,
    /// The time of the epoch, in minutes since midnight.
    minute: f64,
}

impl Calendar {
    /// Returns the calendar with CF's name `name`.
    pub fn of(name: Option<&str>) -> Option<Self> {
        match name.unwrap_or("standard").to_ascii_lowercase().as_str() {
            "standard" | "gregorian" => Some(Calendar::Standard),
            "proleptic_gregorian" => Some(Calendar::Gregorian),
            "noleap" | "365_day" => Some(Calendar::NoLeap),
            _ => None,
        }
    }

    /// Returns the number of a day; `None` if the calendar does not have the day. The Julian part
    /// of the standard calendar has the numbers of the same days in the Gregorian calendar.
    fn day(self, year: i32, month: u32, day: u32) -> Option<i64> {
        let gregorian = |year| {
            Some(i64::from(
                NaiveDate::from_ymd_opt(year, month, day)?.num_days_from_ce(),
            ))
        };
        match self {
            Calendar::NoLeap => {
                let in_year = NaiveDate::from_ymd_opt(COMMON_YEAR, month, day)?.ordinal0();
                Some(i64::from(year) * 365 + i64::from(in_year))
            }
            Calendar::Standard if (year, month, day) < (1582, 10, 15) => {
                // the Julian calendar repeats its leap years after 4 years, and has the Gregorian
                // ones from 1601 to 1699
                let later = 1604 + year.rem_euclid(4);
                // the Julian calendar was 10 days behind in that century
                Some(gregorian(later)? + 10 - i64::from((later - year) / 4) * 1461)
            }
            _ => gregorian(year),
        }
    }

    /// Returns the date of a day number. Returns `None` outside the years 1 to 9999, and in the
    /// Julian part of the standard calendar.
    fn date(self, day: i64) -> Option<NaiveDate> {
        let date = match self {
            Calendar::NoLeap => {
                let in_year = Days::new(day.rem_euclid(365) as u64);
                let date = NaiveDate::from_yo_opt(COMMON_YEAR, 1)?.checked_add_days(in_year)?;
                date.with_year(day.div_euclid(365).try_into().ok()?)?
            }
            _ => NaiveDate::from_num_days_from_ce_opt(day.try_into().ok()?)?,
        };
        let is_julian = self == Calendar::Standard && date < FIRST_GREGORIAN;
        ((1..=9999).contains(&date.year()) && !is_julian).then_some(date)
    }
}

impl TimeCount {
    /// Parses `UNIT since DATE`.
    ///
    /// Returns `None` if the calendar does not have the date, if the date is in a time zone other
    /// than UTC, and for months and years: UDUNITS counts a month as 30.44 days, other programs as
    /// one of the calendar.
    pub fn parse(units: &str, calendar: Calendar) -> Option<Self> {
        let (unit, since) = units.split_once(" since ")?;
        let minutes = match unit.trim().to_ascii_lowercase().trim_end_matches('s') {
            "" | "sec" | "second" => 1.0 / 60.0,
            "min" | "minute" => 1.0,
            "h" | "hr" | "hour" => 60.0,
            "d" | "day" => 1440.0,
            _ => return None,
        };
        let ([year, month, day], time) = parse_date(since)?;
        let year = i32::try_from(year)
            .ok()
            .filter(|year| (1..=9999).contains(year))?;
        let day = calendar.day(year, month, day)?;
        Some(TimeCount {
            calendar,
            minutes,
            day,
            minute: parse_time(time)?,
        })
    }

    /// Returns the length of the unit in minutes.
    pub fn minutes(&self) -> f64 {
        self.minutes
    }

    /// Returns the date of a number. Returns `None` unless it is a whole minute of a date that
    /// [`Calendar`] can compute.
    pub fn date(&self, number: f64) -> Option<NaiveDateTime> {
        if !number.is_finite() || number.abs() > 1e15 {
            return None;
        }
        let minutes = number * self.minutes + self.minute;
        let whole = minutes.round();
        if (minutes - whole).abs() > TOLERANCE {
            return None;
        }
        let whole = whole as i64;
        let date = self.calendar.date(self.day + whole.div_euclid(1440))?;
        Some(date.and_time(NaiveTime::MIN) + Duration::minutes(whole.rem_euclid(1440)))
    }
}

/// Parses the date before a time; returns year, month and day, and the text of the time.
fn parse_date(text: &str) -> Option<([u32; 3], &str)> {
    let text = text.trim();
    let (date, time) = text.split_once(['T', ' ']).unwrap_or((text, ""));
    let [year, month, day] = date.split('-').collect::<Vec<_>>().try_into().ok()?;
    Some((
        [year.parse().ok()?, month.parse().ok()?, day.parse().ok()?],
        time,
    ))
}

/// Parses `00:00:00Z`, `6:30 UTC` or nothing; returns minutes since midnight.
fn parse_time(text: &str) -> Option<f64> {
    let zones = ["UTC", "GMT", "Z", "+00:00", "+0:00"];
    let time = zones
        .iter()
        .fold(text.trim(), |time, zone| time.trim_end_matches(zone))
        .trim();
    let mut parts = time
        .split(':')
        .map(|part| if part.is_empty() { "0" } else { part });
    let mut part = || parts.next().map_or(Some(0), |part| part.parse().ok());
    let hour = part()?;
    let minute = part()?;
    let second = parts
        .next()
        .map_or(Some(0.0), |second| second.parse::<f64>().ok())?;
    let time = NaiveTime::from_hms_opt(hour, minute, 0)?;
    let is_valid = parts.next().is_none() && (0.0..60.0).contains(&second);
    is_valid.then_some(f64::from(time.num_seconds_from_midnight()) / 60.0 + second / 60.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn date(units: &str, calendar: Calendar, number: f64) -> Option<(i32, u32, u32, u32)> {
        let date = TimeCount::parse(units, calendar)?.date(number)?;
        Some((
            date.year(),
            date.month(),
            date.day(),
            date.hour() * 60 + date.minute(),
        ))
    }

    #[test]
    fn dates_agree_with_cftime() {
        use Calendar::{Gregorian, NoLeap, Standard};
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
    fn each_day_follows_the_one_before() {
        for calendar in [Calendar::Standard, Calendar::Gregorian, Calendar::NoLeap] {
            let first = calendar.day(1582, 10, 15).unwrap();
            for day in first..first + 200_000 {
                let date = calendar.date(day).unwrap();
                assert_eq!(
                    calendar.day(date.year(), date.month(), date.day()),
                    Some(day),
                    "{date:?}"
                );
            }
        }
    }

    /// The expected days up to 1582-10-15 are differences of Julian day numbers.
    #[test]
    fn julian_days_precede_the_gregorian_ones() {
        let day = |year, month, day| Calendar::Standard.day(year, month, day).unwrap();
        let first = day(1582, 10, 15);
        for (date, before) in [
            ((1582, 10, 4), 1),
            ((1582, 3, 1), 218),
            ((1500, 3, 1), 30_168),
            ((1500, 2, 29), 30_169),
            ((1, 1, 1), 577_737),
        ] {
            assert_eq!(first - day(date.0, date.1, date.2), before, "{date:?}");
        }
    }

    #[test]
    fn other_units_and_numbers_have_no_date() {
        for units in [
            "days",
            "days since",
            "days since yesterday",
            "days since 2000-13-01",
            "days since 2000-01-01 00:00 +02:00",
            "days since 2000-01-01 24:00",
            "days since -1-1-1",
            "fortnights since 2000-01-01",
            "months since 2000-01-01",
            "years since 2000-01-01",
        ] {
            assert_eq!(TimeCount::parse(units, Calendar::Standard), None, "{units}");
        }
        assert_eq!(Calendar::of(Some("360_day")), None);
        for number in [1e300, 1e15, -1e15, f64::NAN, 3e6, -800_000.0] {
            assert_eq!(
                date("days since 1970-01-01", Calendar::Gregorian, number),
                None,
                "{number}"
            );
        }
        assert_eq!(
            date("seconds since 2000-01-01", Calendar::Gregorian, 59.0),
            None
        );
    }
}
