//! The central directory of an archive: where it is, and the records in it, read in pieces. Rule: PKWARE's APPNOTE.TXT
//! 6.3.10, sections 4.3.12 to 4.3.16. It knows nothing of keys, nor of the members' own headers.

use super::archive::{Archive, Failure, Outcome, damaged};
use super::fields::Fields;
use crate::error::Error;
use chrono::NaiveDate;
use std::time::{Duration, SystemTime};

const END: [u8; 4] = *b"PK\x05\x06";
const END_SIZE: usize = 22;
const LOCATOR: u32 = u32::from_le_bytes(*b"PK\x06\x07");
const LOCATOR_SIZE: usize = 20;
const END64: u32 = u32::from_le_bytes(*b"PK\x06\x06");
const END64_SIZE: usize = 56;
const RECORD: u32 = u32::from_le_bytes(*b"PK\x01\x02");
const RECORD_SIZE: usize = 46;

/// The end of an archive that is read first, in bytes: the longest comment, the end records, and the whole directory of
/// an archive of some hundred members.
const TAIL: u64 = 128 << 10;

/// Bytes of the directory that are read at a time: more than the longest record.
const PIECE: u64 = 8 << 20;

/// Kinds of extra fields: sizes beyond 32 bits, and a time that knows its zone.
const EXTRA_ZIP64: u16 = 0x0001;
const EXTRA_TIME: u16 = 0x5455;

/// One member, as the directory has it.
pub(super) struct Record<'a> {
    /// As it is spelt in the archive.
    pub name: &'a [u8],
    pub flags: u16,
    pub method: u16,
    pub crc: u32,
    /// Bytes in the archive.
    pub stored_size: u64,
    /// Bytes of the value.
    pub size: u64,
    /// Where its own header stands.
    pub offset: u64,
    /// When it was last changed; None if there is no such day.
    pub modified: Option<SystemTime>,
}

/// Where the directory is.
struct Directory {
    start: u64,
    size: u64,
    /// Members, of which an archive without zip64 may count the lowest 16 bits alone.
    count: u64,
    /// Bytes that stand before the archive; its offsets don't count them.
    before: u64,
}

/// Calls `each` with every record of the directory, in its order. Returns where the directory begins.
pub(super) fn read(archive: &Archive, mut each: impl FnMut(Record) -> Outcome<()>) -> Outcome<u64> {
    let size = archive.stat.size;
    let (tail_start, mut buffer) = (size.saturating_sub(TAIL), Vec::new());
    archive.read_all(tail_start..size, &mut buffer)?;
    let directory = find(archive, &buffer, tail_start)?;
    let end = directory.start + directory.size;
    // what is in `buffer` from `at` on stands right before `next`
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
            let (from, mut piece) = (next - (buffer.len() - at) as u64, Vec::new());
            next = end.min(next + PIECE);
            archive.read_all(from..next, &mut piece)?;
            (buffer, at) = (piece, 0);
        } else {
            return Err(damaged("the last record of its directory is cut short"));
        }
    }
    match count == directory.count || count & 0xffff == directory.count {
        true => Ok(directory.start),
        false => Err(damaged(format!("its directory has {count} members, not {}", directory.count))),
    }
}

/// The record at the start of `bytes`, and its length; None if it doesn't end there.
fn parse(bytes: &[u8], before: u64) -> Outcome<Option<(Record<'_>, usize)>> {
    let mut fields = Fields(bytes);
    match fields.u32() {
        Some(RECORD) => {}
        Some(_) => return Err(damaged("its directory has something else among the members")),
        None => return Ok(None),
    }
    let Some((record, lens)) = fixed_part(&mut fields) else { return Ok(None) };
    let [name, extra, comment] = lens.map(usize::from);
    let (Some(name), Some(extra), Some(_)) = (fields.bytes(name), fields.bytes(extra), fields.bytes(comment)) else {
        return Ok(None);
    };
    let mut record = Record { name, ..record };
    large_sizes(&mut record, extra).ok_or_else(|| damaged("a member without its zip64 sizes"))?;
    let offset = record.offset.checked_add(before);
    record.offset = offset.ok_or_else(|| damaged("a member beyond the end"))?;
    if let Some(seconds) = universal_time(extra) {
        record.modified = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds.into()));
    }
    Ok(Some((record, RECORD_SIZE + name.len() + extra.len() + lens[2] as usize)))
}

/// All but the name, and the lengths of name, extra fields and comment.
fn fixed_part<'a>(fields: &mut Fields<'a>) -> Option<(Record<'a>, [u16; 3])> {
    let (_made_by, _needed, flags, method) = (fields.u16()?, fields.u16()?, fields.u16()?, fields.u16()?);
    let (time, date) = (fields.u16()?, fields.u16()?);
    let (crc, stored_size, size) = (fields.u32()?, fields.u32()?.into(), fields.u32()?.into());
    let lens = [fields.u16()?, fields.u16()?, fields.u16()?];
    let (_disk, _internal, _external) = (fields.u16()?, fields.u16()?, fields.u32()?);
    let (offset, modified) = (fields.u32()?.into(), dos_time(date, time));
    Some((Record { name: &[], flags, method, crc, stored_size, size, offset, modified }, lens))
}

/// Puts the sizes beyond 32 bits into their places. None if they are missing.
fn large_sizes(record: &mut Record, extra: &[u8]) -> Option<()> {
    let places = [&mut record.size, &mut record.stored_size, &mut record.offset];
    let mut large = places.into_iter().filter(|n| **n == u64::from(u32::MAX)).peekable();
    if large.peek().is_some() {
        let mut fields = Fields(extra).extra(EXTRA_ZIP64)?;
        for n in large {
            *n = fields.u64()?;
        }
    }
    Some(())
}

/// Seconds since 1970, where the first bit of the field says that they are there.
fn universal_time(extra: &[u8]) -> Option<u32> {
    let mut fields = Fields(extra).extra(EXTRA_TIME)?;
    (fields.bytes(1)?[0] & 1 == 1).then(|| fields.u32())?
}

/// Converts the local time of MS-DOS, which names no zone, as if it were UTC. Archivers without a time write the first
/// days of 1980, which count as none.
fn dos_time(date: u16, time: u16) -> Option<SystemTime> {
    let (year, month, day) = (1980 + i32::from(date >> 9), u32::from(date >> 5 & 15), u32::from(date & 31));
    let (hour, minute, second) = (u32::from(time >> 11), u32::from(time >> 5 & 63), u32::from(time & 31) * 2);
    let date = NaiveDate::from_ymd_opt(year, month, day).filter(|_| (year, month) != (1980, 1))?;
    Some(date.and_hms_opt(hour, minute, second)?.and_utc().into())
}

/// Finds the end record: the last one whose comment ends with the archive and before which there is a directory. A
/// comment may hold the signature, too.
fn find(archive: &Archive, tail: &[u8], tail_start: u64) -> Outcome<Directory> {
    let mut why = damaged("no zip archive, or cut short: it has no end record");
    let starts = tail.windows(END.len()).enumerate().rev().filter(|(_, bytes)| **bytes == END).map(|(at, _)| at);
    for at in starts {
        let comment = tail.get(at + END_SIZE - 2..at + END_SIZE).and_then(|bytes| Fields(bytes).u16());
        if comment.is_none_or(|len| at + END_SIZE + usize::from(len) != tail.len()) {
            continue;
        }
        match directory_before(archive, tail, tail_start, at) {
            Ok(directory) => return Ok(directory),
            Err(Failure::Error(e)) => why = e.into(),
            Err(changed) => return Err(changed),
        }
    }
    Err(why)
}

/// The directory that the end record at `at` of the tail tells of.
fn directory_before(archive: &Archive, tail: &[u8], tail_start: u64, at: usize) -> Outcome<Directory> {
    let mut fields = Fields(&tail[at + END.len()..]);
    let cut_short = || damaged("no zip archive, or cut short: its end record is");
    let (disks, [count, size, offset]) = end_fields(&mut fields).ok_or_else(cut_short)?;
    let located = at.checked_sub(LOCATOR_SIZE).and_then(|from| locator(&tail[from..at]));
    // where the directory ends, and what the end record says of it
    let (end, disks, [count, size, offset]) = match located {
        Some(stated) => large_end(archive, stated, tail_start + (at - LOCATOR_SIZE) as u64)?,
        None => (tail_start + at as u64, disks, [count, size, offset]),
    };
    if disks != 0 {
        return Err(Error::unsupported("one part of an archive split in several: join them first").into());
    }
    let start = end.checked_sub(size).filter(|start| *start >= offset);
    let start = start.ok_or_else(|| damaged("its directory doesn't stand where its end record says"))?;
    let first = start.checked_sub(tail_start).and_then(|at| tail.get(at as usize..at as usize + 4));
    if first.is_some_and(|bytes| size > 0 && bytes != RECORD.to_le_bytes()) {
        return Err(damaged("its directory doesn't stand where its end record says"));
    }
    Ok(Directory { start, size, count, before: start - offset })
}

/// Of the end record after its signature: the disks' numbers, which are 0, and count, size and offset of the directory.
fn end_fields(fields: &mut Fields) -> Option<(u32, [u64; 3])> {
    let disks = u32::from(fields.u16()? | fields.u16()?);
    let _on_this_disk = fields.u16()?;
    Some((disks, [fields.u16()?.into(), fields.u32()?.into(), fields.u32()?.into()]))
}

/// Where the zip64 end record is said to be, by the record that stands before the end record where there is one.
fn locator(bytes: &[u8]) -> Option<u64> {
    let mut fields = Fields(bytes);
    let (signature, _disk) = (fields.u32()?, fields.u32()?);
    if signature == LOCATOR { fields.u64() } else { None }
}

/// As [`end_fields`], of the zip64 end record, with where that stands: at `stated`, or where bytes before the archive
/// have moved it, right before its locator.
fn large_end(archive: &Archive, stated: u64, locator: u64) -> Outcome<(u64, u32, [u64; 3])> {
    let near = locator.saturating_sub(END64_SIZE as u64);
    for at in [stated, near] {
        if at > near {
            continue;
        }
        let mut bytes = Vec::new();
        archive.read_all(at..at + END64_SIZE as u64, &mut bytes)?;
        if let Some((disks, numbers)) = end64_fields(&mut Fields(&bytes)) {
            return Ok((at, disks, numbers));
        }
    }
    Err(damaged("its zip64 end record is missing"))
}

fn end64_fields(fields: &mut Fields) -> Option<(u32, [u64; 3])> {
    let signature = fields.u32()?;
    let (_size, _made_by, _needed) = (fields.u64()?, fields.u16()?, fields.u16()?);
    let disks = fields.u32()? | fields.u32()?;
    let _on_this_disk = fields.u64()?;
    (signature == END64).then_some((disks, [fields.u64()?, fields.u64()?, fields.u64()?]))
}
