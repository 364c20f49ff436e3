//! The layers of stores that are opened for a location. This module must not know the content of a
//! store.

use super::parse::{StoreLocation, UrlParts, is_archive_name, is_references_name};
use super::probe::{
    StoreKind, begins_as_object, check_no_parquet, check_not_mounted, marks, missing, no_archive,
    probe,
};
use super::server::{open_object_store, server_text};
use super::targets::{no_files, target_roots};
use super::{LEVELS_ABOVE, StoreRequest};
use crate::array::hierarchy::{DOCUMENTS, OpenRepository};
use crate::cli::cache_options::spill_directory;
use crate::cli::{CommandFailure, CommandResult, ExitCode, absolute};
use std::path::Path;
use std::sync::Arc;
use zarrfs_base::error::{Error, Kind};
use zarrfs_base::spill_file::{SpillOptions, SpillSpace};
use zarrfs_format::metadata::{GROUP_DOCUMENT, ZARR_JSON, ZARRAY, ZGROUP, ZMETADATA};
use zarrfs_icechunk::{IceRepositoryStore, IcechunkStore};
use zarrfs_reference::ReferenceStore;
use zarrfs_store::{
    DirectoryStore, DiskCache, Key, LockReach, MemoryStore, MetadataCache, PrefixStore, Store,
    StoreExt,
};
use zarrfs_zip::ZipStore;

impl StoreRequest<'_> {
    /// Opens the store.
    pub fn open(self) -> CommandResult<Arc<dyn Store>> {
        self.location.check_answers()?;
        if !self.location.path().is_some_and(Path::is_dir)
            && self
                .writing
                .is_some_and(|writing| writing.synchronizer.is_some())
        {
            let why = "--synchronizer: only for stores in directories";
            return Err(CommandFailure::wrong_use(why));
        }
        let store = match probe(self.location)? {
            StoreKind::InFile {
                folder,
                name,
                inside,
            } => self.open_file(&folder, &name, &inside)?,
            StoreKind::InRepository { root, inside } => {
                self.open_repository(&root, self.open_folder(&root)?, &inside)?
            }
            StoreKind::Directory(path) => self.open_directory(path)?,
            StoreKind::Served(url) => self.open_served(url)?,
            StoreKind::Memory => {
                let store = MemoryStore::default();
                store.insert(ZGROUP, GROUP_DOCUMENT);
                Arc::new(store)
            }
        };
        self.disk_cached(store)
    }

    /// Returns the store of a directory that writes as the options say.
    pub fn written(self, mut store: DirectoryStore) -> Result<DirectoryStore, Error> {
        if self.args.usage.is_successor {
            store = store.with_earlier_changes();
        }
        match self.writing {
            Some(writing) => writing.apply(store),
            None => Ok(store),
        }
    }

    fn open_directory(self, path: &Path) -> CommandResult<Arc<dyn Store>> {
        self.check_no_reference()?;
        check_no_parquet(path)?;
        let is_written = self.writing.is_some() && !self.args.usage.is_read_only;
        if is_written {
            check_not_mounted(path)?;
        }
        let store = DirectoryStore::open(&absolute(path)).map_err(|e| match e.errno() {
            libc::ENOENT | libc::ENOTDIR => missing(path),
            _ => e.into(),
        })?;
        let mut store = store.replaceable(self.stats.clone());
        if self.args.usage.lists_unfinished {
            store = store.listing_unfinished();
        }
        store = self.written(store)?;
        if is_written {
            store = store.removing_abandoned();
            warn_of_other_machines(path, store.lock_reach());
        }
        Ok(Arc::new(store))
    }

    /// Opens the directory or the part of a server that holds a file or a repository.
    fn open_folder(self, folder: &StoreLocation) -> CommandResult<Arc<dyn Store>> {
        Ok(match folder {
            StoreLocation::Path(path) => {
                Arc::new(DirectoryStore::open(path)?.replaceable(self.stats.clone()))
            }
            StoreLocation::Url(url) => Arc::new(self.open_server(url)?),
            StoreLocation::Memory => return Err(no_files().into()),
        })
    }

    /// Opens `inside` in the archive or the references in the file `name` of `folder`.
    fn open_file(
        self,
        folder: &StoreLocation,
        name: &str,
        inside: &str,
    ) -> CommandResult<Arc<dyn Store>> {
        let below = self.open_folder(folder)?;
        let is_marked = folder.path().is_some_and(|folder| marks(folder).is_some());
        let is_references = is_references_name(name)
            || !is_archive_name(name) && !is_marked && begins_as_object(below.as_ref(), name);
        // whether the name of the file promises no store
        let is_other = if is_references {
            is_marked
        } else {
            !is_archive_name(name)
        };
        let opened = if is_references {
            self.open_references(folder, below, name, inside)?
        } else {
            self.open_archive(below, name, inside)
        };
        opened.map_err(|e| {
            let failure = self.file_failure(is_references, e);
            match (self.location.path(), folder.path()) {
                (Some(path), Some(folder)) if is_other && failure.is(ExitCode::NotZarr) => {
                    no_archive(path, folder)
                }
                _ => failure,
            }
        })
    }

    /// Opens what a server has at a URL: a repository, or the values of a store.
    fn open_served(self, url: &str) -> CommandResult<Arc<dyn Store>> {
        let store = Arc::new(self.open_server(url)?.with_documents(&DOCUMENTS));
        let parts = UrlParts::of(url);
        if let Some(repository) = self.repository_on_server(&parts, store.clone())? {
            return Ok(repository);
        }
        self.check_no_reference()?;
        Ok(store)
    }

    /// Opens the repository that the location is or leads into. A store of Zarr costs no request
    /// more: its documents are looked for anyway. With `--ref` the caller takes the location for a
    /// repository, until the server has no files of one.
    fn repository_on_server(
        self,
        parts: &UrlParts,
        store: Arc<dyn Store>,
    ) -> CommandResult<Option<Arc<dyn Store>>> {
        if self.args.usage.is_above {
            return Ok(None);
        }
        let depth = parts.names.len();
        let is_certain = self.args.snapshot.is_some() || self.args.usage.shows_history;
        if is_certain {
            match self.open_served_repository(parts, depth, store.clone()) {
                Err(e) if e.is(ExitCode::NotFound) => {}
                opened => return opened.map(Some),
            }
        }
        // in the order in which documents are looked for: an error of the first one is final where
        // the server can't list
        let documents = [ZMETADATA, ZARR_JSON, ZARRAY, ZGROUP];
        for name in documents.into_iter().filter(|_| !is_certain) {
            match store.stat(&Key::root().join(name)) {
                Ok(None) => {}
                Err(e) if name == ZMETADATA && !store.lists_all() => {
                    return Err(self.not_opened(e));
                }
                _ => return Ok(None),
            }
        }
        if IcechunkStore::is_in(&*store).unwrap_or(false) {
            return self.open_served_repository(parts, depth, store).map(Some);
        }
        if self.writing.is_some() && !is_certain {
            return Ok(None);
        }
        for depth in (0..depth).rev().take(LEVELS_ABOVE) {
            let Ok(below) = self.open_server(&parts.up_to(depth)) else {
                return Ok(None);
            };
            if IcechunkStore::is_in(&below).unwrap_or(false) {
                return self
                    .open_served_repository(parts, depth, Arc::new(below))
                    .map(Some);
            }
        }
        Ok(None)
    }

    /// Opens the repository at the first `depth` names of a URL, which is the root of `below`.
    fn open_served_repository(
        self,
        parts: &UrlParts,
        depth: usize,
        below: Arc<dyn Store>,
    ) -> CommandResult<Arc<dyn Store>> {
        let below: Arc<dyn Store> = match self.disk_cache(&below)? {
            Some(cache) => Arc::new(cache.of_immutable(&IcechunkStore::IMMUTABLE)),
            None => below,
        };
        let root = StoreLocation::Url(parts.up_to(depth));
        self.open_repository(&root, below, &parts.names[depth..].join("/"))
    }

    /// Opens `inside` in the repository at the root of the store `below`, whose location is `root`.
    fn open_repository(
        self,
        root: &StoreLocation,
        below: Arc<dyn Store>,
        inside: &str,
    ) -> CommandResult<Arc<dyn Store>> {
        let (place, roots) = target_roots(self, root)?;
        let wanted = self.args.snapshot.clone().unwrap_or_default();
        if self.args.usage.shows_history && !inside.is_empty() {
            let why = format!("{}: --history shows whole repositories", self.location);
            return Err(CommandFailure::wrong_use(why));
        }
        let can_move =
            wanted.can_move() && !self.args.reads_once() && !self.args.usage.keeps_snapshot;
        let spill = self.args.usage.spill.clone().unwrap_or_else(|| {
            SpillSpace::new(SpillOptions {
                directory: spill_directory(),
                limit: u64::MAX,
            })
        });
        let opened = IcechunkStore::open(below, wanted, place, roots, Some(spill));
        let store = opened
            .and_then(|store| {
                let store = store.with_stats(self.stats.clone());
                let inside = Key::normalize(inside)?;
                Ok(if self.args.usage.shows_history {
                    IceRepositoryStore::of_history(store)
                } else if can_move {
                    IceRepositoryStore::of_branch(store, inside)
                } else {
                    IceRepositoryStore::of_snapshot(store, inside)
                })
            })
            .map_err(|e| {
                let codes = [
                    (Kind::NotFound, ExitCode::NotFound),
                    (Kind::Damaged, ExitCode::NotZarr),
                    (Kind::Unsupported, ExitCode::NotZarr),
                ];
                self.failure(e, &codes)
            })?;
        Ok(Arc::new(store))
    }

    /// Returns what opens the repositories in the directory of stores at the location.
    pub fn repository_opener(self) -> OpenRepository {
        let folder = self.location.path().map(absolute).unwrap_or_default();
        let mut args = self.args.clone();
        args.usage.holds_stores = false;
        let stats = self.stats.clone();
        Box::new(move |stores, key| {
            let below = PrefixStore::at(stores.clone(), key.clone());
            if !IcechunkStore::is_in(&*below)? {
                return Ok(None);
            }
            let location = StoreLocation::Path(folder.join(key.as_str()));
            let request = StoreRequest::reading(&location, &args, &stats);
            request
                .open_repository(&location, below, "")
                .and_then(|store| request.disk_cached(store))
                .map(Some)
                .map_err(|failure| Error::io(failure.message))
        })
    }

    /// Refuses `--ref` for a location that is not a repository.
    fn check_no_reference(self) -> CommandResult {
        if self.args.snapshot.is_none() {
            return Ok(());
        }
        let why = format!(
            "{}: no Icechunk repository; --ref is for those",
            self.location
        );
        Err(CommandFailure::wrong_use(why))
    }

    /// Opens the values below a URL, with a cache of their metadata.
    fn open_server(self, url: &str) -> CommandResult<MetadataCache> {
        let store = open_object_store(url, &self.object_options()?, self.stats);
        let codes = [(Kind::Invalid, ExitCode::WrongUse)];
        let store = store.map_err(|e| self.failure(e, &codes))?;
        Ok(MetadataCache::new(store, self.metadata_ttl()))
    }

    /// Opens `inside` in the archive `name` of the store `below`.
    fn open_archive(
        self,
        below: Arc<dyn Store>,
        name: &str,
        inside: &str,
    ) -> Result<Arc<dyn Store>, Error> {
        let key = Key::root().child(name)?;
        let mut inside = Key::normalize(inside)?;
        let mut archive = ZipStore::open(below, &key)?.with_stats(self.stats.clone());
        if self.args.reads_once() && matches!(self.location, StoreLocation::Url(_)) {
            archive = archive.read_once();
        }
        // `zip -r store.zip store.zarr` puts the store into a folder of the archive
        if let Some(folder) = archive.single_folder()
            && inside.relative_to(&folder).is_none()
        {
            inside = folder.join_key(&inside);
        }
        Ok(PrefixStore::at(Arc::new(archive), inside))
    }

    /// Opens the references in the file `name` of `folder`, which is the store `below`. The outer
    /// failure is one of the options.
    fn open_references(
        self,
        folder: &StoreLocation,
        below: Arc<dyn Store>,
        name: &str,
        inside: &str,
    ) -> CommandResult<Result<Arc<dyn Store>, Error>> {
        let (place, roots) = target_roots(self, folder)?;
        let opened = Key::root()
            .child(name)
            .and_then(|key| ReferenceStore::open(below, &key, place, roots));
        Ok(opened.and_then(|store| {
            let store = store.with_stats(self.stats.clone());
            Ok(PrefixStore::at(Arc::new(store), Key::normalize(inside)?))
        }))
    }

    /// Returns the failure of a file that can't be opened.
    fn file_failure(self, is_references: bool, e: Error) -> CommandFailure {
        let shown = self.location;
        match e.kind() {
            Kind::NotFound => CommandFailure::not_found(format!("{shown}: no such store")),
            Kind::System(_) | Kind::NoStore | Kind::NotAValue => e.context(shown).into(),
            _ if is_references => {
                CommandFailure::not_zarr(format!("{shown}: can't be read as references: {e}"))
            }
            _ => CommandFailure::not_zarr(format!("{shown}: {e}")),
        }
    }

    /// Adds the disk cache over a store that asks servers, if the user asks for it.
    fn disk_cached(self, store: Arc<dyn Store>) -> CommandResult<Arc<dyn Store>> {
        let asks_servers =
            matches!(self.location, StoreLocation::Url(_)) || store.concurrency() > 1;
        if !asks_servers {
            return Ok(store);
        }
        Ok(match self.disk_cache(&store)? {
            Some(cache) => Arc::new(cache),
            None => store,
        })
    }

    /// Returns the disk cache over a store, if the user asks for it.
    fn disk_cache(self, store: &Arc<dyn Store>) -> CommandResult<Option<DiskCache>> {
        let remote = &self.args.remote;
        let Some(directory) = &remote.cache_dir else {
            return Ok(None);
        };
        let directory = absolute(directory);
        let (store, limit) = (store.clone(), remote.cache_dir_size);
        let is_repository = store.capabilities().snapshots.is_some();
        let cache = DiskCache::open(store, &directory, limit, self.stats.clone())?;
        let cache = cache.for_server(&server_text(remote.endpoint_url.clone()));
        Ok(Some(if is_repository {
            cache.named_by(IceRepositoryStore::lasting_key)
        } else {
            cache
        }))
    }
}

/// Warns if the zarrfs programs of several machines would not take turns at changing the store.
fn warn_of_other_machines(path: &Path, reach: LockReach) {
    if reach != LockReach::All {
        log::warn!(
            "{}: programs on other machines may not see the locks of this file system; change the store from one machine at a time, or use --synchronizer",
            path.display()
        );
    }
}
