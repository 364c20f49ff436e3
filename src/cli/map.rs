//! `zarrfs info --map`: draws a chunk grid: the stored chunks, their sizes compared to decoded
//! chunks, and the chunks that fail. If the grid is larger than the picture, a cell stands for
//! several chunks, or for a shard. This module must not read chunks.

use super::size;
use crate::check::Examined;
use zarrfs_base::error::Error;
use zarrfs_base::json::{Value, json};
use zarrfs_format::grid::Grid;

/// The size of a picture.
#[derive(Clone, Copy)]
pub struct MapArea {
    /// Maximum number of characters of a line, with its label.
    pub width: usize,
    /// Maximum number of lines of a panel.
    pub lines: u64,
    /// Maximum number of panels.
    pub panels: u64,
}

/// The style of a picture.
#[derive(Clone, Copy)]
pub struct Style {
    /// Whether only ASCII characters are used.
    pub ascii: bool,
    /// Whether chunks were decoded, so that those that fail are known.
    pub deep: bool,
}

/// Number of characters of the label before each line.
const LABEL: usize = 8;

/// The cells along one axis of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct MapAxis {
    chunks: u64,
    per_cell: u64,
}

impl MapAxis {
    fn new(chunks: u64, most: u64) -> Self {
        MapAxis {
            chunks,
            per_cell: chunks.div_ceil(most.max(1)).max(1),
        }
    }

    /// Returns the axis with cells that hold whole shards; a shard has `shard` chunks along it.
    fn by_shards(self, shard: u64) -> Self {
        MapAxis {
            per_cell: self.per_cell.next_multiple_of(shard),
            ..self
        }
    }

    fn cells(self) -> u64 {
        self.chunks.div_ceil(self.per_cell)
    }

    /// Returns the number of chunks in the cell at `i`: the last cell may have fewer.
    fn chunks_in(self, i: u64) -> u64 {
        self.per_cell.min(self.chunks - i * self.per_cell)
    }
}

/// Totals of the chunks of a cell.
#[derive(Clone, Copy, Default)]
struct Cell {
    stored: u64,
    bytes: u64,
    decoded: u64,
    failed: u64,
}

impl Cell {
    /// Adds a chunk of `decoded` bytes.
    fn add(&mut self, examined: &Examined, decoded: u64) {
        self.stored += 1;
        self.decoded = self.decoded.saturating_add(decoded);
        self.bytes += examined.stored;
        self.failed += u64::from(examined.fault.is_some());
    }
}

/// A picture, while chunks are added.
pub struct ChunkMap {
    /// Number of chunks along each dimension, and in all.
    counts: Vec<u64>,
    chunk_count: u64,
    /// The axes of the picture: all dimensions but the last two, joined; the second to last; the
    /// last.
    axes: [MapAxis; 3],
    /// Number of chunks in a shard along these axes, if cells stand for whole shards.
    shard: Option<[u64; 3]>,
    cells: Vec<Cell>,
    total: Cell,
    /// The grid; `None` for objects, whose decoded chunks have no fixed size.
    sizes: Option<Grid>,
    /// Stored bytes of the largest chunk.
    largest: u64,
    area: MapArea,
    /// Error of the first chunk that fails.
    fault: Option<Error>,
}

impl ChunkMap {
    /// Creates an empty picture of a grid. Decoded chunks have a fixed size unless they are
    /// `of_objects`. `shard` is the number of chunks in a shard along each dimension; empty without
    /// shards.
    pub fn new(grid: &Grid, shard: &[u64], of_objects: bool, area: MapArea) -> Self {
        let counts = grid.counts().to_vec();
        let columns_of_line = area.width.saturating_sub(LABEL).max(1) as u64;
        let (rows, columns, leading) = match counts.as_slice() {
            [] => (1, 1, 1),
            [n] => (1, *n, 1),
            [leading @ .., rows, columns] => (
                *rows,
                *columns,
                leading.iter().fold(1, |n: u64, i| n.saturating_mul(*i)),
            ),
        };
        // a single row is wrapped
        let most_columns = if counts.len() < 2 {
            columns_of_line * area.lines
        } else {
            columns_of_line
        };
        let axes = [
            MapAxis::new(leading, area.panels),
            MapAxis::new(rows, area.lines),
            MapAxis::new(columns, most_columns),
        ];
        let shard = match shard {
            _ if axes.iter().all(|axis| axis.per_cell == 1) => None,
            [] => None,
            [columns] => Some([1, 1, *columns]),
            [rows, columns] => Some([1, *rows, *columns]),
            [planes, rows, columns] => Some([*planes, *rows, *columns]),
            // with more leading dimensions, a shard is no range of planes
            [.., rows, columns] => Some([1, *rows, *columns]),
        };
        let axes = match shard {
            Some(shard) => [0, 1, 2].map(|i| axes[i].by_shards(shard[i])),
            None => axes,
        };
        let cells = match grid.chunk_count() {
            0 => Vec::new(),
            _ => vec![Cell::default(); axes.iter().map(|axis| axis.cells() as usize).product()],
        };
        ChunkMap {
            counts,
            chunk_count: grid.chunk_count(),
            axes,
            shard,
            cells,
            total: Cell::default(),
            sizes: (!of_objects).then(|| grid.clone()),
            largest: 0,
            area,
            fault: None,
        }
    }

    /// Adds a stored chunk of the grid.
    pub fn add(&mut self, examined: &Examined) {
        let [_, rows, columns] = self.axes.map(|axis| axis.chunks.max(1));
        let id = examined.chunk.0;
        let at = [id / columns / rows, id / columns % rows, id % columns];
        let cell = at
            .iter()
            .zip(&self.axes)
            .fold(0, |cell, (i, axis)| cell * axis.cells() + i / axis.per_cell);
        if let Some(cell) = self.cells.get_mut(cell as usize) {
            let decoded = self
                .sizes
                .as_ref()
                .map_or(0, |grid| grid.chunk_size(examined.chunk) as u64);
            cell.add(examined, decoded);
            self.total.add(examined, decoded);
            self.largest = self.largest.max(examined.stored);
            if self.fault.is_none() {
                self.fault.clone_from(&examined.fault);
            }
        }
    }

    /// Returns the number of chunks that were added.
    pub fn stored(&self) -> u64 {
        self.total.stored
    }

    /// Returns the stored bytes of the chunks that were added.
    pub fn bytes(&self) -> u64 {
        self.total.bytes
    }

    /// Returns the picture in lines that fit the area, and the totals. [`legend`] explains the
    /// symbols.
    pub fn draw(&self, style: Style) -> String {
        let mut text = String::new();
        let [panels, rows, columns] = self.axes;
        if self.chunk_count == 0 {
            return "  no chunks: the array is empty\n".to_string();
        }
        for panel in 0..panels.cells() {
            if self.counts.len() > 2 {
                text.push_str(&format!("  {}\n", self.panel_label(panel)));
            }
            for row in 0..rows.cells() {
                let cells =
                    (0..columns.cells()).map(|column| self.symbol(panel, row, column, style));
                let symbols: Vec<char> = cells.collect();
                let line = self.area.width.saturating_sub(LABEL).max(1);
                for (i, symbols) in symbols.chunks(line).enumerate() {
                    let first = match self.counts.len() {
                        0 | 1 => (i * line) as u64 * columns.per_cell,
                        _ => row * rows.per_cell,
                    };
                    let label = format!("{first:>width$}  ", width = LABEL - 2);
                    text.push_str(&format!("{label}{}\n", symbols.iter().collect::<String>()));
                }
            }
        }
        text + &self.totals()
    }

    /// Returns the indices of the first plane of a panel, `(0, 3, *, *)`, and those of the last if
    /// the panel stands for several planes.
    fn panel_label(&self, panel: u64) -> String {
        let first = panel * self.axes[0].per_cell;
        match self.axes[0].chunks_in(panel) {
            1 => self.plane_label(first),
            n => format!(
                "{} to {}",
                self.plane_label(first),
                self.plane_label(first + n - 1)
            ),
        }
    }

    /// Returns the indices of the plane number `n`.
    fn plane_label(&self, mut n: u64) -> String {
        let mut names: Vec<String> = vec!["*".into(), "*".into()];
        let leading = self.counts.len().saturating_sub(2);
        for count in self.counts[..leading].iter().rev() {
            names.insert(0, (n % count).to_string());
            n /= count;
        }
        format!("({})", names.join(", "))
    }

    fn symbol(&self, panel: u64, row: u64, column: u64, style: Style) -> char {
        let [panels, rows, columns] = self.axes;
        let index = (panel * rows.cells() + row) * columns.cells() + column;
        let cell = self.cells.get(index as usize).copied().unwrap_or_default();
        let chunks = panels.chunks_in(panel) * rows.chunks_in(row) * columns.chunks_in(column);
        let symbols = symbols(style.ascii);
        if cell.failed > 0 {
            FAILS
        } else if cell.stored == 0 {
            symbols.none
        } else if cell.stored < chunks {
            let tenths = (cell.stored as f64 / chunks as f64 * 10.0).round() as u32;
            char::from_digit(tenths.clamp(1, 9), 10).unwrap_or(FAILS)
        } else {
            let whole = match &self.sizes {
                Some(_) => cell.decoded,
                None => self.largest.saturating_mul(cell.stored),
            };
            let whole = whole.max(1) as f64;
            let shade = (cell.bytes as f64 / whole * symbols.shades.len() as f64).ceil() as usize;
            symbols.shades[shade.clamp(1, symbols.shades.len()) - 1]
        }
    }

    fn totals(&self) -> String {
        let stored = self.total.stored;
        let all = size::count(self.chunk_count);
        let bytes = size::show(self.total.bytes);
        let mut text = format!("  {} of {all} chunks stored, {bytes}", size::count(stored));
        let decoded = self.total.decoded;
        if decoded > 0 {
            let part = self.total.bytes as f64 / decoded as f64 * 100.0;
            text.push_str(&format!(" ({part:.1} % of {})", size::show(decoded)));
        }
        if self.total.failed > 0 {
            text.push_str(&format!(", {} fail", size::count(self.total.failed)));
        }
        let is_shard = self
            .shard
            .is_some_and(|shard| self.axes.map(|axis| axis.per_cell) == shard);
        let some = if is_shard {
            "a shard, 1 to 9: tenths of them stored"
        } else {
            "1 to 9: tenths of them stored"
        };
        let cell = match (self.axes.map(|axis| axis.per_cell), self.counts.len()) {
            ([1, 1, 1], _) => String::new(),
            ([_, _, n], 0 | 1) => format!("  a cell is {n} chunks, {some}\n"),
            ([1, n, m], _) => format!("  a cell is {n} x {m} chunks, {some}\n"),
            ([l, n, m], _) => format!("  a cell is {n} x {m} chunks of {l} planes, {some}\n"),
        };
        let fault = self
            .fault
            .as_ref()
            .map_or(String::new(), |fault| format!("  {FAILS} {fault}\n"));
        format!("{text}\n{cell}{fault}")
    }

    /// Returns the cells as lists of numbers, in C order.
    pub fn to_json(&self) -> Value {
        let cells = &self.cells;
        json!({
            "grid": self.counts,
            "cells": self.axes.map(MapAxis::cells),
            "chunks_per_cell": self.axes.map(|axis| axis.per_cell),
            "stored": cells.iter().map(|cell| cell.stored).collect::<Vec<_>>(),
            "bytes": cells.iter().map(|cell| cell.bytes).collect::<Vec<_>>(),
            "failed": cells.iter().map(|cell| cell.failed).collect::<Vec<_>>(),
        })
    }
}

/// Returns a line that explains the symbols of a picture.
pub fn legend(style: Style) -> String {
    let symbols = symbols(style.ascii);
    let shades = symbols
        .shades
        .iter()
        .map(char::to_string)
        .collect::<Vec<_>>()
        .join(" ");
    let fails = if style.deep {
        "can't be decoded"
    } else {
        "of a wrong size"
    };
    format!(
        "{} missing   {shades} stored, by quarters of the decoded size   {FAILS} {fails}\n",
        symbols.none
    )
}

/// The symbol of a cell with a chunk that fails.
const FAILS: char = '!';

struct Symbols {
    none: char,
    /// Shades of stored chunks, from the smallest to the largest.
    shades: [char; 4],
}

fn symbols(ascii: bool) -> Symbols {
    if ascii {
        Symbols {
            none: '.',
            shades: ['-', '+', '*', '#'],
        }
    } else {
        Symbols {
            none: '·',
            shades: ['░', '▒', '▓', '█'],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zarrfs_format::grid::ChunkId;

    const AREA: MapArea = MapArea {
        width: 18,
        lines: 3,
        panels: 2,
    };
    const STYLE: Style = Style {
        ascii: true,
        deep: false,
    };

    fn map(shape: &[u64], stored: &[(u64, u64)]) -> ChunkMap {
        let grid = Grid::new(shape, &vec![1; shape.len()], 100).unwrap();
        let mut map = ChunkMap::new(&grid, &[], false, AREA);
        for &(chunk, stored) in stored {
            let fault = (stored > 100).then(|| Error::damaged("too large"));
            map.add(&Examined {
                chunk: ChunkId(chunk),
                stored,
                fault,
            });
        }
        map
    }

    /// Returns the lines of the picture without its totals.
    fn picture(map: &ChunkMap) -> Vec<String> {
        let text = map.draw(STYLE);
        assert!(
            text.lines()
                .take_while(|line| !line.contains("stored"))
                .all(|line| line.len() <= AREA.width + 20)
        );
        text.lines()
            .take_while(|line| !line.contains("chunks stored"))
            .map(|line| line.trim().to_string())
            .collect()
    }

    #[test]
    fn each_chunk_has_its_cell_and_its_shade() {
        let map = map(&[2, 3], &[(0, 0), (1, 25), (2, 26), (3, 75), (5, 101)]);
        assert_eq!(picture(&map), ["0  --+", "1  *.!"]);
        let text = map.draw(STYLE);
        assert!(
            text.contains("5 of 6 chunks stored, 227 B (45.4 % of 500 B), 1 fail\n"),
            "{text}"
        );
        assert!(
            text.contains("too large") && !text.contains("a cell is"),
            "{text}"
        );
        let style = Style {
            ascii: false,
            deep: true,
        };
        assert!(
            map.draw(style).contains("░░▒\n") && legend(style).contains("█ stored"),
            "unicode"
        );
    }

    #[test]
    fn one_dimension_is_wrapped_and_then_binned() {
        let wrapped = map(&[12], &[(0, 100), (11, 100)]);
        assert_eq!(picture(&wrapped), ["0  #.........", "10  .#"]);
        let binned = map(&[61], &[(0, 100), (1, 100), (2, 100), (3, 100), (60, 100)]);
        assert_eq!(
            picture(&binned),
            ["0  #3........", "30  ..........", "60  #"]
        );
    }

    #[test]
    fn planes_have_panels_or_share_them_if_there_are_many() {
        let few = map(&[2, 1, 1], &[(1, 1)]);
        assert_eq!(picture(&few), ["(0, *, *)", "0  .", "(1, *, *)", "0  -"]);
        let many = map(&[1, 3, 1, 1], &[(0, 1), (1, 1)]);
        assert_eq!(
            picture(&many),
            [
                "(0, 0, *, *) to (0, 1, *, *)",
                "0  -",
                "(0, 2, *, *)",
                "0  ."
            ]
        );
        assert!(
            many.draw(STYLE)
                .contains("a cell is 1 x 1 chunks of 2 planes")
        );
    }

    #[test]
    fn cells_of_a_large_grid_are_whole_shards() {
        let drawn = |shape: &[u64], shard: &[u64], stored: &[u64]| {
            let grid = Grid::new(shape, &vec![1; shape.len()], 100).unwrap();
            let mut map = ChunkMap::new(&grid, shard, false, AREA);
            stored.iter().for_each(|id| {
                map.add(&Examined {
                    chunk: ChunkId(*id),
                    stored: 100,
                    fault: None,
                })
            });
            (picture(&map), map.draw(STYLE))
        };
        let (fits, text) = drawn(&[3, 10], &[3, 5], &[0]);
        assert_eq!((fits.len(), text.contains("shard")), (3, false));
        let (one, text) = drawn(&[6, 20], &[2, 5], &[0, 1, 2, 3, 4, 20, 21, 22, 23, 24, 119]);
        assert_eq!(one, ["0  #...", "2  ....", "4  ...1"]);
        assert!(
            text.contains("a cell is 2 x 5 chunks, a shard, 1 to 9"),
            "{text}"
        );
        let (many, text) = drawn(&[8, 8], &[2, 2], &[63]);
        assert_eq!(many, ["0  ....", "4  ...1"]);
        assert!(text.contains("a cell is 4 x 2 chunks, 1 to 9"), "{text}");
        let (line, _) = drawn(&[64], &[3], &[0, 1, 2]);
        assert_eq!(line, ["0  #.........", "30  ..........", "60  .."]);
        let (planes, _) = drawn(&[6, 1, 1], &[2, 1, 1], &[4, 5]);
        assert_eq!(
            planes,
            [
                "(0, *, *) to (3, *, *)",
                "0  .",
                "(4, *, *) to (5, *, *)",
                "0  #"
            ]
        );
    }

    #[test]
    fn empty_arrays_and_single_chunks_are_drawn() {
        assert_eq!(picture(&map(&[], &[(0, 7)])), ["0  -"]);
        for shape in [&[0][..], &[0, 5], &[1 << 40, 1 << 40, 0, 5, 5]] {
            assert_eq!(picture(&map(shape, &[])), ["no chunks: the array is empty"]);
        }
    }

    #[test]
    fn json_has_the_same_numbers() {
        let json = map(&[4, 1], &[(0, 7), (1, 101)]).to_json();
        assert_eq!(json["chunks_per_cell"], Value::from(vec![1, 2, 1]));
        assert_eq!(json["cells"], Value::from(vec![1, 2, 1]));
        assert_eq!(
            (&json["stored"], &json["bytes"]),
            (&Value::from(vec![2, 0]), &Value::from(vec![108, 0]))
        );
        assert_eq!(
            (&json["failed"], &json["grid"]),
            (&Value::from(vec![1, 0]), &Value::from(vec![4, 1]))
        );
    }
}
