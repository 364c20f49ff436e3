//! Values of a far store kept on a local disk, across mounts and for all mounts that use one directory. A value is
//! given from there only while it has the version that the store below tells, which is asked each time: whoever
//! remembers what was asked stands below. Whatever goes wrong with the disk, the store below is read instead. It knows
//! nothing of what the values are.

mod entry;
mod folder;
mod usage;

use super::{Key, Replaces, Stat, Store, Version, delegate_store};
use crate::error::{Error, Result};
use crate::stats::Stats;
use entry::Entry;
use folder::Folder;
use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A store whose values are kept on disk once they were read.
pub struct DiskCache {
    below: Arc<dyn Store>,
    folder: Folder,
    /// Of the store below, and its server: the names of its values begin with it.
    location: String,
    stats: Arc<Stats>,
    /// Warn once of what goes wrong with the disk.
    warned: AtomicBool,
}

impl DiskCache {
    /// Values of `below` are kept in `directory`, which is made if it isn't there. All files of the cache together take
    /// at most `limit` bytes, those of other stores and other mounts with them.
    pub fn open(below: Arc<dyn Store>, directory: &Path, limit: u64, stats: Arc<Stats>) -> Result<Self> {
        let named = |e: Error| e.context(format!("the cache directory {}", directory.display()));
        let folder = Folder::open(directory, limit).map_err(named)?;
        let location = below.location();
        Ok(DiskCache { below, folder, location, stats, warned: AtomicBool::new(false) })
    }

    /// The same cache, which keeps these values apart from those of other servers: their locations may be the same.
    pub fn for_server(self, server: &str) -> Self {
        DiskCache { location: format!("{}\0{server}", self.location), ..self }
    }

    /// What the value of `key` is called on disk: a NUL is in no key.
    fn name(&self, key: &Key) -> String {
        format!("{}\0{}", self.location, key.as_str())
    }

    /// The value of `key` as it is on disk, if it is there, with what the store below says of it now: only if it is
    /// the same version is it of any use.
    fn find(&self, key: &Key, name: &str) -> Result<Option<(Entry, Stat)>> {
        let Some(entry) = self.folder.get(hash(name)).and_then(|file| Entry::open(file, name)) else { return Ok(None) };
        let now = self.below.stat(key)?;
        Ok(now.filter(|now| now.version.to_string() == entry.version).map(|now| (entry, now)))
    }

    /// Reads bytes of a value on disk; false if they are damaged, and then it is there no longer.
    fn read(&self, name: &str, entry: &Entry, range: Range<u64>, value: &mut Vec<u8>) -> Result<bool> {
        if entry.read(range, value)? {
            self.stats.disk_cache_hits.add(1);
            self.folder.note_use(entry.file());
            return Ok(true);
        }
        self.folder.remove(hash(name));
        Ok(false)
    }

    /// Keeps a value, if it isn't too large.
    fn keep(&self, name: &str, version: &Version, value: &[u8]) {
        // a counter begins anew with each process
        if matches!(version, Version::Count(_)) {
            return;
        }
        let header = entry::header(name, &version.to_string(), value);
        let size = header.len() as u64 + value.len() as u64;
        if size > self.folder.largest() {
            return;
        }
        if let Err(e) = self.folder.put(hash(name), size, |file| entry::write(file, &header, value))
            && !self.warned.swap(true, Ordering::Relaxed)
        {
            log::warn!("values can't be kept in the cache directory, and are read from the store each time: {e}");
        }
    }

    /// Forgets a value that is about to change.
    fn drop_value(&self, key: &Key) {
        self.folder.remove(hash(&self.name(key)));
    }
}

impl Store for DiskCache {
    fn get(&self, key: &Key, limit: u64, value: &mut Vec<u8>) -> Result<Option<Version>> {
        let name = self.name(key);
        if let Some((entry, now)) = self.find(key, &name)?
            && entry.size <= limit
            && self.read(&name, &entry, 0..entry.size, value)?
        {
            return Ok(Some(now.version));
        }
        let version = self.below.get(key, limit, value)?;
        if let Some(version) = &version {
            self.stats.disk_cache_misses.add(1);
            self.keep(&name, version, value);
        }
        Ok(version)
    }

    fn get_range(&self, key: &Key, range: Range<u64>, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        let name = self.name(key);
        if let Some((entry, now)) = self.find(key, &name)?
            && self.read(&name, &entry, range.clone(), value)?
        {
            return Ok(Some(now));
        }
        let is_from_start = range.start == 0;
        let stat = self.below.get_range(key, range, value)?;
        if let Some(stat) = &stat {
            self.stats.disk_cache_misses.add(1);
            if is_from_start && value.len() as u64 == stat.size {
                self.keep(&name, &stat.version, value);
            }
        }
        Ok(stat)
    }

    delegate_store!(below: stat stat_many list lists_all concurrency forget file location space lock sync);
    delegate_store!(below: is_writable check_writable make_prefix remove_prefix);

    fn put(&self, key: &Key, value: &[u8]) -> Result<Version> {
        let version = self.below.put(key, value)?;
        self.keep(&self.name(key), &version, value);
        Ok(version)
    }

    fn put_if(&self, key: &Key, value: &[u8], replaces: Replaces) -> Result<Option<Version>> {
        let version = self.below.put_if(key, value, replaces)?;
        if let Some(version) = &version {
            self.keep(&self.name(key), version, value);
        }
        Ok(version)
    }

    fn delete(&self, key: &Key) -> Result<bool> {
        self.drop_value(key);
        self.below.delete(key)
    }

    fn rename(&self, from: &Key, to: &Key) -> Result<()> {
        self.drop_value(from);
        self.drop_value(to);
        self.below.rename(from, to)
    }

    fn writable_file(&self, key: &Key, create: bool, exclusive: bool) -> Result<File> {
        self.drop_value(key);
        self.below.writable_file(key, create, exclusive)
    }
}

/// FNV-1a of 64 bits. Two names of one hash only drive each other out: the name is in the file, too.
fn hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests;
