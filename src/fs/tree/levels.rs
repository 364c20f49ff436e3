//! Levels of chunk keys: the directories of an array whose separator is `/`. The mount shows chunks as `0.0` and says
//! so in the metadata, but a program that has created the array itself, or copies one, writes `0/0`, in v3 `c/0/0`.
//! Therefore levels exist by name, but are never listed. A chunk's name below a level stands for the chunk, or for the
//! stored value if the program encodes chunks itself
//! ([`Hierarchy::shows_stored_keys`](crate::array::hierarchy::Hierarchy::shows_stored_keys)).

use super::{Node, Tree};
use crate::array::hierarchy::StoredNode;
use crate::array::{Array, is_chunk_like};
use crate::error::Result;
use crate::store::Key;
use crate::zarr::chunk_key::parse_index;
use std::sync::Arc;

impl Tree {
    /// Returns the directory and the name that `name` in `parent` stands for: below a level, the array and the chunk.
    pub fn canonical(&self, parent: Arc<Node>, name: &str) -> (Arc<Node>, String) {
        let chunk = match &*parent {
            Node::Directory(key) => match self.array_of_level(key) {
                Some(array) => Some(array).and_then(|array| chunk_below(&array, key, name)),
                None => self.prefixed_chunk(key, name),
            }
            .filter(|(array, _)| !self.hierarchy.shows_stored_keys(array)),
            _ => None,
        };
        match chunk {
            Some((array, chunk)) => (Arc::new(Node::Directory(array)), chunk),
            None => (parent, name.to_string()),
        }
    }

    /// Returns the array's key and the chunk's name in the mount that `name`, such as `c.0.1`, stands for in an array
    /// of v3 without levels.
    fn prefixed_chunk(&self, key: &Key, name: &str) -> Option<(Key, String)> {
        let rest = name.strip_prefix('c').filter(|rest| rest.is_empty() || rest.starts_with('.'))?;
        let Ok(Some(StoredNode::Array(array))) = self.hierarchy.find(key) else { return None };
        let chunk = array.chunk_stored_at(name)?;
        let shown = if rest.is_empty() { "0".to_string() } else { rest[1..].to_string() };
        (array.metadata().has_key_prefix() && chunk.0 < array.grid().chunk_count()).then(|| (key.clone(), shown))
    }

    /// Returns the array that `key` is a level of.
    fn array_of_level(&self, key: &Key) -> Option<Arc<Array>> {
        let mut above = key.clone();
        while parse_index(above.name()).is_some() || above.name() == "c" {
            above = above.parent();
            if let Ok(Some(StoredNode::Array(array))) = self.hierarchy.find(&above) {
                return Some(array).filter(|array| array.is_chunk_level(key));
            }
        }
        None
    }

    /// Returns whether `key` is a level of an array.
    pub fn is_level(&self, key: &Key) -> bool {
        self.array_of_level(key).is_some()
    }

    /// Creates the directory `key` if it is a level of an array. Returns whether it is one.
    pub fn make_level(&self, key: &Key) -> Result<bool> {
        if !self.is_level(key) {
            return Ok(false);
        }
        self.hierarchy.store().make_prefix(key).map(|()| true).map_err(|e| e.context(key))
    }
}

/// Returns the array's key and the chunk's name in the mount, or a name like one, that `name` below a level stands for.
fn chunk_below(array: &Array, level: &Key, name: &str) -> Option<(Key, String)> {
    let path = level.relative_to(array.key())?.join(name);
    let indices = match array.metadata().has_key_prefix() {
        true => path.as_str().strip_prefix("c/")?,
        false => path.as_str(),
    };
    let chunk = indices.replace('/', ".");
    let is_whole = indices.split('/').count() >= array.grid().dimensions();
    (is_whole && is_chunk_like(&chunk)).then(|| (array.key().clone(), chunk))
}
