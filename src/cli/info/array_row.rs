//! An array of the listing: its facts in a line and in JSON. This module must not know the other
//! arrays.

use super::InfoArgs;
use super::codecs::{codecs, joined};
use crate::array::hierarchy::Hierarchy;
use crate::array::{Array, ArrayEntry};
use crate::check::{CheckOptions, examine_all};
use crate::cli::map::{ChunkMap, MapArea};
use crate::cli::size;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::json::{self, Value};
use zarrfs_format::grid::Edges;
use zarrfs_store::Key;

/// Maximum numbers of lines and panels of the map of a single array, and of one array among others.
const FULL: (u64, u64) = (24, 16);
const SMALL: (u64, u64) = (8, 4);

/// An array, and the values that the listing shows of it.
pub struct ArrayRow {
    array: Arc<Array>,
    dimension_names: Vec<String>,
    units: Option<String>,
    /// The reason why the array can't be read.
    unreadable: Option<Error>,
    /// The stored chunks; `None` if the store can't list them or they were not counted.
    pub stored: Result<Option<StoredTotals>>,
    pub map: Option<ChunkMap>,
}

/// What a listing of lines shows of an array.
pub struct ArrayLine {
    pub text: String,
    /// The reason why the array or its chunks can't be read.
    pub error: Option<Error>,
    /// The reason why the stored chunks could not be counted.
    pub failure: Option<Error>,
    pub map: Option<ChunkMap>,
}

/// Number and bytes of the stored chunks of an array.
#[derive(Default)]
pub struct StoredTotals {
    chunks: u64,
    bytes: u64,
    /// The number of shards that hold the chunks.
    shards: u64,
}

impl ArrayRow {
    /// Looks at an array of the hierarchy. Its map is for lines of `width` characters.
    pub fn new(
        hierarchy: &Hierarchy,
        key: &Key,
        array: &Arc<Array>,
        args: &InfoArgs,
        width: usize,
    ) -> Self {
        // a single array has the whole screen
        let (lines, panels) = if key.is_root() { FULL } else { SMALL };
        let area = MapArea {
            width,
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

    /// Returns the line of the array.
    pub fn into_line(self, wide: bool) -> ArrayLine {
        ArrayLine {
            text: if wide { self.wide_line() } else { self.line() },
            error: self.error().cloned(),
            failure: self.stored.err(),
            map: self.map,
        }
    }

    /// Returns the array of the row.
    pub fn array(&self) -> &Arc<Array> {
        &self.array
    }

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

    /// Adds the facts of the array to its object in JSON.
    pub fn describe(&self, object: &mut Value) {
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

fn text_or_nothing(value: &Value) -> String {
    json::text(value).unwrap_or_default().to_string()
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

/// Returns the lengths of chunks or shards along each dimension.
fn lengths(edges: &[Edges]) -> String {
    joined(edges.iter().map(Edges::to_string))
}
