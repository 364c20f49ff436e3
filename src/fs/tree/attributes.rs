//! Attributes: sizes, times and permissions of nodes. They come from the store. No chunk is read,
//! except chunks of objects, whose size is known only after decoding.

use super::access;
use super::node::{AttributesCost, ControlFile, Node};
use super::{FIXED_NAMES, FLAT, Tree};
use crate::array::{Array, LevelPermissions, is_chunk_like};
use crate::cache::ChunkPart;
use std::time::SystemTime;
use zarrfs_base::error::{Error, Result};
use zarrfs_format::grid::ChunkId;
use zarrfs_format::metadata::{ZARR_JSON, ZMETADATA};
use zarrfs_store::{Key, Permissions, Stat};

/// Preferred size of a read, in bytes: large enough that the cost of a request does not matter.
const BLOCK_SIZE: u32 = 1 << 20;
/// Preferred size of a read of a small file, in bytes.
const MIN_BLOCK_SIZE: u32 = 4096;

/// The attributes of a node, as stat(2) returns them.
#[derive(Clone, Debug)]
pub struct Attributes {
    /// Inode number: see [`Node::inode`].
    pub inode: u64,
    /// Whether the node is a directory rather than a regular file.
    pub is_directory: bool,
    /// Size in bytes.
    pub size: u64,
    /// Stored size in units of 512 bytes.
    pub blocks: u64,
    /// Modification time of the stored data.
    pub modified: SystemTime,
    /// When the stored data or its attributes have changed last.
    pub changed: SystemTime,
    /// Preferred size of a read or write in bytes.
    pub block_size: u32,
    /// The permissions of the stored files that the node is made of; `None` if the store has no
    /// modes.
    pub permissions: Option<Permissions>,
    /// Whether the node shows one stored value or prefix, and therefore its whole mode. Any other
    /// node shows what all its sources grant.
    pub is_stored: bool,
    /// Whether the kernel may keep the attributes for a second, until a file is opened. It may for
    /// directories, where only times can change, and for chunks, where only times and the stored
    /// size can.
    pub lasting: bool,
    /// Whether the file was removed while it is open.
    pub is_removed: bool,
}

impl Tree {
    /// Returns the attributes of a node.
    ///
    /// # Errors
    ///
    /// ESTALE if the node is gone: the kernel then looks its path up again.
    pub fn attributes(&self, node: &Node) -> Result<Attributes> {
        let _once = self.hierarchy.asked_once();
        if let Node::Value(key) | Node::Unreadable(key) = node {
            self.check_plain(node, key)?;
        }
        self.attributes_of_found(node)
    }

    /// Returns whether the attributes of a node may take a wait: for a listing, or for bytes that
    /// are decoded or generated.
    pub fn attributes_may_wait(&self, node: &Node) -> bool {
        match node.attributes_cost() {
            AttributesCost::Nothing => false,
            AttributesCost::StoredSize(key) => !self.knows_stored_size(key),
            AttributesCost::ChunkSizes(key) => self.has_objects(key),
            AttributesCost::Consolidated(key) => self.hierarchy.may_show_inline(key),
            AttributesCost::Description(key) => self.is_described_to_list(key),
            AttributesCost::Everything => true,
        }
    }

    /// Returns whether the lookup of a name in a directory may take a wait.
    pub fn lookup_may_wait(&self, parent: &Node, name: &str) -> bool {
        let Some(key) = parent.directory() else {
            return parent.view().is_some();
        };
        match name {
            _ if self.may_be_laid_out(parent) => true,
            ZMETADATA => true,
            _ if self.is_header_name(name) || self.may_be_ingested(name) => true,
            ZARR_JSON => self.hierarchy.may_show_inline(key),
            FLAT => !self.knows_stored_size(key),
            _ => is_chunk_like(name) && self.has_objects(key),
        }
    }

    /// Returns whether listing a directory from position `from` on, with the attributes, may take a
    /// wait.
    pub fn list_may_wait(&self, node: &Node, from: u64) -> bool {
        match node.directory() {
            _ if self.may_be_laid_out(node) => true,
            Some(key) if self.has_objects(key) => true,
            // `.` and `..` alone
            Some(key)
                if from == 0
                    && self.is_known_array(node)
                    && !self.live.knows(self.flat_inode(key)) =>
            {
                false
            }
            _ if from >= FIXED_NAMES => false,
            Some(key) => self.shows_headers() || !self.knows_stored_size(key),
            None => node.view().is_some(),
        }
    }

    /// Returns whether the chunks of the array at `key` hold objects, so that their size is known
    /// only after decoding.
    fn has_objects(&self, key: &Key) -> bool {
        let array = self.hierarchy.cached_array(key);
        array.is_some_and(|array| array.metadata().has_objects())
    }

    /// Returns the attributes of a node that was looked up just now.
    pub(super) fn attributes_of_found(&self, node: &Node) -> Result<Attributes> {
        match node {
            Node::Directory(key) | Node::Unreadable(key) => match self.find_stat(key)? {
                Some(stat) => Ok(self.directory_attributes(node, &stat)),
                None if self.is_layout_directory(key) => {
                    Ok(self.made(node, 0, 0, self.started, None))
                }
                None => Err(Error::stale()),
            },
            Node::Flat(key) => self.flat_attributes(node, key),
            Node::Chunk(key, name) => {
                let (array, chunk) = self.stored_chunk(key, name)?;
                let stat = array.stat_chunk(chunk)?.ok_or_else(Error::stale)?;
                let stat = array.restrict(chunk, stat, &mut LevelPermissions::default());
                let attributes = self.chunk_attributes(node, self.chunk_size(&array, chunk), &stat);
                Ok(Attributes {
                    lasting: !array.metadata().has_objects(),
                    ..attributes
                })
            }
            _ if node.is_composite() => self.composite_attributes(node),
            Node::ViewDirectory(key, view) => {
                self.viewed(key, view)?;
                let stat = self.stat(key)?;
                // the kernel does not know that the directory goes with the array
                Ok(Attributes {
                    lasting: false,
                    ..self.directory_attributes(node, &stat)
                })
            }
            Node::Metadata(key, file) => Ok(self.stored_attributes(
                node,
                &self.document_stat(key, *file)?.ok_or_else(Error::stale)?,
            )),
            Node::Value(key) => Ok(self.stored_attributes(node, &self.stat(key)?)),
            // opening it stores the writes of all users
            Node::Control(ControlFile::Sync) => {
                Ok(self.made(node, 0, 0, self.started, Some(Permissions::OWNER_ONLY)))
            }
            _ => Ok(self.made(node, 0, 0, self.started, None)),
        }
    }

    /// Returns the stat of a key, or `None` if nothing is stored there.
    pub fn find_stat(&self, key: &Key) -> Result<Option<Stat>> {
        self.hierarchy.stat(key)
    }

    /// Returns the stat of a key.
    ///
    /// # Errors
    ///
    /// ESTALE if nothing is stored there.
    pub fn stat(&self, key: &Key) -> Result<Stat> {
        self.find_stat(key)?.ok_or_else(Error::stale)
    }

    /// Returns the modification time of a key; the earliest time if nothing is stored there.
    pub(super) fn modified(&self, key: &Key) -> Result<SystemTime> {
        Ok(self
            .find_stat(key)?
            .map_or(SystemTime::UNIX_EPOCH, |stat| stat.modified))
    }

    fn flat_attributes(&self, node: &Node, key: &Key) -> Result<Attributes> {
        let array = self.array(key)?;
        // the document is missing while the directory is being removed
        let document = self.find_stat(&key.join(array.metadata_name()))?;
        let directory = self.stat(key)?;
        let stored = self.stored_sizes.of(&array);
        // creating, removing or replacing chunks by a rename changes the directory's time
        let modified = document
            .as_ref()
            .map_or(directory.modified, |d| d.modified.max(directory.modified));
        let modified = modified
            .max(stored.newest)
            .max(array.freshness().last_write());
        let changed = document.iter().map(Stat::changed);
        let changed = changed.fold(modified.max(directory.changed()), SystemTime::max);
        let permissions = access::of_flat(document.as_ref(), &directory);
        Ok(Attributes {
            changed,
            ..self.made(
                node,
                array.size(),
                stored.bytes.div_ceil(512),
                modified,
                permissions,
            )
        })
    }

    /// Returns the size of a decoded chunk in bytes. A chunk of objects has to be decoded; if that
    /// fails, its file shows as empty, and opening the file reports the error.
    fn chunk_size(&self, array: &Array, chunk: ChunkId) -> u64 {
        if !array.metadata().has_objects() {
            return array.grid().chunk_size(chunk) as u64;
        }
        let decoded = array
            .readable()
            .and_then(|()| self.cache.get(array, chunk, ChunkPart::Whole));
        decoded
            .ok()
            .flatten()
            .map_or(0, |decoded| decoded.bytes().len() as u64)
    }

    /// Returns the attributes of a file of `size` bytes that need not be stored yet. The caller
    /// sets the inode number. The block size is the same for any `size`, since the file may grow,
    /// and stdio writes in blocks of the size that it finds at the beginning.
    pub fn file_attributes(
        &self,
        size: u64,
        modified: SystemTime,
        permissions: Option<Permissions>,
    ) -> Attributes {
        let node = Node::Value(Key::root());
        Attributes {
            block_size: BLOCK_SIZE,
            ..self.made(&node, size, size.div_ceil(512), modified, permissions)
        }
    }

    /// Returns the attributes of a directory that was removed, or `None` for a file.
    pub fn removed_directory(&self, node: &Node) -> Option<Attributes> {
        node.is_directory().then(|| Attributes {
            is_removed: true,
            lasting: false,
            ..self.made(node, 0, 0, SystemTime::now(), None)
        })
    }

    /// Returns the attributes of a directory, or of a node that cannot be read.
    pub(super) fn directory_attributes(&self, node: &Node, stat: &Stat) -> Attributes {
        Attributes {
            changed: stat.changed(),
            ..self.made(node, 0, 0, stat.modified, stat.permissions)
        }
    }

    /// Returns the attributes of a file that is shown as it is stored.
    pub(super) fn stored_attributes(&self, node: &Node, stat: &Stat) -> Attributes {
        Attributes {
            changed: stat.changed(),
            ..self.made(
                node,
                stat.size,
                stat.size.div_ceil(512),
                stat.modified,
                stat.permissions,
            )
        }
    }

    /// Returns the attributes of a chunk of `size` decoded bytes.
    pub(super) fn chunk_attributes(&self, node: &Node, size: u64, stat: &Stat) -> Attributes {
        let attributes = self.made(
            node,
            size,
            stat.size.div_ceil(512),
            stat.modified,
            stat.permissions,
        );
        Attributes {
            changed: stat.changed(),
            lasting: true,
            ..attributes
        }
    }

    /// Builds the attributes of a node.
    pub(super) fn made(
        &self,
        node: &Node,
        size: u64,
        blocks: u64,
        modified: SystemTime,
        permissions: Option<Permissions>,
    ) -> Attributes {
        let is_directory = node.is_directory();
        // programs allocate a buffer of this size also for a small file
        let block_size = size
            .clamp(u64::from(MIN_BLOCK_SIZE), u64::from(BLOCK_SIZE))
            .next_power_of_two() as u32;
        let inode = node.inode();
        Attributes {
            inode,
            is_directory,
            size,
            blocks,
            modified,
            changed: modified,
            block_size,
            permissions,
            is_stored: node.is_stored(),
            lasting: is_directory,
            is_removed: false,
        }
    }
}
