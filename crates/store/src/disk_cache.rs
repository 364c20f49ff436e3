//! Caches values of a remote store on a local disk, across mounts and for all mounts that use the
//! same directory.
//!
//! A cached value is used only if the store below reports the same version now. A cache of metadata
//! belongs below this one, so that the report need not cost a request. If the disk fails, values
//! are read from the store below.

mod cache_directory;
mod cached_file;
mod usage;

use super::{
    ByteRange, Capabilities, Key, Listing, NameChange, Readable, Replaces, SideStore, Stat, Store,
    StoreExt, ValuePiece, Version,
};
use cache_directory::CacheDirectory;
use cached_file::CachedFile;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;
use zarrfs_base::error::Result;
use zarrfs_base::stats::Stats;

/// A store with a cache of its values on disk.
pub struct DiskCache {
    below: Arc<dyn Store>,
    directory: CacheDirectory,
    /// Location of the store below and its server: the beginning of the names of its values.
    location: String,
    stats: Arc<Stats>,
    /// Whether an error of the disk was logged.
    warned: AtomicBool,
    /// If only values that never change are cached: the prefixes of their keys.
    immutable: Option<&'static [&'static str]>,
    /// The part of a key that names a value in the cache.
    lasting_key: fn(&Key) -> Key,
}

impl DiskCache {
    /// Creates a cache of `below` in `directory`, which is created if it is missing. All files in
    /// it take at most `limit` bytes, including those of other stores and mounts.
    ///
    /// # Errors
    ///
    /// The error of the file system, or EACCES if other users can access the cache.
    pub fn open(
        below: Arc<dyn Store>,
        directory: &Path,
        limit: u64,
        stats: Arc<Stats>,
    ) -> Result<Self> {
        let directory = CacheDirectory::open(directory, limit)
            .map_err(|e| e.context(format!("the cache directory {}", directory.display())))?;
        Ok(DiskCache {
            location: below.location(),
            below,
            directory,
            stats,
            warned: AtomicBool::new(false),
            immutable: None,
            lasting_key: Key::clone,
        })
    }

    /// Separates the values from those of other servers, whose stores may have the same location.
    pub fn for_server(self, server: &str) -> Self {
        DiskCache {
            location: format!("{}\0{server}", self.location),
            ..self
        }
    }

    /// Caches nothing but the parts that are read of the values below these prefixes, which never
    /// change: they are used without a report of the store below.
    pub fn of_immutable(self, prefixes: &'static [&'static str]) -> Self {
        DiskCache {
            // apart from values that a layer above makes of them, and caches
            location: format!("{}\0immutable", self.location),
            immutable: Some(prefixes),
            ..self
        }
    }

    /// Names values by a part of their keys, if values whose keys have the same part replace each
    /// other in time.
    pub fn named_by(self, lasting_key: fn(&Key) -> Key) -> Self {
        DiskCache {
            lasting_key,
            ..self
        }
    }

    /// Returns whether the value of `key` never changes.
    fn is_immutable(&self, key: &Key) -> bool {
        let first = key.as_str().split('/').next();
        let prefixes = self.immutable.unwrap_or_default();
        prefixes.iter().any(|prefix| Some(*prefix) == first)
    }

    /// Reads a part of a value that never changes. The cache holds the part with the size of the
    /// whole value.
    fn get_part(&self, key: &Key, part: Range<u64>, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        let name = format!("{}\0{}-{}", self.name(key), part.start, part.end);
        let cached = self.directory.get(hash(&name));
        let cached = cached.and_then(|file| CachedFile::open(file, &name));
        if let Some(cached) = cached
            && let Some((size, tag)) = cached.version.split_once(' ')
            && let Ok(size) = size.parse()
            && cached.read(0..u64::MAX, value)?
        {
            self.stats.disk_cache_hits.add(1);
            self.directory.record_use(cached.file());
            let version = Version::Tag(tag.to_string());
            return Ok(Some(Stat::value(size, SystemTime::UNIX_EPOCH, version)));
        }
        let Some(stat) = self.below.get_range(key, part, value)? else {
            return Ok(None);
        };
        self.stats.disk_cache_misses.add(1);
        let tag = stat.version.to_string();
        self.write(&name, &format!("{} {tag}", stat.size), value);
        // the next part may come from the cache
        let version = Version::Tag(tag);
        Ok(Some(Stat { version, ..stat }))
    }

    /// Returns the name of a cached value. The NUL makes it unique, since no key contains one.
    fn name(&self, key: &Key) -> String {
        format!("{}\0{}", self.location, (self.lasting_key)(key).as_str())
    }

    /// Reads a range of the cached value of `key`, and returns its current metadata, if the value
    /// has at most `limit` bytes and the store below reports the same version. Removes the value if
    /// it is damaged.
    fn read_cached(
        &self,
        key: &Key,
        name: &str,
        range: Range<u64>,
        limit: u64,
        value: &mut Vec<u8>,
    ) -> Result<Option<Stat>> {
        let cached = self.directory.get(hash(name));
        let Some(cached) = cached.and_then(|file| CachedFile::open(file, name)) else {
            return Ok(None);
        };
        let Some(now) = self.below.stat(key)? else {
            return Ok(None);
        };
        if now.version.to_string() != cached.version || cached.size > limit {
            return Ok(None);
        }
        if !cached.read(range, value)? {
            self.directory.remove(hash(name));
            return Ok(None);
        }
        self.stats.disk_cache_hits.add(1);
        self.directory.record_use(cached.file());
        Ok(Some(now))
    }

    /// Inserts a value, unless it is too large.
    fn insert(&self, name: &str, version: &Version, value: &[u8]) {
        // a `Version::Count` is valid within this process only, an unstated one never
        if self.immutable.is_none()
            && !matches!(version, Version::Count(_) | Version::Unstated { .. })
        {
            self.write(name, &version.to_string(), value);
        }
    }

    fn write(&self, name: &str, version: &str, value: &[u8]) {
        let header = cached_file::header(name, version, value);
        let size = header.len() as u64 + value.len() as u64;
        if size > self.directory.max_file_size() {
            return;
        }
        if let Err(e) = self.directory.put(hash(name), size, |file| {
            cached_file::write(file, &header, value)
        }) && !self.warned.swap(true, Ordering::Relaxed)
        {
            log::warn!(
                "cannot write to the cache directory, values are read from the store each time: {e}"
            );
        }
    }

    /// Removes a value that is about to change.
    fn remove(&self, key: &Key) {
        self.directory.remove(hash(&self.name(key)));
    }

    /// Reads a whole value, unless the cache has it.
    fn read_whole(&self, key: &Key, limit: u64, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        let name = self.name(key);
        if let Some(now) = self.read_cached(key, &name, 0..u64::MAX, limit, value)? {
            return Ok(Some(now));
        }
        let stat = self.below.read(key, &ByteRange::Whole(limit), value)?;
        if let Some(stat) = &stat {
            self.stats.disk_cache_misses.add(1);
            self.insert(&name, &stat.version, value);
        }
        Ok(stat)
    }

    /// Reads a part of a value, unless the cache has the value.
    fn read_range(
        &self,
        key: &Key,
        range: Range<u64>,
        value: &mut Vec<u8>,
    ) -> Result<Option<Stat>> {
        let name = self.name(key);
        if let Some(now) = self.read_cached(key, &name, range.clone(), u64::MAX, value)? {
            return Ok(Some(now));
        }
        let is_from_start = range.start == 0;
        let stat = self.below.get_range(key, range, value)?;
        if let Some(stat) = &stat {
            self.stats.disk_cache_misses.add(1);
            if is_from_start && value.len() as u64 == stat.size {
                self.insert(&name, &stat.version, value);
            }
        }
        Ok(stat)
    }
}

impl Readable for DiskCache {
    fn below(&self) -> Option<&dyn Store> {
        Some(&*self.below)
    }

    fn read(&self, key: &Key, range: &ByteRange, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        match range {
            ByteRange::Bounded(part) if self.is_immutable(key) => {
                self.get_part(key, part.clone(), value)
            }
            _ if self.immutable.is_some() => self.below.read(key, range, value),
            ByteRange::Whole(limit) => self.read_whole(key, *limit, value),
            ByteRange::Bounded(part) => self.read_range(key, part.clone(), value),
            ByteRange::Suffix(_) => self.below.read(key, range, value),
        }
    }

    /// Passes on no local files, since changes through them would bypass the cache.
    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities {
            local: None,
            side: Some(self),
            ..self.below.capabilities()
        }
    }

    fn location(&self) -> String {
        self.below.location()
    }

    fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        self.below.stat(key)
    }

    fn list(&self, prefix: &Key) -> Result<Listing> {
        self.below.list(prefix)
    }
}

impl Store for DiskCache {
    fn put_pieces(
        &self,
        key: &Key,
        pieces: &[ValuePiece],
        replaces: Replaces,
    ) -> Result<Option<Version>> {
        let [ValuePiece::Bytes(value)] = pieces else {
            self.remove(key);
            return self.below.put_pieces(key, pieces, replaces);
        };
        let version = self.below.put_pieces(key, pieces, replaces)?;
        if let Some(version) = &version {
            self.insert(&self.name(key), version, value);
        }
        Ok(version)
    }

    fn change(&self, change: NameChange) -> Result<bool> {
        match change {
            NameChange::Delete(key) => self.remove(key),
            NameChange::Rename(from, to) => {
                self.remove(from);
                self.remove(to);
            }
            NameChange::MakePrefix(_) | NameChange::RemovePrefix(_) => {}
        }
        self.below.change(change)
    }
}

impl SideStore for DiskCache {
    fn derived(&self, key: &Key, name: &str, bytes: &mut Vec<u8>) -> Option<String> {
        let name = format!("{}\0{name}", self.name(key));
        let cached = CachedFile::open(self.directory.get(hash(&name))?, &name)?;
        if !cached.read(0..u64::MAX, bytes).ok()? {
            self.directory.remove(hash(&name));
            return None;
        }
        self.directory.record_use(cached.file());
        Some(cached.version)
    }

    fn keep_derived(&self, key: &Key, name: &str, version: &Version, bytes: &[u8]) {
        self.insert(&format!("{}\0{name}", self.name(key)), version, bytes);
    }
}

/// Returns the 64-bit FNV-1a hash. Values with the same hash replace each other; the name in the
/// file tells them apart.
fn hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests;
