//! Attributes as they come: of any type, and trusted in nothing.

use crate::util::json::{self, Map, Value};

/// The longest text taken over into a header, in bytes: far above real ones.
const MAX_TEXT: usize = 64 << 10;

/// A text in one line: headers are made of lines. None if it is empty.
pub fn line(attributes: &Map<String, Value>, name: &str) -> Option<String> {
    let text = json::text(attributes.get(name)?).filter(|text| text.len() <= MAX_TEXT)?;
    let line = match text.contains(char::is_control) {
        true => text
            .split(|c: char| c.is_control() || c == ' ')
            .filter(|word| !word.is_empty())
            .collect::<Vec<_>>()
            .join(" "),
        false => text.trim().to_string(),
    };
    (!line.is_empty()).then_some(line)
}

/// True if a name can stand in a line of a header.
pub fn is_shown(name: &str) -> bool {
    !name.is_empty() && name.len() <= MAX_TEXT && !name.contains(char::is_control)
}

/// A finite number, or the first one of a list: netCDF has no attribute that isn't a list.
pub fn number(attributes: &Map<String, Value>, name: &str) -> Option<f64> {
    json::float(first(attributes.get(name)?)?).filter(|number| number.is_finite())
}

/// The value itself, or the first one of a list.
pub fn first(value: &Value) -> Option<&Value> {
    value.as_array().map_or(Some(value), |list| list.first())
}

/// A list of texts.
pub fn texts(value: Option<&Value>) -> Option<Vec<String>> {
    value?.as_array()?.iter().map(|text| json::text(text).map(str::to_string)).collect()
}

/// A list of finite numbers.
pub fn numbers(value: Option<&Value>) -> Option<Vec<f64>> {
    value?.as_array()?.iter().map(|number| json::float(number).filter(|number| number.is_finite())).collect()
}
