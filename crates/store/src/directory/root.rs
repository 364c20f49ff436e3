//! The root of a directory store. It is held open, so that it stays the store if it is renamed or
//! mounted over. Programs that replace a whole store (`mode="w"` of zarr-python and xarray) remove
//! it and create another one.
//!
//! Invariant: a removed root is never taken for an empty store. The directory that took its place
//! is found by its name in the directory above, which is held open, too; while there is none, every
//! access is an error. The place is taken only by a directory of the same owner, reached through no
//! link and no mount, so that a store never leads into the mount that shows it.

use super::resolve::path_of;
use crate::outside;
use rustix::fs::{self, Mode, OFlags, ResolveFlags};
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use zarrfs_base::error::{Error, Kind, Result};
use zarrfs_base::stats::Stats;

const FLAGS: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// The root of a store.
pub(super) struct StoreRoot {
    /// Protects the pointer alone.
    current: RwLock<Arc<OwnedFd>>,
    /// `None` if the root is not looked for after it was removed.
    place: Option<RootPlace>,
}

/// The place where a root stands.
struct RootPlace {
    above: OwnedFd,
    name: OsString,
    stats: Arc<Stats>,
}

impl StoreRoot {
    /// Opens the directory at `path`.
    pub fn open(path: &Path) -> Result<Self> {
        let root = fs::open(path, FLAGS, Mode::empty())
            .map_err(|e| Error::from(e).context(path.display()))?;
        Ok(StoreRoot {
            current: RwLock::new(Arc::new(root)),
            place: None,
        })
    }

    /// Looks for another directory after the root was removed.
    pub fn replaceable(self, stats: Arc<Stats>) -> Self {
        let path = path_of(&self.held()).unwrap_or_default();
        let above = path
            .parent()
            .and_then(|above| fs::open(above, FLAGS, Mode::empty()).ok());
        let place = above.zip(path.file_name().map(OsString::from));
        StoreRoot {
            place: place.map(|(above, name)| RootPlace { above, name, stats }),
            ..self
        }
    }

    /// Returns the directory that is held open.
    pub fn held(&self) -> Arc<OwnedFd> {
        self.current
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Returns what `open` finds at `path` below the root, or below the directory that took its
    /// place.
    ///
    /// # Errors
    ///
    /// EIO if the root was removed and there is none; those of `open`.
    pub fn find<T>(
        &self,
        path: &str,
        open: impl Fn(&OwnedFd) -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let root = self.held();
        // a removed directory can still be opened as itself
        let found = if path.is_empty() { None } else { open(&root)? };
        match found {
            None => match self.replacement(&root)? {
                Some(new) => open(&new),
                None if path.is_empty() => open(&root),
                None => Ok(None),
            },
            found => Ok(found),
        }
    }

    /// Returns the directory that took the place of `old`; `None` if that was not removed.
    fn replacement(&self, old: &Arc<OwnedFd>) -> Result<Option<Arc<OwnedFd>>> {
        let Some(RootPlace { above, name, stats }) = &self.place else {
            return Ok(None);
        };
        let before = fs::fstat(old)?;
        if before.st_nlink > 0 {
            return Ok(None);
        }
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&current, old) {
            return Ok(Some(current.clone()));
        }
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
        let opened = fs::openat2(above, name, FLAGS, Mode::empty(), resolve);
        let of_owner = opened
            .ok()
            .filter(|fd| fs::fstat(fd).is_ok_and(|now| now.st_uid == before.st_uid));
        match of_owner {
            Some(new) => {
                log::warn!(
                    "{}: another directory took the place of the store, which was removed",
                    name.display()
                );
                outside::set_replaced();
                *current = Arc::new(new);
                Ok(Some(current.clone()))
            }
            None => {
                let why = "the directory of the store was removed, and no other took its place";
                let e = Error::new(Kind::System(libc::EIO), why).context(name.display());
                Err(stats.met(e))
            }
        }
    }
}
