//! Items of flat bytes in files that show them in another form. This module knows no open files.

use crate::error::{Error, Kind, Result};
use crate::export::ItemForm;
use crate::fs::write::WriteMode;
use std::ops::Range;

/// Bytes of a request of which the end may be a part of an item. The kernel cuts writes of more than 128 KiB at pages of
/// the program's buffer, which may lie anywhere.
const CUT_BY_KERNEL: usize = 64 << 10;

/// Returns the stored bytes for `data`, which begins at `at` of the bytes in `form`, and how many bytes of `data` they
/// stand for.
///
/// # Errors
///
/// EINVAL for parts of items and values that no item holds; EPERM for the pages of a map.
pub(super) fn packed(form: &ItemForm, at: u64, data: &[u8], mode: WriteMode) -> Result<(usize, Vec<u8>)> {
    let mut items = data.to_vec();
    if form.takes_whole_items() {
        if mode.mapped {
            let why = "physical values can't be written through a shared map; write them with write(2)";
            return Err(Error::new(Kind::System(libc::EPERM), why));
        }
        let size = form.item();
        let rest = data.len() % size;
        if !at.is_multiple_of(size as u64) || rest != 0 && data.len() < CUT_BY_KERNEL {
            return Err(Error::invalid(format!("physical values are written in whole items of {size} bytes")));
        }
        items.truncate(data.len() - rest);
        form.store(&mut items)?;
        return Ok((data.len() - rest, items));
    }
    Ok((items.len(), items))
}

/// Returns the range of whole items of `size` bytes around `len` bytes at `at`.
pub(super) fn whole_items(at: u64, len: usize, size: usize) -> Range<u64> {
    let size = size as u64;
    at / size * size..(at + len as u64).next_multiple_of(size)
}

/// Returns the error of a file whose array has become another one.
pub(super) fn another_array() -> Error {
    let why = "the array's shape or dtype has changed since the file was opened; open it again";
    Error::new(Kind::System(libc::ESTALE), why)
}
