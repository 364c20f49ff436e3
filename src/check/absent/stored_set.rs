//! A set of chunk numbers in bounded memory: one that is full drops the largest numbers. The module
//! knows neither arrays nor grids.

use std::collections::BTreeMap;
use std::ops::Range;

/// Number of chunks in a block.
const BLOCK: u64 = 512;

/// Maximum number of blocks: 134 million chunks side by side, or 262,144 that are scattered. Blocks
/// have 72 bytes, and a map takes up to twice that: 36 MiB.
pub const MAX_BLOCKS: usize = 1 << 18;

/// A set of chunk numbers.
pub struct StoredSet {
    /// One bit for each number of a block, by the number of the block.
    blocks: BTreeMap<u64, [u64; 8]>,
    max_blocks: usize,
}

impl StoredSet {
    /// Returns an empty set of at most `max_blocks` blocks.
    pub fn new(max_blocks: usize) -> Self {
        StoredSet {
            blocks: BTreeMap::new(),
            max_blocks,
        }
    }

    /// Inserts a number. Returns the number from which on the set is not complete any more:
    /// `u64::MAX`, unless numbers were dropped.
    pub fn insert(&mut self, number: u64) -> u64 {
        let block = self.blocks.entry(number / BLOCK).or_default();
        block[(number % BLOCK / 64) as usize] |= 1 << (number % 64);
        if self.blocks.len() > self.max_blocks
            && let Some((dropped, _)) = self.blocks.pop_last()
        {
            return dropped * BLOCK;
        }
        u64::MAX
    }

    /// Returns the first numbers of `range` that are not in the set and follow each other; an empty
    /// range at the end if all are in it.
    pub fn next_absent(&self, range: &Range<u64>) -> Range<u64> {
        let mut start = range.start;
        while start < range.end
            && let Some(block) = self.blocks.get(&(start / BLOCK))
        {
            match next_bit(block, start % BLOCK, false) {
                Some(bit) => {
                    start = start / BLOCK * BLOCK + bit;
                    break;
                }
                None => start = (start / BLOCK + 1) * BLOCK,
            }
        }
        let start = start.min(range.end);
        let end = self.next_stored(start).unwrap_or(range.end);
        start..end.min(range.end)
    }

    /// Returns the smallest number of the set that is not less than `from`.
    fn next_stored(&self, from: u64) -> Option<u64> {
        self.blocks
            .range(from / BLOCK..)
            .find_map(|(number, block)| {
                let first = number * BLOCK;
                let bit = next_bit(block, from.saturating_sub(first), true)?;
                Some(first + bit)
            })
    }
}

/// Returns the position of the first bit of a block, at `from` or later, that has the value.
fn next_bit(block: &[u64; 8], from: u64, value: bool) -> Option<u64> {
    (from / 64..8).find_map(|word| {
        let bits = block[word as usize];
        let mut wanted = if value { bits } else { !bits };
        if word == from / 64 {
            wanted &= u64::MAX << (from % 64);
        }
        (wanted != 0).then(|| word * 64 + u64::from(wanted.trailing_zeros()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn a_bounded_set_has_the_numbers_before_its_end(
            numbers in prop::collection::vec(0u64..6000, 0..300), long in 0u64..3000, max_blocks in 1usize..12
        ) {
            let mut set = StoredSet::new(max_blocks);
            let mut end = 6000;
            let mut plain: BTreeSet<u64> = (500..500 + long).collect();
            plain.extend(&numbers);
            for number in numbers.into_iter().chain(500..500 + long) {
                if number < end {
                    end = end.min(set.insert(number));
                }
            }
            prop_assert!(end > 0 && set.blocks.len() <= max_blocks);
            let mut absent = Vec::new();
            let mut at = 0;
            while at < end {
                let run = set.next_absent(&(at..end));
                prop_assert!(run.start >= at && run.end <= end && (at < run.end || run.end == end));
                at = run.end;
                absent.extend(run);
            }
            let expected: Vec<u64> = (0..end).filter(|n| !plain.contains(n)).collect();
            prop_assert_eq!(absent, expected);
        }
    }
}
