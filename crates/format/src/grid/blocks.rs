//! Byte ranges of the flat array as blocks: the runs that consecutive rows have in one chunk. A row
//! that many chunks cross has short runs, and copying them block by block costs one lookup a block,
//! not one a run.

use super::{ChunkId, Run, Runs};
use std::ops::Range;

/// Runs of one chunk in consecutive rows of the array. All have the same length. The caller may
/// have dealt with the beginning of the first one, which counts as done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    chunk: ChunkId,
    /// Number of runs that are not done.
    rows: usize,
    /// Length of each run in bytes, above zero.
    len: usize,
    /// Offset of the first run in the chunk, and distance of neighboring runs there, in bytes.
    offset: usize,
    chunk_stride: usize,
    /// Distance of the first run from the start of the range, and of neighboring runs in the flat
    /// array, in bytes.
    at: usize,
    flat_stride: usize,
    /// Number of bytes of the first run that are done, fewer than its length.
    done: usize,
}

impl Block {
    fn of_run(run: Run, at: usize) -> Self {
        let Run { chunk, offset, len } = run;
        Block {
            chunk,
            rows: 1,
            len,
            offset,
            chunk_stride: len,
            at,
            flat_stride: len,
            done: 0,
        }
    }

    /// Returns the chunk of the runs.
    pub fn chunk(&self) -> ChunkId {
        self.chunk
    }

    /// Returns the distance from the start of the range of the first byte that is not done, in
    /// bytes.
    pub fn at(&self) -> usize {
        self.at + self.done
    }

    /// Returns the runs that are not done, each with its distance from the start of the range in
    /// bytes.
    pub fn runs(&self) -> impl Iterator<Item = (Run, usize)> + use<> {
        let Block {
            chunk,
            rows,
            len,
            offset,
            chunk_stride,
            at,
            flat_stride,
            done,
        } = *self;
        (0..rows).map(move |n| {
            let done = if n == 0 { done } else { 0 };
            let run = Run {
                chunk,
                offset: offset + n * chunk_stride + done,
                len: len - done,
            };
            (run, at + n * flat_stride + done)
        })
    }

    /// Returns the number of bytes that are not done.
    pub fn bytes(&self) -> usize {
        self.rows * self.len - self.done
    }

    /// Returns the offsets in the chunk from the first byte that is not done to the last one.
    pub fn span(&self) -> Range<usize> {
        self.offset + self.done..self.offset + (self.rows.max(1) - 1) * self.chunk_stride + self.len
    }

    /// Records that `bytes` more bytes are done, in the order of the runs.
    pub fn advance(&mut self, bytes: usize) {
        let done = self.done + bytes;
        let rows = done / self.len;
        self.done = done % self.len;
        self.rows -= rows;
        self.offset += rows * self.chunk_stride;
        self.at += rows * self.flat_stride;
    }
}

/// The iterator that [`Grid::blocks`](super::Grid::blocks) returns.
pub struct Blocks<'a> {
    runs: Runs<'a>,
    /// Distance of the next run from the start of the range, in bytes.
    at: usize,
    /// Number of rows that are being split into blocks; 0 between such groups of rows.
    rows: usize,
    /// Bytes of each of these rows that the blocks already have.
    column: u64,
}

impl<'a> Blocks<'a> {
    pub(super) fn new(runs: Runs<'a>) -> Self {
        Blocks {
            runs,
            at: 0,
            rows: 0,
            column: 0,
        }
    }

    /// Returns the number of whole rows at the current position that cross the same chunks.
    fn whole_rows(&self) -> usize {
        let [.., outer, row] = self.runs.grid.axes.as_slice() else {
            return 0;
        };
        let [.., index, column] = self.runs.index.as_slice() else {
            return 0;
        };
        if *column != 0 {
            return 0;
        }
        let span = outer.edges.span(outer.edges.index_of(*index));
        (span.end.min(outer.len) - index).min(self.runs.left / row.len) as usize
    }

    /// Returns the block of the rows that begins `self.column` bytes after their start.
    fn next_block(&mut self) -> Option<Block> {
        let row = self.runs.grid.axes.last()?;
        let chunk = row.edges.index_of(self.column);
        let span = row.edges.span(chunk);
        let len = span.end.min(row.len) - span.start;
        let chunk_stride = (span.end - span.start) as usize;
        let block = Block {
            chunk: ChunkId(self.runs.id + chunk),
            rows: self.rows,
            len: len as usize,
            offset: self.runs.row as usize * chunk_stride,
            chunk_stride,
            at: self.at + self.column as usize,
            flat_stride: row.len as usize,
            done: 0,
        };
        self.column += len;
        if self.column == row.len {
            self.at += self.rows * row.len as usize;
            self.runs.skip_rows(self.rows as u64);
            (self.rows, self.column) = (0, 0);
        }
        Some(block)
    }
}

impl Iterator for Blocks<'_> {
    type Item = Block;

    fn next(&mut self) -> Option<Block> {
        if self.rows == 0 {
            self.rows = self.whole_rows();
        }
        if self.rows > 0 {
            return self.next_block();
        }
        let run = self.runs.next()?;
        let block = Block::of_run(run, self.at);
        self.at += run.len;
        Some(block)
    }
}
