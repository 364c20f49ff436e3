//! Gathers flat bytes into a reply: splits a request into blocks of runs and copies each block from
//! the decoded chunk.
//!
//! Invariant: in one reply all bytes of a chunk are of one version.

use crate::array::{Array, VersionTag};
use crate::cache::{CachedRun, ChunkPart, DecodedPart, FoundBytes, Wait};
use crate::fs::Fs;
use std::cell::RefCell;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;
use zarrfs_base::error::{Error, Result};
use zarrfs_format::codec::PartialDecode;
use zarrfs_format::grid::{Block, ChunkId};

/// Maximum number of decoded parts held during a read: consecutive rows of the array cross the same
/// chunks again and again.
const HELD: usize = 32;

/// Blocks processed per batch; bounds memory.
const BATCH: usize = 1 << 16;

/// Maximum number of attempts at a request during which chunks are replaced.
const ATTEMPTS: usize = 32;

thread_local! {
    /// Reused buffer for bytes of an uncompressed chunk, from the store to the reply.
    static PLAIN: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The result of a cache lookup: `None` if the chunk is not cached, `Some(None)` if it is known to
/// be uninitialized.
type Cached = Option<Option<DecodedPart>>;

/// One request for flat bytes.
pub struct FlatRead<'a> {
    /// The file system.
    pub fs: &'a Fs,
    /// The array.
    pub array: &'a Arc<Array>,
    /// The flat bytes, all inside the array, at least one.
    pub range: Range<u64>,
    /// Whether to load whole chunks, because the reader will want all of them.
    pub whole: bool,
}

/// A reply that is being gathered.
struct FlatReply<'a> {
    request: &'a FlatRead<'a>,
    out: &'a mut [u8],
    /// The versions of the chunks in the reply, once for each lookup.
    tags: Vec<(ChunkId, VersionTag)>,
}

impl FlatRead<'_> {
    /// Reads the bytes: from one cached chunk if the caller must not wait and they lie side by side
    /// there, otherwise into `out`.
    pub fn read(&self, wait: Wait, out: &mut Vec<u8>) -> Result<FoundBytes> {
        let len = (self.range.end - self.range.start) as usize;
        if wait == Wait::Never
            && let Some(run) = self.array.grid().runs(self.range.clone()).next()
            && run.len == len
        {
            let part = ChunkPart::Bytes {
                start: run.offset,
                end: run.offset + len,
            };
            let Some(cached) = self.fs.cache.peek(self.array, run.chunk, part) else {
                return Ok(FoundBytes::MustWait);
            };
            if let Some(part) = cached?
                && let Some(run) = CachedRun::new(part, run.offset, len)
            {
                return Ok(FoundBytes::Run(run));
            }
        }
        out.resize(len, 0);
        for _ in 0..ATTEMPTS {
            let mut reply = FlatReply {
                request: self,
                out,
                tags: Vec::new(),
            };
            if !self.gather(wait, &mut reply)? {
                return Ok(FoundBytes::MustWait);
            }
            if !reply.mixes_versions() {
                return Ok(FoundBytes::Copied);
            }
        }
        Err(Error::system(libc::EIO).context(format!(
            "{}: chunks are replaced faster than they are read",
            self.array.key()
        )))
    }

    /// Copies all blocks. Returns false if some are missing and `wait` does not allow to load them.
    fn gather(&self, wait: Wait, reply: &mut FlatReply) -> Result<bool> {
        let mut blocks = self.array.grid().blocks(self.range.clone()).peekable();
        while blocks.peek().is_some() {
            let start = Instant::now();
            let missing = self.copy_cached(blocks.by_ref().take(BATCH), wait, reply)?;
            self.fs.stats.copy_time.add_since(start);
            let Some(mut missing) = missing else {
                return Ok(false);
            };
            // load chunk by chunk: a thread that waits for memory of the cache must not hold a
            // chunk
            missing.sort_unstable_by_key(|block| (block.chunk(), block.at()));
            let by_chunk = || missing.chunk_by(|a, b| a.chunk() == b.chunk());
            // the chunks of a forward reader are prefetched anyway
            if !self.whole && self.array.partial_decode() != PartialDecode::Plain {
                let others = by_chunk()
                    .skip(1)
                    .filter_map(|same| Some((same.first()?.chunk(), self.want(same))));
                self.fs.prefetcher.load_concurrently(self.array, others);
            }
            for same in by_chunk() {
                self.load(same, reply)?;
            }
        }
        Ok(true)
    }

    /// Copies the cached blocks and returns the rest, or `None` if there is a rest and `wait` does
    /// not allow it. A chunk that was missing once is not looked up again.
    fn copy_cached(
        &self,
        blocks: impl Iterator<Item = Block>,
        wait: Wait,
        reply: &mut FlatReply,
    ) -> Result<Option<Vec<Block>>> {
        let mut held: [Option<(ChunkId, Cached)>; HELD] = Default::default();
        let mut missing = Vec::new();
        let mut missing_chunks = HashSet::new();
        for mut block in blocks {
            let chunk = block.chunk();
            let slot = &mut held[(chunk.0 % HELD as u64) as usize];
            while let Some((run, _)) = block.runs().next() {
                let covers = |known: &Cached| match known {
                    Some(Some(piece)) => piece.at(run.offset).is_some(),
                    _ => true,
                };
                if !slot
                    .as_ref()
                    .is_some_and(|(held, known)| *held == chunk && covers(known))
                {
                    let part = ChunkPart::Bytes {
                        start: run.offset,
                        end: run.offset + run.len,
                    };
                    // another reader may have loaded a missing chunk meanwhile, in another version
                    let known = if missing_chunks.contains(&chunk) {
                        None
                    } else {
                        self.fs.cache.peek(self.array, chunk, part).transpose()?
                    };
                    if let Some(piece) = &known {
                        reply.record_version(chunk, DecodedPart::tag_of(piece.as_ref()));
                    }
                    *slot = Some((chunk, known));
                }
                match slot {
                    Some((_, Some(piece))) => reply.copy(piece.as_ref(), &mut block),
                    _ if wait == Wait::Never => return Ok(None),
                    _ => {
                        missing_chunks.insert(chunk);
                        missing.push(block);
                        break;
                    }
                }
            }
        }
        Ok(Some(missing))
    }

    /// Loads one chunk and copies its missing blocks, in file order.
    fn load(&self, missing: &[Block], reply: &mut FlatReply) -> Result<()> {
        let (Some(first), Some(last)) = (missing.first(), missing.last()) else {
            return Ok(());
        };
        let chunk = first.chunk();
        let range = first.span().start..last.span().end;
        let needed: usize = missing.iter().map(Block::bytes).sum();
        let whole = self.want(missing) == ChunkPart::Whole;
        if !whole
            && self.array.partial_decode() == PartialDecode::Plain
            && range.len() <= 4 * needed
        {
            return self.read_plain(chunk, range, missing, reply);
        }
        let mut piece = None;
        for mut block in missing.iter().copied() {
            while let Some((run, _)) = block.runs().next() {
                let bytes = ChunkPart::Bytes {
                    start: run.offset,
                    end: range.end,
                };
                let covers =
                    |p: &Option<DecodedPart>| p.as_ref().is_none_or(|p| p.at(run.offset).is_some());
                if !piece.as_ref().is_some_and(covers) {
                    // the next call may wait for memory, and this thread must not hold a chunk then
                    drop(piece.take());
                    let got = self.fs.cache.get(
                        self.array,
                        chunk,
                        if whole { ChunkPart::Whole } else { bytes },
                    )?;
                    reply.record_version(chunk, DecodedPart::tag_of(got.as_ref()));
                    piece = Some(got);
                }
                reply.copy(piece.as_ref().and_then(Option::as_ref), &mut block);
            }
        }
        Ok(())
    }

    /// Returns the part of a chunk to load for the blocks `missing`.
    fn want(&self, missing: &[Block]) -> ChunkPart {
        let (Some(first), Some(last)) = (missing.first(), missing.last()) else {
            return ChunkPart::Whole;
        };
        let needed: usize = missing.iter().map(Block::bytes).sum();
        let is_small = !self.whole && 2 * needed < self.array.grid().chunk_size(first.chunk());
        // a block of the codec may still fit into memory where the chunk does not
        if is_small || self.array.check_memory().is_err() {
            ChunkPart::Bytes {
                start: first.span().start,
                end: last.span().end,
            }
        } else {
            ChunkPart::Whole
        }
    }

    /// Copies parts of an uncompressed chunk straight from the store. The cache would only keep a
    /// second copy.
    fn read_plain(
        &self,
        chunk: ChunkId,
        range: Range<usize>,
        missing: &[Block],
        reply: &mut FlatReply,
    ) -> Result<()> {
        PLAIN.with_borrow_mut(|bytes| {
            let start = range.start;
            let tag = self.fs.cache.read_plain(self.array, chunk, range, bytes)?;
            reply.record_version(chunk, tag);
            for mut block in missing.iter().copied() {
                if tag == VersionTag::UNINITIALIZED {
                    reply.fill(&mut block)
                } else {
                    reply.copy_bytes(&bytes[block.span().start - start..], &mut block)
                }
            }
            Ok(())
        })
    }
}

impl FlatReply<'_> {
    fn record_version(&mut self, chunk: ChunkId, tag: VersionTag) {
        self.tags.push((chunk, tag));
    }

    /// Returns whether a chunk was replaced meanwhile, so that the reply has two versions of it.
    fn mixes_versions(&mut self) -> bool {
        self.tags.sort_unstable_by_key(|(chunk, _)| *chunk);
        self.tags
            .windows(2)
            .any(|pair| pair[0].0 == pair[1].0 && pair[0].1 != pair[1].1)
    }

    /// Copies the part of `block` that `piece` holds. Without a piece the chunk is uninitialized,
    /// and the whole block becomes the fill value.
    fn copy(&mut self, piece: Option<&DecodedPart>, block: &mut Block) {
        match piece {
            // the caller has checked that the piece holds the first byte
            Some(piece) => self.copy_bytes(piece.at(block.span().start).unwrap_or_default(), block),
            None => self.fill(block),
        }
    }

    /// Copies as much of `block` as `from` has, which begins with the first byte of the block.
    fn copy_bytes(&mut self, from: &[u8], block: &mut Block) {
        let start = block.span().start;
        let mut done = 0;
        for (run, at) in block.runs() {
            let Some(from) = from.get(run.offset - start..) else {
                break;
            };
            let n = from.len().min(run.len);
            self.out[at..at + n].copy_from_slice(&from[..n]);
            done += n;
            if n < run.len {
                break;
            }
        }
        // the caller would ask forever for a part without the first byte
        block.advance(if done == 0 { block.bytes() } else { done });
    }

    /// Gives all bytes of `block` the fill value.
    fn fill(&mut self, block: &mut Block) {
        for (run, at) in block.runs() {
            self.request.array.metadata().write_fill(
                &mut self.out[at..at + run.len],
                self.request.range.start + at as u64,
            );
        }
        block.advance(block.bytes());
    }
}
