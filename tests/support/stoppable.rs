//! A store whose calls can be blocked, like those to a disk or a server that hangs.

use std::fs::File;
use std::sync::{Condvar, Mutex};
use std::time::Instant;
use zarrfs_base::error::Result;
use zarrfs_store::{
    ByteRange, Capabilities, DirectoryStore, FileAttribute, Key, KeyLock, Listing, LocalFiles,
    NameChange, Permissions, Readable, Replaces, Space, Stat, Store, StoreExt, ValuePiece, Version,
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
    fn read(&self, key: &Key, range: &ByteRange, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        self.inner(Some(key)).read(key, range, value)
    }

    fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        self.inner(Some(key)).stat(key)
    }

    fn list(&self, prefix: &Key) -> Result<Listing> {
        self.inner(Some(prefix)).list(prefix)
    }

    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities {
            local: Some(self),
            ..Capabilities::default()
        }
    }

    fn location(&self) -> String {
        self.inner.location()
    }
}

impl Store for StoppableStore {
    fn check_writable(&self, prefix: &Key) -> Result<()> {
        self.inner.check_writable(prefix)
    }

    fn put_pieces(
        &self,
        key: &Key,
        pieces: &[ValuePiece],
        replaces: Replaces,
    ) -> Result<Option<Version>> {
        self.inner(Some(key)).put_pieces(key, pieces, replaces)
    }

    fn change(&self, change: NameChange) -> Result<bool> {
        let (NameChange::Delete(key)
        | NameChange::MakePrefix(key)
        | NameChange::RemovePrefix(key)
        | NameChange::Rename(key, _)) = change;
        self.inner(Some(key)).change(change)
    }

    fn sync(&self) -> Result<()> {
        self.inner(None).sync()
    }
}

impl LocalFiles for StoppableStore {
    fn open_file(&self, key: &Key) -> Result<Option<(File, Stat)>> {
        self.inner(Some(key)).file(key)
    }

    fn open_writable(&self, key: &Key, create: bool, exclusive: bool) -> Result<File> {
        self.inner(Some(key)).writable_file(key, create, exclusive)
    }

    fn set_attribute(&self, key: &Key, attribute: FileAttribute) -> Result<Option<Permissions>> {
        self.inner.set_file_attribute(key, attribute)
    }

    fn lock_key(&self, key: &Key, since: Instant) -> Result<KeyLock> {
        self.inner(Some(key)).lock(key, since)
    }

    fn statvfs(&self) -> Result<Option<Space>> {
        self.inner.space()
    }
}
