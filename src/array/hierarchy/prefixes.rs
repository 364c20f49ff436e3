//! The prefixes one level below a group, taken one by one, while what is in several of them is requested together.

use crate::store::{Key, Store};
use crate::util::memory::Grant;

/// Number of prefixes whose names and documents are requested together: as many as a store answers at the same time, and few
/// enough to be used before they expire.
const TOGETHER: usize = 64;

/// The prefixes one level below a group, last name first.
#[derive(Default)]
pub struct Prefixes {
    /// The keys of the prefixes.
    pub keys: Vec<Key>,
    pub(super) memory: Grant,
    /// Number of keys, counted from the end, that were requested.
    requested: usize,
}

impl Prefixes {
    /// Returns the prefixes at these keys, which are sorted in descending order.
    pub fn sorted(mut keys: Vec<Key>) -> Self {
        keys.sort_unstable_by(|a, b| b.cmp(a));
        Prefixes { keys, ..Prefixes::default() }
    }

    /// Takes the next prefix. Before the first of several, what is in them is requested together.
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
