//! Sequential reads of rows that cross more chunks than the cache can hold. They are served from
//! *windows*: stretches of flat bytes that are built by visiting each chunk once per window, not
//! once per row.

use super::{PrefetchState, Prefetcher};
use crate::array::Array;
use crate::cache::Wait;
use crate::cache::chunk_cache::{
    CachedItem, CachedRun, ChunkPart, FoundBytes, Spill, Wanted, Window,
};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use zarrfs_base::memory::lock;
use zarrfs_format::codec::PartialDecode;

/// Bytes of the first window of a reader. That window begins at a multiple of them, since requests
/// overtake each other.
const FIRST_WINDOW: u64 = 2 << 20;

/// Windows remembered for an open file: those of a few readers.
const MAX_WINDOWS: usize = 16;

/// Bytes of the cache that windows leave to slots and small parts.
const KEPT_FREE: usize = 64 << 10;

impl Prefetcher {
    /// Returns whether a sequential reader at `offset` crosses more chunks than the cache can hold.
    pub(super) fn is_wide(&self, array: &Array, offset: u64) -> bool {
        if array.is_dirty() {
            return false; // the next write would invalidate the window
        }
        if array.is_read_in_ranges() {
            return true;
        }
        let grid = array.grid();
        let set = array.grid().working_set(offset);
        set.chunks.end - set.chunks.start > 1
            && (set.chunks.end - set.chunks.start).saturating_mul(grid.max_chunk_size() as u64)
                > self.max_bytes()
    }

    /// Prefetches the window after the one that holds `offset`. With `once`, also drops the windows
    /// that the reader has passed.
    pub(super) fn prefetch_window(
        &self,
        state: &PrefetchState,
        array: &Arc<Array>,
        offset: u64,
        once: bool,
    ) {
        let writes = array.freshness().writes();
        let mut windows = lock(&state.windows);
        let windows = windows.get(array, writes);
        let here = self
            .window_at(windows, array, writes, offset, &state.has_warned)
            .range;
        if once {
            self.drop_windows_behind(array, windows, &here, offset.saturating_sub(self.behind()));
        }
        let next = here.end;
        let is_planned = windows.iter().any(|w| w.range.contains(&next));
        // a reader waits for this window: it comes before the next one
        let is_early =
            !self
                .cache
                .holds(array, CachedItem::window(&here, writes), ChunkPart::Whole);
        if is_planned || is_early || next >= array.size() || !self.is_wide(array, next) {
            return;
        }
        let next = self.window_at(windows, array, writes, next, &state.has_warned);
        // it must not evict this one
        if next
            .memory(array)
            .saturating_add((here.end - here.start) as usize + KEPT_FREE)
            > self.cache.bound()
        {
            return;
        }
        let cache = self.cache.clone();
        let array = array.clone();
        let closed = state.closed.clone();
        self.pool.run(move || {
            if !closed.load(Ordering::Relaxed) {
                cache.prefetch_item(&array, Wanted::Window(&next));
            }
        });
    }

    /// Drops the adjacent windows before `here` that end before `behind`. Others belong to other
    /// readers.
    fn drop_windows_behind(
        &self,
        array: &Array,
        windows: &mut Vec<Window>,
        here: &Range<u64>,
        behind: u64,
    ) {
        let mut start = here.start;
        while let Some(i) = windows.iter().position(|w| w.range.end == start) {
            start = windows[i].range.start;
            if windows[i].range.end <= behind {
                let done = windows.remove(i);
                self.cache.drop_items(array, std::iter::once(done.item()));
            }
        }
    }

    /// Returns the window that holds `offset`. The first one of a reader is small, since the reader
    /// waits for it; later ones are up to four times as large as the one before.
    pub(super) fn window_at(
        &self,
        windows: &mut Vec<Window>,
        array: &Array,
        writes: u64,
        offset: u64,
        has_warned: &AtomicBool,
    ) -> Window {
        if let Some(found) = windows.iter().find(|w| w.range.contains(&offset)) {
            return found.clone();
        }
        let set = array.grid().working_set(offset);
        let aligned = (offset / FIRST_WINDOW * FIRST_WINDOW).max(set.flat.start);
        let before = windows
            .iter()
            .filter(|w| w.range.end >= aligned && w.range.end <= offset)
            .max_by_key(|w| w.range.end);
        let (start, len) = before.map_or((aligned, FIRST_WINDOW), |w| {
            (
                w.range.end,
                4 * (w.range.end - w.range.start).max(FIRST_WINDOW / 4),
            )
        });
        let end = start
            .saturating_add(len.min((self.max_bytes() / 3).max(FIRST_WINDOW)))
            .min(set.flat.end);
        let spill = windows
            .iter()
            .filter_map(|w| w.spill.as_ref())
            .find(|s| *s.chunks() == set.chunks)
            .cloned();
        let spill = spill.or_else(|| self.open_spill(array, set.chunks, has_warned));
        let is_first = before.is_none();
        let is_last = end == set.flat.end;
        let threads = self.window_threads(array);
        let window = Window {
            range: start..end,
            is_first,
            is_last,
            is_broken: false,
            spill,
            threads,
            writes,
        };
        windows.push(window.clone());
        if windows.len() > MAX_WINDOWS {
            windows.remove(0);
        }
        window
    }

    /// Returns the number of threads that build a window: as many as fit into a quarter of the
    /// cache, each with its chunk.
    fn window_threads(&self, array: &Array) -> u64 {
        let each = array.grid().max_chunk_size().saturating_mul(2).max(1);
        ((self.cache.bound() / 4 / each) as u64)
            .clamp(1, array.concurrency(self.threads as usize) as u64)
    }

    /// Opens a spill file for chunks that have to be decoded. Returns `None` for uncompressed
    /// chunks, and if there can be no spill file.
    fn open_spill(
        &self,
        array: &Array,
        chunks: Range<u64>,
        has_warned: &AtomicBool,
    ) -> Option<Arc<Spill>> {
        if array.partial_decode() == PartialDecode::Plain || self.spill.is_off() {
            return None;
        }
        match self.spill.open(chunks, array.grid().max_chunk_size()) {
            Ok(spill) => Some(Arc::new(spill)),
            Err(e) => {
                if !has_warned.swap(true, Ordering::Relaxed) {
                    log::warn!(
                        "{}: a row of its chunks is decoded again and again: no spill file: {e}",
                        array.key()
                    );
                }
                None
            }
        }
    }

    /// Reads flat bytes `range`, which are not empty, of a sequential reader from windows. Returns
    /// `None` if the chunks have to be read instead: if they fit into the cache, or if a window
    /// cannot be built or used.
    pub fn read_windows(
        &self,
        state: &PrefetchState,
        array: &Array,
        range: &Range<u64>,
        wait: Wait,
        out: &mut Vec<u8>,
    ) -> Option<FoundBytes> {
        let writes = array.freshness().writes();
        let mut at = range.start;
        let mut before = None;
        while at < range.end {
            if !self.is_wide(array, at) {
                return None;
            }
            let mut windows = lock(&state.windows);
            let window = self.window_at(
                windows.get(array, writes),
                array,
                writes,
                at,
                &state.has_warned,
            );
            drop(windows);
            if window.is_broken {
                return None;
            }
            let wanted = Wanted::Window(&window);
            let part = if wait == Wait::Never {
                match self.cache.peek_item(array, wanted) {
                    Some(part) => part,
                    None => return Some(FoundBytes::MustWait),
                }
            } else {
                self.cache.get_item(array, wanted)
            };
            let Ok(part) = part else {
                let mut windows = lock(&state.windows);
                let broken = windows
                    .get(array, writes)
                    .iter_mut()
                    .filter(|w| w.range == window.range);
                broken.for_each(|window| window.is_broken = true);
                return None;
            };
            let part = part?;
            // a chunk was replaced between the two windows
            if before.is_some_and(|before| !part.is_consistent_with(&before)) {
                return None;
            }
            let within = (at - window.range.start) as usize;
            if at == range.start && range.end <= window.range.end {
                let len = (range.end - range.start) as usize;
                return CachedRun::new(part, within, len).map(FoundBytes::Run);
            }
            out.resize((range.end - range.start) as usize, 0);
            let from = part.at(within)?;
            let to = &mut out[(at - range.start) as usize..];
            let n = from.len().min(to.len());
            to[..n].copy_from_slice(&from[..n]);
            at += n as u64;
            before = Some(part);
        }
        Some(FoundBytes::Copied)
    }
}
