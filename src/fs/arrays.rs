//! The arrays of a mount whose bytes are written: what guards them, and when they are stored before
//! the store is asked for its content. This module must not know of open files or of names.

use super::page_guards::{GuardId, PageGuards};
use super::resize::Resizing;
use crate::array::Array;
use crate::cache::Cache;
use crate::fs::tree::{FLAT, Node, Tree, chunk_named};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use zarrfs_base::error::{Error, ErrorContext, Result};
use zarrfs_format::metadata::{ZARR_JSON, ZGROUP};
use zarrfs_store::{Key, Store, StoreExt};

/// Number of bytes of a file that are copied at a time.
const PIECE: u64 = 8 << 20;

/// The arrays of a mount.
pub struct WrittenArrays {
    pub(super) tree: Arc<Tree>,
    pub(super) cache: Arc<Cache>,
    pub(super) guards: PageGuards,
    pub(super) resizing: Resizing,
    /// Directory of files without a name, for values that programs encode themselves.
    pub(super) spill_directory: PathBuf,
}

impl WrittenArrays {
    /// Creates the arrays that `tree` shows and whose chunks are in `cache`.
    pub fn new(tree: Arc<Tree>, cache: Arc<Cache>, spill_directory: PathBuf) -> Self {
        WrittenArrays {
            tree,
            cache,
            guards: PageGuards::default(),
            resizing: Resizing::new(),
            spill_directory,
        }
    }

    pub(super) fn store(&self) -> &dyn Store {
        self.tree.hierarchy().store()
    }

    /// Looks up an array that is about to be read or written.
    pub(super) fn open(&self, key: &Key) -> Result<Arc<Array>> {
        let array = self.tree.array(key)?;
        array.readable()?;
        self.cache.store_superseded(&array);
        Ok(array)
    }

    /// Fails if written bytes were lost and no close or fsync has reported the loss.
    pub fn take_losses(&self) -> Result<()> {
        self.cache.losses().take(|_| true)
    }

    /// Returns `stored`, the result of a close or fsync of a file of the array at `key`. A loss
    /// comes before any other error.
    pub(super) fn with_losses(&self, key: &Key, stored: Result<()>) -> Result<()> {
        self.cache.losses().take(|lost| lost == key).and(stored)
    }

    /// Stores the dirty chunks of arrays at and below `key`, because their metadata are about to
    /// change.
    pub(super) fn flush_below(&self, key: &Key) -> Result<()> {
        self.cache
            .flush_where(|array| array.key().relative_to(key).is_some())
    }

    /// Stores the chunk `name` of the array at `key`, or hands over all dirty chunks of the array,
    /// so that the store knows which chunks there are. A chunk that cannot be stored now does not
    /// exist yet.
    pub(super) fn settle(&self, key: &Key, name: Option<&str>) {
        self.settle_object(&name.map_or_else(|| key.clone(), |name| key.join(name)));
        let Some(array) = self.tree.hierarchy().cached_array(key) else {
            return;
        };
        if !array.freshness().is_dirty() {
            return;
        }
        let settled = match name {
            None => self.cache.hand_over(&array),
            Some(name) => match chunk_named(&array, name) {
                Some(chunk) => self.cache.flush_chunk(&array, chunk),
                None => Ok(()),
            },
        };
        if let Err(e) = settled {
            log::debug!("{e}");
        }
    }

    /// Stores the chunks of the array that has an object, or a directory of objects, at `path`: a
    /// program is about to see the stored bytes.
    pub(super) fn settle_object(&self, path: &Key) {
        if self.is_object_unsettled(path)
            && let Err(e) = self.cache.flush_where(|array| array.is_object_path(path))
        {
            log::debug!("{e}");
        }
    }

    /// Returns whether [`WrittenArrays::settle`] has something to store before `name` in the
    /// directory `node`, or a chunk file itself, is looked up.
    pub(super) fn is_unsettled(&self, node: &Node, name: Option<&str>) -> bool {
        let (key, name) = match (node.directory(), node.chunk(), node.value()) {
            (Some(key), ..) => (key, name),
            (_, Some((key, name)), _) => (key, Some(name)),
            (.., Some(key)) => return self.is_object_unsettled(key),
            _ => return false,
        };
        let array = self.tree.hierarchy().cached_array(key);
        name != Some(FLAT) && array.is_some_and(|array| array.freshness().is_dirty())
            || self.is_object_unsettled(&name.map_or_else(|| key.clone(), |name| key.join(name)))
    }

    fn is_object_unsettled(&self, path: &Key) -> bool {
        self.cache.has_pending(|array| array.is_object_path(path))
            || matches!(self.tree.encoded_value(path), Ok(Some(value)) if value.array.freshness().is_dirty())
    }

    /// Calls `write` with the bytes `range` of a plain key, piece by piece, and the position of
    /// each.
    pub(super) fn in_pieces(
        &self,
        from: &Key,
        range: Range<u64>,
        write: impl Fn(u64, &[u8]) -> Result<usize>,
    ) -> Result<()> {
        let mut at = range.start;
        let mut piece = Vec::new();
        while at < range.end {
            let store = self.store();
            let end = range.end.min(at + PIECE);
            store
                .get_range(from, at..end, &mut piece)
                .context(from)?
                .ok_or_else(Error::stale)?;
            if piece.is_empty() || write(at, &piece)? != piece.len() {
                return Err(Error::stale());
            }
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// Removes guards after the kernel has written back and dropped the pages that they guard
    /// against.
    pub fn pages_dropped(&self, guards: &[GuardId]) {
        self.guards.remove(guards);
    }

    /// Fails if a directory shows anything but the names that exist as long as it does: a program
    /// that removes it without listing it first, as Python's `os.renames` does, must remove nothing
    /// that is stored.
    ///
    /// # Errors
    ///
    /// ENOTEMPTY.
    pub(super) fn check_empty(&self, key: &Key) -> Result<()> {
        // a chunk that is not stored yet counts, too
        self.flush_below(key)?;
        for name in self.tree.names(&Node::Directory(key.clone()))? {
            let name = name?.name;
            let is_generated = match name.as_str() {
                FLAT => self.tree.array(key).is_ok(),
                ZARR_JSON | ZGROUP => !self.tree.hierarchy().has_stored_group(key)?,
                name => self.tree.comes_with(key, name),
            };
            if !is_generated {
                return Err(Error::system(libc::ENOTEMPTY).context(key));
            }
        }
        Ok(())
    }
}
