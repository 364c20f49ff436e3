//! A store whose failures are on record as problems, whatever a caller makes of them: a walk that
//! goes on after a failed call, and a header that is built without an array, would otherwise hide
//! them. This module must not know who calls.

use super::{
    ByteRange, Capabilities, FileAttribute, Key, KeyLock, Listing, LocalFiles, Permissions,
    Readable, Space, Stat, Store, StoreExt,
};
use std::fs::File;
use std::sync::Arc;
use std::time::Instant;
use zarrfs_base::error::{Error, Kind, Result};
use zarrfs_base::stats::Stats;

/// A store whose failures to answer are recorded as problems.
///
/// Invariant: a problem records each failed read of the store, also if the request that needed it
/// goes on. This layer records no failed write: a write that fails answers its request with the
/// error, or is a loss.
pub struct ReportingStore {
    below: Arc<dyn Store>,
    stats: Arc<Stats>,
}

impl ReportingStore {
    /// Returns `below` with its failures recorded in `stats`.
    pub fn over(below: Arc<dyn Store>, stats: Arc<Stats>) -> Arc<dyn Store> {
        Arc::new(ReportingStore { below, stats })
    }

    fn record<T>(&self, key: &Key, answer: Result<T>) -> Result<T> {
        answer.map_err(|e| record(&self.stats, key, e))
    }
}

/// Records the failure of a system or server to answer for `key`. Values that break their format,
/// and memory that is not granted, are left to the caller, which may read them in another way.
fn record(stats: &Stats, key: &Key, e: Error) -> Error {
    let is_answer_missing = match e.kind() {
        Kind::System(errno) => errno != libc::ENOMEM,
        kind => kind == Kind::NoStore,
    };
    if !is_answer_missing || !e.is_unreported() {
        return e;
    }
    let line = if e.message().contains(key.as_str()) {
        e.to_string()
    } else {
        e.clone().context(key).to_string()
    };
    stats.met_as(line, e)
}

impl Readable for ReportingStore {
    fn below(&self) -> Option<&dyn Store> {
        Some(self.below.as_ref())
    }

    fn read(&self, key: &Key, range: &ByteRange, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        self.record(key, self.below.read(key, range, value))
    }

    fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        self.record(key, self.below.stat(key))
    }

    fn stat_many(
        &self,
        keys: &mut dyn Iterator<Item = Key>,
        each: &mut dyn FnMut(Result<Option<Stat>>) -> bool,
    ) {
        // a store may take several keys before it answers for the first of them
        let asked = std::cell::RefCell::new(std::collections::VecDeque::new());
        let mut keys = keys.inspect(|key| asked.borrow_mut().push_back(key.clone()));
        self.below.stat_many(&mut keys, &mut |answer| {
            let key = asked.borrow_mut().pop_front().unwrap_or_default();
            each(self.record(&key, answer))
        });
    }

    fn list(&self, prefix: &Key) -> Result<Listing> {
        let names = self.record(prefix, self.below.list(prefix))?;
        let (stats, prefix) = (self.stats.clone(), prefix.clone());
        Ok(Box::new(names.map(move |entry| {
            entry.map_err(|e| record(&stats, &prefix, e))
        })))
    }

    fn capabilities(&self) -> Capabilities<'_> {
        let below = self.below.capabilities();
        Capabilities {
            local: below.local.map(|_| self as &dyn LocalFiles),
            ..below
        }
    }

    fn location(&self) -> String {
        self.below.location()
    }
}

impl Store for ReportingStore {}

impl LocalFiles for ReportingStore {
    fn open_file(&self, key: &Key) -> Result<Option<(File, Stat)>> {
        self.record(key, self.below.file(key))
    }

    fn open_writable(&self, key: &Key, create: bool, exclusive: bool) -> Result<File> {
        self.below.writable_file(key, create, exclusive)
    }

    fn set_attribute(&self, key: &Key, attribute: FileAttribute) -> Result<Option<Permissions>> {
        self.below.set_file_attribute(key, attribute)
    }

    fn lock_key(&self, key: &Key, since: Instant) -> Result<KeyLock> {
        self.below.lock(key, since)
    }

    fn statvfs(&self) -> Result<Option<Space>> {
        self.below.space()
    }

    fn exchange(&self, one: &Key, other: &Key) -> Result<()> {
        self.below.exchange(one, other)
    }
}
