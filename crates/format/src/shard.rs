//! Shards: stored values that hold many chunks and an index of them. This module is arithmetic over
//! one array's levels of shards, and the codecs of an index; it reads nothing. Source of the rules:
//! the Zarr v3 specification, "Sharding codec".

mod index;
mod rebuild;

pub use index::{Index, IndexCodec};
pub use rebuild::{EntryChange, MAX_RANGES, ShardPiece};

use crate::by_shape::ByShape;
use crate::grid::{ChunkId, Edges, Grid};
use crate::metadata::{ArrayMetadata, ShardLevel};
use crate::pipeline::Pipeline;
use std::ops::Range;
use std::sync::Arc;
use zarrfs_base::error::{Error, Result};

/// Maximum size in bytes of a shard that is encoded as a whole: the largest length that codecs with
/// signed 32-bit lengths can state.
const MAX_ENCODED_SHARD: usize = (1 << 31) - 1;

/// The identity of a shard: its level, the outermost being 0, and its number in the grid of that
/// level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShardId {
    /// The number of shards around this one.
    pub level: usize,
    /// The number in C order.
    pub number: u64,
}

/// One level of shards, ready to use.
struct Level {
    /// The grid of the level's shards.
    grid: Grid,
    /// Along each dimension of the array, the number of chunks in each shard.
    chunks_in_shards: Vec<Edges>,
    /// Along each dimension of the array, the number of chunks in an entry.
    chunks_in_entry: Vec<u64>,
    /// The order of the dimensions in the index.
    axes: Vec<usize>,
    /// The codec of the index of the largest shard. All shards have this codec unless they differ
    /// in shape.
    index: Arc<IndexCodec>,
    /// The codecs of the indexes of other shards, by the number of entries along each dimension.
    other_indexes: ByShape<IndexCodec>,
    /// The codecs of the shard as a whole; `None` if it has none.
    around: Option<Pipeline>,
}

/// The levels of shards of an array.
pub struct Shards {
    levels: Vec<Level>,
    /// The array's metadata, if its shards differ in shape.
    irregular: Option<Box<ArrayMetadata>>,
}

impl Shards {
    /// Returns the shards of an array with a grid of `chunks`; `None` if each chunk is a value of
    /// its own.
    ///
    /// # Errors
    ///
    /// The errors of the codecs of shards and indexes.
    pub fn new(metadata: &ArrayMetadata) -> Result<Option<Self>> {
        let inner = metadata
            .shards
            .iter()
            .skip(1)
            .map(|level| &level.shape)
            .chain([&metadata.chunks]);
        let levels = metadata.shards.iter().zip(inner);
        let levels: Vec<Level> = levels
            .map(|(level, inner)| Level::new(metadata, level, inner))
            .collect::<Result<_>>()?;
        let irregular = metadata
            .shards
            .first()
            .is_some_and(|outermost| outermost.edges.is_some());
        let irregular = irregular.then(|| Box::new(metadata.clone()));
        Ok((!levels.is_empty()).then_some(Shards { levels, irregular }))
    }

    /// Returns the grid of the outermost shards, each of which is an object of the store.
    pub fn objects(&self) -> &Grid {
        &self.levels[0].grid
    }

    /// Returns the shard of `level` that holds the chunk with these indices.
    pub fn shard(&self, level: usize, chunk: &[u64]) -> ShardId {
        let Level {
            grid,
            chunks_in_shards,
            ..
        } = &self.levels[level];
        let indices: Vec<u64> = (0..chunk.len())
            .map(|d| chunks_in_shards[d].index_of(chunk[d]))
            .collect();
        ShardId {
            level,
            number: grid.chunk(&indices).0,
        }
    }

    /// Returns the position of the entry that leads to the chunk with these indices, in the index
    /// of its shard of `level`.
    pub fn slot(&self, level: usize, chunk: &[u64]) -> usize {
        let level = &self.levels[level];
        let slot = level.axes.iter().fold(0, |slot, &d| {
            let span = level.span(chunk, d);
            let in_entry = level.chunks_in_entry[d];
            slot * ((span.end - span.start) / in_entry) + (chunk[d] - span.start) / in_entry
        });
        slot as usize
    }

    /// Returns the number of levels.
    pub fn levels(&self) -> usize {
        self.levels.len()
    }

    /// Returns the codec of the index of the shard of `level` that holds the chunk with these
    /// indices.
    ///
    /// # Errors
    ///
    /// The errors of the codecs of an index.
    pub fn index_codec(&self, level: usize, chunk: &[u64]) -> Result<Arc<IndexCodec>> {
        let of_level = &self.levels[level];
        let Some(metadata) = self.irregular.as_ref().filter(|_| level == 0) else {
            return Ok(of_level.index.clone());
        };
        let lengths = (0..chunk.len()).map(|d| {
            let span = of_level.span(chunk, d);
            span.end - span.start
        });
        let counts: Vec<u64> = lengths
            .clone()
            .zip(&of_level.chunks_in_entry)
            .map(|(len, entry)| len / entry)
            .collect();
        of_level.other_indexes.get_or_make(&counts, || {
            let shape: Vec<u64> = lengths
                .zip(&metadata.chunks)
                .map(|(len, chunk)| len * chunk)
                .collect();
            let (_, levels) = metadata.codecs_of_shape(&shape)?;
            let outermost = levels
                .first()
                .ok_or_else(|| Error::damaged("no level of shards"))?;
            IndexCodec::new(outermost, counts.iter().product::<u64>() as usize)
        })
    }

    /// Returns the codec of the index of the largest shard of a level.
    pub fn largest_index_codec(&self, level: usize) -> &IndexCodec {
        &self.levels[level].index
    }

    /// Returns the codecs that encode shards of a level as a whole, if it has any.
    pub fn around(&self, level: usize) -> Option<&Pipeline> {
        self.levels[level].around.as_ref()
    }

    /// Returns a bound for the size in bytes of a shard of `level` without waste, where a stored
    /// chunk has at most `chunk` bytes.
    pub fn max_size(&self, level: usize, chunk: u64) -> u64 {
        self.size_with(level, chunk, |level| level.index.entries() as u64)
    }

    /// Returns a bound as [`Shards::max_size`] does, for a shard in which only chunks of an array
    /// with the grid `chunks` are stored. The bound includes index entries for chunks outside the
    /// array.
    pub fn max_size_of_array(&self, level: usize, chunk: u64, chunks: &Grid) -> u64 {
        self.size_with(level, chunk, |level| {
            let along = |d: usize| {
                let count = chunks.counts()[d];
                let in_shard = level.chunks_in_shards[d].max(count).min(count);
                in_shard.div_ceil(level.chunks_in_entry[d])
            };
            (0..level.axes.len())
                .map(along)
                .fold(1, u64::saturating_mul)
        })
    }

    /// Returns the size in bytes of a shard of `level` in which each level stores as many entries
    /// as `entries` returns, and a stored chunk has `chunk` bytes.
    fn size_with(&self, level: usize, chunk: u64, entries: impl Fn(&Level) -> u64) -> u64 {
        let inside_out = self.levels[level..].iter().rev();
        inside_out.fold(chunk, |entry, level| {
            entry
                .saturating_mul(entries(level))
                .saturating_add(level.index.stored_size())
        })
    }

    /// Returns the ranges of indices of the chunks in a shard, of an array with the grid `chunks`.
    fn ranges(&self, id: ShardId, chunks: &Grid) -> Vec<Range<u64>> {
        let Level {
            grid,
            chunks_in_shards,
            ..
        } = &self.levels[id.level];
        let indices = grid.indices(ChunkId(id.number));
        (0..indices.len())
            .map(|d| {
                let span = chunks_in_shards[d].span(indices[d]);
                span.start..span.end.min(chunks.counts()[d])
            })
            .collect()
    }

    /// Returns the number of chunks in a shard, of an array with the grid `chunks`.
    pub fn count(&self, id: ShardId, chunks: &Grid) -> u64 {
        self.ranges(id, chunks)
            .iter()
            .map(|range| range.end.saturating_sub(range.start))
            .product()
    }

    /// Returns the chunks of an array with the grid `chunks` that an object holds, in C order.
    pub fn members(&self, object: u64, chunks: &Grid) -> impl Iterator<Item = ChunkId> + use<> {
        let id = ShardId {
            level: 0,
            number: object,
        };
        let ranges = self.ranges(id, chunks);
        let counts = chunks.counts().to_vec();
        (0..self.count(id, chunks)).map(move |n| {
            let mut rest = n;
            let mut number = 0;
            let mut stride = 1;
            for (range, count) in ranges.iter().zip(&counts).rev() {
                let len = range.end - range.start;
                number += (range.start + rest % len) * stride;
                rest /= len;
                stride *= count;
            }
            ChunkId(number)
        })
    }
}

impl Level {
    /// Returns the chunks along dimension `d` of the shard that holds the chunk with these indices.
    fn span(&self, chunk: &[u64], d: usize) -> Range<u64> {
        let along = &self.chunks_in_shards[d];
        along.span(along.index_of(chunk[d]))
    }

    fn new(metadata: &ArrayMetadata, level: &ShardLevel, inner: &[u64]) -> Result<Self> {
        let edges = level.shard_edges();
        let grid = Grid::with_edges(&metadata.shape, &edges, metadata.dtype.size())?;
        let counts = divided(&level.shape, inner);
        let entries = counts
            .iter()
            .try_fold(1u64, |n, count| n.checked_mul(*count));
        let entries = entries.and_then(|n| usize::try_from(n).ok());
        let entries = entries.ok_or_else(|| Error::damaged("a shard has too many chunks"))?;
        let around = if level.around.is_empty() {
            None
        } else {
            Some(Pipeline::of_bytes(&level.around, MAX_ENCODED_SHARD)?)
        };
        Ok(Level {
            grid,
            chunks_in_shards: edges
                .iter()
                .zip(&metadata.chunks)
                .map(|(edges, len)| edges.divided(*len))
                .collect(),
            chunks_in_entry: divided(inner, &metadata.chunks),
            axes: level.axes.clone(),
            index: Arc::new(IndexCodec::new(level, entries)?),
            other_indexes: ByShape::default(),
            around,
        })
    }
}

/// Returns the quotients of the lengths `a` and `b`.
fn divided(a: &[u64], b: &[u64]) -> Vec<u64> {
    a.iter().zip(b).map(|(a, b)| a / b).collect()
}

#[cfg(test)]
mod tests;
