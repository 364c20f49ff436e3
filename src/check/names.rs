//! Names of keys that the check recognizes without looking at their values.

use crate::array::hierarchy::{OWN, REMOVED};
use crate::zarr::metadata::{ZARR_JSON, ZARRAY, ZATTRS, ZGROUP, ZMETADATA};

/// Returns whether metadata documents of Zarr v2 or v3 have this name.
pub(super) fn is_document(name: &str) -> bool {
    [ZARR_JSON, ZARRAY, ZGROUP, ZATTRS, ZMETADATA].contains(&name)
}

/// Describes a value whose name shows that a writer did not finish or remove it: zarrfs,
/// zarr-python (`KEY.HEX.partial`) or TensorStore (`KEY.__lock`). Returns `None` for other names.
pub(super) fn leftover(name: &str) -> Option<&'static str> {
    match name {
        REMOVED => Some("the document of an array that was removed"),
        _ if name.starts_with(OWN) => Some("a value that zarrfs has not finished"),
        _ if name.ends_with(".partial") || name.contains(".__partial") => {
            Some("a value that was not finished")
        }
        _ if name.ends_with(".__lock") => Some("a value, or a lock, that TensorStore has left"),
        _ => None,
    }
}
