//! Sets of byte offsets in a chunk.
//!
//! Invariant: a set takes at most a sixth of the memory of the bytes before its last offset, or 256
//! bytes. A program may write every second byte of many chunks, and each chunk keeps the set of
//! written bytes. As lists of ranges, these sets would take 8 to 16 times the memory of the chunks.

use std::iter::FusedIterator;
use std::ops::Range;
use zarrfs_format::grid::{ChunkId, Grid};

/// Maximum length of a list that is never replaced by a map of bits.
const MIN_BITS: usize = 8;

/// Minimum length in offsets of a set, from 0 to its end, for each range of its list. In a shorter
/// set, the list takes more than half the memory of a map of bits.
const OFFSETS_PER_RANGE: usize = 256;

/// A set of byte offsets.
#[derive(Clone, Debug, Default)]
pub struct Ranges {
    form: Form,
    /// Number of offsets.
    len: usize,
}

#[derive(Clone, Debug)]
enum Form {
    /// Sorted ranges that neither overlap nor touch.
    List(Vec<Range<usize>>),
    /// A bit for each offset, the lowest first.
    Bits(Vec<u64>),
}

impl Default for Form {
    fn default() -> Self {
        Form::List(Vec::new())
    }
}

impl PartialEq for Ranges {
    fn eq(&self, other: &Ranges) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl Eq for Ranges {}

impl From<Range<usize>> for Ranges {
    fn from(range: Range<usize>) -> Self {
        let mut set = Ranges::default();
        set.add(range);
        set
    }
}

impl FromIterator<Range<usize>> for Ranges {
    fn from_iter<I: IntoIterator<Item = Range<usize>>>(ranges: I) -> Self {
        let mut set = Ranges::default();
        ranges.into_iter().for_each(|range| set.add(range));
        set
    }
}

impl Ranges {
    /// Returns the bytes of a chunk that lie inside the array of `grid`.
    pub fn inside(grid: &Grid, chunk: ChunkId) -> Self {
        let runs = grid.chunk_runs(chunk, 0..grid.size()).into_iter();
        runs.map(|(_, run)| run.offset..run.offset + run.len)
            .collect()
    }

    /// Returns the number of offsets.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the bytes of memory that the set takes beside itself.
    pub fn memory(&self) -> usize {
        match &self.form {
            Form::List(list) => list.capacity() * size_of::<Range<usize>>(),
            Form::Bits(bits) => bits.capacity() * size_of::<u64>(),
        }
    }

    /// Returns the ranges, sorted. They neither overlap nor touch.
    pub fn iter(&self) -> RangeIter<'_> {
        match &self.form {
            Form::List(list) => RangeIter::List(list.iter()),
            Form::Bits(bits) => RangeIter::Bits(bits, 0),
        }
    }

    /// Adds a range. Fast at the end, where most ranges are added.
    pub fn add(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        match &mut self.form {
            Form::List(list) => {
                self.len += add_to_list(list, range);
                let end = list.last().map_or(0, |last| last.end);
                if list.len() > MIN_BITS && list.len() * OFFSETS_PER_RANGE > end {
                    self.use_bits(end);
                }
            }
            Form::Bits(bits) => {
                let needed = range.end.div_ceil(64);
                if needed > bits.capacity() {
                    // a vector would double its capacity
                    bits.reserve_exact((needed + needed / 4).saturating_sub(bits.len()));
                }
                if needed > bits.len() {
                    bits.resize(needed, 0);
                }
                self.len += set_bits(bits, range, true);
                // perhaps the set is one range, as of a fully written chunk; with fewer offsets
                // there is a gap before the last word
                if self.len > (bits.len() - 1) * 64
                    && next_bit(bits, 0, false).unwrap_or(bits.len() * 64) == self.len
                {
                    *self = Ranges::from(0..self.len);
                }
            }
        }
    }

    /// Replaces the list by a map of bits for the offsets before `end`.
    fn use_bits(&mut self, end: usize) {
        let mut bits = vec![0; end.div_ceil(64)];
        self.iter().for_each(|range| {
            set_bits(&mut bits, range, true);
        });
        self.form = Form::Bits(bits);
    }

    /// Adds all offsets of another set.
    pub fn add_all(&mut self, other: &Ranges) {
        match (&mut self.form, &other.form) {
            (Form::List(list), Form::List(others)) if others.len() >= 16 => {
                let mut all = [list.as_slice(), others.as_slice()].concat();
                // both are sorted: this merges two runs
                all.sort_by_key(|range| range.start);
                *self = all.into_iter().collect();
            }
            (Form::List(list), Form::Bits(_)) => {
                let list = std::mem::take(list);
                *self = other.clone();
                list.into_iter().for_each(|range| self.add(range));
            }
            _ => other.iter().for_each(|range| self.add(range)),
        }
    }

    /// Removes all offsets of another set.
    pub fn remove_all(&mut self, other: &Ranges) {
        match &mut self.form {
            Form::List(list) => {
                let list = std::mem::take(list);
                *self = difference(list.into_iter(), other);
            }
            Form::Bits(bits) => {
                let end = bits.len() * 64;
                for range in other.iter().take_while(|range| range.start < end) {
                    self.len -= set_bits(bits, range.start..range.end.min(end), false);
                }
                if self.len == 0 {
                    *self = Ranges::default();
                }
            }
        }
    }

    /// Returns whether the set contains all offsets of `other`.
    pub fn contains_all(&self, other: &Ranges) -> bool {
        let mut ours = self.iter().peekable();
        self.len >= other.len
            && other.iter().all(|theirs| {
                while ours.next_if(|r| r.end < theirs.end).is_some() {}
                ours.peek().is_some_and(|r| r.start <= theirs.start)
            })
    }

    /// Returns the offsets below `end` that are not in the set.
    pub fn complement(&self, end: usize) -> Ranges {
        let mut rest = Ranges::default();
        let mut at = 0;
        for range in self.iter() {
            rest.add(at..range.start.min(end));
            at = range.end;
        }
        rest.add(at.min(end)..end);
        rest
    }
}

/// The ranges of a set.
#[derive(Clone)]
pub enum RangeIter<'a> {
    /// The rest of a list.
    List(std::slice::Iter<'a, Range<usize>>),
    /// Bits, and the offset of the next one to visit.
    Bits(&'a [u64], usize),
}

impl Iterator for RangeIter<'_> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        match self {
            RangeIter::List(list) => list.next().cloned(),
            RangeIter::Bits(bits, at) => {
                let start = next_bit(bits, *at, true)?;
                *at = next_bit(bits, start, false).unwrap_or(bits.len() * 64);
                Some(start..*at)
            }
        }
    }
}

impl FusedIterator for RangeIter<'_> {}

/// Adds a range to a list. Returns the number of offsets that are new.
fn add_to_list(list: &mut Vec<Range<usize>>, mut range: Range<usize>) -> usize {
    let first = match list.last() {
        Some(last) if last.end < range.start => list.len(),
        Some(last) if last.start <= range.start => list.len() - 1,
        _ => list.partition_point(|r| r.end < range.start),
    };
    let mut last = first;
    let mut known = 0;
    while let Some(touched) = list.get(last).filter(|r| r.start <= range.end) {
        range = range.start.min(touched.start)..range.end.max(touched.end);
        known += touched.len();
        last += 1;
    }
    let new = range.len() - known;
    match list.get_mut(first) {
        Some(place) if last == first + 1 => *place = range,
        _ => drop(list.splice(first..last, [range])),
    }
    new
}

/// Returns the offsets of sorted ranges that are not in `other`.
fn difference(ranges: impl Iterator<Item = Range<usize>>, other: &Ranges) -> Ranges {
    let mut rest = Ranges::default();
    let mut others = other.iter().peekable();
    for range in ranges {
        let mut at = range.start;
        while others.next_if(|o| o.end <= range.start).is_some() {}
        for o in others.clone().take_while(|o| o.start < range.end) {
            rest.add(at..o.start.max(at));
            at = at.max(o.end);
        }
        rest.add(at..range.end.max(at));
    }
    rest
}

/// Sets the bits of a range, or clears them. Returns the number of bits that have changed.
fn set_bits(bits: &mut [u64], range: Range<usize>, value: bool) -> usize {
    let mut changed = 0;
    let words = range.start / 64..range.end.div_ceil(64);
    for (number, word) in bits[words.clone()].iter_mut().enumerate() {
        let start = (words.start + number) * 64;
        let from = range.start.max(start) - start;
        let to = range.end.min(start + 64) - start;
        let mask = (u64::MAX >> (64 - (to - from))) << from;
        let new = if value { *word | mask } else { *word & !mask };
        changed += (*word ^ new).count_ones() as usize;
        *word = new;
    }
    changed
}

/// Returns the offset of the first bit at or after `from` that is `value`.
fn next_bit(bits: &[u64], from: usize, value: bool) -> Option<usize> {
    let mut mask = u64::MAX << (from % 64);
    for (number, word) in bits.iter().enumerate().skip(from / 64) {
        let word = if value { *word } else { !*word };
        let matching = word & mask;
        if matching != 0 {
            return Some(number * 64 + matching.trailing_zeros() as usize);
        }
        mask = u64::MAX;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn positions(ranges: &[(usize, usize)]) -> Vec<bool> {
        let mut all = vec![false; 64];
        ranges
            .iter()
            .for_each(|&(start, len)| all[start..start + len].fill(true));
        all
    }

    fn set(ranges: &[(usize, usize)]) -> Ranges {
        let mut set = Ranges::default();
        ranges
            .iter()
            .for_each(|&(start, len)| set.add(start..start + len));
        set
    }

    fn listed(set: &Ranges) -> Vec<bool> {
        let list: Vec<_> = set.iter().collect();
        assert!(list.windows(2).all(|pair| pair[0].end < pair[1].start));
        assert_eq!(list.iter().map(Range::len).sum::<usize>(), set.len);
        assert!(set.memory() <= 256, "{}", set.memory());
        positions(&set.iter().map(|r| (r.start, r.len())).collect::<Vec<_>>())
    }

    proptest! {
        #[test]
        fn ranges_are_sets_of_offsets(
            a in prop::collection::vec((0usize..50, 0usize..14), 0..40), b in prop::collection::vec((0usize..50, 0usize..4), 0..40)
        ) {
            let one = set(&a);
            let other = set(&b);
            prop_assert_eq!(listed(&one), positions(&a));
            let mut both = one.clone();
            both.add_all(&other);
            prop_assert_eq!(listed(&both), positions(&[a.clone(), b.clone()].concat()));
            let held = positions(&a).iter().zip(positions(&b)).all(|(a, b)| *a || !b);
            prop_assert_eq!(one.contains_all(&other), held);
            prop_assert!(both.contains_all(&one) && both.contains_all(&other));
            let mut without = one.clone();
            without.remove_all(&other);
            let expected: Vec<bool> = positions(&a).iter().zip(positions(&b)).map(|(a, b)| *a && !b).collect();
            prop_assert_eq!(listed(&without), expected);
            let rest: Vec<bool> = positions(&a).iter().map(|held| !held).collect();
            prop_assert_eq!(listed(&one.complement(64)), rest);
        }
    }

    #[test]
    fn scattered_offsets_take_a_part_of_the_memory_of_the_bytes() {
        const SIZE: usize = 1 << 20;
        for step in [2, 3, 100, 1000, 100_000] {
            for backwards in [false, true] {
                let mut set = Ranges::default();
                for n in 0..SIZE / step {
                    let at = if backwards {
                        SIZE - (n + 1) * step
                    } else {
                        n * step
                    };
                    set.add(at..at + 1);
                    let end = if backwards { SIZE } else { at };
                    assert!(
                        set.memory() <= (end / 6).max(256),
                        "{} before {end}, step {step}",
                        set.memory()
                    );
                }
                assert_eq!(set.len(), SIZE / step);
                assert!(
                    set.iter().count() == SIZE / step && set.iter().all(|range| range.len() == 1)
                );
                let mut rest = set.complement(SIZE);
                assert_eq!(rest.len(), SIZE - set.len());
                rest.add_all(&set);
                assert_eq!(rest, Ranges::from(0..SIZE));
                assert!(rest.memory() <= 256, "one range");
                rest.remove_all(&set);
                assert_eq!(rest, set.complement(SIZE));
            }
        }
    }
}
