//! A writer of zip archives, field by field, so that a test can make any of them wrong.

use zarrfs_base::deflate::{self, Container};

/// A member to write.
#[derive(Clone)]
pub struct Member {
    /// Name in both headers.
    pub name: Vec<u8>,
    /// Name in an extra field of the central directory; none if it is empty.
    pub unicode_name: String,
    /// Bytes of the value.
    pub value: Vec<u8>,
    /// Whether the value is deflated.
    pub is_deflated: bool,
    /// General purpose flags.
    pub flags: u16,
    /// Compression method; `None` is the one of `is_deflated`.
    pub method: Option<u16>,
    /// Size of the value in both headers; `None` is the true one.
    pub size: Option<u64>,
    /// Size in the archive in both headers; `None` is the true one.
    pub stored_size: Option<u64>,
    /// Checksum in both headers; `None` is the true one.
    pub crc: Option<u32>,
    /// Whether the sizes follow the data and are missing in the local header.
    pub has_descriptor: bool,
    /// Whether sizes and offset are in the zip64 extra field.
    pub is_large: bool,
    /// Size of an extra field in the local header only.
    pub own_extra: usize,
    /// Time in the format of MS-DOS.
    pub date: u16,
    /// Number of the member whose offset the central directory states.
    pub stands_at: Option<usize>,
}

/// Returns a member that is stored as it is.
pub fn member(name: &str, value: impl Into<Vec<u8>>) -> Member {
    Member {
        name: name.as_bytes().to_vec(),
        unicode_name: String::new(),
        value: value.into(),
        is_deflated: false,
        flags: 0,
        method: None,
        size: None,
        stored_size: None,
        crc: None,
        has_descriptor: false,
        is_large: false,
        own_extra: 0,
        date: 0x5ae5,
        stands_at: None,
    }
}

impl Member {
    /// Returns the member with a deflated value.
    pub fn deflated(self) -> Self {
        Member {
            is_deflated: true,
            ..self
        }
    }

    fn method(&self) -> u16 {
        self.method.unwrap_or(if self.is_deflated { 8 } else { 0 })
    }

    fn data(&self) -> Vec<u8> {
        if self.is_deflated {
            let mut deflated = Vec::new();
            deflate::compress(Container::None, 6, &self.value, &mut deflated).unwrap();
            deflated
        } else {
            self.value.clone()
        }
    }

    fn stored_size(&self) -> u64 {
        self.stored_size.unwrap_or(self.data().len() as u64)
    }

    fn flags(&self) -> u16 {
        self.flags | if self.has_descriptor { 8 } else { 0 }
    }
}

/// An archive in its parts: members, central directory, end records.
#[derive(Default)]
pub struct Archive {
    /// All bytes of the archive.
    pub bytes: Vec<u8>,
    /// Offset of the central directory.
    pub directory: usize,
}

fn put(out: &mut Vec<u8>, size: usize, n: u64) {
    out.extend(&n.to_le_bytes()[..size]);
}

fn puts<const N: usize>(out: &mut Vec<u8>, fields: [(usize, u64); N]) {
    for (size, n) in fields {
        put(out, size, n);
    }
}

const LARGE: u64 = 0xffff_ffff;

/// Returns an archive of `members` with a comment; with `zip64`, the end record refers to the zip64
/// one.
pub fn archive_with(members: &[Member], comment: &[u8], zip64: bool) -> Archive {
    let mut out = Vec::new();
    let mut directory = Vec::new();
    let mut offsets = Vec::new();
    for m in members {
        offsets.push(out.len());
        local(&mut out, m);
        central(
            &mut directory,
            m,
            offsets[m.stands_at.unwrap_or(offsets.len() - 1)],
        );
    }
    let start = out.len();
    let size = directory.len();
    let count = members.len();
    out.extend(directory);
    if zip64 {
        let end = out.len() as u64;
        out.extend(b"PK\x06\x06");
        puts(
            &mut out,
            [
                (8, 44),
                (2, 45),
                (2, 45),
                (4, 0),
                (4, 0),
                (8, count as u64),
                (8, count as u64),
            ],
        );
        puts(&mut out, [(8, size as u64), (8, start as u64)]);
        out.extend(b"PK\x06\x07");
        puts(&mut out, [(4, 0), (8, end), (4, 1)]);
    }
    out.extend(b"PK\x05\x06");
    let [count, size, offset] = if zip64 {
        [0xffff, LARGE, LARGE]
    } else {
        [count, size, start].map(|n| n as u64)
    };
    puts(
        &mut out,
        [
            (2, 0),
            (2, 0),
            (2, count),
            (2, count),
            (4, size),
            (4, offset),
            (2, comment.len() as u64),
        ],
    );
    out.extend(comment);
    Archive {
        bytes: out,
        directory: start,
    }
}

/// Returns a valid archive of the members.
pub fn archive(members: &[Member]) -> Vec<u8> {
    archive_with(members, b"", false).bytes
}

fn local(out: &mut Vec<u8>, m: &Member) {
    let data = m.data();
    let crc = u64::from(m.crc.unwrap_or(crc32fast::hash(&m.value)));
    let size = m.size.unwrap_or(m.value.len() as u64);
    let stated = match (m.has_descriptor, m.is_large) {
        (true, _) => [0; 3],
        (_, true) => [crc, LARGE, LARGE],
        _ => [crc, m.stored_size(), size],
    };
    let extra = if m.is_large { 20 } else { 0 } + m.own_extra;
    out.extend(b"PK\x03\x04");
    puts(
        out,
        [
            (2, 45),
            (2, m.flags().into()),
            (2, m.method().into()),
            (2, 0),
            (2, m.date.into()),
        ],
    );
    puts(out, stated.map(|n| (4, n)));
    puts(out, [(2, m.name.len() as u64), (2, extra as u64)]);
    out.extend(&m.name);
    if m.is_large {
        puts(out, [(2, 1), (2, 16), (8, size), (8, m.stored_size())]);
    }
    if m.own_extra > 0 {
        puts(out, [(2, 0xa5a5), (2, m.own_extra as u64 - 4)]);
        out.resize(out.len() + m.own_extra - 4, 0x55);
    }
    out.extend(&data);
    if m.has_descriptor {
        out.extend(b"PK\x07\x08");
        puts(out, [(4, crc), (4, data.len() as u64), (4, size)]);
    }
}

fn central(out: &mut Vec<u8>, m: &Member, offset: usize) {
    let crc = u64::from(m.crc.unwrap_or(crc32fast::hash(&m.value)));
    let size = m.size.unwrap_or(m.value.len() as u64);
    let stored = m.stored_size();
    let offset = offset as u64;
    let [short_stored, short_size, short_offset] = if m.is_large {
        [LARGE; 3]
    } else {
        [stored, size, offset]
    };
    out.extend(b"PK\x01\x02");
    puts(
        out,
        [
            (2, 45),
            (2, 45),
            (2, m.flags().into()),
            (2, m.method().into()),
            (2, 0),
            (2, m.date.into()),
        ],
    );
    puts(
        out,
        [
            (4, crc),
            (4, short_stored),
            (4, short_size),
            (2, m.name.len() as u64),
        ],
    );
    let unicode = match m.unicode_name.as_str() {
        "" => Vec::new(),
        name => [
            &[1][..],
            &crc32fast::hash(&m.name).to_le_bytes(),
            name.as_bytes(),
        ]
        .concat(),
    };
    let extra = if m.is_large { 28 } else { 0 }
        + if unicode.is_empty() {
            0
        } else {
            4 + unicode.len() as u64
        };
    puts(
        out,
        [
            (2, extra),
            (2, 0),
            (2, 0),
            (2, 0),
            (4, 0),
            (4, short_offset),
        ],
    );
    out.extend(&m.name);
    if m.is_large {
        puts(out, [(2, 1), (2, 24), (8, size), (8, stored), (8, offset)]);
    }
    if !unicode.is_empty() {
        puts(out, [(2, 0x7075), (2, unicode.len() as u64)]);
        out.extend(&unicode);
    }
}

/// Returns an archive of values that are stored as they are.
pub fn archive_of(values: &[(&str, &[u8])]) -> Vec<u8> {
    archive(
        &values
            .iter()
            .map(|(name, value)| member(name, *value))
            .collect::<Vec<_>>(),
    )
}
