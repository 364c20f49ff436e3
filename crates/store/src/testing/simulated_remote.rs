//! A remote store simulated in memory: requests take time and are counted.

use crate::{Key, Listing, MemoryStore, Readable, Replaces, Stat, Store, Version, delegate_store};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;
use zarrfs_base::error::Result;
use zarrfs_base::memory::lock;

/// Maximum time that a request waits for others, so that a program that sends fewer fails its test.
const GATHER_LIMIT: Duration = Duration::from_secs(30);

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
    in_flight: AtomicUsize,
    /// Maximum number of requests that were in flight at the same time.
    pub max_in_flight: AtomicUsize,
    /// Protects what [`SimulatedRemote::gather_where`] has set.
    gathered: Mutex<Gathered>,
    has_gathered: Condvar,
}

/// The requests that wait for each other.
struct Gathered {
    /// Number of requests that must be in flight before one is answered.
    count: usize,
    /// Whether a request for a key waits and counts.
    includes: fn(&Key) -> bool,
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
            in_flight: zero(),
            max_in_flight: zero(),
            gathered: Mutex::new(Gathered {
                count: 0,
                includes: |_| true,
            }),
            has_gathered: Condvar::new(),
        }
    }

    /// Answers no request before `count` are in flight at the same time, however busy the machine
    /// is, and counts them anew.
    pub fn gather(&self, count: usize) {
        self.gather_where(count, |_| true);
    }

    /// Does what [`SimulatedRemote::gather`] does with the requests for keys that `includes`
    /// accepts. The others do not wait, and `max_in_flight` leaves them out.
    pub fn gather_where(&self, count: usize, includes: fn(&Key) -> bool) {
        *lock(&self.gathered) = Gathered { count, includes };
        self.max_in_flight.store(0, Ordering::SeqCst);
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
        let is_included = self.wait_for_others(key);
        std::thread::sleep(self.latency);
        let answer = send(&self.below);
        if is_included {
            self.in_flight.fetch_sub(1, Ordering::SeqCst);
        }
        answer
    }

    /// Waits until enough requests are in flight. Returns whether this one is counted among them.
    fn wait_for_others(&self, key: &Key) -> bool {
        let gathered = lock(&self.gathered);
        if !(gathered.includes)(key) {
            return false;
        }
        self.max_in_flight.fetch_max(
            self.in_flight.fetch_add(1, Ordering::SeqCst) + 1,
            Ordering::SeqCst,
        );
        self.has_gathered.notify_all();
        let is_short =
            |gathered: &mut Gathered| self.max_in_flight.load(Ordering::SeqCst) < gathered.count;
        let waited = self
            .has_gathered
            .wait_timeout_while(gathered, GATHER_LIMIT, is_short);
        let (mut gathered, limit) = waited.unwrap_or_else(PoisonError::into_inner);
        if limit.timed_out() {
            gathered.count = 0;
        }
        true
    }
}

impl Readable for SimulatedRemote {
    delegate_store!(below: location);

    fn get(&self, key: &Key, limit: u64, value: &mut Vec<u8>) -> Result<Option<Version>> {
        self.request(&self.gets, key, |below| below.get(key, limit, value))
    }

    fn get_range(&self, key: &Key, range: Range<u64>, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        self.request(&self.ranges, key, |below| {
            below.get_range(key, range, value)
        })
    }

    fn get_end(&self, key: &Key, len: u64, value: &mut Vec<u8>) -> Result<Option<Stat>> {
        self.request(&self.ranges, key, |below| below.get_end(key, len, value))
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

    fn lists_all(&self) -> bool {
        self.can_list
    }

    fn concurrency(&self) -> usize {
        64
    }
}

impl Store for SimulatedRemote {
    delegate_store!(below: delete rename make_prefix remove_prefix sync is_writable check_writable);

    fn put_if(&self, key: &Key, value: &[u8], replaces: Replaces) -> Result<Option<Version>> {
        self.request(&self.puts, key, |below| below.put_if(key, value, replaces))
    }
}
