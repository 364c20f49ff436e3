//! Files that lose their names while programs open them.
//!
//! The kernel finds a file by one request, and opens it or asks for its attributes by the next. If
//! another program removes or replaces the file in between, that request fails with ESTALE, and the
//! kernel begins anew: it looks the path up once more, and creates or opens what it finds.
//!
//! Invariant: **the second attempt succeeds, as on a local disk**, so no race within a mount makes
//! open(2) or stat(2) fail with ESTALE. Once a request has failed for a path, each file that loses
//! this path is kept with its content until the kernel forgets it.

use super::files::{NewFile, OpenFile};
use super::tree::{Attributes, NameStream, Node, NodeNature, Tree};
use super::{Audience, Change, Fs, KernelPages, OpenedFile};
use lru::LruCache;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory::lock;
use zarrfs_store::{Key, SharedLock, SubtreeLocks};

/// Maximum number of recorded paths: programs create and remove a few names, such as names of lock
/// files, again and again.
const PATHS: NonZeroUsize = NonZeroUsize::new(64).unwrap();

/// Maximum number of kept files, a few for each path.
const KEPT: NonZeroUsize = NonZeroUsize::new(64).unwrap();

/// Maximum time that a request which has failed waits for the end of a removal, and the pause
/// between two attempts.
const LONGEST_WAIT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(1);

/// The files that lose their names.
pub struct LostNames {
    tree: Arc<Tree>,
    is_read_only: bool,
    /// Locks of paths. A removal takes an exclusive lock, and the opening of a file whose writes a
    /// removal must not miss takes a shared lock. A thread takes them before all other locks.
    paths: SubtreeLocks,
    /// Protects the maps.
    state: Mutex<LosingState>,
}

struct LosingState {
    /// The paths for which a request has failed.
    refused: LruCache<Key, ()>,
    /// Removed files by inode number.
    kept: LruCache<u64, Arc<dyn OpenFile>>,
}

impl LostNames {
    /// Creates an empty record for a tree.
    pub fn new(tree: Arc<Tree>, is_read_only: bool) -> Self {
        LostNames {
            tree,
            is_read_only,
            paths: SubtreeLocks::default(),
            state: Mutex::new(LosingState {
                refused: LruCache::new(PATHS),
                kept: LruCache::new(KEPT),
            }),
        }
    }

    /// Keeps the file at `path` from being removed until the lock is dropped.
    pub fn opening(&self, path: &Key) -> SharedLock<'_> {
        self.paths.shared(path)
    }

    /// Waits for the end of the removals in flight at `path`.
    fn wait(&self, path: &Key) {
        let start = Instant::now();
        while self.paths.try_shared(path).is_none() && start.elapsed() < LONGEST_WAIT {
            std::thread::sleep(PAUSE);
        }
    }

    /// Records that a request for `path` fails, and has the files that lose the path from now on
    /// kept.
    fn refuse(&self, path: Key) {
        lock(&self.state).refused.put(path.clone(), ());
        // a removal that has begun before keeps nothing
        self.wait(&path);
    }

    fn is_refused(&self, path: &Key) -> bool {
        lock(&self.state).refused.get(path).is_some()
    }

    /// Drops the kept file of an inode number, which the kernel has forgotten.
    fn forget(&self, inode: u64) {
        // outside of the lock: closing the file may take long
        let file = lock(&self.state).kept.pop(&inode);
        drop(file);
    }

    /// Returns the kept file of an inode number.
    pub fn kept(&self, inode: u64) -> Option<Arc<dyn OpenFile>> {
        lock(&self.state).kept.get(&inode).cloned()
    }

    fn keep(&self, inode: u64, file: Arc<dyn OpenFile>) {
        let displaced = lock(&self.state).kept.push(inode, file);
        drop(displaced);
    }

    /// Has the files that lose the path of an inode from now on kept, and waits for the end of the
    /// removals there.
    fn keep_successors(&self, inode: u64) {
        let node = self.tree.node(inode).ok();
        let node = node.or_else(|| self.tree.live.lost(inode));
        if let Some(node) = node.filter(|_| !self.is_read_only) {
            self.refuse(node.path());
        }
    }

    /// Returns whether a directory was removed through the mount, after a removal in flight has
    /// ended.
    fn is_removed(&self, inode: u64, directory: &Node) -> bool {
        self.wait(&directory.path());
        self.tree.live.lost(inode).is_some()
    }

    /// Returns the names in a directory. One that was removed through the mount is empty.
    pub fn names_in(&self, inode: u64, node: &Node) -> Result<NameStream> {
        if self.tree.live.lost(inode).is_some() {
            return Ok(Box::new(std::iter::empty()));
        }
        match self.tree.names(node) {
            Err(e)
                if [libc::ESTALE, libc::ENOENT].contains(&e.errno())
                    && self.is_removed(inode, node) =>
            {
                Ok(Box::new(std::iter::empty()))
            }
            names => names,
        }
    }
}

impl Fs {
    /// Subtracts `count` lookups of an inode number.
    pub fn forget(&self, inode: u64, count: u64) {
        self.tree.live.forget(inode, count);
        if !self.tree.live.knows(inode) {
            self.lost.forget(inode);
        }
    }

    /// Opens a file whose opening has failed because its name was lost.
    ///
    /// # Errors
    ///
    /// `e`, which the opening has failed with, if the file is not kept.
    pub(super) fn open_lost(&self, inode: u64, e: Error) -> Result<OpenedFile> {
        if e.errno() != libc::ESTALE {
            return Err(e);
        }
        let file = self.lost.kept(inode).or_else(|| {
            self.lost.keep_successors(inode);
            // a removal in flight may have kept it
            self.lost.kept(inode)
        });
        let file = file.ok_or(e)?;
        Ok(self.insert(NewFile::new(file, KernelPages::None)))
    }

    /// Returns the attributes of an inode that has lost its name, if it is open or kept, or a
    /// directory.
    pub(super) fn lost_attributes(&self, inode: u64) -> Option<Attributes> {
        if let Some((_, attributes)) = self.unlinked_file(inode) {
            return Some(attributes);
        }
        self.lost.keep_successors(inode);
        if let Some((_, attributes)) = self.unlinked_file(inode) {
            return Some(attributes);
        }
        self.tree.removed_directory(&*self.tree.live.lost(inode)?)
    }
}

impl Change<'_> {
    /// Calls `remove`, which takes the path from the file or directory `node`.
    pub(super) fn losing<T>(&self, node: &Node, remove: impl FnOnce() -> Result<T>) -> Result<T> {
        let path = node.path();
        let inode = self.tree.inode(node);
        let _alone = self.lost.paths.exclusive(&[&path]);
        let handle = if self.lost.is_refused(&path) {
            self.keep(node, inode)
        } else {
            // a former removal may have failed
            self.lost.forget(inode);
            None
        };
        let removed = remove();
        match handle {
            Some(handle) => self.release(handle),
            None if removed.is_ok() => self.lost.forget(inode),
            // another thread has removed the file, and kept it
            None => {}
        }
        removed
    }

    /// Opens a file that is about to lose its path, so that its content outlives the path. Returns
    /// its handle.
    fn keep(&self, node: &Node, inode: u64) -> Option<u64> {
        if node.nature() != NodeNature::Stored {
            return None;
        }
        let opened = self.open_named(Audience::Owner, inode, true, false);
        let handle = opened.ok()?.handle;
        let Ok(file) = self.files.get(handle) else {
            self.release(handle);
            return None;
        };
        self.lost.keep(inode, file);
        Some(handle)
    }
}
