//! Locations of stores on a command line: paths, archives and URLs, and the layers of stores that
//! are opened for each. This module must not know what is in a store.

use super::{CommandFailure, ExitCode, StoreArgs, WriteArgs, absolute};
use crate::array::hierarchy::{DOCUMENTS, REMOVED};
use crate::error::{Error, Kind};
use crate::fuse::mount_of;
use crate::stats::Stats;
use crate::store::{
    DirectoryStore, DiskCache, Key, MemoryStore, MetadataCache, ObjectOptions, PagedListing,
    ReferenceStore, Store, TargetPlace, TargetRoot, ZipStore,
};
use crate::util::json;
use crate::zarr::metadata::v3::node::{NodeType, node_type};
use crate::zarr::metadata::{
    GROUP_DOCUMENT, V1_ATTRS, V1_META, ZARR_JSON, ZARRAY, ZGROUP, ZMETADATA,
};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
                let (up_to, mut names) = names_of_url(url);
                let name = names.pop()?;
                (up_to(names.len()), name)
            }
            StoreLocation::Memory => return None,
        };
        Key::root().child(&name).ok().map(|key| (above, key))
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

/// A URL of an archive or of a file of references, or of a key in one.
struct ArchiveUrl {
    /// URL of the folder that holds the archive, with the query.
    folder: String,
    name: String,
    inside: String,
}

/// Returns the names of a URL's path, and a function that returns the URL up to a number of names,
/// with the query.
pub fn names_of_url(url: &str) -> (impl Fn(usize) -> StoreLocation, Vec<String>) {
    let (base, query) = url.split_at(url.find(['?', '#']).unwrap_or(url.len()));
    let start = base.find("://").map_or(0, |at| at + 3);
    let end = base[start..]
        .find('/')
        .map_or(base.len(), |len| start + len);
    let names: Vec<String> = base[end..]
        .split('/')
        .filter(|name| !name.is_empty())
        .map(str::to_string)
        .collect();
    let server = base[..end].to_string();
    let query = query.to_string();
    let known = names.clone();
    let up_to = move |depth: usize| {
        let path: String = known[..depth.min(known.len())]
            .iter()
            .map(|name| format!("/{name}"))
            .collect();
        StoreLocation::Url(format!("{server}{path}{query}"))
    };
    (up_to, names)
}

/// Returns the first archive or file of references on the path of a URL.
fn archive_of(url: &str) -> Option<ArchiveUrl> {
    let (up_to, names) = names_of_url(url);
    let at = names
        .iter()
        .position(|name| is_archive_name(name) || is_references_name(name))?;
    let StoreLocation::Url(folder) = up_to(at) else {
        return None;
    };
    Some(ArchiveUrl {
        folder,
        name: names[at].clone(),
        inside: names[at + 1..].join("/"),
    })
}

/// Returns whether a name is that of an archive.
pub fn is_archive_name(name: &str) -> bool {
    name.len() > ARCHIVE.len() && name.to_ascii_lowercase().ends_with(ARCHIVE)
}

/// Returns whether the name belongs to a file of references.
fn is_references_name(name: &str) -> bool {
    name.len() > REFERENCES.len()
        && name.to_ascii_lowercase().ends_with(REFERENCES)
        && name != ZARR_JSON
}

/// Returns whether a URL is that of an archive or of a file of references, or of a key in one.
pub fn leads_into_archive(url: &str) -> bool {
    archive_of(url).is_some()
}

/// Returns the part of a path that is a file, and the rest of the path.
fn archive_at(path: &Path) -> Option<(&Path, &Path)> {
    let archive = path.ancestors().find(|above| above.is_file())?;
    Some((archive, path.strip_prefix(archive).ok()?))
}

/// Opens the store at `location`, for writing if `writing` is given.
pub fn open(
    location: &StoreLocation,
    args: &StoreArgs,
    writing: Option<&WriteArgs>,
    stats: &Arc<Stats>,
) -> Result<Arc<dyn Store>, CommandFailure> {
    if !matches!(location, StoreLocation::Path(path) if path.is_dir())
        && writing.is_some_and(|writing| writing.synchronizer.is_some())
    {
        return Err(CommandFailure::wrong_use(
            "--synchronizer: only for stores in directories",
        ));
    }
    match location {
        StoreLocation::Path(path) => open_path(path, args, writing, stats),
        StoreLocation::Url(url) => open_url(url, args, stats),
        StoreLocation::Memory => {
            let store = MemoryStore::default();
            store.insert(ZGROUP, GROUP_DOCUMENT);
            Ok(Arc::new(store))
        }
    }
}

/// Checks that a location is a directory that can hold stores.
pub fn check_holds_stores(location: &StoreLocation) -> Result<(), CommandFailure> {
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

fn open_path(
    path: &Path,
    args: &StoreArgs,
    writing: Option<&WriteArgs>,
    stats: &Arc<Stats>,
) -> Result<Arc<dyn Store>, CommandFailure> {
    if let Some((file, inside)) = archive_at(path) {
        return open_file(path, file, inside, args, stats);
    }
    check_no_parquet(path)?;
    if writing.is_some() && !args.is_read_only {
        check_not_mounted(path)?;
    }
    let store = DirectoryStore::open(&absolute(path)).map_err(|e| match e.errno() {
        libc::ENOENT | libc::ENOTDIR => missing(path),
        _ => e.into(),
    })?;
    let store = store.replaceable(stats.clone());
    let store = if args.lists_unfinished {
        store.listing_unfinished()
    } else {
        store
    };
    Ok(Arc::new(match writing {
        Some(writing) if !args.is_read_only => writing.apply(store)?.removing_abandoned(),
        Some(writing) => writing.apply(store)?,
        None => store,
    }))
}

/// Opens the archive or the references in `file`, which is `path` or above it.
fn open_file(
    path: &Path,
    file: &Path,
    inside: &Path,
    args: &StoreArgs,
    stats: &Arc<Stats>,
) -> Result<Arc<dyn Store>, CommandFailure> {
    let shown = path.display();
    let folder = absolute(file)
        .parent()
        .map_or_else(|| PathBuf::from("/"), Path::to_path_buf);
    let name = absolute(file)
        .file_name()
        .and_then(OsStr::to_str)
        .map(str::to_string);
    let name =
        name.ok_or_else(|| CommandFailure::not_zarr(format!("{shown}: its name is not UTF-8")))?;
    let below: Arc<dyn Store> = Arc::new(DirectoryStore::open(&folder)?.replaceable(stats.clone()));
    let text = inside
        .to_str()
        .ok_or_else(|| CommandFailure::not_found(format!("{shown}: not UTF-8")))?;
    let is_marked = marks(&folder).is_some();
    let is_references = is_references_name(&name)
        || !is_archive_name(&name) && !is_marked && begins_as_object(below.as_ref(), &name);
    if is_references {
        let opened = open_references(
            &StoreLocation::Path(folder),
            below,
            &name,
            text,
            args,
            stats,
            &shown,
        );
        return opened.map_err(|e| {
            if is_marked && e.is(ExitCode::NotZarr) {
                no_archive(path, file)
            } else {
                e
            }
        });
    }
    open_archive(below, &name, text, false, stats, &shown).map_err(|e| {
        if is_archive_name(&name) || !e.is(ExitCode::NotZarr) {
            e
        } else {
            no_archive(path, file)
        }
    })
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

/// Returns the failure for a path to a file that is no archive, or to a name below such a file.
fn no_archive(path: &Path, file: &Path) -> CommandFailure {
    let shown = path.display();
    let above = absolute(file)
        .parent()
        .map(Path::to_path_buf)
        .unwrap_or_default();
    match marks(&above) {
        Some(what @ "array") => {
            let array = file
                .parent()
                .filter(|above| !above.as_os_str().is_empty())
                .unwrap_or(&above)
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
    let holds = |name: &str| directory.join(name).is_file();
    let v3 = std::fs::read(directory.join(ZARR_JSON)).ok();
    match () {
        () if v3.is_some() => match node_type(&v3.unwrap_or_default()) {
            Ok(NodeType::Group) => Some("group"),
            _ => Some("array"),
        },
        () if holds(ZARRAY) || holds(REMOVED) || holds(V1_META) && holds(V1_ATTRS) => Some("array"),
        () if holds(ZGROUP) || holds(ZMETADATA) => Some("group"),
        () => None,
    }
}

fn open_archive(
    folder: Arc<dyn Store>,
    name: &str,
    inside: &str,
    reads_once: bool,
    stats: &Arc<Stats>,
    shown: &dyn fmt::Display,
) -> Result<Arc<dyn Store>, CommandFailure> {
    let failed = |e: Error| match e.kind() {
        Kind::NotFound => CommandFailure::not_found(format!("{shown}: no such store")),
        Kind::System(_) | Kind::NoBucket | Kind::NotAValue => e.context(shown).into(),
        _ => CommandFailure::not_zarr(format!("{shown}: {e}")),
    };
    let key = Key::root().child(name).map_err(failed)?;
    let inside = Key::normalize(inside).map_err(failed)?;
    let archive = ZipStore::open(folder, &key)
        .map_err(failed)?
        .with_stats(stats.clone());
    let archive = if reads_once {
        archive.read_once()
    } else {
        archive
    };
    // `zip -r store.zip store.zarr` puts the store into a folder of the archive
    let inside = match archive.single_folder() {
        Some(folder) if inside.relative_to(&folder).is_none() => folder.join_key(&inside),
        _ => inside,
    };
    Ok(Arc::new(archive.in_folder(inside)))
}

/// Opens the references in the file `name` of `folder`, which is the store `below`.
fn open_references(
    folder: &StoreLocation,
    below: Arc<dyn Store>,
    name: &str,
    inside: &str,
    args: &StoreArgs,
    stats: &Arc<Stats>,
    shown: &dyn fmt::Display,
) -> Result<Arc<dyn Store>, CommandFailure> {
    let failed = |e: Error| match e.kind() {
        Kind::NotFound => CommandFailure::not_found(format!("{shown}: no such store")),
        Kind::System(_) | Kind::NoBucket | Kind::NotAValue => e.context(shown).into(),
        _ => CommandFailure::not_zarr(format!("{shown}: can't be read as references: {e}")),
    };
    let key = Key::root().child(name).map_err(failed)?;
    let inside = Key::normalize(inside).map_err(failed)?;
    let (place, roots) = target_roots(folder, args, stats)?;
    let store = ReferenceStore::open(below, &key, place, roots)
        .map_err(failed)?
        .with_stats(stats.clone());
    let store: Arc<dyn Store> = Arc::new(store.in_folder(inside));
    match folder {
        StoreLocation::Path(_) if store.concurrency() > 1 => disk_cached(store, args, stats),
        _ => Ok(store),
    }
}

/// Returns the place of the folder of references, and the prefixes below which their targets may
/// lie.
fn target_roots(
    folder: &StoreLocation,
    args: &StoreArgs,
    stats: &Arc<Stats>,
) -> Result<(TargetPlace, Vec<TargetRoot>), CommandFailure> {
    let named = |e: Error| CommandFailure::wrong_use(format!("--allow-reference: {e}"));
    let mut places = Vec::new();
    let allowed = args
        .allow_reference
        .iter()
        .map(|location| (location.absolute(), true));
    for (location, is_allowed) in std::iter::once((folder.clone(), false)).chain(allowed) {
        match &location {
            StoreLocation::Path(path) => {
                // programs that write references may have seen the path through a link, or not
                let real = std::fs::canonicalize(path).ok().filter(|real| real != path);
                places.push((
                    TargetPlace::of_path(path).map_err(named)?,
                    location.clone(),
                    is_allowed,
                ));
                if let Some(real) = real {
                    places.push((
                        TargetPlace::of_path(&real).map_err(named)?,
                        StoreLocation::Path(real),
                        is_allowed,
                    ));
                }
            }
            StoreLocation::Url(url) => {
                check_url(url)?;
                places.push((
                    TargetPlace::of_url(url).map_err(named)?,
                    location.clone(),
                    is_allowed,
                ));
            }
            StoreLocation::Memory => return Err(named(Error::invalid("memory: holds no files"))),
        }
    }
    let redirects: Arc<[TargetPlace]> = places.iter().map(|(place, ..)| place.clone()).collect();
    let options = args.remote.options()?;
    let ttl = args.remote.metadata_ttl(args.reads_once.is_some());
    let open = |location: StoreLocation| {
        let mut options = options.clone();
        let stats = stats.clone();
        // the servers of buckets redirect to hosts of their own
        let is_web = matches!(&location, StoreLocation::Url(url) if url.to_ascii_lowercase().starts_with("http"));
        options.redirects = is_web.then(|| redirects.clone());
        Box::new(move || -> Result<Arc<dyn Store>, Error> {
            Ok(match &location {
                StoreLocation::Path(path) => {
                    Arc::new(DirectoryStore::open(path)?.replaceable(stats.clone()))
                }
                StoreLocation::Url(url) => Arc::new(MetadataCache::new(
                    open_object_store(url, &options, &stats)?,
                    ttl,
                )),
                StoreLocation::Memory => Arc::new(MemoryStore::default()),
            })
        })
    };
    let mut roots = Vec::new();
    for (place, location, is_allowed) in &places {
        // the prefix may name a single file
        if let Some((above, _)) = location.split_last().filter(|_| *is_allowed) {
            roots.push(TargetRoot::of_target(place.clone(), open(above)));
        }
        let root = TargetRoot::new(place.clone(), open(location.clone()));
        roots.push(root.hiding(mountpoint_below(location, args.mountpoint.as_deref())));
    }
    let folder = places.swap_remove(0).0;
    Ok((folder, roots))
}

/// Returns the key of the mountpoint in the directory at `location`, if it lies there. A target in
/// it would be read through the mount, by the daemon that serves the mount.
fn mountpoint_below(location: &StoreLocation, mountpoint: Option<&Path>) -> Option<Key> {
    let StoreLocation::Path(path) = location else {
        return None;
    };
    let below = mountpoint?
        .strip_prefix(std::fs::canonicalize(path).ok()?)
        .ok()?;
    Key::normalize(below.to_str()?).ok()
}

fn open_url(
    url: &str,
    args: &StoreArgs,
    stats: &Arc<Stats>,
) -> Result<Arc<dyn Store>, CommandFailure> {
    check_url(url)?;
    let shown = without_secrets(url);
    let object = |url: &str| -> Result<MetadataCache, CommandFailure> {
        let store = open_object_store(url, &args.remote.options()?, stats);
        let store = store.map_err(|e| match e.kind() {
            Kind::Invalid => CommandFailure::wrong_use(format!("{shown}: {e}")),
            _ => e.context(&shown).into(),
        })?;
        Ok(MetadataCache::new(
            store,
            args.remote.metadata_ttl(args.reads_once.is_some()),
        ))
    };
    let store: Arc<dyn Store> = match archive_of(url) {
        Some(ArchiveUrl {
            folder,
            name,
            inside,
        }) => {
            let below = Arc::new(object(&folder)?);
            if is_archive_name(&name) {
                open_archive(
                    below,
                    &name,
                    &inside,
                    args.reads_once.is_some(),
                    stats,
                    &shown,
                )?
            } else {
                open_references(
                    &StoreLocation::Url(folder),
                    below,
                    &name,
                    &inside,
                    args,
                    stats,
                    &shown,
                )?
            }
        }
        None => Arc::new(object(url)?.with_documents(&DOCUMENTS)),
    };
    disk_cached(store, args, stats)
}

/// Adds the disk cache, if the user asks for it.
fn disk_cached(
    store: Arc<dyn Store>,
    args: &StoreArgs,
    stats: &Arc<Stats>,
) -> Result<Arc<dyn Store>, CommandFailure> {
    Ok(match &args.remote.cache_dir {
        Some(directory) => {
            let cache = DiskCache::open(
                store,
                &absolute(directory),
                args.remote.cache_dir_size,
                stats.clone(),
            )?;
            Arc::new(cache.for_server(&server(args.remote.endpoint_url.clone())))
        }
        None => store,
    })
}

#[cfg(feature = "remote")]
fn open_object_store(
    url: &str,
    options: &ObjectOptions,
    stats: &Arc<Stats>,
) -> Result<Arc<dyn PagedListing>, Error> {
    Ok(Arc::new(crate::store::ObjectStore::open(
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
    let named = || {
        SERVERS
            .iter()
            .filter_map(|name| Some(format!("{name}={}", std::env::var(name).ok()?)))
    };
    endpoint.unwrap_or_else(|| named().collect::<Vec<_>>().join(" "))
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
        let (up_to, names) = names_of_url("s3://bucket//a/b.zarr/?x=1/2");
        assert_eq!(names, ["a", "b.zarr"]);
        let urls: Vec<String> = (0..4).map(up_to).map(|l| format!("{l:?}")).collect();
        let url = |path: &str| {
            format!(
                "{:?}",
                StoreLocation::Url(format!("s3://bucket{path}?x=1/2"))
            )
        };
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
        let parts = |url| archive_of(url).map(|a| (a.folder, a.name, a.inside));
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
