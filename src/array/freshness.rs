//! Freshness: the rules by which bytes of an array are current. This module reads no chunk, and
//! knows neither slots nor pages.
//!
//! Invariant: a read returns bytes that are no older than the latest opening of a file of the
//! array, and no older than any write of this mount. Other programs may change the store at any
//! time; their changes show at the next opening.
//!
//! Two questions follow from it:
//!
//! * *Is this decoded chunk current?* It is if the store confirmed its version in the latest
//!   opening ([`Freshness::is_current`]), and if this mount stored nothing while the chunk was
//!   loaded ([`Freshness::has_stored_since`]).
//! * *May the kernel keep its pages?* It may if the store still holds every version that the mount
//!   served since the opening before ([`ServedVersions::begin_opening`]).

use super::Array;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, SystemTime};
use zarrfs_base::memory::lock;
use zarrfs_format::grid::ChunkId;
use zarrfs_outlive::SharedCount;
use zarrfs_store::Version;

/// Maximum number of chunks recorded per array. Checking all of them takes about 50 ms. If more
/// were served, the kernel drops the pages of the array.
const MAX_PER_ARRAY: usize = 1 << 16;

/// Maximum number of recorded arrays, including those that no longer exist.
const MAX_ARRAYS: usize = 1 << 14;

/// Maximum number of chunks recorded in total, which take about 10 MB.
const MAX_TOTAL: usize = 1 << 18;

/// Maximum number of chunks of a local array that an opening revalidates on the session thread, in
/// about a millisecond.
const MAX_QUICK_CHECKS: usize = 1000;

/// Maximum number of chunks revalidated while opening a remote array: as many as are requested
/// concurrently.
const MAX_REMOTE_CHECKS: usize = 64;

/// The next opening of any array in this process.
static NEXT_OPENING: AtomicU64 = AtomicU64::new(1);

/// The number of an opening. Later openings compare greater, also those of other arrays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Opening(u64);

/// The generations of one array.
///
/// ```
/// use zarrfs::array::Freshness;
///
/// let freshness = Freshness::default();
/// freshness.begin_opening();
/// // the store confirms the version of a chunk; the cache records in which opening it did
/// let confirmed = freshness.opening();
/// assert!(freshness.is_current(confirmed));
/// // another file of the array is opened: the chunk's version must be confirmed again
/// freshness.begin_opening();
/// assert!(!freshness.is_current(confirmed));
/// ```
#[derive(Default)]
pub struct Freshness {
    /// The latest opening of a file of the array.
    opening: AtomicU64,
    /// Number of writes to chunks.
    writes: AtomicU64,
    /// Number of chunks that this mount stored, erased or discarded.
    stores: AtomicU64,
    /// Time of the last write to a chunk, in nanoseconds since 1970.
    last_write: AtomicU64,
    /// Number of dirty chunks: written and not yet stored.
    dirty: AtomicUsize,
    /// The count that outlives the daemon.
    unstored: OnceLock<SharedCount>,
    /// Whether the metadata document may describe another array by now.
    superseded: AtomicBool,
    /// Whether the store holds another array in place of this one.
    replaced: AtomicBool,
    /// Protects the pointer alone. After a resize, the old and the new `Array` share the count of
    /// losses.
    losses: Mutex<Arc<AtomicU64>>,
    /// Serializes openings: the result of one must not be lost to the next. Protects no data.
    opening_lock: Mutex<()>,
}

impl Freshness {
    /// Returns the latest opening.
    pub fn opening(&self) -> Opening {
        Opening(self.opening.load(Ordering::Acquire))
    }

    /// Begins an opening: versions confirmed earlier have to be confirmed again.
    pub fn begin_opening(&self) {
        self.opening.fetch_max(
            NEXT_OPENING.fetch_add(1, Ordering::Relaxed),
            Ordering::AcqRel,
        );
    }

    /// Locks the openings of the array, from the beginning of one until its result is recorded.
    pub fn lock_opening(&self) -> MutexGuard<'_, ()> {
        lock(&self.opening_lock)
    }

    /// Returns whether bytes that the store confirmed in the opening `confirmed` are current.
    pub fn is_current(&self, confirmed: Opening) -> bool {
        confirmed >= self.opening()
    }

    /// Returns the number of writes. Bytes gathered from several chunks are valid for one number.
    pub fn writes(&self) -> u64 {
        self.writes.load(Ordering::Acquire)
    }

    /// Records a write to a chunk.
    pub fn record_write(&self) {
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        self.last_write
            .store(now.as_nanos() as u64, Ordering::Relaxed);
        self.writes.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the time of the last write; 1970 if there was none.
    pub fn last_write(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_nanos(self.last_write.load(Ordering::Relaxed))
    }

    /// Returns the number of stores.
    pub fn stores(&self) -> u64 {
        self.stores.load(Ordering::Acquire)
    }

    /// Records that a chunk was stored, erased or discarded.
    pub fn record_store(&self) {
        self.stores.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns whether a chunk was stored since the number of stores was `stores`. A load that
    /// began then may have read the chunk from before.
    pub fn has_stored_since(&self, stores: u64) -> bool {
        self.stores() != stores
    }

    /// Returns whether the array has dirty chunks.
    pub fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Acquire) > 0
    }

    /// Records that a chunk became dirty.
    pub fn add_dirty(&self) {
        self.dirty.fetch_add(1, Ordering::AcqRel);
        self.add_unstored();
    }

    /// Records that a chunk is no longer dirty.
    pub fn remove_dirty(&self) {
        self.dirty.fetch_sub(1, Ordering::AcqRel);
        self.remove_unstored();
    }

    /// Also counts, in `count`, the dirty chunks and the times of [`Freshness::add_unstored`]. Has
    /// no effect while there are any, or if there is a count already.
    pub fn count_unstored(&self, count: impl FnOnce() -> Option<SharedCount>) {
        if self.unstored.get().is_none()
            && let Some(count) = count()
        {
            let _ = self.unstored.set(count);
        }
    }

    /// Returns the count that outlives the daemon, if there is one.
    pub fn unstored_count(&self) -> Option<&SharedCount> {
        self.unstored.get()
    }

    /// Records that the array begins to hold bytes that are not stored, beside dirty chunks.
    pub fn add_unstored(&self) {
        if let Some(count) = self.unstored.get() {
            count.add();
        }
    }

    /// Records that the array no longer holds these bytes.
    pub fn remove_unstored(&self) {
        if let Some(count) = self.unstored.get() {
            count.subtract();
        }
    }

    /// Returns whether the array has to be looked up again before it is used.
    pub fn is_superseded(&self) -> bool {
        self.superseded.load(Ordering::Acquire)
    }

    /// Makes the holders of the array look it up again.
    pub fn supersede(&self) {
        self.superseded.store(true, Ordering::Release);
    }

    /// Returns whether the store holds another array in place of this one. No chunk of it may be
    /// stored any more.
    pub fn is_replaced(&self) -> bool {
        self.replaced.load(Ordering::Acquire)
    }

    /// Records that the store holds another array in place of this one.
    pub fn replace(&self) {
        self.replaced.store(true, Ordering::Release);
        self.supersede();
    }

    /// Returns how many times written bytes were lost because the array was replaced or became
    /// smaller. A file that was written before the count increased reports the loss at each flush.
    pub fn losses(&self) -> u64 {
        lock(&self.losses).load(Ordering::Acquire)
    }

    /// Records that written bytes were lost.
    pub fn record_loss(&self) {
        lock(&self.losses).fetch_add(1, Ordering::AcqRel);
    }

    /// Shares the count of losses with `old`, whose written bytes this array takes over.
    pub fn share_losses(&self, old: &Freshness) {
        let shared = lock(&old.losses).clone();
        *lock(&self.losses) = shared;
    }
}

/// A tag of 8 bytes that stands for the version of a chunk, or for its absence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionTag(u64);

impl VersionTag {
    /// Two versions were served: the kernel may have pages of both.
    pub const MIXED: VersionTag = VersionTag(u64::MAX);
    /// The store has no such chunk.
    pub const UNINITIALIZED: VersionTag = VersionTag(u64::MAX - 1);
    /// The chunk is dirty, and the store has none.
    pub const UNSTORED: VersionTag = VersionTag(u64::MAX - 2);

    /// Returns the tag of a stored version; `None` stands for an uninitialized chunk.
    pub fn of(version: Option<&Version>) -> Self {
        version.map_or(VersionTag::UNINITIALIZED, VersionTag::hash)
    }

    /// Returns the tag of a file that shows `array` with its present metadata, or the given version
    /// of one of its chunks.
    pub fn of_array(array: &Array, version: Option<&Version>) -> Self {
        VersionTag::hash(&(array.id(), version))
    }

    fn hash(what: &impl Hash) -> Self {
        let mut hasher = DefaultHasher::new();
        what.hash(&mut hasher);
        // the constants above have the highest bit set
        VersionTag(hasher.finish() & !(1 << 63))
    }
}

/// Returns whether the store still holds these versions of these chunks.
pub fn are_stored(array: &Array, versions: &[(ChunkId, VersionTag)]) -> bool {
    let mut expected = versions.iter().map(|(_, tag)| *tag);
    let mut same = true;
    array.stat_chunks(&mut versions.iter().map(|(chunk, _)| *chunk), &mut |stat| {
        same = stat.is_ok_and(|stat| {
            Some(VersionTag::of(stat.as_ref().map(|stat| &stat.version))) == expected.next()
        });
        same
    });
    same && expected.next().is_none()
}

/// The version of each chunk that was served since its array was last opened. The kernel may hold
/// pages of it.
///
/// All arrays share one table, since one bound holds for all of them.
#[derive(Default)]
pub struct ServedVersions {
    /// Protects the table.
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    /// The served versions by the array's number. A missing array may have served chunks that are
    /// not recorded.
    arrays: HashMap<u64, HashMap<ChunkId, VersionTag>>,
    /// Number of chunks in all of `arrays`.
    total: usize,
}

impl ServedVersions {
    /// Begins an opening of `array`, whose openings the caller has locked. Returns whether the
    /// kernel may keep its pages: the store still holds every version that was served since the
    /// opening before. For a remote array with many such versions, returns false without asking.
    pub fn begin_opening(&self, array: &Array, _lock: &MutexGuard<()>) -> bool {
        // in this order: a reader that still finds the former opening has recorded the served
        // version before the list is taken
        array.freshness().begin_opening();
        let Some(served) = self.restart(array.id()) else {
            return false;
        };
        if array.is_remote() && served.len() > MAX_REMOTE_CHECKS {
            return false;
        }
        let mut served: Vec<_> = served.into_iter().collect();
        served.sort_unstable_by_key(|(chunk, _)| *chunk);
        let may_keep = are_stored(array, &served);
        if may_keep {
            served
                .into_iter()
                .for_each(|(chunk, tag)| self.record(array.id(), chunk, tag));
        }
        may_keep
    }

    /// Returns whether [`ServedVersions::begin_opening`] asks the store for so many versions that
    /// it may block.
    pub fn may_block(&self, array: &Array) -> bool {
        let count = lock(&self.table)
            .arrays
            .get(&array.id())
            .map_or(0, HashMap::len);
        count
            > if array.is_remote() {
                0
            } else {
                MAX_QUICK_CHECKS
            }
    }

    /// Begins a new list for an array and returns the previous one; `None` if that is incomplete.
    fn restart(&self, array: u64) -> Option<HashMap<ChunkId, VersionTag>> {
        let mut table = lock(&self.table);
        if table.arrays.len() >= MAX_ARRAYS {
            *table = Table::default();
        }
        let before = table.arrays.insert(array, HashMap::new());
        table.total -= before.as_ref().map_or(0, HashMap::len);
        before
    }

    /// Records that a version of a chunk was served.
    pub fn record(&self, array: u64, chunk: ChunkId, tag: VersionTag) {
        let mut table = lock(&self.table);
        let Some(served) = table.arrays.get_mut(&array) else {
            return;
        };
        let before = served.insert(chunk, tag);
        let count = served.len();
        match before {
            Some(before) if before != tag => drop(served.insert(chunk, VersionTag::MIXED)),
            Some(_) => {}
            None => table.total += 1,
        }
        if count > MAX_PER_ARRAY {
            table.total -= count;
            table.arrays.remove(&array);
        } else if table.total > MAX_TOTAL {
            *table = Table::default();
        }
    }

    /// Records that this mount stored a chunk as `after`. A reader that was served the version
    /// `before` and the writes has the bytes of `after`. `None` for `before` means that the whole
    /// chunk was written.
    pub fn record_store(
        &self,
        array: u64,
        chunk: ChunkId,
        before: Option<VersionTag>,
        after: VersionTag,
    ) {
        {
            let mut table = lock(&self.table);
            if let Some(known) = table
                .arrays
                .get_mut(&array)
                .and_then(|served| served.get_mut(&chunk))
            {
                *known = if before.is_none_or(|before| before == *known) {
                    after
                } else {
                    VersionTag::MIXED
                };
                return;
            }
        }
        self.record(array, chunk, after);
    }
}

#[cfg(test)]
mod tests;
