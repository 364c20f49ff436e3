//! Strings of any length as characters of a fixed number of bytes: they have no flat bytes, so that
//! the whole array is read to find the longest one. This module knows nothing of files.

use crate::array::Array;
use crate::cache::{Cache, ChunkPart};
use crate::export::describe::max_chunks;
use std::sync::Arc;
use zarrfs_base::json;
use zarrfs_base::memory;
use zarrfs_format::grid::ChunkId;
use zarrfs_format::layout;
use zarrfs_format::metadata::{ArrayMetadata, Order};

/// Maximum number of strings that are read.
const MAX_STRINGS: u64 = 1 << 20;

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
    if count > MAX_STRINGS || array.grid().chunk_count() > max_chunks(array) {
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
        let len = text.len().min(longest).min(place.len());
        place[..len].copy_from_slice(&text.as_bytes()[..len]);
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
    const SHORT: &str = "a chunk is cut short";
    let (count, mut rest) = split_number(bytes).ok_or(SHORT)?;
    // each string takes at least its length, which bounds the memory by that of the chunk
    if count > rest.len() / 4 {
        return Err(SHORT.into());
    }
    let mut texts = Vec::with_capacity(count);
    for _ in 0..count {
        let (len, after) = split_number(rest).ok_or(SHORT)?;
        let (text, after) = after.split_at_checked(len).ok_or(SHORT)?;
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
        let places = places
            .iter()
            .map(|place| u32::from_le_bytes(*place) as usize);
        texts = places
            .filter_map(|place| texts.get(place).copied())
            .collect();
    }
    Ok(texts)
}

/// Splits off the little-endian number at the beginning.
fn split_number(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u32::from_le_bytes(*number) as usize, rest))
}
