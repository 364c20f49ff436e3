//! The items of a data set of HDF5, box by box. Memory is bounded by the size of a box and of a
//! chunk in the file. This module must not know names, attributes or types but the size of an item.

use super::bounded::{BoundedFile, ReadBounds};
use super::types::{ItemChange, SetItem, without_padding};
use crate::FilePlace;
use hdf5_reader::error::{Error as LibraryError, Result as LibraryResult};
use hdf5_reader::{Dataset, Datatype, H5Type, SliceInfo, SliceInfoElem};
use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use zarrfs_base::error::{Error, Result};
use zarrfs_base::memory::lock;

/// Maximum number of chunks of the file from which one read takes items. The library keeps some
/// 100 bytes for each chunk.
const MAX_CHUNKS: u64 = 1 << 14;

/// Number of places of chunks, and of bytes of strings, after which the file is opened anew, which
/// frees what the library keeps.
const MAX_PLACES: u64 = 1 << 17;
const MAX_STRINGS_KEPT: usize = 8 << 20;

/// Maximum number of bytes of a heap of strings, and of the strings of a chunk.
const MAX_HEAP: usize = 16 << 20;

/// Maximum size in bytes of decoded chunks that are kept, for boxes that share chunks.
const MAX_SHARED: usize = 32 << 20;

/// Number of bytes of headers and indexes that a read may take beside chunks and boxes.
const HEADERS: usize = 2 << 20;

/// Number of data sets after which the file is opened anew.
const MAX_SETS: usize = 256;

/// The file of all data sets, which is opened when one of them is read.
pub struct SharedFile {
    file: Arc<File>,
    len: u64,
    /// The size of the largest chunk of the file in bytes.
    chunk: usize,
    /// The file, and the number of data sets that were opened in it.
    opened: Mutex<Option<(Arc<OpenedHdf5>, usize)>>,
}

/// A file that is open, and the number of places of chunks that the library may keep of it.
struct OpenedHdf5 {
    file: BoundedFile,
    places: AtomicU64,
}

/// The items of a data set.
pub struct Hdf5Values {
    shared: Arc<SharedFile>,
    /// The path of the data set in the file.
    path: String,
    shape: Vec<u64>,
    /// The shape of the chunks in the file, if it has chunks.
    chunks: Option<Vec<u64>>,
    /// The size of an item in the file in bytes; 0 for a reference to a string.
    item: usize,
    change: ItemChange,
    opened: Mutex<Option<OpenedSet>>,
}

/// A data set that is open.
#[derive(Clone)]
struct OpenedSet {
    file: Arc<OpenedHdf5>,
    set: Arc<Dataset>,
}

impl std::fmt::Debug for Hdf5Values {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Hdf5Values").field(&self.path).finish()
    }
}

impl SharedFile {
    /// Describes a file of `len` bytes with chunks of at most `chunk` bytes.
    pub fn new(file: Arc<File>, len: u64, chunk: usize) -> Self {
        SharedFile {
            file,
            len,
            chunk,
            opened: Mutex::default(),
        }
    }

    /// Returns the maximum size in bytes of the decoded chunks that the library keeps.
    fn kept(&self) -> usize {
        self.chunk.saturating_mul(2).min(MAX_SHARED)
    }

    /// Returns the open file, or opens it anew instead of `full`.
    fn open(&self, full: Option<&OpenedSet>) -> Result<Arc<OpenedHdf5>> {
        let mut opened = lock(&self.opened);
        if let Some((file, sets)) = &mut *opened
            && *sets < MAX_SETS
            && full.is_none_or(|full| !Arc::ptr_eq(&full.file, file))
        {
            *sets += 1;
            return Ok(file.clone());
        }
        let bounds = ReadBounds::Values {
            chunk: self.chunk,
            kept: self.kept(),
        };
        let file = Arc::new(OpenedHdf5 {
            file: BoundedFile::open(&self.file, self.len, bounds)?,
            places: AtomicU64::new(0),
        });
        *opened = Some((file.clone(), 1));
        Ok(file)
    }
}

/// Returns the size of a decoded chunk of the file in bytes; 0 without chunks.
pub fn chunk_size(chunks: Option<&Vec<u64>>, item: usize) -> usize {
    let item = if item == 0 { 16 } else { item };
    chunks.map_or(0, |chunks| {
        chunks
            .iter()
            .fold(item, |size, len| size.saturating_mul(*len as usize))
    })
}

/// An item of `N` bytes, as the file has it.
#[derive(Clone)]
struct RawItem<const N: usize>([u8; N]);

impl<const N: usize> H5Type for RawItem<N> {
    fn hdf5_type() -> Datatype {
        Datatype::Opaque {
            size: N as u32,
            tag: String::new(),
        }
    }

    fn from_bytes(bytes: &[u8], _: &Datatype) -> LibraryResult<Self> {
        let wrong = || LibraryError::InvalidData(format!("an item of {} bytes", bytes.len()));
        bytes.try_into().map(RawItem).map_err(|_| wrong())
    }

    fn element_size(_: &Datatype) -> usize {
        N
    }

    fn native_copy_compatible(_: &Datatype) -> bool {
        true
    }
}

/// An item of any size, as the file has it.
#[derive(Clone)]
struct LongItem(Box<[u8]>);

impl H5Type for LongItem {
    fn hdf5_type() -> Datatype {
        RawItem::<1>::hdf5_type()
    }

    fn from_bytes(bytes: &[u8], _: &Datatype) -> LibraryResult<Self> {
        Ok(LongItem(bytes.into()))
    }

    fn element_size(dtype: &Datatype) -> usize {
        hdf5_reader::dtype_element_size(dtype).unwrap_or(0)
    }
}

impl Hdf5Values {
    /// Describes the items of the data set at a path of a file.
    pub fn new(
        shared: Arc<SharedFile>,
        path: String,
        shape: Vec<u64>,
        chunks: Option<Vec<u64>>,
        item: &SetItem,
    ) -> Self {
        Hdf5Values {
            shared,
            path,
            shape,
            chunks,
            item: item.size,
            change: item.change,
            opened: Mutex::default(),
        }
    }

    /// Returns the memory in bytes that reading a box of `size` bytes takes beside the box: an
    /// encoded chunk, its decoded forms, and the box in the order of the file.
    pub fn memory(&self, size: usize) -> usize {
        let copies = match self.item {
            // strings, and the heaps that they lie in
            0 => size.saturating_mul(3).saturating_add(3 * MAX_HEAP),
            1 | 2 | 4 | 8 | 16 => size.saturating_mul(2),
            // an allocation for each item
            item => (size / item).saturating_mul(2 * item + 64),
        };
        copies
            .saturating_add(self.chunk_size().saturating_mul(4))
            .saturating_add(self.shared.kept())
            .saturating_add(HEADERS)
    }

    fn chunk_size(&self) -> usize {
        chunk_size(self.chunks.as_ref(), self.item)
    }

    /// Reads a box: see [`ItemSource::read_box`](crate::ItemSource::read_box).
    ///
    /// # Errors
    ///
    /// The file is damaged, or cannot be read.
    pub fn read_box(
        &self,
        start: &[u64],
        counts: &[u64],
        lengths: &[u64],
        out: &mut Vec<u8>,
    ) -> Result<()> {
        if let ItemChange::String(padding) = self.change {
            return self.read_strings(padding, start, counts, lengths, out);
        }
        if counts.contains(&0) {
            return Ok(());
        }
        let mut compact = self.read_items(start, counts, self.item, out.len())?;
        for item in compact.chunks_exact_mut(self.item) {
            match self.change {
                ItemChange::Reversed(part) => {
                    item.chunks_exact_mut(part).for_each(<[u8]>::reverse);
                }
                ItemChange::Padding(padding) => {
                    let end = without_padding(item, padding).len();
                    item[end..].fill(0);
                }
                ItemChange::Nothing | ItemChange::String(_) => {}
            }
        }
        if counts == lengths {
            out.copy_from_slice(&compact);
            return Ok(());
        }
        let order: Vec<usize> = (0..counts.len()).collect();
        let place = FilePlace::dense(0, counts, self.item, false);
        place.scatter(&compact, counts, &order, lengths, out);
        Ok(())
    }

    /// Reads a box of items in C order, in parts that take items from few chunks of the file.
    fn read_items(
        &self,
        start: &[u64],
        counts: &[u64],
        item: usize,
        largest: usize,
    ) -> Result<Vec<u8>> {
        let mut touched: Vec<u64> = Vec::with_capacity(counts.len());
        for (n, count) in counts.iter().enumerate() {
            let len = self
                .chunks
                .as_ref()
                .map_or(u64::MAX, |chunks| chunks[n].max(1));
            touched.push((start[n] + count - 1) / len - start[n] / len + 1);
        }
        let number = touched.iter().fold(1, |n: u64, len| n.saturating_mul(*len));
        let widest = (0..counts.len()).find(|n| counts[*n] > 1);
        let Some(split) = widest.filter(|_| number > MAX_CHUNKS) else {
            return self.read_slice(start, counts, item, largest, number);
        };
        // halves along the slowest dimension follow each other
        let mut first = counts.to_vec();
        first[split] = counts[split].div_ceil(2);
        let mut second = counts.to_vec();
        second[split] -= first[split];
        let mut second_start = start.to_vec();
        second_start[split] += first[split];
        let mut bytes = self.read_items(start, &first, item, largest)?;
        bytes.extend(self.read_items(&second_start, &second, item, largest)?);
        Ok(bytes)
    }

    fn read_slice(
        &self,
        start: &[u64],
        counts: &[u64],
        item: usize,
        largest: usize,
        places: u64,
    ) -> Result<Vec<u8>> {
        let opened = self.opened(largest, places)?;
        let selections = start
            .iter()
            .zip(counts)
            .map(|(start, count)| SliceInfoElem::Slice {
                start: *start,
                end: start + count,
                step: 1,
            });
        let slice = SliceInfo {
            selections: selections.collect(),
        };
        let bytes = opened.file.file.call(|_| match item {
            1 => raw::<1>(&opened.set, &slice),
            2 => raw::<2>(&opened.set, &slice),
            4 => raw::<4>(&opened.set, &slice),
            8 => raw::<8>(&opened.set, &slice),
            12 => raw::<12>(&opened.set, &slice),
            16 => raw::<16>(&opened.set, &slice),
            _ => {
                let items = opened.set.read_slice::<LongItem>(&slice)?;
                let mut bytes = Vec::with_capacity(items.len() * item);
                items
                    .iter()
                    .for_each(|item| bytes.extend_from_slice(&item.0));
                Ok(bytes)
            }
        })?;
        let count: u64 = counts.iter().product();
        if bytes.len() as u64 != count * item as u64 {
            return Err(Error::invalid("HDF5: a slice of another size"));
        }
        Ok(bytes)
    }

    /// Returns the data set, opened anew if the library may keep much of the file. The caller reads
    /// at most `largest` bytes, from so many chunks.
    fn opened(&self, largest: usize, places: u64) -> Result<OpenedSet> {
        let largest = match self.item {
            0 => MAX_HEAP,
            _ => largest,
        };
        let chunk = self.chunk_size().saturating_mul(2);
        let largest = largest.saturating_add(chunk).saturating_add(HEADERS);
        let mut kept = lock(&self.opened);
        if let Some(opened) = &*kept {
            let file = &opened.file;
            let holds_strings = self.item == 0 && file.file.read() > MAX_STRINGS_KEPT;
            let before = file.places.fetch_add(places, Ordering::Relaxed);
            if before.saturating_add(places) <= MAX_PLACES && !holds_strings {
                file.file.admit(largest);
                return Ok(opened.clone());
            }
        }
        let file = self.shared.open(kept.as_ref())?;
        *kept = None;
        file.places.fetch_add(places, Ordering::Relaxed);
        file.file.admit(largest);
        let set = file
            .file
            .call(|file| file.dataset(&self.path)?.with_padded_shape(&self.shape))?;
        let opened = OpenedSet {
            file,
            set: Arc::new(set),
        };
        *kept = Some(opened.clone());
        Ok(opened)
    }

    /// Reads strings of any length as `vlen-utf8` has them: their number, and the length and the
    /// bytes of each.
    fn read_strings(
        &self,
        padding: hdf5_reader::StringPadding,
        start: &[u64],
        counts: &[u64],
        lengths: &[u64],
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let total: u64 = lengths.iter().product();
        out.clear();
        out.extend((total as u32).to_le_bytes());
        let reference = self.opened(0, 0)?.set.vlen_reference_size();
        let found: u64 = counts.iter().product();
        let references = match found {
            0 => Vec::new(),
            _ => self.read_items(start, counts, reference, 0)?,
        };
        let mut references = references.chunks_exact(reference);
        let mut indices = vec![0; lengths.len()];
        for _ in 0..total {
            let is_inside = indices
                .iter()
                .zip(counts)
                .all(|(index, count)| index < count);
            let reference = if is_inside { references.next() } else { None };
            let string = match reference {
                Some(reference) => self.string(reference, padding)?,
                None => Vec::new(),
            };
            if out.len() + string.len() > MAX_HEAP {
                let why = "the strings of a chunk take more than 16 MiB; give shorter --chunks";
                return Err(Error::invalid(why));
            }
            out.extend((string.len() as u32).to_le_bytes());
            out.extend(string);
            crate::place::advance(&mut indices, lengths.iter().copied());
        }
        Ok(())
    }

    /// Returns the string to which a reference of the data set refers.
    fn string(&self, reference: &[u8], padding: hdf5_reader::StringPadding) -> Result<Vec<u8>> {
        if reference.starts_with(&[0; 4]) {
            return Ok(Vec::new());
        }
        let opened = self.opened(0, 0)?;
        let set = &opened.set;
        let bytes = opened
            .file
            .file
            .call(|_| set.resolve_vlen_reference_bytes(reference, 1))?;
        let string = without_padding(&bytes, padding);
        // a text that is not UTF-8 is Latin-1, as in attributes
        Ok(crate::classic::utf8(string).into_bytes())
    }
}

/// Reads a slice of items of `N` bytes.
fn raw<const N: usize>(set: &Dataset, slice: &SliceInfo) -> LibraryResult<Vec<u8>> {
    let items = set.read_slice::<RawItem<N>>(slice)?;
    let mut bytes = Vec::with_capacity(items.len() * N);
    items
        .iter()
        .for_each(|item| bytes.extend_from_slice(&item.0));
    Ok(bytes)
}
