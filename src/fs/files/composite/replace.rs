//! Another file renamed onto `dataset.nc`, which is how NCO and many other programs finish: its
//! values and attributes go to the arrays, wherever they lie in it, and so do more records.

use super::CompositeFile;
use super::edit::refused;
use super::edit::{change_attributes, read_edited};
use crate::fs::files::OpenFile;
use crate::fs::write::WriteMode;
use crate::fs::{Change, Fs};
use zarrfs_base::error::{Error, ErrorContext, Result};
use zarrfs_export::{Moved, PartContent};
use zarrfs_store::{Key, StoreExt};

/// Bytes of a file with records that are read at a time.
const BLOCK: u64 = 1 << 20;

/// Length in bytes from which a record is read on its own.
const LONG: u64 = 64 << 10;

impl CompositeFile {
    /// Takes the values and attributes of the file at `from` over into the group whose file this
    /// is. Everything is checked before anything is changed.
    ///
    /// # Errors
    ///
    /// EPERM if the file cannot become this one; EFBIG if it has more records and the mount has no
    /// `--resize`.
    pub(in crate::fs) fn replace(&self, fs: &Change, from: &Key) -> Result<()> {
        let (group, header) = self.header().ok_or_else(|| refused("has no header"))?;
        let (edited, size) = read_edited(fs.store(), from, header)?;
        let changes =
            edited.changes(group, &self.file, |key| fs.tree.hierarchy().attributes(key))?;
        let moved = edited.moved(&self.file);
        for part in &moved {
            let last = part
                .count
                .saturating_sub(1)
                .saturating_mul(part.step)
                .saturating_add(part.len);
            if part.count > 0 && size.checked_sub(last).is_none_or(|most| part.from > most) {
                return Err(refused("the file ends before its values do"));
            }
        }
        for part in self.file.parts() {
            if let PartContent::Flat { key, .. } = &part.content {
                fs.tree.array(key)?.writable()?;
            }
        }
        let (flat, other): (Vec<&Moved>, Vec<&Moved>) = moved.iter().partition(|moved| {
            let part = self.file.parts().get(moved.part);
            part.is_some_and(|part| part.is_flat())
        });
        for part in other {
            self.check_values(fs, from, part)?;
        }
        let growth = match edited.more_records() {
            Some(count) => self.grow(fs, count)?,
            None => Vec::new(),
        };
        let written = flat.into_iter().try_for_each(|part| {
            for_each_block(fs, from, part, |at, values| {
                self.write_values(fs, part.part, at, values, WriteMode::internal())
                    .map(drop)
            })
        });
        if let Err(e) = written {
            growth
                .into_iter()
                .for_each(|growth| fs.writer.undo_growth(growth));
            return Err(e);
        }
        drop(growth);
        change_attributes(&fs.tree, &changes)?;
        self.flush(fs)
    }

    /// Fails if a file has other values than this one in a part that cannot be changed.
    fn check_values(&self, fs: &Fs, from: &Key, part: &Moved) -> Result<()> {
        let Some(PartContent::Values { bytes, .. }) =
            self.file.parts().get(part.part).map(|part| &part.content)
        else {
            return Ok(());
        };
        for_each_block(fs, from, part, |at, values| {
            let own = bytes
                .iter()
                .skip(at as usize)
                .copied()
                .chain(std::iter::repeat(0));
            if own.zip(values).all(|(own, value)| own == *value) {
                Ok(())
            } else {
                Err(refused("strings of any length can't be changed here"))
            }
        })
    }
}

/// Reads the values of a variable in the file at `from`, in order, whether they lie in one run or
/// in records. Calls `write` with blocks of them and where they begin among the values.
fn for_each_block(
    fs: &Fs,
    from: &Key,
    part: &Moved,
    mut write: impl FnMut(u64, &[u8]) -> Result<()>,
) -> Result<()> {
    let is_run = part.len == part.step;
    let (len, count) = if is_run {
        (part.len.saturating_mul(part.count), 1)
    } else {
        (part.len, part.count)
    };
    // short records are read together, with what lies between them
    let together = if len < LONG {
        BLOCK / part.step.max(1)
    } else {
        1
    };
    let mut record = 0;
    let mut at = 0;
    let mut block = Vec::new();
    let mut values = Vec::new();
    while record < count {
        let records = together.clamp(1, count - record);
        let start = part.from + record * part.step;
        if records > 1 {
            read_block(fs, from, start, (records - 1) * part.step + len, &mut block)?;
            values.clear();
            block
                .chunks(part.step as usize)
                .for_each(|record| values.extend_from_slice(&record[..len as usize]));
            write(at, &values)?;
        } else {
            for within in (0..len).step_by(BLOCK as usize) {
                let len = BLOCK.min(len - within);
                read_block(fs, from, start + within, len, &mut block)?;
                write(at + within, &block)?;
            }
        }
        (record, at) = (record + records, at + records * len);
    }
    Ok(())
}

/// Reads exactly `len` bytes at `start` of a plain key.
fn read_block(fs: &Fs, from: &Key, start: u64, len: u64, block: &mut Vec<u8>) -> Result<()> {
    fs.store()
        .get_range(from, start..start + len, block)
        .context(from)?
        .filter(|_| block.len() as u64 == len)
        .map(drop)
        .ok_or_else(Error::stale)
}
