//! Stores: maps from keys to bytes, read one level or one value at a time. This room knows nothing of Zarr: it is keys,
//! values, versions. One file per kind of store beside it.

mod delegate;
mod directory;
mod disk_cache;
mod key;
mod locks;
mod memory;
mod metadata_cache;
mod object;
mod permissions;
mod stat_many;
mod subtree;
#[cfg(test)]
mod test_doubles;
mod zip;

pub(crate) use delegate::delegate_store;

pub use directory::DirectoryStore;
pub use disk_cache::DiskCache;
pub use key::{Key, escaped};
pub use locks::{KeyLock, LockFiles};
pub use memory::MemoryStore;
pub use metadata_cache::MetadataCache;
pub use object::{ObjectOptions, ObjectStore};
pub use permissions::{Permissions, both};
pub use stat_many::stat_many_with;
pub use subtree::{ExclusiveLock, SharedLock, SubtreeLocks};
#[cfg(test)]
pub use test_doubles::{FaultyStore, Operation, PlannedFault, SimulatedRemote, UnlistedStore};
pub use zip::ZipStore;

use crate::error::{Error, Kind, Result};
use crate::util::memory::Grant;
use std::fmt;
use std::fs::File;
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::time::{Instant, SystemTime};

/// Something that differs whenever the bytes of a key may differ.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// Of a file.
    File {
        /// Its file system.
        device: u64,
        /// Its number there.
        inode: u64,
        /// Its modification time, in nanoseconds since 1970.
        modified: i128,
        /// Its change time, likewise: it catches a rewrite that puts the modification time back.
        changed: i128,
        /// Its size in bytes.
        size: u64,
    },
    /// A counter of writes.
    Count(u64),
    /// What a server calls a version: an entity tag or a generation; where it has none, the date and size it tells.
    Tag(String),
}

impl fmt::Display for Version {
    /// As text that differs where the version does, and is the same in each process.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Version::File { device, inode, modified, changed, size } => {
                write!(f, "{device:x}.{inode:x}.{modified:x}.{changed:x}.{size:x}")
            }
            Version::Count(count) => write!(f, "{count}"),
            Version::Tag(tag) => f.write_str(tag),
        }
    }
}

/// What a put may replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replaces<'a> {
    /// Whatever is there.
    Anything,
    /// Nothing: there must be no value.
    Nothing,
    /// The value of this version alone.
    Version(&'a Version),
}

/// What stands at a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A value.
    Value,
    /// No value, but a level of the hierarchy that may hold some.
    Prefix,
    /// Something that can be neither: a FIFO, a socket, a device. In a listing also a link that is not followed.
    Other,
}

/// What is known of a key without reading its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Whether it is a value.
    pub kind: EntryKind,
    /// Bytes of the value.
    pub size: u64,
    /// When the value was last changed.
    pub modified: SystemTime,
    /// Of the value as it stands.
    pub version: Version,
    /// What the file system grants on the file or directory; `None` where a store has no modes. Exact in what
    /// [`Store::stat`] and [`Store::stat_many`] return.
    pub permissions: Option<Permissions>,
}

impl Stat {
    /// The same, granting no more than `by`.
    pub fn restricted(self, by: Option<Permissions>) -> Self {
        Stat { permissions: both(self.permissions, by), ..self }
    }
}

/// The room there is for values, as statvfs(3) tells it of a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Bytes of the blocks that are counted.
    pub block_size: u64,
    /// Blocks in all.
    pub blocks: u64,
    /// Blocks free.
    pub free: u64,
    /// Blocks free for everybody.
    pub available: u64,
    /// Files in all.
    pub files: u64,
    /// Files that can still be made.
    pub free_files: u64,
}

/// One name of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// One name of a key, not the whole key.
    pub name: String,
    /// Whether it is a value.
    pub kind: EntryKind,
    /// What is known of the value, where the listing brings it along.
    pub stat: Option<Stat>,
}

/// The names of one level, as they come.
pub type Listing = Box<dyn Iterator<Item = Result<Entry>> + Send>;

/// A map from keys to bytes. Only a definite "no such key" is `None`; whatever else stands in the way is an error.
pub trait Store: Send + Sync {
    /// Reads the value of `key` into `value`, replacing what is there. A value of more than `limit` bytes is an error.
    fn get(&self, key: &Key, limit: u64, value: &mut Vec<u8>) -> Result<Option<Version>>;

    /// Reads the bytes of `range` into `value`, replacing what is there; fewer where the value ends before. The answer
    /// is of the very value that was read.
    fn get_range(&self, key: &Key, range: Range<u64>, value: &mut Vec<u8>) -> Result<Option<Stat>>;

    /// What stands at `key`.
    fn stat(&self, key: &Key) -> Result<Option<Stat>>;

    /// Calls `each` with what stands at each key, in order, until it returns false. Quicker than asking one by one
    /// where neighbouring keys stand on the same level. An answer is never older than the call, but may be older than
    /// the one before it.
    fn stat_many(&self, keys: &mut dyn Iterator<Item = Key>, each: &mut dyn FnMut(Result<Option<Stat>>) -> bool) {
        for key in keys {
            if !each(self.stat(&key)) {
                return;
            }
        }
    }

    /// The names one level below `prefix`, unordered, streamed. Names that can't be keys are left out.
    fn list(&self, prefix: &Key) -> Result<Listing>;

    /// False if [`Store::list`] may leave out what is there: a server that can't list tells of what is known otherwise.
    fn lists_all(&self) -> bool {
        true
    }

    /// How many requests may be under way at once to good purpose, whatever the cores can decode: more than one where an
    /// answer is a long time on its way.
    fn concurrency(&self) -> usize {
        1
    }

    /// Has the store ask anew, when it is next asked, for what it remembers of `prefix` and all below: somebody opens a
    /// file there and must see what is in the store now.
    fn forget(&self, _prefix: &Key) {}

    /// The value as an open file of the local system, where it is one.
    fn file(&self, _key: &Key) -> Result<Option<(File, Stat)>> {
        Ok(None)
    }

    /// Where the store is, for messages and the mount table.
    fn location(&self) -> String;

    /// How much room there is for values, where that can be told.
    fn space(&self) -> Result<Option<Space>> {
        Ok(None)
    }

    /// True if values can be put. Of a store that can't be written all the rest answers [`Kind::ReadOnly`].
    fn is_writable(&self) -> bool {
        false
    }

    /// An error unless values can be put below `prefix`.
    fn check_writable(&self, _prefix: &Key) -> Result<()> {
        if self.is_writable() { Ok(()) } else { Err(read_only()) }
    }

    /// Makes `value` the value of `key`, with the prefixes that lead there. At every moment, also after a crash, there
    /// is all of the old value or all of the new one. The answer is of the value that was put.
    fn put(&self, _key: &Key, _value: &[u8]) -> Result<Version> {
        Err(read_only())
    }

    /// As [`Store::put`], but only while what is there is what `replaces` says: None if it isn't, and nothing was put. A
    /// store that can't tell puts anyway.
    fn put_if(&self, key: &Key, value: &[u8], _replaces: Replaces) -> Result<Option<Version>> {
        self.put(key, value).map(Some)
    }

    /// Removes a value; false if there was none.
    fn delete(&self, _key: &Key) -> Result<bool> {
        Err(read_only())
    }

    /// Waits for the lock of `key` that other programs take, too, where the store was given such locks. The wait counts
    /// from `since`, and ends with an error after the time that was set for the locks. Nothing here asks for it: whoever
    /// changes a value in more than one step does.
    fn lock(&self, _key: &Key, _since: Instant) -> Result<KeyLock> {
        Ok(KeyLock::default())
    }

    /// Returns when every put, delete, rename, made and removed prefix that had returned before survives a power loss.
    fn sync(&self) -> Result<()> {
        Err(read_only())
    }

    /// Makes an empty prefix: EEXIST where something stands already, ENOENT where there is no prefix above it.
    fn make_prefix(&self, _key: &Key) -> Result<()> {
        Err(read_only())
    }

    /// Removes an empty prefix; ENOTEMPTY if it isn't.
    fn remove_prefix(&self, _key: &Key) -> Result<()> {
        Err(read_only())
    }

    /// Gives what stands at `from` the name `to`, as rename(2): a value replaces a value, a prefix with all below it an
    /// empty prefix.
    fn rename(&self, _from: &Key, _to: &Key) -> Result<()> {
        Err(read_only())
    }

    /// The value as an open file of the local system, to be read and written in place; with `create` one is made where
    /// there is none, with `exclusive` too one that stands there already is EEXIST. [`Kind::Unsupported`] where values
    /// are no files.
    fn writable_file(&self, _key: &Key, _create: bool, _exclusive: bool) -> Result<File> {
        match self.is_writable() {
            true => Err(Error::unsupported("values of this kind of store are no files")),
            false => Err(read_only()),
        }
    }
}

/// A value whose memory was counted before the store was asked for it.
pub struct Counted {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// What is known of the value.
    pub stat: Stat,
    /// Counts the bytes.
    pub memory: Grant,
}

/// Bytes that a value may have whatever the store has said of its size: it may have been written meanwhile.
const SMALL: u64 = 64 << 10;

/// How often a value is looked at that grows between a look at its size and reading it.
const GROWTHS: usize = 5;

/// Reads the value of `key`, as [`Store::get`] does, with its memory counted; None if there is none. A store that says
/// of a value that it is small can't have memory taken for a large one.
pub fn get_counted(store: &dyn Store, key: &Key, limit: u64) -> Result<Option<Counted>> {
    let mut stat = store.stat(key)?;
    for attempt in 0.. {
        let Some(known) = stat else { break };
        if known.size > limit {
            return Err(Error::damaged(format!("{} bytes, more than the {limit} it may have", known.size)));
        }
        let most = limit.min(known.size.max(SMALL));
        let mut memory = crate::util::memory::take(most as usize)?;
        let mut bytes = Vec::new();
        match store.get(key, most, &mut bytes) {
            Ok(version) => {
                bytes.shrink_to_fit();
                memory.shrink_to(bytes.capacity());
                return Ok(version.map(|version| Counted { bytes, stat: Stat { version, ..known }, memory }));
            }
            Err(e) if most == limit || attempt == GROWTHS || e.kind() != Kind::Damaged => return Err(e),
            Err(e) => {
                store.forget(key);
                stat = store.stat(key)?;
                if stat.as_ref().is_some_and(|now| now.size <= most) {
                    return Err(e);
                }
            }
        }
    }
    Ok(None)
}

/// Fills `out` with what stands at `offset`; it becomes shorter where the file ends before.
pub(crate) fn read_at(file: &File, offset: u64, out: &mut Vec<u8>) -> Result<()> {
    let mut done = 0;
    while done < out.len() {
        match file.read_at(&mut out[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e.into()),
        }
    }
    out.truncate(done);
    Ok(())
}

fn read_only() -> Error {
    Error::new(Kind::ReadOnly, "this kind of store can't be written")
}

#[cfg(test)]
mod tests;
