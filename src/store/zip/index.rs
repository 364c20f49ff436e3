//! The members of an archive, sorted by name, so that binary search finds the names of one level. A
//! member takes about fifty bytes and its name.

use super::archive_file::{ArchiveResult, damaged};
use super::central::CentralRecord;
use super::names::{key_name, unicode_name};
use crate::error::Error;
use crate::util::memory::Grant;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

/// Memory of a member without its name, in bytes: its entry and its index in
/// [`MemberIndex::mark_overlaps`].
const MEMBER: usize = size_of::<ArchiveMember>() + size_of::<u32>();

/// Step by which the grant for memory grows, in bytes.
const GRANT_STEP: usize = 64 << 10;

/// Maximum number of characters of a refused name in a message.
const MAX_SHOWN: usize = 80;

/// Flag of an encrypted member.
const ENCRYPTED: u16 = 1;

/// Size of a local header before its name, in bytes.
pub(super) const HEADER_SIZE: u64 = 30;

/// A member of an archive.
pub(super) struct ArchiveMember {
    /// Offset of its name in the names of the index.
    name: u32,
    name_len: u16,
    /// Length of its name as stored in the archive, in bytes.
    pub stored_name_len: u16,
    pub method: u16,
    pub crc: u32,
    /// Time of the last modification in seconds since 1970; 0 if it is unknown.
    modified: u32,
    /// Distance from the local header to the data, in bytes; 0 before the header was read.
    to_data: AtomicU32,
    pub is_encrypted: bool,
    /// Whether the name is that of an extra field.
    pub has_unicode_name: bool,
    /// Whether the next member begins before the end of this one.
    pub overlaps: bool,
    /// Size in the archive, in bytes.
    pub stored_size: u64,
    /// Size of the value, in bytes.
    pub size: u64,
    /// Offset of the local header.
    pub offset: u64,
}

impl ArchiveMember {
    /// Returns the offset of the data, if it is known.
    pub fn data(&self) -> Option<u64> {
        let to_data = self.to_data.load(Ordering::Relaxed);
        (to_data != 0).then(|| self.offset.saturating_add(to_data.into()))
    }

    /// Records the distance from the local header to the data.
    pub fn set_data(&self, to_data: u32) {
        self.to_data.store(to_data, Ordering::Relaxed);
    }

    /// Returns the time of the last modification.
    pub fn modified(&self) -> Option<SystemTime> {
        let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(self.modified.into()));
        time.filter(|_| self.modified != 0)
    }
}

/// All members of an archive.
#[derive(Default)]
pub(super) struct MemberIndex {
    /// Concatenated names, in the order of the central directory.
    names: String,
    members: Vec<ArchiveMember>,
    /// Memory of names and members.
    memory: Grant,
    /// Bytes that are not granted yet.
    uncounted: usize,
    /// Number of members that are left out, since their names cannot be keys.
    pub refused: u64,
    /// The beginning of the first name of such a member.
    pub first_refused: Option<String>,
}

impl MemberIndex {
    /// Adds a member.
    pub fn add(&mut self, record: &CentralRecord) -> ArchiveResult<()> {
        let Some(name) = key_name(record.name, record.flags, record.extra) else {
            self.refused += 1;
            let shown = || {
                String::from_utf8_lossy(record.name)
                    .chars()
                    .take(MAX_SHOWN)
                    .collect()
            };
            self.first_refused.get_or_insert_with(shown);
            return Ok(());
        };
        let start = u32::try_from(self.names.len())
            .map_err(|_| damaged("the names of its members exceed 4 GiB"))?;
        let full = |_| Error::system(libc::ENOMEM).context("the directory of an archive");
        self.names.try_reserve(name.len()).map_err(full)?;
        self.members.try_reserve(1).map_err(full)?;
        self.uncounted += name.len() + MEMBER;
        if self.uncounted > GRANT_STEP {
            self.memory
                .grow(std::mem::take(&mut self.uncounted))
                .map_err(|e| e.context("the directory of an archive"))?;
        }
        self.names.push_str(&name);
        let modified = record
            .modified
            .and_then(|t| t.duration_since(SystemTime::UNIX_EPOCH).ok());
        self.members.push(ArchiveMember {
            name: start,
            name_len: name.len() as u16,
            has_unicode_name: unicode_name(record.name, record.extra).is_some(),
            stored_name_len: record.name.len() as u16,
            method: record.method,
            crc: record.crc,
            modified: modified
                .and_then(|t| u32::try_from(t.as_secs()).ok())
                .unwrap_or(0),
            to_data: AtomicU32::new(0),
            is_encrypted: record.flags & ENCRYPTED != 0,
            overlaps: false,
            stored_size: record.stored_size,
            size: record.size,
            offset: record.offset,
        });
        Ok(())
    }

    /// Sorts the index after all members were added. `end` is the offset of the central directory.
    /// Of members with the same name, only the last one is kept.
    pub fn finish(&mut self, end: u64) {
        let names = &self.names;
        // of members with the same name, the one that was added last sorts last: its name has the
        // largest offset
        self.members
            .sort_unstable_by(|a, b| (name_of(names, a), a.name).cmp(&(name_of(names, b), b.name)));
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

    /// Marks members that share bytes with another one. Such archives unpack to far more than their
    /// size, and no archiver creates them.
    fn mark_overlaps(&mut self, end: u64) {
        let mut order: Vec<u32> = (0..self.members.len() as u32).collect();
        order.sort_unstable_by_key(|&i| (self.members[i as usize].offset, i));
        let mut next = end;
        for &i in order.iter().rev() {
            let member = &mut self.members[i as usize];
            let least = member
                .stored_size
                .saturating_add(HEADER_SIZE + u64::from(member.stored_name_len));
            member.overlaps = member.offset.saturating_add(least) > next;
            next = next.min(member.offset);
        }
    }

    /// Returns the name of a member.
    pub fn name(&self, member: &ArchiveMember) -> &str {
        name_of(&self.names, member)
    }

    /// Returns the member with this name.
    pub fn find(&self, name: &str) -> Option<&ArchiveMember> {
        self.members
            .binary_search_by(|m| self.name(m).cmp(name))
            .ok()
            .and_then(|i| self.members.get(i))
    }

    /// Returns the position of the first member whose name is not less than `name`.
    pub fn at_or_after(&self, name: &str) -> usize {
        self.members.partition_point(|m| self.name(m) < name)
    }

    /// Returns the member at a position.
    pub fn get(&self, position: usize) -> Option<&ArchiveMember> {
        self.members.get(position)
    }
}

fn name_of<'a>(names: &'a str, member: &ArchiveMember) -> &'a str {
    let start = member.name as usize;
    names
        .get(start..start + usize::from(member.name_len))
        .unwrap_or_default()
}
