//! Parses the central directory of an archive, as specified by PKWARE's APPNOTE.TXT 6.3.10,
//! sections 4.3.12 to 4.3.16.

use super::archive_file::{ArchiveError, ArchiveFile, ArchiveResult, damaged};
use super::fields::RecordFields;
use chrono::NaiveDate;
use std::time::{Duration, SystemTime};
use zarrfs_base::error::Error;

const END: [u8; 4] = *b"PK\x05\x06";
const END_SIZE: usize = 22;
const LOCATOR: u32 = u32::from_le_bytes(*b"PK\x06\x07");
const LOCATOR_SIZE: usize = 20;
const END64: u32 = u32::from_le_bytes(*b"PK\x06\x06");
const END64_SIZE: usize = 56;
const RECORD: u32 = u32::from_le_bytes(*b"PK\x01\x02");
const RECORD_SIZE: usize = 46;

/// Number of bytes read from the end of the archive first. They contain the longest comment, the
/// end records, and the whole directory of an archive of some hundred members.
const TAIL: u64 = 128 << 10;

/// Number of bytes of the directory read at a time, more than the longest record.
const PIECE: u64 = 8 << 20;

/// Identifiers of extra fields: 64-bit sizes, and a time in UTC.
const EXTRA_ZIP64: u16 = 0x0001;
const EXTRA_TIME: u16 = 0x5455;

/// A record of the central directory, which describes one member.
pub(super) struct CentralRecord<'a> {
    /// Name as stored in the archive.
    pub name: &'a [u8],
    /// Extra fields.
    pub extra: &'a [u8],
    pub flags: u16,
    pub method: u16,
    pub crc: u32,
    /// Size in the archive, in bytes.
    pub stored_size: u64,
    /// Size of the value, in bytes.
    pub size: u64,
    /// Offset of the local header.
    pub offset: u64,
    /// Time of the last modification; `None` if it is not a valid date.
    pub modified: Option<SystemTime>,
}

/// Location of the central directory.
struct CentralDirectory {
    start: u64,
    size: u64,
    /// Number of members. Without zip64, only its lowest 16 bits may be stored.
    count: u64,
    /// Number of bytes before the archive, which its offsets do not include.
    before: u64,
}

/// Calls `each` with every record of the central directory. Returns the offset of the directory.
pub(super) fn read(
    archive: &ArchiveFile,
    mut each: impl FnMut(CentralRecord) -> ArchiveResult<()>,
) -> ArchiveResult<u64> {
    let size = archive.stat.size;
    let tail_start = size.saturating_sub(TAIL);
    let mut buffer = Vec::new();
    archive.read_all(tail_start..size, &mut buffer)?;
    let directory = find(archive, &buffer, tail_start)?;
    let end = directory.start + directory.size;
    // the bytes of `buffer` from `at` on are those before the offset `next`
    let (mut at, mut next) = match directory.start.checked_sub(tail_start) {
        Some(at) => {
            buffer.truncate((end - tail_start) as usize);
            (at as usize, end)
        }
        None => (buffer.len(), directory.start),
    };
    let mut count = 0;
    while at < buffer.len() || next < end {
        if let Some((record, len)) = parse(&buffer[at..], directory.before)? {
            each(record)?;
            (at, count) = (at + len, count + 1);
        } else if next < end {
            let from = next - (buffer.len() - at) as u64;
            let mut piece = Vec::new();
            next = end.min(next + PIECE);
            archive.read_all(from..next, &mut piece)?;
            (buffer, at) = (piece, 0);
        } else {
            return Err(damaged(
                "the last record of its central directory is truncated",
            ));
        }
    }
    if count == directory.count || count & 0xffff == directory.count {
        Ok(directory.start)
    } else {
        Err(damaged(format!(
            "its central directory has {count} members, not {}",
            directory.count
        )))
    }
}

/// Parses the record at the start of `bytes`, and returns it with its length, or `None` if it is
/// incomplete.
fn parse(bytes: &[u8], before: u64) -> ArchiveResult<Option<(CentralRecord<'_>, usize)>> {
    let mut fields = RecordFields(bytes);
    match fields.u32() {
        Some(RECORD) => {}
        Some(_) => return Err(damaged("its central directory contains an unknown record")),
        None => return Ok(None),
    }
    let Some((record, lens)) = fixed_part(&mut fields) else {
        return Ok(None);
    };
    let [name, extra, comment] = lens.map(usize::from);
    let (Some(name), Some(extra), Some(_)) = (
        fields.bytes(name),
        fields.bytes(extra),
        fields.bytes(comment),
    ) else {
        return Ok(None);
    };
    let mut record = CentralRecord {
        name,
        extra,
        ..record
    };
    large_sizes(&mut record, extra).ok_or_else(|| damaged("a member lacks its zip64 sizes"))?;
    let offset = record.offset.checked_add(before);
    record.offset = offset.ok_or_else(|| damaged("a member begins after the end"))?;
    if let Some(seconds) = universal_time(extra) {
        record.modified = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds.into()));
    }
    Ok(Some((
        record,
        RECORD_SIZE + name.len() + extra.len() + lens[2] as usize,
    )))
}

/// Parses the fixed part of a record. Also returns the lengths of name, extra fields and comment.
fn fixed_part<'a>(fields: &mut RecordFields<'a>) -> Option<(CentralRecord<'a>, [u16; 3])> {
    let _made_by = fields.u16()?;
    let _needed = fields.u16()?;
    let flags = fields.u16()?;
    let method = fields.u16()?;
    let time = fields.u16()?;
    let date = fields.u16()?;
    let crc = fields.u32()?;
    let stored_size = fields.u32()?.into();
    let size = fields.u32()?.into();
    let lens = [fields.u16()?, fields.u16()?, fields.u16()?];
    let _disk = fields.u16()?;
    let _internal = fields.u16()?;
    let _external = fields.u32()?;
    let offset = fields.u32()?.into();
    let modified = dos_time(date, time);
    Some((
        CentralRecord {
            name: &[],
            extra: &[],
            flags,
            method,
            crc,
            stored_size,
            size,
            offset,
            modified,
        },
        lens,
    ))
}

/// Replaces saturated 32-bit fields by those of the zip64 extra field. Returns `None` if they are
/// missing.
fn large_sizes(record: &mut CentralRecord, extra: &[u8]) -> Option<()> {
    let places = [
        &mut record.size,
        &mut record.stored_size,
        &mut record.offset,
    ];
    let mut large = places
        .into_iter()
        .filter(|n| **n == u64::from(u32::MAX))
        .peekable();
    if large.peek().is_some() {
        let mut fields = RecordFields(extra).extra(EXTRA_ZIP64)?;
        for n in large {
            *n = fields.u64()?;
        }
    }
    Some(())
}

/// Returns the modification time in seconds since 1970, if its flag says that the field contains
/// it.
fn universal_time(extra: &[u8]) -> Option<u32> {
    let mut fields = RecordFields(extra).extra(EXTRA_TIME)?;
    (fields.bytes(1)?[0] & 1 == 1).then(|| fields.u32())?
}

/// Converts a time of MS-DOS, which has no zone, as if it were UTC. Archivers without a time write
/// January 1980, which counts as none.
fn dos_time(date: u16, time: u16) -> Option<SystemTime> {
    let year = 1980 + i32::from(date >> 9);
    let month = u32::from(date >> 5 & 15);
    let day = u32::from(date & 31);
    let hour = u32::from(time >> 11);
    let minute = u32::from(time >> 5 & 63);
    let second = u32::from(time & 31) * 2;
    let date = NaiveDate::from_ymd_opt(year, month, day).filter(|_| (year, month) != (1980, 1))?;
    Some(date.and_hms_opt(hour, minute, second)?.and_utc().into())
}

/// Finds the last end record whose comment ends with the archive and which a central directory
/// precedes. A comment may contain the signature, too.
fn find(archive: &ArchiveFile, tail: &[u8], tail_start: u64) -> ArchiveResult<CentralDirectory> {
    let mut why = damaged("not a zip archive, or truncated: the end record is missing");
    let starts = tail
        .windows(END.len())
        .enumerate()
        .rev()
        .filter(|(_, bytes)| **bytes == END)
        .map(|(at, _)| at);
    for at in starts {
        let comment = tail
            .get(at + END_SIZE - 2..at + END_SIZE)
            .and_then(|bytes| RecordFields(bytes).u16());
        if comment.is_none_or(|len| at + END_SIZE + usize::from(len) != tail.len()) {
            continue;
        }
        match directory_before(archive, tail, tail_start, at) {
            Ok(directory) => return Ok(directory),
            Err(ArchiveError::Other(e)) => why = e.into(),
            Err(changed) => return Err(changed),
        }
    }
    Err(why)
}

/// Returns the directory to which the end record at offset `at` of the tail refers.
fn directory_before(
    archive: &ArchiveFile,
    tail: &[u8],
    tail_start: u64,
    at: usize,
) -> ArchiveResult<CentralDirectory> {
    let mut fields = RecordFields(&tail[at + END.len()..]);
    let Some((disks, [count, size, offset])) = end_fields(&mut fields) else {
        let why = "not a zip archive, or truncated: the end record is incomplete";
        return Err(damaged(why));
    };
    let located = at
        .checked_sub(LOCATOR_SIZE)
        .and_then(|from| locator(&tail[from..at]));
    // the end of the directory, and its description
    let (end, disks, [count, size, offset]) = match located {
        Some(stated) => large_end(archive, stated, tail_start + (at - LOCATOR_SIZE) as u64)?,
        None => (tail_start + at as u64, disks, [count, size, offset]),
    };
    if disks != 0 {
        return Err(Error::unsupported("one part of a split archive; join the parts first").into());
    }
    let start = end.checked_sub(size).filter(|start| *start >= offset);
    let start = start
        .ok_or_else(|| damaged("its central directory is not at the offset in its end record"))?;
    let first = start
        .checked_sub(tail_start)
        .and_then(|at| tail.get(at as usize..at as usize + 4));
    if first.is_some_and(|bytes| size > 0 && bytes != RECORD.to_le_bytes()) {
        return Err(damaged(
            "its central directory is not at the offset in its end record",
        ));
    }
    Ok(CentralDirectory {
        start,
        size,
        count,
        before: start - offset,
    })
}

/// Parses an end record after its signature: the disk numbers, which must be 0, and count, size and
/// offset of the directory.
fn end_fields(fields: &mut RecordFields) -> Option<(u32, [u64; 3])> {
    let disks = u32::from(fields.u16()? | fields.u16()?);
    let _on_this_disk = fields.u16()?;
    Some((
        disks,
        [
            fields.u16()?.into(),
            fields.u32()?.into(),
            fields.u32()?.into(),
        ],
    ))
}

/// Parses the zip64 locator, which precedes the end record, and returns the stated offset of the
/// zip64 end record.
fn locator(bytes: &[u8]) -> Option<u64> {
    let mut fields = RecordFields(bytes);
    let signature = fields.u32()?;
    let _disk = fields.u32()?;
    if signature == LOCATOR {
        fields.u64()
    } else {
        None
    }
}

/// Reads the zip64 end record at its stated offset or, if bytes precede the archive, directly
/// before its locator. Returns its offset and the same fields as [`end_fields`].
fn large_end(
    archive: &ArchiveFile,
    stated: u64,
    locator: u64,
) -> ArchiveResult<(u64, u32, [u64; 3])> {
    let near = locator.saturating_sub(END64_SIZE as u64);
    for at in [stated, near] {
        if at > near {
            continue;
        }
        let mut bytes = Vec::new();
        archive.read_all(at..at + END64_SIZE as u64, &mut bytes)?;
        if let Some((disks, numbers)) = end64_fields(&mut RecordFields(&bytes)) {
            return Ok((at, disks, numbers));
        }
    }
    Err(damaged("its zip64 end record is missing"))
}

fn end64_fields(fields: &mut RecordFields) -> Option<(u32, [u64; 3])> {
    let signature = fields.u32()?;
    let _size = fields.u64()?;
    let _made_by = fields.u16()?;
    let _needed = fields.u16()?;
    let disks = fields.u32()? | fields.u32()?;
    let _on_this_disk = fields.u64()?;
    (signature == END64).then_some((disks, [fields.u64()?, fields.u64()?, fields.u64()?]))
}
