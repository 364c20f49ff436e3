//! Prefetching: threads load the chunks that the readers of an open file will need next. A
//! sequential reader reads rows across a *working set* of chunks and needs the next set all at
//! once, so whole sets are prefetched. A strided reader gets the parts at the next steps; a random
//! reader nothing. From a local store, as many chunks are loaded at a time as threads decode; from
//! a remote one, as many as fill the link. `wide_rows` reads working sets larger than the cache.
//! This module knows chunks, not files or requests.

mod access;
mod wide_rows;

use super::Cache;
use super::chunk_cache::{CachedItem, ChunkPart, Spills, Window};
use crate::array::Array;
use access::{AccessHistory, Pattern, Plan};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use zarrfs_base::error::Result;
use zarrfs_base::memory::lock;
use zarrfs_base::pool::Pool;
use zarrfs_base::spill_file::SpillOptions;
use zarrfs_format::codec::PartialDecode;
use zarrfs_format::grid::{ChunkId, Run};

/// Minimum bytes prefetched for a sequential reader, if they fit: enough to keep all threads busy
/// where chunks are small.
const MIN_AHEAD: u64 = 16 << 20;

/// Decoded bytes that one job loads: queue entries for a million small chunks would cost more than
/// the chunks.
const JOB: u64 = 1 << 20;

/// Decoded bytes that one job loads from a remote object of several chunks, and the number of such
/// jobs at a time. A request of megabytes uses a link well, and a small object takes one request.
const NEIGHBORS_JOB: u64 = 16 << 20;
const NEIGHBORS_JOBS: u64 = 4;

/// Share of the cache's bound for remote chunks in flight, as a divisor: each chunk is reserved
/// twice, and loaded chunks need space, too.
const IN_FLIGHT_SHARE: usize = 8;

/// Requests that are planned ahead for a strided reader.
const STEPS_AHEAD: u64 = 32;

/// Maximum runs examined of each such request, and maximum jobs for all of them. A reader that
/// crosses more chunks at each step would fill the cache before it uses any.
const MAX_STEP_RUNS: usize = 4096;
const MAX_STEP_JOBS: usize = 256;

/// Chunks of one request that are queued for each load that may be in flight.
const QUEUED_PER_LOAD: usize = 4;

/// Bytes of chunks that are kept behind a sequential reader: its requests overtake each other.
const BEHIND: u64 = 4 << 20;

/// The threads that prefetch.
pub struct Prefetcher {
    cache: Arc<Cache>,
    pool: Arc<Pool>,
    threads: u64,
    spill: Spills,
}

/// The state of prefetching for the readers of one open file.
#[derive(Default)]
pub struct PrefetchState {
    /// Protects the history of requests.
    access: Mutex<PerArray<AccessHistory>>,
    /// Protects the windows in use, the latest last.
    windows: Mutex<PerArray<Vec<Window>>>,
    /// Whether a warning was logged that no spill file could be made.
    has_warned: AtomicBool,
    /// Whether the file is closed. Jobs that wait until then do nothing.
    closed: Arc<AtomicBool>,
}

/// What queued jobs find out about their reader when they begin.
#[derive(Clone)]
struct Demand {
    closed: Arc<AtomicBool>,
    /// See [`Plan::left`].
    left: Arc<AtomicU64>,
}

impl Demand {
    /// Returns whether the reader still needs a chunk. One that it has left behind it had to load
    /// itself.
    fn includes(&self, chunk: ChunkId) -> bool {
        !self.closed.load(Ordering::Relaxed) && chunk.0 >= self.left.load(Ordering::Relaxed)
    }
}

/// A state that is valid for one array. An open file may later show another array, with other
/// chunks.
#[derive(Default)]
struct PerArray<T> {
    id: u64,
    /// The array's generation of writes; 0 where it does not matter.
    writes: u64,
    known: T,
}

impl<T: Default> PerArray<T> {
    fn get(&mut self, array: &Array, writes: u64) -> &mut T {
        if (self.id, self.writes) != (array.id(), writes) {
            *self = PerArray {
                id: array.id(),
                writes,
                known: T::default(),
            };
        }
        &mut self.known
    }
}

impl PrefetchState {
    /// Returns whether the recorded request at `offset` is one of a sequential reader.
    pub fn is_sequential(&self, offset: u64) -> bool {
        lock(&self.access).known.pattern_at(offset) == Pattern::Sequential
    }
}

impl Drop for PrefetchState {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Relaxed);
    }
}

impl Prefetcher {
    /// Returns a prefetcher that fills `cache`. `threads` is the number of threads that decode,
    /// `requests` the maximum number of requests in flight to a remote store.
    ///
    /// # Errors
    ///
    /// Fails if no thread can be started.
    pub fn new(
        cache: Arc<Cache>,
        threads: usize,
        requests: usize,
        spill: SpillOptions,
    ) -> Result<Self> {
        let in_flight = cache.bound() / IN_FLIGHT_SHARE;
        Ok(Prefetcher {
            cache,
            pool: Arc::new(Pool::bounded(
                "readahead",
                threads.max(requests),
                in_flight,
            )?),
            threads: threads.max(1) as u64,
            spill: Spills::new(spill),
        })
    }

    /// Returns the decoded bytes with which one sequential reader may fill the cache.
    fn max_bytes(&self) -> u64 {
        self.cache.bound() as u64 / 4 * 3
    }

    /// Returns the number of bytes of chunks that are kept behind a sequential reader.
    fn behind(&self) -> u64 {
        BEHIND.min(self.max_bytes() / 8)
    }

    /// Records a request and prefetches the chunks that will follow it. Returns whether its reader
    /// is sequential. Drops the chunks that such a reader has left behind if `is_kept_elsewhere`,
    /// or if the array does not fit into the cache. In the latter case, they would be evicted
    /// before a second reader begins. Early drops let their buffers be reused while these are in
    /// the processor's cache.
    pub fn record_access(
        &self,
        state: &PrefetchState,
        array: &Arc<Array>,
        offset: u64,
        len: u64,
        is_kept_elsewhere: bool,
    ) -> bool {
        let once = is_kept_elsewhere || array.size() > self.max_bytes();
        let mut access = lock(&state.access);
        let (pattern, plan) = access.get(array, 0).record(offset, len);
        match pattern {
            Pattern::Random => {}
            Pattern::Sequential if self.is_wide(array, offset) => {
                drop(access);
                self.prefetch_window(state, array, offset, once);
            }
            Pattern::Sequential => {
                if once {
                    self.drop_behind(array, offset, plan);
                }
                let demand = Demand {
                    closed: state.closed.clone(),
                    left: plan.left.clone(),
                };
                self.prefetch_sets(array, offset, offset + len, plan, &demand);
            }
            Pattern::Strided(step) => {
                self.prefetch_steps(array, offset, len, step, plan, &state.closed)
            }
        }
        pattern == Pattern::Sequential
    }

    /// Prefetches for a sequential reader whose last request is `from..end`.
    fn prefetch_sets(
        &self,
        array: &Arc<Array>,
        from: u64,
        end: u64,
        plan: &mut Plan,
        demand: &Demand,
    ) {
        let grid = array.grid();
        let size = grid.max_chunk_size().max(1) as u64;
        let count = grid.chunk_count();
        let set = grid
            .working_set(end.min(grid.size().saturating_sub(1)))
            .chunks;
        // the next set is loaded as soon as the one before this one is dropped: its buffers are
        // reused
        let base = grid
            .working_set(from.saturating_sub(self.behind()))
            .chunks
            .end;
        let ahead = self
            .ahead_of(array, (set.end - set.start).saturating_mul(size))
            .min(plan.limit);
        let goal = (base + ahead / size).min(count);
        if plan.ahead < set.end && !self.prefetch_this_set(array, from, &set, plan, demand) {
            return;
        }
        let from = plan.ahead.max(set.start);
        if goal > from && ((goal - from) * size >= self.job(array) || goal == count) {
            self.load(array, from..goal, demand);
            plan.ahead = goal;
        }
    }

    /// Returns the number of bytes to prefetch beyond a working set of `set_bytes`.
    fn ahead_of(&self, array: &Array, set_bytes: u64) -> u64 {
        let in_flight = self.in_flight(array);
        let ahead = if array.is_remote() {
            // the next set, and enough to fill the link until the reader gets there
            set_bytes.saturating_add(in_flight.max(MIN_AHEAD))
        } else {
            set_bytes.max(MIN_AHEAD).max(in_flight)
        };
        // chunks being loaded take memory, too
        ahead.min(
            self.max_bytes()
                .saturating_sub(set_bytes)
                .saturating_sub(in_flight),
        )
    }

    /// Prefetches chunks of a working set that the reader reached before they were prefetched:
    /// first those from the reader's chunk to the end of the set, then those at its beginning.
    /// Returns whether the whole set was queued.
    fn prefetch_this_set(
        &self,
        array: &Arc<Array>,
        from: u64,
        set: &Range<u64>,
        plan: &mut Plan,
        demand: &Demand,
    ) -> bool {
        let len = set.end - set.start;
        let here = array
            .grid()
            .chunk_at(from)
            .map_or(set.start, |c| c.0.clamp(set.start, set.end));
        let (_, first, done) = plan
            .set
            .filter(|s| s.0 == set.start)
            .unwrap_or((set.start, here, 0));
        let goal = (plan.limit / array.grid().max_chunk_size().max(1) as u64)
            .clamp(1, len)
            .max(done);
        let from = first + done;
        let to = first + goal;
        self.load(array, from.min(set.end)..to.min(set.end), demand);
        self.load(
            array,
            from.max(set.end) - len..to.max(set.end) - len,
            demand,
        );
        plan.set = Some((set.start, first, goal));
        let is_whole = goal >= len;
        if is_whole {
            plan.ahead = set.end;
        }
        is_whole
    }

    /// Returns the decoded bytes of the chunks that are prefetched at a time.
    fn in_flight(&self, array: &Array) -> u64 {
        if array.has_neighbors() {
            return NEIGHBORS_JOBS * self.job(array);
        }
        let size = array.grid().max_chunk_size() as u64;
        let bytes = size.saturating_mul(array.concurrency(self.threads as usize) as u64);
        if array.is_remote() {
            bytes
                .min((self.cache.bound() / IN_FLIGHT_SHARE) as u64)
                .max(size)
        } else {
            bytes
        }
    }

    /// Returns the decoded bytes that one job loads; a remote chunk has a job of its own if no
    /// request reads several.
    fn job(&self, array: &Array) -> u64 {
        let share = (self.cache.bound() / IN_FLIGHT_SHARE) as u64 / NEIGHBORS_JOBS;
        if !array.is_remote() {
            JOB
        } else if array.has_neighbors() {
            NEIGHBORS_JOB.min(share).max(1)
        } else {
            1
        }
    }

    fn load(&self, array: &Arc<Array>, chunks: Range<u64>, demand: &Demand) {
        if array.has_neighbors() {
            return self.load_neighbors(array, chunks, demand);
        }
        let per_job = (self.job(array) / array.grid().max_chunk_size().max(1) as u64).max(1);
        let mut start = chunks.start;
        while start < chunks.end {
            let job = start..(start + per_job).min(chunks.end);
            start = job.end;
            let cache = self.cache.clone();
            let of = array.clone();
            let demand = demand.clone();
            self.run(array, move || {
                for chunk in job.map(ChunkId) {
                    if demand.includes(chunk) && !cache.prefetch(&of, chunk, ChunkPart::Whole) {
                        return;
                    }
                }
            });
        }
    }

    /// Queues jobs that load the chunks of each object.
    fn load_neighbors(&self, array: &Arc<Array>, chunks: Range<u64>, demand: &Demand) {
        let mut objects: Vec<Vec<ChunkId>> = Vec::new();
        let mut places = HashMap::new();
        for chunk in chunks.map(ChunkId) {
            let place = *places.entry(array.object_of(chunk)).or_insert_with(|| {
                objects.push(Vec::new());
                objects.len() - 1
            });
            objects[place].push(chunk);
        }
        let per_job =
            (self.job(array) / array.grid().max_chunk_size().max(1) as u64).max(1) as usize;
        for job in objects.iter().flat_map(|chunks| chunks.chunks(per_job)) {
            let cache = self.cache.clone();
            let of = array.clone();
            let demand = demand.clone();
            let mut job = job.to_vec();
            let pool = self.pool.clone();
            // this job may read an index; each request for chunks is a job of its own
            self.pool.run_early(move || {
                job.retain(|chunk| demand.includes(*chunk));
                if job.is_empty() {
                    return;
                }
                let (groups, single) = cache.lacking(&of, &job);
                for group in groups {
                    let cache = cache.clone();
                    let of = of.clone();
                    let demand = demand.clone();
                    pool.run_weighing(weight_of(&of, group.chunks.len()), move || {
                        if group.chunks.iter().any(|chunk| demand.includes(*chunk)) {
                            cache.prefetch_neighbors(&of, &group);
                        }
                    });
                }
                for chunk in single {
                    let cache = cache.clone();
                    let of = of.clone();
                    let demand = demand.clone();
                    pool.run_weighing(weight_of(&of, 1), move || {
                        if demand.includes(chunk) {
                            cache.prefetch(&of, chunk, ChunkPart::Whole);
                        }
                    });
                }
            });
        }
    }

    /// Queues a job that loads chunks of an array, one chunk at a time.
    fn run(&self, array: &Array, job: impl FnOnce() + Send + 'static) {
        self.pool.run_weighing(weight_of(array, 1), job);
    }

    /// Loads chunks in parallel for a request that reads them in sequence. The pool limits how many
    /// loads run at a time; the request waits for the loads that have begun.
    pub fn load_concurrently(
        &self,
        array: &Arc<Array>,
        chunks: impl Iterator<Item = (ChunkId, ChunkPart)>,
    ) {
        for (chunk, part) in chunks.take(QUEUED_PER_LOAD * array.concurrency(self.threads as usize))
        {
            let cache = self.cache.clone();
            let array = array.clone();
            // the request itself gets the error
            self.pool
                .run_urgent(move || drop(cache.get(&array, chunk, part)));
        }
    }

    /// Drops the chunks that a sequential reader at `from` has left behind.
    fn drop_behind(&self, array: &Array, from: u64, plan: &mut Plan) {
        let done = array
            .grid()
            .working_set(from.saturating_sub(self.behind()))
            .chunks
            .start;
        let before = plan.dropped.replace(done).unwrap_or(done);
        plan.left.store(done, Ordering::Relaxed);
        if before < done {
            let left = (before..done).map(|chunk| CachedItem::Chunk(ChunkId(chunk)));
            self.cache.drop_items(array, left);
        }
    }

    /// Prefetches for a reader whose requests of `len` bytes lie `step` bytes apart, the last one
    /// at `offset`.
    fn prefetch_steps(
        &self,
        array: &Arc<Array>,
        offset: u64,
        len: u64,
        step: i64,
        plan: &mut Plan,
        closed: &Arc<AtomicBool>,
    ) {
        if array.partial_decode() == PartialDecode::Plain {
            return; // there is nothing to decode
        }
        let runs_at = |there: u64| {
            let runs = array.grid().runs(there..there.saturating_add(len));
            runs.take(MAX_STEP_RUNS)
        };
        let first_at = |there: u64| runs_at(there).next().map(|run| run.chunk);
        let [here, next, after] =
            [0, 1, 2].map(|n| first_at(offset.saturating_add_signed(n * step)));
        // two steps may touch the same block
        let is_short = here == next || next == after;
        let part_of = |run: &Run| ChunkPart::Bytes {
            start: run.offset,
            end: if is_short {
                usize::MAX
            } else {
                run.offset + run.len
            },
        };
        let part_memory = |run: &Run| self.cache.part_memory(array, run.chunk, part_of(run));
        let bytes_of =
            |run| part_memory(&run).unwrap_or_else(|| array.grid().chunk_size(run.chunk)) as u64;
        let bytes: u64 = chunks_of(runs_at(offset)).map(bytes_of).sum();
        // what is loaded waits for the reader, and a chunk for which there is no memory is left out
        let room = self.max_bytes().saturating_sub(self.in_flight(array));
        let steps_ahead = STEPS_AHEAD.min(plan.limit).min(room / bytes.max(1)).max(1);
        plan.ahead = plan.ahead.saturating_sub(1);
        let mut jobs = 0;
        while plan.ahead < steps_ahead && jobs < MAX_STEP_JOBS {
            plan.ahead += 1;
            let distance = i64::try_from(plan.ahead)
                .ok()
                .and_then(|n| n.checked_mul(step));
            let Some(there) = distance.and_then(|distance| offset.checked_add_signed(distance))
            else {
                return;
            };
            for run in chunks_of(runs_at(there)) {
                let part = part_of(&run);
                if jobs == MAX_STEP_JOBS
                    || self.cache.holds(array, CachedItem::Chunk(run.chunk), part)
                {
                    continue;
                }
                jobs += 1;
                let cache = self.cache.clone();
                let of = array.clone();
                let closed = closed.clone();
                let weight = match part_memory(&run) {
                    // a whole chunk weighs half of what it reserves, too
                    Some(memory) if array.is_remote() => memory / 2,
                    _ => weight_of(array, 1),
                };
                self.pool.run_weighing(weight, move || {
                    if !closed.load(Ordering::Relaxed) {
                        cache.prefetch(&of, run.chunk, part);
                    }
                });
            }
        }
    }
}

/// Returns the first run of each chunk.
fn chunks_of(runs: impl Iterator<Item = Run>) -> impl Iterator<Item = Run> {
    let mut seen = HashSet::new();
    runs.filter(move |run| seen.insert(run.chunk))
}

/// Returns the weight in bytes of a job that loads `chunks` chunks at a time. Local chunks weigh
/// nothing, since they take no memory while a job waits for them.
fn weight_of(array: &Array, chunks: usize) -> usize {
    if array.is_remote() {
        array.grid().max_chunk_size().saturating_mul(chunks)
    } else {
        0
    }
}

#[cfg(test)]
mod tests;
