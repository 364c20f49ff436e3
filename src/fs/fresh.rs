//! Groups that were made just now by mkdir(2), each with the `.zgroup` that this gives it. Programs that copy trees take
//! a directory they have made to be empty, and make its files as new ones (`cp -r`, `tar`): to them the document must
//! not be there yet.

use crate::store::Key;
use crate::util::memory::lock;
use lru::LruCache;
use std::num::NonZeroUsize;
use std::sync::Mutex;

/// Groups remembered: a program makes many before it comes back to write their documents.
const GROUPS: NonZeroUsize = NonZeroUsize::new(1 << 16).unwrap();

/// Groups whose document nobody has written.
pub struct FreshGroups {
    /// Protects the map to who has made the group; None once he has looked for its document.
    made: Mutex<LruCache<Key, Option<u32>>>,
}

impl FreshGroups {
    /// None yet.
    pub fn new() -> Self {
        FreshGroups { made: Mutex::new(LruCache::new(GROUPS)) }
    }

    /// The process `maker` has made the group at `key`.
    pub fn made(&self, key: Key, maker: u32) {
        lock(&self.made).put(key, Some(maker));
    }

    /// True, once, if it is its maker who looks for the document of the group at `key`.
    pub fn hides(&self, key: &Key, who: u32) -> bool {
        let mut made = lock(&self.made);
        made.peek_mut(key).is_some_and(|maker| maker.take_if(|maker| *maker == who).is_some())
    }

    /// True if nobody has written the document of the group at `key`: it may be made as if it were not there.
    pub fn contains(&self, key: &Key) -> bool {
        lock(&self.made).contains(key)
    }

    /// What stands at `key` was written, removed or renamed.
    pub fn forget(&self, key: &Key) {
        lock(&self.made).pop(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_maker_of_a_group_misses_its_document_once() {
        let (fresh, key) = (FreshGroups::new(), Key::root());
        fresh.made(key.clone(), 7);
        assert!(!fresh.hides(&key, 8));
        assert!(fresh.hides(&key, 7) && !fresh.hides(&key, 7));
        assert!(fresh.contains(&key));
        fresh.forget(&key);
        assert!(!fresh.contains(&key) && !fresh.hides(&key, 7));
    }
}
