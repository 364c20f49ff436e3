//! A file of netCDF's classic formats, CDF-1, CDF-2 or CDF-5, as a group of arrays. The header is
//! parsed by `zarrfs_export`, which writes it, too. Numbers become little-endian, as xarray writes
//! them.

use super::place::FilePlace;
use super::{IncomingArray, ItemSource, byte_count, read_start};
use std::collections::HashSet;
use std::fs::File;
use zarrfs_base::error::{Error, ErrorContext, Result};
use zarrfs_base::json::{self, Map, Value};
use zarrfs_base::memory::{self, Grant};
use zarrfs_export::classic_format::{
    Attribute, ClassicHeader, NumberKind, NumberType, ParseFailure, Type, Variable, parse,
};

/// Number of bytes that are read first: more than almost all headers have.
const FIRST_READ: usize = 64 << 10;

/// Maximum size of a header in bytes, far above real headers.
const MAX_HEADER: usize = 16 << 20;

/// Memory of a parsed header in bytes, for each of its bytes: an attribute without name and values
/// has 12 there, and some 400 in a list and a JSON object.
const PARSED: usize = 40;

/// netCDF's `NC_MAX_NAME` and `NC_MAX_VAR_DIMS`.
const MAX_NAME: usize = 256;
const MAX_DIMENSIONS: usize = 1024;

/// The attribute for missing values.
const FILL: &str = "_FillValue";

/// A file whose header is parsed, and whose items are all in the file.
pub struct ClassicFile {
    header: ClassicHeader,
    /// The memory of the header, released after it.
    _memory: Grant,
}

impl ClassicFile {
    /// Parses the header of a file of `len` bytes and checks it.
    ///
    /// # Errors
    ///
    /// Those of [`Incoming::open`](super::Incoming::open).
    pub fn open(file: &File, len: u64) -> Result<Self> {
        let mut size = FIRST_READ;
        loop {
            let memory = memory::take(size.min(len as usize) * PARSED)?;
            let start = read_start(file, size)?;
            match parse(&start) {
                Ok(header) => {
                    check_header(&header, len)?;
                    return Ok(ClassicFile {
                        header,
                        _memory: memory,
                    });
                }
                Err(ParseFailure::Wrong) => {
                    return Err(Error::invalid(
                        "its header breaks the classic netCDF format",
                    ));
                }
                Err(ParseFailure::Short) if (start.len() as u64) < len && size < MAX_HEADER => {
                    size *= 4;
                }
                Err(ParseFailure::Short) if start.len() as u64 >= len => {
                    return Err(Error::invalid("the file ends within its netCDF header"));
                }
                Err(ParseFailure::Short) => {
                    let why = format!("its netCDF header has more than {MAX_HEADER} bytes");
                    return Err(Error::invalid(why));
                }
            }
        }
    }

    pub fn count(&self) -> usize {
        self.header.variables.len()
    }

    pub fn name(&self, number: usize) -> &str {
        let variable = self.header.variables.get(number);
        variable.map_or("", |variable| &variable.name)
    }

    pub fn attributes(&self) -> Map<String, Value> {
        attributes(&self.header.attributes)
    }

    pub fn record(&self) -> Option<&str> {
        let mut dimensions = self.header.dimensions.iter();
        let record = dimensions.find(|dimension| dimension.is_record);
        record.map(|dimension| dimension.name.as_str())
    }

    pub fn array(&self, number: usize) -> Result<IncomingArray> {
        let variable = self.header.variables.get(number);
        let variable = variable.ok_or_else(|| Error::invalid("no such variable"))?;
        let item = variable.kind.size();
        let dimensions = variable.dimensions.iter();
        let dimensions: Vec<_> = dimensions
            .filter_map(|number| self.header.dimensions.get(*number))
            .collect();
        let shape: Vec<u64> = dimensions.iter().map(|dimension| dimension.len).collect();
        let mut place = FilePlace::dense(variable.begin, &shape, item, false);
        place.is_reversed = variable.kind != Type::Char;
        if self.header.is_record(variable) {
            place.strides[0] = self.header.record_step();
        }
        let named = dimensions.iter().map(|dimension| dimension.name.clone());
        let mut attributes = attributes(&variable.attributes);
        attributes.remove(FILL);
        Ok(IncomingArray {
            name: variable.name.clone(),
            dtype: dtype(variable.kind).into(),
            shape,
            dimensions: Some(named.collect()),
            attributes,
            missing: missing(variable).context(&variable.name)?,
            chunks: None,
            items: ItemSource::Place(place),
        })
    }
}

/// Checks that all variables of a file of `len` bytes can become arrays.
fn check_header(header: &ClassicHeader, len: u64) -> Result<()> {
    let mut names = HashSet::new();
    for dimension in &header.dimensions {
        check_name(&dimension.name)?;
    }
    for variable in &header.variables {
        check_name(&variable.name)?;
        if !names.insert(variable.name.as_str()) {
            let why = format!("two variables have the name {:?}", variable.name);
            return Err(Error::invalid(why));
        }
        if variable.dimensions.len() > MAX_DIMENSIONS {
            let why = format!(
                "{} has more than {MAX_DIMENSIONS} dimensions",
                variable.name
            );
            return Err(Error::invalid(why));
        }
        missing(variable).context(&variable.name)?;
    }
    check_places(header, len)
}

fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > MAX_NAME {
        let len = name.len();
        let why = format!("a name of {len} bytes; netCDF has names of 1 to {MAX_NAME}");
        return Err(Error::invalid(why));
    }
    Ok(())
}

/// Checks that the items of all variables are within a file of `len` bytes, and share no byte.
fn check_places(header: &ClassicHeader, len: u64) -> Result<()> {
    let records = header.record_count().unwrap_or(0);
    let step = header.record_step();
    let mut places: Vec<(u64, u64, &Variable)> = Vec::new();
    for variable in &header.variables {
        let too_short = |end: Option<u64>| {
            let needed = end.map_or("more".to_string(), |end| end.to_string());
            Error::invalid(format!(
                "{}: the file has {len} of {needed} bytes: it is truncated, or still being written",
                variable.name
            ))
        };
        let is_record = header.is_record(variable);
        if is_record && records == 0 {
            continue;
        }
        let more = if is_record { records - 1 } else { 0 };
        let last = byte_count(&[more], step).and_then(|more| more.checked_add(variable.begin));
        let end = last.and_then(|last| last.checked_add(variable.size));
        if end.is_none_or(|end| end > len) {
            return Err(too_short(end));
        }
        places.push((variable.begin, variable.begin + variable.size, variable));
        if more > 0 && variable.size > step {
            return Err(overlap(variable, variable));
        }
    }
    places.sort_by_key(|(begin, ..)| *begin);
    for pair in places.windows(2) {
        if pair[0].1 > pair[1].0 {
            return Err(overlap(pair[0].2, pair[1].2));
        }
    }
    // the records follow all other variables, and each begins where the one before ends
    let mut in_records = places
        .iter()
        .filter(|(.., variable)| header.is_record(variable));
    let Some((first, _, variable)) = in_records.next() else {
        return Ok(());
    };
    let last = in_records
        .next_back()
        .map_or(*first + step, |(_, end, _)| *end);
    let mut fixed = places
        .iter()
        .filter(|(.., variable)| !header.is_record(variable));
    let within = fixed.find(|(begin, ..)| begin > first);
    match within {
        Some((.., other)) => Err(overlap(variable, other)),
        None if records > 1 && last - first > step => Err(overlap(variable, variable)),
        None => Ok(()),
    }
}

fn overlap(one: &Variable, other: &Variable) -> Error {
    Error::invalid(format!(
        "the values of {} and {} overlap in the file",
        one.name, other.name
    ))
}

/// Returns the dtype for a type of netCDF.
fn dtype(kind: Type) -> String {
    kind.number()
        .map_or_else(|| "|S1".to_string(), number_dtype)
}

/// Returns the little-endian dtype for numbers.
pub fn number_dtype(number: NumberType) -> String {
    let letter = match number.kind {
        NumberKind::Signed => 'i',
        NumberKind::Unsigned => 'u',
        NumberKind::Float => 'f',
    };
    let order = if number.size == 1 { '|' } else { '<' };
    format!("{order}{letter}{}", number.size)
}

/// Returns the item that stands for missing values, little-endian.
///
/// # Errors
///
/// The attribute is not one value of the type of the variable.
fn missing(variable: &Variable) -> Result<Option<Vec<u8>>> {
    let mut attributes = variable.attributes.iter();
    let Some(fill) = attributes.find(|attribute| attribute.name == FILL) else {
        return Ok(None);
    };
    if fill.kind != variable.kind || fill.values.len() != fill.kind.size() {
        let why = "_FillValue is not one value of the type of the variable";
        return Err(Error::invalid(why));
    }
    let mut item = fill.values.clone();
    item.reverse();
    Ok(Some(item))
}

fn attributes(list: &[Attribute]) -> Map<String, Value> {
    let each = list.iter();
    each.map(|attribute| (attribute.name.clone(), value(attribute)))
        .collect()
}

/// Returns an attribute as xarray would write it: a text, a number, or a list of numbers.
fn value(attribute: &Attribute) -> Value {
    if attribute.kind == Type::Char {
        return text(&attribute.values).into();
    }
    let items = attribute.values.chunks_exact(attribute.kind.size());
    let mut numbers: Vec<Value> = match attribute.kind.number() {
        Some(number) => items.map(|item| number_value(number, item)).collect(),
        None => Vec::new(),
    };
    match numbers.len() {
        1 => numbers.remove(0),
        _ => Value::Array(numbers),
    }
}

/// Returns the text of an attribute, without the NULs with which C programs end texts.
pub fn text(bytes: &[u8]) -> String {
    utf8(bytes).replace('\0', "")
}

/// Returns a text. Bytes that are no UTF-8 are Latin-1, so that no byte is lost.
pub fn utf8(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_string(),
        Err(_) => bytes.iter().map(|byte| char::from(*byte)).collect(),
    }
}

/// Returns a number. A float becomes the double of the same value.
pub fn number_value(number: NumberType, item: &[u8]) -> Value {
    let bits = number.load(item);
    let text = match number.kind {
        NumberKind::Float => float_text(number.float(bits)),
        _ => number.integer(bits).to_string(),
    };
    json::parse(text.as_bytes()).unwrap_or_default()
}

fn float_text(x: f64) -> String {
    match x {
        _ if x.is_nan() => "NaN".to_string(),
        f64::INFINITY => "Infinity".to_string(),
        f64::NEG_INFINITY => "-Infinity".to_string(),
        _ => format!("{x:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Incoming;
    use proptest::prelude::*;
    use std::io::Write;
    use zarrfs_export::classic_format::{ClassicDimension, ClassicVersion};

    fn attribute(name: &str, kind: Type, values: &[u8]) -> Attribute {
        Attribute {
            name: name.into(),
            kind,
            values: values.to_vec(),
        }
    }

    /// Returns a header with `x(x=3)`, `t(time, x)` and `s(time)`, with two records, and the size
    /// of the file.
    fn header(version: ClassicVersion) -> (ClassicHeader, u64) {
        let dimension = |name: &str, len, is_record| ClassicDimension {
            name: name.into(),
            len,
            is_record,
        };
        let variable = |name: &str, dimensions: &[usize], kind: Type, size| Variable {
            name: name.into(),
            dimensions: dimensions.to_vec(),
            attributes: vec![attribute(FILL, kind, &[1; 8][..kind.size()])],
            kind,
            size,
            begin: 0,
        };
        let mut header = ClassicHeader {
            version,
            dimensions: vec![dimension("time", 2, true), dimension("x", 3, false)],
            attributes: vec![
                attribute("title", Type::Char, b"caf\xc3\xa9\0"),
                attribute("old", Type::Char, b"caf\xe9"),
                attribute("range", Type::Short, &[0, 1, 0xff, 0xff]),
                attribute("nan", Type::Float, &f32::NAN.to_be_bytes()),
                attribute("tenth", Type::Float, &0.1f32.to_be_bytes()),
                attribute("none", Type::Int, &[]),
            ],
            variables: vec![
                variable("x", &[1], Type::Short, 6),
                variable("t", &[0, 1], Type::Double, 24),
                variable("s", &[0], Type::Byte, 1),
            ],
        };
        let len = header.bytes().len() as u64;
        for (variable, at) in header.variables.iter_mut().zip([0, 8, 32]) {
            variable.begin = len + at;
        }
        // the padding of the last record may be missing
        (header, len + 8 + 28 + 25)
    }

    fn file(bytes: &[u8], len: u64) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file.set_len(len).unwrap();
        file
    }

    fn refusal(header: &ClassicHeader, len: u64) -> String {
        let opened = Incoming::open(&file(&header.bytes(), len));
        opened.err().unwrap().to_string()
    }

    #[test]
    fn variables_become_arrays() {
        for version in [ClassicVersion::Offset64, ClassicVersion::Data64] {
            let (header, len) = header(version);
            let incoming = Incoming::open(&file(&header.bytes(), len)).unwrap();
            assert!(incoming.is_group());
            assert_eq!(
                json::write(&Value::Object(incoming.groups()[0].attributes.clone())),
                r#"{"title":"café","old":"café","range":[1,-1],"nan":NaN,"tenth":0.10000000149011612,"none":[]}"#
            );
            let arrays: Vec<_> = (0..3).map(|n| incoming.array(n).unwrap()).collect();
            let begin = header.variables[0].begin;
            let named = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
            assert_eq!(arrays[1].dimensions, Some(named(&["time", "x"])));
            assert_eq!(arrays[1].shape, [2, 3]);
            assert_eq!(arrays[1].items.place().begin, begin + 8);
            assert_eq!(arrays[1].items.place().strides, [28, 8]);
            assert_eq!(arrays[2].items.place().strides, [28]);
            let dtypes = arrays.iter().map(|array| json::plain(&array.dtype));
            assert_eq!(dtypes.collect::<Vec<_>>(), ["<i2", "<f8", "|i1"]);
            assert_eq!(arrays[0].missing, Some(vec![1, 1]));
            assert!(arrays[0].attributes.is_empty());
        }
    }

    #[test]
    fn hostile_headers_are_refused() {
        let (good, len) = header(ClassicVersion::Offset64);
        assert!(refusal(&good, len - 1).starts_with("s: the file has "));
        let header_len = good.bytes().len() as u64;
        assert_eq!(
            refusal(&good, header_len - 1),
            "the file ends within its netCDF header"
        );
        let mut bad = good.clone();
        bad.variables[2].begin -= 1;
        assert_eq!(
            refusal(&bad, len),
            "the values of t and s overlap in the file"
        );
        let mut bad = good.clone();
        bad.variables[0].begin = good.variables[2].begin + 4;
        assert_eq!(
            refusal(&bad, len),
            "the values of t and x overlap in the file"
        );
        let mut bad = good.clone();
        bad.variables[2].begin += 4;
        assert_eq!(
            refusal(&bad, len + 4),
            "the values of t and t overlap in the file"
        );
        let mut bad = good.clone();
        bad.variables[1].name = "x".into();
        assert_eq!(refusal(&bad, len), "two variables have the name \"x\"");
        let mut bad = good.clone();
        bad.variables[1].attributes[0].kind = Type::Int64;
        assert!(refusal(&bad, len).starts_with("t: _FillValue is not one value"));
        let mut bad = good.clone();
        bad.dimensions[0].len = u64::from(u32::MAX) - 1;
        assert!(refusal(&bad, len).contains("it is truncated"));
        let mut bad = good;
        bad.dimensions[1].name = "n".repeat(257);
        bad.variables.clear();
        assert!(refusal(&bad, len).starts_with("a name of 257 bytes"));
    }

    #[test]
    fn a_header_that_claims_much_is_refused_with_little_memory() {
        let many = [b"CDF\x05".as_slice(), &[0; 8], &[0, 0, 0, 0x0a], &[0x7f; 8]].concat();
        assert!(Incoming::open(&file(&many, 1 << 40)).is_err());
    }

    proptest! {
        /// Whatever a header says, it is refused, or all its items are in the file.
        #[test]
        fn damaged_headers_are_refused_or_describe_the_file(
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
            is_wide: bool,
        ) {
            let version = if is_wide { ClassicVersion::Data64 } else { ClassicVersion::Offset64 };
            let (header, len) = header(version);
            let mut bytes = header.bytes();
            for (at, value) in changes {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            let file = file(&bytes, len);
            let Ok(incoming) = Incoming::open(&file) else { return Ok(()) };
            let mut total = 0;
            for n in 0..incoming.count() {
                let array = incoming.array(n).unwrap();
                let items: u64 = array.shape.iter().product();
                total += items * array.items.place().item as u64;
                prop_assert!(total <= len);
                let mut out = vec![0; items as usize * array.items.place().item];
                let start = vec![0; array.shape.len()];
                let shape = &array.shape;
                array.items.place().read_box(&file, &start, shape, shape, &mut out, &mut Vec::new()).unwrap();
            }
        }
    }
}
