//! Notices programs that walk through a remote store, such as `find`, `du` and `ls -lR`: they list
//! one directory of a group after the other. What the next directories need is then requested
//! together.

use super::Tree;
use lru::LruCache;
use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use zarrfs_base::memory::lock;
use zarrfs_store::{Hint, Key, StoreExt};

/// Maximum number of groups that are noticed.
const GROUPS: NonZeroUsize = NonZeroUsize::new(64).unwrap();

/// Maximum pause between two directories of a walk.
const PAUSE: Duration = Duration::from_secs(5);

/// The time after which a request for the next directories is repeated: half of the time for which
/// answers are valid by default. Only those that became invalid are requested again.
const REPEATED: Duration = Duration::from_millis(500);

/// Numbers of directories that are requested together: twice as many each time.
const FEWEST: usize = 8;
const MOST: usize = 64;

/// The walks through groups.
pub(super) struct Walks(Mutex<LruCache<Key, Walk>>);

/// A walk through the directories of a group.
struct Walk {
    /// The directory that was listed last, and when.
    last: Key,
    listed: Instant,
    /// Number of directories that are requested next.
    count: usize,
    /// Number of requested directories that were not listed yet, and when they were requested.
    left: usize,
    requested: Instant,
}

impl Walks {
    pub fn new() -> Self {
        Walks(Mutex::new(LruCache::new(GROUPS)))
    }

    /// Records that the directory `key` is listed. Returns the number of directories to request: it
    /// and those after it.
    fn record(&self, key: &Key, now: Instant) -> usize {
        let mut walks = lock(&self.0);
        let start = Walk {
            last: key.clone(),
            listed: now,
            count: FEWEST,
            left: 0,
            requested: now,
        };
        let walk = walks.get_or_insert_mut(key.parent(), || start);
        if now - walk.listed > PAUSE {
            (walk.count, walk.left) = (FEWEST, 0);
        } else if walk.last != *key && (walk.left == 0 || now - walk.requested > REPEATED) {
            (walk.left, walk.requested) = (walk.count, now);
            walk.count = MOST.min(2 * walk.count);
            (walk.last, walk.listed) = (key.clone(), now);
            return walk.left;
        }
        if walk.last != *key {
            walk.left = walk.left.saturating_sub(1);
        }
        (walk.last, walk.listed) = (key.clone(), now);
        0
    }
}

impl Tree {
    /// Requests the content of the directory `key` and of those that a program will list next, if
    /// it walks through their group.
    pub fn look_ahead(&self, key: &Key) {
        let store = self.hierarchy.store();
        if key.is_root() || store.concurrency() == 1 || !store.lists_all() {
            return;
        }
        let count = self.walks.record(key, Instant::now());
        if count == 0 {
            return;
        }
        // an error belongs to the listing of the group
        let Ok(below) = self.hierarchy.prefixes(&key.parent()) else {
            return;
        };
        let end = below.keys.partition_point(|other| other >= key);
        store.hint(Hint::Nodes(
            below
                .keys
                .get(end.saturating_sub(count)..end)
                .unwrap_or_default(),
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_directory_of_a_group_begins_a_walk() {
        let walks = Walks::new();
        let start = Instant::now();
        let at = |name: &str, millis| {
            walks.record(
                &Key::root().join(name),
                start + Duration::from_millis(millis),
            )
        };
        assert_eq!(
            [at("g/a", 0), at("g/a", 1), at("h/a", 2), at("g", 3)],
            [0; 4]
        );
        assert_eq!([at("g/b", 10), at("g/b", 11)], [8, 0]);
        let listed: Vec<usize> = (0..100).map(|i| at(&format!("g/c{i}"), 20 + i)).collect();
        let requested: Vec<usize> = listed.iter().copied().filter(|count| *count > 0).collect();
        assert_eq!((requested, listed[8]), (vec![16, 32, 64], 16));
        // what was requested expires
        assert_eq!([at("g/d", 700), at("g/e", 710)], [64, 0]);
        // other listings, much later
        assert_eq!(
            [at("g/a", 9000), at("g/b", 9001), at("g/x", 20_000)],
            [0, 8, 0]
        );
    }
}
