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

use super::files::{NewFile, OpenFile};
use super::{Change, Fs};
use crate::cache::Wait;
use crate::fs::tree::{Attributes, FLAT, Node, Target};
use std::sync::Arc;
use zarrfs_base::error::{Error, Result};
use zarrfs_store::{EntryKind, Key};

/// Number of bytes that are compared at a time.
const PIECE: usize = 1 << 20;

/// Why a file stays hidden.
const HIDDEN: &str = "stays in the store, hidden by the file of this name that the mount shows";

impl Fs {
    /// Returns whether the mount may generate a file of this name.
    fn is_generated_name(&self, name: &str) -> bool {
        name == FLAT || self.tree.is_header_name(name)
    }

    /// Returns whether a lookup by a thread that copies must not find `name`: see `fs::copies`.
    pub(super) fn is_missing_to_copy(&self, directory: &Key, name: &str, thread: u32) -> bool {
        self.is_generated_name(name)
            && !self.tree.hierarchy().is_unmarked(directory)
            && self.copies.takes_for_missing(directory, thread, name)
    }

    /// Records that a thread has made the directory `name`.
    pub fn made_by(&self, parent: u64, name: &str, thread: u32) {
        if let Ok(parent) = self.tree.node(parent)
            && let Ok(path) = parent.path().child(name)
        {
            self.copies.made(path, thread);
        }
    }

    /// Records that a thread has created the file `name`.
    pub fn created_by(&self, parent: u64, name: &str, inode: u64, thread: u32) {
        self.copies.writes(inode, thread);
        if self.is_generated_name(name)
            && let Ok(parent) = self.tree.node(parent)
        {
            self.copies.copies_into(&parent.path(), thread, Some(name));
        }
    }

    /// Records that a thread sets the time of a file or directory.
    pub fn timed_by(&self, inode: u64, thread: u32) {
        let Ok(node) = self.tree.node(inode) else {
            return;
        };
        match &*node {
            Node::Directory(key) => self.copies.completed(key),
            Node::Metadata(key, _) if self.drafts.get(&node.path()).is_some() => {
                self.copies.copies_into(key, thread, None);
            }
            _ => {}
        }
    }

    /// Records that a thread has opened a file for writing.
    pub fn written_by(&self, inode: u64, thread: u32) {
        self.copies.writes(inode, thread);
    }

    /// Records that a thread has closed a file that it may have written.
    pub fn closed_by(&self, inode: u64, thread: u32) {
        if let Ok(node) = self.tree.node(inode) {
            self.copies.closed_in(&node.path().parent(), thread);
        }
    }

    /// Records that a plain key was created under a name that may be a generated one later.
    pub(super) fn record_early(&self, path: &Key) {
        if self.tree.is_header_name(path.name()) {
            self.tree.early.add(path.clone());
        }
    }

    /// Returns whether a node is the container of a group without arrays.
    pub(super) fn is_empty_container(&self, node: &Node) -> bool {
        matches!(node, Node::Dataset(key, format) if !self.tree.shows_values(key, *format))
    }

    /// Returns whether the first `size` bytes of an open file are those of the plain key `from`.
    fn is_same(&self, file: &dyn OpenFile, size: u64, from: &Key) -> Result<bool> {
        let mut stored = Vec::new();
        let mut shown = Vec::new();
        let mut at = 0;
        while at < size {
            let len = (size - at).min(PIECE as u64) as usize;
            self.store()
                .get_range(from, at..at + len as u64, &mut stored)
                .map_err(|e| e.context(from))?
                .ok_or_else(Error::stale)?;
            let found = file.read(self, at, len, Wait::Allowed, &mut shown)?;
            found.copy_to(&mut shown);
            if stored != shown {
                return Ok(false);
            }
            at += len as u64;
        }
        Ok(true)
    }
}

impl Change<'_> {
    /// Creates the container of a group without arrays as a plain key, in place of the empty one
    /// that the mount shows.
    pub(super) fn create_early_container(&self, node: &Node) -> Result<(Attributes, NewFile)> {
        let path = node.path();
        self.create_new(Target::Plain(path.clone()), path.name(), false)
    }

    /// Writes the generated files that a program has copied before the document of their array into
    /// the array, and removes their keys.
    pub(super) fn take_early_files(&self, key: &Key) {
        for name in self.tree.generated_names() {
            let from = key.join(name);
            let stat = self.store().stat(&from);
            if !matches!(stat, Ok(Some(stat)) if stat.kind == EntryKind::Value) {
                continue;
            }
            match self.take_early_file(key, name, &from) {
                Ok(()) => self.tree.early.remove(&from),
                Err(e) if name == FLAT => self.stats.problem(format!("{from}: {HIDDEN}: {e}")),
                // the coordinates that it describes may follow
                Err(_) => self.record_early(&from),
            }
        }
    }

    fn take_early_file(&self, key: &Key, name: &str, from: &Key) -> Result<()> {
        let directory = Node::Directory(key.clone());
        let Some((to, attributes)) = self.tree.lookup(&directory, name)? else {
            return Ok(());
        };
        if let Node::Value(_) = to {
            return Err(Error::invalid("the array does not show such a file"));
        }
        let inode = self.tree.inode(&to);
        let size = self.store().stat(from)?.map_or(0, |stat| stat.size);
        let file: Arc<dyn OpenFile> = match &to {
            Node::Flat(_) => self.open_flat(inode, key, false, false)?.file,
            _ => Arc::new(self.open_composite(inode, &to, false, false)?.0),
        };
        if size != attributes.size || !self.is_same(&*file, size, from)? {
            match &to {
                Node::Flat(_) => self.copy_into(from, &self.tree.array(key)?)?,
                _ => self.copy_onto(from, &to)?,
            }
        }
        self.remove_early(from)
    }

    /// Removes the keys of the files that the mount shows by now.
    pub(super) fn settle_early_files(&self) {
        for path in self.tree.early.all() {
            let inode = self.tree.inode(&Node::Value(path.clone()));
            if self.files.any(|file| file.inode() == inode) {
                continue;
            }
            if let Err(e) = self.settle_early_file(&path) {
                self.stats.problem(format!("{path}: {HIDDEN}: {e}"));
            }
        }
    }

    fn settle_early_file(&self, path: &Key) -> Result<()> {
        let Some(stat) = self.store().stat(path)? else {
            self.tree.early.remove(path);
            return Ok(());
        };
        let Some(to) = self.tree.generated(path) else {
            return Ok(());
        };
        let (open, _) = self.open_composite(0, &to, false, false)?;
        let is_same = self.tree.composite(&to)?.size() == stat.size
            && self.is_same(&open, stat.size, path)?;
        if is_same || open.is_text() {
            self.remove_early(path)?;
        } else if self.is_empty_container(&to) {
            // it is shown as it is
            return Ok(());
        } else {
            return Err(Error::invalid("its content is another one"));
        }
        self.tree.early.remove(path);
        Ok(())
    }

    fn remove_early(&self, path: &Key) -> Result<()> {
        let node = Node::Value(path.clone());
        let inode = self.tree.inode(&node);
        let open = self.files.matching(|file| file.inode() == inode);
        open.iter().for_each(|file| file.end_writing());
        self.drafts.take(path);
        self.store().delete(path).map_err(|e| e.context(path))?;
        self.tree.removed(&node);
        Ok(())
    }
}
