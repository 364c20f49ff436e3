//! `zarrfs info`: lists the groups and arrays of a store, with their dimensions and sizes.

use super::map::{ChunkMap, MapArea, Style, legend};
use super::time::utc;
use super::{
    CommandFailure, MemoryArgs, Reading, StoreArgs, StoreLocation, list_of, open_store, print,
    size, warn_unlisted,
};
use crate::array::hierarchy::{Hierarchy, NodeUse};
use crate::array::{Array, ArrayEntry};
use crate::check::{CheckOptions, examine_all};
use crate::export::Plate;
use clap::Args;
use rustix::termios::tcgetwinsize;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use zarrfs_base::error::{Error, Kind, Result, one_line};
use zarrfs_base::json::{self, Value, json};
use zarrfs_format::grid::Edges;
use zarrfs_format::metadata::ArrayMetadata;
use zarrfs_store::{IceHistory, Key, ObjectId, escaped};

/// Maximum numbers of lines and panels of the map of a single array, and of one array among others.
const FULL: (u64, u64) = (24, 16);
const SMALL: (u64, u64) = (8, 4);

/// Number of characters of a line if standard output is no terminal.
const WIDTH: usize = 80;

/// Maximum width in characters of the column of paths, without and with --wide. A longer path moves
/// the columns after it.
const PATH_COLUMN: [usize; 2] = [30, 40];

/// Arguments of `info`.
#[derive(Args)]
pub struct InfoArgs {
    /// Path of the store, or of a group or array in it
    store: StoreLocation,
    /// Show chunks, shards, order, codecs and stored sizes
    ///
    /// Lines are not cut to the width of the terminal.
    #[arg(long)]
    wide: bool,
    /// Print a JSON list of the groups and arrays
    #[arg(long)]
    json: bool,
    /// Draw the chunk grid of each array
    ///
    /// Shows which chunks are stored, how large they are, and which have an impossible size.
    #[arg(long)]
    map: bool,
    /// Decode each chunk, and draw those that fail
    #[arg(long, requires = "map")]
    deep: bool,
    /// Draw in ASCII, as in a locale without UTF-8
    #[arg(long, requires = "map")]
    ascii: bool,
    #[command(flatten)]
    memory: MemoryArgs,
    #[command(flatten)]
    reading: StoreArgs,
}

/// Number of snapshots of a repository that are shown.
const SNAPSHOTS: usize = 10;

/// A group or array of the listing.
struct InfoRow {
    key: Key,
    content: RowContent,
}

enum RowContent {
    Group(Option<Plate>),
    Array(Box<ArrayRow>),
    Unreadable(Error),
}

/// An array, and the values that the listing shows of it.
struct ArrayRow {
    array: Arc<Array>,
    dimension_names: Vec<String>,
    units: Option<String>,
    /// The reason why the array can't be read.
    unreadable: Option<Error>,
    /// The stored chunks; `None` if the store can't list them or they were not counted.
    stored: Result<Option<StoredTotals>>,
    map: Option<ChunkMap>,
}

/// Number and bytes of the stored chunks of an array.
#[derive(Default)]
struct StoredTotals {
    chunks: u64,
    bytes: u64,
    /// The number of shards that hold the chunks.
    shards: u64,
}

/// Runs the verb.
pub fn run(args: &InfoArgs) -> std::result::Result<(), CommandFailure> {
    args.memory.set_bound();
    let reading = StoreArgs {
        reading: Reading::WholeOnce,
        ..args.reading.clone()
    };
    let hierarchy = open_store(&args.store, &reading, &Arc::default())?;
    let used = if args.wide || args.json || args.map {
        NodeUse::Chunks
    } else {
        NodeUse::Description
    };
    let mut rows = Vec::new();
    hierarchy.visit_below(&Key::root(), used, &mut |key, node| {
        let content = match node.usable() {
            Ok(Some(array)) => {
                RowContent::Array(Box::new(array_row(&hierarchy, key, &array, args)))
            }
            Err(e) => RowContent::Unreadable(e),
            // a group whose attributes can't be read is shown without them
            Ok(None) => {
                RowContent::Group(hierarchy.attributes(key).ok().and_then(|a| Plate::of(&a)))
            }
        };
        rows.push(InfoRow {
            key: key.clone(),
            content,
        });
        Ok(())
    })?;
    warn_unlisted(&hierarchy, &args.store);
    let style = Style {
        ascii: args.ascii || !is_utf8(),
        deep: args.deep,
    };
    let history = hierarchy
        .store()
        .snapshots()
        .map(|all| all.history(SNAPSHOTS));
    let history = history.transpose()?.flatten();
    let text = match (args.json, args.map) {
        (true, _) => {
            let is_complete = hierarchy.lists_nodes();
            let mut objects: Vec<Value> = rows.iter().map(|row| row.json(is_complete)).collect();
            if let (Some(root), Some(history)) = (objects.first_mut(), &history) {
                root["icechunk"] = history_as_json(history);
            }
            let lines = objects.into_iter();
            list_of(lines.map(|object| one_line(json::write_strict(&object))))
        }
        (false, true) => as_tree(&rows, args.wide, style) + &legend(style),
        (false, false) => as_tree(&rows, args.wide, style),
    };
    let history = history.filter(|_| !args.json);
    print(history.map_or(String::new(), |history| history_as_lines(&history)) + &text)?;
    // the listing has the error
    if let Some(e) = rows.iter().find_map(InfoRow::failure) {
        return Err(CommandFailure::from(e.clone()).plain());
    }
    CommandFailure::check_left_out(&hierarchy, &args.store)
}

impl InfoRow {
    /// Returns the reason why the node could not be examined. An array that is damaged or not
    /// supported has been examined, unless it is all that the command should show.
    fn failure(&self) -> Option<&Error> {
        let failure = match &self.content {
            RowContent::Group(_) => None,
            RowContent::Array(row) => row.stored.as_ref().err(),
            RowContent::Unreadable(e) => Some(e),
        };
        failure.filter(|e| self.key.is_root() || matches!(e.kind(), Kind::System(_)))
    }
}

fn array_row(hierarchy: &Hierarchy, key: &Key, array: &Arc<Array>, args: &InfoArgs) -> ArrayRow {
    // a single array has the whole screen
    let (lines, panels) = if key.is_root() { FULL } else { SMALL };
    let area = MapArea {
        width: width(),
        lines,
        panels,
    };
    let mut map = args.map.then(|| {
        ChunkMap::new(
            array.grid(),
            &shard_chunks(array),
            array.metadata().has_objects(),
            area,
        )
    });
    let stored = match &mut map {
        Some(map) => mapped(array, args, map).map(Some),
        None if args.wide || args.json => stored(array),
        None => Ok(None),
    };
    let attributes = hierarchy.attributes(key).unwrap_or_default();
    let named = array
        .metadata()
        .v3
        .as_ref()
        .and_then(|v3| v3.dimension_names.as_ref());
    // xarray's convention in v2
    let listed = attributes
        .get("_ARRAY_DIMENSIONS")
        .and_then(Value::as_array);
    ArrayRow {
        array: array.clone(),
        dimension_names: match named {
            Some(names) => names
                .iter()
                .map(|name| name.clone().unwrap_or_default())
                .collect(),
            None => listed.into_iter().flatten().map(text_or_nothing).collect(),
        },
        units: attributes
            .get("units")
            .map(text_or_nothing)
            .filter(|units| !units.is_empty()),
        unreadable: array.readable().err(),
        stored,
        map,
    }
}

fn text_or_nothing(value: &Value) -> String {
    json::text(value).unwrap_or_default().to_string()
}

/// Returns the width of the terminal in characters.
fn width() -> usize {
    let terminal = tcgetwinsize(rustix::stdio::stdout())
        .ok()
        .map(|size| usize::from(size.ws_col));
    terminal.filter(|width| *width >= 20).unwrap_or(WIDTH)
}

/// Returns whether the locale's characters are UTF-8.
fn is_utf8() -> bool {
    let variables = ["LC_ALL", "LC_CTYPE", "LANG"];
    let locale = variables
        .iter()
        .filter_map(std::env::var_os)
        .find(|value| !value.is_empty());
    let locale = locale
        .unwrap_or_default()
        .to_string_lossy()
        .to_ascii_lowercase();
    locale.contains("utf-8") || locale.contains("utf8")
}

/// Adds the stored chunks of an array to its map.
fn mapped(array: &Arc<Array>, args: &InfoArgs, map: &mut ChunkMap) -> Result<StoredTotals> {
    let options = CheckOptions {
        deep: args.deep,
        threads: args.memory.threads(),
        stop: &AtomicBool::new(false),
    };
    let mut shards = HashSet::new();
    examine_all(array, options, &mut |examined| {
        shards.extend(array.shard_of(examined.chunk));
        map.add(&examined);
    })?;
    Ok(StoredTotals {
        chunks: map.stored(),
        bytes: map.bytes(),
        shards: shards.len() as u64,
    })
}

/// Returns the number of chunks in a shard along each dimension; an empty list for an array without
/// shards or with shards of different shapes.
fn shard_chunks(array: &Array) -> Vec<u64> {
    let meta = array.metadata();
    let outermost = meta
        .shards
        .first()
        .filter(|outermost| outermost.edges.is_none());
    let shape = outermost
        .map(|outermost| outermost.shape.as_slice())
        .unwrap_or_default();
    shape
        .iter()
        .zip(&meta.chunks)
        .map(|(shard, chunk)| shard / chunk)
        .collect()
}

/// Counts the stored chunks of an array.
fn stored(array: &Arc<Array>) -> Result<Option<StoredTotals>> {
    if !array.lists_all() {
        return Ok(None);
    }
    let mut totals = StoredTotals::default();
    let mut last = None;
    for entry in array.entries()? {
        match entry? {
            ArrayEntry::Chunk(chunk) => {
                totals.chunks += 1;
                // the chunks of a shard are listed one after the other
                let shard = array.shard_of(chunk);
                totals.shards += u64::from(shard != last);
                last = shard;
                totals.bytes += array.stat_chunk(chunk)?.map_or(0, |s| s.size);
            }
            ArrayEntry::Unlisted => {
                return Err(Error::damaged("some chunks can't be listed").context(array.key()));
            }
            ArrayEntry::Value(_) => {}
        }
    }
    Ok(Some(totals))
}

impl InfoRow {
    /// Returns the row as JSON. Unless all groups and arrays are known, the root says that it is
    /// incomplete.
    fn json(&self, is_complete: bool) -> Value {
        let mut object = json!({"path": format!("/{}", self.key.as_str())});
        match &self.content {
            RowContent::Group(plate) => {
                object["kind"] = "group".into();
                if let Some(plate) = plate {
                    let Plate {
                        rows,
                        columns,
                        wells,
                    } = plate;
                    object["plate"] = json!({"rows": rows, "columns": columns, "wells": wells});
                }
                if self.key.is_root() && !is_complete {
                    object["complete"] = false.into();
                }
            }
            RowContent::Array(row) => row.describe(&mut object),
            RowContent::Unreadable(e) => {
                object["kind"] = "unreadable".into();
                object["error"] = e.to_string().into();
            }
        }
        object
    }
}

/// Returns one line for each row, and its map. Lines without an error are cut to the terminal's
/// width unless `wide`.
fn as_tree(rows: &[InfoRow], wide: bool, style: Style) -> String {
    let labels: Vec<String> = rows.iter().map(|row| label(&row.key)).collect();
    let longest = labels.iter().map(|l| l.chars().count()).max().unwrap_or(0);
    let column = longest.min(PATH_COLUMN[usize::from(wide)]);
    let mut text = String::new();
    for (row, label) in rows.iter().zip(&labels) {
        let (content, error) = match &row.content {
            RowContent::Group(None) => ("group".to_string(), None),
            RowContent::Group(Some(plate)) => {
                let Plate {
                    rows,
                    columns,
                    wells,
                } = plate;
                let line =
                    format!("group: plate of {rows} rows and {columns} columns, wells: {wells}");
                (line, None)
            }
            RowContent::Array(row) if wide => (row.wide_line(), row.error()),
            RowContent::Array(row) => (row.line(), row.error()),
            RowContent::Unreadable(e) => (format!("unreadable: {e}"), None),
        };
        let is_whole = wide || error.is_some() || matches!(row.content, RowContent::Unreadable(_));
        let error = error.map_or(String::new(), |e| format!("  unreadable: {e}"));
        let line = format!("{label:<column$}  {}", one_line(content + &error));
        text.push_str(&if is_whole {
            line
        } else {
            cut(line, width(), style.ascii)
        });
        text.push('\n');
        if let RowContent::Array(row) = &row.content
            && let Some(map) = &row.map
        {
            text.push_str(&map.draw(style));
        }
    }
    text
}

/// Returns the branches and tags of a repository and its latest snapshots, the first of which is
/// the one that is read, as an object for programs.
fn history_as_json(history: &IceHistory) -> Value {
    let names = |named: &[(String, ObjectId)]| {
        let named = named.iter();
        Value::Object(
            named
                .map(|(name, id)| (name.clone(), id.to_string().into()))
                .collect(),
        )
    };
    let snapshots = history.log.iter().map(|commit| {
        json!({"id": commit.id.to_string(), "time": utc(commit.time), "message": commit.message})
    });
    json!({
        "branches": names(&history.branches),
        "tags": names(&history.tags),
        "snapshots": snapshots.collect::<Vec<_>>(),
    })
}

/// Returns the same as lines.
fn history_as_lines(history: &IceHistory) -> String {
    let mut lines = Vec::new();
    for (kind, names) in [("branch", &history.branches), ("tag", &history.tags)] {
        lines.extend(
            names
                .iter()
                .map(|(name, id)| format!("{kind} {name}: {id}")),
        );
    }
    for commit in &history.log {
        let message = commit.message.lines().next().unwrap_or_default();
        lines.push(format!("{}  {}  {message}", commit.id, utc(commit.time)));
    }
    lines
        .into_iter()
        .map(|line| one_line(line) + "\n")
        .collect()
}

/// Returns the name of a group or array, indented by its depth.
fn label(key: &Key) -> String {
    if key.is_root() {
        return "/".to_string();
    }
    let depth = key.as_str().matches('/').count() + 1;
    format!("{}{}", "  ".repeat(depth), escaped(key.name()))
}

/// Returns a line of at most `width` characters, with dots at the end of one that was cut.
fn cut(line: String, width: usize, ascii: bool) -> String {
    if line.chars().count() <= width {
        return line;
    }
    let dots = if ascii { "..." } else { "…" };
    line.chars()
        .take(width - dots.chars().count())
        .collect::<String>()
        + dots
}

/// Returns the codecs with their parameters, in the order of encoding: `delta(dtype=<i4),
/// zlib(level=1)`.
fn codecs(meta: &ArrayMetadata) -> String {
    let list = match &meta.v3 {
        Some(v3) => joined(v3.codecs.as_array().into_iter().flatten().map(v3_codec)),
        None => {
            let codecs = meta.filters.iter().chain(&meta.compressor);
            joined(codecs.map(|c| codec(&c.id, &c.to_json())))
        }
    };
    if list.is_empty() {
        "no codec".to_string()
    } else {
        list
    }
}

/// Returns a codec with its parameters: `zlib(level=1)`.
fn codec(name: &str, parameters: &Value) -> String {
    let parameters = parameters
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(name, v)| *name != "id" && !v.is_null());
    let list: Vec<String> = parameters
        .map(|(name, v)| format!("{name}={}", parameter(v)))
        .collect();
    if list.is_empty() {
        name.to_string()
    } else {
        format!("{name}({})", list.join(", "))
    }
}

/// Returns a parameter of a codec. Those of v3 may be lists of codecs.
fn parameter(value: &Value) -> String {
    match value {
        Value::Array(list)
            if !list.is_empty()
                && list
                    .iter()
                    .all(|v| v.get("name").is_some_and(Value::is_string)) =>
        {
            format!("[{}]", joined(list.iter().map(v3_codec)))
        }
        _ => json::plain(value),
    }
}

/// Returns texts with commas between them.
fn joined(texts: impl Iterator<Item = String>) -> String {
    texts.collect::<Vec<_>>().join(", ")
}

/// Returns a codec of a v3 document with its parameters. A codec may be a bare name.
fn v3_codec(spelled: &Value) -> String {
    let name = json::text(spelled)
        .or_else(|| json::text(spelled.get("name")?))
        .unwrap_or_default();
    codec(name, spelled.get("configuration").unwrap_or(&Value::Null))
}

impl ArrayRow {
    /// Returns the reason why the array or its chunks can't be read.
    fn error(&self) -> Option<&Error> {
        self.unreadable.as_ref().or(self.stored.as_ref().err())
    }

    /// Returns the decoded size, or nothing for objects.
    fn size(&self) -> Option<String> {
        (!self.array.metadata().has_objects()).then(|| size::show(self.array.size()))
    }

    /// Returns the dimensions by name and length: `time 62, lat 37`.
    fn dimensions(&self) -> String {
        let lengths = self.array.metadata().shape.iter().enumerate();
        joined(lengths.map(|(i, len)| match self.dimension_names.get(i) {
            Some(name) if !name.is_empty() => format!("{name} {len}"),
            _ => len.to_string(),
        }))
    }

    fn line(&self) -> String {
        let metadata = self.array.metadata();
        let dtype = match &metadata.v3 {
            Some(v3) if metadata.has_objects() || !metadata.has_numpy_dtype() => &v3.data_type,
            _ => &metadata.dtype_json,
        };
        let dtype = json::plain(dtype);
        let more: String = self
            .size()
            .into_iter()
            .chain(self.units.clone())
            .map(|text| format!("  {text}"))
            .collect();
        format!("array  {dtype}  ({}){more}", self.dimensions())
    }

    fn wide_line(&self) -> String {
        let meta = self.array.metadata();
        let chunks = lengths(&meta.chunk_edges());
        let shards = meta.shards.first().map_or(String::new(), |shard| {
            format!("  shards ({})", lengths(&shard.shard_edges()))
        });
        // the codecs of v3 state the order
        let order = if meta.v3.is_some() {
            String::new()
        } else {
            format!("order {}  ", meta.order.as_str())
        };
        let known = self.known();
        let bytes = known.map_or("?".to_string(), |known| size::show(known.bytes));
        let stored = known.map_or("?".to_string(), |known| known.chunks.to_string());
        let in_shards = self.array.shard_count().map_or(String::new(), |count| {
            let stored = known.map_or("?".to_string(), |known| known.shards.to_string());
            format!(" in {stored}/{count} shards")
        });
        format!(
            "{}  chunks ({chunks}){shards}  {order}{}  {bytes} stored  {stored}/{} chunks{in_shards}",
            self.line(),
            codecs(meta),
            self.array.grid().chunk_count()
        )
    }

    /// Returns the stored chunks, if they are known.
    fn known(&self) -> Option<&StoredTotals> {
        self.stored.as_ref().ok()?.as_ref()
    }

    /// Adds what is known of the array to its object in JSON.
    fn describe(&self, object: &mut Value) {
        let array = &self.array;
        let meta = array.metadata();
        let known = self.known();
        object["kind"] = "array".into();
        object["zarr_format"] = meta.zarr_format.into();
        for (name, value) in meta.description() {
            object[name] = value;
        }
        object["dimension_separator"] = array.separator().as_char().to_string().into();
        object["decoded_bytes"] = (!meta.has_objects()).then(|| array.size()).into();
        object["stored_bytes"] = known.map(|known| known.bytes).into();
        object["chunks_in_grid"] = array.grid().chunk_count().into();
        object["chunks_initialised"] = known.map(|known| known.chunks).into();
        if let Some(count) = array.shard_count() {
            object["shards_in_grid"] = count.into();
            object["shards_stored"] = known.map(|known| known.shards).into();
        }
        if let Some(e) = self.error() {
            object["error"] = e.to_string().into();
        }
        if let Some(map) = &self.map {
            object["map"] = map.to_json();
        }
    }
}

/// Returns the lengths of chunks or shards along each dimension.
fn lengths(edges: &[Edges]) -> String {
    joined(edges.iter().map(Edges::to_string))
}
