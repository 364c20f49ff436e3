//! Modes and modification times of files and directories. A value or prefix under a key of its own
//! has both in the store. Any other file grants what all its sources grant (`fs::tree`), and has
//! the time of its latest source.

use super::{Change, Fs};
use std::time::SystemTime;
use zarrfs_base::error::{ErrorContext, Result};
use zarrfs_store::{FileAttribute, Key, Permissions, StoreExt};

impl Fs {
    /// Sets the mode of the value or directory that is created next under `key`. Returns its
    /// permissions.
    pub(super) fn set_next_mode(&self, key: &Key, mode: u32) -> Result<Option<Permissions>> {
        let set = self
            .store()
            .set_file_attribute(key, FileAttribute::NextMode(mode));
        set.context(key)
    }

    /// Sets the mode of what is, or will be, stored under a key of its own. For other files this
    /// has no effect: see [`Fs::takes_any_mode`].
    pub fn set_mode(&self, inode: u64, mode: u32) -> Result<()> {
        self.writable()?;
        let node = self.tree.node(inode)?;
        let Some(key) = self.tree.own_key(&node) else {
            return Ok(());
        };
        let set = self
            .store()
            .set_file_attribute(&key, FileAttribute::Mode(mode));
        let permissions = set.context(key)?;
        if let Some(draft) = self.drafts.get(&node.path()) {
            draft.lock().permissions = permissions;
        }
        self.created_chunks.change(&node.path(), |attributes| {
            attributes.permissions = permissions;
        });
        Ok(())
    }

    /// Returns whether the mode of a file may be set. It may for plain keys, for what is stored
    /// with a mode of its own, and for files that are written or were just written, since
    /// `install`, `cp -a` and rsync set the modes of such files.
    pub fn takes_any_mode(&self, inode: u64) -> bool {
        self.tree.node(inode).is_ok_and(|node| {
            node.value().is_some()
                || self.tree.own_key(&node).is_some_and(|key| {
                    matches!(self.tree.find_stat(&key), Ok(Some(stat)) if stat.permissions.is_some())
                })
                || self.drafts.get(&node.path()).is_some()
                || self.created_chunks.contains(&node.path())
                || self.absent.copies.is_written(inode, self.files.any(|file| file.inode() == inode))
        })
    }
}

impl Change<'_> {
    /// Sets the modification time of a value or prefix under a key of its own; `None` stands for
    /// the present. First stores the bytes written to the file, since a later store would set
    /// another time. Any other file keeps the time of its latest source.
    pub fn set_modified(&self, inode: u64, time: Option<SystemTime>) -> Result<()> {
        self.writable()?;
        let Ok(node) = self.tree.node(inode) else {
            // the file has lost its name, and is stored nowhere
            return Ok(());
        };
        let Some(key) = self.tree.own_key(&node) else {
            return Ok(());
        };
        for file in self.files.matching(|file| file.inode() == inode) {
            // the close of the file reports the error, too
            let _ = file.flush(self);
        }
        let set = self
            .store()
            .set_file_attribute(&key, FileAttribute::Modified(time));
        set.context(key)?;
        self.created_chunks.change(&node.path(), |attributes| {
            attributes.modified = time.unwrap_or_else(SystemTime::now);
        });
        Ok(())
    }
}
