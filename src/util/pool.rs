//! Worker threads and their queue. This module knows nothing of what the jobs do.
//!
//! A job may block for as long as it likes. In a pool that grows, no job waits for another that blocks: each job that
//! has waited for the pool's patience gets a thread of its own, up to a large number of threads.

use crate::error::Result;
use crate::util::memory::lock;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long every moment must find an idle thread before an extra thread ends.
const IDLE: Duration = Duration::from_secs(5);

/// Worker threads that end when the pool is dropped and its jobs are done.
pub struct Pool {
    queue: Arc<Queue>,
}

/// How a pool gets more threads than it starts with.
#[derive(Clone, Copy, Debug)]
pub struct PoolGrowth {
    /// How long a job waits for a thread before the pool starts another one.
    pub patience: Duration,
    /// Maximum number of threads.
    pub max_threads: usize,
}

struct Queue {
    name: String,
    /// Protects the jobs still to be taken, and the counts of threads and of jobs in flight.
    jobs: Mutex<Jobs>,
    /// Wakes the workers.
    changed: Condvar,
    /// Wakes the thread that starts further workers.
    watched: Condvar,
    /// What jobs in flight may weigh together.
    bound: usize,
    /// Number of threads that stay.
    base: usize,
    growth: Option<PoolGrowth>,
}

struct Waiting {
    since: Instant,
    weight: usize,
    job: Job,
}

struct Jobs {
    first: VecDeque<Waiting>,
    then: VecDeque<Waiting>,
    /// The weight of the jobs in flight.
    weight: usize,
    /// Whether the pool was dropped.
    closed: bool,
    threads: usize,
    idle: usize,
    /// When no thread was idle for the last time.
    all_busy: Instant,
    /// Whether the thread that starts further workers looks at the queue by itself soon.
    is_watched: bool,
}

type Job = Box<dyn FnOnce() + Send>;

impl Pool {
    /// Starts a pool of `threads` workers, at least one.
    pub fn new(name: &str, threads: usize) -> Result<Self> {
        Pool::start(name, threads, usize::MAX, None)
    }

    /// Starts a pool of `threads` workers whose jobs in flight weigh no more than `bound` together, unless there is only
    /// one.
    pub fn bounded(name: &str, threads: usize, bound: usize) -> Result<Self> {
        Pool::start(name, threads, bound, None)
    }

    /// Starts a pool of `threads` workers, with more to come while jobs wait and all workers are busy.
    pub fn growing(name: &str, threads: usize, growth: PoolGrowth) -> Result<Self> {
        Pool::start(name, threads, usize::MAX, Some(growth))
    }

    fn start(name: &str, threads: usize, bound: usize, growth: Option<PoolGrowth>) -> Result<Self> {
        let base = threads.max(1);
        let jobs = Jobs {
            first: VecDeque::new(),
            then: VecDeque::new(),
            weight: 0,
            closed: false,
            threads: 0,
            idle: 0,
            all_busy: Instant::now(),
            is_watched: false,
        };
        let (jobs, changed, watched) = (Mutex::new(jobs), Condvar::new(), Condvar::new());
        let queue = Arc::new(Queue { name: name.into(), jobs, changed, watched, bound, base, growth });
        let pool = Pool { queue: queue.clone() };
        for _ in 0..base {
            queue.start_worker(&mut lock(&queue.jobs))?;
        }
        if let Some(growth) = growth {
            let watch = std::thread::Builder::new().name(format!("{name}-watch"));
            watch.spawn(move || queue.watch(growth))?;
        }
        Ok(pool)
    }

    /// Runs a job on some worker; jobs are taken in the order in which they came.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        self.run_weighing(0, job);
    }

    /// Runs a job that has a weight, like [`Pool::run`].
    pub fn run_weighing(&self, weight: usize, job: impl FnOnce() + Send + 'static) {
        let mut jobs = lock(&self.queue.jobs);
        jobs.then.push_back(Waiting { since: Instant::now(), weight, job: Box::new(job) });
        self.queue.wake(jobs);
    }

    /// Runs a job before all those that wait for their turn, because a caller waits for it.
    pub fn run_urgent(&self, job: impl FnOnce() + Send + 'static) {
        let mut jobs = lock(&self.queue.jobs);
        jobs.first.push_back(Waiting { since: Instant::now(), weight: 0, job: Box::new(job) });
        self.queue.wake(jobs);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        lock(&self.queue.jobs).closed = true;
        self.queue.changed.notify_all();
        self.queue.watched.notify_all();
    }
}

impl Jobs {
    fn is_empty(&self) -> bool {
        self.first.is_empty() && self.then.is_empty()
    }

    fn len(&self) -> usize {
        self.first.len() + self.then.len()
    }

    /// Takes the next job, if it may begin now.
    fn take(&mut self, bound: usize) -> Option<Waiting> {
        if let Some(next) = self.first.pop_front() {
            return Some(next);
        }
        let weight = self.then.front()?.weight;
        if weight > 0 && self.weight > 0 && self.weight.saturating_add(weight) > bound {
            return None;
        }
        let next = self.then.pop_front()?;
        self.weight = self.weight.saturating_add(next.weight);
        Some(next)
    }

    /// Returns how many jobs came at `then` or before.
    fn waiting_since(&self, then: Instant) -> usize {
        self.first.iter().chain(&self.then).filter(|waiting| waiting.since <= then).count()
    }
}

impl Queue {
    /// Has a worker look at the queue, to which a job was added.
    fn wake(&self, mut jobs: MutexGuard<'_, Jobs>) {
        let is_short = jobs.len() > jobs.idle;
        if is_short {
            jobs.all_busy = Instant::now();
        }
        let wakes_watch = is_short && self.growth.is_some() && !jobs.is_watched;
        drop(jobs);
        self.changed.notify_one();
        if wakes_watch {
            self.watched.notify_one();
        }
    }

    fn start_worker(self: &Arc<Self>, jobs: &mut Jobs) -> std::io::Result<()> {
        let (queue, name) = (self.clone(), format!("{}-{}", self.name, jobs.threads));
        std::thread::Builder::new().name(name).spawn(move || queue.work())?;
        jobs.threads += 1;
        Ok(())
    }

    fn work(&self) {
        let mut jobs = lock(&self.jobs);
        loop {
            if let Some(Waiting { weight, job, .. }) = jobs.take(self.bound) {
                // the job that has just ended may have made room for more than one
                if !jobs.is_empty() {
                    self.changed.notify_one();
                }
                drop(jobs);
                // a job answers for its own failures; one that panics must not take the worker with it
                let _ = catch_unwind(AssertUnwindSafe(job));
                jobs = lock(&self.jobs);
                jobs.weight = jobs.weight.saturating_sub(weight);
            } else if jobs.closed && jobs.is_empty() {
                jobs.threads -= 1;
                self.changed.notify_all();
                self.watched.notify_all();
                return;
            } else if jobs.threads > self.base && jobs.idle > 0 && jobs.all_busy.elapsed() > IDLE {
                jobs.threads -= 1;
                return;
            } else {
                jobs.idle += 1;
                jobs = match jobs.threads > self.base {
                    true => self.changed.wait_timeout(jobs, IDLE).unwrap_or_else(PoisonError::into_inner).0,
                    false => self.changed.wait(jobs).unwrap_or_else(PoisonError::into_inner),
                };
                jobs.idle -= 1;
            }
        }
    }

    /// Starts a worker for each job that has waited too long, until the pool is closed and empty.
    fn watch(self: Arc<Self>, growth: PoolGrowth) {
        let mut jobs = lock(&self.jobs);
        while !(jobs.closed && jobs.is_empty()) {
            if jobs.is_empty() {
                jobs = self.watched.wait(jobs).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let overdue = Instant::now().checked_sub(growth.patience).map_or(0, |then| jobs.waiting_since(then));
            let more = overdue.saturating_sub(jobs.idle).min(growth.max_threads.saturating_sub(jobs.threads));
            for _ in 0..more {
                if let Err(e) = self.start_worker(&mut jobs) {
                    log::warn!("{}: no further thread: {e}", self.name);
                    break;
                }
            }
            jobs.is_watched = true;
            jobs = self.watched.wait_timeout(jobs, growth.patience).unwrap_or_else(PoisonError::into_inner).0;
            jobs.is_watched = false;
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
            pool.run_urgent(move || done.send(i).unwrap());
        }
        go.send(()).unwrap();
        drop(done);
        assert_eq!(results.iter().collect::<Vec<_>>(), [2, 3, 0, 1]);
    }

    /// Starts a pool that grows from one thread, and gives it `stuck` jobs that block until the sender is dropped.
    fn stuck_pool(most: usize, stuck: usize) -> (Pool, std::sync::mpsc::Sender<()>) {
        let pool =
            Pool::growing("test", 1, PoolGrowth { patience: Duration::from_millis(10), max_threads: most }).unwrap();
        let (end, ends) = channel::<()>();
        let ends = Arc::new(Mutex::new(ends));
        for _ in 0..stuck {
            let ends = ends.clone();
            pool.run(move || {
                let _ = lock(&ends).recv();
            });
        }
        (pool, end)
    }

    #[test]
    fn blocked_jobs_do_not_delay_others() {
        let (pool, end) = stuck_pool(1000, 100);
        let (done, results) = channel();
        for _ in 0..3 {
            let done = done.clone();
            pool.run(move || done.send(()).unwrap());
            results.recv_timeout(Duration::from_secs(20)).expect("the job runs though 100 others block");
        }
        assert!(lock(&pool.queue.jobs).threads > 100);
        drop(end);
    }

    #[test]
    fn a_pool_never_exceeds_its_maximum_and_still_runs_all_jobs() {
        let (pool, end) = stuck_pool(4, 10);
        let (done, results) = channel();
        pool.run(move || done.send(()).unwrap());
        assert!(results.recv_timeout(Duration::from_millis(200)).is_err());
        assert_eq!(lock(&pool.queue.jobs).threads, 4);
        let queue = pool.queue.clone();
        drop((pool, end));
        results.recv_timeout(Duration::from_secs(20)).unwrap();
        // a dropped pool ends all its threads
        let begun = Instant::now();
        while lock(&queue.jobs).threads > 0 || Arc::strong_count(&queue) > 1 {
            assert!(begun.elapsed() < Duration::from_secs(20));
            std::thread::yield_now();
        }
    }

    #[test]
    fn extra_threads_end_when_they_are_not_needed() {
        let (pool, end) = stuck_pool(100, 20);
        let begun = Instant::now();
        while lock(&pool.queue.jobs).threads < 20 {
            assert!(begun.elapsed() < Duration::from_secs(20));
            std::thread::yield_now();
        }
        drop(end);
        // as if they had been idle for long
        while lock(&pool.queue.jobs).threads > 1 {
            assert!(begun.elapsed() < Duration::from_secs(20));
            if let Some(past) = Instant::now().checked_sub(IDLE + Duration::from_secs(1)) {
                lock(&pool.queue.jobs).all_busy = past;
            }
            pool.queue.changed.notify_all();
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
