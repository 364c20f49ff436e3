//! The one rule for what may block. A request may block if answering it asks a remote store,
//! decodes a chunk, lists the store, or waits for another request. The rule looks at the kind of
//! request, the kind of file, and what is in memory. It is a guess: a wrong one costs time, never
//! correctness.

use super::Fs;
use crate::array::hierarchy::MetadataFile;
use crate::array::is_chunk_like;
use crate::fs::tree::{ControlFile, FIXED_NAMES, FLAT, Node};
use zarrfs_format::metadata::{ZARR_JSON, ZMETADATA};
use zarrfs_store::Key;

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
    /// The release of an open directory, or a query of the store's free space.
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
                self.node_may_block(inode, |node| self.list_may_block(node, from))
            }
            // a draft is locked while it is stored
            _ if !self.drafts.is_empty() || self.truncations.is_unsettled() => true,
            RequestKind::Lookup { parent, name } => self.node_may_block(parent, |node| {
                self.is_unsettled(node, Some(name)) || self.lookup_may_block(node, name)
            }),
            RequestKind::Attributes(inode) | RequestKind::OpenDirectory(inode) => self
                .node_may_block(inode, |node| {
                    self.is_unsettled(node, None) || self.attributes_may_block(node)
                }),
            RequestKind::Open(inode) => self.node_may_block(inode, |node| {
                self.is_unsettled(node, None)
                    || self.attributes_may_block(node)
                    || self.open_may_block(node)
            }),
        }
    }

    /// Applies a rule to the node of an inode number. A request for an unknown number fails without
    /// a wait.
    fn node_may_block(&self, inode: u64, may_block: impl FnOnce(&Node) -> bool) -> bool {
        self.tree.node(inode).is_ok_and(|node| may_block(&node))
    }

    fn attributes_may_block(&self, node: &Node) -> bool {
        match node {
            Node::Metadata(key, MetadataFile::Zarr) => self.tree.hierarchy().may_show_inline(key),
            Node::Metadata(_, file) => *file == MetadataFile::Consolidated,
            Node::Flat(key) => !self.tree.knows_stored_size(key),
            Node::Chunk(key, _) => self.has_objects(key),
            Node::Header(..) | Node::Dataset(..) | Node::ViewFile(..) => true,
            Node::Directory(key) => self.tree.is_described_to_list(key),
            _ => false,
        }
    }

    fn lookup_may_block(&self, parent: &Node, name: &str) -> bool {
        match parent {
            Node::ViewDirectory(..) => true,
            Node::Directory(_) if name == ZMETADATA || self.tree.is_header_name(name) => true,
            Node::Directory(key) if name == ZARR_JSON => self.tree.hierarchy().may_show_inline(key),
            Node::Directory(key) if name == FLAT => !self.tree.knows_stored_size(key),
            Node::Directory(key) if is_chunk_like(name) => self.has_objects(key),
            _ => false,
        }
    }

    fn list_may_block(&self, node: &Node, from: u64) -> bool {
        match node {
            Node::Directory(key) if self.has_objects(key) => true,
            Node::ViewDirectory(..) => from < FIXED_NAMES,
            Node::Directory(key) if from < FIXED_NAMES => {
                self.tree.shows_headers() || !self.tree.knows_stored_size(key)
            }
            _ => false,
        }
    }

    fn open_may_block(&self, node: &Node) -> bool {
        match node {
            Node::Flat(key) => {
                let array = self.tree.hierarchy().cached_array(key);
                array.is_some_and(|array| self.cache.served().may_block(&array))
            }
            Node::Control(file) => *file == ControlFile::Sync,
            _ => false,
        }
    }

    /// Returns whether the chunks of the array at `key` hold objects, so that their size is known
    /// only after decoding.
    fn has_objects(&self, key: &Key) -> bool {
        self.tree
            .hierarchy()
            .cached_array(key)
            .is_some_and(|array| array.metadata().has_objects())
    }
}
