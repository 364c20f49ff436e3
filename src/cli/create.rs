//! `zarrfs create`: creates an array, with the store and the groups above it. Existing arrays and
//! groups stay as they are.

pub mod document;
mod document_v3;
pub mod in_directory;
pub mod new_array;
pub mod place;
mod raw;

use super::compressor::{self, CompressorArg};
use super::location::StoreUsage;
use super::remote::RemoteArgs;
use super::unfinished::UnfinishedOutput;
use super::{
    CommandFailure, CommandResult, MemoryArgs, StoreArgs, StoreLocation, StoreRequest, WriteArgs,
    words,
};
use crate::array::hierarchy::{DocumentFormat, Hierarchy};
use clap::Args;
use document::NewDocument;
use in_directory::NewInDirectory;
use new_array::NewArray;
use place::NewPlace;
use raw::Raw;
use std::path::PathBuf;
use std::sync::Arc;
use zarrfs_base::error::ErrorContext;
use zarrfs_base::json::{self, Value};
use zarrfs_format::data_type::DataType;
use zarrfs_format::dtype::DType;
use zarrfs_format::metadata::{V1Order, ZARR_JSON, ZARRAY, ZGROUP, ZMETADATA};
use zarrfs_store::{Key, Store, StoreExt};

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
    #[arg(long, value_name = "FORMAT", hide_possible_values = true,
        value_parser = words(&[("2", DocumentFormat::V2), ("3", DocumentFormat::V3)]))]
    zarr_format: Option<DocumentFormat>,
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
        parsed(text)?
    } else {
        text.into()
    };
    match DType::canonical_json(&value) {
        Ok(dtype) => Ok(dtype),
        Err(_) if DataType::parse(&value, false).is_ok() => Ok(value),
        Err(e) => Err(e.to_string()),
    }
}

fn parsed(text: &str) -> Result<Value, String> {
    json::parse(text.as_bytes()).map_err(|e| e.to_string())
}

fn codecs(text: &str) -> Result<Value, String> {
    match parsed(text)? {
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
    match parsed(text)? {
        object @ Value::Object(_) => Ok(object),
        _ => Err("not an object".to_string()),
    }
}

/// Runs the verb.
pub fn run(args: &CreateArgs) -> CommandResult {
    args.memory.set_bound();
    let asked = args.zarr_format;
    let (place, key) = place::of(&args.path, &args.store_args(), &args.writing)?;
    let stored = match &place {
        NewPlace::Directory(path) if !path.exists() => None,
        NewPlace::Directory(path) => {
            let path = StoreLocation::Path(path.clone());
            let store = open(&path, &args.store_args(), &args.writing)?;
            stored_format(&hierarchy_of(&store), &key, &args.path)?
        }
        NewPlace::Server(_, store) => stored_format(&hierarchy_of(store), &key, &args.path)?,
    };
    check_format(stored, asked, &args.path)?;
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
        NewPlace::Directory(store) => {
            let new = NewInDirectory {
                shown: &args.path,
                store_args: &args.store_args(),
                writing: &args.writing,
                store: &store,
                key: &key,
                document: &document,
            };
            new.create(|staged, location, writing| {
                staged.make().context(&args.path)?;
                raw.map_or(Ok(()), |raw| raw.fill(location, writing, args))
            })
        }
        NewPlace::Server(url, store) => create_on_server(args, url, &store, &key, &document, raw),
    }
}

/// Creates the array in a remote store. Deletes its keys again if that fails.
fn create_on_server(
    args: &CreateArgs,
    url: StoreLocation,
    store: &Arc<dyn Store>,
    key: &Key,
    document: &NewDocument,
    raw: Option<Raw>,
) -> CommandResult {
    let hierarchy = hierarchy_of(store);
    let array = NewArray {
        hierarchy: &hierarchy,
        key,
        document,
    };
    let first = array.first_missing().context(&args.path)?;
    let had_group = array.has_root_group().context(&args.path)?;
    let group = document.format.group_file();
    let store_args = args.store_args();
    let writing = args.writing.clone();
    let removed = first.clone();
    let undo = move || {
        // `store` does not know of the chunks that were stored meanwhile
        let Ok(opened) = open(&url, &store_args, &writing) else {
            return;
        };
        let undone = hierarchy_of(&opened);
        let _ = undone.remove_all(&removed);
        if !had_group {
            let _ = undone.remove_document(&Key::root(), group);
        }
    };
    if let Err(e) = array.reserve(&first, had_group) {
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
        return Err(e.context(&args.path).into());
    }
    let unfinished = UnfinishedOutput::new(undo)?;
    let above = array.make_above().and_then(|()| {
        if first == *key {
            return Ok(());
        }
        hierarchy.store().make_prefix(key)?;
        array.put()
    });
    if let Err(e) = above {
        if e.errno() == libc::EEXIST {
            // another program has created a group below the first one: nothing is removed
            unfinished.finish(|| Ok(())).context(&args.path)?;
        }
        return Err(e.context(&args.path).into());
    }
    array.put_attributes().context(&args.path)?;
    if let Some(raw) = raw {
        raw.fill(&args.path, &args.writing, args)?;
    }
    let finished = unfinished.finish(|| hierarchy.store().sync());
    Ok(finished.context(&args.path)?)
}

/// Returns the hierarchy of a store that is written.
pub fn hierarchy_of(store: &Arc<dyn Store>) -> Hierarchy {
    Hierarchy::new(store.clone(), V1Order::default(), Arc::default())
}

/// Opens a store for writing.
pub fn open(
    store: &StoreLocation,
    args: &StoreArgs,
    writing: &WriteArgs,
) -> CommandResult<Arc<dyn Store>> {
    let stats = Arc::default();
    let request = StoreRequest::reading(store, args, &stats);
    request.for_writing(writing).open()
}

/// Checks that the format that a command asks for is the format of the store around `path`.
pub fn check_format(
    stored: Option<DocumentFormat>,
    asked: Option<DocumentFormat>,
    path: &StoreLocation,
) -> CommandResult {
    match (stored, asked) {
        (Some(stored), Some(asked)) if stored != asked => Err(CommandFailure::wrong_use(format!(
            "--zarr-format {}: {path} is in a store of Zarr v{}",
            asked.number(),
            stored.number()
        ))),
        _ => Ok(()),
    }
}

/// Returns the Zarr format of the nearest group or array at or above `key`; `None` for a new store.
pub fn stored_format(
    hierarchy: &Hierarchy,
    key: &Key,
    shown: &StoreLocation,
) -> CommandResult<Option<DocumentFormat>> {
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
                    .context(shown)?
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

impl CreateArgs {
    fn store_args(&self) -> StoreArgs {
        StoreArgs {
            v1_order: V1Order::Zarr1,
            allow_reference: Vec::new(),
            snapshot: None,
            remote: self.remote.clone(),
            usage: StoreUsage::default(),
        }
    }
}
