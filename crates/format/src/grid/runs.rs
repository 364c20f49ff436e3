//! Byte ranges of the flat array as runs: bytes that lie side by side both in the flat array and in
//! one chunk. The module does not know what is done with the bytes.

use super::{ChunkId, Grid};
use std::ops::Range;

/// Bytes that are contiguous both in the flat array and in one chunk in C layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The chunk that holds the bytes.
    pub chunk: ChunkId,
    /// Offset in the decoded chunk in bytes.
    pub offset: usize,
    /// Length in bytes.
    pub len: usize,
}

/// The iterator that [`Grid::runs`] returns.
pub struct Runs<'a> {
    pub(super) grid: &'a Grid,
    /// Index of the next byte along each axis.
    pub(super) index: Vec<u64>,
    /// Number of bytes still to return.
    pub(super) left: u64,
    /// Number of the chunk at the start of the current row.
    pub(super) id: u64,
    /// Number of the current row in its chunks.
    pub(super) row: u64,
}

impl<'a> Runs<'a> {
    pub(super) fn new(grid: &'a Grid, range: Range<u64>) -> Self {
        let end = range.end.min(grid.size);
        let position = range.start.min(end);
        let index = grid.axes.iter().map(|axis| axis.index_of(position));
        let mut runs = Runs {
            grid,
            index: index.collect(),
            left: end - position,
            id: 0,
            row: 0,
        };
        runs.enter_row();
        runs
    }

    /// Computes the number of the chunk in which the current row starts, and the number of the row
    /// in its chunks.
    fn enter_row(&mut self) {
        let outer = self.grid.axes.len().saturating_sub(1);
        (self.id, self.row) = (0, 0);
        for (i, axis) in self.index.iter().zip(&self.grid.axes).take(outer) {
            let chunk = axis.edges.index_of(*i);
            let span = axis.edges.span(chunk);
            self.id += chunk * axis.id_stride;
            self.row = self.row * (span.end - span.start) + i - span.start;
        }
    }

    /// Moves from the last byte of a row to the first byte of the next one.
    fn next_row(&mut self) {
        for (index, a) in self.index.iter_mut().zip(&self.grid.axes).rev() {
            if *index + 1 < a.len {
                *index += 1;
                break;
            }
            *index = 0;
        }
        self.enter_row();
    }

    /// Moves past `rows` rows from the first byte of one. All lie in the same chunks.
    pub(super) fn skip_rows(&mut self, rows: u64) {
        if let ([.., outer, column], Some(row)) = (self.index.as_mut_slice(), self.grid.axes.last())
        {
            self.left -= rows * row.len;
            // the last byte of the last of these rows
            (*outer, *column) = (*outer + rows - 1, row.len - 1);
            self.next_row();
        }
    }
}

impl Iterator for Runs<'_> {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        if self.left == 0 {
            return None;
        }
        let row = self.grid.axes.last()?;
        let column = self.index.last_mut()?;
        let chunk = row.edges.index_of(*column);
        let span = row.edges.span(chunk);
        let len = (span.end.min(row.len) - *column).min(self.left);
        let run = Run {
            chunk: ChunkId(self.id + chunk),
            offset: (self.row * (span.end - span.start) + *column - span.start) as usize,
            len: len as usize,
        };
        self.left -= len;
        *column += len;
        if *column == row.len {
            *column = row.len - 1;
            self.next_row();
        }
        Some(run)
    }
}
