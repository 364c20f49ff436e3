//! Values that are files of this machine: what programs do with files and a map from keys to bytes
//! cannot express. This module must not know which stores have files.

use super::{Key, KeyLock, Permissions, Stat};
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::time::{Instant, SystemTime};
use zarrfs_base::error::{Error, Result};

/// An attribute of a value or prefix that [`LocalFiles::set_attribute`] sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileAttribute {
    /// The permission bits of the existing one or, if none exists, of the next one.
    Mode(u32),
    /// The permission bits of the next one if none exists, before the umask of the process.
    NextMode(u32),
    /// The modification time of an existing one; `None` stands for the present.
    Modified(Option<SystemTime>),
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

/// The values of a store as files of this machine.
pub trait LocalFiles: Send + Sync {
    /// Returns the value as an open file.
    fn open_file(&self, key: &Key) -> Result<Option<(File, Stat)>>;

    /// Opens the value for reading and writing in place. With `create`, creates a missing file.
    ///
    /// # Errors
    ///
    /// With `create` and `exclusive`, EEXIST if the file exists.
    fn open_writable(&self, key: &Key, create: bool, exclusive: bool) -> Result<File>;

    /// Sets an attribute of a value or prefix. A value that is replaced keeps its permission bits,
    /// and gets a new modification time. Returns the permissions that the value or prefix has now
    /// or is created with; `None` if the files have no modes.
    ///
    /// # Errors
    ///
    /// EPERM if the store cannot show the mode.
    fn set_attribute(&self, key: &Key, attribute: FileAttribute) -> Result<Option<Permissions>>;

    /// Takes the lock of `key` that the store shares with other programs. The store itself never
    /// calls this method; callers that change a value in several steps do.
    ///
    /// # Errors
    ///
    /// EIO if the lock is not free within the configured timeout, measured from `since`.
    fn lock_key(&self, key: &Key, since: Instant) -> Result<KeyLock>;

    /// Returns the space for values, if the file system knows it.
    fn statvfs(&self) -> Result<Option<Space>>;

    /// Exchanges two prefixes with everything below them, at one moment.
    ///
    /// # Errors
    ///
    /// [`Kind::Unsupported`](zarrfs_base::error::Kind::Unsupported) if the store cannot; EOPNOTSUPP
    /// if its file system cannot.
    fn exchange(&self, _one: &Key, _other: &Key) -> Result<()> {
        Err(Error::unsupported(
            "this kind of store can't exchange names",
        ))
    }
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
