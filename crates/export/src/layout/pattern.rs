//! The pattern of the names: text and fields in braces. This module knows no store.

use zarrfs_base::error::{Error, Result};
use zarrfs_base::key::Key;

/// The word for the arrays of a group, one file for each.
const VARIABLE: &str = "var";

/// Maximum length of a name in bytes.
const MAX_NAME: usize = 255;

/// Maximum number of digits to which an index is padded.
const MAX_WIDTH: usize = 20;

/// A pattern of paths.
#[derive(Clone, Debug, PartialEq)]
pub struct NamePattern {
    parts: Vec<PatternPart>,
}

/// Text, or a field that a coordinate fills.
#[derive(Clone, Debug, PartialEq)]
pub enum PatternPart {
    /// Text as it is.
    Text(String),
    /// A field.
    Field(PatternField),
}

/// A field of a pattern.
#[derive(Clone, Debug, PartialEq)]
pub struct PatternField {
    /// The coordinate; empty for [`FieldKind::Variable`].
    pub name: String,
    /// How a name is made of its items.
    pub kind: FieldKind,
    /// The number of fields of the same coordinate that precede it.
    pub number: usize,
}

/// How a name is made of the items of a coordinate.
#[derive(Clone, Debug, PartialEq)]
pub enum FieldKind {
    /// By the calendar.
    Calendar(Vec<TimePart>),
    /// By the value.
    Value,
    /// By the index, with at least so many digits.
    Index(usize),
    /// By the name of the array.
    Variable,
}

/// A part of a date in a name.
#[derive(Clone, Debug, PartialEq)]
pub enum TimePart {
    /// Text as it is.
    Text(String),
    /// `%Y`: the year, four digits.
    Year,
    /// `%m`: the month.
    Month,
    /// `%d`: the day of the month.
    Day,
    /// `%j`: the day of the year, three digits.
    DayOfYear,
    /// `%H`: the hour.
    Hour,
    /// `%M`: the minute.
    Minute,
    /// `%S`: the second.
    Second,
}

impl NamePattern {
    /// Parses a pattern.
    ///
    /// # Errors
    ///
    /// The reason why there are no such paths.
    pub fn parse(text: &str) -> Result<Self> {
        let mut parts = Vec::new();
        let mut names: Vec<String> = Vec::new();
        let mut rest = text;
        while let Some((before, field)) = rest.split_once('{') {
            let closed = field
                .split_once('}')
                .filter(|(word, _)| !word.contains('{'));
            let (word, behind) =
                closed.ok_or_else(|| Error::invalid("a { of the pattern has no }"))?;
            parts.push(PatternPart::Text(before.to_string()));
            let (name, kind) = parse_field(word)?;
            let number = names.iter().filter(|known| **known == name).count();
            names.push(name.clone());
            parts.push(PatternPart::Field(PatternField { name, kind, number }));
            rest = behind;
        }
        parts.push(PatternPart::Text(rest.to_string()));
        let texts = parts.iter().map(|part| match part {
            PatternPart::Text(text) => text.as_str(),
            PatternPart::Field(_) => "0",
        });
        check_path(&texts.collect::<String>())?;
        let is_open =
            |part: &PatternPart| matches!(part, PatternPart::Text(text) if text.contains('}'));
        if parts.iter().any(is_open) {
            return Err(Error::invalid("a } of the pattern has no {"));
        }
        Ok(NamePattern { parts })
    }

    /// Returns the parts in order.
    pub fn parts(&self) -> &[PatternPart] {
        &self.parts
    }

    /// Returns the text behind the last field.
    pub fn end(&self) -> &str {
        match self.parts.last() {
            Some(PatternPart::Text(text)) => text,
            _ => "",
        }
    }

    /// Returns the text before the first field.
    pub fn fixed(&self) -> &str {
        match self.parts.first() {
            Some(PatternPart::Text(text)) => text,
            _ => "",
        }
    }

    fn fields(&self) -> impl Iterator<Item = &PatternField> {
        self.parts.iter().filter_map(|part| match part {
            PatternPart::Field(field) => Some(field),
            PatternPart::Text(_) => None,
        })
    }

    /// Returns whether there is a file for each array.
    pub fn has_variables(&self) -> bool {
        self.fields().any(|field| field.kind == FieldKind::Variable)
    }

    /// Returns the coordinates with their fields, in the order in which the pattern names them.
    pub fn coordinates(&self) -> Vec<(&str, Vec<&FieldKind>)> {
        let mut coordinates: Vec<(&str, Vec<&FieldKind>)> = Vec::new();
        let fields = self.fields();
        for field in fields.filter(|field| field.kind != FieldKind::Variable) {
            match coordinates.iter_mut().find(|(name, _)| *name == field.name) {
                Some((_, kinds)) => kinds.push(&field.kind),
                None => coordinates.push((&field.name, vec![&field.kind])),
            }
        }
        coordinates
    }
}

fn parse_field(word: &str) -> Result<(String, FieldKind)> {
    let unknown = |why: &str| Err(Error::invalid(format!("unknown field {{{word}}}: {why}")));
    if word == VARIABLE {
        return Ok((String::new(), FieldKind::Variable));
    }
    let (name, spec) = match word.split_once(':') {
        Some((name, spec)) => (name, Some(spec)),
        None => (word, None),
    };
    let indexed = name.strip_suffix('#');
    let name = indexed.unwrap_or(name);
    if name.is_empty() || name.contains('/') {
        return unknown("give {var}, or the name of a coordinate");
    }
    let kind = match (indexed, spec) {
        (Some(_), None) => FieldKind::Index(1),
        (Some(_), Some(width)) => {
            let width = width.strip_prefix('0').and_then(|width| width.parse().ok());
            match width.filter(|width| (1..=MAX_WIDTH).contains(width)) {
                Some(width) => FieldKind::Index(width),
                None => return unknown("give the digits of an index as {time#:04}"),
            }
        }
        (None, None) => FieldKind::Value,
        (None, Some(spec)) => match parse_calendar(spec) {
            Some(parts) => FieldKind::Calendar(parts),
            None => return unknown("a time has %Y, %m, %d, %j, %H, %M and %S"),
        },
    };
    Ok((name.to_string(), kind))
}

/// Parses `%Y%m`; `None` if it has no or an unknown part of a date.
fn parse_calendar(spec: &str) -> Option<Vec<TimePart>> {
    let mut parts = Vec::new();
    let mut rest = spec;
    while let Some((before, behind)) = rest.split_once('%') {
        if !before.is_empty() {
            parts.push(TimePart::Text(before.to_string()));
        }
        let mut letters = behind.chars();
        parts.push(match letters.next()? {
            'Y' => TimePart::Year,
            'm' => TimePart::Month,
            'd' => TimePart::Day,
            'j' => TimePart::DayOfYear,
            'H' => TimePart::Hour,
            'M' => TimePart::Minute,
            'S' => TimePart::Second,
            _ => return None,
        });
        rest = letters.as_str();
    }
    if !rest.is_empty() {
        parts.push(TimePart::Text(rest.to_string()));
    }
    let has_date = parts.iter().any(|part| !matches!(part, TimePart::Text(_)));
    has_date.then_some(parts)
}

/// Checks that a path stays in the mount and can be the path of a file.
///
/// # Errors
///
/// The reason why it cannot.
pub fn check_path(path: &str) -> Result<()> {
    let invalid = |why: &str| Err(Error::invalid(format!("the name {path:?} {why}")));
    for name in path.split('/') {
        match name {
            "" => return invalid("has an empty part; give a path relative to the mount"),
            "." | ".." => return invalid("leaves its directory"),
            _ if name.len() > MAX_NAME => return invalid("is too long"),
            _ if name.starts_with(".z") => return invalid("begins as those of documents do"),
            _ => {}
        }
    }
    Key::normalize(path).map(drop)
}
