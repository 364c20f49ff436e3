//! Creates directories and groups, and removes and renames groups, arrays and plain keys, with the
//! semantics of mkdir(2), rmdir(2) and rename(2). Keys that the mounted tree hides are included.

use super::array_document::erase_chunks;
use super::{DocumentFormat, Hierarchy, NodeUse, OWN, REMOVED, StoredNode, is_foreign, is_own};
use crate::array::{Array, ArrayEntry, is_chunk_like};
use std::sync::Arc;
use std::time::Duration;
use zarrfs_base::error::{Error, ErrorContext, Result};
use zarrfs_format::chunk_key::parse_index;
use zarrfs_format::metadata::{Separator, ZARR_JSON, ZARRAY, ZATTRS, ZGROUP};
use zarrfs_store::{EntryKind, Key, StoreExt};

/// The documents that define a node.
const MARKERS: [&str; 4] = [ZARR_JSON, ZGROUP, ZARRAY, REMOVED];

/// Maximum depth of chunk keys when a directory is removed: arrays have at most 32 dimensions, and
/// keys of v3 begin with `c`.
const MAX_LEVELS: usize = 33;

/// The hidden keys of a directory, besides metadata documents and zarrfs' own files, that a removal
/// deletes.
#[derive(Clone, Copy)]
struct Hidden {
    /// Values named like chunks: of a former shape, misspelled, or unfinished.
    chunk_like: bool,
    /// Levels of chunk keys.
    levels: bool,
}

/// Time in which an empty directory of a bucket outlives the daemon.
const EMPTY_KEPT: Duration = Duration::from_secs(60);

/// Why a prefix without a stored document shows no generated one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Unmarked {
    /// This mount has made the prefix: a program looks for a document before it writes a new one.
    Made,
    /// A program has removed the document.
    Removed,
}

impl Hierarchy {
    /// Creates a directory that shows no document until one is written: programs look for a node
    /// before they create it.
    ///
    /// # Errors
    ///
    /// EEXIST if the key exists, ENOENT without a parent group, EPERM inside an array.
    pub fn make_directory(&self, key: &Key) -> Result<()> {
        let _lock = self.lock_for_change(&[key])?;
        let was_unmarked = self.is_unmarked(key);
        // before: if the daemon is killed, a successor makes the directory again
        self.unmark(key, Unmarked::Made);
        self.make_prefix(key).inspect_err(|_| {
            if !was_unmarked {
                self.unmarked.remove(key.as_str());
            }
        })
    }

    fn make_prefix(&self, key: &Key) -> Result<()> {
        if self.find(key)?.is_some() {
            return Err(Error::system(libc::EEXIST).context(key));
        }
        self.check_new_name(key)?;
        self.store.make_prefix(key).context(key)
    }

    /// Makes the directories again that a program has made, or removed the document of, a moment
    /// ago: a bucket keeps no empty ones, and the program goes on with a file in them.
    pub(super) fn restore_prefixes(&self) {
        if self.store.concurrency() == 1 {
            return;
        }
        let mut names = self.unmarked.at_and_below("");
        // a directory comes before those in it
        names.sort_unstable();
        for (name, _) in names {
            let age = self.unmarked.get(&name).map(|(_, age)| age);
            if age.is_some_and(|age| age < EMPTY_KEPT)
                && let Ok(key) = Key::normalize(&name)
                && let Err(e) = self.store.make_prefix(&key)
                && e.errno() != libc::EEXIST
            {
                log::debug!("{key}: not made again: {e}");
            }
        }
    }

    pub(super) fn unmarked(&self, key: &Key) -> Option<Unmarked> {
        let (number, _) = self.unmarked.get(key.as_str())?;
        [Unmarked::Made, Unmarked::Removed]
            .into_iter()
            .find(|why| *why as u64 == number)
    }

    pub(super) fn unmark(&self, key: &Key, why: Unmarked) {
        self.unmarked.put(key.as_str(), why as u64);
    }

    /// Returns whether the directory at `key` was made by this mount, or lost its document, and
    /// none was written since.
    pub fn is_unmarked(&self, key: &Key) -> bool {
        self.unmarked(key).is_some()
    }

    /// Creates a group. At or below a name that begins with a dot, which other programs use, and
    /// outside all stores, the directory gets no document. Other groups get the document of their
    /// parent's format.
    ///
    /// # Errors
    ///
    /// Those of [`Hierarchy::make_directory`].
    pub fn create_group(&self, key: &Key) -> Result<()> {
        let _lock = self.lock_for_change(&[key])?;
        self.make_prefix(key)?;
        if is_foreign(key)
            || self.has_stored_documents_alone(key) && !self.is_in_store(&key.parent())?
        {
            return Ok(());
        }
        let format = if self.is_v3(&key.parent())? {
            DocumentFormat::V3
        } else {
            DocumentFormat::V2
        };
        let name = format.group_file().name();
        self.put(&key.join(name), format.group_document().as_bytes())?;
        self.consolidate(key, &[name])
    }

    /// Removes an empty group, or an array without stored chunks and plain keys, together with its
    /// metadata and hidden keys.
    ///
    /// # Errors
    ///
    /// ENOTEMPTY if there is anything else.
    pub fn remove_node(&self, key: &Key) -> Result<()> {
        let _lock = self.lock_for_change(&[key])?;
        if key.is_root() {
            return Err(Error::system(libc::EBUSY).context(key));
        }
        self.remove_directory(key)?;
        self.forget_below(key);
        self.unmarked_moved(key, None);
        self.consolidate_moved(Some(key), None)
    }

    /// Removes the directory of a node. It checks that nothing visible is inside before it deletes
    /// anything, and deletes the document that defines the node last, so that an interrupted
    /// removal leaves the same empty group or array.
    fn remove_directory(&self, key: &Key) -> Result<()> {
        let hidden = match self.find(key)? {
            None => return Err(Error::not_found("no such directory").context(key)),
            Some(StoredNode::Value | StoredNode::Other) => {
                return Err(Error::system(libc::ENOTDIR).context(key));
            }
            // a level of chunk keys shows no levels without chunks
            Some(StoredNode::Group) => Hidden {
                chunk_like: false,
                levels: self.array_above(key)?.is_some(),
            },
            Some(StoredNode::Damaged(_)) => Hidden {
                chunk_like: false,
                levels: true,
            },
            Some(StoredNode::Array(array)) if self.has_chunks(&array)? => {
                return Err(Error::system(libc::ENOTEMPTY).context(key));
            }
            Some(StoredNode::Array(_)) => Hidden {
                chunk_like: true,
                levels: true,
            },
        };
        self.sweep(key, hidden, 0, false)?;
        self.sweep(key, hidden, 0, true)?;
        for marker in MARKERS {
            self.delete(&key.join(marker))?;
        }
        self.store.remove_prefix(key).context(key)
    }

    /// Checks, or with `remove` deletes, everything in a directory except the documents that define
    /// the node; ENOTEMPTY if there is a key that is not hidden.
    fn sweep(&self, directory: &Key, hidden: Hidden, level: usize, remove: bool) -> Result<()> {
        for entry in self.store.list(directory).context(directory)? {
            let entry = entry.context(directory)?;
            let name = entry.name.as_str();
            let below = directory.join(&entry.name);
            match entry.kind {
                EntryKind::Value if MARKERS.contains(&name) && level == 0 => {}
                EntryKind::Value
                    if is_leftover(name, level)
                        || hidden.chunk_like && is_stored_chunk_like(name) =>
                {
                    if remove {
                        self.delete(&below)?;
                    }
                }
                EntryKind::Prefix
                    if hidden.levels && is_level_name(name, level) && level < MAX_LEVELS =>
                {
                    self.sweep(&below, hidden, level + 1, remove)?;
                    if remove {
                        self.store.remove_prefix(&below).context(&below)?;
                    }
                }
                _ => {
                    return Err(Error::system(libc::ENOTEMPTY)
                        .context(format!("{directory}: holds {name:?}")));
                }
            }
        }
        Ok(())
    }

    /// Renames a group, an array or a plain key. A plain key may replace a plain key; a group or
    /// array may replace a node that [`Hierarchy::remove_node`] would remove.
    ///
    /// # Errors
    ///
    /// The errors of rename(2); EINVAL if `to` is at or below `from`, EPERM if it is in an array.
    pub fn rename(&self, from: &Key, to: &Key) -> Result<()> {
        let _lock = self.lock_for_change(&[from, to])?;
        if from.is_root() || to.is_root() {
            return Err(Error::system(libc::EBUSY).context("/"));
        }
        if to.relative_to(from).is_some() {
            return Err(Error::invalid("can't be moved onto or below itself").context(from));
        }
        let moved = self
            .find(from)?
            .ok_or_else(|| Error::not_found("no such key").context(from))?;
        match moved {
            StoredNode::Value => return self.rename_value(from, to),
            StoredNode::Other => return Err(Error::invalid("is not a regular file").context(from)),
            _ => {}
        }
        self.check_new_name(to)?;
        if self.find(to)?.is_some() {
            self.remove_directory(to)?;
        }
        self.store
            .rename(from, to)
            .map_err(|e| e.context(format!("{from} to {to}")))?;
        self.forget_below(from);
        self.forget_below(to);
        self.unmarked_moved(to, None);
        self.unmarked_moved(from, Some(to));
        self.consolidate_moved(Some(from), Some(to))
    }

    /// Records that the directory at `from` was renamed to `to`, or removed.
    fn unmarked_moved(&self, from: &Key, to: Option<&Key>) {
        for (name, why) in self.unmarked.at_and_below(from.as_str()) {
            self.unmarked.remove(&name);
            if let Some(moved) = to.and_then(|to| Key::root().join(&name).moved(from, to)) {
                self.unmarked.put(moved.as_str(), why);
            }
        }
    }

    fn rename_value(&self, from: &Key, to: &Key) -> Result<()> {
        match self.find(to)? {
            None | Some(StoredNode::Value) => {}
            Some(StoredNode::Other) => {
                return Err(Error::invalid("is not a regular file").context(to));
            }
            Some(_) => return Err(Error::system(libc::EISDIR).context(to)),
        }
        match self.find(&to.parent())? {
            Some(StoredNode::Array(array)) => {
                let is_chunk = [Separator::Dot, array.separator()]
                    .iter()
                    .any(|&separator| array.grid().parse_chunk_key(to.name(), separator).is_some());
                if is_chunk {
                    let message = "is the name of a chunk: a stored file can't become one as it is";
                    return Err(Error::invalid(message).context(to));
                }
                check_name(to)?;
            }
            Some(node) if node.is_directory() => check_name(to)?,
            Some(_) => return Err(Error::system(libc::ENOTDIR).context(to.parent())),
            None => return Err(Error::not_found("no such directory").context(to.parent())),
        }
        self.store
            .rename(from, to)
            .map_err(|e| e.context(format!("{from} to {to}")))
    }

    /// Removes a group or array with everything below it.
    ///
    /// # Errors
    ///
    /// The first failure; nodes that were removed before it stay removed.
    pub fn remove_all(&self, key: &Key) -> Result<()> {
        self.store.forget(key);
        let mut nodes = Vec::new();
        self.visit_below(key, NodeUse::Chunks, &mut |node, found| {
            nodes.push((node.clone(), found.clone()));
            Ok(())
        })?;
        for (node, found) in nodes.into_iter().rev() {
            if let Some(array) = found.array() {
                erase_chunks(&array, &mut |name| self.delete(&node.join(name)).map(drop))?;
            }
            if node.is_root() {
                // the root of the store stays
                self.delete(&node.join(ZATTRS))?;
                self.delete(&node.join(ZARRAY))?;
                self.delete(&node.join(ZARR_JSON))?;
            } else {
                self.remove_node(&node)?
            }
        }
        Ok(())
    }

    /// Checks that a group or array may be created at or moved to `key`.
    pub fn check_new_name(&self, key: &Key) -> Result<()> {
        check_name(key)?;
        match self.find(&key.parent())? {
            None => return Err(Error::not_found("no such group").context(key.parent())),
            Some(node) if node.is_directory() => {}
            Some(_) => return Err(Error::system(libc::ENOTDIR).context(key.parent())),
        }
        match self.array_above(key)? {
            Some(array) => {
                let inside =
                    format!("{key}: inside the array {array}, which holds no groups or arrays");
                Err(Error::system(libc::EPERM).context(inside))
            }
            None => Ok(()),
        }
    }

    /// Returns the array in which a key lies.
    fn array_above(&self, key: &Key) -> Result<Option<Key>> {
        for above in self.upwards(&key.parent()) {
            if self.is_array(&above)? {
                return Ok(Some(above));
            }
        }
        Ok(None)
    }

    /// Returns whether any chunk of the array's grid is, or may be, stored.
    pub(super) fn has_chunks(&self, array: &Arc<Array>) -> Result<bool> {
        // `rm -r` removes the document first; the store then removes the chunks that it cannot list
        if !self.store.lists_all() && self.store.stat(&array.key().join(REMOVED))?.is_none() {
            return Ok(true);
        }
        for entry in array.entries()? {
            if let ArrayEntry::Chunk(_) | ArrayEntry::Unlisted = entry.context(array.key())? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Returns whether a value may be deleted with the directory. A level of chunk keys may have a
/// `.zgroup` from a copy; arrays and attributes there are user data.
fn is_leftover(name: &str, level: usize) -> bool {
    if level == 0 {
        is_own(name)
    } else {
        name == ZGROUP || name.starts_with(OWN)
    }
}

/// Returns whether a value may be a chunk, in v3 with the prefix `c`.
fn is_stored_chunk_like(name: &str) -> bool {
    is_chunk_like(name) || name == "c" || name.strip_prefix("c.").is_some_and(is_chunk_like)
}

/// Returns whether a directory in an array may be a level of chunk keys.
fn is_level_name(name: &str, level: usize) -> bool {
    parse_index(name).is_some() || level == 0 && name == "c"
}

/// Checks that the name is not one of a document or of zarrfs' own files.
fn check_name(key: &Key) -> Result<()> {
    if is_own(key.name()) {
        let message = format!(
            "can't be called so: names of metadata and those that begin with {OWN} have their own use"
        );
        return Err(Error::invalid(message).context(key));
    }
    Ok(())
}
