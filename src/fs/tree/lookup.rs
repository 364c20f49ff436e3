//! Finds the nodes and attributes of names in a directory: of one name that is looked up, or of
//! many that are listed. Most names need one stat of one key; the others need the rules of their
//! directory.

use super::levels::{is_key_like, is_level_name, is_partial};
use super::names::{ARRAY_FILES, GROUP_FILES};
use super::{
    Attributes, CONTROL, ControlFile, FLAT, Name, Node, ROOT_INODE, Tree, View, chunk_named,
    has_flat, is_hidden,
};
use crate::array::hierarchy::MetadataFile;
use crate::array::{Array, LevelPermissions, is_chunk_like};
use std::sync::Arc;
use std::time::SystemTime;
use zarrfs_base::error::{Error, Kind, Result};
use zarrfs_export::{Format, GroupFormat};
use zarrfs_format::grid::ChunkId;
use zarrfs_format::metadata::{ZARR_JSON, ZATTRS, ZGROUP, ZMETADATA};
use zarrfs_store::{EntryKind, Key, Permissions, Stat};

/// The kind of a directory in which names are looked up.
pub enum DirectoryKind {
    /// An array; `None` if it is damaged, or for a level of its chunk keys.
    Array(Key, Option<Arc<Array>>),
    /// A group.
    Group(Key),
    /// A view of an array.
    View(Key, View),
    /// `.zarrfs`
    Control,
}

/// The node and the attributes of a listed name, as a lookup would return them.
pub struct ListedNode {
    /// The node.
    pub node: Node,
    /// Its attributes.
    pub attributes: Attributes,
    /// Whether no error occurred. After an error, the name must be looked up before it is used.
    pub sound: bool,
}

impl Tree {
    /// Returns the current kind of the directory `node`.
    pub fn directory(&self, node: &Node) -> Result<DirectoryKind> {
        let Some(key) = node.directory() else {
            return match node.view() {
                _ if !node.is_directory() => Err(Error::system(libc::ENOTDIR)),
                Some((key, view)) => {
                    self.viewed(key, view)?;
                    Ok(DirectoryKind::View(key.clone(), view.clone()))
                }
                None => Ok(DirectoryKind::Control),
            };
        };
        let Some(found) = self.hierarchy.find(key)? else {
            return self
                .is_layout_directory(key)
                .then(|| DirectoryKind::Group(key.clone()))
                .ok_or_else(Error::stale);
        };
        if found.is_array() || found.is_group() && self.damage_above(key).is_some() {
            Ok(DirectoryKind::Array(key.clone(), found.array()))
        } else if found.is_group() {
            Ok(DirectoryKind::Group(key.clone()))
        } else {
            Err(Error::stale())
        }
    }

    /// Looks up `name` in the directory `parent`, with its attributes. Returns `None` if there is
    /// no such name.
    pub fn lookup(&self, parent: &Node, name: &str) -> Result<Option<(Node, Attributes)>> {
        if name == CONTROL && self.inode(parent) == ROOT_INODE {
            // send no request, since a server may not answer
            let node = Node::ControlDirectory;
            let attributes = self.attributes_of_found(&node)?;
            return Ok(Some((node, attributes)));
        }
        let _once = self.hierarchy.asked_once();
        let directory = self.directory(parent)?;
        if let Some(value) = self.single_value(&directory, name) {
            let stat = match &value {
                SingleValue::Chunk(array, chunk) => array.stat_chunk(*chunk)?,
                SingleValue::Key(key) => self.node_stat(key)?,
            };
            let mut levels = LevelPermissions::default();
            return Ok(
                stat.map(|stat| self.node_of_stat(&directory, name, &value, stat, &mut levels))
            );
        }
        match self.lookup_by_rules(&directory, name) {
            // the file was removed meanwhile
            Err(e) if e.errno() == libc::ESTALE => Ok(None),
            found => found,
        }
    }

    /// Looks up `name` in a directory. The name of a chunk is accepted if it lies in the grid; only
    /// its attributes show whether the chunk is stored.
    pub(super) fn lookup_in(&self, directory: &DirectoryKind, name: &str) -> Result<Option<Node>> {
        if let Some((key, file)) = metadata_file(directory, name) {
            let stat = self.document_stat(key, file)?;
            return Ok(stat.map(|_| Node::Metadata(key.clone(), file)));
        }
        let of_layout = directory
            .path()
            .and_then(|path| self.layout_node(path, name));
        if let Some(node @ Node::LayoutFile(..)) = of_layout {
            return Ok(Some(node));
        }
        let found = match directory {
            DirectoryKind::Array(key, array) => self.lookup_in_array(key, array.as_deref(), name),
            DirectoryKind::Group(key) => self.lookup_in_group(key, name),
            DirectoryKind::View(key, view) => self.lookup_in_view(key, view, name),
            DirectoryKind::Control => Ok(ControlFile::ALL
                .into_iter()
                .find(|f| f.name() == name)
                .map(Node::Control)),
        };
        Ok(found?.or(of_layout))
    }

    fn lookup_in_group(&self, key: &Key, name: &str) -> Result<Option<Node>> {
        if name == CONTROL && key.is_root() {
            return Ok(Some(Node::ControlDirectory));
        }
        if let Some(format) = self.group_format(key, name) {
            return Ok(Some(Node::Dataset(key.clone(), format)));
        }
        let below = key.child(name)?;
        match self.node_stat(&below)? {
            Some(stat) => Ok(Some(group_node(below, stat.kind))),
            None if self.ingested(&below)?.is_some() => Ok(Some(Node::Ingested(below))),
            None => self.view_in(key, name),
        }
    }

    /// Returns the stat of a key in a group, with the kind of its node.
    fn node_stat(&self, key: &Key) -> Result<Option<Stat>> {
        let Some(stat) = self.find_stat(key)? else {
            return Ok(None);
        };
        Ok(Some(Stat {
            kind: self.hierarchy.node_kind(key, stat.kind)?,
            ..stat
        }))
    }

    /// Looks up a name in an array's directory; `array` is `None` if the array is damaged.
    fn lookup_in_array(
        &self,
        key: &Key,
        array: Option<&Array>,
        name: &str,
    ) -> Result<Option<Node>> {
        match name {
            CONTROL if key.is_root() => return Ok(Some(Node::ControlDirectory)),
            _ if is_hidden(array, name) => return Ok(None),
            FLAT if array.is_some_and(has_flat) => return Ok(Some(Node::Flat(key.clone()))),
            _ => {}
        }
        if let Some(format) = array.and_then(|array| self.format(array, name)) {
            return Ok(Some(Node::Header(key.clone(), format)));
        }
        if let Some(format) = array.and_then(|_| self.array_as_group(key, name)) {
            return Ok(Some(Node::Dataset(key.clone(), format)));
        }
        let below = key.child(name)?;
        let level = array.is_some_and(|array| array.is_chunk_level(&below));
        if let Some(array) = array
            && is_chunk_like(name)
            && !level
        {
            let is_inside = chunk_named(array, name).is_some();
            if is_inside || !is_partial(name) {
                let exists = is_inside || self.hierarchy.chunk_outside(array, name)?.is_some();
                return Ok(exists.then(|| Node::Chunk(key.clone(), name.to_string())));
            }
        }
        let stat = self.find_stat(&below)?;
        let may_be_key = array.is_none() && is_key_like(name);
        Ok(match stat.map(|s| s.kind) {
            Some(EntryKind::Value) if may_be_key => Some(Node::Unreadable(below)),
            Some(EntryKind::Prefix) if may_be_key && is_level_name(name) => {
                Some(Node::Directory(below))
            }
            _ if may_be_key => return Err(self.unreadable(&below)),
            None | Some(EntryKind::Prefix) if array.is_none() => return self.unknown_name(key),
            None if key.is_root() => return self.view_in(key, name),
            Some(EntryKind::Prefix) if level => Some(Node::Directory(below)),
            Some(_) if level => None,
            None | Some(EntryKind::Prefix) => None,
            Some(EntryKind::Value) if !is_chunk_like(name) || is_partial(name) => {
                Some(Node::Value(below))
            }
            Some(_) => Some(Node::Unreadable(below)),
        })
    }

    /// Returns `None`, since the damaged array at `key` does not show the name.
    ///
    /// # Errors
    ///
    /// The document of the node could not be read: then the node may be a group, and its names are
    /// unknown.
    fn unknown_name(&self, key: &Key) -> Result<Option<Node>> {
        let damage = self
            .hierarchy
            .find(key)?
            .and_then(|node| node.usable().err());
        match damage {
            Some(e) if matches!(e.kind(), Kind::System(_)) => Err(e),
            _ => Ok(None),
        }
    }

    /// Returns the node of a name whose [`single_value`] has the stat `stat`, and its attributes.
    fn node_of_stat(
        &self,
        directory: &DirectoryKind,
        name: &str,
        value: &SingleValue,
        stat: Stat,
        levels: &mut LevelPermissions,
    ) -> (Node, Attributes) {
        let node = match directory {
            DirectoryKind::Array(key, _) => Node::Chunk(key.clone(), name.to_string()),
            DirectoryKind::Group(key) => group_node(key.join(name), stat.kind),
            DirectoryKind::Control | DirectoryKind::View(..) => Node::ControlDirectory,
        };
        let attributes = match (value, &node) {
            (SingleValue::Chunk(array, chunk), _) => {
                let stat = array.restrict(*chunk, stat, levels);
                self.chunk_attributes(&node, array.grid().chunk_size(*chunk) as u64, &stat)
            }
            _ if node.value().is_some() => self.stored_attributes(&node, &stat),
            _ => self.directory_attributes(&node, &stat),
        };
        (node, attributes)
    }

    /// Returns the nodes of names that were listed just now; `None` for a name that was removed
    /// meanwhile.
    pub fn listed(&self, directory: &DirectoryKind, names: &[Name]) -> Vec<Option<ListedNode>> {
        let values: Vec<Option<SingleValue>> = names
            .iter()
            .map(|name| self.single_value(directory, &name.name))
            .collect();
        let mut stats = Vec::with_capacity(names.len());
        match directory {
            DirectoryKind::Array(_, Some(array)) => {
                let mut chunks = values.iter().flatten().filter_map(SingleValue::chunk);
                array.stat_chunks(&mut chunks, &mut |stat| {
                    stats.push(stat);
                    true
                });
            }
            _ => {
                let keys = values.iter().flatten().filter_map(SingleValue::key);
                let store = self.hierarchy.store();
                store.stat_many(&mut keys.cloned(), &mut |stat| {
                    stats.push(stat);
                    true
                });
            }
        }
        let mut stats = stats.into_iter();
        let mut levels = LevelPermissions::default();
        let mut listed = Vec::with_capacity(names.len());
        for (name, value) in names.iter().zip(values) {
            let found = match value {
                Some(value) => stats.next().transpose().map(|stat| {
                    let mut stat = stat.flatten()?;
                    if name.is_directory {
                        // perhaps of a value that hides the directory
                        stat.kind = EntryKind::Prefix;
                    }
                    Some(self.node_of_stat(directory, &name.name, &value, stat, &mut levels))
                }),
                None => self.lookup_by_rules(directory, &name.name),
            };
            listed.push(match found {
                Ok(found) => found.map(|(node, attributes)| ListedNode {
                    node,
                    attributes,
                    sound: true,
                }),
                Err(_) => self.unsound(directory, name),
            });
        }
        listed
    }

    /// Returns `.` or `..`; only the inode number is meaningful.
    pub fn dots(&self, name: &Name) -> ListedNode {
        let node = Node::Directory(Key::root());
        let attributes = Attributes {
            inode: name.inode,
            ..self.made(&node, 0, 0, self.started, None)
        };
        ListedNode {
            node,
            attributes,
            sound: true,
        }
    }

    /// Returns the single value that determines the attributes of a name: a chunk whose size the
    /// grid knows, or a key in a group that is no metadata document. Returns `None` for other
    /// names.
    fn single_value(&self, level: &DirectoryKind, name: &str) -> Option<SingleValue> {
        if level
            .path()
            .is_some_and(|path| self.layout_node(path, name).is_some())
        {
            return None;
        }
        match level {
            DirectoryKind::Array(_, Some(array)) if !array.metadata().has_objects() => {
                let chunk = chunk_named(array, name)?;
                Some(SingleValue::Chunk(array.clone(), chunk))
            }
            DirectoryKind::Group(_)
                if [ZARR_JSON, ZGROUP, ZATTRS, ZMETADATA].contains(&name)
                    || GroupFormat::of_name(name).is_some() =>
            {
                None
            }
            DirectoryKind::Group(key) if key.is_root() && name == CONTROL => None,
            // a view, and a file that is a group, stand where nothing is stored
            DirectoryKind::Group(_) if self.is_view_name(name) || self.may_be_ingested(name) => {
                None
            }
            DirectoryKind::Group(key) => key.child(name).ok().map(SingleValue::Key),
            _ => None,
        }
    }

    /// Looks up a name by the rules of its directory, then its attributes.
    fn lookup_by_rules(
        &self,
        directory: &DirectoryKind,
        name: &str,
    ) -> Result<Option<(Node, Attributes)>> {
        if let Some((key, file)) = metadata_file(directory, name) {
            // generate the document once, for the node and for its attributes
            let node = Node::Metadata(key.clone(), file);
            let stat = self.document_stat(key, file)?;
            return Ok(stat
                .map(|stat| self.stored_attributes(&node, &stat))
                .map(|attributes| (node, attributes)));
        }
        let Some(node) = self.lookup_in(directory, name)? else {
            return Ok(None);
        };
        let attributes = self.attributes_of_found(&node)?;
        Ok(Some((node, attributes)))
    }

    /// Returns the entry of a name whose lookup has failed. The name is listed nevertheless; its
    /// use reports the error.
    fn unsound(&self, directory: &DirectoryKind, name: &Name) -> Option<ListedNode> {
        let (key, size) = match directory {
            DirectoryKind::Array(key, array) => {
                let size = array.as_ref().and_then(|array| {
                    let chunk = chunk_named(array, &name.name)?;
                    Some(array.grid().chunk_size(chunk) as u64)
                });
                (key, size.unwrap_or(0))
            }
            DirectoryKind::Group(key) => (key, 0),
            DirectoryKind::View(key, view) => return self.unsound_in_view(key, view, name),
            DirectoryKind::Control => return None,
        };
        let is_chunk = matches!(directory, DirectoryKind::Array(..))
            && self.single_value(directory, &name.name).is_some();
        let node = if is_chunk {
            Node::Chunk(key.clone(), name.name.clone())
        } else if name.is_directory {
            Node::Directory(key.join(&name.name))
        } else {
            Node::Unreadable(key.join(&name.name))
        };
        let attributes = self.made(
            &node,
            size,
            0,
            SystemTime::UNIX_EPOCH,
            Some(Permissions::OWNER_ONLY),
        );
        Some(ListedNode {
            node,
            attributes,
            sound: false,
        })
    }
}

impl DirectoryKind {
    /// Returns the path of a directory in which a layout may have names.
    fn path(&self) -> Option<&Key> {
        match self {
            DirectoryKind::Array(path, _) | DirectoryKind::Group(path) => Some(path),
            DirectoryKind::View(..) | DirectoryKind::Control => None,
        }
    }

    /// Returns whether the attributes of a listed name may take decoding a chunk or reading the
    /// whole hierarchy, so that a listing should not look them up early.
    pub fn is_costly(&self, name: &str) -> bool {
        match self {
            DirectoryKind::Array(_, Some(array)) => {
                array.metadata().has_objects() && is_chunk_like(name)
            }
            // coordinates are read for a header
            DirectoryKind::Array(..) | DirectoryKind::View(..) => {
                Format::of_name(name).is_some_and(|format| format != Format::Npy)
                    || GroupFormat::of_name(name).is_some()
            }
            DirectoryKind::Group(_) => name == ZMETADATA || GroupFormat::of_name(name).is_some(),
            DirectoryKind::Control => false,
        }
    }
}

/// A single stored value whose stat determines the attributes of a name.
enum SingleValue {
    /// A chunk whose size the grid knows.
    Chunk(Arc<Array>, ChunkId),
    /// The value under a key.
    Key(Key),
}

impl SingleValue {
    fn chunk(&self) -> Option<ChunkId> {
        if let SingleValue::Chunk(_, chunk) = self {
            Some(*chunk)
        } else {
            None
        }
    }

    fn key(&self) -> Option<&Key> {
        if let SingleValue::Key(key) = self {
            Some(key)
        } else {
            None
        }
    }
}

/// Returns the metadata document with this name, and the key of its group or array.
fn metadata_file<'a>(level: &'a DirectoryKind, name: &str) -> Option<(&'a Key, MetadataFile)> {
    let (key, files): (_, &[MetadataFile]) = match level {
        DirectoryKind::Array(key, _) => (key, ARRAY_FILES),
        DirectoryKind::Group(key) => (key, GROUP_FILES),
        DirectoryKind::View(..) | DirectoryKind::Control => return None,
    };
    files
        .iter()
        .find(|file| file.name() == name)
        .map(|file| (key, *file))
}

/// Returns the node of a key in a group. Whether a directory is an array does not matter here.
fn group_node(key: Key, kind: EntryKind) -> Node {
    match kind {
        EntryKind::Prefix => Node::Directory(key),
        EntryKind::Value => Node::Value(key),
        EntryKind::Other => Node::Unreadable(key),
    }
}
