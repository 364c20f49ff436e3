//! What a location names, found from what exists there before any store is opened; and what a
//! command line must not name. This module must not ask a server.

use super::parse::{StoreLocation, UrlParts, check_url};
use crate::array::hierarchy::REMOVED;
use crate::cli::{CommandFailure, CommandResult, absolute, stats};
use crate::fuse::{mount_of, read_statistics};
use std::io::Read;
use std::path::{Path, PathBuf};
use zarrfs_base::json;
use zarrfs_format::metadata::v3::node::{NodeType, node_type};
use zarrfs_format::metadata::{V1_ATTRS, V1_META, ZARR_JSON, ZARRAY, ZGROUP, ZMETADATA};
use zarrfs_icechunk::IcechunkStore;
use zarrfs_store::{Key, Store, StoreExt};

const PARQUET: &str =
    "references in Parquet are not supported; convert them to JSON with kerchunk or VirtualiZarr";

/// What a location names.
pub enum StoreKind<'a> {
    /// A directory, or a path at which nothing exists.
    Directory(&'a Path),
    /// Values below a URL, or a repository there.
    Served(&'a str),
    /// A path in an archive, or in a file of references.
    InFile {
        folder: StoreLocation,
        name: String,
        inside: String,
    },
    /// A path in an Icechunk repository.
    InRepository { root: StoreLocation, inside: String },
    /// A new store in memory.
    Memory,
}

/// Returns what a location names. Behind a URL, only names tell.
pub fn probe(location: &StoreLocation) -> CommandResult<StoreKind<'_>> {
    match location {
        StoreLocation::Path(path) => probe_path(path),
        StoreLocation::Url(url) => {
            check_url(url)?;
            let parts = UrlParts::of(url);
            Ok(match parts.archive() {
                Some(at) => StoreKind::InFile {
                    folder: StoreLocation::Url(parts.up_to(at)),
                    name: parts.names[at].to_string(),
                    inside: parts.names[at + 1..].join("/"),
                },
                None => StoreKind::Served(url),
            })
        }
        StoreLocation::Memory => Ok(StoreKind::Memory),
    }
}

fn probe_path(path: &Path) -> CommandResult<StoreKind<'_>> {
    let shown = path.display();
    let Some((file, inside)) = archive_at(path) else {
        return Ok(match repository_at(&absolute(path)) {
            Some((root, inside)) => StoreKind::InRepository {
                root: StoreLocation::Path(root),
                inside,
            },
            None => StoreKind::Directory(path),
        });
    };
    let whole = absolute(file);
    let name = whole.file_name().and_then(|name| name.to_str());
    let name =
        name.ok_or_else(|| CommandFailure::not_zarr(format!("{shown}: its name is not UTF-8")))?;
    let inside = inside
        .to_str()
        .ok_or_else(|| CommandFailure::not_found(format!("{shown}: not UTF-8")))?;
    Ok(StoreKind::InFile {
        folder: StoreLocation::Path(whole.parent().unwrap_or(Path::new("/")).to_path_buf()),
        name: name.to_string(),
        inside: inside.to_string(),
    })
}

/// Checks that a location is a directory that can hold stores.
pub fn check_holds_stores(location: &StoreLocation) -> CommandResult {
    location.check_answers()?;
    let why = match location {
        StoreLocation::Path(path) => match marks(path) {
            Some(what) => {
                let article = if what == "array" { "an" } else { "a" };
                format!("{article} {what}, no directory of stores; mount it without --stores")
            }
            None if path.is_file() => {
                "a file, no directory of stores; mount it without --stores".to_string()
            }
            None => return Ok(()),
        },
        _ => "--stores takes a local directory; mount each store by its own name".to_string(),
    };
    Err(CommandFailure::wrong_use(format!("{location}: {why}")))
}

/// Refuses a mount whose arguments are swapped: the mountpoint is a store, and the store is empty
/// or missing.
pub fn check_not_swapped(store: &StoreLocation, mountpoint: &Path) -> CommandResult {
    let StoreLocation::Path(path) = store else {
        return Ok(());
    };
    let is_empty = match std::fs::read_dir(path) {
        Ok(mut names) => names.next().is_none(),
        Err(e) => e.kind() == std::io::ErrorKind::NotFound,
    };
    if !is_empty {
        return Ok(());
    }
    let location = StoreLocation::from(mountpoint.as_os_str().to_os_string());
    let is_store = match &location {
        // a mount that does not answer is no store
        StoreLocation::Path(path) => {
            check_answers(path).is_ok() && (path.is_file() || marks(path).is_some())
        }
        StoreLocation::Url(_) | StoreLocation::Memory => true,
    };
    if is_store {
        let why = "no Zarr store, but the mountpoint is one; name the store first";
        return Err(CommandFailure::wrong_use(format!(
            "{store}: {why}: zarrfs mount {location} {store}"
        )));
    }
    Ok(())
}

/// Refuses to write a store in a mount of zarrfs: values are replaced by files with names that no
/// mount shows.
pub fn check_not_mounted(path: &Path) -> CommandResult {
    let Ok(Some(mount)) = mount_of(path) else {
        return Ok(());
    };
    let shown = path.display();
    let source = String::from_utf8_lossy(&mount.source).into_owned();
    let why = format!(
        "in a mount of zarrfs, which holds no other store that is written; write to {source} itself"
    );
    Err(CommandFailure::wrong_use(format!(
        "{shown}: {why}, or mount with --read-only"
    )))
}

impl StoreLocation {
    /// Checks that a local store is in no mount of zarrfs that does not answer.
    pub fn check_answers(&self) -> CommandResult {
        self.path().map_or(Ok(()), check_answers)
    }
}

/// Checks that the daemon answers whose mount holds `path`, if a mount of zarrfs does. A command
/// that waits for a daemon that is stopped would not end.
pub fn check_answers(path: &Path) -> CommandResult {
    let Ok(Some(mount)) = mount_of(path) else {
        return Ok(());
    };
    match read_statistics(&mount) {
        Err(e) if [libc::ETIMEDOUT, libc::ENOTCONN].contains(&e.errno()) => {
            Err(stats::unanswered(path, &mount, e))
        }
        // any other fault shows when the path is opened
        _ => Ok(()),
    }
}

/// Returns the part of a path that is a file, and the rest of the path.
fn archive_at(path: &Path) -> Option<(&Path, &Path)> {
    let archive = path.ancestors().find(|above| above.is_file())?;
    Some((archive, path.strip_prefix(archive).ok()?))
}

/// Returns whether a file begins as an object of JSON does.
pub fn begins_as_object(folder: &dyn Store, name: &str) -> bool {
    let mut begin = Vec::new();
    let read = Key::root()
        .child(name)
        .and_then(|key| folder.get_range(&key, 0..64, &mut begin));
    read.is_ok()
        && json::without_mark(&begin)
            .trim_ascii_start()
            .starts_with(b"{")
}

/// Returns the directory of the repository that a path is or leads into, and the path in it. What
/// exists below that directory is no group or array of the repository.
fn repository_at(path: &Path) -> Option<(PathBuf, String)> {
    let root = path.ancestors().find(|above| above.exists())?;
    let file = root.join("repo");
    let begins = || {
        let mut begin = Vec::new();
        let read =
            std::fs::File::open(&file).and_then(|file| file.take(64).read_to_end(&mut begin));
        read.is_ok() && IcechunkStore::begins_file(&begin)
    };
    let is_first =
        || root.join("refs/branch.main/ref.json").is_file() && root.join("snapshots").is_dir();
    let is_repository = file.is_file() && begins() || is_first();
    if !is_repository || marks(root).is_some() {
        return None;
    }
    let inside = path.strip_prefix(root).ok()?.to_str()?;
    Some((root.to_path_buf(), inside.to_string()))
}

/// Refuses a directory of references in Parquet, which would look like a store without chunks.
pub fn check_no_parquet(path: &Path) -> CommandResult {
    if !path.join(ZMETADATA).is_file() || path.join(ZGROUP).exists() {
        return Ok(());
    }
    let mut entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    if entries.any(|entry| entry.path().join("refs.0.parq").is_file()) {
        Err(CommandFailure::not_zarr(format!(
            "{}: {PARQUET}",
            path.display()
        )))
    } else {
        Ok(())
    }
}

/// Returns the failure for a path to a file in `folder` that is no archive, or to a name below such
/// a file.
pub fn no_archive(path: &Path, folder: &Path) -> CommandFailure {
    let shown = path.display();
    match marks(folder) {
        Some(what @ "array") => {
            let above = archive_at(path).and_then(|(file, _)| file.parent());
            let array = above
                .filter(|above| !above.as_os_str().is_empty())
                .unwrap_or(folder)
                .display();
            CommandFailure::not_found(format!(
                "{shown}: a file of the {what} {array}; name the {what} itself"
            ))
        }
        Some(what) => CommandFailure::not_found(format!(
            "{shown}: a file in a {what}, neither a group nor an array"
        )),
        None => CommandFailure::not_zarr(format!(
            "{shown}: a file, but no zip archive: not a Zarr store"
        )),
    }
}

/// Returns the failure for a path that doesn't exist.
pub fn missing(path: &Path) -> CommandFailure {
    let shown = path.display();
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let existing = whole.ancestors().skip(1).find(|above| above.is_dir());
    let marked = existing.and_then(|existing| {
        existing
            .ancestors()
            .find_map(|above| Some((above, marks(above)?)))
    });
    let message = match marked {
        Some((array, "array")) => {
            format!(
                "no such group or array: {} is an array, which can't contain any",
                array.display()
            )
        }
        Some((group, _)) => format!("no such group or array in {}", group.display()),
        None => "no such store".to_string(),
    };
    CommandFailure::not_found(format!("{shown}: {message}"))
}

/// Returns `group` or `array` if the documents in a directory make it one.
pub fn marks(directory: &Path) -> Option<&'static str> {
    if let Ok(document) = std::fs::read(directory.join(ZARR_JSON)) {
        return match node_type(&document) {
            Ok(NodeType::Group) => Some("group"),
            _ => Some("array"),
        };
    }
    marked_by(&|name| directory.join(name).is_file())
}

/// Returns `group` or `array` if there are documents of Zarr v1 or v2 that make a directory one.
pub fn marked_by(holds: &dyn Fn(&str) -> bool) -> Option<&'static str> {
    if holds(ZARRAY) || holds(REMOVED) || holds(V1_META) && holds(V1_ATTRS) {
        Some("array")
    } else if holds(ZGROUP) || holds(ZMETADATA) {
        Some("group")
    } else {
        None
    }
}
