//! Dates of `datetime64` as NumPy's `datetime_as_string` writes them: ISO 8601, as exact as the
//! unit.

use super::super::calendar::{Cycle, numpy_unit};
use std::fmt::{self, Write};

/// The unit in which a `datetime64` counts, such as `25s`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimeUnit {
    count: i64,
    kind: UnitKind,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum UnitKind {
    Years,
    Months,
    Days,
    Hours,
    Minutes,
    /// A second is 10 to this power of units.
    Seconds(u32),
}

impl TimeUnit {
    /// Returns the unit of a type string such as `<M8[ns]`; `None` if it has none.
    pub fn of(dtype: &str) -> Option<Self> {
        let (count, word) = numpy_unit(dtype)?;
        let kind = match word {
            "Y" => UnitKind::Years,
            "M" => UnitKind::Months,
            "W" | "D" => UnitKind::Days,
            "h" => UnitKind::Hours,
            "m" => UnitKind::Minutes,
            "s" => UnitKind::Seconds(0),
            "ms" => UnitKind::Seconds(3),
            "us" | "\u{3bc}s" | "\u{b5}s" => UnitKind::Seconds(6),
            "ns" => UnitKind::Seconds(9),
            "ps" => UnitKind::Seconds(12),
            "fs" => UnitKind::Seconds(15),
            "as" => UnitKind::Seconds(18),
            _ => return None,
        };
        let count = if word == "W" {
            count.checked_mul(7)?
        } else {
            count
        };
        Some(TimeUnit { count, kind })
    }

    /// Writes the date of a number of units since 1970.
    pub fn write(self, number: i64, out: &mut String) {
        let number = i128::from(number) * i128::from(self.count);
        // writing to a String cannot fail
        let _ = self.kind.write(number, out);
    }
}

impl UnitKind {
    fn write(self, number: i128, out: &mut String) -> fmt::Result {
        let per_day = match self {
            UnitKind::Years => return write!(out, "{:04}", number + 1970),
            UnitKind::Months => {
                let months = number + 1970 * 12;
                return write!(
                    out,
                    "{:04}-{:02}",
                    months.div_euclid(12),
                    months.rem_euclid(12) + 1
                );
            }
            UnitKind::Days => 1,
            UnitKind::Hours => 24,
            UnitKind::Minutes => 1440,
            UnitKind::Seconds(digits) => 86_400 * 10i128.pow(digits),
        };
        let (year, month, day) = Cycle::Gregorian.date(number.div_euclid(per_day));
        write!(out, "{year:04}-{month:02}-{day:02}")?;
        let part = number.rem_euclid(per_day);
        match self {
            UnitKind::Hours => write!(out, "T{part:02}"),
            UnitKind::Minutes => write!(out, "T{:02}:{:02}", part / 60, part % 60),
            UnitKind::Seconds(digits) => {
                let per_second = 10i128.pow(digits);
                let second = part / per_second;
                let [hour, minute, second] = [second / 3600, second / 60 % 60, second % 60];
                write!(out, "T{hour:02}:{minute:02}:{second:02}")?;
                if digits > 0 {
                    let fraction = part % per_second;
                    write!(out, ".{fraction:0width$}", width = digits as usize)?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
