//! Open flat bytes of a view: `data.raw` of physical values or of a part of an array. Requests work
//! as through the array's own `data.raw`, with a conversion if the view has one.

use super::flat::FlatFile;
use super::items::{ItemRange, another_array, packed, shown_items};
use super::{NewFile, OpenFile, Seek, UnstoredBytes};
use crate::array::Array;
use crate::cache::{FoundBytes, Wait};
use crate::fs::tree::{Node, View};
use crate::fs::write::{WriteMode, clipped};
use crate::fs::write_record::WriteRecord;
use crate::fs::{Change, Fs, KernelPages};
use std::sync::Arc;
use zarrfs_base::error::{Error, Result};
use zarrfs_export::{ArrayView, ItemForm};
use zarrfs_format::metadata::ArrayMetadata;
use zarrfs_store::Key;

/// Open flat bytes of a view.
pub struct OpenView {
    inode: u64,
    writable: bool,
    node: Node,
    flat: FlatFile,
    view: ArrayView,
    /// The array's metadata when the file was opened.
    opened: ArrayMetadata,
}

impl OpenView {
    /// Opens the flat bytes of a view of the array at `key`. The kernel keeps what it reads as of a
    /// container.
    pub(in crate::fs) fn open(
        fs: &Fs,
        inode: u64,
        node: &Node,
        (key, view): (&Key, &View),
        for_writing: bool,
    ) -> Result<NewFile> {
        let array = fs.arrays.open(key)?;
        if for_writing {
            array.writable()?;
            fs.arrays.resizing.finish_closed(key);
        }
        // only the next opening of `data.raw` may take the list of what has changed in the store
        array.freshness().begin_opening();
        let (array, view) = fs.tree.viewed(array.key(), view)?;
        let pages = fs
            .options
            .pages_of_generated(for_writing && view.form.takes_whole_items());
        let opened = array.metadata().clone();
        let flat = FlatFile::part(array, pages == KernelPages::Fresh);
        let file = OpenView {
            inode,
            writable: for_writing,
            node: node.clone(),
            flat,
            view,
            opened,
        };
        Ok(NewFile::new(Arc::new(file), pages))
    }

    /// Fails if the array has become another one than the view shows.
    ///
    /// # Errors
    ///
    /// ESTALE.
    fn check(&self, array: &Array) -> Result<()> {
        if self.view.is_of(&self.opened, array.metadata()) {
            Ok(())
        } else {
            Err(another_array().context(self.node.path()))
        }
    }

    /// Returns the size of a view of a part of an array; that of a whole array changes with the
    /// array.
    fn fixed_size(&self) -> u64 {
        self.view
            .end()
            .map_or(u64::MAX, |end| end - self.view.range.start)
    }
}

impl OpenFile for OpenView {
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
        let form = &self.view.form;
        let len = len
            .min(usize::try_from(self.fixed_size().saturating_sub(offset)).unwrap_or(usize::MAX));
        let ItemRange { shown, stored } = shown_items(offset, len, form);
        let Some(array) = self.flat.array.latest_if(fs, wait)? else {
            return Ok(FoundBytes::MustWait);
        };
        self.check(&array)?;
        let from = self.view.range.start.saturating_add(stored.start);
        let stored_len = (stored.end - stored.start) as usize;
        let found = self.flat.read(fs, from, stored_len, wait, out)?;
        if *form == ItemForm::AsStored {
            return Ok(found);
        }
        if !found.copy_to(out) {
            return Ok(FoundBytes::MustWait);
        }
        form.show(out)?;
        out.drain(..((offset - shown.start) as usize).min(out.len()));
        out.truncate(len);
        Ok(FoundBytes::Copied)
    }

    fn write(
        &self,
        fs: &Change,
        offset: u64,
        data: &[u8],
        mode: WriteMode,
    ) -> Result<Option<usize>> {
        if mode.wait == Wait::Never {
            return Ok(None);
        }
        let data = clipped(offset, data, self.fixed_size())?;
        let (len, items) = packed(&self.view.form, offset, data, mode)
            .map_err(|e| e.context(self.node.path()))
            .inspect_err(|e| {
                // a program may not ask what became of its map
                if mode.mapped {
                    fs.stats.problem(format!("not stored: {e}"));
                }
            })?;
        let at = self
            .view
            .range
            .start
            .saturating_add(shown_items(offset, 0, &self.view.form).stored.start);
        let mode = WriteMode {
            inode: self.inode,
            is_flat: false,
            ..mode
        };
        let done = self
            .flat
            .write_through(fs, at, &items, mode, |array| self.check(array))?;
        Ok(done.map(|done| {
            if done == items.len() {
                len
            } else {
                done / self.view.form.stored_item() * self.view.form.shown_item()
            }
        }))
    }

    fn flush(&self, fs: &Change) -> Result<()> {
        if self.writable {
            self.flat.flush(fs)
        } else {
            Ok(())
        }
    }

    fn seek(&self, fs: &Fs, offset: u64, target: Seek) -> Result<u64> {
        let start = self.view.range.start;
        let form = &self.view.form;
        let end = self.fixed_size();
        if offset >= end {
            return Err(Error::system(libc::ENXIO));
        }
        let at = start.saturating_add(shown_items(offset, 0, form).stored.start);
        let found = self.flat.seek_through(fs, at, target, |array| {
            self.view.fill_is_zero(array.metadata())
        })? - start;
        let found = form.shown_size(found).unwrap_or(u64::MAX).max(offset);
        match target {
            Seek::Data if found >= end => Err(Error::system(libc::ENXIO)),
            _ => Ok(found.min(end)),
        }
    }

    fn release(&self, fs: &Change) {
        self.flat.release(fs);
    }

    fn sync_in_place(&self, fs: &Change) -> Result<()> {
        self.fsync(fs)
    }

    fn release_may_block(&self) -> bool {
        self.flat.release_may_block()
    }

    fn written_arrays(&self) -> Vec<Key> {
        if self.writable {
            vec![self.flat.array.key()]
        } else {
            Vec::new()
        }
    }

    fn unstored_bytes(&self) -> UnstoredBytes {
        UnstoredBytes::InArrays
    }

    fn write_record(&self) -> Option<&WriteRecord> {
        self.flat.write_record()
    }
}
