//! The bound on the names that the kernel knows. The daemon remembers each name until the kernel
//! forgets it, and the kernel forgets none while it has memory. If there are too many, this module
//! asks the kernel to forget the least recently used ones. It must not know what names stand for.
//!
//! To forget a name the kernel locks its directory, and so waits for the requests in flight that
//! look up, list, create or remove names there. Only a thread that serves no request may wait for
//! it. While the kernel waits for the lock of a directory whose requests hang, that directory gets
//! no more names, and the wait takes one thread of the pool.

use super::notify::KernelConnection;
use crate::fs::Fs;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use zarrfs_base::error::Result;
use zarrfs_base::memory::lock;
use zarrfs_base::pool::{Pool, PoolGrowth};

/// Growth of the pool whose threads wait for the locks of directories.
const GROWTH: PoolGrowth = PoolGrowth {
    patience: Duration::from_millis(50),
    max_threads: 64,
};

/// The limit on the names that the kernel knows.
pub struct NameLimit {
    fs: Arc<Fs>,
    kernel: KernelConnection,
    pool: Pool,
    /// Protects the map: how often each file or directory is open, by inode number. Their names
    /// stay.
    open: Mutex<HashMap<u64, u32>>,
}

impl NameLimit {
    /// Creates the limit for a mount without open files.
    pub fn new(fs: Arc<Fs>, kernel: KernelConnection) -> Result<Self> {
        Ok(NameLimit {
            fs,
            kernel,
            pool: Pool::growing("names", 1, GROWTH)?,
            open: Mutex::default(),
        })
    }

    /// Records that a file or directory was opened.
    pub fn opened(&self, inode: u64) {
        *lock(&self.open).entry(inode).or_default() += 1;
    }

    /// Records that an open file or directory was closed.
    pub fn closed(&self, inode: u64) {
        let mut open = lock(&self.open);
        if let Some(count) = open.get_mut(&inode) {
            *count -= 1;
            if *count == 0 {
                open.remove(&inode);
            }
        }
    }

    /// Makes the kernel forget names if it knows too many. Does not wait for the kernel.
    pub fn enforce(self: &Arc<Self>) {
        if self.fs.tree().live.take_crowded() {
            let limit = self.clone();
            self.pool.run(move || limit.forget_least_used());
        }
    }

    fn forget_least_used(self: &Arc<Self>) {
        let open = lock(&self.open).keys().copied().collect();
        for (directory, names) in self.fs.tree().live.least_used(&open) {
            let kernel = self.kernel.clone();
            self.pool.run(move || {
                names
                    .iter()
                    .for_each(|name| kernel.forget_name(directory, name))
            });
        }
    }
}
