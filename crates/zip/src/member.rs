//! Reads the values of members. Sizes in the central directory are taken as limits, never trusted.

use super::archive_file::{ArchiveFile, ArchiveResult, damaged};
use super::fields::RecordFields;
use super::index::{ArchiveMember, HEADER_SIZE};
use super::names::key_name;
use std::ops::Range;
use zarrfs_base::error::Error;
use zarrfs_store::SortedEntries;

const STORED: u16 = 0;
const DEFLATED: u16 = 8;

const HEADER: u32 = u32::from_le_bytes(*b"PK\x03\x04");

/// Flag of a member whose sizes follow its data, and are missing in its local header.
const SIZES_FOLLOW: u16 = 8;

/// Expected size of the extra fields in a local header of a remote archive, in bytes.
const EXPECTED_EXTRA: u64 = 128;

/// Maximum number of bytes of a value that are read in vain to avoid a separate request for the
/// local header.
const SMALL: u64 = 64 << 10;

/// Maximum ratio of compression that deflate can achieve.
const MAX_RATIO: u64 = 1032;

/// A reader of the members of an archive.
pub(super) struct MemberReader<'a> {
    pub archive: &'a ArchiveFile,
    pub members: &'a SortedEntries<ArchiveMember>,
}

impl MemberReader<'_> {
    /// Returns an error if the member cannot be read, whatever its data is.
    pub fn check(&self, member: &ArchiveMember) -> ArchiveResult<()> {
        if member.is_encrypted {
            return Err(Error::unsupported("encrypted in the zip archive").into());
        }
        if member.overlaps {
            return Err(damaged(
                "it shares bytes with another member of the archive",
            ));
        }
        match member.method {
            STORED if member.size == member.stored_size => Ok(()),
            DEFLATED
                if member.size / MAX_RATIO <= member.stored_size
                    && member.stored_size
                        <= member.size.saturating_mul(2).saturating_add(SMALL) =>
            {
                Ok(())
            }
            STORED | DEFLATED => Err(damaged(
                "its sizes in the central directory contradict each other",
            )),
            method => Err(Error::unsupported(format!(
                "compressed by {} in the zip archive; only stored and deflated members can be read",
                method_name(method)
            ))
            .into()),
        }
    }

    /// Returns whether any range of the value can be read directly.
    pub fn is_stored(member: &ArchiveMember) -> bool {
        member.method == STORED
    }

    /// Reads a range of the data of a member, before decompression.
    pub fn data(
        &self,
        member: &ArchiveMember,
        range: Range<u64>,
        out: &mut Vec<u8>,
    ) -> ArchiveResult<()> {
        let mut data = member.data();
        if data.is_none() && !self.archive.is_local() && range.start < SMALL {
            // reads header and data with one request, if the header is not longer than expected
            let header = HEADER_SIZE + u64::from(member.stored_name_len) + EXPECTED_EXTRA;
            let wanted = member.offset..member.offset.saturating_add(header + range.end);
            self.read_for(member, &range, wanted, out)?;
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
            let mut header = Vec::new();
            let len = HEADER_SIZE + u64::from(member.stored_name_len);
            self.archive.read(
                member.offset..member.offset.saturating_add(len),
                &mut header,
            )?;
            self.check_header(member, &header)?;
            data = member.data();
        }
        let data = data.ok_or_else(|| damaged("its local header is truncated"))?;
        let wanted = data.saturating_add(range.start)..data.saturating_add(range.end);
        self.read_for(member, &range, wanted, out)?;
        if out.len() as u64 == range.end - range.start {
            Ok(())
        } else {
            Err(damaged("truncated"))
        }
    }

    /// Reads the bytes `wanted` of the archive for a range of the data of a member.
    fn read_for(
        &self,
        member: &ArchiveMember,
        range: &Range<u64>,
        wanted: Range<u64>,
        out: &mut Vec<u8>,
    ) -> ArchiveResult<()> {
        if *range == (0..member.stored_size) {
            self.archive.read_with_neighbors(wanted, out)
        } else {
            self.archive.read(wanted, out)
        }
    }

    /// Checks the local header against the central directory. Records and returns the distance from
    /// it to the data, in bytes.
    fn check_header(&self, member: &ArchiveMember, bytes: &[u8]) -> ArchiveResult<usize> {
        let header = LocalHeader::parse(bytes)
            .ok_or_else(|| damaged("no member is at its offset in the archive"))?;
        // the extra fields with another name may lie beyond the bytes that were read
        let is_same = if member.has_unicode_name {
            header.name.len() == usize::from(member.stored_name_len)
        } else {
            key_name(header.name, header.flags, &[])
                .is_some_and(|name| name == self.members.name_of(member))
        };
        if !is_same || header.method != member.method {
            return Err(damaged("another member is at its offset in the archive"));
        }
        let knows_sizes = header.flags & SIZES_FOLLOW == 0;
        if knows_sizes
            && !(is_size(header.stored_size, member.stored_size)
                && is_size(header.size, member.size))
        {
            return Err(damaged(
                "its local header and the central directory state different sizes",
            ));
        }
        member.set_data(header.len);
        Ok(header.len as usize)
    }
}

/// The local header of a member.
struct LocalHeader<'a> {
    name: &'a [u8],
    flags: u16,
    method: u16,
    stored_size: u32,
    size: u32,
    /// Size of the header with extra fields, in bytes.
    len: u32,
}

impl<'a> LocalHeader<'a> {
    /// Parses the header at the start of `bytes`, which need not contain its extra fields.
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let mut fields = RecordFields(bytes);
        let signature = fields.u32()?;
        let _needed = fields.u16()?;
        let flags = fields.u16()?;
        let method = fields.u16()?;
        let _time = fields.u32()?;
        let _crc = fields.u32()?;
        let stored_size = fields.u32()?;
        let size = fields.u32()?;
        let name = fields.u16()?;
        let extra = fields.u16()?;
        let len = HEADER_SIZE as u32 + u32::from(name) + u32::from(extra);
        let name = fields.bytes(name.into())?;
        (signature == HEADER).then_some(LocalHeader {
            name,
            flags,
            method,
            stored_size,
            size,
            len,
        })
    }
}

/// Returns whether a local header states a size. Large sizes are elsewhere.
fn is_size(stated: u32, size: u64) -> bool {
    stated == u32::MAX || u64::from(stated) == size
}

/// Returns an error unless `crc` matches the central directory.
pub(super) fn check_crc(member: &ArchiveMember, crc: u32) -> ArchiveResult<()> {
    if crc == member.crc {
        Ok(())
    } else {
        Err(damaged(format!(
            "its crc32 is {crc:08x}, the archive says {:08x}",
            member.crc
        )))
    }
}

/// Names a compression method by APPNOTE.TXT 6.3.10, section 4.4.5.
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
