//! What a name is in its directory: of one that is looked up, and of many that are listed, each with what `stat` tells.
//! Most names take one look at one key of the store; the rest go the long way.

use super::access::ChunkLevels;
use super::levels::is_level;
use super::target::is_partial;
use super::{Attributes, CONTROL, ControlFile, FLAT, Name, Node, Tree, has_flat, is_hidden, stale};
use crate::array::hierarchy::{MetadataFile, StoredNode};
use crate::array::{Array, is_chunk_like};
use crate::error::{Error, Result};
use crate::export::{DATASET, Format};
use crate::store::{EntryKind, Key, Permissions, Stat};
use crate::zarr::metadata::{Separator, ZARRAY, ZATTRS, ZGROUP, ZMETADATA};
use std::sync::Arc;
use std::time::SystemTime;

/// What a directory is while names are looked up in it.
pub enum DirectoryKind {
    /// An array, or None for a damaged one.
    Array(Key, Option<Arc<Array>>),
    /// A group.
    Group(Key),
    /// `.zarrfs`
    Control,
}

/// A name of a listing, and what a lookup would have found.
pub struct ListedNode {
    /// What it is.
    pub node: Node,
    /// As `stat` tells them.
    pub attributes: Attributes,
    /// False if the name must be looked up before it is used: looking at it failed.
    pub sound: bool,
}

impl Tree {
    /// What the directory `node` is now.
    pub fn directory(&self, node: &Node) -> Result<DirectoryKind> {
        match node {
            Node::Directory(key) => match self.hierarchy.find(key)? {
                Some(StoredNode::Array(array)) => Ok(DirectoryKind::Array(key.clone(), Some(array))),
                Some(StoredNode::Damaged(_)) => Ok(DirectoryKind::Array(key.clone(), None)),
                Some(StoredNode::Group) => Ok(DirectoryKind::Group(key.clone())),
                _ => Err(stale()),
            },
            Node::ControlDirectory => Ok(DirectoryKind::Control),
            _ => Err(Error::system(libc::ENOTDIR)),
        }
    }

    /// What `name` is in the directory `parent`, and what `stat` tells of it; None if there is no such name.
    pub fn lookup(&self, parent: &Node, name: &str) -> Result<Option<(Node, Attributes)>> {
        let level = self.directory(parent)?;
        if let Some(key) = telling_key(&level, name) {
            let stat = self.hierarchy.store().stat(&key).map_err(|e| e.context(&key))?;
            return Ok(stat.map(|stat| self.told(&level, name, &key, stat, &mut ChunkLevels::default())));
        }
        match self.find_by_level(&level, name) {
            // it went away since
            Err(e) if e.errno() == libc::ESTALE => Ok(None),
            found => found,
        }
    }

    /// What `name` is in a directory; None if there is no such name. Of a chunk only the name is looked at: its
    /// attributes tell whether it is there.
    pub(super) fn lookup_in(&self, level: &DirectoryKind, name: &str) -> Result<Option<Node>> {
        match level {
            DirectoryKind::Array(key, array) => self.lookup_in_array(key, array.as_deref(), name),
            DirectoryKind::Group(key) => self.lookup_in_group(key, name),
            DirectoryKind::Control => Ok(ControlFile::ALL.into_iter().find(|f| f.name() == name).map(Node::Control)),
        }
    }

    fn lookup_in_group(&self, key: &Key, name: &str) -> Result<Option<Node>> {
        let metadata = |file| Ok(self.known_document(key, file)?.map(|_| Node::Metadata(key.clone(), file)));
        match name {
            ZGROUP => return metadata(MetadataFile::Group),
            ZATTRS => return metadata(MetadataFile::Attributes),
            ZMETADATA => return metadata(MetadataFile::Consolidated),
            CONTROL if key.is_root() => return Ok(Some(Node::ControlDirectory)),
            DATASET if self.shows_dataset(key) => return Ok(Some(Node::Dataset(key.clone()))),
            _ => {}
        }
        let below = key.child(name)?;
        let stat = self.hierarchy.store().stat(&below).map_err(|e| e.context(&below))?;
        Ok(stat.map(|stat| group_node(below, stat.kind)))
    }

    /// `array` is None for a damaged one.
    fn lookup_in_array(&self, key: &Key, array: Option<&Array>, name: &str) -> Result<Option<Node>> {
        match name {
            ZARRAY => {
                let found = self.document(key, MetadataFile::Array)?;
                return Ok(found.map(|_| Node::Metadata(key.clone(), MetadataFile::Array)));
            }
            ZATTRS => {
                let found = self.known_document(key, MetadataFile::Attributes)?;
                return Ok(found.map(|_| Node::Metadata(key.clone(), MetadataFile::Attributes)));
            }
            CONTROL if key.is_root() => return Ok(Some(Node::ControlDirectory)),
            _ if is_hidden(array, name) => return Ok(None),
            FLAT if array.is_some_and(has_flat) => return Ok(Some(Node::Flat(key.clone()))),
            _ => {}
        }
        if let Some(format) = array.and_then(|array| self.format(array, name)) {
            return Ok(Some(Node::Header(key.clone(), format)));
        }
        let below = key.child(name)?;
        let level = array.is_some_and(|array| is_level(array, &below));
        if let Some(array) = array
            && is_chunk_like(name)
            && !level
        {
            let chunk = array.grid().parse_chunk_key(name, Separator::Dot);
            if chunk.is_some() || !is_partial(name) {
                return Ok(chunk.map(|_| Node::Chunk(key.clone(), name.to_string())));
            }
        }
        let stat = self.hierarchy.store().stat(&below).map_err(|e| e.context(&below))?;
        Ok(match stat.map(|s| s.kind) {
            Some(EntryKind::Prefix) if level => Some(Node::Directory(below)),
            Some(_) if level => None,
            None | Some(EntryKind::Prefix) => None,
            Some(EntryKind::Value) if !is_chunk_like(name) || is_partial(name) => Some(Node::Value(below)),
            Some(_) => Some(Node::Unreadable(below)),
        })
    }

    /// The node of a name whose [`telling_key`] holds `stat`, and its attributes.
    fn told(
        &self,
        level: &DirectoryKind,
        name: &str,
        key: &Key,
        stat: Stat,
        levels: &mut ChunkLevels,
    ) -> (Node, Attributes) {
        let node = match level {
            DirectoryKind::Array(key, _) => Node::Chunk(key.clone(), name.to_string()),
            DirectoryKind::Group(key) => group_node(key.join(name), stat.kind),
            DirectoryKind::Control => Node::ControlDirectory,
        };
        let attributes = match (level, &node) {
            (DirectoryKind::Array(_, Some(array)), _) => {
                let stat = self.below_levels(array, key, stat, levels);
                self.of_chunk(&node, array.grid().chunk_size() as u64, &stat)
            }
            (_, Node::Value(_)) => {
                self.plain(&node, stat.size, stat.size.div_ceil(512), stat.modified, stat.permissions)
            }
            _ => self.plain(&node, 0, 0, stat.modified, stat.permissions),
        };
        (node, attributes)
    }

    /// What lookups of names that were listed just now would find; None for one that is gone.
    pub fn listed(&self, level: &DirectoryKind, names: &[Name]) -> Vec<Option<ListedNode>> {
        let keys: Vec<Option<Key>> = names.iter().map(|name| telling_key(level, &name.name)).collect();
        let mut stats = Vec::with_capacity(names.len());
        self.hierarchy.store().stat_many(&mut keys.iter().flatten().cloned(), &mut |stat| {
            stats.push(stat);
            true
        });
        let (mut stats, mut levels) = (stats.into_iter(), ChunkLevels::default());
        let mut found = |name: &Name, key: Option<Key>| match key {
            Some(key) => {
                let stat = stats.next().transpose()?.flatten();
                Ok(stat.map(|stat| self.told(level, &name.name, &key, stat, &mut levels)))
            }
            None => self.find_by_level(level, &name.name),
        };
        let listed = names.iter().zip(keys).map(|(name, key)| match found(name, key) {
            Ok(found) => found.map(|(node, attributes)| ListedNode { node, attributes, sound: true }),
            Err(_) => self.unsound(level, name),
        });
        listed.collect()
    }

    /// Of `.` and `..` nobody wants more than the inode number.
    pub fn dots(&self, name: &Name) -> ListedNode {
        let node = Node::Directory(Key::root());
        let attributes = Attributes { inode: name.inode, ..self.plain(&node, 0, 0, self.started, None) };
        ListedNode { node, attributes, sound: true }
    }

    fn find_by_level(&self, level: &DirectoryKind, name: &str) -> Result<Option<(Node, Attributes)>> {
        if let Some((key, file)) = metadata_file(level, name) {
            // it is made once for both answers
            let known = self.known_document(key, file)?;
            let node = Node::Metadata(key.clone(), file);
            return Ok(known.map(|known| self.of_document(&node, &known)).map(|attributes| (node, attributes)));
        }
        let Some(node) = self.lookup_in(level, name)? else { return Ok(None) };
        let attributes = self.attributes_of_found(&node)?;
        Ok(Some((node, attributes)))
    }

    /// A name that can't be looked at is listed all the same; whoever uses it is told why.
    fn unsound(&self, level: &DirectoryKind, name: &Name) -> Option<ListedNode> {
        let (key, size) = match level {
            DirectoryKind::Array(key, array) => (key, array.as_ref().map_or(0, |a| a.grid().chunk_size() as u64)),
            DirectoryKind::Group(key) => (key, 0),
            DirectoryKind::Control => return None,
        };
        let node = match level {
            DirectoryKind::Array(..) if telling_key(level, &name.name).is_some() => {
                Node::Chunk(key.clone(), name.name.clone())
            }
            _ if name.is_directory => Node::Directory(key.join(&name.name)),
            _ => Node::Unreadable(key.join(&name.name)),
        };
        let attributes = self.plain(&node, size, 0, SystemTime::UNIX_EPOCH, Some(Permissions::OWNER_ONLY));
        Some(ListedNode { node, attributes, sound: false })
    }
}

impl DirectoryKind {
    /// Returns whether the attributes of a listed name may take decoding a chunk or reading the whole hierarchy, so that
    /// a listing should not look them up early.
    pub fn is_costly(&self, name: &str) -> bool {
        match self {
            DirectoryKind::Array(_, Some(array)) => array.metadata().has_objects() && is_chunk_like(name),
            // coordinates are read for a header
            DirectoryKind::Array(..) => Format::of_name(name).is_some_and(|format| format != Format::Npy),
            DirectoryKind::Group(_) => name == ZMETADATA || name == DATASET,
            _ => false,
        }
    }
}

/// The key that tells all of a name: of a chunk whose size the grid knows, and of what is no metadata in a group. None
/// for the other names.
fn telling_key(level: &DirectoryKind, name: &str) -> Option<Key> {
    match level {
        DirectoryKind::Array(_, Some(array)) if !array.metadata().has_objects() => {
            Some(array.chunk_key(array.grid().parse_chunk_key(name, Separator::Dot)?))
        }
        DirectoryKind::Group(_) if [ZGROUP, ZATTRS, ZMETADATA, DATASET].contains(&name) => None,
        DirectoryKind::Group(key) if key.is_root() && name == CONTROL => None,
        DirectoryKind::Group(key) => key.child(name).ok(),
        _ => None,
    }
}

/// The metadata document that `name` is, and whose.
fn metadata_file<'a>(level: &'a DirectoryKind, name: &str) -> Option<(&'a Key, MetadataFile)> {
    let (key, files): (_, &[MetadataFile]) = match level {
        DirectoryKind::Array(key, _) => (key, &[MetadataFile::Array, MetadataFile::Attributes]),
        DirectoryKind::Group(key) => {
            (key, &[MetadataFile::Group, MetadataFile::Attributes, MetadataFile::Consolidated])
        }
        DirectoryKind::Control => return None,
    };
    files.iter().find(|file| file.name() == name).map(|file| (key, *file))
}

/// What stands at a key below a group. Whether a directory is an array doesn't matter here.
fn group_node(key: Key, kind: EntryKind) -> Node {
    match kind {
        EntryKind::Prefix => Node::Directory(key),
        EntryKind::Value => Node::Value(key),
        EntryKind::Other => Node::Unreadable(key),
    }
}
