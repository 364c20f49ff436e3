//! Finds out how a file is read: sequentially, in equal steps, or at random. This module sees
//! offsets and lengths alone.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Maximum number of readers of one open file that are distinguished: threads that share a
/// descriptor, each at its own offset. One more may have no pattern yet.
const MAX_READERS: usize = 8;

/// Maximum distance in bytes of a sequential request from where it was expected: the kernel sends
/// several at a time, and they overtake each other.
const DISORDER: u64 = 1 << 20;

/// Like [`DISORDER`], for a reader that has read little in a row.
const SMALL_DISORDER: u64 = 256 << 10;

/// Bytes read in a row from the beginning of the file that make a reader sequential. The kernel's
/// own read-ahead asks for as many, so a reader that reads less may need no more. With a longer
/// read-ahead, its first request is enough.
const FROM_START: u64 = 128 << 10;

/// Bytes read in a row from elsewhere that make a reader sequential. Smaller reads may be random.
const IN_A_ROW: u64 = 512 << 10;

/// Equal steps that make a reader strided. One is enough after a reader that had as many of them:
/// it begins the next series of the same kind.
const STEPS: u32 = 3;

/// Requests of other readers after which a strided one counts as one without a pattern.
const STALE: u64 = 64;

/// The requests that are expected to follow a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// No particular requests.
    Random,
    /// They continue where this one ends.
    Sequential,
    /// They have the same length, at this distance in bytes.
    Strided(i64),
}

/// The recent requests of an open file: its readers, the latest first.
#[derive(Default)]
pub struct AccessHistory {
    readers: Vec<Reader>,
    /// Number of recorded requests.
    requests: u64,
}

struct Reader {
    /// Offset of the last request.
    last: u64,
    /// End of the bytes that were read in a row.
    end: u64,
    /// Number of bytes that were read in a row.
    row: u64,
    from_start: bool,
    /// The distance between the last two requests, and the number of times that it occurred in a
    /// row.
    step: i64,
    steps: u32,
    /// The last step that made it, or a reader before it, strided.
    known_step: Option<i64>,
    /// The number of its last request.
    request: u64,
    plan: Plan,
}

/// The progress of prefetching for a reader. It starts again when the pattern changes.
#[derive(Default)]
pub struct Plan {
    /// Sequential: maximum bytes to prefetch: twice those read in a row, since more would be a
    /// guess. Unlimited for a reader that began at the start. Strided: maximum requests to
    /// prefetch, four times as many after each step.
    pub limit: u64,
    /// Sequential: the first chunk of the working set that is prefetched in parts, the chunk with
    /// which that began, and how many were prefetched.
    pub set: Option<(u64, u64, u64)>,
    /// Sequential: chunks below this number were prefetched. Strided: number of requests that were
    /// prefetched.
    pub ahead: u64,
    /// Sequential: chunks below this number were dropped.
    pub dropped: Option<u64>,
    /// The same number, for jobs that begin late.
    pub left: Arc<AtomicU64>,
}

impl Reader {
    fn pattern(&self) -> Pattern {
        if self.row
            >= if self.from_start {
                FROM_START
            } else {
                IN_A_ROW
            }
        {
            Pattern::Sequential
        } else if self.step != 0
            && (self.steps >= STEPS || self.steps > 0 && self.known_step == Some(self.step))
        {
            Pattern::Strided(self.step)
        } else {
            Pattern::Random
        }
    }

    /// Returns whether a request at `offset` continues the row.
    fn continues(&self, offset: u64) -> bool {
        let disorder = match self.row {
            // no requests are in flight that could overtake each other
            0..FROM_START => 0,
            FROM_START..IN_A_ROW => SMALL_DISORDER,
            IN_A_ROW.. => DISORDER,
        };
        offset <= self.end.saturating_add(disorder) && offset >= self.end.saturating_sub(disorder)
    }

    /// Returns whether a request at `offset` lies a step of the same size away from the last one.
    fn steps_to(&self, offset: u64) -> bool {
        self.steps > 0
            && self.pattern() != Pattern::Sequential
            && offset.wrapping_sub(self.last) as i64 == self.step
    }

    fn extend_row(&mut self, offset: u64, len: u64) {
        self.row = self.row.saturating_add(len);
        (self.last, self.end) = (offset, self.end.max(offset + len));
    }

    /// Records a request that begins a new row.
    fn jump(&mut self, offset: u64, len: u64) {
        let step = offset.wrapping_sub(self.last) as i64;
        self.steps = if step == self.step {
            self.steps.saturating_add(1)
        } else {
            1
        };
        if self.steps >= STEPS {
            self.known_step = Some(step);
        }
        (self.step, self.last, self.end) = (step, offset, offset + len);
        // a read from the beginning counts towards a row
        self.from_start = offset == 0;
        self.row = if self.from_start { len } else { 0 };
    }
}

impl AccessHistory {
    /// Records a request. Returns its pattern, and the plan of its reader.
    pub fn record(&mut self, offset: u64, len: u64) -> (Pattern, &mut Plan) {
        let continued = self.readers.iter().position(|r| r.continues(offset));
        let found = continued.or_else(|| self.readers.iter().position(|r| r.steps_to(offset)));
        let mut reader = match found {
            Some(i) => self.readers.remove(i),
            None => self.new_reader(offset),
        };
        let continues = continued.is_some();
        let before = reader.pattern();
        if continues {
            reader.extend_row(offset, len);
        } else {
            reader.jump(offset, len);
        }
        let pattern = reader.pattern();
        if pattern != before {
            reader.plan = Plan::default();
        }
        reader.plan.limit = match pattern {
            Pattern::Strided(_) => 4u64.saturating_pow(reader.steps),
            _ if reader.from_start => u64::MAX,
            _ => 2 * reader.row,
        };
        self.requests += 1;
        reader.request = self.requests;
        self.readers.insert(0, reader);
        if self.readers.len() > MAX_READERS + 1 {
            // drop a reader without a pattern first, but not this one, which may find its own
            let others = &self.readers[1..];
            let is_idle = |r: &Reader| match r.pattern() {
                Pattern::Random => true,
                Pattern::Strided(_) => r.request + STALE < self.requests,
                Pattern::Sequential => false,
            };
            let last = others.iter().rposition(is_idle);
            self.readers.remove(1 + last.unwrap_or(MAX_READERS));
        }
        (pattern, &mut self.readers[0].plan)
    }

    /// Returns a new reader. It may be another one after its first step: one from which a known
    /// step leads here, or the latest one without a pattern. So its step is measured from there.
    fn new_reader(&self, offset: u64) -> Reader {
        let readers = || self.readers.iter();
        let step_from = |r: &Reader| offset.wrapping_sub(r.last) as i64;
        let is_known = |step| readers().any(|r| r.known_step == Some(step));
        let before = readers()
            .position(|r| is_known(step_from(r)))
            .or_else(|| readers().position(|r| r.pattern() == Pattern::Random))
            .map(|n| (n, &self.readers[n]));
        // from an older reader, which may be another thread's, the step may be chance
        let latest = before.filter(|(n, _)| *n == 0).map(|(_, r)| step_from(r));
        Reader {
            last: before.map_or(offset, |(_, r)| r.last),
            known_step: latest.filter(|step| is_known(*step)),
            request: 0,
            end: offset,
            row: 0,
            from_start: false,
            step: 0,
            steps: 0,
            plan: Plan::default(),
        }
    }

    /// Returns the pattern of a request that was recorded.
    pub fn pattern_at(&self, offset: u64) -> Pattern {
        let found = self
            .readers
            .iter()
            .find(|r| r.last == offset || r.continues(offset));
        found.map_or(Pattern::Random, Reader::pattern)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: u64 = 1 << 10;

    fn record_all(requests: &[(u64, u64)]) -> Vec<Pattern> {
        let mut access = AccessHistory::default();
        requests
            .iter()
            .map(|&(offset, len)| access.record(offset, len).0)
            .collect()
    }

    #[test]
    fn sequential_readers_are_recognized() {
        use Pattern::*;
        // from the beginning, immediately, also when requests overtake each other
        let from_start = record_all(&[
            (0, 128 * K),
            (256 * K, 128 * K),
            (128 * K, 128 * K),
            (384 * K, 128 * K),
        ]);
        assert_eq!(from_start, [Sequential; 4]);
        // from elsewhere after a while
        let from_middle: Vec<_> = (0..7).map(|i| ((5000 + i * 128) * K, 128 * K)).collect();
        assert_eq!(
            record_all(&from_middle),
            [
                Random, Random, Random, Random, Sequential, Sequential, Sequential
            ]
        );
        // small requests
        assert_eq!(
            record_all(&[(0, 4 * K), (4 * K, 4 * K), (8 * K, 4 * K)]),
            [Random; 3]
        );
        // several at a time
        let mut access = AccessHistory::default();
        for i in 0..100 {
            for reader in 0..MAX_READERS as u64 {
                let pattern = access
                    .record(reader * 1_000_000 * K + i * 128 * K, 128 * K)
                    .0;
                assert!(i < 9 || pattern == Sequential, "{i} {reader}");
            }
        }
    }

    #[test]
    fn strided_readers_are_recognized() {
        use Pattern::*;
        let steps: Vec<_> = (0..6).map(|i| (1000 * K + i * 777 * K, 4 * K)).collect();
        let s = Strided(777 * K as i64);
        assert_eq!(record_all(&steps), [Random, Random, Random, s, s, s]);
        // the next series of the same kind is recognized at its first step
        let next = (0..3).map(|i| (2000 * K + i * 777 * K, 4 * K));
        let both: Vec<_> = steps.into_iter().chain(next).collect();
        assert_eq!(record_all(&both)[6..], [Random, s, s]);
        let back: Vec<_> = (0..6).map(|i| (9000 * K - i * 777 * K, 4 * K)).collect();
        assert_eq!(record_all(&back)[4], Strided(-777 * K as i64));
    }

    #[test]
    fn random_readers_of_few_positions_seldom_have_a_pattern() {
        let mut at = 1u64;
        for (positions, share) in [(64, 20), (256, 50), (1000, 100)] {
            let mut access = AccessHistory::default();
            let strided = (0..20_000).filter(|_| {
                at = at
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                let offset = (at >> 33) % positions * 999 * K;
                access.record(offset, 4 * K).0 != Pattern::Random
            });
            let strided = strided.count();
            assert!(strided * share < 20_000, "{positions}: {strided}");
        }
    }

    #[test]
    fn each_of_many_series_is_recognized() {
        let mut access = AccessHistory::default();
        for series in 0..5 * MAX_READERS as u64 {
            let start = (series * 7919 % 977) * 4 * K;
            let all: Vec<_> = (0..5)
                .map(|i| access.record(start + i * 9999 * K, 4 * K).0)
                .collect();
            let known = if series == 0 { 3 } else { 2 };
            let s = Pattern::Strided(9999 * K as i64);
            assert!(all[known..].iter().all(|p| *p == s), "{series}: {all:?}");
        }
    }

    #[test]
    fn alternating_series_are_recognized() {
        let mut access = AccessHistory::default();
        let s = Pattern::Strided(9999 * K as i64);
        for i in 0..9 {
            access.record(i * 9999 * K, 4 * K);
        }
        for i in 0..20 {
            for start in [100 * K, 500 * K] {
                let pattern = access.record(start + i * 9999 * K, 4 * K).0;
                assert!(i < 3 || pattern == s, "{start} {i}: {pattern:?}");
            }
        }
    }

    #[test]
    fn random_reads_do_not_hide_other_readers() {
        let mut access = AccessHistory::default();
        for i in 0..100 {
            for reader in 0..MAX_READERS as u64 {
                let offset = reader * 1_000_000 * K + i * 128 * K;
                let pattern = access.record(offset, 128 * K).0;
                assert!(i < 9 || pattern == Pattern::Sequential, "{i} {reader}");
                if i >= 9 {
                    let n = i * MAX_READERS as u64 + reader;
                    access.record((1 << 40) + n * n * K, 4 * K);
                }
            }
        }
    }

    #[test]
    fn random_readers_have_no_pattern() {
        let mut at = 1u64;
        let random = std::iter::repeat_with(|| {
            at = at
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            ((at >> 34) & !4095, 4 * K)
        });
        let random: Vec<_> = random.take(2000).collect();
        assert!(record_all(&random).iter().all(|p| *p == Pattern::Random));
    }
}
