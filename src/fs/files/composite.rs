//! Open headers and containers: files composed of bytes and of the flat bytes of arrays. Reads and writes go part by
//! part; requests for flat bytes work as through `data.raw`, with a conversion if the part has one. Bytes that belong
//! to no array cannot be changed, except the attributes in a header (`edit`).

mod edit;

use super::flat::FlatFile;
use super::items::{another_array, packed, whole_items};
use super::{NewFile, OpenFile};
use crate::array::Array;
use crate::error::{Error, Kind, Result};
use crate::export::{Composite, FilePart, ItemForm, PartContent};
use crate::fs::tree::{Node, ViewedFile};
use crate::fs::write::{WriteMode, clipped};
use crate::fs::write_record::WriteRecord;
use crate::fs::{Fs, KernelPages};
use crate::store::Key;
use crate::util::memory::lock;
use edit::HeaderDraft;
use std::ops::Range;
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
    /// The open flat bytes of each part that has some, opened at the first use: only a few parts of a large group are
    /// ever used.
    flat: Vec<OnceLock<Box<FlatFile>>>,
    /// Whether the kernel keeps what is read, so that the cache need not.
    is_kept_elsewhere: bool,
    /// Whether a write across the end is short, as that of `data.raw` is: in files of one array, and for a writer with
    /// O_DIRECT, which can only write whole blocks. Any other write across the end of `dataset.nc` comes from a program
    /// that moves the arrays to make room for a longer header (netCDF-C begins at the end), and is refused as a whole.
    short_at_end: bool,
    /// The beginning of what was written in place of `data.vrt`.
    text: Mutex<Vec<u8>>,
    /// The header of a group's file, as it was written.
    edited: Mutex<Option<HeaderDraft>>,
    /// Whether a write was refused. A program that makes room for a longer header moves the arrays' bytes, continues
    /// when that fails, and writes the header last (netCDF-C does so): from then on every write is refused.
    refused: AtomicBool,
}

/// The open flat bytes of a part.
struct FlatPart<'a> {
    flat: &'a FlatFile,
    /// Where the part begins among them.
    start: u64,
    form: ItemForm,
}

/// The part of a request that lies in one part of the file.
struct Slice<'a> {
    /// The index of the part.
    number: usize,
    part: &'a FilePart,
    /// Where the slice begins in the part, and its length, in bytes.
    at: u64,
    len: usize,
}

impl Fs {
    /// Opens a header or container. In a read-only mount the kernel keeps what it reads until the file is opened again;
    /// in others each read must see what was written through other files. `direct` says whether the program asked for
    /// O_DIRECT.
    pub(in crate::fs) fn open_composite(
        &self,
        inode: u64,
        node: &Node,
        for_writing: bool,
        direct: bool,
    ) -> Result<(CompositeFile, KernelPages)> {
        if let (Node::Header(key, format) | Node::ViewFile(key, _, ViewedFile::Header(format)), true) =
            (node, for_writing)
            && format.holds_flat()
        {
            self.open_array(key)?.writable()?;
        }
        let file = self.tree.composite(node)?;
        // the kernel keeps pages for all that have the file open, and they must not come from older checks of the store
        for part in file.parts() {
            if let PartContent::Flat { key, .. } = &part.content
                && let Some(array) = self.tree.hierarchy().cached_array(key)
            {
                array.freshness().begin_opening();
            }
        }
        let takes_whole_items =
            |part: &FilePart| matches!(&part.content, PartContent::Flat { form, .. } if form.takes_whole_items());
        let pages = match self.read_only && !self.direct_io {
            true => KernelPages::Fresh,
            // pages of a writable map could not be written
            false if for_writing && file.parts().iter().any(takes_whole_items) => KernelPages::None,
            false => KernelPages::Maps,
        };
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

    /// Stores what was written through the file.
    fn store(&self, fs: &Fs) -> Result<()> {
        let header = self.check_header(fs).and_then(|()| self.store_text(fs));
        let arrays = self.arrays().filter(|array| array.is_dirty());
        arrays.map(|array| fs.flush_array(&array)).fold(header, Result::and)
    }

    /// Calls `read` with bytes of a part, as written in place of a header.
    fn with_shown<T>(&self, slice: &Slice, bytes: &[u8], read: impl FnOnce(&[u8]) -> T) -> T {
        let edited = lock(&self.edited);
        let shown = edited.as_ref().filter(|_| slice.number == 0).map_or(bytes, |draft| &draft.shown);
        read(&shown[slice.at as usize..][..slice.len])
    }

    /// Returns whether the file shows `data` already, or has flat bytes there.
    fn shows(&self, slice: &Slice, data: &[u8]) -> bool {
        match &slice.part.content {
            PartContent::Bytes(bytes) => self.with_shown(slice, bytes, |shown| shown == data),
            PartContent::Padding => data.iter().all(|byte| *byte == 0),
            PartContent::Bands(_) => false,
            PartContent::Flat { .. } => true,
        }
    }

    /// Cuts a request at the borders of the parts. The slices end with the file.
    fn slices(&self, offset: u64, len: usize) -> impl Iterator<Item = Slice<'_>> {
        let end = offset.saturating_add(len as u64);
        let first = self.file.part_at(offset);
        let parts = self.file.parts().iter().enumerate().skip(first);
        parts.take_while(move |(_, part)| part.at < end && len > 0).map(move |(number, part)| {
            let at = offset.saturating_sub(part.at);
            Slice { number, part, at, len: (end.min(part.at + part.len) - part.at - at) as usize }
        })
    }

    /// Returns the open flat bytes of a part and how they are shown; `None` for a part without flat bytes.
    ///
    /// # Errors
    ///
    /// ESTALE if the array has another shape or dtype than the file says. Without `may_wait`, the array is taken as it
    /// was last looked up.
    fn flat_of(&self, fs: &Fs, slice: &Slice, may_wait: bool) -> Result<Option<FlatPart<'_>>> {
        let PartContent::Flat { key, start, form, .. } = &slice.part.content else { return Ok(None) };
        let Some(cell) = self.flat.get(slice.number) else { return Ok(None) };
        let flat = match cell.get() {
            Some(flat) => flat,
            None => {
                let array = fs.open_array(key)?;
                // only the next opening of `data.raw` may take the list of what has changed in the store
                array.freshness().begin_opening();
                cell.get_or_init(|| Box::new(FlatFile::part(array, self.is_kept_elsewhere)))
            }
        };
        let array = if may_wait { flat.array.latest(fs)? } else { flat.array.known() };
        match slice.part.is_of(array.metadata()) {
            true => Ok(Some(FlatPart { flat, start: *start, form: form.clone() })),
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
                // the header says where the values lie
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

    /// Writes all of `data`, or less at the end of the file if a write across the end may be short. Bytes outside the
    /// flat bytes can only be overwritten with the same bytes; otherwise nothing is written. A header of nothing but
    /// text accepts everything and stays as it is, so that a directory can be copied over another.
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
            if let Some(of_array) = self.flat_of(fs, &slice, true)? {
                let array = of_array.flat.array.latest(fs)?;
                let losses = array.freshness().losses();
                let done = write_part(fs, &of_array, &slice, part, mode);
                fs.record_write(&self.record, &array, losses, mode);
                let done = done.map_err(in_file)?;
                if done < part.len() {
                    return Ok(written + done);
                }
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
            let PartContent::Flat { start, form, .. } = &slice.part.content else { return true };
            let stored = form.stored(whole_items(slice.at, slice.len, form.item()));
            flat.is_some_and(|flat| flat.record_access(fs, start + stored.start, (stored.end - stored.start) as usize))
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
                // most requests lie in one part and need no copy
                (_, Some(FlatPart { flat, start, form: ItemForm::AsStored })) if out.is_empty() => {
                    if !read_exact(fs, flat, start + slice.at, slice.len, may_wait, out)? {
                        return Ok(false);
                    }
                }
                (_, Some(FlatPart { flat, start, form })) => {
                    let shown = whole_items(slice.at, slice.len, form.item());
                    let stored = form.stored(shown.clone());
                    let len = (stored.end - stored.start) as usize;
                    if !read_exact(fs, flat, start + stored.start, len, may_wait, &mut piece)? {
                        return Ok(false);
                    }
                    form.show(&mut piece).map_err(|e| e.context(self.node.path()))?;
                    out.extend_from_slice(&piece[(slice.at - shown.start) as usize..][..slice.len]);
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
        // what cannot be stored is on record
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

/// Reads exactly `len` flat bytes.
fn read_exact(fs: &Fs, flat: &FlatFile, at: u64, len: usize, may_wait: bool, out: &mut Vec<u8>) -> Result<bool> {
    let done = flat.read(fs, at, len, may_wait, out)?;
    match !done || out.len() == len {
        true => Ok(done),
        // the array has shrunk a moment ago
        false => Err(another_array()),
    }
}

/// Writes bytes of a part. Returns how many: all of them, unless a part of an item is left.
fn write_part(fs: &Fs, part: &FlatPart, slice: &Slice, data: &[u8], mode: WriteMode) -> Result<usize> {
    part.flat.array.latest(fs)?.writable()?;
    match part.form {
        ItemForm::AsStored => write_stored(fs, part.flat, slice.part, part.start + slice.at, data, mode)?,
        ItemForm::Reversed(item) => write_reversed(fs, part, slice, data, item.max(1), mode)?,
        ItemForm::Doubles { .. } => write_doubles(fs, part, slice, data, mode)?,
        ItemForm::Unpacked(_) => {
            let (len, items) = packed(&part.form, slice.at, data, mode)?;
            let at = part.start + part.form.stored(slice.at..slice.at).start;
            write_stored(fs, part.flat, slice.part, at, &items, mode)?;
            return Ok(len);
        }
    }
    Ok(data.len())
}

/// Writes bytes of reversed items. Every byte of an item is one byte of the stored item, so that nothing has to be
/// read.
fn write_reversed(fs: &Fs, part: &FlatPart, slice: &Slice, data: &[u8], item: usize, mode: WriteMode) -> Result<()> {
    let mut done = 0;
    while done < data.len() {
        let (len, at) = mirrored(slice.at + done as u64, data.len() - done, item);
        let mut bytes = data[done..done + len].to_vec();
        bytes.chunks_mut(item.min(len)).for_each(<[u8]>::reverse);
        write_stored(fs, part.flat, slice.part, part.start + at, &bytes, mode)?;
        done += len;
    }
    Ok(())
}

/// Writes bytes of doubles that stand for integers. The rest of the first and of the last item stays.
fn write_doubles(fs: &Fs, part: &FlatPart, slice: &Slice, data: &[u8], mode: WriteMode) -> Result<()> {
    let (at, form, size) = (slice.at, &part.form, part.form.item());
    let Range { start: from, end } = whole_items(at, data.len(), size);
    // two writers of one item must not undo each other's bytes
    let array = part.flat.array.key();
    let _alone = fs.converting.exclusive(&[&array]);
    let (mut items, mut edge) = (vec![0; (end - from) as usize], Vec::new());
    for item in [from, end.saturating_sub(size as u64).max(from)] {
        let covered = item >= at && item + size as u64 <= at + data.len() as u64;
        if !covered {
            read_exact(fs, part.flat, part.start + item, size, true, &mut edge)?;
            form.show(&mut edge)?;
            items[(item - from) as usize..][..size].copy_from_slice(&edge);
        }
    }
    items[(at - from) as usize..][..data.len()].copy_from_slice(data);
    form.store(&mut items)?;
    write_stored(fs, part.flat, slice.part, part.start + from, &items, mode)
}

/// Writes flat bytes as they are stored, all of them.
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

/// Returns how many of `len` bytes at `begin` can be written together in a file whose items of `item` bytes are
/// reversed, and where: whole items, or a part of one.
fn mirrored(begin: u64, len: usize, item: usize) -> (usize, u64) {
    let within = (begin % item as u64) as usize;
    if within == 0 && len >= item {
        return (len / item * item, begin);
    }
    let len = len.min(item - within);
    (len, begin - within as u64 + (item - within - len) as u64)
}
