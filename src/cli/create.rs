//! `zarrfs create`: a new array, with the store and the groups that it takes. Nothing that is there is changed.

use super::compressor::{self, Compressor};
use super::flat::Flat;
use super::progress::Progress;
use super::put::{self, Copied};
use super::remote::RemoteArgs;
use super::{Failure, Location, MemoryArgs, StoreArgs, V1OrderArg, WriteArgs, location, logger};
use crate::codec::Pipeline;
use crate::dtype::{DType, Kind};
use crate::error::Error;
use crate::grid::{ChunkId, Grid};
use crate::hierarchy::{Hierarchy, MetadataFile, Place};
use crate::json::{self, Map, Value};
use crate::metadata::{ArrayMetadata, CodecConfig, GROUP_DOCUMENT, V1Order, ZARRAY, ZGROUP, ZMETADATA};
use crate::stats::Stats;
use crate::store::Key;
use clap::Args;
use log::LevelFilter;
use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What `create` takes.
#[derive(Args)]
pub struct CreateArgs {
    /// The array: its path in the store, after the store's. A store that is missing is made where the first missing
    /// directory of the path would be
    #[arg(value_name = "STORE/ARRAY")]
    path: Location,
    /// Items along each dimension, such as 720,1440; "" for none
    #[arg(long, value_name = "N,N...", value_parser = lengths)]
    shape: Lengths,
    /// Items of a chunk along each dimension
    #[arg(long, value_name = "N,N...", value_parser = lengths)]
    chunks: Lengths,
    /// What the items are: a NumPy type string such as <f4, or a JSON list of fields
    #[arg(long, value_name = "DTYPE", value_parser = dtype)]
    dtype: Value,
    /// The fill value, spelt as in a .zarray: a number, NaN, base64 for bytes, null [default: 0, null where that is none]
    #[arg(long, value_name = "VALUE", allow_hyphen_values = true)]
    fill: Option<String>,
    /// The layout of a chunk
    #[arg(long, default_value = "C", value_parser = ["C", "F"])]
    order: String,
    /// How chunks are compressed: blosc[:CNAME[:CLEVEL[:SHUFFLE]]], zlib, gzip, bz2 or zstd[:LEVEL], lzma[:PRESET],
    /// lz4[:ACCELERATION], none, or a JSON object
    #[arg(long, value_name = "CODEC", default_value = "blosc", value_parser = compressor::parse)]
    compressor: Compressor,
    /// Filters before the compressor: a JSON list of objects
    #[arg(long, value_name = "JSON", value_parser = filters)]
    filters: Option<Value>,
    /// What stands between the indices in the key of a chunk
    #[arg(long, default_value = ".", value_parser = [".", "/"])]
    separator: String,
    /// Attributes: a JSON object
    #[arg(long, value_name = "JSON", value_parser = attributes)]
    attrs: Option<Value>,
    /// Flat bytes to fill it with, C order: a file, or - for standard input. There must be just as many as it takes
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
    let length = |word: &str| word.trim().parse().map_err(|_| format!("{word:?} is not a length"));
    let words = text.split(',').filter(|_| !text.trim().is_empty());
    words.map(length).collect::<Result<_, _>>().map(Lengths)
}

fn dtype(text: &str) -> Result<Value, String> {
    let value = match text.starts_with('[') {
        true => json::parse(text.as_bytes()),
        false => DType::canonical(text).map(Value::from),
    };
    let checked = value.and_then(|value| DType::parse(&value).map(|_| value));
    checked.map_err(|e| e.to_string())
}

fn filters(text: &str) -> Result<Value, String> {
    match json::parse(text.as_bytes()).map_err(|e| e.to_string())? {
        Value::Array(list) if list.is_empty() => Ok(Value::Null),
        list @ Value::Array(_) => Ok(list),
        _ => Err("not a list".to_string()),
    }
}

fn attributes(text: &str) -> Result<Value, String> {
    match json::parse(text.as_bytes()).map_err(|e| e.to_string())? {
        object @ Value::Object(_) => Ok(object),
        _ => Err("not an object".to_string()),
    }
}

/// Runs the verb.
pub fn run(args: &CreateArgs) -> Result<(), Failure> {
    logger::start(LevelFilter::Off, None)?;
    let wrong = |e: Error| Failure::new(2, e.to_string());
    let document = document(args).map_err(wrong)?;
    let metadata = ArrayMetadata::parse(document.as_bytes()).map_err(wrong)?;
    let grid = Grid::new(&metadata.shape, &metadata.chunks, metadata.dtype.size()).map_err(wrong)?;
    if metadata.is_object() && args.from_raw.is_some() {
        return Err(Failure::new(2, "--from-raw: objects have no flat bytes"));
    }
    let raw = args.from_raw.as_deref().map(|path| Raw::open(path, grid.size())).transpose()?;
    let (store, key) = place(args)?;
    if let Location::Path(store) = &store
        && !store.exists()
    {
        std::fs::create_dir(store).map_err(|e| Error::from(e).context(store.display()))?;
    }
    let (stats, reading) = (Arc::new(Stats::default()), args.store_args());
    let opened = location::open(&store, &reading, Some(&args.writing), &stats)?;
    let hierarchy = Hierarchy::new(opened, V1Order::default(), stats);
    let made = make(&hierarchy, &key, &document, args.attrs.as_ref());
    made.and_then(|()| hierarchy.store().sync()).map_err(|e| e.context(&store))?;
    raw.map_or(Ok(()), |raw| raw.fill(args))
}

/// Flat bytes that an array is made of.
enum Raw {
    /// Of a regular file.
    File(File),
    /// That come once.
    Stream(Box<dyn Read>),
}

impl Raw {
    /// Opens the bytes for an array of `size`; an error if it is known that there are more or fewer.
    fn open(path: &Path, size: u64) -> Result<Self, Failure> {
        let (raw, known) = if path == Path::new("-") {
            let known = put::input_size();
            (Raw::Stream(Box::new(std::io::stdin().lock())), known)
        } else {
            let failed = |e| Error::from(e).context(path.display());
            let file = File::open(path).map_err(failed)?;
            let metadata = file.metadata().map_err(failed)?;
            match metadata.is_file() {
                true => (Raw::File(file), Some(metadata.len())),
                false => (Raw::Stream(Box::new(file)), None),
            }
        };
        match known.filter(|known| *known != size) {
            Some(known) => {
                let message = format!("{}: {known} bytes, the array takes {size}; nothing was made", path.display());
                Err(Failure::new(1, message))
            }
            None => Ok(raw),
        }
    }

    fn fill(self, args: &CreateArgs) -> Result<(), Failure> {
        let shown = &args.path;
        let flat = put::open(&args.path, &args.memory, &args.writing, &args.store_args())?;
        let (grid, size) = (flat.array.grid(), flat.array.size());
        let band = grid.band(0);
        let row_of_chunks = (band.end - band.start).saturating_mul(grid.chunk_size() as u64);
        let mut progress = Progress::start(Some(size));
        let mut copy = |input: &mut dyn Read| put::copy(&flat, 0, size, input, &mut progress);
        let copied = match self {
            // chunks that wait for their next row would be stored and loaded again for each
            Raw::File(file) if row_of_chunks > args.memory.cache_size / 2 => copy_by_chunk(&flat, &file, &mut progress),
            Raw::File(mut file) => copy(&mut file),
            Raw::Stream(mut input) => copy(&mut input),
        };
        let stored = flat.fs.fsync(flat.handle);
        progress.end();
        let copied = copied.and_then(|copied| stored.map(|()| copied)).map_err(|e| e.context(shown))?;
        let why = match copied {
            Copied { more: true, .. } => format!("the input goes on beyond the array's {size} bytes"),
            Copied { bytes, .. } if bytes < size => {
                format!("the input ends after {bytes} bytes, the array takes {size}: the rest is the fill value")
            }
            _ => return Ok(()),
        };
        Err(Failure::new(1, format!("{shown}: {why}")))
    }
}

/// Writes a file to the flat bytes, one chunk after the other.
fn copy_by_chunk(flat: &Flat, file: &File, progress: &mut Progress) -> Result<Copied, Error> {
    let (mut bytes, mut buffer) = (0, Vec::new());
    for chunk in 0..flat.array.grid().chunk_count() {
        for (at, run) in flat.array.grid().runs_of(ChunkId(chunk), 0..flat.array.size()) {
            buffer.resize(run.len, 0);
            file.read_exact_at(&mut buffer, at).map_err(|e| Error::from(e).context("the input"))?;
            flat.fs.write(flat.handle, at, &buffer)?;
            bytes += run.len as u64;
        }
        progress.show(bytes);
    }
    Ok(Copied { bytes, more: false })
}

/// The `.zarray` that the arguments describe.
fn document(args: &CreateArgs) -> Result<String, Error> {
    let mut fields = Map::new();
    fields.insert("chunks".into(), args.chunks.0.clone().into());
    fields.insert("compressor".into(), args.compressor.0.as_ref().map_or(Value::Null, CodecConfig::to_json));
    fields.insert("dimension_separator".into(), args.separator.clone().into());
    fields.insert("dtype".into(), args.dtype.clone());
    fields.insert("fill_value".into(), fill_value(args.fill.as_deref(), &DType::parse(&args.dtype)?));
    fields.insert("filters".into(), args.filters.clone().unwrap_or(Value::Null));
    fields.insert("order".into(), args.order.clone().into());
    fields.insert("shape".into(), args.shape.0.clone().into());
    fields.insert("zarr_format".into(), 2.into());
    let text = json::write_pretty(&Value::Object(fields));
    let metadata = ArrayMetadata::parse(text.as_bytes())?;
    Pipeline::new(&metadata, 1).map(|_| text)
}

/// The fill value as a `.zarray` has it: floats that are not finite are words there, complex numbers pairs.
fn fill_value(given: Option<&str>, dtype: &DType) -> Value {
    let zero = match dtype.kind() {
        Kind::Bool => false.into(),
        Kind::Int | Kind::UInt | Kind::TimeDelta | Kind::DateTime => 0.into(),
        Kind::Float => 0.0.into(),
        Kind::Complex => vec![0.0, 0.0].into(),
        Kind::Bytes | Kind::Text | Kind::Void | Kind::Object | Kind::Struct(_) => Value::Null,
    };
    let Some(text) = given else { return zero };
    let word = |value: Value| match json::float(&value) {
        Some(f) if !f.is_finite() && !value.is_number() => text.into(),
        _ => value,
    };
    json::parse(text.as_bytes()).map_or_else(|_| text.into(), word)
}

impl CreateArgs {
    fn store_args(&self) -> StoreArgs {
        StoreArgs { v1_order: V1OrderArg::Zarr1, remote: self.remote.clone(), lists_unfinished: false }
    }
}

/// The store that the array lies in, which may be missing, and its key there.
fn place(args: &CreateArgs) -> Result<(Location, Key), Failure> {
    match &args.path {
        Location::Path(path) => place_of_path(path).map(|(store, key)| (Location::Path(store), key)),
        Location::Url(url) => place_of_url(url, args),
        Location::Memory => Err(Failure::new(2, "memory: nothing in it outlives a command; mount it instead")),
    }
}

/// As [`place`], on a server. Where no group is found above the array, the store is what is named .zarr, or else what the
/// array lies in.
fn place_of_url(url: &str, args: &CreateArgs) -> Result<(Location, Key), Failure> {
    let wrong = |e: Error| Failure::new(2, format!("{}: {e}", args.path));
    let (top, names) = location::names_of_url(url);
    let keys = names.iter().try_fold(vec![Key::root()], |mut keys, name| {
        let below = keys.last().map_or(Ok(Key::root()), |key| key.child(name))?;
        keys.push(below);
        Ok(keys)
    });
    let keys = keys.map_err(wrong)?;
    let store = location::open(&top(0), &args.store_args(), Some(&args.writing), &Arc::default())?;
    store.check_writable(&Key::root()).map_err(|e| e.context(&args.path))?;
    // what may not be looked at is above the store
    let holds = |key: &Key, name: &str| matches!(store.stat(&key.join(name)), Ok(Some(_)));
    let is_group = |key: &Key| holds(key, ZGROUP) || holds(key, ZMETADATA);
    let nearest = keys.iter().rposition(|key| is_group(key) || holds(key, ZARRAY));
    let depth = match nearest {
        Some(near) => (0..near).rev().take_while(|n| is_group(&keys[*n])).last().unwrap_or(near),
        None => match names.iter().position(|name| name.ends_with(".zarr")) {
            Some(n) => n + 1,
            None => names.len().saturating_sub(1).max(names.len().min(1)),
        },
    };
    let key = names[depth..].iter().try_fold(Key::root(), |key, name| key.child(name)).map_err(wrong)?;
    Ok((top(depth), key))
}

/// As [`place`], of a path.
fn place_of_path(path: &Path) -> Result<(PathBuf, Key), Failure> {
    let shown = path.display();
    let (existing, missing) = existing(path)?;
    let holds = |directory: &Path, name: &str| directory.join(name).is_file();
    if holds(&existing, "zarr.json") {
        return Err(Failure::new(4, format!("{shown}: in a Zarr v3 store: this version reads v1 and v2")));
    }
    let is_group = |directory: &Path| holds(directory, ZGROUP) || holds(directory, ZMETADATA);
    // a group of the same store may have no document of its own
    let nearest = existing.ancestors().find(|above| is_group(above) || holds(above, ZARRAY));
    let root = nearest.map(|near| near.ancestors().take_while(|above| is_group(above)).last().unwrap_or(near));
    let is_empty = || std::fs::read_dir(&existing).is_ok_and(|mut names| names.next().is_none());
    let (store, names) = match (root, missing.split_first()) {
        (Some(root), _) => {
            let below = existing.strip_prefix(root).unwrap_or(Path::new(""));
            (root.to_path_buf(), below.iter().map(OsString::from).chain(missing).collect())
        }
        (None, Some((first, rest))) if !is_empty() => (existing.join(first), rest.to_vec()),
        (None, _) => (existing, missing),
    };
    let key = names.iter().try_fold(Key::root(), |key, name| match name.to_str() {
        Some(name) => key.child(name),
        None => Err(Error::invalid(format!("{name:?} is not UTF-8"))),
    });
    key.map(|key| (store, key)).map_err(|e| Failure::new(2, format!("{shown}: {e}")))
}

/// The longest part of `path` that is there, without symbolic links, and the names that follow.
fn existing(path: &Path) -> Result<(PathBuf, Vec<OsString>), Failure> {
    let whole = std::path::absolute(path).map_err(|e| Error::from(e).context(path.display()))?;
    let mut missing = Vec::new();
    for above in whole.ancestors() {
        match std::fs::canonicalize(above) {
            Ok(existing) if !existing.is_dir() => {
                return Err(Failure::new(1, format!("{}: is a file, not a directory", above.display())));
            }
            Ok(existing) => {
                missing.reverse();
                return Ok((existing, missing));
            }
            Err(e) if [ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&e.kind()) => match above.file_name() {
                Some(name) => missing.push(name.to_os_string()),
                None => return Err(Failure::new(2, format!("{}: goes up from what is not there", path.display()))),
            },
            Err(e) => return Err(Error::from(e).context(above.display()).into()),
        }
    }
    Err(Failure::new(3, format!("{}: no such directory", path.display())))
}

/// Makes the array, after the groups above it.
fn make(hierarchy: &Hierarchy, key: &Key, document: &str, attrs: Option<&Value>) -> Result<(), Error> {
    let root = Key::root();
    if key.is_root() {
        if hierarchy.store().list(&root)?.next().is_some() {
            return Err(Error::system(libc::EEXIST));
        }
    } else {
        if !matches!(hierarchy.find(&root)?, Some(Place::Array(_) | Place::Damaged(_)))
            && hierarchy.store().stat(&root.join(ZGROUP))?.is_none()
        {
            hierarchy.put_document(&root, MetadataFile::Group, GROUP_DOCUMENT.as_bytes())?;
        }
        make_groups(hierarchy, &key.parent())?;
        hierarchy.create_group(key)?;
    }
    let attributes = |()| match attrs {
        Some(attrs) => hierarchy.put_document(key, MetadataFile::Attributes, json::write_pretty(attrs).as_bytes()),
        None => Ok(()),
    };
    let made = hierarchy.put_document(key, MetadataFile::Array, document.as_bytes()).and_then(attributes);
    if made.is_err() && !key.is_root() {
        // what was made for it says nothing without it
        let _ = hierarchy.remove_place(key);
    }
    made
}

fn make_groups(hierarchy: &Hierarchy, key: &Key) -> Result<(), Error> {
    if key.is_root() || hierarchy.find(key)?.is_some() {
        return Ok(());
    }
    make_groups(hierarchy, &key.parent())?;
    hierarchy.create_group(key)
}
