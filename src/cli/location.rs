//! Locations of stores on a command line: paths, archives and URLs, and the layers of stores that
//! are opened for each. This module must not know what is in a store.

use super::{
    CommandFailure, ExitCode, LEVELS_ABOVE, StoreArgs, WriteArgs, absolute, spill_directory, stats,
};
use crate::array::hierarchy::{DOCUMENTS, OpenRepository, REMOVED};
use crate::fuse::{PATIENCE, STATISTICS, mount_of, read_control};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use zarrfs_base::error::{Error, Kind};
use zarrfs_base::json;
use zarrfs_base::spill_file::{SpillOptions, SpillSpace};
use zarrfs_base::stats::Stats;
use zarrfs_format::metadata::v3::node::{NodeType, node_type};
use zarrfs_format::metadata::{
    GROUP_DOCUMENT, V1_ATTRS, V1_META, ZARR_JSON, ZARRAY, ZGROUP, ZMETADATA,
};
use zarrfs_icechunk::{IceRepositoryStore, IcechunkStore};
use zarrfs_reference::{ReferenceStore, TargetRoot};
use zarrfs_store::{
    DirectoryStore, DiskCache, Key, LockReach, MemoryStore, MetadataCache, ObjectOptions,
    PagedListing, PrefixStore, Store, StoreExt, TargetPlace,
};
use zarrfs_zip::ZipStore;

/// URL schemes of remote stores.
const SCHEMES: [&str; 9] = [
    "http", "https", "s3", "s3a", "gs", "az", "azure", "abfs", "abfss",
];

/// Environment variables that name the server or the account of a bucket.
const SERVERS: [&str; 8] = [
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT",
    "AWS_PROFILE",
    "AZURE_STORAGE_ACCOUNT",
    "AZURE_STORAGE_ACCOUNT_NAME",
    "AZURE_STORAGE_ENDPOINT",
    "STORAGE_EMULATOR_HOST",
];

/// Ending of the names of archives.
const ARCHIVE: &str = ".zip";

/// Ending of the names of archives of OME-NGFF (RFC-9).
const OME_ARCHIVE: &str = ".ozx";

/// Ending of the names of files of references.
const REFERENCES: &str = ".json";

const PARQUET: &str =
    "references in Parquet are not supported; convert them to JSON with kerchunk or VirtualiZarr";

/// The location of a store, or of a group or array in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreLocation {
    /// A path of a directory, or of an archive or a key in one.
    Path(PathBuf),
    /// A URL of a remote store.
    Url(String),
    /// A new store in memory.
    Memory,
}

impl From<OsString> for StoreLocation {
    fn from(name: OsString) -> Self {
        match name.to_str() {
            Some("memory:" | "memory://") => StoreLocation::Memory,
            Some(text) if scheme(text) == Some("file") => StoreLocation::Path(file_path(text)),
            Some(text) if scheme(text).is_some() || is_misspelled(text) => {
                StoreLocation::Url(text.to_string())
            }
            _ => StoreLocation::Path(name.into()),
        }
    }
}

impl StoreLocation {
    /// Returns the location independent of the working directory.
    pub fn absolute(&self) -> StoreLocation {
        match self {
            StoreLocation::Path(path) => StoreLocation::Path(absolute(path)),
            other => other.clone(),
        }
    }

    /// Returns the location above this one, and the name of this one in it. Returns `None` at the
    /// top, and if the name can't be a key.
    pub fn split_last(&self) -> Option<(StoreLocation, Key)> {
        let (above, name) = match self {
            StoreLocation::Path(path) => (
                StoreLocation::Path(path.parent()?.to_path_buf()),
                path.file_name()?.to_str()?.to_string(),
            ),
            StoreLocation::Url(url) => {
                let parts = UrlParts::of(url);
                let depth = parts.names.len().checked_sub(1)?;
                (
                    StoreLocation::Url(parts.up_to(depth)),
                    parts.names[depth].to_string(),
                )
            }
            StoreLocation::Memory => return None,
        };
        Key::root().child(&name).ok().map(|key| (above, key))
    }

    /// Returns the last name of the location. A whole bucket has its own name.
    pub fn name(&self) -> Option<String> {
        let name = match self {
            StoreLocation::Path(path) => absolute(path).file_name()?.to_str()?.to_string(),
            StoreLocation::Url(url) => {
                let parts = UrlParts::of(url);
                let server = parts.server.rsplit('/').find(|part| !part.is_empty());
                parts.names.last().copied().or(server)?.to_string()
            }
            StoreLocation::Memory => "memory".to_string(),
        };
        Some(name)
    }

    /// Checks that a local store is in no mount of zarrfs that does not answer.
    pub fn check_answers(&self) -> Result<(), CommandFailure> {
        self.path().map_or(Ok(()), check_answers)
    }

    /// Returns the path of a local store.
    pub fn path(&self) -> Option<&Path> {
        match self {
            StoreLocation::Path(path) => Some(path),
            _ => None,
        }
    }
}

impl fmt::Display for StoreLocation {
    /// Omits secrets, because messages and the mount table show the location.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreLocation::Path(path) => path.display().fmt(f),
            StoreLocation::Url(url) => f.write_str(&without_secrets(url)),
            StoreLocation::Memory => f.write_str("memory:"),
        }
    }
}

/// Returns the scheme of a URL, or `None` for a path. A directory with such a name can be given as
/// `./NAME`.
fn scheme(text: &str) -> Option<&str> {
    let (scheme, _) = text.split_once("://")?;
    let is_word = scheme
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    (is_word && scheme.starts_with(|c: char| c.is_ascii_alphabetic())).then_some(scheme)
}

/// Returns whether `text` is a URL without its slashes. A directory is unlikely to be named `s3:`.
fn is_misspelled(text: &str) -> bool {
    let scheme = text.split_once(':').map_or("", |(scheme, _)| scheme);
    SCHEMES.contains(&scheme) || ["file", "memory"].contains(&scheme)
}

/// Checks the scheme of a URL.
pub fn check_url(url: &str) -> Result<(), CommandFailure> {
    let shown = without_secrets(url);
    let known = SCHEMES.join("://, ");
    let why = match scheme(url) {
        Some(scheme) if SCHEMES.contains(&scheme) => return Ok(()),
        _ if url.starts_with("memory:") => {
            "a store in memory has no path and can only be mounted; use memory:".to_string()
        }
        None => format!("no // after the scheme; for a directory use ./{shown}"),
        Some(_) => format!("unknown scheme; use {known}://, file:// or memory:"),
    };
    Err(CommandFailure::wrong_use(format!("{shown}: {why}")))
}

/// Returns the path of a `file://` URL.
fn file_path(url: &str) -> PathBuf {
    let rest = url.strip_prefix("file://").unwrap_or(url);
    let path = rest
        .strip_prefix("localhost")
        .filter(|path| path.starts_with('/'))
        .unwrap_or(rest);
    OsString::from_vec(percent_encoding::percent_decode_str(path).collect()).into()
}

/// Returns a URL without user, password and query.
fn without_secrets(url: &str) -> String {
    let Some((start, rest)) = url.split_once("://") else {
        return url.to_string();
    };
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    // abfs://container@account is no secret
    let authority = match start {
        "http" | "https" => authority.rsplit('@').next().unwrap_or_default(),
        _ => authority,
    };
    format!("{start}://{authority}{path}")
}

/// A URL of a store in parts.
pub struct UrlParts<'a> {
    /// What precedes the path.
    server: &'a str,
    /// The names of the path.
    pub names: Vec<&'a str>,
    /// The query, or nothing.
    query: &'a str,
}

impl<'a> UrlParts<'a> {
    pub fn of(url: &'a str) -> Self {
        let (base, query) = url.split_at(url.find(['?', '#']).unwrap_or(url.len()));
        let start = base.find("://").map_or(0, |at| at + 3);
        let path = base[start..].find('/').map_or(base.len(), |at| start + at);
        let (server, path) = base.split_at(path);
        UrlParts {
            server,
            names: path.split('/').filter(|name| !name.is_empty()).collect(),
            query,
        }
    }

    /// Returns the URL up to a number of names, with the query.
    pub fn up_to(&self, depth: usize) -> String {
        let names = self.names.iter().take(depth);
        let path: String = names.map(|name| format!("/{name}")).collect();
        format!("{}{path}{}", self.server, self.query)
    }

    /// Returns the place of the first name that is an archive or a file of references.
    fn archive(&self) -> Option<usize> {
        self.names
            .iter()
            .position(|name| is_archive_name(name) || is_references_name(name))
    }
}

/// Returns whether a name is that of an archive.
pub fn is_archive_name(name: &str) -> bool {
    has_ending(name, ARCHIVE) || is_ome_archive_name(name)
}

/// Returns whether a name is that of an archive of OME-NGFF.
pub fn is_ome_archive_name(name: &str) -> bool {
    has_ending(name, OME_ARCHIVE)
}

/// Returns whether a name has an ending, in letters of either case, and something before it.
fn has_ending(name: &str, ending: &str) -> bool {
    name.len() > ending.len() && name.to_ascii_lowercase().ends_with(ending)
}

/// Returns whether the name belongs to a file of references.
fn is_references_name(name: &str) -> bool {
    has_ending(name, REFERENCES) && name != ZARR_JSON
}

/// Returns whether a URL is that of an archive or of a file of references, or of a key in one.
pub fn leads_into_archive(url: &str) -> bool {
    UrlParts::of(url).archive().is_some()
}

/// Returns the part of a path that is a file, and the rest of the path.
fn archive_at(path: &Path) -> Option<(&Path, &Path)> {
    let archive = path.ancestors().find(|above| above.is_file())?;
    Some((archive, path.strip_prefix(archive).ok()?))
}

/// What is asked of a store that is opened.
#[derive(Clone, Copy)]
pub struct StoreRequest<'a> {
    pub location: &'a StoreLocation,
    pub args: &'a StoreArgs,
    /// `None` if the store is only read.
    pub writing: Option<&'a WriteArgs>,
    pub stats: &'a Arc<Stats>,
}

/// Opens the store at `location`, for writing if `writing` is given.
pub fn open(
    location: &StoreLocation,
    args: &StoreArgs,
    writing: Option<&WriteArgs>,
    stats: &Arc<Stats>,
) -> Result<Arc<dyn Store>, CommandFailure> {
    let request = StoreRequest {
        location,
        args,
        writing,
        stats,
    };
    request.open()
}

/// Checks that a location is a directory that can hold stores.
pub fn check_holds_stores(location: &StoreLocation) -> Result<(), CommandFailure> {
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
pub fn check_not_swapped(store: &StoreLocation, mountpoint: &Path) -> Result<(), CommandFailure> {
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
pub fn check_not_mounted(path: &Path) -> Result<(), CommandFailure> {
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

/// Checks that the daemon answers whose mount holds `path`, if a mount of zarrfs does. A command
/// that waits for a daemon that is stopped would not end.
pub fn check_answers(path: &Path) -> Result<(), CommandFailure> {
    let Ok(Some(mount)) = mount_of(path) else {
        return Ok(());
    };
    match read_control(&mount, STATISTICS, PATIENCE) {
        Err(e) if [libc::ETIMEDOUT, libc::ENOTCONN].contains(&e.errno()) => {
            Err(stats::unanswered(path, &mount, e))
        }
        // any other fault shows when the path is opened
        _ => Ok(()),
    }
}

impl StoreRequest<'_> {
    /// Opens the store.
    pub fn open(self) -> Result<Arc<dyn Store>, CommandFailure> {
        self.location.check_answers()?;
        if !self.location.path().is_some_and(Path::is_dir)
            && self
                .writing
                .is_some_and(|writing| writing.synchronizer.is_some())
        {
            let why = "--synchronizer: only for stores in directories";
            return Err(CommandFailure::wrong_use(why));
        }
        match self.location {
            StoreLocation::Path(path) => self.open_path(path),
            StoreLocation::Url(url) => self.open_url(url),
            StoreLocation::Memory => {
                let store = MemoryStore::default();
                store.insert(ZGROUP, GROUP_DOCUMENT);
                Ok(Arc::new(store))
            }
        }
    }

    fn open_path(self, path: &Path) -> Result<Arc<dyn Store>, CommandFailure> {
        if let Some((file, inside)) = archive_at(path) {
            return self.open_file(path, file, inside);
        }
        if let Some((root, inside)) = repository_at(&absolute(path)) {
            let below = Arc::new(DirectoryStore::open(&root)?.replaceable(self.stats.clone()));
            return self.open_repository(&StoreLocation::Path(root), below, &inside);
        }
        self.check_no_reference()?;
        check_no_parquet(path)?;
        let is_written = self.writing.is_some() && !self.args.is_read_only;
        if is_written {
            check_not_mounted(path)?;
        }
        let store = DirectoryStore::open(&absolute(path)).map_err(|e| match e.errno() {
            libc::ENOENT | libc::ENOTDIR => missing(path),
            _ => e.into(),
        })?;
        let mut store = store.replaceable(self.stats.clone());
        if self.args.lists_unfinished {
            store = store.listing_unfinished();
        }
        if let Some(writing) = self.writing {
            store = writing.apply(store)?;
        }
        if is_written {
            store = store.removing_abandoned();
            warn_of_other_machines(path, store.lock_reach());
        }
        Ok(Arc::new(store))
    }

    /// Opens the archive or the references in `file`, which is `path` or above it.
    fn open_file(
        self,
        path: &Path,
        file: &Path,
        inside: &Path,
    ) -> Result<Arc<dyn Store>, CommandFailure> {
        let shown = path.display();
        let whole = absolute(file);
        let folder = whole.parent().unwrap_or(Path::new("/"));
        let name = whole
            .file_name()
            .and_then(OsStr::to_str)
            .ok_or_else(|| CommandFailure::not_zarr(format!("{shown}: its name is not UTF-8")))?;
        let below = Arc::new(DirectoryStore::open(folder)?.replaceable(self.stats.clone()));
        let inside = inside
            .to_str()
            .ok_or_else(|| CommandFailure::not_found(format!("{shown}: not UTF-8")))?;
        let is_marked = marks(folder).is_some();
        let is_references = is_references_name(name)
            || !is_archive_name(name) && !is_marked && begins_as_object(below.as_ref(), name);
        // whether the name of the file promises no store
        let is_other = if is_references {
            is_marked
        } else {
            !is_archive_name(name)
        };
        let opened = if is_references {
            let folder = StoreLocation::Path(folder.to_path_buf());
            self.open_references(&folder, below, name, inside)
        } else {
            self.open_archive(below, name, inside)
        };
        opened.map_err(|e| {
            if is_other && e.is(ExitCode::NotZarr) {
                no_archive(path, file, folder)
            } else {
                e
            }
        })
    }

    fn open_url(self, url: &str) -> Result<Arc<dyn Store>, CommandFailure> {
        check_url(url)?;
        let parts = UrlParts::of(url);
        let store: Arc<dyn Store> = if let Some(at) = parts.archive() {
            let name = parts.names[at];
            let inside = parts.names[at + 1..].join("/");
            let folder = parts.up_to(at);
            let below = Arc::new(self.open_server(&folder)?);
            if is_archive_name(name) {
                self.open_archive(below, name, &inside)?
            } else {
                self.open_references(&StoreLocation::Url(folder), below, name, &inside)?
            }
        } else {
            let store = Arc::new(self.open_server(url)?.with_documents(&DOCUMENTS));
            match self.repository_on_server(&parts, store.clone())? {
                Some(repository) => repository,
                None => {
                    self.check_no_reference()?;
                    store
                }
            }
        };
        self.disk_cached(store)
    }

    /// Opens the repository that the location is or leads into. A store of Zarr costs no request
    /// more: its documents are looked for anyway. With `--ref` the location is taken for that of a
    /// repository, until it turns out to be none.
    fn repository_on_server(
        self,
        parts: &UrlParts,
        store: Arc<dyn Store>,
    ) -> Result<Option<Arc<dyn Store>>, CommandFailure> {
        if self.args.is_above {
            return Ok(None);
        }
        let depth = parts.names.len();
        let is_certain = self.args.snapshot.is_some() || self.args.shows_history;
        if is_certain {
            match self.open_served(parts, depth, store.clone()) {
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
            return self.open_served(parts, depth, store).map(Some);
        }
        if self.writing.is_some() && !is_certain {
            return Ok(None);
        }
        for depth in (0..depth).rev().take(LEVELS_ABOVE) {
            let Ok(below) = self.open_server(&parts.up_to(depth)) else {
                return Ok(None);
            };
            if IcechunkStore::is_in(&below).unwrap_or(false) {
                return self.open_served(parts, depth, Arc::new(below)).map(Some);
            }
        }
        Ok(None)
    }

    /// Opens the repository at the first `depth` names of a URL, which is the root of `below`.
    fn open_served(
        self,
        parts: &UrlParts,
        depth: usize,
        below: Arc<dyn Store>,
    ) -> Result<Arc<dyn Store>, CommandFailure> {
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
    ) -> Result<Arc<dyn Store>, CommandFailure> {
        let (place, roots) = self.target_roots(root)?;
        let wanted = self.args.snapshot.clone().unwrap_or_default();
        if self.args.shows_history && !inside.is_empty() {
            let why = format!("{}: --history shows whole repositories", self.location);
            return Err(CommandFailure::wrong_use(why));
        }
        let can_move = wanted.can_move() && !self.args.reads_once() && !self.args.keeps_snapshot;
        let spill = self.args.spill.clone().unwrap_or_else(|| {
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
                Ok(if self.args.shows_history {
                    IceRepositoryStore::of_history(store)
                } else if can_move {
                    IceRepositoryStore::of_branch(store, inside)
                } else {
                    IceRepositoryStore::of_snapshot(store, inside)
                })
            })
            .map_err(|e| match e.kind() {
                Kind::NotFound => CommandFailure::not_found(format!("{}: {e}", self.location)),
                Kind::Damaged | Kind::Unsupported => {
                    CommandFailure::not_zarr(format!("{}: {e}", self.location))
                }
                _ => e.context(self.location).into(),
            })?;
        let store: Arc<dyn Store> = Arc::new(store);
        match root {
            StoreLocation::Path(_) if store.concurrency() > 1 => self.disk_cached(store),
            _ => Ok(store),
        }
    }

    /// Returns what opens the repositories in the directory of stores at the location.
    pub fn repository_opener(self) -> OpenRepository {
        let folder = self.location.path().map(absolute).unwrap_or_default();
        let args = StoreArgs {
            holds_stores: false,
            ..self.args.clone()
        };
        let stats = self.stats.clone();
        Box::new(move |stores, key| {
            let below = PrefixStore::at(stores.clone(), key.clone());
            if !IcechunkStore::is_in(&*below)? {
                return Ok(None);
            }
            let location = StoreLocation::Path(folder.join(key.as_str()));
            let request = StoreRequest {
                location: &location,
                args: &args,
                writing: None,
                stats: &stats,
            };
            let opened = request.open_repository(&location, below, "");
            opened
                .map(Some)
                .map_err(|failure| Error::io(failure.message))
        })
    }

    /// Refuses `--ref` for what is no repository.
    fn check_no_reference(self) -> Result<(), CommandFailure> {
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
    fn open_server(self, url: &str) -> Result<MetadataCache, CommandFailure> {
        let store = open_object_store(url, &self.object_options()?, self.stats);
        let store = store.map_err(|e| match e.kind() {
            Kind::Invalid => CommandFailure::wrong_use(format!("{}: {e}", self.location)),
            _ => e.context(self.location).into(),
        })?;
        Ok(MetadataCache::new(store, self.metadata_ttl()))
    }

    /// Returns the options of requests to servers.
    fn object_options(self) -> Result<ObjectOptions, Error> {
        Ok(ObjectOptions {
            refusal_is_final: self.args.mountpoint.is_none(),
            ..self.args.remote.options()?
        })
    }

    fn metadata_ttl(self) -> Option<Duration> {
        self.args.remote.metadata_ttl(self.args.reads_once())
    }

    /// Opens the archive `name` in the store `below`.
    fn open_archive(
        self,
        below: Arc<dyn Store>,
        name: &str,
        inside: &str,
    ) -> Result<Arc<dyn Store>, CommandFailure> {
        self.archive(below, name, inside)
            .map_err(|e| self.file_failure("", e))
    }

    fn archive(
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

    /// Opens the references in the file `name` of `folder`, which is the store `below`.
    fn open_references(
        self,
        folder: &StoreLocation,
        below: Arc<dyn Store>,
        name: &str,
        inside: &str,
    ) -> Result<Arc<dyn Store>, CommandFailure> {
        let (place, roots) = self.target_roots(folder)?;
        let opened = Key::root()
            .child(name)
            .and_then(|key| ReferenceStore::open(below, &key, place, roots))
            .and_then(|store| {
                let store = store.with_stats(self.stats.clone());
                Ok(PrefixStore::at(Arc::new(store), Key::normalize(inside)?))
            });
        let store = opened.map_err(|e| self.file_failure("can't be read as references: ", e))?;
        match folder {
            StoreLocation::Path(_) if store.concurrency() > 1 => self.disk_cached(store),
            _ => Ok(store),
        }
    }

    /// Returns the failure of a file that can't be opened. `why` precedes the cause if the file
    /// holds no store.
    fn file_failure(self, why: &str, e: Error) -> CommandFailure {
        let shown = self.location;
        match e.kind() {
            Kind::NotFound => CommandFailure::not_found(format!("{shown}: no such store")),
            Kind::System(_) | Kind::NoStore | Kind::NotAValue => e.context(shown).into(),
            _ => CommandFailure::not_zarr(format!("{shown}: {why}{e}")),
        }
    }

    /// Returns the place of the folder of references, and the prefixes below which their targets
    /// may lie.
    fn target_roots(
        self,
        folder: &StoreLocation,
    ) -> Result<(TargetPlace, Vec<TargetRoot>), CommandFailure> {
        let allowed = self
            .args
            .allow_reference
            .iter()
            .map(StoreLocation::absolute);
        let locations: Vec<StoreLocation> =
            std::iter::once(folder.clone()).chain(allowed).collect();
        let places: Vec<TargetPlace> = locations
            .iter()
            .map(target_place)
            .collect::<Result<_, _>>()?;
        let opener = Arc::new(TargetOpener {
            options: self.object_options()?,
            allowed: places.clone().into(),
            ttl: self.metadata_ttl(),
            stats: self.stats.clone(),
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
            let hidden = mountpoint_below(&location, self.args.mountpoint.as_deref());
            let opener = opener.clone();
            let open = Box::new(move || opener.open(&location));
            roots.push(TargetRoot::new(place.clone(), open).hiding(hidden));
        }
        Ok((places[0].clone(), roots))
    }

    /// Adds the disk cache, if the user asks for it.
    fn disk_cached(self, store: Arc<dyn Store>) -> Result<Arc<dyn Store>, CommandFailure> {
        Ok(match self.disk_cache(&store)? {
            Some(cache) => Arc::new(cache),
            None => store,
        })
    }

    /// Returns the disk cache over a store, if the user asks for it.
    fn disk_cache(self, store: &Arc<dyn Store>) -> Result<Option<DiskCache>, CommandFailure> {
        let remote = &self.args.remote;
        let Some(directory) = &remote.cache_dir else {
            return Ok(None);
        };
        let directory = absolute(directory);
        let (store, limit) = (store.clone(), remote.cache_dir_size);
        let is_repository = store.capabilities().snapshots.is_some();
        let cache = DiskCache::open(store, &directory, limit, self.stats.clone())?;
        let cache = cache.for_server(&server(remote.endpoint_url.clone()));
        Ok(Some(if is_repository {
            cache.named_by(IceRepositoryStore::lasting_key)
        } else {
            cache
        }))
    }
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

/// Warns if the zarrfs programs of several machines would not take turns at changing the store.
fn warn_of_other_machines(path: &Path, reach: LockReach) {
    if reach != LockReach::All {
        log::warn!(
            "{}: programs on other machines may not see the locks of this file system; change the store from one machine at a time, or use --synchronizer",
            path.display()
        );
    }
}

/// Returns the place of targets below `location`.
fn target_place(location: &StoreLocation) -> Result<TargetPlace, CommandFailure> {
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

fn no_files() -> Error {
    Error::invalid("memory: holds no files")
}

/// Returns whether a file begins as an object of JSON does.
fn begins_as_object(folder: &dyn Store, name: &str) -> bool {
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
fn check_no_parquet(path: &Path) -> Result<(), CommandFailure> {
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
fn no_archive(path: &Path, file: &Path, folder: &Path) -> CommandFailure {
    let shown = path.display();
    match marks(folder) {
        Some(what @ "array") => {
            let array = file
                .parent()
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
fn missing(path: &Path) -> CommandFailure {
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
fn marks(directory: &Path) -> Option<&'static str> {
    if let Ok(document) = std::fs::read(directory.join(ZARR_JSON)) {
        return match node_type(&document) {
            Ok(NodeType::Group) => Some("group"),
            _ => Some("array"),
        };
    }
    let holds = |name: &&str| directory.join(name).is_file();
    if [ZARRAY, REMOVED].iter().any(holds) || [V1_META, V1_ATTRS].iter().all(holds) {
        Some("array")
    } else if [ZGROUP, ZMETADATA].iter().any(holds) {
        Some("group")
    } else {
        None
    }
}

/// Returns the key of the mountpoint in the directory at `location`, if it lies there. A target in
/// it would be read through the mount, by the daemon that serves the mount.
fn mountpoint_below(location: &StoreLocation, mountpoint: Option<&Path>) -> Option<Key> {
    let directory = std::fs::canonicalize(location.path()?).ok()?;
    let below = mountpoint?.strip_prefix(directory).ok()?;
    Key::normalize(below.to_str()?).ok()
}

#[cfg(feature = "remote")]
fn open_object_store(
    url: &str,
    options: &ObjectOptions,
    stats: &Arc<Stats>,
) -> Result<Arc<dyn PagedListing>, Error> {
    Ok(Arc::new(zarrfs_remote::ObjectStore::open(
        url,
        options,
        stats.clone(),
    )?))
}

/// Refuses every store on a server.
#[cfg(not(feature = "remote"))]
fn open_object_store(
    _: &str,
    _: &ObjectOptions,
    _: &Arc<Stats>,
) -> Result<Arc<dyn PagedListing>, Error> {
    Err(Error::unsupported(
        "this build of zarrfs has no clients of servers; build it with the cargo feature `remote`",
    ))
}

/// Returns a text that distinguishes servers with buckets of the same name: the endpoint, or
/// variables that name it.
fn server(endpoint: Option<String>) -> String {
    endpoint.unwrap_or_else(|| {
        let named = SERVERS
            .iter()
            .filter_map(|name| Some(format!("{name}={}", std::env::var(name).ok()?)));
        named.collect::<Vec<_>>().join(" ")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(name: &str) -> StoreLocation {
        OsString::from(name).into()
    }

    #[test]
    fn names_are_paths_or_urls() {
        for path in ["a/b.zarr", "/a://b", "C:\\x", "./s3://x", "://x", "1a://x"] {
            assert_eq!(location(path), StoreLocation::Path(path.into()), "{path}");
        }
        assert_eq!(
            location("file:///a%20b/c%zz"),
            StoreLocation::Path("/a b/c%zz".into())
        );
        assert_eq!(
            location("file://localhost/a"),
            StoreLocation::Path("/a".into())
        );
        assert_eq!(location("s3://b/x"), StoreLocation::Url("s3://b/x".into()));
        assert_eq!(location("memory:"), StoreLocation::Memory);
        for text in ["memory:/a", "memory://a", "s3:/b/x", "file:/x", "http:h/x"] {
            let StoreLocation::Url(url) = location(text) else {
                panic!("{text}")
            };
            let said = check_url(&url)
                .map_err(|e| (e.code, e.message))
                .unwrap_err();
            assert!(
                said.0 == 2 && said.1.starts_with(&format!("{text}: ")),
                "{said:?}"
            );
        }
        assert_eq!(location("./s3:x"), StoreLocation::Path("./s3:x".into()));
    }

    #[test]
    fn secrets_in_urls_are_not_shown() {
        for (url, shown) in [
            ("https://u:p@h:80/a/b?sig=x#y", "https://h:80/a/b"),
            ("https://h?sig=x", "https://h"),
            ("abfs://c@account/p", "abfs://c@account/p"),
        ] {
            assert_eq!(location(url).to_string(), shown);
        }
    }

    #[test]
    fn a_url_is_split_into_names() {
        let parts = UrlParts::of("s3://bucket//a/b.zarr/?x=1/2");
        assert_eq!(parts.names, ["a", "b.zarr"]);
        let urls: Vec<String> = (0..4).map(|depth| parts.up_to(depth)).collect();
        let url = |path: &str| format!("s3://bucket{path}?x=1/2");
        assert_eq!(
            urls,
            [url(""), url("/a"), url("/a/b.zarr"), url("/a/b.zarr")]
        );
    }

    #[test]
    fn a_location_is_split_into_parent_and_name() {
        let split = |name| {
            location(name)
                .split_last()
                .map(|(above, key)| (above, key.as_str().to_string()))
        };
        assert_eq!(split("/a/b.zarr"), Some((location("/a"), "b.zarr".into())));
        assert_eq!(
            split("s3://bucket/a/b/?x=1"),
            Some((location("s3://bucket/a?x=1"), "b".into()))
        );
        for top in ["/", "s3://bucket", "memory:"] {
            assert_eq!(split(top), None, "{top}");
        }
    }

    #[test]
    fn urls_into_archives_are_split() {
        let parts = |url| {
            let parts = UrlParts::of(url);
            let at = parts.archive()?;
            let name = parts.names[at].to_string();
            Some((parts.up_to(at), name, parts.names[at + 1..].join("/")))
        };
        let found = |folder: &str, name: &str, inside: &str| {
            Some((folder.into(), name.into(), inside.into()))
        };
        assert_eq!(
            parts("https://h/a/b.zip"),
            found("https://h/a", "b.zip", "")
        );
        assert_eq!(
            parts("https://h/a/b.ZIP/g/x?sig=1/2"),
            found("https://h/a?sig=1/2", "b.ZIP", "g/x")
        );
        assert_eq!(parts("https://h/b.ozx/0"), found("https://h", "b.ozx", "0"));
        assert_eq!(
            parts("s3://bucket/b.zip"),
            found("s3://bucket", "b.zip", "")
        );
        assert_eq!(
            parts("https://h/a/refs.json/g?sig=1"),
            found("https://h/a?sig=1", "refs.json", "g")
        );
        for url in [
            "https://h/a.zarr/zarr.json",
            "https://h/.json",
            "https://h.zip/a",
            "https://h/a?x=b.zip",
            "https://h/a/.zip",
            "https://h.zip",
        ] {
            assert_eq!(parts(url), None, "{url}");
        }
    }
}
