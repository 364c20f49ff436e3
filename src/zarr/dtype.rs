//! NumPy type strings as `.zarray` holds them: item size, byte order, fields; and fill values as bytes of one item. It
//! knows nothing of arrays or codecs. Rules: NumPy's array-interface strings, and `decode_fill_value` of zarr-python
//! 2.18.

use crate::error::{Error, Result};
use crate::util::json::{self, Value};
use std::collections::HashSet;

mod spelling;

/// The largest item size accepted, in bytes: NumPy's own limit (a C int).
const MAX_ITEM: u64 = i32::MAX as u64;

/// What the items are.
#[derive(Clone, Debug, PartialEq)]
pub enum DTypeKind {
    /// `b1`: any byte but 0 is true.
    Bool,
    /// `i`: two's complement, 1 to 8 bytes.
    Int,
    /// `u`: 1 to 8 bytes.
    UInt,
    /// `f`: IEEE 754 of 2, 4 or 8 bytes, or x86's extended float in 16.
    Float,
    /// `c`: two floats, the real part first.
    Complex,
    /// `m8`: a count of time units.
    TimeDelta,
    /// `M8`: a count of time units since 1970.
    DateTime,
    /// `S`: bytes, NUL padded.
    Bytes,
    /// `U`: UCS-4 text, NUL padded.
    Text,
    /// `V`: opaque bytes.
    Void,
    /// `O`: Python objects; their encoded form has no fixed size.
    Object,
    /// Named fields, packed in this order.
    Struct(Vec<Field>),
}

/// One field of a structured dtype: its name, the dtype of one element, and the shape of the subarray (empty: one).
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// Unique in its struct.
    pub name: String,
    /// Of one element.
    pub dtype: DType,
    /// Elements along each dimension.
    pub shape: Vec<u64>,
}

/// A NumPy dtype. Example: `">f8"` is `DTypeKind::Float`, 8 bytes, big-endian.
#[derive(Clone, Debug, PartialEq)]
pub struct DType {
    kind: DTypeKind,
    size: usize,
    big_endian: bool,
}

impl DType {
    /// Parses the `dtype` of array metadata: a type string, or a list of `[name, dtype]` or `[name, dtype, shape]`.
    pub fn parse(value: &Value) -> Result<Self> {
        match value {
            Value::Array(fields) => Self::parse_fields(fields),
            _ => match json::text(value) {
                Some(text) => Self::parse_str(text),
                None => Err(Error::damaged("dtype is neither a type string nor a list of fields")),
            },
        }
    }

    /// Parses a type string such as `<f4`, `|S7`, `>M8[ns]`; without a byte order it is little-endian, and the common
    /// names that `numpy.dtype` takes (`float32`, `bool`) are taken too.
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
        if !digits.bytes().all(|b| b.is_ascii_digit()) || !(unit.is_empty() || "mM".contains(letter) && is_unit(unit)) {
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
        Ok(DType { kind, size: item_size(size)?, big_endian })
    }

    fn parse_fields(list: &[Value]) -> Result<Self> {
        let mut fields: Vec<Field> = Vec::new();
        let mut names = HashSet::new();
        let mut size = 0u64;
        for (i, item) in list.iter().enumerate() {
            let bad = |why: &str| Error::damaged(format!("dtype: field {i} {why}"));
            let parts = item.as_array().filter(|p| (2..=3).contains(&p.len()));
            let parts = parts.ok_or_else(|| bad("is not [name, dtype] or [name, dtype, shape]"))?;
            let name = json::text(&parts[0]).ok_or_else(|| bad("has no name"))?;
            if !name.is_empty() && !names.insert(name.to_string()) {
                return Err(bad(&format!("repeats the name {name:?}")));
            }
            // numpy names a nameless field by its place
            let name = if name.is_empty() { format!("f{i}") } else { name.to_string() };
            let dtype = Self::parse(&parts[1]).map_err(|e| e.context(format!("field {name:?}")))?;
            let shape = match parts.get(2) {
                None => Vec::new(),
                Some(one @ Value::Number(_)) => vec![one.as_u64().ok_or_else(|| bad("has a bad shape"))?],
                Some(Value::Array(dims)) => {
                    dims.iter().map(Value::as_u64).collect::<Option<_>>().ok_or_else(|| bad("has a bad shape"))?
                }
                Some(_) => return Err(bad("has a bad shape")),
            };
            let count = shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d));
            let bytes = count.and_then(|n| n.checked_mul(dtype.size as u64));
            size = bytes.and_then(|b| size.checked_add(b)).ok_or_else(|| bad("is too large"))?;
            item_size(size)?;
            fields.push(Field { name, dtype, shape });
        }
        if fields.is_empty() {
            return Err(Error::damaged("dtype is an empty list of fields"));
        }
        Ok(DType { kind: DTypeKind::Struct(fields), size: item_size(size)?, big_endian: false })
    }

    /// What the items are.
    pub fn kind(&self) -> &DTypeKind {
        &self.kind
    }

    /// Bytes of one item; 8, a pointer as in NumPy, for objects.
    pub fn size(&self) -> usize {
        self.size
    }

    /// True if the bytes of an item stand in big-endian order. False for one-byte kinds and structs.
    pub fn is_big_endian(&self) -> bool {
        self.big_endian
    }

    /// True if the items are, or contain, Python objects.
    pub fn has_objects(&self) -> bool {
        match &self.kind {
            DTypeKind::Object => true,
            DTypeKind::Struct(fields) => fields.iter().any(|f| f.dtype.has_objects()),
            _ => false,
        }
    }

    /// True if the items count time, or hold fields that do: what one unit is, the bytes don't tell.
    pub fn has_time(&self) -> bool {
        match &self.kind {
            DTypeKind::TimeDelta | DTypeKind::DateTime => true,
            DTypeKind::Struct(fields) => fields.iter().any(|f| f.dtype.has_time()),
            _ => false,
        }
    }

    /// Returns an error unless NumPy makes an array of such items and zarr-python stores it: items and fields of no
    /// size, and times without a unit, are none.
    pub fn check_storable(&self, spelled: &Value) -> Result<()> {
        match (&self.kind, spelled) {
            (DTypeKind::Struct(fields), Value::Array(list)) => {
                fields.iter().zip(list).try_for_each(|(field, spelled)| {
                    let checked = match field.shape.contains(&0) {
                        true => Err(Error::invalid("holds no elements")),
                        false => field.dtype.check_storable(spelled.get(1).unwrap_or(&Value::Null)),
                    };
                    checked.map_err(|e| e.context(format!("field {:?}", field.name)))
                })
            }
            _ if self.size == 0 => Err(Error::invalid("an item of no bytes holds no value")),
            (DTypeKind::TimeDelta | DTypeKind::DateTime, Value::String(text)) => match text.split_once('[') {
                None | Some((_, "generic]")) => Err(Error::invalid("a time needs a unit, such as <M8[ns]")),
                Some((_, unit)) => {
                    let count = unit.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
                    let counts = count.is_empty() || count.parse::<i32>().is_ok_and(|count| count > 0);
                    if counts { Ok(()) } else { Err(Error::invalid("a time unit is counted from 1 to 2147483647")) }
                }
            },
            _ => Ok(()),
        }
    }

    /// The bytes of one item holding `fill_value` in Zarr v1, which had no base64: a text stands for its own bytes. Else
    /// as [`DType::fill`].
    pub fn parse_fill_value_v1(&self, fill_value: &Value) -> Result<Option<Vec<u8>>> {
        match (&self.kind, json::text(fill_value)) {
            (DTypeKind::Bytes, Some(text)) => {
                let mut bytes = self.fit(text.bytes());
                bytes.truncate(bytes.iter().rposition(|&b| b != 0).map_or(0, |last| last + 1));
                Ok(Some(bytes))
            }
            _ => self.parse_fill_value(fill_value),
        }
    }

    /// The bytes of one item holding `fill_value`, as zarr-python 2.18 reads it, without the zero bytes at its end: an
    /// item of a few letters in the document may have gigabytes. None for null and for objects.
    pub fn parse_fill_value(&self, fill_value: &Value) -> Result<Option<Vec<u8>>> {
        if fill_value.is_null() || self.has_objects() {
            return Ok(None);
        }
        let bytes = match &self.kind {
            DTypeKind::Struct(_) | DTypeKind::Void => self.fill_opaque(fill_value),
            DTypeKind::Bytes => self.fill_bytes(fill_value),
            DTypeKind::Text => python_str(fill_value)
                .map(|s| self.fit(s.chars().flat_map(|c| self.ordered(&(c as u32).to_le_bytes())))),
            DTypeKind::Complex => self.fill_complex(fill_value),
            _ => self.fill_number(fill_value, self.size),
        };
        let shown = || json::write(fill_value).chars().take(40).collect::<String>();
        let cut = |mut bytes: Vec<u8>| {
            bytes.truncate(bytes.iter().rposition(|&b| b != 0).map_or(0, |last| last + 1));
            bytes
        };
        bytes.map(cut).map(Some).ok_or_else(|| Error::damaged(format!("fill_value {} does not fit the dtype", shown())))
    }

    fn fill_opaque(&self, value: &Value) -> Option<Vec<u8>> {
        if value.as_i64() == Some(0) {
            return Some(Vec::new());
        }
        // padded or cut, as NumPy does
        Some(self.fit(json::base64_decode(json::text(value)?.as_bytes())?))
    }

    /// Base64; or, from before Zarr used base64, a plain text or a number.
    fn fill_bytes(&self, value: &Value) -> Option<Vec<u8>> {
        let decoded = json::text(value).and_then(|s| json::base64_decode(s.as_bytes()));
        let bytes = match decoded {
            Some(bytes) => bytes,
            None => python_str(value).filter(|s| s.is_ascii())?.into_bytes(),
        };
        Some(self.fit(bytes))
    }

    /// `real + 1j * imag`, as zarr-python computes it: an imaginary part that is not finite makes the real part NaN.
    fn fill_complex(&self, value: &Value) -> Option<Vec<u8>> {
        let half = self.size / 2;
        let Some([re, im]) = value.as_array().map(Vec::as_slice) else {
            let re = float_like(value)?;
            return Some([self.float_bytes(re, half), self.float_bytes(0.0, half)].concat());
        };
        let (re, im) = (float_like(re)?, float_like(im)?);
        let re = if im.is_finite() { re } else { f64::NAN };
        Some([self.float_bytes(re, half), self.float_bytes(im + 0.0, half)].concat())
    }

    fn fill_number(&self, value: &Value, size: usize) -> Option<Vec<u8>> {
        match self.kind {
            DTypeKind::Bool => match value {
                Value::Bool(b) => Some(vec![*b as u8]),
                _ => Some(vec![(float_like(value)? != 0.0) as u8]),
            },
            DTypeKind::Float => {
                let hex = json::text(value).and_then(|s| s.strip_prefix("0x")).filter(|h| h.len() == 2 * size);
                match hex {
                    Some(h) => (0..size)
                        .rev()
                        .map(|i| u8::from_str_radix(h.get(2 * i..2 * i + 2)?, 16).ok())
                        .collect::<Option<Vec<u8>>>()
                        .map(|b| self.ordered(&b)),
                    None => Some(self.float_bytes(float_like(value)?, size)),
                }
            }
            DTypeKind::TimeDelta | DTypeKind::DateTime if json::text(value) == Some("NaT") => {
                Some(self.ordered(&i64::MIN.to_le_bytes()))
            }
            DTypeKind::TimeDelta | DTypeKind::DateTime if !value.is_i64() => None,
            _ => {
                let n = integer_like(value)?;
                let bits = 8 * size as u32;
                let (low, high) = match self.kind {
                    DTypeKind::UInt => (0, (1i128 << bits) - 1),
                    _ => (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1),
                };
                (low..=high).contains(&n).then(|| self.ordered(&n.to_le_bytes()[..size]))
            }
        }
    }

    /// A float of `size` bytes in this dtype's byte order; 16 is x86's 80-bit extended float in a 16-byte slot.
    fn float_bytes(&self, v: f64, size: usize) -> Vec<u8> {
        match size {
            2 => self.ordered(&half::f16::from_f64(v).to_le_bytes()),
            4 => self.ordered(&(v as f32).to_le_bytes()),
            8 => self.ordered(&v.to_le_bytes()),
            _ => self.ordered(&extended(v)),
        }
    }

    fn ordered(&self, little: &[u8]) -> Vec<u8> {
        let mut bytes = little.to_vec();
        if self.big_endian {
            bytes.reverse();
        }
        bytes
    }

    /// Cut to the item size.
    fn fit(&self, bytes: impl IntoIterator<Item = u8>) -> Vec<u8> {
        bytes.into_iter().take(self.size).collect()
    }
}

fn item_size(bytes: u64) -> Result<usize> {
    if bytes > MAX_ITEM {
        return Err(Error::damaged(format!("dtype: an item of {bytes} bytes is too large")));
    }
    Ok(bytes as usize)
}

fn from_name(name: &str) -> Option<&'static str> {
    Some(match name {
        "bool" => "b1",
        "int8" => "i1",
        "int16" => "i2",
        "int32" => "i4",
        "int64" | "int" => "i8",
        "uint8" => "u1",
        "uint16" => "u2",
        "uint32" => "u4",
        "uint64" => "u8",
        "float16" => "f2",
        "float32" => "f4",
        "float64" | "float" => "f8",
        "complex64" => "c8",
        "complex128" | "complex" => "c16",
        "object" => "O",
        _ => return None,
    })
}

/// `[ns]`, `[25s]`: a count and a unit of time.
fn is_unit(text: &str) -> bool {
    let inner = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or("?");
    let unit = inner.trim_start_matches(|c: char| c.is_ascii_digit());
    ["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "μs", "ns", "ps", "fs", "as", "generic"].contains(&unit)
}

/// A number as NumPy makes it of a JSON value: a number, a boolean, or a string that spells a number.
fn float_like(value: &Value) -> Option<f64> {
    match value {
        Value::Bool(b) => Some(f64::from(u8::from(*b))),
        _ => json::float(value).or_else(|| {
            let s = json::text(value)?.trim();
            json::float_word(s).or_else(|| s.parse().ok())
        }),
    }
}

/// An integer as NumPy makes it: a fraction is cut off.
fn integer_like(value: &Value) -> Option<i128> {
    match value {
        Value::Number(n) => {
            n.as_str().parse().ok().or_else(|| json::float(value).filter(|f| f.abs() < 1e30).map(|f| f as i128))
        }
        Value::Bool(b) => Some(i128::from(*b)),
        _ => json::text(value)?.trim().parse().ok(),
    }
}

/// The text NumPy makes of a string or a number.
fn python_str(value: &Value) -> Option<String> {
    match value {
        Value::Number(n) if n.as_str().contains(['.', 'e', 'E']) => json::float(value).map(python_float),
        Value::Number(n) => Some(n.to_string()),
        _ => json::text(value).map(str::to_string),
    }
}

/// Python's `repr` of a float: the shortest digits, with an exponent below 1e-4 and from 1e16 on.
fn python_float(f: f64) -> String {
    let exponent = format!("{f:e}").split_once('e').and_then(|(_, e)| e.parse::<i32>().ok());
    match exponent {
        _ if f.is_infinite() => if f > 0.0 { "inf" } else { "-inf" }.to_string(),
        Some(e) if f != 0.0 && !(-4..16).contains(&e) => {
            let digits = format!("{f:e}");
            let digits = digits.split('e').next().unwrap_or_default();
            format!("{digits}e{}{:02}", if e < 0 { '-' } else { '+' }, e.abs())
        }
        _ if f.fract() == 0.0 => format!("{f:.1}"),
        _ => f.to_string(),
    }
}

/// x86's 80-bit extended float, little-endian, zero padded to 16 bytes. Example: 1.0 is mantissa 2^63, exponent 16383.
fn extended(v: f64) -> [u8; 16] {
    let bits = v.to_bits();
    let sign = ((bits >> 63) as u16) << 15;
    let fraction = bits << 12 >> 1;
    let (exponent, mantissa) = match (bits >> 52) as u16 & 0x7ff {
        0 if fraction == 0 => (0, 0),
        0 => {
            let shift = fraction.leading_zeros();
            (16383 - 1022 - shift as u16, fraction << shift)
        }
        0x7ff => (0x7fff, 1 << 63 | fraction),
        e => (e + 16383 - 1023, 1 << 63 | fraction),
    };
    let mut out = [0; 16];
    out[..8].copy_from_slice(&mantissa.to_le_bytes());
    out[8..10].copy_from_slice(&(sign | exponent).to_le_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole item.
    fn fill(dtype: &str, value: &str) -> Option<Vec<u8>> {
        let dtype = DType::parse(&json::parse(dtype.as_bytes()).unwrap()).unwrap();
        let mut item = dtype.parse_fill_value(&json::parse(value.as_bytes()).unwrap()).ok().flatten()?;
        assert!(item.last() != Some(&0));
        item.resize(dtype.size(), 0);
        Some(item)
    }

    #[test]
    fn a_vast_item_costs_nothing() {
        for (dtype, value, len) in [("|S2147483647", "\"\"", 0), ("<U500000000", "\"x\"", 1), ("|V2147483647", "0", 0)]
        {
            let value = json::parse(value.as_bytes()).unwrap();
            let item = DType::parse_str(dtype).unwrap().parse_fill_value(&value).unwrap().unwrap();
            assert_eq!((item.len(), item.capacity() < 100), (len, true), "{dtype}");
        }
    }

    #[test]
    fn type_strings() {
        for (text, size, big) in [
            ("<f4", 4, false),
            (">i2", 2, true),
            ("|b1", 1, false),
            ("<u1", 1, false),
            ("<U5", 20, false),
            (">M8[25s]", 8, true),
            ("|S0", 0, false),
            ("float32", 4, false),
            ("i8", 8, false),
            ("|O", 8, false),
            ("<f16", 16, false),
        ] {
            let d = DType::parse_str(text).unwrap();
            assert_eq!((d.size(), d.is_big_endian()), (size, big), "{text}");
        }
        for text in [
            "",
            "<",
            "<f-8",
            "<z4",
            "<u16",
            "|V99999999999",
            "|S4611686018427387904",
            "<i٤",
            "<f4[ns]",
            "<M8[q]",
            "<i",
            "é",
            "<b2",
            "f 4",
        ] {
            assert!(DType::parse_str(text).is_err(), "{text}");
        }
    }

    #[test]
    fn structs() {
        let d =
            DType::parse(&json::parse(br#"[["x","<u2",[2]],["y",[["z","<f4"],["w","|b1"]]],["t","<M8[s]"]]"#).unwrap())
                .unwrap();
        assert_eq!(d.size(), 17);
        for bad in [
            r#"[]"#,
            r#"[["a"]]"#,
            r#"[["a","<i4"],["a","<i4"]]"#,
            r#"[["a","<i8",[4611686018427387904,4]]]"#,
            r#"[["a","<i4",-1]]"#,
            "7",
            "null",
            r#"[["a","|V2147483647"],["b","|u1"]]"#,
        ] {
            assert!(DType::parse(&json::parse(bad.as_bytes()).unwrap()).is_err(), "{bad}");
        }
    }

    // expected bytes: numpy.array(decode_fill_value(...), dtype).tobytes() of zarr-python 2.18
    #[test]
    fn fill_values() {
        for (dtype, value, hex) in [
            ("\"<i4\"", "\"7\"", "07000000"),
            ("\"<i4\"", "0.0", "00000000"),
            ("\">i4\"", "-2", "fffffffe"),
            ("\"<u8\"", "18446744073709551615", "ffffffffffffffff"),
            ("\"<f4\"", "\"NaN\"", "0000c07f"),
            ("\"<f4\"", "NaN", "0000c07f"),
            ("\"<f4\"", "\"0x7fc00001\"", "0100c07f"),
            ("\">f2\"", "\"-Infinity\"", "fc00"),
            ("\"<f4\"", "1e400", "0000807f"),
            ("\"|b1\"", "true", "01"),
            ("\">c16\"", "[1.5, -2.5]", "3ff8000000000000c004000000000000"),
            ("\">c16\"", "[\"NaN\", \"Infinity\"]", "7ff80000000000007ff0000000000000"),
            ("\"|S1\"", "0", "30"),
            ("\"|S3\"", "1e10", "313030"),
            ("\"|S5\"", "3.5e2", "3335302e30"),
            ("\"|S7\"", "1e-7", "31652d30370000"),
            ("\"|S5\"", "1.5e300", "312e35652b"),
            ("\"|S3\"", "1e400", "696e66"),
            ("\"<U2\"", "0", "3000000000000000"),
            ("\">U2\"", "\"中中中\"", "00004e2d00004e2d"),
            ("\"|S7\"", "\"fn5+fn5+fg==\"", "7e7e7e7e7e7e7e"),
            ("\"|S3\"", "\"abc\"", "616263"),
            ("\"<M8[ns]\"", "1000", "e803000000000000"),
            ("\"<m8[s]\"", "\"NaT\"", "0000000000000080"),
            ("\"|V3\"", "\"AQL/\"", "0102ff"),
            ("\"|V3\"", "\"AQ==\"", "010000"),
            ("\"|V1\"", "\"AQL/\"", "01"),
            ("\"<f16\"", "1.0", "0000000000000080ff3f000000000000"),
        ] {
            let got = fill(dtype, value).map(|b| b.iter().map(|b| format!("{b:02x}")).collect::<String>());
            assert_eq!(got.as_deref(), Some(hex), "{dtype} {value}");
        }
        assert_eq!(fill("\"<i4\"", "null"), None);
        for (dtype, value) in [
            ("\"<i4\"", "\"x\""),
            ("\"|u1\"", "256"),
            ("\"<i8\"", "1e30"),
            ("\"<i4\"", "[1]"),
            ("\"<f4\"", "{}"),
            ("\"<c8\"", "[1]"),
            ("\"<M8[s]\"", "1.5"),
        ] {
            let dtype = DType::parse(&json::parse(dtype.as_bytes()).unwrap()).unwrap();
            assert!(dtype.parse_fill_value(&json::parse(value.as_bytes()).unwrap()).is_err(), "{value}");
        }
    }
}
