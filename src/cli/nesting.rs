//! Refuses a mountpoint on the paths of the daemon itself.
//!
//! Invariant: no thread of a daemon ever enters a FUSE file system that it serves. A thread that
//! waits for its own process can't be killed, and the mount never ends. So no path that the daemon
//! uses after the mount may lead through its mountpoint, and no directory that it lists may hold
//! it. Names say nothing, because of links and bind mounts: directories are compared by device and
//! inode before the mount, and by the mount table after it.

use super::{CommandFailure, CommandResult};
use crate::fuse::{Mountpoint, follow, mounts_at};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A path that the daemon uses after the mount.
pub struct OwnPath {
    /// What the path is, for messages.
    what: &'static str,
    path: PathBuf,
    kind: OwnPathKind,
}

/// How the daemon uses a path of its own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum OwnPathKind {
    /// A store in a directory or a file. The directory is held open: a mount on the directory
    /// itself hides nothing from the daemon.
    Store,
    /// A directory in which any name is opened.
    Tree,
    /// A path that is opened by its name.
    Name,
}

impl OwnPathKind {
    /// Returns paths of this kind, each with what it is.
    pub fn of(
        self,
        paths: impl IntoIterator<Item = (&'static str, PathBuf)>,
    ) -> impl Iterator<Item = OwnPath> {
        paths.into_iter().map(move |(what, path)| OwnPath {
            what,
            path,
            kind: self,
        })
    }
}

/// Device and inode of a directory.
type DirectoryId = (u64, u64);

fn id_of(path: &Path) -> Option<DirectoryId> {
    std::fs::symlink_metadata(path)
        .ok()
        .map(|found| (found.dev(), found.ino()))
}

/// Where a mount is, or is about to be.
pub struct MountSite {
    /// The mountpoint, for messages.
    path: PathBuf,
    /// The directory to mount on, before the mount.
    directory: Option<DirectoryId>,
    /// The places in the mount table, after the mount.
    places: Vec<PathBuf>,
    /// The directories above the mountpoint.
    above: Vec<DirectoryId>,
    /// Whether the mount was there before the store was opened.
    hides_store: bool,
}

impl MountSite {
    /// Returns the site of a mount on a path without links, whose last names need not exist yet.
    pub fn before(path: &Path) -> Self {
        let above = path.ancestors().skip(1).filter_map(id_of).collect();
        // a mount that is there may hang, and is refused later
        let is_free = mounts_at(path)
            .is_ok_and(|mounts| mounts.last().is_none_or(|mount| !mount.is_zarrfs()));
        let directory = if is_free { id_of(path) } else { None };
        MountSite {
            path: path.to_path_buf(),
            directory,
            places: Vec::new(),
            above,
            hides_store: false,
        }
    }

    /// Returns the site of a mount that is not served yet, and must not be entered.
    pub fn of(mount: &Mountpoint) -> CommandResult<Self> {
        let places = mount.places()?;
        let above = places
            .iter()
            .flat_map(|place| place.ancestors().skip(1))
            .filter_map(id_of)
            .collect();
        Ok(MountSite {
            path: mount.path().to_path_buf(),
            directory: None,
            places,
            above,
            hides_store: mount.is_inherited(),
        })
    }

    fn is_at(&self, path: &Path) -> bool {
        self.places.iter().any(|place| place == path)
            || self.directory.is_some() && id_of(path) == self.directory
    }
}

/// Checks that no path of the daemon leads through its mount, and that no directory that it lists
/// holds it.
pub fn check(own: &[OwnPath], site: &MountSite) -> CommandResult {
    let shown = site.path.display();
    for OwnPath { what, path, kind } in own {
        // what does not exist leads nowhere
        let Ok(followed) = follow(path, &|place| site.is_at(place)) else {
            continue;
        };
        let message = match &followed.rest {
            Some(rest)
                if *kind != OwnPathKind::Store
                    || !rest.as_os_str().is_empty()
                    || site.hides_store =>
            {
                format!(
                    "{what} {}: leads through the mountpoint {shown}; choose another",
                    path.display()
                )
            }
            None if *kind != OwnPathKind::Name
                && id_of(&followed.path).is_some_and(|id| site.above.contains(&id)) =>
            {
                format!(
                    "mountpoint {shown}: inside the {}; choose another",
                    what.trim_start_matches("--")
                )
            }
            _ => continue,
        };
        return Err(CommandFailure::mountpoint(message));
    }
    Ok(())
}
