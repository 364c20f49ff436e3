//! The flat bytes of one array, opened without FUSE, for `cat` and `put`.

use super::{CommandFailure, CommandResult, StoreLocation};
use crate::array::Array;
use crate::array::hierarchy::Hierarchy;
use crate::cache::Cache;
use crate::fs::tree::{FLAT, ROOT_INODE, Tree};
use crate::fs::{Fs, Options};
use std::sync::Arc;
use zarrfs_base::error::ErrorContext;
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

/// Returns the failure of a location that is a group.
pub fn no_array(shown: &StoreLocation) -> CommandFailure {
    CommandFailure::not_found(format!(
        "{shown}: a group, not an array; name an array in it: `zarrfs ls {shown}` lists them"
    ))
}

/// Opens the flat bytes of the array at the root of `hierarchy`, whose store is at `location`. They
/// are opened for writing, too, unless the options are read-only.
pub fn open(
    location: &StoreLocation,
    hierarchy: Hierarchy,
    cache: Cache,
    stats: Arc<Stats>,
    options: Options,
) -> CommandResult<Flat> {
    let shown = location;
    let cache = Arc::new(cache);
    let for_writing = !options.read_only;
    let tree = Tree::new(hierarchy, cache.clone());
    let found = tree.hierarchy().usable_array(&Key::root());
    let Some(array) = found.context(shown)? else {
        return Err(no_array(shown));
    };
    array.readable().context(shown)?;
    if array.metadata().has_objects() {
        let message = format!("{shown}: objects have no flat bytes; read the chunks in a mount");
        return Err(CommandFailure::not_zarr(message));
    }
    let fs = Fs::new(tree, cache, stats, options)?;
    let opened = fs
        .lookup(ROOT_INODE, FLAT)
        .and_then(|flat| fs.open(flat.inode, for_writing, false));
    let handle = opened.context(shown)?.handle;
    Ok(Flat { fs, handle, array })
}
