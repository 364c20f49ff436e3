//! The one rule for what may block. A request may block if answering it asks a remote store,
//! decodes a chunk, lists the store, or waits for another request. The rule looks at the kind of
//! request, the kind of file, and what is in memory. It is a guess: a wrong one costs time, never
//! correctness.

use super::Fs;
use crate::fs::tree::Node;

/// The properties of a request that decide whether it may block.
#[derive(Clone, Copy, Debug)]
pub enum RequestKind<'a> {
    /// The lookup of a name in the directory `parent`.
    Lookup {
        /// The directory's inode number.
        parent: u64,
        /// The name.
        name: &'a str,
    },
    /// The attributes of the inode.
    Attributes(u64),
    /// The opening of the file with this inode number.
    Open(u64),
    /// The release of the open file with this handle.
    Release(u64),
    /// The opening of the directory with this inode number.
    OpenDirectory(u64),
    /// The names in an open directory.
    ReadDirectory,
    /// The names in an open directory, with their attributes.
    ReadDirectoryPlus {
        /// The directory's inode number.
        inode: u64,
        /// The position of the first name.
        from: u64,
    },
    /// Extended attributes.
    Xattrs,
    /// A query of the store's free space.
    Brief,
    /// A change or sync of a file, a name or the store; and a read or write that could not be
    /// answered from memory ([`Fs::read_with`], [`Change::write_with`](super::Change::write_with)).
    MayWait,
}

impl Fs {
    /// Returns whether a request may block. The thread that receives a request answers it if this
    /// is false.
    pub fn may_block(&self, request: RequestKind) -> bool {
        match request {
            RequestKind::MayWait => true,
            RequestKind::Brief => false,
            RequestKind::Release(handle) => self
                .files
                .get(handle)
                .is_ok_and(|file| file.release_may_block()),
            _ if self.concurrency > 1 => true,
            RequestKind::ReadDirectory | RequestKind::Xattrs => false,
            RequestKind::ReadDirectoryPlus { inode, from } => {
                self.node_may_block(inode, |node| self.tree.list_may_wait(node, from))
            }
            // a draft is locked while it is stored
            _ if !self.drafts.is_empty() || self.truncations.is_unsettled() => true,
            RequestKind::Lookup { parent, name } => self.node_may_block(parent, |node| {
                self.arrays.is_unsettled(node, Some(name)) || self.tree.lookup_may_wait(node, name)
            }),
            RequestKind::Attributes(inode) | RequestKind::OpenDirectory(inode) => self
                .node_may_block(inode, |node| {
                    self.arrays.is_unsettled(node, None) || self.tree.attributes_may_wait(node)
                }),
            RequestKind::Open(inode) => self.node_may_block(inode, |node| {
                self.arrays.is_unsettled(node, None)
                    || self.tree.attributes_may_wait(node)
                    || self.open_may_block(node)
            }),
        }
    }

    /// Applies a rule to the node of an inode number. A request for an unknown number fails without
    /// a wait.
    fn node_may_block(&self, inode: u64, may_block: impl FnOnce(&Node) -> bool) -> bool {
        self.tree.node(inode).is_ok_and(|node| may_block(&node))
    }

    fn open_may_block(&self, node: &Node) -> bool {
        let array = node
            .flat()
            .and_then(|key| self.tree.hierarchy().cached_array(key));
        array.is_some_and(|array| self.cache.served().may_block(&array)) || node.is_sync()
    }
}
