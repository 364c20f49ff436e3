//! Spellings that several headers share: types, numbers, names, steps. A dtype has no text of its
//! own: each header spells its own. This module knows no format.

use super::described::{Coordinates, Described, DescribedAxis, MetadataNumber};
use super::number::NumberType;
use std::fmt::Display;
use zarrfs_format::dtype::{DType, DTypeKind};
use zarrfs_format::metadata::ArrayMetadata;

/// Maximum number of coordinates that a header lists.
pub const MAX_LISTED: u64 = 1 << 20;

/// Maximum number of characters of a name or title.
const MAX_LINE: usize = 200;

/// The numeric types that other programs know, as kind and bytes.
const NUMBERS: [&str; 12] = [
    "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8", "c8", "c16",
];

/// A header of lines, each with the name of a field and its value.
pub struct FieldLines {
    text: String,
    between: &'static str,
}

impl FieldLines {
    /// Returns a header that begins with `first`; `between` stands between field and value.
    pub fn new(first: &str, between: &'static str) -> Self {
        let text = first.to_string();
        FieldLines { text, between }
    }

    /// Appends a line.
    pub fn add(&mut self, field: &str, value: impl Display) {
        self.text
            .push_str(&format!("{field}{}{value}\n", self.between));
    }

    /// Appends a line if the value is known.
    pub fn add_known(&mut self, field: &str, value: Option<impl Display>) {
        if let Some(value) = value {
            self.add(field, value);
        }
    }

    /// Returns all lines.
    pub fn into_text(self) -> String {
        self.text
    }
}

/// Returns the numeric type of a dtype as one of [`NUMBERS`]; Bools are bytes of 0 and 1. Half and
/// extended floats, which few programs know, and times, whose unit no header can state, have none.
pub fn number(dtype: &DType) -> Option<&'static str> {
    let letter = match dtype.kind() {
        DTypeKind::Bool | DTypeKind::UInt => 'u',
        DTypeKind::Int => 'i',
        DTypeKind::Float => 'f',
        DTypeKind::Complex => 'c',
        _ => return None,
    };
    let name = format!("{letter}{}", dtype.size());
    NUMBERS.into_iter().find(|number| *number == name)
}

/// Returns a format's own name or code for the dtype. `names` has one for each of [`NUMBERS`]: the
/// signed and unsigned integers of 1, 2, 4 and 8 bytes, then floats and complex numbers. An empty
/// name or 0 stands for a type that the format lacks.
pub fn type_name<T: Copy + Default + PartialEq>(
    dtype: &DType,
    names: [T; NUMBERS.len()],
) -> Option<T> {
    let number = number(dtype)?;
    let (_, name) = NUMBERS
        .into_iter()
        .zip(names)
        .find(|(known, _)| *known == number)?;
    (name != T::default()).then_some(name)
}

/// Returns `big` or `little`.
pub fn byte_order(dtype: &DType) -> &'static str {
    if dtype.is_big_endian() {
        "big"
    } else {
        "little"
    }
}

/// Returns whether there are items, and a C int can count those of each dimension.
pub fn is_countable(metadata: &ArrayMetadata) -> bool {
    metadata
        .shape
        .iter()
        .all(|len| (1..=i32::MAX as u64).contains(len))
}

/// Spells a float as C's strtod reads it.
pub fn float(x: f64) -> String {
    MetadataNumber::Float(x).to_string()
}

/// Spells floats with `between` between them.
pub fn floats(numbers: impl IntoIterator<Item = f64>, between: &str) -> String {
    list(numbers.into_iter().map(float), between)
}

/// Joins spelled items with `between`.
pub fn list<T: ToString>(items: impl IntoIterator<Item = T>, between: &str) -> String {
    items
        .into_iter()
        .map(|item| item.to_string())
        .collect::<Vec<_>>()
        .join(between)
}

/// Spells the lengths of the dimensions, the fastest first.
pub fn sizes(metadata: &ArrayMetadata, between: &str) -> String {
    list(metadata.shape.iter().rev(), between)
}

/// Puts text into one line: control characters become spaces, and only the first 200 characters
/// stay, since some headers repeat the text thousands of times.
pub fn line(text: &str) -> String {
    let line: String = text
        .chars()
        .take(MAX_LINE)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    line.trim().to_string()
}

/// Escapes text for XML, also within double quotes.
pub fn xml(text: &str) -> String {
    // XML cannot represent these characters
    let text: String = text
        .chars()
        .map(|c| {
            if matches!(c, '\0'..='\x08' | '\x0b' | '\x0c' | '\x0e'..='\x1f' | '\u{fffe}' | '\u{ffff}') {
                ' '
            } else {
                c
            }
        })
        .collect();
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// Returns the name of a dimension; `dim` and its number if it has none.
pub fn axis_name(array: &Described, axis: usize) -> String {
    let name = array
        .axes
        .get(axis)
        .and_then(|axis| axis.name.as_deref())
        .map(line);
    name.filter(|name| !name.is_empty())
        .unwrap_or_else(|| format!("dim{axis}"))
}

/// Returns the array's name in one line, never empty.
pub fn name(array: &Described) -> String {
    let name = line(&array.name);
    if name.is_empty() {
        "data".to_string()
    } else {
        name
    }
}

/// Returns a title in one line: the long name, or else the name.
pub fn title(array: &Described) -> String {
    let title = array
        .long_name
        .as_deref()
        .map(line)
        .filter(|title| !title.is_empty());
    title.unwrap_or_else(|| name(array))
}

/// Returns the first coordinate and the step of each dimension, in the array's order, with unit
/// steps from 0 for dimensions without regular coordinates. Returns `None` if no dimension has any.
pub fn steps(array: &Described) -> Option<Vec<(f64, f64)>> {
    let steps: Vec<_> = array.axes.iter().map(spacing).collect();
    let is_known = steps.iter().any(Option::is_some);
    is_known.then(|| {
        steps
            .into_iter()
            .map(|steps| steps.unwrap_or((0.0, 1.0)))
            .collect()
    })
}

/// Returns the first coordinate and the step of a dimension with regular, finite coordinates.
pub fn spacing(axis: &DescribedAxis) -> Option<(f64, f64)> {
    match axis.coordinates {
        Coordinates::Regular { first, step }
            if first.is_finite() && step.is_finite() && step != 0.0 =>
        {
            Some((first, step))
        }
        _ => None,
    }
}

/// Returns the coordinate of the item `index` of a dimension, if it is known and finite.
pub fn coordinate(axis: &DescribedAxis, index: u64) -> Option<f64> {
    let coordinate = match &axis.coordinates {
        Coordinates::Unknown => None,
        Coordinates::Regular { first, step } => Some(at(*first, *step, index)),
        Coordinates::Irregular { values } => values.get(usize::try_from(index).ok()?).copied(),
    };
    coordinate.filter(|x| x.is_finite())
}

/// Returns the coordinate of the item `index` at equal steps.
pub fn at(first: f64, step: f64, index: u64) -> f64 {
    let x = first + step * index as f64;
    if x.abs() < step.abs() * 1e-9 {
        0.0
    } else {
        rounded(x)
    }
}

/// Drops the last digits of a sum, which hold rounding errors.
pub fn rounded(x: f64) -> f64 {
    if x.fract() == 0.0 {
        x
    } else {
        format!("{x:.14e}").parse().unwrap_or(x)
    }
}

/// Returns the missing value as an item of the array holds it; `None` if no item can.
pub fn nodata(array: &Described) -> Option<MetadataNumber> {
    item(&array.metadata.dtype, array.nodata?)
}

/// Returns a number as an item of the dtype holds it; `None` if no item can.
pub fn item(dtype: &DType, nodata: MetadataNumber) -> Option<MetadataNumber> {
    let float = nodata.as_f64();
    match (dtype.kind(), dtype.size()) {
        (DTypeKind::Float, 4) => {
            let stored = float as f32;
            let is_held = stored.is_finite() || !float.is_finite();
            is_held.then(|| MetadataNumber::Float(stored.into()))
        }
        (DTypeKind::Float, 8) => Some(MetadataNumber::Float(float)),
        (DTypeKind::Int | DTypeKind::UInt, _) => {
            let whole = match nodata {
                MetadataNumber::Int(n) => n,
                // a float in the range of 64 bits
                MetadataNumber::Float(x) if x.fract() == 0.0 && x.abs() < 2e19 => x as i128,
                MetadataNumber::Float(_) => return None,
            };
            let is_held = NumberType::of(dtype)?.integer_bits(whole).is_some();
            is_held.then_some(MetadataNumber::Int(whole))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_have_the_digits_of_their_parts() {
        assert_eq!([0, 2, 3].map(|i| at(-0.3, 0.1, i)), [-0.3, -0.1, 0.0]);
        assert_eq!(at(0.1, 0.1, 2), 0.3);
        assert_eq!(at(1_700_000_000_000_000.0, 1.0, 3), 1_700_000_000_000_003.0);
        assert_eq!(rounded(10.1 - 0.05), 10.05);
    }

    #[test]
    fn numbers_are_spelled_as_c_reads_them() {
        assert_eq!(
            [0.1, -9999.0, 1e20, 1e-7, 0.0, -0.5].map(float),
            ["0.1", "-9999", "1e20", "1e-7", "0", "-0.5"]
        );
    }

    #[test]
    fn text_is_escaped_and_cut() {
        assert_eq!(
            xml("a<b> & \"c\"\0\u{b}é\n"),
            "a&lt;b&gt; &amp; &quot;c&quot;  é\n"
        );
        assert_eq!(line(" a\tb\u{7f}\r\n"), "a b");
        assert_eq!(line(&"é".repeat(300)).chars().count(), 200);
    }
}
