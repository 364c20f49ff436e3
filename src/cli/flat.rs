//! The flat bytes of one array, opened without FUSE, for `cat` and `put`.

use super::{CommandFailure, StoreLocation};
use crate::array::Array;
use crate::array::hierarchy::Hierarchy;
use crate::cache::Cache;
use crate::fs::tree::{FLAT, ROOT_INODE, Tree};
use crate::fs::{Fs, Options};
use std::sync::Arc;
use zarrfs_base::stats::Stats;
use zarrfs_store::Key;

/// An array whose flat bytes are open.
pub struct Flat {
    /// A file system with the array at its root.
    pub fs: Fs,
    /// The handle of the open file.
    pub handle: u64,
    /// The array at the time of opening.
    pub array: Arc<Array>,
}

/// Opens the flat bytes of the array at the root of `hierarchy`, whose store is at `location`. They
/// are opened for writing, too, unless the options are read-only.
pub fn open(
    location: &StoreLocation,
    hierarchy: Hierarchy,
    cache: Cache,
    stats: Arc<Stats>,
    options: Options,
) -> Result<Flat, CommandFailure> {
    let shown = location;
    let cache = Arc::new(cache);
    let for_writing = !options.read_only;
    let tree = Tree::new(hierarchy, cache.clone());
    let found = tree.hierarchy().find(&Key::root())?;
    let array = found.map(|node| node.usable()).transpose();
    let Some(array) = array.map_err(|e| e.context(shown))?.flatten() else {
        return Err(CommandFailure::not_found(format!(
            "{shown}: a group, not an array; name an array in it: `zarrfs ls {shown}` lists them"
        )));
    };
    array.readable().map_err(|e| e.context(shown))?;
    if array.metadata().has_objects() {
        let message = format!("{shown}: objects have no flat bytes; read the chunks in a mount");
        return Err(CommandFailure::not_zarr(message));
    }
    let fs = Fs::new(tree, cache, stats, options)?;
    let opened = fs
        .lookup(ROOT_INODE, FLAT)
        .and_then(|flat| fs.open(flat.inode, for_writing, false));
    let handle = opened.map_err(|e| e.context(shown))?.handle;
    Ok(Flat { fs, handle, array })
}
