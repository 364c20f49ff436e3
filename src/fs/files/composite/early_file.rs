//! A file under a generated name that a program has written before the mount shows such a file:
//! compares both, and writes one into the other. When this is done is in `fs::early_files`.

use super::CompositeFile;
use crate::cache::Wait;
use crate::fs::Change;
use crate::fs::files::OpenFile;
use crate::fs::files::flat::FlatFile;
use crate::fs::tree::{FLAT, Node};
use std::ops::Range;
use zarrfs_base::error::{Error, ErrorContext, Result};
use zarrfs_store::{Key, StoreExt};

/// Number of bytes that are compared at a time.
const PIECE: u64 = 1 << 20;

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

    /// Returns whether a generated file shows the content of the plain key `path`. Of a header, the
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

    /// Returns whether bytes of an open file equal the bytes of the plain key `path` at `start`.
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
                .context(self.path)?
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
    pub fn settle(&self) -> Result<()> {
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
        self.fs.store().delete(self.path).context(self.path)?;
        self.fs.tree.removed(&node);
        self.fs.tree.early.remove(self.path);
        Ok(())
    }
}
