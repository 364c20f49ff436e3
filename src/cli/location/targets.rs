//! The stores that hold the targets of references: of files of references, and of chunks of
//! repositories that name other files. This module must not know which store refers to them.

use super::StoreRequest;
use super::parse::{StoreLocation, check_url};
use super::server::open_object_store;
use crate::cli::{CommandFailure, CommandResult};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use zarrfs_base::error::Error;
use zarrfs_base::stats::Stats;
use zarrfs_reference::TargetRoot;
use zarrfs_store::{DirectoryStore, Key, MetadataCache, ObjectOptions, Store, TargetPlace};

/// Returns the place of the folder of references, and the prefixes below which their targets
/// may lie.
pub fn target_roots(
    request: StoreRequest,
    folder: &StoreLocation,
) -> CommandResult<(TargetPlace, Vec<TargetRoot>)> {
    let allowed = &request.args.allow_reference;
    let allowed = allowed.iter().map(StoreLocation::absolute);
    let locations: Vec<StoreLocation> = std::iter::once(folder.clone()).chain(allowed).collect();
    let places: Vec<TargetPlace> = locations
        .iter()
        .map(target_place)
        .collect::<Result<_, _>>()?;
    let opener = Arc::new(TargetOpener {
        options: request.object_options()?,
        allowed: places.clone().into(),
        ttl: request.metadata_ttl(),
        stats: request.stats.clone(),
    });
    let mut roots = Vec::new();
    for (n, (place, location)) in places.iter().zip(locations).enumerate() {
        // a prefix that the user allows may name a single file
        if n > 0
            && let Some((above, _)) = location.split_last()
        {
            let opener = opener.clone();
            let open = Box::new(move || opener.open(&above));
            roots.push(TargetRoot::of_target(place.clone(), open));
        }
        let hidden = mountpoint_below(&location, request.args.usage.mountpoint.as_deref());
        let opener = opener.clone();
        let open = Box::new(move || opener.open(&location));
        roots.push(TargetRoot::new(place.clone(), open).hiding(hidden));
    }
    Ok((places[0].clone(), roots))
}

/// Opens the stores that hold the targets of references.
struct TargetOpener {
    options: ObjectOptions,
    /// Where web servers may redirect to.
    allowed: Arc<[TargetPlace]>,
    ttl: Option<Duration>,
    stats: Arc<Stats>,
}

impl TargetOpener {
    fn open(&self, location: &StoreLocation) -> Result<Arc<dyn Store>, Error> {
        match location {
            StoreLocation::Path(path) => Ok(Arc::new(
                DirectoryStore::open(path)?.replaceable(self.stats.clone()),
            )),
            StoreLocation::Url(url) => {
                let mut options = self.options.clone();
                // the servers of buckets redirect to hosts of their own
                if url.to_ascii_lowercase().starts_with("http") {
                    options.redirects = Some(self.allowed.clone());
                }
                let store = open_object_store(url, &options, &self.stats)?;
                Ok(Arc::new(MetadataCache::new(store, self.ttl)))
            }
            StoreLocation::Memory => Err(no_files()),
        }
    }
}

/// Returns the place of targets below `location`.
fn target_place(location: &StoreLocation) -> CommandResult<TargetPlace> {
    let place = match location {
        StoreLocation::Path(path) => TargetPlace::of_path(path),
        StoreLocation::Url(url) => {
            check_url(url)?;
            TargetPlace::of_url(url)
        }
        StoreLocation::Memory => Err(no_files()),
    };
    place.map_err(|e| CommandFailure::wrong_use(format!("--allow-reference: {e}")))
}

pub fn no_files() -> Error {
    Error::invalid("memory: holds no files")
}

/// Returns the key of the mountpoint in the directory at `location`, if it lies there. A target in
/// it would be read through the mount, by the daemon that serves the mount.
fn mountpoint_below(location: &StoreLocation, mountpoint: Option<&Path>) -> Option<Key> {
    let directory = std::fs::canonicalize(location.path()?).ok()?;
    let below = mountpoint?.strip_prefix(directory).ok()?;
    Key::normalize(below.to_str()?).ok()
}
