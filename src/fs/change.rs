//! The changes that one request makes, and the pages that they make stale.

use super::Fs;
use super::write::{ArrayWriter, StalePages};
use std::ops::Deref;
use zarrfs_base::memory::lock;

/// The changes that one request makes. What may make pages of other files stale is a method of this
/// type or of its writer, which collects these files. It sees all of the file system.
pub struct Change<'a> {
    fs: &'a Fs,
    pub(super) writer: ArrayWriter<'a>,
}

impl Drop for Change<'_> {
    /// The next request gets the files that no request has taken. Some changes belong to no
    /// request, such as a sync at the end of an idle time. If this dropped their list, its guards
    /// would stay for ever.
    fn drop(&mut self) {
        let left = self.writer.stale.take();
        if left.is_empty() {
            return;
        }
        let mut unsent = lock(&self.fs.unsent_stale_pages);
        for stale in left {
            unsent.entry(stale.inode).or_default().extend(stale.guards);
        }
    }
}

impl Deref for Change<'_> {
    type Target = Fs;

    fn deref(&self) -> &Fs {
        self.fs
    }
}

impl Fs {
    /// Begins the changes of a request.
    pub fn change(&self) -> Change<'_> {
        Change {
            fs: self,
            writer: ArrayWriter::new(&self.arrays),
        }
    }

    /// Returns the files with stale pages of changes that ended without a request, once.
    pub fn take_unsent_stale_pages(&self) -> Vec<StalePages> {
        let unsent = std::mem::take(&mut *lock(&self.unsent_stale_pages));
        unsent
            .into_iter()
            .map(|(inode, guards)| StalePages {
                inode,
                is_awaited: false,
                guards,
            })
            .collect()
    }
}

impl Change<'_> {
    /// Takes the files whose pages the kernel must drop because of what was changed so far.
    pub fn take_stale_pages(&self) -> Vec<StalePages> {
        self.writer.stale.take()
    }
}
