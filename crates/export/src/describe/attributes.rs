//! Typed access to attributes, which may hold anything.

use zarrfs_base::json::{self, Map, Value};

/// Maximum length in bytes of a text that headers include: far above that of real texts.
pub const MAX_TEXT: usize = 64 << 10;

/// Returns a nonempty text in one line, since headers consist of lines.
pub fn line(attributes: &Map<String, Value>, name: &str) -> Option<String> {
    let text = json::text(attributes.get(name)?).filter(|text| text.len() <= MAX_TEXT)?;
    let line = if text.contains(char::is_control) {
        text.split(|c: char| c.is_control() || c == ' ')
            .filter(|word| !word.is_empty())
            .collect::<Vec<_>>()
            .join(" ")
    } else {
        text.trim().to_string()
    };
    (!line.is_empty()).then_some(line)
}

/// Returns whether a name fits in a line of a header.
pub fn is_shown(name: &str) -> bool {
    !name.is_empty() && name.len() <= MAX_TEXT && !name.contains(char::is_control)
}

/// Returns a finite number, or the first number of a list, since all attributes of netCDF are
/// lists.
pub fn number(attributes: &Map<String, Value>, name: &str) -> Option<f64> {
    json::float(items(attributes.get(name)?).first()?).filter(|number| number.is_finite())
}

/// Returns the values of a list, or a single value as the only one.
pub fn items(value: &Value) -> &[Value] {
    match value {
        Value::Array(list) => list,
        one => std::slice::from_ref(one),
    }
}

/// Returns a number that is spelled without point and exponent.
pub fn integer(value: &Value) -> Option<i128> {
    value.as_number()?.as_str().parse().ok()
}

/// Returns the number of bytes that are left of `room` after a value, roughly as JSON spells it;
/// `None` if it needs more. A huge value takes no longer than one that fits.
pub fn room_after(value: &Value, room: usize) -> Option<usize> {
    let room = room.checked_sub(1)?;
    match value {
        Value::String(text) => room.checked_sub(text.len()),
        Value::Array(list) => list
            .iter()
            .try_fold(room, |room, value| room_after(value, room)),
        Value::Object(map) => map.iter().try_fold(room, |room, (name, value)| {
            room_after(value, room.checked_sub(name.len())?)
        }),
        _ => Some(room),
    }
}

/// Returns a list of texts.
pub fn texts(value: Option<&Value>) -> Option<Vec<String>> {
    value?
        .as_array()?
        .iter()
        .map(|text| json::text(text).map(str::to_string))
        .collect()
}

/// Returns a list of finite numbers.
pub fn numbers(value: Option<&Value>) -> Option<Vec<f64>> {
    value?
        .as_array()?
        .iter()
        .map(|number| json::float(number).filter(|number| number.is_finite()))
        .collect()
}
