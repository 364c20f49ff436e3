//! Containers of one array, whose array becomes longer or shorter while they are open. The mount
//! shows the container with its new size at once, so an open file continues as that file if its
//! values begin at the same offset. Otherwise its requests fail with ESTALE.

use super::CompositeFile;
use crate::array::Array;
use crate::fs::Fs;
use crate::fs::files::items::another_array;
use std::sync::{Arc, OnceLock};
use zarrfs_base::error::Result;
use zarrfs_export::{FilePart, PartContent};
use zarrfs_store::Key;

impl CompositeFile {
    /// Returns the file that this one continues as; `None` if the array has its shape still.
    pub(super) fn continued(&self, fs: &Fs) -> Result<Option<&CompositeFile>> {
        if let Some(next) = self.next.get() {
            return Ok(Some(next));
        }
        let Some((number, part, key)) = self.values_of_array() else {
            return Ok(None);
        };
        let array = match self.flat.get(number).and_then(OnceLock::get) {
            Some(flat) => flat.array.latest(fs)?,
            None => fs.tree.array(key)?,
        };
        if part.is_of(array.metadata()) {
            return Ok(None);
        }
        let file = fs.tree.composite(&self.node)?;
        let stale = || another_array().context(self.node.path());
        let values = file.parts().last().ok_or_else(stale)?;
        if !values.is_longer_or_shorter(part) {
            return Err(stale());
        }
        let next = CompositeFile {
            inode: self.inode,
            writable: self.writable,
            short_at_end: self.short_at_end,
            record: self.record.clone(),
            ..CompositeFile::new(self.node.clone(), file, self.is_kept_elsewhere)
        };
        Ok(Some(self.next.get_or_init(|| Box::new(next))))
    }

    /// Returns whether [`CompositeFile::continued`] may return a file, without asking the store.
    pub(super) fn may_continue(&self, fs: &Fs) -> bool {
        let Some((number, part, key)) = self.values_of_array() else {
            return false;
        };
        let is_other = |array: Arc<Array>| array.is_superseded() || !part.is_of(array.metadata());
        self.next.get().is_some()
            || match self.flat.get(number).and_then(OnceLock::get) {
                Some(flat) => is_other(flat.array.known()),
                None => fs.tree.hierarchy().cached_array(key).is_some_and(is_other),
            }
    }

    /// Returns the last part of a container of one array, with its number and the array's key.
    fn values_of_array(&self) -> Option<(usize, &FilePart, &Key)> {
        let part = self.file.parts().last()?;
        match &part.content {
            PartContent::Flat { key, .. } if self.node.container().is_none() => {
                Some((self.file.parts().len() - 1, part, key))
            }
            _ => None,
        }
    }
}
