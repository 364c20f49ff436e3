//! `zarrfs info`: the groups and arrays of a store, with what they hold and what they take.

use super::map::{ChunkMap, Room, Style, legend};
use super::{Failure, Location, StoreArgs, logger, open_store, print, size, threads};
use crate::array::hierarchy::StoredNode;
use crate::array::{Array, ArrayEntry};
use crate::check::{CheckOptions, examine_all};
use crate::error::{Error, Result, one_line};
use crate::stats::Stats;
use crate::store::{Key, escaped};
use crate::util::json::{self, Map, Value};
use crate::util::memory;
use crate::zarr::metadata::{ArrayMetadata, CodecConfig};
use clap::Args;
use log::LevelFilter;
use rustix::termios::tcgetwinsize;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// What `info` takes.
#[derive(Args)]
pub struct InfoArgs {
    /// The store, or a group or array in it
    store: Location,
    /// Print JSON: a list with an object for each group and array
    #[arg(long)]
    json: bool,
    /// Draw the chunk grid of each array: which chunks are stored, how large, and which have a size they can't have
    #[arg(long)]
    map: bool,
    /// Decode each chunk for the map, to tell which fail
    #[arg(long, requires = "map")]
    deep: bool,
    /// Draw the map in plain ASCII, as where the locale is not UTF-8
    #[arg(long, requires = "map")]
    ascii: bool,
    #[command(flatten)]
    reading: StoreArgs,
}

/// One line of the listing.
struct Row {
    key: Key,
    what: What,
}

enum What {
    Group,
    /// An array, and what the store holds of it or why that can't be told.
    Array(Arc<Array>, Result<Stored>, Option<Box<ChunkMap>>),
    Unreadable(Error),
}

/// Chunks of an array that are in the store, and their bytes there; None where the store can't list them.
#[derive(Default)]
struct Stored {
    chunks: Option<u64>,
    bytes: Option<u64>,
}

/// Runs the verb.
pub fn run(args: &InfoArgs) -> std::result::Result<(), Failure> {
    // what is wrong stands in the listing
    logger::start(LevelFilter::Off, None)?;
    // as `check` does
    memory::set_cache_bound(4 << 30);
    let hierarchy = open_store(&args.store, &args.reading, Arc::new(Stats::default()))?;
    let mut rows = Vec::new();
    hierarchy.visit_below(&Key::root(), &mut |key, place| {
        let what = match place {
            StoredNode::Array(array) if args.map => {
                // the only one has the whole screen
                let room = room(if key.is_root() { FULL } else { SMALL });
                let mut map = Box::new(ChunkMap::new(array.grid(), array.metadata().has_objects(), room));
                let stored = mapped(array, args.deep, &mut map);
                What::Array(array.clone(), stored, Some(map))
            }
            StoredNode::Array(array) => What::Array(array.clone(), stored(array), None),
            StoredNode::Damaged(e) => What::Unreadable(e.clone()),
            _ => What::Group,
        };
        rows.push(Row { key: key.clone(), what });
    });
    let style = Style { ascii: args.ascii || !is_utf8(), deep: args.deep };
    let text = match (args.json, args.map) {
        (true, _) => as_json(&rows),
        (false, true) => as_tree(&rows, style) + &legend(style),
        (false, false) => as_tree(&rows, style),
    };
    print(text)
}

/// Lines and panels of the map of a single array, and of one among others.
const FULL: (u64, u64) = (24, 16);
const SMALL: (u64, u64) = (8, 4);

/// Characters of a line where that can't be told.
const WIDTH: usize = 80;

fn room((lines, panels): (u64, u64)) -> Room {
    let terminal = tcgetwinsize(rustix::stdio::stdout()).ok().map(|size| usize::from(size.ws_col));
    let width = terminal.filter(|width| *width >= 20).unwrap_or(WIDTH);
    Room { width, lines, panels }
}

/// True if the locale's characters are UTF-8.
fn is_utf8() -> bool {
    let variables = ["LC_ALL", "LC_CTYPE", "LANG"];
    let locale = variables.iter().filter_map(std::env::var_os).find(|value| !value.is_empty());
    let locale = locale.unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

/// Adds the stored chunks of an array to its map.
fn mapped(array: &Arc<Array>, deep: bool, map: &mut ChunkMap) -> Result<Stored> {
    let how = CheckOptions { deep, threads: threads(None), stop: &AtomicBool::new(false) };
    examine_all(array, how, &mut |examined| map.add(&examined))?;
    Ok(Stored { chunks: Some(map.stored()), bytes: Some(map.bytes()) })
}

fn stored(array: &Arc<Array>) -> Result<Stored> {
    if !array.lists_all() {
        return Ok(Stored::default());
    }
    let (mut chunks, mut bytes) = (0, 0);
    for entry in array.entries()? {
        match entry? {
            ArrayEntry::Chunk(chunk) => {
                chunks += 1;
                bytes += array.stat_chunk(chunk)?.map_or(0, |s| s.size);
            }
            ArrayEntry::Unlisted => return Err(Error::damaged("some chunks can't be listed").context(array.key())),
            ArrayEntry::Value(_) => {}
        }
    }
    Ok(Stored { chunks: Some(chunks), bytes: Some(bytes) })
}

fn as_json(rows: &[Row]) -> String {
    let object = |row: &Row| {
        let mut object = Map::new();
        object.insert("path".into(), format!("/{}", row.key.as_str()).into());
        match &row.what {
            What::Group => object.extend([("kind".into(), "group".into())]),
            What::Array(array, stored, map) => {
                array_json(array, stored, &mut object);
                object.extend(map.as_ref().map(|map| ("map".to_string(), map.to_json())));
            }
            What::Unreadable(e) => {
                object.extend([("kind".into(), "unreadable".into()), ("error".into(), e.to_string().into())]);
            }
        }
        one_line(json::write_strict(&Value::Object(object)))
    };
    format!("[\n{}\n]\n", rows.iter().map(object).collect::<Vec<_>>().join(",\n"))
}

fn array_json(array: &Arc<Array>, stored: &Result<Stored>, row: &mut Map<String, Value>) {
    let meta = array.metadata();
    let known = stored.as_ref().ok();
    let mut add = |name: &str, value: Value| row.insert(name.to_string(), value);
    add("kind", "array".into());
    add("zarr_format", meta.zarr_format.into());
    for (name, value) in meta.description() {
        add(name, value);
    }
    add("dimension_separator", array.separator().as_char().to_string().into());
    add("decoded_bytes", if meta.has_objects() { Value::Null } else { array.size().into() });
    add("stored_bytes", known.and_then(|s| s.bytes).into());
    add("chunks_in_grid", array.grid().chunk_count().into());
    add("chunks_initialised", known.and_then(|s| s.chunks).into());
    if let Some(e) = array.readable().err().as_ref().or(stored.as_ref().err()) {
        row.insert("error".into(), e.to_string().into());
    }
}

fn as_tree(rows: &[Row], style: Style) -> String {
    let label = |key: &Key| {
        let depth = key.as_str().matches('/').count() + usize::from(!key.is_root());
        let name = if key.is_root() { "/".to_string() } else { escaped(key.name()) };
        format!("{}{name}", "  ".repeat(depth))
    };
    let labels: Vec<String> = rows.iter().map(|row| label(&row.key)).collect();
    let width = labels.iter().map(|l| l.chars().count()).max().unwrap_or(0).min(40);
    let mut text = String::new();
    for (row, label) in rows.iter().zip(&labels) {
        let what = match &row.what {
            What::Group => "group".to_string(),
            What::Array(array, stored, _) => array_line(array, stored),
            What::Unreadable(e) => format!("unreadable: {e}"),
        };
        text.push_str(&format!("{label:<width$}  {}\n", one_line(what)));
        if let What::Array(_, _, Some(map)) = &row.what {
            text.push_str(&map.draw(style));
        }
    }
    text
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

fn array_line(array: &Arc<Array>, stored: &Result<Stored>) -> String {
    let meta = array.metadata();
    let dims = |dims: &[u64]| format!("({})", dims.iter().map(u64::to_string).collect::<Vec<_>>().join(", "));
    let dtype = json::text(&meta.dtype_json).map_or_else(|| json::write(&meta.dtype_json), str::to_string);
    let of = if meta.has_objects() { String::new() } else { format!(" of {}", size::show(array.size())) };
    let known = stored.as_ref().ok();
    let bytes = known.and_then(|s| s.bytes).map_or("?".to_string(), size::show);
    let chunks = known.and_then(|s| s.chunks).map_or("?".to_string(), |n| n.to_string());
    let mut line = format!(
        "array   {} {dtype}  chunks {}  order {}  {}  {bytes}{of}  {chunks}/{} chunks",
        dims(&meta.shape),
        dims(&meta.chunks),
        meta.order.as_str(),
        codecs(meta),
        array.grid().chunk_count()
    );
    if let Some(e) = array.readable().err().as_ref().or(stored.as_ref().err()) {
        line.push_str(&format!("  unreadable: {e}"));
    }
    line
}
