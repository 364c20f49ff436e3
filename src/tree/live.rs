//! The nodes that the kernel knows: it names them by inode number until it forgets them.

use super::Node;
use crate::memory::lock;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Nodes by inode number, each with the number of lookups not yet forgotten.
#[derive(Default)]
pub struct LiveNodes {
    /// Protects the map alone.
    nodes: Mutex<HashMap<u64, (Arc<Node>, u64)>>,
}

impl LiveNodes {
    /// The node of an inode number; None if the kernel has forgotten it.
    pub fn get(&self, inode: u64) -> Option<Arc<Node>> {
        lock(&self.nodes).get(&inode).map(|(node, _)| node.clone())
    }

    /// Counts a lookup of `node`.
    pub fn remember(&self, node: Node) {
        let mut nodes = lock(&self.nodes);
        let entry = nodes.entry(node.inode()).or_insert_with(|| (Arc::new(node.clone()), 0));
        // the same path may have become something else
        if *entry.0 != node {
            entry.0 = Arc::new(node);
        }
        entry.1 += 1;
    }

    /// Takes back `count` lookups.
    pub fn forget(&self, inode: u64, count: u64) {
        let mut nodes = lock(&self.nodes);
        if let Some(entry) = nodes.get_mut(&inode) {
            entry.1 = entry.1.saturating_sub(count);
            if entry.1 == 0 {
                nodes.remove(&inode);
            }
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        lock(&self.nodes).len()
    }
}
