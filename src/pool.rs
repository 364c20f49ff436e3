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
    /// Protects the jobs still to be taken, and whether the pool is gone.
    jobs: Mutex<(VecDeque<Job>, bool)>,
    changed: Condvar,
}

impl Pool {
    /// A pool of `threads` workers, at least one.
    pub fn new(name: &str, threads: usize) -> Result<Self> {
        let queue = Arc::new(Queue { jobs: Mutex::default(), changed: Condvar::new() });
        let pool = Pool { queue: queue.clone() };
        for i in 0..threads.max(1) {
            let queue = queue.clone();
            std::thread::Builder::new().name(format!("{name}-{i}")).spawn(move || queue.work())?;
        }
        Ok(pool)
    }

    /// Runs a job on some worker, soon: they are taken in turn.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        lock(&self.queue.jobs).0.push_back(Box::new(job));
        self.queue.changed.notify_one();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        lock(&self.queue.jobs).1 = true;
        self.queue.changed.notify_all();
    }
}

impl Queue {
    fn work(&self) {
        let mut jobs = lock(&self.jobs);
        loop {
            if let Some(job) = jobs.0.pop_front() {
                drop(jobs);
                // a job answers for its own failures; one that panics must not take the worker with it
                let _ = catch_unwind(AssertUnwindSafe(job));
                jobs = lock(&self.jobs);
            } else if jobs.1 {
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
}
