//! The changes of an overlay, counted for each group and array. This module must not know what
//! becomes of them.

use crate::array::hierarchy::{Hierarchy, REMOVED, StoredNode};
use std::collections::BTreeMap;
use zarrfs_base::error::Result;
use zarrfs_base::json::{Value, json};
use zarrfs_format::metadata::{V1_ATTRS, V1_META, ZARR_JSON, ZARRAY, ZATTRS, ZGROUP, ZMETADATA};
use zarrfs_overlay::{ChangeKind, OverlayChange};
use zarrfs_store::Key;

/// The number of changes of a group or array.
#[derive(Default)]
pub struct NodeChanges {
    /// Changed and removed chunks, documents and other files.
    counts: [[u64; 2]; 3],
    conflicts: u64,
}

/// Words for what [`NodeChanges`] counts.
const COUNTED: [&str; 3] = ["chunk", "document", "file"];

impl NodeChanges {
    /// Returns each count, the word for what was counted, and what was done to it.
    fn counted(&self) -> impl Iterator<Item = (u64, &'static str, &'static str)> {
        let counts = COUNTED.into_iter().zip(self.counts);
        counts.flat_map(|(what, [changed, removed])| {
            [(changed, what, "changed"), (removed, what, "removed")]
        })
    }

    pub fn text(&self, node: &Key) -> String {
        let mut parts = Vec::new();
        for (count, what, done) in self.counted() {
            match count {
                0 => {}
                1 => parts.push(format!("1 {what} {done}")),
                _ => parts.push(format!("{count} {what}s {done}")),
            }
        }
        if self.conflicts > 0 {
            parts.push(format!("{} in conflict with the store", self.conflicts));
        }
        format!("{node}: {}\n", parts.join(", "))
    }

    pub fn json(&self, node: &Key) -> Value {
        let mut object = json!({"path": node.to_string(), "conflicts": self.conflicts});
        for (count, what, done) in self.counted() {
            object[format!("{what}s_{done}")] = count.into();
        }
        object
    }
}

/// Counts the changes of each group and array.
pub struct ChangeCounter {
    /// The store with the overlay, and the store below.
    pub hierarchies: [Hierarchy; 2],
    pub nodes: BTreeMap<Key, NodeChanges>,
}

impl ChangeCounter {
    pub fn count(&mut self, change: &OverlayChange, is_conflict: bool) -> Result<()> {
        let parent = change.key.parent();
        let is_document = rank(&change.key) > 0;
        let array = if is_document {
            None
        } else {
            self.array_above(&parent)?
        };
        let what = match &array {
            Some(_) => 0,
            None if is_document => 1,
            None => 2,
        };
        let changes = self.nodes.entry(array.unwrap_or(parent)).or_default();
        changes.counts[what][usize::from(change.kind == ChangeKind::Removed)] += 1;
        changes.conflicts += u64::from(is_conflict);
        Ok(())
    }

    /// Returns the array at or above a key, in the overlay or, if it was removed there, in the
    /// store below.
    fn array_above(&self, key: &Key) -> Result<Option<Key>> {
        let mut above = key.clone();
        loop {
            let known = self.nodes.get(&above);
            if known.is_some_and(|changes| changes.counts[0] != [0, 0]) {
                return Ok(Some(above));
            }
            for hierarchy in &self.hierarchies {
                if let Some(StoredNode::Array(_) | StoredNode::Damaged(_)) =
                    hierarchy.find(&above)?
                {
                    return Ok(Some(above));
                }
            }
            if above.is_root() {
                return Ok(None);
            }
            above = above.parent();
        }
    }
}

/// Ranks keys as a commit puts them: chunks, attributes, documents that define a group or array,
/// and `.zmetadata`.
pub fn rank(key: &Key) -> u8 {
    match key.name() {
        ZATTRS | V1_ATTRS | REMOVED => 1,
        ZARRAY | ZGROUP | ZARR_JSON | V1_META => 2,
        ZMETADATA => 3,
        _ => 0,
    }
}
