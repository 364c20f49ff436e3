//! Dates of CF's time coordinates, to the microsecond: `hours since 1900-01-01 00:00` in any
//! calendar (CF conventions, "Time Coordinate"). This module knows no format.

use super::units;
use std::fmt::Write;

/// Microseconds of a day.
const DAY: i128 = 86_400_000_000;

/// Microseconds of a minute.
const MINUTE: i128 = 60_000_000;

/// The cycle of days of a calendar.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cycle {
    /// Leap days by the Gregorian rule, also before 1582.
    Gregorian,
    /// A leap day each fourth year.
    Julian,
    /// Julian before 1582-10-15, Gregorian from then on.
    Mixed,
    /// No leap days.
    NoLeap,
    /// A leap day each year.
    AllLeap,
    /// Months of 30 days.
    Days360,
}

/// The days before each month of a year without and with a leap day, and of months of 30 days.
const MONTHS: [[i128; 13]; 3] = [
    [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365],
    [0, 31, 60, 91, 121, 152, 182, 213, 244, 274, 305, 335, 366],
    [0, 30, 60, 90, 120, 150, 180, 210, 240, 270, 300, 330, 360],
];

/// The number of 1582-10-15, the first day of the Gregorian part of [`Cycle::Mixed`].
const FIRST_GREGORIAN: i128 = -141_427;

impl Cycle {
    /// Returns the cycle of CF's calendar `name`.
    pub fn of(name: &str) -> Option<Self> {
        Some(match name.to_ascii_lowercase().as_str() {
            "standard" | "gregorian" => Cycle::Mixed,
            "proleptic_gregorian" => Cycle::Gregorian,
            "julian" => Cycle::Julian,
            "noleap" | "365_day" => Cycle::NoLeap,
            "all_leap" | "366_day" => Cycle::AllLeap,
            "360_day" => Cycle::Days360,
            _ => return None,
        })
    }

    /// Returns the date with this number: year, month and day. Those of Gregorian and Julian dates
    /// count from 1970-01-01 of the Gregorian calendar, others from year 0.
    pub fn date(self, day: i128) -> (i128, i128, i128) {
        match self {
            Cycle::Gregorian => {
                // a year begins with March, so that the leap day comes last (a cycle has 400 years)
                let cycle = (day + 719_468).div_euclid(146_097);
                let day = (day + 719_468).rem_euclid(146_097);
                let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
                from_march(
                    cycle * 400 + year,
                    day - (365 * year + year / 4 - year / 100),
                )
            }
            Cycle::Julian => {
                let cycle = (day + 719_470).div_euclid(1461);
                let day = (day + 719_470).rem_euclid(1461);
                let year = (day - day / 1460) / 365;
                from_march(cycle * 4 + year, day - 365 * year)
            }
            Cycle::Mixed if day < FIRST_GREGORIAN => Cycle::Julian.date(day),
            Cycle::Mixed => Cycle::Gregorian.date(day),
            Cycle::NoLeap | Cycle::AllLeap | Cycle::Days360 => {
                let months = self.months();
                let year = day.div_euclid(months[12]);
                let day = day.rem_euclid(months[12]);
                let month = months.partition_point(|before| *before <= day).clamp(1, 12);
                (year, month as i128, day - months[month - 1] + 1)
            }
        }
    }

    /// Returns the number of a date, as [`Cycle::date`] counts; `None` if the calendar does not
    /// have the date.
    fn day(self, year: i128, month: i128, day: i128) -> Option<i128> {
        let number = match self {
            Cycle::Gregorian => {
                let (year, day) = since_march(year, month, day);
                365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day
                    - 719_468
            }
            Cycle::Julian => {
                let (year, day) = since_march(year, month, day);
                365 * year + year.div_euclid(4) + day - 719_470
            }
            Cycle::Mixed if (year, month, day) < (1582, 10, 15) => {
                Cycle::Julian.day(year, month, day)?
            }
            Cycle::Mixed => Cycle::Gregorian.day(year, month, day)?,
            Cycle::NoLeap | Cycle::AllLeap | Cycle::Days360 => {
                let months = self.months();
                year * months[12] + months.get(usize::try_from(month - 1).ok()?)? + day - 1
            }
        };
        (self.date(number) == (year, month, day)).then_some(number)
    }

    fn months(self) -> [i128; 13] {
        let [common, leap, equal] = MONTHS;
        match self {
            Cycle::AllLeap => leap,
            Cycle::Days360 => equal,
            _ => common,
        }
    }

    /// Returns whether dates of a year are written: four digits, and no year 0 where historians
    /// have none.
    fn has_year(self, year: i128) -> bool {
        let has_no_0 = matches!(self, Cycle::Mixed | Cycle::Julian);
        (i128::from(has_no_0)..=9999).contains(&year)
    }
}

/// Returns the year that begins with the March before a date, and the days since then.
fn since_march(year: i128, month: i128, day: i128) -> (i128, i128) {
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    (year, (153 * month + 2) / 5 + day - 1)
}

/// Returns the date of a day in a year that begins with March.
fn from_march(year: i128, day: i128) -> (i128, i128, i128) {
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    if month < 10 {
        (year, month + 3, day)
    } else {
        (year + 1, month - 9, day)
    }
}

/// A date and a time of day.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moment {
    /// The year, the month and the day.
    pub date: (i128, i128, i128),
    /// Microseconds since midnight.
    micros: i128,
}

impl Moment {
    /// Returns whether it is no whole second.
    pub fn has_fraction(&self) -> bool {
        self.micros % 1_000_000 != 0
    }

    /// Returns the hour and the minute.
    pub fn hour_and_minute(&self) -> (i128, i128) {
        let minutes = self.micros / MINUTE;
        (minutes / 60, minutes % 60)
    }

    /// Returns the second.
    pub fn second(&self) -> i128 {
        self.micros / 1_000_000 % 60
    }

    /// Writes `2000-01-31T12:00:00`, or with `fraction` `2000-01-31T12:00:00.000000`.
    pub fn write(&self, fraction: bool, out: &mut String) {
        let (year, month, day) = self.date;
        let (hour, minute) = self.hour_and_minute();
        let second = self.second();
        // writing to a String cannot fail
        let _ = write!(
            out,
            "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}"
        );
        if fraction {
            let _ = write!(out, ".{:06}", self.micros % 1_000_000);
        }
    }
}

/// The meaning of the numbers of a time coordinate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimeScale {
    cycle: Cycle,
    /// Length of the unit in microseconds.
    unit: f64,
    /// The epoch in microseconds, of days as [`Cycle::date`] counts them.
    epoch: i128,
}

impl TimeScale {
    /// Parses `UNIT since DATE` in CF's calendar `calendar`; `None` if the calendar does not have
    /// the date, and for months and years whose lengths differ.
    pub fn parse(units: &str, calendar: &str) -> Option<Self> {
        let (unit, since) = units.split_once(" since ")?;
        let cycle = Cycle::of(calendar)?;
        let days = match (unit.trim().to_ascii_lowercase().as_str(), cycle) {
            ("month" | "months", Cycle::Days360) => Some(30.0),
            ("common_year" | "common_years", Cycle::NoLeap) => Some(365.0),
            _ => None,
        };
        let unit = match days {
            Some(days) => days * DAY as f64,
            None => units::time(unit)?.size * 1e6,
        };
        Self::since(since, cycle, unit)
    }

    /// Returns the times since a date in units of so many microseconds; `None` if the calendar does
    /// not have the date.
    pub fn since(date: &str, cycle: Cycle, unit: f64) -> Option<Self> {
        let ([year, month, day], time) = parse_date(date)?;
        let day = cycle.day(year.into(), month.into(), day.into())?;
        let micros = (parse_time(time)? * 6e7).round() as i128;
        let epoch = day * DAY + micros;
        cycle
            .has_year(year.into())
            .then_some(TimeScale { cycle, unit, epoch })
    }

    /// Returns the same scale in units that are `factor` times as long.
    pub fn times(self, factor: f64) -> Self {
        TimeScale {
            unit: self.unit * factor,
            ..self
        }
    }

    /// Returns the day of the year, from 1 on.
    pub fn day_of_year(&self, moment: &Moment) -> i128 {
        let (year, month, day) = moment.date;
        let number = |month, day| self.cycle.day(year, month, day);
        number(month, day)
            .zip(number(1, 1))
            .map_or(1, |(day, first)| day - first + 1)
    }

    /// Returns the time of an integer; `None` outside the years that four digits can say.
    pub fn of_int(&self, number: i128) -> Option<Moment> {
        if self.unit >= 1.0 && self.unit.fract() == 0.0 {
            self.moment(number.checked_mul(self.unit as i128)?)
        } else {
            self.of_float(number as f64)
        }
    }

    /// Returns the time of a float to the microsecond, or to the millisecond that the float cannot
    /// tell from it.
    pub fn of_float(&self, number: f64) -> Option<Moment> {
        self.moment(self.micros(number)?)
    }

    /// Returns the microseconds since the epoch of a float.
    fn micros(&self, number: f64) -> Option<i128> {
        // more than the microseconds of 10,000 years on both sides of an epoch
        if !(number * self.unit).is_finite() || (number * self.unit).abs() > 1e18 {
            return None;
        }
        // the product of the whole number would round to more than a microsecond
        let whole = if self.unit < 1.0 { 0.0 } else { number.trunc() };
        let part = (number - whole) * self.unit;
        let micros = whole as i128 * self.unit as i128 + part.round_ties_even() as i128;
        // half of the distance to the next float, at most
        let error = (number.abs() * f64::EPSILON / 2.0 * self.unit).round() as i128;
        let rounded = (micros + 500).div_euclid(1000) * 1000;
        Some(if (rounded - micros).abs() <= error {
            rounded
        } else {
            micros
        })
    }

    fn moment(&self, micros: i128) -> Option<Moment> {
        let micros = micros.checked_add(self.epoch)?;
        let date = self.cycle.date(micros.div_euclid(DAY));
        self.cycle.has_year(date.0).then_some(Moment {
            date,
            micros: micros.rem_euclid(DAY),
        })
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

/// Parses `00:00:00Z`, `6:30 UTC`, `12:00 +02:00` or nothing; returns minutes since midnight in
/// UTC.
fn parse_time(text: &str) -> Option<f64> {
    let (time, zone) = text.split_at(text.find(['+', '-']).unwrap_or(text.len()));
    let zone = parse_zone(zone.trim())?;
    let time = ["UTC", "GMT", "Z"]
        .iter()
        .fold(time.trim(), |time, zone| time.trim_end_matches(zone))
        .trim();
    let mut parts = time
        .split(':')
        .map(|part| if part.is_empty() { "0" } else { part });
    let hour: u32 = parts.next().unwrap_or("0").parse().ok()?;
    let minute: u32 = parts.next().unwrap_or("0").parse().ok()?;
    let second: f64 = parts.next().unwrap_or("0").parse().ok()?;
    let is_valid =
        parts.next().is_none() && hour < 24 && minute < 60 && (0.0..60.0).contains(&second);
    is_valid.then(|| f64::from(hour * 60 + minute) + second / 60.0 - zone)
}

/// Parses `+02:00`, `-0330`, `+02` or nothing; returns minutes. Programs disagree about hours of
/// one digit, unless they are zero.
fn parse_zone(text: &str) -> Option<f64> {
    let sign = match text.chars().next() {
        None => return Some(0.0),
        Some('-') => -1.0,
        Some(_) => 1.0,
    };
    let digits: String = text.chars().skip(1).filter(|c| *c != ':').collect();
    let (hours, minutes) = match digits.as_str() {
        "0" | "000" => ("0", "0"),
        digits if digits.contains(|c: char| !c.is_ascii_digit()) => return None,
        digits if digits.len() == 2 => (digits, "0"),
        digits if digits.len() == 4 => digits.split_at(2),
        _ => return None,
    };
    let [hours, minutes] = [hours, minutes].map(|part| part.parse::<u32>().ok());
    let total = f64::from(hours? * 60 + minutes.filter(|minutes| *minutes < 60)?);
    (total < 1440.0).then_some(sign * total)
}

/// Splits the unit of a time type of NumPy, such as `<M8[25s]`, into a count and the word for a
/// unit; `None` if the type has no unit.
pub fn numpy_unit(dtype: &str) -> Option<(i64, &str)> {
    let (_, unit) = dtype.strip_suffix(']')?.split_once('[')?;
    let word = unit.trim_start_matches(|c: char| c.is_ascii_digit());
    match unit.strip_suffix(word)? {
        "" => Some((1, word)),
        digits => Some((digits.parse().ok()?, word)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(units: &str, calendar: &str, number: f64) -> String {
        let mut text = String::new();
        if let Some(moment) =
            TimeScale::parse(units, calendar).and_then(|scale| scale.of_float(number))
        {
            moment.write(moment.has_fraction(), &mut text);
        }
        text
    }

    /// What cftime 1.6 says.
    #[test]
    fn times_agree_with_cftime() {
        for (units, calendar, number, expected) in [
            (
                "days since 2000-01-01",
                "standard",
                59.5,
                "2000-02-29T12:00:00",
            ),
            (
                "days since 2000-01-01",
                "noleap",
                59.5,
                "2000-03-01T12:00:00",
            ),
            (
                "days since 2001-01-01",
                "all_leap",
                59.0,
                "2001-02-29T00:00:00",
            ),
            (
                "days since 2000-01-01",
                "360_day",
                59.0,
                "2000-02-30T00:00:00",
            ),
            (
                "days since 0000-01-01",
                "365_day",
                366.0,
                "0001-01-02T00:00:00",
            ),
            (
                "hours since 1900-01-01 00:00:0.0",
                "gregorian",
                1_051_896.25,
                "2020-01-01T00:15:00",
            ),
            (
                "days since 1582-10-04",
                "standard",
                1.0,
                "1582-10-15T00:00:00",
            ),
            (
                "days since 1582-10-15",
                "standard",
                -1.0,
                "1582-10-04T00:00:00",
            ),
            (
                "days since 1582-10-04",
                "proleptic_gregorian",
                1.0,
                "1582-10-05T00:00:00",
            ),
            (
                "days since 1970-01-01",
                "julian",
                0.0,
                "1970-01-01T00:00:00",
            ),
            (
                "days since 1900-02-28",
                "julian",
                1.0,
                "1900-02-29T00:00:00",
            ),
            (
                "days since 1-1-1",
                "standard",
                577_737.0,
                "1582-10-15T00:00:00",
            ),
            (
                "seconds since 1970-01-01T00:00:00Z",
                "standard",
                -0.5,
                "1969-12-31T23:59:59.500000",
            ),
            (
                "milliseconds since 1970-01-01",
                "standard",
                1.0,
                "1970-01-01T00:00:00.001000",
            ),
            (
                "microseconds since 1970-01-01",
                "standard",
                1001.0,
                "1970-01-01T00:00:00.001001",
            ),
            (
                "days since 2000-01-01 00:00 +02:00",
                "standard",
                1.5,
                "2000-01-02T10:00:00",
            ),
            (
                "days since 2000-01-01 06:00 -0330",
                "standard",
                0.0,
                "2000-01-01T09:30:00",
            ),
            (
                "days since 2000-01-01T00:00+02",
                "standard",
                0.0,
                "1999-12-31T22:00:00",
            ),
            (
                "days since 2000-01-01 -10:00",
                "standard",
                0.0,
                "2000-01-01T10:00:00",
            ),
            (
                "months since 2000-01-15",
                "360_day",
                1.5,
                "2000-02-30T00:00:00",
            ),
            (
                "common_years since 2000-01-01",
                "noleap",
                1.5,
                "2001-07-02T12:00:00",
            ),
            // the nearest double is a microsecond later
            (
                "days since 2000-01-01",
                "366_day",
                172_871.325,
                "2472-04-29T07:48:00",
            ),
            (
                "nanoseconds since 1970-01-01",
                "standard",
                2600.0,
                "1970-01-01T00:00:00.000003",
            ),
        ] {
            assert_eq!(
                text(units, calendar, number),
                expected,
                "{number} {units} {calendar}"
            );
        }
    }

    #[test]
    fn each_day_follows_the_one_before() {
        for cycle in [
            Cycle::Gregorian,
            Cycle::Julian,
            Cycle::Mixed,
            Cycle::NoLeap,
            Cycle::AllLeap,
            Cycle::Days360,
        ] {
            let first = cycle.day(1500, 1, 1).unwrap();
            let mut last = cycle.date(first - 1);
            for day in first..first + 200_000 {
                let date = cycle.date(day);
                assert_eq!(
                    cycle.day(date.0, date.1, date.2),
                    Some(day),
                    "{cycle:?} {date:?}"
                );
                assert!(date > last, "{cycle:?}: {date:?} after {last:?}");
                last = date;
            }
        }
        assert_eq!(Cycle::Mixed.day(1582, 10, 15), Some(FIRST_GREGORIAN));
        assert_eq!(Cycle::Gregorian.date(0), (1970, 1, 1));
    }

    #[test]
    fn dates_that_are_none() {
        for (units, calendar) in [
            ("days", "standard"),
            ("days since 2001-02-29", "standard"),
            ("days since 2000-02-31", "360_day"),
            ("days since 2000-13-01", "noleap"),
            ("days since 1582-10-10", "standard"),
            ("days since 0000-01-01", "standard"),
            ("months since 2000-01-01", "standard"),
            ("months since 2000-01-01", "noleap"),
            ("common_years since 2000-01-01", "standard"),
            ("days since 2000-01-01 00:00 +2:00", "standard"),
            ("days since 2000-01-01 00:00 +02:60", "standard"),
            ("days since 2000-01-01 00:00 +24:00", "standard"),
            ("days since 2000-01-01 00:00 +é0", "standard"),
            ("days since 2000-01-01 00:00 ++2", "standard"),
            ("days since 2000-01-01", "martian"),
        ] {
            assert_eq!(
                TimeScale::parse(units, calendar),
                None,
                "{units} {calendar}"
            );
        }
        for number in [f64::NAN, f64::INFINITY, 1e300, 3e6, -800_000.0] {
            assert_eq!(
                text("days since 1970-01-01", "standard", number),
                "",
                "{number}"
            );
        }
        let scale = TimeScale::parse("days since 1970-01-01", "standard").unwrap();
        assert_eq!(
            (scale.of_int(i128::MAX), scale.of_int(i128::from(i64::MIN))),
            (None, None)
        );
    }

    /// The expected days up to 1582-10-15 are differences of Julian day numbers.
    #[test]
    fn julian_days_precede_the_gregorian_ones() {
        let day = |year, month, day| Cycle::Mixed.day(year, month, day).unwrap();
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
}
