//! The content of a slot, which is a chunk or a window, and the parts of it that the cache returns.
//! This module loads nothing.

use crate::array::{Array, BlockIndex, Opening, VersionTag, are_stored};
use crate::cache::buffers::Decoded;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory::lock;
use zarrfs_format::grid::ChunkId;
use zarrfs_store::Version;

/// The part of a chunk that a reader wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkPart {
    /// The whole chunk.
    Whole,
    /// The byte at offset `start` of the chunk, and those up to `end` that can be decoded with it.
    Bytes {
        /// Offset in bytes.
        start: usize,
        /// Offset after the last byte that the reader is known to need.
        end: usize,
    },
}

/// Decoded bytes of a chunk: all of them, or a part.
#[derive(Clone)]
pub struct DecodedPart {
    bytes: Arc<Decoded>,
    /// Offset of the part in the chunk, in bytes.
    start: usize,
    tag: VersionTag,
    /// The versions of the chunks from which a window was built.
    sources: Option<Arc<Sources>>,
}

/// Versions of chunks, in the order of their numbers.
pub(in crate::cache) type Sources = Vec<(ChunkId, VersionTag)>;

/// A part of a chunk, or `None` if the chunk is uninitialized.
pub type PartResult = Result<Option<DecodedPart>>;

impl AsRef<[u8]> for DecodedPart {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

impl DecodedPart {
    /// Returns all bytes of a chunk as a part.
    pub(in crate::cache) fn whole(bytes: Arc<Decoded>, tag: VersionTag) -> Self {
        DecodedPart {
            bytes,
            start: 0,
            tag,
            sources: None,
        }
    }

    /// Returns the tag of the version that the part came from.
    pub fn tag(&self) -> VersionTag {
        self.tag
    }

    /// Returns the tag of a part, or of an uninitialized chunk if there is none.
    pub fn tag_of(part: Option<&DecodedPart>) -> VersionTag {
        part.map_or(VersionTag::UNINITIALIZED, |part| part.tag)
    }

    /// Returns the bytes of the chunk from `offset` to the end of the part; `None` if the part has
    /// no byte there.
    pub fn at(&self, offset: usize) -> Option<&[u8]> {
        self.bytes
            .get(offset.checked_sub(self.start)?..)
            .filter(|b| !b.is_empty())
    }

    /// Returns all bytes of the part.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns false if both are windows that have bytes of one chunk in two versions.
    pub(in crate::cache) fn is_consistent_with(&self, other: &DecodedPart) -> bool {
        let (Some(ours), Some(theirs)) = (&self.sources, &other.sources) else {
            return true;
        };
        let mut theirs = theirs.iter().peekable();
        ours.iter().all(|(chunk, tag)| {
            while theirs.next_if(|(other, _)| other < chunk).is_some() {}
            theirs
                .peek()
                .is_none_or(|(other, now)| other != chunk || now == tag)
        })
    }
}

/// Decoded bytes of a block and their offset in it, or the error of decoding it.
pub(in crate::cache) type DecodedBlock = std::result::Result<(Arc<Decoded>, usize), Arc<Error>>;

/// A chunk whose blocks are decoded one by one.
pub(in crate::cache) struct DecodedBlocks {
    pub index: BlockIndex,
    pub tag: VersionTag,
    /// Protects the blocks decoded so far. The first read of a block may have kept only a part of
    /// it.
    pub blocks: Mutex<Vec<Option<DecodedBlock>>>,
}

/// The content of a slot.
#[derive(Clone)]
pub(in crate::cache) enum CachedChunk {
    Whole(Arc<Decoded>, Version, VersionTag),
    Blocks(Arc<DecodedBlocks>),
    Window(Arc<Decoded>, Arc<Sources>),
    Uninitialized,
    /// The chunk cannot be decoded. The slot keeps the error, so that a retry of the kernel does
    /// not decode the chunk again.
    Failed(Error),
}

impl CachedChunk {
    /// Returns a part of the chunk; `None` if that part has not been decoded.
    pub fn part(&self, part: ChunkPart) -> Option<PartResult> {
        match (self, part) {
            (CachedChunk::Whole(bytes, _, tag), _) => {
                Some(Ok(Some(DecodedPart::whole(bytes.clone(), *tag))))
            }
            (CachedChunk::Blocks(d), ChunkPart::Bytes { start: offset, .. }) => {
                let n = offset / d.index.block_size();
                let block = lock(&d.blocks).get(n)?.clone()?;
                let (bytes, at) = match block {
                    Ok(block) => block,
                    Err(e) => return Some(Err((*e).clone())),
                };
                let part = DecodedPart {
                    bytes,
                    start: n * d.index.block_size() + at,
                    tag: d.tag,
                    sources: None,
                };
                part.at(offset).is_some().then_some(Ok(Some(part)))
            }
            (CachedChunk::Blocks(_), ChunkPart::Whole) => None,
            (CachedChunk::Window(bytes, sources), _) => {
                let bytes = bytes.clone();
                let sources = Some(sources.clone());
                Some(Ok(Some(DecodedPart {
                    bytes,
                    start: 0,
                    tag: VersionTag::UNINITIALIZED,
                    sources,
                })))
            }
            (CachedChunk::Uninitialized, _) => Some(Ok(None)),
            (CachedChunk::Failed(e), _) => Some(Err(e.clone())),
        }
    }

    /// Asks the store whether it still holds the version of this content. Returns false for a
    /// failure, which is tried again.
    pub fn is_stored(&self, array: &Array, item: CachedItem) -> bool {
        let version = match self {
            CachedChunk::Failed(_) => return false,
            CachedChunk::Window(_, sources) => return are_stored(array, sources),
            CachedChunk::Whole(_, version, _) => Some(version),
            CachedChunk::Blocks(d) => Some(&d.index.version),
            CachedChunk::Uninitialized => None,
        };
        let CachedItem::Chunk(chunk) = item else {
            return false;
        };
        // nothing confirms a version that the store does not state
        if version.is_some_and(Version::is_unstated) {
            return false;
        }
        array
            .stat_chunk(chunk)
            .is_ok_and(|now| now.as_ref().map(|stat| &stat.version) == version)
    }

    /// Returns the tag of the version of a chunk; `None` for windows and failures.
    pub fn tag(&self) -> Option<VersionTag> {
        match self {
            CachedChunk::Whole(_, _, tag) => Some(*tag),
            CachedChunk::Blocks(d) => Some(d.tag),
            CachedChunk::Uninitialized => Some(VersionTag::UNINITIALIZED),
            CachedChunk::Window(..) | CachedChunk::Failed(_) => None,
        }
    }
}

/// The content of a slot before a load, and whether the latest opening has confirmed it.
pub(in crate::cache) type Previous = Option<(CachedChunk, bool)>;

/// A slot of the cache.
pub(in crate::cache) enum Slot {
    /// A thread loads or revalidates it.
    Loading,
    Ready {
        content: CachedChunk,
        /// The opening in which the store has confirmed the version.
        confirmed: Opening,
        /// Whether it was prefetched and not yet read.
        is_prefetched: bool,
        /// Whether an eviction has spared it once because it was prefetched.
        was_spared: bool,
    },
}

impl Slot {
    /// Returns the content, and whether the latest opening has confirmed it.
    pub fn content(&self, array: &Array) -> Previous {
        match self {
            Slot::Ready {
                content, confirmed, ..
            } => Some((content.clone(), array.freshness().is_current(*confirmed))),
            Slot::Loading => None,
        }
    }

    /// Returns a part of the content, if the latest opening has confirmed it.
    pub fn part(&self, array: &Array, part: ChunkPart) -> Option<PartResult> {
        match self {
            Slot::Ready {
                content, confirmed, ..
            } if array.freshness().is_current(*confirmed) => content.part(part),
            _ => None,
        }
    }
}

/// The number of an array, and an item of it.
pub(in crate::cache) type CacheKey = (u64, CachedItem);

/// The item that a slot is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::cache) enum CachedItem {
    Chunk(ChunkId),
    /// A window of the flat bytes from `start` to `end`, as of the array's generation `writes`.
    Window {
        start: u64,
        end: u64,
        writes: u64,
    },
}

impl CachedItem {
    pub fn window(range: &Range<u64>, writes: u64) -> Self {
        CachedItem::Window {
            start: range.start,
            end: range.end,
            writes,
        }
    }
}
