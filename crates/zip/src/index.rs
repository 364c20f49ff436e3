//! The members of an archive, sorted by name, so that binary search finds the names of one level. A
//! member takes about fifty bytes and its name.

use super::central::CentralRecord;
use super::names::{key_name, unicode_name};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};
use zarrfs_base::error::Result;
use zarrfs_store::{NameSpan, NamedEntry, SortedEntries};

/// Memory of a member without its name, in bytes: its entry and its index in
/// [`mark_overlaps`].
const MEMBER: usize = size_of::<ArchiveMember>() + size_of::<u32>();

/// Maximum number of characters of a refused name in a message.
const MAX_SHOWN: usize = 80;

/// Flag of an encrypted member.
const ENCRYPTED: u16 = 1;

/// Size of a local header before its name, in bytes.
pub(super) const HEADER_SIZE: u64 = 30;

/// A member of an archive.
pub(super) struct ArchiveMember {
    name: NameSpan,
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

impl NamedEntry for ArchiveMember {
    const TOGETHER: &'static str = "the directory of an archive";

    fn name(&self) -> NameSpan {
        self.name
    }
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
    pub members: SortedEntries<ArchiveMember>,
    /// Number of members that are left out, since their names cannot be keys.
    pub refused: u64,
    /// The beginning of the first name of such a member.
    pub first_refused: Option<String>,
}

impl MemberIndex {
    /// Adds a member.
    pub fn add(&mut self, record: &CentralRecord) -> Result<()> {
        let Some(name) = key_name(record.name, record.flags, record.extra) else {
            self.refused += 1;
            self.first_refused.get_or_insert_with(|| {
                let text = String::from_utf8_lossy(record.name);
                text.chars().take(MAX_SHOWN).collect()
            });
            return Ok(());
        };
        self.members.count(name.len() + MEMBER)?;
        let modified = record
            .modified
            .and_then(|t| t.duration_since(SystemTime::UNIX_EPOCH).ok());
        self.members.add(&name, |name| ArchiveMember {
            name,
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
        })
    }

    /// Sorts the index after all members were added. `end` is the offset of the central directory.
    /// Of members with the same name, only the last one is kept.
    pub fn finish(&mut self, end: u64) -> Result<()> {
        self.members.finish()?;
        mark_overlaps(self.members.entries_mut(), end);
        Ok(())
    }
}

/// Marks members that share bytes with another one. Such archives unpack to far more than their
/// size, and no archiver creates them.
fn mark_overlaps(members: &mut [ArchiveMember], end: u64) {
    let mut order: Vec<u32> = (0..members.len() as u32).collect();
    order.sort_unstable_by_key(|&i| (members[i as usize].offset, i));
    let mut next = end;
    for &i in order.iter().rev() {
        let member = &mut members[i as usize];
        let least = member
            .stored_size
            .saturating_add(HEADER_SIZE + u64::from(member.stored_name_len));
        member.overlaps = member.offset.saturating_add(least) > next;
        next = next.min(member.offset);
    }
}
