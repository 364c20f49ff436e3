//! Gathers flat bytes into a reply: splits a request into runs of chunks and copies each run from the decoded chunk.
//!
//! Invariant: in one reply all bytes of a chunk are of one version.

use crate::array::{Array, VersionTag};
use crate::cache::{Cache, ChunkPart, DecodedPart, Prefetcher};
use crate::error::{Error, Result};
use crate::stats::Stats;
use crate::zarr::codec::PartialDecode;
use crate::zarr::grid::{ChunkId, Run};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// Maximum number of decoded parts held during a read: consecutive rows of the array cross the same chunks again and
/// again.
const HELD: usize = 32;

/// Runs processed per batch; bounds memory.
const BATCH: usize = 1 << 16;

/// Maximum number of attempts at a request during which chunks are replaced.
const ATTEMPTS: usize = 32;

thread_local! {
    /// Reused buffer for bytes of an uncompressed chunk, from the store to the reply.
    static PLAIN: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The result of a cache lookup: `None` if the chunk is not cached, `Some(None)` if it is known to be uninitialized.
type Cached = Option<Option<DecodedPart>>;

/// A run that is still to be copied, and its position in the reply.
type Missing = (Run, usize);

/// Returns the part of a chunk that begins where the run does and has `len` bytes.
fn bytes_of(run: &Run, len: usize) -> ChunkPart {
    ChunkPart::Bytes { start: run.offset, end: run.offset + len }
}

/// One request for flat bytes.
pub struct FlatRead<'a> {
    /// The decoded chunks.
    pub cache: &'a Cache,
    /// The threads that help to load several missing chunks.
    pub ahead: &'a Prefetcher,
    /// The array.
    pub array: &'a Arc<Array>,
    /// The first flat position, in bytes.
    pub offset: u64,
    /// Whether to load whole chunks, because the reader will want all of them.
    pub whole: bool,
}

/// A reply that is being gathered.
struct FlatReply<'a> {
    request: &'a FlatRead<'a>,
    out: &'a mut [u8],
    /// The version of each chunk in the reply.
    tags: HashMap<ChunkId, VersionTag>,
    /// Whether a chunk was replaced meanwhile, so that the reply mixes two versions.
    mixed: bool,
}

impl FlatRead<'_> {
    /// Reads up to `len` bytes into `out`, fewer only at the end of the array. Returns `false`, with unspecified bytes
    /// in `out`, if that would need the store or a wait and `may_wait` is not set.
    pub fn read(&self, len: usize, may_wait: bool, stats: &Stats, out: &mut Vec<u8>) -> Result<bool> {
        let end = self.offset.saturating_add(len as u64).min(self.array.size());
        out.resize(end.saturating_sub(self.offset) as usize, 0);
        for _ in 0..ATTEMPTS {
            let mut reply = FlatReply { request: self, out, tags: HashMap::new(), mixed: false };
            if !self.gather(end, may_wait, stats, &mut reply)? {
                return Ok(false);
            }
            if !reply.mixed {
                return Ok(true);
            }
        }
        Err(Error::system(libc::EIO)
            .context(format!("{}: chunks are replaced faster than they are read", self.array.key())))
    }

    fn gather(&self, end: u64, may_wait: bool, stats: &Stats, reply: &mut FlatReply) -> Result<bool> {
        let mut runs = self.array.grid().runs(self.offset..end).peekable();
        let mut done = 0;
        while runs.peek().is_some() {
            let start = Instant::now();
            let missing = self.copy_cached(runs.by_ref().take(BATCH), may_wait, &mut done, reply)?;
            stats.copy_time.add_since(start);
            let Some(mut missing) = missing else { return Ok(false) };
            // load chunk by chunk: a thread that waits for memory of the cache must not hold a chunk
            missing.sort_unstable_by_key(|(run, at)| (run.chunk, *at));
            let by_chunk = || missing.chunk_by(|(a, _), (b, _)| a.chunk == b.chunk);
            // the chunks of a forward reader are prefetched anyway
            if !self.whole && self.array.partial_decode() != PartialDecode::Plain {
                let others = by_chunk().skip(1).filter_map(|same| Some((same.first()?.0, self.want(same))));
                self.ahead.load_concurrently(self.array, others.map(|(run, want)| (run.chunk, want)));
            }
            for same in by_chunk() {
                self.load(same, reply)?;
            }
        }
        Ok(true)
    }

    /// Copies the cached runs, in file order, and returns the missing ones, or `None` if some are missing and
    /// `may_wait` is not set. A chunk that was missing once is not looked up again.
    fn copy_cached(
        &self,
        runs: impl Iterator<Item = Run>,
        may_wait: bool,
        done: &mut usize,
        reply: &mut FlatReply,
    ) -> Result<Option<Vec<Missing>>> {
        let mut held: [Option<(ChunkId, Cached)>; HELD] = Default::default();
        let (mut missing, mut missing_chunks) = (Vec::new(), HashSet::new());
        for mut run in runs {
            let slot = &mut held[(run.chunk.0 % HELD as u64) as usize];
            while run.len > 0 {
                let covers = |known: &Cached| match known {
                    Some(Some(piece)) => piece.at(run.offset).is_some(),
                    _ => true,
                };
                if !slot.as_ref().is_some_and(|(chunk, known)| *chunk == run.chunk && covers(known)) {
                    // another reader may have loaded a missing chunk meanwhile, in another version
                    let known = match missing_chunks.contains(&run.chunk) {
                        true => None,
                        false => self.cache.peek(self.array, run.chunk, bytes_of(&run, run.len)).transpose()?,
                    };
                    if let Some(piece) = &known {
                        reply.record_version(run.chunk, DecodedPart::tag_of(piece.as_ref()));
                    }
                    *slot = Some((run.chunk, known));
                }
                let n = match slot {
                    Some((_, Some(piece))) => reply.copy(piece.as_ref(), &run, *done),
                    _ if !may_wait => return Ok(None),
                    _ => {
                        missing_chunks.insert(run.chunk);
                        missing.push((run, *done));
                        run.len
                    }
                };
                *done += n;
                run = Run { chunk: run.chunk, offset: run.offset + n, len: run.len - n };
            }
        }
        Ok(Some(missing))
    }

    /// Loads one chunk and copies its missing runs, in file order.
    fn load(&self, missing: &[Missing], reply: &mut FlatReply) -> Result<()> {
        let (Some(first), Some(last)) = (missing.first(), missing.last()) else { return Ok(()) };
        let chunk = first.0.chunk;
        let range = first.0.offset..last.0.offset + last.0.len;
        let needed: usize = missing.iter().map(|(run, _)| run.len).sum();
        let whole = self.want(missing) == ChunkPart::Whole;
        if !whole && self.array.partial_decode() == PartialDecode::Plain && range.len() <= 4 * needed {
            return self.read_plain(chunk, range, missing, reply);
        }
        let mut piece = None;
        for (run, at) in missing {
            let (mut run, mut at) = (*run, *at);
            while run.len > 0 {
                let want = if whole { ChunkPart::Whole } else { bytes_of(&run, range.end - run.offset) };
                let covers = |p: &Option<DecodedPart>| p.as_ref().is_none_or(|p| p.at(run.offset).is_some());
                if !piece.as_ref().is_some_and(covers) {
                    // the next call may wait for memory, and this thread must not hold a chunk then
                    drop(piece.take());
                    let got = self.cache.get(self.array, chunk, want)?;
                    reply.record_version(chunk, DecodedPart::tag_of(got.as_ref()));
                    piece = Some(got);
                }
                let n = reply.copy(piece.as_ref().and_then(Option::as_ref), &run, at);
                (run.offset, run.len, at) = (run.offset + n, run.len - n, at + n);
            }
        }
        Ok(())
    }

    /// Returns the part of a chunk to load for the runs `missing`.
    fn want(&self, missing: &[Missing]) -> ChunkPart {
        let (Some((first, _)), Some((last, _))) = (missing.first(), missing.last()) else { return ChunkPart::Whole };
        let needed: usize = missing.iter().map(|(run, _)| run.len).sum();
        let is_small = !self.whole && 2 * needed < self.array.grid().chunk_size(first.chunk);
        // a block may still fit into memory where the chunk does not
        match is_small || self.array.check_memory().is_err() {
            true => ChunkPart::Bytes { start: first.offset, end: last.offset + last.len },
            false => ChunkPart::Whole,
        }
    }

    /// Copies parts of an uncompressed chunk straight from the store. The cache would only keep a second copy.
    fn read_plain(
        &self,
        chunk: ChunkId,
        range: Range<usize>,
        missing: &[Missing],
        reply: &mut FlatReply,
    ) -> Result<()> {
        PLAIN.with_borrow_mut(|bytes| {
            let start = range.start;
            let tag = self.cache.read_plain(self.array, chunk, range, bytes)?;
            reply.record_version(chunk, tag);
            for (run, at) in missing {
                if tag == VersionTag::UNINITIALIZED {
                    reply.copy(None, run, *at);
                } else {
                    let from = run.offset - start;
                    reply.out[*at..*at + run.len].copy_from_slice(&bytes[from..from + run.len]);
                }
            }
            Ok(())
        })
    }
}

impl FlatReply<'_> {
    fn record_version(&mut self, chunk: ChunkId, tag: VersionTag) {
        self.mixed |= self.tags.insert(chunk, tag).is_some_and(|before| before != tag);
    }

    /// Copies the part of a run that `piece` holds to `at` in the reply, and returns the number of bytes
    /// copied. Without a piece the chunk is uninitialized, and the run becomes the fill value.
    fn copy(&mut self, piece: Option<&DecodedPart>, run: &Run, at: usize) -> usize {
        let Some(piece) = piece else {
            self.request.array.fill(&mut self.out[at..at + run.len], self.request.offset + at as u64);
            return run.len;
        };
        let from = piece.at(run.offset).unwrap_or_default();
        let n = from.len().min(run.len);
        self.out[at..at + n].copy_from_slice(&from[..n]);
        // the caller has checked that the piece holds the beginning of the run; if 0 were returned it would never end
        if n == 0 { run.len } else { n }
    }
}
