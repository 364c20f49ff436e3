//! Dates of CF's time coordinates: `hours since 1900-01-01 00:00` in a calendar (CF conventions, "Time Coordinate"). It
//! knows no format.

/// Days before each month of a year without a leap day.
const DAYS_BEFORE: [i64; 13] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365];

/// The first day that the standard calendar counts as Gregorian, from 1970-01-01: 1582-10-15.
const FIRST_GREGORIAN: i64 = -141_427;

/// The calendars whose days can be told here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calendar {
    /// Julian before 1582-10-15: `standard`, `gregorian`, and where nothing tells.
    Standard,
    /// `proleptic_gregorian`
    Gregorian,
    /// Without leap days: `noleap`, `365_day`.
    NoLeap,
}

/// A minute of a day.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Date {
    /// 1 and later.
    pub year: i64,
    /// 1 to 12.
    pub month: i64,
    /// 1 to 31.
    pub day: i64,
    /// From midnight, 0 to 1439.
    pub minute: i64,
}

/// What the numbers of a time coordinate count.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Count {
    calendar: Calendar,
    /// Minutes of one.
    minutes: f64,
    since: Date,
    /// Seconds after that minute.
    seconds: f64,
}

/// How far from a whole minute a date may lie, in minutes: what the rounding of counts leaves.
const TOLERANCE: f64 = 0.01;

impl Calendar {
    /// By CF's name for it.
    pub fn of(name: Option<&str>) -> Option<Self> {
        match name.unwrap_or("standard").to_ascii_lowercase().as_str() {
            "standard" | "gregorian" => Some(Calendar::Standard),
            "proleptic_gregorian" => Some(Calendar::Gregorian),
            "noleap" | "365_day" => Some(Calendar::NoLeap),
            _ => None,
        }
    }

    /// Days from a fixed one to the first of a year.
    fn year_begin(self, year: i64, julian: bool) -> i64 {
        let before = year - 1;
        match self {
            Calendar::NoLeap => before * 365,
            // the Julian calendar is two days behind in the year 1
            _ if julian => before * 365 + before.div_euclid(4) - 719_164,
            _ => before * 365 + before.div_euclid(4) - before.div_euclid(100) + before.div_euclid(400) - 719_162,
        }
    }

    fn days_before_month(self, year: i64, month: i64, julian: bool) -> Option<i64> {
        let before = DAYS_BEFORE.get(usize::try_from(month - 1).ok()?)?;
        let length = self.year_begin(year + 1, julian) - self.year_begin(year, julian);
        Some(before + if month > 2 { length - 365 } else { 0 })
    }

    fn day_number(self, date: &Date) -> Option<i64> {
        let day = |julian| {
            let before = self.days_before_month(date.year, date.month, julian)?;
            Some(self.year_begin(date.year, julian) + before + date.day - 1)
        };
        match self {
            Calendar::Standard if (date.year, date.month, date.day) < (1582, 10, 15) => day(true),
            _ => day(false),
        }
    }

    /// Year, month and day; None beyond the years 1 to 9999.
    fn date(self, day: i64) -> Option<(i64, i64, i64)> {
        let julian = self == Calendar::Standard && day < FIRST_GREGORIAN;
        // how far the guess below is off grows with the years
        if !(self.year_begin(1, julian)..self.year_begin(10_000, julian)).contains(&day) {
            return None;
        }
        // years of 365 days are a few years off at most
        let guess = (day - self.year_begin(1, julian)).div_euclid(365) + 1;
        let year = (guess - guess / 1000 - 8..=guess).rev().find(|year| self.year_begin(*year, julian) <= day)?;
        let rest = day - self.year_begin(year, julian);
        let month =
            (1..=12).rev().find(|month| self.days_before_month(year, *month, julian).is_some_and(|n| n <= rest))?;
        Some((year, month, rest - self.days_before_month(year, month, julian)? + 1))
    }
}

impl Count {
    /// What `UNIT since DATE` counts. `None` where the date is no such, or in another time zone than UTC, and of months and
    /// years: UDUNITS takes a month for 30.44 days, others for one of the calendar.
    pub fn parse(units: &str, calendar: Calendar) -> Option<Self> {
        let (unit, since) = units.split_once(" since ")?;
        let minutes = match unit.trim().to_ascii_lowercase().trim_end_matches('s') {
            "" | "sec" | "second" => 1.0 / 60.0,
            "min" | "minute" => 1.0,
            "h" | "hr" | "hour" => 60.0,
            "d" | "day" => 1440.0,
            _ => return None,
        };
        let (since, seconds) = parse_date(since.trim())?;
        calendar.day_number(&since).map(|_| Count { calendar, minutes, since, seconds })
    }

    /// Minutes of what is counted.
    pub fn minutes(&self) -> f64 {
        self.minutes
    }

    /// The date of a number. `None` of what is no whole minute, or beyond the years 1 to 9999.
    pub fn date(&self, number: f64) -> Option<Date> {
        if !number.is_finite() || number.abs() > 1e15 {
            return None;
        }
        let minutes = number * self.minutes + self.seconds / 60.0;
        let whole = minutes.round();
        if (minutes - whole).abs() > TOLERANCE {
            return None;
        }
        let minutes = whole as i64 + self.since.minute;
        let day = self.calendar.day_number(&self.since)? + minutes.div_euclid(1440);
        let (year, month, day) = self.calendar.date(day)?;
        Some(Date { year, month, day, minute: minutes.rem_euclid(1440) })
    }
}

/// `1900-1-1`, `1900-01-01T00:00:00Z`, `1900-01-01 6:30 UTC`: the minute, and the seconds after it.
fn parse_date(text: &str) -> Option<(Date, f64)> {
    let (date, time) = text.split_once(['T', ' ']).unwrap_or((text, ""));
    let mut numbers = date.split('-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (numbers.next()??, numbers.next()??, numbers.next()??);
    let time =
        ["UTC", "GMT", "Z", "+00:00", "+0:00"].iter().fold(time.trim(), |time, zone| time.trim_end_matches(zone));
    let mut parts = time.trim().split(':');
    let mut part = || match parts.next() {
        None | Some("") => Some(0),
        Some(part) => part.parse::<i64>().ok(),
    };
    let (hour, minute) = (part()?, part()?);
    let second = parts.next().map_or(Some(0.0), |second| second.parse::<f64>().ok())?;
    let in_range = (1..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && (0..24).contains(&hour)
        && (0..60).contains(&minute)
        && (0.0..60.0).contains(&second)
        && parts.next().is_none()
        && numbers.next().is_none();
    in_range.then_some((Date { year, month, day, minute: hour * 60 + minute }, second))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn date(units: &str, calendar: Calendar, number: f64) -> Option<(i64, i64, i64, i64)> {
        let date = Count::parse(units, calendar)?.date(number)?;
        Some((date.year, date.month, date.day, date.minute))
    }

    #[test]
    fn dates_as_cftime_tells_them() {
        use Calendar::{Gregorian, NoLeap, Standard};
        for (units, calendar, number, expected) in [
            ("days since 1970-01-01", Standard, 0.0, (1970, 1, 1, 0)),
            ("days since 2000-01-01", Standard, 59.5, (2000, 2, 29, 720)),
            ("days since 2000-01-01", NoLeap, 59.5, (2000, 3, 1, 720)),
            ("days since 1900-01-01", Standard, 59.0, (1900, 3, 1, 0)),
            ("hours since 1900-01-01 00:00:0.0", Standard, 1_051_896.0, (2020, 1, 1, 0)),
            ("hours since 1-1-1 00:00:0.0", Standard, 17_522_904.0, (2000, 1, 1, 0)),
            ("days since 0001-01-01", Gregorian, 730_119.0, (2000, 1, 1, 0)),
            ("days since 0001-01-01", NoLeap, 729_635.0, (2000, 1, 1, 0)),
            ("days since 1582-10-04", Standard, 1.0, (1582, 10, 15, 0)),
            ("days since 1582-10-04", Gregorian, 1.0, (1582, 10, 5, 0)),
            ("seconds since 1970-01-01T00:00:00Z", Standard, -60.0, (1969, 12, 31, 1439)),
            ("minutes since 2000-02-28 23:59 UTC", Gregorian, 1.0, (2000, 2, 29, 0)),
            ("seconds since 1970-01-01 00:00:45", Standard, 15.0, (1970, 1, 1, 1)),
            ("days since 1970-01-01", Gregorian, 2_932_896.0, (9999, 12, 31, 0)),
        ] {
            assert_eq!(date(units, calendar, number), Some(expected), "{number} {units}");
        }
    }

    #[test]
    fn each_day_follows_the_one_before() {
        for calendar in [Calendar::Standard, Calendar::Gregorian, Calendar::NoLeap] {
            let count = Count::parse("days since 1500-01-01", calendar).unwrap();
            let first = calendar.day_number(&count.since).unwrap();
            for number in 0..200_000 {
                let date = count.date(number.into()).unwrap();
                assert_eq!(calendar.day_number(&date), Some(first + i64::from(number)), "{date:?}");
            }
        }
    }

    #[test]
    fn what_tells_no_date() {
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
            assert_eq!(Count::parse(units, Calendar::Standard), None, "{units}");
        }
        assert_eq!(Calendar::of(Some("360_day")), None);
        for number in [1e300, 1e15, -1e15, f64::NAN, 3e6, -800_000.0] {
            assert_eq!(date("days since 1970-01-01", Calendar::Gregorian, number), None, "{number}");
        }
        assert_eq!(date("seconds since 2000-01-01", Calendar::Gregorian, 59.0), None);
    }
}
