//! Requests that need no copy: their bytes lie side by side in one cached chunk or window, from
//! which the reply is sent. Such requests load nothing and never wait.

use super::{PrefetchState, Prefetcher};
use crate::array::Array;
use crate::cache::chunk_cache::{ChunkPart, DecodedPart};
use crate::error::Result;
use crate::util::memory::lock;
use std::ops::Range;

/// Bytes that lie side by side in a cached chunk or window. They stay in memory as long as this
/// value.
pub struct CachedRun {
    part: DecodedPart,
    /// Offset in the chunk or window, in bytes.
    offset: usize,
    len: usize,
}

impl CachedRun {
    /// Returns the `len` bytes at `offset` of a chunk or window; `None` if `part` does not have all
    /// of them.
    fn new(part: DecodedPart, offset: usize, len: usize) -> Option<Self> {
        let is_whole = part.at(offset).is_some_and(|bytes| bytes.len() >= len);
        is_whole.then_some(CachedRun { part, offset, len })
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        self.part
            .at(self.offset)
            .and_then(|bytes| bytes.get(..self.len))
            .unwrap_or_default()
    }
}

impl Prefetcher {
    /// Returns the flat bytes `range`, which are not empty, if they lie side by side in a cached
    /// chunk or window.
    ///
    /// # Errors
    ///
    /// The cached error of the chunk.
    pub fn cached_run(
        &self,
        state: &PrefetchState,
        array: &Array,
        range: Range<u64>,
    ) -> Result<Option<CachedRun>> {
        if state.is_sequential(range.start) && self.is_wide(array, range.start) {
            return Ok(self.window_run(state, array, &range));
        }
        let len = (range.end - range.start) as usize;
        let Some(run) = array.grid().runs(range).next().filter(|run| run.len == len) else {
            return Ok(None);
        };
        let part = ChunkPart::Bytes {
            start: run.offset,
            end: run.offset + len,
        };
        let found = self
            .cache
            .peek(array, run.chunk, part)
            .transpose()?
            .flatten();
        Ok(found.and_then(|part| CachedRun::new(part, run.offset, len)))
    }

    /// Returns bytes of the window that a sequential reader has come to.
    fn window_run(
        &self,
        state: &PrefetchState,
        array: &Array,
        range: &Range<u64>,
    ) -> Option<CachedRun> {
        let writes = array.freshness().writes();
        let mut windows = lock(&state.windows);
        let window = self.window_at(
            windows.get(array, writes),
            array,
            writes,
            range.start,
            &state.has_warned,
        );
        drop(windows);
        if window.is_broken || window.range.end < range.end {
            return None;
        }
        let part = self.cache.peek_window(array, &window)?.ok().flatten()?;
        CachedRun::new(
            part,
            (range.start - window.range.start) as usize,
            (range.end - range.start) as usize,
        )
    }
}
