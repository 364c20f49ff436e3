//! `zarrfs info`: the groups and arrays of a store, with what they hold and what they take.

use super::{Failure, StoreArgs, logger, open_store, size};
use crate::array::{Array, ArrayEntry};
use crate::error::{Error, Result};
use crate::hierarchy::Place;
use crate::json::{self, Map, Value};
use crate::metadata::{ArrayMetadata, CodecConfig};
use crate::stats::Stats;
use crate::store::Key;
use clap::Args;
use log::LevelFilter;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Args)]
pub struct InfoArgs {
    /// The store, or a group or array in it
    store: PathBuf,
    /// Print JSON: a list with an object for each group and array
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    reading: StoreArgs,
}

/// Chunks of an array that are in the store, and their bytes there.
struct Stored {
    chunks: u64,
    bytes: u64,
}

/// Runs the verb.
pub fn run(args: &InfoArgs) -> std::result::Result<(), Failure> {
    // what is wrong stands in the listing
    logger::start(LevelFilter::Off, None)?;
    let hierarchy = open_store(&args.store, &args.reading, Arc::new(Stats::default()))?;
    let mut rows: Vec<(Key, Place)> = Vec::new();
    hierarchy.walk(&Key::root(), &mut |key, place| {
        rows.push((key.clone(), place.clone()));
        Ok(())
    })?;
    let text = if args.json { as_json(&rows)? } else { as_tree(&rows)? };
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(Error::from(e).into()),
        _ => Ok(()),
    }
}

fn stored(array: &Arc<Array>) -> Result<Stored> {
    let mut stored = Stored { chunks: 0, bytes: 0 };
    for entry in array.entries()? {
        if let ArrayEntry::Chunk(chunk) = entry? {
            stored.chunks += 1;
            stored.bytes += array.stat_chunk(chunk).ok().flatten().map_or(0, |s| s.size);
        }
    }
    Ok(stored)
}

fn as_json(rows: &[(Key, Place)]) -> Result<String> {
    let mut list = Vec::new();
    for (key, place) in rows {
        let mut row = Map::new();
        row.insert("path".into(), key.to_string().into());
        match place {
            Place::Array(array) => array_json(array, &mut row)?,
            Place::Damaged(e) => row.extend([("kind".into(), "array".into()), ("error".into(), e.to_string().into())]),
            _ => row.extend([("kind".into(), "group".into())]),
        }
        list.push(json::write(&Value::Object(row)));
    }
    Ok(format!("[\n{}\n]\n", list.join(",\n")))
}

fn array_json(array: &Arc<Array>, row: &mut Map<String, Value>) -> Result<()> {
    let (meta, stored) = (array.metadata(), stored(array)?);
    let filters: Vec<Value> = meta.filters.iter().map(CodecConfig::to_json).collect();
    row.extend(
        [
            ("kind", "array".into()),
            ("zarr_format", meta.zarr_format.into()),
            ("shape", meta.shape.clone().into()),
            ("chunks", meta.chunks.clone().into()),
            ("dtype", meta.dtype_json.clone()),
            ("order", meta.order.as_str().into()),
            ("fill_value", meta.fill_value.clone()),
            ("compressor", meta.compressor.as_ref().map_or(Value::Null, CodecConfig::to_json)),
            ("filters", if filters.is_empty() { Value::Null } else { filters.into() }),
            ("dimension_separator", array.separator().as_char().to_string().into()),
            ("decoded_bytes", if meta.is_object() { Value::Null } else { array.size().into() }),
            ("stored_bytes", stored.bytes.into()),
            ("chunks_in_grid", array.grid().chunk_count().into()),
            ("chunks_initialised", stored.chunks.into()),
        ]
        .map(|(name, value)| (name.to_string(), value)),
    );
    if let Err(e) = array.readable() {
        row.insert("error".into(), e.to_string().into());
    }
    Ok(())
}

fn as_tree(rows: &[(Key, Place)]) -> Result<String> {
    let label = |key: &Key| {
        let depth = key.as_str().matches('/').count() + usize::from(!key.is_root());
        let name = key.as_str().rsplit('/').next().unwrap_or_default().escape_debug().to_string();
        format!("{}{}", "  ".repeat(depth), if key.is_root() { "/".to_string() } else { name })
    };
    let labels: Vec<String> = rows.iter().map(|(key, _)| label(key)).collect();
    let width = labels.iter().map(|l| l.chars().count()).max().unwrap_or(0).min(40);
    let mut text = String::new();
    for ((_, place), label) in rows.iter().zip(&labels) {
        let what = match place {
            Place::Array(array) => array_line(array)?,
            Place::Damaged(e) => format!("array   unreadable: {e}"),
            _ => "group".to_string(),
        };
        text.push_str(&format!("{label:<width$}  {what}\n"));
    }
    Ok(text)
}

/// The codecs with their parameters, in the order of writing: `delta(dtype=<i4), zlib(level=1)`.
fn codecs(meta: &ArrayMetadata) -> String {
    let show = |config: &CodecConfig| {
        let json = config.to_json();
        let parameters = json.as_object().into_iter().flatten().filter(|(name, v)| *name != "id" && !v.is_null());
        let text = |v: &Value| json::text(v).map_or_else(|| json::write(v), str::to_string);
        let list: Vec<String> = parameters.map(|(name, v)| format!("{name}={}", text(v))).collect();
        if list.is_empty() { config.id.clone() } else { format!("{}({})", config.id, list.join(", ")) }
    };
    let list: Vec<String> = meta.filters.iter().chain(&meta.compressor).map(show).collect();
    if list.is_empty() { "no codec".to_string() } else { list.join(", ") }
}

fn array_line(array: &Arc<Array>) -> Result<String> {
    let (meta, stored) = (array.metadata(), stored(array)?);
    let dims = |dims: &[u64]| format!("({})", dims.iter().map(u64::to_string).collect::<Vec<_>>().join(", "));
    let dtype = json::text(&meta.dtype_json).map_or_else(|| json::write(&meta.dtype_json), str::to_string);
    let of = if meta.is_object() { String::new() } else { format!(" of {}", size::show(array.size())) };
    let mut line = format!(
        "array   {} {dtype}  chunks {}  order {}  {}  {}{of}  {}/{} chunks",
        dims(&meta.shape),
        dims(&meta.chunks),
        meta.order.as_str(),
        codecs(meta),
        size::show(stored.bytes),
        stored.chunks,
        array.grid().chunk_count()
    );
    if let Err(e) = array.readable() {
        line.push_str(&format!("  unreadable: {e}"));
    }
    Ok(line)
}
