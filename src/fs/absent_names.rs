//! Names that exist and that programs do not find, because they are about to create them: see
//! `unlinked` and `copies`.

use super::copies::Copies;
use super::tree::{NodeNature, Tree};
use super::unlinked::UnlinkedNames;
use crate::array::hierarchy::MetadataFile;
use crate::array::is_chunk_like;
use std::sync::Arc;
use zarrfs_outlive::{Journal, Record};
use zarrfs_store::Key;

/// The absent names of a mount.
pub struct AbsentNames {
    tree: Arc<Tree>,
    pub(super) unlinked: UnlinkedNames,
    pub(super) copies: Copies,
}

impl AbsentNames {
    /// Creates an empty record for a tree.
    pub fn new(tree: Arc<Tree>) -> Self {
        AbsentNames {
            tree,
            unlinked: UnlinkedNames::new(),
            copies: Copies::new(),
        }
    }

    /// Records names in `journal` from now on, and takes over what a daemon has left there.
    pub fn outlive(&self, journal: &Arc<Journal>, left: &[Record]) {
        self.unlinked.outlive(journal, left);
        self.copies.outlive(journal, left);
    }

    /// Returns whether no lookup must find `name`, though it exists.
    pub fn contains(&self, parent: u64, name: &str) -> bool {
        let place = self.place(parent, name);
        place.is_some_and(|(directory, name)| self.unlinked.contains(&directory.join(&name)))
    }

    /// Records that a thread looks `name` up. One that a thread which copies is about to create
    /// becomes absent.
    pub fn looked_up_by(&self, parent: u64, name: &str, thread: u32) {
        // chunks exist as soon as `data.raw` was copied, attributes with its extended attributes
        let may_exist = is_chunk_like(name) || MetadataFile::of_name(name).is_some();
        if !may_exist && !self.tree.is_generated_name(name) {
            return;
        }
        let Some((directory, name)) = self.place(parent, name) else {
            return;
        };
        let hierarchy = self.tree.hierarchy();
        if (!hierarchy.is_unmarked(&directory) || hierarchy.cached_array(&directory).is_some())
            && self.copies.miss(&directory, thread, &name)
        {
            self.unlinked.add(&directory.join(&name));
        }
    }

    /// Returns the directory and the name by which a name is recorded; `None` for names that are
    /// never absent.
    fn place(&self, parent: u64, name: &str) -> Option<(Key, String)> {
        let parent = self.tree.node(parent).ok()?;
        let (parent, name) = match parent.nature() {
            NodeNature::Directory => (parent, name.to_string()),
            NodeNature::ViewDirectory => self.tree.canonical(parent, name),
            _ => return None,
        };
        let directory = parent.path();
        directory.child(&name).ok()?;
        Some((directory, name))
    }

    /// Records that a thread has made the directory `name`.
    pub fn made_by(&self, parent: u64, name: &str, thread: u32) {
        if let Ok(parent) = self.tree.node(parent)
            && let Ok(path) = parent.path().child(name)
        {
            self.copies.made(&path, thread);
        }
    }

    /// Records that a thread has created the file `name`, perhaps with O_EXCL.
    pub fn created_by(&self, parent: u64, name: &str, inode: u64, thread: u32, exclusive: bool) {
        self.copies.writes(inode);
        let is_document = exclusive && MetadataFile::of_name(name).is_some();
        if (is_document || self.tree.is_generated_name(name))
            && let Ok(parent) = self.tree.node(parent)
        {
            let directory = parent.path();
            self.copies.copies_into(&directory, thread, name, exclusive);
        }
    }

    /// Records that a file was opened for writing.
    pub fn record_writer(&self, inode: u64) {
        self.copies.writes(inode);
    }

    /// Records that a thread has closed a file that it may have written.
    pub fn closed_by(&self, inode: u64, thread: u32) {
        self.copies.closed(inode);
        if let Ok(node) = self.tree.node(inode) {
            self.copies.closed_in(&node.path().parent(), thread);
        }
    }

    /// Forgets the names at and below `key`, because the files there were removed or renamed.
    pub fn forget_below(&self, key: &Key) {
        self.unlinked.forget_below(key);
        self.copies.forget_below(key);
    }
}
