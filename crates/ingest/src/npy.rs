//! NumPy's `.npy` (`numpy.lib.format`), versions 1 to 3, as one array. The dtype keeps its byte
//! order, so that `data.npy` of the array is the same file.

use super::place::FilePlace;
use super::{IncomingArray, ItemSource, byte_count, read_start};
use std::fs::File;
use zarrfs_base::error::{Error, ErrorContext, Result};
use zarrfs_base::json::{self, Map, Value};
use zarrfs_format::dtype::DType;

/// Maximum size of a header in bytes: more than `data.npy` of any array has.
const MAX_HEADER: usize = 1 << 20;

/// Maximum number of lists around a value in a header.
const MAX_DEPTH: usize = 64;

/// Number of bytes before the text of a header, with a length of four bytes.
const PREFIX: usize = 12;

/// A file whose header is parsed, and whose items are all in the file.
pub struct NpyFile {
    dtype: Value,
    shape: Vec<u64>,
    place: FilePlace,
}

impl NpyFile {
    /// Parses the header of a file of `len` bytes and checks it.
    ///
    /// # Errors
    ///
    /// Those of [`Incoming::open`](super::Incoming::open).
    pub fn open(file: &File, len: u64) -> Result<Self> {
        let (text, begin) = header_text(file)?;
        let fields = Literal {
            rest: text.trim_end(),
        }
        .whole()
        .ok_or_else(|| Error::invalid("its NPY header is no dictionary that NumPy writes"))?;
        let shape = shape(&fields)?;
        let is_fortran = fields.get("fortran_order").and_then(Value::as_bool);
        let is_fortran = is_fortran.ok_or_else(|| lacks("fortran_order"))?;
        let given = fields.get("descr").ok_or_else(|| lacks("descr"))?;
        let shown = format!("dtype {}", json::write(given));
        let dtype = DType::canonical_json(given).context(&shown)?;
        let parsed = DType::parse(&dtype).context(&shown)?;
        if parsed.has_objects() {
            let why = "Python objects, which a file holds as a pickle that only Python reads";
            return Err(Error::invalid(why).context(&shown));
        }
        parsed.check_storable(&dtype).context(&shown)?;
        let end = byte_count(&shape, parsed.size() as u64).and_then(|size| size.checked_add(begin));
        if end.is_none_or(|end| end > len) {
            let needed = end.map_or("more".to_string(), |end| end.to_string());
            let why = format!(
                "the file has {len} of {needed} bytes: it is truncated, or still being written"
            );
            return Err(Error::invalid(why));
        }
        if let Some(end) = end.filter(|end| *end < len) {
            let why = format!("{} bytes follow its array, which would be lost", len - end);
            return Err(Error::invalid(why));
        }
        let place = FilePlace::dense(begin, &shape, parsed.size(), is_fortran);
        Ok(NpyFile {
            dtype,
            shape,
            place,
        })
    }

    pub fn array(&self) -> IncomingArray {
        IncomingArray {
            name: String::new(),
            dtype: self.dtype.clone(),
            shape: self.shape.clone(),
            dimensions: None,
            attributes: Map::new(),
            missing: None,
            chunks: None,
            items: ItemSource::Place(self.place.clone()),
        }
    }
}

fn lacks(name: &str) -> Error {
    Error::invalid(format!("its NPY header has no {name}"))
}

/// Returns whether a file of `len` bytes is a header without any item.
pub fn is_header(file: &File, len: u64) -> bool {
    header_text(file).is_ok_and(|(_, end)| end == len)
}

/// Returns the text of the header, and the offset of the items in bytes.
fn header_text(file: &File) -> Result<(String, u64)> {
    let prefix = read_start(file, PREFIX)?;
    let (begin, len) = match prefix.get(6..) {
        Some([1, _, low, high, ..]) => (10, u16::from_le_bytes([*low, *high]).into()),
        Some([2 | 3, _, a, b, c, d]) => (PREFIX, u32::from_le_bytes([*a, *b, *c, *d]) as usize),
        Some([1..=3, ..]) => return Err(short()),
        Some([version, ..]) => {
            let why = format!("version {version} of NPY; versions 1 to 3 are known");
            return Err(Error::invalid(why));
        }
        _ => return Err(short()),
    };
    if len > MAX_HEADER {
        let why = format!("an NPY header of {len} bytes is more than {MAX_HEADER}");
        return Err(Error::invalid(why));
    }
    let whole = read_start(file, begin + len)?;
    let text = whole.get(begin..begin + len).ok_or_else(short)?;
    let is_utf8 = prefix[6] == 3;
    let text = if is_utf8 {
        String::from_utf8(text.to_vec()).map_err(|_| Error::invalid("its header is not UTF-8"))?
    } else {
        text.iter().map(|byte| char::from(*byte)).collect()
    };
    Ok((text, (begin + len) as u64))
}

fn short() -> Error {
    Error::invalid("the file ends within its NPY header")
}

fn shape(fields: &Value) -> Result<Vec<u64>> {
    let lengths = fields.get("shape").and_then(Value::as_array);
    let lengths = lengths.ok_or_else(|| lacks("shape"))?.iter();
    let lengths = lengths.map(|length| length.as_u64().filter(|n| i64::try_from(*n).is_ok()));
    let lengths: Option<Vec<u64>> = lengths.collect();
    lengths.ok_or_else(|| Error::invalid("a length of its shape is no number of items"))
}

/// The rest of a Python literal: dictionaries, tuples, lists, strings, whole numbers and booleans.
/// Tuples become lists.
struct Literal<'a> {
    rest: &'a str,
}

impl Literal<'_> {
    /// Parses all of the text.
    fn whole(mut self) -> Option<Value> {
        let value = self.value(0)?;
        self.skip_space();
        self.rest.is_empty().then_some(value)
    }

    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    /// Skips a token, and returns whether it was next.
    fn skip(&mut self, token: &str) -> bool {
        self.skip_space();
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        if depth > MAX_DEPTH {
            return None;
        }
        self.skip_space();
        match self.rest.chars().next()? {
            '{' => self.dictionary(depth),
            '(' => self.list("(", ")", depth),
            '[' => self.list("[", "]", depth),
            quote @ ('\'' | '"') => self.string(quote).map(Value::from),
            '0'..='9' => self.number(),
            _ if self.skip("True") => Some(true.into()),
            _ if self.skip("False") => Some(false.into()),
            _ => None,
        }
    }

    fn dictionary(&mut self, depth: usize) -> Option<Value> {
        let mut fields = Map::new();
        self.skip("{");
        while !self.skip("}") {
            let Value::String(name) = self.value(depth + 1)? else {
                return None;
            };
            if !self.skip(":") {
                return None;
            }
            fields.insert(name, self.value(depth + 1)?);
            if !self.skip(",") && !self.rest.starts_with('}') {
                return None;
            }
        }
        Some(Value::Object(fields))
    }

    /// Parses a list or tuple; one value in parentheses without a comma is that value.
    fn list(&mut self, open: &str, close: &str, depth: usize) -> Option<Value> {
        let mut items = Vec::new();
        self.skip(open);
        while !self.skip(close) {
            items.push(self.value(depth + 1)?);
            if self.skip(",") {
                continue;
            }
            if !self.skip(close) {
                return None;
            }
            if close == ")" && items.len() == 1 {
                return items.pop();
            }
            break;
        }
        Some(Value::Array(items))
    }

    /// Parses a string. NumPy writes names of fields with `repr`.
    fn string(&mut self, quote: char) -> Option<String> {
        let mut text = String::new();
        let mut chars = self.rest[1..].chars();
        loop {
            match chars.next()? {
                c if c == quote => break,
                '\\' => text.push(match chars.next()? {
                    c @ ('\\' | '\'' | '"') => c,
                    _ => return None,
                }),
                c => text.push(c),
            }
        }
        self.rest = chars.as_str();
        Some(text)
    }

    /// Parses a whole number; Python 2 ended long ones with `L`.
    fn number(&mut self) -> Option<Value> {
        let end = self.rest.find(|c: char| !c.is_ascii_digit());
        let (digits, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest.strip_prefix('L').unwrap_or(rest);
        digits.parse::<u64>().ok().map(Value::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Incoming;
    use proptest::prelude::*;
    use std::io::Write;

    fn file(version: u8, header: &str, items: usize) -> File {
        let mut bytes = b"\x93NUMPY".to_vec();
        bytes.extend([version, 0]);
        match version {
            1 => bytes.extend((header.len() as u16).to_le_bytes()),
            _ => bytes.extend((header.len() as u32).to_le_bytes()),
        }
        bytes.extend(header.bytes());
        bytes.resize(bytes.len() + items, 7);
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        file
    }

    fn array(version: u8, header: &str, items: usize) -> Result<IncomingArray> {
        Incoming::open(&file(version, header, items))?.array(0)
    }

    #[test]
    fn headers_of_all_versions_are_read() {
        let header = "{'descr': '>f4', 'fortran_order': False, 'shape': (2, 3), }   \n";
        for version in [1, 2, 3] {
            let found = array(version, header, 24).unwrap();
            assert_eq!((&found.dtype, &found.shape), (&">f4".into(), &vec![2, 3]));
            assert_eq!(found.items.place().strides, [12, 4]);
        }
        let fortran = "{\"shape\": (2L, 3L), 'fortran_order': True, 'descr': '<c16'}\n";
        assert_eq!(
            array(1, fortran, 96).unwrap().items.place().strides,
            [16, 32]
        );
        let scalar = "{'descr': '|b1', 'fortran_order': False, 'shape': ()}";
        assert_eq!(array(1, scalar, 1).unwrap().shape, [0u64; 0]);
        let empty = "{'descr': '<U5', 'fortran_order': False, 'shape': (0, 9)}";
        assert_eq!(array(1, empty, 0).unwrap().shape, [0, 9]);
        let fields = "{'descr': [('a', '<i2'), ('größe', '<f8', (2,))], 'fortran_order': False, 'shape': (1,)}";
        assert_eq!(
            json::write(&array(3, fields, 18).unwrap().dtype),
            r#"[["a","<i2"],["größe","<f8",[2]]]"#
        );
    }

    #[test]
    fn bad_headers_are_refused_with_the_reason() {
        let with = |descr: &str, shape: &str| {
            let header =
                format!("{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n");
            array(1, &header, 16).unwrap_err().to_string()
        };
        assert!(with("'|O'", "(2,)").contains("Python objects"));
        assert!(with("'<f4'", "(5,)").contains("truncated"));
        assert!(with("'<f4'", "(4611686018427387904, 4)").contains("of more bytes"));
        assert!(with("'<f4'", "(-1,)").contains("no dictionary"));
        assert!(with("'<f4'", "(18446744073709551615,)").contains("no number of items"));
        assert!(with("'<q9'", "(1,)").starts_with("dtype \"<q9\": "));
        assert!(with(&"[".repeat(1000), "(1,)").contains("no dictionary"));
        let version = array(9, "{}", 0).unwrap_err().to_string();
        assert!(version.starts_with("version 9 of NPY"));
        let lacks = array(1, "{'descr': '<f4'}", 0).unwrap_err().to_string();
        assert_eq!(lacks, "its NPY header has no shape");
        let mut short = tempfile::tempfile().unwrap();
        short.write_all(b"\x93NUMPY\x01\x00\x40").unwrap();
        let refusal = Incoming::open(&short).err().unwrap().to_string();
        assert_eq!(refusal, "the file ends within its NPY header");
    }

    proptest! {
        /// Any header is refused, or all its items are in the file.
        #[test]
        fn any_header_is_refused_or_describes_the_file(
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..5),
            version in 1u8..4,
        ) {
            let header = "{'descr': [('a', '<i2'), ('b', '>f4')], 'fortran_order': True, 'shape': (2, 3), }\n";
            let mut bytes = header.as_bytes().to_vec();
            for (at, value) in changes {
                let at = at.index(bytes.len());
                bytes[at] = value & 0x7f;
            }
            let header = String::from_utf8(bytes).unwrap();
            if let Ok(array) = array(version, &header, 36) {
                let items: u64 = array.shape.iter().product();
                prop_assert!(items * array.items.place().item as u64 <= 36);
            }
        }
    }
}
