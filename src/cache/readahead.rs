//! Reading ahead: what an open file's readers will want is loaded by threads of its own while they are served. A forward
//! reader walks rows across a set of chunks and comes to the next set all at once, so that whole sets are read ahead; a
//! strided reader gets the pieces at the next steps; a random one nothing. It knows chunks, not files or requests.

use super::access::{Access, Pattern, Planned};
use super::{Cache, Want};
use crate::array::Array;
use crate::codec::Partly;
use crate::error::Result;
use crate::grid::ChunkId;
use crate::memory::lock;
use crate::pool::Pool;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Bytes read ahead of a forward reader at least, if there is room: enough to keep all threads busy where chunks are
/// small.
const MIN_AHEAD: u64 = 16 << 20;

/// Bytes of chunks that one job loads: a queue entry for each of a million small chunks would cost more than they do.
const JOB: u64 = 1 << 20;

/// Requests that are looked ahead for a strided reader.
const STEPS_AHEAD: u64 = 32;

/// How far behind a forward reader chunks are kept, in bytes: requests overtake each other.
const BEHIND: u64 = 4 << 20;

/// Threads that read ahead.
pub struct ReadAhead {
    cache: Arc<Cache>,
    pool: Pool,
    threads: u64,
}

/// The readers of one open file.
#[derive(Default)]
pub struct Readers {
    /// Protects what was noted of them.
    access: Mutex<Access>,
    /// Set when nobody will read any more: jobs that still wait do nothing.
    closed: Arc<AtomicBool>,
}

impl Readers {
    /// True if the request at `offset`, which was noted, is one of a forward reader.
    pub fn is_forward(&self, offset: u64) -> bool {
        lock(&self.access).pattern_at(offset) == Pattern::Forward
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Relaxed);
    }
}

impl ReadAhead {
    /// Reads ahead into `cache` with so many threads.
    pub fn new(cache: Arc<Cache>, threads: usize) -> Result<Self> {
        Ok(ReadAhead { cache, pool: Pool::new("readahead", threads)?, threads: threads.max(1) as u64 })
    }

    /// Bytes of decoded chunks that one forward reader may fill the cache with.
    pub fn room(&self) -> u64 {
        self.cache.bound() as u64 / 4 * 3
    }

    /// Notes a request and loads what will follow it. With `once`, what was read forwards is dropped, since somebody else
    /// keeps it.
    pub fn note(&self, readers: &Readers, array: &Arc<Array>, offset: u64, len: u64, once: bool) {
        let mut access = lock(&readers.access);
        let (pattern, planned) = access.note(offset, len);
        match pattern {
            Pattern::Random => {}
            Pattern::Forward => {
                self.forward(array, offset, offset + len, planned, &readers.closed);
                if once {
                    self.drop_behind(array, offset, planned);
                }
            }
            Pattern::Strided(step) => self.strided(array, offset, len, step, planned, &readers.closed),
        }
    }

    fn forward(&self, array: &Arc<Array>, from: u64, end: u64, planned: &mut Planned, closed: &Arc<AtomicBool>) {
        let grid = array.grid();
        let (size, count) = (grid.chunk_size().max(1) as u64, grid.chunk_count());
        let set = grid.working_set(end.min(grid.size().saturating_sub(1)));
        let set_bytes = (set.end - set.start).saturating_mul(size);
        if set_bytes > self.room() {
            return;
        }
        let ahead = set_bytes.max(MIN_AHEAD).max(self.threads * size).min(self.room() - set_bytes);
        let goal = (set.end + ahead / size).min(count);
        if planned.ahead == 0 {
            // what this reader comes to first
            let here = grid.chunk_at(from).map_or(set.start, |c| c.0.clamp(set.start, set.end));
            self.load(array, here..set.end, closed);
            self.load(array, set.start..here, closed);
            planned.ahead = set.end;
        }
        let from = planned.ahead.max(set.start);
        if goal > from && ((goal - from) * size >= JOB || goal == count) {
            self.load(array, from..goal, closed);
            planned.ahead = goal;
        }
    }

    fn load(&self, array: &Arc<Array>, chunks: Range<u64>, closed: &Arc<AtomicBool>) {
        let per_job = (JOB / array.grid().chunk_size().max(1) as u64).max(1);
        let mut start = chunks.start;
        while start < chunks.end {
            let job = start..(start + per_job).min(chunks.end);
            start = job.end;
            let (cache, array, closed) = (self.cache.clone(), array.clone(), closed.clone());
            self.pool.run(move || {
                for chunk in job {
                    if closed.load(Ordering::Relaxed) || !cache.read_ahead(&array, ChunkId(chunk), Want::Whole) {
                        return;
                    }
                }
            });
        }
    }

    fn drop_behind(&self, array: &Array, from: u64, planned: &mut Planned) {
        let done = array.grid().working_set(from.saturating_sub(BEHIND)).start;
        if planned.dropped == 0 {
            planned.dropped = done;
        }
        if done > planned.dropped {
            self.cache.drop_chunks(array, planned.dropped..done);
            planned.dropped = done;
        }
    }

    fn strided(
        &self,
        array: &Arc<Array>,
        offset: u64,
        len: u64,
        step: i64,
        planned: &mut Planned,
        closed: &Arc<AtomicBool>,
    ) {
        if array.partly() == Partly::Plain {
            return; // there is nothing to decode
        }
        planned.ahead = planned.ahead.saturating_sub(1);
        while planned.ahead < STEPS_AHEAD {
            planned.ahead += 1;
            let there = i64::try_from(planned.ahead).ok().and_then(|n| n.checked_mul(step));
            let Some(there) = there.and_then(|far| offset.checked_add_signed(far)) else { return };
            let mut last = None;
            for run in array.grid().runs(there..there.saturating_add(len)) {
                if last == Some(run.chunk) || self.cache.holds(array, run.chunk, Want::At(run.offset)) {
                    continue;
                }
                last = Some(run.chunk);
                let (cache, array, closed) = (self.cache.clone(), array.clone(), closed.clone());
                self.pool.run(move || {
                    if !closed.load(Ordering::Relaxed) {
                        cache.read_ahead(&array, run.chunk, Want::At(run.offset));
                    }
                });
            }
        }
    }
}
