//! zarrfs: a Zarr store as plain files.
pub mod array;
pub mod cache;
pub mod cli;
pub mod codec;
pub mod dtype;
pub mod error;
pub mod fs;
pub mod fuse;
pub mod grid;
pub mod hierarchy;
pub mod json;
pub mod layout;
pub mod metadata;
pub mod stats;
pub mod store;
pub mod tree;
