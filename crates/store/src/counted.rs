//! Reads that ask the store for the size of a value first: [`get_counted`], [`get_known`], and the
//! end of a value for stores that cannot return it by one request.

use super::{ByteRange, EntryKind, Key, Readable, Stat, Store, StoreExt};
use zarrfs_base::error::{Error, Kind, Result};
use zarrfs_base::memory::Grant;

/// Minimum number of bytes granted for a value: a small document may grow between `stat` and `get`.
const MIN_GRANT: u64 = 64 << 10;

/// Maximum number of times that a value is read again because it grew between `stat` and `get`.
const MAX_GROWTHS: usize = 5;

/// A value whose memory was granted before it was read.
pub struct Counted {
    /// The value.
    pub bytes: Vec<u8>,
    /// Metadata of the value.
    pub stat: Stat,
    /// Memory of the bytes.
    pub memory: Grant,
}

/// Reads the value of `key` like [`StoreExt::get`], with a grant for its memory. The grant follows
/// the size that the store reports, so a store cannot make the program allocate more than it
/// announced.
///
/// # Errors
///
/// [`Kind::Damaged`] if the value has more than `limit` bytes, or an error if its memory is not
/// granted.
pub fn get_counted(store: &dyn Store, key: &Key, limit: u64) -> Result<Option<Counted>> {
    get_known(store, key, store.stat(key)?, limit)
}

/// Reads a value as [`get_counted`] does, whose stat the store has just returned.
///
/// # Errors
///
/// Those of [`get_counted`].
pub fn get_known(
    store: &dyn Store,
    key: &Key,
    mut stat: Option<Stat>,
    limit: u64,
) -> Result<Option<Counted>> {
    for attempt in 0.. {
        let Some(known) = stat else { break };
        check_size(known.size, limit)?;
        let most = limit.min(known.size.max(MIN_GRANT));
        let mut memory = zarrfs_base::memory::take(most as usize)?;
        let mut bytes = Vec::new();
        match store.get(key, most, &mut bytes) {
            Ok(version) => {
                bytes.shrink_to_fit();
                memory.shrink_to(bytes.capacity());
                return Ok(version.map(|version| Counted {
                    bytes,
                    stat: Stat { version, ..known },
                    memory,
                }));
            }
            Err(e) if most == limit || attempt == MAX_GROWTHS || e.kind() != Kind::Damaged => {
                return Err(e);
            }
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

/// Implements [`Readable::read`] for the last `len` bytes by asking for the size first.
pub fn read_by_stat(
    store: &(impl Readable + ?Sized),
    key: &Key,
    len: u64,
    value: &mut Vec<u8>,
) -> Result<Option<Stat>> {
    let mut known = store
        .stat(key)?
        .filter(|stat| stat.kind == EntryKind::Value);
    for _ in 0..MAX_GROWTHS {
        let Some(stat) = known else { return Ok(None) };
        let end = ByteRange::Bounded(stat.size.saturating_sub(len)..stat.size);
        let read = store.read(key, &end, value)?;
        if read.as_ref().is_none_or(|read| read.size == stat.size) {
            return Ok(read);
        }
        known = read;
    }
    Err(Error::new(
        Kind::System(libc::EIO),
        "its size changes each time that it is read",
    )
    .context(key))
}

/// Returns [`Kind::Damaged`] if a value of `size` bytes exceeds `limit`.
pub fn check_size(size: u64, limit: u64) -> Result<()> {
    if size <= limit {
        Ok(())
    } else {
        Err(Error::damaged(format!(
            "{size} bytes, more than the {limit} it may have"
        )))
    }
}
