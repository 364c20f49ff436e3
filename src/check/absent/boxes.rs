//! Runs of chunk numbers as boxes of a grid: half-open ranges along each dimension. Boxes that
//! continue each other are joined while memory permits. The module is pure arithmetic: it knows
//! neither arrays nor stores.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// The first and one past the last index along each dimension.
pub type ChunkBox = Vec<[u64; 2]>;

/// Maximum number of boxes along each dimension that wait to be continued: 32 dimensions of them
/// take some 20 MiB.
const MAX_OPEN: usize = 1024;

/// Makes boxes of runs, which are added in ascending order.
pub struct Boxes {
    counts: Vec<u64>,
    /// One for each dimension, the first dimension first.
    joiners: Vec<Joiner>,
    ready: VecDeque<ChunkBox>,
}

impl Boxes {
    /// Begins with no boxes of a grid with so many chunks along each dimension.
    pub fn new(counts: &[u64]) -> Self {
        Boxes {
            counts: counts.to_vec(),
            joiners: (0..counts.len()).map(Joiner::new).collect(),
            ready: VecDeque::new(),
        }
    }

    /// Adds the chunks with these numbers.
    pub fn add_run(&mut self, run: Range<u64>) {
        let mut at = run.start;
        while at < run.end {
            let (taken, len) = first_box(&self.counts, at..run.end);
            self.join(self.joiners.len(), taken);
            at += len;
        }
    }

    /// Passes on the boxes that wait to be continued, once all runs have been added.
    pub fn end(&mut self) {
        for axis in (0..self.joiners.len()).rev() {
            for closed in self.joiners[axis].close_all() {
                self.join(axis, closed);
            }
        }
    }

    /// Returns the next box that is complete.
    pub fn pop(&mut self) -> Option<ChunkBox> {
        self.ready.pop_front()
    }

    /// Adds a box to the joiner of the dimension before `axis`.
    fn join(&mut self, axis: usize, new: ChunkBox) {
        let Some(before) = axis.checked_sub(1) else {
            return self.ready.push_back(new);
        };
        for closed in self.joiners[before].add(new) {
            self.join(before, closed);
        }
    }
}

/// Returns the largest box at the beginning of a run, and the number of its chunks: a range along
/// one dimension, with one index along those before it and all indices along those after it.
fn first_box(counts: &[u64], run: Range<u64>) -> (ChunkBox, u64) {
    let mut found = ChunkBox::with_capacity(counts.len());
    let mut stride: u64 = counts.iter().product();
    let mut chunks = stride;
    let mut is_split = false;
    for &count in counts {
        let larger = stride;
        stride /= count;
        let index = run.start % larger / stride;
        if is_split {
            found.push([0, count]);
        } else if run.start.is_multiple_of(stride) && run.end - run.start >= stride {
            let len = ((run.end - run.start) / stride).min(count - index);
            found.push([index, index + len]);
            chunks = len * stride;
            is_split = true;
        } else {
            found.push([index, index + 1]);
        }
    }
    (found, chunks)
}

/// Joins boxes that continue each other along one dimension and are equal along the others.
struct Joiner {
    axis: usize,
    /// The ranges, along the dimensions before `axis`, of the boxes that wait.
    before: ChunkBox,
    /// The first index along `axis` of the box that was added last.
    at: u64,
    /// The ranges along `axis` of the boxes that wait, by their other ranges.
    open: BTreeMap<ChunkBox, [u64; 2]>,
}

impl Joiner {
    fn new(axis: usize) -> Self {
        Joiner {
            axis,
            before: Vec::new(),
            at: 0,
            open: BTreeMap::new(),
        }
    }

    /// Adds a box. Returns those that nothing can continue any more.
    fn add(&mut self, mut new: ChunkBox) -> Vec<ChunkBox> {
        let along = std::mem::take(&mut new[self.axis]);
        let mut closed = Vec::new();
        if self.before != new[..self.axis] || self.open.len() >= MAX_OPEN {
            closed = self.close_all();
            self.before = new[..self.axis].to_vec();
        } else if self.at != along[0] {
            closed = self.close_before(along[0]);
        }
        self.at = along[0];
        match self.open.get_mut(&new) {
            Some(open) if open[1] == along[0] => open[1] = along[1],
            _ => {
                let ended = self.open.insert(new.clone(), along);
                closed.extend(ended.map(|ended| self.whole(new, ended)));
            }
        }
        closed
    }

    fn close_all(&mut self) -> Vec<ChunkBox> {
        self.close_before(u64::MAX)
    }

    /// Removes the boxes that end before `index`.
    fn close_before(&mut self, index: u64) -> Vec<ChunkBox> {
        let mut ended = Vec::new();
        for (others, along) in std::mem::take(&mut self.open) {
            if along[1] < index {
                ended.push(self.whole(others, along));
            } else {
                self.open.insert(others, along);
            }
        }
        ended
    }

    /// Returns the box with the range `along` along the dimension.
    fn whole(&self, mut others: ChunkBox, along: [u64; 2]) -> ChunkBox {
        others[self.axis] = along;
        others
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn boxes(counts: &[u64], absent: &BTreeSet<u64>) -> Vec<ChunkBox> {
        let mut boxes = Boxes::new(counts);
        let mut found = Vec::new();
        let mut run = 0..0;
        for &number in absent {
            if number != run.end {
                boxes.add_run(run);
                run = number..number;
            }
            run.end = number + 1;
            found.extend(std::iter::from_fn(|| boxes.pop()));
        }
        boxes.add_run(run);
        boxes.end();
        found.extend(std::iter::from_fn(|| boxes.pop()));
        found
    }

    /// Returns the numbers of the chunks in a box.
    fn numbers(counts: &[u64], of: &ChunkBox) -> Vec<u64> {
        let along = counts.iter().zip(of);
        along.fold(vec![0], |numbers, (count, &[start, end])| {
            numbers
                .iter()
                .flat_map(|number| (start..end).map(move |index| number * count + index))
                .collect()
        })
    }

    proptest! {
        #[test]
        fn boxes_are_a_set_of_chunks_without_overlap(
            counts in prop::collection::vec(1u64..7, 0..5), removed in prop::collection::vec(0usize..2400, 0..60),
            runs in prop::collection::vec((0u64..2400, 0u64..80), 0..12), most in any::<bool>()
        ) {
            let count: u64 = counts.iter().product();
            let mut absent: BTreeSet<u64> = if most { (0..count).collect() } else { BTreeSet::new() };
            runs.iter().for_each(|&(start, len)| absent.extend(start..(start + len).min(count)));
            for number in removed {
                absent.remove(&(number as u64));
            }
            absent.retain(|number| *number < count);
            let found = boxes(&counts, &absent);
            prop_assert!(found.iter().all(|of| of.iter().all(|[start, end]| start < end)));
            let all: Vec<u64> = found.iter().flat_map(|of| numbers(&counts, of)).collect();
            prop_assert_eq!(all.len(), absent.len());
            prop_assert_eq!(all.into_iter().collect::<BTreeSet<u64>>(), absent);
        }

        #[test]
        fn a_box_of_chunks_is_one_range(
            sides in prop::collection::vec((0u64..4, 1u64..4, 0u64..3), 0..5)
        ) {
            let counts: Vec<u64> = sides.iter().map(|(before, len, after)| before + len + after).collect();
            let one: ChunkBox = sides.iter().map(|(before, len, _)| [*before, before + len]).collect();
            let absent = numbers(&counts, &one).into_iter().collect();
            prop_assert_eq!(boxes(&counts, &absent), [one]);
        }
    }

    #[test]
    fn many_ranges_that_wait_are_bounded() {
        let counts = [3, 4 * MAX_OPEN as u64];
        let absent: BTreeSet<u64> = (0..3 * counts[1]).filter(|n| n % 2 == 0).collect();
        let found = boxes(&counts, &absent);
        let all: BTreeSet<u64> = found.iter().flat_map(|of| numbers(&counts, of)).collect();
        assert_eq!(all, absent);
        // a huge grid without chunks is one range at once
        let mut huge = Boxes::new(&[1 << 30, 1 << 30]);
        huge.add_run(0..1 << 60);
        huge.end();
        assert_eq!(huge.pop(), Some(vec![[0, 1 << 30], [0, 1 << 30]]));
        assert_eq!(huge.pop(), None);
    }
}
