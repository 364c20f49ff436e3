//! A `stat` request in flight, whose result several threads wait for.

use crate::Stat;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use zarrfs_base::error::Result;
use zarrfs_base::memory::lock;

type StatResult = Result<Option<Stat>>;

/// A `stat` request in flight.
pub(super) struct PendingStat {
    /// Generation of the cache when the request was sent.
    pub generation: u64,
    /// Protects the result: `None` while the request is in flight, `Some(None)` if it ended without
    /// a result.
    result: Mutex<Option<Option<StatResult>>>,
    finished: Condvar,
}

impl PendingStat {
    /// Creates a request that is sent in a generation.
    pub fn new(generation: u64) -> Self {
        PendingStat {
            generation,
            result: Mutex::default(),
            finished: Condvar::new(),
        }
    }

    /// Waits for the result. Returns `None` if the sending thread panicked.
    pub fn wait(&self) -> Option<StatResult> {
        let result = lock(&self.result);
        let result = self
            .finished
            .wait_while(result, |result| result.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        result.clone().flatten()
    }

    /// Returns whether the request has ended.
    pub fn is_finished(&self) -> bool {
        lock(&self.result).is_some()
    }

    /// Returns a guard for the sending thread. The waiting threads continue when it is dropped,
    /// even by a panic.
    pub fn sender(self: &Arc<Self>) -> PendingStatSender {
        PendingStatSender(self.clone())
    }
}

/// The guard of the thread that sends a request.
pub(super) struct PendingStatSender(Arc<PendingStat>);

impl PendingStatSender {
    /// Passes the result to all waiting threads.
    pub fn finish(self, result: StatResult) {
        *lock(&self.0.result) = Some(Some(result));
    }
}

impl Drop for PendingStatSender {
    fn drop(&mut self) {
        lock(&self.0.result).get_or_insert(None);
        self.0.finished.notify_all();
    }
}
