//! A layer over a store that shows each archive `NAME.zarr.zip` as a directory of that name. An
//! archive is opened when a key in it is asked for, and closed again when others are used more or
//! memory is short. This module must not know the content of archives.

use super::stores::{is_archive_name, is_outside, split_archive};
use lru::LruCache;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs::File;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use zarrfs_base::error::{Error, Kind, Result};
use zarrfs_base::memory::{self, Reclaim, lock};
use zarrfs_base::stats::Stats;
use zarrfs_store::{
    Entry, EntryKind, Key, KeyLock, Listing, ModeTarget, Permissions, Readable, Replaces, Stat,
    Store, ValuePiece, Version, ZipStore,
};

/// Maximum number of open archives. Each takes a file descriptor and the memory of its directory.
const OPEN_ARCHIVES: NonZeroUsize = NonZeroUsize::new(64).unwrap();

/// A store whose archives are shown as directories.
pub struct ArchivesStore {
    below: Arc<dyn Store>,
    stats: Arc<Stats>,
    opened: Arc<OpenedArchives>,
}

/// The archives that were used last. The lock protects the map alone.
struct OpenedArchives(Mutex<LruCache<Key, Arc<ArchiveSlot>>>);

/// An archive; `None` before it was opened. The lock is held while it is opened, so that only one
/// thread does so.
#[derive(Default)]
struct ArchiveSlot(Mutex<Option<OpenedArchive>>);

/// The outcome of opening an archive, and the version that was opened.
struct OpenedArchive {
    version: Version,
    archive: Result<Arc<ZipStore>>,
}

impl OpenedArchives {
    fn slot(&self, archive: &Key) -> Arc<ArchiveSlot> {
        lock(&self.0)
            .get_or_insert(archive.clone(), Arc::default)
            .clone()
    }

    /// Closes the archives at and below `key`, unless a request still uses them.
    fn close_below(&self, key: &Key) {
        self.close(&mut lock(&self.0), |archive| {
            archive.relative_to(key).is_some()
        });
    }

    fn close(
        &self,
        archives: &mut LruCache<Key, Arc<ArchiveSlot>>,
        is_closed: impl Fn(&Key) -> bool,
    ) {
        let keys: Vec<Key> = archives
            .iter()
            .map(|(key, _)| key)
            .filter(|key| is_closed(key))
            .cloned()
            .collect();
        keys.iter().for_each(|key| drop(archives.pop(key)));
    }
}

impl Reclaim for OpenedArchives {
    fn reclaim(&self) {
        if let Ok(mut archives) = self.0.try_lock() {
            self.close(&mut archives, |_| true);
        }
    }
}

impl ArchivesStore {
    /// Returns the store `below` with its archives as directories.
    pub fn new(below: Arc<dyn Store>, stats: Arc<Stats>) -> Self {
        let opened = Arc::new(OpenedArchives(Mutex::new(LruCache::new(OPEN_ARCHIVES))));
        memory::register(&opened);
        ArchivesStore {
            below,
            stats,
            opened,
        }
    }

    /// Calls `ask` with the store that holds `key`, and with the key in it.
    fn at<T>(&self, key: &Key, mut ask: impl FnMut(&dyn Store, &Key) -> Result<T>) -> Result<T> {
        let Some((archive, inside)) = split_archive(key) else {
            return ask(&*self.below, key);
        };
        let Some(opened) = self.open(&archive)? else {
            return ask(&*self.below, key);
        };
        let asked = ask(&*opened, &inside);
        // another program may have removed the archive, or put a directory in its place
        if asked.is_err() && !self.is_archive(&archive)? {
            self.opened.close_below(&archive);
            return ask(&*self.below, key);
        }
        asked
    }

    /// Opens an archive; `None` if there is no file of this name. The error of a damaged archive is
    /// kept until the file changes, since reading a large one takes long.
    fn open(&self, key: &Key) -> Result<Option<Arc<ZipStore>>> {
        let slot = self.opened.slot(key);
        let mut opened = lock(&slot.0);
        if let Some(OpenedArchive {
            archive: Ok(archive),
            ..
        }) = &*opened
        {
            return Ok(Some(archive.clone()));
        }
        let stat = self.below.stat(key).map_err(|e| e.context(key))?;
        let Some(stat) = stat.filter(|stat| stat.kind == EntryKind::Value) else {
            self.opened.close_below(key);
            return Ok(None);
        };
        if let Some(OpenedArchive {
            version,
            archive: Err(e),
        }) = &*opened
            && *version == stat.version
        {
            return Err(e.clone());
        }
        let archive = match ZipStore::open(self.below.clone(), key) {
            Err(e) if e.kind() == Kind::NotFound => return Ok(None),
            Err(e) => Err(e.context(key)),
            Ok(archive) => Ok(Arc::new(
                archive.skipping_folder().with_stats(self.stats.clone()),
            )),
        };
        let is_transient = matches!(&archive, Err(e) if matches!(e.kind(), Kind::System(_)));
        *opened = (!is_transient).then(|| OpenedArchive {
            version: stat.version,
            archive: archive.clone(),
        });
        archive.map(Some)
    }

    fn is_archive(&self, key: &Key) -> Result<bool> {
        Ok(self
            .below
            .stat(key)?
            .is_some_and(|stat| stat.kind == EntryKind::Value))
    }

    /// Returns an error if `key` is in an archive, or would be one.
    fn check_outside(&self, key: &Key) -> Result<()> {
        let Some((archive, _)) = split_archive(key) else {
            return Ok(());
        };
        match self.below.stat(&archive)? {
            Some(stat) if stat.kind == EntryKind::Prefix => Ok(()),
            _ => {
                let why = format!(
                    "{archive}: archives are read-only in a mount; change the file itself, or unpack it"
                );
                Err(Error::new(Kind::ReadOnly, why))
            }
        }
    }

    /// Returns the store below if `key` lies in no archive.
    fn outside(&self, key: &Key) -> Option<&dyn Store> {
        split_archive(key).is_none().then_some(&*self.below)
    }
}

/// Returns the metadata of a directory that stands for an archive. Users who may read the archive
/// may search it.
fn as_directory(stat: Stat) -> Stat {
    if stat.kind != EntryKind::Value {
        return stat;
    }
    let permissions = stat.permissions.map(Permissions::of_level);
    let version = Version::Tag(stat.version.to_string());
    Stat {
        modified: stat.modified,
        version,
        permissions,
        ..Stat::prefix()
    }
}

/// Returns whether `key` names an archive itself.
fn is_archive_key(key: &Key) -> bool {
    split_archive(key).is_some_and(|(_, inside)| inside.is_root())
}

/// Shows an archive in a listing as a directory.
fn listed(entry: Entry) -> Entry {
    if entry.kind == EntryKind::Value && is_archive_name(&entry.name) {
        Entry {
            kind: EntryKind::Prefix,
            stat: entry.stat.map(as_directory),
            ..entry
        }
    } else {
        entry
    }
}

impl Readable for ArchivesStore {
    fn below(&self) -> Option<&dyn Store> {
        Some(&*self.below)
    }

    fn get(&self, key: &Key, limit: u64, value: &mut Vec<u8>) -> Result<Option<Version>> {
        self.at(key, |store, key| store.get(key, limit, value))
    }

    fn get_range(&self, key: &Key, range: Range<u64>, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        self.at(key, |store, key| store.get_range(key, range.clone(), value))
    }

    fn get_end(&self, key: &Key, len: u64, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        self.at(key, |store, key| store.get_end(key, len, value))
    }

    fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        if is_archive_key(key) {
            Ok(self.below.stat(key)?.map(as_directory))
        } else {
            self.at(key, |store, key| store.stat(key))
        }
    }

    fn stat_many(
        &self,
        keys: &mut dyn Iterator<Item = Key>,
        each: &mut dyn FnMut(Result<Option<Stat>>) -> bool,
    ) {
        let is_inside = |key: &Key| split_archive(key).is_some_and(|(_, inside)| !inside.is_root());
        let mut keys = keys.peekable();
        let mut continues = true;
        while continues && let Some(key) = keys.peek() {
            if is_inside(key) {
                continues = keys.next().is_none_or(|key| each(self.stat(&key)));
                continue;
            }
            // the store below is asked for a whole run: it may take keys before it reports those
            // before them
            let archives = RefCell::new(VecDeque::new());
            let mut run = std::iter::from_fn(|| {
                let key = keys.next_if(|key| !is_inside(key))?;
                archives.borrow_mut().push_back(is_archive_key(&key));
                Some(key)
            });
            self.below.stat_many(&mut run, &mut |stat| {
                let is_archive = archives.borrow_mut().pop_front().unwrap_or(false);
                continues = each(if is_archive {
                    stat.map(|stat| stat.map(as_directory))
                } else {
                    stat
                });
                continues
            });
        }
    }

    fn list(&self, prefix: &Key) -> Result<Listing> {
        let names = self.at(prefix, |store, prefix| store.list(prefix))?;
        Ok(if is_outside(prefix) {
            Box::new(names.map(|entry| entry.map(listed)))
        } else {
            names
        })
    }

    fn forget(&self, prefix: &Key) {
        let archive = split_archive(prefix).map(|(archive, _)| archive);
        let is_meant =
            |key: &Key| archive.as_ref() == Some(key) || key.relative_to(prefix).is_some();
        let meant: Vec<Arc<ArchiveSlot>> = {
            let archives = lock(&self.opened.0);
            archives
                .iter()
                .filter(|(key, _)| is_meant(key))
                .map(|(_, slot)| slot.clone())
                .collect()
        };
        for slot in meant {
            // an archive that is being opened is new
            if let Ok(Some(OpenedArchive {
                archive: Ok(archive),
                ..
            })) = slot.0.try_lock().as_deref()
            {
                archive.forget(&Key::root());
            }
        }
        self.below.forget(archive.as_ref().unwrap_or(prefix));
    }

    fn file(&self, key: &Key) -> Result<Option<(File, Stat)>> {
        self.at(key, |store, key| store.file(key))
    }

    fn location(&self) -> String {
        self.below.location()
    }
}

impl Store for ArchivesStore {
    fn check_writable(&self, prefix: &Key) -> Result<()> {
        self.check_outside(prefix)?;
        self.below.check_writable(prefix)
    }

    fn put(&self, key: &Key, value: &[u8]) -> Result<Version> {
        self.check_outside(key)?;
        self.below.put(key, value)
    }

    fn put_if(&self, key: &Key, value: &[u8], replaces: Replaces) -> Result<Option<Version>> {
        self.check_outside(key)?;
        self.below.put_if(key, value, replaces)
    }

    fn put_pieces(
        &self,
        key: &Key,
        pieces: &[ValuePiece],
        replaces: Replaces,
    ) -> Result<Option<Version>> {
        self.check_outside(key)?;
        self.below.put_pieces(key, pieces, replaces)
    }

    fn set_mode(&self, key: &Key, mode: u32, target: ModeTarget) -> Result<()> {
        self.check_outside(key)?;
        self.below.set_mode(key, mode, target)
    }

    fn delete(&self, key: &Key) -> Result<bool> {
        self.check_outside(key)?;
        self.below.delete(key)
    }

    fn lock(&self, key: &Key, since: Instant) -> Result<KeyLock> {
        self.outside(key)
            .map_or_else(|| Ok(KeyLock::default()), |below| below.lock(key, since))
    }

    fn make_prefix(&self, key: &Key) -> Result<()> {
        self.check_outside(key)?;
        self.below.make_prefix(key)
    }

    fn remove_prefix(&self, key: &Key) -> Result<()> {
        self.check_outside(key)?;
        self.below.remove_prefix(key)
    }

    fn rename(&self, from: &Key, to: &Key) -> Result<()> {
        self.check_outside(from)?;
        self.check_outside(to)?;
        self.below.rename(from, to)?;
        [from, to]
            .into_iter()
            .for_each(|key| self.opened.close_below(key));
        Ok(())
    }

    fn writable_file(&self, key: &Key, create: bool, exclusive: bool) -> Result<File> {
        self.check_outside(key)?;
        self.below.writable_file(key, create, exclusive)
    }
}

#[cfg(test)]
mod tests;
