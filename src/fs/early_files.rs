//! Files that a program copies before what they are made of: `data.raw`, headers and chunks before
//! the document of their array, the container of a group before the arrays. Programs copy the files
//! of a directory in any order.
//!
//! Invariant: **a file under a generated name is never lost and never changes what was written
//! after it.** Until the mount shows the generated file it is a plain key. When the document of the
//! array is stored, its values go to the array, and the key is removed; chunks are encoded
//! ([`Hierarchy::put_document`](crate::array::hierarchy::Hierarchy::put_document)). A header that
//! describes coordinates which follow, or the container of a group whose arrays follow, is compared
//! with the generated one at the next sync, and its key is removed if they are the same. A file
//! with another content stays, hidden, and is a problem.

use super::files::OpenFile;
use super::files::composite::early_file::EarlyFile;
use super::files::plain::PlainFile;
use super::names::MAX_PLAIN;
use super::{Change, Fs};
use crate::fs::tree::{FLAT, Node};
use std::sync::Arc;
use zarrfs_base::error::{ErrorContext, Kind, Result};
use zarrfs_store::{EntryKind, Key, StoreExt};

/// Why a file stays hidden.
const HIDDEN: &str = "stays in the store, hidden by the file of this name that the mount shows";

impl Fs {
    /// Returns whether a file that cannot become the generated one may become it later: arrays that
    /// it shows may follow.
    pub(super) fn may_be_early(&self, node: &Node) -> bool {
        self.tree.is_empty_container(node)
            || self.absent.copies.has_copied_below(&node.path().parent())
    }
}

impl Change<'_> {
    /// Creates an empty plain key under the name of a generated file, which hides it.
    pub(super) fn create_early(&self, node: &Node) -> Result<Arc<dyn OpenFile>> {
        let path = node.path();
        let new = match self.store().writable_file(&path, true, false) {
            Err(e) if e.kind() == Kind::Unsupported => {
                let node = Node::Value(path);
                let inode = self.tree.inode(&node);
                self.drafts
                    .open(&node, inode, None, None, MAX_PLAIN)?
                    .opened()
            }
            file => PlainFile::open(0, Some(file.context(path)?)),
        };
        new.file.set_len(0)?;
        Ok(new.file)
    }

    /// Writes the generated files that a program has copied before the document of their array into
    /// the array, and removes their keys.
    pub(super) fn take_early_files(&self, key: &Key) {
        let is_remote = self.tree.array(key).is_ok_and(|array| array.is_remote());
        for name in self.tree.generated_names() {
            let from = key.join(name);
            // each question to a server takes a round trip; a store on a disk may have files that
            // another mount has received
            if is_remote && !self.tree.early.contains(&from) {
                continue;
            }
            let stat = self.store().stat(&from);
            if !matches!(stat, Ok(Some(stat)) if stat.kind == EntryKind::Value) {
                continue;
            }
            match EarlyFile::new(self, &from).take() {
                Ok(()) => {}
                Err(e) if name == FLAT => self.stats.problem(format!("{from}: {HIDDEN}: {e}")),
                // the coordinates that it describes may follow
                Err(_) => self.tree.record_early(&from),
            }
        }
    }

    /// Removes the keys of the files that the mount shows by now.
    pub(super) fn settle_early_files(&self) {
        for path in self.tree.early.all() {
            let inode = self.tree.inode(&Node::Value(path.clone()));
            if self.files.any(|file| file.inode() == inode) {
                continue;
            }
            if let Err(e) = EarlyFile::new(self, &path).settle() {
                self.stats.problem(format!("{path}: {HIDDEN}: {e}"));
            }
        }
    }
}
