//! Passthrough: files whose bytes the kernel reads from a file of the store. The kernel requires that all open files of
//! an inode pass through to the same file, or none. This module keeps that choice from the first `open` to the last
//! `release`.

use crate::error::{Error, Result};
use crate::fs::Backing;
use crate::util::memory::lock;
use fuser::{BackingId, ReplyOpen};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Time for which an `open` waits for releases of closed files, which the kernel sends some time after the close.
const RELEASES: Duration = Duration::from_secs(1);

/// The open files of a mount with passthrough.
#[derive(Default)]
pub struct Backings {
    /// Protects the map. The keys are inode numbers.
    open: Mutex<HashMap<u64, OpenInode>>,
    /// Wakes openings when an inode has no open file any more.
    released: Condvar,
    /// Whether the kernel has refused passthrough.
    refused: AtomicBool,
}

/// The open files of an inode.
struct OpenInode {
    /// Number of open files.
    files: usize,
    /// The file of the store; `None` if the bytes are read by requests.
    through: Option<(Backing, Arc<BackingId>)>,
}

impl Backings {
    /// Records an opening. Returns the file to pass through to, if all open files of the inode can pass through.
    ///
    /// # Errors
    ///
    /// Fails with EBUSY if open files of the inode pass through to a file that was replaced in the store.
    pub fn open(&self, inode: u64, backing: Option<Backing>, reply: &ReplyOpen) -> Result<Option<Arc<BackingId>>> {
        let mut open = lock(&self.open);
        loop {
            match open.get_mut(&inode) {
                None => break,
                Some(OpenInode { files, through: None }) => {
                    *files += 1;
                    return Ok(None);
                }
                Some(OpenInode { files, through: Some((old, id)) })
                    if backing.as_ref().is_some_and(|b| b.tag == old.tag) =>
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
        open.insert(inode, OpenInode { files: 1, through: through.map(|(id, backing)| (backing, id)) });
        Ok(id)
    }

    fn pass_through(&self, backing: &Backing, reply: &ReplyOpen) -> Option<Arc<BackingId>> {
        if self.refused.load(Ordering::Relaxed) {
            return None;
        }
        match reply.open_backing(&backing.file) {
            Ok(id) => Some(Arc::new(id)),
            Err(e) => {
                // this fails without privileges, or if the store's file system doesn't support it
                if !self.refused.swap(true, Ordering::Relaxed) {
                    log::warn!("--passthrough: the kernel refuses it: {e}; files are read by requests");
                }
                None
            }
        }
    }

    /// Records a release.
    pub fn release(&self, inode: u64) {
        let mut open = lock(&self.open);
        if let Some(inode_files) = open.get_mut(&inode) {
            inode_files.files -= 1;
            if inode_files.files == 0 {
                open.remove(&inode);
                self.released.notify_all();
            }
        }
    }
}
