//! zarrfs
pub mod codec;
pub mod dtype;
pub mod error;
pub mod json;
pub mod metadata;
