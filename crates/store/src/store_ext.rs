//! The calls of a store in the forms that programs need most. This module must not know which
//! stores there are.

use super::{
    ByteRange, FileAttribute, Hint, Key, KeyLock, NameChange, Permissions, Replaces, Space, Stat,
    Store, ValuePiece, Version, read_only,
};
use std::fs::File;
use std::ops::Range;
use std::time::Instant;
use zarrfs_base::error::{Error, Result};

/// Short forms of the calls of each store. No store implements them.
pub trait StoreExt: Store {
    /// Replaces the content of `value` by the value of `key`, and returns its version.
    ///
    /// # Errors
    ///
    /// [`Kind::Damaged`](zarrfs_base::error::Kind::Damaged) if the value has more than `limit`
    /// bytes.
    fn get(&self, key: &Key, limit: u64, value: &mut Vec<u8>) -> Result<Option<Version>> {
        let stat = self.read(key, &ByteRange::Whole(limit), value)?;
        Ok(stat.map(|stat| stat.version))
    }

    /// Replaces the content of `value` by the bytes of `range`, fewer if the value ends earlier.
    fn get_range(&self, key: &Key, range: Range<u64>, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        self.read(key, &ByteRange::Bounded(range), value)
    }

    /// Returns the number of requests that may be in flight at the same time.
    fn concurrency(&self) -> usize {
        self.capabilities().concurrency
    }

    /// Returns whether a listing returns every name.
    fn lists_all(&self) -> bool {
        self.capabilities().lists_all
    }

    /// Invalidates cached metadata of `prefix` and all keys below it.
    fn forget(&self, prefix: &Key) {
        self.hint(Hint::Forget(prefix));
    }

    /// Returns whether values can be written.
    fn is_writable(&self) -> bool {
        self.check_writable(&Key::root()).is_ok()
    }

    /// Replaces the value of `key`, and returns the version of the new value.
    fn put(&self, key: &Key, value: &[u8]) -> Result<Version> {
        let put = self.put_if(key, value, Replaces::Anything)?;
        put.ok_or_else(|| Error::io("an unconditional put was refused because of a condition"))
    }

    /// Puts a value only if the current one satisfies `replaces`; otherwise returns `None`.
    fn put_if(&self, key: &Key, value: &[u8], replaces: Replaces) -> Result<Option<Version>> {
        self.put_pieces(key, &[ValuePiece::Bytes(value)], replaces)
    }

    /// Removes a value; returns `false` if there was none.
    fn delete(&self, key: &Key) -> Result<bool> {
        self.change(NameChange::Delete(key))
    }

    /// Creates an empty prefix.
    fn make_prefix(&self, key: &Key) -> Result<()> {
        self.change(NameChange::MakePrefix(key)).map(drop)
    }

    /// Removes an empty prefix.
    fn remove_prefix(&self, key: &Key) -> Result<()> {
        self.change(NameChange::RemovePrefix(key)).map(drop)
    }

    /// Renames a value or prefix.
    fn rename(&self, from: &Key, to: &Key) -> Result<()> {
        self.change(NameChange::Rename(from, to)).map(drop)
    }

    /// Returns the value as an open file, if it is one.
    fn file(&self, key: &Key) -> Result<Option<(File, Stat)>> {
        let local = self.capabilities().local;
        local.map_or(Ok(None), |local| local.open_file(key))
    }

    /// Opens the value as a file for reading and writing in place.
    ///
    /// # Errors
    ///
    /// [`Kind::Unsupported`](zarrfs_base::error::Kind::Unsupported) if values are not files.
    fn writable_file(&self, key: &Key, create: bool, exclusive: bool) -> Result<File> {
        match self.capabilities().local {
            Some(local) => local.open_writable(key, create, exclusive),
            None if self.is_writable() => {
                let why = "values of this kind of store are not files";
                Err(Error::unsupported(why))
            }
            None => Err(read_only()),
        }
    }

    /// Sets an attribute of a file. A store without files ignores it and returns `None`.
    fn set_file_attribute(
        &self,
        key: &Key,
        attribute: FileAttribute,
    ) -> Result<Option<Permissions>> {
        let local = self.capabilities().local;
        local.map_or(Ok(None), |local| local.set_attribute(key, attribute))
    }

    /// Exchanges two prefixes with everything below them, at one moment.
    ///
    /// # Errors
    ///
    /// [`Kind::Unsupported`](zarrfs_base::error::Kind::Unsupported) if the store cannot.
    fn exchange(&self, one: &Key, other: &Key) -> Result<()> {
        match self.capabilities().local {
            Some(local) => local.exchange(one, other),
            None => Err(Error::unsupported(
                "this kind of store can't exchange names",
            )),
        }
    }

    /// Takes the lock of `key` that the store shares with other programs, if it has such locks.
    fn lock(&self, key: &Key, since: Instant) -> Result<KeyLock> {
        let local = self.capabilities().local;
        local.map_or_else(
            || Ok(KeyLock::default()),
            |local| local.lock_key(key, since),
        )
    }

    /// Returns the space for values, if the store knows it.
    fn space(&self) -> Result<Option<Space>> {
        let local = self.capabilities().local;
        local.map_or(Ok(None), |local| local.statvfs())
    }
}

impl<S: Store + ?Sized> StoreExt for S {}
