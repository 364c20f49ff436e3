//! TIFF.

use super::Described;
use crate::metadata::ArrayMetadata;

/// To be written.
pub fn fits(_: &ArrayMetadata) -> bool {
    false
}

/// The bytes before the flat ones.
pub fn header(_: &Described) -> Vec<u8> {
    Vec::new()
}
