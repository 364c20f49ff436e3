//! Worker threads and their queue. The module does not know what the jobs do.
//!
//! A job may block without limit. In a growing pool no job waits for a blocked one: a job that has
//! waited for the pool's patience gets a thread of its own, up to a maximum number of threads.

use crate::error::{Error, Result};
use crate::memory::{self, lock};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time for which at least one thread must have been idle without a break before an extra thread
/// ends.
const MAX_IDLE: Duration = Duration::from_secs(5);

/// Returns the number of processors that the process may use. The first call asks the system, whose
/// files with the limits of containers a sandbox hides later.
pub fn processors() -> usize {
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    *PROCESSORS.get_or_init(|| std::thread::available_parallelism().map_or(2, |n| n.get()))
}

/// Worker threads that end when the pool is dropped and its jobs are done.
pub struct Pool {
    queue: Arc<Queue>,
}

/// The rule by which a pool starts more threads than its initial ones.
#[derive(Clone, Copy, Debug)]
pub struct PoolGrowth {
    /// Time that a job waits for a thread before the pool starts another one.
    pub patience: Duration,
    /// Maximum number of threads.
    pub max_threads: usize,
}

/// The state that the threads of a pool share.
struct Queue {
    name: String,
    /// The queued jobs, and the counts of threads and of jobs in flight.
    jobs: Mutex<Jobs>,
    /// Wakes the workers.
    changed: Condvar,
    /// Wakes the watching thread, which starts further workers.
    watched: Condvar,
    /// Maximum weight of all jobs in flight.
    bound: usize,
    /// Number of threads that never end.
    base: usize,
    growth: Option<PoolGrowth>,
}

/// The order in which queued jobs start.
#[derive(Clone, Copy)]
enum Urgency {
    /// A caller waits for the job.
    Urgent,
    /// The job finds out which other jobs to run.
    Early,
    Normal,
}

/// A job in the queue.
struct QueuedJob {
    since: Instant,
    weight: usize,
    job: Job,
}

/// Queued jobs, and counts of threads and of jobs in flight.
struct Jobs {
    /// The queued jobs of each [`Urgency`].
    queued: [VecDeque<QueuedJob>; 3],
    /// Weight of the jobs in flight.
    weight: usize,
    /// Whether the pool has been dropped.
    is_closed: bool,
    threads: usize,
    idle: usize,
    /// The last time at which no thread was idle.
    all_busy: Instant,
    /// Whether the watching thread will check the queue soon without being woken.
    is_watched: bool,
}

type Job = Box<dyn FnOnce() + Send>;

impl Pool {
    /// Starts a pool of `threads` workers, at least one, whose jobs in flight have a total weight
    /// of at most `bound`. A heavier job runs alone.
    ///
    /// # Errors
    ///
    /// The system cannot start a thread. [`Pool::growing`] fails in the same case.
    pub fn bounded(name: &str, threads: usize, bound: usize) -> Result<Self> {
        Pool::start(name, threads, bound, None)
    }

    /// Starts a pool of `threads` workers that adds threads while jobs wait and all workers are
    /// busy.
    pub fn growing(name: &str, threads: usize, growth: PoolGrowth) -> Result<Self> {
        Pool::start(name, threads, usize::MAX, Some(growth))
    }

    fn start(name: &str, threads: usize, bound: usize, growth: Option<PoolGrowth>) -> Result<Self> {
        let base = threads.max(1);
        let queue = Arc::new(Queue {
            name: name.into(),
            jobs: Mutex::new(Jobs {
                queued: Default::default(),
                weight: 0,
                is_closed: false,
                threads: 0,
                idle: 0,
                all_busy: Instant::now(),
                is_watched: false,
            }),
            changed: Condvar::new(),
            watched: Condvar::new(),
            bound,
            base,
            growth,
        });
        let pool = Pool {
            queue: queue.clone(),
        };
        for _ in 0..base {
            queue.start_worker(&mut lock(&queue.jobs))?;
        }
        if let Some(growth) = growth {
            start_thread(&format!("{name}-watch"), move || queue.watch(growth))?;
        }
        Ok(pool)
    }

    /// Queues a job. Jobs start in the order in which they were queued.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        self.run_weighing(0, job);
    }

    /// Queues a job with a weight.
    pub fn run_weighing(&self, weight: usize, job: impl FnOnce() + Send + 'static) {
        self.add(Urgency::Normal, weight, Box::new(job));
    }

    /// Queues a job without weight that queues others. It starts before those, but after urgent
    /// ones.
    pub fn run_early(&self, job: impl FnOnce() + Send + 'static) {
        self.add(Urgency::Early, 0, Box::new(job));
    }

    /// Queues a job that a caller waits for. It starts before all other queued jobs.
    pub fn run_urgent(&self, job: impl FnOnce() + Send + 'static) {
        self.add(Urgency::Urgent, 0, Box::new(job));
    }

    fn add(&self, urgency: Urgency, weight: usize, job: Job) {
        let mut jobs = lock(&self.queue.jobs);
        jobs.queued[urgency as usize].push_back(QueuedJob {
            since: Instant::now(),
            weight,
            job,
        });
        self.queue.wake(jobs);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        lock(&self.queue.jobs).is_closed = true;
        self.queue.changed.notify_all();
        self.queue.watched.notify_all();
    }
}

impl Jobs {
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn len(&self) -> usize {
        self.queued.iter().map(VecDeque::len).sum()
    }

    /// Removes the next job from the queue if it may start now.
    fn take(&mut self, bound: usize) -> Option<QueuedJob> {
        let queue = self.queued.iter_mut().find(|queue| !queue.is_empty())?;
        let weight = queue.front()?.weight;
        if weight > 0 && self.weight > 0 && self.weight.saturating_add(weight) > bound {
            return None;
        }
        self.weight = self.weight.saturating_add(weight);
        queue.pop_front()
    }

    /// Returns the number of jobs that were queued at `then` or before.
    fn waiting_since(&self, then: Instant) -> usize {
        let waiting = self.queued.iter().flatten();
        waiting.filter(|waiting| waiting.since <= then).count()
    }
}

impl Queue {
    /// Wakes a worker after a job has been queued.
    fn wake(&self, mut jobs: MutexGuard<'_, Jobs>) {
        let is_short = jobs.len() > jobs.idle;
        if is_short {
            jobs.all_busy = Instant::now();
        }
        let wakes_watch = is_short && self.growth.is_some() && !jobs.is_watched;
        // a worker that is not idle looks at the queue before it waits
        let has_idle = jobs.idle > 0;
        drop(jobs);
        if has_idle {
            self.changed.notify_one();
        }
        if wakes_watch {
            self.watched.notify_one();
        }
    }

    fn start_worker(self: &Arc<Self>, jobs: &mut Jobs) -> std::io::Result<()> {
        let queue = self.clone();
        let name = format!("{}-{}", self.name, jobs.threads);
        start_thread(&name, move || queue.work())?;
        jobs.threads += 1;
        Ok(())
    }

    /// Runs jobs until the thread is not needed any more.
    fn work(&self) {
        let mut jobs = lock(&self.jobs);
        loop {
            if let Some(QueuedJob { weight, job, .. }) = jobs.take(self.bound) {
                // the end of a heavy job may allow several others to start
                if !jobs.is_empty() && jobs.idle > 0 {
                    self.changed.notify_one();
                }
                drop(jobs);
                memory::begin_request();
                // jobs handle their errors; a panic must not end the worker
                let _ = catch_unwind(AssertUnwindSafe(job));
                jobs = lock(&self.jobs);
                jobs.weight = jobs.weight.saturating_sub(weight);
            } else if jobs.is_closed && jobs.is_empty() {
                jobs.threads -= 1;
                self.changed.notify_all();
                self.watched.notify_all();
                return;
            } else if jobs.threads > self.base
                && jobs.idle > 0
                && jobs.all_busy.elapsed() > MAX_IDLE
            {
                jobs.threads -= 1;
                return;
            } else {
                jobs.idle += 1;
                jobs = if jobs.threads > self.base {
                    self.changed
                        .wait_timeout(jobs, MAX_IDLE)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                } else {
                    self.changed
                        .wait(jobs)
                        .unwrap_or_else(PoisonError::into_inner)
                };
                jobs.idle -= 1;
            }
        }
    }

    /// Starts a worker for each job that has waited too long, until the pool is closed and empty.
    fn watch(self: Arc<Self>, growth: PoolGrowth) {
        let mut jobs = lock(&self.jobs);
        while !(jobs.is_closed && jobs.is_empty()) {
            if jobs.is_empty() {
                jobs = self
                    .watched
                    .wait(jobs)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let overdue = Instant::now()
                .checked_sub(growth.patience)
                .map_or(0, |then| jobs.waiting_since(then));
            let more = overdue
                .saturating_sub(jobs.idle)
                .min(growth.max_threads.saturating_sub(jobs.threads));
            for _ in 0..more {
                if let Err(e) = self.start_worker(&mut jobs) {
                    log::warn!("{}: no further thread: {e}", self.name);
                    break;
                }
            }
            jobs.is_watched = true;
            jobs = self
                .watched
                .wait_timeout(jobs, growth.patience)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            jobs.is_watched = false;
        }
    }
}

/// Starts a thread with a name.
pub fn start_thread<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<JoinHandle<T>> {
    std::thread::Builder::new().name(name.into()).spawn(run)
}

/// Runs `work` on several threads, also on this one: on fewer if the system can't start so many.
/// Returns the first error.
pub fn on_threads(threads: usize, work: &(impl Fn() -> Result<()> + Sync)) -> Result<()> {
    std::thread::scope(|scope| {
        let start = |_| std::thread::Builder::new().spawn_scoped(scope, work).ok();
        let others: Vec<_> = (1..threads).map_while(start).collect();
        let mut done = work();
        for other in others {
            let panicked = |_| Err(Error::system(libc::EIO));
            done = done.and(other.join().unwrap_or_else(panicked));
        }
        done
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    /// Maximum time of work on a busy machine. Only what hangs takes longer.
    const PATIENCE: Duration = Duration::from_secs(60);

    #[track_caller]
    fn wait_until(done: impl Fn() -> bool) {
        let begun = Instant::now();
        while !done() {
            assert!(begun.elapsed() < PATIENCE, "this never comes true");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn jobs_run_after_a_panic_and_after_the_pool_is_dropped() {
        let (done, results) = channel();
        let pool = Pool::bounded("test", 1, usize::MAX).unwrap();
        pool.run(|| panic!("on purpose"));
        for i in 0..3 {
            let done = done.clone();
            pool.run(move || done.send(i).unwrap());
        }
        drop((pool, done));
        assert_eq!(results.iter().collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn jobs_in_flight_weigh_no_more_than_the_bound() {
        let (begun, begins) = channel();
        let (end, ends) = channel::<()>();
        let ends = Arc::new(Mutex::new(ends));
        let pool = Pool::bounded("test", 8, 10).unwrap();
        // each job waits for a message; the fourth is too heavy to run beside others
        for (i, weight) in [6, 4, 1, 11, 0].into_iter().enumerate() {
            let begun = begun.clone();
            let ends = ends.clone();
            pool.run_weighing(weight, move || {
                begun.send(i).unwrap();
                let _ = lock(&ends).recv();
            });
        }
        let next = |n: usize| {
            let mut names: Vec<usize> = (0..n)
                .map(|_| begins.recv_timeout(PATIENCE).unwrap())
                .collect();
            names.sort_unstable();
            names
        };
        let nothing = || begins.recv_timeout(Duration::from_millis(50)).is_err();
        assert_eq!(next(2), [0, 1]);
        assert!(nothing());
        end.send(()).unwrap();
        assert_eq!(next(1), [2]);
        assert!(
            nothing(),
            "the heavy job waits for all others, and later jobs wait for it"
        );
        (0..2).for_each(|_| end.send(()).unwrap());
        assert_eq!(
            next(2),
            [3, 4],
            "a job without weight runs beside any other"
        );
        drop((pool, end));
    }

    #[test]
    fn urgent_jobs_start_first_and_early_ones_next() {
        let (done, results) = channel();
        let (go, gone) = channel::<()>();
        let pool = Pool::bounded("test", 1, usize::MAX).unwrap();
        pool.run(move || gone.recv().unwrap());
        for i in 0..2 {
            let done = done.clone();
            pool.run(move || done.send(i).unwrap());
        }
        for i in 2..4 {
            let done = done.clone();
            pool.run_early(move || done.send(i).unwrap());
        }
        for i in 4..6 {
            let done = done.clone();
            pool.run_urgent(move || done.send(i).unwrap());
        }
        go.send(()).unwrap();
        drop(done);
        assert_eq!(results.iter().collect::<Vec<_>>(), [4, 5, 2, 3, 0, 1]);
    }

    /// Starts a pool that grows from one thread, and gives it `stuck` jobs that block until the
    /// sender is dropped.
    fn stuck_pool(most: usize, stuck: usize) -> (Pool, std::sync::mpsc::Sender<()>) {
        let pool = Pool::growing(
            "test",
            1,
            PoolGrowth {
                patience: Duration::from_millis(10),
                max_threads: most,
            },
        )
        .unwrap();
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
            results
                .recv_timeout(PATIENCE)
                .expect("the job runs though 100 others block");
        }
        assert!(lock(&pool.queue.jobs).threads > 100);
        drop(end);
    }

    #[test]
    fn a_pool_never_exceeds_its_maximum_and_still_runs_all_jobs() {
        let (pool, end) = stuck_pool(4, 10);
        let (done, results) = channel();
        pool.run(move || done.send(()).unwrap());
        wait_until(|| lock(&pool.queue.jobs).threads >= 4);
        assert!(results.recv_timeout(Duration::from_millis(200)).is_err());
        assert_eq!(lock(&pool.queue.jobs).threads, 4);
        let queue = pool.queue.clone();
        drop((pool, end));
        results.recv_timeout(PATIENCE).unwrap();
        // a dropped pool ends all its threads
        wait_until(|| lock(&queue.jobs).threads == 0 && Arc::strong_count(&queue) == 1);
    }

    #[test]
    fn extra_threads_end_when_they_are_not_needed() {
        let (pool, end) = stuck_pool(100, 20);
        wait_until(|| lock(&pool.queue.jobs).threads >= 20);
        drop(end);
        wait_until(|| {
            // pretends that the threads have been idle for long
            if let Some(past) = Instant::now().checked_sub(MAX_IDLE + Duration::from_secs(1)) {
                lock(&pool.queue.jobs).all_busy = past;
            }
            pool.queue.changed.notify_all();
            lock(&pool.queue.jobs).threads <= 1
        });
    }
}
