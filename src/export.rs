//! Arrays and groups as `zarrfs_export` reads them: found in the hierarchy, their chunks in the
//! cache. This module must not know the formats of other programs.

use crate::array::Array;
use crate::array::hierarchy::{Hierarchy, NodeUse, StoredNode};
use crate::cache::{Cache, ChunkPart};
use std::sync::Arc;
use zarrfs_base::error::Result;
use zarrfs_base::json::Object;
use zarrfs_base::memory::Grant;
use zarrfs_export::{ArrayNode, ChunkBytes, ChunkReader, HierarchyNode, HierarchyReader};
use zarrfs_format::fill_value::FillMeaning;
use zarrfs_format::grid::ChunkId;
use zarrfs_store::Key;

/// A hierarchy whose chunks are read through a cache.
#[derive(Clone, Copy)]
pub struct CachedHierarchy<'a> {
    /// The groups and arrays.
    pub hierarchy: &'a Hierarchy,
    /// The cache of their chunks.
    pub cache: &'a Arc<Cache>,
    /// What is called with the key of each group and array when its documents were read.
    pub seen: Option<&'a dyn Fn(&Key)>,
}

/// The chunks of an array.
struct CachedChunks {
    array: Arc<Array>,
    cache: Arc<Cache>,
}

impl CachedHierarchy<'_> {
    /// Returns an array of the hierarchy as it was found.
    pub fn array(&self, array: Arc<Array>) -> ArrayNode {
        ArrayNode {
            key: array.key().clone(),
            metadata: array.shared_metadata(),
            is_remote: array.is_remote(),
            readable: array.readable(),
            chunks: Arc::new(CachedChunks {
                array,
                cache: self.cache.clone(),
            }),
            part_of: None,
        }
    }

    /// Returns a group or array; `None` for anything else.
    fn node(&self, node: &StoredNode) -> Option<HierarchyNode> {
        match node {
            StoredNode::Array(array) => Some(HierarchyNode::Array(self.array(array.clone()))),
            StoredNode::Damaged(e) => Some(HierarchyNode::Damaged(e.clone())),
            StoredNode::Group => Some(HierarchyNode::Group),
            StoredNode::Value | StoredNode::Other => None,
        }
    }
}

impl HierarchyReader for CachedHierarchy<'_> {
    fn find(&self, key: &Key) -> Result<Option<HierarchyNode>> {
        let found = self.hierarchy.find(key)?;
        Ok(found.and_then(|node| self.node(&node)))
    }

    fn find_array(&self, key: &Key) -> Result<Option<ArrayNode>> {
        let found = self.hierarchy.find_array(key)?;
        Ok(found.map(|array| self.array(array)))
    }

    fn attributes(&self, key: &Key) -> Result<Object> {
        let attributes = self.hierarchy.attributes(key)?;
        if let Some(seen) = self.seen {
            seen(key);
        }
        Ok(attributes)
    }

    fn children(&self, key: &Key) -> Result<(Vec<Key>, Grant)> {
        let mut below = self.hierarchy.prefixes(key)?;
        below.keys.reverse();
        Ok((below.keys, below.memory))
    }

    fn visit_below(
        &self,
        key: &Key,
        visit: &mut dyn FnMut(&Key, HierarchyNode) -> Result<()>,
    ) -> Result<()> {
        let mut visit_node = |key: &Key, node: &StoredNode| match self.node(node) {
            Some(node) => visit(key, node),
            None => Ok(()),
        };
        self.hierarchy
            .visit_below(key, NodeUse::Description, &mut visit_node)
    }

    fn ancestors(&self, key: &Key) -> Vec<Key> {
        self.hierarchy.upwards(key).skip(1).collect()
    }

    fn document(&self, key: &Key) -> Result<Option<Box<dyn AsRef<[u8]>>>> {
        let document = self.hierarchy.stored(key)?;
        Ok(document.map(|document| Box::new(document) as Box<dyn AsRef<[u8]>>))
    }

    fn fill_meaning(&self, array: &ArrayNode) -> FillMeaning {
        self.hierarchy.fill_meaning(&array.key, &array.metadata)
    }
}

impl ChunkReader for CachedChunks {
    fn open(&self) -> Result<()> {
        // an array that was found to be described may lack its separator
        self.array.detect_separator()?;
        self.array.readable()?;
        self.array.freshness().begin_opening();
        Ok(())
    }

    fn read(&self, chunk: ChunkId) -> Result<Option<ChunkBytes>> {
        let part = self.cache.get(&self.array, chunk, ChunkPart::Whole)?;
        Ok(part.map(|part| Box::new(part) as ChunkBytes))
    }
}
