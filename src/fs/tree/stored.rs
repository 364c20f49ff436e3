//! What the store holds of an array: bytes for `du`, and the time of the newest chunk. It is told from a bounded number
//! of names and chunks, since `stat` must not take longer for a larger array.

use crate::array::{Array, ArrayEntry};
use crate::store::Store;
use crate::util::memory::lock;
use lru::LruCache;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

/// Chunks whose size is asked for.
const CHUNKS: usize = 1024;

/// Names looked at, chunks and strays alike.
const NAMES: usize = 16_384;

/// The same of a far store, which gives a thousand at a time: who lists the directory asks for all of them again.
const NAMES_FAR: usize = 2_000;

/// How long an answer is taken as it was: one program often asks several times.
const KEPT: Duration = Duration::from_secs(1);

/// What the store holds of an array.
#[derive(Clone, Copy, Debug)]
pub struct Stored {
    /// Bytes: exact up to [`CHUNKS`] chunks; beyond that their mean times the number of chunks, or, where there are
    /// more than [`NAMES`] names, [`NAMES_FAR`] of a far store, times the grid's.
    pub bytes: u64,
    /// The newest modification time of the chunks asked for.
    pub newest: SystemTime,
}

/// Answers given a moment ago, by array id.
pub struct StoredSizes {
    /// Protects the map alone.
    kept: Mutex<LruCache<u64, (Instant, Stored)>>,
}

impl StoredSizes {
    /// None yet.
    pub fn new() -> Self {
        const ARRAYS: NonZeroUsize = NonZeroUsize::new(1024).unwrap();
        StoredSizes { kept: Mutex::new(LruCache::new(ARRAYS)) }
    }

    fn recent(&self, array: &Array) -> Option<Stored> {
        lock(&self.kept).get(&array.id()).filter(|(at, _)| at.elapsed() < KEPT).map(|(_, stored)| *stored)
    }

    /// True if the answer for `array` is at hand.
    pub fn knows(&self, array: &Array) -> bool {
        self.recent(array).is_some()
    }

    /// What the store holds of `array`. Never 0 bytes where a reader would get other bytes than zeros: to `tar` and
    /// `cp` a file without blocks is all hole.
    pub fn of(&self, store: &dyn Store, array: &Arc<Array>) -> Stored {
        if let Some(stored) = self.recent(array) {
            return stored;
        }
        let mut stored = sample(store, array);
        if stored.bytes == 0 && array.size() > 0 && !array.fill_is_zero() {
            stored.bytes = 1;
        }
        lock(&self.kept).put(array.id(), (Instant::now(), stored));
        stored
    }
}

/// What can't be listed or looked at counts nothing here; whoever reads it is told.
fn sample(store: &dyn Store, array: &Arc<Array>) -> Stored {
    let (mut chunks, mut asked, mut names) = (0u64, 0u64, 0);
    let mut stored = Stored { bytes: 0, newest: SystemTime::UNIX_EPOCH };
    if !array.lists_all() {
        // nobody knows: what is called a hole would be copied as zeros
        return Stored { bytes: array.size(), ..stored };
    }
    let most = if array.is_remote() { NAMES_FAR } else { NAMES };
    let entries = array.entries().into_iter().flatten().take(most).inspect(|_| names += 1);
    let mut found = entries.filter_map(|entry| match entry {
        Ok(ArrayEntry::Chunk(chunk)) => Some(chunk),
        _ => None,
    });
    let mut keys = found.by_ref().take(CHUNKS).inspect(|_| chunks += 1).map(|chunk| array.chunk_key(chunk));
    store.stat_many(&mut keys, &mut |stat| {
        if let Ok(Some(stat)) = stat {
            asked += 1;
            stored.bytes += stat.size;
            stored.newest = stored.newest.max(stat.modified);
        }
        true
    });
    chunks += found.count() as u64;
    if names == most {
        chunks = array.grid().chunk_count();
    }
    if chunks > asked && asked > 0 {
        stored.bytes = (stored.bytes as f64 / asked as f64 * chunks as f64) as u64;
    }
    stored
}
