//! Sizes on command lines and in output.

/// Parses a size in bytes: a number, with K, M, G or T for powers of 1024.
pub fn parse(text: &str) -> Result<u64, String> {
    let trimmed = text.trim_end_matches("iB").trim_end_matches('B');
    let (digits, shift) = match trimmed.char_indices().last() {
        Some((at, unit)) if unit.is_ascii_alphabetic() => {
            let shift = match unit.to_ascii_uppercase() {
                'K' => 10,
                'M' => 20,
                'G' => 30,
                'T' => 40,
                _ => return Err("units are K, M, G, T".to_string()),
            };
            (&trimmed[..at], shift)
        }
        _ => (trimmed, 0),
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| "a size is a number with K, M, G or T, such as 512M".to_string())?;
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| "too large".to_string())
}

/// Formats `n` bytes in a fitting unit: `1.2 MiB`.
pub fn show(n: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{n} B")
    } else {
        format!("{value:.1} {}", units[unit])
    }
}

/// Formats a number with separators: `1,234,567`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let groups = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| String::from_utf8_lossy(group));
    groups.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_and_shown() {
        for (text, bytes) in [
            ("0", 0),
            ("512M", 512 << 20),
            ("1GiB", 1 << 30),
            ("3k", 3072),
            ("7B", 7),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in ["", "M", "1.5G", "-1", "99999999T", "1X", "1é"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert_eq!(
            [0, 999, 1000, 12_345_678].map(count),
            ["0", "999", "1,000", "12,345,678"]
        );
        assert_eq!(
            (show(512).as_str(), show(1 << 21).as_str()),
            ("512 B", "2.0 MiB")
        );
    }
}
