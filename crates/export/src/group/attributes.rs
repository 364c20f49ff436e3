//! Converts the attributes of groups and arrays to those of a netCDF file. The file has typed lists
//! and text. An attribute that stands for values of a variable, such as `_FillValue`, must have the
//! variable's type (CF, "Attributes", appendix A). This module knows neither dimensions nor
//! offsets.

use super::GroupArray;
use super::names::UniqueNames;
use super::types::{Type, metadata_in_file, time_unit};
use crate::describe::{DIMENSIONS, StringEncoding, attribute_integer, attribute_items};
use zarrfs_base::json::{self, Map, Value};
use zarrfs_format::dtype::{DType, DTypeKind};
use zarrfs_format::metadata::ArrayMetadata;

/// The attribute of the file that lists the arrays that are not in it, with reasons.
pub const LEFT_OUT: &str = "zarrfs_left_out";

/// Size of the longest number in bytes: a complex of two long doubles.
const MAX_NUMBER: usize = 32;

/// NumPy's epoch, in the words of CF's time units.
const EPOCH: &str = "since 1970-01-01 00:00:00";

/// An attribute of a variable or of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attribute {
    /// The name, unique in its list.
    pub name: String,
    /// The type of the values.
    pub kind: Type,
    /// The big-endian values.
    pub values: Vec<u8>,
}

/// The attributes of one variable or of the file while they are collected.
struct AttributeList {
    integers: &'static [Type],
    names: UniqueNames,
    list: Vec<Attribute>,
}

impl AttributeList {
    fn new(integers: &'static [Type]) -> Self {
        AttributeList {
            integers,
            names: UniqueNames::default(),
            list: Vec::new(),
        }
    }

    fn push(&mut self, name: &str, kind: Type, values: Vec<u8>) {
        self.list.push(Attribute {
            name: self.names.give(name),
            kind,
            values,
        });
    }

    /// Adds a text unless the name is already taken.
    fn push_missing_text(&mut self, name: &str, text: &str) {
        if !self.names.has(name) {
            self.push(name, Type::Char, text.as_bytes().to_vec());
        }
    }

    fn push_json(&mut self, name: &str, value: &Value) {
        let (kind, values) = converted(value, self.integers);
        self.push(name, kind, values);
    }
}

/// Returns the attributes of a group, and one that lists the arrays that are not in the file.
pub fn of_group(
    stored: &Map<String, Value>,
    left_out: &[String],
    integers: &'static [Type],
) -> Vec<Attribute> {
    let mut out = AttributeList::new(integers);
    if !left_out.is_empty() {
        out.push_missing_text(LEFT_OUT, &left_out.join("\n"));
    }
    for (name, value) in stored
        .iter()
        .filter(|(name, _)| !is_bookkeeping(name) && *name != LEFT_OUT)
    {
        out.push_json(name, value);
    }
    out.list
}

/// Returns the attributes of an array whose values have the type `kind` in the file.
pub fn of_variable(member: &GroupArray, kind: Type, integers: &'static [Type]) -> Vec<Attribute> {
    let stored = &member.attributes;
    let dtype = &member.metadata().dtype;
    let with_sign = member.with_sign.as_ref();
    let unit = time_unit(member.metadata());
    let metadata = metadata_in_file(member.metadata(), member.form());
    let mut out = AttributeList::new(integers);
    if let Some(unit) = unit {
        out.push_missing_text("units", &format!("{unit} {EPOCH}"));
        out.push_missing_text("calendar", "proleptic_gregorian");
    }
    let is_text = match dtype.kind() {
        DTypeKind::Text => true,
        DTypeKind::Object => {
            StringEncoding::of(member.metadata()) != Some(StringEncoding::VlenBytes)
        }
        _ => false,
    };
    if is_text {
        // a convention of netCDF and xarray
        out.push_missing_text("_Encoding", "utf-8");
    }
    for (name, value) in stored.iter().filter(|(name, _)| !is_bookkeeping(name)) {
        match name.as_str() {
            // the dtype decides these
            "units" | "calendar" if unit.is_some() => {}
            "_Encoding" if out.names.has(name) => {}
            // the type states it
            "_Unsigned" if with_sign.is_some() => {}
            name => {
                // an attribute of the other sign is meant modulo 2^n
                let values =
                    typed(name, &metadata, value).or_else(|| typed(name, with_sign?, value));
                match (name, values, json::float(value)) {
                    (_, Some(values), _) => out.push(name, kind, values),
                    ("_FillValue", None, _) => {}
                    ("scale_factor" | "add_offset", None, Some(x)) => {
                        out.push(name, Type::Double, x.to_be_bytes().to_vec());
                    }
                    _ => out.push_json(name, value),
                }
            }
        }
    }
    if member.fill_is_missing
        && !out.names.has("_FillValue")
        && let Some(fill) = missing_value(&metadata, unit.is_some())
    {
        out.push("_FillValue", kind, fill);
    }
    match dtype.kind() {
        // NC_BYTE is signed unless this is set: a convention of netCDF and xarray
        DTypeKind::UInt if kind == Type::Byte => out.push_missing_text("_Unsigned", "true"),
        // xarray's mark of booleans
        DTypeKind::Bool => out.push_missing_text("dtype", "bool"),
        _ => {}
    }
    out.list
}

/// Returns whether the attribute is private to a library: names of dimensions, which the file has
/// anyway, netCDF-C's own types and links, GDAL's reference system.
pub fn is_bookkeeping(name: &str) -> bool {
    let prefixes = ["_NCZARR", "_nczarr", "_NCProperties"];
    [DIMENSIONS, "_CRS"].contains(&name) || prefixes.iter().any(|prefix| name.starts_with(prefix))
}

/// Returns the Zarr fill value as a value of the file if it may stand for missing values, as xarray
/// reads it. For booleans, texts and times it is an ordinary value, except NaT.
fn missing_value(metadata: &ArrayMetadata, is_time: bool) -> Option<Vec<u8>> {
    let dtype = &metadata.dtype;
    let item = big_endian(dtype, metadata.fill.clone()?)?;
    match dtype.kind() {
        _ if is_time => [i64::MIN.to_be_bytes(), (i64::MIN as f64).to_be_bytes()]
            .iter()
            .any(|nat| item == nat)
            .then_some(item),
        DTypeKind::Int | DTypeKind::UInt | DTypeKind::Float => Some(item),
        _ => None,
    }
}

/// Returns the big-endian values of an attribute that must have the variable's type. Returns `None`
/// for other attributes, and if the conversion would change a value.
fn typed(name: &str, metadata: &ArrayMetadata, value: &Value) -> Option<Vec<u8>> {
    let item: fn(&DType, &Value) -> Option<Vec<u8>> = match name {
        "_FillValue" | "missing_value" if metadata.v3.is_some() => missing_v3,
        "_FillValue" | "missing_value" => missing,
        "valid_min" | "valid_max" | "valid_range" | "flag_values" | "flag_masks" => same_spelling,
        _ => return None,
    };
    let list = attribute_items(value);
    // "If _FillValue is defined then it should be scalar"
    if list.is_empty() || name == "_FillValue" && list.len() > 1 {
        return None;
    }
    Some(
        list.iter()
            .map(|value| item(&metadata.dtype, value))
            .collect::<Option<Vec<_>>>()?
            .concat(),
    )
}

/// Converts a missing value of a v3 array: floats may be in base64, as xarray's `FillValueCoder`
/// writes them.
fn missing_v3(dtype: &DType, value: &Value) -> Option<Vec<u8>> {
    let encoded = json::text(value).filter(|_| *dtype.kind() == DTypeKind::Float);
    let bytes =
        encoded.filter(|text| json::float_word(text).is_none() && text.parse::<f64>().is_err());
    let Some(bytes) = bytes else {
        return missing(dtype, value);
    };
    let x = f64::from_le_bytes(json::base64_decode(bytes.as_bytes())?.try_into().ok()?);
    Some(if dtype.size() == 4 {
        (x as f32).to_be_bytes().to_vec()
    } else {
        x.to_be_bytes().to_vec()
    })
}

/// Converts a missing value: integers may be spelled as floats.
fn missing(dtype: &DType, value: &Value) -> Option<Vec<u8>> {
    match (dtype.kind(), json::text(value)) {
        (DTypeKind::Bytes, Some(text)) if text.len() == 1 => Some(text.as_bytes().to_vec()),
        (DTypeKind::Bytes, _) => None,
        (DTypeKind::Int | DTypeKind::UInt | DTypeKind::DateTime, None)
            if json::float(value)?.fract() != 0.0 =>
        {
            None
        }
        _ => big_endian(dtype, dtype.parse_fill_value(value).ok()??),
    }
}

/// Converts a value that is spelled as a number of the variable's type: an integer has no point and
/// no exponent. CF reads a value of another type as unpacked.
fn same_spelling(dtype: &DType, value: &Value) -> Option<Vec<u8>> {
    match dtype.kind() {
        DTypeKind::Int | DTypeKind::UInt => {
            attribute_integer(value).and_then(|_| missing(dtype, value))
        }
        DTypeKind::Float => json::float(value).and_then(|_| missing(dtype, value)),
        _ => None,
    }
}

/// Converts an item to a value of the file; `None` if it is longer than any number, as hostile
/// texts and raw bytes are. `item` is in the dtype's byte order, without its trailing zero bytes.
fn big_endian(dtype: &DType, mut item: Vec<u8>) -> Option<Vec<u8>> {
    if dtype.size() > MAX_NUMBER {
        return None;
    }
    item.resize(dtype.size(), 0);
    if !dtype.is_big_endian() {
        item.reverse();
    }
    Some(item)
}

/// Converts any value. A text stays, numbers get the smallest type of the file that holds all of
/// them exactly, or else become doubles. Words are joined with spaces, as CF lists names, and
/// everything else becomes JSON.
fn converted(value: &Value, integers: &'static [Type]) -> (Type, Vec<u8>) {
    let list = attribute_items(value);
    if list.is_empty() {
        return (Type::Char, json::write(value).into_bytes());
    }
    let booleans = list.iter().map(|v| v.as_bool().map(u8::from));
    if let Some(values) = booleans.collect::<Option<_>>() {
        return (Type::Byte, values);
    }
    let numbers: Option<Vec<i128>> = list.iter().map(attribute_integer).collect();
    if let Some(integers) = numbers.and_then(|list| smallest(&list, integers)) {
        return integers;
    }
    let floats: Option<Vec<_>> = list
        .iter()
        .map(|v| json::float(v).map(f64::to_be_bytes))
        .collect();
    if let Some(floats) = floats {
        return (Type::Double, floats.concat());
    }
    let text = words(list).unwrap_or_else(|| json::write(value));
    (Type::Char, text.into_bytes())
}

/// Converts integers to the first of the `types` that holds all of them.
fn smallest(list: &[i128], types: &[Type]) -> Option<(Type, Vec<u8>)> {
    let kind = *types.iter().find(|kind| {
        let number = kind.number();
        number.is_some_and(|number| list.iter().all(|n| number.integer_bits(*n).is_some()))
    })?;
    let bytes = list
        .iter()
        .flat_map(|n| n.to_be_bytes().into_iter().skip(16 - kind.size()));
    Some((kind, bytes.collect()))
}

/// Returns one text as it is, or several joined with spaces if they contain none.
fn words(list: &[Value]) -> Option<String> {
    let texts: Vec<&str> = list.iter().map(json::text).collect::<Option<_>>()?;
    let are_words = texts
        .iter()
        .all(|text| !text.is_empty() && !text.contains(char::is_whitespace));
    (texts.len() == 1 || are_words).then(|| texts.join(" "))
}
