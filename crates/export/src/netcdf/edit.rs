//! Compares a group's netCDF file with a file that another program wrote in its place: checks that
//! the layout is the same, and lists the attributes that differ. Each attribute returns to its
//! former JSON form, such as a list or nested JSON. Attributes that exist only in the file, or that
//! come from the arrays' metadata, cannot be changed. What CDO changes of them says nothing new,
//! and changes nothing: it repeats `_FillValue` as `missing_value`, and drops that of coordinates.

use super::classic::{ClassicDimension, ClassicHeader, Variable};
use super::parse::{ParseFailure, parse};
use crate::describe::attribute_items;
use crate::group::attributes::{Attribute, LEFT_OUT, is_bookkeeping};
use crate::group::types::Type;
use crate::number::NumberKind;
use crate::{Composite, PartContent};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::collections::HashMap;
use zarrfs_base::error::{Error, Kind, Result};
use zarrfs_base::json::{self, Map, Object, Value};
use zarrfs_base::key::Key;
use zarrfs_format::dtype::{self, DType};

/// Changes of the attributes of one group or array; `None` removes an attribute.
pub type HeaderChanges = Vec<(String, Option<Value>)>;

/// A header that another program wrote in place of a group's header, and the original.
#[derive(Debug)]
pub struct HeaderEdit {
    old: ClassicHeader,
    /// The variables are in the order of the original.
    new: ClassicHeader,
}

/// The data of a variable in a file that replaces the group's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The part of the group's file that holds the variable.
    pub part: usize,
    /// Offset in the new file, in bytes.
    pub from: u64,
    /// Number of bytes of each record; of all, if the new file has them in one run.
    pub len: u64,
    /// Number of bytes from one record of the new file to the next.
    pub step: u64,
    /// Number of records in the new file.
    pub count: u64,
}

impl HeaderEdit {
    /// Parses the headers at the beginning of `old` and `new` and compares their layouts. Returns
    /// `None` if `new` ends before its header does.
    ///
    /// # Errors
    ///
    /// EPERM if the layouts differ, so that the new file cannot replace the old one.
    pub fn compare(old: &[u8], new: &[u8]) -> Result<Option<Self>> {
        let old = parse(old).map_err(|_| refused("the file has no header"))?;
        let mut new = match parse(new) {
            Ok(new) => new,
            Err(ParseFailure::Short) => return Ok(None),
            Err(ParseFailure::Wrong) => {
                return Err(refused("no netCDF file of the classic format"));
            }
        };
        check_dimensions(&old, &new)?;
        let count = new.variables.len();
        let variables = new.variables.drain(..).map(|new| (new.name.clone(), new));
        let mut by_name: HashMap<String, Variable> = variables.collect();
        for old in &old.variables {
            let lacks = || refused(format!("it lacks the variable {:?}", old.name));
            new.variables
                .push(by_name.remove(&old.name).ok_or_else(lacks)?);
        }
        if count > old.variables.len() {
            return Err(refused("it has variables that are no arrays of the group"));
        }
        let edited = HeaderEdit { old, new };
        for (old, new) in edited.pairs() {
            let is_same_shape =
                dimension_names(&edited.old, old) == dimension_names(&edited.new, new);
            if old.kind != new.kind || !is_same_shape {
                return Err(refused(format!(
                    "{:?} has another type or other dimensions than the array",
                    new.name
                )));
            }
        }
        Ok(Some(edited))
    }

    /// Returns the number of records in the new file, if these are more than the group's file has.
    pub fn more_records(&self) -> Option<u64> {
        let old = self.old.dimensions.iter().find(|old| old.is_record)?;
        let new = self
            .new
            .dimensions
            .iter()
            .find(|new| new.name == old.name)?;
        (new.len > old.len).then_some(new.len)
    }

    /// Returns whether a variable of the group's file is the coordinate of its only dimension.
    fn is_coordinate(&self, name: &str) -> bool {
        let mut variables = self.old.variables.iter();
        let variable = variables.find(|variable| variable.name == name);
        variable.is_some_and(|variable| dimension_names(&self.old, variable) == [name])
    }

    /// Returns each variable of the group's file with its counterpart in the new file.
    fn pairs(&self) -> impl Iterator<Item = (&Variable, &Variable)> {
        self.old.variables.iter().zip(&self.new.variables)
    }

    /// Returns whether the data of all variables are at their old offsets.
    pub fn is_in_place(&self) -> bool {
        self.pairs().all(|(old, new)| {
            old.begin == new.begin && self.old.is_record(old) == self.new.is_record(new)
        })
    }

    /// Returns the offsets, in both files, of all variables that hold an array.
    pub fn moved(&self, file: &Composite) -> Vec<Moved> {
        let arrays = self
            .pairs()
            .filter(|(old, _)| array_at(file, old.begin).is_some());
        let records = (self.new.record_step(), self.new.record_count().unwrap_or(0));
        let moved = arrays.map(|(old, new)| {
            let (step, count) = if self.new.is_record(new) {
                records
            } else {
                (new.size, 1)
            };
            Moved {
                part: file.part_at(old.begin),
                from: new.begin,
                len: new.size,
                step,
                count,
            }
        });
        moved.collect()
    }

    /// Returns the changed attributes of the group at `group` and of the arrays in its `file`;
    /// `stored` returns the current attributes of a key.
    ///
    /// # Errors
    ///
    /// EPERM if an attribute differs that cannot be changed.
    pub fn changes(
        &self,
        group: &Key,
        file: &Composite,
        stored: impl Fn(&Key) -> Result<Object>,
    ) -> Result<Vec<(Key, HeaderChanges)>> {
        let mut all = Vec::new();
        let mut places = vec![(
            Some((group, None)),
            "",
            &self.old.attributes,
            &self.new.attributes,
        )];
        for (old, new) in self.pairs() {
            places.push((
                array_at(file, old.begin),
                old.name.as_str(),
                &old.attributes,
                &new.attributes,
            ));
        }
        for (place, name, old, new) in places.into_iter().filter(|(_, _, old, new)| old != new) {
            let (key, dtype) = place
                .ok_or_else(|| refused(format!("what {name:?} tells comes from other metadata")))?;
            let is_derived = |attribute: &str| {
                let is_time =
                    dtype.is_some_and(|dtype| *dtype.kind() == dtype::DTypeKind::DateTime);
                is_bookkeeping(attribute) || is_time && ["units", "calendar"].contains(&attribute)
            };
            let stored = stored(key)?;
            let is_coordinate = self.is_coordinate(name);
            let changes = changes(old, new, &stored, is_derived, is_coordinate);
            let changes = changes.map_err(|attribute| {
                refused(format!(
                    "the attribute {name}:{attribute} comes from other metadata, or is no JSON: change that"
                ))
            })?;
            if !changes.is_empty() {
                all.push((key.clone(), changes));
            }
        }
        Ok(all)
    }
}

/// Returns the only number of an attribute of floats.
fn only_float(attribute: &Attribute) -> Option<f64> {
    let number = attribute.kind.number()?;
    let is_one = number.kind == NumberKind::Float && attribute.values.len() == number.size;
    is_one.then(|| number.float(number.load(&attribute.values)))
}

/// Returns whether an attribute is a single NaN.
fn is_nan(attribute: &Attribute) -> bool {
    only_float(attribute).is_some_and(f64::is_nan)
}

/// Checks that each dimension of `new` is one of `old`; a record dimension may be longer.
fn check_dimensions(old: &ClassicHeader, new: &ClassicHeader) -> Result<()> {
    let known = old.dimensions.iter().map(|old| (old.name.as_str(), old));
    let known: HashMap<&str, &ClassicDimension> = known.collect();
    let unknown = new
        .dimensions
        .iter()
        .find(|new| match known.get(new.name.as_str()) {
            Some(old) if old.is_record => new.len < old.len,
            Some(old) => new.len != old.len,
            None => true,
        });
    match unknown {
        Some(ClassicDimension { name, len, .. }) => Err(refused(format!(
            "no array has the dimension {name:?} of length {len}"
        ))),
        None => Ok(()),
    }
}

fn dimension_names<'a>(header: &'a ClassicHeader, variable: &Variable) -> Vec<&'a str> {
    let dimensions = variable
        .dimensions
        .iter()
        .filter_map(|&number| header.dimensions.get(number));
    dimensions
        .map(|dimension| dimension.name.as_str())
        .collect()
}

fn refused(why: impl Into<String>) -> Error {
    Error::new(Kind::System(libc::EPERM), why)
}

/// Returns the array whose values begin at `begin`, and its dtype unless it holds objects.
fn array_at(file: &Composite, begin: u64) -> Option<(&Key, Option<&DType>)> {
    let part = file.parts().get(file.part_at(begin))?;
    match &part.content {
        PartContent::Flat { key, dtype, .. } if part.at == begin => Some((key, Some(dtype))),
        PartContent::Values { key, .. } if part.at == begin => Some((key, None)),
        _ => None,
    }
}

/// Returns the changes that turn `old` into `new`. An attribute of the file without a counterpart
/// in `stored`, or for which `is_derived` holds, cannot be changed.
///
/// # Errors
///
/// The name of an attribute that differs and cannot be changed.
fn changes(
    old: &[Attribute],
    new: &[Attribute],
    stored: &Map<String, Value>,
    is_derived: impl Fn(&str) -> bool,
    is_coordinate: bool,
) -> std::result::Result<HeaderChanges, String> {
    let before = by_name(old);
    let after = by_name(new);
    let mut changes = HeaderChanges::new();
    for attribute in new {
        let name = attribute.name.as_str();
        // JSON has no NaN
        let repeats_fill = name == "missing_value"
            && !before.contains_key(name)
            && is_nan(attribute)
            && after.get("_FillValue").is_some_and(|fill| is_nan(fill));
        if before.get(name) == Some(&attribute) || repeats_fill {
            continue;
        }
        let is_own = before.contains_key(name) != stored.contains_key(name)
            || is_derived(name)
            || name == LEFT_OUT;
        let value = if is_own {
            None
        } else {
            value(attribute, stored.get(name))
        };
        changes.push((name.to_string(), Some(value.ok_or(name)?)));
    }
    for attribute in old
        .iter()
        .filter(|old| !after.contains_key(old.name.as_str()))
    {
        let name = &attribute.name;
        let is_stored = stored.contains_key(name) && !is_derived(name);
        // NaN is missing whatever states it, and coordinates have no missing values
        let says_nothing = if is_coordinate {
            !is_stored || is_nan(attribute)
        } else {
            !is_stored && is_nan(attribute)
        };
        if name == "_FillValue" && says_nothing {
            continue;
        }
        if is_stored {
            changes.push((name.clone(), None))
        } else if name != LEFT_OUT {
            return Err(name.clone());
        }
    }
    Ok(changes)
}

fn by_name(list: &[Attribute]) -> HashMap<&str, &Attribute> {
    list.iter()
        .map(|attribute| (attribute.name.as_str(), attribute))
        .collect()
}

/// Converts an attribute of the file to JSON in the form that it had `before`; `None` if JSON
/// cannot represent it.
fn value(attribute: &Attribute, before: Option<&Value>) -> Option<Value> {
    if attribute.kind == Type::Char {
        // NCO includes the terminating NUL
        let whole = std::str::from_utf8(&attribute.values).ok()?;
        return Some(text(whole.trim_end_matches('\0'), before));
    }
    if let Some(encoded) = base64_float(attribute, before) {
        return Some(encoded);
    }
    let items = attribute.values.chunks_exact(attribute.kind.size());
    let mut values: Vec<Value> = items
        .map(|item| number(attribute.kind, item))
        .collect::<Option<_>>()?;
    let forms = before.map_or(&[][..], attribute_items);
    let are_flags = !forms.is_empty() && forms.iter().all(Value::is_boolean);
    if are_flags && attribute.kind == Type::Byte && attribute.values.iter().all(|byte| *byte <= 1) {
        let flags = attribute.values.iter();
        values = flags.map(|byte| Value::Bool(*byte == 1)).collect();
    }
    match (values.len(), before) {
        (1, Some(Value::Array(_))) => Some(Value::Array(values)),
        (1, _) => values.pop(),
        _ => Some(Value::Array(values)),
    }
}

/// Returns a float in base64 if `before` is in base64: xarray's `_FillValue` in v3 attributes is
/// eight little-endian bytes.
fn base64_float(attribute: &Attribute, before: Option<&Value>) -> Option<Value> {
    let was = json::base64_decode(json::text(before?)?.as_bytes()).filter(|bytes| bytes.len() == 8);
    was.filter(|_| attribute.name == "_FillValue")?;
    Some(STANDARD.encode(only_float(attribute)?.to_le_bytes()).into())
}

/// Converts a text, which represents a list of words or any JSON if `before` is one.
fn text(text: &str, before: Option<&Value>) -> Value {
    match before {
        Some(Value::Array(list))
            if !list.is_empty() && list.iter().all(|word| json::text(word).is_some()) =>
        {
            Value::Array(text.split(' ').map(Value::from).collect())
        }
        Some(Value::Array(_) | Value::Object(_) | Value::Null) => {
            json::parse(text.as_bytes()).unwrap_or_else(|_| text.into())
        }
        _ => text.into(),
    }
}

/// Converts a big-endian number of the type; `None` for NaN and infinities.
fn number(kind: Type, item: &[u8]) -> Option<Value> {
    let number = kind.number()?;
    let bits = number.load(item);
    let number = match kind {
        Type::Float => format!("{:?}", f32::from_bits(bits as u32)),
        Type::Double => format!("{:?}", f64::from_bits(bits)),
        _ => number.integer(bits).to_string(),
    };
    json::parse(number.as_bytes())
        .ok()
        .filter(|value| json::float(value).is_some_and(f64::is_finite))
}

#[cfg(test)]
mod tests {
    use super::super::classic::ClassicVersion;
    use super::*;

    fn header(names: &[&str], attributes: Vec<Attribute>) -> ClassicHeader {
        let variable = |(number, name): (usize, &&str)| Variable {
            name: name.to_string(),
            dimensions: vec![0],
            attributes: Vec::new(),
            kind: Type::Short,
            size: 6,
            begin: 4096 * (number as u64 + 1),
        };
        let variables = names.iter().enumerate().map(variable).collect();
        let dimensions = vec![ClassicDimension {
            name: "x".into(),
            len: 3,
            is_record: false,
        }];
        ClassicHeader {
            version: ClassicVersion::Offset64,
            dimensions,
            attributes,
            variables,
        }
    }

    #[test]
    fn only_the_same_layout_is_compared() {
        let old = header(&["a", "b"], Vec::new());
        let compare = |new: &ClassicHeader| HeaderEdit::compare(&old.bytes(), &new.bytes());
        assert!(compare(&old).unwrap().unwrap().is_in_place());
        assert!(
            !compare(&header(&["b", "a"], Vec::new()))
                .unwrap()
                .unwrap()
                .is_in_place()
        );
        for names in [
            &["a"] as &[&str],
            &["a", "c"],
            &["a", "b", "c"],
            &["a", "a"],
        ] {
            assert_eq!(
                compare(&header(names, Vec::new())).unwrap_err().errno(),
                libc::EPERM,
                "{names:?}"
            );
        }
        let changed = |change: &dyn Fn(&mut ClassicHeader)| {
            let mut new = old.clone();
            change(&mut new);
            compare(&new).unwrap_err().errno()
        };
        assert_eq!(changed(&|new| new.dimensions[0].len = 4), libc::EPERM);
        assert_eq!(
            changed(&|new| new.dimensions[0].name = "y".into()),
            libc::EPERM
        );
        assert_eq!(
            changed(&|new| {
                new.dimensions.push(ClassicDimension {
                    name: "y".into(),
                    len: 1,
                    is_record: false,
                })
            }),
            libc::EPERM
        );
        assert_eq!(
            changed(&|new| new.variables[0].kind = Type::Int),
            libc::EPERM
        );
        assert_eq!(
            changed(&|new| new.variables[1].dimensions = vec![0, 0]),
            libc::EPERM
        );
        assert!(
            HeaderEdit::compare(&old.bytes(), &old.bytes()[..60])
                .unwrap()
                .is_none()
        );
    }

    fn attribute(name: &str, kind: Type, values: &[u8]) -> Attribute {
        Attribute {
            name: name.into(),
            kind,
            values: values.to_vec(),
        }
    }

    /// Returns the JSON of an attribute in a document that holds `before` under its name.
    fn stored(before: &str, kind: Type, values: &[u8]) -> Option<String> {
        let before = json::parse(before.as_bytes()).ok();
        value(&attribute("a", kind, values), before.as_ref()).map(|value| json::write(&value))
    }

    #[test]
    fn a_set_attribute_keeps_its_form() {
        for (before, kind, values, expected) in [
            ("", Type::Char, b"K".as_slice(), r#""K""#),
            ("", Type::Char, b"by NCO\0", r#""by NCO""#),
            (r#""1""#, Type::Char, b"2", r#""2""#),
            (
                r#"["lat","lon"]"#,
                Type::Char,
                b"lat lon time",
                r#"["lat","lon","time"]"#,
            ),
            (r#"{"a":1}"#, Type::Char, br#"{"a":2}"#, r#"{"a":2}"#),
            (r#"{"a":1}"#, Type::Char, b"text", r#""text""#),
            ("", Type::Short, &[0xff, 0xfe], "-2"),
            ("[1]", Type::Short, &[0, 2], "[2]"),
            ("1", Type::Short, &[0, 2, 0, 3], "[2,3]"),
            ("true", Type::Byte, &[0], "false"),
            ("[true,true]", Type::Byte, &[0, 1], "[false,true]"),
            ("true", Type::Byte, &[7], "7"),
            ("", Type::Float, &0.1f32.to_be_bytes(), "0.1"),
            ("", Type::Double, &1e300f64.to_be_bytes(), "1e+300"),
            ("", Type::UInt64, &[0xff; 8], "18446744073709551615"),
        ] {
            assert_eq!(
                stored(before, kind, values).as_deref(),
                Some(expected),
                "{before} {kind:?}"
            );
        }
        assert_eq!(stored("", Type::Double, &f64::NAN.to_be_bytes()), None);
        assert_eq!(stored("", Type::Char, &[0xff]), None);
    }

    #[test]
    fn a_fill_value_in_base64_stays_in_base64() {
        let before = "AAAAAAAA+H8=".into();
        let expected = Some("AAAAAICHw8A=".into());
        let fill = attribute("_FillValue", Type::Double, &(-9999.0f64).to_be_bytes());
        assert_eq!(value(&fill, Some(&before)), expected);
        let fill = attribute("_FillValue", Type::Float, &(-9999.0f32).to_be_bytes());
        assert_eq!(value(&fill, Some(&before)), expected);
        assert_eq!(value(&fill, None), Some(json::parse(b"-9999.0").unwrap()));
    }

    #[test]
    fn derived_attributes_cannot_be_changed() {
        let Ok(Value::Object(document)) = json::parse(br#"{"units":"K","hidden":[]}"#) else {
            panic!()
        };
        let text = |name: &str, value: &str| attribute(name, Type::Char, value.as_bytes());
        let old = [
            text("units", "K"),
            text("_FillValue", "x"),
            text(LEFT_OUT, "b: ..."),
        ];
        let made = |new: &[Attribute]| {
            let changes = changes(&old, new, &document, is_bookkeeping, false)?;
            Ok::<_, String>(
                changes
                    .into_iter()
                    .map(|(name, value)| (name, value.map(|v| json::write(&v))))
                    .collect::<Vec<_>>(),
            )
        };
        assert_eq!(made(&old), Ok(vec![]));
        let changed = [
            text("units", "C"),
            text("_FillValue", "x"),
            text("new", "n"),
        ];
        let expected = [("units", "\"C\""), ("new", "\"n\"")]
            .map(|(name, value)| (name.into(), Some(value.into())));
        assert_eq!(made(&changed), Ok(expected.to_vec()));
        assert_eq!(made(&old[1..]), Ok(vec![("units".into(), None)]));
        assert_eq!(made(&old[..1]), Err("_FillValue".into()));
        let with = |more: Attribute| made(&[&old[..], &[more]].concat()).map(drop);
        assert_eq!(
            with(text("_ARRAY_DIMENSIONS", "y")),
            Err("_ARRAY_DIMENSIONS".into())
        );
        assert_eq!(
            with(text("hidden", "y")),
            Err("hidden".into()),
            "it stands in the document, and not in the file"
        );
    }

    #[test]
    fn what_cdo_says_of_fill_values_changes_nothing() {
        let nan = f32::NAN.to_be_bytes();
        let fill = |values: &[u8]| attribute("_FillValue", Type::Float, values);
        let missing = |values: &[u8]| attribute("missing_value", Type::Float, values);
        let nine = 9f32.to_be_bytes();
        let none = Map::default();
        let changed = |old: &[Attribute], new: &[Attribute], coordinate| {
            changes(old, new, &none, is_bookkeeping, coordinate).map(|changes| changes.len())
        };
        let old = [fill(&nan)];
        assert_eq!(changed(&old, &[fill(&nan), missing(&nan)], false), Ok(0));
        // a `missing_value` that differs is an attribute like others
        assert_eq!(changed(&old, &[fill(&nan), missing(&nine)], false), Ok(1));
        assert!(changed(&[], &[missing(&nan)], false).is_err());
        assert!(changed(&old, &[fill(&nine), missing(&nan)], false).is_err());
        for coordinate in [false, true] {
            assert_eq!(changed(&old, &[], coordinate), Ok(0));
        }
        assert_eq!(changed(&[fill(&nine)], &[], true), Ok(0));
        assert!(changed(&[fill(&nine)], &[], false).is_err());
    }
}
