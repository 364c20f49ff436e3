//! Reading ahead: what an open file's readers will want is loaded by threads of its own while they are served. A forward
//! reader walks rows across a set of chunks and comes to the next set all at once, so that whole sets are read ahead; a
//! strided reader gets the pieces at the next steps; a random one nothing. Of a near store as much is loaded at a time as
//! there are threads to decode, of a far one as much as fills the link while answers are on their way. It knows chunks,
//! not files or requests.

use super::access::{Access, Pattern, Planned};
use super::spill::{Spill, SpillOptions, Spills};
use super::window::Window;
use super::{Cache, ChunkPart, Place};
use crate::array::Array;
use crate::error::Result;
use crate::util::memory::lock;
use crate::util::pool::Pool;
use crate::zarr::codec::PartialDecode;
use crate::zarr::grid::ChunkId;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Bytes read ahead of a forward reader at least, if there is room: enough to keep all threads busy where chunks are
/// small.
const MIN_AHEAD: u64 = 16 << 20;

/// Bytes of chunks that one job loads: a queue entry for each of a million small chunks would cost more than they do.
const JOB: u64 = 1 << 20;

/// Of the cache's bound, how much far chunks may take that are under way for those who read ahead: each is reserved twice,
/// and what has come needs room, too.
const UNDER_WAY_SHARE: usize = 8;

/// Requests that are looked ahead for a strided reader.
const STEPS_AHEAD: u64 = 32;

/// Runs of one such request that are looked at, and jobs for all of them: who goes through more chunks than that at each
/// step would fill the cache with them before he comes to use any.
const STEP_RUNS: usize = 4096;
const STEP_JOBS: usize = 256;

/// Chunks of a request for each that may be under way at once that are loaded beside it.
const BESIDE: usize = 4;

/// Bytes of the first window of a reader. They begin at its multiples: requests overtake each other.
const FIRST_WINDOW: u64 = 2 << 20;

/// Windows remembered for an open file: those of a few readers.
const WINDOWS: usize = 16;

/// What of the cache is left to slots and small pieces, in bytes.
const KEPT_FREE: usize = 64 << 10;

/// How far behind a forward reader chunks are kept, in bytes: requests overtake each other.
const BEHIND: u64 = 4 << 20;

/// Threads that read ahead.
pub struct Prefetcher {
    cache: Arc<Cache>,
    pool: Pool,
    threads: u64,
    spill: Spills,
}

/// The readers of one open file.
#[derive(Default)]
pub struct PrefetchState {
    /// Protects what was noted of them.
    access: Mutex<OfArray<Access>>,
    /// Protects the windows in use, the latest last.
    windows: Mutex<OfArray<Vec<Window>>>,
    /// It was said that there is no room for a spill file.
    warned: AtomicBool,
    /// Set when nobody will read any more: jobs that still wait do nothing.
    closed: Arc<AtomicBool>,
}

/// What is known of one array. The open file may come to be one of another, with other chunks at other places.
#[derive(Default)]
struct OfArray<T> {
    id: u64,
    /// See [`Array::writes`]; 0 where they don't matter.
    writes: u64,
    known: T,
}

impl<T: Default> OfArray<T> {
    fn of(&mut self, array: &Array) -> &mut T {
        self.of_written(array, 0)
    }

    /// What is known of the array as it is after so many writes.
    fn of_written(&mut self, array: &Array, writes: u64) -> &mut T {
        if (self.id, self.writes) != (array.id(), writes) {
            *self = OfArray { id: array.id(), writes, known: T::default() };
        }
        &mut self.known
    }
}

impl PrefetchState {
    /// True if the request at `offset`, which was noted, is one of a forward reader.
    pub fn is_forward(&self, offset: u64) -> bool {
        lock(&self.access).known.pattern_at(offset) == Pattern::Forward
    }
}

impl Drop for PrefetchState {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Relaxed);
    }
}

impl Prefetcher {
    /// Reads ahead into `cache`: so many `threads` decode, and `requests` are under way at once to a store that is far.
    pub fn new(cache: Arc<Cache>, threads: usize, requests: usize, spill: SpillOptions) -> Result<Self> {
        let under_way = cache.bound() / UNDER_WAY_SHARE;
        Ok(Prefetcher {
            cache,
            pool: Pool::bounded("readahead", threads.max(requests), under_way)?,
            threads: threads.max(1) as u64,
            spill: Spills::new(spill),
        })
    }

    /// Bytes of decoded chunks that one forward reader may fill the cache with.
    fn room(&self) -> u64 {
        self.cache.bound() as u64 / 4 * 3
    }

    /// How far behind a forward reader chunks are kept, in bytes.
    fn behind(&self) -> u64 {
        BEHIND.min(self.room() / 8)
    }

    /// True if a forward reader at `offset` goes through more chunks than there is room for.
    fn is_wide(&self, array: &Array, offset: u64) -> bool {
        if array.is_dirty() {
            return false; // what is put together would be worthless with the next write
        }
        if array.is_read_in_ranges() {
            return true;
        }
        let (grid, set) = (array.grid(), array.grid().working_set(offset));
        set.chunks.end - set.chunks.start > 1
            && (set.chunks.end - set.chunks.start).saturating_mul(grid.chunk_size() as u64) > self.room()
    }

    /// Notes a request and loads what will follow it. With `once`, what was read forwards is dropped, since somebody else
    /// keeps it.
    pub fn record_access(&self, readers: &PrefetchState, array: &Arc<Array>, offset: u64, len: u64, once: bool) {
        let mut access = lock(&readers.access);
        let (pattern, planned) = access.of(array).note(offset, len);
        match pattern {
            Pattern::Random => {}
            Pattern::Forward if self.is_wide(array, offset) => {
                drop(access);
                self.wide(readers, array, offset, once);
            }
            Pattern::Forward => {
                if once {
                    self.drop_behind(array, offset, planned);
                }
                self.forward(array, offset, offset + len, planned, &readers.closed);
            }
            Pattern::Strided(step) => self.strided(array, offset, len, step, planned, &readers.closed),
        }
    }

    fn forward(&self, array: &Arc<Array>, from: u64, end: u64, planned: &mut Planned, closed: &Arc<AtomicBool>) {
        let grid = array.grid();
        let (size, count) = (grid.chunk_size().max(1) as u64, grid.chunk_count());
        let set = grid.working_set(end.min(grid.size().saturating_sub(1))).chunks;
        let set_bytes = (set.end - set.start).saturating_mul(size);
        // what is being loaded takes room, too
        let under_way = self.under_way(array);
        let room = self.room().saturating_sub(set_bytes).saturating_sub(under_way);
        let ahead = match array.is_remote() {
            // all of the next set, and what fills the link until the reader comes there
            true => set_bytes.saturating_add(under_way.max(MIN_AHEAD)),
            false => set_bytes.max(MIN_AHEAD).max(under_way),
        };
        let ahead = ahead.min(planned.limit);
        // only when the set before is dropped: its buffers are used again
        let base = grid.working_set(from.saturating_sub(self.behind())).chunks.end;
        let goal = (base + ahead.min(room) / size).min(count);
        if planned.ahead < set.end {
            // a set that was not read ahead: from where the reader is
            let here = grid.chunk_at(from).map_or(set.start, |c| c.0.clamp(set.start, set.end));
            let (_, first, done) = planned.set.filter(|s| s.0 == set.start).unwrap_or((set.start, here, 0));
            let goal = (planned.limit / size).clamp(1, set.end - set.start);
            // up to the set's end, and on from its beginning
            let (from, to, turn) = (first + done, first + goal.max(done), set.end - set.start);
            self.load(array, from.min(set.end)..to.min(set.end), closed);
            self.load(array, from.max(set.end) - turn..to.max(set.end) - turn, closed);
            planned.set = Some((set.start, first, goal.max(done)));
            if goal < set.end - set.start {
                return;
            }
            planned.ahead = set.end;
        }
        let from = planned.ahead.max(set.start);
        if goal > from && ((goal - from) * size >= self.job(array) || goal == count) {
            self.load(array, from..goal, closed);
            planned.ahead = goal;
        }
    }

    /// Bytes of decoded chunks that are loaded at a time for those who read ahead.
    fn under_way(&self, array: &Array) -> u64 {
        let size = array.grid().chunk_size() as u64;
        let bytes = size.saturating_mul(array.concurrency(self.threads as usize) as u64);
        match array.is_remote() {
            true => bytes.min((self.cache.bound() / UNDER_WAY_SHARE) as u64).max(size),
            false => bytes,
        }
    }

    /// Bytes of decoded chunks that one job loads: far ones are better asked for each by itself.
    fn job(&self, array: &Array) -> u64 {
        if array.is_remote() { 1 } else { JOB }
    }

    fn load(&self, array: &Arc<Array>, chunks: Range<u64>, closed: &Arc<AtomicBool>) {
        let per_job = (self.job(array) / array.grid().chunk_size().max(1) as u64).max(1);
        let mut start = chunks.start;
        while start < chunks.end {
            let job = start..(start + per_job).min(chunks.end);
            start = job.end;
            let (cache, of, closed) = (self.cache.clone(), array.clone(), closed.clone());
            self.run(array, move || {
                for chunk in job {
                    if closed.load(Ordering::Relaxed) || !cache.read_ahead(&of, ChunkId(chunk), ChunkPart::Whole) {
                        return;
                    }
                }
            });
        }
    }

    /// Runs a job that loads of an array, one chunk if it is far.
    fn run(&self, array: &Array, job: impl FnOnce() + Send + 'static) {
        let weight = if array.is_remote() { array.grid().chunk_size() } else { 0 };
        self.pool.run_weighing(weight, job);
    }

    /// Loads chunks that a request is about to ask for one after the other, as far as there are threads: it waits for what
    /// they have begun.
    pub fn load_beside(&self, array: &Arc<Array>, chunks: impl Iterator<Item = (ChunkId, ChunkPart)>) {
        for (chunk, want) in chunks.take(BESIDE * array.concurrency(self.threads as usize)) {
            let (cache, array) = (self.cache.clone(), array.clone());
            // the request itself is told what goes wrong
            self.pool.run_urgent(move || drop(cache.get(&array, chunk, want)));
        }
    }

    /// Builds the window after the one that holds `offset`.
    fn wide(&self, readers: &PrefetchState, array: &Arc<Array>, offset: u64, once: bool) {
        let mut windows = lock(&readers.windows);
        let windows = windows.of_written(array, array.freshness().writes());
        let here = self.window_at(windows, array, offset, &readers.warned).range;
        if once {
            self.drop_windows_behind(array, windows, &here, offset.saturating_sub(self.behind()));
        }
        let next = here.end;
        let is_planned = windows.iter().any(|w| w.range.contains(&next));
        // it comes after this one, which somebody waits for
        let is_early = !self.cache.holds(array, Place::window(&here, array.freshness().writes()), ChunkPart::Whole);
        if is_planned || is_early || next >= array.size() || !self.is_wide(array, next) {
            return;
        }
        let next = self.window_at(windows, array, next, &readers.warned);
        // room for it must not be made by dropping this one
        if next.room(array).saturating_add((here.end - here.start) as usize + KEPT_FREE) > self.cache.bound() {
            return;
        }
        let (cache, array, closed) = (self.cache.clone(), array.clone(), readers.closed.clone());
        self.pool.run(move || {
            if !closed.load(Ordering::Relaxed) {
                cache.window_ahead(&array, &next);
            }
        });
    }

    /// Drops the windows that lie one after the other before `here` and end before `behind`. Others are those of other
    /// readers.
    fn drop_windows_behind(&self, array: &Array, windows: &mut Vec<Window>, here: &Range<u64>, behind: u64) {
        let mut start = here.start;
        while let Some(i) = windows.iter().position(|w| w.range.end == start) {
            start = windows[i].range.start;
            if windows[i].range.end <= behind {
                let done = windows.remove(i);
                self.cache.drop_places(array, std::iter::once(done.place()));
            }
        }
    }

    /// The window that holds `offset`. The first is small, since somebody waits for it; those that follow on one grow.
    fn window_at(&self, windows: &mut Vec<Window>, array: &Array, offset: u64, warned: &AtomicBool) -> Window {
        if let Some(found) = windows.iter().find(|w| w.range.contains(&offset)) {
            return found.clone();
        }
        let set = array.grid().working_set(offset);
        let aligned = (offset / FIRST_WINDOW * FIRST_WINDOW).max(set.flat.start);
        let before =
            windows.iter().filter(|w| w.range.end >= aligned && w.range.end <= offset).max_by_key(|w| w.range.end);
        let (start, len) = before.map_or((aligned, FIRST_WINDOW), |w| {
            (w.range.end, 4 * (w.range.end - w.range.start).max(FIRST_WINDOW / 4))
        });
        let end = start.saturating_add(len.min((self.room() / 3).max(FIRST_WINDOW))).min(set.flat.end);
        let spill = windows.iter().filter_map(|w| w.spill.as_ref()).find(|s| *s.chunks() == set.chunks).cloned();
        let spill = spill.or_else(|| self.spill_of(array, set.chunks, warned));
        let (first, last, threads) = (before.is_none(), end == set.flat.end, self.threads_for(array));
        let window = Window {
            range: start..end,
            first,
            last,
            broken: false,
            spill,
            threads,
            writes: array.freshness().writes(),
        };
        windows.push(window.clone());
        if windows.len() > WINDOWS {
            windows.remove(0);
        }
        window
    }

    /// Threads that build a window: no more than a quarter of the cache has room for, each with its chunk.
    fn threads_for(&self, array: &Array) -> u64 {
        let each = array.grid().chunk_size().saturating_mul(2).max(1);
        ((self.cache.bound() / 4 / each) as u64).clamp(1, array.concurrency(self.threads as usize) as u64)
    }

    /// A spill file for chunks that can't be decoded in parts.
    fn spill_of(&self, array: &Array, chunks: Range<u64>, warned: &AtomicBool) -> Option<Arc<Spill>> {
        if array.partial_decode() == PartialDecode::Plain || self.spill.is_off() {
            return None;
        }
        match self.spill.open(chunks, array.grid().chunk_size()) {
            Ok(spill) => Some(Arc::new(spill)),
            Err(e) => {
                if !warned.swap(true, Ordering::Relaxed) {
                    log::warn!("{}: a row of its chunks is decoded again and again: no spill file: {e}", array.key());
                }
                None
            }
        }
    }

    /// Reads up to `len` bytes into `out`, from windows, if `offset` is that of a forward reader who needs them; None if
    /// it isn't, or if a window can't be built: then chunk by chunk it must be found out which bytes can be read. With
    /// `cached`, false is returned if that would take the store or a wait.
    pub fn read(
        &self,
        readers: &PrefetchState,
        array: &Array,
        offset: u64,
        len: usize,
        cached: bool,
        out: &mut Vec<u8>,
    ) -> Option<bool> {
        let end = offset.saturating_add(len as u64).min(array.size());
        if offset >= end || !readers.is_forward(offset) {
            return None;
        }
        out.resize((end - offset) as usize, 0);
        let (mut at, mut before) = (offset, None);
        while at < end {
            if !self.is_wide(array, at) {
                return None;
            }
            let window = self.window_at(
                lock(&readers.windows).of_written(array, array.freshness().writes()),
                array,
                at,
                &readers.warned,
            );
            if window.broken {
                return None;
            }
            let piece = match cached {
                true => match self.cache.peek_window(array, &window) {
                    Some(piece) => piece,
                    None => return Some(false),
                },
                false => self.cache.window(array, &window),
            };
            let Ok(piece) = piece else {
                let mut windows = lock(&readers.windows);
                windows
                    .of_written(array, array.freshness().writes())
                    .iter_mut()
                    .filter(|w| w.range == window.range)
                    .for_each(|w| w.broken = true);
                return None;
            };
            let piece = piece?;
            // a chunk was replaced between the two
            if before.is_some_and(|before| !piece.agrees(&before)) {
                return None;
            }
            let from = piece.at((at - window.range.start) as usize)?;
            let to = &mut out[(at - offset) as usize..];
            let n = from.len().min(to.len());
            to[..n].copy_from_slice(&from[..n]);
            at += n as u64;
            before = Some(piece);
        }
        Some(true)
    }

    fn drop_behind(&self, array: &Array, from: u64, planned: &mut Planned) {
        let done = array.grid().working_set(from.saturating_sub(self.behind())).chunks.start;
        let before = planned.dropped.replace(done).unwrap_or(done);
        self.cache.drop_chunks(array, before..done);
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
        if array.partial_decode() == PartialDecode::Plain {
            return; // there is nothing to decode
        }
        planned.ahead = planned.ahead.saturating_sub(1);
        let (mut asked, mut jobs) = (HashSet::new(), 0);
        while planned.ahead < STEPS_AHEAD && jobs < STEP_JOBS {
            planned.ahead += 1;
            let there = i64::try_from(planned.ahead).ok().and_then(|n| n.checked_mul(step));
            let Some(there) = there.and_then(|far| offset.checked_add_signed(far)) else { return };
            asked.clear();
            for run in array.grid().runs(there..there.saturating_add(len)).take(STEP_RUNS) {
                let is_new = jobs < STEP_JOBS && asked.insert(run.chunk);
                if !is_new || self.cache.holds(array, Place::Chunk(run.chunk), ChunkPart::At(run.offset)) {
                    continue;
                }
                jobs += 1;
                let (cache, of, closed) = (self.cache.clone(), array.clone(), closed.clone());
                self.run(array, move || {
                    if !closed.load(Ordering::Relaxed) {
                        cache.read_ahead(&of, run.chunk, ChunkPart::At(run.offset));
                    }
                });
            }
        }
    }
}
