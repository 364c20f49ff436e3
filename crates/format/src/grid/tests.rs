//! Compares the grid with its definition, byte by byte.

use super::*;
use proptest::prelude::*;

/// Returns the grid of an array whose chunks have the lengths `chunks` along each dimension.
fn grid_of(shape: &[u64], chunks: &[Vec<u64>], item: u64) -> Grid {
    let edges = |lengths: &Vec<u64>| {
        if lengths.iter().all(|len| *len == lengths[0]) {
            Edges::Equal(lengths[0])
        } else {
            Edges::listed(&lengths.iter().map(|len| (*len, 1)).collect::<Vec<_>>()).unwrap()
        }
    };
    Grid::with_edges(
        shape,
        &chunks.iter().map(edges).collect::<Vec<_>>(),
        item as usize,
    )
    .unwrap()
}

/// Returns the index of the chunk that holds the item `index` along a dimension, and the index of
/// its first item.
fn chunk_along(lengths: &[u64], index: u64) -> (usize, u64) {
    let mut start = 0;
    for (chunk, len) in lengths.iter().enumerate() {
        if index < start + len {
            return (chunk, start);
        }
        start += len;
    }
    panic!("no chunk of {lengths:?} holds {index}")
}

/// Returns the number of chunks along a dimension of `len` items.
fn count_along(lengths: &[u64], len: u64) -> u64 {
    chunk_along(lengths, len - 1).0 as u64 + 1
}

/// Computes from the definition, for each byte of the flat array, its chunk and the offset in that
/// chunk.
fn definition(shape: &[u64], chunks: &[Vec<u64>], item: u64) -> Vec<(u64, u64)> {
    let size: u64 = shape.iter().product::<u64>() * item;
    let locate = |byte: u64| {
        let mut element = byte / item;
        let mut id = 0;
        let mut inside = 0;
        let mut index = vec![0; shape.len()];
        for d in (0..shape.len()).rev() {
            index[d] = element % shape[d];
            element /= shape[d];
        }
        for d in 0..shape.len() {
            let (chunk, start) = chunk_along(&chunks[d], index[d]);
            id = id * count_along(&chunks[d], shape[d]) + chunk as u64;
            inside = inside * chunks[d][chunk] + index[d] - start;
        }
        (id, inside * item + byte % item)
    };
    (0..size).map(locate).collect()
}

/// Returns the length of a dimension and the lengths of its chunks: equal ones, or any that reach
/// at least to its end.
fn any_dimension() -> impl Strategy<Value = (u64, Vec<u64>)> {
    let equal = (1u64..9, 1u64..10)
        .prop_map(|(len, chunk)| (len, vec![chunk; len.div_ceil(chunk) as usize]));
    let listed = prop::collection::vec(1u64..5, 1..5);
    let listed = (listed, 0.0..1.0f64).prop_map(|(chunks, part)| {
        let all: u64 = chunks.iter().sum();
        (1 + (part * all as f64) as u64, chunks)
    });
    prop_oneof![equal, listed]
}

fn any_grid() -> impl Strategy<Value = (Vec<u64>, Vec<Vec<u64>>, u64)> {
    let dims = prop::collection::vec(any_dimension(), 0..=5);
    (dims, 1u64..5)
        .prop_filter("small enough to enumerate", |(d, _)| {
            d.iter().map(|d| d.0).product::<u64>() < 3000
        })
        .prop_map(|(dims, item)| {
            let (shape, chunks) = dims.into_iter().unzip();
            (shape, chunks, item)
        })
}

/// Returns the bytes of a block that are not done: the offset of each in the chunk, and its
/// distance from the start.
fn bytes_of(block: &Block) -> impl Iterator<Item = (usize, usize)> {
    block
        .runs()
        .flat_map(|(run, at)| (0..run.len).map(move |n| (run.offset + n, at + n)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Blocks have the runs of their range, each once.
    #[test]
    fn blocks_have_all_runs((shape, chunks, item) in any_grid(), a in 0.0..1.0f64, b in 0.0..1.0f64, part in 0.0..1.0f64) {
        let grid = grid_of(&shape, &chunks, item);
        let [start, end_of_range] = [a.min(b), a.max(b)].map(|part| (part * grid.size() as f64) as u64);
        let blocks: Vec<_> = grid.blocks(start..end_of_range).collect();
        let mut found: Vec<_> = blocks.iter().flat_map(Block::runs).collect();
        found.sort_unstable_by_key(|(_, at)| *at);
        let starts = grid.runs(start..end_of_range).scan(0, |end, run| Some(std::mem::replace(end, *end + run.len)));
        let expected: Vec<_> = grid.runs(start..end_of_range).zip(starts).collect();
        prop_assert_eq!(found, expected);
        for mut block in blocks {
            let bytes: Vec<_> = bytes_of(&block).collect();
            prop_assert_eq!(block.bytes(), bytes.len());
            prop_assert_eq!(block.span(), bytes[0].0..bytes[bytes.len() - 1].0 + 1);
            // whatever is done first, the rest stays the same
            let done = (part * bytes.len() as f64) as usize;
            block.advance(done);
            prop_assert_eq!(bytes_of(&block).collect::<Vec<_>>(), &bytes[done..]);
        }
    }

    #[test]
    fn runs_match_the_definition((shape, chunks, item) in any_grid(), a in 0.0..1.1f64, b in 0.0..1.1f64) {
        let grid = grid_of(&shape, &chunks, item);
        let bytes = definition(&shape, &chunks, item);
        prop_assert_eq!(grid.size() as usize, bytes.len());
        let a = (a * bytes.len() as f64) as u64;
        let b = (b * bytes.len() as f64) as u64;
        let range = a.min(b)..a.max(b);
        let runs = grid.runs(range.clone()).flat_map(|r| (0..r.len).map(move |i| (r.chunk.0, (r.offset + i) as u64)));
        let clip = |n: u64| (n as usize).min(bytes.len());
        prop_assert!(runs.eq(bytes[clip(range.start)..clip(range.end)].iter().copied()));
    }

    #[test]
    fn chunks_are_numbered_in_c_order((shape, chunks, item) in any_grid(), id in 0.0..1.0f64) {
        let grid = grid_of(&shape, &chunks, item);
        let counts: Vec<u64> = shape.iter().zip(&chunks).map(|(len, chunks)| count_along(chunks, *len)).collect();
        prop_assert_eq!(grid.chunk_count(), counts.iter().product::<u64>());
        let id = (id * grid.chunk_count() as f64) as u64;
        let mut indices = vec![0; counts.len()];
        for _ in 0..id {
            for axis in (0..counts.len()).rev() {
                indices[axis] = (indices[axis] + 1) % counts[axis];
                if indices[axis] > 0 {
                    break;
                }
            }
        }
        if grid.chunk_count() > 0 {
            prop_assert_eq!(grid.indices(ChunkId(id)), &indices[..]);
            prop_assert_eq!(grid.chunk(&indices), ChunkId(id));
        }
        prop_assert_eq!((grid.counts(), grid.dimensions()), (&counts[..], shape.len()));
    }

    #[test]
    fn edge_chunks_hold_fewer_bytes_of_the_array((shape, chunks, item) in any_grid(), id in 0.0..1.0f64) {
        let grid = grid_of(&shape, &chunks, item);
        let chunk = ChunkId((id * grid.chunk_count() as f64) as u64);
        let held = definition(&shape, &chunks, item).iter().filter(|(id, _)| *id == chunk.0).count();
        let indices = grid.indices(chunk);
        let lengths = indices.iter().zip(&chunks).map(|(index, chunks)| chunks[*index as usize]);
        let size = lengths.product::<u64>() * item;
        prop_assert_eq!(grid.chunk_size(chunk) as u64, size);
        prop_assert!(size <= grid.max_chunk_size() as u64);
        prop_assert_eq!(grid.is_edge(chunk), (held as u64) < size);
        prop_assert_eq!(grid.chunk(&grid.indices(chunk)), chunk);
    }

    #[test]
    fn next_in_chunk_finds_the_first_byte_of_the_chunk((shape, chunks, item) in any_grid(), from in 0.0..1.1f64, id in 0.0..1.0f64) {
        let grid = grid_of(&shape, &chunks, item);
        let bytes = definition(&shape, &chunks, item);
        let from = (from * bytes.len() as f64) as u64;
        let chunk = ChunkId((id * grid.chunk_count() as f64) as u64);
        let expected = (from..bytes.len() as u64).find(|&i| bytes[i as usize].0 == chunk.0);
        prop_assert_eq!(grid.next_in_chunk(chunk, from), expected);
    }

    #[test]
    fn no_chunk_lies_between_rows_of_chunks((shape, chunks, item) in any_grid(), from in 0.0..1.0f64) {
        let grid = grid_of(&shape, &chunks, item);
        let bytes = definition(&shape, &chunks, item);
        let from = (from * bytes.len() as f64) as usize;
        let next = grid.next_row_of_chunks(from as u64) as usize;
        prop_assert!(next > from && next <= bytes.len());
        let width = grid.axes.last().unwrap().len as usize;
        let row_end = from / width * width + width;
        prop_assert_eq!(grid.row_end(from as u64), row_end as u64);
        prop_assert!(bytes[from..next].iter().all(|b| bytes[from..row_end].iter().any(|a| a.0 == b.0)));
    }

    #[test]
    fn a_band_precedes_all_later_chunks((shape, chunks, item) in any_grid(), from in 0.0..1.0f64) {
        let grid = grid_of(&shape, &chunks, item);
        let bytes = definition(&shape, &chunks, item);
        let from = (from * bytes.len() as f64) as usize;
        let band = grid.band(from as u64);
        prop_assert!(band.contains(&bytes[from].0));
        let end = bytes.iter().rposition(|b| b.0 < band.end).unwrap();
        prop_assert!(bytes[..=end].iter().all(|b| b.0 < band.end));
        prop_assert!(bytes[from..].iter().all(|b| b.0 >= band.start));
    }

    #[test]
    fn a_working_set_holds_all_bytes_up_to_its_end((shape, chunks, item) in any_grid(), from in 0.0..1.0f64) {
        let grid = grid_of(&shape, &chunks, item);
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
        // no other chunk holds a byte before the last byte of the set
        let end = bytes.iter().rposition(|b| set.contains(&b.0)).unwrap();
        prop_assert!(bytes[from..=end].iter().all(|b| set.contains(&b.0)));
    }

    #[test]
    fn chunk_runs_are_the_runs_of_that_chunk((shape, chunks, item) in any_grid(), a in 0.0..1.0f64, b in 0.0..1.1f64, id in 0.0..1.0f64) {
        let grid = grid_of(&shape, &chunks, item);
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
    fn chunks_around_a_range_include_all_needed_and_few_others((shape, chunks, item) in any_grid(), a in 0.0..1.0f64, b in 0.0..1.0f64) {
        let grid = grid_of(&shape, &chunks, item);
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
}

#[test]
fn a_working_set_is_as_small_as_possible() {
    let grid = Grid::new(&[4, 6], &[1, 3], 1).unwrap();
    assert_eq!(
        grid.working_set(7),
        WorkingSet {
            chunks: 2..3,
            flat: 6..9
        },
        "each chunk is read to its end at once"
    );
    let grid = Grid::new(&[4, 6], &[2, 3], 1).unwrap();
    assert_eq!(
        grid.working_set(7),
        WorkingSet {
            chunks: 0..2,
            flat: 0..12
        },
        "two rows pass through two chunks"
    );
}

#[test]
fn neighboring_dimensions_become_one_run() {
    let grid = Grid::new(&[10, 4, 6], &[5, 4, 6], 2).unwrap();
    let runs: Vec<Run> = grid.runs(0..u64::MAX).collect();
    assert_eq!(
        runs,
        [
            Run {
                chunk: ChunkId(0),
                offset: 0,
                len: 240
            },
            Run {
                chunk: ChunkId(1),
                offset: 0,
                len: 240
            }
        ]
    );
}

#[test]
fn repeated_lengths_share_one_stretch() {
    let vast = Edges::listed(&[(1, 1 << 62), (1, 1), (5, 2)]).unwrap();
    assert_eq!(vast.list(), [(1, (1 << 62) + 1), (5, 2)]);
    assert_eq!(
        (vast.index_of((1 << 62) + 6), vast.span((1 << 62) + 2)),
        ((1 << 62) + 2, (1 << 62) + 6..(1 << 62) + 11)
    );
    for bad in [
        &[][..],
        &[(0, 1)],
        &[(1, 0)],
        &[(1, 1 << 63)],
        &[(1 << 62, 4)],
        &[(2, 1 << 62), (1, 1 << 62)],
    ] {
        assert!(Edges::listed(bad).is_err(), "{bad:?}");
    }
}

#[test]
fn contradictory_shapes_are_errors() {
    let short = Edges::listed(&[(2, 1), (1, 1)]).unwrap();
    assert!(Grid::with_edges(&[4], &[short], 1).is_err());
    assert!(Grid::new(&[4], &[2, 2], 1).is_err());
    assert!(Grid::new(&[4], &[0], 1).is_err());
}

#[test]
fn sizes_beyond_their_integers_are_errors() {
    assert!(Grid::new(&[i64::MAX as u64], &[1], 1).is_ok());
    assert!(Grid::new(&[1 << 63], &[1], 1).is_err());
    assert!(Grid::new(&[u64::MAX, 2], &[1, 1], 0).is_err());
    assert_eq!(
        Grid::new(&[1 << 62, 1 << 62, 0], &[1, 1, 1], 1)
            .unwrap()
            .chunk_count(),
        0
    );
    assert!(Grid::new(&[1 << 62, 4], &[1, 1], 1).is_err());
    assert!(Grid::new(&[1 << 60, 4], &[1 << 60, 16], 1).is_err());
    assert!(Grid::new(&[u64::MAX], &[1], 0).is_ok());
    let empty = Grid::new(&[0, 1 << 62, 1 << 62], &[1, 1, 1], 4).unwrap();
    assert_eq!(
        (
            empty.size(),
            empty.chunk_count(),
            empty.runs(0..100).count()
        ),
        (0, 0, 0)
    );
    let vast = Grid::new(&[1 << 60], &[16], 1).unwrap();
    let tail: Vec<Run> = vast.runs((1 << 60) - 1..u64::MAX).collect();
    assert_eq!(
        tail,
        [Run {
            chunk: ChunkId((1 << 56) - 1),
            offset: 15,
            len: 1
        }]
    );
    assert_eq!(Grid::new(&[3], &[2], 0).unwrap().runs(0..9).count(), 0);
}
