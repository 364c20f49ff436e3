//! Creates an array in a directory, under a hidden name that becomes its own once it is complete.

use super::document::NewDocument;
use super::new_array::NewArray;
use super::{hierarchy_of, open};
use crate::cli::unfinished::{StagedOutput, rename_to_free_name};
use crate::cli::{CommandResult, StoreArgs, StoreLocation, WriteArgs};
use std::path::Path;
use zarrfs_base::error::{Error, ErrorContext};
use zarrfs_format::metadata::{ZARR_JSON, ZARRAY};
use zarrfs_store::Key;

/// An array or group that is created in a directory.
pub struct NewInDirectory<'a> {
    /// Its path, for messages.
    pub shown: &'a StoreLocation,
    pub store_args: &'a StoreArgs,
    pub writing: &'a WriteArgs,
    /// The store, which may be missing.
    pub store: &'a Path,
    pub key: &'a Key,
    /// The document, and the format of the groups above.
    pub document: &'a NewDocument,
}

impl NewInDirectory<'_> {
    /// Creates the array, and the store if it is missing, under a hidden name beside its path, and
    /// then renames it. `fill` makes the array where it gets its place in a store, and the location
    /// of the array.
    pub fn create(
        &self,
        fill: impl FnOnce(NewArray, &StoreLocation, &WriteArgs) -> CommandResult,
    ) -> CommandResult {
        let NewInDirectory {
            store,
            key,
            document,
            shown,
            ..
        } = *self;
        let hierarchy = if store.exists() {
            let path = StoreLocation::Path(store.to_path_buf());
            let opened = open(&path, self.store_args, self.writing)?;
            Some(hierarchy_of(&opened))
        } else {
            None
        };
        let first = hierarchy.as_ref().map(|hierarchy| {
            let array = NewArray {
                hierarchy,
                key,
                document,
            };
            array.first_missing()
        });
        let first = first.transpose().context(shown)?;
        // the new directory is the store itself or one above it, or the first group or array that
        // is missing in it
        let top = store
            .ancestors()
            .take_while(|above| !above.exists())
            .last()
            .unwrap_or(store);
        let made = first
            .as_ref()
            .map_or(top.to_path_buf(), |first| store.join(first.as_str()));
        let below = key
            .relative_to(&first.clone().unwrap_or_default())
            .unwrap_or_default();
        let is_empty_store = first.as_ref().is_some_and(Key::is_root);
        let beside = if is_empty_store {
            store
        } else {
            made.parent().unwrap_or(store)
        };
        let output = StagedOutput::new(beside)?;
        let new = output.path("new");
        let staged = new.join(store.strip_prefix(&made).unwrap_or(Path::new("")));
        std::fs::create_dir_all(&staged)?;
        // no other program sees these chunks before the array gets its name, so that no locks are
        // needed
        let writing = WriteArgs {
            synchronizer: None,
            ..self.writing.clone()
        };
        let staging = open(
            &StoreLocation::Path(staged.clone()),
            self.store_args,
            &writing,
        )?;
        let staging = hierarchy_of(&staging);
        let staged_array = NewArray {
            hierarchy: &staging,
            key: &below,
            document,
        };
        let location = StoreLocation::Path(staged.join(below.as_str()));
        fill(staged_array, &location, &writing)?;
        staging.store().sync().context(shown)?;
        let finished = output.finish(|| match (&hierarchy, &first) {
            _ if is_empty_store => move_into(&new, store),
            (Some(hierarchy), Some(first)) => {
                let array = NewArray {
                    hierarchy,
                    key,
                    document,
                };
                move_into_group(array, &new, &made, first)
            }
            _ => rename_to_free_name(&new, &made),
        });
        Ok(finished.context(shown)?)
    }
}

/// Moves the content of `new` into an empty store. The document that makes the store an array moves
/// last.
fn move_into(new: &Path, store: &Path) -> Result<(), Error> {
    let mut names = std::fs::read_dir(new)
        .and_then(|entries| {
            entries
                .map(|entry| Ok(entry?.file_name()))
                .collect::<std::io::Result<Vec<_>>>()
        })
        .context(store.display())?;
    names.sort_unstable_by_key(|name| name == ZARRAY || name == ZARR_JSON);
    for (n, name) in names.iter().enumerate() {
        if let Err(e) = rename_to_free_name(&new.join(name), &store.join(name)) {
            // move the others back into the directory, which is then removed
            for name in &names[..n] {
                let _ = std::fs::rename(store.join(name), new.join(name));
            }
            return Err(e);
        }
    }
    Ok(())
}

/// Moves `new` to its path `made`, which has the key `key`, and updates the metadata of the store.
fn move_into_group(array: NewArray, new: &Path, made: &Path, key: &Key) -> Result<(), Error> {
    let hierarchy = array.hierarchy;
    let needs_group = !array.has_root_group()?;
    if needs_group {
        array.put_root_group()?;
    }
    let moved = rename_to_free_name(new, made).and_then(|()| {
        let adopted = hierarchy.adopt(key);
        if adopted.is_err() && std::fs::rename(made, new).is_ok() {
            let _ = hierarchy.adopt(key);
        }
        adopted
    });
    if moved.is_err() && needs_group {
        let _ = hierarchy.remove_document(&Key::root(), array.document.format.group_file());
    }
    moved.and_then(|()| hierarchy.store().sync())
}
