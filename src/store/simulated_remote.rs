//! A store in memory that is far away, for tests: each request takes its time, and they are counted.

use super::{Key, Listing, MemoryStore, Replaces, Stat, Store, Version, delegate_store};
use crate::error::Result;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// A store in memory that is far away.
pub struct SimulatedRemote {
    /// What it holds, to be changed at once.
    pub below: MemoryStore,
    latency: Duration,
    /// False for one that can't list.
    lists: bool,
    /// Whole values asked for.
    pub gets: AtomicUsize,
    /// Parts of values.
    pub ranges: AtomicUsize,
    /// What stands at a key.
    pub stats: AtomicUsize,
    /// Values put.
    pub puts: AtomicUsize,
    in_flight: AtomicUsize,
    /// The most requests that were under way at once.
    pub max_in_flight: AtomicUsize,
}

impl SimulatedRemote {
    /// An empty one, whose answers take `latency`; without `lists` it can't list.
    pub fn new(latency: Duration, lists: bool) -> Self {
        let zero = || AtomicUsize::new(0);
        SimulatedRemote {
            below: MemoryStore::default(),
            latency,
            lists,
            gets: zero(),
            ranges: zero(),
            stats: zero(),
            puts: zero(),
            in_flight: zero(),
            max_in_flight: zero(),
        }
    }

    /// Requests of each kind so far: values, parts, and what stands at keys.
    pub fn counts(&self) -> [usize; 3] {
        [&self.gets, &self.ranges, &self.stats].map(|count| count.load(Ordering::SeqCst))
    }

    fn request<T>(&self, count: &AtomicUsize, ask: impl FnOnce(&MemoryStore) -> T) -> T {
        count.fetch_add(1, Ordering::SeqCst);
        self.max_in_flight.fetch_max(self.in_flight.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        std::thread::sleep(self.latency);
        let answer = ask(&self.below);
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
        answer
    }
}

impl Store for SimulatedRemote {
    delegate_store!(below: delete rename make_prefix remove_prefix sync is_writable check_writable location);

    fn get(&self, key: &Key, limit: u64, value: &mut Vec<u8>) -> Result<Option<Version>> {
        self.request(&self.gets, |below| below.get(key, limit, value))
    }

    fn get_range(&self, key: &Key, range: Range<u64>, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        self.request(&self.ranges, |below| below.get_range(key, range, value))
    }

    fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        self.request(&self.stats, |below| below.stat(key))
    }

    fn list(&self, prefix: &Key) -> Result<Listing> {
        match self.lists {
            true => self.below.list(prefix),
            false => Ok(Box::new(std::iter::empty())),
        }
    }

    fn lists_all(&self) -> bool {
        self.lists
    }

    fn concurrency(&self) -> usize {
        64
    }

    fn put(&self, key: &Key, value: &[u8]) -> Result<Version> {
        self.request(&self.puts, |below| below.put(key, value))
    }

    fn put_if(&self, key: &Key, value: &[u8], replaces: Replaces) -> Result<Option<Version>> {
        self.request(&self.puts, |below| below.put_if(key, value, replaces))
    }
}
