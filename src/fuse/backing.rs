//! Passthrough: files whose bytes the kernel reads from a file of the store itself. All open files of one inode must go
//! the same way, and to the same file: which way that is, is kept here from the first opening to the last release.

use crate::error::{Error, Result};
use crate::fs::Backing;
use crate::util::memory::lock;
use fuser::{BackingId, ReplyOpen};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// How long an opening waits for the releases of files that are closed already: the kernel sends them later.
const RELEASES: Duration = Duration::from_secs(1);

/// The open files of a mount that may pass through.
#[derive(Default)]
pub struct Backings {
    /// Protects the map from inode numbers to their ways.
    open: Mutex<HashMap<u64, Way>>,
    /// An inode has no open file any more.
    released: Condvar,
    /// The kernel has refused: nothing passes through.
    refused: AtomicBool,
}

/// How the open files of an inode are read, and how many there are.
struct Way {
    files: usize,
    /// The store's file; None if they are read by requests.
    through: Option<(Backing, Arc<BackingId>)>,
}

impl Backings {
    /// Notes an opening. The file to pass through to, if all of the inode's open files can; an error if others are open
    /// that pass through to what the store no longer holds.
    pub fn open(&self, inode: u64, backing: Option<Backing>, reply: &ReplyOpen) -> Result<Option<Arc<BackingId>>> {
        let mut open = lock(&self.open);
        loop {
            match open.get_mut(&inode) {
                None => break,
                Some(Way { files, through: None }) => {
                    *files += 1;
                    return Ok(None);
                }
                Some(Way { files, through: Some((old, id)) })
                    if backing.as_ref().is_some_and(|b| b.mark == old.mark) =>
                {
                    *files += 1;
                    return Ok(Some(id.clone()));
                }
                Some(_) => {}
            }
            let (again, wait) = self.released.wait_timeout(open, RELEASES).unwrap_or_else(PoisonError::into_inner);
            open = again;
            if wait.timed_out() && open.contains_key(&inode) {
                return Err(Error::system(libc::EBUSY).context("replaced while it is open with --passthrough"));
            }
        }
        let through = backing.and_then(|backing| Some((self.pass_through(&backing, reply)?, backing)));
        let id = through.as_ref().map(|(id, _)| id.clone());
        open.insert(inode, Way { files: 1, through: through.map(|(id, backing)| (backing, id)) });
        Ok(id)
    }

    fn pass_through(&self, backing: &Backing, reply: &ReplyOpen) -> Option<Arc<BackingId>> {
        if self.refused.load(Ordering::Relaxed) {
            return None;
        }
        match reply.open_backing(&backing.file) {
            Ok(id) => Some(Arc::new(id)),
            Err(e) => {
                // for want of privileges, or because of the file system below
                if !self.refused.swap(true, Ordering::Relaxed) {
                    log::warn!("--passthrough: the kernel refuses it: {e}; files are read by requests");
                }
                None
            }
        }
    }

    /// Notes the release of an open file.
    pub fn release(&self, inode: u64) {
        let mut open = lock(&self.open);
        if let Some(way) = open.get_mut(&inode) {
            way.files -= 1;
            if way.files == 0 {
                open.remove(&inode);
                self.released.notify_all();
            }
        }
    }
}
