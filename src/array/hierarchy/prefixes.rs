//! Traversal of groups. The prefixes one level below a group are taken one by one, while the
//! content of several of them is requested together.
//!
//! **Every traversal ends.** A server may answer each listing with one more prefix, and an archive
//! may nest 30,000 levels: [`WalkBounds`] bounds depth, number and time, and what is cut off is an
//! error.

use super::{Hierarchy, NodeUse, StoredNode};
use std::time::{Duration, Instant};
use zarrfs_base::error::{Error, ErrorContext, Kind, Result};
use zarrfs_base::memory::Grant;
use zarrfs_store::{EntryKind, Hint, Key, MAX_DEPTH, Store};

/// Number of prefixes whose names and documents are requested together: as many as a store answers
/// at the same time, and few enough to be used before they expire.
const TOGETHER: usize = 64;

/// Maximum number of groups and arrays in a traversal.
pub const MAX_NODES: usize = 1 << 20;

/// Maximum number of names in a group.
pub const MAX_NAMES: usize = 1 << 22;

/// Maximum time of a traversal that looks at groups and arrays alone.
const MAX_TIME: Duration = Duration::from_secs(3600);

/// The bounds of a traversal.
pub struct WalkBounds {
    nodes: usize,
    end: Option<Instant>,
    is_spent: bool,
}

impl WalkBounds {
    /// Begins a traversal that takes as long as what the caller does with each node.
    pub fn without_end() -> Self {
        WalkBounds {
            nodes: MAX_NODES,
            end: None,
            is_spent: false,
        }
    }

    /// Begins a traversal that looks at nodes alone.
    fn new() -> Self {
        WalkBounds {
            end: Instant::now().checked_add(MAX_TIME),
            ..Self::without_end()
        }
    }

    /// Checks that the node at `key` is within the bounds, and counts it.
    ///
    /// # Errors
    ///
    /// [`Kind::TooLarge`](zarrfs_base::error::Kind::TooLarge) if it is not. Unless it only lies too
    /// deep, the traversal must [end](WalkBounds::is_spent).
    pub fn admit(&mut self, key: &Key) -> Result<()> {
        if key.depth() > MAX_DEPTH {
            let names: String = key.to_string().chars().take(80).collect();
            return Err(too_much(format!(
                "{names}...: lies more than {MAX_DEPTH} levels deep: left out with all below it"
            )));
        }
        let why = match self.end {
            _ if self.nodes == 0 => format!("more than {MAX_NODES} groups and arrays"),
            Some(end) if Instant::now() > end => {
                format!("not all listed after {} s", MAX_TIME.as_secs())
            }
            _ => {
                self.nodes -= 1;
                return Ok(());
            }
        };
        self.is_spent = true;
        Err(too_much(format!("{why}: left out from {key} on")))
    }

    /// Returns whether nothing more may be visited.
    pub fn is_spent(&self) -> bool {
        self.is_spent
    }
}

/// Returns an error for something beyond the bounds of a traversal.
pub fn too_much(why: impl Into<String>) -> Error {
    Error::new(Kind::TooLarge, why)
}

/// The prefixes one level below a group, last name first.
#[derive(Default)]
pub struct Prefixes {
    /// The keys of the prefixes.
    pub keys: Vec<Key>,
    /// Grant for their memory.
    pub memory: Grant,
    /// Number of keys at the end of `keys` whose content has been requested.
    requested: usize,
}

impl Prefixes {
    /// Returns the prefixes at these keys, which are sorted in descending order.
    pub fn sorted(mut keys: Vec<Key>) -> Self {
        keys.sort_unstable_by(|a, b| b.cmp(a));
        Prefixes {
            keys,
            ..Prefixes::default()
        }
    }

    /// Takes the next prefix. Before the first of a batch, requests the content of the whole batch.
    pub fn next(&mut self, store: &dyn Store) -> Option<Key> {
        if self.requested == 0 {
            let rest = self.keys.len().saturating_sub(TOGETHER);
            self.requested = self.keys.len() - rest;
            store.hint(Hint::Nodes(self.keys.get(rest..).unwrap_or_default()));
        }
        self.requested = self.requested.saturating_sub(1);
        self.keys.pop()
    }
}

/// The allocator's overhead for each allocation, in bytes.
const ALLOCATION: usize = 16;

impl Hierarchy {
    /// Calls `visit` for `key` and for every group and array below it, in the order of their names.
    /// An unreadable node is visited as damaged. Plain keys, and everything below an array, are not
    /// visited, nor what lies beyond the [bounds](WalkBounds), which is recorded as left out.
    ///
    /// # Errors
    ///
    /// The first error of `visit`, which ends the traversal.
    pub fn visit_below(
        &self,
        key: &Key,
        used: NodeUse,
        visit: &mut dyn FnMut(&Key, &StoredNode) -> Result<()>,
    ) -> Result<()> {
        let mut levels = vec![Prefixes::sorted(vec![key.clone()])];
        let mut bounds = WalkBounds::new();
        while let Some(level) = levels.last_mut() {
            let Some(key) = level.next(self.store()) else {
                levels.pop();
                continue;
            };
            let found = bounds
                .admit(&key)
                .and_then(|()| self.find_for(&key, used))
                .and_then(|place| match place {
                    Some(place) if place.is_group() => Ok(Some((place, self.prefixes(&key)?))),
                    place => Ok(place.map(|place| (place, Prefixes::default()))),
                });
            match found {
                Ok(None) => {}
                Ok(Some((place, below))) => {
                    visit(&key, &place)?;
                    levels.push(below);
                }
                Err(e) => {
                    self.record(&e);
                    visit(&key, &StoredNode::Damaged(e))?;
                    if bounds.is_spent() {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// Records an error of a traversal as a problem.
    fn record(&self, e: &Error) {
        match e.kind() {
            Kind::TooLarge => self.stats.left_out(e.to_string()),
            _ => self.stats.problem(e.to_string()),
        }
    }

    /// Returns what was found to have no place in the mount, such as names that cannot be keys.
    pub fn left_out(&self) -> Vec<String> {
        self.stats.all_left_out()
    }

    /// Returns the prefixes one level below a group.
    ///
    /// # Errors
    ///
    /// The store fails, the group has too many names, or there is no memory for them.
    pub fn prefixes(&self, key: &Key) -> Result<Prefixes> {
        let mut below = Prefixes::default();
        for (count, entry) in self.list(key)?.enumerate() {
            let entry = entry.context(key)?;
            if count >= MAX_NAMES || below.keys.len() >= MAX_NODES {
                return Err(too_much(format!(
                    "{key}: more than {count} names: left out"
                )));
            }
            if entry.kind == EntryKind::Prefix {
                let prefix = key.child(&entry.name)?;
                let memory = 2 * size_of::<Key>() + prefix.as_str().len() + ALLOCATION;
                below
                    .memory
                    .grow(memory)
                    .map_err(|e| e.context(format!("{key}: the names in it")))?;
                below.keys.push(prefix);
            }
        }
        below.keys.sort_unstable_by(|a, b| b.cmp(a));
        Ok(below)
    }
}
