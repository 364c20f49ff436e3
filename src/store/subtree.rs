//! Locks of keys with all below them, within this process: an operation on one part of a store never waits for an
//! operation on another part. This module knows nothing of what stands at the keys.

use super::Key;
use crate::util::memory::lock;
use std::collections::HashMap;
use std::sync::{Condvar, Mutex, PoisonError};

/// Readers and writers of the keys of a store. A writer excludes all others at, above and below its keys. Writers take
/// turns in the order in which they came, and keep new readers out while they wait.
#[derive(Default)]
pub struct SubtreeLocks {
    /// Protects the holders.
    holders: Mutex<Holders>,
    released: Condvar,
}

#[derive(Default)]
struct Holders {
    /// Number of readers by key.
    shared: HashMap<Key, usize>,
    exclusive: Vec<Key>,
    /// Keys that writers wait for, each with the number of its writer.
    wanted: Vec<(u64, Key)>,
    /// Number of writers so far.
    writers: u64,
}

/// A key that is read, until this is dropped.
pub struct SharedLock<'a> {
    locks: &'a SubtreeLocks,
    key: Key,
}

/// Keys that are written, until this is dropped.
pub struct ExclusiveLock<'a> {
    locks: &'a SubtreeLocks,
    keys: Vec<Key>,
}

impl SubtreeLocks {
    /// Waits until no writer has or wants `key`, and takes it as a reader. A thread must not take it twice: a writer may
    /// come in between.
    pub fn shared(&self, key: &Key) -> SharedLock<'_> {
        let mut holders = lock(&self.holders);
        while holders.keep_out(key) {
            holders = self.released.wait(holders).unwrap_or_else(PoisonError::into_inner);
        }
        *holders.shared.entry(key.clone()).or_default() += 1;
        SharedLock { locks: self, key: key.clone() }
    }

    /// Takes `key` as a reader; `None` if that takes a wait.
    pub fn try_shared(&self, key: &Key) -> Option<SharedLock<'_>> {
        let mut holders = lock(&self.holders);
        if holders.keep_out(key) {
            return None;
        }
        *holders.shared.entry(key.clone()).or_default() += 1;
        Some(SharedLock { locks: self, key: key.clone() })
    }

    /// Waits until no one has any of `keys`, or a key above or below, and takes all of them as a writer.
    pub fn exclusive(&self, keys: &[&Key]) -> ExclusiveLock<'_> {
        let keys: Vec<Key> = keys.iter().map(|&key| key.clone()).collect();
        let mut holders = lock(&self.holders);
        holders.writers += 1;
        let number = holders.writers;
        holders.wanted.extend(keys.iter().map(|key| (number, key.clone())));
        while holders.delay(number, &keys) {
            holders = self.released.wait(holders).unwrap_or_else(PoisonError::into_inner);
        }
        holders.wanted.retain(|(writer, _)| *writer != number);
        holders.exclusive.extend(keys.iter().cloned());
        ExclusiveLock { locks: self, keys }
    }
}

impl Holders {
    /// Returns whether a reader of `key` has to wait.
    fn keep_out(&self, key: &Key) -> bool {
        let wanted = self.wanted.iter().map(|(_, wanted)| wanted);
        self.exclusive.iter().chain(wanted).any(|other| is_related(other, key))
    }

    /// Returns whether the writer of this number has to wait for `keys`.
    fn delay(&self, number: u64, keys: &[Key]) -> bool {
        let earlier = self.wanted.iter().filter(|(writer, _)| *writer < number).map(|(_, key)| key);
        self.exclusive.iter().chain(self.shared.keys()).chain(earlier).any(|other| is_one_related(other, keys))
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
        // no other writer has a key that is related to these
        lock(&self.locks.holders).exclusive.retain(|key| !self.keys.contains(key));
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

    const AT_ONCE: Duration = Duration::from_secs(20);
    const NOT_YET: Duration = Duration::from_millis(30);

    fn key(text: &str) -> Key {
        Key::normalize(text).unwrap()
    }

    /// Takes a lock in a thread of its own; says when it has it.
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
    fn writers_exclude_others_above_and_below_alone() {
        let locks = SubtreeLocks::default();
        let held = locks.exclusive(&[&key("g/a"), &key("g/b")]);
        // neither waits: the test would not end
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
    fn readers_share_a_key_until_a_writer_wants_it() {
        let locks = SubtreeLocks::default();
        let (first, second) = (locks.shared(&key("a")), locks.shared(&key("a")));
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
            let order = [(); 2].map(|()| written.recv_timeout(AT_ONCE).unwrap());
            assert_eq!(order, [1, 2]);
        });
        let holders = lock(&locks.holders);
        assert!(holders.shared.is_empty() && holders.exclusive.is_empty() && holders.wanted.is_empty());
    }
}
