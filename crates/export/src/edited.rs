//! Finds what another program has changed in a header that is a text. Programs write such a file as
//! a whole, in their own spelling, so the shown and the written text are split into elements, which
//! are compared one by one. Each format lists the elements whose changes can be stored; a change of
//! any other one is lost, and the caller reports its name. This module knows no open files.

use super::describe;
use super::spelling;
use super::{Format, FormatSpec};
use quick_xml::events::{BytesStart, Event};
use quick_xml::{Reader, XmlVersion, escape};
use std::collections::{BTreeMap, HashMap};
use zarrfs_base::json::{self, Map, Value};

/// Maximum number of bytes of a text that are compared: a `data.vrt` of some 900 bands has as many.
pub const MAX_TEXT: usize = 512 << 10;

/// Maximum number of elements of a text that are compared.
const MAX_ELEMENTS: usize = 1 << 14;

/// Bytes of memory that the elements of a text take for each byte of it, about.
pub const MEMORY: usize = 8;

/// Maximum number of elements that a message names, and of characters of each name.
const NAMED: usize = 8;
const MAX_NAME: usize = 60;

/// Maximum depth of elements in XML. Generated headers have less than ten levels.
const MAX_DEPTH: usize = 32;

/// Separates the names in the path of an element. No XML contains the character, and it sorts
/// before [`REPEATED`].
const BELOW: char = '\u{1e}';

/// Separates the name of an element from its number, from the second one of a name on.
const REPEATED: char = '\u{1f}';

/// The paths of the name of the root of XML, and of the text between the elements in it. Names of
/// elements have no spaces.
const ROOT: &str = "root element";
const ROOT_TEXT: &str = "text between elements";

/// How the elements of a text are written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum HeaderSyntax {
    /// Elements and attributes of XML.
    Xml,
    /// Lines of a name, this character and a value. Between braces, a value may go on in the next
    /// line.
    Fields(char),
    /// Lines for people.
    Plain,
}

/// What becomes of a changed element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ElementUse {
    /// It is an attribute of the array, and is stored there.
    Attribute,
    /// It is the reference system, which is stored in the attribute `_CRS` of GDAL, unless other
    /// metadata state it.
    ReferenceSystem,
    /// It tells one raster from another: nothing that another raster's file says is stored.
    Layout,
    /// Programs add it when they write the file, and it says nothing.
    Spelling,
}

/// What is known of the array whose header is edited.
pub struct EditedArray<'a> {
    /// The attributes as they are stored.
    pub attributes: &'a Map<String, Value>,
    /// Whether its headers state the reference system.
    pub has_place: bool,
}

/// The changes that a written header asks for.
#[derive(Debug, Default, PartialEq)]
pub struct TextEdits {
    /// Changed attributes; `None` removes one.
    pub attributes: Vec<(String, Option<Value>)>,
    /// The names of changed elements that cannot be stored.
    pub lost: Vec<String>,
}

impl TextEdits {
    /// Returns the names of the lost elements for a message.
    pub fn lost_names(&self) -> String {
        let named: Vec<&str> = self.lost.iter().take(NAMED).map(String::as_str).collect();
        let names = named.join(", ");
        match self.lost.len().saturating_sub(NAMED) {
            0 => names,
            more => format!("{names} and {more} more elements"),
        }
    }
}

/// Returns what `written` changes of the text that was `shown`. Only the header of an array can
/// have changes that are stored; the file of a view or a group has none. `format` is `None` for the
/// text of a group.
pub fn text_edits(
    format: Option<Format>,
    shown: &str,
    written: &str,
    array: Option<&EditedArray>,
) -> TextEdits {
    let mut edits = TextEdits::default();
    if shown == written {
        return edits;
    }
    let spec = format.map_or(&FormatSpec::DEFAULT, Format::spec);
    if spec.syntax == HeaderSyntax::Plain {
        let line = first_other_line(shown, written);
        edits.lost.extend(line.map(|line| format!("line {line}")));
        return edits;
    }
    let shown = HeaderElements::parse(spec.syntax, shown);
    let written = HeaderElements::parse(spec.syntax, written);
    let (Some(shown), Some(written)) = (shown, written) else {
        let name = spec.name;
        edits.lost = vec![format!("a text that is no {name}")];
        return edits;
    };
    let changes = shown.changes(&written);
    let is_other = changes.iter().any(|change| {
        spec.use_of(change.path) == Some(ElementUse::Layout) && !change.is_respelled()
    });
    let array = array.filter(|_| !is_other);
    for change in changes {
        let stored = match spec.use_of(change.path) {
            Some(ElementUse::Spelling) => continue,
            Some(ElementUse::Attribute) => array.and_then(|array| change.of_attribute(array)),
            Some(ElementUse::ReferenceSystem) if change.is_same_system() => continue,
            Some(ElementUse::ReferenceSystem) => array.and_then(|array| change.of_system(array)),
            Some(ElementUse::Layout) | None if change.is_respelled() => continue,
            Some(ElementUse::Layout) | None => None,
        };
        match stored {
            Some(attribute) => edits.attributes.push(attribute),
            None => {
                let name = name_of(change.path);
                if !edits.lost.contains(&name) {
                    edits.lost.push(name);
                }
            }
        }
    }
    edits
}

impl FormatSpec {
    /// Returns what becomes of a change of the element at a path; `None` if it is lost.
    fn use_of(&self, path: &str) -> Option<ElementUse> {
        let names: Vec<&str> = names_in(path).collect();
        let found = self.elements.iter().find(|(pattern, _)| {
            let wanted: Vec<&str> = pattern.split('/').collect();
            wanted.len() == names.len()
                && wanted
                    .iter()
                    .zip(&names)
                    .all(|(wanted, name)| *wanted == "*" || wanted == name)
        });
        found.map(|(_, element_use)| *element_use)
    }
}

/// Returns the names in a path, without their numbers.
fn names_in(path: &str) -> impl DoubleEndedIterator<Item = &str> {
    path.split(BELOW)
        .map(|name| name.split_once(REPEATED).map_or(name, |(name, _)| name))
}

/// Returns the name of an element in messages: `NoDataValue of VRTRasterBand`.
fn name_of(path: &str) -> String {
    let names: Vec<&str> = names_in(path).rev().collect();
    let name = spelling::line(&names.join(" of "));
    name.chars().take(MAX_NAME).collect()
}

/// The elements of a text: their values by their paths.
#[derive(Debug, Default, PartialEq)]
struct HeaderElements {
    values: BTreeMap<String, String>,
    /// The beginning of the paths that may be missing because the text was cut.
    cut: Option<String>,
}

/// A difference between two texts.
struct ElementChange<'a> {
    path: &'a str,
    shown: Option<&'a str>,
    written: Option<&'a str>,
}

impl ElementChange<'_> {
    /// Returns whether both values are the same words and numbers.
    fn is_respelled(&self) -> bool {
        match (self.shown, self.written) {
            (Some(shown), Some(written)) => {
                let mut shown = words(shown);
                let mut written = words(written);
                loop {
                    match (shown.next(), written.next()) {
                        (None, None) => return true,
                        (Some(shown), Some(written)) if is_same_word(shown, written) => {}
                        _ => return false,
                    }
                }
            }
            _ => false,
        }
    }

    fn is_same_system(&self) -> bool {
        match (self.shown, self.written) {
            (Some(shown), Some(written)) => describe::is_same_system(shown, written),
            _ => false,
        }
    }

    /// Returns the change of the attribute that the element shows; `None` if there is no such
    /// attribute to remove.
    fn of_attribute(&self, array: &EditedArray) -> Option<(String, Option<Value>)> {
        let name = names_in(self.path).next_back()?;
        let before = array.attributes.get(name);
        let after = self.written.map(|text| value(text, before));
        (before.is_some() || after.is_some()).then(|| (name.to_string(), after))
    }

    /// Returns the change of `_CRS` that states the reference system; `None` if other metadata
    /// state it, which would contradict.
    fn of_system(&self, array: &EditedArray) -> Option<(String, Option<Value>)> {
        let attributes = array.attributes;
        let has_own = attributes.contains_key(describe::CRS);
        let is_stated_elsewhere = attributes.contains_key("grid_mapping")
            || attributes.keys().any(|name| name.starts_with("proj:"))
            || self.shown.is_some_and(|shown| shown != describe::WGS_84);
        let after = match self.written {
            None if has_own => None,
            Some(written) if array.has_place && (has_own || !is_stated_elsewhere) => {
                Some(describe::system_for_gdal(written)?)
            }
            _ => return None,
        };
        Some((describe::CRS.to_string(), after))
    }
}

/// Converts the text of an attribute; it stays a number if it was one.
fn value(text: &str, before: Option<&Value>) -> Value {
    match (before, json::parse(text.as_bytes())) {
        (Some(Value::Number(_)), Ok(number @ Value::Number(_))) => number,
        _ => text.into(),
    }
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| c.is_whitespace() || ",{}()".contains(c))
        .filter(|word| !word.is_empty())
}

/// Compares numbers as rounded to 12 digits, since programs spell them differently.
fn is_same_word(a: &str, b: &str) -> bool {
    let rounded = |word: &str| word.parse::<f64>().ok().map(|x| format!("{x:.11e}"));
    a == b || rounded(a).is_some_and(|a| Some(a) == rounded(b))
}

impl HeaderElements {
    /// Splits a text into elements. Returns `None` if it is no whole text of this syntax; a text of
    /// [`MAX_TEXT`] bytes or [`MAX_ELEMENTS`] may end anywhere.
    fn parse(syntax: HeaderSyntax, text: &str) -> Option<Self> {
        let is_cut = text.len() >= MAX_TEXT;
        match syntax {
            HeaderSyntax::Xml => XmlElements::default().read(text, is_cut),
            _ => Some(lines(syntax, text, is_cut)),
        }
    }

    /// Returns the elements that differ, in the order of their paths.
    fn changes<'a>(&'a self, written: &'a HeaderElements) -> Vec<ElementChange<'a>> {
        let mut changes = Vec::new();
        for (path, value) in &self.values {
            let other = written.values.get(path);
            if other != Some(value) && (other.is_some() || !written.may_lack(path)) {
                changes.push(ElementChange {
                    path,
                    shown: Some(value),
                    written: other.map(String::as_str),
                });
            }
        }
        for (path, value) in &written.values {
            if !self.values.contains_key(path) && !self.may_lack(path) {
                changes.push(ElementChange {
                    path,
                    shown: None,
                    written: Some(value),
                });
            }
        }
        changes
    }

    /// Returns whether an element at a path may lie behind the end of a text that was cut.
    fn may_lack(&self, path: &str) -> bool {
        let Some(cut) = &self.cut else {
            return false;
        };
        let top = path.split(BELOW).next().unwrap_or_default();
        let begin = format!("{top}{BELOW}");
        let mut after = self.values.range(begin.clone()..);
        let has_top = after
            .next()
            .is_some_and(|(path, _)| path.starts_with(&begin));
        path.starts_with(cut.as_str()) && !has_top
    }
}

/// Returns `name`, with its number if it is not the first of the name.
fn numbered(name: &str, counts: &mut HashMap<String, usize>) -> String {
    match counts.get_mut(name) {
        Some(count) => {
            *count += 1;
            format!("{name}{REPEATED}{count}")
        }
        None => {
            counts.insert(name.to_string(), 1);
            name.to_string()
        }
    }
}

/// Returns the number of the first line that differs, counted from 1. Spaces at the end of a line
/// do not count.
fn first_other_line(shown: &str, written: &str) -> Option<usize> {
    let is_cut = shown.len().max(written.len()) >= MAX_TEXT;
    let mut shown = shown.lines();
    let mut written = written.lines();
    for number in 1.. {
        match (shown.next(), written.next()) {
            (None, None) => break,
            (Some(a), Some(b)) if a.trim_end() == b.trim_end() => {}
            (None, _) | (_, None) if is_cut => break,
            _ => return Some(number),
        }
    }
    None
}

/// Splits a text of lines. The last element of a text that was cut is left out.
fn lines(syntax: HeaderSyntax, text: &str, is_cut: bool) -> HeaderElements {
    let mut elements: Vec<(&str, String)> = Vec::new();
    let mut is_cut = is_cut;
    let mut open_braces = 0;
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let (name, value) = match syntax {
            HeaderSyntax::Fields(separator) => line.split_once(separator).unwrap_or((line, "")),
            HeaderSyntax::Plain | HeaderSyntax::Xml => (line, ""),
        };
        let continues = match syntax {
            HeaderSyntax::Fields(_) => open_braces > 0,
            HeaderSyntax::Plain | HeaderSyntax::Xml => false,
        };
        if elements.len() >= MAX_ELEMENTS {
            is_cut = true;
            break;
        }
        match elements.last_mut() {
            Some((_, list)) if continues => {
                list.push('\n');
                list.push_str(line);
            }
            _ => elements.push((name.trim(), value.trim().to_string())),
        }
        let braces = |brace| line.matches(brace).count();
        open_braces = (open_braces + braces('{')).saturating_sub(braces('}'));
    }
    if is_cut {
        elements.pop();
    }
    let mut counts = HashMap::new();
    let numbered = elements
        .into_iter()
        .map(|(name, value)| (numbered(name, &mut counts), value));
    HeaderElements {
        values: numbered.collect(),
        cut: is_cut.then(String::new),
    }
}

/// Splits XML into elements.
#[derive(Default)]
struct XmlElements {
    values: BTreeMap<String, String>,
    open: Vec<OpenElement>,
    /// The paths below the root that are not complete yet.
    unfinished: Vec<String>,
}

/// An element that has begun.
#[derive(Default)]
struct OpenElement {
    path: String,
    text: String,
    has_children: bool,
    /// The number of children by their names.
    counts: HashMap<String, usize>,
}

impl XmlElements {
    fn read(mut self, text: &str, is_cut: bool) -> Option<HeaderElements> {
        let mut reader = Reader::from_str(text);
        reader.config_mut().expand_empty_elements = true;
        loop {
            match reader.read_event().ok().and_then(|event| self.add(event)) {
                Some(true) if self.values.len() >= MAX_ELEMENTS => break,
                Some(true) => {}
                Some(false) if self.open.is_empty() && !self.values.is_empty() => {
                    return Some(HeaderElements {
                        values: self.values,
                        cut: None,
                    });
                }
                _ if is_cut => break,
                _ => return None,
            }
        }
        for path in &self.unfinished {
            self.values.remove(path);
        }
        let top = self.open.get(1).map_or("", |top| top.path.as_str());
        let cut = names_in(top).next().map(str::to_string);
        Some(HeaderElements {
            values: self.values,
            cut,
        })
    }

    /// Adds what an event says. Returns whether more events follow, and `None` for XML that no
    /// header contains.
    fn add(&mut self, event: Event) -> Option<bool> {
        match event {
            Event::Start(start) => self.begin(&start)?,
            Event::End(_) => {
                let closed = self.open.pop()?;
                let text = closed.text.trim();
                let is_root = closed.path.is_empty();
                if !text.is_empty() || !closed.has_children && !is_root {
                    let path = if is_root {
                        ROOT_TEXT.into()
                    } else {
                        closed.path
                    };
                    self.insert(path, text.to_string());
                }
                if self.open.len() == 1 {
                    self.unfinished.clear();
                }
            }
            Event::Text(part) => self.add_text(&part.decode().ok()?)?,
            Event::CData(part) => self.add_text(&part.decode().ok()?)?,
            Event::GeneralRef(part) => match part.resolve_char_ref().ok()? {
                Some(char) => self.add_text(char.encode_utf8(&mut [0; 4]))?,
                None => self.add_text(escape::resolve_predefined_entity(&part.decode().ok()?)?)?,
            },
            Event::DocType(text) => self.insert_text("document type", &text)?,
            Event::Comment(text) => self.insert_text("a comment", &text)?,
            Event::PI(text) => self.insert_text("an instruction", &text)?,
            Event::Decl(text) => self.insert_text("XML declaration", &text)?,
            Event::Empty(_) => return None,
            Event::Eof => return Some(false),
        }
        Some(true)
    }

    fn begin(&mut self, start: &BytesStart) -> Option<()> {
        if self.open.len() >= MAX_DEPTH {
            return None;
        }
        let mut name = String::from_utf8(start.name().as_ref().to_vec()).ok()?;
        let mut attributes = Vec::new();
        for attribute in start.attributes() {
            let attribute = attribute.ok()?;
            let key = String::from_utf8(attribute.key.as_ref().to_vec()).ok()?;
            let value = attribute.normalized_value(XmlVersion::Implicit1_0).ok()?;
            match (name.as_str(), key.as_str()) {
                // items of metadata are called by their keys
                ("MDI", "key") => name = value.into_owned(),
                ("Metadata", "domain") => name = format!("Metadata {value}"),
                _ => attributes.push((key, value.into_owned())),
            }
        }
        let is_root = self.open.is_empty();
        let path = match self.open.last_mut() {
            None if self.values.contains_key(ROOT) => return None,
            None => String::new(),
            Some(parent) => {
                parent.has_children = true;
                let name = numbered(&name, &mut parent.counts);
                join(&parent.path, &name)
            }
        };
        if is_root {
            self.insert(ROOT.into(), name);
        }
        for (key, value) in attributes {
            self.insert(join(&path, &key), value);
        }
        self.open.push(OpenElement {
            path,
            ..OpenElement::default()
        });
        Some(())
    }

    /// Adds text to the innermost element. Returns `None` for text outside of the root.
    fn add_text(&mut self, text: &str) -> Option<()> {
        match self.open.last_mut() {
            Some(element) => element.text.push_str(text),
            None if text.trim().is_empty() => {}
            None => return None,
        }
        Some(())
    }

    fn insert_text(&mut self, path: &str, text: &[u8]) -> Option<()> {
        let text = std::str::from_utf8(text).ok()?;
        self.insert(path.to_string(), text.trim().to_string());
        Some(())
    }

    fn insert(&mut self, path: String, value: String) {
        if !self.open.is_empty() {
            self.unfinished.push(path.clone());
        }
        self.values.insert(path, value);
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_string()
    } else {
        format!("{path}{BELOW}{name}")
    }
}

#[cfg(test)]
mod tests;
