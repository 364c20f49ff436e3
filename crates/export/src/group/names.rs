//! Valid netCDF names: "Names should match the regular expression
//! `([a-zA-Z0-9_]|{MUTF8})([^\x00-\x1F/\x7F-\xFF]|{MUTF8})*`", and "names that have trailing space
//! characters are also not permitted" (format specification, "Note on names"), which also wants
//! them "normalized according to Unicode NFC". This module knows nothing of arrays.

use icu_normalizer::ComposingNormalizerBorrowed;
use std::collections::HashMap;

/// Maximum length of a name in bytes: one less than `NC_MAX_NAME` of netcdf-c, since ncdump does
/// not find an attribute with a name of 256 bytes, and netCDF4 reads past the end of such a
/// dimension's.
pub const MAX_NAME: usize = 255;

/// The names given so far in one namespace of a file (variables, dimensions, or the attributes of
/// one list), each with the number of times that it was requested.
#[derive(Default)]
pub struct UniqueNames(HashMap<String, u64>);

impl UniqueNames {
    /// Returns a legal, unique netCDF name based on `wanted`: the first request gets the name,
    /// later ones a numbered suffix.
    pub fn give(&mut self, wanted: &str) -> String {
        let name = legal(wanted);
        let mut free = name.clone();
        while self.has(&free) {
            let asked = self.0.entry(name.clone()).or_default();
            *asked += 1;
            free = with_suffix(&name, &asked.to_string());
        }
        self.0.insert(free.clone(), 1);
        free
    }

    /// Returns whether the name was given.
    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }
}

/// Returns the name with invalid characters replaced by `_`.
pub fn legal(name: &str) -> String {
    let name = ComposingNormalizerBorrowed::new_nfc().normalize(name);
    let mut good = name.replace(|c: char| c.is_ascii_control() || c == '/', "_");
    if !good.starts_with(|c: char| !c.is_ascii() || c.is_ascii_alphanumeric() || c == '_') {
        good.insert(0, '_');
    }
    cut(&mut good, MAX_NAME);
    let kept = good.trim_end_matches(' ').len();
    let spaces = good.len() - kept;
    good.truncate(kept);
    good.extend(std::iter::repeat_n('_', spaces));
    good
}

/// Returns `name_suffix`, with the name shortened if the result would be too long.
pub fn with_suffix(name: &str, suffix: &str) -> String {
    let mut name = name.to_string();
    cut(&mut name, MAX_NAME.saturating_sub(suffix.len() + 1));
    format!("{name}_{suffix}")
}

/// Cuts the name between two characters to at most `len` bytes.
fn cut(name: &mut String, len: usize) {
    if name.len() > len {
        let end = (0..=len).rev().find(|&end| name.is_char_boundary(end));
        name.truncate(end.unwrap_or(0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_names_stay_and_others_are_corrected() {
        for (name, expected) in [
            ("air temperature (2 m)", "air temperature (2 m)"),
            ("2m", "2m"),
            ("_x.y@z+w-v", "_x.y@z+w-v"),
            ("größe", "größe"),
            ("gro\u{308}\u{df}e", "gr\u{f6}\u{df}e"),
            ("a/b", "a_b"),
            ("x  ", "x__"),
            ("", "_"),
            (".hidden", "_.hidden"),
            ("-1", "_-1"),
            ("tab\tdel\x7f", "tab_del_"),
        ] {
            assert_eq!(legal(name), expected);
        }
        let long = legal(&"ä".repeat(200));
        assert_eq!((long.len(), long.chars().count()), (254, 127));
        assert_eq!(with_suffix(&long, "37").len(), 255);
    }

    #[test]
    fn a_name_is_given_once() {
        let mut names = UniqueNames::default();
        assert_eq!(
            ["a/b", "a_b", "a_b", "a_b_2"].map(|name| names.give(name)),
            ["a_b", "a_b_2", "a_b_3", "a_b_2_2"]
        );
        assert!(names.has("a_b_3") && !names.has("a/b"));
    }
}
