//! A semaphore with priorities. Many threads wait for a disk or a remote store, but only a few, by
//! the number of processors, encode or decode; the load that is needed first gets the next permit.
//! This module knows nothing of chunks.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::Thread;
use zarrfs_base::memory::lock;

/// The priority of a load: loads of waiting readers come before prefetches, earlier loads before
/// later ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket {
    is_prefetch: bool,
    number: u64,
}

/// A limited number of permits.
pub(super) struct Semaphore {
    tickets: AtomicU64,
    /// Protects the free permits and the waiting threads. No permit is free while a thread waits.
    queue: Mutex<PermitQueue>,
}

struct PermitQueue {
    free: usize,
    waiting: BTreeMap<Ticket, Thread>,
}

/// A permit. Dropping it hands it to the next thread.
pub(super) struct Permit<'a>(&'a Semaphore);

impl Semaphore {
    /// Returns a semaphore with `permits` permits, and at least one.
    pub fn new(permits: usize) -> Self {
        let queue = PermitQueue {
            free: permits.max(1),
            waiting: BTreeMap::new(),
        };
        Semaphore {
            tickets: AtomicU64::new(0),
            queue: Mutex::new(queue),
        }
    }

    /// Returns the priority of a load that begins now.
    pub fn ticket(&self, is_prefetch: bool) -> Ticket {
        Ticket {
            is_prefetch,
            number: self.tickets.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Waits for a permit.
    pub fn acquire(&self, ticket: Ticket) -> Permit<'_> {
        let mut queue = lock(&self.queue);
        if queue.free > 0 {
            queue.free -= 1;
            return Permit(self);
        }
        queue.waiting.insert(ticket, std::thread::current());
        while queue.waiting.contains_key(&ticket) {
            drop(queue);
            std::thread::park();
            queue = lock(&self.queue);
        }
        Permit(self)
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut queue = lock(&self.0.queue);
        // a thread that arrives now must not overtake the waiting ones
        match queue.waiting.pop_first() {
            Some((_, thread)) => thread.unpark(),
            None => queue.free += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn the_load_that_is_needed_first_gets_the_permit() {
        let semaphore = Semaphore::new(1);
        let ahead = [semaphore.ticket(true), semaphore.ticket(true)];
        let late = semaphore.ticket(false);
        let first = semaphore.acquire(semaphore.ticket(false));
        let (done, results) = channel();
        std::thread::scope(|scope| {
            for (name, ticket) in [
                ("second ahead", ahead[1]),
                ("first ahead", ahead[0]),
                ("waited for", late),
            ] {
                let semaphore = &semaphore;
                let done = done.clone();
                scope.spawn(move || {
                    let _permit = semaphore.acquire(ticket);
                    done.send(name).unwrap();
                });
            }
            while lock(&semaphore.queue).waiting.len() < 3 {
                std::thread::yield_now();
            }
            drop(first);
        });
        drop(done);
        assert_eq!(
            results.iter().collect::<Vec<_>>(),
            ["waited for", "first ahead", "second ahead"]
        );
        assert_eq!(lock(&semaphore.queue).free, 1);
    }

    #[test]
    fn at_most_the_given_number_of_permits_is_acquired() {
        let semaphore = Semaphore::new(3);
        let taken = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| {
                    for i in 0..200 {
                        let permit = semaphore.acquire(semaphore.ticket(i % 2 == 0));
                        assert!(taken.fetch_add(1, Ordering::SeqCst) < 3);
                        std::thread::yield_now();
                        taken.fetch_sub(1, Ordering::SeqCst);
                        drop(permit);
                    }
                });
            }
        });
        assert_eq!(lock(&semaphore.queue).free, 3);
    }
}
