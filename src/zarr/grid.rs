//! The chunk grid as pure arithmetic: byte ranges of the flat array (C order) to runs inside chunks (C order), chunk
//! numbers to chunk keys and back. It does no I/O and knows no codec.

use crate::error::{Error, Result};
use crate::zarr::metadata::Separator;
use std::ops::Range;

/// The number of a chunk, counted in C order over the grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChunkId(pub u64);

/// Bytes that stand together both in the flat array and in one chunk of C layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The chunk.
    pub chunk: ChunkId,
    /// Where in the decoded chunk, in bytes.
    pub offset: usize,
    /// How many bytes.
    pub len: usize,
}

/// See [`Grid::working_set`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkingSet {
    /// The numbers of the chunks.
    pub chunks: Range<u64>,
    /// The flat positions whose bytes they are.
    pub flat: Range<u64>,
}

/// One axis of the reduced array: dimensions that no chunk boundary separates are one axis, and the last is counted in
/// bytes. Example: shape (10, 4, 6), chunks (5, 4, 3), 2-byte items: axes of 40 (chunks of 20) and 12 bytes (6).
#[derive(Clone, Debug)]
struct Axis {
    /// Length of the array and of a chunk.
    len: u64,
    chunk: u64,
    /// What one step along the axis adds: to the flat position, to the position in a chunk, to the chunk number.
    flat_stride: u64,
    chunk_stride: u64,
    id_stride: u64,
}

/// The chunk grid of an array.
#[derive(Clone, Debug)]
pub struct Grid {
    /// Chunks along each dimension.
    counts: Vec<u64>,
    axes: Vec<Axis>,
    size: u64,
    chunk_size: usize,
}

impl Grid {
    /// The grid of an array of `shape` in chunks of `chunks`, both in items of `itemsize` bytes. An error where a
    /// size does not fit.
    pub fn new(shape: &[u64], chunks: &[u64], itemsize: usize) -> Result<Self> {
        let too_large = || Error::damaged("the array's size does not fit 63 bits");
        if shape.len() != chunks.len() || chunks.contains(&0) {
            return Err(Error::damaged("shape and chunks do not fit each other"));
        }
        let item = itemsize as u64;
        let product = |start: u64, dims: &[u64]| dims.iter().try_fold(start, |n, &d| n.checked_mul(d));
        let small = |n: &u64| *n <= i64::MAX as u64;
        let chunk_size =
            product(item, chunks).filter(small).and_then(|n| usize::try_from(n).ok()).ok_or_else(too_large)?;
        let size = if shape.contains(&0) { 0 } else { product(item, shape).filter(small).ok_or_else(too_large)? };
        let counts: Vec<u64> = shape.iter().zip(chunks).map(|(&s, &c)| s.div_ceil(c)).collect();
        let axes = if size == 0 { Vec::new() } else { axes(shape, chunks, item) };
        // items of no bytes make no flat size, but still a grid
        if !shape.contains(&0) && product(1, &counts).is_none() {
            return Err(too_large());
        }
        Ok(Grid { counts, axes, size, chunk_size })
    }

    /// Bytes of the flat array.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes of a decoded chunk, padding included.
    pub fn chunk_size(&self) -> usize {
        self.chunk_size
    }

    /// Chunks of the grid.
    pub fn chunk_count(&self) -> u64 {
        if self.counts.contains(&0) { 0 } else { self.counts.iter().product() }
    }

    /// The runs that make up the flat bytes of `range`, in file order. The range is clipped to the array.
    pub fn runs(&self, range: Range<u64>) -> Runs<'_> {
        let end = range.end.min(self.size);
        let position = range.start.min(end);
        let mut runs = Runs { grid: self, index: vec![0; self.axes.len()], left: end - position, id: 0, offset: 0 };
        runs.seek(position);
        runs
    }

    /// True if a part of the chunk lies outside the array.
    pub fn is_edge(&self, chunk: ChunkId) -> bool {
        self.axes.iter().any(|a| {
            let index = chunk.0 / a.id_stride % a.len.div_ceil(a.chunk);
            (index + 1).saturating_mul(a.chunk) > a.len
        })
    }

    /// The first flat position at or after `from` whose byte lies in `chunk`; None if there is none.
    pub fn next_in_chunk(&self, chunk: ChunkId, from: u64) -> Option<u64> {
        if from >= self.size {
            return None;
        }
        let limits = |a: &Axis| {
            let low = chunk.0 / a.id_stride % a.len.div_ceil(a.chunk) * a.chunk;
            (low, (low + a.chunk).min(a.len))
        };
        let (low, high): (Vec<u64>, Vec<u64>) = self.axes.iter().map(limits).unzip();
        let mut at: Vec<u64> = self.axes.iter().map(|a| from / a.flat_stride % a.len).collect();
        for axis in 0..at.len() {
            if at[axis] < low[axis] {
                at[axis..].copy_from_slice(&low[axis..]);
                break;
            }
            if at[axis] >= high[axis] {
                // carry: the last earlier axis with room takes one step, what follows starts over
                let carry = (0..axis).rev().find(|&i| at[i] + 1 < high[i])?;
                at[carry] += 1;
                at[carry + 1..].copy_from_slice(&low[carry + 1..]);
                break;
            }
        }
        Some(at.iter().zip(&self.axes).map(|(i, a)| i * a.flat_stride).sum())
    }

    /// A flat position after `from` such that the rows between the two go through no other chunks than `from`'s own
    /// row does from there on.
    pub fn next_row_of_chunks(&self, from: u64) -> u64 {
        let Some((last, outer)) = self.axes.split_last() else { return self.size };
        let Some(row) = outer.last() else { return self.size };
        if !from.is_multiple_of(last.len) {
            return (from / last.len + 1) * last.len;
        }
        let index = from / row.flat_stride % row.len;
        let step = (row.chunk - index % row.chunk).min(row.len - index);
        from + step * row.flat_stride
    }

    /// The chunks that a forward reader at `from`, which is inside the array, goes through again and again before it is
    /// done with the first of them. Chunks before them hold nothing that follows.
    pub fn working_set(&self, from: u64) -> WorkingSet {
        let mut first = 0;
        for axis in &self.axes {
            let chunk = from / axis.flat_stride % axis.len / axis.chunk;
            first += chunk * axis.id_stride;
            if axis.chunk > 1 || axis.id_stride == 1 {
                let whole = axis.flat_stride * axis.len;
                let flat = |index: u64| from / whole * whole + index.min(axis.len) * axis.flat_stride;
                let flat = flat(chunk * axis.chunk)..flat((chunk + 1) * axis.chunk);
                return WorkingSet { chunks: first..first + axis.id_stride, flat };
            }
        }
        WorkingSet { chunks: 0..0, flat: 0..0 }
    }

    /// Numbers among which are those of all chunks that hold bytes of a range inside the array: at most two ranges, in
    /// order. Where the range is short against a row of chunks, they are few more than that.
    pub fn chunks_around(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let Some(last) = range.end.checked_sub(1).filter(|last| *last >= range.start) else { return Vec::new() };
        for a in &self.axes {
            let [from, to] = [range.start, last].map(|at| at / a.flat_stride % a.len);
            if to == from + 1 && a.flat_stride > 1 {
                let turn = last / a.flat_stride * a.flat_stride;
                let [one, other] = [self.chunks_between(range.start, turn - 1), self.chunks_between(turn, last)];
                let apart = one.end < other.start || other.end < one.start;
                return match apart {
                    true if one.start < other.start => vec![one, other],
                    true => vec![other, one],
                    false => {
                        let both = one.start.min(other.start)..one.end.max(other.end);
                        vec![both]
                    }
                };
            }
            if from != to {
                break;
            }
        }
        vec![self.chunks_between(range.start, last)]
    }

    /// As [`Grid::chunks_around`], in one range, from a first to a last position.
    fn chunks_between(&self, first: u64, last: u64) -> Range<u64> {
        let mut before = 0;
        for a in &self.axes {
            let [from, to] = [first, last].map(|at| at / a.flat_stride % a.len);
            if from != to {
                return before + from / a.chunk * a.id_stride..before + (to / a.chunk + 1) * a.id_stride;
            }
            before += from / a.chunk * a.id_stride;
        }
        before..before + 1
    }

    /// The runs of one chunk within a range of flat positions, each with its flat position.
    pub fn chunk_runs(&self, chunk: ChunkId, range: Range<u64>) -> Vec<(u64, Run)> {
        let (mut at, mut runs) = (range.start, Vec::new());
        while let Some(flat) = self.next_in_chunk(chunk, at).filter(|&flat| flat < range.end) {
            let Some(run) = self.runs(flat..range.end).next() else { break };
            at = flat + run.len as u64;
            runs.push((flat, run));
        }
        runs
    }

    /// The chunk that holds a flat position inside the array.
    pub fn chunk_at(&self, position: u64) -> Option<ChunkId> {
        self.runs(position..position.saturating_add(1)).next().map(|run| run.chunk)
    }

    /// The end of the row that holds flat position `from`: up to there no chunk comes twice.
    pub fn row_end(&self, from: u64) -> u64 {
        self.axes.last().map_or(self.size, |row| (from / row.len + 1) * row.len)
    }

    /// The numbers of the chunks that share `from`'s place along the first axis. All bytes of chunks after them lie
    /// behind all of theirs.
    pub fn band(&self, from: u64) -> Range<u64> {
        let Some(axis) = self.axes.first() else { return 0..0 };
        let first = from / axis.flat_stride % axis.len / axis.chunk * axis.id_stride;
        first..first + axis.id_stride
    }

    /// Chunks along each dimension.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// The grid indices of a chunk.
    pub fn indices(&self, chunk: ChunkId) -> Vec<u64> {
        let mut rest = chunk.0;
        let mut indices = vec![0; self.counts.len()];
        for (index, &count) in indices.iter_mut().zip(&self.counts).rev() {
            *index = rest % count.max(1);
            rest /= count.max(1);
        }
        indices
    }

    /// The chunk at these grid indices, which are below [`Grid::counts`].
    pub fn chunk(&self, indices: &[u64]) -> ChunkId {
        ChunkId(indices.iter().zip(&self.counts).fold(0, |id, (index, count)| id * count + index))
    }

    /// The chunk key: grid indices joined by `separator`; `0` for a 0-d array.
    pub fn chunk_key(&self, chunk: ChunkId, separator: Separator) -> String {
        let indices: Vec<String> = self.indices(chunk).iter().map(u64::to_string).collect();
        if indices.is_empty() { "0".to_string() } else { indices.join(separator.as_char().encode_utf8(&mut [0; 4])) }
    }

    /// The chunk that `key` names; None if it isn't the canonical spelling of a chunk of this grid.
    pub fn parse_chunk_key(&self, key: &str, separator: Separator) -> Option<ChunkId> {
        if self.counts.is_empty() {
            return (key == "0").then_some(ChunkId(0));
        }
        let mut counts = self.counts.iter();
        let mut id = 0;
        for part in key.split(separator.as_char()) {
            let count = *counts.next()?;
            let index = parse_index(part).filter(|&i| i < count)?;
            id = id * count + index;
        }
        counts.next().is_none().then_some(ChunkId(id))
    }

    /// Dimensions of the array.
    pub fn dimensions(&self) -> usize {
        self.counts.len()
    }
}

/// A grid index in its canonical spelling: digits, no sign, no leading zero.
pub fn parse_index(text: &str) -> Option<u64> {
    let canonical = text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| canonical)
}

fn axes(shape: &[u64], chunks: &[u64], item: u64) -> Vec<Axis> {
    let mut dims: Vec<(u64, u64)> = Vec::new();
    for (&len, &chunk) in shape.iter().zip(chunks).rev() {
        match dims.pop() {
            None => dims.push((len * item, chunk * item)),
            // one chunk spans the axis behind exactly, so that its rows follow each other in the chunk, too
            Some(last) if last.0 == last.1 => dims.push((len * last.0, chunk * last.1)),
            Some(last) => dims.extend([last, (len, chunk)]),
        }
    }
    if dims.is_empty() {
        dims.push((item, item));
    }
    let (mut flat_stride, mut chunk_stride, mut id_stride) = (1, 1, 1);
    let mut axes: Vec<Axis> = Vec::with_capacity(dims.len());
    for (len, chunk) in dims {
        axes.push(Axis { len, chunk, flat_stride, chunk_stride, id_stride });
        flat_stride *= len;
        chunk_stride *= chunk;
        id_stride *= len.div_ceil(chunk);
    }
    axes.reverse();
    axes
}

/// Iterator of [`Grid::runs`].
pub struct Runs<'a> {
    grid: &'a Grid,
    /// Position along each axis; the last one in bytes.
    index: Vec<u64>,
    /// Bytes still to come.
    left: u64,
    /// Chunk number and position in the chunk, as far as the axes before the last give them.
    id: u64,
    offset: u64,
}

impl Runs<'_> {
    fn seek(&mut self, position: u64) {
        for (index, a) in self.index.iter_mut().zip(&self.grid.axes) {
            *index = position / a.flat_stride % a.len;
        }
        self.enter_row();
    }

    fn enter_row(&mut self) {
        let outer = self.grid.axes.len().saturating_sub(1);
        (self.id, self.offset) = (0, 0);
        for (i, a) in self.index.iter().zip(&self.grid.axes).take(outer) {
            self.id += i / a.chunk * a.id_stride;
            self.offset += i % a.chunk * a.chunk_stride;
        }
    }

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
}

impl Iterator for Runs<'_> {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        if self.left == 0 {
            return None;
        }
        let (row, column) = (self.grid.axes.last()?, self.index.last_mut()?);
        let inside = *column % row.chunk;
        let len = (row.chunk - inside).min(row.len - *column).min(self.left);
        let run = Run {
            chunk: ChunkId(self.id + *column / row.chunk),
            offset: (self.offset + inside) as usize,
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition: for each byte of the flat array, its chunk and the place in that chunk.
    fn definition(shape: &[u64], chunks: &[u64], item: u64) -> Vec<(u64, u64)> {
        let size: u64 = shape.iter().product::<u64>() * item;
        let place = |byte: u64| {
            let (mut element, mut id, mut inside) = (byte / item, 0, 0);
            let mut index = vec![0; shape.len()];
            for d in (0..shape.len()).rev() {
                index[d] = element % shape[d];
                element /= shape[d];
            }
            for d in 0..shape.len() {
                id = id * shape[d].div_ceil(chunks[d]) + index[d] / chunks[d];
                inside = inside * chunks[d] + index[d] % chunks[d];
            }
            (id, inside * item + byte % item)
        };
        (0..size).map(place).collect()
    }

    fn any_grid() -> impl Strategy<Value = (Vec<u64>, Vec<u64>, u64)> {
        let dims = prop::collection::vec((1u64..9, 1u64..10), 0..=5);
        (dims, 1u64..5)
            .prop_filter("small enough to enumerate", |(d, _)| d.iter().map(|d| d.0).product::<u64>() < 3000)
            .prop_map(|(dims, item)| {
                let (shape, chunks) = dims.into_iter().unzip();
                (shape, chunks, item)
            })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn runs_are_what_the_definition_says((shape, chunks, item) in any_grid(), a in 0.0..1.1f64, b in 0.0..1.1f64) {
            let grid = Grid::new(&shape, &chunks, item as usize).unwrap();
            let bytes = definition(&shape, &chunks, item);
            prop_assert_eq!(grid.size() as usize, bytes.len());
            let (a, b) = ((a * bytes.len() as f64) as u64, (b * bytes.len() as f64) as u64);
            let range = a.min(b)..a.max(b);
            let runs = grid.runs(range.clone()).flat_map(|r| (0..r.len).map(move |i| (r.chunk.0, (r.offset + i) as u64)));
            let clip = |n: u64| (n as usize).min(bytes.len());
            prop_assert!(runs.eq(bytes[clip(range.start)..clip(range.end)].iter().copied()));
        }

        #[test]
        fn next_in_chunk_is_the_first_byte_of_the_chunk((shape, chunks, item) in any_grid(), from in 0.0..1.1f64, id in 0.0..1.0f64) {
            let grid = Grid::new(&shape, &chunks, item as usize).unwrap();
            let bytes = definition(&shape, &chunks, item);
            let from = (from * bytes.len() as f64) as u64;
            let chunk = ChunkId((id * grid.chunk_count() as f64) as u64);
            let expected = (from..bytes.len() as u64).find(|&i| bytes[i as usize].0 == chunk.0);
            prop_assert_eq!(grid.next_in_chunk(chunk, from), expected);
        }

        #[test]
        fn no_chunk_is_skipped_between_rows_of_chunks((shape, chunks, item) in any_grid(), from in 0.0..1.0f64) {
            let grid = Grid::new(&shape, &chunks, item as usize).unwrap();
            let bytes = definition(&shape, &chunks, item);
            let from = (from * bytes.len() as f64) as usize;
            let next = grid.next_row_of_chunks(from as u64) as usize;
            prop_assert!(next > from && next <= bytes.len());
            let width = grid.axes.last().unwrap().len as usize;
            let row_end = from / width * width + width;
            prop_assert!(bytes[from..next].iter().all(|b| bytes[from..row_end].iter().any(|a| a.0 == b.0)));
        }

        #[test]
        fn what_follows_a_band_lies_behind_it((shape, chunks, item) in any_grid(), from in 0.0..1.0f64) {
            let grid = Grid::new(&shape, &chunks, item as usize).unwrap();
            let bytes = definition(&shape, &chunks, item);
            let from = (from * bytes.len() as f64) as usize;
            let band = grid.band(from as u64);
            prop_assert!(band.contains(&bytes[from].0));
            let end = bytes.iter().rposition(|b| b.0 < band.end).unwrap();
            prop_assert!(bytes[..=end].iter().all(|b| b.0 < band.end));
            prop_assert!(bytes[from..].iter().all(|b| b.0 >= band.start));
        }

        #[test]
        fn a_working_set_is_all_that_is_needed_again((shape, chunks, item) in any_grid(), from in 0.0..1.0f64) {
            let grid = Grid::new(&shape, &chunks, item as usize).unwrap();
            let bytes = definition(&shape, &chunks, item);
            let from = (from * bytes.len() as f64) as usize;
            let WorkingSet { chunks: set, flat } = grid.working_set(from as u64);
            prop_assert!(flat.contains(&(from as u64)) && flat.end <= bytes.len() as u64);
            prop_assert!(bytes[flat.start as usize..flat.end as usize].iter().all(|b| set.contains(&b.0)));
            let around = [flat.start.checked_sub(1), Some(flat.end)];
            prop_assert!(around.iter().flatten().filter_map(|&i| bytes.get(i as usize)).all(|b| !set.contains(&b.0)));
            prop_assert!(set.contains(&bytes[from].0));
            prop_assert_eq!(grid.chunk_at(from as u64), Some(ChunkId(bytes[from].0)));
            prop_assert!(bytes[from..].iter().all(|b| b.0 >= set.start));
            // up to its last byte, nothing else comes
            let end = bytes.iter().rposition(|b| set.contains(&b.0)).unwrap();
            prop_assert!(bytes[from..=end].iter().all(|b| set.contains(&b.0)));
        }

        #[test]
        fn runs_of_a_chunk_are_those_of_all_that_are_its((shape, chunks, item) in any_grid(), a in 0.0..1.0f64, b in 0.0..1.1f64, id in 0.0..1.0f64) {
            let grid = Grid::new(&shape, &chunks, item as usize).unwrap();
            let at = |x: f64| (x * grid.size() as f64) as u64;
            let range = at(a.min(b))..at(a.max(b));
            let chunk = ChunkId((id * grid.chunk_count() as f64) as u64);
            let mut flat = range.start;
            let all = grid.runs(range.clone()).map(|run| {
                flat += run.len as u64;
                (flat - run.len as u64, run)
            });
            prop_assert_eq!(grid.chunk_runs(chunk, range.clone()), all.filter(|(_, run)| run.chunk == chunk).collect::<Vec<_>>());
        }

        #[test]
        fn the_chunks_around_a_range_are_all_and_not_too_many((shape, chunks, item) in any_grid(), a in 0.0..1.0f64, b in 0.0..1.0f64) {
            let grid = Grid::new(&shape, &chunks, item as usize).unwrap();
            let at = |x: f64| (x * grid.size() as f64) as u64;
            let range = at(a.min(b))..at(a.max(b));
            let around = grid.chunks_around(range.clone());
            prop_assert!(around.windows(2).all(|w| w[0].end < w[1].start) && around.len() < 3);
            let needed: std::collections::BTreeSet<u64> = grid.runs(range.clone()).map(|r| r.chunk.0).collect();
            prop_assert!(needed.iter().all(|id| around.iter().any(|r| r.contains(id))));
            if grid.axes.len() < 3 && range.end - range.start <= grid.axes.last().unwrap().len {
                prop_assert!(around.iter().map(|r| r.end - r.start).sum::<u64>() <= needed.len() as u64 + 1);
            }
        }

        #[test]
        fn chunk_keys_round_trip((shape, chunks, item) in any_grid(), id in 0.0..1.0f64) {
            let grid = Grid::new(&shape, &chunks, item as usize).unwrap();
            let chunk = ChunkId((id * grid.chunk_count() as f64) as u64);
            for separator in [Separator::Dot, Separator::Slash] {
                let key = grid.chunk_key(chunk, separator);
                prop_assert_eq!(grid.parse_chunk_key(&key, separator), Some(chunk));
            }
        }
    }

    #[test]
    fn only_canonical_keys_of_the_grid_are_chunks() {
        let grid = Grid::new(&[10, 6], &[4, 4], 4).unwrap();
        assert_eq!(grid.parse_chunk_key("2.1", Separator::Dot), Some(ChunkId(5)));
        assert_eq!(grid.chunk_key(ChunkId(5), Separator::Slash), "2/1");
        for key in
            ["00.0", "+1.0", "1.0.0", " 0.0", "0.0.partial", "9.9", "-1.0", "0", "", "0.", ".0", "0,0", "٠.0", "3.0"]
        {
            assert_eq!(grid.parse_chunk_key(key, Separator::Dot), None, "{key}");
        }
        let scalar = Grid::new(&[], &[], 8).unwrap();
        assert_eq!((scalar.size(), scalar.chunk_count()), (8, 1));
        assert_eq!(scalar.chunk_key(ChunkId(0), Separator::Dot), "0");
    }

    #[test]
    fn neighbouring_dimensions_become_one_run() {
        let grid = Grid::new(&[10, 4, 6], &[5, 4, 6], 2).unwrap();
        let runs: Vec<Run> = grid.runs(0..u64::MAX).collect();
        assert_eq!(
            runs,
            [Run { chunk: ChunkId(0), offset: 0, len: 240 }, Run { chunk: ChunkId(1), offset: 0, len: 240 }]
        );
    }

    #[test]
    fn sizes_at_the_edge() {
        assert!(Grid::new(&[1 << 62, 4], &[1, 1], 1).is_err());
        assert!(Grid::new(&[1 << 60, 4], &[1 << 60, 16], 1).is_err());
        assert!(Grid::new(&[u64::MAX], &[1], 0).is_ok());
        let empty = Grid::new(&[0, 1 << 62, 1 << 62], &[1, 1, 1], 4).unwrap();
        assert_eq!((empty.size(), empty.chunk_count(), empty.runs(0..100).count()), (0, 0, 0));
        let vast = Grid::new(&[1 << 60], &[16], 1).unwrap();
        let tail: Vec<Run> = vast.runs((1 << 60) - 1..u64::MAX).collect();
        assert_eq!(tail, [Run { chunk: ChunkId((1 << 56) - 1), offset: 15, len: 1 }]);
        assert_eq!(Grid::new(&[3], &[2], 0).unwrap().runs(0..9).count(), 0);
    }
}
