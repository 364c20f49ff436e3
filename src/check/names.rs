//! Names of keys that the check recognizes without looking at their values.

use crate::array::hierarchy::{OWN, REMOVED};

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
