//! Files under generated names that a program has written before the arrays that they show: see
//! `fs::early_files`.

use super::{Node, Tree};
use std::num::NonZeroUsize;
use std::sync::Arc;
use zarrfs_export::{GroupFormat, PartContent};
use zarrfs_outlive::{Journal, Record, RecordedNames};
use zarrfs_store::Key;

/// Maximum number of paths: a copy has a few in each group.
const MAX_PATHS: NonZeroUsize = NonZeroUsize::new(1 << 16).unwrap();

/// The paths of such files, which are plain keys of the store.
pub struct EarlyFiles(RecordedNames);

/// The kind of the records of such files.
const EARLY_RECORD: u32 = 12;

impl EarlyFiles {
    /// Creates an empty record.
    pub fn new() -> Self {
        EarlyFiles(RecordedNames::new(MAX_PATHS))
    }

    /// Records files in `journal` from now on, and takes over those that a daemon has left there.
    pub fn outlive(&self, journal: &Arc<Journal>, left: &[Record]) {
        self.0.outlive(journal, EARLY_RECORD, left);
    }

    /// Records a file. If there are more than [`MAX_PATHS`], the first one stays where it is.
    pub fn add(&self, path: &Key) {
        self.0.put(path.as_str(), 0);
    }

    /// Forgets a file.
    pub fn remove(&self, path: &Key) {
        self.0.remove(path.as_str());
    }

    /// Returns all of them.
    pub fn all(&self) -> Vec<Key> {
        let paths = self.0.at_and_below("").into_iter();
        let mut paths: Vec<Key> = paths.map(|(path, _)| Key::root().join(&path)).collect();
        paths.sort();
        paths
    }

    /// Forgets those at and below `key`, because they were removed or renamed.
    pub fn forget_below(&self, key: &Key) {
        self.0.remove_below(key.as_str());
    }

    /// Returns whether a file is recorded.
    pub fn contains(&self, path: &Key) -> bool {
        self.0.get(path.as_str()).is_some()
    }
}

impl Tree {
    /// Records that a plain key was created under a name that may be a generated one later.
    pub fn record_early(&self, path: &Key) {
        if self.is_generated_name(path.name()) {
            self.early.add(path);
        }
    }

    /// Returns whether a node is the container of a group without arrays.
    pub fn is_empty_container(&self, node: &Node) -> bool {
        let container = node.container();
        container.is_some_and(|(key, format)| !self.shows_values(key, format))
    }

    /// Returns whether the container of a group is shown as a program has written it, since the
    /// group has no arrays yet.
    pub(super) fn is_stored_early(&self, key: &Key, format: GroupFormat) -> bool {
        let path = key.join(format.name());
        self.early.contains(&path)
            && !self.shows_values(key, format)
            && matches!(self.find_stat(&path), Ok(Some(_)))
    }

    /// Returns the header or container that the mount generates at `path`, or would generate if no
    /// file stood there; `None` if there is none.
    pub fn generated(&self, path: &Key) -> Option<Node> {
        let key = path.parent();
        let name = path.name();
        match self.array(&key) {
            Ok(array) => {
                let header = self.format(&array, name);
                let header = header.map(|format| Node::Header(key.clone(), format));
                header
                    .or_else(|| Some(Node::Dataset(key.clone(), self.array_as_group(&key, name)?)))
            }
            Err(_) => {
                let format = GroupFormat::of_name(name)?;
                let mut shown = self.formats_of_group(&key);
                shown
                    .any(|other| other == format)
                    .then(|| Node::Dataset(key.clone(), format))
            }
        }
    }

    /// Returns whether the container of a group shows values of arrays. One that cannot be made is
    /// taken for one that does.
    pub fn shows_values(&self, key: &Key, format: GroupFormat) -> bool {
        let Ok(file) = self.container(key, format) else {
            return true;
        };
        file.parts()
            .iter()
            .any(|part| !matches!(part.content, PartContent::Bytes(_) | PartContent::Padding))
    }
}
