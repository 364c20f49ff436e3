//! The values of a store in the order in which an archive holds them: the documents of all groups
//! and arrays, breadth-first, then everything else. Readers of the archive find the hierarchy
//! without a look at the chunks.

use super::{DOCUMENTS, Hierarchy, NodeUse, OWN, REMOVED, too_much};
use std::collections::HashSet;
use std::vec::IntoIter;
use zarrfs_base::error::{Error, ErrorContext, Kind, Result};
use zarrfs_base::memory::Grant;
use zarrfs_format::grid::ChunkId;
use zarrfs_format::metadata::{V1_ATTRS, V1_META, ZARR_JSON};
use zarrfs_store::{Entry, EntryKind, Key, MAX_DEPTH, StoreExt};

/// The allocator's overhead for each allocation, in bytes.
const ALLOCATION: usize = 16;

/// The groups and arrays of a store, whose documents are visited before other values.
#[derive(Default)]
pub(super) struct ArchivedNodes {
    keys: Vec<Key>,
    memory: Grant,
}

/// A name of a level.
struct LevelName {
    name: Box<str>,
    has_value: bool,
    is_prefix: bool,
}

/// The names of a level that are not visited yet, in their order.
struct SortedLevel {
    prefix: Key,
    names: IntoIter<LevelName>,
    _memory: Grant,
}

impl ArchivedNodes {
    /// Returns the nodes with these keys.
    pub fn of_keys<'a>(keys: impl Iterator<Item = &'a Key>) -> Result<Self> {
        let mut nodes = Self::default();
        for key in keys {
            nodes.push(key)?;
        }
        Ok(nodes)
    }

    fn push(&mut self, key: &Key) -> Result<()> {
        // the key is in a list and in a set
        let memory = 2 * size_of::<Key>() + key.as_str().len() + ALLOCATION;
        self.memory.grow(2 * memory)?;
        self.keys.push(key.clone());
        Ok(())
    }
}

impl Hierarchy {
    /// Calls `each` with the key of each value of the store: first of the `zarr.json` of groups and
    /// arrays, then of their other documents, then of chunks and plain values. Values of zarrfs
    /// itself are left out. If the store cannot list, the keys of all chunks are visited, also of
    /// those that are uninitialized, and no plain values.
    ///
    /// # Errors
    ///
    /// The first error of `each` or of the store. If it cannot list, also that of a document that
    /// describes no group or array, whose chunks are unknown.
    pub fn visit_values(&self, each: &mut dyn FnMut(&Key) -> Result<()>) -> Result<()> {
        let nodes = self.nodes_to_archive()?;
        for is_of_v3 in [true, false] {
            for node in &nodes.keys {
                for name in documents_of(node).filter(|name| (*name == ZARR_JSON) == is_of_v3) {
                    let document = node.join(name);
                    if self
                        .stat(&document)?
                        .is_some_and(|stat| stat.kind == EntryKind::Value)
                    {
                        each(&document)?;
                    }
                }
            }
        }
        self.visit_others(&nodes, each)
    }

    /// Visits all values but the documents of `nodes`, as [`Hierarchy::visit_values`] does.
    pub(super) fn visit_others(
        &self,
        nodes: &ArchivedNodes,
        each: &mut dyn FnMut(&Key) -> Result<()>,
    ) -> Result<()> {
        if self.store.lists_all() {
            self.visit_other_values(nodes, each)
        } else {
            self.visit_chunk_keys(nodes, each)
        }
    }

    /// Returns all groups and arrays, breadth-first and in the order of their names.
    fn nodes_to_archive(&self) -> Result<ArchivedNodes> {
        let mut found = ArchivedNodes::default();
        let used = if self.store.lists_all() {
            NodeUse::Description
        } else {
            NodeUse::Chunks
        };
        self.visit_below(&Key::root(), used, &mut |key, node| {
            if !node.is_directory() {
                return Ok(());
            }
            // the bytes of documents and chunks are copied, whatever they mean
            if let Err(e) = node.usable()
                && !(self.store.lists_all()
                    && matches!(e.kind(), Kind::Damaged | Kind::Unsupported))
            {
                return Err(e);
            }
            found.push(key)
        })?;
        // the sort keeps the order of names within a level
        found.keys.sort_by_key(Key::depth);
        Ok(found)
    }

    /// Visits all values but the documents of `nodes`, level by level.
    fn visit_other_values(
        &self,
        nodes: &ArchivedNodes,
        each: &mut dyn FnMut(&Key) -> Result<()>,
    ) -> Result<()> {
        let keys: HashSet<&Key> = nodes.keys.iter().collect();
        let mut levels = vec![self.sorted_level(Key::root())?];
        while let Some(level) = levels.last_mut() {
            let Some(found) = level.names.next() else {
                levels.pop();
                continue;
            };
            let is_document = keys.contains(&level.prefix)
                && documents_of(&level.prefix).any(|name| name == &*found.name);
            let key = level.prefix.join(&found.name);
            if found.has_value && !is_document {
                each(&key)?;
            }
            if found.is_prefix {
                levels.push(self.sorted_level(key)?);
            }
        }
        Ok(())
    }

    /// Lists one level, without the values of zarrfs.
    fn sorted_level(&self, prefix: Key) -> Result<SortedLevel> {
        if prefix.depth() > Key::MAX_LEVELS {
            return Err(
                too_much(format!("lies more than {MAX_DEPTH} levels below an array"))
                    .context(prefix),
            );
        }
        let mut names = Vec::new();
        let mut memory = Grant::default();
        for entry in self.store.list(&prefix).context(&prefix)? {
            let entry = entry.context(&prefix)?;
            if entry.name.starts_with(OWN) {
                continue;
            }
            let key = prefix.child(&entry.name)?;
            let kind = self.kind_of_entry(&key, &entry)?;
            memory
                .grow(size_of::<LevelName>() + entry.name.len() + ALLOCATION)
                .context(&prefix)?;
            names.push(LevelName {
                has_value: kind == EntryKind::Value,
                is_prefix: kind == EntryKind::Prefix || entry.hides_prefix,
                name: entry.name.into(),
            });
        }
        names.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(SortedLevel {
            prefix,
            names: names.into_iter(),
            _memory: memory,
        })
    }

    /// Returns whether an entry is a value or a prefix, or leads to one.
    fn kind_of_entry(&self, key: &Key, entry: &Entry) -> Result<EntryKind> {
        if entry.kind != EntryKind::Other {
            return Ok(entry.kind);
        }
        match self.stat(key)? {
            Some(stat) if stat.kind != EntryKind::Other => Ok(stat.kind),
            _ => Err(Error::invalid("neither a file nor a directory; remove it").context(key)),
        }
    }

    /// Visits the keys of all chunks that the arrays among `nodes` may have.
    fn visit_chunk_keys(
        &self,
        nodes: &ArchivedNodes,
        each: &mut dyn FnMut(&Key) -> Result<()>,
    ) -> Result<()> {
        for node in &nodes.keys {
            let Some(array) = self.find_array(node)? else {
                continue;
            };
            let grid = array.object_grid();
            for object in (0..grid.chunk_count()).map(ChunkId) {
                each(&node.join(&grid.stored_key(object, array.key_encoding())))?;
            }
        }
        Ok(())
    }
}

/// Returns the names of the documents that a group or array at `node` may have.
fn documents_of(node: &Key) -> impl Iterator<Item = &'static str> {
    let is_root = node.is_root();
    DOCUMENTS
        .into_iter()
        .filter(move |name| *name != REMOVED && (is_root || ![V1_META, V1_ATTRS].contains(name)))
}
