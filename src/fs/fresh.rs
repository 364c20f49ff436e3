//! Groups that mkdir(2) has just created, each with a `.zgroup`. Programs that copy trees expect a directory that they
//! have created to be empty, and create its files as new ones (`cp -r`, `tar`): for them the document must not exist
//! yet. A process may look the document up from another thread than the one that made the directory, as zarr-python 3
//! does.

use crate::store::Key;
use crate::util::memory::lock;
use lru::LruCache;
use std::num::NonZeroUsize;
use std::sync::Mutex;

/// Maximum number of groups recorded: a program creates many before it writes their documents.
const GROUPS: NonZeroUsize = NonZeroUsize::new(1 << 16).unwrap();

/// A set of groups whose documents were not written yet.
pub struct FreshGroups {
    /// The process that created each group; `None` once that process has looked the document up. The lock protects the
    /// map.
    made: Mutex<LruCache<Key, Option<u32>>>,
}

impl FreshGroups {
    /// Returns an empty set.
    pub fn new() -> Self {
        FreshGroups { made: Mutex::new(LruCache::new(GROUPS)) }
    }

    /// Records that the thread has created the group at `key`.
    pub fn made(&self, key: Key, thread: u32) {
        lock(&self.made).put(key, Some(process_of(thread)));
    }

    /// Returns whether a lookup of the document of the group at `key` must fail because the thread's process has
    /// created the group. Only its first lookup fails.
    pub fn hides(&self, key: &Key, thread: u32) -> bool {
        let mut made = lock(&self.made);
        let is_maker = |maker: &mut u32| *maker == process_of(thread);
        made.peek_mut(key).is_some_and(|maker| maker.take_if(is_maker).is_some())
    }

    /// Returns whether the document of the group at `key` was not written yet, so that it may be created exclusively.
    pub fn contains(&self, key: &Key) -> bool {
        lock(&self.made).contains(key)
    }

    /// Forgets the group at `key`, because its document was written or it was removed or renamed.
    pub fn forget(&self, key: &Key) {
        lock(&self.made).pop(key);
    }
}

/// Returns the number of the process that a thread belongs to, or the thread's own number if the thread has ended.
fn process_of(thread: u32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    let process = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    process.and_then(|process| process.trim().parse().ok()).unwrap_or(thread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_several_threads() {
        // the name of the link is PROCESS/task/THREAD
        let thread = || {
            let link = std::fs::read_link("/proc/thread-self").unwrap();
            link.file_name().unwrap().to_str().unwrap().parse::<u32>().unwrap()
        };
        let here = std::process::id();
        let process = std::thread::spawn(move || process_of(thread())).join().unwrap();
        assert_eq!((process, process_of(thread())), (here, here));
        assert_eq!(process_of(u32::MAX), u32::MAX);
    }

    #[test]
    fn the_creator_of_a_group_misses_its_document_once() {
        let (fresh, key) = (FreshGroups::new(), Key::root());
        fresh.made(key.clone(), 7);
        assert!(!fresh.hides(&key, 8));
        assert!(fresh.hides(&key, 7) && !fresh.hides(&key, 7));
        assert!(fresh.contains(&key));
        fresh.forget(&key);
        assert!(!fresh.contains(&key) && !fresh.hides(&key, 7));
    }
}
