//! ENVI.

use super::Described;
use crate::metadata::ArrayMetadata;

/// To be written.
pub fn fits(_: &ArrayMetadata) -> bool {
    false
}

/// To be written.
pub fn text(_: &Described) -> String {
    String::new()
}
