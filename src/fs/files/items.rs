//! Items of flat bytes in files that show them in another form: where they lie, and whole ones that
//! are written. This module knows no open files.

use crate::fs::write::WriteMode;
use std::ops::Range;
use zarrfs_base::error::{Error, Kind, Result};
use zarrfs_export::ItemForm;

/// Bytes of a request of which the end may be a part of an item. The kernel cuts writes of more
/// than 128 KiB at pages of the program's buffer, which may lie anywhere.
const CUT_BY_KERNEL: usize = 64 << 10;

/// Returns the stored bytes for `data`, which begins at `at` of the bytes in `form`, and how many
/// bytes of `data` they stand for.
///
/// # Errors
///
/// EINVAL for parts of items and values that no item holds; EPERM for the pages of a map.
pub(super) fn packed(
    form: &ItemForm,
    at: u64,
    data: &[u8],
    mode: WriteMode,
) -> Result<(usize, Vec<u8>)> {
    let mut items = data.to_vec();
    if form.takes_whole_items() {
        if mode.mapped {
            let why =
                "physical values can't be written through a shared map; write them with write(2)";
            return Err(Error::new(Kind::System(libc::EPERM), why));
        }
        let size = form.shown_item();
        let rest = data.len() % size;
        if !at.is_multiple_of(size as u64) || rest != 0 && data.len() < CUT_BY_KERNEL {
            return Err(Error::invalid(format!(
                "physical values are written in whole items of {size} bytes"
            )));
        }
        items.truncate(data.len() - rest);
        form.store(&mut items)?;
        return Ok((data.len() - rest, items));
    }
    Ok((items.len(), items))
}

/// Whole items around a range of bytes.
pub(super) struct ItemRange {
    /// Their bytes in the file's form.
    pub shown: Range<u64>,
    /// Their bytes in the array.
    pub stored: Range<u64>,
}

/// Returns the whole items around `len` bytes at `at`.
pub(super) fn shown_items(at: u64, len: usize, form: &ItemForm) -> ItemRange {
    let shown = form.shown_item() as u64;
    let stored = form.stored_item() as u64;
    let first = at / shown;
    let end = at.saturating_add(len as u64).div_ceil(shown);
    ItemRange {
        shown: first * shown..end.saturating_mul(shown),
        stored: first * stored..end.saturating_mul(stored),
    }
}

/// Returns the error of a file whose array has become another one.
pub(super) fn another_array() -> Error {
    let why = "the array's shape or dtype has changed since the file was opened; open it again";
    Error::new(Kind::System(libc::ESTALE), why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use zarrfs_base::json;
    use zarrfs_export::ArrayView;
    use zarrfs_format::metadata::ArrayMetadata;

    #[test]
    fn values_are_written_in_whole_items() {
        let document = br#"{"zarr_format":2,"shape":[9],"chunks":[9],"dtype":"|u1","compressor":null,"fill_value":0,
            "order":"C","filters":null}"#;
        let metadata = ArrayMetadata::parse(document).unwrap();
        let attributes = json::parse_object(br#"{"scale_factor":0.5}"#).unwrap();
        let form = ArrayView::unpacked(&metadata, &attributes, false)
            .unwrap()
            .form;
        let write =
            |at, data: &[u8]| packed(&form, at, data, WriteMode::internal()).map_err(|e| e.errno());
        let values = 1.5f64.to_le_bytes().repeat(9000);
        assert_eq!(write(8, &values[..24]), Ok((24, vec![3; 3])));
        for (at, len) in [(8, 23), (4, 8), (1, 7), (3, 70_000)] {
            assert_eq!(
                write(at, &values[..len]),
                Err(libc::EINVAL),
                "{len} bytes at {at}"
            );
        }
        // the rest of a long write comes with the next request
        assert_eq!(write(0, &values[..70_005]), Ok((70_000, vec![3; 8750])));
        let page = WriteMode {
            mapped: true,
            ..WriteMode::internal()
        };
        assert_eq!(
            packed(&form, 0, &values[..4096], page).unwrap_err().errno(),
            libc::EPERM
        );
        assert_eq!(
            packed(&ItemForm::AsStored, 3, b"any", page).unwrap(),
            (3, b"any".to_vec())
        );
    }
}
