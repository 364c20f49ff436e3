//! Units of length and time in the spellings of UDUNITS, which CF and OME-NGFF use, and the symbols
//! that other formats have for them. This module knows no format.

use super::described::{Crs, CrsKind};
use super::spelling;

/// No prefix and SI's prefixes, with their symbols and powers of ten.
const PREFIXES: [(&str, &str, i32); 21] = [
    ("", "", 0),
    ("yotta", "Y", 24),
    ("zetta", "Z", 21),
    ("exa", "E", 18),
    ("peta", "P", 15),
    ("tera", "T", 12),
    ("giga", "G", 9),
    ("mega", "M", 6),
    ("kilo", "k", 3),
    ("hecto", "h", 2),
    ("deca", "da", 1),
    ("deci", "d", -1),
    ("centi", "c", -2),
    ("milli", "m", -3),
    ("micro", "\u{b5}", -6),
    ("nano", "n", -9),
    ("pico", "p", -12),
    ("femto", "f", -15),
    ("atto", "a", -18),
    ("zepto", "z", -21),
    ("yocto", "y", -24),
];

/// A unit of length or time.
#[derive(Clone, Debug, PartialEq)]
pub struct Unit {
    /// The symbol, as the enumerations `UnitsLength` and `UnitsTime` of OME's schema spell it.
    pub symbol: String,
    /// The size of the unit in meters or seconds.
    pub size: f64,
}

/// Parses a unit of length: `micrometer`, `um`, `nanometers`, `inch`.
pub fn length(text: &str) -> Option<Unit> {
    let (symbol, size) = match singular(text) {
        "angstrom" | "\u{c5}" | "\u{212b}" => ("\u{c5}", 1e-10),
        "micron" => ("\u{b5}m", 1e-6),
        "inch" | "inche" | "in" => ("in", 0.0254),
        "foot" | "feet" | "ft" => ("ft", 0.3048),
        "yard" | "yd" => ("yd", 0.9144),
        "mile" | "mi" => ("mi", 1609.344),
        "parsec" | "pc" => ("pc", 3.085_677_581_491_367e16),
        word => return prefixed(word, &["meter", "metre"], "m"),
    };
    Some(Unit {
        symbol: symbol.to_string(),
        size,
    })
}

/// Parses a unit of time, also that of a count since a date: `second`, `ms`, `days since
/// 2000-01-01`. Months and years, whose lengths differ, are none.
pub fn time(text: &str) -> Option<Unit> {
    let word = text.split_once(" since ").map_or(text, |(word, _)| word);
    let (symbol, size) = match singular(word) {
        "minute" | "min" => ("min", 60.0),
        "hour" | "hr" | "h" => ("h", 3600.0),
        "day" | "d" => ("d", 86_400.0),
        "sec" => ("s", 1.0),
        "msec" => ("ms", 1e-3),
        "usec" => ("\u{b5}s", 1e-6),
        word => return prefixed(word, &["second"], "s"),
    };
    Some(Unit {
        symbol: symbol.to_string(),
        size,
    })
}

/// Returns whether the unit is a radian.
pub fn is_radian(text: &str) -> bool {
    matches!(singular(text), "radian" | "rad")
}

/// Returns the number of units of x and y of a reference system in a unit of an axis; 1 if one of
/// them is not known. Systems of which only a code is known count meters if the axis is metric.
pub fn in_system(crs: Option<&Crs>, unit: Option<&str>) -> f64 {
    let Some((crs, unit)) = crs.zip(unit) else {
        return 1.0;
    };
    if let Some(height) = crs.perspective_height
        && is_radian(unit)
    {
        return height;
    }
    let Some(length) = length(unit).filter(|_| crs.kind == CrsKind::Projected) else {
        return 1.0;
    };
    let is_metric = length.symbol.ends_with('m');
    match crs.unit.or(is_metric.then_some(1.0)) {
        Some(meters) => length.size / meters,
        None => 1.0,
    }
}

/// Drops the ending of a plural. Symbols keep theirs.
fn singular(text: &str) -> &str {
    let text = text.trim();
    if text.chars().count() > 3 {
        text.trim_end_matches('s')
    } else {
        text
    }
}

/// Parses one of `names`, or `symbol`, behind an optional prefix.
fn prefixed(word: &str, names: &[&str], symbol: &str) -> Option<Unit> {
    let lower = word.to_ascii_lowercase();
    let by_name = names.iter().find_map(|name| {
        let prefix = lower.strip_suffix(name)?;
        PREFIXES.into_iter().find(|(known, ..)| *known == prefix)
    });
    let by_symbol = || {
        let prefix = match word.strip_suffix(symbol)? {
            "u" | "\u{3bc}" => "\u{b5}",
            prefix => prefix,
        };
        PREFIXES.into_iter().find(|(_, known, _)| *known == prefix)
    };
    let (_, prefix, power) = by_name.or_else(by_symbol)?;
    Some(Unit {
        symbol: format!("{prefix}{symbol}"),
        size: spelling::rounded(10f64.powi(power)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_of_length() {
        for (text, symbol, size) in [
            ("micrometer", "µm", 1e-6),
            ("micrometers", "µm", 1e-6),
            ("Micrometre", "µm", 1e-6),
            ("um", "µm", 1e-6),
            ("\u{3bc}m", "µm", 1e-6),
            ("microns", "µm", 1e-6),
            ("m", "m", 1.0),
            ("metres", "m", 1.0),
            ("Mm", "Mm", 1e6),
            ("mm", "mm", 1e-3),
            ("decameter", "dam", 10.0),
            ("nm", "nm", 1e-9),
            ("angstrom", "Å", 1e-10),
            ("inches", "in", 0.0254),
            ("yoctometer", "ym", 1e-24),
        ] {
            let symbol = symbol.to_string();
            assert_eq!(length(text), Some(Unit { symbol, size }), "{text}");
        }
        for text in ["", "pixel", "degrees_north", "hPa", "s", "xm", "MM"] {
            assert_eq!(length(text), None, "{text}");
        }
    }

    #[test]
    fn units_of_time() {
        for (text, symbol, size) in [
            ("second", "s", 1.0),
            ("s", "s", 1.0),
            ("milliseconds", "ms", 1e-3),
            ("ms", "ms", 1e-3),
            ("usec", "µs", 1e-6),
            ("us", "µs", 1e-6),
            ("minutes", "min", 60.0),
            ("hours since 2000-01-01 00:00:00", "h", 3600.0),
            ("days", "d", 86_400.0),
            ("attosecond", "as", 1e-18),
        ] {
            let symbol = symbol.to_string();
            assert_eq!(time(text), Some(Unit { symbol, size }), "{text}");
        }
        for text in ["", "months since 2000-01-01", "year", "m", "K"] {
            assert_eq!(time(text), None, "{text}");
        }
    }
}
