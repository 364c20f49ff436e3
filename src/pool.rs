//! A pool of worker threads for requests that may have to wait.

use crate::error::Result;
use crate::memory::lock;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

type Job = Box<dyn FnOnce() + Send>;

/// Worker threads that end when the pool is dropped and its jobs are done.
pub struct Pool {
    jobs: Sender<Job>,
}

impl Pool {
    /// A pool of `threads` workers, at least one.
    pub fn new(threads: usize) -> Result<Self> {
        let (jobs, queue) = channel::<Job>();
        // whoever holds the lock waits for the next job
        let queue = Arc::new(Mutex::new(queue));
        for i in 0..threads.max(1) {
            let queue = queue.clone();
            std::thread::Builder::new().name(format!("worker-{i}")).spawn(move || work(&queue))?;
        }
        Ok(Pool { jobs })
    }

    /// Runs a job on some worker, soon.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        if let Err(unsent) = self.jobs.send(Box::new(job)) {
            (unsent.0)();
        }
    }
}

fn work(queue: &Mutex<Receiver<Job>>) {
    loop {
        let job = lock(queue).recv();
        match job {
            Ok(job) => job(),
            Err(_) => return,
        }
    }
}
