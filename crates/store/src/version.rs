//! The version of a value, by which caches and conditional puts know that its content is the same.
//! This module must not know where a version comes from.

use std::fmt;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

/// The identity of the content of a key: two different contents have two different versions.
///
/// The reverse does not hold: a version may change although the bytes stay the same.
///
/// ```
/// use zarrfs_store::{Key, MemoryStore, Replaces, StoreExt};
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

/// Time of the first answer without a version. It tells the answers of this process from the
/// answers of other ones.
static START: LazyLock<SystemTime> = LazyLock::new(SystemTime::now);
