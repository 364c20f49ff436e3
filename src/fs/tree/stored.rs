//! The stored size of an array for `du`, and the time of its newest chunk. Both are estimated from
//! a bounded number of names and objects, because `stat` must not take longer for a larger array.

use crate::array::{Array, ArrayEntry};
use lru::LruCache;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};
use zarrfs_base::memory::lock;

/// Maximum number of objects whose size is looked up.
const OBJECTS: usize = 1024;

/// Maximum number of names listed, chunks and others alike.
const NAMES: usize = 16_384;

/// Maximum number of names listed of a remote store, which lists a thousand per request. A listing
/// of the directory repeats these requests.
const NAMES_REMOTE: usize = 2_000;

/// Time for which an estimate is reused: one program often needs it several times.
const KEPT: Duration = Duration::from_secs(1);

/// The stored size of an array.
#[derive(Clone, Copy, Debug)]
pub struct StoredSize {
    /// Bytes of the objects that hold the chunks, and of pending chunks. The sum is exact up to
    /// [`OBJECTS`] objects. Beyond that it is the mean size of an object times the number of stored
    /// objects or, above [`NAMES`] names ([`NAMES_REMOTE`] of a remote store), times the number of
    /// objects that the array can have.
    pub bytes: u64,
    /// The newest modification time of the objects looked up.
    pub newest: SystemTime,
}

/// Recent estimates, by array id.
pub struct StoredSizes {
    /// Protects the map alone.
    kept: Mutex<LruCache<u64, (Instant, StoredSize)>>,
}

impl StoredSizes {
    /// Creates an empty set of estimates.
    pub fn new() -> Self {
        const ARRAYS: NonZeroUsize = NonZeroUsize::new(1024).unwrap();
        StoredSizes {
            kept: Mutex::new(LruCache::new(ARRAYS)),
        }
    }

    fn recent(&self, array: &Array) -> Option<StoredSize> {
        lock(&self.kept)
            .get(&array.id())
            .filter(|(at, _)| at.elapsed() < KEPT)
            .map(|(_, stored)| *stored)
    }

    /// Returns whether there is a recent estimate for `array`.
    pub fn knows(&self, array: &Array) -> bool {
        self.recent(array).is_some()
    }

    /// Returns the stored size of `array`. It is never 0 if the array reads as other bytes than
    /// zeros, because `tar` and `cp` treat a file without blocks as a hole.
    pub fn of(&self, array: &Arc<Array>) -> StoredSize {
        if let Some(stored) = self.recent(array) {
            return stored;
        }
        let mut stored = sample(array);
        if stored.bytes == 0 && array.size() > 0 && !array.fill_is_zero() {
            stored.bytes = 1;
        }
        lock(&self.kept).put(array.id(), (Instant::now(), stored));
        stored
    }
}

/// Estimates the stored size. Objects that cannot be listed or looked up do not count; reading them
/// reports the error.
fn sample(array: &Arc<Array>) -> StoredSize {
    let mut objects = 0u64;
    let mut asked = 0u64;
    let mut names = 0;
    let mut stored = StoredSize {
        bytes: 0,
        newest: SystemTime::UNIX_EPOCH,
    };
    if !array.lists_all() {
        // the size is unknown; a file without blocks would be copied as zeros
        return StoredSize {
            bytes: array.size(),
            ..stored
        };
    }
    // take this before the store is asked: a chunk that is stored meanwhile counts twice rather
    // than never
    let pending = array.pending_size();
    array.prefetch_levels();
    let most = if array.is_remote() {
        NAMES_REMOTE
    } else {
        NAMES
    };
    let entries = array
        .stored_objects()
        .into_iter()
        .flatten()
        .take(most)
        .inspect(|_| names += 1);
    let mut found = entries.filter_map(|entry| match entry {
        Ok(ArrayEntry::Chunk(chunk)) => Some(chunk),
        _ => None,
    });
    array.stat_objects(
        &mut found.by_ref().take(OBJECTS).inspect(|_| objects += 1),
        &mut |stat| {
            if let Ok(Some(stat)) = stat {
                asked += 1;
                stored.bytes += stat.size;
                stored.newest = stored.newest.max(stat.modified);
            }
            true
        },
    );
    objects += found.count() as u64;
    if names == most {
        objects = array.object_grid().chunk_count();
    }
    if objects > asked && asked > 0 {
        stored.bytes = (stored.bytes as f64 / asked as f64 * objects as f64) as u64;
    }
    stored.bytes += pending;
    stored
}
