//! `--resize`: truncating flat bytes, and writing past their end, change the array's first
//! dimension. Until its file is closed, a partial last row counts only its written bytes; the rest
//! of the row holds the fill value.

use super::arrays::WrittenArrays;
use super::resize::{Added, HiddenGrowth};
use super::write::{ArrayWriter, WriteMode};
use crate::array::Array;
use crate::fs::tree::{Attributes, Node, View};
use std::sync::Arc;
use zarrfs_base::error::{Error, Result};
use zarrfs_store::Key;

/// Number of bytes of fill values written at a time.
const STEP: u64 = 1 << 20;

impl WrittenArrays {
    /// Corrects the size of flat bytes and of their physical values.
    pub(super) fn sized(&self, node: &Node, attributes: Attributes) -> Result<Attributes> {
        let Some((key, view)) = node.resized() else {
            return Ok(attributes);
        };
        let Some(size) = self.resizing.size(key) else {
            return Ok(attributes);
        };
        let size = match view {
            Some(view) => self
                .tree
                .viewed(key, view)?
                .1
                .form
                .shown_size(size)
                .unwrap_or(u64::MAX),
            None => size,
        };
        Ok(Attributes {
            size: size.min(attributes.size),
            ..attributes
        })
    }

    /// Makes flat bytes reach at least to `end`. Returns the array, and, if it had to become
    /// longer, a value that hides the new size until the caller has written the bytes.
    pub(super) fn reach(
        &self,
        key: &Key,
        end: u64,
    ) -> Result<(Arc<Array>, Option<HiddenGrowth<'_>>)> {
        let array = self.tree.array(key)?;
        if end <= self.resizing.end(&array) {
            return Ok((array, None));
        }
        let _alone = self.resizing.alone(&[key]);
        let array = self.tree.array(key)?;
        let before = self.resizing.end(&array);
        if end <= before {
            return Ok((array, None));
        }
        if array.has_pending_padding() {
            // a resize clears padding in the store, so it must be stored first
            self.cache.flush_array(&array)?;
        }
        let growth = self.resizing.begin_growth(key, before, end);
        Ok((self.reshape(&array, end)?, Some(growth)))
    }

    /// Gives an array as many rows as `size` bytes take. Dirty chunks move to the new array.
    fn reshape(&self, array: &Arc<Array>, size: u64) -> Result<Arc<Array>> {
        let key = array.key();
        let shape = &array.metadata().shape;
        let item = array.metadata().dtype.size() as u64;
        let inner = shape.get(1..).unwrap_or_default();
        let row = inner.iter().try_fold(item, |n, &len| n.checked_mul(len));
        let Some(row) = row.filter(|row| *row > 0 && !shape.is_empty()) else {
            return Err(Error::system(libc::EFBIG).context(format!("{key}: rows of no size")));
        };
        let rows = size.div_ceil(row);
        let mut now = array.clone();
        if rows != shape[0] {
            let shape: Vec<u64> = std::iter::once(rows).chain(inner.iter().copied()).collect();
            self.tree.hierarchy().resize(array, &shape)?;
            now = self.tree.array(key)?;
            self.cache.transfer(array, &now);
        }
        match size % row {
            0 => self.resizing.finish(key),
            _ => self.resizing.begin_row(key, size),
        }
        Ok(now)
    }
}

impl ArrayWriter<'_> {
    /// Changes the size of flat bytes, or of the physical values of an array; other files keep
    /// theirs.
    ///
    /// # Errors
    ///
    /// EINVAL unless physical values are whole.
    pub(super) fn truncate_shown(&self, node: &Node, size: u64, added: Added) -> Result<()> {
        match node.resized() {
            Some((key, None)) => self.truncate(key, size, added),
            Some((key, Some(_))) => self.truncate_view(key, size, added),
            None => Ok(()),
        }
    }

    fn truncate_view(&self, key: &Key, size: u64, added: Added) -> Result<()> {
        let form = self.tree.viewed(key, &View::Unpacked)?.1.form;
        let shown = form.shown_item() as u64;
        let stored = form.stored_item() as u64;
        match size % shown {
            0 => self.truncate(key, size / shown * stored, added),
            _ => {
                Err(Error::invalid(format!("physical values take {shown} bytes each")).context(key))
            }
        }
    }

    /// Shortens an array that a failed write has made longer. This method only logs its own error,
    /// because the caller reports why the write failed.
    pub(super) fn undo_growth(&self, growth: HiddenGrowth) {
        let (before, end) = growth.size;
        let array = self.tree.array(&growth.key);
        if array.is_ok_and(|array| self.resizing.end(&array) == end)
            && let Err(e) = self.truncate(&growth.key, before, Added::FillValue)
        {
            log::warn!(
                "{}: a write that failed has made the array longer: {e}",
                growth.key
            );
        }
    }

    /// Changes the size of flat bytes to `size` bytes.
    pub(super) fn truncate(&self, key: &Key, size: u64, added: Added) -> Result<()> {
        let _alone = self.resizing.alone(&[key]);
        let array = self.tree.array(key)?;
        array.writable()?;
        // a resize clears bytes outside the new shape in the store, so they must be stored first
        self.cache.flush_array(&array)?;
        let before = self.resizing.end(&array);
        let array = self.reshape(&array, size)?;
        let mut at = size;
        while at < before.min(array.size()) {
            let len = STEP.min(array.size() - at);
            let mut blank = vec![0; len as usize];
            array.metadata().write_fill(&mut blank, at);
            self.write_flat(&array, at, &blank, WriteMode::internal())?;
            at += len;
        }
        if added == Added::Zeros && !array.fill_is_zero() {
            self.zero_flat(&array, before..size, WriteMode::internal())?;
        }
        self.cache.flush_array(&array)
    }
}
