//! A store whose calls fail on demand, before or after they took effect, or block like those to a
//! disk or a server that hangs.

use crate::{
    ByteRange, Capabilities, FileAttribute, Key, KeyLock, Listing, LocalFiles, NameChange,
    PagedListing, Permissions, Readable, Replaces, Space, Stat, Store, StoreExt, ValuePiece,
    Version, delegate_store,
};
use std::collections::HashMap;
use std::fs::File;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;
use zarrfs_base::error::Result;
use zarrfs_base::memory::lock;

/// A kind of call that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Reading a value, or a part of one.
    Get,
    /// `stat` of a key.
    Stat,
    /// Listing a prefix.
    List,
    /// Putting a value.
    Put,
    /// Removing a value.
    Delete,
    /// Making earlier changes durable.
    Sync,
    /// Making or removing a prefix.
    Prefix,
    /// Renaming.
    Rename,
    /// Opening a value as a file, for reading or writing.
    Open,
    /// Locking a key.
    Lock,
}

impl Operation {
    /// All kinds of calls.
    pub const ALL: [Operation; 10] = [
        Operation::Get,
        Operation::Stat,
        Operation::List,
        Operation::Put,
        Operation::Delete,
        Operation::Sync,
        Operation::Prefix,
        Operation::Rename,
        Operation::Open,
        Operation::Lock,
    ];
}

/// A failure that a test has planned.
#[derive(Clone, Copy, Debug)]
pub struct PlannedFault {
    /// The kind of call that fails.
    pub operation: Operation,
    /// Number of calls that still succeed.
    pub after: u64,
    /// Number of calls that fail then.
    pub times: u64,
    /// The error number they return.
    pub errno: i32,
    /// Whether the call takes effect although it returns an error.
    pub applied: bool,
}

impl PlannedFault {
    /// Plans that the next call fails with `errno` and has no effect.
    pub fn next(operation: Operation, errno: i32) -> Self {
        PlannedFault {
            operation,
            after: 0,
            times: 1,
            errno,
            applied: false,
        }
    }
}

/// A store that fails on demand.
pub struct FaultyStore {
    inner: Arc<dyn Store>,
    is_remote: bool,
    /// Protects the planned faults and the counts.
    plan: Mutex<Plan>,
    /// Signaled when blocked calls may continue.
    resumed: Condvar,
}

#[derive(Default)]
struct Plan {
    faults: Vec<PlannedFault>,
    calls: HashMap<Operation, u64>,
    stop: Option<Stop>,
    /// Number of calls that are blocked now.
    stopped: usize,
}

/// A block of calls at and below a prefix.
struct Stop {
    prefix: Key,
    /// Number of calls that still return.
    after: u64,
}

impl FaultyStore {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn Store>) -> Self {
        FaultyStore {
            inner,
            is_remote: false,
            plan: Mutex::default(),
            resumed: Condvar::new(),
        }
    }

    /// Wraps `inner` as a remote store.
    pub fn remote(inner: Arc<dyn Store>) -> Self {
        FaultyStore {
            is_remote: true,
            ..FaultyStore::new(inner)
        }
    }

    /// Plans a failure. If several are due, the one that was planned first happens.
    pub fn plan(&self, fault: PlannedFault) {
        lock(&self.plan).faults.push(fault);
    }

    /// Drops all planned failures.
    pub fn heal(&self) {
        lock(&self.plan).faults.clear();
    }

    /// Returns the number of calls so far, including failed ones.
    pub fn calls(&self, operation: Operation) -> u64 {
        lock(&self.plan).calls.get(&operation).copied().unwrap_or(0)
    }

    /// Blocks all calls at and below `prefix`, and all syncs, after `after` more calls, until
    /// [`FaultyStore::resume`].
    pub fn stop(&self, prefix: Key, after: u64) {
        lock(&self.plan).stop = Some(Stop { prefix, after });
    }

    /// Lets blocked calls continue, and blocks no more.
    pub fn resume(&self) {
        lock(&self.plan).stop = None;
        self.resumed.notify_all();
    }

    /// Returns the number of calls that are blocked now.
    pub fn stopped(&self) -> usize {
        lock(&self.plan).stopped
    }

    /// Waits while calls at `key` are blocked; without a key, while calls to the whole store are.
    fn wait(&self, key: Option<&Key>) {
        let mut plan = lock(&self.plan);
        let Some(stop) = &mut plan.stop else { return };
        if key.is_some_and(|key| key.relative_to(&stop.prefix).is_none()) {
            return;
        }
        if stop.after > 0 {
            stop.after -= 1;
            return;
        }
        plan.stopped += 1;
        while plan.stop.is_some() {
            plan = self
                .resumed
                .wait(plan)
                .unwrap_or_else(PoisonError::into_inner);
        }
        plan.stopped -= 1;
    }

    fn due(&self, operation: Operation) -> Option<PlannedFault> {
        let mut plan = lock(&self.plan);
        *plan.calls.entry(operation).or_default() += 1;
        let mut due = None;
        for fault in plan.faults.iter_mut().filter(|f| f.operation == operation) {
            match fault {
                PlannedFault { after: 1.., .. } => fault.after -= 1,
                PlannedFault { times: 1.., .. } if due.is_none() => {
                    fault.times -= 1;
                    due = Some(*fault);
                }
                _ => {}
            }
        }
        plan.faults.retain(|f| f.times > 0);
        due
    }

    fn call<T>(
        &self,
        operation: Operation,
        key: Option<&Key>,
        call: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        self.wait(key);
        let Some(fault) = self.due(operation) else {
            return call();
        };
        if fault.applied {
            call()?;
        }
        Err(std::io::Error::from_raw_os_error(fault.errno).into())
    }
}

impl PagedListing for FaultyStore {}

impl Readable for FaultyStore {
    delegate_store!(inner: location hint);

    fn read(&self, key: &Key, range: &ByteRange, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        self.call(Operation::Get, Some(key), || {
            self.inner.read(key, range, value)
        })
    }

    fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        self.call(Operation::Stat, Some(key), || self.inner.stat(key))
    }

    fn list(&self, prefix: &Key) -> Result<Listing> {
        self.call(Operation::List, Some(prefix), || self.inner.list(prefix))
    }

    fn capabilities(&self) -> Capabilities<'_> {
        let inner = self.inner.capabilities();
        Capabilities {
            concurrency: if self.is_remote {
                64
            } else {
                inner.concurrency
            },
            lists_all: inner.lists_all,
            local: Some(self),
            ..Capabilities::default()
        }
    }
}

impl Store for FaultyStore {
    delegate_store!(inner: check_writable);

    fn put_pieces(
        &self,
        key: &Key,
        pieces: &[ValuePiece],
        replaces: Replaces,
    ) -> Result<Option<Version>> {
        self.call(Operation::Put, Some(key), || {
            self.inner.put_pieces(key, pieces, replaces)
        })
    }

    fn change(&self, change: NameChange) -> Result<bool> {
        let (operation, key) = match change {
            NameChange::Delete(key) => (Operation::Delete, key),
            NameChange::MakePrefix(key) | NameChange::RemovePrefix(key) => (Operation::Prefix, key),
            NameChange::Rename(from, _) => (Operation::Rename, from),
        };
        self.call(operation, Some(key), || self.inner.change(change))
    }

    fn sync(&self) -> Result<()> {
        self.call(Operation::Sync, None, || self.inner.sync())
    }
}

impl LocalFiles for FaultyStore {
    fn open_file(&self, key: &Key) -> Result<Option<(File, Stat)>> {
        self.call(Operation::Open, Some(key), || self.inner.file(key))
    }

    fn open_writable(&self, key: &Key, create: bool, exclusive: bool) -> Result<File> {
        self.call(Operation::Open, Some(key), || {
            self.inner.writable_file(key, create, exclusive)
        })
    }

    fn set_attribute(&self, key: &Key, attribute: FileAttribute) -> Result<Option<Permissions>> {
        self.inner.set_file_attribute(key, attribute)
    }

    fn lock_key(&self, key: &Key, since: Instant) -> Result<KeyLock> {
        self.call(Operation::Lock, Some(key), || self.inner.lock(key, since))
    }

    fn statvfs(&self) -> Result<Option<Space>> {
        self.inner.space()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryStore;

    #[test]
    fn faults_happen_as_planned() {
        let store = FaultyStore::new(Arc::new(MemoryStore::default()));
        let key = Key::root().join("k");
        let put = |value: &[u8]| store.put(&key, value).map_err(|e| e.errno());
        let value = || {
            let mut value = Vec::new();
            store.get(&key, 100, &mut value).unwrap().map(|_| value)
        };
        store.plan(PlannedFault {
            after: 1,
            times: 2,
            ..PlannedFault::next(Operation::Put, libc::ENOSPC)
        });
        store.plan(PlannedFault {
            after: 3,
            applied: true,
            ..PlannedFault::next(Operation::Put, libc::EIO)
        });
        store.plan(PlannedFault::next(Operation::Sync, libc::EIO));
        put(b"1").unwrap();
        assert_eq!(
            (
                put(b"2").unwrap_err(),
                put(b"3").unwrap_err(),
                value().unwrap()
            ),
            (28, 28, b"1".to_vec())
        );
        assert_eq!(
            (put(b"4").unwrap_err(), value().unwrap()),
            (libc::EIO, b"4".to_vec())
        );
        put(b"5").unwrap();
        assert_eq!(store.calls(Operation::Put), 5);
        assert!(store.sync().is_err() && store.sync().is_ok() && store.delete(&key).unwrap());
        store.plan(PlannedFault {
            times: u64::MAX,
            ..PlannedFault::next(Operation::Get, libc::EIO)
        });
        let fails = |store: &FaultyStore| store.get(&key, 1, &mut Vec::new()).is_err();
        assert!(fails(&store) && fails(&store));
        store.heal();
        assert_eq!(value(), None);
    }

    #[test]
    fn calls_below_a_prefix_block_until_resumed() {
        let store = Arc::new(FaultyStore::new(Arc::new(MemoryStore::default())));
        let stat = |key: &str| store.stat(&Key::root().join(key)).unwrap();
        store.stop(Key::root().join("a"), 1);
        stat("a/0");
        std::thread::scope(|scope| {
            let stopped = scope.spawn(|| stat("a/0"));
            while store.stopped() == 0 {
                std::thread::yield_now();
            }
            stat("b/0");
            assert!(!stopped.is_finished());
            store.resume();
        });
        assert_eq!((store.stopped(), stat("a/0")), (0, None));
    }
}
