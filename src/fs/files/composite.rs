//! Open headers and containers: files composed of bytes and of the flat bytes of arrays. Reads and writes go part by
//! part. Requests for flat bytes work as those to `data.raw` do, with a conversion if the part has one. Bytes that
//! belong to no array cannot be changed, except the attributes in a header (`edit`).

mod edit;

use super::flat::FlatFile;
use super::{NewFile, OpenFile};
use crate::array::Array;
use crate::error::{Error, Kind, Result};
use crate::export::{Composite, FilePart, ItemForm, PartContent};
use crate::fs::tree::Node;
use crate::fs::write::{WriteMode, clipped};
use crate::fs::write_record::WriteRecord;
use crate::fs::{Fs, KernelPages};
use crate::store::Key;
use crate::util::memory::lock;
use edit::HeaderDraft;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// An open header or container.
pub struct CompositeFile {
    /// The file's inode number; 0 if the kernel does not know the file.
    inode: u64,
    writable: bool,
    record: WriteRecord,
    node: Node,
    /// The parts as they were when the file was opened.
    file: Arc<Composite>,
    /// The open flat bytes of each part that has some, opened at their first use: programs use few parts of a large
    /// group.
    flat: Vec<OnceLock<Box<FlatFile>>>,
    /// Whether the kernel keeps the bytes read, so that the cache need not.
    is_kept_elsewhere: bool,
    /// Whether a write across the end is short, as in `data.raw`. It is in files of one array, and for a writer with
    /// O_DIRECT, which can only write whole blocks. Any other write across the end of `dataset.nc` comes from a program
    /// that moves the arrays to make room for a longer header (netCDF-C begins at the end), and is refused as a whole.
    short_at_end: bool,
    /// The beginning of the text written in place of `data.vrt`.
    text: Mutex<Vec<u8>>,
    /// The header of a group's file with the writes to it; `None` before the first.
    edited: Mutex<Option<HeaderDraft>>,
    /// Whether a write was refused; then all later ones are. A program that makes room for a longer header (netCDF-C)
    /// moves the arrays' bytes, continues when that fails, and writes the header last.
    refused: AtomicBool,
}

/// The part of a request that lies in one part of the file.
struct Slice<'a> {
    /// The index of the part.
    number: usize,
    part: &'a FilePart,
    /// Offset of the slice in the part, in bytes.
    at: u64,
    /// Length in bytes.
    len: usize,
}

impl Fs {
    /// Opens a header or container. In a read-only mount the kernel keeps what it reads until the file is opened again;
    /// in other mounts each read must return writes through other files. `direct` is set if the program asked for
    /// O_DIRECT.
    pub(in crate::fs) fn open_composite(
        &self,
        inode: u64,
        node: &Node,
        for_writing: bool,
        direct: bool,
    ) -> Result<(CompositeFile, KernelPages)> {
        if let (Node::Header(key, format), true) = (node, for_writing)
            && format.holds_flat()
        {
            self.open_array(key)?.writable()?;
        }
        let file = self.tree.composite(node)?;
        // all readers of the file share the kernel's pages, which must not come from older checks of the store
        for part in file.parts() {
            if let PartContent::Flat { key, .. } = &part.content
                && let Some(array) = self.tree.hierarchy().cached_array(key)
            {
                array.freshness().begin_opening();
            }
        }
        let pages = if self.read_only && !self.direct_io { KernelPages::Fresh } else { KernelPages::Maps };
        let open = CompositeFile::new(node.clone(), file, pages == KernelPages::Fresh);
        let short_at_end = direct || open.short_at_end;
        Ok((CompositeFile { inode, writable: for_writing, short_at_end, ..open }, pages))
    }

    /// Opens a header or container for requests of the kernel.
    pub(in crate::fs) fn open_composite_file(
        &self,
        inode: u64,
        node: &Node,
        for_writing: bool,
        direct: bool,
    ) -> Result<NewFile> {
        let (file, pages) = self.open_composite(inode, node, for_writing, direct)?;
        Ok(NewFile::new(Arc::new(file), pages))
    }
}

impl CompositeFile {
    /// Creates an open file whose parts were not used yet.
    pub(in crate::fs) fn new(node: Node, file: Arc<Composite>, is_kept_elsewhere: bool) -> Self {
        let flat = file.parts().iter().map(|_| OnceLock::new()).collect();
        let short_at_end = !matches!(node, Node::Dataset(_));
        CompositeFile {
            inode: 0,
            writable: true,
            record: WriteRecord::default(),
            node,
            file,
            flat,
            is_kept_elsewhere,
            short_at_end,
            text: Mutex::default(),
            edited: Mutex::default(),
            refused: AtomicBool::new(false),
        }
    }

    /// Returns whether the file holds no flat bytes.
    pub(in crate::fs) fn is_text(&self) -> bool {
        !self.file.parts().iter().any(FilePart::is_flat)
    }

    /// Returns the arrays that were read or written through the file.
    fn arrays(&self) -> impl Iterator<Item = Arc<Array>> + '_ {
        self.flat.iter().filter_map(|cell| cell.get()).map(|flat| flat.array.known())
    }

    /// Stores all writes through the file.
    fn store(&self, fs: &Fs) -> Result<()> {
        let header = self.check_header(fs).and_then(|()| self.store_text(fs));
        let arrays = self.arrays().filter(|array| array.is_dirty());
        arrays.map(|array| fs.flush_array(&array)).fold(header, Result::and)
    }

    /// Calls `read` with the bytes of a slice: those of the written header in its place, otherwise those of `bytes`,
    /// the part's content.
    fn with_shown<T>(&self, slice: &Slice, bytes: &[u8], read: impl FnOnce(&[u8]) -> T) -> T {
        let edited = lock(&self.edited);
        let shown = edited.as_ref().filter(|_| slice.number == 0).map_or(bytes, |draft| &draft.shown);
        read(&shown[slice.at as usize..][..slice.len])
    }

    /// Returns whether the slice already shows `data`, or holds flat bytes.
    fn shows(&self, slice: &Slice, data: &[u8]) -> bool {
        match &slice.part.content {
            PartContent::Bytes(bytes) => self.with_shown(slice, bytes, |shown| shown == data),
            PartContent::Padding => data.iter().all(|byte| *byte == 0),
            PartContent::Bands(_) => false,
            PartContent::Flat { .. } => true,
        }
    }

    /// Splits a request at the boundaries of the parts, up to the end of the file.
    fn slices(&self, offset: u64, len: usize) -> impl Iterator<Item = Slice<'_>> {
        let end = offset.saturating_add(len as u64);
        let first = self.file.part_at(offset);
        let parts = self.file.parts().iter().enumerate().skip(first);
        parts.take_while(move |(_, part)| part.at < end && len > 0).map(move |(number, part)| {
            let at = offset.saturating_sub(part.at);
            Slice { number, part, at, len: (end.min(part.at + part.len) - part.at - at) as usize }
        })
    }

    /// Returns the open flat bytes of a part and their form; `None` for a part without flat bytes.
    ///
    /// # Errors
    ///
    /// ESTALE if the array has another shape or dtype than the file says. Without `may_wait`, this compares the array
    /// as it was last looked up.
    fn flat_of(&self, fs: &Fs, slice: &Slice, may_wait: bool) -> Result<Option<(&FlatFile, ItemForm)>> {
        let PartContent::Flat { key, form, .. } = &slice.part.content else { return Ok(None) };
        let Some(cell) = self.flat.get(slice.number) else { return Ok(None) };
        let flat = match cell.get() {
            Some(flat) => flat,
            None => {
                let array = fs.open_array(key)?;
                // this opening leaves the list of served versions to the next opening of `data.raw`
                array.freshness().begin_opening();
                cell.get_or_init(|| Box::new(FlatFile::part(array, self.is_kept_elsewhere)))
            }
        };
        let array = if may_wait { flat.array.latest(fs)? } else { flat.array.known() };
        match slice.part.is_of(array.metadata()) {
            true => Ok(Some((flat, *form))),
            false => Err(another_array().context(self.node.path())),
        }
    }

    /// Fails if a write would change anything but flat bytes and the attributes in the header of a group's file.
    ///
    /// # Errors
    ///
    /// EPERM, also after a write that was refused; EFBIG beyond the end.
    fn check_write(&self, fs: &Fs, offset: u64, data: &[u8]) -> Result<()> {
        if self.refused.load(Ordering::Relaxed) {
            return Err(Error::new(Kind::System(libc::EPERM), "an earlier write was refused; open the file again"));
        }
        if offset.saturating_add(data.len() as u64) > self.file.size() {
            return Err(Error::system(libc::EFBIG));
        }
        let (mut done, mut is_header_whole) = (0, self.is_header_whole());
        for slice in self.slices(offset, data.len()) {
            let part = &data[done..done + slice.len];
            match self.shows(&slice, part) {
                // an incomplete header does not say where the values lie
                true if slice.part.is_flat() && !is_header_whole => {
                    let why = "the header before these values is not whole";
                    return Err(Error::new(Kind::System(libc::EPERM), why));
                }
                true => {}
                false if slice.number == 0 => is_header_whole = self.edit_header(fs, slice.at, part)?.1.is_some(),
                false => {
                    let why = "these bytes describe the array and can't be changed here; change the array's metadata";
                    return Err(Error::new(Kind::System(libc::EPERM), why));
                }
            }
            done += slice.len;
        }
        Ok(())
    }

    /// Writes all of `data`, or less at the end of the file if a write across the end may be short. Outside the flat
    /// bytes, only attributes in a header can change; a write that changes anything else writes nothing. A file without
    /// flat bytes accepts everything, so that a directory can be copied over another; only attributes in `data.vrt`
    /// take effect.
    pub(in crate::fs) fn write_all(&self, fs: &Fs, offset: u64, data: &[u8], mode: WriteMode) -> Result<usize> {
        if self.is_text() {
            self.keep_text(offset, data);
            return Ok(data.len());
        }
        let data = match self.short_at_end {
            true => clipped(offset, data, self.file.size()).unwrap_or(data),
            false => data,
        };
        let in_file = |e: Error| e.context(self.node.path());
        if let Err(e) = self.check_write(fs, offset, data) {
            self.refused.store(true, Ordering::Relaxed);
            return Err(in_file(e));
        }
        let mut written = 0;
        for slice in self.slices(offset, data.len()) {
            let part = &data[written..written + slice.len];
            if let Some((flat, form)) = self.flat_of(fs, &slice, true)? {
                let array = flat.array.latest(fs)?;
                let losses = array.freshness().losses();
                let done = write_part(fs, flat, &slice, part, form, mode);
                fs.record_write(&self.record, &array, losses, mode);
                done.map_err(in_file)?;
            } else if slice.number == 0 && !self.shows(&slice, part) {
                self.write_header(fs, slice.at, part).map_err(in_file)?;
            }
            written += slice.len;
        }
        Ok(written)
    }
}

impl OpenFile for CompositeFile {
    fn inode(&self) -> u64 {
        self.inode
    }

    fn record_access(&self, fs: &Fs, offset: u64, len: usize) -> bool {
        let mut parts = self.slices(offset, len).filter(|slice| slice.part.is_flat());
        parts.all(|slice| {
            let flat = self.flat.get(slice.number).and_then(OnceLock::get);
            flat.is_some_and(|flat| flat.record_access(fs, slice.at, slice.len))
        })
    }

    fn read(&self, fs: &Fs, offset: u64, len: usize, may_wait: bool, out: &mut Vec<u8>) -> Result<bool> {
        out.clear();
        let mut piece = Vec::new();
        for slice in self.slices(offset, len) {
            let is_open = self.flat.get(slice.number).is_some_and(|cell| cell.get().is_some());
            if !may_wait && slice.part.is_flat() && !is_open {
                return Ok(false);
            }
            match (&slice.part.content, self.flat_of(fs, &slice, may_wait)?) {
                (PartContent::Bytes(bytes), _) => self.with_shown(&slice, bytes, |shown| out.extend_from_slice(shown)),
                (PartContent::Bands(bands), _) => {
                    out.extend_from_slice(&bands.text().as_bytes()[slice.at as usize..][..slice.len]);
                }
                // most requests lie in one part and need no second copy
                (_, Some((flat, ItemForm::AsStored))) if out.is_empty() => {
                    if !read_exact(fs, flat, slice.at, slice.len, may_wait, out)? {
                        return Ok(false);
                    }
                }
                (_, Some((flat, form))) => {
                    let (from, end) = whole_items(slice.at, slice.len, form.item());
                    if !read_exact(fs, flat, from, (end - from) as usize, may_wait, &mut piece)? {
                        return Ok(false);
                    }
                    form.show(&mut piece).map_err(|e| e.context(self.node.path()))?;
                    out.extend_from_slice(&piece[(slice.at - from) as usize..][..slice.len]);
                }
                (_, None) => out.resize(out.len() + slice.len, 0),
            }
        }
        Ok(true)
    }

    fn write(&self, fs: &Fs, offset: u64, data: &[u8], mode: WriteMode) -> Result<Option<usize>> {
        match mode.may_wait {
            true => self.write_all(fs, offset, data, WriteMode { inode: self.inode, ..mode }).map(Some),
            false => Ok(None),
        }
    }

    fn flush(&self, fs: &Fs) -> Result<()> {
        let stored = self.store(fs);
        let written = self.arrays().filter(|_| self.writable);
        let lost = written.map(|array| fs.with_losses(array.key(), Ok(()))).fold(Ok(()), Result::and);
        self.record.answer(lost.and(stored))
    }

    fn release(&self, fs: &Fs) {
        // errors of chunks that cannot be stored are on record
        let _ = self.store(fs);
    }

    fn release_may_block(&self) -> bool {
        self.arrays().any(|array| array.is_dirty())
    }

    fn written_arrays(&self) -> Vec<Key> {
        let key = |part: &FilePart| match &part.content {
            PartContent::Flat { key, .. } => Some(key.clone()),
            _ => None,
        };
        if self.writable { self.file.parts().iter().filter_map(key).collect() } else { Vec::new() }
    }

    fn write_record(&self) -> Option<&WriteRecord> {
        Some(&self.record)
    }
}

/// Reads exactly `len` flat bytes at `at`. Returns `false` if that would need the store or a wait and `may_wait` is not
/// set.
fn read_exact(fs: &Fs, flat: &FlatFile, at: u64, len: usize, may_wait: bool, out: &mut Vec<u8>) -> Result<bool> {
    let done = flat.read(fs, at, len, may_wait, out)?;
    match !done || out.len() == len {
        true => Ok(done),
        // the array has just shrunk
        false => Err(another_array()),
    }
}

fn write_part(fs: &Fs, flat: &FlatFile, slice: &Slice, data: &[u8], form: ItemForm, mode: WriteMode) -> Result<()> {
    flat.array.latest(fs)?.writable()?;
    match form {
        ItemForm::AsStored => write_stored(fs, flat, slice.part, slice.at, data, mode),
        ItemForm::Reversed(_) => write_reversed(fs, flat, slice, data, form.item(), mode),
        ItemForm::Doubles { .. } => write_doubles(fs, flat, slice, data, form, mode),
    }
}

/// Writes bytes of reversed items. Each shown byte is one stored byte, so nothing has to be read.
fn write_reversed(fs: &Fs, flat: &FlatFile, slice: &Slice, data: &[u8], item: usize, mode: WriteMode) -> Result<()> {
    let mut done = 0;
    while done < data.len() {
        let (len, at) = mirrored(slice.at + done as u64, data.len() - done, item);
        let mut bytes = data[done..done + len].to_vec();
        bytes.chunks_mut(item.min(len)).for_each(<[u8]>::reverse);
        write_stored(fs, flat, slice.part, at, &bytes, mode)?;
        done += len;
    }
    Ok(())
}

/// Writes bytes of doubles that stand for integers. The other bytes of the first and of the last item stay.
fn write_doubles(fs: &Fs, flat: &FlatFile, slice: &Slice, data: &[u8], form: ItemForm, mode: WriteMode) -> Result<()> {
    let (at, size) = (slice.at, form.item());
    let (from, end) = whole_items(at, data.len(), size);
    // two writers of one item must not undo each other's bytes
    let array = flat.array.key();
    let _alone = fs.converting.exclusive(&[&array]);
    let (mut items, mut edge) = (vec![0; (end - from) as usize], Vec::new());
    for item in [from, end.saturating_sub(size as u64).max(from)] {
        let covered = item >= at && item + size as u64 <= at + data.len() as u64;
        if !covered {
            read_exact(fs, flat, item, size, true, &mut edge)?;
            form.show(&mut edge)?;
            items[(item - from) as usize..][..size].copy_from_slice(&edge);
        }
    }
    items[(at - from) as usize..][..data.len()].copy_from_slice(data);
    form.store(&mut items)?;
    write_stored(fs, flat, slice.part, from, &items, mode)
}

/// Writes `data` at the flat position `at`, without conversion.
///
/// # Errors
///
/// ESTALE if the array has another shape or dtype than the file says.
fn write_stored(fs: &Fs, flat: &FlatFile, part: &FilePart, at: u64, data: &[u8], mode: WriteMode) -> Result<()> {
    let write = |array: &Arc<Array>| {
        if !part.is_of(array.metadata()) {
            return Err(another_array());
        }
        fs.resizing.written_to(array.key(), at + data.len() as u64);
        fs.write_flat(array, at, data, mode).map(drop)
    };
    flat.array.write_latest(fs, true, write).map(drop)
}

fn another_array() -> Error {
    let why = "the array's shape or dtype has changed since the file was opened; open it again";
    Error::new(Kind::System(libc::ESTALE), why)
}

/// Returns how many of `len` bytes at `begin` can be written together, and their flat position, if items of `item`
/// bytes are shown reversed: whole items, or a part of one.
fn mirrored(begin: u64, len: usize, item: usize) -> (usize, u64) {
    let within = (begin % item as u64) as usize;
    if within == 0 && len >= item {
        return (len / item * item, begin);
    }
    let len = len.min(item - within);
    (len, begin - within as u64 + (item - within - len) as u64)
}

/// Returns the range of whole items of `size` bytes around `len` bytes at `at`.
fn whole_items(at: u64, len: usize, size: usize) -> (u64, u64) {
    let size = size as u64;
    (at / size * size, (at + len as u64).next_multiple_of(size))
}
