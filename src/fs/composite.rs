//! Open files that are put together from bytes and flat bytes: headers and containers. Reads and writes go part by part;
//! those of flat bytes as through `data.raw`, with items in another form where the part says so. What is no array's
//! can't be changed.

use super::write::{WriteMode, clipped};
use super::{CurrentArray, Dropping, FlatFile, Fs, KernelPages, PrefetchState, StoredChunks, WriteRecord};
use crate::array::Array;
use crate::error::{Error, Kind, Result};
use crate::export::{Composite, FilePart, ItemForm, PartContent};
use crate::fs::tree::Node;
use crate::store::Key;
use crate::util::memory::lock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// The header of an open file that was written to.
pub(super) struct HeaderDraft {
    /// As it was written, and the room behind it.
    pub shown: Vec<u8>,
    /// As the attributes were when they were stored last.
    pub stored: Vec<u8>,
}

/// An open header or container.
pub struct CompositeFile {
    /// The file's inode number.
    pub inode: u64,
    /// Whether it was opened for writing, and what was written.
    pub writable: bool,
    pub record: WriteRecord,
    pub(super) node: Node,
    /// As it was when it was opened.
    pub(super) file: Arc<Composite>,
    /// The open flat bytes of each part that has some, from the first time that they are asked for; of a large group only
    /// a few are.
    flat: Vec<OnceLock<Box<FlatFile>>>,
    /// Somebody else keeps what is read.
    once: bool,
    /// Whether a write across the end is short, as that of `data.raw` is. It is in files of one array, and for a writer
    /// with O_DIRECT, who can only write whole blocks. Another write across the end of `dataset.nc` comes from a program
    /// that moves the arrays to make room for a longer header (netCDF-C begins at the end): none of it may be written.
    short_at_end: bool,
    /// The beginning of what was written in place of `data.vrt`.
    pub(super) text: Mutex<Vec<u8>>,
    /// The header as it was written, of a group's file.
    pub(super) edited: Mutex<Option<HeaderDraft>>,
    /// A write was refused. Who makes room for a longer header moves the arrays' bytes, goes on when that fails, and
    /// writes the header last (netCDF-C does so): the other bytes must stay where they are.
    refused: AtomicBool,
}

/// A part of a request that lies in one part of the file.
struct Slice<'a> {
    number: usize,
    part: &'a FilePart,
    /// Where in the part it begins, and its bytes.
    at: u64,
    len: usize,
}

impl Fs {
    /// Opens a header or container. Where nothing can be written the kernel keeps what it is given until it is opened
    /// again; else each read must see what was written through other files.
    /// `direct` says that the opening asked for O_DIRECT.
    pub(super) fn open_composite(
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
        // what the kernel keeps for all who have the file open must not come from what was learnt before
        for part in file.parts() {
            if let PartContent::Flat { key, .. } = &part.content
                && let Some(array) = self.tree.hierarchy().cached_array(key)
            {
                array.begin_epoch();
            }
        }
        let pages = if self.read_only && !self.direct_io { KernelPages::Fresh } else { KernelPages::Maps };
        let open = CompositeFile::new(node.clone(), file, pages == KernelPages::Fresh);
        let short_at_end = direct || open.short_at_end;
        Ok((CompositeFile { inode, writable: for_writing, short_at_end, ..open }, pages))
    }

    /// The open flat bytes of a part of a file; None of a part that has none. With `cached`, the array is taken as it was
    /// last looked up.
    fn flat_of<'a>(
        &self,
        open: &'a CompositeFile,
        slice: &Slice,
        cached: bool,
    ) -> Result<Option<(&'a FlatFile, ItemForm)>> {
        let PartContent::Flat { key, form, .. } = &slice.part.content else { return Ok(None) };
        let Some(cell) = open.flat.get(slice.number) else { return Ok(None) };
        let flat = match cell.get() {
            Some(flat) => flat,
            None => {
                let flat = self.open_part(key, open.once)?;
                cell.get_or_init(|| Box::new(flat))
            }
        };
        let array = if cached { lock(&flat.array.0).clone() } else { self.current(&flat.array)? };
        match slice.part.is_of(array.metadata()) {
            true => Ok(Some((flat, *form))),
            false => Err(another_array().context(open.node.path())),
        }
    }

    fn open_part(&self, key: &Key, once: bool) -> Result<FlatFile> {
        let array = self.open_array(key)?;
        // what changed in the store meanwhile is told to who opens `data.raw`, and to nobody before
        array.begin_epoch();
        Ok(FlatFile {
            inode: 0,
            array: CurrentArray(Mutex::new(array)),
            record: WriteRecord::default(),
            writable: false,
            stored: StoredChunks::default(),
            readers: PrefetchState::default(),
            dropping: Dropping::new(0, KernelPages::None),
            once,
        })
    }

    /// Reads as [`Fs::read_cached`] does with `cached`, else as [`Fs::read`].
    pub(super) fn read_composite(
        &self,
        open: &CompositeFile,
        offset: u64,
        len: usize,
        cached: bool,
        out: &mut Vec<u8>,
    ) -> Result<bool> {
        out.clear();
        let mut piece = Vec::new();
        for slice in open.slices(offset, len) {
            let opened =
                |part: &FilePart| open.flat.get(slice.number).is_some_and(|f| f.get().is_some()) || !part.is_flat();
            if cached && !opened(slice.part) {
                return Ok(false);
            }
            match (&slice.part.content, self.flat_of(open, &slice, cached)?) {
                (PartContent::Bytes(bytes), _) => {
                    let edited = lock(&open.edited);
                    let shown = edited.as_ref().filter(|_| slice.number == 0).map_or(&bytes[..], |draft| &draft.shown);
                    out.extend_from_slice(&shown[slice.at as usize..][..slice.len]);
                }
                (PartContent::Bands(bands), _) => {
                    out.extend_from_slice(&bands.text().as_bytes()[slice.at as usize..][..slice.len]);
                }
                // most requests lie in one part: they need no copy
                (_, Some((flat, ItemForm::AsStored))) if out.is_empty() => {
                    if !self.read_part(flat, slice.at, slice.len, cached, out)? {
                        return Ok(false);
                    }
                }
                (_, Some((flat, form))) => {
                    let (from, end) = around(slice.at, slice.len, form.item());
                    if !self.read_part(flat, from, (end - from) as usize, cached, &mut piece)? {
                        return Ok(false);
                    }
                    form.show(&mut piece).map_err(|e| e.context(open.node.path()))?;
                    out.extend_from_slice(&piece[(slice.at - from) as usize..][..slice.len]);
                }
                (_, None) => out.resize(out.len() + slice.len, 0),
            }
        }
        Ok(true)
    }

    /// Reads exactly `len` flat bytes.
    fn read_part(&self, flat: &FlatFile, at: u64, len: usize, cached: bool, out: &mut Vec<u8>) -> Result<bool> {
        let done = self.read_flat(flat, at, len, cached, out)?;
        match !done || out.len() == len {
            true => Ok(done),
            // it has shrunk this moment
            false => Err(another_array()),
        }
    }

    /// Notes the parts of a request that are flat bytes, to read ahead of it. False if one has to be looked up first.
    pub(super) fn note_composite(&self, open: &CompositeFile, offset: u64, len: usize) -> bool {
        let mut parts = open.slices(offset, len).filter(|slice| slice.part.is_flat());
        parts.all(|slice| {
            let flat = open.flat.get(slice.number).and_then(OnceLock::get);
            flat.is_some_and(|flat| self.note_flat(flat, slice.at, slice.len))
        })
    }

    /// Writes `data` at `offset` and returns how much of it: less only at the end of the file, where a write may be short.
    /// What is no flat bytes can only be overwritten by the same, else nothing is written: EPERM, or EFBIG of what
    /// reaches beyond the end. Once something was refused, all is: EPERM. A header of nothing but text takes everything
    /// and stays as it is, so that a directory can be copied over another.
    pub(super) fn write_composite(
        &self,
        open: &CompositeFile,
        offset: u64,
        data: &[u8],
        mode: WriteMode,
    ) -> Result<usize> {
        if open.is_text() {
            open.keep_text(offset, data);
            return Ok(data.len());
        }
        let data = match open.short_at_end {
            true => clipped(offset, data, open.file.size()).unwrap_or(data),
            false => data,
        };
        if let Err(e) = self.permits(open, offset, data) {
            open.refused.store(true, Ordering::Relaxed);
            return Err(e.context(open.node.path()));
        }
        let mut written = 0;
        for slice in open.slices(offset, data.len()) {
            let part = &data[written..written + slice.len];
            if let Some((flat, form)) = self.flat_of(open, &slice, false)? {
                let array = self.current(&flat.array)?;
                let losses = array.losses();
                let done = self.write_part(flat, &slice, part, form, mode);
                self.record_write(&open.record, &array, losses, mode);
                done.map_err(|e| e.context(open.node.path()))?;
            } else if slice.number == 0 && !open.shows(&slice, part) {
                self.write_header(open, slice.at, part).map_err(|e| e.context(open.node.path()))?;
            }
            written += slice.len;
        }
        Ok(written)
    }

    /// An error if a write would change what is no flat bytes, but for the attributes in the header of a group's file, reach
    /// beyond the end, or come after such a one.
    fn permits(&self, open: &CompositeFile, offset: u64, data: &[u8]) -> Result<()> {
        if open.refused.load(Ordering::Relaxed) {
            return Err(Error::new(Kind::System(libc::EPERM), "a write before was refused: open the file again"));
        }
        if offset.saturating_add(data.len() as u64) > open.file.size() {
            return Err(Error::system(libc::EFBIG));
        }
        let (mut done, mut is_header_whole) = (0, open.is_header_whole());
        for slice in open.slices(offset, data.len()) {
            let part = &data[done..done + slice.len];
            match open.shows(&slice, part) {
                // where the values lie is what the header tells
                true if slice.part.is_flat() && !is_header_whole => {
                    let why = "the header before these values is not whole";
                    return Err(Error::new(Kind::System(libc::EPERM), why));
                }
                true => {}
                false if slice.number == 0 => is_header_whole = self.edit_header(open, slice.at, part)?.1.is_some(),
                false => {
                    let why = "describes the array, and can't be changed here: change the array's metadata";
                    return Err(Error::new(Kind::System(libc::EPERM), why));
                }
            }
            done += slice.len;
        }
        Ok(())
    }

    fn write_part(&self, flat: &FlatFile, slice: &Slice, data: &[u8], form: ItemForm, mode: WriteMode) -> Result<()> {
        self.current(&flat.array)?.writable()?;
        match form {
            ItemForm::AsStored => self.write_stored(flat, slice.part, slice.at, data, mode),
            ItemForm::Reversed(_) => self.write_reversed(flat, slice, data, form.item(), mode),
            ItemForm::Doubles { .. } => self.write_doubles(flat, slice, data, form, mode),
        }
    }

    /// Writes bytes of reversed items. Those of a part of an item are another part of it: nothing has to be read.
    fn write_reversed(&self, flat: &FlatFile, slice: &Slice, data: &[u8], item: usize, mode: WriteMode) -> Result<()> {
        let mut done = 0;
        while done < data.len() {
            let (len, at) = mirrored(slice.at + done as u64, data.len() - done, item);
            let mut bytes = data[done..done + len].to_vec();
            bytes.chunks_mut(item.min(len)).for_each(<[u8]>::reverse);
            self.write_stored(flat, slice.part, at, &bytes, mode)?;
            done += len;
        }
        Ok(())
    }

    /// Writes bytes of doubles that stand for integers. The rest of the first and of the last item stays.
    fn write_doubles(
        &self,
        flat: &FlatFile,
        slice: &Slice,
        data: &[u8],
        form: ItemForm,
        mode: WriteMode,
    ) -> Result<()> {
        let (at, size) = (slice.at, form.item());
        let (from, end) = around(at, data.len(), size);
        // two writers of one item must not undo each other's bytes
        let array = lock(&flat.array.0).key().clone();
        let _alone = self.converting.exclusive(&[&array]);
        let (mut items, mut edge) = (vec![0; (end - from) as usize], Vec::new());
        for item in [from, end.saturating_sub(size as u64).max(from)] {
            let covered = item >= at && item + size as u64 <= at + data.len() as u64;
            if !covered {
                self.read_part(flat, item, size, false, &mut edge)?;
                form.show(&mut edge)?;
                items[(item - from) as usize..][..size].copy_from_slice(&edge);
            }
        }
        items[(at - from) as usize..][..data.len()].copy_from_slice(data);
        form.store(&mut items)?;
        self.write_stored(flat, slice.part, from, &items, mode)
    }

    /// Writes flat bytes as they are stored, all of them, if the array is still what the file tells of it.
    fn write_stored(&self, flat: &FlatFile, part: &FilePart, at: u64, data: &[u8], mode: WriteMode) -> Result<()> {
        loop {
            let array = self.current(&flat.array)?;
            let _writing = self.resizing.writing(array.key());
            if array.is_superseded() {
                continue;
            }
            if !part.is_of(array.metadata()) {
                return Err(another_array());
            }
            self.resizing.written_to(array.key(), at + data.len() as u64);
            return self.write_flat(&array, at, data, mode).map(|_| ());
        }
    }

    /// Stores what was written to the arrays of an open file. The first error is told, all are tried.
    pub(super) fn flush_composite(&self, open: &CompositeFile) -> Result<()> {
        let header = self.check_header(open).and_then(|()| self.store_text(open));
        let arrays = open.arrays().filter(|array| array.is_dirty());
        let stored = arrays.map(|array| self.flush_array(&array)).fold(header, Result::and);
        open.record.answer(stored)
    }
}

impl CompositeFile {
    /// Nothing of it was read yet.
    pub(super) fn new(node: Node, file: Arc<Composite>, once: bool) -> Self {
        let flat = file.parts().iter().map(|_| OnceLock::new()).collect();
        let (record, short_at_end) = (WriteRecord::default(), !matches!(node, Node::Dataset(_)));
        CompositeFile {
            inode: 0,
            writable: true,
            record,
            node,
            file,
            flat,
            once,
            short_at_end,
            text: Mutex::default(),
            edited: Mutex::default(),
            refused: AtomicBool::new(false),
        }
    }

    /// True if it holds no flat bytes.
    pub(super) fn is_text(&self) -> bool {
        !self.file.parts().iter().any(FilePart::is_flat)
    }

    /// The keys of the arrays whose flat bytes it holds.
    pub(super) fn keys(&self) -> impl Iterator<Item = &Key> {
        self.file.parts().iter().filter_map(|part| match &part.content {
            PartContent::Flat { key, .. } => Some(key),
            _ => None,
        })
    }

    /// The arrays that were read or written through it.
    pub(super) fn arrays(&self) -> impl Iterator<Item = Arc<Array>> + '_ {
        self.flat.iter().filter_map(|cell| cell.get()).map(|flat| lock(&flat.array.0).clone())
    }

    /// Whether the file shows these bytes already, where it has no flat ones.
    fn shows(&self, slice: &Slice, data: &[u8]) -> bool {
        match &slice.part.content {
            PartContent::Bytes(bytes) => {
                let edited = lock(&self.edited);
                let shown = edited.as_ref().filter(|_| slice.number == 0).map_or(&bytes[..], |draft| &draft.shown);
                shown[slice.at as usize..][..slice.len] == *data
            }
            PartContent::Padding => data.iter().all(|byte| *byte == 0),
            PartContent::Bands(_) => false,
            PartContent::Flat { .. } => true,
        }
    }

    /// A request, cut at the borders of the parts; shorter at the end of the file.
    fn slices(&self, offset: u64, len: usize) -> impl Iterator<Item = Slice<'_>> {
        let end = offset.saturating_add(len as u64);
        let first = self.file.part_at(offset);
        let parts = self.file.parts().iter().enumerate().skip(first);
        parts.take_while(move |(_, part)| part.at < end && len > 0).map(move |(number, part)| {
            let at = offset.saturating_sub(part.at);
            Slice { number, part, at, len: (end.min(part.at + part.len) - part.at - at) as usize }
        })
    }
}

fn another_array() -> Error {
    let why = "the array's shape or dtype has changed since the file was opened: open it again";
    Error::new(Kind::System(libc::ESTALE), why)
}

/// How many of `len` bytes at `begin` of a file whose items of `item` bytes are reversed can be written at once, and
/// where: whole items, or the part of one.
fn mirrored(begin: u64, len: usize, item: usize) -> (usize, u64) {
    let within = (begin % item as u64) as usize;
    if within == 0 && len >= item {
        return (len / item * item, begin);
    }
    let len = len.min(item - within);
    (len, begin - within as u64 + (item - within - len) as u64)
}

/// The range of whole items of `size` bytes around `len` bytes at `at`.
fn around(at: u64, len: usize, size: usize) -> (u64, u64) {
    let size = size as u64;
    (at / size * size, (at + len as u64).next_multiple_of(size))
}
