//! Sets of byte offsets in a chunk, kept as ranges.

use std::ops::Range;

/// A set of byte offsets: sorted ranges that neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges {
    list: Vec<Range<usize>>,
    len: usize,
}

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
    /// Returns the number of offsets.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the ranges, sorted.
    pub fn iter(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.list.iter().cloned()
    }

    /// Adds a range. Fast at the end, where most ranges are added.
    pub fn add(&mut self, mut range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        let first = match self.list.last() {
            Some(last) if last.end < range.start => self.list.len(),
            Some(last) if last.start <= range.start => self.list.len() - 1,
            _ => self.list.partition_point(|r| r.end < range.start),
        };
        let mut last = first;
        while let Some(touched) = self.list.get(last).filter(|r| r.start <= range.end) {
            range = range.start.min(touched.start)..range.end.max(touched.end);
            self.len -= touched.len();
            last += 1;
        }
        self.len += range.len();
        match self.list.get_mut(first) {
            Some(place) if last == first + 1 => *place = range,
            _ => drop(self.list.splice(first..last, [range])),
        }
    }

    /// Adds all offsets of another set.
    pub fn add_all(&mut self, other: &Ranges) {
        if other.list.len() < 16 {
            other.iter().for_each(|range| self.add(range));
            return;
        }
        let mut all = [self.list.as_slice(), other.list.as_slice()].concat();
        // both are sorted: this merges two runs
        all.sort_by_key(|range| range.start);
        *self = Ranges::default();
        all.into_iter().for_each(|range| self.add(range));
    }

    /// Removes all offsets of another set.
    pub fn remove_all(&mut self, other: &Ranges) {
        let mut rest = Ranges::default();
        let mut others = other.list.iter().peekable();
        for range in self.list.drain(..) {
            let mut at = range.start;
            while others.next_if(|o| o.end <= range.start).is_some() {}
            for o in others.clone().take_while(|o| o.start < range.end) {
                rest.add(at..o.start.max(at));
                at = at.max(o.end);
            }
            rest.add(at..range.end.max(at));
        }
        *self = rest;
    }

    /// Returns whether the set contains all offsets of `other`.
    pub fn contains_all(&self, other: &Ranges) -> bool {
        let mut ours = self.list.iter().peekable();
        self.len >= other.len
            && other.list.iter().all(|theirs| {
                while ours.next_if(|r| r.end < theirs.end).is_some() {}
                ours.peek().is_some_and(|r| r.start <= theirs.start)
            })
    }

    /// Returns the offsets below `end` that are not in the set.
    pub fn complement(&self, end: usize) -> Ranges {
        let (mut rest, mut at) = (Ranges::default(), 0);
        for range in self.iter() {
            rest.add(at..range.start.min(end));
            at = range.end;
        }
        rest.add(at.min(end)..end);
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn positions(ranges: &[(usize, usize)]) -> Vec<bool> {
        let mut all = vec![false; 64];
        ranges.iter().for_each(|&(start, len)| all[start..start + len].fill(true));
        all
    }

    fn set(ranges: &[(usize, usize)]) -> Ranges {
        let mut set = Ranges::default();
        ranges.iter().for_each(|&(start, len)| set.add(start..start + len));
        set
    }

    fn listed(set: &Ranges) -> Vec<bool> {
        assert!(set.list.windows(2).all(|pair| pair[0].end < pair[1].start));
        assert_eq!(set.list.iter().map(Range::len).sum::<usize>(), set.len);
        positions(&set.iter().map(|r| (r.start, r.len())).collect::<Vec<_>>())
    }

    proptest! {
        #[test]
        fn they_are_sets(
            a in prop::collection::vec((0usize..50, 0usize..14), 0..40), b in prop::collection::vec((0usize..50, 0usize..4), 0..40)
        ) {
            let (one, other) = (set(&a), set(&b));
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
}
