//! Turns at the processor: loads wait for a far store many at a time, but only as many decode as there are threads for
//! it, and of those that wait for a turn the one that is needed first gets it. It knows nothing of chunks.

use crate::util::memory::lock;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::Thread;

/// Where a load stands in the queue: what somebody waits for comes before what is read ahead, what was asked for early
/// before what was asked for late.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket {
    ahead: bool,
    number: u64,
}

/// Turns of which so many are taken at a time.
pub(super) struct Turns {
    numbers: AtomicU64,
    /// Protects the list, and how many turns are free: none while somebody waits.
    state: Mutex<State>,
}

struct State {
    free: usize,
    waiting: BTreeMap<Ticket, Thread>,
}

/// A turn, until it is dropped.
pub(super) struct Turn<'a>(&'a Turns);

impl Turns {
    /// At most `count` at a time, and at least one.
    pub fn new(count: usize) -> Self {
        let state = State { free: count.max(1), waiting: BTreeMap::new() };
        Turns { numbers: AtomicU64::new(0), state: Mutex::new(state) }
    }

    /// The place of a load that begins now.
    pub fn ticket(&self, ahead: bool) -> Ticket {
        Ticket { ahead, number: self.numbers.fetch_add(1, Ordering::Relaxed) }
    }

    /// Waits for a turn.
    pub fn take(&self, ticket: Ticket) -> Turn<'_> {
        let mut state = lock(&self.state);
        if state.free > 0 {
            state.free -= 1;
            return Turn(self);
        }
        state.waiting.insert(ticket, std::thread::current());
        while state.waiting.contains_key(&ticket) {
            drop(state);
            std::thread::park();
            state = lock(&self.state);
        }
        Turn(self)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        // handed on: nobody who comes now can take it before
        match state.waiting.pop_first() {
            Some((_, thread)) => thread.unpark(),
            None => state.free += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn turns_go_to_whoever_is_needed_first() {
        let turns = Turns::new(1);
        let (ahead, late) = ([turns.ticket(true), turns.ticket(true)], turns.ticket(false));
        let first = turns.take(turns.ticket(false));
        let (done, results) = channel();
        std::thread::scope(|scope| {
            for (name, ticket) in [("second ahead", ahead[1]), ("first ahead", ahead[0]), ("waited for", late)] {
                let (turns, done) = (&turns, done.clone());
                scope.spawn(move || {
                    let _turn = turns.take(ticket);
                    done.send(name).unwrap();
                });
            }
            while lock(&turns.state).waiting.len() < 3 {
                std::thread::yield_now();
            }
            drop(first);
        });
        drop(done);
        assert_eq!(results.iter().collect::<Vec<_>>(), ["waited for", "first ahead", "second ahead"]);
        assert_eq!(lock(&turns.state).free, 1);
    }

    #[test]
    fn no_more_than_so_many_are_taken_at_a_time() {
        let (turns, taken) = (Turns::new(3), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    for i in 0..200 {
                        let turn = turns.take(turns.ticket(i % 2 == 0));
                        assert!(taken.fetch_add(1, Ordering::SeqCst) < 3);
                        std::thread::yield_now();
                        taken.fetch_sub(1, Ordering::SeqCst);
                        drop(turn);
                    }
                });
            }
        });
        assert_eq!(lock(&turns.state).free, 3);
    }
}
