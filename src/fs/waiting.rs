//! Writes of flat bytes that wait until the cache has memory for them.
//!
//! Invariant: a read never returns bytes that are older than a write whose request was received
//! before that of the read. The kernel may drop the page of a write in flight and read it again;
//! old bytes would then stay in its page cache. The thread that receives a write applies it if
//! there is memory. Otherwise it records the write here, and reads of the same bytes wait for it.

use crate::cache::Wait;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use zarrfs_base::memory::lock;
use zarrfs_store::Key;

/// The waiting writes of a mount.
#[derive(Clone, Default)]
pub struct WaitingWrites(Arc<WaitingState>);

#[derive(Default)]
struct WaitingState {
    /// The number of waiting writes. Usually it is 0, and then no read takes the lock.
    count: AtomicUsize,
    /// Protects the list.
    list: Mutex<WaitingList>,
    ended: Condvar,
}

#[derive(Default)]
struct WaitingList {
    /// The number of the last write.
    last: u64,
    writes: Vec<RecordedWrite>,
}

struct RecordedWrite {
    number: u64,
    array: Key,
    /// The flat bytes that are written.
    range: Range<u64>,
}

/// A write that waits. It ends when this is dropped.
pub struct WaitingWrite {
    all: WaitingWrites,
    number: u64,
}

impl WaitingWrites {
    /// Records a write of flat bytes of the array at `key`.
    pub fn begin(&self, key: Key, range: Range<u64>) -> WaitingWrite {
        let mut list = lock(&self.0.list);
        list.last += 1;
        let number = list.last;
        list.writes.push(RecordedWrite {
            number,
            array: key,
            range,
        });
        self.0.count.fetch_add(1, Ordering::AcqRel);
        WaitingWrite {
            all: self.clone(),
            number,
        }
    }

    /// Waits for the writes to `range` that have been recorded so far. Returns false if there are
    /// any and `wait` does not allow it.
    pub fn wait_for(&self, key: &Key, range: &Range<u64>, wait: Wait) -> bool {
        if self.0.count.load(Ordering::Acquire) == 0 {
            return true;
        }
        let mut list = lock(&self.0.list);
        let last = list.last;
        while list.overlaps(key, range, last) {
            if wait == Wait::Never {
                return false;
            }
            list = self
                .0
                .ended
                .wait(list)
                .unwrap_or_else(PoisonError::into_inner);
        }
        true
    }
}

impl WaitingList {
    /// Returns whether any of the writes up to the number `last` overlaps a range of flat bytes.
    fn overlaps(&self, key: &Key, range: &Range<u64>, last: u64) -> bool {
        self.writes.iter().any(|write| {
            write.number <= last
                && write.array == *key
                && write.range.start < range.end
                && range.start < write.range.end
        })
    }
}

impl Drop for WaitingWrite {
    fn drop(&mut self) {
        lock(&self.all.0.list)
            .writes
            .retain(|write| write.number != self.number);
        self.all.0.count.fetch_sub(1, Ordering::AcqRel);
        self.all.0.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_read_waits_for_the_writes_before_it() {
        let writes = WaitingWrites::default();
        let key = Key::root().join("a");
        let first = writes.begin(key.clone(), 10..20);
        let overlaps = |key: &Key, range: Range<u64>| !writes.wait_for(key, &range, Wait::Never);
        assert!(overlaps(&key, 19..30) && !overlaps(&key, 20..30));
        assert!(!overlaps(&Key::root(), 0..100));
        writes.wait_for(&key, &(0..10), Wait::Allowed);
        let (done, ends) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let writes = &writes;
            let key = &key;
            scope.spawn(move || {
                writes.wait_for(key, &(15..16), Wait::Allowed);
                done.send(()).unwrap();
            });
            assert!(ends.recv_timeout(Duration::from_millis(50)).is_err());
            // a later write does not delay the read
            let _later = writes.begin(key.clone(), 15..16);
            drop(first);
            ends.recv_timeout(Duration::from_secs(20)).unwrap();
        });
        assert!(!overlaps(&key, 0..100));
    }
}
