//! Decides what a new or replaced file becomes: a chunk, a document, flat bytes or a plain key. The
//! directory and the name decide, not a file that exists under the name.

use super::levels::{is_key_like, is_partial};
use super::{
    CONTROL, DirectoryKind, EncodedValue, FLAT, Node, Tree, chunk_named, has_flat, is_hidden,
};
use crate::array::hierarchy::MetadataFile;
use crate::array::{Array, is_chunk_like};
use std::sync::Arc;
use zarrfs_base::error::{Error, Kind, Result};
use zarrfs_format::grid::ChunkId;
use zarrfs_store::Key;

/// The form that a file takes under a name.
pub enum Target {
    /// A chunk of the array's grid.
    Chunk(Arc<Array>, ChunkId),
    /// A metadata document of the group or array at the key.
    Document(Key, MetadataFile),
    /// The flat bytes of an array.
    Flat(Arc<Array>),
    /// A value that holds encoded chunks.
    Encoded(EncodedValue),
    /// Any other key.
    Plain(Key),
}

impl Target {
    /// Returns the key under which the file is stored, if it is a value of its own.
    pub fn stored_key(&self) -> Option<Key> {
        match self {
            Target::Document(key, file) => Some(key.join(file.name())),
            Target::Chunk(array, chunk) => array.own_key(*chunk),
            Target::Encoded(EncodedValue { array, chunk }) => Some(array.stored_key(*chunk)),
            Target::Plain(key) => Some(key.clone()),
            Target::Flat(_) => None,
        }
    }
}

impl Tree {
    /// Returns the form that a file takes under `name` in the directory `parent`.
    ///
    /// # Errors
    ///
    /// EPERM for names that the mount itself provides; EINVAL for names that look like chunks and
    /// lie outside the grid.
    pub fn target(&self, parent: &Node, name: &str) -> Result<Target> {
        let level = self.directory(parent)?;
        let (key, array) = match &level {
            DirectoryKind::Group(key) => (key, None),
            DirectoryKind::Array(key, array) => (key, Some(array.as_ref())),
            DirectoryKind::View(..) | DirectoryKind::Control => {
                return Err(Error::system(libc::EPERM));
            }
        };
        let path = key.child(name)?;
        if let Some(file) = MetadataFile::of_name(name) {
            return Ok(Target::Document(key.clone(), file));
        }
        match array {
            _ if key.is_root() && name == CONTROL => Err(own(&path)),
            Some(Some(array)) if name == FLAT && has_flat(array) => Ok(Target::Flat(array.clone())),
            None if name == FLAT && !self.hierarchy.has_stored_group(key)? => {
                // a program copies an array: see `fs::early_files`
                Ok(Target::Plain(path))
            }
            _ if name == FLAT => {
                let why =
                    "the flat bytes come with the array: write its zarr.json or .zarray first";
                Err(Error::new(Kind::System(libc::EPERM), why).context(path))
            }
            _ if self.comes_with(key, name) => Err(own(&path)),
            // a copy of a view must not hide the view
            None if self.is_view_name(name) => Err(own(&path)),
            _ if is_hidden(array.and_then(|a| a.map(Arc::as_ref)), name) => Err(own(&path)),
            Some(Some(array)) if is_chunk_like(name) && !is_partial(name) => {
                in_array(array, name, path)
            }
            Some(None) if is_key_like(name) => Err(self.unreadable(&path)),
            _ => Ok(self
                .encoded_value(&path)?
                .map_or(Target::Plain(path), Target::Encoded)),
        }
    }
}

fn in_array(array: &Arc<Array>, name: &str, path: Key) -> Result<Target> {
    match chunk_named(array, name) {
        Some(chunk) => Ok(Target::Chunk(array.clone(), chunk)),
        None => {
            let shape = &array.metadata().shape;
            Err(
                Error::invalid(format!("no chunk of the array, whose shape is {shape:?}"))
                    .context(path),
            )
        }
    }
}

fn own(path: &Key) -> Error {
    Error::new(Kind::System(libc::EPERM), "a name that zarrfs itself uses").context(path)
}
