//! Strings of any length as characters of a fixed number of bytes: they have no flat bytes, so that
//! the whole array is read to find the longest one. This module knows nothing of files.

use crate::array::Array;
use crate::cache::{Cache, ChunkPart};
use crate::util::json;
use crate::util::memory;
use crate::zarr::grid::ChunkId;
use crate::zarr::layout;
use crate::zarr::metadata::{ArrayMetadata, Order};
use std::sync::Arc;

/// Maximum number of strings that are read.
const MAX_STRINGS: u64 = 1 << 20;

/// Maximum number of chunks that are read, of an array in a local and in a remote store.
const MAX_CHUNKS: [u64; 2] = [1 << 14, 1 << 8];

/// Maximum size in bytes of all strings of an array, each as long as the longest.
const MAX_BYTES: usize = 4 << 20;

/// The size in bytes that a grid counts for a string.
const ITEM: u64 = 8;

/// Returns whether the objects of an array are strings that this module reads.
pub fn are_strings(metadata: &ArrayMetadata) -> bool {
    metadata.has_objects()
        && metadata
            .object_codec()
            .is_some_and(|codec| codec.id == "vlen-utf8")
}

/// Reads all strings. Returns the length in bytes of the longest one, at least 1, and the strings
/// in C order, each padded with NUL to that length. They take at most `free` bytes of memory.
///
/// # Errors
///
/// The reason why they cannot be read.
pub fn read(cache: &Cache, array: &Array, free: usize) -> Result<(u64, Arc<[u8]>), String> {
    let count = array.size() / ITEM;
    if count > MAX_STRINGS
        || array.grid().chunk_count() > MAX_CHUNKS[usize::from(array.is_remote())]
    {
        return Err(format!(
            "{count} strings of any length are too many to find the longest"
        ));
    }
    // revalidate: another process may have changed the store
    array.freshness().begin_opening();
    let mut longest = 1;
    for_each(cache, array, |_, text| longest = longest.max(text.len()))?;
    let size = longest.saturating_mul(count as usize);
    if size > MAX_BYTES.min(free) {
        let most = MAX_BYTES.min(free);
        return Err(format!(
            "{count} strings of up to {longest} bytes take more than {most} bytes"
        ));
    }
    let mut values = memory::zeroed(size).map_err(|e| e.to_string())?;
    for_each(cache, array, |number, text| {
        // a string that has become longer meanwhile is cut
        let place = values.get_mut(number * longest..).unwrap_or_default();
        place
            .iter_mut()
            .take(longest)
            .zip(text.bytes())
            .for_each(|(to, byte)| *to = byte);
    })?;
    Ok((longest as u64, values.into()))
}

/// Calls `show` with the number in C order and the text of each string. Strings of chunks that are
/// not stored are the fill value, or empty.
fn for_each(cache: &Cache, array: &Array, mut show: impl FnMut(usize, &str)) -> Result<(), String> {
    let grid = array.grid();
    let metadata = array.metadata();
    let fill = json::text(&metadata.fill_value).unwrap_or_default();
    for chunk in (0..grid.chunk_count()).map(ChunkId) {
        let part = cache
            .get(array, chunk, ChunkPart::Whole)
            .map_err(|e| e.to_string())?;
        let texts = match &part {
            Some(part) => Some(texts(part.bytes(), metadata)?),
            None => None,
        };
        for (at, run) in grid.chunk_runs(chunk, 0..array.size()) {
            for i in 0..run.len / ITEM as usize {
                let text = texts
                    .as_ref()
                    .map(|texts| texts.get(run.offset / ITEM as usize + i).copied());
                let text = text
                    .unwrap_or(Some(fill))
                    .ok_or("a chunk has too few strings")?;
                show((at / ITEM) as usize + i, text);
            }
        }
    }
    Ok(())
}

/// Returns the strings of a chunk in C order. numcodecs' format: the number of strings, then each
/// one after its length, all as little-endian 32-bit numbers.
fn texts<'a>(bytes: &'a [u8], metadata: &ArrayMetadata) -> Result<Vec<&'a str>, String> {
    let short = || "a chunk is cut short".to_string();
    let number = |bytes: &[u8; 4]| u32::from_le_bytes(*bytes) as usize;
    let (count, mut rest) = bytes.split_first_chunk().ok_or_else(short)?;
    // each string takes at least its length, which bounds the memory by that of the chunk
    if number(count) > rest.len() / 4 {
        return Err(short());
    }
    let mut texts = Vec::with_capacity(number(count));
    for _ in 0..number(count) {
        let (len, after) = rest.split_first_chunk().ok_or_else(short)?;
        let (text, after) = after.split_at_checked(number(len)).ok_or_else(short)?;
        texts.push(std::str::from_utf8(text).map_err(|_| "a string is not UTF-8")?);
        rest = after;
    }
    // zarr-python gives a chunk of objects the array's order
    let in_chunk: u64 = metadata.chunks.iter().product();
    if metadata.order == Order::F && metadata.chunks.len() > 1 && texts.len() as u64 == in_chunk {
        let numbers: Vec<u8> = (0..texts.len() as u32).flat_map(u32::to_le_bytes).collect();
        let mut places = vec![0; numbers.len()];
        layout::f_to_c(&metadata.chunks, 4, &numbers, &mut places);
        let (places, _) = places.as_chunks();
        texts = places
            .iter()
            .filter_map(|place| texts.get(number(place)).copied())
            .collect();
    }
    Ok(texts)
}
