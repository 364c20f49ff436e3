//! Parses headers of netCDF's classic formats that other programs wrote: the counterpart of
//! `classic`. The input is untrusted: the parser accepts a count only if the file has bytes for
//! that many items.

use super::classic::{ClassicDimension, ClassicHeader, ClassicVersion, Variable};
use crate::group::attributes::Attribute;
use crate::group::types::Type;

/// The reason why bytes could not be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParseFailure {
    /// The bytes end before the header does.
    Short,
    /// The bytes are not a header.
    Wrong,
}

/// Parses the header at the beginning of `bytes`. A CDF-1 file is reported as CDF-2, which can hold
/// the same.
///
/// # Errors
///
/// [`ParseFailure`].
pub fn parse(bytes: &[u8]) -> Result<ClassicHeader, ParseFailure> {
    let (version, has_short_offsets, bytes) = match bytes {
        [b'C', b'D', b'F', 1, rest @ ..] => (ClassicVersion::Offset64, true, rest),
        [b'C', b'D', b'F', 2, rest @ ..] => (ClassicVersion::Offset64, false, rest),
        [b'C', b'D', b'F', 5, rest @ ..] => (ClassicVersion::Data64, false, rest),
        short if short.len() < 3 || short == b"CDF" => return Err(ParseFailure::Short),
        _ => return Err(ParseFailure::Wrong),
    };
    let mut reader = HeaderReader {
        bytes,
        version,
        has_short_offsets,
    };
    let records = reader.record_count()?;
    let dimensions = reader.list(0x0A, |reader| {
        let name = reader.name()?;
        let len = reader.number()?;
        // length 0 marks the record dimension
        let is_record = len == 0;
        Ok(ClassicDimension {
            name,
            len: if is_record { records } else { len },
            is_record,
        })
    })?;
    if dimensions
        .iter()
        .filter(|dimension| dimension.is_record)
        .count()
        > 1
    {
        return Err(ParseFailure::Wrong);
    }
    let attributes = reader.list(0x0C, HeaderReader::attribute)?;
    let variables = reader.list(0x0B, |reader| reader.variable(&dimensions))?;
    Ok(ClassicHeader {
        version,
        dimensions,
        attributes,
        variables,
    })
}

/// A reader of a header, with the bytes that are not parsed yet.
struct HeaderReader<'a> {
    bytes: &'a [u8],
    version: ClassicVersion,
    /// Whether offsets have 32 bits, as in CDF-1.
    has_short_offsets: bool,
}

impl<'a> HeaderReader<'a> {
    fn take(&mut self, len: u64) -> Result<&'a [u8], ParseFailure> {
        let len = usize::try_from(len).map_err(|_| ParseFailure::Short)?;
        let (taken, rest) = self
            .bytes
            .split_at_checked(len)
            .ok_or(ParseFailure::Short)?;
        self.bytes = rest;
        Ok(taken)
    }

    /// Takes `len` bytes and skips their padding to a multiple of four.
    fn padded(&mut self, len: u64) -> Result<&'a [u8], ParseFailure> {
        let taken = self.take(len)?;
        self.take(len.next_multiple_of(4) - len)?;
        Ok(taken)
    }

    fn short(&mut self) -> Result<u32, ParseFailure> {
        let (bytes, rest) = self.bytes.split_first_chunk().ok_or(ParseFailure::Short)?;
        self.bytes = rest;
        Ok(u32::from_be_bytes(*bytes))
    }

    fn long(&mut self) -> Result<u64, ParseFailure> {
        let (bytes, rest) = self.bytes.split_first_chunk().ok_or(ParseFailure::Short)?;
        self.bytes = rest;
        Ok(u64::from_be_bytes(*bytes))
    }

    /// Reads the number of records. `STREAMING`, an unknown number, is refused: netCDF-C does not
    /// write it.
    fn record_count(&mut self) -> Result<u64, ParseFailure> {
        let count = self.number()?;
        if self.version == ClassicVersion::Offset64 && count == u64::from(u32::MAX) {
            return Err(ParseFailure::Wrong);
        }
        Ok(count)
    }

    /// Reads a `NON_NEG`.
    fn number(&mut self) -> Result<u64, ParseFailure> {
        let number = match self.version {
            ClassicVersion::Offset64 => self.short()?.into(),
            ClassicVersion::Data64 => self.long()?,
        };
        if number > i64::MAX as u64 {
            Err(ParseFailure::Wrong)
        } else {
            Ok(number)
        }
    }

    fn name(&mut self) -> Result<String, ParseFailure> {
        let len = self.number()?;
        String::from_utf8(self.padded(len)?.to_vec()).map_err(|_| ParseFailure::Wrong)
    }

    /// Reads a list, or `ABSENT`.
    fn list<T>(
        &mut self,
        tag: u32,
        mut item: impl FnMut(&mut Self) -> Result<T, ParseFailure>,
    ) -> Result<Vec<T>, ParseFailure> {
        let found = self.short()?;
        let count = self.number()?;
        if found != tag && (found, count) != (0, 0) {
            return Err(ParseFailure::Wrong);
        }
        (0..count).map(|_| item(self)).collect()
    }

    fn kind(&mut self) -> Result<Type, ParseFailure> {
        let number = self.short()?;
        Type::ALL
            .into_iter()
            .find(|kind| *kind as u32 == number)
            .ok_or(ParseFailure::Wrong)
    }

    fn attribute(&mut self) -> Result<Attribute, ParseFailure> {
        let name = self.name()?;
        let kind = self.kind()?;
        let len = self
            .number()?
            .checked_mul(kind.size() as u64)
            .ok_or(ParseFailure::Wrong)?;
        Ok(Attribute {
            name,
            kind,
            values: self.padded(len)?.to_vec(),
        })
    }

    fn variable(&mut self, dimensions: &[ClassicDimension]) -> Result<Variable, ParseFailure> {
        let name = self.name()?;
        let count = self.number()?;
        let mut numbers = Vec::new();
        for _ in 0..count {
            numbers.push(usize::try_from(self.number()?).map_err(|_| ParseFailure::Wrong)?);
        }
        let attributes = self.list(0x0C, Self::attribute)?;
        let kind = self.kind()?;
        // skip `vsize`, which is not valid for large variables
        self.number()?;
        let begin = if self.has_short_offsets {
            self.short()?.into()
        } else {
            self.long()?
        };
        let dimensions: Option<Vec<_>> = numbers
            .iter()
            .map(|&number| dimensions.get(number))
            .collect();
        let dimensions = dimensions.ok_or(ParseFailure::Wrong)?;
        if dimensions
            .iter()
            .skip(1)
            .any(|dimension| dimension.is_record)
        {
            return Err(ParseFailure::Wrong);
        }
        let mut fixed = dimensions.iter().filter(|dimension| !dimension.is_record);
        let size = fixed
            .try_fold(kind.size() as u64, |size, dimension| {
                size.checked_mul(dimension.len)
            })
            .filter(|size| {
                size.checked_add(begin)
                    .is_some_and(|end| end <= i64::MAX as u64)
            })
            .ok_or(ParseFailure::Wrong)?;
        Ok(Variable {
            name,
            dimensions: numbers,
            attributes,
            kind,
            size,
            begin,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(version: ClassicVersion) -> ClassicHeader {
        let attribute = |name: &str, kind, values: &[u8]| Attribute {
            name: name.into(),
            kind,
            values: values.to_vec(),
        };
        let variable = |name: &str, dimensions: &[usize], kind, size, begin| Variable {
            name: name.into(),
            dimensions: dimensions.to_vec(),
            attributes: vec![attribute("units", Type::Char, b"m/s2!")],
            kind,
            size,
            begin,
        };
        let dimension = |name: &str, len| ClassicDimension {
            name: name.into(),
            len,
            is_record: name == "time",
        };
        ClassicHeader {
            version,
            dimensions: vec![
                dimension("y", 2),
                dimension("länge", 3),
                dimension("time", 5),
            ],
            attributes: vec![
                attribute("history", Type::Char, b""),
                attribute("n", Type::Short, &[0, 7]),
            ],
            variables: vec![
                variable("t", &[0, 1], Type::Double, 48, 4096),
                variable("s", &[], Type::Short, 2, 8192),
                variable("r", &[2, 1], Type::Short, 6, 12288),
            ],
        }
    }

    #[test]
    fn written_headers_parse_again() {
        for version in [ClassicVersion::Offset64, ClassicVersion::Data64] {
            let bytes = header(version).bytes();
            assert_eq!(parse(&bytes), Ok(header(version)));
            assert_eq!(
                parse(&[bytes.as_slice(), &[0xff; 100]].concat()),
                Ok(header(version))
            );
            for len in 0..bytes.len() {
                assert_eq!(parse(&bytes[..len]), Err(ParseFailure::Short), "{len}");
            }
        }
    }

    #[test]
    fn damaged_headers_do_not_panic() {
        let bytes = header(ClassicVersion::Data64).bytes();
        for at in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut broken = bytes.clone();
                broken[at] = value;
                let _ = parse(&broken);
            }
        }
        assert_eq!(parse(b"\x89HDF\r\n\x1a\n"), Err(ParseFailure::Wrong));
        assert_eq!(
            parse(b"CDF\x02\xff\xff\xff\xff\0\0\0\0"),
            Err(ParseFailure::Wrong),
            "streaming"
        );
        let mut two = header(ClassicVersion::Offset64);
        two.dimensions[0].is_record = true;
        assert_eq!(
            parse(&two.bytes()),
            Err(ParseFailure::Wrong),
            "two record dimensions"
        );
        let mut late = header(ClassicVersion::Offset64);
        late.variables[2].dimensions = vec![1, 2];
        assert_eq!(
            parse(&late.bytes()),
            Err(ParseFailure::Wrong),
            "records within a variable"
        );
        let many = [b"CDF\x05".as_slice(), &[0; 8], &[0, 0, 0, 0x0a], &[0x7f; 8]].concat();
        assert_eq!(parse(&many), Err(ParseFailure::Short));
    }
}
