//! Answers from listings of whole levels, for a command that reads a few levels of a remote store
//! and changes them. No request is sent twice: the first answers of the store and the command's own
//! writes are the base of its changes. A new key is put on condition that it is still missing, so
//! that a concurrent change by another program causes an error and is never overwritten.

use super::{
    ByteRange, Capabilities, Entry, EntryKind, Key, Listing, NameChange, PrefixStore, Readable,
    Replaces, Stat, Store, StoreExt, ValuePiece, Version,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;
use zarrfs_base::error::{Error, Kind, Result};
use zarrfs_base::memory::lock;

/// Maximum number of names in a cached level. Levels of chunks have more; their names are requested
/// one by one.
const MAX_NAMES: usize = 10_000;

/// Maximum size of a cached value in bytes.
const MAX_VALUE: usize = 1 << 20;

/// A store whose levels are listed once.
pub struct LevelCache {
    below: Arc<dyn Store>,
    /// Held during requests: the command sends one at a time.
    known: Mutex<KnownKeys>,
}

#[derive(Default)]
struct KnownKeys {
    /// The prefix in which the command works, and which need not exist.
    root: Key,
    levels: BTreeMap<Key, KnownLevel>,
    values: BTreeMap<Key, (Vec<u8>, Stat)>,
}

/// The known names one level below a key.
enum KnownLevel {
    All(BTreeMap<String, Stat>),
    /// The prefix does not exist.
    Missing,
    /// There are more than [`MAX_NAMES`] names, or they cannot be listed.
    Unknown,
}

impl LevelCache {
    /// Creates an empty cache of `below`.
    pub fn new(below: Arc<dyn Store>) -> Self {
        LevelCache {
            below,
            known: Mutex::default(),
        }
    }

    /// Returns the store at `key`, which need not exist, with the answers so far.
    pub fn at(self, key: Key) -> Arc<dyn Store> {
        lock(&self.known).root = key.clone();
        PrefixStore::at(Arc::new(self), key)
    }

    /// Lists a level unless it is known. Lists the levels above it first: a level that is missing
    /// there needs no request.
    fn look(&self, known: &mut KnownKeys, level: &Key) {
        if known.levels.contains_key(level) {
            return;
        }
        if !level.is_root() {
            self.look(known, &level.parent());
        }
        let found = match known
            .levels
            .get(&level.parent())
            .filter(|_| !level.is_root())
        {
            Some(KnownLevel::All(names)) => names
                .get(level.name())
                .is_some_and(|stat| stat.kind == EntryKind::Prefix),
            Some(KnownLevel::Missing) => false,
            Some(KnownLevel::Unknown) | None => true,
        };
        let listed = if found {
            self.list_below(level)
        } else {
            KnownLevel::Missing
        };
        known.levels.insert(level.clone(), listed);
    }

    fn list_below(&self, level: &Key) -> KnownLevel {
        if !self.below.lists_all() {
            return KnownLevel::Unknown;
        }
        let names = match self.below.list(level) {
            Ok(names) => names,
            Err(e) if e.kind() == Kind::NotFound => return KnownLevel::Missing,
            Err(_) => return KnownLevel::Unknown,
        };
        let mut all = BTreeMap::new();
        for entry in names {
            let Ok(entry) = entry else {
                return KnownLevel::Unknown;
            };
            // groups and arrays are looked for
            let stat = if entry.hides_prefix {
                None
            } else {
                entry.stat.clone()
            };
            let stat = stat.or_else(|| entry.is_prefix().then(Stat::prefix));
            let name = entry.name;
            match stat {
                Some(stat) if all.len() < MAX_NAMES => drop(all.insert(name, stat)),
                _ => return KnownLevel::Unknown,
            }
        }
        KnownLevel::All(all)
    }

    /// Returns the metadata of a key, `Some(None)` if it does not exist, and `None` if the listings
    /// do not tell.
    fn known_stat(&self, known: &mut KnownKeys, key: &Key) -> Option<Option<Stat>> {
        if *key == known.root {
            return Some(Some(Stat::prefix()));
        }
        self.look(known, &key.parent());
        match known.levels.get(&key.parent())? {
            KnownLevel::All(names) => Some(names.get(key.name()).cloned()),
            KnownLevel::Missing => Some(None),
            // this command may have created the prefix
            KnownLevel::Unknown => match known.levels.get(key) {
                Some(KnownLevel::All(_)) => Some(Some(Stat::prefix())),
                _ => None,
            },
        }
    }

    fn delete_value(&self, key: &Key) -> Result<bool> {
        let mut known = lock(&self.known);
        if matches!(self.known_stat(&mut known, key), Some(None)) {
            return Ok(false);
        }
        let is_deleted = self.below.delete(key)?;
        known.values.remove(key);
        if let Some(KnownLevel::All(names)) = known.levels.get_mut(&key.parent()) {
            names.remove(key.name());
        }
        Ok(is_deleted)
    }

    /// Records an empty prefix without a request, since servers have no empty prefixes.
    fn record_prefix(&self, key: &Key) -> Result<()> {
        if self.stat(key)?.is_some() {
            return Err(Error::system(libc::EEXIST));
        }
        super::check_prefix(self.stat(&key.parent())?.map(|stat| stat.kind))?;
        let mut known = lock(&self.known);
        known.add(key, Stat::prefix());
        known
            .levels
            .insert(key.clone(), KnownLevel::All(BTreeMap::new()));
        Ok(())
    }
}

impl KnownKeys {
    /// Records that a key exists, and the prefixes above it.
    fn add(&mut self, key: &Key, stat: Stat) {
        let mut key = key.clone();
        let mut stat = stat;
        while !key.is_root() {
            let level = self.levels.get_mut(&key.parent());
            match level {
                Some(KnownLevel::All(names)) => drop(names.insert(key.name().to_string(), stat)),
                Some(level @ KnownLevel::Missing) => {
                    *level = KnownLevel::All(BTreeMap::from([(key.name().to_string(), stat)]));
                }
                Some(KnownLevel::Unknown) | None => {}
            }
            (key, stat) = (key.parent(), Stat::prefix());
        }
    }

    fn added(&mut self, key: &Key, value: &[u8], version: &Version) {
        let stat = Stat::value(value.len() as u64, SystemTime::now(), version.clone());
        self.add(key, stat.clone());
        self.keep(key, value, &stat);
    }

    fn keep(&mut self, key: &Key, value: &[u8], stat: &Stat) {
        self.values.remove(key);
        if value.len() <= MAX_VALUE {
            self.values
                .insert(key.clone(), (value.to_vec(), stat.clone()));
        }
    }

    /// Forgets a key that another program has changed, and the names of its level.
    fn lose(&mut self, key: &Key) {
        self.levels.remove(&key.parent());
        self.values.remove(key);
    }

    fn lose_all(&mut self) {
        self.levels.clear();
        self.values.clear();
    }
}

impl Readable for LevelCache {
    fn read(&self, key: &Key, range: &ByteRange, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        let &ByteRange::Whole(limit) = range else {
            return self.below.read(key, range, value);
        };
        let mut known = lock(&self.known);
        if matches!(self.known_stat(&mut known, key), Some(None)) {
            return Ok(None);
        }
        if let Some((bytes, stat)) = known
            .values
            .get(key)
            .filter(|(bytes, _)| bytes.len() as u64 <= limit)
        {
            bytes.clone_into(value);
            return Ok(Some(stat.clone()));
        }
        let stat = self.below.read(key, range, value)?;
        match &stat {
            Some(stat) => known.keep(key, value, stat),
            None => known.lose(key),
        }
        Ok(stat)
    }

    fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        let mut known = lock(&self.known);
        match self.known_stat(&mut known, key) {
            Some(stat) => Ok(stat),
            None => self.below.stat(key),
        }
    }

    fn list(&self, prefix: &Key) -> Result<Listing> {
        let mut known = lock(&self.known);
        self.look(&mut known, prefix);
        match known.levels.get(prefix) {
            Some(KnownLevel::All(names)) => {
                let entry =
                    |(name, stat): (&String, &Stat)| Ok(Entry::of_stat(name.clone(), stat.clone()));
                Ok(Box::new(
                    names.iter().map(entry).collect::<Vec<_>>().into_iter(),
                ))
            }
            Some(KnownLevel::Missing) if *prefix == known.root => Ok(Box::new(std::iter::empty())),
            Some(KnownLevel::Missing) => Err(Error::not_found("no such prefix")),
            Some(KnownLevel::Unknown) | None => self.below.list(prefix),
        }
    }

    fn refers_to_files(&self, key: &Key) -> bool {
        self.below.refers_to_files(key)
    }

    /// Passes on no local files, since changes through them would bypass the cache.
    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities {
            local: None,
            ..self.below.capabilities()
        }
    }

    fn location(&self) -> String {
        self.below.location()
    }
}

impl Store for LevelCache {
    fn check_writable(&self, prefix: &Key) -> Result<()> {
        self.below.check_writable(prefix)
    }

    fn sync(&self) -> Result<()> {
        self.below.sync()
    }

    /// Puts a value. If the cache knows none, or the store has none, an unconditional put becomes a
    /// creation, so that it replaces no value that another program has just put.
    fn put_pieces(
        &self,
        key: &Key,
        pieces: &[ValuePiece],
        replaces: Replaces,
    ) -> Result<Option<Version>> {
        let mut known = lock(&self.known);
        let is_missing = match (replaces, self.known_stat(&mut known, key)) {
            (Replaces::Anything, Some(stat)) => stat.is_none(),
            (Replaces::Anything, None) => self.below.stat(key)?.is_none(),
            _ => false,
        };
        let condition = if is_missing {
            Replaces::Nothing
        } else {
            replaces
        };
        let version = self.below.put_pieces(key, pieces, condition)?;
        if let Some(version) = &version {
            match pieces {
                [ValuePiece::Bytes(value)] => known.added(key, value, version),
                _ => known.lose(key),
            }
            return Ok(Some(version.clone()));
        }
        known.lose(key);
        self.below.forget(key);
        if is_missing {
            return Err(Error::system(libc::EEXIST).context("another program has just created it"));
        }
        Ok(None)
    }

    fn change(&self, change: NameChange) -> Result<bool> {
        match change {
            NameChange::Delete(key) => self.delete_value(key),
            NameChange::MakePrefix(key) => self.record_prefix(key).map(|()| true),
            NameChange::RemovePrefix(_) | NameChange::Rename(..) => {
                lock(&self.known).lose_all();
                self.below.change(change)
            }
        }
    }
}

#[cfg(test)]
mod tests;
