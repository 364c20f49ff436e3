//! Changes of documents that keep the spelling of what does not change: indentation, the order of
//! members, and how numbers and strings are written. A copy of a document is then the document.

use super::output::{MAX_PRETTY, with_tokens, write};
use super::{Map, Value, parse, string_end, utf8, value_end};
use crate::error::{Error, Result};
use crate::memory::Grant;
use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::PrettyFormatter;
use std::borrow::Cow;
use std::collections::HashSet;

/// The indentation of a level where the text shows none.
const UNIT: &str = "    ";

/// The members of an object as its text spells them.
struct SpelledObject<'a> {
    members: Vec<SpelledMember<'a>>,
    /// The text between the last member and the closing brace.
    end: &'a str,
    /// The text behind the object.
    behind: &'a str,
    /// Grant for the memory of the list.
    _memory: Grant,
}

/// A member of an object as its text spells it.
struct SpelledMember<'a> {
    /// The text between the brace or comma and the name.
    before: &'a str,
    /// The name with its quotes.
    literal: &'a str,
    name: String,
    /// The text between the name and the value.
    colon: &'a str,
    value: &'a str,
}

impl<'a> SpelledMember<'a> {
    /// Splits a member off the text `at`. Returns the text behind it, too.
    fn split(before: &'a str, at: &'a str) -> Option<(Self, &'a str)> {
        let (literal, after) = at.split_at_checked(string_end(at))?;
        let Value::String(name) = parse(literal.as_bytes()).ok()? else {
            return None;
        };
        let value = after.trim_start().strip_prefix(':')?.trim_start();
        let colon = &after[..after.len() - value.len()];
        // the end of a number includes white space
        let len = value.get(..value_end(value)?)?.trim_end().len();
        let (value, after) = value.split_at(len);
        let member = SpelledMember {
            before,
            literal,
            name,
            colon,
            value,
        };
        Some((member, after))
    }
}

impl<'a> SpelledObject<'a> {
    /// Splits the text of an object.
    ///
    /// # Errors
    ///
    /// The text is no JSON object, or there is not enough memory.
    fn of(text: &'a str) -> Result<Self> {
        let damaged = || Error::damaged("not a JSON object");
        let mut rest = text.trim_start().strip_prefix('{').ok_or_else(damaged)?;
        let mut members = Vec::new();
        let mut memory = Grant::default();
        loop {
            let at = rest.trim_start();
            let before = &rest[..rest.len() - at.len()];
            if let Some(behind) = at.strip_prefix('}') {
                return Ok(SpelledObject {
                    members,
                    end: before,
                    behind,
                    _memory: memory,
                });
            }
            let (member, after) = SpelledMember::split(before, at).ok_or_else(damaged)?;
            memory.grow(2 * size_of::<SpelledMember>() + member.name.len())?;
            members.push(member);
            rest = after.trim_start().strip_prefix(',').unwrap_or(after);
        }
    }

    fn has(&self, name: &str) -> bool {
        self.members.iter().any(|member| member.name == name)
    }

    /// Returns whether no two members have one name.
    fn is_unambiguous(&self) -> bool {
        let mut names = HashSet::new();
        self.members.iter().all(|member| names.insert(&member.name))
    }

    /// Returns the text before a new member.
    fn before_new(&self) -> &'a str {
        let last = self.members.last();
        last.map_or("\n    ", |member| member.before)
    }

    /// Returns whether the members are sorted by name, as Python writes documents of Zarr v2.
    fn is_sorted(&self) -> bool {
        self.members.len() > 1 && self.members.is_sorted_by_key(|member| &member.name)
    }

    /// Returns the text of `value` as that of a new member.
    fn spell(&self, value: &Value) -> String {
        let mut value = value.clone();
        if self.is_sorted() {
            value.sort_all_objects();
        }
        let indent = |text: &str| text.rfind('\n').map(|at| text[at + 1..].to_string());
        let Some(inner) = indent(self.before_new()) else {
            return write(&value);
        };
        let outer = indent(self.end).unwrap_or_default();
        let unit = inner.strip_prefix(&outer).filter(|unit| !unit.is_empty());
        let mut pretty = Vec::new();
        let formatter = PrettyFormatter::with_indent(unit.unwrap_or(UNIT).as_bytes());
        let mut serializer = Serializer::with_formatter(&mut pretty, formatter);
        let done = value.serialize(&mut serializer);
        match done.ok().and_then(|()| String::from_utf8(pretty).ok()) {
            // line breaks inside strings are escaped
            Some(text) => with_tokens(text, false).replace('\n', &format!("\n{inner}")),
            None => write(&value),
        }
    }

    /// Returns the text of the object with those members for which `value` returns a text, and
    /// with `added` behind them.
    fn with(
        &self,
        mut value: impl FnMut(&SpelledMember<'a>) -> Option<Cow<'a, str>>,
        added: &[(&str, String)],
    ) -> String {
        let mut text = "{".to_string();
        let mut separator = "";
        for member in &self.members {
            let Some(value) = value(member) else {
                continue;
            };
            for part in [separator, member.before, member.literal, member.colon] {
                text.push_str(part);
            }
            text.push_str(&value);
            separator = ",";
        }
        let last = self.members.last();
        for (name, value) in added {
            let literal = write(&(*name).into());
            let colon = last.map_or(": ", |member| member.colon);
            for part in [separator, self.before_new(), &literal, colon, value] {
                text.push_str(part);
            }
            separator = ",";
        }
        text.push_str(if last.is_none() && !added.is_empty() {
            "\n"
        } else {
            self.end
        });
        text + "}" + self.behind
    }
}

/// Returns the text of `value`, spelled as `text` where that says the same. Returns `None` if
/// `text` is no JSON object, has two members of one name, or is long.
pub fn respell(text: &[u8], value: &Value) -> Option<Vec<u8>> {
    if text.len() > MAX_PRETTY {
        return None;
    }
    if parse(text).ok()? == *value {
        return Some(text.to_vec());
    }
    let object = SpelledObject::of(utf8(text).ok()?).ok()?;
    respell_object(&object, value.as_object()?).map(String::into_bytes)
}

/// Spells the members of an object as `object` does. The parser has bounded the depth.
fn respell_object<'a>(object: &SpelledObject<'a>, members: &Map<String, Value>) -> Option<String> {
    if !object.is_unambiguous() {
        return None;
    }
    let new = members.iter().filter(|(name, _)| !object.has(name));
    let added: Vec<(&str, String)> = new
        .map(|(name, value)| (name.as_str(), object.spell(value)))
        .collect();
    let respell = |member: &SpelledMember<'a>| {
        let value = members.get(&member.name)?;
        if parse(member.value.as_bytes()).is_ok_and(|old| old == *value) {
            return Some(Cow::Borrowed(member.value));
        }
        let respelled = match (SpelledObject::of(member.value), value) {
            (Ok(inside), Value::Object(members)) if !inside.members.is_empty() => {
                respell_object(&inside, members)
            }
            _ => None,
        };
        Some(Cow::Owned(respelled.unwrap_or_else(|| object.spell(value))))
    };
    Some(object.with(respell, &added))
}

/// Returns the JSON object `text` with the text `value` as its member `name`, or without that
/// member. Nothing else changes.
///
/// # Errors
///
/// [`Kind::Damaged`](crate::error::Kind::Damaged) if `text` is not a JSON object, and the errors of
/// [`memory::take`](crate::memory::take).
pub fn with_member<'a>(text: &'a [u8], name: &str, value: Option<&'a [u8]>) -> Result<Vec<u8>> {
    let object = SpelledObject::of(utf8(text)?)?;
    let mut value = value.map(|value| utf8(value.trim_ascii())).transpose()?;
    let added = match value.take_if(|_| !object.has(name)) {
        Some(value) => vec![(name, value.to_string())],
        None => Vec::new(),
    };
    let change = |member: &SpelledMember<'a>| {
        if member.name == name {
            // a key that occurs twice stays once
            value.take().map(Cow::Borrowed)
        } else {
            Some(Cow::Borrowed(member.value))
        }
    };
    Ok(object.with(change, &added).into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn respelled(text: &str, value: &str) -> String {
        let value = parse(value.as_bytes()).unwrap();
        String::from_utf8(respell(text.as_bytes(), &value).unwrap()).unwrap()
    }

    #[test]
    fn what_is_equal_keeps_its_text() {
        let text = "\u{feff}{\"b\":1.50, \"a\" : [1,\n2]}\n\n";
        assert_eq!(respelled(text, r#"{"a": [1, 2], "b": 1.50}"#), text);
        let text =
            "{\n   \"a\": \"\\u00e9\",\n   \"b\": {\n      \"x\": 1,\n      \"y\": NaN\n   }\n}";
        assert_eq!(
            respelled(text, r#"{"a": "é", "b": {"x": 2, "y": NaN}}"#),
            text.replace("\"x\": 1", "\"x\": 2")
        );
        assert_eq!(
            respelled(text, r#"{"b": {"y": NaN}}"#),
            "{\n   \"b\": {\n      \"y\": NaN\n   }\n}"
        );
    }

    #[test]
    fn what_is_new_is_indented_like_the_rest() {
        let text = "{\n  \"a\": null,\n  \"b\": {\n    \"c\": []\n  }\n}\n";
        assert_eq!(
            respelled(text, r#"{"a": {"id": "zlib"}, "b": {"c": [1]}, "d": {}}"#),
            "{\n  \"a\": {\n    \"id\": \"zlib\"\n  },\n  \"b\": {\n    \"c\": [\n      1\n    ]\n  },\n  \"d\": {}\n}\n"
        );
        assert_eq!(
            respelled(r#"{"a": 1}"#, r#"{"a": 1, "b": [2]}"#),
            r#"{"a": 1,"b": [2]}"#
        );
        assert_eq!(
            respelled(r#"{"a": 1, "b": 2}"#, r#"{"a": {"y": 1, "x": 2}, "b": 2}"#),
            r#"{"a": {"x":2,"y":1}, "b": 2}"#
        );
        assert_eq!(respelled("{}", r#"{"a": 1}"#), "{\n    \"a\": 1\n}");
        assert_eq!(respelled(r#"{"a": 1}"#, "{}"), "{}");
    }

    #[test]
    fn what_is_no_object_is_not_respelled() {
        for text in ["[1]", "", "{", r#"{"a": 1, "a": 2}"#, "{\"a\": tru}"] {
            assert_eq!(respell(text.as_bytes(), &Value::Null), None, "{text}");
            let object = parse(br#"{"b": 1}"#).unwrap();
            assert_eq!(respell(text.as_bytes(), &object), None, "{text}");
        }
    }

    #[test]
    fn a_member_is_set_replaced_or_removed() {
        let with = |text: &str, value: Option<&str>| {
            let value = value.map(str::as_bytes);
            String::from_utf8(with_member(text.as_bytes(), "a", value).unwrap()).unwrap()
        };
        let text = "{ \"a\" : 1 , \"b\": 2 }\n";
        assert_eq!(with(text, Some("[3]")), "{ \"a\" : [3], \"b\": 2 }\n");
        assert_eq!(with(text, None), "{ \"b\": 2 }\n");
        assert_eq!(with("{\"b\": 2}", Some("3")), "{\"b\": 2,\"a\": 3}");
        assert_eq!(with("{\"a\": 2, \"a\": 3}", Some("4")), "{\"a\": 4}");
        assert_eq!(with("{}", None), "{}");
        assert!(with_member(b"[]", "a", None).is_err());
        assert!(with_member(br#"{"b": 1"#, "a", None).is_err());
    }
}
