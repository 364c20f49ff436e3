//! Writes the header of a netCDF file: dimensions, attributes and variables, by "The NetCDF Classic
//! Format Specification" (netcdf-c, `docs/file_format_specifications.md`) and PnetCDF's "CDF-5".
//! All numbers are big-endian, and all fields are padded to multiples of four bytes. This module
//! knows nothing of Zarr.

use crate::group::attributes::Attribute;
use crate::group::types::Type;

/// The 32-bit `vsize` of a variable of more than 2^32 - 4 bytes: readers compute it from the
/// dimensions.
const TOO_LARGE: u32 = u32::MAX;

/// A version of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassicVersion {
    /// CDF-2, with 64-bit offsets and 32-bit lengths and counts. Every netCDF reader knows it.
    Offset64,
    /// CDF-5, with 64-bit numbers throughout, and unsigned and 64-bit integers.
    Data64,
}

impl ClassicVersion {
    /// Returns the types of integers of any size in an attribute, the smallest first.
    pub fn integers(self) -> &'static [Type] {
        match self {
            ClassicVersion::Offset64 => &Type::INTEGERS[..1],
            ClassicVersion::Data64 => &Type::INTEGERS,
        }
    }
}

/// A dimension.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassicDimension {
    /// The name, unique in the file.
    pub name: String,
    /// The length, at least 1; of the record dimension the number of records, which may be 0.
    pub len: u64,
    /// Whether it is the record dimension, of which a file has at most one. The format marks it by
    /// length 0.
    pub is_record: bool,
}

/// A variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// The name, unique in the file.
    pub name: String,
    /// The indices of the dimensions, the slowest first.
    pub dimensions: Vec<usize>,
    /// The attributes.
    pub attributes: Vec<Attribute>,
    /// The type of the values.
    pub kind: Type,
    /// The size of the data in bytes; of a record variable, in each record.
    pub size: u64,
    /// The offset of the data in bytes; of a record variable, in the first record.
    pub begin: u64,
}

impl Variable {
    /// Returns `vsize`: "the product of the dimension lengths and the number of bytes per value,
    /// increased to the next multiple of 4".
    pub fn padded_size(&self) -> u64 {
        self.size.saturating_add(3) / 4 * 4
    }
}

/// The header of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassicHeader {
    /// The version of the format.
    pub version: ClassicVersion,
    /// The dimensions.
    pub dimensions: Vec<ClassicDimension>,
    /// The attributes of the file.
    pub attributes: Vec<Attribute>,
    /// The variables in the order of their data.
    pub variables: Vec<Variable>,
}

impl ClassicHeader {
    /// Returns the number of records; `None` if there is no record dimension.
    pub fn record_count(&self) -> Option<u64> {
        self.dimensions
            .iter()
            .find(|dimension| dimension.is_record)
            .map(|dimension| dimension.len)
    }

    /// Returns whether a variable has values in each record.
    pub fn is_record(&self, variable: &Variable) -> bool {
        let first = variable
            .dimensions
            .first()
            .and_then(|&number| self.dimensions.get(number));
        first.is_some_and(|dimension| dimension.is_record)
    }

    /// Returns the number of bytes from one record to the next: "if there is only one record
    /// variable, ... records are not padded".
    pub fn record_step(&self) -> u64 {
        let mut variables = self
            .variables
            .iter()
            .filter(|variable| self.is_record(variable));
        match (variables.next(), variables.next()) {
            (Some(only), None) => only.size,
            (Some(one), Some(other)) => [one, other]
                .into_iter()
                .chain(variables)
                .map(Variable::padded_size)
                .fold(0, u64::saturating_add),
            _ => 0,
        }
    }

    /// Returns the header's bytes. Their number does not depend on the offsets of the data.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Writer {
            version: self.version,
            bytes: b"CDF".to_vec(),
        };
        out.bytes.push(match self.version {
            ClassicVersion::Offset64 => 2,
            ClassicVersion::Data64 => 5,
        });
        out.number(self.record_count().unwrap_or(0));
        out.list(0x0A, &self.dimensions, |out, dimension| {
            out.name(&dimension.name);
            out.number(if dimension.is_record {
                0
            } else {
                dimension.len
            });
        });
        out.attributes(&self.attributes);
        out.list(0x0B, &self.variables, Writer::variable);
        out.bytes
    }
}

struct Writer {
    version: ClassicVersion,
    bytes: Vec<u8>,
}

impl Writer {
    /// Writes a `NON_NEG`. In CDF-2 only the size of a variable may exceed 32 bits.
    fn number(&mut self, n: u64) {
        match self.version {
            ClassicVersion::Offset64 => self
                .bytes
                .extend(u32::try_from(n).unwrap_or(TOO_LARGE).to_be_bytes()),
            ClassicVersion::Data64 => self.bytes.extend(n.to_be_bytes()),
        }
    }

    fn tag(&mut self, tag: u32) {
        self.bytes.extend(tag.to_be_bytes());
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn name(&mut self, name: &str) {
        self.number(name.len() as u64);
        self.bytes.extend(name.bytes());
        self.pad();
    }

    /// Writes a list, or `ABSENT` if it is empty.
    fn list<T>(&mut self, tag: u32, items: &[T], mut write: impl FnMut(&mut Self, &T)) {
        self.tag(if items.is_empty() { 0 } else { tag });
        self.number(items.len() as u64);
        for item in items {
            write(self, item);
        }
    }

    fn attributes(&mut self, attributes: &[Attribute]) {
        self.list(0x0C, attributes, |out, attribute| {
            out.name(&attribute.name);
            out.tag(attribute.kind as u32);
            out.number((attribute.values.len() / attribute.kind.size()) as u64);
            out.bytes.extend(&attribute.values);
            out.pad();
        });
    }

    fn variable(&mut self, variable: &Variable) {
        self.name(&variable.name);
        self.number(variable.dimensions.len() as u64);
        for &dimension in &variable.dimensions {
            self.number(dimension as u64);
        }
        self.attributes(&variable.attributes);
        self.tag(variable.kind as u32);
        self.number(variable.padded_size());
        self.bytes.extend(variable.begin.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(name: &str, kind: Type, values: &[u8]) -> Attribute {
        Attribute {
            name: name.into(),
            kind,
            values: values.to_vec(),
        }
    }

    /// Returns a header with `t(y, lon)` with units, `flags(lon)` with a range, and a scalar `s`.
    fn header(version: ClassicVersion, t: Type, flags: Type, begins: [u64; 3]) -> Vec<u8> {
        let dimension = |name: &str, len| ClassicDimension {
            name: name.into(),
            len,
            is_record: false,
        };
        let variable =
            |name: &str, dimensions: &[usize], attributes, kind: Type, size, begin| Variable {
                name: name.into(),
                dimensions: dimensions.to_vec(),
                attributes,
                kind,
                size,
                begin,
            };
        let units = attribute("units", Type::Char, b"K");
        let range = attribute("valid_range", flags, &[0, 9]);
        let header = ClassicHeader {
            version,
            dimensions: vec![dimension("y", 2), dimension("lon", 3)],
            attributes: vec![
                attribute("title", Type::Char, b"tiny"),
                attribute("n", Type::Int, &[0, 0, 0, 7]),
            ],
            variables: vec![
                variable("t", &[0, 1], vec![units], t, 48, begins[0]),
                variable("flags", &[1], vec![range], flags, 3, begins[1]),
                variable("s", &[], Vec::new(), Type::Short, 2, begins[2]),
            ],
        };
        header.bytes()
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }

    // expected bytes: written by netCDF4-python 1.7.5, netcdf-c 4.10.1

    #[test]
    fn a_header_with_64_bit_offsets_equals_that_of_netcdf_c() {
        let expected = [
            "43444602000000000000000a00000002000000017900000000000002000000036c6f6e00000000030000000c00000002",
            "000000057469746c65000000000000020000000474696e79000000016e0000000000000400000001000000070000000b",
            "0000000300000001740000000000000200000000000000010000000c0000000100000005756e69747300000000000002",
            "000000014b0000000000000600000030000000000000011400000005666c61677300000000000001000000010000000c",
            "000000010000000b76616c69645f72616e67650000000001000000020009000000000001000000040000000000000144",
            "000000017300000000000000000000000000000000000003000000040000000000000148",
        ];
        let bytes = header(
            ClassicVersion::Offset64,
            Type::Double,
            Type::Byte,
            [0x114, 0x144, 0x148],
        );
        assert_eq!(hex(&bytes), expected.concat());
        assert_eq!(bytes.len(), 0x114);
    }

    #[test]
    fn a_header_with_64_bit_data_equals_that_of_netcdf_c() {
        let expected = [
            "4344460500000000000000000000000a0000000000000002000000000000000179000000000000000000000200000000",
            "000000036c6f6e0000000000000000030000000c000000000000000200000000000000057469746c6500000000000002",
            "000000000000000474696e7900000000000000016e000000000000040000000000000001000000070000000b00000000",
            "000000030000000000000001740000000000000000000002000000000000000000000000000000010000000c00000000",
            "000000010000000000000005756e6974730000000000000200000000000000014b0000000000000b0000000000000030",
            "00000000000001900000000000000005666c616773000000000000000000000100000000000000010000000c00000000",
            "00000001000000000000000b76616c69645f72616e676500000000070000000000000002000900000000000700000000",
            "0000000400000000000001c0000000000000000173000000000000000000000000000000000000000000000000000003",
            "000000000000000400000000000001c4",
        ];
        let bytes = header(
            ClassicVersion::Data64,
            Type::UInt64,
            Type::UByte,
            [0x190, 0x1c0, 0x1c4],
        );
        assert_eq!(hex(&bytes), expected.concat());
        assert_eq!(bytes.len(), 0x190);
    }

    // "This empty netCDF file has 32 bytes", but for the version
    #[test]
    fn an_empty_file_has_32_bytes() {
        let header = ClassicHeader {
            version: ClassicVersion::Offset64,
            dimensions: vec![],
            attributes: vec![],
            variables: vec![],
        };
        assert_eq!(hex(&header.bytes()), format!("43444602{}", "0".repeat(56)));
    }

    // "The 32-bit vsize field is not large enough to contain the size of variables that require
    // more than 2^32 - 4 bytes, so 2^32 - 1 is used"
    #[test]
    fn the_size_of_a_large_variable_is_capped_in_32_bits() {
        let size = |size| {
            let variable = Variable {
                name: "v".into(),
                dimensions: vec![],
                attributes: vec![],
                kind: Type::Byte,
                size,
                begin: 0,
            };
            let header = |version| ClassicHeader {
                version,
                dimensions: vec![],
                attributes: vec![],
                variables: vec![variable.clone()],
            };
            let small = header(ClassicVersion::Offset64).bytes();
            let large = header(ClassicVersion::Data64).bytes();
            (
                hex(&small[small.len() - 12..small.len() - 8]),
                hex(&large[large.len() - 16..large.len() - 8]),
            )
        };
        assert_eq!(size(5), ("00000008".into(), "0000000000000008".into()));
        assert_eq!(
            size((1 << 32) - 4),
            ("fffffffc".into(), "00000000fffffffc".into())
        );
        assert_eq!(
            size(1 << 32),
            ("ffffffff".into(), "0000000100000000".into())
        );
        assert_eq!(size(u64::MAX - 3).1, "fffffffffffffffc");
    }
}
