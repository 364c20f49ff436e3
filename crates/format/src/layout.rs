//! Conversion between the two layouts of a chunk: C (last dimension fastest) and F (first dimension
//! fastest). The module is pure arithmetic over items of a fixed size. Chunks in memory always have
//! C layout. Other orders of the axes are permutations of C layout.

mod permutation;

pub use permutation::{byte_size, is_permutation, permute};
use std::ops::Range;

/// Converts a whole chunk of shape `shape` with items of `itemsize` bytes from F layout to C
/// layout. Does nothing if a slice has another length than the chunk.
pub fn f_to_c(shape: &[u64], itemsize: usize, from: &[u8], to: &mut [u8]) {
    // F layout of a shape is C layout of the reversed shape
    let reversed: Vec<u64> = shape.iter().rev().copied().collect();
    let order: Vec<usize> = (0..shape.len()).rev().collect();
    permute(&reversed, &order, itemsize, from, to);
}

/// Returns the strides of each dimension in items, in F layout and in C layout.
fn strides(shape: &[u64]) -> (Vec<usize>, Vec<usize>) {
    let mut f = vec![1; shape.len()];
    let mut c = vec![1; shape.len()];
    for d in 1..shape.len() {
        f[d] = f[d - 1] * shape[d - 1] as usize;
    }
    for d in (1..shape.len()).rev() {
        c[d - 1] = c[d] * shape[d] as usize;
    }
    (f, c)
}

/// Copies the bytes `range` of a chunk's F layout from `chunk`, which has C layout, to `out`, which
/// has the length of the range.
pub fn read_f_order(
    shape: &[u64],
    itemsize: usize,
    chunk: &[u8],
    range: Range<usize>,
    out: &mut [u8],
) {
    let mut rest = out;
    for_each_in_f_order(shape, itemsize, range, |from, len| {
        let (head, tail) = std::mem::take(&mut rest).split_at_mut(len);
        head.copy_from_slice(&chunk[from..from + len]);
        rest = tail;
    });
}

/// Calls `each` for every item, or part of an item, in the bytes `range` of a chunk's F layout, in
/// that order. The arguments are the offset in C layout and the length, both in bytes.
pub fn for_each_in_f_order(
    shape: &[u64],
    itemsize: usize,
    range: Range<usize>,
    mut each: impl FnMut(usize, usize),
) {
    if itemsize == 0 || range.is_empty() {
        return;
    }
    let (f, c) = strides(shape);
    let first = range.start / itemsize;
    let mut index: Vec<usize> = (0..shape.len())
        .map(|d| first / f[d] % shape[d] as usize)
        .collect();
    let mut position: usize = index.iter().zip(&c).map(|(i, stride)| i * stride).sum();
    let mut inside = range.start % itemsize;
    let mut left = range.len();
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
                let from = vec![1; from * item];
                let mut to = vec![0; to * item];
                f_to_c(&[2, 3], item, &from, &mut to);
                assert!(
                    to.iter().all(|byte| *byte == 0),
                    "{} {} {item}",
                    from.len(),
                    to.len()
                );
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
                let mut rest = c;
                let mut index = vec![0; shape.len()];
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
            let a = (a * f_layout.len() as f64) as usize;
            let b = (b * f_layout.len() as f64) as usize;
            let range = a.min(b)..a.max(b);
            let mut part = vec![0; range.len()];
            read_f_order(&shape, item, &c_layout, range.clone(), &mut part);
            prop_assert_eq!(&part, &f_layout[range]);
        }
    }
}
