//! Durations on command lines and in output.

use std::time::Duration;

/// The longest duration, ten years: clocks and system calls accept some centuries at most.
const MAX: Duration = Duration::from_secs(3653 * 24 * 3600);

const WRONG: &str = "a duration is a number with ms, s, m or h, such as 500ms";

/// Parses a duration: a number with ms, s, m or h.
pub fn parse(text: &str) -> Result<Duration, String> {
    let unit = text.find(|c: char| c.is_ascii_alphabetic()).ok_or(WRONG)?;
    let seconds = match &text[unit..] {
        "ms" => 0.001,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return Err(WRONG.to_string()),
    };
    let number: f64 = text[..unit].parse().map_err(|_| WRONG)?;
    let duration = Duration::try_from_secs_f64(number * seconds).map_err(|_| WRONG)?;
    match duration {
        Duration::ZERO => Err("a duration must not be zero".to_string()),
        long if long > MAX => Err("a duration must not be longer than ten years".to_string()),
        duration => Ok(duration),
    }
}

/// Formats nanoseconds in a fitting unit: `350 ms`. Up to two minutes or hours it is the smaller,
/// more precise unit.
pub fn show(nanoseconds: f64) -> String {
    let units = [
        ("ns", 1e3, 1e3),
        ("us", 1e3, 1e3),
        ("ms", 1e3, 1e3),
        ("s", 120.0, 60.0),
        ("min", 120.0, 60.0),
    ];
    let mut value = nanoseconds;
    let mut unit = "h";
    for (name, below, next) in units {
        if value.abs() < below {
            unit = name;
            break;
        }
        value /= next;
    }
    let decimals = usize::from(unit != "ns" && value.abs() < 100.0);
    format!("{value:.decimals$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed_and_shown() {
        for (text, ms) in [
            ("1s", 1000),
            ("500ms", 500),
            ("2m", 120_000),
            ("0.5s", 500),
            ("1h", 3_600_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in [
            "", "1", "s", "0s", "-1s", "1x", "nans", "1e400s", "1 day", "1é",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        let shown = [0.0, 999.0, 1500.0, 350e6, 2.5e9, 90e9, 150e9, 7.2e12].map(show);
        assert_eq!(
            shown,
            [
                "0 ns", "999 ns", "1.5 us", "350 ms", "2.5 s", "90.0 s", "2.5 min", "2.0 h"
            ]
        );
    }
}
