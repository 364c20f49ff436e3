//! The data types of v3: names and extension objects become dtypes, and dtypes become names. The
//! module knows neither fill values nor codecs. Source of the names: the Zarr v3.1 specification,
//! the registry of its extensions, and `zarr.core.dtype` of zarr-python 3.1.

use crate::dtype::{DType, DTypeKind, UNITS};
use crate::dtype::{check_values, number_code, number_name, time_unit};
use crate::float_format::FloatFormat;
use crate::real::narrow_integer;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::json::{self, Map, Value, json};

/// A parsed data type.
#[derive(Clone, Debug, PartialEq)]
pub struct DataType {
    /// The items as a mount shows them. Types that NumPy lacks are opaque bytes, with the byte
    /// order of their numbers.
    pub dtype: DType,
    /// The NumPy spelling as `.zarray` has it; `None` if NumPy lacks the type.
    pub numpy: Option<Value>,
    /// The type of single numbers in codec configurations, such as `<f4` or `float8_e4m3`; `None`
    /// for other items.
    pub element: Option<String>,
}

/// The meaning of a name and its configuration.
struct Spelling {
    /// The dtype in the form of [`DType::parse`].
    dtype: Value,
    /// Whether NumPy has the type.
    is_numpy: bool,
    /// The value of [`DataType::element`].
    element: Option<String>,
}

impl DataType {
    /// Parses the `data_type` of a v3 document: a name, or an object of name and configuration.
    /// `big_endian` is the byte order of the chain's `bytes` codec; it applies to numbers, times,
    /// UTF-32 text, and the fields of structs.
    ///
    /// # Errors
    ///
    /// [`Kind::Unsupported`](zarrfs_base::error::Kind::Unsupported) for an unknown name or
    /// parameter, [`Kind::Damaged`](zarrfs_base::error::Kind::Damaged) for a bad configuration or
    /// an item that is too large.
    pub fn parse(value: &Value, big_endian: bool) -> Result<DataType> {
        Self::parse_value(value, big_endian).map_err(|e| e.context("data_type"))
    }

    fn parse_value(value: &Value, big_endian: bool) -> Result<DataType> {
        check_values(value)?;
        let spelling = Spelling::parse(value, big_endian)?;
        Ok(DataType {
            dtype: DType::parse(&spelling.dtype)?,
            numpy: spelling.is_numpy.then_some(spelling.dtype),
            element: spelling.element,
        })
    }
}

impl Spelling {
    fn parse(value: &Value, big_endian: bool) -> Result<Spelling> {
        let (name, configuration) = name_and_configuration(value)?;
        if let Some(bits) = name.strip_prefix('r').filter(|bits| is_number(bits)) {
            configuration.check_names(&[])?;
            return Spelling::raw_bits(bits);
        }
        let numpy_name = match name {
            "complex_float32" => "complex64",
            "complex_float64" => "complex128",
            _ => name,
        };
        if let Some(code) = number_code(numpy_name) {
            configuration.check_names(&[])?;
            return Ok(Spelling::number(code, big_endian));
        }
        if let Some((part, parts)) = opaque_parts(name) {
            configuration.check_names(&[])?;
            return Ok(Spelling::without_numpy(name, part, parts, big_endian));
        }
        match name {
            "raw_bytes" => Ok(Spelling::items(format!("|V{}", configuration.length()?))),
            "null_terminated_bytes" => {
                Ok(Spelling::items(format!("|S{}", configuration.length()?)))
            }
            "fixed_length_utf32" => configuration.utf32(big_endian),
            "numpy.datetime64" => configuration.time("M8", big_endian),
            "numpy.timedelta64" => configuration.time("m8", big_endian),
            "struct" | "structured" => configuration.fields(big_endian),
            _ if is_variable_length(name) => {
                configuration.check_names(&[])?;
                Ok(Spelling::items("|O".to_string()))
            }
            _ => Err(Error::unsupported(format!("{name:?} is unknown"))),
        }
    }

    /// Returns items other than single numbers, with a NumPy type string.
    fn items(dtype: String) -> Spelling {
        Spelling {
            dtype: dtype.into(),
            is_numpy: true,
            element: None,
        }
    }

    fn number(code: &str, big_endian: bool) -> Spelling {
        let dtype = match code.strip_suffix('1') {
            Some(_) => format!("|{code}"),
            None => format!("{}{code}", order(big_endian)),
        };
        Spelling {
            element: Some(dtype.clone()),
            ..Spelling::items(dtype)
        }
    }

    /// Returns a type that NumPy lacks, whose items have `parts` numbers of `part` bytes.
    fn without_numpy(name: &str, part: usize, parts: usize, big_endian: bool) -> Spelling {
        let order = if part == 1 { "" } else { order(big_endian) };
        let size = part * parts;
        Spelling {
            dtype: format!("{}V{size}", if part == 1 { "|" } else { order }).into(),
            is_numpy: false,
            element: Some(format!("{order}{name}")),
        }
    }

    /// Parses the digits of `r16`: a number of bits that is a multiple of 8.
    fn raw_bits(digits: &str) -> Result<Spelling> {
        match digits.parse::<u64>() {
            Ok(bits) if bits > 0 && bits % 8 == 0 => Ok(Spelling::items(format!("|V{}", bits / 8))),
            _ => Err(Error::damaged(format!(
                "r{digits:.20} has no positive multiple of 8 bits"
            ))),
        }
    }
}

/// The configuration of a data type.
struct Configuration<'a> {
    name: &'a str,
    members: Option<&'a Map<String, Value>>,
}

impl<'a> Configuration<'a> {
    /// Refuses parameters other than `names`.
    fn check_names(&self, names: &[&str]) -> Result<()> {
        match self
            .members
            .and_then(|members| members.keys().find(|name| !names.contains(&name.as_str())))
        {
            None => Ok(()),
            Some(other) => Err(Error::unsupported(format!(
                "parameter {other:?} of {:?} is unknown",
                self.name
            ))),
        }
    }

    fn get(&self, name: &str) -> Result<&'a Value> {
        let value = self.members.and_then(|members| members.get(name));
        value.ok_or_else(|| self.bad(&format!("has no {name}")))
    }

    fn bad(&self, why: &str) -> Error {
        Error::damaged(format!("{:?} {why}", self.name))
    }

    /// Returns `length_bytes`. [`DType::parse`] checks the maximum.
    fn length(&self) -> Result<u64> {
        self.check_names(&["length_bytes"])?;
        let length = self
            .get("length_bytes")?
            .as_u64()
            .filter(|length| *length > 0);
        length.ok_or_else(|| self.bad("has a length_bytes that is no positive integer"))
    }

    fn utf32(&self, big_endian: bool) -> Result<Spelling> {
        match self.length()? {
            length if length % 4 == 0 => Ok(Spelling::items(format!(
                "{}U{}",
                order(big_endian),
                length / 4
            ))),
            length => Err(self.bad(&format!("has a length_bytes of {length}, no multiple of 4"))),
        }
    }

    fn time(&self, code: &str, big_endian: bool) -> Result<Spelling> {
        self.check_names(&["unit", "scale_factor"])?;
        let unit = json::text(self.get("unit")?).filter(|unit| UNITS.contains(unit));
        let unit = unit.ok_or_else(|| self.bad("has an unknown unit"))?;
        let factor = self
            .get("scale_factor")?
            .as_u64()
            .filter(|factor| (1..1 << 31).contains(factor));
        let factor =
            factor.ok_or_else(|| self.bad("has a scale_factor outside 1 to 2147483647"))?;
        let text = format!("{}{code}[{factor}{unit}]", order(big_endian));
        DType::canonical(&text).map(Spelling::items)
    }

    fn fields(&self, big_endian: bool) -> Result<Spelling> {
        self.check_names(&["fields"])?;
        let list = self
            .get("fields")?
            .as_array()
            .ok_or_else(|| self.bad("has fields that are no list"))?;
        let mut whole = Spelling {
            dtype: Value::Null,
            is_numpy: true,
            element: None,
        };
        let mut parts = Vec::with_capacity(list.len());
        for (i, item) in list.iter().enumerate() {
            let (name, data_type) = field(item)
                .ok_or_else(|| self.bad(&format!("has a field {i} without name or type")))?;
            let part = Spelling::parse(data_type, big_endian)
                .map_err(|e| e.context(format!("field {name:?}")))?;
            if name.is_empty() || part.dtype == "|O" {
                return Err(self.bad(&format!(
                    "has a field {i} without a name or of variable length"
                )));
            }
            whole.is_numpy &= part.is_numpy;
            parts.push(json!([name, part.dtype]));
        }
        whole.dtype = Value::Array(parts);
        Ok(whole)
    }
}

/// Returns the name of a data type that [`DataType::parse`] accepted.
pub fn name(data_type: &Value) -> Option<&str> {
    json::text(data_type).or_else(|| json::text(data_type.get("name")?))
}

/// Returns the names and data types of the fields of a struct that [`DataType::parse`] accepted.
pub fn fields(data_type: &Value) -> Option<Vec<(&str, &Value)>> {
    data_type
        .get("configuration")?
        .get("fields")?
        .as_array()?
        .iter()
        .map(field)
        .collect()
}

/// Returns the v3 data type for a dtype of v2, and whether its items are big-endian. `spelled` is
/// the JSON form of the dtype. Returns `None` if v3 has no type for it: extended floats, subarrays,
/// objects, structs of mixed byte order, and items without bytes.
pub fn name_of(dtype: &DType, spelled: &Value) -> Option<(Value, bool)> {
    let mut orders = [false; 2];
    record_orders(dtype, &mut orders);
    let data_type = json_of(dtype, spelled)?;
    let is_big = orders[1];
    (orders != [true; 2] && DataType::parse(&data_type, is_big).is_ok())
        .then_some((data_type, is_big))
}

/// Records in `orders` whether parts of an item are little-endian, and whether parts are
/// big-endian.
fn record_orders(dtype: &DType, orders: &mut [bool; 2]) {
    match dtype.kind() {
        DTypeKind::Struct(fields) => fields
            .iter()
            .for_each(|field| record_orders(&field.dtype, orders)),
        DTypeKind::Bytes | DTypeKind::Void | DTypeKind::Object => {}
        _ if dtype.size() <= 1 => {}
        _ => orders[usize::from(dtype.is_big_endian())] = true,
    }
}

fn json_of(dtype: &DType, spelled: &Value) -> Option<Value> {
    let length = json!({"length_bytes": dtype.size()});
    let (name, configuration) = match dtype.kind() {
        DTypeKind::Void => ("raw_bytes", length),
        DTypeKind::Bytes => ("null_terminated_bytes", length),
        DTypeKind::Text => ("fixed_length_utf32", length),
        DTypeKind::DateTime => ("numpy.datetime64", unit_of(json::text(spelled)?)?),
        DTypeKind::TimeDelta => ("numpy.timedelta64", unit_of(json::text(spelled)?)?),
        DTypeKind::Object => return None,
        DTypeKind::Struct(fields) => {
            let parts = spelled
                .as_array()
                .filter(|parts| parts.len() == fields.len())?;
            let parts = fields.iter().zip(parts).map(|(field, part)| {
                let data_type =
                    json_of(&field.dtype, part.get(1)?).filter(|_| field.shape.is_empty())?;
                Some(json!({"name": field.name, "data_type": data_type}))
            });
            (
                "struct",
                json!({"fields": parts.collect::<Option<Vec<_>>>()?}),
            )
        }
        _ => {
            let canonical = DType::canonical(json::text(spelled)?).ok()?;
            return Some(number_name(canonical.get(1..)?)?.into());
        }
    };
    Some(json!({"name": name, "configuration": configuration}))
}

/// Returns the configuration of a time type: its unit in a type string such as `<M8[25s]`.
fn unit_of(text: &str) -> Option<Value> {
    let (count, word) = time_unit(text).unwrap_or(("", "generic"));
    let factor = if word == "generic" || count.is_empty() {
        1
    } else {
        count.parse::<u64>().ok()?
    };
    Some(json!({"unit": word.replace('μ', "u"), "scale_factor": factor}))
}

/// Returns the size in bytes of a number of a type that NumPy lacks, and how many an item has.
fn opaque_parts(name: &str) -> Option<(usize, usize)> {
    if narrow_integer(name).is_some() {
        return Some((1, 1));
    }
    let part = name.strip_prefix("complex_");
    let format = FloatFormat::parse(part.unwrap_or(name))?;
    Some((format.size(), if part.is_some() { 2 } else { 1 }))
}

/// Returns whether items of a type have no fixed size.
fn is_variable_length(name: &str) -> bool {
    matches!(
        name,
        "string" | "bytes" | "variable_length_bytes" | "binary"
    )
}

/// Splits a name or an extension object.
fn name_and_configuration(value: &Value) -> Result<(&str, Configuration<'_>)> {
    let members = match value {
        Value::Object(members) => members,
        _ => {
            let name =
                json::text(value).ok_or_else(|| Error::damaged("neither a name nor an object"))?;
            return Ok((
                name,
                Configuration {
                    name,
                    members: None,
                },
            ));
        }
    };
    let name = members
        .get("name")
        .and_then(json::text)
        .ok_or_else(|| Error::damaged("has no name"))?;
    for (member, value) in members {
        match (member.as_str(), value) {
            ("name" | "configuration", _) | ("must_understand", Value::Bool(_)) => {}
            ("must_understand", _) => return Err(Error::damaged("must_understand is no boolean")),
            _ => {
                return Err(Error::unsupported(format!(
                    "field {member:?} of {name:?} is unknown"
                )));
            }
        }
    }
    let members = match members.get("configuration") {
        None | Some(Value::Null) => None,
        Some(Value::Object(configuration)) => Some(configuration),
        Some(_) => {
            return Err(Error::damaged(format!(
                "{name:?} has a configuration that is no object"
            )));
        }
    };
    Ok((name, Configuration { name, members }))
}

/// Returns name and type of a field of a struct: an object, or a pair as zarr-python 3.1 writes.
fn field(item: &Value) -> Option<(&str, &Value)> {
    match item {
        Value::Array(pair) if pair.len() == 2 => Some((json::text(&pair[0])?, &pair[1])),
        Value::Object(members) if members.len() == 2 => {
            Some((json::text(members.get("name")?)?, members.get("data_type")?))
        }
        _ => None,
    }
}

fn is_number(digits: &str) -> bool {
    !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
}

fn order(big_endian: bool) -> &'static str {
    if big_endian { ">" } else { "<" }
}

#[cfg(test)]
mod tests;
