//! Stores: maps from keys to bytes. One submodule per kind of store, and wrappers that cache the
//! answers of remote stores.
//!
//! This crate knows keys, values and versions; it must not know Zarr, but for the spelling of chunk
//! keys in `icechunk`.

mod counted;
mod directory;
mod disk_cache;
mod icechunk;
mod level;
mod level_cache;
mod locks;
mod memory;
mod metadata_cache;
mod object_options;
mod outside;
mod overlay;
mod permissions;
mod pieces;
mod prefix;
mod reference;
mod reopening;
mod reporting;
mod sorted_names;
mod stat_many;
mod subtree;
mod temporary_file;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod value_copy;
mod zip;

pub use counted::{Counted, get_counted, get_end_by_stat};
pub use directory::{DirectoryStore, LockReach};
pub use disk_cache::DiskCache;
pub use icechunk::{
    IceCommit, IceHistory, IceRef, IceRepositoryStore, IcechunkStore, ObjectId, Snapshots,
};
pub use level::{FirstNames, PagedListing, Reach, ValuePage, ValuePages};
pub use level_cache::LevelCache;
pub use locks::{KeyLock, LockFiles, NAME_HOLDER, name_holder};
pub use memory::MemoryStore;
pub use metadata_cache::MetadataCache;
pub use object_options::ObjectOptions;
pub use outside::{DirectoryCall, DirectoryCalls, change_directories_by};
pub use overlay::{
    ChangeKind, CommitReport, Committer, OverlayChange, OverlayDirectory, OverlayStore,
};
pub use permissions::{Permissions, both, granted_between, granted_by};
pub use pieces::{ValuePiece, is_put_in_memory, put_in_memory};
pub use prefix::PrefixStore;
pub use reference::{ReferenceStore, TargetPlace, TargetRoot};
pub use reporting::ReportingStore;
pub use stat_many::stat_many_with;
pub use subtree::{ExclusiveLock, SharedLock, SubtreeLocks};
pub use value_copy::{CopiedValue, ValueStart};
pub use zarrfs_base::key::{Key, MAX_DEPTH, escaped};
pub use zip::{ZipStore, ZipWriter};

use counted::check_size;
use std::fmt;
use std::fs::File;
use std::io::ErrorKind;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};
use zarrfs_base::error::{Error, Kind, Result};

/// The identity of the content of a key: two different contents have two different versions.
///
/// The reverse does not hold: a version may change although the bytes stay the same.
///
/// ```
/// use zarrfs_store::{Key, MemoryStore, Replaces, Store};
///
/// let (store, key) = (MemoryStore::default(), Key::normalize("a/0.0")?);
/// let first = store.put(&key, b"one")?;
/// store.put(&key, b"two")?;
/// // a conditional put fails once another writer has replaced the value
/// assert_eq!(store.put_if(&key, b"three", Replaces::Version(&first))?, None);
/// # Ok::<(), zarrfs_base::error::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// The version of a file.
    File {
        /// Device number of the file system.
        device: u64,
        /// Inode number.
        inode: u64,
        /// Modification time in nanoseconds since 1970.
        modified: i128,
        /// Change time in nanoseconds since 1970. It reveals a rewrite that restored the
        /// modification time.
        changed: i128,
        /// Size in bytes.
        size: u64,
    },
    /// The value of a counter of writes within this process.
    Count(u64),
    /// The number of a change that this process has not stored yet.
    Pending(u64),
    /// The version that a server names: an entity tag or, if it sends none, the date and size.
    Tag(String),
    /// The server names no version: neither a tag nor a date. Two answers never have equal
    /// versions, since nothing shows that the content is the same.
    Unstated {
        /// Size of the value in bytes.
        size: u64,
        /// Number of the answer within this process.
        answer: u64,
    },
}

impl Version {
    /// Returns the version of a value of `size` bytes from a server that names none.
    pub fn unstated(size: u64) -> Self {
        static ANSWERS: AtomicU64 = AtomicU64::new(0);
        Version::Unstated {
            size,
            answer: ANSWERS.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Returns whether the server names no version.
    pub fn is_unstated(&self) -> bool {
        matches!(self, Version::Unstated { .. })
    }

    /// Returns whether two answers of a store can be parts of one content: their versions are equal
    /// or, if the server names none, their sizes. What was read *before* must not be used again
    /// without equality.
    pub fn may_equal(&self, other: &Version) -> bool {
        match (self, other) {
            (Version::Unstated { size, .. }, Version::Unstated { size: other, .. }) => {
                size == other
            }
            _ => self == other,
        }
    }

    /// Returns the text of this version that stays the same after a reboot, which may change the
    /// numbers of devices.
    pub fn lasting(&self) -> String {
        match self {
            Version::File {
                inode,
                modified,
                changed,
                size,
                ..
            } => {
                format!("{inode:x}.{modified:x}.{changed:x}.{size:x}")
            }
            other => other.to_string(),
        }
    }
}

impl fmt::Display for Version {
    /// Writes a text that is unique to the version and equal in all processes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Version::File {
                device,
                inode,
                modified,
                changed,
                size,
            } => {
                write!(f, "{device:x}.{inode:x}.{modified:x}.{changed:x}.{size:x}")
            }
            Version::Count(count) => write!(f, "{count}"),
            Version::Pending(number) => write!(f, "pending-{number}"),
            Version::Tag(tag) => f.write_str(tag),
            Version::Unstated { size, answer } => {
                let start = START
                    .duration_since(SystemTime::UNIX_EPOCH)
                    .unwrap_or_default();
                write!(
                    f,
                    "unstated {}-{:x}-{answer}, {size} bytes",
                    std::process::id(),
                    start.as_nanos()
                )
            }
        }
    }
}

/// Time of the first answer without a version, which tells it from those of other processes.
static START: LazyLock<SystemTime> = LazyLock::new(SystemTime::now);

/// The condition of [`Store::put_if`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replaces<'a> {
    /// The put replaces any value.
    Anything,
    /// The put succeeds only if the key has no value.
    Nothing,
    /// The put succeeds only if the value has this version.
    Version(&'a Version),
}

/// An attribute of a value or prefix that [`Store::set_file_attribute`] sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileAttribute {
    /// The permission bits of the existing one or, if none exists, of the next one.
    Mode(u32),
    /// The permission bits of the next one if none exists, before the umask of the process.
    NextMode(u32),
    /// The modification time of an existing one; `None` stands for the present.
    Modified(Option<SystemTime>),
}

/// The kind of an entry at a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A value.
    Value,
    /// A level of the hierarchy that may hold values.
    Prefix,
    /// A FIFO, a socket or a device. In a listing, also a symbolic link that is not followed.
    Other,
}

/// The metadata of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Kind of the entry.
    pub kind: EntryKind,
    /// Size of the value in bytes.
    pub size: u64,
    /// Time of the last modification.
    pub modified: SystemTime,
    /// Version of the value.
    pub version: Version,
    /// Permissions of the file or directory; `None` for a store without modes. Only
    /// [`Readable::stat`] and [`Readable::stat_many`] take the directories above into account.
    pub permissions: Option<Permissions>,
}

impl Stat {
    /// Describes a value of a store without modes.
    pub fn value(size: u64, modified: SystemTime, version: Version) -> Self {
        Stat {
            kind: EntryKind::Value,
            size,
            modified,
            version,
            permissions: None,
        }
    }

    /// Describes a prefix that has neither a time nor a version.
    pub fn prefix() -> Self {
        let version = Version::Tag(String::new());
        Stat {
            kind: EntryKind::Prefix,
            ..Stat::value(0, SystemTime::UNIX_EPOCH, version)
        }
    }

    /// Returns when the content or an attribute has changed last. No program can set that time.
    pub fn changed(&self) -> SystemTime {
        let Version::File { changed, .. } = &self.version else {
            return self.modified;
        };
        // files are not older than 1970
        let since = u64::try_from(*changed).map(Duration::from_nanos);
        SystemTime::UNIX_EPOCH + since.unwrap_or_default()
    }

    /// Returns the metadata with the permissions that both it and `by` grant.
    pub fn restricted(self, by: Option<Permissions>) -> Self {
        Stat {
            permissions: both(self.permissions, by),
            ..self
        }
    }
}

/// Free and total space, in the terms of statvfs(3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Size of a block in bytes.
    pub block_size: u64,
    /// Total number of blocks.
    pub blocks: u64,
    /// Number of free blocks.
    pub free: u64,
    /// Number of free blocks that an unprivileged user may use.
    pub available: u64,
    /// Total number of files.
    pub files: u64,
    /// Number of files that can still be created.
    pub free_files: u64,
}

/// One name of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Last name of the key.
    pub name: String,
    /// Kind of the entry.
    pub kind: EntryKind,
    /// Metadata, if the listing returns it along with the name.
    pub stat: Option<Stat>,
    /// Whether a value hides a prefix of the same name, as servers and archives allow.
    /// [`Readable::stat`] and this entry are about the value, and the prefix can be listed.
    pub hides_prefix: bool,
}

impl Entry {
    /// Returns an entry without metadata.
    pub fn new(name: impl Into<String>, kind: EntryKind) -> Self {
        Entry {
            name: name.into(),
            kind,
            stat: None,
            hides_prefix: false,
        }
    }

    /// Returns an entry for what `stat` describes.
    pub fn of_stat(name: impl Into<String>, stat: Stat) -> Self {
        Entry {
            kind: stat.kind,
            stat: Some(stat),
            ..Entry::new(name, EntryKind::Value)
        }
    }

    /// Returns whether the name is that of a prefix.
    pub fn is_prefix(&self) -> bool {
        self.kind == EntryKind::Prefix || self.hides_prefix
    }
}

/// The names of one level, streamed.
pub type Listing = Box<dyn Iterator<Item = Result<Entry>> + Send>;

/// What a caller is going to ask a store.
#[derive(Clone, Copy, Debug)]
pub enum Hint<'a> {
    /// All names of the store. The cache then answers that other names do not exist, so only a
    /// command that reads the store as of one moment gives this hint.
    WholeStore,
    /// The names on all levels below a prefix, or as many as a few requests return.
    Below(&'a Key),
    /// The names of one level.
    Level(&'a Key),
    /// The names and documents in each of these prefixes.
    Nodes(&'a [Key]),
}

/// A map from keys to bytes, as a program reads it.
///
/// A method returns `None` only if the key definitely does not exist. Every other obstacle is an
/// error. A layer over another store implements [`Readable::below`], and only what it does
/// differently: all other methods that are not required ask the store below.
pub trait Readable: Send + Sync {
    /// Returns the store that answers for this one what this one does not implement: the same keys
    /// mean the same there.
    fn below(&self) -> Option<&dyn Store> {
        None
    }

    /// Replaces the content of `value` by the value of `key`, and returns its version.
    ///
    /// # Errors
    ///
    /// [`Kind::Damaged`] if the value has more than `limit` bytes.
    fn get(&self, key: &Key, limit: u64, value: &mut Vec<u8>) -> Result<Option<Version>>;

    /// Replaces the content of `value` by the bytes of `range`, fewer if the value ends earlier.
    /// The returned metadata belongs to the version that was read.
    fn get_range(&self, key: &Key, range: Range<u64>, value: &mut Vec<u8>) -> Result<Option<Stat>>;

    /// Replaces the content of `value` by the last `len` bytes of the value, or by all of it if it
    /// is shorter. The returned metadata belongs to the version that was read.
    fn get_end(&self, key: &Key, len: u64, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        match self.below() {
            Some(below) => below.get_end(key, len, value),
            None => get_end_by_stat(self, key, len, value),
        }
    }

    /// Returns the metadata of `key`.
    fn stat(&self, key: &Key) -> Result<Option<Stat>>;

    /// Calls `each` with the metadata of each key, in order, until it returns `false`.
    ///
    /// This is faster than separate calls if neighboring keys are on the same level. No result is
    /// older than the call, but a result may be older than the one before it.
    fn stat_many(
        &self,
        keys: &mut dyn Iterator<Item = Key>,
        each: &mut dyn FnMut(Result<Option<Stat>>) -> bool,
    ) {
        match self.below() {
            Some(below) => below.stat_many(keys, each),
            None => {
                for key in keys {
                    if !each(self.stat(&key)) {
                        return;
                    }
                }
            }
        }
    }

    /// Streams the names one level below `prefix`, in any order. Names that cannot be keys are left
    /// out.
    ///
    /// # Errors
    ///
    /// [`Kind::NotFound`] if the prefix does not exist.
    fn list(&self, prefix: &Key) -> Result<Listing>;

    /// Returns whether [`Readable::list`] returns every name. A plain web server cannot list, so
    /// names must come from elsewhere.
    fn lists_all(&self) -> bool {
        self.below().is_none_or(|below| below.lists_all())
    }

    /// Replaces the content of `bytes` by what [`Readable::keep_derived`] kept last. Returns the
    /// text of the version that it was derived from, which may not be the stored one.
    fn derived(&self, key: &Key, name: &str, bytes: &mut Vec<u8>) -> Option<String> {
        self.below()
            .and_then(|below| below.derived(key, name, bytes))
    }

    /// Keeps bytes that were derived from a version of the value of `key`, across mounts, if the
    /// store has a place for them. Their name tells them from others of that value.
    fn keep_derived(&self, key: &Key, name: &str, version: &Version, bytes: &[u8]) {
        if let Some(below) = self.below() {
            below.keep_derived(key, name, version, bytes);
        }
    }

    /// Returns whether `key` stands for a part of files of another format, to which the store
    /// refers.
    fn refers_to_files(&self, key: &Key) -> bool {
        self.below().is_some_and(|below| below.refers_to_files(key))
    }

    /// Returns whether [`Readable::list`] returns every group and array, because the store can list
    /// or because a document names them.
    fn lists_nodes(&self) -> bool {
        match self.below() {
            Some(below) => below.lists_nodes(),
            None => self.lists_all(),
        }
    }

    /// Tells the store what the caller is going to ask, so that a store on a server can ask for it
    /// in fewer requests. Errors are ignored: the calls that follow report them.
    fn hint(&self, hint: Hint) {
        if let Some(below) = self.below() {
            below.hint(hint);
        }
    }

    /// Returns the number of requests that may be in flight at the same time: 1 for a local store,
    /// more for a remote one, where requests spend their time waiting.
    fn concurrency(&self) -> usize {
        self.below().map_or(1, |below| below.concurrency())
    }

    /// Invalidates cached metadata of `prefix` and all keys below it, so that the next call asks
    /// the store. An opened file must show the current content of the store.
    fn forget(&self, prefix: &Key) {
        if let Some(below) = self.below() {
            below.forget(prefix);
        }
    }

    /// Invalidates what [`Readable::forget`] does, for a caller that reads all documents at and
    /// below `prefix`: where one consolidated document holds them, that one is asked for again.
    fn forget_documents(&self, prefix: &Key) {
        self.forget(prefix);
    }

    /// Returns the value as an open local file, if it is one.
    fn file(&self, key: &Key) -> Result<Option<(File, Stat)>> {
        self.below().map_or(Ok(None), |below| below.file(key))
    }

    /// Returns what the store knows of snapshots, if it is a repository that keeps them.
    fn snapshots(&self) -> Option<&dyn Snapshots> {
        self.below().and_then(|below| below.snapshots())
    }

    /// Returns the location of the store, for messages and the mount table.
    fn location(&self) -> String;
}

/// A map from keys to bytes that may be written. A store that is only read implements none of these
/// methods.
///
/// ```
/// use zarrfs_store::{Key, MemoryStore, Readable, Store};
///
/// let (store, key) = (MemoryStore::default(), Key::normalize("temperature/.zarray")?);
/// let version = store.put(&key, b"{}")?;
/// let mut value = Vec::new();
/// assert_eq!(store.get(&key, 1 << 20, &mut value)?, Some(version));
/// assert_eq!(value, b"{}");
/// # Ok::<(), zarrfs_base::error::Error>(())
/// ```
pub trait Store: Readable {
    /// Returns the space for values, if the store knows it.
    fn space(&self) -> Result<Option<Space>> {
        self.below().map_or(Ok(None), |below| below.space())
    }

    /// Returns whether values can be written. If not, all methods that write return
    /// [`Kind::ReadOnly`].
    fn is_writable(&self) -> bool {
        self.below().is_some_and(|below| below.is_writable())
    }

    /// Checks that values can be written below `prefix`.
    ///
    /// # Errors
    ///
    /// [`Kind::ReadOnly`], or the error of the file system, if they cannot.
    fn check_writable(&self, prefix: &Key) -> Result<()> {
        match self.below() {
            Some(below) => below.check_writable(prefix),
            None if self.is_writable() => Ok(()),
            None => Err(read_only()),
        }
    }

    /// Replaces the value of `key`, creates missing prefixes, and returns the version of the new
    /// value. At every moment, also after a crash, the key has the whole old or the whole new
    /// value. No store implements this method: a layer that calls [`Store::put_if`] of the store
    /// below would bypass it.
    fn put(&self, key: &Key, value: &[u8]) -> Result<Version> {
        let put = self.put_if(key, value, Replaces::Anything)?;
        put.ok_or_else(|| Error::io("an unconditional put was refused because of a condition"))
    }

    /// Puts a value only if the current one satisfies `replaces`; otherwise returns `None` and
    /// changes nothing. Each store that is written implements this method, so that none can ignore
    /// a condition; a store that cannot check says so.
    fn put_if(&self, key: &Key, value: &[u8], replaces: Replaces) -> Result<Option<Version>> {
        writable_below(self)?.put_if(key, value, replaces)
    }

    /// Puts a value that consists of `pieces`, in their order, under the same conditions as
    /// [`Store::put_if`]; a store that can compare versions compares them again before the new
    /// value replaces the old one. Old pieces are taken from the version in `replaces`; if the
    /// value no longer has that version, this function returns `None`.
    ///
    /// # Errors
    ///
    /// EFBIG if the value is larger than the store can assemble.
    fn put_pieces(
        &self,
        key: &Key,
        pieces: &[ValuePiece],
        replaces: Replaces,
    ) -> Result<Option<Version>> {
        match self.below() {
            Some(below) => below.put_pieces(key, pieces, replaces),
            None => put_in_memory(self, key, pieces, replaces),
        }
    }

    /// Removes a value; returns `false` if there was none.
    fn delete(&self, key: &Key) -> Result<bool> {
        writable_below(self)?.delete(key)
    }

    /// Takes the lock of `key` that the store shares with other programs, if it has such locks. The
    /// store itself never calls this method; callers that change a value in several steps do.
    ///
    /// # Errors
    ///
    /// EIO if the lock is not free within the configured timeout, measured from `since`.
    fn lock(&self, key: &Key, since: Instant) -> Result<KeyLock> {
        match self.below() {
            Some(below) => below.lock(key, since),
            None => Ok(KeyLock::default()),
        }
    }

    /// Makes durable every change whose call returned before this one began.
    fn sync(&self) -> Result<()> {
        writable_below(self)?.sync()
    }

    /// Creates an empty prefix.
    ///
    /// # Errors
    ///
    /// EEXIST if the key exists, ENOENT if the prefix above it does not.
    fn make_prefix(&self, key: &Key) -> Result<()> {
        writable_below(self)?.make_prefix(key)
    }

    /// Removes an empty prefix. A store that cannot list also removes the values below it that it
    /// does not know.
    ///
    /// # Errors
    ///
    /// ENOTEMPTY if it is not empty.
    fn remove_prefix(&self, key: &Key) -> Result<()> {
        writable_below(self)?.remove_prefix(key)
    }

    /// Renames `from` to `to` like rename(2): a value replaces a value, and a prefix with
    /// everything below it replaces an empty prefix.
    fn rename(&self, from: &Key, to: &Key) -> Result<()> {
        writable_below(self)?.rename(from, to)
    }

    /// Sets an attribute of a value or prefix. A value that is replaced keeps its permission bits,
    /// and gets a new modification time. Returns the permissions that the value or prefix has now
    /// or is created with; a store without modes ignores attributes and returns `None`.
    ///
    /// # Errors
    ///
    /// EPERM if the store cannot show the mode.
    fn set_file_attribute(
        &self,
        key: &Key,
        attribute: FileAttribute,
    ) -> Result<Option<Permissions>> {
        match self.below() {
            Some(below) => below.set_file_attribute(key, attribute),
            None => Ok(None),
        }
    }

    /// Opens the value as a local file for reading and writing in place. With `create`, creates a
    /// missing file.
    ///
    /// # Errors
    ///
    /// [`Kind::Unsupported`] if values are not files; with `create` and `exclusive`, EEXIST if the
    /// file exists.
    fn writable_file(&self, key: &Key, create: bool, exclusive: bool) -> Result<File> {
        match self.below() {
            Some(below) => below.writable_file(key, create, exclusive),
            None if self.is_writable() => {
                let why = "values of this kind of store are not files";
                Err(Error::unsupported(why))
            }
            None => Err(read_only()),
        }
    }
}

/// Returns the store below that is written in place of a layer.
fn writable_below(layer: &(impl Store + ?Sized)) -> Result<&dyn Store> {
    layer.below().ok_or_else(read_only)
}

/// Fills `out` with the bytes from `offset` on, and truncates it if the file ends earlier.
pub fn read_at(file: &File, offset: u64, out: &mut Vec<u8>) -> Result<()> {
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

/// Returns an error unless `kind` is that of a prefix.
pub fn check_prefix(kind: Option<EntryKind>) -> Result<()> {
    match kind {
        Some(EntryKind::Prefix) => Ok(()),
        Some(_) => Err(Error::system(libc::ENOTDIR)),
        None => Err(Error::not_found("no such prefix")),
    }
}

/// Checks the kinds of both keys of a rename, and returns that of the source. The caller must check
/// that a prefix that is replaced is empty.
pub fn check_rename(
    from: &Key,
    to: &Key,
    source: Option<EntryKind>,
    target: Option<EntryKind>,
) -> Result<EntryKind> {
    match (
        source.ok_or_else(|| Error::not_found("no such key"))?,
        target,
    ) {
        (source, _) if from == to => Ok(source),
        (EntryKind::Prefix, _) if to.relative_to(from).is_some() => {
            Err(Error::system(libc::EINVAL))
        }
        (EntryKind::Prefix, Some(EntryKind::Value | EntryKind::Other)) => {
            Err(Error::system(libc::ENOTDIR))
        }
        (EntryKind::Value | EntryKind::Other, Some(EntryKind::Prefix)) => {
            Err(Error::system(libc::EISDIR))
        }
        (source, _) => Ok(source),
    }
}

/// Returns the error of a change of a store that cannot be written.
pub fn read_only() -> Error {
    Error::new(Kind::ReadOnly, "this kind of store can't be written")
}

#[cfg(test)]
mod tests;
