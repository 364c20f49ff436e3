//! Files under generated names that a program has written before the arrays that they show: see
//! `fs::early_files`.

use super::{Node, Tree};
use std::collections::BTreeSet;
use std::sync::Mutex;
use zarrfs_base::memory::lock;
use zarrfs_export::{GroupFormat, PartContent};
use zarrfs_store::Key;

/// Maximum number of paths: a copy has a few in each group.
const MAX_PATHS: usize = 1 << 16;

/// The paths of such files, which are plain keys of the store.
#[derive(Default)]
pub struct EarlyFiles {
    /// Protects the set alone.
    paths: Mutex<BTreeSet<Key>>,
}

impl EarlyFiles {
    /// Records a file. Beyond [`MAX_PATHS`], a file stays where it is.
    pub fn add(&self, path: Key) {
        let mut paths = lock(&self.paths);
        if paths.len() < MAX_PATHS {
            paths.insert(path);
        }
    }

    /// Forgets a file.
    pub fn remove(&self, path: &Key) {
        lock(&self.paths).remove(path);
    }

    /// Returns all of them.
    pub fn all(&self) -> Vec<Key> {
        lock(&self.paths).iter().cloned().collect()
    }

    /// Forgets those at and below `key`, because they were removed or renamed.
    pub fn forget_below(&self, key: &Key) {
        lock(&self.paths).retain(|path| path.relative_to(key).is_none());
    }

    /// Returns whether a file is recorded.
    pub fn contains(&self, path: &Key) -> bool {
        lock(&self.paths).contains(path)
    }
}

impl Tree {
    /// Records that a plain key was created under a name that may be a generated one later.
    pub fn record_early(&self, path: &Key) {
        if self.is_generated_name(path.name()) {
            self.early.add(path.clone());
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
