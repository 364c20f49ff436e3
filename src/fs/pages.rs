//! Decides whether the kernel may keep the pages of a file when the file is opened: if nothing has
//! changed since the previous opening. This module knows neither how changes are detected nor how
//! the kernel is informed.

use crate::array::VersionTag;
use lru::LruCache;
use std::num::NonZeroUsize;
use std::sync::Mutex;
use zarrfs_base::memory::lock;

/// Maximum number of files recorded. The next opening of a file that was forgotten drops its pages.
const FILES: NonZeroUsize = NonZeroUsize::new(1 << 16).unwrap();

/// The files that were opened, by inode number.
pub struct Pages {
    /// Protects the map.
    files: Mutex<LruCache<u64, FilePages>>,
}

/// The pages of a file.
struct FilePages {
    /// The version of the file when it was opened last.
    tag: VersionTag,
    /// The number of openings at which the kernel drops the pages, but may not have done so yet.
    /// Until then no other opening may keep them.
    dropping: usize,
}

impl Pages {
    /// Creates an empty record.
    pub fn new() -> Self {
        Pages {
            files: Mutex::new(LruCache::new(FILES)),
        }
    }

    /// Records an opening of a file of the version `tag`. `same` says whether everything that the
    /// version does not cover is unchanged since the previous opening. Returns whether the kernel
    /// may keep its pages; if not, a call of [`Pages::dropped`] must follow.
    pub fn open(&self, inode: u64, tag: VersionTag, same: bool) -> bool {
        let mut files = lock(&self.files);
        let Some(file) = files.get_mut(&inode) else {
            files.put(inode, FilePages { tag, dropping: 1 });
            return false;
        };
        let keep = same && file.tag == tag && file.dropping == 0;
        file.tag = tag;
        file.dropping += usize::from(!keep);
        keep
    }

    /// Makes the next opening of a file drop its pages.
    pub fn forget(&self, inode: u64) {
        lock(&self.files).pop(&inode);
    }

    /// Records that the kernel has received the answer to an opening that drops the pages.
    pub fn dropped(&self, inode: u64) {
        if let Some(file) = lock(&self.files).get_mut(&inode) {
            file.dropping = file.dropping.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zarrfs_store::Version;

    #[test]
    fn pages_are_kept_only_while_nothing_changes_and_no_opening_drops_them() {
        let [a, b] = [1, 2].map(|n| VersionTag::of(Some(&Version::Count(n))));
        let pages = Pages::new();
        assert!(!pages.open(7, a, true), "nothing is known before");
        assert!(!pages.open(7, a, true), "the first may still be in flight");
        pages.dropped(7);
        assert!(!pages.open(7, a, true));
        pages.dropped(7);
        pages.dropped(7);
        assert!(pages.open(7, a, true));
        assert!(!pages.open(7, b, true));
        pages.dropped(7);
        assert!(pages.open(7, b, true) && !pages.open(7, b, false));
        pages.dropped(7);
        assert!(pages.open(7, b, true) && !pages.open(8, b, true));
    }
}
