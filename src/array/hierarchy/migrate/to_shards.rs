//! Copies a store of any version to a new one of v3 in which the chunks of arrays lie in shards, so
//! that it has fewer files. Encoded chunks are copied as they are.
//!
//! The new store is another one, since shards and chunks may have the same keys, and a program that
//! still reads the old documents would take chunks that moved for uninitialized ones. The document
//! of the root is put last, so that an interrupted copy is no store, and a copy may be repeated.

use super::super::values::ArchivedNodes;
use super::super::{DocumentFormat, Hierarchy};
use super::to_v3::MigratedNode;
use crate::array::{Array, ArrayEntry};
use std::collections::{BTreeSet, HashSet};
use std::fs::File;
use std::sync::Arc;
use zarrfs_base::error::{Error, ErrorContext, Result};
use zarrfs_base::memory::Grant;
use zarrfs_format::dtype::{DType, DTypeKind};
use zarrfs_format::metadata::v3::in_shards::document_in_shards;
use zarrfs_format::metadata::v3::node::NodeType;
use zarrfs_format::metadata::{ArrayMetadata, MAX_CONSOLIDATED, V1_ATTRS, V1_META, ZARR_JSON};
use zarrfs_store::{Key, Replaces, Store, StoreExt, ValuePiece, ValueStart};

/// Maximum decoded size of a shard whose shape is chosen, in bytes: large enough that a thousand
/// hold 64 GB, and small enough for one request and for the memory of a reader.
const SHARD_SIZE: u64 = 64 << 20;

/// Maximum number of chunks in a shard whose shape is chosen: an index of 1 MiB.
const SHARD_CHUNKS: u64 = 1 << 16;

/// The memory of an entry in a set of numbers, in bytes.
const SET_ENTRY: usize = 16;

/// The shape of shards.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShardShape {
    /// A shape that is chosen for each array: whole chunks of up to 64 MiB together. Arrays of raw
    /// bytes or of fields get no shards.
    Auto,
    /// The lengths for all arrays of as many dimensions, in items.
    Lengths(Vec<u64>),
}

impl ShardShape {
    /// Returns the shape of the shards of a new array with chunks of the shape `chunks`, in items;
    /// `None` if it gets none.
    pub fn lengths_for(&self, shape: &[u64], chunks: &[u64], dtype: &DType) -> Option<Vec<u64>> {
        let lengths = shape.iter().zip(chunks);
        let counts: Vec<u64> = lengths.map(|(len, chunk)| len.div_ceil(*chunk)).collect();
        if counts.iter().all(|count| *count < 2) {
            return None;
        }
        match self {
            ShardShape::Lengths(lengths) => {
                Some(lengths.clone()).filter(|n| n.len() == shape.len())
            }
            ShardShape::Auto if is_opaque(dtype) => None,
            ShardShape::Auto => {
                let size = chunks
                    .iter()
                    .fold(dtype.size() as u64, |n, len| n.saturating_mul(*len));
                in_items(&chunks_in_shard(&counts, size), chunks)
            }
        }
    }
}

/// The counts of a copy into shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShardedCopy {
    /// Number of arrays.
    pub arrays: u64,
    /// Number of arrays whose chunks are in shards now.
    pub sharded: u64,
    /// Number of their chunks.
    pub chunks: u64,
    /// Number of their shards.
    pub shards: u64,
}

/// The stores of a copy, and a file for encoded chunks until they are put.
struct ShardedCopying<'a> {
    from: &'a Hierarchy,
    to: Hierarchy,
    shape: &'a ShardShape,
    scratch: &'a File,
    copied: ShardedCopy,
    /// Number of bytes that were copied.
    bytes: u64,
    progress: &'a mut dyn FnMut(u64),
}

/// A node of the new store.
struct NewNode {
    document: Vec<u8>,
    /// The array in the old store, if its chunks move into shards.
    in_shards: Option<Arc<Array>>,
    is_array: bool,
    is_consolidated: bool,
}

impl Hierarchy {
    /// Copies all nodes and values to the empty store `target`, with chunks in shards. Arrays that
    /// have shards already, or a single chunk, or chunks of different lengths, keep their chunks.
    /// `scratch` is an empty file that can be written and read; `progress` is called with the
    /// number of bytes so far.
    ///
    /// Everything is checked before anything is put.
    ///
    /// # Errors
    ///
    /// A node has no form in v3, a shard would not consist of whole chunks, no array has as many
    /// dimensions as the shape of shards, or a store fails.
    pub fn copy_in_shards(
        &self,
        target: Arc<dyn Store>,
        shape: &ShardShape,
        scratch: &File,
        progress: &mut dyn FnMut(u64),
    ) -> Result<ShardedCopy> {
        let nodes = self.nodes_to_migrate(true)?;
        let mut copying = ShardedCopying {
            from: self,
            to: Hierarchy::new(target, self.v1_order, self.stats.clone()),
            shape,
            scratch,
            copied: ShardedCopy::default(),
            bytes: 0,
            progress,
        };
        let sharded = copying.check(&nodes.nodes)?;
        let archived = ArchivedNodes::of_keys(nodes.nodes.iter().map(|node| &node.key))?;
        copying.copy_other_values(&archived, &sharded)?;
        copying.copy_plain_documents(&nodes.nodes)?;
        for node in &nodes.nodes {
            if sharded.contains(&node.key) {
                copying.copy_chunks(node)?;
            }
        }
        for node in nodes.nodes.iter().rev() {
            copying.put_document(node)?;
        }
        copying.to.store.sync()?;
        Ok(copying.copied)
    }
}

impl ShardedCopying<'_> {
    /// Checks all nodes, and counts arrays. Returns the keys of arrays whose chunks move.
    fn check(&mut self, nodes: &[MigratedNode]) -> Result<HashSet<Key>> {
        let mut sharded = HashSet::new();
        for node in nodes {
            let new = self.new_node(node)?;
            self.copied.arrays += u64::from(new.is_array);
            if new.in_shards.is_some() {
                sharded.insert(node.key.clone());
            }
        }
        if sharded.is_empty()
            && let ShardShape::Lengths(lengths) = self.shape
        {
            let dimensions = lengths.len();
            let why = format!("--shards: no array of {dimensions} dimensions has several chunks");
            return Err(Error::invalid(why));
        }
        self.copied.sharded = sharded.len() as u64;
        Ok(sharded)
    }

    /// Returns a node of the new store, apart from its consolidated metadata.
    fn new_node(&self, node: &MigratedNode) -> Result<NewNode> {
        let document = node.key.join(ZARR_JSON);
        let text = if node.has_v3 {
            let stored = self.from.stored_within(&document, MAX_CONSOLIDATED)?;
            let stored = stored.ok_or_else(|| Error::not_found("went away").context(&document))?;
            stored.text
        } else {
            self.from.new_document(node)?
        };
        let found = self.from.v3_document(&node.key)?;
        let is_consolidated = node.is_consolidated
            || found.is_some_and(|found| {
                found.outline.is_consolidated && found.outline.node_type == NodeType::Group
            });
        let mut new = NewNode {
            document: text,
            in_shards: None,
            is_array: false,
            is_consolidated,
        };
        let Some(array) = self.from.usable_array(&node.key)? else {
            return Ok(new);
        };
        new.is_array = true;
        let shards = shard_shape(self.shape, &array).context(&node.key)?;
        if let Some(shards) = shards {
            array.readable()?;
            new.document = document_in_shards(&new.document, &shards).context(&node.key)?;
            new.in_shards = Some(array);
        }
        Ok(new)
    }

    /// Copies everything but documents and the chunks that move into shards.
    fn copy_other_values(&mut self, nodes: &ArchivedNodes, sharded: &HashSet<Key>) -> Result<()> {
        let from = self.from;
        // values of one array follow each other
        let mut last: Option<Arc<Array>> = None;
        from.visit_others(nodes, &mut |key| {
            let mut owner = key.parent();
            while !sharded.contains(&owner) && !owner.is_root() {
                owner = owner.parent();
            }
            if sharded.contains(&owner) {
                let array = match last.take().filter(|array| *array.key() == owner) {
                    Some(array) => array,
                    None => from
                        .find_array(&owner)?
                        .ok_or_else(|| Error::not_found("went away").context(&owner))?,
                };
                let path = key.relative_to(&owner).unwrap_or_default();
                let is_chunk = array.chunk_stored_at(path.as_str()).is_some();
                last = Some(array);
                if is_chunk {
                    return Ok(());
                }
            }
            self.copy_value(key)
        })
    }

    /// Copies the values at the root that have the names of documents of v1 and are plain files.
    fn copy_plain_documents(&mut self, nodes: &[MigratedNode]) -> Result<()> {
        let root = nodes.iter().find(|node| node.key.is_root());
        for name in [V1_META, V1_ATTRS] {
            if root.is_none_or(|root| !root.documents.contains(&name)) {
                self.copy_value(&Key::root().join(name))?;
            }
        }
        Ok(())
    }

    /// Copies a value under its key.
    fn copy_value(&mut self, key: &Key) -> Result<()> {
        let store = self.from.store();
        let Some(start) = ValueStart::read(store, key)? else {
            return Ok(());
        };
        let target = &self.to.store;
        let put = match start.whole() {
            Some(value) => {
                self.bytes += value.len() as u64;
                target.put(key, value).map(drop)
            }
            None => {
                let size = start.copy(store, key, self.scratch, 0)?.size;
                self.bytes += size;
                let value = [ValuePiece::File(self.scratch, 0..size)];
                target.put_pieces(key, &value, Replaces::Anything).map(drop)
            }
        };
        put.context(key)?;
        (self.progress)(self.bytes);
        Ok(())
    }

    /// Copies the chunks of an array into shards.
    fn copy_chunks(&mut self, node: &MigratedNode) -> Result<()> {
        let NewNode {
            document,
            in_shards: Some(old),
            ..
        } = self.new_node(node)?
        else {
            return Err(Error::invalid("was changed meanwhile").context(&node.key));
        };
        let metadata = ArrayMetadata::parse_v3(&document).context(&node.key)?;
        let new = Array::new(
            node.key.clone(),
            metadata,
            self.to.store.clone(),
            self.from.stats.clone(),
        )?;
        if !old.lists_all() {
            for number in 0..new.object_grid().chunk_count() {
                self.copy_shard(&old, &new, number)?;
            }
            return Ok(());
        }
        let mut numbers = BTreeSet::new();
        let mut memory = Grant::default();
        for entry in old.entries()? {
            match entry.context(&node.key)? {
                ArrayEntry::Chunk(chunk) => {
                    if let Some(number) = new.shard_of(chunk)
                        && numbers.insert(number)
                    {
                        memory.grow(SET_ENTRY)?;
                    }
                }
                ArrayEntry::Value(_) => {}
                ArrayEntry::Unlisted => {
                    let why = "some chunks can't be listed";
                    return Err(Error::damaged(why).context(&node.key));
                }
            }
        }
        for number in numbers {
            self.copy_shard(&old, &new, number)?;
        }
        Ok(())
    }

    /// Puts a shard with the stored ones of its chunks.
    fn copy_shard(&mut self, old: &Array, new: &Array, number: u64) -> Result<()> {
        let store = self.from.store();
        let together = ValueStart::together(store);
        let mut members = new.object_members(number).peekable();
        let mut chunks = Vec::new();
        let mut end = 0;
        while members.peek().is_some() {
            let batch: Vec<_> = members.by_ref().take(together).collect();
            let keys: Vec<Key> = batch.iter().map(|chunk| old.stored_key(*chunk)).collect();
            let starts = ValueStart::read_all(store, &keys)?;
            for ((chunk, key), start) in batch.iter().zip(&keys).zip(starts) {
                let Some(start) = start else {
                    continue;
                };
                let size = start.copy(store, key, self.scratch, end)?.size;
                if size == 0 {
                    return Err(Error::damaged("a chunk without bytes").context(key));
                }
                chunks.push((*chunk, end..end + size));
                end += size;
            }
        }
        if chunks.is_empty() {
            return Ok(());
        }
        new.put_new_shard(number, &chunks, self.scratch)?;
        self.copied.chunks += chunks.len() as u64;
        self.copied.shards += 1;
        self.bytes += end;
        (self.progress)(self.bytes);
        Ok(())
    }

    /// Puts the document of a node, whose members are complete.
    fn put_document(&self, node: &MigratedNode) -> Result<()> {
        let key = &node.key;
        let new = self.new_node(node)?;
        let mut text = new.document;
        if new.is_consolidated {
            text = self
                .to
                .with_consolidated(DocumentFormat::V3, key, Some(&text))?
                .0;
        }
        if key.is_root() {
            // after a power loss, the root's document must not exist without the other values
            self.to.store.sync()?;
        }
        let document = key.join(ZARR_JSON);
        self.to.store.put(&document, &text).context(document)?;
        Ok(())
    }
}

/// Returns the shape of the shards of an array, in items; `None` if its chunks stay as they are.
///
/// # Errors
///
/// [`Kind::Invalid`](zarrfs_base::error::Kind::Invalid) if a shard of the given shape does not
/// consist of whole chunks.
fn shard_shape(shape: &ShardShape, array: &Array) -> Result<Option<Vec<u64>>> {
    let metadata = array.metadata();
    let counts = array.grid().counts();
    if array.shard_count().is_some() || metadata.edges.is_some() || array.grid().chunk_count() < 2 {
        return Ok(None);
    }
    let in_shard = match shape {
        ShardShape::Lengths(lengths) if lengths.len() == counts.len() => {
            return Ok(Some(lengths.clone()));
        }
        ShardShape::Lengths(_) => return Ok(None),
        ShardShape::Auto if is_opaque(&metadata.dtype) => return Ok(None),
        ShardShape::Auto => chunks_in_shard(counts, array.grid().max_chunk_size() as u64),
    };
    Ok(in_items(&in_shard, &metadata.chunks))
}

/// Returns whether zarr-python 3.1 cannot read shards of such items.
fn is_opaque(dtype: &DType) -> bool {
    matches!(dtype.kind(), DTypeKind::Void | DTypeKind::Struct(_))
}

/// Returns the shape in items of a shard with `in_shard` chunks along each dimension; `None` if it
/// would hold one chunk.
fn in_items(in_shard: &[u64], chunks: &[u64]) -> Option<Vec<u64>> {
    let lengths = in_shard.iter().zip(chunks);
    let lengths: Option<Vec<u64>> = lengths.map(|(n, len)| n.checked_mul(*len)).collect();
    lengths.filter(|_| in_shard.iter().any(|n| *n > 1))
}

/// Returns the number of chunks of `size` bytes in a shard along each dimension. The shortest
/// dimension is doubled, the last one first, while the shard is small enough; none exceeds the
/// number of chunks in `counts`.
fn chunks_in_shard(counts: &[u64], size: u64) -> Vec<u64> {
    let mut in_shard = vec![1; counts.len()];
    let is_small = |in_shard: &[u64]| {
        let chunks = in_shard
            .iter()
            .fold(1, |n: u64, len| n.saturating_mul(*len));
        chunks <= SHARD_CHUNKS && chunks.saturating_mul(size) <= SHARD_SIZE
    };
    loop {
        let shortest = (0..counts.len())
            .rev()
            .filter(|d| in_shard[*d] < counts[*d])
            .min_by_key(|d| in_shard[*d]);
        let Some(d) = shortest else {
            return in_shard;
        };
        let len = in_shard[d];
        in_shard[d] = (2 * len).min(counts[d]);
        if !is_small(&in_shard) {
            in_shard[d] = len;
            return in_shard;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_shards_are_large_and_not_too_large() {
        for (counts, size, expected) in [
            (&[3, 2][..], 1, &[3, 2][..]),
            (&[1000], 1 << 20, &[64]),
            (&[1000, 1000], 1 << 20, &[8, 8]),
            (&[1000, 1000], 3 << 20, &[4, 4]),
            (&[1000, 1, 1000], 1 << 20, &[8, 1, 8]),
            (&[1000, 5, 1000], 1 << 20, &[4, 4, 4]),
            (&[1 << 40], 1, &[1 << 16]),
            (&[1000], 33 << 20, &[1]),
            (&[u64::MAX, u64::MAX], u64::MAX, &[1, 1]),
        ] {
            assert_eq!(chunks_in_shard(counts, size), expected, "{counts:?} {size}");
        }
    }
}
