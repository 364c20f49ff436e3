//! The value of one member: where its data stands, and stored or deflated bytes turned into the value. What the
//! directory says of sizes is a limit here, never a promise. It knows nothing of which members there are.

use super::archive::{Archive, Outcome, damaged};
use super::fields::Fields;
use super::index::{HEADER_SIZE, Index, Member, key_name};
use crate::error::Error;
use std::ops::Range;

const STORED: u16 = 0;
const DEFLATED: u16 = 8;

const HEADER: u32 = u32::from_le_bytes(*b"PK\x03\x04");

/// Set of a member whose sizes follow its data: its own header has none.
const SIZES_FOLLOW: u16 = 8;

/// Bytes of extra fields in a member's own header that are expected where a request for them costs more than they do.
const EXPECTED_EXTRA: u64 = 128;

/// Bytes of a value that are read in vain rather than asking for its header first.
const SMALL: u64 = 64 << 10;

/// No deflate stream makes more than so many bytes of one.
const MAX_RATIO: u64 = 1032;

/// Reads members of an archive.
pub(super) struct Reader<'a> {
    pub archive: &'a Archive,
    pub index: &'a Index,
}

impl Reader<'_> {
    /// An error if the member can't be read whatever its data is.
    pub fn check(&self, member: &Member) -> Outcome<()> {
        if member.is_encrypted {
            return Err(Error::unsupported("an encrypted member of a zip archive").into());
        }
        if member.overlaps {
            return Err(damaged("its bytes in the archive are another's, too: no archiver does that"));
        }
        match member.method {
            STORED if member.size == member.stored_size => Ok(()),
            DEFLATED
                if member.size / MAX_RATIO <= member.stored_size
                    && member.stored_size <= member.size.saturating_mul(2).saturating_add(SMALL) =>
            {
                Ok(())
            }
            STORED | DEFLATED => Err(damaged("its two sizes in the archive's directory contradict each other")),
            method => Err(Error::unsupported(format!(
                "compressed by {} in the zip archive, of which only stored and deflated members are read",
                method_name(method)
            ))
            .into()),
        }
    }

    /// True if any bytes of the value can be read alone.
    pub fn is_stored(member: &Member) -> bool {
        member.method == STORED
    }

    /// Reads bytes of the member's data in the archive, of which `range` must be a part.
    pub fn data(&self, member: &Member, range: Range<u64>, out: &mut Vec<u8>) -> Outcome<()> {
        let mut data = member.data();
        if data.is_none() && !self.archive.is_local() && range.start < SMALL {
            // header and data by one request, if the header is no longer than expected
            let header = HEADER_SIZE + u64::from(member.spelt_len) + EXPECTED_EXTRA;
            self.archive.read(member.offset..member.offset.saturating_add(header + range.end), out)?;
            let to_data = self.check_header(member, out)?;
            let want = to_data + range.start as usize..to_data + range.end as usize;
            if want.end <= out.len() {
                out.truncate(want.end);
                out.drain(..want.start);
                return Ok(());
            }
            data = member.data();
        }
        if data.is_none() {
            let (mut header, len) = (Vec::new(), HEADER_SIZE + u64::from(member.spelt_len));
            self.archive.read(member.offset..member.offset.saturating_add(len), &mut header)?;
            self.check_header(member, &header)?;
            data = member.data();
        }
        let data = data.ok_or_else(|| damaged("its header in the archive is cut short"))?;
        self.archive.read_all(data.saturating_add(range.start)..data.saturating_add(range.end), out)
    }

    /// Checks the member's own header against the directory; remembers and returns the bytes from there to its data.
    fn check_header(&self, member: &Member, bytes: &[u8]) -> Outcome<usize> {
        let header =
            Header::parse(bytes).ok_or_else(|| damaged("it doesn't stand where the archive's directory says"))?;
        let is_same = key_name(header.name).is_some_and(|name| name == self.index.name(member));
        if !is_same || header.method != member.method {
            return Err(damaged("another member stands where the archive's directory says it does"));
        }
        let is_size = |stated: u32, size: u64| stated == u32::MAX || u64::from(stated) == size;
        let knows_sizes = header.flags & SIZES_FOLLOW == 0;
        if knows_sizes && !(is_size(header.stored_size, member.stored_size) && is_size(header.size, member.size)) {
            return Err(damaged("its own header and the archive's directory differ about its size"));
        }
        member.set_data(header.len);
        Ok(header.len as usize)
    }
}

/// A member's own header.
struct Header<'a> {
    name: &'a [u8],
    flags: u16,
    method: u16,
    stored_size: u32,
    size: u32,
    /// Bytes of it, extra fields included.
    len: u32,
}

impl<'a> Header<'a> {
    /// The header at the start of `bytes`, which may lack its extra fields.
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let mut fields = Fields(bytes);
        let (signature, _needed, flags, method) = (fields.u32()?, fields.u16()?, fields.u16()?, fields.u16()?);
        let (_time, _crc, stored_size, size) = (fields.u32()?, fields.u32()?, fields.u32()?, fields.u32()?);
        let (name, extra) = (fields.u16()?, fields.u16()?);
        let len = HEADER_SIZE as u32 + u32::from(name) + u32::from(extra);
        let name = fields.bytes(name.into())?;
        (signature == HEADER).then_some(Header { name, flags, method, stored_size, size, len })
    }
}

/// An error unless `crc` is the checksum that the directory has.
pub(super) fn check_crc(member: &Member, crc: u32) -> Outcome<()> {
    match crc == member.crc {
        true => Ok(()),
        false => Err(damaged(format!("its crc32 is {crc:08x}, the archive says {:08x}", member.crc))),
    }
}

/// APPNOTE.TXT 6.3.10, section 4.4.5.
fn method_name(method: u16) -> String {
    let name = match method {
        1 => "shrink",
        2..=5 => "reduce",
        6 => "implode",
        9 => "deflate64",
        12 => "bzip2",
        14 => "lzma",
        93 => "zstd",
        95 => "xz",
        99 => "an encryption",
        _ => return format!("method {method}"),
    };
    name.to_string()
}
