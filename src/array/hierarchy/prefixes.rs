//! Traversal of groups. The prefixes one level below a group are taken one by one, while the content of several of them
//! is requested together.

use super::{Hierarchy, StoredNode};
use crate::error::Result;
use crate::store::{EntryKind, Key, Store};
use crate::util::memory::Grant;

/// Number of prefixes whose names and documents are requested together: as many as a store answers at the same time,
/// and few enough to be used before they expire.
const TOGETHER: usize = 64;

/// The prefixes one level below a group, last name first.
#[derive(Default)]
pub struct Prefixes {
    /// The keys of the prefixes.
    pub keys: Vec<Key>,
    memory: Grant,
    /// Number of keys at the end of `keys` whose content has been requested.
    requested: usize,
}

impl Prefixes {
    /// Returns the prefixes at these keys, which are sorted in descending order.
    pub fn sorted(mut keys: Vec<Key>) -> Self {
        keys.sort_unstable_by(|a, b| b.cmp(a));
        Prefixes { keys, ..Prefixes::default() }
    }

    /// Takes the next prefix. Before the first of a batch, requests the content of the whole batch.
    pub fn next(&mut self, store: &dyn Store) -> Option<Key> {
        if self.requested == 0 {
            let rest = self.keys.len().saturating_sub(TOGETHER);
            self.requested = self.keys.len() - rest;
            store.prefetch(self.keys.get(rest..).unwrap_or_default());
        }
        self.requested = self.requested.saturating_sub(1);
        self.keys.pop()
    }
}

/// The allocator's overhead for each allocation, in bytes.
const ALLOCATION: usize = 16;

impl Hierarchy {
    /// Calls `visit` for `key` and for every group and array below it, in the order of their names. An unreadable node
    /// is visited as damaged. Plain keys, and everything below an array, are not visited.
    pub fn visit_below(&self, key: &Key, visit: &mut dyn FnMut(&Key, &StoredNode)) {
        let mut levels = vec![Prefixes::sorted(vec![key.clone()])];
        while let Some(level) = levels.last_mut() {
            let Some(key) = level.next(self.store()) else {
                levels.pop();
                continue;
            };
            let found = self.find(&key).and_then(|place| match place {
                Some(StoredNode::Group) => Ok(Some((StoredNode::Group, self.prefixes(&key)?))),
                place => Ok(place.map(|place| (place, Prefixes::default()))),
            });
            match found {
                Ok(None) => {}
                Ok(Some((place, below))) => {
                    visit(&key, &place);
                    levels.push(below);
                }
                Err(e) => {
                    self.stats.problem(e.to_string());
                    visit(&key, &StoredNode::Damaged(e));
                }
            }
        }
    }

    /// Returns the prefixes one level below a group.
    pub fn prefixes(&self, key: &Key) -> Result<Prefixes> {
        let mut below = Prefixes::default();
        for entry in self.list(key)? {
            let entry = entry.map_err(|e| e.context(key))?;
            if entry.kind == EntryKind::Prefix {
                let prefix = key.child(&entry.name)?;
                let memory = 2 * size_of::<Key>() + prefix.as_str().len() + ALLOCATION;
                below.memory.grow(memory).map_err(|e| e.context(format!("{key}: the names in it")))?;
                below.keys.push(prefix);
            }
        }
        below.keys.sort_unstable_by(|a, b| b.cmp(a));
        Ok(below)
    }
}
