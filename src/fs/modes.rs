//! Modes of files and directories. What is stored under a key of its own has a mode in the store;
//! other files grant what the files that they are made of grant (`fs::tree`).

use super::Fs;
use crate::fs::tree::Node;
use zarrfs_base::error::Result;
use zarrfs_store::{Key, ModeTarget, Permissions};

impl Fs {
    /// Sets the mode of the value or directory that is created next under `key`. Returns its
    /// permissions.
    pub(super) fn set_next_mode(&self, key: &Key, mode: u32) -> Result<Option<Permissions>> {
        let set = self.store().set_mode(key, mode, ModeTarget::Next);
        set.map_err(|e| e.context(key))
    }

    /// Sets the mode of what is, or will be, stored under a key of its own. For other files this
    /// has no effect: see [`Fs::takes_any_mode`].
    pub fn set_mode(&self, inode: u64, mode: u32) -> Result<()> {
        self.writable()?;
        let node = self.tree.node(inode)?;
        let Some(key) = self.own_key(&node) else {
            return Ok(());
        };
        let set = self.store().set_mode(&key, mode, ModeTarget::Existing);
        let permissions = set.map_err(|e| e.context(key))?;
        if let Some(draft) = self.drafts.get(&node.path()) {
            draft.lock().permissions = permissions;
        }
        self.created_chunks
            .set_permissions(&node.path(), permissions);
        Ok(())
    }

    /// Returns the key under which a plain key, a directory, a document or a chunk is stored, if it
    /// shares that with no other file.
    fn own_key(&self, node: &Node) -> Option<Key> {
        match node {
            Node::Value(key) | Node::Directory(key) => Some(key.clone()),
            Node::Metadata(key, file) => Some(key.join(file.name())),
            Node::Chunk(key, name) => {
                let (array, chunk) = self.tree.chunk(key, name).ok()?;
                (!array.has_shards()).then(|| array.stored_key(chunk))
            }
            _ => None,
        }
    }

    /// Returns whether the mode of a file may be set. It may for plain keys, for what is stored
    /// with a mode of its own, and for files that are written or were just written, since
    /// `install`, `cp -a` and rsync set the modes of such files.
    pub fn takes_any_mode(&self, inode: u64) -> bool {
        self.tree.node(inode).is_ok_and(|node| {
            matches!(*node, Node::Value(_))
                || self.own_key(&node).is_some_and(|key| {
                    matches!(self.tree.find_stat(&key), Ok(Some(stat)) if stat.permissions.is_some())
                })
                || self.drafts.get(&node.path()).is_some()
                || self.created_chunks.contains(&node.path())
                || self.is_written(inode)
        })
    }
}
