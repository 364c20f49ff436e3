//! Statistics of a mount: counters, and the problems that a user should know. Every module counts
//! here, and no module decides anything by the counters.

mod server_requests;

pub use server_requests::{
    OperationCounts, ServerOperation, ServerOutcome, ServerRequests, TIME_BOUNDS,
};

use crate::error::{Error, one_line};
use crate::memory::lock;
use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt::Display;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Instant, SystemTime};

/// Maximum number of problems that `.zarrfs/stats` lists; the oldest are dropped.
const MAX_PROBLEMS: usize = 200;

thread_local! {
    /// Bytes of chunks and blocks that this thread has decoded.
    static DECODED: Cell<u64> = const { Cell::new(0) };
}

/// Returns the bytes of chunks and blocks that the calling thread has decoded, for the log: the
/// difference over a request is what the request itself decoded.
pub fn bytes_decoded_by_thread() -> u64 {
    DECODED.get()
}

/// A counter that only increases.
#[derive(Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Adds the nanoseconds since `start`.
    pub fn add_since(&self, start: Instant) {
        self.add(start.elapsed().as_nanos() as u64);
    }

    /// Returns the current value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The latest error, and when it occurred.
#[derive(Clone, Debug)]
pub struct LastError {
    /// The time at which it occurred.
    pub at: SystemTime,
    /// The message of the error, on one line.
    pub message: String,
}

/// A recorded problem.
#[derive(Clone, Debug)]
pub struct Problem {
    /// The time at which it was met last.
    pub at: SystemTime,
    /// The number of times that it was met.
    pub count: u64,
    /// The problem, on one line.
    pub message: String,
}

/// Declares [`Stats`] and its list of counters: for each counter the field, its meaning, and the
/// name that users see.
macro_rules! counters {
    ($count:literal: $(#[doc = $help:literal] $field:ident $name:literal,)*) => {
        /// Counters and problems of one mount.
        #[derive(Default)]
        pub struct Stats {
            $(#[doc = $help] pub $field: Counter,)*
            /// Requests to a server.
            pub server_requests: ServerRequests,
            /// Number of servers that fail: they have not answered for a while.
            pub failing_stores: AtomicU32,
            /// The recorded problems, in the order in which they were met first.
            problems: Mutex<VecDeque<Problem>>,
            /// What commands that look at a whole store report as left out.
            left_out: Mutex<Vec<String>>,
            /// The latest error.
            last_error: Mutex<Option<LastError>>,
        }

        impl Stats {
            /// Returns the names and values of the counters in the order in which they are shown.
            pub fn counters(&self) -> [(&'static str, u64); $count] {
                [$(($name, self.$field.get())),*]
            }

            /// Returns the meanings of the counters, in the same order.
            pub fn meanings() -> [&'static str; $count] {
                [$($help),*].map(str::trim)
            }
        }
    };
}

counters! { 29:
    /// Requested chunks that the cache held decoded.
    hits "chunk_hits",
    /// Requested chunks that the cache did not hold.
    misses "chunk_misses",
    /// Decoded chunks.
    decodes "chunk_decodes",
    /// Blocks decoded without their chunk.
    block_decodes "block_decodes",
    /// Indexes of shards that were read.
    index_reads "index_reads",
    /// Loads that found a chunk not to be stored. Later reads from the cache do not count again.
    uninitialized "chunks_uninitialised",
    /// Chunks that could not be read or decoded.
    failures "chunk_failures",
    /// Bytes of encoded chunks read from the store.
    bytes_stored "bytes_stored",
    /// Bytes of decoded chunks and blocks.
    bytes_decoded "bytes_decoded",
    /// Encoded chunks.
    encodes "chunks_encoded",
    /// Chunks written to the store.
    stores "chunks_stored",
    /// Objects written to the store: in shards many chunks share one.
    object_stores "objects_stored",
    /// Bytes of objects written to the store.
    bytes_written "bytes_written",
    /// Bytes returned to readers.
    bytes_served "bytes_served",
    /// Bytes accepted from writers.
    bytes_accepted "bytes_accepted",
    /// Bytes of decoded chunks written to a spill file.
    bytes_spilled "bytes_spilled",
    /// Requests sent to a server, including retries.
    requests "requests",
    /// Attempts after a failed one.
    request_retries "request_retries",
    /// Requests that failed for good.
    request_failures "request_failures",
    /// Bytes of values received from a server.
    bytes_received "bytes_received",
    /// Bytes of values sent to a server.
    bytes_sent "bytes_sent",
    /// Values that the disk cache held.
    disk_cache_hits "disk_cache_hits",
    /// Requested values that the disk cache did not hold.
    disk_cache_misses "disk_cache_misses",
    /// Prefetched chunks that were requested later.
    prefetch_used "readahead_used",
    /// Prefetched chunks that were dropped before a request.
    prefetch_wasted "readahead_wasted",
    /// Problems that the mount met, including repeated ones.
    problems_met "problems_met",
    /// Nanoseconds in the store, summed over threads.
    store_time "store_nanoseconds",
    /// Nanoseconds in the codecs, summed over threads.
    codec_time "codec_nanoseconds",
    /// Nanoseconds of copying into replies, summed over threads.
    copy_time "copy_nanoseconds",
}

impl Stats {
    /// Counts decoded bytes, also for the calling thread.
    pub fn add_decoded(&self, bytes: usize) {
        self.bytes_decoded.add(bytes as u64);
        DECODED.set(DECODED.get() + bytes as u64);
    }

    /// Records a problem and logs it. A problem that is already recorded is counted, and not logged
    /// again.
    pub fn problem(&self, line: impl Into<String>) {
        let line = one_line(line);
        self.problems_met.add(1);
        self.record_error(line.as_str());
        let mut problems = lock(&self.problems);
        let at = SystemTime::now();
        if let Some(known) = problems.iter_mut().find(|known| known.message == line) {
            (known.at, known.count) = (at, known.count + 1);
            return;
        }
        problems.push_back(Problem {
            at,
            count: 1,
            message: line.clone(),
        });
        if problems.len() > MAX_PROBLEMS {
            problems.pop_front();
        }
        // the log may have to wait
        drop(problems);
        log::error!("{line}");
    }

    /// Records an error as a problem, unless it is on record. Returns it as one that is.
    pub fn met(&self, e: Error) -> Error {
        if e.is_on_record() {
            e
        } else {
            self.met_as(e.to_string(), e)
        }
    }

    /// Records as a problem that bytes were not stored. Returns the error as one that is on record.
    pub fn not_stored(&self, e: Error) -> Error {
        self.met_as(format!("not stored: {e}"), e)
    }

    /// Records an error as a problem, by this line. Returns the error as one that is on record.
    pub fn met_as(&self, line: impl Into<String>, e: Error) -> Error {
        self.problem(line);
        e.reported()
    }

    /// Records an error as a problem if it is a failure that is not on record:
    /// [`Error::is_unreported`]. Returns it as one that is.
    ///
    /// Invariant: every error that answers a request passes through this function. So a failure is
    /// seen, whichever code asked the store.
    pub fn report(&self, e: Error) -> Error {
        if e.is_unreported() { self.met(e) } else { e }
    }

    /// Records a problem: something in the store has no place in the mount, such as a name that
    /// cannot be a key.
    pub fn left_out(&self, line: impl Into<String>) {
        let line = one_line(line);
        let mut left_out = lock(&self.left_out);
        if !left_out.contains(&line) && left_out.len() < MAX_PROBLEMS {
            left_out.push(line.clone());
            drop(left_out);
            self.problem(line);
        }
    }

    /// Records with [`Stats::left_out`] that names in a document or archive are left out. `first`
    /// is the first of them; without one, nothing is recorded.
    pub fn names_left_out(&self, file: impl Display, first: Option<&str>, why: &str) {
        if let Some(name) = first {
            self.left_out(format!("{file}: {why}; first {name:?}"));
        }
    }

    /// Returns what [`Stats::left_out`] recorded.
    pub fn all_left_out(&self) -> Vec<String> {
        lock(&self.left_out).clone()
    }

    /// Returns whether the store fails: it has not answered for a while.
    pub fn is_failing(&self) -> bool {
        self.failing_stores.load(Ordering::Relaxed) > 0
    }

    /// Returns the messages of the recorded problems, in the order in which they were met first.
    pub fn problems(&self) -> Vec<String> {
        let problems = self.counted_problems().into_iter();
        problems.map(|problem| problem.message).collect()
    }

    /// Returns the recorded problems in the same order, each with its time and count.
    pub fn counted_problems(&self) -> Vec<Problem> {
        lock(&self.problems).iter().cloned().collect()
    }

    /// Records an error as the latest one.
    pub fn record_error(&self, message: impl Into<String>) {
        *lock(&self.last_error) = Some(LastError {
            at: SystemTime::now(),
            message: one_line(message),
        });
    }

    /// Returns the latest error.
    pub fn last_error(&self) -> Option<LastError> {
        lock(&self.last_error).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_counted_and_keeps_its_place() {
        let stats = Stats::default();
        for line in ["/a: bad", "/b: bad", "/a: bad"] {
            stats.problem(line);
        }
        let known = stats.counted_problems();
        let counts: Vec<_> = known
            .iter()
            .map(|problem| (problem.message.as_str(), problem.count))
            .collect();
        assert_eq!(counts, [("/a: bad", 2), ("/b: bad", 1)]);
        assert!(known[0].at >= known[1].at);
        (0..MAX_PROBLEMS).for_each(|n| stats.problem(format!("/c/{n}: bad")));
        let known = stats.problems();
        assert_eq!(
            (known.len(), known[0].as_str(), stats.problems_met.get()),
            (MAX_PROBLEMS, "/c/0: bad", 203)
        );
    }
}
