//! Nodes: the kinds of files and directories in a mount, and the inode numbers of their paths.

use super::ROOT_INODE;
use super::{CONTROL, FLAT, METRICS, SYNC};
use crate::array::hierarchy::MetadataFile;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use zarrfs_export::{Format, GroupFormat};
use zarrfs_store::Key;

/// The end of the name of a directory of physical values.
pub(super) const UNPACKED: &str = ".unpacked";

/// The end of the name of a directory of slices.
pub(super) const SLICES: &str = ".slices";

/// What the names of views begin with if the array is the root of the store, which has no name.
pub(super) const ROOT_NAME: &str = "data";

/// The name that GDAL gives to the header of ENVI when it creates `data.raw`. It is not listed, and
/// stands for the header that the view shows: a view stores no files.
const CREATED_HEADER: &str = "data.hdr";

/// A file or directory of the mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// The directory of a group or an array. Each request checks which it is, because one may
    /// become the other.
    Directory(Key),
    /// `data.raw` of the array at this key.
    Flat(Key),
    /// A header or container of the array at this key.
    Header(Key, Format),
    /// The group at this key as one file.
    Dataset(Key, GroupFormat),
    /// The directory of a view of the array at this key.
    ViewDirectory(Key, View),
    /// A file in such a directory.
    ViewFile(Key, View, ViewedFile),
    /// A file of the layout, by its path, and what it is made of.
    LayoutFile(Key, Arc<LayoutSource>),
    /// A file that is, or becomes, a group or array, by its path.
    Ingested(Key),
    /// A stored chunk of the array at this key, by its name in the mount; its number depends on the
    /// shape.
    Chunk(Key, String),
    /// A metadata document of the group or array at this key.
    Metadata(Key, MetadataFile),
    /// Any other key.
    Value(Key),
    /// A name that is listed but cannot be read: a FIFO, a chunk of a damaged array.
    Unreadable(Key),
    /// `.zarrfs`
    ControlDirectory,
    /// A file in `.zarrfs`.
    Control(ControlFile),
}

/// What the files of a rule of the layout are made of.
#[derive(Debug, PartialEq, Eq)]
pub struct LayoutSource {
    /// The group whose arrays they show.
    pub group: Key,
    /// The format, if they are containers of groups.
    pub format: Option<GroupFormat>,
}

/// The control files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlFile {
    /// The statistics as lines of a name and a value.
    Stats,
    /// The statistics as one JSON object.
    StatsJson,
    /// The statistics for Prometheus.
    Metrics,
    /// The file [`SYNC`].
    Sync,
}

/// A view of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum View {
    /// Its physical values.
    Unpacked,
    /// Its part with these indices of the leading dimensions.
    Slices(Vec<u64>),
}

/// A file of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViewedFile {
    /// `data.raw`.
    Flat,
    /// A header or container.
    Header(Format),
}

impl ViewedFile {
    /// Returns the name under which a view lists the file `name`.
    pub fn listed_name(name: &str) -> &str {
        if name == CREATED_HEADER {
            Format::Envi.name()
        } else {
            name
        }
    }

    /// Returns the name of the file.
    pub fn name(self) -> &'static str {
        match self {
            ViewedFile::Flat => FLAT,
            ViewedFile::Header(format) => format.name(),
        }
    }
}

impl View {
    /// Returns the path of the view of the array at `key`.
    pub fn path(&self, key: &Key) -> Key {
        let (end, indices) = match self {
            View::Unpacked => (UNPACKED, [].as_slice()),
            View::Slices(indices) => (SLICES, indices.as_slice()),
        };
        let name = if key.is_root() { ROOT_NAME } else { key.name() };
        let mut path = key.parent().join(&format!("{name}{end}"));
        for index in indices {
            path = path.join(&index.to_string());
        }
        path
    }
}

impl ControlFile {
    /// All control files, in the order in which they are listed.
    pub(super) const ALL: [ControlFile; 4] = [
        ControlFile::Stats,
        ControlFile::StatsJson,
        ControlFile::Metrics,
        ControlFile::Sync,
    ];

    /// Returns the name of the file.
    pub(super) fn name(self) -> &'static str {
        match self {
            ControlFile::Stats => "stats",
            ControlFile::StatsJson => "stats.json",
            ControlFile::Metrics => METRICS,
            ControlFile::Sync => SYNC,
        }
    }
}

/// What becomes of a node when a program changes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeNature {
    /// The directory of a group or an array.
    Directory,
    /// A directory that exists as long as its array.
    ViewDirectory,
    /// A file that exists as long as its array or group: it has a fixed size, and its removal
    /// changes nothing.
    Generated,
    /// A file whose content is stored under a key, and outlives its name while it is open.
    Stored,
    /// A name that can only be removed.
    Unreadable,
    /// `.zarrfs` or a file in it, which cannot be changed.
    Control,
}

/// What must be known before the attributes of a node are returned without a wait.
pub enum AttributesCost<'a> {
    /// Nothing.
    Nothing,
    /// The stored size of the array at the key.
    StoredSize(&'a Key),
    /// The sizes of the chunks of the array at the key.
    ChunkSizes(&'a Key),
    /// The metadata of the group at the key, if its document has consolidated metadata.
    Consolidated(&'a Key),
    /// What a listing of the node at the key describes.
    Description(&'a Key),
    /// What is found out by reading the store each time.
    Everything,
}

/// What a file shows of the store: what must be current when it is opened.
pub enum NodeSource<'a> {
    /// Nothing.
    Nothing,
    /// All at and below the key.
    Below(Key),
    /// The documents at and below the key.
    Documents(&'a Key),
    /// A document of the node at the key, perhaps with those below.
    Document(&'a Key, MetadataFile),
}

impl Node {
    /// Returns what becomes of the node when a program changes it.
    pub fn nature(&self) -> NodeNature {
        match self {
            Node::Directory(_) => NodeNature::Directory,
            Node::ViewDirectory(..) => NodeNature::ViewDirectory,
            Node::Flat(_) | Node::Header(..) | Node::Dataset(..) => NodeNature::Generated,
            Node::ViewFile(..) | Node::LayoutFile(..) | Node::Ingested(_) => NodeNature::Generated,
            Node::Chunk(..) | Node::Metadata(..) | Node::Value(_) => NodeNature::Stored,
            Node::Unreadable(_) => NodeNature::Unreadable,
            Node::ControlDirectory | Node::Control(_) => NodeNature::Control,
        }
    }

    /// Returns what must be known before the attributes are returned without a wait.
    pub(super) fn attributes_cost(&self) -> AttributesCost<'_> {
        match self {
            Node::Directory(key) => AttributesCost::Description(key),
            Node::Flat(key) => AttributesCost::StoredSize(key),
            Node::Header(..) | Node::Dataset(..) | Node::ViewFile(..) => AttributesCost::Everything,
            Node::LayoutFile(..) | Node::Ingested(_) => AttributesCost::Everything,
            Node::Chunk(key, _) => AttributesCost::ChunkSizes(key),
            Node::Metadata(key, file) => match file {
                MetadataFile::Zarr => AttributesCost::Consolidated(key),
                MetadataFile::Consolidated => AttributesCost::Everything,
                MetadataFile::Array | MetadataFile::Group | MetadataFile::Attributes => {
                    AttributesCost::Nothing
                }
            },
            Node::ViewDirectory(..) | Node::Value(_) | Node::Unreadable(_) => {
                AttributesCost::Nothing
            }
            Node::ControlDirectory | Node::Control(_) => AttributesCost::Nothing,
        }
    }

    /// Returns what the file shows of the store.
    pub(super) fn source(&self) -> NodeSource<'_> {
        if let Some((key, format)) = self.header()
            && format != Format::Npy
        {
            // the coordinates of a header lie beside its array
            return NodeSource::Below(key.parent());
        }
        match self {
            Node::Dataset(key, _) => NodeSource::Documents(key),
            Node::LayoutFile(_, source) => NodeSource::Documents(&source.group),
            Node::Metadata(key, file) => NodeSource::Document(key, *file),
            _ if self.is_directory() => NodeSource::Nothing,
            _ => self
                .key()
                .map_or(NodeSource::Nothing, |key| NodeSource::Below(key.clone())),
        }
    }

    /// Returns whether the node is a directory.
    pub fn is_directory(&self) -> bool {
        matches!(
            self,
            Node::Directory(_) | Node::ViewDirectory(..) | Node::ControlDirectory
        )
    }

    /// Returns whether the node is `.zarrfs` or in it.
    pub fn is_control(&self) -> bool {
        self.nature() == NodeNature::Control
    }

    /// Returns whether opening the file stores everything.
    pub fn is_sync(&self) -> bool {
        matches!(self, Node::Control(ControlFile::Sync))
    }

    /// Returns whether the node is a file that the mount generates.
    pub fn is_generated(&self) -> bool {
        self.nature() == NodeNature::Generated
    }

    /// Returns whether the node is a generated file that consists of parts: a header, a container
    /// or a file of a view.
    pub fn is_composite(&self) -> bool {
        self.is_generated() && self.flat().is_none()
    }

    /// Returns whether the node shows the content of one key of the store.
    pub fn is_stored(&self) -> bool {
        [NodeNature::Directory, NodeNature::Stored].contains(&self.nature())
    }

    /// Returns the key of the directory of a group or an array.
    pub fn directory(&self) -> Option<&Key> {
        match self {
            Node::Directory(key) => Some(key),
            _ => None,
        }
    }

    /// Returns the key of the array whose flat bytes this is.
    pub fn flat(&self) -> Option<&Key> {
        match self {
            Node::Flat(key) => Some(key),
            _ => None,
        }
    }

    /// Returns the key of the array that determines the size of the file, and the view if the file
    /// shows physical values.
    pub fn resized(&self) -> Option<(&Key, Option<&View>)> {
        match self {
            Node::Flat(key) => Some((key, None)),
            Node::ViewFile(key, view @ View::Unpacked, ViewedFile::Flat) => Some((key, Some(view))),
            _ => None,
        }
    }

    /// Returns the key of the array that a header describes, or a part of it, and the format.
    pub fn header(&self) -> Option<(&Key, Format)> {
        match self {
            Node::Header(key, format) | Node::ViewFile(key, _, ViewedFile::Header(format)) => {
                Some((key, *format))
            }
            _ => None,
        }
    }

    /// Returns the key of the group that is shown as one file, and the format.
    pub fn container(&self) -> Option<(&Key, GroupFormat)> {
        match self {
            Node::Dataset(key, format) => Some((key, *format)),
            Node::LayoutFile(_, source) => Some((&source.group, source.format?)),
            _ => None,
        }
    }

    /// Returns the array and the view of a directory or file of a view.
    pub fn view(&self) -> Option<(&Key, &View)> {
        match self {
            Node::ViewDirectory(key, view) | Node::ViewFile(key, view, _) => Some((key, view)),
            _ => None,
        }
    }

    /// Returns the key of the array and the name of a chunk.
    pub fn chunk(&self) -> Option<(&Key, &str)> {
        match self {
            Node::Chunk(key, name) => Some((key, name)),
            _ => None,
        }
    }

    /// Returns the key of a plain key.
    pub fn value(&self) -> Option<&Key> {
        match self {
            Node::Value(key) => Some(key),
            _ => None,
        }
    }

    /// Returns the key of the group or array that the node belongs to, or its own.
    pub fn key(&self) -> Option<&Key> {
        match self {
            Node::Directory(key) | Node::Flat(key) | Node::Value(key) | Node::Unreadable(key) => {
                Some(key)
            }
            Node::Ingested(path) => Some(path),
            Node::Header(key, _) | Node::Dataset(key, _) | Node::Chunk(key, _) => Some(key),
            Node::Metadata(key, _) | Node::ViewDirectory(key, _) | Node::ViewFile(key, ..) => {
                Some(key)
            }
            Node::LayoutFile(_, source) => Some(&source.group),
            Node::ControlDirectory | Node::Control(_) => None,
        }
    }

    /// Returns the key of the group or array whose properties are extended attributes of the node.
    pub fn described(&self) -> Option<&Key> {
        match self {
            Node::Directory(key) | Node::Flat(key) | Node::Chunk(key, _) => Some(key),
            Node::Header(key, _) | Node::Dataset(key, _) => Some(key),
            _ => None,
        }
    }

    /// Returns the path in the mount, without a leading slash.
    pub fn path(&self) -> Key {
        match self {
            Node::Directory(key) | Node::Value(key) | Node::Unreadable(key) => key.clone(),
            Node::Flat(key) => key.join(FLAT),
            Node::Header(key, format) => key.join(format.name()),
            Node::Dataset(key, format) => key.join(format.name()),
            Node::ViewDirectory(key, view) => view.path(key),
            Node::ViewFile(key, view, file) => view.path(key).join(file.name()),
            Node::LayoutFile(path, _) | Node::Ingested(path) => path.clone(),
            Node::Chunk(key, name) => key.join(name),
            Node::Metadata(key, file) => key.join(file.name()),
            Node::ControlDirectory => Key::root().join(CONTROL),
            Node::Control(file) => Key::root().join(CONTROL).join(file.name()),
        }
    }

    /// Returns the same node after the directory `from`, at or above it, was renamed to `to`.
    pub(super) fn rebased(&self, from: &Key, to: &Key) -> Node {
        let mut node = self.clone();
        match &mut node {
            Node::Directory(key)
            | Node::Flat(key)
            | Node::Header(key, _)
            | Node::Dataset(key, _)
            | Node::ViewDirectory(key, _)
            | Node::ViewFile(key, ..)
            | Node::Chunk(key, _)
            | Node::Metadata(key, _)
            | Node::Value(key)
            | Node::Ingested(key)
            | Node::Unreadable(key) => {
                if let Some(moved) = key.moved(from, to) {
                    *key = moved;
                }
            }
            Node::LayoutFile(..) | Node::ControlDirectory | Node::Control(_) => {}
        }
        node
    }

    /// Returns the inode number: a function of the path, so that it is the same in every listing
    /// and every mount. Nodes that were renamed, or took a path that the kernel still knows as
    /// another file, have the number that [`Tree::inode`](super::Tree::inode) returns.
    pub fn inode(&self) -> u64 {
        inode(self.is_directory(), self.path().as_str())
    }
}

/// Returns the inode number of a path. It has 32 bits, since `stat` and `readdir` of programs of 32
/// bits fail with EOVERFLOW for larger ones. `LiveNodes` gives another
/// number to the second of two paths that are in use and have the same one.
pub(super) fn inode(directory: bool, path: &str) -> u64 {
    if path.is_empty() {
        return ROOT_INODE;
    }
    let mut hasher = DefaultHasher::new();
    (directory, path).hash(&mut hasher);
    let number = hasher.finish() as u32 >> 2 | copied_in_turn(path) << 30;
    // to FUSE, 0 means none and 1 is the root
    u64::from(number).max(ROOT_INODE + 1)
}

/// Returns a number of two bits that is smaller for what programs should copy first. `cp` copies
/// the names of a directory in the order of inode numbers. A container of a group that comes before
/// the arrays, and files of an array that come before its document, are accepted: see
/// `fs::early_files`.
fn copied_in_turn(path: &str) -> u32 {
    let name = path.rsplit('/').next().unwrap_or(path);
    if GroupFormat::of_name(name).is_some() {
        0
    } else if MetadataFile::of_name(name).is_some() {
        2
    } else {
        1
    }
}
