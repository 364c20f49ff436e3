//! Strings of any length as bytes of a fixed number: they have no flat bytes, so that the whole
//! array is read to find the longest one. This module knows no files.

use super::{flat, max_chunks};
use crate::reader::ArrayNode;
use std::borrow::Cow;
use std::sync::Arc;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::json::{self, Value};
use zarrfs_base::memory::{self, Grant};
use zarrfs_format::dtype::DTypeKind;
use zarrfs_format::grid::ChunkId;
use zarrfs_format::layout;
use zarrfs_format::metadata::{ArrayMetadata, Order};

/// Maximum number of strings that are read.
const MAX_STRINGS: u64 = 1 << 20;

/// Maximum size in bytes of all strings of an array, each as long as the longest.
const MAX_BYTES: usize = 4 << 20;

/// The size in bytes that a grid counts for a string.
const ITEM: u64 = 8;

/// The encoding of the strings in a chunk, in numcodecs' name for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StringEncoding {
    /// `vlen-utf8`: text.
    VlenUtf8,
    /// `vlen-bytes`: bytes that may be no text.
    VlenBytes,
    /// `json2`: a list of anything in JSON.
    Json,
}

impl StringEncoding {
    /// Returns the encoding of an array's objects; `None` if they are no strings that
    /// [`read_strings`] reads. Pickles, which may hold any program, are never read.
    pub fn of(metadata: &ArrayMetadata) -> Option<Self> {
        let codec = metadata
            .object_codec()
            .filter(|_| *metadata.dtype.kind() == DTypeKind::Object)?;
        match codec.id.as_str() {
            "vlen-utf8" => Some(StringEncoding::VlenUtf8),
            "vlen-bytes" => Some(StringEncoding::VlenBytes),
            "json2" if codec.text("encoding", "utf-8").ok()? == "utf-8" => {
                Some(StringEncoding::Json)
            }
            _ => None,
        }
    }
}

/// Returns whether [`texts`] may read the items of an array.
pub fn are_strings(metadata: &ArrayMetadata) -> bool {
    matches!(metadata.dtype.kind(), DTypeKind::Bytes | DTypeKind::Text)
        || StringEncoding::of(metadata).is_some()
}

/// The strings of an array in C order, each padded with NUL to the length of the longest.
pub struct PaddedStrings {
    /// The length of the longest string in bytes, at least 1.
    pub longest: usize,
    /// The strings.
    pub values: Arc<[u8]>,
}

/// Reads all strings, which take at most `free` bytes of memory.
///
/// # Errors
///
/// The objects are no strings, they take too much memory, or a chunk cannot be read.
pub fn read_strings(array: &ArrayNode, free: usize) -> Result<PaddedStrings> {
    let encoding = begin_reading(array)?;
    let count = array.size() / ITEM;
    let mut longest = 1;
    for_each(array, encoding, |_, string| {
        if encoding == StringEncoding::VlenBytes && string.last() == Some(&0) {
            let why = "its bytes end with zeros, which the padding of shorter ones would hide";
            return Err(Error::unsupported(why));
        }
        longest = longest.max(string.len());
        Ok(())
    })?;
    let size = longest.saturating_mul(count as usize);
    let most = MAX_BYTES.min(free);
    if size > most {
        return Err(Error::unsupported(format!(
            "{count} strings of up to {longest} bytes take more than {most} bytes"
        )));
    }
    let mut values = memory::zeroed(size)?;
    for_each(array, encoding, |number, string| {
        // a string that has become longer meanwhile is cut
        let place = values.get_mut(number * longest..).unwrap_or_default();
        let len = string.len().min(longest).min(place.len());
        place[..len].copy_from_slice(&string[..len]);
        Ok(())
    })?;
    Ok(PaddedStrings {
        longest,
        values: values.into(),
    })
}

/// Begins to read strings of any length.
///
/// # Errors
///
/// The objects are no strings, or too many.
fn begin_reading(array: &ArrayNode) -> Result<StringEncoding> {
    let encoding = StringEncoding::of(&array.metadata)
        .ok_or_else(|| Error::unsupported("its objects are no strings"))?;
    let count = array.size() / ITEM;
    if count > MAX_STRINGS || array.grid()?.chunk_count() > max_chunks(array.is_remote) {
        return Err(Error::unsupported(format!(
            "{count} strings of any length are too many to find the longest"
        )));
    }
    array.chunks.open()?;
    Ok(encoding)
}

/// Calls `show` with the number in C order and the bytes of each string of an array for which
/// [`are_strings`] holds, without padding. UCS-4 becomes UTF-8. Memory for the flat bytes of
/// strings of a fixed length has been granted.
///
/// # Errors
///
/// The strings are too many or cannot be read, or `show` has failed.
pub fn visit_strings(
    array: &ArrayNode,
    show: &mut dyn FnMut(usize, &[u8]) -> Result<()>,
) -> Result<()> {
    let metadata = &array.metadata;
    if metadata.has_objects() {
        let encoding = begin_reading(array)?;
        return for_each(array, encoding, show);
    }
    let dtype = &metadata.dtype;
    let items = flat(array)?;
    for (number, item) in items.chunks_exact(dtype.size().max(1)).enumerate() {
        if *dtype.kind() == DTypeKind::Text {
            show(number, text_of_ucs4(item, dtype.is_big_endian()).as_bytes())?;
        } else {
            let padding = item.iter().rev().take_while(|byte| **byte == 0).count();
            show(number, &item[..item.len() - padding])?;
        }
    }
    Ok(())
}

/// Reads all strings as [`read_strings`] does, with a grant for their memory.
///
/// # Errors
///
/// The errors of [`read_strings`].
pub fn read_counted_strings(array: &ArrayNode) -> Result<(PaddedStrings, Grant)> {
    let mut memory = memory::take(MAX_BYTES)?;
    let strings = read_strings(array, MAX_BYTES)?;
    memory.shrink_to(strings.values.len());
    Ok((strings, memory))
}

/// Returns the strings of an array of one dimension that has at most `most` of them, with a grant
/// for their memory. They may be of any length or of a fixed one. What is no character becomes
/// U+FFFD.
///
/// # Errors
///
/// The items are no strings, are too many or too large, or cannot be read.
pub fn texts(array: &ArrayNode, most: u64) -> Result<(Vec<String>, Grant)> {
    let metadata = &array.metadata;
    let dtype = &metadata.dtype;
    let [count] = metadata.shape.as_slice() else {
        return Err(Error::unsupported("they have not one dimension"));
    };
    if *count > most || array.size() > MAX_BYTES as u64 {
        return Err(Error::unsupported("they are too many"));
    }
    if !are_strings(metadata) {
        return Err(Error::unsupported("they are no strings"));
    }
    let (strings, mut memory) = padded(array)?;
    // a byte that is no UTF-8 becomes a character of three
    memory.grow(strings.values.len() * 3 + *count as usize * size_of::<String>())?;
    let texts: Vec<String> = strings
        .values
        .chunks_exact(strings.longest.max(1))
        .map(|item| {
            if *dtype.kind() == DTypeKind::Text {
                text_of_ucs4(item, dtype.is_big_endian())
            } else {
                let text = String::from_utf8_lossy(item);
                text.trim_end_matches('\0').to_string()
            }
        })
        .collect();
    let held = texts.iter().map(|text| size_of::<String>() + text.len());
    memory.shrink_to(held.sum());
    Ok((texts, memory))
}

/// Reads strings of any length or of a fixed one, with a grant for their memory.
fn padded(array: &ArrayNode) -> Result<(PaddedStrings, Grant)> {
    if array.metadata.has_objects() {
        return read_counted_strings(array);
    }
    let memory = memory::take(array.size() as usize)?;
    let strings = PaddedStrings {
        longest: array.metadata.dtype.size(),
        values: flat(array)?.into(),
    };
    Ok((strings, memory))
}

/// Returns the text of UCS-4 characters, without the padding.
fn text_of_ucs4(item: &[u8], is_big_endian: bool) -> String {
    let (codes, _) = item.as_chunks();
    let text: String = codes
        .iter()
        .map(|code| {
            let code = if is_big_endian {
                u32::from_be_bytes(*code)
            } else {
                u32::from_le_bytes(*code)
            };
            char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
        })
        .collect();
    text.trim_end_matches('\0').to_string()
}

/// Calls `show` with the number in C order and the bytes of each string. Strings of chunks that are
/// not stored are the fill value, or empty.
fn for_each(
    array: &ArrayNode,
    encoding: StringEncoding,
    mut show: impl FnMut(usize, &[u8]) -> Result<()>,
) -> Result<()> {
    let grid = array.grid()?;
    let metadata = &array.metadata;
    let fill = fill(metadata, encoding);
    for chunk in (0..grid.chunk_count()).map(ChunkId) {
        let bytes = array.chunks.read(chunk)?;
        let strings = match &bytes {
            Some(bytes) => Some(ChunkStrings::parse(
                bytes.as_ref().as_ref(),
                metadata,
                encoding,
            )?),
            None => None,
        };
        for (at, run) in grid.chunk_runs(chunk, 0..array.size()) {
            let first = run.offset / ITEM as usize;
            for i in 0..run.len / ITEM as usize {
                let string = match &strings {
                    Some(strings) => strings.get(first + i)?,
                    None => &fill,
                };
                show((at / ITEM) as usize + i, string)?;
            }
        }
    }
    Ok(())
}

/// Returns the fill value; zarr-python 3 spells that of bytes in base64.
fn fill(metadata: &ArrayMetadata, encoding: StringEncoding) -> Vec<u8> {
    let fill = json::text(&metadata.fill_value).unwrap_or_default();
    match encoding {
        StringEncoding::VlenUtf8 | StringEncoding::Json => fill.as_bytes().to_vec(),
        StringEncoding::VlenBytes => json::base64_decode(fill.as_bytes()).unwrap_or_default(),
    }
}

/// The strings of a chunk in C order; `None` for objects of JSON that are none.
struct ChunkStrings<'a> {
    list: Vec<Option<Cow<'a, [u8]>>>,
    _memory: Grant,
}

impl<'a> ChunkStrings<'a> {
    fn parse(bytes: &'a [u8], metadata: &ArrayMetadata, encoding: StringEncoding) -> Result<Self> {
        let is_f = metadata.order == Order::F && metadata.chunks.len() > 1;
        if encoding == StringEncoding::Json {
            // zarr-python 2.18 reads other values than those that it wrote
            if is_f {
                return Err(Error::unsupported("json2 has no order F"));
            }
            return Self::parse_json(bytes);
        }
        let mut strings = Self::parse_vlen(bytes, encoding)?;
        let in_chunk: u64 = metadata.chunks.iter().product();
        // zarr-python gives a chunk of objects the array's order
        if is_f && strings.list.len() as u64 == in_chunk {
            strings.list = in_c_order(strings.list, &metadata.chunks);
        }
        Ok(strings)
    }

    /// Parses numcodecs' vlen format: the number of strings, then each one after its length, all as
    /// little-endian 32-bit numbers.
    fn parse_vlen(bytes: &'a [u8], encoding: StringEncoding) -> Result<Self> {
        let short = || Error::damaged("a chunk of strings is cut short");
        let (count, mut rest) = split_number(bytes).ok_or_else(short)?;
        // each string takes at least its length, which bounds the memory by the size of the chunk
        if count > rest.len() / 4 {
            return Err(short());
        }
        let memory = memory::take(count * size_of::<Option<Cow<[u8]>>>())?;
        let mut list = Vec::with_capacity(count);
        for _ in 0..count {
            let (len, after) = split_number(rest).ok_or_else(short)?;
            let (string, after) = after.split_at_checked(len).ok_or_else(short)?;
            if encoding == StringEncoding::VlenUtf8 && std::str::from_utf8(string).is_err() {
                return Err(Error::damaged("a string is not UTF-8"));
            }
            list.push(Some(Cow::Borrowed(string)));
            rest = after;
        }
        Ok(ChunkStrings {
            list,
            _memory: memory,
        })
    }

    /// Parses numcodecs' JSON: the items in nested lists, the dtype, and the shape, which says how
    /// deep the lists are nested.
    fn parse_json(bytes: &[u8]) -> Result<Self> {
        let no_chunk = || Error::damaged("a chunk is not what json2 writes");
        let (document, memory) = json::parse_counted(bytes)?;
        let Value::Array(mut items) = document else {
            return Err(no_chunk());
        };
        let shape = items.pop().ok_or_else(no_chunk)?;
        let shape = shape.as_array().ok_or_else(no_chunk)?;
        items.pop().ok_or_else(no_chunk)?;
        let mut list = Vec::new();
        flatten(items, shape.len().max(1), &mut list);
        Ok(ChunkStrings {
            list,
            _memory: memory,
        })
    }

    fn get(&self, number: usize) -> Result<&[u8]> {
        let string = self.list.get(number);
        let string = string.ok_or_else(|| Error::damaged("a chunk has too few strings"))?;
        string
            .as_deref()
            .ok_or_else(|| Error::unsupported("its objects are no strings"))
    }
}

/// Returns the strings of a chunk of these lengths, which are in Fortran order, in C order.
fn in_c_order<T: Default>(mut strings: Vec<T>, lengths: &[u64]) -> Vec<T> {
    let numbers: Vec<u8> = (0..strings.len() as u32)
        .flat_map(u32::to_le_bytes)
        .collect();
    let mut places = vec![0; numbers.len()];
    layout::f_to_c(lengths, 4, &numbers, &mut places);
    let (places, _) = places.as_chunks();
    places
        .iter()
        .filter_map(|place| {
            let string = strings.get_mut(u32::from_le_bytes(*place) as usize)?;
            Some(std::mem::take(string))
        })
        .collect()
}

/// Appends the items of lists that are nested `depth` levels deep. Like `vlen-utf8`, an item that
/// is missing is an empty string.
fn flatten(items: Vec<Value>, depth: usize, list: &mut Vec<Option<Cow<[u8]>>>) {
    for item in items {
        let is_text = json::text(&item).is_some();
        match item {
            Value::Array(items) if depth > 1 => flatten(items, depth - 1, list),
            Value::Null => list.push(Some(Cow::Borrowed(b""))),
            Value::String(text) if is_text => list.push(Some(Cow::Owned(text.into_bytes()))),
            _ => list.push(None),
        }
    }
}

/// Splits off the little-endian number at the beginning.
fn split_number(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u32::from_le_bytes(*number) as usize, rest))
}
