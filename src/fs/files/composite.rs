//! Open headers and containers: files composed of bytes and of the flat bytes of arrays. Reads and
//! writes go part by part; requests for flat bytes work as through `data.raw`, with a conversion if
//! the part has one. Bytes that belong to no array cannot be changed, except the attributes in a
//! header (`edit`) and the number of records (`growth`).

pub mod blocks;
mod early;
pub mod early_file;
mod edit;
mod grown;
mod growth;
mod held;
mod items;
mod replace;

use super::flat::FlatFile;
use super::items::{another_array, shown_items};
use super::{OpenFile, UnstoredBytes};
use crate::array::Array;
use crate::cache::{FoundBytes, Wait};
use crate::fs::Options;
use crate::fs::tree::{Attributes, Node};
use crate::fs::write::{WriteMode, clipped};
use crate::fs::write_record::WriteRecord;
use crate::fs::{Change, Fs, KernelPages, Seek};
use blocks::LoadedRest;
use early::WholeFile;
use edit::{HeaderDraft, TextDraft};
use held::HeldWrites;
use items::{TornItems, read_exact};
use std::borrow::Cow;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use zarrfs_base::error::{Error, Kind, Result};
use zarrfs_base::memory::{self, lock};
use zarrfs_export::{Composite, FilePart, FileSlice, GroupFormat, ItemForm, PartContent};
use zarrfs_store::Key;

/// An open header or container.
pub struct CompositeFile {
    /// The file's inode number; 0 if the kernel does not know the file.
    inode: u64,
    writable: bool,
    record: Arc<WriteRecord>,
    node: Node,
    /// The parts as they were when the file was opened.
    file: Arc<Composite>,
    /// The number of records, which grows as records are appended.
    count: AtomicU64,
    /// The open flat bytes of each part that has some, opened at the first use: only a few parts of
    /// a large group are ever used.
    flat: Vec<OnceLock<Box<FlatFile>>>,
    /// Whether the kernel keeps the bytes read, so that the cache need not.
    is_kept_elsewhere: bool,
    /// Whether a write across the end is short, as in `data.raw`. It is in files of one array, and
    /// for a writer with O_DIRECT, which can only write whole blocks. Any other write across the
    /// end of `dataset.nc` comes from a program that moves the arrays to make room for a longer
    /// header (netCDF-C begins at the end), and is refused as a whole.
    short_at_end: bool,
    /// The text written in place of a header of text; `None` before the first write.
    text: Mutex<Option<TextDraft>>,
    /// The header of a group's file with the writes to it; `None` before the first.
    edited: Mutex<Option<HeaderDraft>>,
    /// Writes behind the last record that the header does not count yet, and those that came after
    /// them.
    held: Mutex<Option<HeldWrites>>,
    /// Items that were written in part and cannot be stored without their other part.
    torn: Mutex<TornItems>,
    /// Whether a write was refused. A program that makes room for a longer header moves the arrays'
    /// bytes, continues when that fails, and writes the header last (netCDF-C does so): from then
    /// on every write is refused.
    refused: AtomicBool,
    /// What the next requests of a long read get. Protects the bytes alone.
    loaded: Mutex<Option<LoadedRest>>,
    /// What a program writes that has truncated or created the file.
    whole: WholeFile,
    /// The file as which this one continues since its array has another length.
    next: OnceLock<Box<CompositeFile>>,
}

/// The open flat bytes of a part.
struct FlatPart<'a> {
    /// The index of the part.
    number: usize,
    part: &'a FilePart,
    flat: &'a FlatFile,
    /// Where the part begins among them.
    start: u64,
    form: &'a ItemForm,
}

impl Options {
    /// Returns the pages that the kernel may keep of a file which is generated of arrays. In a
    /// read-only mount it keeps what it reads until the file is opened again; in other mounts each
    /// read must return writes through other files. Pages of a writable map could not be written if
    /// only whole items can be.
    pub(in crate::fs) fn pages_of_generated(&self, is_written_in_items: bool) -> KernelPages {
        if self.read_only && !self.direct_io {
            KernelPages::Fresh
        } else if is_written_in_items {
            KernelPages::None
        } else {
            KernelPages::Maps
        }
    }
}

impl CompositeFile {
    /// Opens a header or container. `direct` is set if the program asked for O_DIRECT.
    pub(in crate::fs) fn open(
        fs: &Fs,
        inode: u64,
        node: &Node,
        for_writing: bool,
        direct: bool,
    ) -> Result<(CompositeFile, KernelPages)> {
        if let Some((key, format)) = node.header()
            && for_writing
            && format.holds_flat()
        {
            fs.arrays.open(key)?.writable()?;
        }
        let file = fs.tree.composite(node)?;
        // all readers of the file share the kernel's pages, which must not come from older checks
        // of the store
        for part in file.parts() {
            if let PartContent::Flat { key, .. } = &part.content
                && let Some(array) = fs.tree.hierarchy().cached_array(key)
            {
                array.freshness().begin_opening();
            }
        }
        let mut contents = file.parts().iter().map(|part| &part.content);
        let takes_whole_items = contents.any(
            |content| matches!(content, PartContent::Flat { form, .. } if form.takes_whole_items()),
        );
        let pages = match fs
            .options
            .pages_of_generated(for_writing && takes_whole_items)
        {
            KernelPages::Fresh if blocks::is_read_in_blocks(node) => KernelPages::Maps,
            pages => pages,
        };
        let open = CompositeFile::new(node.clone(), file, pages == KernelPages::Fresh);
        let short_at_end = direct || open.short_at_end;
        Ok((
            CompositeFile {
                inode,
                writable: for_writing,
                short_at_end,
                ..open
            },
            pages,
        ))
    }

    /// Creates an open file whose parts were not used yet.
    pub(in crate::fs) fn new(node: Node, file: Arc<Composite>, is_kept_elsewhere: bool) -> Self {
        let flat = file.parts().iter().map(|_| OnceLock::new()).collect();
        let short_at_end = node.container().is_none();
        CompositeFile {
            inode: 0,
            writable: true,
            record: Arc::default(),
            node,
            count: AtomicU64::new(file.record_count()),
            file,
            flat,
            is_kept_elsewhere,
            short_at_end,
            text: Mutex::default(),
            edited: Mutex::default(),
            held: Mutex::default(),
            torn: Mutex::default(),
            refused: AtomicBool::new(false),
            loaded: Mutex::default(),
            whole: WholeFile::default(),
            next: OnceLock::new(),
        }
    }

    /// Returns whether the file is a header of text.
    pub(in crate::fs) fn is_text(&self) -> bool {
        self.node.container().is_none() && !self.file.parts().iter().any(FilePart::is_flat)
    }

    /// Returns whether this open file alone knows of writes: their bytes are in no array or
    /// document yet, or were refused.
    pub(in crate::fs) fn holds_writes(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
            || self.has_changed_text()
            || !self.is_header_whole()
            || self.check_complete().is_err()
            || self.whole.is_unfinished()
            || self.next.get().is_some_and(|next| next.holds_writes())
    }

    /// Returns the ranges of the file that hold flat bytes.
    pub(in crate::fs) fn values(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let parts = self.file.parts().iter();
        let flat = parts.filter(|part| part.is_flat());
        flat.map(|part| part.at..part.at + part.len)
    }

    /// Returns whether writes behind the end may add records.
    pub(in crate::fs) fn may_grow(&self, fs: &Fs) -> bool {
        self.file.records().is_some() && self.check_growth(fs).is_ok()
    }

    /// Returns the present size in bytes.
    pub(in crate::fs) fn size(&self) -> u64 {
        self.file.size_with(self.count.load(Ordering::Acquire))
    }

    /// Cuts a request at the borders of the parts. The slices end with the file.
    fn slices(&self, offset: u64, len: usize) -> Vec<FileSlice<'_>> {
        self.file
            .slices(offset, len, self.count.load(Ordering::Acquire))
    }

    /// Returns the arrays that were read or written through the file.
    fn arrays(&self) -> impl Iterator<Item = Arc<Array>> + '_ {
        self.flat
            .iter()
            .filter_map(|cell| cell.get())
            .map(|flat| flat.array.known())
    }

    /// Stores all writes through the file.
    fn store(&self, fs: &Change) -> Result<()> {
        let header = self.check_header(fs).and_then(|()| self.store_text(fs));
        // the dirty chunks of an array that has grown belong to another `Array` of the same key
        self.arrays()
            .map(|array| fs.writer.flush_array(&array))
            .fold(header, Result::and)
    }

    /// Returns the bytes of a slice that belong to the file itself, as written in place of a
    /// header; `None` for flat bytes.
    fn own_bytes<'a>(&'a self, slice: &'a FileSlice) -> Option<Cow<'a, [u8]>> {
        let at = slice.at as usize;
        let len = slice.len;
        Some(match &slice.part.content {
            PartContent::Bytes(bytes) => match &*lock(&self.edited) {
                Some(draft) if slice.number == 0 => Cow::Owned(draft.shown[at..at + len].to_vec()),
                _ => Cow::Borrowed(&bytes[at..at + len]),
            },
            PartContent::Bands(bands) => Cow::Owned(bands.text().as_bytes()[at..at + len].to_vec()),
            // those of records that were appended are not there yet
            PartContent::Values { bytes, .. } => {
                let mut values: Vec<u8> = bytes.iter().copied().skip(at).take(len).collect();
                values.resize(len, 0);
                Cow::Owned(values)
            }
            PartContent::Padding => Cow::Owned(vec![0; len]),
            PartContent::Flat { .. } => return None,
        })
    }

    /// Returns whether the file shows `data` already, or takes any bytes there: those of an array,
    /// or the padding of records, in which netCDF-C writes fill values.
    fn shows(&self, slice: &FileSlice, data: &[u8]) -> bool {
        match &slice.part.content {
            PartContent::Padding if slice.part.is_record => true,
            PartContent::Bands(_) => false,
            _ => self.own_bytes(slice).is_none_or(|own| *own == *data),
        }
    }

    /// Returns whether `data` marks an HDF5 file as open for writing, or not any more. The mark is
    /// not kept: a program that is killed must not leave it.
    fn sets_flags_alone(&self, slice: &FileSlice, data: &[u8]) -> bool {
        matches!(self.node.container(), Some((_, GroupFormat::Hdf5)))
            && self
                .own_bytes(slice)
                .is_some_and(|own| zarrfs_export::sets_flags_alone(slice.at as usize, data, &own))
    }

    /// Returns the open flat bytes of a part; `None` for a part without flat bytes.
    ///
    /// # Errors
    ///
    /// ESTALE if the array has another shape or dtype than the file says. If it must not wait, the
    /// array is taken as it was last looked up.
    fn flat_of(&self, fs: &Fs, number: usize, wait: Wait) -> Result<Option<FlatPart<'_>>> {
        let Some(part) = self.file.parts().get(number) else {
            return Ok(None);
        };
        let PartContent::Flat {
            key, start, form, ..
        } = &part.content
        else {
            return Ok(None);
        };
        let Some(cell) = self.flat.get(number) else {
            return Ok(None);
        };
        let flat = match cell.get() {
            Some(flat) => flat,
            None => {
                let array = fs.arrays.open(key)?;
                // this opening leaves the list of served versions to the next opening of `data.raw`
                array.freshness().begin_opening();
                cell.get_or_init(|| Box::new(FlatFile::part(array, self.is_kept_elsewhere)))
            }
        };
        let array = if wait == Wait::Allowed {
            flat.array.latest(fs)?
        } else {
            flat.array.known()
        };
        if part.is_of(array.metadata()) {
            Ok(Some(FlatPart {
                number,
                part,
                flat,
                start: *start,
                form,
            }))
        } else {
            Err(another_array().context(self.node.path()))
        }
    }

    /// Fails if a write would change anything but flat bytes and the attributes in the header of a
    /// group's file.
    ///
    /// # Errors
    ///
    /// EPERM, also after a write that was refused; EFBIG beyond the end.
    fn check_write(&self, fs: &Fs, offset: u64, data: &[u8]) -> Result<()> {
        if self.refused.load(Ordering::Relaxed) {
            return Err(Error::new(
                Kind::System(libc::EPERM),
                "an earlier write was refused; open the file again",
            ));
        }
        if offset.saturating_add(data.len() as u64) > self.size() {
            if self.file.records().is_some() {
                self.check_growth(fs)?;
            }
            return Err(Error::system(libc::EFBIG));
        }
        let mut is_header_whole = self.is_header_whole();
        for slice in self.slices(offset, data.len()) {
            let part = slice.gather(data);
            let refused = if self.shows(&slice, &part) {
                if !slice.part.is_flat() || is_header_whole {
                    continue;
                }
                // the header says where the values lie
                "the header before these values is not whole"
            } else if slice.number == 0 && self.sets_flags_alone(&slice, &part) {
                continue;
            } else if slice.number == 0 {
                is_header_whole = self.edit_header(fs, slice.at, &part)?.1.is_some();
                continue;
            } else if matches!(slice.part.content, PartContent::Values { .. }) {
                "strings can't be changed here"
            } else {
                "these bytes describe the array and can't be changed here; change the array's metadata"
            };
            return Err(Error::new(Kind::System(libc::EPERM), refused));
        }
        Ok(())
    }

    /// Writes all of `data`, or less at the end of the file if a write across the end may be short,
    /// and at the end of a long write if whole items alone can be written. Outside the flat bytes,
    /// only attributes in a header can change; a write that changes anything else writes nothing. A
    /// file without flat bytes accepts everything, so that a directory can be copied over another:
    /// see `store_text`.
    pub(in crate::fs) fn write_all(
        &self,
        fs: &Change,
        offset: u64,
        data: &[u8],
        mode: WriteMode,
    ) -> Result<usize> {
        if self.is_text() {
            return self.keep_text(offset, data).map(|()| data.len());
        }
        let data = if self.short_at_end {
            clipped(offset, data, self.size()).unwrap_or(data)
        } else {
            data
        };
        let is_held = self.is_held(fs, offset, data);
        let accepted = if is_held {
            self.write_held(fs, offset, data)
        } else {
            self.check_write(fs, offset, data)
        };
        if accepted.is_err() {
            self.refused.store(true, Ordering::Relaxed);
        }
        let written = match accepted {
            Ok(()) if !is_held => self.write_slices(fs, offset, data, mode),
            accepted => accepted.map(|()| data.len()),
        };
        written.map_err(|e| e.context(self.node.path()))
    }

    /// Writes bytes that [`CompositeFile::check_write`] has accepted. Returns their number, as
    /// [`CompositeFile::write_values`] does.
    fn write_slices(
        &self,
        fs: &Change,
        offset: u64,
        data: &[u8],
        mode: WriteMode,
    ) -> Result<usize> {
        let mut written = 0;
        for slice in self.slices(offset, data.len()) {
            if slice.part.is_flat() {
                let done =
                    self.write_values(fs, slice.number, slice.at, &slice.gather(data), mode)?;
                if done < slice.len {
                    return Ok(written + done);
                }
            } else if slice.number == 0 {
                let part = slice.gather(data);
                if !self.shows(&slice, &part) && !self.sets_flags_alone(&slice, &part) {
                    self.write_header(fs, slice.at, &part)?;
                }
            }
            written += slice.len;
        }
        Ok(written)
    }

    /// Writes bytes of a part that holds flat bytes, at an offset in the part. Returns how many:
    /// all of them, unless whole items alone can be written and a part of one is left.
    fn write_values(
        &self,
        fs: &Change,
        number: usize,
        at: u64,
        data: &[u8],
        mode: WriteMode,
    ) -> Result<usize> {
        let Some(of) = self.flat_of(fs, number, Wait::Allowed)? else {
            return Ok(data.len());
        };
        let array = of.flat.array.latest(fs)?;
        array.writable()?;
        fs.files.write_recorded(&self.record, &array, mode, || {
            self.write_items(fs, &of, at, data, mode)
        })
    }

    /// Records a read of a slice of flat bytes, if the array is open.
    fn record_access(&self, fs: &Fs, slice: &FileSlice) {
        if let PartContent::Flat { start, form, .. } = &slice.part.content
            && let Some(flat) = self.flat.get(slice.number).and_then(OnceLock::get)
        {
            let items = shown_items(slice.at, slice.len, form).stored;
            flat.record_access(fs, start + items.start, (items.end - items.start) as usize);
        }
    }

    /// Reads the bytes of a slice of flat bytes, as [`OpenFile::read`] does.
    fn read_values(
        &self,
        fs: &Fs,
        slice: &FileSlice,
        wait: Wait,
        out: &mut Vec<u8>,
    ) -> Result<FoundBytes> {
        let flat = self.flat.get(slice.number).and_then(OnceLock::get);
        if wait == Wait::Never && flat.is_none_or(|flat| flat.array.known().is_superseded()) {
            return Ok(FoundBytes::MustWait);
        }
        let Some(of) = self.flat_of(fs, slice.number, wait)? else {
            return Ok(FoundBytes::Copied);
        };
        let items = shown_items(slice.at, slice.len, of.form);
        let found = read_exact(fs, &of, items.stored, wait, out)?;
        if *of.form == ItemForm::AsStored {
            return Ok(found);
        }
        if !found.copy_to(out) {
            return Ok(FoundBytes::MustWait);
        }
        of.form.show(out).map_err(|e| e.context(self.node.path()))?;
        lock(&self.torn).show(slice.number, items.shown.start, out);
        out.drain(..(slice.at - items.shown.start) as usize);
        out.truncate(slice.len);
        Ok(FoundBytes::Copied)
    }
}

impl CompositeFile {
    /// Reads `len` bytes at `offset`, which lie in these slices, as [`OpenFile::read`] does.
    fn read_slices(
        &self,
        fs: &Fs,
        slices: &[FileSlice],
        (offset, len): (u64, usize),
        wait: Wait,
        out: &mut Vec<u8>,
    ) -> Result<FoundBytes> {
        let end = offset.saturating_add(len as u64).min(self.size());
        let len_here = end.saturating_sub(offset) as usize;
        // most requests lie in one part and need no copy
        if let [slice] = slices
            && slice.part.is_flat()
            && slice.len == len_here
        {
            return self.read_values(fs, slice, wait, out);
        }
        out.clear();
        memory::resize(out, len_here)?;
        let mut piece = Vec::new();
        for slice in slices {
            if let Some(own) = self.own_bytes(slice) {
                slice.scatter(&own, out);
                continue;
            }
            let found = self.read_values(fs, slice, wait, &mut piece)?;
            if matches!(found, FoundBytes::MustWait) {
                return Ok(found);
            }
            slice.scatter(found.bytes(&piece), out);
        }
        Ok(FoundBytes::Copied)
    }
}

impl OpenFile for CompositeFile {
    fn inode(&self) -> u64 {
        self.inode
    }

    fn read(
        &self,
        fs: &Fs,
        offset: u64,
        len: usize,
        wait: Wait,
        out: &mut Vec<u8>,
    ) -> Result<FoundBytes> {
        if self.may_continue(fs) {
            if wait == Wait::Never {
                return Ok(FoundBytes::MustWait);
            }
            if let Some(next) = self.continued(fs)? {
                return next.read(fs, offset, len, wait, out);
            }
        }
        let slices = self.slices(offset, len);
        if wait == Wait::Never {
            slices
                .iter()
                .for_each(|slice| self.record_access(fs, slice));
        }
        let in_block = if blocks::is_read_in_blocks(&self.node) {
            self.read_in_block(fs, (offset, len), wait, out)?
        } else {
            None
        };
        let mut found = match in_block {
            Some(found) => found,
            None => self.read_slices(fs, &slices, (offset, len), wait, out)?,
        };
        let held = match Wait::Never.lock(&self.held) {
            None if wait == Wait::Allowed => {
                // a thread that waits holds no window
                found.copy_to(out);
                found = FoundBytes::Copied;
                wait.lock(&self.held)
            }
            held => held,
        };
        match held.as_deref() {
            Some(Some(held)) if found.copy_to(out) => {
                held.show(offset, len, out).map(|()| FoundBytes::Copied)
            }
            Some(None) => Ok(found),
            _ => Ok(FoundBytes::MustWait),
        }
    }

    fn seek(&self, fs: &Fs, offset: u64, target: Seek) -> Result<u64> {
        let size = fs.attributes(self.inode)?.size;
        let found = match target {
            Seek::Data => self.file.next_data(offset),
            Seek::Hole => self.file.next_hole(offset).unwrap_or(size).min(size),
        };
        if offset >= size || (target == Seek::Data && found >= size) {
            return Err(Error::system(libc::ENXIO));
        }
        Ok(found)
    }

    fn write(
        &self,
        fs: &Change,
        offset: u64,
        data: &[u8],
        mode: WriteMode,
    ) -> Result<Option<usize>> {
        if let Some(early) = self.whole.early() {
            return early.write(fs, offset, data, mode);
        }
        if mode.wait == Wait::Allowed {
            if self.may_continue(fs)
                && let Some(next) = self.continued(fs)?
            {
                return next.write(fs, offset, data, mode);
            }
            let own = WriteMode {
                inode: self.inode,
                ..mode
            };
            match self.write_all(fs, offset, data, own) {
                Err(e) if offset == 0 && self.may_begin_early(fs, data, &e) => {
                    self.begin_early(fs)?.write(fs, offset, data, mode)
                }
                written => written.map(Some),
            }
        } else {
            Ok(None)
        }
    }

    fn flush(&self, fs: &Change) -> Result<()> {
        if self.whole.early().is_some() {
            return self.finish_early(fs);
        }
        let next = self.next.get().map_or(Ok(()), |next| next.flush(fs));
        let stored = self
            .store(fs)
            .and_then(|()| self.check_complete())
            .and(next);
        let written = self.arrays().filter(|_| self.writable);
        let lost = written
            .map(|array| fs.arrays.with_losses(array.key(), Ok(())))
            .fold(Ok(()), Result::and);
        self.record.answer(lost.and(stored))
    }

    fn sync_in_place(&self, fs: &Change) -> Result<()> {
        self.arrays()
            .try_for_each(|array| fs.writer.flush_array(&array))
    }

    fn release(&self, fs: &Change) {
        if let Some(early) = self.whole.early() {
            early.release(fs);
            return self.end_early(fs);
        }
        if let Some(next) = self.next.get() {
            next.release(fs);
        }
        // errors of chunks that cannot be stored are on record
        let _ = self.store(fs);
        if let Err(e) = self.check_complete() {
            fs.stats.problem(format!("not stored: {e}"));
        }
    }

    fn release_may_block(&self) -> bool {
        self.whole.early().is_some()
            || self.arrays().any(|array| array.is_dirty())
            || self.next.get().is_some_and(|next| next.release_may_block())
    }

    fn written_arrays(&self) -> Vec<Key> {
        if !self.writable {
            return Vec::new();
        }
        let parts = self.file.parts().iter();
        let keys = parts.filter_map(|part| match &part.content {
            PartContent::Flat { key, .. } => Some(key.clone()),
            _ => None,
        });
        keys.collect()
    }

    fn unstored_bytes(&self) -> UnstoredBytes {
        UnstoredBytes::InArrays
    }

    fn write_record(&self) -> Option<&WriteRecord> {
        Some(&self.record)
    }

    fn unlinked_attributes(&self, fs: &Fs) -> Option<Attributes> {
        fs.tree.header_attributes(&self.node, &self.file).ok()
    }

    fn as_composite(&self) -> Option<&CompositeFile> {
        Some(self)
    }
}
