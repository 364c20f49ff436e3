//! Object headers and their messages as the "HDF5 File Format Specification Version 3.0" defines
//! them; numbers in brackets are its sections. Addresses and lengths have 8 bytes, and all numbers
//! but values are little-endian. This module knows nothing of Zarr.

use super::heap::SEQUENCE;
use crate::number::{NumberKind, NumberType};
use zarrfs_format::codec::lookup3;

/// The address of what is not there.
pub const UNDEFINED: u64 = u64::MAX;

/// Maximum size in bytes of the content of a message.
pub const MAX_MESSAGE: usize = u16::MAX as usize;

/// Size of the superblock in bytes.
pub const SUPERBLOCK: usize = 48;

/// Numbers of messages (IV.A.2).
mod kind {
    pub const DATASPACE: u8 = 1;
    pub const LINK_INFO: u8 = 2;
    pub const DATATYPE: u8 = 3;
    pub const FILL_VALUE: u8 = 5;
    pub const LINK: u8 = 6;
    pub const LAYOUT: u8 = 8;
    pub const GROUP_INFO: u8 = 10;
    pub const ATTRIBUTE: u8 = 12;
    pub const ATTRIBUTE_INFO: u8 = 21;
}

/// The type of values (IV.A.2.d).
#[derive(Clone, Debug, PartialEq)]
pub enum ValueType {
    Number(NumberType),
    /// A byte that is 0 or 1, by the names that h5py gives these values.
    Bool,
    /// Text of so many bytes, padded with NUL, in UTF-8 or ASCII.
    Text(usize, TextEncoding),
    /// Texts in the global heap.
    Strings(TextEncoding),
    /// A name of so many bytes that ends with NUL, in ASCII.
    Name(usize),
    /// So many bytes.
    Opaque(usize),
    /// Members with names, offsets and types, and the size of all of them.
    Compound(Vec<(String, usize, ValueType)>, usize),
    /// Items of one type in an array of this shape.
    Array(Vec<u32>, Box<ValueType>),
    /// The address of an object.
    Reference,
    /// References in the global heap.
    References,
}

/// The encoding of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextEncoding {
    Ascii = 0,
    Utf8 = 1,
}

impl ValueType {
    /// Returns the size of a value in bytes.
    pub fn size(&self) -> usize {
        match self {
            ValueType::Number(number) => number.size,
            ValueType::Bool => 1,
            ValueType::Text(size, _)
            | ValueType::Name(size)
            | ValueType::Opaque(size)
            | ValueType::Compound(_, size) => *size,
            ValueType::Array(shape, item) => {
                let count: usize = shape.iter().map(|len| *len as usize).product();
                count * item.size()
            }
            ValueType::Reference => 8,
            ValueType::Strings(_) | ValueType::References => SEQUENCE,
        }
    }

    /// Appends the encoded type.
    fn encode(&self, out: &mut Vec<u8>) {
        let (version, class, bits) = match self {
            ValueType::Number(number) => match number.kind {
                NumberKind::Float => (1, 1, float_bits(*number)),
                kind => {
                    let sign = u32::from(kind == NumberKind::Signed) << 3;
                    (1, 0, u32::from(number.is_big_endian) | sign)
                }
            },
            // padded with NUL
            ValueType::Text(_, encoding) => (1, 3, 1 | (*encoding as u32) << 4),
            ValueType::Name(_) => (1, 3, 0),
            ValueType::Opaque(_) => (1, 5, 0),
            ValueType::Compound(members, _) => (3, 6, members.len() as u32),
            ValueType::Reference => (1, 7, 0),
            ValueType::Bool => (3, 8, 2),
            // strings that end with NUL in memory
            ValueType::Strings(encoding) => (1, 9, 1 | (*encoding as u32) << 8),
            ValueType::References => (1, 9, 0),
            ValueType::Array(..) => (3, 10, 0),
        };
        out.push(version << 4 | class);
        out.extend(&bits.to_le_bytes()[..3]);
        out.extend((self.size() as u32).to_le_bytes());
        match self {
            ValueType::Number(number) => encode_number(*number, out),
            ValueType::Compound(members, size) => {
                // an offset has as many bytes as the size needs
                let bytes = (8 - (*size as u64).leading_zeros() / 8) as usize;
                for (name, offset, kind) in members {
                    out.extend(name.as_bytes());
                    out.push(0);
                    out.extend(&offset.to_le_bytes()[..bytes]);
                    kind.encode(out);
                }
            }
            ValueType::Bool => {
                let byte = NumberType {
                    kind: NumberKind::Signed,
                    size: 1,
                    is_big_endian: false,
                };
                ValueType::Number(byte).encode(out);
                out.extend(b"FALSE\0TRUE\0");
                out.extend([0, 1]);
            }
            ValueType::Array(shape, item) => {
                out.push(shape.len() as u8);
                shape.iter().for_each(|len| out.extend(len.to_le_bytes()));
                item.encode(out);
            }
            ValueType::Strings(_) => {
                let byte = NumberType {
                    kind: NumberKind::Unsigned,
                    size: 1,
                    is_big_endian: false,
                };
                ValueType::Number(byte).encode(out);
            }
            ValueType::References => ValueType::Reference.encode(out),
            ValueType::Text(..)
            | ValueType::Name(_)
            | ValueType::Opaque(_)
            | ValueType::Reference => {}
        }
    }
}

/// Returns the bits of a float: its byte order, the implied first bit of the mantissa, and the
/// place of the sign.
fn float_bits(number: NumberType) -> u32 {
    u32::from(number.is_big_endian) | 0x20 | (8 * number.size as u32 - 1) << 8
}

/// Appends the bit fields of a number.
fn encode_number(number: NumberType, out: &mut Vec<u8>) {
    let bits = 8 * number.size as u16;
    out.extend([0, 0]);
    out.extend(bits.to_le_bytes());
    if number.kind == NumberKind::Float {
        let (mantissa, exponent) = match number.size {
            2 => (10, 5),
            4 => (23, 8),
            _ => (52, 11u8),
        };
        out.extend([mantissa, exponent, 0, mantissa]);
        let bias = (1u32 << (exponent - 1)) - 1;
        out.extend(bias.to_le_bytes());
    }
}

/// An attribute.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectAttribute {
    pub name: String,
    pub kind: ValueType,
    /// The shape; `None` for an attribute without a value.
    pub shape: Option<Vec<u64>>,
    pub values: Vec<u8>,
}

impl ObjectAttribute {
    /// Returns whether the attribute fits into a message, which has at most 64 KiB.
    pub fn fits(&self) -> bool {
        self.values.len() <= MAX_MESSAGE && self.encoded().len() <= MAX_MESSAGE
    }

    fn encoded(&self) -> Vec<u8> {
        let mut kind = Vec::new();
        self.kind.encode(&mut kind);
        let space = dataspace(self.shape.as_deref());
        let name = self.name.as_bytes();
        let mut content = vec![3, 0];
        for len in [name.len() + 1, kind.len(), space.len()] {
            content.extend((len as u16).to_le_bytes());
        }
        content.push(TextEncoding::Utf8 as u8);
        content.extend(name);
        content.push(0);
        content.extend(kind);
        content.extend(space);
        content.extend(&self.values);
        content
    }
}

/// The messages of an object header.
#[derive(Default)]
pub struct Messages(Vec<u8>);

impl Messages {
    fn push(&mut self, kind: u8, content: &[u8]) {
        self.0.push(kind);
        self.0.extend((content.len() as u16).to_le_bytes());
        self.0.push(0);
        self.0.extend(content);
    }

    /// Adds what makes the object a group of so many links, whose order of creation is known:
    /// netCDF-C changes no other groups.
    pub fn group(&mut self, links: usize) {
        let mut info = vec![0, 1];
        info.extend((links as u64).to_le_bytes());
        info.extend(UNDEFINED.to_le_bytes());
        info.extend(UNDEFINED.to_le_bytes());
        self.push(kind::LINK_INFO, &info);
        self.push(kind::GROUP_INFO, &[0, 0]);
    }

    /// Adds a link of a group.
    pub fn link(&mut self, number: usize, name: &str, address: u64) {
        // a length of two bytes, the order of creation, and UTF-8
        let mut link = vec![1, 0x15];
        link.extend((number as u64).to_le_bytes());
        link.push(TextEncoding::Utf8 as u8);
        link.extend((name.len() as u16).to_le_bytes());
        link.extend(name.as_bytes());
        link.extend(address.to_le_bytes());
        self.push(kind::LINK, &link);
    }

    /// Adds what makes the object an array of values. `fill` is the value of items that were not
    /// written, or nothing for zeros.
    pub fn values(&mut self, kind: &ValueType, shape: &[u64], fill: &[u8], place: (u64, u64)) {
        self.push(kind::DATASPACE, &dataspace(Some(shape)));
        let mut encoded = Vec::new();
        kind.encode(&mut encoded);
        self.push(kind::DATATYPE, &encoded);
        // space is allocated late, and the value is written if one is set
        let mut value = vec![3, 0x0a];
        if !fill.is_empty() {
            value[1] |= 0x20;
            value.extend((fill.len() as u32).to_le_bytes());
            value.extend(fill);
        }
        self.push(kind::FILL_VALUE, &value);
        let mut layout = vec![3, 1];
        layout.extend(place.0.to_le_bytes());
        layout.extend(place.1.to_le_bytes());
        self.push(kind::LAYOUT, &layout);
    }

    /// Adds what makes HDF5 count the attributes that follow: in a header of version 2, an object
    /// without this message has none.
    pub fn attribute_info(&mut self) {
        // no order of creation, and no attributes outside of the header
        let mut info = vec![0, 0];
        info.extend(UNDEFINED.to_le_bytes());
        info.extend(UNDEFINED.to_le_bytes());
        self.push(kind::ATTRIBUTE_INFO, &info);
    }

    /// Adds an attribute that [fits](ObjectAttribute::fits) into a message.
    pub fn attribute(&mut self, attribute: &ObjectAttribute) {
        self.push(kind::ATTRIBUTE, &attribute.encoded());
    }

    /// Returns the object header.
    pub fn into_header(self) -> Vec<u8> {
        // the length of the messages has four bytes
        let mut header = b"OHDR\x02\x02".to_vec();
        header.extend((self.0.len() as u32).to_le_bytes());
        header.extend(self.0);
        with_checksum(header)
    }
}

/// Returns whether the type of an array's values fits into a message.
pub fn fits(kind: &ValueType) -> bool {
    let mut encoded = Vec::new();
    kind.encode(&mut encoded);
    encoded.len() <= MAX_MESSAGE
}

/// Returns an encoded shape (IV.A.2.b).
fn dataspace(shape: Option<&[u64]>) -> Vec<u8> {
    let dimensions = shape.unwrap_or_default();
    let kind = match shape {
        None => 2,
        Some([]) => 0,
        Some(_) => 1,
    };
    let mut space = vec![2, dimensions.len() as u8, 0, kind];
    dimensions
        .iter()
        .for_each(|len| space.extend(len.to_le_bytes()));
    space
}

/// Returns the superblock of a file of `size` bytes whose root group has its header at `root`.
pub fn superblock(root: u64, size: u64) -> Vec<u8> {
    let mut block = b"\x89HDF\r\n\x1a\n\x02\x08\x08\x00".to_vec();
    for address in [0, UNDEFINED, size, root] {
        block.extend(address.to_le_bytes());
    }
    with_checksum(block)
}

/// Returns whether bytes differ from those of a superblock at `at` only in its flags, which HDF5
/// sets while the file is open for writing, and in the checksum of these.
pub fn sets_flags_alone(at: usize, written: &[u8], shown: &[u8]) -> bool {
    const FLAGS: usize = 11;
    written.iter().zip(shown).enumerate().all(|(n, (a, b))| {
        let place = at + n;
        a == b || place == FLAGS || (SUPERBLOCK - 4..SUPERBLOCK).contains(&place)
    })
}

fn with_checksum(mut bytes: Vec<u8>) -> Vec<u8> {
    let checksum = lookup3(&bytes, 0);
    bytes.extend(checksum.to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_flags_of_a_superblock_may_change() {
        let shown = superblock(48, 4096);
        assert_eq!(shown.len(), SUPERBLOCK);
        let with = |at: usize| {
            let mut written = shown.clone();
            written[at] ^= 5;
            written
        };
        let flags: Vec<usize> = (0..SUPERBLOCK)
            .filter(|at| sets_flags_alone(0, &with(*at), &shown))
            .collect();
        assert_eq!(flags, [11, 44, 45, 46, 47]);
        assert!(!sets_flags_alone(
            1,
            &with(11)[1..20],
            &[&shown[1..11], &shown[12..21]].concat()
        ));
    }

    #[test]
    fn offsets_have_as_many_bytes_as_the_size_needs() {
        let byte = ValueType::Opaque(1);
        for (size, bytes) in [(1, 1), (255, 1), (256, 2), (65_536, 3)] {
            let mut out = Vec::new();
            let member = ("a".to_string(), 0, byte.clone());
            ValueType::Compound(vec![member], size).encode(&mut out);
            assert_eq!(out.len(), 8 + 2 + bytes + 8, "{size}");
        }
    }
}
