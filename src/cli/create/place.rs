//! The place of a new array: its store, which may not exist yet, and its key there.

use super::open;
use crate::cli::{CommandFailure, CommandResult, StoreArgs, StoreLocation, WriteArgs, location};
use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zarrfs_base::error::{Error, ErrorContext};
use zarrfs_format::metadata::{ZARR_JSON, ZGROUP, ZMETADATA};
use zarrfs_store::{Key, LevelCache, Readable, Store};

fn archive(shown: &dyn Display) -> CommandFailure {
    CommandFailure::wrong_use(format!(
        "{shown}: archives are read-only; create the store in a directory, and zip that"
    ))
}

fn invalid(shown: &dyn Display, e: &Error) -> CommandFailure {
    CommandFailure::wrong_use(format!("{shown}: {e}"))
}

/// Returns the level at which the store of a new array begins, of levels that exist, outermost
/// first: the topmost of the groups above the innermost group or array. A group between the store
/// and the array may have no document. `holds` says whether a level has a document.
fn level_of_store(levels: usize, holds: &dyn Fn(usize, &str) -> bool) -> Option<usize> {
    let near = (0..levels).rev().find(|level| {
        holds(*level, ZARR_JSON) || location::marked_by(&|name| holds(*level, name)).is_some()
    })?;
    if !is_group(near, holds) {
        // the hierarchy refuses an array inside another one
        return Some(near);
    }
    let above = (0..near).rev().take_while(|level| is_group(*level, holds));
    Some(above.last().unwrap_or(near))
}

/// Returns whether a level has the document of a group. A `zarr.json` may describe an array; the
/// hierarchy then refuses a new array below it.
fn is_group(level: usize, holds: &dyn Fn(usize, &str) -> bool) -> bool {
    [ZGROUP, ZMETADATA, ZARR_JSON]
        .iter()
        .any(|name| holds(level, name))
}

/// The store of a new array, which may not exist yet.
pub enum NewPlace {
    Directory(PathBuf),
    /// A store on a server: its URL, and the store with the answers that were needed to find the
    /// place.
    Server(StoreLocation, Arc<dyn Store>),
}

/// Returns the number of names down to the store of a new array: the first name that ends with
/// .zarr.
fn depth_of_store(mut names: impl Iterator<Item = impl AsRef<OsStr>>) -> Option<usize> {
    names
        .position(|name| name.as_ref().as_encoded_bytes().ends_with(b".zarr"))
        .map(|n| n + 1)
}

/// Returns the store of the array, and the array's key there.
pub fn of(
    path: &StoreLocation,
    args: &StoreArgs,
    writing: &WriteArgs,
) -> CommandResult<(NewPlace, Key)> {
    match path {
        StoreLocation::Path(path) => {
            place_of_path(path).map(|(store, key)| (NewPlace::Directory(store), key))
        }
        StoreLocation::Url(url) => place_of_url(url, args, writing),
        StoreLocation::Memory => Err(CommandFailure::wrong_use(
            "memory: its content ends with the command; mount it instead",
        )),
    }
}

/// Returns the place of an array in a remote store. Without a group above the array, the store is
/// the first name that ends with .zarr, or else the name above the array.
fn place_of_url(
    url: &str,
    args: &StoreArgs,
    writing: &WriteArgs,
) -> CommandResult<(NewPlace, Key)> {
    let shown = &url;
    location::check_url(url)?;
    if location::leads_into_archive(url) {
        return Err(archive(shown));
    }
    let parts = location::UrlParts::of(url);
    let names = &parts.names;
    let keys = names.iter().try_fold(vec![Key::root()], |mut keys, name| {
        let below = keys.last().map_or(Ok(Key::root()), |key| key.child(name))?;
        keys.push(below);
        Ok(keys)
    });
    let keys = keys.map_err(|e| invalid(shown, &e))?;
    let server = StoreLocation::Url(parts.up_to(0));
    let store = open(&server, args, writing)?;
    let store = LevelCache::new(store);
    store.check_writable(&Key::root()).context(shown)?;
    let nearest = level_of_store(keys.len(), &|level, name| {
        // a key that can't be read is above the store
        matches!(store.stat(&keys[level].join(name)), Ok(Some(_)))
    });
    let depth = nearest.unwrap_or_else(|| {
        depth_of_store(names.iter())
            .unwrap_or_else(|| names.len().saturating_sub(1).max(names.len().min(1)))
    });
    let key = names[depth..]
        .iter()
        .try_fold(Key::root(), |key, name| key.child(name))
        .map_err(|e| invalid(shown, &e))?;
    let opened = store.at(keys.get(depth).cloned().unwrap_or_default());
    Ok((
        NewPlace::Server(StoreLocation::Url(parts.up_to(depth)), opened),
        key,
    ))
}

/// Returns the place of an array in a directory. Without a group above the array, the store is the
/// first directory whose name ends with .zarr, or else the first that is missing: a directory
/// without documents, empty or not, is no store unless its name says so.
fn place_of_path(path: &Path) -> CommandResult<(PathBuf, Key)> {
    let shown = path.display();
    location::check_not_mounted(path)?;
    let (existing, missing) = existing(path)?;
    if missing
        .iter()
        .any(|name| location::is_archive_name(&name.to_string_lossy()))
    {
        return Err(archive(&shown));
    }
    let mut levels: Vec<&Path> = existing.ancestors().collect();
    levels.reverse();
    let root = level_of_store(levels.len(), &|level, name| {
        levels[level].join(name).is_file()
    });
    let names: Vec<OsString> = existing.iter().map(OsString::from).chain(missing).collect();
    let depth = match root {
        Some(level) => level + 1,
        None => depth_of_store(names.iter()).unwrap_or(names.len().min(levels.len() + 1)),
    };
    let (store, names) = names.split_at(depth);
    let store: PathBuf = store.iter().collect();
    let key = names
        .iter()
        .try_fold(Key::root(), |key, name| match name.to_str() {
            Some(name) => key.child(name),
            None => Err(Error::invalid(format!("{name:?} is not UTF-8"))),
        });
    key.map(|key| (store, key)).map_err(|e| invalid(&shown, &e))
}

/// Returns the longest existing part of `path`, with links resolved, and the names that follow.
fn existing(path: &Path) -> CommandResult<(PathBuf, Vec<OsString>)> {
    let whole = std::path::absolute(path).context(path.display())?;
    let mut missing = Vec::new();
    for above in whole.ancestors() {
        match std::fs::canonicalize(above) {
            Ok(existing) if !existing.is_dir() => {
                return Err(if location::is_archive_name(&existing.to_string_lossy()) {
                    archive(&path.display())
                } else {
                    CommandFailure::failed(format!("{}: a file, not a directory", above.display()))
                });
            }
            Ok(existing) => {
                missing.reverse();
                return Ok((existing, missing));
            }
            Err(e) if [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&e.kind()) => {
                match above.file_name() {
                    Some(name) => missing.push(name.to_os_string()),
                    None => {
                        return Err(CommandFailure::wrong_use(format!(
                            "{}: .. after a directory that doesn't exist",
                            path.display()
                        )));
                    }
                }
            }
            Err(e) => return Err(Error::from(e).context(above.display()).into()),
        }
    }
    Err(CommandFailure::not_found(format!(
        "{}: no such directory",
        path.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use zarrfs_format::metadata::{V1_ATTRS, V1_META, ZARRAY};

    #[test]
    fn the_store_is_the_topmost_group_or_the_array_that_refuses_others() {
        // a directory without documents, groups, and arrays of v1 and v2
        let documents: &[&[&[&str]]] = &[
            &[&[], &[ZGROUP], &[ZMETADATA, ZGROUP], &[]],
            &[&[ZGROUP], &[], &[ZGROUP], &[]],
            &[&[ZGROUP], &[V1_META, V1_ATTRS], &[]],
            &[&[ZGROUP], &[ZARRAY]],
            &[&[ZGROUP], &[V1_META], &[]],
            &[&[], &[]],
        ];
        let stores = documents.iter().map(|levels| {
            level_of_store(levels.len(), &|level, name| levels[level].contains(&name))
        });
        assert_eq!(
            stores.collect::<Vec<_>>(),
            [Some(1), Some(2), Some(1), Some(1), Some(0), None]
        );
    }
}
