//! Reading mounts of every kind of store and array: bytes, names, sizes, listings and errors.

mod conformance;
mod data_raw;
mod hostile;
mod hostile_v3;
mod irregular_chunks;
mod listings;
mod many_stores;
mod mounted_tree;
mod panics;
mod python_readers;
mod read_only;
mod v2_view;
mod views;
mod zarr3;
#[path = "../support/mod.rs"]
mod support;
