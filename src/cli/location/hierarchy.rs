//! The groups and arrays of a store that a command line names, with the layers that its documents
//! need. This module must not know what kinds of stores there are.

use super::parse::leads_into_archive;
use super::probe::check_holds_stores;
use super::{LEVELS_ABOVE, Reading, StoreLocation, StoreRequest};
use crate::array::hierarchy::{ConsolidatedStore, Hierarchy, NestedStores};
use crate::cli::failure::{CommandFailure, CommandResult, ExitCode};
use crate::fs::tree::FLAT;
use std::path::Path;
use std::sync::Arc;
use zarrfs_base::error::Kind;
use zarrfs_export::Format;
use zarrfs_store::{Hint, Key, Store, StoreExt};

impl StoreRequest<'_> {
    /// Opens the groups and arrays of the store, or of the stores in a directory.
    pub fn hierarchy(self) -> CommandResult<Hierarchy> {
        self.opened()
            .map_err(|failure| self.for_mounted_name(failure))
    }

    /// Returns the failure to open the store. If the last name of its location is a file that only
    /// a mount shows, the failure says which path to name instead.
    fn for_mounted_name(self, failure: CommandFailure) -> CommandFailure {
        let is_missing = failure.is(ExitCode::NotFound) || failure.is(ExitCode::NotZarr);
        let shown = self.location.to_string();
        if is_missing
            && let Some((array, name)) = shown.rsplit_once('/')
            && (name == FLAT || Format::of_name(name).is_some())
            && !self.location.path().is_some_and(Path::exists)
        {
            return CommandFailure::not_found(format!(
                "{shown}: {name} is a file of mounts, not of stores; name the array, as in `zarrfs cat {array}`"
            ));
        }
        failure
    }

    fn opened(self) -> CommandResult<Hierarchy> {
        if !self.args.usage.holds_stores {
            return self.hierarchy_of(self.open_layers()?);
        }
        check_holds_stores(self.location)?;
        let stores = NestedStores::new(self.open()?, self.stats.clone(), self.repository_opener());
        let hierarchy = Hierarchy::new(Arc::new(stores), self.args.v1_order, self.stats.clone());
        Ok(hierarchy.holding_stores())
    }

    /// Opens the store with all its layers.
    pub fn open_layers(self) -> CommandResult<Arc<dyn Store>> {
        let store = self.open()?;
        if self.args.usage.reading == Reading::WholeOnce {
            store.hint(Hint::WholeStore);
        }
        let when = self.args.consolidated();
        let above = &mut self.stores_above();
        ConsolidatedStore::over_or_above(store, when, self.stats.clone(), above)
            .map_err(|e| self.not_opened(e))
    }

    /// Returns the hierarchy of the opened store.
    ///
    /// # Errors
    ///
    /// The store is not a Zarr store.
    pub fn hierarchy_of(self, store: Arc<dyn Store>) -> CommandResult<Hierarchy> {
        let location = self.location;
        let hierarchy = Hierarchy::new(store, self.args.v1_order, self.stats.clone());
        hierarchy.check().map_err(|e| match e.kind() {
            Kind::Invalid if is_nowhere(hierarchy.store()) => CommandFailure::not_found(format!(
                "{location}: no such store, nor a group or array in one"
            )),
            // this occurs in an archive
            Kind::NotFound => {
                CommandFailure::not_found(format!("{location}: no such group or array: {e}"))
            }
            _ => self.not_opened(e),
        })?;
        Ok(hierarchy)
    }

    /// Returns the stores above a URL, nearest first, each with the key of the URL in it.
    fn stores_above(self) -> impl Iterator<Item = (Arc<dyn Store>, Key)> {
        let is_listed =
            matches!(self.location, StoreLocation::Url(url) if !leads_into_archive(url));
        let first = is_listed.then(|| (self.location.clone(), Key::root()));
        let outwards = std::iter::successors(first, |(location, key)| {
            let (above, name) = location.split_last()?;
            Some((above, name.join_key(key)))
        });
        outwards
            .skip(1)
            .take(LEVELS_ABOVE)
            .map_while(move |(location, key)| {
                let mut args = self.args.clone();
                args.usage.is_above = true;
                let above = StoreRequest {
                    location: &location,
                    args: &args,
                    ..self
                };
                Some((above.open().ok()?, key))
            })
    }
}

/// Returns whether a remote store has no key at all. An empty directory exists; an empty bucket
/// prefix does not.
fn is_nowhere(store: &dyn Store) -> bool {
    store.concurrency() > 1
        && store.lists_all()
        && store
            .list(&Key::root())
            .is_ok_and(|mut names| names.next().is_none())
}
