//! A `zarr.json` that a program wrote through the mount over that of an existing array. The program
//! edited the shown document of decoded chunks, or created the array and writes its own document
//! again. In both cases the stored grid, keys and codecs stay as they are.

use super::shown::{shown_codecs, shown_grid};
use crate::chunk_key::Separator;
use crate::data_type::DataType;
use crate::metadata::ArrayMetadata;
use zarrfs_base::json::{Map, Value};

/// Returns a field that the written document changes and that must not change while chunks are
/// stored; `None` if there is none. `stored` and `written` are the documents of `old` and `new`.
pub fn differs_v3(
    stored: &Map<String, Value>,
    old: &ArrayMetadata,
    written: &Map<String, Value>,
    new: &ArrayMetadata,
) -> Option<&'static str> {
    let is_stored = |field: &str| written.get(field) == stored.get(field);
    // the same codecs, keys and chunks in another spelling
    let is_same = old.is_resize_of(&ArrayMetadata {
        fill: old.fill.clone(),
        ..new.clone()
    }) && old.separator == new.separator;
    let keeps_chunks = new.begins_like(old) && new.shards.is_empty();
    // TensorStore leaves out a default separator
    let has_shown_keys = !new.has_key_prefix() && new.separator == Some(Separator::Dot);
    let keeps_codecs =
        new.stated_filters().eq(old.object_codec()) && new.is_big_endian() == old.is_big_endian();
    let states_codecs = is_same || is_stored("codecs");
    let states_grid = is_same || is_stored("chunk_grid");
    let shows_codecs = written.get("codecs") == Some(&shown_codecs(old)) || keeps_codecs;
    let shows_grid = written.get("chunk_grid") == Some(&shown_grid(old)) || keeps_chunks;
    // the lengths of shards belong to the codecs that make shards, those of chunks to the shown
    // codecs
    let fits = states_codecs && states_grid || shows_codecs && shows_grid;
    let has_grid = fits || !states_codecs && !shows_codecs && (states_grid || shows_grid);
    let fields = [
        (
            "data_type",
            is_same_type(stored.get("data_type"), written.get("data_type")),
        ),
        ("chunk_grid", has_grid),
        ("codecs", states_codecs || shows_codecs),
        (
            "chunk_key_encoding",
            is_same || is_stored("chunk_key_encoding") || has_shown_keys,
        ),
        ("shape", new.shape.len() == old.shape.len()),
    ];
    fields
        .into_iter()
        .find(|(_, same)| !same)
        .map(|(field, _)| field)
}

/// Returns whether both are spellings of one data type. The byte order is part of the codecs.
fn is_same_type(old: Option<&Value>, new: Option<&Value>) -> bool {
    let (Some(old), Some(new)) = (old, new) else {
        return false;
    };
    let (Ok(of_old), Ok(of_new)) = (DataType::parse(old, false), DataType::parse(new, false))
    else {
        return old == new;
    };
    let is_distinguishable =
        !of_old.dtype.has_objects() && (of_old.numpy.is_some() || of_old.element.is_some());
    old == new || is_distinguishable && of_old == of_new
}

/// Returns the stored document with the fields of the written one that may change: all but data
/// type, keys and codecs. The grid changes if the written one lists other lengths beyond the chunks
/// that both arrays have.
pub fn merged_v3(
    stored: &Map<String, Value>,
    written: &Map<String, Value>,
    old: &ArrayMetadata,
    new: &ArrayMetadata,
) -> Map<String, Value> {
    const KEPT: [&str; 6] = [
        "zarr_format",
        "node_type",
        "data_type",
        "chunk_key_encoding",
        "codecs",
        "storage_transformers",
    ];
    // the grid of the chunks in shards is not that of the shards
    let has_same_grid =
        new.object_edges() == old.object_edges() || new.shards.is_empty() != old.shards.is_empty();
    let is_kept = |field: &str| {
        KEPT.contains(&field)
            || field == "chunk_grid" && has_same_grid
            || field == "fill_value" && new.fill == old.fill && !old.has_objects()
    };
    let mut merged = stored.clone();
    merged.retain(|field, _| is_kept(field) || written.contains_key(field));
    for (field, value) in written.iter().filter(|(field, _)| !is_kept(field)) {
        merged.insert(field.clone(), value.clone());
    }
    merged
}
