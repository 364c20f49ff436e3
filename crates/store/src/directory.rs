//! A store in a directory of the local file system: a key is a path below it. The kernel resolves
//! names with `RESOLVE_BENEATH`, so neither `..` nor a symbolic link leads out of the store, even
//! in a race. Only regular files are opened as values, since opening others could block.

mod direct_write;
mod replace;
mod resolve;
mod root;
mod value_lock;
mod write;

use super::{
    ByteRange, Capabilities, Entry, EntryKind, Key, Listing, LockFiles, Readable, Stat, read_at,
    temporary_file,
};
use lru::LruCache;
use resolve::{OpenDirectory, kind_behind, open_beneath, open_seen, stat_seen};
use root::StoreRoot;
use rustix::buffer::spare_capacity;
use rustix::fs::{Dir, FileType, Mode, OFlags};
use rustix::io::{self, retry_on_intr};
use std::fs::File;
use std::io::Read;
use std::num::NonZeroUsize;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use write::ChangedDirectories;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory;
use zarrfs_base::stats::Stats;

pub use resolve::stat_of;
pub use value_lock::LockReach;

/// A store in a directory.
pub struct DirectoryStore {
    root: StoreRoot,
    path: PathBuf,
    stats: Arc<Stats>,
    /// The magic number of the file system.
    file_system: i64,
    changes: ChangedDirectories,
    fsync: bool,
    /// Whether the file system has refused a direct write.
    refuses_direct: AtomicBool,
    /// Whether the file system has refused to rename under a condition.
    refuses_conditions: AtomicBool,
    /// The threads that close large values which were replaced. Protects the list alone.
    closing: Mutex<Vec<JoinHandle<()>>>,
    locks: Option<Box<LockFiles>>,
    lists_unfinished: bool,
    removes_abandoned: bool,
    /// The modes of values and directories that are created next, by path. Protects the map alone.
    next_modes: Mutex<LruCache<String, Mode>>,
}

/// Maximum number of modes of files that are created next.
const MAX_NEXT_MODES: NonZeroUsize = NonZeroUsize::new(1024).unwrap();

impl DirectoryStore {
    /// Opens the directory at `path`. It stays the store even if another file system is mounted
    /// there or the directory is renamed.
    pub fn open(path: &Path) -> Result<Self> {
        let root = StoreRoot::open(path)?;
        temporary_file::prepare();
        write::prepare();
        open_beneath(&root.held(), "", OFlags::PATH).map_err(|e| match e.errno() {
            libc::ENOSYS | libc::EPERM => Error::unsupported(
                "the system call openat2 is not available: Linux 5.6 or later is needed, and a container must allow it",
            ),
            _ => e.context(path.display()),
        })?;
        Ok(DirectoryStore {
            file_system: value_lock::file_system_of(root.held().as_ref()),
            root,
            path: path.to_path_buf(),
            stats: Arc::default(),
            changes: ChangedDirectories::default(),
            fsync: true,
            refuses_direct: AtomicBool::new(false),
            refuses_conditions: AtomicBool::new(false),
            closing: Mutex::default(),
            locks: None,
            lists_unfinished: false,
            removes_abandoned: false,
            next_modes: Mutex::new(LruCache::new(MAX_NEXT_MODES)),
        })
    }

    /// Uses the directory that takes the place of this one after this one was removed, and reports
    /// in `stats` if there is none, and which names are left out.
    pub fn replaceable(self, stats: Arc<Stats>) -> Self {
        DirectoryStore {
            root: self.root.replaceable(stats.clone()),
            stats,
            ..self
        }
    }

    /// Opens `path` below the root. Returns `None` if it definitely does not exist.
    fn open_key(&self, path: &str, flags: OFlags) -> Result<Option<OwnedFd>> {
        self.root.find(path, |root| open_beneath(root, path, flags))
    }

    /// Replaces values without syncing them first; only [`Store::sync`](super::Store::sync) makes
    /// them durable. This is faster, but after a power loss a value may be neither the old one nor
    /// the new one.
    pub fn without_fsync(self) -> Self {
        DirectoryStore {
            fsync: false,
            ..self
        }
    }

    /// Makes the first sync cover changes of an earlier process, too.
    pub fn with_earlier_changes(self) -> Self {
        self.changes.add_unknown();
        self
    }

    /// Uses `locks` for [`LocalFiles::lock_key`](super::LocalFiles::lock_key).
    pub fn with_locks(self, locks: LockFiles) -> Self {
        DirectoryStore {
            locks: Some(Box::new(locks)),
            ..self
        }
    }

    /// Includes temporary files in listings: values that are being written, or whose writer died.
    pub fn listing_unfinished(self) -> Self {
        DirectoryStore {
            lists_unfinished: true,
            ..self
        }
    }

    /// Removes temporary files whose writer died from the directories that are listed.
    pub fn removing_abandoned(self) -> Self {
        DirectoryStore {
            removes_abandoned: true,
            ..self
        }
    }

    fn open_value(&self, key: &Key) -> Result<Option<(File, Stat)>> {
        // without NONBLOCK, opening a FIFO would block
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let path = key.as_str();
        let Some((fd, skipped)) = self.root.find(path, |root| open_seen(root, path, flags))? else {
            return Ok(None);
        };
        let stat = stat_of(&fd)?.restricted(skipped);
        match stat.kind {
            EntryKind::Value => Ok(Some((File::from(fd), stat))),
            EntryKind::Prefix => Err(Error::damaged("is a directory, not a file")),
            EntryKind::Other => Err(Error::damaged("is not a regular file")),
        }
    }
}

impl Readable for DirectoryStore {
    fn read(&self, key: &Key, range: &ByteRange, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        let Some((file, stat)) = self.open_value(key)? else {
            return Ok(None);
        };
        let part = range.within(stat.size)?;
        let &ByteRange::Whole(limit) = range else {
            memory::resize(value, (part.end - part.start) as usize)?;
            read_at(&file, part.start, value)?;
            return Ok(Some(stat));
        };
        // the extra byte distinguishes a file that has grown from one that ends here
        memory::reserve(value, stat.size as usize + 1)?;
        // one call reads the whole file; `read_to_end` would read 8 KiB first, and twice as much
        // each time
        while (value.len() as u64) < stat.size
            && retry_on_intr(|| io::read(&file, spare_capacity(value)))? > 0
        {}
        if value.len() as u64 != stat.size {
            file.take(limit.saturating_add(1).saturating_sub(value.len() as u64))
                .read_to_end(value)?;
        }
        if value.len() as u64 > limit {
            return Err(Error::damaged(format!(
                "more than the {limit} bytes it may have"
            )));
        }
        Ok(Some(stat))
    }

    fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        let path = key.as_str();
        self.root.find(path, |root| stat_seen(root, path))
    }

    fn stat_many(
        &self,
        keys: &mut dyn Iterator<Item = Key>,
        each: &mut dyn FnMut(Result<Option<Stat>>) -> bool,
    ) {
        let mut level: Option<OpenDirectory> = None;
        for key in keys {
            if !each(self.stat_in(&key, &mut level)) {
                return;
            }
        }
    }

    fn list(&self, prefix: &Key) -> Result<Listing> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let Some(fd) = self.open_key(prefix.as_str(), flags)? else {
            return Err(Error::not_found("no such directory"));
        };
        let root = self.root.held();
        let stats = self.stats.clone();
        let prefix = prefix.clone();
        let lists_unfinished = self.lists_unfinished;
        let removes_abandoned = self.removes_abandoned;
        let mut directory = Dir::new(fd)?;
        let names = std::iter::from_fn(move || {
            while let Some(item) = directory.read() {
                let item = match item {
                    Ok(item) => item,
                    Err(e) => return Some(Err(e.into())),
                };
                let name = match item.file_name().to_str() {
                    Ok("." | "..") => continue,
                    Ok(name) if !lists_unfinished && write::temporary_name(name).is_some() => {
                        if removes_abandoned && let Ok(directory) = directory.fd() {
                            write::remove_abandoned(directory, name);
                        }
                        continue;
                    }
                    Ok(name) => name,
                    Err(_) => {
                        stats.left_out(format!("{prefix}: names that are not UTF-8 are left out"));
                        continue;
                    }
                };
                let kind = match item.file_type() {
                    FileType::RegularFile => EntryKind::Value,
                    FileType::Directory => EntryKind::Prefix,
                    FileType::Symlink | FileType::Unknown => {
                        match kind_behind(&root, &prefix, name) {
                            Some(kind) => kind,
                            None => continue,
                        }
                    }
                    _ => EntryKind::Other,
                };
                return Some(Ok(Entry::new(name, kind)));
            }
            None
        });
        Ok(Box::new(names))
    }

    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities {
            local: Some(self),
            ..Capabilities::default()
        }
    }

    fn location(&self) -> String {
        self.path.display().to_string()
    }
}

#[cfg(test)]
mod tests;
