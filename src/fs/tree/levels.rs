//! Levels of chunk keys: the directories of an array whose separator is `/`. The mount shows chunks
//! as `0.0` and says so in the metadata, but a program that has created the array itself, or copies
//! one, writes `0/0`, in v3 `c/0/0`. Therefore levels exist by name, but are never listed. A
//! chunk's name below a level stands for the chunk, or for the stored value if the program encodes
//! chunks itself
//! ([`Hierarchy::shows_stored_keys`](crate::array::hierarchy::Hierarchy::shows_stored_keys)).
//!
//! The keys of an array that cannot be used are unknown. Whatever could be a key of a chunk of it,
//! in any encoding, is an error and never missing, since libraries take a missing chunk for fill
//! values.

use super::node::ViewedFile;
use super::{Node, Tree};
use crate::array::hierarchy::StoredNode;
use crate::array::{Array, is_chunk_like};
use std::sync::Arc;
use zarrfs_base::error::{Error, ErrorContext, Result};
use zarrfs_format::chunk_key::parse_index;
use zarrfs_format::grid::ChunkId;
use zarrfs_store::{Key, StoreExt};

/// A stored value that holds encoded chunks and that programs read and write as it is.
pub struct EncodedValue {
    /// The array.
    pub array: Arc<Array>,
    /// The chunk, or the first one of several.
    pub chunk: ChunkId,
}

impl Tree {
    /// Returns the directory and the name that `name` in `parent` stands for: below a level, the
    /// array and the chunk; in a view, the header that it shows.
    pub fn canonical(&self, parent: Arc<Node>, name: &str) -> (Arc<Node>, String) {
        if parent.view().is_some() {
            return (parent, ViewedFile::listed_name(name).to_string());
        }
        let chunk = parent.directory().and_then(|key| {
            let chunk = match self.array_of_level(key) {
                Some(array) => chunk_below(&array, key, name),
                None => self.prefixed_chunk(key, name),
            };
            chunk.filter(|(array, _)| !self.hierarchy.shows_stored_keys(array))
        });
        match chunk {
            Some((array, chunk)) => (Arc::new(Node::Directory(array)), chunk),
            None => (parent, name.to_string()),
        }
    }

    /// Returns the array's key and the chunk's name in the mount that `name`, such as `c.0.1`,
    /// stands for in an array of v3 without levels.
    fn prefixed_chunk(&self, key: &Key, name: &str) -> Option<(Key, String)> {
        let rest = name
            .strip_prefix('c')
            .filter(|rest| rest.is_empty() || rest.starts_with('.'))?;
        let array = self.hierarchy.usable_array(key).ok()??;
        let chunk = array.chunk_stored_at(name)?;
        let shown = if rest.is_empty() {
            "0".to_string()
        } else {
            rest[1..].to_string()
        };
        (array.metadata().has_key_prefix() && chunk.0 < array.grid().chunk_count())
            .then(|| (key.clone(), shown))
    }

    /// Returns the array that `key` is a level of.
    fn array_of_level(&self, key: &Key) -> Option<Arc<Array>> {
        let array = self.node_of_level(key)?.array()?;
        array.is_chunk_level(key).then_some(array)
    }

    /// Returns the array, usable or not, nearest above `key`, if only names of levels are between
    /// them.
    fn node_of_level(&self, key: &Key) -> Option<StoredNode> {
        let mut above = key.clone();
        while is_level_name(above.name()) {
            above = above.parent();
            if let Ok(Some(node)) = self.hierarchy.find(&above)
                && node.is_array()
            {
                return Some(node);
            }
        }
        None
    }

    /// Returns why the array whose chunk keys may lead through the directory `key` cannot be used;
    /// `None` if there is no such array.
    pub(super) fn damage_above(&self, key: &Key) -> Option<Error> {
        let damage = self.node_of_level(key)?.usable().err()?;
        let is_array = self.hierarchy.is_array(key).unwrap_or(false);
        (!is_array).then_some(damage)
    }

    /// Returns whether `key` is a level of an array.
    pub fn is_level(&self, key: &Key) -> bool {
        self.array_of_level(key).is_some() || self.damage_above(key).is_some()
    }

    /// Returns the encoded value that programs find at `key`, or would create there; `None` for any
    /// other key.
    ///
    /// # Errors
    ///
    /// EINVAL if the key looks like that of a chunk, and no chunk of the array has it.
    pub fn encoded_value(&self, key: &Key) -> Result<Option<EncodedValue>> {
        let name = key.name();
        let parent = key.parent();
        if !is_key_like(name) {
            return Ok(None);
        }
        let array = match self.array_of_level(&parent) {
            None if name.starts_with('c') => match self.hierarchy.usable_array(&parent) {
                Ok(Some(array)) => array,
                _ => return Ok(None),
            },
            None => return Ok(None),
            Some(array) => array,
        };
        let Some(path) = key.relative_to(array.key()) else {
            return Ok(None);
        };
        if !self.hierarchy.shows_stored_keys(array.key()) {
            return Ok(None);
        }
        match array.chunk_stored_at(path.as_str()) {
            Some(chunk) if chunk.0 < array.grid().chunk_count() => {
                Ok(Some(EncodedValue { array, chunk }))
            }
            _ => {
                let shape = &array.metadata().shape;
                Err(Error::invalid(format!(
                    "no key of a chunk of the array, whose shape is {shape:?}"
                ))
                .context(key))
            }
        }
    }

    /// Creates the directory `key` if it is a level of an array. Returns whether it is one.
    pub fn make_level(&self, key: &Key) -> Result<bool> {
        if self.array_of_level(key).is_none() {
            return Ok(false);
        }
        self.hierarchy
            .store()
            .make_prefix(key)
            .map(|()| true)
            .context(key)
    }
}

/// Returns the array's key and the chunk's name in the mount, or a name like one, that `name` below
/// a level stands for.
fn chunk_below(array: &Array, level: &Key, name: &str) -> Option<(Key, String)> {
    let path = level.relative_to(array.key())?.join(name);
    let indices = if array.metadata().has_key_prefix() {
        path.as_str().strip_prefix("c/")?
    } else {
        path.as_str()
    };
    let chunk = indices.replace('/', ".");
    let is_whole = indices.split('/').count() >= array.grid().dimensions();
    (is_whole && is_chunk_like(&chunk)).then(|| (array.key().clone(), chunk))
}

/// Returns whether a directory of this name may be a level of chunk keys.
pub(super) fn is_level_name(name: &str) -> bool {
    parse_index(name).is_some() || name == "c"
}

/// Returns whether a name may be the end of a chunk key, in any encoding: of a chunk, or of a
/// level.
pub(super) fn is_key_like(name: &str) -> bool {
    let rest = name.strip_prefix("c.").unwrap_or(name);
    (name == "c" || is_chunk_like(rest)) && !is_partial(name)
}

/// Returns whether programs give this name to files that they will rename to chunks.
pub fn is_partial(name: &str) -> bool {
    name.ends_with(".partial")
}
