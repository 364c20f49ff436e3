//! Worker threads and their queue. It knows nothing of what the jobs do.

use crate::error::Result;
use crate::memory::lock;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

type Job = Box<dyn FnOnce() + Send>;

/// Worker threads that end when the pool is dropped and its jobs are done.
pub struct Pool {
    queue: Arc<Queue>,
}

struct Queue {
    /// Protects the jobs still to be taken, and what is known of those under way.
    jobs: Mutex<Jobs>,
    changed: Condvar,
    /// What jobs under way may weigh together.
    bound: usize,
}

#[derive(Default)]
struct Jobs {
    first: VecDeque<Job>,
    then: VecDeque<(usize, Job)>,
    /// Of the jobs under way.
    weight: usize,
    /// The pool is gone.
    closed: bool,
}

impl Pool {
    /// A pool of `threads` workers, at least one.
    pub fn new(name: &str, threads: usize) -> Result<Self> {
        Pool::bounded(name, threads, usize::MAX)
    }

    /// The same, but jobs under way weigh no more than `bound` together, unless it is a single one.
    pub fn bounded(name: &str, threads: usize, bound: usize) -> Result<Self> {
        let queue = Arc::new(Queue { jobs: Mutex::default(), changed: Condvar::new(), bound });
        let pool = Pool { queue: queue.clone() };
        for i in 0..threads.max(1) {
            let queue = queue.clone();
            std::thread::Builder::new().name(format!("{name}-{i}")).spawn(move || queue.work())?;
        }
        Ok(pool)
    }

    /// Runs a job on some worker, soon: they are taken in turn.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        self.run_weighing(0, job);
    }

    /// As [`Pool::run`], of a job that has a weight.
    pub fn run_weighing(&self, weight: usize, job: impl FnOnce() + Send + 'static) {
        lock(&self.queue.jobs).then.push_back((weight, Box::new(job)));
        self.queue.changed.notify_one();
    }

    /// Runs a job before all those that wait for their turn: somebody waits for it.
    pub fn run_first(&self, job: impl FnOnce() + Send + 'static) {
        lock(&self.queue.jobs).first.push_back(Box::new(job));
        self.queue.changed.notify_one();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        lock(&self.queue.jobs).closed = true;
        self.queue.changed.notify_all();
    }
}

impl Jobs {
    fn is_empty(&self) -> bool {
        self.first.is_empty() && self.then.is_empty()
    }

    /// The next job, if it may begin now.
    fn take(&mut self, bound: usize) -> Option<(usize, Job)> {
        if let Some(job) = self.first.pop_front() {
            return Some((0, job));
        }
        let (weight, _) = self.then.front()?;
        if *weight > 0 && self.weight > 0 && self.weight.saturating_add(*weight) > bound {
            return None;
        }
        let next = self.then.pop_front()?;
        self.weight = self.weight.saturating_add(next.0);
        Some(next)
    }
}

impl Queue {
    fn work(&self) {
        let mut jobs = lock(&self.jobs);
        loop {
            if let Some((weight, job)) = jobs.take(self.bound) {
                // what has ended may have made room for more than one
                if !jobs.is_empty() {
                    self.changed.notify_one();
                }
                drop(jobs);
                // a job answers for its own failures; one that panics must not take the worker with it
                let _ = catch_unwind(AssertUnwindSafe(job));
                jobs = lock(&self.jobs);
                jobs.weight = jobs.weight.saturating_sub(weight);
            } else if jobs.closed && jobs.is_empty() {
                self.changed.notify_all();
                return;
            } else {
                jobs = self.changed.wait(jobs).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    #[test]
    fn jobs_run_also_after_a_panic_and_after_the_pool_is_dropped() {
        let (done, results) = channel();
        let pool = Pool::new("test", 1).unwrap();
        pool.run(|| panic!("as told"));
        for i in 0..3 {
            let done = done.clone();
            pool.run(move || done.send(i).unwrap());
        }
        drop((pool, done));
        assert_eq!(results.iter().collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn jobs_under_way_weigh_no_more_than_the_bound() {
        let (begun, begins) = channel();
        let (end, ends) = channel::<()>();
        let ends = Arc::new(Mutex::new(ends));
        let pool = Pool::bounded("test", 8, 10).unwrap();
        // each waits to be told to end; the fourth is too heavy for any company
        for (i, weight) in [6, 4, 1, 11, 0].into_iter().enumerate() {
            let (begun, ends) = (begun.clone(), ends.clone());
            pool.run_weighing(weight, move || {
                begun.send(i).unwrap();
                let _ = lock(&ends).recv();
            });
        }
        let next = |n: usize| {
            let mut names: Vec<usize> = (0..n).map(|_| begins.recv_timeout(Duration::from_secs(5)).unwrap()).collect();
            names.sort_unstable();
            names
        };
        let nothing = || begins.recv_timeout(Duration::from_millis(50)).is_err();
        assert_eq!(next(2), [0, 1]);
        assert!(nothing());
        end.send(()).unwrap();
        assert_eq!(next(1), [2]);
        assert!(nothing(), "the heavy one waits for all others, and what is behind it for that one");
        (0..2).for_each(|_| end.send(()).unwrap());
        assert_eq!(next(2), [3, 4], "what weighs nothing goes with anything");
        drop((pool, end));
    }

    #[test]
    fn what_somebody_waits_for_comes_first() {
        let (done, results) = channel();
        let (go, gone) = channel::<()>();
        let pool = Pool::new("test", 1).unwrap();
        pool.run(move || gone.recv().unwrap());
        for i in 0..2 {
            let done = done.clone();
            pool.run(move || done.send(i).unwrap());
        }
        for i in 2..4 {
            let done = done.clone();
            pool.run_first(move || done.send(i).unwrap());
        }
        go.send(()).unwrap();
        drop(done);
        assert_eq!(results.iter().collect::<Vec<_>>(), [2, 3, 0, 1]);
    }
}
