//! A store in memory.

use super::{
    ByteRange, Entry, EntryKind, Key, Listing, NameChange, Readable, Replaces, Stat, Store,
    ValuePiece, Version, assemble, check_prefix, check_rename,
};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::SystemTime;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory::lock;

/// A store in memory. Every put creates a new version.
#[derive(Default)]
pub struct MemoryStore {
    /// Protects the whole content.
    content: Mutex<MemoryContent>,
}

#[derive(Default)]
struct MemoryContent {
    /// All keys but the root: values with their versions, and `None` for prefixes.
    entries: BTreeMap<String, Option<(Vec<u8>, u64)>>,
    /// Number of the latest version.
    latest: u64,
}

impl MemoryContent {
    fn value(&self, key: &Key) -> Option<(&[u8], Version)> {
        let (bytes, count) = self.entries.get(key.as_str())?.as_ref()?;
        Some((bytes, Version::Count(*count)))
    }

    fn stat(&self, key: &Key) -> Option<Stat> {
        let entry = if key.is_root() {
            &None
        } else {
            self.entries.get(key.as_str())?
        };
        Some(stat_of(entry.as_ref()))
    }

    fn kind(&self, key: &Key) -> Option<EntryKind> {
        self.stat(key).map(|stat| stat.kind)
    }

    fn put(&mut self, key: &Key, value: Vec<u8>) -> Result<Version> {
        if self.kind(key) == Some(EntryKind::Prefix) {
            return Err(Error::system(libc::EISDIR));
        }
        for (end, _) in key.as_str().match_indices('/') {
            if self
                .entries
                .entry(key.as_str()[..end].to_string())
                .or_default()
                .is_some()
            {
                return Err(Error::system(libc::ENOTDIR));
            }
        }
        self.latest += 1;
        self.entries
            .insert(key.as_str().to_string(), Some((value, self.latest)));
        Ok(Version::Count(self.latest))
    }

    /// Returns the names of all keys below `prefix`, relative to it.
    fn below(&self, prefix: &Key) -> impl Iterator<Item = (&str, Option<&(Vec<u8>, u64)>)> {
        let start = if prefix.is_root() {
            String::new()
        } else {
            format!("{}/", prefix.as_str())
        };
        let entries = self.entries.range(start.clone()..);
        entries.map_while(move |(key, entry)| Some((key.strip_prefix(&start)?, entry.as_ref())))
    }

    fn check_empty(&self, prefix: &Key) -> Result<()> {
        match self.below(prefix).next() {
            Some(_) => Err(Error::system(libc::ENOTEMPTY)),
            None => Ok(()),
        }
    }

    fn delete(&mut self, key: &Key) -> Result<bool> {
        match self.kind(key) {
            Some(EntryKind::Prefix) => Err(Error::system(libc::EISDIR)),
            _ => Ok(self.entries.remove(key.as_str()).is_some()),
        }
    }

    fn make_prefix(&mut self, key: &Key) -> Result<()> {
        check_prefix(self.kind(&key.parent()))?;
        match self.kind(key) {
            Some(_) => Err(Error::system(libc::EEXIST)),
            None => {
                self.entries.insert(key.as_str().to_string(), None);
                Ok(())
            }
        }
    }

    fn remove_prefix(&mut self, key: &Key) -> Result<()> {
        check_prefix(self.kind(key))?;
        self.check_empty(key)?;
        self.entries.remove(key.as_str());
        Ok(())
    }

    fn rename(&mut self, from: &Key, to: &Key) -> Result<()> {
        check_prefix(self.kind(&to.parent()))?;
        let source = self.kind(from);
        let target = self.kind(to);
        if check_rename(from, to, source, target)? == EntryKind::Prefix && from != to {
            self.check_empty(to)?;
        }
        let mut moved = Vec::new();
        self.entries.retain(|key, entry| {
            let target = Key::root().join(key).moved(from, to);
            let is_moved = target.is_some();
            moved.extend(target.map(|to| (to.as_str().to_string(), entry.take())));
            !is_moved
        });
        // the entry at `to` is replaced: the moved entries are inserted last
        self.entries.extend(moved);
        Ok(())
    }
}

impl MemoryStore {
    fn lock(&self) -> MutexGuard<'_, MemoryContent> {
        lock(&self.content)
    }

    /// Sets the value of `key`, a normalized path, as another writer would.
    pub fn insert(&self, key: &str, value: impl Into<Vec<u8>>) {
        // a put at a prefix or below a value fails, and is ignored
        let _ = self.lock().put(&Key::root().join(key), value.into());
    }

    /// Removes the value of `key`, a normalized path, as another writer would.
    pub fn remove(&self, key: &str) {
        let mut content = self.lock();
        if content.value(&Key::root().join(key)).is_some() {
            content.entries.remove(key);
        }
    }
}

/// Returns the metadata of a value, or of a prefix for `None`.
fn stat_of(value: Option<&(Vec<u8>, u64)>) -> Stat {
    match value {
        Some((bytes, count)) => Stat::value(
            bytes.len() as u64,
            SystemTime::UNIX_EPOCH,
            Version::Count(*count),
        ),
        None => Stat {
            version: Version::Count(0),
            ..Stat::prefix()
        },
    }
}

impl Readable for MemoryStore {
    fn read(&self, key: &Key, range: &ByteRange, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        let content = self.lock();
        let Some((bytes, version)) = content.value(key) else {
            return Ok(None);
        };
        range.copy(bytes, value)?;
        let size = bytes.len() as u64;
        Ok(Some(Stat::value(size, SystemTime::UNIX_EPOCH, version)))
    }

    fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        Ok(self.lock().stat(key))
    }

    fn list(&self, prefix: &Key) -> Result<Listing> {
        let content = self.lock();
        if content.kind(prefix) != Some(EntryKind::Prefix) {
            return Err(Error::not_found("no such prefix"));
        }
        let level = content
            .below(prefix)
            .filter(|(name, _)| !name.contains('/'))
            .map(|(name, value)| {
                let stat = stat_of(value);
                Entry {
                    stat: value.is_some().then_some(stat.clone()),
                    ..Entry::of_stat(name, stat)
                }
            });
        let entries: Vec<Entry> = level.collect();
        Ok(Box::new(entries.into_iter().map(Ok)))
    }

    fn location(&self) -> String {
        "memory:".to_string()
    }
}

impl Store for MemoryStore {
    fn check_writable(&self, _prefix: &Key) -> Result<()> {
        Ok(())
    }

    fn put_pieces(
        &self,
        key: &Key,
        pieces: &[ValuePiece],
        replaces: Replaces,
    ) -> Result<Option<Version>> {
        let Some(value) = assemble(self, key, pieces, replaces)? else {
            return Ok(None);
        };
        let mut content = self.lock();
        let current = content.value(key).map(|(_, version)| version);
        let is_satisfied = match replaces {
            Replaces::Anything => true,
            Replaces::Nothing => current.is_none(),
            Replaces::Version(version) => current.as_ref() == Some(version),
        };
        if is_satisfied {
            content.put(key, value.bytes.into_owned()).map(Some)
        } else {
            Ok(None)
        }
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn change(&self, change: NameChange) -> Result<bool> {
        let mut content = self.lock();
        match change {
            NameChange::Delete(key) => content.delete(key),
            NameChange::MakePrefix(key) => content.make_prefix(key).map(|()| true),
            NameChange::RemovePrefix(key) => content.remove_prefix(key).map(|()| true),
            NameChange::Rename(from, to) => content.rename(from, to).map(|()| true),
        }
    }
}
