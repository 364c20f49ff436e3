//! A zip archive as a store: the archive is the value of a key in the store below, read by ranges, and never written.
//! Its directory is read once, and anew when the archive was replaced. The reader of the directory is our own: crates
//! for archives of all kinds take several times the memory for each of a million chunks, refuse an archive for one
//! member, and read one by one what a far archive must answer by one request. It knows nothing of Zarr, nor of the kind
//! of store below.

mod archive;
mod central;
mod fields;
mod index;
mod inflated;
mod listing;
mod member;
mod stream;

use super::{EntryKind, Key, Listing, Permissions, Stat, Store, Version, delegate_store};
use crate::error::{Error, Kind, Result};
use crate::util::memory::{self, lock};
use archive::{Archive, Failure, Outcome};
use index::{Index, Member};
use inflated::Inflated;
use listing::Names;
use member::Reader;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

/// How often an archive that changes while it is read is opened anew for one request.
const ATTEMPTS: usize = 5;

/// Deflated members up to this many bytes are inflated to read a part of one, which takes seconds: as many as a chunk may
/// have.
const MAX_INFLATED: u64 = (2 << 30) - 1;

/// A member may be younger than its archive by its zone, which it doesn't know.
const ZONES: Duration = Duration::from_secs(24 * 3600);

/// What stands in an archive beside its one folder and means nothing: macOS puts it there.
const IGNORED: [&str; 2] = ["__MACOSX", ".DS_Store"];

/// A store in a zip archive.
pub struct ZipStore {
    below: Arc<dyn Store>,
    key: Key,
    /// The prefix in the archive that is the root of the store.
    root: Key,
    /// Protects which archive is read; nothing is read while it is held.
    opened: RwLock<Arc<Opened>>,
    /// Held while the archive is opened anew: others wait for it instead of doing it, too.
    opening: Mutex<()>,
    /// How often [`Store::forget`] was called, and how often it had been when the archive was last asked for.
    forgotten: AtomicU64,
    asked: AtomicU64,
}

/// An archive with its directory.
struct Opened {
    archive: Archive,
    index: Index,
    inflated: Arc<Inflated>,
    /// Of the archive, as its members' versions begin.
    version: String,
}

impl Opened {
    fn open(below: &Arc<dyn Store>, key: &Key) -> Result<Self> {
        for _ in 0..ATTEMPTS {
            let archive = Archive::open(below.clone(), key.clone())?;
            let mut index = Index::default();
            match central::read(&archive, |record| index.add(&record)) {
                Ok(directory) => index.finish(directory),
                Err(Failure::Error(e)) => return Err(e),
                Err(Failure::Changed) => {
                    // what is remembered of it is no longer true
                    below.forget(key);
                    continue;
                }
            }
            if let Some(name) = &index.refused {
                log::warn!("{key}: members whose names can't be keys are left out, {name:?} first");
            }
            let version = archive.stat.version.to_string();
            let inflated = Arc::new(Inflated::default());
            memory::register(&inflated);
            return Ok(Opened { archive, index, inflated, version });
        }
        Err(changes_always())
    }

    fn reader(&self) -> Reader<'_> {
        Reader { archive: &self.archive, index: &self.index }
    }

    /// What is known of a member.
    fn stat(&self, member: &Member) -> Stat {
        let archive = self.archive.stat.modified;
        let latest = archive.checked_add(ZONES).unwrap_or(archive);
        let modified = member.modified().filter(|time| *time <= latest).unwrap_or(archive);
        let version = Version::Tag(format!("{}/{:x}-{:08x}", self.version, member.offset, member.crc));
        let permissions = self.archive.stat.permissions;
        Stat { kind: EntryKind::Value, size: member.size, modified, version, permissions }
    }

    /// What stands at `name`: a member, else a level above one.
    fn find(&self, name: &str) -> Option<Stat> {
        if let Some(member) = self.index.find(name) {
            return Some(self.stat(member));
        }
        let is_prefix = name.is_empty() || self.index.any_begins(&format!("{name}/"));
        is_prefix.then(|| Stat {
            kind: EntryKind::Prefix,
            size: 0,
            modified: self.archive.stat.modified,
            version: Version::Tag(self.version.clone()),
            // a level of the archive can be searched by those who may read the archive
            permissions: self.archive.stat.permissions.map(Permissions::of_level),
        })
    }

    fn get(&self, name: &str, limit: u64, value: &mut Vec<u8>) -> Outcome<Option<Version>> {
        let Some(member) = self.index.find(name) else { return Ok(None) };
        self.reader().check(member)?;
        if member.size > limit {
            return Err(Error::damaged(format!("{} bytes, more than the {limit} it may have", member.size)).into());
        }
        self.reader().whole(member, value)?;
        Ok(Some(self.stat(member).version))
    }

    fn get_range(&self, name: &str, range: Range<u64>, value: &mut Vec<u8>) -> Outcome<Option<Stat>> {
        let Some(member) = self.index.find(name) else { return Ok(None) };
        self.reader().check(member)?;
        let end = range.end.min(member.size);
        let range = range.start.min(end)..end;
        if Reader::is_stored(member) {
            self.reader().data(member, range, value)?;
        } else if member.size > MAX_INFLATED {
            let why = format!("a deflated member of {} bytes, of which no part can be read: unpack it", member.size);
            return Err(Error::unsupported(why).into());
        } else {
            memory::reserve(value, (range.end - range.start) as usize)?;
            self.inflated.read(&self.reader(), member, range, value)?;
        }
        Ok(Some(self.stat(member)))
    }
}

impl ZipStore {
    /// The archive that is the value of `key` in the store `below`.
    pub fn open(below: Arc<dyn Store>, key: &Key) -> Result<Self> {
        let opened = Opened::open(&below, key)?;
        Ok(ZipStore {
            below,
            key: key.clone(),
            root: Key::root(),
            opened: RwLock::new(Arc::new(opened)),
            opening: Mutex::default(),
            forgotten: AtomicU64::new(0),
            asked: AtomicU64::new(0),
        })
    }

    /// The same archive, of which only what is in `folder` is the store.
    pub fn in_folder(self, folder: Key) -> Self {
        ZipStore { root: folder, ..self }
    }

    /// The folder that holds all there is in the archive, where it is that way: so an archive is made of a folder, not
    /// of what is in it. What macOS adds beside it doesn't count.
    pub fn single_folder(&self) -> Option<Key> {
        let mut names = Names::new(self.current(), &Key::root()).filter(|e| !IGNORED.contains(&e.name.as_str()));
        let (first, second) = (names.next()?, names.next());
        (first.kind == EntryKind::Prefix && second.is_none()).then(|| Key::root().join(&first.name))
    }

    fn current(&self) -> Arc<Opened> {
        self.opened.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The archive as it is now.
    fn fresh(&self) -> Result<Arc<Opened>> {
        let forgotten = self.forgotten.load(Ordering::Acquire);
        let opened = self.current();
        let now = self.below.stat(&self.key).map_err(|e| self.named(e))?;
        let is_same = now.is_some_and(|now| now.version == opened.archive.stat.version);
        let opened = if is_same { opened } else { self.reopen(&opened)? };
        self.asked.fetch_max(forgotten, Ordering::AcqRel);
        Ok(opened)
    }

    /// Opens the archive that stands where `old` stood.
    fn reopen(&self, old: &Arc<Opened>) -> Result<Arc<Opened>> {
        let _turn = lock(&self.opening);
        let current = self.current();
        if !Arc::ptr_eq(&current, old) {
            return Ok(current);
        }
        let opened = Arc::new(Opened::open(&self.below, &self.key).map_err(|e| self.named(e))?);
        *self.opened.write().unwrap_or_else(PoisonError::into_inner) = opened.clone();
        Ok(opened)
    }

    /// Reads from the archive as it is known; anew if it is another one by now.
    fn read<T>(&self, mut read: impl FnMut(&Opened) -> Outcome<T>) -> Result<T> {
        let is_known = self.asked.load(Ordering::Acquire) == self.forgotten.load(Ordering::Acquire);
        let mut opened = if is_known { self.current() } else { self.fresh()? };
        for _ in 0..ATTEMPTS {
            match read(&opened) {
                Ok(done) => return Ok(done),
                Err(Failure::Error(e)) => return Err(self.named(e)),
                Err(Failure::Changed) => {
                    self.below.forget(&self.key);
                    opened = self.reopen(&opened)?;
                }
            }
        }
        Err(self.named(changes_always()))
    }

    /// An error of the archive or of a member, with the archive's name. That there is no archive must not be taken for
    /// a value that is not there.
    fn named(&self, e: Error) -> Error {
        let e = if e.kind() == Kind::NotFound { Error::new(Kind::System(libc::EIO), e.message()) } else { e };
        e.context(self.location())
    }

    fn name(&self, key: &Key) -> Key {
        if key.is_root() { self.root.clone() } else { self.root.join(key.as_str()) }
    }
}

impl Store for ZipStore {
    fn get(&self, key: &Key, limit: u64, value: &mut Vec<u8>) -> Result<Option<Version>> {
        let name = self.name(key);
        self.read(|opened| opened.get(name.as_str(), limit, value))
    }

    fn get_range(&self, key: &Key, range: Range<u64>, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        let name = self.name(key);
        self.read(|opened| opened.get_range(name.as_str(), range.clone(), value))
    }

    fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        Ok(self.fresh()?.find(self.name(key).as_str()))
    }

    fn stat_many(&self, keys: &mut dyn Iterator<Item = Key>, each: &mut dyn FnMut(Result<Option<Stat>>) -> bool) {
        let opened = self.fresh();
        for key in keys {
            let found = opened.as_ref().map(|opened| opened.find(self.name(&key).as_str()));
            if !each(found.map_err(Clone::clone)) {
                return;
            }
        }
    }

    fn list(&self, prefix: &Key) -> Result<Listing> {
        let (opened, name) = (self.fresh()?, self.name(prefix));
        match opened.find(name.as_str()) {
            Some(stat) if stat.kind == EntryKind::Prefix => Ok(Box::new(Names::new(opened, &name).map(Ok))),
            _ => Err(Error::not_found("no such folder in the archive")),
        }
    }

    delegate_store!(below: concurrency);

    fn forget(&self, _prefix: &Key) {
        self.below.forget(&self.key);
        self.forgotten.fetch_add(1, Ordering::AcqRel);
    }

    fn location(&self) -> String {
        let (below, archive, root) = (self.below.location(), &self.key, &self.root);
        let below = below.trim_end_matches('/');
        if root.is_root() { format!("{below}{archive}") } else { format!("{below}{archive}{root}") }
    }
}

fn changes_always() -> Error {
    Error::new(Kind::System(libc::EIO), "the archive changes faster than it can be read")
}

#[cfg(test)]
mod tests;
