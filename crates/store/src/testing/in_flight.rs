//! Counts the requests that a store or server of a test answers at the same time, and lets them
//! wait for each other. This module does not know what is requested.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;
use zarrfs_base::memory::lock;

/// Maximum time that a request waits for others, so that a program that sends fewer fails its test.
const GATHER_LIMIT: Duration = Duration::from_secs(30);

/// The requests that are in flight.
#[derive(Default)]
pub struct InFlight {
    /// Protects the counts.
    counts: Mutex<Counts>,
    changed: Condvar,
}

#[derive(Default)]
struct Counts {
    now: usize,
    most: usize,
    /// Number of requests that must be in flight before the first one is answered.
    wanted: usize,
}

/// A request in flight, until it is dropped.
pub struct InFlightRequest<'a>(&'a InFlight);

impl InFlight {
    /// Lets requests wait until `wanted` are in flight, however busy the machine is. Counts the
    /// most of them anew.
    pub fn gather(&self, wanted: usize) {
        let mut counts = lock(&self.counts);
        counts.wanted = wanted;
        counts.most = 0;
    }

    /// Counts a request. Returns once enough are in flight.
    pub fn begin(&self) -> InFlightRequest<'_> {
        let mut counts = lock(&self.counts);
        counts.now += 1;
        counts.most = counts.most.max(counts.now);
        self.changed.notify_all();
        let is_short = |counts: &mut Counts| counts.most < counts.wanted;
        let waited = self
            .changed
            .wait_timeout_while(counts, GATHER_LIMIT, is_short);
        let (mut counts, limit) = waited.unwrap_or_else(PoisonError::into_inner);
        if limit.timed_out() {
            counts.wanted = 0;
        }
        InFlightRequest(self)
    }

    /// Returns the maximum number of requests that were in flight at the same time.
    pub fn most(&self) -> usize {
        lock(&self.counts).most
    }
}

impl Drop for InFlightRequest<'_> {
    fn drop(&mut self) {
        lock(&self.0.counts).now -= 1;
    }
}
