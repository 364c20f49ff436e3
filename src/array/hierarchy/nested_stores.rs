//! A layer over a directory of stores that shows what is in an archive `NAME.zarr.zip` or
//! `NAME.ozx`, or in a repository `NAME.icechunk`, as a directory of that name. It is opened when a
//! key in it is asked for, and closed again when others are used more or memory is short. This
//! module must not know the content of archives and repositories.

use super::stores::{is_archive_name, is_outside, split_nested};
use lru::LruCache;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs::File;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use zarrfs_base::error::{Error, ErrorContext, Kind, Result};
use zarrfs_base::memory::{self, Reclaim, lock};
use zarrfs_base::stats::Stats;
use zarrfs_store::{
    ByteRange, Capabilities, Entry, EntryKind, FileAttribute, Hint, Key, KeyLock, Listing,
    LocalFiles, NameChange, Permissions, Readable, Replaces, SnapshotCommit, SnapshotHistory,
    SnapshotRef, Snapshots, Space, Stat, Store, StoreExt, ValuePiece, Version,
};
use zarrfs_zip::ZipStore;

/// Maximum number of open archives and repositories. An archive takes a file descriptor and the
/// memory of its directory.
const OPEN_STORES: NonZeroUsize = NonZeroUsize::new(64).unwrap();

/// A store whose archives and repositories are shown as directories.
pub struct NestedStores {
    below: Arc<dyn Store>,
    stats: Arc<Stats>,
    open_repository: OpenRepository,
    opened: Arc<OpenedStores>,
}

/// Opens the repository at a key of a store; `None` if there is none.
pub type OpenRepository =
    Box<dyn Fn(&Arc<dyn Store>, &Key) -> Result<Option<Arc<dyn Store>>> + Send + Sync>;

/// The archives and repositories that were used last. The lock protects the map alone.
struct OpenedStores(Mutex<LruCache<Key, Arc<StoreSlot>>>);

/// An archive or a repository; `None` before it was opened. The lock is held while it is opened, so
/// that only one thread does so.
#[derive(Default)]
struct StoreSlot(Mutex<Option<OpenedStore>>);

/// The outcome of opening an archive or a repository, and the version that was opened.
struct OpenedStore {
    version: Version,
    store: Result<Arc<dyn Store>>,
}

impl OpenedStores {
    fn slot(&self, archive: &Key) -> Arc<StoreSlot> {
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
        archives: &mut LruCache<Key, Arc<StoreSlot>>,
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

impl Reclaim for OpenedStores {
    fn reclaim(&self) {
        if let Ok(mut archives) = self.0.try_lock() {
            self.close(&mut archives, |_| true);
        }
    }
}

impl NestedStores {
    /// Returns the store `below` with its archives and repositories as directories.
    pub fn new(below: Arc<dyn Store>, stats: Arc<Stats>, open_repository: OpenRepository) -> Self {
        let opened = Arc::new(OpenedStores(Mutex::new(LruCache::new(OPEN_STORES))));
        memory::register(&opened);
        NestedStores {
            below,
            stats,
            open_repository,
            opened,
        }
    }

    /// Calls `ask` with the store that holds `key`, and with the key in it.
    fn at<T>(&self, key: &Key, mut ask: impl FnMut(&dyn Store, &Key) -> Result<T>) -> Result<T> {
        let Some((root, inside)) = split_nested(key) else {
            return ask(&*self.below, key);
        };
        let Some(opened) = self.open(&root)? else {
            return ask(&*self.below, key);
        };
        let asked = ask(&*opened, &inside);
        // another program may have removed the archive, or put a directory in its place
        if asked.is_err() && self.stat_nested(&root)?.is_none() {
            self.opened.close_below(&root);
            return ask(&*self.below, key);
        }
        asked
    }

    /// Opens an archive or a repository; `None` if there is none of this name. The error of a
    /// damaged archive is kept until the file changes, since reading a large one takes long.
    fn open(&self, key: &Key) -> Result<Option<Arc<dyn Store>>> {
        let slot = self.opened.slot(key);
        let mut opened = lock(&slot.0);
        if let Some(OpenedStore {
            store: Ok(store), ..
        }) = &*opened
        {
            return Ok(Some(store.clone()));
        }
        let Some(stat) = self.stat_nested(key).context(key)? else {
            self.opened.close_below(key);
            return Ok(None);
        };
        if let Some(OpenedStore {
            version,
            store: Err(e),
        }) = &*opened
            && *version == stat.version
        {
            return Err(e.clone());
        }
        let found = if is_archive_name(key.name()) {
            let archive = ZipStore::open(self.below.clone(), key);
            archive.map(|archive| {
                let archive = archive.skipping_folder().with_stats(self.stats.clone());
                Some(Arc::new(archive) as Arc<dyn Store>)
            })
        } else {
            (self.open_repository)(&self.below, key)
        };
        let store = match found {
            Ok(None) => return Ok(None),
            Err(e) if e.kind() == Kind::NotFound => return Ok(None),
            Err(e) => Err(e.context(key)),
            Ok(Some(store)) => Ok(store),
        };
        let is_transient = matches!(&store, Err(e) if matches!(e.kind(), Kind::System(_)));
        *opened = (!is_transient).then(|| OpenedStore {
            version: stat.version,
            store: store.clone(),
        });
        store.map(Some)
    }

    /// Returns the metadata of what may be opened under a name: the file of an archive, the
    /// directory of a repository.
    fn stat_nested(&self, key: &Key) -> Result<Option<Stat>> {
        let kind = if is_archive_name(key.name()) {
            EntryKind::Value
        } else {
            EntryKind::Prefix
        };
        let stat = self.below.stat(key)?;
        Ok(stat.filter(|stat| stat.kind == kind))
    }

    /// Returns an error if `key` is in an archive or a repository, or would be an archive.
    fn check_outside(&self, key: &Key) -> Result<()> {
        let Some((root, _)) = split_nested(key) else {
            return Ok(());
        };
        let why = if !is_archive_name(root.name()) {
            if self.open(&root)?.is_none() {
                return Ok(());
            }
            "repositories are read-only in a mount"
        } else {
            let stat = self.below.stat(&root)?;
            if stat.is_some_and(|stat| stat.kind == EntryKind::Prefix) {
                return Ok(());
            }
            "archives are read-only in a mount; change the file itself, or unpack it"
        };
        Err(Error::new(Kind::ReadOnly, why).context(root))
    }

    /// Returns the store below if `key` lies in no archive and no repository.
    fn outside(&self, key: &Key) -> Option<&dyn Store> {
        split_nested(key).is_none().then_some(&*self.below)
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
    split_nested(key).is_some_and(|(_, inside)| inside.is_root())
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

impl Readable for NestedStores {
    fn below(&self) -> Option<&dyn Store> {
        Some(&*self.below)
    }

    fn read(&self, key: &Key, range: &ByteRange, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        self.at(key, |store, key| store.read(key, range, value))
    }

    fn refers_to_files(&self, key: &Key) -> bool {
        self.at(key, |store, key| Ok(store.refers_to_files(key)))
            .unwrap_or(false)
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
        let is_inside = |key: &Key| split_nested(key).is_some_and(|(_, inside)| !inside.is_root());
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

    fn hint(&self, hint: Hint) {
        match hint {
            Hint::Forget(prefix) | Hint::ForgetDocuments(prefix) => self.forget_below(prefix),
            _ => self.below.hint(hint),
        }
    }

    fn capabilities(&self) -> Capabilities<'_> {
        let below = self.below.capabilities();
        Capabilities {
            local: below.local.map(|_| self as &dyn LocalFiles),
            snapshots: Some(self),
            ..below
        }
    }

    fn location(&self) -> String {
        self.below.location()
    }
}

impl NestedStores {
    /// Invalidates cached metadata of `prefix`, also in opened archives and repositories.
    fn forget_below(&self, prefix: &Key) {
        let archive = split_nested(prefix).map(|(archive, _)| archive);
        let is_meant =
            |key: &Key| archive.as_ref() == Some(key) || key.relative_to(prefix).is_some();
        let meant: Vec<Arc<StoreSlot>> = {
            let archives = lock(&self.opened.0);
            archives
                .iter()
                .filter(|(key, _)| is_meant(key))
                .map(|(_, slot)| slot.clone())
                .collect()
        };
        for slot in meant {
            // one that is being opened is new
            if let Ok(Some(OpenedStore {
                store: Ok(store), ..
            })) = slot.0.try_lock().as_deref()
            {
                store.forget(&Key::root());
            }
        }
        self.below.forget(archive.as_ref().unwrap_or(prefix));
    }

    /// Asks the repository that holds `key`, with the key in it.
    fn in_repository<T>(
        &self,
        key: &Key,
        ask: impl FnOnce(&dyn Snapshots, &Key) -> Result<T>,
    ) -> Result<Option<(Key, T)>> {
        let Some((root, inside)) = split_nested(key) else {
            return Ok(None);
        };
        // an archive that was not used yet stays closed
        if is_archive_name(root.name()) {
            return Ok(None);
        }
        let opened = self.open(&root)?;
        match opened
            .as_ref()
            .and_then(|opened| opened.capabilities().snapshots)
        {
            Some(snapshots) => Ok(Some((root, ask(snapshots, &inside)?))),
            None => Ok(None),
        }
    }
}

impl Snapshots for NestedStores {
    fn settled(&self, key: &Key) -> Result<Option<Key>> {
        let found = self.in_repository(key, |snapshots, key| snapshots.settled(key))?;
        Ok(found.and_then(|(root, settled)| Some(root.join_key(&settled?))))
    }

    fn is_left(&self, key: &Key) -> Result<bool> {
        let found = self.in_repository(key, |snapshots, key| snapshots.is_left(key))?;
        Ok(found.is_some_and(|(_, is_left)| is_left))
    }

    fn commit_at(&self, key: &Key) -> Result<Option<(SnapshotRef, SnapshotCommit)>> {
        let found = self.in_repository(key, |snapshots, key| snapshots.commit_at(key))?;
        Ok(found.and_then(|(_, commit)| commit))
    }

    fn history(&self, _count: usize) -> Result<Option<SnapshotHistory>> {
        Ok(None)
    }
}

impl Store for NestedStores {
    fn check_writable(&self, prefix: &Key) -> Result<()> {
        self.check_outside(prefix)?;
        self.below.check_writable(prefix)
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

    fn change(&self, change: NameChange) -> Result<bool> {
        match change {
            NameChange::Delete(key)
            | NameChange::MakePrefix(key)
            | NameChange::RemovePrefix(key) => {
                self.check_outside(key)?;
                self.below.change(change)
            }
            NameChange::Rename(from, to) => {
                self.check_outside(from)?;
                self.check_outside(to)?;
                let renamed = self.below.change(change)?;
                [from, to]
                    .into_iter()
                    .for_each(|key| self.opened.close_below(key));
                Ok(renamed)
            }
        }
    }
}

impl LocalFiles for NestedStores {
    fn open_file(&self, key: &Key) -> Result<Option<(File, Stat)>> {
        self.at(key, |store, key| store.file(key))
    }

    fn open_writable(&self, key: &Key, create: bool, exclusive: bool) -> Result<File> {
        self.check_outside(key)?;
        self.below.writable_file(key, create, exclusive)
    }

    fn set_attribute(&self, key: &Key, attribute: FileAttribute) -> Result<Option<Permissions>> {
        self.check_outside(key)?;
        self.below.set_file_attribute(key, attribute)
    }

    fn lock_key(&self, key: &Key, since: Instant) -> Result<KeyLock> {
        self.outside(key)
            .map_or_else(|| Ok(KeyLock::default()), |below| below.lock(key, since))
    }

    fn statvfs(&self) -> Result<Option<Space>> {
        self.below.space()
    }

    fn exchange(&self, one: &Key, other: &Key) -> Result<()> {
        self.check_outside(one)?;
        self.check_outside(other)?;
        self.below.exchange(one, other)
    }
}

#[cfg(test)]
mod tests;
