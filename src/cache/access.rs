//! How a file is read: forwards, in equal steps, or anyhow. It sees offsets and lengths alone; what follows from them is
//! decided elsewhere.

/// PrefetchState of one open file that are told apart: threads that share a descriptor, each at its own place.
const READERS: usize = 8;

/// How far a request may be from where it was expected, in bytes: the kernel sends several at once, and they overtake
/// each other.
const DISORDER: u64 = 1 << 20;

/// The same as long as little was read in a row.
const SMALL_DISORDER: u64 = 256 << 10;

/// Bytes read in a row from the file's beginning that make a forward reader: so much the kernel asks for at a time of one
/// who reads forwards. Who reads less may only want that.
const FROM_START: u64 = 128 << 10;

/// Bytes read in a row from elsewhere that do. Pieces of less may be read at random.
const FORWARD: u64 = 512 << 10;

/// Equal steps that make a strided reader.
const STEPS: u32 = 3;

/// What a request tells of those that will follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Nothing.
    Random,
    /// They go on from here.
    Forward,
    /// They come at equal distances, in bytes, of equal length.
    Strided(i64),
}

/// The readers of an open file, the one seen last first.
#[derive(Default)]
pub struct Access {
    readers: Vec<Reader>,
}

struct Reader {
    /// Offset of the last request.
    last: u64,
    /// The end of what was read in a row, and how much that is.
    end: u64,
    row: u64,
    from_start: bool,
    /// The distance between the last two requests, and how often it came.
    step: i64,
    steps: u32,
    planned: Planned,
}

/// What was done already for what a reader will want: whoever plans keeps it here. It begins anew with the pattern.
#[derive(Default)]
pub struct Planned {
    /// Forward: bytes that may be read ahead, by what was read in a row; so much of a guess is worth so much.
    pub limit: u64,
    /// Forward: where the set of chunks begins that is asked for one by one, the chunk in it that was the first, and how
    /// many were asked for.
    pub set: Option<(u64, u64, u64)>,
    /// Forward: chunks below this number are asked for. Strided: so many requests ahead are asked for.
    pub ahead: u64,
    /// Forward: chunks below this number were dropped.
    pub dropped: Option<u64>,
}

impl Reader {
    fn pattern(&self) -> Pattern {
        if self.row >= if self.from_start { FROM_START } else { FORWARD } {
            Pattern::Forward
        } else if self.steps >= STEPS {
            Pattern::Strided(self.step)
        } else {
            Pattern::Random
        }
    }

    fn goes_on(&self, offset: u64) -> bool {
        let disorder = match self.row {
            // no requests are under way that could overtake each other
            0..FROM_START => 0,
            FROM_START..FORWARD => SMALL_DISORDER,
            FORWARD.. => DISORDER,
        };
        offset <= self.end.saturating_add(disorder) && offset >= self.end.saturating_sub(disorder)
    }

    fn go_on(&mut self, offset: u64, len: u64) {
        self.row = self.row.saturating_add(len);
        (self.last, self.end) = (offset, self.end.max(offset + len));
    }

    /// A request that is no continuation: the first of a new row.
    fn jump(&mut self, offset: u64, len: u64) {
        let step = offset.wrapping_sub(self.last) as i64;
        self.steps = if step == self.step { self.steps.saturating_add(1) } else { 1 };
        (self.step, self.last, self.end) = (step, offset, offset + len);
        // who starts at the beginning is taken for a forward reader at once
        self.from_start = offset == 0;
        self.row = if self.from_start { len } else { 0 };
    }
}

impl Access {
    /// Notes a request and tells what will follow it.
    pub fn note(&mut self, offset: u64, len: u64) -> (Pattern, &mut Planned) {
        let step_of = |r: &Reader| offset.wrapping_sub(r.last) as i64;
        let found = self.readers.iter().position(|r| r.goes_on(offset)).map(|i| (i, true));
        let strided = |r: &Reader| r.steps > 0 && r.pattern() != Pattern::Forward && step_of(r) == r.step;
        let found = found.or_else(|| self.readers.iter().position(strided).map(|i| (i, false)));
        let (mut reader, goes_on) = match found {
            Some((i, goes_on)) => (self.readers.remove(i), goes_on),
            None => (self.new_reader(offset), false),
        };
        let before = reader.pattern();
        if goes_on {
            reader.go_on(offset, len);
        } else {
            reader.jump(offset, len);
        }
        let pattern = reader.pattern();
        if pattern != before {
            reader.planned = Planned::default();
        }
        reader.planned.limit = if reader.from_start { u64::MAX } else { 2 * reader.row };
        self.readers.insert(0, reader);
        if self.readers.len() > READERS {
            // those that have shown no pattern first
            let last = self.readers.iter().rposition(|r| r.pattern() == Pattern::Random);
            self.readers.remove(last.unwrap_or(READERS));
        }
        (pattern, &mut self.readers[0].planned)
    }

    /// Somebody who was not seen before; perhaps the one seen last, who went on by a step.
    fn new_reader(&self, offset: u64) -> Reader {
        let last = self.readers.iter().find(|r| r.pattern() == Pattern::Random).map_or(offset, |r| r.last);
        Reader { last, end: offset, row: 0, from_start: false, step: 0, steps: 0, planned: Planned::default() }
    }

    /// What a request that was noted already told.
    pub fn pattern_at(&self, offset: u64) -> Pattern {
        self.readers.iter().find(|r| r.last == offset || r.goes_on(offset)).map_or(Pattern::Random, Reader::pattern)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: u64 = 1 << 10;

    fn note_all(requests: &[(u64, u64)]) -> Vec<Pattern> {
        let mut access = Access::default();
        requests.iter().map(|&(offset, len)| access.note(offset, len).0).collect()
    }

    #[test]
    fn forward_readers() {
        use Pattern::*;
        // from the beginning, at once; and when requests overtake each other
        let from_start = note_all(&[(0, 128 * K), (256 * K, 128 * K), (128 * K, 128 * K), (384 * K, 128 * K)]);
        assert_eq!(from_start, [Forward; 4]);
        // from elsewhere after a while
        let from_middle: Vec<_> = (0..7).map(|i| ((5000 + i * 128) * K, 128 * K)).collect();
        assert_eq!(note_all(&from_middle), [Random, Random, Random, Random, Forward, Forward, Forward]);
        // small requests
        assert_eq!(note_all(&[(0, 4 * K), (4 * K, 4 * K), (8 * K, 4 * K)]), [Random; 3]);
        // several at a time
        let mut access = Access::default();
        for i in 0..100 {
            for reader in 0..READERS as u64 {
                let pattern = access.note(reader * 1_000_000 * K + i * 128 * K, 128 * K).0;
                assert!(i < 9 || pattern == Forward, "{i} {reader}");
            }
        }
    }

    #[test]
    fn strided_readers() {
        use Pattern::*;
        let steps: Vec<_> = (0..6).map(|i| (1000 * K + i * 777 * K, 4 * K)).collect();
        let s = Strided(777 * K as i64);
        assert_eq!(note_all(&steps), [Random, Random, Random, s, s, s]);
        let back: Vec<_> = (0..6).map(|i| (9000 * K - i * 777 * K, 4 * K)).collect();
        assert_eq!(note_all(&back)[4], Strided(-777 * K as i64));
    }

    #[test]
    fn random_readers_show_nothing() {
        let mut at = 1u64;
        let random = std::iter::repeat_with(|| {
            at = at.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((at >> 34) & !4095, 4 * K)
        });
        let random: Vec<_> = random.take(2000).collect();
        assert!(note_all(&random).iter().all(|p| *p == Pattern::Random));
    }
}
