//! A remote store simulated in memory: requests take time and are counted.

use super::InFlight;
use crate::{
    ByteRange, Capabilities, Key, Listing, MemoryStore, Readable, Replaces, Stat, Store, StoreExt,
    ValuePiece, Version, assemble, delegate_store,
};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use zarrfs_base::error::Result;
use zarrfs_base::memory::lock;

/// A store in memory that answers like a remote one.
pub struct SimulatedRemote {
    /// The content, which a test can change without a request.
    pub below: MemoryStore,
    latency: Duration,
    can_list: bool,
    /// Number of requests for whole values.
    pub gets: AtomicUsize,
    /// Number of requests for parts of values.
    pub ranges: AtomicUsize,
    /// Number of `stat` requests.
    pub stats: AtomicUsize,
    /// Number of values put.
    pub puts: AtomicUsize,
    /// The requests that [`SimulatedRemote::gather_where`] includes; at first, all.
    pub in_flight: InFlight,
    /// Protects whether a request for a key is one of them.
    includes: Mutex<fn(&Key) -> bool>,
}

impl SimulatedRemote {
    /// Creates an empty store whose requests take `latency`.
    pub fn new(latency: Duration, can_list: bool) -> Self {
        let zero = || AtomicUsize::new(0);
        SimulatedRemote {
            below: MemoryStore::default(),
            latency,
            can_list,
            gets: zero(),
            ranges: zero(),
            stats: zero(),
            puts: zero(),
            in_flight: InFlight::default(),
            includes: Mutex::new(|_| true),
        }
    }

    /// Answers no request before `count` are in flight at the same time, however busy the machine
    /// is, and counts them anew.
    pub fn gather(&self, count: usize) {
        self.gather_where(count, |_| true);
    }

    /// Does what [`SimulatedRemote::gather`] does with the requests for keys that `includes`
    /// accepts. The others neither wait nor count.
    pub fn gather_where(&self, count: usize, includes: fn(&Key) -> bool) {
        *lock(&self.includes) = includes;
        self.in_flight.gather(count);
    }

    /// Returns the number of requests so far: whole values, parts, `stat`.
    pub fn counts(&self) -> [usize; 3] {
        [&self.gets, &self.ranges, &self.stats].map(|count| count.load(Ordering::SeqCst))
    }

    fn request<T>(
        &self,
        count: &AtomicUsize,
        key: &Key,
        send: impl FnOnce(&MemoryStore) -> T,
    ) -> T {
        count.fetch_add(1, Ordering::SeqCst);
        let includes = *lock(&self.includes);
        let _request = includes(key).then(|| self.in_flight.begin());
        std::thread::sleep(self.latency);
        send(&self.below)
    }
}

impl Readable for SimulatedRemote {
    delegate_store!(below: location);

    fn read(&self, key: &Key, range: &ByteRange, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        let count = match range {
            ByteRange::Whole(_) => &self.gets,
            ByteRange::Bounded(_) | ByteRange::Suffix(_) => &self.ranges,
        };
        self.request(count, key, |below| below.read(key, range, value))
    }

    fn capabilities(&self) -> Capabilities<'_> {
        Capabilities {
            concurrency: 64,
            lists_all: self.can_list,
            ..Capabilities::default()
        }
    }

    fn stat(&self, key: &Key) -> Result<Option<Stat>> {
        self.request(&self.stats, key, |below| below.stat(key))
    }

    fn list(&self, prefix: &Key) -> Result<Listing> {
        if self.can_list {
            self.below.list(prefix)
        } else {
            Ok(Box::new(std::iter::empty()))
        }
    }
}

impl Store for SimulatedRemote {
    delegate_store!(below: change sync check_writable);

    fn put_pieces(
        &self,
        key: &Key,
        pieces: &[ValuePiece],
        replaces: Replaces,
    ) -> Result<Option<Version>> {
        let Some(value) = assemble(self, key, pieces, replaces)? else {
            return Ok(None);
        };
        self.request(&self.puts, key, |below| {
            below.put_if(key, &value.bytes, replaces)
        })
    }
}
