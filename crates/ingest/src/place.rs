//! Where the items of an array lie in a file, and reading a box of them. This module must not know
//! formats of files.

use std::fs::File;
use std::os::unix::fs::FileExt;
use zarrfs_base::error::{Error, Result};

/// The place of an array's items: item `(i, j, ...)` begins at `begin + i * strides[0] + j *
/// strides[1] + ...`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePlace {
    /// Offset of the first item in bytes.
    pub begin: u64,
    /// Number of bytes from one index of a dimension to the next.
    pub strides: Vec<u64>,
    /// Size of an item in bytes.
    pub item: usize,
    /// Whether the bytes of each item are in the reverse of the order of the dtype.
    pub is_reversed: bool,
}

impl FilePlace {
    /// Returns the place of items that follow each other, the last index first; the first index
    /// first if `is_fortran` is set.
    pub fn dense(begin: u64, shape: &[u64], item: usize, is_fortran: bool) -> Self {
        let mut strides = vec![0; shape.len()];
        let mut stride = item as u64;
        for n in 0..shape.len() {
            let dimension = if is_fortran { n } else { shape.len() - 1 - n };
            strides[dimension] = stride;
            stride = stride.saturating_mul(shape[dimension]);
        }
        FilePlace {
            begin,
            strides,
            item,
            is_reversed: false,
        }
    }

    /// Reads the box of `counts` items from `start` on into `out`, a box of the lengths `lengths`
    /// in C order; the rest of `out` stays. `scratch` is a buffer of any content. It holds as many
    /// bytes as the box unless the box fills `out` in the order of the file.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or ends before the box.
    pub fn read_box(
        &self,
        file: &File,
        start: &[u64],
        counts: &[u64],
        lengths: &[u64],
        out: &mut [u8],
        scratch: &mut Vec<u8>,
    ) -> Result<()> {
        if counts.contains(&0) || self.item == 0 {
            return Ok(());
        }
        // the dimensions, the slowest in the file first
        let mut order: Vec<usize> = (0..counts.len()).collect();
        order.sort_by_key(|dimension| std::cmp::Reverse(self.strides[*dimension]));
        let begin = start.iter().zip(&self.strides).map(|(n, step)| n * step);
        let begin = self.begin + begin.sum::<u64>();
        if order.is_sorted() && counts == lengths {
            self.read_compact(file, begin, counts, &order, out)?;
            self.reverse(out);
            return Ok(());
        }
        let items: u64 = counts.iter().product();
        scratch.clear();
        scratch.resize(items as usize * self.item, 0);
        self.read_compact(file, begin, counts, &order, scratch)?;
        self.reverse(scratch);
        self.scatter(scratch, counts, &order, lengths, out);
        Ok(())
    }

    /// Reads a box in the order of the file.
    fn read_compact(
        &self,
        file: &File,
        begin: u64,
        counts: &[u64],
        order: &[usize],
        out: &mut [u8],
    ) -> Result<()> {
        // the fastest dimensions, of which the items of one index follow those of another
        let mut run = self.item as u64;
        let mut outer = order.len();
        while let Some(dimension) = outer.checked_sub(1).map(|n| order[n]) {
            if self.strides[dimension] != run && counts[dimension] != 1 {
                break;
            }
            run *= counts[dimension];
            outer -= 1;
        }
        let outer = &order[..outer];
        let mut indices = vec![0; outer.len()];
        for part in out.chunks_exact_mut(run as usize) {
            let steps = outer.iter().zip(&indices);
            let at: u64 = steps.map(|(n, index)| self.strides[*n] * index).sum();
            file.read_exact_at(part, begin + at).map_err(|e| {
                if e.kind() == std::io::ErrorKind::UnexpectedEof {
                    Error::invalid(format!("the file ends before byte {}", begin + at + run))
                } else {
                    e.into()
                }
            })?;
            advance(&mut indices, outer.iter().map(|n| counts[*n]));
        }
        Ok(())
    }

    fn reverse(&self, bytes: &mut [u8]) {
        if self.is_reversed && self.item > 1 {
            bytes
                .chunks_exact_mut(self.item)
                .for_each(|item| item.reverse());
        }
    }

    /// Copies a box in the order of the file to a larger one in C order.
    pub fn scatter(
        &self,
        compact: &[u8],
        counts: &[u64],
        order: &[usize],
        lengths: &[u64],
        out: &mut [u8],
    ) {
        let to = FilePlace::dense(0, lengths, self.item, false).strides;
        let Some((last, outer)) = order.split_last() else {
            out[..compact.len()].copy_from_slice(compact);
            return;
        };
        let row = counts[*last] as usize * self.item;
        let step = to[*last] as usize;
        let mut indices = vec![0; outer.len()];
        for row in compact.chunks_exact(row) {
            let steps = outer.iter().zip(&indices);
            let at: u64 = steps.map(|(n, index)| to[*n] * index).sum();
            let at = at as usize;
            if step == self.item {
                out[at..at + row.len()].copy_from_slice(row);
            } else {
                for (n, item) in row.chunks_exact(self.item).enumerate() {
                    out[at + n * step..][..self.item].copy_from_slice(item);
                }
            }
            advance(&mut indices, outer.iter().map(|n| counts[*n]));
        }
    }
}

/// Increases the last index, and those before it when one reaches its count.
pub fn advance(indices: &mut [u64], counts: impl DoubleEndedIterator<Item = u64>) {
    for (index, count) in indices.iter_mut().rev().zip(counts.rev()) {
        *index += 1;
        if *index < count {
            return;
        }
        *index = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    proptest! {
        /// Any box equals the items that their offsets name.
        #[test]
        fn a_box_holds_its_items(
            dimensions in proptest::collection::vec((1u64..5, 0u64..5, 1u64..5, 0u64..3), 0..4),
            item in 1usize..5, is_fortran: bool, is_reversed: bool, gap in 0u64..20,
        ) {
            let shape: Vec<u64> = dimensions.iter().map(|(len, ..)| *len).collect();
            let start: Vec<u64> =
                dimensions.iter().map(|(len, start, ..)| start.min(&(len - 1)).to_owned()).collect();
            let counts: Vec<u64> = dimensions.iter().zip(&start)
                .map(|((len, _, count, _), start)| *count.min(&(len - start))).collect();
            let lengths: Vec<u64> =
                dimensions.iter().zip(&counts).map(|((.., more), count)| count + more).collect();
            let mut place = FilePlace::dense(gap, &shape, item, is_fortran);
            place.is_reversed = is_reversed;
            if !is_fortran && let Some(first) = place.strides.first_mut() {
                // records with other variables between them
                *first += gap;
            }
            let last = shape.iter().zip(&place.strides).map(|(n, step)| (n - 1) * step);
            let size = (gap + last.sum::<u64>()) as usize + item;
            let bytes: Vec<u8> = (0..size).map(|n| (n * 7 % 251) as u8).collect();
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&bytes).unwrap();
            let total: u64 = lengths.iter().product();
            let mut out = vec![255; total as usize * item];
            place.read_box(&file, &start, &counts, &lengths, &mut out, &mut Vec::new()).unwrap();
            let mut indices = vec![0; lengths.len()];
            for found in out.chunks_exact(item) {
                let is_inside = indices.iter().zip(&counts).all(|(index, count)| index < count);
                let at = indices.iter().zip(&start).zip(&place.strides)
                    .map(|((index, start), step)| (index + start) * step);
                let at = (gap + at.sum::<u64>()) as usize;
                if is_inside {
                    let mut expected = bytes[at..at + item].to_vec();
                    if is_reversed {
                        expected.reverse();
                    }
                    prop_assert_eq!(found, expected);
                } else {
                    prop_assert!(found.iter().all(|byte| *byte == 255));
                }
                advance(&mut indices, lengths.iter().copied());
            }
        }
    }

    #[test]
    fn a_file_that_became_shorter_is_an_error() {
        let file = tempfile::tempfile().unwrap();
        let place = FilePlace::dense(8, &[2], 4, false);
        let e = place.read_box(&file, &[0], &[2], &[2], &mut [0; 8], &mut Vec::new());
        assert_eq!(e.unwrap_err().message(), "the file ends before byte 16");
    }
}
