//! Chunk files that are removed while they are open. As on any file system, they keep their bytes
//! until they are closed, and take writes that no other program sees. The bytes are in memory if
//! there is some to spare, or in an unnamed file.

use super::draft::ChunkDraft;
use super::{ChunkFile, Draft};
use crate::cache::Wait;
use crate::fs::files::draft::DraftBytes;
use crate::fs::files::{Handles, OpenFile};
use crate::fs::tree::Node;
use crate::fs::{Change, Fs};
use std::sync::{Arc, MutexGuard};
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory::lock;

/// Number of bytes that are copied at a time.
const PIECE: usize = 8 << 20;

impl ChunkFile {
    /// Returns whether the file was removed, after a removal in flight has ended. Returns `None` if
    /// that would need a wait that `wait` does not allow.
    pub(super) fn is_removed(&self, wait: Wait) -> Option<bool> {
        let _draft = self.lock_draft(wait)?;
        Some(self.removed.get().is_some())
    }
}

impl Handles<dyn OpenFile> {
    /// Returns the open chunk files with an inode number.
    fn open_chunk_files(&self, inode: u64) -> Vec<Arc<dyn OpenFile>> {
        self.matching(|file| file.inode() == inode && file.as_chunk().is_some())
    }
}

impl Fs {
    /// Returns the content of the chunk file `node`, with the drafts of the files that have it
    /// open.
    fn removed_content(
        &self,
        node: &Node,
        inode: u64,
        drafts: &[MutexGuard<Option<ChunkDraft>>],
    ) -> Result<Arc<Draft>> {
        let (key, name) = node.chunk().ok_or_else(Error::stale)?;
        let (array, chunk) = self.tree.stored_chunk(key, name)?;
        let is_stored = self.cache.is_dirty(&array, chunk) || array.stat_chunk(chunk)?.is_some();
        let size = array.grid().chunk_size(chunk);
        let end = self.truncations.end(inode);
        let end = end.map_or(usize::MAX, |end| end as usize);
        let mut bytes = DraftBytes::new(size, &self.options.spill.directory)?;
        let mut piece = Vec::new();
        let mut at = 0;
        loop {
            let len = PIECE.min(end - at);
            if is_stored {
                let from = at as u64;
                self.arrays
                    .read_chunk(&array, name, from, len, Wait::Allowed, &mut piece)?;
            } else {
                piece.resize(len.min(size - at), 0);
                array.metadata().write_fill(&mut piece, at as u64);
            }
            if piece.is_empty() {
                break;
            }
            for draft in drafts.iter().filter_map(|draft| draft.as_ref()) {
                draft.overlay(at, &mut piece)?;
            }
            bytes.write(at, &piece)?;
            at += piece.len();
        }
        let limit = size.max(at) as u64;
        Ok(Draft::removed((node, inode), bytes, at as u64, limit))
    }
}

impl Change<'_> {
    /// Removes a chunk file. Files that have it open keep its bytes, unless these cannot be read.
    pub(in crate::fs) fn unlink_chunk(&self, node: &Node) -> Result<()> {
        let inode = self.tree.inode(node);
        let open = self.files.open_chunk_files(inode);
        let chunks = open.iter().filter_map(|file| file.as_chunk());
        // no file writes to the chunk while it is removed
        let mut drafts: Vec<_> = chunks.map(|chunk| lock(&chunk.draft)).collect();
        let content = if drafts.is_empty() {
            None
        } else {
            self.removed_content(node, inode, &drafts)
                .inspect_err(|e| log::debug!("{}: not kept while it is open: {e}", node.path()))
                .ok()
        };
        self.remove(node)?;
        self.tree.removed(node);
        let Some(content) = content else {
            return Ok(());
        };
        self.truncations.forget(inode);
        drafts.iter_mut().for_each(|draft| **draft = None);
        // a file may have been opened meanwhile
        for file in self.files.open_chunk_files(inode) {
            if let Some(chunk) = file.as_chunk() {
                let _ = chunk.removed.set(content.clone());
            }
        }
        Ok(())
    }
}
