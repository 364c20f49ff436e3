//! The values as text, for awk, gnuplot and the eye: an item a line, or in two dimensions a row a
//! line with one space between items. In more dimensions an empty line follows each plane, as
//! gnuplot separates blocks, and one more each index of a further dimension. A complex item is two
//! columns, a struct one for each element of its fields.

mod cf_times;
mod items;
mod numpy_times;

use super::composite::Composite;
use super::described::Described;
use super::units;
use super::{FormatContent, FormatSpec};
use cf_times::CfTimes;
use items::ItemText;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory::Grant;
use zarrfs_format::metadata::ArrayMetadata;

/// The format.
pub(super) const FORMAT: FormatSpec = FormatSpec {
    name: "values.txt",
    id: "txt",
    content: FormatContent::Values,
    fits,
    header: file,
    ..FormatSpec::DEFAULT
};

/// Maximum size of the flat bytes: the text is made whenever the size of the file is asked for.
const MAX_FLAT: u64 = 1 << 20;

/// Size of the parts in which the text is made, in bytes.
const PART: usize = 1 << 18;

/// Returns whether the array is small, and its items have a text: all that NumPy has but floats of
/// more than 8 bytes, and objects other than strings.
fn fits(metadata: &ArrayMetadata) -> bool {
    metadata.dtype.size() > 0
        && metadata.flat_size() <= MAX_FLAT
        && ItemText::of(metadata).is_some()
}

/// Writes the file.
///
/// # Errors
///
/// The values were not read, or there is no memory for the text.
fn file(array: &Described) -> Result<Composite> {
    let metadata = &array.metadata;
    let missing = || Error::unsupported("the values were not read").context(&array.key);
    let (values, mut items) = array
        .values
        .as_deref()
        .zip(ItemText::of(metadata))
        .ok_or_else(missing)?;
    // xarray stores times and durations as integers
    if array.units.as_deref().and_then(units::time).is_some() {
        items.has_nat = true;
    }
    let times = CfTimes::of(array, values);
    let mut file = Composite::default();
    let mut memory = Grant::default();
    let mut text = String::new();
    // lengths beside 0 may be of any size
    let count = if values.is_empty() {
        0
    } else {
        metadata.shape.iter().product::<u64>() as usize
    };
    // strings of any length are padded to the length of the longest
    let size = values.len() / count.max(1);
    for (i, item) in values.chunks_exact(size.max(1)).enumerate() {
        match &times {
            Some(times) => times.write(item, &mut text),
            None => items.write(item, &mut text),
        }
        separate(&metadata.shape, i + 1, count, &mut text);
        if text.len() >= PART || i + 1 == count {
            memory.grow(text.len())?;
            file.push_bytes(std::mem::take(&mut text).into_bytes());
        }
    }
    Ok(file)
}

/// Ends an item: `done` of `count` items are written.
fn separate(shape: &[u64], done: usize, count: usize, text: &mut String) {
    let [.., _, columns] = shape else {
        text.push('\n');
        return;
    };
    let mut block = *columns as usize;
    if block > 0 && !done.is_multiple_of(block) {
        text.push(' ');
        return;
    }
    text.push('\n');
    for len in shape.iter().rev().skip(1) {
        block = block.saturating_mul(*len as usize).max(1);
        if done == count || !done.is_multiple_of(block) {
            break;
        }
        text.push('\n');
    }
}

#[cfg(test)]
mod tests;
