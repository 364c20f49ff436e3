//! Notifies the kernel that attributes, pages or names that it may keep are out of date. This
//! module handles inode numbers, and must not know what has changed.

use super::page_reads::PageReads;
use crate::fs::{Fs, GuardId, StalePages};
use fuser::{INodeNo, Notifier};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::Duration;
use zarrfs_base::error::Result;
use zarrfs_base::memory::lock;
use zarrfs_base::pool::{Pool, PoolGrowth};

/// Maximum time for which a write waits until its pages are dropped, once a thread is free for it.
/// The kernel may hold the last page until the answer, if it did not have that page before.
const MAX_DROP_WAIT: Duration = Duration::from_millis(20);

/// Growth of the pool that notifies the kernel. A notification may wait for requests in flight of
/// its file, and must not delay those of other files.
const GROWTH: PoolGrowth = PoolGrowth {
    patience: Duration::from_millis(50),
    max_threads: 1024,
};

/// Number of files whose pages one thread drops after the daemon was replaced.
const DROPPED_TOGETHER: usize = 256;

/// The connection to the kernel. It is set before the first request comes.
#[derive(Clone, Default)]
pub struct KernelConnection(Arc<OnceLock<Notifier>>);

impl KernelConnection {
    /// Sets the connection.
    pub fn connect(&self, notifier: Notifier) {
        let _ = self.0.set(notifier);
    }

    /// Drops the attributes that the kernel keeps of a file that is opened. Otherwise reads would
    /// end at an old size.
    pub fn forget_attributes(&self, inode: INodeNo) {
        // a negative offset stands for the attributes alone; dropping pages would take locks that a
        // read may hold
        self.invalidate(inode.0, -1, 0);
    }

    /// Makes the kernel forget a name. Waits for the lock of its directory.
    pub fn forget_name(&self, directory: u64, name: &str) {
        if let Some(notifier) = self.0.get()
            && let Err(e) = notifier.inval_entry(INodeNo(directory), OsStr::new(name))
        {
            log::debug!("notify: {e}");
        }
    }

    /// Drops the kernel's pages of a part of a file, or, if `len` is 0, all from `offset` on. The
    /// kernel first writes back pages that a map has changed.
    fn invalidate(&self, inode: u64, offset: i64, len: i64) {
        if let Some(notifier) = self.0.get()
            && let Err(e) = notifier.inval_inode(INodeNo(inode), offset, len)
        {
            log::debug!("notify: {e}");
        }
    }
}

/// The notifications that drop pages of the kernel. The kernel waits for the requests in flight
/// that hold them, so that only a thread that serves no request may wait for the notification.
pub struct Notices {
    fs: Arc<Fs>,
    kernel: KernelConnection,
    pool: Pool,
    /// Protects the map: the files whose pages are being dropped, by inode number.
    files: Mutex<HashMap<u64, NotifiedFile>>,
    pub reads: PageReads,
}

/// A file whose pages are being dropped.
#[derive(Default)]
struct NotifiedFile {
    /// The notification in flight.
    current: Notice,
    /// The notification requested since then.
    next: Option<Notice>,
}

/// One notification of the kernel. It serves every request that asked for it before it began.
#[derive(Default)]
struct Notice {
    guards: Vec<GuardId>,
    replies: Vec<Arc<Countdown>>,
}

/// A reply that is sent when several notifications are done.
struct Countdown {
    /// Number of notifications that are not done.
    left: AtomicUsize,
    /// Protects the reply.
    reply: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Countdown {
    fn count(&self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1
            && let Some(reply) = lock(&self.reply).take()
        {
            reply();
        }
    }
}

impl Notices {
    /// Creates the queues, without a notification in flight.
    pub fn new(fs: Arc<Fs>, kernel: KernelConnection) -> Result<Self> {
        Ok(Notices {
            fs,
            kernel,
            pool: Pool::growing("notify", 1, GROWTH)?,
            files: Mutex::default(),
            reads: PageReads::default(),
        })
    }

    /// Drops the stale pages of a request that was answered.
    pub fn drop_stale(self: &Arc<Self>, mut stale: Vec<StalePages>) {
        stale.iter_mut().for_each(|stale| stale.is_awaited = false);
        self.reply_after(stale, &[], || {});
    }

    /// Calls `reply` for a request that has changed files through other files, once the kernel has
    /// dropped the pages that the reply must wait for. Also waits for the notifications about the
    /// files `others` that other requests have queued. During the request the kernel must not hold
    /// such pages, because the notification would wait for the request.
    pub fn reply_after(
        self: &Arc<Self>,
        stale: Vec<StalePages>,
        others: &[u64],
        reply: impl FnOnce() + Send + 'static,
    ) {
        let awaited = stale.iter().filter(|stale| stale.is_awaited).count();
        if stale.is_empty() && others.is_empty() {
            return reply();
        }
        // count one more for this call, so that the reply is not sent before all notifications are
        // counted
        let left = AtomicUsize::new(awaited + 1);
        let countdown = Arc::new(Countdown {
            left,
            reply: Mutex::new(Some(Box::new(reply))),
        });
        let mut files = lock(&self.files);
        for inode in others {
            if let Some(file) = files.get_mut(inode) {
                countdown.left.fetch_add(1, Ordering::AcqRel);
                file.next
                    .as_mut()
                    .unwrap_or(&mut file.current)
                    .replies
                    .push(countdown.clone());
            }
        }
        for StalePages {
            inode,
            is_awaited,
            guards,
        } in stale
        {
            let is_new = !files.contains_key(&inode);
            let next = files.entry(inode).or_default().next.get_or_insert_default();
            next.guards.extend(guards);
            next.replies.extend(is_awaited.then(|| countdown.clone()));
            if is_new {
                let notices = self.clone();
                self.pool.run(move || notices.notify(inode));
            }
        }
        drop(files);
        countdown.count();
    }

    /// Notifies the kernel until no notification about a file is requested any more.
    fn notify(&self, inode: u64) {
        let mut has_more = true;
        while has_more {
            if let Some(file) = lock(&self.files).get_mut(&inode) {
                file.current = file.next.take().unwrap_or_default();
            }
            self.drop_pages(inode, 0..u64::MAX);
            let mut files = lock(&self.files);
            let done = files
                .get_mut(&inode)
                .map(|file| std::mem::take(&mut file.current))
                .unwrap_or_default();
            has_more = files.get(&inode).is_some_and(|file| file.next.is_some());
            if !has_more {
                files.remove(&inode);
            }
            drop(files);
            self.fs.arrays().pages_dropped(&done.guards);
            done.replies.iter().for_each(|reply| reply.count());
        }
    }

    /// Drops all pages of the files with these inode numbers, without waiting for it.
    pub fn drop_all(self: &Arc<Self>, inodes: Vec<u64>) {
        // a notification may wait for requests in flight of its file
        for inodes in inodes.chunks(DROPPED_TOGETHER) {
            let notices = self.clone();
            let inodes = inodes.to_vec();
            self.pool.run(move || {
                for inode in inodes {
                    notices.drop_pages(inode, 0..u64::MAX);
                }
            });
        }
    }

    /// Drops the kernel's pages that touch a range of bytes, which ends at `u64::MAX` for all.
    fn drop_pages(&self, inode: u64, range: Range<u64>) {
        let reads = self.reads.begin_drop(inode, range.clone());
        // the kernel takes a length of 0 for the rest of the file
        let len = if range.end == u64::MAX {
            0
        } else {
            range.end - range.start
        };
        self.kernel
            .invalidate(inode, range.start as i64, len as i64);
        self.reads.end_drop(inode, &reads);
    }

    /// Records a read that was received: see [`super::page_reads`].
    pub fn record_read(self: &Arc<Self>, inode: u64, range: Range<u64>) {
        if !self.reads.read(inode, range) {
            self.drop_all(vec![inode]);
        }
    }

    /// Drops the pages of a write to `range` that was applied, and then calls `reply`. Calls it at
    /// once if the range is `None`.
    pub fn drop_before(
        self: &Arc<Self>,
        inode: u64,
        range: Option<Range<u64>>,
        reply: impl FnOnce() + Send + 'static,
    ) {
        let Some(range) = range else {
            return reply();
        };
        let (done, dropped) = mpsc::sync_channel(1);
        let notices = self.clone();
        self.pool.run(move || {
            notices.drop_pages(inode, range);
            let _ = done.send(());
        });
        self.pool.run(move || {
            let _ = dropped.recv_timeout(MAX_DROP_WAIT);
            reply();
        });
    }
}
