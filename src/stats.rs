//! What the mount has done: counters, and the problems a user should know of. Everything counts here; nothing is
//! decided by it.

use crate::error::one_line;
use crate::util::memory::lock;
use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Problems kept for `.zarrfs/stats`, the latest ones.
const MAX_PROBLEMS: usize = 200;

/// A counter that only grows.
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

    /// The sum so far.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counters of one mount.
#[derive(Default)]
pub struct Stats {
    /// Chunks asked for and found decoded in the cache.
    pub hits: Counter,
    /// Chunks asked for and not found.
    pub misses: Counter,
    /// Chunks decoded.
    pub decodes: Counter,
    /// Blocks decoded alone.
    pub block_decodes: Counter,
    /// Chunks that are not in the store.
    pub uninitialized: Counter,
    /// Chunks that couldn't be read or decoded.
    pub failures: Counter,
    /// Bytes of encoded chunks read from the store.
    pub bytes_stored: Counter,
    /// Bytes of decoded chunks and blocks.
    pub bytes_decoded: Counter,
    /// Chunks encoded.
    pub encodes: Counter,
    /// Requests sent to a server, repeated ones counted again.
    pub requests: Counter,
    /// Bytes of values received from a server.
    pub bytes_received: Counter,
    /// Values found in the cache on disk.
    pub disk_cache_hits: Counter,
    /// Values asked for and not found there.
    pub disk_cache_misses: Counter,
    /// Chunks put into the store.
    pub stores: Counter,
    /// Bytes of encoded chunks put into the store.
    pub bytes_written: Counter,
    /// Bytes given to readers.
    pub bytes_served: Counter,
    /// Bytes taken from writers.
    pub bytes_accepted: Counter,
    /// Chunks read ahead that somebody asked for.
    pub prefetch_used: Counter,
    /// Chunks read ahead and dropped before anybody asked for them.
    pub prefetch_wasted: Counter,
    /// Bytes of decoded chunks written to a spill file.
    pub bytes_spilled: Counter,
    /// Nanoseconds in the store, summed over threads.
    pub store_time: Counter,
    /// Nanoseconds in the codecs, summed over threads.
    pub codec_time: Counter,
    /// Nanoseconds of copying into replies, summed over threads.
    pub copy_time: Counter,
    /// Protects the list alone.
    problems: Mutex<VecDeque<String>>,
}

impl Stats {
    /// Records a problem and logs it; one that is on record already is not logged again.
    pub fn problem(&self, line: impl Into<String>) {
        let line = one_line(line);
        let mut problems = lock(&self.problems);
        if problems.contains(&line) {
            return;
        }
        log::error!("{line}");
        problems.push_back(line);
        if problems.len() > MAX_PROBLEMS {
            problems.pop_front();
        }
    }

    /// The problems on record, oldest first.
    pub fn problems(&self) -> Vec<String> {
        lock(&self.problems).iter().cloned().collect()
    }

    /// Names and values of the counters, in the order they are shown.
    pub fn counters(&self) -> [(&'static str, u64); 23] {
        [
            ("chunk_hits", self.hits.get()),
            ("chunk_misses", self.misses.get()),
            ("chunk_decodes", self.decodes.get()),
            ("block_decodes", self.block_decodes.get()),
            ("chunks_uninitialised", self.uninitialized.get()),
            ("chunk_failures", self.failures.get()),
            ("bytes_stored", self.bytes_stored.get()),
            ("bytes_decoded", self.bytes_decoded.get()),
            ("chunks_encoded", self.encodes.get()),
            ("chunks_stored", self.stores.get()),
            ("bytes_written", self.bytes_written.get()),
            ("bytes_served", self.bytes_served.get()),
            ("bytes_accepted", self.bytes_accepted.get()),
            ("bytes_spilled", self.bytes_spilled.get()),
            ("requests", self.requests.get()),
            ("bytes_received", self.bytes_received.get()),
            ("disk_cache_hits", self.disk_cache_hits.get()),
            ("disk_cache_misses", self.disk_cache_misses.get()),
            ("readahead_used", self.prefetch_used.get()),
            ("readahead_wasted", self.prefetch_wasted.get()),
            ("store_nanoseconds", self.store_time.get()),
            ("codec_nanoseconds", self.codec_time.get()),
            ("copy_nanoseconds", self.copy_time.get()),
        ]
    }
}
