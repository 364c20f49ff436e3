//! What the cache knows of a chunk or a window, and the pieces it gives of it. It loads nothing.

use super::buffers::Decoded;
use crate::array::{Array, BlockIndex, Opening, VersionTag, are_stored};
use crate::error::{Error, Result};
use crate::store::Version;
use crate::util::memory::lock;
use crate::zarr::grid::ChunkId;
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkPart {
    /// The chunk.
    Whole,
    /// The byte at this place of the chunk, and what is cheap to have around it.
    At(usize),
}

/// Decoded bytes of a chunk: all of them, or a part.
#[derive(Clone)]
pub struct DecodedPart {
    bytes: Arc<Decoded>,
    /// Where in the chunk they begin.
    start: usize,
    pub(super) mark: VersionTag,
    /// Of a window: what it is made of.
    made_of: Option<Arc<Vec<(ChunkId, VersionTag)>>>,
}

impl DecodedPart {
    /// All bytes of a chunk.
    pub(super) fn whole(bytes: Arc<Decoded>, mark: VersionTag) -> Self {
        DecodedPart { bytes, start: 0, mark, made_of: None }
    }

    /// Returns the tag of the version that a part came from; of an uninitialized chunk if there is no part.
    pub fn tag_of(part: Option<&DecodedPart>) -> VersionTag {
        part.map_or(VersionTag::UNINITIALIZED, |part| part.mark)
    }

    /// The bytes of the chunk from `offset` on, as far as the piece goes; None if it doesn't go there.
    pub fn at(&self, offset: usize) -> Option<&[u8]> {
        self.bytes.get(offset.checked_sub(self.start)?..).filter(|b| !b.is_empty())
    }

    /// True unless both are windows with bytes of one chunk in two versions.
    pub(super) fn agrees(&self, other: &DecodedPart) -> bool {
        let (Some(ours), Some(theirs)) = (&self.made_of, &other.made_of) else { return true };
        let mut theirs = theirs.iter().peekable();
        ours.iter().all(|(chunk, mark)| {
            while theirs.next_if(|(other, _)| other < chunk).is_some() {}
            theirs.peek().is_none_or(|(other, now)| other != chunk || now == mark)
        })
    }

    /// All bytes of the piece.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// A block, or why it can't be decoded.
pub(super) type Block = std::result::Result<Arc<Decoded>, Arc<Error>>;

/// A chunk whose blocks are decoded one by one.
pub(super) struct Divided {
    pub parts: BlockIndex,
    pub mark: VersionTag,
    /// Protects the list: the blocks decoded so far, and why some can't be.
    pub blocks: Mutex<Vec<Option<Block>>>,
}

/// What is known of a chunk.
#[derive(Clone)]
pub(super) enum Content {
    Whole(Arc<Decoded>, Version, VersionTag),
    Divided(Arc<Divided>),
    /// A window, with the versions of the chunks in it.
    Window(Arc<Decoded>, Arc<Vec<(ChunkId, VersionTag)>>),
    Uninitialised,
    /// It can't be decoded; kept, so that a retry by the kernel does not decode again.
    Failed(Error),
}

/// A piece; None of an uninitialised chunk.
pub(super) type Answer = Result<Option<DecodedPart>>;

impl Content {
    /// The answer, if this is enough for one.
    pub fn answer(&self, want: ChunkPart) -> Option<Answer> {
        match (self, want) {
            (Content::Whole(bytes, _, mark), _) => Some(Ok(Some(DecodedPart::whole(bytes.clone(), *mark)))),
            (Content::Divided(d), ChunkPart::At(offset)) => {
                let n = offset / d.parts.block_size();
                let (start, mark) = (n * d.parts.block_size(), d.mark);
                let piece = |bytes| Some(DecodedPart { bytes, start, mark, made_of: None });
                Some(lock(&d.blocks).get(n)?.clone()?.map(piece).map_err(|e| (*e).clone()))
            }
            (Content::Divided(_), ChunkPart::Whole) => None,
            (Content::Window(bytes, chunks), _) => {
                let (bytes, made_of) = (bytes.clone(), Some(chunks.clone()));
                Some(Ok(Some(DecodedPart { bytes, start: 0, mark: VersionTag::UNINITIALIZED, made_of })))
            }
            (Content::Uninitialised, _) => Some(Ok(None)),
            (Content::Failed(e), _) => Some(Err(e.clone())),
        }
    }

    /// True if the store still holds what this was made of. A failure is always tried again.
    pub fn is_current(&self, array: &Array, place: Place) -> bool {
        let known = match self {
            Content::Failed(_) => return false,
            Content::Window(_, chunks) => return are_stored(array, chunks),
            Content::Whole(_, version, _) => Some(version),
            Content::Divided(d) => Some(&d.parts.version),
            Content::Uninitialised => None,
        };
        let Place::Chunk(chunk) = place else { return false };
        array.stat_chunk(chunk).is_ok_and(|now| now.as_ref().map(|stat| &stat.version) == known)
    }

    pub fn mark(&self) -> Option<VersionTag> {
        match self {
            Content::Whole(_, _, mark) => Some(*mark),
            Content::Divided(d) => Some(d.mark),
            Content::Uninitialised => Some(VersionTag::UNINITIALIZED),
            Content::Window(..) | Content::Failed(_) => None,
        }
    }
}

/// What the cache keeps of a place.
pub(super) enum Slot {
    /// Somebody is loading or checking it.
    Busy,
    Ready {
        content: Content,
        /// The array's epoch in which the store was last asked.
        epoch: Opening,
        /// Read ahead, and nobody has asked for it yet.
        ahead: bool,
        /// It was spared once: whoever it was read ahead for may be gone.
        spared: bool,
    },
}

/// What a slot is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    Chunk(ChunkId),
    /// The window of these flat positions: readers who came by different ways have different ones.
    Window {
        start: u64,
        end: u64,
        /// See [`Array::writes`].
        writes: u64,
    },
}

impl Place {
    pub fn window(range: &Range<u64>, writes: u64) -> Self {
        Place::Window { start: range.start, end: range.end, writes }
    }
}
