//! Which pages of a file the kernel may keep when it is opened: all, as long as nothing has changed since the file was
//! opened before. It knows nothing of how that is found out, or told to the kernel.

use crate::cache::VersionTag;
use crate::util::memory::lock;
use lru::LruCache;
use std::num::NonZeroUsize;
use std::sync::Mutex;

/// Files remembered. Of one that is forgotten the next opening drops the pages.
const FILES: NonZeroUsize = NonZeroUsize::new(1 << 16).unwrap();

/// The files that were opened, by inode number.
pub struct Pages {
    /// Protects the map.
    files: Mutex<LruCache<u64, File>>,
}

struct File {
    /// Of the file when it was opened last.
    mark: VersionTag,
    /// Openings that make the kernel drop the pages, and of which it is not known whether it has: until then, no other
    /// opening may have it keep them.
    dropping: usize,
}

impl Pages {
    /// No file was opened yet.
    pub fn new() -> Self {
        Pages { files: Mutex::new(LruCache::new(FILES)) }
    }

    /// Notes an opening of a file that is as `mark` tells, and, as far as the mark does not tell, the `same` as at the
    /// opening before. True if the kernel may keep its pages; else [`Pages::dropped`] must follow.
    pub fn open(&self, inode: u64, mark: VersionTag, same: bool) -> bool {
        let mut files = lock(&self.files);
        let Some(file) = files.get_mut(&inode) else {
            files.put(inode, File { mark, dropping: 1 });
            return false;
        };
        let keep = same && file.mark == mark && file.dropping == 0;
        file.mark = mark;
        file.dropping += usize::from(!keep);
        keep
    }

    /// The kernel has got the answer to an opening that dropped the pages.
    pub fn dropped(&self, inode: u64) {
        if let Some(file) = lock(&self.files).get_mut(&inode) {
            file.dropping = file.dropping.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Version;

    #[test]
    fn pages_are_kept_only_while_nothing_changes_and_nobody_drops_them() {
        let [a, b] = [1, 2].map(|n| VersionTag::of(Some(&Version::Count(n))));
        let pages = Pages::new();
        assert!(!pages.open(7, a, true), "nothing is known before");
        assert!(!pages.open(7, a, true), "the first may still be under way");
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
