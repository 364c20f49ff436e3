//! Files that a program copies before what they are made of: `data.raw`, headers and chunks before
//! the document of their array, the container of a group before the arrays. Programs copy the files
//! of a directory in any order.
//!
//! Invariant: **a file under a generated name is never lost and never changes what was written
//! after it.** Until the mount shows the generated file it is a plain key. When the document of the
//! array is stored, its values go to the array, and the key is removed; chunks are encoded
//! ([`Hierarchy::put_document`](crate::array::hierarchy::Hierarchy::put_document)). A header that
//! describes coordinates which follow, or the container of a group whose arrays follow, is compared
//! with the generated one at the next sync, and its key is removed if they are the same. A file
//! with another content stays, hidden, and is a problem.

use super::files::OpenFile;
use super::files::composite::CompositeFile;
use super::files::flat::FlatFile;
use super::files::plain::PlainFile;
use super::names::MAX_PLAIN;
use super::{Change, Fs};
use crate::cache::Wait;
use crate::fs::tree::{FLAT, Node};
use std::ops::Range;
use std::sync::Arc;
use zarrfs_base::error::{Error, Kind, Result};
use zarrfs_store::{EntryKind, Key};

/// Number of bytes that are compared at a time.
const PIECE: u64 = 1 << 20;

/// Why a file stays hidden.
const HIDDEN: &str = "stays in the store, hidden by the file of this name that the mount shows";

impl Fs {
    /// Returns whether a file that cannot become the generated one may become it later: arrays that
    /// it shows may follow.
    pub(super) fn may_be_early(&self, node: &Node) -> bool {
        self.tree.is_empty_container(node)
            || self.absent.copies.has_copied_below(&node.path().parent())
    }
}

/// A file under a generated name that a program has written before the file that the mount shows.
pub struct EarlyFile<'a> {
    fs: &'a Change<'a>,
    path: &'a Key,
}

impl<'a> EarlyFile<'a> {
    /// Returns the file that is stored under the key `path`.
    pub fn new(fs: &'a Change<'a>, path: &'a Key) -> Self {
        EarlyFile { fs, path }
    }

    /// Returns whether a generated file shows what is in the plain key `path`. Of a header, the
    /// values count: the rest is made of the documents, and differs in the copy of an array under
    /// another name.
    fn is_shown(&self, to: &Node) -> Result<bool> {
        let size = self.fs.store().stat(self.path)?.map_or(0, |stat| stat.size);
        let shown = self.fs.tree.attributes(to)?.size;
        if let Some(key) = to.flat() {
            let file = FlatFile::open(self.fs, self.fs.tree.inode(to), key, false, false)?.file;
            return Ok(size == shown && self.is_same(&*file, 0..size, 0)?);
        }
        let (file, _) = CompositeFile::open(self.fs, self.fs.tree.inode(to), to, false, false)?;
        if file.is_text() {
            return Ok(true);
        }
        if to.container().is_some() {
            return Ok(size == shown && self.is_same(&file, 0..size, 0)?);
        }
        // values end with the file, and the text before them may have another length
        for range in file.values() {
            let Some(start) = (range.start + size).checked_sub(shown) else {
                return Ok(false);
            };
            if !self.is_same(&file, range, start)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns whether bytes of an open file are those of the plain key `path` at `start`.
    fn is_same(&self, file: &dyn OpenFile, range: Range<u64>, start: u64) -> Result<bool> {
        let mut stored = Vec::new();
        let mut shown = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let len = (range.end - at).min(PIECE);
            let begin = start + (at - range.start);
            self.fs
                .store()
                .get_range(self.path, begin..begin + len, &mut stored)
                .map_err(|e| e.context(self.path))?
                .ok_or_else(Error::stale)?;
            let found = file.read(self.fs, at, len as usize, Wait::Allowed, &mut shown)?;
            found.copy_to(&mut shown);
            if stored != shown {
                return Ok(false);
            }
            at += len;
        }
        Ok(true)
    }

    /// Writes a plain key into the generated file of its name, and removes the key.
    ///
    /// # Errors
    ///
    /// The file cannot become the generated one; the key stays.
    pub fn take(&self) -> Result<()> {
        let key = self.path.parent();
        let to = if self.path.name() == FLAT {
            Node::Flat(key.clone())
        } else {
            let generated = self.fs.tree.generated(self.path);
            generated.ok_or_else(|| Error::invalid("the array does not show such a file"))?
        };
        if !self.is_shown(&to)? {
            match to.flat() {
                Some(key) => self
                    .fs
                    .writer
                    .copy_into(self.path, &self.fs.tree.array(key)?)?,
                None => self.fs.copy_onto(self.path, &to)?,
            }
        }
        self.remove()
    }

    /// Removes the key if the mount shows the same file by now.
    ///
    /// # Errors
    ///
    /// EINVAL if the mount shows a file with another content.
    fn settle(&self) -> Result<()> {
        if self.fs.store().stat(self.path)?.is_none() {
            self.fs.tree.early.remove(self.path);
            return Ok(());
        }
        let Some(to) = self.fs.tree.generated(self.path) else {
            return Ok(());
        };
        if self.is_shown(&to)? {
            self.remove()
        } else if self.fs.tree.is_empty_container(&to) {
            // it is shown as it is
            Ok(())
        } else {
            Err(Error::invalid("its content is another one"))
        }
    }

    /// Removes the key, since the mount shows its content.
    pub fn remove(&self) -> Result<()> {
        let node = Node::Value(self.path.clone());
        let inode = self.fs.tree.inode(&node);
        let open = self.fs.files.matching(|file| file.inode() == inode);
        open.iter().for_each(|file| file.end_writing());
        self.fs.drafts.take(self.path);
        self.fs
            .store()
            .delete(self.path)
            .map_err(|e| e.context(self.path))?;
        self.fs.tree.removed(&node);
        self.fs.tree.early.remove(self.path);
        Ok(())
    }
}

impl Change<'_> {
    /// Creates an empty plain key under the name of a generated file, which hides it.
    pub(super) fn create_early(&self, node: &Node) -> Result<Arc<dyn OpenFile>> {
        let path = node.path();
        let new = match self.store().writable_file(&path, true, false) {
            Err(e) if e.kind() == Kind::Unsupported => {
                let node = Node::Value(path);
                let inode = self.tree.inode(&node);
                self.drafts
                    .open(&node, inode, None, None, MAX_PLAIN)?
                    .opened()
            }
            file => PlainFile::open(0, Some(file.map_err(|e| e.context(path))?)),
        };
        new.file.set_len(0)?;
        Ok(new.file)
    }

    /// Writes the generated files that a program has copied before the document of their array into
    /// the array, and removes their keys.
    pub(super) fn take_early_files(&self, key: &Key) {
        let is_remote = self.tree.array(key).is_ok_and(|array| array.is_remote());
        for name in self.tree.generated_names() {
            let from = key.join(name);
            // each question to a server takes a round trip; a store on a disk may have files that
            // another mount has received
            if is_remote && !self.tree.early.contains(&from) {
                continue;
            }
            let stat = self.store().stat(&from);
            if !matches!(stat, Ok(Some(stat)) if stat.kind == EntryKind::Value) {
                continue;
            }
            match EarlyFile::new(self, &from).take() {
                Ok(()) => {}
                Err(e) if name == FLAT => self.stats.problem(format!("{from}: {HIDDEN}: {e}")),
                // the coordinates that it describes may follow
                Err(_) => self.tree.record_early(&from),
            }
        }
    }

    /// Removes the keys of the files that the mount shows by now.
    pub(super) fn settle_early_files(&self) {
        for path in self.tree.early.all() {
            let inode = self.tree.inode(&Node::Value(path.clone()));
            if self.files.any(|file| file.inode() == inode) {
                continue;
            }
            if let Err(e) = EarlyFile::new(self, &path).settle() {
                self.stats.problem(format!("{path}: {HIDDEN}: {e}"));
            }
        }
    }
}
