//! Reading the flat bytes of an array: runs of a request to pieces of chunks, and one copy from there into the reply.
//! Within one request all bytes of a chunk are of one version.

use crate::array::Array;
use crate::cache::{Cache, ChunkPart, DecodedPart, PrefetchState, Prefetcher, VersionTag};
use crate::error::{Error, Result};
use crate::stats::Stats;
use crate::zarr::codec::PartialDecode;
use crate::zarr::grid::{ChunkId, Run};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// Pieces a read keeps at hand: a row of the array goes through several of them again and again.
const HELD: usize = 32;

/// Runs of a request looked at together: enough for any usual one, and a bound on what has to be remembered.
const TOGETHER: usize = 1 << 16;

/// Times a request begins anew because a chunk was replaced while it was answered.
const ATTEMPTS: usize = 32;

thread_local! {
    /// Bytes of an uncompressed chunk on their way into a reply.
    static PLAIN: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What a look into the cache gave: not there; or there, decoded or uninitialised.
type Cached = Option<Option<DecodedPart>>;

/// A part of a run that is still to be copied to `at` in the reply.
type Missing = (Run, usize);

/// One request for flat bytes.
pub struct FlatRead<'a> {
    /// Where the chunks come from.
    pub cache: &'a Cache,
    /// Threads that help where several chunks are missing.
    pub ahead: &'a Prefetcher,
    /// Whose bytes.
    pub array: &'a Arc<Array>,
    /// The first flat position.
    pub offset: u64,
    /// True if whole chunks should be loaded, since all of them will be wanted.
    pub whole: bool,
}

/// The reply, and what is in it so far.
struct Reply<'a> {
    request: &'a FlatRead<'a>,
    out: &'a mut [u8],
    /// The version of each chunk in it.
    marks: HashMap<ChunkId, VersionTag>,
    /// A chunk was replaced: the reply holds bytes of both versions.
    mixed: bool,
}

/// Notes a request of `len` bytes, clipped to the array, and reads ahead of it.
pub fn note(ahead: &Prefetcher, readers: &PrefetchState, array: &Arc<Array>, offset: u64, len: usize, once: bool) {
    let end = offset.saturating_add(len as u64).min(array.size());
    if offset < end {
        ahead.record_access(readers, array, offset, end - offset, once);
    }
}

impl FlatRead<'_> {
    /// Reads up to `len` bytes into `out`, fewer only at the end of the array. With `cached`, false is returned, and `out`
    /// is worthless, if that takes the store or a wait.
    pub fn read(&self, len: usize, cached: bool, stats: &Stats, out: &mut Vec<u8>) -> Result<bool> {
        let end = self.offset.saturating_add(len as u64).min(self.array.size());
        out.resize(end.saturating_sub(self.offset) as usize, 0);
        for _ in 0..ATTEMPTS {
            let mut reply = Reply { request: self, out, marks: HashMap::new(), mixed: false };
            if !self.fill(end, cached, stats, &mut reply)? {
                return Ok(false);
            }
            if !reply.mixed {
                return Ok(true);
            }
        }
        Err(Error::system(libc::EIO)
            .context(format!("{}: chunks are replaced faster than they are read", self.array.key())))
    }

    fn fill(&self, end: u64, cached: bool, stats: &Stats, reply: &mut Reply) -> Result<bool> {
        let mut runs = self.array.grid().runs(self.offset..end).peekable();
        let mut done = 0;
        while runs.peek().is_some() {
            let start = Instant::now();
            let missing = self.copy_cached(runs.by_ref().take(TOGETHER), cached, &mut done, reply)?;
            stats.copy_time.add_since(start);
            let Some(mut missing) = missing else { return Ok(false) };
            // the rest chunk by chunk; the cache's rule: hold nothing while waiting for room
            missing.sort_unstable_by_key(|(run, at)| (run.chunk, *at));
            let by_chunk = || missing.chunk_by(|(a, _), (b, _)| a.chunk == b.chunk);
            // a forward reader is read ahead anyway
            if !self.whole && self.array.partial_decode() != PartialDecode::Plain {
                let others = by_chunk().skip(1).filter_map(|same| Some((same.first()?.0, self.want(same))));
                self.ahead.load_beside(self.array, others.map(|(run, want)| (run.chunk, want)));
            }
            for same in by_chunk() {
                self.load(same, reply)?;
            }
        }
        Ok(true)
    }

    /// Copies what is cached, in file order, and returns the rest; None if there is one and that is enough to know. Each
    /// chunk of the rest is asked for once, however often its rows come: with a small cache it might be gone by its next
    /// row.
    fn copy_cached(
        &self,
        runs: impl Iterator<Item = Run>,
        cached: bool,
        done: &mut usize,
        reply: &mut Reply,
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
                    // somebody may have loaded it meanwhile, in another version
                    let known = match missing_chunks.contains(&run.chunk) {
                        true => None,
                        false => self.cache.peek(self.array, run.chunk, ChunkPart::At(run.offset)).transpose()?,
                    };
                    if let Some(piece) = &known {
                        reply.mark(run.chunk, VersionTag::of_piece(piece.as_ref()));
                    }
                    *slot = Some((run.chunk, known));
                }
                let n = match slot {
                    Some((_, Some(piece))) => reply.copy(piece.as_ref(), &run, *done),
                    _ if cached => return Ok(None),
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

    /// Copies the missing parts of one chunk, in file order.
    fn load(&self, missing: &[Missing], reply: &mut Reply) -> Result<()> {
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
                let want = if whole { ChunkPart::Whole } else { ChunkPart::At(run.offset) };
                let covers = |p: &Option<DecodedPart>| p.as_ref().is_none_or(|p| p.at(run.offset).is_some());
                if !piece.as_ref().is_some_and(covers) {
                    // let go of it before a wait
                    drop(piece.take());
                    let got = self.cache.get(self.array, chunk, want)?;
                    reply.mark(chunk, VersionTag::of_piece(got.as_ref()));
                    piece = Some(got);
                }
                let n = reply.copy(piece.as_ref().and_then(Option::as_ref), &run, at);
                (run.offset, run.len, at) = (run.offset + n, run.len - n, at + n);
            }
        }
        Ok(())
    }

    /// What to load of a chunk of which this is missing.
    fn want(&self, missing: &[Missing]) -> ChunkPart {
        let needed: usize = missing.iter().map(|(run, _)| run.len).sum();
        match missing.first() {
            Some((run, _)) if !self.whole && 2 * needed < self.array.grid().chunk_size() => ChunkPart::At(run.offset),
            // a block may still fit
            Some((run, _)) if self.array.check_memory().is_err() => ChunkPart::At(run.offset),
            _ => ChunkPart::Whole,
        }
    }

    /// Copies parts of an uncompressed chunk straight from the store: to keep them would be keeping them twice.
    fn read_plain(&self, chunk: ChunkId, range: Range<usize>, missing: &[Missing], reply: &mut Reply) -> Result<()> {
        PLAIN.with_borrow_mut(|bytes| {
            let start = range.start;
            let mark = self.cache.read_plain(self.array, chunk, range, bytes)?;
            reply.mark(chunk, mark);
            for (run, at) in missing {
                match mark == VersionTag::UNINITIALISED {
                    true => {
                        reply.copy(None, run, *at);
                    }
                    false => {
                        let from = run.offset - start;
                        reply.out[*at..*at + run.len].copy_from_slice(&bytes[from..from + run.len]);
                    }
                }
            }
            Ok(())
        })
    }
}

impl Reply<'_> {
    fn mark(&mut self, chunk: ChunkId, mark: VersionTag) {
        self.mixed |= self.marks.insert(chunk, mark).is_some_and(|before| before != mark);
    }

    /// Copies the beginning of a run to its place `at`, as far as the piece goes; no piece stands for an uninitialised
    /// chunk. How many bytes that were.
    fn copy(&mut self, piece: Option<&DecodedPart>, run: &Run, at: usize) -> usize {
        let Some(piece) = piece else {
            self.request.array.fill(&mut self.out[at..at + run.len], self.request.offset + at as u64);
            return run.len;
        };
        // the caller has made sure that it goes there: an end without progress would be one without end
        let from = piece.at(run.offset).unwrap_or_default();
        let n = from.len().min(run.len);
        self.out[at..at + n].copy_from_slice(&from[..n]);
        if n == 0 { run.len } else { n }
    }
}
