//! Locks of subtrees of keys within this process: an operation on one part of a store never waits
//! for an operation on another part.

use super::Key;
use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use zarrfs_base::memory::lock;

/// Shared and exclusive locks of keys. An exclusive lock excludes all others at, above and below
/// its keys. Exclusive locks are granted in the order of their requests; a waiting request keeps
/// out new shared locks.
#[derive(Default)]
pub struct SubtreeLocks {
    /// Protects the lists of holders and waiters.
    holders: Mutex<Holders>,
    released: Condvar,
}

#[derive(Default)]
struct Holders {
    /// Number of shared locks of each key.
    shared: HashMap<Key, usize>,
    exclusive: Vec<Key>,
    /// Keys for which exclusive locks wait, each with the number of its request.
    wanted: Vec<(u64, Key)>,
    /// Number of requests for exclusive locks so far.
    writers: u64,
}

/// A shared lock, held until it is dropped.
pub struct SharedLock<'a> {
    locks: &'a SubtreeLocks,
    key: Key,
}

/// An exclusive lock, held until it is dropped.
pub struct ExclusiveLock<'a> {
    locks: &'a SubtreeLocks,
    keys: Vec<Key>,
}

impl SubtreeLocks {
    /// Takes a shared lock of `key`, and waits while a related exclusive lock is held or requested.
    /// A thread must not take it twice: an exclusive request between the two would block both.
    pub fn shared(&self, key: &Key) -> SharedLock<'_> {
        let mut holders = lock(&self.holders);
        while holders.blocks_shared(key) {
            holders = self
                .released
                .wait(holders)
                .unwrap_or_else(PoisonError::into_inner);
        }
        self.hold_shared(holders, key)
    }

    /// Takes a shared lock of `key` if that does not require waiting.
    pub fn try_shared(&self, key: &Key) -> Option<SharedLock<'_>> {
        let holders = lock(&self.holders);
        (!holders.blocks_shared(key)).then(|| self.hold_shared(holders, key))
    }

    fn hold_shared(&self, mut holders: MutexGuard<'_, Holders>, key: &Key) -> SharedLock<'_> {
        *holders.shared.entry(key.clone()).or_default() += 1;
        SharedLock {
            locks: self,
            key: key.clone(),
        }
    }

    /// Takes an exclusive lock of `keys`, and waits until no lock of a related key is held.
    pub fn exclusive(&self, keys: &[&Key]) -> ExclusiveLock<'_> {
        let keys: Vec<Key> = keys.iter().map(|&key| key.clone()).collect();
        let mut holders = lock(&self.holders);
        holders.writers += 1;
        let number = holders.writers;
        holders
            .wanted
            .extend(keys.iter().map(|key| (number, key.clone())));
        while holders.blocks_exclusive(number, &keys) {
            holders = self
                .released
                .wait(holders)
                .unwrap_or_else(PoisonError::into_inner);
        }
        holders.wanted.retain(|(writer, _)| *writer != number);
        holders.exclusive.extend(keys.iter().cloned());
        ExclusiveLock { locks: self, keys }
    }
}

impl Holders {
    /// Returns whether a shared lock of `key` has to wait.
    fn blocks_shared(&self, key: &Key) -> bool {
        let wanted = self.wanted.iter().map(|(_, wanted)| wanted);
        self.exclusive
            .iter()
            .chain(wanted)
            .any(|other| is_related(other, key))
    }

    /// Returns whether the exclusive request with this number has to wait.
    fn blocks_exclusive(&self, number: u64, keys: &[Key]) -> bool {
        let earlier = self
            .wanted
            .iter()
            .filter(|(writer, _)| *writer < number)
            .map(|(_, key)| key);
        self.exclusive
            .iter()
            .chain(self.shared.keys())
            .chain(earlier)
            .any(|other| is_one_related(other, keys))
    }
}

impl Drop for SharedLock<'_> {
    fn drop(&mut self) {
        let mut holders = lock(&self.locks.holders);
        if let Some(count) = holders.shared.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                holders.shared.remove(&self.key);
                self.locks.released.notify_all();
            }
        }
    }
}

impl Drop for ExclusiveLock<'_> {
    fn drop(&mut self) {
        // no other exclusive lock contains a related key
        lock(&self.locks.holders)
            .exclusive
            .retain(|key| !self.keys.contains(key));
        self.locks.released.notify_all();
    }
}

fn is_related(a: &Key, b: &Key) -> bool {
    a.relative_to(b).is_some() || b.relative_to(a).is_some()
}

fn is_one_related(a: &Key, keys: &[Key]) -> bool {
    keys.iter().any(|key| is_related(a, key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    const SOON: Duration = Duration::from_secs(20);
    const NOT_YET: Duration = Duration::from_millis(30);

    fn key(text: &str) -> Key {
        Key::normalize(text).unwrap()
    }

    /// Takes a lock in another thread, and calls `then` with a function that returns whether it has
    /// been taken.
    fn taken<R>(
        locks: &SubtreeLocks,
        take: impl FnOnce(&SubtreeLocks) + Send,
        then: impl FnOnce(&dyn Fn() -> bool) -> R,
    ) -> R {
        let (done, wait) = channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                take(locks);
                let _ = done.send(());
            });
            then(&|| wait.recv_timeout(NOT_YET).is_ok() || wait.recv_timeout(NOT_YET).is_ok())
        })
    }

    #[test]
    fn exclusive_locks_exclude_related_keys_only() {
        let locks = SubtreeLocks::default();
        let held = locks.exclusive(&[&key("g/a"), &key("g/b")]);
        // neither blocks, or the test would not end
        drop(locks.shared(&key("g/c")));
        drop(locks.exclusive(&[&key("g/aa"), &key("h")]));
        let mut held = Some(held);
        for other in ["g/a", "g/b/0", "g", ""] {
            let other = key(other);
            taken(
                &locks,
                |locks| drop(locks.shared(&other)),
                |is_taken| {
                    assert!(!is_taken(), "{other}");
                    held = None;
                },
            );
            held = Some(locks.exclusive(&[&key("g/a"), &key("g/b")]));
            taken(
                &locks,
                |locks| drop(locks.exclusive(&[&other])),
                |is_taken| {
                    assert!(!is_taken(), "{other}");
                    held = None;
                },
            );
            held = Some(locks.exclusive(&[&key("g/a"), &key("g/b")]));
        }
        drop(held);
    }

    #[test]
    fn a_waiting_exclusive_lock_keeps_out_shared_ones() {
        let locks = SubtreeLocks::default();
        let first = locks.shared(&key("a"));
        let second = locks.shared(&key("a"));
        drop(first);
        let (wrote, written) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _alone = locks.exclusive(&[&key("a")]);
                wrote.send(1).unwrap();
            });
            while lock(&locks.holders).wanted.is_empty() {
                std::thread::yield_now();
            }
            scope.spawn(|| {
                let _late = locks.shared(&key("a"));
                wrote.send(2).unwrap();
            });
            assert!(written.recv_timeout(NOT_YET).is_err());
            drop(second);
            let order = [(); 2].map(|()| written.recv_timeout(SOON).unwrap());
            assert_eq!(order, [1, 2]);
        });
        let holders = lock(&locks.holders);
        assert!(
            holders.shared.is_empty() && holders.exclusive.is_empty() && holders.wanted.is_empty()
        );
    }
}
