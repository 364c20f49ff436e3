//! A store whose calls can be blocked, like those to a disk or a server that hangs.

use std::fs::File;
use std::ops::Range;
use std::sync::{Condvar, Mutex};
use std::time::Instant;
use zarrfs_base::error::Result;
use zarrfs_store::{
    DirectoryStore, Key, KeyLock, Listing, Readable, Replaces, Space, Stat, Store, Version,
};

/// A directory store whose calls block on demand.
pub struct StoppableStore {
    inner: DirectoryStore,
    state: Mutex<State>,
    /// Signaled when blocked calls may continue.
    resumed: Condvar,
}

#[derive(Default)]
struct State {
    /// The prefix at and below which calls block, and the number of calls that still return.
    stop: Option<(Key, u64)>,
    /// Number of calls that are blocked now.
    stopped: usize,
}

impl StoppableStore {
    /// Wraps `inner`.
    pub fn new(inner: DirectoryStore) -> Self {
        StoppableStore {
            inner,
            state: Mutex::default(),
            resumed: Condvar::new(),
        }
    }

    /// Blocks all calls at and below `prefix`, and all syncs, after `after` more calls, until
    /// [`Self::resume`].
    pub fn stop(&self, prefix: Key, after: u64) {
        self.state.lock().unwrap().stop = Some((prefix, after));
    }

    /// Lets blocked calls continue, and blocks no more.
    pub fn resume(&self) {
        self.state.lock().unwrap().stop = None;
        self.resumed.notify_all();
    }

    /// Returns the number of calls that are blocked now.
    pub fn stopped(&self) -> usize {
        self.state.lock().unwrap().stopped
    }

    /// Returns the wrapped store once calls at `key` may continue. A call without a key concerns
    /// the whole store.
    fn inner(&self, key: Option<&Key>) -> &DirectoryStore {
        let mut state = self.state.lock().unwrap();
        match &mut state.stop {
            Some((prefix, _)) if key.is_some_and(|key| key.relative_to(prefix).is_none()) => {}
            Some((_, after @ 1..)) => *after -= 1,
            Some(_) => {
                state.stopped += 1;
                state = self
                    .resumed
                    .wait_while(state, |state| state.stop.is_some())
                    .unwrap();
                state.stopped -= 1;
            }
            None => {}
        }
        &self.inner
    }
}

impl Readable for StoppableStore {
    fn get(&self, key: &Key, limit: u64, value: &mut Vec<u8>) -> Result<Option<Version>> {
        self.inner(Some(key)).get(key, limit, value)
    }

    fn get_range(&self, key: &Key, range: Range<u64>, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        self.inner(Some(key)).get_range(key, range, value)
    }

    fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        self.inner(Some(key)).stat(key)
    }

    fn list(&self, prefix: &Key) -> Result<Listing> {
        self.inner(Some(prefix)).list(prefix)
    }

    fn file(&self, key: &Key) -> Result<Option<(File, Stat)>> {
        self.inner(Some(key)).file(key)
    }

    fn location(&self) -> String {
        self.inner.location()
    }
}

impl Store for StoppableStore {
    fn space(&self) -> Result<Option<Space>> {
        self.inner.space()
    }

    fn is_writable(&self) -> bool {
        self.inner.is_writable()
    }

    fn check_writable(&self, prefix: &Key) -> Result<()> {
        self.inner.check_writable(prefix)
    }

    fn put_if(&self, key: &Key, value: &[u8], replaces: Replaces) -> Result<Option<Version>> {
        self.inner(Some(key)).put_if(key, value, replaces)
    }

    fn delete(&self, key: &Key) -> Result<bool> {
        self.inner(Some(key)).delete(key)
    }

    fn lock(&self, key: &Key, since: Instant) -> Result<KeyLock> {
        self.inner(Some(key)).lock(key, since)
    }

    fn sync(&self) -> Result<()> {
        self.inner(None).sync()
    }

    fn make_prefix(&self, key: &Key) -> Result<()> {
        self.inner(Some(key)).make_prefix(key)
    }

    fn remove_prefix(&self, key: &Key) -> Result<()> {
        self.inner(Some(key)).remove_prefix(key)
    }

    fn rename(&self, from: &Key, to: &Key) -> Result<()> {
        self.inner(Some(from)).rename(from, to)
    }

    fn writable_file(&self, key: &Key, create: bool, exclusive: bool) -> Result<File> {
        self.inner(Some(key)).writable_file(key, create, exclusive)
    }
}
