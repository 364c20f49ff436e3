//! Reads whole files, to store them under another name or to change them.

use super::arrays::WrittenArrays;
use super::tree::Node;
use crate::cache::Wait;
use std::ops::Deref;
use zarrfs_base::error::{Error, ErrorContext, Kind, Result};
use zarrfs_base::memory::Grant;
use zarrfs_store::StoreExt;

/// The size limit in bytes that stands for no limit.
const UNLIMITED: u64 = i64::MAX as u64;

/// All bytes of a file. The memory for a plain key is accounted, because nothing else bounds its
/// size.
pub(super) struct FileContent {
    pub bytes: Vec<u8>,
    /// Dropped after the bytes.
    _memory: Grant,
}

impl Deref for FileContent {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl FileContent {
    /// Reads all bytes of a file.
    pub fn read(arrays: &WrittenArrays, node: &Node) -> Result<Self> {
        FileContent::read_up_to(arrays, node, UNLIMITED)
    }

    /// Reads all bytes of a file.
    ///
    /// # Errors
    ///
    /// EINVAL if a plain key has more than `limit` bytes.
    pub fn read_up_to(arrays: &WrittenArrays, node: &Node, limit: u64) -> Result<Self> {
        let mut bytes = Vec::new();
        let mut memory = Grant::default();
        match node {
            Node::Value(key) => {
                let store = arrays.store();
                let size = arrays.tree.stat(key)?.size;
                if size > limit {
                    return Err(
                        Error::invalid(format!("{size} bytes, more than {limit}")).context(key)
                    );
                }
                memory
                    .grow(usize::try_from(size).unwrap_or(usize::MAX))
                    .map_err(|e| match e.kind() {
                        Kind::Damaged => Error::new(Kind::TooLarge, e.message()).context(key),
                        _ => e.context(key),
                    })?;
                store
                    .get(key, limit.min(size), &mut bytes)
                    .context(key)?
                    .ok_or_else(Error::stale)?;
            }
            Node::Chunk(key, name) => {
                let (array, _) = arrays.tree.chunk(key, name)?;
                arrays.read_chunk(&array, name, 0, usize::MAX, Wait::Allowed, &mut bytes)?;
            }
            Node::Metadata(key, file) => {
                let document = arrays.tree.document(key, *file)?.ok_or_else(Error::stale)?;
                bytes.extend_from_slice(&document.text);
            }
            _ => return Err(Error::system(libc::EPERM)),
        }
        Ok(FileContent {
            bytes,
            _memory: memory,
        })
    }
}
