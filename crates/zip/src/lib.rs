//! A read-only store in a zip archive, which is a value in the store below and is read by ranges.
//! The central directory is read once, and again after the archive was replaced.
//!
//! The parser is specific to this store: general archive crates need several times the memory per
//! member for a million chunks, refuse a whole archive because of one member, and send many small
//! requests to a remote store. The submodule `writer` makes archives. This module must not
//! know Zarr, nor the kind of store below.

mod archive_file;
mod central;
mod fields;
mod index;
mod inflated;
mod member;
mod names;
mod stream;
mod writer;

pub use writer::ZipWriter;

use archive_file::{ArchiveError, ArchiveFile, ArchiveResult};
use index::{ArchiveMember, MemberIndex};
use inflated::InflatedMembers;
use member::MemberReader;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use zarrfs_base::error::{Error, Kind, Result};
use zarrfs_base::memory;
use zarrfs_base::stats::Stats;
use zarrfs_store::{
    ByteRange, Capabilities, EntryKind, Hint, Key, Listing, OpenedValue, Readable, Reopening,
    SortedEntries, SortedListing, SortedNames, Stat, Store, StoreExt, Version, prefix_in,
};

/// Maximum number of times that a changing archive is reopened for one request.
const ATTEMPTS: usize = 5;

/// Maximum size in bytes of a deflated member of which parts are read: the size that a chunk may
/// have. Inflating such a member takes seconds.
const MAX_INFLATED: u64 = (2 << 30) - 1;

/// Upper bound for the offset of a time zone. The times of members have no zone, so a member may
/// seem younger than its archive.
const ZONES: Duration = Duration::from_secs(24 * 3600);

/// Names that macOS adds to archives.
const IGNORED: [&str; 2] = ["__MACOSX", ".DS_Store"];

/// A store in a zip archive.
pub struct ZipStore {
    /// Whether the only directory at the top of the archive is the root of the store.
    skips_folder: bool,
    opened: Reopening<OpenArchive>,
    stats: Arc<Stats>,
}

/// An archive with its index.
struct OpenArchive {
    archive: ArchiveFile,
    index: MemberIndex,
    inflated: Arc<InflatedMembers>,
    /// Version of the archive, which the versions of its members begin with.
    version: String,
    single_folder: OnceLock<Option<Key>>,
}

impl OpenArchive {
    fn open(below: &Arc<dyn Store>, key: &Key) -> Result<Self> {
        for _ in 0..ATTEMPTS {
            let archive = ArchiveFile::open(below.clone(), key.clone())?;
            let mut index = MemberIndex::default();
            match central::read(&archive, |record| Ok(index.add(&record)?)) {
                Ok(directory) => index.finish(directory)?,
                Err(ArchiveError::Other(e)) => return Err(e),
                Err(ArchiveError::Changed) => {
                    // cached metadata of the archive is stale
                    below.forget(key);
                    continue;
                }
            }
            let version = archive.stat.version.lasting();
            let inflated = Arc::new(InflatedMembers::default());
            memory::register(&inflated);
            return Ok(OpenArchive {
                archive,
                index,
                inflated,
                version,
                single_folder: OnceLock::new(),
            });
        }
        Err(keeps_changing())
    }

    fn reader(&self) -> MemberReader<'_> {
        MemberReader {
            archive: &self.archive,
            members: &self.index.members,
        }
    }

    /// Returns the only directory at the top of the archive, if nothing else is there.
    fn single_folder(self: &Arc<Self>) -> Option<&Key> {
        let folder = self.single_folder.get_or_init(|| {
            let names = SortedListing::new(self.clone(), &Key::root());
            let mut names = names.filter(|e| !IGNORED.contains(&e.name.as_str()));
            let first = names.next()?;
            let is_alone = first.kind == EntryKind::Prefix && names.next().is_none();
            is_alone.then(|| Key::root().join(&first.name))
        });
        folder.as_ref()
    }

    /// Returns the metadata of a member.
    fn member_stat(&self, member: &ArchiveMember) -> Stat {
        let archive = self.archive.stat.modified;
        let latest = archive.checked_add(ZONES).unwrap_or(archive);
        let modified = member
            .modified()
            .filter(|time| *time <= latest)
            .unwrap_or(archive);
        let version = Version::Tag(format!(
            "{}/{:x}-{:08x}",
            self.version, member.offset, member.crc
        ));
        let permissions = self.archive.stat.permissions;
        Stat {
            permissions,
            ..Stat::value(member.size, modified, version)
        }
    }

    /// Returns the metadata of a member or of a directory of the archive.
    fn find(&self, name: &str) -> Option<Stat> {
        let members = &self.index.members;
        match members.find(name) {
            Some(member) => Some(self.member_stat(member)),
            None if members.is_prefix(name) => Some(prefix_in(&self.archive.stat, &self.version)),
            None => None,
        }
    }

    fn read(
        &self,
        name: &str,
        range: &ByteRange,
        value: &mut Vec<u8>,
    ) -> ArchiveResult<Option<Stat>> {
        let Some(member) = self.index.members.find(name) else {
            return Ok(None);
        };
        self.reader().check(member)?;
        let part = range.within(member.size)?;
        if let ByteRange::Whole(_) = range {
            self.reader().whole(member, value)?;
        } else if MemberReader::is_stored(member) {
            self.reader().data(member, part, value)?;
        } else if member.size > MAX_INFLATED {
            let why = format!(
                "a deflated member of {} bytes, too large to read parts of it; unpack the archive",
                member.size
            );
            return Err(Error::unsupported(why).into());
        } else {
            memory::reserve(value, (part.end - part.start) as usize)?;
            self.inflated.read(&self.reader(), member, part, value)?;
        }
        Ok(Some(self.member_stat(member)))
    }
}

impl OpenedValue for OpenArchive {
    fn stat(&self) -> &Stat {
        &self.archive.stat
    }
}

impl SortedNames for OpenArchive {
    type Entry = ArchiveMember;

    fn names(&self) -> &SortedEntries<ArchiveMember> {
        &self.index.members
    }

    fn stat_of(&self, entry: &ArchiveMember) -> Option<Stat> {
        Some(self.member_stat(entry))
    }
}

impl ZipStore {
    /// Opens the archive that is the value of `key` in the store `below`.
    pub fn open(below: Arc<dyn Store>, key: &Key) -> Result<Self> {
        let opened = OpenArchive::open(&below, key)?;
        Ok(ZipStore {
            skips_folder: false,
            opened: Reopening::new(below, key.clone(), opened),
            stats: Arc::default(),
        })
    }

    /// Records in `stats` which members are left out.
    pub fn with_stats(self, stats: Arc<Stats>) -> Self {
        let store = ZipStore { stats, ..self };
        store.record_left_out(&store.opened.current());
        store
    }

    fn record_left_out(&self, opened: &OpenArchive) {
        let reason = "their names are not text, too long, too deep or no paths";
        let why = format!(
            "{} members of the archive are left out, since {reason}",
            opened.index.refused
        );
        self.stats.names_left_out(
            &self.opened.key,
            opened.index.first_refused.as_deref(),
            &why,
        );
    }

    /// Reads small neighboring members together. Their bytes are not revalidated, so this is for a
    /// command that reads the archive once.
    pub fn read_once(self) -> Self {
        self.opened.current().archive.keep_windows();
        self
    }

    /// Limits the store to [`ZipStore::single_folder`], if there is one, also after the archive was
    /// replaced.
    pub fn skipping_folder(self) -> Self {
        ZipStore {
            skips_folder: true,
            ..self
        }
    }

    /// Returns the only directory at the top of the archive, if nothing else is there: archives are
    /// often made of a directory instead of its content. Names that macOS adds are ignored.
    pub fn single_folder(&self) -> Option<Key> {
        self.opened.current().single_folder().cloned()
    }

    fn open_again(&self) -> Result<OpenArchive> {
        let opened = OpenArchive::open(&self.opened.below, &self.opened.key)?;
        self.record_left_out(&opened);
        Ok(opened)
    }

    /// Returns the archive after checking that it is current.
    fn fresh(&self) -> Result<Arc<OpenArchive>> {
        self.opened.fresh(|| self.open_again())
    }

    /// Reads from the archive, and reopens it if it was replaced.
    fn read_opened<T>(
        &self,
        mut read: impl FnMut(&Arc<OpenArchive>) -> ArchiveResult<T>,
    ) -> Result<T> {
        let mut opened = self.opened.known(|| self.open_again())?;
        for _ in 0..ATTEMPTS {
            match read(&opened) {
                Ok(done) => return Ok(done),
                Err(ArchiveError::Other(e)) => return Err(self.opened.named(e)),
                Err(ArchiveError::Changed) => {
                    self.opened.below.forget(&self.opened.key);
                    opened = self.opened.reopen(&opened, || self.open_again())?;
                }
            }
        }
        Err(self.opened.named(keeps_changing()))
    }

    fn name(&self, opened: &Arc<OpenArchive>, key: &Key) -> Key {
        let folder = self.skips_folder.then(|| opened.single_folder()).flatten();
        folder.map_or_else(|| key.clone(), |folder| folder.join_key(key))
    }
}

impl Readable for ZipStore {
    fn read(&self, key: &Key, range: &ByteRange, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        self.read_opened(|opened| opened.read(self.name(opened, key).as_str(), range, value))
    }

    fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        let opened = self.fresh()?;
        Ok(opened.find(self.name(&opened, key).as_str()))
    }

    fn stat_many(
        &self,
        keys: &mut dyn Iterator<Item = Key>,
        each: &mut dyn FnMut(Result<Option<Stat>>) -> bool,
    ) {
        let opened = self.fresh();
        for key in keys {
            let found = opened
                .as_ref()
                .map(|opened| opened.find(self.name(opened, &key).as_str()));
            if !each(found.map_err(Clone::clone)) {
                return;
            }
        }
    }

    fn list(&self, prefix: &Key) -> Result<Listing> {
        let opened = self.fresh()?;
        let name = self.name(&opened, prefix);
        if !opened.names().is_prefix(name.as_str()) {
            return Err(Error::not_found("no such folder in the archive"));
        }
        Ok(Box::new(SortedListing::new(opened, &name).map(Ok)))
    }

    fn hint(&self, hint: Hint) {
        if let Hint::Forget(_) | Hint::ForgetDocuments(_) = hint {
            self.opened.forget();
        }
    }

    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities {
            concurrency: self.opened.below.concurrency(),
            ..Capabilities::default()
        }
    }

    fn location(&self) -> String {
        self.opened.location()
    }
}

impl Store for ZipStore {}

fn keeps_changing() -> Error {
    Error::new(
        Kind::System(libc::EIO),
        "the archive changes faster than it can be read",
    )
}

#[cfg(test)]
mod tests;
