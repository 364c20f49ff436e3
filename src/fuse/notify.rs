//! What is said to the kernel unasked: that attributes or pages it may hold are out of date. It knows inode numbers, not
//! what has changed.

use crate::error::Result;
use crate::fs::Fs;
use crate::memory::lock;
use crate::pool::{Growth, Pool};
use fuser::{INodeNo, Notifier};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// How long a write may have been under way, at most, when its reply is sent.
const UNDER_WAY: Duration = Duration::from_secs(5);

/// The connection to the kernel. Set before the first request comes.
#[derive(Clone, Default)]
pub struct Kernel(Arc<OnceLock<Notifier>>);

impl Kernel {
    /// Sets it.
    pub fn connect(&self, notifier: Notifier) {
        let _ = self.0.set(notifier);
    }

    /// Has the kernel ask anew for the attributes of a file that is opened, if it may have kept any: an old size would
    /// cut what is read.
    pub fn forget_attributes(&self, fs: &Fs, inode: INodeNo) {
        if fs.has_lasting_attributes(inode.0) {
            // a negative offset stands for the attributes alone; pages would take locks that a read may hold
            self.invalidate(inode.0, -1, 0);
        }
    }

    /// Has the kernel drop its pages of a part of a file, or, without a length, from there on, after it has had those
    /// written that a map has changed.
    fn invalidate(&self, inode: u64, offset: i64, len: i64) {
        if let Some(notifier) = self.0.get()
            && let Err(e) = notifier.inval_inode(INodeNo(inode), offset, len)
        {
            log::debug!("notify: {e}");
        }
    }
}

/// Threads that notify the kernel. It may wait for the requests in flight of one file, which must not delay another's.
const GROWTH: Growth = Growth { patience: Duration::from_millis(50), most: 1024 };

/// Has the kernel drop pages. The kernel waits for the requests in flight that hold them, so only a thread that serves
/// no request can wait for it.
pub struct Notices {
    kernel: Kernel,
    pool: Pool,
    /// Protects the map: when pages of a file were last dropped, by inode number.
    dropped: Mutex<HashMap<u64, Instant>>,
}

impl Notices {
    /// None so far.
    pub fn new(kernel: Kernel) -> Result<Self> {
        Ok(Notices { kernel, pool: Pool::growing("notify", 1, GROWTH)?, dropped: Mutex::default() })
    }

    fn drop_pages(&self, inode: u64, offset: i64, len: i64) {
        {
            let mut dropped = lock(&self.dropped);
            dropped.retain(|_, at| at.elapsed() < UNDER_WAY);
            dropped.insert(inode, Instant::now());
        }
        self.kernel.invalidate(inode, offset, len);
    }

    /// To be called when a write was answered during which the kernel's pages of the file may have been dropped: it lets go
    /// of a whole page before the write is answered, and may have read it anew before the write was done.
    pub fn drop_again(self: Arc<Self>, inode: u64, offset: u64, len: usize) {
        if lock(&self.dropped).get(&inode).is_none_or(|at| at.elapsed() > UNDER_WAY) {
            return;
        }
        let notices = self.clone();
        self.pool.run(move || notices.drop_pages(inode, offset as i64, len.max(1) as i64));
    }
}

/// Replies to a request that may have changed files, once the kernel has dropped its pages of them. The request must not
/// be one during which the kernel holds such pages, because the notification waits for it.
pub fn reply_after(notices: Arc<Notices>, fs: &Fs, reply: impl FnOnce() + Send + 'static) {
    let inodes = fs.take_stale_pages();
    if inodes.is_empty() {
        return reply();
    }
    let pool = notices.clone();
    pool.pool.run(move || {
        inodes.into_iter().for_each(|inode| notices.drop_pages(inode, 0, 0));
        reply();
    });
}
