//! What a store says of a key without its bytes. This module must not know how a store finds it.

use super::{Permissions, Version, both};
use std::time::{Duration, SystemTime};
use zarrfs_base::error::Result;

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
    /// `Readable::stat` and `Readable::stat_many` take the directories above into account.
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
    /// `Readable::stat` and this entry are about the value, and the prefix can be listed.
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

    /// Returns whether the name belongs to a prefix.
    pub fn is_prefix(&self) -> bool {
        self.kind == EntryKind::Prefix || self.hides_prefix
    }
}

/// The names of one level, streamed.
pub type Listing = Box<dyn Iterator<Item = Result<Entry>> + Send>;
