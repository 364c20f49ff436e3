//! Items of arrays that a file holds in another form: reads and writes at any offset, in bytes of
//! the form that the file shows.

use super::{CompositeFile, FlatPart};
use crate::cache::{FoundBytes, Wait};
use crate::fs::files::items::{another_array, packed, shown_items};
use crate::fs::write::WriteMode;
use crate::fs::{Change, Fs};
use std::collections::BTreeMap;
use std::ops::Range;
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory::lock;
use zarrfs_export::ItemForm;

/// Maximum bytes of items that wait for their other part. A program that writes a file in blocks
/// leaves one at a time.
const MAX_TORN: usize = 1 << 20;

/// Items that were written in part, by the number of their part of the file and their offset there.
/// Half a number or a text may be none that the array can hold; it waits for the other half.
#[derive(Default)]
pub struct TornItems(BTreeMap<(usize, u64), Vec<u8>>);

impl TornItems {
    /// Replaces those items in `bytes`, whole items at `at` of a part, that were written in part.
    pub fn show(&self, number: usize, at: u64, bytes: &mut [u8]) {
        let end = at + bytes.len() as u64;
        for ((_, item), torn) in self.0.range((number, at)..(number, end)) {
            bytes[(item - at) as usize..][..torn.len()].copy_from_slice(torn);
        }
    }

    /// Returns whether no item waits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn put(&mut self, number: usize, at: u64, item: &[u8]) -> Result<()> {
        let size: usize = self.0.values().map(Vec::len).sum();
        if size + item.len() > MAX_TORN {
            return Err(Error::invalid("too many items were written in part"));
        }
        self.0.insert((number, at), item.to_vec());
        Ok(())
    }

    /// Forgets the items of a part from `at` to `end`, which are written as a whole.
    fn forget(&mut self, number: usize, at: u64, end: u64) {
        self.0
            .retain(|(of, item), _| *of != number || *item < at || *item >= end);
    }
}

impl CompositeFile {
    /// Writes bytes in the file's form at an offset of a part. Returns how many: all of them,
    /// unless whole items alone can be written and a part of one is left.
    pub(super) fn write_items(
        &self,
        fs: &Change,
        of: &FlatPart,
        at: u64,
        data: &[u8],
        mode: WriteMode,
    ) -> Result<usize> {
        let mut done = data.len();
        match of.form {
            ItemForm::AsStored => write_stored(fs, of, at, data, mode)?,
            ItemForm::Reversed(item) => write_reversed(fs, of, at, data, (*item).max(1), mode)?,
            form if form.takes_whole_items() => {
                let bytes;
                (done, bytes) = packed(form, at, data, mode)?;
                write_stored(fs, of, shown_items(at, 0, form).stored.start, &bytes, mode)?;
            }
            _ => {
                let (bytes, stored_at) = self.converted(fs, of, at, data)?;
                if !bytes.is_empty() {
                    write_stored(fs, of, stored_at, &bytes, mode)?;
                }
            }
        }
        Ok(done)
    }

    /// Returns the stored form of the items that `data` is a part of, and where they begin in the
    /// array. The rest of the first and of the last item stays. Of these, one that cannot be stored
    /// yet is kept back.
    fn converted(&self, fs: &Fs, of: &FlatPart, at: u64, data: &[u8]) -> Result<(Vec<u8>, u64)> {
        let number = of.number;
        let form = of.form;
        let size = form.shown_item() as u64;
        let mut range = shown_items(at, data.len(), form);
        // two writers of one item must not undo each other's bytes
        let array = of.flat.array.key();
        let _alone = fs.converting.exclusive(&[&array]);
        let first = range.shown.start;
        let mut edges = vec![first, range.shown.end.saturating_sub(size)];
        edges.dedup();
        edges.retain(|item| *item < at || item + size > at + data.len() as u64);
        let mut items = vec![0; (range.shown.end - first) as usize];
        let mut edge = Vec::new();
        for item in &edges {
            let stored = shown_items(*item, 1, form).stored;
            read_exact(fs, of, stored, Wait::Allowed, &mut edge)?.copy_to(&mut edge);
            form.show(&mut edge)?;
            lock(&self.torn).show(number, *item, &mut edge);
            items[(item - first) as usize..][..edge.len()].copy_from_slice(&edge);
        }
        items[(at - first) as usize..][..data.len()].copy_from_slice(data);
        let mut torn = lock(&self.torn);
        torn.forget(number, first, range.shown.end);
        for item in edges {
            let bytes = &items[(item - first) as usize..][..size as usize];
            if form.store(&mut bytes.to_vec()).is_err() {
                torn.put(number, item, bytes)?;
                if item == range.shown.start {
                    range.shown.start += size
                } else {
                    range.shown.end -= size
                }
            }
        }
        drop(torn);
        let mut bytes = items
            [(range.shown.start - first) as usize..(range.shown.end - first) as usize]
            .to_vec();
        form.store(&mut bytes)?;
        Ok((bytes, range.shown.start / size * form.stored_item() as u64))
    }
}

/// Reads exactly a range of the flat bytes of a part.
pub fn read_exact(
    fs: &Fs,
    of: &FlatPart,
    range: Range<u64>,
    wait: Wait,
    out: &mut Vec<u8>,
) -> Result<FoundBytes> {
    let len = (range.end - range.start) as usize;
    let found = of
        .flat
        .read_recorded(fs, None, (of.start + range.start, len), wait, out)?;
    if matches!(found, FoundBytes::MustWait) || found.bytes(out).len() == len {
        Ok(found)
    } else {
        // the array has shrunk a moment ago
        Err(another_array())
    }
}

/// Writes bytes of reversed items. Every byte of an item is one byte of the stored item, so that
/// nothing has to be read.
fn write_reversed(
    fs: &Change,
    of: &FlatPart,
    begin: u64,
    data: &[u8],
    item: usize,
    mode: WriteMode,
) -> Result<()> {
    let mut done = 0;
    while done < data.len() {
        let (len, at) = mirrored(begin + done as u64, data.len() - done, item);
        let mut bytes = data[done..done + len].to_vec();
        bytes.chunks_mut(item.min(len)).for_each(<[u8]>::reverse);
        write_stored(fs, of, at, &bytes, mode)?;
        done += len;
    }
    Ok(())
}

/// Writes flat bytes of a part as they are stored, all of them.
///
/// # Errors
///
/// ESTALE if the array has another shape or dtype than the file says.
fn write_stored(fs: &Change, of: &FlatPart, at: u64, data: &[u8], mode: WriteMode) -> Result<()> {
    let at = of.start + at;
    let end = at + data.len() as u64;
    let written = of.flat.array.write_latest(fs, Wait::Allowed, |array| {
        // an array of records may have become shorter
        if !of.part.is_of(array.metadata()) || end > array.size() {
            return Err(another_array());
        }
        fs.arrays.resizing.written_to(array.key(), end);
        fs.writer.write_flat(array, at, data, mode)
    });
    written.map(drop)
}

/// Returns how many of `len` bytes at `begin` can be written together in a file whose items of
/// `item` bytes are reversed, and where: whole items, or a part of one.
fn mirrored(begin: u64, len: usize, item: usize) -> (usize, u64) {
    let within = (begin % item as u64) as usize;
    if within == 0 && len >= item {
        return (len / item * item, begin);
    }
    let len = len.min(item - within);
    (len, begin - within as u64 + (item - within - len) as u64)
}
