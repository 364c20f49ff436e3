//! Conversion between the two layouts of a chunk: C (last dimension fastest) and F (first dimension fastest). The module
//! is pure arithmetic over items of a fixed size. Chunks in memory always have C layout.

use std::ops::Range;

/// Items per side of the tiles that [`transpose`] processes. Strides of chunks are usually powers of two, so the lines of
/// larger tiles would compete for the same few sets of the L1 cache.
const TILE: usize = 8;

/// Converts a whole chunk of shape `shape` with items of `itemsize` bytes from F layout to C layout. Does nothing if a
/// slice has another length than the chunk.
pub fn f_to_c(shape: &[u64], itemsize: usize, from: &[u8], to: &mut [u8]) {
    match itemsize {
        1 => transpose::<1>(shape, from, to),
        2 => transpose::<2>(shape, from, to),
        4 => transpose::<4>(shape, from, to),
        8 => transpose::<8>(shape, from, to),
        16 => transpose::<16>(shape, from, to),
        _ => transpose_any(shape, itemsize, from, to),
    }
}

/// Converts a whole chunk from C layout to F layout: the inverse of [`f_to_c`].
pub fn c_to_f(shape: &[u64], itemsize: usize, from: &[u8], to: &mut [u8]) {
    // C layout of a shape is F layout of the reversed shape
    let reversed: Vec<u64> = shape.iter().rev().copied().collect();
    f_to_c(&reversed, itemsize, from, to);
}

/// Returns the strides of each dimension in items, in F layout and in C layout.
fn strides(shape: &[u64]) -> (Vec<usize>, Vec<usize>) {
    let (mut f, mut c) = (vec![1; shape.len()], vec![1; shape.len()]);
    for d in 1..shape.len() {
        f[d] = f[d - 1] * shape[d - 1] as usize;
    }
    for d in (1..shape.len()).rev() {
        c[d - 1] = c[d] * shape[d] as usize;
    }
    (f, c)
}

/// Calls `plane` with the positions in items, in F layout and in C layout, of every plane that the first and the last
/// dimension span.
fn planes(shape: &[u64], mut plane: impl FnMut(usize, usize)) {
    let (f, c) = strides(shape);
    let middle = 1..shape.len() - 1;
    let mut index = vec![0u64; shape.len()];
    loop {
        let at = |s: &[usize]| middle.clone().map(|d| index[d] as usize * s[d]).sum();
        plane(at(&f), at(&c));
        let Some(d) = middle.clone().rev().find(|&d| index[d] + 1 < shape[d]) else { return };
        index[d] += 1;
        index[d + 1..].fill(0);
    }
}

/// Converts a chunk with items of `N` bytes from F layout to C layout.
fn transpose<const N: usize>(shape: &[u64], from: &[u8], to: &mut [u8]) {
    let (from, to) = (from.as_chunks::<N>().0, to.as_chunks_mut::<N>().0);
    let items = shape.iter().product::<u64>() as usize;
    if from.len() != items || to.len() != items || items == 0 {
        return;
    }
    let [first, .., last] = *shape else {
        to.copy_from_slice(from);
        return;
    };
    let (rows, columns) = (first as usize, last as usize);
    let (row_stride, column_stride) = (items / rows, items / columns);
    planes(shape, |f, c| {
        for row in (0..rows).step_by(TILE) {
            for column in (0..columns).step_by(TILE) {
                let from = &from[f + row + column * column_stride..];
                let to = &mut to[c + row * row_stride + column..];
                if row + TILE <= rows && column + TILE <= columns {
                    tile(from, column_stride, to, row_stride);
                    continue;
                }
                for i in 0..TILE.min(rows - row) {
                    for j in 0..TILE.min(columns - column) {
                        to[i * row_stride + j] = from[i + j * column_stride];
                    }
                }
            }
        }
    });
}

/// Transposes one whole tile. A copy on the stack lets both sides be accessed in contiguous stretches.
fn tile<const N: usize>(from: &[[u8; N]], column_stride: usize, to: &mut [[u8; N]], row_stride: usize) {
    let mut tile = [[[0; N]; TILE]; TILE];
    for (j, column) in tile.iter_mut().enumerate() {
        column.copy_from_slice(&from[j * column_stride..][..TILE]);
    }
    for i in 0..TILE {
        for (item, column) in to[i * row_stride..][..TILE].iter_mut().zip(&tile) {
            *item = column[i];
        }
    }
}

/// Converts a chunk with items of any size from F layout to C layout.
fn transpose_any(shape: &[u64], itemsize: usize, from: &[u8], to: &mut [u8]) {
    let items = shape.iter().product::<u64>() as usize;
    if from.len() != items * itemsize || to.len() != from.len() || from.is_empty() {
        return;
    }
    let (f, _) = strides(shape);
    for (i, item) in to.chunks_exact_mut(itemsize).enumerate() {
        let at = f_position(shape, &f, i) * itemsize;
        item.copy_from_slice(&from[at..at + itemsize]);
    }
}

/// Returns the position in F layout of the item at position `i` in C layout.
fn f_position(shape: &[u64], f_strides: &[usize], mut i: usize) -> usize {
    let mut at = 0;
    for d in (0..shape.len()).rev() {
        at += i % shape[d] as usize * f_strides[d];
        i /= shape[d] as usize;
    }
    at
}

/// Copies the bytes `range` of a chunk's F layout from `chunk`, which has C layout, to `out`, which has the length of the
/// range.
pub fn read_f_order(shape: &[u64], itemsize: usize, chunk: &[u8], range: Range<usize>, out: &mut [u8]) {
    let mut rest = out;
    for_each_in_f_order(shape, itemsize, range, |from, len| {
        let (head, tail) = std::mem::take(&mut rest).split_at_mut(len);
        head.copy_from_slice(&chunk[from..from + len]);
        rest = tail;
    });
}

/// Calls `each` for every item, or part of one, that the bytes `range` of a chunk's F layout consist of, in the order of F
/// layout. The arguments are the offset in C layout and the length, both in bytes.
pub fn for_each_in_f_order(shape: &[u64], itemsize: usize, range: Range<usize>, mut each: impl FnMut(usize, usize)) {
    if itemsize == 0 || range.is_empty() {
        return;
    }
    let (f, c) = strides(shape);
    let first = range.start / itemsize;
    let mut index: Vec<usize> = (0..shape.len()).map(|d| first / f[d] % shape[d] as usize).collect();
    let mut position: usize = index.iter().zip(&c).map(|(i, stride)| i * stride).sum();
    let (mut inside, mut left) = (range.start % itemsize, range.len());
    while left > 0 {
        let len = (itemsize - inside).min(left);
        each(position * itemsize + inside, len);
        (inside, left) = (0, left - len);
        // advances by one item in F layout
        for d in 0..shape.len() {
            index[d] += 1;
            position += c[d];
            if index[d] < shape[d] as usize {
                break;
            }
            position -= index[d] * c[d];
            index[d] = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn slices_of_another_length_are_left_alone() {
        for item in [1, 2, 3] {
            for (from, to) in [(6, 5), (5, 6), (7, 6), (6, 7), (5, 5)] {
                let (from, mut to) = (vec![1; from * item], vec![0; to * item]);
                f_to_c(&[2, 3], item, &from, &mut to);
                assert!(to.iter().all(|byte| *byte == 0), "{} {} {item}", from.len(), to.len());
            }
            f_to_c(&[0, 3], item, &[], &mut []);
            f_to_c(&[3, 0, 2], item, &[], &mut []);
            read_f_order(&[2, 3], item, &[], 4..4, &mut []);
        }
        read_f_order(&[2, 3], 0, &[], 0..4, &mut [0; 4]);
    }

    proptest! {
        #[test]
        fn conversions_match_the_definition(
            shape in prop::collection::vec(1u64..40, 0..=4).prop_filter("small", |s| s.iter().product::<u64>() < 6000),
            item in prop::sample::select(vec![1usize, 2, 3, 4, 8, 15, 16]),
            a in 0.0..1.0f64, b in 0.0..1.0f64,
        ) {
            let items = shape.iter().product::<u64>() as usize;
            let f_layout: Vec<u8> = (0..items * item).map(|i| ((i * 31) >> 3) as u8 ^ i as u8).collect();
            // the definition: item (i0, i1, ...) is at sum(i_d * prod(shape[..d])) in F layout
            let mut expected = Vec::new();
            for c in 0..items {
                let (mut rest, mut index) = (c, vec![0; shape.len()]);
                for d in (0..shape.len()).rev() {
                    index[d] = rest % shape[d] as usize;
                    rest /= shape[d] as usize;
                }
                let f = (0..shape.len()).rev().fold(0, |at, d| at * shape[d] as usize + index[d]);
                expected.extend_from_slice(&f_layout[f * item..(f + 1) * item]);
            }
            let mut c_layout = vec![0; items * item];
            f_to_c(&shape, item, &f_layout, &mut c_layout);
            prop_assert_eq!(&c_layout, &expected);
            let mut back = vec![0; items * item];
            c_to_f(&shape, item, &c_layout, &mut back);
            prop_assert_eq!(&back, &f_layout);
            let (a, b) = ((a * f_layout.len() as f64) as usize, (b * f_layout.len() as f64) as usize);
            let range = a.min(b)..a.max(b);
            let mut part = vec![0; range.len()];
            read_f_order(&shape, item, &c_layout, range.clone(), &mut part);
            prop_assert_eq!(&part, &f_layout[range]);
        }
    }
}
