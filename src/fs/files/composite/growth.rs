//! Records that are appended to `dataset.nc`. netCDF-C writes them behind the last one, first as
//! fill values, and counts them in the header afterwards; the writes look the same when it moves
//! the data to make room for a longer header. **Only a header that counts more records, and has
//! everything else in its place, makes arrays longer.** Until then the writes are held back,
//! together with all that follow them.

use super::CompositeFile;
use super::held::HeldWrites;
use crate::fs::resize::HiddenGrowth;
use crate::fs::write::WriteMode;
use crate::fs::{Change, Fs};
use std::sync::atomic::Ordering;
use zarrfs_base::error::{Error, Kind, Result};
use zarrfs_base::memory::lock;

/// Maximum size of the file in bytes.
const MAX_SIZE: u64 = i64::MAX as u64 - (1 << 40);

impl CompositeFile {
    /// Returns whether a write has to wait for a header that counts the records that it belongs to.
    pub(super) fn is_held(&self, fs: &Fs, offset: u64, data: &[u8]) -> bool {
        self.check_growth(fs).is_ok()
            && self.file.records().is_some()
            && !data.is_empty()
            && !self.refused.load(Ordering::Relaxed)
            && (offset.saturating_add(data.len() as u64) > self.size()
                || lock(&self.held).is_some())
    }

    /// Holds a write back, or makes all such writes if it completes a header that counts their
    /// records.
    ///
    /// # Errors
    ///
    /// Those of [`CompositeFile::write_header`]; all that was held back is then forgotten.
    pub(super) fn write_held(&self, fs: &Change, offset: u64, data: &[u8]) -> Result<()> {
        let mut held = lock(&self.held);
        let done = self.hold(fs, &mut held, offset, data);
        if done.is_err() {
            *held = None;
        }
        done
    }

    fn hold(
        &self,
        fs: &Change,
        held: &mut Option<HeldWrites>,
        offset: u64,
        data: &[u8],
    ) -> Result<()> {
        let header = self
            .file
            .parts()
            .first()
            .map_or(0, |part| part.len)
            .saturating_sub(offset);
        let (header, values) = data.split_at(header.min(data.len() as u64) as usize);
        if !values.is_empty() {
            if held.is_none() {
                *held = Some(HeldWrites::new()?);
            }
            if let Some(held) = held {
                held.write(&fs.options.spill, offset + header.len() as u64, values)?;
            }
        }
        let mut growth = Vec::new();
        for slice in self.slices(offset, header.len()) {
            let part = slice.gather(header);
            if !self.shows(&slice, &part) {
                growth = self.write_header(fs, slice.at, &part)?;
            }
        }
        if growth.is_empty() {
            return Ok(());
        }
        let Some(writes) = held else {
            return Ok(());
        };
        let has_more = writes.take_before(self.size(), |at, piece| {
            self.check_write(fs, at, piece)?;
            self.write_slices(fs, at, piece, WriteMode::internal())
                .map(drop)
        });
        match has_more {
            Ok(true) => {}
            Ok(false) => *held = None,
            Err(e) => {
                growth
                    .into_iter()
                    .for_each(|growth| fs.writer.undo_growth(growth));
                return Err(e);
            }
        }
        Ok(())
    }

    /// Checks that records can be appended.
    ///
    /// # Errors
    ///
    /// EFBIG without `--resize`, and if an array has the dimension elsewhere than as its first.
    pub(super) fn check_growth(&self, fs: &Fs) -> Result<()> {
        let why = match &self.file.growing.fixed {
            _ if !fs.options.resize => {
                "records can only be appended in a mount with --resize".to_string()
            }
            Some(why) => format!("no records can be appended: {why}"),
            None => return Ok(()),
        };
        Err(Error::system(libc::EFBIG).context(why))
    }

    /// Makes the arrays of the records `count` items long. Returns values that hide the new sizes
    /// until the caller has written the items.
    ///
    /// # Errors
    ///
    /// EFBIG without `--resize`; an error of the store, after which all arrays are as long as
    /// before.
    pub(super) fn grow<'a>(&self, fs: &'a Change, count: u64) -> Result<Vec<HiddenGrowth<'a>>> {
        self.check_growth(fs)?;
        if self.file.size_with(count) > MAX_SIZE {
            return Err(Error::system(libc::EFBIG));
        }
        let keys = &self.file.growing.keys;
        for key in keys {
            fs.tree.array(key)?.writable()?;
        }
        let mut growth = Vec::new();
        for key in keys {
            let end = fs.tree.array(key)?.metadata().row_size().checked_mul(count);
            let grown = end
                .ok_or_else(|| Error::system(libc::EFBIG))
                .and_then(|end| fs.arrays.reach(key, end));
            match grown {
                Ok((_, grown)) => growth.extend(grown),
                Err(e) => {
                    growth
                        .into_iter()
                        .for_each(|growth| fs.writer.undo_growth(growth));
                    return Err(e);
                }
            }
            fs.tree.document_changed();
        }
        self.count.store(count, Ordering::Release);
        Ok(growth)
    }

    /// Fails if something that was written cannot be stored without what was not written.
    ///
    /// # Errors
    ///
    /// EPERM for records that the header does not count; EINVAL for items that were written in
    /// part.
    pub(super) fn check_complete(&self) -> Result<()> {
        let (kind, why) = if lock(&self.held).is_some() {
            (
                Kind::System(libc::EPERM),
                "the header does not count the records that were written",
            )
        } else if !lock(&self.torn).is_empty() {
            (
                Kind::Invalid,
                "an item was written in part, and can't be stored without the rest",
            )
        } else {
            return Ok(());
        };
        Err(Error::new(kind, why).context(self.node.path()))
    }
}
