//! The keys of stored chunks. In Zarr v2 each chunk is a value of its own, under a key that is made
//! of its indices; an undeclared separator of the indices is detected. Everything outside `array`
//! asks for keys, statistics and listings of chunks, and never builds a key.

use super::chunks::ObjectChunks;
use super::{Array, Due, WriteBack};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;
use zarrfs_base::error::{ErrorContext, Kind, Result};
use zarrfs_format::chunk_key::{KeyEncoding, parse_index};
use zarrfs_format::grid::{ChunkId, Grid};
use zarrfs_format::metadata::Separator;
use zarrfs_store::{
    EntryKind, Key, KeyLock, Listing, Permissions, Stat, StoreExt, granted_between,
};

/// Names examined to detect an undeclared separator: enough to pass stray files, few enough to be
/// quick.
const SEPARATOR_SAMPLE: usize = 1000;

/// An entry below the prefix of an array.
#[derive(Debug, PartialEq, Eq)]
pub enum ArrayEntry {
    /// A stored chunk of the grid.
    Chunk(ChunkId),
    /// A value whose name is not like that of a chunk.
    Value(String),
    /// A directory of chunks that cannot be listed.
    Unlisted,
}

/// The permissions of the directory that [`Array::restrict`] examined last.
#[derive(Default)]
pub struct LevelPermissions(Option<(Key, Option<Permissions>)>);

impl Array {
    /// Returns the key of the *object* that holds a chunk, or would hold it: a value that the store
    /// replaces as a whole, so that versions, locks and write-backs belong to it. It may hold one
    /// chunk or several.
    pub fn stored_key(&self, chunk: ChunkId) -> Key {
        self.object_key(self.object_of(chunk))
    }

    /// Returns the key of an object.
    pub fn object_key(&self, object: u64) -> Key {
        let objects = self.object_grid();
        self.key
            .join(&objects.stored_key(ChunkId(object), self.key_encoding()))
    }

    /// Returns the key of the value that holds a chunk and no other one, if there is such a value.
    pub fn own_key(&self, chunk: ChunkId) -> Option<Key> {
        (!self.chunks.share_objects()).then(|| self.stored_key(chunk))
    }

    /// Returns a key to lock while a chunk is written back: its own one or, if it shares its
    /// object, a key under which nothing is stored.
    pub fn write_back_key(&self, chunk: ChunkId) -> Key {
        self.own_key(chunk)
            .unwrap_or_else(|| self.key.join(&format!(".chunk-{}", chunk.0)))
    }

    /// Returns the number of the object that holds a chunk.
    pub fn object_of(&self, chunk: ChunkId) -> u64 {
        self.chunks.object_of(self, chunk)
    }

    /// Returns the chunks of the array that an object holds or may hold, in C order.
    pub fn object_members(&self, object: u64) -> ObjectChunks {
        self.chunks.members(self, object)
    }

    /// Returns the path of the chunk's file in the mounted tree, which does not depend on where the
    /// chunk is stored.
    pub fn chunk_path(&self, chunk: ChunkId) -> Key {
        self.key.join(&self.grid.chunk_key(chunk, Separator::Dot))
    }

    /// Returns the chunk that is stored at `path` below the array's prefix, or the first one of an
    /// object there.
    pub fn chunk_stored_at(&self, path: &str) -> Option<ChunkId> {
        let objects = self.object_grid();
        let object = objects.parse_stored_key(path, self.key_encoding())?;
        self.object_members(object.0).next()
    }

    /// Returns whether `key` is a directory that holds chunks below the array's prefix, or may come
    /// to hold some.
    pub fn is_chunk_level(&self, key: &Key) -> bool {
        let Some(path) = key.relative_to(&self.key) else {
            return false;
        };
        self.separator() == Separator::Slash && self.is_level_path(path.as_str())
    }

    /// Returns whether `key` is that of a value that holds chunks, or of a directory of such
    /// values. In a mount, a name that looks like that of a chunk names a chunk.
    pub fn is_object_path(&self, key: &Key) -> bool {
        let Some(path) = key.relative_to(&self.key) else {
            return false;
        };
        let path = path.as_str();
        self.is_chunk_level(key)
            || self.chunk_stored_at(path).is_some()
                && self.grid.parse_chunk_key(path, Separator::Dot).is_none()
    }

    /// Returns whether a path below the array's prefix is that of a level of chunk keys.
    fn is_level_path(&self, path: &str) -> bool {
        if !self.metadata.has_key_prefix() {
            is_index_path(path, self.grid.dimensions())
        } else if path == "c" {
            self.grid.dimensions() > 0
        } else {
            path.strip_prefix("c/")
                .is_some_and(|path| is_index_path(path, self.grid.dimensions()))
        }
    }

    /// Returns the grid of the objects that hold the chunks.
    pub fn object_grid(&self) -> &Grid {
        self.chunks.objects(self)
    }

    /// Returns the encoding of chunk keys in the store.
    pub fn key_encoding(&self) -> KeyEncoding {
        KeyEncoding {
            has_prefix: self.metadata.has_key_prefix(),
            separator: self.separator(),
        }
    }

    /// Returns the stat of a chunk without reading the chunk; `None` if it is uninitialized.
    ///
    /// # Errors
    ///
    /// The error of the store, with the chunk's key.
    pub fn stat_chunk(&self, chunk: ChunkId) -> Result<Option<Stat>> {
        self.chunks.stat(self, chunk)
    }

    /// Returns the stat of the object that holds a chunk.
    pub(super) fn stat_object(&self, chunk: ChunkId) -> Result<Option<Stat>> {
        let key = self.stored_key(chunk);
        self.store.stat(&key).context(&key)
    }

    /// Calls `each` with the result of [`Array::stat_chunk`] for each chunk, in order, until it
    /// returns false.
    pub fn stat_chunks(
        &self,
        chunks: &mut dyn Iterator<Item = ChunkId>,
        each: &mut dyn FnMut(Result<Option<Stat>>) -> bool,
    ) {
        self.chunks.stat_many(self, chunks, each);
    }

    /// Returns `stat`, the state of a chunk, with no more permissions than the directories between
    /// the array and the chunk grant. `known` spares requests for chunks of the same directory.
    pub fn restrict(&self, chunk: ChunkId, stat: Stat, known: &mut LevelPermissions) -> Stat {
        let key = self.stored_key(chunk);
        let parent = key.parent();
        if parent == self.key || stat.permissions.is_none() {
            return stat;
        }
        let granted = match &known.0 {
            Some((key, granted)) if *key == parent => *granted,
            _ => {
                let granted = granted_between(&*self.store, &self.key, &key);
                known.0 = Some((parent, granted));
                granted
            }
        };
        stat.restricted(granted)
    }

    /// Waits for the lock of a chunk. Other writers take it before they read, change and store the
    /// chunk. Returns immediately if the store has no locks, and for a chunk that shares its
    /// object: the object is locked while it is stored.
    pub fn lock_chunk(&self, chunk: ChunkId) -> Result<KeyLock> {
        self.lock_chunk_since(chunk, Instant::now())
    }

    /// Waits like [`Array::lock_chunk`], but counts the wait from `since`: a caller that has waited
    /// for other callers doesn't wait as long again.
    pub fn lock_chunk_since(&self, chunk: ChunkId, since: Instant) -> Result<KeyLock> {
        self.settle_separator()?;
        match self.own_key(chunk) {
            Some(key) => self.store.lock(&key, since),
            None => Ok(KeyLock::default()),
        }
    }

    /// Makes a chunk uninitialized. Returns false if it was uninitialized already.
    ///
    /// [`Array::store_objects`] stores the change of an object that holds several.
    pub fn erase(&self, chunk: ChunkId, how: WriteBack) -> Result<bool> {
        self.chunks.erase(self, chunk, how)
    }

    /// Returns whether [`Array::entries`] lists every stored chunk.
    pub fn lists_all(&self) -> bool {
        self.store.lists_all()
    }

    /// Returns the stored chunks and the other values below the array's prefix, streamed in the
    /// order of the store.
    pub fn entries(self: &Arc<Self>) -> Result<Entries> {
        let level = self.store.list(&self.key).context(&self.key)?;
        let levels = vec![(level, String::new())];
        Ok(Entries {
            array: self.clone(),
            levels,
            lists_members: true,
            members: None,
            pending: self.due(Due::All).into_iter().collect(),
        })
    }

    /// Returns entries like [`Array::entries`], but only the first chunk of each stored object,
    /// and reads no object.
    pub fn stored_objects(self: &Arc<Self>) -> Result<Entries> {
        Ok(Entries {
            lists_members: false,
            pending: BTreeSet::new(),
            ..self.entries()?
        })
    }

    /// Calls `each` with the stat of the object that holds each chunk, in order, until it returns
    /// false.
    pub fn stat_objects(
        &self,
        chunks: &mut dyn Iterator<Item = ChunkId>,
        each: &mut dyn FnMut(Result<Option<Stat>>) -> bool,
    ) {
        self.store
            .stat_many(&mut chunks.map(|chunk| self.stored_key(chunk)), each);
    }

    /// Returns the separator of the stored chunk keys: declared, detected, or `.`.
    pub fn separator(&self) -> Separator {
        self.separator.get().copied().unwrap_or(Separator::Dot)
    }

    /// Detects an undeclared separator from the chunks that are stored by now.
    pub fn detect_separator(&self) -> Result<()> {
        if self.separator.get().is_some() {
            return Ok(());
        }
        let detected = if self.store.lists_all() {
            detect_separator(&self.grid, self.store.list(&self.key)?)?
        } else {
            self.probe_separator()?
        };
        let Some(detected) = detected else {
            return Ok(());
        };
        if self.separator.set(detected).is_ok() && detected == Separator::Slash {
            let key = &self.key;
            log::warn!(
                "{key}: no dimension_separator is declared, but chunks lie under \"/\": reading them there"
            );
        }
        Ok(())
    }

    /// Returns the separator under which the first chunk is stored, where the store cannot list.
    fn probe_separator(&self) -> Result<Option<Separator>> {
        for separator in [Separator::Dot, Separator::Slash] {
            let key = self.key.join(&self.grid.chunk_key(ChunkId(0), separator));
            if self
                .store
                .stat(&key)?
                .is_some_and(|stat| stat.kind == EntryKind::Value)
            {
                return Ok(Some(separator));
            }
        }
        Ok(None)
    }

    /// Fixes an undeclared separator before a chunk is stored, unless chunks of another writer have
    /// fixed it already.
    pub(super) fn settle_separator(&self) -> Result<()> {
        self.detect_separator().context(&self.key)?;
        self.separator.get_or_init(|| Separator::Dot);
        Ok(())
    }
}

/// Returns whether a name is a chunk key or may be mistaken for one: of a former shape, misspelled,
/// or half written.
pub fn is_chunk_like(name: &str) -> bool {
    let rest = name.trim().trim_start_matches(['+', '-']);
    let digits = rest
        .strip_suffix(".partial")
        .map_or(rest, |r| r.split_inclusive('.').next().unwrap_or(r));
    digits.starts_with(|c: char| c.is_ascii_digit())
        && digits.bytes().all(|b| b.is_ascii_digit() || b == b'.')
}

/// Returns whether a path has fewer than `dimensions` components, all of them indices.
fn is_index_path(path: &str, dimensions: usize) -> bool {
    path.split('/').all(|name| parse_index(name).is_some()) && path.split('/').count() < dimensions
}

/// Returns the separator that stored chunks show: the first chunk key joined by `.` decides,
/// otherwise a directory named by an index.
///
/// # Errors
///
/// Fails with the listing. To take a failed listing for an empty one would show fill values for
/// stored chunks.
fn detect_separator(grid: &Grid, listing: Listing) -> Result<Option<Separator>> {
    let mut slash = None;
    for entry in listing.take(SEPARATOR_SAMPLE) {
        let entry = entry?;
        match entry.kind {
            EntryKind::Prefix if parse_index(&entry.name).is_some() => {
                slash = Some(Separator::Slash)
            }
            EntryKind::Value if grid.parse_chunk_key(&entry.name, Separator::Dot).is_some() => {
                return Ok(Some(Separator::Dot));
            }
            _ => {}
        }
    }
    Ok(slash)
}

/// Iterator of [`Array::entries`]. It holds one open listing for each level of a chunk key.
pub struct Entries {
    array: Arc<Array>,
    /// Listings, outermost first, each with its path below the array's prefix.
    levels: Vec<(Listing, String)>,
    /// Whether the chunks of an object are listed, or only its first.
    lists_members: bool,
    /// The stored chunks of the object that was listed last.
    members: Option<ObjectChunks>,
    /// Objects with pending chunks that were not listed yet.
    pending: BTreeSet<u64>,
}

impl Iterator for Entries {
    type Item = Result<ArrayEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(chunk) = self.members.as_mut().and_then(Iterator::next) {
                return Some(Ok(ArrayEntry::Chunk(chunk)));
            }
            self.members = None;
            let Some((level, path)) = self.levels.last_mut() else {
                self.list_members(self.pending.first().copied()?);
                continue;
            };
            let entry = match level.next() {
                None => {
                    self.levels.pop();
                    continue;
                }
                Some(Err(e)) => return Some(Err(e)),
                Some(Ok(entry)) => entry,
            };
            let name = if path.is_empty() {
                entry.name
            } else {
                format!("{path}/{}", entry.name)
            };
            // below a value that hides it, a level may hold chunks
            let hides_level =
                entry.hides_prefix && self.array.is_chunk_level(&self.array.key.join(&name));
            let kind = if hides_level {
                EntryKind::Prefix
            } else {
                entry.kind
            };
            if let Some(found) = self.classify(name, kind) {
                return Some(Ok(found));
            }
        }
    }
}

impl Entries {
    /// Lists the chunks of an object next.
    fn list_members(&mut self, object: u64) {
        self.pending.remove(&object);
        let chunks = &self.array.chunks;
        self.members = Some(chunks.stored_members(&self.array, object));
    }

    /// Classifies the entry at the path `name`. For a directory of chunks, opens its listing and
    /// returns `None`.
    fn classify(&mut self, name: String, kind: EntryKind) -> Option<ArrayEntry> {
        let array = &self.array;
        let is_top = self.levels.len() == 1;
        let parts = array.grid.dimensions() + usize::from(array.metadata.has_key_prefix());
        let is_nested = array.separator() == Separator::Slash && parts > 1;
        if is_nested && self.levels.len() < parts {
            let is_level = array.is_level_path(&name);
            match kind {
                EntryKind::Prefix if is_level => match array.store.list(&array.key.join(&name)) {
                    Ok(below) => self.levels.push((below, name)),
                    // another process has removed it since it was listed
                    Err(e) if e.kind() == Kind::NotFound => {}
                    Err(_) => return Some(ArrayEntry::Unlisted),
                },
                EntryKind::Other if is_level => return Some(ArrayEntry::Unlisted),
                EntryKind::Value if is_top && !is_chunk_like(&name) => {
                    return Some(ArrayEntry::Value(name));
                }
                _ => {}
            }
            return None;
        }
        let objects = array.object_grid();
        if let Some(object) = objects.parse_stored_key(&name, array.key_encoding()) {
            if self.lists_members {
                self.list_members(object.0);
                return None;
            }
            if let Some(first) = array.object_members(object.0).next() {
                return Some(ArrayEntry::Chunk(first));
            }
        }
        (is_top && kind == EntryKind::Value && !is_chunk_like(&name))
            .then_some(ArrayEntry::Value(name))
    }
}
