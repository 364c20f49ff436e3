//! `zarrfs create`: creates an array, with the store and the groups above it. Existing arrays and
//! groups stay as they are.

mod document;
mod document_v3;
mod place;
mod raw;

use super::compressor::{self, CompressorArg};
use super::remote::RemoteArgs;
use super::unfinished::{
    UnfinishedOutput, hidden_directory, remove_directory, rename_to_free_name, sync_directory,
};
use super::{CommandFailure, MemoryArgs, Reading, StoreArgs, StoreLocation, WriteArgs, location};
use crate::array::hierarchy::{DocumentFormat, Hierarchy, MetadataFile};
use clap::Args;
use document::NewDocument;
use place::NewPlace;
use raw::Raw;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use zarrfs_base::error::Error;
use zarrfs_base::json::{self, Value};
use zarrfs_base::stats::Stats;
use zarrfs_format::data_type::DataType;
use zarrfs_format::dtype::DType;
use zarrfs_format::metadata::{V1Order, ZARR_JSON, ZARRAY, ZGROUP, ZMETADATA};
use zarrfs_store::{Key, Store};

/// Arguments of `create`.
#[derive(Args)]
pub struct CreateArgs {
    /// Path of the array, in or after the path of the store
    ///
    /// Where no directory of the path is a store, one is created at the first name that ends with
    /// .zarr, or else at the first missing directory.
    #[arg(value_name = "STORE/ARRAY")]
    path: StoreLocation,
    /// Set the shape (720,1440); "" for no dimension
    #[arg(long, value_name = "N,N...", value_parser = lengths)]
    shape: Lengths,
    /// Set the shape of a chunk
    #[arg(long, value_name = "N,N...", value_parser = lengths)]
    chunks: Lengths,
    /// Set the shape of a shard, for Zarr v3
    ///
    /// A shard is one value of the store and holds many chunks. Its lengths are in items, and
    /// multiples of those of a chunk.
    #[arg(long, value_name = "N,N...", value_parser = lengths)]
    shards: Option<Lengths>,
    /// Set the dtype (<f4), or a JSON list of fields
    ///
    /// For Zarr v3 also a data type by its name, such as bfloat16 or string.
    #[arg(long, value_name = "DTYPE", value_parser = dtype)]
    dtype: Value,
    /// Set the fill value [default: zeros]
    ///
    /// Spelled as in a .zarray: a number, NaN, base64 for bytes, null. The default is null for
    /// objects. Zarr v3 has no null.
    #[arg(long, value_name = "VALUE", allow_hyphen_values = true)]
    fill: Option<String>,
    /// Set the layout of a chunk: C or F [default: C]
    #[arg(long, default_value = "C", value_parser = ["C", "F"], hide_possible_values = true, hide_default_value = true)]
    order: String,
    /// Compress chunks with this
    ///
    /// blosc[:CNAME[:CLEVEL[:SHUFFLE]]], zlib, gzip, bz2 or zstd[:LEVEL], lzma[:PRESET],
    /// lz4[:ACCELERATION], none, or a JSON object.
    #[arg(long, value_name = "CODEC", default_value = "blosc", value_parser = compressor::parse)]
    compressor: CompressorArg,
    /// Filter chunks first: a JSON list of objects
    #[arg(long, value_name = "JSON", value_parser = filters)]
    filters: Option<Value>,
    /// Separate indices in keys by . or /
    ///
    /// The default is . in Zarr v2 and / in v3.
    #[arg(long, value_name = "SEPARATOR", value_parser = [".", "/"], hide_possible_values = true)]
    separator: Option<String>,
    /// Create an array of Zarr v2 or v3
    ///
    /// The default is the format of the store that the array goes into, and 2 in a new store, which
    /// every reader opens.
    #[arg(long, value_name = "FORMAT", value_parser = ["2", "3"], hide_possible_values = true)]
    zarr_format: Option<String>,
    /// Name the dimensions of a v3 array: time,lat,lon
    #[arg(long, value_name = "NAMES", value_parser = dimension_names)]
    dimension_names: Option<DimensionNames>,
    /// Encode a v3 array by this JSON list of codecs
    ///
    /// Instead of --compressor and --order.
    #[arg(long, value_name = "JSON", value_parser = codecs, conflicts_with_all = ["compressor", "order"])]
    codecs: Option<Value>,
    /// Set the attributes: a JSON object
    #[arg(long, value_name = "JSON", value_parser = attributes)]
    attrs: Option<Value>,
    /// Fill it with flat bytes from a file, or -
    ///
    /// In C order, and exactly as many as the array has; - is standard input.
    #[arg(long, value_name = "FILE")]
    from_raw: Option<PathBuf>,
    #[command(flatten)]
    memory: MemoryArgs,
    #[command(flatten)]
    writing: WriteArgs,
    #[command(flatten)]
    remote: RemoteArgs,
}

#[derive(Clone)]
struct Lengths(Vec<u64>);

fn lengths(text: &str) -> Result<Lengths, String> {
    let mut lengths = Vec::new();
    for word in text.split(',').filter(|_| !text.trim().is_empty()) {
        let length = word.trim().parse::<u64>();
        lengths.push(length.map_err(|_| format!("{word:?} is not a length"))?);
    }
    Ok(Lengths(lengths))
}

/// The names of dimensions; `None` for a dimension without a name.
#[derive(Clone)]
struct DimensionNames(Vec<Option<String>>);

fn dimension_names(text: &str) -> Result<DimensionNames, String> {
    Ok(DimensionNames(
        text.split(',')
            .filter(|_| !text.is_empty())
            .map(|name| Some(name.trim().to_string()).filter(|name| !name.is_empty()))
            .collect(),
    ))
}

/// Parses a dtype, or a v3 data type that NumPy lacks.
fn dtype(text: &str) -> Result<Value, String> {
    let value = if text.starts_with(['[', '{']) {
        json::parse(text.as_bytes()).map_err(|e| e.to_string())?
    } else {
        text.into()
    };
    match DType::canonical_json(&value) {
        Ok(dtype) => Ok(dtype),
        Err(_) if DataType::parse(&value, false).is_ok() => Ok(value),
        Err(e) => Err(e.to_string()),
    }
}

fn codecs(text: &str) -> Result<Value, String> {
    match json::parse(text.as_bytes()).map_err(|e| e.to_string())? {
        list @ Value::Array(_) => Ok(list),
        _ => Err("not a list".to_string()),
    }
}

fn filters(text: &str) -> Result<Value, String> {
    match codecs(text)? {
        Value::Array(list) if list.is_empty() => Ok(Value::Null),
        list => Ok(list),
    }
}

fn attributes(text: &str) -> Result<Value, String> {
    match json::parse(text.as_bytes()).map_err(|e| e.to_string())? {
        object @ Value::Object(_) => Ok(object),
        _ => Err("not an object".to_string()),
    }
}

/// Runs the verb.
pub fn run(args: &CreateArgs) -> Result<(), CommandFailure> {
    args.memory.set_bound();
    let asked = match args.zarr_format.as_deref() {
        Some("3") => Some(DocumentFormat::V3),
        Some(_) => Some(DocumentFormat::V2),
        None => None,
    };
    let (place, key) = place::of(args)?;
    let stored = match &place {
        NewPlace::Directory(path) if !path.exists() => None,
        NewPlace::Directory(path) => {
            stored_format(&open(&StoreLocation::Path(path.clone()), args)?, &key, args)?
        }
        NewPlace::Server(_, store) => stored_format(&hierarchy_of(store), &key, args)?,
    };
    if let (Some(stored), Some(asked)) = (stored, asked)
        && stored != asked
    {
        let message = format!(
            "--zarr-format {}: {} is in a store of Zarr v{}",
            asked.number(),
            args.path,
            stored.number()
        );
        return Err(CommandFailure::wrong_use(message));
    }
    let document = match stored.or(asked) {
        Some(DocumentFormat::V3) => document_v3::new(args),
        Some(DocumentFormat::V2) | None => NewDocument::v2(args),
    };
    let document = document.map_err(|e| CommandFailure::wrong_use(e.to_string()))?;
    let raw = match (args.from_raw.as_deref(), document.size) {
        (None, _) => None,
        (Some(path), Some(size)) => Some(Raw::open(path, size)?),
        (Some(_), None) => {
            return Err(CommandFailure::wrong_use(
                "--from-raw: objects have no flat bytes",
            ));
        }
    };
    match place {
        NewPlace::Directory(store) => create_in_directory(args, &store, &key, &document, raw),
        NewPlace::Server(url, store) => create_on_server(args, url, &store, &key, &document, raw),
    }
}

/// Creates the array, and the store if there is none, under a hidden name beside its path, and then
/// renames it.
fn create_in_directory(
    args: &CreateArgs,
    store: &Path,
    key: &Key,
    document: &NewDocument,
    raw: Option<Raw>,
) -> Result<(), CommandFailure> {
    let hierarchy = if store.exists() {
        Some(open(&StoreLocation::Path(store.to_path_buf()), args)?)
    } else {
        None
    };
    let first = hierarchy
        .as_ref()
        .map(|hierarchy| first_missing(hierarchy, key))
        .transpose()
        .map_err(|e| args.failed(e))?;
    // the new directory is the store itself or one above it, or the first group or array that is
    // missing in it
    let top = store
        .ancestors()
        .take_while(|above| !above.exists())
        .last()
        .unwrap_or(store);
    let made = first
        .as_ref()
        .map_or(top.to_path_buf(), |first| store.join(first.as_str()));
    let below = key
        .relative_to(&first.clone().unwrap_or_default())
        .unwrap_or_default();
    let is_empty_store = first.as_ref().is_some_and(Key::is_root);
    let beside = if is_empty_store {
        store
    } else {
        made.parent().unwrap_or(store)
    };
    let hidden = hidden_directory(beside)?;
    let new = hidden.join("new");
    let removed = hidden.clone();
    let unfinished = UnfinishedOutput::new(move || remove_directory(&removed))?;
    let staged = new.join(store.strip_prefix(&made).unwrap_or(Path::new("")));
    std::fs::create_dir_all(&staged).map_err(Error::from)?;
    // no other program sees these chunks before the array gets its name, so that no locks are
    // needed
    let writing = WriteArgs {
        synchronizer: None,
        ..args.writing.clone()
    };
    let opened = location::open(
        &StoreLocation::Path(staged.clone()),
        &args.store_args(),
        Some(&writing),
        &Arc::default(),
    )?;
    let staging = Hierarchy::new(opened, V1Order::default(), Arc::default());
    make(&staging, &below, document, args).map_err(|e| args.failed(e))?;
    if let Some(raw) = raw {
        raw.fill(
            &StoreLocation::Path(staged.join(below.as_str())),
            &writing,
            args,
        )?;
    }
    staging.store().sync().map_err(|e| args.failed(e))?;
    unfinished
        .finish(|| match (&hierarchy, &first) {
            _ if is_empty_store => move_into(&new, store),
            (Some(hierarchy), Some(first)) => {
                move_into_group(hierarchy, &new, &made, first, document)
            }
            _ => rename_to_free_name(&new, &made),
        })
        .map_err(|e| args.failed(e))?;
    remove_directory(&hidden);
    sync_directory(beside).map_err(|e| args.failed(e))
}

/// Moves the content of `new` into an empty store. The document that makes the store an array moves
/// last.
fn move_into(new: &Path, store: &Path) -> Result<(), Error> {
    let mut names = std::fs::read_dir(new)
        .and_then(|entries| {
            entries
                .map(|entry| Ok(entry?.file_name()))
                .collect::<std::io::Result<Vec<_>>>()
        })
        .map_err(|e| Error::from(e).context(store.display()))?;
    names.sort_unstable_by_key(|name| name == ZARRAY || name == ZARR_JSON);
    for (n, name) in names.iter().enumerate() {
        if let Err(e) = rename_to_free_name(&new.join(name), &store.join(name)) {
            // move the others back into the directory, which is then removed
            for name in &names[..n] {
                let _ = std::fs::rename(store.join(name), new.join(name));
            }
            return Err(e);
        }
    }
    Ok(())
}

/// Moves `new` to its path `made`, which has the key `key`, and updates the metadata of the store.
fn move_into_group(
    hierarchy: &Hierarchy,
    new: &Path,
    made: &Path,
    key: &Key,
    document: &NewDocument,
) -> Result<(), Error> {
    let root = Key::root();
    let needs_group = hierarchy
        .store()
        .stat(&root.join(document.format.group_file().name()))?
        .is_none();
    if needs_group {
        hierarchy.put_document(
            &root,
            document.format.group_file(),
            document.format.group_document().as_bytes(),
        )?;
    }
    let moved = rename_to_free_name(new, made).and_then(|()| {
        let adopted = hierarchy.adopt(key);
        if adopted.is_err() && std::fs::rename(made, new).is_ok() {
            let _ = hierarchy.adopt(key);
        }
        adopted
    });
    if moved.is_err() && needs_group {
        let _ = hierarchy.remove_document(&root, document.format.group_file());
    }
    moved.and_then(|()| hierarchy.store().sync())
}

/// Creates the array in a remote store. Deletes its keys again if that fails.
fn create_on_server(
    args: &CreateArgs,
    url: StoreLocation,
    store: &Arc<dyn Store>,
    key: &Key,
    document: &NewDocument,
    raw: Option<Raw>,
) -> Result<(), CommandFailure> {
    let hierarchy = hierarchy_of(store);
    let first = first_missing(&hierarchy, key).map_err(|e| args.failed(e))?;
    let root = Key::root();
    let group = document.format.group_file();
    let had_group = hierarchy
        .store()
        .stat(&root.join(group.name()))
        .map_err(|e| args.failed(e))?
        .is_some();
    let store_args = args.store_args();
    let writing = args.writing.clone();
    let removed = first.clone();
    let undo = move || {
        // `store` does not know of the chunks that were stored meanwhile
        let opened = location::open(&url, &store_args, Some(&writing), &Arc::default());
        let Ok(opened) = opened else { return };
        let undone = Hierarchy::new(opened, V1Order::default(), Arc::default());
        let _ = undone.remove_all(&removed);
        if !had_group {
            let _ = undone.remove_document(&root, group);
        }
    };
    let reserved = reserve(&hierarchy, &first, key, document, had_group);
    if let Err(e) = reserved {
        // the array may be stored although the update of the store's metadata failed; with EEXIST
        // it is that of another program
        if e.errno() != libc::EEXIST
            && matches!(
                store.stat(&key.join(document.format.array_file().name())),
                Ok(Some(_))
            )
        {
            undo();
        }
        return Err(args.failed(e));
    }
    let unfinished = UnfinishedOutput::new(undo)?;
    let above = make_above(&hierarchy, key, document).and_then(|()| {
        if first == *key {
            Ok(())
        } else {
            hierarchy.store().make_prefix(key)?;
            hierarchy
                .put_document(key, document.format.array_file(), document.text.as_bytes())
                .map(drop)
        }
    });
    if let Err(e) = above {
        if e.errno() == libc::EEXIST {
            // another program has created a group below the first one: nothing is removed
            unfinished.finish(|| Ok(())).map_err(|e| args.failed(e))?;
        }
        return Err(args.failed(e));
    }
    put_attributes(&hierarchy, key, document, args).map_err(|e| args.failed(e))?;
    if let Some(raw) = raw {
        raw.fill(&args.path, &args.writing, args)?;
    }
    unfinished
        .finish(|| hierarchy.store().sync())
        .map_err(|e| args.failed(e))
}

/// Puts the document of `first`, the topmost new group or the array itself: all keys below it
/// belong to this command from then on. It is put only if no other program has put one.
fn reserve(
    hierarchy: &Hierarchy,
    first: &Key,
    key: &Key,
    document: &NewDocument,
    had_group: bool,
) -> Result<(), Error> {
    let root = Key::root();
    let group = document.format.group_file();
    // new groups get the format of the root, so that its document comes first
    let is_new_v3 = document.format == DocumentFormat::V3 && !had_group && !first.is_root();
    if is_new_v3 {
        hierarchy.put_document(&root, group, document.format.group_document().as_bytes())?;
    }
    let put =
        || hierarchy.put_document(key, document.format.array_file(), document.text.as_bytes());
    let reserved = if first != key {
        hierarchy.create_group(first)
    } else if key.is_root() {
        put()
    } else {
        hierarchy.store().make_prefix(key).and_then(|()| put())
    };
    if reserved.is_err() && is_new_v3 {
        let _ = hierarchy.remove_document(&root, group);
    }
    reserved
}

fn hierarchy_of(store: &Arc<dyn Store>) -> Hierarchy {
    Hierarchy::new(store.clone(), V1Order::default(), Arc::default())
}

fn open(store: &StoreLocation, args: &CreateArgs) -> Result<Hierarchy, CommandFailure> {
    let stats = Arc::new(Stats::default());
    let opened = location::open(store, &args.store_args(), Some(&args.writing), &stats)?;
    Ok(Hierarchy::new(opened, V1Order::default(), stats))
}

/// Returns the Zarr format of the nearest group or array at or above `key`; `None` for a new store.
fn stored_format(
    hierarchy: &Hierarchy,
    key: &Key,
    args: &CreateArgs,
) -> Result<Option<DocumentFormat>, CommandFailure> {
    let mut above = key.clone();
    loop {
        for (name, format) in [
            (ZARR_JSON, DocumentFormat::V3),
            (ZGROUP, DocumentFormat::V2),
            (ZARRAY, DocumentFormat::V2),
            (ZMETADATA, DocumentFormat::V2),
        ] {
            if (name != ZMETADATA || above.is_root())
                && hierarchy
                    .store()
                    .stat(&above.join(name))
                    .map_err(|e| args.failed(e))?
                    .is_some()
            {
                return Ok(Some(format));
            }
        }
        if above.is_root() {
            return Ok(None);
        }
        above = above.parent();
    }
}

/// Returns the topmost missing key above or at `key`; the root for an array that is a whole store.
///
/// # Errors
///
/// EEXIST if a group or array exists at `key`; other errors if none can be created there.
fn first_missing(hierarchy: &Hierarchy, key: &Key) -> Result<Key, Error> {
    if key.is_root() {
        return match hierarchy.store().list(key)?.next() {
            Some(_) => Err(Error::system(libc::EEXIST)),
            None => Ok(Key::root()),
        };
    }
    hierarchy.store().check_writable(&Key::root())?;
    let mut missing = key.clone();
    if hierarchy.find(&missing)?.is_some() {
        return Err(Error::system(libc::EEXIST).context(key));
    }
    while !missing.is_root() && hierarchy.find(&missing.parent())?.is_none() {
        missing = missing.parent();
    }
    hierarchy.check_new_name(&missing)?;
    Ok(missing)
}

impl CreateArgs {
    /// Returns the failure for an error about the array.
    fn failed(&self, e: Error) -> CommandFailure {
        e.context(&self.path).into()
    }

    fn store_args(&self) -> StoreArgs {
        StoreArgs {
            v1_order: V1Order::Zarr1,
            allow_reference: Vec::new(),
            snapshot: None,
            remote: self.remote.clone(),
            lists_unfinished: false,
            reading: Reading::Repeated,
            is_read_only: false,
            holds_stores: false,
            shows_history: false,
            keeps_snapshot: false,
            is_above: false,
            mountpoint: None,
            spill: None,
        }
    }
}

/// Creates the array, after the groups above it.
fn make(
    hierarchy: &Hierarchy,
    key: &Key,
    document: &NewDocument,
    args: &CreateArgs,
) -> Result<(), Error> {
    make_above(hierarchy, key, document)?;
    if !key.is_root() && hierarchy.find(key)?.is_none() {
        hierarchy.create_group(key)?;
    }
    hierarchy.put_document(key, document.format.array_file(), document.text.as_bytes())?;
    put_attributes(hierarchy, key, document, args)
}

/// Creates the missing groups above `key`.
fn make_above(hierarchy: &Hierarchy, key: &Key, document: &NewDocument) -> Result<(), Error> {
    let root = Key::root();
    if key.is_root() {
        return Ok(());
    }
    if !hierarchy.is_array(&root)?
        && hierarchy
            .store()
            .stat(&root.join(document.format.group_file().name()))?
            .is_none()
    {
        hierarchy.put_document(
            &root,
            document.format.group_file(),
            document.format.group_document().as_bytes(),
        )?;
    }
    make_groups(hierarchy, &key.parent())
}

fn put_attributes(
    hierarchy: &Hierarchy,
    key: &Key,
    document: &NewDocument,
    args: &CreateArgs,
) -> Result<(), Error> {
    match &args.attrs {
        // a `zarr.json` holds the attributes
        _ if document.format == DocumentFormat::V3 => Ok(()),
        Some(attrs) => hierarchy.put_document(
            key,
            MetadataFile::Attributes,
            json::write_pretty(attrs).as_bytes(),
        ),
        None => Ok(()),
    }
}

fn make_groups(hierarchy: &Hierarchy, key: &Key) -> Result<(), Error> {
    if key.is_root() || hierarchy.find(key)?.is_some() {
        return Ok(());
    }
    make_groups(hierarchy, &key.parent())?;
    hierarchy.create_group(key)
}
