//! The reads that may have filled pages of the kernel with bytes from before a write. This module
//! handles inode numbers and offsets, and must not know what sends or drops pages.
//!
//! Invariant: when a cached write is answered, the kernel has no page with older bytes. The kernel
//! unlocks a page that it has before it sends a write of it. If the page is dropped then and read
//! again, the read may overtake the write. So reads are recorded for a while after pages were
//! dropped, until their pages are dropped once more, and a write that finds a recorded read of its
//! bytes drops their pages before it is answered.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use zarrfs_base::memory::lock;

/// Maximum time between the moment when the kernel copies a write from its page and the moment when
/// a thread takes the request.
const IN_FLIGHT: Duration = Duration::from_secs(5);

/// Maximum number of ranges that are recorded of a file. They take 64 KiB of memory.
const MAX_RANGES: usize = 4096;

/// The recorded reads of the files whose pages were dropped.
#[derive(Default)]
pub struct PageReads {
    /// Number of files. Usually it is 0, and then no read takes the lock.
    count: AtomicUsize,
    /// Protects the map from inode numbers to files.
    files: Mutex<HashMap<u64, DroppedFile>>,
}

/// A file whose pages were dropped.
struct DroppedFile {
    /// The last time when pages were dropped.
    at: Instant,
    /// The pages that were read since, in bytes.
    reads: RangeList,
    /// Those of them that are being dropped, a list for each drop.
    dropping: Vec<RangeList>,
}

impl DroppedFile {
    fn is_recent(&self) -> bool {
        !self.dropping.is_empty() || self.at.elapsed() < IN_FLIGHT
    }
}

impl PageReads {
    /// Records that the kernel drops pages of a file, of which writes may be in flight.
    pub fn dropped(&self, inode: u64) {
        self.change(inode, |_| {});
    }

    /// Begins to drop the pages that touch `range`, in bytes. Returns the reads of these pages, for
    /// [`PageReads::end_drop`].
    pub fn begin_drop(&self, inode: u64, range: Range<u64>) -> RangeList {
        let size = rustix::param::page_size() as u64;
        let pages =
            range.start / size * size..range.end.checked_next_multiple_of(size).unwrap_or(u64::MAX);
        self.change(inode, |file| {
            let reads = file.reads.take(pages);
            file.dropping.push(reads.clone());
            reads
        })
    }

    /// Ends a drop: the kernel has dropped the pages that were filled by `reads`.
    pub fn end_drop(&self, inode: u64, reads: &RangeList) {
        self.change(inode, |file| {
            if let Some(place) = file.dropping.iter().position(|other| other == reads) {
                file.dropping.swap_remove(place);
            }
        });
    }

    fn change<T>(&self, inode: u64, change: impl FnOnce(&mut DroppedFile) -> T) -> T {
        let mut files = lock(&self.files);
        files.retain(|_, file| file.is_recent());
        let now = Instant::now();
        let file = files.entry(inode).or_insert_with(|| DroppedFile {
            at: now,
            reads: RangeList::default(),
            dropping: Vec::new(),
        });
        file.at = now;
        let changed = change(file);
        self.count.store(files.len(), Ordering::Release);
        changed
    }

    /// Records a read that was received, before it finds its bytes. Returns false if so many were
    /// recorded that all pages of the file should be dropped.
    pub fn read(&self, inode: u64, range: Range<u64>) -> bool {
        if self.count.load(Ordering::Acquire) == 0 {
            return true;
        }
        let mut files = lock(&self.files);
        let Some(file) = files.get_mut(&inode) else {
            return true;
        };
        if !file.is_recent() {
            files.remove(&inode);
            self.count.store(files.len(), Ordering::Release);
            return true;
        }
        file.reads.add(range);
        let is_full = file.reads.0.len() > MAX_RANGES;
        if is_full {
            file.reads.fill();
        }
        !is_full
    }

    /// Returns whether a page that holds bytes of `range` may be older than a write of these bytes
    /// that is applied now.
    pub fn may_be_older(&self, inode: u64, range: Range<u64>) -> bool {
        self.count.load(Ordering::Acquire) > 0
            && lock(&self.files).get(&inode).is_some_and(|file| {
                file.is_recent()
                    && (file.reads.overlaps(&range)
                        || file.dropping.iter().any(|reads| reads.overlaps(&range)))
            })
    }
}

/// Sorted ranges of bytes that neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RangeList(Vec<Range<u64>>);

impl RangeList {
    fn overlaps(&self, range: &Range<u64>) -> bool {
        let next = self.0.partition_point(|other| other.end <= range.start);
        self.0.get(next).is_some_and(|next| next.start < range.end)
    }

    fn add(&mut self, mut range: Range<u64>) {
        let first = self.0.partition_point(|other| other.end < range.start);
        let last = self.0.partition_point(|other| other.start <= range.end);
        if let [start, .., end] | [start @ end] = &self.0[first..last] {
            range = range.start.min(start.start)..range.end.max(end.end);
        }
        self.0.splice(first..last, [range]);
    }

    /// Removes the parts inside of `range`, and returns them.
    fn take(&mut self, range: Range<u64>) -> RangeList {
        let first = self.0.partition_point(|other| other.end <= range.start);
        let last = self.0.partition_point(|other| other.start < range.end);
        let mut rest = Vec::new();
        let mut taken = Vec::new();
        for other in &self.0[first..last] {
            rest.push(other.start..range.start);
            taken.push(other.start.max(range.start)..other.end.min(range.end));
            rest.push(range.end..other.end);
        }
        rest.retain(|part| !part.is_empty());
        self.0.splice(first..last, rest);
        RangeList(taken)
    }

    /// Replaces the ranges by one that contains them.
    fn fill(&mut self) {
        if let [first, .., last] = &self.0[..] {
            let whole = first.start..last.end;
            self.0.clear();
            self.0.push(whole);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::sample::Index;

    /// Numbers of pages of the file, and of halves of them, which are written.
    const PAGES: usize = 3;
    const HALVES: usize = 2 * PAGES;

    /// A page of the kernel, and the number of the last write that each half holds.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Page {
        Absent,
        /// A read of it is on its way to the daemon; or, if bytes were found, back.
        BeingRead(Option<[u32; 2]>),
        Filled([u32; 2]),
        /// Half of it is written, and the kernel locks it until the answer.
        Locked,
    }

    /// A write of halves of pages. The kernel sends no second one before the answer.
    #[derive(Clone)]
    struct Write {
        halves: Range<usize>,
        is_applied: bool,
    }

    /// A drop of pages, and the next page to be dropped.
    struct DropOfPages {
        range: Range<u64>,
        reads: RangeList,
        next: usize,
        /// Whether the answer to the write waits for it.
        is_awaited: bool,
    }

    struct Model {
        page_reads: PageReads,
        pages: [Page; PAGES],
        /// The number of the last write to each half, as the daemon and as programs know it.
        applied: [u32; HALVES],
        answered: [u32; HALVES],
        write: Option<Write>,
        last: u32,
        drops: Vec<DropOfPages>,
    }

    /// A step of one of the concurrent actors.
    #[derive(Clone, Debug)]
    enum Step {
        Copy(usize, usize),
        Apply,
        Read(usize),
        Find(usize),
        Fill(usize),
        Drop(usize, usize),
        Advance(Index),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0..HALVES, 1..4usize).prop_map(|(at, len)| Step::Copy(at, len)),
            4 => Just(Step::Apply),
            3 => (0..PAGES).prop_map(Step::Read),
            3 => (0..PAGES).prop_map(Step::Find),
            3 => (0..PAGES).prop_map(Step::Fill),
            1 => (0..HALVES, 1..HALVES).prop_map(|(at, len)| Step::Drop(at, len)),
            6 => any::<Index>().prop_map(Step::Advance),
        ]
    }

    fn bytes(halves: &Range<usize>) -> Range<u64> {
        let half = rustix::param::page_size() as u64 / 2;
        halves.start as u64 * half..halves.end as u64 * half
    }

    impl Model {
        fn new() -> Self {
            Model {
                page_reads: PageReads::default(),
                pages: [Page::Absent; PAGES],
                applied: [0; HALVES],
                answered: [0; HALVES],
                write: None,
                last: 0,
                drops: Vec::new(),
            }
        }

        fn step(&mut self, step: &Step) {
            match step {
                Step::Copy(at, len) => self.copy(*at..(at + len).min(HALVES)),
                Step::Apply => self.apply(),
                Step::Read(page) => {
                    if self.pages[*page] == Page::Absent {
                        self.pages[*page] = Page::BeingRead(None);
                        self.page_reads.read(7, bytes(&(2 * page..2 * page + 2)));
                    }
                }
                Step::Find(page) => {
                    if let Page::BeingRead(found @ None) = &mut self.pages[*page] {
                        *found = Some([self.applied[2 * page], self.applied[2 * page + 1]]);
                    }
                }
                Step::Fill(page) => {
                    if let Page::BeingRead(Some(found)) = self.pages[*page] {
                        self.pages[*page] = Page::Filled(found);
                    }
                }
                Step::Drop(at, len) => self.begin(*at..(at + len).min(HALVES), false),
                Step::Advance(index) if !self.drops.is_empty() => {
                    self.advance(index.index(self.drops.len()));
                }
                Step::Advance(_) => {}
            }
        }

        /// Copies a new write to the pages that the kernel has. A write ends early at a page that
        /// it does not have and does not fill.
        fn copy(&mut self, mut halves: Range<usize>) {
            let touched = halves.start / 2..halves.end.div_ceil(2);
            let is_read = |page: &Page| matches!(page, Page::BeingRead(_));
            if self.write.is_some() || self.pages[touched.clone()].iter().any(is_read) {
                return;
            }
            self.last += 1;
            for page in touched {
                let written = halves.start.max(2 * page)..halves.end.min(2 * page + 2);
                let is_whole = written.len() == 2;
                match &mut self.pages[page] {
                    Page::Filled(held) => {
                        written.for_each(|half| held[half % 2] = self.last);
                    }
                    absent if is_whole => *absent = Page::Filled([self.last; 2]),
                    absent => {
                        *absent = Page::Locked;
                        halves.end = written.end;
                        break;
                    }
                }
            }
            self.write = Some(Write {
                halves,
                is_applied: false,
            });
        }

        fn apply(&mut self) {
            let Some(write) = self.write.as_mut().filter(|write| !write.is_applied) else {
                return;
            };
            write.is_applied = true;
            let halves = write.halves.clone();
            self.applied[halves.clone()].fill(self.last);
            if self.page_reads.may_be_older(7, bytes(&halves)) {
                self.begin(halves, true);
            } else {
                self.answer();
            }
        }

        fn answer(&mut self) {
            let halves = self.write.take().unwrap().halves;
            self.answered[halves].fill(self.last);
            let locked = self.pages.iter_mut().filter(|page| **page == Page::Locked);
            locked.for_each(|page| *page = Page::Absent);
        }

        fn begin(&mut self, halves: Range<usize>, is_awaited: bool) {
            let range = bytes(&halves);
            self.drops.push(DropOfPages {
                reads: self.page_reads.begin_drop(7, range.clone()),
                next: halves.start / 2,
                range,
                is_awaited,
            });
        }

        /// Lets the kernel drop one page, or ends a drop.
        fn advance(&mut self, number: usize) {
            let drop = &mut self.drops[number];
            let page = drop.next;
            if bytes(&(2 * page..HALVES)).start < drop.range.end {
                match self.pages[page] {
                    Page::BeingRead(_) => {}
                    // the write does not wait for a page that waits for it
                    Page::Locked if drop.is_awaited => {
                        drop.is_awaited = false;
                        self.answer();
                    }
                    Page::Locked => {}
                    Page::Absent | Page::Filled(_) => {
                        self.pages[page] = Page::Absent;
                        drop.next += 1;
                    }
                }
                return;
            }
            let drop = self.drops.swap_remove(number);
            self.page_reads.end_drop(7, &drop.reads);
            if drop.is_awaited {
                self.answer();
            }
        }

        fn check(&self) {
            for (number, page) in self.pages.iter().enumerate() {
                if let Page::Filled(held) = page {
                    for (i, held) in held.iter().enumerate() {
                        let answered = self.answered[2 * number + i];
                        assert!(*held >= answered, "page {number} is older than an answer");
                    }
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Reads, drops and a write run at the same time.
        #[test]
        fn no_page_is_older_than_a_write_that_was_answered(
            steps in prop::collection::vec(step(), 0..80)
        ) {
            let mut model = Model::new();
            for step in &steps {
                model.step(step);
                model.check();
            }
        }

        #[test]
        fn ranges_are_sets_of_bytes(
            steps in prop::collection::vec((0u64..40, 1u64..12, any::<bool>()), 0..40)
        ) {
            let mut list = RangeList::default();
            let mut expected = [false; 64];
            for (start, len, takes) in steps {
                let range = start..start + len;
                let places = start as usize..(start + len) as usize;
                prop_assert_eq!(list.overlaps(&range), expected[places.clone()].contains(&true));
                if takes {
                    let taken = list.take(range.clone());
                    let mut inside = [false; 64];
                    taken.0.iter().for_each(|r| inside[r.start as usize..r.end as usize].fill(true));
                    prop_assert_eq!(&inside[places.clone()], &expected[places.clone()]);
                } else {
                    list.add(range);
                }
                expected[places].fill(!takes);
                let mut listed = [false; 64];
                list.0.iter().for_each(|r| listed[r.start as usize..r.end as usize].fill(true));
                prop_assert_eq!(listed, expected);
                prop_assert!(list.0.windows(2).all(|pair| pair[0].end < pair[1].start));
            }
        }
    }

    #[test]
    fn reads_without_a_drop_are_not_recorded_and_many_become_one() {
        let reads = PageReads::default();
        assert!(reads.read(1, 0..10));
        assert!(!reads.may_be_older(1, 0..10));
        reads.dropped(1);
        for i in 0..MAX_RANGES as u64 {
            assert!(reads.read(1, 2 * i..2 * i + 1));
        }
        assert!(!reads.may_be_older(1, 1..2));
        assert!(!reads.read(1, 1 << 40..(1 << 40) + 1));
        assert!(reads.may_be_older(1, 1..2));
        let all = reads.begin_drop(1, 0..u64::MAX);
        assert!(reads.may_be_older(1, 1..2), "until the end of the drop");
        reads.end_drop(1, &all);
        assert!(!reads.may_be_older(1, 1..2));
    }
}
