//! Nodes: the kinds of files and directories in a mount, and the inode numbers of their paths.

use super::ROOT_INODE;
use super::{CONTROL, FLAT, METRICS, SYNC};
use crate::array::hierarchy::MetadataFile;
use std::hash::{DefaultHasher, Hash, Hasher};
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

impl Node {
    /// Returns whether the node is a directory.
    pub fn is_directory(&self) -> bool {
        matches!(
            self,
            Node::Directory(_) | Node::ViewDirectory(..) | Node::ControlDirectory
        )
    }

    /// Returns whether the node is `.zarrfs` or in it.
    pub fn is_control(&self) -> bool {
        matches!(self, Node::ControlDirectory | Node::Control(_))
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
            | Node::Unreadable(key) => {
                if let Some(moved) = key.moved(from, to) {
                    *key = moved;
                }
            }
            Node::ControlDirectory | Node::Control(_) => {}
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
