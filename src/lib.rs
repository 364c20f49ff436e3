//! zarrfs
pub mod codec;
pub mod dtype;
pub mod error;
pub mod grid;
pub mod json;
pub mod layout;
pub mod metadata;
pub mod store;
