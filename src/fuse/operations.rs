//! Changes of names that the kernel may request twice: if the daemon is killed after such a change
//! and before its answer, the kernel sends the request again, to the successor, where a second
//! attempt would fail: the file to be created exists, the one to be removed does not. Each such
//! request is recorded in the journal before it is carried out, with its outcome before it is
//! answered, and forgotten afterwards. This module must not know what the requests change.
//!
//! Invariant: no request is answered twice with different results. A request whose outcome is
//! recorded is answered with it. One that was begun is carried out again, and the error that says
//! that this was done before (`EEXIST`, `ENOENT`) is a success, unless what exists is older than
//! the request.

use fuser::{Errno, Request};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use zarrfs_base::error::Error;
use zarrfs_base::memory::lock;
use zarrfs_outlive::{Journal, Record, RecordId};

/// The kind of the records. The numbers are the number of the request, and [`BEGUN`], [`DONE`] or
/// an errno; the text is the time when it was begun, in nanoseconds since 1970.
const OPERATION_RECORD: u32 = 6;

const BEGUN: u64 = 0;
const DONE: u64 = u64::MAX;

/// The bit of the number of a request that the kernel sends again.
const RESENT: u64 = 1 << 63;

/// Maximum differences between two clocks: the clock of this process, and the clock that stamps
/// local files, which the kernel advances each hundredth of a second, or the clock of a server.
const LOCAL_DIFFERENCE: Duration = Duration::from_millis(20);
const REMOTE_DIFFERENCE: Duration = Duration::from_secs(2);

/// Maximum number of records that are taken over. Those of answered requests stay if the daemon was
/// killed before it could remove them.
const MAX_LEFT: usize = 4096;

/// The requests in flight that change names.
#[derive(Clone)]
pub struct Operations(Option<Arc<RecordedOperations>>);

struct RecordedOperations {
    journal: Arc<Journal>,
    /// Protects the map: the records that a daemon has left, by the number of the request.
    left: Mutex<HashMap<u64, Record>>,
}

/// A request that changes names. Its record is removed when this is dropped, after the answer.
pub struct Operation {
    operations: Operations,
    record: Option<RecordId>,
    /// What an earlier daemon has done.
    pub earlier: Earlier,
}

/// What an earlier daemon has done for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Earlier {
    /// Nothing.
    Nothing,
    /// It began, at this time.
    Begun(SystemTime),
    /// It succeeded.
    Done,
    /// It failed.
    Failed(i32),
}

impl Operations {
    /// Creates the requests of a daemon, after one that has `left` records.
    pub fn new(journal: Option<&Arc<Journal>>, left: &[Record]) -> Self {
        let operations = journal.map(|journal| {
            let left = left.iter().filter(|record| record.kind == OPERATION_RECORD);
            let mut left: Vec<Record> = left.cloned().collect();
            // the kernel numbers requests in turn
            left.sort_unstable_by_key(|record| std::cmp::Reverse(record.numbers[0]));
            let old = left.split_off(left.len().min(MAX_LEFT));
            old.iter().for_each(|record| journal.remove(record.id));
            let left = left.into_iter().map(|record| (record.numbers[0], record));
            Arc::new(RecordedOperations {
                journal: journal.clone(),
                left: Mutex::new(left.collect()),
            })
        });
        Operations(operations)
    }

    /// Begins a request.
    pub fn begin(&self, request: &Request) -> Operation {
        let number = request.unique().0;
        let mut operation = Operation {
            operations: self.clone(),
            record: None,
            earlier: Earlier::Nothing,
        };
        let Some(all) = &self.0 else {
            return operation;
        };
        if number & RESENT != 0
            && let Some(left) = lock(&all.left).remove(&(number & !RESENT))
        {
            operation.earlier = earlier(&left);
            operation.record = Some(left.id);
        } else {
            let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
            let text = (now.as_nanos() as u64).to_le_bytes();
            operation.record = all
                .journal
                .add(OPERATION_RECORD, [number & !RESENT, BEGUN], &text);
        }
        operation
    }
}

/// Returns the number of a request that an earlier daemon has taken; `None` for any other request.
pub fn resent(request: &Request) -> Option<u64> {
    let number = request.unique().0;
    (number & RESENT != 0).then_some(number & !RESENT)
}

/// Returns the number of a request, which it also has if the kernel sends it again.
pub fn number(request: &Request) -> u64 {
    request.unique().0 & !RESENT
}

fn earlier(left: &Record) -> Earlier {
    match left.numbers[1] {
        BEGUN => {
            let at = left
                .text
                .first_chunk()
                .map_or(0, |at| u64::from_le_bytes(*at));
            Earlier::Begun(SystemTime::UNIX_EPOCH + Duration::from_nanos(at))
        }
        DONE => Earlier::Done,
        errno => Earlier::Failed(errno as i32),
    }
}

impl Operation {
    /// Records the outcome, before the answer.
    pub fn finish<T>(&self, done: &Result<T, Errno>) {
        if let (Some(all), Some(record)) = (&self.operations.0, self.record) {
            let outcome = match done {
                Ok(_) => DONE,
                Err(e) => e.code() as u64,
            };
            all.journal
                .number(record, 1)
                .store(outcome, Ordering::Release);
        }
    }
}

impl Operation {
    /// Carries out the request by `work`, or finds by `find` what an earlier daemon has made. The
    /// errno `repeated` says that the request was carried out before.
    ///
    /// # Errors
    ///
    /// The error of `work`, or the one that the earlier daemon has recorded.
    pub fn carry_out<T>(
        &self,
        repeated: i32,
        work: impl FnOnce() -> Result<T, Error>,
        find: impl FnOnce(Earlier) -> Result<T, Error>,
    ) -> Result<T, Error> {
        match self.earlier {
            Earlier::Nothing => work(),
            Earlier::Begun(_) => match work() {
                Err(e) if e.errno() == repeated => find(self.earlier).map_err(|_| e),
                done => done,
            },
            Earlier::Done => find(self.earlier),
            Earlier::Failed(errno) => Err(Error::system(errno)),
        }
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if let (Some(all), Some(record)) = (&self.operations.0, self.record) {
            all.journal.remove(record);
        }
    }
}

impl Earlier {
    /// Returns whether something that was changed at `changed`, by the clock of a server if
    /// `is_remote`, may be the work of an earlier daemon.
    pub fn may_have_made(self, changed: SystemTime, is_remote: bool) -> bool {
        let difference = if is_remote {
            REMOTE_DIFFERENCE
        } else {
            LOCAL_DIFFERENCE
        };
        match self {
            Earlier::Nothing | Earlier::Failed(_) => false,
            Earlier::Done => true,
            // a directory of a bucket has no time
            Earlier::Begun(at) => changed == SystemTime::UNIX_EPOCH || changed + difference >= at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_is_repeated_has_one_outcome() {
        let at = SystemTime::now();
        let operation = |earlier| Operation {
            operations: Operations(None),
            record: None,
            earlier,
        };
        let exists = || Err(Error::system(libc::EEXIST));
        let carry_out = |earlier, changed| {
            let operation = operation(earlier);
            let find = |earlier: Earlier| {
                if earlier.may_have_made(changed, false) {
                    Ok("found")
                } else {
                    Err(Error::stale())
                }
            };
            let done = operation.carry_out(libc::EEXIST, exists, find);
            done.map_err(|e| e.errno())
        };
        let older = at - Duration::from_secs(1);
        for (earlier, changed, expected) in [
            (Earlier::Nothing, at, Err(libc::EEXIST)),
            (Earlier::Begun(at), at, Ok("found")),
            (Earlier::Begun(at), older, Err(libc::EEXIST)),
            (Earlier::Begun(at), SystemTime::UNIX_EPOCH, Ok("found")),
            (Earlier::Done, older, Ok("found")),
            (Earlier::Failed(libc::ENOSPC), at, Err(libc::ENOSPC)),
        ] {
            assert_eq!(carry_out(earlier, changed), expected, "{earlier:?}");
        }
        let begun = operation(Earlier::Begun(at));
        let done = begun.carry_out(libc::EEXIST, || Ok("made"), |_| unreachable!());
        assert_eq!(done.unwrap(), "made");
    }
}
