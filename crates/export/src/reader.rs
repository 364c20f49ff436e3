//! The groups and arrays from which files for other programs are made. The crate reaches them
//! through [`HierarchyReader`] and [`ChunkReader`] alone, so that it knows neither stores nor
//! caches.

use std::sync::Arc;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::json::Object;
use zarrfs_base::key::Key;
use zarrfs_base::memory::Grant;
use zarrfs_format::fill_value::FillMeaning;
use zarrfs_format::grid::{ChunkId, Grid};
use zarrfs_format::metadata::ArrayMetadata;

/// A group or an array.
pub enum HierarchyNode {
    /// An array with usable metadata; its codecs may still be unknown.
    Array(ArrayNode),
    /// An array whose metadata cannot be used, and the reason.
    Damaged(Error),
    /// A group.
    Group,
}

/// An array as it was found.
#[derive(Clone)]
pub struct ArrayNode {
    /// The key of the array.
    pub key: Key,
    /// The metadata with which the chunks are decoded.
    pub metadata: Arc<ArrayMetadata>,
    /// Whether each request for a chunk takes a round trip.
    pub is_remote: bool,
    /// Why no chunk can be decoded: a codec is unknown or has invalid parameters.
    pub readable: Result<()>,
    /// The chunks.
    pub chunks: Arc<dyn ChunkReader>,
    /// The array of which this one is a part, if it is shown as an array of its own.
    pub part_of: Option<Arc<ArrayNode>>,
}

impl ArrayNode {
    /// Returns the size of the flat array in bytes.
    pub fn size(&self) -> u64 {
        self.metadata.flat_size()
    }

    /// Returns the array of which this one is a part, or the array itself.
    pub fn whole(&self) -> &ArrayNode {
        self.part_of.as_deref().unwrap_or(self)
    }

    /// Returns the chunk grid.
    ///
    /// # Errors
    ///
    /// The shapes contradict each other, which no document that was accepted states.
    pub fn grid(&self) -> Result<Grid> {
        self.metadata.grid(&self.metadata.shape)
    }
}

/// The decoded bytes of a chunk.
pub type ChunkBytes = Box<dyn AsRef<[u8]>>;

/// The chunks of an array.
pub trait ChunkReader: Send + Sync {
    /// Prepares for reading: chunks that were read before are compared with the stored ones, since
    /// another process may have changed the store.
    ///
    /// # Errors
    ///
    /// The chunks cannot be decoded, or the place of their keys cannot be found out.
    fn open(&self) -> Result<()>;

    /// Returns a chunk in C layout; `None` if it is uninitialized. The caller holds no other chunk.
    ///
    /// # Errors
    ///
    /// The chunk cannot be read or decoded, or there is no memory for it.
    fn read(&self, chunk: ChunkId) -> Result<Option<ChunkBytes>>;
}

/// The groups and arrays of a hierarchy. Each call looks at the store again.
pub trait HierarchyReader {
    /// Returns the group or array at `key`; `None` if there is neither.
    ///
    /// # Errors
    ///
    /// The store fails.
    fn find(&self, key: &Key) -> Result<Option<HierarchyNode>>;

    /// Returns the array at `key`, if there is one with usable metadata. Looks up nothing else.
    ///
    /// # Errors
    ///
    /// The store fails.
    fn find_array(&self, key: &Key) -> Result<Option<ArrayNode>>;

    /// Returns the attributes of a group or array. They are empty if no document has any.
    ///
    /// # Errors
    ///
    /// The store fails to return the document.
    fn attributes(&self, key: &Key) -> Result<Object>;

    /// Returns the keys one level below a group that may be groups or arrays, in the order of their
    /// names, with a grant for their memory.
    ///
    /// # Errors
    ///
    /// The store fails, the group has too many names, or there is no memory for them.
    fn children(&self, key: &Key) -> Result<(Vec<Key>, Grant)>;

    /// Calls `visit` for `key` and for every group and array below it, in the order of their names.
    /// A node that cannot be read is visited as damaged.
    ///
    /// # Errors
    ///
    /// The first error of `visit`, which ends the traversal.
    fn visit_below(
        &self,
        key: &Key,
        visit: &mut dyn FnMut(&Key, HierarchyNode) -> Result<()>,
    ) -> Result<()>;

    /// Returns the keys above `key`, nearest first, up to the root of its store.
    fn ancestors(&self, key: &Key) -> Vec<Key>;

    /// Returns the bytes of the metadata document at `key` as stored, if there is one.
    ///
    /// # Errors
    ///
    /// The store fails to return the document, or it is too large.
    fn document(&self, key: &Key) -> Result<Option<Box<dyn AsRef<[u8]>>>>;

    /// Returns what the fill value of an array stands for.
    fn fill_meaning(&self, array: &ArrayNode) -> FillMeaning;
}
