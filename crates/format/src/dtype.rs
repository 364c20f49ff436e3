//! NumPy data types: the type strings and field lists of `.zarray`, with item size, byte order and
//! fields. The module knows neither arrays nor codecs. Source of the rules: NumPy's array interface
//! protocol, and `encode_dtype` of zarr-python 2.18 for the canonical form.

use std::collections::HashSet;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::json::{self, Value};

/// Maximum item size in bytes: NumPy's own limit (a C int).
const MAX_ITEM: u64 = i32::MAX as u64;

/// Maximum number of JSON values that spell a dtype; a field takes three or more.
const MAX_VALUES: usize = 1 << 16;

/// The kind of a [`DType`]. The letters are those of NumPy's type strings.
#[derive(Clone, Debug, PartialEq)]
pub enum DTypeKind {
    /// `b1`: one byte; every value but 0 is true.
    Bool,
    /// `i`: two's complement integers of 1, 2, 4 or 8 bytes.
    Int,
    /// `u`: unsigned integers of 1, 2, 4 or 8 bytes.
    UInt,
    /// `f`: IEEE 754 floats of 2, 4 or 8 bytes, or x86 extended floats in 16 bytes.
    Float,
    /// `c`: two floats, the real part first.
    Complex,
    /// `m8`: a duration in time units.
    TimeDelta,
    /// `M8`: time units since 1970.
    DateTime,
    /// `S`: bytes, padded with NUL.
    Bytes,
    /// `U`: UCS-4 text, padded with NUL.
    Text,
    /// `V`: opaque bytes.
    Void,
    /// `O`: Python objects, whose encoded form has no fixed size.
    Object,
    /// Named fields, packed in this order.
    Struct(Vec<Field>),
}

/// One field of a structured dtype.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// The name, unique within its struct.
    pub name: String,
    /// The dtype of one element.
    pub dtype: DType,
    /// The shape of the subarray; empty for a single element.
    pub shape: Vec<u64>,
}

/// A NumPy dtype.
///
/// ```
/// use zarrfs_format::dtype::{DType, DTypeKind};
///
/// let dtype = DType::parse_str(">f8")?;
/// assert_eq!((dtype.kind(), dtype.size()), (&DTypeKind::Float, 8));
/// assert!(dtype.is_big_endian());
/// # Ok::<(), zarrfs_base::error::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct DType {
    kind: DTypeKind,
    size: usize,
    big_endian: bool,
}

impl DType {
    /// Parses the `dtype` of array metadata: a type string, or a list of `[name, dtype]` or `[name,
    /// dtype, shape]`.
    ///
    /// # Errors
    ///
    /// [`Kind::Damaged`](zarrfs_base::error::Kind::Damaged) if NumPy would not accept it, or if an
    /// item is too large, [`Kind::Unsupported`](zarrfs_base::error::Kind::Unsupported) for more
    /// than some 20,000 fields.
    pub fn parse(value: &Value) -> Result<Self> {
        check_values(value)?;
        Self::parse_checked(value)
    }

    fn parse_checked(value: &Value) -> Result<Self> {
        match value {
            Value::Array(fields) => Self::parse_fields(fields),
            _ => match json::text(value) {
                Some(text) => Self::parse_str(text),
                None => Err(Error::damaged(
                    "dtype is neither a type string nor a list of fields",
                )),
            },
        }
    }

    /// Parses a type string such as `<f4`, `|S7` or `>M8[ns]`, or a common name such as `float32`
    /// or `bool`. A string without a byte order is little-endian.
    ///
    /// # Errors
    ///
    /// The errors of [`DType::parse`].
    pub fn parse_str(text: &str) -> Result<Self> {
        let bad = || Error::damaged(format!("dtype {text:?} is not a NumPy type string"));
        let (big_endian, rest) = match text.as_bytes().first() {
            Some(b'>') => (true, &text[1..]),
            Some(b'<' | b'|' | b'=') => (false, &text[1..]),
            _ => (false, from_name(text).unwrap_or(text)),
        };
        let letter = rest.chars().next().ok_or_else(bad)?;
        let rest = &rest[letter.len_utf8()..];
        let (digits, unit) = match rest.find('[') {
            Some(at) => (&rest[..at], &rest[at..]),
            None => (rest, ""),
        };
        if !digits.bytes().all(|b| b.is_ascii_digit())
            || !(unit.is_empty()
                || "mM".contains(letter)
                    && time_unit(unit).is_some_and(|(_, word)| UNITS.contains(&word)))
        {
            return Err(bad());
        }
        let number = match digits {
            "" => None,
            _ => Some(digits.parse::<u64>().map_err(|_| bad())?),
        };
        let (kind, size) = match (letter, number) {
            ('b', Some(1)) => (DTypeKind::Bool, 1),
            ('i', Some(n @ (1 | 2 | 4 | 8))) => (DTypeKind::Int, n),
            ('u', Some(n @ (1 | 2 | 4 | 8))) => (DTypeKind::UInt, n),
            ('f', Some(n @ (2 | 4 | 8 | 16))) => (DTypeKind::Float, n),
            ('c', Some(n @ (8 | 16 | 32))) => (DTypeKind::Complex, n),
            ('m', Some(8)) => (DTypeKind::TimeDelta, 8),
            ('M', Some(8)) => (DTypeKind::DateTime, 8),
            ('S' | 'a', Some(n)) => (DTypeKind::Bytes, n),
            ('U', Some(n)) => (DTypeKind::Text, n.checked_mul(4).ok_or_else(bad)?),
            ('V', Some(n)) => (DTypeKind::Void, n),
            ('O', None | Some(8)) => (DTypeKind::Object, 8),
            _ => return Err(bad()),
        };
        Ok(DType {
            kind,
            size: item_size(size)?,
            big_endian,
        })
    }

    fn parse_fields(list: &[Value]) -> Result<Self> {
        let mut fields = Vec::new();
        let mut names = HashSet::new();
        let mut size = 0u64;
        for (i, item) in list.iter().enumerate() {
            let field = parse_field(i, item)?;
            // NumPy's name for a field without a name may be that of another field; only
            // `canonical_json` refuses this
            let is_named = item[0] != "";
            if is_named && !names.insert(field.name.clone()) {
                return Err(bad_field(i, &format!("repeats the name {:?}", field.name)));
            }
            let count = field.shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d));
            let bytes = count.and_then(|n| n.checked_mul(field.dtype.size as u64));
            size = bytes
                .and_then(|b| size.checked_add(b))
                .ok_or_else(|| bad_field(i, "is too large"))?;
            item_size(size)?;
            fields.push(field);
        }
        if fields.is_empty() {
            return Err(Error::damaged("dtype is an empty list of fields"));
        }
        Ok(DType {
            kind: DTypeKind::Struct(fields),
            size: item_size(size)?,
            big_endian: false,
        })
    }

    /// Returns the kind of the items.
    pub fn kind(&self) -> &DTypeKind {
        &self.kind
    }

    /// Returns the size of one item in bytes. For objects it is 8, a pointer, as in NumPy.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns whether the type string asks for big-endian items. Always false for structs, whose
    /// fields have a byte order each.
    pub fn is_big_endian(&self) -> bool {
        self.big_endian
    }

    /// Returns whether the items are, or contain, Python objects.
    pub fn has_objects(&self) -> bool {
        self.any(&|kind| *kind == DTypeKind::Object)
    }

    /// Returns whether the items are, or contain, times. Their unit is only in the type string.
    pub fn has_time(&self) -> bool {
        self.any(&|kind| matches!(kind, DTypeKind::TimeDelta | DTypeKind::DateTime))
    }

    /// Returns whether `test` holds for this dtype's kind or for that of a field at any depth.
    fn any(&self, test: &impl Fn(&DTypeKind) -> bool) -> bool {
        match &self.kind {
            DTypeKind::Struct(fields) => fields.iter().any(|field| field.dtype.any(test)),
            kind => test(kind),
        }
    }

    /// Checks that NumPy can make an array of such items and that zarr-python can store it.
    /// `spelled` is the JSON form of this dtype.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`](zarrfs_base::error::Kind::Invalid) for items and fields without bytes, and
    /// for times without a unit.
    pub fn check_storable(&self, spelled: &Value) -> Result<()> {
        match (&self.kind, spelled) {
            (DTypeKind::Struct(fields), Value::Array(list)) => {
                fields.iter().zip(list).try_for_each(|(field, spelled)| {
                    let checked = if field.shape.contains(&0) {
                        Err(Error::invalid("holds no elements"))
                    } else {
                        field
                            .dtype
                            .check_storable(spelled.get(1).unwrap_or(&Value::Null))
                    };
                    checked.map_err(|e| e.context(format!("field {:?}", field.name)))
                })
            }
            _ if self.size == 0 => Err(Error::invalid("an item of no bytes holds no value")),
            (DTypeKind::TimeDelta | DTypeKind::DateTime, Value::String(text)) => {
                match time_unit(text) {
                    None | Some(("", "generic")) => {
                        Err(Error::invalid("a time needs a unit, such as <M8[ns]"))
                    }
                    Some((count, _))
                        if count.is_empty() || count.parse::<i32>().is_ok_and(|n| n > 0) =>
                    {
                        Ok(())
                    }
                    Some(_) => Err(Error::invalid(
                        "a time unit is counted from 1 to 2147483647",
                    )),
                }
            }
            _ => Ok(()),
        }
    }

    /// Returns the canonical type string of `text`, which every reader of Zarr v2 accepts: `<f4`
    /// for `float32` and `f4`.
    ///
    /// # Errors
    ///
    /// The errors of [`DType::parse`].
    pub fn canonical(text: &str) -> Result<String> {
        Ok(Self::parse_str(text)?.canonical_text(text))
    }

    /// Returns the canonical form of a dtype in array metadata, which may be a list of fields.
    ///
    /// # Errors
    ///
    /// The errors of [`DType::parse`].
    pub fn canonical_json(value: &Value) -> Result<Value> {
        let dtype = Self::parse(value)?;
        match (value, &dtype.kind) {
            (Value::Array(list), DTypeKind::Struct(fields)) => {
                let fields = list.iter().zip(fields).map(|(spelled, field)| {
                    let dtype = spelled.get(1).map_or(
                        Err(Error::damaged("dtype: a field has none")),
                        Self::canonical_json,
                    )?;
                    let mut parts = vec![Value::from(field.name.as_str()), dtype];
                    if !field.shape.is_empty() {
                        parts.push(field.shape.clone().into());
                    }
                    Ok(Value::Array(parts))
                });
                let canonical = Value::Array(fields.collect::<Result<_>>()?);
                // refuses a name that NumPy made up for one field if another field has it
                Self::parse(&canonical).map(|_| canonical)
            }
            _ => Ok(dtype
                .canonical_text(json::text(value).unwrap_or_default())
                .into()),
        }
    }

    /// Returns the canonical form of `text`, a type string of this dtype.
    fn canonical_text(&self, text: &str) -> String {
        let bare = text.trim_start_matches(['<', '>', '|', '=']);
        let bare = match (from_name(bare).unwrap_or(bare), &self.kind) {
            (_, DTypeKind::Object) => "O".to_string(),
            (bare, DTypeKind::Bytes) => bare.replacen('a', "S", 1),
            (bare, DTypeKind::TimeDelta | DTypeKind::DateTime) => with_canonical_unit(bare),
            (bare, _) => bare.to_string(),
        };
        match self.kind {
            DTypeKind::Bytes | DTypeKind::Void | DTypeKind::Object => format!("|{bare}"),
            _ if self.size == 1 => format!("|{bare}"),
            _ if self.big_endian => format!(">{bare}"),
            _ => format!("<{bare}"),
        }
    }
}

/// Returns the error for field number `i` of a structured dtype.
fn bad_field(i: usize, why: &str) -> Error {
    Error::damaged(format!("dtype: field {i} {why}"))
}

/// Parses field number `i` of a structured dtype.
fn parse_field(i: usize, item: &Value) -> Result<Field> {
    let parts = item.as_array().filter(|p| (2..=3).contains(&p.len()));
    let parts =
        parts.ok_or_else(|| bad_field(i, "is not [name, dtype] or [name, dtype, shape]"))?;
    let name = match json::text(&parts[0]).ok_or_else(|| bad_field(i, "has no name"))? {
        // NumPy's name for a field without a name
        "" => format!("f{i}"),
        name => name.to_string(),
    };
    let dtype =
        DType::parse_checked(&parts[1]).map_err(|e| e.context(format!("field {name:?}")))?;
    let shape = match parts.get(2) {
        None => Some(Vec::new()),
        Some(Value::Array(dims)) => dims.iter().map(Value::as_u64).collect(),
        Some(dim) => dim.as_u64().map(|dim| vec![dim]),
    };
    Ok(Field {
        name,
        dtype,
        shape: shape.ok_or_else(|| bad_field(i, "has a bad shape"))?,
    })
}

/// Checks the number of JSON values that spell a dtype or a data type of v3, before anything is
/// made of them.
///
/// # Errors
///
/// [`Kind::Unsupported`](zarrfs_base::error::Kind::Unsupported) for too many.
pub fn check_values(value: &Value) -> Result<()> {
    match json::count_values(value) {
        0..=MAX_VALUES => Ok(()),
        _ => Err(Error::unsupported(format!(
            "a type of more than {} fields",
            MAX_VALUES / 3
        ))),
    }
}

fn item_size(bytes: u64) -> Result<usize> {
    if bytes > MAX_ITEM {
        return Err(Error::damaged(format!(
            "dtype: an item of {bytes} bytes is too large"
        )));
    }
    Ok(bytes as usize)
}

/// The names of numbers in NumPy and Zarr v3, and their type strings without byte order.
const NUMBERS: [(&str, &str); 14] = [
    ("bool", "b1"),
    ("int8", "i1"),
    ("int16", "i2"),
    ("int32", "i4"),
    ("int64", "i8"),
    ("uint8", "u1"),
    ("uint16", "u2"),
    ("uint32", "u4"),
    ("uint64", "u8"),
    ("float16", "f2"),
    ("float32", "f4"),
    ("float64", "f8"),
    ("complex64", "c8"),
    ("complex128", "c16"),
];

/// Returns the type string, without byte order, of the numbers with this name.
pub fn number_code(name: &str) -> Option<&'static str> {
    let number = NUMBERS.iter().find(|(number, _)| *number == name)?;
    Some(number.1)
}

/// Returns the name of the numbers with this type string without byte order.
pub fn number_name(code: &str) -> Option<&'static str> {
    let number = NUMBERS.iter().find(|(_, number)| *number == code)?;
    Some(number.0)
}

/// Returns the type string, without byte order, of a name that `numpy.dtype` accepts.
fn from_name(name: &str) -> Option<&'static str> {
    match name {
        "int" => Some("i8"),
        "float" => Some("f8"),
        "complex" => Some("c16"),
        "object" => Some("O"),
        _ => number_code(name),
    }
}

/// The units of time types.
pub const UNITS: [&str; 15] = [
    "Y", "M", "W", "D", "h", "m", "s", "ms", "us", "μs", "ns", "ps", "fs", "as", "generic",
];

/// Returns the digits of the count and the unit in a type string such as `<M8[25s]`, or `None` if
/// it has no unit.
pub fn time_unit(text: &str) -> Option<(&str, &str)> {
    let (_, unit) = text.strip_suffix(']')?.split_once('[')?;
    let word = unit.trim_start_matches(|c: char| c.is_ascii_digit());
    Some(unit.split_at(unit.len() - word.len()))
}

/// Spells the unit of a time type as NumPy does: `M8[25s]` for `M8[025s]`.
fn with_canonical_unit(bare: &str) -> String {
    let Some(((start, _), (count, word))) = bare.split_once('[').zip(time_unit(bare)) else {
        return bare.to_string();
    };
    let word = word.replace('μ', "u");
    match (word.as_str(), count.trim_start_matches('0')) {
        ("generic", _) => start.to_string(),
        (word, "1") => format!("{start}[{word}]"),
        (word, count) => format!("{start}[{count}{word}]"),
    }
}

#[cfg(test)]
mod tests;
