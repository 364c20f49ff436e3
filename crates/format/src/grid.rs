//! The chunk grid as pure arithmetic: byte ranges of the flat array (C order) to runs inside chunks
//! (C order). The module does no I/O and knows neither chunk keys nor codecs.
//!
//! A *flat position* is an offset in bytes into the flat array; a *row* is the stretch of flat
//! bytes along the last axis.

mod blocks;
mod edges;
mod runs;

pub use blocks::{Block, Blocks};
pub use edges::Edges;
pub use runs::{Run, Runs};

use std::ops::Range;
use zarrfs_base::error::{Error, Result};

/// The number of a chunk, counted in C order over the grid.
///
/// ```
/// use zarrfs_format::grid::{ChunkId, Grid};
///
/// let grid = Grid::new(&[10, 6], &[4, 4], 2)?;
/// assert_eq!(grid.indices(ChunkId(5)), [2, 1]);
/// # Ok::<(), zarrfs_base::error::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChunkId(pub u64);

/// Chunks that a forward reader needs repeatedly; see [`Grid::working_set`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkingSet {
    /// The numbers of the chunks.
    pub chunks: Range<u64>,
    /// The flat positions that these chunks hold.
    pub flat: Range<u64>,
}

/// One axis of the merged array: dimensions that no chunk boundary separates are merged into one
/// axis, and the last axis is counted in bytes. Example: shape (10, 4, 6) in chunks (5, 4, 3) of
/// 2-byte items has two axes: of length 40 in chunks of 20, and of 12 bytes in chunks of 6.
#[derive(Clone, Debug)]
struct GridAxis {
    /// Length of the array along the axis.
    len: u64,
    /// Lengths of the chunks along the axis.
    edges: Edges,
    /// Distance in the flat array of neighbors along the axis, in bytes.
    flat_stride: u64,
    /// Number of chunks along the axis.
    count: u64,
    /// Difference of the numbers of two chunks that are neighbors along the axis.
    id_stride: u64,
}

impl GridAxis {
    /// Returns the index along this axis of a flat position.
    fn index_of(&self, position: u64) -> u64 {
        position / self.flat_stride % self.len
    }

    /// Returns the index along this axis of a chunk.
    fn chunk_index_of(&self, chunk: ChunkId) -> u64 {
        chunk.0 / self.id_stride % self.count
    }

    /// Returns the indices along this axis that a chunk has, padding included.
    fn span_of(&self, chunk: ChunkId) -> Range<u64> {
        self.edges.span(self.chunk_index_of(chunk))
    }

    /// Returns the index along this axis of the chunk that holds a flat position.
    fn chunk_index_at(&self, position: u64) -> u64 {
        self.edges.index_of(self.index_of(position))
    }
}

/// The chunk grid of an array.
///
/// ```
/// use zarrfs_format::grid::{ChunkId, Grid, Run};
///
/// // 3 rows of 4 single-byte items in chunks of 2 x 2
/// let grid = Grid::new(&[3, 4], &[2, 2], 1)?;
/// let runs: Vec<Run> = grid.runs(5..8).collect();
/// assert_eq!(runs, [Run { chunk: ChunkId(0), offset: 3, len: 1 }, Run { chunk: ChunkId(1), offset: 2, len: 2 }]);
/// # Ok::<(), zarrfs_base::error::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Grid {
    /// Number of chunks along each dimension.
    counts: Vec<u64>,
    /// The merged axes; none if the array has no bytes.
    axes: Vec<GridAxis>,
    /// Size of the flat array in bytes.
    size: u64,
    /// Size of the largest decoded chunk in bytes.
    max_chunk_size: usize,
    /// Whether chunks may differ in size.
    is_irregular: bool,
}

impl Grid {
    /// Creates the grid of an array of shape `shape` in chunks of shape `chunks`, with items of
    /// `itemsize` bytes.
    ///
    /// # Errors
    ///
    /// [`Kind::Damaged`](zarrfs_base::error::Kind::Damaged) if the shapes contradict each other, or
    /// if a size or the number of chunks exceeds its integer.
    pub fn new(shape: &[u64], chunks: &[u64], itemsize: usize) -> Result<Self> {
        let edges: Vec<Edges> = chunks.iter().map(|len| Edges::Equal(*len)).collect();
        Self::with_edges(shape, &edges, itemsize)
    }

    /// Creates the grid of an array whose chunks have listed lengths along some dimensions.
    ///
    /// # Errors
    ///
    /// The errors of [`Grid::new`].
    pub fn with_edges(shape: &[u64], edges: &[Edges], itemsize: usize) -> Result<Self> {
        let fits =
            |(len, edges): (&u64, &Edges)| *edges != Edges::Equal(0) && *len <= edges.capacity();
        if shape.len() != edges.len() || !shape.iter().zip(edges).all(fits) {
            return Err(Error::damaged("shape and chunks do not fit each other"));
        }
        let item = itemsize as u64;
        let largest: Vec<u64> = shape
            .iter()
            .zip(edges)
            .map(|(&len, edges)| edges.max(len))
            .collect();
        let max_chunk_size = product(item, &largest)
            .filter(|size| *size <= i64::MAX as u64)
            .and_then(|size| usize::try_from(size).ok())
            .ok_or_else(too_large)?;
        let size = if shape.contains(&0) {
            0
        } else {
            product(item, shape)
                .filter(|size| *size <= i64::MAX as u64)
                .ok_or_else(too_large)?
        };
        let counts: Vec<u64> = shape
            .iter()
            .zip(edges)
            .map(|(&len, edges)| edges.count(len))
            .collect();
        let axes = if size == 0 {
            Vec::new()
        } else {
            axes(shape, edges, item)
        };
        // an array has chunks even if its items have no bytes
        if !shape.contains(&0) && product(1, &counts).is_none() {
            return Err(too_large());
        }
        let is_irregular = !axes.is_empty() && edges.iter().any(|edges| edges.equal().is_none());
        Ok(Grid {
            counts,
            axes,
            size,
            max_chunk_size,
            is_irregular,
        })
    }

    /// Returns the size of the flat array in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the size of a decoded chunk in bytes, padding included.
    pub fn chunk_size(&self, chunk: ChunkId) -> usize {
        if self.is_irregular {
            // does not overflow: the size of the largest chunk fits
            self.axes
                .iter()
                .map(|axis| axis.edges.len_of(axis.chunk_index_of(chunk)) as usize)
                .product()
        } else {
            self.max_chunk_size
        }
    }

    /// Returns a bound for the size in bytes of a decoded chunk, padding included: the product of
    /// the largest lengths.
    pub fn max_chunk_size(&self) -> usize {
        self.max_chunk_size
    }

    /// Returns the number of chunks in the grid.
    pub fn chunk_count(&self) -> u64 {
        if self.counts.contains(&0) {
            0
        } else {
            self.counts.iter().product()
        }
    }

    /// Returns the runs that make up the flat positions `range`, in order. The range is clipped to
    /// the array.
    pub fn runs(&self, range: Range<u64>) -> Runs<'_> {
        Runs::new(self, range)
    }

    /// Returns the runs that make up the flat positions `range`, which is clipped to the array, as
    /// blocks. Rows that cross the same chunks form a group. The blocks of a group come chunk by
    /// chunk, before the blocks of the next group.
    ///
    /// ```
    /// use zarrfs_format::grid::Grid;
    ///
    /// // 4 rows of 4 single-byte items in chunks of 2 x 2
    /// let grid = Grid::new(&[4, 4], &[2, 2], 1)?;
    /// let blocks = grid.blocks(0..16).map(|block| (block.chunk().0, block.at(), block.bytes()));
    /// let blocks: Vec<_> = blocks.collect();
    /// assert_eq!(blocks, [(0, 0, 4), (1, 2, 4), (2, 8, 4), (3, 10, 4)]);
    /// # Ok::<(), zarrfs_base::error::Error>(())
    /// ```
    pub fn blocks(&self, range: Range<u64>) -> Blocks<'_> {
        Blocks::new(self.runs(range))
    }

    /// Returns whether a part of the chunk lies outside the array.
    pub fn is_edge(&self, chunk: ChunkId) -> bool {
        self.axes
            .iter()
            .any(|axis| axis.span_of(chunk).end > axis.len)
    }

    /// Returns the first flat position at or after `from` that `chunk` holds, or `None` if there is
    /// none.
    pub fn next_in_chunk(&self, chunk: ChunkId, from: u64) -> Option<u64> {
        if from >= self.size {
            return None;
        }
        let spans = self.axes.iter().map(|axis| {
            let span = axis.span_of(chunk);
            (span.start, span.end.min(axis.len))
        });
        let (low, high): (Vec<u64>, Vec<u64>) = spans.unzip();
        let mut at: Vec<u64> = self.axes.iter().map(|axis| axis.index_of(from)).collect();
        for axis in 0..at.len() {
            if at[axis] < low[axis] {
                at[axis..].copy_from_slice(&low[axis..]);
                break;
            }
            if at[axis] >= high[axis] {
                // carry: the last earlier axis that has not reached its limit advances, later ones
                // start over
                let carry = (0..axis).rev().find(|&i| at[i] + 1 < high[i])?;
                at[carry] += 1;
                at[carry + 1..].copy_from_slice(&low[carry + 1..]);
                break;
            }
        }
        Some(
            at.iter()
                .zip(&self.axes)
                .map(|(i, a)| i * a.flat_stride)
                .sum(),
        )
    }

    /// Returns a flat position after `from` at which a forward reader meets new chunks. The bytes
    /// in between lie in the chunks that the rest of `from`'s own row passes through.
    pub fn next_row_of_chunks(&self, from: u64) -> u64 {
        let Some((last, outer)) = self.axes.split_last() else {
            return self.size;
        };
        let Some(row) = outer.last() else {
            return self.size;
        };
        if !from.is_multiple_of(last.len) {
            return (from / last.len + 1) * last.len;
        }
        let index = row.index_of(from);
        let end = row.edges.span(row.edges.index_of(index)).end.min(row.len);
        from + (end - index) * row.flat_stride
    }

    /// Returns the chunks that a forward reader at `from`, which is inside the array, passes
    /// through repeatedly before it has read the first of them to its end. No byte after `from`
    /// lies in a chunk numbered below this set.
    pub fn working_set(&self, from: u64) -> WorkingSet {
        let mut first = 0;
        for axis in &self.axes {
            let chunk = axis.chunk_index_at(from);
            let span = axis.edges.span(chunk);
            first += chunk * axis.id_stride;
            if span.end - span.start > 1 || axis.id_stride == 1 {
                let whole = axis.flat_stride * axis.len;
                let flat =
                    |index: u64| from / whole * whole + index.min(axis.len) * axis.flat_stride;
                let flat = flat(span.start)..flat(span.end);
                return WorkingSet {
                    chunks: first..first + axis.id_stride,
                    flat,
                };
            }
        }
        WorkingSet {
            chunks: 0..0,
            flat: 0..0,
        }
    }

    /// Returns at most two ranges of chunk numbers, in order, that include every chunk with bytes
    /// in `range`, which is inside the array. If `range` is short compared with a row of chunks,
    /// they include few other chunks.
    pub fn chunks_around(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let Some(last) = range.end.checked_sub(1).filter(|last| *last >= range.start) else {
            return Vec::new();
        };
        // a range that only just passes into the next row lies in chunks at the end and at the
        // start of rows
        if let Some(axis) = self
            .axes
            .iter()
            .find(|axis| axis.index_of(range.start) != axis.index_of(last))
            .filter(|axis| axis.flat_stride > 1)
            && axis.index_of(last) == axis.index_of(range.start) + 1
        {
            let turn = last / axis.flat_stride * axis.flat_stride;
            let mut parts = [
                self.chunks_between(range.start, turn - 1),
                self.chunks_between(turn, last),
            ];
            parts.sort_by_key(|part| part.start);
            let [one, other] = parts;
            let joined = one.start..one.end.max(other.end);
            return if one.end < other.start {
                vec![one, other]
            } else {
                vec![joined]
            };
        }
        vec![self.chunks_between(range.start, last)]
    }

    /// Returns one range of chunk numbers that includes every chunk with bytes from position
    /// `first` to `last`.
    fn chunks_between(&self, first: u64, last: u64) -> Range<u64> {
        let mut before = 0;
        for axis in &self.axes {
            let [from, to] = [first, last].map(|at| axis.chunk_index_at(at) * axis.id_stride);
            if axis.index_of(first) != axis.index_of(last) {
                return before + from..before + to + axis.id_stride;
            }
            before += from;
        }
        before..before + 1
    }

    /// Returns the runs of one chunk within the flat positions `range`, each with its flat
    /// position.
    pub fn chunk_runs(&self, chunk: ChunkId, range: Range<u64>) -> Vec<(u64, Run)> {
        let mut at = range.start;
        let mut runs = Vec::new();
        while let Some(flat) = self
            .next_in_chunk(chunk, at)
            .filter(|&flat| flat < range.end)
        {
            let Some(run) = self.runs(flat..range.end).next() else {
                break;
            };
            at = flat + run.len as u64;
            runs.push((flat, run));
        }
        runs
    }

    /// Returns the chunk that holds a flat position, or `None` outside the array.
    pub fn chunk_at(&self, position: u64) -> Option<ChunkId> {
        self.runs(position..position.saturating_add(1))
            .next()
            .map(|run| run.chunk)
    }

    /// Returns the end of the row that holds flat position `from`. Within a row each chunk holds
    /// one run.
    pub fn row_end(&self, from: u64) -> u64 {
        self.axes
            .last()
            .map_or(self.size, |row| (from / row.len + 1) * row.len)
    }

    /// Returns the numbers of the chunks that have the same index along the first axis as the chunk
    /// at `from`. All bytes of later chunks follow all bytes of these.
    pub fn band(&self, from: u64) -> Range<u64> {
        let Some(axis) = self.axes.first() else {
            return 0..0;
        };
        let first = axis.chunk_index_at(from) * axis.id_stride;
        first..first + axis.id_stride
    }

    /// Returns the number of chunks along each dimension.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Returns the grid indices of a chunk.
    pub fn indices(&self, chunk: ChunkId) -> Vec<u64> {
        let mut rest = chunk.0;
        let mut indices = vec![0; self.counts.len()];
        for (index, &count) in indices.iter_mut().zip(&self.counts).rev() {
            *index = rest % count.max(1);
            rest /= count.max(1);
        }
        indices
    }

    /// Returns the chunk at these grid indices, which are below [`Grid::counts`].
    pub fn chunk(&self, indices: &[u64]) -> ChunkId {
        ChunkId(
            indices
                .iter()
                .zip(&self.counts)
                .fold(0, |id, (index, count)| id * count + index),
        )
    }

    /// Returns the number of dimensions of the array.
    pub fn dimensions(&self) -> usize {
        self.counts.len()
    }
}

fn too_large() -> Error {
    Error::damaged("the array's size does not fit 63 bits")
}

/// Returns the product of `start` and the lengths `dims`, or `None` if 64 bits do not hold it.
fn product(start: u64, dims: &[u64]) -> Option<u64> {
    dims.iter()
        .try_fold(start, |product, len| product.checked_mul(*len))
}

/// Merges the dimensions of an array with at least one byte into axes.
fn axes(shape: &[u64], edges: &[Edges], item: u64) -> Vec<GridAxis> {
    let mut dims: Vec<(u64, Edges)> = Vec::new();
    for (&len, edges) in shape.iter().zip(edges).rev() {
        match dims.pop() {
            None => dims.push((len * item, edges.scaled(len, item))),
            // one chunk spans the inner axis exactly, so that its rows are contiguous in the chunk,
            // too
            Some((inner, one)) if one.span(0).end == inner => {
                dims.push((len * inner, edges.scaled(len, inner)))
            }
            Some(last) => dims.extend([last, (len, edges.scaled(len, 1))]),
        }
    }
    if dims.is_empty() {
        dims.push((item, Edges::Equal(item)));
    }
    let mut flat_stride = 1;
    let mut id_stride = 1;
    let mut axes: Vec<GridAxis> = Vec::with_capacity(dims.len());
    for (len, edges) in dims {
        let count = edges.count(len);
        axes.push(GridAxis {
            len,
            edges,
            flat_stride,
            count,
            id_stride,
        });
        flat_stride *= len;
        id_stride *= count;
    }
    axes.reverse();
    axes
}

#[cfg(test)]
mod tests;
