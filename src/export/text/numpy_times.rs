//! Dates of `datetime64` as NumPy's `datetime_as_string` writes them: ISO 8601, as exact as the
//! unit.

use super::super::calendar::moments::Cycle;
use std::fmt::Write;

/// The unit in which a `datetime64` counts, such as `25s`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimeUnit {
    count: i64,
    kind: UnitKind,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum UnitKind {
    Months {
        per_unit: i64,
        shows_month: bool,
    },
    Days(i64),
    Hours,
    Minutes,
    /// A second is 10 to this power of units.
    Seconds(u32),
}

impl TimeUnit {
    /// Returns the unit of a type string such as `<M8[ns]`; `None` if it has none.
    pub fn of(dtype: &str) -> Option<Self> {
        let (_, unit) = dtype.strip_suffix(']')?.split_once('[')?;
        let word = unit.trim_start_matches(|c: char| c.is_ascii_digit());
        let count = match unit.strip_suffix(word)? {
            "" => 1,
            digits => digits.parse().ok()?,
        };
        let kind = match word {
            "Y" => UnitKind::Months {
                per_unit: 12,
                shows_month: false,
            },
            "M" => UnitKind::Months {
                per_unit: 1,
                shows_month: true,
            },
            "W" => UnitKind::Days(7),
            "D" => UnitKind::Days(1),
            "h" => UnitKind::Hours,
            "m" => UnitKind::Minutes,
            "s" => UnitKind::Seconds(0),
            "ms" => UnitKind::Seconds(3),
            "us" | "\u{3bc}s" => UnitKind::Seconds(6),
            "ns" => UnitKind::Seconds(9),
            "ps" => UnitKind::Seconds(12),
            "fs" => UnitKind::Seconds(15),
            "as" => UnitKind::Seconds(18),
            _ => return None,
        };
        Some(TimeUnit { count, kind })
    }

    /// Writes the date of a number of units since 1970.
    pub fn write(self, number: i64, out: &mut String) {
        let number = i128::from(number) * i128::from(self.count);
        // writing to a String cannot fail
        let _ = match self.kind {
            UnitKind::Months {
                per_unit,
                shows_month,
            } => {
                let months = number * i128::from(per_unit) + 1970 * 12;
                let year = months.div_euclid(12);
                let month = months.rem_euclid(12) + 1;
                if shows_month {
                    write!(out, "{year:04}-{month:02}")
                } else {
                    write!(out, "{year:04}")
                }
            }
            UnitKind::Days(per_unit) => {
                let (year, month, day) = Cycle::Gregorian.date(number * i128::from(per_unit));
                write!(out, "{year:04}-{month:02}-{day:02}")
            }
            UnitKind::Hours => {
                let (year, month, day) = Cycle::Gregorian.date(number.div_euclid(24));
                write!(
                    out,
                    "{year:04}-{month:02}-{day:02}T{:02}",
                    number.rem_euclid(24)
                )
            }
            UnitKind::Minutes => {
                let (year, month, day) = Cycle::Gregorian.date(number.div_euclid(1440));
                let minute = number.rem_euclid(1440);
                write!(
                    out,
                    "{year:04}-{month:02}-{day:02}T{:02}:{:02}",
                    minute / 60,
                    minute % 60
                )
            }
            UnitKind::Seconds(digits) => write_seconds(number, digits, out),
        };
    }
}

fn write_seconds(number: i128, digits: u32, out: &mut String) -> std::fmt::Result {
    let per_second = 10i128.pow(digits);
    let seconds = number.div_euclid(per_second);
    let fraction = number.rem_euclid(per_second);
    let (year, month, day) = Cycle::Gregorian.date(seconds.div_euclid(86_400));
    let second = seconds.rem_euclid(86_400);
    let [hour, minute, second] = [second / 3600, second / 60 % 60, second % 60];
    write!(
        out,
        "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}"
    )?;
    if digits > 0 {
        write!(out, ".{fraction:0width$}", width = digits as usize)
    } else {
        Ok(())
    }
}
