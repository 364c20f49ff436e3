//! The flat bytes of one array, open without FUSE: what `cat` and `put` share.

use super::{Failure, Location};
use crate::array::Array;
use crate::array::hierarchy::{Hierarchy, StoredNode};
use crate::cache::Cache;
use crate::fs::tree::{FLAT, ROOT_INODE, Tree};
use crate::fs::{Fs, Options};
use crate::stats::Stats;
use crate::store::Key;
use std::sync::Arc;

/// An array whose flat bytes are open.
pub struct Flat {
    /// The file system that has it at its root.
    pub fs: Fs,
    /// For the calls on open files.
    pub handle: u64,
    /// The array as it was when it was opened.
    pub array: Arc<Array>,
}

/// Opens the flat bytes of the array at the root of `hierarchy`, whose store `location` names; to be written too unless
/// the options say otherwise.
pub fn open(
    location: &Location,
    hierarchy: Hierarchy,
    cache: Cache,
    stats: Arc<Stats>,
    options: Options,
) -> Result<Flat, Failure> {
    let (shown, cache, for_writing) = (location, Arc::new(cache), !options.read_only);
    let tree = Tree::new(hierarchy, cache.clone());
    let array = match tree.hierarchy().find(&Key::root())? {
        Some(StoredNode::Array(array)) => array,
        Some(StoredNode::Damaged(e)) => return Err(e.context(shown).into()),
        _ => return Err(Failure::new(3, format!("{shown}: not an array, but a group"))),
    };
    array.readable().map_err(|e| e.context(shown))?;
    if array.metadata().has_objects() {
        let message =
            format!("{shown}: its items are objects, which have no flat bytes; its chunks can be read in a mount");
        return Err(Failure::new(4, message));
    }
    let fs = Fs::new(tree, cache, stats, options)?;
    let opened = fs.lookup(ROOT_INODE, FLAT).and_then(|flat| fs.open(flat.inode, for_writing, false));
    let handle = opened.map_err(|e| e.context(shown))?.handle;
    Ok(Flat { fs, handle, array })
}
