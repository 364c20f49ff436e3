//! The members of an archive by their names, sorted, so that the names of one level are found by bisection. A member
//! takes some fifty bytes and its name. It knows neither the archive's bytes nor how they are encoded.

use super::archive::{Outcome, damaged};
use super::central::Record;
use crate::error::Error;
use crate::util::memory::Grant;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

/// Bytes of memory that a member takes beside its name; it has a place in an order of all of them, too.
const MEMBER: usize = size_of::<Member>() + size_of::<u32>();

/// Bytes of members that are counted together.
const COUNTED_AT_ONCE: usize = 64 << 10;

/// Set of a member that is encrypted.
const ENCRYPTED: u16 = 1;

/// Bytes of a member's own header before its name.
pub(super) const HEADER_SIZE: u64 = 30;

/// One member.
pub(super) struct Member {
    /// Where its name begins among the names.
    name: u32,
    name_len: u16,
    /// Bytes of its name as it is spelt in the archive.
    pub spelt_len: u16,
    pub method: u16,
    pub crc: u32,
    /// Seconds since 1970; 0 if there is no telling.
    modified: u32,
    /// Bytes from its own header to its data; 0 before that header was read.
    to_data: AtomicU32,
    pub is_encrypted: bool,
    /// True if another one's bytes begin before its own end.
    pub overlaps: bool,
    /// Bytes in the archive.
    pub stored_size: u64,
    /// Bytes of the value.
    pub size: u64,
    /// Where its own header stands.
    pub offset: u64,
}

impl Member {
    /// Where its data begins, if that is known.
    pub fn data(&self) -> Option<u64> {
        let to_data = self.to_data.load(Ordering::Relaxed);
        (to_data != 0).then(|| self.offset.saturating_add(to_data.into()))
    }

    /// Remembers how many bytes there are from its own header to its data.
    pub fn set_data(&self, to_data: u32) {
        self.to_data.store(to_data, Ordering::Relaxed);
    }

    /// When it was last changed.
    pub fn modified(&self) -> Option<SystemTime> {
        let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(self.modified.into()));
        time.filter(|_| self.modified != 0)
    }
}

/// All members.
#[derive(Default)]
pub(super) struct Index {
    /// One after another, in the directory's order.
    names: String,
    members: Vec<Member>,
    /// Counts both.
    memory: Grant,
    /// Bytes that are not counted yet.
    uncounted: usize,
    /// A name that can't be a key, if there are such: they are left out.
    pub refused: Option<String>,
}

impl Index {
    /// Adds a member.
    pub fn add(&mut self, record: &Record) -> Outcome<()> {
        let Some(name) = key_name(record.name) else {
            self.refused.get_or_insert_with(|| String::from_utf8_lossy(record.name).into_owned());
            return Ok(());
        };
        let start = u32::try_from(self.names.len()).map_err(|_| damaged("the names of its members fill 4 GiB"))?;
        let full = |_| Error::system(libc::ENOMEM).context("the directory of an archive");
        self.names.try_reserve(name.len()).map_err(full)?;
        self.members.try_reserve(1).map_err(full)?;
        self.uncounted += name.len() + MEMBER;
        if self.uncounted > COUNTED_AT_ONCE {
            self.memory
                .grow(std::mem::take(&mut self.uncounted))
                .map_err(|e| e.context("the directory of an archive"))?;
        }
        self.names.push_str(&name);
        let modified = record.modified.and_then(|t| t.duration_since(SystemTime::UNIX_EPOCH).ok());
        self.members.push(Member {
            name: start,
            name_len: name.len() as u16,
            spelt_len: record.name.len() as u16,
            method: record.method,
            crc: record.crc,
            modified: modified.and_then(|t| u32::try_from(t.as_secs()).ok()).unwrap_or(0),
            to_data: AtomicU32::new(0),
            is_encrypted: record.flags & ENCRYPTED != 0,
            overlaps: false,
            stored_size: record.stored_size,
            size: record.size,
            offset: record.offset,
        });
        Ok(())
    }

    /// To be called when all were added; the directory begins at `end`. Of several members of one name the last one
    /// stays.
    pub fn finish(&mut self, end: u64) {
        let names = &self.names;
        // a name that was added later begins later
        self.members.sort_unstable_by(|a, b| (name_of(names, a), a.name).cmp(&(name_of(names, b), b.name)));
        self.members.dedup_by(|later, kept| {
            let is_same = name_of(names, later) == name_of(names, kept);
            if is_same {
                std::mem::swap(later, kept);
            }
            is_same
        });
        self.members.shrink_to_fit();
        self.names.shrink_to_fit();
        self.mark_overlaps(end);
    }

    /// An archive in which members share bytes unpacks to far more than it holds, which no archiver makes.
    fn mark_overlaps(&mut self, end: u64) {
        let mut order: Vec<u32> = (0..self.members.len() as u32).collect();
        order.sort_unstable_by_key(|&i| (self.members[i as usize].offset, i));
        let mut next = end;
        for &i in order.iter().rev() {
            let member = &mut self.members[i as usize];
            let least = member.stored_size.saturating_add(HEADER_SIZE + u64::from(member.spelt_len));
            member.overlaps = member.offset.saturating_add(least) > next;
            next = next.min(member.offset);
        }
    }

    /// The name of a member.
    pub fn name(&self, member: &Member) -> &str {
        name_of(&self.names, member)
    }

    /// The member called `name`.
    pub fn find(&self, name: &str) -> Option<&Member> {
        self.members.binary_search_by(|m| self.name(m).cmp(name)).ok().and_then(|i| self.members.get(i))
    }

    /// The place of the first member whose name is not below `name`.
    pub fn at_or_after(&self, name: &str) -> usize {
        self.members.partition_point(|m| self.name(m) < name)
    }

    /// The member at a place.
    pub fn get(&self, place: usize) -> Option<&Member> {
        self.members.get(place)
    }

    /// True if a name begins with `prefix`.
    pub fn any_begins(&self, prefix: &str) -> bool {
        self.get(self.at_or_after(prefix)).is_some_and(|m| self.name(m).starts_with(prefix))
    }
}

fn name_of<'a>(names: &'a str, member: &Member) -> &'a str {
    let start = member.name as usize;
    names.get(start..start + usize::from(member.name_len)).unwrap_or_default()
}

/// A member's name as a key, with a slash behind it if it is a directory; None if it can't be one: an absolute path, or
/// one that leads out of where it is unpacked. Some archivers write `./` first, some backslashes.
pub(super) fn key_name(name: &[u8]) -> Option<String> {
    let name = std::str::from_utf8(name).ok()?.replace('\\', "/");
    let mut rest = name.as_str();
    while let Some(below) = rest.strip_prefix("./") {
        rest = below;
    }
    let names = rest.strip_suffix('/').unwrap_or(rest);
    let is_good = |name: &str| !matches!(name, "" | "." | "..") && !name.contains('\0');
    names.split('/').all(is_good).then(|| rest.to_string())
}
