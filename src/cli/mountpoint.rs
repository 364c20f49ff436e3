//! `--auto-mountpoint`: chooses the name of a mountpoint, and creates directories that are removed
//! after the unmount. This module must not mount.

use super::{CommandFailure, CommandResult, StoreLocation, absolute};
use crate::fuse::{mounts_at, open_directory};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use zarrfs_base::error::Error;
use zarrfs_base::memory::lock;

/// Endings of the names of stores, in the order in which they are removed.
const ENDINGS: [&str; 3] = [".zip", ".ozx", ".zarr"];

/// Directories created for a mount, the topmost first. When this is dropped, those that are empty
/// are removed, even if directories above them were renamed.
#[derive(Default)]
pub struct MadeDirectories {
    made: RemovableDirectories,
    /// The last of them.
    directory: Option<OwnedFd>,
}

/// Directories that any thread removes before it ends the process.
#[derive(Clone, Default)]
pub struct RemovableDirectories {
    /// Those that are not removed yet. The lock is held while they are removed, so that no other
    /// thread ends the process meanwhile.
    made: Arc<Mutex<Vec<MadeDirectory>>>,
}

struct MadeDirectory {
    parent: OwnedFd,
    name: OsString,
    /// The path at the time of creation, for messages.
    path: PathBuf,
}

impl MadeDirectories {
    /// Returns the directory to mount on, or `None` if it existed already.
    pub fn directory(&self) -> Option<BorrowedFd<'_>> {
        self.directory.as_ref().map(|directory| directory.as_fd())
    }

    /// Returns the directory that holds the topmost of them, if there are any.
    pub fn parent(&self) -> Option<PathBuf> {
        let made = lock(&self.made.made);
        made.first()?.path.parent().map(Path::to_path_buf)
    }

    /// Returns the directories, for another thread.
    pub fn removable(&self) -> RemovableDirectories {
        self.made.clone()
    }

    /// Creates the directory with this path in the open directory above it.
    fn make(&mut self, parent: OwnedFd, path: &Path) -> rustix::io::Result<OwnedFd> {
        let Some(name) = path.file_name() else {
            return Err(Errno::INVAL);
        };
        rustix::fs::mkdirat(&parent, name, Mode::RWXU | Mode::RWXG | Mode::RWXO)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory = rustix::fs::openat(&parent, name, flags, Mode::empty())?;
        lock(&self.made.made).push(MadeDirectory {
            parent,
            name: name.to_owned(),
            path: path.to_path_buf(),
        });
        // a user who may rename files there could have put another directory in its place
        if rustix::fs::fstat(&directory)?.st_uid == rustix::process::geteuid().as_raw() {
            Ok(directory)
        } else {
            Err(Errno::PERM)
        }
    }
}

impl Drop for MadeDirectories {
    fn drop(&mut self) {
        self.made.remove();
    }
}

impl RemovableDirectories {
    /// Removes the directories that are empty.
    pub fn remove(&self) {
        let mut made = lock(&self.made);
        while let Some(directory) = made.pop() {
            // another process of the mount may have removed it
            if let Err(e) =
                rustix::fs::unlinkat(&directory.parent, &directory.name, AtFlags::REMOVEDIR)
                && e != Errno::NOENT
            {
                log::info!("{}: stays: {}", directory.path.display(), Error::from(e));
                made.clear();
            }
        }
    }
}

/// Creates `path`, and the missing directories above it. A directory that exists already stays
/// after the unmount.
pub fn make(path: &Path) -> CommandResult<MadeDirectories> {
    let path = std::path::absolute(path)?;
    let missing: Vec<&Path> = path
        .ancestors()
        .take_while(|above| is_missing(above))
        .collect();
    let mut made = MadeDirectories::default();
    for directory in missing.into_iter().rev() {
        let parent = match made.directory.take() {
            Some(last) => Ok(last),
            None => open_directory(directory.parent().unwrap_or(directory)),
        };
        let new = parent.and_then(|parent| made.make(parent, directory));
        made.directory = Some(new.map_err(|e| {
            let why = format!("mountpoint {}: {}", directory.display(), Error::from(e));
            CommandFailure::mountpoint(why)
        })?);
    }
    Ok(made)
}

/// Logs that a mount at `path` hides files: the directory is not empty. A store that is mounted on
/// its own directory shows them.
pub fn warn_of_hidden_files(path: &Path, store: &StoreLocation) {
    let is_own = store.path().is_some_and(|store| absolute(store) == path);
    // reading a directory that is a mountpoint already may wait for its daemon
    let is_mountpoint = !mounts_at(path).is_ok_and(|mounts| mounts.is_empty());
    if !is_own && !is_mountpoint && fs::read_dir(path).is_ok_and(|mut names| names.next().is_some())
    {
        log::warn!(
            "{}: the directory is not empty: the mount hides its files until the unmount",
            path.display()
        );
    }
}

/// Returns whether nothing is at a path. A mount whose daemon has ended answers with another error.
fn is_missing(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err_and(|e| e.kind() == ErrorKind::NotFound)
}

/// Returns the mountpoint of a store for which none is given: a directory in the working directory,
/// named as the store without .zarr, .zip and .ozx. It must not exist, or be empty.
pub fn for_store(store: &StoreLocation) -> CommandResult<PathBuf> {
    new_path(store)
        .map_err(|why| CommandFailure::mountpoint(format!("{store}: {why}; name a mountpoint")))
}

/// Returns the path for a mountpoint, or the reason why there is none.
fn new_path(store: &StoreLocation) -> Result<PathBuf, String> {
    let name = bare_name(store).ok_or("no mountpoint can be named after it")?;
    let path = Path::new(".").join(name);
    if store
        .path()
        .is_some_and(|store| absolute(store) == absolute(&path))
    {
        return Err(format!("it is {} itself", path.display()));
    }
    let is_mounted =
        std::path::absolute(&path).is_ok_and(|path| mounts_at(&path).is_ok_and(|m| !m.is_empty()));
    // mounting reports a mount that is there
    if is_mounted || is_free(&path) {
        Ok(path)
    } else {
        let shown = path.display();
        Err(format!("{shown} exists, and is no empty directory"))
    }
}

/// Returns whether a path is free for a mountpoint: nothing is there, or an empty directory.
pub fn is_free(path: &Path) -> bool {
    is_missing(path) || fs::read_dir(path).is_ok_and(|mut names| names.next().is_none())
}

/// Returns the name of a store without the endings of stores.
pub fn bare_name(store: &StoreLocation) -> Option<String> {
    let name = store.name()?;
    let bare = ENDINGS.iter().fold(name.as_str(), |name, ending| {
        let cut = name.len().saturating_sub(ending.len());
        let ends = name
            .get(cut..)
            .is_some_and(|end| end.eq_ignore_ascii_case(ending));
        if ends && cut > 0 { &name[..cut] } else { name }
    });
    (!matches!(bare, "" | "." | "..")).then(|| bare.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;

    #[test]
    fn mountpoints_are_named_after_stores() {
        for (store, name) in [
            ("/a/b.zarr", Some("b")),
            ("/a/b.zarr.ZIP", Some("b")),
            ("/a/b.ozx", Some("b")),
            ("/a/b.zip.zarr/", Some("b.zip")),
            ("/a/.zarr", Some(".zarr")),
            ("/a/b.nc", Some("b.nc")),
            ("s3://bucket/x/y.zarr/?a=b/c", Some("y")),
            ("s3://bucket", Some("bucket")),
            ("memory:", Some("memory")),
            ("/", None),
        ] {
            assert_eq!(
                bare_name(&OsString::from(store).into()).as_deref(),
                name,
                "{store}"
            );
        }
    }

    #[test]
    fn created_directories_are_removed_if_they_are_empty() {
        let directory = tempfile::tempdir().unwrap();
        let there = directory.path().join("a");
        fs::create_dir(&there).unwrap();
        let path = there.join("b/c/d");
        assert_eq!(
            absolute(&path),
            fs::canonicalize(&there).unwrap().join("b/c/d")
        );
        drop(make(&path).ok().unwrap());
        assert!(there.is_dir() && !there.join("b").exists());
        let made = make(&path).ok().unwrap();
        assert!(path.is_dir());
        fs::write(there.join("b/file"), "").unwrap();
        drop(made);
        assert!(there.join("b/file").exists() && !there.join("b/c").exists());
        // a directory that existed before stays
        drop(make(&there).ok().unwrap());
        assert!(there.is_dir());
    }

    #[test]
    fn created_directories_are_found_after_renames() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a/b");
        let made = make(&path).ok().unwrap();
        fs::rename(directory.path().join("a"), directory.path().join("moved")).unwrap();
        fs::create_dir_all(&path).unwrap();
        let ours = rustix::fs::fstat(made.directory().unwrap()).unwrap();
        assert_eq!(
            ours.st_ino,
            std::os::unix::fs::MetadataExt::ino(
                &fs::metadata(directory.path().join("moved/b")).unwrap()
            )
        );
        drop(made);
        assert!(path.is_dir() && !directory.path().join("moved/b").exists());
    }
}
