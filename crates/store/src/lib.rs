//! Stores: maps from keys to bytes. One submodule per kind of store, and wrappers that cache the
//! answers of remote stores.
//!
//! This crate knows keys, values and versions; it must not know Zarr, nor which kinds of stores
//! other crates have.

mod counted;
mod directory;
mod disk_cache;
mod level;
mod level_cache;
mod local_files;
mod locks;
mod memory;
mod metadata_cache;
mod object_options;
mod object_id;
mod outside;
mod permissions;
mod pieces;
mod place;
mod prefix;
mod reopening;
mod reporting;
mod snapshots;
mod sorted_names;
mod stat;
mod stat_many;
mod store_ext;
mod subtree;
mod temporary_file;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod value_copy;
mod version;

pub use counted::{Counted, check_size, get_counted, get_known, read_by_stat};
pub use directory::{DirectoryStore, LockReach, stat_of};
pub use disk_cache::DiskCache;
pub use level::{FirstNames, PagedListing, Reach, ValuePage, ValuePages};
pub use level_cache::LevelCache;
pub use local_files::{FileAttribute, LocalFiles, Space, read_at};
pub use locks::{KeyLock, LockFiles, NAME_HOLDER, name_holder};
pub use memory::MemoryStore;
pub use metadata_cache::MetadataCache;
pub use object_id::ObjectId;
pub use object_options::ObjectOptions;
pub use outside::{DirectoryCall, change_directories_by};
pub use permissions::{Permissions, both, granted_between, granted_by};
pub use pieces::{ValuePiece, assemble, copy_range, is_put_in_memory, need_old};
pub use place::{TargetPlace, refused, target_error};
pub use prefix::PrefixStore;
pub use reopening::{OpenedValue, Reopening, prefix_in, present};
pub use reporting::ReportingStore;
pub use snapshots::{MAIN, SnapshotCommit, SnapshotHistory, SnapshotRef, Snapshots};
pub use sorted_names::{NameSpan, NamedEntry, SortedEntries, SortedListing, SortedNames};
pub use stat::{Entry, EntryKind, Listing, Stat};
pub use stat_many::stat_many_with;
pub use store_ext::StoreExt;
pub use subtree::{ExclusiveLock, SharedLock, SubtreeLocks};
pub use value_copy::{COPIED_PART, CopiedValue, ValueStart};
pub use version::Version;
pub use zarrfs_base::key::{Key, MAX_DEPTH, escaped};

use std::ops::Range;
use zarrfs_base::error::{Error, Kind, Result};
use zarrfs_base::memory::reserve;

/// The condition of [`Store::put_pieces`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replaces<'a> {
    /// The put replaces any value.
    Anything,
    /// The put succeeds only if the key has no value.
    Nothing,
    /// The put succeeds only if the value has this version.
    Version(&'a Version),
}

/// The bytes of a value that [`Readable::read`] returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ByteRange {
    /// All bytes of a value of at most this number of bytes.
    Whole(u64),
    /// The bytes of this range, fewer if the value ends earlier.
    Bounded(Range<u64>),
    /// The last bytes, at most this number.
    Suffix(u64),
}

impl ByteRange {
    /// Returns where the bytes are in a value of `size` bytes.
    ///
    /// # Errors
    ///
    /// [`Kind::Damaged`] if a whole value is larger than its limit.
    pub fn within(&self, size: u64) -> Result<Range<u64>> {
        match self {
            ByteRange::Whole(limit) => check_size(size, *limit).map(|()| 0..size),
            ByteRange::Bounded(range) => {
                let end = range.end.min(size);
                Ok(range.start.min(end)..end)
            }
            ByteRange::Suffix(len) => Ok(size.saturating_sub(*len)..size),
        }
    }

    /// Replaces the content of `value` by these bytes of `whole`.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::within`], or ENOMEM.
    pub fn copy(&self, whole: &[u8], value: &mut Vec<u8>) -> Result<()> {
        let range = self.within(whole.len() as u64)?;
        let part = &whole[range.start as usize..range.end as usize];
        reserve(value, part.len())?;
        value.extend_from_slice(part);
        Ok(())
    }
}

/// What a caller is going to ask a store, or no longer takes for granted.
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
    /// The metadata of a prefix and of all keys below it as of now: cached metadata is invalid,
    /// since an opened file must show the current content of the store.
    Forget(&'a Key),
    /// What [`Hint::Forget`] says, for a caller that reads all documents at and below the prefix:
    /// where one consolidated document holds them, that one is asked for again.
    ForgetDocuments(&'a Key),
}

/// What a store can do beyond [`Readable`] and [`Store`], for callers that ask.
#[derive(Clone, Copy)]
pub struct Capabilities<'a> {
    /// Number of requests that may be in flight at the same time: 1 for a local store, more for a
    /// remote one, where requests spend their time waiting.
    pub concurrency: usize,
    /// Whether [`Readable::list`] returns every name. A plain web server cannot list, so names
    /// must come from elsewhere.
    pub lists_all: bool,
    /// The values as files of this machine.
    pub local: Option<&'a dyn LocalFiles>,
    /// A place for bytes that are derived from values.
    pub side: Option<&'a dyn SideStore>,
    /// The snapshots of a repository that keeps them.
    pub snapshots: Option<&'a dyn Snapshots>,
}

impl Default for Capabilities<'_> {
    /// Returns the capabilities of a store in memory.
    fn default() -> Self {
        Capabilities {
            concurrency: 1,
            lists_all: true,
            local: None,
            side: None,
            snapshots: None,
        }
    }
}

/// A place that keeps bytes which were derived from values, across mounts.
pub trait SideStore: Send + Sync {
    /// Replaces the content of `bytes` by what [`SideStore::keep_derived`] kept last. Returns the
    /// text of the version that it was derived from, which may not be the stored one.
    fn derived(&self, key: &Key, name: &str, bytes: &mut Vec<u8>) -> Option<String>;

    /// Keeps bytes that were derived from a version of the value of `key`. Their name tells them
    /// from others of that value.
    fn keep_derived(&self, key: &Key, name: &str, version: &Version, bytes: &[u8]);
}

/// A map from keys to bytes, as a program reads it. [`StoreExt`] has shorter forms of its calls.
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

    /// Replaces the content of `value` by bytes of the value of `key`. The returned metadata
    /// belongs to the version that was read.
    ///
    /// # Errors
    ///
    /// [`Kind::Damaged`] if a whole value is larger than its limit.
    fn read(&self, key: &Key, range: &ByteRange, value: &mut Vec<u8>) -> Result<Option<Stat>>;

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

    /// Returns whether [`Readable::list`] returns every group and array, because the store can list
    /// or because a document names them.
    fn lists_nodes(&self) -> bool {
        match self.below() {
            Some(below) => below.lists_nodes(),
            None => self.capabilities().lists_all,
        }
    }

    /// Returns whether `key` stands for a part of files of another format, to which the store
    /// refers.
    fn refers_to_files(&self, key: &Key) -> bool {
        self.below().is_some_and(|below| below.refers_to_files(key))
    }

    /// Tells the store what the caller is going to ask, so that a store on a server can ask for it
    /// in fewer requests, and a cache forgets old answers. Errors are ignored: the calls that
    /// follow report them.
    fn hint(&self, hint: Hint) {
        if let Some(below) = self.below() {
            below.hint(hint);
        }
    }

    /// Returns what the store can do beyond these methods.
    fn capabilities(&self) -> Capabilities<'_> {
        self.below()
            .map_or_else(Capabilities::default, |below| below.capabilities())
    }

    /// Returns the location of the store, for messages and the mount table.
    fn location(&self) -> String;
}

/// A change of the names of a store.
#[derive(Clone, Copy, Debug)]
pub enum NameChange<'a> {
    /// Removes a value. Nothing changes if there is none.
    Delete(&'a Key),
    /// Creates an empty prefix: EEXIST if the key exists, ENOENT if the prefix above it does not.
    MakePrefix(&'a Key),
    /// Removes an empty prefix, ENOTEMPTY if it is not empty. A store that cannot list also removes
    /// the values below it that it does not know.
    RemovePrefix(&'a Key),
    /// Renames the first key to the second one like rename(2): a value replaces a value, and a
    /// prefix with everything below it replaces an empty prefix.
    Rename(&'a Key, &'a Key),
}

/// A map from keys to bytes that may be written. A store that is only read implements none of these
/// methods.
///
/// ```
/// use zarrfs_store::{Key, MemoryStore, StoreExt};
///
/// let (store, key) = (MemoryStore::default(), Key::normalize("temperature/.zarray")?);
/// let version = store.put(&key, b"{}")?;
/// let mut value = Vec::new();
/// assert_eq!(store.get(&key, 1 << 20, &mut value)?, Some(version));
/// assert_eq!(value, b"{}");
/// # Ok::<(), zarrfs_base::error::Error>(())
/// ```
pub trait Store: Readable {
    /// Checks that values can be written below `prefix`.
    ///
    /// # Errors
    ///
    /// [`Kind::ReadOnly`], or the error of the file system, if they cannot.
    fn check_writable(&self, prefix: &Key) -> Result<()> {
        writable_below(self)?.check_writable(prefix)
    }

    /// Replaces the value of `key` by one that consists of `pieces`, in order, creates missing
    /// prefixes, and returns the version of the new value; `None`, and nothing changes, if the
    /// current value does not satisfy `replaces`. At every moment, also after a crash, the key has
    /// the whole old or the whole new value. Old pieces are taken from the version in `replaces`.
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
        writable_below(self)?.put_pieces(key, pieces, replaces)
    }

    /// Changes names. Returns whether there was something to change.
    fn change(&self, change: NameChange) -> Result<bool> {
        writable_below(self)?.change(change)
    }

    /// Makes durable every change whose call returned before this one began.
    fn sync(&self) -> Result<()> {
        writable_below(self)?.sync()
    }
}

/// Returns the store below that is written in place of a layer.
fn writable_below(layer: &(impl Store + ?Sized)) -> Result<&dyn Store> {
    layer.below().ok_or_else(read_only)
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
